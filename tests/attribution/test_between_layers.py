"""What stands between a layer and the next attention, row by row: masks, MLPs, another stream, positions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.attribution.rows import Row, attributed, mm, said_of, written
from tests.attribution.test_beside_cores import ALL, HEAD, OF_SCORES, _layers, _scores
from tests.attribution.test_parts import (
    ADD,
    ATTENTION,
    BATCH,
    CORE,
    HEADS,
    LENGTH,
    MLP,
    NORM,
    OUTPUT,
    OWN,
    QUERIES,
    STREAM,
    TOKENS,
    WIDTH,
    _batched,
    _core_of,
    _found,
    _row,
)
from tracelens.words import COMPONENTS


@pytest.mark.parametrize(("block", "masked"), [(ATTENTION, "attention.other"), (MLP, "mlp.other")])
def test_a_mask_of_rows_is_of_the_block_before(tmp_path: Path, block: list[Row], masked: str) -> None:
    """transformers models/timesfm/modeling_timesfm.py, TimesFmMLP: padded patches add nothing."""
    rows = [BATCH, LENGTH, 1]
    mask = [_row(masked, "rsub", rows), _row(masked, "mul", STREAM, rows)]
    ahead, behind = (mask if block is one else [] for one in (ATTENTION, MLP))
    _found(tmp_path, _layers([*ATTENTION, *ahead], [*MLP, *behind]))


def test_the_next_batch_behind_a_loss_is_memory(tmp_path: Path) -> None:
    """Forward after forward with a loss each, as in an evaluation: what is sent to the GPU is no loss."""
    sent = [replace(_row("memory", "copy_"), kernel=f"Memcpy {way}") for way in ("DtoH (D", "HtoD (P")]
    loss = [_row("loss", name, [TOKENS, 1000]) for name in ("_log_softmax", "nll_loss_forward")]
    lookup = _row("embedding", "embedding", [1000, WIDTH], [BATCH, LENGTH])
    forward = [lookup, *_layers(ATTENTION), NORM, mm("logits", TOKENS, 1000, WIDTH), *loss]
    _found(tmp_path, [*forward, *sent, *forward])


def _two(parts: tuple[str, str, str], taken: int, made: int, rows: int = TOKENS) -> list[Row]:
    """Two linear layers on all tokens, with an activation between."""
    up, bends, down = parts
    between = _row(bends, "relu", [BATCH, rows // BATCH, WIDTH])
    return [mm(up, rows, WIDTH, taken), between, mm(down, rows, made, WIDTH)]


@pytest.mark.parametrize("taken", [2 * WIDTH, WIDTH])
def test_an_mlp_between_layers(tmp_path: Path, taken: int) -> None:
    """transformers models/dab_detr/modeling_dab_detr.py, DabDetrMLP: of positions."""
    own = _two(("mlp.up", "mlp.activation", "mlp.down"), taken, WIDTH)
    _found(tmp_path, [*_layers(ATTENTION), *own, *_layers(ATTENTION)])


@pytest.mark.parametrize(("taken", "made"), [(64, WIDTH), (WIDTH, 2 * WIDTH), (WIDTH, 4)])
def test_what_widens_or_gives_no_stream_is_no_mlp(tmp_path: Path, taken: int, made: int) -> None:
    """As projectors and heads of boxes do: they are of other rows than the layers behind them."""
    beside = _two(("", "", ""), taken, made, 2 * TOKENS)
    _found(tmp_path, [*_layers(ATTENTION), *beside, *_layers(ATTENTION)])


def test_queries_of_content_and_of_position_are_summed(tmp_path: Path) -> None:
    """transformers models/dab_detr, DabDetrDecoderLayerSelfAttention: five products for three."""
    sums = 2 * [_row("attention.other", "add", STREAM, STREAM)]
    beside = mm("", TOKENS, WIDTH, WIDTH)
    attention = [NORM, beside, *5 * [OWN], *sums, CORE, OUTPUT]
    _found(tmp_path, _layers(attention)[:-1])


def test_narrow_layers_go_back_to_a_wider_stream(tmp_path: Path) -> None:
    """transformers models/mobilebert/modeling_mobilebert.py, OutputBottleneck, NoNorm."""
    wide, stream = 4 * WIDTH, [BATCH, LENGTH, 4 * WIDTH]
    back = [mm("mlp.down", TOKENS, wide, WIDTH), _row("residual", "add", stream, stream)]
    back += [_row("norm", name, stream, [wide]) for name in ("mul", "add")]
    into = [
        mm("", TOKENS, WIDTH, wide),
        _row("norm", "mul", STREAM, [WIDTH]),
        _row("norm", "add", STREAM, [WIDTH]),
    ]
    makes = [OWN, OWN, mm("attention.qkv", TOKENS, WIDTH, wide)]
    layer = [*into, *into, *makes, CORE, OUTPUT, ADD, *MLP, ADD, *into[1:], *back]
    words = [_row("embedding", "embedding", [1000, 64], [BATCH, LENGTH]), mm("", TOKENS, wide, 64)]
    _found(tmp_path, [*words, *4 * layer])


def test_patches_go_through_an_mlp_with_a_product_beside(tmp_path: Path) -> None:
    """transformers models/timesfm, TimesFmResidualBlock: the product beside runs last."""
    opens = [mm("mlp.up", TOKENS, WIDTH, 64), _row("mlp.activation", "silu", STREAM)]
    opens += [mm("mlp.down", TOKENS, WIDTH, WIDTH), mm("other", TOKENS, WIDTH, 64), ADD]
    _found(tmp_path, [*opens, *_layers(ATTENTION)])


def test_a_row_of_frequencies_is_of_the_positions_it_makes(tmp_path: Path) -> None:
    """transformers models/dab_detr, DabDetrSinePositionEmbedding: written out in many steps."""
    row, turned = [WIDTH], [BATCH, LENGTH, WIDTH]
    half = [BATCH, LENGTH, WIDTH // 2]
    steps = [
        _row("embedding", "div", row),
        *8 * [_row("embedding", "sub", row)],
        _row("embedding", "pow", row),
    ]
    waves = [
        _row("embedding", "div", turned, row),
        _row("embedding", "sin", half),
        _row("embedding", "cos", half),
    ]
    words = _row("embedding", "embedding", [1000, WIDTH], [BATCH, LENGTH])
    _found(tmp_path, [words, *steps, *waves, _row("embedding", "add", STREAM, STREAM), *_layers(ATTENTION)])


def test_a_gated_bias_of_distances_ahead_of_the_queries(tmp_path: Path) -> None:
    """transformers models/wavlm/modeling_wavlm.py: distances looked up, gated by each head's part of the
    stream, before torch's attention makes queries with a bias that is put together and cut again."""
    pairs, of_gate = [LENGTH, LENGTH], [BATCH, HEADS, LENGTH, 8]
    looked = [_row("attention.other", name, pairs) for name in ("sub", "abs", "lt", "log", "where")]
    looked += [_row("embedding", "embedding", [320, HEADS], pairs)]
    looked += [_row("attention.other", "repeat", [1, HEADS, *pairs])]
    gate = [mm("attention.other", TOKENS * HEADS, 8, HEAD), _row("attention.other", "sigmoid", of_gate)]
    bias = _row("attention.qkv", "cat", [[WIDTH], [WIDTH], [WIDTH]])
    core = [_scores("attention.scores"), _row("attention.softmax", "_softmax", [ALL, LENGTH, LENGTH])]
    core += [_batched("attention.values", ALL, LENGTH, HEAD, LENGTH)]
    layer = [*gate, bias, *3 * [OWN], *core, OUTPUT]
    norm = [ADD, NORM, *MLP, ADD, NORM]
    _found(tmp_path, [*looked, *3 * [*layer, *norm]])


def _shifted(shift: list[Row], back: list[Row]) -> list[Row]:
    """Attention in windows of 16 x 16 in maps of 32 x 32, shifted before and back behind it."""
    core = [_batched("attention.scores", ALL, LENGTH, LENGTH, HEAD)]
    core += [_row("attention.softmax", "_softmax", OF_SCORES)]
    core += [_batched("attention.values", ALL, LENGTH, HEAD, LENGTH)]
    return [NORM, *shift, QUERIES, *core, OUTPUT, *back]


@pytest.mark.parametrize("move", ["roll", "index_select"])
def test_windows_are_shifted_and_shifted_back(tmp_path: Path, move: str) -> None:
    """torchvision models/swin_transformer.py, shifted_window_attention; without a kernel for it torch takes
    by numbers that it makes."""
    numbers = [_row("attention.other", name, [LENGTH]) for name in ("add", "fmod")]
    moves = [*numbers * (move == "index_select"), _row("attention.other", move, STREAM, [LENGTH])]
    _found(tmp_path, _layers(_shifted(moves, moves)))


def test_a_table_of_distances_is_indexed_ahead_of_the_queries(tmp_path: Path) -> None:
    """torchvision models/swin_transformer.py, get_relative_position_bias."""
    looked = [_row("attention.other", "index", [169, HEADS])]
    looked += [_row("attention.other", "copy_", [HEADS, LENGTH, LENGTH])]
    _found(tmp_path, _layers(_shifted(looked, [])))


def test_a_bias_without_its_middle_is_of_the_queries(tmp_path: Path) -> None:
    """torchvision models/swin_transformer.py, ShiftedWindowAttentionV2: keys have none."""
    bias = [_row("attention.qkv", "copy_", [3 * WIDTH]), _row("attention.qkv", "zero_", [WIDTH])]
    _found(tmp_path, _layers(_shifted(bias, [])))


def test_what_bends_a_bias_between_its_products(tmp_path: Path) -> None:
    """torchvision models/swin_transformer.py, cpb_mlp: ahead of the queries; a stage begins with another
    product, which makes no part of it."""
    pairs = 15 * 15
    bias = [mm("attention.other", pairs, 512, 2), _row("attention.other", "relu_", [pairs, 512])]
    bias += [mm("attention.other", pairs, HEADS, 512)]
    halved = [mm("embedding", TOKENS, WIDTH, 2 * WIDTH)]
    _found(tmp_path, [*halved, *_layers(_shifted(bias, []))])


def test_samples_that_attend_one_behind_the_other(tmp_path: Path) -> None:
    """transformers models/qwen3_vl/modeling_qwen3_vl.py, Qwen3VLVisionAttention, attention written out."""
    of_one, scores = [1, LENGTH, HEADS, HEAD], [1, HEADS, LENGTH, LENGTH]
    one = [*_core_of(scores), _row("attention.other", "copy_", of_one)]
    _found(tmp_path, _layers([NORM, QUERIES, *4 * one, OUTPUT]))


def test_positions_are_read_by_a_product_with_rows_of_one_1(tmp_path: Path) -> None:
    """timm models/gemma4_vit.py, patch embedding: rotated besides, and clipped before the first queries."""
    places, ones = 4 * WIDTH, [BATCH, LENGTH, 4 * WIDTH]
    opens = [mm("embedding", TOKENS, WIDTH, WIDTH), _row("embedding", "one_hot", [BATCH, LENGTH])]
    opens += [_row("embedding", "copy_", ones), _batched("embedding", BATCH, LENGTH, WIDTH, places)]
    opens += [_row("embedding", "add", STREAM, STREAM), NORM, _row("attention.other", "clamp", STREAM)]
    first = [QUERIES, CORE, OUTPUT, ADD, *MLP, ADD]
    _found(tmp_path, [*opens, *first, *_layers(ATTENTION)])


def test_heads_of_complex_numbers_turn_before_the_core(tmp_path: Path) -> None:
    """Llama's own code (llama/model.py of meta-llama/llama), with a mean that is logged ahead of it."""
    head, half, turn = [2, 128, 4, 16], [2, 128, 4, 8], [1, 128, 1, 8]
    wide, cast = [2, 128, 64], "direct_copy_kernel_cuda"
    turns = [Row("attention.rope", "aten::copy_", cast, (head, head))] * 2
    turns += [Row("attention.rope", "aten::mul", "elementwise_kernel", (half, turn))] * 2 + turns
    layer = [
        Row("norm", "aten::_fused_rms_norm", "vectorized_layer_norm_kernel", (wide, [], [64], [])),
        *(mm("attention.qkv", 256, 64, 64) for _ in range(3)),
        Row("attention.other", "aten::abs", "AbsFunctor", (head,)),
        Row("attention.other", "aten::mean", "MeanOps", (head,)),
        *turns,
        Row("attention.core", "aten::_flash_attention_forward", "flash_fwd_kernel", (head,) * 3),
        mm("attention.output", 256, 64, 64),
        Row("residual", "aten::add", "CUDAFunctor_add", (wide, wide)),
        Row("norm", "aten::_fused_rms_norm", "vectorized_layer_norm_kernel", (wide, [], [64], [])),
        mm("mlp.up", 256, 256, 64),
        Row("mlp.activation", "aten::gelu", "GeluCUDAKernel", ([2, 128, 256],)),
        mm("mlp.down", 256, 64, 256),
        Row("residual", "aten::add", "CUDAFunctor_add", (wide, wide)),
    ]
    rows = layer * 3
    events = written(rows)
    for event in events:
        if event["name"] == "aten::mul":
            event["args"]["Input type"] = ["c10::complex<float>"] * 2
        elif event["name"] == "aten::copy_":
            event["args"]["Input type"] = ["float", "c10::BFloat16"]
    _, _, found = attributed(tmp_path, events)
    said = [COMPONENTS[code] for code in found.component.tolist()]
    turned = [one for one, row in zip(said, rows, strict=True) if row.right == "attention.rope"]
    assert turned == ["attention.rope"] * len(turned)
    assert not [one for one, row in zip(said, rows, strict=True) if row.op == "aten::mean" and one == "norm"]


def _of_range(inside: str, mlp: list[Row], last: str) -> list[Row]:
    """Attention in a range, and an MLP in one of its own, whose ``last`` sum is inside of it."""
    wide, head = [2, 128, 64], [2, 128, 4, 16]
    rows = [
        Row("norm", "aten::_fused_rms_norm", "layer_norm_kernel", (wide, [], [64], [])),
        *mlp,
        Row(last, "aten::add", "CUDAFunctor_add", (wide, wide)),
    ]
    return [
        *(mm("attention.qkv", 256, 64, 64, inside="Attention") for _ in range(3)),
        Row("", "aten::_flash_attention_forward", "flash_fwd_kernel", (head,) * 3, inside="Attention"),
        mm("attention.output", 256, 64, 64, inside="Attention"),
        *(replace(row, inside=inside) for row in rows),
    ]


_GELU = Row("mlp.activation", "aten::gelu", "GeluCUDAKernel", ([2, 128, 256],))
_PLAIN = [mm("mlp.up", 256, 256, 64), _GELU, mm("mlp.down", 256, 64, 256)]


def test_a_range_around_an_mlp_and_its_sum_is_of_both(tmp_path: Path) -> None:
    """``record_function("FFN")`` around a normalization, the MLP and what adds it to the stream."""
    assert said_of(tmp_path, _of_range("FFN", _PLAIN, "residual"))[-1] == "residual"


@pytest.mark.parametrize(
    "mlp",
    [
        [*_PLAIN, mm("mlp.down", 256, 8, 256), mm("mlp.down", 256, 64, 8)],
        [mm("", 256, 8, 64), Row("", "aten::topk", "gatherTopK", ([256, 8],)), *_PLAIN],
    ],
    ids=["adapter", "shared expert"],
)
def test_what_else_an_mlp_adds_up_in_its_range_is_no_sum_of_the_stream(
    mlp: list[Row], tmp_path: Path
) -> None:
    """peft tuners/lora on the second product; the results of experts and of one that all tokens take."""
    assert said_of(tmp_path, _of_range("mlp", mlp, ""))[-1] != "residual"
