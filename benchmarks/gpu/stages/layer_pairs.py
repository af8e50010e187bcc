"""Whole layers and whole small training steps, before and after a change.

Both shapes of a pair take turns in one process, several times, so that a clock that drifts drifts for both;
the ratio of each turn is of neighbours.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from benchmarks.gpu import expected, predicted
from benchmarks.gpu.pairs import (
    LayerPair,
    StepPair,
    cost_us_per_token,
    layer_pairs,
    step_pairs,
    verified_pairs,
)
from benchmarks.gpu.stage import Item, Row, Setting, Stage
from benchmarks.gpu.stages.shapes import gpu_of, open_bench
from tracelens.gemm.kernel_names import parse_kernel_name
from tracelens.hardware.gpu import Gpu
from tracelens.measure.cases import TRY, AttentionCase, GemmCase
from tracelens.measure.layer_shapes import LayerShape, StepShape

if TYPE_CHECKING:
    from tracelens.measure.kernels import CallKernels
    from tracelens.measure.pairs import PairTimes

TURNS = 4  # of tracelens.measure.pairs
#: Kernels that are no product and no attention: norms, activations, residuals, biases, loss.
_OTHER_PASSES = 40  # over the activations, read or written, forward and backward of one layer
_SETUP_S = 1.0


def layer_items(setting: Setting) -> list[Item]:
    """The pairs that are not among the verified savings."""
    verified = {pair.name for pair in verified_pairs()}
    return _items(setting, tuple(pair for pair in layer_pairs() if pair.name not in verified))


def saving_items(setting: Setting) -> list[Item]:
    return _items(setting, verified_pairs())


def _items(setting: Setting, pairs: tuple[LayerPair, ...]) -> list[Item]:
    gpu = gpu_of(setting)
    if setting.dry_run:
        pairs = tuple(toy_pair(pair) for pair in {pair.rule: pair for pair in pairs}.values())
    return [
        Item(pair.name, _seconds(layer_us(pair.before, gpu) + layer_us(pair.after, gpu)), pair)
        for pair in pairs
    ]


def step_items(setting: Setting) -> list[Item]:
    gpu, pairs = gpu_of(setting), step_pairs()
    if setting.dry_run:
        pairs = tuple(replace(pair, before=pair.before.toy(), after=pair.after.toy()) for pair in pairs)
    return [
        Item(pair.name, 3.0 + _seconds(step_us(pair.before, gpu) + step_us(pair.after, gpu)), pair)
        for pair in pairs
    ]


def _seconds(both_us: float) -> float:
    """Laying out, and the calls of all turns: two to warm up, two to size the batch, five that count."""
    return _SETUP_S + TURNS * max(10 * both_us / 1e6, 0.02)


def layer_us(layer: LayerShape, gpu: Gpu) -> float:
    """About how long forward and backward of ``layer`` take."""
    total = sum(
        expected.gemm_us(GemmCase("", g.m, g.n, g.k, g.batch, layer.dtype, g.layout), gpu)
        for g in layer.gemms()
    )
    if layer.vocab:
        width = layer.vocab // layer.tensor_parallel
    else:
        width = layer.hidden
        if layer.attention == "math":
            width += layer.heads // layer.tensor_parallel * layer.sequence // 2
        else:
            case = AttentionCase(
                "", layer.micro_batch, layer.heads // layer.tensor_parallel, layer.sequence, layer.head_dim,
                causal=layer.causal,
            )  # fmt: skip
            total += sum(
                expected.attention_us(replace(case, direction=way), gpu) for way in ("forward", "backward")
            )
    moved = _OTHER_PASSES * layer.tokens * width * expected.ELEMENT_BYTES[layer.dtype]
    return total + moved / (gpu.bandwidth_gbps or 1000.0) / 1e3


def step_us(step: StepShape, gpu: Gpu) -> float:
    layers = step.layers * layer_us(step.layer, gpu)
    return layers + layer_us(step.layer.changed(vocab=step.vocabulary), gpu)


# --- measuring ----------------------------------------------------------------------------------------


def predict(setting: Setting, item: Item) -> dict[str, Any] | None:
    """What the change saves, per token, before either side is timed."""
    pair: LayerPair | StepPair = item.spec
    return predicted.of_change(setting, pair.name, pair.before, pair.after) if pair.change else None


def measure_layers(setting: Setting, item: Item) -> Row:
    from tracelens.measure import pairs

    pair: LayerPair = item.spec
    row = _row(pairs.measure_layers(pair.before, pair.after, device=open_bench(setting), **_how(setting)))
    for side, shape in (("before", pair.before), ("after", pair.after)):
        row[side] |= _layer_facts(shape, row[side]["ms"])
    return _compared(row, pair.name, pair.change) | {
        "model": pair.model,
        "rule": pair.rule,
        "expected": pair.expected,
    }


def measure_steps(setting: Setting, item: Item) -> Row:
    from tracelens.measure import pairs

    pair: StepPair = item.spec
    row = _row(pairs.measure_steps(pair.before, pair.after, device=open_bench(setting), **_how(setting)))
    for side, shape in (("before", pair.before), ("after", pair.after)):
        row[side] |= {
            "shape": shape.as_json(),
            "tokens": shape.layer.tokens,
            "parameters": shape.parameters,
            "us_per_token": cost_us_per_token(row[side]["ms"], shape.layer),
        }
    return _compared(row, pair.name, pair.change)


def _layer_facts(shape: LayerShape, ms: float) -> dict[str, Any]:
    """What a prediction of this layer is checked against."""
    gemms = [[g.component, g.role, g.m, g.n, g.k, g.batch, g.layout] for g in shape.gemms()]
    return {
        "shape": asdict(shape),
        "tokens": shape.tokens,
        "parameters": shape.parameters,
        "us_per_token": cost_us_per_token(ms, shape),
        "gemms": gemms,
    }


def _how(setting: Setting) -> dict[str, Any]:
    return {"options": TRY, "turns": 2} if setting.dry_run else {"turns": TURNS}


def _row(found: PairTimes) -> Row:
    times = {"before": found.before_ms, "after": found.after_ms}
    row: Row = {
        side: _times(times[side]) | _kernels(launched)
        for side, launched in zip(times, found.kernels, strict=True)
    }
    row["queued"] = found.queued
    row["spread_frac"] = max(row[side]["spread_frac"] for side in times)
    row["turns_ms"] = [
        [round(one, 5), round(other, 5)] for one, other in zip(found.before_ms, found.after_ms, strict=True)
    ]
    return row


def _times(found: Sequence[float]) -> dict[str, Any]:
    middle = statistics.median(found)
    return {
        "ms": round(middle, 5),
        "low_ms": round(min(found), 5),
        "high_ms": round(max(found), 5),
        "spread_frac": round((max(found) - min(found)) / middle, 5),
    }


def _kernels(launched: CallKernels) -> dict[str, Any]:
    """Products and attention of one call by name, and the sum of all its kernels by the profiler."""
    named = Counter(name for name in launched.names if parse_kernel_name(name) is not None)
    return {
        "kernels": len(launched.names),
        "gemm_kernels": dict(named),
        "profiler_ms": None if launched.time_us is None else round(launched.time_us / 1e3, 4),
    }


def _compared(row: Row, name: str, change: Mapping[str, tuple[Any, Any]]) -> Row:
    """The ratios: of time per token of all ranks, for a pair may change the work of a call."""
    before, after = row["before"], row["after"]
    scale = before["us_per_token"] / before["ms"], after["us_per_token"] / after["ms"]
    turns = [one * scale[0] / (other * scale[1]) for one, other in row["turns_ms"]]
    speedup = before["us_per_token"] / after["us_per_token"]
    return row | {
        "brief": f"{before['ms']:.3f} -> {after['ms']:.3f} ms, {speedup:.3f}x per token",
        "name": name,
        "change": {key: list(values) for key, values in change.items()},
        "speedup": round(speedup, 5),
        "speedup_low": round(min(turns), 5),
        "speedup_high": round(max(turns), 5),
        "parameters_frac": round(after["parameters"] / before["parameters"], 6),
    }


def summarize(setting: Setting, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "kind": setting.kind,
        "pairs": list(rows),
        "models": sorted({row["model"] for row in rows if "model" in row}),
    }


#: A layer against itself may not seem to differ by more than this.
CONTROL_FRAC = 0.02


def check(data: Mapping[str, Any]) -> list[str]:
    """The controls show the noise: a run in which equal layers differ says nothing of unequal ones."""
    if data["kind"] != "cuda":
        return []
    wrong = [
        f"{row['name']}: the same shape twice differs by {abs(row['speedup'] - 1):.1%}"
        for row in data["pairs"]
        if not row["change"] and abs(row["speedup"] - 1) > CONTROL_FRAC
    ]
    if all(row[side]["kernels"] == 0 for row in data["pairs"] for side in ("before", "after")):
        wrong.append("kernel names are missing")
    return wrong


# --- toy sizes ----------------------------------------------------------------------------------------


def toy_pair(pair: LayerPair) -> LayerPair:
    return replace(pair, before=pair.before.toy(), after=pair.after.toy())


def _stage(name: str, writes: str, items: Any, measure: Any, most_failed: float) -> Stage:
    return Stage(
        name=name,
        writes=writes,
        items=items,
        measure=measure,
        predict=predict,
        summarize=summarize,
        check=check,
        max_failed_frac=most_failed,
    )


SAVINGS = _stage(
    "savings", "20 predicted savings and what whole layers, forward and backward, save", saving_items,
    measure_layers, 0.2,
)  # fmt: skip
LAYER_PAIRS = _stage(
    "layer_pairs", "more layers before and after a change of shape", layer_items, measure_layers, 0.1
)
FULL_STEPS = _stage(
    "full_steps", "small training steps before and after each headline fix", step_items, measure_steps, 0.3
)
