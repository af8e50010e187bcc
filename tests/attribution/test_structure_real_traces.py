"""The inference from structure on real recordings: their names hidden, and compared with what those say."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from tests.kept import analyzed
from tests.trace.tools import need_shared
from tracelens.analysis import analyze_trace
from tracelens.attribution import Attribution, attribute
from tracelens.render.facts import known_dims
from tracelens.trace import Links, Trace, link, read_trace
from tracelens.trace.tables import Table
from tracelens.words import COMPONENTS, EVIDENCE

T = TypeVar("T", bound=Table)
_UNATTRIBUTED = COMPONENTS.index("unattributed")


def without_names(trace: Trace) -> Trace:
    """The same recording without module frames and without named ranges but for the steps."""
    steps = trace.symbols.where(lambda text: text.startswith("ProfilerStep"))[trace.ranges.name]
    return replace(trace, frames=_only(trace.frames, slice(0)), ranges=_only(trace.ranges, steps))


def _only(table: T, rows: object) -> T:
    return type(table)(*[getattr(table, column.name)[rows] for column in fields(table)])


@cache
def attributed(path: Path, *, hidden: bool = False) -> tuple[Trace, Links, Attribution]:
    trace = read_trace(path)
    trace = without_names(trace) if hidden else trace
    links = link(trace)
    return trace, links, attribute(trace, links)


def covered(trace: Trace, result: Attribution) -> float:
    time = trace.kernels.dur_ns
    return 1 - float(time[result.component == _UNATTRIBUTED].sum() / time.sum())


@pytest.mark.parametrize(
    ("name", "share"),
    [("d1_", 0.95), ("d1b_", 0.95), ("d2_", 0.97), ("d3_", 0.98), ("d4_", 0.98), ("d5_", 0.90)],
)
def test_almost_all_gpu_time_has_a_component(name: str, share: float) -> None:
    trace, _, result = attributed(need_shared(name))
    assert covered(trace, result) >= share


@pytest.mark.parametrize("name", ["d3_", "d4_", "d8_"])
def test_hidden_names_are_found_again(name: str) -> None:
    """What the modules and ranges say, said by shapes and order alone."""
    path = need_shared(name)
    trace, _, named = attributed(path)
    _, _, inferred = attributed(path, hidden=True)
    time = trace.kernels.dur_ns
    agree = named.component == inferred.component
    wrong = Counter(
        (COMPONENTS[a], COMPONENTS[b])
        for a, b in zip(named.component[~agree], inferred.component[~agree], strict=True)
    )
    assert time[agree].sum() >= 0.98 * time.sum(), wrong


@pytest.mark.parametrize(
    ("name", "dimensions"),
    [
        ("d1_", {"hidden": 768, "ffn": 3072, "vocab": 50304, "heads": 6, "head_dim": 128}),
        ("d2_", {"hidden": 512, "vocab": 8192, "layers": 4, "ffn": 2048, "sequence": 256, "micro_batch": 4}),
        ("d3_", {"hidden": 512, "vocab": 30522, "layers": 4, "ffn": 2048, "heads": 8}),
        ("d4_", {"hidden": 512, "ffn": 2048, "layers": 1}),
        (  # ViT-B/16 in a graph: its parameters, and the operators of its capture
            "d5_",
            {"layers": 12, "hidden": 768, "ffn": 3072, "heads": 12, "head_dim": 64, "sequence": 197},
        ),
        # job_v100_megatron_tp2 (no shapes): messages tell the hidden size, as in Megatron-LM's QuickStart.md
        ("rank0.json.gz", {"layers": 2, "tensor_parallel": 2, "hidden": 12, "heads": None, "sequence": None}),
        (
            "d12_",
            {"hidden": 7168, "ffn": 2048, "experts": 8, "top_k": 1, "expert_parallel": 2, "heads": None},
        ),
        ("d13_", {"hidden": 128, "heads": 8, "kv_heads": 8, "ffn": 512, "layers": 10, "experts": None}),
        ("d14_", {"experts": None, "top_k": None, "hidden": None, "heads": None}),
    ],
)
def test_the_dimensions_of_the_model_are_found(name: str, dimensions: dict[str, int]) -> None:
    """d1: modded-nanogpt (model_dim 768, 6 heads of 128); d2: the file's own description."""
    trace, _, _ = attributed(need_shared(name), hidden=True)
    model = analyze_trace(trace, shape_search=False).report.model
    assert {key: getattr(model, key).value for key in dimensions} == dimensions


MEGATRON = {"hidden": 4096, "heads": 64, "kv_heads": 64, "ffn": 16384, "vocab": 51200, "layers": 40,
            "sequence": 2048, "micro_batch": 4, "tensor_parallel": 8}  # fmt: skip


def test_what_ranks_share_is_said_of_the_whole_model_too() -> None:
    """d11: Megatron-LM over 8 ranks, as shared/traces/README.md has it."""
    report = analyzed(need_shared("d11_")).report
    found = {key: getattr(report.model, key) for key in MEGATRON}
    assert {key: known.whole or known.value for key, known in found.items()} == MEGATRON
    shared = {key: known.value for key, known in found.items() if known.per_rank}
    assert shared == {"heads": 8, "kv_heads": 8, "ffn": 2048, "vocab": 6400}
    said = " · ".join(known_dims(report.model))
    for part in ("64 heads (8 per rank)", "ffn 16384 (2048 per rank)", "40 layers", "micro-batch 4"):
        assert part in said
    assert {(row.dtype, row.bytes_per_call, row.group_size) for row in report.communication} == {
        ("fp16", 2 * 2048 * 4 * 4096, 8),
        ("fp32", 4 * 2048 * 4, 8),
    }


def test_the_last_layer_is_read_as_its_equals() -> None:
    """d14: a GEMM that Inductor wrote, the output of global attention, has no name; behind the last layer
    stands one of the neck. The last layer's way up was called an output, 5120 wide at hidden 1280."""
    report = analyzed(need_shared("d14_")).report
    rows = [row for row in report.gemms if row.m_range is not None and row.component.startswith("mlp.")]
    assert {(row.component, row.n_range, row.calls) for row in rows} == {
        ("mlp.up", (4993, 5120), 32),
        ("mlp.down", (1153, 1280), 32),
    }
    assert not any(row.component == "logits" for row in report.gemms)


def test_weight_gradients_of_one_shape_are_told_apart_by_order() -> None:
    """In d1 the gradients of both MLP weights have one shape. Inductor casts those of the first weight with
    one kernel and those of the second with another: an independent witness that the order is right."""
    trace, links, result = attributed(need_shared("d1_"))
    kernels, texts = trace.kernels, trace.symbols
    rows = [
        row
        for row in np.argsort(kernels.ts_ns, kind="stable").tolist()
        if kernels.stream[row] == 7
        and links.kernel_step[row] >= 0
        and not texts[kernels.name[row]].startswith("Mem")
    ]
    seen: dict[str, set[str]] = {}
    for row, following in zip(rows, rows[2:], strict=False):
        op = int(links.kernel_op[row])
        dims = trace.details.inputs(int(trace.ops.inputs[op])).dims if op >= 0 else None
        cast = texts[kernels.name[following]]
        if dims and dims[0] == [768, 32768] and dims[2:3] == [[768, 3072]] and "_to_copy" in cast:
            seen.setdefault(cast, set()).add(COMPONENTS[result.component[row]])
    assert sorted(map(sorted, seen.values())) == [["mlp.down"], ["mlp.up"]]


@pytest.mark.parametrize("name", ["d6_", "d9_"])
def test_no_transformer_is_found_where_there_is_none(name: str) -> None:
    _trace, _, result = attributed(need_shared(name), hidden=True)
    assert not result.transformer
    structure = result.evidence == EVIDENCE.index("structure")
    assert {COMPONENTS[code] for code in np.unique(result.component[structure])} <= {"grad_clip", "loss"}
