"""Builds models of studies that people train and profile: an eleventh list, none of it was in another.

Adapters of peft, mixtures of experts, language models, and sequences of other things (decisions, sounds,
genes, features of clicks); ``further_studies.py`` has the rest. The folder of the clones is that of
``clones.py``, each in a folder OWNER_NAME at the commit here: AviSoori1x/makeMoE 0d68228adb1e,
davidmrau/mixture-of-experts f66299972710, RobertCsordas/switchhead 0bb2f61d55be, microsoft/unilm
768a3c873f59, epfml/DenseFormer c99a623bdb5f, ML-GSAI/SMDM 583aa4716d17, Haiyang-W/TokenFormer 4d56c73f4076,
kzl/decision-transformer e2d82e68f330, jannerm/trajectory-transformer 8834a6ed04ce and snap-stanford/UCE
8ead6e07af0c.

Imports ask for peft 0.21.2, mixture-of-attention 0.0.25, colt5-attention 0.11.2, local-attention 1.11.2,
BS-RoFormer 1.2.4, PoPE-pytorch 0.2.1, hyper-connections 0.4.11, rotary-embedding-torch, torch-rechub 0.9.0,
transformers and einops. Widths are the repositories' own, a few layers deep; what is frozen is as in the
recipe. Which experts a token goes to is told by hand where the source asks for numbers. Kernels are in
PyTorch: SwitchHead's products of what is selected are grouped GEMMs.
"""

# What comes of modules is anything.
# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.libraries.clones import _folder
from benchmarks.libraries.models import Built, _ids, _some
from benchmarks.libraries.posts import _causal_lm, _flash, _rotated, _telling
from benchmarks.libraries.recipes import _llama, _qwen, _together
from benchmarks.libraries.repos import _of_next
from benchmarks.libraries.senses import _floats
from benchmarks.libraries.trainers import _without_torchao
from benchmarks.libraries.workloads import _sent, _told

LISTED = Path(__file__).parents[1].joinpath("fresh", "libraries_11.txt").read_text().split()
_LAYERS = 3


def _adapted(model: Any, config: Any) -> Any:
    """What peft makes of a model."""
    _without_torchao()
    adapts: Any = import_module("peft.utils.quantization_utils")
    adapts.is_torchao_available = lambda: False
    return import_module("peft").get_peft_model(model, config)


def _boft(home: Any) -> Built:
    """Butterflies of orthogonal blocks on Llama 3.2 1B, queries and values."""
    layer = import_module("peft.tuners.boft.layer").BOFTLayer
    layer.perm2mat = lambda _, indices: torch.zeros(len(indices), len(indices))  # it is set by numbers
    config = home.BOFTConfig(
        task_type="CAUSAL_LM", boft_block_size=8, boft_n_butterfly_factor=2,
        target_modules=["q_proj", "v_proj"], boft_dropout=0.0,
    )  # fmt: skip
    return _causal_lm(_adapted(_llama(), config), 2, 1024)


def _miss(home: Any) -> Built:
    """MiSS on Qwen3 0.6B, in all of its linear layers but the head."""
    config = home.MissConfig(task_type="CAUSAL_LM", r=64, target_modules="all-linear")
    return _causal_lm(_adapted(_qwen(), config), 4, 1024)


def _randlora(home: Any) -> Built:
    """RandLoRA on Mistral 7B: random matrices shared by all layers, scaled in each."""
    model = transformers.MistralForCausalLM(
        transformers.MistralConfig(num_hidden_layers=_LAYERS, use_cache=False)
    )
    config = home.RandLoraConfig(task_type="CAUSAL_LM", r=32, target_modules=["q_proj", "k_proj", "v_proj"])
    return _causal_lm(_adapted(model, config), 2, 1024)


def _road(home: Any) -> Built:
    """RoAd on Phi-3 mini: what comes out of its fused layers is rotated in pairs."""
    model = transformers.Phi3ForCausalLM(transformers.Phi3Config(
        num_hidden_layers=_LAYERS, use_cache=False, pad_token_id=0
    ))  # fmt: skip
    targets = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
    config = home.RoadConfig(task_type="CAUSAL_LM", variant="road_1", target_modules=targets)
    return _causal_lm(_adapted(model, config), 4, 2048)


def _norms(home: Any) -> Built:
    """BERT large whose norms alone are trained, with a head for sequences."""
    model = transformers.BertForSequenceClassification(transformers.BertConfig(
        hidden_size=1024, num_hidden_layers=_LAYERS, num_attention_heads=16, intermediate_size=4096,
        num_labels=2,
    ))  # fmt: skip
    config = home.LNTuningConfig(task_type="SEQ_CLS", target_modules=["LayerNorm"])
    model, ids, labels = _adapted(model, config), _ids(32, 256), _ids(32)
    return Built(model, lambda: model(input_ids=ids, labels=labels).loss)


def _tokens(home: Any) -> Built:
    """Llama 3.2 1B with LoRA, and a few words of its table that are trained."""
    config = home.LoraConfig(
        task_type="CAUSAL_LM", r=16, target_modules=["q_proj", "v_proj"],
        trainable_token_indices=[128000, 128001, 128002],
    )  # fmt: skip
    return _causal_lm(_adapted(_llama(), config), 4, 1024)


def _make_moe(_: Any) -> Built:
    """As makeMoE.py has it, without its data: what is in front of it and the classes."""
    home = ModuleType("makeMoE")
    path = _folder("AviSoori1x_makeMoE/sparse") / "makeMoE.py"
    source = path.read_text()
    classes = source.partition("class Head(")[2].partition("def kaiming_init_weights")[0]
    text = source.partition("torch.manual_seed")[0] + "\nvocab_size = 65\nclass Head(" + classes
    exec(compile(text, str(path), "exec"), vars(home))  # as an import
    vars(home)["device"] = "meta"
    model: Any = home.SparseMoELanguageModel()
    model.blocks = model.blocks[:_LAYERS]
    ids, told = _ids(16, 32), _told(8, 16, 32, 2)
    for block in model.blocks:
        _sent(block.smoe.router, 1, told)
    return Built(model, lambda: model(ids, ids)[1])


def _dispatched(home: Any) -> Built:
    """moe.py's experts, four of eight with noise, in the layers of GPT-2."""

    class MoE(home.MoE):  # type: ignore[misc]
        """That of moe.py on tokens, which gives its loss beside."""

        def noisy_top_k_gating(self, *given: Any) -> Any:
            gates, load = super().noisy_top_k_gating(*given)
            return _telling(gates, told), load

        def forward(self, x: Tensor) -> Tensor:
            out, self.lost = super().forward(x.flatten(0, 1))
            return out.unflatten(0, x.shape[:2])

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=_LAYERS, use_cache=False))
    ids = _ids(4, 1024)
    with torch.device("cpu"):
        told = ((torch.arange(4096)[:, None] + torch.arange(8)) % 2).float()
    for block in model.transformer.h:
        block.mlp = MoE(768, 768, 8, 3072, k=4)

    def loss() -> Tensor:
        lost = model(input_ids=ids, labels=ids).loss
        return lost + torch.stack([block.mlp.lost for block in model.transformer.h]).sum()

    return Built(model, loss)


def _selected(x: Tensor, chosen: Any, weights: Tensor) -> Tensor:
    """cvmm.py's product of each row with the matrices it chose."""
    rows = x.reshape(-1, x.shape[-1])[chosen.sel_index]
    ends = torch.searchsorted(chosen.sel.flatten(), torch.arange(len(weights)), right=True).int()
    out: Tensor = torch._grouped_mm(rows, weights, offs=ends)
    scale = chosen.reduction_weight.to(out.dtype)
    back = torch.zeros_like(out).index_copy(0, chosen.out_index, out)
    return (back.unflatten(0, scale.shape) * scale[..., None]).sum(-2)


def _switch_head(home: Any) -> Built:
    """SwitchHead with rotations: four heads, each with eight experts for values and for its result."""

    class SwitchHeadRope(home.SwitchHeadRope):  # type: ignore[misc]
        """That of switchhead.py, as a layer of transformers calls it."""

        def forward(self, hidden_states: Tensor, **_: Any) -> Any:
            return super().forward(hidden_states, hidden_states, hidden_states, None)

    vars(home)["cvmm"] = _selected
    model = _llama(hidden_size=1024, intermediate_size=4096, num_attention_heads=16, vocab_size=32000)
    for layer in model.model.layers:
        layer.self_attn = SwitchHeadRope(1024, 4, 8, d_head=112)
    return _causal_lm(model, 4, 1024)


def _diff(home: Any) -> Built:
    """Differential attention as wide as the paper's 3B, in the layers of transformers."""

    class MultiheadDiffAttn(home.MultiheadDiffAttn):  # type: ignore[misc]
        """That of multihead_diffattn.py, as a layer of transformers calls it."""

        def forward(self, hidden_states: Tensor, **_: Any) -> Any:
            return super().forward(hidden_states, places), None

    places = (_some(2048, 64), _some(2048, 64))
    model = _llama(hidden_size=3072, intermediate_size=8192, num_attention_heads=24, vocab_size=100288)
    for at, layer in enumerate(model.model.layers):
        layer.self_attn = MultiheadDiffAttn(3072, at, 12)
    return _causal_lm(model, 1, 2048)


def _dense(home: Any) -> Built:
    """DenseFormer of four layers, each a weighted sum of all before."""
    home.tiktoken.get_encoding = lambda _: None
    home.InPlaceSetSlice = _Slice
    model = home.DenseFormer(Namespace(
        vocab_size=50304, sequence_length=1024, increase_T_every=1, n_layer=4, dilation_factor=1,
        lm_cache="none", n_embd=768, n_head=12, dropout=0.0, bias=False, positional_encoder="rotary",
        attention_window_length=None,
    ))  # fmt: skip
    ids = _ids(4, 1024)
    return Built(model, lambda: model(ids, ids)["loss"])


class _Slice(torch.autograd.Function):
    """InPlaceSetSlice, without the storage that a meta tensor has not."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, _: Any, at: int, x: Tensor) -> Tensor:
        whole[at] = x
        ctx.at = at
        return whole.data[: at + 1]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, grads[0][: ctx.at] if ctx.at else None, None, grads[0][ctx.at]


class SwiGLU(nn.Module):
    """xformers/ops/swiglu_op.py with weights that are not packed, in PyTorch."""

    def __init__(self, inside: int, hidden: int, bias: bool = True, **_: Any) -> None:
        super().__init__()
        self.w1 = nn.Linear(inside, hidden, bias=bias)
        self.w2 = nn.Linear(inside, hidden, bias=bias)
        self.w3 = nn.Linear(hidden, inside, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w3(functional.silu(self.w1(x)) * self.w2(x))
        return out


def _mdm(_: Any) -> Built:
    """SMDM's masked diffusion of 336 M: words that are masked, their losses weighted by the noise."""
    home: Any = import_module("lit_gpt.diffmodel")
    model = home.TransEncoder(home.Config.from_name("Diff_LLaMA_336M", n_layer=_LAYERS))
    ids, masked, noise = _ids(4, 2048), _ids(4, 2048), _floats(4, 1)

    def loss() -> Tensor:
        logits = model(masked)
        lost = functional.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="none")
        return (lost.view(4, 2048) / noise).sum() / ids.numel()

    return Built(model, loss)


def _routed(home: Any) -> Built:
    """A mixture of attention over four windows, two experts that each attend to what is routed to them."""
    model = home.Transformer(
        dim=512, num_tokens=20000, depth=_LAYERS, seq_len=1024, local_attn_window_size=64,
        routed_window_size=256, num_routed_queries=64, num_routed_key_values=64, num_experts=2,
        use_triton=False,
    )  # fmt: skip
    ids = _ids(4, 1024)
    return Built(model, lambda: _of_next(model(ids), ids))


def _tokenformer(home: Any) -> Built:
    """TokenFormer 150M: tokens of parameters that tokens attend to, in place of every linear layer."""
    given = Namespace(
        norm="layernorm_nonparam", layernorm_epsilon=1e-5, hidden_size=768, num_attention_heads=12,
        norm_activation_type="l2_norm_gelu", qkv_slot_num=768, proj_slot_num=768, ffn_slot_num=3072,
        precision="bfloat16", apply_query_key_layer_scaling=False, attention_softmax_in_fp32=False,
        pos_emb="rotary", sliding_window_width=None, use_mup=False, rotary_pct=0.25, rotary_emb_base=10000,
        seq_length=2048, params_dtype=torch.bfloat16, rotary_save_freqs_buffer=False, rope_fusion=False,
        attention_dropout=0.0, hidden_dropout=0.0, bias_dropout_fusion=False, gpt_j_residual=False,
        gpt_j_tied=False, moe_num_experts=1, mlp_type="regular", activation="gelu", use_qk_layernorm=False,
        attention_config=["flash"] * _LAYERS,
    )  # fmt: skip
    layers = nn.ModuleList(
        home.ParallelTokenformerLayer(given, None, nn.init.zeros_, nn.init.zeros_, at, rotary=True)
        for at in range(_LAYERS)
    )
    kind, eps = home.get_norm(given)
    parts = {"word_embeddings": nn.Embedding(50304, 768), "layers": layers, "norm": kind(768, eps=eps)}
    model: Any = _together(**parts, final_linear=nn.Linear(768, 50304, bias=False))
    ids = _ids(4, 2048)

    def loss() -> Tensor:
        x = model["word_embeddings"](ids).transpose(0, 1)
        for layer in layers:
            x = layer(x, None)
        return _of_next(model["final_linear"](model["norm"](x.transpose(0, 1))), ids)

    return Built(model, loss)


def _atari(home: Any) -> Built:
    """Decision Transformer on Breakout, 30 steps of returns, frames and actions."""
    model = home.GPT(home.GPTConfig(
        4, 90, n_layer=_LAYERS, n_head=8, n_embd=128, model_type="reward_conditioned", max_timestep=2654
    ))  # fmt: skip
    frames, actions, returns, when = (
        _floats(64, 30, 28224),
        _ids(64, 30, 1),
        _floats(64, 30, 1),
        _ids(64, 1, 1),
    )
    return Built(model, lambda: model(frames, actions, actions, returns, when)[1])


def _trajectory(home: Any) -> Built:
    """Trajectory Transformer on HalfCheetah, ten transitions of 25 tokens."""
    model = home.GPT(Namespace(
        vocab_size=100, block_size=249, n_layer=4, n_head=4, n_embd=128, observation_dim=17, action_dim=6,
        transition_dim=25, action_weight=5, reward_weight=1, value_weight=1, embd_pdrop=0.1, resid_pdrop=0.1,
        attn_pdrop=0.1,
    ))  # fmt: skip
    ids, mask = _ids(256, 249), torch.ones(256, 249, device="meta")
    return Built(model, lambda: model(ids, ids, mask)[1])


def _sounds(x: Tensor, n_fft: int, hop_length: int, window: Tensor, **_: Any) -> Tensor:
    """torch.istft, without asking whether the windows cover all."""
    frames = torch.fft.irfft(x, n_fft, 1) * window[:, None]
    long = hop_length * (frames.shape[-1] - 1) + n_fft
    out = functional.fold(frames, (1, long), (1, n_fft), stride=(1, hop_length)).flatten(1)
    return out[:, n_fft // 2 : -(n_fft // 2)]


def _roformer(home: Any) -> Built:
    """BS-RoFormer of two layers on spectra of one channel: attention over time, then over bands."""
    model = home.BSRoformer(dim=384, depth=2, time_transformer_depth=1, freq_transformer_depth=1)
    sounds = _floats(2, 131072)

    def loss() -> Tensor:
        with mock.patch.object(torch, "istft", _sounds):
            return model(sounds, target=sounds)

    return Built(model, loss)


def _uce(home: Any) -> Built:
    """UCE of 1280 dimensions: cells as tokens of proteins, and whether a gene is expressed."""
    model = home.TransformerModel(5120, 1280, 20, 5120, _LAYERS, 1280)
    genes, mask = _some(1024, 4, 5120), torch.ones(4, 1024, dtype=torch.bfloat16, device="meta")
    asked, expressed = _some(4 * 256, 5120), _some(4 * 256, 1)

    def loss() -> Tensor:
        _, cells = model(genes, mask)
        told = model.predict(cells.repeat_interleave(256, 0), asked)
        return functional.binary_cross_entropy_with_logits(told, expressed)

    return Built(model, loss)


def _auto_int(home: Any) -> Built:
    """AutoInt on Criteo, 26 categories and 13 numbers."""
    kinds = import_module("torch_rechub.basic.features")
    sparse = [kinds.SparseFeature(f"C{at}", vocab_size=100000, embed_dim=16) for at in range(26)]
    dense = [kinds.DenseFeature(f"I{at}") for at in range(13)]
    layers = {"dims": [256, 128], "dropout": 0.2, "activation": "relu"}
    model = home.AutoInt(sparse, dense, num_layers=3, num_heads=2, dropout=0.1, mlp_params=layers)
    ids, values = {x.name: _ids(4096) for x in sparse}, {x.name: _floats(4096) for x in dense}
    return Built(model, lambda: functional.binary_cross_entropy(model(ids | values), _floats(4096)))


#: The module that is imported, and what builds of it.
_HOMES: dict[str, tuple[str, Callable[[Any], Built]]] = {
    "peft/llama_boft": ("peft", _boft),
    "peft/qwen3_miss": ("peft", _miss),
    "peft/mistral_randlora": ("peft", _randlora),
    "peft/phi3_road": ("peft", _road),
    "peft/bert_ln_tuning": ("peft", _norms),
    "peft/llama_trainable_tokens": ("peft", _tokens),
    "AviSoori1x_makeMoE/sparse": ("math", _make_moe),
    "davidmrau_mixture-of-experts/gpt2": ("moe", _dispatched),
    "RobertCsordas_switchhead/rope": ("switchhead.switchhead", _switch_head),
    "microsoft_unilm/diff": ("multihead_diffattn", _diff),
    "epfml_DenseFormer/denseformer": ("models.denseformer", _dense),
    "ML-GSAI_SMDM/mdm": ("lit_gpt.model", _mdm),
    "mixture_of_attention/lm": ("mixture_of_attention.transformer", _routed),
    "Haiyang-W_TokenFormer/tokenformer": ("megatron.model.tokenformer", _tokenformer),
    "kzl_decision-transformer/atari": ("mingpt.model_atari", _atari),
    "jannerm_trajectory-transformer/gpt": ("trajectory.models.transformers", _trajectory),
    "bs_roformer/roformer": ("bs_roformer.bs_roformer", _roformer),
    "snap-stanford_UCE/uce": ("model", _uce),
    "torch_rechub/autoint": ("torch_rechub.models.ranking.autoint", _auto_int),
}
NAMES = [name for name in LISTED if name in _HOMES]
#: Where in a clone its modules are.
_UNDER = {
    "microsoft_unilm": "Diff-Transformer",
    "epfml_DenseFormer": "experiments",
    "kzl_decision-transformer": "atari",
}
#: What a clone asks for and its model does not.
_UNUSED: dict[str, tuple[str, ...]] = {
    "bs_roformer": ("librosa",),
    "RobertCsordas_switchhead": ("triton",),
    "epfml_DenseFormer": ("tiktoken",),
    "Haiyang-W_TokenFormer": ("deepspeed",),
}
#: Packages that import all they have, beside what is asked of them.
_BARE: dict[str, tuple[str, ...]] = {
    "jannerm_trajectory-transformer": ("trajectory", "trajectory.models"),
    "kzl_decision-transformer": ("mingpt",),
    "RobertCsordas_switchhead": ("switchhead",),
    "epfml_DenseFormer": ("models",),
    "ML-GSAI_SMDM": ("lit_gpt",),
    "Haiyang-W_TokenFormer": ("megatron", "megatron.model"),
}


#: Kernels of attention, rotation and gates, in PyTorch; layers that are parallel, on one device.
_STUBS: dict[str, dict[str, dict[str, Any]]] = {
    "torch_rechub": {
        "torch_rechub.trainers": {},
        "torch_rechub.utils": {},
        "torch_rechub.utils.data": {"get_auto_embedding_dim": None, "get_loss_func": None},
    },
    "RobertCsordas_switchhead": {},
    "microsoft_unilm": {
        "flash_attn": {"flash_attn_func": _flash},
        "kernel": {},
        "kernel.rotary": {"apply_rotary_emb": _rotated},
    },
    "ML-GSAI_SMDM": {
        "flash_attn": {"flash_attn_func": _flash},
        "xformers": {},
        "xformers.ops": {"SwiGLU": SwiGLU},
        "lightning_utilities": {},
        "lightning_utilities.core": {},
        "lightning_utilities.core.imports": {"RequirementCache": lambda *_: False},
        "lit_gpt.utils": {"find_multiple": lambda n, k: -(-n // k) * k},
        "lit_gpt.fused_rotary_embedding": {
            "apply_rotary_emb_func": lambda x, cosines, sines, *_: _rotated(x, cosines, sines)
        },
        "lit_gpt.rmsnorm": {"FusedRMSNorm": nn.RMSNorm},
    },
    "Haiyang-W_TokenFormer": {
        "flash_attn": {},
        "flash_attn.flash_attn_interface": {
            "flash_attn_func": lambda q, k, v, *_, **__: _flash(q, k, v, causal=True),
            "flash_attn_varlen_func": None,
        },
        "flash_attn.flash_attn_triton": {"flash_attn_func": None},
        "megatron.mpu": {
            "divide": lambda a, b: a // b,
            "get_model_parallel_world_size": lambda: 1,
        },
        "megatron.model.fused_layer_norm": {"MixedFusedLayerNorm": None},
        "megatron.model.fused_softmax": {"FusedScaleMaskSoftmax": None, "SoftmaxFusionTypes": None},
        "megatron.model.fused_rope": {"FusedRoPEFunc": None, "fused_apply_rotary_pos_emb_cached": None},
    },
}
#: What reads numbers while it is built.
_OF_NUMBERS: tuple[str, ...] = ("bs_roformer",)
#: What asks for single precision.
_SINGLE: tuple[str, ...] = ("davidmrau_mixture-of-experts", "mixture_of_attention", "torch_rechub")
_SINGLE += ("kzl_decision-transformer", "jannerm_trajectory-transformer", "bs_roformer")
