"""Key/value heads of models that repeat them before attention, and the shapes that must not be read so."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.said import Listener
from tests.synthetic import ModelSpec, Options, build
from tests.trace.tools import read
from tracelens.accounting.projected_heads import projected_kv_heads
from tracelens.analysis import analyze_trace
from tracelens.results import Report
from tracelens.step.saved_step import step_of
from tracelens.step.whatif import what_if

GQA = ModelSpec(family="llama", hidden=2048, heads=16, kv_heads=4, ffn=5632, vocab=32000, layers=2,
                micro_batch=2)  # fmt: skip


def heads(widths: dict[int, int], *, layers: int = 4) -> int | None:
    found = projected_kv_heads(Counter(widths), layers=layers, heads=32, head_dim=128)
    return found.value if found is not None else None


@pytest.mark.parametrize(
    ("widths", "kv_heads"),
    [
        ({4096: 4, 1024: 8}, 8),
        ({4096: 4, 128: 8}, 1),  # one for all
        ({4096: 4, 2048: 8}, 16),
        ({6144: 4}, 8),
        ({4096: 4, 1024: 4}, 4),  # keys and values in one product
        ({4096: 12}, 32),  # as many as heads
        ({12288: 4}, 32),
        ({12288: 3, 4096: 1, 8192: 1}, 32),  # one layer attends to something else
    ],
)
def test_projections_tell_the_heads(widths: dict[int, int], kv_heads: int) -> None:
    assert heads(widths) == kv_heads


@pytest.mark.parametrize(
    "widths",
    [
        {4096: 8},  # half as many keys and values in one product, or queries and keys
        {8192: 4, 4096: 4},  # to something else in every layer, or a gate
        {12288: 3, 4096: 1},
        {8192: 4, 1024: 8},  # the query has a gate
        {10240: 4},  # fused with a gate: 40 heads' width would be 24 key-value heads, which divide nothing
        {4096: 4, 1024: 8, 16: 24},  # adapters
        {4096: 4, 1024: 4, 512: 4},  # layers, or keys and values, of two kinds
        {4096: 4, 1536: 8},  # 12 heads do not divide 32
        {4096: 4, 1000: 8},  # no whole head
        {4096: 4, 8192: 8},  # more than heads
        {4096: 4, 1024: 6},  # not in every layer
        {4096: 3, 1024: 8},
        {6144: 3},
        {1536: 4, 576: 4},  # latents
        {64: 4},
        {},
    ],
)
def test_what_can_be_read_in_two_ways_is_not_read(widths: dict[int, int]) -> None:
    assert heads(widths) is None


def test_unknown_heads_tell_nothing() -> None:
    widths = Counter({4096: 4, 1024: 8})
    assert projected_kv_heads(widths, layers=4, heads=None, head_dim=128) is None
    assert projected_kv_heads(widths, layers=4, heads=32, head_dim=None) is None
    assert projected_kv_heads(widths, layers=0, heads=32, head_dim=128) is None


@cache
def report(spec: ModelSpec, options: Options, folder: Path) -> Report:
    return analyze_trace(read(folder, build(spec, options).text()), shape_search=False).report


@pytest.mark.parametrize("attention", ["flash", "math"])
def test_a_model_that_repeats_them_has_as_many_as_it_stores(
    attention: str, tmp_path: Path, said: Listener
) -> None:
    one = report(GQA, Options(steps=1, attention=attention), tmp_path)  # type: ignore[arg-type]
    assert (one.model.heads.value, one.model.kv_heads.value) == (16, 4)
    said(one.model.kv_heads.source)
    wide = {row.n_expr for row in one.gemms if row.component == "attention.qkv" and row.role == "forward"}
    assert wide == {"h", "kv*d"}


def test_as_many_as_heads_stay_so(tmp_path: Path) -> None:
    one = report(replace(GQA, kv_heads=16), Options(steps=1), tmp_path)
    assert (one.model.kv_heads.value, one.model.kv_heads.source[:4]) == (16, "2 of")
    assert step_of(one).now.kv_repeated is None


def test_a_change_of_them_moves_the_projections_and_no_attention_call(tmp_path: Path) -> None:
    one = report(GQA, Options(steps=1), tmp_path)
    step = step_of(one)
    assert (step.now.kv_heads, step.now.kv_repeated) == (4, True)
    assert not [why for row, why in step.work.fixed if row.kind == "attention"]
    found = what_if(step, {"kv_heads": 8})
    assert {row.component for row in found.rows} == {"attention.qkv"}
    assert found.saving_ms.mid is not None and found.saving_ms.mid < 0
    then = report(replace(GQA, kv_heads=8), Options(steps=1), tmp_path)
    cost = then.summary.gpu_ms_per_step - one.summary.gpu_ms_per_step
    low, high = found.saving_ms.low, found.saving_ms.high
    assert low is not None and high is not None and low <= -cost <= high
    fewer = what_if(step, {"heads": 8, "head_dim": 256})
    assert all(" kv=" not in row.shape_then for row in fewer.rows if row.component == "attention.core")


def test_the_weights_are_those_of_the_model(tmp_path: Path) -> None:
    """Counted with as many key/value heads as heads, they would be an eighth too many here."""
    now = step_of(report(GQA, Options(steps=1), tmp_path)).now
    layer = 2048 * (16 + 2 * 4) * 128 + 2048 * 2048 + 3 * 2048 * 5632
    assert now.parameters == 2 * layer + 32000 * 2048


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not here")
@pytest.mark.parametrize(
    ("family", "kv_heads"), [("llama_fused", 8), ("qk_norm", 8), ("gated_attention", 8), ("mla", 12)]
)
def test_modules_as_pytorch_records_them(family: str, kv_heads: int, tmp_path: Path, said: Listener) -> None:
    """Two that repeat keys, one whose query has a gate, and latent attention."""
    from tests.zoo import ZooOptions, program_of, trace_of

    options = ZooOptions(steps=1)
    text = trace_of(family, options, program_of(family, options)).text()
    known = analyze_trace(read(tmp_path, text), shape_search=False).report.model.kv_heads
    assert known.value == kv_heads
    said(known.source)
