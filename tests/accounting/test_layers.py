"""Time by layer adds up to the step, and one layer's kernels are those of one pass of it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.said import Listener
from tests.synthetic import ModelSpec, Options, Synthetic, build
from tests.trace.tools import read
from tracelens.analysis import analyze, analyze_trace
from tracelens.render import layers
from tracelens.results import LayerPass, Report

SPEC = ModelSpec(family="gpt2", hidden=256, heads=4, vocab=1000, layers=5, sequence=128, micro_batch=2)


@dataclass(frozen=True)
class Analysed:
    made: Synthetic
    report: Report


def analysed(folder: Path, options: Options, spec: ModelSpec = SPEC) -> Analysed:
    made = build(spec, options)
    path = folder / "trace.json"
    path.write_text(made.text())
    return Analysed(made, analyze(path, shape_search=False).report)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Analysed:
    return analysed(tmp_path_factory.mktemp("plain"), Options(steps=3))


def passes(report: Report) -> dict[str, LayerPass]:
    assert report.layers.timeline is not None
    return {one.phase: one for one in report.layers.timeline.passes}


def test_every_event_of_the_steps_is_in_one_cell(plain: Analysed) -> None:
    layers = plain.report.layers
    assert layers.why is None and layers.layers == [0, 1, 2, 3, 4]
    whole = sum(sum(row.time_ms) + row.rest_ms for row in layers.rows)
    assert whole == pytest.approx(plain.report.summary.gpu_ms_per_step)
    by_name = {(row.component, row.phase): sum(row.time_ms) + row.rest_ms for row in layers.rows}
    for one in plain.report.components:
        assert by_name[one.component, one.phase] == pytest.approx(one.time_ms_per_step)


def test_layers_hold_what_they_really_ran(plain: Analysed) -> None:
    truth: dict[tuple[str, str, int], float] = defaultdict(float)
    for row in plain.made.truth:
        if (
            row.layer is not None
            and row.step is not None
            and row.component.startswith(("attention.q", "mlp."))
        ):
            truth[row.component, row.phase, row.layer] += row.duration_ns / 1e6 / 3
    found = {
        (row.component, row.phase, layer): time
        for row in plain.report.layers.rows
        for layer, time in zip(plain.report.layers.layers, row.time_ms, strict=True)
        if time and row.component.startswith(("attention.q", "mlp."))
    }
    assert found == pytest.approx(truth)


def test_one_layer_is_the_middle_one_of_the_step_of_median_length(plain: Analysed) -> None:
    timeline = plain.report.layers.timeline
    assert timeline is not None and timeline.layer == 2
    lengths = sorted((step.duration_ms, step.index) for step in plain.report.steps)
    assert timeline.step == lengths[1][1]


def test_a_pass_is_the_layers_kernels_in_order_with_their_gaps(plain: Analysed) -> None:
    timeline = plain.report.layers.timeline
    assert timeline is not None
    for phase, one in passes(plain.report).items():
        truth = [
            row for row in plain.made.truth if (row.layer, row.phase, row.step) == (2, phase, timeline.step)
        ]
        begin = min(row.start_ns for row in truth)
        mine = [at for at, layer in enumerate(one.layer) if layer == 2]
        assert [timeline.names[one.name[at]] for at in mine] == [row.name for row in truth]
        assert [one.start_us[at] for at in mine] == pytest.approx(
            [(row.start_ns - begin) / 1e3 for row in truth]
        )
        assert [one.duration_us[at] for at in mine] == pytest.approx([row.duration_ns / 1e3 for row in truth])
        assert one.start_us == sorted(one.start_us) and one.start_us[0] == 0.0
        end = max(a + b for a, b in zip(one.start_us, one.duration_us, strict=True))
        assert one.length_us == pytest.approx(end)
        assert one.busy_frac == pytest.approx(sum(one.duration_us) / one.length_us, abs=0.02)
        assert one.left_out == 0


def test_forward_comes_before_backward(plain: Analysed) -> None:
    found = passes(plain.report)
    assert list(found) == ["forward", "backward"]
    forward, backward = found["forward"], found["backward"]
    assert forward.begins_ms >= 0 and forward.begins_ms + forward.length_us / 1e3 <= backward.begins_ms


def test_of_several_micro_batches_one_pass_is_shown(tmp_path: Path, plain: Analysed) -> None:
    """A step that accumulates gradients runs each layer once per micro-batch; a pass is one of them."""
    found = passes(analysed(tmp_path, Options(steps=1, accumulate=3)).report)
    for phase, one in passes(plain.report).items():
        assert found[phase].component.count("attention.core") == one.component.count("attention.core") > 0
        assert found[phase].length_us < 1.5 * one.length_us  # gradients are added, too


def test_a_pass_lists_no_more_events_than_fit_on_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracelens.accounting.layers._MOST", 5)
    for one in passes(analysed(tmp_path, Options(steps=1)).report).values():
        assert len(one.start_us) == len(one.name) == len(one.component) == len(one.stream) == 5
        assert one.left_out > 0
        last = max(a + b for a, b in zip(one.start_us, one.duration_us, strict=True))
        assert one.length_us == pytest.approx(last) and one.busy_frac <= 1.0


def test_without_layers_the_time_is_there_and_the_reason_too(tmp_path: Path, said: Listener) -> None:
    path = tmp_path / "trace.json"
    path.write_text(
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 5,'
        ' "args": {"stream": 7, "device": 0, "correlation": 1}}]}'
    )
    report = analyze(path, shape_search=False).report
    assert report.layers.layers == [] and report.layers.timeline is None
    assert sum(row.rest_ms for row in report.layers.rows) == pytest.approx(0.005)
    said(report.layers.why or "")


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not here")
def test_gradients_that_a_compiler_put_off_are_said_to_be_of_the_layer_before(
    tmp_path: Path, said: Listener
) -> None:
    """Inductor moves weight gradients behind the next layer's: in its time, not its own."""
    from tests.zoo.compiled import CompiledOptions, record_compiled

    made = record_compiled("gpt2", CompiledOptions(steps=1, defer_wgrad=3))
    report = analyze_trace(read(tmp_path, made.text()), shape_search=False).report
    assert report.layers.timeline is not None and report.layers.timeline.layer == 1
    one = passes(report)["backward"]
    mine = [row for row in made.truth if row.layer == 1 and row.phase == "backward"]
    first = min(row.start_ns for row in mine)
    late = [
        row for row in made.truth
        if row.layer == 2 and row.phase == "backward"
        and first <= row.start_ns < first + 1000 * one.length_us
    ]  # fmt: skip
    assert {row.role for row in late} == {"wgrad"}
    found = [time for time, layer in zip(one.duration_us, one.layer, strict=True) if layer == 2]
    assert found == pytest.approx([row.duration_ns / 1e3 for row in late])
    told = {one.phase: one.late for one in layers.passes(report)}
    assert told["forward"] == ""
    said(told["backward"])
