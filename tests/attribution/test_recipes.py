"""Training steps around known models (benchmarks/libraries/recipes.py), row by row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.attribution.rows import Row, mm
from tests.attribution.test_beside_cores import _convolution
from tests.attribution.test_names import decided, situation
from tests.attribution.test_parts import (
    ADD,
    ATTENTION,
    BATCH,
    LENGTH,
    MLP,
    NORM,
    STREAM,
    TOKENS,
    WIDTH,
    _found,
    _row,
)
from tracelens.attribution.components import decide
from tracelens.attribution.names import element_role

WORDS = 64 * WIDTH
TABLE = [WORDS, WIDTH]
LOOKUP = Row("embedding", "aten::embedding", "void vectorized_gather_kernel", (TABLE, [BATCH, LENGTH]))
LAYERS = [*2 * [*ATTENTION, ADD, *MLP, ADD], NORM]
HEAD, LOGITS = mm("logits", TOKENS, WORDS, WIDTH), [BATCH, LENGTH, WORDS]


def test_a_network_of_convolutions_behind_the_head_is_no_loss(tmp_path: Path) -> None:
    """deit/losses.py, DistillationLoss: the teacher runs between the student's logits and the loss."""
    maps, weight = [BATCH, 64, 56, 56], [64, 64, 3, 3]
    block = [_convolution("other", maps, weight), _row("other", "relu_", maps)]
    loss = _row("loss", "cross_entropy_loss", [BATCH, 1000])
    classes = mm("logits", BATCH, 1000, WIDTH)
    _found(tmp_path, [*LAYERS, classes, *3 * block, mm("logits", BATCH, 1000, 64), loss])


def test_a_model_that_a_loss_runs_is_none() -> None:
    """sentence_transformers losses/MultipleNegativesRankingLoss.py: the model is a module of its loss."""
    path = situation("MultipleNegativesRankingLoss.MPNetEncoder", inner="copy").path
    inside = decide(replace(situation(""), path=path, inner=None, outer=None))
    assert inside is None or inside.component != "loss"
    assert decided(replace(situation("MultipleNegativesRankingLoss"), inner=None, outer=None)) == "loss"


@pytest.mark.parametrize("kind", ["SVDLinear", "Linear4bit", "ColumnParallelLinear"])
def test_what_a_module_of_one_product_adds_is_no_residual(kind: str) -> None:
    """peft tuners/adalora/layer.py; bitsandbytes; Megatron-LM."""
    where = replace(situation(f"layers.0.mlp.{kind}", inner="add"), residual=True)
    assert decided(where) == "mlp.other"


@pytest.mark.parametrize(
    ("text", "role"),
    [("CrossAttnDownBlock2D", None), ("CrossAttnUpBlock2D", None), ("CrossAttnProcessor", "attention")],
)
def test_a_stage_that_is_called_after_its_attention_is_none(text: str, role: str | None) -> None:
    assert element_role(text) == role


def test_what_is_made_of_logits_is_no_position_of_the_next_pass(tmp_path: Path) -> None:
    """sentence_transformers models/SpladePooling.py: the largest logarithm of each word."""
    pools = [_row("loss", name, LOGITS) for name in ("relu", "log1p")]
    loss = _row("loss", "cross_entropy_loss", [BATCH, BATCH])
    _found(tmp_path, [*2 * [LOOKUP, *LAYERS, HEAD, *pools], loss])


def test_a_mean_of_tokens_before_the_next_pass_is_no_residual(tmp_path: Path) -> None:
    """sentence_transformers models/Pooling.py: tokens times their mask, summed."""
    pools = [_row("", "mul", STREAM, STREAM), _row("", "sum", STREAM)]
    positions = _row("embedding", "add", STREAM, STREAM)
    _found(tmp_path, 2 * [LOOKUP, positions, *LAYERS, *pools])


def test_a_map_that_is_padded_for_its_convolution_is_laid_out_for_no_heads(tmp_path: Path) -> None:
    """diffusers models/downsampling.py, Downsample2D of an autoencoder, ahead of a text encoder."""
    maps = [BATCH, 64, LENGTH, LENGTH]
    convolves = _convolution("other", maps, [64, 64, 3, 3])
    copies = [_row(right, "copy_", maps, maps) for right in ("", "other")]
    _found(tmp_path, [copies[0], convolves, copies[1], convolves, LOOKUP, *LAYERS])


@pytest.mark.parametrize(
    ("count", "names"), [(12, ("mul_", "mul", "add_")), (2, ("mul_", "mul", "add_")), (24, ("mul_", "mul_"))]
)
def test_what_scales_and_adds_one_weight_after_another_is_an_average_of_them(
    tmp_path: Path, count: int, names: tuple[str, ...]
) -> None:
    """dino/main_dino.py: param_k.data.mul_(m).add_((1 - m) * param_q.detach().data), without a range.

    Gradients that are clipped one by one (torch/nn/utils/clip_grad.py, foreach=False) are scaled alone.
    """
    sizes = [[WIDTH, WIDTH], [WIDTH], [4 * WIDTH, WIDTH], [4 * WIDTH]]
    right = "optimizer" if count == 12 else "loss"
    each = [[_row(right, name, size, size) for name in names] for size in sizes]
    average = [row for at in range(count) for row in each[at % len(each)]]
    loss = _row("loss", "cross_entropy_loss", LOGITS)
    _found(tmp_path, [LOOKUP, *LAYERS, HEAD, loss, *average])
