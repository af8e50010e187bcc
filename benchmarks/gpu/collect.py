"""Collects the measured record of the GPU at hand, stage by stage, within the minutes there are.

``python -m benchmarks.gpu.collect --minutes 9`` measures what is missing in order of value and stops in
time; the next start goes on from there. ``--plan`` says what is missing, ``--dry-run-cpu`` runs every stage
at toy size on the CPU and never touches the record of a real GPU.

What is measured is measured by another process (``benchmarks.gpu.worker``): one that hangs or dies is ended
and replaced, and the next stage goes on.

Exit codes: 0 what was begun is done or waits for its next start; 1 a stage was refused, failed or hung;
2 wrong use; 3 no NVIDIA GPU at hand.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

#: Begins a line of the worker that is for the watchdog, with the seconds that may pass before the next line.
QUIET = "\x02quiet "
#: The worker's exit code where its CUDA context is gone and another process can go on.
LOST = 75
#: A process asked to end gets this long before it is killed; one that blocks in the driver cannot hear.
_GRACE_S = 5.0
#: Past its end a run may write this long.
_LATE_S = 45.0
#: New processes after one that hung, died or lost its device. Each item that ends its process three times is
#: given up (``store.MOST_KILLS``), so this bounds a GPU that never answers.
_MOST_STARTS = 8
_STAGE = re.compile(r"([\w-]+)(?:: about \d| \d+/\d+ )")


def main(arguments: Sequence[str] | None = None) -> int:
    """The program."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(words)
    if options.plan:
        from benchmarks.gpu import worker

        return worker.main(words)
    if options.dry_run_cpu and options.results is None:
        out = Path(tempfile.mkdtemp(prefix="tracelens-dry-run-"))
        print(f"dry run on the CPU into {out}", flush=True)
        words += ["--results", str(out / "results")]
    return watch([sys.executable, "-u", "-m", "benchmarks.gpu.worker", *words], minutes=options.minutes)


def watch(
    start: Sequence[str],
    *,
    minutes: float | None = None,
    say: Callable[[str], None] = lambda line: print(line, flush=True),
    most_quiet_s: float = float("inf"),
) -> int:
    """Run the worker until it ends by itself; replace one that hangs, dies or has lost its device.

    The worker's own lines go through ``say``. No silence is longer than ``most_quiet_s`` (for tests).
    """
    end = time.time() + 60 * minutes if minutes is not None else float("inf")
    until = [] if minutes is None else ["--until", f"{end - 15:.1f}"]
    last: list[str] = []  # stages whose process was ended
    bad = False
    for _ in range(_MOST_STARTS):
        command = [*start, *until, *(word for name in last for word in ("--last", name))]
        code, stage, hung = _one(command, end, say, most_quiet_s)
        where = stage or "the start"
        if hung:
            say(f"{where}: nothing more was heard; ended, and the next stage goes on")
        elif code < 0:
            say(f"{where}: the process ended by signal {-code}; the next stage goes on")
        elif code != LOST:
            return 1 if bad and code == 0 else code
        bad = True
        if code != LOST and stage:
            last.append(stage)
        if time.time() > end - 20:
            break
    say("no more processes are started; what was measured is kept")
    return 1


def _one(
    start: Sequence[str], end: float, say: Callable[[str], None], most_quiet_s: float
) -> tuple[int, str, bool]:
    """One worker: its exit code, the stage it was at, and whether it hung."""
    worker = subprocess.Popen(start, stdout=subprocess.PIPE, process_group=0)
    before = signal.signal(signal.SIGTERM, _asked_to_end)  # what `timeout` sends
    stage, allowed, rest = "", 180.0, b""
    try:
        assert worker.stdout is not None
        while True:
            patience = max(0.1, min(allowed, most_quiet_s, end + _LATE_S - time.time()))
            if not select.select([worker.stdout], [], [], patience)[0]:
                _end(worker)
                return worker.returncode or -signal.SIGKILL, stage, True
            if not (data := os.read(worker.stdout.fileno(), 65536)):
                return worker.wait(), stage, False
            *whole, rest = (rest + data).split(b"\n")
            for line in (one.decode("utf-8", "replace") for one in whole):
                if line.startswith(QUIET):
                    allowed = float(line.removeprefix(QUIET))
                    continue
                stage = found[1] if (found := _STAGE.match(line)) else stage
                say(line)
    except KeyboardInterrupt:
        say("interrupted; what was measured is kept")
        return 130, stage, False
    finally:
        signal.signal(signal.SIGTERM, before)
        _end(worker)
        if worker.stdout is not None:
            worker.stdout.close()


def _end(worker: subprocess.Popen[bytes]) -> None:
    """Ask the worker and what it started to end, then kill. One that not even that ends is left behind."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        if worker.poll() is not None:
            return
        os.killpg(worker.pid, how)
        try:
            worker.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            continue


def _asked_to_end(*_: object) -> None:
    raise KeyboardInterrupt


def command(arguments: Sequence[str] | None) -> str:
    """As typed, without the paths of this machine."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    shown: list[str] = []
    hide = skip = False
    for word in words:
        if not skip and word not in ("--until", "--last"):
            shown.append("DIR" if hide else word)
        hide, skip = word in ("--results", "--traces"), word in ("--until", "--last")
    return " ".join(["python -m benchmarks.gpu.collect", *shown])


def parser() -> argparse.ArgumentParser:
    """The options of the program and of its worker."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.collect",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--minutes",
        type=_positive,
        metavar="N",
        help="stop within N minutes; what is missing goes on next time",
    )
    add("--only", action="append", metavar="STAGE", help="this stage alone; may be given again")
    add("--plan", action="store_true", help="print what is missing, how long it takes and what it writes")
    add("--gpu", metavar="KEY", help="with --plan: of this GPU's record (h200), without one at hand")
    add("--dry-run-cpu", action="store_true", help="every stage at toy size on the CPU")
    add("--results", type=Path, metavar="DIR", help="new results go to DIR/<gpu>, not into the repository")
    add("--traces", type=Path, metavar="DIR", help="new traces go here, not into sample_traces")
    # how one process goes on where another ended: Unix time, and the stages that come last
    add("--until", type=float, help=argparse.SUPPRESS)
    add("--last", action="append", default=[], help=argparse.SUPPRESS)
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("a positive number of minutes")
    return value


if __name__ == "__main__":
    sys.exit(main())
