"""Real recordings of an H100, with their shapes and names taken away: what is said then is what is said with
them (record_shapes and with_modules are off unless one asks for them)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trace.tools import read
from tracelens.attribution import attribute
from tracelens.trace import link, look_up, read_trace
from tracelens.words import COMPONENTS

SAMPLES = Path(__file__).parents[2] / "sample_traces"
_OF_SHAPES = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
_KEPT = ("ProfilerStep", "Optimizer", "zero_grad")


def _said(folder: Path, document: dict[str, Any]) -> dict[tuple[int, int], tuple[str, int]]:
    """By correlation and start of a kernel its component and its nanoseconds."""
    trace = read(folder, json.dumps(document))
    found = attribute(trace, link(trace))
    kernels = trace.kernels
    keys = zip(kernels.correlation.tolist(), kernels.ts_ns.tolist(), strict=True)
    named = (COMPONENTS[code] for code in found.component.tolist())
    return dict(zip(keys, zip(named, kernels.dur_ns.tolist(), strict=True), strict=True))


def _bare(document: dict[str, Any]) -> dict[str, Any]:
    """Without shapes, frames and ranges but those of PyTorch's own profiler."""
    events = []
    for event in document["traceEvents"]:
        named = event.get("cat") == "user_annotation" and not event["name"].startswith(_KEPT)
        if event.get("cat") == "python_function" or named:
            continue
        args = {key: value for key, value in event.get("args", {}).items() if key not in _OF_SHAPES}
        events.append(event | {"args": args} if "args" in event else event)
    return document | {"traceEvents": events}


def _without_operators(document: dict[str, Any]) -> dict[str, Any]:
    """What ``activities=[ProfilerActivity.CUDA]`` leaves."""
    told = ("cpu_op", "user_annotation", "python_function", "fwdbwd")
    events = [event for event in document["traceEvents"] if event.get("cat") not in told]
    return document | {"traceEvents": events}


@pytest.mark.parametrize(
    ("name", "same", "other"),
    [
        ("gpt2_vocab50304_head128_eager", 0.999, 0.001),
        ("gpt2_vocab50304_head128_checkpoint", 0.999, 0.001),
        ("gpt2_vocab50304_head128_fp8_eager", 0.999, 0.001),
        ("gpt2_vocab50304_head128_compile", 0.975, 0.001),
        ("vit_h14_compile", 0.97, 0.001),
        ("vit_h14_checkpoint", 0.998, 0.001),
        ("bert_vocab30522_compile", 0.88, 0.001),
        ("llama_gqa_ffn11008_eager", 0.99, 0.01),
        ("moe_8experts_compile", 0.97, 0.005),
    ],
)
def test_a_trace_without_shapes_says_the_same(tmp_path: Path, name: str, same: float, other: float) -> None:
    """``same``: of the time that has a component with shapes, at least; ``other``: has another, at most."""
    _compare(tmp_path, name, same, other, _bare)


@pytest.mark.parametrize(
    ("name", "same", "other"),
    [
        ("gpt2_vocab50257_eager", 0.97, 0.005),
        ("bert_vocab30522_eager", 0.97, 0.006),
        ("vit_h14_eager", 0.99, 0.005),
        ("llama_gqa_ffn11008_eager", 0.98, 0.01),
        ("llama_gqa_ffn11008_compile", 0.99, 0.005),
        ("gpt2_vocab50257_head80_compile", 0.82, 0.005),
        ("vit_h14_compile", 0.88, 0.005),
        ("gpt2_vocab50304_head128_checkpoint", 0.45, 0.005),
    ],
)
def test_kernels_alone_say_the_same(tmp_path: Path, name: str, same: float, other: float) -> None:
    """Their names tell where a forward ends, where its backward does, and what works on the weights."""
    _compare(tmp_path, name, same, other, _without_operators)


def _compare(
    tmp_path: Path, name: str, same: float, other: float, without: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    with gzip.open(SAMPLES / f"h100-sxm_{name}.json.gz") as file:
        document = json.load(file)
    whole, bare = _said(tmp_path, document), _said(tmp_path, without(document))
    named = {key: row for key, row in whole.items() if row[0] not in ("unattributed", "memory")}
    times = {"same": 0, "other": 0, "open": 0}
    for key, (component, busy) in named.items():
        open_ = bare[key][0] in ("unattributed", "memory")
        times["same" if bare[key][0] == component else "open" if open_ else "other"] += busy
    total = sum(times.values())
    assert times["same"] >= same * total
    assert times["other"] <= other * total


def test_sums_that_a_compiler_leaves_over_are_of_the_norm_before_them(tmp_path: Path) -> None:
    """torch 2.11, mix_order_reduction: of 1024 blocks, whose form is that of a weight of BERT-large, too."""
    trace = read_trace(SAMPLES / "h100-sxm_bert_vocab30522_compile.json.gz")
    links = link(trace)
    found = attribute(trace, links)
    summed = trace.symbols.where("aten::sum".__eq__)[look_up(trace.ops.name, links.kernel_op)]
    summed &= (links.kernel_op >= 0) & trace.symbols.where(lambda name: "reduce_kernel" in name)[
        trace.kernels.name
    ]
    assert summed.any()
    assert {COMPONENTS[code] for code in found.component[summed].tolist()} == {"norm"}
