"""What a fused kernel would take in place of unfused attention: times of each mask, ranges and figures."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.advice.advice_answers import answer
from tests.advice.advice_facts import H100 as H100_GPU
from tests.advice.advice_facts import RTX3060, V100, other, step_of
from tests.advice.advice_rows import attention, facts, gemm
from tests.said import Listener
from tracelens.gemm.predict.attention import predict_attention
from tracelens.gemm.predict.attention_call import AttentionProblem
from tracelens.results import OtherRow, Span
from tracelens.results.row_sizes import AttentionDims
from tracelens.rules.evidence import fusing
from tracelens.rules.evidence.attention_chain import Chain, chain_of, cores_of
from tracelens.rules.evidence.attention_kernels import Kept, kept_of, saving_of
from tracelens.rules.evidence.fused_attention import (
    CAUSAL,
    NO_MASK,
    TENSOR,
    CoreCalls,
    FusedCalls,
    fused_time,
)
from tracelens.rules.evidence.fusing import Fusing, memory, need_fusing

CORE = CoreCalls(32, 1024, 1024, 64, 64, "bf16", 4.0, 2.0)
SCORES = gemm(1, 1024, 1024, 64, component="attention.scores", batch=32, calls=4.0, time_us=500.0)
VALUES = gemm(2, 1024, 64, 1024, component="attention.values", batch=32, calls=4.0, time_us=500.0)
SOFTMAX = replace(
    other(1, "other", component="attention.softmax", op="aten::_softmax", calls=4.0, time_us=250.0),
    kernel="softmax_warp_forward",
)


def predicted(backend: str, direction: str = "forward", core: CoreCalls = CORE, causal: bool = False) -> Any:
    call = AttentionProblem(batch=1, heads=core.heads, kv_heads=core.heads, seq_q=core.seq_q,
        seq_k=core.seq_k,
                            head_dim=max(core.head_dim, core.value_dim), direction=direction,
                                dtype=core.dtype,
                            causal=causal)  # fmt: skip
    return predict_attention(call, gpu=H100_GPU, backend=backend, measured=None)


# what fused kernels take


@pytest.mark.parametrize(("mask", "causal"), [(NO_MASK, False), (CAUSAL, True)])
def test_the_middle_is_of_the_slowest_kernel_and_the_low_end_of_the_fastest(
    mask: Any, causal: bool, said: Listener
) -> None:
    """Four calls forward and two backward, each in cuDNN's kernel or in FlashAttention."""
    step = step_of([SCORES, VALUES])
    found = fused_time(step, [CORE], mask)
    assert isinstance(found, FusedCalls) and found.kernels == ("cudnn", "flash") and found.unfit == ""
    low = mid = high = floor = 0.0
    for direction, calls in (("forward", 4.0), ("backward", 2.0)):
        times = [predicted(one, direction, causal=causal) for one in ("cudnn", "flash")]
        low += calls / 1e3 * min(one.time_us.low for one in times)
        mid += calls / 1e3 * max(one.time_us.mid for one in times)
        high += calls / 1e3 * max(one.time_us.high for one in times)
        floor += calls / 1e3 * min(one.floor_us for one in times)
    assert (found.time_ms.low, found.time_ms.mid, found.time_ms.high) == pytest.approx((low, mid, high))
    assert found.floor_ms == pytest.approx(floor) and len(found.lines) == 2
    said(found.lines)
    twice = fused_time(step, [CORE, CORE], mask)
    assert isinstance(twice, FusedCalls) and twice.time_ms.mid == pytest.approx(2 * mid)
    assert twice.floor_ms == pytest.approx(2 * floor) and len(twice.lines) == 4
    assert twice.kernels == ("cudnn", "flash")
    runs = fused_time(step, [replace(CORE, backward_calls=0.0)], mask)
    assert isinstance(runs, FusedCalls) and len(runs.lines) == 1


def test_a_tensor_as_mask_is_read_once_for_every_head_at_worst() -> None:
    """2 B x 32 x 1024^2 at 3350 GB/s are 20 us a call, in the middle and at the high end."""
    core = replace(CORE, calls=4.0, backward_calls=0.0)
    step = step_of([SCORES, VALUES])
    found = fused_time(step, [core], TENSOR)
    assert isinstance(found, FusedCalls) and found.kernels == ("efficient",)
    one = predicted("efficient").time_us
    more = 2 * 32 * 1024 * 1024 / 3350e3
    wanted = (4e-3 * one.low, 4e-3 * (one.mid + more), 4e-3 * (one.high + more))
    assert (found.time_ms.low, found.time_ms.mid, found.time_ms.high) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("head_dim", "value_dim", "dtype", "step"),
    [(64, 64, "bf16", 0), (68, 68, "bf16", 8), (64, 68, "bf16", 8), (68, 64, "bf16", 8), (68, 68, "fp32", 0),
     (68, 66, "fp32", 4), (66, 68, "fp32", 4), (72, 72, "bf16", 0)],
)  # fmt: skip
def test_the_memory_efficient_kernel_takes_16_bytes(
    head_dim: int, value_dim: int, dtype: str, step: int, said: Listener
) -> None:
    core = replace(CORE, head_dim=head_dim, value_dim=value_dim, dtype=dtype)
    found = fused_time(step_of([SCORES]), [core], TENSOR)
    assert isinstance(found, FusedCalls) and bool(found.unfit) is bool(step)
    said(found.unfit)


@pytest.mark.parametrize(
    ("backward", "kernels"), [(0.0, ("flash",)), (0.5, ("efficient",)), (2.0, ("efficient",))]
)
def test_a_wide_head_has_no_backward_in_little_shared_memory(
    backward: float, kernels: tuple[str, ...]
) -> None:
    """FlashAttention 2 of torch: heads of 193 to 224 train on no GPU of compute capability 8.6."""
    core = replace(CORE, head_dim=224, value_dim=224, backward_calls=backward)
    found = fused_time(step_of([SCORES], gpu=RTX3060), [core], NO_MASK)
    assert isinstance(found, FusedCalls) and found.kernels == kernels


def test_what_no_fused_kernel_is_predicted_for(said: Listener) -> None:
    one = fused_time(step_of([SCORES]), [replace(CORE, seq_q=1)], NO_MASK)
    assert isinstance(fused_time(step_of([SCORES]), [replace(CORE, seq_q=2)], NO_MASK), FusedCalls)
    blind = fused_time(step_of([SCORES], predict=False), [CORE], NO_MASK)
    mixed = fused_time(step_of([SCORES]), [CORE, replace(CORE, seq_q=1)], NO_MASK)
    assert isinstance(blind, str) and isinstance(one, str) and mixed == one
    said(one, blind)


# the chain and what of it can go


def chain(**given: Any) -> Chain:
    told: dict[str, Any] = {"products": (SCORES, VALUES), "between": (SOFTMAX,), "beside": (), "maybe": ()}
    return Chain(**(told | given))


def test_every_kernel_has_the_same_share_of_what_can_go(said: Listener) -> None:
    """2 + 2 ms of products and 1 ms of softmax, and perhaps 0.5: of 5.5 ms 2.2 can go, two fifths of each."""
    perhaps = other(2, "copy", calls=1.0, time_us=500.0)
    fits = {NO_MASK: FusedCalls(Span(1.0, 2.0, 3.0, "model"), 0.75, ("flash", "cudnn"), ("one line",))}
    found = Fusing(chain(maybe=(perhaps,)), [CORE], fits, [], Span(1.0, 2.0, 2.2, "model"), 2.2, "")
    assert {one.row.id: one.ms for one in found.bounds} == pytest.approx({"g1": 0.8, "g2": 0.8})
    assert found.kernels == pytest.approx({"o1": 0.4, "o2": 0.2})
    assert replace(found, bound_ms=-1.0).bounds[0].ms == replace(found, bound_ms=-1.0).kernels["o1"] == 0.0
    idle = replace(SCORES, time_ms_per_step=0.0)
    assert replace(found, chain=Chain((idle,), (), (), ())).bounds[0].ms == 0.0
    slow, even = (
        replace(found, fits={NO_MASK: replace(fits[NO_MASK], time_ms=Span(5.0, mid, 9.0, "model"))})
        for mid in (7.0, 5.0)
    )
    odd = replace(found, unusual=["tanh"], fits=fits | {CAUSAL: FusedCalls(Span(1, 1, 1, "model"), 0.5)})
    said(found.how, slow.how, even.how, replace(found, saving=None).how, odd.how)
    told = found.evidence
    assert told["chain_ms"] == {"products": 4.0, "softmax": 1.0, "beside": 0, "perhaps": 0.5}
    assert told["fused_ms"] == {"without a mask": [1.0, 2.0, 3.0]} and told["kernels"] == ["cudnn", "flash"]


def spans(*times: tuple[float, float, float]) -> tuple[Any, ...]:
    calls = [FusedCalls(Span(low, mid, high, "model")) for low, mid, high in times]
    saving, most = fusing._saving(chain(maybe=(other(2, "copy", calls=1.0, time_us=500.0),)), calls)
    return (None if saving is None else (saving.low, saving.mid, saving.high)), most


def test_a_saving_is_that_of_the_slowest_it_can_become() -> None:
    """5 ms for certain and 0.5 perhaps: kernels of 1 to 3 ms save 2 to 4.5."""
    assert spans((1.0, 2.0, 3.0)) == ((2.0, 3.0, 4.5), 4.5)
    assert spans((1.0, 2.0, 3.0), (2.0, 4.0, 4.5)) == ((0.5, 1.0, 4.5), 4.5)
    # one can be slower, the other is faster for certain: only the most is known
    assert spans((1.0, 2.0, 3.0), (5.0, 6.0, 7.0)) == (None, 4.5)
    assert spans((1.0, 2.0, 4.5), (5.0, 6.0, 7.0)) == (None, 4.5)  # by half a millisecond
    # one can be slower, and so can the other
    assert spans((1.0, 2.0, 5.0), (5.0, 6.0, 7.0)) == ((-2.0, -1.0, 4.5), 4.5)
    assert spans((5.0, 6.0, 7.0)) == ((-2.0, -1.0, 0.5), 0.5)


def test_calls_of_one_query_stay_as_they_are(said: Listener) -> None:
    """Products of one query take 1 of 5 ms and half of the calls: 1.2 of 6 ms stay, up to 3."""
    few = replace(SCORES, id="g3", m=1, time_ms_per_step=1.0)
    one = replace(CORE, seq_q=1)
    made = chain(products=(SCORES, VALUES, few))
    found = FusedCalls(Span(1.0, 2.0, 3.0, "model"), 0.5, ("flash",), ("a",))
    mixed = fusing._with_few(found, made, [CORE, one])
    assert (mixed.time_ms.low, mixed.time_ms.mid, mixed.time_ms.high) == pytest.approx((1.0, 3.2, 6.0))
    said(mixed.lines)
    rare = fusing._with_few(found, made, [replace(CORE, calls=36.0), one])
    assert rare.time_ms.high == pytest.approx(3.0 + 1.2)  # a tenth of the calls and a fifth of the time
    assert fusing._with_few(found, made, [CORE]) is found
    assert fusing._with_few(found, chain(), [CORE, one]) is found
    assert fusing._with_few(found, chain(products=(replace(SCORES, m=2), VALUES)), [CORE, one]) is found


def test_what_a_trace_shows_of_unfused_attention(said: Listener) -> None:
    components = [SimpleNamespace(time_ms_per_step=8.0), SimpleNamespace(time_ms_per_step=2.0)]
    step = facts(SCORES, components=components, step_ms=20.0)
    perhaps = other(2, "copy", calls=1.0, time_us=500.0)
    said(fusing._saw(step, chain(), [CORE]), fusing._saw(step, chain(maybe=(perhaps,)), [CORE]))
    for many in (1, 3, 4, 5):
        text = fusing._saw(step, chain(), [replace(CORE, seq_q=64 * at) for at in range(1, many + 1)])
        assert f"32 × {64 * many} × 1024 × 2 B" in text  # the largest matrix
        said(text)
    said(fusing._saw(facts(SCORES, step_ms=20.0), chain(), [CORE]))


def test_memory_is_that_of_each_micro_batch() -> None:
    step = facts(SCORES, VALUES)
    kept = 2 * (2 * 32 * 1024 * 1024 - 4 * 32 * 1024)
    found = memory(step, [CORE])
    assert (found.delta, found.states, found.activations) == (-kept, 0.0, -kept)
    runs = memory(step, [replace(CORE, backward_calls=0.0)])
    assert (runs.delta, runs.states, runs.activations) == (None, 0.0, None)
    again = memory(facts(replace(SCORES, phase="recompute")), [CORE])
    assert (again.delta, again.states, again.activations) == (None, 0.0, None)
    elsewhere = memory(facts(SCORES, gemm(5, 8, 8, 8, component="mlp.up", role=None)), [CORE])
    assert elsewhere.delta == -kept
    mlp = replace(gemm(5, 8, 8, 8), phase="recompute")
    assert memory(facts(SCORES, mlp), [CORE]).delta == -kept


def needed(*rows: Any, others: list[OtherRow] | None = None, **given: Any) -> Any:
    return need_fusing(step_of(list(rows), others=[SOFTMAX] if others is None else others, **given))


def test_unfused_attention_is_judged_where_its_sizes_and_its_softmax_are_known() -> None:
    found = needed(SCORES, VALUES)
    assert isinstance(found, Fusing) and list(found.fits) == [NO_MASK] and found.saving is not None
    fits = fused_time(step_of([SCORES, VALUES]), [replace(CORE, backward_calls=0.0)], NO_MASK)
    assert isinstance(fits, FusedCalls) and fits.time_ms.low is not None and fits.time_ms.mid is not None
    assert found.saving.mid == pytest.approx(5.0 - fits.time_ms.mid)
    assert found.bound_ms == pytest.approx(5.0 - fits.time_ms.low)
    tanh = replace(SOFTMAX, id="o2", kernel="x", op="aten::tanh", time_ms_per_step=0.25)
    odd = needed(SCORES, VALUES, others=[SOFTMAX, tanh])
    assert (odd.unusual, odd.saving) == (["tanh"], None)
    assert odd.bound_ms == pytest.approx(5.25 - fits.floor_ms)
    quick = [replace(row, time_ms_per_step=1e-6) for row in (SCORES, VALUES)]
    nothing = needed(*quick, others=[replace(one, time_ms_per_step=1e-6) for one in (SOFTMAX, tanh)])
    assert nothing.bound_ms == 0.0


def test_why_unfused_attention_is_not_judged(said: Listener) -> None:
    flash = attention(3, 64)
    assert isinstance(needed(SCORES, VALUES, flash), Fusing)
    blind = [(replace(SCORES, **{side: None}), VALUES) for side in ("m", "n", "k")]  # type: ignore[arg-type]
    for rows, state in (
        ((flash,), "passed"), ((gemm(4, 64, 64, 64),), "not_applicable"),
        *((pair, "could_not_run") for pair in blind), ((SCORES,), "could_not_run"),
        ((replace(SCORES, m=1), replace(VALUES, m=1)), "could_not_run"),
    ):  # fmt: skip
        found, absent, why = answer(needed, *rows)
        assert (found, absent) == (state, state == "not_applicable")
        said(why)
    silent, absent, why = answer(lambda: needed(SCORES, VALUES, others=[]))
    assert (silent, absent) == ("could_not_run", False)
    said(why)


# sizes of the scores


@pytest.mark.parametrize("batch", [None, 1])
def test_scores_without_a_batch_are_one_head(batch: int | None) -> None:
    rows = [replace(SCORES, batch=batch), replace(VALUES, batch=None)]
    assert cores_of(rows, chain_of(rows, [])) == [CoreCalls(1, 1024, 1024, 64, 64, "bf16", 4.0, 0.0)]


# torch's memory-efficient kernel


def efficient(number: int, phase: str = "forward", **sizes: Any) -> Any:
    told: dict[str, Any] = {
        "batch": 2,
        "heads": 16,
        "kv_heads": 16,
        "seq_q": 1024,
        "seq_k": 1024,
        "head_dim": 64,
    }
    row = attention(number, 64, time_us=1000.0, calls=4.0 if phase == "forward" else 2.0)
    return replace(row, attention=AttentionDims(**(told | sizes)), kernel_family="mem_efficient", phase=phase)


@pytest.mark.parametrize(
    ("sizes", "core"),
    [
        ({}, (32, 1024, 1024, 64)), ({"batch": None}, (16, 1024, 1024, 64)),
        ({"batch": 1}, (16, 1024, 1024, 64)),
        ({"value_dim": 128}, (32, 1024, 1024, 128)), ({"seq_k": 2048}, (32, 1024, 2048, 64)),
    ],
)  # fmt: skip
def test_another_kernel_saves_its_time_less_that_of_torchs_first_choice(
    sizes: dict[str, Any], core: tuple[int, int, int, int]
) -> None:
    """Four forwards of 1 ms and two backwards: 6 ms less one of the two masks' kernels."""
    rows = [efficient(1, **sizes), efficient(2, "backward", **sizes)]
    step = step_of(rows)
    (kept,) = kept_of(step, rows)
    made = saving_of(step, kept)
    assert not isinstance(made, str)
    saving, lines = made
    heads, q, k, d = core
    calls = CoreCalls(heads, q, k, d, d, "bf16", 4.0, 2.0)
    full, causal = (fused_time(step, [calls], mask) for mask in (NO_MASK, CAUSAL))
    assert isinstance(full, FusedCalls) and isinstance(causal, FusedCalls)
    assert full.time_ms.mid is not None and full.time_ms.high is not None
    assert saving.mid == pytest.approx(6.0 - full.time_ms.mid)
    assert saving.low == pytest.approx(6.0 - full.time_ms.high)
    assert saving.high == pytest.approx(6.0 - min(full.time_ms.low or 0.0, causal.time_ms.low or 0.0))
    assert lines == (*full.lines, *causal.lines) and len(lines) == 4
    masked = saving_of(step, replace(kept, mask="mask"))
    assert not isinstance(masked, str) and masked[0].low == 0.0 and masked[0].mid == saving.mid
    short = [replace(row, time_ms_per_step=0.01) for row in rows]
    slower = saving_of(step_of(short), Kept(tuple(short), "mask", ""))
    assert not isinstance(slower, str) and slower[0].mid is not None and slower[0].low == slower[0].mid < 0


def test_without_sizes_of_its_own_a_packed_call_has_its_tokens() -> None:
    rows = [efficient(1, batch=None, seq_q=None, seq_k=None, tokens=2048)]
    made = saving_of(step_of(rows), Kept(tuple(rows), None, ""))
    full = fused_time(step_of(rows), [CoreCalls(16, 2048, 2048, 64, 64, "bf16", 4.0)], NO_MASK)
    assert not isinstance(made, str) and isinstance(full, FusedCalls) and full.time_ms.mid is not None
    assert made[0].mid == pytest.approx(4.0 - full.time_ms.mid)


def test_an_older_gpu_has_no_faster_kernel(said: Listener) -> None:
    rows = [efficient(1)]
    assert kept_of(step_of(rows, gpu=RTX3060), rows)[0].why == ""
    older, unsized = (
        kept_of(step, rows)[0] for step in (step_of(rows, gpu=V100), step_of(rows, predict=False))
    )
    assert not older.can_change and not unsized.can_change
    said(older.why, unsized.why)
    masks = [efficient(1, mask="mask"), efficient(2, mask="bias"), efficient(3)]
    assert [(one.mask, one.can_change) for one in kept_of(step_of(masks), masks)] == [
        ("mask", True), ("bias", False), (None, True),
    ]  # fmt: skip
