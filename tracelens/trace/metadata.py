"""What a trace says about itself: devices, versions, ranks. Never its environment variables."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tracelens.results.step import STEP_CLOCKS, StepClock
from tracelens.trace import words
from tracelens.trace.collectives import MOST_RANKS
from tracelens.trace.decode import NOT_JSON
from tracelens.trace.door import Door

_SECRET = re.compile(r"^(env|environ|environment|environment_variables|env_vars|os_environ)$", re.IGNORECASE)
_WHITESPACE = b", \t\r\n"


def read_metadata(head: bytes, tail: bytes, door: Door | None = None) -> tuple[dict[str, Any], list[str]]:
    """The top-level keys before and behind the events, and what could not be read of them.

    ``door`` counts the values that were left out.
    """
    metadata: dict[str, Any] = {}
    trouble: list[str] = []
    for text, where in (
        (head.rstrip(_WHITESPACE) + b"}" if head else b"", "before"),
        (b"{" + tail.strip(_WHITESPACE) if tail.strip(_WHITESPACE) else b"", "behind"),
    ):
        if not text:
            continue
        found = _decode(text)
        if found is None:
            trouble.append(words.no_metadata(where))
            continue
        metadata.update(found)
    return _without_environment((door or Door()).value(metadata)), trouble


def _decode(text: bytes) -> dict[str, Any] | None:
    """An object; one that is not strict JSON (NaN, invalid UTF-8) is read with patience."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except NOT_JSON:
        pass
    try:
        found = json.loads(text.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _without_environment(value: Any) -> Any:
    """Environment dumps hold keys and host names: they are dropped at the door, wherever they stand."""
    if isinstance(value, list):
        return [_without_environment(inner) for inner in value]
    if isinstance(value, dict):
        return {
            key: _without_environment(inner) for key, inner in value.items() if not _SECRET.match(str(key))
        }
    return value


def device_properties(metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The devices a trace lists; an empty list where it lists none. Some exports write them as text."""
    value = metadata.get("deviceProperties", metadata.get("computeProperties"))
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value.encode())
        except NOT_JSON:
            try:
                value = ast.literal_eval(value)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                return []
        value = Door().value(value)
    if isinstance(value, dict):
        value = [value]
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def rank_and_world(metadata: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Rank and world size from ``distributedInfo``; None where the trace does not say.

    A capture says so itself, and PyTorch only where there are process groups: one GPU has no rank.
    """
    info, own = metadata.get("distributedInfo"), metadata.get("tracelens")
    if not isinstance(info, dict):
        parallel = own.get("parallel") if isinstance(own, dict) else None
        alone = isinstance(parallel, dict) and parallel.get("world_size") == 1
        return None, 1 if alone else None
    rank, world = info.get("rank"), info.get("world_size")
    return (
        rank if type(rank) is int and 0 <= rank < MOST_RANKS else None,
        world if type(world) is int and 0 < world <= MOST_RANKS else None,
    )


def process_groups(metadata: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Description, size and ranks of each process group by its name, as far as the file's head lists them."""
    info = metadata.get("distributedInfo")
    listed = info.get("pg_config") if isinstance(info, dict) else None
    groups: dict[str, dict[str, Any]] = {}
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("pg_name"), str):
            ranks, size, text = entry.get("ranks"), entry.get("pg_size"), entry.get("pg_desc")
            groups[entry["pg_name"]] = {
                "description": text if isinstance(text, str) and text else None,
                "size": size if type(size) is int and 0 < size <= MOST_RANKS else None,
                "ranks": Door().ranks(ranks) or None,
            }
    return groups


def cuda_version(metadata: Mapping[str, Any]) -> str | None:
    """``12.6`` from CUDA's 12060."""
    value = metadata.get("cuda_runtime_version")
    if type(value) is int and 1000 < value < 1_000_000:
        return f"{value // 1000}.{value % 1000 // 10}"
    return None


def torch_version(metadata: Mapping[str, Any]) -> str | None:
    """The PyTorch version, where a trace states it (torch.profiler itself does not)."""
    for key in ("torch_version", "pytorch_version"):
        if isinstance(metadata.get(key), str):
            return str(metadata[key])
    inner = metadata.get("tracelens")
    if isinstance(inner, dict) and isinstance(inner.get("torch_version"), str):
        return str(inner["torch_version"])
    return None


def device_name(metadata: Mapping[str, Any]) -> str | None:
    """The name of the first device; its maker's, where only HIP's version is there."""
    names = (entry.get("name") for entry in device_properties(metadata))
    unnamed = "AMD GPU" if "hip_runtime_version" in metadata else None
    return next((name for name in names if isinstance(name, str) and name), unnamed)


@dataclass(frozen=True, slots=True)
class UnprofiledTimes:
    """Step times in ms that `tracelens capture` took without the profiler; ``why`` some are missing."""

    before_ms: tuple[float, ...] = ()
    after_ms: tuple[float, ...] = ()
    clock: StepClock | None = None
    why: str | None = None


def unprofiled_times(metadata: Mapping[str, Any]) -> UnprofiledTimes:
    """The steps timed before and after the window: key ``tracelens``, part ``time``."""
    ours = metadata.get("tracelens")
    if not isinstance(ours, dict):
        return UnprofiledTimes(why=words.NO_TIMES)
    part = ours.get("time")
    before, after = (
        _times(part.get(key)) if isinstance(part, dict) else None for key in ("before_ms", "after_ms")
    )
    if before is None or after is None:
        return UnprofiledTimes(why=words.NO_READABLE_TIMES)
    window = ours.get("window")
    cut_short = isinstance(window, dict) and "ended" in window
    why = words.untimed(before=bool(before), after=bool(after), cut_short=cut_short)
    clock = part.get("clock") if isinstance(part, dict) else None
    known = next((one for one in STEP_CLOCKS if one == clock), None)
    return UnprofiledTimes(before, after, known, why)


def _times(value: Any) -> tuple[float, ...] | None:
    """Positive finite numbers, or None where the value is anything else."""
    if not isinstance(value, list):
        return None
    numbers = [float(one) for one in value if type(one) in (int, float)]
    if len(numbers) != len(value) or not all(math.isfinite(one) and one > 0 for one in numbers):
        return None
    return tuple(numbers)
