"""How one GEMM row's figures come about, line by line, with the numbers in: a reader can redo it by hand.

Made from the report alone, so a saved one can be derived too. Formulas use + - · / ⌈ ⌉ max and min; times are
microseconds of the row's mean call.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.accounting.lost import call_facts, split_row
from tracelens.accounting.words.figures import NO_MNK
from tracelens.gemm import bytes_per_element, usable_sms
from tracelens.gemm.lost import FACTORS, PARTS, CallFacts, LossSplit
from tracelens.numbers import listed
from tracelens.results import GemmRow, GpuInfo, Term

_OPERANDS = {"a": ("m", "k"), "b": ("k", "n"), "c": ("m", "n")}
_LEADING = {
    "strides": "leading dimension recorded in the trace",
    "kernel name": "leading dimension by the layout in the kernel's name",
    "assumed contiguous": "leading dimension of a row-major operand, assumed: no strides in the trace",
}
_CORES = {
    "used": "on tensor cores",
    "eligible_unused": "not on tensor cores, though this GPU has some for the type",
    "ineligible": "not on tensor cores, which have nothing for it",
}


def derive(row: GemmRow, gpu: GpuInfo) -> list[Term]:
    """The derivation of ``row.lost_ms``: shape, kernel, ceilings, tiles, waves, alignment, losses, their sum.

    A line that is read and not computed has no formula; one that is not known has no value but a reason.
    """
    facts, split = call_facts(row, gpu), split_row(row, gpu)
    if row.kind != "gemm" or row.flops is None:
        return [*_what(row, facts), Term("split", "", None, "µs", split.why.get("useful", "not judged"))]
    return [
        *_what(row, facts),
        *_floors(row, gpu, facts),
        *_tiles(row, gpu),
        *_alignment(row),
        *_losses(row, gpu, facts, split),
    ]


def _what(row: GemmRow, facts: CallFacts) -> Iterator[Term]:
    if row.m is not None and row.n is not None and row.k is not None:
        sizes = f"out[{row.m},{row.n}] = a[{row.m},{row.k}] @ b[{row.k},{row.n}]"
        sizes += f", {row.batch} times" if row.batch and row.batch > 1 else ""
        said = [f"{row.dtype or 'unknown type'} in, {row.out_dtype or 'unknown type'} out"]
        said += [f"layout {row.layout}"] if row.layout else []
        said.append(f"sizes of {row.op}" if row.op else "sizes of the forward operator it belongs to")
        said += ["known from the identical call it repeats"] if row.lent_calls == row.calls else []
        said += [row.shape_note] if row.shape_note else []
        yield Term("shape", sizes, None, "", "; ".join(said))
    else:
        yield Term("shape", "", None, "", _ranges(row) or row.shape_note or NO_MNK)
    yield Term("kernel", _kernel(row), None, "", row.kernel)
    why = f"mean of {row.calls} call{'s' if row.calls != 1 else ''} in the file"
    if facts.helper_us:
        why += f"; {us(facts.helper_us)} µs of it in kernels beside the main one"
    yield Term("time T", f"{us(row.time_ms * 1e3)} / {row.calls}", facts.time_us, "µs", why)


def _ranges(row: GemmRow) -> str:
    """What tile and grid leave open, where the sizes are in no operator."""
    sizes = [(name, size) for name, size in (("M", row.m_range), ("N", row.n_range)) if size is not None]
    said = " and ".join(f"{name} is {low} to {high}" for name, (low, high) in sizes)
    return f"{said} by tile and launch grid, K is not known" if said else ""


def _kernel(row: GemmRow) -> str:
    parts = [row.kernel_family]
    if row.tile_m is not None and row.tile_n is not None:
        parts.append(
            f"tile {row.tile_m}×{row.tile_n}" + (f", {row.tile_k} of K at a time" if row.tile_k else "")
        )
    else:
        parts.append("tile unknown")
    parts += [f"clusters of {row.cluster} CTAs"] if row.cluster else []
    parts += [row.scheduler.replace("_", "-")] if row.scheduler else []
    if row.kind == "gemm":
        slices = "slices of K unknown"
        if row.split_k is not None:
            slices = f"K in {row.split_k} slices" if row.split_k > 1 else "K not split"
        parts += [slices, *([_CORES[row.tensor_core]] if row.tensor_core else [])]
    return ", ".join(parts)


def _floors(row: GemmRow, gpu: GpuInfo, facts: CallFacts) -> Iterator[Term]:
    if row.flops is None or facts.math_us is None:
        yield Term("useful", "", None, "µs", row.lost_ms.why.get("useful", "not known"))
        return
    dtype = row.math_dtype or ""
    yield Term("FLOP", _flop_formula(row), row.flops, "FLOP", "a multiply-add is two")
    if row.bytes is not None:
        yield Term("bytes", _bytes_formula(row), row.bytes, "B", "each operand once")
        yield Term("intensity", f"{whole(row.flops)} / {whole(row.bytes)}", row.intensity, "FLOP/B", "")
    peak, bandwidth = gpu.peak_tflops[dtype], gpu.bandwidth_gbps
    yield Term(
        "peak",
        "",
        peak,
        "TFLOP/s",
        f"dense {dtype}, datasheet: {gpu.sources.get(f'peak.{dtype}', gpu.title)}",
    )
    if bandwidth is not None:
        yield Term(
            "bandwidth", "", bandwidth, "GB/s", f"datasheet: {gpu.sources.get('bandwidth_gbps', gpu.title)}"
        )
    if (best := best_measured(gpu, dtype)) is not None:
        yield Term("best matmul", "", best[0], "TFLOP/s", f"measured, {dtype}: {best[1]}")
    yield Term(
        "useful", f"{whole(row.flops)} / ({number(peak)} · 10^6)", facts.math_us, "µs", "FLOP at the peak"
    )
    if facts.memory_us is None or row.bytes is None or bandwidth is None:
        yield Term(
            "memory floor X", "", None, "µs", row.lost_ms.why.get("memory", "bytes or bandwidth not known")
        )
    else:
        formula = f"{whole(row.bytes)} / ({number(bandwidth)} · 10^3)"
        said = "the bytes at the bandwidth"
        if gpu.l2_mb and row.bytes < gpu.l2_mb * 1e6:
            said += f"; they fit in the L2 cache of {number(gpu.l2_mb)} MB, so not all of them cross memory"
        yield Term("memory floor X", formula, facts.memory_us, "µs", said)
    if row.tensor_core == "eligible_unused" and dtype == "fp32" and "tf32" in gpu.peak_tflops:
        tf32 = gpu.peak_tflops["tf32"]
        formula = f"{whole(row.flops)} / ({number(tf32)} · 10^6)"
        said = "the same FLOP at the dense tf32 peak, which rounds operands to 10 bits; not a part of T"
        yield Term("on tensor cores", formula, row.flops / (tf32 * 1e6), "µs", said)


def best_measured(gpu: GpuInfo, dtype: str) -> tuple[float, str] | None:
    """The best matmul anyone measured, first on this very GPU, and who did."""
    if dtype in gpu.measured_tflops:
        return gpu.measured_tflops[dtype], gpu.sources.get("measured", "tracelens bench on this GPU")
    if dtype in gpu.ceiling_tflops:
        return gpu.ceiling_tflops[dtype], gpu.sources.get(f"ceiling.{dtype}", gpu.title)
    return None


def _flop_formula(row: GemmRow) -> str:
    """What gives ``row.flops``; "" where other rules count it."""
    m, n, k, batch = row.m or 0, row.n or 0, row.k or 0, row.batch or 1
    if m * (m + 1) * k * batch == row.flops:  # symmetric: one triangle with its diagonal
        return f"{m} · ({m} + 1) · {k} · {batch}"
    return f"2 · {m} · {n} · {k} · {batch}" if 2 * m * n * k * batch == row.flops else ""


def _bytes_formula(row: GemmRow) -> str:
    """What gives ``row.bytes``; "" where other rules count them (groups, an operand shared by the batch)."""
    size, out = bytes_per_element(row.dtype) or 0, bytes_per_element(row.out_dtype) or 0
    m, n, k, batch = row.m or 0, row.n or 0, row.k or 0, row.batch or 1
    if batch * (size * (m * k + k * n) + out * m * n) == row.bytes:
        return f"{batch} · ({number(size)} · ({m} · {k} + {k} · {n}) + {number(out)} · {m} · {n})"
    if batch * (size * m * k + out * m * n) == row.bytes:  # symmetric: one operand
        return f"{batch} · ({number(size)} · {m} · {k} + {number(out)} · {m} · {n})"
    return ""


def _tiles(row: GemmRow, gpu: GpuInfo) -> Iterator[Term]:
    why = row.lost_ms.why
    if row.tiles is None or row.m is None or row.n is None or row.tile_m is None or row.tile_n is None:
        yield Term("tiles", "", None, "", why.get("tile", "not known"))
        return
    batch, split = row.batch or 1, row.split_k or 1
    along_m, along_n = -(-row.m // row.tile_m), -(-row.n // row.tile_n)
    pieces = row.tiles * split
    formula = f"⌈{row.m} / {row.tile_m}⌉ · ⌈{row.n} / {row.tile_n}⌉ · {batch} · {split}"
    said = f"{along_m} along M, {along_n} along N, batch, slices of K"
    if row.scheduler == "persistent":
        said += "; persistent: fewer CTAs than tiles, each takes several in turn"
    yield Term("tiles", formula, pieces, "", said)
    area = f"({along_m} · {along_n} · {row.tile_m} · {row.tile_n})"
    yield Term(
        "tile eff. S",
        f"{row.m} · {row.n} / {area}",
        row.tile_eff_frac,
        "",
        "share of the tiles' area that is output",
    )
    if row.wave_eff_frac is None:
        yield Term("waves", "", None, "", why.get("wave", "not known"))
        return
    if row.waves is None or not gpu.sms:
        yield Term(
            "wave eff. V", "", row.wave_eff_frac, "", "stream-K: every SM gets an equal share, no last wave"
        )
        return
    yield from _waves(row, gpu.sms, pieces)


def _waves(row: GemmRow, sms: int, pieces: int) -> Iterator[Term]:
    size = row.cluster_size
    least, most = usable_sms(sms, cluster_size=size)
    said = f"whole clusters of {size} on {sms} SMs" if size > 1 else "every SM"
    if least != most:
        said += f"; as few as {least} where the chip's switched-off SMs break clusters up, with as many waves"
    yield Term("usable SMs", f"{sms} - {sms % size}", most, "", said)
    held = row.ctas_per_sm
    said = (
        f"tiles of the busiest SM; {held} CTAs fit on one at once, and share its units"
        if held and held > 1
        else "tiles of the busiest SM"
    )
    yield Term("waves", f"⌈{pieces} / {most}⌉", row.waves, "", said)
    yield Term(
        "wave eff. V",
        f"{pieces} / ({row.waves} · {sms})",
        row.wave_eff_frac,
        "",
        "share of SM time with a tile to compute",
    )


def _alignment(row: GemmRow) -> Iterator[Term]:
    for name, elements in row.leading.items():
        size = bytes_per_element(row.out_dtype if name == "c" else row.dtype)
        known = row.alignment_bytes.get(name)
        if size is None or known is None:
            continue
        operand = "out" if name == "c" else name
        source = (
            "row-major, as torch allocates it" if name == "c" else _LEADING.get(row.leading_source or "", "")
        )
        said = f"divisible by {known}: {known}-byte aligned; {source}"
        if _power_of_two(int(elements * size)) > known:
            said = f"{known}-byte aligned by the step from one matrix of the batch to the next; {source}"
        if name != "c" and row.leading_source == "strides" and elements > max(_sides(row, name)):
            said += "; part of a wider tensor: where it begins is not in the trace, taken as aligned"
        yield Term(f"row of {operand}", f"{elements} · {number(size)}", elements * size, "B", said)
    if row.alignment_frac is None:
        yield Term("aligned speed A", "", None, "", row.lost_ms.why.get("alignment", "not known"))
    else:
        basis = f"at most: {row.alignment_basis}" if row.alignment_at_most else row.alignment_basis
        said = f"throughput at the worst of these rows over that at 128 bytes: {basis}"
        yield Term("aligned speed A", "", row.alignment_frac, "", said)


def _power_of_two(value: int) -> int:
    return min(value & -value, 128) if value else 128


def _sides(row: GemmRow, name: str) -> list[int]:
    return [getattr(row, side) or 0 for side in _OPERANDS[name]]


def _losses(row: GemmRow, gpu: GpuInfo, facts: CallFacts, split: LossSplit) -> Iterator[Term]:
    if split.useful is None or split.other is None:
        yield Term("split", "", None, "µs", split.why.get("useful", "not judged"))
        return
    if "useful" in split.why:
        yield Term("split", "", split.useful, "µs", split.why["useful"])
        return
    yield from _overlap(row, facts, split)
    yield from _clock(row, facts)
    if any(getattr(split, name) is not None for name in FACTORS):
        formula = f"{us(facts.time_us)} - {us(facts.helper_us)} - {us(facts.fixed_us)}"
        said = "time in which tiles are computed: T less other kernels, less what any GEMM kernel takes"
        if facts.stall_us:
            formula += f" - {us(facts.stall_us)}"
            said += ", less what stalled calls took beyond the median"
        if facts.overlap_us:
            formula += f" - {us(facts.overlap_us)}"
            said += ", less what ran beside its calls took"
        if facts.clock_us:
            formula += f" - {us(facts.clock_us)}"
            said += ", less what slow steps took"
        yield Term("working time W", formula, facts.working_us, "µs", said)
    left = us(facts.working_us)
    best = best_measured(gpu, row.math_dtype or "")
    if facts.ceiling_us is not None and best is not None and row.flops is not None:
        formula = f"{whole(row.flops)} / ({number(best[0])} · 10^6)"
        if facts.ceiling_us > row.flops / (best[0] * 1e6):
            formula = ""  # memory's, at the measured bandwidth
        yield Term(
            "best time Y", formula, facts.ceiling_us, "µs", "the same work in the best matmul measured"
        )
    for name in FACTORS:
        factor, loss = getattr(facts, name), getattr(split, name)
        if loss is None:
            yield Term(name, "", None, "µs", split.why.get(name, "not known"))
            continue
        cut = f" · {us(split.cut[0])} / {us(split.cut[1])}" if split.cut and loss else ""
        yield Term(
            name, f"{left} · (1 - {share(factor)}){cut}", loss, "µs", split.why.get(name, _MEANING[name])
        )
        if factor != 1.0:
            left += f" · {share(factor)}"
    if split.memory is None or facts.memory_us is None:
        yield Term("memory", "", None, "µs", split.why.get("memory", "not known"))
    else:
        formula = f"max(0, {us(facts.memory_us)} - {us(split.useful)})"
        yield Term(
            "memory", formula, split.memory, "µs", "how much longer the operands need than the arithmetic"
        )
    yield from _rest(row, facts, split)


_MEANING = {
    "alignment": "an aligned GEMM takes A of the time",
    "wave": "SMs without a tile",
    "tile": "work on the tiles' area outside the output",
}


def _overlap(row: GemmRow, facts: CallFacts, split: LossSplit) -> Iterator[Term]:
    """What the row's calls took because of other streams; nothing where none worked beside them."""
    found = row.beside
    if found is None:
        return
    if found.alone_us is None or facts.overlap_us is None:
        yield Term("overlap", "", None, "µs", split.why.get("overlap", "not known"))
        return
    ran = f"{found.disturbed_calls} of {row.calls} calls ran beside other streams, median"
    said = f"{ran} {us(found.disturbed_us)} µs; {us(found.alone_us)} µs beside nothing"
    yield Term("overlap", _of_step(row.overlap_ms_per_step, row, facts), facts.overlap_us, "µs", said)


def _clock(row: GemmRow, facts: CallFacts) -> Iterator[Term]:
    """What slow steps took; nothing where all run at one pace."""
    if facts.clock_us:
        said = "in slow steps beyond the fastest, where all shapes slowed by one factor"
        yield Term("clock", _of_step(row.clock_ms_per_step, row, facts), facts.clock_us, "µs", said)


def _of_step(part_ms: float, row: GemmRow, facts: CallFacts) -> str:
    return f"{us(facts.time_us)} · {part_ms:.6f} / {row.time_ms_per_step:.6f}"


def added(row: GemmRow, split: LossSplit) -> list[str]:
    """The parts of the sum: those with a figure, overlap and clock only where there is something of them."""
    unseen = {"overlap"} if row.beside is None else set()
    unseen |= set() if split.clock else {"clock"}
    return [name for name in PARTS if name not in unseen and getattr(split, name) is not None]


def _rest(row: GemmRow, facts: CallFacts, split: LossSplit) -> Iterator[Term]:
    names = [name for name in added(row, split) if name != "other"]
    parts = " - ".join(us(getattr(split, name)) for name in names)
    unsaid = [name for name in (*FACTORS, "memory") if getattr(split, name) is None]
    said = "what is left" + (f", with what {listed(unsaid)} cost" if unsaid else "")
    yield Term("other", f"{us(facts.time_us)} - {parts}", split.other, "µs", said)
    if facts.stall_us:
        yield Term(
            "of other", f"{us(row.stall_ms * 1e3)} / {row.calls}", facts.stall_us, "µs", split.why["other"]
        )
    if split.helpers:
        yield Term("of other", "", split.helpers, "µs", "kernels beside the main one (split-K reduction)")
    if split.ceiling and facts.ceiling_us is not None:
        floor = max(split.useful or 0.0, facts.memory_us or 0.0)
        room = (split.other or 0.0) - (split.helpers or 0.0) - facts.stall_us
        formula = f"min({us(facts.ceiling_us)} - {us(floor)}, {us(room)})"
        said = "the best matmul measured takes this longer, too"
        yield Term("of other", formula, split.ceiling, "µs", said)
    total = sum(took for name in PARTS if (took := getattr(split, name)))
    terms = " + ".join(us(getattr(split, name)) for name in [*names, "other"])
    yield Term("sum", terms, total, "µs", "useful + " + " + ".join([*names[1:], "other"]) + " = T")
    if row.time_ms_per_step:
        shares = [(name, getattr(row.lost_ms, name)) for name in PARTS]
        said = ", ".join(f"{name} {value:.4f}" for name, value in shares if value)
        formula = f"{row.calls_per_step:g} call" + "s" * (row.calls_per_step != 1)
        yield Term("of the row", formula, row.time_ms_per_step, "ms", f"the same shares of it, in ms: {said}")


def us(value: float) -> str:
    """Microseconds as the derivation writes them."""
    return f"{value:.2f}"


def share(value: float) -> str:
    """A factor of 0..1 with digits enough to multiply milliseconds by."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def whole(value: float) -> str:
    """An integer without separators, so that it can be copied."""
    return f"{value:.0f}"


def number(value: float | None) -> str:
    """A figure as its source has it."""
    return f"{value:g}" if value is not None else "?"


def written(term: Term) -> str:
    """A term's value with its unit, "" where there is none.

    >>> written(Term("waves", "⌈140 / 148⌉", 1, "", "")), written(Term("T", "", 1.5, "µs", ""))
    ('1', '1.50 µs')
    """
    if term.value is None:
        return ""
    if term.unit in ("µs", "ms"):
        text = f"{term.value:.2f}" if term.unit == "µs" else f"{term.value:.4f}"
    elif term.unit in ("FLOP", "B"):
        text = whole(term.value)
    elif term.unit == "FLOP/B":
        text = f"{term.value:.1f}"
    else:
        text = share(term.value) if term.value != int(term.value) and not term.unit else number(term.value)
        text = whole(term.value) if term.value == int(term.value) else text
    return f"{text} {term.unit}".strip()
