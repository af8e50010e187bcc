"""From a configuration to suggestions: the present step predicted, and what to change."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tracelens.config import Configuration, read_config
from tracelens.config.configuration import Run
from tracelens.config.diff import config_diff
from tracelens.config.model_config import ModelConfig
from tracelens.config.training import Training
from tracelens.errors import InputError, UsageError
from tracelens.hardware import Gpu, find_gpu
from tracelens.hardware.gpu import taken_as
from tracelens.hardware.measurements import Measurements, find_measurements
from tracelens.results import Span
from tracelens.results.suggestions import FORMAT_VERSION, ComponentTime, Size, Suggestions
from tracelens.step.memory import memory_of, would_fit
from tracelens.step.planned_change import PlannedStep, total
from tracelens.step.planned_step import Planner
from tracelens.step.predicted import LOW_PRECISION
from tracelens.step.reasons import PlannedPart
from tracelens.step.search import Found, search
from tracelens.step.search_space import BY_DEFAULT, SEARCHED, SearchLimits
from tracelens.step.shape_search import front_of, nothing_faster, other_heads, picks_of
from tracelens.step.whole_step import whole_step
from tracelens.step.words import search as words
from tracelens.step.words.planned import NOT_IN_KERNELS


def suggest(
    config: str | Path | Configuration,
    *,
    gpu: str,
    limits: SearchLimits | None = None,
    dtype: str = "bf16",
    sizes: Mapping[str, int] | None = None,
    training: Training | None = None,
) -> Suggestions:
    """Suggest a faster shape for the model of ``config`` (a file, a folder, or one already read) on ``gpu``.

    ``sizes`` replace those of the file. With ``training`` a whole step is predicted too. Raises
    ``InputError`` for a configuration that cannot be used and ``UsageError`` for a GPU that is not known.
    """
    known = config if isinstance(config, Configuration) else read_config(config, overrides=sizes)
    limits = (limits or SearchLimits()).checked()
    hardware = find_gpu(None, override=gpu)
    measured, notes = _measured(hardware)
    told = taken_as(gpu)
    notes += [words.gpu_taken(gpu, hardware.title, told)] if told else []
    compiled = training is not None and (training.stack or known.run.stack) == "compiled"
    planner = Planner(known.layout, gpu=hardware, dtype=dtype, measured=measured, compiled=compiled)
    found = search(planner, known.model, limits, fixed=known.fixed)
    present = planner.step(known.model)
    notes += _unknowns(present)
    padded = [one for one in _padded_by_compile(present) if one != "logits" or "vocab" in limits.free]
    if padded:
        notes.append(words.padded_by_compile(padded))
    if "vocab" in limits.free and all(pick.then.vocab == known.model.vocab for pick in found.picks):
        notes += _to_pad(present)
    if left := planner.left_wide(known.model):
        notes.append(words.stays_wide(left, dtype, LOW_PRECISION[dtype]))
    notes += [words.stays(name, why) for name, why in known.fixed.items() if name in limits.free]
    whole = whole_step(planner, known.model, training, run=known.run) if training is not None else None
    how, then = Training(strategy="ddp"), []
    if training and whole:
        training = replace(training, gpus=whole.gpus)
        how = training.as_run(known.run, known.model)
        then = [_speed(planner, change.then, training, known.run) for change in found.picks]
    room = limits.memory_gb or hardware.memory_gb
    fitting = _would_fit(known, how, room)
    said = [*known.notes, *notes, *found.notes]
    judged = _suggestions(known, planner, found, limits, said, fits=fitting is None)
    if judged.picks and {reason.component for reason in judged.picks[0].reasons} & set(padded):
        judged = replace(judged, verdict=words.less_when_compiled(judged.verdict))
    return replace(judged, step=whole, picked_tokens_per_s=then, room_gb=room, would_fit=fitting)


def _speed(planner: Planner, then: ModelConfig, training: Training, run: Run) -> Span | None:
    """Tokens per second and GPU in the whole step of a pick; None where its batch does not divide."""
    try:
        return whole_step(planner, then, training, run=run).tokens_per_s_per_gpu
    except UsageError:
        return None


def _would_fit(config: Configuration, how: Training, room_gb: float | None) -> list[str] | None:
    """What would make it fit where it does not."""
    if room_gb is None or memory_of(config.model, config.layout, how).whole <= room_gb * 1e9:
        return None
    return would_fit(config.model, config.layout, how, room_gb)


def limits_of(
    parameters_frac: float, *, fix: Collection[str], free: Collection[str], memory_gb: float | None
) -> SearchLimits:
    """What the search keeps, not ``checked`` yet; UsageError for names that make no sense."""
    for name in (*fix, *free):
        if name not in SEARCHED:
            raise UsageError(f"{name[:40]!r} cannot be searched (known: {', '.join(SEARCHED)})")
    both = set(fix) & set(free)
    if both:
        raise UsageError(f"{', '.join(sorted(both))}: fixed or free, not both")
    names = (BY_DEFAULT | frozenset(free)) - frozenset(fix)
    names = names - {"heads", "head_dim"} if "heads" in fix else names
    return SearchLimits(parameters_frac, names, memory_gb, any_heads="heads" in free)


def _measured(gpu: Gpu) -> tuple[Measurements | None, list[str]]:
    try:
        found = find_measurements(gpu.name, sms=gpu.sms)
    except InputError as error:
        return None, [words.measurements_unusable(error)]
    if found is None:
        return None, [words.without_measurements(gpu.title)]
    return found, [words.with_measurements(gpu.title, found.date)]


def _suggestions(
    config: Configuration,
    planner: Planner,
    found: Found,
    limits: SearchLimits,
    notes: list[str],
    *,
    fits: bool,
) -> Suggestions:
    now = config.model
    present = planner.step(now)
    picks, unsure = picks_of(planner, found, partial(config_diff, config))
    time = present.time_ms
    return Suggestions(
        format_version=FORMAT_VERSION,
        model=config.family,
        sizes={
            name: Size(now.get(name), why, name in config.assumed) for name, why in config.sources.items()
        },
        gpu=planner.gpu.name,
        gpu_title=planner.gpu.title,
        dtype=planner.dtype,
        basis=time.basis,
        parameters=now.parameters,
        time_ms=time,
        time_is="kernels",
        tflops=_tflops(present.parts, time),
        memory_gb=planner.memory(now) / 1e9,
        components=_components(present),
        verdict=words.claim(picks[0].title, picks[0].saving_frac, of=words.KERNEL_TIME)
        if picks
        else _nothing(present, found, limits, planner.gpu.title, fits),
        picks=picks,
        unsure=unsure,
        heads=other_heads(planner, now, limits),
        front=front_of(now, found),
        tried=found.tried,
        searched=[
            name for name in SEARCHED if name in limits.free and name not in config.fixed and now.get(name)
        ],
        parameters_limit_frac=limits.parameters_frac,
        not_included=list(NOT_IN_KERNELS),
        notes=notes,
        causal=config.layout.causal,
        fused_qkv=config.layout.fused_qkv,
        fused_gate=config.layout.fused_gate if now.gated else None,
    )


def _nothing(present: PlannedStep, found: Found, limits: SearchLimits, gpu: str, fits: bool) -> str:
    """The verdict where nothing is recommended."""
    if not found.tried:
        return words.none_on_grid(limits.parameters_frac)
    if any(part.unknown for part in present.parts):
        return words.none_judged(found.tried, limits.parameters_frac, gpu)
    off_grid = _padded_by_compile(present)
    return nothing_faster(present.model, gpu, found, limits, off_grid=off_grid, fits=fits)


def _padded_by_compile(present: PlannedStep) -> list[str]:
    """Components of which torch.compile pads a product."""
    return list(dict.fromkeys(part.component for part in present.parts if part.pad_ms))


def _unknowns(present: PlannedStep) -> list[str]:
    """What of the present step has no prediction."""
    parts = [part for part in present.parts if part.unknown]
    return [
        words.at_its_least(component, why)
        for component, why in dict.fromkeys((part.component, part.unknown or "") for part in parts)
    ]


def _to_pad(present: PlannedStep) -> list[str]:
    """A vocabulary off the grid, which needs no sure gain to be worth padding."""
    vocab, t = present.model.vocab or 0, present.model.tp
    padded = -(-vocab // (64 * t)) * 64 * t
    off_grid = any(part.component == "logits" and (part.unknown or part.pad_ms) for part in present.parts)
    return [words.pad_vocab(vocab, padded, padded / vocab - 1)] if off_grid and padded != vocab else []


def _tflops(parts: Sequence[PlannedPart], time: Span) -> float | None:
    """Of GEMMs and attention, over the time of all; None where that is a floor."""
    flops = sum(part.flops for part in parts)
    return flops / time.mid / 1e9 if flops and time.mid and not any(part.unknown for part in parts) else None


def _components(present: PlannedStep) -> list[ComponentTime]:
    whole = present.time_ms.mid or 1.0
    rows: list[ComponentTime] = []
    for component in dict.fromkeys(part.component for part in present.parts):
        parts = [part for part in present.parts if part.component == component]
        time = total(part.time_ms for part in parts)
        shapes = [part.shape for part in parts if part.kind != "bytes" and part.role == "forward"]
        tflops, least = _tflops(parts, time), any(part.unknown for part in parts)
        rows.append(
            ComponentTime(component, time, time.mid / whole, tflops, list(dict.fromkeys(shapes)), least)
        )
    return sorted(rows, key=lambda row: -row.frac)
