"""What is to be measured: a report of ``analyze --json`` or the suggestions of ``suggest --json``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from tracelens.config.changes import canonical, of_rank
from tracelens.config.model_config import NAMES, ModelConfig
from tracelens.errors import InputError, UsageError
from tracelens.files import cannot_read
from tracelens.measure.verify import words
from tracelens.results import (
    SCHEMA_VERSION,
    CommunicationRow,
    ComponentRow,
    Estimate,
    GemmRow,
    Known,
    Lost,
    ModelDims,
)
from tracelens.results.row_sizes import AttentionDims, Groups
from tracelens.results.verified import Reason, Why
from tracelens.step.present import present_config
from tracelens.step.work import Work, work_of

_T = TypeVar("_T")
#: Of ``tracelens suggest --json``.
_SUGGESTIONS_VERSION = "1"
_DIMENSIONS = tuple(one.name for one in fields(ModelDims) if one.name != "found")


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
            return _report(name, raw)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InputError(
            f"{name} is a damaged report ({type(error).__name__}: {error}): {words.WRITE_ONE}"
        ) from None
    raise InputError(f"{name} is no tracelens report: {words.WRITE_ONE}")


def object_at(raw: dict[str, Any], place: tuple[str | int, ...]) -> dict[str, Any]:
    """The JSON object of a suggestion."""
    found: Any = raw
    for step in place:
        found = found[step]
    return found  # type: ignore[no-any-return]


# --- a report -----------------------------------------------------------------------------------------


def _report(name: str, raw: dict[str, Any]) -> Source:
    version = str(raw["schema_version"])
    if version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise InputError(
            f"{name} has schema {version}, this tracelens reads {SCHEMA_VERSION}: {words.WRITE_ONE}"
        )
    rows = [_row(one) for one in raw["gemms"]]
    dims = _dims(raw["model"])
    communication = [_made(CommunicationRow, one) for one in raw.get("communication", [])]
    now = present_config(rows, dims, communication, raw.get("declared", {}))
    gpu, summary = raw["gpu"], raw["summary"]
    step_ms = summary["step_ms"]["median"]
    return Source(
        name=name,
        raw=raw,
        kind="report",
        gpu=str(gpu["name"]),
        gpu_title=str(gpu["title"]),
        device=raw["trace"].get("device"),
        sms=gpu.get("sms"),
        memory_gib=gpu.get("memory_gib"),
        now=now,
        layers=dims.layers.value,
        transformer=dims.transformer,
        work=work_of(rows, now),
        components=tuple(_made(ComponentRow, one) for one in raw["components"]),
        step_ms=step_ms if step_ms and step_ms > 0 else None,
        dtype=None,
        asked=tuple(_asked(raw, now)),
    )


def _row(data: Mapping[str, Any]) -> GemmRow:
    attention, groups = data.get("attention"), data.get("groups")
    return replace(
        _made(GemmRow, data),
        lost_ms=Lost(),
        attention=_made(AttentionDims, attention) if attention else None,
        groups=_made(Groups, groups) if groups else None,
    )


def _made(kind: type[_T], data: Mapping[str, Any]) -> _T:
    """A dataclass of its plain fields; those of a later version are left out."""
    return kind(**{one.name: data[one.name] for one in fields(kind) if one.name in data})  # type: ignore[arg-type]


def _dims(data: Mapping[str, Any]) -> ModelDims:
    known = {name: Known(data[name]["value"], str(data[name].get("source", ""))) for name in _DIMENSIONS}
    return ModelDims(found=data["found"], **known)


def _asked(raw: dict[str, Any], now: ModelConfig) -> Iterator[Asked]:
    for at, finding in enumerate(raw["findings"]):
        changes, why = _changes(finding, now)
        yield Asked(
            ("findings", at), f"{finding['rule']} {finding['title']}", changes, why, *_predicted(finding),
            gemms=tuple(finding["gemms"]),
            resize=_pair(finding["change"], "dimension", int),
            precision=_pair(finding["change"], "precision", str),
            rule=str(finding["rule"]),
        )  # fmt: skip
    for at, scenario in enumerate(raw.get("what_if", [])):
        changes = of_rank(_to(scenario["change"]), now)
        title, none = words.what_if(scenario["change"]), Reason("nothing_changes")
        yield Asked(("what_if", at), title, changes, "" if changes else none, *_predicted(scenario))
    search = raw.get("shape_search")
    if isinstance(search, dict):
        for at, pick in enumerate(search.get("picks", [])):
            place = ("shape_search", "picks", at)
            yield Asked(place, str(pick["title"]), _to(pick["change"]), "", *_predicted(pick), per_token=True)


def _predicted(suggestion: Mapping[str, Any]) -> tuple[Estimate, Estimate]:
    """The prediction: it stands in ``verified`` where an earlier run put its own figure in its place."""
    before = suggestion.get("verified")
    if before:
        return _made(Estimate, before["predicted_ms"]), _made(Estimate, before["predicted_frac"])
    return _made(Estimate, suggestion["saving_ms"]), _made(Estimate, suggestion["saving_frac"])


def _changes(finding: Mapping[str, Any], now: ModelConfig) -> tuple[dict[str, int | str], Why]:
    """The change as sizes of the whole model: as it was simulated, else as the finding names it."""
    simulated = finding["evidence"].get("simulated")
    if simulated:
        return {str(name): _size(value) for name, value in simulated.items()}, ""
    found: dict[str, int | str] = {}
    for name, (before, after) in finding["change"].items():
        try:
            known = canonical(name)
        except UsageError:
            return {}, Reason("no_size", {"name": name})
        if not isinstance(after, int) or isinstance(after, bool) or now.get(known) != before:
            return {}, Reason("not_whole_model", {"name": name, "before": str(before), "after": str(after)})
        found[known] = after
    return found, "" if found else Reason("names_no_size")


def _pair(change: Mapping[str, Any], name: str, kind: type[_T]) -> tuple[_T, _T] | None:
    """[from, to] of the only thing that changes, where it is ``name``."""
    if list(change) != [name]:
        return None
    before, after = change[name]
    return (before, after) if type(before) is kind and type(after) is kind else None


def _to(change: Mapping[str, Any]) -> dict[str, int | str]:
    return {name: _size(then) for name, (_, then) in change.items() if then is not None}


def _size(value: object) -> int | str:
    """A size, or the name of a type."""
    return value if isinstance(value, str) else int(value)  # type: ignore[call-overload]


# --- suggestions --------------------------------------------------------------------------------------


def _suggestions(name: str, raw: dict[str, Any]) -> Source:
    version = str(raw["format_version"])
    if version.partition(".")[0] != _SUGGESTIONS_VERSION:
        raise InputError(f"{name} has format {version}, this tracelens reads {_SUGGESTIONS_VERSION}.x")
    if raw.get("source", "config") in ("trace", "report"):
        raise InputError(
            f"{name} are suggestions for a step that was traced: verify the report of that trace, which knows"
            f" its kernels; {words.WRITE_ONE}"
        )
    values = {one: raw["sizes"].get(one, {}).get("value") for one in NAMES if one in raw["sizes"]}
    now = ModelConfig(**values, gated=_gated(raw, values.get("ffn")))
    picks = [(("picks", at), pick) for at, pick in enumerate(raw["picks"])]
    if raw.get("unsure"):
        picks.append((("unsure",), raw["unsure"]))  # type: ignore[arg-type]
    return Source(
        name=name,
        raw=raw,
        kind="suggestions",
        gpu=str(raw["gpu"]),
        gpu_title=str(raw["gpu_title"]),
        device=None,
        sms=None,
        memory_gib=None,
        now=now,
        layers=now.stage_layers,
        transformer=True,
        work=Work((), (), ()),
        components=(),
        step_ms=None,
        dtype=str(raw["dtype"]),
        asked=tuple(
            Asked(place, str(pick["title"]), _to(pick["change"]), "", *_predicted(pick), per_token=True)
            for place, pick in picks
        ),
    )


def _gated(raw: Mapping[str, Any], ffn: int | None) -> bool:
    """Has the MLP a gate: a product of its own, or one twice as wide?"""
    components = {one["component"]: one["shapes"] for one in raw["components"]}
    wide = ffn is not None and any(f"x {2 * ffn} x" in f" {shape} " for shape in components.get("mlp.up", []))
    return "mlp.gate" in components or wide


def nothing_asked(source: Source) -> InputError:
    """There is nothing to measure: that is no failure of the GPU, and is said as what it is."""
    if source.kind == "report":
        return InputError(words.no_finding(source.name, source.step_ms))
    return InputError(words.no_suggestion(source.name))
