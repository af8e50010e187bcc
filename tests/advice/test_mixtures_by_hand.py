"""How a mixture of experts is read off its products: how they run, how many, their rows, their ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_rows import gemm, model
from tests.advice.advice_steps import spread
from tracelens.results import GemmRow, ModelDims
from tracelens.results.gemm import Axis
from tracelens.results.row_sizes import Groups
from tracelens.step.experts import Mixture, mixture_of

H, F, TOKENS = 4096, 1024, 2048


def expert(m: int | None, calls: float = 8.0, *, n: int = H, k: int = F, **more: Any) -> GemmRow:
    """The product back to the model's width unless ``n`` says otherwise."""
    row = gemm(1, m or 1, n, k, component="moe.experts", calls=calls, **more)
    return replace(row, m=m)


def router(calls: float = 1.0, *, n: int = 8, **more: Any) -> GemmRow:
    return gemm(9, TOKENS, n, H, component="moe.router", calls=calls, **more)


def dims(experts: int | None = 8, ranks: int | None = None) -> ModelDims:
    return spread(model(hidden=H, ffn=F, experts=experts), expert_parallel=ranks)


def found(*rows: GemmRow, experts: int | None = 8, ranks: int | None = None,
          tokens: int | None = TOKENS) -> Mixture:  # fmt: skip
    told = mixture_of(rows, dims(experts, ranks), tokens=tokens)
    assert told is not None
    return told


@pytest.mark.parametrize(
    ("row", "how"),
    [
        (expert(512), "loop"),
        (expert(512, batch=8), "batched"),
        (expert(512, batch=2), "batched"),
        (expert(512, batch=1), "loop"),
        (replace(expert(512), batch=None), "loop"),
        (replace(expert(4096), groups=Groups("m", 8)), "grouped"),
        (replace(expert(4096, batch=8), groups=Groups("m", 8)), "grouped"),
        (expert(H, n=F, k=512, role="wgrad"), "loop"),
        (expert(TOKENS, n=F, k=512, role="wgrad"), "loop"),  # of a weight gradient k are the tokens
    ],
)
def test_how_experts_run(row: GemmRow, how: str) -> None:
    assert found(row).how == how


def test_products_of_every_token_are_a_shared_expert_and_none_of_these() -> None:
    shared = [expert(TOKENS), expert(H, n=F, k=TOKENS, role="wgrad")]
    assert mixture_of(shared, dims(), tokens=TOKENS) is None
    assert found(*shared, tokens=None).how == "loop"  # tokens that are not known are no row's
    assert mixture_of([gemm(1, 512, H, F)], dims(), tokens=TOKENS) is None
    batched = found(*shared, expert(512, batch=8, time_us=1.0))
    assert (batched.how, [row.batch for row in batched.rows]) == ("batched", [8])
    attention = replace(expert(512), kind="attention")
    assert mixture_of([attention], dims(), tokens=TOKENS) is None


@pytest.mark.parametrize(
    ("experts", "ranks", "routed", "calls", "local"),
    [
        (8, 2, 1.0, 8.0, 4),  # its share by the ranks, whatever runs
        (8, 8, 1.0, 8.0, 1),
        (8, 1, None, 8.0, 8),
        (9, 2, 1.0, 8.0, None),  # ranks that do not divide them, and a router of nine that is not there
        (8, None, 1.0, 8.0, 8),  # calls of the product back for each of the router
        (8, None, 4.0, 16.0, 4),
        (8, None, 1.0, 1.0, 1),
        (8, None, 2.0, 1.0, None),  # half an expert
        (8, None, 100.0, 401.5, None),
        (8, None, 100.0, 400.9, 4),
        (8, None, None, 8.0, None),  # no router
        (None, None, 1.0, 8.0, None),
        (None, 2, 1.0, 8.0, None),
    ],
)
def test_experts_of_a_loop_on_this_rank(
    experts: int | None, ranks: int | None, routed: float | None, calls: float, local: int | None
) -> None:
    rows = [expert(512, calls)] + ([router(routed)] if routed else [])
    told = found(*rows, experts=experts, ranks=ranks)
    assert (told.local, told.experts, told.ranks) == (local, experts, None)


@pytest.mark.parametrize(
    "other",
    [
        router(3.0, n=16),  # of other experts
        router(3.0, role="dgrad"),
        replace(router(3.0), phase="backward"),
        replace(router(3.0), kind="attention"),
        expert(512, 3.0, n=F, k=H),  # into an expert
        expert(512, 3.0, role="dgrad"),
        gemm(3, 512, H, F, component="mlp.down", calls=3.0),
    ],
)
def test_what_is_no_call_of_the_router_and_none_back_from_an_expert(other: GemmRow) -> None:
    assert found(expert(512, 8.0), router(), other).local == 8


@pytest.mark.parametrize(
    ("rows", "local", "capacity", "least", "most"),
    [
        ([expert(512, batch=4)], 4, 512.0, 512, 512),
        ([expert(512, 3.0, batch=4), expert(256, 1.0, batch=4)], 4, 448.0, 256, 512),
        ([expert(1, batch=4)], None, None, None, None),  # weights gathered for a row: no experts
        ([expert(1, batch=4), expert(2, batch=4)], 4, 1.5, 1, 2),
        ([expert(100, 2.0), expert(400, 1.0)], None, 200.0, 100, 400),
        ([expert(100), expert(None)], None, 100.0, 100, 100),  # without a size it tells nothing
        ([expert(100), expert(900, n=F, k=H)], None, 100.0, 100, 100),  # back to the width alone
        ([expert(900, n=F, k=H)], None, 900.0, 900, 900),  # where there is none, all
        ([expert(100), expert(900, role="dgrad")], None, 100.0, 100, 100),
    ],
)
def test_rows_of_an_expert(
    rows: list[GemmRow], local: int | None, capacity: float | None, least: int | None, most: int | None
) -> None:
    told = found(*rows)
    assert (told.local, told.capacity, told.least, told.most) == (local, capacity, least, most)


def group(m: int | None, number: int, axis: Axis = "m", **more: Any) -> GemmRow:
    return replace(expert(m, **more), groups=Groups(axis, number))


@pytest.mark.parametrize(
    ("rows", "local", "capacity"),
    [
        ([group(4096, 8)], 8, 512.0),
        ([group(4096, 8), group(2048, 8)], 8, 384.0),
        ([group(None, 8)], None, None),  # without a size it tells nothing
        ([group(4096, 8, "k")], 8, None),  # groups along another axis split no rows
        ([group(4096, 8, "k"), group(2048, 8)], 8, 256.0),
        ([group(4096, 16)], 16, 256.0),
    ],
)
def test_rows_of_an_expert_in_groups(rows: list[GemmRow], local: int, capacity: float | None) -> None:
    """The mean of all groups; the emptiest and the fullest are in no trace."""
    told = found(*rows)
    assert (told.how, told.local, told.capacity) == ("grouped", local, capacity)
    assert (told.least, told.most, told.row_multiple) == (None, None, None)


@pytest.mark.parametrize(
    ("local", "experts", "ranks"), [(8, 8, 1), (4, 8, 2), (1, 8, None), (3, 8, None), (2, None, None)]
)
def test_ranks_that_share_the_experts(local: int, experts: int | None, ranks: int | None) -> None:
    row = expert(512, batch=local) if local > 1 else expert(512)
    assert found(row, experts=experts).ranks == ranks


#: 2048 tokens: rows of an expert times experts of this rank over them.
@pytest.mark.parametrize(
    ("m", "batch", "tokens", "rows_per_token", "top_k"),
    [
        (512, 8, 2048, 2.0, 2),
        (517, 8, 2048, 2.01953125, 2),  # within a hundredth of two: 2.02
        (518, 8, 2048, 2.0234375, None),
        (507, 8, 2048, 1.98046875, 2),
        (506, 8, 2048, 1.9765625, None),
        (257, 8, 2048, 1.00390625, 1),
        (259, 8, 2048, 1.01171875, None),
        (100, 8, 2048, 0.390625, None),
        (512, 8, None, None, None),
    ],
)
def test_experts_per_token(
    m: int, batch: int, tokens: int | None, rows_per_token: float | None, top_k: int | None
) -> None:
    told = found(expert(m, batch=batch), tokens=tokens)
    assert (told.rows_per_token, told.top_k) == (rows_per_token, top_k)
    assert told.row_multiple == (1 if top_k else None)


@pytest.mark.parametrize(
    ("sizes", "multiple"),
    [([512, 768], 256), ([1024, 2048], 256), ([128, 384], 128), ([16, 48], 16), ([32, 8], 1), ([100, 50], 1)],
)
def test_what_rows_are_padded_to(sizes: list[int], multiple: int) -> None:
    """The largest power of two from 16 to 256 that divides the rows of every forward product."""
    beside = [expert(7, role="dgrad"), expert(None)]
    assert found(*(expert(size) for size in sizes), *beside).row_multiple == multiple


@pytest.mark.parametrize(
    ("into", "gated"),
    [
        ([(F, 8.0)], False),
        ([(F, 11.9)], False),
        ([(F, 12.0)], True),
        ([(F, 8.0), (F, 8.0)], True),
        ([(2 * F, 1.0)], True),
        ([], None),
    ],
)
def test_a_gate_shows_in_products_into_an_expert(into: list[tuple[int, float]], gated: bool | None) -> None:
    """As many into an expert as back from it, or half as many again at least; or one twice as wide."""
    rows = [expert(512, calls, n=n, k=H) for n, calls in into]
    assert found(expert(512, 8.0), *rows).gated is gated
    assert found(*rows, expert(512, 8.0, role="dgrad")).gated is (True if gated and into[0][0] > F else None)


def test_whether_there_is_a_gate_is_not_known_without_its_widths() -> None:
    rows = [expert(512), expert(512, 16.0, n=F, k=H)]
    for hidden, ffn in ((None, F), (H, None), (F, F)):
        told = mixture_of(rows, model(hidden=hidden, ffn=ffn, experts=8), tokens=TOKENS)
        assert told is not None and told.gated is None
