"""What torch.compile copies to pad products, and a change of the model's sizes makes needless."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from tracelens.config.model_config import ModelConfig
from tracelens.gemm.dtypes import bytes_per_element
from tracelens.hardware import Gpu
from tracelens.results import Rest, Span
from tracelens.step.alignment import grid_elements
from tracelens.step.traffic import BANDWIDTH_FRAC
from tracelens.step.words import simulation as words
from tracelens.step.work import Product

#: Times as long as at that bandwidth, at most: 1.05 is the most in ``sample_traces``.
_SLOWEST = 1.2


def pads_of(products: Sequence[Product], now: ModelConfig, then: ModelConfig, *, gpu: Gpu) -> list[Rest]:
    """The copies of weights that ran padded and no longer have to, by component and phase.

    A weight is read and written once for each product but its gradient's, whose operands were padded for the
    other two. Activations are made padded by what computes them. At the low end nothing falls away.
    """
    if not gpu.bandwidth_gbps:
        return []
    times: dict[tuple[str, str], float] = defaultdict(float)
    for product in products:
        row, sizes = product.row, product.sizes(then)
        if row.role == "wgrad" or sizes is None or not _freed(product, now, then):
            continue
        _, n, k, batch = sizes
        if {"n", "k"} & row.padded_from.keys():
            moved = 2 * batch * n * k * (bytes_per_element(row.dtype) or 2)
            calls = row.calls_per_step * product.weight
            times[row.component, row.phase] += calls * moved / (gpu.bandwidth_gbps * BANDWIDTH_FRAC * 1e6)
    return [
        Rest(*key, words.PADDING, _SLOWEST * time, Span(0.0, (_SLOWEST - 1) * time, _SLOWEST * time, "model"))
        for key, time in times.items()
    ]


def _freed(product: Product, now: ModelConfig, then: ModelConfig) -> bool:
    """Was it padded, and is every size of it on the grid of 16 bytes ``then``?"""
    grid = grid_elements(product.row.dtype)
    if not product.row.padded_from or not grid:
        return False
    dims = [replace(dim, padded_to=1) for dim in (product.m, product.n, product.k)]
    before, after = ([dim.value(config) or 1 for dim in dims] for config in (now, then))
    return any(size % grid for size in before) and not any(size % grid for size in after)
