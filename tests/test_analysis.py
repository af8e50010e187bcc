"""The Python face: one call, documented tables, save and load."""

from __future__ import annotations

import gzip
import inspect
import json
import math
import re
from pathlib import Path

import pytest

import tracelens
from tests.kept import analyzed
from tests.synthetic import ModelSpec, Options, build
from tracelens.analysis import Analysis

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "sample_traces" / "generated_gpt2_vocab50257.json.gz"
COLUMNS = [
    *("correlation", "name", "category", "stream", "ts_ns", "dur_ns", "step", "phase", "component"),
    *("components", "component_evidence", "layer", "module", "op", "sequence", "role", "m", "n", "k"),
    *("batch", "dtype", "layout", "flops", "candidates"),
]


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return tracelens.analyze(SAMPLE)


def test_the_kernel_table_has_the_columns_of_the_contract(analysis: Analysis) -> None:
    assert list(analysis.kernels.columns) == COLUMNS
    assert analysis.kernels["ts_ns"].is_monotonic_increasing


def test_findings_layers_and_steps_are_tables(analysis: Analysis) -> None:
    report = analysis.report
    findings = analysis.findings
    assert findings["rule"].tolist() == [one.rule for one in report.findings]
    assert findings["saving_high_ms"].tolist() == [one.saving_ms.high for one in report.findings]
    assert findings.loc[0, "change"] == "vocab_size 50257 -> 50304"
    assert analysis.steps["duration_ms"].tolist() == [step.duration_ms for step in report.steps]
    layers = analysis.layers
    assert layers["time_ms"].sum() == pytest.approx(analysis.components["time_ms_per_step"].sum(), rel=1e-6)
    assert layers["layer"].dropna().nunique() == 12


def test_figures_are_one_flat_mapping_of_numbers(analysis: Analysis) -> None:
    assert isinstance(analysis, tracelens.Analysis)
    found = analysis.figures(prefix="t/")
    summary = analysis.report.summary
    assert found["t/step_ms"] == summary.step_ms.median
    assert found["t/mfu_frac"] == summary.mfu_frac
    assert found["t/saving/TL101_low_ms"] < found["t/saving/TL101_ms"] < found["t/saving/TL101_high_ms"]
    components = sum(value for name, value in found.items() if re.fullmatch(r"t/component/[\w.]+_ms", name))
    assert components == pytest.approx(analysis.components["time_ms_per_step"].sum())
    assert "t/step_unprofiled_ms" not in found  # no steps without the profiler were timed
    assert all(math.isfinite(value) for value in found.values())


def test_what_completion_offers_is_there() -> None:
    assert set(tracelens.__all__) <= set(dir(tracelens))


def test_what_can_be_called_shows_its_arguments_and_stands_in_the_help() -> None:
    for name in {*tracelens.__all__} - {"__version__"}:
        called = getattr(tracelens, name)
        if isinstance(called, type):
            continue
        assert not any(one.name == "options" for one in inspect.signature(called).parameters.values()), name
        assert re.search(rf"\b{name}\b", tracelens.__doc__ or ""), name


def test_an_unknown_argument_names_the_one_that_was_meant() -> None:
    with pytest.raises(TypeError, match=r"analyze\(\) has no argument 'gpus'; did you mean 'gpu'\?"):
        tracelens.analyze(SAMPLE, gpus="h100")  # type: ignore[call-arg]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "trace.json"
    path.write_bytes(gzip.decompress(SAMPLE.read_bytes()))
    return path


def test_progress_is_told_of_every_part_and_within_reading(plain: Path) -> None:
    told: list[tuple[float, int, str]] = []
    tracelens.analyze(plain, progress=lambda *part: told.append(part))
    done = [one for one, _, _ in told]
    assert done == sorted(done)
    assert {int(one) for one in done} >= {0, 1, 2, 3}
    assert sum(0 < one < 1 for one in done) >= 3, "the bar moves while the file is read"
    assert {in_all for _, in_all, _ in told} == {5}


@pytest.mark.parametrize("processes", [1, 2])
def test_reading_tells_how_much_of_the_file_it_has_read(plain: Path, processes: int) -> None:
    shares: list[float] = []
    tracelens.load(plain, processes=processes, progress=shares.append)
    assert shares == sorted(shares)
    assert len(shares) > 5 and 0 < shares[0] < 0.3 and 0.7 < shares[-1] <= 1


def test_flops_in_the_kernel_table_add_up_to_the_gemm_table(analysis: Analysis) -> None:
    rows = sum(row.flops * row.calls for row in analysis.report.gemms if row.flops is not None)
    assert analysis.kernels["flops"].sum() == pytest.approx(rows)
    components = sum(row.flops or 0 for row in analysis.report.components)
    assert components == pytest.approx(rows)


def test_gemm_times_are_those_of_their_kernels(analysis: Analysis) -> None:
    assert analysis.gemms["time_ms"].sum() <= analysis.kernels["dur_ns"].sum() / 1e6
    assert analysis.report.summary.gemm_frac == pytest.approx(
        analysis.gemms["time_ms"].sum() * 1e6 / analysis.kernels["dur_ns"].sum()
    )


def test_the_samples_model_is_read_back(analysis: Analysis) -> None:
    model = analysis.report.model
    assert (model.hidden.value, model.heads.value, model.head_dim.value) == (1280, 20, 64)
    assert (model.vocab.value, model.ffn.value, model.layers.value) == (50257, 5120, 12)
    assert (model.micro_batch.value, model.sequence.value) == (8, 1024)


def test_mfu_is_the_flops_of_the_steps_over_time_and_peak(analysis: Analysis) -> None:
    summary = analysis.report.summary
    frame = analysis.kernels
    in_step = frame[frame["step"].notna()]
    seconds = sum(step.duration_ms for step in analysis.report.steps) / 1e3
    fused = (in_step["component"] == "attention.core") & (in_step["phase"] == "backward")
    assert fused.any()
    again = in_step["flops"][fused].sum() / 5  # scores a second time: one of five products, no model's work
    expected = (in_step["flops"].sum() - again) / seconds / (analysis.report.gpu.peak_tflops["bf16"] * 1e12)
    assert summary.mfu_frac == pytest.approx(expected)


def test_a_saved_report_is_read_back_whole(analysis: Analysis, tmp_path: Path) -> None:
    analysis.save(tmp_path / "r.json")
    again = Analysis.load(tmp_path / "r.json")
    assert again.report == analysis.report
    assert len(again.gemms) == len(analysis.gemms)
    with pytest.raises(tracelens.UsageError, match="no per-kernel table"):
        _ = again.kernels


def test_choosing_steps_changes_the_steps_and_keeps_every_kernel(analysis: Analysis) -> None:
    first = analysis.report.steps[0].index
    one = tracelens.analyze(SAMPLE, steps=(first, first))
    assert [step.index for step in one.report.steps] == [first]
    assert len(one.kernels) == len(analysis.kernels)
    assert one.kernels["dur_ns"].sum() == analysis.kernels["dur_ns"].sum()
    assert one.kernels["step"].dropna().unique().tolist() == [first]


def test_another_gpu_can_be_named(analysis: Analysis) -> None:
    other = tracelens.analyze(SAMPLE, gpu="a100-sxm-80gb")
    assert other.report.gpu.matched_by == "--gpu"
    assert other.report.gpu.peak_tflops["bf16"] == 312


def test_the_fixed_twin_loses_the_finding(analysis: Analysis) -> None:
    fixed = analyzed(ROOT / "sample_traces" / "generated_gpt2_vocab50304.json.gz").report
    assert any(finding.rule == "TL101" for finding in analysis.report.findings)
    assert not any(finding.rule == "TL101" for finding in fixed.findings)
    assert any(check.rule == "TL101" and check.state == "passed" for check in fixed.checks)


def test_hostile_names_pass_through_as_text(tmp_path: Path) -> None:
    hostile = "</script><img src=x onerror=alert(1)>"
    model = ModelSpec(family="gpt2", hidden=128, heads=2, vocab=503, layers=1, sequence=64, micro_batch=1)
    text = build(model, Options(steps=1)).text().replace("nvjet", hostile + "nvjet")
    path = tmp_path / f"{hostile.replace('/', '_')}.json"
    path.write_text(text)
    page = tracelens.analyze(path)._repr_html_()
    assert "<img" not in page


def test_sizes_stay_integers_where_some_are_not_known(analysis: Analysis) -> None:
    described = analysis.gemms[["ctas_per_sm", "kernel_alignment"]]
    assert {str(kind) for kind in described.dtypes} == {"Int64"}
    sizes = analysis.gemms[["m", "n", "k", "tile_m"]]
    assert {str(kind) for kind in sizes.dtypes} == {"Int64"}
    assert sizes.astype(object).where(sizes.notna(), None).to_numpy().tolist() == [
        [row.m, row.n, row.k, row.tile_m] for row in analysis.report.gemms
    ]
    assert sizes["m"].isna().any()


def test_layers_of_a_row_are_shown_as_runs(analysis: Analysis) -> None:
    assert {row.layers for row in analysis.report.gemms if row.component == "mlp.up"} == {"0-11"}
    assert {row.layers for row in analysis.report.gemms if row.component == "logits"} == {None}


def test_the_step_without_the_profiler_comes_from_the_captures_metadata(
    analysis: Analysis, tmp_path: Path
) -> None:
    trace = json.loads(gzip.decompress(SAMPLE.read_bytes()))
    profiled = analysis.report
    assert profiled.summary.unprofiled.median_ms is None and profiled.summary.unprofiled.why
    before = [profiled.summary.step_ms.median * frac for frac in (0.80, 0.79, 0.81)]
    trace["tracelens"] = {"time": {"clock": "cuda_events", "before_ms": before, "after_ms": before}}
    path = tmp_path / "with.json"
    path.write_text(json.dumps(trace))
    report = tracelens.analyze(path).report
    assert report.summary.unprofiled.profiler_frac == pytest.approx(0.20)
    assert report.summary.unprofiled.why is None
    # nothing is scaled by it
    assert report.summary.step_ms == profiled.summary.step_ms
    assert (report.gemms, report.components, report.findings) == (
        profiled.gemms,
        profiled.components,
        profiled.findings,
    )
