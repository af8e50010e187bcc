"""The time of layers of experts on one GPU, on arrays: one formula serves the prediction and its fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.gemm.predict.cost import tile_slowdown
from tracelens.gemm.predict.experts_load import Load
from tracelens.gemm.predict.experts_rates import ExpertRates

Array = NDArray[np.float64]

#: Tiles that grouped kernels choose among: rows, columns. An expert's rows are padded to the tile's.
TILE_M = (16, 32, 64, 128, 256)
TILE_N = (64, 128, 256)
#: Time that operands in the L2 cache save of reading them from memory: it is three times as fast at least.
_CACHE_SAVES = 2 / 3
_M = np.asarray(TILE_M, dtype=np.float64).reshape(1, -1, 1)
_N = np.asarray(TILE_N, dtype=np.float64).reshape(1, 1, -1)


@dataclass(frozen=True, slots=True)
class ExpertWork:
    """What S layers do on a GPU: columns (S,), and ``blocks`` (S, tiles in M)."""

    tokens: Array
    rows: Array
    active: Array  # experts with rows
    local: Array  # experts on the GPU
    blocks: Array  # of ``TILE_M`` rows
    top_k: Array
    hidden: Array
    inter: Array  # on the GPU
    ups: Array  # 2 where a gate is multiplied beside the up projection, else 1

    @classmethod
    def of(
        cls, loads: Sequence[Load], *, tokens: Any, top_k: Any, hidden: Any, inter: Any, ups: Any
    ) -> ExpertWork:
        """From one load per layer, and sizes as sequences of the same length."""
        return cls(
            tokens=np.asarray(tokens, dtype=np.float64),
            rows=np.asarray([one.total for one in loads]),
            active=np.asarray([one.active for one in loads]),
            local=np.asarray([float(one.rows.shape[1]) for one in loads]),
            blocks=np.asarray([[one.blocks(rows) for rows in TILE_M] for one in loads]),
            top_k=np.asarray(top_k, dtype=np.float64),
            hidden=np.asarray(hidden, dtype=np.float64),
            inter=np.asarray(inter, dtype=np.float64),
            ups=np.asarray(ups, dtype=np.float64),
        )


@dataclass(frozen=True, slots=True)
class GroupedGemm:
    """One grouped GEMM of S layers: microseconds, and the tile that is fastest."""

    n: Array
    k: Array
    us: Array
    tile: NDArray[np.intp]  # index into TILE_M x TILE_N
    tiles: Array


def forward(work: ExpertWork, rates: ExpertRates) -> tuple[dict[str, GroupedGemm], dict[str, Array]]:
    """Grouped GEMMs of S layers, and what else they do, in microseconds."""
    up = _of_rows(work, work.ups * work.inter, work.hidden, rates)
    down = _of_rows(work, work.hidden, work.inter, rates)
    return {"up": up, "down": down}, {
        "rows moved": _moved_us(work, rates, passes=1.0),
        "routing": _routing_us(work, rates),
    }


def backward(work: ExpertWork, rates: ExpertRates) -> tuple[dict[str, GroupedGemm], dict[str, Array]]:
    """The same of the backward: gradients of rows and of weights, at the forward's rates.

    Nothing of it is measured: rows move twice (their gradients, and the activations read again), and the
    choice of experts is known.
    """
    up, inter = work.ups * work.inter, work.inter
    return {
        "down dgrad": _of_rows(work, inter, work.hidden, rates),
        "down wgrad": _of_weights(work, work.hidden, inter, rates),
        "up dgrad": _of_rows(work, work.hidden, up, rates),
        "up wgrad": _of_weights(work, up, work.hidden, rates),
    }, {"rows moved": _moved_us(work, rates, passes=2.0)}


def _of_rows(work: ExpertWork, n: Array, k: Array, rates: ExpertRates) -> GroupedGemm:
    """Each expert's rows times its own k x n weights: padded tiles over SMs in waves, weights read once."""
    share = rates.shares
    tiles = work.blocks[:, :, None] * np.ceil(n[:, None, None] / _N)
    fill = tiles / rates.sms
    begun = np.ceil(fill)
    waves = begun - (1 - share.partial_wave_frac) * (begun - fill)
    moved = rates.element_bytes * (work.active * n * k + work.rows * k) + 2 * work.rows * n
    return _fastest(waves * _per_k(rates) * (k[:, None, None] + share.ends_k), tiles, moved, n, k, rates)


def _of_weights(work: ExpertWork, n: Array, k: Array, rates: ExpertRates) -> GroupedGemm:
    """Gradient of each expert's k x n weights over its rows; experts differ in the length of that loop, so
    tiles are spread by length and not in waves."""
    tiles = work.active[:, None, None] * np.ceil(n[:, None, None] / _N) * np.ceil(k[:, None, None] / _M)
    rows = work.rows / np.maximum(work.active, 1)
    waves = np.maximum(tiles / rates.sms, 1.0)
    moved = rates.element_bytes * work.rows * (n + k) + 2 * work.local * n * k
    return _fastest(
        waves * _per_k(rates) * (rows[:, None, None] + rates.shares.ends_k), tiles, moved, n, k, rates
    )


def _per_k(rates: ExpertRates) -> Array:
    """Microseconds of one tile's multiplies per element of the loop, (1, tiles in M, tiles in N)."""
    share = rates.shares
    rate = rates.peak_tflops * share.of_peak / rates.sms
    return np.asarray(2e-6 * _M * _N * tile_slowdown(_M, _N, share.load_elements) / rate)


def _fastest(
    compute: Array, tiles: Array, moved: Array, n: Array, k: Array, rates: ExpertRates
) -> GroupedGemm:
    compute = compute.reshape(len(n), -1)
    at, every = compute.argmin(axis=1), np.arange(len(n))
    best = compute[every, at]
    # What the L2 cache still holds of weights and rows comes from there.
    cached = rates.shares.cached_mb * 1e6
    faster = 1 - _CACHE_SAVES * (cached / np.maximum(moved, max(cached, 1.0))) ** 2
    memory = faster * moved / (rates.bandwidth_gbps * rates.shares.of_bandwidth * 1e3)
    power = rates.shares.overlap
    return GroupedGemm(
        n, k, (best**power + memory**power) ** (1 / power), at, tiles.reshape(len(n), -1)[every, at]
    )


def _moved_us(work: ExpertWork, rates: ExpertRates, *, passes: float) -> Array:
    """Rows gathered and written for the experts, activated, and summed up per token.

    vLLM's Triton experts do so with every row, also those whose expert is on another GPU: such rows are
    zeros (``write_zeros_to_output`` in vllm/model_executor/layers/fused_moe/fused_moe.py). TensorRT-LLM's of
    Blackwell are given every token, too, and what they take grows with all rows.
    """
    size = rates.element_bytes
    foreign = np.maximum(work.tokens * work.top_k - work.rows, 0.0)
    rows = work.rows + rates.shares.foreign_frac * foreign
    gathered = rows * work.hidden * (2 + size)
    activated = rates.shares.activated_frac * rows * work.inter * (2 * work.ups + size)
    summed = 2 * work.hidden * (rows + work.tokens)
    bandwidth = rates.bandwidth_gbps * rates.shares.moved_frac * 1e3
    return passes * (gathered + activated + summed) / bandwidth


def _routing_us(work: ExpertWork, rates: ExpertRates) -> Array:
    share = rates.shares
    return share.fixed_us + share.choice_us * work.tokens * work.top_k / 1e3 + share.expert_us * work.local
