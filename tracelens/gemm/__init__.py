"""GEMM and attention: what an operator computes, what its kernel's name says, how well the two fit a GPU.

``tracelens.gemm(4096, 11008, 4096, gpu="h100-sxm")`` predicts one GEMM.
"""

from __future__ import annotations

import sys
from inspect import Signature, signature
from types import ModuleType
from typing import Any

from tracelens.gemm.attention_shapes import ATTENTION_OPS, AttentionShape
from tracelens.gemm.bounds import ShapeBounds, bound_attention, bound_shape
from tracelens.gemm.dtypes import bytes_per_element
from tracelens.gemm.efficiency import (
    alignment_bytes,
    bound,
    intensity,
    leading_dimensions,
    math_dtype,
    resident_ctas,
    tensor_core_state,
    tile_eff,
    tiles,
    usable_sms,
    wave_eff,
    waves,
)
from tracelens.gemm.flops import bytes_moved, flops, model_flops, shows_sizes
from tracelens.gemm.kernel_names import (
    KernelName,
    KernelNames,
    kernel_names,
    parse_kernel_name,
    row_fields,
    split_k_factor,
)
from tracelens.gemm.ladder import AlignmentLadder, LadderStep, alignment_ladder
from tracelens.gemm.padding import Neighbour, may_pad, padded_from
from tracelens.gemm.shapes import GEMM_OPS, WRAPPERS, GemmShape, Shape, is_gemm_op, shape_of

__all__ = [
    "ATTENTION_OPS", "GEMM_OPS", "WRAPPERS", "AlignmentLadder", "AttentionShape", "GemmShape", "KernelName",
    "KernelNames", "LadderStep", "Neighbour", "Shape", "ShapeBounds", "alignment_bytes", "alignment_ladder",
    "bound", "bound_attention", "bound_shape", "bytes_moved", "bytes_per_element", "flops", "model_flops",
    "intensity", "is_gemm_op", "kernel_names", "leading_dimensions", "math_dtype", "may_pad", "padded_from",
    "parse_kernel_name", "resident_ctas", "row_fields", "shape_of", "shows_sizes", "split_k_factor",
    "tensor_core_state", "tile_eff", "tiles", "usable_sms", "wave_eff", "waves",
]  # fmt: skip


class _GemmRoom(ModuleType):
    """The room and the function share their name, so the module can be called."""

    def __call__(self, m: int, n: int, k: int, **options: Any) -> Any:
        from tracelens.gemm.predict import gemm_time

        return gemm_time(m, n, k, **options)

    @property
    def __signature__(self) -> Signature:
        from tracelens.gemm.predict import gemm_time

        return signature(gemm_time)


sys.modules[__name__].__class__ = _GemmRoom
