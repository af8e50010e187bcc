"""What ranks exchange, counted by hand: shares that leave a rank, micro-batches, gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_messages import message
from tests.advice.advice_steps import Shape, dims_of, spread
from tests.said import Listener
from tracelens.config.model_config import ModelConfig
from tracelens.step.exchange import bubble, exchange_of, same_gpus, vocab_is_split

NOW = ModelConfig(hidden=4096, heads=32, head_dim=128, ffn=14336, layers=32, tensor_parallel=4,
                  sequence=2048, micro_batch=2)  # fmt: skip
#: 4 h^2 and 2 h f of each layer, on one rank.
WEIGHTS = 32 * (4 * 4096**2 + 2 * 4096 * 14336)


@pytest.mark.parametrize(
    ("then", "low", "mid", "high"),
    [
        # half the micro-batches; 1/2 of a message leaves a rank of two, 3/4 one of four
        ({"tensor_parallel": 2}, 3.0, 3.0, 4.5),
        ({"tensor_parallel": 2, "micro_batch": 8}, 12.0, 12.0, 18.0),
        ({"tensor_parallel": 2, "sequence": 1024}, 1.5, 1.5, 4.5),
        ({"tensor_parallel": 2, "hidden": 8192}, 6.0, 6.0, 9.0),
        ({"tensor_parallel": 1}, 0.0, 0.0, 0.0),
    ],
)
def test_messages_of_fewer_tensor_parallel_ranks(
    then: dict[str, int], low: float, mid: float, high: float
) -> None:
    sent = [message(exposed=5.0, time=6.0), message("all_gather", exposed=4.0)]
    found = exchange_of(sent, NOW, replace(NOW, **then)).rest[0]  # type: ignore[arg-type]
    assert (found.time_ms, found.then_ms.low, found.then_ms.mid, found.then_ms.high) == pytest.approx(
        (9.0, low, mid, high)
    )
    assert found.scales_with == "exposed messages*(t-1)/t" and found.phase == "forward"


@pytest.mark.parametrize(
    ("then", "mid", "high"),
    [
        # 3/4 leave a rank of four, 7/8 one of eight; expert-parallel ranks are data-parallel ones, too
        ({"expert_parallel": 4}, 6.0, 7.0),
        ({"expert_parallel": 4, "top_k": 4}, 12.0, 14.0),
        ({"expert_parallel": 4, "top_k": None}, 3.0, 7.0),
        ({"expert_parallel": None}, 0.0, 0.0),
    ],
)
def test_messages_of_fewer_expert_parallel_ranks(then: dict[str, Any], mid: float, high: float) -> None:
    now = replace(NOW, tensor_parallel=None, expert_parallel=8, experts=8, top_k=2)
    sent = [message("all_to_all", purpose="expert all-to-all", exposed=7.0, time=7.0, phase="backward")]
    found = exchange_of(sent, now, replace(now, **then))
    rest = found.rest[0]
    assert (rest.time_ms, rest.then_ms.mid, rest.then_ms.high) == pytest.approx((7.0, mid, high))
    assert rest.scales_with == "exposed messages*(ep-1)/ep" and rest.phase == "backward"
    assert not found.notes  # as many GPUs for a copy of the model


def test_messages_of_each_phase_are_one_row_and_those_of_others_none() -> None:
    sent = [
        message(exposed=1.0), message(exposed=2.0, phase="backward"), message(exposed=3.0),
        message(exposed=0.0, phase="optimizer"), message(exposed=4.0, purpose="pipeline"),
    ]  # fmt: skip
    found = exchange_of(sent, NOW, replace(NOW, tensor_parallel=2)).rest
    assert [(one.phase, one.time_ms) for one in found[:2]] == [("forward", 4.0), ("backward", 2.0)]
    assert [one.time_ms for one in found[2:]] == [0.0]  # gradients between copies that there were not before


@pytest.mark.parametrize("then", [{}, {"hidden": 8192}, {"pipeline_parallel": 1}])
def test_where_the_ranks_stay_nothing_changes(then: dict[str, int]) -> None:
    found = exchange_of([message()], NOW, replace(NOW, **then))  # type: ignore[arg-type]
    assert (found.rest, found.unknown, found.notes) == ((), None, ())


@pytest.mark.parametrize(
    "purpose",
    ["data-parallel gradients", "FSDP parameter gather", "FSDP gradient scatter", "optimizer shards"],
)
def test_what_copies_exchange_grows_with_the_weights_of_a_rank(purpose: str) -> None:
    """Half as many ranks: twice the weights each; and twice as many again in 32 bits."""
    gradients = message(purpose=purpose, exposed=3.0, phase="backward")
    found = exchange_of([message(), gradients], NOW, replace(NOW, tensor_parallel=2)).rest[1]
    then = found.then_ms
    assert (found.time_ms, then.low, then.mid, then.high) == pytest.approx((3.0, 3.0, 6.0, 12.0))


@pytest.mark.parametrize(("t", "copies"), [(2, 2), (1, 4)])
def test_new_copies_exchange_gradients_over_the_fastest_link_seen(t: int, copies: int) -> None:
    """An all-reduce of 16-bit gradients: 2 (n - 1)/n of them cross a link of 250 GB/s."""
    sent = [message(bus_gbps=250.0), message(bus_gbps=100.0), message(purpose="pipeline", bus_gbps=900.0)]
    found = exchange_of(sent, NOW, replace(NOW, tensor_parallel=t)).rest[-1]
    assert found.phase == "backward"
    took = 2 * (copies - 1) / copies * (WEIGHTS / t) * 2 / 250e9 * 1e3
    assert (found.then_ms.low, found.then_ms.mid, found.then_ms.high) == pytest.approx((0, took, 2 * took))


@pytest.mark.parametrize(
    ("now", "then"), [((4, 1, 3), (2, 1)), ((4, 1, 4), (2, 1)), ((4, 1, None), (1, 1)), ((4, 2, 6), (4, 4))]
)
def test_micro_batches_at_the_same_gpus(
    now: tuple[int, int, int | None], then: tuple[int, int], said: Listener
) -> None:
    before = replace(NOW, tensor_parallel=now[0], pipeline_parallel=now[1], micro_batches=now[2])
    after = replace(before, tensor_parallel=then[0], pipeline_parallel=then[1])
    said(same_gpus(before, after))


def test_more_ranks_are_told_as_if_links_were_as_fast(said: Listener) -> None:
    """Twice the micro-batches, and 7/8 of a message leaves a rank and not 3/4."""
    sent = [message(exposed=6.0, time=6.0), message(exposed=5.0, purpose="pipeline")]
    found = exchange_of(sent, NOW, replace(NOW, tensor_parallel=8))
    assert found.unknown is not None
    said(found.unknown)


@pytest.mark.parametrize(
    ("then", "notes"),
    [
        # 4 all-reduces of a layer in 16 micro-batches, 2 * 7/8 of 4096 x 4096 elements of 2 bytes each
        ({}, 2),
        ({"micro_batches": None}, 1),
        ({"layers": None}, 1),
        ({"hidden": None}, 1),
        ({"micro_batch": None}, 1),
    ],
)
def test_bytes_that_megatron_would_send(then: dict[str, Any], notes: int, said: Listener) -> None:
    now = replace(NOW, micro_batches=8)
    found = exchange_of([message()], now, replace(now, tensor_parallel=8, **then)).notes
    assert len(found) == notes
    said(found)
    assert round(4 * 32 * 16 * 2 * 7 / 8 * 4096 * 4096 * 2 / 1e9) == 120
    for dtype, size in (("fp32", 4), ("tf32", 4), ("fp8", 2)):  # fp8 GEMMs exchange 16 bits
        typed = replace(now, dtype=dtype)
        *_, last = exchange_of([message()], typed, replace(typed, tensor_parallel=8, **then)).notes
        assert notes == 1 or f"{size} bytes" in last
    experts = replace(now, tensor_parallel=1, expert_parallel=4)
    assert exchange_of([], experts, replace(experts, expert_parallel=8)).notes == ()


# --- the vocabulary -----------------------------------------------------------------------------------------

LLAMA = Shape(4096, 32, 14336, v=32064, kv=8, gated=True, b=2, t=4)
TOKENS = LLAMA.b * LLAMA.s


@pytest.mark.parametrize(
    ("declared", "split"),
    [
        # padded by less than 1024 of each rank: 32064 columns, or 4 times as many
        (32065, None), (32064, False), (31041, False), (31040, None),
        (128257, None), (128256, True), (124161, True), (124160, None),
    ],
)  # fmt: skip
def test_a_declared_vocabulary(declared: int, split: bool | None) -> None:
    assert vocab_is_split([], dims_of(LLAMA), tokens=TOKENS, declared=declared) is split


@pytest.mark.parametrize(
    ("more", "split"),
    [
        ({"bytes_per_call": 4.0 * TOKENS * LLAMA.h}, False),  # an fp32 activation
        ({"bytes_per_call": 6.0 * TOKENS * LLAMA.h}, None),
        ({"bytes_per_call": 2.0 * TOKENS * LLAMA.v}, True),
        ({"bytes_per_call": 4.0 * TOKENS * LLAMA.v * LLAMA.t}, True),
        ({"bytes_per_call": 4.0 * TOKENS, "purpose": "unknown"}, True),
        ({"bytes_per_call": 4.0 * TOKENS, "group_size": None}, True),
        ({"bytes_per_call": 4.0 * TOKENS, "collective": "reduce_scatter"}, True),
        ({"bytes_per_call": 4.0 * TOKENS, "group_size": 8}, False),  # of other ranks
        ({"bytes_per_call": 4.0 * TOKENS, "purpose": "pipeline"}, False),
        ({"bytes_per_call": 4.0 * TOKENS, "collective": "broadcast"}, False),
    ],
)
def test_messages_that_show_a_split_vocabulary(more: dict[str, Any], split: bool | None) -> None:
    rows = [message(bytes_per_call=2.0 * TOKENS * LLAMA.h), message(**more)]
    assert vocab_is_split(rows, dims_of(LLAMA), tokens=TOKENS, declared=None) is split


@pytest.mark.parametrize(
    "unknown", [{"tensor_parallel": None}, {"tensor_parallel": 1}, {"vocab": None}, {"hidden": None}]
)
def test_without_ranks_or_sizes_nothing_tells(unknown: dict[str, int | None]) -> None:
    rows = [message(bytes_per_call=4.0 * TOKENS, group_size=None)]
    dims = spread(dims_of(LLAMA), **unknown)
    assert vocab_is_split(rows, dims, tokens=TOKENS, declared=32064) is None


def test_the_bubble_of_a_first_pipeline(said: Listener) -> None:
    now = replace(NOW, tensor_parallel=1, micro_batches=8)
    said(bubble(now, replace(now, pipeline_parallel=2), work_ms=32.0))
