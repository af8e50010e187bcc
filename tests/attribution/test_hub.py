"""Architectures of transformers that nobody here wrote: with names hidden and given (benchmarks/hub)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.hub.truth import Place, truth_of
from benchmarks.vision.truth import truth_of as truth_of_vision

#: architecture, why it is here, and the least that is right with names hidden and given
ARCHITECTURES = (
    ("clip", "two towers of their own width", 0.99, 0.995),
    ("longformer", "attention over chunks that overlap", 0.97, 0.995),
    ("gpt_oss", "experts inside what is called an MLP", 0.99, 0.995),
    ("olmo2", "queries normalized over all heads, written out", 0.99, 0.995),
    ("bitnet", "normalizations inside attention and MLP", 0.99, 0.995),
    ("rembert", "a head of another width than the stream", 0.99, 0.995),
    ("bamba", "state-space mixers between layers of attention", 0.99, 0.995),
)


@pytest.mark.parametrize(("name", "why", "hidden", "given"), ARCHITECTURES)
def test_architectures_of_transformers(
    tmp_path: Path, name: str, why: str, hidden: float, given: float
) -> None:
    pytest.importorskip("transformers")
    from benchmarks.hub.recording import record_hub
    from tests.attribution.judging import judged

    judged(tmp_path, record_hub(name), why, hidden, given)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("esm", "a GELU that is written out stands between the products of an MLP"),
        ("apertus", "an activation that is made of two"),
        ("bitnet", "a normalization between the products of a gated MLP"),
        ("beit", "whole samples are dropped, by a number drawn for each"),
        ("qwen2_moe", "an expert of all tokens before the router, and its gate"),
        ("mamba", "a convolution over the sequence, and a scan that decays"),
        ("bamba", "the same between layers of attention"),
    ],
)
def test_without_shapes_order_tells_the_parts_of_a_layer(tmp_path: Path, name: str, why: str) -> None:
    pytest.importorskip("transformers")
    from benchmarks.attribution_zoo import judge
    from benchmarks.hub.recording import record_hub

    score = judge(tmp_path, record_hub(name).trace("none", shapes=False))
    assert score.right >= 0.97, (why, score.what)
    assert score.wrong <= 0.005, (why, score.what)


@pytest.mark.parametrize(
    ("classes", "names", "function", "truth"),
    [
        (("BertLayer", "BertSelfAttention", "Linear"), ("0", "self", "query"), "linear", "attention.qkv"),
        (("BertLayer", "BertIntermediate", "Linear"), ("0", "intermediate", "dense"), "linear", "mlp.up"),
        (("LlamaDecoderLayer", "LlamaMLP", "Linear"), ("0", "mlp", "gate_proj"), "linear", "mlp.gate"),
        (("JambaMambaDecoderLayer", "JambaMLP", "Linear"), ("0", "mlp", "up_proj"), "linear", "mlp.up"),
        (("JambaAttentionDecoderLayer", "JambaMLP", "Linear"), ("0", "mlp", "up_proj"), "linear", "mlp.up"),
        (("GroupViTCrossAttentionLayer", "GroupViTMLP", "Linear"), ("a", "mlp", "fc1"), "linear", "mlp.up"),
        (("JambaMambaMixer", "Linear"), ("mamba", "in_proj"), "linear", "ssm.projection"),
        (("BambaMixer",), ("mamba",), "conv1d", "ssm.conv"),
        (("FalconH1Mixer",), ("mamba",), "exp", "ssm.scan"),
        (("RecurrentGemmaForCausalLM", "Linear"), ("", "lm_head"), "linear", "logits"),
        (("RecurrentGemmaRecurrentBlock", "Linear"), ("t", "linear_x"), "linear", "ssm.projection"),
        (("Qwen3NextGatedDeltaNet",), ("linear_attn",), "cumsum", "ssm.scan"),
        (("Wav2Vec2FeatureProjection", "Linear"), ("p", "projection"), "linear", "embedding"),
        (
            ("RobertaPreLayerNormLayer", "RobertaSelfAttention", "Linear"),
            ("0", "self", "key"),
            "linear",
            "attention.qkv",
        ),
        (("HunYuanMoEV1Moe", "HunYuanMoEV1Gate", "Linear"), ("mlp", "gate", "wg"), "linear", "moe.router"),
        (("GptOssMLP", "GptOssExperts"), ("mlp", "experts"), "_grouped_mm", "moe.experts"),
    ],
)
def test_truth_follows_the_names_of_the_library(
    classes: tuple[str, ...], names: tuple[str, ...], function: str, truth: str
) -> None:
    found = truth_of(Place(classes, names), function, weighted=True, equal=False)
    assert found.split()[0] == truth


_VIT = (("VisionTransformer", "Block"), ("", "0"))


@pytest.mark.parametrize(
    ("classes", "names", "function", "truth"),
    [
        (("Attention", "Linear"), ("attn", "qkv"), "linear", "attention.qkv"),
        (("WindowAttention", "Linear"), ("attn", "proj"), "linear", "attention.output"),
        (("WindowAttention", "Mlp", "Linear"), ("attn", "cpb_mlp", "fc1"), "linear", "attention.other"),
        (("XCA", "Linear"), ("attn", "qkv"), "linear", "attention.qkv"),
        (("Mlp", "Linear"), ("mlp", "fc1"), "linear", "mlp.up"),
        (("SwiGLU", "Linear"), ("mlp", "fc1_g"), "linear", "mlp.gate"),
        (("FocalModulation", "Conv2d"), ("modulation", "f"), "conv2d", "other"),
        (("PartitionAttentionCl", "Mlp", "Linear"), ("attn_block", "mlp", "fc2"), "linear", "mlp.down"),
        (("BatchNormAct2d",), ("bn1",), "batch_norm", "norm"),
        (("DropPath",), ("drop_path1",), "mul", "dropout"),
    ],
)
def test_truth_of_vision_models_follows_the_names_of_their_library(
    classes: tuple[str, ...], names: tuple[str, ...], function: str, truth: str
) -> None:
    place = Place((*_VIT[0], *classes), (*_VIT[1], *names))
    assert truth_of_vision(place, function, weighted=True, equal=False).split()[0] == truth


@pytest.mark.parametrize(("name", "setup"), [("llama", "reentrant"), ("t5", "checkpointed")])
def test_checkpoints_without_shapes_are_what_the_forward_is(tmp_path: Path, name: str, setup: str) -> None:
    pytest.importorskip("transformers")
    from benchmarks.attribution_zoo import judge
    from benchmarks.setups import record_setup

    score = judge(tmp_path, record_setup(name, setup).trace("none", shapes=False))
    assert score.right >= 0.99, score.what
    assert score.wrong <= 0.005, score.what
