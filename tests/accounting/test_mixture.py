"""Experts, and how many of them a token goes to: from the router's operators."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.said import Listener
from tests.trace.tools import document, op, read
from tracelens.accounting.degrees import mixture_dims
from tracelens.accounting.operands import router_choices
from tracelens.results import Known


@pytest.mark.parametrize(
    ("name", "dims", "concrete", "chosen"),
    [
        ("aten::topk", [[8192, 8], [], []], ["", "2", "-1"], {(8, 2)}),
        ("aten::topk", [[8, 1024, 4], [], []], ["", "1", "-1"], {(4, 1)}),
        ("aten::topk", [[8, 1024, 4], [], []], ["", "1", "2"], {(4, 1)}),
        ("aten::topk", [[8, 1024, 4], [], []], ["", "512", "1"], set()),  # tokens that experts choose
        ("aten::topk", [[[8, 4]], [], []], ["", "1", "-1"], set()),
        ("aten::topk", [[8192, 8], [], []], [], set()),
        ("aten::topk", [], ["", "2"], set()),
        # vllm-project/vllm csrc/moe/torch_bindings.cpp: weights, indices, source rows, gating
        ("_moe_C::topk_softmax", [[64, 4], [64, 4], [64, 4], [64, 128]], [], {(128, 4)}),
        ("aten::sort", [[8192, 8]], ["", "2"], set()),
    ],
)
def test_routers_say_what_they_choose(
    name: str, dims: list[list[int]], concrete: list[str], chosen: set[tuple[int, int]], tmp_path: Path
) -> None:
    event = op(name, ts=1, dur=5, **{"Input Dims": dims, "Concrete Inputs": concrete})
    assert router_choices(read(tmp_path, document([event]))) == chosen


@pytest.mark.parametrize(
    ("experts", "groups", "choices", "found"),
    [
        (8, [4, 4], {(8, 2), (50304, 50)}, [8, 2, 2]),
        (8, [8], {(8, 2), (8, 1)}, [8, None, 1]),  # two routers that differ
        (8, [3], set(), [8, None, None]),
        (None, [4], {(8, 2)}, [None, None, None]),  # no router, no experts
    ],
)
def test_a_mixture_is_as_its_router_says(
    experts: int | None, groups: list[int], choices: set[tuple[int, int]], found: list[int | None]
) -> None:
    assert [one.value for one in mixture_dims(Known(experts, ""), groups, choices).values()] == found


def test_what_grouped_gemms_of_a_part_of_the_experts_show(said: Listener) -> None:
    found = mixture_dims(Known(8, ""), [4, 2, 4], {(8, 2)})["expert_parallel"]
    assert found.value == 2
    said(found.source)
