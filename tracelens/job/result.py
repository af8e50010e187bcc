"""One answer for a job of many ranks, as values."""

from __future__ import annotations

from typing import Literal

import msgspec

from tracelens.results import Finding, ModelDims
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
    waiting_ms: float  # exposed communication before the last rank arrives
    sending_ms: float  # the rest of the exposed communication, of collectives
    messages_ms: float  # exposed sends and receives: in a pipeline its bubbles, and the transfers
    copies_ms: float  # copies and fills alone
    input_ms: float  # no GPU event, and the CPU waits for a batch
    idle_ms: float  # no GPU event otherwise

    @property
    def step_ms(self) -> float:
        return self.computing_ms + self.exposed_ms + self.copies_ms + self.input_ms + self.idle_ms

    @property
    def exposed_ms(self) -> float:
        """Exposed communication."""
        return self.waiting_ms + self.sending_ms + self.messages_ms


class JobRank(msgspec.Struct, frozen=True):
    """One rank: means over the steps that all ranks have."""

    name: str  # "rank 3", or the file's name where no rank is known
    rank: int | None
    file: str
    sha256: str
    gpu: str
    partial: bool
    parts: Parts
    steps_ms: list[float]  # in the order of Job.steps
    waits_ms: list[float]  # of these, exposed waiting for other ranks
    hidden_ms: float  # communication beside computing
    late_ms: float  # what the other ranks wait for it, per step: the median of them
    calls_late: int  # calls at which the others wait for it
    verdict: str  # of its own page
    path: dict[str, float]  # share of its critical path by what bounds it (``--waits``); empty: not known


class Straggler(msgspec.Struct, frozen=True):
    """A rank that the others wait for."""

    name: str
    late_ms: float  # per step, the median of the other ranks
    late_frac: float  # of the job's step
    cause: Cause
    more_ms: dict[str, float]  # per step, what it does longer than the others before it arrives, by part
    pace: float | None  # median ratio of its time to the others' for GEMMs of the same shape
    collective: str  # where most of it is lost
    calls: int  # calls at which it is late
    of_calls: int  # of those whose last rank is known


class JobCollective(msgspec.Struct, frozen=True):
    """Calls of one collective, group and size over all ranks."""

    collective: str
    group: str
    ranks: int
    groups: int  # groups of that name and size
    bytes: int | None
    calls_per_step: float
    skew_us: (
        tuple[float, float, float] | None
    )  # median, 95th percentile, largest; None within the clocks' residual
    last: str | None  # the rank that comes last most often
    last_frac: float | None  # of the calls whose last rank is known
    waiting_ms: float  # exposed, per step, mean over ranks
    send_us: float | None  # median from the last arrival to the end
    bus_gbps: float | None  # of that, by nccl-tests' factors
    one_node_us: float | None  # what that takes among so many GPUs of one node; None: not measured


class SlowLink(msgspec.Struct, frozen=True):
    """A group whose calls take longer to send than the same calls of the other groups."""

    collective: str
    group: str
    ranks: tuple[int, ...]
    send_us: float
    others_us: float
    more_ms: float  # per step


class JobBlock(msgspec.Struct, frozen=True):
    """Ranks of one node, or of one process group among several of the same name."""

    kind: Literal["node", "group"]
    name: str
    ranks: list[str]
    own_ms: float  # median over its ranks of the mean step without waiting for others
    usual_ms: float  # median over the blocks of its kind and name
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
    ms: float  # per step, the median of those ranks
    slowest: str
    slowest_ms: float
    peak_frac: float | None  # median


class JobFinding(msgspec.Struct, frozen=True):
    """A finding with the ranks that have it; its values are those of the rank where it saves most."""

    finding: Finding
    ranks: int
    saves_step: bool | None  # None: not known. False: those ranks wait, so the step gains nothing


class Left(msgspec.Struct, frozen=True):
    """A file that is not in the answer."""

    file: str
    why: str


class JobClock(msgspec.Struct, frozen=True):
    """How well the ranks' clocks are known."""

    residual_us: float | None  # below it no skew is claimed; None: nothing ties the clocks
    shared: list[list[str]]  # ranks that calls tie to one clock; between two lists no skew is known
    untied: list[str]  # ranks that no matching call ties to any other
    drifting: bool


class Job(msgspec.Struct, frozen=True):
    """The answer."""

    job_version: str
    tool_version: str
    world_size: int | None
    ranks: list[JobRank]
    missing: list[int]  # ranks of the world without a trace here
    left: list[Left]
    steps: list[int]  # N of ProfilerStep#N of the steps that all ranks have
    steps_marked: bool
    step_ms: float  # median over the steps of the slowest rank's time
    limit: Limit
    stragglers: list[Straggler]  # latest first
    slow_links: list[SlowLink]
    stages: list[str]  # ranks of the pipeline stage that computes longest
    clock: JobClock
    matched_calls: int
    unmatched_calls: int
    collectives: list[JobCollective]
    degrees: dict[str, int]  # ranks by what they are to each other: data, tensor, expert parallel, FSDP
    model: ModelDims | None  # of the whole model; None where ranks disagree
    blocks: list[JobBlock]  # longest first, nodes before groups
    components: dict[str, tuple[float, float, float]]  # ms per step: median, least, most
    gemms: list[JobGemm]
    findings: list[JobFinding]
    coverage: Coverage | None  # of the rank with least attributed


def to_json(job: Job) -> bytes:
    """The answer as JSON; the same ranks give the same bytes."""
    return msgspec.json.format(msgspec.json.encode(job), indent=2) + b"\n"
