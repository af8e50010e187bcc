"""Kernels whose own operator is unknown repeat kernels that are known: they are lent what those are.

A kernel launched before the recording began, or replayed by a CUDA graph, has no operator of its own. A
whole step of the same stream, or a second trace of the same job, holds the same kernels in the same order
with their operators. Twins are found by order and name (``align``) and lend component, phase, layer and
module; where a kernel has several possible twins it gets only what all of them share.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from tracelens.attribution.result import Attribution, Loan
from tracelens.attribution.twins import Twins, orphans, twins_in_reference, twins_within
from tracelens.trace import BoolArray, Links, Trace, look_up
from tracelens.words import COMPONENTS, EVIDENCE, PHASES

T = TypeVar("T", bound=Hashable)

_UNATTRIBUTED = COMPONENTS.index("unattributed")
_OTHER = PHASES.index("other")
_BACKWARD = PHASES.index("backward")
_STRUCTURE = EVIDENCE.index("structure")
_KERNEL_NAME = EVIDENCE.index("kernel_name")


def lend(
    trace: Trace,
    links: Links,
    attribution: Attribution,
    *,
    reference: tuple[Trace, Links, Attribution] | None = None,
) -> Attribution:
    """Fill kernels of unknown operator from their twins in the same trace, then from the reference.

    Filled kernels have evidence ``structure`` and ``like`` (the twin's row); those filled from the
    reference stand in ``loan``. Steps stay as they are: a kernel outside every step is not moved into one.
    """
    # launched, but the forward (or the backward) that they are part of began before the recording
    cut_off = (attribution.evidence >= _STRUCTURE) & (attribution.phase == _BACKWARD)
    cut_off &= attribution.forward_op < 0
    cut_off |= (attribution.component == _UNATTRIBUTED) & (attribution.phase == _OTHER)
    # a replay launched before the recording repeats those in it, whatever tells of them
    for orphan, also in ((orphans(trace, links), cut_off), (links.kernel_node < 0, np.zeros_like(cut_off))):
        twins = twins_within(trace, links, attribution.names, orphan, also).told(attribution)
        attribution = _filled(attribution, attribution, twins, (twins.row >= 0) & (attribution.like < 0))
        like = np.where(twins.agreed(attribution), twins.row, -1).astype(np.int32)
        attribution = replace(attribution, like=np.where(attribution.like < 0, like, attribution.like))
        if not trace.replays.any():
            break
    if reference is None:
        return attribution
    return _from_reference(trace, links, attribution, reference)


def lent_kernels(attribution: Attribution) -> BoolArray:
    """Per kernel: does its component come from a kernel it repeats?"""
    taken = attribution.like >= 0
    if attribution.loan is not None:
        taken |= attribution.loan.filled
    out: BoolArray = taken & (attribution.evidence == _STRUCTURE)
    return out


def _filled(attribution: Attribution, lender: Attribution, twins: Twins, open_: BoolArray) -> Attribution:
    """The attribution with what the twins of the open kernels are; modules and lists are those of both."""
    modules, module_code = _merged(attribution.modules, lender.modules)
    lists, list_code = _merged(attribution.components, lender.components)
    takers = np.flatnonzero(open_ & twins.agreed(lender))
    known = lender.component[twins.row[takers]] != _UNATTRIBUTED
    unknown, takers = takers[~known], takers[known]
    givers = twins.row[takers]
    # a name that tells by itself tells the same of both: no stronger evidence came from the order
    by_name = (lender.evidence[givers] == _KERNEL_NAME) & (
        attribution.component[takers] == lender.component[givers]
    )
    columns = {
        name: getattr(attribution, name).copy()
        for name in (
            "phase", "component", "evidence", "fused", "candidates", "layer", "module", "role", "reason"
        )
    }  # fmt: skip
    columns["component"][takers] = lender.component[givers]
    columns["fused"][takers] = list_code[lender.fused[givers]]
    columns["candidates"][takers] = list_code[lender.candidates[givers]]
    columns["evidence"][takers[~by_name]] = _STRUCTURE
    columns["reason"][takers] = -1
    if lender is attribution:
        # not their launch is what is missing: with it they would lack what the twin lacks
        unknown = unknown[attribution.component[unknown] == _UNATTRIBUTED]
        columns["reason"][unknown] = attribution.reason[twins.row[unknown]]
        columns["candidates"][unknown] = attribution.candidates[twins.row[unknown]]
        takers = np.append(takers, unknown)  # when and where they ran is known all the same
    columns["role"][takers] = lender.role[twins.row[takers]]
    phased = takers[lender.phase[twins.row[takers]] != _OTHER]
    columns["phase"][phased] = lender.phase[twins.row[phased]]
    same_layer, same_module = twins.shared(lender.layer), twins.shared(lender.module)
    placed = takers[same_layer[takers]]
    columns["layer"][placed] = lender.layer[twins.row[placed]]
    named = takers[same_module[takers]]
    columns["module"][named] = module_code[lender.module[twins.row[named]]]
    return replace(attribution, modules=modules, components=lists, **columns)


def _merged(ours: list[T], theirs: list[T]) -> tuple[list[T], npt.NDArray[np.int32]]:
    """Both lists as one, and per code of theirs the code in it; one place more for -1."""
    if ours is theirs:
        return ours, np.append(np.arange(len(ours)), -1).astype(np.int32)
    out: list[T] = [*ours]
    code: dict[T, int] = {text: at for at, text in reversed([*enumerate(out)])}
    for text in theirs:
        if text not in code:
            code[text] = len(out)
            out.append(text)
    return out, np.array([*(code[text] for text in theirs), -1], np.int32)


def _from_reference(
    trace: Trace, links: Links, attribution: Attribution, reference: tuple[Trace, Links, Attribution]
) -> Attribution:
    """Fill what is still unattributed from the reference, and say which of its kernels every one repeats."""
    theirs, their_links, lender = reference
    twins = twins_in_reference(trace, attribution.names, theirs, their_links)
    operator_unknown = orphans(trace, links) & (attribution.like < 0)
    unattributed = attribution.component == _UNATTRIBUTED
    agreed = twins.agreed(lender) & ~_contradicts(attribution, lender, twins)
    # what names, ties or operators say there outweighs what only the order says here
    stronger = look_up(lender.evidence, twins.row, _STRUCTURE) < _STRUCTURE
    weak = (attribution.evidence >= _STRUCTURE) & stronger
    open_ = (operator_unknown | unattributed | weak) & agreed
    lent = _filled(attribution, lender, twins, open_)
    filled = open_ & (lent.component != _UNATTRIBUTED)
    loan = Loan(
        trace=theirs,
        links=their_links,
        attribution=lender,
        like=np.where(agreed, twins.row, -1).astype(np.int32),
        filled=filled,
        matched=twins.row >= 0,
    )
    return replace(lent, loan=loan, transformer=lent.transformer or bool(lender.transformer and filled.any()))


def _contradicts(attribution: Attribution, lender: Attribution, twins: Twins) -> BoolArray:
    """Kernels whose own launch says another phase than their twin: they are no twins."""
    twin = np.where(twins.row >= 0, lender.phase[twins.row], _OTHER) if len(lender.phase) else _OTHER
    out: BoolArray = (attribution.phase != twin) & (attribution.phase != _OTHER) & (twin != _OTHER)
    return out
