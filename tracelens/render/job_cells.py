"""The rows of a job's tables: ranks, collectives, nodes and groups, findings."""

from __future__ import annotations

from tracelens import numbers as f
from tracelens.comparison.step_change import PRACTICAL
from tracelens.render import facts
from tracelens.render.facts import BANDWIDTH_FROM
from tracelens.render.groups import GROUPS
from tracelens.render.job_words import ranks_said
from tracelens.results.job import Job, JobCollective, JobFinding, JobRank

SMALL = 0.01  # of the step: a finding below it is not told at a terminal
_LARGEST = 3  # groups of components named in a line
_PARTS = (
    ("computing_ms", "computing"),
    ("waiting_ms", "waiting for other ranks"),
    ("sending_ms", "sending"),
    ("messages_ms", "sends and receives"),
    ("copies_ms", "copies"),
    ("input_ms", "waiting for input"),
    ("idle_ms", "idle"),
)


def worst_first(job: Job, most: int) -> list[JobRank]:
    """All ranks of a small job in order; of a large one those that are late, then the slowest."""
    if len(job.ranks) <= most:
        return job.ranks
    return sorted(job.ranks, key=lambda row: (-row.late_ms, -row.parts.step_ms))[:most]


def component_rows(job: Job) -> list[tuple[str, tuple[float, float, float]]]:
    """Each group of components with its ms per step: median, least and most over the ranks, longest first."""
    title = {group.key: group.title for group in GROUPS}
    return [(title[key], times) for key, times in job.groups.items()]


def largest_components(job: Job) -> str:
    """The components that take most GPU time on the median rank, in a line; "" where none is known."""
    short = {group.key: group.short for group in GROUPS}
    named = [f"{short[key]} {f.ms(times[0])}" for key, times in list(job.groups.items())[:_LARGEST]]
    return f"most GPU time: {', '.join(named)}" if named else ""


def part_names(job: Job) -> list[tuple[str, str]]:
    """Fields of ``Parts`` and what they are called; sends and receives where the job has any.

    Where no call tells who waits, nothing tells waiting from sending: both are communication.
    """
    sends = any(row.parts.messages_ms > 0 for row in job.ranks)
    parts = [part for part in _PARTS if sends or part[0] != "messages_ms"]
    if job.waits_told:
        return parts
    return [
        (name, "communication" if name == "sending_ms" else said)
        for name, said in parts
        if name != "waiting_ms"
    ]


def bar_parts(job: Job) -> list[tuple[str, str]]:
    """Parts of a rank's bar: as ``part_names``, with computing split by whether it hides communication."""
    first, *rest = part_names(job)
    return [first, ("hidden_ms", "computing that hides communication"), *rest]


def bar_ms(row: JobRank, name: str) -> float:
    """ms of a part of ``bar_parts``."""
    if name == "hidden_ms":
        return row.hidden_ms
    ms: float = getattr(row.parts, name)
    return ms - row.hidden_ms if name == "computing_ms" else ms


def rank_cells(job: Job, row: JobRank) -> list[str]:
    """Step, each part and the wait that it causes, in ms; a dash where no call tells who waits."""
    return [
        f.sig(row.parts.step_ms),
        *(f.sig(getattr(row.parts, name)) for name, _ in part_names(job)),
        f.sig(row.late_ms) if job.waits_told else f.DASH,
    ]


def collective_cells(row: JobCollective) -> list[str]:
    """The cells under ``COLLECTIVE_HEADS``."""
    skew = f.DASH if row.skew_us is None else f"{f.ms(row.skew_us[0] / 1e3)}, {f.ms(row.skew_us[1] / 1e3)}"
    last = f.DASH if row.last is None or row.last_frac is None else f"{row.last} ({f.pct(row.last_frac)})"
    group = f"group {row.group}" if row.group.isdecimal() else row.group
    return [
        f"{row.collective} {group}".strip(),
        f.nbytes(row.bytes) if row.bytes else f.DASH,
        f.sig(row.calls_per_step / row.groups),
        skew,
        last,
        f.ms(row.waiting_ms),
        f.ms(row.send_us / 1e3) if row.send_us is not None else f.DASH,
        f.ms(row.one_node_us / 1e3) if row.one_node_us is not None else f.DASH,
        f"{f.sig(row.bus_gbps)} GB/s" if row.bus_gbps and (row.bytes or 0) >= BANDWIDTH_FROM else f.DASH,
    ]


COLLECTIVE_HEADS = [
    "Collective", "Size", "Calls", "Skew: median, p95", "Last", "Waiting", "Sending a call", "In one node",
    "Bus",
]  # fmt: skip
COLLECTIVE_NOTE = (
    "Calls and waiting are of one rank, per step; skew is of clear calls, sending of one call."
    " In one node: what NCCL takes for it on as many of these GPUs in one node, as published for 1 MB to"
    " 1 GB. Bus: bandwidth as nccl-tests counts it, of messages of 1 MB and more."
)


BLOCK_HEADS = ["Node or group", "Ranks", "Own time", "Others of its kind", "More", "Slowest"]


def block_rows(job: Job) -> list[list[str]]:
    """Nodes and groups that take longer than the others of their kind, by how much."""
    longest = sorted(
        (one for one in job.blocks if one.own_ms > (1 + PRACTICAL) * one.usual_ms),
        key=lambda one: one.usual_ms - one.own_ms,
    )
    return [
        [
            one.name or one.kind,
            ranks_said(one.ranks, capital=False).partition(" ")[2]
            if len(one.ranks) <= 64
            else f"{len(one.ranks)} ranks",
            f.ms(one.own_ms),
            f.ms(one.usual_ms),
            f.pct(one.own_ms / one.usual_ms - 1) if one.usual_ms else f.DASH,
            one.slowest,
        ]
        for one in longest
    ]


def _on(one: JobFinding, job: Job) -> str:
    return "on all ranks" if one.ranks == len(job.ranks) else f"on {one.ranks} of {len(job.ranks)} ranks"


def short_findings(job: Job) -> list[str]:
    """Findings of the ranks, a line or two each: what is saved at most or about; small ones the page has."""
    lines = []
    for one in job.findings:
        most = one.finding.saving_frac.high
        if most is not None and most < SMALL:
            continue
        saving, share = one.finding.saving_ms, one.finding.saving_frac
        bound = saving.mid is None or one.finding.saving_of != "step"
        time, part = (saving.high, share.high) if bound else (saving.mid, share.mid)
        gain = f"{'at most' if bound else 'about'} {f.ms(time)} ({f.pct(part)})"
        gain = "no gain while those ranks wait" if one.saves_step is False else gain
        title = one.finding.action
        lines.append(f"{one.finding.rule} {title}, {_on(one, job)}: {gain}.")
    return lines


def finding_lines(job: Job) -> list[str]:
    """Findings of the ranks, and what the job gains by them."""
    lines = []
    for one in job.findings:
        of = _on(one, job)
        finding = one.finding
        claim, why = facts.claimed(finding, marked=job.steps_marked)
        gain = "those ranks wait for late ones, so the step gains nothing yet" * (one.saves_step is False)
        said = gain or f"{claim}; {why}"
        lines.append(f"{finding.rule} {finding.title}, {of}. {said[0].upper()}{said[1:]}.")
    return lines
