"""What must hold of any input: a report that adds up and every rendering of it, or one clear error."""

from __future__ import annotations

import asyncio
import json
import random
import warnings
import zlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

import tracelens
from tests.fuzz import seeds
from tests.fuzz.shown import RENDERINGS, Broken, Rendering, no_leak, printed, sound_json
from tracelens.accounting.cost import parse_price
from tracelens.comparison.compare import compare_reports
from tracelens.config.changes import parse_changes
from tracelens.errors import TracelensError
from tracelens.gates import JOB_METRICS, judge_comparison, judge_job, judge_report, parse_gate
from tracelens.job.history import history
from tracelens.job.merge import merge
from tracelens.job.run import summarize_files
from tracelens.job.saved import is_answer, load_answer, unpack_report
from tracelens.job.summary import decode, encode, summarize
from tracelens.render.compare_html import render_compare_html
from tracelens.render.compare_markdown import render_markdown
from tracelens.render.compare_terminal import render_compare
from tracelens.render.history import render_history
from tracelens.render.job import job_markdown, render_job
from tracelens.render.job_html import render_job_html
from tracelens.render.perfetto import write_perfetto
from tracelens.render.redact import redact
from tracelens.render.suggestions import render_suggestions
from tracelens.results import Report
from tracelens.results.job import Job
from tracelens.results.job import to_json as job_json
from tracelens.results.json import compare_json, diagnosis_json, from_json, suggestions_json, to_json
from tracelens.step.saved_step import step_of
from tracelens.step.whatif import what_if
from tracelens.suggestions import suggest

#: Of traces so many are searched for a faster shape, which takes as long as all else of one.
_SEARCHED = 0.25


def of_trace(path: Path, *, thorough: bool) -> str:
    """Analyze a file and render it; ``report``, or the kind of error it ended in."""
    drawn = _drawn(path.read_bytes())
    found = tracelens.analyze(path, shape_search=thorough or drawn.random() < _SEARCHED)
    parts = sum(row.time_ns for row in found.report.components)
    total = 0 if found.trace is None else int(found.trace.kernels.dur_ns.sum())
    if parts != total:
        raise Broken(f"components are {parts} ns, kernels {total} ns")
    if thorough:
        if total != int(found.kernels["dur_ns"].sum()):
            raise Broken("the table of kernels has another time than the trace")
        if len(found.gemms) != len(found.report.gemms) or len(found.ops) < 0:
            raise Broken("a table lacks rows")
        with suppress(TracelensError):
            write_perfetto(found, path.with_name("perfetto.json.gz"))
        sound_json(diagnosis_json(tracelens.doctor(path)), "diagnosis")
        _job(merge([*seeds.ranks(), summarize(found)]))
    _report(found.report, drawn.sample(RENDERINGS, len(RENDERINGS) if thorough else 1))
    return "report"


def of_report(path: Path, *, thorough: bool) -> str:
    """A saved report, edited: shown like any other, or refused in one line."""
    data = path.read_bytes()
    drawn = _drawn(data).sample(RENDERINGS, len(RENDERINGS) if thorough else 2)
    _report(from_json(data), drawn, edited=True)
    return "report"


def _drawn(data: bytes) -> random.Random:
    return random.Random(zlib.crc32(data))  # a kept input is looked at as it was


def _report(report: Report, renderings: Sequence[Rendering], *, edited: bool = False) -> None:
    """Saved and read again, and rendered. ``edited``: names can be anything."""
    if from_json(to_json(report)) != report and not edited:
        raise Broken("a saved report reads back as another one")
    for rendering in renderings:
        with _of_edited(edited):
            text = rendering(report)
            if not edited:
                no_leak(text, rendering.__name__)


def _of_edited(edited: bool) -> Any:
    """Of an edited report a rendering can be refused, in one line."""
    return suppress(TracelensError) if edited else nullcontext()


def of_pair(path: Path, *, thorough: bool) -> str:
    """Two saved reports compared, the second one edited."""
    before, _, after = path.read_bytes().partition(b"\n")
    found = compare_reports(from_json(before), from_json(after))
    sound_json(compare_json(found), "comparison" if thorough else None)
    judge_comparison(found, ["regression>3%"])
    for text in (
        printed(lambda console: render_compare(found, console=console)),
        render_markdown(found),
        render_compare_html(found),
    ):
        text.encode()
    redact(found)
    return "comparison"


def of_config(path: Path, *, thorough: bool) -> str:
    """A configuration: suggestions for it, or one line."""
    ending, _, data = path.read_bytes().partition(b"\n")
    written = path.with_name(f"config.{ending.decode()}")
    written.write_bytes(data)
    found = suggest(written, gpu="h100-sxm")
    sound_json(suggestions_json(found), "suggestions" if thorough else None)
    no_leak(printed(lambda console: render_suggestions(found, console=console)), "suggestions")
    return "suggestions"


def of_words(path: Path, *, thorough: bool) -> str:
    """What is typed: taken by one of those that read it, or refused by all, each in a line."""
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    report = _known()
    step = step_of(report)
    ended = []
    readers: tuple[Callable[[], object], ...] = (
        lambda: what_if(step, parse_changes([text], now=step.now)),
        lambda: judge_report(report, [text]),
        lambda: parse_gate(text, JOB_METRICS),
        lambda: parse_price(text),
    )
    for read in readers:
        try:
            ended.append(type(read()).__name__)
        except TracelensError as error:
            said(error)
    return ", ".join(ended) or "refused"


@cache
def _known() -> Report:
    return from_json(seeds.reports()[0].encode())


def of_ask(path: Path, *, thorough: bool) -> str:
    """A question to the MCP server: an answer that JSON holds, or an error in words."""
    from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError

    try:
        asked = json.loads(path.read_bytes())
        tool, options = asked["tool"], asked["arguments"]
    except (ValueError, LookupError, TypeError):
        return "no question"
    if not isinstance(tool, str) or not isinstance(options, dict):
        return "no question"
    saved = path.with_name("saved.json")
    saved.write_text(seeds.reports()[0], encoding="utf-8")
    files = {"saved": str(saved), "trace": str(path)}
    given = {name: files.get(one, one) if isinstance(one, str) else one for name, one in options.items()}
    try:
        answer = asyncio.run(_server().call_tool(tool, given))
    except UnexpectedToolError as error:
        raise error.__cause__ or error from None
    except ToolError:
        return "error"
    sound_json(answer.model_dump_json().encode())
    return "answer"


@cache
def _server() -> Any:
    from tracelens.cli.mcp import server

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return server()


def of_job(path: Path, *, thorough: bool) -> str:
    """Edited summaries of ranks merged, or an edited answer shown again."""
    job = load_answer(path) if is_answer(path) else merge(decode(path.read_bytes(), path.name))
    return _job(job)


def of_summaries(path: Path, *, thorough: bool) -> str:
    """A summary file with bytes changed: its ranks, their reports and the job."""
    ranks = decode(path.read_bytes(), path.name)
    encode(ranks)
    for one in ranks:
        unpack_report(one)
    return _job(merge(ranks))


def _job(job: Job) -> str:
    sound_json(job_json(job))
    judge_job(job, ["straggler>5%"])
    for text in (
        render_job_html(job),
        job_markdown(job),
        printed(lambda console: render_job(job, console=console)),
    ):
        text.encode()
    redact(job)
    return "job"


def of_folder(path: Path, *, thorough: bool) -> str:
    """A folder of ranks with junk in it: what can be used is used, and what is left out is said."""
    folder = seeds.unpacked(path.read_bytes(), path.with_name("ranks"))
    ranks, left = summarize_files([folder], workers=1)
    for one in left:
        if "could not be analyzed" in one.why:
            raise Broken(f"left out with a fault: {one.why[:200]}")
    return _job(merge(ranks, left))


def of_runs(path: Path, *, thorough: bool) -> str:
    """A store with files that are no runs."""
    found = history(seeds.unpacked(path.read_bytes(), path.with_name("store")))
    no_leak(printed(lambda console: render_history(found, console=console)), "history")
    return "history"


def said(error: TracelensError) -> str:
    """The kind of an error, whose text is one line."""
    text = str(error)
    if not text or "\n" in text or len(text) > 2000:
        raise Broken(f"an error of {len(text.splitlines())} lines, {len(text)} letters")
    return type(error).__name__


OF_KIND: dict[str, Callable[..., str]] = {
    "trace": of_trace, "report": of_report, "pair": of_pair, "config": of_config, "words": of_words,
    "ask": of_ask, "job": of_job, "summaries": of_summaries, "folder": of_folder, "runs": of_runs,
}  # fmt: skip


def of(kind: str, path: Path, *, thorough: bool) -> str:
    """What a case ended in: the name of an output, or of an error that one line says."""
    try:
        return OF_KIND[kind](path, thorough=thorough)
    except TracelensError as error:
        return said(error)
