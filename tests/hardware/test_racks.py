"""Collectives among the GPUs of a rack whose links join all of them."""

from __future__ import annotations

import pytest

from tracelens.hardware.collectives import exchange_us, linked


@pytest.mark.parametrize(
    ("size", "measured_us"), [(1 << 29, 1806.7), (1 << 30, 3108.8), (1 << 31, 5589.1), (1 << 32, 10094.0)]
)
def test_an_all_reduce_among_72_follows_the_law_of_four(size: int, measured_us: float) -> None:
    """coreweave/nccl-tests, pull 43: all_reduce_perf of a whole GB200 NVL72, out of place."""
    found = exchange_us("gb200", "all_reduce", 72, size, in_node=linked("gb200", 72))
    assert found is not None and 0.9 < found / measured_us < 1.21


@pytest.mark.parametrize(
    ("gpu", "ranks", "apart", "joined"),
    [
        ("gb200", 4, 1, 4),
        ("gb300", 72, 1, 72),
        ("gb300", 128, 1, 64),
        ("gb300", 73, 1, 36),
        ("gb200", 64, 4, 16),
        ("gb200", 8, 100, 1),
        ("h100-sxm", 12, 1, 6),
        ("h100-sxm", 64, 2, 4),
        ("rtx-4090", 8, 1, 1),
    ],
)
def test_how_many_ranks_the_links_join(gpu: str, ranks: int, apart: int, joined: int) -> None:
    assert linked(gpu, ranks, apart=apart) == joined


def test_beyond_a_rack_the_network_carries_it() -> None:
    within, among = (
        exchange_us("gb200", "all_gather", ranks, 1 << 30, in_node=linked("gb200", ranks)) or 0.0
        for ranks in (64, 512)
    )
    assert among > within > 0
    assert exchange_us("gb200", "all_gather", 3, 1 << 30, in_node=3) == pytest.approx(
        exchange_us("gb200", "all_gather", 3, 1 << 30, in_node=linked("gb200", 3))
    )
    assert exchange_us("h100-sxm", "all_gather", 16, 1 << 30, in_node=16) is None
