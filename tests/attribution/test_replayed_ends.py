"""Where a captured step begins and ends: what the kernels there say, and what they leave open."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.attribution.rows import Row, attributed, written
from tests.trace.tools import op
from tracelens.attribution.replayed_ends import _closing, _opening, _update
from tracelens.words import COMPONENTS, PHASES


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


def test_lists_behind_a_replayed_backward_are_no_forward(tmp_path: Path) -> None:
    """SGD's ``_foreach_add_`` in a graph of the whole step, whose one launch says no phase of its parts."""
    gemm, bends = "cutlass_80_tensorop_s1688gemm_64x64_32x6_{}_align4", "softmax_warp_{}"
    rows = [
        Row("", "", gemm.format("tn")),
        Row("", "", bends.format("forward")),
        Row("", "", bends.format("backward")),
        Row("", "", gemm.format("nt")),
        Row("", "", "multi_tensor_apply_kernel<BinaryOpListAlphaFunctor<float, 2, 2, 0> >"),
    ]
    step = {"ph": "X", "cat": "user_annotation", "name": "forward", "pid": 9, "tid": 1, "ts": 0, "dur": 900}
    _, _, found = attributed(tmp_path, [step, *written(rows, graph=True)])
    phases = [PHASES[code] for code in found.phase.tolist()]
    assert phases[:3] == ["forward", "forward", "backward"] and phases[4] == "optimizer"


def test_that_a_function_is_no_part_of_a_model_says_nothing_of_the_graph_in_it(tmp_path: Path) -> None:
    """``torch.cuda.make_graphed_callables`` of a small network: what its kernels' names say still holds."""
    module = {"ph": "X", "cat": "user_annotation", "name": "mlp", "pid": 9, "tid": 1, "ts": 0, "dur": 900}
    around = op("Graphed", ts=0, dur=800)
    rows = [
        Row("", "", "elementwise_kernel"),
        Row("", "", "fused_dropout_kernel_vec<float, float, unsigned>"),
    ]
    _, _, found = attributed(tmp_path, [module, around, *written(rows, graph=True)])
    said = [COMPONENTS[code] for code in found.component.tolist()]
    assert said == ["unattributed", "dropout"]
