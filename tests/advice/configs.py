"""Configurations written by hand from public facts, as users have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tracelens.config import Configuration, config_from_flags, read_config

GPT2_XL = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 1600, "n_head": 25, "n_layer": 48,
    "n_positions": 1024, "n_ctx": 1024, "vocab_size": 50257,
}  # fmt: skip
PYTHIA_2_8B = {
    "model_type": "gpt_neox", "hidden_size": 2560, "num_attention_heads": 32, "num_hidden_layers": 32,
    "intermediate_size": 10240, "vocab_size": 50304, "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 128, "num_hidden_layers": 61,
    "intermediate_size": 18432, "vocab_size": 129280, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA2_7B = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 32,
    "num_hidden_layers": 32, "intermediate_size": 11008, "vocab_size": 32000, "hidden_act": "silu",
    "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA3_8B = LLAMA2_7B | {
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "max_position_embeddings": 131072,
}  # fmt: skip
MISTRAL_7B = LLAMA2_7B | {
    "model_type": "mistral", "num_key_value_heads": 8, "intermediate_size": 14336, "sliding_window": 4096,
    "max_position_embeddings": 32768,
}  # fmt: skip
QWEN3_4B = {
    "model_type": "qwen3", "hidden_size": 2560, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "num_hidden_layers": 36, "intermediate_size": 9728, "vocab_size": 151936,
    "max_position_embeddings": 40960, "tie_word_embeddings": True, "hidden_act": "silu",
}  # fmt: skip
GEMMA_2B = {
    "model_type": "gemma", "hidden_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 1,
    "head_dim": 256, "num_hidden_layers": 18, "intermediate_size": 16384, "vocab_size": 256000,
    "max_position_embeddings": 8192,
}  # fmt: skip
BERT_BASE = {
    "model_type": "bert", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12,
    "intermediate_size": 3072, "vocab_size": 30522, "max_position_embeddings": 512,
}  # fmt: skip
MIXTRAL_8X7B = {
    "model_type": "mixtral", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 32, "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2, "max_position_embeddings": 32768, "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK_MOE_16B = {
    "model_type": "deepseek", "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16,
    "num_hidden_layers": 28, "intermediate_size": 10944, "vocab_size": 102400, "n_routed_experts": 64,
    "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "moe_layer_freq": 1,
    "first_k_dense_replace": 1, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK_V2_LITE = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16,
    "num_hidden_layers": 27, "intermediate_size": 10944, "vocab_size": 102400, "n_routed_experts": 64,
    "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "moe_layer_freq": 1,
    "first_k_dense_replace": 1, "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
QWEN_MOE_A2_7B = {
    "model_type": "qwen2_moe", "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16,
    "num_hidden_layers": 24, "intermediate_size": 5632, "vocab_size": 151936, "num_experts": 60,
    "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "sliding_window": 32768, "use_sliding_window": False,
    "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip
GPT_OSS_20B = {
    "model_type": "gpt_oss", "hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 64, "num_hidden_layers": 24, "intermediate_size": 2880, "vocab_size": 201088,
    "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}  # fmt: skip
FALCON_7B = {
    "model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32,
    "vocab_size": 65024, "multi_query": True, "new_decoder_architecture": False,
}  # fmt: skip
GEMMA3_MULTIMODAL = {
    "model_type": "gemma3",
    "vision_config": {"hidden_size": 1152, "num_attention_heads": 16},
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "num_hidden_layers": 34, "intermediate_size": 10240,
        "vocab_size": 262208, "sliding_window": 1024,
    },
}  # fmt: skip

MEGATRON_SCRIPT = """#!/bin/bash
# GPT-3 2.7B; --hidden-size 9999 in a comment is none
HIDDEN=2560
TP=${TP:-2}
GPT_ARGS=(
    --num-layers 32
    --hidden-size $HIDDEN
    --num-attention-heads 32   # d = 80
    --seq-length 2048 --max-position-embeddings 2048
    --micro-batch-size 4
    --vocab-size 50257
    --make-vocab-size-divisible-by 1
)
torchrun pretrain_gpt.py ${GPT_ARGS[@]} --tensor-model-parallel-size=${TP} --bf16
"""
MEGATRON_YAML = """# Llama-3 8B
model:
  num_layers: 32
  hidden_size: 4096          # h
  num_attention_heads: 32
  group_query_attention: true
  num_query_groups: 8
  ffn_hidden_size: 14336
  swiglu: true
  untie_embeddings_and_output_weights: true
  vocab_size: 128256
data:
  seq_length: "8192"
  micro_batch_size: 1
"""
NANOGPT = """# a config of nanoGPT
wandb_log = True
batch_size = 12
block_size = 1024
gradient_accumulation_steps = 5 * 8
n_layer = 12
n_head = 12
n_embd = 768 * 2
learning_rate = 6e-4
"""


def written(folder: Path, content: dict[str, Any] | str, name: str = "config.json") -> Path:
    """The configuration as a file in ``folder``."""
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def read(
    folder: Path, content: dict[str, Any] | str, name: str = "config.json", **sizes: int
) -> Configuration:
    """The configuration written and read."""
    return read_config(written(folder, content, name), overrides=sizes)


def gpt3_2_7b(**sizes: int) -> Configuration:
    """The shape of the paper's Figure 1: h 2560, a 32, 32 layers, s 2048, v 50257, micro-batch 4."""
    shape = {"hidden": 2560, "heads": 32, "layers": 32, "vocab": 50257, "sequence": 2048, "micro_batch": 4}
    return config_from_flags(shape | sizes, gated=False)
