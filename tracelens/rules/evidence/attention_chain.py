"""Which kernels of a step are attention that runs unfused: scores, softmax, values, and copies around."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tracelens.gemm.inductor import parse_fused
from tracelens.gemm.inductor_ops import CAST, LAYOUT, MATMUL
from tracelens.results import GemmRow, OtherRow
from tracelens.rules.engine.needs import for_shapes
from tracelens.rules.engine.rows import calls_of, sizes_of, time_of
from tracelens.rules.evidence.fused_attention import CAUSAL, NO_MASK, TENSOR, CoreCalls, Mask

CORE = ("attention.scores", "attention.softmax", "attention.values")
PRODUCTS = ("attention.scores", "attention.values")
FORWARD = ("forward", "recompute")
TRAINED_BIAS = "a bias that is trained"
_NATIVE = "aten::_native_multi_head_attention"
_MEAN = ("aten::div_", "aten::div")  # of the weights over heads
_MATH = ("aten::_scaled_dot_product_attention_math", "aten::_safe_softmax")
#: Operators that add or set scores: the mask, or a bias.
_MASKS = frozenset({"add", "add_", "masked_fill", "masked_fill_", "where"})
#: What a fused kernel does between scores and values: softmax with scale, mask, casts and dropout
#: (``scaled_dot_product_attention``'s documented equivalent), and what makes a mask.
_KNOWN = _MASKS | {
    "softmax", "_softmax", "_safe_softmax", "mul", "mul_", "div", "div_", "dropout", "native_dropout",
    "to", "_to_copy", "copy_", "clone", "contiguous", "reshape", "type_as", "float", "half", "bfloat16",
    "zeros", "ones", "full", "zero_", "fill_", "tril", "tril_", "triu", "triu_", "logical_not",
    "bitwise_not", "bitwise_and", "logical_and", "eq", "ne", "lt", "le", "gt", "ge", "rsub", "arange",
}  # fmt: skip
#: What sums the gradient of a bias over the batch, or puts it into the bias's table.
_BIAS_GRADIENT = frozenset({"sum", "embedding_dense_backward", "index_put"})
#: What Inductor makes of softmax and dropout, and names of scalars beside it.
_COMPILED = _KNOWN | LAYOUT | CAST | MATMUL | {
    "sub", "exp", "amax", "abs", "all", "any", "neg", "sum", "scalar_tensor", "full_like", "lift_fresh",
    "rand", "inductor_random", "inductor_seeds", "inductor_lookup_seed", "prims",
    "prepare_softmax_online",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chain:
    """The kernels of unfused attention; ``maybe``: copies and dropout that fall away perhaps."""

    products: tuple[GemmRow, ...]
    between: tuple[OtherRow, ...]  # attention.softmax
    beside: tuple[OtherRow, ...]  # copies for the products, and what a library's own operator adds
    maybe: tuple[OtherRow, ...]

    @property
    def sure_ms(self) -> float:
        """Per step, of what a fused kernel replaces."""
        return time_of(self.products) + time_of(self.between) + time_of(self.beside)

    @property
    def kernels(self) -> float:
        """Of them, per step."""
        return calls_of(self.products) + calls_of([*self.between, *self.beside])

    @property
    def softmax(self) -> bool:
        """Is a softmax known between the products?"""
        return any(map(_is_softmax, self.between))

    @property
    def call(self) -> str:
        """What runs it: torch's MultiheadAttention or scaled_dot_product_attention, or the model's code."""
        if any(_within(row, _NATIVE) for row in (*self.beside, *self.between)):
            return "native"
        return "math" if any(_within(row, *_MATH) for row in self.between) else "code"

    @property
    def times(self) -> dict[str, float]:
        """Row -> ms per step, ``maybe`` with them."""
        return {
            row.id: row.time_ms_per_step
            for rows in (self.products, self.between, self.beside, self.maybe)
            for row in rows
        }


def chain_of(products: Sequence[GemmRow], others: Sequence[OtherRow]) -> Chain:
    """By component; beside those the kernels of attention around them that a fused kernel does without.

    A fused kernel reads heads at any stride and writes its output token by token, so the copies that a
    batched product asks for fall away. ``nn.MultiheadAttention``'s own operator calls
    ``scaled_dot_product_attention`` where no weights are asked for, and then runs neither
    ``_transform_bias_rescale_qkv`` nor the copy of its output nor the mean of the weights
    (``native_multi_head_attention_cuda`` in aten/src/ATen/native/transformers/cuda/attention.cu).
    """
    between = tuple(row for row in others if row.component == "attention.softmax")
    native = {row.module for row in others if _within(row, _NATIVE)}
    beside = [row for row in others if row.component in PRODUCTS]
    around = [row for row in others if row.component == "attention.other"]
    beside += [row for row in around if _within(row, _NATIVE) or (row.module in native and row.op in _MEAN)]
    maybe = [row for row in around if row not in beside and _turns(row)]
    dropped = {name for row in between if row.module for name in (row.module, f"{row.module}.Dropout")}
    maybe += [row for row in others if row.component == "dropout" and row.module in dropped]
    return Chain(tuple(products), between, tuple(beside), tuple(maybe))


def _within(row: OtherRow, *names: str) -> bool:
    return row.within is not None and row.within.startswith(names)


def _is_softmax(row: OtherRow) -> bool:
    return "softmax" in f"{row.op} {row.within} {row.kernel}".lower()


def _turns(row: OtherRow) -> bool:
    """A copy of heads into another order; not keys and values put together or repeated."""
    joins = (row.op or "").startswith(("aten::cat", "aten::stack", "aten::repeat", "triton_"))
    return row.kind in ("copy", "transpose") and not joins and (row.dims is None or len(row.dims) < 5)


def _names(row: OtherRow) -> tuple[str, ...]:
    """The operators that a kernel carries out; empty where no one knows."""
    fused = parse_fused(row.kernel)
    if fused is not None:
        return (*fused.ops, *fused.unknown)
    return ((row.op or "").removeprefix("aten::").partition(".")[0],) if row.op else ()


def of_megatron(chain: Chain) -> bool:
    """Is the softmax Megatron's or Apex's own? Their scaled_masked_softmax adds the mask itself."""
    return any("masked_softmax" in row.kernel.lower() for row in chain.between if row.phase in FORWARD)


def masks_of(chain: Chain) -> tuple[Mask, ...]:
    """What the mask can become: something added to the scores or set in them can be a causal mask or not."""
    if any("upper_triang" in row.kernel.lower() for row in chain.between if row.phase in FORWARD):
        return (CAUSAL,)  # Megatron's and Apex's scaled_upper_triang_masked_softmax
    return (CAUSAL, TENSOR) if _masking(chain) else (NO_MASK,)


def masked_of(chain: Chain, cores: Sequence[CoreCalls]) -> list[CoreCalls]:
    """The calls that have it: not a size with more calls than softmax has in the modules that have it."""
    modules = {row.module if isinstance(row, OtherRow) else None for row in _masking(chain)}
    softmax = [row for row in chain.between if row.phase in FORWARD and _is_softmax(row)]
    calls = calls_of([row for row in softmax if None in modules or row.module in (None, *modules)])
    return [core for core in cores if core.calls <= calls + 1e-6] or list(cores)


def _masking(chain: Chain) -> list[GemmRow | OtherRow]:
    """What adds to the scores or sets them, forward."""
    scores = [row for row in chain.products if row.component == "attention.scores"]
    forward = [row for row in chain.between if row.phase in FORWARD]
    softmax = [row for row in forward if "masked_softmax" in row.kernel.lower() or _MASKS & set(_names(row))]
    return [*(row for row in scores if row.op == "aten::baddbmm"), *softmax]


def unusual_of(chain: Chain) -> list[str]:
    """What is done to the scores for which no fused kernel is predicted."""
    found: list[str] = []
    for row in chain.between:
        names = _names(row)
        if row.phase in FORWARD:
            compiled = parse_fused(row.kernel) is not None
            strange = [name for name in names if name not in (_COMPILED if compiled else _KNOWN)]
            softmax = "softmax" in row.kernel.lower() and not compiled
            if strange and not softmax:
                found += [name if name.isidentifier() and len(name) < 40 else "another" for name in strange]
            elif not names and not softmax:
                found.append("a kernel of no known operator")
        elif _BIAS_GRADIENT & set(names):
            found.append(TRAINED_BIAS)
    return list(dict.fromkeys(found))


def cores_of(products: Sequence[GemmRow], chain: Chain) -> list[CoreCalls] | str:
    """One per size and type: scores [b*a, s_q, s_k] with their values, or why they are not known."""
    trains = any(row.phase == "backward" for row in products)
    forward = [row for row in products if row.phase in FORWARD and row.role in (None, "forward")]
    scores = [row for row in forward if row.component == "attention.scores"]
    values = [row for row in forward if row.component == "attention.values"]
    found: dict[tuple[int, int, int, int, int, str], CoreCalls] = {}
    for row in scores:
        sizes = sizes_of(row)
        if sizes is None:
            continue  # whose chain is not judged
        q, k, d, heads = sizes
        pair = next((one for one in values if (one.batch or 1, one.m, one.k) == (heads, q, k)), None)
        if pair is None or row.dtype is None:
            return (
                f"The scores of {heads} × {q} × {k} have no GEMM of values of the same size and a known"
                f" type: {for_shapes([row])}."
            )
        key = (heads, q, k, d, pair.n or 0, row.dtype)
        known = found.get(key, CoreCalls(*key))
        backward = row.calls_per_step if trains and row.phase == "forward" else 0.0
        found[key] = replace(
            known, calls=known.calls + row.calls_per_step, backward_calls=known.backward_calls + backward
        )
    return list(found.values()) or (
        "GEMMs of attention's backward are known, and none of its forward: no call can be predicted."
    )
