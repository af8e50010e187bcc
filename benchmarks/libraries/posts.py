"""Builds what people record and write about: a tenth list, none of it was in another.

Adapters of peft, mixtures of experts and language models; ``further_posts.py`` has the rest. The folder of
the clones is that of ``clones.py``, each in a folder OWNER_NAME at the commit here: rasbt/LLMs-from-scratch
28c65cdfbc33, Time-MoE/Time-MoE d3524fdaa5c0, kuleshov-group/mdlm c112c526d193, microsoft/unilm 768a3c873f59,
seal-rg/recurrent-pretraining 59e0b69b2d96 and tysam-code/hlb-gpt a9f158f28d81.

Imports ask for peft 0.21.2, PEER-pytorch 0.2.2, mixture-of-experts 0.2.3, minGRU-pytorch 0.2.1, fairscale,
einx, omegaconf, transformers and einops. Widths are the repositories' own, a few layers deep; what is frozen
is as in the recipe. Which experts a token goes to is told by hand where the source asks for numbers.
"""

# What comes of modules is anything.
# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
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
from benchmarks.libraries.recipes import _llama
from benchmarks.libraries.repos import _of_next
from benchmarks.libraries.senses import _floats
from benchmarks.libraries.trainers import _without_torchao
from benchmarks.libraries.workloads import _causal

LISTED = Path(__file__).parents[1].joinpath("fresh", "libraries_10.txt").read_text().split()
_LAYERS = 3


def _adapted(model: Any, config: Any) -> Any:
    """What peft makes of a model."""
    _without_torchao()
    return import_module("peft").get_peft_model(model, config)


def _causal_lm(model: Any, *size: int) -> Built:
    """Next tokens, as the model itself asks for them."""
    ids = _ids(*size)
    return Built(model, lambda: model(input_ids=ids, labels=ids).loss)


def _mixtral(home: Any) -> Built:
    """Mixtral 8x7B, LoRA in attention and in the experts' own weights, which no linear layer holds."""
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(
        num_hidden_layers=_LAYERS, use_cache=False
    ))  # fmt: skip
    config = home.LoraConfig(
        task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    )  # fmt: skip
    built = _causal_lm(_adapted(model, config), 2, 2048)
    return Built(built.model, _plain(built.loss))


def _plain(loss: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A loss without autocast, which no meta device has."""

    def run() -> Tensor:
        with mock.patch.object(torch, "autocast", lambda *_, **__: nullcontext()):
            return loss()

    return run


def _phi(home: Any) -> Built:
    """LoHa on Phi-2, in all of its linear layers but the head."""
    model = transformers.PhiForCausalLM(transformers.PhiConfig(
        hidden_size=2560, intermediate_size=10240, num_hidden_layers=_LAYERS, num_attention_heads=32,
        partial_rotary_factor=0.4, use_cache=False,
    ))  # fmt: skip
    targets = ["q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"]
    config = home.LoHaConfig(task_type="CAUSAL_LM", r=16, alpha=32, target_modules=targets)
    return _causal_lm(_adapted(model, config), 8, 2048)


def _gemma(home: Any) -> Built:
    """FourierFT on Gemma 2B, as its paper tunes queries and values."""
    model = transformers.GemmaForCausalLM(transformers.GemmaConfig(
        hidden_size=2048, intermediate_size=16384, num_hidden_layers=_LAYERS, num_attention_heads=8,
        num_key_value_heads=1, head_dim=256, use_cache=False,
    ))  # fmt: skip
    config = home.FourierFTConfig(
        task_type="CAUSAL_LM", n_frequency=1000, scaling=300.0, target_modules=["q_proj", "v_proj"]
    )
    return _causal_lm(_adapted(model, config), 2, 1024)


def _hra(home: Any) -> Built:
    """Householder reflections on Llama 3.2 1B, in attention and on the way up."""
    targets = ["q_proj", "v_proj", "up_proj"]
    config = home.HRAConfig(task_type="CAUSAL_LM", r=8, target_modules=targets)
    return _causal_lm(_adapted(_llama(), config), 4, 1024)


def _t5(home: Any) -> Built:
    """LoRA with the scale of rsLoRA on T5 v1.1 large: attention, MLPs, the words and the head."""
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(
        d_model=1024, d_kv=64, d_ff=2816, num_layers=_LAYERS, num_heads=16, feed_forward_proj="gated-gelu",
        tie_word_embeddings=False, use_cache=False, vocab_size=32128, decoder_start_token_id=0,
    ))  # fmt: skip
    config = home.LoraConfig(
        task_type="SEQ_2_SEQ_LM", r=32, lora_alpha=32, use_rslora=True, lora_dropout=0.05,
        target_modules=["q", "k", "v", "o", "wi_0", "wi_1", "wo", "shared", "lm_head"],
    )  # fmt: skip
    adapted = _adapted(model, config)
    ids, told = _ids(8, 512), _ids(8, 128)
    return Built(adapted, lambda: adapted(input_ids=ids, labels=told).loss)


def _pythia(home: Any) -> Built:
    """P-tuning on Pythia 1.4B: words in front, made by an MLP."""
    model = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=_LAYERS, num_attention_heads=16,
        vocab_size=50304, use_cache=False,
    ))  # fmt: skip
    config = home.PromptEncoderConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=20, encoder_hidden_size=2048, num_layers=_LAYERS,
        token_dim=2048, num_attention_heads=16, num_transformer_submodules=1,
    )  # fmt: skip
    return _causal_lm(_adapted(model, config), 8, 1024)


def _segformer(home: Any) -> Built:
    """LoRA on SegFormer-B1 for ADE20K, the decoder's head trained as it is."""
    model = transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig(
        depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 320, 512], num_labels=150
    ))  # fmt: skip
    config = home.LoraConfig(
        r=32, lora_alpha=32, lora_dropout=0.1, target_modules=["q_proj", "v_proj"],
        modules_to_save=["decode_head"],
    )  # fmt: skip
    adapted = _adapted(model, config)
    pictures, labels = _some(8, 3, 512, 512), _ids(8, 512, 512)
    return Built(adapted, lambda: adapted(pixel_values=pictures, labels=labels).loss)


def _gpt_moe(home: Any) -> Built:
    """Chapter 4's GPT-2 with two of eight gated experts in every layer, of a loop over those that are hit."""
    model = home.GPTModel({
        "vocab_size": 50257, "context_length": 1024, "emb_dim": 768, "hidden_dim": 3072, "n_heads": 12,
        "n_layers": _LAYERS, "drop_rate": 0.1, "qkv_bias": False, "num_experts": 8, "num_experts_per_tok": 2,
    })  # fmt: skip
    ids = _ids(4, 1024)
    with torch.device("cpu"):
        told = (torch.arange(4096)[:, None] + torch.arange(8)).remainder(8).float().view(4, 1024, 8)
    for block in model.trf_blocks:
        gate = block.ff.gate.forward
        block.ff.gate.forward = lambda x, gate=gate: _telling(gate(x), told)
    return Built(model, lambda: _of_next(model(ids), ids))


def _telling(x: Tensor, values: Tensor) -> Tensor:
    """The same, and what it holds is known."""
    vars(x)["_held_values"] = values
    return x


def _time_moe(home: Any) -> Built:
    """Time-MoE base, four heads for horizons, and the loss of its routers."""
    config = import_module("time_moe.models.configuration_time_moe").TimeMoeConfig(
        hidden_size=384, intermediate_size=1536, horizon_lengths=[1, 8, 32, 64], num_hidden_layers=_LAYERS,
        num_attention_heads=12, num_experts=8, num_experts_per_tok=2, use_cache=False,
        attn_implementation="eager",
    )  # fmt: skip
    held = property(lambda one: one._modules["loss_function"])  # transformers 5 has one of its own
    home.TimeMoeForPrediction.loss_function = held
    model = home.TimeMoeForPrediction(config)
    series = _some(16, 1024, 1)
    return Built(model, lambda: model(input_ids=series, labels=series).loss)


def _peer(home: Any) -> Built:
    """A million experts of one neuron each, retrieved by product keys, in the middle layer of a Llama."""
    model = _llama(hidden_size=1024, intermediate_size=4096, num_attention_heads=16, vocab_size=32000)
    model.model.layers[1].mlp = home.PEER(dim=1024, heads=8, num_experts=1024**2, num_experts_per_head=16)
    return _causal_lm(model, 2, 512)


def _gshard(home: Any) -> Built:
    """GShard's gates of two experts, dispatched by products with masks, in the layers of GPT-2."""

    class MoE(home.MoE):  # type: ignore[misc]
        """That of mixture_of_experts.py, which gives its loss beside."""

        def forward(self, inputs: Tensor, **_: Any) -> Tensor:
            out, self.lost = super().forward(inputs)
            return out

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=_LAYERS, use_cache=False))
    ids = _ids(4, 1024)
    for block in model.transformer.h:
        block.mlp = MoE(dim=768, num_experts=16, hidden_dim=3072, activation=nn.GELU)

    def loss() -> Tensor:
        lost = model(input_ids=ids, labels=ids).loss
        return lost + torch.stack([block.mlp.lost for block in model.transformer.h]).sum()

    return Built(model, loss)


def _mdlm(home: Any) -> Built:
    """MDLM small on OpenWebText: words that are masked, their losses weighted by the noise."""
    home.modulate = lambda x, shift, scale: x * (1 + scale) + shift  # the one that its scripts were made of
    model = home.DIT(
        import_module("omegaconf").OmegaConf.create({"model": {
            "hidden_size": 768, "cond_dim": 128, "n_heads": 12, "n_blocks": _LAYERS, "dropout": 0.1,
            "scale_by_sigma": True,
        }}), 50258,
    )  # fmt: skip
    ids, masked, noise, weights = _ids(8, 1024), _ids(8, 1024), _floats(8), _floats(8, 1)

    def loss() -> Tensor:
        logits = functional.log_softmax(model(masked, noise).float(), -1)
        return -(torch.gather(logits, -1, ids[..., None]).squeeze(-1) * weights).mean()

    return Built(model, loss)


def _flash(q: Tensor, k: Tensor, v: Tensor, *_: Any, causal: bool = False, **__: Any) -> Tensor:
    """flash_attn_func, heads behind the sequence."""
    query, key, value = (x.transpose(1, 2) for x in (q, k, v))
    shared = query.shape[1] != key.shape[1]
    out = functional.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=shared)
    return out.transpose(1, 2)


def _packed(qkv: Tensor, _: Tensor, length: int, *__: Any, causal: bool = False) -> Tensor:
    """flash_attn_varlen_qkvpacked_func, of sequences that are all as long."""
    parts = qkv.unflatten(0, (-1, length)).unbind(2)
    return _flash(*parts, causal=causal).flatten(0, 1)


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor, interleaved: bool = False) -> Tensor:
    """flash_attn's apply_rotary_emb, in PyTorch."""
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    cosines, sines = cosines[:, None], sines[:, None]
    turned = first * cosines - second * sines, first * sines + second * cosines
    return torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)


def _rotated_qkv(qkv: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    q, k, v = qkv.unbind(2)
    return torch.stack((_rotated(q, cosines, sines), _rotated(k, cosines, sines), v), 2)


class ColumnParallelLinear(nn.Linear):
    """Those of fairseq's megatron, on one device."""

    def __init__(self, inside: int, outside: int, bias: bool = True, **_: Any) -> None:
        super().__init__(inside, outside, bias=bias)


class RowParallelLinear(ColumnParallelLinear):
    """The same."""


class VocabParallelEmbedding(nn.Embedding):
    """The same."""

    def __init__(self, words: int, width: int, _: int, **__: Any) -> None:
        super().__init__(words, width)


def _yoco(home: Any) -> Built:
    """YOCO-3B: two layers with windows, and two that share the keys and values of what comes out of them."""
    model = home.YOCO(home.YOCOArgs(
        dim=3072, n_layers=4, hidden_dim=8192, n_self_heads=24, n_attn_heads=24, n_attn_kv_heads=8,
        vocab_size=100288, max_seq_len=4096, sliding_window=1024,
    ))  # fmt: skip
    ids = _ids(1, 4096)
    return Built(model, lambda: _of_next(model(ids, is_prefilling=False)[0], ids))


def _huginn(home: Any) -> Built:
    """Huginn: a core of four layers, run three times, once of them without gradients."""
    config = import_module("recpre.raven_config_minimal").RavenConfig(mean_recurrence=3)
    home.CausalLMOutputRecurrentLatents = Namespace
    home.RavenPreTrainedModel._tied_weights_keys = {}
    home.RavenForCausalLM.tie_weights = lambda *_, **__: None
    model = home.RavenForCausalLM(config)
    ids = _ids(1, 2048)
    return Built(model, lambda: model(input_ids=ids, labels=ids, num_steps=(1, 2)).loss)


def _hlb(_: Any) -> Built:
    """As main.py has it: what is in front of its training, on the meta device and without its data."""
    home = ModuleType("main")
    path = _folder("tysam-code_hlb-gpt/fused") / "main.py"
    source = path.read_text().partition("def main():")[0].replace("'cuda'", "'meta'")
    with mock.patch("os.path.exists", lambda _: True), mock.patch.object(torch, "load"):
        exec(compile(source, str(path), "exec"), vars(home))  # as an import, but for the device
    home.hyp["net"]["num_blocks"] = 4
    model = home.make_net()
    ids = _ids(32, 1024)
    return Built(model, lambda: _of_next(model(ids), ids))


def _min_gru(home: Any) -> Built:
    """As train.py has it for enwik8, wider, with convolutions in front."""
    model = home.minLM(num_tokens=256, dim=512, depth=4, enable_conv=True, dropout=0.1)
    ids = _ids(4, 2049)
    return Built(model, lambda: model(ids, return_loss=True))


#: The module that is imported, and what builds of it.
_HOMES: dict[str, tuple[str, Callable[[Any], Built]]] = {
    "peft/mixtral_lora_experts": ("peft", _mixtral),
    "peft/phi_loha": ("peft", _phi),
    "peft/gemma_fourierft": ("peft", _gemma),
    "peft/llama_hra": ("peft", _hra),
    "peft/t5_lora_rs": ("peft", _t5),
    "peft/pythia_ptuning": ("peft", _pythia),
    "peft/segformer_lora": ("peft", _segformer),
    "rasbt_LLMs-from-scratch/moe": ("gpt_with_kv_moe", _gpt_moe),
    "Time-MoE_Time-MoE/base": ("time_moe.models.modeling_time_moe", _time_moe),
    "PEER_pytorch/llama": ("PEER_pytorch", _peer),
    "mixture_of_experts/gpt2": ("mixture_of_experts", _gshard),
    "kuleshov-group_mdlm/dit": ("models.dit", _mdlm),
    "microsoft_unilm/yoco": ("yoco.models.decoder.yoco", _yoco),
    "seal-rg_recurrent-pretraining/huginn": ("recpre.raven_modeling_minimal", _huginn),
    "tysam-code_hlb-gpt/fused": ("math", _hlb),
    "minGRU_pytorch/lm": ("minGRU_pytorch.minLM", _min_gru),
}
NAMES = [name for name in LISTED if name in _HOMES]
#: Where in a clone its modules are.
_UNDER = {"rasbt_LLMs-from-scratch": "ch04/07_moe", "microsoft_unilm": "YOCO"}
#: What a clone asks for and its model does not.
_UNUSED: dict[str, tuple[str, ...]] = {
    "rasbt_LLMs-from-scratch": ("tiktoken",),
    "tysam-code_hlb-gpt": ("tiktoken",),
}
#: Packages that import all they have, beside what is asked of them.
_BARE: dict[str, tuple[str, ...]] = {
    "Time-MoE_Time-MoE": ("time_moe",),
    "kuleshov-group_mdlm": ("models",),
    "microsoft_unilm": ("yoco", "yoco.models", "yoco.models.decoder"),
    "seal-rg_recurrent-pretraining": ("recpre",),
}
_YOCO = "yoco.models.decoder.kernel"
#: Kernels of attention, rotation and gates, in PyTorch; layers that are parallel, on one device.
_STUBS: dict[str, dict[str, dict[str, Any]]] = {
    "Time-MoE_Time-MoE": {
        "transformers.modeling_attn_mask_utils": {
            "_prepare_4d_causal_attention_mask": lambda *given, **_: _causal(*given),
        },
    },
    "kuleshov-group_mdlm": {
        "flash_attn": {
            "layers": Namespace(rotary=Namespace(apply_rotary_emb_qkv_=_rotated_qkv)),
            "flash_attn_interface": Namespace(flash_attn_varlen_qkvpacked_func=_packed),
        },
        "flash_attn.layers": {},
        "flash_attn.layers.rotary": {},
    },
    "microsoft_unilm": {
        "fairseq": {},
        "fairseq.model_parallel": {},
        "fairseq.model_parallel.megatron": {},
        "fairseq.model_parallel.megatron.mpu": {
            "ColumnParallelLinear": ColumnParallelLinear,
            "RowParallelLinear": RowParallelLinear,
            "VocabParallelEmbedding": VocabParallelEmbedding,
            "copy_to_model_parallel_region": None,
        },
        "flash_attn": {"flash_attn_func": _flash},
        f"{_YOCO}.rotary": {"apply_rotary_emb": _rotated},
        f"{_YOCO}.swiglu": {"swiglu": lambda gate, x: functional.silu(gate) * x},
        f"{_YOCO}.gate_recurrent": {"chunk_gate_retention": None, "recurrent_gate_retention": None},
    },
}
#: What reads numbers while it is built.
_OF_NUMBERS: tuple[str, ...] = ()
#: What asks for single precision.
_SINGLE: tuple[str, ...] = ("kuleshov-group_mdlm", "mixture_of_experts")
