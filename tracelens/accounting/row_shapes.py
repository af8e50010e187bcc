"""The shape fields of a GEMM row: the sizes an operator shows, or the ranges its kernel leaves open."""

from __future__ import annotations

from typing import Any

from tracelens.accounting.model import express
from tracelens.accounting.words import figures as words
from tracelens.gemm import (
    AttentionShape,
    GemmShape,
    KernelName,
    Shape,
    bound_attention,
    bound_shape,
    shows_sizes,
)
from tracelens.results import ModelDims
from tracelens.results.row_sizes import AttentionDims, Groups

#: Products of two matrices: their kernels have no batch in grid z.
_PLAIN = frozenset(f"aten::{name}" for name in (
    "mm", "addmm", "addmm_", "_addmm_activation", "linear", "_int_mm", "_scaled_mm", "_scaled_mm_v2",
))  # fmt: skip


def shape_fields(shape: Shape, dims: ModelDims, role: str | None, padded: dict[str, int]) -> dict[str, Any]:
    """Fields of a row whose operator shows its sizes."""
    if isinstance(shape, AttentionShape):
        known = "bounded" if shape.varlen else "exact"
        return _EMPTY | {
            "batch": shape.batch,
            "dtype": shape.dtype,
            "shape_note": shape.describe(),
            "shape_known": known,
            "attention": shape.dims,
        }
    return {
        "m": shape.m,
        "n": shape.n,
        "k": shape.k,
        "batch": shape.batch,
        "dtype": shape.dtype,
        "out_dtype": shape.out_dtype,
        "layout": shape.layout,
        **{
            f"{letter}_expr": express(size, dims, rows=tokens)
            or express(padded.get(letter), dims, rows=tokens)
            for letter, size, tokens in (
                ("m", shape.m, role != "wgrad"),
                ("n", shape.n, False),
                ("k", shape.k, role == "wgrad"),
            )
        },
        "shape_note": _note(shape, padded),
        "groups": Groups(shape.grouped, shape.groups) if shape.groups and shape.grouped else None,
        "shape_known": "exact",
        "padded_from": padded,
    }


def bounded_fields(
    kernel: KernelName | None, grid: tuple[int, int, int] | None, op: str | None
) -> dict[str, Any]:
    """Fields of a row without sizes: what its kernel's tile and grid say, and why the sizes are not known."""
    empty = _EMPTY | {"shape_note": words.no_sizes(op, shows_sizes=op is not None and shows_sizes(op))}
    if kernel is None:
        return empty
    attention = bound_attention(kernel, grid)
    if attention is not None:
        return empty | {
            "batch": attention.batch,
            "shape_note": attention.describe(),
            "shape_known": "bounded",
            "attention": AttentionDims(batch=attention.batch, heads=attention.heads),
        }
    bounds = bound_shape(kernel, grid, plain=op is not None and op.partition(".")[0] in _PLAIN)
    if bounds is None:
        said = kernel.sizes and {"shape_note": words.compiled_in(kernel.sizes), "shape_known": "bounded"}
        return empty | (said or {})
    return empty | {"batch": bounds.batch, "m_range": bounds.m, "n_range": bounds.n, "shape_known": "bounded"}


_EMPTY: dict[str, Any] = {
    **dict.fromkeys(
        ("m", "n", "k", "batch", "dtype", "out_dtype", "layout", "m_expr", "n_expr", "k_expr", "shape_note")
    ),
    "shape_known": "unknown",
}


def _note(shape: GemmShape, padded: dict[str, int]) -> str | None:
    if padded:
        return words.padded_from(padded)
    if shape.groups and shape.grouped:
        return words.groups(shape.groups, shape.grouped)
    return words.SYMMETRIC if shape.symmetric else None
