"""What must hold on every real trace recorded by others, where they lie beside the checkout."""

from __future__ import annotations

import dataclasses
import gzip
import json
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest

from tests.kept import analyzed
from tracelens.analysis import Analysis
from tracelens.render.html import render_html
from tracelens.results import Check, GemmRow, ShapeSearch
from tracelens.results.json import to_json
from tracelens.results.schema import json_schema

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "traces"
FILES = sorted(FOLDER.rglob("*.json.gz"))
VALIDATOR = jsonschema.Draft202012Validator(json_schema())
GPU_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}

pytestmark = pytest.mark.skipif(not FILES, reason="no shared/traces beside this checkout")


@cache
def _analysis(path: Path) -> Analysis:
    return analyzed(path)


def _file(prefix: str) -> Path:
    found = [path for path in FILES if path.name.startswith(prefix)]
    if not found:
        pytest.skip(f"{prefix} is not there")
    return found[0]


def _unmarked(path: Path) -> str:
    return (
        path.parent.name + "/" + path.name.split(".")[0]
        if "job" in path.parent.name
        else path.name.split(".")[0]
    )


@pytest.mark.parametrize("path", FILES, ids=_unmarked)
def test_every_gpu_event_is_in_the_table_and_every_nanosecond_in_a_component(path: Path) -> None:
    events = json.loads(gzip.decompress(path.read_bytes()))
    events = events if isinstance(events, list) else events["traceEvents"]
    gpu = [event for event in events if event.get("ph") == "X" and event.get("cat") in GPU_CATEGORIES]
    analysis = _analysis(path)
    assert len(analysis.kernels) == len(gpu) == analysis.report.trace.kernels
    total = sum(round(event["dur"] * 1000) for event in gpu)
    assert int(analysis.kernels["dur_ns"].sum()) == total
    assert sum(row.time_ns for row in analysis.report.components) == total
    assert sum(row.kernels for row in analysis.report.components) == len(gpu)


@pytest.mark.parametrize("path", FILES, ids=_unmarked)
def test_the_report_is_valid_and_the_page_renders(path: Path) -> None:
    report = _analysis(path).report
    VALIDATOR.validate(json.loads(to_json(report)))
    page = render_html(report)
    assert report.trace.path in page
    assert len(page.encode()) < 300_000


@pytest.mark.parametrize("path", FILES, ids=_unmarked)
def test_what_is_unattributed_has_a_reason_and_a_remedy(path: Path) -> None:
    report = _analysis(path).report
    missing = sum(row.time_ms_per_step for row in report.components if row.component == "unattributed")
    missing *= len(report.steps)
    explained = sum(row.time_ms for row in report.coverage.unattributed)
    assert explained == pytest.approx(missing)
    assert all(row.reason and row.remedy for row in report.coverage.unattributed)


def test_bert_small_has_its_vocabulary_found() -> None:
    report = _analysis(_file("d3_")).report
    finding = next(finding for finding in report.findings if finding.rule == "TL101")
    assert finding.change["vocab_size"] == [30522, 30528]
    rows = [row for row in report.gemms if row.id in finding.gemms]
    assert sum(row.frac for row in rows) == pytest.approx(0.134, abs=0.002)
    assert "13.3% of all GPU time" in finding.saw
    assert report.model.hidden.value == 512
    assert report.model.vocab.value == 30522


@pytest.mark.parametrize("path", FILES, ids=_unmarked)
def test_what_was_not_seen_is_not_called_absent(path: Path) -> None:
    """Absence is claimed only where nearly all GPU time was told apart; shares are lower bounds elsewhere."""
    report = _analysis(path).report
    shares = dict.fromkeys(("unattributed", "other", "attention", "communication"), 0.0)
    for row in report.components:
        name = row.component.partition(".")[0]
        shares[name] = shares.get(name, 0.0) + row.frac
    covered, summary = report.coverage, report.summary
    assert covered.component_frac == pytest.approx(1 - shares["unattributed"] - shares["other"], abs=1e-6)
    assert covered.complete == (shares["unattributed"] + covered.opaque_frac <= 0.05)
    assert summary.gemm_frac_is_bound == (not covered.complete)
    if shares["attention"]:
        assert report.model.found != "none"
    buffers = any(row.groups and row.work_known == "at_most" for row in report.gemms)  # counted in full
    if not covered.complete:
        assert summary.mfu_frac is None or summary.mfu_is_bound or buffers
        assert summary.communication_is_bound or report.trace.world_size == 1
        assert "no transformer" not in summary.verdict + summary.verdict_detail
        lost = {check.rule for check in report.checks if check.state == "not_applicable"}
        assert covered.no_attention or not lost & {
            "TL109",
            "TL117",
            "TL112",
        }  # experts, attention, projections: none was seen
    assert summary.mfu_frac is None or summary.mfu_is_bound == (summary.mfu_why is not None and not buffers)


@pytest.mark.parametrize("prefix", ["d12_"])
def test_parts_of_a_transformer_are_neither_a_model_nor_nothing(prefix: str) -> None:
    report = _analysis(_file(prefix)).report
    assert report.model.found == "parts"
    summary = report.summary
    assert summary.mfu_frac and summary.mfu_why  # of the GEMMs that were seen
    assert not summary.mfu_is_bound  # and of rows of the experts' buffers, filled or not
    assert {check.state for check in report.checks if check.rule in ("TL104", "TL106")} == {"could_not_run"}


def test_unfused_attention_without_a_name_is_a_whole_transformer_with_its_dimensions() -> None:
    """Megatron-LM, tensor parallel 8: 64 heads, feed-forward 16384 are 8 and 2048 on each rank."""
    model = _analysis(_file("d11_")).report.model
    assert model.found == "whole"
    shown = (model.hidden, model.heads, model.ffn, model.layers, model.sequence, model.micro_batch)
    assert [known.value for known in shown] == [4096, 8, 2048, 40, 2048, 4]
    assert model.tensor_parallel.value == 8
    assert _analysis(_file("d13_")).report.model.layers.value == 10


def test_vgg_is_no_transformer() -> None:
    report = _analysis(_file("d6_")).report
    assert not report.model.transformer
    claimed = {row.component for row in report.components}
    assert not {name for name in claimed if name.startswith(("attention", "mlp", "moe", "logits"))}
    assert report.model.found == "none" and report.coverage.complete
    assert report.coverage.component_frac < 0.05 < 0.9 < report.coverage.other_frac


def test_dlrm_is_no_transformer() -> None:
    assert not _analysis(_file("d9_")).report.model.transformer


def test_another_vendor_is_told_what_is_not_judged() -> None:
    report = _analysis(_file("d8_")).report
    assert report.gpu.vendor == "amd"
    assert "AMD" in report.summary.verdict_detail
    assert {row.component for row in report.components} >= {"attention.core", "mlp.up", "logits"}
    assert all(row.peak_frac is None and row.waves is None for row in report.gemms)


def test_kernels_from_before_the_recording_are_kept_and_counted() -> None:
    report = _analysis(_file("d1_")).report
    assert report.coverage.no_launch_kernels == 983
    # each repeats a kernel of a recorded step: what it lacks is not its launch
    assert not any("before the recording" in row.reason for row in report.coverage.unattributed)


def test_named_ranges_are_read_where_a_range_opens_inside_its_own_frames() -> None:
    components = {row.component for row in _analysis(_file("d4_")).report.components}
    assert {"mlp.up", "mlp.down", "attention.qkv", "attention.scores", "attention.values"} <= components


def _values(value: Any) -> Iterator[tuple[type[Any], str, Any]]:
    """Class, field and value of every field of a report."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for one in dataclasses.fields(value):
            yield type(value), one.name, getattr(value, one.name)
            yield from _values(getattr(value, one.name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from _values(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _values(item)


def _allowed(kind: type[Any], field: str) -> set[str] | None:
    """The values that a field's type lists; None where it lists none."""
    hint = typing.get_type_hints(kind)[field]
    sets = [one for one in (hint, *typing.get_args(hint)) if typing.get_origin(one) is Literal]
    return {value for one in sets for value in typing.get_args(one)} or None


def test_every_value_is_one_that_the_schema_lists() -> None:
    """``ShapeSearch.state`` said unsure, and the code none."""
    seen: set[tuple[type[Any], str]] = set()
    listed: dict[tuple[type[Any], str], set[str] | None] = {}
    for path in FILES:
        for kind, field, value in _values(_analysis(path).report):
            if (kind, field) not in listed:
                listed[kind, field] = _allowed(kind, field)
            allowed = listed[kind, field]
            if allowed is not None and isinstance(value, str) and value:
                seen.add((kind, field))
                assert value in allowed, (path.name, kind.__name__, field, value)
    assert {(ShapeSearch, "state"), (Check, "state"), (GemmRow, "bound"), (GemmRow, "work_known")} <= seen


@pytest.mark.parametrize("path", FILES, ids=_unmarked)
def test_no_saving_is_above_the_step_or_the_time_of_what_it_changes(path: Path) -> None:
    report = _analysis(path).report
    step_ms, saving = report.summary.step_ms.median, report.summary.shape_waste_ms
    assert saving is None or (saving.high or 0.0) <= step_ms * (1 + 1e-9)
    for one in report.findings:
        assert (one.saving_ms.high or 0.0) <= step_ms * (1 + 1e-9)
        own = {row.component for row in report.components if row.component in one.components}
        time_ms = sum(row.time_ms_per_step for row in report.components if row.component in own)
        if one.saving_of == "wait":  # of a copy, and of what waits for it
            time_ms += report.summary.idle_ms
        assert (one.saving_ms.high or 0.0) <= time_ms * (1 + 1e-9), (one.rule, own)
        assert one.saving_of in ("wait", report.summary.saving_of)
    peak = max(report.gpu.peak_tflops.values(), default=float("inf"))
    rates = [row.tflops for row in report.gemms] + [row.tflops for row in report.components]
    assert all(rate is None or rate <= 1.1 * peak for rate in rates)
