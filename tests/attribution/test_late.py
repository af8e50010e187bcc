"""Gated MLPs that stand by themselves in a compiled step, and the gradients of what local evidence names."""

from __future__ import annotations

import pytest

from tests.attribution.test_compiled_gradients import _core, _forward, _fused, _gemm, _run
from tracelens.attribution.structure.late import label_late
from tracelens.attribution.structure.local import label_local
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import Kind

#: Pairs of residues (ESMFold 2 of transformers, under torch.compile): rows, width, and width inside.
ROWS, WIDTH, INNER = 8192, 256, 1024
BENT = _fused("poi_fused__unsafe_view_mul_silu_split", (ROWS, 2 * INNER), (1, 64, 128, INNER))
UNBENT = _fused("poi_fused__unsafe_view_cat_mul_silu_silu_backward_split_view", (ROWS, INNER), (ROWS, INNER))


def _mlp(both: int = 2 * INNER, bends: Kind = BENT, back: int = WIDTH) -> list[Kind]:
    return [_gemm(ROWS, both, WIDTH), bends, _gemm(ROWS, back, INNER)]


def _named(*kinds: Kind) -> Run:
    """A forward of one layer of attention with these behind it, local evidence read."""
    run = _run("forward", _gemm(256, 192, 64), _core(256, 64), _gemm(256, 64, 64), *kinds)
    run.cores = _forward().cores
    label_local(run, attends=True)
    return run


@pytest.mark.parametrize(
    ("kinds", "parts"),
    [
        (_mlp(), ["mlp.up", "mlp.activation", "mlp.down"]),
        # back to another width, halves that are no wider than what they are of, three of them, none bent
        (_mlp(back=512), ["", "", ""]),
        ([_gemm(ROWS, 2048, 1024), BENT, _gemm(ROWS, 1024, 1024)], ["", "", ""]),
        (_mlp(both=3 * INNER), ["", "", ""]),
        (_mlp(bends=_fused("poi_fused_add_view", (ROWS, INNER))), ["", "", ""]),
    ],
)
def test_a_layer_up_that_makes_its_own_gate(kinds: list[Kind], parts: list[str]) -> None:
    run = _named(*kinds)
    assert [run.labels[at].component if at in run.labels else "" for at in range(3, 6)] == parts
    assert all(run.labels[at].evidence == "local" for at in range(3, 6) if at in run.labels)


def _late(forward: Run, *kinds: Kind) -> list[tuple[str, str | None]]:
    run = _run("backward", *kinds)
    run.labels[0] = Label("unattributed")  # a gradient of a layer without a name, as far as was known
    label_late(run, forward)
    found = [run.labels.get(at, Label("")) for at in range(len(kinds))]
    return [(one.component, one.role) for one in found]


GRADIENTS = [
    _gemm(WIDTH, INNER, ROWS),
    _gemm(ROWS, INNER, WIDTH),
    UNBENT,
    _gemm(ROWS, WIDTH, 2 * INNER),
    _gemm(2 * INNER, WIDTH, ROWS),
]


def test_its_gradients_are_named_by_their_sizes() -> None:
    assert _late(_named(*_mlp()), *GRADIENTS) == [
        ("mlp.down", "wgrad"),
        ("mlp.down", "dgrad"),
        ("mlp.activation", None),
        ("mlp.up", "dgrad"),
        ("mlp.up", "wgrad"),
    ]


def test_a_size_that_another_product_has_too_is_left_open() -> None:
    forward = _named(*_mlp(), _gemm(ROWS, 2 * INNER, WIDTH))
    assert _late(forward, *GRADIENTS[3:]) == [("unattributed", None), ("", None)]


def test_what_the_order_of_the_layers_named_is_left_to_it() -> None:
    assert _late(_forward(), _gemm(256, 192, 64), _gemm(256, 64, 256)) == [("unattributed", None), ("", None)]
