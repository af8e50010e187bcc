"""TL119 and TL120: shares of a collective off 16 bytes, and collectives in the stream of the computation."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.advice.advice_facts import step_of
from tests.advice.advice_messages import message
from tests.advice.advice_rows import gemm
from tests.said import Listener
from tests.trace.tools import read, small_trace
from tracelens.accounting.communication import _unaligned_share
from tracelens.analysis import analyze_trace
from tracelens.attribution.collectives import Call
from tracelens.results import CommunicationRow
from tracelens.rules.collectives_in_line import CollectivesInLine
from tracelens.rules.engine.facts import Outcome
from tracelens.rules.engine.rule import Rule
from tracelens.rules.unaligned_payload import UnalignedPayload


def check(rule: Rule, *rows: CommunicationRow) -> Outcome:
    return rule.check(step_of([gemm(1, 4096, 4096, 4096)], communication=rows))


@pytest.mark.parametrize(
    ("collective", "size", "share"),
    [
        ("all_gather", 8 * 6_294_530, 6_294_530),  # horovod/horovod#3727: over 7 ms
        ("all_gather", 8 * 6_292_992, 0),  # and under 2 ms
        ("reduce_scatter", 8 * 6_294_530, 6_294_530),
        (
            "all_gather",
            8 * 2 * 20_971_521,
            2 * 20_971_521,
        ),  # pytorch/pytorch#195450: FSDP2 in bf16, odd parts
        ("all_reduce", 8 * 6_294_530, 0),
        ("all_gather", 8 * 24, 0),  # the protocol LL
        ("all_gather", 8 * 6_294_530 + 2, 0),  # no even shares: not said which
    ],
)
def test_shares_off_16_bytes(collective: Any, size: int, share: int) -> None:
    assert _unaligned_share(Call(collective, "fp16", size // 2, size, "0", 8, None)) == share


def test_an_unaligned_share_is_a_bound() -> None:
    row = message("all_gather", bytes_per_call=5e7, unaligned_ms_per_step=3.0, unaligned_bytes=6_294_530)
    (finding,) = check(UnalignedPayload(), row, message("all_gather", bytes_per_call=1e6)).findings
    assert finding.change == {"share_bytes": [6_294_530, 6_294_544]}
    assert finding.saving_ms.mid is None and finding.saving_ms.high == pytest.approx(3.0)


def test_in_line_exchanges_that_could_overlap_are_a_bound() -> None:
    """marin-community/marin#8054: 2.15 s of all-gathers in a step of 16.7 s."""
    row = message("all_gather", purpose="FSDP parameter gather", in_line_ms_per_step=2.15)
    (finding,) = check(CollectivesInLine(), row).findings
    assert finding.saving_ms.mid is None and finding.saving_ms.high == pytest.approx(2.15)
    assert "prefetch" in finding.fix[0]


def test_what_the_trace_alone_says_holds_on_gpus_of_other_vendors() -> None:
    row = message(
        "all_gather", purpose="FSDP parameter gather", in_line_ms_per_step=2.0, bytes_per_call=5e7,
        unaligned_ms_per_step=3.0, unaligned_bytes=6_294_530,
    )  # fmt: skip
    facts = step_of([gemm(1, 4096, 4096, 4096)], communication=[row])
    amd = replace(facts, gpu=replace(facts.gpu, vendor="amd", name="mi300x"))
    assert CollectivesInLine().check(amd) == CollectivesInLine().check(facts)
    assert UnalignedPayload().check(facts).state == "found"  # NCCL's way with 16 bytes
    assert UnalignedPayload().check(amd).state == "could_not_run"


def test_shards_of_an_optimizer_in_line_are_to_be_asynchronous(said: Listener) -> None:
    row = message("reduce_scatter", purpose="optimizer shards", in_line_ms_per_step=2.0)
    (finding,) = check(CollectivesInLine(), row).findings
    said(finding.title, finding.fix, check(CollectivesInLine(), message(purpose="unknown")).why)


@pytest.mark.parametrize(
    ("rule", "row", "state"),
    [
        (UnalignedPayload(), message("all_gather", bytes_per_call=5e7), "passed"),
        (UnalignedPayload(), message("all_reduce", bytes_per_call=5e7), "not_applicable"),
        (UnalignedPayload(), message("all_gather"), "could_not_run"),
        (CollectivesInLine(), message(purpose="data-parallel gradients"), "passed"),
        (CollectivesInLine(), message("reduce_scatter", purpose="optimizer shards"), "passed"),
        (CollectivesInLine(), message(purpose="unknown"), "could_not_run"),
        (CollectivesInLine(), message(purpose="tensor parallel", in_line_ms_per_step=5.0), "not_applicable"),
    ],
)
def test_nothing_else_is(rule: Rule, row: CommunicationRow, state: str) -> None:
    outcome = check(rule, row)
    assert outcome.state == state and not outcome.findings


def _unaligned(event: dict[str, Any]) -> None:
    args = event.get("args", {})
    if "Collective name" in args:
        args |= {"Collective name": "_allgather_base", "Out msg nelems": 8 * 3_147_265, "dtype": "BFloat16"}


def _in_line(event: dict[str, Any]) -> None:
    if "nccl" in event["name"] and event.get("cat") == "kernel":
        event["tid"] = event["args"]["stream"] = 7


@pytest.mark.parametrize(
    ("plant", "rule"),
    [(None, None), (_unaligned, "TL119"), (_in_line, "TL120")],
    ids=["clean", "share", "line"],
)
def test_a_trace_that_holds_it(
    tmp_path: Path, plant: Callable[[dict[str, Any]], None] | None, rule: str | None
) -> None:
    trace = json.loads(small_trace(all_reduce=True).text())
    if plant is not None:
        for event in trace["traceEvents"]:
            plant(event)
    report = analyze_trace(read(tmp_path, json.dumps(trace)), shape_search=False).report
    assert [one.rule for one in report.findings if one.rule in ("TL118", "TL119", "TL120")] == (
        [rule] if rule else []
    )
