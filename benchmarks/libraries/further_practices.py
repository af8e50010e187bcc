"""The twelfth list's pictures and films.

As ``practices.py`` has it. The clones: facebookresearch/multimodal 3c2a85a39aaf, SkyworkAI/MoH 2cefd57b7819,
microsoft/SimMIM d3e29bcac950, hustvl/YOLOS 5717fc29d727, fundamentalvision/Deformable-DETR 11169a60c333,
facebookresearch/vjepa2 c2963a47433e, VectorSpaceLab/OmniGen d4752019ae16 and hpcaitech/Open-Sora
7ad6a96a135f.

Imports ask for iopath, scipy, timm, torchvision, transformers, diffusers and einops.
"""

# What comes of modules is anything.
# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import collections.abc
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.libraries.models import Built, _ids, _some
from benchmarks.libraries.posts import _flash
from benchmarks.libraries.practices import _LAYERS, LISTED
from benchmarks.libraries.recipes import _again, _frozen, _together
from benchmarks.libraries.recipes_truth import before
from benchmarks.libraries.senses import _floats
from benchmarks.libraries.workloads import _named


def _flava(home: Any) -> Built:
    """FLAVA's pretraining of pairs: masked patches and words of both, pairs, and pictures against words."""
    sizes = dict.fromkeys((f"{of}_num_hidden_layers" for of in ("image", "text", "multimodal")), _LAYERS)
    home.DalleVAEEncoder = partial(home.DalleVAEEncoder, pretrained=False)
    model = home.flava_model_for_pretraining(**sizes)
    _frozen(model.image_codebook)
    pictures, small, words = _floats(16, 3, 224, 224), _floats(16, 3, 112, 112), _ids(16, 77)
    masked, pairs = _ids(16, 14, 14), _ids(16)

    def loss() -> Tensor:
        out = model(pictures, words, small, masked, words, itm_labels=pairs, mlm_labels=words)
        return torch.stack([x for x in vars(out.losses).values() if isinstance(x, Tensor)]).sum()

    return Built(model, loss)


def _moh(home: Any) -> Built:
    """MoH-DiT-B/2 of three quarters of its heads, which a router chooses; noise, and that router's loss."""
    model = home.DiT(
        depth=_LAYERS, hidden_size=768, patch_size=2, num_heads=12, moh=True, shared_head=[4, 6, 12],
        routed_head=[2, 3, 0], head_dim=[None] * _LAYERS,
    )  # fmt: skip
    noise = import_module("diffusion").create_diffusion(timestep_respacing="")
    latents, labels, times = _floats(16, 4, 32, 32), _ids(16), _ids(16)
    sample = noise.q_sample

    def noised(*given: Any, **rest: Any) -> Any:
        with before():
            return sample(*given, **rest)

    noise.q_sample = noised

    def loss() -> Tensor:
        home.MoHAttention.LOAD_BALANCING_LOSSES.clear()
        lost = noise.training_losses(model, latents, times, {"y": labels})["loss"].mean()
        balance = home.MoHAttention.LOAD_BALANCING_LOSSES
        return lost + 0.01 * sum(balance) / max(len(balance), 1)

    return Built(model, loss)


def _simmim(home: Any) -> Built:
    """SimMIM of Swin-B at 192 x 192, six tenths of the patches masked."""
    encoder = home.SwinTransformerForSimMIM(
        img_size=192, patch_size=4, num_classes=0, embed_dim=128, depths=[2, 2, 2, 2],
        num_heads=[4, 8, 16, 32], window_size=6, drop_path_rate=0.0,
    )  # fmt: skip
    model, pictures, masks = home.SimMIM(encoder, 32), _some(16, 3, 192, 192), _ids(16, 48, 48)
    return Built(model, lambda: model(pictures, masks))


def _detected(model: Any, judge: Any, weights: dict[str, float], *size: int) -> Built:
    """The losses of a detector that matches what it told with eight boxes of a picture."""
    pictures = [_floats(*size)] * 2
    truth = [{"labels": _ids(8), "boxes": _floats(8, 4)}] * 2
    judge.to("meta")

    def loss() -> Tensor:
        losses = [(key.rstrip("_0123456789"), value) for key, value in judge(model(pictures), truth).items()]
        return torch.stack([value * weights[key] for key, value in losses if key in weights]).sum()

    return Built(model, loss)


def _matched() -> None:
    """Boxes match in turn."""
    told = vars(import_module("models.matcher"))
    told["linear_sum_assignment"] = lambda costs: (np.arange(costs.shape[1]), np.arange(costs.shape[1]))


def _yolos(home: Any) -> Built:
    """YOLOS-S with its places between layers, too."""
    _matched()
    model = home.Detector(91, None, 100, "small", [512, 864], [512, 864])
    sees = model.backbone
    sees.blocks, sees.depth = sees.blocks[:_LAYERS], _LAYERS
    sees.mid_pos_embed = nn.Parameter(sees.mid_pos_embed[: _LAYERS - 1])
    weights = {"loss_ce": 1.0, "loss_bbox": 5.0, "loss_giou": 2.0}
    costs = Namespace(set_cost_class=1, set_cost_bbox=5, set_cost_giou=2)
    judge = home.SetCriterion(91, home.build_matcher(costs), weights, 0.1, ["labels", "boxes", "cardinality"])
    return _detected(model, judge, weights, 3, 512, 864)


def _deformable(_: Any) -> Built:
    """Deformable DETR of R50, four levels, its kernel of samples as PyTorch has it."""
    with mock.patch("torchvision.__version__", "0.9.0"):
        home: Any = import_module("models.deformable_detr")
    _matched()
    vars(import_module("models.backbone"))["is_main_process"] = lambda: False  # nothing to be loaded
    samples: Any = import_module("models.ops.modules.ms_deform_attn")
    inner = import_module("models.ops.functions.ms_deform_attn_func").ms_deform_attn_core_pytorch
    levels = [(80, 104), (40, 52), (20, 26), (10, 13)]
    samples.MSDeformAttnFunction = Namespace(
        apply=lambda value, _, __, where, weights, ___: inner(value, levels, where, weights)
    )
    parts: Any = import_module("models.deformable_transformer")
    points = parts.DeformableTransformerEncoder.get_reference_points
    parts.DeformableTransformerEncoder.get_reference_points = staticmethod(
        lambda _, valid, device: points(levels, valid, device)
    )
    args = Namespace(
        hidden_dim=256, nheads=8, enc_layers=_LAYERS, dec_layers=_LAYERS, dim_feedforward=1024, dropout=0.1,
        num_feature_levels=4, dec_n_points=4, enc_n_points=4, two_stage=False, num_queries=300, masks=False,
        dilation=False, backbone="resnet50", lr_backbone=2e-5, position_embedding="sine", set_cost_class=2,
        set_cost_bbox=5, set_cost_giou=2,
    )  # fmt: skip
    model = home.DeformableDETR(
        home.build_backbone(args), home.build_deforamble_transformer(args), num_classes=91, num_queries=300,
        num_feature_levels=4, aux_loss=True,
    )  # fmt: skip
    weights = {"loss_ce": 2.0, "loss_bbox": 5.0, "loss_giou": 2.0}
    judge = home.SetCriterion(91, home.build_matcher(args), weights, ["labels", "boxes", "cardinality"])
    return _detected(model, judge, weights, 3, 640, 832)


def _vjepa(home: Any) -> Built:
    """V-JEPA 2-AC on DROID: what a frozen ViT-g sees next, told of what it saw and of actions."""
    sees = import_module("src.models.vision_transformer").VisionTransformer(
        img_size=(256, 256), patch_size=16, num_frames=2, tubelet_size=2, embed_dim=1408, depth=_LAYERS,
        num_heads=22, mlp_ratio=48 / 11, use_sdpa=True, use_rope=True,
    )  # fmt: skip
    model = home.VisionTransformerPredictorAC(
        img_size=(256, 256), num_frames=16, tubelet_size=2, embed_dim=1408, depth=_LAYERS,
    )  # fmt: skip
    sees, clips = _frozen(sees), _some(2, 3, 8, 256, 256)
    moves, states = _some(2, 7, 7), _some(2, 7, 7)

    def loss() -> Tensor:
        with torch.no_grad():
            with before():
                frames = clips.permute(0, 2, 1, 3, 4).flatten(0, 1).unsqueeze(2).repeat(1, 1, 2, 1, 1)
            wanted = functional.layer_norm(sees(frames).view(2, 8 * 256, -1), (1408,))
        told = functional.layer_norm(model(wanted[:, :-256], moves, states), (1408,))
        return (told - wanted[:, 256:]).abs().mean()

    return Built(_together(encoder=sees, predictor=model), loss)


def _omnigen(home: Any) -> Built:
    """OmniGen of two pictures of 512 x 512 and their words in the layers of Phi-3 mini: a straight path."""
    layer = transformers.models.phi3.modeling_phi3.Phi3DecoderLayer
    rotations: list[Any] = []

    class Phi3DecoderLayer(layer):  # type: ignore[misc, valid-type]
        """That of transformers, which rotated by itself and gave a tuple."""

        def forward(self, x: Tensor, attention_mask: Tensor, position_ids: Tensor, **_: Any) -> Any:
            turns = rotations[0](x, position_ids)
            return (super().forward(x, attention_mask=attention_mask, position_embeddings=turns),)

    config = transformers.Phi3Config(num_hidden_layers=_LAYERS, pad_token_id=0, use_cache=False)
    with mock.patch.object(transformers.models.phi3.modeling_phi3, "Phi3DecoderLayer", Phi3DecoderLayer):
        model = home.OmniGen(config)
    rotations.append(model.llm.rotary_emb)
    model.llm.gradient_checkpointing = False
    words, places = _ids(2, 128), _ids(2, 1153)

    def loss() -> Tensor:
        with before():
            latents, noise, times = _some(2, 4, 64, 64), _some(2, 4, 64, 64), _some(2)
            noised = times[:, None, None, None] * latents + (1 - times[:, None, None, None]) * noise
            mask = _some(2, 1153, 1153)
        told = model(
            list(noised.split(1)), times, words, None, {}, mask, places, padding_latent=[None] * 2,
            return_past_key_values=False,
        )  # fmt: skip
        lost = [(x - y).square().mean() for x, y in zip(told, (latents - noise).split(1), strict=True)]
        return torch.stack(lost).mean()

    return Built(model, loss)


class LigerRMSNormFunction:
    """liger_kernel's, in PyTorch."""

    @staticmethod
    def apply(x: Tensor, scale: Tensor, eps: float, *_: Any) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], scale, eps)


def _open_sora(home: Any) -> Built:
    """Open-Sora 2.0 at 256 px: two blocks of both streams and two of one, all of them run again."""
    model = home.MMDiTModel(home.MMDiTConfig(
        from_pretrained="", cache_dir="", in_channels=64, vec_in_dim=768, context_in_dim=4096,
        hidden_size=3072, mlp_ratio=4.0, num_heads=24, depth=2, depth_single_blocks=2, axes_dim=[16, 56, 56],
        theta=10000, qkv_bias=True, guidance_embed=False, cond_embed=True, fused_qkv=False,
    ))  # fmt: skip
    films, words, whole, times = _some(1, 2304, 64), _some(1, 512, 4096), _some(1, 768), _some(1)
    places, asked, given = _floats(1, 2304, 3), _floats(1, 512, 3), _some(1, 2304, 68)

    def loss() -> Tensor:
        return functional.mse_loss(model(films, places, words, asked, times, whole, given).float(), films)

    return Built(model, loss)


#: The module that is imported, and what builds of it.
_HOMES: dict[str, tuple[str, Callable[[Any], Built]]] = {
    "facebookresearch_multimodal/flava": ("torchmultimodal.models.flava.model", _flava),
    "SkyworkAI_MoH/dit": ("models", _moh),
    "microsoft_SimMIM/swin": ("models.simmim", _simmim),
    "hustvl_YOLOS/small": ("models.detector", _yolos),
    "fundamentalvision_Deformable-DETR/r50": ("math", _deformable),
    "facebookresearch_vjepa2/predictor": ("src.models.ac_predictor", _vjepa),
    "VectorSpaceLab_OmniGen/omnigen": ("OmniGen.model", _omnigen),
    "hpcaitech_Open-Sora/mmdit": ("opensora.models.mmdit.model", _open_sora),
}
NAMES = [name for name in LISTED if name in _HOMES]
#: Where in a clone its modules are.
_UNDER = {
    "SkyworkAI_MoH": "MoH-DiT",
}
#: What is asked for and its model does not use.
_UNUSED: dict[str, tuple[str, ...]] = {
    "fundamentalvision_Deformable-DETR": ("MultiScaleDeformableAttention", "pycocotools", "panopticapi"),
}
#: Packages that import all they have, beside what is asked of them.
_BARE: dict[str, tuple[str, ...]] = {
    "microsoft_SimMIM": ("models",),
    "hustvl_YOLOS": ("models",),
    "fundamentalvision_Deformable-DETR": ("models",),
    "VectorSpaceLab_OmniGen": ("OmniGen",),
    "hpcaitech_Open-Sora": ("opensora", "opensora.models", "opensora.models.mmdit", "opensora.utils"),
    "facebookresearch_multimodal": ("torchmultimodal.models",),
}
#: Kernels in PyTorch; what is no more, and what is not used.
_STUBS: dict[str, dict[str, dict[str, Any]]] = {
    "hpcaitech_Open-Sora": {
        "flash_attn": {"flash_attn_func": _flash},
        "liger_kernel": {},
        "liger_kernel.ops": {},
        "liger_kernel.ops.rms_norm": {"LigerRMSNormFunction": LigerRMSNormFunction},
        "liger_kernel.ops.rope": {"LigerRopeFunction": None},
        "opensora.acceleration": {},
        "opensora.acceleration.checkpoint": {"auto_grad_checkpoint": _again},
        "opensora.registry": {"MODELS": Namespace(register_module=lambda _: _named)},
        "opensora.utils.ckpt": {"load_checkpoint": None},
    },
    "hustvl_YOLOS": {"torch._six": {"container_abcs": collections.abc}},
}  # fmt: skip
#: What reads numbers while it is built.
_OF_NUMBERS: tuple[str, ...] = ("microsoft_SimMIM", "hustvl_YOLOS", "VectorSpaceLab_OmniGen")
_OF_NUMBERS += ("facebookresearch_vjepa2", "SkyworkAI_MoH")
#: What asks for single precision.
_SINGLE: tuple[str, ...] = ("facebookresearch_multimodal", "SkyworkAI_MoH", "hustvl_YOLOS")
_SINGLE += ("fundamentalvision_Deformable-DETR",)
