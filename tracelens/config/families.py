"""How the model families of Hugging Face build their layers, by ``model_type``.

Checked against transformers 5 (modeling_*.py): a test builds each family there, where it is installed, and
compares every linear layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.config import words


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
    latent: bool = False
    shared: int = 0  # experts that every token goes through, where the file does not say
    hybrid: bool = False  # state-space layers, but for those that layer_types calls attention
    full_every: int | None = None  # of its layers with a sliding window, which sees all keys; 0: none does
    patches: int | None = None  # tokens beside those that are patches of an image: no vocabulary then
    both: bool = False  # an encoder and a decoder
    bias: bool = False  # for every score, of relative positions


_GPT = {"gated": False, "rope": False, "tied": True}
_IMAGES = {"gated": False, "rope": False, "causal": False}
_LATENT_EXPERTS = {"latent": True, "experts": True}
_BOTH = {"gated": False, "rope": False, "tied": True, "both": True}
_T5 = {"rope": False, "both": True, "bias": True}
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
    "starcoder2": ModelFamily("StarCoder2", gated=False, tied=True, full_every=0),
    "phi": ModelFamily("Phi", gated=False),
    "phi3": ModelFamily("Phi-3 or Phi-4", fused_qkv=True, fused_gate=True, full_every=0),
    "llama": ModelFamily("Llama"),
    "mistral": ModelFamily("Mistral", full_every=0),
    "qwen2": ModelFamily("Qwen2"),
    "qwen3": ModelFamily("Qwen3", head_dim=128),
    "gemma": ModelFamily("Gemma", tied=True, head_dim=256),
    "gemma2": ModelFamily("Gemma 2", tied=True, head_dim=256, full_every=2),
    "gemma3": ModelFamily("Gemma 3", tied=True, head_dim=256, full_every=6),
    "olmo": ModelFamily("OLMo"),
    "olmo2": ModelFamily("OLMo 2"),
    "stablelm": ModelFamily("StableLM"),
    "cohere": ModelFamily("Command R", tied=True),
    "granite": ModelFamily("Granite"),
    "smollm3": ModelFamily("SmolLM3", tied=True),
    "glm4": ModelFamily("GLM-4", fused_gate=True, head_dim=128),
    "nemotron": ModelFamily("Nemotron", gated=False, head_dim=128),
    "cohere2": ModelFamily("Command R7B or Command A", tied=True, full_every=4),
    "olmo3": ModelFamily("OLMo 3", full_every=4),
    "exaone4": ModelFamily("EXAONE 4", full_every=4),
    "exaone": ModelFamily("EXAONE"),
    "seed_oss": ModelFamily("Seed-OSS", head_dim=128),
    "mimo": ModelFamily("MiMo"),  # Qwen2's layers, on the Hub
    "ministral": ModelFamily("Ministral", full_every=0),
    "ministral3": ModelFamily("Ministral 3"),
    "arcee": ModelFamily("Arcee", gated=False),
    "apertus": ModelFamily("Apertus", gated=False),
    "hunyuan_v1_dense": ModelFamily("Hunyuan"),
    "glm": ModelFamily("GLM", fused_gate=True, head_dim=128),
    "persimmon": ModelFamily("Persimmon", fused_qkv=True, gated=False),
    "internlm3": ModelFamily("InternLM 3"),
    "ernie4_5": ModelFamily("ERNIE 4.5", tied=True),
    "nanochat": ModelFamily("nanochat", gated=False),
    "codegen": ModelFamily("CodeGen", fused_qkv=True, gated=False, ffn_factor=4),
    "biogpt": ModelFamily("BioGPT", **_GPT),
    "xglm": ModelFamily("XGLM", **_GPT),
    "openai-gpt": ModelFamily("GPT", fused_qkv=True, ffn_factor=4, **_GPT),
    "cwm": ModelFamily("Code World Model"),
    "jais2": ModelFamily("Jais 2", gated=False),
    "hyperclovax": ModelFamily("HyperCLOVA X"),
    "vaultgemma": ModelFamily("VaultGemma", tied=True, head_dim=256, full_every=2),
    "modernbert-decoder": ModelFamily("ModernBERT decoder", fused_gate=True, tied=True),
    "qwen2_vl": ModelFamily("Qwen2-VL"),
    "qwen2_5_vl": ModelFamily("Qwen2.5-VL"),
    "qwen2_5_omni": ModelFamily("Qwen2.5-Omni"),
    "qwen3_vl": ModelFamily("Qwen3-VL", head_dim=128),
    "glm4v": ModelFamily("GLM-4.1V", fused_gate=True),
    "bert": ModelFamily("BERT", **_ENCODER),
    "roberta": ModelFamily("RoBERTa", **_ENCODER),
    "xlm-roberta": ModelFamily("XLM-RoBERTa", **_ENCODER),
    "xlm-roberta-xl": ModelFamily("XLM-RoBERTa-XL", **_ENCODER),
    "camembert": ModelFamily("CamemBERT", **_ENCODER),
    "distilbert": ModelFamily("DistilBERT", **_ENCODER),
    "ernie": ModelFamily("ERNIE", **_ENCODER),
    "megatron-bert": ModelFamily("Megatron-BERT", **_ENCODER),
    "data2vec-text": ModelFamily("data2vec", **_ENCODER),
    "layoutlm": ModelFamily("LayoutLM", **_ENCODER),
    "mpnet": ModelFamily("MPNet", bias=True, **_ENCODER),
    "roformer": ModelFamily("RoFormer", gated=False, causal=False, tied=True),
    "esm": ModelFamily("ESM", **_ENCODER | {"rope": True}),
    "eurobert": ModelFamily("EuroBERT", causal=False),
    "nomic_bert": ModelFamily("Nomic BERT", causal=False, tied=True),
    "modernbert": ModelFamily("ModernBERT", fused_qkv=True, fused_gate=True, causal=False, tied=True),
    "vit": ModelFamily("ViT", patches=1, **_IMAGES),
    "vit_msn": ModelFamily("ViT-MSN", patches=1, **_IMAGES),
    "deit": ModelFamily("DeiT", patches=2, **_IMAGES),
    "ijepa": ModelFamily("I-JEPA", patches=0, **_IMAGES),
    "dinov2": ModelFamily("DINOv2", patches=1, **_IMAGES),
    "dinov2_with_registers": ModelFamily("DINOv2", patches=1, **_IMAGES),
    "dinov3_vit": ModelFamily("DINOv3", patches=1, **_IMAGES | {"rope": True}),
    "beit": ModelFamily("BEiT", patches=1, bias=True, **_IMAGES),
    "data2vec-vision": ModelFamily("data2vec", patches=1, bias=True, **_IMAGES),
    "clip_vision_model": ModelFamily("CLIP's vision tower", patches=1, **_IMAGES),
    "siglip_vision_model": ModelFamily("SigLIP's vision tower", patches=0, **_IMAGES),
    "siglip2_vision_model": ModelFamily("SigLIP 2's vision tower", patches=0, **_IMAGES),
    "t5": ModelFamily("T5", gated=False, tied=True, **_T5),
    "mt5": ModelFamily("mT5", gated=True, tied=False, **_T5),
    "umt5": ModelFamily("umT5", gated=True, tied=True, **_T5),
    "t5gemma": ModelFamily("T5Gemma", tied=True, head_dim=256, full_every=2, both=True),
    "bart": ModelFamily("BART", **_BOTH),
    "mbart": ModelFamily("mBART", **_BOTH),
    "plbart": ModelFamily("PLBART", **_BOTH),
    "pegasus": ModelFamily("Pegasus", **_BOTH),
    "marian": ModelFamily("Marian", **_BOTH),
    "m2m_100": ModelFamily("M2M-100", **_BOTH),
    "blenderbot": ModelFamily("Blenderbot", **_BOTH),
    "blenderbot-small": ModelFamily("Blenderbot", **_BOTH),
    "whisper": ModelFamily("Whisper", **_BOTH),
    "mixtral": ModelFamily("Mixtral", experts=True, full_every=0),
    "qwen3_moe": ModelFamily("Qwen3 MoE", experts=True, full_every=0),
    "olmoe": ModelFamily("OLMoE", experts=True),
    "qwen2_moe": ModelFamily("Qwen2 MoE", experts=True),
    "gpt_oss": ModelFamily("gpt-oss", experts=True, head_dim=64, full_every=2),
    "glm4_moe": ModelFamily("GLM-4.5", experts=True),
    "glm4v_moe": ModelFamily("GLM-4.5V", experts=True),
    "dots1": ModelFamily("dots.llm1", experts=True),
    "ernie4_5_moe": ModelFamily("ERNIE 4.5 MoE", experts=True, tied=True),
    "granitemoe": ModelFamily("Granite MoE", experts=True),
    "granitemoeshared": ModelFamily("Granite MoE", experts=True, fused_gate=True),
    "granitemoehybrid": ModelFamily("Granite 4", experts=True, fused_gate=True, hybrid=True),
    "exaone_moe": ModelFamily("K-EXAONE", experts=True, full_every=4),
    "cohere2_moe": ModelFamily("Command R MoE", experts=True, tied=True, full_every=4),
    "hunyuan_v1_moe": ModelFamily("Hunyuan MoE", experts=True, shared=1),
    "hy_v3": ModelFamily("Hunyuan 3", experts=True, head_dim=128),
    "sarvam_moe": ModelFamily("Sarvam MoE", experts=True),
    "bailing_moe": ModelFamily("Ling", experts=True, fused_qkv=True),  # on the Hub
    "phimoe": ModelFamily("Phi-3.5-MoE", experts=True, full_every=0),
    "minimax_m2": ModelFamily("MiniMax-M2", experts=True),
    "flex_olmo": ModelFamily("FlexOlmo", experts=True),
    "solar_open": ModelFamily("Solar Open", experts=True),
    "qwen3_vl_moe": ModelFamily("Qwen3-VL MoE", experts=True),
    "qwen3_omni_moe": ModelFamily("Qwen3-Omni MoE", experts=True, full_every=0),
    "llama4": ModelFamily("Llama 4", experts=True, head_dim=128),
    "deepseek": ModelFamily("DeepSeek-MoE", experts=True),  # the model's own code on the Hub
    "deepseek_v2": ModelFamily("DeepSeek-V2", **_LATENT_EXPERTS),
    "deepseek_v3": ModelFamily("DeepSeek-V3", **_LATENT_EXPERTS),
    "kimi_k2": ModelFamily("Kimi K2", **_LATENT_EXPERTS),  # DeepSeek-V3's code, on the Hub
    "glm4_moe_lite": ModelFamily("GLM-4.7-Flash", **_LATENT_EXPERTS),
    "mistral4": ModelFamily("Mistral 4", **_LATENT_EXPERTS),
    "sarvam_mla": ModelFamily("Sarvam", **_LATENT_EXPERTS),
    "axk1": ModelFamily("A.X K1", **_LATENT_EXPERTS),
    "minicpm3": ModelFamily("MiniCPM3", latent=True),
    "youtu": ModelFamily("Youtu-LLM", latent=True),
}

#: Families whose files leave sizes to transformers -> size -> default.
DEFAULTS: dict[str, dict[str, int]] = {"gemma3": {"heads": 8, "kv_heads": 4, "vocab": 262208}}

#: Families with learned positions -> how many of them no token takes: RoBERTa's begin behind its padding's.
POSITIONS: dict[str, int] = {
    **dict.fromkeys(("gpt2", "gpt_neo", "opt", "gpt_bigcode", "biogpt", "openai-gpt"), 0),
    **dict.fromkeys(("bert", "distilbert", "ernie", "megatron-bert", "layoutlm"), 0),
    **dict.fromkeys(("bart", "mbart", "plbart", "blenderbot", "blenderbot-small"), 0),
    **dict.fromkeys(("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "data2vec-text"), 2),
}

#: Families whose layers hold products that are not modelled here -> what those are.
NOT_MODELLED: dict[str, str] = {
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), words.INDEXED),
    "longcat_flash": words.SHORTCUTS,
    **dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_moe", "kimi_linear", "olmo_hybrid"), words.DELTA),
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "jamba", "bamba"), words.STATE_SPACE),
    **dict.fromkeys(("zamba", "zamba2", "nemotron_h", "falcon_h1"), words.STATE_SPACE),
    **dict.fromkeys(("afmoe", "beam"), words.ATTENTION_GATE),
    "mimo_v2_flash": words.LAYERS_DIFFER,
    **dict.fromkeys(("rwkv", "rwkv6", "rwkv7", "recurrent_gemma", "xlstm", "hrm_text"), words.RECURRENT),
    **dict.fromkeys(("lfm2", "lfm2_moe", "convbert", "squeezebert"), words.CONVOLUTIONS),
    **dict.fromkeys(("minimax", "minimax_m1", "bailing_hybrid"), words.LINEAR_ATTENTION),
    **dict.fromkeys(("gemma3n", "gemma4", "gemma4_unified"), words.SIZES_BY_LAYER),
    **dict.fromkeys(
        ("t5gemma2", "t5gemma2_decoder", "switch_transformers", "nllb-moe"), words.ENCODER_DECODER
    ),
    **dict.fromkeys(("deberta", "deberta-v2", "xlnet"), words.RELATIVE_POSITIONS),
    **dict.fromkeys(("longformer", "big_bird", "led", "reformer", "longt5"), words.BLOCKS),
    **dict.fromkeys(("layoutlmv2", "layoutlmv3", "layoutxlm"), words.RELATIVE_POSITIONS),
    **dict.fromkeys(("swin", "swinv2", "hiera", "pvt_v2"), words.STAGES),
    **dict.fromkeys(("clip", "siglip", "siglip2", "metaclip_2"), words.TOWERS),
    **dict.fromkeys(("pe_audio", "pe_video", "pe_audio_video"), words.TOWERS),
    **dict.fromkeys(("hubert", "wav2vec2", "wav2vec2-bert"), words.SOUND),
    **dict.fromkeys(("convnext", "convnextv2", "resnet", "regnet", "efficientnet"), words.ONLY_CONVOLUTIONS),
    "fnet": words.FOURIER,
    **dict.fromkeys(("mra", "nystromformer", "yoso"), words.APPROXIMATED),
    **dict.fromkeys(("funnel", "canine"), words.POOLED),
    **dict.fromkeys(("lilt", "lxmert"), words.TWO_STREAMS),
    "mobilebert": words.NARROW,
    "diffllama": words.DIFFERENCES,
    "dbrx": words.EXPERTS_BY_OTHER_KEYS,
    **dict.fromkeys(("electra", "rembert"), words.FACTORED),
    **dict.fromkeys(("mllama", "mllama_text_model", "idefics", "evolla"), words.CROSS_ATTENTION),
    "albert": words.SHARED_WEIGHTS,
}
