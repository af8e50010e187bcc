"""One journal for ``bench`` and ``verify``: what holds, what is stale, and what is compared with what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tracelens.hardware.measurements import GemmMeasurement
from tracelens.measure import journal as module
from tracelens.measure.cases import AttentionCase, CaseOutcome, GemmCase
from tracelens.measure.devices import CpuDevice
from tracelens.measure.facts import device_facts
from tracelens.measure.journal import Journal, identity_of, pair_key
from tracelens.measure.layer_shapes import LayerShape
from tracelens.measure.pairs import PairTimes
from tracelens.measure.verify.meter import BenchMeter, CallTime, open_meter
from tracelens.results.verified import Why

ROW = GemmMeasurement("x", 16, 16, 16, 1, "bf16", "bf16", "TN", 5.0, 0.01, ("kernel",), (1, 2, 3))
OTHER = replace(ROW, m=32)
CASE, OTHER_CASE = GemmCase("y", 16, 16, 16), GemmCase("y", 32, 16, 16)
PAIR = PairTimes((1.0, 2.0), (3.0, 4.0), queued=False)


def opened(path: Path, identity: dict[str, object], *, fresh: bool = False) -> Journal:
    found = Journal(path, identity)
    found.open(fresh=fresh)
    return found


def test_what_was_measured_holds_until_device_software_or_method_change(tmp_path: Path) -> None:
    path, now = tmp_path / "x.journal.jsonl", {"software": "2.11", "method": 1}
    with opened(path, now) as journal:
        journal.add(ROW)
        journal.add_pair("a -> b", PAIR)
    for other in ({**now, "method": 2}, {**now, "software": "2.12"}):
        with opened(path, other) as journal:
            assert not journal.knows(CASE) and not journal.pairs
            journal.add(replace(ROW, time_us=99.0))
    with opened(path, now) as journal:  # what the others wrote in between is theirs
        assert list(journal.rows.values()) == [ROW] and journal.pairs == {"a -> b": PAIR}
        assert set(journal.runs.values()) < set(journal.dates)


def test_fresh_forgets_for_later_runs_too(tmp_path: Path) -> None:
    path = tmp_path / "x.journal.jsonl"
    for fresh, row in ((False, ROW), (True, OTHER)):
        with opened(path, {}, fresh=fresh) as journal:
            journal.add(row)
    with opened(path, {}) as journal:
        assert list(journal.rows.values()) == [OTHER]


def test_lines_that_a_kill_cut_off_or_somebody_wrote_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "x.journal.jsonl"
    with opened(path, {}) as journal:
        journal.add(ROW)
        run = journal.run
    with path.open("a") as file:
        file.write(f'7\n{{"run": "{run}", "gemm": {{"m": 3}}}}\n{{"run": "{run}", "gemm": {{"sweep')
    with opened(path, {}) as journal:
        journal.add(OTHER)
    with opened(path, {}) as journal:
        assert list(journal.rows.values()) == [ROW, OTHER]


def test_what_was_refused_is_tried_again_by_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "x.journal.jsonl"
    with opened(path, {}) as journal:
        journal.refuse(CaseOutcome(CASE, None, "no memory"))
        assert journal.knows(CASE)
    with opened(path, {}) as journal:
        assert not journal.knows(CASE)


def test_calls_of_one_suggestion_are_of_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bench measured one side: verify measures both. bench measured both: verify takes them."""
    monkeypatch.setattr(BenchMeter, "_gap", lambda meter: 0.0)
    path, device = tmp_path / "x.journal.jsonl", CpuDevice()

    def calls() -> list[CallTime | Why]:
        with opened(path, {}) as journal:
            return list(BenchMeter(device, journal).calls([CASE, OTHER_CASE]).values())

    torch.set_num_threads(1)
    with opened(path, {}) as journal:
        journal.add(replace(ROW, time_us=1e9))
    measured = calls()
    assert all(isinstance(one, CallTime) and one.time_us < 1e9 for one in measured)
    assert calls() == measured
    refused = AttentionCase("y", 1, 1, 16, 16, 3)
    with opened(path, {}) as journal:
        assert not isinstance(BenchMeter(device, journal).calls([refused])[refused], CallTime)


def test_a_pair_of_an_earlier_run_holds_and_a_layer_against_itself_does_not(tmp_path: Path) -> None:
    path = tmp_path / "x.journal.jsonl"
    layer = LayerShape(64, 4, 128, sequence=16, micro_batch=1).toy()
    wider = layer.changed(ffn=64)
    with opened(path, {}) as journal:
        journal.add_pair(pair_key(layer, wider), PAIR)
        journal.add_pair(pair_key(layer, layer), PAIR)
    torch.set_num_threads(1)
    with opened(path, {}) as journal:
        meter = BenchMeter(CpuDevice(), journal)
        found = meter.pair(layer, wider)
        assert isinstance(found, PairTimes) and replace(found, date="") == PAIR
        again = meter.pair(layer, layer)
        assert isinstance(again, PairTimes) and again.before_ms != PAIR.before_ms
        assert meter.pair(layer, layer) == again


def test_a_change_of_the_method_is_what_makes_results_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = device_facts(CpuDevice())
    before = identity_of(facts)
    monkeypatch.setattr(module, "METHOD_VERSION", 1 + module.METHOD_VERSION)
    assert before != identity_of(facts)


def test_a_cpu_leaves_no_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACELENS_CALIBRATION", str(tmp_path))
    with open_meter(CpuDevice(), toy=True) as meter:
        meter.journal.add(ROW)
    assert not list(tmp_path.iterdir())
