"""What a capture costs on a GPU: ``benchmarks.capture_overhead``'s comparison, steps between CUDA events."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu.stage import Item, Row, Setting, Stage
from tracelens.measure.timing import spread_frac

#: What the capture promises: outside its window, and inside it against torch.profiler on the same steps.
MOST_OUTSIDE, MOST_INSIDE = 1.01, 1.15


#: Steps of a block, and rounds of blocks: by how much the steps vary from one to the next.
_BLOCKS = {"gpt2_wide": (4, 3), "gpt2_small": (6, 21)}


def items(setting: Setting) -> Sequence[Item]:
    from benchmarks.gpu.models import Dims
    from benchmarks.gpu.training import Case

    wide = Dims(hidden=2560, heads=32, ffn=10240, vocab=50257, sequence=2048, batch=4)
    small = Dims(hidden=512, heads=8, ffn=2048, vocab=8192, sequence=256, batch=8)
    return [
        # the GPU is the slower one: what the host does more is hidden, as in real training
        Item("gpt2_wide", 20.0, Case("gpt2_wide", "gpt", wide, (4,))),
        # the host is: nothing hides what the capture adds, nor what else the machine does
        Item("gpt2_small", 40.0, Case("gpt2_small", "gpt", small, (6,))),
    ]


def measure(setting: Setting, item: Item) -> Row:
    from benchmarks.capture_overhead import compare
    from benchmarks.gpu.training import Training, precision

    case = item.spec.toy() if setting.dry_run else item.spec
    steps, rounds = (2, 2) if setting.dry_run else _BLOCKS[item.key]
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
    """``holds``: whether the capture's promises were kept here; None where the rounds do not tell.

    A broken promise is a result, not a fault.
    """
    limits = {"outside": MOST_OUTSIDE, "inside": MOST_INSIDE}
    said = [kept(row[name], most) for row in rows for name, most in limits.items()]
    holds = False if False in said else None if None in said else True
    return {"models": list(rows), "holds": holds, "limits": limits, "on_gpu": setting.kind == "cuda"}


def kept(ratio: Mapping[str, Any], most: float) -> bool | None:
    """Whether the true median lies under ``most``, by the 95 % interval of it that the rounds give.

    The interval between order statistics needs no distribution (Conover, Practical Nonparametric Statistics,
    3.2). None: it holds ``most``, and the median of the rounds is over it.
    """
    rounds = sorted(ratio["rounds"])
    if ratio["median"] <= most:
        return True
    low = max(0, math.floor(len(rounds) / 2 - 0.98 * math.sqrt(len(rounds))))
    return None if rounds[low] <= most else False


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
    method=2,  # more rounds, shorter ones, of the step that waits for the host
    setup_s=5.0,
    cap_mb=0.2,
    max_spread_frac=None,  # a step that waits for the CPU varies; every ratio is of neighbours
)
