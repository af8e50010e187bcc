"""TL130: NVIDIA/Megatron-LM#4979, messages a third larger than the weights, a quarter of them padding."""

from __future__ import annotations

from math import lcm
from typing import Any

import pytest

from tests.advice.advice_experts import Mix, mixed_rows
from tests.advice.advice_facts import step_of
from tests.advice.advice_messages import message
from tests.advice.advice_steps import Shape
from tracelens.rules.engine.facts import Outcome
from tracelens.rules.padded_buckets import PaddedBuckets

HIDDEN, FFN, EXPERTS, RANKS = 2048, 1024, 8, 16
GROUP = "EXPERT_DATA_PARALLEL_GROUP"
#: A gate, the way up and the way down.
WEIGHTS = EXPERTS * 3 * HIDDEN * FFN
#: megatron_fsdp/param_and_grad_buffer.py: ranks * chunk_size_factor, the least common multiple of shape[1:].
UNIT = RANKS * lcm(2 * FFN * HIDDEN, HIDDEN * FFN)
PADDED = -(-WEIGHTS // UNIT) * UNIT


def check(*, how: str = "grouped", **given: Any) -> Outcome:
    mix = Mix(Shape(h=HIDDEN, a=16, f=FFN, s=512), experts=16, loads=[512] * EXPERTS, how=how, ranks=2)
    given = {"group": GROUP, "group_size": RANKS, "bytes_per_call": 2.0 * PADDED, "exposed": 4.0} | given
    rows = [message("all_gather", **given)]
    return PaddedBuckets().check(step_of(mixed_rows(mix), dims=mix.dims, communication=rows))


def test_the_reported_padding_is_found() -> None:
    assert 3 * PADDED == 4 * WEIGHTS
    (finding,) = check().findings
    assert finding.evidence["messages"][0]["padding_frac"] == pytest.approx(0.25)
    assert finding.change == {"message_bytes": [2 * PADDED, 2 * WEIGHTS]}
    assert finding.saving_ms.mid is None and finding.saving_ms.high == pytest.approx(0.25 * 4.0)


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ({"bytes_per_call": 2.0 * WEIGHTS}, "passed"),
        ({"bytes_per_call": 2.01 * WEIGHTS}, "passed"),  # alignment of a few bytes
        ({"bytes_per_call": 4.0 * PADDED}, "could_not_run"),  # of two layers
        ({"bytes_per_call": 1.0 * WEIGHTS}, "could_not_run"),  # of a part of a layer
        ({"bytes_per_call": None}, "could_not_run"),
        ({"dtype": None}, "could_not_run"),
        ({"how": "batched"}, "could_not_run"),
        ({"group": "DATA_PARALLEL_GROUP"}, "not_applicable"),
        ({"group": "EXPERT_MODEL_PARALLEL_GROUP"}, "not_applicable"),
        ({"group": None}, "not_applicable"),
    ],
)
def test_what_is_no_padding_or_not_known(given: dict[str, Any], state: str) -> None:
    outcome = check(**given)
    assert not outcome.findings and outcome.state == state
