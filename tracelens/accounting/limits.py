"""What limits a step: idle time, communication, memory or shapes, by one rule.

What is compared, all in ms of the median step (idle and exposed are shares of all steps, times it):

- idle: no GPU event runs. Where the run timed steps without the profiler, idle = their time - the time the
  GPU works in a profiled one; without such steps it is the profiled step's, and the sentence says so.
- exposed: communication runs and no compute kernel beside it.
- memory: kernels that only move bytes (norms, activations, the loss, the optimizer...) and products whose
  time is memory's or the kernel's fixed cost. It counts where it is more than half of the GPU's time.
- shapes: what all findings together save, the middle of the prediction, or their bound.

The largest of idle, exposed and memory comes first where it is more than shapes; exposed of at least 15% of
the step also before shapes that are only bounded; of idle and exposed only
what is at least 15% of the step is compared with memory, and what is at least 5% comes before shapes; exposed
from 2% on, where no shape is worth 1%. Else shapes come first: nothing else is worth more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tracelens import results
from tracelens.accounting.slow_calls import slow_calls_of
from tracelens.results.step import LimitedBy
from tracelens.results.waits import idle_ms, mean_ms
from tracelens.sums import summed

#: Shares of the step from which a wait is named before kernels, and from which it is named at all.
LARGE, WORTH = 0.15, 0.05
#: Exposed communication is named from this share on, and comes first where shapes are worth less than LITTLE.
EXPOSED, LITTLE = 0.02, 0.01
UNKNOWN = 0.50
#: The CPU takes 40 to 130 us for an eager operator under the profiler (real traces of CPU-bound steps).
_LAUNCH_US = 150
#: Of GPU time: a step that launches so much as CUDA graphs has them already.
_GRAPHS = 0.1
#: Of exposed communication: from here on it is said that small messages wait for a rank.
_NAMES_WAITING = 0.25
#: A smaller message is sent in 0.1 ms at most, even at 1 GB/s: what it takes longer is waiting.
_SENDING_FROM = 2**16
#: Codes of what a recording lacks and rules need most.
_HIDE = ("gpu-only", "no-shapes", "cuda-graph")
#: Components whose kernels besides products only move bytes.
_BYTES = frozenset({
    "embedding", "norm", "attention.rope", "attention.softmax", "mlp.activation", "residual", "dropout",
    "moe.dispatch", "ssm.conv", "loss", "optimizer", "grad_clip", "memory",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """What limits a step, in ms of it."""

    step_ms: float
    idle_ms: float
    exposed_ms: float
    bytes_ms: float  # kernels that only move bytes
    slow_ms: float  # products bound by memory or by a kernel's fixed cost
    gpu_ms: float  # the sum of all kernels
    shapes_ms: float  # 0 without a finding
    bounded: bool = False  # shapes are a bound and no prediction

    @property
    def memory_ms(self) -> float:
        return self.bytes_ms + self.slow_ms

    @property
    def wait(self) -> Literal["idle", "exposed"]:
        """The larger of the two."""
        return "idle" if self.idle_ms >= self.exposed_ms else "exposed"

    @property
    def first(self) -> LimitedBy:
        """By the rule above."""
        waits = max(self.idle_ms, self.exposed_ms)
        memory = self.memory_ms > max(self.shapes_ms, self.gpu_ms / 2)
        measured = self.bounded and self.exposed_ms >= LARGE * self.step_ms  # beside what may be nothing
        if (
            (waits > self.shapes_ms or measured)
            and waits >= LARGE * self.step_ms
            and not (memory and self.memory_ms > waits)
        ):
            return self.wait
        if memory:
            return "memory"
        if waits > self.shapes_ms and waits >= WORTH * self.step_ms:
            return self.wait
        if self.shapes_ms < LITTLE * self.step_ms and self.exposed_ms > EXPOSED * self.step_ms:
            return "exposed"
        return "shapes"

    @property
    def told(self) -> tuple[LimitedBy, ...]:
        """What the first sentence tells: ``first``, and the other wait where both are large."""
        both = (
            self.first in ("idle", "exposed") and min(self.idle_ms, self.exposed_ms) >= LARGE * self.step_ms
        )
        return ("idle", "exposed") if both else (self.first,)


@dataclass(frozen=True, slots=True)
class StepPicture:
    """Everything the verdict is made of."""

    summary: results.Summary
    model: results.ModelDims
    coverage: results.Coverage
    gpu: results.GpuInfo
    components: Sequence[results.ComponentRow] = ()
    gemms: Sequence[results.GemmRow] = ()
    communication: Sequence[results.CommunicationRow] = ()
    findings: Sequence[results.Finding] = ()  # of kernels and shapes
    waits: Sequence[results.Finding] = ()  # time in which the GPU waits
    checks: Sequence[results.Check] = ()
    at_stake: results.Estimate | None = None  # of all findings together
    open_ms: float = 0.0  # beside a prediction: what the findings without one save at most
    graph_frac: float = 0.0  # of GPU time, in kernels that CUDA graphs launch
    cut: bool = False  # steps are marked, and none of them is whole
    served: bool = False  # by an engine whose batches are not marked
    to_judge: str = ""  # what would show the shapes that the recording hides

    @property
    def trains(self) -> bool:
        """Is there work of a backward or an optimizer? ``tracelens capture`` knows steps by that."""
        phases = {row.phase for row in self.components}
        return not phases or not phases.isdisjoint({"backward", "recompute", "optimizer"})

    @property
    def padding(self) -> Sequence[results.Finding]:
        """Tokens of padding in linear layers."""
        return [one for one in self.findings if one.slug == "padded-tokens"]

    @property
    def mean_ms(self) -> float:
        """Mean length of a step, which idle time and exposed communication are of."""
        return mean_ms(self.summary)

    @property
    def exposed_frac(self) -> float:
        """Exposed communication as a share of the steps: of their mean, as it is a mean."""
        return self.summary.exposed_communication_ms / self.mean_ms if self.mean_ms else 0.0

    @property
    def waiting_ms(self) -> float:
        """Exposed communication per step that is waiting for other ranks."""
        return self.small_ms + self.slow_ms

    @property
    def small_ms(self) -> float:
        """Exposed communication per step in messages too small to take long."""
        return sum(row.exposed_ms_per_step for row in self.communication if _is_small(row))

    @property
    def slow_ms(self) -> float:
        """Exposed communication per step beyond what large messages take at the pace of the fastest call."""
        slow = [(row, slow_calls_of(row, self.gpu.name)) for row in self.communication if not _is_small(row)]
        return sum(
            max(0.0, row.exposed_ms_per_step - (row.time_ms_per_step - one.waiting_ms))
            for row, one in slow
            if one is not None and one.waiting_ms is not None
        )

    @property
    def waits_for_rank(self) -> bool:
        """Is so much of the exposed communication waiting that the late rank is the thing to find?"""
        exposed_ms = self.summary.exposed_communication_ms
        return exposed_ms > 0 and self.waiting_ms >= _NAMES_WAITING * exposed_ms

    @property
    def gap_us(self) -> float:
        """Idle time for each kernel of a step, communication aside: what its launch took the CPU at most."""
        kernels = sum(row.kernels_per_step for row in self.components if row.component != "communication")
        return 1e3 * self.summary.idle_ms / kernels if kernels else 0.0

    @property
    def launches_wait(self) -> bool:
        """Is the idle time more than launches take, so that fewer of them are not the first thing to try?"""
        return self.gap_us > _LAUNCH_US or self.has_graphs

    @property
    def has_graphs(self) -> bool:
        """Does the step launch CUDA graphs already?"""
        return self.graph_frac >= _GRAPHS

    @property
    def hideable_ms(self) -> float:
        """Exposed communication per step that overlap hides at most: no more than there is compute."""
        exposed_ms = self.summary.exposed_communication_ms
        return min(exposed_ms, max(0.0, self.mean_ms * self.summary.gpu_busy_frac - exposed_ms))

    @property
    def marked(self) -> bool:
        """Is there a whole step, and not only a trace, or a part of a step, taken for one?"""
        return self.summary.steps_marked


def _is_small(row: results.CommunicationRow) -> bool:
    return row.bytes_per_call is not None and row.bytes_per_call < _SENDING_FROM


def updates_only(components: Sequence[results.ComponentRow]) -> bool:
    """Is an optimizer all the work there is, beside copies and communication?"""
    found = {row.component for row in components}
    return "optimizer" in found and found <= {"optimizer", "grad_clip", "memory", "communication"}


def picture_of(report: results.Report) -> StepPicture:
    """What the verdict of this report is made of."""
    return StepPicture(
        summary=report.summary,
        model=report.model,
        coverage=report.coverage,
        gpu=report.gpu,
        cut=any(step.lacks is not None for step in report.steps),
        served=any(one.code == "no-batches" for one in report.recording),
        to_judge=next((lack.remedy for lack in report.recording if lack.code in _HIDE), ""),
        components=report.components,
        gemms=report.gemms,
        communication=report.communication,
        findings=[one for one in report.findings if one.saving_of != "wait"],
        waits=[one for one in report.findings if one.saving_of == "wait"],
        checks=report.checks,
        at_stake=report.summary.shape_waste_ms,
        open_ms=report.summary.shape_open_ms,
        graph_frac=sum(
            one.share for one in report.recording if one.code == "cuda-graph" and one.share is not None
        ),
    )


def limits(seen: StepPicture) -> Limits:
    """The figures that are compared."""
    summary, stake = seen.summary, seen.at_stake
    step_ms = summary.step_ms.median
    known = seen.model.found != "none" and seen.coverage.component_frac >= 1 - UNKNOWN
    return Limits(
        step_ms=step_ms,
        idle_ms=idle_ms(summary) if seen.marked else 0.0,
        exposed_ms=seen.exposed_frac * step_ms,
        bytes_ms=sum(time for _, time in byte_times(seen)) if known else 0.0,
        slow_ms=sum(row.time_ms_per_step for row in seen.gemms if known and _slow(row, seen.gpu)),
        gpu_ms=summary.gpu_ms_per_step,
        shapes_ms=(stake.size if stake is not None else None) or 0.0,
        bounded=stake is not None and stake.mid is None,
    )


def _slow(row: results.GemmRow, gpu: results.GpuInfo) -> bool:
    """Is a product thin, or moving its operands most of its time? Else something else holds it up."""
    moved_ms = (row.bytes or 0.0) * row.calls_per_step / ((gpu.bandwidth_gbps or float("inf")) * 1e6)
    return row.bound == "latency" or (row.bound == "memory" and moved_ms >= row.time_ms_per_step / 2)


def byte_times(seen: StepPicture) -> list[tuple[str, float]]:
    """Component and ms per step of its kernels besides products."""
    products = summed((row.component, row.time_ms_per_step) for row in seen.gemms)
    rows = [row for row in seen.components if row.component in _BYTES]
    times = summed((row.component, row.time_ms_per_step) for row in rows)
    return [(name, max(0.0, time - products.get(name, 0.0))) for name, time in times.items()]
