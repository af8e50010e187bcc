"""What a collective takes within one node, from published times of NCCL, and among nodes."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from math import ceil, sqrt
from typing import Any

#: Bytes that were measured; beyond, nothing is said.
_LEAST, _MOST = 1 << 20, 1 << 30
#: Boards with the links of another, whose times were published.
_SAME_LINKS = {"a100-sxm-40gb": "a100-sxm-80gb", "h100-sxm-96gb": "h100-sxm"}
#: Joined by PCIe: their times are those of one machine, and its switches and sockets decide.
_PCIE = frozenset({"l40s", "rtx-pro-6000-server"})
#: GB/s of a GPU's own network card. NVIDIA's data sheets of DGX A100 (8 x 200 Gb/s), DGX H100, H200 and B200
#: (8 x 400 Gb/s), DGX B300 (8 x 800 Gb/s), GB200 NVL72 (400 Gb/s a GPU) and GB300 NVL72 (800 Gb/s); other
#: machines have other cards, or share them.
_NETWORK_GBPS = {
    "a100-sxm-40gb": 25.0, "a100-sxm-80gb": 25.0, "h100-sxm": 50.0, "h100-sxm-96gb": 50.0, "h200": 50.0,
    "b200": 50.0, "b300": 100.0, "gb200": 50.0, "gb300": 100.0,
}  # fmt: skip
#: GPUs that the links of one rack join. The law of four of them holds for all: an all-reduce of 0.5 to 4 GB
#: among 72 GB200 takes 0.91 to 1.20 times as long by it as measured (coreweave/nccl-tests, pull 43).
_RACK = {"gb200": 72, "gb300": 72}


@cache
def _times() -> dict[str, Any]:
    text = resources.files("tracelens.hardware").joinpath("nccl.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def bus_factor(collective: str, ranks: int | None) -> float | None:
    """Bus bandwidth / algorithm bandwidth, from doc/PERFORMANCE.md of NVIDIA/nccl-tests; None: not defined.

    It counts what each rank's link carries, so that figures compare with the link's speed whatever the
    number of ranks: an all-reduce carries every byte twice, but for the rank's own share.

    >>> bus_factor("all_reduce", 8), bus_factor("all_gather", 8), bus_factor("broadcast", 8)
    (1.75, 0.875, 1.0)
    """
    if collective in ("broadcast", "reduce", "send/recv"):
        return 1.0
    if ranks is None or ranks < 1:
        return None
    share = (ranks - 1) / ranks
    return {
        "all_reduce": 2 * share,
        "reduce_scatter": share,
        "all_gather": share,
        "all_to_all": share,
    }.get(collective)


def one_node_us(gpu: str, collective: str, ranks: int, size: int | None) -> float | None:
    """us of a call of so many bytes (the S of nccl-tests) among 2, 4 or 8 such GPUs of one node.

    ``gpu`` is a key of gpus.toml. ``python -m benchmarks.job one_node`` fits the constants, ``nccl.toml``
    says to what. None where nothing was measured: other GPUs and numbers of ranks, less than 1 MB, more
    than 1 GB.

    >>> round(one_node_us("h100-sxm", "all_gather", 8, 134_217_728), -1)
    390.0
    >>> one_node_us("h100-sxm", "all_gather", 16, 134_217_728) is None
    True
    """
    fixed = _times().get(gpu, {}).get(collective, {}).get(str(ranks))
    factor = bus_factor(collective, ranks)
    if fixed is None or factor is None or size is None or not _LEAST <= size <= _MOST:
        return None
    start_us, root_us, gbps = fixed
    kb = size * factor / 1e3
    return float(start_us + root_us * sqrt(kb) + kb / gbps)


def node_size(gpu: str) -> int:
    """The most GPUs of one node whose collectives were published; 1 where none were.

    >>> node_size("a100-sxm-40gb"), node_size("rtx-4090")
    (8, 1)
    """
    published = _times().get(_SAME_LINKS.get(gpu, gpu), {}).get("all_gather", {})
    return max(map(int, published), default=1)


def linked(gpu: str, ranks: int, *, apart: int = 1) -> int:
    """How many of ``ranks`` GPUs the links of one node or rack join; each ``apart``-th GPU is one of them.

    Ranks are spread evenly over as few nodes as hold them: the least of a node's, whose cards are fewest.

    >>> linked("h100-sxm", 64), linked("h100-sxm", 7), linked("h100-sxm", 4, apart=8), linked("gb200", 64)
    (8, 7, 1, 64)
    >>> linked("gb200", 128, apart=2), linked("h100-sxm", 11)
    (32, 5)
    """
    room = max(1, _RACK.get(gpu, node_size(gpu)) // apart)
    return ranks // ceil(ranks / room)


def pcie_frac(gpu: str, ranks: int) -> float:
    """What is left of a call's time where PCIe carries it among ``ranks`` as fast as between two; else 1.

    >>> round(pcie_frac("l40s", 8), 2), pcie_frac("h100-sxm", 8)
    (0.06, 1.0)
    """
    if gpu not in _PCIE or ranks == 1:
        return 1.0
    published = _times()[gpu]["all_gather"]
    measured = next(count for count in sorted(map(int, published)) if count >= min(ranks, node_size(gpu)))
    return float(published[str(measured)][2] / published["2"][2])


def exchange_us(gpu: str, collective: str, ranks: int, size: float, *, in_node: int) -> float | None:
    """us of a call of ``size`` bytes among ``ranks`` GPUs, of which ``in_node`` are in each node.

    The law of ``one_node_us``, also for sizes beyond those measured, and for counts between them that of the
    next larger one. Among nodes a ring carries the same bytes over the network cards of a node's members,
    which are slower or faster than its links; in an all-to-all each GPU sends what is for other nodes over
    its own. None where nothing was published.

    >>> round(exchange_us("h100-sxm", "all_gather", 8, 134_217_728, in_node=8), -1)
    390.0
    >>> exchange_us("rtx-4090", "all_gather", 8, 134_217_728, in_node=8) is None
    True
    """
    factor = bus_factor(collective, ranks)
    if factor is None or ranks == 1:
        return 0.0 if ranks == 1 else None
    kb, took = size * factor / 1e3, 0.0
    if in_node > 1:
        published = _times().get(_SAME_LINKS.get(gpu, gpu), {}).get(collective, {})
        counts = sorted(map(int, published))
        if not counts or in_node > max(counts[-1], _RACK.get(gpu, 0)):
            return None
        measured = next((count for count in counts if count >= in_node), counts[-1])
        start_us, root_us, gbps = published[str(measured)]
        took = float(start_us + root_us * sqrt(kb) + kb / gbps)
    if ranks == in_node:
        return took
    network = _NETWORK_GBPS.get(gpu)
    if network is None:
        return None
    if collective == "all_to_all":
        return max(took, size * (ranks - in_node) / ranks / 1e3 / network)
    return max(took, kb / (network * in_node))
