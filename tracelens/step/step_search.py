"""The search around an analysed step: which sizes can be searched from its trace, and what it came to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from tracelens.config.model_config import ModelConfig
from tracelens.results import Lack, ModelDims, SearchState, ShapePick, ShapeSearch
from tracelens.step.measured_step import MeasuredStep
from tracelens.step.search import Found, search
from tracelens.step.search_space import GRID, SEARCHED, SearchLimits, Space
from tracelens.step.shape_search import claim, front_of, none_faster, nothing_faster, other_heads, picks_of
from tracelens.step.waiting import gpu_work_note
from tracelens.step.whatif import StepModel

#: Lacks of a recording that hide sizes, the plainest first.
_HIDING = ("gpu-only", "no-shapes", "cuda-graph", "no-module-names", "compiled", "cut-off")
#: Sizes whose change moves the number of weights: it has to be known.
_WEIGHTS = ("hidden", "ffn", "layers", "kv_heads")
_HEADS = frozenset({"heads", "head_dim"})


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
        not_searched=closed,
        parameters_limit_frac=limits.parameters_frac,
        notes=[*_notes(measured, found), *found.notes],
    )


def _refused(step: StepModel, dims: ModelDims, lacks: Sequence[Lack]) -> str | None:
    """Why nothing can be searched at all, or None."""
    if step.step_ms is None:
        return "No shape was searched: no step time is known, so no share of a step can be given."
    if step.gpu.vendor == "amd":
        return "No shape was searched: predictions rest on measurements of NVIDIA GPUs."
    if not step.gpu.peak_tflops:
        return (
            "No shape was searched: the peaks of this GPU are not known, so no change can be"
            " predicted. To judge the step on another GPU: --gpu NAME."
        )
    if not any(step.now.get(name) for name in ("hidden", "heads", "ffn", "vocab")):
        why = dims.hidden.source
        return (
            f"No shape was searched: no size of a model is known ({why}).{_remedy(lacks)} A configuration can"
            " be searched without a trace: tracelens suggest config.json --gpu NAME."
        )
    return None


def _remedy(lacks: Sequence[Lack]) -> str:
    """How to record what is missing, as a sentence with a space before it; empty where nothing is known."""
    by_code = {lack.code: lack.remedy for lack in lacks}
    found = next((by_code[code] for code in _HIDING if code in by_code), "")
    return f" {found[:1].upper()}{found[1:]}." if found else ""


def _closed(
    measured: MeasuredStep, dims: ModelDims, limits: SearchLimits, lacks: Sequence[Lack]
) -> dict[str, str]:
    """The sizes that cannot be searched, each with the reason and what would help."""
    now = measured.step.now
    closed: dict[str, str] = {}
    for name in SEARCHED:
        if name in limits.free:
            why = _unknown(name, now, dims, lacks) or _unpredicted(name, measured, limits)
            if why is not None:
                closed[name] = why
    if _HEADS & set(closed):
        closed |= {name: closed[next(iter(_HEADS & set(closed)))] for name in sorted(_HEADS - set(closed))}
        if "hidden" in limits.free and now.heads and (now.heads * (now.head_dim or 0) == now.hidden):
            closed.setdefault("hidden", "heads × head_dim has to stay hidden, and the heads are not searched")
    return {name: closed[name] for name in SEARCHED if name in closed and name in limits.free}


def _unknown(name: str, now: ModelConfig, dims: ModelDims, lacks: Sequence[Lack]) -> str | None:
    """Why the trace does not say enough of a size, or None."""
    if now.get(name) is None:
        if name == "layers":
            return "how many layers there are is not known: tracelens suggest TRACE --layers N"
        if name in ("micro_batch", "sequence") and now.tokens:
            return f"the {now.tokens:,} tokens of a micro-batch are not told apart into sequences"
        source = getattr(dims, name).source
        return f"not known: {source}.{_remedy(lacks)}"
    if name == "hidden" and not (now.heads and now.head_dim):
        return f"heads × head_dim has to stay hidden, and the heads are not known.{_remedy(lacks)}"
    if name in _WEIGHTS and now.parameters is None:
        if now.layers is None:
            return (
                "the weights cannot be kept, for how many layers there are is not known:"
                " tracelens suggest TRACE --layers N"
            )
        sizes = ", ".join(one for one in ("heads", "head_dim", "ffn") if now.get(one) is None)
        return f"the weights cannot be kept: {sizes} not known.{_remedy(lacks)}"
    if name in ("micro_batch", "sequence") and now.experts:
        return "how many tokens each expert gets follows from the data"
    return None


def _unpredicted(name: str, measured: MeasuredStep, limits: SearchLimits) -> str | None:
    """Why the step with another value of a size has no prediction, or None. One change speaks for all."""
    then = next(_others(name, measured, limits), None)
    if then is None:
        return None
    why = measured.why_unknown(then)
    return None if why is None else f"its effect is not predicted: {why}"


def _others(name: str, measured: MeasuredStep, limits: SearchLimits) -> Iterator[ModelConfig]:
    """Shapes in which ``name`` is another, whatever they weigh."""
    now = measured.step.now
    if name == "ffn":
        yield replace(now, ffn=(now.ffn or 0) + GRID * (now.tensor_parallel or 1))
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
    closed: dict[str, str],
) -> tuple[SearchState, str]:
    """State and sentence."""
    if picks:
        return "found", claim(picks[0])
    if not searched:
        why = next(
            iter(closed.values()), "every size is fixed"
        )  # a reason with its remedy ends as a sentence
        return "could_not_run", f"No shape was searched: {why.removesuffix('.')}."
    if not found.tried:
        limit = f"±{100 * limits.parameters_frac:g}%"
        return "none", f"No other shape on the grid keeps the weights within {limit}."
    if step.busy_frac is not None and step.saving_of == "gpu_work":
        return "none", f"No shape is picked: {gpu_work_note(step.busy_frac)}."
    if closed or found.best_unsure is not None:
        return "none", f"No faster shape is sure: {none_faster(found, limits)}"
    return "good", nothing_faster(step.now, step.gpu.title, found, limits)


def _notes(measured: MeasuredStep, found: Found) -> list[str]:
    """What the best change, or the best that is not recommended, leaves open."""
    best = found.picks[0] if found.picks else found.best_unsure
    notes = list(measured.notes(best.then)) if best is not None else []
    if measured.memory(measured.step.now) is None:
        notes.append("memory is not estimated: a size of the model is not known")
    if measured.step.now.parameters is None:
        notes.append("the weights are not counted: a size of the model is not known")
    if any(call.seq_q is None for call in measured.step.work.attention):
        notes.append("attention runs on packed sequences, whose lengths no trace holds: its range is wide")
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
