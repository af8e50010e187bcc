"""What is said of well-known models: published answers found, nothing contradicted, refusals with a reason.

All of them on eight GPUs: ``python -m benchmarks.known_models``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from benchmarks.known_models import ALIGNMENT_KNOWN, GPUS, configuration, configurations, contradictions
from tests.said import Listener
from tracelens.config import read_config
from tracelens.errors import InputError
from tracelens.hardware import list_gpus
from tracelens.results.suggestions import Suggestions
from tracelens.suggestions import suggest


@cache
def _said(name: str, gpu: str) -> Suggestions:
    return suggest(configuration(name), gpu=gpu)


#: Model, GPU, what has to be among the changes of the picks (size -> values that are right); {} for no pick.
ANSWERS: list[tuple[str, str, dict[str, set[int]]]] = [
    # arXiv 2401.14489, Figure 1: 2.7B with 32 heads of 80 is slower than with 40 (C2) or 20
    ("gpt3-2.7b", "a100-sxm-80gb", {"heads": {20, 40}, "vocab": {50304}}),
    ("gpt3-2.7b", "h100-sxm", {"heads": {20, 40}, "vocab": {50304}}),
    ("gpt3-2.7b", "h200", {"heads": {20, 40}, "vocab": {50304}}),
    ("pythia-2.8b", "a100-sxm-80gb", {"heads": {20, 40}}),
    ("opt-2.7b", "h100-sxm", {"heads": {20, 40}}),
    ("phi-2", "a100-sxm-80gb", {"heads": {20, 40}}),
    # nanoGPT: 50257 to 50304
    ("gpt2", "a100-sxm-80gb", {"vocab": {50304}}),
    ("gpt2", "h100-sxm", {"vocab": {50304}}),
    ("gpt2-xl", "a100-sxm-80gb", {"vocab": {50304}}),
    ("gpt-neo-2.7b", "h100-sxm", {"vocab": {50304}}),
    ("bert-base", "h100-sxm", {"vocab": {30528, 30592}}),
    ("roberta-base", "a100-sxm-80gb", {"vocab": {50304}}),
    ("granite-3-8b", "h100-sxm", {"vocab": {49216, 49280}}),
    # heads of 100 run as 128
    ("open-llama-3b", "h100-sxm", {"heads": {40, 20}}),
    # cuDNN runs heads of 96 as 128: 647 and 696 us backward, benchmarks/gpu/results/h100-sxm
    ("gpt-neox-20b", "h100-sxm", {"heads": {48}}),
    # made for these GPUs, with heads of 64 or 128 and sizes on every grid
    ("llama-7b", "a100-sxm-80gb", {}),
    ("llama-2-70b", "h100-sxm", {}),
    ("llama-3-8b", "h200", {}),
    ("llama-3.2-1b", "rtx-4090", {}),
    ("mistral-7b", "b200", {}),
    ("qwen2.5-7b", "h100-sxm", {}),
    ("qwen3-8b", "l40s", {}),
    ("mixtral-8x7b", "h100-sxm", {}),
    ("falcon-7b", "h200", {}),
    # heads of 80 run as 128, those of 72 as well; heads of 64 stay as good as others within a few percent
    ("vit-huge", "h100-sxm", {"heads": {20}}),
    ("siglip-so400m", "h100-sxm", {"heads": {12, 18}}),
    # FlashAttention-3 is faster with heads of 256 than of 128
    ("gemma-7b", "h100-sxm", {}),
]


@pytest.mark.parametrize(("name", "gpu", "wanted"), ANSWERS)
def test_the_published_answer_is_found(name: str, gpu: str, wanted: dict[str, set[int]]) -> None:
    found = _said(name, gpu)
    assert list(contradictions(found)) == []
    for size, values in wanted.items():
        assert any((pick.change.get(size) or [0, 0])[1] in values for pick in found.picks), found.verdict
    if not wanted:
        assert found.picks == []


def test_a_contradiction_would_be_seen() -> None:
    """The checks of the table above on an answer that is wrong in each way."""
    good = _said("gpt3-2.7b", "h100-sxm")
    (pick, *_), sizes = good.picks, good.sizes

    def wrong(change: dict[str, list[int | None]]) -> list[str]:
        return list(contradictions(replace(good, picks=[replace(pick, change=change), good.picks[1]])))

    assert wrong({"heads": [32, 25], "kv_heads": [32, 25], "head_dim": [80, 128]})
    assert wrong({"heads": [32, 64], "kv_heads": [32, 64], "head_dim": [80, 40]})
    assert wrong({"vocab": [50257, 50240]})
    assert wrong({"heads": [32, 20], "kv_heads": [32, 10], "head_dim": [80, 128]})
    assert list(contradictions(replace(good, picks=[])))
    assert list(contradictions(replace(good, verdict="already good", would_fit=[])))
    assert sizes["vocab"].value == 50257 and "h100-sxm" in ALIGNMENT_KNOWN


def test_there_are_eighty_models_and_eight_gpus() -> None:
    assert len(configurations()) >= 80
    assert len(GPUS) == 8 and set(GPUS) <= {gpu.name for gpu in list_gpus()}
    for name in configurations():
        weights = configuration(name).model.parameters
        assert weights is not None and weights > 2e7


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"model_type": "t5gemma2", "d_model": 512}, "an encoder and a decoder"),
        ({"model_type": "mamba", "hidden_size": 768}, "state-space layers"),
        ({"model_type": "swin", "embed_dim": 96}, "stages of changing width"),
        (
            {"model_type": "clip", "text_config": {"model_type": "clip_text_model"}},
            "a tower of text beside one",
        ),
        ({"model_type": "albert", "hidden_size": 768}, "share weights"),
        # Types that are not known here, by what such layers have in the file.
        ({"model_type": "plamo2", "hidden_size": 4096, "mamba_d_state": 64}, "state-space layers"),
        ({"model_type": "opt", "hidden_size": 1024, "word_embed_proj_dim": 512}, "a factored embedding"),
        ({"model_type": "nemotron-nas", "hidden_size": 8192, "block_configs": []}, "differ from one another"),
        ({"model_type": "zebra", "hidden_size": 768, "is_encoder_decoder": True}, "an encoder and a decoder"),
        ({"model_type": "zebra", "hidden_size": 768, "patch_size": 16}, "images in place of"),
        ({"model_type": "qwen3", "layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ({"model_type": "zebra", "kv_lora_rank": 512}, "latent attention"),
        ({"model_type": "zebra", "index_topk_blocks": 16}, "an indexer picks"),
        ({"model_type": "zebra", "attn_output_gate": True}, "a gate on what attention gives"),
        ({"model_type": "afmoe", "hidden_size": 2048}, "a gate on what attention gives"),
        ({"model_type": "granitemoehybrid", "hidden_size": 2048}, "state-space layers"),
        ({"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"]}, "state-space layers"),
        ({"model_type": "zebra", "num_experts": 8}, "as Megatron-LM arguments"),
    ],
)
def test_what_is_not_modelled_is_refused_with_its_reason(
    tmp_path: Path, table: dict[str, object], says: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(table))
    with pytest.raises(InputError, match=says):
        read_config(path, gated=True)


_LING = {
    "model_type": "bailing_moe", "hidden_size": 4096, "intermediate_size": 9216, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 32, "moe_intermediate_size": 1024,
    "num_experts": 256, "num_experts_per_tok": 8, "num_shared_experts": 1, "first_k_dense_replace": 1,
    "vocab_size": 157184, "tie_word_embeddings": False,
}  # fmt: skip
_CODER = {
    "model_type": "qwen3_moe", "hidden_size": 6144, "intermediate_size": 8192, "num_attention_heads": 96,
    "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 62, "moe_intermediate_size": 2560,
    "num_experts": 160, "num_experts_per_tok": 8, "shared_expert_intermediate_size": 0, "vocab_size": 151936,
    "tie_word_embeddings": False, "decoder_sparse_step": 1,
}  # fmt: skip
_HUNYUAN = {
    "model_type": "hunyuan_v1_moe", "hidden_size": 4096, "intermediate_size": 3072, "num_experts": 64,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "moe_topk": [8] * 32,
    "num_shared_expert": [1] * 32, "moe_intermediate_size": [3072] * 32, "vocab_size": 128167,
    "tie_word_embeddings": True,
}  # fmt: skip
_GRANITE = {
    "model_type": "granitemoehybrid", "hidden_size": 2560, "intermediate_size": 1024, "num_local_experts": 0,
    "shared_intermediate_size": 8192, "num_attention_heads": 40, "num_key_value_heads": 8,
    "num_hidden_layers": 40, "layer_types": ["attention"] * 40, "mamba_n_heads": 128, "vocab_size": 100352,
    "num_experts_per_tok": 0, "tie_word_embeddings": True,
}  # fmt: skip
_GEMMA = {
    "model_type": "gemma3",
    "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
                    "num_hidden_layers": 34, "sliding_window": 1024},
    "vision_config": {"model_type": "siglip_vision_model", "patch_size": 14},
}  # fmt: skip


@pytest.mark.parametrize(
    ("table", "weights", "heads", "shared"),
    [
        (_LING, 103e9, (32, 4), 1024),  # Ling-flash-2.0
        (_CODER, 480e9, (96, 8), None),  # Qwen3-Coder-480B-A35B: no shared expert, written as 0
        (_HUNYUAN, 80.4e9, (32, 8), 3072),  # Hunyuan-A13B: sizes of each layer, all the same
        (_GRANITE, 3.4e9, (40, 8), None),  # Granite 4.0 Micro: no experts, no state-space layers
        (_GEMMA, 3.88e9, (8, 4), None),  # Gemma 3 4B: what is transformers' default is not in its file
    ],
)
def test_the_weights_are_those_published(
    tmp_path: Path, table: dict[str, object], weights: float, heads: tuple[int, int], shared: int | None
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(table))
    found = read_config(path).model
    assert found.parameters == pytest.approx(weights, rel=0.01)
    assert (found.heads, found.kv_heads, found.shared_ffn) == (*heads, shared)


def test_llama_4_has_a_shared_expert_layers_in_turn_and_chunks(tmp_path: Path, said: Listener) -> None:
    """Maverick, as its config.json has it: 400 billion weights."""
    text = {
        "model_type": "llama4_text", "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8,
        "head_dim": 128, "num_hidden_layers": 48, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "interleave_moe_layer_step": 2, "num_local_experts": 128, "num_experts_per_tok": 1,
        "vocab_size": 202048, "attention_chunk_size": 8192, "max_position_embeddings": 1048576,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama4", "text_config": text, "vision_config": {}}))
    found = read_config(path, tied=False).model
    assert (found.dense_layers, found.dense_ffn, found.shared_ffn) == (24, 16384, 8192)
    assert (found.parameters or 0) == pytest.approx(400e9, rel=0.01)
    with pytest.raises(InputError) as error:
        read_config(path, overrides={"sequence": 16384})
    said(error.value)
