"""Projections of one input in GEMMs of their own, and what one GEMM would take in their place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tracelens.gemm import bytes_per_element
from tracelens.gemm.gain import ratio_error
from tracelens.numbers import capital, count, listed, sig, times
from tracelens.results import Estimate, GemmRow
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.predictions import moving_ms, predicted
from tracelens.rules.engine.rows import calls_of, forward, sizes_of, time_of, took
from tracelens.step.alignment import grid_elements
from tracelens.step.stalls import call_us_of


@dataclass(frozen=True, slots=True)
class SharedInput:
    """Projections that read one tensor; ``counts`` of them for each call of ``after``."""

    components: tuple[str, ...]
    after: str
    counts: tuple[int, ...]  # how many parts such a layer has
    words: str
    one: str  # the module that holds all of them


FAMILIES = (
    SharedInput(("attention.qkv",), "attention.output", (2, 3), "q, k and v", "qkv_proj"),
    SharedInput(("mlp.gate", "mlp.up"), "mlp.down", (2,), "gate and up", "gate_up_proj"),
)


@dataclass(frozen=True, slots=True)
class Part:
    """Calls of one row that one fused call would take in, per fused call."""

    row: GemmRow
    width: int  # output features
    count: int


@dataclass(frozen=True, slots=True)
class Group:
    """The parts of one fused GEMM in one phase and role."""

    role: str
    parts: tuple[Part, ...]
    tokens: int
    into: int
    calls: float  # of the fused GEMM, per step

    @property
    def width(self) -> int:
        """Output features of the fused GEMM."""
        return sum(part.width * part.count for part in self.parts)

    @property
    def time_us(self) -> float:
        """Measured time of what one fused call replaces."""
        return sum(call_us_of(part.row) * part.count for part in self.parts)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """M, N, K and batch of the fused GEMM."""
        t, w, h = self.tokens, self.width, self.into
        return {"forward": (t, w, h, 1), "dgrad": (t, h, w, 1), "wgrad": (w, h, t, 1)}[self.role]

    @property
    def apart(self) -> str:
        """``2 × (8192 × 1024 × 4096) and 1 × (...)``."""
        return listed([f"{one.count} × ({one.row.m} × {one.row.n} × {one.row.k})" for one in self.parts])

    @property
    def off_grid(self) -> list[int]:
        """Widths off the 16-byte grid: one GEMM on another alignment than its parts is another question."""
        grids = ((part, grid_elements(part.row.dtype)) for part in self.parts)
        return [part.width for part, grid in grids if grid and (part.width % grid or self.into % grid)]


# --- which GEMMs read one tensor ---------------------------------------------------------------------


def groups_of(facts: StepFacts, family: SharedInput) -> list[Group]:
    """The forward GEMMs of one input in each phase, and their gradients; empty where nothing proves it.

    They have one M and K, K is the hidden size, and there are two or three of them for each call of the
    GEMM that ends the block.
    """
    groups: list[Group] = []
    for phase in ("forward", "recompute"):
        of_phase = [row for row in facts.gemms if row.phase == phase]
        ends = calls_of(forward(of_phase, family.after))
        parts = _parts(facts, family, forward(of_phase, *family.components), ends)
        sizes = sizes_of(parts[0].row) if parts else None
        if sizes is None or _crosses(facts, family, phase, ends):
            continue
        tokens, _, into, _ = sizes
        groups.append(Group("forward", parts, tokens, into, ends))
        if phase == "forward":
            groups += [
                Group(role, found, tokens, into, ends)
                for role in ("dgrad", "wgrad")
                if (found := _gradients(facts, family, parts, role))
            ]
    return groups


def _crosses(facts: StepFacts, family: SharedInput, phase: str, ends: float) -> bool:
    """Decoders with cross-attention: more attention outputs than MLPs, where no experts take an MLP's place.

    There q comes from another input than k and v, and at equal lengths no size tells.
    """
    if family.after != "attention.output" or any(row.component.startswith("moe.") for row in facts.gemms):
        return False
    downs = calls_of([row for row in forward(facts.gemms, "mlp.down") if row.phase == phase])
    return 0 < downs < ends * (1 - 1e-6)


def _parts(facts: StepFacts, family: SharedInput, rows: Sequence[GemmRow], ends: float) -> tuple[Part, ...]:
    if not rows or ends <= 0:
        return ()
    shapes = {(row.m, row.k, row.dtype, row.batch or 1) for row in rows}
    hidden = facts.model.hidden.value
    if len(shapes) != 1 or (hidden is not None and rows[0].k != hidden) or (rows[0].batch or 1) != 1:
        return ()
    parts = []
    for row in rows:
        sizes, share = sizes_of(row), row.calls_per_step / ends
        if sizes is None or not math.isclose(share, round(share), abs_tol=1e-6) or round(share) < 1:
            return ()
        parts.append(Part(row, sizes[1], round(share)))
    return tuple(parts) if sum(part.count for part in parts) in family.counts else ()


def _gradients(facts: StepFacts, family: SharedInput, parts: Sequence[Part], role: str) -> tuple[Part, ...]:
    """The gradient GEMMs of the parts, or none where one of them is not found."""
    found = []
    for width in dict.fromkeys(part.width for part in parts):
        many = sum(part.count for part in parts if part.width == width)
        t, h = parts[0].row.m, parts[0].row.k
        wanted = [(t, h, width)] if role == "dgrad" else [(width, h, t), (h, width, t)]
        rows = [
            row
            for row in facts.gemms
            if row.component in family.components and row.role == role and (row.m, row.n, row.k) in wanted
        ]
        calls = calls_of(rows)
        if not rows or calls <= 0:
            return ()
        # Several kernels for one shape: one row stands for their mean.
        best = max(rows, key=lambda row: row.time_ms_per_step)
        mean = replace(best, time_ms_per_step=time_of(rows), calls_per_step=calls)
        found.append(Part(mean, width, many))
    return tuple(found)


def why_none(facts: StepFacts, family: SharedInput) -> tuple[str, bool]:
    """Why the family has nothing to put together, and whether that was told."""
    of_phase = [row for row in facts.gemms if row.phase == "forward"]
    rows = forward(of_phase, *family.components)
    ends, calls = calls_of(forward(of_phase, family.after)), calls_of(rows)
    if ends > 0 and math.isclose(calls, ends, rel_tol=1e-6):
        if "mlp.gate" in family.components and not _has_gate(facts, rows):
            return "The MLP has no gate.", True
        return f"{capital(family.words)} come from one GEMM ({took(rows, facts)}).", True
    if _crosses(facts, family, "forward", ends):
        return (
            "More attention outputs than MLPs: some attention takes keys and values from another input, and"
            f" which GEMMs read one tensor is not known. {capital(family.words)} are not judged."
        ), False
    return (
        f"The {count(calls)} forward GEMMs for {family.words} and the {count(ends)} that end their"
        " blocks do not show which of them read one tensor: not judged."
    ), False


def _has_gate(facts: StepFacts, rows: Sequence[GemmRow]) -> bool:
    """Is the one GEMM twice as wide as the MLP, or named after a gate?"""
    ffn = facts.model.ffn.value
    named = any("mlp.gate" in (row.component, *row.components) for row in rows)
    return named or (ffn is not None and any(row.n == 2 * ffn for row in rows))


# --- what one GEMM would take ------------------------------------------------------------------------


def fused_saving(facts: StepFacts, group: Group) -> tuple[Estimate, str] | None:
    """Measured time of the parts x predicted(one) / predicted(parts), with the error of such ratios.

    With its arithmetic; None where one of them is not predicted.
    """
    one = predicted(group.parts[0].row, facts=facts, sizes=group.sizes)
    parts = [(predicted(part.row, facts=facts), part.count) for part in group.parts]
    times_us = [found.time_us.mid * many for found, many in parts
                if not isinstance(found, str) and found.time_us.mid is not None]  # fmt: skip
    if isinstance(one, str) or one.time_us.mid is None or len(times_us) < len(parts):
        return None
    mid, apart_us = one.time_us.mid, sum(times_us)
    ratio = mid / apart_us
    error = ratio_error(math.log(group.width / max(part.width for part in group.parts)))
    now = group.time_us * group.calls / 1e3
    low, high = now * ratio * math.exp(-error), now * ratio * math.exp(error)
    m, n, k, _ = group.sizes
    how = (
        f"{group.role}: {group.apart} take {sig(group.time_us)} µs measured; one {m} × {n} × {k} takes"
        f" {sig(mid)} / {sig(apart_us)} = {sig(ratio)} of that by the predictions of both,"
        f" {sig(group.time_us * ratio)} µs, {times(count(group.calls))} {facts.per_step}."
    )
    return Estimate(now - high, now - now * ratio, now - low, one.time_us.basis), how


def split_ms(facts: StepFacts, groups: Sequence[Group]) -> float:
    """Gradients of the parts have to lie side by side: one concatenation per backward, read and written.

    torch.compile writes them there at once.
    """
    if any(row.op is not None and row.op.startswith("triton_") for row in facts.others or ()):
        return 0.0
    backward = [group for group in groups if group.role == "dgrad"]
    return sum(
        group.calls * moving_ms(2 * _bytes(group) * group.tokens * group.width, facts=facts)
        for group in backward
    )


def _bytes(group: Group) -> float:
    """Of an element; as of bf16 where its type is not known, which its prediction takes it for, too."""
    return bytes_per_element(group.parts[0].row.dtype) or 2.0
