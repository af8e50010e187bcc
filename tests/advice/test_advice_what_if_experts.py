"""Experts as formulas: their rows, how many, and what ranks, tokens and capacity do to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice.advice_experts import Mix, mixed_rows
from tests.advice.advice_messages import message
from tests.advice.advice_steps import Shape, model_of
from tests.said import Listener
from tracelens.config.changes import parse_changes
from tracelens.errors import UsageError
from tracelens.results import CommunicationRow, Known, WhatIf
from tracelens.step.experts import mixture_of
from tracelens.step.explorer import _in_tiles, explore
from tracelens.step.traced_step import StepModel
from tracelens.step.whatif import what_if
from tracelens.step.whatif_notes import loads_of

X = Shape(2048, 16, 1408, v=32000, kv=8, d=128, layers=16, b=2, s=2048)
TOKENS = 4096
#: 64 experts of which a token goes to 8, all of them here: 512 rows each.
BATCHED = Mix(X, 64, [512] * 64)
LOOP = Mix(X, 8, [900, 1148] * 4, "loop")  # top-2 of 8, unevenly
GROUPED = Mix(X, 64, [500, 524] * 32, "grouped")
SHARED = Mix(X, 64, [1024] * 16, "batched", ranks=4)  # a quarter of the experts, tokens of four ranks
ALL = {"batched": BATCHED, "loop": LOOP, "grouped": GROUPED, "shared by ranks": SHARED}


def step_of(mix: Mix, *sent: CommunicationRow) -> StepModel:
    return model_of(mix.x, rows=mixed_rows(mix), dims=mix.dims, communication=sent)


def shapes(one: WhatIf, role: str = "forward") -> list[str]:
    return [row.shape_then for row in one.rows if row.component == "moe.experts" and row.role == role]


@pytest.mark.parametrize(
    ("name", "how", "local", "capacity", "top_k"),
    [
        ("batched", "batched", 64, 512, 8),
        ("loop", "loop", 8, 1024, 2),
        ("grouped", "grouped", 64, 512, 8),
        ("shared by ranks", "batched", 16, 1024, 4),
    ],
)
def test_how_the_experts_run_is_read_off_their_products(
    name: str, how: str, local: int, capacity: int, top_k: int
) -> None:
    mix = ALL[name]
    found = mixture_of(mixed_rows(mix), mix.dims, tokens=TOKENS)
    assert found is not None
    assert (found.how, found.local, found.capacity, found.top_k) == (how, local, capacity, top_k)
    assert found.gated is True


@pytest.mark.parametrize(
    ("name", "loads"),
    [("batched", "equal"), ("loop", "own"), ("grouped", "taken as even"), ("shared by ranks", "equal")],
)
def test_loads_are_called_even_only_where_groups_hide_them(name: str, loads: str, said: Listener) -> None:
    step = step_of(ALL[name])
    assert loads_of(step.work.products) == loads
    said(what_if(step, {"top_k": 1}).notes)


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        ("batched", "capacity_factor=1.25", 640),  # 4096 tokens x 8 / 64 are 512
        ("batched", "moe_expert_capacity_factor=1", 512),
        ("batched", "capacity=1.5", 768),
        ("batched", "top_k=4,capacity_factor=2", 512),
        ("batched", "capacity_factor=1.1,micro_batch=4", 1127),  # 1126.4, and no row is cut in parts
        ("loop", "capacity_factor=0.5", 512),
        ("shared by ranks", "capacity_factor=1.25", 1280),  # with the tokens of all four ranks
    ],
)
def test_a_capacity_is_given_as_a_factor_too(name: str, text: str, rows: int) -> None:
    step = step_of(ALL[name])
    assert parse_changes([text], now=step.now)["capacity"] == rows


@pytest.mark.parametrize(
    "text",
    ["capacity_factor=0", "capacity_factor=x", "capacity=-1.5", "capacity=1.25,capacity_factor=1",
     "capacity_factor=1,capacity_factor=2", "capacity_factor=1e3", "capacity_factor=nan"],
)  # fmt: skip
def test_what_is_no_factor_is_refused(text: str, said: Listener) -> None:
    with pytest.raises(UsageError) as error:
        parse_changes([text], now=step_of(BATCHED).now)
    said(error.value)


def test_a_factor_needs_what_it_is_of(said: Listener) -> None:
    for now in (None, replace(step_of(BATCHED).now, top_k=None)):
        with pytest.raises(UsageError) as error:
            parse_changes(["capacity_factor=1.25"], now=now)
        said(error.value)
    with pytest.raises(UsageError) as error:  # 2 rows of 512: a factor without its name
        what_if(step_of(BATCHED), {"capacity": 2})
    said(error.value)


@pytest.mark.parametrize("name", ALL)
def test_every_product_of_experts_has_a_formula(name: str) -> None:
    step = step_of(ALL[name])
    assert [row for row, _ in step.work.fixed if row.component == "moe.experts"] == []


@pytest.mark.parametrize("name", ALL)
def test_so_has_one_that_runs_transposed(name: str) -> None:
    """dx^T = W^T dy^T: the experts' rows are its N."""
    mix = ALL[name]
    rows = [
        replace(row, m=row.n, n=row.m, groups=row.groups and replace(row.groups, axis="n"))
        if row.component == "moe.experts" and row.role == "dgrad"
        else row
        for row in mixed_rows(mix)
    ]
    step = model_of(mix.x, rows=rows, dims=mix.dims)
    assert [row for row, _ in step.work.fixed if row.component == "moe.experts"] == []
    as_they_were = {(one.row.id, one.m.text, one.n.text, one.k.text) for one in step_of(mix).work.products}
    turned = {(one.row.id, one.n.text, one.m.text, one.k.text) for one in step.work.products
              if one.row.component == "moe.experts" and one.row.role == "dgrad"}  # fmt: skip
    assert turned and turned <= as_they_were


def test_loads_that_differ_are_told() -> None:
    found = mixture_of(mixed_rows(LOOP), LOOP.dims, tokens=TOKENS)
    assert found is not None and (found.least, found.most) == (900, 1148)
    grouped = mixture_of(mixed_rows(GROUPED), GROUPED.dims, tokens=TOKENS)
    assert grouped is not None and (grouped.least, grouped.most) == (None, None)  # not in the trace


@pytest.mark.parametrize(
    ("change", "capacity"),
    [({"micro_batch": 4}, 1024), ({"sequence": 1024}, 256), ({"experts": 128}, 256), ({"top_k": 4}, 256)],
    ids=str,
)
def test_rows_of_an_expert_follow_from_tokens_and_experts(change: dict[str, int], capacity: int) -> None:
    one = what_if(step_of(BATCHED), change)
    assert one.change["capacity"] == [512, capacity]
    count = change.get("experts", 64)
    assert f"{count}×({capacity}×1408×2048)" in shapes(one)
    assert f"{count}×(1408×2048×{capacity})" in shapes(one, "wgrad")
    assert one.saving_ms.mid is not None


def test_experts_in_turn_are_as_many_products(said: Listener) -> None:
    one = what_if(step_of(LOOP), {"experts": 16})
    up = [row for row in one.rows if row.component == "moe.experts" and row.role == "forward"]
    assert {row.shape_then for row in up} == {
        "450×1408×2048",
        "574×1408×2048",
        "450×2048×1408",
        "574×2048×1408",
    }
    assert one.flops_frac == pytest.approx(0.0, abs=1e-3)  # as many rows in all
    said(sorted({row.how for row in up}))


def test_capacity_is_rows_without_tokens(said: Listener) -> None:
    one = what_if(step_of(BATCHED), {"capacity": 640})
    assert one.change == {"capacity": [512, 640]}
    assert one.saving_ms.mid is not None and one.saving_ms.mid < 0
    said(one.notes)


def test_the_width_of_the_experts_is_ffn() -> None:
    one = what_if(step_of(BATCHED), {"ffn": 1536})
    assert "64×(512×1536×2048)" in shapes(one)
    now, then = one.parameters
    assert now and then and then - now == 16 * 64 * 3 * 2048 * 128


def test_fewer_expert_parallel_ranks_have_more_experts_of_fewer_rows(said: Listener) -> None:
    messages = message("all_to_all", purpose="expert all-to-all", group="ep", exposed=6.0, bytes_per_call=1e6)
    one = what_if(step_of(SHARED, messages), {"expert_parallel": 2})
    assert "32×(512×1408×2048)" in shapes(one)
    part = next(part for part in one.rest if part.scales_with.startswith("exposed messages"))
    assert part.then_ms.mid == pytest.approx(6.0 * (1 / 2) / (3 / 4))
    # such ranks are data-parallel as well
    said(one.notes)
    gone = what_if(step_of(SHARED, messages), {"expert_parallel": 1})
    assert next(part for part in gone.rest if part.time_ms == 6.0).then_ms.high == 0.0


def test_rows_are_rounded_up_to_a_multiple(said: Listener) -> None:
    """900 and 1148 rows to 1024 and 1152; of rows that are padded to 128 half of the difference goes."""
    step = step_of(LOOP)
    assert step.now.row_multiple == 1
    one = what_if(step, {"row_multiple": 128})
    assert {shape.partition("×")[0] for shape in shapes(one)} == {"1024", "1152"}
    assert (
        one.saving_ms.mid is not None and one.saving_ms.mid < 0 and one.change == {"row_multiple": [1, 128]}
    )
    assert one.flops_frac is not None and one.flops_frac > 0
    padded = step_of(Mix(X, 8, [1024, 1152, 1280, 1152] * 2, "loop"))
    assert padded.now.row_multiple == 128
    then = shapes(what_if(padded, {"row_multiple": 16}))
    assert {shape.partition("×")[0] for shape in then} == {"968", "1096", "1224"}
    assert step_of(BATCHED).now.row_multiple == 1 and step_of(Mix(X, 8, [1280] * 8)).now.row_multiple is None
    with pytest.raises(UsageError) as error:
        what_if(step_of(GROUPED), {"row_multiple": 128})
    said(error.value)


@pytest.mark.parametrize(("waits", "mid"), [(6.0, 0.2), (0.1, None)])
def test_an_even_load_ends_the_wait_for_the_fullest_rank(
    waits: float, mid: float | None, said: Listener
) -> None:
    """From 30 to 10 % above the mean, all ranks take 1.1 / 1.3 of what the fullest one took."""
    sent = message("all_to_all", purpose="expert all-to-all", group="ep", exposed=waits, bytes_per_call=1e6)
    step = step_of(SHARED, replace(sent, uneven_frac=0.3))
    assert step.now.imbalance == 30
    experts = sum(row.time_ms_per_step for row in mixed_rows(SHARED) if row.component == "moe.experts")
    one = what_if(step, {"imbalance": 10})
    assert one.saving_ms.low == pytest.approx(0.2 / 1.3 * experts)  # this rank is the fullest
    assert one.saving_ms.high == pytest.approx(0.2 / 1.3 * (experts + waits))  # this one waits for it
    most = 0.2 / 1.3 * (experts + waits)
    assert one.saving_ms.mid == pytest.approx(most if mid is None else min(mid * experts, most))
    assert what_if(step, {"imbalance": 0}).saving_ms.mid > one.saving_ms.mid  # type: ignore[operator]
    with pytest.raises(UsageError) as error:
        what_if(step, {"imbalance": 0, "top_k": 2})
    said(error.value)
    with pytest.raises(UsageError) as error:
        what_if(step_of(SHARED, sent), {"imbalance": 0})
    said(error.value)


def test_more_expert_parallel_ranks_have_no_saving() -> None:
    one = what_if(step_of(BATCHED), {"expert_parallel": 8})
    assert one.saving_ms.mid is None and "expert_parallel" in one.notes[0]
    assert "8×(4096×1408×2048)" in shapes(one)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"expert_parallel": 7}, "experts = 64 does not divide over 7 expert-parallel ranks"),
        ({"top_k": 65}, "top_k = 65 is more than the 64 experts"),
        ({"top_k": 0}, "top_k = 0 is not a size"),
    ],
    ids=str,
)
def test_impossible_mixtures_say_why(change: dict[str, int], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        what_if(step_of(BATCHED), change)


def test_rows_of_padding_are_no_whole_number_of_experts_per_token(said: Listener) -> None:
    """A capacity factor of 1.25: rows for 2.5 experts per token. The configuration knows how many."""
    mix = Mix(X, 8, [1280] * 8)
    found = mixture_of(mixed_rows(mix), mix.dims, tokens=TOKENS)
    assert found is not None and found.rows_per_token == 2.5 and found.top_k is None
    told = model_of(X, rows=mixed_rows(mix), dims=mix.dims, declared={"experts_per_token": 2})
    assert told.now.top_k == 2
    with pytest.raises(UsageError) as error:
        what_if(step_of(mix), {"top_k": 1})
    said(error.value)


@pytest.mark.parametrize("known", ["operator", "configuration"])
def test_rows_of_padding_that_look_like_more_experts_per_token_are_padding(known: str) -> None:
    """Top 8 with a capacity factor of 1.25 has the rows of top 10; a factor of 1 leaves 512 of the 640."""
    mix = Mix(X, 64, [640] * 64)
    seen, declared = (8, {}) if known == "operator" else (None, {"experts_per_token": 8})
    dims = replace(mix.dims, top_k=Known(seen, "aten::topk"))
    step = model_of(X, rows=mixed_rows(mix), dims=dims, declared=declared)
    assert step.now.top_k == 8
    assert parse_changes(["capacity_factor=1"], now=step.now) == {"capacity": 512}


def test_a_shared_expert_sees_every_token() -> None:
    rows = mixed_rows(BATCHED)
    like = next(row for row in rows if row.component == "moe.experts" and row.role == "forward")
    rows.append(replace(like, id="g99", m=TOKENS, batch=1, calls_per_step=16.0))
    step = model_of(X, rows=rows, dims=BATCHED.dims)
    assert step.now.capacity == 512
    one = what_if(step, {"top_k": 4})
    assert "g99" not in {row.gemm for row in one.rows}
    assert next(row for row in what_if(step, {"micro_batch": 4}).rows if row.gemm == "g99").shape_then == (
        "8192×1408×2048"
    )


def test_curves_ask_once_for_experts_that_fill_as_many_tiles() -> None:
    step = step_of(Mix(X, 33, [*range(897, 929), 1100], "loop"))
    fewer = _in_tiles(step.work.products)
    assert [
        sum(one.row.component == "moe.experts" for one in many) for many in (step.work.products, fewer)
    ] == [
        6 * 33,
        6 * 2,
    ]
    for name in ("calls", "calls_per_step", "time_ms", "time_ms_per_step"):
        now, then = (sum(getattr(one.row, name) for one in many) for many in (step.work.products, fewer))
        assert then == pytest.approx(now)
    ffn = next(one for one in explore(step).curves if one.parameter == "ffn")
    asked = [what_if(step, {"ffn": value}).then_ms.mid for value in ffn.values]
    assert ffn.mid_ms == [pytest.approx(one, rel=0.002) for one in asked]
    few = step_of(LOOP).work.products
    assert _in_tiles(few) == few
