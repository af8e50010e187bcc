"""What a search tries, judges and picks, over made-up steps whose times are counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracelens.config.model_config import ModelConfig
from tracelens.results import Estimate
from tracelens.step.search import Found, search
from tracelens.step.search_space import SearchLimits
from tracelens.step.shape_search import picks_of
from tracelens.step.step import Change

NOW = ModelConfig(hidden=1024, heads=16, kv_heads=16, head_dim=64, ffn=4096, vocab=50257, layers=24,
                  sequence=1024, micro_batch=4, gated=False, tied=True)  # fmt: skip
HEADS = frozenset({"heads", "head_dim"})
#: ms of 100 that each of these saves.
SAVES = {"vocab": (50304, 8.0), "heads": (8, 4.0), "ffn": (4032, 2.0), "layers": (25, 1.5)}


class Step:
    """100 ms, less what ``saves`` says of single sizes; ``open_ms`` to each side is not known."""

    def __init__(self, saves: dict[str, tuple[int, float]], *, open_ms: float = 0.0) -> None:
        self.saves, self.open_ms = saves, open_ms
        self.judged: list[ModelConfig] = []

    def vocab_ranks(self, now: ModelConfig, /) -> int:
        """One."""
        return 1

    def time_ms(self, then: ModelConfig, /) -> float:
        """Of the whole step."""
        return 100.0 - sum(ms for name, (value, ms) in self.saves.items() if then.get(name) == value)

    def flops(self, now: ModelConfig, then: ModelConfig) -> float:
        """Growth of the operations."""
        return 0.0

    def change(self, now: ModelConfig, then: ModelConfig, /) -> Change:
        """The difference, with its range."""
        self.judged.append(then)
        whole = self.time_ms(now)
        saved = whole - self.time_ms(then)
        low, high = saved - self.open_ms, saved + self.open_ms
        share = Estimate(low / whole, saved / whole, high / whole, "model")
        return Change(now, then, share, Estimate(low, saved, high, "model"), self.flops(now, then), ())

    def memory(self, then: ModelConfig, /) -> float | None:
        """A GB for each sequence."""
        return 1e9 * then.micro_batch if then.micro_batch else None


def found(step: Step, free: set[str] | frozenset[str], now: ModelConfig = NOW, share: float = 0.01,
          memory_gb: float | None = None) -> Found:  # fmt: skip
    return search(step, now, SearchLimits(share, frozenset(free), memory_gb=memory_gb))


def changed(one: Change) -> set[str]:
    return {name for name in SAVES if one.then.get(name) != one.now.get(name)}


def test_all_together_then_the_best_with_fewer_changes() -> None:
    """One of four and one of three, two of two, and of the single ones what is left of five picks.

    Saved are 15.5, 14 (without the layers), 12 and 10 (the vocabulary and one more), and 8 ms.
    """
    told = found(Step(SAVES), {*SAVES, "head_dim"}, share=0.05)
    assert [changed(one) for one in told.picks] == [
        {"vocab", "heads", "ffn", "layers"}, {"vocab", "heads", "ffn"}, {"vocab", "heads"},
        {"vocab", "ffn"}, {"vocab"},
    ]  # fmt: skip
    assert [one.saving_ms.mid for one in told.picks] == [15.5, 14.0, 12.0, 10.0, 8.0]
    assert told.best_unsure is None and told.notes == ()


def test_of_three_sizes_two_single_ones_are_picked() -> None:
    saves = {name: SAVES[name] for name in ("vocab", "heads", "ffn")}
    told = found(Step(saves), {*saves, "head_dim"}, share=0.05)
    assert [changed(one) for one in told.picks] == [
        {"vocab", "heads", "ffn"}, {"vocab", "heads"}, {"vocab", "ffn"}, {"vocab"}, {"heads"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("saved", "open_ms", "picked", "unsure"),
    [
        (1.0, 0.0, True, False),  # one percent is worth it
        (0.99, 0.0, False, False),
        (5.0, 4.9, True, False),
        (5.0, 5.0, False, True),  # it can be nothing
        (5.0, 6.0, False, True),
    ],
)
def test_what_is_surely_worth_it(saved: float, open_ms: float, picked: bool, unsure: bool) -> None:
    told = found(Step({"vocab": (50304, saved)}, open_ms=open_ms), {"vocab"})
    assert (bool(told.picks), told.best_unsure is not None) == (picked, unsure)
    assert told.tried == 1


@pytest.mark.parametrize(("more", "told"), [(3.0, True), (1.1, True), (0.9, False)])
def test_what_is_unsure_is_told_where_it_is_a_percent_better(more: float, told: bool) -> None:
    """Heads save 5 ms for sure, the vocabulary more, or nothing."""

    class Vocabulary(Step):
        def change(self, now: ModelConfig, then: ModelConfig, /) -> Change:
            self.open_ms = 99.0 if then.vocab != now.vocab else 0.0
            return super().change(now, then)

    saves = {"heads": (8, 5.0), "vocab": (50304, 5.0 + more)}

    class Either(Vocabulary):
        def time_ms(self, then: ModelConfig, /) -> float:
            return 100.0 if then.heads == 8 and then.vocab == 50304 else super().time_ms(then)

    one = found(Either(saves), HEADS | {"vocab"})
    assert [changed(each) for each in one.picks] == [{"heads"}]
    assert (one.best_unsure is not None) == told


def test_what_adds_nothing_for_sure_is_unsure_over_what_it_contains() -> None:
    """The vocabulary saves 8 ms for sure; other heads 4 more, or nothing."""

    class Heads(Step):
        def change(self, now: ModelConfig, then: ModelConfig, /) -> Change:
            self.open_ms = 4.0 if then.heads != now.heads else 0.0
            return super().change(now, then)

    step = Heads({name: SAVES[name] for name in ("vocab", "heads")})
    told = found(step, HEADS | {"vocab"})
    assert [changed(one) for one in told.picks] == [{"vocab"}]
    _, unsure = picks_of(step, told, lambda _: [])
    assert unsure is not None and (unsure.saving_frac.low or 0) > 0
    assert unsure.unsure_over == {"vocab": [50257, 50304]}
    _, alone = picks_of(step, found(step, HEADS), lambda _: [])
    assert alone is not None and alone.unsure_over == {}


def test_a_smaller_model_is_not_judged_before_a_better_one() -> None:
    """Time goes with the weights, but for one width which takes 2 % less: of 130 it is among the first."""

    class Weighed(Step):
        def time_ms(self, then: ModelConfig, /) -> float:
            return 100.0 * (1 + self.flops(NOW, then)) * (0.98 if then.ffn == 4160 else 1.0)

        def flops(self, now: ModelConfig, then: ModelConfig) -> float:
            return (then.parameters or 0) / (now.parameters or 1) - 1

    step = Weighed({})
    told = found(step, {"ffn"}, share=0.2)
    assert told.tried > 30
    (pick,) = told.picks
    grown = 64 * 2 * 1024 * 24 / (12 * 1024**2 * 24 + 50257 * 1024)
    assert pick.then.ffn == 4160 and pick.saving_frac.mid == pytest.approx(1 - 0.98 * (1 + grown))


def test_the_present_shape_is_on_the_front_where_nothing_is_faster() -> None:
    told = found(Step({}), HEADS)
    assert [(one.model, one.time_frac, one.parameters_frac) for one in told.front] == [(NOW, 1.0, 0.0)]
    faster = found(Step({"heads": (8, 4.0)}), HEADS)
    assert [(one.model.heads, one.time_frac) for one in faster.front] == [(8, 0.96)]


def test_more_padding_than_a_pick_has_is_not_on_the_front() -> None:
    """50304 and 50432 take the same time: the least padded one, with other widths of the MLP as well."""

    class Padded(Step):
        def time_ms(self, then: ModelConfig, /) -> float:
            return 92.0 + (then.ffn or 0) / 4096 if (then.vocab or 1) % 64 == 0 else 101.0

    told = found(Padded({}), {"vocab", "ffn"}, replace(NOW, vocab=50257), share=0.05)
    assert len(told.front) > 2 and {one.model.vocab for one in told.front} == {50304}
    assert {pick.then.vocab for pick in told.picks} == {50304}


@pytest.mark.parametrize("tokens", [None, 4096])
def test_times_are_compared_where_the_tokens_are_not_known(tokens: int | None) -> None:
    now = replace(NOW, micro_batch=None, sequence=None, tokens=tokens)
    told = found(Step({"vocab": (50304, 8.0)}), {"vocab"}, now)
    assert [one.time_frac for one in told.front] == [0.92]


def test_time_per_token_of_other_batches() -> None:
    """100 ms whatever the batch: of 4, 6 and 8 sequences, those of 8 take half for each."""
    told = found(Step({}), {"micro_batch"}, memory_gb=8.8)  # 92 % of it are 8.1
    assert [(one.model.micro_batch, one.time_frac) for one in told.front] == [(8, 0.5)] and told.tried == 2
    alone = found(Step({}), {"micro_batch"}, memory_gb=1.0)  # the present one needs four
    assert alone.tried == 0


def test_a_shape_that_needs_as_much_memory_as_now_is_tried() -> None:
    assert found(Step({}), HEADS, share=0.0).tried == 1
    unknown = replace(NOW, micro_batch=None, tokens=4096)
    assert found(Step({}), HEADS, unknown).tried == 1


def test_sizes_that_are_fixed_and_batches_of_experts_are_not_tried() -> None:
    limits = SearchLimits(0.05, frozenset({"vocab", "micro_batch", "layers"}), memory_gb=80.0)
    told = search(Step({}), NOW, limits, fixed={"layers": "", "micro_batch": ""})
    assert told.tried == 1
    experts = replace(NOW, experts=8)
    assert search(Step({}), experts, limits, fixed={"layers": ""}).tried == 1
    assert search(Step({}), NOW, limits, fixed={"layers": ""}).tried == 2 * 7 - 1


def test_a_pick_of_a_model_whose_weights_are_not_known() -> None:
    now = replace(NOW, layers=None)
    step = Step({"vocab": (50304, 8.0)})
    (pick,), _ = picks_of(step, found(step, {"vocab"}, now), lambda _: [])
    assert (pick.parameters, pick.parameters_frac, pick.memory_frac) == (None, 0.0, 0.0)


def test_a_candidate_without_a_prediction_as_a_whole_is_no_pick() -> None:
    class Unknown(Step):
        def change(self, now: ModelConfig, then: ModelConfig, /) -> Change:
            return super().change(now, then) if then.vocab == now.vocab else None  # type: ignore[return-value]

    told = found(Unknown({"vocab": (50304, 8.0), "heads": (8, 4.0)}), HEADS | {"vocab"})
    assert [changed(one) for one in told.picks] == [{"heads"}] and told.best_unsure is None
