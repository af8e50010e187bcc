"""Where a captured step begins and ends: what the kernels there say, and what they leave open."""

from __future__ import annotations

import numpy as np

from tracelens.attribution.replayed_ends import _closing, _opening, _update
from tracelens.words import COMPONENTS


def test_what_is_looked_up_and_added_before_the_first_norm_embeds() -> None:
    what = ["sorts", "looks up", "sorts", "looks up", "sums"]
    assert dict(_opening(what, 5)) == dict.fromkeys(range(1, 5), "embedding")
    assert dict(_opening(["sorts", "sums"], 2)) == {}  # nothing is read from a table
    assert dict(_opening(["looks up", ""], 2)) == {}  # a part of another kind is among it


def test_gradients_of_a_table_end_the_backward() -> None:
    assert dict(_closing(["", "sorts", "table", "sums"], 1, 4)) == dict.fromkeys((1, 2, 3), "embedding")
    assert dict(_closing(["", "sorts", "sums"], 1, 3)) == {}
    assert dict(_closing(["", "table", ""], 1, 3)) == {}


def test_norms_of_gradients_to_their_scaling_clip_and_the_rest_updates() -> None:
    what = ["", "norms", "norms", "moves", "scales", "updates", "updates"]
    unknown = COMPONENTS.index("unattributed")
    component = np.full(len(what), unknown, np.int32)
    clips = dict.fromkeys((1, 2, 3, 4), "grad_clip")
    assert dict(_update(what, component, 1)) == clips  # lists alone prove no optimizer
    component[6] = COMPONENTS.index("optimizer")
    assert dict(_update(what, component, 1)) == clips | dict.fromkeys((5, 6), "optimizer")
    assert dict(_update(["", "norms", "moves"], component[:3], 1)) == {}  # measured, and nothing clipped
    steps = ["", "updates", "steps"]
    assert dict(_update(steps, component[:3], 1)) == dict.fromkeys((1, 2), "optimizer")
