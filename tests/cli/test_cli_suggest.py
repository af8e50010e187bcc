"""``tracelens suggest`` at a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.advice import configs
from tests.advice.configs import written
from tracelens.cli import cli

_GPT3 = ["--hidden", "2560", "--heads", "32", "--layers", "32", "--vocab", "50257", "--micro-batch", "4",
         "--gpu", "h100-sxm"]  # fmt: skip


def _run(*arguments: str, columns: int = 80) -> Result:
    return CliRunner().invoke(cli, ["suggest", *arguments], env={"COLUMNS": str(columns), "NO_COLOR": "1"})


def test_from_sizes_alone() -> None:
    result = _run(*_GPT3)
    assert result.exit_code == 0, result.output
    assert "1. heads 32 → 20, vocab 50257 → 50304" in result.output
    assert "+ --heads 20" in result.output
    assert "attention.core" in result.output
    assert "Not included: gaps between kernels" in result.output.replace("\n", " ")
    assert "assumed" in result.output  # the sequence was not given
    assert max(len(line) for line in result.output.splitlines()) <= 80


def test_from_a_config_file(tmp_path: Path) -> None:
    result = _run(str(written(tmp_path, configs.GPT2_XL)), "--gpu", "a100-sxm-80gb")
    assert result.exit_code == 0, result.output
    assert '+   "vocab_size": 50304,' in result.output


def test_a_good_shape() -> None:
    result = _run("--hidden", "4096", "--heads", "32", "--layers", "32", "--ffn", "11008", "--vocab", "32000",
                  "--gated", "--untied", "--gpu", "h100-sxm")  # fmt: skip
    assert result.exit_code == 0
    assert "already good" in result.output


def test_json_is_all_there_is_on_standard_output() -> None:
    result = _run(*_GPT3, "--json", "-")
    found = json.loads(result.output)
    assert found["gpu"] == "h100-sxm"
    assert found["picks"][0]["change"]["heads"] == [32, 20]
    low, mid, high = (found["picks"][0]["saving_frac"][end] for end in ("low", "mid", "high"))
    assert 0 < low < mid < high


def test_json_beside_the_words(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    result = _run(*_GPT3, "--json", str(path))
    assert "saves" in result.output
    assert json.loads(path.read_text())["tried"] > 0


def test_constraints_of_the_command_line() -> None:
    result = _run(*_GPT3, "--fix", "vocab,hidden", "--params", "0.5%", "--json", "-")
    found = json.loads(result.output)
    assert found["parameters_limit_frac"] == 0.005
    assert not {"vocab", "hidden"} & set(found["searched"])


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (["--gpu", "h100-sxm"], "at least --hidden, --heads and --layers", 2),
        ([*_GPT3, "--params", "lots"], "give percent", 2),
        ([*_GPT3, "--fix", "colour"], "cannot be searched", 2),
        (["missing.json", "--gpu", "h100-sxm"], "cannot read missing.json", 3),
        ([*_GPT3, "--free", "micro_batch"], "--memory-gb", 2),
        ([*_GPT3[:-1], "h1"], "unknown GPU", 2),
    ],
)
def test_wrong_use_is_one_line(arguments: list[str], says: str, code: int) -> None:
    command = [sys.executable, "-m", "tracelens", "suggest", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_names_from_a_file_cannot_style_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "\x1b[31mred[bold].json"
    path.write_text(json.dumps(configs.LLAMA2_7B))
    result = _run(str(path), "--gpu", "h100-sxm")
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    assert "red[bold].json" in result.output
