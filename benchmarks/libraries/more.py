"""Builds models of the six libraries that ``names.txt`` does not hold, drawn before any was recorded.

The candidates of a library, drawn in the order of ``sha256("l2 LIBRARY/NAME")``, the least first:

* litgpt (4): families of its config.py that differ in more than sizes from those of names.txt: stablelm (3B),
  falcon_40b, olmo, olmo2, gemma, gemma3, phi3, mistral, qwen2_5, qwen3_moe, llama2;
* torchtune (4): its builders, and adapters of those: gemma, llama2, mistral, phi4, llama3_2, clip_vision,
  clip_text, t5_encoder, llama2_classifier, llama2_dora, and with ``_lora`` gemma, gemma2, llama2, mistral,
  phi3, qwen2, llama3_2, clip_vision;
* x_transformers (6): one option each of its AttentionLayers, Attention, FeedForward or wrappers, 43 of them;
* open_clip (4): a tower of each kind: convnext_base, swin_base_patch4_window7_224, EVA01-g-14, EVA02-B-16,
  PE-Core-B-16, ViTamin-B, ViT-L-14-CLIPA, MobileCLIP-S1, MobileCLIP-B, vit_relpos_medium_patch16_cls_224,
  vit_medium_patch16_gap_256; no text towers of other libraries, which are fetched;
* vit_pytorch (11): modules of the package with a classifier of their own; no wrappers around another model;
* diffusers (12): classes ``*Transformer2DModel``, ``*Transformer3DModel`` and ``*UNet*`` of its models.
  WanAnimate2Transformer3DModel was passed over: it attends in a compiled ``flex_attention`` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.hub.values import known
from benchmarks.libraries.models import (
    _DECODER,
    _LAYERS,
    _SEQUENCE,
    _VIT,
    _VOCABULARY,
    Built,
    _ids,
    _of_classes,
    _of_tokens,
    _open_clip,
    _some,
    of_litgpt,
)

#: What was drawn and could be recorded.
NAMES = Path(__file__).parents[1].joinpath("fresh", "libraries.txt").read_text().split()

#: Configurations of litgpt's own, and what is made smaller.
_LITGPT: dict[str, tuple[str, dict[str, Any]]] = {
    "olmo": ("OLMo-1B-hf", {}),
    "gemma3": ("Gemma-3-1b-it", {}),
    "falcon_40b": ("falcon-40b", {"n_embd": 2048, "n_head": 32}),
    "mistral": ("Mistral-7B-v0.1", {}),
}


def _litgpt(name: str) -> Built:
    return of_litgpt(*_LITGPT[name])


#: (package of torchtune, its builder, keywords)
_TORCHTUNE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama3_2": ("llama3_2", "llama3_2", {"intermediate_dim": 8192, "num_heads": 32, "num_kv_heads": 8}),
    "gemma2_lora": (
        "gemma2",
        "lora_gemma2",
        {
            "lora_attn_modules": ["q_proj", "k_proj", "v_proj"],
            "apply_lora_to_mlp": True,
            "lora_rank": 64,
            "lora_alpha": 128,
            "head_dim": 256,
            "num_heads": 8,
            "embed_dim": 2304,
            "intermediate_dim": 9216,
        },
    ),
    "llama2_classifier": (
        "llama2",
        "llama2_classifier",
        {"num_classes": 1, "num_kv_heads": 16, "intermediate_dim": 5504},
    ),
    "phi4": (
        "phi3",
        "phi3",
        {"num_heads": 20, "num_kv_heads": 5, "embed_dim": 2560, "intermediate_dim": 8960},
    ),
}


def _torchtune(name: str) -> Built:
    package, builder, keywords = _TORCHTUNE[name]
    home = import_module(f"torchtune.models.{package}._component_builders")
    model = getattr(home, builder)(**_DECODER | keywords)
    for module in model.modules():
        if hasattr(module, "rope_init"):  # as recipes do; it asks for values
            with torch.device("cpu"):
                module.rope_init()
    if name == "gemma2_lora":
        for path, weight in model.named_parameters():
            weight.requires_grad_("lora_" in path)
    if name == "llama2_classifier":
        ids, labels = _ids(), _ids(4)
        return Built(model, lambda: functional.cross_entropy(model(ids)[:, -1].float(), labels))
    return _of_tokens(model)


#: Keywords of x_transformers' Decoder; the attention is fused where the option allows it.
_DECODERS: dict[str, dict[str, Any]] = {
    "dynamic_pos_bias": {"dynamic_pos_bias": True},
    "shift_tokens": {"shift_tokens": 1, "attn_flash": True},
    "sigmoid": {"attn_sigmoid": True},
    "post_act_ln": {"ff_post_act_ln": True, "attn_flash": True},
    "polar": {"polar_pos_emb": True, "attn_flash": True},
    "post_norm": {"pre_norm": False, "attn_flash": True},
}


def _x_transformers(name: str) -> Built:
    home = import_module("x_transformers")
    layers = home.Decoder(dim=1024, depth=_LAYERS, heads=16, **_DECODERS[name])
    model = home.TransformerWrapper(
        num_tokens=_VOCABULARY, max_seq_len=_SEQUENCE, attn_layers=layers,
        use_abs_pos_emb=name != "dynamic_pos_bias",
    )  # fmt: skip
    if name == "dynamic_pos_bias":  # its distances are in 32 bits: autocast would cast them
        layers.rel_pos.mlp[0].register_forward_pre_hook(lambda _, given: (given[0].bfloat16(),))
    return _of_tokens(model)


#: (module of vit_pytorch, class, keywords, frames of a clip)
_VITS: dict[str, tuple[str, dict[str, Any], int]] = {
    "looped_vit": ("LoopedViT", {"image_size": 224, "patch_size": 16, "num_classes": 1000, "dim": 768,
                                 "heads": 12, "mlp_dim": 3072, "pre_loop_depth": 1, "num_looped_blocks": 1,
                                 "post_loop_depth": 1, "loop_depth": 3}, 0),
    "simple_vit_with_sparse_gating": ("SimpleViTWithSparseGating", _VIT, 0),
    "cct_3d": ("CCT", {"img_size": 224, "num_frames": 8, "embedding_dim": 384, "n_conv_layers": 2,
                       "frame_kernel_size": 3, "kernel_size": 7, "stride": 2, "padding": 3,
                       "pooling_kernel_size": 3, "pooling_stride": 2, "pooling_padding": 1,
                       "num_layers": _LAYERS, "num_heads": 6, "mlp_ratio": 3.0, "num_classes": 400,
                       "positional_embedding": "learnable", "stochastic_depth_rate": 0.0}, 8),
    "mobile_vit": ("MobileViT", {"image_size": (256, 256), "dims": [96, 120, 144],
                                 "channels": [16, 32, 48, 48, 64, 64, 80, 80, 96, 96, 384],
                                 "num_classes": 1000}, 0),
    "simple_flash_attn_vit_3d": ("SimpleViT", {"image_size": 224, "image_patch_size": 16, "frames": 16,
                                               "frame_patch_size": 2, "num_classes": 400, "dim": 768,
                                               "depth": _LAYERS, "heads": 12, "mlp_dim": 3072}, 16),
    "pit": ("PiT", {"image_size": 224, "patch_size": 16, "num_classes": 1000, "dim": 256,
                    "depth": (1, 2, 1), "heads": (4, 8, 16), "mlp_dim": 1024}, 0),
    "cct": ("CCT", {"img_size": 224, "embedding_dim": 384, "n_conv_layers": 2, "kernel_size": 7, "stride": 2,
                    "padding": 3, "pooling_kernel_size": 3, "pooling_stride": 2, "pooling_padding": 1,
                    "num_layers": _LAYERS, "num_heads": 6, "mlp_ratio": 3.0, "num_classes": 1000,
                    "positional_embedding": "learnable", "stochastic_depth_rate": 0.0}, 0),
    "simple_vit_with_specialized_cls": ("SimpleViT", _VIT, 0),
    "cvt": ("CvT", {"num_classes": 1000, "s3_depth": 2}, 0),
    "simple_vit_with_hyper_connections": ("SimpleViT", _VIT | {"num_residual_streams": 4}, 0),
    "vit_nd_pope": ("ViTND", {"ndim": 3, "input_shape": (16, 224, 224), "patch_size": (2, 16, 16),
                              "num_classes": 400, "dim": 768, "depth": _LAYERS, "heads": 12,
                              "mlp_dim": 3072}, 16),
}  # fmt: skip


def _vit_pytorch(name: str) -> Built:
    kind, keywords, frames = _VITS[name]
    with torch.device("cpu"):  # some ask for values as they are made
        model = getattr(import_module(f"vit_pytorch.{name}"), kind)(**keywords)
    side = 256 if name == "mobile_vit" else 224
    return _of_classes(model, _some(4 if frames else 32, 3, *((frames,) if frames else ()), side, side))


_B = 4
_CLIP = (16, 5, 32, 32)  # what a video is to these: channels, frames, sides
#: Keywords of classes of diffusers, and sizes of what they are given.
_DIFFUSERS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "HeliosTransformer3DModel": (
        {"num_attention_heads": 12, "ffn_dim": 8960},
        {
            "hidden_states": _CLIP,
            "encoder_hidden_states": (256, 4096),
            "latents_history_short": (16, 2, 32, 32),
            "latents_history_mid": (16, 2, 32, 32),
            "latents_history_long": (16, 16, 32, 32),
        },
    ),
    "StableCascadeUNet": (
        {
            "block_out_channels": (1536, 1536),
            "num_attention_heads": (24, 24),
            "down_num_layers_per_block": (1, 2),
            "up_num_layers_per_block": (2, 1),
            "clip_text_in_channels": 1280,
            "clip_image_in_channels": 768,
            "switch_level": (False,),
        },
        {
            "sample": (16, 24, 24),
            "clip_text": (77, 1280),
            "clip_text_pooled": (1, 1280),
            "clip_img": (1, 768),
        },
    ),
    "Flux2Transformer2DModel": (
        {"num_layers": 2, "num_single_layers": 3, "num_attention_heads": 24, "joint_attention_dim": 7680},
        {"hidden_states": (1024, 128), "encoder_hidden_states": (512, 7680), "guidance": ()},
    ),
    "QwenImage21Transformer2DModel": (
        {"num_attention_heads": 24},
        {"hidden_states": (1024, 64), "encoder_hidden_states": (256, 4096)},
    ),
    "EasyAnimateTransformer3DModel": (
        {"in_channels": 16, "out_channels": 16, "patch_size": 2, "add_norm_text_encoder": True},
        {"hidden_states": _CLIP, "encoder_hidden_states": (256, 3584)},
    ),
    "SanaWMTransformer3DModel": (
        {"num_layers": 4},
        {
            "hidden_states": (128, 5, 16, 16),
            "encoder_hidden_states": (1, 300, 2304),
            "timestep": (1, 5),
            "chunk_plucker": (48, 5, 16, 16),
            "camera_conditions": (5, 20),
        },
    ),
    "ConsisIDTransformer3DModel": (
        {
            "num_layers": 4,
            "num_attention_heads": 48,
            "is_train_face": True,
            "use_rotary_positional_embeddings": True,
            "LFE_depth": 5,
        },
        {"hidden_states": (5, 16, 32, 32), "encoder_hidden_states": (226, 4096), "id_cond": (1280,)},
    ),
    "CogView4Transformer2DModel": (
        {"num_attention_heads": 32, "attention_head_dim": 128},
        {
            "hidden_states": (16, 64, 64),
            "encoder_hidden_states": (224, 4096),
            "original_size": (2,),
            "target_size": (2,),
            "crop_coords": (2,),
        },
    ),
    "CosmosTransformer3DModel": (
        {"num_attention_heads": 16},
        {"hidden_states": _CLIP, "encoder_hidden_states": (512, 1024)},
    ),
    "BriaFibo2Transformer2DModel": (
        {"n_layers": 3, "n_refiner_layers": 1, "perceiver_num_layers": 1, "injection_layer_ids": (1,)},
        {"hidden_states": (32, 64, 64), "encoder_hidden_states": (2, 512, 7680)},
    ),
    "Kandinsky6Transformer3DModel": (
        {
            "model_dim": 1792,
            "ff_dim": 7168,
            "time_dim": 512,
            "axes_dims": (16, 24, 24),
            "num_text_blocks": 1,
            "num_visual_blocks": 2,
            "ca_rope": True,
            "cross_gates": True,
            "fix_modulation": True,
        },
        {
            "hidden_states": (5, 32, 32, 33),
            "encoder_hidden_states": (256, 3584),
            "pooled_projections": (768,),
            "audio_hidden_states": (128, 20),
        },
    ),
    "CogView3PlusTransformer2DModel": (
        {},
        {
            "hidden_states": (16, 64, 64),
            "encoder_hidden_states": (224, 4096),
            "original_size": (2,),
            "target_size": (2,),
            "crop_coords": (2,),
        },
    ),
}


def _diffusers(name: str) -> Built:
    keywords, sizes = _DIFFUSERS[name]
    kind = getattr(import_module("diffusers"), name)
    layers = {"num_layers": _LAYERS} if "num_layers" in signature(kind.__init__).parameters else {}
    model = kind(**layers | keywords)
    given: dict[str, Any] = {key: _some(_B, *size) for key, size in sizes.items()}
    given.setdefault("timestep_ratio" if name == "StableCascadeUNet" else "timestep", _some(_B))
    given |= _besides(name)
    if name == "QwenImage21Transformer2DModel":  # the picture of each token, which it fills a mask to tell
        pictures = torch.tensor([-1] * 256 + [0] * 1024, device="cpu")
        told = known(pictures), known(pictures == 0)
        model.build_token_metadata = lambda *_: told

    def loss() -> Tensor:
        outs = model(**given, return_dict=False)
        return torch.stack([functional.mse_loss(o.float(), torch.zeros_like(o).float()) for o in outs]).sum()

    return Built(model, loss)


def _besides(name: str) -> dict[str, Any]:
    """What else a model of diffusers asks for: positions, masks, a list of faces."""
    if name == "HeliosTransformer3DModel":
        frames = {"hidden_states": 5, "latents_history_short": 2, "latents_history_mid": 2}
        frames["latents_history_long"] = 16
        return {f"indices_{key}": _ids(_B, many) for key, many in frames.items()}
    if name == "Flux2Transformer2DModel":
        return {"img_ids": _some(1024, 4), "txt_ids": _some(512, 4)}
    if name == "QwenImage21Transformer2DModel":  # text, then a picture: a slot for four of its tokens
        slots = torch.arange(512, device="cpu") >= 256
        return {"img_shapes": [[(1, 32, 32)]] * _B, "img_mask": known(slots.repeat(_B, 1))}
    if name == "SanaWMTransformer3DModel":
        return {"mask": torch.ones(_B, 300, dtype=torch.int64, device="meta")}
    if name == "ConsisIDTransformer3DModel":
        faces = [_some(_B, 577, 1024) for _ in range(5)]
        return {"id_vit_hidden": faces, "image_rotary_emb": (_some(1280, 64), _some(1280, 64))}
    if name == "CosmosTransformer3DModel":
        return {"fps": 16, "padding_mask": _some(1, 1, 256, 256)}
    return {}


_BUILDERS: dict[str, Callable[[str], Built]] = {
    "litgpt": _litgpt,
    "torchtune": _torchtune,
    "x_transformers": _x_transformers,
    "open_clip": _open_clip,
    "vit_pytorch": _vit_pytorch,
    "diffusers": _diffusers,
}


def build(name: str) -> Built:
    """The model ``library/name``, in bf16 and training, on the meta device."""
    library, _, own = name.partition("/")
    import_module("torchtune.models.llama3" if library == "torchtune" else library)
    with torch.device("meta"):
        built = _BUILDERS[library](own)
    built.model.to("meta", torch.bfloat16).train()
    return built
