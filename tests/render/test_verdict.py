"""What limits a step is said first, whichever of idle, communication, memory and shapes it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_rows import gemm
from tests.render import sample_report
from tests.said import Listener
from tracelens.accounting.limits import LARGE, WORTH, Limits, StepPicture, limits, picture_of
from tracelens.numbers import ms, ms_range
from tracelens.render import verdict as words
from tracelens.render.facts import model_line
from tracelens.render.verdict import with_verdict
from tracelens.results import Check, CommunicationRow, ComponentRow, Estimate, Lack, StepTime, UnprofiledSteps
from tracelens.results.advice import CheckState
from tracelens.words import TO_TRY, Collective, Purpose

REPORT = sample_report.full()
GAIN = Estimate(1.0, 2.0, 3.0, "model")


def verdict(seen: StepPicture) -> tuple[str, str]:
    """(what is said, what stands below it)."""
    said, to_try, detail = words.verdict(seen)
    return said, " ".join(filter(None, (to_try, detail)))


def component(name: str, time_ms: float) -> ComponentRow:
    return ComponentRow(name, "forward", time_ms, int(time_ms * 1e6), 0.0, 1, None, None, time_ms, 1.0)


def collective(
    exposed_ms: float,
    name: Collective = "all_reduce",
    serves: Purpose = "data-parallel gradients",
    *,
    size: float = 1e8,
) -> CommunicationRow:
    return CommunicationRow(
        name, None, 8, serves, "op", "", "backward", "bf16", 1, 1.0, size, exposed_ms, exposed_ms, 0.0,
        exposed_ms, exposed_ms, 0.0, None, None,
    )  # fmt: skip


def picture(
    *,
    busy: float = 0.99,
    exposed_ms: float = 0.0,
    gain: Estimate | None = None,
    findings: int = 1,
    unprofiled_ms: float | None = None,
    marked: bool = True,
    **more: Any,
) -> StepPicture:
    """A step of 20 ms."""
    summary = replace(
        REPORT.summary, step_ms=StepTime(20.0, 20.0, 20.0, 3), gpu_busy_frac=busy,
        gpu_ms_per_step=20.0 * busy,
        idle_ms=20.0 * (1 - busy), exposed_communication_ms=exposed_ms, steps_marked=marked,
        unprofiled=UnprofiledSteps(median_ms=unprofiled_ms),
    )  # fmt: skip
    given: dict[str, Any] = {
        "summary": summary, "model": REPORT.model, "coverage": REPORT.coverage, "gpu": REPORT.gpu,
        "checks": REPORT.checks, "findings": REPORT.findings[:findings] if gain is not None else [],
        "at_stake": gain,
    }  # fmt: skip
    return StepPicture(**(given | more))


def test_a_report_gets_its_verdict_once_and_a_saved_one_keeps_its_own() -> None:
    bare = replace(REPORT, summary=replace(REPORT.summary, verdict="", verdict_detail=""))
    summary = with_verdict(bare).summary
    said = (summary.verdict, summary.verdict_to_try, summary.verdict_detail)
    assert said == words.verdict(picture_of(bare)) and summary.verdict
    assert with_verdict(REPORT) is REPORT


def test_shapes_come_first_where_nothing_else_is_worth_more() -> None:
    said, detail = verdict(picture(gain=GAIN))
    for figure in (ms(2.0), ms(20.0), "10.0%", "50257 to 50304"):
        assert figure in said
    assert "99.0%" in detail
    two = [replace(one, saving_ms=GAIN) for one in REPORT.findings[:2]]
    both = verdict(replace(picture(gain=GAIN), findings=two))[0]
    assert both.startswith("2 ") and ms(2.0) in both


def test_where_little_could_be_judged_it_says_what_would_show_more(said: Listener) -> None:
    checks = [Check(f"TL{at}", "made-up", "could_not_run" if at else "passed", "") for at in range(5)]
    lacks = [Lack("cuda-graph", "", "", "record an eager step", "low", 0.9)]
    seen = picture_of(replace(REPORT, checks=checks, findings=[], recording=lacks))
    said(verdict(seen)[0])
    assert lacks[0].remedy not in verdict(replace(seen, to_judge=""))[0]


def test_a_bound_says_at_most(said: Listener) -> None:
    text, _ = verdict(picture(gain=Estimate(0.0, None, 2.0, "heuristic")))
    said(text)


def test_a_bound_of_the_gemms_alone_is_not_called_one_of_the_change(said: Listener) -> None:
    """Another type shortens kernels besides GEMMs too: what is counted bounds the GEMMs' part."""
    seen = picture(gain=Estimate(0.0, None, 2.0, "heuristic"), findings=1)
    of_gemms = [replace(one, counts="gemms") for one in seen.findings]
    text, other = verdict(replace(seen, findings=of_gemms))[0], verdict(seen)[0]
    assert "GEMMs of" not in other and "not counted" not in other
    said(text)


def test_little_is_called_little() -> None:
    said, _ = verdict(picture(gain=Estimate(0.05, 0.1, 0.15, "model")))
    large, _ = verdict(picture(gain=GAIN))
    assert f"{ms(0.1)} (0.5%" in said and said.split(",")[0] != large.split(",")[0]
    rounded, _ = verdict(picture(gain=Estimate(0.15, 0.198, 0.2, "model")))
    assert "(1.0%" in rounded and rounded.split(",")[0] != said.split(",")[0]  # no less than it is written as


@pytest.mark.parametrize(
    ("seen", "first"),
    [
        (picture(gain=GAIN), "shapes"),
        (picture(gain=GAIN, busy=0.8), "idle"),  # 4 ms > 2 ms
        (picture(gain=Estimate(4, 5, 6, "model"), busy=0.8), "shapes"),
        (picture(busy=0.96), "shapes"),  # 0.8 ms is no finding of its own
        (picture(busy=0.94), "idle"),
        (picture(gain=GAIN, exposed_ms=3.0), "exposed"),
        (picture(gain=GAIN, exposed_ms=1.9), "shapes"),
        (picture(gain=GAIN, exposed_ms=3.0, busy=0.9), "exposed"),
        (picture(gain=GAIN, exposed_ms=3.0, busy=0.8), "idle"),
        (picture(gain=GAIN, components=[component("norm", 11.0)]), "memory"),
        (picture(gain=GAIN, components=[component("norm", 9.0)]), "shapes"),  # less than half
        (picture(gain=Estimate(11, 12, 13, "model"), components=[component("norm", 11.0)]), "shapes"),
        (picture(components=[component("norm", 11.0)], busy=0.9), "memory"),  # a wait of 10%
        (picture(components=[component("norm", 11.0)], busy=0.8), "memory"),  # more than the 4 ms of waiting
        (picture(components=[component("norm", 5.0)], busy=0.4), "idle"),  # 12 ms, and most of the work 5
        (picture(exposed_ms=0.6), "exposed"),  # 3%, and no shape is worth 1%
        (picture(exposed_ms=0.3), "shapes"),
        (picture(gain=Estimate(0.2, 0.3, 0.4, "model"), exposed_ms=0.6), "shapes"),
        (picture(gain=Estimate(0, None, 5.0, "heuristic"), busy=0.8), "shapes"),  # a bound counts in full
    ],
)  # fmt: skip
def test_the_rule_of_what_comes_first(seen: StepPicture, first: str) -> None:
    assert limits(seen).first == first


@pytest.mark.parametrize(
    ("more", "first"),
    [
        ({"idle_ms": LARGE * 64}, "idle"),  # as much as is large, is
        ({"idle_ms": WORTH * 64}, "idle"),
        ({"exposed_ms": WORTH * 64, "shapes_ms": WORTH * 64}, "shapes"),  # of equals the shapes
        ({"bytes_ms": 30.0}, "shapes"),  # half of the kernels is not most of them
        ({"bytes_ms": 30.0, "slow_ms": 0.5}, "memory"),
        # measured, and of shapes only a bound, which may be nothing
        ({"exposed_ms": LARGE * 64, "shapes_ms": LARGE * 128, "bounded": True}, "exposed"),
        ({"exposed_ms": LARGE * 60, "shapes_ms": LARGE * 128, "bounded": True}, "shapes"),
        ({"exposed_ms": LARGE * 64, "shapes_ms": LARGE * 128}, "shapes"),
    ],
)
def test_where_the_rule_turns(more: dict[str, Any], first: str) -> None:
    even = Limits(
        step_ms=64.0, idle_ms=0.0, exposed_ms=0.0, bytes_ms=0.0, slow_ms=0.0, gpu_ms=60.0, shapes_ms=0.0
    )
    assert replace(even, **more).first == first


def test_where_nothing_is_exposed_nobody_waits_for_a_rank_and_no_overlap_hides() -> None:
    assert not picture().waits_for_rank and picture().hideable_ms == 0.0
    assert picture(busy=0.1, exposed_ms=5.0).hideable_ms == 0.0  # 2 ms of kernels, all of them exposed
    assert picture(busy=0.5, exposed_ms=4.0).hideable_ms == pytest.approx(4.0)
    assert picture(busy=0.5, exposed_ms=6.0).hideable_ms == pytest.approx(4.0)
    nothing = replace(REPORT.summary, step_ms=StepTime(0.0, 0.0, 0.0, 1), idle_ms=0.0, gpu_busy_frac=1.0)
    assert replace(picture(), summary=nothing).exposed_frac == 0.0


def test_what_saves_waiting_is_no_finding_of_shapes() -> None:
    some = [replace(one, saving_of="wait" if at == 0 else "step") for at, one in enumerate(REPORT.findings)]
    seen = picture_of(replace(REPORT, findings=some))
    assert list(seen.waits) == some[:1] and list(seen.findings) == some[1:] and some[1:]


def test_an_idle_gpu_is_said_first_with_its_figure_and_the_shapes_second(said: Listener) -> None:
    text, detail = verdict(picture(gain=GAIN, busy=0.4))
    assert detail.startswith(TO_TRY)
    said(text, detail)
    some, _ = verdict(picture(gain=GAIN, busy=0.8))
    said(some)


def test_overlap_is_not_promised_beyond_the_compute_there_is(said: Listener) -> None:
    """Of a 20 ms step 12 ms are exposed and 6 ms compute: overlap hides 6; a late rank may be worth 12."""
    seen = picture(exposed_ms=12.0, busy=0.9, communication=[collective(12.0)])
    late = picture(exposed_ms=12.0, busy=0.9, communication=[collective(12.0, size=256.0)])
    assert seen.hideable_ms == pytest.approx(6.0) and not seen.waits_for_rank
    assert late.waits_for_rank
    said(verdict(seen)[1], verdict(late)[1])


def test_two_large_waits_are_told_together_with_what_is_left(said: Listener) -> None:
    """Idle 38%, exposed 40% of 20 ms: neither alone is the answer, and the bounds stand side by side."""
    text, detail = verdict(picture(busy=0.62, exposed_ms=8.0, communication=[collective(8.0)]))
    assert detail.startswith(TO_TRY)
    assert verdict(picture(busy=0.9, exposed_ms=8.0))[0] != text
    said(text, detail)


def test_what_most_of_the_idle_time_waits_for_is_told_first(said: Listener) -> None:
    wait = replace(
        REPORT.findings[0], title="Fetch batches ahead: 9.00 ms per step", saving_of="wait",
        evidence={"kind": "data", "wait_ms": 9.0},
    )  # fmt: skip
    text, detail = verdict(picture(busy=0.4, waits=[wait]))
    said(text, detail)
    little = replace(wait, evidence={"kind": "data", "wait_ms": 5.0})
    text, detail = verdict(picture(busy=0.4, waits=[little]))
    assert "DataLoader" not in text
    # batches are waited for whatever the launches
    said(detail)
    copies = replace(wait, evidence={"kind": "pageable", "wait_ms": 5.0})
    said(verdict(picture(busy=0.4, waits=[copies]))[1])


def test_a_larger_batch_is_no_way_to_a_shorter_step() -> None:
    assert "batch" not in " ".join(verdict(picture(busy=0.2)))


def test_exposed_communication_is_named_with_what_it_serves(said: Listener) -> None:
    rows = [collective(3.0), collective(1.5), collective(1.0, "all_gather", "unknown")]
    text, detail = verdict(picture(gain=GAIN, exposed_ms=5.5, communication=rows))
    assert detail.startswith(TO_TRY)
    said(text, detail)
    hide = verdict(picture(exposed_ms=5.5, communication=[collective(3.5), collective(2.0, size=1e5)]))[1]
    late = verdict(picture(exposed_ms=5.5, communication=[collective(3.5), collective(2.0, size=256.0)]))[1]
    assert hide.partition(",")[0] != late.partition(",")[0], "small messages wait; on a slow network, 100 kB"


def test_only_what_is_all_of_it_is_called_so() -> None:
    """A kind that takes 1 % is a line of its own below."""

    def said(*times_ms: float) -> str:
        names: tuple[Collective, ...] = ("all_gather", "all_reduce")
        kinds = zip(names, times_ms, strict=False)
        rows = [collective(time_ms, kind, "unknown") for kind, time_ms in kinds]
        sentence = verdict(picture(exposed_ms=4.0, communication=rows))[1].split(". ")[1]
        return sentence.partition("all_gather")[0]

    assert said(4.0) == said(3.9999, 0.0001) != said(3.96, 0.04) != said(3.2, 0.8)


def test_bytes_that_move_are_named_by_component_without_the_products_in_them(said: Listener) -> None:
    rows = [gemm(1, 64, 64, 64, component="loss", time_us=2000.0)]
    parts = [component("norm", 6.0), component("loss", 7.0), component("mlp.up", 5.0)]
    seen = picture(gain=GAIN, components=parts, gemms=rows)
    assert limits(seen).bytes_ms == pytest.approx(11.0)
    text, detail = verdict(seen)
    assert ms(2.0) in detail
    said(text)


def test_what_is_fused_already_is_not_to_be_fused() -> None:
    """The optimizer moves the most bytes, and its check has seen no Adam of separate operations."""
    parts = [component("optimizer", 8.0), component("norm", 6.0)]
    checks = [Check("TL129", "", "passed", ""), Check("TL131", "", "found", "")]
    open_, fused = (verdict(picture(components=parts, gain=GAIN, checks=given))[1] for given in ([], checks))
    assert "fused=True" in open_ and "fused=True" not in fused and "norm" in fused
    alone = picture(components=[component("optimizer", 12.0)], gain=GAIN, checks=checks)
    assert limits(alone).first == "memory" and TO_TRY not in verdict(alone)[1]


def test_products_bound_by_memory_or_latency_count_as_such(said: Listener) -> None:
    rows = [
        gemm(1, 64, 64, 64, time_us=7000.0, bound="latency"),
        replace(gemm(2, 64, 64, 64, time_us=4000.0, bound="memory"), bytes=1e10),
        gemm(3, 64, 64, 64, time_us=8000.0, bound="compute"),
    ]
    text, _ = verdict(picture(gain=GAIN, gemms=rows))
    said(text)


def test_what_else_is_large_stands_in_the_second_sentence(said: Listener) -> None:
    _, detail = verdict(picture(gain=Estimate(4, 5, 6, "model"), busy=0.9, exposed_ms=1.5))
    said(detail)


def test_idle_time_without_the_profiler_is_a_share_of_a_step_without_it() -> None:
    """Of 20 ms the GPU works 12; a step without the profiler takes 16: 4 ms are a quarter of that."""
    norms = [component("norm", 11.0)]
    _, detail = verdict(picture(busy=0.6, unprofiled_ms=16.0, components=norms, gain=GAIN))
    assert "25.0%" in detail and "without the profiler" in detail


def test_waits_under_the_profiler_are_no_part_of_idle_time_without_it(said: Listener) -> None:
    """Idle 12 of 20 ms with the profiler, 4 of 12 without: 3 ms at graph breaks are of the 12."""
    wait = replace(REPORT.findings[0], saving_of="wait", evidence={"kind": "break", "wait_ms": 3.0})
    text, detail = verdict(picture(busy=0.4, unprofiled_ms=12.0, waits=[wait]))
    assert ms(4.0) in detail and ms(3.0) in detail
    assert "CPU-bound" in text
    longer = replace(wait, evidence={"kind": "break", "wait_ms": 9.0})
    text, detail = verdict(picture(busy=0.4, unprofiled_ms=12.0, waits=[longer]))
    assert ms(4.0) in detail, "no more than a step without the profiler idles"
    said(text)


def test_idle_that_only_the_profiler_makes_is_not_the_hosts_pace(said: Listener) -> None:
    def text(unprofiled_ms: float | None) -> tuple[str, str]:
        return verdict(picture(busy=0.4, unprofiled_ms=unprofiled_ms))

    said(text(None)[0], text(19.0)[0])
    caused, other = text(9.0)[0], text(5.0)[0]
    assert "CPU-bound" not in caused + other and caused.partition(": ")[0] != other.partition(": ")[0]
    said(caused, other)


def test_a_trace_without_marked_steps_is_not_called_idle(said: Listener) -> None:
    text, detail = verdict(picture(busy=0.01, marked=False))
    assert "prof.step()" in detail
    said(text)
    forward = verdict(picture(busy=0.01, marked=False, components=[component("norm", 1.0)]))[1]
    assert "prof.step()" in forward and "tracelens capture" not in forward, "a step ends with an optimizer"
    assert "start_profile" in verdict(picture(busy=0.01, marked=False, served=True))[1]
    busy = verdict(picture(gain=GAIN, marked=False))
    said(busy[0], busy[1])


OPEN = replace(REPORT.coverage, component_frac=0.3)


@pytest.mark.parametrize(
    "more",
    [
        {"model": replace(REPORT.model, found="none")},
        {"model": replace(REPORT.model, found="none"), "coverage": OPEN},
        {"model": replace(REPORT.model, found="parts"), "coverage": OPEN},
        {"coverage": OPEN},
        {"gpu": replace(REPORT.gpu, vendor="amd")},
    ],
)
def test_what_limits_the_step_comes_before_what_cannot_be_judged(
    more: dict[str, Any], said: Listener
) -> None:
    alone, _ = verdict(picture(**more))
    text, detail = verdict(picture(busy=0.5, **more))
    assert alone in detail
    said(text)
    shown, detail = verdict(picture(gain=GAIN, **more))
    assert shown.startswith("1 change saves") and alone in detail


def test_absence_is_said_only_where_everything_was_seen() -> None:
    heads = {
        (found, complete): verdict(
            picture(model=replace(REPORT.model, found=found), coverage=REPORT.coverage if complete else OPEN)
        )
        for found in ("none", "parts")
        for complete in (True, False)
    }
    assert len({head for head, _ in heads.values()}) == 3  # of parts, the first sentence is the same
    for (found, complete), (head, detail) in heads.items():
        assert ("not a transformer" in head) == (found == "none" and complete)
        assert ("70.0%" in detail) == (not complete)  # what could hold it
    seen = replace(REPORT.coverage, component_frac=0.1, other_frac=0.9)
    assert seen.complete and not replace(seen, opaque_frac=0.06).complete


def test_memory_is_not_claimed_where_components_are_not_known() -> None:
    parts = [component("norm", 15.0)]
    seen = picture(coverage=replace(REPORT.coverage, component_frac=0.3), components=parts)
    assert limits(seen).memory_ms == 0


def test_a_title_that_begins_with_a_name_keeps_its_capitals() -> None:
    finding = replace(REPORT.findings[0], title="TF32 for fp32 GEMMs.")
    assert verdict(replace(picture(gain=GAIN), findings=[finding]))[0].endswith(": TF32 for fp32 GEMMs.")


def test_a_range_so_wide_that_its_middle_misleads_is_told() -> None:
    said, _ = verdict(picture(gain=Estimate(0.2, 2.0, 2.5, "model")))
    assert "(10.0%, predicted, range 0.20–2.50 ms): pad" in said


def test_graphs_are_not_advised_where_the_step_launches_them() -> None:
    eager, graphs = (verdict(picture(busy=0.5, graph_frac=share))[1] for share in (0.0, 0.25))
    assert "CUDA graphs" in eager and "CUDA graphs" not in graphs and "CPU" in graphs


def test_idle_time_is_of_the_mean_step_where_that_is_not_the_median(said: Listener) -> None:
    seen = picture(busy=0.5)
    summary = replace(seen.summary, idle_ms=15.0)  # of steps of 30 ms in the mean, 20 ms in the median
    text, _ = verdict(replace(seen, summary=summary))
    said(text)


def test_a_trace_that_few_checks_could_judge_is_not_called_good(said: Listener) -> None:
    states: tuple[CheckState, ...] = ("passed", "could_not_run", "could_not_run")
    checks = [replace(REPORT.checks[0], state=state) for state in states]
    text, _ = verdict(picture(checks=checks))
    said(text)


def test_a_finding_that_is_only_bounded_is_not_counted_among_the_predicted() -> None:
    bounded = replace(REPORT.findings[1], saving_ms=Estimate(0.0, None, 5.0, "heuristic"))
    predicted = replace(REPORT.findings[0], saving_ms=GAIN)
    alone, _ = verdict(picture(gain=GAIN, findings=1))
    said, _ = verdict(replace(picture(gain=GAIN), findings=[bounded, predicted], open_ms=5.0))
    assert said.startswith(alone) and ms(5.0) in said.removeprefix(alone)


def test_without_steps_it_is_said_how_much_of_the_work_is_waiting_for_other_ranks() -> None:
    """Two ranks of a MoE: 15.0 of the 15.2 ms that the GPU works are NCCL kernels that wait."""
    said, _ = verdict(picture(busy=0.64, exposed_ms=12.6, marked=False))
    assert ms(12.6) in said
    alone, _ = verdict(picture(busy=0.64, exposed_ms=0.5, marked=False))
    assert ms(0.5) not in alone


def test_steps_that_differ_are_not_told_by_their_median_alone() -> None:
    def detail(low: float, high: float) -> str:
        seen = picture(gain=GAIN)
        return verdict(replace(seen, summary=replace(seen.summary, step_ms=StepTime(20.0, low, high, 3))))[1]

    assert ms_range(9.0, 83.0) in detail(9.0, 83.0)
    assert detail(15.0, 25.0) == detail(20.0, 20.0)


def test_only_what_can_be_attention_keeps_it_from_being_absent() -> None:
    """An MLP whose products, relu and sums are unattributed: operators that hold no attention."""
    open_ = replace(REPORT.coverage, component_frac=0.24, other_frac=0.0, opaque_frac=0.0)
    none = replace(REPORT.model, found="none")
    seen = {
        frac: verdict(picture(model=none, coverage=replace(open_, attention_open_frac=frac)))
        for frac in (0.0, 0.76, None)
    }
    assert seen[0.0] not in (seen[0.76], seen[None])


def test_an_optimizer_alone_is_not_said_to_be_no_transformer(said: Listener) -> None:
    """A trace of optimizer.step() by itself, as when a custom optimizer is looked at."""
    rows = [replace(REPORT.components[0], component=one) for one in ("optimizer", "memory")]
    none = replace(REPORT.model, found="none")
    alone, mixed = (
        verdict(picture(model=none, components=[*rows, *more]))[0] for more in ([], REPORT.components[:1])
    )
    assert alone != mixed
    said(alone)
    assert model_line(replace(REPORT, model=none, components=rows)) != ["No transformer"]


@pytest.mark.parametrize(("colon", "brackets"), [(": its copies take 1 ms", 1), ("", 1)])
def test_a_new_model_to_train_stands_in_no_second_brackets(colon: str, brackets: int) -> None:
    finding = replace(REPORT.findings[0], title=f"Pad ffn{colon}", effort="retrain")
    said = words.lower(words.titled(finding))
    assert said.count("(") == said.count(")") == brackets
