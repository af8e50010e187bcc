"""A step of one of several ranks of a family of the zoo, analyzed."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from tests.trace.tools import read
from tests.zoo import Dims, ZooOptions, program_of, trace_of
from tracelens.analysis import analyze_trace
from tracelens.results import Report


@cache
def rank_text(family: str, ranks: int, dims: Dims | None = None) -> str:
    """The trace of one rank."""
    options = ZooOptions(steps=1, tensor_parallel=ranks, dims=dims)
    return trace_of(family, options, program_of(family, options)).text()


def rank_report(
    folder: Path, family: str, *, ranks: int = 1, dims: Dims | None = None, vocab: int | None = None
) -> Report:
    """The report of one rank; ``vocab`` is stated by its configuration."""
    data = json.loads(rank_text(family, ranks, dims))
    if vocab is not None:
        stated = {"vocab": {"value": vocab, "source": "config.vocab_size"}}
        data["tracelens"] = {"models": [{"trained": True, "dimensions": stated}]}
    return analyze_trace(read(folder, json.dumps(data)), shape_search=False).report
