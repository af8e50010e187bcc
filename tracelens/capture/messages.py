"""One line on standard error for what a person must know; nothing here can raise."""

from __future__ import annotations

import contextlib
import os
import sys


def say(text: str) -> None:
    """Write one line; other ranks than 0 say which they are."""
    rank = os.environ.get("RANK", "0")
    where = f" [rank {rank}]" if rank not in ("", "0") else ""
    # a closed or full stderr must not end a training run
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"tracelens{where}: {' '.join(str(text).split())}\n")
        sys.stderr.flush()


def tell(text: str) -> None:
    """What holds for all ranks alike: rank 0 says it."""
    if os.environ.get("RANK", "0") in ("", "0"):
        say(text)


def why(error: BaseException) -> str:
    """The reason of an error on one line."""
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"[:300] if first else type(error).__name__
