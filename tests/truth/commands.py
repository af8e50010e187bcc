"""The commands that a text tells its reader to run, and how the real command line takes them."""

from __future__ import annotations

import ast
import contextlib
import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import click
from click.testing import CliRunner

from tests.kept import kept, sources
from tests.synthetic import ModelSpec, Options, build
from tests.truth.outputs import ROOT
from tracelens.cli import cli
from tracelens.errors import TracelensError

#: Stands in a source string where a value is put in.
HOLE = "\0"
#: Words in capitals stand for something of the reader's.
_FILLED = {
    "TRACE": "trace.json.gz", "BEFORE": "trace.json.gz", "AFTER": "after.json.gz", "FOLDER": "ranks",
    "REPORT.json": "report.json", "config.json": "config.json", "FILE": "out.json",
    "NAME": "h100-sxm", "N": "2", "NAME=NUMBER": "heads=16", "ID": "g1", "RULE": "TL101", "ARGS": "",
}  # fmt: skip
_AFTER_FLAG = {"--device": "0", "--gemm": "g1", "--minutes": "1", "--dtypes": "bf16"}
#: Commands that need a GPU, a script or a browser: only their words are checked.
PARSED_ONLY = {"bench", "verify", "capture", "open"}
#: What a command needs at least, where a text names it without.
_LEAST = {
    "analyze": ["TRACE"], "compare": ["BEFORE", "AFTER"], "explain": ["TL101"], "gemm": ["4096x4096x4096"],
    "merge": ["FOLDER"], "suggest": ["TRACE"], "verify": ["REPORT.json"], "open": ["TRACE"],
    "capture": ["--", "train.py"], "bench": [], "doctor": ["TRACE"],
}  # fmt: skip
_TOKEN = re.compile(
    r" +(--[a-z][a-z-]*|--(?= )|[A-Z][A-Z_]*(?:=[A-Z]+)?(?:\.json)?|TL\d+|g\d+|[\w./-]+\.(?:json|py|gz|html)"
    rf"|\d+x\d+x\d+|[a-z_]+=[\d.]+|h100-sxm|{HOLE}[^\s\"`']*)(?=[\s\"'`.,:;)<]|$)"
)
_START = re.compile(r"\btracelens ([a-z-]+)")
_QUOTED = re.compile(rf"[\"'`(]tracelens ([a-z{HOLE}-]+)")


@dataclass(frozen=True, slots=True)
class Named:
    """One command as a text names it."""

    command: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(["tracelens", self.command, *self.words])


def named(text: str) -> set[Named]:
    """Every command in ``text``; a quoted one counts even where no such command exists."""
    found = set()
    for match in _START.finditer(text):
        quoted = _QUOTED.match(text, max(0, match.start() - 1))
        if match[1] not in cli.commands and not quoted:
            continue  # "tracelens says" is no command
        words, at = [], match.end()
        while token := _TOKEN.match(text, at):
            words.append(token[1])
            at = token.end()
        found.add(Named(match[1], tuple(words)))
    return found


@cache
def said_in_source() -> list[tuple[str, str]]:
    """(where, text) of every string of the package that is no docstring, and of every template."""
    return kept("said", "in source", sources("tracelens", "templates", "tests/truth"), lambda: list(_said()))


def _said() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "tracelens").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = list(ast.walk(tree))
        docs = {
            id(node.body[0].value)
            for node in nodes
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        docs |= {id(v) for node in nodes if isinstance(node, ast.JoinedStr) for v in node.values}
        file = path.relative_to(ROOT)
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                parts = (v.value if isinstance(v, ast.Constant) else HOLE for v in node.values)
                yield f"{file}:{node.lineno}", "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                yield f"{file}:{node.lineno}", node.value
    for path in sorted((ROOT / "templates").glob("*.j2")):
        text = re.sub(r"{{.*?}}|{%.*?%}", HOLE, path.read_text(encoding="utf-8"), flags=re.DOTALL)
        yield str(path.relative_to(ROOT)), re.sub(r"<[^>]+>", "", text)


def prepare(folder: Path) -> None:
    """Put what commands are run on into ``folder``."""
    (folder / "ranks").mkdir()
    for name, vocab in (("trace", 50257), ("after", 50304), ("ranks/rank0", 50257)):
        model = ModelSpec(hidden=1280, heads=10, vocab=vocab, layers=2, sequence=512, micro_batch=4)
        packed = gzip.compress(build(model, Options(steps=2)).text().encode(), 1)
        (folder / f"{name}.json.gz").write_bytes(packed)
    (folder / "config.json").write_text(
        json.dumps({"model_type": "gpt2", "n_embd": 1024, "n_head": 16, "n_layer": 12, "vocab_size": 50257})
    )
    run(Named("analyze", ("TRACE", "--json", "report.json")), folder)


def arguments(one: Named) -> list[str]:
    """The words with something of ours in place of what stands for the reader's own."""
    words: list[str] = []
    for word in one.words:
        before = words[-1] if words else ""
        filled = _FILLED.get(word, word)
        if HOLE in word:
            filled = _AFTER_FLAG.get(before, "TL101" if one.command == "explain" else "")
        words += [filled] if filled else []
    positional = [w for w, b in zip(words, ["", *words], strict=False) if w[:2] != "--" and b[:2] != "--"]
    if not positional:
        words = [*(_FILLED.get(word, word) for word in _LEAST[one.command]), *words]
    if one.command == "analyze" and "--no-html" not in words:
        words.append("--no-html")
    return words


def run(one: Named, folder: Path) -> str | None:
    """Run it in ``folder``; what is wrong with it, None where nothing is.

    A command that needs a GPU, a script or a browser is parsed and not run.
    """
    command = cli.commands.get(one.command)
    if command is None:
        return f"{one}: there is no such command"
    words = arguments(one)
    try:
        if one.command in PARSED_ONLY:
            command.make_context(one.command, list(words))
            return None
        with contextlib.chdir(folder):
            done = CliRunner().invoke(cli, [one.command, *words], standalone_mode=False)
        error = done.exception
        code = done.return_value if error is None else 1
    except click.ClickException as problem:
        error, code = problem, 2
    if error is not None:
        known = isinstance(error, click.ClickException | TracelensError)
        said = getattr(error, "message", error) if known else repr(error)
        return f"{one} -> {' '.join(words)}: {said}"
    return f"{one} -> exit code {code}" if code else None
