"""Words of gates: their figures, and what there is to say of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tracelens import numbers as f
from tracelens.comparison.spelling import signed_ms, signed_pct
from tracelens.gates import Gate, Range, Remark
from tracelens.gates.metrics import Code

_ENDS = {"low": "low end", "mid": "middle", "high": "high end"}
_UNSEEN = {
    "too_few_steps": "not tested: too few steps",
    "no_change": "no measurable change",
    "inconclusive": "inconclusive",
}


def about(gate: Gate, remark: Remark) -> str:
    """One phrase on the figure of a gate."""
    if remark.code == "reaches_beyond":
        limit = say(gate.limit, gate.form, signed=gate.metric.signed)
        return f"its range reaches beyond {limit}, but it is not known to lie there"
    if remark.code == "recognised_only":
        found = say_range(remark.values["found"], gate.form)
        return f"{found} was recognised, which does not decide it"
    words = WORDS[remark.code]
    return words if isinstance(words, str) else words(**remark.values)


def _not_run(many: int) -> str:
    return f"{many} check{'' if many == 1 else 's'} could not run"


def _few_steps(pairs: Sequence[str]) -> str:
    more = f" and {len(pairs) - 1} more" if pairs[1:] else ""
    return f"too few steps for a test in {pairs[0]}{more}"


def _within_noise(state: str, diff_ms: float, diff_frac: float | None) -> str:
    seen = f"{signed_ms(diff_ms)} ({signed_pct(diff_frac)})"
    return f"{_UNSEEN[state]}: {seen} is within what steps differ by"


def _most_of_components(component: str, phase: str, diff_ms: float) -> str:
    return f"most: {component} {phase} {signed_ms(diff_ms)}"


def _untold(why: str, phases: Sequence[str]) -> str:
    return f"not told from noise: {why}" + (f" in {', '.join(phases)}" if phases else "")


def _end_unknown(end: str, least: bool) -> str:
    return f"a bound has no {_ENDS[end]}: use {'.low' if least else '.low or .high'}"


WORDS: Mapping[Code, str | Callable[..., str]] = {
    "at_stake_unknown": "what the findings have at stake is not known",
    "beyond": "its whole range is beyond the limit",
    "bound": "a bound, not a prediction",
    "clocks_apart": "the ranks' clocks are not aligned well enough to tell who waits",
    "component_unseen": "no kernel here is known to be {component}".format,
    "could_not_run": "{rule} could not run: {why}".format,
    "different_models": "files of different models have no one step; regression judges their pairs",
    "drift_left_out": "without what all GEMMs alike changed by (--allow-clock-drift)",
    "end_unknown": _end_unknown,
    "few_steps": _few_steps,
    "gpu_work": "GPU work: the step waits and need not get shorter by it",
    "judged_by": lambda end: f"judged by its {_ENDS[end]}",
    "messages_unknown": lambda frac: (
        f"the message size of {f.pct(frac)} of the communication time is not known"
    ),
    "most_of_components": _most_of_components,
    "most_of_pairs": "the most of {pairs} pairs: {name}".format,
    "no_collective": "no collective matches between the ranks",
    "no_component": "no component is known",
    "no_gemm": "no GEMM was recognised in this trace",
    "no_marked_step": "no step is marked in these traces, so nothing is known per step",
    "no_pair_slower": "no pair of files is slower",
    "no_rule_judged": "no rule could judge this trace",
    "no_step": "no step",
    "no_whole_step": "no whole step is marked in this trace, so nothing is known per step",
    "not_checked": "{rule} was not checked".format,
    "not_compared": lambda why: f"times are not compared: {' and '.join(why)}",
    "not_in_this_unit": "not known in this unit",
    "not_known": "not known",
    "not_run": _not_run,
    "not_tested": lambda state="": _UNSEEN.get(state, "not tested"),
    "one_step": "one step has no spread",
    "overhead_hidden": "the run's own change of speed hides it",
    "partial": "part of the trace could not be read",
    "ranks_missing": "{many} ranks have no trace here".format,
    "report": lambda why: str(why),
    "same_trace": "the same trace twice",
    "saving_unknown": "the saving of {rule} is not known".format,
    "unprofiled_unknown": (
        "the step without the profiler is not in both traces (`tracelens capture` times it)"
    ),
    "untold": _untold,
    "untold_components": "{many} not told from noise".format,
    "within_noise": _within_noise,
}


def say(value: float, form: str, *, signed: bool = False) -> str:
    """Write a figure.

    >>> say(0.0731, "share"), say(3, "count"), say(-2.5, "time", signed=True), say(0, "share", signed=True)
    ('7.3%', '3', '−2.50 ms', '±0%')
    """
    if not signed:
        return _size(value, form)
    if value == 0 or (form == "share" and abs(value) < 0.0005):
        return "±0%" if form == "share" else _size(0.0, form)
    return ("+" if value > 0 else "−") + _size(abs(value), form)


def _size(value: float, form: str) -> str:
    if math.isinf(value):
        return "∞"
    if form == "share":
        return f.pct(value)
    if form == "time":
        return f.ms(value)
    if form == "bytes":
        return f.nbytes(round(value))
    return f.count(value) if form == "count" else f"{f.sig(value)} TFLOP/s"


def say_range(found: Range, form: str, *, signed: bool = False) -> str:
    """Write a figure with its range.

    >>> say_range(Range(0.02, 0.05, 0.08, False), "share"), say_range(Range(0, None, 0.08, False), "share")
    ('5.0% (2.0% to 8.0%)', '0% to 8.0%')
    """
    if found.least:
        return f"≥ {say(found.low, form, signed=signed)}"
    ends = [say(end, form, signed=signed) for end in (found.low, found.high)]
    if found.mid is None:
        return " to ".join(ends)
    middle = say(found.mid, form, signed=signed)
    return middle if ends == [middle, middle] else f"{middle} ({' to '.join(ends)})"
