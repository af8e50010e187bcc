"""Two planned steps compared by hand, the reasons that are given, and a search over a made-up step."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.said import Listener
from tracelens.config.model_config import ModelConfig
from tracelens.errors import InputError
from tracelens.results import Estimate, Span
from tracelens.step.planned_change import PlannedStep, compare
from tracelens.step.reasons import PlannedPart, in_ms, why
from tracelens.step.search import FRONT, Combination, Found, _front, search
from tracelens.step.search_space import SearchLimits
from tracelens.step.shape_search import none_faster, nothing_faster, picks_of
from tracelens.step.step import Change, PartChange
from tracelens.step.words import search as words

NOW = ModelConfig(hidden=1024, heads=16, kv_heads=16, head_dim=64, ffn=4096, vocab=50257, layers=24,
                  sequence=1024, micro_batch=4, gated=False, tied=True)  # fmt: skip


def part(ms: float, *sizes: int, kind: Any = "product", **more: Any) -> PlannedPart:
    given: dict[str, Any] = {
        "calls": 1,
        "time_ms": Span(ms, ms, ms, "model"),
        "shape": "x".join(map(str, sizes)),
    }
    return PlannedPart("mlp.up", "forward", kind, sizes=sizes, **(given | more))


def compared(old: PlannedPart, new: PlannedPart, *beside: PlannedPart, then: ModelConfig = NOW) -> Change:
    return compare(PlannedStep(NOW, (old, *beside)), PlannedStep(then, (new, *beside)))


def ends(value: Estimate) -> tuple[float | None, float | None, float | None]:
    return value.low, value.mid, value.high


BESIDE = part(10.0, 7, kind="bytes")
SIZES = (4096, 4096, 4096)
#: Of the ratio of two shapes as far apart as 2 (12 %), and of the farthest (13 %).
NEAR, FAR = 0.12, 0.13


def test_a_products_ratio_is_known_to_twelve_percent() -> None:
    found = compared(part(100.0, *SIZES), part(60.0, 4096, 2048, 4096), BESIDE)
    low, high = 40 - 60 * math.expm1(NEAR), 40 + 60 * (1 - math.exp(-NEAR))
    assert ends(found.saving_ms) == pytest.approx((low, 40.0, high))
    assert ends(found.saving_frac) == pytest.approx((low / 110, 40 / 110, high / 110))
    (one,) = found.parts
    assert (one.time_ms, one.then_ms, one.saving_ms) == (100.0, 60.0, 40.0)
    slight = compared(part(100.0, *SIZES), part(99.0, 4096, 2048, 4096), BESIDE)
    # a loss, of the step now
    assert slight.saving_frac.low == pytest.approx((1 - 99 * math.expm1(NEAR)) / 110)
    far = compared(part(100.0, *SIZES), part(60.0, 4096, 1024, 4096))
    assert far.saving_ms.low == pytest.approx(40 - 60 * math.expm1(FAR))


def test_the_same_call_more_often_has_no_error_and_the_same_call_none_at_all() -> None:
    found = compared(part(100.0, *SIZES, calls=4), part(75.0, *SIZES, calls=3), BESIDE)
    assert ends(found.saving_ms) == (25.0, 25.0, 25.0)
    assert compared(part(100.0, *SIZES), part(100.0, *SIZES), BESIDE).parts == ()


def test_bytes_may_be_bound_by_launches_which_do_not_scale() -> None:
    found = compared(part(10.0, 100, kind="bytes"), part(4.0, 40, kind="bytes"))
    assert ends(found.saving_ms) == pytest.approx((0.0, 6.0, 9.0))


def test_attention_is_as_open_as_its_own_range() -> None:
    old, new = (part(ms, 4, 16, 1024, d, kind="attention", open=0.3) for ms, d in ((50.0, 80), (30.0, 128)))
    found = compared(old, new)
    assert ends(found.saving_ms) == pytest.approx(
        (20 - 30 * math.expm1(0.3), 20, 20 + 30 * (1 - math.exp(-0.3)))
    )


def test_errors_of_one_kind_add_and_kinds_add_in_squares() -> None:
    now = PlannedStep(NOW, (part(100.0, *SIZES), part(100.0, *SIZES), part(10.0, 100, kind="bytes")))
    then = PlannedStep(
        NOW, (part(60.0, 4096, 2048, 4096), part(60.0, 4096, 2048, 4096), part(4.0, 40, kind="bytes"))
    )
    found = compare(now, then)
    assert found.saving_ms.low == pytest.approx(86 - math.hypot(2 * 60 * math.expm1(NEAR), 6.0))
    assert found.saving_ms.high == pytest.approx(86 + math.hypot(2 * 60 * (1 - math.exp(-NEAR)), 3.0))


def test_what_an_alignment_leaves_open_moves_the_present_step_too() -> None:
    """Of the present 4 bytes: 0.2 faster, 0.5 slower; of 128 bytes nothing is open."""
    old = part(100.0, *SIZES, alignment=4, ladder=(0.2, 0.5))
    found = compared(old, part(60.0, 4096, 4104, 4096), BESIDE)
    error = 0.09  # shapes nearer than 5 %
    less, more = 100 * (1 - math.exp(-0.2)), 100 * math.expm1(0.5)
    low = 40 - math.hypot(60 * math.expm1(error), less)
    high = 40 + math.hypot(60 * (1 - math.exp(-error)), more)
    assert ends(found.saving_ms) == pytest.approx((low, 40, high))
    assert ends(found.saving_frac) == pytest.approx((low / 110, 40 / 110, high / (110 + more)))
    back = compared(part(60.0, 4096, 4104, 4096), old, BESIDE)
    worse, better = 100 * math.expm1(0.5), 100 * (1 - math.exp(-0.2))
    assert back.saving_ms.low == pytest.approx(-40 - math.hypot(100 * math.expm1(error), worse))
    assert back.saving_ms.high == pytest.approx(-40 + math.hypot(100 * (1 - math.exp(-error)), better))


def test_torch_compile_leaves_its_copies_to_save() -> None:
    """15 ms of copies are saved for sure but for a half that it fuses, of a step that is 25 ms shorter."""
    found = compared(part(100.0, *SIZES, pad_ms=15.0), part(60.0, 4096, 4104, 4096), BESIDE)
    assert found.saving_ms.low == pytest.approx(15 - 7.5)
    assert found.saving_frac.low == pytest.approx(7.5 / (110 - 25))
    kept = compared(part(100.0, *SIZES, pad_ms=15.0), part(60.0, 4096, 4104, 4096, pad_ms=1.0), BESIDE)
    assert kept.saving_ms.low == pytest.approx(40 - 60 * math.expm1(0.09))


def test_steps_of_other_tokens_are_compared_per_token() -> None:
    then = replace(NOW, micro_batch=8)
    found = compared(
        part(100.0, *SIZES, flops=10.0), part(160.0, 8192, 4096, 4096, flops=24.0),
        part(10.0, 1, kind="bytes"), then=then,
    )  # fmt: skip
    assert found.saving_ms.mid == pytest.approx(100 - 80 + 10 - 5)
    assert found.flops_frac == pytest.approx(0.2)
    # the gain of the shape is without what fewer operations save
    fewer = replace(found, flops_frac=-0.2, saving_frac=Estimate(0.3, 0.4, 0.5, "model"))
    assert (fewer.sure_gain_frac, fewer.shape_gain_frac) == pytest.approx((1 - 0.7 / 0.8, 1 - 0.6 / 0.8))
    assert replace(fewer, flops_frac=0.2).shape_gain_frac == 0.4


@pytest.mark.parametrize(
    ("low", "mid", "high", "ms"),
    [
        (10, 20, 30, (0.03, 0.06, 0.09)),
        (10, None, None, (0.03, 0.03, 0.03)),
        (None, 20, None, (0.06, 0.06, 0.06)),
        (10, None, 30, (0.03, 0.03, 0.09)),
    ],
)
def test_the_least_time_stands_for_one_that_is_not_known(
    low: float | None, mid: float | None, high: float | None, ms: tuple[float, float, float]
) -> None:
    found = in_ms(Estimate(low, mid, high, "model"), 3, "cannot")
    assert (found.low, found.mid, found.high) == pytest.approx(ms)
    with pytest.raises(InputError, match="cannot"):
        in_ms(Estimate(None, None, 5.0, "model"), 3, "cannot")


def heads(ms: float, backend: str, note: str, computed: float, *sizes: int) -> PlannedPart:
    return part(ms, *sizes, kind="attention", backend=backend, note=note, computed_flops=computed)


#: What moved the time, where it goes the way of the time.
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (part(10.0, 1, kind="bytes"), part(4.0, 2, kind="bytes")),
        (part(100.0, *SIZES, alignment=2), part(60.0, 8, 8, 8)),
        (part(60.0, 8, 8, 8), part(100.0, *SIZES, alignment=2)),
        # a better alignment is no reason for a longer time
        (part(60.0, 8, 8, 8, alignment=2, flops=2e11), part(100.0, *SIZES, flops=3e11)),
        (part(60.0, 8, 8, 8, flops=2e11), part(50.0, *SIZES, flops=1.5e11)),
        # the same operations in less time: their rate, and the tiles where they differ
        (part(2.0, 8, 8, 8, flops=1e12, note="a"), part(1.0, *SIZES, flops=1e12, note="b")),
        (part(2.0, 8, 8, 8, flops=1e12, note="a"), part(1.0, *SIZES, flops=1.004e12, note="a")),
        # a little slower at a better rate: so it is the operations, few as they are
        (part(10.0, 8, 8, 8, flops=1e12), part(10.01, *SIZES, flops=1.004e12)),
        # batch x heads x length^2: half of the heads are half of the exponentials
        (heads(10.0, "flash", "", 4e11, 4, 32, 1024, 64), heads(8.0, "flash", "", 4e11, 4, 16, 1024, 128)),
        (heads(10.0, "flash", "", 4e11, 4, 16, 512, 64), heads(18.0, "flash", "", 8e11, 4, 16, 1024, 64)),
        (heads(10.0, "flash", "", 4e11, 2, 16, 512, 64), heads(18.0, "flash", "", 8e11, 3, 16, 512, 64)),
        (heads(10.0, "flash", "80 runs as 96", 6e11, 4, 32, 512, 80),
         heads(8.0, "cudnn", "", 4e11, 4, 32, 512, 64)),
        (heads(8.0, "cudnn", "", 4e11, 4, 32, 512, 64),
         heads(10.0, "cudnn", "80 runs as 96", 6e11, 4, 32, 512, 80)),
    ],
)  # fmt: skip
def test_why_a_kernel_takes_another_time(old: PlannedPart, new: PlannedPart, said: Listener) -> None:
    said(why(old, new, old.time_ms.mid, new.time_ms.mid))


def test_reasons_are_per_token(said: Listener) -> None:
    """Twice the operations of twice the tokens are the same: then it is the rate."""
    old, new = part(10.0, 8, 8, 8, flops=1e12), part(16.0, 16, 8, 8, flops=2e12)
    said(why(old, new, 10.0, 8.0))


def test_a_front_gains_a_ten_thousandth_with_each_point() -> None:
    points = [(0.0, 1.0), (-0.01, 0.99995), (-0.02, 0.9998), (-0.03, 0.9998), (-0.04, 0.95), (0.0, 0.99999)]
    models = [replace(NOW, ffn=64 * at) for at in range(len(points))]
    found = _front(
        [Combination(one, time, weights) for one, (weights, time) in zip(models, points, strict=True)]
    )
    assert [(one.parameters_frac, one.time_frac) for one in found] == [
        (0.0, 0.99999), (-0.02, 0.9998), (-0.04, 0.95)
    ]  # fmt: skip


# --- the search -------------------------------------------------------------------------------------------


class MadeUp:
    """A step of 100 ms, less for a vocabulary on the grid and for other heads than 16."""

    def __init__(self, *, heads_ms: float = 0.0, open_ms: float = 0.0, vocab_ms: float = 5.0) -> None:
        self.heads_ms, self.open_ms, self.vocab_ms = heads_ms, open_ms, vocab_ms

    def vocab_ranks(self, now: ModelConfig, /) -> int:
        """One."""
        return 1

    def time_ms(self, then: ModelConfig, /) -> float:
        """Of the whole step."""
        saved = self.vocab_ms if (then.vocab or 0) % 64 == 0 else 0.0
        return 100.0 - saved - (self.heads_ms if then.heads != 16 else 0.0)

    def change(self, now: ModelConfig, then: ModelConfig, /) -> Change:
        """The difference, with its range."""
        saved, whole = self.time_ms(now) - self.time_ms(then), self.time_ms(now)
        low, high = saved - self.open_ms, saved + self.open_ms
        moved = PartChange("logits", "forward", "product", "a", "b", whole, whole - saved, saved, "made up")
        return Change(now, then, Estimate(low / whole, saved / whole, high / whole, "model"),
                      Estimate(low, saved, high, "model"), 0.0, (moved,))  # fmt: skip

    def memory(self, then: ModelConfig, /) -> float:
        """Bytes."""
        return 1e9 * (then.micro_batch or 0)


def picks(step: MadeUp, free: set[str], now: ModelConfig = NOW) -> tuple[list[str], Found]:
    limits = SearchLimits(free=frozenset(free))
    found = search(step, now, limits)
    shown, unsure = picks_of(step, found, lambda then: [f"vocab {then.vocab}"])
    return [one.title for one in shown] + ([f"unsure: {unsure.title}"] if unsure else []), found


HEADS = {"heads", "head_dim"}


@pytest.mark.parametrize(
    ("step", "free", "titles"),
    [
        (MadeUp(), {"vocab"}, ["vocab 50257 → 50304"]),
        (MadeUp(vocab_ms=1.01), {"vocab"}, ["vocab 50257 → 50304"]),
        (MadeUp(vocab_ms=0.99), {"vocab"}, []),  # below one percent
        (MadeUp(open_ms=6.0), {"vocab"}, ["unsure: vocab 50257 → 50304"]),
        (MadeUp(), HEADS, []),
        (MadeUp(heads_ms=3.0), HEADS, ["heads 16 → 8, head_dim 64 → 128"]),
        # both pay: together, then each alone
        (MadeUp(heads_ms=3.0), {"vocab"} | HEADS,
         ["heads 16 → 8, head_dim 64 → 128, vocab 50257 → 50304", "vocab 50257 → 50304",
          "heads 16 → 8, head_dim 64 → 128"]),
        # heads add 0.2 % to the vocabulary, which is not worth it
        (MadeUp(heads_ms=0.2), {"vocab"} | HEADS, ["vocab 50257 → 50304"]),
    ],
)  # fmt: skip
def test_what_is_picked(step: MadeUp, free: set[str], titles: list[str]) -> None:
    assert picks(step, free)[0] == titles


def test_a_pick_says_what_it_needs(said: Listener) -> None:
    step = MadeUp(heads_ms=3.0)
    found = search(step, NOW, SearchLimits(free=frozenset({"vocab", *HEADS})))
    (both, vocab, few), _ = picks_of(step, found, lambda then: [f"vocab {then.vocab}"])
    assert (both.effort, few.effort) == ("retrain", "retrain")
    assert vocab.effort == "config"
    assert vocab.diff == ["vocab 50304"] and vocab.memory_frac == 0.0
    said(vocab.effort_why)
    weights = 12 * 1024**2 * 24 + 50257 * 1024
    assert vocab.parameters_frac == pytest.approx(47 * 1024 / weights)
    assert both.change == {
        "heads": [16, 8],
        "kv_heads": [16, 8],
        "head_dim": [64, 128],
        "vocab": [50257, 50304],
    }
    assert [one.saving_ms for one in both.reasons] == [8.0]
    text = words.claim(vocab.title, vocab.saving_frac)
    assert both.effort_why.startswith("another architecture")
    said(text, few.effort_why)


@pytest.mark.parametrize(
    ("sizes", "effort"),
    [
        ({"micro_batch": 8}, "config"),
        ({"micro_batch": 8, "vocab": 50304}, "config"),
        ({"sequence": 2048}, "config"),
        ({"ffn": 4160}, "retrain"),
        ({"heads": 15}, "retrain"),
        ({"heads": 20}, "retrain"),
    ],
)
def test_what_a_change_asks_for(sizes: dict[str, int], effort: str, said: Listener) -> None:
    step, then = MadeUp(), replace(NOW, **sizes)  # type: ignore[arg-type]
    found = Found((step.change(NOW, then),), (), 1)
    (one,), _ = picks_of(step, found, lambda _: [])
    assert one.effort == effort
    assert one.memory_frac == (1.0 if "micro_batch" in sizes else 0.0)
    said(one.effort_why)


def test_a_shape_that_is_left_alone_is_judged_in_words(said: Listener) -> None:
    found, limits = Found((), (), 1234), SearchLimits(parameters_frac=0.02)
    none = none_faster(found, limits)
    said(none, nothing_faster(NOW, "GPU", found, limits))
    odd = nothing_faster(replace(NOW, heads=25), "GPU", found, limits, fits=False)
    said(odd, nothing_faster(replace(NOW, heads=1), "GPU", found, limits))
    said(none_faster(Found((), (), 1), limits))


def test_the_front_has_as_many_points_as_are_shown() -> None:
    """Each narrower MLP is faster: the front is thinned evenly and keeps both ends."""

    class Narrower(MadeUp):
        def time_ms(self, then: ModelConfig, /) -> float:
            return (then.ffn or 0) / 40.96

    found = search(Narrower(), NOW, SearchLimits(parameters_frac=0.2, free=frozenset({"ffn"})))
    front = [one.model.ffn or 0 for one in found.front]
    assert len(front) == FRONT and front == sorted(front, reverse=True)
    room = 0.2 * (12 * 1024**2 * 24 + 50257 * 1024) / (2 * 1024 * 24)
    assert (front[0], front[-1]) == (
        4096 + room // 64 * 64, 4096 - room // 64 * 64,
    )  # fmt: skip
    steps = {a - b for a, b in pairwise(front)}
    assert max(steps) - min(steps) <= 64
    assert found.front[0].time_frac == pytest.approx(front[0] / 4096)


def test_memory_bounds_what_is_tried() -> None:
    """8 GB of 80 GB used: 0.92 of 8.8 GB hold micro-batches of 8 and none of more."""
    limits = SearchLimits(free=frozenset({"micro_batch"}), memory_gb=8.8)
    assert {one.model.micro_batch for one in search(MadeUp(), NOW, limits).front} <= {4, 6, 8}
    assert search(MadeUp(), NOW, limits).tried == 2
    assert search(MadeUp(), NOW, replace(limits, memory_gb=8.6)).tried == 1
