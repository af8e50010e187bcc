"""Where a difference begins to count: noise, what lies beyond it, and what the step's is made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.compare.test_moves import gemm, of, row, states
from tests.render import sample_report
from tests.said import Listener
from tracelens.comparison import words
from tracelens.comparison.causes import find_causes
from tracelens.comparison.compare import compare_components
from tracelens.comparison.gemms import differ
from tracelens.comparison.moves import find_moves
from tracelens.comparison.same_work import (
    above,
    as_all,
    beyond,
    diffs_ms,
    drifted,
    judged,
    noise,
    other_work,
    own_frac,
    own_ms,
    same_work,
)
from tracelens.comparison.step_change import spread, step_change
from tracelens.render.compare import peak_change
from tracelens.render.compare_words import control
from tracelens.results import ComponentRow, GemmRow, Report, Step
from tracelens.results.comparison import GemmChange, GemmSide, Noise


def side(ms: float, *, calls: float = 1.0, taken: float | None = 0.0) -> GemmSide:
    return GemmSide(["g"], [], 64, 64, 64, None, None, "bf16", "TN", ["k"], calls, ms, None, taken)


def change(before: GemmSide | None, after: GemmSide | None, **given: Any) -> GemmChange:
    old, new = (one.time_ms_per_step or 0.0 if one else 0.0 for one in (before, after))
    how: dict[str, Any] = {"state": "same_shape", "kind": "gemm", "component": "mlp.up", "role": "forward"}
    how |= {"phase": "forward", "changed": [], "beyond_noise": None, **given}
    return GemmChange(
        before=before, after=after, diff_ms=new - old, diff_frac=new / old - 1 if old else None, **how
    )


def shifted(mid: float, spread_frac: float = 0.01) -> Noise:
    return Noise(9, 0.5, mid, mid - spread_frac, mid + spread_frac)


def test_a_share_of_peak_that_counts_too_much_work_is_a_bound_on_its_side_alone() -> None:
    one = gemm("mlp.up", "forward", (4096, 4096, 1024), ms=5.0)
    most = replace(one, work_known="at_most", peak_frac=0.574)
    exact = replace(one, work_known="exact", peak_frac=0.75)
    (found,) = states(of(most), of(exact))
    assert peak_change(found) == "≤ 57.4% → 75.0%"


def test_the_pace_of_the_gpu_explains_a_step_only_where_the_gpu_computes(said: Listener) -> None:
    times = [100.0] * 4, [103.0] * 4
    step = step_change(*times, medians=(spread(times[0]), spread(times[1])), identical=False)
    computes, waits = (control(shifted(0.03), step, ms) for ms in (95.0, 20.0))
    assert computes != waits
    said(computes, waits)


def test_counts_that_differ_by_a_fiftieth_of_the_larger_are_the_same() -> None:
    for a, b, told in (
        (100, 98, False),
        (98, 100, False),
        (100, 97.9, True),
        (97.9, 100, True),
        (0, 0, False),
    ):
        assert differ(a, b) is told, (a, b)


def test_noise_is_three_scaled_deviations_about_the_median() -> None:
    """+10, +12 and +17 %: the median is 12, of the deviations 2, 0 and 5 it is 2; 3 x 1.4826 x 2 = 8.8956."""
    same = [change(side(ms), side(ms * factor)) for ms, factor in ((10.0, 1.10), (20.0, 1.12), (30.0, 1.17))]
    found = noise(same, 120.0)
    assert found is not None and (found.rows, found.share_frac) == (3, 0.5)
    assert (found.low_frac, found.mid_frac, found.high_frac) == pytest.approx((0.031044, 0.12, 0.208956))
    assert noise(same[:2], 120.0) is None and noise(same, 0.0) is None
    for other in (
        change(side(10.0), side(30.0), kind="attention"),
        change(side(10.0), side(30.0), state="shape_changed"),
        change(side(10.0), side(30.0), differs=["kernel"]),
        change(side(0.239), side(0.9)),  # below 0.2 % of the GPU time
    ):
        assert noise([*same, other], 120.0) == found
    weighty = noise([*same, change(side(0.24), side(0.24))], 120.0)
    assert weighty is not None and weighty.rows == 4


@pytest.mark.parametrize(
    ("before", "after", "ms", "frac"),
    [
        (side(10.0), side(12.0), (10.0, 12.0), 0.2),
        (side(10.0, calls=2.0), side(12.0, calls=3.0), (10.0, 12.0), -0.2),  # 5 and 4 ms a call
        (side(10.0, taken=2.0), side(13.0, taken=3.0), (8.0, 10.0), 0.25),
        (side(10.0, taken=None), side(13.0, taken=None), (10.0, 13.0), 0.3),
        (side(10.0, taken=None), side(13.0), None, None),
        (side(10.0), side(13.0, taken=None), None, None),
        (side(10.0, taken=10.0), side(13.0), (0.0, 13.0), 0.0),
        (side(10.0, calls=0.0), side(13.0), (10.0, 13.0), 0.0),
        (side(10.0), side(13.0, calls=0.0), (10.0, 13.0), 0.0),
    ],
)
def test_what_the_same_work_takes_without_what_other_streams_took(
    before: GemmSide, after: GemmSide, ms: tuple[float, float] | None, frac: float | None
) -> None:
    one = change(before, after)
    assert own_ms(one) == ms and own_frac(one) == (frac if frac is None else pytest.approx(frac))


@pytest.mark.parametrize(
    ("state", "differs", "same", "other"),
    [
        ("same_shape", [], True, False),
        ("moved", [], True, False),
        ("shape_unknown", [], False, False),
        ("same_shape", ["kernel"], False, False),
        ("moved", ["kernel"], False, False),
        ("same_shape", ["kernel", "calls"], False, True),
        ("same_shape", ["dtype"], False, True),
        ("shape_changed", ["size"], False, True),
        ("regrouped", [], False, True),
        ("only_before", [], False, True),
        ("only_after", [], False, True),
    ],
)
def test_what_is_the_same_work_and_what_is_other_work(
    state: str, differs: list[str], same: bool, other: bool
) -> None:
    one = change(side(1.0), side(1.0), state=state, differs=differs)
    assert (same_work(one), other_work(one)) == (same, other)


@pytest.mark.parametrize(
    ("diff", "frac", "how", "other", "told"),
    [
        (0.0999, 0.5, None, True, False),  # below a thousandth of the GPU time
        (-0.0999, -0.5, None, True, False),
        (0.1, 0.5, None, True, True),
        (0.1, None, None, False, True),
        (0.1, 0.5, None, False, None),
        (9.0, 0.0399, shifted(0.02), False, False),  # from 2 % either way: its spread and 1 %
        (9.0, 0.0401, shifted(0.02), False, True),
        (9.0, 0.0001, shifted(0.02), False, False),
        (9.0, -0.0001, shifted(0.02), False, True),
        (9.0, 0.0199, shifted(0.021), False, False),  # all alike by more: from none
        (9.0, 0.0201, shifted(0.021), False, True),
        (9.0, -0.0199, shifted(-0.021), False, False),
        (9.0, -0.0201, shifted(-0.021), False, True),
    ],
)
def test_what_is_beyond_noise(
    diff: float, frac: float | None, how: Noise | None, other: bool, told: bool | None
) -> None:
    assert beyond(diff, frac, noise=how, gpu_ms=100.0, other_work=other) is told


def test_what_all_gemms_changed_by_explains_as_much_and_their_spread() -> None:
    assert [drifted(shifted(mid)) for mid in (0.01, 0.0101, -0.01, -0.0101)] == [False, True, False, True]
    up, down = shifted(0.05), shifted(-0.05)
    for frac, how, told in (
        (0.0699, up, True), (0.0701, up, False), (0.001, up, True), (0.0, up, False), (-0.01, up, False),
        (-0.0699, down, True), (-0.0701, down, False), (0.01, down, False),
        (None, up, False), (0.05, None, False),
    ):  # fmt: skip
        assert as_all(frac, how) is told, (frac, how)
    for frac, kind, alike in (
        (1.05, [], True),
        (1.05, ["kernel"], False),
        (1.2, [], False),
        (1.0, [], False),
    ):
        (one,) = judged([change(side(10.0), side(10.0 * frac), differs=kind)], up, 100.0)
        assert one.alike is alike, (frac, kind)


@pytest.mark.parametrize(
    ("values", "least", "many"),
    [
        ([20.0, 10.0, 10.0], 9.0, 1),
        ([20.0, 10.0, 10.0], 10.0, 0),  # a gap of exactly so much is none
        ([20.0, 19.0, 10.0, 10.0, 10.0], 1.0, 2),
        ([20.0, 19.0, 10.0, 10.0], 1.0, 0),  # of four only one can: between the first two there is no gap
        ([20.0, 10.0], 1.0, 0),
        ([20.0], 1.0, 0),
        ([], 1.0, 0),
        ([18.8, 12.0, 10.0, 8.0], 1.0, 0),  # 3 x 1.4826 deviations of 2 are 8.9
        ([19.0, 12.0, 10.0, 8.0], 1.0, 1),
    ],
)
def test_a_rank_stands_out_by_a_gap_that_the_others_spread_does_not_cover(
    values: list[float], least: float, many: int
) -> None:
    assert above(values, least) == many


# the GEMMs side by side


def test_several_shapes_against_several_are_named_by_time_three_of_them() -> None:
    old = [gemm("mlp.up", "forward", (64 + at, 64, 64), ms=float(at), calls=1.0) for at in range(1, 6)]
    old = [replace(old[0], layout="NT", math_dtype="fp16"), *old[1:]]
    new = [gemm("mlp.up", "forward", (256, 256, at), ms=1.5, calls=1.0) for at in (512, 1024, 2048)]
    (one,) = states(of(*old), of(*new))
    assert one.state == "regrouped" and one.diff_ms == pytest.approx(4.5 - 15)
    assert one.changed[0].split(" -> ") == [
        "69 × 64 × 64 + 68 × 64 × 64 + 67 × 64 × 64 and 2 more",
        "256 × 256 × 512 + 256 × 256 × 1024 + 256 × 256 × 2048",
    ]
    assert one.before is not None and one.after is not None
    assert (one.before.dtype, one.before.layout) == (None, None)
    assert (one.after.dtype, one.after.layout) == (new[0].math_dtype, new[0].layout)


def pair(before: GemmRow, after: GemmRow) -> GemmChange:
    (one,) = states(of(before), of(after))
    return one


def test_what_is_not_the_same_of_a_pair_is_named(said: Listener) -> None:
    base = gemm("mlp.up", "forward", (64, 128, 256), ms=2.0)
    cases: list[tuple[dict[str, Any], list[str], list[str]]] = [
        ({}, [], []),
        ({"n": 130, "batch": 2}, ["size"], ["n 128 -> 130", "batch unknown -> 2"]),
        ({"math_dtype": "fp8"}, ["dtype"], ["dtype bf16 -> fp8"]),
        ({"layout": "NN"}, ["layout"], [f"layout {base.layout} -> NN"]),
        ({"kernel": "other"}, ["kernel"], ["kernel"]),
        ({"calls_per_step": 13.0}, ["calls"], ["calls 12 -> 13"]),
        ({"calls_per_step": 12.2}, [], []),  # windows cut steps unevenly
    ]
    for given, differs, changed in cases:
        one = pair(base, replace(base, **given))
        assert (one.differs, one.changed) == (differs, changed), given
        assert one.state == ("shape_changed" if "size" in differs else "same_shape")
    hidden = replace(base, m=None, n=None, k=None, dtype=None, math_dtype=None, shape_known="unknown")
    one = pair(hidden, base)
    assert one.state == "shape_unknown"
    assert pair(hidden, replace(hidden, time_ms_per_step=3.0)).state == "shape_unknown"
    said(one.changed)


def test_two_in_the_same_layers_are_paired_where_two_of_three_sizes_are_kept() -> None:
    def two(*shapes: tuple[int, int, int], layers: tuple[str | None, ...] = ("0-1", "2-3")) -> Report:
        rows = [gemm("mlp.up", "forward", shape, ms=1.0) for shape in shapes]
        return of(*(replace(one, layers=name) for one, name in zip(rows, layers, strict=True)))

    before = two((64, 128, 256), (64, 128, 512))
    paired = states(before, two((64, 140, 256), (64, 140, 512)))
    assert [one.state for one in paired] == ["shape_changed"] * 2
    assert all(one.changed == ["n 128 -> 140"] for one in paired)
    lone = states(before, two((64, 140, 257), (64, 140, 513)))
    assert [one.state for one in lone] == ["regrouped"]
    nowhere = two((64, 128, 256), (64, 128, 512), layers=(None, None))
    assert [
        one.state for one in states(nowhere, two((64, 140, 256), (64, 140, 512), layers=(None, None)))
    ] == ["regrouped"]


def test_the_only_one_left_is_paired_but_for_what_no_module_names() -> None:
    for component, state in (
        ("mlp.up", "shape_changed"),
        ("unattributed", "regrouped"),
        ("other", "regrouped"),
    ):
        a, b = (gemm(component, "forward", size, ms=1.0) for size in ((64, 64, 64), (96, 96, 96)))
        assert [one.state for one in states(of(a), of(b))] == [state]


def test_shares_of_peak_are_weighted_by_time_and_known_of_all_rows_or_of_none() -> None:
    rows = [
        replace(gemm("mlp.up", "forward", (64, 64, 64), ms=ms), id=f"{ms}", kernel=f"{ms}", peak_frac=frac)
        for ms, frac in ((1.0, 0.5), (3.0, 0.7))
    ]
    rows = [replace(rows[0], overlap_ms_per_step=0.25), replace(rows[1], overlap_ms_per_step=0.5)]
    (one,) = states(of(*rows), of(rows[0], replace(rows[1], peak_frac=None)))
    assert one.before is not None and one.after is not None
    assert one.before.peak_frac == pytest.approx(0.65) and one.after.peak_frac is None
    assert one.before.taken_ms_per_step == 0.75
    assert (one.before.time_ms_per_step, one.before.calls_per_step) == (4.0, 24.0)


# components, and work that is counted elsewhere


def component(name: str, ms: float, kernels: float, phase: str = "forward") -> ComponentRow:
    return ComponentRow(name, phase, ms, round(ms * 1e6), 0.1, round(kernels), None, None, ms, kernels)


def with_components(*rows: ComponentRow, gpu_ms: float = 100.0) -> Report:
    one = sample_report.full()
    return replace(one, components=list(rows), summary=replace(one.summary, gpu_ms_per_step=gpu_ms))


@pytest.mark.parametrize(
    ("before", "after", "how", "told", "why"),
    [
        ((10.0, 4.0), (12.0, 6.0), None, True, words.kernels(0.5)),
        ((10.0, 4.0), (8.0, 3.0), None, True, words.kernels(-0.25)),
        ((10.0, 4.0), (5.0, 6.0), None, True, words.kernels(0.5)),  # no reason for less time
        ((10.0, 4.0), (0.0, 0.0), None, True, "only before"),
        ((0.0, 0.0), (10.0, 4.0), None, True, "only after"),
        ((10.0, 4.0), (12.0, 4.0), None, None, "too few GEMMs did the same work on both sides"),
        ((10.0, 4.0), (12.0, 4.0), shifted(0.0), True, "same number of kernels, same GEMM shapes"),
        ((10.0, 4.0), (12.0, 4.0), shifted(0.19), True, "as all GEMMs of the same work (+19.0%)"),
        ((10.0, 4.0), (10.05, 4.0), None, False, "same number of kernels, same GEMM shapes"),
    ],
)  # fmt: skip
def test_why_a_component_is_judged_as_it_is(
    before: tuple[float, float], after: tuple[float, float], how: Noise | None, told: bool | None, why: str
) -> None:
    old, new = (with_components(component("norm", *at)) for at in (before, after))
    (one,) = compare_components(old, new, [], how)
    assert (one.beyond_noise, one.why, one.alike) == (told, why, why.startswith("as all"))
    assert one.diff_ms == after[0] - before[0]
    assert one.diff_frac == (after[0] / before[0] - 1 if before[0] and after[0] else None)


def test_communication_of_as_many_calls_holds_a_wait_and_is_not_judged(said: Listener) -> None:
    def judged_as(ms: float, kernels: float) -> tuple[bool | None, str]:
        old, new = (with_components(component("communication", *at)) for at in ((10.0, 4.0), (ms, kernels)))
        (one,) = compare_components(old, new, [], shifted(0.0))
        return one.beyond_noise, one.why

    assert judged_as(12.0, 4.0) == (None, words.WAIT)
    different, why = judged_as(10.05, 4.0)
    assert different is False
    said(why)
    assert judged_as(12.0, 6.0) == (True, words.kernels(0.5))


def test_a_component_whose_gemms_changed_says_so_and_the_largest_comes_first(said: Listener) -> None:
    rows = [component("mlp.up", 10.0, 4.0), component("norm", 10.0, 4.0)]
    grown = [component("mlp.up", 11.0, 4.0), component("norm", 5.0, 4.0)]
    reshaped = change(side(5.0), side(6.0), state="shape_changed", beyond_noise=True, differs=["size"])
    found = compare_components(with_components(*rows), with_components(*grown), [reshaped], shifted(0.0))
    said([(one.component, one.why) for one in found])
    quiet = replace(reshaped, beyond_noise=False)
    found = compare_components(with_components(*rows), with_components(*grown), [quiet], shifted(0.0))
    said(found[1].why)


def test_kernels_that_a_gemm_proves_moved_need_neither_phase_nor_time_in_common(said: Listener) -> None:
    lost = row("attention.other", "forward", (2.0, 24.0), (1.0, 12.0))
    gained = row("attention.output", "backward", (2.0, 24.0), (5.0, 36.0))
    proof = change(side(1.0), side(3.0), state="moved", component="attention.other",
                   moved_to=["attention.output", "dgrad", "backward"])  # fmt: skip
    (move,) = find_moves([lost, gained], [proof], noise=None, gpu_ms=60.0)
    assert move.parts == [["attention.other", "forward"], ["attention.output", "backward"]]
    net = move.net
    assert (net.component, net.phase) == ("attention.other → attention.output", "forward → backward")
    assert (net.before_ms, net.after_ms, net.before_kernels, net.after_kernels) == (4.0, 6.0, 48.0, 48.0)
    assert net.diff_frac == pytest.approx(0.5) and net.beyond_noise is None
    assert find_moves([lost, gained], [], noise=None, gpu_ms=60.0) == []
    said(net.why)


def test_how_near_the_times_of_what_moved_without_proof_have_to_be() -> None:
    lost = row("unattributed", "forward", (2.0, 24.0), (1.0, 12.0))
    for ms, moved in ((2.05, True), (2.06, False), (1.955, True), (1.94, False)):  # 5 % of the larger
        gained = row("norm", "forward", (1.0, 24.0), (ms, 36.0))
        assert bool(find_moves([lost, gained], [], noise=None, gpu_ms=60.0)) is moved, ms


def test_regrouped_gemms_and_rows_within_noise_are_no_move() -> None:
    rows = [
        row("mlp.up", "forward", (2.0, 24.0), (1.0, 12.0)),
        row("mlp.up", "backward", (1.0, 12.0), (2.0, 24.0)),
    ]
    assert find_moves(rows, [change(side(1.0), side(1.0))], noise=None, gpu_ms=60.0)
    regrouped = change(side(1.0), side(1.0), state="regrouped")
    assert find_moves(rows, [regrouped], noise=None, gpu_ms=60.0) == []
    assert find_moves([replace(rows[0], beyond_noise=False), rows[1]], [], noise=None, gpu_ms=60.0) == []


def test_communication_that_moved_and_takes_longer_holds_a_wait(said: Listener) -> None:
    rows = [row("communication", "forward", (2.0, 24.0), (1.0, 12.0)),
            row("communication", "backward", (1.0, 12.0), (4.0, 24.0))]  # fmt: skip
    (move,) = find_moves(rows, [], noise=shifted(0.0), gpu_ms=60.0)
    assert move.net.beyond_noise is None
    said(move.net.why)
    (small,) = find_moves(rows, [], noise=shifted(0.0), gpu_ms=6000.0)
    assert small.net.beyond_noise is False and words.WAIT not in small.net.why


# what the difference of the step is made of


def measured(mean: float, idle: float, exposed: float, gpu_ms: float, talk: float) -> Report:
    one = with_components(component("communication", talk, 4.0), component("norm", 9.0, 4.0), gpu_ms=gpu_ms)
    return replace(
        one,
        steps=[Step(at, at * 10**9, ms, 0.9) for at, ms in enumerate((mean - 1, mean + 1))],
        summary=replace(one.summary, idle_ms=idle, exposed_communication_ms=exposed),
    )


def test_causes_add_up_as_by_hand() -> None:
    """Compute kernels run 85 of 100 ms for 85 ms of GPU time, then 93 of 110 ms for 100: shares 1 and 0.93.

    GEMMs of 60 ms take 10 % more, of which streams beside them took 1 ms; others grow by 2 ms.
    """
    before, after = measured(100, 10, 5, 100, 15), measured(110, 12, 5, 116, 16)
    step = step_change([100.0], [109.0], medians=(spread([100.0]), spread([109.0])), identical=False)
    gemms = [
        change(side(10.0), side(11.0)), change(side(20.0), side(22.0)),
        change(side(30.0), side(34.0, taken=1.0)),
        change(side(5.0), side(7.0), state="shape_changed"),
        change(side(5.0), side(9.0), kind="attention"),
    ]  # fmt: skip
    found = find_causes(before, after, gemms, noise=shifted(0.1), step=step)
    weight = (1 + 0.93) / 2
    expected = {
        "idle": 2.0, "gemms_alike": weight * 6, "gemms_beside": weight * 1, "gemm_shapes": weight * 2,
        "other_kernels": weight * (15 - 6 - 1 - 2), "overlap": -0.07 * 92.5, "mean_to_median": -1.0,
    }  # fmt: skip
    assert {one.code: one.diff_ms for one in found if abs(one.diff_ms) > 1e-9} == pytest.approx(expected)
    assert [abs(one.diff_ms) for one in found] == sorted((abs(one.diff_ms) for one in found), reverse=True)
    assert [one.frac for one in found if one.frac is not None] == [0.1]


@pytest.mark.parametrize(
    ("others", "alike", "single"),
    [
        ([], 6.0, 0.0),
        ([(6.0, 6.0)], 6.0, 0.0),  # 60 of 66 ms went one way
        ([(7.0, 7.0)], 0.0, 6.0),  # of 67, less than nine in ten
        ([(6.0, 5.0)], 6.0, -1.0),
        ([(10.0, 15.0)], 7.0, 4.0),  # beyond the spread: what all changed by, and its own
    ],
)
def test_gemms_changed_alike_where_nine_tenths_of_their_time_went_one_way(
    others: list[tuple[float, float]], alike: float, single: float
) -> None:
    report = measured(100, 10, 5, 100, 15)
    step = step_change([100.0], [106.0], medians=(spread([100.0]), spread([106.0])), identical=False)
    gemms = [change(side(a), side(b)) for a, b in ((10.0, 11.0), (20.0, 22.0), (30.0, 33.0), *others)]
    found = {
        one.code: one.diff_ms for one in find_causes(report, report, gemms, noise=shifted(0.1), step=step)
    }
    assert found.get("gemms_alike", 0.0) == pytest.approx(alike)
    assert found.get("gemms_single", 0.0) == pytest.approx(single, abs=1e-9)


def test_a_difference_without_a_time_is_not_judged() -> None:
    """A difference that is not known is no difference of 0 ms, which would be less than noise."""
    (one,) = judged([replace(change(side(10.0), side(11.0)), diff_ms=None, diff_frac=None)], None, 100.0)
    assert one.beyond_noise is None
    assert diffs_ms([one, change(side(10.0), side(11.0))]) == [1.0]
