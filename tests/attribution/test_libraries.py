"""Models of six libraries that nobody here wrote (benchmarks/libraries), with names hidden and given."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.hub.truth import Place
from benchmarks.libraries.truth import truth_of
from tests.attribution.judging import judged

#: model, why it is here, and the least that is right with names hidden and given
MODELS = (
    ("litgpt/qwen3", "normalizations of x * x", 0.995, 0.999),
    ("torchtune/llama3_lora", "adapters that replace their module, queries turned before keys", 0.99, 0.999),
    ("x_transformers/glu_rotary", "rows by their length", 0.99, 0.999),
    ("diffusers/cogvideox", "two streams side by side, adaptive normalizations", 0.97, 0.999),
    ("diffusers/sana", "linear attention by sums", 0.98, 0.99),
)


@pytest.mark.parametrize(("name", "why", "hidden", "given"), MODELS)
def test_models_of_libraries(tmp_path: Path, name: str, why: str, hidden: float, given: float) -> None:
    library, _, _ = name.partition("/")
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    from benchmarks.libraries.recording import record_library

    judged(tmp_path, record_library(name), why, hidden, given)


@pytest.mark.parametrize(
    ("modules", "function", "truth"),
    [
        ("Block:0 LLaMAMLP:mlp Linear:fc_1", "linear", "mlp.gate"),
        ("Block:0 LLaMAMoE:mlp LLaMAMLP:0 Linear:fc_1", "linear", "moe.experts"),
        ("MultiHeadAttention:attn LoRALinear:q_proj Linear:lora_a", "linear", "attention.qkv"),
        ("VisionTransformer:clip FeedForward:mlp Linear:w1", "linear", "mlp.up"),
        ("Decoder:attn_layers FeedForward:0 Sequential:ff Sequential:0 Linear:0", "linear", "mlp.up"),
        ("Decoder:attn_layers FeedForward:0 Sequential:ff Linear:2", "linear", "mlp.down"),
        ("BasicTransformerBlock:0 Attention:attn1 Linear:0", "linear", "attention.output"),
        ("Attention:0 Sequential:to_out Linear:0", "linear", "attention.output"),
        ("Attention:0 Sequential:to_mix Linear:0", "linear", ""),
        ("JointTransformerBlock:0 AdaLayerNormZero:norm1 Linear:linear", "linear", "other"),
        ("LuminaLayerNormContinuous:norm_out Linear:linear_2", "linear", "logits"),
        ("TimestepEmbedding:timestep_embedder Linear:linear_1", "linear", "embedding"),
        ("ResidualAttentionBlock:0 Sequential:mlp Linear:c_proj", "linear", "mlp.down"),
        ("Attention:0 Attend:attend", "softmax", "attention.softmax"),
        ("CLIP: AttentionPool2d:attnpool", "linear", ""),
    ],
)
def test_truth_follows_the_names_of_the_library(modules: str, function: str, truth: str) -> None:
    classes, names = zip(*(module.split(":") for module in modules.split()), strict=True)
    found = truth_of(Place(("Model", *classes), ("", *names)), function, weighted=True, equal=False)
    assert found.split()[:1] == [truth][: bool(truth)]
