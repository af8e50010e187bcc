"""The same formula as ``cost``, spelled out with its numbers for one tile, so that a reader can redo it.

Every formula is plain arithmetic with ``ceil``, ``floor``, ``max`` and ``exp``; values carry seven significant
digits and the next formula uses them as written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tracelens.gemm.predict.cost import REFERENCE_LOADS
from tracelens.gemm.predict.rates import Rates
from tracelens.gemm.predict.tiles import Tile

#: (name, formula with its numbers, value, unit, why)
Term = tuple[str, str, float, str, str]
_NAMES = {"ceil": math.ceil, "floor": math.floor, "max": max, "exp": math.exp}


@dataclass(frozen=True, slots=True)
class Chosen:
    """One product with everything its time was computed from."""

    m: int
    n: int
    k: int
    batch: int
    size: float
    out_size: float
    alignment_frac: float
    alignment_why: str
    tile: Tile
    tile_why: str
    split: int
    rate_frac: float  # of this tile, fitted; 1 without measurements
    rates: Rates
    neighbours: tuple[tuple[float, float, str], ...] = ()  # (weight, ln(measured / formula), shape)
    prior_weight: float = 1.0


def derive(one: Chosen) -> tuple[Term, ...]:
    """The terms in order; the last one is the predicted time."""
    rates, tile, split = one.rates, one.tile, one.split
    terms: list[Term] = []

    def term(name: str, formula: str, unit: str, why: str) -> str:
        value = float(f"{evaluate(formula):.7g}")
        terms.append((name, formula, value, unit, why))
        return _number(value)

    slots = tile.slots(rates.sms)
    cluster = f" in clusters of {tile.cluster}" if tile.cluster_size > 1 else ""
    count = term(
        "tiles",
        f"ceil({one.m} / {tile.m}) * ceil({one.n} / {tile.n}) * {one.batch}" + (f" * {split}" if split > 1 else ""),
        "tiles",
        f"{tile.m}x{tile.n} tiles over {one.m}x{one.n}" + (f", K in {split} slices" if split > 1 else "") + f"; {one.tile_why}",
    )  # fmt: skip
    fill = term(
        "fill",
        f"{count} / {slots}",
        "waves",
        f"{slots} tiles run at once on {rates.sms} SMs{cluster}",
    )
    whole, partial = f"floor({fill})", _number(rates.partial_wave_frac)
    exact = float(fill) == math.floor(float(fill))
    waves = term(
        "waves",
        whole if exact else f"{whole} + {partial} + (1 - {partial}) * ({fill} - {whole})",
        "waves",
        "every wave is full"
        if exact
        else f"a partly filled wave costs {partial} of a full one, and the rest in proportion to its tiles",
    )
    depth = term(
        "K of a tile",
        f"ceil({one.k} / {split} / {tile.k}) * {tile.k}" if split > 1 else f"ceil({one.k} / {tile.k}) * {tile.k}",
        "elements",
        f"K in steps of {tile.k}",
    )  # fmt: skip
    rate = term(
        "multiply rate",
        _rate(one),
        "TFLOP/s",
        f"{_number(rates.multiply_tflops)} in the K loop of a 128x256 tile ({rates.source}); {one.alignment_why};"
        " a smaller tile loads more per multiply",
    )
    multiply = term(
        "multiply",
        f"2 * {tile.m} * {tile.n} * {depth} * {rates.sms} / ({rate} * 1e6)",
        "us",
        "one tile on one SM",
    )
    bandwidth = _number(rates.bandwidth_gbps)
    store = term(
        "store",
        f"{_number(rates.store_frac)} * {tile.m} * {tile.n} * {one.out_size:g} * {slots} / ({bandwidth} * 1e3)",
        "us",
        "writing a wave's output, the part that no computation hides",
    )
    compute = term("compute", f"{waves} * ({multiply} + {store})", "us", "wave after wave")
    memory = term(
        "memory",
        f"{one.batch} * ({one.size:g} * ({one.m} * {one.k} + {one.k} * {one.n}) + {one.out_size:g} * {one.m} * {one.n})"
        f" / ({bandwidth} * 1e3)",
        "us",
        "each operand crosses memory once at the bandwidth achieved; the L2 cache serves a wave's tiles",
    )  # fmt: skip
    parts = f"{_number(rates.fixed_us)} + max({compute}, {memory})"
    if split > 1:
        parts += " + " + term(
            "sum of slices",
            f"{_number(rates.split_us)} + 8 * {split} * {one.m} * {one.n} * {one.batch} / ({bandwidth} * 1e3)",
            "us",
            f"{split} slices written and read back in fp32",
        )
    time = term("time", parts, "us", "a kernel's start and end, and the slower of compute and memory")
    if one.neighbours:
        term("corrected time", f"{time} * exp({_correction(one)})", "us", _correction_why(one))
    return tuple(terms)


def evaluate(formula: str) -> float:
    """The value of a formula of this module.

    >>> evaluate("ceil(1600 / 128) * 2")
    26.0
    """
    return float(eval(compile(formula, "<term>", "eval"), {"__builtins__": {}}, _NAMES))


def correction(neighbours: tuple[tuple[float, float, str], ...], prior_weight: float) -> float:
    """ln of the factor that measured neighbours put on the formula: their mean, drawn towards none."""
    total = sum(weight for weight, _, _ in neighbours)
    return sum(weight * residual for weight, residual, _ in neighbours) / (total + prior_weight)


def _rate(one: Chosen) -> str:
    rates, tile = one.rates, one.tile
    formula = _number(rates.multiply_tflops)
    if one.rate_frac != 1:
        formula += f" * {_number(one.rate_frac)}"
    if one.alignment_frac != 1:
        formula += f" * {_number(one.alignment_frac)}"
    if 1 / tile.m + 1 / tile.n > REFERENCE_LOADS:
        formula += f" / (1 + {_number(rates.load_elements)} * (1 / {tile.m} + 1 / {tile.n} - 3 / 256))"
    return formula


def _correction(one: Chosen) -> str:
    summed = " + ".join(
        f"{_number(weight)} * {_number(residual)}" for weight, residual, _ in one.neighbours
    ).replace("+ -", "- ")
    weights = " + ".join(_number(weight) for weight, _, _ in one.neighbours)
    return f"({summed}) / ({weights} + {_number(one.prior_weight)})"


def _correction_why(one: Chosen) -> str:
    shapes = ", ".join(shape for _, _, shape in one.neighbours)
    return f"the formula against its nearest measured shapes {shapes}: weight * ln(measured / formula)"


def _number(value: float) -> str:
    text = f"{value:.7g}"
    return text if "e" not in text else repr(float(text))
