"""What a capture costs: outside its window, and within it against plain torch.profiler.

``python -m benchmarks.capture_overhead [--sizes medium,small] [--rounds 31] [--out FILE]``

One process, CPU, two sizes of a model. Time is the CPU time of the training's thread, so that other work on
the machine counts little. Blocks of steps take turns and each ratio is of neighbours; the median over the
rounds counts.

* outside: steps with a session that waits, against steps with nothing installed.
* inside: steps of the window (hooks, ranges and profiler), against the same steps under
  ``torch.profiler.profile(record_shapes=True)``; starting, stopping and writing are not steps.

The smaller the model, the harsher the test: the GEMMs hide nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from tracelens.capture.options import Options
from tracelens.capture.session import Session

RESULTS = Path(__file__).with_name("results")


@dataclass(frozen=True, slots=True)
class Size:
    """Of the model and its batch."""

    layers: int = 4
    hidden: int = 128
    vocabulary: int = 1000
    batch: int = 4
    sequence: int = 64


#: ``small`` is all host work: nothing hides what a module call costs.
SIZES = {"medium": Size(), "small": Size(hidden=64, batch=2, sequence=16)}


def build(layers: int, hidden: int, vocabulary: int) -> nn.Module:
    """A small pre-norm transformer with a language-model head."""
    block = nn.TransformerEncoderLayer(hidden, 4, 4 * hidden, 0.0, batch_first=True, norm_first=True)
    stack = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(vocabulary, hidden), stack, nn.Linear(hidden, vocabulary))


def trainer(model: nn.Module, batch: int, sequence: int, vocabulary: int) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, vocabulary, (batch, sequence))

    def step() -> None:
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def timed(step: Callable[[], None], steps: int) -> float:
    """The median seconds of a step: between CUDA events where the process uses CUDA, else of CPU time."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return _timed_on_gpu(step, steps)
    times = []
    for _ in range(steps):
        begin = time.thread_time()
        step()
        times.append(time.thread_time() - begin)
    return statistics.median(times)


def _timed_on_gpu(step: Callable[[], None], steps: int) -> float:
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    torch.cuda.synchronize()
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    marks[-1].synchronize()
    return statistics.median(float(a.elapsed_time(b)) / 1e3 for a, b in pairwise(marks))


def outside(step: Callable[[], None], steps: int, folder: str, armed_first: bool) -> float:
    """armed / bare, of neighbouring blocks."""

    def armed() -> float:
        session = Session(Options(out=folder, wait=1 << 30))
        session.start()
        seconds = timed(step, steps)
        session.forget()
        return seconds

    if armed_first:
        return armed() / timed(step, steps)
    bare = timed(step, steps)
    return armed() / bare


def plain(step: Callable[[], None], steps: int) -> float:
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=True):
        step()
        return timed(step, steps)


def inside(step: Callable[[], None], steps: int, folder: str) -> float:
    """Seconds of a step in the window of a session that would go on for ever."""
    session = Session(Options(out=folder, wait=1, warmup=0, active=1 << 30))
    session.start()
    step()  # the window opens behind it
    assert session.state == "recording", "the window did not open"
    step()
    seconds = timed(step, steps)
    session.give_up("the benchmark has seen enough")
    return seconds


def compare(step: Callable[[], None], *, steps: int, rounds: int) -> dict[str, Any]:
    """``outside``, ``inside`` and ``profiler``: median ratio, quartiles and each round's.

    ``rounds`` (two or more) are of neighbouring blocks of ``steps`` steps; ``bare_step_ms`` is their step.
    """
    ratios: dict[str, list[float]] = {"outside": [], "inside": [], "profiler": []}
    bare = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as quiet:
        quiet.enter_context(contextlib.redirect_stderr(io.StringIO()))
        for turn in range(rounds):
            ratios["outside"].append(outside(step, 4 * steps, folder, bool(turn % 2)))
            alone = timed(step, steps)
            if turn % 2:
                ours = inside(step, steps, folder)
                theirs = plain(step, steps)
            else:
                theirs = plain(step, steps)
                ours = inside(step, steps, folder)
            ratios["inside"].append(ours / theirs)
            ratios["profiler"].append(theirs / alone)
            bare.append(alone)
    report: dict[str, Any] = {
        name: {
            "median": round(statistics.median(values), 4),
            "quartiles": [round(value, 4) for value in statistics.quantiles(values)[::2]],
            "rounds": [round(value, 4) for value in values],
        }
        for name, values in ratios.items()
    }
    report["bare_step_ms"] = round(statistics.median(bare) * 1e3, 3)
    report["bare_step_ms_rounds"] = [round(seconds * 1e3, 3) for seconds in bare]
    return report


def measure(size: Size, *, steps: int, rounds: int) -> dict[str, Any]:
    """The three ratios of a model of ``size``."""
    torch.manual_seed(0)
    model = build(size.layers, size.hidden, size.vocabulary)
    step = trainer(model, size.batch, size.sequence, size.vocabulary)
    timed(step, 5)
    return {**compare(step, steps=steps, rounds=rounds), "size": asdict(size)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default=",".join(SIZES), help="which of them, comma-separated")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--threads", type=int, default=1)  # the time of others would not be seen
    parser.add_argument("--out", type=Path, default=RESULTS / "capture_overhead.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    report: dict[str, Any] = {
        name: measure(SIZES[name], steps=arguments.steps, rounds=arguments.rounds)
        for name in arguments.sizes.split(",")
    }
    for name, found in report.items():
        print(f"{name}: bare step {found['bare_step_ms']:.2f} ms")
        for label, key in (
            ("outside the window / bare", "outside"),
            ("torch.profiler / bare", "profiler"),
            ("in the window / torch.profiler", "inside"),
        ):
            low, high = found[key]["quartiles"]
            print(f"  {label:31} {found[key]['median']:.3f}  (half of the rounds {low:.3f} to {high:.3f})")
    report["setting"] = {
        **{key: getattr(arguments, key) for key in ("steps", "rounds", "threads")},
        "torch": torch.__version__,
        "cores": os.cpu_count(),
    }
    arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
