"""One process of a collection: the one that talks to the GPU, watched by ``benchmarks.gpu.collect``.

A line that begins with ``QUIET`` is for the watchdog: after so many seconds without another line the process
hangs. ``LOST`` as exit code asks for a new process: an error that stays has ended this one's CUDA context.
"""

from __future__ import annotations

import argparse
import gc
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.collect import LOST, QUIET, command, parser
from benchmarks.gpu.plan import as_text, make_plan, pack
from benchmarks.gpu.runner import DeviceLost, Run, run_stage
from benchmarks.gpu.stage import Setting, Stage
from benchmarks.gpu.store import ROOT, Folder

RESULTS = ROOT / "benchmarks" / "gpu" / "results"
TRACES = ROOT / "sample_traces"
#: Kept of ``--minutes`` for what follows the last item: reading clocks, writing.
RESERVE_S = 15.0
#: PyTorch is read from disk and the driver starts.
START_S = 150.0


def main(arguments: Sequence[str] | None = None, *, stages: Sequence[Stage] | None = None) -> int:
    """The program. ``stages`` in order of value."""
    began = time.monotonic()
    asked = parser()
    options = asked.parse_args(arguments)
    if not options.plan:
        _quiet(START_S)
    from benchmarks.gpu import device
    from benchmarks.gpu.device import Device
    from benchmarks.gpu.stages import STAGES

    stages = list(STAGES if stages is None else stages)
    names = [stage.name for stage in stages]
    for name in options.only or ():
        if name not in names:
            asked.error(f"no stage {name!r}; there are {', '.join(names)}")
    if options.gpu and not options.plan:
        asked.error("--gpu goes with --plan: a measurement is of the GPU at hand")
    stages = [stage for stage in stages if not options.only or stage.name in options.only]
    stages.sort(key=lambda stage: options.last.count(stage.name))
    if options.plan and options.gpu:
        found = Device("none", options.gpu, {}, {})
    else:
        found = device.at_hand(dry_run=options.dry_run_cpu)
        gc.freeze()  # what a model leaves is not looked for among PyTorch's modules
    if found.kind == "none" and not options.plan:
        print(
            "no NVIDIA GPU at hand: --plan says what there is, --dry-run-cpu tries every stage",
            file=sys.stderr,
        )
        return 3
    results, traces = _places(asked, options)
    known = RESULTS / found.gpu if results.resolve() != RESULTS.resolve() and found.kind != "cpu" else None
    folder = Folder(results / found.gpu, dry_run=options.dry_run_cpu, known=known)
    if options.plan:
        setting = Setting(found.kind, found.gpu, options.dry_run_cpu, traces, results)
        print(as_text(make_plan(stages, folder, setting), found.gpu))
        return 0
    until = float("inf") if options.minutes is None else began + 60 * options.minutes - RESERVE_S
    if options.until is not None:
        until = time.monotonic() + options.until - time.time()
    run = Run(
        device=found,
        folder=folder,
        traces=traces,
        known_traces=TRACES if traces.resolve() != TRACES.resolve() else None,
        command=command(arguments),
        until=until,
        say=lambda line: print(line, flush=True),
        quiet=_quiet,
    )
    try:
        return _collect(stages, run)
    except DeviceLost as lost:
        run.say(f"the device gave up ({lost}); another process goes on")
        return LOST
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept", file=sys.stderr)
        return 130


def _quiet(seconds: float) -> None:
    print(f"{QUIET}{seconds:.0f}", flush=True)


def _collect(stages: Sequence[Stage], run: Run) -> int:
    begun = run.clock()
    for partial in run.folder.path.glob(".partial-*"):  # of a process that was killed while it wrote
        partial.unlink()
    with tempfile.TemporaryDirectory() as scratch:
        plan = make_plan(stages, run.folder, run.setting(Path(scratch)))
    bad = 0
    for line in plan:
        if line.state.current:
            run.say(f"{line.stage.name}: current, {line.state.why}")
    for line in pack(plan, run.left_s):
        run.say(f"{line.stage.name}: about {line.seconds:.0f} s, {line.items} items")
        run.quiet(START_S)
        try:
            state = run_stage(line.stage, run)
        except DeviceLost:
            raise
        except Exception as error:  # of one stage: the next ones have their own worth
            run.say(f"{line.stage.name}: {type(error).__name__}: {error}"[:500])
            bad += 1
            continue
        bad += state.state in ("refused", "damaged") or bool(state.result and state.result.get("failed"))
    count = sum(run.folder.look(stage).current for stage in stages)
    run.say(f"{count} of {len(stages)} stages are current in {run.folder.path}; {run.clock() - begun:.0f} s")
    return 1 if bad else 0


def _places(asked: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[Path, Path]:
    """Folders of results and traces. A dry run stays away from the real ones."""
    results: Path = options.results or RESULTS
    traces: Path = options.traces or (TRACES if results is RESULTS else results.parent / TRACES.name)
    if options.dry_run_cpu:
        real = RESULTS.resolve()
        if real in (results.resolve(), *results.resolve().parents) or traces.resolve() == TRACES.resolve():
            asked.error("a dry run does not write among the results of real GPUs: give another --results")
    return results, traces


def _asked_to_end(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _asked_to_end)
    sys.exit(main())
