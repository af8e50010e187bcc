"""Autograd functions that launch products themselves, opened into the operators that they stand for.

TransformerEngine's ``_LayerNormLinear`` is one operator around a normalization, casts and a product, its
``_LayerNormMLP`` one around a whole MLP, and so are the fused layers of apex: below them a trace has kernels
and no operators. What each kernel is its name says, what a product multiplies the sizes that the function was
called with; the backward multiplies what its forward did. An opened function holds operators called
``FUNCTION/norm``, ``FUNCTION/product`` and so on, as if the library had called one for each.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tracelens.attribution.kernels import kernel_component
from tracelens.attribution.names import op_rule
from tracelens.attribution.structure.units import grouped, tensors_of
from tracelens.gemm import KernelNames, kernel_names
from tracelens.trace import AddedOp, CodeArray, Trace, innermost_ops, look_up, with_ops
from tracelens.trace.tables import Inputs

#: A function of Python or an operator of a library: nodes that C++ made have a number.
_FUNCTION = re.compile(r"(?!(aten|prims|c10d|nccl)::)(\w+::)?[A-Za-z_]\w*(?<!\d)")
#: Functions whose products are known as such without their sizes: TransformerEngine pytorch/module/, apex
#: fused_dense/, mlp/.
_LAYERS = re.compile(r"_(LayerNorm)?(Linear|MLP)|FusedDense(GeluDense)?Func(tion)?|MlpFunction")
_BACKWARD = "Backward"
#: Of two matrices alone the weight is the second, but here: pytorch/module/linear.py of TransformerEngine.
_WEIGHT_FIRST = frozenset({"_Linear"})
#: What a kernel's own name proves, and what its operator is then called.
_PARTS = {"norm": "norm", "mlp.activation": "activation", "dropout": "dropout"}
_CASTS = re.compile(r"quant|cast|amax", re.IGNORECASE)
_GATHERS = re.compile(r"all_?gather", re.IGNORECASE)
_MOST = 64  # kernels of one function


class Product(NamedTuple):
    """out[rows, n] = x[rows, k] W[n, k]^T, operands of a type."""

    rows: int
    n: int
    k: int
    dtype: str


@dataclass(slots=True)
class _Part:
    """One operator of an opened function: the places of its first and last kernel."""

    what: str
    first: int
    last: int
    inputs: Inputs = field(default_factory=lambda: Inputs(None, None, None, None))
    pair: tuple[str, int] | None = None  # what it is the gradient of: of the forward's, by kind and number


def open_functions(trace: Trace) -> Trace:
    """Return the trace with the operators of every function that hides its products; itself if none does."""
    may = trace.symbols.where(lambda text: bool(_FUNCTION.fullmatch(text)) and op_rule(text) is None)
    if not may[trace.ops.name].any():
        return trace
    names = kernel_names(trace)
    multiplies = np.array([name is not None and name.kind == "gemm" for name in names], np.bool_)
    if not multiplies.any():
        return trace
    launch, inside = innermost_ops(trace)
    # one launch replays a whole graph: nothing says which of its kernels which product is
    inside[look_up(trace.replays, launch, False)] = -1
    hidden = multiplies[trace.kernels.name] & (inside >= 0)
    hidden &= may[trace.ops.name[np.maximum(inside, 0)]]
    if not hidden.any():
        return trace
    functions = np.unique(inside[hidden])
    return with_ops(trace, [*_Functions(trace, names, launch, inside).opened(functions)])


class _Functions:
    """The functions of a trace that hold products of their own."""

    def __init__(self, trace: Trace, names: KernelNames, launch: CodeArray, inside: CodeArray):
        self.trace, self.names, self.launch = trace, names, launch
        rows = np.flatnonzero(inside >= 0)
        rows = rows[np.lexsort((trace.launches.ts_ns[launch[rows]], inside[rows]))]  # as the host launched
        self.rows, self.owner = rows, inside[rows]
        ops = trace.ops
        gathers = np.flatnonzero(trace.symbols.where(_GATHERS.search)[ops.name])
        self.gathers = gathers[np.argsort(ops.ts_ns[gathers], kind="stable")]
        self.gathers_ns = ops.ts_ns[self.gathers]
        self.next = int(trace.ops.sequence.max(initial=0)) + 1
        self.forwards: dict[tuple[str, int], tuple[list[Product | None], dict[tuple[str, int], int]]] = {}

    def opened(self, functions: CodeArray) -> Iterator[AddedOp]:
        ops = self.trace.ops
        for row in functions[np.argsort(ops.ts_ns[functions], kind="stable")].tolist():
            low, high = np.searchsorted(self.owner, [row, row + 1])
            kernels = self.rows[low:high]
            name = self.trace.symbols[int(ops.name[row])]
            key = (name.removesuffix(_BACKWARD), int(ops.sequence[row]))
            codes = self.trace.kernels.name[kernels].tolist()
            numbers: dict[tuple[str, int], int] = {}
            if len(codes) > _MOST:
                continue
            if name.endswith(_BACKWARD):
                made, numbers = self.forwards.get(key, ([], {})) if key[1] >= 0 else ([], {})
                parts = self._backward(codes, made) if made else []
            else:
                made, parts = self._forward(row, name, codes)
                for part in parts:
                    if part.pair is not None:
                        numbers[part.pair] = self.next = self.next + 1
                self.forwards[key] = made, numbers
            for part in parts:
                number = numbers.get(part.pair, -1) if part.pair is not None else -1
                first, last = self.launch[kernels[[part.first, part.last]]].tolist()
                yield AddedOp(f"{name}/{part.what}", row, (first, last), number, part.inputs)

    def _forward(self, row: int, name: str, codes: list[int]) -> tuple[list[Product | None], list[_Part]]:
        parts = self._parts(codes)
        products = [part for part in parts if part.what == "product"]
        given = self.trace.details.inputs(int(self.trace.ops.inputs[row]))
        chain = chain_of(name, given, len(products), self._gathered(row))
        if chain is None and not _LAYERS.fullmatch(name):
            return [], []
        made: list[Product | None] = [None] * len(products)
        for at, (one, part) in enumerate(zip(chain or [], products, strict=False)):
            made[at] = one = self._typed(one, part, codes)
            part.inputs = _operands((one.rows, one.k), (one.k, one.n), one.dtype, turned="b")
        seen: dict[str, int] = defaultdict(int)
        for part in parts:
            part.pair = (part.what, seen[part.what])
            seen[part.what] += 1
        return made, parts

    def _gathered(self, row: int) -> int:
        """By how much an all-gather inside multiplies the rows (sequence parallel); 0: it does not say."""
        ops = self.trace.ops
        begin = ops.ts_ns[row]
        low, high = np.searchsorted(self.gathers_ns, [begin, begin + ops.dur_ns[row] + 1])
        for inner in self.gathers[low:high].tolist():
            if ops.thread[inner] == ops.thread[row]:
                given = self.trace.details.inputs(int(ops.inputs[inner]))
                sizes = [prod(tensor) for tensor in tensors_of(given.dims or [])]
                half = len(sizes) // 2  # what comes out stands before what goes in
                times, left = divmod(sum(sizes[:half]), sum(sizes[half:]) or 1)
                return 0 if left else times
        return 1

    def _typed(self, product: Product, part: _Part, codes: list[int]) -> Product:
        """Its operands have not the type that the function was given where they are cast before."""
        casts = any(_CASTS.search(self.trace.symbols[code]) for code in codes[: part.last + 1])
        return product._replace(dtype="") if casts else product

    def _backward(self, codes: list[int], made: list[Product | None]) -> list[_Part]:
        """Its products: for each of the forward's, from the last on, of what it took and of its weight."""
        parts = self._parts(codes)
        products = [part for part in parts if part.what == "product"]
        several, left = divmod(len(products), len(made))
        if several not in (1, 2) or left:
            return []
        for at, part in enumerate(products):
            number = len(made) - 1 - at // several
            of_weight = self._of_weight(codes, products[at - at % several :][:several], at % several)
            part.what = "wgrad" if of_weight else "dgrad"
            part.pair = ("product", number)
            if (one := made[number]) is not None:
                out = one.n, one.rows
                a, b = (out, (one.rows, one.k)) if of_weight else (out[::-1], (one.n, one.k))
                part.inputs = _operands(a, b, one.dtype, turned="a" if of_weight else "")
        for what in {*_PARTS.values()}:
            for number, part in enumerate(reversed([part for part in parts if part.what == what])):
                part.pair = (what, number)
        return parts

    def _of_weight(self, codes: list[int], pair: list[_Part], at: int) -> bool:
        """Is it the weight's gradient? By layout (cuBLAS NT), else the second of two."""
        layouts = [self._layout(codes, part) for part in pair]
        if {"NT", "NN"} & {*layouts} and len({*layouts}) == len(layouts):
            return layouts[at] == "NT"
        return at == 1

    def _layout(self, codes: list[int], part: _Part) -> str | None:
        found = (self.names[code] for code in codes[part.first : part.last + 1])
        return next((name.layout for name in found if name is not None and name.kind == "gemm"), None)

    def _parts(self, codes: list[int]) -> list[_Part]:
        """What the kernels are, one behind the other; casts and helpers are part of the product near them."""
        parts: list[_Part] = []
        begun = None  # the first of what prepares a product, or ends one
        for at, code in enumerate(codes):
            name, text = self.names[code], self.trace.symbols[code]
            what = _PARTS.get(kernel_component(text) or "")
            if name is not None and name.kind == "gemm":
                parts.append(_Part("product", at if begun is None else begun, at))
                begun = None
            elif what is not None:
                self._end(parts, begun, at - 1)
                begun = None
                if parts and parts[-1].what == what and parts[-1].last == at - 1:
                    parts[-1].last = at
                else:
                    parts.append(_Part(what, at, at))
            elif name is not None and parts and parts[-1].last == at - 1:
                parts[-1].last = at  # a helper of the product before
            elif begun is None:
                begun = at
        self._end(parts, begun, len(codes) - 1)
        return parts

    def _end(self, parts: list[_Part], begun: int | None, last: int) -> None:
        """Give what stands behind a product and before no other to it: sums for its bias, say."""
        if begun is not None and parts and parts[-1].what == "product":
            parts[-1].last = last


def chain_of(name: str, given: Inputs, count: int, times: int = 1) -> list[Product] | None:
    """The ``count`` products that a function called with these makes one behind the other; None: it cannot.

    Each takes what the one before made, or half of it behind a gate; the first ``times`` the rows that came.
    """
    tensors = [
        (tuple(dims), (given.types or [])[at : at + 1])
        for at, dims in enumerate(given.dims or [])
        if isinstance(dims, list) and dims and all(isinstance(size, int) and size > 0 for size in dims)
    ]
    if grouped(tuple(sizes for sizes, _ in tensors)):
        return None
    stream = next((one for one in tensors if len(one[0]) > 2), None)
    matrices = [one for one in tensors if len(one[0]) == 2]
    if stream is None:
        if len(matrices) < 2:
            return None
        stream = matrices.pop(1 if name in _WEIGHT_FIRST else 0)
    rows, width = times * prod(stream[0][:-1]), stream[0][-1]
    made: list[Product] = []
    for weight, dtype in matrices:
        if len(made) == count:
            break
        if weight[1] == width or (made and 2 * weight[1] == width):
            same = "".join(dtype) if dtype == stream[1] else ""
            made.append(Product(rows, weight[0], weight[1], same))
            width = weight[0]
    return made if rows and len(made) == count else None


def _operands(a: tuple[int, int], b: tuple[int, int], dtype: str, turned: str = "") -> Inputs:
    """Those of ``a @ b``, of which one may lie transposed."""
    strides = [[1, sizes[0]] if turned == side else [sizes[1], 1] for side, sizes in (("a", a), ("b", b))]
    dims: list[Any] = [[*a], [*b]]
    return Inputs(dims, [dtype, dtype], strides, ["", ""])
