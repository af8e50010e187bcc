"""The search around an analysed step: which sizes can be searched from its trace, and what it came to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from tracelens.config.model_config import ModelConfig
from tracelens.results import Lack, ModelDims, SearchState, ShapePick, ShapeSearch
from tracelens.step.alignment import off_grid
from tracelens.step.measured_step import MeasuredStep
from tracelens.step.search import Found, search
from tracelens.step.search_space import GRID, SEARCHED, SearchLimits, Space, kept_degree
from tracelens.step.shape_search import front_of, none_faster, nothing_faster, other_heads, picks_of
from tracelens.step.traced_step import StepModel
from tracelens.step.words import search as words
from tracelens.step.words.simulation import gpu_work_note

#: Lacks of a recording that hide sizes, the plainest first.
_HIDING = ("gpu-only", "no-shapes", "cuda-graph", "no-module-names", "compiled", "cut-off")
#: Sizes whose change moves the number of weights: it has to be known.
_WEIGHTS = ("hidden", "ffn", "layers", "kv_heads")
_HEADS = frozenset({"heads", "head_dim"})
#: Why a size is not searched, and how to record what is missing ("": not known); None where that is not it.
_Why = tuple[str, str | None]


def search_step(
    step: StepModel, dims: ModelDims, *, limits: SearchLimits | None = None, lacks: Sequence[Lack] = ()
) -> ShapeSearch:
    """Search for a faster shape around ``step``; ``lacks`` say what its recording does not hold.

    A size that the trace does not give, or whose effect cannot be predicted, is not searched, with the
    reason. UsageError where the limits make no sense.
    """
    limits = (limits or SearchLimits()).checked()
    refused = _refused(step, dims, lacks)
    if refused is not None:
        return ShapeSearch("could_not_run", refused, parameters_limit_frac=limits.parameters_frac)
    measured = MeasuredStep(step)
    closed = _closed(measured, dims, limits, lacks)
    found = search(measured, step.now, limits, fixed=closed)
    picks, unsure = picks_of(measured, found, partial(_diff, step.now))
    waits = step.saving_of == "gpu_work"  # then nothing is known of the time per token
    if waits:
        picks, unsure = [], None
    searched = [name for name in SEARCHED if name in limits.free - set(closed)]
    state, verdict = _verdict(step, found, limits, picks, searched, closed)
    return ShapeSearch(
        state=state,
        verdict=verdict,
        picks=picks,
        unsure=unsure,
        heads=[] if waits or "heads" in closed else other_heads(measured, step.now, limits),
        front=[] if waits else front_of(step.now, found),
        tried=found.tried,
        searched=searched,
        not_searched={name: words.with_remedy(*why) for name, why in closed.items()},
        parameters_limit_frac=limits.parameters_frac,
        notes=[*_notes(measured, found), *found.notes],
        kept_degree=1 if limits.any_heads or "heads" in closed else kept_degree(step.now),
    )


def _refused(step: StepModel, dims: ModelDims, lacks: Sequence[Lack]) -> str | None:
    """Why nothing can be searched at all, or None."""
    if step.step_ms is None:
        return words.NO_STEP_TIME
    if step.gpu.vendor == "amd":
        return words.NO_MEASUREMENTS
    if not step.gpu.peak_tflops:
        return words.NO_PEAKS
    if not any(step.now.get(name) for name in ("hidden", "heads", "ffn", "vocab")):
        return words.no_sizes(dims.hidden.source, _remedy(lacks))
    return None


def _remedy(lacks: Sequence[Lack]) -> str:
    """How to record what is missing; empty where nothing is known."""
    by_code = {lack.code: lack.remedy for lack in lacks}
    return next((by_code[code] for code in _HIDING if code in by_code), "")


def _closed(
    measured: MeasuredStep, dims: ModelDims, limits: SearchLimits, lacks: Sequence[Lack]
) -> dict[str, _Why]:
    """The sizes that cannot be searched."""
    now = measured.step.now
    closed: dict[str, _Why] = {}
    for name in SEARCHED:
        if name in limits.free:
            why = _unknown(name, now, dims, lacks) or _unpredicted(name, measured, limits)
            if why is not None:
                closed[name] = why
    if _HEADS & set(closed):
        closed |= {name: closed[next(iter(_HEADS & set(closed)))] for name in sorted(_HEADS - set(closed))}
        if "hidden" in limits.free and now.heads and (now.heads * (now.head_dim or 0) == now.hidden):
            closed.setdefault("hidden", (words.HEADS_FIXED, None))
    return {name: closed[name] for name in SEARCHED if name in closed and name in limits.free}


def _unknown(name: str, now: ModelConfig, dims: ModelDims, lacks: Sequence[Lack]) -> _Why | None:
    """Why the trace does not say enough of a size, or None."""
    if now.get(name) is None:
        if name == "layers":
            return words.NO_LAYERS, None
        if name in ("micro_batch", "sequence") and now.tokens:
            return words.sequences_unknown(now.tokens), None
        return words.not_known(getattr(dims, name).source), _remedy(lacks)
    if name == "hidden" and not (now.heads and now.head_dim):
        return words.HEADS_UNKNOWN, _remedy(lacks)
    if name in _WEIGHTS and now.parameters is None:
        if now.layers is None:
            return words.NO_WEIGHTS, None
        sizes = [one for one in ("heads", "head_dim", "ffn") if now.get(one) is None]
        return words.weights_unknown(sizes), _remedy(lacks)
    if name in ("micro_batch", "sequence") and now.experts:
        return words.OF_DATA, None
    return None


def _unpredicted(name: str, measured: MeasuredStep, limits: SearchLimits) -> _Why | None:
    """Why the step with another value of a size has no prediction, or None. One change speaks for all."""
    then = next(_others(name, measured, limits), None)
    if then is None:
        return None
    why = measured.why_unknown(then)
    return None if why is None else (why, None)


def _others(name: str, measured: MeasuredStep, limits: SearchLimits) -> Iterator[ModelConfig]:
    """Shapes in which ``name`` is another, whatever they weigh."""
    now = measured.step.now
    if name == "ffn":
        yield replace(now, ffn=(now.ffn or 0) + GRID * now.tp)
        return
    alone = replace(limits, free=frozenset({name} | (_HEADS if name == "hidden" else frozenset())))
    space = Space(now, alone, measured.vocab_ranks(now))
    vocabs = (replace(now, vocab=vocab) for vocab in space.vocabs())
    # Head counts go with head dimensions.
    both = Space(now, replace(limits, free=alone.free | _HEADS)) if name in _HEADS else space
    for then in chain(vocabs, both.bases()):
        if then.get(name) != now.get(name):
            yield then


def _verdict(
    step: StepModel,
    found: Found,
    limits: SearchLimits,
    picks: Sequence[ShapePick],
    searched: Sequence[str],
    closed: dict[str, _Why],
) -> tuple[SearchState, str]:
    """State and sentence."""
    if picks:
        return "found", words.claim(picks[0].title, picks[0].saving_frac)
    if not searched or (closed and not found.tried):
        # hidden waits for the heads, whose reason is the one to tell
        own = [name for name, (why, _) in closed.items() if why != words.HEADS_FIXED] or [*closed]
        why = closed[own[0]] if own else (words.ALL_FIXED, None)
        if searched:
            tried = words.none_tried(searched, limits.parameters_frac, own[0], words.with_remedy(*why))
            return "could_not_run", tried
        return "could_not_run", words.none_searched(*why)
    if not found.tried:
        return "none", words.none_on_grid(limits.parameters_frac)
    if step.busy_frac is not None and step.saving_of == "gpu_work":
        return "none", words.none_picked(gpu_work_note(step.busy_frac))
    if closed or found.best_unsure is not None:
        return "none", words.none_sure(none_faster(found, limits))
    rows = [product.row for product in step.work.products if off_grid(product.row)]
    parts = list(dict.fromkeys(row.component for row in rows))
    return "good", nothing_faster(step.now, step.gpu.title, found, limits, off_grid=parts)


def _notes(measured: MeasuredStep, found: Found) -> list[str]:
    """What the best change, or the best that is not recommended, leaves open."""
    best = [*found.picks, *([found.best_unsure.change] if found.best_unsure is not None else [])]
    notes = list(measured.notes(best[0].then)) if best else []
    if measured.memory(measured.step.now) is None:
        notes.append(words.NO_MEMORY)
    if measured.step.now.parameters is None:
        notes.append(words.NOT_COUNTED)
    if any(call.seq_q is None for call in measured.step.work.attention):
        notes.append(words.PACKED)
    return notes


def _diff(now: ModelConfig, then: ModelConfig) -> list[str]:
    """Lines to paste; there is no configuration whose keys could be used. What follows is left out."""
    lines: list[str] = []
    for name in SEARCHED:
        before, after = now.get(name), then.get(name)
        follows = (name == "head_dim" and now.heads != then.heads and _tied(then)) or (
            name == "kv_heads" and after == then.heads and before == now.heads
        )
        if before != after and not follows:
            lines += [f"- {name} = {before}", f"+ {name} = {after}"]
    return lines


def _tied(x: ModelConfig) -> bool:
    return x.heads is not None and x.head_dim is not None and x.heads * x.head_dim == x.hidden
