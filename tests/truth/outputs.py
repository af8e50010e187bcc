"""Everything a user reads of one trace: report, terminal, page, Markdown, JSON."""

from __future__ import annotations

import html
import io
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from tracelens.analysis import Analysis
from tracelens.render.html import render_html
from tracelens.render.markdown import render_report_markdown
from tracelens.render.terminal import render_terminal
from tracelens.results import Report
from tracelens.results.json import to_json

ROOT = Path(__file__).parents[2]
TRACES = ROOT.parent / "shared" / "traces"
SAMPLES = sorted((ROOT / "sample_traces").glob("*.json.gz"))
#: Every real trace at hand, beside the samples.
FILES = [*SAMPLES, *sorted(TRACES.rglob("*.json.gz"))]
#: Wide enough that no sentence is broken.
WIDTH = 4000
_UNSEEN = re.compile(r"<(script|style)\b.*?</\1>", re.DOTALL)


def name_of(path: Path) -> str:
    """Short and unique: ``d1_h100...`` or ``job_v100_megatron_tp2/rank0``."""
    stem = path.name.partition(".")[0]
    return f"{path.parent.name}/{stem}" if path.parent.name.startswith("job") else stem


def seen_text(page: str) -> str:
    """What a reader sees of a page, tags gone."""
    return html.unescape(re.sub(r"<[^>]+>", " ", _UNSEEN.sub(" ", page)))


@dataclass(frozen=True)
class Outputs:
    """What is written about one trace."""

    analysis: Analysis

    @property
    def report(self) -> Report:
        return self.analysis.report

    @cached_property
    def terminal(self) -> str:
        file = io.StringIO()
        render_terminal(self.report, console=Console(file=file, width=WIDTH), verbose=True)
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

    @cached_property
    def page(self) -> str:
        return render_html(self.report)

    @cached_property
    def page_text(self) -> str:
        return seen_text(self.page)

    @cached_property
    def markdown(self) -> str:
        return render_report_markdown(self.report)

    @cached_property
    def json(self) -> Any:
        return json.loads(to_json(self.report))

    @property
    def rows(self) -> set[str]:
        return {row.id for row in self.report.gemms}

    @property
    def texts(self) -> dict[str, str]:
        return {"terminal": self.terminal, "page": self.page_text, "markdown": self.markdown}
