"""What ``tracelens doctor`` says of a recording: the structs of its ``--json``."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tracelens.results.described import says
from tracelens.results.identity import ValidityRule

SCHEMA_VERSION = "1.0"

Verdict = Literal["good", "poor", "unusable"]
#: "note": something is missing that costs little.
State = Literal["good", "note", "poor", "unusable"]


class TraceCheck(msgspec.Struct, frozen=True):
    """One thing that a recording has or lacks."""

    code: Annotated[str, says('stable: "shapes"')]
    state: State
    says: Annotated[str, says("what is there, or what is missing")]
    effect: Annotated[str, says("what the analysis loses by it; empty where it is good")]
    remedy: Annotated[str, says("the profiler argument or line that gives it; empty where it is good")]


class Diagnosis(msgspec.Struct, frozen=True):
    """Whether a recording is good enough to analyze; "poor" where a check is, or a rule is broken."""

    schema_version: str
    file: str
    verdict: Verdict
    events: Annotated[int, says("in the file, of every kind")]
    checks: list[TraceCheck]
    rules: list[ValidityRule]
