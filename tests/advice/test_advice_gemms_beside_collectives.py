"""TL118: GEMMs beside a collective, against pytorch/pytorch#143988."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice.advice_facts import step_of
from tests.advice.advice_messages import message
from tests.advice.advice_rows import gemm
from tracelens.results import Beside, GemmRow
from tracelens.rules import advise
from tracelens.rules.engine.facts import Outcome
from tracelens.rules.gemms_beside_collectives import GemmsBesideCollectives

RULE = GemmsBesideCollectives()


def row_of(*, beside_us: float | None = 2000.0, tiles: int = 1320) -> GemmRow:
    """A persistent GEMM of 1000 µs alone on 132 SMs; half of its calls run beside a reduce-scatter."""
    row = gemm(1, 8192, 8192, 8192, time_us=1000.0, calls=10)
    waves = -(-tiles // 132)
    row = replace(row, tiles=tiles, split_k=1, waves=waves, cluster="1x1", scheduler="persistent")
    if beside_us is None:
        return row
    more = 5 * (beside_us - 1000.0) / 1e3
    half, time_ms = 5 * beside_us / 1e3, row.time_ms + more
    found = Beside(half, 0.0, {"reduce_scatter": half}, 13, 5, beside_us, 1000.0, more, more)
    return replace(row, time_ms=time_ms, time_ms_per_step=time_ms, beside=found, overlap_ms_per_step=more)


def check(*rows: GemmRow, step_ms: float = 100.0) -> Outcome:
    return RULE.check(step_of(rows, step_ms=step_ms, communication=[message("reduce_scatter")]))


def test_a_persistent_gemm_that_takes_a_second_wave() -> None:
    """A tenth of the SMs held, twice the time: left to NCCL, 12 of 10 waves, a tenth to a fifth longer."""
    (finding,) = check(row_of()).findings
    assert finding.rule == "TL118" and finding.change == {"sm_carveout": [0, 13]}
    assert finding.fix == ["+ torch._C._set_sm_carveout_experimental(13)"]
    # 5 calls of 1 ms more; all 10 calls take 12 / 10 of 1 ms then
    assert finding.saving_ms.mid == pytest.approx(5.0 - 10 * 1.0 * 0.2)
    assert finding.saving_ms.low == 0.0 and finding.saving_ms.high == pytest.approx(5.0)
    assert finding.evidence["beside"][0]["ctas"] == 13


@pytest.mark.parametrize(
    "row",
    [row_of(tiles=100), replace(row_of(), scheduler=None), replace(row_of(), split_k=None)],
    ids=["its CTAs fit", "not persistent", "slices unknown"],
)
def test_without_a_second_wave_no_carve_out_and_no_saving(row: GemmRow) -> None:
    (finding,) = check(row).findings
    assert finding.saving_ms.mid is None and finding.saving_ms.high == pytest.approx(5.0)
    assert not any("carveout" in line for line in finding.fix)


def test_waves_that_are_not_known_give_a_bound() -> None:
    (finding,) = check(replace(row_of(), waves=None)).findings
    assert finding.saving_ms.mid is None and finding.saving_ms.high == pytest.approx(5.0)
    assert any("carveout" in line for line in finding.fix)


def test_a_carve_out_that_costs_more_than_it_gives_is_not_advised() -> None:
    (finding,) = check(row_of(beside_us=1200.0), step_ms=20.0).findings
    assert finding.saving_ms.mid is None and finding.saving_ms.high == pytest.approx(1.0)
    assert finding.change == {} and "NCCL_MAX_CTAS" in finding.fix[0]


def test_calls_no_slower_beside_it_and_none_beside_it_pass() -> None:
    assert check(row_of(beside_us=1000.0)).state == "passed"
    assert check(row_of(beside_us=None)).state == "passed"
    assert RULE.check(step_of([row_of(beside_us=None)])).state == "not_applicable"


def test_without_calls_alone_nothing_is_told() -> None:
    row = row_of()
    assert row.beside is not None
    unknown = replace(row.beside, alone_us=None, excess_ms=None, excess_ms_per_step=None)
    assert check(replace(row, beside=unknown, overlap_ms_per_step=0.0)).state == "could_not_run"


def test_the_time_is_in_no_other_finding() -> None:
    """What the collective took is no saving of another shape."""
    row = replace(row_of(), dtype="bf16", n=8191, component="mlp.up")
    facts = step_of([row], step_ms=100.0, communication=[message("reduce_scatter")])
    judged = step_of([replace(row_of(beside_us=None), n=8191)], step_ms=100.0)
    for one, other in zip(
        (one for one in advise(facts).findings if one.rule != "TL118"), advise(judged).findings, strict=True
    ):
        assert one.rule == other.rule and one.saving_ms.high == pytest.approx(other.saving_ms.high)
