"""The rest of the tenth list: pictures and videos, several senses at once, and other fields.

As ``posts.py`` has it. The clones: sail-sg/MDT 7d26c2162c46, OpenGVLab/VideoMAEv2 29eab1e8a588, genmoai/mochi
0c86aebf386e, hkproj/pytorch-paligemma 34e1d98d3996, yformer/EfficientSAM d525f622e6f6,
time-series-foundation-models/lag-llama 013ff0c786c6, meta-recsys/generative-recommenders db1bf8f2e8f6,
wenet-e2e/wenet 015469960db7, dandelin/ViLT 762fd3975c18, Alpha-VLLM/Lumina-T2X 1c606962f958, naver/dust3r
4c24a6ebf048 (and naver/croco d7de07058452, of which it is made) and apple/ml-4m cda590faa3b9.

Imports ask for gluonts 0.17.0, toolz 1.2.0, timm, transformers and einops.
"""

# What comes of modules is anything.
# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.hub.values import known
from benchmarks.libraries.clones import _cloned, _folder
from benchmarks.libraries.models import Built, _ids, _some
from benchmarks.libraries.posts import _LAYERS, LISTED, _plain
from benchmarks.libraries.recipes import _together
from benchmarks.libraries.recipes_truth import before
from benchmarks.libraries.senses import _floats


def _mdt(home: Any) -> Built:
    """MDTv2-B/2: all of a picture and four tenths of it left out, in one step."""
    model = home.MDTv2(hidden_size=768, depth=6, num_heads=12, decode_layer=2, mask_ratio=0.3)
    masks = model.random_masking
    model.random_masking = lambda x, _: masks(x, 0.4)  # a ratio that only a device could tell
    noised, noise, times, labels = _some(16, 4, 32, 32), _some(16, 4, 32, 32), _ids(16), _ids(16)

    def loss() -> Tensor:
        whole = functional.mse_loss(model(noised, times, labels)[:, :4], noise)
        masked = functional.mse_loss(model(noised, times, labels, enable_mask=True)[:, :4], noise)
        return whole + masked

    return Built(model, loss)


def _video_mae(home: Any) -> Built:
    """VideoMAE V2 base with the attention by cosines: a tenth is seen, half of the rest is to be told."""
    model = home.PretrainVisionTransformer(
        encoder_depth=_LAYERS, decoder_embed_dim=384, decoder_depth=2, decoder_num_heads=6, qkv_bias=True,
        cos_attn=True,
    )  # fmt: skip
    clips, wanted = _some(8, 3, 16, 224, 224), _some(8, 784, 1536)
    with torch.device("cpu"):
        unseen = (torch.arange(1568) % 10 != 0)[None].repeat(8, 1)
        told = (torch.arange(1568) % 2 != 0)[None].repeat(8, 1)
    hidden, left = known(unseen), known(told)
    return Built(model, lambda: functional.mse_loss(model(clips, hidden, left), wanted))


def _mochi(home: Any) -> Built:
    """Mochi 1 preview, seven latent frames of 480 x 848."""
    model = home.AsymmDiTJoint(
        depth=_LAYERS, patch_size=2, num_heads=24, hidden_size_x=3072, hidden_size_y=1536, mlp_ratio_x=4.0,
        mlp_ratio_y=4.0, in_channels=12, qk_norm=True, qkv_bias=False, out_bias=True, patch_embed_bias=True,
        timestep_mlp_bias=True, timestep_scale=1000.0, t5_feat_dim=4096, t5_token_length=256,
        rope_theta=10000.0, attention_mode="sdpa",
    )  # fmt: skip
    noised, sigma, words = _some(1, 12, 7, 60, 106), _some(1), _some(1, 256, 4096)
    seen = torch.ones(1, 256, dtype=torch.bool, device="meta")
    many = 7 * 30 * 53 + 256
    packed = {"valid_token_indices_kv": None, "cu_seqlens_kv": None, "max_seqlen_in_batch_kv": many}
    return Built(model, lambda: functional.mse_loss(model(noised, sigma, [words], [seen], packed), noised))


def _paligemma(home: Any) -> Built:
    """PaliGemma 3B at 224, the tower of pictures frozen, the projector and the language model trained."""
    config = home.PaliGemmaConfig(
        vision_config={
            "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": _LAYERS, "patch_size": 14,
            "num_attention_heads": 16, "image_size": 224, "num_image_tokens": 256,
        },
        text_config={
            "vocab_size": 257216, "hidden_size": 2048, "intermediate_size": 16384, "num_key_value_heads": 1,
            "num_hidden_layers": _LAYERS, "num_attention_heads": 8,
        },
        image_token_index=257152, pad_token_id=0,
    )  # fmt: skip
    model = home.PaliGemmaForConditionalGeneration(config)
    model.tie_weights()
    model.vision_tower.requires_grad_(False)
    ids, pictures, mask = _ids(4, 384), _some(4, 3, 224, 224), torch.ones(4, 384, device="meta")

    def loss() -> Tensor:
        logits = model(ids, pictures, mask)["logits"]
        return functional.cross_entropy(logits[:, 256:-1].flatten(0, 1), ids[:, 257:].flatten())

    return Built(model, _plain(loss))


def _efficient_sam(home: Any) -> Built:
    """EfficientSAM-S, eight prompts of two points for each of two pictures."""
    model = home.build_efficient_sam(encoder_patch_embed_dim=384, encoder_num_heads=6)
    model.image_encoder.blocks = model.image_encoder.blocks[:_LAYERS]
    pictures, points, labels = _floats(2, 3, 1024, 1024), _floats(2, 8, 2, 2), _floats(2, 8, 2)
    masks, overlap = _floats(2, 8, 3, 256, 256), _floats(2, 8, 3)

    def loss() -> Tensor:
        told, quality = model(pictures, points, labels, scale_to_original_image_size=False)
        lost = functional.binary_cross_entropy_with_logits(told, masks)
        return lost + functional.mse_loss(quality, overlap)

    return Built(model, loss)


def _lag_llama(home: Any) -> Built:
    """Lag-Llama as the released checkpoint has it, and the log-likelihood of Student's t."""
    told = import_module("gluonts.torch.distributions").StudentTOutput()
    lags = [*range(84), *range(90, 1093, 120)]
    model = home.LagLlamaModel(
        context_length=512, max_context_length=2048, scaling="robust", input_size=1, n_layer=8,
        n_embd_per_head=16, n_head=9, lags_seq=lags, distr_output=told, time_feat=True,
    )  # fmt: skip
    long = max(lags) + 512
    series, seen, times = _floats(64, long), _floats(64, long), _floats(64, long, 6)
    later, features = _floats(64, 1), _floats(64, 1, 6)

    def loss() -> Tensor:
        made, place, scale = model(series, seen, times, features, later)
        spread = told.distribution(made, loc=place, scale=scale)
        return -spread.log_prob(series[:, -512:]).mean()

    return Built(model, loss)


def _hstu(home: Any) -> Built:
    """HSTU large as configs/ml-20m has it, with a softmax over 32 sampled items; all are as long."""
    operators: Any = torch.ops
    operators.fbgemm = Namespace(  # sequences as long as the longest are a view of those without padding
        jagged_to_padded_dense=lambda values, offsets, max_lengths, padding_value=0.0: values.unflatten(
            0, (-1, max_lengths[0])
        ),
        dense_to_jagged=lambda x, offsets: (x.flatten(0, 1),),
        asynchronous_complete_cumsum=lambda x: functional.pad(x.cumsum(0), (1, 0)),
    )
    around = "generative_recommenders.research"
    under = f"{around}.modeling.sequential"
    items = import_module(f"{under}.embedding_modules").LocalEmbeddingModule(26744, 256)
    places = import_module(f"{under}.input_features_preprocessors")
    ends = import_module(f"{under}.output_postprocessors")
    alike = import_module(f"{around}.rails.similarities.dot_product_similarity_fn")
    model = home.HSTU(
        200, 11, 256, 4, 8, 32, 32, "rel_bias", "uvqk", "silu", 0.2, 0.0, items, alike.DotProductSimilarity(),
        places.LearnablePositionalEmbeddingInputFeaturesPreprocessor(211, 256, 0.2),
        ends.L2NormEmbeddingPostprocessor(256), verbose=False,
    )  # fmt: skip
    lengths, ids, when, wrong = _ids(128), _ids(128, 211), _ids(128, 211), _ids(128, 210, 32)

    def loss() -> Tensor:
        given = model.get_item_embeddings(ids)
        out = model(lengths, ids, given, {"timestamps": when})[:, :-1]
        right = functional.normalize(model.get_item_embeddings(ids[:, 1:]), dim=-1)
        others = functional.normalize(model.get_item_embeddings(wrong), dim=-1)
        near = (out * right).sum(-1, keepdim=True) / 0.05
        far = torch.einsum("bnd,bnmd->bnm", out, others) / 0.05
        return -functional.log_softmax(torch.cat((near, far), -1), -1)[..., 0].mean()

    return Built(model, loss)


def _squeezeformer(home: Any) -> Built:
    """Squeezeformer as examples/librispeech has its small one, and a piece of a word for each frame: CTC has
    no backward on the meta device."""
    model = home.SqueezeformerEncoder(
        80, 256, 256, 4, num_blocks=4, reduce_idx=1, recover_idx=3, dw_stride=True, normalize_before=False
    )
    head = nn.Linear(256, 5002)
    sounds, lengths, words = _floats(16, 1603, 80), _ids(16), _ids(16 * 400)

    def loss() -> Tensor:
        return functional.cross_entropy(head(model(sounds, lengths)[0]).flatten(0, 1), words)

    return Built(_together(encoder=model, ctc_lo=head), loss)


class LightningModule(nn.Module):
    """What of pytorch_lightning's a model asks for."""

    def save_hyperparameters(self) -> None:
        self.hparams = Namespace(config=sys._getframe(1).f_locals["config"])


def _vilt(home: Any) -> Built:
    """ViLT-B/32, words that are masked beside a picture of 384 x 384, all of it seen."""
    losses = dict.fromkeys(("mlm", "itm", "mpp", "vqa", "nlvr2", "irtr"), 0) | {"mlm": 1, "itm": 1}
    config = {
        "vocab_size": 30522, "hidden_size": 768, "num_layers": 12, "num_heads": 12, "mlp_ratio": 4,
        "max_text_len": 40, "drop_rate": 0.1, "load_path": "-", "test_only": True, "loss_names": losses,
        "vit": "made", "max_image_len": 200,
    }  # fmt: skip
    sees: Any = import_module("vilt.modules.vision_transformer")
    sees.made = lambda pretrained, config: sees.VisionTransformer(
        384, 32, depth=4, config=config, qkv_bias=True
    )
    with mock.patch.object(torch, "load", lambda *_, **__: {"state_dict": {}}):
        model = home.ViLTransformerSS(config)
    ids, pictures, labels = _ids(32, 40), _some(32, 3, 384, 384), _ids(32)
    mask = torch.ones(32, 40, dtype=torch.int64, device="meta")
    given = {"text_ids": ids, "text_ids_mlm": ids, "text_labels_mlm": ids, "text_masks": mask}

    def loss() -> Tensor:
        tower = model.transformer
        with before():  # visual_embed, of pictures that are all as large
            patches = tower.patch_embed(pictures).flatten(2).transpose(1, 2)
            seen = torch.cat((tower.cls_token.expand(32, -1, -1), patches), 1)
            seen = tower.pos_drop(seen + tower.pos_embed)
            all_of_it = torch.ones(seen.shape[:2], dtype=torch.int64)
            out = model.infer(given, mask_text=True, image_embeds=seen, image_masks=all_of_it)
        words = functional.cross_entropy(model.mlm_score(out["text_feats"]).flatten(0, 1), ids.flatten())
        return words + functional.cross_entropy(model.itm_score(out["cls_feats"]), labels)

    return Built(model, loss)


def _next_dit(home: Any) -> Built:
    """Lumina-Next 2B with shared keys: words beside the picture in each attention, behind a gate."""
    with mock.patch.object(Tensor, "cuda", lambda x: x):
        model = home.NextDiT(
            dim=2304, n_layers=_LAYERS, n_heads=32, n_kv_heads=8, qk_norm=True, cap_feat_dim=2048,
            learn_sigma=False, use_flash_attn=False,
        )  # fmt: skip
    noised, times, words = _some(4, 4, 128, 128), _some(4), _some(4, 128, 2048)
    seen = torch.ones(4, 128, dtype=torch.int32, device="meta")
    return Built(model, lambda: functional.mse_loss(model(noised, times, words, seen), noised))


def _e_branchformer(home: Any) -> Built:
    """E-Branchformer as examples/aishell has it: attention beside gated convolutions, both joined."""
    model = home.EBranchformerEncoder(
        80, 256, 4, 1024, cgmlp_linear_units=1024, num_blocks=4, cgmlp_conv_kernel=31
    )
    head = nn.Linear(256, 4233)
    sounds, lengths, words = _floats(16, 1603, 80), _ids(16), _ids(16 * 400)

    def loss() -> Tensor:
        return functional.cross_entropy(head(model(sounds, lengths)[0]).flatten(0, 1), words)

    return Built(_together(encoder=model, ctc_lo=head), loss)


def _dust3r(_: Any) -> Built:
    """DUSt3R with the head of DPT at 512, on pairs of pictures, the decoder as deep as it asks for."""
    with _cloned(_folder("naver_croco/croco"), ()):
        home = import_module("dust3r.model")
        model = home.AsymmetricCroCo3DStereo(
            pos_embed="RoPE100", img_size=(512, 512), head_type="dpt", enc_embed_dim=1024,
            enc_depth=_LAYERS, enc_num_heads=16, dec_embed_dim=768, dec_depth=12, dec_num_heads=12,
            landscape_only=False,
        )  # fmt: skip
    with torch.device("cpu"):
        size = torch.tensor([[384, 512]] * 2)
    views = [
        {"img": _floats(2, 3, 384, 512), "true_shape": known(size), "instance": [f"{at}a", f"{at}b"]}
        for at in (0, 1)
    ]
    points = _floats(2, 384, 512, 3)

    def loss() -> Tensor:
        lost = torch.zeros((), device="meta")
        for told in model(*views):
            off = (told.get("pts3d", told.get("pts3d_in_other_view")) - points).norm(dim=-1)
            lost = lost + (off * told["conf"] - 0.2 * told["conf"].log()).mean()
        return lost

    return Built(model, loss)


def _four_m(home: Any) -> Built:
    """4M-7 base with SwiGLU and normalized queries: a picture and two kinds of tokens, of which a part is
    given and a part is told, as many of either kind."""
    home.random = Namespace(sample=lambda items, _: list(items))  # of what Python 3.11 does not sample
    takes, tells = (import_module(f"fourm.models.{x}coder_embeddings") for x in ("en", "de"))
    words = {"tok_depth@224": 8192, "tok_semseg@224": 4096}
    given = {x: takes.ImageTokenEncoderEmbedding(vocab_size=many) for x, many in words.items()}
    told = {x: tells.ImageTokenDecoderEmbedding(vocab_size=many) for x, many in words.items()}
    names = ("rgb@224", *words)
    model = home.FourM(
        {"rgb@224": takes.ImageEncoderEmbedding(num_channels=3, patch_size=16), **given}, told,
        {name: {"id": at, "type": "img"} for at, name in enumerate(names)},
        encoder_depth=_LAYERS, decoder_depth=_LAYERS, qkv_bias=False, proj_bias=False, mlp_bias=False,
        gated_mlp=True, qk_norm=True, act_layer=nn.SiLU, norm_layer=partial(home.LayerNorm, bias=False),
    )  # fmt: skip
    masks = model.forward_mask_decoder
    with torch.device("cpu"):
        kinds = (torch.arange(128) % 2 + 1)[None].repeat(32, 1)
    model.forward_mask_decoder = lambda *x: (*masks(*x)[:-1], known(kinds))
    hidden = torch.zeros(32, 196, dtype=torch.bool, device="meta")
    rest = {"input_mask": hidden, "target_mask": hidden, "decoder_attention_mask": _ids(32, 196)}

    def loss() -> Tensor:
        batch = {name: {"tensor": _ids(32, 14, 14), **rest} for name in words}
        picture = {"rgb@224": {"tensor": _some(32, 3, 224, 224), **rest}}
        return model(picture | batch, num_encoder_tokens=128, num_decoder_tokens=128)[0]

    return Built(model, loss)


#: The module that is imported, and what builds of it.
_HOMES: dict[str, tuple[str, Callable[[Any], Built]]] = {
    "sail-sg_MDT/mdt_v2": ("masked_diffusion.models", _mdt),
    "OpenGVLab_VideoMAEv2/cosine": ("models.modeling_pretrain", _video_mae),
    "genmoai_mochi/asymmetric": ("genmo.mochi_preview.dit.joint_model.asymm_models_joint", _mochi),
    "hkproj_pytorch-paligemma/frozen_tower": ("modeling_gemma", _paligemma),
    "yformer_EfficientSAM/vit_s": ("efficient_sam.efficient_sam", _efficient_sam),
    "time-series-foundation-models_lag-llama/lag_llama": ("lag_llama.model.module", _lag_llama),
    "meta-recsys_generative-recommenders/hstu": (
        "generative_recommenders.research.modeling.sequential.hstu",
        _hstu,
    ),
    "wenet-e2e_wenet/squeezeformer": ("wenet.models.squeezeformer.encoder", _squeezeformer),
    "wenet-e2e_wenet/e_branchformer": ("wenet.models.e_branchformer.encoder", _e_branchformer),
    "dandelin_ViLT/vilt": ("vilt.modules.vilt_module", _vilt),
    "apple_ml-4m/base": ("fourm.models.fm", _four_m),
    "Alpha-VLLM_Lumina-T2X/next": ("models.nextdit", _next_dit),
    "naver_dust3r/dpt": ("math", _dust3r),
}
NAMES = [name for name in LISTED if name in _HOMES]
#: Where in a clone its modules are.
_UNDER = {"genmoai_mochi": "src", "Alpha-VLLM_Lumina-T2X": "lumina_next_t2i_mini"}
#: What a clone asks for and its model does not.
_UNUSED: dict[str, tuple[str, ...]] = {"wenet-e2e_wenet": ("torchaudio", "whisper", "langid")}
#: Packages that import all they have, beside what is asked of them.
_BARE: dict[str, tuple[str, ...]] = {
    "sail-sg_MDT": ("masked_diffusion",),
    "OpenGVLab_VideoMAEv2": ("models",),
    "time-series-foundation-models_lag-llama": ("lag_llama", "lag_llama.model"),
    "wenet-e2e_wenet": ("wenet", "wenet.models", "wenet.utils"),
    "dandelin_ViLT": ("vilt", "vilt.modules"),
    "yformer_EfficientSAM": ("efficient_sam",),
    "Alpha-VLLM_Lumina-T2X": ("models",),
    "naver_dust3r": ("dust3r",),
    "apple_ml-4m": ("fourm", "fourm.models", "fourm.utils", "fourm.data"),
}
_STUBS: dict[str, dict[str, dict[str, Any]]] = {
    "genmoai_mochi": {
        "genmo.lib.attn_imports": {
            "flash_varlen_attn": None,
            "sage_attn": None,
            "sdpa_attn_ctx": lambda **_: nullcontext(),
        },
    },
    "wenet-e2e_wenet": {"wenet.models.squeezeformer.conv2d": {"Conv2dValid": nn.Conv2d}},
    "Alpha-VLLM_Lumina-T2X": {
        "flash_attn": {"flash_attn_varlen_func": None},
        "flash_attn.bert_padding": dict.fromkeys(("index_first_axis", "pad_input", "unpad_input")),
    },
    "apple_ml-4m": {
        "fourm.data.modality_info": {"MODALITY_INFO": {}},
        "fourm.utils.timm.registry": {"register_model": lambda x: x},
    },
    "naver_dust3r": {"dust3r.utils.path_to_croco": {}},
    "dandelin_ViLT": {
        "pytorch_lightning": {"LightningModule": LightningModule},
        "vilt.modules.objectives": {"init_weights": lambda _: None},
        "vilt.modules.vilt_utils": {"set_metrics": lambda _: None},
    },
}
#: What reads numbers while it is built.
_OF_NUMBERS: tuple[str, ...] = ("OpenGVLab_VideoMAEv2", "dandelin_ViLT", "naver_dust3r")
_OF_NUMBERS += ("apple_ml-4m",)
#: What asks for single precision.
_SINGLE: tuple[str, ...] = ("yformer_EfficientSAM", "time-series-foundation-models_lag-llama")
_SINGLE += ("meta-recsys_generative-recommenders", "wenet-e2e_wenet", "naver_dust3r")
