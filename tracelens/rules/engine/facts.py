"""What a rule gets to see and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tracelens import results, words
from tracelens.results.advice import CheckState
from tracelens.results.waits import saving_of
from tracelens.step.traced_step import StepModel


@dataclass(frozen=True, slots=True)
class StepFacts:
    """One analysed step: everything a rule is allowed to judge from."""

    gemms: list[results.GemmRow]
    model: results.ModelDims
    gpu: results.GpuInfo
    step_ms: float | None  # median step; None when no step was found
    gpu_busy_frac: float | None = None  # share of the step with a GPU event running, 0..1
    step: StepModel | None = None  # to simulate changes with; None where nothing can be
    components: Sequence[results.ComponentRow] = ()  # all GPU time of the file
    communication: Sequence[results.CommunicationRow] = ()  # collectives, by group and purpose
    others: Sequence[results.OtherRow] | None = None  # kernels of no product; None = not summarised
    declared: Mapping[str, int] = field(default_factory=dict)  # sizes of the whole model by its configuration
    coverage: results.Coverage | None = None  # how much of the step was told apart; None = all of it
    clock: results.Clock | None = None  # the pace of the steps; None = no two of them compare
    host_waits: Sequence[results.HostWait] = ()  # what the GPU waits for
    mean_ms: float | None = None  # mean step, of which waits are a share: one long step can hold most of them
    padded: Sequence[results.PaddedBatch] = ()  # batches that operators pad
    marked: bool = True  # False: the whole trace is taken as one step

    @property
    def per_step(self) -> str:
        """What times and counts are of, behind them: "per step" or "in the trace"."""
        return words.per_step(self.marked)

    @property
    def whole(self) -> str:
        """What shares are of: the step, or the trace where none is marked."""
        return "step" if self.marked else "trace"

    @property
    def measured_step_ms(self) -> float | None:
        """The step time where it can be divided by, else None."""
        return self.step_ms if self.step_ms is not None and self.step_ms > 0 else None

    @property
    def saving_of(self) -> results.SavingOf:
        """What shorter kernels save: time of the step, or work of a GPU that waits."""
        return saving_of(self.gpu_busy_frac)

    @property
    def trains(self) -> bool:
        """True when the step holds backward work or an optimizer's."""
        if any(row.phase in ("backward", "optimizer") for row in self.components):
            return True
        return any(row.phase == "backward" or row.role in ("dgrad", "wgrad") for row in self.gemms)

    @property
    def only_runs(self) -> bool:
        """True where the step is seen, and no part of it trains: who runs it cannot have another model."""
        return bool(self.components) and not self.trains

    @property
    def new_model(self) -> str:
        """That a change makes another model, and who can have that; a sentence without its full stop."""
        if self.trains:
            return "The model changes: this is for a new training run"
        return "The model changes: the weights that run here do not fit it; it has to be trained that way"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A rule's answer. ``bounds_ms`` is the time at stake per step of each GEMM row its findings name, and
    under a name of its own what is at stake outside of rows.

    ``changes`` holds the simulated change of each finding, None where it has only a bound.
    """

    state: CheckState
    why: str
    findings: tuple[results.Finding, ...] = ()
    bounds_ms: Mapping[str, float] = field(default_factory=dict)
    changes: tuple[Mapping[str, int] | None, ...] = ()
    absent: bool = False  # not applicable because something was not seen: open where not all was told apart
    attention: bool = False  # absent, and not there where no attention is: only what can be attention counts


@dataclass(frozen=True, slots=True)
class Advice:
    """Findings by saving, one check per rule, and what all findings together save or bound."""

    findings: list[results.Finding]
    checks: list[results.Check]
    at_stake_ms: results.Estimate | None  # per step; None without a finding
    open_ms: float = 0.0  # beside a prediction: what findings that have none save at most
