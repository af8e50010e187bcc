"""What operators beside the products show of a model: tables, choices among experts, losses."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.attribution.names import op_rule
from tracelens.trace import Trace

_CHOOSES = "^(?!.*(mse|l1_loss|huber))"  # those measure how far numbers are off
_TOPK = "aten::topk"
_FEWEST_WORDS = 256  # bytes: fewer rows can be positions or kinds of tokens
_FEWEST_SIGNS = 16  # and as many as those can be by chance
_PADDED = 1 / 8  # of a vocabulary is added to the head's, at most
_MARKS = 1 / 64  # and as much is left out of it: words that are read and never written


@dataclass(frozen=True, slots=True)
class Operands:
    """``tables``: (rows, width) that embeddings are read from. ``choices``: (of how many, how many) routers
    choose. ``losses``: sizes, behind the first, of what losses choose from; None where no loss is seen.
    ``labels``: those of which several may be right. ``weights``: sizes of matrices that get gradients."""

    tables: Collection[tuple[int, int]] = ()
    choices: Collection[tuple[int, int]] = ()
    losses: Collection[int] | None = None
    labels: Collection[int] = ()
    weights: Collection[tuple[int, int]] = ()

    def lists(self, words: int, width: int | None) -> bool | None:
        """Has a table so wide a row for each of ``words``? None where those seen can be of positions."""
        rows = [table for table, wide in self.tables if wide == width]
        if words >= _FEWEST_SIGNS and words in rows:
            return True
        long = [table for table in rows if table >= _FEWEST_WORDS]
        if any(table * (1 - _MARKS) <= words <= table * (1 + _PADDED) for table in long):
            return True
        return False if max(long, default=0) > words else None

    def loses(self, size: int) -> bool | None:
        """Does a loss choose from so many? None where none is seen."""
        return size in self.losses if self.losses is not None else None

    def trains(self, size: int, width: int | None) -> bool:
        """May a weight of so many rows be trained, whole or in parts? Without one, rows are compared."""
        whole = {size, *(size // parts for parts in range(2, size // _FEWEST_SIGNS + 1) if size % parts == 0)}
        known = {*self.weights} - {*self.tables}
        sides = (one for wide in known for one in (wide, wide[::-1]))
        return not known or any(rows in whole and wide in (width, width or wide) for rows, wide in sides)


def operands_of(trace: Trace) -> Operands:
    """Those of a trace with shapes; of one without, nothing."""
    return Operands(
        _embedding_tables(trace),
        router_choices(trace),
        _losses(trace),
        _loss_sizes(trace, "binary_cross_entropy"),
        _weights(trace),
    )


def router_choices(trace: Trace) -> set[tuple[int, int]]:
    """(of how many, how many) the trace's operators choose: ``aten::topk`` and the routers of libraries.

    ``aten::topk`` has its k and its dimension among the recorded values; a library's router writes
    [tokens, k] from [tokens, experts] (vLLM's topk_softmax, csrc/moe/torch_bindings.cpp).
    """
    chooses = trace.symbols.where(lambda text: text == _TOPK or op_rule(text) == "routes")
    rows = np.flatnonzero(chooses[trace.ops.name])
    found = set()
    for name, code in {(int(trace.ops.name[row]), int(trace.ops.inputs[row])) for row in rows.tolist()}:
        inputs = trace.details.inputs(code)
        tensors = [one for one in inputs.dims or [] if {*map(type, one)} == {int}]
        tables = [one for one in tensors if len(one) == 2]
        if trace.symbols[name] == _TOPK:
            k, along = [*(inputs.concrete or [])[1:3], "", ""][:2]
            last = (sizes[-1] for sizes in tensors[:1] if along in ("", "-1", f"{len(sizes) - 1}"))
            found |= {(of, int(k)) for of in last if k.isdecimal()}
        else:
            found |= {
                (one[1], other[1])
                for one in tables
                for other in tables
                if one[0] == other[0] and one[1] > other[1]
            }
    return found


def _embedding_tables(trace: Trace) -> set[tuple[int, int]]:
    reads = trace.symbols.where(_reads_a_table)
    return {(one[0], one[1]) for one in _tensors(trace, reads) if len(one) == 2}


def _reads_a_table(text: str) -> bool:
    """The backward of a lookup is given rows of samples, and no table."""
    return (op_rule(text) == "embedding" or "embedding" in text) and "backward" not in text.lower()


def _losses(trace: Trace) -> set[int] | None:
    return (
        _loss_sizes(trace, _CHOOSES) if next(_tensors(trace, _named(trace, "")), None) is not None else None
    )


def _named(trace: Trace, pattern: str) -> npt.NDArray[np.bool_]:
    """Losses by their names."""
    return trace.symbols.where(lambda text: op_rule(text) == "loss" and bool(re.search(pattern, text)))


def _loss_sizes(trace: Trace, pattern: str) -> set[int]:
    """Classes can stand behind the batch, or last."""
    tensors = (one for one in _tensors(trace, _named(trace, pattern)) if len(one) > 1)
    return {size for one in tensors for size in (one[1], one[-1])}


def _weights(trace: Trace) -> set[tuple[int, int]]:
    gives = trace.symbols.where(lambda text: text == "torch::autograd::AccumulateGrad")
    return {(one[0], one[1]) for one in _tensors(trace, gives) if len(one) == 2}


def _tensors(trace: Trace, chosen: npt.NDArray[np.bool_]) -> Iterator[list[int]]:
    """The sizes of what operators of the chosen names take."""
    for code in np.unique(trace.ops.inputs[chosen[trace.ops.name]]).tolist():
        for one in trace.details.inputs(code).dims or []:
            if isinstance(one, list) and one and all(type(size) is int for size in one):
                yield one
