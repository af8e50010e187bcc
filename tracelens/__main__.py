"""``python -m tracelens``, and the program ``tracelens``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is still being imported ends it as later: without a traceback."""
    try:
        from tracelens.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
