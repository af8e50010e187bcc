"""The rest of the eleventh list: pictures, several senses at once, and other fields.

As ``studies.py`` has it. The clones: whlzy/FiT b22b7b0ac4bf, sihyun-yu/REPA 67f714503e38,
valeoai/Maskgit-pytorch 5ffd61f7dde5, openai/shap-e 50131012ee11, salesforce/ALBEF b9727e43c304,
cvg/LightGlue 1fd587b6f5a7, cheerss/CrossFormer 795201075f00, Beckschen/TransUNet 02ef0010b36e,
XPixelGroup/HAT 1638a9a82258, qq456cvb/Point-Transformers 5f6ef586b24e,
moment-timeseries-foundation-model/moment 38f7310ad594, thuml/Time-Series-Library 4e938a176710, DataDog/toto
46bd92adeeef, soda-inria/tabicl 8f1aa2098c89, rampasek/GraphGPS 28015707cbab and ming024/FastSpeech2
d4e79eb52e8b.

Imports ask for robotic-transformer-pytorch 0.2.3, classifier-free-guidance-pytorch 0.7.1, jaxtyping, gluonts,
rotary-embedding-torch, torch-geometric, performer-pytorch, reformer-pytorch, yacs, scipy, timm, transformers
and einops. What is imported and not used is left out: the clone of FiT has no sincos.py.
"""

# What comes of modules is anything.
# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from importlib import import_module
from typing import Any
from unittest import mock

import torch
import transformers
import transformers.modeling_utils
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.hub.values import known
from benchmarks.libraries.clones import _at_once
from benchmarks.libraries.models import Built, _ids, _of_classes, _some
from benchmarks.libraries.recipes import _together
from benchmarks.libraries.recipes_truth import before
from benchmarks.libraries.senses import _floats
from benchmarks.libraries.studies import _LAYERS, LISTED
from benchmarks.libraries.workloads import _named


def _fit(home: Any) -> Built:
    """FiTv2-XL/2 as configs/fitv2/config_fitv2_xl.yaml has it, and the velocity of a straight path."""
    model = home.FiT(
        context_size=256, hidden_size=1152, depth=_LAYERS, num_heads=16, learn_sigma=False, use_sit=True,
        use_swiglu=True, q_norm="layernorm", k_norm="layernorm", adaln_type="lora", adaln_lora_dim=288,
    )  # fmt: skip
    noised, wanted, times, labels = _some(16, 256, 16), _some(16, 256, 16), _some(16), _ids(16)
    grid, mask = _ids(16, 2, 256), torch.ones(16, 256, dtype=torch.bfloat16, device="meta")
    return Built(model, lambda: functional.mse_loss(model(noised, times, labels, grid, mask), wanted))


def _repa(home: Any) -> Built:
    """SiT-B/2, what comes out of its second layer beside the features of DINOv2, as loss.py has it."""
    model = home.SiT(
        path_type="linear", hidden_size=768, decoder_hidden_size=768, encoder_depth=2, depth=_LAYERS,
        num_heads=12, qk_norm=False, fused_attn=True,
    )  # fmt: skip
    noised, labels, times, features = _some(16, 4, 32, 32), _ids(16), _some(16), _some(16, 256, 768)

    def loss() -> Tensor:
        out, (told,) = model(noised, times, labels)
        lost = functional.mse_loss(out, noised)
        for one, other in zip(features, told, strict=True):
            alike = functional.normalize(one, dim=-1) * functional.normalize(other, dim=-1)
            lost = lost - 0.5 * alike.sum(-1).mean() / 16
        return lost

    return Built(model, loss)


def _maskgit(home: Any) -> Built:
    """MaskGIT base on codes of 16 x 16."""
    model = home.Transformer(
        input_size=16, hidden_dim=768, codebook_size=16384, depth=_LAYERS, heads=12, mlp_dim=3072,
        dropout=0.1, register=1,
    )  # fmt: skip
    codes, labels, dropped = _ids(32, 16, 16), _ids(32), torch.zeros(32, dtype=torch.bool, device="meta")

    def loss() -> Tensor:
        told = model(codes, labels, dropped)
        return functional.cross_entropy(told.reshape(-1, told.shape[-1]), codes.reshape(-1))

    return Built(model, loss)


def _shap_e(home: Any) -> Built:
    """Shap-E's model of pictures, on latents of 1024 x 1024, with features of a frozen CLIP."""
    home.checkpoint = _at_once
    home.FrozenImageCLIP = lambda _: Namespace(
        grid_size=16, grid_feature_dim=1024, embed_images_grid=lambda x: x
    )
    model = home.CLIPImageGridPointDiffusionTransformer(
        device=torch.device("meta"), dtype=torch.float32, input_channels=1024, output_channels=1024,
        n_ctx=1024, width=1024, layers=_LAYERS, heads=16, time_token_cond=True, use_pos_emb=True,
        cond_drop_prob=0.1,
    )  # fmt: skip
    noised, times, features = _some(4, 1024, 1024), _ids(4), _some(4, 1024, 256)
    return Built(model, lambda: functional.mse_loss(model(noised, times, embeddings=features), noised))


def _albef(_: Any) -> Built:
    """ALBEF's pretraining: pictures against words, with queues and a momentum model; pairs; masked words."""
    config = transformers.BertConfig(
        fusion_layer=2, encoder_width=768, num_hidden_layers=4, pad_token_id=0, chunk_size_feed_forward=0
    )
    gone = ("apply_chunking_to_forward", "find_pruneable_heads_and_indices", "prune_linear_layer")
    with ExitStack() as stack:
        for name in gone:
            chunks = (lambda of, *rest: of(rest[-1])) if name == gone[0] else None
            stack.enter_context(mock.patch.object(transformers.modeling_utils, name, chunks, create=True))
        home: Any = import_module("models.model_pretrain")
    words: Any = import_module("models.xbert")
    words.BertPreTrainedModel.init_weights = lambda _: None
    words.BertPreTrainedModel.get_head_mask = lambda _, __, many: [None] * many
    words.BertPreTrainedModel.invert_attention_mask = lambda _, mask: (1.0 - mask[:, None, None]) * -1e9
    words.BertForMaskedLM.from_pretrained = lambda _, config: words.BertForMaskedLM(config)
    sees = home.VisionTransformer
    home.VisionTransformer = lambda **given: sees(**given | {"depth": _LAYERS})
    home.BertConfig = Namespace(from_json_file=lambda _: config)
    home.concat_all_gather = lambda x: x
    model = home.ALBEF(
        tokenizer=Namespace(pad_token_id=0, cls_token_id=101, mask_token_id=103), init_deit=False,
        config={
            "mlm_probability": 0.15, "embed_dim": 256, "image_res": 256, "vision_width": 768,
            "bert_config": "-", "temp": 0.07, "queue_size": 65536, "momentum": 0.995,
        },
    )  # fmt: skip
    pictures = _floats(16, 3, 256, 256)
    given = Namespace(input_ids=_ids(16, 30), attention_mask=torch.ones(16, 30, device="meta"))
    return Built(model, lambda: torch.stack(model(pictures, given, alpha=0.4)).sum())


def _rt1(home: Any) -> Built:
    """RT-1 as its README has it, its stages of MaxViT shorter, the words' features given."""
    texts = vars(import_module("classifier_free_guidance_pytorch.classifier_free_guidance_pytorch"))
    texts["CONDITION_CONFIG"]["t5"] = lambda *_, **__: Namespace(dim_latent=768)
    sees = home.MaxViT(
        num_classes=1000, dim_conv_stem=64, dim=96, depth=(1, 1, 2, 1), window_size=7, dropout=0.1
    )
    model = home.RT1(vit=sees, num_actions=11, depth=_LAYERS, heads=8, dim_head=64, cond_drop_prob=0.2)
    clips, words, actions = _floats(4, 3, 6, 224, 224), _floats(4, 768), _ids(4 * 6 * 11)

    def loss() -> Tensor:
        return functional.cross_entropy(model(clips, text_embeds=words).flatten(0, 2), actions)

    return Built(model, loss)


def _light_glue(home: Any) -> Built:
    """LightGlue on SuperPoint, as glue-factory trains it: the assignment after every layer."""
    model = home.LightGlue(features=None, n_layers=_LAYERS, flash=False)
    points, seen, right = _floats(8, 1024, 2), _floats(8, 1024, 256), _floats(8, 1024, 1024)

    def loss() -> Tensor:
        one = two = model.input_proj(seen)
        with before():
            where = [home.normalize_keypoints(points) for _ in range(2)]
        places = [model.posenc(x) for x in where]
        lost = torch.zeros((), device="meta")
        for layer, assign in zip(model.transformers, model.log_assignment, strict=True):
            one, two = layer(one, two, *places)
            scores, _ = assign(one, two)
            lost = lost - (scores[:, :-1, :-1] * right).sum((1, 2)).mean() - scores[:, :-1, -1].mean()
        return lost / _LAYERS

    return Built(model, loss)


def _cross_former(home: Any) -> Built:
    """CrossFormer-S, as configs/small_patch4_group7_224.yaml has it."""
    model = home.CrossFormer(
        patch_size=[4, 8, 16, 32], embed_dim=96, depths=[2, 2, 2, 2], num_heads=[3, 6, 12, 24],
        group_size=[7] * 4, mlp_ratio=[4.0] * 4, merge_size=[[2, 4]] * 3, drop_path_rate=0.2,
    )  # fmt: skip
    return _of_classes(model, _some(16, 3, 224, 224))


class ConfigDict(dict[str, Any]):
    """ml_collections' dictionary, whose keys are attributes."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


def _trans_unet(home: Any) -> Built:
    """TransUNet of R50+ViT-B/16 on Synapse, cross-entropy and Dice."""
    config = home.CONFIGS["R50-ViT-B_16"]
    config.n_classes, config.transformer.num_layers, config.patches.grid = 9, _LAYERS, (14, 14)
    model, pictures, labels = (
        home.VisionTransformer(config, 224, 9),
        _floats(8, 1, 224, 224),
        _ids(8, 224, 224),
    )

    def loss() -> Tensor:
        logits = model(pictures)
        told, wanted = logits.softmax(1), functional.one_hot(labels, 9).movedim(-1, 1)
        both = (told * wanted).sum((0, 2, 3))
        dice = 1 - (2 * both + 1e-5) / ((told * told).sum((0, 2, 3)) + wanted.sum((0, 2, 3)) + 1e-5)
        return 0.5 * functional.cross_entropy(logits, labels) + 0.5 * dice.mean()

    return Built(model, loss)


def _hat(home: Any) -> Built:
    """HAT, four times as large, as options/train/train_HAT_SRx4_from_scratch.yml has it, two groups deep."""
    model = home.HAT(
        img_size=64, in_chans=3, window_size=16, compress_ratio=3, squeeze_factor=30, conv_scale=0.01,
        overlap_ratio=0.5, depths=[2, 2], embed_dim=180, num_heads=[6, 6], mlp_ratio=2, upscale=4,
        upsampler="pixelshuffle", img_range=1.0, resi_connection="1conv",
    )  # fmt: skip
    small, large = _floats(4, 3, 64, 64), _floats(4, 3, 256, 256)
    return Built(model, lambda: functional.l1_loss(model(small), large))


def _points(home: Any) -> Built:
    """Point Transformer on ModelNet40 as config/cls.yaml has it, with two of its four transitions."""
    sizes = Namespace(nneighbor=16, nblocks=2, transformer_dim=512)
    model = home.PointTransformerCls(Namespace(num_point=1024, model=sizes, num_class=40, input_dim=6))
    return _of_classes(model, _floats(8, 1024, 6))


def _moment(home: Any) -> Built:
    """MOMENT-1 base, a third of the patches to be told again."""
    sizes = {"d_model": 768, "d_ff": 2048, "num_layers": _LAYERS, "num_heads": 12, "d_kv": 64}
    rest = {"feed_forward_proj": "gated-gelu", "vocab_size": 32128, "use_cache": False}
    given = {
        "task_name": "reconstruction", "seq_len": 512, "patch_len": 8, "patch_stride_len": 8, "d_model": 768,
        "transformer_backbone": "google/flan-t5-base", "transformer_type": "encoder_only",
        "t5_config": sizes | rest, "freeze_embedder": False, "freeze_encoder": False, "freeze_head": False,
        "enable_gradient_checkpointing": False, "add_positional_embedding": True, "mask_ratio": 0.3,
    }  # fmt: skip
    model = home.MOMENT(Namespace(**given))
    series, seen = _floats(64, 1, 512), torch.ones(64, 512, device="meta")

    def loss() -> Tensor:
        told = model(x_enc=series, input_mask=seen, mask=seen).reconstruction
        return ((told - series).square() * (1 - seen[:, None])).sum() / 64

    return Built(model, loss)


def _time_xer(home: Any) -> Built:
    """TimeXer on ECL, 96 hours from 96: patches of each series beside all series as a whole."""
    model = home.Model(Namespace(
        task_name="long_term_forecast", features="M", seq_len=96, pred_len=96, use_norm=1, patch_len=16,
        enc_in=321, d_model=512, d_ff=2048, n_heads=8, e_layers=2, factor=3, dropout=0.1, embed="timeF",
        freq="h", activation="gelu",
    ))  # fmt: skip
    past, hours = _floats(4, 96, 321), _floats(4, 96, 4)
    return Built(model, lambda: functional.mse_loss(model(past, hours, None, None), past))


def _toto(home: Any) -> Built:
    """Toto open base, attention over series in one of four layers, a mixture of Student's t."""
    model = home.TotoBackbone(
        patch_size=32, stride=32, embed_dim=768, num_layers=4, num_heads=12, mlp_hidden_dim=3072, dropout=0.1,
        spacewise_every_n_layers=4, scaler_cls="<class 'model.scaler.CausalPatchStdMeanScaler'>",
        output_distribution_classes=["<class 'model.distribution.MixtureOfStudentTsOutput'>"],
        spacewise_first=False, output_distribution_kwargs={"k_components": 24},
        use_memory_efficient_attention=False,
    )  # fmt: skip
    losses = import_module("toto.model.losses").CombinedLoss()
    series, groups = _floats(2, 16, 1024), _floats(2, 16, 1024)
    seen = torch.ones(2, 16, 1024, dtype=torch.bool, device="meta")

    def loss() -> Tensor:
        told = model(series, seen, groups)
        return losses(told.distribution, (series - told.loc) / told.scale).mean()

    return Built(model, loss)


def _tabicl(home: Any) -> Built:
    """TabICL with the widths of its second version, four layers in front of the answer."""
    model = home.TabICL(icl_num_blocks=4, col_num_blocks=2, row_num_blocks=2)
    table, known_ones, labels = _floats(4, 512, 20), _floats(4, 384), _ids(4 * 128)
    return Built(model, lambda: functional.cross_entropy(model(table, known_ones).flatten(0, 1), labels))


def _scatter(x: Tensor, at: Tensor, _: int, __: Any, many: int, reduce: str) -> Tensor:
    """torch_scatter's sum, in PyTorch."""
    return x.new_zeros(many, x.shape[1]).index_add(0, at, x)


def _gps(home: Any) -> Built:
    """GPS on Peptides: gated graph convolutions beside attention, graphs of 150 nodes each."""
    home.to_dense_batch = lambda x, _: (
        x.unflatten(0, (-1, 150)), torch.ones(len(x) // 150, 150, dtype=torch.bool)
    )  # fmt: skip
    home.Batch = Namespace
    model: Any = _together(
        node_encoder=nn.Embedding(64, 96), edge_encoder=nn.Embedding(8, 96), post_mp=nn.Linear(96, 10),
        layers=nn.ModuleList(home.GPSLayer(
            96, "CustomGatedGCN", "Transformer", 4, dropout=0.1, attn_dropout=0.5
        ) for _ in range(_LAYERS)),
    )  # fmt: skip
    nodes, edges, ends, labels = _ids(64 * 150), _ids(64 * 300), _ids(2, 64 * 300), _floats(64, 10)

    def loss() -> Tensor:
        batch = Namespace(
            x=model["node_encoder"](nodes),
            edge_attr=model["edge_encoder"](edges),
            edge_index=ends,
            batch=None,
        )
        for layer in model["layers"]:
            batch = layer(batch)
        with before():
            whole = batch.x.unflatten(0, (64, 150)).mean(1)
        return functional.binary_cross_entropy_with_logits(model["post_mp"](whole), labels)

    return Built(model, loss)


def _fast_speech(home: Any) -> Built:
    """FastSpeech 2 on LJSpeech: every phoneme is six frames long."""
    tools, parts = (vars(import_module(name)) for name in ("utils.tools", "model.modules"))
    tools["device"] = parts["device"] = "meta"
    parts["open"] = lambda *_: nullcontext()
    parts["json"] = Namespace(load=lambda _: {"pitch": [-2.9, 11.4], "energy": [-1.4, 8.2]})
    level = {"feature": "phoneme_level"}
    given = {
        "path": {"preprocessed_path": ""},
        "preprocessing": {"mel": {"n_mel_channels": 80}, "pitch": level, "energy": level},
    }
    config = {
        "transformer": {
            "encoder_layer": _LAYERS, "encoder_head": 2, "encoder_hidden": 256, "decoder_layer": _LAYERS,
            "decoder_head": 2, "decoder_hidden": 256, "conv_filter_size": 1024, "conv_kernel_size": [9, 1],
            "encoder_dropout": 0.2, "decoder_dropout": 0.2,
        },
        "variance_predictor": {"filter_size": 256, "kernel_size": 3, "dropout": 0.5},
        "variance_embedding": {
            "pitch_quantization": "linear", "energy_quantization": "linear", "n_bins": 256,
        },
        "multi_speaker": False, "max_seq_len": 1000,
    }  # fmt: skip
    model = home.FastSpeech2(given, config)
    judge = import_module("model.loss").FastSpeech2Loss(given, config)
    with torch.device("cpu"):
        long = torch.full((16, 100), 6)
    durations, ids, lengths = known(long), _ids(16, 100), _ids(16)
    mels, values = _floats(16, 600, 80), _floats(16, 100)

    def loss() -> Tensor:
        told = model(None, ids, lengths, 100, mels, lengths, 600, values, values, durations)
        inputs = (None,) * 6 + (mels, lengths, 600, values, values, durations)
        return judge(inputs, told)[0]

    return Built(model, loss)


#: The module that is imported, and what builds of it.
_HOMES: dict[str, tuple[str, Callable[[Any], Built]]] = {
    "whlzy_FiT/fit_v2": ("fit.model.fit_model", _fit),
    "sihyun-yu_REPA/sit": ("models.sit", _repa),
    "valeoai_Maskgit-pytorch/maskgit": ("Network.transformer", _maskgit),
    "openai_shap-e/image": ("shap_e.models.generation.transformer", _shap_e),
    "salesforce_ALBEF/pretrain": ("math", _albef),
    "robotic_transformer_pytorch/rt1": ("robotic_transformer_pytorch.robotic_transformer_pytorch", _rt1),
    "cvg_LightGlue/lightglue": ("lightglue.lightglue", _light_glue),
    "cheerss_CrossFormer/small": ("models.crossformer", _cross_former),
    "Beckschen_TransUNet/r50": ("networks.vit_seg_modeling", _trans_unet),
    "XPixelGroup_HAT/hat": ("hat.archs.hat_arch", _hat),
    "qq456cvb_Point-Transformers/vector": ("models.Hengshuang.model", _points),
    "moment-timeseries-foundation-model_moment/base": ("momentfm.models.moment", _moment),
    "thuml_Time-Series-Library/timexer": ("models.TimeXer", _time_xer),
    "DataDog_toto/toto": ("toto.model.backbone", _toto),
    "soda-inria_tabicl/classifier": ("tabicl._model.tabicl", _tabicl),
    "rampasek_GraphGPS/gatedgcn": ("graphgps.layer.gps_layer", _gps),
    "ming024_FastSpeech2/ljspeech": ("model.fastspeech2", _fast_speech),
}
NAMES = [name for name in LISTED if name in _HOMES]
#: Where in a clone its modules are.
_UNDER = {"soda-inria_tabicl": "src"}
#: What a clone asks for and its model does not.
_UNUSED: dict[str, tuple[str, ...]] = {
    "whlzy_FiT": ("triton",),
    "ming024_FastSpeech2": ("matplotlib",),
    "thuml_Time-Series-Library": ("matplotlib",),
    "openai_shap-e": ("clip",),
}
#: Packages that import all they have, beside what is asked of them.
_BARE: dict[str, tuple[str, ...]] = {
    "whlzy_FiT": ("fit", "fit.model"),
    "sihyun-yu_REPA": ("models",),
    "openai_shap-e": ("shap_e", "shap_e.models", "shap_e.models.generation"),
    "salesforce_ALBEF": ("models",),
    "cvg_LightGlue": ("lightglue",),
    "cheerss_CrossFormer": ("models",),
    "XPixelGroup_HAT": ("hat", "hat.archs"),
    "moment-timeseries-foundation-model_moment": ("momentfm", "momentfm.models", "momentfm.data"),
    "thuml_Time-Series-Library": ("models",),
    "DataDog_toto": ("toto", "toto.model"),
    "soda-inria_tabicl": ("tabicl", "tabicl._model"),
    "rampasek_GraphGPS": ("graphgps", "graphgps.layer"),
    "ming024_FastSpeech2": ("model", "text", "utils"),
}
#: Modules that are no more, or that register what is asked of them, and what of them is used.
_STUBS: dict[str, dict[str, dict[str, Any]]] = {
    "whlzy_FiT": {
        "fit.utils.eval_utils": {"init_from_ckpt": None},
        "fit.model.sincos": {"get_2d_sincos_pos_embed_from_grid": None},
    },
    "salesforce_ALBEF": {
        "transformers.file_utils": {
            "ModelOutput": transformers.utils.ModelOutput,
            **dict.fromkeys(
                ("add_code_sample_docstrings", "add_start_docstrings", "replace_return_docstrings",
                 "add_start_docstrings_to_model_forward"),
                lambda *_, **__: _named,
            ),
        },
    },
    "Beckschen_TransUNet": {"ml_collections": {"ConfigDict": ConfigDict}},
    "XPixelGroup_HAT": {
        "basicsr": {},
        "basicsr.utils": {},
        "basicsr.utils.registry": {"ARCH_REGISTRY": Namespace(register=lambda: _named)},
        "basicsr.archs": {},
        "basicsr.archs.arch_util": {
            "to_2tuple": lambda x: x if isinstance(x, tuple) else (x, x),
            "trunc_normal_": partial(nn.init.trunc_normal_),
        },
    },
    "robotic_transformer_pytorch": {
        "environs": {"Env": lambda: Namespace(read_env=lambda: None, bool=lambda *_: False)},
    },
    "rampasek_GraphGPS": {
        "torch_scatter": {"scatter": _scatter},
        "graphgps.layer.bigbird_layer": {"SingleBigBirdLayer": None},
        "graphgps.layer.gine_conv_layer": {"GINEConvESLapPE": None},
    },
}  # fmt: skip
#: What reads numbers while it is built.
_OF_NUMBERS: tuple[str, ...] = ("cheerss_CrossFormer", "XPixelGroup_HAT", "salesforce_ALBEF")
_OF_NUMBERS += ("moment-timeseries-foundation-model_moment", "robotic_transformer_pytorch")
#: What asks for single precision.
_SINGLE: tuple[str, ...] = ("salesforce_ALBEF", "robotic_transformer_pytorch", "cvg_LightGlue")
_SINGLE += ("Beckschen_TransUNet", "XPixelGroup_HAT", "qq456cvb_Point-Transformers", "DataDog_toto")
_SINGLE += ("moment-timeseries-foundation-model_moment", "thuml_Time-Series-Library", "soda-inria_tabicl")
_SINGLE += ("rampasek_GraphGPS", "ming024_FastSpeech2")
