"""Functions of libraries that launch their products themselves: opened, named and measured."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.functions.library import GPT, LLAMA
from tests.functions.recorded import record
from tests.synthetic.layout import document
from tests.trace.tools import read
from tracelens.attribution import attribute, find_calls, open_functions
from tracelens.attribution.functions import chain_of
from tracelens.gemm import AttentionShape, GemmShape
from tracelens.trace import link
from tracelens.trace.tables import Inputs
from tracelens.words import COMPONENTS

MODELS = {
    "llama": LLAMA,
    "gpt": GPT,
    "megatron": replace(LLAMA, whole=False),
    "megatron_gpt": replace(GPT, whole=False),
    "llama_fp8": replace(LLAMA, fp8=True),
    "gpt_fp8": replace(GPT, fp8=True),
}


@pytest.mark.parametrize("shapes", [True, False])
@pytest.mark.parametrize("names", ["none", "frames"])
@pytest.mark.parametrize("name", MODELS)
def test_what_a_function_hides_has_its_component(tmp_path: Path, name: str, names: str, shapes: bool) -> None:
    made = record(MODELS[name], names=names, shapes=shapes)
    trace = open_functions(read(tmp_path, document(made)))
    found = attribute(trace, link(trace))
    truth = {row.correlation: row.component for row in made.truth if row.strict}
    right = total = 0
    wrong: Counter[tuple[str, str]] = Counter()
    for at, time in enumerate(trace.kernels.dur_ns.tolist()):
        said, true = COMPONENTS[found.component[at]], truth.get(int(trace.kernels.correlation[at]), "other")
        if true in ("", "other"):
            continue
        total += time
        right += time * (said == true)
        if said not in (true, "unattributed"):
            wrong[true, said] += time
    assert not wrong
    assert right > 0.99 * total


@pytest.mark.parametrize(("names", "least"), [("none", 0.6), ("frames", 0.9)])
def test_layers_in_pieces_are_opened_without_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str, least: float
) -> None:
    """Of how many rows a product is that waits for those of other ranks no argument says."""
    model = replace(LLAMA, sequence=LLAMA.hidden)
    monkeypatch.setattr("tracelens.attribution.functions._Functions._gathered", lambda *_: 0)
    made = record(model, names=names)
    trace = open_functions(read(tmp_path, document(made)))
    found = attribute(trace, link(trace))
    truth = {row.correlation: row.component for row in made.truth if row.component not in ("", "other")}
    time: Counter[str] = Counter()
    for at, took in enumerate(trace.kernels.dur_ns.tolist()):
        if (true := truth.get(int(trace.kernels.correlation[at]))) is not None:
            said = COMPONENTS[found.component[at]]
            time["right" if said == true else "open" if said == "unattributed" else f"{true}: {said}"] += took
    assert {*time} <= {"right", "open"}
    assert time["right"] > least * sum(time.values())


def test_products_have_sizes_roles_and_layers(tmp_path: Path) -> None:
    model = replace(LLAMA, whole=False)
    trace = open_functions(read(tmp_path, document(record(model, names="none"))))
    links = link(trace)
    found = attribute(trace, links)
    calls = find_calls(trace, links, found)
    tokens, hidden, wide = model.sequence * model.micro_batch, model.hidden, 2 * model.ffn
    sizes = {
        "forward": (tokens, wide, hidden),
        "dgrad": (tokens, hidden, wide),
        "wgrad": (wide, hidden, tokens),
    }
    seen: Counter[str] = Counter()
    for at, shape in enumerate(calls.shape):
        main = int(calls.main[at])
        if COMPONENTS[found.component[main]] == "mlp.up" and isinstance(shape, GemmShape):
            role = str(calls.role[at])
            assert (shape.m, shape.n, shape.k, shape.dtype) == (*sizes[role], "bf16")
            seen[role] += 1
    assert seen == dict.fromkeys(sizes, 2 * model.layers)
    attentions = [shape for shape in calls.shape if isinstance(shape, AttentionShape)]
    # all kernels of a backward are one call: its work is counted once
    assert Counter(shape.backward for shape in attentions) == dict.fromkeys((False, True), 2 * model.layers)
    first, size = attentions[0], hidden // model.heads
    assert (first.heads, first.kv_heads, first.head_dim) == (model.heads, model.kv_heads, size)
    assert (first.batch, first.query_len) == (model.micro_batch, model.sequence)


def test_rows_that_are_gathered_inside_are_counted(tmp_path: Path) -> None:
    """Sequence parallel: what comes is the part of one rank of two."""
    events = json.loads(document(record(LLAMA, names="none")))
    for event in [e for e in events["traceEvents"] if e.get("name") == "_LayerNormLinear"]:
        rows = event["args"]["Input Dims"][0]
        gather = {**event, "name": "c10d::_allgather_base_", "dur": 0.001}
        gather["args"] = {"Input Dims": [[2 * rows[0], *rows[1:]], rows, [], [], []]}
        events["traceEvents"].append(gather)
    trace = open_functions(read(tmp_path, json.dumps(events)))
    links = link(trace)
    calls = find_calls(trace, links, attribute(trace, links))
    found = zip(calls.op_name, calls.shape, strict=True)
    rows_of = {name: shape.m for name, shape in found if isinstance(shape, GemmShape) and name}
    tokens = LLAMA.sequence * LLAMA.micro_batch
    assert rows_of["_LayerNormLinear/product"] == 2 * tokens
    assert rows_of["_Linear/product"] == tokens


def test_what_one_launch_replays_has_no_sizes_of_the_call_around_it(tmp_path: Path) -> None:
    """``torch.cuda.make_graphed_callables``: an autograd function whose kernels are all of one launch."""
    text = document(record(replace(LLAMA, whole=False), names="none"))
    events = json.loads(text.replace('"_L', '"Graphed_L'))["traceEvents"]
    functions = [e for e in events if e.get("name", "").startswith("Graphed_")]
    launches = {
        e["args"]["correlation"]: e for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")
    }
    one: dict[int, int] = {}
    for number, launch in launches.items():
        around = [f for f in functions if f["ts"] <= launch["ts"] < f["ts"] + f["dur"]]
        if around:
            launch["name"] = "cudaGraphLaunch"
            one[number] = min(c for c, e in launches.items() if e["ts"] >= around[0]["ts"])
    for event in events:
        args = event.get("args", {})
        if event.get("cat") == "kernel":
            args["correlation"] = one.get(args["correlation"], args["correlation"])
    trace = open_functions(read(tmp_path, json.dumps({"traceEvents": events})))
    links = link(trace)
    calls = find_calls(trace, links, attribute(trace, links))
    graphed = [
        shape for name, shape in zip(calls.op_name, calls.shape, strict=True) if "Graphed" in str(name)
    ]
    assert not any(graphed)
    assert not [name for name in trace.symbols if "/product" in name]
    # the same kernels, each with a launch of its own
    opened = open_functions(read(tmp_path, text.replace('"_L', '"Graphed_L')))
    assert [name for name in opened.symbols if "/product" in name]


def test_operators_of_libraries_are_opened_too(tmp_path: Path) -> None:
    text = document(record(replace(LLAMA, whole=False), names="none"))
    trace = open_functions(read(tmp_path, text.replace('"_L', '"some_library::_L')))
    assert "some_library::_LayerNormLinear/product" in [*trace.symbols]
    found = attribute(trace, link(trace))
    said = {COMPONENTS[code] for code in found.component.tolist()}
    assert {"attention.qkv", "attention.output", "mlp.up", "mlp.down", "norm"} <= said


def test_cast_operands_have_no_type_that_the_function_was_given(tmp_path: Path) -> None:
    trace = open_functions(read(tmp_path, document(record(MODELS["llama_fp8"], names="none"))))
    links = link(trace)
    calls = find_calls(trace, links, attribute(trace, links))
    opened = [shape for name, shape in zip(calls.op_name, calls.shape, strict=True) if "/" in (name or "")]
    assert opened
    assert {shape.dtype for shape in opened if shape is not None} == {None}


def test_a_trace_without_such_functions_stays_as_it_is(tmp_path: Path) -> None:
    trace = read(tmp_path, document(record(LLAMA, names="none")).replace('"_', '"aten::_'))
    assert open_functions(trace) is trace


@pytest.mark.parametrize(
    ("name", "dims", "count", "times", "made"),
    [
        ("_Linear", [[128, 64], [8, 4, 64], []], 1, 1, [(32, 128, 64)]),
        ("_Linear", [[128, 64], [32, 64], [128]], 1, 1, [(32, 128, 64)]),  # its weight stands first
        ("FusedDenseFunc", [[32, 64], [128, 64], [128]], 1, 1, [(32, 128, 64)]),
        ("_LayerNormMLP", [[8, 4, 64], [64], [256, 64], [], [64, 128]], 2, 1, [(32, 256, 64), (32, 64, 128)]),
        ("_LayerNormLinear", [[8, 4, 64], [64], [], [128, 64]], 1, 2, [(64, 128, 64)]),  # rows of two ranks
        ("_LayerNormLinear", [[8, 4, 64], [64], [], [128, 64]], 1, 0, None),  # of who knows how many
        ("_Linear", [[128, 64], [8, 4, 64], []], 2, 1, None),  # in pieces
        ("_Linear", [[128, 64], [8, 4, 32], []], 1, 1, None),
        ("_Linear", [[64, 128], [64, 4, 128], [64]], 1, 1, [(256, 64, 128)]),  # as many tokens as outputs
        ("GroupedGemm", [[512, 64], [8, 128, 64], [8]], 1, 1, None),  # of groups of rows
        ("Odd", [[], "text", [[4, 4]], [64]], 1, 1, None),
        ("Odd", None, 1, 1, None),
    ],
)
def test_products_of_what_a_function_was_called_with(
    name: str, dims: Any, count: int, times: int, made: list[tuple[int, int, int]] | None
) -> None:
    types = None if dims is None else ["c10::BFloat16"] * len(dims)
    found = chain_of(name, Inputs(dims, types, None, None), count, times)
    assert (None if found is None else [(one.rows, one.n, one.k) for one in found]) == made
