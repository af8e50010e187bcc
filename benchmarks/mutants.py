"""Would a test notice? Single faults planted in the code, and how many of them the tests of the room find.

``python -m benchmarks.mutants [ROOM...] [--mutants 80] [--seed 0] [--keep]``: so many faults (another
comparison, operator, constant, a branch turned round) drawn over all modules of a room, each in a copy of the
checkout, against the room's fast tests: the files that call the function with the fault, quickest first.
All files look for a fault outside of functions. Survivors are printed with their lines: one that changes
a figure which a user sees deserves a test. One that changes nothing stands with the reason in
``results/mutants.md`` and is not drawn; ``--keep`` adds the row to the table there.
"""

from __future__ import annotations

import argparse
import ast
import math
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

import hypothesis  # noqa: F401  # with numpy most of what a run of the tests imports
import numpy as np  # noqa: F401
import pytest

ROOT = Path(__file__).resolve().parents[1]
_FOUND = ROOT / "benchmarks" / "results" / "mutants.md"
#: Room -> the tests that are to find its faults.
ROOMS = {
    "gemm": [
        "tests/gemm",
        "tests/measure/test_gemm_calls.py",
        "tests/accounting/test_lost_rows.py",
        "tests/accounting/test_rates.py",
        "tests/render/test_render_gemm.py",
    ],
    "step": [
        "tests/advice",
        "tests/test_savings.py",
        "tests/render/test_render_search.py",
        "tests/cli/test_cli_suggest.py",
    ],
    "rules": ["tests/advice"],
    "accounting": ["tests/accounting", "tests/test_one_figure.py"],
    "comparison": ["tests/compare"],
}
_COPIED = (
    "tracelens", "tests", "templates", "docs", "sample_traces", "benchmarks", "pyproject.toml", "README.md",
)  # fmt: skip
_HANGS_S = 600
#: Files that are run before the others are imported, which takes longer than most of their tests.
_FIRST = 6
_HEAD = "| room | seed | faults | found | |\n|---|---|---|---|---|\n"
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One fault: the line it stands in, as it was and as it is."""

    line: str
    before: str
    after: str
    source: str
    function: int
    """First line of the function it stands in, 0 outside of functions."""

    @property
    def told(self) -> str:
        return f"{self.line}: {self.before} -> {self.after}"


def mutant(source: str, number: int) -> Mutant:
    """A single fault of a module, by its number from 0 on."""
    tree = ast.parse(source)
    node = next(node for at, node in enumerate(_places(tree)) if at == number)
    statement = ast.unparse(node)
    around = [
        min([function.lineno, *(one.lineno for one in function.decorator_list)])
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and any(node in ast.walk(inner) for inner in function.body)
    ]
    function = max(around, default=0)
    _change(node)
    line = source.splitlines()[node.lineno - 1].strip()
    return Mutant(line, statement, ast.unparse(node), ast.unparse(tree), function)


def drawn(paths: Sequence[Path], package: Path, many: int, seed: int) -> Iterator[tuple[Path, Mutant]]:
    """So many faults of these modules, drawn by chance; none that somebody found to change nothing."""
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    every = [
        (path, at) for path, text in texts.items() for at in range(sum(1 for _ in _places(ast.parse(text))))
    ]
    random.Random(seed).shuffle(every)
    for path, number in every:
        if not many:
            return
        one = mutant(texts[path], number)
        if one.told not in same(str(path.relative_to(package))):
            many -= 1
            yield path, one


def same(module: str) -> set[str]:
    """The faults of a module that change nothing, as somebody found and wrote down."""
    return set(re.findall(rf"^\| `{re.escape(module)}: (.+)` \|", _FOUND.read_text(encoding="utf-8"), re.M))


def _places(tree: ast.AST) -> Iterator[ast.expr]:
    """Expressions that can be changed; no decorator's arguments (frozen, a cache's size), no ``strict``."""
    aside = [one for node in ast.walk(tree) for one in getattr(node, "decorator_list", ())]
    aside += [node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "strict"]
    beside = {id(inner) for one in aside for inner in ast.walk(one)}
    for node in ast.walk(tree):
        if id(node) in beside:
            continue
        if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
            yield node
        elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            if not isinstance(node.left, ast.Constant) or not isinstance(node.left.value, str):
                yield node
        elif isinstance(node, ast.BoolOp | ast.IfExp) or (
            isinstance(node, ast.Constant) and type(node.value) in (int, float, bool)
        ):
            yield node


def _change(node: ast.expr) -> None:
    if isinstance(node, ast.Compare):
        node.ops[0] = _COMPARISONS[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp):
        node.op = _OPERATORS[type(node.op)]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.IfExp):
        node.body, node.orelse = node.orelse, node.body
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        node.value += 1


def passes(copy: Path, files: Sequence[str], limit_s: float, calls: Path | None = None) -> bool:
    """Do the fast tests of these files pass in this copy, within so many seconds?

    In a fork of this process, which has imported what no fault changes. ``calls`` gets a line for each
    function that was called: its file and first line.
    """
    child = os.fork()
    if not child:
        signal.alarm(math.ceil(limit_s))
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        os.chdir(copy)
        sys.path[:] = [str(copy), *(path for path in sys.path if Path(path or ".").resolve() != ROOT)]
        for name in [name for name in sys.modules if name.split(".")[0] in ("tracelens", "tests")]:
            del sys.modules[name]
        called: set[CodeType] = set()
        if calls:
            threading.settrace(lambda frame, *_: called.add(frame.f_code))
            sys.settrace(lambda frame, *_: called.add(frame.f_code))
        how = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--assert", "plain"]
        code = int(pytest.main([*how, *files]))
        sys.settrace(None)
        if calls:
            calls.write_text("\n".join(f"{one.co_filename}:{one.co_firstlineno}" for one in called))
        os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def callers(copy: Path, tests: Sequence[str]) -> dict[str, tuple[float, set[str]]]:
    """Test files, quickest first: seconds, and the functions that each calls, as ``passes`` writes them."""
    paths = [copy / test for test in tests]
    files = [
        file for path in paths for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])
    ]
    seen, calls = {}, copy.parent / "calls"
    for file in map(str, files):
        began = time.perf_counter()
        if passes(copy, [file], _HANGS_S, calls):
            seen[file] = time.perf_counter() - began, set(calls.read_text().splitlines())
        else:
            print(f"left out, its fast tests fail or there are none: {file}", file=sys.stderr)
    return {file: seen[file] for file in sorted(seen, key=lambda file: seen[file][0])}


def _limit_s(batch: Sequence[tuple[str, float]]) -> float:
    return 60 + 5 * sum(took for _, took in batch)


def copied(folder: Path) -> Path:
    """A copy of the checkout, with what lies beside it."""
    copy = folder / "checkout"
    copy.mkdir()
    for name in _COPIED:
        of = ROOT / name
        if of.is_dir():
            shutil.copytree(of, copy / name, ignore=shutil.ignore_patterns("__pycache__", "_build"))
        elif of.is_file():
            shutil.copy(of, copy / name)
    if (ROOT.parent / "shared").exists():
        (folder / "shared").symlink_to(ROOT.parent / "shared")
    return copy


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant faults and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__)
    parser.add_argument("rooms", nargs="*", default=list(ROOMS), help="rooms, or modules as gemm/lost.py")
    parser.add_argument("--mutants", type=int, default=80, help="per room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="add the rows to results/mutants.md")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        for room in options.rooms:
            row = measured(copy, room, options.mutants, options.seed)
            print(f"{_HEAD}{row}", flush=True)
            if options.keep:
                kept = _FOUND.read_text(encoding="utf-8")
                _FOUND.write_text(kept.replace(_HEAD, _HEAD + row), encoding="utf-8")
    return 0


def measured(copy: Path, room: str, many: int, seed: int) -> str:
    """A row of the table; each fault that no test finds is printed as soon as it is known."""
    package = copy / "tracelens"
    at = package / room
    modules = sorted(at.rglob("*.py")) if at.is_dir() else [at]
    by_file = callers(copy, ROOMS[Path(room).parts[0]])
    planted = found = 0
    for path, one in drawn(modules, package, many, seed):
        source, planted = path.read_text(encoding="utf-8"), planted + 1
        path.write_text(one.source, encoding="utf-8")
        os.utime(path, (planted, planted))  # byte code of the fault before is none of this one's
        place = f"{path}:{one.function}"
        run = [(file, took) for file, (took, calls) in by_file.items() if not one.function or place in calls]
        batches = [batch for batch in (run[:_FIRST], run[_FIRST:]) if batch]
        if not all(passes(copy, [file for file, _ in batch], _limit_s(batch)) for batch in batches):
            found += 1
        else:
            print(f"{planted}: {path.relative_to(package)}: {one.told}", flush=True)
        path.write_text(source, encoding="utf-8")
    return f"| {room} | {seed} | {planted} | {found} | {100 * found / planted:.0f} % |\n"


if __name__ == "__main__":
    sys.exit(main())
