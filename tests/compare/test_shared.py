"""What is not the same of two reports, and what many pairs of files say together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.compare.test_folders import made
from tests.compare.test_judged import component, with_components
from tests.compare.test_moves import gemm
from tests.render import sample_report
from tests.render.sample_report import with_steps
from tests.said import Listener
from tracelens.comparison.changes import caveats, find_changes
from tracelens.comparison.compare import compare_reports
from tracelens.comparison.folder import compare_pairs
from tracelens.comparison.matching import File, MatchedFolders, match_folders
from tracelens.errors import InputError
from tracelens.results import CommunicationRow, Known, Lack, Report, Step
from tracelens.results.folders import FolderComparison

ONE = sample_report.full()


def trace(one: Report, **given: Any) -> Report:
    return replace(one, trace=replace(one.trace, **given))


def model(one: Report, **given: Any) -> Report:
    return replace(one, model=replace(one.model, **given))


def summary(one: Report, **given: Any) -> Report:
    return replace(one, summary=replace(one.summary, **given))


def steps(one: Report, *durations: float) -> Report:
    return replace(one, steps=[Step(at, at * 10**9, ms, 0.98) for at, ms in enumerate(durations)])


# of two reports


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (trace(ONE, generated=True), ONE),
        (ONE, trace(ONE, partial=True)),
        (summary(ONE, steps_marked=False), ONE),
        (ONE, replace(ONE, steps=[ONE.steps[0], replace(ONE.steps[1], index=7, lacks="cut_at_end")])),
        (trace(ONE, rank=3), trace(ONE, rank=None)),
        (replace(ONE, gpu=replace(ONE.gpu, name="unknown")), ONE),
        (ONE, replace(ONE, gemms=[])),
        (trace(ONE, world_size=None), ONE),
        (replace(ONE, tool_version="0.1"), replace(ONE, tool_version="0.2")),
        (model(ONE, vocab=Known(None, "")), model(ONE, vocab=Known(None, ""))),
        (ONE, model(ONE, heads=Known(None, ""), kv_heads=Known(None, ""))),
    ],
)  # fmt: skip
def test_what_a_reader_has_to_know_is_said_of_the_side_it_is_true_of(
    before: Report, after: Report, said: Listener
) -> None:
    (caveat,) = set(caveats(before, after)) - set(caveats(ONE, ONE))
    said(caveat)


def test_what_both_sides_lack_alike_is_said_of_both_but_for_experts_and_the_job() -> None:
    """A dense model has no experts, and one rank without a job no world size."""
    alone = trace(model(ONE, experts=Known(None, "")), world_size=None)
    assert caveats(alone, alone) == caveats(ONE, ONE)


@pytest.mark.parametrize(
    "durations",
    [
        (10.0, 10.0, 10.0, 15.1),
        (10.0, 10.0, 10.0, 15.0),
        (10.0, 31.0),  # of two none is the normal one
        (9.0, 10.0, 31.0),
    ],
)
def test_a_step_of_more_than_one_and_a_half_medians_is_no_normal_one(
    durations: tuple[float, ...], said: Listener
) -> None:
    after = summary(steps(ONE, *durations), step_ms=replace(ONE.summary.step_ms, median=10.0))
    before = steps(summary(ONE, step_ms=replace(ONE.summary.step_ms, median=10.0)), 10.0, 10.0, 10.0)
    assert not [one for one in caveats(before, after, times=False) if "median" in one]
    said([one for one in caveats(before, after) if "median" in one])
    unknown = summary(after, step_ms=replace(ONE.summary.step_ms, median=0.0))
    assert not [one for one in caveats(before, unknown) if "median" in one]


def named(before: Report, after: Report) -> list[str]:
    return [one.said for one in find_changes(before, after)]


@pytest.mark.parametrize(("share", "said"), [(0.95, ["0% -> 95.0%"]), (0.05, [])])
def test_a_step_that_began_to_run_in_graphs_is_named(share: float, said: list[str]) -> None:
    lack = Lack("cuda-graph", "", "", "", "low", share)
    changes = find_changes(replace(ONE, recording=[]), replace(ONE, recording=[lack]))
    found = [(one.name, f"{one.before} -> {one.after}") for one in changes]
    assert found == [("cuda_graphs", text) for text in said]


def test_changes_of_model_and_software_are_named() -> None:
    assert named(ONE, ONE) == []
    other = model(
        trace(ONE, torch_version="9.9", cuda_version="99.1"), hidden=Known(64, ""), layers=Known(2, "")
    )
    torch, cuda = ONE.trace.torch_version, ONE.trace.cuda_version
    assert named(ONE, other) == [
        "hidden 2560 -> 64", "layers 32 -> 2", f"PyTorch {torch} -> 9.9", f"CUDA {cuda} -> 99.1",
    ]  # fmt: skip
    assert named(ONE, trace(other, torch_version=None, cuda_version=None)) == named(ONE, other)[:2]
    assert named(trace(ONE, torch_version=None, cuda_version=None), other) == named(ONE, other)[:2]
    assert named(ONE, model(ONE, vocab=Known(None, ""))) == []


def test_a_transformer_on_one_side_only_is_named_where_the_other_was_seen_whole(said: Listener) -> None:
    seen = model(ONE, found="whole")
    whole = model(ONE, found="none")
    partly = replace(whole, coverage=replace(whole.coverage, opaque_frac=0.2))
    assert named(seen, partly) == named(whole, whole) == named(seen, seen) == []
    said(named(seen, whole), named(whole, seen))
    (one,) = find_changes(seen, whole)
    assert (one.before, one.after) == ("a transformer", "none")


def calls(*rows: tuple[str, str, float, str]) -> Report:
    base = ONE.communication[0]
    made: list[CommunicationRow] = [
        replace(base, collective=name, phase=phase, calls_per_step=count, purpose=purpose)  # type: ignore[arg-type]
        for name, phase, count, purpose in rows
    ]
    return replace(ONE, communication=made)


GRADIENTS = "data-parallel gradients"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([("all_reduce", "backward", 8.0, GRADIENTS)], [("all_reduce", "backward", 8.1, GRADIENTS)]),
        ([("all_reduce", "backward", 8.0, GRADIENTS)], [("all_reduce", "backward", 9.0, GRADIENTS)]),
        ([("all_reduce", "backward", 8.0, GRADIENTS)], []),
        ([("all_reduce", "optimizer", 8.0, "unknown")],
         [("all_reduce", "backward", 3.0, GRADIENTS), ("all_reduce", "optimizer", 5.0, "unknown")]),
        ([("all_reduce", "optimizer", 8.0, "unknown")], [("all_reduce", "backward", 8.0, "unknown")]),
        ([("all_reduce", "optimizer", 8.0, "unknown")],  # to two: no single move
         [("all_reduce", "backward", 4.0, "unknown"), ("all_reduce", "forward", 4.0, "unknown")]),
        ([("all_gather", "forward", 2.0, "unknown"), ("all_gather", "forward", 2.5, "unknown")],
         [("all_gather", "forward", 9.0, "unknown")]),
    ],
)  # fmt: skip
def test_what_became_of_the_calls_of_a_collective(
    before: list[tuple[str, str, float, str]], after: list[tuple[str, str, float, str]], said: Listener
) -> None:
    said(named(calls(*before), calls(*after)))


def test_a_report_without_a_step_is_refused(said: Listener) -> None:
    with pytest.raises(InputError) as error:
        compare_reports(ONE, replace(ONE, steps=[]))
    said(error.value)


def test_steps_of_two_lengths_in_other_shares_are_said_with_their_numbers(said: Listener) -> None:
    """3 short and 2 long steps before, 2 and 2 after."""
    before, after = with_steps(ONE, [58.6, 61.8, 58.5, 61.9, 58.7]), with_steps(ONE, [59.5, 62.5, 59.6, 62.4])
    found = [line for line in compare_reports(before, after).caveats if "are short" in line]
    said([line.partition(":")[0] for line in found])


# of many pairs


def job(
    before: Sequence[Report], after: Sequence[Report], *, by: Any = "rank", across: bool = False
) -> FolderComparison:
    reports = {
        Path(f"{side}{at}"): one
        for side, many in (("a", before), ("b", after))
        for at, one in enumerate(many)
    }
    pairs = [(f"rank {at}", File(Path(f"a{at}"), at), File(Path(f"b{at}"), at)) for at in range(len(before))]
    matched = MatchedFolders(by, pairs, [])
    return compare_pairs(matched, (Path("/x/a"), Path("/x/b")), lambda _, path: reports[path], across=across)


def ranks(*changes: Callable[[Report], Report]) -> list[Report]:
    return [change(made(at)) for at, change in enumerate(changes)]


def same(one: Report) -> Report:
    return one


def test_long_steps_and_caveats_say_in_how_many_files_they_are_seen(said: Listener) -> None:
    def long(one: Report) -> Report:
        return steps(one, 100.0, 100.0, 100.0, 150.1)

    def just(one: Report) -> Report:
        return steps(trace(one, partial=True), 100.0, 100.0, 100.0, 150.0)

    def two(one: Report) -> Report:
        return steps(trace(one, partial=True), 100.0, 400.0)

    found = job(ranks(same, same, same, same), ranks(long, long, just, two)).caveats
    said(found, job(ranks(just), ranks(just)).caveats)


def test_parts_components_and_the_sides_are_medians_over_the_pairs(said: Listener) -> None:
    def of(ms: float, kernels: float, idle: float, mfu: float | None) -> Callable[[Report], Report]:
        rows = [component("norm", ms, kernels)] if kernels else []
        return lambda one: summary(
            replace(with_components(*rows), trace=one.trace, steps=one.steps),
            idle_ms=idle, mfu_frac=mfu, mfu_why=None if mfu else "no shapes", gpu_busy_frac=idle / 10,
        )  # fmt: skip

    before = ranks(of(10.0, 4.0, 1.0, 0.3), of(12.0, 4.0, 2.0, 0.4), of(30.0, 4.0, 9.0, 0.8))
    after = ranks(of(15.0, 6.0, 1.0, 0.3), of(18.0, 6.0, 3.0, None), of(30.0, 4.0, 4.0, 0.8))
    found = job(before, after)
    idle = next(part for part in found.parts if part.name == "idle")
    assert (idle.before_ms, idle.after_ms) == (2.0, 3.0)
    (row,) = found.components
    assert (row.before_ms, row.after_ms, row.diff_ms, row.diff_frac) == (12.0, 18.0, 5.0, 0.5)
    assert (row.before_kernels, row.after_kernels) == (4.0, 6.0)
    assert row.beyond_noise is True
    assert (found.before.mfu_frac, found.before.mfu_why, found.before.gpu_busy_frac) == (0.4, None, 0.2)
    assert (found.after.mfu_frac, found.after.mfu_why) == (None, "no shapes")
    assert (found.before.path, found.before.files) == ("a", 3)
    said(row.why)
    one_of_two = job(before[:2], [after[0], before[1]])  # no more than half
    assert [row.beyond_noise for row in one_of_two.components] == [False]
    few = [replace(one, gemms=one.gemms[:2]) for one in before]
    more = ranks(of(13.0, 4.0, 1.0, 0.3), of(15.0, 4.0, 1.0, 0.3), of(30.0, 6.0, 1.0, 0.3))
    (row,) = job(few, [replace(one, gemms=one.gemms[:2]) for one in more]).components
    assert row.beyond_noise is None
    said(row.why)
    lacking = job(before, [after[0], after[1], of(0.0, 0.0, 1.0, 0.3)(made(2))])
    (row,) = lacking.components
    assert (row.after_ms, row.after_kernels) == (15.0, 6.0)  # of 15, 18 and none


def test_ranks_that_number_their_steps_otherwise_are_put_beside_each_other_in_order(said: Listener) -> None:
    def numbered(first: int, *durations: float) -> Callable[[Report], Report]:
        return lambda one: replace(
            one, steps=[Step(first + at, at, ms, 0.9) for at, ms in enumerate(durations)]
        )

    sides = ranks(numbered(0, 10.0, 20.0, 30.0), numbered(7, 11.0, 19.0, 31.0))
    found = job(sides, sides)
    assert found.step is not None and found.before.steps_ms == [11.0, 20.0, 31.0]
    uneven = ranks(numbered(0, 10.0, 20.0, 30.0), numbered(7, 11.0, 19.0))
    none = job(uneven, uneven)
    assert none.step is None
    said(none.why)
    half = job(sides, uneven)
    assert half.step is None and half.why == none.why  # though the one side has steps in common
    part = ranks(numbered(0, 10.0, 20.0, 30.0), numbered(1, 25.0, 19.0, 40.0))
    assert job(part, part).before.steps_ms == [25.0, 30.0]  # steps 1 and 2


@pytest.mark.parametrize(("more", "scale"), [(10.0, 1.0), (-10.0, 1.0), (0.5, 0.05), (-0.5, 0.05)])
def test_the_rank_that_waits_least_made_the_step_of_the_job_change(more: float, scale: float) -> None:
    """Rank 1 is idle for as much more, or less, as the others wait for it; rank 3 changed by nothing."""

    def waits(idle: float, exposed: float, step: float) -> Callable[[Report], Report]:
        def change(one: Report) -> Report:
            times = [ms * scale + step for ms in (100.0, 101.0, 99.0, 100.5, 100.2, 99.7)]
            return summary(
                made(one.trace.rank, steps=times),
                idle_ms=20 * scale + idle,
                exposed_communication_ms=20 * scale + exposed,
            )

        return change

    still = waits(0.0, 0.0, 0.0)
    before = ranks(still, still, still, still)
    after = ranks(waits(0.0, more, more), waits(more, 0.0, more), waits(0.0, more, more), still)
    if more < 0:
        after[3] = waits(0.0, more, more)(made(3))
    found = job(before, after)
    assert found.causes_of == "rank 1"
    assert {one.code: one.diff_ms for one in found.causes}["idle"] == pytest.approx(more)
    assert sum(one.diff_ms for one in found.causes) == pytest.approx(more)


def test_of_runs_the_causes_are_means_and_every_change_is_named_once() -> None:
    before = [made(0, factor=1 + at / 100) for at in range(4)]
    after = [summary(made(0, factor=1.3 + at / 100), idle_ms=4.0 + 2 * at) for at in range(4)]
    after[0] = trace(model(after[0], vocab=Known(50304, "")), torch_version="9.9")
    found = job(before, after, by="name")
    assert (found.kind, found.causes_of) == ("files", None)  # of another vocabulary
    after[0] = trace(after[0], torch_version="9.9")
    after = [model(one, vocab=Known(50304, "")) for one in after]
    found = job(before, after, by="name")
    assert found.kind == "runs" and found.step is not None
    assert {one.code: one.diff_ms for one in found.causes}["idle"] == pytest.approx(3.0)  # 0, 2, 4 and 6
    assert sum(one.diff_ms for one in found.causes) == pytest.approx(found.step.diff_ms)
    assert [(one.change.kind, one.pairs) for one in found.changes] == [("model", 4), ("software", 1)]


def test_runs_on_other_gpus_or_in_other_types_are_no_runs_of_one_model() -> None:
    base = [made(0), made(0)]
    assert job(base, base, by="name").kind == "runs"
    half = [made(0), replace(made(0), gemms=[replace(row, math_dtype="fp16") for row in ONE.gemms])]
    assert job(half, half, by="name").kind == "files"
    assert job(half, half, by="name").before.dtype is None and job(base, base).before.dtype == "bf16"
    other = [made(0), replace(made(0), gpu=replace(ONE.gpu, name="b200", title="B200"))]
    assert job(other, other, by="name").kind == "files"
    assert job(other, other, by="name").before.gpu_title == "B200, H100 SXM"


def test_the_noise_of_the_whole_is_known_where_more_than_half_of_the_pairs_show_theirs() -> None:
    def slower(factor: float) -> Callable[[Report], Report]:
        return lambda one: replace(
            one, gemms=[replace(row, time_ms_per_step=row.time_ms_per_step * factor) for row in one.gemms]
        )

    def few(one: Report) -> Report:
        return replace(one, gemms=one.gemms[:2])

    sides = ranks(same, same, same)
    found = job(sides, ranks(slower(1.1), slower(1.2), slower(1.4)))
    assert found.noise is not None and found.noise.mid_frac == pytest.approx(0.2)
    assert job(ranks(same, few, few), ranks(same, few, few)).noise is None
    assert job(ranks(same, few), ranks(same, few)).noise is None
    assert job(ranks(same, same, few), ranks(same, same, few)).noise is not None


def test_gemms_of_other_shape_are_changes_of_the_kernels(said: Listener) -> None:
    def with_gemm(shape: tuple[int, int, int], component: str = "mlp.up") -> Callable[[Report], Report]:
        return lambda one: replace(one, gemms=[gemm(component, "forward", shape, ms=1.0)])

    def told(after: Callable[[Report], Report]) -> list[str]:
        return [one.change.said for one in job(ranks(with_gemm((64, 64, 64))), ranks(after)).changes]

    said(
        told(with_gemm((64, 96, 64))),
        told(with_gemm((64, 64, 64), "mlp.gate")),
        told(lambda one: replace(one, gemms=[])),
    )
    (lone,) = job(ranks(lambda one: replace(one, gemms=[])), ranks(with_gemm((64, 64, 64)))).changes
    said(lone.change.said)


def test_files_of_other_ranks_make_a_pair_of_none() -> None:
    reports = {"a": made(0), "b": made(1)}
    matched = MatchedFolders("name", [("run", File(Path("a"), 0), File(Path("b"), 1))], [])
    found = compare_pairs(matched, (Path("a"), Path("b")), lambda _, path: reports[path.name])
    assert [pair.rank for pair in found.pairs] == [None]


def test_a_rank_that_stands_out_stands_beside_the_range_of_the_others() -> None:
    def idle(ms: float) -> Callable[[Report], Report]:
        return lambda one: summary(one, idle_ms=ms)

    sides = ranks(idle(4.0), idle(4.1), idle(20.0), idle(4.3), idle(4.2))
    one, *_ = [found for found in job(sides, sides).stands_out if found.part == "idle"]
    assert (one.pair, one.side, one.ms) == ("rank 2", "before", 20.0)
    assert (one.others_low_ms, one.others_high_ms) == (4.0, 4.3)


def test_across_gpus_no_time_is_left_anywhere() -> None:
    acted = model(replace(ONE, gpu=replace(ONE.gpu, name="b200"), findings=[]), vocab=Known(50304, ""))
    found = compare_reports(ONE, acted, across=True)
    assert found.before.steps_ms == found.after.steps_ms == []
    assert found.findings[0].state == "acted_on"
    assert {one.measured_ms for one in found.findings} == {None}
    still = compare_reports(ONE, trace(ONE, sha256="1"))
    assert {(one.state, one.measured_ms) for one in still.findings} == {("still_there", None)}


def test_across_gpus_the_peak_is_of_the_gemm_of_a_place_that_does_most() -> None:
    def shares(small: float, large: float, batch: int | None) -> Callable[[Report], Report]:
        rows = [
            replace(gemm("mlp.up", "forward", (64, 64, 128), ms=9.0), peak_frac=small),
            replace(gemm("mlp.up", "forward", (64, 64, 64), ms=1.0), peak_frac=large, batch=batch),
        ]
        return lambda one: replace(one, gemms=rows)

    def b200(change: Callable[[Report], Report]) -> Callable[[Report], Report]:
        return lambda one: replace(change(one), gpu=replace(one.gpu, name="b200", title="B200"))

    for batch, before, after in ((4, 0.6, 0.7), (None, 0.2, 0.3)):
        old, new = shares(0.2, 0.6, batch), b200(shares(0.3, 0.7, batch))
        (peak,) = job(ranks(old, old), ranks(new, new), across=True).peaks
        assert (peak.before_frac, peak.after_frac, peak.pairs) == (before, after, 2)


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (["run10.json", "run2.json", "a.json.gz"], ["a", "run2", "run10"]),
        (["x.pt.trace.json.gz", "y.report.json", "z.JSON"], ["x", "y", "z.JSON"]),
        ([".hidden.json", "b.json"], ["b"]),
    ],
)
def test_files_are_paired_in_the_order_of_their_numbers(
    tmp_path: Path, names: list[str], order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in names:
        (tmp_path / name).write_text("{}")
    monkeypatch.setattr("tracelens.comparison.matching.is_report", lambda _: False)
    monkeypatch.setattr("tracelens.comparison.matching.read_head", lambda _: {})
    assert [name for name, _, _ in match_folders(tmp_path, tmp_path).pairs] == order


def test_a_folder_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path, said: Listener) -> None:
    with pytest.raises(InputError) as error:
        match_folders(tmp_path / "nowhere", tmp_path)
    said(str(error.value).replace(str(tmp_path), ""))
