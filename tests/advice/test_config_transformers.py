"""Each family against transformers' own model: the same linear layers, the same weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.advice.configs import read
from tracelens.config.families import FAMILIES
from tracelens.step.planned_kernels import RankLinear, attention_linears, logits_linear, mlp_linears, stacks

#: Small, and every size another number, so that no two can be taken for one another.
_SMALL = {
    "hidden_size": 96, "n_embd": 96, "d_model": 96, "num_attention_heads": 6, "n_head": 6, "n_heads": 6,
    "num_heads": 6, "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2,
    "intermediate_size": 160, "ffn_dim": 160, "ffn_hidden_size": 160, "n_inner": 160, "vocab_size": 224,
    "max_position_embeddings": 64, "n_positions": 64, "max_seq_len": 64, "num_key_value_heads": 2,
    "head_dim": 24, "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 112, "shared_expert_intermediate_size": 144,
    "n_shared_experts": 1, "moe_num_experts": 4, "moe_k": 2, "dim": 96, "hidden_dim": 160,
    "attention_heads": 6, "intermediate_size_mlp": 176, "interleave_moe_layer_step": 2,
    "pad_token_id": 0, "word_embed_proj_dim": 96, "rotary_dim": 8,
    "attention_types": [[["global"], 2]],
    "shared_intermediate_size": 136, "mamba_n_heads": 24,
    "image_size": 28, "patch_size": 14, "mlp_ratio": 3,
    "d_kv": 24, "d_ff": 160, "num_decoder_layers": 3, "encoder_layers": 2, "decoder_layers": 3,
    "encoder_attention_heads": 6, "decoder_attention_heads": 6, "encoder_ffn_dim": 160,
    "decoder_ffn_dim": 160, "max_source_positions": 20, "max_target_positions": 12,
    "decoder_vocab_size": 224, "decoder_start_token_id": 1,
    "q_lora_rank": 56, "kv_lora_rank": 40, "qk_nope_head_dim": 20, "qk_rope_head_dim": 8, "v_head_dim": 22,
}  # fmt: skip
_OTHER_TYPE = {"gemma3": "gemma3_text", "llama4": "llama4_text", "mistral4": "mistral4"}
#: Code on the Hub; and language models of thinkers, which no AutoModel builds (weights compared by hand).
_NOT_BUILT = ("deepseek", "kimi_k2", "mimo", "bailing_moe", "qwen2_5_omni", "qwen3_omni_moe")
#: Language models of others, which transformers builds without logits.
_TEXT_ONLY = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "glm4v", "glm4v_moe", "mistral4")
#: Heads of these are all of one kind, or of a size that follows from hidden.
_NO_GQA = {"gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "mpt", "falcon"}
#: Beside the layers and the logits: heads of masked language models.
_NOT_LAYERS = ("predictions.transform", "lm_head.dense", "head.dense", "vocab_transform", "pooler",
               "patch_embed", "head.attention", "head.mlp", "head.probe", "cls_token", "mask_token",
               "distillation_token", "register_tokens", "contact_head")  # fmt: skip


def _model(kind: str) -> tuple[dict[str, Any], Any]:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    name = _OTHER_TYPE.get(kind, f"{kind}_text" if kind in _TEXT_ONLY else kind)
    known = transformers.AutoConfig.for_model(name).to_dict()
    maps = transformers.AutoConfig.for_model(name).attribute_map
    wanted = {key: value for key, value in _SMALL.items() if key in known or key in maps}
    if kind in _NO_GQA:
        wanted.pop("num_key_value_heads", None)
    if FAMILIES[kind].latent:
        wanted["num_key_value_heads"] = wanted["num_attention_heads"]
        wanted.pop("head_dim", None)
    if "layer_types" in known:
        wanted["layer_types"] = ["full_attention"] * 2
    if FAMILIES[kind].both:  # other names of what the encoder has
        wanted = {key: value for key, value in wanted.items() if key not in maps}
    config = transformers.AutoConfig.for_model(name, **wanted)
    if kind == "gpt_neo":
        config.attention_layers = ["global", "global"]
    build = (
        transformers.AutoModelForSpeechSeq2Seq
        if kind == "whisper"
        else transformers.AutoModelForSeq2SeqLM
        if FAMILIES[kind].both
        else transformers.AutoModel
        if kind in _TEXT_ONLY or FAMILIES[kind].patches is not None
        else transformers.AutoModelForCausalLM
        if FAMILIES[kind].causal
        else transformers.AutoModelForMaskedLM
    )
    with torch.device("meta"):
        return config.to_dict(), build.from_config(config)


def _linears(model: Any) -> Counter[tuple[int, int]]:
    """(in, out) of every linear layer, with how many there are."""
    found: Counter[tuple[int, int]] = Counter()
    for name, module in model.named_modules():
        if type(module).__name__ not in ("Linear", "Conv1D", "FalconLinear") or any(
            part in name for part in _NOT_LAYERS
        ):
            continue
        into, out = module.weight.shape[::-1]
        if type(module).__name__ == "Conv1D":
            into, out = out, into
        found[(into, out)] += 1
    return found


def _ours(linears: Sequence[RankLinear]) -> Counter[tuple[int, int]]:
    found: Counter[tuple[int, int]] = Counter()
    for one in linears:
        found[(one.into, one.out)] += one.calls
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "kind", [kind for kind, family in FAMILIES.items() if not family.experts and kind not in _NOT_BUILT]
)
def test_linear_layers_of_each_family(tmp_path: Path, kind: str) -> None:
    table, model = _model(kind)
    config = read(tmp_path, table | {"model_type": kind})
    x = config.model
    each = stacks(x, config.layout)
    ours = [linear for one in each for linear in (*attention_linears(*one), *mlp_linears(*one))]
    ours += () if kind in _TEXT_ONLY else logits_linear(each[-1][0])
    assert _ours(ours) == _linears(model)
    assert kind in _TEXT_ONLY or not x.vocab or bool(x.tied) == bool(model.config.tie_word_embeddings)


@pytest.mark.parametrize(
    "kind", [kind for kind, family in FAMILIES.items() if family.full_every and not family.both]
)
def test_layers_with_a_window_where_the_file_does_not_say_which(tmp_path: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    wanted = {"num_hidden_layers": 13, "sliding_window": 32}
    table = transformers.AutoConfig.for_model(_OTHER_TYPE.get(kind, kind), **wanted).to_dict()
    kinds = table.pop("layer_types")
    layout = read(tmp_path, table | {"model_type": kind}, sequence=1024).layout
    assert layout.windowed_frac * 13 == pytest.approx(kinds.count("sliding_attention"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind not in _NOT_BUILT])
def test_weights_of_each_family(tmp_path: Path, kind: str) -> None:
    """All matrices of the model but positions, and what stands beside the layers."""
    table, model = _model(kind)
    x = read(tmp_path, table | {"model_type": kind}).model
    x = replace(x, tied=True) if kind in _TEXT_ONLY else x
    x = replace(x, beside=None)  # positions and convolutions, skipped below
    skipped = (
        "encoder.conv",
        "encoder.embed_tokens",  # T5Gemma's own; others' comes as "shared"
        "relative_attention_bias",
        "position",
        "wpe",
        "token_type",
        "_bias",
        "shared_expert_gate",
        *_NOT_LAYERS,
    )
    weights = sum(
        weight.numel()
        for name, weight in model.named_parameters()  # tied weights come once
        if weight.dim() >= 2 and not any(part in name for part in skipped)
    )
    assert x.parameters == weights
