"""What a collective takes within one node, from published times of NCCL."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from math import sqrt
from typing import Any

from tracelens.accounting.communication import bus_factor

#: Bytes that were measured; beyond, nothing is said.
_LEAST, _MOST = 1 << 20, 1 << 30


@cache
def _times() -> dict[str, Any]:
    text = resources.files("tracelens.job").joinpath("nccl.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


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
