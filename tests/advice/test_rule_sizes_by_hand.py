"""Sizes off the grid, slices, stages, widths and heads: which rows a change touches, and by how much."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.advice.advice_answers import answer
from tests.advice.advice_facts import H100, step_of
from tests.advice.advice_messages import message
from tests.advice.advice_rows import H100 as H100_INFO
from tests.advice.advice_rows import SIMT, attention, cutlass, facts, gemm, model
from tests.said import Listener
from tracelens.gemm.predict import predict_gemm
from tracelens.results import Estimate, GemmRow, Known
from tracelens.results.row_sizes import AttentionDims, Groups
from tracelens.rules.evidence.dimensions import Target, flops_growth, target
from tracelens.rules.evidence.heads import COMPILED, HeadsRun, by_saving, need_heads
from tracelens.rules.evidence.kv_heads import need_kv_rows, other_kv_heads, shape_gain_ms
from tracelens.rules.evidence.lengths import bounds_of
from tracelens.rules.evidence.low_precisions import block_fit, misfits
from tracelens.rules.evidence.misfits import (
    Case,
    case_of,
    cases_of,
    gated,
    mlp_parameters,
    need_misfits,
    owner,
)
from tracelens.rules.evidence.mixtures import doubled, need_mixture, packed, saw, unfilled
from tracelens.rules.evidence.slices import need_slices
from tracelens.rules.evidence.stages import Stage, need_stage
from tracelens.rules.evidence.views import View, saving_of, view_of
from tracelens.rules.evidence.vocabulary import columns, need_vocabulary, vocabulary
from tracelens.rules.evidence.widths import GatedMlp, need_gated_mlp
from tracelens.step.alignment import Misfit, misfit_of
from tracelens.step.experts import Mixture
from tracelens.step.predicted import Anchors

ROW = gemm(1, 2048, 10240, 2560, time_us=1000.0)
ODD = gemm(2, 2048, 1001, 2560, kernel=cutlass(1), time_us=1000.0)


# GEMMs off the grid


def misfit(number: int, *dims: tuple[str, int], kernel: str | None = None, **given: Any) -> Misfit:
    row = gemm(number, 2048, 1001, 2560, **given)
    return Misfit(row, dims, kernel)


def shaped(number: int, m: int | None, n: int | None, k: int | None, **given: Any) -> Misfit:
    return Misfit(replace(gemm(number, 8, 8, 8, **given), m=m, n=n, k=k), (), "align1")


def test_a_case_is_called_by_its_longest_forward_gemm(said: Listener) -> None:
    short = shaped(1, 64, 1001, 32, time_us=10.0)
    back = shaped(2, 64, 32, 1001, time_us=90.0, role="dgrad")
    other = shaped(3, 64, 1001, 48, time_us=20.0, component="attention.other")
    goal = Target("ffn", 1001, 1024)
    more = shaped(4, 7, 8, 9, time_us=1.0)
    for rows in (
        [short, back],
        [short, back, other],
        [short, other, more],
    ):  # the first two of the same sizes
        said(Case(goal, rows, {1001}).gemm)
    for component in ("other", "unattributed"):
        assert (
            Case(goal, [shaped(1, 64, 1001, 32, component=component)], {1}).gemm == "the 64 × 1001 × 32 GEMM"
        )
    zero = [shaped(1, None, 2, 3), shaped(2, 1, 2, 3)]
    said(Case(goal, zero, {1}).gemm)


def test_what_a_case_is_made_of() -> None:
    goal, more = Target("ffn", 1001, 1024), Target(None, 9, 16)
    named = misfit(1, kernel="b align1", time_us=100.0)
    silent = misfit(2, time_us=100.0, component="mlp.down")
    case = Case(goal, [named, silent, misfit(3, kernel="a align1", time_us=1.0)], {1001}, [more])
    assert case.goals == [goal, more] and Case(None, [], set(), [more]).goals == [more]
    assert (case.parameter, Case(None, [], set()).parameter) == ("ffn", None)
    assert case.kernels == ["a align1", "b align1"] and [row.id for row in case.shown] == ["g1", "g3"]
    for kernels, sure in ((("a", "b"), True), (("a", None), True), ((None, None), False)):
        told = [misfit(at, kernel=one, time_us=50.0) for at, one in enumerate(kernels)]
        assert Case(goal, told, set()).confidence == ("high" if sure else "medium")
        assert Case(None, told, set()).confidence == "medium"
    short = [misfit(1, kernel="a", time_us=49.0), misfit(2, time_us=51.0)]
    assert Case(goal, short, set()).confidence == "medium"
    simt = [misfit(1, kernel="x on CUDA cores (SIMT)"), misfit(2, kernel="y on CUDA cores (SIMT)")]
    assert Case(None, simt, set()).on_cuda_cores and not Case(goal, simt, set()).on_cuda_cores
    assert not Case(None, [*simt, misfit(3, kernel="align1")], set()).on_cuda_cores
    assert not Case(None, [*simt, misfit(3)], set()).on_cuda_cores


def names(cases: list[Case]) -> list[tuple[str | None, list[int], list[str]]]:
    return [(one.parameter, sorted(one.sizes), [row.id for row in one.rows]) for one in cases]


def test_one_case_for_each_parameter_off_the_grid() -> None:
    dims = model(ffn=1001, hidden=2050)
    both = replace(misfit(1, ("n", 1001), ("k", 2050)).row, n_expr="f", k_expr="h")
    fused = replace(misfit(2, ("n", 2002)).row, n_expr="2*f")
    found = cases_of(facts(dims=dims), [Misfit(both, (("n", 1001), ("k", 2050)), None),
                                         Misfit(fused, (("n", 2002),), None)])  # fmt: skip
    assert names(found) == [("ffn", [1001, 2002], ["g1", "g2"]), ("hidden", [2050], ["g1"])]
    again = cases_of(
        facts(dims=dims), [Misfit(both, (("n", 1001),), None), Misfit(both, (("n", 1001),), None)]
    )
    assert names(again) == [("ffn", [1001], ["g1"])]


def test_bare_sizes_of_one_gemm_are_one_case_and_of_two_components_two() -> None:
    one = misfit(1, ("n", 1001), ("k", 2561))
    beside = misfit(2, ("n", 1001))
    apart = misfit(3, ("n", 1001), component="attention.output")
    (case,) = cases_of(facts(), [one])
    assert (case.goal, case.more) == (Target(None, 1001, 1008), [Target(None, 2561, 2568)])
    assert names([case]) == [(None, [1001, 2561], ["g1"])]
    assert names(cases_of(facts(), [one, beside])) == [(None, [1001, 2561], ["g1", "g2"])]
    assert names(cases_of(facts(), [beside, apart])) == [(None, [1001], ["g2"]), (None, [1001], ["g3"])]
    nameless = [misfit(1, kernel="a"), misfit(2, kernel="a"), misfit(3, kernel="b")]
    assert names(cases_of(facts(), nameless)) == [(None, [], ["g1", "g2"]), (None, [], ["g3"])]


@pytest.mark.parametrize("component", ["attention.scores", "attention.values", "mlp.up"])
def test_the_head_dimension_of_scores_and_values_is_another_rules(component: str) -> None:
    def found(expression: str | None, size: int, *more: tuple[str, int]) -> list[list[int]]:
        row = replace(misfit(1, component=component).row, n_expr=expression, batch=32)
        cases = cases_of(facts(dims=model(head_dim=60)), [Misfit(row, (("n", size), *more), None)])
        return [sorted(one.sizes) for one in cases]

    headwise = component != "mlp.up"
    assert found("d", 60) == ([] if headwise else [[60]])
    assert found(None, 60) == ([] if headwise else [[60]])
    assert found(None, 1001) == [[1001]]
    assert found(None, 60, ("k", 1001)) == ([[1001]] if headwise else [[60, 1001]])
    row = misfit(1, kernel="a", component=component)
    assert names(cases_of(facts(dims=model(head_dim=60)), [row])) == [(None, [], ["g1"])]


def test_the_case_of_a_parameter_leaves_out_the_vocabulary() -> None:
    row = gemm(1, 2048, 1001, 512, kernel=cutlass(1), names=("b*s", "f", "h"))
    step = facts(row, dims=model(ffn=1001, hidden=512))
    found = case_of(step, "ffn")
    assert (
        found is not None and names([found]) == [("ffn", [1001], ["g1"])] and case_of(step, "hidden") is None
    )
    logits = replace(row, component="logits")
    assert case_of(facts(logits, dims=model(ffn=1001, vocab=1001, hidden=512)), "ffn") is None


def test_what_is_judged_of_a_step_off_the_grid(said: Listener) -> None:
    """More than half of the time has to be judged, where nothing was found."""
    fp32 = gemm(3, 2048, 1001, 2560, kernel=SIMT, dtype="fp32", time_us=1000.0, tensor_core="ineligible")
    state, absent, why = answer(need_misfits, facts(fp32))
    assert (state, absent) == ("not_applicable", False)
    said(why)
    found = need_misfits(facts(fp32, ROW))
    assert (len(found.gemms), found.misfits, found.on_cuda_cores) == (2, [], 1)
    long = replace(fp32, time_ms_per_step=1.01)
    state, _, why = answer(need_misfits, facts(long, ROW))
    assert state == "not_applicable"
    said(why)
    blind = gemm(4, None, None, None, time_us=1200.0, op="aten::mm")
    state, _, why = answer(need_misfits, facts(long, blind, ROW))
    assert state == "could_not_run"
    assert answer(need_misfits, facts(replace(long, time_ms_per_step=1.2), blind, ROW))[0] == "not_applicable"
    said(why)
    none = facts(long, replace(blind, time_ms_per_step=0.5), replace(blind, id="g9", n=7))
    assert [one.row.id for one in need_misfits(facts(ODD, blind)).misfits] == ["g2"]
    said(answer(need_misfits, none)[2])
    text = need_misfits(facts(ROW, replace(blind, n=8, time_ms_per_step=0.1))).text(other=False)
    said(text)


def test_added_weights_of_a_wider_mlp() -> None:
    """2 layers x 2 or 3 matrices x 512 x 23 more."""
    dims, goal = model(ffn=1001, hidden=512, layers=2), Target("ffn", 1001, 1024)
    assert mlp_parameters(facts(ROW, dims=dims), goal) == 2 * 2 * 512 * 23
    for gate in (replace(ROW, component="mlp.gate"), replace(ROW, n_expr="2*f"), replace(ROW, m_expr="2*f"),
                 replace(ROW, k_expr="2*f")):  # fmt: skip
        assert mlp_parameters(facts(ROW, gate, dims=dims), goal) == 2 * 3 * 512 * 23
    for dims in (model(ffn=1001, hidden=512), model(ffn=1001, layers=2),
                 model(ffn=1001, hidden=512, layers=2, experts=4)):  # fmt: skip
        assert mlp_parameters(facts(ROW, dims=dims), goal) is None
    assert mlp_parameters(facts(ROW, dims=model(hidden=512, layers=2)), Target("hidden", 1, 2)) is None
    gate = replace(ROW, component="mlp.gate")
    assert gated(facts(gate, dims=model(ffn=10240))) and not gated(facts(ROW, dims=model(ffn=10240)))
    assert not gated(facts(gate, dims=model(ffn=10240, experts=8)))
    assert owner(facts(ROW), Case(None, [], set())) is None


# views


def test_a_view_without_all_its_sizes_is_none() -> None:
    row = replace(gemm(1, 2048, 1024, 1024), leading_source="strides", leading={"a": 1025, "b": 1024,
        "c": 1024},
                  alignment_bytes={"a": 2, "b": 128, "c": 128}, kernel_alignment=1,
                      kernel_family="cutlass2")  # fmt: skip
    found = view_of(row)
    assert found is not None and (found.operand, found.width, found.stride) == ("a", 1024, 1025)
    for told in (replace(row, n=None), replace(row, k=None), replace(row, layout=None, kernel_layout=None)):
        assert view_of(told) == View(told, "", None, None)
    by_name = view_of(replace(row, layout=None, kernel_layout="TN"))
    assert by_name is not None and by_name.operand == "a"
    assert view_of(replace(row, alignment_bytes={"a": 15, "b": 16, "c": 16})) is not None
    fine = replace(row, alignment_bytes={"a": 16, "b": 16, "c": 16})
    assert view_of(fine) == View(fine, "", None, None)
    half = replace(row, out_dtype="fp32", alignment_bytes={"a": 16, "b": 16, "c": 8}, n=1028,
                   leading={"a": 1024, "b": 1024, "c": 1030})  # fmt: skip
    stepped = view_of(half)
    assert stepped is not None and (stepped.operand, stepped.width) == ("c", 1028)


@pytest.mark.parametrize(
    ("m", "n", "batch"), [(2048, 512, 1), (512, 2048, 1), (2048, 512, None), (2048, 512, 3)]
)
def test_the_larger_operand_is_copied_at_worst(m: int, n: int, batch: int | None) -> None:
    """2048 x 1024 elements of two bytes, read and written at 3350 GB/s."""
    row = replace(gemm(1, m, n, 1024, time_us=400.0, calls=8.0), batch=batch)
    view, many = View(row, "a", 1024, 1025), batch or 1
    step = step_of([row])
    lean, how = saving_of(step, view)
    free, _ = saving_of(replace(step, gpu=replace(step.gpu, bandwidth_gbps=None)), view)
    assert lean is not None and free is not None and lean.low is not None and free.low is not None
    assert free.low - lean.low == pytest.approx(8 * 2 * 2 * 2048 * 1024 * many / 3350e6)
    assert (free.mid, free.high) == (lean.mid, lean.high)
    assert saving_of(step_of([row], predict=False), view)[0] is None
    if batch == 1:
        then = predict_gemm(m, n, 1024, gpu=H100).time_us
        assert then.mid is not None and then.low is not None and then.high is not None
        assert lean.mid == pytest.approx(8 * (400 - then.mid) / 1e3)
        assert lean.high == pytest.approx(8 * (400 - then.low) / 1e3)
        assert free.low == pytest.approx(8 * (400 - then.high) / 1e3)
        assert f"400 µs measured; aligned {then.mid:.3g} µs predicted. The" in how


@pytest.mark.parametrize(
    ("factor", "width", "error"), [(1.25, 0.0, 0.12), (1.0, 0.05, 0.12), (1.25, 0.3, 0.3), (1.0, 0.12, 0.12)]
)
def test_this_traces_aligned_gemms_set_the_pace(
    factor: float, width: float, error: float, said: Listener
) -> None:
    row = gemm(1, 2048, 512, 1024, time_us=400.0, calls=8.0)
    step = step_of([row])
    assert step.step is not None
    anchored = Anchors({"bf16": (factor, width), "fp16": (9.0, 9.0)}, pace=(8.0, 8.0))
    found, how = saving_of(replace(step, step=replace(step.step, anchors=anchored),
                                   gpu=replace(step.gpu, bandwidth_gbps=None)), View(row, "a", 1,
                                       2))  # fmt: skip
    then = factor * (predict_gemm(2048, 512, 1024, gpu=H100).time_us.mid or 0.0)
    assert found is not None and found.mid == pytest.approx(8 * (400 - then) / 1e3)
    assert found.low == pytest.approx(8 * (400 - then * math.exp(error)) / 1e3)
    assert found.high == pytest.approx(8 * (400 - then / math.exp(error)) / 1e3)
    said(how)


# the vocabulary and widths


def test_only_forward_logits_with_columns_tell_the_vocabulary(said: Listener) -> None:
    logits = gemm(1, 2048, 1000, 512, component="logits", time_us=10.0)
    blind = replace(logits, id="g2", n=None, time_ms_per_step=9.0)
    back = replace(logits, id="g3", n=512, role="dgrad", time_ms_per_step=9.0)
    assert columns(facts(logits, blind, back)) == vocabulary(facts(logits, blind, back)) == 1000
    assert columns(facts(blind, back)) is None
    assert columns(facts(logits, dims=model(vocab=1))) == 1
    none = facts(gemm(4, 8, 8, 8), replace(ROW, n=None))
    said(answer(need_vocabulary, none)[2])
    two = [gemm(at, 8, 8, 8, component="unattributed", time_us=500.0) for at in (1, 2)]
    said(answer(need_vocabulary, facts(*two))[2])


@pytest.mark.parametrize(
    ("local", "ranks"), [(11008, 1), (5504, 2), (96, 1), (48, 1), (24, 1), (12, 1), (1365, 4)]
)
def test_a_width_in_words(local: int, ranks: int, said: Listener) -> None:
    said(GatedMlp(local, ranks, []).text)


@pytest.mark.parametrize(
    ("local", "ranks", "near"),
    [
        # within a hundredth where the weights are not counted, on the coarsest grid with any
        (12864, 1, [12736, 12800, 12928, 12992]), (10922, 1, [10816, 10880, 10944, 11008]),
        (6464, 2, [12800, 13056]), (1365, 1, [1376]), (3200, 1, []),
        (3201, 1, [3200]), (700, 1, [704]), (64, 1, []),
    ],
)  # fmt: skip
def test_widths_near_by_keep_the_weights_to_a_hundredth(local: int, ranks: int, near: list[int]) -> None:
    assert GatedMlp(local, ranks, []).near(facts(ROW)) == near


def test_six_neighbours_are_tried_on_each_side() -> None:
    found = GatedMlp(64000, 1, []).near(facts(ROW))
    assert found == [64000 + 64 * at for at in range(-6, 7) if at]


def test_added_weights_are_of_all_ranks_where_no_simulation_counts_them() -> None:
    dims, goal = model(ffn=1001, hidden=512, layers=2), Target("ffn", 1001, 1024)
    assert GatedMlp(1001, 4, []).parameters(facts(ROW, dims=dims), goal) == 4 * 2 * 2 * 512 * 23
    assert GatedMlp(1001, 4, []).parameters(facts(ROW), goal) is None
    step = step_of([ROW], dims=dims)
    counted: Any = SimpleNamespace(now=SimpleNamespace(parameters=10))
    unknown: Any = SimpleNamespace(now=SimpleNamespace(parameters=None))
    assert GatedMlp(1001, 4, []).parameters(replace(step, step=counted), goal) is None
    assert GatedMlp(1001, 4, []).parameters(replace(step, step=unknown), goal) == 4 * 2 * 2 * 512 * 23


def test_a_gated_mlp_is_needed(said: Listener) -> None:
    gate = gemm(1, 4096, 1024, 512, component="mlp.gate")
    dims = model(ffn=1024)
    other = gemm(3, 4096, 777, 512, component="mlp.up")
    wide = gemm(4, 4096, 2048, 512, component="mlp.up")
    found = need_gated_mlp(facts(gate, other, wide, dims=dims))
    assert (found.local, found.ranks, [row.id for row in found.rows]) == (1024, 1, ["g1", "g4"])
    split = need_gated_mlp(facts(gate, dims=model(ffn=1024, tensor_parallel=4)))
    assert (split.width, split.ranks) == (4096, 4)
    assert answer(need_gated_mlp, facts(gate, dims=model(ffn=1024, experts=2)))[:2] == (
        "not_applicable",
        False,
    )
    assert answer(need_gated_mlp, facts(other, dims=dims))[:2] == ("not_applicable", True)
    said(answer(need_gated_mlp, facts(gate))[2])
    part: Any = SimpleNamespace(component="mlp.act", phase="forward", time_ms_per_step=2.5)
    state, absent, why = answer(
        need_gated_mlp, facts(gemm(9, 8, 8, 8, component="logits"), components=[part, part])
    )
    assert (state, absent) == ("could_not_run", False)
    said(why)
    fp32 = gemm(1, 2048, 1024, 512, component="mlp.gate", kernel=SIMT, dtype="fp32")
    assert need_gated_mlp(facts(fp32, gate, dims=dims)).local == 1024
    said(answer(need_gated_mlp, facts(fp32, dims=dims))[2])


# slices and stages


@pytest.mark.parametrize(
    ("width", "dtype", "off"),
    [(1366, "bf16", ["ffn 1366"]), (1368, "bf16", []), (1364, "fp32", []), (1366, "fp32", ["ffn 1366"]),
     (1368, "fp8", ["ffn 1368"]), (1366, None, [])],
)  # fmt: skip
def test_a_ranks_part_is_a_multiple_of_16_bytes(width: int, dtype: str | None, off: list[str]) -> None:
    row = gemm(1, 64, 64, 64, dtype=dtype)
    assert need_slices(facts(row, dims=model(tensor_parallel=4, ffn=width))).off_grid == off
    most = [row, gemm(2, 64, 64, 64, dtype="fp32"), gemm(3, 64, 64, 64, dtype="fp32")]
    found = need_slices(facts(*most, dims=model(tensor_parallel=4, ffn=1364))).off_grid
    assert found == []  # most rows are fp32


def test_twice_the_ranks_leave_fewer_tiles(said: Listener) -> None:
    rows = [gemm(1, 2048, 1024, 1024, component="attention.qkv", names=("b*s", "h", "h")),
            gemm(2, 2048, 4096, 1024, component="mlp.up"), gemm(3, 2048, 1024, 4096,
                component="mlp.down")]  # fmt: skip
    dims = model(hidden=1024, heads=16, kv_heads=16, head_dim=64, ffn=4096, layers=2, tensor_parallel=2,
                 sequence=2048, micro_batch=1)  # fmt: skip

    def seen(**given: Any) -> str:
        step = step_of(rows, dims=replace(dims, **given))
        return need_slices(step).saw(step)

    # of 2048 rows: 128 tiles of 128 x 256 for 2048 columns of the MLP, and fewer for the others
    assert "With" not in need_slices(facts(*rows, dims=dims)).saw(facts(*rows, dims=dims))
    said(seen(), seen(heads=Known(3, ""), kv_heads=Known(3, "")))


def test_every_rank_computes_the_logits_of_the_whole_vocabulary() -> None:
    rows = [ROW, gemm(2, 2048, 50257, 512, component="logits")]
    dims = model(tensor_parallel=4)

    def whole(*given: GemmRow, **now: Any) -> int | None:
        told = {"vocab": 50257, "vocab_split": False}
        step: Any = SimpleNamespace(now=SimpleNamespace(**(told | now)))
        return need_slices(replace(facts(*given, dims=dims), step=step)).vocab

    assert whole(*rows) == 50257 and whole(ROW) is None
    for given in ({"vocab_split": True}, {"vocab_split": None}, {"vocab": None}, {"vocab": 3}):
        assert whole(*rows, **given) is None
    assert whole(*rows, vocab=4) == 4
    split: Any = SimpleNamespace(now=SimpleNamespace(vocab=50257, vocab_split=True))
    assert need_slices(replace(facts(*rows, dims=dims), step=split)).off_grid == ["vocabulary 50257"]


def staged(layers: Any = 8, *, components: Any = None, declared: int | None = 32, stages: Any = 4) -> Any:
    dims = model(layers=8)
    dims = replace(dims, layers=Known(layers, "none seen"), pipeline_parallel=Known(stages, "no group"))
    step: Any = SimpleNamespace(components=[("mlp.up", "forward", 6.0, 5.0),
        ("embedding", "forward", 0.5, 0.0),
                                            ("loss", "forward", 1.0, 0.0)]
                                if components is None else components)  # fmt: skip
    told = {} if declared is None else {"layers": declared}
    return replace(facts(ROW, dims=dims), step=step, declared=told)


def test_a_stage_needs_its_layers_and_their_time(said: Listener) -> None:
    found = need_stage(staged())
    assert (found.layers_ms, found.first_ms, found.last_ms, found.whole) == (6.0, 0.5, 1.0, 32)
    assert need_stage(staged(declared=8)).whole == 8 and need_stage(staged(declared=7)).whole is None
    for given in (staged(components=[("loss", "forward", 1.0, 0.0)]), staged(None), staged(0),
        staged(stages=0),
                  replace(staged(), step=None)):  # fmt: skip
        assert answer(need_stage, given)[0] == "could_not_run"
    tiny = need_stage(staged(components=[("mlp.up", "forward", 0.5, 0.5)]))
    assert (tiny.layers_ms, tiny.first_ms, tiny.last_ms) == (0.5, 0.0, 0.0)
    assert "Logits" not in tiny.saw and "embedding" not in tiny.saw
    assert answer(need_stage, staged(stages=1))[2] == "No pipeline: no group."
    said(answer(need_stage, staged(stages=None))[2])


def test_what_goes_with_layers_outside_of_rows(said: Listener) -> None:
    """One of two layers of 4 ms goes, with half a micro-batch more of filling; rows take 5 ms."""
    one = Stage(2, 2, None, 4.0, 0.0, 0.0, [replace(ROW, time_ms_per_step=5.0)], 2)
    (bound,), beside = one.bounds(1.0)
    assert (bound.ms, beside) == (5.0 * 0.5 * 1.5, 0.0)
    less = replace(one, rows=[replace(ROW, time_ms_per_step=1.0)])
    assert less.bounds(1.0)[1] == pytest.approx(3.0 * 0.75)
    assert one.paces == [2.0, 3.0]
    ends = replace(one, last_ms=1.0, first_ms=0.5)
    said(ends.saw)


# heads


@pytest.mark.parametrize("size", [32, 64, 96, 128, 160, 192, 224, 256])
def test_sizes_that_kernels_are_compiled_for(size: int) -> None:
    assert size in COMPILED and len(COMPILED) == 8
    for head_dim in (size, size - 1):
        assert HeadsRun(head_dim, 1, [], []).computed == size
    assert HeadsRun(size, 1, [], []).is_misfit is (size == 32)


@pytest.mark.parametrize(
    ("head_dim", "heads", "splits"),
    [
        (80, 0, [(128, None), (64, None)]), (80, None, [(128, None), (64, None)]), (63, 1, [(64, None)]),
        (40, 0, [(64, None), (128, None)]), (160, 0, [(128, None), (256, None)]), (128, 0, [(128, None),
        (256, None)]),
        (64, 2, [(128, 1), (64, 2)]), (127, 3, [(128, None)]), (257, 1, [(320, None)]),
        (200, 3, [(256, None)]),
        (128, 2, [(128, 2)]), (96, 1, [(128, None)]), (80, 8, [(128, 5), (64, 10)]),
    ],
)  # fmt: skip
def test_splits_of_unknown_heads_are_sizes_alone(
    head_dim: int, heads: int | None, splits: list[tuple[int, int | None]]
) -> None:
    found = [(one.head_dim, one.heads) for one in by_saving(facts(ROW), HeadsRun(head_dim, heads, [], []))]
    assert found == [one for one in splits if one[1] != 1 or len(splits) == 1]


@pytest.mark.parametrize(
    ("savings", "order"),
    [
        ({128: (1.0, 2.0), 64: (1.0, 3.0)}, [64, 128]), ({128: (1.0, 3.0), 64: (1.0, 2.0)}, [128, 64]),
        ({128: (-5.0, 3.0), 64: (1.0, 2.0)}, [64]), ({128: (-5.0, -3.0), 64: (-5.0, -2.0)}, [64]),
        ({128: (1.0, 2.0)}, [128, 64]),  # the other is not predicted: as they stand
    ],
)  # fmt: skip
def test_splits_that_pay_come_by_their_saving(
    monkeypatch: pytest.MonkeyPatch, savings: dict[int, tuple[float, float]], order: list[int]
) -> None:
    def made(_: Any, change: Any) -> Any:
        found = savings.get(change["head_dim"])
        return "no" if found is None else SimpleNamespace(saving_ms=Estimate(*found, 9.0, "model"))

    monkeypatch.setattr("tracelens.rules.evidence.heads.simulate", made)
    step = facts(ROW, dims=model(heads=32, head_dim=80))
    assert [one.head_dim for one in by_saving(step, HeadsRun(80, 32, [], []))] == order


def test_groups_of_heads_are_in_order_those_of_unknown_number_first() -> None:
    rows = [attention(1, 80, heads=2), attention(2, 64, heads=4), attention(3, 80, heads=1)]
    blind = replace(gemm(4, 64, 64, 80, component="attention.scores"), batch=8)
    found = need_heads(facts(*rows, blind))
    assert [(one.head_dim, one.heads) for one in found] == [(64, 4), (80, None), (80, 1), (80, 2)]
    zero = replace(rows[0], attention=AttentionDims(1, 2, 2, 8, 8, 0))
    assert answer(need_heads, facts(zero))[0] == "could_not_run"
    one = replace(rows[0], attention=AttentionDims(1, 2, 2, 8, 8, 1))
    assert [group.head_dim for group in need_heads(facts(one))] == [1]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "known"), [(1, 1, True), (0, 1, False), (1, 0, False), (2, 1, True)]
)
def test_key_value_heads_are_needed(heads: int, kv_heads: int, known: bool, said: Listener) -> None:
    dims = replace(model(head_dim=64), heads=Known(heads, ""), kv_heads=Known(kv_heads, "made up"))
    qkv = gemm(1, 64, 64, 64, component="attention.qkv", names=("b*s", None, None))
    step = facts(replace(qkv, n=192), attention(2, 64), dims=dims)
    if known:
        assert [row.id for row in need_kv_rows(step)] == ["g1"]
    else:
        said(answer(need_kv_rows, step)[2])


def test_rows_of_queries_alone_are_left_out_by_their_role() -> None:
    dims = model(heads=8, kv_heads=2, head_dim=64)
    rows = [gemm(1, 512, 640, 4096, component="attention.qkv"),
            gemm(2, 640, 640, 512, component="attention.qkv", role="dgrad"),
            gemm(3, 640, 640, 512, component="attention.qkv", role="wgrad"),
            replace(gemm(4, 640, 640, 512, component="attention.qkv"), role=None)]  # fmt: skip
    assert [row.id for row in need_kv_rows(facts(*rows, dims=dims))] == ["g1", "g3"]
    ranks = model(heads=8, kv_heads=2, tensor_parallel=2)
    assert other_kv_heads(facts(ROW, dims=ranks)) == [2, 8, 16]


def test_what_fewer_operations_alone_would_save_is_no_gain_of_shape() -> None:
    dims = model(hidden=4096, heads=32, kv_heads=8, head_dim=128, sequence=2048, micro_batch=1, layers=2)
    qkv = gemm(
        1, 2048, 6144, 4096, component="attention.qkv", time_us=200.0, names=("b*s", "(a+2*kv)*d", "h")
    )
    step = step_of([qkv, attention(2, 128)], dims=dims)
    assert step.step is not None
    rows: Any = [SimpleNamespace(component="attention.qkv", gemm="g1", time_ms=0.2,
        then_ms=SimpleNamespace(mid=0.1)),
                 SimpleNamespace(component="mlp.up", gemm="g1", time_ms=9.0,
                     then_ms=SimpleNamespace(mid=0.1)),
                 SimpleNamespace(component="attention.qkv", gemm="g9", time_ms=9.0,
                     then_ms=SimpleNamespace(mid=0.1))]  # fmt: skip
    trial: Any = SimpleNamespace(value=16, found=SimpleNamespace(rows=rows))
    share = [product for product in step.step.work.products if product.row.id == "g1"]
    assert share and shape_gain_ms(step, trial) == pytest.approx(0.2 * 8192 / 6144 - 0.1)
    assert shape_gain_ms(step_of([qkv], dims=dims, predict=False), trial) == 0.0


# lengths


def test_half_of_causal_scores_had_to_be_done(said: Listener) -> None:
    """989 GFLOP at the peak are 1 ms, half of them 0.5; the last rows of a bound win, and none below zero."""
    call = replace(attention(1, 64, time_us=1200.0, calls=1.0), attention=AttentionDims(1, 32, 32, 130,
        130, 64),
                   flops=989e9, bytes=1e3)  # fmt: skip
    step = facts(call, dims=model(sequence=130, micro_batch=1))
    (bound,) = bounds_of(step, 130, None)
    assert bound.ms == pytest.approx(1.2 - 0.5)  # below the 1 - (130/256)^2 of it that no position has
    wide = replace(step, gemms=[replace(call, flops=1e6)])
    assert bounds_of(wide, 130, None)[0].ms == pytest.approx(1.2 * (1 - (130 / 256) ** 2))
    edge = replace(gemm(2, 130, 512, 512, time_us=500.0), lost_ms=replace(ROW.lost_ms, tile=0.125))
    case = Case(None, [misfit_of(ODD) or Misfit(ODD, (), None)], set())
    found = bounds_of(replace(step, gemms=[edge, call, ODD]), 130, case)
    assert [one.row.id for one in found] == ["g2", "g1"] and found[0].ms != 0.125
    none = replace(edge, lost_ms=replace(ROW.lost_ms, tile=0.0))
    assert bounds_of(replace(step, gemms=[none]), 130, None) == []
    unknown = replace(step, gemms=[edge], model=model(sequence=130))
    assert [(one.row.id, one.ms) for one in bounds_of(unknown, 130, None)] == [("g2", 0.125)]
    said(bounds_of(unknown, 130, None)[0].how)


# dimensions and blocks


@pytest.mark.parametrize(
    ("expression", "size", "dims", "found"),
    [
        ("v", 1001, {"vocab": 1}, ("vocab_size", 64)), ("h", 64, {"hidden": 64}, ("hidden", 64)),
        ("h", 65, {"hidden": 65}, ("hidden", 128)), ("h", 100, {"hidden": 100, "heads": 1}, ("hidden", 128)),
        # 512 and a quarter of it reach 640, which five heads divide, and not 704
        ("h", 500, {"hidden": 500, "heads": 5}, ("hidden", 640)),
        ("h", 500, {"hidden": 500, "heads": 11}, ("hidden", 512)),
        ("h", 500, {"hidden": 500, "heads": 9}, ("hidden", 576)), (None, 1001, {}, (None, 1008)),
    ],
)  # fmt: skip
def test_where_the_hidden_size_goes_with_its_heads(
    expression: str | None, size: int, dims: dict[str, int], found: tuple[str | None, int]
) -> None:
    row = replace(ROW, n_expr=expression)
    goal = target(row, "n", size, facts=facts(row, dims=model(**dims)))
    assert (goal.parameter, goal.then) == found
    for dtype, then in (("fp32", 1004), ("fp8", 1008), ("fp4", 1024), (None, 1008)):
        if expression is None:
            assert target(replace(row, dtype=dtype), "n", 1001, facts=facts(row)).then == then


def test_growth_of_operations_counts_every_side() -> None:
    row = replace(ROW, flops=10.0, calls_per_step=2.0)
    bare = Target(None, 2560, 2816)
    assert flops_growth([row], goal=bare, sizes=frozenset({2560})) == pytest.approx(0.1)
    assert flops_growth([row], goal=bare, sizes=frozenset({7})) == 0.0
    assert flops_growth([], goal=bare, sizes=frozenset()) is None
    named = replace(row, n_expr="h")
    assert flops_growth([named], goal=Target("ffn", 10240, 20480), sizes=frozenset({10240})) == 0.0
    other = replace(row, n=None)
    assert flops_growth(
        [other], goal=bare, sizes=frozenset(), more=[Target(None, 2048, 4096)]
    ) == pytest.approx(1.0)


def test_blocks_of_scales_by_gpu_and_rank(said: Listener) -> None:
    row = gemm(1, 4096, 1040, 1024, names=("b*s", "f", "h"))
    step = facts(row, gemm(2, 8, 8, 8, role="wgrad"))
    said(block_fit([row], step))
    for major, text in ((10, "MXFP8 needs multiples of 32"), (9, "fp8 in blocks needs multiples of 128"),
                        (12, "NVFP4 needs multiples of 128")):  # fmt: skip
        gpu: Any = SimpleNamespace(gpu=SimpleNamespace(compute_capability=(major, 0)))
        assert text in block_fit([row], replace(step, step=gpu))
    nothing: Any = SimpleNamespace(gpu=SimpleNamespace(compute_capability=None))
    assert "MXFP8" not in block_fit([row], replace(step, step=nothing))
    many = [gemm(at, 4096, 128 * at + 1, 1024) for at in range(1, 6)]
    assert " more" not in block_fit(many[:3], step)
    said(block_fit(many, step))
    gather = message("all_gather", group_size=3)
    assert misfits(row, 128, replace(step, communication=[gather])) == {
        1040: "ffn"
    }  # three do not divide 4096
    eight = message("all_gather", group_size=64)
    assert misfits(row, 128, replace(step, communication=[eight])) == {64: "tokens", 1040: "ffn"}
    for given in ({"purpose": "data-parallel gradients"}, {"group_size": None}):
        away = replace(eight, **given)
        assert misfits(row, 128, replace(step, communication=[away])) == {1040: "ffn"}
    reduces = message("all_reduce", group_size=64)
    assert misfits(row, 128, replace(step, communication=[reduces])) == {1040: "ffn"}
    assert misfits(replace(row, m=None), 128, step) == {1040: "ffn"}


# experts

EXPERT = gemm(1, 64, 1024, 1024, component="moe.experts", time_us=50.0, calls=8.0)


@pytest.mark.parametrize(
    ("groups", "sizes", "alone"),
    [
        (None, (64, 1024, 1024), (64, 1024, 1024)),
        (Groups("m", 8), (510, 1024, 1024), (64, 1024, 1024)),
        (Groups("k", 4), (1024, 1024, 255), (1024, 1024, 64)),
    ],
)
def test_rows_of_unequal_groups_count_as_even_ones(
    groups: Groups | None, sizes: tuple[int, int, int], alone: tuple[int, int, int], said: Listener
) -> None:
    """Twice the rows save 1 - predicted(2 x) / (2 x predicted(1 x)) of 0.4 ms, and nothing below zero."""
    row = replace(EXPERT, m=sizes[0], n=sizes[1], k=sizes[2], groups=groups, flops=None, bytes=None)
    step = step_of([row])
    batch = groups.number if groups is not None else 1
    m, n, k = alone
    one = predict_gemm(m, n, k, batch=batch, gpu=H100).time_us.mid or 0.0
    two = predict_gemm(2 * m, n, k, batch=batch, gpu=H100).time_us.mid or 0.0
    found = doubled(step, row)
    assert found is not None and found.ms == pytest.approx(0.4 * max(0.0, 1 - two / (2 * one)))
    said(found.how)


def test_tiles_of_experts_together_are_no_kernels_of_their_own(said: Listener) -> None:
    step = step_of([EXPERT])
    alone = predict_gemm(64, 1024, 1024, gpu=H100).time_us.mid or 0.0
    together = predict_gemm(64, 1024, 1024, batch=8, gpu=H100).time_us.mid or 0.0
    found = packed(step, EXPERT, 8)
    assert found.ms == pytest.approx(0.4 * (1 - together / (8 * alone) * 0.88))
    said(found.how)
    none = replace(EXPERT, m=None, flops=None, bytes=None)
    assert packed(step, none, 8).ms == pytest.approx(0.4)  # no kernel's start is kept
    short = replace(EXPERT, time_ms_per_step=8 * 1e-4)
    assert packed(step, short, 8).ms == 0.0
    for given in ({"time_ms_per_step": 0.0}, {"calls_per_step": 0.0}, {"n": None}, {"k": None}):
        assert doubled(step, replace(EXPERT, **given)) is None, given
    tiny = doubled(step, replace(EXPERT, flops=None, bytes=None, time_ms_per_step=0.008))
    assert tiny is not None and tiny.ms > 0.0  # nor here


def test_a_half_empty_tile_keeps_the_start_of_its_kernel() -> None:
    row = replace(
        EXPERT, m=1000, tile_m=128, groups=Groups("m", 4), time_ms_per_step=0.008, flops=None, bytes=None
    )
    found = unfilled(facts(row, gpu=replace(H100_INFO, gemm_floor_us=1.0)), row)
    assert found is not None and found.ms == 0.0
    assert unfilled(facts(row), replace(row, m=0)) is None


def test_experts_are_needed_with_their_rows(said: Listener) -> None:
    router: Any = SimpleNamespace(component="moe.router", phase="forward", time_ms_per_step=1.0)
    assert answer(need_mixture, facts(ROW))[:2] == ("not_applicable", True)
    assert answer(need_mixture, facts(ROW, components=[router]))[0] == "could_not_run"
    sent = [message("all_to_all", purpose="expert all-to-all")]
    for dims in (model(), model(False)):
        between = answer(need_mixture, facts(ROW, dims=dims, communication=sent))
        assert between[0] == "could_not_run"
    said(between[2])
    blind = replace(EXPERT, m=None, n=None, k=None, op="aten::mm")
    said(answer(need_mixture, facts(blind, blind))[2])
    shared = gemm(1, 2048, 1024, 1024, component="moe.experts")
    told = answer(need_mixture, facts(shared, dims=model(sequence=1024, micro_batch=2)))
    assert told[0] == "could_not_run"
    said(told[2])
    found = need_mixture(facts(shared, dims=model(sequence=1024, micro_batch=1)))
    assert (found.capacity, found.how) == (2048.0, "loop")


@pytest.mark.parametrize(
    "given",
    [
        {"rows_per_token": 2.0},
        {"rows_per_token": 1.0},
        {"rows_per_token": 1.25},
        {"local": 1},
        {"experts": None},
    ],
)
def test_a_mixture_in_figures(given: dict[str, Any], said: Listener) -> None:
    told: dict[str, Any] = {"how": "loop", "experts": 8, "local": 4, "rows": (EXPERT,), "capacity": 100.0,
                            "least": 100, "most": 100, "rows_per_token": None, "ranks": 2,
                                "gated": None}  # fmt: skip
    said(saw(facts(EXPERT), Mixture(**(told | given))))
    uneven = Mixture(**(told | {"capacity": 2.0, "least": 1, "most": 3}))
    assert "rows" not in saw(facts(EXPERT), Mixture(**(told | {"capacity": None})))
    said(saw(facts(EXPERT), uneven))
