"""Recordings of compiled training steps: their truth is whole, and agrees with the eager recording's."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.synthetic.spec import Event, Truth
from tests.trace.tools import read
from tests.zoo import ZooOptions, record, shipped
from tests.zoo.compiled import CompiledOptions, CompiledZoo, record_compiled, recorded
from tests.zoo.compiled_truth import CompiledTruth
from tests.zoo.families import FAMILIES
from tracelens.trace import link
from tracelens.words import COMPONENTS, PHASES

#: One step each; a compilation takes seconds, so recordings are kept.
FAMILY = ("gpt2", "llama", "moe_grouped")
ONE_STEP = CompiledOptions(steps=1)
_TRITON = re.compile(r"triton_(poi|per|red|tem)_fused(_[a-z0-9_]*)?_\d+")


@cache
def compiled(family: str, options: CompiledOptions = ONE_STEP) -> CompiledZoo:
    return record_compiled(family, options)


@cache
def eager(family: str) -> list[Truth]:
    return record(family, ZooOptions(steps=1, names="none", clip=False)).truth


def products(truth: list[CompiledTruth] | list[Truth], *roles: str) -> Counter[tuple[object, ...]]:
    """How often each product with a weight occurs: what for, in which role, at which size."""
    return Counter(
        (row.component, row.layer, row.role, tuple(sorted((row.m or 0, row.n or 0, row.k or 0))), row.batch)
        for row in truth
        if row.m is not None and row.role in roles
    )


def host(zoo: CompiledZoo) -> Iterator[Event]:
    return (event for event in zoo.records if event.cat == "cpu_op")


@pytest.fixture(params=FAMILY)
def zoo(request: pytest.FixtureRequest) -> CompiledZoo:
    return compiled(request.param)


def test_every_gpu_event_has_its_truth(zoo: CompiledZoo) -> None:
    events = [event for event in zoo.records if event.cat in ("kernel", "gpu_memcpy", "gpu_memset")]
    truth = {row.correlation: row for row in zoo.truth}
    assert len(truth) == len(zoo.truth) == len(events)
    for event in events:
        row = truth[event.args["correlation"]]
        assert (row.name, row.start_ns, row.duration_ns) == (event.name, event.ts, event.dur)
        assert row.component in COMPONENTS
        assert row.phase in PHASES
        assert row.component in row.components
        assert set(row.components) <= set(COMPONENTS)
        assert list(row.components) == sorted(set(row.components))


def test_products_are_those_of_the_eager_step(zoo: CompiledZoo) -> None:
    """Same sizes for the same parts in the same roles; mm of a transposed result has m and n swapped."""
    roles = ("forward", "dgrad", "wgrad")
    assert products(zoo.truth, *roles) == products(eager(zoo.family), *roles)


def test_flops_are_those_of_the_eager_step(zoo: CompiledZoo) -> None:
    """But for the outer product of rotary tables, which Inductor makes a multiplication of."""

    def total(rows: list[CompiledTruth] | list[Truth], phase: str) -> float:
        return math.fsum(r.flops for r in rows if r.phase == phase and r.component != "attention.rope")

    for phase in ("forward", "backward"):
        assert total(zoo.truth, phase) == total(eager(zoo.family), phase) > 0


def test_names_obey_inductors_pattern(zoo: CompiledZoo) -> None:
    names = [row.name for row in zoo.truth if row.name.startswith("triton_")]
    assert names
    assert all(_TRITON.fullmatch(name) for name in names)
    operators = {event.name for event in host(zoo) if event.name.startswith("triton_")}
    assert operators == set(names)
    for name in set(names):
        words = re.sub(r"^triton_\w{3}_fused_|_\d+$", "", name)
        assert words, name


def test_one_number_is_one_kernel(zoo: CompiledZoo) -> None:
    """Both graphs count their kernels from 0, in order of appearance, equal code under one name."""
    for phases in (("forward",), ("backward", "recompute")):
        found = [row.name for row in zoo.truth if row.name.startswith("triton_") and row.phase in phases]
        numbers = [int(name.rsplit("_", 1)[1]) for name in dict.fromkeys(found)]
        assert sorted(numbers) == list(range(len(numbers)))


def test_triton_kernels_come_from_the_driver_and_hold_no_product(zoo: CompiledZoo) -> None:
    launches = {event.args["correlation"]: event.name for event in zoo.records if event.name.startswith("cu")}
    for row in zoo.truth:
        if row.name.startswith("triton_"):
            assert launches[row.correlation] == "cuLaunchKernel"
            assert row.m is None


def test_extern_kernels_write_their_result_as_last_input(zoo: CompiledZoo) -> None:
    found = 0
    for event in host(zoo):
        if event.name in ("aten::mm", "aten::addmm", "aten::bmm"):
            found += 1
            sizes = [size for size in event.args["Input Dims"] if size]
            a, b, out = sizes[-3:]
            assert out == [*a[:-1], b[-1]]
            assert "Sequence number" not in event.args
    assert found == sum(row.m is not None for row in zoo.truth)


def test_fused_kernels_name_all_their_components() -> None:
    norms = [row for row in compiled("llama").truth if row.component == "norm" and row.phase == "forward"]
    assert Counter(row.components for row in norms) == {("embedding", "norm"): 1, ("norm", "residual"): 4}


def test_a_bias_gradient_belongs_to_its_linear_layer() -> None:
    """The first stage is fused with the gradient of the activation; the second one only sums."""
    rows = [row for row in compiled("gpt2").truth if "gelu_backward_sum" in row.name]
    assert {(row.name.split("_")[1], row.component, row.components) for row in rows} == {
        ("red", "mlp.activation", ("mlp.activation", "mlp.up")),
        ("per", "mlp.up", ("mlp.up",)),
    }


def test_a_kernel_that_only_fills_is_not_credited_with_what_is_scattered_later() -> None:
    """Inductor names dropout and norm in both; the first writes zeros, the second does all the work."""
    rows = [row for row in compiled("gpt2").truth if "embedding_dense_backward" in row.name]
    fill, scatter = rows[0], next(row for row in rows if "native_layer_norm_backward" in row.name)
    assert fill.components == ("embedding",)
    assert scatter.component == "norm"
    assert set(scatter.components) == {"dropout", "embedding", "norm"}


def test_the_trace_is_read_and_linked(zoo: CompiledZoo, tmp_path: Path) -> None:
    trace = read(tmp_path, zoo.text())
    links = link(trace)
    assert len(trace.kernels.correlation) == len(zoo.truth)
    assert (links.kernel_launch >= 0).all()
    assert (links.kernel_op >= 0).all()


def test_padding_issues_aligned_products() -> None:
    """GPT-2's vocabulary of 50257 becomes 50264; the kernels that pad belong to the logits."""
    truth = compiled("gpt2", CompiledOptions(steps=1, pad_mm=True)).truth
    logits = [row for row in truth if row.m is not None and row.component == "logits"]
    assert {row.role for row in logits} == {"forward", "dgrad", "wgrad"}
    for row in logits:
        assert sorted((row.m, row.n, row.k))[-1] == 50264  # type: ignore[type-var]
    assert len(truth) > len(compiled("gpt2").truth)


def test_deferred_weight_gradients_are_the_same_work_in_another_order() -> None:
    plain = compiled("gpt2").truth
    deferred = compiled("gpt2", CompiledOptions(steps=1, defer_wgrad=8)).truth
    key = [(row.name, row.component, row.layer, row.role) for row in plain]
    other = [(row.name, row.component, row.layer, row.role) for row in deferred]
    assert Counter(key) == Counter(other)
    assert key != other
    run = "".join("w" if row.role == "wgrad" else "d" for row in deferred if row.role in ("wgrad", "dgrad"))
    assert "dddd" in run
    assert "wwww" in run


def test_templates_are_triton_kernels_with_the_sizes_of_their_product() -> None:
    truth = compiled("llama", CompiledOptions(steps=1, template=2)).truth
    templates = [row for row in truth if row.name.startswith("triton_tem_")]
    assert len(templates) == sum(row.m is not None for row in truth) // 2
    roles = ("forward", "dgrad", "wgrad")
    assert products(truth, *roles) == products(compiled("llama").truth, *roles)
    assert all(_TRITON.fullmatch(row.name) for row in truth if row.name.startswith("triton_"))


def test_checkpoints_are_computed_again_in_the_backward_graph() -> None:
    truth = compiled("llama", CompiledOptions(steps=1, checkpoint="nonreentrant")).truth
    again = products([row for row in truth if row.phase == "recompute"], "forward")
    first = products([row for row in truth if row.phase == "forward"], "forward")
    assert again
    assert again <= first


def test_kept_recordings_are_of_todays_source() -> None:
    """Else: empty the folder, and run the tests that compile with TRACELENS_RECORD=1."""
    found = [shipped.read(path) for path in sorted(shipped.FOLDER.glob("*.json.xz"))]
    assert {one.made_of for one in found} == {shipped.made_of()}


def test_a_kept_recording_is_what_is_compiled_now() -> None:
    kept = shipped.read(shipped.path_of("gpt2", ONE_STEP))
    if kept.torch.split("+")[0] != version("torch").split("+")[0]:
        pytest.skip(f"recorded with torch {kept.torch}")
    made = recorded("gpt2", ONE_STEP)
    assert (made.text(), made.truth) == (kept.synthetic.text(), kept.truth)


def test_steps_repeat_the_same_kernels() -> None:
    zoo = compiled("gpt2", CompiledOptions(steps=2, seed=1))
    steps = [[row.name for row in zoo.truth if row.step == step] for step in (3, 4)]
    assert steps[0] == steps[1] == [row.name for row in compiled("gpt2").truth]


def test_what_compilation_cannot_do_is_said() -> None:
    dims = replace(FAMILIES["llama"].dims, tensor_parallel=2)
    with pytest.raises(ValueError, match="tensor parallelism"):
        record_compiled("llama", CompiledOptions(dims=dims))


def test_lora_breaks_the_graph() -> None:
    """Its input embeddings call requires_grad_, which torch.compile refuses."""
    from torch._dynamo.exc import Unsupported

    with pytest.raises(Unsupported, match="requires_grad_"):
        record_compiled("lora")
