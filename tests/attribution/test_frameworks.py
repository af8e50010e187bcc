"""Models as megatron-core and torchtitan write them (benchmarks/frameworks), with names hidden and given."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.attribution.judging import judged

pytest.importorskip("torch")

from benchmarks.attribution_zoo import judge
from benchmarks.frameworks.shipped import NAMES, shipped
from benchmarks.frameworks.truth import truth_of
from benchmarks.hub.truth import Place

#: model, why it is here, and the least that is right with names hidden and given
MODELS = (
    ("megatron/gpt", "products inside autograd functions, an unfused core of baddbmm and bmm", 0.995, 0.999),
    ("megatron/deepseek_v3", "latent attention, a router in more bits, experts one by one", 0.99, 0.999),
    ("megatron/t5", "attention to another sequence, its keys and values in one product", 0.99, 0.999),
    ("torchtitan/qwen3", "attention of samples of any length, complex rotations", 0.98, 0.999),
    ("torchtitan/deepseek_mtp", "a second token ahead, and its loss", 0.98, 0.99),
    ("torchtitan/flux", "two streams, an MLP beside attention in one product", 0.97, 0.99),
)


@pytest.mark.parametrize(("name", "why", "hidden", "given"), MODELS)
def test_models_of_frameworks(tmp_path: Path, name: str, why: str, hidden: float, given: float) -> None:
    framework, _, _ = name.partition("/")
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    from benchmarks.frameworks.recording import record_framework

    judged(tmp_path, record_framework(name), why, hidden, given)


@pytest.mark.parametrize("name", NAMES)
def test_recordings_that_are_kept(tmp_path: Path, name: str) -> None:
    judged(tmp_path, shipped()[name], name, 0.98, 0.99)


# between head and loss another product
@pytest.mark.parametrize("name", sorted({*NAMES} - {"megatron/bert"}))
def test_recordings_that_are_kept_without_shapes(tmp_path: Path, name: str) -> None:
    score = judge(tmp_path, shipped()[name].trace("none", shapes=False))
    assert score.right >= 0.98, (name, score.what)
    assert score.wrong <= 0.005, (name, score.what)


@pytest.mark.parametrize("name", NAMES)
def test_ranges_say_as_much_as_modules(tmp_path: Path, name: str) -> None:
    score = judge(tmp_path, shipped()[name].trace("ranges"))
    assert score.right >= 0.99, (name, score.what)


_LAYER = ("TransformerLayer", "decoder.layers.0")
_BLOCK = ("Llama3TransformerBlock", "0")


@pytest.mark.parametrize(
    ("around", "modules", "function", "truth"),
    [
        (
            _LAYER,
            (("SelfAttention", "self_attention"), ("ColumnParallelLinear", "linear_qkv")),
            "LinearWithGradAccumulationAndAsyncCommunication",
            "attention.qkv",
        ),
        (
            _LAYER,
            (("MLASelfAttention", "self_attention"), ("ColumnParallelLinear", "linear_kv_up_proj")),
            "matmul",
            "attention.qkv",
        ),
        (_LAYER, (("DotProductAttention", "core_attention"),), "baddbmm", "attention.scores"),
        (_LAYER, (("MLP", "mlp"), ("RowParallelLinear", "linear_fc2")), "matmul", "mlp.down"),
        (
            _LAYER,
            (
                ("MoELayer", "mlp"),
                ("SequentialMLP", "experts"),
                ("MLP", "0"),
                ("RowParallelLinear", "linear_fc2"),
            ),
            "matmul",
            "moe.experts",
        ),
        (
            _LAYER,
            (("MoELayer", "mlp"), ("TopKRouter", "router")),
            "RouterGatingLinearFunction",
            "moe.router",
        ),
        (
            _BLOCK,
            (("GQAttention", "attention"), ("FusedQKVLinear", "qkv_linear"), ("Linear", "wqkv")),
            "linear",
            "attention.qkv",
        ),
        (_BLOCK, (("FeedForward", "feed_forward"), ("Linear", "w1")), "linear", "mlp.gate"),
        (
            _BLOCK,
            (("MoE", "moe"), ("FeedForward", "shared_experts"), ("Linear", "w2")),
            "linear",
            "moe.experts",
        ),
        (_BLOCK, (("GQAttention", "attention"), ("ComplexRoPE", "rope")), "mul", "attention.rope"),
    ],
)
def test_truth_follows_the_names_of_the_framework(
    around: tuple[str, str], modules: tuple[tuple[str, str], ...], function: str, truth: str
) -> None:
    classes, names = zip(around, *modules, strict=True)
    assert truth_of(Place(classes, names), function, weighted=True, equal=False).split()[0] == truth
