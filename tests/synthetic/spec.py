"""What to simulate, and the truth that comes out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Shape of a decoder-only transformer; sizes in elements, bf16 throughout."""

    family: Literal["gpt2", "llama"] = "gpt2"
    hidden: int = 768
    heads: int = 12
    kv_heads: int = 0  # 0: as many as heads
    ffn: int = 0  # 0: 4 * hidden
    vocab: int = 50257
    layers: int = 2
    sequence: int = 1024
    micro_batch: int = 8
    bias: bool = True  # on the Linear layers; llama has none whatever this says
    tied: bool = True  # lm_head shares its weight with the token embedding

    @property
    def key_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def ffn_size(self) -> int:
        return self.ffn or 4 * self.hidden

    @property
    def tokens(self) -> int:
        return self.micro_batch * self.sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the recording holds beside the ops and kernels."""

    steps: int = 2  # recorded ProfilerStep ranges
    first_step: int = 3  # the N of the first ProfilerStep#N
    module_frames: bool = True  # nn.Module frames, as with_stack=True gives them
    ranges: bool = False  # a record_function range per module, named with its FQN
    shapes: bool = True  # record_shapes=True
    attention: Literal["flash", "math"] = "flash"
    optimizer: Literal["fused", "foreach"] = "fused"
    clip: bool = True  # clip_grad_norm_
    zero_to_none: bool = True  # False: zero_grad fills the gradients with a kernel
    accumulate: int = 1  # micro-batches per step
    all_reduce: bool = False  # data-parallel gradient buckets on a stream of their own
    prelaunched: int = 0  # kernels at the start whose launch is not in the recording
    pace: float = 0.0  # every kernel of a step takes up to this share longer or shorter, each step its own
    jitter: float = 0.0  # every kernel takes up to this share longer or shorter, each launch its own
    slow_gemms: float = 1.0  # every GEMM takes so many times as long: a lower clock, a slower library
    slow_cpu: float = 1.0  # everything on the CPU does
    seed: int = 0  # of the small variation in host times, and of the steps' paces


@dataclass(frozen=True, slots=True)
class Where:
    """The part of the step that is running: what attribution has to find out again."""

    component: str = "other"
    phase: str = "other"
    layer: int | None = None
    module: str | None = None  # fully qualified name, "transformer.h.0.attn.c_attn"


@dataclass(frozen=True, slots=True)
class Truth:
    """What one GPU event really is. m, n, k as in out[m,n] = a[m,k] @ b[k,n], per batch element.

    ``strict`` is False where another answer is as defensible: the sum of two gradients that meet
    at a branch, a kernel without its launch, layout copies between two GEMMs.
    """

    correlation: int
    name: str
    start_ns: int
    duration_ns: int
    stream: int
    step: int | None
    component: str
    phase: str
    layer: int | None
    module: str | None
    role: str | None  # forward | dgrad | wgrad, for the GEMM of a weight only
    m: int | None
    n: int | None
    k: int | None
    batch: int | None
    flops: float
    launched: bool
    strict: bool


@dataclass(slots=True)
class Event:
    """One trace event in ns; ``flow`` is (phase, id, category) of the arrow that starts or ends here."""

    ph: str
    cat: str
    name: str
    pid: int | str
    tid: int | str
    ts: int
    dur: int = 0
    args: dict[str, Any] = field(default_factory=dict)
    flow: tuple[str, int, str] | None = None


@dataclass(frozen=True, slots=True)
class Synthetic:
    """A simulated recording in file order, and the truth about each of its GPU events."""

    model: ModelSpec
    options: Options
    header: dict[str, Any]  # top-level keys before traceEvents
    records: list[Event]
    truth: list[Truth]  # by start time

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events as json.loads would give them: float microseconds, arrows after their event."""
        from tests.synthetic.layout import as_dicts

        return as_dicts(self.records)

    def text(self) -> str:
        """The whole file in the layout of torch >= 2.11: one key a line."""
        from tests.synthetic.layout import document

        return document(self)
