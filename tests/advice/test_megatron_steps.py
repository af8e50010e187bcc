"""Steps of Megatron-Core with Transformer Engine against those that NVIDIA publishes."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import megatron_steps
from benchmarks.steps import Row, fit, judge
from tests.advice.configs import LLAMA3_8B, read
from tests.advice.test_planned_by_hand import gpt
from tests.advice.test_whole_step import _part
from tests.said import Listener
from tracelens.config.configuration import Run
from tracelens.config.model_config import ModelConfig
from tracelens.config.training import Training
from tracelens.errors import UsageError
from tracelens.hardware import find_gpu
from tracelens.hardware.collectives import exchange_us
from tracelens.results.suggestions import Stack, WholeStep
from tracelens.step.paces import pace_of
from tracelens.step.planned_kernels import attention_calls
from tracelens.step.planned_step import Planner
from tracelens.step.whole_step import whole_step

H100 = find_gpu(None, override="h100-sxm")
_MEGATRON = {"hidden_size": 2048, "num_layers": 8, "num_attention_heads": 16, "seq_length": 4096,
             "micro_batch_size": 1, "vocab_size": 32000, "max_position_embeddings": 4096}  # fmt: skip


def _rows(kind: str, *, out: bool | None = None, stack: Stack = "megatron") -> list[Row]:
    gpus = megatron_steps._KINDS[kind]
    return [row for row, left in megatron_steps.rows(stack) if row.gpu in gpus and out in (None, left)]


@pytest.mark.parametrize(("kind", "median", "ninth"), [("Hopper", 0.03, 0.09), ("Blackwell", 0.06, 0.26)])
def test_steps_that_were_left_out_are_met(kind: str, median: float, ninth: float) -> None:
    found = judge(_rows(kind, out=True))
    away = sorted(map(abs, found.errors))
    assert math.expm1(statistics.median(away)) < median and all(found.inside)
    assert math.expm1(away[math.ceil(0.9 * len(away)) - 1]) < ninth
    assert statistics.fmean(found.ordered) > 0.9


@pytest.mark.parametrize("kind", ["Hopper", "Blackwell"])
def test_models_left_out_of_the_fit_one_by_one_are_met(kind: str) -> None:
    some = _rows(kind)
    found = megatron_steps._in_turn(some, some[0].pace)
    assert math.expm1(statistics.median(map(abs, found.errors))) < 0.07
    assert statistics.fmean(found.inside) > 0.9 and statistics.fmean(found.ordered) > 0.9


def test_as_plain_pytorch_they_are_predicted_a_third_too_slow() -> None:
    """With attention of 2023, casts of their own and all of the exchanges: each of those is in the pace."""
    assert statistics.median(judge(_rows("Hopper", stack="plain")).errors) > math.log(1.3)


@pytest.mark.parametrize("kind", ["Hopper", "Blackwell"])
def test_the_constants_are_those_of_the_benchmark(kind: str) -> None:
    some = _rows(kind, out=False)
    found = fit(some, megatron_steps._FITTED, some[0].pace)
    for name in megatron_steps._FITTED:
        assert getattr(some[0].pace, name) == pytest.approx(getattr(found, name), abs=0.006)


def _step(training: Training, **sizes: int) -> WholeStep:
    config = gpt(**sizes)
    return whole_step(Planner(config.layout, gpu=H100), config.model, training)


def test_sequence_parallel_ranks_share_what_is_as_wide_as_the_stream() -> None:
    config = gpt(tensor_parallel=4)
    parts = Planner(config.layout, gpu=H100).step(config.model).parts
    moved = [part for part in parts if part.kind == "bytes"]
    stream = [part for part in moved if part.component in ("norm", "residual", "embedding")]
    apart, split = (
        _part(_step(Training(4, "tp", sequence_parallel=one), tensor_parallel=4), "memory-bound kernels")
        for one in (False, True)
    )
    spared = 0.75 * sum(part.time_ms.low for part in stream)
    assert apart - split == pytest.approx(pace_of(H100).moved * spared)
    assert 0 < split < apart


def test_what_each_stack_shows_of_an_exchange() -> None:
    """Two all-reduces a layer forward and two backward. Megatron's sequence-parallel ranks gather and scatter
    instead; its GEMMs hide the most of that where they are told to, and where nothing says it half of the
    rest shows. What is gathered again for the weights' gradients shows at the slow end alone."""
    model = gpt(tensor_parallel=4).model
    size, layers = 2 * (model.token_count or 0) * (model.hidden or 0), model.layers or 0
    reduced, gathered, scattered = (
        (exchange_us("h100-sxm", one, 4, size, in_node=4) or 0) / 1e3
        for one in ("all_reduce", "all_gather", "reduce_scatter")
    )
    took, tensor = 4 * layers * (gathered + scattered), pace_of(H100, stack="megatron").tensor
    cases: list[tuple[Training, float, float]] = [
        (Training(4, "tp", stack="plain"), 4 * layers * reduced, 4 * layers * reduced),
        (Training(4, "tp", stack="megatron", overlap=True), tensor * took, took + 2 * layers * gathered),
        (Training(4, "tp", stack="megatron"), (1 + tensor) / 2 * took, took + 2 * layers * gathered),
    ]
    for training, mid, most in cases:
        step = _step(training, tensor_parallel=4)
        sent = next(part.time_ms for part in step.parts if part.name == "communication")
        assert sent.mid == pytest.approx(mid) and sent.low == 0.0 and (sent.high or 0) >= most
    config = gpt(tensor_parallel=4)
    asked = Training(4, "tp", stack="megatron")
    for training, run in ((asked, Run(overlap=False)), (replace(asked, overlap=False), Run())):
        open_ = whole_step(Planner(config.layout, gpu=H100), config.model, training, run=run)
        assert _part(open_, "communication") == pytest.approx(took)


def test_casts_are_within_other_kernels() -> None:
    config = gpt()
    planner = Planner(config.layout, gpu=H100, dtype="fp8")
    products = [part for part in planner.step(config.model).parts if part.kind == "product"]
    casts = sum(part.cast_ms for part in products)
    alone = sum(part.time_ms.mid for part in products) - casts
    assert casts > 0.05 * alone
    stacks: tuple[Stack, ...] = ("plain", "megatron")
    for stack in stacks:
        pace = pace_of(H100, stack=stack)
        step = whole_step(planner, config.model, Training(1, "ddp", stack=stack))
        assert _part(step, "GEMMs") == pytest.approx(pace.products * alone + pace.casts * casts)


@pytest.mark.parametrize("cp", [2, 4])
def test_context_parallel_ranks_share_each_sequence(cp: int) -> None:
    """The same operations and tokens in all; each has all weights, and its part of the optimizer's states."""
    one, shared = gpt(), gpt(context_parallel=cp)
    planner = Planner(one.layout, gpu=H100)
    steps = [planner.step(config.model) for config in (one, shared)]
    assert steps[0].flops / cp == pytest.approx(steps[1].flops, rel=0.01)
    rows = [next(part.sizes[0] for part in step.parts if part.kind == "product") for step in steps]
    assert rows[0] == cp * rows[1]
    (call,) = attention_calls(shared.model, shared.layout)
    assert (call.sequence, call.keys) == ((one.model.sequence or 0) // cp, (one.model.sequence or 0) // 2)
    step = _step(Training(8, "zero1", micro_batches=cp), context_parallel=cp)
    assert (step.context_parallel, step.data_parallel) == (cp, 8 // cp)
    tokens = cp * (one.model.token_count or 0) / cp
    assert (step.tokens_per_s_per_gpu.mid or 0) * (step.step_ms.mid or 0) / 1e3 == pytest.approx(tokens)
    assert _part(step, "optimizer") == pytest.approx(_part(_step(Training(8, "zero1")), "optimizer"))


@pytest.mark.parametrize(("window", "causal"), [(64, True), (700, True), (100, False)])
def test_context_parallel_ranks_share_layers_with_a_window(window: int, causal: bool) -> None:
    """A window reaches into the parts of other ranks: the operations of all are those of the whole."""
    layout = replace(gpt().layout, causal=causal, window=window, windowed_frac=0.5)
    planner = Planner(layout, gpu=H100)
    flops = [planner.step(gpt(**cut).model).flops for cut in ({}, {"context_parallel": 4})]
    assert flops[0] / 4 == pytest.approx(flops[1], rel=0.001)


def test_only_megatron_has_steps_of_context_parallel_ranks(said: Listener) -> None:
    stacks: tuple[Stack, ...] = ("plain", "megatron")
    steps = [_step(Training(8, stack=stack), context_parallel=2) for stack in stacks]
    assert [step.step_ms.basis for step in steps] == ["heuristic", "model"]
    said([step.notes for step in steps])


def test_what_context_parallel_ranks_cannot_share(said: Listener) -> None:
    with pytest.raises(UsageError) as error:
        gpt(context_parallel=3)
    said(str(error.value))
    with pytest.raises(UsageError) as error:
        _step(Training(6, "ddp"), context_parallel=4)
    said(str(error.value))
    with pytest.raises(UsageError) as error:
        _step(Training(1, "ddp"), pipeline_parallel=2)
    said(str(error.value))


@pytest.mark.parametrize(
    ("more", "stack", "overlap", "split"),
    [
        ({}, "megatron", False, False),
        ({"transformer_impl": "local"}, "plain", False, False),
        ({"tp_comm_overlap": True, "sequence_parallel": True}, "megatron", True, True),
    ],
)
def test_a_file_of_megatron_says_its_stack(
    more: dict[str, object], stack: str, overlap: bool, split: bool, tmp_path: Path
) -> None:
    found = read(tmp_path, _MEGATRON | more, "args.json", tensor_parallel=2)
    assert (found.run.stack, found.run.overlap, found.run.sequence_parallel) == (stack, overlap, split)
    step = whole_step(Planner(found.layout, gpu=H100), found.model, Training(8), run=found.run)
    assert step.stack == stack


def test_which_stack_it_is_where_nothing_says_it() -> None:
    assert _step(Training(8)).stack == "plain" and _step(Training(8, "zero1")).stack == "plain"
    assert _step(Training(8, "zero1"), tensor_parallel=2).stack == "megatron"
    assert _step(Training(8, "zero1", stack="plain"), tensor_parallel=2).stack == "plain"
    assert _step(Training(8, stack="megatron")).strategy == "zero1"


def test_on_an_a100_they_run_as_plain_ones_do(said: Listener) -> None:
    """Its published steps of Megatron-LM are met so, in test_pipeline_steps.py."""
    a100 = find_gpu(None, override="a100")
    assert pace_of(a100, stack="megatron") == pace_of(a100)
    config = gpt(tensor_parallel=2)
    said(whole_step(Planner(config.layout, gpu=a100), config.model, Training(8, stack="megatron")).notes)


@pytest.mark.parametrize(("gpu", "basis"), [("h100-sxm", "model"), ("gb200", "model"), ("h200", "heuristic")])
def test_what_is_said_of_such_a_step(gpu: str, basis: str, tmp_path: Path, said: Listener) -> None:
    config = read(tmp_path, LLAMA3_8B, sequence=8192, micro_batch=1, pipeline_parallel=2)
    planner = Planner(config.layout, gpu=find_gpu(None, override=gpu), dtype="fp8")
    step = whole_step(planner, config.model, Training(8, stack="megatron"))
    assert step.step_ms.basis == basis
    said(step.notes)


def test_experts_that_are_dealt_out_and_cut() -> None:
    """Weights of a GPU: the layers' over tensor ranks, the experts' over those that share and cut them."""
    model = ModelConfig(hidden=64, heads=4, head_dim=16, ffn=32, vocab=128, layers=2, experts=8, gated=True,
                        tied=False, tensor_parallel=2, expert_parallel=4)  # fmt: skip
    experts, rest = model.expert_parameters, (model.parameters or 0) - model.expert_parameters
    assert (model.etp, replace(model, expert_parallel=None).etp) == (1, 2)
    assert model.held_parameters == rest / 2 + experts / 4
    assert replace(model, expert_tensor=2).held_parameters == rest / 2 + experts / 8
