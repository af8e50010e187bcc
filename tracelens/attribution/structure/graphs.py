"""CUDA graphs: what is replayed by one launch, and pieces of a model that are replayed one after another."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tracelens.attribution.structure.runs import Run
from tracelens.attribution.structure.units import Units
from tracelens.trace import CodeArray, Trace, look_up


def graph_launch(trace: Trace, units: Units) -> CodeArray:
    """Per unit the row of the graph launch that it hangs from; -1: none."""
    return np.where(look_up(trace.replays, units.launch, False), units.launch, -1).astype(np.int32)


def pieces(units: Units, graph: CodeArray, step: CodeArray) -> npt.NDArray[np.bool_]:
    """Per unit: is its graph a piece of a model whose attention runs between such pieces?

    vLLM captures what lies between two attentions ("piecewise", vllm/compilation/cuda_graph.py): the work of
    one forward, in the order in which it was launched.
    """
    is_core = np.array([kind.what == "core" and not kind.backward for kind in units.kinds] or [False])
    core = is_core[units.kind]
    holds = {*graph[core].tolist()}  # graphs with attention of their own
    found: set[int] = set()
    begins = np.flatnonzero((np.diff(graph, prepend=-1) != 0) & (graph >= 0))
    attends = np.cumsum(core & (graph < 0))
    for before, after in pairwise(begins.tolist()):
        both = {int(graph[before]), int(graph[after])}
        if attends[after] - attends[before] == 1 and not both & holds and step[before] == step[after]:
            found |= both
    return np.isin(graph, [*found])


def captured(runs: list[Run]) -> list[tuple[Run, Run]]:
    """Each captured backward with its captured forward: the last of as many cores that has none yet."""
    out, open_ = [], []
    for run in runs:
        if run.phase != "graph" or not run.cores:
            continue
        if not goes_back(run):
            open_.append(run)
            continue
        while open_:
            forward = open_.pop()
            if len(forward.cores) == len(run.cores):
                out.append((run, forward))
                break
    return out


def goes_back(run: Run) -> bool:
    """Is it a backward alone?"""
    return bool(run.cores) and all(core.backward for core in run.cores)
