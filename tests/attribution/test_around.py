"""Without shapes and without a repetition of layers: products of single attentions and MLPs, row by row."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attribution.rows import Row, mm, said_of
from tests.attribution.test_parts import ADD, CORE, DOWN, GELU, NORM, OUTPUT, OWN, QUERIES, UP, _row

OTHER, LINEAR = mm("unattributed", 64, 64, 64), mm("mlp.gate", 64, 64, 64)
ATTENTION = [NORM, QUERIES, CORE, OUTPUT, ADD]
MLP = [NORM, UP, GELU, DOWN, ADD]
GATED = [NORM, LINEAR, GELU, UP, _row("mlp.activation", "mul"), DOWN, ADD]
#: No attention and no MLP; how often it comes between two cores is different for each two.
RECURRENT = [NORM, OTHER, _row("", "cumprod"), OTHER, ADD]


def _reads(folder: Path, *layers: list[Row], ends: tuple[Row, ...] = ()) -> None:
    """Every product of the layers, behind a layer of another kind, is what it says."""
    rows = [
        _row("embedding", "embedding"),
        *RECURRENT,
        *(row for layer in layers for row in layer),
        NORM,
        *ends,
    ]
    said = said_of(folder, rows, shapes=False)
    places = [at for at, row in enumerate(rows) if row.op == "aten::mm"]
    assert [said[at] for at in places] == [rows[at].right for at in places]


@pytest.mark.parametrize("mlp", [MLP, GATED])
def test_single_blocks_of_a_hybrid_are_read(tmp_path: Path, mlp: list[Row]) -> None:
    """transformers models/nemotron_h: every layer is one block, in an order of its own."""
    _reads(tmp_path, ATTENTION, RECURRENT, mlp, mlp, RECURRENT, ATTENTION, mlp, *2 * [RECURRENT], ATTENTION)


def test_a_gate_of_the_output_runs_ahead_of_its_projection(tmp_path: Path) -> None:
    """transformers models/muse_glimmer, gate_proj: a sigmoid of it is multiplied with the heads."""
    gate = [mm("attention.other", 64, 64, 64), _row("", "sigmoid"), _row("", "mul")]
    gated = [NORM, *3 * [OWN], CORE, *gate, OUTPUT, ADD]
    _reads(tmp_path, gated, RECURRENT, RECURRENT, gated, MLP, gated)


@pytest.mark.parametrize(
    "block",
    [
        [NORM, OTHER, GELU, OTHER, NORM],  # a transform ahead of a head: nothing is added
        [OTHER, GELU, OTHER, ADD],  # of nothing that is normalized
        [NORM, *2 * [OTHER, GELU], OTHER, ADD],  # two activations
        [NORM, OTHER, _row("", "sigmoid"), _row("", "mul"), OTHER, ADD],  # the gate of a mixer (minimax)
        [NORM, OTHER, GELU, OTHER, _row("", "mul"), ADD, OTHER, ADD],  # another stream's projection behind
    ],
)
def test_what_is_no_mlp_stays_open(tmp_path: Path, block: list[Row]) -> None:
    _reads(tmp_path, ATTENTION, RECURRENT, block, RECURRENT, MLP, ATTENTION)


def test_a_head_is_scaled_and_capped_before_its_loss(tmp_path: Path) -> None:
    """transformers models/cohere2_moe (logit_scale), gemma2 (final_logit_softcapping)."""
    ends = [mm("logits", 64, 64, 64), *(_row("", name) for name in ("div", "tanh", "mul"))]
    loss = [_row("loss", name) for name in ("_log_softmax", "nll_loss_forward")]
    _reads(tmp_path, ATTENTION, RECURRENT, MLP, RECURRENT, ATTENTION, ends=(*ends, *loss))


@pytest.mark.parametrize("weighed", [False, True])
def test_a_norm_ends_before_a_rotation(tmp_path: Path, weighed: bool) -> None:
    """transformers models/embedding_gemma2, v_norm: no weight follows, but the cosine of queries does; where
    both products of a rotation follow what is negated, the one before is the weight's (diffusers)."""
    steps = [_row("norm", name) for name in ("copy_", "pow", "mean", "add", "rsqrt", "mul", "copy_")]
    turn = [_row("attention.rope", name) for name in ("mul", "neg", "cat", "mul", "add")]
    if weighed:
        steps, turn = [*steps, _row("norm", "mul")], [*turn[1:3], turn[0], *turn[3:]]
    rows = 4 * [NORM, QUERIES, *steps, *turn, CORE, OUTPUT, ADD, *MLP]
    said = said_of(tmp_path, rows, shapes=False)
    assert said[: len(rows) // 4] == [row.right for row in rows[: len(rows) // 4]]


def test_a_module_of_convolutions_is_no_mlp(tmp_path: Path) -> None:
    """transformers models/gemma3n, Gemma3nAudioConformerLightConv1d: bent, convolved, and bent again."""
    convolved = Row("other", "aten::convolution", "conv_depthwise2d_forward_kernel")
    module = [NORM, OTHER, _row("", "glu"), convolved, _row("", "silu"), OTHER, ADD]
    _reads(tmp_path, *3 * [ATTENTION, module, MLP])


def test_a_router_is_followed_by_a_choice(tmp_path: Path) -> None:
    """transformers models/openai_privacy_filter, whose experts no operator names; what is normalized behind
    them is of none."""
    router = [
        NORM,
        mm("moe.router", 64, 64, 64),
        *(_row("moe.router", name) for name in ("topk", "_softmax")),
    ]
    mixture = [*router, _row("moe.dispatch", "index"), ADD]
    layers = [ATTENTION, mixture, RECURRENT, ATTENTION, MLP, RECURRENT, RECURRENT, ATTENTION, mixture]
    _reads(tmp_path, *layers)
    rows = [_row("embedding", "embedding"), *(row for layer in layers for row in layer), NORM]
    said = said_of(tmp_path, rows, shapes=False)
    start = 1 + len(ATTENTION)
    assert said[start : start + len(mixture)] == [row.right for row in mixture]


def test_the_first_attention_takes_what_is_looked_up(tmp_path: Path) -> None:
    rows = [_row("embedding", "embedding"), _row("", "mul"), *ATTENTION, *RECURRENT, *MLP, *ATTENTION, NORM]
    said = said_of(tmp_path, rows, shapes=False)
    assert said[3] == "attention.qkv"


def test_layers_that_norm_what_they_give_take_the_sum_as_it_is(tmp_path: Path) -> None:
    """transformers models/olmo2: x + norm(attention(x)), x + norm(mlp(x))."""
    attention, mlp = [QUERIES, CORE, OUTPUT, NORM, ADD], [UP, GELU, DOWN, NORM, ADD]
    normed = [*MLP[:-1], NORM, ADD]
    other = RECURRENT[1:]  # takes a sum as it is, too
    _reads(
        tmp_path, ATTENTION, RECURRENT, normed, attention, mlp, mlp, attention, mlp, RECURRENT, GATED, other
    )


def test_the_first_product_behind_a_core_that_another_takes_is_the_output(tmp_path: Path) -> None:
    """transformers models/timesformer: attention over time has a linear layer of its own behind it; in
    models/cohere2_moe the router of a parallel block follows."""
    time = [NORM, QUERIES, CORE, OUTPUT, OTHER, ADD]
    _reads(tmp_path, time, RECURRENT, ATTENTION, MLP, RECURRENT, RECURRENT, time, MLP)


def test_what_is_normed_is_scaled_and_what_a_block_gives_is_weighed(tmp_path: Path) -> None:
    """DiT (arXiv 2212.09748): a linear layer makes the scales; in PixArt (2310.00426) another attention takes
    the weighed sum as it is."""
    makes, weighed = [_row("", "silu"), mm("other", 64, 64, 64)], [_row("", "mul"), ADD]
    attention = [*makes, NORM, QUERIES, CORE, OUTPUT, *weighed, *2 * [OWN], CORE, OUTPUT, ADD]
    mlp = [*makes, NORM, _row("", "mul"), UP, GELU, DOWN, *weighed, *makes]
    _reads(tmp_path, attention, mlp, RECURRENT, attention, mlp, RECURRENT, RECURRENT, mlp, attention)


def test_queries_of_layers_without_a_norm_ahead_take_the_sum_of_an_mlp(tmp_path: Path) -> None:
    """transformers models/olmo_hybrid: attention norms its queries and what it gives."""
    norms = [_row("norm", name) for name in ("copy_", "pow", "mean", "add", "rsqrt", "mul", "mul", "copy_")]
    attention = [OWN, *norms, OWN, *norms, OWN, CORE, OUTPUT, *norms, ADD]
    _reads(tmp_path, MLP, attention, RECURRENT, MLP, RECURRENT, RECURRENT, MLP, attention, MLP, attention)


def test_a_stream_that_is_added_to_another_makes_no_queries(tmp_path: Path) -> None:
    """TNT (arXiv 2103.00112): inner tokens through a linear layer onto the outer ones."""
    inner = [NORM, OTHER, ADD, _row("", "cat")]
    _reads(tmp_path, *4 * [ATTENTION, MLP, inner, ATTENTION, MLP])


def test_two_streams_attend_to_one_another(tmp_path: Path) -> None:
    """Stable Diffusion 3 (arXiv 2403.03206), as diffusers writes it: queries, keys and values of both are put
    one behind the other, and each has an output."""
    normed = [_row("norm", "rms_norm")]
    joined = [*6 * [OWN], *2 * normed, *3 * [_row("attention.other", "cat")], CORE]
    joint = [NORM, NORM, *joined, OUTPUT, OUTPUT, _row("residual", "mul"), ADD]
    _reads(tmp_path, joint, MLP, ATTENTION, MLP, joint, MLP, ATTENTION, RECURRENT, MLP, ATTENTION)


def test_a_stream_is_joined_by_that_of_an_earlier_layer(tmp_path: Path) -> None:
    """U-ViT (arXiv 2209.12152): both side by side, and a linear layer onto one."""
    skip = [_row("other", "cat"), mm("other", 64, 64, 64)]
    _reads(tmp_path, ATTENTION, MLP, ATTENTION, MLP, skip + ATTENTION, MLP, skip + ATTENTION, RECURRENT, MLP)


def test_what_gates_a_block_is_bent_before_its_result_is_normalized(tmp_path: Path) -> None:
    """Lumina-Next (arXiv 2406.18583): x + tanh(gate) * norm(block(norm(x) * (1 + scale)))."""
    steps = [_row("norm", name) for name in ("copy_", "pow", "mean", "add", "rsqrt", "mul", "copy_", "mul")]
    gated = [_row("", "tanh"), *steps, _row("residual", "mul"), ADD]
    attention, mlp = [*ATTENTION[:-1], *gated], [*GATED[:-1], *gated]
    _reads(tmp_path, attention, mlp, RECURRENT, attention, mlp, RECURRENT, RECURRENT, mlp, attention)


def test_a_time_and_what_is_made_of_it_stand_ahead_of_the_layers(tmp_path: Path) -> None:
    """Sines through an MLP (arXiv 2006.11239), classes that are dropped by chance (2207.12598), and scales of
    low rank with what all layers share (Cosmos)."""
    made = mm("embedding", 64, 64, 64)
    waves = [_row("embedding", name) for name in ("arange", "mul", "exp", "mul", "sin", "cos", "cat")]
    dropped = [_row("embedding", name) for name in ("rand", "lt", "where", "embedding")]
    times = [*waves, made, _row("embedding", "silu"), made, *dropped, ADD]
    low = [_row("other", "silu"), *2 * [mm("other", 64, 64, 64)], _row("other", "add"), _row("", "split")]
    attention = [*low, *ATTENTION]
    rows = [*times, *attention, *MLP, *RECURRENT, *attention, *MLP, *2 * RECURRENT, *attention]
    said = said_of(tmp_path, rows, shapes=False)
    named = ("embedding", "other", "attention.qkv", "mlp.down")
    assert [part for part, row in zip(said, rows, strict=True) if row.right in named] == [
        row.right for row in rows if row.right in named
    ]


@pytest.mark.parametrize("gated", [False, True])
def test_an_expert_of_all_tokens_behind_the_others_is_an_mlp(tmp_path: Path, gated: bool) -> None:
    """transformers models/nemotron_h, models/deepseek_v3: what it gives is added to what they gave."""
    grouped = Row("moe.experts", "aten::_grouped_mm", "cutlass::device_kernel<GemmUniversal>")
    router = [mm("moe.router", 64, 64, 64), *(_row("moe.router", name) for name in ("sigmoid", "topk"))]
    sends = [_row("moe.dispatch", name) for name in ("sort", "index")]
    back = [_row("moe.dispatch", name) for name in ("mul", "index_put_", "index", "sum")]
    shared = GATED[1:-1] if gated else MLP[1:-1]
    mixture = [
        NORM,
        *router,
        *sends,
        grouped,
        GELU,
        grouped,
        *back,
        *shared,
        _row("moe.dispatch", "add"),
        ADD,
    ]
    rows = [*ATTENTION, *RECURRENT, *mixture, *RECURRENT, *RECURRENT, *mixture, *ATTENTION, NORM]
    said = said_of(tmp_path, rows, shapes=False)
    start = len([*ATTENTION, *RECURRENT, *mixture]) - len(shared) - 2
    assert said[start : start + len(shared) + 2] == [row.right for row in mixture[-len(shared) - 2 :]]


def test_low_rank_adapters_beside_the_products_of_a_hybrid(tmp_path: Path) -> None:
    """peft tuners/lora on transformers models/qwen3_5: a result, and what two small products add to it."""

    def adapted(row: Row) -> list[Row]:
        beside = [mm(row.right, 64, 8, 64), mm(row.right, 64, 64, 8)]
        return [row, *beside, _row(row.right, "mul"), _row(row.right, "add")]

    attention = [NORM, *(row for _ in range(3) for row in adapted(OWN)), CORE, *adapted(OUTPUT), ADD]
    product = _row("mlp.activation", "mul")
    gated = [NORM, *adapted(LINEAR), GELU, *adapted(UP), product, *adapted(DOWN), ADD]
    _reads(tmp_path, attention, RECURRENT, gated, RECURRENT, RECURRENT, attention, gated, attention)


def test_four_products_with_a_norm_between_make_latent_queries_and_keys(tmp_path: Path) -> None:
    """transformers models/deepseek_v3: down, norm and up, twice."""
    latent = [NORM, OWN, NORM, OWN, OWN, NORM, OWN, CORE, OUTPUT, ADD]
    _reads(tmp_path, latent, RECURRENT, MLP, RECURRENT, RECURRENT, latent, MLP, latent)


def test_products_between_two_cores_that_nothing_is_added_ahead_of_are_queries(tmp_path: Path) -> None:
    """transformers models/canine: a sequence is attended to piece by piece, each with queries of its own; a
    list of heads, each with three linear layers, whose results are put side by side."""
    pieces = [NORM, *3 * [OWN], CORE, *3 * [OWN], CORE]
    heads = [*pieces, *3 * [OWN], CORE, _row("", "cat"), OUTPUT, ADD]
    _reads(tmp_path, MLP, RECURRENT, pieces, RECURRENT, heads, RECURRENT, MLP, pieces, RECURRENT, heads, MLP)
