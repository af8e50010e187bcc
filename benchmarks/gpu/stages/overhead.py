"""What a capture costs on a GPU: ``benchmarks.capture_overhead``'s comparison, steps between CUDA events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu.stage import Item, Row, Setting, Stage
from tracelens.measure.timing import spread_frac

#: What the capture promises: outside its window, and inside it against torch.profiler on the same steps.
MOST_OUTSIDE, MOST_INSIDE = 1.01, 1.15


def items(setting: Setting) -> Sequence[Item]:
    from benchmarks.gpu.models import Dims
    from benchmarks.gpu.training import Case

    wide = Dims(hidden=2560, heads=32, ffn=10240, vocab=50257, sequence=2048, batch=4)
    small = Dims(hidden=512, heads=8, ffn=2048, vocab=8192, sequence=256, batch=8)
    return [
        # the GPU is the slower one: what the host does more is hidden, as in real training
        Item("gpt2_wide", 45.0, Case("gpt2_wide", "gpt", wide, (4,))),
        # the host is: nothing hides what the capture adds
        Item("gpt2_small", 25.0, Case("gpt2_small", "gpt", small, (6,))),
    ]


def measure(setting: Setting, item: Item) -> Row:
    from benchmarks.capture_overhead import compare
    from benchmarks.gpu.training import Training, precision

    case = item.spec.toy() if setting.dry_run else item.spec
    steps, rounds = (2, 2) if setting.dry_run else (8, 7)
    with precision(case):
        training = Training(case, layers=case.layers[0], device=setting.device)
        for _ in range(1 if setting.dry_run else 5):
            training()
        found = compare(training, steps=steps, rounds=rounds)
    found |= {"steps": steps, "rounds": rounds, "layers": case.layers[0]}
    found |= {"clock": "cuda_events" if setting.kind == "cuda" else "cpu_time"}
    found["spread_frac"] = spread_frac(found["bare_step_ms_rounds"])
    ratios = ", ".join(f"{name} {found[name]['median']:.3f}" for name in ("outside", "inside", "profiler"))
    return {**found, "brief": f"step {found['bare_step_ms']:.2f} ms, {ratios}"}


def summarize(setting: Setting, rows: Sequence[Row]) -> dict[str, Any]:
    """``holds``: whether the capture's promises were kept here. A broken promise is a result, not a fault."""
    holds = [
        row["outside"]["median"] <= MOST_OUTSIDE and row["inside"]["median"] <= MOST_INSIDE for row in rows
    ]
    limits = {"outside": MOST_OUTSIDE, "inside": MOST_INSIDE}
    return {"models": list(rows), "holds": all(holds), "limits": limits, "on_gpu": setting.kind == "cuda"}


def check(data: Mapping[str, Any]) -> list[str]:
    """Plain ``torch.profiler`` cannot make a step much faster: then the clock of the GPU moved."""
    low = min((row["profiler"]["median"] for row in data["models"]), default=1.0)
    return [f"a profiled step took {low:.2f} of a bare one"] if low < 0.9 and data["on_gpu"] else []


OVERHEAD = Stage(
    name="overhead",
    writes="what a capture costs, outside its window and against plain torch.profiler within",
    items=items,
    measure=measure,
    summarize=summarize,
    check=check,
    setup_s=5.0,
    cap_mb=0.2,
    max_spread_frac=None,  # a step that waits for the CPU varies; every ratio is of neighbours
)
