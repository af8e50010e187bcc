"""Rows of the GEMM table whose operator shows no sizes, or larger ones than the model asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kept import analyzed
from tests.said import Listener
from tests.synthetic import ModelSpec, Options, build
from tracelens.analysis import analyze
from tracelens.results import GemmRow, Report
from tracelens.results.row_sizes import AttentionDims
from tracelens.rules.engine.needs import for_shapes

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
SGEMM = "ampere_sgemm_128x64_tn"
NVJET = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT"
BF16 = "c10::BFloat16"
XXT = [[8, 768, 3072], [8, 768, 768], [], []]


class Recording:
    """A trace of one thread, operator by operator."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.time = 1000.0

    def op(
        self,
        name: str,
        dims: list[Any] | None,
        kernel: str | None = None,
        grid: tuple[int, int, int] = (1, 1, 1),
        *,
        thread: int = 7,
        concrete: list[str] | None = None,
    ) -> None:
        args: dict[str, Any] = {}
        if dims is not None:
            args = {"Input Dims": dims, "Input type": [BF16 if d else "Scalar" for d in dims]}
        if concrete is not None:
            args["Concrete Inputs"] = concrete
        self._add("cpu_op", name, thread, 10.0, args)
        if kernel is not None:
            number = len(self.events)
            self._add("cuda_runtime", "cudaLaunchKernel", thread, 1.0, {"correlation": number}, inside=5.0)
            self._kernel(kernel, grid, {"correlation": number, "stream": 7})
        self.time += 20.0

    def kernel(self, name: str, grid: tuple[int, int, int]) -> None:
        """A kernel that nothing in the file launched."""
        self._kernel(name, grid, {"correlation": 0, "stream": 7})
        self.time += 20.0

    def _kernel(self, name: str, grid: tuple[int, int, int], args: dict[str, Any]) -> None:
        self._add("kernel", name, 7, 8.0, args | {"grid": [*grid], "device": 0}, inside=9.0, pid=0)

    def _add(
        self,
        category: str,
        name: str,
        thread: int,
        duration: float,
        args: dict[str, Any],
        *,
        inside: float = 0.0,
        pid: int = 1,
    ) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": thread, "args": args}
        self.events.append(event | {"ts": self.time + inside, "dur": duration})

    def report(self, folder: Path) -> Report:
        path = folder / "t.json"
        path.write_text(json.dumps({"traceEvents": self.events}))
        return analyze(path, shape_search=False).report


def row(report: Report, kernel: str) -> GemmRow:
    (found,) = [row for row in report.gemms if row.kernel == kernel]
    return found


def test_a_kernel_without_operator_has_ranges_and_no_sizes(tmp_path: Path, said: Listener) -> None:
    made = Recording()
    made.kernel(SGEMM, (12, 16, 2))
    found = row(made.report(tmp_path), SGEMM)
    assert (found.m_range, found.n_range) == ((961, 1024), (1409, 1536))
    assert (found.m, found.n, found.k, found.batch, found.flops) == (None, None, None, None, None)
    assert found.shape_known == "bounded"
    said(found.shape_note)


def test_sizes_that_a_kernel_was_compiled_for_are_said(tmp_path: Path, said: Listener) -> None:
    made = Recording()
    words = "0u, 1536u, 7168u, 1u, 64u, 16u, 128u, 32u, 12u, 8u, 128u, 128u, 1u, true, 96u, 0"
    made.kernel(name := f"void deep_gemm::sm90_fp8_gemm_1d2d_impl<{words}>(float*)", (96, 1, 1))
    found = row(made.report(tmp_path), name)
    assert (found.m, found.n, found.k, found.flops, found.shape_known) == (None, None, None, None, "bounded")
    said(found.shape_note)
    said(found.lost_ms.why["useful"])


def test_a_gemm_inside_an_operator_that_is_none_names_it(tmp_path: Path, said: Listener) -> None:
    made = Recording()
    made.op("aten::cudnn_convolution", None, SGEMM, (12, 16, 2))
    report = made.report(tmp_path)
    found = row(report, SGEMM)
    assert (found.op, found.m, found.m_range) == ("aten::cudnn_convolution", None, (961, 1024))
    assert found.shape_note is not None and "aten::cudnn_convolution" in found.shape_note
    assert "record_shapes" not in f"{found.shape_note} {report.summary.mfu_why} {for_shapes([found])}"
    said(report.summary.mfu_why or "")


def test_an_operator_without_sizes_says_that_it_is_one_product(tmp_path: Path) -> None:
    made = Recording()
    made.op("aten::addmm", None, SGEMM, (12, 16, 2))
    found = row(made.report(tmp_path), SGEMM)
    assert (found.m_range, found.batch) == ((961, 1024), 1)
    assert found.shape_note is not None and "record_shapes=True" in found.shape_note


def test_exact_sizes_need_no_ranges(tmp_path: Path) -> None:
    made = Recording()
    made.op("aten::mm", [[1024, 512], [512, 1536]], SGEMM, (12, 16, 2))
    found = row(made.report(tmp_path), SGEMM)
    assert (found.m, found.n, found.k, found.shape_known) == (1024, 1536, 512, "exact")
    assert (found.m_range, found.n_range, found.padded_from) == (None, None, {})


def test_coverage_counts_exact_bounded_and_unknown_apart(tmp_path: Path) -> None:
    made = Recording()
    made.op("aten::mm", [[1024, 512], [512, 1536]], NVJET, (2, 66, 1))
    made.kernel(SGEMM, (12, 16, 2))
    made.kernel(NVJET, (2, 66, 1))
    made.kernel(NVJET, (2, 66, 1))
    coverage = made.report(tmp_path).coverage
    assert (coverage.shape_frac, coverage.shape_bounded_frac, coverage.shape_unknown_frac) == (
        0.25,
        0.25,
        0.5,
    )


def test_packed_attention_is_bounded_and_shows_what_is_known(tmp_path: Path) -> None:
    made = Recording()
    dims = [[4096, 8, 128], [4096, 2, 128], [4096, 2, 128]] + [[]] * 4 + [[9], [9]] + [[]] * 25
    made.op("flash_attn_3::fwd", dims, "void flash::FlashAttnFwdSm90<int>(int)", (132, 1, 1))
    (found,) = made.report(tmp_path).gemms
    assert found.attention == AttentionDims(None, 8, 2, head_dim=128, tokens=4096)
    assert (found.shape_known, found.flops, found.batch) == ("bounded", None, None)


def test_muons_products_have_a_shape_and_the_work_of_one_triangle(tmp_path: Path, said: Listener) -> None:
    made = Recording()
    made.op("XXT_kernel_0", XXT, "XXT_kernel", (576, 1, 1))
    found = row(made.report(tmp_path), "XXT_kernel")
    assert (found.m, found.n, found.k, found.batch) == (768, 768, 3072, 8)
    assert found.flops == 768 * 769 * 3072 * 8
    assert found.tiles is None, "the tile is in no name"
    said(found.shape_note)


def test_a_padded_product_shows_what_ran_and_what_was_asked_for(tmp_path: Path, said: Listener) -> None:
    made = Recording()
    made.op("triton_poi_fused_constant_pad_nd_t_1", [[50257, 768], [50264, 768], []], "triton_poi_pad")
    made.op("triton_poi_fused_add_2", [[8192, 768], [8192, 768], []], "triton_poi_fused_add_2")
    made.op("aten::mm", [[8192, 768], [768, 50264], [8192, 50264]], NVJET, (2, 66, 1))
    found = row(made.report(tmp_path), NVJET)
    assert (found.n, found.padded_from) == (50264, {"n": 50257})
    said(found.shape_note)


@pytest.mark.parametrize("where", ["other thread", "far before", "after"])
def test_padding_elsewhere_proves_nothing(tmp_path: Path, where: str) -> None:
    made = Recording()
    pad = ("triton_poi_fused_constant_pad_nd_t_1", [[50257, 768], [50264, 768], []], "triton_poi_pad")
    if where == "other thread":
        made.op(*pad, thread=8)
    if where == "far before":
        made.op(*pad)
        for number in range(20):
            made.op(f"aten::add_{number}", [[8]])
    made.op("aten::mm", [[8192, 768], [768, 50264]], NVJET, (2, 66, 1))
    if where == "after":
        made.op(*pad)
    assert row(made.report(tmp_path), NVJET).padded_from == {}


def test_padded_and_plain_calls_of_one_shape_are_two_rows(tmp_path: Path) -> None:
    made = Recording()
    product = ("aten::mm", [[8192, 768], [768, 50264]], NVJET, (2, 66, 1))
    made.op("triton_poi_fused_constant_pad_nd_t_1", [[50257, 768], [50264, 768], []], "triton_poi_pad")
    made.op(*product)
    for number in range(20):
        made.op(f"aten::add_{number}", [[8]])
    made.op(*product)
    rows = [row for row in made.report(tmp_path).gemms if row.kernel == NVJET]
    assert sorted(str(row.padded_from) for row in rows) == ["{'n': 50257}", "{}"]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_ranges_of_a_trace_without_shapes_hold_its_sizes(tmp_path: Path, family: Any) -> None:
    """The same generated step with shapes and without: no range excludes the truth."""
    model = ModelSpec(family=family, hidden=256, heads=4, vocab=5003, layers=2, sequence=128, micro_batch=2)
    made = json.loads(build(model, Options(steps=1, attention="math")).text())
    exact = _rows(made, tmp_path)
    for event in made["traceEvents"]:
        if "args" in event:
            event["args"].pop("Input Dims", None)
    bounded = [row for row in _rows(made, tmp_path) if row.m_range and row.n_range]
    assert bounded, "a vocabulary of 5003 keeps its products on kernels whose grid counts tiles"
    for bare in bounded:
        assert bare.m_range is not None and bare.n_range is not None
        truths = [row for row in exact if row.kernel == bare.kernel and row.m and row.n]
        assert truths
        assert any(
            bare.m_range[0] <= (row.m or 0) <= bare.m_range[1]
            and bare.n_range[0] <= (row.n or 0) <= bare.n_range[1]
            for row in truths
        ), bare.kernel


def _rows(made: dict[str, Any], folder: Path) -> list[GemmRow]:
    path = folder / "t.json"
    path.write_text(json.dumps(made))
    return analyze(path, shape_search=False).report.gemms


@pytest.mark.skipif(not TRACES.exists(), reason="the shared traces are not here")
def test_a_captured_graph_of_an_a100_has_its_products_bounded() -> None:
    """ViT-B: 197 tokens, hidden 768, feed-forward 3072, 12 heads of 64."""
    (path,) = TRACES.glob("d5_*.json.gz")
    report = analyzed(path).report
    ranges = {row.n_range for row in report.gemms if row.kind == "gemm" and row.n_range}
    assert ranges == {(2177, 2304), (2945, 3072), (641, 768), (705, 768)}
    assert all(row.m_range[0] <= 197 <= row.m_range[1] for row in report.gemms if row.m_range)
    assert {row.attention for row in report.gemms if row.kind == "attention"} == {AttentionDims(1, 12)}
    assert report.coverage.shape_bounded_frac == pytest.approx(0.94, abs=0.005)


@pytest.mark.skipif(not TRACES.exists(), reason="the shared traces are not here")
def test_muon_in_a_real_trace_is_all_shaped_where_its_operators_are_in_the_file() -> None:
    (path,) = TRACES.glob("d1_*.json.gz")
    rows = [row for row in analyzed(path).report.gemms if row.kernel_family == "triton_symmetric" and row.op]
    assert {row.batch for row in rows} == {1, 2, 8}
    assert all(row.shape_known == "exact" and row.flops for row in rows)
