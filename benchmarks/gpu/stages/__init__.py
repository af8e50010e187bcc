"""Every stage, in order of value: what comes first is collected first when minutes are short."""

from __future__ import annotations

from benchmarks.gpu.stage import Stage
from benchmarks.gpu.stages.attention_sweep import ATTENTION_SWEEP
from benchmarks.gpu.stages.captures import CAPTURES, FIRST_STEP, MORE_CAPTURES
from benchmarks.gpu.stages.ceilings import CEILINGS
from benchmarks.gpu.stages.gemm_sweep import CURVES, GEMM_SWEEP, GEMM_UNSURE
from benchmarks.gpu.stages.layer_pairs import FULL_STEPS, LAYER_PAIRS, SAVINGS
from benchmarks.gpu.stages.overhead import OVERHEAD
from benchmarks.gpu.stages.repeatability import REPEATABILITY

STAGES: tuple[Stage, ...] = (
    FIRST_STEP,  # three minutes: one step before and after a fix
    CEILINGS,
    GEMM_UNSURE,
    ATTENTION_SWEEP,
    OVERHEAD,
    SAVINGS,
    CURVES,  # from here on what the paper's figures are drawn of
    GEMM_SWEEP,
    LAYER_PAIRS,
    FULL_STEPS,
    CAPTURES,
    REPEATABILITY,
    MORE_CAPTURES,
)
