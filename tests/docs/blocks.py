"""The code blocks of the documentation, as a reader copies them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
#: Why a block is not run, where a comment above it says so: ``<!-- not run: needs a GPU -->``.
EXCUSES = (
    "needs a GPU",
    "installs packages",
    "make and CI run it",
    "opens a browser",
    "has no end",
    "tests/capture runs it",
)
_EXCUSE = re.compile(r"<!-- not run: (.+?) -->")
_SETUP = re.compile(r"<!-- needs: (.+?) -->")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: where it stands, what language it is, and what the comment above it says."""

    page: str
    line: int  # of its first line of code, from 1
    language: str
    text: str
    excuse: str | None = None
    needs: str | None = None  # a name in ``tests.docs.readers``

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a console block; ``shown`` is None where the page shows no output of it."""

    text: str
    shown: tuple[str, ...] | None


def documents() -> list[Path]:
    """Every page a reader is given."""
    made = ROOT / "docs" / "_build"
    found = [page for page in (ROOT / "docs").rglob("*.md") if made not in page.parents]
    return [ROOT / "README.md", *sorted(found)]


def blocks(path: Path) -> list[Block]:
    """Every fenced block of a page. AssertionError for a block that no test could read."""
    page = path.relative_to(ROOT).as_posix()
    found: list[Block] = []
    above = ""
    for token in MarkdownIt().parse(path.read_text(encoding="utf-8")):
        line = (token.map or [0])[0] + 1
        if token.type == "html_block":
            above = token.content
            continue
        if token.type == "fence":
            excuse, needs = _EXCUSE.search(above), _SETUP.search(above)
            assert excuse is None or excuse[1] in EXCUSES, f"{page}:{line}: {excuse}"
            found.append(
                Block(
                    page,
                    line + 1,
                    token.info.strip(),
                    token.content,
                    excuse and excuse[1],
                    needs and needs[1],
                )
            )
        if token.type == "code_block":
            command = re.search(r"^\$ |\btracelens [a-z]|^import |^from ", token.content, re.MULTILINE)
            assert not command, f"{page}:{line}: fence this block and say its language"
        above = ""
    return found


def commands(block: Block) -> list[Command]:
    """The commands of a console block, each with what the page shows below it."""
    found: list[Command] = []
    shown: list[str] = []
    text = ""
    for line in [*block.text.splitlines(), "$ "]:
        if not line.startswith("$ "):
            shown.append(line)
            continue
        if text:
            found.append(Command(text, tuple(shown) if any(shown) else None))
        assert text or not shown, f"{block.where}: output without a command"
        text, shown = line[2:], []
    return found


def as_shown(printed: str, shown: tuple[str, ...]) -> bool:
    """Whether ``printed`` is what the page shows; a line ``...`` stands for any lines."""
    lines = [line.rstrip() for line in printed.rstrip().splitlines()]
    while lines and not lines[0]:
        lines.pop(0)
    pattern = "".join(
        r"(?:[^\n]*\n)*?" if line.strip() == "..." else re.escape(line.rstrip()) + "\n" for line in shown
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)) is not None
