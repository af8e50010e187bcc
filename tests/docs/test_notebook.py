"""The example notebook runs from end to end without a network, and is committed without what it printed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.docs.blocks import ROOT
from tracelens.render.plots import Plots

PATH = ROOT / "docs" / "notebook.ipynb"
NEEDED = ("nbclient", "nbformat", "ipykernel")
#: Runs in a process of its own: kernels come with event loops, sockets and warnings.
_RUN = """
import socket
import sys

import nbformat
from nbclient import NotebookClient

try:
    socket.getaddrinfo("example.org", 443)
    sys.exit("a name outside this machine was looked up")
except RuntimeError:
    pass
source, folder, target = sys.argv[1:]
book = nbformat.read(source, as_version=4)
nbformat.validate(book)
NotebookClient(book, timeout=3600, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
nbformat.write(book, target)
"""
#: There and in the kernel: whoever asks for an address outside this machine is refused.
_OFFLINE = """
import sys


def refuse(event, given):
    if event == "socket.getaddrinfo" and given[0] not in (None, "localhost", "127.0.0.1", "::1"):
        raise RuntimeError(f"the network was asked for {given[0]}")
    if event == "socket.connect" and isinstance(given[1], tuple) and given[1][0] not in ("127.0.0.1", "::1"):
        raise RuntimeError(f"the network was asked for {given[1]}")


sys.addaudithook(refuse)
"""


@pytest.fixture(scope="module")
def book() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return found


def code(book: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in book["cells"] if cell["cell_type"] == "code"]


def test_it_is_committed_without_outputs(book: dict[str, Any]) -> None:
    for cell in book["cells"]:
        assert cell["metadata"] == {}, cell["id"]
    for cell in code(book):
        assert cell["outputs"] == [] and cell["execution_count"] is None, cell["id"]
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    assert book["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert PATH.stat().st_size < 20_000


def test_it_names_what_the_docs_name() -> None:
    page = (ROOT / "docs" / "notebook.md").read_text(encoding="utf-8")
    for name in (one for one in vars(Plots) if not one.startswith("_")):
        assert re.search(rf"`analysis\.plots\.{name}\b", page), (
            f"docs/notebook.md says nothing of plots.{name}"
        )


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: pip install '.[test]'")
    folder = tmp_path_factory.mktemp("notebook")
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(_OFFLINE)
    own = {f"JUPYTER_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(PATH), str(PATH.parent), str(folder / "ran.ipynb")],
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
        cwd=folder,
        env={
            **os.environ,
            **own,
            "IPYTHONDIR": str(folder / "ipython"),
            "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(ROOT)]),
        },
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads((folder / "ran.ipynb").read_text(encoding="utf-8"))
    return found


def outputs(ran: dict[str, Any], cell_id: str) -> list[dict[str, Any]]:
    cell = next(cell for cell in ran["cells"] if cell["id"] == cell_id)
    found: list[dict[str, Any]] = cell["outputs"]
    return found


def test_every_cell_runs_and_nothing_complains(ran: dict[str, Any]) -> None:
    for cell in code(ran):
        kinds = [(one["output_type"], one.get("name")) for one in cell["outputs"]]
        assert kinds in ([("stream", "stdout")], [("execute_result", None)]), (cell["id"], cell["outputs"])


def test_pictures_come_out_as_svg(ran: dict[str, Any]) -> None:
    drawn = [cell["id"] for cell in code(ran) if ".plots." in "".join(cell["source"])]
    assert len(drawn) >= 4
    for cell_id in drawn:
        (one,) = outputs(ran, cell_id)
        svg = "".join(one["data"]["image/svg+xml"])
        assert svg.startswith("<svg ") and "Generated trace, not a measurement" in svg


def test_tables_come_out_as_tables(ran: dict[str, Any]) -> None:
    for cell_id in ("components", "gemms", "derive", "what-if", "own"):
        (one,) = outputs(ran, cell_id)
        assert "<table" in "".join(one["data"]["text/html"]), cell_id
    text = "".join(outputs(ran, "gemms")[0]["data"]["text/plain"])
    assert "logits" in text and "50257" in text and "50257.0" not in text


def test_pages_come_out_in_frames_and_are_kept_as_a_line(ran: dict[str, Any]) -> None:
    for cell_id in ("compare", "page"):
        (one,) = outputs(ran, cell_id)
        assert "".join(one["data"]["text/html"]).startswith("<iframe srcdoc=")
        assert len("".join(one["data"]["text/plain"]).splitlines()) == 1


def test_it_says_what_the_report_says(ran: dict[str, Any]) -> None:
    (verdict,) = outputs(ran, "analyze")
    assert "pad vocab_size from 50257 to 50304" in "".join(verdict["text"])
