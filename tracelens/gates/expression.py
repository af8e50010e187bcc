"""What a gate is written as: ``NAME OP VALUE`` with its unit, ``shape_waste>5%``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from tracelens.errors import UsageError
from tracelens.gates.metrics import Metric

#: Unit -> what it is of, and what one of it is in the figure's own unit (a share of 1, ms, bytes).
UNITS = {
    "%": ("share", 0.01),
    "us": ("time", 1e-3),
    "µs": ("time", 1e-3),
    "μs": ("time", 1e-3),  # the Greek letter
    "ms": ("time", 1.0),
    "s": ("time", 1e3),
    "": ("count", 1.0),
    "tflop/s": ("rate", 1.0),
    "tflops": ("rate", 1.0),
    "kb": ("bytes", 1e3),
    "mb": ("bytes", 1e6),
    "gb": ("bytes", 1e9),
}
#: How a unit is written.
_UNITS = {"tflops": " TFLOP/s", "tflop/s": " TFLOP/s", "kb": "kB", "mb": "MB", "gb": "GB"}
_EXAMPLES = {"share": "5%", "time": "2.5ms", "count": "0", "rate": "400 TFLOP/s", "bytes": "100MB"}
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_LONGEST = 200
_GATE = re.compile(
    r"\s*(?P<name>[A-Za-z][A-Za-z0-9_]*)\s*(?:\[\s*(?P<choice>[^\[\]<>=]+?)\s*\])?(?:\.(?P<end>low|mid|high))?"
    r"\s*(?P<op>>=|<=|>|<)\s*(?P<value>[+\-−]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+))\s*"
    r"(?P<unit>%|[A-Za-zµμ]+(?:/s)?)?\s*"
)


@dataclass(frozen=True, slots=True)
class Gate:
    """A condition under which the build fails: this figure beyond this limit."""

    text: str  # as written, without needless blanks
    metric: Metric[Any]
    choice: str  # "" or what stood in the brackets
    end: str  # "" or low | mid | high: this number alone, not the range
    operator: str
    limit: float  # in the figure's own unit
    form: str

    def holds(self, value: float) -> bool:
        """Is the value beyond the limit?"""
        return OPERATORS[self.operator](value, self.limit)


def parse_gate(text: str, metrics: Mapping[str, Metric[Any]], *, elsewhere: Mapping[str, str] = {}) -> Gate:
    """Read one expression. ``elsewhere``: figures of something else, and of what.

    Raises UsageError, in a line that says what would be right.
    """
    shown = repr(text[:60]) if text.isprintable() else ascii(text[:60])
    match = _GATE.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        example = "regression>3%" if "regression" in metrics else "shape_waste>5%"
        raise UsageError(f'--fail-on {shown}: write NAME>VALUE, >=, < or <=, e.g. --fail-on "{example}"')
    metric = _metric(match["name"], metrics, elsewhere)
    choice = _choice(metric, match["choice"])
    form, limit = _limit(match["value"], match["unit"] or "", metric)
    end = match["end"] or ""
    unit = match["unit"] or ""
    name = metric.name + (f"[{choice}]" if choice else "") + (f".{end}" if end else "")
    written = f"{name}{match['op']}{match['value']}{_UNITS.get(unit.lower(), unit)}"
    return Gate(written, metric, choice, end, match["op"], limit, form)


def _metric(name: str, metrics: Mapping[str, Metric[Any]], elsewhere: Mapping[str, str]) -> Metric[Any]:
    found = metrics.get(name.lower())
    if found is not None:
        return found
    if name.lower() in elsewhere:
        raise UsageError(f"--fail-on {name}: {elsewhere[name.lower()]}; --list-metrics shows its figures")
    near = get_close_matches(name.lower(), metrics, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise UsageError(f"--fail-on {name[:40]}: no such figure; {hint}--list-metrics shows all")


def _choice(metric: Metric[Any], given: str | None) -> str:
    if given is None:
        if metric.choices:
            example = f"{metric.name}[{metric.choices[0]}]"
            raise UsageError(f"--fail-on {metric.name}: say which {metric.choice.lower()}, e.g. {example}")
        return ""
    if not metric.choices:
        raise UsageError(f"--fail-on {metric.name}: takes no [{given[:40]}]")
    known = {one.lower(): one for one in metric.choices}
    if given.lower() in known:
        return known[given.lower()]
    near = get_close_matches(given.lower(), known, n=3, cutoff=0.5) or list(known)[:5]
    names = ", ".join(known[one] for one in near)
    raise UsageError(f"--fail-on {metric.name}[{given[:40]}]: no such {metric.choice.lower()}; near: {names}")


def _limit(value: str, unit: str, metric: Metric[Any]) -> tuple[str, float]:
    number = float(value.replace("−", "-"))
    form, scale = UNITS.get(unit.lower(), ("", 1.0))
    if form not in metric.forms or not math.isfinite(number):
        wanted = " or ".join(f"{metric.name}>{_EXAMPLES[one]}" for one in metric.forms)
        said = (
            f"no unit {unit[:20]!r}"
            if unit and not form
            else "it needs a unit"
            if not unit
            else f"it is in {metric.units}"
        )
        if metric.forms == ("count",):
            said = "it is a number, without a unit"
        raise UsageError(f"--fail-on {metric.name}: {said}; write {wanted}")
    return form, number * scale
