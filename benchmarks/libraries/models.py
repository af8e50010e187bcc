"""Builds models of six libraries on the meta device, and says what a training step of each computes.

Widths are those of models that people train, a few layers deep; the loss is the usual one of the library's
own recipes (next tokens, classes, pictures against words, the noise of a diffusion model).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_BATCH, _SEQUENCE, _VOCABULARY = 4, 1024, 32000
_LAYERS = 3
EXPERTS = 8


@dataclass
class Built:
    """A model, and its loss."""

    model: nn.Module
    loss: Callable[[], Tensor]


def build(name: str) -> Built:
    """The model ``library/name``, in bf16 and training, on the meta device."""
    library, _, own = name.partition("/")
    # they make tensors of numbers
    import_module("torchtune.models.llama3" if library == "torchtune" else library)
    with torch.device("meta"):
        built = _BUILDERS[library](own)
    built.model.to("meta", torch.bfloat16).train()  # some make a buffer of a list, on the CPU
    return built


def _ids(*size: int) -> Tensor:
    return torch.zeros(size or (_BATCH, _SEQUENCE), dtype=torch.int64, device="meta")


def _some(*size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.bfloat16, device="meta")


def _of_classes(model: nn.Module, *given: Any) -> Built:
    labels = _ids(len(given[0]))
    return Built(model, lambda: functional.cross_entropy(model(*given).float(), labels))


def _of_tokens(model: nn.Module, *given: Any, **keywords: Any) -> Built:
    """Next tokens, the logits flattened as in torchtune's and litgpt's losses."""
    ids = _ids()

    def loss() -> Tensor:
        out = model(ids, *given, **keywords)
        out = torch.cat(out, 1) if isinstance(out, list) else out
        return functional.cross_entropy(out.reshape(-1, out.shape[-1]).float(), ids.reshape(-1))

    return Built(model, loss)


#: Configurations of litgpt's own, and what is made smaller.
_LITGPT: dict[str, tuple[str, dict[str, Any]]] = {
    "llama3": ("Llama-3.2-3B", {}),
    "gemma2": ("Gemma-2-2b", {}),
    "pythia": ("pythia-1.4b", {}),
    "phi": ("phi-2", {}),
    "falcon": ("falcon-7b", {}),
    "mixtral": ("Mixtral-8x7B-v0.1", {"n_embd": 2048, "intermediate_size": 5632, "n_head": 16}),
    "qwen3": ("Qwen3-4B", {}),
}


def _litgpt(name: str) -> Built:
    return of_litgpt(*_LITGPT[name])


def of_litgpt(config: str, smaller: dict[str, Any]) -> Built:
    """A configuration of litgpt's own, a few layers deep, and what is made ``smaller``."""
    model = import_module("litgpt.model").GPT.from_name(
        config, n_layer=_LAYERS, block_size=_SEQUENCE, **smaller
    )
    return _of_tokens(model)


_DECODER: dict[str, Any] = {
    "vocab_size": _VOCABULARY,
    "num_layers": _LAYERS,
    "num_heads": 16,
    "num_kv_heads": 4,
    "embed_dim": 2048,
    "max_seq_len": _SEQUENCE,
}
#: (package of torchtune, its builder, keywords)
_TORCHTUNE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama3": ("llama3", "llama3", {"intermediate_dim": 8192}),
    "qwen2": ("qwen2", "qwen2", {"intermediate_dim": 8960, "tie_word_embeddings": True}),
    "gemma2": ("gemma2", "gemma2", {"head_dim": 256, "num_heads": 8, "intermediate_dim": 9216}),
    "phi3": ("phi3", "phi3", {"intermediate_dim": 8192, "num_kv_heads": 16}),
    "llama3_lora": (
        "llama3",
        "lora_llama3",
        {
            "lora_attn_modules": ["q_proj", "v_proj", "output_proj"],
            "apply_lora_to_mlp": True,
            "lora_rank": 16,
            "lora_alpha": 32,
            "intermediate_dim": 8192,
        },
    ),
    "mistral_classifier": ("mistral", "mistral_classifier", {"num_classes": 2, "intermediate_dim": 7168}),
}


def _torchtune(name: str) -> Built:
    if name == "llama3_vision":
        return _with_pictures()
    package, builder, keywords = _TORCHTUNE[name]
    home = import_module(f"torchtune.models.{package}")
    home = home if hasattr(home, builder) else import_module(f"{home.__name__}._component_builders")
    model = getattr(home, builder)(**_DECODER | keywords)
    if name == "llama3_lora":
        for path, weight in model.named_parameters():
            weight.requires_grad_("lora_" in path)
    if name == "mistral_classifier":
        ids, labels = _ids(), _ids(_BATCH)
        return Built(model, lambda: functional.cross_entropy(model(ids)[:, -1].float(), labels))
    return _of_tokens(model)


def _with_pictures() -> Built:
    home = import_module("torchtune.models.llama3_2_vision")
    encoder = home.llama3_2_vision_encoder(
        patch_size=14, num_heads=16, clip_embed_dim=1280, clip_num_layers=_LAYERS, clip_hidden_states=[1],
        num_layers_projection=2, decoder_embed_dim=2048, tile_size=448,
    )  # fmt: skip
    decoder = home.llama3_2_vision_decoder(
        **_DECODER | {"num_layers": 4},
        fusion_interval=2, num_special_tokens=8, encoder_max_seq_len=4100, intermediate_dim=8192,
    )  # fmt: skip
    model = import_module("torchtune.modules.model_fusion").DeepFusionModel(encoder=encoder, decoder=decoder)
    for module in model.modules():
        if hasattr(module, "rope_init"):  # as recipes do; it asks for values
            with torch.device("cpu"):
                module.rope_init()
    # one tile a picture; every word sees all of it
    seen = torch.ones(_BATCH, _SEQUENCE, 1025, dtype=torch.bool, device="meta")
    given = {"images": _some(_BATCH, 1, 1, 3, 448, 448)}
    return _of_tokens(model, encoder_input=given, encoder_mask=seen)


#: Keywords of x_transformers' Decoder.
_DECODERS: dict[str, dict[str, Any]] = {
    "gpt": {"attn_flash": True},
    "glu_rotary": {
        "attn_flash": True,
        "ff_glu": True,
        "ff_swish": True,
        "rotary_pos_emb": True,
        "use_rmsnorm": True,
        "ff_no_bias": True,
        "attn_kv_heads": 4,
        "attn_qk_norm": True,
        "attn_qk_norm_dim_scale": True,
    },
    "sandwich": {"sandwich_norm": True, "alibi_pos_bias": True},
    "talking": {"attn_pre_talking_heads": True, "attn_post_talking_heads": True, "rel_pos_bias": True},
    "macaron": {"macaron": True, "attn_flash": True, "ff_dropout": 0.1},
}


def _x_transformers(name: str) -> Built:
    home = import_module("x_transformers")
    ids = _ids()
    if name == "encoder_decoder":
        model = home.XTransformer(
            dim=1024, enc_num_tokens=_VOCABULARY, enc_depth=_LAYERS, enc_heads=16, enc_max_seq_len=_SEQUENCE,
            dec_num_tokens=_VOCABULARY, dec_depth=_LAYERS, dec_heads=16, dec_max_seq_len=_SEQUENCE,
            enc_attn_flash=True, dec_attn_flash=True,
        )  # fmt: skip
        return Built(model, lambda: model(ids, _ids(_BATCH, 513)))
    layers = home.Decoder(dim=1024, depth=_LAYERS, heads=16, **_DECODERS[name])
    model = home.TransformerWrapper(
        num_tokens=_VOCABULARY, max_seq_len=_SEQUENCE, attn_layers=layers,
        use_abs_pos_emb=name in ("gpt", "macaron"),
    )  # fmt: skip
    return _of_tokens(model)


def _open_clip(name: str) -> Built:
    """Pictures against words: the loss of open_clip's loss.py (ClipLoss, SigLipLoss, CoCaLoss)."""
    home, losses = import_module("open_clip"), import_module("open_clip.loss")
    config = home.get_model_config(name)
    kind = "CoCa" if "coca" in name else "CustomTextCLIP" if config.get("custom_text") else "CLIP"
    for part in ("text_cfg", "vision_cfg", "multimodal_cfg"):
        if isinstance(config.get(part, {}).get("layers"), int):
            config[part]["layers"] = _LAYERS
    for extra in ("custom_text", "init_logit_bias"):
        config.pop(extra, None)
    bias = {"init_logit_bias": -10.0} if "SigLIP" in name else {}
    model = getattr(home.model if kind != "CoCa" else home.coca_model, kind)(**config, **bias)
    size = config["vision_cfg"].get("image_size", 224)
    picture, words = _some(64, 3, size, size), _ids(64, config["text_cfg"].get("context_length", 77))

    def loss() -> Tensor:
        out = model(picture, words)
        if isinstance(out, dict):
            coca = losses.CoCaLoss(caption_loss_weight=2.0, clip_loss_weight=1.0)
            return torch.stack(coca(**out)).sum()
        found: Tensor = (losses.SigLipLoss() if bias else losses.ClipLoss())(*out)
        return found

    return Built(model, loss)


_VIT: dict[str, Any] = {
    "image_size": 224,
    "num_classes": 1000,
    "patch_size": 16,
    "dim": 1024,
    "depth": _LAYERS,
    "heads": 16,
    "mlp_dim": 4096,
}
#: (module of vit_pytorch, class, keywords)
_VITS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "vit": ("vit", "ViT", _VIT | {"dropout": 0.1}),
    "cait": ("cait", "CaiT", _VIT | {"cls_depth": 2, "dim": 768, "mlp_dim": 3072, "heads": 12}),
    "cross_vit": ("cross_vit", "CrossViT", {"image_size": 240, "num_classes": 1000, "sm_dim": 384,
                                            "lg_dim": 768, "depth": 2}),
    "simple_vit": ("simple_vit", "SimpleViT", _VIT),
    "vivit": ("vivit", "ViViT", {**_VIT, "depth": 0, "frames": 16, "image_patch_size": 16,
                               "frame_patch_size": 2, "spatial_depth": 2, "temporal_depth": 2}),
    "max_vit": ("max_vit", "MaxViT", {"num_classes": 1000, "dim": 96, "dim_conv_stem": 64,
                                      "depth": (1, 1, 2)}),
    "parallel_vit": ("parallel_vit", "ViT", _VIT),
    "xcit": ("xcit", "XCiT", _VIT | {"cls_depth": 2, "dim": 768, "mlp_dim": 3072, "heads": 12}),
}  # fmt: skip


def _vit_pytorch(name: str) -> Built:
    module, kind, keywords = _VITS[name]
    keywords = dict(keywords)
    if name == "vivit":
        for gone in ("depth", "patch_size"):
            del keywords[gone]
    model = getattr(import_module(f"vit_pytorch.{module}"), kind)(**keywords)
    frames = (16,) if name == "vivit" else ()
    return _of_classes(model, _some(16 if not frames else 4, 3, *frames, *_side(keywords)))


def _side(keywords: dict[str, Any]) -> tuple[int, int]:
    side = keywords.get("image_size", 224)
    return side, side


#: Classes of diffusers, their keywords, and sizes of what they are given.
_DIFFUSERS: dict[str, tuple[str, dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "dit": ("DiTTransformer2DModel", {}, {"hidden_states": (4, 32, 32)}),
    "pixart": (
        "PixArtTransformer2DModel",
        {"sample_size": 64, "caption_channels": 4096, "use_additional_conditions": False},
        {"hidden_states": (4, 64, 64), "encoder_hidden_states": (120, 4096)},
    ),
    "sd3": (
        "SD3Transformer2DModel",
        {"num_attention_heads": 24, "caption_projection_dim": 1536, "sample_size": 64},
        {
            "hidden_states": (16, 64, 64),
            "encoder_hidden_states": (333, 4096),
            "pooled_projections": (2048,),
        },
    ),
    "flux": (
        "FluxTransformer2DModel",
        {"num_layers": 2, "num_single_layers": 3},
        {
            "hidden_states": (1024, 64),
            "encoder_hidden_states": (512, 4096),
            "pooled_projections": (768,),
        },
    ),
    "stable_diffusion": (
        "UNet2DConditionModel",
        {"sample_size": 64, "layers_per_block": 1, "cross_attention_dim": 768},
        {"sample": (4, 64, 64), "encoder_hidden_states": (77, 768)},
    ),
    "wan": (
        "WanTransformer3DModel",
        {"num_attention_heads": 12, "ffn_dim": 8960},
        {"hidden_states": (16, 5, 32, 32), "encoder_hidden_states": (512, 4096)},
    ),
    "ltx": (
        "LTXVideoTransformer3DModel",
        {},
        {"hidden_states": (1280, 128), "encoder_hidden_states": (128, 4096)},
    ),
    "cogvideox": (
        "CogVideoXTransformer3DModel",
        {},
        {"hidden_states": (5, 16, 32, 32), "encoder_hidden_states": (226, 4096)},
    ),
    "stable_audio": (
        "StableAudioDiTModel",
        {},
        {
            "hidden_states": (64, 1024),
            "encoder_hidden_states": (130, 768),
            "global_hidden_states": (1, 1536),
        },
    ),
    "hunyuan_dit": (
        "HunyuanDiT2DModel",
        {
            "in_channels": 4,
            "patch_size": 2,
            "sample_size": 64,
            "hidden_size": 1408,
            "use_style_cond_and_image_meta_size": False,
        },
        {
            "hidden_states": (4, 64, 64),
            "encoder_hidden_states": (77, 1024),
            "encoder_hidden_states_t5": (256, 2048),
        },
    ),
    "lumina2": (
        "Lumina2Transformer2DModel",
        {"num_refiner_layers": 1, "cap_feat_dim": 2304},
        {"hidden_states": (16, 64, 64), "encoder_hidden_states": (256, 2304)},
    ),
    "sana": (
        "SanaTransformer2DModel",
        {},
        {"hidden_states": (32, 32, 32), "encoder_hidden_states": (300, 2304)},
    ),
}


def _diffusers(name: str) -> Built:
    kind, keywords, sizes = _DIFFUSERS[name]
    layers = {} if name == "stable_diffusion" else {"num_layers": 4 if name == "hunyuan_dit" else _LAYERS}
    model = getattr(import_module("diffusers"), kind)(**layers | keywords)
    given: dict[str, Any] = {key: _some(_BATCH, *size) for key, size in sizes.items()}
    given["timestep"] = _some(_BATCH)
    given |= _besides(name, given)

    def loss() -> Tensor:
        out = model(**given, return_dict=False)[0]
        return functional.mse_loss(out.float(), torch.zeros_like(out).float())

    return Built(model, loss)


def _besides(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """What else a model of diffusers asks for: positions, masks, classes."""
    words = given.get("encoder_hidden_states")
    mask = torch.ones(words.shape[:2], dtype=torch.int64, device="meta") if words is not None else None
    if name == "dit":
        return {"class_labels": _ids(_BATCH)}
    if name == "pixart":
        return {
            "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
            "encoder_attention_mask": mask,
        }
    if name == "flux":
        return {"img_ids": _some(1024, 3), "txt_ids": _some(512, 3)}
    if name == "ltx":
        return {"encoder_attention_mask": mask, "num_frames": 5, "height": 16, "width": 16}
    if name == "stable_audio":
        return {"rotary_embedding": (_some(1025, 32), _some(1025, 32))}
    if name == "hunyuan_dit":
        return {
            "text_embedding_mask": mask,
            "text_embedding_mask_t5": torch.ones(_BATCH, 256, dtype=torch.int64, device="meta"),
            "image_rotary_emb": (_some(1024, 88), _some(1024, 88)),
        }
    if name in ("lumina2", "sana"):
        return {"encoder_attention_mask": mask}
    return {}


_BUILDERS: dict[str, Callable[[str], Built]] = {
    "litgpt": _litgpt,
    "torchtune": _torchtune,
    "x_transformers": _x_transformers,
    "open_clip": _open_clip,
    "vit_pytorch": _vit_pytorch,
    "diffusers": _diffusers,
}
