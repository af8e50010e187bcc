"""Two models, one of which has no shapes: those of the other are not told as the model's."""

from __future__ import annotations

from dataclasses import replace

from tests.accounting.test_model_dims import found, layer


def test_shapes_of_the_mlps_that_take_least_are_no_measure() -> None:
    """A compiled encoder beside an eager decoder (Segment Anything): the decoder was the headline."""

    def beside(us: int, *names: str) -> int | None:
        compiled = [replace(one, shape=None, ns=us) for one in layer(0) if one.component in names]
        return found([*compiled, *layer(1), *layer(2)]).hidden.value

    assert beside(900, "mlp.up", "mlp.down") is None
    assert beside(900, "mlp.up") is None
    assert beside(1, "mlp.up", "mlp.down") == 64  # little of it has no shapes
    # one fused kernel that has none in every layer hides no other model
    rows = [
        replace(one, shape=None, ns=900) if one.component == "mlp.up" else one for one in layer(0) + layer(1)
    ]
    assert found(rows).hidden.value == 64
