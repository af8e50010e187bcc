"""One layer of experts at a terminal and as JSON: its time, its load, its padding, what would change it."""

from __future__ import annotations

import msgspec
from rich.console import Console

from tracelens import numbers as f
from tracelens.hardware import Gpu
from tracelens.render.console import Out
from tracelens.render.gemm import duration, duration_range, hanging
from tracelens.results.experts import SCHEMA_VERSION, ExpertsChange, ExpertsJson, ExpertsPrediction
from tracelens.results.study import GpuJson
from tracelens.version import __version__

_LABEL = 11  # width of the words on the left
_Changes = tuple[ExpertsChange, ...]


def experts_json(one: ExpertsPrediction, changes: _Changes, *, gpu: Gpu, gpu_why: str | None) -> bytes:
    """Encode a layer and its changes; ``gpu_why`` says why this GPU where the user named none."""
    about = GpuJson(gpu.name, gpu.title, gpu_why or "named", gpu.sms, gpu.peak(one.dtype), gpu.bandwidth_gbps)
    data = ExpertsJson(SCHEMA_VERSION, __version__, about, one, list(changes))
    return msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n"


def render_experts(
    one: ExpertsPrediction, changes: _Changes, *, gpu: Gpu, gpu_why: str | None, console: Console
) -> None:
    """Print a layer of experts to ``console``, which has 40 columns or more."""
    out, layer = Out(console), one.layer
    gate = " with a gate" if layer.gated else ""
    of_all = f" of {layer.ep} GPUs" if layer.ep > 1 else ""
    tokens = f"{f.count(one.tokens)} token{'s' * (one.tokens != 1)}"
    out.line(f"{tokens}{of_all}, top-{layer.top_k} of {layer.experts} experts", "bold")
    cut = f"EP {layer.ep}, TP {layer.tp}; {one.load.replace(':', ' ')} load"
    hanging(out, "", f"experts of {layer.hidden} x {layer.inter}{gate}; {cut}; {one.dtype}, {one.direction}")
    hanging(out, "", gpu.title + (f": {gpu.name} {gpu_why}" if gpu_why else ""))
    out.line()
    _time(out, one)
    for label, text in (*_facts(one), *_gemms(one)):
        hanging(out, f"{label:<{_LABEL}}", text)
    if any(change.time_ratio is not None for change in changes):
        out.line()
        out.line("What would change the time, for as many tokens per GPU", "bold")
        table = out.table([("", "fold"), ("time", "r"), ("", "r")])
        for change in changes:
            if change.time_ratio is not None:
                dropped = change.prediction.dropped_frac
                name = change.name + (f" ({f.pct(dropped)})" if dropped else "")
                cells = (name, duration(change.prediction.time_us.mid), f"x{change.time_ratio:.2f}")
                table.add_row(*(out.text(cell) for cell in cells))
        out.print(table)


def _time(out: Out, one: ExpertsPrediction) -> None:
    if one.time_us.mid is None:
        out.line("time unknown", "bold")
        hanging(out, "", one.unknown or "")
    else:
        text = f"{duration(one.time_us.mid)} ({duration_range(one.time_us)}), {f.sig(one.tflops)} TFLOP/s"
        out.line(text, "bold")
        about = "; the backward is scaled from the forward" if one.direction == "backward" else ""
        hanging(out, "", f"model: {one.source}{about}")
    out.line()


def _facts(one: ExpertsPrediction) -> list[tuple[str, str]]:
    layer, rows = one.layer, one.rows_per_expert
    local = layer.experts // layer.ep
    where = "on the busiest GPU" if layer.ep > 1 else "on the GPU"
    active = f", {one.active_experts:.4g} of {local} experts with rows" if one.active_experts < local else ""
    facts = [("rows", f"{f.count(round(one.rows))} {where}{active}")]
    if rows[0] == rows[-1]:
        facts.append(("per expert", f"{f.count(round(rows[0]))} each"))
    else:
        middle = rows[len(rows) // 2]
        text = f"{f.count(round(rows[0]))} of the fullest, {f.count(round(middle))} in the middle"
        facts.append(("per expert", f"{text}, {f.count(round(rows[-1]))} of the emptiest"))
    if layer.ep > 1 and one.imbalance > 1.005:
        facts.append(("imbalance", f"{one.imbalance:.2f} times the rows of an even load"))
    if one.row_multiple > 1:
        more = one.padded_rows / one.rows - 1 if one.rows else 0.0
        facts.append(
            ("padding", f"{f.pct(more)} more rows: each expert's are a multiple of {one.row_multiple}")
        )
    return facts


def _gemms(one: ExpertsPrediction) -> list[tuple[str, str]]:
    found = []
    for each in one.gemms:
        what = f"{duration(each.time_us)}: N {each.n}, K {each.k}, tiles {each.tile[0]}x{each.tile[1]}"
        waves = f"{f.count(each.waves)} {'wave' if each.waves == 1 else 'waves'}"
        empty, idle = f.pct(each.padded_frac), f.pct(each.idle_frac)
        found.append((each.name, f"{what}, {empty} of their rows empty, {idle} of {waves} idle"))
    names = {each.name for each in one.gemms}
    rest = [(name, duration(value)) for name, value in one.parts_us.items() if name not in names]
    return [*found, *rest]
