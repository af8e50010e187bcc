"""How the model families of Hugging Face build their layers, by ``model_type``.

Checked against transformers 5 (modeling_*.py): a test builds each family there, where it is installed, and
compares every linear layer.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelFamily:
    title: str
    fused_qkv: bool = False
    gated: bool = True
    fused_gate: bool = False
    rope: bool = True
    causal: bool = True
    tied: bool = False  # where the file does not say
    ffn_factor: int | None = None  # MLP width / hidden where the file gives none
    head_dim: int | None = None  # where the file gives none and it is not hidden / heads
    experts: bool = False


_GPT = {"gated": False, "rope": False, "tied": True}
_ENCODER = {"gated": False, "rope": False, "causal": False, "tied": True}

#: ``model_type`` of config.json -> how it is built.
FAMILIES: dict[str, ModelFamily] = {
    "gpt2": ModelFamily("GPT-2", fused_qkv=True, ffn_factor=4, **_GPT),
    "gpt_neo": ModelFamily("GPT-Neo", ffn_factor=4, **_GPT),
    "gpt_neox": ModelFamily("GPT-NeoX", fused_qkv=True, gated=False),
    "gptj": ModelFamily("GPT-J", gated=False, ffn_factor=4),
    "opt": ModelFamily("OPT", **_GPT),
    "bloom": ModelFamily("BLOOM", fused_qkv=True, ffn_factor=4, **_GPT),
    "mpt": ModelFamily("MPT", fused_qkv=True, ffn_factor=4, **_GPT),
    "falcon": ModelFamily("Falcon", fused_qkv=True, gated=False, tied=True, ffn_factor=4),
    "gpt_bigcode": ModelFamily("StarCoder", fused_qkv=True, ffn_factor=4, **_GPT),
    "starcoder2": ModelFamily("StarCoder2", gated=False, tied=True),
    "phi": ModelFamily("Phi", gated=False),
    "phi3": ModelFamily("Phi-3", fused_qkv=True, fused_gate=True),
    "llama": ModelFamily("Llama"),
    "mistral": ModelFamily("Mistral"),
    "qwen2": ModelFamily("Qwen2"),
    "qwen3": ModelFamily("Qwen3", head_dim=128),
    "gemma": ModelFamily("Gemma", tied=True, head_dim=256),
    "gemma2": ModelFamily("Gemma 2", tied=True, head_dim=256),
    "gemma3": ModelFamily("Gemma 3", tied=True, head_dim=256),
    "olmo": ModelFamily("OLMo"),
    "olmo2": ModelFamily("OLMo 2"),
    "stablelm": ModelFamily("StableLM"),
    "cohere": ModelFamily("Command R", tied=True),
    "granite": ModelFamily("Granite"),
    "smollm3": ModelFamily("SmolLM3", tied=True),
    "glm4": ModelFamily("GLM-4", fused_gate=True, head_dim=128),
    "nemotron": ModelFamily("Nemotron", gated=False, head_dim=128),
    "bert": ModelFamily("BERT", **_ENCODER),
    "roberta": ModelFamily("RoBERTa", **_ENCODER),
    "modernbert": ModelFamily("ModernBERT", fused_qkv=True, fused_gate=True, causal=False, tied=True),
    "mixtral": ModelFamily("Mixtral", experts=True),
    "qwen3_moe": ModelFamily("Qwen3 MoE", experts=True),
    "olmoe": ModelFamily("OLMoE", experts=True),
    "qwen2_moe": ModelFamily("Qwen2 MoE", experts=True),
    "gpt_oss": ModelFamily("gpt-oss", experts=True, head_dim=64),
    "deepseek": ModelFamily("DeepSeek-MoE", experts=True),  # the model's own code on the Hub
}

_IMAGES = (
    "vit", "deit", "beit", "dinov2", "swin", "clip", "clip_vision_model", "siglip", "siglip_vision_model",
)  # fmt: skip
#: Families whose layers hold products that are not modelled here -> what those are.
NOT_MODELLED: dict[str, str] = {
    "deepseek_v2": "latent attention (MLA)",
    "deepseek_v3": "latent attention (MLA)",
    "kimi_k2": "latent attention (MLA)",
    "llama4": "shared experts and chunked attention",
    "llama4_text": "shared experts and chunked attention",
    "qwen3_next": "gated delta networks",
    "mamba": "state-space layers",
    "mamba2": "state-space layers",
    "jamba": "state-space layers",
    "rwkv": "recurrent layers",
    "t5": "an encoder and a decoder",
    "mt5": "an encoder and a decoder",
    "bart": "an encoder and a decoder",
    "whisper": "an encoder and a decoder",
    "mllama": "cross-attention layers",
    **dict.fromkeys(_IMAGES, "patches of images and one result for each image in place of a vocabulary"),
    **dict.fromkeys(("wav2vec2", "hubert"), "frames of sound in place of a vocabulary"),
    "albert": "layers that share weights and a factored embedding",
    "electra": "a factored embedding",
}
