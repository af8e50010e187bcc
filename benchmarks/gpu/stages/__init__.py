"""Every stage, in order of value: what comes first is collected first when minutes are short."""

from __future__ import annotations

from benchmarks.gpu.stage import Stage
from benchmarks.gpu.stages.attention_sweep import ATTENTION_SWEEP
from benchmarks.gpu.stages.captures import CAPTURES, MORE_CAPTURES
from benchmarks.gpu.stages.ceilings import CEILINGS
from benchmarks.gpu.stages.gemm_sweep import CURVES, GEMM_SWEEP
from benchmarks.gpu.stages.layer_pairs import FULL_STEPS, LAYER_PAIRS
from benchmarks.gpu.stages.overhead import OVERHEAD
from benchmarks.gpu.stages.repeatability import REPEATABILITY

STAGES: tuple[Stage, ...] = (
    CEILINGS,
    CAPTURES,
    GEMM_SWEEP,
    LAYER_PAIRS,
    ATTENTION_SWEEP,
    FULL_STEPS,
    OVERHEAD,
    CURVES,
    REPEATABILITY,
    MORE_CAPTURES,
)


def find_stage(name: str) -> Stage | None:
    return next((stage for stage in STAGES if stage.name == name), None)
