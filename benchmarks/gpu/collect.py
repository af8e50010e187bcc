"""Collects the measured record of the GPU at hand, stage by stage, within the minutes there are.

``python -m benchmarks.gpu.collect --minutes 9`` measures what is missing in order of value and stops in
time; the next start goes on from there. ``--plan`` says what is missing, ``--dry-run-cpu`` runs every stage
at toy size on the CPU and never touches the record of a real GPU.

Exit codes: 0 what was begun is done or waits for its next start; 1 a stage was refused or failed;
2 wrong use; 3 no NVIDIA GPU at hand.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu import device
from benchmarks.gpu.bundle import Bundler, TooMuch
from benchmarks.gpu.device import Device
from benchmarks.gpu.plan import as_text, make_plan, pack
from benchmarks.gpu.runner import DeviceLost, Run, run_stage
from benchmarks.gpu.stage import Setting, Stage
from benchmarks.gpu.stages import STAGES
from benchmarks.gpu.store import ROOT, Folder

RESULTS = ROOT / "benchmarks" / "gpu" / "results"
TRACES = ROOT / "sample_traces"
#: Kept of ``--minutes`` for what follows the last item: reading clocks, writing, packing.
RESERVE_S = 15.0


def main(arguments: Sequence[str] | None = None, *, stages: Sequence[Stage] = STAGES) -> int:
    """The program. ``stages`` in order of value."""
    parser = _parser()
    options = parser.parse_args(arguments)
    began = time.monotonic()
    names = [stage.name for stage in stages]
    wrong = [name for name in options.only or () if name not in names]
    if wrong:
        parser.error(f"no stage {wrong[0]!r}; there are {', '.join(names)}")
    if options.gpu and not options.plan:
        parser.error("--gpu goes with --plan: a measurement is of the GPU at hand")
    stages = [stage for stage in stages if not options.only or stage.name in options.only]
    if options.plan and options.gpu:
        found = Device("none", options.gpu, {}, {})
    else:
        found = device.at_hand(dry_run=options.dry_run_cpu)
    if found.kind == "none" and not options.plan:
        print(
            "no NVIDIA GPU at hand: --plan says what there is, --dry-run-cpu tries every stage",
            file=sys.stderr,
        )
        return 3
    results, traces = _places(parser, options, found)
    folder = Folder(results / found.gpu, dry_run=options.dry_run_cpu)
    if options.plan:
        setting = Setting(found.kind, found.gpu, options.dry_run_cpu, traces, results)
        print(as_text(make_plan(stages, folder, setting), found.gpu))
        return 0
    until = float("inf") if options.minutes is None else began + 60 * options.minutes - RESERVE_S
    if options.until is not None:
        until = time.monotonic() + options.until - time.time()
    bundler = Bundler(options.pack, results, traces, found.gpu) if options.pack else None
    run = Run(
        device=found,
        folder=folder,
        traces=traces,
        command=_command(arguments),
        until=until,
        say=lambda line: print(line, flush=True),
        after_item=lambda: _pack(bundler, finished=False),
    )
    try:
        return _collect(stages, run)
    except DeviceLost as lost:
        return _go_on_in_another_process(run, options, str(lost))
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept", file=sys.stderr)
        return 130
    finally:
        _pack(bundler, finished=True)


def _pack(bundler: Bundler | None, *, finished: bool) -> None:
    """A copy that cannot be made is said; what was measured lies in its place all the same."""
    if bundler is None:
        return
    try:
        if finished:
            bundler.write()
        else:
            bundler.now_and_then()
    except (TooMuch, OSError) as error:
        print(f"not packed: {error}", file=sys.stderr)


def _collect(stages: Sequence[Stage], run: Run) -> int:
    begun = run.clock()
    with tempfile.TemporaryDirectory() as scratch:
        plan = make_plan(stages, run.folder, run.setting(Path(scratch)))
    bad = 0
    for line in plan:
        if line.state.current:
            run.say(f"{line.stage.name}: current, {line.state.why}")
    for line in pack(plan, run.left_s):
        state = run_stage(line.stage, run)
        bad += state.state in ("refused", "damaged") or bool(state.result and state.result.get("failed"))
    count = sum(run.folder.look(stage).current for stage in stages)
    run.say(f"{count} of {len(stages)} stages are current in {run.folder.path}; {run.clock() - begun:.0f} s")
    return 1 if bad else 0


def _go_on_in_another_process(run: Run, options: argparse.Namespace, why: str) -> int:
    """The item that broke the device is noted in its progress file and tried again once at most."""
    run.say(f"the device gave up ({why}); going on in a new process")
    arguments = [sys.executable, "-m", "benchmarks.gpu.collect"]
    for name in options.only or ():
        arguments += ["--only", name]
    if options.out:
        arguments += ["--out", str(options.out)]
    if options.pack:
        arguments += ["--pack", str(options.pack)]
    if run.until != float("inf"):
        arguments += ["--until", f"{time.time() + run.left_s:.1f}"]
    sys.stdout.flush()
    os.execv(sys.executable, arguments)


def _places(parser: argparse.ArgumentParser, options: argparse.Namespace, found: Device) -> tuple[Path, Path]:
    """Folders of results and traces. A dry run stays away from the real ones."""
    out: Path | None = options.out
    if options.dry_run_cpu:
        if out is None:
            out = Path(tempfile.mkdtemp(prefix="tracelens-dry-run-"))
            print(f"dry run on the CPU into {out}", flush=True)
        real = {RESULTS.resolve(), TRACES.resolve(), ROOT.resolve(), RESULTS.parent.resolve()}
        places = {out.resolve(), (out / "results").resolve(), (out / "sample_traces").resolve()}
        if places & real or any(RESULTS.resolve() in place.parents for place in places):
            parser.error("a dry run does not write among the results of real GPUs: give another --out")
    if out is None:
        return RESULTS, TRACES
    return out / "results", out / "sample_traces"


def _command(arguments: Sequence[str] | None) -> str:
    """As typed, without the paths of this machine."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    shown, hide = [], False
    for word in words:
        shown.append("DIR" if hide else word)
        hide = word in ("--out", "--pack")
    return " ".join(["python -m benchmarks.gpu.collect", *shown])


def _parser() -> argparse.ArgumentParser:
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
    add(
        "--out", type=Path, metavar="DIR", help="results/ and sample_traces/ go here, not into the repository"
    )
    add("--pack", type=Path, metavar="DIR", help="keep a copy of all results here in a few files; see unpack")
    add("--until", type=float, help=argparse.SUPPRESS)  # Unix time; how a run goes on in another process
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("a positive number of minutes")
    return value


def _asked_to_end(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _asked_to_end)  # what `timeout` sends: there is time to pack
    sys.exit(main())
