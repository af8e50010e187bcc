"""Whole steps on Blackwell against those that NVIDIA publishes; nothing was fitted to them.

NVIDIA-NeMo/Megatron-Bridge 067f987d, docs/performance-summary.md and its archive: container, tokens/s and
GPU; 25.11 of 00b7660b. Without pipeline, 4096 tokens a sequence (Llama 8192), no recompute; fp8 is MXFP8
or, of Llama, a scale per tensor.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.advice.configs import GPT_OSS_20B, LLAMA3_8B, read
from tests.said import Listener
from tracelens.config.training import Training
from tracelens.hardware import find_gpu
from tracelens.results.suggestions import Strategy, WholeStep
from tracelens.step.planned_step import Planner
from tracelens.step.whole_step import whole_step

_GPT_OSS_120B = GPT_OSS_20B | {
    "num_hidden_layers": 36, "num_local_experts": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
}  # fmt: skip
_QWEN3_30B = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4,
    "head_dim": 128, "num_hidden_layers": 48, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "hidden_act": "silu",
    "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False,
}  # fmt: skip
_LLAMA_70B = LLAMA3_8B | {
    "hidden_size": 8192, "num_attention_heads": 64, "num_hidden_layers": 80, "intermediate_size": 28672,
}  # fmt: skip

#: Model, type, GPUs, sequences on a GPU in a step: (GPU, micro-batch, expert-parallel, tokens/s) of each.
_PUBLISHED: dict[str, tuple[dict[str, Any], str, int, int, list[tuple[str, int, int, float]]]] = {
    "gpt-oss 120B, 26.04.01": (_GPT_OSS_120B, "bf16", 64, 20, [
        ("gb300", 4, 64, 19200), ("gb200", 4, 64, 16640), ("b300", 4, 8, 15232), ("b200", 4, 8, 13568)]),
    "gpt-oss 120B, 26.06 and 26.08": (_GPT_OSS_120B, "fp8", 64, 20, [
        ("gb300", 4, 16, 33024), ("gb200", 4, 64, 28672), ("b300", 4, 8, 18534)]),
    "Qwen3 30B-A3B, 26.04.01": (_QWEN3_30B, "fp8", 8, 64, [
        ("gb300", 8, 8, 31744), ("b300", 8, 8, 30720), ("b200", 4, 8, 27136), ("gb200", 4, 8, 26112)]),
    "Qwen3 30B-A3B, 26.06 and 26.08": (_QWEN3_30B, "fp8", 8, 64, [
        ("gb300", 8, 8, 44544), ("b300", 8, 8, 40769), ("gb200", 4, 8, 39936)]),
    "Llama 3 8B, 25.11": (LLAMA3_8B, "fp8", 8, 16, [
        ("gb300", 2, 1, 37556), ("gb200", 2, 1, 31508), ("b200", 2, 1, 30624)]),
    "Llama 3 70B, 26.04.01": (_LLAMA_70B, "fp8", 64, 4, [("gb300", 2, 1, 5248), ("gb200", 2, 1, 4224)]),
}  # fmt: skip


def _steps(folder: Path, name: str) -> list[tuple[WholeStep, float]]:
    table, dtype, gpus, sequences, rows = _PUBLISHED[name]
    found = []
    for gpu, micro_batch, ep, speed in rows:
        config = read(
            folder, table, sequence=4096 if ep > 1 else 8192, micro_batch=micro_batch, expert_parallel=ep
        )
        strategy: Strategy = "fsdp" if table is _LLAMA_70B else "ddp"
        training = Training(gpus, strategy=strategy, micro_batches=sequences // micro_batch)
        planner = Planner(config.layout, gpu=find_gpu(None, override=gpu), dtype=dtype)
        found.append((whole_step(planner, config.model, training), float(speed)))
    return found


@pytest.mark.parametrize("name", _PUBLISHED)
def test_published_steps_are_in_range_and_in_order(name: str, tmp_path: Path) -> None:
    found = _steps(tmp_path, name)
    for step, speed in found:
        rate = step.tokens_per_s_per_gpu
        assert (rate.low or 0) < speed < (rate.high or 0)
    rates = [step.tokens_per_s_per_gpu.mid or 0.0 for step, _ in found]
    assert rates == sorted(rates, reverse=True)


def test_of_each_model_and_gpu_what_was_published_last(tmp_path: Path) -> None:
    names = list(_PUBLISHED)[1], *list(_PUBLISHED)[3:]
    errors = [
        abs(math.log((step.tokens_per_s_per_gpu.mid or 1.0) / speed))
        for name in names
        for step, speed in _steps(tmp_path, name)
    ]
    assert len(errors) == 11 and math.expm1(statistics.median(errors)) < 0.17


def test_it_is_said_that_no_such_step_was_fitted(tmp_path: Path, said: Listener) -> None:
    step, _ = _steps(tmp_path, "Llama 3 70B, 26.04.01")[0]
    assert step.step_ms.basis == "heuristic"
    communication = next(part.time_ms for part in step.parts if part.name == "communication")
    assert communication.low == 0.0  # FSDP can hide all of it behind kernels
    said(step.notes)
