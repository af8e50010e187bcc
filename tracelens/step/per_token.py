"""Time per token: what a change saves when it also changes how many tokens a micro-batch holds.

A step with twice the tokens takes longer and is no worse for it. What counts is the time for the tokens of
the present step: saving = time now - time then / (1 + growth). Only what is predicted to change enters;
the rest of the step (optimizer, communication, idle time) is taken to follow the tokens, so that none of it
passes for a saving of the shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tracelens.results import WhatIf


def growth_frac(change: Mapping[str, Sequence[int | str | None]]) -> float:
    """Growth of the tokens that are worth something, -1 to any.

    Samples are: micro_batch and tokens count as they are. A longer sequence is padding and counts as
    nothing; a shorter one loses tokens.

    >>> growth_frac({"micro_batch": [8, 9]}), growth_frac({"sequence": [1000, 1024]})
    (0.125, 0.0)
    >>> growth_frac({"sequence": [1025, 1000], "ffn": [10922, 10944]})
    -0.024390243902439046
    """
    ratio = 1.0
    for name in ("micro_batch", "tokens", "sequence"):
        now, then = change.get(name, (None, None))
        if isinstance(now, int) and isinstance(then, int) and now and then:
            ratio *= then / now if name != "sequence" else min(1.0, then / now)
    return ratio - 1.0


def affected_ms(found: WhatIf) -> float:
    """Time per step of everything that the change moves, as measured."""
    return sum(row.time_ms for row in found.rows) + sum(one.time_ms for one in found.rest)


def per_token(found: WhatIf) -> WhatIf:
    """The same with its saving per token, in ms of the present step; unchanged where the tokens stay."""
    growth = growth_frac(found.change)
    if growth == 0.0:
        return found
    moved = affected_ms(found)
    saving = found.saving_ms.each(lambda value: (value + moved * growth) / (1.0 + growth))
    return replace(found, saving_ms=saving, saving_frac=saving.over(found.step_ms))


def moved_then_ms(found: WhatIf) -> float:
    """Time of what moves in one changed step (``found`` as ``per_token`` gives it)."""
    return (affected_ms(found) - (found.saving_ms.mid or 0.0)) * (1.0 + growth_frac(found.change))
