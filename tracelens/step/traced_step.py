"""What a what-if starts from: one analysed step, with the formula of every product in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracelens.config.model_config import ModelConfig
from tracelens.hardware import Gpu
from tracelens.hardware.measurements import Measurements
from tracelens.results import CommunicationRow, ComponentRow, GemmRow, ModelDims, SavingOf
from tracelens.results.waits import saving_of
from tracelens.step.predicted import Anchors
from tracelens.step.present import present_config
from tracelens.step.stalls import to_judge
from tracelens.step.traffic import repeats
from tracelens.step.work import Work, work_of
from tracelens.sums import summed


@dataclass(frozen=True, slots=True)
class StepModel:
    """What a what-if starts from: one analysed step."""

    now: ModelConfig
    work: Work
    components: tuple[tuple[str, str, float, float], ...]  # component, phase, ms per step, of it products
    step_ms: float | None
    busy_frac: float | None  # of the step without the profiler where that is known
    gpu: Gpu
    measured: Measurements | None
    anchors: Anchors
    communication: tuple[CommunicationRow, ...] = ()
    unprofiled_ms: float | None = None

    @property
    def idle_ms(self) -> float | None:
        """Time of the step without a GPU event; what the profiler adds is not in it."""
        whole_ms = self.unprofiled_ms or self.step_ms
        return None if self.busy_frac is None or whole_ms is None else (1 - self.busy_frac) * whole_ms

    @property
    def communicates(self) -> bool:
        """Does the step hold communication?"""
        return any(name == "communication" and time > 0 for name, _, time, _ in self.components)

    @property
    def saving_of(self) -> SavingOf:
        """What shorter kernels save: time of the step, or work of a GPU that waits."""
        return saving_of(self.busy_frac)

    def work_ms(self, then: ModelConfig) -> float:
        """GPU time of a step's micro-batches on one rank, as often as they run under ``then``."""
        return sum(
            time * repeats(name, self.now, then)
            for name, _, time, _ in self.components
            if name not in ("communication", "optimizer", "grad_clip")
        )


def step_model(
    rows: Sequence[GemmRow],
    dims: ModelDims,
    components: Sequence[ComponentRow],
    *,
    gpu: Gpu,
    step_ms: float | None,
    measured: Measurements | None = None,
    communication: Sequence[CommunicationRow] = (),
    declared: Mapping[str, int] | None = None,
) -> StepModel:
    """Read the step's formulas off its rows.

    ``declared`` are sizes that the model's own configuration states; what the trace shows goes first.
    """
    rows = [to_judge(row) for row in rows]
    now = present_config(rows, dims, communication, declared or {})
    products = summed(((row.component, row.phase), row.time_ms_per_step) for row in rows)
    parts = tuple(
        (one.component, one.phase, one.time_ms_per_step, products.get((one.component, one.phase), 0.0))
        for one in components
    )
    work = work_of(rows, now)
    anchors = Anchors.of(work, now, gpu=gpu, measured=measured)
    step = step_ms if step_ms is not None and step_ms > 0 else None
    return StepModel(now, work, parts, step, None, gpu, measured, anchors, tuple(communication))
