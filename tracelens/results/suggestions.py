"""What ``tracelens suggest`` says: plain frozen values, the same in Python and in its ``--json``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tracelens.results.advice import FrontPoint, OtherHeads, ShapePick
from tracelens.results.described import says
from tracelens.results.estimates import Basis, Span

FORMAT_VERSION = "1.0"

SuggestedFrom = Literal["config", "trace", "report"]
#: What ``time_ms`` is. kernels: matrix products, attention and kernels that only move bytes, of one
#: micro-batch's forward and backward, added up. step: a step that was measured.
TimeIs = Literal["kernels", "step", "recording"]
Strategy = Literal["fsdp", "ddp", "zero1", "tp"]
#: selective: attention is computed again (Megatron-LM). selective-op: every second GEMM of a layer and what
#: lies between, but not attention (torchtitan).
Checkpoint = Literal["none", "full", "selective", "selective-op"]
#: plain: PyTorch's own kernels and collectives. compiled: what lies between GEMMs in one kernel each, by
#: torch.compile, XLA or hand. megatron: Megatron-Core with Transformer Engine.
Stack = Literal["plain", "compiled", "megatron"]


@dataclass(frozen=True, slots=True)
class Size:
    value: int | None
    source: str
    assumed: Annotated[bool, says("nothing in the input says it")] = False


@dataclass(frozen=True, slots=True)
class ComponentTime:
    """One component of the present step, forward and backward."""

    component: str
    time_ms: Span
    frac: Annotated[float, says("of the sum")]
    tflops: Annotated[float | None, says("of its GEMMs and attention, over their time")]
    shapes: Annotated[list[str], says("of its GEMMs, forward")]
    at_least: Annotated[
        bool, says("what an alignment costs in one of its GEMMs is not known: time_ms is a floor")
    ] = False


@dataclass(frozen=True, slots=True)
class WholeStepPart:
    name: str
    time_ms: Annotated[Span, says("of one step; what it adds to the step, where it overlaps")]
    frac: Annotated[float, says("of the step")]


@dataclass(frozen=True, slots=True)
class WholeStep:
    """A whole optimizer step, predicted: its kernels as they run in steps, and what a step has besides."""

    gpus: int
    data_parallel: int
    tensor_parallel: int
    strategy: Strategy
    checkpoint: Checkpoint
    micro_batches: Annotated[int, says("of one optimizer step, on each GPU")]
    step_ms: Span
    tokens_per_s_per_gpu: Span
    mfu_frac: Annotated[
        Span,
        says(
            "6 operations a weight and 12 x layers x heads x head_dim x sequence a token, of the datasheet's"
            " peak (PaLM, arXiv 2204.02311, appendix B): recompute and the causal mask do not count"
        ),
    ]
    parts: Annotated[list[WholeStepPart], says("in the order of a step; they add up to it")]
    memory_gb: Annotated[float, says("estimate, of one GPU")]
    notes: list[str]
    expert_parallel: Annotated[int, says("of the data-parallel GPUs, those that share the experts")] = 1
    pipeline_parallel: Annotated[int, says("stages, each on GPUs of its own")] = 1
    virtual_stages: Annotated[int, says("parts of its layers that a stage takes turns with")] = 1
    context_parallel: Annotated[int, says("GPUs that share each sequence")] = 1
    stack: Annotated[Stack, says("PyTorch plain or compiled, or Megatron-Core with its engine")] = "plain"


@dataclass(frozen=True, slots=True, repr=False)
class Suggestions:
    """What ``tracelens suggest`` says."""

    format_version: str
    model: str
    sizes: dict[str, Size]
    gpu: str
    gpu_title: str
    dtype: str
    basis: Basis
    parameters: Annotated[int | None, says("weights in matrices")]
    time_ms: Annotated[Span, says("what ``time_is`` says; savings are of it")]
    time_is: Annotated[
        TimeIs,
        says(
            "kernels: GEMMs, attention and memory-bound kernels of one micro-batch, forward and"
            " backward, added up, which is no step; step: a measured step; recording: all that was recorded,"
            " of which no step is marked"
        ),
    ]
    tflops: float | None
    memory_gb: Annotated[float | None, says("estimate, of one GPU; nothing but tensor parallelism shares it")]
    components: Annotated[list[ComponentTime], says("longest first")]
    verdict: str
    picks: list[ShapePick]
    unsure: Annotated[
        ShapePick | None, says("predicted faster, but not surely, see ``unsure_over``: not recommended")
    ]
    heads: list[OtherHeads]
    front: list[FrontPoint]
    tried: int
    searched: list[str]
    parameters_limit_frac: float
    not_included: list[str]
    notes: list[str] = field(default_factory=list)
    source: Annotated[SuggestedFrom, says("whether the step is planned or was measured")] = "config"
    not_searched: Annotated[dict[str, str], says("parameter -> why, and what would tell")] = field(
        default_factory=dict
    )
    causal: Annotated[
        bool | None, says("the mask that attention was predicted with; None where a step was measured")
    ] = None
    fused_qkv: Annotated[bool | None, says("one GEMM for query, key and value")] = None
    fused_gate: Annotated[bool | None, says("gate and up in one GEMM; None without a gate")] = None
    room_gb: Annotated[float | None, says("memory of the GPU that a configuration was judged on")] = None
    would_fit: Annotated[
        list[str] | None,
        says("ways to train it where memory_gb, or the step's, is more than room_gb; null where it fits"),
    ] = None
    step: Annotated[WholeStep | None, says("where it was asked for: --step")] = None
    picked_tokens_per_s: Annotated[
        list[Span | None],
        says("per GPU, of each pick's whole step; null where the global batch does not divide so"),
    ] = field(default_factory=list)

    generated: Annotated[bool, says("of a trace that a program made: nothing here was measured")] = False

    def __repr__(self) -> str:
        """The verdict, for the rest is long."""
        return f"<Suggestions: {self.verdict}>"
