"""Keeps every answer and compares them by value: what a refactoring must not change.

``python -m benchmarks.answers save DIR [--only TEXT]`` analyzes the samples, the traces beside the checkout
and one step of every family of the zoo, and searches the configurations of the tests on four GPUs;
``python -m benchmarks.answers compare BEFORE AFTER [--most N] [--ignore FIELD]`` prints every value that is
not the same, and exits with 1 where one is not.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).parents[1]
GPUS = ("a100-sxm-80gb", "h100-sxm", "h200", "b200")
#: Floats that differ by less are the same: the order of a sum may change.
_CLOSE = 1e-9


def traces() -> dict[str, Path]:
    """Every trace at hand by a short name."""
    shared = ROOT.parent / "shared" / "traces"
    found = [*(ROOT / "sample_traces").glob("*.json.gz"), *shared.rglob("*.json.gz")]
    return {f"{path.parent.name}.{path.name.partition('.')[0]}": path for path in sorted(found)}


def _analyzed(name: str, path: Path, into: Path) -> None:
    from tracelens.api import analyze
    from tracelens.errors import TracelensError
    from tracelens.results.json import to_json

    try:
        said = to_json(analyze(path).report)
    except TracelensError as error:
        said = json.dumps({"error": str(error)}).encode()
    (into / f"{name}.json").write_bytes(said)


def _zoo(family: str, into: Path) -> None:
    from tests.zoo import ZooOptions, record

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{family}.json"
        path.write_text(record(family, ZooOptions(names="none")).text())
        _analyzed(f"zoo.{family}", path, into)


def _suggested(into: Path) -> None:
    from tests.advice import configs
    from tracelens.errors import TracelensError
    from tracelens.suggestions import suggest

    known = {
        name: value for name, value in vars(configs).items() if name.isupper() and isinstance(value, dict)
    }
    for name, config in known.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(json.dumps(config))
            for gpu in GPUS:
                try:
                    said = msgspec.json.encode(asdict(suggest(path, gpu=gpu)))
                except TracelensError as error:
                    said = json.dumps({"error": str(error)}).encode()
                (into / f"suggest.{name.lower()}.{gpu}.json").write_bytes(said)


def save(into: Path, only: str) -> None:
    """Write one JSON file per subject whose name holds ``only``."""
    from tests.zoo import FAMILIES

    into.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as pool:
        work = [pool.submit(_analyzed, name, path, into) for name, path in traces().items() if only in name]
        work += [pool.submit(_zoo, family, into) for family in FAMILIES if only in f"zoo.{family}"]
        if only in "suggest":
            work.append(pool.submit(_suggested, into))
        for one in work:
            one.result()


def differences(before: Any, after: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, before, after) of every value that is not the same."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before | after:
            yield from differences(before.get(key), after.get(key), f"{where}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for at, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{where}[{at}]")
    elif isinstance(before, float) and isinstance(after, float):
        if not math.isclose(before, after, rel_tol=_CLOSE, abs_tol=_CLOSE):
            yield where, before, after
    elif before != after:
        yield where, before, after


def _answer(path: Path) -> Any:
    return json.loads(path.read_bytes()) if path.is_file() else None


def compare(before: Path, after: Path, *, most: int, ignore: list[str]) -> int:
    """Print the differences; 1 where there is one."""
    names = sorted({path.name for folder in (before, after) for path in folder.glob("*.json")})
    count = 0
    for name in names:
        old, new = (_answer(folder / name) for folder in (before, after))
        found = [one for one in differences(old, new) if not any(field in one[0] for field in ignore)]
        count += len(found)
        if found:
            print(f"{name}: {len(found)}")
        for where, was, now in found[:most]:
            print(f"  {where}: {str(was)[:100]} -> {str(now)[:100]}")
    print(f"{count} differences in {len(names)} answers")
    return int(count > 0)


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    saving = commands.add_parser("save")
    saving.add_argument("folder", type=Path)
    saving.add_argument(
        "--only", default="", help="subjects whose name holds this; suggest for all configurations"
    )
    one = commands.add_parser("compare")
    one.add_argument("before", type=Path)
    one.add_argument("after", type=Path)
    one.add_argument("--most", type=int, default=5, help="printed of each answer")
    one.add_argument("--ignore", action="append", default=[], help="paths that hold this")
    given = parser.parse_args()
    if given.command == "save":
        save(given.folder, given.only)
        return 0
    return compare(given.before, given.after, most=given.most, ignore=given.ignore)


if __name__ == "__main__":
    sys.exit(main())
