"""A mixture of experts by itself: what its ranges say counts, and no attention is made up of its products."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attribution.rows import Row, attributed, mm, verdict, written
from tracelens.words import COMPONENTS

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4>"
GEMM = "nvjet_sm103_tst_512x8_64x3_2x1_v_bz_NNT"


def _layer(*, ranges: bool) -> list[Row]:
    """512 tokens, 2 of 8 experts each, hidden 1024, width 2048; the range of AMD's MoE benchmarks."""
    moe = "MoE[experts=8, tokens=512, topk=2]" if ranges else ""
    choices, rows = [512, 2], [512, 2, 1024]
    return [
        mm("moe.router", 512, 8, 1024, inside=moe),
        Row("moe.router", "aten::topk", "void at::native::sbtopk::gatherTopK", ([512, 8],), 7, inside=moe),
        Row("moe.router", "aten::_softmax", "softmax_warp_forward", (choices,), 2, inside=moe),
        Row("moe.dispatch", "aten::copy_", ELEMENTWISE, (rows, rows), 5, inside=moe),
        Row("moe.experts", "aten::index", "vectorized_gather_kernel", ([8, 1024, 2048],), 500, inside=moe),
        Row("moe.experts", "aten::bmm", GEMM, ([1024, 1, 1024], [1024, 1024, 2048]), 600, inside=moe),
        Row("moe.experts", "aten::silu", ELEMENTWISE, ([1024, 2048],), 5, inside=moe),
        Row("moe.experts", "aten::bmm", GEMM, ([1024, 1, 2048], [1024, 2048, 1024]), 600, inside=moe),
        Row("moe.dispatch", "aten::mul", ELEMENTWISE, (rows, [512, 2, 1]), 5, inside=moe),
        Row("moe.dispatch", "aten::sum", "reduce_kernel", (rows,), 6, inside=moe),
    ]


@pytest.mark.parametrize("ranges", [True, False])
def test_experts_and_the_next_routers_softmax_are_no_attention(tmp_path: Path, ranges: bool) -> None:
    """Down projection, the softmax of the next layer's two chosen experts, up projection: no scores."""
    rows = _layer(ranges=ranges) * 4
    trace, _, found = attributed(tmp_path, written(rows))
    parts = {COMPONENTS[code] for code in found.component.tolist()}
    assert not any(part.startswith("attention.") for part in parts)
    right, wrong = verdict(rows, trace, found)
    assert wrong == {} and (right > 0.99 or not ranges)
    said = [COMPONENTS[code] for code in found.component.tolist()]
    moved = {one for one, row in zip(said, rows, strict=True) if row.right == "moe.dispatch"}
    assert moved == {"moe.dispatch" if ranges else "unattributed"}


@pytest.mark.parametrize(
    "between", [("relu", "pow"), ("abs", "amax", "div", "round")], ids=["squared", "rounded"]
)
def test_experts_in_a_batch_are_no_attention_without_a_softmax(
    tmp_path: Path, between: tuple[str, ...]
) -> None:
    """8 experts of 2048 columns: a squared ReLU, or rows scaled by their largest number and rounded."""
    wide, one = [8, 128, 2048], [8, 128, 1]
    dims = {"div": (one, []), "round": (wide, one)}
    inner = [Row("", f"aten::{name}", ELEMENTWISE, dims.get(name, (wide,)), 5) for name in between]
    up = Row("", "aten::bmm", GEMM, ([8, 128, 1024], [8, 1024, 2048]), 600)
    down = Row("", "aten::bmm", GEMM, ([8, 128, 2048], [8, 2048, 1024]), 600)
    moved = Row("", "aten::index_put", ELEMENTWISE, ([8, 128, 1024],), 5)
    rows = [
        mm("", 512, 8, 1024),
        Row("", "aten::topk", "gatherTopK", ([512, 8],), 7),
        moved,
        up,
        *inner,
        down,
    ]
    _, _, found = attributed(tmp_path, written(rows * 4))
    assert not found.transformer
    assert not any(COMPONENTS[code].startswith("attention.") for code in found.component.tolist())


def test_a_token_of_each_sequence_is_no_row_of_a_choice(tmp_path: Path) -> None:
    """One step of a decode: what weighs [batch, 1, hidden] beside the experts can be anything."""
    moe, token = "MoE", [512, 1, 1024]
    weighs = Row("", "aten::mul", ELEMENTWISE, (token, [512, 1, 1]), 5, inside=moe)
    _, _, found = attributed(tmp_path, written([*_layer(ranges=True), weighs]))
    assert COMPONENTS[found.component.tolist()[-1]] == "unattributed"
