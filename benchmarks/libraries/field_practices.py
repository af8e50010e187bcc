"""The twelfth list's flows, sounds, series, tables, actions, proteins and molecules.

As ``practices.py`` has it. The clones: facebookresearch/flow_matching 11568d37f8d5, jaywalnut310/vits
2e561ba58618, FunAudioLLM/CosyVoice ace7c47f41bb, YuanGongND/ast 31088be8a3f6, zhouhaoyi/Informer2020
29f2a739226a, yuqinie98/PatchTST 204c21efe0b3, facebookresearch/dlrm 090956ee2319, jayLEE0301/vq_bet_official
09d4851288ca and salesforce/progen c27a419c234a.

Imports ask for transfusion-pytorch 0.20.0, e2-tts-pytorch 2.2.2, pytorch-widedeep 1.7.0, unimol-tools 0.1.6,
x-transformers, rotary-embedding-torch, hyper-connections, timm, transformers, omegaconf and einops.
"""

# What comes of modules is anything.
# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import typing
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.libraries.models import Built, _ids, _some
from benchmarks.libraries.practices import _LAYERS, LISTED, _bare
from benchmarks.libraries.recipes import _together
from benchmarks.libraries.recipes_truth import before
from benchmarks.libraries.repos import _of_next
from benchmarks.libraries.senses import _floats


def _flows(home: Any) -> Built:
    """Discrete flow matching of words as examples/text has it: the KL divergence of a masked path."""
    config = {"hidden_size": 768, "cond_dim": 128, "n_blocks": _LAYERS, "n_heads": 12, "dropout": 0.1}
    model = home.Transformer(50257, True, config)
    ids, noised, times, pace = _ids(8, 1024), _ids(8, 1024), _floats(8), _floats(8, 1)

    def loss() -> Tensor:
        told = functional.log_softmax(model(noised, times), -1)
        right = told.gather(-1, ids[..., None]).squeeze(-1)
        same = told.gather(-1, noised[..., None]).squeeze(-1).exp()
        stays = (noised == ids).float()
        return -(pace * (same - stays + (1 - stays) * right)).mean()

    return Built(model, loss)


def _transfusion(home: Any) -> Built:
    """Transfusion with its README's widths: next words, and the flow of a batch of pictures beside."""
    model = home.Transfusion(
        num_text_tokens=32000, dim_latent=64, modality_default_shape=(256,),
        transformer={"dim": 512, "depth": 4, "dim_head": 64, "heads": 8},
    )  # fmt: skip
    words, pictures = _ids(8, 1025), _floats(8, 256, 64)
    return Built(model, lambda: model.forward_text(words) + model.forward_modality(pictures))


def _e2(home: Any) -> Built:
    """E2 TTS with its README's widths, four layers, ten seconds of mel frames and their letters."""
    model = home.E2TTS(
        transformer={"dim": 512, "depth": 4, "heads": 8, "dim_head": 64}, num_channels=100, use_vocos=False,
        cond_drop_prob=0.0, text_num_embeds=256, tokenizer=lambda _: None,
    )  # fmt: skip
    mels, letters = _floats(8, 1024, 100), _ids(8, 256)

    def loss() -> Tensor:
        inner = import_module("x_transformers.x_transformers")
        with mock.patch.object(inner, "autocast", lambda *_, **__: nullcontext()):
            return model(mels, text=letters).loss

    return Built(model, loss)


def _vits(home: Any) -> Built:
    """VITS on LJ Speech as configs/ljs_base.json has it, the generator's step against its discriminators."""
    home.monotonic_align.maximum_path = lambda costs, _: torch.zeros_like(costs)
    home.commons.rand_slice_segments = lambda x, _, size: (x[..., :size], None)
    kernels = {"resblock_kernel_sizes": [3, 7, 11], "resblock_dilation_sizes": [[1, 3, 5]] * 3}
    rates = {"upsample_rates": [8, 8, 2, 2], "upsample_kernel_sizes": [16, 16, 4, 4]}
    maker = home.SynthesizerTrn(
        178, 513, 32, 192, 192, 768, 2, _LAYERS, 3, 0.1, "1", **kernels, **rates,
        upsample_initial_channel=512, use_sdp=False,
    )  # fmt: skip
    judge, losses = home.MultiPeriodDiscriminator(), import_module("losses")
    ids, lengths, spectra, sound = _ids(16, 160), _ids(16), _floats(16, 513, 400), _floats(16, 1, 8192)

    def loss() -> Tensor:
        told, long, _, _, _, mask, (_, z, m, logs, _, logs_q) = maker(ids, lengths, spectra, lengths)
        _, fake, maps, wanted = judge(sound, told)
        lost = losses.feature_loss(maps, wanted) + losses.generator_loss(fake)[0]
        lost = lost + functional.l1_loss(told, sound) * 45
        return lost + long.sum() + losses.kl_loss(z, logs_q, m, logs, mask)

    return Built(_together(maker=maker, judge=judge), loss)


def _cosy_voice(_: Any) -> Built:
    """CosyVoice's language model of speech: words by a conformer, tokens of speech after them."""
    encoders: Any = import_module("cosyvoice.transformer.encoder")
    home: Any = import_module("cosyvoice.llm.llm")
    sizes: dict[str, Any] = {"attention_heads": 16, "linear_units": 4096, "num_blocks": _LAYERS}
    sizes["dropout_rate"] = 0.1
    sizes |= {"pos_enc_layer_type": "rel_pos_espnet", "selfattention_layer_type": "rel_selfattn"}
    sizes |= {"positional_dropout_rate": 0.1, "attention_dropout_rate": 0.0, "static_chunk_size": 1}
    words = encoders.ConformerEncoder(
        512, 1024, input_layer="linear", use_cnn_module=False, macaron_style=False, **sizes
    )
    speech = encoders.TransformerEncoder(1024, 1024, input_layer="linear_legacy", **sizes)
    model = home.TransformerLM(512, 1024, 1024, 51866, 4096, words, speech, lambda *_: None)
    ids, many, told, voice, wanted = _ids(8, 64), _ids(8), _ids(8, 512), _some(8, 192), _ids(8, 579)

    def loss() -> Tensor:
        seen, _ = model.encode(model.text_embedding(ids), many)
        with before():
            one = functional.normalize(voice, dim=1)
        one = model.spk_embed_affine_layer(one).unsqueeze(1)
        with before():
            start, task = (model.llm_embedding.weight[at].expand(8, 1, -1) for at in range(2))
        spoken = model.speech_embedding(told)
        with before():
            given = torch.cat([start, one, seen, task, spoken], 1)
        out, _ = model.llm(given, _ids(8))
        return model.criterion_ce(model.llm_decoder(out), wanted)

    return Built(model, loss)


def _ast(home: Any) -> Built:
    """AST on AudioSet, ten seconds: patches that overlap, a DeiT whose two tokens tell the classes."""
    home.timm.__version__ = "0.4.5"
    name, make = "deit_base_distilled_patch16_384", home.timm.create_model
    with (
        mock.patch.object(home.timm.models.vision_transformer, "PatchEmbed"),
        mock.patch.object(home.timm, "create_model", lambda *_, **__: make(name)),
    ):
        model = home.ASTModel(imagenet_pretrain=False, verbose=False)
    patches = home.PatchEmbed(384)
    patches.proj, model.v.patch_embed = model.v.patch_embed.proj, patches
    model.v.blocks = model.v.blocks[:_LAYERS]
    sounds, labels = _floats(12, 1024, 128), _floats(12, 527)
    return Built(model, lambda: functional.binary_cross_entropy_with_logits(model(sounds), labels))


def _informer(home: Any) -> Built:
    """Informer on ETTh1: a day's hours from four days', few of the queries."""
    model = home.Informer(
        7, 7, 7, 96, 48, 24, e_layers=2, d_layers=1, d_ff=2048, dropout=0.05, embed="timeF",
        device=torch.device("meta"),
    )  # fmt: skip
    past, future, hours = _floats(32, 96, 7), _floats(32, 72, 7), _floats(32, 96, 4)

    def loss() -> Tensor:
        return functional.mse_loss(model(past, hours, future, hours[:, :72]), future[:, -24:])

    return Built(model, loss)


def _patch_tst(home: Any) -> Built:
    """PatchTST's pretraining on ETTm1: four tenths of the patches, masked."""
    model = home.PatchTST(
        c_in=7, target_dim=96, patch_len=12, stride=12, num_patch=42, n_layers=_LAYERS, n_heads=16,
        d_model=128, shared_embedding=True, d_ff=512, dropout=0.2, head_dropout=0.2, act="relu",
        head_type="pretrain", res_attention=False,
    )  # fmt: skip
    masked, whole, mask = _floats(64, 42, 7, 12), _floats(64, 42, 7, 12), _floats(64, 42, 7)

    def loss() -> Tensor:
        lost = (model(masked) - whole).square().mean(-1)
        return (lost * mask).sum() / mask.sum()

    return Built(model, loss)


def _saint(home: Any) -> Built:
    """SAINT as its defaults have it on a table as Adult's: attention over features, then over rows."""
    kinds = [(f"c{at}", 40, 32) for at in range(8)]
    numbers = [f"n{at}" for at in range(6)]
    names = [name for name, _, _ in kinds] + numbers
    model = home.SAINT(
        column_idx={name: at for at, name in enumerate(names)},
        cat_embed_input=[(name, many) for name, many, _ in kinds], continuous_cols=numbers,
        cont_norm_layer="layernorm", mlp_hidden_dims=[200, 100],
    )  # fmt: skip
    head, rows, labels = nn.Linear(100, 1), _floats(256, 14), _floats(256, 1)

    def loss() -> Tensor:
        return functional.binary_cross_entropy_with_logits(head(model(rows)), labels)

    return Built(_together(model=model, head=head), loss)


def _dlrm(home: Any) -> Built:
    """DLRM on Criteo as run_and_time.sh has it, 26 tables of ten thousand rows."""
    model = home.DLRM_Net(
        64, np.array([10000] * 26), np.array([13, 512, 256, 64]), np.array([415, 512, 512, 256, 1]),
        arch_interaction_op="dot", sigmoid_top=3, ndevices=-1,
    )  # fmt: skip
    for table in model.emb_l:
        table.sparse = False
    numbers, starts = _floats(2048, 13), _ids(26, 2048)
    ids, clicks = [_ids(2048) for _ in range(26)], _floats(2048, 1)
    return Built(model, lambda: functional.binary_cross_entropy(model(numbers, starts, ids), clicks))


def _vq_bet(home: Any) -> Built:
    """VQ-BeT in the kitchen: two codes of every action by MLPs, and how far off they are."""
    gpt = home.GPT(home.GPTConfig(110, 60, 512, _LAYERS, 6, 120))
    mlp = import_module("vq_behavior_transformer.utils").MLP
    model: Any = _together(gpt=gpt, bins=mlp(512, [1024, 1024, 32]), offsets=mlp(512, [1024, 1024, 288]))
    seen, codes, off = _floats(512, 10, 60), _ids(512 * 10 * 2), _floats(512 * 10, 288)

    def loss() -> Tensor:
        told = gpt(seen).flatten(0, 1)
        lost = functional.cross_entropy(model["bins"](told).view(-1, 16), codes)
        return lost + 1000.0 * functional.l1_loss(model["offsets"](told), off)

    return Built(model, loss)


def _progen(home: Any) -> Built:
    """ProGen2 medium, sequences of 1024 amino acids."""
    config = import_module("models.progen.configuration_progen").ProGenConfig(
        vocab_size=32, n_positions=1024, n_ctx=1024, n_embd=1536, n_layer=_LAYERS, n_head=16, rotary_dim=48,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    home.ProGenPreTrainedModel.init_weights = lambda _: None
    home.ProGenPreTrainedModel.get_head_mask = lambda _, __, many: [None] * many
    model, ids = home.ProGenForCausalLM(config), _ids(4, 1024)
    return Built(model, lambda: _of_next(model(ids).logits, ids))


def _unimol(home: Any) -> Built:
    """Uni-Mol on molecules of 64 atoms: pairs of atoms are a bias of attention, and go on with it."""
    words = mock.MagicMock(__len__=lambda _: 31)
    words.pad.return_value = 0
    home.Dictionary = Namespace(load=lambda _: words)
    home.UniMolModel.load_pretrained_weights = lambda *_, **__: None
    sizes = home.molecule_architecture()
    sizes.encoder_layers = _LAYERS
    home.molecule_architecture = lambda: sizes
    model = home.UniMolModel(1, pretrained_model_path="-", pretrained_dict_path="-")
    atoms, far, kinds, wanted = _ids(32, 64), _floats(32, 64, 64), _ids(32, 64, 64), _floats(32, 1)
    return Built(model, lambda: functional.mse_loss(model(atoms, far, None, kinds), wanted))


#: The module that is imported, and what builds of it.
_HOMES: dict[str, tuple[str, Callable[[Any], Built]]] = {
    "facebookresearch_flow_matching/text": ("model.transformer", _flows),
    "transfusion_pytorch/transfusion": ("transfusion_pytorch.transfusion", _transfusion),
    "e2_tts_pytorch/e2": ("e2_tts_pytorch.e2_tts", _e2),
    "jaywalnut310_vits/ljspeech": ("models", _vits),
    "FunAudioLLM_CosyVoice/llm": ("math", _cosy_voice),
    "YuanGongND_ast/audioset": ("src.models.ast_models", _ast),
    "zhouhaoyi_Informer2020/informer": ("models.model", _informer),
    "yuqinie98_PatchTST/pretrain": ("src.models.patchTST", _patch_tst),
    "pytorch_widedeep/saint": ("pytorch_widedeep.models.tabular.transformers.saint", _saint),
    "facebookresearch_dlrm/criteo": ("dlrm_s_pytorch", _dlrm),
    "jayLEE0301_vq_bet_official/gpt": ("vq_behavior_transformer.gpt", _vq_bet),
    "salesforce_progen/progen2": ("models.progen.modeling_progen", _progen),
    "unimol_tools/unimol": ("unimol_tools.models.unimol", _unimol),
}
NAMES = [name for name in LISTED if name in _HOMES]
#: Where in a clone its modules are.
_UNDER = {
    "facebookresearch_flow_matching": "examples/text",
    "yuqinie98_PatchTST": "PatchTST_self_supervised",
    "salesforce_progen": "progen2",
}
#: What is asked for and its model does not use.
_UNUSED: dict[str, tuple[str, ...]] = {
    "e2_tts_pytorch": ("torchdiffeq", "hl_gauss_pytorch", "vocos", "g2p_en", "gateloop_transformer"),
    "transfusion_pytorch": ("torchdiffeq", "ema_pytorch"),
    "jaywalnut310_vits": ("monotonic_align",),
    "FunAudioLLM_CosyVoice": ("onnxruntime", "matplotlib", "librosa", "omegaconf", "whisper"),
    "YuanGongND_ast": ("wget",),
    "facebookresearch_dlrm": ("dlrm_data_pytorch", "mlperf_logger", "onnx", "sklearn", "optim"),
    "unimol_tools": ("rdkit", "sklearn", "joblib", "pandas"),
    "jayLEE0301_vq_bet_official": ("sklearn", "pandas"),
}
#: Packages that import all they have, beside what is asked of them.
_BARE: dict[str, tuple[str, ...]] = {
    "facebookresearch_flow_matching": ("model",),
    "FunAudioLLM_CosyVoice": ("cosyvoice", "cosyvoice.utils", "cosyvoice.llm", "cosyvoice.transformer"),
    "YuanGongND_ast": ("src", "src.models"),
    "yuqinie98_PatchTST": ("src", "src.models"),
    "jayLEE0301_vq_bet_official": ("vq_behavior_transformer",),
    "salesforce_progen": ("models", "models.progen"),
}
#: Kernels in PyTorch; what is no more, and what is not used.
_STUBS: dict[str, dict[str, dict[str, Any]]] = {
    "FunAudioLLM_CosyVoice": {
        "cosyvoice.utils.onnx": dict.fromkeys(("SpeechTokenExtractor", "online_feature", "onnx_path")),
        "cosyvoice.utils.file_utils": {"logging": None},
        "cosyvoice.flow": {},
        "cosyvoice.flow.flow": dict.fromkeys(
            ("MaskedDiffWithXvec", "CausalMaskedDiffWithXvec", "CausalMaskedDiffWithDiT")
        ),
        "cosyvoice.hifigan": {},
        "cosyvoice.hifigan.generator": dict.fromkeys(("HiFTGenerator", "CausalHiFTGenerator")),
        "cosyvoice.cli": {},
        "cosyvoice.cli.model": dict.fromkeys(("CosyVoiceModel", "CosyVoice2Model", "CosyVoice3Model")),
    },
    "facebookresearch_dlrm": {
        "torch.utils.tensorboard": {"SummaryWriter": None},
        "extend_distributed": {"my_size": 1},
    },
    "e2_tts_pytorch": _bare("e2_tts_pytorch"),
    "salesforce_progen": {
        "transformers.utils.model_parallel_utils": {"assert_device_map": None, "get_device_map": None},
    },
    "pytorch_widedeep": {
        **_bare(
            "pytorch_widedeep", "models", "models/tabular", "models/tabular/transformers",
            "models/tabular/mlp", "utils",
        ),
        "pytorch_widedeep.wdtypes": {"__getattr__": lambda name: getattr(typing, name, Any)},
    },
    "unimol_tools": {**_bare("unimol_tools", "models"), "addict": {"Dict": Namespace}},
}  # fmt: skip
#: What reads numbers while it is built.
_OF_NUMBERS: tuple[str, ...] = ("facebookresearch_dlrm", "transfusion_pytorch")
#: What asks for single precision.
_SINGLE: tuple[str, ...] = ("facebookresearch_flow_matching", "transfusion_pytorch", "e2_tts_pytorch")
_SINGLE += ("jaywalnut310_vits", "YuanGongND_ast", "zhouhaoyi_Informer2020", "yuqinie98_PatchTST")
_SINGLE += ("pytorch_widedeep", "facebookresearch_dlrm", "jayLEE0301_vq_bet_official", "unimol_tools")
