"""Whether state-space mixers stand in layers as attention does: one, and one MLP, each."""

from __future__ import annotations

from tracelens.attribution import Attribution, Calls
from tracelens.words import COMPONENTS, PHASES

_FEWEST = 2  # layers whose mixers have as many GEMMs
_ATTENDS = ("attention.core", "attention.scores")


def mixers_stand_alone(attribution: Attribution, calls: Calls) -> bool:
    """Do MLPs not tell how many layers there are: is a mixer a layer of its own (Nemotron-H, arXiv
    2504.03624), or are there several to an MLP (Zamba2, arXiv 2411.15242)?"""
    layers = _layers(attribution, calls)
    if not any(spaces for spaces, _, _ in layers):
        return False
    ends_in_mlp = layers[-1][2]
    sizes = [spaces for spaces, _, _ in layers if spaces]
    beside = {attends for spaces, attends, _ in layers if spaces}
    return not (ends_in_mlp and len(sizes) >= _FEWEST and len({*sizes}) == len(beside) == 1)


def _layers(attribution: Attribution, calls: Calls) -> list[tuple[int, bool, bool]]:
    """Of the forward of one step, up to each MLP: GEMMs of mixers, is there attention, is there the MLP."""
    found, spaces, attends, last = [], 0, False, -1
    steps = attribution.step[calls.main]
    first = steps[steps >= 0].min() if (steps >= 0).any() else -1
    for kernel in calls.main[steps == first].tolist():
        component, layer = COMPONENTS[attribution.component[kernel]], int(attribution.layer[kernel])
        if PHASES[attribution.phase[kernel]] != "forward":
            continue
        spaces += component.startswith("ssm.")
        attends |= component in _ATTENDS
        if component.startswith(("mlp.", "moe.")) and layer != last:
            found.append((spaces, attends, True))
            spaces, attends, last = 0, False, layer
    return [*found, (spaces, attends, False)] if spaces or attends or not found else found
