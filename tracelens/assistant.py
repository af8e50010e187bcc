"""What an assistant may ask over ``tracelens mcp``: small plain values, with what is not known beside them.

Each answer is a mapping that JSON can hold. An estimate keeps its low, mid and high, and its basis; a
figure that is not known is not there, and ``not_known`` says why, and what would give it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from tracelens.errors import InputError, UsageError, brief
from tracelens.results import Finding, Known, Report

_COMPONENTS, _GEMMS, _CHANGES = 12, 20, 12
_GEMM = ("id", "component", "role", "phase", "batch", "m", "n", "k", "dtype", "calls_per_step",
         "time_ms_per_step", "tflops", "peak_frac", "bound", "kernel")  # fmt: skip


def analyze(trace: str, gpu: str = "") -> dict[str, Any]:
    """Where a training step's GPU time goes, what limits it, and what to change, from a torch.profiler trace.

    ``trace`` is the path of a .json or .json.gz trace or of a saved report; ``gpu`` overrides its GPU.
    """
    from tracelens.gates.figures import figures

    report = _report(trace, gpu)
    rows = sorted(report.components, key=lambda row: -row.time_ms_per_step)
    return {
        "verdict": report.summary.verdict,
        "to_try": report.summary.verdict_to_try,
        "detail": report.summary.verdict_detail,
        "limited_by": report.summary.limited_by,
        "gpu": report.gpu.name,
        "model": _sizes(report),
        "figures": {name: value for name, value in figures(report).items() if "/" not in name},
        "components": [
            {"component": row.component, "phase": row.phase, "ms_per_step": row.time_ms_per_step}
            for row in rows[:_COMPONENTS]
        ],
        "findings": [_brief(one, report) for one in report.findings],
        "not_known": _not_known(report),
    }


def gemms(trace: str, component: str = "", gpu: str = "") -> dict[str, Any]:
    """The GEMMs and attention calls of a step, longest first, with shape, rate and what bounds each."""
    report = _report(trace, gpu)
    rows = [row for row in report.gemms if row.component.startswith(component)]
    return {
        "rows": [{name: getattr(row, name) for name in _GEMM if hasattr(row, name)} for row in rows[:_GEMMS]],
        "more": max(0, len(rows) - _GEMMS),
        "not_known": _not_known(report),
    }


def finding(trace: str, rule: str, gpu: str = "") -> dict[str, Any]:
    """One finding of a trace in full: what was seen, why it costs time, the fix, the arithmetic, caveats."""
    report = _report(trace, gpu)
    found = [msgspec.to_builtins(one) for one in report.findings if rule in (one.rule, one.slug)]
    check = [msgspec.to_builtins(one) for one in report.checks if rule in (one.rule, one.slug)]
    if not found and not check:
        raise UsageError(f"no rule is called {brief(rule, 60)!r}; analyze lists those that found something")
    return {"findings": found, "check": check}


def what_if(trace: str, change: str, gpu: str = "") -> dict[str, Any]:
    """Predict the step after a change of hyper-parameters, as "vocab=50304,heads=20"."""
    from tracelens import api

    found = api.analyze(_file(trace), gpu=gpu or None, what_ifs=[change], shape_search=False).report
    return {"what_if": msgspec.to_builtins(found.what_if[0]), "not_known": _not_known(found)}


def compare(before: str, after: str) -> dict[str, Any]:
    """What a change did to the step: two traces or saved reports, with what is beyond their noise."""
    from tracelens import api

    found = api.compare(_file(before), _file(after))
    return {
        "verdict": found.verdict,
        "detail": found.detail,
        "step": msgspec.to_builtins(found.step),
        "components": msgspec.to_builtins(found.components[:_CHANGES]),
        "findings": msgspec.to_builtins(found.findings),
        "not_known": [*found.not_compared, *found.caveats],
    }


def predict_gemm(m: int, n: int, k: int, gpu: str, dtype: str = "bf16") -> dict[str, Any]:
    """Predict one GEMM on a GPU of the table: its time in us as low, mid and high, and its rate."""
    import tracelens

    found = tracelens.gemm(m, n, k, gpu=gpu, dtype=dtype)
    time = found.time_us
    return {"time_us": {"low": time.low, "mid": time.mid, "high": time.high}, "tflops": found.tflops}


def explain(rule: str) -> str:
    """The page of a rule (TL101): when it applies, why it costs time, what to do, how it is estimated."""
    from tracelens.rules import explain as page

    return page(rule)


#: Everything that is asked, by its name.
TOOLS: tuple[Callable[..., Any], ...] = (
    analyze, gemms, finding, what_if, compare, predict_gemm, explain,
)  # fmt: skip


def _file(name: str) -> Path:
    """An existing file: standard input is the assistant's own, and no name is an option."""
    path = os.path.expanduser(name)
    if not os.path.isfile(path):
        raise InputError(f"{brief(name, 300)}: no such file")
    return Path(path)


def _report(trace: str, gpu: str) -> Report:
    path = _file(trace)
    seen = path.stat()
    return _analysed(str(path), seen.st_mtime_ns, seen.st_size, gpu)


@lru_cache(maxsize=4)
def _analysed(path: str, changed: int, size: int, gpu: str) -> Report:
    """The report of a file as it is now; questions follow each other about the same one."""
    from tracelens import api
    from tracelens.comparison.load import load_report
    from tracelens.render.verdict import with_verdict

    return api.analyze(path, gpu=gpu).report if gpu else with_verdict(load_report(path))


def _brief(one: Finding, report: Report) -> dict[str, Any]:
    from tracelens.render.findings import caveats, waiting

    return {
        "rule": one.rule,
        "title": one.title,
        "saving_ms_per_step": msgspec.to_builtins(one.saving_ms),
        "saving_of": one.saving_of,
        "confidence": one.confidence,
        "change": one.change,
        "caveats": [*caveats(one), *([waiting(report)] if one.saving_of == "gpu_work" else [])],
    }


def _sizes(report: Report) -> dict[str, Any]:
    """Model dimensions that are known, by name; those of one rank say so in their name."""
    found: dict[str, Any] = {}
    for one in dataclasses.fields(report.model):
        size = getattr(report.model, one.name)
        if isinstance(size, Known) and size.value is not None:
            found[f"{one.name}_per_rank" if size.per_rank else one.name] = size.value
    return found


def _not_known(report: Report) -> list[dict[str, Any]]:
    """What the trace does not say: unattributed time, what its recording lacks, checks that could not run."""
    open_ = [
        {"what": "the component of some GPU time", "ms": one.time_ms, "why": one.reason, "remedy": one.remedy}
        for one in report.coverage.unattributed
    ]
    lacks = [{"what": one.effect, "why": one.title, "remedy": one.remedy} for one in report.recording]
    checks = [
        {"what": f"check {one.rule} ({one.slug})", "why": one.why}
        for one in report.checks
        if one.state == "could_not_run"
    ]
    dims = [
        {"what": f"model dimension {one.name}", "why": size.source}
        for one in dataclasses.fields(report.model)
        if isinstance(size := getattr(report.model, one.name), Known) and size.value is None
    ]
    mfu = report.summary.mfu_why
    return [*open_, *lacks, *checks, *dims, *([{"what": "MFU", "why": mfu}] if mfu else [])]
