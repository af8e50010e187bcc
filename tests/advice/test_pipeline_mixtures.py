"""Mixtures of experts in pipeline stages and expert parallelism, as NVIDIA publishes them; nothing is fitted.

NVIDIA-NeMo/Megatron-Bridge 067f987d, docs/performance-summary of version 0.4.2: 4096 tokens a sequence, no
recompute; fp8 is MXFP8 on Blackwell. Its DeepSeek-V3 has a layer that predicts a further token, ours none.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from tests.advice.configs import DEEPSEEK_V3, MIXTRAL_8X7B, read
from tests.advice.test_blackwell_steps import _GPT_OSS_120B, _QWEN3_30B
from tracelens.config.training import Training
from tracelens.hardware import find_gpu
from tracelens.results import Estimate
from tracelens.step.planned_step import Planner
from tracelens.step.whole_step import whole_step

_QWEN3_235B = _QWEN3_30B | {
    "hidden_size": 4096, "num_attention_heads": 64, "num_hidden_layers": 94, "moe_intermediate_size": 1536,
}  # fmt: skip
_MIXTRAL_8X22B = MIXTRAL_8X7B | {
    "hidden_size": 6144, "num_attention_heads": 48, "num_hidden_layers": 56, "intermediate_size": 16384,
    "vocab_size": 32768, "max_position_embeddings": 65536,
}  # fmt: skip
#: With tensor parallelism (2) too, whose GPUs hold experts whole; Mixtral's with context parallelism (8) of
#: 65,536 tokens: docs.nvidia.com/nemo-framework, performance summaries of 25.02 and 25.04.
_CUT: list[tuple[dict[str, Any], str, str, int, int, dict[str, int], float]] = [
    (_QWEN3_235B, "fp8", "h100-sxm", 256, 8192, {"pipeline_parallel": 8, "virtual_stages": 4,
     "expert_parallel": 32}, 1712),
    (_QWEN3_235B, "bf16", "gb200", 64, 1024, {"expert_parallel": 64}, 4452),
    (_MIXTRAL_8X22B, "fp8", "b200", 256, 64, {"pipeline_parallel": 4, "virtual_stages": 14,
     "expert_parallel": 8, "context_parallel": 8, "sequence": 65536}, 2232),
    (_MIXTRAL_8X22B, "fp8", "gb200", 256, 64, {"pipeline_parallel": 4, "virtual_stages": 14,
     "expert_parallel": 8, "context_parallel": 8, "sequence": 65536}, 2731),
]  # fmt: skip
#: Model, type, GPU, GPUs, sequences of a step, micro-batch, stages, turns, expert-parallel, tokens/s of a GPU
_Row = tuple[dict[str, Any], str, str, int, int, int, int, int, int, float]
_PUBLISHED: list[_Row] = [
    (_GPT_OSS_120B, "bf16", "h100-sxm", 64, 1280, 1, 4, 1, 8, 5824),
    (_QWEN3_30B, "fp8", "h100-sxm", 16, 1024, 1, 1, 1, 16, 8960),
    (DEEPSEEK_V3, "fp8", "gb300", 256, 4096, 2, 2, 8, 32, 4992),
    (DEEPSEEK_V3, "fp8", "gb200", 256, 4096, 1, 4, 4, 64, 4256),
    (DEEPSEEK_V3, "fp8", "b300", 256, 4096, 2, 8, 1, 8, 3456),
    (DEEPSEEK_V3, "fp8", "b200", 256, 4096, 1, 8, 2, 32, 3328),
    (_QWEN3_235B, "fp8", "gb300", 256, 8192, 2, 4, 12, 32, 6944),
    (_QWEN3_235B, "fp8", "gb200", 256, 8192, 1, 8, 3, 32, 5680),
    (_QWEN3_235B, "fp8", "b300", 256, 8192, 2, 8, 1, 8, 5936),
    (_QWEN3_235B, "fp8", "b200", 256, 8192, 1, 8, 1, 8, 3776),
]


def _rate(folder: Path, row: _Row) -> Estimate:
    table, dtype, gpu, gpus, sequences, micro, stages, turns, ep, _ = row
    sizes = {"sequence": 4096, "micro_batch": micro, "expert_parallel": ep, "pipeline_parallel": stages}
    config = read(folder, table, "config.json", **sizes | ({"virtual_stages": turns} if turns > 1 else {}))
    planner = Planner(config.layout, gpu=find_gpu(None, override=gpu), dtype=dtype)
    training = Training(gpus, "zero1", "none", sequences * stages // gpus // micro, stack="megatron")
    return whole_step(planner, config.model, training).tokens_per_s_per_gpu


def test_steps_of_deepseek_and_qwen_on_hundreds_of_gpus(tmp_path: Path) -> None:
    """All but one in range, half within 10 %. DeepSeek's own way among nodes (DeepEP) is faster than NCCL's:
    experts over four nodes of B200 are the one beyond it."""
    errors, beyond = [], []
    for row in _PUBLISHED:
        rate, published = _rate(tmp_path, row), row[-1]
        assert rate.low is not None and rate.mid is not None and rate.high is not None
        errors.append(abs(math.log(rate.mid / published)))
        if not rate.low <= published <= rate.high:
            beyond.append((row[0]["model_type"], row[2], row[8]))
            assert published < 1.3 * rate.high
    assert statistics.median(errors) < 0.11 and beyond == [("deepseek_v3", "b200", 32)]


def test_steps_of_mixtures_whose_layers_are_cut(tmp_path: Path) -> None:
    errors = []
    for table, dtype, gpu, gpus, sequences, degrees, published in _CUT:
        sizes = {"sequence": 4096, "micro_batch": 1, "tensor_parallel": 2} | degrees
        config = read(tmp_path, table, "config.json", **sizes)
        planner = Planner(config.layout, gpu=find_gpu(None, override=gpu), dtype=dtype)
        count = sequences * config.model.batch_ranks // gpus
        step = whole_step(planner, config.model, Training(gpus, "zero1", "none", count))
        rate = step.tokens_per_s_per_gpu
        assert rate.low is not None and rate.mid is not None and rate.high is not None
        assert rate.low <= published <= rate.high and step.stack == "megatron"
        errors.append(abs(math.log(rate.mid / published)))
    assert statistics.median(errors) < 0.22 and max(errors) < 0.4
