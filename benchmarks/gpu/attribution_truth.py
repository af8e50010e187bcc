"""What tracelens says of a captured step beside the independent truth that was recorded with it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from benchmarks.gpu.truth import Kernel

#: The truth's parts of a step, in tracelens' words; parts without a word of their own are not compared.
PHASES = {
    "forward": "forward",
    "loss": "forward",
    "backward": "backward",
    "recompute": "recompute",
    "optimizer": "optimizer",
}


@dataclass(frozen=True, slots=True)
class Told:
    """What tracelens says of one kernel."""

    name: str
    step: int
    phase: str
    module: str | None
    duration_us: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """Shares of GPU time. ``None``: there was nothing to compare."""

    kernels: int  # compared
    matched_frac: float  # of the step's time: kernels with a counterpart in the truth
    phase_frac: float | None  # of the time whose phase the truth knows
    module_frac: float | None  # of the time whose module the truth knows


def compare(told: Sequence[Told], truth: Sequence[Kernel], *, modules: bool) -> Agreement:
    """Each step's kernels are paired with the truth's. ``modules`` False: that knows the parts only.

    An optimizer's kernels are in no module, whatever range they are in.
    """
    steps: dict[int, list[Told]] = defaultdict(list)
    for told_kernel in told:
        steps[told_kernel.step].append(told_kernel)
    matched = phase = phase_right = module = module_right = 0.0
    count = 0
    for ours in steps.values():
        for one, true in pairs(ours, truth):
            count += 1
            matched += one.duration_us
            if (wanted := PHASES.get(true.part)) is not None:
                phase += one.duration_us
                phase_right += one.duration_us * (one.phase == wanted)
            if modules and true.module != "?" and true.part in ("forward", "backward", "recompute"):
                module += one.duration_us
                module_right += one.duration_us * same_module(one.module, true.module)
    total = sum(one.duration_us for one in told)
    return Agreement(
        kernels=count,
        matched_frac=matched / total if total else 0.0,
        phase_frac=phase_right / phase if phase else None,
        module_frac=module_right / module if module else None,
    )


def pairs(ours: Sequence[Told], theirs: Sequence[Kernel]) -> list[tuple[Told, Kernel]]:
    """Kernels of a name in order; where one side has more of a name, by the longest common sequence.

    Where the data decides (tokens of an expert), two steps run different kernels for one GEMM: those stand
    between the same neighbours.
    """
    told, true = ([one.name for one in side] for side in (ours, theirs))
    if Counter(told) == Counter(true):
        by_name = (sorted(range(len(side)), key=side.__getitem__) for side in (told, true))
        return [(ours[one], theirs[other]) for one, other in zip(*by_name, strict=True)]
    found: list[tuple[Told, Kernel]] = []
    at = beyond = 0
    for one, other in [*_longest_common(told, true), (len(told), len(true))]:
        if one - at == other - beyond:
            found += zip(ours[at:one], theirs[beyond:other], strict=True)
        found += zip(ours[one : one + 1], theirs[other : other + 1], strict=True)
        at, beyond = one + 1, other + 1
    return found


def _longest_common(one: Sequence[str], other: Sequence[str]) -> list[tuple[int, int]]:
    """The places of the longest common subsequence, in order."""
    numbers = {name: number for number, name in enumerate({*one, *other})}
    right = np.array([numbers[name] for name in other])
    lengths = np.zeros((len(one) + 1, len(other) + 1), np.int32)
    for row, name in enumerate(one):
        same = lengths[row, :-1] + (right == numbers[name])
        lengths[row + 1, 1:] = np.maximum.accumulate(np.maximum(lengths[row, 1:], same))
    places = []
    row, column = len(one), len(other)
    while row and column:
        if one[row - 1] == other[column - 1]:
            row, column = row - 1, column - 1
            places.append((row, column))
        elif lengths[row - 1, column] >= lengths[row, column - 1]:
            row -= 1
        else:
            column -= 1
    return places[::-1]


def same_module(told: str | None, true: str) -> bool:
    """Whether both mean one module; tracelens puts a root's name in front, the truth has none.

    >>> same_module("GPT.h.0.attn", "h.0.attn"), same_module("h.0.mlp", "h.0.attn"), same_module(None, "")
    (True, False, True)
    """
    if not true:
        return told is None or "." not in told  # the root itself, or no module at all
    return told is not None and (told == true or told.endswith(f".{true}"))


def read_pair(trace: Path) -> tuple[list[Told], list[Kernel], bool]:
    """What tracelens says of ``trace``, the truth beside it, and whether that knows modules."""
    import tracelens
    from benchmarks.gpu import truth

    table = tracelens.analyze(trace).kernels
    table = table[table["step"].notna()]
    columns = (table[name] for name in ("name", "step", "phase", "module", "dur_ns"))
    told = [
        Told(str(name), int(step), str(phase), module if isinstance(module, str) else None, duration / 1e3)
        for name, step, phase, module, duration in zip(*columns, strict=True)
    ]
    how, kernels = truth.read(truth_of(trace))
    # a graph's kernels have no module in any trace
    modules = how.get("granularity") == "module" and "graph" not in how.get("of", "")
    return told, kernels, modules


def truth_of(trace: Path) -> Path:
    """Where the truth of a sample trace lies: "h200_gpt2_eager.truth.csv.gz"."""
    return trace.with_name(trace.name.removesuffix(".json.gz") + ".truth.csv.gz")


def sample_pairs(folder: Path) -> list[Path]:
    """Traces with a truth beside them."""
    return [trace for trace in sorted(folder.glob("*.json.gz")) if truth_of(trace).is_file()]
