"""The same formula as ``cost``, spelled out with its numbers for one tile, so that a reader can redo it.

Every formula is plain arithmetic with ``ceil``, ``floor``, ``max`` and ``exp``. Values carry seven digits,
and the next formula uses them as written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tracelens.gemm.predict.cost import REFERENCE_LOADS
from tracelens.gemm.predict.rates import Rates
from tracelens.gemm.predict.tiles import Tile

#: (name, formula with its numbers, value, unit, why)
Term = tuple[str, str, float, str, str]
#: (weight, ln(measured / formula), shape)
Neighbour = tuple[float, float, str]
_NAMES = {"ceil": math.ceil, "floor": math.floor, "max": max, "exp": math.exp}


@dataclass(frozen=True, slots=True)
class Chosen:
    """One product with everything its time was computed from."""

    m: int
    n: int
    k: int
    batch: int
    size: float  # bytes per element of the operands
    out_size: float
    alignment_frac: float
    alignment_why: str
    tile: Tile
    tile_why: str
    split: int
    rate_frac: float  # of this tile, fitted; 1 without measurements
    rates: Rates
    neighbours: tuple[Neighbour, ...] = ()
    prior_weight: float = 1.0


@dataclass(slots=True)
class _Terms:
    found: list[Term] = field(default_factory=list)

    def add(self, name: str, formula: str, unit: str, why: str) -> str:
        """Append one term; its value as the next formula writes it."""
        value = float(f"{evaluate(formula):.7g}")
        self.found.append((name, formula, value, unit, why))
        return _number(value)


def derive(one: Chosen) -> tuple[Term, ...]:
    """The terms in order; the last one is the predicted time."""
    terms = _Terms()
    bandwidth = f"({_number(one.rates.bandwidth_gbps)} * 1e3)"
    waves = _waves(one, terms)
    wave = _one_wave(one, terms, bandwidth)
    compute = terms.add("compute", f"{waves} * {wave}", "us", "wave after wave")
    operands = (
        f"{one.size:g} * ({one.m} * {one.k} + {one.k} * {one.n}) + {one.out_size:g} * {one.m} * {one.n}"
    )
    memory = terms.add(
        "memory",
        f"{one.batch} * ({operands}) / {bandwidth}",
        "us",
        "each operand crosses memory once at the bandwidth achieved; the L2 cache serves a wave's tiles",
    )
    formula = f"{_number(one.rates.fixed_us)} + max({compute}, {memory})"
    if one.split > 1:
        traffic = f"8 * {one.split} * {one.m} * {one.n} * {one.batch} / {bandwidth}"
        why = f"{one.split} slices written and read back in fp32"
        formula += " + " + terms.add("sum of slices", f"{_number(one.rates.split_us)} + {traffic}", "us", why)
    why = "a kernel's start and end, and the slower of compute and memory"
    if (ceiling := one.rates.ceiling_tflops) is not None:
        least = terms.add(
            "ceiling",
            f"2 * {one.m} * {one.n} * {one.k} * {one.batch} / ({_number(ceiling)} * 1e6)",
            "us",
            f"at {_number(ceiling)} TFLOP/s, the best matmul that anyone measured on this GPU",
        )
        formula, why = f"max({formula}, {least})", f"{why}; no faster than the ceiling"
    time = terms.add("time", formula, "us", why)
    if one.neighbours:
        terms.add("corrected time", f"{time} * exp({_correction(one)})", "us", _correction_why(one))
    return tuple(terms.found)


def evaluate(formula: str) -> float:
    """The value of a formula of this module.

    >>> evaluate("ceil(1600 / 128) * 2")
    26.0
    """
    return float(eval(compile(formula, "<term>", "eval"), {"__builtins__": {}}, _NAMES))


def correction(neighbours: tuple[Neighbour, ...], prior_weight: float) -> float:
    """ln of the factor that measured neighbours put on the formula: their mean, drawn towards none."""
    total = sum(weight for weight, _, _ in neighbours)
    return sum(weight * residual for weight, residual, _ in neighbours) / (total + prior_weight)


def _waves(one: Chosen, terms: _Terms) -> str:
    tile, slots = one.tile, one.tile.slots(one.rates.sms)
    sliced = f", K in {one.split} slices" if one.split > 1 else ""
    count = terms.add(
        "tiles",
        f"ceil({one.m} / {tile.m}) * ceil({one.n} / {tile.n}) * {one.batch}{_times(one.split)}",
        "tiles",
        f"{tile.m}x{tile.n} tiles over {one.m}x{one.n}{sliced}; {one.tile_why}",
    )
    cluster = f" in clusters of {tile.cluster}" if tile.cluster_size > 1 else ""
    sms = f"{slots} tiles run at once on {one.rates.sms} SMs{cluster}"
    fill = terms.add("fill", f"{count} / {slots}", "waves", sms)
    if float(fill) == math.floor(float(fill)):
        return terms.add("waves", f"floor({fill})", "waves", "every wave is full")
    lone = float(fill) < 1
    partial = _number(one.rates.first_wave_frac if lone else one.rates.partial_wave_frac)
    return terms.add(
        "waves",
        f"floor({fill}) + {partial} + (1 - {partial}) * ({fill} - floor({fill}))",
        "waves",
        f"a {'single' if lone else 'last'} wave costs {partial} of a full one, the rest by its tiles",
    )


def _one_wave(one: Chosen, terms: _Terms, bandwidth: str) -> str:
    """The time of a full wave: multiplies, and the part of its store that nothing hides."""
    rates, tile = one.rates, one.tile
    slice_k = f"{one.k} / {one.split}" if one.split > 1 else f"{one.k}"
    depth = terms.add(
        "K of a tile", f"ceil({slice_k} / {tile.k}) * {tile.k}", "elements", f"K in steps of {tile.k}"
    )
    rate = terms.add(
        "multiply rate",
        _rate(one),
        "TFLOP/s",
        f"{_number(rates.multiply_tflops)} in the K loop of a 128x256 tile ({rates.source});"
        f" {one.alignment_why}; a smaller tile loads more per multiply",
    )
    multiply = terms.add(
        "multiply",
        f"2 * {tile.m} * {tile.n} * {depth} * {rates.sms} / ({rate} * 1e6)",
        "us",
        "one tile on one SM",
    )
    written = f"{tile.m} * {tile.n} * {one.out_size:g} * {tile.slots(rates.sms)}"
    store = terms.add(
        "store",
        f"{_number(rates.store_frac)} * {written} / {bandwidth}",
        "us",
        "writing a wave's output, the part that no computation hides",
    )
    return f"({multiply} + {store})"


def _rate(one: Chosen) -> str:
    rates, tile = one.rates, one.tile
    formula = _number(rates.multiply_tflops)
    formula += "".join(_times(factor) for factor in (one.rate_frac, one.alignment_frac))
    if 1 / tile.m + 1 / tile.n > REFERENCE_LOADS:
        loads = f"1 / {tile.m} + 1 / {tile.n} - 3 / 256"
        formula += f" / (1 + {_number(rates.load_elements)} * ({loads}))"
    return formula


def _correction(one: Chosen) -> str:
    summed = " + ".join(f"{_number(weight)} * {_number(residual)}" for weight, residual, _ in one.neighbours)
    weights = " + ".join(_number(weight) for weight, _, _ in one.neighbours)
    return f"({summed}) / ({weights} + {_number(one.prior_weight)})"


def _correction_why(one: Chosen) -> str:
    shapes = ", ".join(shape for _, _, shape in one.neighbours)
    return (
        f"what the formula misses on the measured shapes nearest, {shapes}:"
        " weight * ln(measured / formula), over the weights and that of knowing none"
    )


def _times(factor: float) -> str:
    return f" * {_number(factor)}" if factor != 1 else ""


def _number(value: float) -> str:
    return f"{value:.7g}"
