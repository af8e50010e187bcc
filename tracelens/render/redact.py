"""Names of kernels, modules, groups and files as hashes, for a report that leaves the house.

A name has the same hash in every run, so that two redacted reports still compare. A hash does not give its
name away, but it confirms one that was guessed; with ``TRACELENS_REDACT_KEY`` in the environment only for
those who have the key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tracelens.words import COMPONENTS

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis import Analysis
    from tracelens.job.summary import RankSummary
    from tracelens.results import Report

T = TypeVar("T")

KEY = "TRACELENS_REDACT_KEY"
#: What a field of a result names.
_FIELDS = {
    "kernel": "kernel", "kernels": "kernel", "names": "kernel", "path": "file", "file": "file", "op": "op",
    "idle_in": "op", "module": "module", "group": "group",
}  # fmt: skip
#: Where such a name can stand alone; elsewhere "mlp" is a component and no module.
_NAMES = {*_FIELDS, "name", "pair", "slowest", "last"}
#: Operators of PyTorch itself say nothing of a model.
_PUBLIC_OP = re.compile(r"(?:aten|prims|c10d|nccl|cudnn|torch|autograd|profiler|record_param_comms)\b")
#: Nor do the groups that it makes itself, named or numbered (torch/distributed/distributed_c10d.py).
_PUBLIC_GROUP = re.compile(r"default_pg|undefined|\d+|")
_HASHED = re.compile(r"(?:kernel|module|file|op|group)-[0-9a-f]{12}(?:\.[a-z.]+)?")
_SUFFIX = re.compile(r"(?:\.(?:pt|trace|report|summary|json|gz))*$")
#: A name among other words is told by its letters; a kernel named "add" is not looked for in sentences.
_TELLING = re.compile(r"`.*`|(?=.*(?:[_.:<\d]|[a-z][A-Z]|[A-Z]{2})).{6,}", re.DOTALL)


def redact(value: T, *, kernels: Iterable[str] = (), modules: Iterable[str] = ()) -> T:
    """A report, comparison or job with hashed names, in its fields and in its sentences.

    ``kernels`` and ``modules`` are names that no field holds but a sentence can.
    """
    plain = msgspec.to_builtins(value)
    names = {name: hashed("kernel", name) for name in kernels} | {name: _module(name) for name in modules}
    for kind, name in _named(plain):
        names[name] = _HIDES.get(kind, partial(hashed, kind))(name)
        if kind == "op":  # the verdict quotes it
            names[f"`{name}`"] = f"`{names[name]}`"
        if kind == "file":
            names.setdefault(_SUFFIX.sub("", name), hashed(kind, name))
    names = {name: new for name, new in names.items() if name and new != name and name not in COMPONENTS}
    text = msgspec.json.encode(plain).decode()
    told = [
        name for name in names if _TELLING.match(name) and msgspec.json.encode(name).decode()[1:-1] in text
    ]
    found = _replaced(plain, names, sorted(told, key=len, reverse=True), "")
    return msgspec.convert(found, type=type(value))


def redact_report(analysis: Analysis) -> Report:
    """The report of an analysis; where its trace is there, sentences are searched for all of its names."""
    if analysis.trace is None or analysis.attribution is None:
        return redact(analysis.report)
    names = (analysis.trace.symbols[int(code)] for code in set(analysis.trace.kernels.name.tolist()))
    return redact(analysis.report, kernels=names, modules=analysis.attribution.modules)


def redact_summary(summary: RankSummary) -> RankSummary:
    """The summary of a rank, and the report in it."""
    from tracelens.job.saved import unpack_report
    from tracelens.job.summary import packed_report

    report = packed_report(redact(unpack_report(summary)))
    bare = redact(msgspec.structs.replace(summary, report=b""))
    return msgspec.structs.replace(bare, report=report)


def redact_kernels(frame: pd.DataFrame) -> pd.DataFrame:
    """The per-kernel table with hashed names of kernels, modules and operators other than PyTorch's."""
    made: dict[str, Callable[[str], str]] = {
        "name": lambda name: hashed("kernel", name),
        "module": _module,
        "op": _op,
    }
    columns = {name: frame[name].map(_text(make)).astype(frame[name].dtype) for name, make in made.items()}
    return frame.assign(**columns)


def _text(make: Callable[[str], str]) -> Callable[[Any], Any]:
    return lambda cell: make(cell) if isinstance(cell, str) else cell


def hashed(kind: str, name: str) -> str:
    """The hash of a name, the same each time; a file keeps its suffix, and a hash is not hashed again.

    >>> hashed("file", "my_model.json.gz") == hashed("file", "my_model.json.gz")
    True
    """
    if not name or _HASHED.fullmatch(name):
        return name
    suffix = _SUFFIX.search(name) if kind == "file" else None
    return f"{kind}-{_digest(name)}{suffix[0] if suffix else ''}"


def _module(path: str) -> str:
    """Part by part, with the numbers: which layer of which stack a module is stays known."""
    return ".".join(_part(part) for part in path.split("."))


def _part(part: str) -> str:
    if part.isdigit() or _HASHED.fullmatch(part.partition("_")[0]):
        return part
    name, _, number = part.rpartition("_")
    if name and number.isdigit():
        return f"{hashed('module', name)}_{number}"
    return hashed("module", part)


def _op(name: str) -> str:
    return name if _PUBLIC_OP.match(name) else hashed("op", name)


def _group(name: str) -> str:
    return name if _PUBLIC_GROUP.fullmatch(name) else hashed("group", name)


#: What is no name, or is more than one.
_HIDES: dict[str, Callable[[str], str]] = {"module": _module, "op": _op, "group": _group}


@cache
def _digest(name: str) -> str:
    key = os.environ.get(KEY, "").encode()
    key = key if len(key) <= blake2b.MAX_KEY_SIZE else blake2b(key).digest()
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=6, key=key).hexdigest()


def _named(value: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """Kind and name of each field that holds one."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _named(item, key)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _named(item, field)
    elif isinstance(value, str) and field in _FIELDS:
        yield _FIELDS[field], value


def _replaced(value: Any, names: dict[str, str], told: list[str], field: str) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(item, names, told, key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(item, names, told, field) for item in value]
    if not isinstance(value, str):
        return value
    if field in _NAMES:
        return names.get(value, value)
    for name in told:
        value = value.replace(name, names[name])
    return value
