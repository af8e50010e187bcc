"""Builds models of repositories that people clone and train from: a fifth list, none of it was in another.

The folder of the clones is ``TRACELENS_CLONES``, each in a folder OWNER_NAME at the commit here:
karpathy/nanoGPT 3adf61e154c3, karpathy/nanochat 92d63d4e8bb4, facebookresearch/DiT ed81ce222909,
facebookresearch/mae efb2a8062c20, facebookresearch/detr 29901c51d7fe, microsoft/Swin-Transformer
f82860bfb522, openai/guided-diffusion 22e0df818350, CompVis/latent-diffusion a506df575647,
thuml/Time-Series-Library 4e938a176710, JingyunLiang/SwinIR 6545850fbf8d, swz30/Restormer df766d5521af,
mosaicml/llm-foundry 8c8dd48f7216, aqlaboratory/openfold ce0029e1199b, facebookresearch/SlowFast 287ec0076846,
facebookresearch/jepa 51c59d518fc6, FoundationVision/VAR 78b95394fc58, black-forest-labs/flux 802fb4713906,
bowang-lab/scGPT cebd6fae655b, facebookresearch/lingua 437d680e5218,
deepseek-ai/DeepSeek-V3 9b4e9788e4a3, HazyResearch/safari 02220c69d247, LTH14/mar fe470ac24afb,
baofff/U-ViT ce551708dc9c, naver/croco d7de07058452 and
jadore801120/attention-is-all-you-need-pytorch 132907dd272e.

Imports ask for timm, torchvision, transformers, einops, scipy, omegaconf, fairscale, catalogue, fvcore, yacs,
iopath, portalocker, termcolor, tabulate and simplejson. Widths are the repositories' own, a few layers deep;
what they recompute in the backward pass they keep here. Of models whose times are float32 all is.
"""

from __future__ import annotations

import copy
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.hub.values import known
from benchmarks.libraries.models import EXPERTS, Built, _ids, _of_classes, _some
from benchmarks.libraries.senses import _floats, _without

NAMES = Path(__file__).parents[1].joinpath("fresh", "libraries_5.txt").read_text().split()
_LAYERS, _BATCH, _SEQUENCE, _VOCABULARY = 4, 4, 512, 32000
_NORM = partial(nn.LayerNorm, eps=1e-6)


def _folder(name: str) -> Path:
    return Path(os.environ.get("TRACELENS_CLONES", "clones")) / name.partition("/")[0]


@contextmanager
def _cloned(home: Path, bare: tuple[str, ...]) -> Iterator[None]:
    """What a clone holds can be imported, in the block, and no other module of such a name.

    ``bare`` are its packages that would import all they have."""
    roots = {path.stem for path in home.iterdir() if path.suffix == ".py" or path.is_dir()}
    hidden = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in roots}
    for name in hidden:
        del sys.modules[name]
    sys.path.insert(0, str(home))
    for package in bare:
        sys.modules[package] = stub = ModuleType(package)
        stub.__path__ = [str(home.joinpath(*package.split(".")))]
    try:
        yield
    finally:
        sys.path.remove(str(home))
        for name in [name for name in sys.modules if name.partition(".")[0] in roots]:
            del sys.modules[name]
        sys.modules.update(hidden)


def _at_once(function: Callable[..., Any], inputs: Any, *_: Any) -> Any:
    """In place of what runs a function again in the backward pass."""
    return function(*inputs)


def _of_next(out: Tensor, ids: Tensor) -> Tensor:
    return functional.cross_entropy(out.reshape(-1, out.shape[-1]).float(), ids.reshape(-1))


def _karpathy(home: Any) -> Built:
    own = {"sequence_len": _SEQUENCE} if home.__name__ == "nanochat.gpt" else {}
    model, ids = home.GPT(home.GPTConfig(n_layer=_LAYERS, **own)), _ids(_BATCH, _SEQUENCE)
    return Built(model, lambda: model(ids, ids) if own else model(ids, ids)[1])


def _dit(home: Any) -> Built:
    """DiT-B/2 at 256 x 256."""
    model = home.DiT(depth=_LAYERS, hidden_size=768, num_heads=12)
    noise = import_module("diffusion").create_diffusion(timestep_respacing="")
    latents, labels, times = _floats(16, 4, 32, 32), _ids(16), _ids(16)
    return Built(model, lambda: noise.training_losses(model, latents, times, {"y": labels})["loss"].mean())


def _mae(home: Any) -> Built:
    def block(*given: Any, qk_scale: None, **keywords: Any) -> nn.Module:  # timm has left it out
        made: nn.Module = blocks(*given, **keywords)
        return made

    blocks, home.Block = home.Block, block
    model = home.MaskedAutoencoderViT(
        embed_dim=768, depth=_LAYERS, num_heads=12, decoder_depth=2, norm_layer=_NORM
    )
    pictures = _some(16, 3, 224, 224)
    return Built(model, lambda: model(pictures)[0])


def _detr(home: Any) -> Built:
    vars(import_module("models.backbone"))["is_main_process"] = lambda: False  # nothing to be loaded
    matched = vars(import_module("models.matcher"))
    matched["linear_sum_assignment"] = lambda costs: (np.arange(costs.shape[1]), np.arange(costs.shape[1]))
    sizes = {"hidden_dim": 256, "nheads": 8, "dim_feedforward": 2048, "enc_layers": _LAYERS, "dec_layers": 3}
    rest = {"dropout": 0.1, "pre_norm": False, "masks": False, "dilation": False, "backbone": "resnet50"}
    costs = {"set_cost_class": 1, "set_cost_bbox": 5, "set_cost_giou": 2, "lr_backbone": 1e-5}
    args = Namespace(**sizes, **rest, **costs, position_embedding="sine")
    trunk, decoder = home.build_backbone(args), home.build_transformer(args)
    model = home.DETR(trunk, decoder, num_classes=91, num_queries=100, aux_loss=True)
    weights = {"loss_ce": 1, "loss_bbox": 5, "loss_giou": 2}
    judge = home.SetCriterion(91, home.build_matcher(args), weights, 0.1, ["labels", "boxes", "cardinality"])
    judge.to("meta", torch.bfloat16)
    pictures = [_some(3, 800, 1056)] * 2
    truth = [{"labels": _ids(8), "boxes": _some(8, 4)}] * 2

    def loss() -> Tensor:
        losses = [(key.rstrip("_0123456789"), value) for key, value in judge(model(pictures), truth).items()]
        return torch.stack([value * weights[key] for key, value in losses if key in weights]).sum()

    return Built(model, loss)


def _swin(home: Any) -> Built:
    model = home.SwinTransformerV2(img_size=256, window_size=8, depths=[2] * 4, drop_path_rate=0.2)
    return _of_classes(model, _some(16, 3, 256, 256))


def _guided(home: Any) -> Built:
    """The model of ImageNet at 64 x 64, with a block where it has three."""
    home.checkpoint = _at_once
    made = import_module("guided_diffusion.script_util").create_gaussian_diffusion
    sizes = {"num_res_blocks": 1, "attention_resolutions": (2, 4, 8), "channel_mult": (1, 2, 3, 4)}
    rest = {"use_scale_shift_norm": True, "resblock_updown": True, "use_new_attention_order": True}
    many = {"dropout": 0.1, "num_classes": 1000, "num_head_channels": 64}
    model = home.UNetModel(64, 3, 192, 6, **sizes, **rest, **many)
    noise = made(steps=1000, learn_sigma=True, noise_schedule="cosine")
    pictures, times, labels = _floats(8, 3, 64, 64), _ids(8), _ids(8)
    return Built(model, lambda: noise.training_losses(model, pictures, times, {"y": labels})["loss"].mean())


def _latent(home: Any) -> Built:
    """The model of configs/latent-diffusion/txt2img-1p4B-eval.yaml, with a block where it has two."""
    home.checkpoint = vars(import_module("ldm.modules.attention"))["checkpoint"] = _at_once
    model = home.UNetModel(
        32, 4, 320, 4, num_res_blocks=1, attention_resolutions=[4, 2, 1], channel_mult=[1, 2, 4, 4],
        num_heads=8, use_spatial_transformer=True, context_dim=1280, legacy=False,
    )  # fmt: skip
    latents, words, times = _floats(4, 4, 32, 32), _floats(4, 77, 1280), _ids(4)
    return Built(model, lambda: functional.mse_loss(model(latents, times, context=words), latents))


def _series(home: Any) -> Built:
    """As scripts/long_term_forecast/ECL_script has them, 96 hours from 96."""
    is_mamba = home.__name__.endswith("MambaSimple")
    sizes = {"d_model": 128, "d_ff": 16} if is_mamba else {"d_model": 512, "d_ff": 2048}
    lengths = {"seq_len": 96, "label_len": 48, "pred_len": 96, "enc_in": 321, "dec_in": 321, "c_out": 321}
    rest = {"task_name": "long_term_forecast", "embed": "timeF", "freq": "h", "activation": "gelu"}
    own = {"n_heads": 8, "e_layers": 2, "d_layers": 1, "factor": 3, "moving_avg": 25}
    own |= {"expand": 2, "d_conv": 4}
    model = home.Model(Namespace(**sizes, **lengths, **rest, **own, dropout=0.1))
    past, hours, future, later = (_floats(16, *size) for size in ((96, 321), (96, 4), (144, 321), (144, 4)))
    return Built(model, lambda: functional.mse_loss(model(past, hours, future, later), past))


def _swinir(home: Any) -> Built:
    model = home.SwinIR(
        img_size=64, embed_dim=180, depths=[2, 2], num_heads=[6, 6], window_size=8, mlp_ratio=2, upscale=2,
        upsampler="pixelshuffle",
    )  # fmt: skip
    small, large = _some(4, 3, 64, 64), _some(4, 3, 128, 128)
    return Built(model, lambda: functional.l1_loss(model(small), large))


def _restormer(home: Any) -> Built:
    model = home.Restormer(num_blocks=[1, 1, 1, 2], num_refinement_blocks=1)
    pictures = _some(4, 3, 128, 128)
    return Built(model, lambda: functional.l1_loss(model(pictures), pictures))


def _mpt(home: Any) -> Built:
    """As wide as MPT-1B, with its biases of distances and normalized queries and keys."""
    config = import_module("llmfoundry.models.mpt.configuration_mpt").MPTConfig(
        d_model=2048, n_heads=16, n_layers=_LAYERS, max_seq_len=_SEQUENCE, vocab_size=50432, no_bias=True,
        attn_config={"attn_impl": "torch", "alibi": True, "qk_ln": True}, init_device="meta", use_cache=False,
        pad_token_id=None,
    )  # fmt: skip
    model, ids = home.MPTForCausalLM(config), _ids(_BATCH, _SEQUENCE)

    def loss() -> Tensor:
        with mock.patch.object(torch, "autocast", lambda *_, **__: nullcontext()):
            return _of_next(model(ids).logits, ids)

    return Built(model, loss)


def _openfold(home: Any) -> Built:
    sizes = {"c_m": 256, "c_z": 128, "c_hidden_msa_att": 32, "c_hidden_opm": 32, "c_hidden_mul": 128}
    sizes |= {"c_hidden_pair_att": 32, "c_s": 384, "no_heads_msa": 8, "no_heads_pair": 4, "transition_n": 4}
    rest = {"msa_dropout": 0.15, "pair_dropout": 0.25, "blocks_per_ckpt": None, "inf": 1e9, "eps": 1e-8}
    order = {"no_column_attention": False, "opm_first": False, "fuse_projection_weights": False}
    model = home.EvoformerStack(no_blocks=2, **sizes, **rest, **order)
    many, pairs = _some(1, 64, 192, 256), _some(1, 192, 192, 128)
    masks = {"msa_mask": torch.ones_like(many[..., 0]), "pair_mask": torch.ones_like(pairs[..., 0])}

    def loss() -> Tensor:
        new, other, single = model(many, pairs, **masks, chunk_size=None)
        return torch.stack([out.square().mean() for out in (new, other, single)]).sum()

    return Built(model, loss)


def _mvit(home: Any) -> Built:
    """The first four of the sixteen layers of MViTv2-S."""
    config = import_module("slowfast.config.defaults").get_cfg()
    config.merge_from_file(str(_folder("facebookresearch_SlowFast") / "configs/Kinetics/MVITv2_S_16x4.yaml"))
    config.MVIT.DEPTH = _LAYERS
    config.MVIT.DIM_MUL = config.MVIT.HEAD_MUL = [[1, 2.0], [3, 2.0]]
    config.MVIT.POOL_Q_STRIDE = config.MVIT.POOL_Q_STRIDE[:_LAYERS]
    model, clips, mixed = home.MViT(config), _some(2, 3, 16, 224, 224), _some(2, 400)
    return Built(model, lambda: functional.cross_entropy(model([clips]).float(), mixed.float()))


def _jepa(home: Any) -> Built:
    """The wide one of the two masks of configs/pretrain/vitl16.yaml, and the many small ones."""
    masks = import_module("src.models.utils.multimask")
    sizes = {"img_size": 224, "patch_size": 16, "num_frames": 16, "tubelet_size": 2, "uniform_power": True}
    wide = import_module("src.models.vision_transformer").VisionTransformer(
        **sizes, embed_dim=1024, depth=_LAYERS, num_heads=16, norm_layer=_NORM,
        qkv_bias=True,
    )  # fmt: skip
    narrow = home.vit_predictor(
        **sizes, embed_dim=1024, predictor_embed_dim=384, depth=_LAYERS, num_heads=16, use_mask_tokens=True
    )
    encoder, predictor = masks.MultiMaskWrapper(wide), masks.PredictorMultiMaskWrapper(narrow)
    target = copy.deepcopy(encoder).requires_grad_(False)
    clips = _some(4, 3, 16, 224, 224)
    seen, asked = [_ids(4, 320), _ids(4, 160)], [_ids(4, 1200), _ids(4, 1400)]
    chosen = import_module("src.masks.utils").apply_masks

    def loss() -> Tensor:
        with torch.no_grad():
            h = target(clips)
            h = chosen(functional.layer_norm(h, (h.size(-1),)), asked, concat=False)
        z = predictor(encoder(clips, seen), h, seen, asked)
        return torch.stack([(one - other).abs().mean() for one, other in zip(z, h, strict=True)]).mean()

    return Built(nn.ModuleDict({"encoder": encoder, "predictor": predictor, "target_encoder": target}), loss)


def _var(home: Any) -> Built:
    """As wide as the one with 16 layers, at 256 x 256."""
    model = home.VAR(
        Namespace(Cvae=32, vocab_size=4096, quantize=None), depth=_LAYERS, embed_dim=1024, num_heads=16,
        drop_path_rate=0.1 * 16 / 24, attn_l2_norm=True,
    )  # fmt: skip
    labels, maps, ids = _ids(4), _floats(4, 679, 32), _ids(4, 680)
    return Built(model, lambda: _of_next(model(labels, maps), ids))


def _flux(home: Any) -> Built:
    """As wide as FLUX.1-dev."""
    sizes = {"in_channels": 64, "out_channels": 64, "vec_in_dim": 768, "context_in_dim": 4096, "theta": 10000}
    sizes |= {"hidden_size": 3072, "num_heads": 24, "depth": 2, "depth_single_blocks": 2}
    rest = {"mlp_ratio": 4.0, "axes_dim": [16, 56, 56], "qkv_bias": True, "guidance_embed": True}
    model = home.Flux(home.FluxParams(**sizes, **rest))
    latents, words = _some(2, 1024, 64), _some(2, 512, 4096)
    places, times = {"img_ids": _floats(2, 1024, 3), "txt_ids": _floats(2, 512, 3)}, _some(2)
    given = {"img": latents, "txt": words, "timesteps": times, "y": _some(2, 768), "guidance": times} | places
    return Built(model, lambda: functional.mse_loss(model(**given).float(), latents.float()))


def _scgpt(home: Any) -> Built:
    """As examples/finetune_integration.py trains it, without the labels of batches."""
    masked = import_module("scgpt.loss").masked_mse_loss
    model = home.TransformerModel(
        36574, 512, 8, 512, _LAYERS, vocab={"<pad>": 0}, dropout=0.2, do_mvc=True, ecs_threshold=0.8
    )
    genes, values, padded = _ids(8, 1200), _some(8, 1200), torch.zeros(8, 1200, dtype=torch.bool)

    def loss() -> Tensor:
        out = model(genes, values, padded, MVC=True, ECS=True)
        both = masked(out["mlm_output"], values, padded) + masked(out["mvc_output"], values, padded)
        total: Tensor = both + 10 * out["loss_ecs"]
        return total

    return Built(model, loss)


def _lingua(home: Any) -> Built:
    """The model of apps/mtp/configs/debug.yaml."""
    model = home.LMTransformer(home.LMMTPArgs(
        dim=1024, n_layers=_LAYERS, n_heads=8, n_future_head=3, vocab_size=_VOCABULARY, max_seqlen=_SEQUENCE
    ))  # fmt: skip
    ids, later = _ids(_BATCH, _SEQUENCE), _ids(_BATCH, _SEQUENCE, 3)

    def loss() -> Tensor:
        with mock.patch("torch.utils.checkpoint.checkpoint", lambda function, *given, **_: function(*given)):
            total: Tensor = sum(model(ids, later))
        return total

    return Built(model, loss)


def _deepseek(home: Any) -> Built:
    """As wide as the model with 16B, with eight experts of which each token takes one."""
    kind = home.Transformer
    kind.forward = kind.forward.__wrapped__  # which wants no gradients
    count = {"bincount": lambda x, minlength: torch.ones(minlength, dtype=torch.int64)}
    home.torch = Namespace(**vars(torch) | count)
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = kind(home.ModelArgs(
            n_layers=3, max_batch_size=_BATCH, max_seq_len=_SEQUENCE, n_routed_experts=EXPERTS,
            n_activated_experts=1,
        ))  # fmt: skip
    finally:
        torch.set_default_dtype(torch.float32)
    ids, after = _ids(_BATCH, _SEQUENCE), _ids(_BATCH)
    return Built(model, lambda: functional.cross_entropy(model(ids).float(), after))


def _hyena(home: Any) -> Built:
    operator = import_module("standalone_hyena").HyenaOperator
    home.instantiate = lambda *_, **__: partial(operator, l_max=1024, filter_order=64)
    model, ids = home.SimpleLMHeadModel(768, _LAYERS, 3072, 50257, layer={}), _ids(_BATCH, 1024)
    return Built(model, lambda: _of_next(model(ids)[0].logits, ids))


def _mar(home: Any) -> Built:
    """As wide as MAR-B; what is masked is known, four fifths."""
    blocks = {"encoder_depth": _LAYERS, "decoder_depth": _LAYERS, "encoder_num_heads": 12}
    sizes = {"encoder_embed_dim": 768, "decoder_embed_dim": 768, "decoder_num_heads": 12}
    model = home.MAR(vae_stride=16, mlp_ratio=4, norm_layer=_NORM, **blocks, **sizes)
    model.sample_orders = lambda bsz: known(torch.arange(256, device="cpu").repeat(bsz, 1))
    model.mask_ratio_generator = Namespace(rvs=lambda _: [0.8])
    latents, labels = _floats(4, 16, 16, 16), _ids(4)
    return Built(model, lambda: model(latents, labels))


def _uvit(home: Any) -> Built:
    """As wide as configs/imagenet256_uvit_large.py."""
    model = home.UViT(
        img_size=32, patch_size=2, in_chans=4, embed_dim=1024, depth=_LAYERS, num_heads=16, num_classes=1001
    )
    latents, times, labels = _floats(8, 4, 32, 32), _floats(8), _ids(8)
    return Built(model, lambda: functional.mse_loss(model(latents, times, labels), latents))


def _croco(home: Any) -> Built:
    model = home.CroCoNet(enc_depth=_LAYERS, dec_depth=_LAYERS, pos_embed="RoPE100")
    masks, pictures = known(torch.arange(196, device="cpu").lt(176).repeat(8, 1)), _some(8, 3, 224, 224)
    del model.mask_generator  # nine of ten patches, by chance
    model.mask_generator = lambda _: masks
    judge = import_module("models.criterion").MaskedMSE(norm_pix_loss=True)
    return Built(model, lambda: judge(*model(pictures, pictures)))


def _attention(home: Any) -> Built:
    model = home.Transformer(_VOCABULARY, _VOCABULARY, 1, 1, n_layers=_LAYERS, n_position=256)
    source, target, gold = _ids(16, 256), _ids(16, 256), _ids(16 * 256)

    def loss() -> Tensor:
        """That of train.py, with its smoothing."""
        out = model(source, target)
        hot = torch.zeros_like(out).scatter(1, gold.view(-1, 1), 1)
        hot = hot * 0.9 + (1 - hot) * 0.1 / (_VOCABULARY - 1)
        losses = -(hot * functional.log_softmax(out, dim=1)).sum(dim=1)
        return losses.masked_select(gold.ne(1)).sum()

    return Built(model, loss)


#: The module that is imported, and what builds of it.
_HOMES: dict[str, tuple[str, Callable[[Any], Built]]] = {
    "karpathy_nanoGPT/gpt2": ("model", _karpathy),
    "karpathy_nanochat/gpt": ("nanochat.gpt", _karpathy),
    "facebookresearch_DiT/dit": ("models", _dit),
    "facebookresearch_mae/vit": ("models_mae", _mae),
    "facebookresearch_detr/resnet50": ("models.detr", _detr),
    "microsoft_Swin-Transformer/swin_v2": ("models.swin_transformer_v2", _swin),
    "openai_guided-diffusion/unet": ("guided_diffusion.unet", _guided),
    "CompVis_latent-diffusion/unet": ("ldm.modules.diffusionmodules.openaimodel", _latent),
    "thuml_Time-Series-Library/autoformer": ("models.Autoformer", _series),
    "thuml_Time-Series-Library/mamba": ("models.MambaSimple", _series),
    "JingyunLiang_SwinIR/swinir": ("models.network_swinir", _swinir),
    "swz30_Restormer/restormer": ("restormer_arch", _restormer),
    "mosaicml_llm-foundry/mpt": ("llmfoundry.models.mpt.modeling_mpt", _mpt),
    "aqlaboratory_openfold/evoformer": ("openfold.model.evoformer", _openfold),
    "facebookresearch_SlowFast/mvit_v2": ("slowfast.models.video_model_builder", _mvit),
    "facebookresearch_jepa/vjepa": ("src.models.predictor", _jepa),
    "FoundationVision_VAR/var": ("models.var", _var),
    "black-forest-labs_flux/flux": ("flux.model", _flux),
    "bowang-lab_scGPT/scgpt": ("scgpt.model.model", _scgpt),
    "facebookresearch_lingua/mtp": ("apps.mtp.transformer", _lingua),
    "deepseek-ai_DeepSeek-V3/moe": ("model", _deepseek),
    "HazyResearch_safari/hyena": ("src.models.sequence.simple_lm", _hyena),
    "LTH14_mar/mar": ("models.mar", _mar),
    "baofff_U-ViT/uvit": ("libs.uvit", _uvit),
    "naver_croco/croco": ("models.croco", _croco),
    "jadore801120_attention-is-all-you-need-pytorch/transformer": ("transformer.Models", _attention),
}
#: Where in a clone its modules are.
_UNDER = {
    "swz30_Restormer": "basicsr/models/archs",
    "black-forest-labs_flux": "src",
    "deepseek-ai_DeepSeek-V3": "inference",
}
#: What a clone asks for and its model does not: kernels it does without, training, files, drawing.
_UNUSED: dict[str, tuple[str, ...]] = {
    "thuml_Time-Series-Library": ("matplotlib",),
    "CompVis_latent-diffusion": ("pytorch_lightning", "cv2", "matplotlib"),
    "mosaicml_llm-foundry": ("composer", "torchaudio"),
    "aqlaboratory_openfold": ("attn_core_inplace_cuda",),
    "facebookresearch_SlowFast": ("pytorchvideo", "detectron2"),
    "facebookresearch_lingua": ("xformers",),
    "deepseek-ai_DeepSeek-V3": ("triton",),
    "HazyResearch_safari": ("hydra",),
}
#: Packages that import all they have, beside what is asked of them.
_BARE: dict[str, tuple[str, ...]] = {
    "facebookresearch_detr": ("models",),
    "microsoft_Swin-Transformer": ("models",),
    "mosaicml_llm-foundry": ("llmfoundry", "llmfoundry.utils", "llmfoundry.models"),
    "aqlaboratory_openfold": ("openfold", "openfold.utils"),
    "facebookresearch_SlowFast": ("slowfast", "slowfast.models"),
    "FoundationVision_VAR": ("models",),
    "bowang-lab_scGPT": ("scgpt", "scgpt.model"),
    "HazyResearch_safari": ("src.models", "src.models.sequence"),
}
#: What reads numbers while it is built.
_OF_NUMBERS: tuple[str, ...] = ("microsoft_Swin-Transformer", "JingyunLiang_SwinIR", "FoundationVision_VAR")
_OF_NUMBERS += ("facebookresearch_SlowFast",)
#: What asks for single precision.
_SINGLE: tuple[str, ...] = ("facebookresearch_DiT", "openai_guided-diffusion", "CompVis_latent-diffusion")
_SINGLE += ("thuml_Time-Series-Library", "FoundationVision_VAR", "HazyResearch_safari", "LTH14_mar")
_SINGLE += ("baofff_U-ViT",)


def build(name: str) -> Built:
    """The model ``OWNER_REPOSITORY/name``, in bf16 or float32 and training, on the meta device."""
    owner = name.partition("/")[0]
    module, of = _HOMES[name]
    with (
        _cloned(_folder(name) / _UNDER.get(owner, ""), _BARE.get(owner, ())),
        _without(_UNUSED.get(owner, ())),
        mock.patch.dict(os.environ, NANOCHAT_DTYPE="bfloat16"),
        mock.patch.object(np, "float", float, create=True),
    ):
        home = import_module(module)
        with nullcontext() if owner in _OF_NUMBERS else torch.device("meta"):
            built = of(home)
    if owner == "deepseek-ai_DeepSeek-V3":  # whose rotations are complex numbers
        built.model.train()
    else:
        built.model.to("meta", torch.float32 if owner in _SINGLE else torch.bfloat16).train()
    return built
