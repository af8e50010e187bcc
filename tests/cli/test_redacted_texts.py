"""A word of its own in every text of a trace, and none of them in any output of ``--redact``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import tracelens
from tests.synthetic import ModelSpec, Options, build
from tracelens.comparison.compare import compare_reports
from tracelens.job.merge import merge
from tracelens.job.saved import unpack_report
from tracelens.job.summary import summarize
from tracelens.render.html import render_html
from tracelens.render.job import job_markdown
from tracelens.render.job_html import render_job_html
from tracelens.render.markdown import render_report_markdown
from tracelens.render.redact import redact, redact_kernels, redact_report, redact_summary
from tracelens.results.job import to_json as job_json
from tracelens.results.json import compare_json, to_json

MODEL = ModelSpec(hidden=256, heads=4, kv_heads=2, ffn=704, vocab=1003, layers=1, sequence=128, micro_batch=1,
                  family="llama")  # fmt: skip
#: Names of PyTorch's own; another one would be another trace.
PUBLIC = re.compile(r"aten|c10d|nccl|torch|autograd|record_param_comms|ProfilerStep|cuda|Optimizer|cpu_op")
#: Fields that the analysis reads as one of a few words.
READ = ("Collective name", "dtype", "Input type")
WORD = re.compile(r"q\d+zq")


class Words:
    """Words that occur nowhere else, each with the place that it was planted in."""

    def __init__(self) -> None:
        self.places: dict[str, str] = {}

    def __call__(self, place: str) -> str:
        word = f"q{len(self.places)}zq"
        self.places[word] = place
        return word

    def inside(self, text: str) -> set[str]:
        """Places whose words a text holds."""
        return {self.places[word] for word in WORD.findall(text)}


def planted(whole: dict[str, Any], word: Words) -> dict[str, Any]:
    """The trace with a word in each text: names, arguments, threads, metadata."""
    for event in whole["traceEvents"]:
        kind = event.get("cat", event["ph"])
        if event["ph"] not in "Msf" and not PUBLIC.match(event["name"]):
            event["name"] += word(f"{kind} name")
        args = event.setdefault("args", {})
        for name, value in args.items():
            if isinstance(value, str) and name not in READ:
                args[name] = value + word(f"{kind} {name}")
        args["Call stack"] = f"/home/{word('folder')}/t.py(1): {word('function')}"
        args["of no known field"] = word(f"{kind} unknown")
    group = {"pg_name": word("group"), "pg_desc": word("group"), "ranks": [0, 1], "pg_size": 2}
    head = {"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2, "pg_config": [group]}}
    return whole | head | {"of no known key": word("head"), "trace_id": word("head")}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[tracelens.Analysis, Words]:
    word = Words()
    text = build(MODEL, Options(steps=1, attention="math", all_reduce=True)).text()
    path = tmp_path_factory.mktemp("texts") / f"{word('file')}.json"
    path.write_text(json.dumps(planted(json.loads(text), word)))
    return tracelens.analyze(path), word


def outputs(analysis: tracelens.Analysis, *, hidden: bool) -> Iterator[tuple[str, str]]:
    """Every output by name; ``hidden``: as ``--redact`` makes it."""
    report = redact_report(analysis) if hidden else analysis.report
    yield "json", to_json(report).decode()
    yield "page", render_html(report)
    yield "markdown", render_report_markdown(report)
    yield "kernels", (redact_kernels(analysis.kernels) if hidden else analysis.kernels).to_csv()
    again = redact(analysis.report) if hidden else analysis.report  # a saved report has no trace beside it
    yield "json of a saved report", to_json(again).decode()
    rank = summarize(analysis)
    shown = redact_summary(rank) if hidden else rank
    yield "summary", msgspec.json.encode(msgspec.structs.replace(shown, report=b"")).decode()
    yield "report in the summary", to_json(unpack_report(shown)).decode()
    job = redact(merge([rank])) if hidden else merge([rank])
    yield "job", job_json(job).decode()
    yield "page of the job", render_job_html(job)
    yield "markdown of the job", job_markdown(job)
    same = compare_reports(analysis.report, analysis.report)
    yield "comparison", compare_json(redact(same) if hidden else same).decode()


def test_no_text_of_the_trace_is_in_a_redacted_output(found: tuple[tracelens.Analysis, Words]) -> None:
    analysis, word = found
    assert {
        name: word.inside(text) for name, text in outputs(analysis, hidden=True) if word.inside(text)
    } == {}


def test_only_names_are_in_the_others(found: tuple[tracelens.Analysis, Words]) -> None:
    """Of arguments, threads and metadata none; and the search does find what is there."""
    analysis, word = found
    seen = {name: word.inside(text) for name, text in outputs(analysis, hidden=False)}
    names = {"file", "kernel name", "gpu_memcpy name", "gpu_memset name", "python_function name",
             "kernel Process Group Description", "cpu_op name", "group"}  # fmt: skip
    assert set().union(*seen.values()) <= names
    assert {"file", "kernel name", "python_function name", "kernel Process Group Description"} <= seen["json"]
