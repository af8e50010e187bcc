"""TL128: exchanges in many small calls, planted by published times of NCCL."""

from __future__ import annotations

from typing import Any

import pytest

from tests.advice.advice_facts import A100, RTX3060, step_of
from tests.advice.advice_messages import message
from tests.advice.advice_rows import gemm
from tests.said import Listener
from tracelens.hardware import Gpu
from tracelens.hardware.collectives import exchange_us
from tracelens.results import CommunicationRow
from tracelens.rules.engine.facts import Outcome
from tracelens.rules.small_collectives import SmallCollectives

RULE = SmallCollectives()


def took_ms(calls: float, size: float) -> float:
    return calls * (exchange_us("a100-sxm-40gb", "all_reduce", 8, size, in_node=8) or 0.0) / 1e3


def sent(calls: float, size: float | None, **more: Any) -> CommunicationRow:
    time = took_ms(calls, size or 0.0)
    given = {"purpose": "data-parallel gradients", "group_size": 8, "time": time, "exposed": time} | more
    return message("all_reduce", calls_per_step=calls, bytes_per_call=size, **given)


def check(*rows: CommunicationRow, gpu: Gpu = A100) -> Outcome:
    return RULE.check(step_of([gemm(1, 4096, 4096, 4096)], gpu=gpu, step_ms=50.0, communication=list(rows)))


def test_starts_are_the_bound(said: Listener) -> None:
    (finding,) = check(sent(200, 262_144)).findings
    planted = took_ms(200, 262_144) - took_ms(2, 26_214_400)
    assert finding.saving_ms.mid is None and finding.saving_ms.high == pytest.approx(planted, rel=0.05)
    said(finding.title)


def test_what_is_hidden_saves_nothing() -> None:
    assert check(sent(200, 262_144, exposed=0.0)).state == "passed"


@pytest.mark.parametrize(
    ("row", "gpu", "state"),
    [
        (sent(20, 25e6), A100, "passed"),  # buckets
        (sent(4, 1000), A100, "passed"),  # few
        (sent(200, 262_144, purpose="tensor parallel"), A100, "not_applicable"),  # each is waited for
        (sent(200, None), A100, "could_not_run"),
        (sent(200, 262_144), RTX3060, "could_not_run"),
        (sent(200, 262_144, group_size=64), A100, "could_not_run"),
    ],
)
def test_none_is_invented(row: CommunicationRow, gpu: Gpu, state: str) -> None:
    assert check(row, gpu=gpu).state == state
