"""The points of the shape explorer's curves, counted by hand: their values, their times, what is marked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_steps import Shape, model_of, rows_of
from tracelens.results import Curve, Estimate, Finding, Refusal, Suggested, WhatIf
from tracelens.step import explorer
from tracelens.step.explorer import explore
from tracelens.step.traced_step import StepModel
from tracelens.step.whatif import what_if

SMALL = Shape(1024, 16, 4096, v=50257, layers=2, b=2, s=512)


def drawn(step: StepModel, name: str, *findings: Finding) -> Curve:
    """One curve alone: all of them take seven times as long."""
    return explorer._curve(step, name, explorer._suggested(step.now, name, findings))


def finding(**change: Any) -> Finding:
    nothing = Estimate(None, None, None, "model")
    return Finding("TL999", "x", "x", [], "low", nothing, nothing, "model", "low", "config", "", "", "", {},
                   change, [], None, None, [], [], "")  # fmt: skip


@pytest.fixture(scope="module")
def small() -> StepModel:
    return model_of(SMALL, rest_ms=1.0)


# --- which values -----------------------------------------------------------------------------------------


def steps(middle: int, count: int, size: int) -> set[int]:
    return {middle + at * size for at in range(-count, count + 1)}


#: A quarter to each side on 128 bytes (64 elements of bf16), 12 steps at most; eight values on 16 bytes in
#: the middle of eighths of that, eight off it one further, and the neighbours of the present value.
_EIGHTHS = [3328 + 96 + 192 * at for at in range(8)]
_VOCAB_EIGHTHS = [773 * 64 + 96 + 192 * at for at in range(8)]


@pytest.mark.parametrize(
    ("shape", "name", "values"),
    [
        (
            SMALL,
            "ffn",
            steps(4096, 12, 64)
            | {*_EIGHTHS, *(one + 1 for one in _EIGHTHS)}
            | {4088, 4104}  # the next ones on 16 bytes
            | {4095, 4097},  # and off it
        ),
        (
            SMALL,  # 785 * 64 = 50240 is the nearest to 50257 on the grid
            "vocab",
            steps(785 * 64, 12, 64)
            | {*_VOCAB_EIGHTHS, *(one + 1 for one in _VOCAB_EIGHTHS)}
            | {50256, 50264, 50257, 50258},
        ),
        (  # heads divide it: steps of 16 elements; 4 steps of 64 are a quarter
            SMALL,
            "hidden",
            steps(1024, 4, 64) | {800 + 64 * at for at in range(8)} | {1008, 1040},
        ),
        (  # ranks divide it: each one's half has to lie on 128 bytes, so steps of 128, and of 16
            replace(SMALL, t=2),
            "ffn",
            steps(4096, 8, 128)
            | {3072 + 128 + 256 * at + shift for at in range(8) for shift in (16, 2)}
            | {4080, 4112, 4094, 4098},
        ),
        (  # a row beyond a full tile of 64, six tiles to each side
            replace(SMALL, s=2048),
            "sequence",
            {n * 64 + more for n in range(26, 39) for more in (0, 1)} | {2047, 2049},
        ),
        (  # of 128 for long ones
            replace(SMALL, s=8192, b=1),
            "sequence",
            {n * 128 + more for n in range(58, 71) for more in (0, 1)} | {8191, 8193},
        ),
        (replace(SMALL, s=8128, b=1), "sequence",
         {n * 64 + more for n in range(121, 134) for more in (0, 1)} | {8127, 8129}),
        (replace(SMALL, b=4), "micro_batch", {*range(1, 10)}),
        (replace(SMALL, b=12, s=256), "micro_batch", {6, 7, 8, 10, 11, 12, 13, 14, 16, 17, 18, 24}),
        (SMALL, "heads", {1, 2, 4, 8, 16, 32, 64}),
        (replace(SMALL, kv=4), "kv_heads", {1, 2, 4, 8, 16}),
        # the eleven nearest by their ratio of those that divide 2304
        (Shape(2304, 24, 4096, v=512, layers=1, b=1, s=128), "heads",
         {9, 12, 16, 18, 24, 32, 36, 48, 64, 8, 72}),
    ],
)  # fmt: skip
def test_values_of_a_curve(shape: Shape, name: str, values: set[int]) -> None:
    assert drawn(model_of(shape), name).values == sorted(values)


def test_in_fp32_128_bytes_are_32_elements() -> None:
    rows = [replace(row, dtype="fp32", math_dtype="tf32") if row.kind == "gemm" else row
            for row in rows_of(SMALL)]  # fmt: skip
    curve = drawn(model_of(SMALL, rows=rows), "ffn")
    full = [value for value, size in zip(curve.values, curve.alignment_bytes, strict=True) if size == 128]
    assert full == sorted(steps(4096, 12, 32))
    found = dict(zip(curve.values, curve.alignment_bytes, strict=True))
    assert (found[4092], found[4100], found[4095], found[4097]) == (16, 16, 4, 4)


def test_bytes_that_each_value_begins_on(small: StepModel) -> None:
    curve = drawn(small, "vocab")
    found = dict(zip(curve.values, curve.alignment_bytes, strict=True))
    assert {value: found[value] for value in (50257, 50258, 50256, 50264, 50240)} == {
        50257: 2, 50258: 4, 50256: 32, 50264: 16, 50240: 128,
    }  # fmt: skip
    split = drawn(model_of(replace(SMALL, t=2)), "ffn")
    halves = dict(zip(split.values, split.alignment_bytes, strict=True))
    assert (halves[4096], halves[4112], halves[4098]) == (128, 16, 2)
    assert drawn(small, "heads").alignment_bytes == [] == drawn(small, "sequence").alignment_bytes


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({}, ["hidden", "heads", "kv_heads", "ffn", "vocab", "sequence", "micro_batch"]),
        ({"head_dim": 128}, ["hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "sequence",
                             "micro_batch"]),  # heads of their own size
        ({"sequence": None}, ["hidden", "heads", "kv_heads", "ffn", "vocab", "micro_batch", "tokens"]),
        ({"micro_batch": None}, ["hidden", "heads", "kv_heads", "ffn", "vocab", "sequence", "tokens"]),
        ({"heads": None}, ["hidden", "head_dim", "ffn", "vocab", "sequence", "micro_batch"]),
        ({"vocab": None, "ffn": None}, ["hidden", "heads", "kv_heads", "sequence", "micro_batch"]),
    ],
)  # fmt: skip
def test_parameters_that_have_a_curve(small: StepModel, changed: dict[str, Any], names: list[str]) -> None:
    now = replace(small.now, **{"tokens": 1024} | changed)
    assert [name for name in explorer._DRAWN if explorer._drawn(name, now)] == names


def test_what_follows_from_a_size(small: StepModel) -> None:
    own = replace(small.now, head_dim=128)
    for name in ("hidden", "heads", "kv_heads", "ffn"):
        assert bool(explorer._follows(small.now, name)) == (name in ("hidden", "heads"))
        assert not explorer._follows(own, name)
    assert drawn(small, "heads").follows == explorer._follows(small.now, "heads")


# --- their times ------------------------------------------------------------------------------------------


def ends(curve: Curve, value: int) -> tuple[float | None, ...]:
    at = curve.values.index(value)
    return curve.low_ms[at], curve.mid_ms[at], curve.high_ms[at]


def test_a_step_that_waits_is_drawn_without_its_idle_time(small: StepModel) -> None:
    """Busy for 80 % of 10 ms: 2 ms are not of the shape, at each value."""
    step = replace(small, step_ms=10.0, busy_frac=0.8)
    curve = drawn(step, "ffn")
    assert ends(curve, 4096) == pytest.approx((8.0, 8.0, 8.0))
    then = what_if(step, {"ffn": 3328}).then_ms
    assert then.low is not None and then.mid is not None and then.high is not None
    assert ends(curve, 3328) == pytest.approx((then.low - 2.0, then.mid - 2.0, then.high - 2.0))
    assert curve.saving_of == "gpu_work" and not curve.per_token
    waits = drawn(step, "micro_batch")
    assert (waits.per_token, waits.values, waits.why is None) == (True, [], False)
    assert drawn(small, "ffn").saving_of == "step"


def test_more_tokens_may_not_fit_the_memory(small: StepModel) -> None:
    assert len(drawn(small, "micro_batch").notes) == 1 == len(drawn(small, "sequence").notes)
    assert drawn(small, "ffn").notes == [] == drawn(small, "kv_heads").notes


def test_a_time_is_of_as_many_tokens_as_now(small: StepModel) -> None:
    curve = drawn(small, "micro_batch")
    then = what_if(small, {"micro_batch": 5}).then_ms
    assert then.low is not None and then.mid is not None and then.high is not None
    assert ends(curve, 5) == pytest.approx((then.low * 2 / 5, then.mid * 2 / 5, then.high * 2 / 5))


class _Answers:
    """A stand-in for ``what_if``: a prediction where ``known`` says so; keeps the values that were asked."""

    def __init__(self, now: WhatIf, known: range, *, basis: Any = "calibrated") -> None:
        self.now, self.known, self.basis = now, known, basis
        self.asked: list[int] = []

    def __call__(self, step: StepModel, change: dict[str, int], **_: Any) -> WhatIf:
        (value,) = change.values()
        self.asked.append(value)
        if value == 4096:
            return self.now
        known = value in self.known
        time = Estimate(5.0, 6.0, 7.0, self.basis) if known else Estimate.unknown()
        refused = None if known else Refusal("not_predicted", f"{value} is not", "cause")
        return replace(
            self.now, change={"ffn": [4096, value]}, then_ms=time, saving_ms=time, refused=refused,
            notes=["of most"] if value % 64 == 0 else ["of few"],
        )  # fmt: skip


def answered(monkeypatch: pytest.MonkeyPatch, step: StepModel, known: range, **more: Any) -> Any:
    made = _Answers(what_if(step, {}), known, **more)
    monkeypatch.setattr(explorer, "what_if", made)
    curve = explorer._curve(step, "ffn", [])
    return curve, made.asked


def test_where_nothing_near_is_predicted_the_rest_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, small: StepModel
) -> None:
    curve, asked = answered(monkeypatch, small, range(0))
    assert asked[0] == 4096 and {*asked[1:5]} == {4095, 4097, 4088, 4104} and len(asked) == 7
    assert (curve.values, curve.mid_ms, curve.alignment_bytes, curve.notes) == ([], [], [], [])
    assert curve.why is not None and curve.basis == "model"


@pytest.mark.parametrize(
    ("known", "shown", "missing"),
    [
        (range(4000, 4200), True, True),
        (range(1, 9000), True, False),
        (range(4097, 4098), False, True),  # with the present one two: no curve
        (range(4095, 4098), True, True),  # three are one
    ],
)
def test_a_curve_has_three_points_and_counts_those_it_lacks(
    monkeypatch: pytest.MonkeyPatch, small: StepModel, known: range, shown: bool, missing: bool
) -> None:
    curve, asked = answered(monkeypatch, small, known)
    assert asked == sorted(asked, key=lambda one: abs(one - 4096)) and len(asked) == 45
    assert (curve.why is None, bool(curve.values)) == (shown, shown)
    if not shown:
        assert curve.notes == []
        return
    assert curve.values == sorted(asked) and curve.basis == "calibrated"
    lost = [value for value in asked if value not in known and value != 4096]
    assert [value for value, mid in zip(curve.values, curve.mid_ms, strict=True) if mid is None] == sorted(
        lost
    )
    assert any(str(len(lost)) in note for note in curve.notes) == bool(lost) == missing
    assert any("cause" in note for note in curve.notes) == missing
    of_grid = [one for one in known if one in asked and one % 64 == 0 and one != 4096]
    of_known = [one for one in known if one in asked or one == 4096]
    assert ("of most" in curve.notes) == (2 * len(of_grid) > len({*of_known, 4096}))
    assert "of few" not in curve.notes or len(of_grid) * 2 < len(of_known)


def test_a_curve_is_as_sure_as_its_least_sure_point(
    monkeypatch: pytest.MonkeyPatch, small: StepModel
) -> None:
    curve, _ = answered(monkeypatch, small, range(1, 9000), basis="heuristic")
    assert curve.basis == "heuristic"


def test_a_size_without_neighbours_has_no_curve() -> None:
    """13 heads divide by 1 and 13: two points are no curve."""
    curve = drawn(model_of(Shape(208, 13, 512, v=512, layers=1, b=1, s=64)), "kv_heads")
    assert curve.values == [] and curve.why is not None


# --- what findings propose --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("t", "change", "marked"),
    [
        (1, {"ffn": [4096, 4224]}, [4224]),
        (2, {"ffn": [2048, 2112]}, [4224]),  # of this rank's half
        (2, {"ffn": [4096, 4224]}, [4224]),  # of the whole
        (1, {"ffn": [2048, 2112]}, []),
        (None, {"ffn": [2048, 2112]}, []),  # whether ranks share it is not known
        (1, {"ffn": [4096, 0]}, []),
        (1, {"ffn": [4096]}, []),
        (1, {"ffn": [4096, "wide"]}, []),
        (1, {"dimension": [4096, 4224]}, []),
        (1, {"hidden": [4096, 4224]}, []),
        (1, {"intermediate_size": [4096, 4224]}, [4224]),
    ],
)
def test_values_that_findings_propose(t: int | None, change: dict[str, Any], marked: list[int]) -> None:
    step = model_of(replace(SMALL, t=t or 1))
    curve = drawn(replace(step, now=replace(step.now, tensor_parallel=t)), "ffn", finding(**change))
    assert [one.value for one in curve.suggested] == marked
    assert {*marked} <= {*curve.values}


def test_the_first_finding_that_proposes_a_value_is_named(small: StepModel) -> None:
    two = [replace(finding(ffn=[4096, value]), rule=rule) for rule, value in
           (("TL1", 4224), ("TL2", 4160), ("TL3", 4224))]  # fmt: skip
    assert drawn(small, "ffn", *two).suggested == [Suggested(4224, "TL1"), Suggested(4160, "TL2")]


def test_there_is_a_reason_where_there_is_nothing_to_draw(small: StepModel) -> None:
    names = ("hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "sequence", "micro_batch", "tokens")
    nothing = replace(small, now=replace(small.now, **dict.fromkeys(names)))
    vocab = replace(small, now=replace(nothing.now, vocab=50257, tokens=1024))
    products_only = replace(vocab, work=replace(small.work, attention=()))
    attention_only = replace(vocab, work=replace(small.work, products=()))
    empty = replace(small, work=replace(small.work, products=(), attention=()))
    told = [explore(one).why for one in (nothing, empty, replace(small, step_ms=None))]
    assert len({*told}) == 3 and None not in told
    assert explore(products_only).why is None and explore(attention_only).why is None
    assert explore(replace(small, step_ms=None)).curves == []
