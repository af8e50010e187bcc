"""Outputs hold nothing of the machine, its user, environment and folders; names as hashes, if asked."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import run
from tests.trace.tools import small_trace
from tracelens.render.perfetto_copy import without_folders
from tracelens.render.redact import KEY, hashed

#: One word for each place that a secret can stand in; none is part of another, or of anything else.
HOST, USER, ENVIRONMENT, ARGUMENT = "qhostq", "quserq", "qenvq", "qargq"
SECRETS = (HOST, USER, ENVIRONMENT, ARGUMENT)
HEAD = {
    "hostname": HOST,
    "user": USER,
    "environment": {"TOKEN": ENVIRONMENT},
    "env_vars": [f"TOKEN={ENVIRONMENT}"],
    "argv": ["train.py", f"--token={ARGUMENT}"],
    "launch": f"python /home/{USER}/train.py",
    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1, "master_addr": HOST},
    "tracelens": {"environ": {"TOKEN": ENVIRONMENT}, "models": {"error": f"no /home/{USER}/model.pt"}},
    "traceName": f"/home/{USER}/log/{HOST}_17.pt.trace.json",
}
PATHS = (f"/home/{USER}/run/train.py(7): step", f"C:\\{USER}\\train.py(7): step")
MODEL, KERNEL, FILE = "QmodelQ", "qkernelq_add", "qfileq"


def planted(folder: Path) -> Path:
    """A trace that holds all of them, in a folder that holds some."""
    whole = json.loads(small_trace().text())
    first = next(event for event in whole["traceEvents"] if event.get("cat") == "cpu_op")
    for at, path in enumerate(PATHS):
        frame = {"ph": "X", "name": path, "dur": 1} | {key: first[key] for key in ("pid", "tid", "ts")}
        python = {"Python id": 900_000 + at, "Python parent id": None}
        whole["traceEvents"] += [frame | {"cat": "python_function", "args": python},
                                 frame | {"cat": "user_annotation", "name": f"load {path}"}]  # fmt: skip
    first["args"]["Call stack"] = ";".join(PATHS[:1] * 2)
    for event in whole["traceEvents"]:
        event["name"] = event["name"].replace("GPT", MODEL)
        if event.get("cat") == "kernel" and "elementwise" in event["name"]:
            event["name"] = KERNEL
    home = folder / USER
    home.mkdir(parents=True, exist_ok=True)
    written = home / f"{FILE}.json"
    written.write_text(json.dumps(whole | HEAD))
    return written


def outputs(folder: Path, path: Path, *options: str) -> dict[str, str]:
    """Everything that the commands write and print of this trace, as text, by name."""
    ending = ("--perfetto", "p.json") if "--redact" not in options else ()
    said = {}
    forms = ("-o", "{}.html", "--json", "{}.json", "--markdown", "{}.md")
    for name, arguments in {
        "analyze": (path, "-v", "--kernels", "k.csv", "--summary", "s.summary", "--what-if", "vocab=1024",
                    *ending),
        "job": (path, path),
        "merge": ("s.summary",),
        "compare": (path, path),
        "again": ("analyze.json",),
        "gemm rows": (path, "--gemm", "g1", "--no-html"),
    }.items():  # fmt: skip
        command = {"job": "analyze", "again": "analyze", "gemm rows": "analyze"}.get(name, name)
        files = [] if name == "gemm rows" else [one.format(name) for one in forms]
        done = run(command, *arguments, *files, *options, cwd=folder, QTOKEN=ENVIRONMENT)
        assert done.returncode == 0, done.stderr
        said[f"{name} stdout"], said[f"{name} stderr"] = done.stdout, done.stderr
    for one in sorted(folder.iterdir()):
        if one.is_file():
            data = one.read_bytes()
            said[one.name] = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    assert len(said) > 20
    return said


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("leaks")
    return outputs(folder, planted(folder))


@pytest.fixture(scope="module")
def redacted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("redacted")
    return outputs(folder, planted(folder), "--redact")


@pytest.mark.parametrize("secret", SECRETS)
def test_nothing_of_the_machine_is_in_any_output(written: dict[str, str], secret: str) -> None:
    assert [name for name, text in written.items() if secret in text] == []


@pytest.mark.parametrize("secret", [*SECRETS, MODEL, KERNEL, FILE])
def test_names_are_hashes_where_that_is_asked(
    redacted: dict[str, str], written: dict[str, str], secret: str
) -> None:
    said = {name: text for name, text in redacted.items() if not name.endswith("stderr")}
    assert [name for name, text in said.items() if secret in text] == []
    if secret not in SECRETS:  # the search can fail
        assert any(secret in text for text in written.values())


def test_what_is_no_name_stays(redacted: dict[str, str], written: dict[str, str]) -> None:
    plain, hidden = (json.loads(found["analyze.json"]) for found in (written, redacted))
    for part in ("steps", "summary", "components", "model", "coverage"):
        assert hidden[part] == plain[part]
    names = [(row["kernel"], row.pop("kernel")) for row in plain["gemms"]]
    assert [row.pop("kernel") for row in hidden["gemms"]] == [hashed("kernel", name) for name, _ in names]
    assert hidden["gemms"] == plain["gemms"]


def test_redacted_reports_compare_as_the_plain_ones(tmp_path: Path) -> None:
    path = planted(tmp_path)
    run("analyze", path, "--no-html", "--json", "plain.json", cwd=tmp_path)
    run("analyze", path, "--no-html", "--json", "hidden.json", "--redact", cwd=tmp_path)
    plain = json.loads(run("compare", path, "plain.json", "--json", "-", cwd=tmp_path).stdout)
    hidden = json.loads(run("compare", "hidden.json", "hidden.json", "--json", "-", cwd=tmp_path).stdout)
    keys = ("component", "role", "phase", "state", "changed")
    assert [[row[key] for key in keys] for row in hidden["gemms"]] == [
        [row[key] for key in keys] for row in plain["gemms"]
    ]
    assert hidden["step"] == plain["step"]
    once = run("analyze", "hidden.json", "--no-html", "--json", "-", "--redact", cwd=tmp_path).stdout
    assert once == (tmp_path / "hidden.json").read_text()  # a hash is not hashed again


def test_a_key_makes_other_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    from tracelens.render import redact

    plain = hashed("module", "Net")
    monkeypatch.setenv(KEY, "only ours")
    redact._digest.cache_clear()
    assert hashed("module", "Net") != plain
    monkeypatch.undo()
    redact._digest.cache_clear()
    assert hashed("module", "Net") == plain


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"/home/a b/x/t.py(1): f"', '"t.py(1): f"'),
        ('"/x/a.py(1): f;/x/b.py(2): g"', '"a.py(1): f;b.py(2): g"'),
        ('"/opt/lib/site-packages/torch/nn/linear.py(1): f"', '"torch/nn/linear.py(1): f"'),
        (r'"C:\\Users\\a\\t.py(1): f"', '"t.py(1): f"'),
        (r'"\/home\/a\/t.py"', '"t.py"'),
        ('"file:///home/a/t.py"', '"file:t.py"'),
        ('"a / b", "x/y/z", "aten::div /"', '"a / b", "x/y/z", "aten::div /"'),
    ],
)
def test_folders_are_cut_off(before: str, after: str) -> None:
    assert without_folders(before.encode()).decode() == after


def test_keep_metadata_keeps_it(tmp_path: Path) -> None:
    path = planted(tmp_path)
    run("analyze", path, "--no-html", "-q", "--perfetto", "all.json", "--keep-metadata", cwd=tmp_path)
    kept: dict[str, Any] = json.loads((tmp_path / "all.json").read_text())
    assert {name: kept[name] for name in HEAD} == HEAD
    assert PATHS[0] in {event["name"] for event in kept["traceEvents"]}
    run("analyze", path, "--no-html", "-q", "--perfetto", "some.json", cwd=tmp_path)
    some: dict[str, Any] = json.loads((tmp_path / "some.json").read_text())
    assert len(some["traceEvents"]) == len(kept["traceEvents"])
    assert some["distributedInfo"] == {"backend": "nccl", "rank": 0, "world_size": 1}
    assert some["deviceProperties"] == kept["deviceProperties"]


def test_what_cannot_go_together_is_refused(tmp_path: Path) -> None:
    path = planted(tmp_path)
    for options in (("--redact", "--perfetto", "p.json"), ("--keep-metadata",)):
        done = run("analyze", path, *options, cwd=tmp_path)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert {one.name for one in tmp_path.iterdir()} == {USER}
