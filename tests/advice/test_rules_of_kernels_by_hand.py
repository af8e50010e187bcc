"""Rules about types, kernels, copies and messages: thresholds, lines and shares, each counted by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_answers import only, outcome_of, says_why, trial_of
from tests.advice.advice_facts import other
from tests.advice.advice_messages import message
from tests.advice.advice_rows import H100, attention, cutlass, facts, gemm, model
from tests.advice.test_advice_compiled_padding import pad
from tests.said import Listener
from tracelens.errors import UsageError
from tracelens.results import Clock, Estimate, GemmRow, HostWait, OtherRow, StepPace
from tracelens.results.row_sizes import AttentionDims
from tracelens.rules import RULES, StepFacts
from tracelens.rules import attention_backend as backend
from tracelens.rules import compiled_padding as padding
from tracelens.rules import misaligned_views as views
from tracelens.rules import odd_sequence as sequences
from tracelens.rules import small_collectives as small
from tracelens.rules import tensor_cores as types
from tracelens.rules.align_dimensions import _fix as lines_of
from tracelens.rules.align_dimensions import _simulate, _title
from tracelens.rules.catalog import explain
from tracelens.rules.collectives_in_line import CollectivesInLine
from tracelens.rules.engine.bounds import Bound
from tracelens.rules.engine.trials import Trial
from tracelens.rules.evidence.attention_kernels import Kept
from tracelens.rules.evidence.dimensions import Target
from tracelens.rules.evidence.misfits import Case
from tracelens.rules.evidence.precision import Precision
from tracelens.rules.evidence.views import View, fix_of
from tracelens.rules.expert_imbalance import ExpertImbalance
from tracelens.rules.falling_clock import FallingClock, _doubts, _sampled
from tracelens.rules.fp8 import Fp8, _gain, _misfits
from tracelens.rules.host_waits import HostWaits
from tracelens.rules.unaligned_payload import UnalignedPayload
from tracelens.rules.unfused_optimizer import UnfusedOptimizer
from tracelens.step.alignment import Misfit

BARE = replace(H100, gemm_floor_us=0.0, bandwidth_gbps=None)


# TL125: kernels of attention


def flex(forward_ms: float, backward_ms: float, ahead: float = 100.0, back: float = 100.0) -> StepFacts:
    rows = [
        attention(number, 64, kernel="flex", time_us=1e3 * time / calls, calls=calls, phase=phase)
        for number, time, calls, phase in (
            (1, forward_ms, ahead, "forward"), (2, backward_ms, back, "backward"),
        )
    ]  # fmt: skip
    rows = [replace(row, kernel_family="flex") for row in rows]
    return facts(*rows, step_ms=100.0)


def test_a_backward_of_three_times_its_forward_has_blocks_to_tune(said: Listener) -> None:
    """12 ms against 2.5 x 4 ms: 2 ms of 12."""
    found = only(backend.AttentionBackend(), flex(4.0, 12.0))
    assert [bound.row.id for bound in found.bounds] == ["g2"] and found.bounds[0].ms == pytest.approx(2.0)
    assert found.evidence == {"backward_over_forward": 3.0} and found.parameter_delta == 0
    assert (found.why, found.confidence, found.effort) == ("blocks", "low", "code")
    said(found.title, found.saw)
    for step in (flex(4.0, 11.99), flex(4.0, 12.0, back=98.9), flex(4.0, 12.0, ahead=98.9)):
        assert outcome_of(backend.AttentionBackend().look, step).state == "passed"
    assert only(backend.AttentionBackend(), flex(4.0, 12.0, back=99.5))
    for rows in (flex(4.0, 12.0).gemms[:1], flex(4.0, 12.0).gemms[1:]):
        assert outcome_of(backend.AttentionBackend().look, facts(*rows)).state == "passed"


@pytest.mark.parametrize(
    ("mask", "why", "confidence", "line"),
    [(None, "", "medium", "EFFICIENT_ATTENTION"), ("mask", "mask", "low", "attn_mask=mask")],
)
def test_a_mask_and_nothing_have_remedies_of_their_own(
    mask: str | None, why: str, confidence: str, line: str, monkeypatch: pytest.MonkeyPatch, said: Listener
) -> None:
    """Half of the operations of 1 ms of attention are the floor of what can go."""
    monkeypatch.setattr(backend, "saving_of", lambda *_: (Estimate(0.0, 0.1, 0.2, "model"), ("a", "b")))
    row = attention(1, 64, time_us=1000.0, calls=1.0, shape_note="32 heads")
    (found,) = backend._candidates(facts(row, gpu=BARE), Kept((row, replace(row, id="g2")), mask, ""))
    assert (found.why, found.confidence, found.how) == (why, confidence, "a b") and line in found.fix[0]
    assert found.bounds[0].ms == pytest.approx(1 - 2.0 * 32 * 2048 * 2048 * 64 / 989e9)
    assert len(found.caveats) == (2 if mask else 1)
    assert found.evidence == {"mask": mask, "sizes": "32 heads"} and found.parameter_delta == 0
    said(found.title, found.saw)
    monkeypatch.setattr(backend, "saving_of", lambda *_: "not predicted")
    assert backend._candidates(facts(row), Kept((row,), mask, "")) == []


# TL111: precision


def case(*rows: GemmRow, mixed: bool = False, now: Any = "fp32") -> Precision:
    return Precision(list(rows), now, ("tf32", "bf16"), mixed)


def single(number: int = 1, **more: Any) -> GemmRow:
    return gemm(number, 4096, 4096, 4096, **({"dtype": "fp32", "tensor_core": "eligible_unused"} | more))


@pytest.mark.parametrize(
    ("rows", "now"),
    [
        ([single()], "fp32"),
        ([single(tensor_core="used")], "fp32"),
        ([single(tensor_core="used", math_dtype="tf32")], "fp32"),
        ([single(), single(2), single(3, tensor_core="used", math_dtype="tf32")], "fp32"),
        ([single()], "fp64"),
    ],
)  # fmt: skip
def test_what_ran_where(rows: list[GemmRow], now: str, said: Listener) -> None:
    text = types._saw(facts(*rows), case(*rows, now=now), "tf32", ["mlp.up", "other", "unattributed"])
    assert text.startswith(f"{len(rows)} GEMM shape")
    said(text)


@pytest.mark.parametrize(
    ("target", "mixed", "now", "first"),
    [
        ("tf32", False, "fp32", "- torch.set"),
        ("bf16", False, "fp32", "+ with torch.autocast"),
        ("bf16", True, "fp32", "+ with torch.autocast"),
        ("fp32", False, "fp64", "- torch.from_numpy"),
    ],
)  # fmt: skip
def test_titles_and_lines_of_another_precision(
    target: str, mixed: bool, now: str, first: str, said: Listener
) -> None:
    one = case(single(), mixed=mixed, now=now)
    said(types._title(one, target, trains=False))
    lines = types._fix(one, target, trains=False)
    assert lines[0].startswith(first) and len(lines) == (1 if target == "bf16" else 2)
    said(lines[0], types._fix(one, target, trains=True)[0])
    said(types._title(case(single()), "fp16", trains=True))


@pytest.mark.parametrize(
    ("target", "given", "number"),
    [
        ("tf32", {"mixed": True}, 1), ("bf16", {"mixed": True}, 2), ("bf16", {}, 2), ("tf32", {}, 1),
    ],
)  # fmt: skip
def test_caveats_of_another_precision(
    target: str, given: dict[str, Any], number: int, said: Listener
) -> None:
    step, logits = facts(single(), step_ms=100.0), single(component="logits")
    plain = types._caveats(step, case(single(), **given), target, {})
    assert len(plain) == number
    with_logits = types._caveats(step, case(logits, **given), target, {})
    assert len(with_logits) - len(plain) == bool(given)
    optimizer = types._caveats(step, case(single(component="optimizer", time_us=3000.0), **given), target, {})
    assert len(optimizer) == number + 1
    said(optimizer[1])


def test_the_other_precisions_savings_are_said(said: Listener) -> None:
    def caveats(mid: float | None, low: float, **given: Any) -> list[str]:
        found = {"tf32": Estimate(0.0, 1.0, 2.0, "model"), "bf16": Estimate(low, mid, 9.0, "model")}
        return types._caveats(
            facts(single(), step_ms=100.0), case(single(), **given), "tf32", found | {"fp16": None}
        )[1:]

    assert len(caveats(4.0, 1.0)) == len(caveats(4.0, -9.0)) == 1
    assert caveats(None, 1.0) == caveats(4.0, 1.0, mixed=True) == caveats(4.0, 1.0, now="fp64") == []
    said(caveats(4.0, 1.0), caveats(4.0, -9.0))


@pytest.mark.parametrize(
    ("savings", "given", "target", "confidence", "effort", "counts"),
    [
        ({"tf32": 3.0, "bf16": 4.0}, {}, "tf32", "high", "config", "all"),
        ({"tf32": 1.0, "bf16": 4.0}, {}, "bf16", "medium", "code", "gemms"),
        ({"bf16": 4.0}, {"mixed": True}, "bf16", "high", "code", "all"),
        ({"fp32": 4.0}, {"now": "fp64"}, "fp32", "medium", "code", "all"),
    ],
)
def test_one_change_of_precision(
    savings: dict[str, float], given: dict[str, Any], target: str, confidence: str, effort: str, counts: str,
    monkeypatch: pytest.MonkeyPatch, said: Listener,
) -> None:  # fmt: skip
    found = {name: Estimate(0.5, mid, 5.0, "model") for name, mid in savings.items()}
    monkeypatch.setattr(Precision, "savings", lambda *_: found)
    monkeypatch.setattr(Precision, "arithmetic", lambda *_: "counted")
    one = types._candidate(facts(single(), gpu=BARE, step_ms=100.0), case(single(), **given))
    assert one.change == {"precision": [given.get("now", "fp32"), target]}
    assert (one.confidence, one.effort, one.counts) == (confidence, effort, counts)
    assert one.saving == found[target] and one.how == "counted" and one.parameter_delta == 0
    assert one.evidence["predicted_ms"] == savings
    said(one.name)
    assert one.bounds[0].ms == pytest.approx(max(0.0, 2.0 - 2 * 4096**3 / H100.peak_tflops[target] / 1e9))
    monkeypatch.setattr(Precision, "savings", lambda *_: dict.fromkeys(savings))
    unknown = types._candidate(facts(single(), gpu=BARE, step_ms=100.0), case(single(), **given))
    assert unknown.saving is None and unknown.how == "" and unknown.evidence["predicted_ms"] == {}


# TL128: small collectives

SMALL = small.SmallCollectives()


def sent(calls: float = 100.0, size: float | None = 1e6, **more: Any) -> Any:
    given = {"purpose": "data-parallel gradients", "group_size": 8, "exposed": 8.0, "time": 9.0} | more
    return message("all_reduce", calls_per_step=calls, bytes_per_call=size, **given)


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float, int]]:
    """20 µs to start a call and 1 µs for each MB; nothing known of two ranks."""
    asked: list[tuple[int, float, int]] = []

    def us(_gpu: str, _name: str, ranks: int, size: float, *, in_node: int) -> float | None:
        asked.append((ranks, size, in_node))
        return None if ranks == 2 else 20.0 + size / 1e6

    monkeypatch.setattr(small, "exchange_us", us)
    monkeypatch.setattr(small, "node_size", lambda _: 8)
    return asked


def test_buckets_of_25_mb_start_less_often(paced: list[tuple[int, float, int]], said: Listener) -> None:
    """100 calls of 1 MB are 4 buckets of 26.2 MB: 96 starts of 20 µs less."""
    found = only(SMALL, facts(step_ms=100.0, communication=[sent()]))
    assert found.elsewhere_ms == pytest.approx(1.92) and paced == [(8, 1e6, 8), (8, 25e6, 8)]
    assert found.change == {"bucket_mb": [0.954, 25]}
    assert found.evidence == {
        "messages": [
            {"collective": "all_reduce", "calls": 100.0, "bytes": 1e6, "saved_ms": pytest.approx(1.92)}
        ]
    }
    assert found.parameter_delta == 0
    said(found.title, found.saw, found.how, found.bound_of)
    hidden = only(SMALL, facts(step_ms=100.0, communication=[sent(exposed=0.5)]))
    assert hidden.elsewhere_ms == 0.5
    said(hidden.how)
    none = only(SMALL, facts(step_ms=100.0, communication=[sent(exposed=0.0)]))
    assert none.elsewhere_ms == 0.0
    said(none.how)


def test_kinds_of_messages_are_added_up(paced: list[tuple[int, float, int]], said: Listener) -> None:
    more = [sent(), sent(50.0, 2e6, purpose="optimizer shards"), sent(100.0, 1e6, group_size=2),
            sent(100.0, 1e6, group_size=16), sent(7.0, 1e6), sent(9.0, None),
            sent(9.0, 1e6, group_size=None)]  # fmt: skip
    found = only(SMALL, facts(step_ms=100.0, communication=more))
    assert [one["calls"] for one in found.evidence["messages"]] == [100.0, 50.0]
    assert found.elsewhere_ms == pytest.approx(1.92 + 0.92)
    said(found.saw, found.title)
    for rows, state in (
        ([more[2]], "could_not_run"), ([more[3]], "could_not_run"), ([more[4]], "passed"),
        ([more[5]], "could_not_run"), ([more[6]], "could_not_run"), ([sent(0.0)], "not_applicable"),
        ([sent(0.5)], "passed"),
        ([sent(8.0)], "found"), ([sent(7.9)], "passed"), ([sent(8.0, 4 << 20)], "passed"),
    ):  # fmt: skip
        step = facts(step_ms=100.0, communication=rows)
        if state == "found":
            # 8 MB in one bucket: 7 starts of 20 µs
            assert only(SMALL, step).elsewhere_ms == pytest.approx(0.14)
        else:
            assert outcome_of(SMALL.look, step).state == state


# TL120, TL126 and others of messages


def test_exchanges_in_line_are_summed_by_time(said: Listener) -> None:
    rows = [message("all_reduce", purpose="data-parallel gradients", in_line_ms_per_step=2.0),
            message("all_gather", purpose="FSDP parameter gather", in_line_ms_per_step=3.0),
            message("reduce_scatter", purpose="FSDP gradient scatter", in_line_ms_per_step=0.0)]  # fmt: skip
    found = only(CollectivesInLine(), facts(step_ms=100.0, communication=rows))
    assert found.elsewhere_ms == 5.0
    assert found.fix[0].startswith("+ block.set_modules_to_forward_prefetch") and found.parameter_delta == 0
    assert [one["in_line_ms"] for one in found.evidence["collectives"]] == [3.0, 2.0]
    said(found.title, found.saw)
    first = only(CollectivesInLine(), facts(step_ms=100.0, communication=rows[:1]))
    assert first.fix[0] == "- dist.all_reduce(...)"
    assert outcome_of(CollectivesInLine().look, facts(communication=rows[2:])).state == "passed"
    assert outcome_of(CollectivesInLine().look, facts(communication=[message()])).state == "not_applicable"


def test_the_fullest_rank_above_the_mean(said: Listener) -> None:
    """A quarter more than the mean: a fifth of its 2 + 3 ms is above an even load."""
    given: dict[str, Any] = {"purpose": "expert all-to-all", "exposed": 1.5}
    rows = [message("all_to_all", uneven_frac=None, group_size=4, **given),
            message("all_to_all", uneven_frac=0.25, group_size=8, bytes_per_call=1e6, **given)]  # fmt: skip
    own = gemm(1, 64, 64, 64, component="moe.experts")
    found, text = ExpertImbalance().look(facts(own, step_ms=100.0, communication=rows))
    if not found:
        pytest.fail(text)
    (one,) = found
    assert one.bounds[0].ms == pytest.approx(0.4) and one.elsewhere_ms == pytest.approx(0.6)
    assert one.parameter_delta == 0
    assert one.evidence == {"uneven_frac": 0.25, "exposed_all_to_all_ms": 3.0}
    said(one.title, one.saw)


@pytest.mark.parametrize(("share", "then"), [(1, 16), (8, 16), (17, 32), (1_000_008, 1_000_016)])
def test_shares_are_padded_to_16_bytes(share: int, then: int) -> None:
    row = message("all_gather", group_size=8, bytes_per_call=8e6,
                  unaligned_bytes=share, unaligned_ms_per_step=2.0)  # fmt: skip
    found = only(UnalignedPayload(), facts(step_ms=100.0, communication=[row]))
    assert found.change == {"share_bytes": [share, then]} and found.elsewhere_ms == 2.0
    assert found.parameter_delta == 0


# TL116: padding by torch.compile


def padded(**more: Any) -> GemmRow:
    given = {"component": "logits", "padded_from": {"n": 50257}, "names": ("b*s", "v", "h")} | more
    return gemm(1, 8192, 50264, 768, **given)


@pytest.mark.parametrize(
    ("row", "mine"),
    [
        (pad(), True), (pad(dims=(50264, 768)), True), (pad(dims=(8192, 768)), True),
        (pad(dims=(768, 8192)), True), (pad(dims=(4, 768, 50264)), True), (pad(dims=(8192, 50264)), False),
        (pad(dims=(768, 50257)), False), (pad(dims=None), True), (pad(dims=None, component="mlp.up"), False),
        (pad(dims=(3, 3)), False),
    ],
)  # fmt: skip
def test_padding_kernels_are_those_of_the_operands(row: OtherRow, mine: bool) -> None:
    assert padding._of([padded()], [row]) == ([row] if mine else [])
    assert padding._of([padded(), replace(padded(id="g2"), m=None)], [row]) == ([row] if mine else [])
    assert padding._of([replace(padded(), m=None)], [row]) == ([row] if row.dims is None and mine else [])


def test_copies_of_padding_are_counted_by_what_else_they_do(said: Listener) -> None:
    """0.1 ms that pads, 0.3 that also turns its tensor, 0.5 that also converts."""
    rows = [pad(1), pad(2, op="triton_poi_fused_mm_t_1", time_us=150.0),
            pad(3, dtype_from="fp32", time_us=250.0)]  # fmt: skip
    found = padding._candidate(facts(padded(), step_ms=100.0), [padded()], rows)
    saving = found.saving
    assert saving is not None and (saving.low, saving.mid, saving.high) == pytest.approx((0.1, 0.4, 0.9))
    assert found.kernels == {"o1": 0.1, "o2": 0.3, "o3": 0.5} and found.effort == "config"
    said(found.how, found.saw)
    plain = padding._candidate(facts(padded(), step_ms=100.0), [padded()], [pad(calls=1.0)])
    said(plain.how, plain.saw)
    ffn = padded(names=("b*s", "f", "h"), component="mlp.up")
    two = padding._candidate(facts(padded(), ffn, step_ms=100.0), [padded(), ffn], [pad()])
    assert two.fix == ["- vocab_size = 50257", "+ vocab_size = 50264"] and two.effort == "config"
    wide = replace(ffn, padded_from={"n": 50257, "k": 767})
    several = padding._candidate(facts(padded(), wide, step_ms=100.0), [padded(), wide], [pad()])
    assert several.fix[-1] == "+ vocab_size = 50264" and len(several.fix) == 4
    assert several.effort == "retrain" and several.fix[1].endswith(" = 768")


def test_without_padding_the_reason_is_given(said: Listener) -> None:
    rule = padding.CompiledPadding()
    plain, blind = gemm(1, 64, 64, 64), gemm(2, None, None, None)
    assert outcome_of(rule.look, facts(blind)).state == "could_not_run"
    for rows, others in (
        ([plain, blind], []),
        ([], []),
        ([plain], [other(1, "elementwise", op="triton_poi_0")]),
        ([plain], [pad()]),
        ([plain], [pad(op="aten::pad")]),
    ):
        found = outcome_of(rule.look, facts(*rows, others=others))
        assert found.absent
        said(found.why)


# TL129: optimizers


def test_a_fused_adam_moves_seven_tensors_where_addcdiv_moves_four(said: Listener) -> None:
    """0.4 ms of addcdiv are 0.7 ms fused; 0.9 ms now."""
    rows = [
        other(at, "elementwise", component="optimizer", op=f"aten::{name}", time_us=us, calls=calls)
        for at, name, us, calls in (
            (1, "_foreach_addcdiv_", 200.0, 2), (2, "_foreach_mul_", 500.0, 1), (3, "zero_", 900.0, 1),
            *((at, f"_foreach_{name}", 0.0, 1) for at, name in enumerate(("addcmul_", "sqrt", "lerp_"), 4)),
        )
    ]  # fmt: skip
    step = facts(gemm(1, 64, 64, 64), others=rows, step_ms=100.0)
    found = only(UnfusedOptimizer(), step)
    assert found.kernels == pytest.approx(
        {"o1": 0.4 * 2 / 9, "o2": 0.5 * 2 / 9, "o4": 0.0, "o5": 0.0, "o6": 0.0}
    )
    assert found.evidence == {
        "operations": ["addcdiv_", "addcmul_", "lerp_", "mul_", "sqrt"],
        "fused_ms": pytest.approx(0.7),
    }
    assert (found.parameter_delta, found.counts, found.components) == (0, "kernels", ["optimizer"])
    said(found.how, found.title, found.saw)
    half, little = replace(rows[0], time_ms_per_step=0.5), replace(rows[1], time_ms_per_step=0.375)
    assert UnfusedOptimizer().look(replace(step, others=[half, little, *rows[3:]])) == (
        [],
        "",
    )  # 0.875 ms as fused


# TL115: sizes for fp8


@pytest.mark.parametrize(
    ("row", "letters"),
    [
        (gemm(1, 8190, 10912, 4096), {}), (gemm(1, 8190, 10920, 4096), {"n": 10920}),
        (gemm(1, 64, 64, 40), {"k": 40}), (gemm(1, 40, 24, 8, role="wgrad"), {"m": 40, "n": 24, "k": 8}),
        (gemm(1, None, None, None, role="wgrad"), {}),
    ],
)  # fmt: skip
def test_sizes_of_an_operand_in_fp8_are_multiples_of_16(row: GemmRow, letters: dict[str, int]) -> None:
    assert _misfits(row) == letters


def test_what_fp8_leaves_of_a_gemm() -> None:
    """1 TFLOP at 1,979 TFLOP/s, and 5 bytes an element of two operands at 3,350 GB/s by nine tenths."""
    row = gemm(1, 1000, 1000, 2000, calls=3.0, time_us=100.0, batch=2)
    gpu = replace(H100, bandwidth_gbps=None)
    product_ms = 3 * (2 * 2 * 1000 * 1000 * 2000) / 1979e9
    assert _gain(facts(row, gpu=gpu), row).ms == pytest.approx(0.3 - product_ms)
    casts = 0.3 - product_ms - _gain(facts(row), row).ms
    assert casts == pytest.approx(3 * 5 * 2 * (1000 * 2000 + 1000 * 2000) / 3350e6, rel=0.12)
    assert _gain(facts(row), replace(row, time_ms_per_step=1e-4)).ms == 0.0
    for none in (replace(row, flops=None), replace(row, m=None)):
        assert _gain(facts(row), none) == Bound(none, 0.0)
    assert _gain(facts(row, gpu=replace(H100, peak_tflops={})), row).ms == 0.0


def test_one_parameter_of_one_size_is_a_change(said: Listener) -> None:
    fp8 = gemm(1, 4096, 4096, 4096, dtype="fp8", component="attention.qkv")
    up = gemm(2, 4096, 1000, 4096, names=("b*s", "f", "h"), component="mlp.up")
    dims = model(hidden=4096, ffn=1000)
    one = only(Fp8(), facts(fp8, up, dims=dims, step_ms=100.0))
    assert one.change == {"ffn": [1000, 1008]} and one.effort == "retrain"
    assert one.fix[0] == "- 1000" and one.fix[1].startswith("+ 1008 ")
    said(one.title, one.fix)
    more = gemm(3, 4096, 1000, 8, names=("b*s", "f", None), component="mlp.up")
    two = only(Fp8(), facts(fp8, up, more, dims=dims, step_ms=100.0))
    assert two.change == {} and two.evidence == {"sizes": [8, 1000]} and two.fix[0] == "- 8"
    said(two.title)
    bare = only(Fp8(), facts(fp8, replace(up, n_expr=None), dims=model(hidden=4096), step_ms=100.0))
    assert bare.change == {} and bare.effort == "code"
    said(bare.title)


# TL121: the clock


def test_samples_of_clock_and_power(said: Listener) -> None:
    def pace(step: int, value: float, mhz: float | None = None, watt: float | None = None) -> StepPace:
        return StepPace(step, value, value >= 1.03, mhz, watt)

    assert _sampled([pace(1, 1.0)]) == ""
    # 20 % longer: a clock at least 10 % lower explains half of it
    assert _doubts(pace(1, 1.0, 1980.0), pace(2, 1.2, 1800.0)) == []
    said(
        _sampled([pace(1, 1.0, 1980.0, 500.0), pace(2, 1.1, 1800.0)]),
        _sampled([pace(1, 1.0, 1980.4), pace(2, 1.1, 1979.6)]),
    )
    (other_process,) = _doubts(pace(1, 1.0, 1980.0), pace(2, 1.2, 1801.0))
    said(other_process)
    for pair in ((pace(1, 1.0), pace(2, 1.2, 1800.0)), (pace(1, 1.0, 1980.0), pace(2, 1.2))):
        said(_doubts(*pair)[0])


def test_rows_of_a_lower_clock_and_its_range(said: Listener) -> None:
    clock = Clock([StepPace(3, 1.0, False), StepPace(4, 1.1, True)], 4.0, 3.0, 0.0)
    rows = [replace(gemm(1, 64, 64, 64), clock_ms_per_step=0.0),
            replace(gemm(2, 64, 64, 64), clock_ms_per_step=0.5)]  # fmt: skip
    found = only(FallingClock(), facts(*rows, step_ms=100.0, clock=clock))
    assert [row.id for row in found.gemms] == ["g2"] and found.elsewhere_ms == 0.0
    assert (found.parameter_delta, found.least) == (0, 0.01)
    assert found.evidence["paces"][1] == {"step": 4, "pace": 1.1, "slow": True}
    said(found.title)


# TL122: waits for the CPU


@pytest.mark.parametrize(
    ("kind", "why", "components"),
    [
        ("compile", "compile", []), ("break", "break", []),
        ("data", "", []), ("workers", "", []),
        ("pageable", "pageable", ["memory"]),
        ("fetch", "fetch", ["memory"]),
    ],
)  # fmt: skip
def test_what_the_gpu_waits_for(kind: Any, why: str, components: list[str], said: Listener) -> None:
    step = facts(step_ms=100.0, host_waits=[HostWait(kind, 5.0, 2.5)])
    found = only(HostWaits(), step)
    assert (found.why, found.components, found.elsewhere_ms) == (why, components, 5.0)
    assert found.name[:1].islower() and found.title[1:].startswith(found.name[1:])
    assert found.evidence == {"kind": kind, "wait_ms": 5.0, "calls_per_step": 2.5}
    assert (found.parameter_delta, found.least) == (0, 0.01)
    said(found.saw, found.bound_of, found.title)
    for mean in (200.0, 100.0):
        said(only(HostWaits(), replace(step, mean_ms=mean)).saw)
    assert outcome_of(HostWaits().look, replace(step, marked=False)).state == "not_applicable"
    said(only(HostWaits(), replace(step, step_ms=None, mean_ms=50.0)).saw)


# TL114: views


@pytest.mark.parametrize(
    ("stride", "dtype", "then"),
    [
        (4618, "bf16", 4624),
        (4610, "fp32", 4612),
        (4617, None, 4624),
        (4617, "fp8", 4624),
        (4632, "bf16", 4632),
    ],
)
def test_a_buffer_is_made_wide_enough(stride: int, dtype: str | None, then: int) -> None:
    view = View(gemm(1, 64, 64, 64, dtype=dtype), "a", 4096, stride)
    lines = fix_of(view)
    assert lines[0] == f"- buffer = torch.empty(rows, {stride})"
    assert lines[1].startswith(f"+ buffer = torch.empty(rows, {then}) ")


@pytest.mark.parametrize("operand", ["a", "b", "c"])
def test_the_operand_is_named_by_its_letter(operand: Any, said: Listener) -> None:
    row = replace(gemm(1, 64, 64, 64), alignment_bytes={"a": 2, "b": 4, "c": 8})
    view = View(row, operand, 4096, 4618)
    said(views._seen(view, ""), views._seen(view, "align2"))


@pytest.mark.parametrize(
    ("stride", "kernel", "confidence", "caveats"),
    [(4618, cutlass(2), "high", 1), (4618, "unnamed", "medium", 1), (None, cutlass(2), "medium", 2)],
)
def test_how_sure_a_view_is(
    stride: int | None, kernel: str, confidence: str, caveats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [gemm(at, 4096, 4096, 4096, kernel=kernel, time_us=700.0) for at in (1, 2)]
    found = [View(row, "a" if stride else "", 4096 if stride else None, stride) for row in rows]
    saved = iter([(Estimate(0.1, 0.2, 0.3, "model"), "one."), (Estimate(0.1, 0.2, 0.3, "model"), "two.")])
    monkeypatch.setattr(views, "saving_of", lambda *_: next(saved))
    one = views._candidate(facts(*rows, gpu=BARE, step_ms=100.0), found)
    assert (one.confidence, len(one.caveats), one.how) == (confidence, caveats, "one. two.")
    assert one.saving is not None and one.saving.mid == pytest.approx(0.4)
    assert one.bounds[1].ms == pytest.approx(0.7 - 2 * 4096**3 / 989e9)
    assert (one.parameter_delta, one.flops_delta) == (0, 0.0)
    part = iter([(Estimate(0.1, 0.2, 0.3, "model"), "one."), (None, "")])
    monkeypatch.setattr(views, "saving_of", lambda *_: next(part))
    unknown = views._candidate(facts(*rows, step_ms=100.0), found)
    assert unknown.saving is None and unknown.how == ""


# TL110: sequences


def trial(value: int, mid: float) -> Trial:
    return trial_of("sequence", (1000, value), mid)


@pytest.mark.parametrize(
    ("trials", "then"),
    [
        ([trial(1024, 2.0), trial(960, 2.5)], 1024),  # padding keeps every token
        ([trial(1024, 2.0), trial(960, 3.1)], 960),  # but for more than 1 % of the step
        ([trial(1088, 2.5), trial(1024, 2.0)], 1024), ([trial(960, 2.0), trial(896, 2.5)], 960),
    ],
)  # fmt: skip
def test_a_length_near_by(
    trials: list[Trial], then: int, monkeypatch: pytest.MonkeyPatch, said: Listener
) -> None:
    row = attention(1, 64, time_us=9000.0, calls=1.0)
    monkeypatch.setattr(sequences, "case_of", lambda *_: None)
    monkeypatch.setattr(sequences, "need_length", lambda *_: 1000)
    monkeypatch.setattr(sequences, "bounds_of", lambda *_: [Bound(row, 9.0)])
    monkeypatch.setattr(sequences, "try_values", lambda *_: (trials, ""))
    found = only(sequences.OddSequence(), facts(row, step_ms=100.0))
    assert found.change == {"sequence": [1000, then]} and found.simulate == {"sequence": then}
    assert found.evidence["per_token"] is (then < 1000) and found.flops_delta is None
    assert (found.why, found.confidence) == ("", "medium")
    said(found.title)
    if then < 1000:
        said(found.caveats[0])
    monkeypatch.setattr(sequences, "bounds_of", lambda *_: [Bound(row, 1.0)])
    monkeypatch.setattr(sequences, "try_values", lambda *_: ([], "made up"))
    says_why(outcome_of(sequences.OddSequence().look, facts(row, step_ms=100.0)), "could_not_run", said)
    monkeypatch.setattr(sequences, "bounds_of", lambda *_: [Bound(row, 0.99)])
    assert outcome_of(sequences.OddSequence().look, facts(row, step_ms=100.0)).state == "passed"
    said(sequences._caveats(1025, 1024)[0])


# TL102: dimensions


@pytest.mark.parametrize(
    ("parameter", "then", "ranks", "simulated"),
    [
        ("ffn", 1408, 2, {"ffn": 2816}), ("ffn", 1408, None, {"ffn": 1408}),
        ("hidden", 1088, 2, {"hidden": 1088}),
        ("vocab_size", 50304, 4, {"vocab": 50304}), ("sequence", 1024, 1, None), (None, 64, 1, None),
    ],
)  # fmt: skip
def test_the_change_of_a_dimension_is_of_the_whole_model(
    parameter: str | None, then: int, ranks: int | None, simulated: dict[str, int] | None
) -> None:
    step = facts(dims=model(tensor_parallel=ranks))
    assert _simulate(step, Target(parameter, then - 1, then)) == simulated


def test_lines_of_dimensions(said: Listener) -> None:
    row = Misfit(gemm(1, 64, 1365, 64), (("n", 1365),), None)
    ffn = Target("ffn", 1365, 1408)
    named = Case(ffn, [row], {1365})
    assert lines_of(named, {"ffn": ffn}) == ["- ffn = 1365", "+ ffn = 1408"]
    said(_title(named))
    bare = Case(Target(None, 7, 8), [row], {7, 13}, [Target(None, 13, 16)])
    assert lines_of(bare, {})[1:] == ["- size 7", "+ size 8", "- size 13", "+ size 16"]
    said(_title(bare))


# pages


def test_three_letters_of_a_name_are_a_hint(said: Listener) -> None:
    for wanted, rules in (("clo", ["TL121"]), ("cl", [rule.id for rule in RULES])):
        with pytest.raises(UsageError) as found:
            explain(wanted)
        assert re.findall(r"TL\d+", str(found.value)) == rules
        said(str(found.value).partition(" TL")[0])


def test_attention_without_sizes_cannot_be_judged() -> None:
    """Heads of all are told by sizes; a row that lacks them leaves open whether a mask is there."""
    row = replace(attention(1, 64), kernel_family="mem_efficient", dtype="bf16")
    blind = replace(row, attention=None)
    assert outcome_of(backend.AttentionBackend().look, facts(blind)).state == "could_not_run"
    part = replace(row, attention=AttentionDims(1, None, None, 8, 8, 64))
    assert outcome_of(backend.AttentionBackend().look, facts(part)).state == "could_not_run"
