"""TL112: projections of one input in products of their own, where one product would do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tracelens.gemm import bytes_per_element
from tracelens.gemm.gain import ratio_error
from tracelens.numbers import count as counted
from tracelens.numbers import listed, ms, plural, sig, times
from tracelens.results import Estimate, GemmRow
from tracelens.rules.engine.claims import Claim, settle, total
from tracelens.rules.engine.facts import Outcome, StepFacts, absent
from tracelens.rules.engine.missing import for_shapes, no_model
from tracelens.rules.engine.products import minus, moving_ms, predicted, sizes_of
from tracelens.rules.engine.proposals import cannot_judge, heuristic, took
from tracelens.rules.engine.stakes import time_at_stake
from tracelens.step.alignment import grid_elements
from tracelens.step.stalls import call_us_of


@dataclass(frozen=True, slots=True)
class _Family:
    """Projections that read one tensor; ``per_layer`` products follow each call of ``after``."""

    components: frozenset[str]
    after: str
    counts: tuple[int, ...]  # how many parts such a layer has
    words: str
    one: str  # the module that holds all of them


_FAMILIES = (
    _Family(frozenset({"attention.qkv"}), "attention.output", (2, 3), "q, k and v", "qkv_proj"),
    _Family(frozenset({"mlp.gate", "mlp.up"}), "mlp.down", (2,), "gate and up", "gate_up_proj"),
)


@dataclass(frozen=True, slots=True)
class _Part:
    """Calls of one row that one fused call would take in, per fused call."""

    row: GemmRow
    width: int  # output features
    count: int


@dataclass(frozen=True, slots=True)
class _Group:
    """The parts of one fused product in one phase and role."""

    role: str
    parts: tuple[_Part, ...]
    tokens: int
    into: int
    calls: float  # of the fused product, per step

    @property
    def width(self) -> int:
        """Output features of the fused product."""
        return sum(part.width * part.count for part in self.parts)

    @property
    def time_us(self) -> float:
        """Measured time of what one fused call replaces."""
        return sum(call_us_of(part.row) * part.count for part in self.parts)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """M, N, K and batch of the fused product."""
        t, w, h = self.tokens, self.width, self.into
        return {"forward": (t, w, h, 1), "dgrad": (t, h, w, 1), "wgrad": (w, h, t, 1)}[self.role]


@dataclass(frozen=True, slots=True)
class UnfusedProjections:
    """One product for q, k and v, one for gate and up, where that is faster."""

    id: str = "TL112"
    slug: str = "unfused-projections"
    title: str = "One product for projections of one input"

    def check(self, facts: StepFacts, /) -> Outcome:
        """Judge attention's and the MLP's input projections."""
        refusal = cannot_judge(facts)
        if refusal is not None:
            return refusal
        without = no_model(facts)
        if without is not None:
            return without
        mine = [row for row in facts.gemms if _in_a_family(row)]
        if not mine:
            return absent("No projection to q, k, v, gate or up was recognised.")
        if all(row.m is None for row in mine):
            return Outcome(
                "could_not_run",
                f"None of the {plural(len(mine), 'projection')} has a shape: {for_shapes(mine)}.",
            )
        claims, said, untold = [], [], False
        for family in _FAMILIES:
            groups = _groups(facts, family)
            narrow = [part.width for group in groups[:1] for part in group.parts if not _on_grid(part, group)]
            if narrow:
                said.append(
                    f"{_upper(family.words)} are {listed([str(size) for size in narrow])} wide, off the"
                    " 16-byte grid: their own width comes first (TL102)."
                )
            elif groups:
                claims.append(_claim(facts, family, groups))
            elif any(row.component in family.components for row in mine):
                why, judged = _why_none(facts, family)
                said.append(why)
                untold |= not judged
        if untold and not claims:
            return Outcome("could_not_run", " ".join(said))
        return settle(self, facts=facts, claims=claims, passed=" ".join(said))


def _in_a_family(row: GemmRow) -> bool:
    return row.kind == "gemm" and any(row.component in family.components for family in _FAMILIES)


# --- which products read one tensor ------------------------------------------------------------------


def _groups(facts: StepFacts, family: _Family) -> list[_Group]:
    """The forward products of one input in each phase, and their gradients; empty where nothing proves it.

    They have one M and K, K is the hidden size, and there are two or three of them for each call of the
    product that ends the block.
    """
    groups: list[_Group] = []
    for phase in ("forward", "recompute"):
        ends = sum(
            row.calls_per_step
            for row in facts.gemms
            if row.component == family.after and row.phase == phase and row.role in (None, "forward")
        )
        rows = [
            row
            for row in facts.gemms
            if row.component in family.components and row.phase == phase and row.role in (None, "forward")
        ]
        parts = _parts(facts, family, rows, ends)
        if not parts or _crosses(facts, family, phase, ends):
            continue
        first = parts[0].row
        tokens, into = first.m or 0, first.k or 0
        groups.append(_Group("forward", parts, tokens, into, ends))
        if phase == "forward":
            groups += [
                _Group(role, found, tokens, into, ends)
                for role in ("dgrad", "wgrad")
                if (found := _gradients(facts, family, parts, role))
            ]
    return groups


def _crosses(facts: StepFacts, family: _Family, phase: str, ends: float) -> bool:
    """Decoders with cross-attention: more attention outputs than MLPs, where no experts take an MLP's place.

    There q comes from another input than k and v, and at equal lengths no size tells.
    """
    if family.after != "attention.output" or any(row.component.startswith("moe.") for row in facts.gemms):
        return False
    downs = sum(
        row.calls_per_step
        for row in facts.gemms
        if row.component == "mlp.down" and row.phase == phase and row.role in (None, "forward")
    )
    return 0 < downs < ends * (1 - 1e-6)


def _has_gate(facts: StepFacts, rows: Sequence[GemmRow]) -> bool:
    """Is the one product twice as wide as the MLP, or named after a gate?"""
    ffn = facts.model.ffn.value
    named = any("mlp.gate" in (row.component, *row.components) for row in rows)
    return named or (ffn is not None and any(row.n == 2 * ffn for row in rows))


def _parts(facts: StepFacts, family: _Family, rows: Sequence[GemmRow], ends: float) -> tuple[_Part, ...]:
    if not rows or ends <= 0 or any(sizes_of(row) is None for row in rows):
        return ()
    shapes = {(row.m, row.k, row.dtype, row.batch or 1) for row in rows}
    hidden = facts.model.hidden.value
    if len(shapes) != 1 or (hidden is not None and rows[0].k != hidden) or (rows[0].batch or 1) != 1:
        return ()
    parts = []
    for row in rows:
        share = row.calls_per_step / ends
        if not math.isclose(share, round(share), abs_tol=1e-6) or round(share) < 1:
            return ()
        parts.append(_Part(row, row.n or 0, round(share)))
    return tuple(parts) if sum(part.count for part in parts) in family.counts else ()


def _gradients(facts: StepFacts, family: _Family, parts: Sequence[_Part], role: str) -> tuple[_Part, ...]:
    """The gradient products of the parts, or none where one of them is not found."""
    found = []
    for width in dict.fromkeys(part.width for part in parts):
        count = sum(part.count for part in parts if part.width == width)
        t, h = parts[0].row.m, parts[0].row.k
        wanted = [(t, h, width)] if role == "dgrad" else [(width, h, t), (h, width, t)]
        rows = [
            row
            for row in facts.gemms
            if row.component in family.components and row.role == role and (row.m, row.n, row.k) in wanted
        ]
        calls = sum(row.calls_per_step for row in rows)
        if not rows or calls <= 0:
            return ()
        # Several kernels for one shape: one row stands for their mean.
        time = sum(row.time_ms_per_step for row in rows)
        best = max(rows, key=lambda row: row.time_ms_per_step)
        found.append(_Part(_mean(best, time, calls), width, count))
    return tuple(found)


def _mean(row: GemmRow, time_ms: float, calls: float) -> GemmRow:
    return replace(row, time_ms_per_step=time_ms, calls_per_step=calls)


def _on_grid(part: _Part, group: _Group) -> bool:
    """One product on another alignment than its parts would be another question."""
    grid = grid_elements(part.row.dtype)
    return grid is None or (part.width % grid == 0 and group.into % grid == 0)


def _why_none(facts: StepFacts, family: _Family) -> tuple[str, bool]:
    """Why the family has nothing to put together, and whether that was told."""
    rows = [
        row
        for row in facts.gemms
        if row.component in family.components and row.role in (None, "forward") and row.phase == "forward"
    ]
    ends = sum(
        row.calls_per_step
        for row in facts.gemms
        if row.component == family.after and row.phase == "forward" and row.role in (None, "forward")
    )
    calls = sum(row.calls_per_step for row in rows)
    if ends > 0 and math.isclose(calls, ends, rel_tol=1e-6):
        if "mlp.gate" in family.components and not _has_gate(facts, rows):
            return "The MLP has no gate.", True
        return f"{_upper(family.words)} come from one product ({took(rows, 'GEMM shape', facts)}).", True
    if _crosses(facts, family, "forward", ends):
        why = (
            "More attention outputs than MLPs: some attention takes keys and values from another input, and"
            f" which products read one tensor is not known. {_upper(family.words)} are not judged."
        )
        return why, False
    why = (
        f"The {counted(calls)} forward products for {family.words} and the {counted(ends)} that end their"
        " blocks do not show which of them read one tensor: not judged."
    )
    return why, False


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


# --- what one product would save ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Fused:
    """A group's saving per step with its arithmetic; ``saving`` None = not predicted, ``how`` says why."""

    saving: Estimate | None
    how: str


def _fused(facts: StepFacts, group: _Group) -> _Fused:
    """Measured time of the parts x predicted(one) / predicted(parts), with the error of such ratios."""
    one = predicted(group.parts[0].row, facts=facts, sizes=group.sizes)
    parts = [predicted(part.row, facts=facts) for part in group.parts]
    texts = [found for found in (one, *parts) if isinstance(found, str)]
    if isinstance(one, str) or texts:
        return _Fused(None, texts[0] if texts else "")
    apart_us = sum(
        (found.time_us.mid or 0.0) * part.count
        for found, part in zip(parts, group.parts, strict=True)
        if not isinstance(found, str)
    )
    mid = one.time_us.mid or 0.0
    ratio = mid / apart_us if apart_us else 1.0
    far = math.log(group.width / max(part.width for part in group.parts))
    error = ratio_error(far)
    now = group.time_us * group.calls / 1e3
    low, high = now * ratio * math.exp(-error), now * ratio * math.exp(error)
    m, n, k, _ = group.sizes
    how = (
        f"{group.role}: {_apart(group)} take {sig(group.time_us)} µs measured; one {m} × {n} × {k} takes"
        f" {sig(mid)} / {sig(apart_us)} = {sig(ratio)} of that by the predictions of both,"
        f" {sig(group.time_us * ratio)} µs, {times(counted(group.calls))} {facts.per_step}."
    )
    return _Fused(Estimate(now - high, now - now * ratio, now - low, one.time_us.basis), how)


def _apart(group: _Group) -> str:
    """``2 × (8192 × 1024 × 4096) and 1 × (...)``."""
    return listed([f"{part.count} × ({part.row.m} × {part.row.n} × {part.row.k})" for part in group.parts])


def _each(calls: str) -> str:
    return "a single call" if calls == "1" else f"each of {calls} calls"


def _split_ms(facts: StepFacts, groups: Sequence[_Group]) -> float:
    """Gradients of the parts have to lie side by side: one concatenation per backward, read and written.

    torch.compile writes them there at once.
    """
    if any(row.op is not None and row.op.startswith("triton_") for row in facts.others or ()):
        return 0.0
    backward = [group for group in groups if group.role == "dgrad"]
    size = bytes_per_element(backward[0].parts[0].row.dtype) or 0.0 if backward else 0.0
    return sum(
        group.calls * moving_ms(2 * size * group.tokens * group.width, facts=facts) for group in backward
    )


def _claim(facts: StepFacts, family: _Family, groups: Sequence[_Group]) -> Claim:
    found = [_fused(facts, group) for group in groups]
    rows = {part.row.id: part.row for group in groups for part in group.parts}
    stakes = [time_at_stake(row, gpu=facts.gpu) for row in rows.values()]
    bound = sum(stake.bound_ms for stake in stakes)
    known = [one.saving for one in found if one.saving is not None]
    saving = heuristic(bound)
    how = [stake.how for stake in stakes]
    split = _split_ms(facts, groups)
    if len(known) == len(groups):
        saving = minus(total(known), mid_ms=split)
        how = [one.how for one in found]
        if split:
            how.append(f"The gradients' concatenation adds {ms(split)}.")
    forward = groups[0]
    count = sum(part.count for part in forward.parts)
    words = family.words if count > 2 or family.one != "qkv_proj" else "k and v"
    return Claim(
        name=f"one product for {words}",
        title=f"Compute {words} in one product of {forward.width} columns instead of {count}",
        components=sorted(family.components & {row.component for row in rows.values()}),
        bounds={stake.row.id: stake.bound_ms for stake in stakes},
        gemms=list(rows),
        saving=saving,
        confidence="medium" if saving.mid is not None else "low",
        effort="code",
        saw=(
            f"{_upper(words)} are {count} products of one input in"
            f" {_each(counted(forward.calls))}: {_apart(forward)}."
            f" {took(list(rows.values()), 'GEMM shape', facts)}"
            + (", gradients included." if len(groups) > 1 else ".")
        ),
        why=(
            "A product with few columns gives the GPU too few tiles for its SMs or ends in a half-empty"
            " wave, reads the same input again, and pays a kernel's fixed cost each time. One product with"
            " all the columns pays once. Large products fill the GPU by themselves and gain nothing."
        ),
        how=" ".join(how),
        fix=_fix(family, words),
        caveats=[
            "Tensor parallelism splits each of them by itself: keep that order in the one weight.",
            *(
                ["The sums of the parts' input gradients fall away as well; they are not counted."]
                if any(group.role == "dgrad" for group in groups)
                else []
            ),
        ],
        change={"projections": [count, 1]},
        evidence={
            "fused_columns": forward.width,
            "groups": [
                {"role": group.role, "now_us": group.time_us, "fused": list(group.sizes[:3])}
                for group in groups
            ],
        },
        flops_delta=0.0,
    )


def _fix(family: _Family, words: str) -> list[str]:
    if family.one == "qkv_proj":
        return [
            "- q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)",
            "+ q, k, v = self.qkv_proj(x).split([q_width, kv_width, kv_width], dim=-1)",
        ] if words == family.words else [
            "- k, v = self.k_proj(x), self.v_proj(x)",
            "+ k, v = self.kv_proj(x).chunk(2, dim=-1)",
        ]  # fmt: skip
    return [
        "- gate, up = self.gate_proj(x), self.up_proj(x)",
        "+ gate, up = self.gate_up_proj(x).chunk(2, dim=-1)",
    ]
