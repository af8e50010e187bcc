"""What a GPU shows that a recording without one does not: operators within operators, fills and copies."""

from __future__ import annotations

from pathlib import Path

from tests.attribution.rows import Row, attributed, mm, verdict, written
from tests.attribution.test_parts import ADD, ATTENTION, NORM, TOKENS, WIDTH, _row
from tests.trace.tools import op


def _within(rows: list[Row], name: str, inner: str) -> list[dict[str, object]]:
    """The events of the rows; operators ``name`` launch in another one."""
    at = [number for number, row in enumerate(rows) if row.op == name]
    return [*written(rows), *(op(inner, ts=11 + 100 * number, dur=8) for number in at)]


def test_a_choice_that_is_filled_and_scattered_routes(tmp_path: Path) -> None:
    """aten::one_hot of the largest of the scores (transformers models/switch_transformers)."""
    chosen = [
        mm("moe.router", TOKENS, 8, WIDTH),
        _row("moe.router", "softmax", [TOKENS, 8]),
        _row("moe.router moe.dispatch", "one_hot", [TOKENS]),
        _row("moe.dispatch", "index", [TOKENS, WIDTH], [96]),
        mm("moe.experts", 96, 4 * WIDTH, WIDTH),
        _row("moe.experts", "relu", [96, 4 * WIDTH]),
        mm("moe.experts", 96, WIDTH, 4 * WIDTH),
        _row("moe.dispatch", "index_add_", [TOKENS, WIDTH], [96], [96, WIDTH]),
    ]
    rows = [*ATTENTION, ADD, NORM, *chosen, ADD, *ATTENTION, ADD]
    trace, _, found = attributed(tmp_path, _within(rows, "aten::one_hot", "aten::fill_"))
    assert verdict(rows, trace, found) == (1.0, {})
