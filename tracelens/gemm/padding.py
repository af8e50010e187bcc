"""Products that ran larger than the model asked: padding proven by the operators before them.

Inductor's pad_mm pass (torch/_inductor/fx_passes/pad_mm.py) rounds M, N and K of a misaligned product up to
16 bytes (8 elements of bf16 or fp16, 4 of fp32): it pads the operands with ``constant_pad_nd`` and slices
the result. In a trace the product shows the padded sizes only; the kernel that pads an operand shows both.
Kernels that slice prove nothing: logits shifted by one token look the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from tracelens.gemm.dtypes import bytes_per_element
from tracelens.gemm.shapes import GemmShape
from tracelens.gemm.tensors import Dims, dims_at, item_at

#: Operators, and Triton kernels named after the operators fused into them, that pad.
_PADS = re.compile(r"constant_pad_nd")
#: Pointwise kernels named after a product alone: padding made by a rewrite of that product.
_PADS_FOR_PRODUCT = re.compile(r"^triton_poi_fused_(?:\w*_)?(?:addmm|baddbmm|bmm|mm)(?:_|$)")
_ALIGNMENT_BYTES = 16


class Neighbour(NamedTuple):
    """An operator that runs shortly before a product, with its Input Dims and Concrete Inputs."""

    op: str
    dims: Sequence[Any]
    concrete: Sequence[Any] = ()


def may_pad(op: str) -> bool:
    """Is this the name of an operator that can prove padding?

    >>> may_pad("triton_poi_fused_constant_pad_nd_t_3"), may_pad("aten::add")
    (True, False)
    """
    return _PADS.search(op) is not None or _PADS_FOR_PRODUCT.search(op) is not None


def padded_from(shape: GemmShape, neighbours: Sequence[Neighbour]) -> dict[str, int]:
    """The sizes among M, N and K that the model asked for where the product ran padded; {} without proof.

    Proof is a neighbour that pads and holds an operand in both sizes, the larger being the smaller rounded
    up to 16 bytes, or an ``aten::constant_pad_nd`` whose recorded padding gives an operand. Where the sizes
    fit more than one dimension nothing is said.

    >>> gemm = GemmShape(8192, 50264, 768, 1, "bf16", "bf16", "TN")
    >>> pad = Neighbour("triton_poi_fused_constant_pad_nd_t_3", [[50257, 768], [768, 50264], []])
    >>> padded_from(gemm, [pad])
    {'n': 50257}
    """
    asked: dict[str, set[int]] = {}
    for neighbour in neighbours:
        for original, padded in _pairs(neighbour, shape):
            readings = {tuple(sorted(reading.items())) for reading in _readings(shape, original, padded)}
            if len(readings) == 1:
                for name, value in readings.pop():
                    asked.setdefault(name, set()).add(value)
    return {name: values.pop() for name, values in sorted(asked.items()) if len(values) == 1}


def _pairs(neighbour: Neighbour, shape: GemmShape) -> list[tuple[Dims, Dims]]:
    """(original, padded) matrices of one operator; the padded one may lie transposed."""
    op, dims = neighbour.op, neighbour.dims
    if op.partition(".")[0] == "aten::constant_pad_nd":
        tensor = dims_at(dims, 0)
        after_padding = grown(tensor, item_at(neighbour.concrete, 1)) if tensor else None
        before, after = _matrix(tensor, shape.batch), _matrix(after_padding, shape.batch)
        return [(before, after)] if before and after and before != after else []
    tensors = [_matrix(found, shape.batch) for at in range(len(dims)) if (found := dims_at(dims, at))]
    if not _PADS.search(op):
        # without the word, only a kernel that does nothing else: one tensor in, one out
        if not _PADS_FOR_PRODUCT.search(op) or len(tensors) != 2:
            return []
        candidates = [(tensors[0], tensors[1])]
    else:
        candidates = [(before, after) for before in tensors for after in tensors]
    return [
        (turned, after)
        for before, after in candidates
        if before is not None and after is not None
        for turned in dict.fromkeys((before, before[::-1]))
        if _rounded(turned, after, shape)
    ]


def _rounded(original: Dims, padded: Dims, shape: GemmShape) -> bool:
    """Is ``padded`` larger, and nothing but rounded up to 16 bytes?"""
    size = bytes_per_element(shape.dtype)
    if size is None or original == padded:
        return False
    multiple = max(int(_ALIGNMENT_BYTES / size), 1)
    return all(
        after in (before, -(-before // multiple) * multiple)
        for before, after in zip(original, padded, strict=True)
    )


def _readings(shape: GemmShape, original: Dims, padded: Dims) -> list[dict[str, int]]:
    """Which of M, N, K a pair speaks of: one reading per operand, plain or transposed, that it can be."""
    sizes = {"m": shape.m, "n": shape.n, "k": shape.k}
    return [
        {name: asked for name, asked, ran in zip(names, original, padded, strict=True) if asked != ran}
        for names in (("m", "k"), ("k", "m"), ("k", "n"), ("n", "k"))
        if padded == (sizes[names[0]], sizes[names[1]])
    ]


def _matrix(dims: Dims | None, batch: int) -> Dims | None:
    """A tensor as one matrix of a product: leading dimensions folded into rows, or the batch left out."""
    if dims is None or len(dims) < 2:
        return None
    if batch > 1:
        return dims[-2:] if prod(dims[:-2]) == batch else None
    return prod(dims[:-1]), dims[-1]


def grown(dims: Dims, padding: object) -> Dims | None:
    """Sizes after ``aten::constant_pad_nd``; ``padding`` is a Concrete Input "[0, 7]", last one first."""
    if not isinstance(padding, str) or not re.fullmatch(r"\[\d{1,9}(?:, \d{1,9})*\]", padding[:200]):
        return None
    amounts = [int(text) for text in padding[1:-1].split(", ")]
    if len(amounts) % 2 or len(amounts) > 2 * len(dims):
        return None
    sizes = list(dims)
    for at in range(len(amounts) // 2):
        sizes[-1 - at] += amounts[2 * at] + amounts[2 * at + 1]
    return tuple(sizes)
