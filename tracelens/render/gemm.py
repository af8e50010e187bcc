"""One GEMM at a terminal: its time, why, and the sizes near it that are worth having."""

from __future__ import annotations

import textwrap

from rich.console import Console
from rich.text import Text

from tracelens import numbers as f
from tracelens.gemm.predict.rates import lacks
from tracelens.gemm.spelling import ROLES
from tracelens.gemm.study import Around, BetterSize, Study
from tracelens.hardware import Gpu
from tracelens.render.columns import axis_line, column_chart, mark_line
from tracelens.render.console import Out
from tracelens.results import Estimate

_LABEL = 11  # width of the words on the left
_AXIS = 7  # width of the numbers beside the chart
_MOST_COLUMNS = 72
_HEIGHT = 6


def chart_columns(console: Console) -> int:
    """How many sizes a curve may have to fit this console."""
    return max(8, min(Out(console).width - _AXIS, _MOST_COLUMNS))


def render_gemm(study: Study, *, console: Console, gpu_why: str | None = None, explain: bool = False) -> None:
    """Print one GEMM to ``console``; ``gpu_why`` says why this GPU where the user named none.

    Fits the console from 40 columns on. ``explain`` prints the whole derivation of the time.
    """
    out = Out(console)
    _head(out, study, gpu_why)
    _time(out, study)
    _facts(out, study)
    if explain:
        _derivation(out, study)
    elif study.prediction.terms:
        out.line("--explain shows the formula with its numbers", "dim")
    for around in study.around:
        out.line()
        _curve(out, study, around)
        _neighbours(out, study, around)


def render_gpus(gpus: list[Gpu], *, measured: set[str], console: Console) -> None:
    """Print the keys that ``--gpu`` takes, each with what predictions are made from."""
    out = Out(console)
    heads = [("--gpu", "l"), ("", "l"), ("SMs", "r"), ("fp16 TFLOP/s", "r"), ("GB/s", "r"), ("", "l")]
    table = out.table(heads)
    for gpu in gpus:
        cells = (gpu.peak("fp16") or gpu.peak("bf16"), gpu.bandwidth_gbps)
        figures = [out.text(f.DASH if gpu.sms is None else f.count(gpu.sms))]
        figures += [out.text(f.DASH if cell is None else f.sig(cell)) for cell in cells]
        mark = "measured" if gpu.name in measured else ""
        table.add_row(
            out.text(gpu.name, "bold"),
            out.text(gpu.title.removeprefix("NVIDIA "), limit=22),
            *figures,
            out.text(mark, "green"),
        )
    out.print(table)


def _head(out: Out, study: Study, gpu_why: str | None) -> None:
    one, gpu = study.prediction, study.gpu
    role = f" ({ROLES[one.layout]})" if one.layout in ROLES else ""
    types = one.dtype if one.out_dtype == one.dtype else f"{one.dtype} to {one.out_dtype}"
    batch = f", {one.batch} times" if one.batch > 1 else ""
    shape = f"out[{one.m},{one.n}] = a[{one.m},{one.k}] @ b[{one.k},{one.n}]{batch}"
    out.line(out.text(shape, "bold") + out.text(f"  {types}, {one.layout}{role}"))
    peak, bandwidth = gpu.peak(one.dtype), gpu.bandwidth_gbps
    none = f"no {one.dtype}" if lacks(gpu, one.dtype) else f"{one.dtype} peak unknown"
    figures = [
        f"{gpu.sms} SMs" if gpu.sms is not None else "SMs unknown",
        f"{f.sig(peak)} TFLOP/s {one.dtype}" if peak is not None else none,
        f"{f.sig(bandwidth)} GB/s" if bandwidth is not None else "bandwidth unknown",
    ]
    hanging(out, "", f"{gpu.title}: {', '.join(figures)}")
    if gpu_why is not None:
        hanging(out, "", f"{gpu.name} {gpu_why}; --gpu list shows the others")
    out.line()


def _time(out: Out, study: Study) -> None:
    one = study.prediction
    if one.time_us.mid is None:
        out.line("time unknown" + _bounds(one.time_us), "bold")
        hanging(out, "", one.unknown or "")
    else:
        share = f", {f.pct(study.peak_frac)} of peak" if study.peak_frac is not None else ""
        text = (
            f"{duration(one.time_us.mid)} ({duration_range(one.time_us)}), {f.sig(one.tflops)} TFLOP/s{share}"
        )
        out.line(text, "bold")
    room = study.gpu.memory_gb
    if room is not None and study.operands_gb > room:
        hanging(out, "", f"a, b and out take {f.sig(study.operands_gb)} GB, this GPU has {f.sig(room)} GB")
    source = one.chosen.rates.source if one.chosen is not None else None
    if one.time_us.basis == "calibrated":
        hanging(out, "", f"calibrated: {source}")
    elif source is not None:
        few = f"the measurements of this GPU hold too few {one.dtype} GEMMs to calibrate it"
        how = few if study.measured else "`tracelens bench` on the GPU calibrates it"
        hanging(out, "", f"model: {source}; {how}")
    out.line()


def hanging(out: Out, label: str, text: str, *, style: str = "") -> None:
    """Print a paragraph whose later lines begin under its text, without spaces at the ends of lines."""
    lines = textwrap.wrap(text, max(out.width - len(label), 20)) or [""]
    for at, line in enumerate(lines):
        out.line(out.text(label if at == 0 else " " * len(label), style) + out.text(line))


def _bounds(estimate: Estimate) -> str:
    """The bounds of a time without a mid, as far as they are known.

    >>> _bounds(Estimate(1200, None, None, "model")), _bounds(Estimate(1200, None, 2400, "model"))
    (': at least 1.20 ms', ': 1.20–2.40 ms')
    """
    if estimate.low is None:
        return ""
    return (
        f": at least {duration(estimate.low)}" if estimate.high is None else f": {duration_range(estimate)}"
    )


def _facts(out: Out, study: Study) -> None:
    one = study.prediction
    rows = [("alignment", _alignment(study))]
    if one.tile is not None and one.chosen is not None:
        cluster = f", clusters of {one.cluster}" if one.chosen.tile.cluster_size > 1 else ""
        rows.append(("tile", f"{one.tile[0]}x{one.tile[1]}x{one.tile_k}{cluster}: {one.chosen.tile_why}"))
        split = f", K in {one.split_k} slices" if one.split_k and one.split_k > 1 else ""
        rows.append(
            ("tiles", f"{f.count(one.tiles)}{split}, {f.pct(one.tile_eff_frac)} of their area is output")
        )
        slots = one.chosen.tile.slots(one.chosen.rates.sms)
        rows.append(("waves", f"{f.count(one.waves)} of {slots} tiles, {f.pct(one.wave_eff_frac)} full"))
    if one.bound is not None:
        rows.append(("bound by", f"{one.bound}: {_bound(study)}"))
    for name, text in rows:
        hanging(out, f"{name:<{_LABEL}}", text, style="dim")


def _alignment(study: Study) -> str:
    """What each operand is aligned to, by its leading dimension, and what the least of them costs."""
    one = study.prediction
    sizes = {"m": one.m, "n": one.n, "k": one.k}
    parts = [
        f"{'out' if operand == 'c' else operand} {value} bytes ({study.leading[operand].upper()}="
        f"{sizes[study.leading[operand]]})"
        for operand, value in one.alignment.items()
    ]
    if not study.misaligned:
        cost = ""
    elif one.alignment_frac is None:
        cost = "; its cost is not known"
    else:
        cost = f": {f.pct(one.alignment_frac)} of the rate at 128 bytes"
    return ", ".join(parts) + cost


def _bound(study: Study) -> str:
    terms = {name: value for name, _, value, _, _ in study.prediction.terms}
    start = study.prediction.chosen.rates.fixed_us if study.prediction.chosen is not None else None
    cast = f"; casting the activations from 16 bits first takes {duration(terms.get('cast'))}"
    return (
        f"{duration(terms.get('compute'))} of computing, {duration(terms.get('memory'))} of memory traffic,"
        f" {duration(start)} to start and end{cast if 'cast' in terms else ''}"
    )


def _derivation(out: Out, study: Study) -> None:
    out.line()
    terms = study.prediction.terms
    if not terms:
        out.line("There is no derivation: the time is not known.")
        return
    out.line("How the time is derived", "bold")
    for name, formula, value, unit, why in terms:
        hanging(out, f"{name} = ", formula, style="bold")
        unit = "µs" if unit == "us" else unit
        hanging(out, "    ", f"= {value:.7g} {unit}: {why}")


def _curve(out: Out, study: Study, around: Around) -> None:
    word, present = around.dimension.upper(), getattr(study.prediction, around.dimension)
    if len(around.curve) < 2:
        return
    title = f"TFLOP/s by {word}, {around.low} to {around.high}"
    every = f", every {_ordinal(around.step)} size" if around.step > 1 else ""
    out.line(out.text(title, "bold") + out.text(every, "dim"))
    room = out.width - _AXIS
    values = [point.prediction.tflops for point in around.curve]
    chart = column_chart(values, width=room, height=_HEIGHT, ascii_only=out.ascii_only)
    places = {point.size: at for at, point in enumerate(around.curve)}
    edges = {0: f.sig(chart.top), _HEIGHT - 1: f.sig(chart.bottom)}
    at = places[present] * chart.width
    for row, line in enumerate(chart.lines):
        drawn = Text(f"{edges.get(row, ''):>{_AXIS - 1}} {line}".rstrip(), "cyan")
        drawn.stylize("dim", 0, _AXIS)
        drawn.stylize("bold yellow", _AXIS + at, _AXIS + at + chart.width)
        out.line(drawn)
    marks = {places[one.size]: str(number) for number, one in enumerate(around.neighbours, 1)}
    marks[places[present]] = "^"
    indent = " " * _AXIS
    out.line(indent + mark_line(marks, width=chart.width))
    sizes = (str(around.curve[0].size), str(around.curve[-1].size))
    axis = axis_line(*sizes, middle=(at, f"{word} = {present}"), width=len(values) * chart.width)
    out.line(indent + axis, "dim")


def _neighbours(out: Out, study: Study, around: Around) -> None:
    word = around.dimension.upper()
    for number, one in enumerate(around.neighbours, 1):
        mark = f"{number}  " if around.curve else ""
        hanging(out, f"{mark}{word} = {one.size}  ", claim(one), style="bold")
    if around.none_why is not None:
        verdict = "nothing" if study.prediction.time_us.mid is not None else "not known"
        hanging(out, "", f"Better sizes: {verdict}. {around.none_why}.")


def claim(one: BetterSize) -> str:
    """What a neighbour is predicted to give, in words that stay within its range."""
    estimate, gain = one.prediction.time_us, one.gain
    then = duration(estimate.mid)
    if one.kind == "known" or gain is None:
        return f"{then} ({duration_range(estimate)}): known, the present size is not"
    saving, ratio, per_flop = gain.saving_us, gain.time_ratio, gain.per_flop_ratio
    if saving.mid is None:
        return f"{then}, at least {duration(saving.low)} less"
    likely = "likely " if (per_flop.high or 1) >= 1 else ""
    if saving.low is not None and saving.low > 0:
        work = f"{_percent(ratio.mid)} time for {_percent(gain.work_ratio)} work"
        work += f", {likely}less per FLOP" if likely and one.kind != "faster" else ""
        return f"{then}, {duration(saving.mid)} less ({duration_range(saving)}): {work}"
    per_flop_range = f"{f.pct(1 - (per_flop.high or 1))} to {f.pct(1 - (per_flop.low or 0))}"
    return (
        f"{then}, {_percent(ratio.mid)} time for {_percent(gain.work_ratio)} work:"
        f" {likely}{_percent(per_flop.mid)} per FLOP ({per_flop_range})"
    )


def _percent(ratio: float | None) -> str:
    """A ratio as a change in percent, or as a factor where that reads better.

    >>> _percent(0.705), _percent(1.08), _percent(64.0), _percent(1.0001)
    ('29.5% less', '8.0% more', '64 times the', 'as much')
    """
    if ratio is None:
        return f.UNKNOWN
    change = ratio - 1
    if abs(change) < 0.0005:
        return "as much"
    if ratio > 2:
        return f"{ratio:.3g} times the"
    return f"{f.pct(abs(change))} {'more' if change > 0 else 'less'}"


def duration(value_us: float | None) -> str:
    """Write a time given in microseconds.

    >>> duration(16755.8), duration(40.43), duration(None)
    ('16.8 ms', '40.4 µs', 'unknown')
    """
    return f.ms(None if value_us is None else value_us / 1e3)


def duration_range(estimate: Estimate) -> str:
    """Write the range of a time."""
    if estimate.low is None or estimate.high is None:
        return f.UNKNOWN
    return f.ms_range(estimate.low / 1e3, estimate.high / 1e3)


def _ordinal(number: int) -> str:
    """The ordinal of a power of two.

    >>> [_ordinal(one) for one in (2, 4, 32, 512, 8192)]
    ['2nd', '4th', '32nd', '512th', '8192nd']
    """
    return f"{number}{'nd' if number % 10 == 2 and number % 100 != 12 else 'th'}"
