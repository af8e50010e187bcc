"""What a comparison of two folders says: the ranks of two jobs, or several runs, side by side.

Differences are after minus before. Figures over all pairs of files are medians, and say so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from tracelens.results.comparison import (
    Cause,
    Change,
    ComponentChange,
    Move,
    Noise,
    StepChange,
    StepPart,
    StepState,
)

SCHEMA_VERSION = "1.0"

#: What the files of a folder are to each other. ``files``: of different models, so only their pairs compare.
KINDS = ("ranks", "runs", "files")
#: The state of a pair where no time is compared.
NOT_COMPARED: Literal["not_compared"] = "not_compared"

Side = Literal["before", "after"]
#: A part of the step by which a rank can stand out.
RankPart = Literal["idle", "computing", "exposed_communication"]


@dataclass(frozen=True, slots=True)
class FolderSide:
    """One of the two folders."""

    path: str  # its name
    files: int  # compared
    gpu_title: str
    dtype: str | None
    world_size: int | None
    generated: bool  # some file of it is
    partial: bool
    steps_ms: list[float] = field(
        default_factory=list
    )  # what ``step`` is of: the job's steps, or the runs' medians
    gpu_busy_frac: float | None = None  # median over the files, as are the next two
    gemm_frac: float | None = None
    mfu_frac: float | None = None  # None where one file at least does not show it
    mfu_why: str | None = None
    gemm_frac_is_bound: bool = False  # a lower bound in one file at least
    communication_is_bound: bool = False
    mfu_is_bound: bool = False


@dataclass(frozen=True, slots=True)
class PairTime:
    """One side of a pair: its step, and the part of it in which the GPU computes."""

    file: str
    step_ms: float  # median
    steps: int
    computing_ms: float  # mean per step: some kernel besides communication runs
    gpu_busy_frac: float | None = None
    gemm_frac: float | None = None  # of the GPU time, in GEMMs and attention
    mfu_frac: float | None = None  # None = not known
    gemm_frac_is_bound: bool = False  # a lower bound, as in the report
    mfu_is_bound: bool = False
    idle_ms: float = 0.0  # mean per step: no GPU event runs
    exposed_ms: float = 0.0  # mean per step: only communication runs


@dataclass(frozen=True, slots=True)
class StandsOut:
    """A rank that takes more of a part of the step than the others, by a gap of 2 % of the step at least."""

    pair: str  # its name
    side: Side
    part: RankPart
    ms: float  # mean per step
    others_low_ms: float  # of the ranks that do not stand out
    others_high_ms: float


@dataclass(frozen=True, slots=True)
class Pair:
    """Two files that belong together."""

    name: str  # "rank 3", or the files' common name
    rank: int | None
    before: PairTime
    after: PairTime
    state: StepState | Literal["not_compared"]  # by the test over its own steps
    diff_frac: float | None
    p: float | None
    verdict: str
    causes: list[Cause] = field(default_factory=list)  # of the difference of its medians


@dataclass(frozen=True, slots=True)
class SharedChange:
    """A change, and in how many pairs it was seen."""

    change: Change
    pairs: int


@dataclass(frozen=True, slots=True)
class SharedOutcome:
    """What became of a finding of the reports before, and in how many pairs."""

    rule: str
    title: str
    state: str  # as in Outcome
    pairs: int


@dataclass(frozen=True, slots=True)
class SharedPeak:
    """What the GEMMs of a component, role and phase reach of the datasheet peak: medians over the pairs."""

    kind: str  # gemm | attention
    component: str
    role: str | None
    phase: str
    before_frac: float | None  # None = not known
    after_frac: float | None
    pairs: int


@dataclass(frozen=True, slots=True)
class Left:
    """A file that has no partner, or cannot be used."""

    side: str  # before | after
    file: str
    why: str


@dataclass(frozen=True, slots=True)
class FolderComparison:
    """Two folders side by side."""

    schema_version: str
    tool_version: str
    kind: str  # KINDS
    matched_by: str  # rank | name
    before: FolderSide
    after: FolderSide
    verdict: str
    detail: str
    step: StepChange | None  # of the job, or over the runs; None where only the pairs can be judged
    why: str  # what ``step`` is of, or why there is none
    pairs: list[Pair]
    stands_out: list[StandsOut]  # ranks that do; nothing with fewer than three
    parts: list[StepPart]  # medians over the pairs
    noise: Noise | None  # medians over the pairs
    changes: list[SharedChange]
    components: list[ComponentChange]  # medians over the pairs, judged where more than half of them agree
    findings: list[SharedOutcome]
    left: list[Left]
    caveats: list[str]
    not_compared: list[str] = field(default_factory=list)  # why times are not compared; empty where they are
    peaks: list[SharedPeak] = field(default_factory=list)  # where times are not compared
    reasons: list[str] = field(default_factory=list)  # why to believe the verdict; ``detail`` is all of them
    moves: list[Move] = field(default_factory=list)  # to be read in place of their rows of ``components``
    causes: list[Cause] = field(default_factory=list)  # largest first; they add up to ``step.diff_ms``
    causes_of: str | None = None  # the rank whose causes they are; None: means over the pairs

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Where a notebook shows text: the verdict, for the rest is long."""
        printer.text(f"<FolderComparison: {self.verdict}>")
