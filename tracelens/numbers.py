"""How numbers are written, in one place, so that findings, page and terminal say the same.

Three significant digits, milliseconds that become microseconds or seconds where that reads better,
and shares that never round to 0 % or 100 % unless they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tracelens.results import Estimate, SavingOf
from tracelens.results.advice import SavingCounts
from tracelens.words import slash_step

UNKNOWN = "unknown"
DASH = "–"  # an empty cell


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def sig(value: float | None, digits: int = 3) -> str:
    """Write a number with three significant digits, never dropping digits before the point.

    >>> sig(412.44), sig(27.94), sig(0.0312), sig(1234567.0), sig(9.996)
    ('412', '27.9', '0.0312', '1,234,567', '10.0')
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")  # 9.996 becomes 10.0 before its digits are counted
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{value:,.0f}" if decimals <= 0 else f"{rounded:.{decimals}f}"


def count(value: float | None) -> str:
    """Write a count with thousands separators, and a fraction only where there is one.

    >>> count(1204511), count(12.0), count(2.5)
    ('1,204,511', '12', '2.50')
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:,.0f}" if value == int(value) else sig(value)


def _unit(value_ms: float) -> tuple[str, float]:
    if abs(float(f"{value_ms:.2e}")) >= 10_000:
        return "s", 1e-3
    if value_ms and abs(float(f"{value_ms:.2e}")) < 1:
        return "µs", 1e3
    return "ms", 1.0


def ms(value_ms: float | None) -> str:
    """Write a time given in milliseconds.

    >>> ms(412.44), ms(0.0312), ms(12345.0), ms(0.0), ms(None)
    ('412 ms', '31.2 µs', '12.3 s', '0 ms', 'unknown')
    """
    if value_ms is None or not math.isfinite(value_ms):
        return UNKNOWN
    unit, factor = _unit(value_ms)
    return f"{sig(value_ms * factor)} {unit}"


def ms_range(low_ms: float | None, high_ms: float | None, *, of: float | None = None) -> str:
    """Write two times in the unit of the larger one (or of ``of``), to the smaller one's digits where near.

    >>> ms_range(12.0, 16.44), ms_range(0.2, 0.3), ms_range(-0.001, 4.1), ms_range(3, 3), ms_range(None, 3.2)
    ('12.0–16.4 ms', '200–300 µs', '0–4.10 ms', '3.00 ms', 'unknown')
    >>> ms_range(-1.0, 3.0), ms_range(99.74, 100.75)  # the median of these is 99.9
    ('-1.00 to 3.00 ms', '99.7–100.8 ms')
    >>> ms_range(3062.0, 12287.0, of=7461.0)
    '3,062–12,287 ms'
    """
    if low_ms is None or high_ms is None or not (math.isfinite(low_ms) and math.isfinite(high_ms)):
        return UNKNOWN
    unit, factor = _unit(high_ms if of is None else of)
    high = sig(high_ms * factor)
    places = len((sig(low_ms * factor) if 2 * low_ms > high_ms else high).partition(".")[2])
    high = f"{high_ms * factor:,.{places}f}"
    rounded = round(low_ms * factor, places)
    low = f"{rounded:,.{places}f}" if rounded else "0"
    dash = " to " if low.startswith("-") else "–"
    return f"{high} {unit}" if low == high else f"{low}{dash}{high} {unit}"


def exact_ms(time_ns: int) -> str:
    """Write integer nanoseconds as milliseconds without losing a digit that adds up.

    >>> exact_ms(1234567890), exact_ms(1500)
    ('1,234.567890', '0.001500')
    """
    whole, rest = divmod(time_ns, 1_000_000)
    return f"{whole:,}.{rest:06d}"


def pct(frac: float | None) -> str:
    """Write a share of 0..1 in percent; 0 % and 100 % are said only when exact.

    >>> pct(0.3701), pct(0.0002), pct(0.99999), pct(1.0), pct(0.0), pct(None)
    ('37.0%', '<0.1%', '>99.9%', '100%', '0%', 'unknown')
    """
    if frac is None or not math.isfinite(frac):
        return UNKNOWN
    if frac == 0 or frac == 1:
        return f"{frac:.0%}"
    if 0 < frac < 0.0005:
        return "<0.1%"
    if 0.9995 <= frac < 1:
        return ">99.9%"
    return f"{frac:.1%}"


def nbytes(value: int) -> str:
    """Write a size in decimal units.

    >>> nbytes(431), nbytes(12_345_678)
    ('431 B', '12.3 MB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{sig(value / size)} {unit}"
    return f"{value} B"


def signed_bytes(value: float) -> str:
    """Write a size that is added or, below zero, taken away.

    >>> signed_bytes(577536.0), signed_bytes(-2.5e9), signed_bytes(0)
    ('+578 kB', '-2.50 GB', '±0 B')
    """
    size = round(abs(value))
    return f"{'±' if not size else '+' if value > 0 else '-'}{nbytes(size)}"


def delta(value: float | None) -> str:
    """Write a signed change.

    >>> delta(36096), delta(-2.5e9), delta(0)
    ('+36,096', '-2,500,000,000', '±0')
    """
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return "±0" if value == 0 else ("+" if value > 0 else "") + count(value)


def mnk(m: int | None, n: int | None, k: int | None, batch: int | None = None) -> str | None:
    """Write a GEMM shape as users type it, or None when a dimension is not known.

    >>> mnk(8192, 3072, 768), mnk(1024, 1024, 64, 96), mnk(1, None, 2)
    ('8192 × 3072 × 768', '1024 × 1024 × 64 (×96)', None)
    """
    if m is None or n is None or k is None:
        return None
    return f"{m} × {n} × {k}" + (f" (×{batch})" if batch is not None and batch > 1 else "")


def mn_ranges(m: tuple[int, int] | None, n: tuple[int, int] | None, batch: int | None = None) -> str | None:
    """Write ranges of M and N, never to be taken for sizes; None where neither is bounded.

    >>> mn_ranges((193, 256), (2177, 2304), 1), mn_ranges((1, 32), (1, 32), 8), mn_ranges(None, None)
    ('M 193–256 N 2177–2304', 'M 1–32 N 1–32 (×8)', None)
    """
    parts = [f"{name} {size[0]}–{size[1]}" for name, size in (("M", m), ("N", n)) if size is not None]
    if not parts:
        return None
    return " ".join(parts) + (f" (×{batch})" if batch is not None and batch > 1 else "")


def integers(values: Sequence[int], dash: str = "–") -> str:
    """Write integers as sorted runs.

    >>> integers([5, 3, 4, 9]), integers([0, 1, 2], dash="-")
    ('3–5, 9', '0-2')
    """
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}{dash}{run[-1]}" for run in runs)


#: What a saving's basis is called beside it.
_BASES = {"model": "predicted", "calibrated": "predicted, calibrated"}


def saving(
    saving_ms: Estimate,
    saving_frac: Estimate,
    basis: str,
    *,
    of: SavingOf = "step",
    counts: SavingCounts = "all",
    marked: bool = True,
) -> tuple[str, str]:
    """Write a finding's saving as (claim, qualifier): a prediction, or a bound that says it is one.

    ``of`` "gpu_work": the step waits for the CPU, so of its own time it saves something from nothing to that;
    where launches go too (``counts`` "kernels"), that is no bound.
    ``marked``: the time is a step's; otherwise it is that of the whole trace.

    >>> saving(Estimate(12, 14.6, 16, "model"), Estimate(.03, .0354, .04, "model"), "model")
    ('saves ≈ 14.6 ms/step', '3.5%; 12.0–16.0 ms; predicted')
    >>> saving(Estimate(0, None, 3.2, "heuristic"), Estimate(0, None, .008, "heuristic"), "heuristic")
    ('at most 3.20 ms/step', '0.8%; bound, not a prediction')
    >>> saving(Estimate(1, 2, 3, "model"), Estimate(.01, .02, .03, "model"), "model", of="gpu_work")
    ('0 to 3.00 ms/step shorter', 'at most 3.0%; predicted, GPU work ≈ 2.00 ms less')
    >>> saving(Estimate(0, None, 3, "heuristic"), Estimate(0, None, .03, "heuristic"), "", of="gpu_work")
    ('0 to 3.00 ms/step shorter', 'at most 3.0%; bound, not a prediction')
    >>> model = Estimate(1, 2, 3, "model"), Estimate(.01, .02, .03, "model"), "model"
    >>> saving(*model, of="gpu_work", counts="kernels")
    ('GPU work ≈ 2.00 ms/step less', '1.00–3.00 ms; predicted; launches it spares not counted')
    >>> saving(Estimate(-3, -2, -1, "measured"), Estimate(-.03, -.02, -.01, "measured"), "measured")
    ('slower by 2.00 ms/step', '2.0%; 1.00–3.00 ms; measured')
    """
    per = slash_step(marked)
    if saving_ms.mid is not None and saving_ms.mid < 0:
        return _slower(saving_ms, saving_frac, basis, per)
    if of == "gpu_work" and counts == "kernels" and _known(saving_ms.high):
        return _fewer_kernels(saving_ms, basis, slash_step(marked))
    if of == "gpu_work" and _known(saving_ms.high):
        return _gpu_work(saving_ms, saving_frac, basis, marked)
    if _known(saving_ms.mid):
        share = [pct(saving_frac.mid)] if _known(saving_frac.mid) else []
        spread = ms_range(saving_ms.low, saving_ms.high)
        said = [*share, *([spread] if spread != UNKNOWN else []), _BASES.get(basis, basis)]
        return f"saves ≈ {ms(saving_ms.mid)}{per}", "; ".join(said)
    if not _known(saving_ms.high):
        return "saving not known", basis
    share = [pct(saving_frac.high)] if _known(saving_frac.high) else []
    bound = ms_range(saving_ms.low, saving_ms.high) if saving_ms.low else ms(saving_ms.high)
    return f"at most {bound}{per}", "; ".join([*share, "bound, not a prediction"])


def _gpu_work(saving_ms: Estimate, saving_frac: Estimate, basis: str, marked: bool) -> tuple[str, str]:
    """What the step gains by less GPU work: from nothing, while it waits for the CPU, to the high end."""
    share = [f"at most {pct(saving_frac.high)}"] if _known(saving_frac.high) else []
    how = "bound, not a prediction"
    if _known(saving_ms.mid):
        how = f"{_BASES.get(basis, basis)}, GPU work ≈ {ms(saving_ms.mid)} less"
    return f"0 to {ms(saving_ms.high)}{slash_step(marked)} shorter", "; ".join([*share, how])


def _fewer_kernels(saving_ms: Estimate, basis: str, per: str) -> tuple[str, str]:
    """What a change takes off the GPU where the CPU gains by fewer launches, by how much is not known."""
    spread = ms_range(saving_ms.low, saving_ms.high)
    if saving_ms.mid is None:
        claim, said = f"GPU work at most {ms(saving_ms.high)}{per} less", ["bound, not a prediction"]
    else:
        claim = f"GPU work ≈ {ms(saving_ms.mid)}{per} less"
        said = [*([spread] if spread != UNKNOWN else []), _BASES.get(basis, basis)]
    return claim, "; ".join([*said, "launches it spares not counted"])


def _slower(saving_ms: Estimate, saving_frac: Estimate, basis: str, per: str) -> tuple[str, str]:
    """A change that was measured to cost time: its range, in time and not in savings."""
    cost, part = (-saving_ms).clamp(low=0.0), (-saving_frac).mid
    share = [pct(part)] if part is not None else []
    spread = [ms_range(cost.low, cost.high)] if cost.low is not None and cost.high is not None else []
    return f"slower by {ms(cost.mid)}{per}", "; ".join([*share, *spread, basis])


def percent(frac: float) -> str:
    """A share, with two digits below ten percent and one below a tenth.

    >>> percent(0.1337), percent(0.0081), percent(0.001), percent(0.00002), percent(0)
    ('13.4%', '0.81%', '0.1%', '0.002%', '0%')
    """
    value = 100 * frac
    if value >= 10:
        return f"{value:.1f}%"
    return f"{float(f'{value:.1e}' if value >= 0.1 else f'{value:.0e}'):g}%"


def plural(number: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "GEMM"), plural(3, "GEMM")
    ('1 GEMM', '3 GEMMs')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def part_of(some: int, all_of_them: int, noun: str, one: str, more: str) -> str:
    """How many of them do what: the verb for ``one`` or for ``more`` goes with ``some``.

    >>> part_of(1, 1, "GEMM row", "has", "have"), part_of(0, 3, "GEMM row", "runs", "run")
    ('1 of 1 GEMM rows has', '0 of 3 GEMM rows run')
    """
    return f"{some} of {all_of_them} {noun}s {one if some == 1 else more}"


def times(number: str) -> str:
    """How often, of a count that is written already.

    >>> times("1"), times("4"), times("2.50")
    ('once', '4 times', '2.50 times')
    """
    return "once" if number == "1" else f"{number} times"


def round_up(value: int, multiple: int) -> int:
    """The next multiple at or above ``value``.

    >>> round_up(30522, 64), round_up(10922, 64)
    (30528, 10944)
    """
    return -(-value // multiple) * multiple


def capital(text: str) -> str:
    """A sentence's beginning.

    >>> capital("rank 3 waits")
    'Rank 3 waits'
    """
    return text[:1].upper() + text[1:]


def listed(items: list[str]) -> str:
    """Words in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""
