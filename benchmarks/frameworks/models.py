"""Builds models of megatron-core and torchtitan on the meta device, and says what a training step computes.

megatron-core has no configurations of whole models: those here are kinds that its options make, of its
``local`` layers, which need no TransformerEngine. torchtitan's are of its own registry, a few layers deep.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

LAYERS = 4
_SEQUENCE, _BATCH = 1024, 4


@dataclass
class Built:
    """A model, and its loss as the framework's training script computes it."""

    model: nn.Module
    loss: Callable[[], Tensor]
    tokens_of_expert: int = 0  # megatron-core asks for the number
    chosen: float = 0.0  # share of the experts that a token goes to


def build(name: str) -> Built:
    """The model ``framework/name``, in bf16 and training, on the meta device."""
    framework, _, own = name.partition("/")
    with torch.device("meta"):
        built = (_megatron if framework == "megatron" else _torchtitan)(own)
    built.model.train()
    return built


def _ids(sequence: int = _SEQUENCE) -> Tensor:
    return torch.zeros(_BATCH, sequence, dtype=torch.int64, device="meta")


# --- megatron-core ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Megatron:
    """A model of megatron-core: its configuration, its layer and its keywords."""

    config: dict[str, Any] = field(default_factory=dict)
    layer: dict[str, Any] = field(default_factory=dict)  # of get_gpt_layer_local_spec
    model: dict[str, Any] = field(default_factory=dict)
    latent: bool = False  # MLATransformerConfig


_LLAMA: dict[str, Any] = {
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "activation_func": torch.nn.functional.silu,
    "add_bias_linear": False,
    "ffn_hidden_size": 5632,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
}
_ROPE: dict[str, Any] = {"position_embedding_type": "rope", "share_embeddings_and_output_weights": False}
_MIXTURE: dict[str, Any] = {
    "num_moe_experts": 8,
    "moe_router_topk": 2,
    "moe_ffn_hidden_size": 1408,
    "moe_router_load_balancing_type": "aux_loss",
    "moe_aux_loss_coeff": 0.01,
}
_LATENT: dict[str, Any] = {
    "q_lora_rank": 768,
    "kv_lora_rank": 512,
    "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64,
    "v_head_dim": 128,
    "kv_channels": 128,  # the width of what its unfused core gives
    "rope_type": "rope",
}


def _squared_relu(x: Tensor) -> Tensor:
    """megatron/core/activations.py, the function of that name: it is compiled there."""
    return torch.pow(torch.nn.functional.relu(x), 2)


MEGATRON: dict[str, Megatron] = {
    "gpt": Megatron(model={"share_embeddings_and_output_weights": True}),
    "llama": Megatron(_LLAMA, {"normalization": "RMSNorm"}, _ROPE),
    "qwen3": Megatron(
        {**_LLAMA, "num_query_groups": 4, "qk_layernorm": True},
        {"normalization": "RMSNorm", "qk_layernorm": True},
        _ROPE,
    ),
    "gated": Megatron(
        {**_LLAMA, "num_query_groups": 4, "attention_output_gate": True}, {"normalization": "RMSNorm"}, _ROPE
    ),
    "sinks": Megatron(
        {**_LLAMA, "num_query_groups": 4, "softmax_type": "learnable", "window_size": (128, 0)},
        {"normalization": "RMSNorm"},
        _ROPE,
    ),
    "nemotron": Megatron(
        {
            **_LLAMA,
            "normalization": "LayerNorm",
            "gated_linear_unit": False,
            "activation_func": _squared_relu,
            "ffn_hidden_size": 8192,
        },
        {},
        _ROPE,
    ),
    "mixtral": Megatron(
        {**_LLAMA, **_MIXTURE, "num_query_groups": 4}, {"normalization": "RMSNorm", "num_experts": 8}, _ROPE
    ),
    "mixtral_alltoall": Megatron(
        {**_LLAMA, **_MIXTURE, "num_query_groups": 4, "moe_token_dispatcher_type": "alltoall"},
        {"normalization": "RMSNorm", "num_experts": 8},
        _ROPE,
    ),
    "qwen_moe": Megatron(
        {
            **_LLAMA,
            **_MIXTURE,
            "moe_token_dispatcher_type": "alltoall",
            "moe_shared_expert_intermediate_size": 5632,
            "moe_shared_expert_gate": True,
            "moe_router_dtype": "fp32",
        },
        {"normalization": "RMSNorm", "num_experts": 8},
        _ROPE,
    ),
    "mla": Megatron({**_LLAMA, **_LATENT}, {"normalization": "RMSNorm"}, _ROPE, latent=True),
    "deepseek_v3": Megatron(
        {
            **_LLAMA,
            **_LATENT,
            **_MIXTURE,
            "qk_layernorm": True,
            "moe_token_dispatcher_type": "alltoall",
            "moe_shared_expert_intermediate_size": 2816,
            "moe_router_score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
            "moe_router_load_balancing_type": "seq_aux_loss",
            "moe_router_topk_scaling_factor": 2.5,
            "moe_router_dtype": "fp32",
        },
        {
            "normalization": "RMSNorm",
            "num_experts": 8,
            "multi_latent_attention": True,
            "qk_layernorm": True,
        },
        _ROPE,
        latent=True,
    ),
    "mtp": Megatron({**_LLAMA, "mtp_num_layers": 1}, {"normalization": "RMSNorm"}, _ROPE),
    "fused_loss": Megatron(
        {**_LLAMA, "cross_entropy_loss_fusion": True}, {"normalization": "RMSNorm"}, _ROPE
    ),
    "bert": Megatron({"hidden_size": 1024, "ffn_hidden_size": 4096}),
    "t5": Megatron({"hidden_size": 1024, "ffn_hidden_size": 4096}),
    "clip": Megatron({"hidden_size": 1024, "ffn_hidden_size": 4096}),
}
_VOCABULARY = 32000


def _megatron(name: str) -> Built:
    kind = MEGATRON[name]
    module = import_module("megatron.core.transformer.transformer_config")
    make = module.MLATransformerConfig if kind.latent else module.TransformerConfig
    config = make(
        **{
            "num_layers": LAYERS,
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "use_cpu_initialization": True,
            "perform_initialization": False,
            "params_dtype": torch.bfloat16,
            "bf16": True,
            "pipeline_dtype": torch.bfloat16,
            "masked_softmax_fusion": False,  # its kernels are of CUDA
            "bias_dropout_fusion": False,
            **({"multi_latent_attention": True} if kind.latent else {}),
            **kind.config,
        }
    )
    other = {"bert": _bert, "t5": _t5, "clip": _clip}.get(name)
    built = other(config) if other is not None else _gpt(config, kind)
    built.model.to(torch.bfloat16)  # as Float16Module does
    if config.num_moe_experts:
        built.chosen = config.moe_router_topk / config.num_moe_experts
        built.tokens_of_expert = round(_BATCH * _SEQUENCE * built.chosen)
    return built


def _gpt(config: Any, kind: Megatron) -> Built:
    specs = import_module("megatron.core.models.gpt.gpt_layer_specs")
    layer = specs.get_gpt_layer_local_spec(multi_latent_attention=kind.latent, **_without(kind.layer))
    also: dict[str, Any] = {}
    if config.mtp_num_layers:
        also["mtp_block_spec"] = specs.get_gpt_mtp_block_spec(config, layer, use_transformer_engine=False)
    model = import_module("megatron.core.models.gpt.gpt_model").GPTModel(
        config, layer, _VOCABULARY, _SEQUENCE, **also, **kind.model
    )
    ids = _ids()
    # None: the causal mask is its own
    return Built(model, lambda: _mean(model(ids, ids, None, labels=ids)))


def _without(layer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in layer.items() if key != "multi_latent_attention"}


def _mean(losses: Tensor) -> Tensor:
    """The loss of Megatron-LM's pretrain_gpt.py: the mean over the tokens that count."""
    mask = torch.ones(losses.shape, device="meta").view(-1)
    return torch.sum(losses.view(-1).float() * mask) / mask.sum()


def _mask(rows: int, columns: int) -> Tensor:
    return torch.zeros(_BATCH, 1, rows, columns, dtype=torch.bool, device="meta")


def _bert(config: Any) -> Built:
    layer = import_module("megatron.core.models.bert.bert_layer_specs").bert_layer_local_spec
    model = import_module("megatron.core.models.bert.bert_model").BertModel(
        config, 2, layer, 30592, 512, share_embeddings_and_output_weights=True
    )
    ids = _ids(512)

    def loss() -> Tensor:
        found, _ = model(ids, torch.ones_like(ids), ids, lm_labels=ids)
        return _mean(found)

    return Built(model, loss)


def _t5(config: Any) -> Built:
    specs = import_module("megatron.core.models.T5.t5_spec")
    norm = import_module("megatron.core.transformer.torch_norm").WrappedTorchNorm
    blocks = import_module("megatron.core.transformer.transformer_block").TransformerBlockSubmodules
    encoder, decoder = (
        blocks([make()] * LAYERS, layer_norm=norm)
        for make in (specs.encoder_model_with_local_spec, specs.decoder_model_with_local_spec)
    )
    model = import_module("megatron.core.models.T5.t5_model").T5Model(
        config, config, encoder, decoder, _VOCABULARY, 512, share_embeddings_and_output_weights=True
    )
    words, answer = _ids(512), _ids(128)
    masks = _mask(512, 512), _mask(128, 128), _mask(128, 512)
    return Built(model, lambda: _mean(model(words, answer, *masks, lm_labels=answer)))


def _clip(config: Any) -> Built:
    layer = import_module("megatron.core.models.vision.vit_layer_specs").get_vit_layer_with_local_spec()
    norm = import_module("megatron.core.transformer.torch_norm").WrappedTorchNorm
    model = import_module("megatron.core.models.vision.clip_vit_model").CLIPViTModel(
        config, layer, ln_pre_impl=norm, patch_dim=14, img_h=224, img_w=224
    )
    picture = torch.zeros(32, 3, 224, 224, dtype=torch.bfloat16, device="meta")
    return Built(model, lambda: model(picture).float().mean())


# --- torchtitan ---------------------------------------------------------------------------------------

#: name: (package, flavour of its registry, keywords of the registry)
TORCHTITAN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama3": ("llama3", "8B", {"attn_backend": "varlen"}),
    "llama3_chunked": ("llama3", "3B", {"attn_backend": "varlen"}),
    "llama3_tied": ("llama3", "1B", {"attn_backend": "varlen"}),
    "qwen3": ("qwen3", "4B", {"attn_backend": "varlen"}),
    "qwen3_separate": ("qwen3", "debugmodel_non_fused_qkv", {"attn_backend": "varlen"}),
    "qwen3_moe": ("qwen3", "30B-A3B", {"attn_backend": "varlen", "moe_comm_backend": "standard"}),
    "deepseek_v3": ("deepseek_v3", "16B", {"attn_backend": "varlen"}),
    "deepseek_mtp": ("deepseek_v3", "16B", {"attn_backend": "varlen", "num_mtp_layers": 1}),
    "gpt_oss": ("gpt_oss", "20b", {"attn_backend": "varlen"}),
    "moonlight": ("kimi_k2_7", "moonlight-16B-A3B", {"attn_backend": "varlen"}),
    "flux": ("flux", "flux-dev", {}),
}


def _torchtitan(name: str) -> Built:
    package, flavour, keywords = TORCHTITAN[name]
    registry = import_module(f"torchtitan.models.{package}").model_registry
    config = registry(flavour, **keywords).model
    return _flux(config) if package == "flux" else _decoder(name, config)


def _decoder(name: str, config: Any) -> Built:
    config.layers = config.layers[:LAYERS]
    model = config.build().to(torch.bfloat16)
    loss = _loss_of(name, model)
    ids = _ids()
    places = torch.arange(_SEQUENCE, device="meta").expand(_BATCH, -1)
    ends = torch.zeros(_BATCH + 1, dtype=torch.int32, device="meta")
    metadata = import_module("torchtitan.models.common.attention").VarlenMetadata
    given = {"positions": places, "attention_masks": metadata(ends, ends, _SEQUENCE, _SEQUENCE)}
    tokens = torch.tensor(float(ids.numel()), device="meta")

    def run() -> Tensor:
        found: Tensor = loss(model(ids, **given), ids, tokens, positions=places)[0]
        return found

    return Built(model, run)


def _loss_of(name: str, model: Any) -> Any:
    losses = import_module("torchtitan.components.loss")
    if name.endswith("mtp"):
        return import_module("torchtitan.models.deepseek_v3.mtp").MTPLoss.Config().build()
    if not name.endswith("chunked"):
        return losses.CrossEntropyLoss.Config().build()
    loss = losses.ChunkedLossWrapper.Config().build()
    loss.set_lm_head(model.lm_head)
    model._skip_lm_head = True
    return loss


def _flux(config: Any) -> Built:
    config.double_blocks, config.single_blocks = config.double_blocks[:2], config.single_blocks[:LAYERS]
    model = config.build().to(torch.bfloat16)
    picture, text = 1024, 512

    def some(*size: int) -> Tensor:
        return torch.zeros(_BATCH, *size, dtype=torch.bfloat16, device="meta")

    loss = import_module("torchtitan.components.loss").MSELoss.Config().build()
    given = {
        "img": some(picture, config.in_channels),
        "img_ids": some(picture, 3),
        "txt": some(text, config.context_in_dim),
        "txt_ids": some(text, 3),
        "timesteps": some(),
        "y": some(config.vec_in_dim),
    }

    def run() -> Tensor:
        found: Tensor = loss(model(**given), given["img"], torch.tensor(1.0, device="meta"))[0]
        return found

    return Built(model, run)
