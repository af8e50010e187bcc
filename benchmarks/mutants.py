"""Would a test notice? Single faults planted in the code, and how many of them the tests of the room find.

``python -m benchmarks.mutants [ROOM...] [--mutants 20] [--seed 0]``: in each module of a room so many faults
(another comparison, operator, constant, a branch turned round), each in a copy of the checkout, against the
fast tests of the room; without a room, in the modules of ``MODULES`` against the tests of each alone. A table
per module, and the surviving faults with their lines: a survivor that changes a figure which a user sees
deserves a test. One that changes nothing stands with the reason in ``results/mutants.md`` and is not drawn.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import hypothesis  # noqa: F401  # with numpy most of what a run of the tests imports
import numpy as np  # noqa: F401
import pytest

ROOT = Path(__file__).resolve().parents[1]
_FOUND = ROOT / "benchmarks" / "results" / "mutants.md"
#: Room -> the tests that are to find its faults, quickest first.
ROOMS = {
    "gemm": ["tests/gemm"],
    "step": ["tests/advice", "tests/test_savings.py"],
    "rules": ["tests/advice"],
    "accounting": ["tests/accounting", "tests/test_one_figure.py"],
    "comparison": ["tests/compare"],
}
#: Module -> the tests that look at it alone: those whose figures every report is made of.
MODULES = {
    "gemm/kernel_names.py": ["tests/gemm/test_kernel_names.py", "tests/gemm/test_kernel_name_grammar.py"],
    "gemm/gemm_readers.py": [
        "tests/gemm/test_kernel_name_grammar.py",
        "tests/gemm/test_kernel_names.py",
        "tests/gemm/test_kernel_names_seen.py",
    ],
    "gemm/predict/gemm.py": [
        "tests/gemm/test_predict_range.py",
        "tests/gemm/test_predict_gemm.py",
        "tests/gemm/test_predict_misaligned.py",
        "tests/gemm/test_predict_calibration.py",
    ],
    "gemm/lost.py": ["tests/gemm/test_lost.py", "tests/accounting/test_lost_rows.py"],
    "gemm/efficiency.py": ["tests/gemm/test_efficiency.py", "tests/gemm/test_gemm_doctests.py"],
    "accounting/limits.py": ["tests/accounting/test_limits.py", "tests/render/test_verdict.py"],
    "accounting/cost.py": ["tests/accounting/test_cost.py"],
    "accounting/rates.py": ["tests/accounting/test_rates.py"],
    "accounting/others.py": ["tests/accounting/test_others.py"],
    "step/stalls.py": ["tests/advice/test_stalls.py"],
    "step/whatif.py": [
        "tests/advice/test_advice_what_if_figures.py",
        "tests/advice/test_advice_what_if.py",
        "tests/advice/test_advice_what_if_dtype.py",
        "tests/advice/test_advice_what_if_ranks.py",
    ],
    "comparison/step_change.py": ["tests/compare/test_step_change.py"],
    "rules/pad_vocabulary.py": ["tests/advice/test_advice_pad_vocabulary.py"],
    "rules/head_dimension.py": ["tests/advice/test_advice_head_dimension.py"],
    "rules/align_dimensions.py": ["tests/advice/test_advice_align_dimensions.py"],
}
_COPIED = (
    "tracelens",
    "tests",
    "templates",
    "docs",
    "sample_traces",
    "benchmarks",
    "pyproject.toml",
    "README.md",
)
_HANGS_S = 600
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

    @property
    def told(self) -> str:
        return f"{self.line}: {self.before} -> {self.after}"


def mutant(source: str, number: int) -> Mutant:
    """A single fault of a module, by its number from 0 on."""
    tree = ast.parse(source)
    node = next(node for at, node in enumerate(_places(tree)) if at == number)
    statement = ast.unparse(node)
    _change(node)
    line = source.splitlines()[node.lineno - 1].strip()
    return Mutant(line, statement, ast.unparse(node), ast.unparse(tree))


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


def killed(copy: Path, tests: Sequence[str]) -> bool:
    """Do the fast tests find something in this copy? A run that hangs has found it.

    In a fork of this process, which has imported what no fault changes.
    """
    child = os.fork()
    if not child:
        signal.alarm(_HANGS_S)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        os.chdir(copy)
        sys.path[:] = [str(copy), *(path for path in sys.path if Path(path or ".").resolve() != ROOT)]
        sys.dont_write_bytecode = True
        for name in [name for name in sys.modules if name.split(".")[0] in ("tracelens", "tests")]:
            del sys.modules[name]
        how = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--assert", "plain"]
        os._exit(int(pytest.main([*how, *tests])))
    return os.waitpid(child, 0)[1] != 0


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
    parser.add_argument("rooms", nargs="*", default=list(MODULES), help="rooms, or modules as gemm/lost.py")
    parser.add_argument("--mutants", type=int, default=20, help="per module")
    parser.add_argument("--spread", action="store_true", help="so many of the whole room instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", nargs="*", help="instead of those of the room")
    options = parser.parse_args(arguments)
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(Path(folder))
        print("| module | faults | found |\n|---|---|---|", flush=True)
        for room in options.rooms:
            at = copy / "tracelens" / room
            tests = options.tests or MODULES.get(room) or ROOMS[Path(room).parts[0]]
            if killed(copy, tests):
                raise SystemExit(f"the tests of {room} fail without a fault")
            package = copy / "tracelens"
            modules = sorted(at.rglob("*.py")) if at.is_dir() else [at]
            for paths in [modules] if options.spread else [[path] for path in modules]:
                planted, found = 0, 0
                for path, one in drawn(paths, package, options.mutants, options.seed):
                    source, planted = path.read_text(encoding="utf-8"), planted + 1
                    path.write_text(one.source, encoding="utf-8")
                    os.utime(path, (planted, planted))  # byte code of the fault before is none of this one's
                    if killed(copy, tests):
                        found += 1
                    else:
                        survivors.append(f"{path.relative_to(package)}: {one.told}")
                        print(survivors[-1], file=sys.stderr, flush=True)
                    path.write_text(source, encoding="utf-8")
                if planted:
                    name = room if options.spread else paths[0].relative_to(package)
                    print(f"| {name} | {planted} | {found} |", flush=True)
    print("\nNot found:", *survivors, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
