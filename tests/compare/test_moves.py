"""Work that is counted elsewhere after is one line with its net, not a saving and a loss."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
from rich.console import Console

from tests.compare.parsed import Parsed
from tests.compare.test_compare import BASE, shared
from tests.kept import analyzed
from tests.render import sample_report
from tests.render.sample_report import with_steps
from tests.said import Listener
from tracelens.api import compare as compare_reports
from tracelens.comparison.gemms import match_gemms
from tracelens.comparison.moves import find_moves, with_moves
from tracelens.comparison.one_place import PerStep, places
from tracelens.gates.of_comparison import COMPARISON_METRICS
from tracelens.render.compare import changes_lines, moved_lines, movers
from tracelens.render.compare_figures import signed
from tracelens.render.compare_html import render_compare_html
from tracelens.render.compare_markdown import render_markdown
from tracelens.render.compare_terminal import render_compare
from tracelens.results import GemmRow, OtherKernel, Report
from tracelens.results.comparison import ComponentChange, GemmChange


def row(
    component: str, phase: str, before: tuple[float, float], after: tuple[float, float], told: bool = True
) -> ComponentChange:
    """``before`` and ``after``: ms and kernels per step."""
    frac = after[0] / before[0] - 1 if before[0] and after[0] else None
    return ComponentChange(
        component, phase, before[0], after[0], after[0] - before[0], frac, before[1], after[1], told, "why"
    )  # fmt: skip


def gemm(
    component: str, role: str, shape: tuple[int, int, int], *, ms: float, calls: float = 12.0
) -> GemmRow:
    """A product of the sample report, elsewhere and with other sizes."""
    one = next(one for one in sample_report.full().gemms if one.component == "mlp.down" and one.m)
    m, n, k = shape
    phase = "forward" if role == "forward" else "backward"
    return replace(
        one, id=f"{component}.{role}.{m}.{n}.{k}", component=component, role=role, phase=phase, m=m, n=n, k=k,
        batch=None, m_expr=None, n_expr=None, k_expr=None, layers=None, calls_per_step=calls,
        time_ms_per_step=ms, time_ms=ms,
    )  # fmt: skip


def of(*rows: GemmRow) -> Report:
    return replace(sample_report.full(), gemms=list(rows))


def states(before: Report, after: Report) -> list[GemmChange]:
    return match_gemms(before, after)


# rows of components


def test_calls_in_another_phase_are_one_row_with_their_net() -> None:
    rows = [
        row("communication", "backward", (0.0, 0.0), (1.13, 3.0)),
        row("communication", "optimizer", (4.55, 14.0), (3.43, 11.0)),
        row("norm", "forward", (2.0, 22.0), (2.0, 22.0), told=False),
    ]
    (move,) = find_moves(rows, [], noise=None, gpu_ms=60.0)
    assert (move.net.component, move.net.phase) == ("communication", "optimizer → backward")
    assert move.net.diff_ms == pytest.approx(0.01) and move.net.before_ms == pytest.approx(4.55)
    shown = with_moves(rows, [move])
    assert len(shown) == 2 and move.net in shown and rows[2] in shown


def test_kernels_that_no_other_row_gained_did_not_move() -> None:
    lost = row("norm", "forward", (2.0, 24.0), (1.0, 12.0))
    for other in (
        row("norm", "backward", (2.0, 24.0), (2.5, 30.0)),  # fewer than were lost
        row("attention.core", "forward", (2.0, 24.0), (2.4, 36.0)),  # as many, but not as long
        row("attention.core", "backward", (2.0, 24.0), (3.0, 36.0)),  # in another phase, and nothing shows it
    ):
        assert find_moves([lost, other], [], noise=None, gpu_ms=60.0) == []


def test_kernels_of_another_component_moved_when_they_are_as_many_and_take_as_long() -> None:
    lost = row("unattributed", "forward", (1.0, 12.0), (0.0, 0.0))
    gained = row("norm", "forward", (2.0, 24.0), (3.01, 36.0))
    (move,) = find_moves([lost, gained], [], noise=None, gpu_ms=60.0)
    assert (move.net.component, move.net.phase) == ("unattributed → norm", "forward")
    twin = replace(gained, component="loss")
    assert find_moves([lost, gained, twin], [], noise=None, gpu_ms=60.0) == [], "which of the two is a guess"


def test_rows_with_gemms_of_another_shape_are_no_move() -> None:
    rows = [
        row("mlp.up", "forward", (2.0, 24.0), (1.0, 12.0)),
        row("mlp.up", "backward", (1.0, 12.0), (2.0, 24.0)),
    ]
    assert find_moves(rows, [], noise=None, gpu_ms=60.0)
    changed = states(
        of(gemm("mlp.up", "forward", (8192, 5120, 1280), ms=1.0)),
        of(gemm("mlp.up", "forward", (8192, 5120, 2560), ms=2.0)),
    )
    assert [one.state for one in changed] == ["shape_changed"]
    assert find_moves(rows, changed, noise=None, gpu_ms=60.0) == []


def bounded(role: str, m: tuple[int, int], n: tuple[int, int], *, ms: float) -> GemmRow:
    """A product of a CUDA graph: of its sizes only what grid and tile leave open."""
    return replace(
        gemm("mlp.up", role, (1, 1, 1), ms=ms),
        m=None,
        n=None,
        k=None,
        m_range=m,
        n_range=n,
        shape_known="bounded",
    )


def test_a_batch_of_another_size_is_no_pace_of_the_gpu_where_no_trace_shows_shapes() -> None:
    """The weight gradient has the grid that it had: only its K, the tokens, is another one."""
    few = of(*(bounded(*of_grid, ms=1.0) for of_grid in _grids(1024)))
    many = of(*(bounded(*of_grid, ms=8.0) for of_grid in _grids(8192)))
    forward, dgrad, wgrad = sorted(
        states(few, many), key=lambda one: "forward dgrad wgrad".index(one.role or "")
    )
    assert [one.state for one in (forward, dgrad, wgrad)] == [
        "shape_changed",
        "shape_changed",
        "shape_unknown",
    ]
    assert forward.differs == ["size"] and "m 961–1024 -> 8129–8192" in forward.changed
    assert {one.state for one in states(few, few)} == {"same_shape"}


def _grids(tokens: int) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
    rows = (tokens - 63, tokens)
    return [("forward", rows, (1921, 2048)), ("dgrad", rows, (385, 512)), ("wgrad", (1985, 2048), (449, 512))]


def test_a_size_that_one_side_does_not_show_is_no_other_size() -> None:
    one = bounded("forward", (961, 1024), (1921, 2048), ms=1.0)
    (found,) = states(of(one), of(replace(one, batch=1)))
    assert (found.state, found.differs, found.changed) == ("same_shape", [], [])
    (core,) = (
        row for row in sample_report.full().gemms if row.kind == "attention" and row.phase == "forward"
    )
    seen = replace(core, shape_note="b=8 h=20 s 993–1024", shape_known="bounded")
    (found,) = states(of(core), of(seen))
    assert found.state == "shape_unknown"


@pytest.mark.parametrize("width", [40, 60])
def test_no_figure_of_a_comparison_is_cut_where_the_terminal_is_narrow(width: int) -> None:
    report = sample_report.full()
    rows = [
        replace(one, time_ms_per_step=1.9 * one.time_ms_per_step, n=(one.n or 1) + 7) for one in report.gemms
    ]
    parts = [replace(one, time_ms_per_step=1.9 * one.time_ms_per_step) for one in report.components]
    slower = replace(
        report, gemms=rows, components=parts, trace=replace(report.trace, path="after", sha256="other")
    )
    found, out = compare_reports(report, slower), io.StringIO()
    render_compare(found, console=Console(file=out, width=width))
    text = out.getvalue()
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    assert all(signed(one.diff_ms) in text for one in movers(found)[:3])


def test_gemms_in_another_type_are_a_change(said: Listener) -> None:
    report = sample_report.full()
    rows = [
        replace(one, math_dtype="fp8") if one.component == "mlp.up" and one.shape_known == "exact" else one
        for one in report.gemms
    ]
    fewer = replace(report, gemms=rows, trace=replace(report.trace, sha256="other"))
    said(changes_lines(compare_reports(report, report)), changes_lines(compare_reports(report, fewer)))


# kernels that one side cannot place


def kernels(*rows: tuple[str, str, float, float]) -> Report:
    """Component, name, kernels and ms per step, of the backward."""
    every = [
        OtherKernel(where, "backward", name, many, ms, math.ceil(many)) for where, name, many, ms in rows
    ]
    base = sample_report.full().components[0]
    sums = {where: [row for row in every if row.component == where] for where, *_ in rows}
    parts = [
        replace(base, component=where, phase="backward",
                time_ms_per_step=sum(one.time_ms_per_step for one in own),
                kernels_per_step=sum(one.calls_per_step for one in own))
        for where, own in sums.items()
    ]  # fmt: skip
    return replace(sample_report.full(), components=parts, other_kernels=every)


def test_the_same_kernels_stand_where_the_trace_that_places_them_has_them() -> None:
    known = kernels(
        ("attention.other", "fused", 10.0, 0.5), ("mlp.up", "cast", 3.0, 0.1), ("norm", "sum", 2.0, 1.0)
    )
    unknown = kernels(
        ("unattributed", "fused", 10.0, 0.52), ("unattributed", "cast", 6.0, 0.2), ("norm", "sum", 2.0, 1.0)
    )
    old, new, placed = places(known, unknown)
    assert new["attention.other", "backward"] == PerStep(0.52, 10.0, 10.0)
    assert new["unattributed", "backward"].ms == pytest.approx(0.2), "six casts are not the three of before"
    assert old == places(known, known)[0] and placed == (0.0, 0.52)
    assert places(unknown, known)[0] == new
    rarely = kernels(("unattributed", "fused", 8.0, 0.4))  # in eight of ten steps, before in all
    rarely = replace(rarely, other_kernels=[replace(rarely.other_kernels[0], calls_where_it_runs=10.0)])
    assert places(known, rarely)[1]["attention.other", "backward"].kernels == 8.0


@pytest.mark.parametrize("large", [0, 50])
def test_kernels_that_one_side_cannot_place_add_up_in_the_order_of_the_report(large: int) -> None:
    """Else the last digits depend on the hash seed of the process: one large time among many tiny ones."""
    times = [1.0 if at == large else 1e-16 for at in range(51)]
    sides = [
        kernels(*((where, f"k{at}", 1.0, ms) for at, ms in enumerate(times)))
        for where in ("norm", "unattributed")
    ]
    assert places(*sides)[1]["norm", "backward"].ms == [*accumulate(times)][-1]


def test_kernels_of_a_trace_without_shapes_are_neither_fewer_nor_more(said: Listener) -> None:
    """d1 and d10: one script, recorded with shapes and without."""
    result = compare_reports(shared("d1"), shared("d10"))
    diffs = {(row.component, row.phase): row for row in result.components}
    for place in ("attention.other", "logits"):
        row = diffs[place, "backward"]
        assert row.before_ms == pytest.approx(row.after_ms, rel=0.05)
    assert diffs["unattributed", "backward"].diff_ms < 0.3  # kernels of other fusions, on one side only
    assert not any(one.state in ("only_before", "only_after") for one in result.gemms)
    said([one for one in result.caveats if "unattributed" in one])


# products


def test_the_same_product_in_another_component_is_one_row() -> None:
    before = of(gemm("attention.other", "forward", (8192, 1280, 1280), ms=1.0))
    after = of(gemm("attention.output", "forward", (8192, 1280, 1280), ms=1.01))
    (one,) = states(before, after)
    assert one.state == "moved" and one.moved_to == ["attention.output", "forward", "forward"]
    assert one.diff_ms == pytest.approx(0.01) and one.changed == []
    more = of(*before.gemms, replace(before.gemms[0], id="x", component="mlp.up"))
    assert {one.state for one in states(more, after)} == {"only_before", "only_after"}, "two could be it"
    rarer = of(replace(after.gemms[0], calls_per_step=6.0))
    assert {one.state for one in states(before, rarer)} == {"only_before", "only_after"}


def test_the_same_kernels_without_shape_and_role_are_the_same_gemms() -> None:
    before = [
        replace(gemm("logits", role, shape, ms=ms), kernel=role)
        for role, shape, ms in (("dgrad", (8192, 768, 50304), 1.6), ("wgrad", (768, 50304, 8192), 1.7))
    ]
    blind = [
        replace(one, role=None, m=None, n=None, k=None, shape_known="unknown", time_ms_per_step=1.5)
        for one in before
    ]
    found = states(of(*before), of(*blind))
    assert [(one.state, one.role) for one in found] == [
        ("shape_unknown", "wgrad"),
        ("shape_unknown", "dgrad"),
    ]
    other = [replace(one, kernel="another") for one in blind[:1]]
    assert {one.state for one in states(of(*before), of(*other))} == {"only_before", "only_after"}


def test_a_transposed_or_batched_product_is_the_same_work() -> None:
    before = of(
        gemm("mlp.up", "wgrad", (1280, 5120, 8192), ms=1.0), gemm("mlp.up", "wgrad", (256, 256, 256), ms=0.1)
    )
    after = of(
        gemm("mlp.up", "wgrad", (5120, 1280, 8192), ms=1.1),
        replace(gemm("mlp.up", "wgrad", (256, 256, 256), ms=0.1, calls=1.0), batch=12),
    )
    found = states(before, after)
    assert [one.state for one in found] == ["shape_changed", "shape_changed"]
    assert {one.diff_ms and round(one.diff_ms, 3) for one in found} == {0.1, 0.0}


def test_products_that_cannot_be_paired_stand_in_one_row_with_their_net() -> None:
    """Query, key and value in three products before and in one after."""
    before = of(
        gemm("attention.qkv", "forward", (8192, 1280, 1280), ms=1.0),
        gemm("attention.qkv", "forward", (8192, 256, 1280), ms=0.5, calls=24.0),
    )
    after = of(gemm("attention.qkv", "forward", (8192, 1792, 1280), ms=1.3))
    (one,) = states(before, after)
    assert one.state == "regrouped" and one.diff_ms == pytest.approx(-0.2)
    assert one.changed == ["8192 × 1280 × 1280 + 8192 × 256 × 1280 -> 8192 × 1792 × 1280"]
    assert one.before is not None and len(one.before.ids) == 2 and one.before.m is None


# as it is read


def test_the_gradient_hook_is_one_line_and_no_regression(said: Listener) -> None:
    """The reduce-scatters that moved to the backward pass take there what they took in the optimizer."""
    result = compare_reports(shared("d1"), shared("d1b"))
    (move,) = result.moves
    assert move.net.phase == "optimizer → backward" and abs(move.net.diff_ms) < 0.01
    assert movers(result) == [move.net]
    (line,) = moved_lines(result)
    said(line)
    told = render_markdown(result)
    assert told.count("| moved: communication") == 1 and "| communication" not in told
    page = render_compare_html(result)
    assert '<rect class="less"' not in page and '<rect class="more"' not in page
    assert "optimizer → backward" in Parsed(page).text
    reading = COMPARISON_METRICS["component_regression"].read(result, "")
    assert reading.ranges["time"].mid == 0.0


def test_a_side_that_lacks_a_size_is_named(said: Listener) -> None:
    one = with_steps(sample_report.full(), BASE)
    unknown = replace(one.model.layers, value=None)
    lacking = replace(with_steps(one, BASE[::-1]), model=replace(one.model, layers=unknown, sequence=unknown))
    said(compare_reports(one, lacking).caveats, compare_reports(lacking, one).caveats)


def test_the_p_of_the_verdict_is_said_in_words(said: Listener) -> None:
    one = sample_report.full()
    result = compare_reports(with_steps(one, [100.0, 101, 102, 103]), with_steps(one, [90.0, 91, 92, 93]))
    assert result.detail == " ".join(result.reasons)
    said(result.reasons)


def test_a_prediction_stands_beside_what_was_measured_above_all_else(said: Listener) -> None:
    root = Path(__file__).resolve().parents[2] / "sample_traces"
    result = compare_reports(
        *(analyzed(root / f"generated_gpt2_vocab{size}.json.gz").report for size in (50257, 50304))
    )
    first = result.reasons[0]
    # no GPU ran them
    said(first)
