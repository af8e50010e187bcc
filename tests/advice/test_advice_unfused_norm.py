"""TL131: RMSNorm in separate operations against the tensors that a fused one moves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.advice.advice_facts import other, step_of
from tests.advice.advice_rows import gemm
from tests.kept import analyzed
from tracelens.results import OtherRow
from tracelens.rules.engine.facts import Outcome
from tracelens.rules.unfused_norm import UnfusedNorm

SAMPLES = Path(__file__).parents[2] / "sample_traces"
#: µs of a step of an H100 (Llama, hidden 4096), by operation: the mean reads x once, in fp32.
FORWARD = {"to": 1620, "pow": 810, "mean": 500, "add": 20, "rsqrt": 20, "mul": 1930}
BACKWARD = {"mul": 6500, "add_": 2000, "to": 1700, "copy_": 800, "div": 800, "sum": 800}


def norms(
    forward: dict[str, int] = FORWARD, backward: dict[str, int] = BACKWARD, module: str | None = "layers.norm"
) -> list[OtherRow]:
    said = [("forward", name, us) for name, us in forward.items()]
    said += [("backward", name, us) for name, us in backward.items()]
    return [
        other(at, "elementwise", component="norm", phase=phase, op=f"aten::{name}", time_us=us, calls=1.0,
              module=module)
        for at, (phase, name, us) in enumerate(said)
    ]  # fmt: skip


def check(rows: list[OtherRow], step_ms: float = 108.0) -> Outcome:
    return UnfusedNorm().check(step_of([gemm(1, 64, 64, 64)], step_ms=step_ms, others=rows))


@pytest.mark.parametrize("module", ["layers.norm", None])
def test_what_five_tensors_do_not_need_is_the_bound(module: str | None) -> None:
    (finding,) = check(norms(module=module)).findings
    total = (sum(FORWARD.values()) + sum(BACKWARD.values())) / 1e3
    assert finding.saving_ms.mid is None
    assert finding.saving_ms.high == pytest.approx(total - 5 * 0.5)


def test_without_a_backward_two_tensors_are_left() -> None:
    (finding,) = check(norms(backward={})).findings
    assert finding.saving_ms.high == pytest.approx(sum(FORWARD.values()) / 1e3 - 2 * 0.5)


def test_what_is_fused_or_small_or_no_norm_passes() -> None:
    fused = other(1, "reduction", component="norm", op="aten::_fused_rms_norm")
    layer = other(2, "reduction", component="norm", op="aten::native_layer_norm")
    assert check([fused, layer]).state == "passed"
    assert check(norms(), step_ms=1e6).state == "passed"
    assert check(norms(forward={"mean": 500, "mul": 100})).state == "passed"  # no root: no RMSNorm
    assert check([other(1, "elementwise")]).state == "not_applicable"
    blind = [replace(row, op=None) for row in norms()]
    assert check(blind).state == "could_not_run"  # as in a CUDA graph


def test_a_layer_norm_beside_it_is_not_counted() -> None:
    beside = [
        other(90, "reduction", component="norm", op="aten::native_layer_norm", module="ln", time_us=5000),
        other(
            91,
            "reduction",
            component="norm",
            op="aten::native_layer_norm",
            time_us=5000,
            module="layers.norm",
        ),
    ]
    (alone,), (both,) = check(norms()).findings, check([*norms(), *beside]).findings
    assert both.saving_ms.high == alone.saving_ms.high


@pytest.mark.parametrize("name", ["llama_gqa_ffn11008", "llama_gqa_ffn10922", "moe_8experts"])
def test_what_torch_compile_left_of_real_norms_is_what_is_said(name: str) -> None:
    """A compiler fuses the residual sums with them: both together, before and after, on an H100."""

    def took(how: str) -> float:
        report = analyzed(SAMPLES / f"h100-sxm_{name}_{how}.json.gz").report
        return sum(row.time_ms_per_step for row in report.components if row.component in ("norm", "residual"))

    found = analyzed(SAMPLES / f"h100-sxm_{name}_eager.json.gz").report.findings
    (finding,) = (one for one in found if one.rule == "TL131")
    assert finding.saving_ms.high == pytest.approx(took("eager") - took("compile"), rel=0.2)
