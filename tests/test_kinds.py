"""Files are told apart by their content, whatever they are called."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from tests.advice import configs
from tracelens.kinds import kind_of

_EVENTS = '"traceEvents": [{"ph": "X", "name": "a"}]'
_FILLER = '"x": "' + "y" * 100_000 + '"'


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f'{{"schemaVersion": 1, {_EVENTS}}}', "trace"),
        (f"\ufeff \n{{{_EVENTS}}}", "trace"),
        ('[{"ph": "X"}]', "trace"),
        ('{"schemaVersion": 1, "deviceProperties": [', "trace"),  # cut off
        (f"{{{_FILLER}, {_EVENTS}}}", "trace"),
        ('{"schema_version": "1.0", "tool_version": "0.1.0"', "report"),
        (f'{{{_FILLER}, "schema_version": "1.0"}}', "report"),
        (f'{{"schema_version": "1.0", {_EVENTS}}}', "trace"),
        ('{"schema_version": "1.0", "a": "\\"traceEvents\\""}', "report"),
        (json.dumps(configs.LLAMA2_7B), "other"),
        (configs.NANOGPT, "other"),
        ("torchrun pretrain.py --num-layers 4", "other"),
        ("", "other"),
        ("{", "other"),
    ],
)
def test_by_content(tmp_path: Path, text: str, kind: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    assert kind_of(path) == kind_of(str(path)) == kind


def test_compressed_is_a_trace_and_so_is_standard_input(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(gzip.compress(b"{}"))
    assert kind_of(path) == kind_of("-") == "trace"


def test_what_cannot_be_read_is_nothing_known(tmp_path: Path) -> None:
    assert kind_of(tmp_path) == kind_of(tmp_path / "missing") == kind_of("a\0b") == "other"


def test_a_pipe_is_taken_for_a_trace_and_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for a writer
    assert kind_of(tmp_path / "pipe") == "trace"
    assert kind_of(tmp_path) == kind_of(tmp_path / "nothing") == "other"
