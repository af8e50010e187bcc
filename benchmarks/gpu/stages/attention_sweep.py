"""Fused attention over head dimension, sequence, heads and groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from benchmarks.gpu import expected
from benchmarks.gpu.attention_sweeps import attention_sweep
from benchmarks.gpu.stage import Item, Setting, Stage
from benchmarks.gpu.stages.shapes import (
    CHUNK,
    QUICK,
    check_attention,
    chunks,
    gpu_of,
    joined,
    measure,
    predict,
)
from tracelens.hardware.measurements import AttentionMeasurement
from tracelens.measure.cases import AttentionCase

#: Building a plan, per cuDNN call of a new shape: why cuDNN is swept more thinly than flash attention.
_CUDNN_PLAN_S = 0.25


def attention_items(setting: Setting) -> list[Item]:
    cases = attention_sweep()
    if setting.dry_run:
        cases = toy_attention(cases)
    gpu = gpu_of(setting)

    def seconds(case: AttentionCase) -> float:
        plan = _CUDNN_PLAN_S if case.backend == "cudnn" else 0.0
        one = expected.attention_us(case, gpu)
        return plan + expected.case_s(one, seconds_per_case=QUICK.seconds_per_case)

    return chunks(cases, seconds, size=CHUNK // 2)


def toy_attention(cases: Sequence[AttentionCase]) -> list[AttentionCase]:
    kinds = {(case.sweep, case.backend, case.direction): case for case in cases}
    return [
        replace(case, batch=1, heads=2, kv_heads=1 if case.key_heads < case.heads else None, seq_q=16,
                seq_k=None, head_dim=16)
        for case in kinds.values()
    ]  # fmt: skip


ATTENTION_SWEEP = Stage(
    name="attention_sweep",
    writes="times of fused attention over head dimension, sequence, heads and groups",
    items=attention_items,
    measure=partial(measure, QUICK),
    predict=predict,
    summarize=partial(joined, AttentionMeasurement),
    check=check_attention,
    max_failed_frac=0.05,
)
