"""Codes of what is said of kernels, and the columns that are filled in one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens.attribution.components import Decision
from tracelens.attribution.structure.runs import Label
from tracelens.trace import CodeArray
from tracelens.words import COMPONENTS, EVIDENCE, PHASES, ROLES

PHASE = {phase: code for code, phase in enumerate(PHASES)}
COMPONENT = {component: code for code, component in enumerate(COMPONENTS)}
ROLE: dict[str, int] = {role: code for code, role in enumerate(ROLES)}
EVIDENCE_CODE: dict[str, int] = {evidence: code for code, evidence in enumerate(EVIDENCE)}


class Columns(NamedTuple):
    """Over kernels, filled in one after the other; ``lists`` are those of the codes in ``fused``."""

    phase: CodeArray
    role: CodeArray
    component: CodeArray
    evidence: CodeArray
    fused: CodeArray
    lists: list[tuple[str, ...]]

    def put(self, found: Sequence[Decision | Label], which: CodeArray, rows: CodeArray | None = None) -> None:
        """What these rows were found to be, all that have one by default: per kernel an index; -1."""
        at = np.flatnonzero(which >= 0) if rows is None else rows
        for column, codes in (
            (self.component, [COMPONENT[one.component] for one in found]),
            (self.evidence, [EVIDENCE_CODE[one.evidence] for one in found]),
            (self.fused, [self.code(one.components) for one in found]),
        ):
            column[at] = np.array(codes, np.int32)[which[at]]

    def set(self, rows: npt.NDArray[np.bool_], component: CodeArray | str, evidence: str) -> None:
        """One component, or one for each of the kernels, and how it is known."""
        code = COMPONENT[component] if isinstance(component, str) else component[rows]
        self.component[rows], self.evidence[rows] = code, EVIDENCE_CODE[evidence]

    def are(self, *components: str) -> npt.NDArray[np.bool_]:
        """Which kernels are of one of these components."""
        return np.isin(self.component, [COMPONENT[component] for component in components])

    def code(self, components: tuple[str, ...]) -> int:
        """The code of a list of components."""
        if components not in self.lists:
            self.lists.append(components)
        return self.lists.index(components)
