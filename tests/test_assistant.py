"""What an assistant gets over ``tracelens mcp``: the report's figures, and why others are not known."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kept import analyzed
from tracelens import assistant
from tracelens.errors import InputError, UsageError
from tracelens.results.json import to_json

SAMPLES = Path(__file__).resolve().parents[1] / "sample_traces"
BEFORE = SAMPLES / "generated_gpt2_vocab50257.json.gz"
AFTER = SAMPLES / "generated_gpt2_vocab50304.json.gz"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two saved reports, which are asked as traces are, and read faster."""
    folder = tmp_path_factory.mktemp("saved")
    files = {"before": folder / "before.json", "after": folder / "after.json"}
    for trace, path in zip((BEFORE, AFTER), files.values(), strict=True):
        path.write_bytes(to_json(analyzed(trace).report))
    return files


def test_the_answers_are_the_reports_own(saved: dict[str, Path]) -> None:
    from tracelens.comparison.load import load_report

    report, asked = load_report(saved["before"]), str(saved["before"])
    found = assistant.analyze(asked)
    assert found["verdict"] == report.summary.verdict
    assert found["figures"]["step_ms"] == report.summary.step_ms.median
    assert [one["rule"] for one in found["findings"]] == [one.rule for one in report.findings]
    assert found["model"]["vocab"] == 50257
    rule = report.findings[0].rule
    assert assistant.finding(asked, rule)["findings"][0]["saw"] == report.findings[0].saw
    rows = assistant.gemms(asked, "logits")["rows"]
    assert rows and {row["component"] for row in rows} == {"logits"}
    assert {row["id"] for row in rows} <= {row.id for row in report.gemms}
    assert assistant.compare(asked, str(saved["after"]))["step"]["diff_ms"] < 0


def test_what_is_not_known_is_not_there_and_says_why(saved: dict[str, Path]) -> None:
    from tracelens.comparison.load import load_report

    report, found = load_report(saved["before"]), assistant.analyze(str(saved["before"]))
    open_ = {one["what"]: one["why"] for one in found["not_known"]}
    unknown = [name for name in ("experts", "classes") if getattr(report.model, name).value is None]
    assert unknown and not set(unknown) & set(found["model"])
    assert all(open_[f"model dimension {name}"] for name in unknown)
    closed = {one.rule for one in report.checks if one.state == "could_not_run"}
    assert closed == {what.split()[1] for what in open_ if what.startswith("check ")}


def test_a_question_that_cannot_be_answered_is_an_error_in_words(saved: dict[str, Path]) -> None:
    with pytest.raises(InputError, match="no such file"):
        assistant.analyze("-")
    with pytest.raises(UsageError, match="TL999"):
        assistant.finding(str(saved["before"]), "TL999")


def test_the_server_answers_as_its_functions_do(saved: dict[str, Path]) -> None:
    """Over its pipes: every tool is offered with its description, and a fault is told, not thrown."""
    mcp = pytest.importorskip("mcp", reason="the extra mcp is not installed")
    from mcp.client.stdio import stdio_client

    asked = {"trace": str(saved["before"])}

    async def ask() -> tuple[Any, Any, Any]:
        server = mcp.StdioServerParameters(command=sys.executable, args=["-m", "tracelens", "mcp"])
        async with mcp.Client(stdio_client(server)) as client:
            tools = await client.list_tools()
            answer = await client.call_tool("analyze", asked)
            return tools, answer, await client.call_tool("analyze", {"trace": "nowhere.json"})

    tools, answer, fault = asyncio.run(ask())
    assert {one.name: one.description for one in tools.tools} == {
        one.__name__: one.__doc__ for one in assistant.TOOLS
    }
    assert answer.structured_content == assistant.analyze(**asked)
    assert fault.is_error and "no such file" in fault.content[0].text
