"""Reference pages made from the code: ``python docs/generate.py [FOLDER]`` writes them; a test compares."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from tracelens.accounting import frames
from tracelens.cli import cli
from tracelens.gates.metrics import Metric
from tracelens.gates.of_comparison import COMPARISON_METRICS
from tracelens.gates.of_job import JOB_METRICS
from tracelens.gates.of_report import REPORT_METRICS
from tracelens.hta import WaitFrames
from tracelens.results import ComponentRow, GemmRow
from tracelens.results.schema import FORMATS, json_schema
from tracelens.results.step import Step

FOLDER = Path(__file__).parent / "reference"
_GATES: dict[str, Mapping[str, Metric[Any]]] = {
    "tracelens analyze": REPORT_METRICS,
    "tracelens compare": COMPARISON_METRICS,
    "tracelens analyze FOLDER, tracelens merge": JOB_METRICS,
}
_MADE = "<!-- made by docs/generate.py -->\n\n"


def pages() -> dict[str, str]:
    """File name -> text of each generated page."""
    return {"cli.md": _cli(), "columns.md": _columns(), "figures.md": _figures(), "schema.md": _schema()}


def _cli() -> str:
    text = "# Commands\n\nWhat `tracelens COMMAND --help` prints.\n\n" + _block(_help(cli, "tracelens"))
    for name, command in sorted(cli.commands.items()):
        text += f"\n## {name}\n\n" + _block(_help(command, f"tracelens {name}"))
    return _MADE + text


def _help(command: click.Command, name: str) -> str:
    # as `cli` sets them: a command keeps its --help from the first context that asks for it
    names = cli.context_settings["help_option_names"]
    context = click.Context(
        command, info_name=name, max_content_width=100, terminal_width=100, help_option_names=names
    )
    return command.get_help(context)


def _block(text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return f"```text\n{lines}\n```\n"


def _columns() -> str:
    text = (
        "# Columns\n\nThe DataFrames of an `Analysis`. `analysis.kernels` is also what `--kernels FILE`"
        " writes; `analysis.gemms` and `analysis.components` are the `gemms` and `components` of `--json`.\n"
    )
    text += _made_of("kernels", frames.kernels_frame)
    text += _made_of("ops", frames.ops_frame)
    text += _made_of("gemms", frames.gemms_frame) + _rows(GemmRow)
    text += "\n## components\n\nTime by component and phase.\n\n" + _rows(ComponentRow)
    text += _made_of("findings", frames.findings_frame)
    text += _made_of("layers", frames.layers_frame)
    text += "\n## steps\n\nThe analysed steps.\n\n" + _rows(Step)
    return _MADE + text + _made_of("waits", WaitFrames)


def _made_of(name: str, source: Any) -> str:
    return f"\n## {name}\n\n{_prose(source)}\n"


def _prose(source: Any) -> str:
    """A docstring as Markdown; its double backquotes mark code as in reStructuredText."""
    return inspect.cleandoc(source.__doc__ or "").replace("``", "`").replace("<NA>", "`<NA>`")


def _rows(kind: type[Any]) -> str:
    rows = [
        (f"`{field}`", _cell("; ".join(part for part in (_values(one), one.get("description")) if part)))
        for field, one in json_schema()["$defs"][kind.__name__]["properties"].items()
    ]
    return "\n" + _table(("column", "meaning"), rows)


def _values(one: dict[str, Any]) -> str:
    """The values of a closed set."""
    return _type(one) if any("enum" in part for part in (one, *one.get("anyOf", ()))) else ""


def _figures() -> str:
    text = "# Figures of gates\n\nWhat `--fail-on` can judge, and what `--list-metrics` prints.\n"
    for command, metrics in _GATES.items():
        rows = [(f"`{one.shown}`", one.units, one.meaning) for one in metrics.values()]
        text += f"\n## {command}\n\n" + _table(("figure", "in", "what it is"), rows)
    return _MADE + text


def _schema() -> str:
    text = (
        "# JSON\n\nThe formats that `--json` writes. Their JSON Schemas (2020-12) ship in the package, as"
        " `tracelens/schema/NAME.schema.json`. `null` means not known; units are suffixes.\n"
    )
    for name in FORMATS:
        schema = json_schema(name)
        text += f"\n## {name}\n\n{schema['title']}, version {schema['version']}.\n"
        for part, definition in schema["$defs"].items():
            text += f"\n### {name}: {part}\n\n"
            if "description" in definition:
                text += _text(definition["description"]) + "\n\n"
            rows = [
                (f"`{field}`", _cell(_type(one)), _cell(one.get("description", "")))
                for field, one in definition["properties"].items()
            ]
            text += _table(("field", "type", "meaning"), rows)
    return _MADE + text


def _type(one: dict[str, Any]) -> str:
    if "$ref" in one:
        return str(one["$ref"]).rpartition("/")[2]
    if "enum" in one:
        return " or ".join("null" if value is None else f'"{value}"' for value in one["enum"])
    if "anyOf" in one:
        return " or ".join(_type(each) for each in one["anyOf"])
    if one.get("type") == "array":
        if "prefixItems" in one:
            return f"({', '.join(_type(each) for each in one['prefixItems'])})"
        return f"list of {_type(one.get('items') or {})}"
    if one.get("type") == "object":
        return f"map of {_type(one.get('additionalProperties') or {})}"
    return str(one.get("type", "anything"))


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|").replace("\n", " ")


def _text(text: str) -> str:
    """Plain text as Markdown: what looks like markup is text, what is marked as code is code."""
    parts = re.split(r"(``[^`]+``)", text)
    return "".join(f"`{part[2:-2]}`" if part.startswith("``") else _escaped(part) for part in parts)


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>{}])", r"\\\1", text)


def main(folder: Path = FOLDER) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
