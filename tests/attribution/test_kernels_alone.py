"""Recorded without operators: products, a softmax and the depth of their grids are all there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attribution.rows import Row, attributed, verdict, written
from tracelens.words import COMPONENTS

BATCH = 960  # windows x heads
SPLIT = Row("mlp.down", "", "void splitKreduce_kernel<float, float, float>", us=4)


def _gemm(right: str, layout: str, tile: str, depth: int = 1) -> Row:
    return Row(right, "", f"ampere_sgemm_{tile}_{layout}", us=100, grid=(5, 245, depth))


def _work(right: str, name: str) -> Row:
    return Row(right, "", f"void at::native::{name}", us=5)


def _layer(scores: int, values: int) -> list[Row]:
    """A layer as torchvision's Swin runs it in fp32 without fused attention."""
    copy = _work("attention.other unattributed", "elementwise_kernel<128, 2, direct_copy_kernel_cuda>")
    norm = _work("norm", "vectorized_layer_norm_kernel<float, float>")
    add = _work("residual", "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>")
    attention = [
        *[norm, _gemm("attention.qkv", "tn", "64x64"), copy],
        *[_gemm("attention.scores", "nn", "128x128", scores)],
        *[_work("attention.softmax", "softmax_warp_forward<float, float, float, 6, false, false>")],
        *[_gemm("attention.values", "nn", "128x128", values), copy],
        *[_gemm("attention.output", "tn", "32x128"), add],
    ]
    act = _work("mlp.activation", "vectorized_elementwise_kernel<4, GeluCUDAKernelImpl>")
    return [
        *attention,
        norm,
        _gemm("mlp.up", "tn", "128x64"),
        act,
        _gemm("mlp.down", "tn", "32x128", 3),
        SPLIT,
        add,
    ]


@pytest.mark.parametrize("graph", [True, False])
def test_products_of_as_many_batches_around_a_softmax_are_attention(tmp_path: Path, graph: bool) -> None:
    rows = _layer(BATCH, BATCH) * 4
    trace, _, found = attributed(tmp_path, written(rows, graph=graph, kernels_alone=True))
    right, wrong = verdict(rows, trace, found)
    assert wrong == {} and right > 0.98


@pytest.mark.parametrize("depths", [(1, 1), (4, 1), (960, 480)])
def test_other_products_around_a_softmax_are_not(tmp_path: Path, depths: tuple[int, int]) -> None:
    """A router's softmax stands between two linear layers, which can be split over the depth."""
    rows = _layer(*depths) * 4
    found = attributed(tmp_path, written(rows, kernels_alone=True))[2]
    parts = {COMPONENTS[code] for code in found.component.tolist()}
    assert not any(part.startswith(("attention.", "mlp.")) for part in parts)


def test_products_that_are_split_alike_are_not(tmp_path: Path) -> None:
    """A kernel behind each adds up what blocks in z have summed."""
    rows = [
        row for one in _layer(4, 4) * 4 for row in ([one, SPLIT] if one.grid and one.grid[2] == 4 else [one])
    ]
    found = attributed(tmp_path, written(rows, kernels_alone=True))[2]
    assert not any(COMPONENTS[code].startswith("attention.") for code in found.component.tolist())
