"""``tracelens suggest`` at a terminal: the present step, what to change, why, and the lines to paste."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.text import Text

from tracelens import numbers as f
from tracelens.render import search
from tracelens.render.console import Out
from tracelens.render.text import clean
from tracelens.results import ShapePick
from tracelens.results.suggestions import Checkpoint, ComponentTime, Stack, Suggestions, TimeIs, WholeStep
from tracelens.words import per_step

_COMPONENTS = 8
_SHAPES = ("M × N × K forward", "fold")
#: Changes below half of the last digit shown.
_ROUND = 0.00005
_SIZES = ("hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "layers", "decoder_layers",
          "experts", "sequence", "decoder_sequence", "micro_batch", "tensor_parallel", "pipeline_parallel",
          "virtual_stages", "context_parallel", "expert_parallel")  # fmt: skip
#: Not shown where they are one.
_DEGREES = frozenset(
    {"tensor_parallel", "pipeline_parallel", "virtual_stages", "context_parallel", "expert_parallel"}
)
_RECOMPUTE: dict[Checkpoint, str] = {
    "none": "no recompute",
    "full": "full recompute",
    "selective": "attention recomputed",
    "selective-op": "every second GEMM recomputed",
}

_STACK: dict[Stack, str] = {
    "compiled": "compiled, or kernels fused by hand",
    "megatron": "Megatron-Core with Transformer Engine",
}
_TIME_OF: dict[TimeIs, str] = {
    "kernels": "GEMMs, attention and memory-bound kernels of one micro-batch",
    "step": "The step now",
    "recording": "All that was recorded, with no step marked in it",
}


def render_suggestions(found: Suggestions, *, console: Console) -> None:
    """Print ``found``; fits 80 columns, and strings from the configuration cannot style or move anything."""
    out = Out(console)
    _head(out, found)
    if found.step is not None:
        _whole_step(out, found.step, floor=_is_floor(found))
    _kernels(out, found)
    for number, pick in enumerate(found.picks, 1):
        _pick(out, found, pick, number)
    _others(out, found)
    _tail(out, found)


def _head(out: Out, found: Suggestions) -> None:
    out.line(f"{clean(found.model, limit=140)} on {found.gpu_title}, {found.dtype}", "bold")
    sizes = [
        f"{name}={found.sizes[name].value}"
        for name in _SIZES
        if name in found.sizes
        and found.sizes[name].value is not None
        and not (name in _DEGREES and found.sizes[name].value == 1)
    ]
    out.line(" ".join(sizes))
    facts = ["weights not known"]
    if found.parameters is not None:
        unit, name = (1e9, "billion") if found.parameters >= 1e9 else (1e6, "million")
        facts = [f"{f.sig(found.parameters / unit)} {name} weights in matrices"]
    if found.memory_gb is not None and found.step is None:
        facts.append(f"about {f.sig(found.memory_gb)} GB a GPU without FSDP (estimate)")
    out.line(" · ".join(facts), "dim")
    if found.would_fit is not None and found.room_gb is not None:
        needs = found.step.memory_gb if found.step is not None else found.memory_gb
        ways = "; ".join(found.would_fit) or "nothing that was tried"
        out.line(
            f"It does not fit: about {f.sig(needs)} GB of {f.sig(found.room_gb)} GB. What would fit: {ways}.",
            "yellow",
        )
    for name in _SIZES:
        size = found.sizes.get(name)
        if size is not None and size.assumed:
            out.line(f"{name} {size.value}: {size.source}", "yellow")
    out.line()
    out.line(found.verdict, "bold")
    out.line()


def _is_floor(found: Suggestions) -> bool:
    return any(row.at_least for row in found.components)


def _within(mid: str, ends: str, *, floor: bool, unit: str = "", basis: str = "") -> str:
    """A figure with its range; the range alone where a GEMM in it has no middle (``floor``)."""
    said = [basis] if floor else [ends, basis]
    told = ", ".join(word for word in said if word)
    return " ".join(word for word in (ends if floor else mid, unit, f"({told})" if told else "") if word)


def _whole_step(out: Out, step: WholeStep, *, floor: bool) -> None:
    """A step of this model as it is: what it comes to, and what it is made of."""
    mfu, speed, time = step.mfu_frac, step.tokens_per_s_per_gpu, step.step_ms
    run = [f"{step.gpus} GPU{'s' if step.gpus > 1 else ''}"]
    ranks = step.data_parallel * step.context_parallel  # all of them have the same weights
    if ranks > 1:
        run.append(f"{'ddp' if step.strategy == 'tp' else step.strategy} over {ranks}")
    if step.tensor_parallel > 1:
        run.append(f"tensor parallel {step.tensor_parallel}")
    if step.pipeline_parallel > 1:
        turns = f" of {step.virtual_stages} virtual" if step.virtual_stages > 1 else ""
        run.append(f"{step.pipeline_parallel} pipeline stages{turns}")
    if step.expert_parallel > 1:
        run.append(f"expert parallel {step.expert_parallel}")
    if step.context_parallel > 1:
        run.append(f"context parallel {step.context_parallel}")
    run.append(_RECOMPUTE[step.checkpoint])
    if step.micro_batches > 1:
        run.append(f"{step.micro_batches} micro-batches")
    if step.stack != "plain":
        run.append(_STACK[step.stack])
    out.line(out.text("A whole step, predicted  ", "bold") + out.text(", ".join(run), "dim"))
    ends = [f.sig(end) if end is not None else f.DASH for end in (speed.mid, speed.low, speed.high)]
    rate = _within(ends[0], f"{ends[1]} to {ends[2]}", floor=floor, unit="tokens/s per GPU")
    out.line(f"   {rate}")
    used = _within(f.pct(mfu.mid), f"{f.pct(mfu.low)} to {f.pct(mfu.high)}", floor=floor)
    out.line(f"   MFU {used}")
    took = f.ms_range(time.low, time.high, of=time.mid)
    took = _within(f.ms(time.mid), took, floor=floor, unit="a step", basis=time.basis)
    out.line(f"   {took} · about {f.sig(step.memory_gb)} GB of a GPU's memory")
    table = out.table([("", "l"), ("share", "r"), ("ms", "r")])
    for part in (one for one in step.parts if one.time_ms.mid):
        table.add_row(
            out.text(part.name), out.text(f.pct(part.frac), "bold"), out.text(f.sig(part.time_ms.mid))
        )
    out.print(table)
    for note in step.notes:
        out.line(f"   {note}", "dim")
    out.line()


def _kernels(out: Out, found: Suggestions) -> None:
    """What the picks are judged on; beside a step, which has its own memory-bound kernels, all but those."""
    if found.step is not None:
        of = "of one micro-batch" + (", all stages" if found.step.pipeline_parallel > 1 else "")
        out.line(out.text("GEMMs and attention alone  ", "bold") + out.text(of, "dim"))
        table = out.table([("", "l"), ("ms", "r"), ("TFLOP/s", "r"), _SHAPES])
        for row in found.components:
            if row.shapes:
                table.add_row(*_row(out, row))
        out.print(table)
        out.line()
        return
    time, floor = found.time_ms, _is_floor(found)
    took = f.ms_range(time.low, time.high, of=time.mid)
    took = _within(f.ms(time.mid), took, floor=floor, basis=_basis(found))
    took += f", {f.sig(found.tflops)} TFLOP/s" if found.tflops else ""
    out.line(out.text(f"{_TIME_OF[found.time_is]}  ", "bold") + out.text(took, "dim"))
    table = out.table([("", "l"), ("share", "r"), ("ms", "r"), ("TFLOP/s", "r"), _SHAPES])
    for row in found.components[:_COMPONENTS]:
        name, *figures = _row(out, row)
        table.add_row(name, out.text(f.pct(row.frac), "bold"), *figures)
    out.print(table)
    rest = found.components[_COMPONENTS:]
    if rest:
        out.line(
            f"and {f.pct(sum(row.frac for row in rest))} in {', '.join(row.component for row in rest)}", "dim"
        )
    out.line()


def _basis(found: Suggestions) -> str:
    """What its times are."""
    return "generated" if found.generated else found.time_ms.basis


def _row(out: Out, row: ComponentTime) -> list[Text]:
    """A component's name, time, rate and first shape."""
    return [
        out.text(row.component, limit=18),
        out.text(f"{'≥' if row.at_least else ''}{f.sig(row.time_ms.mid)}"),
        out.text(f.sig(row.tflops) if row.tflops else f.DASH),
        out.text(row.shapes[0].replace(" x ", " × ") if row.shapes else "moves bytes", limit=60),
    ]


def _pick(out: Out, found: Suggestions, pick: ShapePick, number: int) -> None:
    out.line(out.text(f"{number}. ", "bold") + out.text(pick.title, "bold green", limit=200))
    per = "a micro-batch" if found.source == "config" else per_step(found.time_is == "step")
    if pick.change.keys() & {"micro_batch", "sequence"}:
        per = "for as many tokens as now, like the times below"
    time = f"{f.ms(pick.saving_ms.mid)} {per}"
    of = "kernel time" if found.source == "config" else "time"
    out.line(f"   saves {search.spread(pick.saving_frac)} of the {of} per token · {time}")
    if found.step is not None and (then := found.picked_tokens_per_s[number - 1]) is not None:
        now = found.step.tokens_per_s_per_gpu.mid
        out.line(f"   whole step {f.sig(now)} → {f.sig(then.mid)} tokens/s per GPU"
                 f" ({then.mid / now - 1:+.1%})")  # fmt: skip
    facts = ["weights not counted"]
    if pick.parameters is not None and found.parameters is not None:
        share = f" ({search.signed(pick.parameters_frac)})" if abs(pick.parameters_frac) >= _ROUND else ""
        facts = [f"weights {f.delta(pick.parameters - found.parameters)}{share}"]
    facts.append(f"operations {search.signed(pick.flops_frac)}")
    if pick.memory_frac is not None and abs(pick.memory_frac) >= 0.0005:
        facts.append(f"memory {search.signed(pick.memory_frac)}")
    out.line(f"   {' · '.join(facts)}", "dim")
    out.line(f"   {pick.effort}: {pick.effort_why}", "dim")
    table = out.table([("", "l"), ("", "l"), ("", "r"), ("", "fold")])
    alike = Counter((reason.component, reason.role) for reason in pick.reasons)
    for reason in pick.reasons:
        times = f"{f.sig(reason.time_ms)} → {f.sig(reason.then_ms)} ms"
        which = f"{reason.shape_now}: " if alike[reason.component, reason.role] > 1 else ""
        table.add_row(out.text(""), out.text(f"{reason.component} {reason.role}", limit=26), out.text(times),
                      out.text(which + reason.why, "dim", limit=200))  # fmt: skip
    out.print(table)
    for line in pick.diff:
        out.line(f"   {line}", "red" if line.startswith("-") else "green")
    out.line()


def _others(out: Out, found: Suggestions) -> None:
    if found.unsure is not None:
        one = found.unsure
        out.line(out.text("Not recommended: ", "bold") + out.text(f"{one.title}. {search.why_unsure(one)}"))
        out.line()
    if found.heads:
        sizes = found.sizes["hidden"].value, found.sizes["heads"].value
        out.line(out.text(f"Other heads at hidden {sizes[0]}, against the {sizes[1]} now", "bold"))
        moved = any(abs(row.parameters_frac) >= _ROUND for row in found.heads)
        column = [("weights", "r")] if moved else []
        table = out.table([("heads", "r"), ("head_dim", "r"), *column, ("saves", "l")])
        for row in found.heads:
            weights = [search.signed(row.parameters_frac)] if moved else []
            cells = (str(row.heads), str(row.head_dim), *weights, search.spread(row.saving_frac))
            table.add_row(*(out.text(cell) for cell in cells))
        out.print(table)
        out.line()
    _front(out, found)


def _front(out: Out, found: Suggestions) -> None:
    """The Pareto front, thinned to what a reader takes in."""
    points = search.thinned(found.front, found.picks)
    if len(points) < 2:
        return
    out.line(
        out.text("Weights against time  ", "bold")
        + out.text("fastest shape at each size, middle of the prediction; not recommended by itself", "dim")
    )
    table = out.table([("weights", "r"), ("time per token", "r"), ("", "fold")])
    titles = {search.key(pick.change): number for number, pick in enumerate(found.picks, 1)}
    for point in points:
        pick = titles.get(search.key(point.change))
        words = f"pick {pick}" if pick else search.words(point.change)
        table.add_row(
            out.text(search.signed(point.parameters_frac)),
            out.text(search.signed(point.time_frac - 1)),
            out.text(words, "" if pick else "dim", limit=120),
        )
    out.print(table)
    out.line()


def _tail(out: Out, found: Suggestions) -> None:
    limit = f"{100 * found.parameters_limit_frac:g}%"
    out.line(
        f"Searched {', '.join(found.searched)}: {found.tried:,} shapes with weights within ±{limit}.", "dim"
    )
    for name, why in found.not_searched.items():
        out.line(clean(f"Not searched: {name}: {why}.", limit=300), "dim")
    if found.not_included and found.step is None:
        said = "Not included" if found.source == "config" else f"Stays as {_basis(found)}"
        out.line(f"{said}: {'; '.join(found.not_included)}.", "dim")
    for note in found.notes:
        if note not in found.verdict:
            out.line(clean(note, limit=240), "dim")
