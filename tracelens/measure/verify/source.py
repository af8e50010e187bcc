"""What is to be measured: a report of ``analyze --json`` or the suggestions of ``suggest --json``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from tracelens.config.changes import canonical, of_rank
from tracelens.config.model_config import NAMES, ModelConfig
from tracelens.errors import InputError, UsageError, brief
from tracelens.files import cannot_read
from tracelens.measure.verify import words
from tracelens.results import ComponentRow, Estimate, Finding, GemmRow, Report, WhatIf
from tracelens.results.advice import ShapePick
from tracelens.results.json import from_json
from tracelens.results.suggestions import FORMAT_VERSION, Suggestions
from tracelens.results.verified import Reason, Why
from tracelens.step.present import present_config
from tracelens.step.work import Work, work_of

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Asked:
    """One suggestion of the file: where it stands there, and what it says."""

    place: tuple[str | int, ...]  # of its object in the JSON: ("findings", 0)
    title: str
    changes: Mapping[str, int | str]  # empty: nothing a GPU can be asked
    why: Why  # why there are none
    predicted_ms: Estimate  # as it was predicted, also where it has been measured before
    predicted_frac: Estimate
    per_token: bool = False  # a pick: the saving is a share of the time per token
    gemms: tuple[str, ...] = ()  # rows that it names
    resize: tuple[int, int] | None = None  # a side of those rows, where it is no size of the model
    precision: tuple[str, str] | None = None  # what those rows are computed in
    rule: str = ""  # of a finding


@dataclass(frozen=True, slots=True)
class Source:
    """A file that was read, with what its suggestions start from."""

    name: str
    raw: dict[str, Any]
    kind: Literal["report", "suggestions"]
    gpu: str  # key in gpus.toml
    gpu_title: str
    device: str | None  # name of the device that was traced
    sms: int | None
    memory_gib: float | None  # that the trace reports
    now: ModelConfig  # of the whole model; what the analysis that wrote the report took it for
    layers: int | None  # of the rank that was traced
    transformer: bool
    work: Work  # empty for suggestions, which have no rows
    components: tuple[ComponentRow, ...]
    step_ms: float | None
    dtype: str | None  # told by suggestions; read off the rows of a report
    asked: tuple[Asked, ...]

    @property
    def rows(self) -> list[GemmRow]:
        """Every row, once."""
        work = self.work
        rows = [one.row for one in work.products] + [one.row for one in work.attention]
        return list({row.id: row for row in [*rows, *(row for row, _ in work.fixed)]}.values())


def read_source(path: str | Path) -> Source:
    """Read a report or suggestions. InputError says what is wrong with another file, and how to get one."""
    name = Path(path).name
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(cannot_read(path, error)) from None
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        page, packed = data.lstrip()[:1] == b"<", isinstance(error, UnicodeDecodeError)
        raise InputError(words.no_json(name, error, page=page, packed=packed)) from None
    if not isinstance(raw, dict):
        raise InputError(f"{name} is no tracelens report: {words.WRITE_ONE}")
    if "traceEvents" in raw:
        raise InputError(f"{name} is a trace: {words.WRITE_ONE}")
    try:
        if "picks" in raw and "format_version" in raw:
            return _suggestions(name, raw)
        if {"schema_version", "findings", "gemms"} <= raw.keys():
            return _report(name, raw, from_json(data))
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except (msgspec.ValidationError, ValueError) as error:
        raise InputError(f"{name} cannot be read: {brief(error, 300)}; {words.WRITE_ONE}") from None
    raise InputError(f"{name} is no tracelens report: {words.WRITE_ONE}")


def object_at(raw: dict[str, Any], place: tuple[str | int, ...]) -> dict[str, Any]:
    """The JSON object of a suggestion."""
    found: Any = raw
    for step in place:
        found = found[step]
    return found  # type: ignore[no-any-return]


# --- a report -----------------------------------------------------------------------------------------


def _report(name: str, raw: dict[str, Any], report: Report) -> Source:
    dims, gpu, step_ms = report.model, report.gpu, report.summary.step_ms.median
    now = present_config(report.gemms, dims, report.communication, report.declared)
    return Source(
        name=name,
        raw=raw,
        kind="report",
        gpu=gpu.name,
        gpu_title=gpu.title,
        device=report.trace.device,
        sms=gpu.sms,
        memory_gib=gpu.memory_gib,
        now=now,
        layers=dims.layers.value,
        transformer=dims.transformer,
        work=work_of(report.gemms, now),
        components=tuple(report.components),
        step_ms=step_ms if step_ms > 0 else None,
        dtype=None,
        asked=tuple(_asked(report, now)),
    )


def _asked(report: Report, now: ModelConfig) -> Iterator[Asked]:
    for at, finding in enumerate(report.findings):
        changes, why = _changes(finding, now)
        yield Asked(
            ("findings", at), f"{finding.rule} {finding.title}", changes, why, *_predicted(finding),
            gemms=tuple(finding.gemms),
            resize=_pair(finding.change, "dimension", int),
            precision=_pair(finding.change, "precision", str),
            rule=finding.rule,
        )  # fmt: skip
    for at, scenario in enumerate(report.what_if):
        changes = of_rank(_to(scenario.change), now)
        title, none = words.what_if(scenario.change), Reason("nothing_changes")
        yield Asked(("what_if", at), title, changes, "" if changes else none, *_predicted(scenario))
    for at, pick in enumerate(report.shape_search.picks if report.shape_search else []):
        yield _picked(("shape_search", "picks", at), pick)


def _picked(place: tuple[str | int, ...], pick: ShapePick) -> Asked:
    return Asked(place, pick.title, _to(pick.change), "", *_predicted(pick), per_token=True)


def _predicted(suggestion: Finding | WhatIf | ShapePick) -> tuple[Estimate, Estimate]:
    """The prediction: it stands in ``verified`` where an earlier run put its own figure in its place."""
    before = suggestion.verified
    if before is not None:
        return before.predicted_ms, before.predicted_frac
    return suggestion.saving_ms, suggestion.saving_frac


def _changes(finding: Finding, now: ModelConfig) -> tuple[dict[str, int | str], Why]:
    """The change as sizes of the whole model: as it was simulated, else as the finding names it."""
    simulated = finding.evidence.get("simulated")
    if simulated:
        return {
            name: value if isinstance(value, str) else int(value) for name, value in simulated.items()
        }, ""
    found: dict[str, int | str] = {}
    for name, (before, after) in finding.change.items():
        try:
            known = canonical(name)
        except UsageError:
            return {}, Reason("no_size", {"name": name})
        if not isinstance(after, int) or isinstance(after, bool) or now.get(known) != before:
            return {}, Reason("not_whole_model", {"name": name, "before": str(before), "after": str(after)})
        found[known] = after
    return found, "" if found else Reason("names_no_size")


def _pair(change: Mapping[str, Sequence[object]], name: str, kind: type[_T]) -> tuple[_T, _T] | None:
    """[from, to] of the only thing that changes, where it is ``name``."""
    if list(change) != [name]:
        return None
    before, after = change[name]
    return (before, after) if isinstance(before, kind) and isinstance(after, kind) else None


def _to(change: Mapping[str, Sequence[int | str | None]]) -> dict[str, int | str]:
    return {name: then for name, (_, then) in change.items() if then is not None}


# --- suggestions --------------------------------------------------------------------------------------


def _suggestions(name: str, raw: dict[str, Any]) -> Source:
    version = str(raw["format_version"])
    if version.partition(".")[0] != FORMAT_VERSION.partition(".")[0]:
        raise InputError(f"format {version}, this tracelens reads {FORMAT_VERSION}")
    found = msgspec.convert(raw, Suggestions)
    if found.source != "config":
        raise InputError(
            "these are suggestions for a step that was traced: verify the report of that trace, which knows"
            " its kernels"
        )
    values: dict[str, Any] = {one: size.value for one, size in found.sizes.items() if one in NAMES}
    now = ModelConfig(**values, gated=_gated(found, values.get("ffn")))
    asked = [_picked(("picks", at), pick) for at, pick in enumerate(found.picks)]
    if found.unsure is not None:
        asked.append(_picked(("unsure",), found.unsure))
    return Source(
        name=name,
        raw=raw,
        kind="suggestions",
        gpu=found.gpu,
        gpu_title=found.gpu_title,
        device=None,
        sms=None,
        memory_gib=None,
        now=now,
        layers=now.stage_layers,
        transformer=True,
        work=Work((), (), ()),
        components=(),
        step_ms=None,
        dtype=found.dtype,
        asked=tuple(asked),
    )


def _gated(found: Suggestions, ffn: int | None) -> bool:
    """Has the MLP a gate: a product of its own, or one twice as wide?"""
    shapes = {one.component: one.shapes for one in found.components}
    wide = ffn is not None and any(f"x {2 * ffn} x" in f" {shape} " for shape in shapes.get("mlp.up", []))
    return "mlp.gate" in shapes or wide


def nothing_asked(source: Source) -> InputError:
    """There is nothing to measure: that is no failure of the GPU, and is said as what it is."""
    if source.kind == "report":
        return InputError(words.no_finding(source.name, source.step_ms))
    return InputError(words.no_suggestion(source.name))
