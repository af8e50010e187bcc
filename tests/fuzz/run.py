"""Cases one after another, each within bounds. ``python -m tests.fuzz`` runs until it is stopped."""

from __future__ import annotations

import argparse
import gc
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.fuzz import check
from tests.fuzz.cases import KINDS, make
from tests.fuzz.seeds import SHARED
from tests.fuzz.shown import Broken

CORPUS = Path(__file__).with_name("corpus")
HANGS_S = 10  # of CPU time, whatever else the machine does
#: Memory that a case may take beside what the process held before: so much, and so often its input.
MEMORY_MB, MEMORY_TIMES = 300, 4
_THOROUGH = 24  # every so many cases is searched and has all renderings
_SAID_EVERY_S = 300


class Hang(Exception):
    """A case that took longer than ``HANGS_S``."""


def run(kind: str, data: bytes, folder: Path, *, thorough: bool) -> str:
    """What a case ended in. Raises what must not happen."""
    work = folder / "case"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    packed = kind == "trace" and data[:2] == b"\x1f\x8b"
    path = work / (f"{kind}.json.gz" if packed else f"{kind}.json")
    path.write_bytes(data)
    with _bounded_time(), _bounded_memory(len(data)):
        return check.of(kind, path, thorough=thorough)


@contextmanager
def _bounded_time() -> Iterator[None]:
    before = signal.signal(signal.SIGVTALRM, _hangs)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANGS_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _hangs(*_: Any) -> None:
    raise Hang(f"over {HANGS_S} s")


@contextmanager
def _bounded_memory(size: int) -> Iterator[None]:
    """Linux says what a process has held at most since it was last asked to forget that."""
    forget = Path("/proc/self/clear_refs")
    if not forget.exists():
        yield
        return
    forget.write_text("5")
    before = _held_mb("VmRSS")
    yield
    more = _held_mb("VmHWM") - before
    if more > MEMORY_MB + MEMORY_TIMES * size / 1e6:
        raise Broken(f"memory: {more:,.0f} MB more for an input of {size / 1e6:.1f} MB")


def _held_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def place(error: BaseException) -> str:
    """Where it happened, so that a thousand cases of one fault are one."""
    ours = [one for one in traceback.extract_tb(error.__traceback__) if "tracelens/" in one.filename]
    last = ours[-1] if ours else None
    where = (
        f"{last.filename.partition('tracelens/')[2].rpartition('tracelens/')[2]}:{last.lineno}"
        if last
        else ""
    )
    said = str(error).partition(":")[0] if isinstance(error, Broken) else ""
    return f"{type(error).__name__} {where} {said}".strip()


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> int:
    """Run cases; print each new fault once, with the number that makes it, and keep its input."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=main.__doc__)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=1 << 40)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--keep", type=Path, help="folder for the inputs of faults")
    parser.add_argument("--seeds", type=Path, action="append", default=[], help="folder of further traces")
    parser.add_argument("--kind", choices=KINDS, help="only cases of this kind")
    options = parser.parse_args(arguments)
    folders = (*([SHARED] if SHARED.is_dir() else []), *options.seeds)
    ended: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    end, told = time.monotonic() + options.seconds, time.monotonic()
    with tempfile.TemporaryDirectory() as name, suppress(KeyboardInterrupt):  # the counts are said
        for number in range(options.first, options.first + options.cases):
            if time.monotonic() > end:
                break
            kind, data = make(number, folders, options.kind)
            if number == options.first:
                gc.freeze()  # what all cases are made of is not looked through again and again
            try:
                thorough = number % _THOROUGH == 0
                ended[f"{kind}: {run(kind, data, Path(name), thorough=thorough)}"] += 1
            except Exception as error:
                faults[what := place(error)] += 1
                if faults[what] == 1:
                    say(f"{number} {kind}: {what}: {str(error)[:300]}")
                    if options.keep:
                        options.keep.mkdir(parents=True, exist_ok=True)
                        (options.keep / f"{number}.{kind}").write_bytes(data)
            if time.monotonic() > told + _SAID_EVERY_S:
                told = time.monotonic()
                say(f"... {ended.total() + faults.total():,} cases to {number}, {len(faults)} faults")
    say(f"{ended.total() + faults.total():,} cases, {len(faults)} faults ({faults.total()} cases)")
    for what, count in [*ended.most_common(), *faults.most_common()]:
        say(f"{count:>8,}  {what}")
    return 1 if faults else 0
