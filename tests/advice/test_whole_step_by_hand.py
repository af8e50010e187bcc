"""Whole steps counted by hand: experts and their exchange, windows, launches, and rates."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tracelens.config import config_from_flags
from tracelens.config.configuration import Layout
from tracelens.config.model_config import ModelConfig
from tracelens.config.training import Training
from tracelens.errors import InputError
from tracelens.hardware import Gpu, find_gpu
from tracelens.hardware.collectives import exchange_us
from tracelens.results import Span
from tracelens.results.suggestions import WholeStep
from tracelens.step.memory import memory_of, would_fit
from tracelens.step.paces import Pace
from tracelens.step.planned_change import PlannedStep
from tracelens.step.planned_kernels import attention_calls
from tracelens.step.planned_step import Planner
from tracelens.step.reasons import PlannedPart
from tracelens.step.whole_step import whole_step

B, S, H, F, V, L = 4, 1024, 1024, 4096, 51200, 24
TOKENS = B * S
A100 = find_gpu(None, override="a100-sxm-80gb")
H100 = find_gpu(None, override="h100-sxm")
DENSE = config_from_flags(
    {"hidden": H, "heads": 16, "layers": L, "vocab": V, "sequence": S, "micro_batch": B}, gated=False,
    tied=True,
).model  # fmt: skip
#: 64 experts of which a token takes 2, in 20 of 24 layers; the others are dense, 8192 wide.
TOP_K, EXPERTS, ROUTED = 2, 64, 20
MIXTURE = replace(DENSE, experts=EXPERTS, dense_layers=4, dense_ffn=8192, expert_parallel=1)
TWO = Layout(experts_per_token=TOP_K)
#: A layer's attention is 4 h^2, an expert 2 h f, a router 64 h.
REST = L * 4 * H * H + ROUTED * EXPERTS * H + 4 * 2 * H * 8192 + V * H
OF_EXPERTS = ROUTED * EXPERTS * 2 * H * F
#: Kernels that take what they take alone: figures without the pace of a GPU.
EXACT = Pace(products=1.0, attention=1.0, moved=1.0, exchange=1.0, error=0.0)


class Given(Planner):
    """A planner whose step has these parts."""

    def __init__(self, *parts: PlannedPart, gpu: Gpu = A100, layout: Layout = TWO) -> None:
        super().__init__(layout, gpu=gpu)
        self.parts = parts

    def step(self, config: ModelConfig) -> PlannedStep:
        return PlannedStep(config, self.parts)


def made(kind: Any, ms: float, *, calls: int = L, component: str = "mlp.up", role: Any = "forward",
         low: float | None = None, high: float | None = None) -> PlannedPart:  # fmt: skip
    time = Span(ms if low is None else low, ms, ms if high is None else high, "model")
    return PlannedPart(component, role, kind, "shape", (1, 1, 1), calls, time)


BACKWARD = 60.0
PRODUCTS = made("product", 30.0), made("product", BACKWARD, role="dgrad")


def step_of(
    *parts: PlannedPart,
    model: ModelConfig = MIXTURE,
    gpu: Gpu = A100,
    pace: Pace | None = EXACT,
    layout: Layout = TWO,
    **how: Any,
) -> WholeStep:
    planner = Given(*(parts or PRODUCTS), gpu=gpu, layout=layout)
    return whole_step(planner, model, Training(**({"gpus": 1} | how)), pace=pace)


def span(found: WholeStep, name: str) -> tuple[float, float, float] | None:
    for part in found.parts:
        if part.name == name:
            return part.time_ms.low, part.time_ms.mid, part.time_ms.high
    return None


def us(collective: str, ranks: int, size: float, in_node: int, gpu: str = "a100-sxm-80gb") -> float:
    found = exchange_us(gpu, collective, ranks, size, in_node=in_node)
    assert found is not None
    return found


# --- experts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ep", "gpus", "in_node", "places"),
    [(2, 8, 2, 2), (4, 8, 4, 4), (8, 8, 8, 8), (16, 16, 8, 2), (64, 64, 8, 8)],
)
@pytest.mark.parametrize(("checkpoint", "passes"), [("none", 4), ("full", 6)])
def test_rows_on_their_way_to_experts(
    ep: int, gpus: int, in_node: int, places: int, checkpoint: Any, passes: int
) -> None:
    """There and back, forward and backward, in every layer with experts and every micro-batch.

    At most one copy for each expert of a token, and what DeepEP takes longer than NCCL; at least one for
    each GPU, or node, that has any of its two: all but those of which it takes none of their experts.
    """
    found = step_of(
        model=replace(MIXTURE, expert_parallel=ep), gpus=gpus, micro_batches=3, checkpoint=checkpoint
    )
    there = EXPERTS // places
    none_there = (EXPERTS - there) * (EXPERTS - there - 1) / (EXPERTS * (EXPERTS - 1))
    size, calls = 2.0 * TOKENS * H, passes * ROUTED * 3 / 1e3
    least = calls * us("all_to_all", ep, size * places * (1 - none_there), in_node)
    most = calls * us("all_to_all", ep, size * TOP_K, in_node)
    assert span(found, "experts' all-to-all") == pytest.approx((least, most, 1.5 * 1.3 * most))
    assert found.expert_parallel == ep


@pytest.mark.parametrize(("ep", "gpus"), [(2, 8), (8, 8), (8, 16), (4, 1024)])
def test_weights_of_experts_are_exchanged_among_those_that_hold_the_same(ep: int, gpus: int) -> None:
    """FSDP: layer by layer, gathered twice and scattered once in 16 bits, for every micro-batch; behind the
    backward at the fast end."""
    found = step_of(model=replace(MIXTURE, expert_parallel=ep), gpus=gpus, micro_batches=3)

    def exchanged(ranks: int, weights: float, in_node: int) -> float:
        if ranks == 1:
            return 0.0
        size = 2.0 * weights / L
        each = 2 * us("all_gather", ranks, size, in_node) + us("reduce_scatter", ranks, size, in_node)
        return 3 * L * each / 1e3

    groups = gpus // ep
    wanted = exchanged(gpus, REST, min(8, gpus))
    wanted += exchanged(groups, OF_EXPERTS / ep, math.gcd(groups, 8 // ep))
    assert span(found, "communication") == pytest.approx((max(0.0, wanted - 3 * BACKWARD), wanted, wanted))
    assert span(found, "optimizer") == pytest.approx((28 * (REST + OF_EXPERTS) / gpus / (0.9 * 2039e6),) * 3)


@pytest.mark.parametrize("backward_ms", [60.0, 1e5])
def test_ddp_of_experts_reduces_fp32_gradients_behind_the_backward(backward_ms: float) -> None:
    took = us("all_reduce", 16, 4.0 * REST, 8) + us("all_reduce", 4, 4.0 * OF_EXPERTS / 4, 2)
    took /= 1e3
    found = step_of(
        made("product", 30.0), made("product", backward_ms, role="wgrad"),
        model=replace(MIXTURE, expert_parallel=4), gpus=16, strategy="ddp", micro_batches=2,
    )  # fmt: skip
    least = max(0.0, took - backward_ms)
    assert (least > 0) == (backward_ms < 100) and took > 100
    assert span(found, "communication") == pytest.approx((least, (least + took) / 2, took))
    moved = (28 + 10) * (REST + OF_EXPERTS / 4)  # the second micro-batch's gradients are added
    assert span(found, "optimizer") == pytest.approx((moved / (0.9 * 2039e6),) * 3)


@pytest.mark.parametrize("ep", [None, 1])
def test_experts_that_each_gpu_has_are_exchanged_with_all_others(ep: int | None) -> None:
    found = step_of(model=replace(MIXTURE, expert_parallel=ep), gpus=8)
    size = 2.0 * (REST + OF_EXPERTS) / L
    each = 2 * us("all_gather", 8, size, 8) + us("reduce_scatter", 8, size, 8)
    took = L * each / 1e3  # at the fast end behind the backward
    assert span(found, "communication") == pytest.approx((took - BACKWARD, took, took))
    assert span(found, "experts' all-to-all") is None and found.expert_parallel == 1


# --- kernels ----------------------------------------------------------------------------------------------

ALL = (
    made("product", 30.0, low=20.0, high=50.0),
    made("product", 60.0, low=45.0, high=90.0, role="dgrad"),
    made("attention", 10.0, low=7.0, high=12.0, component="attention.core"),
    made("experts", 40.0, low=30.0, high=70.0, component="moe.experts", calls=ROUTED),
    made("bytes", 6.0, low=2.0, high=18.0, component="norm", calls=1),
    made("bytes", 3.0, low=1.0, high=9.0, component="loss", calls=1),
    made("product", 8.0, low=6.0, high=9.0, component="logits", calls=1),
)  # fmt: skip
#: Products and attention at the middle, attention's low end alone, bytes as fused; experts with their range.
PACE = Pace(products=1.5, attention=2.0, moved=3.0, exchange=0.5, error=0.2)


def test_kernels_at_a_given_pace() -> None:
    found, error = step_of(*ALL, pace=PACE, micro_batches=2, checkpoint="full"), math.exp(0.2)

    def within(low: float, mid: float, high: float) -> Any:
        return pytest.approx((2 * low / error, 2 * mid, 2 * high * error))

    assert span(found, "GEMMs") == within(1.5 * 98, 1.5 * 98, 1.5 * 98)
    assert span(found, "attention") == within(10.0, 20.0, 20.0)
    assert span(found, "experts") == within(30.0 * error, 40.0, 70.0)  # no faster than alone
    assert span(found, "memory-bound kernels") == within(9.0, 9.0, 9.0)
    # forward once more, without logits and loss
    again = 1.5 * 30 + 3.0 * 2
    assert span(found, "recompute") == within(again + 10 + 30, again + 20 + 40, again + 20 + 70)


def test_gemms_are_no_faster_than_their_own_low_end() -> None:
    wide = Pace(products=1.0, attention=1.0, moved=1.0, exchange=1.0, error=1.0)
    assert span(step_of(*ALL, pace=wide, micro_batches=3), "GEMMs") == pytest.approx(
        (3 * (20 + 45 + 6), 3 * 98, 3 * 98 * math.e)
    )


@pytest.mark.parametrize(
    ("checkpoint", "launches"),
    [
        ("none", 2 * L + L + 12 * 20 + 5 * L + 5 + 1),
        ("full", 3 * L + 2 * L + 2 * 12 * 20 + 2 * 5 * L + 5 + 1),
    ],
)
@pytest.mark.parametrize("batches", [1, 4])
def test_the_cpu_takes_7_to_70_us_for_each_kernel(checkpoint: Any, launches: int, batches: int) -> None:
    """GEMMs and attention are one each, experts 12 of a layer, and what moves bytes 5 of a layer.

    Recomputed: all that runs forward in layers, once more.
    """
    parts = [replace(part, time_ms=Span(0.01, 0.01, 0.01, "model")) for part in ALL]
    tiny = replace(MIXTURE, hidden=16, heads=1, head_dim=16, ffn=16, vocab=16, dense_ffn=16)
    found = step_of(*parts, model=tiny, micro_batches=batches, checkpoint=checkpoint)
    busy = sum(part.time_ms.mid for part in found.parts if part.name != "waiting for the CPU")
    gaps = [batches * launches * one / 1e3 - busy for one in (7, 50, 70)]
    assert gaps[0] > 0 and span(found, "waiting for the CPU") == pytest.approx(tuple(gaps))


def test_one_gpu_exchanges_nothing() -> None:
    assert [part.name for part in step_of(*ALL).parts if part.name not in ("GEMMs", "attention")] == [
        "experts", "memory-bound kernels", "optimizer",
    ]  # fmt: skip


def test_a_gpu_that_is_busy_longer_does_not_wait() -> None:
    assert span(step_of(made("product", 1e4)), "waiting for the CPU") is None
    slow = span(step_of(made("product", 1.0, calls=1_000_000)), "waiting for the CPU")
    assert slow is not None and slow[2] > slow[1] > 0


# --- nodes, GPUs and rates --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "gpus", "t", "ep", "assumed"),
    [
        ("a100-sxm-80gb", None, 1, 1, 8),
        ("h100-sxm", None, 1, 1, 8),
        ("rtx-4090", None, 1, 1, 1),
        ("a100-sxm-80gb", None, 1, 16, 16),
        ("a100-sxm-80gb", None, 16, 1, 16),
        ("a100-sxm-80gb", None, 2, 1, 8),
        ("a100-sxm-80gb", 2, 1, 1, None),
        ("rtx-4090", 1, 1, 1, None),
    ],
)  # fmt: skip
def test_gpus_that_are_assumed(gpu: str, gpus: int | None, t: int, ep: int, assumed: int | None) -> None:
    model = replace(MIXTURE, tensor_parallel=t, expert_parallel=ep)
    hardware = find_gpu(None, override=gpu)
    found = step_of(model=model, gpu=hardware, gpus=gpus)
    given = step_of(model=model, gpu=hardware, gpus=found.gpus)
    assert found.gpus == (assumed or gpus)
    assert len(found.notes) - len(given.notes) == (assumed is not None)


@pytest.mark.parametrize(
    ("gpus", "doublings"), [(8, None), (9, 1.0), (16, 1.0), (17, math.log2(3)), (24, math.log2(3)), (64, 3.0)]
)
def test_each_doubling_of_the_nodes_waits_for_the_slowest(gpus: int, doublings: float | None) -> None:
    found = step_of(model=DENSE, layout=Layout(), gpus=gpus, strategy="ddp")
    busy = sum(part.time_ms.mid for part in found.parts if not part.name.startswith("waiting"))
    waited = span(found, "waiting for other nodes")
    assert waited == (None if doublings is None else pytest.approx((0.012 * doublings * busy,) * 3))


@pytest.mark.parametrize(
    ("window", "share", "keys"),
    [(None, 0.0, L * S), (256, 1.0, L * 256), (256, 0.5, 12 * S + 12 * 256), (2048, 0.5, L * S)],
)
@pytest.mark.parametrize("t", [1, 2])
def test_utilization_counts_keys_that_a_query_sees_and_experts_that_a_token_takes(
    window: int | None, share: float, keys: int, t: int
) -> None:
    """6 operations a weight; 12 times the width of attention for each key of a layer (arXiv 2204.02311)."""
    layout = Layout(experts_per_token=TOP_K, window=window, windowed_frac=share)
    found = step_of(model=replace(MIXTURE, tensor_parallel=t, experts=EXPERTS), layout=layout, gpus=t,
                    strategy="tp" if t > 1 else "fsdp", micro_batches=5)  # fmt: skip
    used = L * 4 * H * H + ROUTED * (2 * H * F * TOP_K + H * TOP_K) + 4 * 2 * H * 8192 + V * H
    tokens_ms = 5 * TOKENS / t / found.step_ms.mid
    assert found.tokens_per_s_per_gpu.mid == pytest.approx(tokens_ms * 1e3)
    assert found.mfu_frac.mid == pytest.approx(tokens_ms * (6 * used + 12 * H * keys) / 312e9)
    rates, step = found.tokens_per_s_per_gpu, found.step_ms
    assert (rates.low, rates.high) == pytest.approx(
        (5 * TOKENS / t / step.high * 1e3, 5 * TOKENS / t / step.low * 1e3)
    )


def test_heads_of_their_own_size_are_as_wide_as_they_are() -> None:
    model = replace(DENSE, head_dim=128)
    weights = L * (4 * H * 2 * H + 2 * H * F) + V * H
    found = step_of(model=model, layout=Layout())
    per_token = 6 * weights + 12 * 2 * H * L * S
    assert found.mfu_frac.mid == pytest.approx(TOKENS / found.step_ms.mid * per_token / 312e9)
    untied = step_of(model=replace(model, tied=False), layout=Layout())
    assert untied.mfu_frac.mid * untied.step_ms.mid == pytest.approx(found.mfu_frac.mid * found.step_ms.mid)


def test_no_peak_no_utilization() -> None:
    with pytest.raises(InputError):
        step_of(gpu=replace(A100, peak_tflops={"fp16": 312.0}))


@pytest.mark.parametrize(
    ("layout", "model", "gpu", "basis", "notes"),
    [
        (Layout(), DENSE, A100, "model", 4),
        (Layout(), DENSE, find_gpu(None, override="h200"), "heuristic", 4),
        (TWO, MIXTURE, A100, "heuristic", 6),  # nothing to fit, and all experts on each GPU
        (TWO, replace(MIXTURE, expert_parallel=None), A100, "heuristic", 6),
        (TWO, replace(MIXTURE, expert_parallel=8), A100, "heuristic", 7),  # even choice, and whose exchange
    ],
)
def test_how_sure_a_step_is(layout: Layout, model: ModelConfig, gpu: Gpu, basis: str, notes: int) -> None:
    found = step_of(model=model, gpu=gpu, layout=layout, gpus=8)
    assert (found.step_ms.basis, len(found.notes)) == (basis, notes)
    ddp = step_of(model=model, gpu=gpu, layout=layout, gpus=8, strategy="ddp")
    assert len(ddp.notes) == notes + 1
    assert len(step_of(layout=Layout(), model=DENSE, gpu=gpu, strategy="ddp").notes) == 4


def test_shares_of_the_step_add_to_one() -> None:
    found = step_of(*ALL, gpus=8, micro_batches=2)
    assert [part.name for part in found.parts][:5] == [
        "GEMMs", "attention", "experts", "memory-bound kernels", "communication",
    ]  # fmt: skip
    assert sum(part.frac for part in found.parts) == pytest.approx(1.0)
    assert all(part.frac == part.time_ms.mid / found.step_ms.mid for part in found.parts)
    assert (found.gpus, found.data_parallel, found.tensor_parallel, found.micro_batches) == (8, 8, 1, 2)


@pytest.mark.parametrize("base", [DENSE, MIXTURE])
def test_degrees_that_are_not_given_are_one(base: ModelConfig) -> None:
    layout = Layout() if base is DENSE else TWO
    given = replace(base, tensor_parallel=1, expert_parallel=1)
    bare = replace(base, tensor_parallel=None, expert_parallel=None)
    planner = Planner(layout, gpu=H100)
    assert planner.step(bare).parts == planner.step(given).parts
    assert planner.time_ms(bare) == planner.time_ms(given)
    for how in (Training(8), Training(8, "ddp", "full"), Training()):
        assert whole_step(planner, bare, how) == whole_step(planner, given, how)
        assert memory_of(bare, layout, how) == memory_of(given, layout, how)
        assert would_fit(bare, layout, how, 5.0) == would_fit(given, layout, how, 5.0)


def test_tokens_that_are_no_sequences_are_one() -> None:
    bare = replace(DENSE, micro_batch=None, sequence=None, tokens=TOKENS)
    (call,) = attention_calls(bare, Layout())
    assert (call.batch, call.sequence, call.calls) == (1, TOKENS, L)
