"""What was analysed: the file, the GPU, the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tracelens.results import words
from tracelens.results.described import says
from tracelens.results.estimates import Known

#: A kernel takes at least this long however little it computes: launch, prologue, one pass over K and
#: epilogue. The shortest GEMM kernels of public traces last 2.8 to 3.3 us (H100) and 3.0 us (A100).
LEAST_US = 3.0

Vendor = Literal["nvidia", "amd", "unknown"]
#: What tells the number of SMs.
SmsSource = Literal["trace", "table", "unknown"]
#: What the row of the GPU table was found by.
GpuMatch = Literal["--gpu", "device name", "none"]

_Rate = Annotated[float, says("0 or more", least=0)]


@dataclass(frozen=True, slots=True)
class TraceInfo:
    path: Annotated[str, says("file name only, never a directory")]
    sha256: str
    bytes: Annotated[int, says("size of the file as given (compressed if it was)")]
    events: Annotated[int, says("every event read, of every category")]
    kernels: Annotated[int, says("GPU events: kernels, copies, fills")]
    rank: int | None
    world_size: int | None
    torch_version: str | None
    cuda_version: str | None
    device: Annotated[str | None, says("device name as the trace states it")]
    span_ms: Annotated[float, says("first to last event")]
    generated: Annotated[bool, says("True for a simulated trace; said on the page")]
    partial: Annotated[bool, says("True when part of the file could not be read")]
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """The GPU the figures are judged against; peaks are dense."""

    name: Annotated[str, says('key in gpus.toml, "h100-sxm"; "unknown" when not in the table')]
    title: str
    vendor: Vendor
    sms: int | None
    sms_source: SmsSource
    peak_tflops: Annotated[dict[str, _Rate], says("dtype -> datasheet dense peak; absent = unknown")]
    ceiling_tflops: Annotated[
        dict[str, float], says("dtype -> best matmul anyone measured; absent = unknown")
    ]
    bandwidth_gbps: _Rate | None
    matched_by: GpuMatch
    sources: Annotated[dict[str, str], says('"peak.bf16", "bandwidth_gbps" -> document, date')] = field(
        default_factory=dict
    )
    l2_mb: float | None = None
    measured_tflops: Annotated[dict[str, float], says("best matmul of `tracelens bench` here")] = field(
        default_factory=dict
    )
    measured_bandwidth_gbps: float | None = None
    gemm_floor_us: Annotated[float, says("what a GEMM kernel takes at least, however little it computes")] = (
        LEAST_US
    )
    memory_gib: Annotated[
        float | None, says("of the device, as the trace reports it; None where it does not")
    ] = None


#: How much of a transformer was recognised.
Found = Literal["whole", "parts", "none"]
_UNSTATED = Known(None, words.NOT_SAID)


@dataclass(frozen=True, slots=True)
class ModelDims:
    """Model dimensions, each with its source, and how much of a transformer was recognised.

    ``found`` is "none" where no part was recognised, which is no proof that the trace holds none:
    ``Coverage.unseen_frac`` says how much could not be told apart.
    """

    found: Annotated[
        Found, says("whole: attention, by its operators, module names or order; parts: some components alone")
    ]
    hidden: Known
    heads: Known
    kv_heads: Known
    head_dim: Known
    ffn: Known
    vocab: Known
    layers: Known
    sequence: Known
    micro_batch: Known
    tensor_parallel: Known
    experts: Known
    pipeline_parallel: Annotated[Known, says("stages; ``layers`` are this rank's")] = _UNSTATED
    expert_parallel: Annotated[Known, says("ranks that share the experts")] = _UNSTATED
    classes: Annotated[Known, says("what a head chooses from that is no vocabulary")] = _UNSTATED
    top_k: Annotated[Known, says("experts that each token goes to")] = _UNSTATED

    @property
    def transformer(self) -> bool:
        """Was a model recognised, whose dimensions can be read?"""
        return self.found == "whole"


@dataclass(frozen=True, slots=True)
class ReferenceInfo:
    """A second trace of the same job, and what it lent. Shares of the GPU time of the analysed steps."""

    path: Annotated[str, says("file name only")]
    sha256: str
    matched_frac: Annotated[float, says("kernels with a twin in the reference")]
    matched_kernels: int
    lent_frac: Annotated[float, says("kernels whose component came from the reference")]
    lent_kernels: int
    lent_calls: Annotated[
        int, says("GEMM and attention calls whose operator or shape came from the reference")
    ]


@dataclass(frozen=True, slots=True)
class ValidityRule:
    """One of the six rules of PyTorch's own ``torch.profiler._trace_validator``."""

    code: str
    says: str
    checked: Annotated[int, says("events it was checked on; 0 where the trace has none of them")]
    broken: int
