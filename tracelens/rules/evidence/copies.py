"""Kernels that only copy, turn or convert a tensor: what each is for, and how a row is told in a sentence."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tracelens.gemm.dtypes import bytes_per_element
from tracelens.numbers import count, ms, plural
from tracelens.results import GemmRow, OtherRow
from tracelens.rules.engine.candidate import absent, could_not_run
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import need_model, need_others, need_step_ms
from tracelens.rules.engine.rows import calls_of, of_step, time_of
from tracelens.step.present import micro_batches_of
from tracelens.words import Level

#: With more of the time between GEMMs in kernels whose names say nothing than this, nothing is judged.
_NAMELESS = 0.5
_MOVING = frozenset({"copy", "transpose", "cast"})
_AROUND = ("attention.", "mlp.", "moe.experts", "logits", "loss", "norm")
_LINEAR = frozenset({"attention.qkv", "attention.output", "mlp.up", "mlp.gate", "mlp.down"})
TORCH = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}  # of 16 bits
#: Operators that copy inside: the library decides, not the model's code.
_LIBRARY = ("aten::_scaled_dot_product_", "aten::_flash_attention_", "aten::_efficient_attention_",
            "aten::_cudnn_attention_", "aten::_native_multi_head_attention", "aten::_transformer_encoder",
            "aten::convolution", "aten::_convolution")  # fmt: skip
#: Operators whose copies are their work: a bias spread over the rows of a GEMM, tensors put behind one
#: another, elements repeated. No other layout of their operands spares it.
_MAKES = frozenset(f"aten::{name}" for name in (
    "addmm", "addbmm", "baddbmm", "linear", "cat", "stack", "repeat", "repeat_interleave", "tile",
))  # fmt: skip
_SPLITS = ("SplitBackward", "SplitWithSizesBackward", "ChunkBackward", "UnbindBackward",
           "UnsafeSplitBackward")  # fmt: skip
_SHOWN = 3
_INDEXED = 2**31 - 1  # bytes that a kernel of PyTorch's own reaches
#: A module's path that can stand in a sentence: other texts come from the trace and stay out.
_MODULE = re.compile(r"[A-Za-z_][\w.]{0,79}")


@dataclass(frozen=True, slots=True)
class Cause:
    """Copies of one kind with one way out; ``why`` is a part of the page."""

    why: str
    name: str  # in a sentence
    title: str  # with {many} of ``noun`` and {time}
    holds: Callable[[OtherRow, StepFacts], bool]
    fix: tuple[str, ...]
    caveat: str
    confidence: Level = "medium"
    noun: tuple[str, str] = ("cast", "casts")  # one and several


def need_copies(facts: StepFacts) -> tuple[list[OtherRow], list[OtherRow]]:
    """Copies around GEMMs, and those inside a library's operator; raises ``Answer`` where names hide them."""
    need_others(facts)
    if not facts.gemms:
        raise absent("No GEMM and no attention kernel was recognised in the step.")
    need_model(facts)
    need_step_ms(facts)
    others = facts.others or ()
    if not any(row.op for row in others) and not any(row.kind in _MOVING for row in others):
        raise could_not_run(
            "No operator is known for any kernel between the GEMMs, and no name shows a copy: record with"
            " activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]."
        )
    # Kernels of torch.compile can have names that do not say what was fused: then copies hide among them.
    near = [row for row in others if row.component.startswith((*_AROUND, "unattributed"))]
    silent = [row for row in near if row.kind == "other"]
    if time_of(silent) > _NAMELESS * time_of(near):
        raise could_not_run(
            f"{ms(time_of(silent))} of the {ms(time_of(near))} between the GEMMs are in kernels whose"
            " names do not say what they do: record one eager step (TORCH_COMPILE_DISABLE=1)."
        )
    copies = [row for row in others if row.kind in _MOVING and row.component.startswith(_AROUND)]
    inside = [row for row in copies if row.within is not None and row.within.startswith(_LIBRARY)]
    return [row for row in copies if row not in inside], inside


def text(facts: StepFacts, rows: Sequence[OtherRow], inside: Sequence[OtherRow]) -> str:
    """How long copies take; ``inside``: those of a library's own operator."""
    time = time_of([*rows, *inside])
    if not time:
        return "No kernel around the GEMMs only copies, turns or converts a tensor."
    mine = f" {ms(time_of(inside))} of it are copies inside a library's own operator." if inside else ""
    return f"Kernels around the GEMMs that only move data take {ms(time)}, {of_step(time, facts)}.{mine}"


# --- what a copy is for ------------------------------------------------------------------------------


def as_run(cause: Cause) -> Cause:
    """Of casts of weights where nothing trains: without gradients and an optimizer."""
    return replace(
        cause,
        title="Keep 16-bit weights: {many} of fp32 weights, {time}",
        fix=(
            '- with torch.autocast("cuda", dtype={dtype}): y = model(x)   # fp32 weights',
            "+ model.to({dtype})   # once, and its inputs",
        ),
        caveat="Norms and softmax then give 16 bits, too: compare the outputs.",
    )


def narrow_type(rows: Sequence[OtherRow]) -> str:
    """The 16-bit type that rows cast to or from; "bf16" where there is none."""
    types = [one for row in rows for one in (row.dtype_from, row.dtype_to) if one]
    return next((one for one in types if one in TORCH), "bf16")


def is_weight(row: OtherRow, facts: StepFacts) -> bool:
    """Has the tensor the size of a weight or bias of its component, and not that of an activation?"""
    if row.component == "norm" and row.dims is not None and len(row.dims) == 1:
        return row.dims[0] == facts.model.hidden.value  # an activation has rows besides
    mine = [one for one in facts.gemms if one.role == "forward" and one.component == row.component]
    return row.dims is not None and any(row.dims in _weights(one) for one in mine)


def _weights(row: GemmRow) -> list[tuple[int, ...]]:
    if row.m is None or row.n is None or row.k is None or row.m in (row.n, row.k):
        return []
    return [(row.n, row.k), (row.k, row.n), (row.n,)]


def weight_cast(row: OtherRow, facts: StepFacts) -> bool:
    """A weight of fp32 cast to 16 bits, or its gradient back."""
    pair = {row.dtype_from, row.dtype_to}
    down = row.phase == "backward" or row.dtype_from == "fp32"
    return (
        row.kind == "cast" and down and "fp32" in pair and bool(TORCH.keys() & pair) and is_weight(row, facts)
    )


def logits_cast(row: OtherRow, facts: StepFacts) -> bool:
    """A cast of a tensor as wide as the vocabulary, as large as the logits."""
    vocab = facts.model.vocab.value
    wide = row.dims is not None and vocab is not None and len(row.dims) > 1 and row.dims[-1] == vocab
    return row.kind == "cast" and row.component in ("logits", "loss") and wide


def split_gradient(row: OtherRow, facts: StepFacts) -> bool:
    """Gradients of the parts of a split, put together again."""
    return row.kind == "copy" and row.op == "aten::cat" and (row.within or "").startswith(_SPLITS)


def repeated_heads(row: OtherRow, facts: StepFacts) -> bool:
    """Key and value heads copied for every query head."""
    heads, kv = facts.model.heads.value, facts.model.kv_heads.value
    repeats = row.op in ("aten::repeat_interleave", "aten::repeat")
    five = row.op in ("aten::reshape", "aten::clone") and row.dims is not None and len(row.dims) == 5
    here = row.phase != "backward" and row.component.startswith("attention.")
    return heads is not None and kv is not None and kv < heads and here and (repeats or five)


def cast_of_anything(row: OtherRow, facts: StepFacts) -> bool:
    """A cast of no known size: of a weight, of an activation or of the logits."""
    return row.kind == "cast" and row.dims is None


def activation_cast(row: OtherRow, facts: StepFacts) -> bool:
    """Any other cast; a weight of 16 bits cast up is none of an activation."""
    return row.kind == "cast" and not is_weight(row, facts)


def layout_copy(row: OtherRow, facts: StepFacts) -> bool:
    """A tensor copied as it is; not one that an operator makes of others, or spreads over rows. Ahead of a
    linear layer's product, a copy without an operator can be its bias."""
    moved = row.kind in ("copy", "transpose") and row.op not in _MAKES
    moved &= row.op is not None or row.component not in _LINEAR
    return moved and row.component.startswith(("attention.", "mlp.", "moe.experts"))


# --- words and values --------------------------------------------------------------------------------


def times(rows: Sequence[OtherRow]) -> float:
    """How often a step copies: PyTorch runs a tensor in halves until each spans less than 2 GiB."""
    return sum(row.calls_per_step / _halves(row) for row in rows)


def _halves(row: OtherRow) -> int:
    """Kernels of one copy (ATen, TensorIterator::with_32bit_indexing)."""
    wide = max(bytes_per_element(dtype) or 0 for dtype in (row.dtype_from, row.dtype_to))
    size, halves = math.prod(row.dims or ()) * wide, 1
    while size / halves > _INDEXED:
        halves *= 2
    return halves if "at::native::" in row.kernel and row.calls_per_step % halves == 0 else 1


def evidence(row: OtherRow) -> dict[str, object]:
    """A row as values."""
    return {
        "component": row.component, "phase": row.phase, "kind": row.kind, "op": _word(row.op),
        "within": _word(row.within), "module": _module(row),
        "calls_per_step": row.calls_per_step, "time_ms": row.time_ms_per_step,
        "dims": list(row.dims) if row.dims else None, "from": row.dtype_from, "to": row.dtype_to,
    }  # fmt: skip


def saw(facts: StepFacts, rows: Sequence[OtherRow]) -> str:
    """What a trace shows of copies of one cause, the longest first."""
    per, calls, rest = facts.per_step, calls_of(rows), rows[_SHOWN:]
    many = f"1 kernel {per} does" if calls == 1 else f"{count(calls)} kernels {per} do"
    text = f"{many} nothing but move data, in {ms(time_of(rows))} ({of_step(time_of(rows), facts)})."
    text += " The longest: " if rest else " It is " if calls == 1 else " They are "
    text += "; ".join(_told(row) for row in rows[:_SHOWN])
    if rest:
        text += f"; and {plural(len(rest), 'more kind')} in {ms(time_of(rest))}"
    batches = micro_batches_of(facts.gemms, facts.model.layers.value) or 0
    if rows[0].kind != "cast" or batches < 2 or not is_weight(rows[0], facts):
        return f"{text}."
    return f"{text}. The step has {batches} micro-batches, and each of them casts the weights anew."


def _told(row: OtherRow) -> str:
    """One row in a sentence: what, where, by which operator, how often, how long."""
    what, often = {"cast": "cast", "transpose": "transposing copy", "copy": "copy"}[row.kind], times([row])
    if often != 1:
        what = {"cast": "casts", "transpose": "transposing copies", "copy": "copies"}[row.kind]
    if row.kind == "cast" and row.dtype_from and row.dtype_to:
        what += f" from {row.dtype_from} to {row.dtype_to}"
    of = f" of {' × '.join(map(str, row.dims))}" if row.dims else ""
    op = f" by {_word(row.op)}" if _word(row.op) else ""
    inside = f" in {_word(row.within)}" if _word(row.within) else ""
    module = f", in {_module(row)}" if _module(row) else ""
    return (
        f"{count(often)} {what}{of}{op}{inside}{module} ({row.component} {row.phase},"
        f" {ms(row.time_ms_per_step)})"
    )


def _module(row: OtherRow) -> str:
    return row.module if row.module and _MODULE.fullmatch(row.module) else ""


def _word(text: str | None) -> str:
    """An operator's name where it is one of PyTorch's: other names come from the trace and stay out."""
    if text is None:
        return ""
    if text.startswith("triton_"):
        return "a kernel of torch.compile"
    plain = text.replace("aten::", "").replace("Backward", "").replace("_", "").rstrip("0123456789")
    known = text.startswith("aten::") or text.endswith(("Backward0", "Backward1"))
    return text if known and plain.isalnum() and len(text) < 60 else ""
