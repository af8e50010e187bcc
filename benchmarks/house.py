"""Counts what keeps the code changeable: ``python -m benchmarks.house``.

Lines by room, long functions, import circles, places that parse a kernel name, closed sets kept as ``str``,
sentences outside of the rooms that write them, asserts that quote sentences. Figures for a note, not gates.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tracelens"
LONG, MANY = 60, 8
#: Who may write sentences: text beside a rule's metadata, what a command says, what is drawn, and the words
#: of a room, which are told values and compute nothing.
_SPEAK = ("render", "cli", "rules", "capture", "errors.py", "words", "words.py")
#: Who holds texts that nobody is told: sources beside constants.
_SOURCES = ("patterns.py", "kernel_patterns.py", "ladder_published.py", "attention_rates.py")
_CLOSED = re.compile(r"^\s+\w+: (?:str|str \| None)\b.*# *(?:\"?[\w-]+\"? \| )+\"?[\w-]+", re.MULTILINE)
_WORDS, _QUOTED = 5, 4
#: What is called with a description of a field or figure, an exception's text, a list or a pattern.
_DESCRIBING = ("says", "Metric", "refuse_unless", "_ops", "split", "compile")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> dict[str, tuple[Path, ast.Module]]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path, ast.parse(path.read_text(encoding="utf-8"))
    return found


def imports(name: str, tree: ast.Module, known: set[str]) -> set[str]:
    """Modules that ``name`` imports, inside functions and for types only too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.update(
                f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in known else node.module
                for alias in node.names
            )
    return {one for one in found if one in known and one != name}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, the largest first (Tarjan, SIAM J. Comput. 1, 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(one: str) -> None:
        index[one] = low[one] = len(index)
        stack.append(one)
        for other in graph[one]:
            if other not in index:
                visit(other)
                low[one] = min(low[one], low[other])
            elif other in stack:
                low[one] = min(low[one], index[other])
        if low[one] == index[one]:
            at = stack.index(one)
            group, stack[at:] = stack[at:], []
            if len(group) > 1:
                found.append(sorted(group))

    sys.setrecursionlimit(10_000)
    for one in graph:
        if one not in index:
            visit(one)
    return sorted(found, key=len, reverse=True)


def functions(tree: ast.Module) -> Iterator[Function]:
    """Every function and method."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def parameters(one: Function) -> int:
    """How many a caller may give, ``self`` apart."""
    given = [*one.args.posonlyargs, *one.args.args, *one.args.kwonlyargs]
    return len([arg for arg in given if arg.arg not in ("self", "cls")])


def sentences(tree: ast.Module) -> int:
    """Strings of five words and more: no docstring, no exception's text, no description of a field."""
    quiet: set[int] = set()
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        name = (
            called.id
            if isinstance(called, ast.Name)
            else called.attr
            if isinstance(called, ast.Attribute)
            else ""
        )
        documents = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if documents or isinstance(node, ast.Raise) or name in _DESCRIBING:
            quiet.update(id(below) for below in ast.walk(node))
        if isinstance(node, ast.JoinedStr):
            quiet.update(id(part) for part in node.values)
    count = 0
    for node in ast.walk(tree):
        if id(node) in quiet:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(v.value) if isinstance(v, ast.Constant) else "x" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        count += words(text) >= _WORDS and "SELECT" not in text
    return count


def words(text: str) -> int:
    """Plain words that a space follows."""
    return len(re.findall(r"\b[a-z]{2,}\b(?= )", text))


def quoting() -> int:
    """Asserts of the tests that quote four words and more of a sentence."""
    asserts = (
        node
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert)
    )
    return sum(
        any(
            isinstance(part, ast.Constant) and isinstance(part.value, str) and words(part.value) >= _QUOTED
            for part in ast.walk(node.test)
        )
        for node in asserts
    )


def main() -> None:
    """Print the table."""
    all_ = modules()
    texts = {name: path.read_text(encoding="utf-8") for name, (path, _) in all_.items()}
    lines: Counter[str] = Counter()
    for path, _ in all_.values():
        lines[path.relative_to(PACKAGE).parts[0]] += len(path.read_text(encoding="utf-8").splitlines())
    print(
        f"lines {sum(lines.values()):,}: " + ", ".join(f"{room} {n:,}" for room, n in lines.most_common(20))
    )
    rules = [
        len(text.splitlines())
        for name, text in texts.items()
        if re.search(r"\brules\.(?!advise|catalog|pages|engine|evidence)\w+$", name)
    ]
    print(f"rules {len(rules)}, median lines {statistics.median(rules):.0f}")
    every = [(name, one) for name, (_, tree) in all_.items() for one in functions(tree)]
    long = [f"{name}.{one.name}" for name, one in every if (one.end_lineno or 0) - one.lineno + 1 > LONG]
    many = [f"{name}.{one.name}" for name, one in every if parameters(one) > MANY]
    print(f"functions over {LONG} lines {len(long)}: {', '.join(long)}")
    print(f"functions of more than {MANY} parameters {len(many)}: {', '.join(many)}")
    graph = {name: imports(name, tree, set(all_)) for name, (_, tree) in all_.items()}
    print("circles " + (", ".join(f"{len(c)} ({c[0]} ...)" for c in circles(graph)) or "0"))
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [c for c in contracts if c["type"] == "layers"]
    print(f"ignore_imports {sum(len(c.get('ignore_imports', [])) for c in layers)} in the order of rooms")
    parsers = [n for n, text in texts.items() if "parse_kernel_name(" in text]
    print(f"modules that parse a kernel name {len(parsers)}: {', '.join(parsers)}")
    print(
        f"str fields with a closed set of values {sum(len(_CLOSED.findall(text)) for text in texts.values())}"
    )
    print(f"`or 0.0` {sum(text.count('or 0.0') for text in texts.values())}")
    classes: dict[str, set[str]] = defaultdict(set)
    for name, (_, tree) in all_.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].add(name)
    twice = sorted(name for name, where in classes.items() if len(where) > 1)
    print(f"class names in more than one module {len(twice)}: {', '.join(twice)}")
    speaking = {
        name: count
        for name, (path, tree) in all_.items()
        if not set(path.relative_to(PACKAGE).parts) & {*_SPEAK, *_SOURCES} and (count := sentences(tree))
    }
    told = ", ".join(f"{name} {count}" for name, count in speaking.items())
    print(
        f"modules with sentences outside {', '.join(_SPEAK)} {len(speaking)}: {sum(speaking.values())} {told}"
    )
    print(f"asserts that quote a sentence {quoting()}")


if __name__ == "__main__":
    main()
