"""The builder's promises: a recording that could be real, and truth that fits it."""

from __future__ import annotations

import difflib
import gzip
import json
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.generate import generate
from benchmarks.make_samples import FOLDER, VOCABULARIES, file_name, sample_text
from tests.synthetic import ModelSpec, Options, Synthetic, build
from tracelens.words import COMPONENTS, PHASES, ROLES

GPU = ("kernel", "gpu_memcpy", "gpu_memset")
SMALL = ModelSpec(hidden=256, heads=4, layers=2, vocab=1003, sequence=128, micro_batch=2)
SMALL_LLAMA = ModelSpec(
    family="llama",
    hidden=256,
    heads=4,
    kv_heads=2,
    ffn=512,
    layers=2,
    vocab=1000,
    sequence=128,
    micro_batch=2,
    tied=False,
)
EVERYTHING = Options(
    ranges=True, all_reduce=True, prelaunched=3, accumulate=2, attention="math", optimizer="foreach"
)
CASES = {
    "gpt2": (SMALL, Options()),
    "gpt2, everything on": (SMALL, EVERYTHING),
    "llama": (SMALL_LLAMA, Options(steps=1, zero_to_none=False, accumulate=2)),
    "llama, math attention": (SMALL_LLAMA, Options(steps=1, attention="math", module_frames=False)),
}
DECODED: dict[int, list[dict[str, Any]]] = {}


@cache
def built(case: str) -> Synthetic:
    made = build(*CASES[case])
    DECODED[id(made)] = made.events
    return made


@pytest.fixture(params=CASES, ids=list(CASES))
def trace(request: pytest.FixtureRequest) -> Synthetic:
    return built(request.param)


def complete(trace: Synthetic, *categories: str) -> list[dict[str, Any]]:
    return [e for e in DECODED[id(trace)] if e["ph"] == "X" and e["cat"] in categories]


def test_text_is_json_and_holds_the_same_events(trace: Synthetic) -> None:
    loaded = json.loads(trace.text())
    assert loaded["generated"] is True
    assert loaded["generated_by"] == "tests/synthetic"
    assert loaded["deviceProperties"][0]["numSms"] == 132
    assert loaded["traceEvents"] == DECODED[id(trace)]


def test_the_same_request_gives_the_same_text() -> None:
    assert build(SMALL).text() == built("gpt2").text()


def test_host_events_of_a_thread_nest(trace: Synthetic) -> None:
    for categories in (
        ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver"),
        ("python_function", "cpu_op"),
    ):
        threads: dict[int | str, list[tuple[int, int]]] = {}
        for record in trace.records:
            if record.ph == "X" and record.cat in categories:
                threads.setdefault(record.tid, []).append((record.ts, -(record.ts + record.dur)))
        for spans in threads.values():
            ends: list[int] = []
            for start, negative_end in sorted(spans):
                while ends and ends[-1] <= start:
                    ends.pop()
                assert not ends or -negative_end <= ends[-1]
                ends.append(-negative_end)


def test_gpu_events_of_a_stream_follow_each_other_and_their_launch(trace: Synthetic) -> None:
    launches = {e["args"]["correlation"]: e for e in complete(trace, "cuda_runtime", "cuda_driver")}
    assert len(launches) == len(complete(trace, "cuda_runtime", "cuda_driver"))
    streams: dict[int, float] = {}
    kernels = [r for r in trace.records if r.cat in GPU]
    assert len({r.args["correlation"] for r in kernels}) == len(kernels)
    for record in sorted(kernels, key=lambda r: r.ts):
        stream = int(record.tid)
        assert record.dur > 0
        assert record.ts >= streams.get(stream, 0)
        streams[stream] = record.ts + record.dur
        launch = launches.get(record.args["correlation"])
        if launch is not None:
            assert record.ts / 1000 > launch["ts"]
            assert launch["args"]["External id"] == record.args["External id"]
    orphans = [r for r in kernels if r.args["correlation"] not in launches]
    assert len(orphans) == trace.options.prelaunched
    assert all("External id" not in r.args for r in orphans)


def test_a_launch_lies_inside_the_op_it_names(trace: Synthetic) -> None:
    ops = {e["args"]["External id"]: e for e in complete(trace, "cpu_op", "user_annotation")}
    for launch in complete(trace, "cuda_runtime", "cuda_driver"):
        if "External id" in launch["args"]:
            op = ops[launch["args"]["External id"]]
            assert op["tid"] == launch["tid"]
            assert op["ts"] <= launch["ts"] <= op["ts"] + op["dur"]


def test_truth_has_one_row_per_gpu_event(trace: Synthetic) -> None:
    by_correlation = {e.args["correlation"]: e for e in trace.records if e.cat in GPU}
    assert len(trace.truth) == len(by_correlation)
    for row in trace.truth:
        event = by_correlation[row.correlation]
        assert (row.name, row.start_ns, row.duration_ns, row.stream) == (
            event.name,
            event.ts,
            event.dur,
            event.tid,
        )
        assert row.component in COMPONENTS
        assert row.phase in PHASES
        assert row.role in (None, *ROLES)
    assert trace.truth == sorted(trace.truth, key=lambda row: row.start_ns)


def test_arrows_join_a_forward_op_to_its_backward_node(trace: Synthetic) -> None:
    starts, ends = (
        {e["id"]: e for e in DECODED[id(trace)] if e["ph"] == ph and e["cat"] == "fwdbwd"} for ph in "sf"
    )
    assert starts.keys() == ends.keys()
    assert len(starts) > 20
    owners = {
        (e["tid"], e["ts"]): e for e in complete(trace, "cpu_op")
    }  # the innermost that starts there is last
    for number, start in starts.items():
        forward, backward = owners[start["tid"], start["ts"]], owners[ends[number]["tid"], ends[number]["ts"]]
        assert forward["tid"] != backward["tid"]
        assert forward["args"]["Sequence number"] == backward["args"]["Sequence number"]
        assert backward["name"].endswith(("Backward0", "Backward1"))


def test_gemm_shapes_and_flops_of_a_hand_computed_model() -> None:
    """b*s = 256 tokens, h = 256: QKV (256, 768, 256), MLP up (256, 1024, 256), logits (256, 1003, 256)."""
    step = [row for row in built("gpt2").truth if row.step == 3 and row.role is not None]
    shapes = {(r.component, r.role): (r.m, r.n, r.k) for r in step}
    assert shapes["attention.qkv", "forward"] == (256, 768, 256)
    assert shapes["attention.qkv", "dgrad"] == (256, 256, 768)
    assert shapes["attention.qkv", "wgrad"] == (768, 256, 256)
    assert shapes["mlp.up", "forward"] == (256, 1024, 256)
    assert shapes["mlp.down", "forward"] == (256, 256, 1024)
    assert shapes["logits", "forward"] == (256, 1003, 256)
    assert shapes["logits", "wgrad"] == (1003, 256, 256)
    # 2 FLOPs x tokens x weights: (QKV 3, output 1, MLP 8) h^2 in 2 layers, and the logits; 3 x with backward
    assert sum(r.flops for r in step) == 3 * 2 * 256 * (2 * 12 * 256**2 + 1003 * 256)
    attention = [
        r for r in built("gpt2").truth if r.step == 3 and r.component == "attention.core" and r.flops
    ]
    assert sum(r.flops for r in attention) == 2 * 3.5 * 4 * 2 * 128**2 * 256


def test_layers_and_modules_are_told_apart() -> None:
    modules = {(row.module, row.layer) for row in built("gpt2").truth if row.component == "mlp.down"}
    assert modules == {("transformer.h.0.mlp.c_proj", 0), ("transformer.h.1.mlp.c_proj", 1)}


def test_an_odd_vocabulary_gets_an_unaligned_kernel_and_takes_longer() -> None:
    def logits(vocabulary: int) -> list[tuple[str, int]]:
        model = ModelSpec(layers=1, vocab=vocabulary)
        rows = build(model, Options(steps=1)).truth
        return [(row.name, row.duration_ns) for row in rows if row.component == "logits" and row.role]

    odd, padded = logits(50257), logits(50304)
    assert len(odd) == len(padded) == 3
    assert all("align1" in name for name, _ in odd)
    assert all(name.startswith("nvjet_") for name, _ in padded)
    assert sum(ns for _, ns in odd) > 2 * sum(ns for _, ns in padded)


def test_options_show_in_the_recording() -> None:
    full = built("gpt2, everything on")
    names = Counter(e["name"] for e in complete(full, "user_annotation"))
    assert names["transformer.h.1.mlp.c_fc"] == 4  # two micro-batches in two steps
    assert names["nccl:all_reduce"] == 2
    assert {e["name"] for e in complete(full, "gpu_user_annotation")} >= {
        "ProfilerStep#3",
        "transformer.h.0.attn.c_attn",
    }
    assert {row.stream for row in full.truth if row.component == "communication"} == {23}
    assert [row.launched for row in full.truth[:3]] == [False] * 3
    frames = Counter(e["name"] for e in complete(full, "python_function"))
    assert frames["nn.Module: Linear_0"] == 4
    assert frames["nn.Module: Linear_9"] == 0  # 4 in each of 2 layers, and the logits: 0 to 8
    assert not complete(built("llama, math attention"), "python_function")


def test_generated_file_has_the_counts_its_truth_states(tmp_path: Path) -> None:
    for name in ("trace.json", "trace.json.gz"):
        path = tmp_path / name
        truth = generate(path, 2_000_000, python_frames=name.endswith(".gz"))
        data = gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
        events = json.loads(data)["traceEvents"]
        kernels = [e for e in events if e.get("cat") == "kernel"]
        assert len(data) == truth["bytes"] == pytest.approx(2_000_000, rel=0.4)
        assert len(events) == truth["events"]
        assert dict(Counter(e.get("cat", "none") for e in events)) == truth["by_category"]
        assert sum(e["ph"] == "X" for e in events) == truth["complete_events"]
        assert len(kernels) == truth["kernels"]
        assert sum(round(e["dur"] * 1000) for e in kernels) == truth["kernel_ns"]
        on_gpu = [e for e in events if e.get("cat") in GPU]
        assert len({e["args"]["correlation"] for e in on_gpu}) == len(on_gpu) == truth["gpu_events"]
        arrows = {e["id"] for e in events if e.get("cat") == "ac2g" and e["ph"] == "s"}
        assert {e["args"]["correlation"] for e in on_gpu} <= arrows
        assert json.loads(path.with_name(name + ".truth.json").read_text()) == truth


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_sample_traces_are_what_the_script_makes(vocabulary: int) -> None:
    committed = FOLDER / file_name(vocabulary)
    assert committed.stat().st_size < 1_000_000
    assert gzip.decompress(committed.read_bytes()).decode() == sample_text(vocabulary)


# -- against a real recording ------------------------------------------------------------------------


def _record_gpt2(model: ModelSpec) -> list[dict[str, Any]]:
    """One training step of the same model on the CPU, recorded by torch.profiler."""
    torch: Any = pytest.importorskip("torch")
    from tests.synthetic.reference import record

    return record(torch, model)


def _forward_ops(events: Iterable[dict[str, Any]]) -> list[str]:
    ops = [e for e in events if e.get("cat") == "cpu_op" and e["args"].get("Fwd thread id") == 0]
    ops.sort(key=lambda e: (e["ts"], -e["dur"]))
    first = ops[0]["args"]["Sequence number"]
    keys = ("Input Dims", "Input Strides", "Input type", "Concrete Inputs")
    rows = []
    for op in ops:
        name, args = op["name"].replace("_for_cpu", ""), op["args"]
        # the CPU op takes one less
        inputs = [] if "_scaled_dot_product" in name else [args[key] for key in keys]
        rows.append(f"{name} {args['Sequence number'] - first} {inputs}")
    return rows


def _backward_nodes(events: Iterable[dict[str, Any]]) -> list[str]:
    prefix = "autograd::engine::evaluate_function: "
    nodes = [e for e in events if e.get("cat") == "cpu_op" and e["name"].startswith(prefix)]
    nodes.sort(key=lambda e: e["ts"])
    first = nodes[0]["args"]["Sequence number"]
    names = [e["name"].removeprefix(prefix).replace("ForCpu", "") for e in nodes]
    return [
        f"{n} {e['args'].get('Sequence number', first) - first}" for n, e in zip(names, nodes, strict=True)
    ]


def _products(events: Iterable[dict[str, Any]]) -> list[str]:
    products = [e for e in events if e.get("cat") == "cpu_op" and e["name"] in ("aten::mm", "aten::addmm")]
    products.sort(key=lambda e: e["ts"])
    return [f"{e['name']} {e['args']['Input Dims']} {e['args']['Input Strides']}" for e in products]


def test_forward_ops_and_backward_order_match_a_real_recording() -> None:
    model = ModelSpec(hidden=64, heads=4, layers=2, vocab=100, sequence=16, micro_batch=2)
    real = _record_gpt2(model)
    ours = build(model, Options(steps=1)).events
    for rows in (_forward_ops, _backward_nodes, _products):
        difference = list(difflib.unified_diff(rows(real), rows(ours), "real", "simulated", lineterm="", n=0))
        assert not difference, "\n".join(difference[:20])
