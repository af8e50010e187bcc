"""What a training script runs itself between its model and the backward: the loss."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.attribution.names import OP_RULES
from tracelens.attribution.phases import Phases
from tracelens.trace import Links, Trace

BoolArray = npt.NDArray[np.bool_]
_MODULE = "nn.Module: "
_PRODUCTS = [OP_RULES.index(rule) for rule in ("linear", "bmm", "convolution")]


def behind_modules(trace: Trace, links: Links, phases: Phases, rule: npt.NDArray[np.int32]) -> BoolArray:
    """Per node: does it run outside the modules, behind all their and all other products of its forward?

    From the first such operator that a gradient passes to the last, which the backward begins with. Where no
    module is recorded nothing is known of that, and none is.
    """
    framed = links.mask(links.frames_at) & trace.symbols.where(lambda t: t.startswith(_MODULE))[links.name]
    in_module = links.forest.nearest(framed) >= 0
    backward = np.sort(links.ts_ns[phases.backward])
    out = np.zeros(len(in_module), np.bool_)
    for thread in np.unique(links.thread[framed]).tolist():
        here = np.flatnonzero((links.thread == thread) & links.is_op & ~phases.backward & ~phases.optimizer)
        here = here[np.argsort(links.ts_ns[here], kind="stable")]
        forward = np.searchsorted(backward, links.ts_ns[here])  # the same between two operators of a backward
        model = in_module[here] | np.isin(rule[here], _PRODUCTS)
        for begin, end in zip(*_stretches(forward), strict=True):
            modules = np.flatnonzero(in_module[here[begin:end]])
            if not len(modules) or forward[begin] == len(backward):
                continue
            start = begin + int(np.flatnonzero(model[begin:end])[-1]) + 1
            passed = np.flatnonzero(phases.with_gradient[here[start:end]])
            if len(passed):
                out[here[start + passed[0] : start + passed[-1] + 1]] = True
    return out


def _stretches(of: npt.NDArray[np.intp]) -> tuple[list[int], list[int]]:
    """Where equal numbers in a row begin and end."""
    edges = np.flatnonzero(np.diff(of)) + 1
    return [0, *edges.tolist()] if len(of) else [], [*edges.tolist(), len(of)] if len(of) else []
