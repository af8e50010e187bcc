"""What people write out has the parts of what it is written for: linear layers, softmax, loss."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.attribution.rows import Row, attributed, open_rows, verdict, written
from tests.trace.tools import op
from tracelens.words import COMPONENTS

TOKENS, WIDTH, INNER, VOCAB = 256, 512, 1344, 8192


def _work(right: str, name: str, *dims: list[int]) -> Row:
    return Row(right, f"aten::{name}", f"void at::native::{name}_kernel", dims, us=10)


def _rows(of: list[int]) -> list[int]:
    return [*of[:-1], 1]


def _weighed(right: str, of: list[int], *ends: str) -> list[Row]:
    """The largest taken away, ``exp``, the sum of it, and what is done with that."""
    first = [_work(right, "amax", of), _work(right, "sub", of, _rows(of))]
    last = [_work(right, name, *((of,) if name == "div" else ()), _rows(of)) for name in ends]
    return [*first, _work(right, "exp", of), _work(right, "sum", of), *last]


@dataclass
class Course:
    """A course's model: every product an einsum, softmax and loss by their parts."""

    batch: int
    heads: int

    @property
    def stream(self) -> list[int]:
        return [self.batch, TOKENS, WIDTH]

    @property
    def scores(self) -> list[int]:
        return [self.batch, self.heads, TOKENS, TOKENS]

    def linear(self, right: str, wide: int, deep: int) -> Row:
        rows = self.batch * TOKENS
        return Row(right, "aten::bmm", "nvjet_tst_128x256", ([1, rows, deep], [1, deep, wide]), us=100)

    def between(self, right: str, wide: int, deep: int) -> Row:
        batch = self.batch * self.heads
        sizes = [batch, TOKENS, deep], [batch, deep, wide]
        return Row(right, "aten::bmm", "nvjet_tst_64x64", sizes, us=50)

    def norm(self) -> list[Row]:
        of = self.stream
        names = ("pow", of), ("mean", of), ("add", _rows(of)), ("rsqrt", _rows(of))
        scaled = [_work("norm", "mul", of, _rows(of)), _work("norm", "mul", of, [WIDTH])]
        return [*(_work("norm", *one) for one in names), *scaled]

    def layer(self) -> list[Row]:
        inner, head = [self.batch, TOKENS, INNER], WIDTH // self.heads
        return [
            *self.norm(),
            *(3 * [self.linear("attention.qkv", WIDTH, WIDTH)]),
            self.between("attention.scores", TOKENS, head),
            *_weighed("attention.softmax attention.scores", self.scores, "div"),
            self.between("attention.values", head, TOKENS),
            self.linear("attention.output", WIDTH, WIDTH),
            _work("residual", "add", self.stream, self.stream),
            *self.norm(),
            self.linear("mlp.gate", INNER, WIDTH),
            _work("mlp.activation", "sigmoid", inner),
            _work("mlp.activation", "mul", inner, inner),
            self.linear("mlp.up", INNER, WIDTH),
            _work("mlp.activation", "mul", inner, inner),
            self.linear("mlp.down", WIDTH, INNER),
            _work("residual", "add", self.stream, self.stream),
        ]

    def head(self) -> list[Row]:
        logits = [self.batch, TOKENS, VOCAB]
        loss = [*_weighed("loss", logits, "log", "sub"), _work("loss", "gather", logits, _rows(logits))]
        return [*self.norm(), self.linear("logits", VOCAB, WIDTH), *loss]

    def events(self, rows: list[Row]) -> list[dict[str, Any]]:
        """With the einsum around each batched product: of a matrix, or of two batches of heads."""
        around = []
        for at, row in enumerate(rows):
            if row.op == "aten::bmm":
                deep, wide = row.dims[1][1:]  # type: ignore[index]
                other = [wide, deep] if "nvjet_tst_128" in row.kernel else [self.batch, wide, deep]
                given = [[], [[self.batch, TOKENS, deep], other], []]
                around.append(op("aten::einsum", ts=9 + 100 * at, dur=12, **{"Input Dims": given}))
        return [*written(rows), *around]


def test_a_model_of_einsums_with_its_softmax_and_loss_by_hand_is_read(tmp_path: Path) -> None:
    course = Course(4, 8)
    rows = [*course.layer(), *course.layer(), *course.head()]
    trace, _, found = attributed(tmp_path, course.events(rows))
    right, wrong = verdict(rows, trace, found)
    assert not wrong
    assert right == 1, open_rows(rows, trace, found)


def test_products_of_one_head_of_one_sample_are_no_linear_layers(tmp_path: Path) -> None:
    """They are batched products of a batch of one, as those of a matrix are."""
    course = Course(1, 1)
    rows = [*course.layer(), *course.layer(), *course.head()]
    trace, _, found = attributed(tmp_path, course.events(rows))
    said = [COMPONENTS[found.component[at]] for at in trace.kernels.ts_ns.argsort(kind="stable")]
    products = [(one, row.right) for one, row in zip(said, rows, strict=True) if row.op == "aten::bmm"]
    assert [one for one, _ in products] == [right for _, right in products]


@pytest.mark.parametrize("wide", [TOKENS, 2 * TOKENS])
def test_what_is_divided_by_the_sums_of_something_else_is_no_softmax(wide: int, tmp_path: Path) -> None:
    course = Course(4, 8)
    summed = [*course.scores[:-1], wide]
    layer = [row if row.op != "aten::sum" else _work(row.right, "sum", summed) for row in course.layer()]
    rows = [*layer, *layer]
    trace, _, found = attributed(tmp_path, course.events(rows))
    right, _ = verdict(rows, trace, found)
    assert (right > 0.9) == (wide == TOKENS)
