"""Every command and code block of README.md and docs/ does what the page says.

``TRACELENS_REGOLD=1`` writes what commands print into the pages: then read them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.blocks import ROOT, Block, Command, as_shown, blocks, commands, documents
from tests.docs.readers import NEEDS, desk, shell
from tracelens.cli import cli

PAGES = [page for page in documents() if blocks(page)]
LANGUAGES = {"console", "python", "diff", "text", "yaml", "json", "{toctree}"}
TORCH = importlib.util.find_spec("torch") is not None


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return desk(tmp_path / "desk")


def test_a_line_of_dots_stands_for_any_lines() -> None:
    assert as_shown("\na\nb  \nc\n\n", ("a", "...", "c"))
    assert as_shown("a\nc\n", ("a", "...", "c"))
    assert not as_shown("a\nb\nc\n", ("a", "c"))
    assert not as_shown("a\nb\n", ("a", "...", "c"))


@pytest.mark.parametrize("page", documents(), ids=name)
def test_every_block_says_its_language(page: Path) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, block.where
        if block.language in ("text", "diff"):
            assert not re.search(r"^\$ ", block.text, re.MULTILINE), (
                f"{block.where}: a command is a console block"
            )


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_commands_of_a_page_run_and_print_what_it_shows(page: Path, folder: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for block in blocks(page):
        if block.language != "console":
            continue
        for command in commands(block):
            if block.excuse is None:
                printed = _run(command, block, folder)
                text = _with_output(text, command, printed, block)
            _options_exist(command.text, block)
    if os.environ.get("TRACELENS_REGOLD"):
        page.write_text(text, encoding="utf-8")


def _run(command: Command, block: Block, folder: Path) -> str:
    if not TORCH and re.search(r"\b(torchrun|capture|train\.py)\b", command.text):
        return "\n".join(command.shown or ())
    done = shell(command.text, folder=folder)
    assert done.returncode == 0, f"{block.where}: {command.text}\n{done.stdout}{done.stderr}"
    return done.stdout


def _with_output(text: str, command: Command, printed: str, block: Block) -> str:
    """The page with what the command printed; where something is left out it has to be right as it is."""
    if command.shown is None or as_shown(printed, command.shown):
        return text
    lines = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines()).rstrip() + "\n"
    shown = "".join(f"{line}\n" for line in command.shown)
    if os.environ.get("TRACELENS_REGOLD") and not any(line.strip() == "..." for line in command.shown):
        return text.replace(f"$ {command.text}\n{shown}", f"$ {command.text}\n{lines}")
    pytest.fail(f"{block.where}: {command.text}\nprints\n{lines}\nand the page shows\n{shown}")


def _options_exist(command: str, block: Block) -> None:
    """Commands that cannot run here at least exist, with their options."""
    words = shlex.split(command, comments=True)
    if words[:1] != ["tracelens"] or len(words) < 2 or words[1].startswith("-"):
        return
    known = cli.commands.get(words[1])
    assert known is not None, f"{block.where}: no command {words[1]}"
    spelled = {option for one in known.params for option in (*one.opts, *one.secondary_opts)} | {
        "--help",
        "-h",
    }
    own = words[2 : words.index("--")] if "--" in words else words[2:]
    for word in own:
        option = word.partition("=")[0]
        if re.fullmatch(r"--?[a-z][a-z-]*", option):
            assert option in spelled, f"{block.where}: tracelens {words[1]} has no {option}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_python_of_a_page_runs(page: Path, folder: Path) -> None:
    """The blocks of a page follow on one another, as a reader types them; those with needs stand alone."""
    found = [block for block in blocks(page) if block.language == "python"]
    scripts = ["", *(_alone(block) for block in found if block.needs is not None)]
    for block in found:
        compile(block.text, block.where, "exec")
        if block.needs is None and block.excuse is None:
            scripts[0] += block.text
    for at, script in enumerate(text for text in scripts if text):
        own = desk(folder / f"script{at}")
        (own / "page.py").write_text(f"import tracelens\n{script}")
        if "torch" in script or "capture" in script:  # what is changed of PyTorch stays changed
            done = shell("python page.py", folder=own)
            assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        else:
            with contextlib.chdir(own):
                runpy.run_path("page.py", run_name="__main__")


def _alone(block: Block) -> str:
    module, before = NEEDS[block.needs or ""]
    return before + block.text if importlib.util.find_spec(module) else ""


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_workflows_of_a_page_are_valid(page: Path) -> None:
    written = [block for block in blocks(page) if block.language == "yaml"]
    for block in written:
        found = yaml.safe_load(block.text)
        assert isinstance(found, dict | list), f"{page.name}:{block.line} is no workflow"
        for line in _scripts(found):
            if line.strip().startswith("tracelens "):
                _options_exist(line.strip(), block)


def _scripts(node: Any) -> Iterator[str]:
    """The lines of every ``run:`` below a node, a command each."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "run" and isinstance(value, str):
                yield from value.replace("\\\n", " ").splitlines()
            else:
                yield from _scripts(value)
    elif isinstance(node, list):
        for value in node:
            yield from _scripts(value)
