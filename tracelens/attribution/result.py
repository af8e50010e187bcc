"""What attribution gives: columns over the kernels, and what a second trace of the same job lent to them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from tracelens.attribution.components import is_part
from tracelens.attribution.words import REASONS
from tracelens.gemm import KernelNames
from tracelens.results import Found
from tracelens.trace import BoolArray, CodeArray, Links, Trace
from tracelens.words import COMPONENTS

_PARTS = [code for code, name in enumerate(COMPONENTS) if is_part(name)]


@dataclass(frozen=True)
class Attribution:
    """Columns over ``Trace.kernels`` (same order). Codes index the word lists of ``tracelens.words``."""

    step: CodeArray  # position in Links.steps; -1 = in none
    phase: CodeArray  # PHASES
    component: CodeArray  # COMPONENTS
    evidence: CodeArray  # EVIDENCE
    components: list[tuple[str, ...]]  # by `fused`: all the components of a fused kernel
    fused: CodeArray  # index into components
    candidates: CodeArray  # index into components: it is one of these, and nothing tells which
    layer: CodeArray  # -1 = unknown or none
    named: BoolArray  # its layer is numbered by a module or range; else it was counted
    module: CodeArray  # index into modules; -1
    modules: list[str]
    forward_op: CodeArray  # row of Trace.ops: the forward operator behind it (its own, in the forward); -1
    reason: CodeArray  # for unattributed kernels: index into REASONS; -1
    transformer: bool  # attention was recognised, and with it the model
    role: CodeArray  # ROLES, of a product whose backward is tied to no forward operator; -1
    names: KernelNames  # by Trace.symbols: what kernels are by their names
    like: CodeArray  # row of the kernel whose work this one repeats, where its own operator is unknown; -1
    loan: Loan | None = None  # what a reference trace lent
    further: dict[int, bool] = field(default_factory=dict)  # counted layers that begin another model: surely?

    @property
    def counted(self) -> BoolArray:
        """Mask over kernels: those of the analysed steps, which shares are of; all where no step has any."""
        inside: BoolArray = self.step >= 0
        return inside if inside.any() else np.ones_like(inside)

    @property
    def found(self) -> Found:
        """How much of a transformer was recognised: its attention, some of its parts, or nothing."""
        if self.transformer:
            return "whole"
        named = np.isin(self.component, _PARTS)
        return "parts" if bool((named & self.counted).any()) else "none"

    def within_steps(self, positions: list[int]) -> Attribution:
        """The same with only these steps counted as steps; kernels of the others are in none."""
        return replace(self, step=np.where(np.isin(self.step, positions), self.step, -1).astype(np.int32))

    def reasons(self) -> list[tuple[str, BoolArray]]:
        """(key of REASONS, mask over kernels) for each reason that occurs."""
        masks = ((name, self.reason == code) for code, name in enumerate(REASONS))
        return [(name, mask) for name, mask in masks if mask.any()]


@dataclass(frozen=True, slots=True)
class Loan:
    """Columns over the kernels of the trace that was lent to, and the reference behind them."""

    trace: Trace  # the reference
    links: Links
    attribution: Attribution
    like: CodeArray  # row of the reference's kernel that this one repeats; -1
    filled: BoolArray  # its component came from there
    matched: BoolArray  # some kernel of the reference corresponds to it
