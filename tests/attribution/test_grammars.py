"""Each grammar of single layers, on the fewest units that it rests on, and what is none."""

from __future__ import annotations

import pytest

from tracelens.attribution.structure.attention_grammars import DEFORMABLE, DEFORMABLE_ALONE
from tracelens.attribution.structure.grammar import Grammar, matches
from tracelens.attribution.structure.grammars import MIXERS, MIXTURES
from tracelens.attribution.structure.local import without_mixers
from tracelens.attribution.structure.part_grammars import CLIPPING, LONE_MLP
from tracelens.attribution.structure.runs import Run
from tracelens.attribution.structure.units import Dims, Kind
from tracelens.gemm import GemmShape

TOKENS, HIDDEN = 128, 256


def _gemm(n: int, k: int, m: int = TOKENS) -> Kind:
    return Kind("gemm", "linear", gemm=GemmShape(m, n, k, 1, None, None, None), tensors=((m, k), (n, k)))


def _unit(name: str, *tensors: Dims, what: str = "elementwise") -> Kind:
    return Kind(what, name, tensors=tensors)


def _found(kinds: list[Kind], *grammars: Grammar, shaped: bool = True) -> list[str | None]:
    if not shaped:
        kinds = [Kind(kind.what, kind.name, tags=kind.tags) for kind in kinds]
    components: dict[int, str] = {}
    for match in matches(Run("forward", [*range(len(kinds))], kinds), *grammars):
        components |= match.components
    return [components.get(at) for at in range(len(kinds))]


STREAM = ((2, 64, HIDDEN), (2, 64, HIDDEN))
SUM = _unit("add", *STREAM, what="add")
NORM = _unit("layer_norm", (2, 64, HIDDEN), (HIDDEN,), what="norm")
SILU = _unit("silu", (TOKENS, 1024), what="activation")
CONVOLUTION = _unit("conv1d", (2, 512, 64), (512, 1, 4), what="convolution")
#: state-spaces/mamba mamba_ssm/modules/mamba_simple.py: in_proj, conv1d, x_proj, dt_proj, scan, out_proj.
MAMBA = [
    *(_gemm(1024, HIDDEN), CONVOLUTION, _unit("silu", (2, 512, 64), what="activation")),
    *(_gemm(48, 512), _gemm(512, 16), _unit("exp", (2, 512, 64, 16)), _unit("mul", (2, 512, 64, 16))),
    _gemm(HIDDEN, 512),
]
OF_MAMBA = [
    *("ssm.projection", "ssm.conv", "ssm.conv", "ssm.projection", "ssm.projection", "ssm.scan", "ssm.scan"),
    "ssm.projection",
]


@pytest.mark.parametrize("shaped", [True, False])
def test_a_state_space_mixer_runs_from_the_stream_back_to_it(shaped: bool) -> None:
    assert _found([NORM, *MAMBA, SUM], *MIXERS, shaped=shaped) == [None, *OF_MAMBA, None]


def test_low_rank_adapters_stand_beside_the_products_of_a_mixer() -> None:
    """peft tuners/lora: x W + scale * (x A) B, where no shapes tell."""
    adapter = [_gemm(8, HIDDEN), _gemm(512, 8), _unit("mul", *STREAM[:1]), SUM]
    found = _found([NORM, MAMBA[0], *adapter, *MAMBA[1:], SUM], *MIXERS, shaped=False)
    assert found == [None, *5 * ["ssm.projection"], *OF_MAMBA[1:], None]


def test_queries_keys_and_values_are_convolved_together() -> None:
    """OlmoHybridGatedDeltaNet of transformers: three GEMMs side by side, none as wide as the convolution."""
    together = [_gemm(128, HIDDEN), _gemm(128, HIDDEN), _gemm(256, HIDDEN), _unit("cat", (2, 64, 512))]
    found = _found([NORM, *together, *MAMBA[1:], SUM], *MIXERS)
    assert found == [None, *["ssm.projection"] * 3, "ssm.scan", *OF_MAMBA[1:], None]


@pytest.mark.parametrize(
    "kinds",
    [
        [kind for kind in MAMBA if kind.name != "exp"],  # nothing decays
        [_gemm(256, HIDDEN), *MAMBA[1:]],  # narrower than the convolution
        [*MAMBA[:-1], _gemm(512, 512)],  # it does not come back
        [*MAMBA[:3], Kind("core", "attention"), *MAMBA[3:]],
        [*MAMBA[:6], _unit("topk", (TOKENS, 8), what="topk"), *MAMBA[6:]],  # of a router's exponentials
        [*MAMBA[:6], _unit("_grouped_mm", (256, HIDDEN)), *MAMBA[6:]],
        [MAMBA[0], NORM, *MAMBA[1:]],
        [MAMBA[0], _unit("conv2d", (2, 512, 8, 8), (512, 1, 3, 3), what="convolution"), *MAMBA[2:]],
        [
            MAMBA[0],
            _unit("conv1d", (2, 512, 64), (512, 1, 31), what="convolution"),
            *MAMBA[2:],
        ],  # Conformer's
    ],
)
def test_what_is_no_state_space_mixer(kinds: list[Kind]) -> None:
    assert not any(_found([*kinds, SUM], *MIXERS))


CAST = _unit("copy_", *STREAM, what="copy")


@pytest.mark.parametrize("cast", [[], [CAST]])
def test_a_short_convolution_joins_the_stream(cast: list[Kind]) -> None:
    """transformers models/inkling/modeling_inkling.py, InklingShortConvolution; of keys it is attention's."""
    turned = _unit("transpose", STREAM[0])
    own = _unit("conv1d", (2, HIDDEN, 64), (HIDDEN, 1, 4), what="convolution")
    kinds = [*cast, *([turned] if cast else []), own, _unit("slice", (2, HIDDEN, 67)), SUM]
    kinds += [_unit("div", STREAM[0]), *cast]
    assert _found([CAST, *kinds, SUM], *MIXERS) == [None if cast else "other", *["other"] * len(kinds), None]
    assert not any(_found([*kinds, NORM], *MIXERS))


def test_a_sum_with_a_bias_before_an_activation_is_no_way_back() -> None:
    kinds = [*MAMBA[:3], _gemm(48, 512), _unit("add", what="add"), SILU, *MAMBA[4:]]
    found = _found([*kinds, SUM], *MIXERS, shaped=False)
    assert found[-2] == "ssm.projection" and found[-1] is None


ROUTER = [
    _gemm(8, HIDDEN),
    _unit("softmax", (TOKENS, 8), what="softmax"),
    _unit("topk", (TOKENS, 8), what="topk"),
]
CHOSEN = _unit("div", (TOKENS, 2))
SORT = _unit("sort", (TOKENS * 2,), what="dispatch")
EXPERTS = [_unit("_grouped_mm", (256, HIDDEN)), SILU, _unit("_grouped_mm", (256, 1024))]
BACK = [_unit("index_copy_", (256, HIDDEN), what="dispatch"), _unit("mul"), _unit("sum")]


@pytest.mark.parametrize("shaped", [True, False])
def test_a_mixture_is_its_choice_its_ways_and_its_experts(shaped: bool) -> None:
    kinds = [NORM, *ROUTER, CHOSEN, SORT, *EXPERTS, *BACK, SUM]
    parts = ["moe.router"] * 4 + ["moe.dispatch"] + ["moe.experts"] * 3 + ["moe.dispatch"] * 3
    assert _found(kinds, *MIXTURES, shaped=shaped) == [None, *parts, None]


@pytest.mark.parametrize(
    ("kinds", "parts"),
    [
        (
            [_gemm(512, HIDDEN), *ROUTER[1:], SORT, *EXPERTS],
            [None] * 4 + ["moe.experts"] * 3,
        ),  # chosen among 8
        ([*ROUTER, SORT, _gemm(64, HIDDEN), *EXPERTS], ["moe.router"] * 3 + [None] * 2 + ["moe.experts"] * 3),
        ([*EXPERTS, _unit("mul"), _unit("sum")], ["moe.experts"] * 3 + [None] * 2),  # nothing was put back
        ([*EXPERTS, NORM, *BACK], ["moe.experts"] * 3 + [None] * 4),
        (ROUTER, [None] * 3),  # a choice without experts
    ],
)
def test_of_a_mixture_is_said_what_its_neighbours_show(kinds: list[Kind], parts: list[str | None]) -> None:
    assert _found(kinds, *MIXTURES) == parts


MLP = [_gemm(1024, HIDDEN), SILU, _unit("native_dropout", what="dropout"), _gemm(HIDDEN, 1024)]
OF_MLP = ["mlp.up", "mlp.activation", "dropout", "mlp.down"]


def test_a_lone_mlp_is_added_to_what_it_was_made_of() -> None:
    assert _found([*MLP, _unit("mul"), SUM], LONE_MLP) == [*OF_MLP, None, "residual"]


@pytest.mark.parametrize(
    "kinds",
    [
        MLP,  # never added
        [*MLP, _unit("add", (4, 64, HIDDEN), (4, 64, HIDDEN), what="add"), SUM],  # to something else
        [*MLP, *[_unit("mul")] * 7, SUM],  # too far away
        [MLP[0], MLP[3], SUM],  # without an activation
        [_gemm(128, HIDDEN), SILU, _gemm(HIDDEN, 128), SUM],  # down and up: an adapter
        [MLP[0], SILU, _gemm(HIDDEN, 1024, m=64), SUM],  # of other tokens
    ],
)
def test_what_is_no_lone_mlp(kinds: list[Kind]) -> None:
    assert not any(_found(kinds, LONE_MLP))
    assert not any(_found([*MLP, SUM], LONE_MLP, shaped=False))


def _deformable(points: int = 96, between: str = "softmax") -> list[Kind]:
    """Values, places and weights of 8 heads at 3 levels of 4 points, as RT-DETR has them."""
    read = [_unit("copy_", what="copy"), _unit("grid_sampler_2d")]
    made = [_gemm(HIDDEN, HIDDEN), _gemm(2 * 96, HIDDEN), _gemm(points, HIDDEN), _unit(between, what=between)]
    return [*made, *read, *read, _unit("mul"), _unit("sum"), _gemm(HIDDEN, HIDDEN)]


@pytest.mark.parametrize("shaped", [True, False])
def test_deformable_attention_reads_values_at_places_by_weights(shaped: bool) -> None:
    made = ["attention.qkv", "attention.other", "attention.other", "attention.softmax"]
    read = ["attention.other", "attention.values"] * 2
    wanted = [*made, *read, "attention.other", "attention.other", "attention.output"]
    assert _found(_deformable(), DEFORMABLE, shaped=shaped) == wanted


@pytest.mark.parametrize("shaped", [True, False])
def test_deformable_attention_can_read_the_stream_itself(shaped: bool) -> None:
    """transformers models/d_fine: nothing makes values, and nothing projects the result."""
    made = ["attention.other", "attention.other", "attention.softmax"]
    wanted = [None, *made, *["attention.other", "attention.values"] * 2, *["attention.values"] * 2, None]
    kinds = [NORM, *_deformable()[1:-1], SUM]
    assert _found(kinds, DEFORMABLE, DEFORMABLE_ALONE, shaped=shaped) == wanted


@pytest.mark.parametrize("kinds", [_deformable(points=64), _deformable(between="norm")])
def test_what_is_no_deformable_attention(kinds: list[Kind]) -> None:
    assert not any(_found(kinds, DEFORMABLE))


@pytest.mark.parametrize(
    ("names", "clips"),
    [
        (["linalg_vector_norm"] * 3 + ["stack", "linalg_vector_norm", "clamp", "mul_", "mul_"], True),
        (["_foreach_norm", "_foreach_mul_"], True),
        (["linalg_vector_norm", "clamp", "mul_"], False),  # of one gradient
        (["linalg_vector_norm"] * 3 + ["stack"], False),  # only logged
        (["linalg_vector_norm"] * 3 + ["stack", "exp", "mul_"], False),
    ],
)
def test_gradients_are_clipped_where_their_common_norm_scales_them(names: list[str], clips: bool) -> None:
    assert _found([_unit(name) for name in names], CLIPPING) == ["grad_clip" if clips else None] * len(names)


SCORES = Kind("bmm", "matmul")
#: transformers models/deepseek_v32/modeling_deepseek_v32.py, its Indexer, behind what makes the values.
INDEXER = [
    *(_gemm(512, 256), _unit("copy_", what="copy"), _gemm(512, 128), _gemm(64, HIDDEN), NORM),
    *(_unit("cat"), SCORES, _unit("relu", what="activation"), _gemm(8, HIDDEN), SCORES, _unit("topk")),
]
OF_INDEXER = [
    *(None, "attention.other", "attention.other", "attention.other", "norm", "attention.other"),
    *("attention.scores", "attention.other", "attention.other", "attention.scores", "attention.other"),
]


@pytest.mark.parametrize("shaped", [True, False])
def test_an_indexer_chooses_for_the_attention_behind_it(shaped: bool) -> None:
    assert _found([NORM, *INDEXER, SUM], *MIXERS, shaped=shaped) == [None, *OF_INDEXER, None]


def test_queries_of_an_indexer_can_have_a_norm_of_their_own() -> None:
    steps = [_unit("pow"), _unit("mean"), _unit("add", what="add"), _unit("rsqrt"), _unit("mul")]
    found = _found([*INDEXER[:1], *steps, *INDEXER[2:]], *MIXERS)
    assert found == [None, *["norm"] * 5, *OF_INDEXER[2:]]


@pytest.mark.parametrize("parts", [[NORM, SUM, *INDEXER[2:]], [*INDEXER, INDEXER[0], SUM]])
def test_a_sum_ends_what_stands_before_an_indexer(parts: list[Kind]) -> None:
    """The first of a layer has no products before it, and a run can end with a sum."""
    assert _found([_gemm(HIDDEN, 1024), *parts], *MIXERS).count("attention.scores") in (0, 2)
    assert _found([_gemm(HIDDEN, 1024), SUM, *INDEXER[2:]], *MIXERS) == [None] * 11


def test_a_batched_product_ahead_of_the_decays_makes_the_steps_inputs() -> None:
    """transformers models/zamba/modeling_zamba.py: x_proj and dt_proj of each head by itself."""
    makes = GemmShape(TOKENS, 48, 512, 8, None, None, None)
    bmm = Kind("bmm", "matmul", gemm=makes, tensors=((8, TOKENS, 512), (8, 512, 48)))
    moves = _unit("copy_", (8, TOKENS, 512), what="copy")
    found = _found([*MAMBA[:3], moves, bmm, *MAMBA[5:7], bmm, MAMBA[7], SUM], *MIXERS)
    wanted = [*OF_MAMBA[:3], *2 * ["ssm.projection"], *2 * ["ssm.scan"], "ssm.scan", "ssm.projection", None]
    assert found == wanted


def test_a_sum_that_is_normed_before_a_mixer_is_of_the_stream() -> None:
    """transformers models/zamba2/modeling_zamba2.py: a linear layer brings the shared layer's result."""
    written = [_unit("pow", *STREAM[:1]), _unit("mean", *STREAM[:1]), _unit("mul", *STREAM)]
    found = _found([_gemm(HIDDEN, HIDDEN), SUM, *written, *MAMBA, SUM], *MIXERS)
    assert found == ["ssm.projection", "residual", *3 * ["norm"], *OF_MAMBA, None]


def test_a_conformers_convolution_stands_between_linear_layers() -> None:
    """transformers models/gemma3n/modeling_gemma3n.py, Gemma3nAudioConformerLightConv1d."""
    deep = _unit("conv1d", (2, HIDDEN, 68), (HIDDEN, 1, 5), what="convolution")
    bends = _unit("silu", *STREAM[:1], what="activation")
    module = [_gemm(2 * HIDDEN, HIDDEN), _unit("glu", (2, 64, 2 * HIDDEN), what="activation"), deep]
    module += [_unit("clamp", *STREAM[:1]), NORM, bends, _gemm(HIDDEN, HIDDEN)]
    wanted: list[str | None] = ["other"] * 7
    wanted[4] = "norm"
    assert _found([NORM, *module, SUM], *MIXERS) == [None, *wanted, None]
    assert not any(_found([NORM, _gemm(HIDDEN, HIDDEN), *module[1:], SUM], *MIXERS))
    assert _found([NORM, *module, SUM], *MIXERS, shaped=False) == [
        None,
        *wanted,
        None,
    ]  # the gate's name tells
    assert not any(_found([NORM, module[0], *module[2:], SUM], *MIXERS, shaped=False))
    clips = _unit("clamp", *STREAM[:1])  # Gemma4ClippableLinear, transformers models/gemma4
    run = Run("forward", [*range(10)], [NORM, clips, *module, clips])
    without_mixers(run)
    assert [label.component for _, label in sorted(run.labels.items())] == ["other", *wanted, "other"]
    # twice as wide as the stream: transformers models/granite_speech5/modeling_granite_speech5.py
    deep = _unit("conv1d", (2, 2 * HIDDEN, 68), (2 * HIDDEN, 1, 5), what="convolution")
    module = [_gemm(4 * HIDDEN, HIDDEN), module[1], deep, bends, _gemm(HIDDEN, 2 * HIDDEN)]
    assert _found([NORM, *module, SUM], *MIXERS) == [None, *5 * ["other"], None]
