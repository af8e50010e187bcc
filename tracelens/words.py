"""The vocabulary: phases, components, evidence and roles, spelled the same in code, tables, JSON and page.

At the end what the modules beside this one say of files and traces.
"""

from __future__ import annotations

from typing import Literal, get_args

from tracelens.errors import RECORD_ONE

#: Of a finding: how much it is of the step, and how sure it is.
Level = Literal["high", "medium", "low"]
#: Shares of the step from which a finding is of high and of medium severity.
_SEVERITY_FROM: dict[Level, float] = {"high": 0.03, "medium": 0.01}
#: How the sentence of the verdict begins that says what helps where shapes are not the problem.
TO_TRY = "What to try:"


def severity(share: float, of: str = "step") -> Level:
    """high | medium | low, by the share of the step that a finding saves; low where that is not known."""
    if of != "step":
        return "low"
    return next((name for name, least in _SEVERITY_FROM.items() if share >= least), "low")


def per_step(marked: bool) -> str:
    """What a time or a count is of, behind it: a step, or the whole trace where none is ``marked`` in it."""
    return "per step" if marked else "in the trace"


def slash_step(marked: bool) -> str:
    """The same behind a unit: "ms/step"; "ms" of the whole trace."""
    return "/step" if marked else ""


Phase = Literal["forward", "backward", "recompute", "optimizer", "other"]
PHASES: tuple[Phase, ...] = get_args(Phase)

COMPONENTS = (
    "embedding", "norm",
    "attention.qkv", "attention.rope", "attention.scores", "attention.softmax", "attention.values",
    "attention.core", "attention.output", "attention.other",
    "mlp.up", "mlp.gate", "mlp.activation", "mlp.down", "mlp.other",
    "moe.router", "moe.experts", "moe.dispatch",
    "ssm.projection", "ssm.conv", "ssm.scan",
    "residual", "dropout", "logits", "loss", "optimizer", "grad_clip",
    "communication", "memory", "other", "unattributed",
)  # fmt: skip

#: Components that are told together, in the order data flows through a step.
GROUPED: dict[str, tuple[str, ...]] = {
    "attn-proj": ("attention.qkv", "attention.output"),
    "attn-core": (
        "attention.core",
        "attention.scores",
        "attention.softmax",
        "attention.values",
        "attention.rope",
        "attention.other",
    ),
    "mlp": ("mlp.up", "mlp.gate", "mlp.activation", "mlp.down", "mlp.other"),
    "moe": ("moe.router", "moe.experts", "moe.dispatch"),
    "ssm": ("ssm.projection", "ssm.conv", "ssm.scan"),
    "logits": ("logits", "loss"),
    "embedding": ("embedding",),
    "norm": ("norm", "residual", "dropout"),
    "optimizer": ("optimizer", "grad_clip"),
    "comm": ("communication",),
    "memory": ("memory",),
    "other": ("other",),
    "unattributed": ("unattributed",),
}

_SPOKEN = {"attention.other": "other attention work", "mlp.other": "other MLP work"}


def spoken(component: str) -> str:
    """A component as it is said in a sentence or a list: its own name, where that says something."""
    return _SPOKEN.get(component, component)


#: Strongest first. ``op`` is an operator whose own name says what it does
#: (``aten::native_layer_norm``, ``nccl:all_reduce``), read from the trace and not guessed.
Evidence = Literal[
    "annotation", "module_stack", "sequence", "op", "structure", "local", "kernel_name", "none"
]
EVIDENCE: tuple[Evidence, ...] = get_args(Evidence)

#: What a GEMM computes for its weight: y = x W, the gradient of x, or the gradient of W.
Role = Literal["forward", "dgrad", "wgrad"]
#: Of a call of attention.
Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
ROLES: tuple[Role, ...] = get_args(Role)

#: What a communication kernel does, in PyTorch's words. ``packing``: a kernel or copy that lays data out for
#: a collective; ``other``: communication whose name and operator do not say what it does.
Collective = Literal[
    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "gather", "scatter",
    "send/recv", "barrier", "packing", "other",
]  # fmt: skip
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)

#: What communication serves.
Purpose = Literal[
    "data-parallel gradients", "FSDP parameter gather", "FSDP gradient scatter", "tensor parallel",
    "expert all-to-all", "pipeline", "optimizer shards", "loss or metric", "unknown",
]  # fmt: skip
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)


# --- what the modules of the package's top level say -------------------------------------------------

NO_GPU_RECORDED = (
    "record it on a machine with a GPU, with 'tracelens capture' or activities=[ProfilerActivity.CPU, "
    "ProfilerActivity.CUDA]; without one, 'tracelens suggest' predicts from the model's sizes"
)
GENERATED = "generated, not a measurement"
AS_AN_EXAMPLE = "an example alone"
AGAIN = "copy the file again"
WITH_GPU = "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], on a machine with an NVIDIA GPU"
NOTHING_TO_ANALYZE = "there is nothing to analyze"
OPERATORS_HAVE_SHAPES = "operators have the shapes of their inputs"
is_address = "{} is an address: give it to 'tracelens analyze', or download it first".format
no_file_name = "no such file: {!r} is not a file name".format
link_to_nothing = "{} is a link to a file that is not there".format
cannot_read = "cannot read {}: {}".format
gpu_events = "{:,} GPU events, {:,.1f} ms".format
whole_file = "whole, {:,} events".format
has_launch = "{:.1%} of the GPU time has its launch".format
has_module = "{:.1%} of the GPU time has a module".format
steps_marked = "{} steps are marked".format


def no_such_file(given: str, close: str | None) -> str:
    """Of a path, and one that is there and ``close`` to it."""
    return f"no such file: {given}; {f'did you mean {close}?' if close else 'check the path'}"


def of_another_program(name: str) -> str:
    """Of a trace without an event of PyTorch's."""
    return f"{name} holds no event of torch.profiler: another program wrote it, JAX for one; {RECORD_ONE}"


def no_gpu_event(name: str, events: int, fault: str | None) -> str:
    """Of a trace that cannot be analyzed; ``fault`` of one that is damaged."""
    if fault is not None:
        return f"{name} holds no GPU event: {fault}; copy it again, or {RECORD_ONE}"
    return f"{name} holds no GPU event ({events:,} events of other kinds): {NO_GPU_RECORDED}"


def no_gpu_event_among(events: int, fault: str | None) -> str:
    """The same as a check of a trace; ``fault`` of one that is damaged."""
    return f"no GPU event: {fault}" if fault else f"no GPU event among {events:,} events"


def reading(share: float, left_s: float | None) -> str:
    """Of a file of which that share is read; ``left_s`` where it is known."""
    return f"reading {share:.0%}{f', {left_s:.0f} s left' if left_s is not None else ''}"
