"""``--help`` of every command fits a terminal or stands under headings; shells complete GPUs and rules."""

from __future__ import annotations

import pytest
from click.shell_completion import ShellComplete

from tests.cli.running import run
from tracelens.cli import cli
from tracelens.cli.help import Grouped


@pytest.mark.parametrize("name", ["", *cli.commands])
def test_help_fits_24_lines_of_80_or_is_grouped(name: str) -> None:
    lines = run(*name.split(), "--help", COLUMNS="80").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if line.rstrip().endswith("-")], "no option breaks over two lines"
    command = cli.commands.get(name)
    if not isinstance(command, Grouped):
        assert len(lines) <= 24
        return
    headings = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings == [f"{heading}:" for heading in (*command.groups, "Options")]
    for heading in headings:  # a group can be taken in at a glance
        after = lines[lines.index(heading) + 1 :]
        assert next((at for at, line in enumerate(after) if not line.strip()), len(after)) <= 20


@pytest.mark.parametrize(
    ("command", "typed", "first"),
    [
        (["analyze", "--gpu"], "h100", "h100-sxm"),
        (["gemm", "--gpu"], "b2", "b200"),
        (["suggest", "--gpu"], "l4", "l4"),
        (["explain"], "tl10", "TL101"),
        (["explain"], "pad", "pad-vocabulary"),
    ],
)
def test_a_shell_completes_gpus_and_rules(command: list[str], typed: str, first: str) -> None:
    found = ShellComplete(cli, {}, "tracelens", "_TRACELENS_COMPLETE").get_completions(command, typed)
    assert found[0].value == first
    assert all(one.value.lower().startswith(typed) for one in found)
