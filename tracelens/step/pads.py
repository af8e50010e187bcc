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


def pads_of(
    products: Sequence[Product], now: ModelConfig, then: ModelConfig, *, gpu: Gpu, compiled: bool = False
) -> list[Rest]:
    """The copies that pad, of products that ran padded and no longer have to, by component and phase.

    A weight is read and written once for each product but its gradient's, whose operands were padded for the
    other two. Activations are made padded by what computes them, or at the low end of the time left copied
    as well; at its high end nothing falls away. In a ``compiled`` step products that leave the grid get them.
    """
    if not gpu.bandwidth_gbps:
        return []
    times: dict[tuple[str, str, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for product in products:
        row, sizes = product.row, product.sizes(then)
        way = _way(product, now, then, compiled=compiled)
        if row.role == "wgrad" or sizes is None or not way:
            continue
        m, n, k, batch = sizes
        each = 2 * batch * row.calls_per_step * product.weight * (bytes_per_element(row.dtype) or 2)
        each /= gpu.bandwidth_gbps * BANDWIDTH_FRAC * 1e6
        off = _off(product, now if way < 0 else then)
        for at, moved in enumerate((n * k * bool({"n", "k"} & off), m * k * ("k" in off))):
            times[row.component, row.phase, way][at] += each * moved
    return [_copies(*key, weights, copied) for key, (weights, copied) in times.items() if weights]


def _copies(component: str, phase: str, way: int, weights: float, copied: float) -> Rest:
    """What copies of ``weights`` (ms), and of as much as ``copied`` besides, add (1) or take away (-1)."""
    most = _SLOWEST * weights
    if way > 0:
        return Rest(component, phase, words.PADDING, 0.0, Span(0.0, weights, most + copied, "model"))
    return Rest(component, phase, words.PADDING, most, Span(-copied, most - weights, most, "model"))


def _way(product: Product, now: ModelConfig, then: ModelConfig, *, compiled: bool) -> int:
    """-1 where it was padded and no longer has to be, 1 where it comes to be padded, 0 for neither."""
    if not compiled and not product.row.padded_from:
        return 0
    before, after = bool(_off(product, now)), bool(_off(product, then))
    if before and not after:
        return -1 if product.row.padded_from else 0
    return 1 if compiled and after and not before else 0


def _off(product: Product, config: ModelConfig) -> set[str]:
    """The sizes of it, as the model has them, that are off the grid of 16 bytes."""
    grid = grid_elements(product.row.dtype) or 1
    dims = {name: replace(getattr(product, name), padded_to=1) for name in ("m", "n", "k")}
    return {name for name, dim in dims.items() if (dim.value(config) or grid) % grid}
