"""What kernels of unknown operator are lent, compared with what the builder knows to be true of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from tests.synthetic import ModelSpec, Options, Synthetic, Truth, build
from tests.trace.tools import GPU_CATEGORIES, document, need_shared, read
from tracelens.accounting.gemms import gemm_rows
from tracelens.accounting.model import model_dims
from tracelens.accounting.overlap import surroundings
from tracelens.attribution import Attribution, attribute, lent_kernels, orphans
from tracelens.attribution.calls import find_calls, role_of
from tracelens.gemm import GemmShape
from tracelens.hardware import find_gpu
from tracelens.trace import Links, Trace, link, read_trace
from tracelens.words import COMPONENTS, EVIDENCE, PHASES

GPT2 = ModelSpec(hidden=256, heads=4, layers=5, vocab=5003, sequence=128, micro_batch=2)
LLAMA = replace(GPT2, family="llama", kv_heads=2, ffn=704, tied=False)
MODELS = {"gpt2": GPT2, "llama": LLAMA}
HOST = {"cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver"}
#: (truth, found): coarser than the truth, and true.
COARSER = {"attention.other", "mlp.other"}

Events = list[dict[str, Any]]


@dataclass(frozen=True)
class Case:
    trace: Trace
    links: Links
    result: Attribution
    truth: dict[int, Truth]

    def lent(self) -> Iterator[tuple[int, Truth]]:
        for row in np.flatnonzero(lent_kernels(self.result)).tolist():
            yield row, self.truth[int(self.trace.kernels.ts_ns[row])]


def case_of(folder: Path, made: Synthetic, events: Events, reference: Trace | None = None) -> Case:
    trace = read(folder, document(events))
    links = link(trace)
    known = None
    if reference is not None:
        their_links = link(reference)
        known = (reference, their_links, attribute(reference, their_links))
    # start times tell the kernels apart in every variant; correlations do not in a graph
    base = min(row.start_ns for row in made.truth) - int(trace.kernels.ts_ns.min())
    truth = {row.start_ns - base: row for row in made.truth}
    return Case(trace, links, attribute(trace, links, reference=known), truth)


def steps_of(events: Events) -> Events:
    marks = [e for e in events if e.get("cat") == "user_annotation" and e["name"].startswith("ProfilerStep")]
    return sorted(marks, key=lambda e: float(e["ts"]))


def begun_late(events: Events, share: float) -> Events:
    """The recording begins when ``share`` of the first step is launched; what was queued still runs."""
    first = steps_of(events)[0]
    begin = first["ts"] + share * first["dur"]
    return [e for e in events if not (e.get("cat") in HOST and e["ts"] < begin)]


def replayed(events: Events) -> Events:
    """The second step is a CUDA graph: one launch, no operators."""
    mark = steps_of(events)[1]
    inside = {
        id(e)
        for e in events
        if e.get("cat") in HOST - {"user_annotation"} and mark["ts"] <= e["ts"] < mark["ts"] + mark["dur"]
    }
    launched = {
        e["args"]["correlation"] for e in events if id(e) in inside and "correlation" in e.get("args", {})
    }
    graph = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": mark["pid"]}
    graph |= {"tid": mark["tid"], "ts": mark["ts"] + 1, "dur": 9, "args": {"correlation": 1 << 30}}
    out = [graph]
    for event in events:
        if event.get("cat") in GPU_CATEGORIES and event["args"]["correlation"] in launched:
            event = event | {"args": event["args"] | {"correlation": 1 << 30}}
        if id(event) not in inside:
            out.append(event)
    return out


def gpu_only(events: Events) -> Events:
    return [e for e in events if e.get("cat") in GPU_CATEGORIES]


def wrong(case: Case) -> Counter[tuple[object, ...]]:
    """What is lent and not true, where one answer is true."""
    found: Counter[tuple[object, ...]] = Counter()
    result = case.result
    for row, truth in case.lent():
        component, phase = COMPONENTS[result.component[row]], PHASES[result.phase[row]]
        layer = int(result.layer[row])
        if not truth.strict:
            continue
        if component not in (truth.component, *COARSER):
            found["component", truth.component, component] += 1
        if phase != truth.phase:
            found["phase", truth.component, truth.phase, phase] += 1
        if layer >= 0 and layer != truth.layer:
            found["layer", truth.component, truth.layer, layer] += 1
    return found


def wrong_calls(case: Case) -> list[object]:
    """GEMM calls whose shape or role is not the true one."""
    calls = find_calls(case.trace, case.links, case.result)
    found: list[object] = []
    for main, shape, forward in zip(calls.main.tolist(), calls.shape, calls.forward, strict=True):
        truth = case.truth[int(case.trace.kernels.ts_ns[main])]
        if isinstance(shape, GemmShape) and truth.m is not None:
            role = role_of(shape, forward, PHASES[case.result.phase[main]])
            sizes = (truth.m, truth.n, truth.k, truth.batch)
            told = truth.role and role is not None
            if (shape.m, shape.n, shape.k, shape.batch) != sizes or (told and role != truth.role):
                found.append((truth, shape, role))
    return found


def without_grids(events: Events) -> Events:
    """ROCm writes a kernel's grid beside its launch: none where that is not recorded."""
    launches = {e["args"].get("correlation") for e in events if str(e.get("cat")).startswith("cuda_")}
    out: Events = json.loads(json.dumps(events))
    for event in out:
        if event.get("cat") == "kernel" and event["args"]["correlation"] not in launches:
            event["args"] = {k: v for k, v in event["args"].items() if k not in ("grid", "block")}
    return out


VARIANTS: dict[str, Callable[[Events], Events]] = {
    "launched a step before": lambda events: begun_late(events, 1.001),
    "launched half a step before": lambda events: begun_late(events, 0.55),
    "launched half a step before, without grids": lambda events: without_grids(begun_late(events, 0.55)),
    "replayed by a graph": replayed,
}


@pytest.fixture(scope="module", params=[(m, v) for m in MODELS for v in VARIANTS], ids="-".join)
def within(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A trace whose kernels partly have no operator of their own, beside whole steps."""
    model, variant = request.param
    made = build(MODELS[model], Options(steps=3, all_reduce=True))
    return case_of(tmp_path_factory.mktemp("within"), made, VARIANTS[variant](made.events))


def test_nearly_all_orphans_find_their_twin(within: Case) -> None:
    orphan = orphans(within.trace, within.links)
    assert orphan.sum() > 60
    assert (within.result.like[orphan] >= 0).mean() > 0.98
    launched = (within.result.like >= 0) & ~orphan
    # their forward is cut off, or the engine's own range around them (whose phase is then unknown too)
    cut_off = {PHASES.index("backward"), PHASES.index("other")}
    assert set(within.result.phase[launched].tolist()) <= cut_off


def test_a_twin_has_the_same_work(within: Case) -> None:
    like = within.result.like
    for row in np.flatnonzero(like >= 0).tolist():
        mine, twin = (within.truth[int(within.trace.kernels.ts_ns[at])] for at in (row, int(like[row])))
        assert (mine.name, mine.component, mine.phase, mine.layer, mine.module) == (
            (twin.name, twin.component, twin.phase, twin.layer, twin.module)
        )
        assert (mine.m, mine.n, mine.k, mine.batch) == (twin.m, twin.n, twin.k, twin.batch)


def test_nothing_lent_is_wrong(within: Case) -> None:
    assert wrong(within) == {}
    assert wrong_calls(within) == []


def test_lent_kernels_state_their_evidence_and_lack_no_reason(within: Case) -> None:
    lent = lent_kernels(within.result)
    assert lent.any()
    assert {EVIDENCE[code] for code in within.result.evidence[lent]} == {"structure"}
    assert set(within.result.reason[lent].tolist()) == {-1}
    assert COMPONENTS.index("unattributed") not in within.result.component[lent]


def test_steps_stay_as_they_are(within: Case) -> None:
    assert (within.result.step == within.links.kernel_step).all()


def test_lent_layers_and_modules_are_those_of_the_twin(within: Case) -> None:
    result = within.result
    lent = np.flatnonzero(lent_kernels(result))
    twin = result.like[lent]
    assert (result.layer[lent] == result.layer[twin]).mean() > 0.98
    assert (result.module[lent] == result.module[twin]).mean() > 0.98


def test_gemms_of_lent_kernels_share_the_rows_of_their_twins(within: Case) -> None:
    """As if every launch were there: the same rows as the whole recording has."""
    trace, links, result = within.trace, within.links, within.result
    calls = find_calls(trace, links, result)
    assert calls.lent.any()
    assert all(shape is not None for shape in calls.shape)
    gpu = find_gpu("NVIDIA H100 80GB HBM3")
    rows, _ = gemm_rows(
        trace,
        result,
        calls,
        model_dims(result, calls),
        gpu,
        around=surroundings(trace, result, calls),
        steps=2,
    )
    keys = [(row.component, row.phase, row.role, row.m, row.n, row.k, row.kernel) for row in rows]
    assert len(set(keys)) >= len(keys) - 2  # a kernel is launched with another grid for the last layer
    assert sum(row.lent_calls for row in rows) == int(calls.lent.sum())
    mixed = [row for row in rows if 0 < row.lent_calls < row.calls]
    assert sum(row.lent_calls for row in mixed) > 0.9 * calls.lent.sum()


def test_helpers_stay_with_their_product(within: Case) -> None:
    """A call that was lent has as many kernels as the call it repeats."""
    calls = find_calls(within.trace, within.links, within.result)
    sizes: dict[tuple[object, ...], set[int]] = {}
    members = np.bincount(calls.kernel_call[calls.kernel_call >= 0], minlength=len(calls))
    for at, main in enumerate(calls.main.tolist()):
        key = (
            int(within.trace.kernels.name[main]),
            int(within.trace.kernels.launch[main]),
            calls.op_name[at],
        )
        sizes.setdefault(key, set()).add(int(members[at]))
    assert all(len(found) == 1 for found in sizes.values())


# -- a reference ----------------------------------------------------------------------------------


def reference_of(folder: Path, model: ModelSpec, **options: Any) -> Trace:
    return read(folder, build(model, Options(**{"steps": 2} | options)).text(), name="reference.json")


@pytest.mark.parametrize("attention", ["flash", "math"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("only_gpu", [False, True], ids=["bare", "gpu only"])
def test_a_reference_lends_to_a_trace_without_names_and_shapes(
    tmp_path: Path, model: str, attention: Literal["flash", "math"], only_gpu: bool
) -> None:
    bare = Options(steps=3, attention=attention, module_frames=False, shapes=False, seed=3)
    made = build(MODELS[model], bare)
    events = gpu_only(made.events) if only_gpu else made.events
    case = case_of(tmp_path, made, events, reference_of(tmp_path, MODELS[model], attention=attention))
    assert wrong(case) == {}
    assert wrong_calls(case) == []
    calls = find_calls(case.trace, case.links, case.result)
    assert all(shape is not None for shape in calls.shape)
    time = case.trace.kernels.dur_ns
    known = case.result.component != COMPONENTS.index("unattributed")
    assert time[known].sum() > 0.97 * time.sum()
    assert {truth.layer for _, truth in case.lent()} >= {0, 1, 2, 3, 4}
    assert case.result.transformer


@pytest.mark.parametrize("options", [{"optimizer": "foreach", "all_reduce": True}, {"steps": 5}])
def test_a_reference_may_differ_in_parts(tmp_path: Path, options: dict[str, Any]) -> None:
    made = build(GPT2, Options(steps=2, module_frames=False, shapes=False))
    case = case_of(tmp_path, made, gpu_only(made.events), reference_of(tmp_path, GPT2, **options))
    assert wrong(case) == {}
    assert wrong_calls(case) == []
    assert case.result.loan is not None
    assert case.result.loan.filled.mean() > 0.9


@pytest.mark.parametrize("lost", [0.02, 0.1])
def test_lost_events_cost_only_themselves(tmp_path: Path, lost: float) -> None:
    made = build(GPT2, Options(steps=3))
    rng = np.random.default_rng(1)
    events = [event for event in gpu_only(made.events) if rng.random() >= lost]
    case = case_of(tmp_path, made, events, reference_of(tmp_path, GPT2))
    assert wrong(case) == {}
    assert case.result.loan is not None
    assert case.result.loan.matched.mean() > 0.95


@pytest.mark.parametrize("layers", [3, 9])
def test_a_reference_with_other_layers_lends_no_layer_number(tmp_path: Path, layers: int) -> None:
    made = build(GPT2, Options(steps=3))
    reference = reference_of(tmp_path, replace(GPT2, layers=layers))
    case = case_of(tmp_path, made, gpu_only(made.events), reference)
    assert wrong(case) == {}
    assert (case.result.layer < 0).mean() > 0.97
    assert lent_kernels(case.result).mean() > 0.5


@pytest.mark.parametrize("other", [replace(GPT2, hidden=512, heads=8), LLAMA], ids=["wider", "llama"])
def test_another_model_lends_nothing(tmp_path: Path, other: ModelSpec) -> None:
    made = build(GPT2, Options(steps=2))
    case = case_of(tmp_path, made, gpu_only(made.events), reference_of(tmp_path, other))
    assert case.result.loan is not None
    assert not case.result.loan.matched.any()
    assert not lent_kernels(case.result).any()


def test_a_reference_of_another_gpu_lends_by_name(tmp_path: Path) -> None:
    made = build(GPT2, Options(steps=2, module_frames=False, shapes=False))
    text = made.text().replace("H100", "H200")
    assert text != made.text()
    trace, theirs = read(tmp_path, text), reference_of(tmp_path, GPT2)
    links, their_links = link(trace), link(theirs)
    result = attribute(trace, links, reference=(theirs, their_links, attribute(theirs, their_links)))
    assert result.loan is not None
    assert result.loan.matched.mean() > 0.9
    wider = reference_of(tmp_path, replace(GPT2, hidden=512, heads=8))
    links_of_wider = link(wider)
    refused = attribute(trace, links, reference=(wider, links_of_wider, attribute(wider, links_of_wider)))
    assert refused.loan is not None
    assert not refused.loan.matched.any()


def test_modules_of_the_reference_are_named(tmp_path: Path) -> None:
    made = build(GPT2, Options(steps=2, module_frames=False))
    case = case_of(tmp_path, made, gpu_only(made.events), reference_of(tmp_path, GPT2, ranges=True))
    for row, truth in case.lent():
        module = int(case.result.module[row])
        alone = truth.component in ("loss", "embedding")  # these kernels run outside every range of their own
        if truth.strict and truth.module and module >= 0 and not alone:
            assert case.result.modules[module].endswith(truth.module)


def test_a_trace_without_orphans_is_left_alone(tmp_path: Path) -> None:
    made = build(GPT2, Options(steps=2))
    case = case_of(tmp_path, made, made.events)
    assert set(case.result.like.tolist()) == {-1}
    assert not lent_kernels(case.result).any()
    assert case.result.loan is None


# -- real recordings ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["d1_", "d1b_", "d2_", "rank0_", "rank7_"])
def test_kernels_before_a_real_recording_find_their_twins_in_order(name: str) -> None:
    trace = read_trace(need_shared(name))
    links = link(trace)
    result = attribute(trace, links)
    orphan = orphans(trace, links)
    assert (result.like[orphan] >= 0).mean() > 0.99
    kernels = trace.kernels
    for stream in np.unique(kernels.stream[orphan]).tolist():
        rows = np.flatnonzero(kernels.stream == stream)
        rows = rows[np.argsort(kernels.ts_ns[rows], kind="stable")]
        place = np.empty(len(kernels), np.int64)
        place[rows] = np.arange(len(rows))
        mine = rows[(result.like[rows] >= 0) & orphan[rows]]
        twins = result.like[mine]
        assert (kernels.stream[twins] == stream).all()
        assert (np.diff(place[twins]) == 1).mean() > 0.99
        ratio = kernels.dur_ns[mine] / kernels.dur_ns[twins]
        assert 0.8 < np.median(ratio) < 1.25


def test_gemms_before_a_real_recording_share_the_rows_of_the_steps() -> None:
    """Every GEMM of the earlier step is one that a recorded step has too."""
    trace = read_trace(need_shared("d1_"))
    links = link(trace)
    result = attribute(trace, links)
    calls = find_calls(trace, links, result)
    rows, _ = gemm_rows(
        trace,
        result,
        calls,
        model_dims(result, calls),
        find_gpu("H100"),
        around=surroundings(trace, result, calls),
        steps=4,
    )
    assert sum(row.lent_calls for row in rows) > 200
    assert [row for row in rows if 0 < row.calls == row.lent_calls] == []


def test_a_graph_without_an_eager_step_is_lent_nothing() -> None:
    trace = read_trace(need_shared("d5_"))
    result = attribute(trace, link(trace))
    assert not lent_kernels(result).any()


def test_synthetic_variants_are_what_they_say() -> None:
    """The graph variant keeps every GPU event and loses the second step's launches."""
    events = build(GPT2, Options(steps=2)).events
    changed = replayed(events)
    assert len(gpu_only(changed)) == len(gpu_only(events))
    assert json.dumps(changed).count("cudaGraphLaunch") == 1
