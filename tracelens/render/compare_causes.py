"""Where a difference of the step comes from, in words: a line each, the smallest together."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, fsum, log10

from tracelens.comparison.spelling import signed_pct
from tracelens.results.comparison import Cause, CauseCode, Comparison
from tracelens.results.folders import FolderComparison

#: Of the step before: causes smaller than this stand in one line.
_SMALL = 0.001
_WORDS: dict[CauseCode, str] = {
    "idle": "idle: the GPU waits for the CPU",
    "exposed_communication": "exposed communication",
    "gemms_alike": "all GEMMs alike: clock, power, library or another GPU, not shapes",
    "gemms_single": "GEMMs of the same shape and kernel",
    "gemms_beside": "GEMMs beside other streams: SMs and bandwidth that those take",
    "gemm_shapes": "GEMMs of another shape or kernel",
    "other_kernels": "other kernels",
    "overlap": "overlap of compute kernels on several streams",
    "across_pairs": "the whole beside its pairs: a job's step is its slowest rank's, a run's its median",
    "mean_to_median": "from means to medians: causes are means over the steps, the verdict has medians",
}
_HIDDEN = "GEMMs of another kernel, of another or an unknown shape"
ALL_OF_IT = "in all: what the medians differ by"
REST = "the rest, each below 0.1% of the time before"


@dataclass(frozen=True, slots=True)
class CauseRow:
    """A cause as it is shown."""

    diff_ms: float
    time: str
    said: str


def cause_rows(found: Comparison | FolderComparison) -> list[CauseRow]:
    """The causes by size; they add up to the step's difference. Nothing where there is no step to compare."""
    if found.step is None:
        return []
    least = _SMALL * found.step.before.median
    large = [one for one in found.causes if abs(one.diff_ms) >= least]
    small = [one for one in found.causes if abs(one.diff_ms) < least]
    told = [(one.diff_ms, _said(one, found)) for one in (large if len(small) > 1 else found.causes)]
    if len(small) > 1:
        told.append((fsum(one.diff_ms for one in small), REST))
    return [CauseRow(ms, _time(ms, least), said) for ms, said in told]


def cause_source(found: Comparison | FolderComparison) -> str:
    """What the causes are of: "" for two files."""
    if isinstance(found, Comparison) or len(found.pairs) < 2:
        return ""
    if found.causes_of is None:
        return "means over the pairs"
    return f"on {found.causes_of}, which changed as the job did and waits least"


def cause_total(found: Comparison | FolderComparison) -> str:
    """The step's difference, in the digits of its causes."""
    if found.step is None:
        return ""
    return _time(found.step.diff_ms, _SMALL * found.step.before.median)


def _time(ms: float, least_ms: float) -> str:
    """All in one unit with as many digits, so that a reader can add them up.

    >>> _time(-0.268, 0.06), _time(0.001, 0.06)
    ('−0.27 ms', '0.00 ms')
    """
    places = max(0, ceil(-log10(least_ms))) if least_ms else 3
    said = f"{abs(ms):,.{places}f} ms"
    sign = "" if not float(f"{ms:.{places}f}") else "+" if ms > 0 else "−"
    return sign + said


def _said(one: Cause, found: Comparison | FolderComparison) -> str:
    if one.code == "gemm_shapes" and any(row.state == "shape_unknown" for row in getattr(found, "gemms", ())):
        return _HIDDEN
    share = f" ({signed_pct(one.frac)} per call)" if one.frac is not None else ""
    head, colon, tail = _WORDS[one.code].partition(":")
    return f"{head}{share}{colon}{tail}"
