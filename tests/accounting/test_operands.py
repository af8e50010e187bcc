"""What operators beside the products show of a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trace.tools import document, op, read
from tracelens.accounting.operands import operands_of


@pytest.mark.parametrize(
    ("name", "dims", "losses"),
    [
        ("aten::_log_softmax", [[32, 10], [], []], {10}),
        ("aten::nll_loss2d_forward", [[4, 150, 16, 16], [4, 16, 16]], {150, 16}),
        ("aten::binary_cross_entropy_with_logits", [[8, 80], [8, 80]], {80}),
        ("aten::mse_loss", [[8, 96, 7], [8, 96, 7]], set()),
        ("aten::smooth_l1_loss", [[8, 4], [8, 4]], set()),
        ("aten::mm", [[8, 4], [4, 8]], None),
    ],
)
def test_what_losses_choose_from(
    tmp_path: Path, name: str, dims: list[list[int]], losses: set[int] | None
) -> None:
    events = [op(name, ts=1, dur=10, **{"Input Dims": dims})]
    found = operands_of(read(tmp_path, document(events)))
    assert found.losses == losses
    assert found.labels == (losses if "binary" in name else set())


def test_weights_are_what_gets_a_gradient(tmp_path: Path) -> None:
    gives = [
        op("torch::autograd::AccumulateGrad", ts=at, dur=1, **{"Input Dims": [dims]})
        for at, dims in ((1, [10, 64]), (3, [64]), (5, [3, 2, 2]))
    ]
    assert operands_of(read(tmp_path, document(gives))).weights == {(10, 64)}


def test_the_backward_of_a_lookup_is_given_no_table(tmp_path: Path) -> None:
    """Labels of 16 pictures are looked up in a table of 1000 classes: nothing has a row for each of 16."""
    reads = op("aten::embedding", ts=1, dur=1, **{"Input Dims": [[1001, 64], [16]]})
    gives = op("aten::embedding_dense_backward", ts=3, dur=1, **{"Input Dims": [[16, 64], [16]]})
    assert operands_of(read(tmp_path, document([reads, gives]))).tables == {(1001, 64)}
