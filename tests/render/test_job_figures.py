"""A job's figures: means over steps beside a median, and ranks that share no call."""

from __future__ import annotations

import io
import re
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from tests.job.simulated import Simulation, data_parallel
from tests.said import Listener
from tracelens.gates import judge_job
from tracelens.job.run import analyze_job
from tracelens.render.job import job_markdown, render_job
from tracelens.render.job_html import render_job_html
from tracelens.render.job_words import caveats, details, verdict
from tracelens.results.job import Job, Parts


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder: Path = tmp_path_factory.mktemp("job")
    Simulation(data_parallel(2, steps=2)).write(folder)
    return analyze_job([folder], workers=1)


def idle_job(job: Job, step_ms: float) -> Job:
    """Every rank idles 76 of 223 ms on average."""
    ranks = [
        msgspec.structs.replace(row, parts=Parts(108.0, 0.0, 39.0, 0.0, 0.0, 0.0, 76.0)) for row in job.ranks
    ]
    return msgspec.structs.replace(
        job,
        ranks=ranks,
        step_ms=step_ms,
        limit="idle",
        stragglers=[],
        matched_calls=0,
        unmatched_calls=9,
        waits_told=False,
    )


def test_a_share_is_of_the_mean_step_that_its_part_is_of(job: Job, said: Listener) -> None:
    uneven = verdict(idle_job(job, 157.0))
    said(uneven, verdict(idle_job(job, 223.0)))


def test_ranks_that_the_others_wait_for_in_turns_are_not_said_to_be_on_time(job: Job, said: Listener) -> None:
    """Three of eight ranks of a Megatron step of 634 ms: each of two is late for the third."""
    row = job.ranks[0]
    parts = Parts(132.0, 220.0, 72.0, 0.0, 0.0, 0.0, 204.0)
    ranks = [msgspec.structs.replace(row, name=f"rank {at}", late_ms=late, parts=parts)
             for at, late in ((0, 208.0), (3, 4.5), (6, 167.0))]  # fmt: skip
    turns = msgspec.structs.replace(
        job, ranks=ranks, step_ms=634.0, limit="communication", stragglers=[], waits_told=True
    )
    assert "rank 0" in verdict(turns) and "rank 6" in verdict(turns) and "rank 3" not in verdict(turns)
    said(verdict(turns))


def test_a_gate_on_a_part_is_of_the_mean_step_and_a_bound_where_kernels_are_unknown(job: Job) -> None:
    uneven = msgspec.structs.replace(idle_job(job, 157.0), communication_is_bound=True)
    idle, talk, less = judge_job(uneven, ["job_idle>34%", "job_communication>10%", "job_communication>20%"])
    assert idle.found is not None and idle.found.mid == pytest.approx(76 / 223)
    assert talk.found is not None and talk.found.least and talk.found.low == pytest.approx(39 / 223)
    assert [one.state for one in (idle, talk, less)] == ["failed", "failed", "unknown"]


def test_one_rank_says_the_mean_that_its_row_is_and_what_is_a_bound(job: Job, said: Listener) -> None:
    alone = msgspec.structs.replace(idle_job(job, 157.0), limit="unknown")
    bound = msgspec.structs.replace(alone, limit="communication", communication_is_bound=True)
    said(verdict(alone), verdict(bound), caveats(bound))


def test_without_matching_calls_the_rank_that_never_waits_is_named(job: Job, said: Listener) -> None:
    """DLRM on 4 V100s (pytorch/torchrec golden_training): three ranks are 1 s in all_to_all, one is idle."""
    waits, idles = (
        Parts(107.0, 0.0, 1020.0, 0.0, 0.0, 0.0, 68.0),
        Parts(107.0, 0.0, 25.0, 0.0, 0.0, 0.0, 1063.0),
    )
    row = job.ranks[0]
    ranks = [
        msgspec.structs.replace(row, name=f"rank {at}", parts=idles if at == 2 else waits) for at in range(4)
    ]
    alone = msgspec.structs.replace(idle_job(job, 1195.0), limit="communication", ranks=ranks)
    said(verdict(alone), details(alone))
    same = msgspec.structs.replace(alone, ranks=[ranks[0]] * 4)
    assert details(same) == [] and verdict(same) != verdict(alone)
    assert not any("rank 2" in one for one in details(msgspec.structs.replace(alone, matched_calls=9)))


def test_calls_without_a_group_are_not_said_to_have_no_match(job: Job, said: Listener) -> None:
    alone = msgspec.structs.replace(idle_job(job, 223.0), calls_of_no_group=9)
    text = " ".join(caveats(alone))
    said(text, " ".join(caveats(idle_job(job, 223.0))))


def test_without_matching_calls_waiting_is_unknown_and_not_0(job: Job) -> None:
    alone, out = idle_job(job, 223.0), io.StringIO()
    render_job(alone, console=Console(file=out, width=80))
    said = out.getvalue()
    assert "wait  send" not in said and "comm." in said
    assert re.search(r"rank 0 .* –\n", said)
    row = next(line for line in job_markdown(alone).splitlines() if line.startswith("| rank 0"))
    assert row.split("|")[-2].strip() == "–"
    page = render_job_html(alone)
    assert "waiting for other ranks</li>" not in page and '<td class="num">–</td>' in page
