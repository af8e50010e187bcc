"""``tracelens capture -- SCRIPT``: the script runs as it would alone, and a trace comes out."""

from __future__ import annotations

import os
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.capture.recorded import (
    SCRIPTS,
    WINDOW,
    capture,
    gemm_owners,
    load,
    module_names,
    run,
    steps,
    truth,
)

NANOGPT = SCRIPTS / "nanogpt.py"


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        find_spec(name) is None, reason=f"{name} is not installed (pip install .[test])"
    )


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        pytest.param("nanogpt.py", [], id="nanogpt"),
        pytest.param("hf_trainer.py", ["--accumulate", "2"], id="hf-accumulate", marks=needs("transformers")),
        pytest.param("lightning_fit.py", ["--accumulate", "2"], id="lightning", marks=needs("lightning")),
    ],
)
def test_every_gemm_of_an_unchanged_script_has_its_module(
    tmp_path: Path, script: str, arguments: list[str]
) -> None:
    done = capture(SCRIPTS / script, *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 of 2 steps" in done.stderr
    trace = load(tmp_path / "traces" / "rank0.json.gz")
    assert steps(trace) == ["ProfilerStep#5", "ProfilerStep#6"]

    true, printed = truth(SCRIPTS / script, *arguments, cwd=tmp_path)
    assert gemm_owners(trace) == true[5] + true[6]

    losses = [line for line in done.stdout.splitlines() if line.startswith(("last loss", "losses"))]
    assert losses  # bit for bit: they are printed in full
    assert losses == [line for line in printed.splitlines() if line.startswith(("last loss", "losses"))]

    meta = trace["tracelens"]
    accumulate = int(arguments[1]) if "--accumulate" in arguments else 1
    assert meta["window"]["backward_passes"] == [accumulate] * 2
    assert meta["window"]["complete"] is True
    assert len(meta["time"]["before_ms"]) == 3
    assert len(meta["time"]["after_ms"]) >= 3
    assert all(0 < ms < 60_000 for ms in meta["time"]["before_ms"] + meta["time"]["after_ms"])


@needs("transformers")
def test_a_checkpointed_script_has_its_modules_also_in_what_runs_again(tmp_path: Path) -> None:
    script = SCRIPTS / "hf_trainer.py"
    done = capture(script, "--checkpoint", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    trace = load(tmp_path / "traces" / "rank0.json.gz")
    true, _ = truth(script, cwd=tmp_path)
    once = true[5] + true[6]  # without checkpointing
    again = Counter(
        {
            (op, owner, "backward"): count
            for (op, owner, where), count in once.items()
            if where == "forward" and ".layers." in owner
        }
    )
    owners = gemm_owners(trace)
    assert once < owners <= once + again
    # a recomputation stops when it has all that was saved: the last product of a layer is not among it
    missing = once + again - owners
    assert {owner.split(".")[-1] for _, owner, _ in missing} <= {"down_proj"}
    assert "model.layers.0.mlp.up_proj" in trace["tracelens"]["window"]["recomputed"]


def test_the_trace_tells_no_path_no_host_and_no_environment(tmp_path: Path) -> None:
    done = capture(NANOGPT, cwd=tmp_path, A_SECRET="xyzzy-7f3")
    assert done.returncode == 0, done.stderr
    trace = load(tmp_path / "traces" / "rank0.json.gz")
    text = str(trace)
    assert "xyzzy" not in text
    assert str(tmp_path) not in text
    assert "host_name" not in text
    assert os.uname().nodename not in str(trace["tracelens"])
    assert trace["traceName"] == "rank0.json.gz"
    assert [path.name for path in (tmp_path / "traces").iterdir()] == ["rank0.json.gz"]  # nothing left over


@pytest.mark.parametrize(
    ("ranks", "around"), [("0", True), ("all", False)], ids=["capture-torchrun", "torchrun-capture"]
)
def test_one_file_per_rank_under_torchrun(tmp_path: Path, ranks: str, around: bool) -> None:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    ours = ["-m", "tracelens", "capture", *WINDOW, "--ranks", ranks, "--"]
    script = str(SCRIPTS / "ddp.py")
    done = (
        run(*ours, *launcher, script, cwd=tmp_path) if around else run(*launcher, *ours, script, cwd=tmp_path)
    )
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in (tmp_path / "traces").iterdir())
    assert names == (["rank0.json.gz", "rank1.json.gz"] if ranks == "all" else ["rank0.json.gz"])
    for rank, name in enumerate(names):
        trace = load(tmp_path / "traces" / name)
        spread = trace["tracelens"]["parallel"]
        assert (spread["rank"], spread["world_size"], spread["backend"]) == (rank, 2, "gloo")
        assert spread["degrees"] == {"data": 2}
        assert spread["groups"][0]["ranks"] == [0, 1]
        assert trace["distributedInfo"]["rank"] == rank
        owners = gemm_owners(trace)
        assert owners and not any(owner == "?" for _, owner, _ in owners)
        assert {"0", "2"} <= {owner for _, owner, _ in owners}  # not module.0


@needs("accelerate")
def test_around_accelerate_launch(tmp_path: Path) -> None:
    done = capture("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", NANOGPT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert steps(load(tmp_path / "traces" / "rank0.json.gz")) == ["ProfilerStep#5", "ProfilerStep#6"]


SEES = """
import json, os, sys, __main__
print(json.dumps([sys.argv, __name__, __main__.__file__, os.getcwd(), sys.path[0]]))
print([entry for entry in sys.path if "capture/site" in entry])
sys.exit(7)
"""


def test_the_script_sees_what_it_sees_alone(tmp_path: Path) -> None:
    (tmp_path / "sees.py").write_text(SEES)
    ours, alone = capture("sees.py", "--a", "b c", cwd=tmp_path), run("sees.py", "--a", "b c", cwd=tmp_path)
    assert ours.stdout == alone.stdout
    assert (ours.returncode, alone.returncode) == (7, 7)


def test_a_module_runs_as_with_dash_m(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "train.py").write_text("import sys\nprint(__name__, __package__, sys.argv[1:])\n")
    done = capture("-m", "package.train", "x", cwd=tmp_path)
    assert done.stdout.strip() == "__main__ package ['x']"


def test_the_environments_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sitecustomize.py").write_text("import builtins\nbuiltins.was_here = __file__\n")
    (tmp_path / "sees.py").write_text("print(was_here)\n")
    done = capture("sees.py", cwd=tmp_path, PYTHONPATH=str(tmp_path / "mine"))
    assert done.stdout.strip() == str(tmp_path / "mine" / "sitecustomize.py")


def test_death_by_a_signal_is_the_scripts_own(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert capture("dies.py", cwd=tmp_path).returncode == -9


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["missing.py"], "there is no missing.py"),
        (["no-such-program"], "cannot run no-such-program"),
        (["-m"], "-m needs a module"),
    ],
)
def test_what_cannot_run_is_one_line(tmp_path: Path, command: list[str], says: str) -> None:
    done = capture(*command, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_written_is_told_before_the_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = capture(NANOGPT, cwd=tmp_path, options=("--out", "file/traces"))
    assert done.returncode == 2
    assert "cannot write in" in done.stderr
    assert done.stdout == ""


def test_importing_tracelens_imports_no_torch() -> None:
    code = (
        "import sys, tracelens; tracelens.capture; print('torch' in sys.modules, callable(tracelens.capture))"
    )
    assert run("-c", code, cwd=Path.cwd()).stdout.split() == ["False", "True"]


def test_two_trainings_of_one_run_do_not_replace_each_other(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(
        "import subprocess, sys\n"
        f"for _ in range(2): subprocess.run([sys.executable, {str(NANOGPT)!r}], check=True)\n"
    )
    done = capture("two.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in (tmp_path / "traces").iterdir())
    assert len(names) == 2
    assert names[1] == "rank0.json.gz"
    assert all(module_names(load(tmp_path / "traces" / name)) for name in names)
    assert sys.executable not in done.stderr
