"""Component groups, their names and colours, and the sums that terminal, step bar and tree show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tracelens import numbers as f
from tracelens.results import ComponentRow, Coverage, Report
from tracelens.sums import summed
from tracelens.words import GROUPED, PHASES, spoken


@dataclass(frozen=True, slots=True)
class ComponentGroup:
    """Components drawn as one segment; ``key`` names the CSS class, ``colour`` is the same one."""

    key: str
    title: str
    short: str
    colour: str
    components: tuple[str, ...]


#: In the order data flows through a step, so that two reports can be compared by eye.
GROUPS = tuple(
    ComponentGroup(key, title, short, colour, GROUPED[key])
    for key, title, short, colour in (
        ("attn-proj", "Attention projections", "attn proj", "#3d6fb6"),
        ("attn-core", "Attention core", "attn core", "#7db3e8"),
        ("mlp", "MLP", "MLP", "#2a7f4f"),
        ("moe", "MoE", "MoE", "#58b8a6"),
        ("ssm", "State space", "SSM", "#a3528f"),
        ("logits", "Logits + loss", "logits+loss", "#dba92f"),
        ("embedding", "Embedding", "embedding", "#bd9064"),
        ("norm", "Norm, residual, dropout", "norm etc.", "#dd7f98"),
        ("optimizer", "Optimizer, grad clip", "optimizer", "#8257b0"),
        ("comm", "Communication", "comm", "#bd4a26"),
        ("memory", "Memory", "memory", "#9aa04a"),
        ("other", "Other", "other", "#99a2ac"),
        ("unattributed", "Unattributed", "unattributed", "#79838e"),
    )
)
_GROUP_OF = {component: group for group in GROUPS for component in group.components}
_RANK = {component: rank for rank, component in enumerate(_GROUP_OF)}
_OUTSIDE = ("other", "unattributed")
_WORTH, _PARTS = 0.05, 5  # of GPU time that is in no part of a transformer: from here on, so many kinds
_SAID = {
    "GEMM": "GEMMs",
    "compiled kernel": "kernels of torch.compile",
    "other operator": "other operators",
    "no operator": "kernels without an operator",
}
_OTHER = next(group for group in GROUPS if group.key == "other")


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the GPU time of the analysed steps; ``start_frac`` is where it begins on a bar."""

    key: str
    title: str
    short: str
    frac: float
    start_frac: float
    ms_per_step: float
    communication_ms: float = 0.0  # of it, in a phase


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A line of the component tree: a group, or a component below it; ``by_phase`` in ns."""

    group: str
    title: str
    child: bool
    by_phase: dict[str, int]
    time_ns: int
    frac: float
    kernels: int
    tflops: float | None


def group_of(component: str) -> ComponentGroup:
    """Return the group a component belongs to; one we do not know is shown under Other."""
    return _GROUP_OF.get(component, _OTHER)


def parts_of(report: Report, share: Share, most: int) -> list[str]:
    """The largest parts of a group, "mlp.up 11.7%"; of what is in no part of a transformer, what it does."""
    if share.key in _OUTSIDE:
        return outside_parts(report.coverage, (share.key,), most)
    rows = [row for row in report.components if group_of(row.component).key == share.key]
    shares = summed((spoken(row.component), row.frac) for row in rows)
    return _listed(shares, most) if len(shares) > 1 else []  # one has the group's own name


def outside_parts(covered: Coverage, components: Sequence[str], most: int) -> list[str]:
    """What the kernels do that are in no part of a transformer, "convolution 62.2%"."""
    mine = [one for one in covered.outside if one.component in components]
    return _listed(summed((one.what, one.frac) for one in mine), most)


def _listed(shares: dict[str, float], most: int) -> list[str]:
    order = sorted(shares, key=lambda one: -shares[one])[:most]
    return [f"{_SAID.get(one, one)} {f.pct(shares[one])}" for one in order]


def outside_lines(report: Report) -> list[str]:
    """What the time is that is in no part of a transformer, where there is much."""
    found = [one for one in group_shares(report) if one.key in _OUTSIDE and one.frac >= _WORTH]
    told = [(one.title, parts_of(report, one, _PARTS)) for one in found]
    return [f"{title}: {', '.join(parts)} of GPU time." for title, parts in told if parts]


def largest(report: Report, most: int) -> list[Share]:
    """The groups that take most GPU time, longest first."""
    return sorted(group_shares(report), key=lambda one: -one.ms_per_step)[:most]


def colour_of(key: str) -> str:
    """The colour of a group."""
    return next(group.colour for group in GROUPS if group.key == key)


def _shares(parts: list[tuple[str, str, str, float]]) -> list[Share]:
    total = sum(max(part[3], 0.0) for part in parts)
    shares: list[Share] = []
    start = 0.0
    for key, title, short, per_step in parts:
        if per_step > 0:
            shares.append(Share(key, title, short, per_step / total, start / total, per_step))
            start += per_step
    return shares


def group_shares(report: Report) -> list[Share]:
    """Sum GPU time per step by component group; nothing is left out, so the shares add to one."""
    sums = dict.fromkeys((group.key for group in GROUPS), 0.0)
    for row in report.components:
        sums[group_of(row.component).key] += row.time_ms_per_step
    names = {row.component for row in report.components}
    return _shares([(g.key, *_named(g, names), sums[g.key]) for g in GROUPS])


def _named(group: ComponentGroup, names: set[str]) -> tuple[str, str]:
    """A group's title and short one; of logits and loss only what the trace has: inference has no loss."""
    seen = names.intersection(group.components)
    if group.key == "logits" and len(seen) == 1:
        (only,) = seen
        return only.capitalize(), only
    return group.title, group.short


def _phase(row: ComponentRow) -> str:
    return row.phase if row.phase in PHASES else "other"


def phase_shares(report: Report) -> list[Share]:
    """Sum GPU time per step by phase."""
    sums: dict[str, float] = dict.fromkeys(PHASES, 0.0)
    sent = dict(sums)
    for row in report.components:
        sums[_phase(row)] += row.time_ms_per_step
        sent[_phase(row)] += row.time_ms_per_step * (row.component == "communication")
    shares = _shares([(phase, phase, phase, per_step) for phase, per_step in sums.items()])
    return [replace(one, communication_ms=sent[one.key]) for one in shares]


def _tree_row(group: str, title: str, child: bool, rows: list[ComponentRow], total_ns: int) -> TreeRow:
    by_phase: dict[str, int] = summed((_phase(row), row.time_ns) for row in rows)
    time_ns = sum(by_phase.values())
    # of the calls whose FLOPs are known: a rate of the row only where they are most of its time
    rated = [(row.flops, row.flops / row.tflops) for row in rows if row.flops and row.tflops]
    took = sum(time for _, time in rated)  # ps
    tflops = sum(work for work, _ in rated) / took if took and 2 * took >= time_ns * 1e3 else None
    kernels = sum(row.kernels for row in rows)
    return TreeRow(
        group, title, child, by_phase, time_ns, time_ns / total_ns if total_ns else 0.0, kernels, tflops
    )


def tree(report: Report) -> list[TreeRow]:
    """Return groups with their components below them, in step order, and last the exact total."""
    total_ns = sum(row.time_ns for row in report.components)
    lines: list[TreeRow] = []
    for group in GROUPS:
        rows = [row for row in report.components if group_of(row.component) is group]
        if not rows:
            continue
        lines.append(_tree_row(group.key, group.title, False, rows, total_ns))
        names = sorted({row.component for row in rows}, key=lambda name: (_RANK.get(name, len(_RANK)), name))
        if names != [group.components[0]] or len(group.components) > 1:
            for name in names:
                mine = [row for row in rows if row.component == name]
                lines.append(_tree_row(group.key, spoken(name), True, mine, total_ns))
    lines.append(_tree_row("total", "All GPU time", False, report.components, total_ns))
    return lines
