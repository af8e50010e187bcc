"""``--perfetto``: the trace's own events as they were, and tracks that any viewer of the format takes."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
from pathlib import Path

import pytest

from tests.kept import analyzed
from tests.perfetto.annotated import Written, annotate, annotated, events_of, kernel_spans, load, span
from tests.said import Listener
from tests.trace.tools import document, kernel, op, shared_traces, small_trace
from tracelens.analysis import Analysis, analyze
from tracelens.errors import UsageError
from tracelens.render.perfetto import write_perfetto

SAMPLE = Path(__file__).resolve().parents[2] / "sample_traces" / "generated_gpt2_vocab50257.json.gz"


def assert_inserted(original: bytes, written: bytes) -> None:
    """One stretch was added right behind the ``[`` of the events, and nothing else was touched."""
    at = original.index(b"[", original.index(b'"traceEvents"')) + 1
    added = len(written) - len(original)
    assert added > 0
    assert written[:at] == original[:at]
    assert written[at + added :] == original[at:]
    assert written[at : at + added].endswith(b"}},\n")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out") / "out.json"


@pytest.fixture(scope="module")
def sample(out: Path) -> Written:
    """The sample as it is written to ``out``."""
    return annotated(analyzed(SAMPLE), out)


def test_the_original_is_in_the_file_byte_for_byte(sample: Written, out: Path) -> None:
    assert_inserted(gzip.decompress(SAMPLE.read_bytes()), out.read_bytes())


def test_gzip_and_plain_hold_the_same(sample: Written, tmp_path: Path) -> None:
    written = annotate(SAMPLE, tmp_path / "out.json.gz")
    assert written.document == sample.document
    assert written.original == events_of(load(SAMPLE))
    assert (tmp_path / "out.json.gz").read_bytes()[:2] == b"\x1f\x8b"


def test_everything_but_the_added_events_is_as_it_was(sample: Written) -> None:
    assert {**sample.document, "traceEvents": 0} == {**load(SAMPLE), "traceEvents": 0}
    assert (sample.result.rewritten, sample.result.left_out, sample.result.notes) == (0, 0, ())


def test_slices_say_evidence_module_and_shape(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(small_trace().text())
    written = annotate(tmp_path / "t.json", tmp_path / "out.json")
    logits = [
        event
        for event in written.slices("component")
        if event["name"] == "logits" and event["args"].get("role") == "forward"
    ]
    assert len(logits) == 1
    assert logits[0]["args"]["shape"] == "M=128 N=512 K=128"
    assert logits[0]["args"]["evidence"] == "annotation"
    assert logits[0]["args"]["module"] == "GPT_0.Linear_4.lm_head"
    assert logits[0]["args"]["op"] == "aten::mm"
    assert logits[0]["args"]["step"] == 3
    attention = [e for e in written.slices("component") if e["name"].startswith("attention.")]
    assert {e["args"]["layer"] for e in attention if "layer" in e["args"]} == {0}


def test_a_finding_lies_on_its_products_with_rule_and_saving(sample: Written) -> None:
    finding = sample.analysis.report.findings[0]
    own = [e for e in sample.slices("findings") if e["args"]["title"] == finding.title]
    assert own
    assert own[0]["name"] == f"{finding.rule} {finding.title}"
    saving = own[0]["args"]["saving of the whole finding, ms"]
    assert float(saving["high"]) == finding.saving_ms.high
    assert saving["basis"] == finding.saving_ms.basis


def test_two_findings_on_one_product_are_nested_on_it(tmp_path: Path) -> None:
    analysis = analyzed(SAMPLE)
    first = analysis.report.findings[0]
    other = dataclasses.replace(first, rule="TL999", title="Another of the same products")
    report = dataclasses.replace(analysis.report, findings=[first, other])
    write_perfetto(dataclasses.replace(analysis, report=report), tmp_path / "out.json")
    added = [e for e in events_of(load(tmp_path / "out.json")) if e.get("cat") == "tracelens"]
    one, two = ([span(e) for e in added if e["args"].get("rule") == rule] for rule in (first.rule, "TL999"))
    assert one == two != []


@pytest.mark.parametrize("device", [0, 1])
def test_processes_sort_before_the_gpu_and_say_which_it_is(tmp_path: Path, device: int) -> None:
    (tmp_path / "t.json").write_text(document([op(), kernel(device=1, ts=20), kernel(device=0, ts=30)]))
    written = annotate(tmp_path / "t.json", tmp_path / "out.json", device=device)
    named = {e["pid"]: e["args"]["name"] for e in written.added if e["name"] == "process_name"}
    index = {e["pid"]: e["args"]["sort_index"] for e in written.added if e["name"] == "process_sort_index"}
    assert [*named.values()] == [f"tracelens: GPU {device}"]
    assert named.keys() == index.keys()
    assert max(index.values()) < 5_000_000  # where Kineto's own GPU rows begin


def test_overlapping_events_of_a_stream_get_tracks_of_their_own(tmp_path: Path) -> None:
    events = [
        kernel(ts=10, dur=10),
        kernel(ts=15, dur=10),
        kernel(ts=25, dur=1),
        kernel(ts=25, dur=5, stream=9),
    ]
    (tmp_path / "t.json").write_text(document(events))
    names = annotate(tmp_path / "t.json", tmp_path / "out.json").track_names.values()
    assert [name for name in names if "component" in name] == [
        "tracelens: component (stream 7)",
        "tracelens: component (stream 7, overlapping 1)",
        "tracelens: component (stream 9)",
    ]


def test_more_overlap_than_there_are_tracks_is_told(tmp_path: Path, said: Listener) -> None:
    events = [kernel(ts=10 + at, dur=1000) for at in range(40)]
    (tmp_path / "t.json").write_text(document(events))
    result = write_perfetto(analyze(tmp_path / "t.json"), tmp_path / "out.json")
    assert result.events == 40
    said(result.notes)


def test_a_number_that_the_trace_uses_is_not_used_again(tmp_path: Path) -> None:
    taken = {"ph": "M", "name": "thread_name", "pid": 2_060_000_003, "tid": 2_061_000_007}
    events = [taken | {"args": {"name": "mine"}}, kernel(), op(tid=2_061_000_009)]
    (tmp_path / "t.json").write_text(document(events))
    written = annotate(tmp_path / "t.json", tmp_path / "out.json")
    for key in ("pid", "tid"):
        added = {event[key] for event in written.added} - {0}  # 0: a process has no thread's name
        assert added and not added & {event[key] for event in events}


@pytest.mark.parametrize("ts", ["1700000000000000.123", "-5.001", "0.001", "17", "8123456789.999"])
def test_times_keep_every_nanosecond(tmp_path: Path, ts: str) -> None:
    text = document([kernel(ts="TS", dur=0.007)]).replace('"TS"', ts)
    (tmp_path / "t.json").write_text(text)
    written = annotate(tmp_path / "t.json", tmp_path / "out.json")
    assert [span(event) for event in written.slices("component")] == [span(written.original[0])]


def test_a_bare_array_stays_one(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps([kernel(), kernel(ts=50)]))
    written = annotate(tmp_path / "t.json", tmp_path / "out.json")
    assert isinstance(written.document, list)
    assert len(written.original) == 2


def test_events_that_no_table_holds_are_kept(tmp_path: Path) -> None:
    odd = [
        {"ph": "C", "name": "[memory]", "pid": 1, "tid": 0, "ts": 3, "args": {"Total Allocated": 2**70}},
        {"ph": "i", "name": "Iteration Start", "s": "g", "pid": "Traces", "tid": "Trace", "ts": 1.5},
        {
            "ph": "X",
            "cat": "my own",
            "name": "a",
            "pid": 1,
            "tid": 2,
            "ts": 1,
            "dur": 1,
            "extra": [1, {"b": None}],
        },
        {"ph": "s", "id": 3, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 2, "ts": 1},
        {"name": "no phase at all"},
    ]
    (tmp_path / "t.json").write_text(document([*odd, kernel()], after=1))
    assert annotate(tmp_path / "t.json", tmp_path / "out.json").original[: len(odd)] == odd


def test_a_saved_report_and_a_pipe_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="analyze the trace itself"):
        write_perfetto(Analysis(analyzed(SAMPLE).report), tmp_path / "out.json")
    trace = analyzed(SAMPLE).trace
    assert trace is not None
    piped = dataclasses.replace(trace, source=dataclasses.replace(trace.source, path=None))
    with pytest.raises(UsageError, match="standard input"):
        write_perfetto(dataclasses.replace(analyzed(SAMPLE), trace=piped), tmp_path / "out.json")


@pytest.mark.parametrize("name", ["out.gz", "out.pftrace", "out", "out.json.zst"])
def test_only_two_suffixes_are_known(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"end it in \.json or \.json\.gz"):
        write_perfetto(analyzed(SAMPLE), tmp_path / name)


def test_the_trace_itself_is_never_replaced(tmp_path: Path) -> None:
    trace = tmp_path / "t.json.gz"
    trace.write_bytes(SAMPLE.read_bytes())
    os.link(trace, tmp_path / "same.json.gz")
    analysis = analyze(trace)
    for name in ("t.json.gz", "same.json.gz"):
        with pytest.raises(UsageError, match="replace the trace itself"):
            write_perfetto(analysis, tmp_path / name)
    assert trace.read_bytes() == SAMPLE.read_bytes()


@pytest.mark.parametrize(
    "path",
    [path for path in shared_traces() if path.stat().st_size < 400_000],
    ids=lambda path: path.name[:20],
)
def test_real_traces(path: Path, tmp_path: Path) -> None:
    """The largest is checked below."""
    written = annotated(analyzed(path), tmp_path / "out.json")
    want = load(path)
    assert written.original == events_of(want)
    if isinstance(want, dict):
        assert_inserted(gzip.decompress(path.read_bytes()), (tmp_path / "out.json").read_bytes())
    assert written.result.notes == ()
    if isinstance(want, dict):
        assert {**written.document, "traceEvents": 0} == {**want, "traceEvents": 0}


def test_a_large_real_trace_is_whole(tmp_path: Path) -> None:
    large = [path for path in shared_traces() if path.stat().st_size > 2_000_000]
    if not large:
        pytest.skip("no large trace beside the repository")
    analysis = analyzed(large[0])
    result = write_perfetto(analysis, tmp_path / "out.json", keep_metadata=True)
    assert analysis.trace is not None
    assert (result.events, result.rewritten) == (analysis.trace.events, 0)
    assert sum(map(len, kernel_spans(analysis).values())) <= result.added
    assert_inserted(gzip.decompress(large[0].read_bytes()), (tmp_path / "out.json").read_bytes())
