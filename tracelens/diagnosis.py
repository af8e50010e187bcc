"""Is a recording good enough to analyze? What it has, what it lacks, and the argument that gives it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tracelens import words
from tracelens.attribution import attribute, open_functions
from tracelens.attribution.recording import find_lacks
from tracelens.attribution.result import Attribution
from tracelens.errors import InputError
from tracelens.results import Lack
from tracelens.results.diagnosis import SCHEMA_VERSION, Diagnosis, State, TraceCheck, Verdict
from tracelens.results.identity import ValidityRule
from tracelens.trace import Links, Trace, link, one_device, read_trace
from tracelens.trace.devices import each_once
from tracelens.trace.validity import check_rules
from tracelens.words import Level

#: Check -> the lacks that it is about (``attribution.recording``); further lacks are checks of their own.
_ABOUT: dict[str, tuple[str, ...]] = {
    "file": ("cut-off", "damaged"),
    "launches": ("gpu-only", "no-launch", "dropped-events", "cuda-graph"),
    "shapes": ("no-shapes",),
    "modules": ("no-module-names", "compiled", "unknown-module"),
    "steps": ("no-steps", "one-step", "warm-up", "memory-anew", "odd-step"),
    "gpu": ("no-device",),
}
_STATES: dict[Level, State] = {"high": "poor", "medium": "poor", "low": "note"}


def diagnose(path: str | Path) -> Diagnosis:
    """Diagnose one trace file; nothing is judged against a GPU, and no shape is looked at.

    Raises InputError when the file is no trace.
    """
    return diagnose_trace(read_trace(path))


def diagnose_trace(trace: Trace) -> Diagnosis:
    """Diagnose a trace that has been read.

    Raises InputError when it is not PyTorch's.
    """
    if trace.is_of_another_program:
        raise InputError(words.of_another_program(trace.source.name))
    rules = check_rules(trace)
    checks = _checks(trace) if len(trace.kernels) else [_without_gpu(trace)]
    if trace.metadata.get("generated"):
        checks.append(TraceCheck("generated", "note", words.GENERATED, "", words.AS_AN_EXAMPLE))
    return Diagnosis(SCHEMA_VERSION, trace.source.name, _verdict(checks, rules), trace.events, checks, rules)


def _without_gpu(trace: Trace) -> TraceCheck:
    fault = trace.warnings[0] if trace.partial and trace.warnings else None
    said, remedy = words.no_gpu_event_among(trace.events, fault), words.AGAIN if fault else words.WITH_GPU
    return TraceCheck("gpu-events", "unusable", said, words.NOTHING_TO_ANALYZE, remedy)


def _checks(trace: Trace) -> list[TraceCheck]:
    trace = open_functions(each_once(one_device(trace)))
    links = link(trace)
    attribution = attribute(trace, links)
    lacks = find_lacks(trace, links, attribution)
    total_ms = int(trace.kernels.dur_ns.sum()) / 1e6
    fine = _what_is_there(trace, links, attribution)
    said = words.gpu_events(len(trace.kernels), total_ms)
    checks = [TraceCheck("gpu-events", "good", said, "", "")]
    for code, about in _ABOUT.items():
        found = [lack for lack in lacks if lack.code in about]
        if found:
            checks += [_of(code, lack) for lack in found]
        elif fine[code]:
            checks.append(TraceCheck(code, "good", fine[code], "", ""))
    known = {code for about in _ABOUT.values() for code in about}
    return checks + [_of(lack.code, lack) for lack in lacks if lack.code not in known]


def _of(code: str, lack: Lack) -> TraceCheck:
    return TraceCheck(code, _STATES[lack.severity], lack.title, lack.effect, lack.remedy)


def _what_is_there(trace: Trace, links: Links, attribution: Attribution) -> dict[str, str]:
    """What each check says where nothing is missing; empty where there is nothing to say either."""
    time = trace.kernels.dur_ns

    def share(mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> float:
        return float(time[mask].sum() / max(1, time.sum()))

    named = attribution.module >= 0
    return {
        "file": words.whole_file(trace.events),
        "launches": words.has_launch(share(links.kernel_node >= 0)),
        "shapes": words.OPERATORS_HAVE_SHAPES if len(trace.ops) else "",
        "modules": words.has_module(share(named)) if time[named].sum() > time.sum() / 2 else "",
        "steps": words.steps_marked(len(links.steps.index)),
        "gpu": trace.device_name or "",
    }


def _verdict(checks: Sequence[TraceCheck], rules: Sequence[ValidityRule]) -> Verdict:
    states = {one.state for one in checks}
    if "unusable" in states:
        return "unusable"
    return "poor" if "poor" in states or any(rule.broken for rule in rules) else "good"
