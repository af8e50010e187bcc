"""How to get what a trace lacks, said by what it lacks: flags alone do not bring back a missing operator."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.results import GemmRow

_RECORD = "record with record_shapes=True"
_NO_OPERATOR = (
    "no operator is known for these kernels (a CUDA graph replays them, or they were launched before the"
    f" recording), so {_RECORD} and one step without CUDA graphs"
)


def for_shapes(rows: Sequence[GemmRow]) -> str:
    """What gives the shapes of ``rows``, as the end of a sentence after a colon.

    ``record_shapes`` records the inputs of operators. Where no kernel has one, as in a CUDA graph, it adds
    nothing.
    """
    return _RECORD if not rows or any(row.op is not None for row in rows) else _NO_OPERATOR
