"""Generated runs with planted losses that no shape explains, and the same runs without them.

One seed plants all three: a collective beside some GEMM calls (overlap), slow steps (clock), and experts
whose rows hold no token or of which one rank has more (experts). The clean twin has the collectives, the
steps and the experts, and none of the losses.
"""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.synthetic import ModelSpec, Options
from tests.synthetic import Truth as Kernel
from tests.synthetic_mixture import TILE, Load, Mixture, build_mixture
from tests.trace.tools import read
from tracelens.analysis import analyze_trace
from tracelens.results import Report

Event = dict[str, Any]
Kind = Literal["padding", "tiles", "uneven"]
KINDS: tuple[Kind, ...] = ("padding", "tiles", "uneven")

GPU = {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"}
_RING = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
_GROUPED = "GroupProblem"  # no two calls need compute as much: a trace does not tell what they take alone
_COMPUTES = re.compile("gemm|nvjet|flash_|GroupProblem")
_STEPS, _ENOUGH = 6, 3


@dataclass(slots=True)
class Truth:
    """ms per step that were planted."""

    overlap: float = 0.0
    clock: float = 0.0
    experts: float = 0.0

    def parts(self) -> dict[str, float]:
        return {"overlap": self.overlap, "clock": self.clock, "experts": self.experts}


def gpu_events(trace: Mapping[str, Any]) -> list[Event]:
    return sorted((one for one in trace["traceEvents"] if one.get("cat") in GPU), key=lambda one: one["ts"])


def lengthen(
    trace: Mapping[str, Any], times: Callable[[Event], float], beside: Callable[[Event], bool]
) -> None:
    """Make kernels so many ``times`` as long, all later ones later by as much, and put a reduce-scatter of 24
    CTAs beside those that ``beside`` names."""
    shift, events = 0.0, trace["traceEvents"]
    where = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 20, "name": _RING}
    launch = {"stream": 20, "device": 0, "grid": [24, 1, 1], "block": [544, 1, 1]}
    for one in gpu_events(trace):
        one["ts"] += shift
        longer = one["dur"] * (times(one) - 1)
        one["dur"] += longer
        shift += longer
        if beside(one):
            events.append({**where, "ts": one["ts"] - 0.1, "dur": one["dur"] + 0.2, "args": launch})


def reported(trace: Mapping[str, Any]) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        return analyze_trace(read(Path(folder), json.dumps(trace)), shape_search=False).report


@dataclass(frozen=True, slots=True)
class _Experts:
    """How a seed's experts are loaded, and the fullest rank's rows over the mean."""

    load: Callable[[], Load]
    count: int
    over: float = 0.0
    mine: float = 1.0  # this rank's rows over the mean


def _experts(kind: Kind, rng: random.Random, *, rows: int, clean: bool) -> _Experts:
    if kind == "padding":  # 16 experts in one bmm, each with a capacity of 1.25 to 2 times its share
        each = rows // 16 if clean else round(rng.choice([1.25, 1.5, 2.0]) * rows / 16)
        return _Experts(lambda: Load([each] * 16, held=rows), 16)
    if kind == "tiles":  # each expert ends within a tile; in the twin few experts have many tiles
        count = 8 if clean else 24

        def chosen() -> Load:
            liked = [rng.uniform(0.8, 1.2) for _ in range(count)]
            many = Counter(rng.choices(range(count), liked, k=rows))
            return Load([many[one] for one in range(count)])

        return _Experts(chosen, count)
    ranks, over = rng.choice([2, 4, 8]), 0.03 if clean else rng.uniform(0.15, 0.6)
    shares = [1 + over, *[1 - over / (ranks - 1)] * (ranks - 1)]
    mine = rng.choice(shares)
    each = round(mine * rows / 4 / TILE) * TILE
    sent = [round(one * rows / ranks) for one in shares]
    load = Load([each] * 4, sent=sent, fullest=(1 + over) / mine)
    return _Experts(lambda: load, 4 * ranks, over, mine)


def planted(seed: int, *, clean: bool = False, layers: int = 4) -> tuple[Report, Truth]:
    """The analysis of a run with the losses of this seed, or of its clean twin, and what they are."""
    rng, kind = random.Random(seed), KINDS[seed % len(KINDS)]
    model = ModelSpec(
        family="llama", hidden=2048, heads=16, ffn=2048, vocab=8192, layers=layers, micro_batch=4
    )
    experts = _experts(kind, rng, rows=2 * model.tokens, clean=clean)
    mixture = Mixture(experts.count, 2, experts.load, batched=kind == "padding")
    made, lost = build_mixture(model, mixture, Options(steps=_STEPS, jitter=0.01, ranges=True, seed=seed))
    trace = json.loads(made.text())
    slower = 1.0 if clean else rng.uniform(1.08, 1.4)
    slow = rng.sample(range(3, 3 + _STEPS), rng.randint(1, 3))
    beside = _beside(made.truth, rng, clean=clean)
    times: dict[int, float] = {}
    truth = Truth()
    for one in made.truth:
        if one.step is None:
            continue
        number, took = one.correlation, one.duration_ns / 1e6 / _STEPS
        clock = slower if one.step in slow else 1.0
        if number in lost.waits:  # the fullest rank computes at this clock, too
            waits = lost.waits[number]
            times[number] = 1 + waits * (clock - 1)
            truth.experts += took * (times[number] - (1 - waits) / (1 + experts.over))
        elif _COMPUTES.search(one.name):
            times[number] = beside.get(number, 1.0) * clock
            truth.overlap += took * (beside.get(number, 1.0) - 1)
            truth.clock += took * (times[number] - beside.get(number, 1.0))
            if number in lost.empty:  # what runs beside it is no loss of its rows
                empty = 1 - 1 / experts.mine if kind == "uneven" else lost.empty[number]
                truth.experts += took * clock * empty
    calls = {
        id(one): one["args"].get("correlation", -1) for one in gpu_events(trace) if one["cat"] == "kernel"
    }
    lengthen(
        trace, lambda one: times.get(calls.get(id(one), -1), 1.0), lambda one: calls.get(id(one)) in beside
    )
    return reported(trace), truth


def _beside(kernels: Sequence[Kernel], rng: random.Random, *, clean: bool) -> dict[int, float]:
    """GEMMs that run beside a collective -> times as long; of each shape some that do not."""
    alike: dict[object, list[int]] = {}
    for one in kernels:
        if one.m is not None and _GROUPED not in one.name:
            alike.setdefault((one.name, one.m, one.n, one.k), []).append(one.correlation)
    found: dict[int, float] = {}
    for calls in alike.values():
        longer, share = rng.uniform(1.2, 2.4), rng.uniform(0.2, 0.5)
        some = rng.sample(calls, min(len(calls) - _ENOUGH, round(share * len(calls))))
        found |= dict.fromkeys(some, 1.0 if clean else longer)
    return found


def found(report: Report) -> Truth:
    """The same parts as the report has them."""
    excess = [row.beside.excess_ms_per_step or 0.0 for row in report.gemms if row.beside is not None]
    experts = [one.saving_ms.high or 0.0 for one in report.findings if one.rule in ("TL123", "TL126")]
    return Truth(sum(excess), report.clock.lost_ms_per_step if report.clock else 0.0, sum(experts))
