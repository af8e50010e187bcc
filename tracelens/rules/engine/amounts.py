"""How much a change adds: weights, operations, memory, each with its formula; the models before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracelens.config.changes import canonical
from tracelens.config.model_config import ModelConfig, changed, model_config_of
from tracelens.errors import InputError, UsageError
from tracelens.numbers import delta, percent, sig, signed_bytes
from tracelens.results import Amount, GemmRow, MemoryEffect, WhatIf
from tracelens.rules.engine.facts import StepFacts
from tracelens.step.activations import kept_of_trace
from tracelens.step.whatif import what_if
from tracelens.sums import summed

#: Bytes a weight takes in training with Adam: in mixed precision 2 + 2 for weight and gradient and 12 for the
#: fp32 copy and two moments (ZeRO, arXiv 1910.02054); in fp32 4 + 4 + 8.
TRAINING_BYTES = 16
_WIDTH = {"fp32": 4, "tf32": 4, "fp64": 8, "fp8": 1}
#: Sizes that no weight of the whole model has.
_SAME_WEIGHTS = frozenset({"micro_batch", "sequence", "tokens", "tensor_parallel"})


def parameters(sizes: ChangedSizes, *, counted: int | None) -> Amount:
    """Weights in matrices; ``counted`` is the rule's own count, for what the sizes do not tell."""
    now, then = sizes.now, sizes.then
    before = now.parameters
    if counted is None and not sizes.names:
        return Amount(0, 0.0, "no size of the model changes")
    if counted is None and set(sizes.names) <= _SAME_WEIGHTS:
        return Amount(0, 0.0, "the same weights")
    after = then.parameters if then is not None else None
    more = after - before if before is not None and after is not None else counted
    if more is None:
        return Amount(None, None, f"not known: {_missing(sizes)}")
    frac = more / before if before else None
    if not more:
        return Amount(0, 0.0, "as many weights as now")
    how = f"{delta(more)} weights in matrices" + (f", of {before:,} now" if before else "")
    if "vocab" in sizes.names and now.tied is None:
        how += "; twice that where embedding and output matrix are not tied"
    ranks = now.tp
    if "vocab" in sizes.names and ranks > 1 and now.vocab_split is None:
        how += f"; {ranks} times that where each rank holds a part of the vocabulary"
    return Amount(more, frac, how)


def _missing(sizes: ChangedSizes) -> str:
    if sizes.why:
        return sizes.why
    needed = ("hidden", "heads", "head_dim", "ffn", "layers")
    lacks = [name for name in needed if sizes.now.get(name) is None]
    return f"the trace does not show {', '.join(lacks)}" if lacks else "the model's other sizes are not known"


def operations(
    facts: StepFacts,
    change: Change,
    sizes: ChangedSizes,
    weights: Amount,
    *,
    of_rows: float | None,
    rows: Sequence[GemmRow],
) -> Amount:
    """Operations of the step; ``of_rows`` is the growth of those of ``rows`` as the rule counted it."""
    if _spreads(change):
        return Amount(None, None, "not known: another share of the step's operations falls to this GPU")
    total = _flops(facts.gemms)
    found = _simulated(facts, sizes)
    frac = found.flops_frac if found is not None else None
    source = "the step simulated with the change"
    part = _flops(rows)
    if frac is None and of_rows and not (total and part):
        return Amount(None, None, "not known: the sizes of these GEMMs are not recorded")
    if frac is None and of_rows is not None and total and part:
        word = "more" if of_rows >= 0 else "less"
        frac = of_rows * part / total
        source = f"{percent(abs(of_rows))} {word} in GEMMs that do {percent(part / total)} of the work"
    if frac is None and not sizes.names and weights.delta is None:
        return Amount(None, None, weights.how)
    if frac is None and not sizes.names:
        return Amount(0.0, 0.0, "the same operations")
    if frac is None:
        return Amount(
            None, None, f"not known: {sizes.why or 'no formula is known for the GEMMs that change'}"
        )
    if not frac:
        return Amount(0.0, 0.0, "as many operations as now")
    how = f"{source}; {sig(total / 1e12)} TFLOP a step now" if total else source
    if set(sizes.names) & {"micro_batch", "sequence"}:
        how += "; the step has other tokens"
    return Amount(frac * total if total else None, frac, how)


def _simulated(facts: StepFacts, sizes: ChangedSizes) -> WhatIf | None:
    """The step with the change, where it can be simulated."""
    if facts.step is None or sizes.then is None:
        return None
    try:
        return what_if(facts.step, {name: sizes.then.get(name) or 0 for name in sizes.names})
    except UsageError:
        return None


def _spreads(change: Change) -> bool:
    """Does the change spread the model over the GPUs in another way?"""
    return any(word in name.lower() for name in change for word in ("parallel", "pipeline", "stage"))


def _flops(rows: Sequence[GemmRow]) -> float | None:
    known = [row.calls_per_step * row.flops for row in rows if row.flops is not None]
    return sum(known) if known else None


def memory(facts: StepFacts, change: Change, sizes: ChangedSizes, weights: Amount) -> MemoryEffect:
    """Bytes of one GPU: weights with their states, and the activations kept for the backward."""
    if not sizes.names:
        return _unsized(change, weights, trains=not facts.only_runs)
    states, states_how = _states(facts, sizes, weights)
    kept, kept_how = _activations(facts, sizes)
    whole = states + kept if states is not None and kept is not None else None
    return MemoryEffect(whole, states, kept, f"{states_how}; {kept_how}")


def _unsized(change: Change, weights: Amount, *, trains: bool) -> MemoryEffect:
    """A change that is none of a size of the model."""
    if _spreads(change):
        return MemoryEffect(None, None, None, "not known: each GPU holds another share of the model")
    if weights.delta is None:
        return MemoryEffect(None, None, None, weights.how)
    said = " ".join(f"{name} {pair[-1]}" for name, pair in change.items()).lower()
    if any(word in said for word in ("dtype", "bf16", "fp16", "fp8")):
        how = "weights take 4 B under autocast as in fp32, fewer where they are stored in fewer bits"
        if trains:
            how = f"weights with their states take {TRAINING_BYTES} B in mixed precision as in fp32 (Adam)"
        how += "; activations take another width, and how many are kept is not known"
        return MemoryEffect(None, 0.0 if trains else None, None, how)
    return MemoryEffect(None, 0.0, None, "weights and their states as now; temporary tensors are not known")


def _states(facts: StepFacts, sizes: ChangedSizes, weights: Amount) -> tuple[float | None, str]:
    width = _width(facts)
    each = TRAINING_BYTES if facts.trains else width
    what = "weight, gradient, fp32 copy and Adam's two moments" if facts.trains else "weights"
    now, then = sizes.now, sizes.then
    before = now.rank_parameters
    after = then.rank_parameters if then is not None else None
    alone = now.model_ranks == 1 and now.ep == 1
    if before is not None and after is not None:
        moved = after - before
    elif weights.delta is not None and (alone or not weights.delta):
        moved = weights.delta
    else:
        return None, f"{what}: not known ({_missing(sizes)})"
    if not moved:
        return 0.0, f"{what}: as now"
    found = each * moved
    text = f"{each} B × {moved:,.0f}"
    if before is not None and after is not None and moved != weights.delta:
        text += f" weights of one GPU ({before:,.0f} → {after:,.0f})"
    if then is not None and then.tensor_parallel != now.tensor_parallel and now.vocab_split is None:
        text += ", the vocabulary whole on every rank,"
    return found, f"{text} = {signed_bytes(found)} ({what}){_shards(facts)}"


def _shards(facts: StepFacts) -> str:
    """Where data-parallel ranks share the states, each holds less."""
    purposes = {"FSDP parameter gather", "FSDP gradient scatter", "optimizer shards"}
    sizes = {row.group_size for row in facts.communication if row.purpose in purposes and row.group_size}
    if not sizes:
        return ""
    return f", less on each of the {max(sizes)} ranks that share them"


def _activations(facts: StepFacts, sizes: ChangedSizes) -> tuple[float | None, str]:
    if not facts.trains:
        return 0.0, "activations: none are kept without a backward"
    if any(row.phase == "recompute" for row in facts.gemms):
        return None, "activations: not known, a part of them is recomputed"
    if sizes.then is None:
        return None, f"activations: not known ({_missing(sizes)})"
    if sizes.now.experts:
        return None, "activations: not known, the experts of a token are not in the trace"
    now, then = sizes.now, sizes.then
    try:
        before, after = kept_of_trace(now), kept_of_trace(then)
    except InputError as error:
        return None, f"activations: not known ({str(error).split(':')[0]})"
    more = (after - before) * _width(facts) / 2
    if not more:
        return 0.0, "activations: as now"
    how = f"activations {signed_bytes(more)} (arXiv 2205.05198, fused attention, no recompute)"
    stages = max(now.pp, then.pp)
    if stages > 1:
        how += f" of one micro-batch; with 1F1B the first of {stages} stages keeps {stages} at once"
    return more, how


def _width(facts: StepFacts) -> int:
    """Bytes of an element of what most product time computes with."""
    times = summed((row.dtype, row.time_ms_per_step) for row in facts.gemms)
    most = max(times, key=lambda dtype: times[dtype], default=None)
    return max(2, _WIDTH.get(most or "", 2))


#: Sizes that weights, operations and memory are worked out from.
_SIZES = frozenset({
    "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "layers", "experts", "sequence", "micro_batch",
    "tokens", "tensor_parallel",
})  # fmt: skip

Change = Mapping[str, Sequence[int | float | str]]


@dataclass(frozen=True, slots=True)
class ChangedSizes:
    """Hyper-parameters of the whole model; ``then`` None where the change is none of a size that is known."""

    now: ModelConfig
    then: ModelConfig | None
    names: tuple[str, ...]  # the sizes that the change names, in our spelling
    why: str = ""  # why ``then`` is not known


def size_name(name: str) -> str | None:
    """Our name of a model's size, or None for a parameter that is none."""
    try:
        found = canonical(name)
    except UsageError:
        return None
    return found if found in _SIZES else None


def sizes_of(facts: StepFacts, change: Change, simulated: Mapping[str, int] | None = None) -> ChangedSizes:
    """The model before and after; ``simulated`` is the change of the whole model where the rule gave it.

    A change names what one rank holds where ranks share a layer; it is scaled to the whole model here. A
    simulation of sizes that the change does not name stands for something else (a part of the vocabulary
    on each rank) and is no change of the model.
    """
    now = facts.step.now if facts.step is not None else model_config_of(facts.model)
    names = tuple(dict.fromkeys(ours for name in change if (ours := size_name(name)) is not None))
    if not names:
        return ChangedSizes(now, None, ())
    goals = dict(simulated) if simulated and simulated.keys() <= set(names) else _goals(now, change)
    if isinstance(goals, str):
        return ChangedSizes(now, None, names, goals)
    try:
        return ChangedSizes(now, changed(now, goals), names)
    except UsageError as error:
        return ChangedSizes(now, None, names, error.cause)


def _goals(now: ModelConfig, change: Change) -> dict[str, int] | str:
    """The sizes to come, of the whole model."""
    goals: dict[str, int] = {}
    ranks = now.tp
    for name, pair in change.items():
        ours = size_name(name)
        if ours is None:
            continue
        before, after = pair[0], pair[-1]
        if not isinstance(before, int) or not isinstance(after, int):
            return f"{ours} is given in words"
        known = now.get(ours)
        if known is None:
            return f"the trace does not show {ours} of the whole model"
        if before not in (known, known / ranks):
            return f"{before} is not the {ours} of the whole model ({known})"
        goals[ours] = after if before == known else after * ranks
    return goals
