"""A planned step counted by hand: bytes, exchanges, states, launches, and the shapes around it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.said import Listener
from tracelens.config import Configuration, config_from_flags
from tracelens.config.configuration import Layout
from tracelens.config.model_config import ModelConfig
from tracelens.config.training import Training
from tracelens.gemm.predict import predict_gemm
from tracelens.hardware import find_gpu
from tracelens.hardware.collectives import exchange_us
from tracelens.results.suggestions import WholeStep
from tracelens.step import planned_kernels
from tracelens.step.memory import memory_of, would_fit
from tracelens.step.paces import pace_of
from tracelens.step.planned_step import Planner
from tracelens.step.search_space import BY_DEFAULT, SearchLimits, Space, kept_degree
from tracelens.step.whole_step import whole_step

B, S, H, A, F, V, L = 4, 1024, 1024, 16, 4096, 51200, 24
GPT = {"hidden": H, "heads": A, "layers": L, "vocab": V, "sequence": S, "micro_batch": B}
#: 12 h^2 of each layer's four products, and the embedding that the logits share.
WEIGHTS = 12 * H * H * L + V * H
A100 = find_gpu(None, override="a100-sxm-80gb")
#: bytes/ms: 0.9 of 2039 GB/s.
MOVED = 0.9 * 2039e6


def gpt(*, gated: bool = False, **sizes: int) -> Configuration:
    return config_from_flags(GPT | sizes, gated=gated, tied=True)


def step(training: Training, gpu: str = "a100-sxm-80gb", **sizes: int) -> WholeStep:
    config = gpt(gated=False, **sizes)
    return whole_step(Planner(config.layout, gpu=find_gpu(None, override=gpu)), config.model, training)


def span(found: WholeStep, name: str) -> tuple[float, float, float]:
    (time,) = (part.time_ms for part in found.parts if part.name == name)
    return time.low, time.mid, time.high


#: Reads and writes of 16-bit elements by one fused kernel, and by those of plain PyTorch, of a tensor of
#: b*s*h (two norms and two additions in a layer), b*s*f, or q and k.
_PLAIN = {
    ("norm", "forward"): (2 * (1 + 1), 2 * (1 + 1)),
    ("norm", "backward"): (
        2 * (2 + 1),
        2 * (4 + 1),
    ),  # gradient and input; and both once more for the weights
    ("residual", "forward"): (2 * 1, 2 * (2 + 1)),  # fused with what follows, the other input alone is read
    ("residual", "backward"): (2 * 1, 2 * (2 + 1)),
    ("embedding", "forward"): ((1 + 1) / L, (1 + 1 + 1) / L),  # once, not in each layer
    ("embedding", "backward"): ((2 + 1) / L, 6 / L),
}
_LLAMA = _PLAIN | {
    ("norm", "forward"): (2 * (1 + 1), 2 * 12),  # RMSNorm: six kernels
    ("norm", "backward"): (2 * (2 + 1), 2 * 22),
}


@pytest.mark.parametrize(("gated", "wanted"), [(False, _PLAIN), (True, _LLAMA)])
def test_bytes_of_what_is_as_wide_as_the_model(
    gated: bool, wanted: dict[tuple[str, str], tuple[float, float]]
) -> None:
    config = gpt(gated=gated)
    found = planned_kernels.hidden_traffic(config.model, config.layout)
    unit = 2 * B * S * H * L
    told = {(one.component, one.phase): (one.fused_bytes / unit, one.plain_bytes / unit) for one in found}
    assert told.keys() == wanted.keys()
    assert [*told.values()] == [pytest.approx(wanted[key]) for key in told]


@pytest.mark.parametrize(
    ("gated", "forward", "backward"),
    [
        (False, (1 + 1, 1 + 1), (2 + 1, 2 + 1)),
        # gate, up and result; backward both gradients, too. In plain PyTorch silu and product are two.
        (True, (2 + 1, (1 + 1) + (2 + 1)), (3 + 2, (3 + 2) + 4)),
    ],
)
def test_bytes_of_the_activation_and_of_rotary_embeddings(
    gated: bool, forward: tuple[int, int], backward: tuple[int, int]
) -> None:
    config = gpt(gated=gated, ffn=F, kv_heads=4) if gated else gpt()
    unit = 2 * B * S * F * L
    found = [*planned_kernels.mlp_traffic(config.model, config.layout)]
    assert [(one.phase, one.fused_bytes / unit, one.plain_bytes / unit) for one in found] == [
        ("forward", *forward),
        ("backward", *backward),
    ]
    turned = [*planned_kernels.attention_traffic(config.model, config.layout)]
    # q of 16 heads and k of 4, read and written once, or by neg, cat, two products and the sum.
    unit = 2 * B * S * (16 + 4) * 64 * L
    assert [(one.phase, one.fused_bytes / unit, one.plain_bytes / unit) for one in turned] == (
        [("forward", 2.0, 9.0), ("backward", 2.0, 9.0)] if gated else []
    )


def test_bytes_of_the_loss_of_a_rank_s_part_of_the_vocabulary() -> None:
    """Plain: a cast to fp32, log_softmax; backward zeros, the gradient, log_softmax's and the cast back."""
    config = gpt(tensor_parallel=4)
    forward, backward = planned_kernels.vocab_traffic(config.model)
    logits = B * S * V / 4
    assert (forward.fused_bytes / logits, forward.plain_bytes / logits) == (2, (2 + 4) + (4 + 4))
    assert (backward.fused_bytes / logits, backward.plain_bytes / logits) == (4, 4 + (4 + 4 + 4) + (4 + 2))


def test_a_kernel_that_moves_bytes_takes_them_at_what_such_kernels_reach_of_the_bandwidth() -> None:
    """Fused 0.9, plain PyTorch 0.72, and twice as long under autocast."""
    config = gpt()
    parts = Planner(config.layout, gpu=A100).step(config.model).parts
    (loss,) = (one for one in parts if one.component == "loss" and one.role == "forward")
    logits = B * S * V
    plain = 14 * logits / (0.8 * MOVED)
    told = (loss.time_ms.low, loss.time_ms.mid, loss.time_ms.high)
    assert told == pytest.approx((2 * logits / MOVED, plain, 2 * plain))


@pytest.mark.parametrize(
    ("sizes", "gated", "fused", "shapes"),
    [
        ({}, False, True, ["qkv 4096 3072 1024", "output 4096 1024 1024", "up 4096 4096 1024",
                           "down 4096 1024 4096", "logits 4096 51200 1024"]),
        ({"kv_heads": 4, "ffn": 2816}, True, True,
         ["qkv 4096 1536 1024", "output 4096 1024 1024", "up 4096 5632 1024", "down 4096 1024 2816",
          "logits 4096 51200 1024"]),
        ({"kv_heads": 4, "ffn": 2816, "tensor_parallel": 2}, True, False,
         ["qkv 4096 512 1024", "qkv 4096 128 1024 x48", "output 4096 1024 512", "up 4096 1408 1024",
          "gate 4096 1408 1024", "down 4096 1024 1408", "logits 4096 25600 1024"]),
    ],
)  # fmt: skip
def test_products_of_a_rank(sizes: dict[str, int], gated: bool, fused: bool, shapes: list[str]) -> None:
    model = gpt(gated=gated, **sizes).model
    layout = Layout(fused_qkv=fused, fused_gate=fused, rope=gated)
    linears = [
        *planned_kernels.attention_linears(model, layout),
        *planned_kernels.mlp_linears(model, layout),
        *planned_kernels.logits_linear(model),
    ]
    told = []
    for one in linears:
        assert (one.batch, one.rows) == (1, B * S)
        name = one.component.split(".")[-1]
        more = f" x{one.calls}" if one.calls not in (L, 1) else ""
        told.append("{} {} {} {}".format(name, *one.shape("forward")) + more)
        assert one.shape("dgrad") == (B * S, one.into, one.out, "NN")
        assert one.shape("wgrad") == (one.out, one.into, B * S, "NT")
    assert told == shapes


def test_kernels_run_at_the_pace_of_published_steps() -> None:
    """MPT on A100: attention 1.91 and bytes 3.59 times what the kernels take alone, each within 17 %."""
    config = gpt()
    parts = Planner(config.layout, gpu=A100).step(config.model).parts
    alone = {
        kind: [one.time_ms for one in parts if one.kind == kind] for kind in ("product", "attention", "bytes")
    }
    found, error = step(Training(gpus=1, micro_batches=3)), math.exp(0.17)
    for name, kind, pace in (("attention", "attention", 1.91), ("memory-bound kernels", "bytes", 3.59)):
        took = 3 * sum(one.low if kind == "bytes" else one.mid for one in alone[kind])
        low = took if kind == "attention" else pace * took
        assert span(found, name) == pytest.approx((low / error, pace * took, pace * took * error))
    took = 3 * sum(one.mid for one in alone["product"])
    low, mid, high = span(found, "GEMMs")
    assert (mid, high) == pytest.approx((took, took * error))
    assert low == pytest.approx(max(took / error, 3 * sum(one.low for one in alone["product"])))


@pytest.mark.parametrize(
    ("gpu", "attention", "error"),
    [("a100-sxm-40gb", 1.91, 0.17), ("a6000", 1.91, 0.32), ("l40s", 1.91, 0.32), ("v100-sxm", 1.91, 0.32),
     ("h100-sxm", 3.53, 0.17), ("h200", 3.53, 0.32), ("b200", 1.0, 0.32), ("rtx-5090", 1.0, 0.32)],
)  # fmt: skip
def test_a_gpu_without_a_fitted_step_has_the_pace_of_its_generation(
    gpu: str, attention: float, error: float
) -> None:
    found = pace_of(find_gpu(None, override=gpu))
    assert (found.attention, found.error) == (attention, error)


@pytest.mark.parametrize(("checkpoint", "calls"), [("none", 4), ("full", 6)])
def test_tensor_parallel_ranks_sum_activations_two_times_a_pass(checkpoint: Any, calls: int) -> None:
    found = step(Training(4, "tp", checkpoint, micro_batches=5), tensor_parallel=4)
    one = exchange_us("a100-sxm-80gb", "all_reduce", 4, 2.0 * B * S * H, in_node=4) or 0.0
    assert span(found, "communication")[1] == pytest.approx(calls * L * 5 * one / 1e3)
    assert (found.gpus, found.data_parallel, found.tensor_parallel) == (4, 1, 4)
    assert found.tokens_per_s_per_gpu.mid == pytest.approx(5 * B * S / 4 / found.step_ms.mid * 1e3)


@pytest.mark.parametrize(("gpus", "in_node"), [(8, 8), (16, 8)])
def test_fsdp_gathers_a_layer_twice_and_scatters_its_gradients(gpus: int, in_node: int) -> None:
    gather, scatter = (
        exchange_us("a100-sxm-80gb", name, gpus, 2.0 * WEIGHTS / L, in_node=in_node) or 0.0
        for name in ("all_gather", "reduce_scatter")
    )
    found = step(Training(gpus, micro_batches=3))
    assert span(found, "communication")[1] == pytest.approx(0.93 * 3 * L * (2 * gather + scatter) / 1e3)
    # A weight's fp32 gradient, master weight and moments are read, all but the gradient written: 28 bytes.
    assert span(found, "optimizer")[1] == pytest.approx(28 * WEIGHTS / gpus / MOVED)
    busy = sum(part.time_ms.mid for part in found.parts if not part.name.startswith("waiting"))
    waits = [part.time_ms.mid for part in found.parts if part.name == "waiting for other nodes"]
    assert waits == ([pytest.approx(0.012 * busy)] if gpus == 16 else [])


def test_ddp_reduces_fp32_gradients_once_and_hides_behind_the_backward() -> None:
    took = (exchange_us("a100-sxm-80gb", "all_reduce", 8, 4.0 * WEIGHTS, in_node=8) or 0.0) / 1e3
    found = step(Training(8, "ddp"))
    error = math.exp(0.17)
    assert span(found, "communication") == pytest.approx((0.0, took / 2, took * error))
    assert span(found, "optimizer")[1] == pytest.approx(28 * WEIGHTS / MOVED)
    config = gpt(micro_batch=1, sequence=128)
    parts = Planner(config.layout, gpu=A100).step(config.model).parts
    backward = sum(one.time_ms.mid for one in parts if one.role != "forward")
    low, mid, _ = span(step(Training(8, "ddp"), micro_batch=1, sequence=128), "communication")
    assert low * error == pytest.approx(max(0.0, took - backward))
    assert mid == pytest.approx((low * error + took) / 2)


@pytest.mark.parametrize(
    ("checkpoint", "in_layer"), [("none", 4 * 3 + 2 + 6 * 5), ("full", 44 + 4 + 1 + 3 * 5)]
)
def test_the_cpu_launches_every_kernel_of_plain_pytorch(checkpoint: Any, in_layer: int) -> None:
    """A layer: 4 linear layers in three roles, attention forward and backward, and 5 kernels for each of
    norm, residual and activation forward and backward; outside, 3 GEMMs of logits, embedding and loss."""
    found = step(Training(1, checkpoint=checkpoint), micro_batch=1, sequence=64)
    launches = L * in_layer + 3 + 4 * 5
    busy = sum(part.time_ms.mid for part in found.parts if part.name != "waiting for the CPU")
    gaps = [max(0.0, launches * us / 1e3 - busy) for us in (7, 50, 70)]
    assert span(found, "waiting for the CPU") == pytest.approx(tuple(gaps)) and gaps[1] > 0


@pytest.mark.parametrize(
    ("gpu", "training", "words", "basis"),
    [
        ("a100-sxm-80gb", Training(8), ["published steps of MPT"], "model"),
        ("h200", Training(8), ["no step on the H200"], "heuristic"),
        ("h100-sxm", Training(None, "ddp"), ["8 GPUs are assumed", "MPT", "no step with ddp"], "model"),
        ("l40s", Training(1, "ddp"), ["no step on the L40S"], "heuristic"),
    ],
)
def test_what_a_whole_step_rests_on_is_said(
    gpu: str, training: Training, words: list[str], basis: str
) -> None:
    found = step(training, gpu)
    assert found.step_ms.basis == basis
    for word in ("GPUs are assumed", "published steps of MPT", "no step on the", "no step with"):
        wanted = any(word in one or one in word for one in words)
        assert any(word in note for note in found.notes) == wanted, word


#: 16 bytes a weight: bf16 weight and gradient, fp32 master weight and two moments (ZeRO, arXiv 1910.02054).
@pytest.mark.parametrize(
    ("training", "t", "states"),
    [
        (Training(1, "ddp"), 1, 16 * WEIGHTS),
        (Training(8, "ddp"), 1, 16 * WEIGHTS),
        (Training(8, "fsdp"), 1, 16 * WEIGHTS / 8 + 2 * 2 * WEIGHTS / L),
        (Training(1, "fsdp"), 1, 16 * WEIGHTS),
        (Training(2, "tp"), 2, 16 * WEIGHTS / 2),
        (Training(8, "fsdp"), 2, 16 * WEIGHTS / 2 / 4 + 2 * 2 * WEIGHTS / 2 / L),
    ],
)
def test_states_of_a_gpu(training: Training, t: int, states: float) -> None:
    config = gpt(tensor_parallel=t)
    found = memory_of(config.model, config.layout, training)
    assert found.states == pytest.approx(states)
    # 2 bytes each: inputs of both norms and residuals 4 h, q, k, v and attention's result 4 h, the MLP 2 f
    kept = 2 * B * S * (L * (4 * H + 4 * H / t + 2 * F / t) + 3 * V / t)
    assert found.activations == pytest.approx(kept) and found.whole == pytest.approx(states + kept)
    again = memory_of(config.model, config.layout, replace(training, checkpoint="full"))
    one = 2 * B * S * (4 * H + 4 * H / t + 2 * F / t + 3 * V / t)
    assert again.activations == pytest.approx(one + 2 * B * S * H * (L - 1))


#: In GB: states 5.67, halved and so on among ranks; activations 1.12 of a sequence, 1.59 of four with full
#: recompute; on 2, 4 or 8 tensor-parallel ranks 5.48, 3.14 and 1.97 in all.
@pytest.mark.parametrize("room_gb", [9.1, 7.4, 6.0, 4.0, 1.0])
def test_what_would_make_it_fit(room_gb: float, said: Listener) -> None:
    config = gpt()
    said(would_fit(config.model, config.layout, Training(1, "ddp"), room_gb))


@pytest.mark.parametrize(
    ("now", "degree"),
    [
        (ModelConfig(heads=32), 8),
        (ModelConfig(heads=12), 4),
        (ModelConfig(heads=71), 1),
        (gpt().model, 4),  # 355 million weights fit one GPU: two and four stay
        (gpt(hidden=8192, heads=64, layers=48).model, 8),
    ],
)
def test_degrees_that_heads_keep(now: ModelConfig, degree: int) -> None:
    assert kept_degree(now) == degree


#: Hidden sizes within an eighth on the grid of 64; heads of 64 to 128 in steps of 8, as models have them.
_NEAR = range(896, 1153, 64)
_SAME_HEADS_OR_SIZE = {(h, h // 64, 64) for h in _NEAR} | {(1152, 16, 72)}
_ANY = {(h, h // d, d) for h in _NEAR for d in range(64, 129, 8) if h % d == 0}


@pytest.mark.parametrize(
    ("free", "any_heads", "found"),
    [
        ({"heads", "head_dim"}, True, {(1024, 16, 64), (1024, 8, 128)}),
        ({"heads"}, True, {(1024, 16, 64)}),
        ({"hidden"}, True, {(1024, 16, 64)}),
        ({"hidden", "heads"}, True, _SAME_HEADS_OR_SIZE),
        ({"hidden", "head_dim"}, True, _SAME_HEADS_OR_SIZE),
        ({"hidden", "heads", "head_dim"}, True, _ANY),
        ({"hidden", "heads", "head_dim"}, False, {one for one in _ANY if one[1] % 4 == 0}),
    ],
)
def test_widths_and_heads_around_the_present_ones(
    free: set[str], any_heads: bool, found: set[tuple[int, int, int]]
) -> None:
    space = Space(gpt().model, SearchLimits(free=frozenset(free), any_heads=any_heads))
    assert {(one.hidden, one.heads, one.head_dim) for one in space.bases()} == found


@pytest.mark.parametrize(
    ("vocab", "ranks", "tried"),
    [
        (50257, 1, [50257, 50304]),  # 50304 is a multiple of 128, too
        (50257, 4, [50257, 50432, 50688]),
        (50304, 1, [50304]),
        (32064, 1, [32064, 32128]),
    ],
)
def test_a_vocabulary_is_padded_to_one_and_two_grids_of_64(vocab: int, ranks: int, tried: list[int]) -> None:
    assert Space(gpt(vocab=vocab).model, SearchLimits(), vocab_ranks=ranks).vocabs() == tried
    kept = SearchLimits(free=BY_DEFAULT - {"vocab"})
    assert Space(gpt(vocab=vocab).model, kept, vocab_ranks=ranks).vocabs() == [vocab]


@pytest.mark.parametrize(("gated", "t", "share"), [(False, 1, 0.01), (True, 1, 0.02), (False, 4, 0.05)])
def test_mlp_widths_keep_the_weights(gated: bool, t: int, share: float) -> None:
    """By hand: a unit of width is 2 h weights a layer (3 h with a gate), on a grid of 64 for each rank."""
    config = gpt(gated=gated, ffn=F, tensor_parallel=t)
    now = config.model
    widths = Space(now, SearchLimits(parameters_frac=share)).ffns(now)
    room = share * (now.parameters or 0) / ((3 if gated else 2) * H * L)
    grid = 64 * t
    wanted = {n * grid for n in range(1, 2 * F // grid) if abs(n * grid - F) <= min(room, F / 2)}
    assert widths == sorted({F} | wanted)


@pytest.mark.parametrize(
    ("free", "wanted"),
    [
        ({"micro_batch"}, {(n, 1000) for n in (4, 6, 8, 10, 12, 14, 16)}),
        ({"sequence"}, {(4, 896), (4, 1000), (4, 1024)}),
        ({"kv_heads"}, {(4, 1000)}),
    ],
)
def test_batches_and_lengths_that_are_tried(free: set[str], wanted: set[tuple[int, int]]) -> None:
    space = Space(gpt(sequence=1000).model, SearchLimits(free=frozenset(free), memory_gb=80.0))
    assert {(one.micro_batch, one.sequence) for one in space.bases()} == wanted


@pytest.mark.parametrize(
    ("kv", "t", "free", "wanted"),
    [
        (4, 1, True, {1, 2, 4, 8, 16}),
        (4, 8, True, {1, 2, 4, 8, 16}),
        (4, 1, False, {4}),
        (16, 1, False, {16}),
        (6, 4, True, {1, 2, 4, 8, 16}),
    ],
)
def test_kv_heads_that_are_tried(kv: int, t: int, free: bool, wanted: set[int]) -> None:
    """They divide the heads, and ranks and they divide one way or the other."""
    now = replace(gpt(tensor_parallel=t).model, kv_heads=kv)
    limits = SearchLimits(free=frozenset({"kv_heads"} if free else {"vocab"}))
    assert {one.kv_heads for one in Space(now, limits).bases()} == wanted


def test_predictions_are_counted_by_calls_of_the_predictor() -> None:
    """Three roles of QKV, output, up, down and logits, and attention in two directions."""
    config = gpt()
    planner = Planner(config.layout, gpu=A100)
    planner.step(config.model)
    assert planner.predictions == 5 * 3 + 2
    planner.step(config.model)
    assert planner.predictions == 17


def test_torch_compile_pads_by_copying_each_misaligned_operand() -> None:
    """n = 50257 is off the grid: its operand of k x n, and of the gradients the one of m x k, too."""
    config = gpt(vocab=50257)
    parts = Planner(config.layout, gpu=A100).step(config.model).parts
    pads = {one.role: one.pad_ms for one in parts if one.component == "logits"}
    tokens, weight, logits = B * S * H, H * 50257, B * S * 50257
    assert predict_gemm(B * S, 50257, H, gpu=A100, layout="TN").alignment["c"] == 2
    assert pads["forward"] == pytest.approx(2 * 2 * weight / MOVED)
    assert pads["dgrad"] == pytest.approx(2 * 2 * (logits + weight) / MOVED)
    assert pads["wgrad"] == pytest.approx(2 * 2 * logits / MOVED) or pads["wgrad"] == pytest.approx(
        2 * 2 * (logits + tokens) / MOVED
    )
