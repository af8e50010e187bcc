"""Plain layers: what they compute, and what is said when they cannot be built."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tests.measure.fakes import HASTY, FakeDevice
from tracelens.measure import CannotMeasure
from tracelens.measure.layer_shapes import LayerShape, StepShape
from tracelens.measure.layers import Layer, Mlp, SelfAttention, layer_step
from tracelens.measure.pairs import measure_layers, measure_pair, measure_steps

GATED = LayerShape(
    64, 4, 96, kv_heads=2, gated=True, sequence=16, micro_batch=2, dtype="fp32", attention="math"
)


@pytest.mark.parametrize("fused_qkv", [True, False])
@pytest.mark.parametrize("fused_gate", [True, False])
@pytest.mark.parametrize("gated", [True, False])
def test_a_layer_does_the_products_it_lists(fused_qkv: bool, fused_gate: bool, gated: bool) -> None:
    """Counted by PyTorch itself."""
    shape = replace(GATED, gated=gated, fused_qkv=fused_qkv, fused_gate=fused_gate)
    step = layer_step(shape, device="cpu")
    with FlopCounterMode(display=False) as counter:
        step(0)
    assert counter.get_total_flops() == sum(2 * g.m * g.n * g.k * g.batch for g in shape.gemms())
    components = [one.component for one in shape.linears()]
    assert components.count("attention.qkv") == (1 if fused_qkv else 3)
    assert components.count("mlp.gate") == (1 if gated and not fused_gate else 0)
    assert shape.parameters == replace(GATED, gated=gated).parameters


def test_one_projection_or_three_compute_the_same() -> None:
    together, apart = SelfAttention(GATED), SelfAttention(replace(GATED, fused_qkv=False))
    weight = linear(together.qkv[0]).weight.detach()
    for part, rows in zip(apart.qkv, weight.split(together.sizes), strict=True):
        linear(part).weight = nn.Parameter(rows.clone())
    apart.output = together.output
    x = torch.randn(2, 16, 64)
    torch.testing.assert_close(together(x), apart(x))


def test_one_product_for_gate_and_up_or_two_compute_the_same() -> None:
    together, apart = Mlp(GATED), Mlp(replace(GATED, fused_gate=False))
    for part, rows in zip(apart.up, linear(together.up[0]).weight.detach().chunk(2), strict=True):
        linear(part).weight = nn.Parameter(rows.clone())
    apart.down = together.down
    x = torch.randn(2, 16, 64)
    torch.testing.assert_close(together(x), apart(x))


def test_checkpointing_computes_the_same_and_most_of_the_forward_twice() -> None:
    torch.manual_seed(0)
    plain = Layer(GATED)
    again = Layer(replace(GATED, recompute=True))
    again.load_state_dict(plain.state_dict())
    flops, gradients = [], []
    for layer in (plain, again):
        x = torch.ones(2, 16, 64, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            out: Tensor = layer(x)
            forward = counter.get_total_flops()
            out.sum().backward()
        flops.append((forward, counter.get_total_flops()))
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)
    assert flops[1][0] == flops[0][0]
    # torch stops once all that the backward needs is there: the last product is not made again
    assert flops[1][1] > flops[0][1] + 0.75 * flops[0][0]


def test_every_kind_of_pair_is_measured() -> None:
    device = FakeDevice([100.0])
    small = replace(GATED, dtype="bf16", attention="flash")
    found = measure_layers(small, replace(small, ffn=128), device=device, options=HASTY, turns=2)
    assert found.before_ms == found.after_ms == (0.1, 0.1)
    assert (found.ms, found.spread_frac, found.queued) == ((0.1, 0.1), 0.0, True)
    logits = small.changed(vocab=96)
    assert measure_layers(logits, logits, device=device, options=HASTY, turns=1).before_ms == (0.1,)
    step = StepShape(small, 1, 96)
    assert measure_steps(step, step, device=device, options=HASTY, turns=1).after_ms == (0.1,)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "not enough memory for"),
        (RuntimeError("No available kernel.\nAborting"), "No available kernel."),
    ],
)
def test_a_layer_that_cannot_be_built_or_run_says_why(error: Exception, says: str) -> None:
    def build(shape: LayerShape) -> object:
        raise error

    def runs(shape: LayerShape) -> object:
        def step(index: int) -> None:
            raise error

        return step

    for make in (build, runs):
        with pytest.raises(CannotMeasure, match=says):
            measure_pair(GATED, GATED, make, device=FakeDevice([1.0]), options=HASTY)  # type: ignore[arg-type]


def linear(module: nn.Module) -> nn.Linear:
    assert isinstance(module, nn.Linear)
    return module
