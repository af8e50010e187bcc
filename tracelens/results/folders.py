"""What a comparison of two folders says: the ranks of two jobs, or several runs, side by side.

Differences are after minus before. Figures over all pairs of files are medians, and say so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tracelens.results.comparison import (
    Cause,
    ComponentChange,
    Move,
    Noise,
    OutcomeState,
    SetupChange,
    StepChange,
    StepPart,
    StepState,
    TwoSides,
)
from tracelens.results.described import says
from tracelens.results.gemm import GemmKind
from tracelens.results.job import Cause as LateCause

SCHEMA_VERSION = "1.1"

#: What the files of a folder are to each other. ``files``: of different models, so only their pairs compare.
FolderKind = Literal["ranks", "runs", "files"]
#: What files of the two folders are paired by.
MatchedBy = Literal["rank", "name"]
#: The state of a pair where no time is compared.
NOT_COMPARED: Literal["not_compared"] = "not_compared"

Side = Literal["before", "after"]
SIDES: tuple[Side, Side] = ("before", "after")
#: Why it is not known which rank is late. saved_reports: they do not hold the calls of collectives.
LatenessUnknown = Literal["saved_reports", "no_common_step", "no_matching_calls", "clocks_apart"]
#: A part of the step by which a rank can stand out.
RankPart = Literal["idle", "computing", "exposed_communication"]


@dataclass(frozen=True, slots=True)
class FolderSide:
    """One of the two folders."""

    path: Annotated[str, says("its name")]
    files: Annotated[int, says("compared")]
    gpu_title: str
    dtype: str | None
    world_size: int | None
    generated: Annotated[bool, says("some file of it is")]
    partial: bool
    steps_ms: Annotated[list[float], says("what ``step`` is of: the job's steps, or the runs' medians")] = (
        field(default_factory=list)
    )
    gpu_busy_frac: Annotated[float | None, says("median over the files, as are the next two")] = None
    gemm_frac: float | None = None
    mfu_frac: Annotated[float | None, says("None where one file at least does not show it")] = None
    mfu_why: str | None = None
    gemm_frac_is_bound: Annotated[bool, says("a lower bound in one file at least")] = False
    communication_is_bound: bool = False
    mfu_is_bound: bool = False
    steps_marked: Annotated[bool, says("in every file; False: whole traces taken as one step")] = True


@dataclass(frozen=True, slots=True)
class PairTime:
    """One side of a pair: its step, and the part of it in which the GPU computes."""

    file: str
    step_ms: Annotated[float, says("median")]
    steps: int
    computing_ms: Annotated[float, says("mean per step: some kernel besides communication runs")]
    gpu_busy_frac: float | None = None
    gemm_frac: Annotated[float | None, says("of the GPU time, in GEMMs and attention")] = None
    mfu_frac: Annotated[float | None, says("None = not known")] = None
    gemm_frac_is_bound: Annotated[bool, says("a lower bound, as in the report")] = False
    mfu_is_bound: bool = False
    idle_ms: Annotated[float, says("mean per step: no GPU event runs")] = 0.0
    exposed_ms: Annotated[float, says("mean per step: communication beside no compute kernel")] = 0.0


@dataclass(frozen=True, slots=True)
class StandsOut:
    """A rank that takes more of a part of the step than the others, by a gap of 2 % of the step at least."""

    pair: Annotated[str, says("its name")]
    side: Side
    part: RankPart
    ms: Annotated[float, says("mean per step")]
    others_low_ms: Annotated[float, says("of the ranks that do not stand out")]
    others_high_ms: float


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank that the others wait for longer than for any other, before or after."""

    pair: Annotated[str, says("its name")]
    before_ms: Annotated[float, says("what the other ranks wait for it, per step: the median of them")]
    after_ms: float
    before_cause: Annotated[LateCause | None, says("None: it is not late there")]
    after_cause: LateCause | None


@dataclass(frozen=True, slots=True)
class Lateness:
    """How long ranks wait for each other, and for whom: as the answers for both jobs say."""

    before_ms: Annotated[float, says("exposed waiting for other ranks, per step: the median rank's")]
    after_ms: float
    before_clocks_us: Annotated[float, says("no skew below 4 times it is counted")]
    after_clocks_us: float
    ranks: Annotated[list[LateRank], says("largest difference first; empty: no rank is late in either")]
    missing: Annotated[
        list[int], says("ranks without a trace on one side; what is waited for them counts as sending")
    ] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FilePair:
    """Two files that belong together."""

    name: Annotated[str, says('"rank 3", or the files\' common name')]
    rank: int | None
    before: PairTime
    after: PairTime
    state: Annotated[StepState | Literal["not_compared"], says("by the test over its own steps")]
    diff_frac: float | None
    p: float | None
    verdict: str
    causes: Annotated[list[Cause], says("of the difference of its medians")] = field(default_factory=list)
    step: Annotated[StepChange | None, says("None where times are not compared")] = None


@dataclass(frozen=True, slots=True)
class SharedChange:
    """A change, and in how many pairs it was seen."""

    change: SetupChange
    pairs: int


@dataclass(frozen=True, slots=True)
class SharedOutcome:
    """What became of a finding of the reports before, and in how many pairs."""

    rule: str
    title: str
    state: OutcomeState
    pairs: int


@dataclass(frozen=True, slots=True)
class SharedPeak:
    """What the GEMMs of a component, role and phase reach of the datasheet peak: medians over the pairs."""

    kind: GemmKind
    component: str
    role: str | None
    phase: str
    before_frac: Annotated[float | None, says("None = not known")]
    after_frac: float | None
    pairs: int


@dataclass(frozen=True, slots=True)
class Unpaired:
    """A file that has no partner, or cannot be used."""

    side: Side
    file: str
    why: str


@dataclass(frozen=True, slots=True, repr=False)
class FolderComparison(TwoSides):
    """Two folders side by side."""

    schema_version: str
    tool_version: str
    kind: FolderKind
    matched_by: MatchedBy
    before: FolderSide
    after: FolderSide
    verdict: str
    detail: str
    step: Annotated[
        StepChange | None, says("of the job, or over the runs; None where only the pairs can be judged")
    ]
    why: Annotated[str, says("what ``step`` is of, or why there is none")]
    pairs: list[FilePair]
    stands_out: Annotated[list[StandsOut], says("ranks that do; nothing with fewer than three")]
    parts: Annotated[list[StepPart], says("medians over the pairs")]
    noise: Annotated[Noise | None, says("medians over the pairs")]
    changes: list[SharedChange]
    components: Annotated[
        list[ComponentChange], says("medians over the pairs, judged where more than half of them agree")
    ]
    findings: list[SharedOutcome]
    left: list[Unpaired]
    caveats: list[str]
    not_compared: Annotated[list[str], says("why times are not compared; empty where they are")] = field(
        default_factory=list
    )
    peaks: Annotated[list[SharedPeak], says("where times are not compared")] = field(default_factory=list)
    reasons: Annotated[list[str], says("why to believe the verdict; ``detail`` is all of them")] = field(
        default_factory=list
    )
    moves: Annotated[list[Move], says("to be read in place of their rows of ``components``")] = field(
        default_factory=list
    )
    causes: Annotated[list[Cause], says("largest first; they add up to ``step.diff_ms``")] = field(
        default_factory=list
    )
    causes_of: Annotated[str | None, says("the rank whose causes they are; None: means over the pairs")] = (
        None
    )
    lateness: Annotated[
        Lateness | None, says("of the ranks of two jobs; None: not known, or no such jobs")
    ] = None
    lateness_unknown: Annotated[LatenessUnknown | None, says("None: known, or no ranks of two jobs")] = None
