"""Whole jobs: planted causes are named, clean jobs accuse nobody, and no order or loss changes the answer."""

from __future__ import annotations

import gzip
import io
import json
import re
import shlex
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pyarrow
import pytest
from click.testing import CliRunner
from markupsafe import escape
from rich.console import Console

from tests.job.killer import killed_at_rank_2
from tests.job.plants import PLANTS, Plant, accuses_nobody, clean_jobs, small
from tests.job.simulated import Job, Simulation, data_parallel, planted
from tests.said import Listener
from tracelens import numbers as f
from tracelens.accounting.limits import picture_of
from tracelens.analysis import analyze
from tracelens.cli import cli
from tracelens.errors import InputError
from tracelens.gates import judge_job
from tracelens.job.blocks import find_nodes
from tracelens.job.compare import compare_folders
from tracelens.job.merge import merge
from tracelens.job.model import job_degrees, job_model
from tracelens.job.run import RankWork, analyze_job, summarize_file, summarize_files
from tracelens.job.saved import unpack_report
from tracelens.job.stragglers import _capped
from tracelens.job.summary import SUMMARY_VERSION, CallKind, RankSummary, decode, encode, summarize
from tracelens.job.unrelated import check_one_job
from tracelens.job.waits import LATE_BY
from tracelens.render.compare_folder_words import told_folders
from tracelens.render.job import job_markdown, render_job
from tracelens.render.job_cells import collective_cells
from tracelens.render.job_html import render_job_html
from tracelens.render.job_words import details, evidence, verdict
from tracelens.render.redact import redact_summary
from tracelens.results import Known
from tracelens.results.job import Job as Answer
from tracelens.results.job import Parts, to_json
from tracelens.results.json import to_json as to_report_json
from tracelens.trace.decode import decode_events

SHARED = Path(__file__).parents[3] / "shared" / "traces"


#: One of each cause; ``python -m benchmarks.job planted`` runs all twenty.
EACH = {
    "GPU slower by 12 %, strange clock",
    "CPU 14 times slower",
    "batch 2.5 ms late",
    "link 2 times slower",
    "pipeline stage of 9 layers, others 6",
    "experts with 1.4 times the tokens",
}


def _terminal(found: Answer) -> str:
    file = io.StringIO()
    render_job(found, console=Console(file=file, width=80))
    return file.getvalue()


def answer(job: Job, folder: Path) -> Answer:
    Simulation(job).write(folder)
    return analyze_job([folder], workers=1)


@pytest.mark.parametrize("plant", [one for one in PLANTS if one.name in EACH], ids=lambda one: one.name)
def test_a_planted_cause_and_its_rank_are_named(plant: Plant, tmp_path: Path) -> None:
    job, at = plant.job(seed=3)
    found = answer(job, tmp_path)
    assert plant.named(found, job, at), verdict(found)
    assert f"ank{'s' if plant.limit == 'slow_link' else ''} {at}" in verdict(found)


def test_a_group_that_sends_slowly_is_measured_against_the_others(tmp_path: Path) -> None:
    found = answer(small(groups=2, link={1: 2.0}, seed=1), tmp_path)
    (link,) = found.slow_links
    assert link.send_us == pytest.approx(2 * link.others_us, rel=0.05)
    assert [len(one) for one in found.clock.shared] == [2, 2]


@pytest.mark.parametrize("name, job", [one for one in clean_jobs() if one[0].endswith(", 1")])
def test_a_clean_job_accuses_nobody(name: str, job: Job, tmp_path: Path, said: Listener) -> None:
    found = answer(job, tmp_path)
    assert accuses_nobody(found), name
    assert found.limit == ("bubbles" if name.startswith("pipeline") else "communication")
    if found.limit == "bubbles":  # a stage receives when the one before has sent
        assert all(row.parts.messages_ms > row.parts.sending_ms for row in found.ranks)
        said(verdict(found))
    assert found.left == [] and found.missing == []


def test_clocks_that_drift_are_brought_together(tmp_path: Path) -> None:
    """Over many steps a drift is as large as the steps' own skew."""
    job = planted(lambda: data_parallel(4, steps=12), 1, shift_us=5000.0, drift=3e-3)
    found = answer(job, tmp_path)
    assert found.clock.drifting
    assert found.clock.residual_us == pytest.approx(1.5, abs=1.5)  # the simulated ends differ by 1.5 us
    assert found.stragglers == []


def test_calls_that_do_not_end_together_tell_no_late_rank(tmp_path: Path, said: Listener) -> None:
    """As an all-to-all from rank to rank does: one end of it is done before the other, by turns."""
    for at, file in enumerate(Simulation(data_parallel(2, steps=3)).write(tmp_path)):
        trace = json.loads(file.read_text())
        calls = [event for event in trace["traceEvents"] if event["name"].startswith("ncclDevKernel")]
        for number, event in enumerate(calls):
            event["ts"] -= (900 + 5 * number) * ((number + at) % 2)
        file.write_text(json.dumps(trace))
    found = analyze_job([tmp_path], workers=1)
    assert found.matched_calls and found.stragglers == [] and not found.waits_told
    (gate,) = judge_job(found, ["straggler>1%"])
    assert gate.state == "unknown"
    said(job_markdown(found))


def test_parts_add_up_to_the_step_and_agree_with_each_ranks_own_report(tmp_path: Path) -> None:
    files = Simulation(planted(small, 2, gpu=1.2)).write(tmp_path)
    found = merge([summarize(analyze(path, shape_search=False)) for path in files])
    for row, path in zip(found.ranks, files, strict=True):
        report = analyze(path).report
        mean = np.mean([step.duration_ms for step in report.steps])
        assert row.parts.step_ms == pytest.approx(mean, abs=1e-5)
        assert row.parts.exposed_ms == pytest.approx(report.summary.exposed_communication_ms, abs=1e-5)
        assert row.parts.idle_ms + row.parts.input_ms == pytest.approx(report.summary.idle_ms, abs=1e-5)


@pytest.fixture(scope="module")
def summaries(tmp_path_factory: pytest.TempPathFactory) -> list[RankSummary]:
    folder = tmp_path_factory.mktemp("summaries")
    files = Simulation(planted(small, 3, cpu=14.0)).write(folder)
    return [summarize(analyze(path, shape_search=False)) for path in files]


def test_merging_knows_no_order_and_a_bundle_is_its_parts(summaries: list[RankSummary]) -> None:
    whole = encode(summaries)
    mixed = [summaries[at] for at in (2, 0, 3, 1, 0)]
    assert encode(mixed) == whole
    left, right = encode(summaries[:2]), encode(summaries[2:])
    assert encode([*decode(right, "r"), *decode(left, "l")]) == whole
    assert decode(whole, "w") == summaries
    copied = msgspec.structs.replace(summaries[0], file="copy.json", partial=True)
    assert encode([*summaries, copied]) == encode([copied, *summaries])
    assert to_json(merge([*summaries, copied])) == to_json(merge([copied, *summaries]))
    assert to_json(merge(mixed)) == to_json(merge(summaries)) == to_json(merge(decode(whole, "w")))


def test_a_summary_is_small_and_a_foreign_file_is_refused(summaries: list[RankSummary]) -> None:
    assert len(encode(summaries[:1])) < 100_000
    for data in (b"", b"{}", b"[1]", b"\x1f\x8bxx", encode(summaries)[:-40]):
        with pytest.raises(InputError):
            merge(decode(data, "x"))
    own = f'"summary_version":"{SUMMARY_VERSION}"'.encode()
    later = msgspec.json.encode(summaries[0]).replace(own, b'"summary_version":"9.0"')
    with pytest.raises(InputError, match="version 9"):
        decode(later, "x")


def test_a_broken_a_missing_and_a_foreign_rank_are_said(tmp_path: Path) -> None:
    Simulation(small()).write(tmp_path)
    (tmp_path / "rank1.json").unlink()
    (tmp_path / "rank2.json").write_text('{"traceEvents": [')
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "again.json").write_bytes((tmp_path / "rank0.json").read_bytes() + b" ")
    (tmp_path / "zother.json").write_text(
        (tmp_path / "rank3.json").read_text().replace('"world_size": 4', '"world_size": 16')
    )
    found = analyze_job([tmp_path], workers=1)
    assert [row.rank for row in found.ranks] == [0, 3]
    assert found.missing == [1, 2]
    assert {one.file for one in found.left} == {"rank2.json", "notes.txt", "rank0.json", "zother.json"}
    assert "ranks 1-2" in job_markdown(found)


def test_traces_of_different_runs_are_refused_and_unlike_ranks_of_one_job_are_not(
    summaries: list[RankSummary], said: Listener
) -> None:
    alone = [
        msgspec.structs.replace(one, rank=None, world_size=None, file=f"{at}.json", kinds=[])
        for at, one in enumerate(summaries[:2])
    ]
    first, second = alone
    check_one_job(alone)  # without metadata and collectives, and alike
    gpu = replace(second.gpu, title="NVIDIA GeForce RTX 3060")
    check_one_job([first, msgspec.structs.replace(second, gpu=gpu)])  # another GPU alone is legitimate
    backward = [replace(row, phase="backward") for row in second.components]
    other = msgspec.structs.replace(second, gpu=gpu, components=backward)
    with pytest.raises(InputError) as refused:
        check_one_job([first, other])
    assert all(word in refused.value.cause for word in ("0.json", "1.json", gpu.title, "forward only"))
    assert "analyze" in str(refused.value)
    said(refused.value)
    kinds, world = summaries[0].kinds, 2
    for tied in ({"kinds": kinds}, {"world_size": world}):  # they exchange messages, or state one world
        check_one_job([msgspec.structs.replace(one, **tied) for one in (first, other)])


def test_runs_and_cycles_of_one_process_are_no_ranks(summaries: list[RankSummary], said: Listener) -> None:
    bare: dict[str, Any] = {"rank": None, "world_size": None, "kinds": [], "base_ns": 1_790_000_000 * 10**9}
    first, second = (
        msgspec.structs.replace(one, file=f"{at}.json", **bare) for at, one in enumerate(summaries[:2])
    )
    check_one_job([first, second])
    later = msgspec.structs.replace(second, base_ns=second.base_ns + 30 * 10**9)
    alone = [msgspec.structs.replace(one, world_size=1) for one in (first, second)]
    for ranks in ([first, later], [later, first], alone):
        with pytest.raises(InputError) as refused:
            check_one_job(ranks)
        said(refused.value)
    check_one_job([first, msgspec.structs.replace(later, kinds=summaries[0].kinds)])
    with pytest.raises(InputError) as refused:  # with a process group of one, each is of rank 0
        merge([msgspec.structs.replace(one, rank=0) for one in alone])
    assert {"0.json", "1.json"} <= {*re.split(r"[ :]", refused.value.cause)}


def test_a_stale_file_of_another_day_is_left_out_where_clocks_tell_the_date(
    summaries: list[RankSummary], said: Listener
) -> None:
    *others, last = summaries
    days = 28 * 86_400 * 10**9
    found = merge([*others, msgspec.structs.replace(last, base_ns=last.base_ns - days)])
    assert [one.file for one in found.left] == [last.file] and len(found.ranks) == len(others)
    said(found.left[0].why)
    since_boot = [msgspec.structs.replace(one, base_ns=-one.steps[0].start_ns) for one in others]
    late = msgspec.structs.replace(last, base_ns=since_boot[0].base_ns + days)
    assert merge([*since_boot, late]).left == []


def test_a_stale_file_takes_no_rank_from_the_job_and_of_as_many_the_latest_count(
    summaries: list[RankSummary],
) -> None:
    """Names begin with a time, so that the stale file of a rank is its first."""
    days = 28 * 86_400 * 10**9
    stale = [
        msgspec.structs.replace(one, file=f"0_{one.file}", sha256="", base_ns=one.base_ns - days)
        for one in summaries
    ]
    for some in (stale[:1], stale):
        found = merge([*some, *summaries])
        assert [one.name for one in found.ranks] == [one.name for one in merge(summaries).ranks]
        assert {one.file for one in found.left} == {one.file for one in some}


def test_finished_ranks_are_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    traces = tmp_path / "traces"
    traces.mkdir()
    Simulation(small()).write(traces)
    first = analyze_job([traces], workers=1, keep=keep)
    assert len(list(keep.glob("*.summary"))) == 4
    monkeypatch.setattr("tracelens.analysis.analyze", lambda *_, **__: pytest.fail("analyzed again"))
    assert to_json(analyze_job([traces], workers=1, keep=keep)) == to_json(first)
    assert to_json(analyze_job([keep], workers=1)) == to_json(first)


def test_several_processes_give_the_same_and_a_killed_one_takes_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Simulation(small()).write(tmp_path)
    others = to_json(analyze_job([file for file in files if "rank2" not in file.name], workers=1))
    monkeypatch.setattr("tracelens.job.run.summarize_file", killed_at_rank_2)
    found = analyze_job([str(tmp_path / "rank*.json")], workers=2)
    assert [(one.file, "killed" in one.why) for one in found.left] == [("rank2.json", True)]
    assert found.missing == [2] and "rank 2" in job_markdown(found)
    assert to_json(msgspec.structs.replace(found, left=[])) == others


class Failing(ThreadPoolExecutor):
    """An engine one of whose workers is lost."""

    def submit(self, work: Any, /, *rest: Any, **named: Any) -> Any:
        if "rank3" in rest[0]:
            lost: Future[None] = Future()
            lost.set_exception(OSError("worker lost"))
            return lost
        return super().submit(work, *rest, **named)


def test_any_executor_does_the_same_work_and_may_lose_a_worker(tmp_path: Path, said: Listener) -> None:
    files = Simulation(small()).write(tmp_path)
    with Failing(2) as executor:
        found = analyze_job([tmp_path], executor=executor)
    assert [one.file for one in found.left] == ["rank3.json"]
    assert to_json(msgspec.structs.replace(found, left=[])) == to_json(analyze_job(files[:3], workers=1))
    said(found.left[0].why)


def test_a_file_that_ends_early_neither_takes_steps_from_the_others_nor_counts_as_idle(
    tmp_path: Path, said: Listener
) -> None:
    """Cut within the first step it is left out; cut within the last one its whole steps count."""
    files = Simulation(planted(small, 2, gpu=1.2)).write(tmp_path)
    whole = files[1].read_bytes()
    files[1].write_bytes(whole[: len(whole) // 5])
    early = analyze_job(files, workers=1)
    assert (early.steps, early.missing) == ([0, 1, 2], [1])
    said([(one.file, one.why) for one in early.left])
    files[1].write_bytes(whole[: len(whole) * 95 // 100])
    late = analyze_job(files, workers=1)
    assert (late.steps, late.missing, [row.partial for row in late.ranks]) == (
        [0, 1],
        [],
        [False, True, False, False],
    )
    assert [one.name for one in early.stragglers] == [one.name for one in late.stragglers] == ["rank 2"]
    said(verdict(early), verdict(late))


def test_ranks_on_another_machine_are_fetched_one_by_one_and_not_redone(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    (tmp_path / "keep").mkdir()
    (tmp_path / "here").mkdir()
    files = Simulation(small()).write(tmp_path / "here")
    there = fsspec.filesystem("memory")
    for file in files:
        there.pipe(f"/run7/{file.name}", file.read_bytes())
    found = analyze_job(["memory://run7"], workers=1, keep=tmp_path / "keep")
    assert to_json(found) == to_json(analyze_job(files, workers=1))
    assert len(list((tmp_path / "keep").iterdir())) == 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracelens.analysis.analyze", lambda *_, **__: pytest.fail("analyzed again"))
        again = analyze_job(["memory://run7/rank*.json"], workers=1, keep=tmp_path / "keep")
    assert to_json(again) == to_json(found)
    for address in ("memory://nowhere", "nosuch://bucket/rank0.json"):
        with pytest.raises(InputError, match=address.split(":")[0]):
            analyze_job([address], workers=1)
    there.rm("/run7", recursive=True)


def test_ranks_behind_http_are_fetched_packed_as_they_are(tmp_path: Path) -> None:
    for name in ("fsspec", "aiohttp"):
        pytest.importorskip(name, reason="the extra remote is not installed")
    files = Simulation(data_parallel(3, steps=2)).write(tmp_path)
    here = to_json(merge([summarize(analyze(path, shape_search=False)) for path in files]))
    packed = {
        "rank0.json": files[0].read_bytes(),
        "rank1.json.gz": gzip.compress(files[1].read_bytes()),
        "rank2.json.zst": pyarrow.compress(files[2].read_bytes(), "zstd", asbytes=True),
    }
    (there := tmp_path / "there").mkdir()
    for name, data in packed.items():
        (there / name).write_bytes(data)
    handler = partial(SimpleHTTPRequestHandler, directory=str(there))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        found = analyze_job([f"{base}/{name}" for name in (*packed, "rank9.json")], workers=1)
        server.shutdown()
    assert [one.file for one in found.left] == ["rank9.json"]
    rows = [msgspec.structs.replace(row, file="", sha256="") for row in found.ranks]
    own = msgspec.json.decode(here, type=Answer)
    assert rows == [msgspec.structs.replace(row, file="", sha256="") for row in own.ranks]


def test_one_rank_alone_says_that_it_needs_others(tmp_path: Path) -> None:
    files = Simulation(small()).write(tmp_path)
    found = analyze_job(files[:1], workers=1)
    assert found.limit == "unknown"
    assert found.missing == [1, 2, 3]


def test_a_folder_alone_is_given_without_a_list(tmp_path: Path) -> None:
    traces = Simulation(small()).write(tmp_path)
    assert analyze_job(tmp_path, workers=1) == analyze_job(str(tmp_path), workers=1)
    assert analyze_job(tmp_path, workers=1) == analyze_job(traces, workers=1)


def test_the_command_names_the_rank_writes_everything_and_fails_the_gate(
    tmp_path: Path, said: Listener
) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    Simulation(planted(small, 1, gpu=1.3)).write(traces)
    page, data, bundle = tmp_path / "p.html", tmp_path / "j.json", tmp_path / "b.summary"
    asked = ["analyze", str(traces), "-o", str(page), "--json", str(data), "--pages", str(tmp_path / "own")]
    run = CliRunner().invoke(
        cli,
        [*asked, "--summary", str(bundle), "--workers", "1", "--fail-on", "straggler>5%"],
        standalone_mode=False,
    )
    assert type(run.exception).__name__ == "GateError"
    assert "Rank 1 is late" in run.output
    assert page.read_text().count("<rect") > 8
    links = re.findall(r'<a href="(own/[^"]+)">(rank \d)</a>', page.read_text())
    assert [name for _, name in links] == [f"rank {rank}" for rank in range(4)]
    assert all((tmp_path / link).read_text().startswith("<!doctype html>") for link, _ in links)
    again = CliRunner().invoke(cli, ["merge", str(bundle), "--json", "-", "-q"], standalone_mode=False)
    assert again.exception is None
    assert again.stdout.encode() == data.read_bytes()
    for given in (bundle, data):  # shown again
        shown = CliRunner().invoke(cli, ["analyze", str(given), "--no-html"], standalone_mode=False)
        assert shown.exception is None and "Rank 1 is late" in shown.output
    refused = CliRunner().invoke(cli, ["compare", str(data), str(data)], standalone_mode=False)
    assert isinstance(refused.exception, InputError) and "--summary" in str(refused.exception)
    alone = ["analyze", str(traces / "rank0.json"), "--no-html", "-q"]
    single = CliRunner().invoke(cli, [*alone, "--summary", str(tmp_path / "0.summary")])
    assert single.exit_code == 0
    assert decode((tmp_path / "0.summary").read_bytes(), "0")[0].rank == 0
    refused = CliRunner().invoke(cli, ["analyze", str(traces), "--gemm", "g1"], standalone_mode=False)
    said(str(refused.exception))


def test_a_late_rank_is_counted_at_its_own_calls(summaries: list[RankSummary], said: Listener) -> None:
    (alone,) = merge(summaries).stragglers
    two = [
        msgspec.structs.replace(
            one, rank=4 * node + at, sha256=f"{node}.{at}", world_size=8,
            kinds=[msgspec.structs.replace(kind, ranks=f"{4 * node}-{4 * node + 3}") for kind in one.kinds],
        )
        for node in range(2)
        for at, one in enumerate(summaries)
    ]  # fmt: skip
    for one in (found := merge(two)).stragglers:
        assert (one.calls, one.of_calls, one.close_calls) == (alone.calls, alone.of_calls, alone.close_calls)
    assert [one.name for one in found.stragglers] == ["rank 3", "rank 7"]
    assert verdict(found).endswith("for rank 3.") and "for rank" not in verdict(merge(summaries))
    for waiting_ms in (0.2, 1000.0):  # of one rank; the others wait 7.64 ms, as long as either late one costs
        parts = msgspec.structs.replace(found.ranks[0].parts, waiting_ms=waiting_ms)
        ranks = [msgspec.structs.replace(found.ranks[0], parts=parts), *found.ranks[1:]]
        said([line for line in details(msgspec.structs.replace(found, ranks=ranks)) if "Next" in line])
    assert {row.groups for row in found.collectives} == {2}
    assert [collective_cells(row)[2] for row in found.collectives] == [
        collective_cells(row)[2] for row in merge(summaries).collectives
    ]


def test_degrees_are_read_from_groups_and_a_pipelines_layers_are_summed(
    summaries: list[RankSummary], said: Listener
) -> None:
    def rank(at: int, one: RankSummary, layers: int | None) -> RankSummary:
        stages, pairs = ("0,2", "1,3")[at % 2], ("0-1", "2-3")[at // 2]
        kinds = [
            CallKind("send/recv", "mesh_pp", stages, 2, 1 << 20),
            CallKind("all_gather", "CONTEXT_PARALLEL_GROUP", pairs, 2, 1 << 20),
            CallKind("all_reduce", "mesh_dp_cp", pairs, 2, 1 << 20),  # spans two ways: no degree of either
        ]
        model = replace(one.model, found="whole", layers=Known(layers, "seen"))
        return msgspec.structs.replace(one, kinds=[*one.kinds, *kinds], model=model)

    spread = [rank(at, one, (3, 3, 5, 5)[at]) for at, one in enumerate(summaries)]
    assert job_degrees(spread) == {"context parallel": 2, "pipeline parallel": 2}
    found = job_model(spread)
    assert found is not None and found.layers.value == 8
    said(found.layers.source)
    uneven = [rank(at, one, (3, 4, 5, 5)[at]) for at, one in enumerate(summaries)]
    for these in (uneven, spread[:2]):  # of the second a stage is missing
        found = job_model(these)
        assert found is not None and found.layers.value is None


def test_the_commands_that_check_a_claim_print_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Simulation(planted(lambda: data_parallel(3, steps=2), 2, input_us=2500.0)).write(tmp_path)
    found = analyze_job([tmp_path], workers=1)
    at = found.stragglers[0].seen_at
    assert at is not None and at.late.name == "rank 2"
    assert at.waiting.us - at.late.us == pytest.approx(2500, rel=0.1)  # the batch comes so much later
    said, commands = evidence(found)
    assert f.ms(at.late.us / 1e3) in said[0] and f.ms(at.waiting.us / 1e3) in said[0]
    monkeypatch.chdir(tmp_path)
    for command, us in zip(commands, (at.late.us, at.waiting.us), strict=False):
        exec(shlex.split(command)[2])
        assert re.search(r"\d\.\d+", capsys.readouterr().out)[0] == f"{us / 1e3:.6f}".rstrip("0")  # type: ignore[index]
    assert commands[2:] == [
        "tracelens open rank2.json",
        *(f"tracelens analyze {one.name.replace(' ', '')}.json" for one in (at.late, at.waiting)),
    ]
    page, text = render_job_html(found), job_markdown(found)
    for command in commands:
        assert str(escape(command)) in page and f"$ {command}" in text


def test_a_thousand_ranks_fit_a_page(summaries: list[RankSummary]) -> None:
    many = [
        msgspec.structs.replace(one, rank=4 * at + number, sha256=f"{at}.{number}", world_size=1000)
        for at in range(250)
        for number, one in enumerate(summaries)
    ]
    found = merge(many)
    page = render_job_html(found)
    assert len(found.ranks) == 1000
    assert len(page) < 1_000_000
    assert "95th percentile" in page and "a row for 4 neighbours" in page
    assert verdict(found).startswith("250 ranks (3, 7, 11, 15, 19, 23, 27, 31, ...) are late")
    assert "each of 250 nodes" in page
    darkest = re.search(r'class="l7" d="([^"]+)"', page)
    assert darkest is not None and len(darkest[1].split("M")) > 250  # each row has one of the late ranks


def test_jobs_compare_by_their_summaries_as_by_their_traces(tmp_path: Path, said: Listener) -> None:
    for side, cpu in (("before", 14.0), ("after", 1.0)):
        (tmp_path / side).mkdir()
        files = Simulation(planted(lambda: data_parallel(3, steps=2), 2, cpu=cpu)).write(tmp_path / side)
        each = [summarize(analyze(path, shape_search=False)) for path in files]
        (tmp_path / f"{side}.summary").write_bytes(encode(each))
        (tmp_path / f"{side}-ranks").mkdir()
        for one in each:
            (tmp_path / f"{side}-ranks" / f"{one.file}.summary").write_bytes(encode([one]))

    def told(before: str, after: str) -> Any:
        run = CliRunner().invoke(
            cli, ["compare", str(tmp_path / before), str(tmp_path / after), "--json", "-"]
        )
        assert run.exit_code == 0, run.output
        found = msgspec.json.decode(run.stdout)
        for side in ("before", "after"):
            found[side].pop("path")
            for pair in found["pairs"]:
                pair[side].pop("file")
        return found

    traces = told("before", "after")
    assert traces["step"]["diff_ms"] < 0
    (late,) = traces["lateness"]["ranks"]
    assert (late["pair"], late["before_cause"], late["after_cause"]) == ("rank 2", "cpu", None)
    for side in ("before", "after"):  # as the answer for each job says
        job = analyze_job([tmp_path / f"{side}.summary"])
        assert late[f"{side}_ms"] == job.ranks[2].late_ms
    assert not any("stands out" in text for text in traces["reasons"])
    assert (traces["kind"], traces["matched_by"], len(traces["pairs"])) == ("ranks", "rank", 3)
    assert [one["pair"] for one in traces["stands_out"]] == ["rank 2"]
    assert told("before.summary", "after.summary") == traces
    said(traces["reasons"])
    plain = tmp_path / "after" / "rank2.json"
    packed = pyarrow.compress(plain.read_bytes(), "zstd", asbytes=True)
    plain.with_suffix(".json.zst").write_bytes(packed)
    plain.unlink()
    assert told("before-ranks", "after") == traces
    (tmp_path / "reports").mkdir()
    for one in decode((tmp_path / "after.summary").read_bytes(), "after"):
        (tmp_path / "reports" / f"{one.file}.json").write_bytes(to_report_json(unpack_report(one)))
    saved = told("before", "reports")
    assert (saved["lateness"], saved["lateness_unknown"]) == (None, "saved_reports")
    said(saved["caveats"])


def test_where_the_late_rank_has_no_trace_nobody_is_called_punctual(tmp_path: Path, said: Listener) -> None:
    for name, seed in (("before", 1), ("after", 2)):
        (tmp_path / name).mkdir()
        job = planted(small, 2, gpu=1.12) if name == "after" else small(seed=seed)
        Simulation(job).write(tmp_path / name)
    (tmp_path / "after" / "rank2.json").unlink()
    found = told_folders(compare_folders(tmp_path / "before", tmp_path / "after"))
    assert found.lateness is not None
    assert (found.lateness.ranks, found.lateness.missing) == ([], [2])
    said(found.reasons[0])


def test_traces_that_are_read_ahead_compare_as_those_read_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for side in ("before", "after"):
        (tmp_path / side).mkdir()
        Simulation(data_parallel(4, steps=1)).write(tmp_path / side)
    torn = tmp_path / "after" / "rank3.json"
    torn.write_bytes(torn.read_bytes()[:2000])
    read: list[str] = []

    def in_this_process(paths: Any, work: RankWork, workers: Any, executor: Any) -> Any:
        assert (workers, executor) == (None, None)
        for path in paths:
            read.append(path)
            yield path, summarize_file(path, work)

    monkeypatch.setattr("tracelens.job.compare.summarize_each", in_this_process)
    folders = tmp_path / "before", tmp_path / "after"
    here = compare_folders(*folders)
    assert read == []
    ahead = compare_folders(*folders, workers=None)
    assert len(read) == 8 and len(ahead.pairs) == 3 and ahead.lateness is not None
    assert ahead == here and "rank3.json" in {one.file for one in ahead.left}


def test_a_redacted_summary_names_nothing(summaries: list[RankSummary]) -> None:
    hidden = redact_summary(summaries[0])
    for data in (msgspec.json.encode(hidden), to_report_json(unpack_report(hidden))):
        assert summaries[0].file.encode() not in data and b"nvjet_tst" not in data
    assert b"nvjet_tst" in to_report_json(unpack_report(summaries[0]))


def test_a_slow_node_stands_first_among_the_nodes_and_among_their_groups(tmp_path: Path) -> None:
    files = Simulation(data_parallel(2, steps=2)).write(tmp_path)
    usual = summarize(analyze(files[0], shape_search=False))
    longer = [msgspec.structs.replace(one, end_ns=one.end_ns + 2_000_000) for one in usual.steps]
    ranks = []
    for rank in range(16):
        node, device = divmod(rank, 4)
        kinds = [
            msgspec.structs.replace(kind, ranks=f"{4 * node}-{4 * node + 3}", group="mesh_tp", group_size=4)
            for kind in usual.kinds
        ]
        ranks.append(
            msgspec.structs.replace(
                usual, rank=rank, world_size=16, device=device, sha256=f"{rank}", kinds=kinds,
                steps=longer if node == 2 else usual.steps,
            )
        )  # fmt: skip
    without_8 = [one for one in ranks if one.rank != 8]
    assert [len(node) for node in find_nodes(without_8)] == [4, 4, 3, 4]
    assert find_nodes([msgspec.structs.replace(one, device=0) for one in ranks]) == []
    blocks = merge(ranks).blocks
    assert [(one.kind, one.name) for one in blocks[::4]] == [("node", "node 2"), ("group", "mesh_tp")]
    assert blocks[4].ranks == ["rank 8", "rank 9", "rank 10", "rank 11"]
    assert blocks[0].own_ms - blocks[0].usual_ms == pytest.approx(2.0)
    assert len(blocks) == 8


@pytest.mark.skipif(not (SHARED / "job_h100_nanogpt_8ranks").is_dir(), reason="shared traces are not here")
def test_the_real_job_of_eight_ranks() -> None:
    ranks, left = summarize_files([SHARED / "job_h100_nanogpt_8ranks"], RankWork(), workers=1)
    found = merge(ranks, left)
    (late,) = found.stragglers
    assert (late.name, late.cause) == ("rank 1", "cpu")
    # what one rank's own page says of its waiting is below what the clocks of all ranks show
    waited = {row.rank: row.parts.waiting_ms for row in found.ranks}
    alone = {one.rank: picture_of(unpack_report(one)).waiting_ms for one in ranks}
    assert all(0.3 * waited[rank] < seen < 1.03 * waited[rank] for rank, seen in alone.items()), (
        waited,
        alone,
    )
    assert 7 < late.late_ms < 9
    assert late.least_ms is not None and late.most_ms is not None
    assert 5 < late.least_ms <= late.late_ms <= late.most_ms < 10
    assert found.limit == "straggler" and len(found.ranks) == 8
    assert found.unmatched_calls == 0
    large = [row for row in found.collectives if (row.bytes or 0) > 50e6]
    assert len(large) == 4  # eight H100 of one node: sending takes what NVIDIA measured there
    assert all(row.send_us == pytest.approx(row.one_node_us, rel=0.2) for row in large)
    assert found.degrees == {"data parallel": 8}
    assert found.model is not None and found.model.hidden.value == 768
    shown = _terminal(found).splitlines()
    assert len(shown) <= 24 and max(map(len, shown)) <= 80


@pytest.mark.skipif(not (SHARED / "job_v100_megatron_tp2").is_dir(), reason="shared traces are not here")
def test_the_real_job_of_two_tensor_parallel_ranks() -> None:
    found = analyze_job([SHARED / "job_v100_megatron_tp2"], workers=1)
    assert found.matched_calls == 13
    (late,) = found.stragglers
    assert (late.name, late.cause) == ("rank 0", "cpu")
    assert late.more_ms["begin"] == pytest.approx(11.62, abs=0.05)  # ProfilerStep#6 of the two files
    assert sum(late.more_ms.values()) == pytest.approx(late.late_ms, rel=0.01)
    assert found.degrees == {"tensor parallel": 2} and "tensor parallel 2" in job_markdown(found)
    assert found.model is not None and found.model.layers.value == 2
    assert len(_terminal(found).splitlines()) <= 24
    assert found.model.tensor_parallel.value == 2
    # recorded without shapes: 6,144 elements of 512 tokens are exchanged, and LayerNorm runs on 512 rows
    assert found.model.hidden.value == 12
    told = [(one.finding.rule, one.ranks, one.saves_step) for one in found.findings]
    assert told == [("TL122", 2, True), ("TL122", 1, True), ("TL111", 2, True)]
    assert found.findings[0].finding.saving_ms.high == pytest.approx(4.44, abs=0.01)  # rank 0's: it is late


def test_waits_tell_the_late_ranks_critical_path_from_the_others(tmp_path: Path) -> None:
    pytest.importorskip("hta", reason="the extra hta is not installed")
    Simulation(planted(lambda: data_parallel(3, steps=2), 1, cpu=25.0)).write(tmp_path)
    found, left = summarize_files([tmp_path], RankWork(waits=True), workers=1)
    job = merge(found, left)
    assert [row.path.get("cpu_bound", 0.0) > 0.5 for row in job.ranks] == [False, True, False]
    assert "Critical path of rank 1" in job_markdown(job)
    assert all(row.path == {} for row in analyze_job([tmp_path], workers=1).ranks)


def test_a_profiler_of_the_workers_frames_does_not_disturb_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask's samples them, and so keeps decoded events alive beyond the function that decoded them."""
    (path,) = Simulation(data_parallel(1, steps=2)).write(tmp_path)
    usual = encode([summarize(analyze(path, shape_search=False))])
    kept = []

    def keeping(text: bytes) -> Any:
        kept.append(decode_events(text))
        return kept[-1]

    monkeypatch.setattr("tracelens.trace.decode.decode_events", keeping)
    monkeypatch.setattr("tracelens.trace.reader.BLOCK", 1 << 16)
    assert encode([summarize(analyze(path, shape_search=False))]) == usual
    assert kept


def test_a_dask_cluster_of_two_processes_gives_the_same_bytes(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
    traces = tmp_path / "traces"
    traces.mkdir()
    Simulation(planted(small, 1, gpu=1.3)).write(traces)
    outputs = [
        "--no-html",
        "-q",
        "--json",
        str(tmp_path / "dask.json"),
        "--summary",
        str(tmp_path / "d.summary"),
    ]
    cluster = distributed.LocalCluster(
        n_workers=2,
        processes=True,
        threads_per_worker=1,
        dashboard_address=None,
        worker_dashboard_address=None,
    )
    with cluster:
        assert len({one.pid for one in cluster.workers.values()}) == 2
        run = CliRunner().invoke(cli, ["analyze", str(traces), *outputs, "--dask", cluster.scheduler_address])
    assert run.exit_code == 0, run.output
    here = CliRunner().invoke(
        cli, ["analyze", str(traces), "--no-html", "-q", "--json", "-", "--workers", "1"]
    )
    found = msgspec.json.decode((tmp_path / "dask.json").read_bytes(), type=Answer)
    assert found.left == []
    assert (tmp_path / "dask.json").read_bytes() == here.stdout_bytes
    assert verdict(analyze_job([tmp_path / "d.summary"])).startswith("Rank 1 is late")


def test_without_a_cluster_one_line_says_what_is_missing(tmp_path: Path) -> None:
    Simulation(data_parallel(2, steps=1)).write(tmp_path)
    run = CliRunner().invoke(cli, ["analyze", str(tmp_path), "--dask", "nowhere"], standalone_mode=False)
    assert isinstance(run.exception, InputError)
    assert "tracelens-gpu[dask]" in str(run.exception) or "no Dask scheduler at nowhere" in str(run.exception)


def test_a_late_rank_does_nothing_longer_than_its_whole_step_shows() -> None:
    """torchtitan on 4 H100s: one rank launches late and computes alone what the others compute beside the
    gathers in which they wait for it."""
    others, late = Parts(14.7, 40.0, 1.3, 0.0, 0.0, 9.0, 6.0), Parts(12.6, 0.0, 1.7, 0.0, 0.1, 16.5, 40.9)
    rows = [SimpleNamespace(parts=parts) for parts in (others, late, others)]
    more = np.array([{"computing": 12.1, "input": 3.0, "idle": 35.0}.get(name, 0.0) for name in LATE_BY])
    found = _capped(rows, 1, more)  # type: ignore[arg-type]
    assert found == {name: pytest.approx({"idle": 34.9, "input": 3.0}.get(name, 0.0)) for name in LATE_BY}
