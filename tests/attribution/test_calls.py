"""Calls: which kernels make up a GEMM, and its role."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from tests.synthetic import Event, ModelSpec, Options, Synthetic, Truth, build
from tests.trace.tools import document, kernel, launch, op, read
from tracelens.attribution import Attribution, Calls, attribute
from tracelens.attribution.calls import find_calls, role_of
from tracelens.gemm import AttentionShape, GemmShape, flops
from tracelens.trace import Trace, link
from tracelens.words import COMPONENTS, PHASES

GPT = ModelSpec(
    family="gpt2",
    hidden=256,
    heads=4,
    vocab=5003,
    layers=2,
    sequence=128,
    micro_batch=2,
    bias=True,
    tied=False,
)
LLAMA = ModelSpec(
    family="llama",
    hidden=256,
    heads=4,
    kv_heads=2,
    ffn=704,
    vocab=4096,
    layers=2,
    sequence=128,
    micro_batch=2,
)


def _shape(m: int, n: int, k: int, batch: int = 1) -> GemmShape:
    return GemmShape(m, n, k, batch, "bf16", "bf16", None)


def _calls_of(folder: Path, text: str) -> tuple[Trace, Attribution, Calls]:
    trace = read(folder, text)
    links = link(trace)
    attribution = attribute(trace, links)
    return trace, attribution, find_calls(trace, links, attribution)


@pytest.mark.parametrize("attention", ["flash", "math"])
@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt2", "llama"])
def test_roles_and_shapes_of_every_gemm_agree_with_the_truth(
    tmp_path: Path, model: ModelSpec, attention: Literal["flash", "math"]
) -> None:
    made = build(model, Options(steps=1, attention=attention, module_frames=True))
    trace, attribution, calls = _calls_of(tmp_path, made.text())
    truth = {row.correlation: row for row in made.truth if row.m is not None}
    seen = set()
    for at, main in enumerate(calls.main.tolist()):
        row = truth.get(int(trace.kernels.correlation[main]))
        shape = calls.shape[at]
        if row is None:
            assert not isinstance(shape, GemmShape)
            continue
        assert isinstance(shape, GemmShape)
        assert (shape.m, shape.n, shape.k, shape.batch) == (row.m, row.n, row.k, row.batch)
        assert flops(shape) == row.flops
        phase = PHASES[attribution.phase[main]]
        assert role_of(shape, calls.forward[at], phase) == (
            row.role or ("forward" if phase == "forward" else "dgrad")  # products of two activations
        )
        seen.add(row.correlation)
    assert seen == set(truth)


def test_a_square_products_gradients_are_told_apart_by_their_layout() -> None:
    square = _shape(512, 512, 512)
    assert role_of(replace(square, layout="NN"), square, "backward") == "dgrad"
    assert role_of(replace(square, layout="NT"), square, "backward") == "wgrad"
    assert role_of(square, square, "backward") is None


def test_the_reduced_dimension_decides_the_role() -> None:
    forward = _shape(1024, 4096, 512)  # out[tokens, ffn] = x[tokens, h] w[h, ffn]
    assert role_of(_shape(1024, 512, 4096), forward, "backward") == "dgrad"
    assert role_of(_shape(4096, 512, 1024), forward, "backward") == "wgrad"
    assert role_of(_shape(7, 7, 7), forward, "backward") is None


def test_a_backward_without_its_forward_has_no_role() -> None:
    assert role_of(_shape(8, 8, 8), None, "backward") is None


def test_products_of_two_activations_have_no_weight_gradient() -> None:
    scores = _shape(128, 128, 64, batch=8)
    assert role_of(_shape(128, 64, 128, batch=8), scores, "backward") == "dgrad"


def test_recomputed_products_are_forward_products() -> None:
    assert role_of(_shape(8, 8, 8), None, "recompute") == "forward"


def test_a_weight_gradient_that_a_library_adds_in_place_has_its_role_and_shape(tmp_path: Path) -> None:
    """Gradient accumulation fusion: the product is launched by the backward itself, under no ``aten::mm``."""
    made = build(ModelSpec(layers=1, vocab=1024), Options(steps=1, module_frames=False))
    truth = {row.correlation: row for row in made.truth}
    hidden = {
        event.ts
        for event in made.records
        if event.cat == "cpu_op" and event.name == "aten::mm" and _launches_wgrad(made, event, truth)
    }
    assert len(hidden) > 4
    records = [e for e in made.records if not (e.cat == "cpu_op" and e.name == "aten::mm" and e.ts in hidden)]
    trace, attribution, calls = _calls_of(tmp_path, replace(made, records=records).text())
    found = 0
    for at, main in enumerate(calls.main.tolist()):
        row = truth[int(trace.kernels.correlation[main])]
        if row.role == "wgrad":
            shape = calls.shape[at]
            assert isinstance(shape, GemmShape)
            assert {shape.m, shape.n} == {row.m, row.n}
            assert shape.k == row.k
            assert COMPONENTS[attribution.component[main]] == row.component
            assert calls.role[at] == "wgrad"
            found += calls.op_name[at] is None
    assert found == len(hidden)


def _launches_wgrad(made: Synthetic, op: Event, truth: dict[int, Truth]) -> bool:
    inside = [
        e.args["correlation"]
        for e in made.records
        if e.cat in ("cuda_runtime", "cuda_driver") and e.tid == op.tid and op.ts <= e.ts < op.ts + op.dur
    ]
    return any(number in truth and truth[number].role == "wgrad" for number in inside)


@pytest.mark.parametrize("family", ["moe_grouped", "moe"])
def test_roles_of_experts_in_one_batched_product_are_the_truth(tmp_path: Path, family: str) -> None:
    """One weight of each expert makes a batched product that has a weight gradient, unlike attention's."""
    pytest.importorskip("torch")
    from tests.zoo import ZooOptions, program_of, trace_of

    options = ZooOptions(steps=1)
    made = trace_of(family, options, program_of(family, options))
    trace, _, calls = _calls_of(tmp_path, made.text())
    truth = {row.correlation: row for row in made.truth}
    roles = set()
    for at, main in enumerate(calls.main.tolist()):
        row = truth[int(trace.kernels.correlation[main])]
        if row.component == "moe.experts" and row.role is not None:
            assert calls.role[at] == row.role, row
            roles.add((row.role, (row.batch or 1) > 1))
    assert roles == {(role, batched) for role in ("forward", "dgrad", "wgrad")
                     for batched in ({True, False} if family == "moe_grouped" else {False})}  # fmt: skip


@pytest.mark.parametrize(("asked", "runs", "found"), [(100, 104, 100), (64, 64, 64), (100, 128, 128)])
def test_attention_has_the_head_dimension_that_was_asked_for(
    tmp_path: Path, asked: int, runs: int, found: int
) -> None:
    """Flash attention takes multiples of 8: PyTorch pads others. What is wider than that was asked for so."""
    inner = [[4, 64, 5, runs]] * 3
    events = [
        op("aten::scaled_dot_product_attention", ts=0, dur=20, **{"Input Dims": [[4, 5, 64, asked]] * 3}),
        op("aten::_flash_attention_forward", ts=2, dur=10, **{"Input Dims": inner}),
        launch(1, ts=4),
        kernel("flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64, 4>>", ts=30, dur=5),
    ]
    _, _, calls = _calls_of(tmp_path, document(events))
    (shape,) = calls.shape
    assert isinstance(shape, AttentionShape) and (shape.head_dim, shape.value_dim) == (found, found)
