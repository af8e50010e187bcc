"""The figures of a simulated change, counted by hand: its range, its operations, and what holds it back."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_answers import saved
from tests.advice.advice_rows import gemm
from tests.advice.advice_steps import Shape, model_of, rows_of
from tests.said import Listener
from tracelens.errors import UsageError
from tracelens.results import Basis, Rest, Span
from tracelens.step.affected import Affected, AffectedPart
from tracelens.step.predicted import ErrorKind, Scaled
from tracelens.step.traced_step import StepModel
from tracelens.step.whatif import _reasons, _rows, _saving, _saving_basis, what_if

LLAMA = Shape(4096, 32, 14336, v=128256, kv=8, gated=True, b=2)
TOKENS = 2 * 2048
#: Operations of a forward pass: linear layers, logits, attention as if nothing were masked.
LAYERS = 32 * 2 * TOKENS * (4096 * (32 + 16) * 128 + 4096 * 4096)
MLP = 32 * 2 * TOKENS * 3 * 4096 * 14336
LOGITS = 2 * TOKENS * 4096 * 128256
SCORES = 32 * 4 * 2 * 32 * 2048 * 2048 * 128
#: A step: linear layers three times, attention once and two and a half times.
STEP = 3 * (LAYERS + MLP + LOGITS) + 3.5 * SCORES


@pytest.fixture(scope="module")
def llama() -> StepModel:
    return model_of(LLAMA, rest_ms=20.0)


@pytest.fixture(scope="module")
def calm() -> StepModel:
    """The same with so much beside its GEMMs that it runs at full clock before and after."""
    return model_of(LLAMA, rest_ms=2000.0)


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ({"ffn": 16384}, 3 * MLP * (16384 / 14336 - 1)),
        ({"layers": 48}, (STEP - 3 * LOGITS) / 2),
        ({"vocab": 32064}, 3 * LOGITS * (32064 / 128256 - 1)),
        ({"micro_batch": 3}, STEP / 2),
        ({"sequence": 4096}, STEP + 3.5 * 2 * SCORES),
        # of 32 + 16 heads of qkv and 32 of the output 16 + 16 and 16 stay
        ({"heads": 16, "head_dim": 128}, -3 * LAYERS * 32 / 80 - 3.5 * SCORES / 2),
        # as wide, in heads of 256: keys and values of 8 heads are twice as wide
        ({"heads": 16}, 3 * LAYERS * 16 / 80),
    ],
    ids=str,
)
def test_operations_grow_as_their_sizes(llama: StepModel, change: dict[str, int], more: float) -> None:
    assert what_if(llama, change).flops_frac == pytest.approx(more / STEP, rel=1e-9)


def test_operations_of_products_without_a_formula_stay() -> None:
    small = gemm(99, 777, 555, 333, component="mlp.up", time_us=1000.0)
    one = what_if(model_of(LLAMA, rows=[*rows_of(LLAMA), small]), {"ffn": 16384})
    stay = 2 * 777 * 555 * 333
    assert one.flops_frac == pytest.approx(3 * MLP * (16384 / 14336 - 1) / (STEP + stay), rel=1e-12)
    large = gemm(99, 777, 555, 333, component="mlp.up", time_us=100_000.0)
    unknown = what_if(model_of(LLAMA, rows=[*rows_of(LLAMA), large]), {"ffn": 16384})
    assert unknown.flops_frac is None and unknown.refused is not None


def test_tokens_grow_with_the_batch_and_the_sequence(llama: StepModel) -> None:
    assert what_if(llama, {"micro_batch": 3}).tokens_frac == pytest.approx(0.5)
    assert what_if(llama, {"sequence": 1024}).tokens_frac == pytest.approx(-0.5)
    assert what_if(llama, {"ffn": 16384}).tokens_frac == 0.0
    unknown = replace(llama, now=replace(llama.now, micro_batch=None, tokens=None))
    assert what_if(unknown, {"vocab": 32064}).tokens_frac == 0.0


def test_ranks_that_are_not_known_are_none_that_changes(llama: StepModel) -> None:
    unknown = replace(llama, now=replace(llama.now, tensor_parallel=None))
    assert what_if(unknown, {"layers": 48}).flops_frac == pytest.approx((STEP - 3 * LOGITS) / 2 / STEP)


def test_what_repeats_is_said_and_what_does_not_is_not(llama: StepModel, said: Listener) -> None:
    deeper = what_if(llama, {"layers": 40})
    wider = what_if(llama, {"ffn": 16384})
    for one in (deeper, wider):
        said(sorted({row.how for row in one.rows}))
    up = next(row for row in deeper.rows if row.component == "mlp.up" and row.role == "forward")
    assert (up.shape_now, up.shape_then) == ("4096×14336×4096",) * 2
    assert (up.then_ms.low, up.then_ms.high) == (up.then_ms.mid, up.then_ms.mid)
    assert up.then_ms.mid == pytest.approx(1.25 * up.time_ms) and up.then_ms.basis == "model"


def test_rows_come_by_their_time(llama: StepModel) -> None:
    times = [row.time_ms for row in what_if(llama, {"layers": 40}).rows]
    assert times == sorted(times, reverse=True) and len(set(times)) > 3


def test_errors_of_one_kind_add_and_of_different_kinds_add_in_squares(calm: StepModel) -> None:
    one = what_if(calm, {"sequence": 1024})
    kinds: dict[str, list[Span]] = {"attention": [], "products": [], "bytes": [r.then_ms for r in one.rest]}
    for row in one.rows:
        kinds["attention" if row.component == "attention.core" else "products"].append(row.then_ms)
    assert all(kinds.values())
    low, mid, high = saved(one)
    slower = [sum(then.high - then.mid for then in spans) for spans in kinds.values()]
    faster = [sum(then.mid - then.low for then in spans) for spans in kinds.values()]
    assert low == pytest.approx(mid - math.sqrt(sum(x * x for x in slower)))
    assert high == pytest.approx(mid + math.sqrt(sum(x * x for x in faster)))


def test_what_is_not_predicted_may_move_as_much_as_what_is(said: Listener) -> None:
    """1 ms of gap beside the predicted products: as much of it as they save or lose."""
    small = gemm(99, 777, 555, 333, component="mlp.up", time_us=1000.0)
    whole, gap = (
        what_if(model_of(LLAMA, rows=r, rest_ms=2000.0), {"ffn": 16384})
        for r in (rows_of(LLAMA), [*rows_of(LLAMA), small])
    )
    touched = sum(row.time_ms for row in whole.rows)
    opened = 1.0 * abs(saved(whole)[1]) / touched
    assert saved(gap)[0] == pytest.approx(saved(whole)[0] - opened, rel=1e-9)
    assert saved(gap)[2] == pytest.approx(saved(whole)[2] + opened, rel=1e-9)
    assert not any("not predicted" in note for note in whole.notes)
    said(gap.notes)


def test_a_tenth_without_a_formula_is_still_judged() -> None:
    """Of the time that the change touches: 9 parts predicted and 1 not; and a little more."""
    touched = sum(row.time_ms for row in what_if(model_of(LLAMA), {"ffn": 16384}).rows)
    for gap_ms, judged in ((touched / 9 * 0.999, True), (touched / 9 * 1.001, False)):
        open_row = gemm(99, 777, 555, 333, component="mlp.up", time_us=gap_ms * 1e3)
        one = what_if(model_of(LLAMA, rows=[*rows_of(LLAMA), open_row]), {"ffn": 16384})
        assert (one.saving_ms.mid is not None) == judged
        assert one.unpredicted_ms == pytest.approx(gap_ms)


def test_idle_time_takes_up_what_is_added_and_a_saving_can_end_as_idle_time() -> None:
    """A quarter more layers, exactly; the GPU idles for 20 % of the step."""
    step = model_of(LLAMA, busy_frac=0.8, rest_ms=2000.0)
    step_ms = step.step_ms or 0.0
    low, mid, high = saved(what_if(step, {"layers": 40}))
    assert low == mid and high == pytest.approx(mid + 0.2 * step_ms) and high < 0
    busy = what_if(replace(step, busy_frac=0.95), {"layers": 40})
    assert saved(busy) == (mid, mid, mid)
    less = saved(what_if(step, {"layers": 24}))
    assert less[0] == 0.0 and less[1] == less[2] == pytest.approx(-mid)
    all_idle = saved(what_if(replace(step, busy_frac=0.2), {"layers": 40}))
    assert all_idle[2] == 0.0
    assert any("idle 20.0%" in note for note in what_if(step, {"layers": 40}).notes)
    assert not any("idle" in note for note in busy.notes)


def test_other_tokens_in_a_step_that_waits_are_no_prediction_per_token(said: Listener) -> None:
    step = model_of(LLAMA, busy_frac=0.8)
    said(what_if(step, {"micro_batch": 4}).notes, what_if(step, {"ffn": 16384}).notes)


def test_without_a_step_s_time_idle_time_is_unlimited(llama: StepModel) -> None:
    one = what_if(replace(llama, step_ms=None, busy_frac=0.8), {"layers": 40})
    low, mid, high = saved(one)
    assert low == mid < 0 and high == 0.0
    assert one.step_ms is None and one.then_ms.mid is None and one.saving_frac.mid is None


def test_no_more_than_the_step_is_saved() -> None:
    """Kernels on parallel streams can add to more than the step that they run in."""
    step = replace(model_of(LLAMA), step_ms=10.0)
    one = what_if(step, {"layers": 16})
    assert saved(one) == (10.0, 10.0, 10.0) and one.then_ms.mid == 0.0 and one.saving_frac.mid == 1.0


# --- parts made by hand -----------------------------------------------------------------------------------


def part(time_ms: float, factor: float, *, calls: float = 1.0, basis: Basis = "calibrated",
         kind: ErrorKind = "ratio", number: int = 1, **texts: Any) -> AffectedPart:  # fmt: skip
    given = {"shape_now": "1×2×3", "shape_then": "1×2×4", "how": "by hand"} | texts
    scaled = Scaled(factor * 0.5, factor, factor * 2.0, basis, kind=kind, **given)
    return AffectedPart(gemm(number, 8, 8, 8), time_ms, calls, scaled)


def moved(time_ms: float, then_ms: float) -> Rest:
    return Rest("norm", "forward", "b*s*h", time_ms, Span(then_ms, then_ms, then_ms, "model"))


def test_two_shares_of_one_row_are_one_row_with_both_shapes(said: Listener) -> None:
    (row,) = _rows([part(1.0, 2.0), part(3.0, 1.0, calls=0.5, shape_then="1×2×5", how="otherwise")])
    assert (row.time_ms, row.shape_now, row.shape_then) == (4.0, "1×2×3", "1×2×4 and 1×2×5")
    assert row.then_ms == Span(1.75, 3.5, 7.0, "calibrated")
    said(row.how)
    (alike,) = _rows([part(1.0, 2.0), part(3.0, 1.0)])
    assert alike.shape_then == "1×2×4"
    assert [one.gemm for one in _rows([part(1.0, 2.0), part(3.0, 1.0, number=2)])] == ["g2", "g1"]
    said(alike.how)
    noted = replace(part(1.0, 2.0, shape_now="", shape_then=""))
    (unshaped,) = _rows([replace(noted, row=replace(noted.row, shape_note="16 heads"))])
    assert (unshaped.shape_now, unshaped.shape_then) == ("16 heads", "16 heads")


def test_the_two_longest_reasons_are_named_and_the_others_counted() -> None:
    def reasons(*lost: tuple[float, str]) -> str:
        return _reasons(Affected((), lost))

    assert reasons((1.0, "a")) == "a"
    assert reasons((1.0, "a"), (2.0, "b")) == "b; a"
    assert reasons((1.0, "a"), (2.0, "b"), (1.5, "a"), (0.1, "c")) == "a; b; 1 more reason"
    assert reasons((4.0, "a"), (3.0, "b"), (2.0, "c"), (1.0, "d")) == "a; b; 2 more reasons"


def test_a_saving_is_calibrated_where_products_that_were_measured_make_it() -> None:
    products = [part(10.0, 0.5), part(4.0, 1.25)]  # they move by 5 and by 1 ms
    assert _saving_basis(products, []) == "calibrated"
    assert _saving_basis(products, [moved(1.0, 0.4)]) == "calibrated"  # a tenth of that
    assert _saving_basis(products, [moved(1.0, 0.3)]) == "model"
    assert _saving_basis(products, [moved(1.0, 1.7)]) == "model"
    assert _saving_basis([*products, part(1.0, 1.0, basis="heuristic")], []) == "heuristic"
    assert _saving_basis([], []) == "model" == _saving_basis([], [moved(1.0, 1.0)])


def test_the_range_of_a_sum_of_parts(llama: StepModel) -> None:
    """10 ms become 5 (2.5 to 10), 4 ms of another kind become 5 (2.5 to 10); 2 of bytes become 1."""
    parts = (part(10.0, 0.5), part(4.0, 1.25, kind="attention"))
    found = _saving(llama, Affected(parts, ()), [moved(2.0, 1.0)])
    assert found.mid == pytest.approx(5.0 - 1.0 + 1.0)
    assert found.low == pytest.approx(5.0 - math.hypot(5.0, 5.0))
    assert found.high == pytest.approx(5.0 + math.hypot(2.5, 2.5))
    together = _saving(
        llama, Affected((parts[0], replace(parts[1], scaled=replace(parts[1].scaled, kind="ratio"))), ()), []
    )
    assert (together.low, together.mid, together.high) == pytest.approx((4.0 - 10.0, 4.0, 4.0 + 5.0))
    gap = _saving(llama, Affected(parts, ((1.4, "no formula"),)), [])
    assert gap.low == pytest.approx(4.0 - math.hypot(5.0, 5.0) - 1.4 * 4.0 / 14.0)
    assert gap.high == pytest.approx(4.0 + math.hypot(2.5, 2.5) + 1.4 * 4.0 / 14.0)
    small = _saving(llama, Affected((part(0.5, 0.5),), ()), [])
    assert small.mid == 0.25
    rounding = _saving(llama, Affected((part(1.0, 1 - 1e-12),), ()), [])
    assert rounding.mid == 0.0
    nothing = _saving(llama, Affected((), ((1.4, "no formula"),)), [])
    assert (nothing.low, nothing.mid, nothing.high) == (0.0, 0.0, 0.0)


def test_what_moves_bytes_with_the_vocabulary_is_part_of_its_change() -> None:
    """Where ranks change that perhaps share it, it is not told."""
    step = model_of(replace(LLAMA, t=2), others={"loss": 3.0})
    (loss,) = what_if(step, {"vocab": 64128}).rest
    assert (loss.component, loss.time_ms) == ("loss", 3.0) and loss.then_ms.mid == pytest.approx(1.5)
    untold = what_if(step, {"tensor_parallel": 4})
    assert not any(one.component == "loss" for one in untold.rest) and untold.unpredicted_ms > 3.0
    split = replace(step, now=replace(step.now, vocab_split=True))
    assert any(one.component == "loss" for one in what_if(split, {"tensor_parallel": 1}).rest)


def test_rows_of_attention_say_which_pass_they_are() -> None:
    rows = [replace(row, role=None) if row.kind == "attention" else row for row in rows_of(LLAMA)]
    found = what_if(model_of(LLAMA, rows=rows), {"sequence": 1024}).rows
    passes = {row.role for row in found if row.component == "attention.core"}
    assert passes == {None, "backward"}


def test_a_peak_that_is_not_known_refuses_its_type_alone(llama: StepModel) -> None:
    bare = replace(llama, gpu=replace(llama.gpu, peak_tflops={"bf16": 989.0}))
    assert what_if(bare, {"ffn": 16384}).saving_ms.mid is not None
    with pytest.raises(UsageError):
        what_if(bare, {"dtype": "fp8"})
    other = replace(bare, gpu=replace(bare.gpu, peak_tflops={"fp16": 989.0}))
    assert what_if(other, {"ffn": 16384}).change == {"ffn": [14336, 16384]}


def test_operations_of_queries_keys_and_values_of_one_size() -> None:
    """A third of each row's calls are q's: fewer heads of keys take two thirds of it down to a quarter."""
    shape = replace(LLAMA, kv=None, gated=True)
    rows = []
    for row in rows_of(shape):
        if row.component == "attention.qkv":
            n = row.m if row.role == "wgrad" else row.n if row.role == "forward" else row.k
            assert n == 3 * 4096
            sizes = {"wgrad": {"m": 4096}, "forward": {"n": 4096}, "dgrad": {"k": 4096}}[row.role or ""]
            row = replace(row, calls=96, calls_per_step=96.0, **sizes)  # type: ignore[arg-type]
        rows.append(row)
    found = what_if(model_of(shape, rows=rows), {"kv_heads": 8})
    qkv = 32 * 2 * TOKENS * 4096 * 3 * 4096
    whole = 3 * (qkv + 32 * 2 * TOKENS * 4096 * 4096 + MLP + LOGITS) + 3.5 * SCORES
    assert found.flops_frac == pytest.approx(-3 * qkv * 2 / 3 * 3 / 4 / whole)
