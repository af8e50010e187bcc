"""The same formula as ``cost``, spelled out with its numbers for one tile, so that a reader can redo it.

Every formula is plain arithmetic with ``ceil``, ``floor``, ``max``, ``min`` and ``exp``. Values carry seven
digits, and the next formula uses them as written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tracelens.gemm.predict.cost import REFERENCE_LOADS, shared_load
from tracelens.gemm.predict.rates import Cast, Rates
from tracelens.gemm.predict.tiles import Tile
from tracelens.gemm.predict.words import gemm as words

#: (name, formula with its numbers, value, unit, why)
Term = tuple[str, str, float, str, str]
#: (weight, ln(measured / formula), shape)
Neighbour = tuple[float, float, str]
_NAMES = {"ceil": math.ceil, "floor": math.floor, "max": max, "min": min, "exp": math.exp}


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
    aligned: int  # bytes, of the least aligned operand
    alignment_source: str
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
    terms, rates = _Terms(), one.rates
    waves = _waves(one, terms)
    depth = _depth(one, terms)
    wave = _one_wave(one, depth, terms)
    factors = _ragged(one, terms) + _long_k(rates, depth, terms)
    compute = terms.add("compute", f"{waves} * {wave}{factors}", "us", words.WAVE_AFTER_WAVE)
    memory = _memory(one, terms)
    busy = terms.add("busy", f"({compute}**4 + {memory}**4)**(1 / 4)", "us", words.OVERLAPPED)
    cast = " + " + _cast(one, terms) if rates.casts else ""
    loss = f"{_number(rates.sustained_loss_frac)}{_times(one.alignment_frac)}"
    half = _number(rates.sustained_us)
    formula = f"{_number(rates.fixed_us)} + {busy} * (1 + {loss} * {compute} / ({compute} + {half})){cast}"
    if one.split > 1:
        traffic = f"8 * {one.split} * {one.m} * {one.n} * {one.batch} / ({_number(rates.l2_gbps)} * 1e3)"
        why = words.slices_summed(one.split)
        formula += " + " + terms.add("sum of slices", f"{_number(rates.split_us)} + {traffic}", "us", why)
    time = terms.add("time", formula, "us", words.whole_time(loss, half))
    if one.neighbours:
        why = words.corrected(shape for _, _, shape in one.neighbours)
        terms.add("corrected time", f"{time} * exp({_correction(one)})", "us", why)
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
    clusters = zip((one.m, one.n), (tile.m, tile.n), tile.clusters, strict=True)
    along = [f"ceil({size} / {side * ctas}){_times(ctas)}" for size, side, ctas in clusters]
    clustered = tile.cluster_size > 1
    count = terms.add(
        "tiles",
        f"{along[0]} * {along[1]} * {one.batch}{_times(one.split)}",
        "tiles",
        words.tiles_over(
            (tile.m, tile.n), (one.m, one.n), clustered=clustered, slices=one.split, chosen=one.tile_why
        ),
    )
    why = words.tiles_at_once(slots, one.rates.sms, tile.cluster if clustered else None)
    fill = terms.add("fill", f"{count} / {slots}", "waves", why)
    if float(fill) == math.floor(float(fill)):
        return terms.add("waves", f"floor({fill})", "waves", words.FULL_WAVES)
    lone = float(fill) < 1
    partial = _number(one.rates.first_wave_frac if lone else one.rates.partial_wave_frac)
    return terms.add(
        "waves",
        f"floor({fill}) + {partial} + (1 - {partial}) * ({fill} - floor({fill}))",
        "waves",
        words.partial_wave(partial, single=lone),
    )


def _depth(one: Chosen, terms: _Terms) -> str:
    slice_k = f"{one.k} / {one.split}" if one.split > 1 else f"{one.k}"
    formula = f"ceil({slice_k} / {one.tile.k}) * {one.tile.k}"
    return terms.add("K of a tile", formula, "elements", words.steps_of_k(one.tile.k))


def _one_wave(one: Chosen, depth: str, terms: _Terms) -> str:
    """The time of a full wave: multiplies or loads, and the part of its store that nothing hides."""
    rates, tile = one.rates, one.tile
    rate = terms.add(
        "multiply rate",
        _rate(one),
        "TFLOP/s",
        words.multiply_rate(_number(rates.multiply_tflops), rates.source, one.aligned, one.alignment_source),
    )
    multiply = terms.add(
        "multiply",
        f"2 * {tile.m} * {tile.n} * {depth} * {rates.sms} / ({rate} * 1e6)",
        "us",
        words.TILE_ON_SM,
    )
    rows, columns = min(tile.m, one.m), min(tile.n, one.n)
    by_n, by_m = (shared_load(ctas, rates.cluster_load_frac) for ctas in reversed(tile.clusters))
    load = terms.add(
        "load",
        f"({rows}{_times(by_n)} + {columns}{_times(by_m)}) * {one.size:g} * {depth}"
        f" / ({_number(rates.sm_gbps)} * 1e3{_times(one.alignment_frac)})",
        "us",
        words.LOADED,
    )
    store = terms.add(
        "store",
        f"{_number(rates.store_frac)} * {rows} * {columns} * {one.out_size:g} * {tile.slots(rates.sms)}"
        f" / ({_number(rates.bandwidth_gbps)} * 1e3)",
        "us",
        words.STORED,
    )
    return f"(max({multiply}, {load}) + {store}{f' + {_number(rates.tile_us)}' if rates.tile_us else ''})"


def _ragged(one: Chosen, terms: _Terms) -> str:
    """What the last row of clusters costs where M fills only a part of it, as a factor."""
    rows = one.tile.m * one.tile.clusters[0]
    if not one.rates.ragged_frac or one.m % rows == 0:
        return ""
    there = f"ceil({one.m} / {rows})"
    formula = f"1 + {_number(one.rates.ragged_frac)} * ({there} - {one.m} / {rows})**2 / {there}"
    return f" * {terms.add('last row', formula, 'times', words.LAST_ROW)}"


def _long_k(rates: Rates, depth: str, terms: _Terms) -> str:
    """What K as long as this costs, as a factor."""
    if not rates.long_k_frac:
        return ""
    beyond = f"min(max({depth}, 3000) - 5000, 5240 / 2048 * max(12288 - {depth}, 0))"
    formula = f"1 + {_number(rates.long_k_frac)} * {beyond} / 1000"
    return f" * {terms.add('long K', formula, 'times', words.LONG_K)}"


def _memory(one: Chosen, terms: _Terms) -> str:
    """Every operand once across memory, or from the L2 cache."""
    rates = one.rates
    operands = (
        f"{one.size:g} * ({one.m} * {one.k} + {one.k} * {one.n}) + {one.out_size:g} * {one.m} * {one.n}"
    )
    moved = terms.add("operands", f"{one.batch} * ({operands})", "bytes", words.OPERANDS_ONCE)
    cached = terms.add(
        "cached",
        f"min({_number(rates.cached_mb)} * 1e6 / {moved}, 1)**2",
        "of them",
        words.STILL_CACHED,
    )
    return terms.add(
        "memory",
        f"{moved} * ((1 - {cached}) / {_number(rates.bandwidth_gbps)} + {cached} / {_number(rates.l2_gbps)})"
        " / 1e3",
        "us",
        words.BANDWIDTH_ACHIEVED,
    )


def _cast(one: Chosen, terms: _Terms) -> str:
    """The cast of the activations, as one more summand of the time: the middle one of those known."""
    each = [_one_cast(one, cast, terms) for cast in one.rates.casts]
    if len(each) == 1:
        return terms.add("cast", each[0], "us", words.CAST_FIRST)
    first, second, third = (terms.add("a cast", formula, "us", words.CAST_OF_ONE) for formula in each)
    low, high = f"min({first}, {second})", f"max({first}, {second})"
    return terms.add("cast", f"max({low}, min({high}, {third}))", "us", words.CAST_MIDDLE)


def _one_cast(one: Chosen, cast: Cast, terms: _Terms) -> str:
    rates = one.rates
    formula = f"{_number(cast.element_bytes)} * {one.m} * {one.k} * {one.batch}"
    moved = terms.add("bytes cast", formula, "bytes", words.CAST_BYTES)
    at_most = f"max({moved}, {_number(rates.cached_mb)} * 1e6)"
    cached = terms.add("cached", f"({_number(rates.cached_mb)} * 1e6 / {at_most})**2", "of them", words.IN_L2)
    rows = f"{_number(cast.row_ns)} * {one.m} * {one.batch}"
    memory = f"(1 - {cached}) / {_number(rates.bandwidth_gbps)} + {cached} / {_number(rates.l2_gbps)}"
    return f"{_number(cast.start_us)} + max({rows}, {moved} * ({memory})) / 1e3"


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


def _times(factor: float) -> str:
    return f" * {_number(factor)}" if factor != 1 else ""


def _number(value: float) -> str:
    return f"{value:.7g}"
