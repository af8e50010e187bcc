"""A stage is measured once, in time, from where the last start left off; bad runs are refused and kept."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import collect, worker
from benchmarks.gpu.plan import as_text, make_plan, pack
from benchmarks.gpu.runner import DeviceLost, _Measuring, quiet_s, run_stage
from benchmarks.gpu.stage import Item, Row, Setting, Skip, Stage
from benchmarks.gpu.stages import STAGES
from benchmarks.gpu.store import Folder, Progress, read_result, write_json
from tests.gpu_record.toy import ALONE, COOL, Clock, run_on, stage
from tests.said import Listener

ROOT = Path(__file__).resolve().parents[2]


def result_of(folder: Path, name: str) -> dict[str, Any]:
    return read_result(folder / "results" / "h200" / f"{name}.json")


# -- what a good run leaves ------------------------------------------------------------------------


def test_a_result_says_what_it_is_of_and_how_it_was_made(tmp_path: Path) -> None:
    run, _ = run_on(tmp_path)
    assert run_stage(stage("sums"), run).current
    result = result_of(tmp_path, "sums")
    assert result["schema"] == "tracelens.gpu-result/2"
    assert (result["state"], result["refused"], result["dry_run"]) == ("done", [], False)
    assert result["data"] == {"values": [0, 1, 2, 3]}
    assert result["clocks"] == {"before": COOL, "after": COOL}
    assert result["sessions"][0]["others"] == ALONE
    assert result["spread"]["median_frac"] == 0.01
    assert result["command"] == "test"
    assert not list((tmp_path / "results" / "h200").glob("*.progress.jsonl"))


def test_a_current_result_is_not_measured_again(tmp_path: Path) -> None:
    run, _ = run_on(tmp_path)
    run_stage(stage("sums"), run)
    before = (tmp_path / "results" / "h200" / "sums.json").read_bytes()

    def never(setting: Setting, item: Item) -> Row:
        raise AssertionError("measured again")

    run, lines = run_on(tmp_path)
    assert run_stage(stage("sums", measure=never), run).current
    assert (tmp_path / "results" / "h200" / "sums.json").read_bytes() == before
    assert lines[0].startswith("sums: current, measured 20")


def test_a_result_is_stale_when_its_method_is_another_one_and_never_else(tmp_path: Path) -> None:
    run, _ = run_on(tmp_path)
    run_stage(stage("sums"), run)
    another_list = stage("sums", 7, measure=lambda setting, item: {"value": 0})
    assert run.folder.look(another_list).current
    newer = stage("sums", method=2)
    assert run.folder.look(newer).state == "stale"
    assert run_stage(newer, run).current
    assert result_of(tmp_path, "sums")["method"] == 2


def test_what_the_tool_says_of_an_item_is_on_disk_before_it_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "results" / "h200" / "sums.progress.jsonl"
    tries: list[str] = []

    def predict(setting: Setting, item: Item) -> dict[str, Any] | None:
        tries.append(item.key)
        if item.spec == 2:
            raise ValueError("no such GPU")
        return {"by": "datasheet", "values": {item.key: [1.0, 2.0, len(tries)]}} if item.spec else None

    def measure(setting: Setting, item: Item) -> Row:
        assert any(item.key in line for line in path.read_text().splitlines() if "predicted" in line)
        if item.spec == 1 and tries.count("sums-3") == 0:
            raise RuntimeError("once more")
        return {"value": item.spec}

    run, _ = run_on(tmp_path)
    assert run_stage(stage("sums", measure=measure, predict=predict), run).current
    said = result_of(tmp_path, "sums")["predictions"]
    assert said.keys() == {"sums-1", "sums-2", "sums-3"}
    assert said["sums-1"]["values"] == {"sums-1": [1.0, 2.0, 2]}  # of before its first try, not its second
    assert said["sums-2"] == {"why": "ValueError: no such GPU"}


def test_results_of_the_repository_count_where_new_ones_go_elsewhere(tmp_path: Path) -> None:
    """A machine whose results are brought home from another folder does not measure twice."""
    home, _ = run_on(tmp_path / "home")
    run_stage(stage("sums"), home)
    home.folder.progress(stage("open")).append("row", ["open-0", {"value": 7}])
    far, _ = run_on(tmp_path / "far")
    far.folder = Folder(far.folder.path, known=home.folder.path)
    assert run_stage(stage("sums"), far).current
    assert not far.folder.path.exists()
    assert run_stage(stage("open"), far).current
    assert result_of(tmp_path / "far", "open")["data"] == {"values": [7, 1, 2, 3]}
    assert home.folder.look(stage("open")).state == "partial"  # untouched


# -- minutes ---------------------------------------------------------------------------------------


def minutes(items: int) -> tuple[Clock, list[str], Stage]:
    """A stage of items of a minute each, the clock that they move, and what of them was measured."""
    clock = Clock()
    measured: list[str] = []

    def minute(setting: Setting, item: Item) -> Row:
        clock.now += 60
        measured.append(item.key)
        return {"value": item.spec}

    return clock, measured, stage("long", items, 60.0, minute)


def test_a_run_stops_in_time_and_the_next_one_goes_on(tmp_path: Path) -> None:
    clock, measured, long = minutes(10)
    run, lines = run_on(tmp_path, clock, minutes=4.5)
    assert run_stage(long, run).state == "partial"
    assert clock.now <= run.until
    # with 30 s left an item of a minute is not begun; with 90 it is, a quarter of it to spare
    assert measured == ["long-0", "long-1", "long-2", "long-3"]
    assert any("stopped in time" in line for line in lines)
    run, _ = run_on(tmp_path, clock, minutes=60)
    assert run_stage(long, run).current
    assert sorted(measured) == sorted(f"long-{at}" for at in range(10))  # each once
    assert len(result_of(tmp_path, "long")["sessions"]) == 2


def test_an_estimate_that_proves_too_low_is_not_believed_any_more(tmp_path: Path) -> None:
    clock = Clock()

    def slower(setting: Setting, item: Item) -> Row:
        clock.now += 30
        return {"value": item.spec}

    run, _ = run_on(tmp_path, clock, minutes=5)
    run_stage(stage("sums", 100, 10.0, slower), run)
    assert clock.now <= run.until


def test_minutes_are_packed_in_order_of_value(tmp_path: Path) -> None:
    run, _ = run_on(tmp_path)
    stages = [stage("a", 2, 100.0), stage("b", 10, 60.0), stage("c", 1, 50.0), stage("d", 1, 500.0)]
    plan = make_plan(stages, run.folder, run.setting(tmp_path))
    assert [line.seconds for line in plan] == [200, 600, 50, 500]
    assert [line.stage.name for line in pack(plan, 300)] == ["a", "c", "b"]  # b goes on another time
    assert [line.stage.name for line in pack(plan, 1e9)] == ["a", "b", "c", "d"]
    run_stage(stages[0], run)
    plan = make_plan(stages, run.folder, run.setting(tmp_path))
    assert [line.stage.name for line in pack(plan, 100)] == ["c", "b"]


def test_the_plan_says_what_is_missing_how_long_and_what_it_writes(tmp_path: Path, said: Listener) -> None:
    run, _ = run_on(tmp_path, Clock())
    stages = [stage("done"), stage("open", 3, 90.0)]
    run_stage(stages[0], run)
    text = as_text(make_plan(stages, run.folder, run.setting(tmp_path)), "h200")
    rows = [line.split()[:5] for line in text.splitlines()]
    assert ["done", "current", "4", "0.0", "4"] in rows and ["open", "missing", "3", "4.5", "4"] in rows
    said(text.splitlines()[-1])


def test_a_plan_needs_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert collect.main(["--plan", "--gpu", "h200"]) == 0
    out = capsys.readouterr().out
    assert all(one.name in out for one in STAGES)


def test_without_a_gpu_nothing_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert worker.main([]) == 3
    assert capsys.readouterr().err.startswith("no NVIDIA GPU at hand: ")


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clocks", "company", "why"),
    [
        ([COOL, COOL | {"reasons": ["hardware thermal slowdown"]}], [], "hardware thermal slowdown"),
        ([COOL, COOL | {"sm_mhz": 700.0}], [], "700 of 1980 MHz under load"),
        ([COOL, COOL | {"sm_mhz": 1300.0, "reasons": []}], [], "moved from 1300 to 1700 MHz"),
        ([], [{"processes": 1}], "another process on the GPU"),
        ([], [ALONE, {"processes": 2}], "another process on the GPU"),
        ([], [{"processes": None, "foreign_memory_mb": 20000}], "20.0 GB of GPU memory are held by others"),
    ],
)
def test_a_run_in_bad_conditions_is_refused_and_kept(
    tmp_path: Path, clocks: list[dict[str, Any]], company: list[dict[str, Any]], why: str
) -> None:
    run, lines = run_on(tmp_path, clocks=clocks, company=company)
    state = run_stage(stage("sums"), run)
    assert not state.current
    assert not (tmp_path / "results" / "h200" / "sums.json").exists()
    refused = read_result(tmp_path / "results" / "h200" / "sums.refused.json")
    assert refused["state"] == "refused"
    assert any(why in reason for reason in refused["refused"])
    assert any(why in line for line in lines)
    run, _ = run_on(tmp_path)  # the conditions are good again
    assert run_stage(stage("sums"), run).current
    assert not (tmp_path / "results" / "h200" / "sums.refused.json").exists()


def test_rows_of_good_sessions_outlive_a_bad_one(tmp_path: Path) -> None:
    clock, measured, long = minutes(6)
    run, _ = run_on(tmp_path, clock, minutes=2.1)
    run_stage(long, run)
    assert measured == ["long-0"]
    run, _ = run_on(tmp_path, clock, clocks=[COOL, COOL | {"reasons": ["hardware slowdown"]}])
    assert run_stage(long, run).state == "partial"
    measured.clear()
    run, _ = run_on(tmp_path, clock)
    assert run_stage(long, run).current
    assert measured == [f"long-{at}" for at in range(1, 6)]


def test_a_warm_gpu_at_its_power_cap_is_no_fault(tmp_path: Path) -> None:
    run, _ = run_on(tmp_path, clocks=[COOL | {"sm_mhz": 1980.0, "reasons": []}, COOL | {"sm_mhz": 1500.0}])
    assert run_stage(stage("sums"), run).current


def test_what_cannot_be_read_refuses_nothing(tmp_path: Path) -> None:
    unknown = {"sm_mhz": None, "reasons": None, "why": "no NVML"}
    nobody = {"processes": None, "foreign_memory_mb": None, "why": "no NVML"}
    run, _ = run_on(tmp_path, clocks=[unknown, unknown], company=[nobody, nobody])
    assert run_stage(stage("sums"), run).current
    assert result_of(tmp_path, "sums")["clocks"]["after"]["why"] == "no NVML"


def test_a_spread_over_five_percent_is_refused(tmp_path: Path, said: Listener) -> None:
    def shaky(setting: Setting, item: Item) -> Row:
        return {"value": item.spec, "spread_frac": 0.02 if item.spec == 0 else 0.07}

    run, _ = run_on(tmp_path)
    said(run_stage(stage("sums", measure=shaky), run).why)
    # one shaky item among steady ones is named in the result, for whoever draws it
    mostly = stage("mostly", measure=lambda s, item: {"value": 1, "spread_frac": 0.2 * (item.spec == 3)})
    assert run_stage(mostly, run).current
    assert result_of(tmp_path, "mostly")["spread"]["above_limit_items"] == ["mostly-3"]


def test_a_stages_own_check_and_its_size_cap_refuse(tmp_path: Path, said: Listener) -> None:
    run, _ = run_on(tmp_path)
    wrong = stage("wrong", check=lambda data: ["bf16 was asked for, sgemm ran"])
    said(run_stage(wrong, run).why)
    large = stage("large", measure=lambda s, item: {"value": "x" * 10_000}, cap_mb=0.02)
    said(run_stage(large, run).why)


def test_an_item_that_fails_twice_is_listed_and_refuses_the_stage_unless_it_may(
    tmp_path: Path, said: Listener
) -> None:
    tries: list[str] = []

    def fails(setting: Setting, item: Item) -> Row:
        tries.append(item.key)
        if item.spec == 1:
            raise RuntimeError("out of memory\nat a long address")
        if item.spec == 2:
            raise Skip("no fp8 before compute capability 8.9")
        return {"value": item.spec}

    run, lines = run_on(tmp_path)
    state = run_stage(stage("strict", measure=fails), run)
    said(state.why)
    assert tries.count("strict-1") == 2
    assert run_stage(stage("lenient", measure=fails, max_failed_frac=0.3), run).current
    result = result_of(tmp_path, "lenient")
    assert result["failed"] == {"lenient-1": "RuntimeError: out of memory"}
    assert [*result["skipped"]] == ["lenient-2"]
    said(result["skipped"]["lenient-2"])
    assert result["data"] == {"values": [0, 3]}
    assert any(": no fp8" in line for line in lines)


def test_not_a_number_is_a_failure_not_a_row(tmp_path: Path) -> None:
    run, _ = run_on(tmp_path)
    state = run_stage(stage("sums", measure=lambda s, item: {"value": float("nan")}), run)
    assert state.state == "refused"


# -- damaged files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"schema": "tracelens.gpu-result/2"}',
        '{"schema": "tracelens.gpu-result/9", "state": "done"}',
        "[" * 100_000,
    ],
)
def test_a_damaged_result_counts_as_missing_and_says_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results" / "h200" / "sums.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    run, lines = run_on(tmp_path)
    assert run.folder.look(stage("sums")).state == "damaged"
    assert run_stage(stage("sums"), run).current
    assert lines[0].startswith("sums: sums.json ")
    assert lines[0].endswith("; measured again")


def test_a_dry_run_does_not_pass_for_a_measurement(tmp_path: Path) -> None:
    run, _ = run_on(tmp_path)
    run_stage(stage("sums"), run)
    path = tmp_path / "results" / "h200" / "sums.json"
    path.write_text(json.dumps(read_result(path) | {"dry_run": True}))
    assert run.folder.look(stage("sums")).state == "damaged"


@pytest.mark.parametrize(
    "tail", [b'{"row": ["sums-1", {"val', b'{"row": 7}\n', b"[]\n", b'{"row": ["sums-9"]}\n', b"\xff\n"]
)
def test_a_torn_progress_file_loses_its_torn_line_only(tmp_path: Path, tail: bytes) -> None:
    one = stage("sums")
    progress = Folder(tmp_path).progress(one)
    progress.append("row", ["sums-0", {"value": 0}])
    with open(progress.path, "ab") as file:
        file.write(tail)
    again = Folder(tmp_path).progress(one)
    assert set(again.rows) == {"sums-0"}
    again.append("row", ["sums-1", {"value": 1}])
    assert set(Folder(tmp_path).progress(one).rows) == {"sums-0", "sums-1"}


def test_progress_of_another_method_is_started_over(tmp_path: Path) -> None:
    Progress(tmp_path / "p.jsonl", "sums", 1).append("row", ["sums-0", {}])
    newer = Progress(tmp_path / "p.jsonl", "sums", 2)
    assert newer.rows == {}
    newer.append("row", ["sums-1", {}])
    assert set(Progress(tmp_path / "p.jsonl", "sums", 2).rows) == {"sums-1"}


def test_a_row_whose_trace_did_not_come_home_is_measured_again(tmp_path: Path) -> None:
    clock = Clock()
    measured: list[str] = []

    def writes(setting: Setting, item: Item) -> Row:
        clock.now += 60
        measured.append(item.key)
        setting.traces.mkdir(parents=True, exist_ok=True)
        (setting.traces / f"{item.key}.gz").write_bytes(b"x" * 10)
        return {"value": item.spec, "files": [f"{item.key}.gz"]}

    traced = stage("traced", 3, 60.0, writes)
    run, _ = run_on(tmp_path, clock, minutes=3.1)
    assert run_stage(traced, run).state == "partial"
    assert measured == ["traced-0", "traced-1"]
    (tmp_path / "sample_traces" / "traced-0.gz").unlink()
    run, _ = run_on(tmp_path, clock)
    assert run_stage(traced, run).current
    assert measured[2:] == ["traced-0", "traced-2"]
    files = result_of(tmp_path, "traced")["files"]
    assert [one["name"] for one in files] == ["traced-0.gz", "traced-1.gz", "traced-2.gz"]
    assert all(one["bytes"] == 10 and len(one["sha256"]) == 64 for one in files)


# -- kills -----------------------------------------------------------------------------------------


TOYS = [sys.executable, "-u", "-m", "tests.gpu_record.toy", "--dry-run-cpu", "--results"]


def collect_toys(out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*TOYS, str(out / "results")],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_killed_at_random_points_nothing_finished_is_measured_again(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    chance = random.Random()
    seen: dict[str, int] = {}
    for _ in range(3):
        process = collect_toys(tmp_path)
        assert process.stdout is not None
        stop = chance.randrange(1, 11)
        items = 0
        for line in process.stdout:
            if found := re.match(r"\w+ \d+/12 (\S+): value", line):
                seen[found[1]] = seen.get(found[1], 0) + 1
                items += 1
                if items == stop:
                    process.send_signal(signal.SIGKILL)
                    break
        process.stdout.read()
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
    process = collect_toys(tmp_path)
    out, _ = process.communicate(timeout=3600)
    assert process.returncode == 0, out
    for key in re.findall(r"\w+ \d+/12 (\S+): value", out):
        seen[key] = seen.get(key, 0) + 1
    names = ("first", "second", "third")
    assert seen.keys() <= {f"{name}-{at}" for name in names for at in range(12)}
    assert max(seen.values()) == 1, seen  # a line is said when its row is on disk
    assert len(seen) >= 36 - 3  # a kill may come between the row and its line
    for name in names:
        assert read_result(tmp_path / "results" / "cpu" / f"{name}.json")["data"] == {"values": [*range(12)]}
    assert not [path for path in tmp_path.rglob("*") if ".partial-" in path.name]


def test_an_item_that_ends_the_process_each_time_is_given_up(tmp_path: Path, said: Listener) -> None:
    one = stage("sums", max_failed_frac=0.5)
    for _ in range(3):
        progress = Folder(tmp_path / "results" / "h200").progress(one)
        progress.append("begin", "sums-2")
    run, _ = run_on(tmp_path)
    measuring = _Measuring(one, run, run.setting(tmp_path))
    assert [item.key for item in measuring.missing()] == ["sums-0", "sums-1", "sums-3"]
    assert run_stage(one, run).current
    failed = result_of(tmp_path, "sums")["failed"]
    assert [*failed] == ["sums-2"]
    said(failed["sums-2"])


def test_an_item_that_ended_a_process_comes_last(tmp_path: Path) -> None:
    one = stage("sums")
    Folder(tmp_path / "results" / "h200").progress(one).append("begin", "sums-0")
    run, _ = run_on(tmp_path)
    measuring = _Measuring(one, run, run.setting(tmp_path))
    assert [item.key for item in measuring.missing()] == ["sums-1", "sums-2", "sums-3", "sums-0"]


def test_a_stage_with_a_mistake_in_it_costs_itself_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")

    def no_items(setting: Setting) -> list[Item]:
        if setting.left_s() < float("inf") or setting.kind == "cpu":
            calls.append(1)
        if len(calls) > 1:  # the plan was made, the stage begins
            raise KeyError("brief")
        return [Item("broken-0", 1.0)]

    calls: list[int] = []
    broken = replace(stage("broken"), items=no_items)
    words = ["--dry-run-cpu", "--results", str(tmp_path / "results")]
    assert worker.main(words, stages=(broken, stage("sums"))) == 1
    assert "sums: done" in capsys.readouterr().out


def test_a_lost_device_asks_for_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an illegal access every call of the process fails: the rest needs a new one, not the blame."""
    pytest.importorskip("torch")

    def lost(self: _Measuring, item: Item) -> None:
        raise DeviceLost("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(_Measuring, "_one", lost)
    words = ["--dry-run-cpu", "--results", str(tmp_path / "results")]
    assert worker.main(words, stages=(stage("sums"),)) == collect.LOST


# -- the watchdog ----------------------------------------------------------------------------------


def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **environment: str) -> tuple[int, list[str]]:
    pytest.importorskip("torch")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(collect, "_GRACE_S", 0.3)
    said: list[str] = []
    code = collect.watch([*TOYS, str(tmp_path / "results")], say=said.append)
    return code, said


def stage_ends(said: list[str]) -> list[str]:
    """What became of each stage, in order of time."""
    found = [
        re.match(r"(\w+): (done|nothing more was heard|the process ended by signal)", one) for one in said
    ]
    return [f"{one[1]} {one[2].split()[0]}" for one in found if one]


def test_a_stage_that_hangs_is_ended_and_the_next_ones_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Listener
) -> None:
    code, lines = watched(tmp_path, monkeypatch, TOY_HANGS="second")
    assert code == 1
    # killed at its second item; then third before second, whose other items are measured, until the item
    # that hangs has ended three processes and is given up
    assert stage_ends(lines)[:3] == ["first done", "second nothing", "third done"]
    folder = tmp_path / "results" / "cpu"
    assert read_result(folder / "third.json")["data"] == {"values": [*range(12)]}
    refused = read_result(folder / "second.refused.json")
    assert [*refused["failed"]] == ["second-1"]
    said(refused["failed"]["second-1"])
    assert refused["data"] == {"values": [0, *range(2, 12)]}


def test_a_process_that_dies_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = watched(tmp_path, monkeypatch, TOY_DIES="first")
    assert code == 1
    assert stage_ends(said)[:3] == ["first the", "second done", "third done"]
    assert not list((tmp_path / "results" / "cpu").glob("*.progress.jsonl"))


def test_a_worker_that_never_answers_ends_with_the_minutes(
    monkeypatch: pytest.MonkeyPatch, said: Listener
) -> None:
    monkeypatch.setattr(collect, "_GRACE_S", 0.3)
    text: list[str] = []
    asleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert collect.watch(asleep, minutes=0.2, say=text.append, most_quiet_s=1.0) == 1
    said(text[0])


def test_the_exit_code_is_the_workers_and_a_wrong_word_is_told_once() -> None:
    said: list[str] = []
    assert collect.watch([sys.executable, "-c", "raise SystemExit(3)"], say=said.append) == 3
    assert said == []


def test_each_item_says_how_long_it_may_be_quiet(tmp_path: Path) -> None:
    heard: list[float] = []
    run, _ = run_on(tmp_path)
    run.quiet = heard.append
    run_stage(stage("sums", 2, 30.0), run)
    assert heard.count(quiet_s(Item("", 30.0))) == 2
    assert max(heard) < 600  # less than a machine's command may take


# -- refused, and judged again ---------------------------------------------------------------------


def test_what_was_refused_for_its_data_keeps_them_and_comes_last(tmp_path: Path) -> None:
    run, _ = run_on(tmp_path)
    wrong = stage("wrong", check=lambda data: ["bf16 was asked for, sgemm ran"])
    run_stage(wrong, run)
    refused = read_result(tmp_path / "results" / "h200" / "wrong.refused.json")
    assert refused["of_data"] and refused["data"] == {"values": [0, 1, 2, 3]}
    plan = make_plan([wrong, stage("sums")], run.folder, run.setting(tmp_path))
    assert [line.stage.name for line in pack(plan, 100)] == ["sums", "wrong"]


def test_a_refused_result_that_passes_todays_checks_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.gpu import summarize

    run, _ = run_on(tmp_path)
    strict = stage("sums", check=lambda data: ["a name that is not read right"])
    run_stage(strict, run)
    results = tmp_path / "results"
    monkeypatch.setattr(summarize, "STAGES", (strict,))
    assert summarize.judge_again(results) == []
    monkeypatch.setattr(summarize, "STAGES", (stage("sums"),))
    assert len(summarize.judge_again(results)) == 1
    assert run.folder.look(stage("sums")).current
    # neither items that failed nor a throttled GPU are made good by looking again
    failing = stage("failing", measure=lambda s, item: {"value": float("nan")}, check=lambda data: ["wrong"])
    run_stage(failing, run)
    monkeypatch.setattr(summarize, "STAGES", (stage("failing"),))
    assert summarize.judge_again(results) == []
    path = results / "h200" / "hot.refused.json"
    write_json(path, {**read_result(results / "h200" / "sums.json"), "stage": "hot", "state": "refused"})
    monkeypatch.setattr(summarize, "STAGES", (stage("hot"),))
    write_json(path, {k: v for k, v in json.loads(path.read_text()).items() if k != "of_data"})
    assert summarize.judge_again(results) == []
