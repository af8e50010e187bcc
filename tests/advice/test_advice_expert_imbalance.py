"""TL126: split sizes of the experts' all-to-alls, from the operator's arguments to the finding."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from tests.advice.advice_answers import says_why
from tests.advice.advice_facts import step_of
from tests.advice.advice_messages import message
from tests.advice.advice_rows import gemm
from tests.said import Listener
from tests.trace.tools import need_shared
from tracelens.analysis import analyze
from tracelens.attribution.collectives import _uneven
from tracelens.results import CommunicationRow
from tracelens.rules.engine.facts import Outcome
from tracelens.rules.expert_imbalance import ExpertImbalance
from tracelens.trace.collectives import Collective

RULE = ExpertImbalance()


def sent(uneven: float | None, **more: Any) -> CommunicationRow:
    given = {"group_size": 8, "exposed": 2.0, "bytes_per_call": 1e8, "purpose": "expert all-to-all"} | more
    return message("all_to_all", uneven_frac=uneven, **given)


def check(*rows: CommunicationRow) -> Outcome:
    experts = gemm(1, 4096, 4096, 1408, component="moe.experts", time_us=3000.0, calls=2.0)
    return RULE.check(step_of([experts], step_ms=50.0, communication=list(rows)))


@pytest.mark.parametrize(
    ("to", "come", "found"),
    [
        ((100, 100, 100, 100), None, 0.0),
        ((130, 90, 90, 90), (100, 100, 100, 100), 0.3),
        ((100, 100, 100, 100), (130, 90, 90, 90), 0.3),  # the way back
        ((0, 0), None, None),
        ((4096,), None, None),
        (None, None, None),
    ],
)
def test_parts_of_ranks(
    to: tuple[int, ...] | None, come: tuple[int, ...] | None, found: float | None
) -> None:
    stated = Collective("all_to_allv", "BFloat16", 1, 1, "0", None, 4, None, to, come)
    assert _uneven(stated) == (found if found is None else pytest.approx(found))


def test_the_time_above_an_even_load_is_the_bound(said: Listener) -> None:
    (finding,) = check(sent(0.3)).findings
    assert finding.saving_ms.mid is None and finding.saving_ms.high == pytest.approx(0.3 / 1.3 * (6.0 + 2.0))
    assert finding.evidence["uneven_frac"] == pytest.approx(0.3)
    said(finding.title)


def test_small_messages_of_counts_weigh_little() -> None:
    (finding,) = check(sent(0.3), sent(0.0, bytes_per_call=64.0)).findings
    assert finding.evidence["uneven_frac"] == pytest.approx(0.3, rel=1e-4)


def test_what_a_balanced_router_leaves_passes(said: Listener) -> None:
    says_why(check(sent(0.04)), "passed", said)


def test_without_split_sizes_or_experts() -> None:
    assert check(sent(None)).state == "could_not_run"
    assert check(message()).state == "not_applicable"


def test_uneven_ranks_planted_in_a_real_trace(tmp_path: Path) -> None:
    """Of two ranks one gets three quarters: half more than the mean. The recording has halves."""
    text = gzip.decompress(need_shared("d12_").read_bytes()).decode()
    path = tmp_path / "trace.json"
    path.write_text(text.replace('"In split size": "[4096, 4096]"', '"In split size": "[6144, 2048]"'))
    report = analyze(path).report
    rows = [row for row in report.communication if row.purpose == "expert all-to-all" and row.uneven_frac]
    assert rows and all(row.uneven_frac == pytest.approx(0.5) for row in rows)
    (finding,) = (one for one in report.findings if one.rule == "TL126")
    assert finding.evidence["uneven_frac"] == pytest.approx(0.5, rel=0.05)
