"""From the change that a finding names to the whole model before and after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracelens.config.changes import canonical
from tracelens.config.model_config import ModelConfig, changed, model_config_of
from tracelens.errors import UsageError
from tracelens.rules.engine.facts import StepFacts

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
