"""``python -m benchmarks.gpu.unpack DIR``: puts what ``collect --pack DIR`` brought home in its place.

A result is not replaced by an older one of the same version, and nothing of a dry run gets into the record.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from benchmarks.gpu.bundle import read_members
from benchmarks.gpu.collect import RESULTS, TRACES
from benchmarks.gpu.store import SCHEMA, write_bytes


def unpack(folder: Path, *, results: Path = RESULTS, traces: Path = TRACES) -> list[str]:
    """Everything in the archives of ``folder``; a line for each file. ValueError for what is no bundle."""
    archives = sorted(folder.glob("collected-*.tar"))
    if not archives:
        raise ValueError(f"{folder.name} holds no collected-*.tar")
    members = {name: data for path in archives for name, data in read_members(path)}
    lines = []
    for name, data in sorted(members.items()):
        target = (results if name.parts[0] == "results" else traces).joinpath(*name.parts[1:])
        why = _unwanted(name, data, target)
        if why is None:
            write_bytes(target, data)
        lines.append(f"{name}: {why or f'{len(data) / 1e3:.0f} kB'}")
        if why is None and _is_result(name):
            progress = target.with_name(target.name.removesuffix(".json") + ".progress.jsonl")
            if not any(other.name == progress.name for other in members):
                progress.unlink(missing_ok=True)  # it grew into the result that is here now
    return lines


def _is_result(name: PurePosixPath) -> bool:
    return name.parts[0] == "results" and name.suffix == ".json"


def _unwanted(name: PurePosixPath, data: bytes, target: Path) -> str | None:
    """Why a file stays out, or None."""
    if name.parts[:2] == ("results", "cpu") or name.name.startswith("cpu_"):
        return "of a dry run: left out"
    if not _is_result(name):
        return None
    new, old = _read(data), _read(target.read_bytes()) if target.is_file() else {}
    if new.get("schema") != SCHEMA:
        return "damaged: left out"
    if new.get("dry_run") is not False:
        return "of a dry run: left out"
    if old and old.get("fingerprint") == new.get("fingerprint") and old.get("date", "") > new.get("date", ""):
        return "older than the one that is here: left out"
    return None


def _read(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.unpack", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the collected-*.tar files lie")
    options = parser.parse_args(arguments)
    try:
        lines = unpack(options.folder)
    except (ValueError, OSError) as error:
        print(f"unpack: {error}", file=sys.stderr)
        return 3
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
