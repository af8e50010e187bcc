"""The zoo of training steps with known truth: its files are whole, and its truth adds up."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.flop_counter import FlopCounterMode

from tests.synthetic.spec import Truth
from tests.trace.tools import read
from tests.zoo import FAMILIES, Build, Program, Zoo, ZooOptions, program_of, record, trace_of
from tests.zoo.layouts import GPU, HOST
from tests.zoo.recording import recorded
from tracelens.trace import link
from tracelens.words import COMPONENTS, PHASES, ROLES

NAMES = ("frames", "ranges", "none")
CHECKPOINTS = ("reentrant", "nonreentrant")


@cache
def program(family: str) -> Program:
    return program_of(family, ZooOptions())


@cache
def zoo(family: str) -> Zoo:
    return trace_of(family, ZooOptions(steps=1), program(family))


def gpu_events(zoo: Zoo) -> list[Any]:
    return [event for event in zoo.records if event.cat in GPU]


def flops(rows: list[Truth], **wanted: Any) -> float:
    return sum(r.flops for r in rows if all(getattr(r, key) == value for key, value in wanted.items()))


# -- the file ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kernel_has_one_truth(family: str) -> None:
    one = zoo(family)
    rows = Counter((r.correlation, r.name, r.start_ns, r.duration_ns, r.stream) for r in one.truth)
    events = Counter((e.args["correlation"], e.name, e.ts, e.dur, e.tid) for e in gpu_events(one))
    assert rows == events
    assert len({row.correlation for row in one.truth}) == len(one.truth) > 100
    for row in one.truth:
        assert row.component in COMPONENTS
        assert row.phase in PHASES
        assert row.role is None or row.role in ROLES
        assert row.duration_ns > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_private_is_left(family: str) -> None:
    """Neither the ranges that carry the truth nor what the meta device runs instead of CUDA's operators."""
    text = zoo(family).text()
    for word in ("zoo", "prims::", "meta", "_for_cpu", "ForCpu"):
        assert word not in text, word


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_read_and_all_launches_resolve(family: str, names: Any, tmp_path: Path) -> None:
    one = trace_of(family, ZooOptions(names=names), program(family))
    trace = read(tmp_path, one.text())
    links = link(trace)
    assert sorted(trace.kernels.correlation.tolist()) == sorted(row.correlation for row in one.truth)
    assert (links.kernel_launch >= 0).all()
    assert (links.kernel_step >= 0).all()
    assert set(np.diff(np.unique(links.kernel_step)).tolist()) == {1}
    ranges = {e.name for e in one.records if e.cat == "user_annotation"}
    frames = {e.name for e in one.records if e.name.startswith("nn.Module: ")}
    modules = {row.module for row in one.truth if row.module and row.phase == "forward"}
    assert bool(frames) == (names == "frames")
    assert (modules <= ranges) == (names == "ranges")


def test_without_shapes_no_operator_has_any() -> None:
    one = trace_of("llama", ZooOptions(steps=1, shapes=False), program("llama"))
    ops = [e for e in one.records if e.cat == "cpu_op"]
    assert ops
    assert not any("Input Dims" in e.args for e in ops)


def test_a_recording_is_the_same_again() -> None:
    options = ZooOptions(steps=1, attention="math", checkpoint="nonreentrant")
    first, second = record("gpt2", options), recorded("gpt2", options)  # kept, and made anew
    assert first.text() == second.text()
    assert first.truth == second.truth


@pytest.mark.parametrize("checkpoint", ("none", *CHECKPOINTS))
def test_arrows_join_an_operator_and_its_backward(checkpoint: Any) -> None:
    """Numbers of two threads and two steps repeat; the arrows must not mix them up."""
    one = record("llama", ZooOptions(checkpoint=checkpoint, names="none"))
    ends: dict[int, dict[str, Any]] = {}
    for event in one.records:
        if event.flow is not None and event.flow[2] == "fwdbwd":
            assert ends.setdefault(event.flow[1], {}).setdefault(event.flow[0], event) is event
    backward_of = {"aten::mm": "MmBackward0", "aten::silu": "SiluBackward0", "aten::rsqrt": "RsqrtBackward0"}
    pairs: Counter[str] = Counter()
    for pair in ends.values():
        forward, backward = pair["s"], pair["f"]
        assert forward.ts + forward.dur <= backward.ts
        assert forward.args["Sequence number"] == backward.args["Sequence number"]
        if forward.name in backward_of:
            assert backward.name == backward_of[forward.name]
            pairs[forward.name] += 1
        in_recompute = forward.tid == backward.tid
        assert in_recompute == (backward.args["Fwd thread id"] == 2)
    assert pairs["aten::mm"] == 2 * (2 * 7 + 1)
    assert any(p["s"].tid == p["f"].tid for p in ends.values()) == (checkpoint == "reentrant")


# -- the truth ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_flops_are_those_torch_counts(family: str) -> None:
    kind, made = FAMILIES[family], zoo(family)
    attention: Any = "flash" if kind.fused_attention else "math"
    model = kind.build(Build(dims=kind.dims, attention=attention))
    batch = {name: tensor.to("meta") for name, tensor in kind.batch(kind.dims).items()}
    with FlopCounterMode(display=False) as counter:
        model(**batch).backward()
    assert flops(made.truth) == counter.get_total_flops()
    for row in made.truth:
        if row.m is not None and row.n is not None and row.k is not None and row.batch is not None:
            assert row.flops == 2 * row.m * row.n * row.k * row.batch


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("lora", "vit")])
def test_every_weight_has_both_its_gradients(family: str) -> None:
    rows = zoo(family).truth
    counts = Counter((row.component, row.layer, row.role) for row in rows if row.role)
    recomputed = sum(row.role == "forward" and row.phase == "recompute" for row in rows)
    for component, layer, role in list(counts):
        forward = counts[component, layer, "forward"]
        if component == "logits" and recomputed:
            forward -= recomputed
        assert counts[component, layer, "dgrad"] == counts[component, layer, "wgrad"] == forward, (
            component,
            role,
        )
    assert flops(rows, role="dgrad") == flops(rows, role="wgrad")


def test_a_frozen_weight_has_no_gradient_and_its_adapters_have() -> None:
    rows = zoo("lora").truth
    roles = Counter((row.component, row.role) for row in rows if row.role)
    assert roles["mlp.up", "wgrad"] == roles["logits", "wgrad"] == 0
    assert roles["mlp.up", "dgrad"] == roles["mlp.up", "forward"]
    assert roles["attention.qkv", "wgrad"] == 2 * 4  # two layers, two adapters of two Linears


def test_the_patches_of_a_picture_need_no_gradient() -> None:
    roles = Counter(row.role for row in zoo("vit").truth if row.component == "embedding")
    assert roles["forward"] == roles["wgrad"] == 1
    assert roles["dgrad"] == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_are_alike_in_both_directions(family: str) -> None:
    one = zoo(family)
    for phase in ("forward", "backward"):
        of_layer: dict[int, Counter[tuple[str, str]]] = {}
        for row in one.truth:
            if row.phase == phase and row.layer is not None and row.strict:
                of_layer.setdefault(row.layer, Counter())[row.component, row.name] += 1
        assert sorted(of_layer) == list(range(one.dims.layers))
        if family != "t5":  # the first layer of each stack makes the position bias of all
            last = of_layer[one.dims.layers - 1]
            assert all(layer == last for layer in of_layer.values() if family != "lora")


def test_equal_sizes_mislead_no_role() -> None:
    """As many tokens as hidden units: no shape tells the gradients of a square weight apart."""
    dims = replace(FAMILIES["gpt2_square"].dims, hidden=1024, heads=16, ffn=1024, micro_batch=1, layers=2)
    rows = record("gpt2_square", ZooOptions(dims=dims, steps=1)).truth
    square = [row for row in rows if row.m == row.n == row.k == 1024]
    assert Counter(row.role for row in square) == dict.fromkeys(ROLES, 2 * 6)


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_a_checkpoint_computes_blocks_again_on_the_other_thread(checkpoint: Any) -> None:
    one = record("gpt2", ZooOptions(checkpoint=checkpoint, steps=1))
    forward = {row.layer for row in one.truth if row.phase == "forward"}
    again = [row for row in one.truth if row.phase == "recompute"]
    assert {row.layer for row in again} == forward - {None} == {0, 1, 2}
    for component in ("attention.qkv", "attention.core", "mlp.up", "mlp.down"):
        expected = flops(one.truth, component=component, phase="forward")
        assert flops(again, component=component) == expected
    launched = {e.args["correlation"]: e.tid for e in one.records if e.cat in ("cuda_runtime", "cuda_driver")}
    threads = {phase: {launched[r.correlation] for r in one.truth if r.phase == phase} for phase in PHASES}
    assert threads["forward"].isdisjoint(threads["recompute"])
    assert threads["recompute"] <= threads["backward"]


def test_a_checkpoint_stops_before_work_nobody_needs() -> None:
    """The last product of a Llama block: its result is not saved, so it does not run again."""
    rows = record("llama", ZooOptions(checkpoint="nonreentrant", steps=1)).truth
    assert flops(rows, component="mlp.down", phase="recompute") == 0
    assert flops(rows, component="mlp.up", phase="recompute") == flops(
        rows, component="mlp.up", phase="forward"
    )


def test_micro_batches_repeat_forward_and_backward_and_not_the_optimizer() -> None:
    once, twice = (record("gpt2", ZooOptions(steps=1, accumulate=n)).truth for n in (1, 2))
    assert flops(twice) == 2 * flops(once)
    optimizer = [sum(row.phase == "optimizer" for row in rows) for rows in (once, twice)]
    assert optimizer[0] == optimizer[1] > 0


@pytest.mark.parametrize(
    ("optimizer", "operator"), [("fused", "aten::_fused_adamw_"), ("foreach", "aten::_foreach_lerp_")]
)
def test_the_optimizer_is_the_one_asked_for(optimizer: Any, operator: str) -> None:
    one = record("gpt2", ZooOptions(steps=1, optimizer=optimizer, clip=False))
    names = {event.name for event in one.records if event.cat == "cpu_op"}
    assert operator in names
    assert {row.component for row in one.truth if row.phase == "optimizer"} == {"optimizer"}


@pytest.mark.parametrize(("attention", "components"), [
    ("flash", {"attention.core"}), ("efficient", {"attention.core"}),
    ("math", {"attention.scores", "attention.softmax", "attention.values"}),
])  # fmt: skip
def test_attention_is_fused_or_not(attention: Any, components: set[str]) -> None:
    one = record("gpt2", ZooOptions(steps=1, attention=attention))
    inner = {"attention.core", "attention.scores", "attention.softmax", "attention.values"}
    assert {row.component for row in one.truth} & inner == components
    names = {event.name for event in one.records if event.cat == "cpu_op"}
    assert ("aten::scaled_dot_product_attention" in names) == (attention != "math")


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_two_ranks_halve_the_block_and_sum_four_times_a_layer(family: str) -> None:
    whole, half = zoo(family), record(family, ZooOptions(steps=1, tensor_parallel=2))
    for component in ("attention.qkv", "attention.core", "attention.output", "mlp.up", "mlp.down"):
        assert flops(half.truth, component=component) == flops(whole.truth, component=component) / 2
    sums = Counter((row.phase, row.layer) for row in half.truth if row.component == "communication")
    assert set(sums.values()) == {2}
    assert len(sums) == 2 * half.dims.layers
    assert half.dims.hidden == whole.dims.hidden
    assert half.dims.tensor_parallel == 2


# -- layouts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_eager", [True, False])
def test_a_graph_is_one_launch_a_step(keep_eager: bool, tmp_path: Path) -> None:
    options = ZooOptions(layout="graph", keep_eager=keep_eager, steps=3)
    one = trace_of("gpt2", options, program("gpt2"))
    eager = trace_of("gpt2", replace(options, layout="eager"), program("gpt2"))
    assert [(r.start_ns, r.component) for r in one.truth] == [(r.start_ns, r.component) for r in eager.truth]
    launches = [e for e in one.records if e.name == "cudaGraphLaunch"]
    assert len(launches) == (2 if keep_eager else 3)
    replays = {e.args["correlation"] for e in launches}
    rows = [row for row in one.truth if row.correlation in replays]
    assert len(rows) == len(launches) * len(zoo("gpt2").truth)
    assert bool([e for e in one.records if e.cat == "cpu_op"]) == keep_eager
    nodes = Counter(e.args["graph node id"] for e in gpu_events(one) if "graph node id" in e.args)
    assert set(nodes.values()) == {len(launches)}
    trace = read(tmp_path, one.text())
    links = link(trace)
    assert len(trace.kernels.correlation) == len(one.truth)
    assert (links.kernel_launch >= 0).all()


def test_gpu_only_has_nothing_of_the_host(tmp_path: Path) -> None:
    one = trace_of("llama", ZooOptions(layout="gpu_only"), program("llama"))
    assert not [e for e in one.records if e.cat in HOST]
    trace = read(tmp_path, one.text())
    assert len(trace.kernels.correlation) == len(one.truth)
    assert not any(row.launched for row in one.truth)
    assert (link(trace).kernel_launch == -1).all()


def test_a_recording_begun_too_late_lacks_the_first_launches(tmp_path: Path) -> None:
    one = trace_of("llama", ZooOptions(layout="prelaunched", prelaunched=0.4), program("llama"))
    trace = read(tmp_path, one.text())
    resolved = dict(
        zip(trace.kernels.correlation.tolist(), (link(trace).kernel_launch >= 0).tolist(), strict=True)
    )
    assert resolved == {row.correlation: row.launched for row in one.truth}
    late = sum(not row.launched for row in one.truth) / len(zoo("llama").truth)
    assert 0.35 < late < 0.45
    assert {row.step for row in one.truth} == {None, 4}
