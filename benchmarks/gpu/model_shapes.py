"""Transformer layers of published models, as numbers.

Widths are those of the models' published configurations (``config.json`` on the Hugging Face hub; GPT-3:
arXiv 2005.14165, table 2.1, with the 2.7B shape's 32 heads as arXiv 2401.14489 discusses it).
"""

from __future__ import annotations

from dataclasses import replace

from tracelens.measure.layer_shapes import LayerShape


def _gpt(hidden: int, heads: int, **changes: int) -> LayerShape:
    return replace(LayerShape(hidden, heads, 4 * hidden), **changes)  # type: ignore[arg-type]


def _llama(hidden: int, heads: int, kv: int, ffn: int, *, head_dim: int = 0, **changes: int) -> LayerShape:
    base = LayerShape(hidden, heads, ffn, kv_heads=kv, head_dim=head_dim, gated=True)
    return replace(base, **changes)  # type: ignore[arg-type]


def _encoder(hidden: int, heads: int, ffn: int, *, sequence: int, micro_batch: int) -> LayerShape:
    return LayerShape(hidden, heads, ffn, causal=False, sequence=sequence, micro_batch=micro_batch)


#: name -> (family, layer, vocabulary; 0 where there is no language-model head)
MODELS: dict[str, tuple[str, LayerShape, int]] = {
    "gpt2": ("gpt", _gpt(768, 12), 50257),
    "gpt2-medium": ("gpt", _gpt(1024, 16), 50257),
    "gpt2-large": ("gpt", _gpt(1280, 20), 50257),
    "gpt2-xl": ("gpt", _gpt(1600, 25), 50257),
    "gpt3-760m": ("gpt", _gpt(1536, 16), 50257),
    "gpt3-2.7b": ("gpt", _gpt(2560, 32), 50257),
    "gpt3-6.7b": ("gpt", _gpt(4096, 32), 50257),
    "gpt3-13b": ("gpt", _gpt(5120, 40), 50257),
    "gpt3-175b": ("gpt", _gpt(12288, 96), 50257),
    "pythia-1.4b": ("gpt", _gpt(2048, 16), 50304),
    "gpt-neox-20b": ("gpt", _gpt(6144, 64), 50432),
    "falcon-7b": ("gpt", _gpt(4544, 71, kv_heads=1), 65024),
    "phi-2": ("gpt", _gpt(2560, 32), 51200),
    "llama-7b": ("llama", _llama(4096, 32, 32, 11008), 32000),
    "llama-13b": ("llama", _llama(5120, 40, 40, 13824), 32000),
    "llama-30b": ("llama", _llama(6656, 52, 52, 17920), 32000),
    "llama-3.2-1b": ("llama", _llama(2048, 32, 8, 8192), 128256),
    "llama-3.2-3b": ("llama", _llama(3072, 24, 8, 8192), 128256),
    "llama-3-8b": ("llama", _llama(4096, 32, 8, 14336), 128256),
    "llama-3-70b": ("llama", _llama(8192, 64, 8, 28672), 128256),
    "tinyllama-1.1b": ("llama", _llama(2048, 32, 4, 5632), 32000),
    "qwen2.5-0.5b": ("qwen", _llama(896, 14, 2, 4864), 151936),
    "qwen2.5-1.5b": ("qwen", _llama(1536, 12, 2, 8960), 151936),
    "qwen2.5-3b": ("qwen", _llama(2048, 16, 2, 11008), 151936),
    "qwen2.5-7b": ("qwen", _llama(3584, 28, 4, 18944), 152064),
    "qwen2.5-14b": ("qwen", _llama(5120, 40, 8, 13824), 152064),
    "qwen2.5-32b": ("qwen", _llama(5120, 40, 8, 27648), 152064),
    "qwen3-0.6b": ("qwen", _llama(1024, 16, 8, 3072, head_dim=128), 151936),
    "qwen3-4b": ("qwen", _llama(2560, 32, 8, 9728, head_dim=128), 151936),
    "mistral-7b": ("mistral", _llama(4096, 32, 8, 14336), 32768),
    "mistral-nemo-12b": ("mistral", _llama(5120, 32, 8, 14336, head_dim=128), 131072),
    "mistral-small-24b": ("mistral", _llama(5120, 32, 8, 32768, head_dim=128), 131072),
    "gemma-2b": ("gemma", _llama(2048, 8, 1, 16384, head_dim=256), 256000),
    "gemma-7b": ("gemma", _llama(3072, 16, 16, 24576, head_dim=256), 256000),
    "gemma2-2b": ("gemma", _llama(2304, 8, 4, 9216, head_dim=256), 256000),
    "gemma2-9b": ("gemma", _llama(3584, 16, 8, 14336, head_dim=256), 256000),
    "bert-small": ("bert", _encoder(512, 8, 2048, sequence=128, micro_batch=64), 30522),
    "bert-base": ("bert", _encoder(768, 12, 3072, sequence=128, micro_batch=64), 30522),
    "bert-large": ("bert", _encoder(1024, 16, 4096, sequence=512, micro_batch=16), 30522),
    "roberta-large": ("bert", _encoder(1024, 16, 4096, sequence=512, micro_batch=16), 50265),
    "vit-b-16": ("vit", _encoder(768, 12, 3072, sequence=197, micro_batch=64), 0),
    "vit-l-16": ("vit", _encoder(1024, 16, 4096, sequence=197, micro_batch=64), 0),
    "vit-h-14": ("vit", _encoder(1280, 16, 5120, sequence=257, micro_batch=32), 0),
    "vit-g-14": ("vit", _encoder(1408, 16, 6144, sequence=257, micro_batch=32), 0),
    "vit-so400m-14": ("vit", _encoder(1152, 16, 4304, sequence=729, micro_batch=16), 0),
}  # fmt: skip
