"""One answer for a job of many ranks, as values."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tracelens.results.advice import Finding
from tracelens.results.described import same_length, says
from tracelens.results.identity import ModelDims
from tracelens.results.step import Coverage

JOB_VERSION = "1.0"

#: Why a rank arrives late. cpu: its GPU idles, for kernels are launched late; input: it waits for a batch;
#: slow_gpu: the same GEMMs take longer there; more_work: it has more to compute; experts: in its
#: experts; copies; communication: with ranks of another group; begins_late: its step begins later;
#: unclear: no part stands out
Cause = Literal[
    "cpu", "input", "slow_gpu", "more_work", "experts", "copies", "communication", "begins_late", "unclear"
]
#: What the job's step loses most by. straggler: some ranks arrive late; slow_link: one group sends
#: slower than the others; pipeline: stages of different length; bubbles: sends and receives between alike
#: ranks; communication: exposed, with nobody to blame; idle: on all ranks; compute: none takes 2 % of
#: the step; unknown: one rank alone
Limit = Literal[
    "straggler", "slow_link", "pipeline", "bubbles", "communication", "idle", "compute", "unknown"
]


class Parts(msgspec.Struct, frozen=True):
    """Parts of a rank's step, ms; they add up to its step."""

    computing_ms: float
    waiting_ms: Annotated[float, says("exposed communication before the last rank arrives")]
    sending_ms: Annotated[float, says("the rest of the exposed communication, of collectives")]
    messages_ms: Annotated[
        float, says("exposed sends and receives: in a pipeline its bubbles, and the transfers")
    ]
    copies_ms: Annotated[float, says("copies and fills alone")]
    input_ms: Annotated[float, says("no GPU event, and the CPU waits for a batch")]
    idle_ms: Annotated[float, says("no GPU event otherwise")]

    @property
    def step_ms(self) -> float:
        return self.computing_ms + self.exposed_ms + self.copies_ms + self.input_ms + self.idle_ms

    @property
    def exposed_ms(self) -> float:
        """Exposed communication."""
        return self.waiting_ms + self.sending_ms + self.messages_ms


class JobRank(msgspec.Struct, frozen=True):
    """One rank: means over the steps that all ranks have."""

    name: Annotated[str, says("its number, or the file where no rank is known")]
    rank: int | None
    file: str
    sha256: str
    gpu: str
    partial: bool
    parts: Parts
    steps_ms: Annotated[list[float], says("in the order of Job.steps")]
    waits_ms: Annotated[list[float], says("of these, exposed waiting for other ranks")]
    hidden_ms: Annotated[float, says("communication beside computing")]
    late_ms: Annotated[float, says("what the other ranks wait for it, per step: the median of them")]
    calls_late: Annotated[int, says("calls at which the others wait for it")]
    verdict: Annotated[str, says("of its own page")]
    path: Annotated[
        dict[str, float], says("share of its critical path by what bounds it (--waits); empty: not known")
    ]


class Arrival(msgspec.Struct, frozen=True):
    """A call's kernel on one rank, as its own trace has it."""

    name: Annotated[str, says("of the rank")]
    start_ns: Annotated[int, says("on the rank's own clock, as in its table of kernels")]
    us: Annotated[float, says("how long the kernel runs: waiting and sending")]


class SeenAt(msgspec.Struct, frozen=True):
    """The call that shows best that a rank is late: it ends on all ranks together."""

    collective: str
    bytes: int | None
    step: Annotated[int, says("N of ProfilerStep#N")]
    late: Arrival
    waiting: Annotated[Arrival, says("on the rank that waits longest there")]


class Straggler(msgspec.Struct, frozen=True):
    """A rank that the others wait for."""

    name: str
    late_ms: Annotated[float, says("per step, the median of the other ranks")]
    late_frac: Annotated[float, says("of the job's step")]
    cause: Cause
    more_ms: Annotated[
        dict[str, float], says("per step, what it does longer than the others before it arrives, by part")
    ]
    pace: Annotated[float | None, says("median ratio of its time to the others' for GEMMs of the same shape")]
    collective: Annotated[str, says("where most of it is lost")]
    calls: Annotated[int, says("calls at which it is late")]
    of_calls: Annotated[int, says("calls that it takes part in and whose last rank is known")]
    least_ms: Annotated[float | None, says("what the rank that waits least for it waits, per step")] = None
    most_ms: Annotated[float | None, says("what the rank that waits longest for it waits, per step")] = None
    seen_at: Annotated[SeenAt | None, says("a call to look at in two traces")] = None
    close_calls: Annotated[int, says("further calls of its own, too close to tell who comes last")] = 0


class JobCollective(msgspec.Struct, frozen=True):
    """Calls of one collective, group and size over all ranks."""

    collective: str
    group: str
    ranks: int
    groups: Annotated[int, says("groups of that name and size", least=1)]
    bytes: int | None
    calls_per_step: Annotated[float, says("of all its groups")]
    skew_us: Annotated[
        tuple[float, float, float] | None,
        says("median, 95th percentile (one of the calls), largest; None within the clocks' residual"),
    ]
    last: Annotated[str | None, says("the rank that comes last most often")]
    last_frac: Annotated[float | None, says("of the calls whose last rank is known")]
    waiting_ms: Annotated[float, says("exposed, per step, mean over ranks")]
    send_us: Annotated[float | None, says("median from the last arrival to the end")]
    bus_gbps: Annotated[float | None, says("of that, by nccl-tests' factors")]
    one_node_us: Annotated[
        float | None, says("what that takes among so many GPUs of one node; None: not measured")
    ]


class SlowLink(msgspec.Struct, frozen=True):
    """A group whose calls take longer to send than the same calls of the other groups."""

    collective: str
    group: str
    ranks: tuple[int, ...]
    send_us: float
    others_us: float
    more_ms: Annotated[float, says("per step")]


class JobBlock(msgspec.Struct, frozen=True):
    """Ranks of one node, or of one process group among several of the same name."""

    kind: Literal["node", "group"]
    name: str
    ranks: list[str]
    own_ms: Annotated[float, says("median over its ranks of the mean step without waiting for others")]
    usual_ms: Annotated[float, says("median over the blocks of its kind and name")]
    slowest: str


class JobGemm(msgspec.Struct, frozen=True):
    """A GEMM of the same place and shape on several ranks."""

    component: str
    role: str
    phase: str
    m: int | None
    n: int | None
    k: int | None
    batch: int | None
    dtype: str | None
    ranks: int
    ms: Annotated[float, says("per step, the median of those ranks")]
    slowest: str
    slowest_ms: float
    peak_frac: Annotated[float | None, says("median")]


class JobFinding(msgspec.Struct, frozen=True):
    """A finding with the ranks that have it; its values are those of the rank where it saves most."""

    finding: Finding
    ranks: int
    saves_step: Annotated[
        bool | None, says("None: not known. False: those ranks wait, so the step gains nothing")
    ]


class Left(msgspec.Struct, frozen=True):
    """A file that is not in the answer."""

    file: str
    why: str


class JobClock(msgspec.Struct, frozen=True):
    """How well the ranks' clocks are known."""

    residual_us: Annotated[
        float | None, says("no skew below 4 times it is claimed; None: nothing ties the clocks")
    ]
    shared: Annotated[
        list[list[str]], says("ranks that calls tie to one clock; between two lists no skew is known")
    ]
    untied: Annotated[list[str], says("ranks that no matching call ties to any other")]
    drifting: bool


class Job(msgspec.Struct, frozen=True):
    """The answer."""

    job_version: str
    tool_version: str
    world_size: int | None
    ranks: list[JobRank]
    missing: Annotated[list[int], says("ranks of the world without a trace here")]
    left: list[Left]
    steps: Annotated[list[int], says("N of ProfilerStep#N of the steps that all ranks have")]
    steps_marked: bool
    step_ms: Annotated[float, says("median over the steps of the slowest rank's time")]
    limit: Limit
    stragglers: Annotated[list[Straggler], says("latest first")]
    slow_links: list[SlowLink]
    stages: Annotated[list[str], says("ranks of the pipeline stage that computes longest")]
    clock: JobClock
    matched_calls: int
    unmatched_calls: int
    collectives: list[JobCollective]
    degrees: Annotated[
        dict[str, int],
        says("ranks by what they are to each other: data, tensor, pipeline, expert, context parallel, FSDP"),
    ]
    model: Annotated[ModelDims | None, says("of the whole model; None where ranks disagree")]
    blocks: Annotated[list[JobBlock], says("longest first, nodes before groups")]
    components: Annotated[dict[str, tuple[float, float, float]], says("ms per step: median, least, most")]
    gemms: list[JobGemm]
    findings: list[JobFinding]
    coverage: Annotated[Coverage | None, says("of the rank with least attributed")]
    groups: Annotated[
        dict[str, tuple[float, float, float]],
        says("``components``, those that are told together as one: mlp, attn-proj, attn-core..."),
    ] = {}
    calls_of_no_group: Annotated[
        int, says("of ``unmatched_calls``, those that the recording names no group of")
    ] = 0
    generated: Annotated[bool, says("a trace of it is generated, not measured")] = False
    waits_told: Annotated[
        bool, says("False: no call matches, or the clocks hide waits of 2 % of the step; none is known")
    ] = True
    communication_is_bound: Annotated[
        bool, says("times of communication are lower bounds, computing an upper one")
    ] = False

    def __post_init__(self) -> None:
        if not self.ranks or not self.steps:
            raise ValueError("a job has a rank and a step at least")
        for rank in self.ranks:
            same_length(steps=self.steps, steps_ms=rank.steps_ms, waits_ms=rank.waits_ms)


def to_json(job: Job) -> bytes:
    """The answer as JSON; the same ranks give the same bytes."""
    return msgspec.json.format(msgspec.json.encode(job), indent=2) + b"\n"
