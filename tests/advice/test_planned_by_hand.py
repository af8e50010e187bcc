"""What is tried, what fits and what ranks exchange of a planned step, counted by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_steps import Shape, model_of
from tests.said import Listener
from tracelens.config import Configuration, config_from_flags
from tracelens.config.configuration import Layout
from tracelens.config.training import Training
from tracelens.errors import UsageError
from tracelens.hardware import find_gpu
from tracelens.hardware.collectives import exchange_us
from tracelens.results import Span
from tracelens.results.suggestions import WholeStep
from tracelens.step import explorer, search_space
from tracelens.step.activations import activation_bytes, memory_of_trace
from tracelens.step.memory import memory_of, would_fit
from tracelens.step.planned_change import total
from tracelens.step.planned_kernels import RankLinear, attention_calls, dense_mlps, mlp_linears
from tracelens.step.planned_step import Planner, _attention_open
from tracelens.step.search_space import SearchLimits, Space, _near, _thinned, kept_degree
from tracelens.step.whole_step import whole_step

B, S, H, F, V, L = 4, 1024, 1024, 4096, 51200, 24
GPT = {"hidden": H, "heads": 16, "layers": L, "vocab": V, "sequence": S, "micro_batch": B}
#: 12 h^2 of each layer's four products, and the embedding that the logits share.
WEIGHTS = 12 * H * H * L + V * H
A100 = find_gpu(None, override="a100-sxm-80gb")


def gpt(**sizes: int) -> Configuration:
    return config_from_flags(GPT | sizes, gated=False, tied=True)


def step(training: Training, **sizes: int) -> WholeStep:
    config = gpt(**sizes)
    return whole_step(Planner(config.layout, gpu=A100), config.model, training)


def part(found: WholeStep, name: str) -> float:
    return sum(one.time_ms.mid for one in found.parts if one.name == name)


# --- what is tried ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "grid", "free", "found"),
    [
        (None, 64, True, [None]),
        (1000, 64, False, [1000]),
        (1000, 64, True, [896, 960, 1000, 1024, 1088]),  # 875 to 1125
        (1024, 64, True, [896, 960, 1024, 1088, 1152]),
        (7, 1, True, [6, 7, 8]),
        (1, 1, True, [1, 2]),
        (24, 1, True, [21, 22, 23, 24, 25, 26, 27]),
        (48, 64, True, [48]),
    ],
)
def test_sizes_within_an_eighth(value: int | None, grid: int, free: bool, found: list[int]) -> None:
    assert _near(value, grid, free, 1) == found


@pytest.mark.parametrize(
    ("many", "coarse", "step"), [(256, 1, 1), (257, 1, 2), (512, 1, 2), (513, 1, 3), (64, 4, 1), (65, 4, 2)]
)
def test_very_many_values_are_thinned_evenly(many: int, coarse: int, step: int) -> None:
    assert _thinned(5, range(10, 10 + many), coarse) == [5, *range(10, 10 + many, step)]


@pytest.mark.parametrize(("layers", "degree"), [(23, 4), (24, 8)])
def test_states_above_80_gb_keep_eight_ranks(layers: int, degree: int) -> None:
    """Five billion weights of 16 bytes: 12 h^2 a layer and the embedding."""
    now = gpt(hidden=4096, heads=32, layers=layers).model
    assert (12 * 4096**2 * layers + 51200 * 4096 > 5e9) == (degree == 8)
    assert kept_degree(now) == degree


@pytest.mark.parametrize(
    ("free", "gated", "predictions", "combinations"),
    [
        # 8 for attention of each shape of heads; 6 for each width of each hidden size, 9 with a gate
        ({"vocab"}, False, 8 + 6, 2),
        ({"vocab"}, True, 8 + 9, 2),
        ({"hidden", "heads"}, False, 6 * 8 + 5 * 6, 6),
        ({"heads", "head_dim"}, True, 2 * 8 + 9, 2),
        ({"micro_batch"}, False, 7 * (8 + 6), 7),
        ({"ffn"}, False, 8 + 3 * 6, 3),  # one percent of the weights is 71 of width
    ],
)
def test_the_budget_of_a_search(
    monkeypatch: pytest.MonkeyPatch, free: set[str], gated: bool, predictions: int, combinations: int
) -> None:
    now = replace(gpt(vocab=50257).model, gated=gated)
    space = Space(now, SearchLimits(free=frozenset(free), memory_gb=80.0, any_heads=True))
    for name, least in (("_PREDICTIONS", predictions), ("COMBINATIONS", combinations)):
        monkeypatch.setattr(search_space, name, least)
        assert search_space._affordable(space), name
        monkeypatch.setattr(search_space, name, least - 1)
        assert not search_space._affordable(space), name
        monkeypatch.setattr(search_space, name, 10**6)


def test_a_search_that_nothing_makes_small_is_as_coarse_as_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Space(gpt().model, SearchLimits())
    assert space.fitted().coarse == 1
    monkeypatch.setattr(search_space, "_PREDICTIONS", 0)
    assert space.fitted().coarse == 64


@pytest.mark.parametrize(
    ("good", "wrong"),
    [
        ({"parameters_frac": 0.0}, {"parameters_frac": -0.01}),
        ({"parameters_frac": 0.2}, {"parameters_frac": 0.21}),
        ({"memory_gb": 0.1}, {"memory_gb": 0.0}),
        ({"memory_gb": 9999.0}, {"memory_gb": 10000.0}),
        ({"free": frozenset({"micro_batch"}), "memory_gb": 80.0}, {"free": frozenset({"micro_batch"})}),
        ({"free": frozenset({"sequence"}), "memory_gb": 80.0}, {"free": frozenset({"sequence"})}),
        ({"free": frozenset({"layers"})}, {"free": frozenset({"layer"})}),
    ],
)
def test_limits_at_their_ends(good: dict[str, Any], wrong: dict[str, Any]) -> None:
    assert SearchLimits(**good).checked() == SearchLimits(**good)
    with pytest.raises(UsageError):
        SearchLimits(**wrong).checked()


@pytest.mark.parametrize("share", [0.0, 0.03])
def test_shapes_keep_the_weights_within_their_share(share: float) -> None:
    now = gpt(layers=2).model
    limits = SearchLimits(parameters_frac=share, free=frozenset({"hidden", "heads", "vocab", "ffn"}))
    found = [*Space(now, limits).shapes()]
    for then, grown in found:
        assert grown == pytest.approx((then.parameters or 0) / (now.parameters or 1) - 1)
        assert abs(grown) <= share and then != now
    assert bool(found) == (share > 0)


# --- what fits ----------------------------------------------------------------------------------------------


def test_a_micro_batch_that_is_not_known_is_not_made_smaller(said: Listener) -> None:
    config = gpt()
    model = replace(config.model, micro_batch=None, sequence=None, tokens=B * S)
    ways = would_fit(model, config.layout, Training(1, "ddp"), 80.0)
    said(ways)


@pytest.mark.parametrize(
    "sizes",
    [
        {"heads": 16, "kv_heads": 16}, {"kv_heads": 1}, {"kv_heads": 3, "heads": 48},
        {"vocab": 51201}, {"ffn": 4095}, {"heads": 17},
    ],
)  # fmt: skip
def test_tensor_parallel_ranks_divide_every_size(sizes: dict[str, int], said: Listener) -> None:
    config = gpt()
    model = replace(config.model, **sizes)  # type: ignore[arg-type]
    ways = would_fit(model, config.layout, Training(1, "ddp"), 80.0)
    said([way for way in ways if "tensor" in way])


def test_experts_share_no_layer_and_divide_what_is_sharded(said: Listener) -> None:
    config = gpt()
    model = replace(config.model, expert_parallel=4)
    ways = would_fit(model, config.layout, Training(4, "ddp"), 80.0)
    assert ways[-1] == "FSDP over 4 GPUs" and not any("tensor" in way for way in ways)
    sharded = would_fit(gpt(tensor_parallel=2).model, config.layout, Training(8, "fsdp"), 80.0)
    said(sharded)


def test_more_ranks_that_share_layers_share_each_expert_too() -> None:
    """A script of two ranks says two of experts as well, its default: four would hold a quarter each."""
    config = gpt(tensor_parallel=2)
    model = replace(config.model, experts=8, ffn=4 * F)
    ways = [
        would_fit(replace(model, expert_tensor=cut), config.layout, Training(2, "tp"), 40.0)
        for cut in (None, 2)
    ]
    assert ways[0] and ways[0] == ways[1]


@pytest.mark.parametrize(
    ("window", "share", "calls"),
    [
        (None, 0.5, [(24, None)]),
        (256, 0.5, [(12, None), (12, 256)]),
        (256, 1.0, [(24, 256)]),
        (1023, 0.25, [(18, None), (6, 1023)]),
        (1024, 0.5, [(24, None)]),  # it leaves nothing out
    ],
)
def test_layers_with_a_sliding_window(
    window: int | None, share: float, calls: list[tuple[int, int | None]]
) -> None:
    found = attention_calls(gpt().model, Layout(window=window, windowed_frac=share))
    assert [(one.calls, one.window) for one in found] == calls
    assert {(one.batch, one.heads, one.sequence, one.head_dim) for one in found} == {(B, 16, S, 64)}


def test_mlps_beside_the_experts() -> None:
    model = replace(gpt().model, experts=8, shared_ffn=512, dense_layers=3, dense_ffn=8192, tensor_parallel=2)
    assert dense_mlps(model, Layout(experts_per_token=2)) == ((256, 21), (4096, 3))
    assert dense_mlps(replace(model, dense_layers=None), Layout(experts_per_token=2)) == ((256, 24),)
    alone = replace(model, shared_ffn=None, tensor_parallel=1)
    assert dense_mlps(alone, Layout(experts_per_token=2)) == ((8192, 3),)
    router = RankLinear("moe.router", B * S, H, 8, 1, 21)
    assert mlp_linears(model, Layout(experts_per_token=2))[0] == router
    assert router not in (
        *mlp_linears(model, Layout()),
        *mlp_linears(gpt().model, Layout(experts_per_token=2)),
    )
    assert dense_mlps(model, Layout()) == dense_mlps(replace(model, experts=None), Layout()) == ((2048, 24),)


def test_activations_of_experts_and_of_copied_keys() -> None:
    """In each layer 4 h, q, k, v and out, and twice the MLP's width of each expert that a token goes to."""
    model = replace(gpt(kv_heads=4).model, experts=8, dense_layers=4, dense_ffn=2048)
    layout = Layout(experts_per_token=2)
    mlp = 4 * 2048 + 20 * 2 * F
    tokens = B * S
    wanted = 2 * tokens * (L * (4 * H + 2 * H + 2 * 256) + 2 * mlp + 3 * V)
    assert activation_bytes(model, layout) == pytest.approx(wanted)
    copied = replace(model, kv_repeated=True, gated=True)
    more = 2 * tokens * (L * (4 * H + 4 * H) + 3 * mlp + 3 * V)
    assert activation_bytes(copied, layout) == pytest.approx(more)


@pytest.mark.parametrize(("experts", "known"), [(None, True), (1, True), (2, False)])
def test_the_memory_of_a_trace_is_that_of_a_stage(experts: int | None, known: bool) -> None:
    model = replace(gpt().model, experts=experts, pipeline_parallel=4, tensor_parallel=2, vocab=V // 2)
    found = memory_of_trace(model)
    width = 2 * B * S * (6 * (4 * H + 4 * H / 2 + 2 * F / 2) + 3 * V / 2)
    weights = 16 * (6 * 12 * H * H / 2 + V / 2 * H)
    assert found == (pytest.approx(weights + width, rel=1e-2) if known else None)
    assert memory_of_trace(replace(model, vocab=None)) is None
    assert memory_of_trace(replace(model, ffn=None)) is None


# --- sums and rates -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("other", "basis"), [(10.0, "calibrated"), (10.1, "model"), (0.0, "calibrated")])
def test_a_sum_is_calibrated_where_all_but_a_tenth_is(other: float, basis: str) -> None:
    parts = [Span(100 - other, 100 - other, 100 - other, "calibrated"), Span(other, other, other, "model")]
    assert total(parts).basis == basis and total(parts).mid == pytest.approx(100)
    assert total([]).basis == "model"


@pytest.mark.parametrize(
    ("ends", "log"), [((80, 100, 150), 0.5 * math.log(1.5)), ((40, 100, 121), math.log(2.5) - math.log(1.1))]
)
def test_how_open_attention_is(ends: tuple[float, float, float], log: float) -> None:
    assert _attention_open(*ends) == pytest.approx(log)


def test_utilization_counts_six_operations_a_weight_and_attention() -> None:
    """6 of a weight and token, and 12 s h of each layer's attention, over 312 TFLOP/s."""
    found = step(Training(1, micro_batches=2))
    operations = 2 * B * S * (6 * WEIGHTS + 12 * H * S * L)
    assert found.mfu_frac.mid == pytest.approx(operations / (312e12 * found.step_ms.mid / 1e3))
    assert found.mfu_frac.low == pytest.approx(operations / (312e12 * found.step_ms.high / 1e3))
    assert found.tokens_per_s_per_gpu.high == pytest.approx(2 * B * S / found.step_ms.low * 1e3)
    split = step(Training(4, "tp"), tensor_parallel=4)
    assert split.mfu_frac.mid == pytest.approx(operations / 8 / (312e12 * split.step_ms.mid / 1e3))


@pytest.mark.parametrize(("gpus", "doublings"), [(8, 0), (16, 1), (64, 3)])
def test_nodes_wait_for_the_slowest(gpus: int, doublings: int) -> None:
    found = step(Training(gpus))
    busy = sum(one.time_ms.mid for one in found.parts if not one.name.startswith("waiting"))
    assert part(found, "waiting for other nodes") == pytest.approx(0.012 * doublings * busy)


@pytest.mark.parametrize(("gpus", "t", "in_node"), [(8, 2, 4), (8, 4, 2), (16, 4, 2), (32, 2, 4)])
def test_data_parallel_ranks_have_what_tensor_parallel_ones_leave_of_a_node(
    gpus: int, t: int, in_node: int
) -> None:
    """DDP: gradients of a rank's part in fp32, of which half shows; and four sums of activations a layer."""
    data = gpus // t
    reduce = (
        exchange_us("a100-sxm-80gb", "all_reduce", data, 4.0 * WEIGHTS / t, in_node=in_node) or 0.0
    ) / 1e3
    each = exchange_us("a100-sxm-80gb", "all_reduce", t, 2.0 * B * S * H, in_node=t) or 0.0
    config = gpt(tensor_parallel=t)
    parts = Planner(config.layout, gpu=A100).step(config.model).parts
    backward = sum(one.time_ms.mid for one in parts if one.role != "forward")
    least = max(0.0, reduce - backward)
    assert reduce > 0 and each > 0
    assert part(step(Training(gpus, "ddp"), tensor_parallel=t), "communication") == pytest.approx(
        4 * L * each / 1e3 + (least + reduce) / 2
    )


def test_fsdp_of_tensor_parallel_ranks_shares_their_part() -> None:
    found, held = step(Training(8), tensor_parallel=2), WEIGHTS / 2 / 4
    assert part(found, "optimizer") == pytest.approx(28 * held / (0.9 * 2039e6))
    gather, scatter = (
        exchange_us("a100-sxm-80gb", name, 4, 2.0 * WEIGHTS / 2 / L, in_node=4) or 0.0
        for name in ("all_gather", "reduce_scatter")
    )
    each = exchange_us("a100-sxm-80gb", "all_reduce", 2, 2.0 * B * S * H, in_node=2) or 0.0
    assert part(found, "communication") == pytest.approx(
        (4 * L * each + 0.93 * L * (2 * gather + scatter)) / 1e3
    )
    assert found.memory_gb == pytest.approx(
        memory_of(gpt(tensor_parallel=2).model, gpt().layout, Training(8)).whole / 1e9
    )


def test_recomputed_layers_are_the_forward_without_what_is_outside() -> None:
    config = gpt()
    parts = Planner(config.layout, gpu=A100).step(config.model).parts
    outside = ("embedding", "logits", "loss")
    again = [one for one in parts if one.role == "forward" and one.component not in outside]
    pace = {"product": 1.0, "attention": 1.91, "bytes": 3.59}
    wanted = sum(
        pace[one.kind] * (one.time_ms.low if one.kind == "bytes" else one.time_ms.mid) for one in again
    )
    found = step(Training(1, checkpoint="full", micro_batches=3))
    assert part(found, "recompute") == pytest.approx(3 * wanted)


# --- the explorer's values ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "step", "count", "reach", "found"),
    [
        (4096, 64, 3, 1.0, range(61, 68)),
        (4096, 64, 12, 0.1, range(58, 71)),  # 6.4 of 64
        (100, 64, 8, 0.5, range(1, 5)),
        (10, 64, 8, 1.0, range(1, 3)),
    ],
)
def test_multiples_around_a_size(value: int, step: int, count: int, reach: float, found: range) -> None:
    assert explorer._multiples(value, step, count, reach=reach) == [one * step for one in found]


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("micro_batch", 1, {1, 2, 3}),
        ("micro_batch", 5, {*range(1, 12)}),
        ("micro_batch", 10, {*range(5, 16), 20}),
        ("kv_heads", 8, {1, 2, 4, 8, 16}),
        ("heads", 16, {1, 2, 4, 8, 16, 32, 64}),  # of 1024: head dimensions from 1024 down to 16
    ],
)
def test_counts_that_are_drawn(name: str, value: int, found: set[int]) -> None:
    now = replace(gpt().model, **{name: value})  # type: ignore[arg-type]
    assert {*explorer._counts(now, name, value)} == found


@pytest.mark.parametrize(
    ("value", "name", "t", "found"),
    [(50257, "vocab", 1, 2), (50258, "vocab", 1, 4), (4096, "ffn", 1, 128), (4096 + 32, "ffn", 1, 64),
     (4096 + 32, "ffn", 2, 32), (4096 + 32, "hidden", 2, 64), (64, "head_dim", 1, 128)],
)  # fmt: skip
def test_bytes_that_rows_begin_on(value: int, name: str, t: int, found: int) -> None:
    made = model_of(Shape(1024, 16, 4096, v=32000, layers=2, t=t))
    assert explorer._bytes(value, name, made) == found
