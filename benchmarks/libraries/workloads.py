"""Builds what people profile to see where a step's time goes: a ninth list, none of it was in another.

Mixtures of experts, transformers of video, and code that trains as fast as it can; ``further_workloads.py``
has the rest. The folder of the clones is that of ``clones.py``, each in a folder OWNER_NAME at the commit
here: mistralai/mistral-inference 2557e12d0e18, myshell-ai/JetMoE
0a9bc5a32386, pjlab-sys4nlp/llama-moe b17aff436cce, deepseek-ai/DeepSeek-VL2 ef9f91e2b642,
facebookresearch/TimeSformer a5ef29a7b726, SwinTransformer/Video-Swin-Transformer db018fb88962,
OpenGVLab/UniFormerV2 722a43440fc5, microsoft/VideoX 1744b2159c3d, facebookresearch/Motionformer bf43d50cc0e1,
Tencent/HunyuanVideo fa14b001c18f, tyler-romero/nanogpt-speedrun f0b146537466, JonasGeiping/cramming
196c9912d8c5, chandar-lab/NeoBERT ed75b68dbbe8, Synthyra/SpeedrunningPLMs 0f7ef3ea8c2d and
rasbt/LLMs-from-scratch 28c65cdfbc33.

Imports ask for soft-mixture-of-experts 0.2.0, simple-parsing, docstring-parser, timm, torchvision,
transformers, diffusers, einops, omegaconf, fvcore, yacs, iopath and simplejson. Widths are the repositories'
own, a few layers deep. Which experts a token goes to is told by hand where the source asks for numbers: every
expert has as many.
"""

# What comes of modules is anything.
# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import collections.abc
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.hub.values import known
from benchmarks.libraries.clones import _cloned, _folder
from benchmarks.libraries.models import Built, _ids, _of_classes, _some
from benchmarks.libraries.repos import _of_next
from benchmarks.libraries.senses import _floats, _without

LISTED = Path(__file__).parents[1].joinpath("fresh", "libraries_9.txt").read_text().split()
_LAYERS = 3


def _attends(q: Tensor, k: Tensor, v: Tensor, *_: Any, **keywords: Any) -> Tensor:
    """Attention as PyTorch has it, of what other kernels take: heads behind the sequence."""
    causal = bool(keywords.get("causal"))
    query, key, value = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(query, key, value, is_causal=causal).transpose(1, 2)


def _told(experts: int, *size: int) -> Tensor:
    """Experts of each token, in turn."""
    return known((torch.arange(prod(size), device="cpu") % experts).view(size))


def _sent(router: nn.Module, at: int, told: Tensor) -> None:
    """What a router says of the experts is known."""
    forward: Callable[..., Any] = router.forward

    def again(*given: Any) -> Any:
        found = list(forward(*given))
        found[at] = told.view(told.shape)
        return tuple(found)

    router.forward = again


def _mixtral(home: Any) -> Built:
    """Mixtral 8x7B, two sequences side by side."""
    layers = import_module("mistral_inference.transformer_layers")
    vars(layers)["memory_efficient_attention"] = partial(_attends, causal=True)
    args, moe = import_module("mistral_inference.args"), import_module("mistral_inference.moe")
    model = home.Transformer(args.TransformerArgs(
        dim=4096, n_layers=_LAYERS, head_dim=128, hidden_dim=14336, n_heads=32, n_kv_heads=8, norm_eps=1e-5,
        vocab_size=32000, max_batch_size=2, rope_theta=1e6, moe=moe.MoeArgs(8, 2),
    ))  # fmt: skip
    ids = _ids(4096)
    return Built(model, lambda: _of_next(model(ids, [2048, 2048]), ids))


def _jetmoe(home: Any) -> Built:
    """JetMoE-8B: experts for queries and results of attention, too."""
    config = import_module("jetmoe.configuration_jetmoe").JetMoEConfig(
        num_hidden_layers=_LAYERS, use_cache=False, attn_implementation="sdpa", pad_token_id=0
    )
    home.JetMoEForCausalLM._tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    model = home.JetMoEForCausalLM(config)
    ids = _ids(2, 2048)
    told = _told(8, 4096, 2)
    for layer in model.model.layers:
        for part in (layer.self_attention.experts, layer.mlp):
            _sent(part.router, 0, told)
    return Built(model, lambda: model(input_ids=ids, labels=ids).loss)


def _llama_moe(home: Any) -> Built:
    """LLaMA-MoE 3.5B, four of sixteen experts, in the layers of transformers."""

    class LinearGLUMoELayer(home.LinearGLUMoELayer):  # type: ignore[misc]
        """That of moe_layers.py, which gives its loss beside."""

        def forward(self, hidden: Tensor) -> Tensor:
            found = super().forward(hidden)
            self.lost = found.balance_loss
            return found.hidden_states

    gates = vars(import_module("smoe.modules.moe.moe_gates"))
    gates["Normal"] = partial(gates["Normal"], validate_args=False)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=4096, intermediate_size=11008, num_hidden_layers=_LAYERS, num_attention_heads=32,
        vocab_size=32000, use_cache=False,
    ))  # fmt: skip
    ids, told = _ids(2, 2048), _told(16, 4096, 4)
    for layer in model.model.layers:
        layer.mlp = LinearGLUMoELayer(4096, 11008, 4096, "silu", num_experts=16, num_selects=4, bias=False)
        gate = layer.mlp.gate.forward
        layer.mlp.gate.forward = lambda x, gate=gate: {**gate(x), "topK_indices": told}

    def loss() -> Tensor:
        lost = model(input_ids=ids, labels=ids).loss
        return lost + torch.stack([layer.mlp.lost for layer in model.model.layers]).sum()

    return Built(model, loss)


def _soft_moe(home: Any) -> Built:
    """Soft MoE B/16, experts in the second half of the layers, as the paper has it."""
    model = home.soft_moe_vit_base(
        num_classes=1000, image_size=224, num_channels=3, patch_size=16, num_experts=128
    )
    model.encoder.layers = model.encoder.layers[:_LAYERS]
    return _of_classes(model, _some(16, 3, 224, 224))


def _deepseek(home: Any) -> Built:
    """The language model of DeepSeek-VL2 small, a dense layer in front of mixtures, latent attention."""
    config = import_module("deepseek_vl2.models.configuration_deepseek").DeepseekV2Config(
        vocab_size=102400, hidden_size=2048, intermediate_size=10944, moe_intermediate_size=1408,
        num_hidden_layers=_LAYERS, num_attention_heads=16, num_key_value_heads=16, n_shared_experts=2,
        n_routed_experts=64, num_experts_per_tok=6, first_k_dense_replace=1, topk_method="greedy",
        n_group=1, topk_group=1, q_lora_rank=None, kv_lora_rank=512, norm_topk_prob=False, use_cache=False,
        attn_implementation="eager", aux_loss_alpha=0.001, scoring_func="softmax", moe_layer_freq=1,
    )  # fmt: skip
    config.rope_scaling = None
    model, ids = home.DeepseekV2ForCausalLM(config), _ids(1, 2048)
    told = _told(64, 2048, 6)
    for layer in model.model.layers[1:]:
        _sent(layer.mlp.gate, 0, told)
    return Built(model, lambda: model(input_ids=ids, labels=ids).loss)


def _timesformer(home: Any) -> Built:
    """Divided attention, as configs/Kinetics/TimeSformer_divST_8x32_224.yaml has it."""
    model = home.VisionTransformer(num_classes=400, depth=_LAYERS, qkv_bias=True)
    return _of_classes(model, _floats(4, 3, 8, 224, 224))


def _video_swin(home: Any) -> Built:
    """The tiny one on Kinetics, and its I3DHead: the mean of all places, and a layer."""
    model = home.SwinTransformer3D(
        patch_size=(2, 4, 4), depths=[2, 2, 2, 2], window_size=(8, 7, 7), drop_path_rate=0.1, patch_norm=True
    )
    head = nn.Linear(768, 400)
    clips, labels = _floats(2, 3, 16, 224, 224), _ids(2)

    def loss() -> Tensor:
        return functional.cross_entropy(head(model(clips).mean((2, 3, 4))).float(), labels)

    return Built(nn.ModuleDict({"backbone": model, "fc_cls": head}), loss)


def _uniformer(home: Any) -> Built:
    """UniFormerV2-B/16 on Kinetics, the global block over the last two layers."""
    model = home.VisionTransformer(
        input_resolution=224, patch_size=16, width=768, layers=4, heads=12, output_dim=512, t_size=8,
        temporal_downsample=False, return_list=[2, 3], n_layers=2, backbone_drop_path_rate=0.1,
        mlp_dropout=[0.5, 0.5], dw_reduction=1.5, no_lmhra=False,
    )  # fmt: skip
    return _of_classes(model, _some(4, 3, 8, 224, 224))


def _xclip(_: Any) -> Built:
    """X-CLIP-B/16 on Kinetics; the names of its classes are encoded in every step, as without FIX_TEXT."""
    model = import_module("models.xclip").XCLIP(
        512, 224, _LAYERS, 768, 16, 77, 49408, 512, 8, _LAYERS, T=8, droppath=0.1, prompts_layers=2,
        use_cache=False,
    )  # fmt: skip
    clips, words = _some(4, 8, 3, 224, 224), _ids(400, 77)
    labels = _ids(4)
    return Built(model, lambda: functional.cross_entropy(model(clips, words).float(), labels))


def _motionformer(home: Any) -> Built:
    """Trajectory attention, as configs/K400/motionformer_224_16x4.yaml has it."""
    model = home.VisionTransformer(Namespace(
        DATA=Namespace(TRAIN_CROP_SIZE=224), TRAIN=Namespace(DATASET="kinetics"),
        MODEL=Namespace(NUM_CLASSES=400), VIT=Namespace(
            PATCH_SIZE=16, CHANNELS=3, EMBED_DIM=768, DEPTH=_LAYERS, NUM_HEADS=12, MLP_RATIO=4, QKV_BIAS=True,
            DROP=0.0, DROP_PATH=0.2, HEAD_DROPOUT=0.0, VIDEO_INPUT=True, TEMPORAL_RESOLUTION=8, USE_MLP=True,
            ATTN_DROPOUT=0.0, HEAD_ACT="tanh", PATCH_SIZE_TEMP=2, POS_DROPOUT=0.0, POS_EMBED="separate",
            ATTN_LAYER="trajectory", USE_ORIGINAL_TRAJ_ATTN_CODE=True, APPROX_ATTN_TYPE="none",
            APPROX_ATTN_DIM=128,
        ),
    ))  # fmt: skip
    clips, labels = _some(2, 3, 16, 224, 224), _ids(2)
    return Built(model, lambda: functional.cross_entropy(model([clips]).float(), labels))


def _hunyuan(home: Any) -> Built:
    """HYVideo-T/2-cfgdistill, two blocks of either kind, thirteen frames of 480 x 832."""
    attends = vars(import_module("hyvideo.modules.attenion"))
    attends["flash_attn_varlen_func"] = lambda q, k, v, *_: _attends(q[None], k[None], v[None])[0]
    home.get_cu_seqlens = lambda mask, _: torch.zeros(2 * len(mask) + 1, device="meta")
    model = home.HYVideoDiffusionTransformer(
        Namespace(text_states_dim=4096, text_states_dim_2=768), in_channels=16, out_channels=16,
        mm_double_blocks_depth=2, mm_single_blocks_depth=2, guidance_embed=True,
    )  # fmt: skip
    noised, words, mask = _some(1, 16, 4, 60, 104), _some(1, 256, 4096), _ids(1, 256)
    many = 4 * 30 * 52
    cosines, pooled, times = _floats(many, 128), _some(1, 768), _some(1)

    def loss() -> Tensor:
        out = model(noised, times, words, mask, pooled, cosines, cosines, guidance=times, return_dict=False)
        return functional.mse_loss(out, noised)

    return Built(model, loss)


def _speedrun(home: Any) -> Built:
    """As src/train_gpt2.py trains it, attention without the mask of documents."""
    home.GPT.get_block_mask = lambda *_: None
    fused = functional.scaled_dot_product_attention
    home.flex_attention = lambda q, k, v, **_: fused(q, k, v, is_causal=True)
    model = home.GPT(Namespace(vocab_size=50304, n_layer=4, n_head=6, n_embd=768))
    ids = _ids(1, 16384)
    return Built(model, lambda: model(ids, ids))


def _cramming(home: Any) -> Built:
    """As config/arch/crammed-bert.yaml has it, a quarter of the words is to be told."""
    arch = {
        "hidden_size": 768, "intermed_size": 3072, "hidden_dropout_prob": 0.1, "norm": "LayerNorm",
        "norm_eps": 1e-12, "nonlin": "GELUglu", "num_transformer_layers": 4, "use_bias": False,
        "final_norm": True, "skip_head_transform": True, "decoder_bias": False, "sparse_prediction": 0.25,
        "objective_layout": "MLM", "loss": "cross-entropy", "tie_weights": True,
        "embedding": {
            "vocab_size": 32768, "pos_embedding": "scaled-sinusoidal", "dropout_prob": 0.1, "pad_token_id": 0,
            "max_seq_length": 128, "embedding_dim": 768, "normalization": True, "stable_low_precision": False,
        },
        "attention": {
            "type": "self-attention", "causal_attention": False, "num_attention_heads": 12,
            "dropout_prob": 0.1, "skip_output_projection": False, "qkv_bias": False,
            "rotary_embedding": False, "seq_op_in_fp32": False, "sequence_op": "torch-softmax",
            "high_level_fusion": False,
        },
        "init": {"type": "normal", "std": 0.02},
    }  # fmt: skip
    model = home.ScriptableLMForPreTraining(home.crammedBertConfig(arch))
    ids = _ids(128, 128)
    return Built(model, lambda: model(ids, labels=ids)["loss"])


class SwiGLU(nn.Module):
    """xformers/ops/swiglu_op.py, in PyTorch."""

    def __init__(self, inside: int, hidden: int, outside: int, bias: bool = True) -> None:
        super().__init__()
        self.w12 = nn.Linear(inside, 2 * hidden, bias=bias)
        self.w3 = nn.Linear(hidden, outside, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w12(x).chunk(2, -1)
        out: Tensor = self.w3(functional.silu(gate) * up)
        return out


def _neobert(home: Any) -> Built:
    """NeoBERT as conf/ trains it, with attention and SwiGLU of PyTorch."""
    home.SwiGLU = SwiGLU
    model = home.NeoBERTLMHead(home.NeoBERTConfig(
        num_hidden_layers=4, vocab_size=30522, flash_attention=False, dropout_prob=0.0
    ))  # fmt: skip
    ids = _ids(16, 512)
    return Built(model, lambda: _of_next(model(ids)["logits"], ids))


def _protein(home: Any) -> Built:
    """The U-net of train.py, with its embeddings of values, and attention without the mask of documents."""
    attends = vars(import_module("model.attention"))
    attends["flex_attention"] = lambda q, k, v, **_: functional.scaled_dot_product_attention(q, k, v)
    home.create_block_mask = lambda *_, **__: ()
    words = Namespace(cls_token_id=0, pad_token_id=1, eos_token_id=2, mask_token_id=32)
    home.EsmTokenizer = Namespace(from_pretrained=lambda _: words)
    model = home.PLM(home.PLMConfig(
        hidden_size=768, num_attention_heads=6, num_hidden_layers=4, unet=True, mlm=True,
        expansion_ratio=8 / 3, token_dropout=False, compile_flex_attention=False,
    ))  # fmt: skip
    ids = _ids(16384)
    return Built(model, lambda: model(ids, ids, torch.ones((), device="meta")))


def _latent(home: Any) -> Built:
    """GPT-2 as wide as the small one, its keys and values out of a latent, as chapter 4 has it."""
    model = home.GPTModel({
        "vocab_size": 50257, "context_length": 1024, "emb_dim": 768, "n_heads": 12, "n_layers": _LAYERS,
        "drop_rate": 0.1, "qkv_bias": False, "latent_dim": 96,
    })  # fmt: skip
    ids = _ids(4, 1024)
    return Built(model, lambda: _of_next(model(ids), ids))


#: The module that is imported, and what builds of it.
_HOMES: dict[str, tuple[str, Callable[[Any], Built]]] = {
    "mistralai_mistral-inference/mixtral": ("mistral_inference.transformer", _mixtral),
    "myshell-ai_JetMoE/jetmoe": ("jetmoe.modeling_jetmoe", _jetmoe),
    "pjlab-sys4nlp_llama-moe/llama_moe": ("smoe.modules.moe.moe_layers", _llama_moe),
    "soft_mixture_of_experts/vit": ("soft_mixture_of_experts.vit", _soft_moe),
    "deepseek-ai_DeepSeek-VL2/moe": ("deepseek_vl2.models.modeling_deepseek", _deepseek),
    "facebookresearch_TimeSformer/divided": ("timesformer.models.vit", _timesformer),
    "SwinTransformer_Video-Swin-Transformer/tiny": (
        "mmaction.models.backbones.swin_transformer",
        _video_swin,
    ),
    "OpenGVLab_UniFormerV2/base": ("slowfast.models.uniformerv2_model", _uniformer),
    "microsoft_VideoX/xclip": ("clip.clip", _xclip),
    "facebookresearch_Motionformer/trajectory": ("slowfast.models.video_model_builder", _motionformer),
    "Tencent_HunyuanVideo/dit": ("hyvideo.modules.models", _hunyuan),
    "tyler-romero_nanogpt-speedrun/gpt": ("train_gpt2", _speedrun),
    "JonasGeiping_cramming/crammed": ("cramming.architectures.crammed_bert", _cramming),
    "chandar-lab_NeoBERT/neobert": ("neobert.model.model", _neobert),
    "Synthyra_SpeedrunningPLMs/unet": ("model.model", _protein),
    "rasbt_LLMs-from-scratch/mla": ("gpt_with_kv_mla", _latent),
}
NAMES = [name for name in LISTED if name in _HOMES]
#: Where in a clone its modules are.
_UNDER = {
    "mistralai_mistral-inference": "src",
    "microsoft_VideoX": "X-CLIP",
    "tyler-romero_nanogpt-speedrun": "src",
    "chandar-lab_NeoBERT": "src",
    "rasbt_LLMs-from-scratch": "ch04/05_mla",
}
#: What a clone asks for and its model does not: kernels it does without, files, drawing.
_UNUSED: dict[str, tuple[str, ...]] = {
    "mistralai_mistral-inference": ("xformers",),
    "myshell-ai_JetMoE": ("flash_attn",),
    "pjlab-sys4nlp_llama-moe": ("deepspeed",),
    "SwinTransformer_Video-Swin-Transformer": ("mmcv",),
    "tyler-romero_nanogpt-speedrun": ("optuna", "wandb", "tiktoken"),
    "chandar-lab_NeoBERT": ("xformers",),
    "facebookresearch_Motionformer": ("ipdb",),
}
#: Packages that import all they have, beside what is asked of them.
_BARE: dict[str, tuple[str, ...]] = {
    "mistralai_mistral-inference": ("mistral_inference",),
    "myshell-ai_JetMoE": ("jetmoe",),
    "pjlab-sys4nlp_llama-moe": ("smoe", "smoe.modules", "smoe.modules.moe"),
    "deepseek-ai_DeepSeek-VL2": ("deepseek_vl2", "deepseek_vl2.models"),
    "facebookresearch_TimeSformer": ("timesformer", "timesformer.models"),
    "SwinTransformer_Video-Swin-Transformer": ("mmaction", "mmaction.models", "mmaction.models.backbones"),
    "OpenGVLab_UniFormerV2": ("slowfast", "slowfast.models"),
    "facebookresearch_Motionformer": ("slowfast", "slowfast.models"),
    "Tencent_HunyuanVideo": ("hyvideo", "hyvideo.modules"),
    "JonasGeiping_cramming": ("cramming", "cramming.architectures"),
    "chandar-lab_NeoBERT": ("neobert", "neobert.model"),
}
#: What reads numbers while it is built.
_OF_NUMBERS: tuple[str, ...] = ("OpenGVLab_UniFormerV2", "facebookresearch_Motionformer", "microsoft_VideoX")
_OF_NUMBERS += ("facebookresearch_TimeSformer", "SwinTransformer_Video-Swin-Transformer")
#: What asks for single precision.
_SINGLE: tuple[str, ...] = ("facebookresearch_TimeSformer", "SwinTransformer_Video-Swin-Transformer")


def _causal(_: Any, size: tuple[int, int], x: Tensor, *__: Any) -> Tensor:
    """_prepare_4d_causal_attention_mask of transformers 4, where nothing is padded."""
    mask = torch.full((size[1], size[1]), torch.finfo(x.dtype).min, dtype=x.dtype, device=x.device)
    return mask.triu(1)[None, None].expand(size[0], 1, -1, -1)


def _named(function: Any = None, **_: Any) -> Any:
    """What registers a class, and leaves it as it is."""
    return function or _named


#: Modules that are no more, or that register what is asked of them, and what of them is used.
_MASKS = {
    "transformers.modeling_attn_mask_utils": {
        "_prepare_4d_causal_attention_mask": _causal,
        "_prepare_4d_causal_attention_mask_for_sdpa": lambda *_: None,
    },
}
_STUBS: dict[str, dict[str, dict[str, Any]]] = {
    "myshell-ai_JetMoE": _MASKS,
    "deepseek-ai_DeepSeek-VL2": _MASKS,
    "facebookresearch_TimeSformer": {"torch._six": {"container_abcs": collections.abc}},
    "SwinTransformer_Video-Swin-Transformer": {
        "mmaction.models.builder": {"BACKBONES": Namespace(register_module=_named)}
    },
}
#: What old code imports of transformers and is no more in it.
_GONE: tuple[tuple[str, str, Any], ...] = (
    ("transformers.pytorch_utils", "ALL_LAYERNORM_LAYERS", []),
    ("transformers.pytorch_utils", "is_torch_greater_or_equal_than_1_13", True),
    ("transformers.utils.import_utils", "is_torch_fx_available", lambda: False),
    ("transformers.models.llama.modeling_llama", "LlamaFlashAttention2", None),
    ("transformers.utils", "is_flash_attn_greater_or_equal_2_10", lambda: False),
)


@contextmanager
def _as_once(stubs: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """What older code imports is there, in the block."""
    made = {name: ModuleType(name) for name in stubs}
    for name, module in made.items():
        vars(module).update(stubs[name])
    with ExitStack() as stack:
        for home, name, value in _GONE if stubs is _MASKS else ():
            stack.enter_context(mock.patch.object(import_module(home), name, value, create=True))
        sys.modules.update(made)
        try:
            yield
        finally:
            for name in made:
                sys.modules.pop(name, None)


def made(name: str, rest: Any) -> Built:
    """The model ``OWNER_REPOSITORY/name`` or ``package/name``, in bf16 or float32 and training, on the meta
    device; the module ``rest`` says what builds it, and what its clone asks for."""
    owner = name.partition("/")[0]
    module, of = rest._HOMES[name]
    folder = _folder(name) / rest._UNDER.get(owner, "")
    with (
        _cloned(folder, rest._BARE.get(owner, ())) if folder.is_dir() else nullcontext(),
        _without((*rest._UNUSED.get(owner, ()), "torchaudio")),
        _as_once(rest._STUBS.get(owner, {})),
        mock.patch.object(torch, "compile", lambda function=None, **_: function or (lambda x: x)),
        mock.patch.object(torch.jit, "script", lambda function, *_, **__: function),
    ):
        home = import_module(module)
        with nullcontext() if owner in rest._OF_NUMBERS else torch.device("meta"):
            built = of(home)
    nn.Module.to(built.model, "meta", torch.float32 if owner in rest._SINGLE else torch.bfloat16).train()
    return built
