"""From a configuration to suggestions: the present step predicted, and what to change."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tracelens.advice.config import ModelConfig, read_config
from tracelens.advice.config.diff import config_diff
from tracelens.advice.hyper import Hyper
from tracelens.advice.planned_kernels import memory_bytes
from tracelens.advice.planned_step import NOT_INCLUDED, Change, PlannedStep, Planner, compare, total
from tracelens.advice.search import BY_DEFAULT, SEARCHED, WORTH_FRAC, Found, Limits, search
from tracelens.errors import InputError, UsageError
from tracelens.hardware import Gpu, find_gpu
from tracelens.hardware.measurements import Measurements, find_measurements
from tracelens.results import Estimate

FORMAT_VERSION = "1.0"
#: Gains spelled out for a pick.
_REASONS = 4
#: Kernels that move less than this share of the saving are no reason for it.
_LEAST_FRAC = 0.02
_HEAD_DIMS = (40, 64, 80, 96, 128, 160, 256)


@dataclass(frozen=True, slots=True)
class Size:
    value: int | None
    source: str


@dataclass(frozen=True, slots=True)
class ComponentTime:
    """One component of the present step, forward and backward."""

    component: str
    time_ms: Estimate
    frac: float  # of the sum
    tflops: float | None  # of its products and attention, over their time
    shapes: list[str]  # of its products, forward


@dataclass(frozen=True, slots=True)
class Reason:
    """One kernel that a pick changes. ``saving_ms`` below zero: slower."""

    component: str
    role: str
    shape_now: str
    shape_then: str
    time_ms: float
    then_ms: float
    saving_ms: float
    why: str


@dataclass(frozen=True, slots=True)
class Pick:
    """One change, simulated as a whole."""

    title: str
    change: dict[str, list[int | None]]
    saving_frac: Estimate  # of the time per token
    saving_ms: Estimate  # of one micro-batch of the present size
    shape_gain_frac: float  # what is left of it without what fewer operations give
    parameters: int | None
    parameters_frac: float
    flops_frac: float
    memory_frac: float  # growth of the estimate of a GPU's memory
    effort: str  # config | retrain
    effort_why: str
    reasons: list[Reason]
    diff: list[str]


@dataclass(frozen=True, slots=True)
class Heads:
    """Another number of heads at the present hidden size. Below zero: slower."""

    heads: int
    head_dim: int
    saving_frac: Estimate


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the Pareto front; its time is a mid estimate and no recommendation."""

    change: dict[str, list[int | None]]
    parameters_frac: float
    time_frac: float  # per token, of the present


@dataclass(frozen=True, slots=True)
class Suggestions:
    """What ``tracelens suggest`` says."""

    format_version: str
    model: str
    sizes: dict[str, Size]
    gpu: str
    gpu_title: str
    dtype: str
    basis: str  # calibrated | model
    parameters: int | None  # weights in matrices
    step_ms: Estimate  # forward and backward of one micro-batch
    tflops: float | None
    memory_gb: float  # estimate, of one GPU
    components: list[ComponentTime]  # longest first
    verdict: str
    picks: list[Pick]
    unsure: Pick | None  # predicted faster, but what it adds reaches to slower: not recommended
    heads: list[Heads]
    front: list[Point]
    tried: int
    searched: list[str]
    parameters_limit_frac: float
    not_included: list[str]
    notes: list[str] = field(default_factory=list)


def suggest(
    config: str | Path | ModelConfig,
    *,
    gpu: str,
    parameters_frac: float = 0.01,
    fix: Collection[str] = (),
    free: Collection[str] = (),
    memory_gb: float | None = None,
    dtype: str = "bf16",
    sizes: Mapping[str, int] | None = None,
) -> Suggestions:
    """Suggest a faster shape for the model of ``config`` (a file, a folder, or one already read) on ``gpu``.

    ``fix`` names sizes that stay, ``free`` further ones that can change (layers, kv_heads, micro_batch,
    sequence); the weights stay within ``parameters_frac``. ``sizes`` replace those of the file. Raises
    ``InputError`` for a configuration that cannot be used and ``UsageError`` for a GPU that is not known.
    """
    known = config if isinstance(config, ModelConfig) else read_config(config, overrides=sizes)
    limits = Limits(parameters_frac, _searched(fix, free), memory_gb).checked()
    hardware = find_gpu(None, override=gpu)
    measured, notes = _measured(hardware)
    planner = Planner(known.layout, gpu=hardware, dtype=dtype, measured=measured)
    found = search(planner, known.hyper, limits, fixed=known.fixed)
    notes += _unknowns(found.present)
    notes += [f"{name} stays: {why}" for name, why in known.fixed.items() if name in limits.free]
    return _suggestions(known, planner, found, limits, [*known.notes, *notes, *found.notes])


def _searched(fix: Collection[str], free: Collection[str]) -> frozenset[str]:
    for name in (*fix, *free):
        if name not in SEARCHED:
            raise UsageError(f"{name[:40]!r} cannot be searched (known: {', '.join(SEARCHED)})")
    both = set(fix) & set(free)
    if both:
        raise UsageError(f"{', '.join(sorted(both))}: fixed or free, not both")
    names = (BY_DEFAULT | frozenset(free)) - frozenset(fix)
    return names - {"heads", "head_dim"} if "heads" in fix else names


def _measured(gpu: Gpu) -> tuple[Measurements | None, list[str]]:
    try:
        found = find_measurements(gpu.name, sms=gpu.sms)
    except InputError as error:
        return None, [f"Measurements of this GPU cannot be used: {error}"]
    if found is None:
        return None, [f"No measurements of the {gpu.title}: ranges are those of the model"]
    return found, [f"Predictions use measurements of the {gpu.title} of {found.date or 'an unknown day'}"]


def _suggestions(
    config: ModelConfig, planner: Planner, found: Found, limits: Limits, notes: list[str]
) -> Suggestions:
    present, now = found.present, config.hyper
    picks = [_pick(change, config, planner) for change in found.picks]
    time = present.time_ms
    return Suggestions(
        format_version=FORMAT_VERSION,
        model=config.family,
        sizes={name: Size(now.get(name), why) for name, why in config.sources.items()},
        gpu=planner.gpu.name,
        gpu_title=planner.gpu.title,
        dtype=planner.dtype,
        basis=time.basis,
        parameters=now.parameters,
        step_ms=time,
        tflops=present.flops / time.mid / 1e9 if time.mid else None,
        memory_gb=memory_bytes(now, config.layout) / 1e9,
        components=_components(present),
        verdict=_verdict(picks, found, limits, planner.gpu.title),
        picks=picks,
        unsure=_pick(found.best_unsure, config, planner) if found.best_unsure is not None else None,
        heads=_heads(planner, present),
        front=[Point(_changes(now, one.hyper), one.parameters_frac, one.time_frac) for one in found.front],
        tried=found.tried,
        searched=[name for name in SEARCHED if name in limits.free and name not in config.fixed],
        parameters_limit_frac=limits.parameters_frac,
        not_included=list(NOT_INCLUDED),
        notes=notes,
    )


def _verdict(picks: list[Pick], found: Found, limits: Limits, gpu: str) -> str:
    limit = f"{100 * limits.parameters_frac:g}%"
    if not picks and any(part.unknown for part in found.present.parts):
        return (
            f"None of {found.tried:,} other shapes within ±{limit} of its weights is surely faster on the"
            f" {gpu}, but not every product of this one can be judged: see the notes."
        )
    if not picks:
        return (
            f"This shape is already good on the {gpu}: none of {found.tried:,} others within ±{limit} of its"
            f" weights is surely faster, by {WORTH_FRAC:.0%} or more, than fewer operations explain."
        )
    best = picks[0]
    low, high = best.saving_frac.low or 0.0, best.saving_frac.high or 0.0
    return (
        f"{best.title}: predicted {best.saving_frac.mid:.1%} less time per token ({low:.1%} to {high:.1%})."
    )


def _unknowns(present: PlannedStep) -> list[str]:
    """What of the present step has no prediction, and what needs none to be worth doing."""
    parts = [part for part in present.parts if part.unknown]
    notes = [
        f"{component}: {why}; taken at its least, so savings are at least these"
        for component, why in dict.fromkeys((part.component, part.unknown) for part in parts)
    ]
    vocab, t = present.hyper.vocab or 0, present.hyper.tensor_parallel or 1
    padded = -(-vocab // (64 * t)) * 64 * t
    if padded != vocab and any(part.component == "logits" for part in parts):
        notes.append(
            f"vocab {vocab} → {padded} costs {padded / vocab - 1:.2%} of the logits and ends the question:"
            " pad it whatever the figure is"
        )
    return notes


def _components(present: PlannedStep) -> list[ComponentTime]:
    whole = present.time_ms.mid or 1.0
    rows: list[ComponentTime] = []
    for component in dict.fromkeys(part.component for part in present.parts):
        parts = [part for part in present.parts if part.component == component]
        time = total(part.time_ms for part in parts)
        flops = sum(part.flops for part in parts)
        shapes = [part.shape for part in parts if part.kind != "bytes" and part.role == "forward"]
        tflops = flops / time.mid / 1e9 if flops and time.mid else None
        rows.append(
            ComponentTime(component, time, (time.mid or 0.0) / whole, tflops, list(dict.fromkeys(shapes)))
        )
    return sorted(rows, key=lambda row: -row.frac)


def _changes(now: Hyper, then: Hyper) -> dict[str, list[int | None]]:
    return {name: [now.get(name), then.get(name)] for name in SEARCHED if now.get(name) != then.get(name)}


def _pick(change: Change, config: ModelConfig, planner: Planner) -> Pick:
    now, then = change.now, change.then
    changes = _changes(now, then)
    effort, why = _effort(frozenset(changes))
    weights = now.parameters or 1
    return Pick(
        title=_title(changes),
        change=changes,
        saving_frac=change.saving_frac,
        saving_ms=change.saving_ms,
        shape_gain_frac=change.shape_gain_frac,
        parameters=then.parameters,
        parameters_frac=(then.parameters or 0) / weights - 1,
        flops_frac=change.flops_frac,
        memory_frac=memory_bytes(then, config.layout) / memory_bytes(now, config.layout) - 1,
        effort=effort,
        effort_why=why,
        reasons=_reasons(change),
        diff=list(config_diff(config, then)),
    )


def _title(changes: Mapping[str, list[int | None]]) -> str:
    """The decisions; head_dim and kv_heads are left out where they follow from heads."""
    shown = {name: pair for name, pair in changes.items() if name != "head_dim" or "heads" not in changes}
    if shown.get("kv_heads") == shown.get("heads"):
        shown.pop("kv_heads", None)
    return ", ".join(f"{name} {pair[0]} → {pair[1]}" for name, pair in shown.items())


def _effort(names: frozenset[str]) -> tuple[str, str]:
    if names == {"vocab"}:
        return "config", "a trained checkpoint is padded with unused rows"
    if names <= {"micro_batch"}:
        return "config", "a setting of the run; keep the global batch"
    if names <= {"micro_batch", "sequence", "vocab"}:
        return "config", "settings of the run; sequences of another length hold other text"
    return "retrain", "another architecture, for a model trained from the start"


def _reasons(change: Change) -> list[Reason]:
    """The kernels that move the step most, gains and losses."""
    least = _LEAST_FRAC * abs(change.saving_ms.mid or 0.0)
    parts = sorted(change.parts, key=lambda part: -abs(part.saving_ms))[:_REASONS]
    parts = [part for part in parts if abs(part.saving_ms) >= least]
    return [
        Reason(part.component, part.role, part.shape_now, part.shape_then, part.time_ms, part.then_ms,
               part.saving_ms, part.why)
        for part in sorted(parts, key=lambda part: -part.saving_ms)
    ]  # fmt: skip


def _heads(planner: Planner, present: PlannedStep) -> list[Heads]:
    """Other head counts at this hidden size, for the reader to see where the present one stands."""
    now = present.hyper
    hidden, heads, t = now.hidden or 0, now.heads or 0, now.tensor_parallel or 1
    if heads * (now.head_dim or 0) != hidden:
        return []
    rows: list[Heads] = []
    for dim in _HEAD_DIMS:
        other = hidden // dim
        if hidden % dim or other % t or other == heads:
            continue
        kv_heads = other if now.kv_heads == now.heads else now.kv_heads or other
        if other % kv_heads:
            continue
        then = replace(now, heads=other, head_dim=dim, kv_heads=kv_heads)
        rows.append(Heads(other, dim, compare(present, planner.step(then)).saving_frac))
    return rows
