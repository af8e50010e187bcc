"""The answer for a job in words and rows, and at a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from rich.console import Console

from tracelens import numbers as f
from tracelens.comparison.step_change import PRACTICAL
from tracelens.gates import Judged
from tracelens.job.result import Cause, Job, JobCollective, JobRank, Parts, Straggler
from tracelens.render.console import Out
from tracelens.render.facts import BANDWIDTH_FROM, known_dims
from tracelens.render.gates import gates_markdown
from tracelens.render.markdown_text import escape, table
from tracelens.render.waits import BOUNDS

#: Of the median: experts' times over the ranks that differ by more are worth a line.
_UNEVEN = 0.1
RANKS = 12  # listed at a terminal: all of a small job, the latest of a large one
COLLECTIVES = 5
_RUNS = 8  # of ranks in a sentence
_PARTS = (
    ("computing_ms", "computing"),
    ("waiting_ms", "waiting for other ranks"),
    ("sending_ms", "sending"),
    ("messages_ms", "sends and receives"),
    ("copies_ms", "copies"),
    ("input_ms", "waiting for input"),
    ("idle_ms", "idle"),
)
_SHORT = {
    "computing_ms": "comp.",
    "waiting_ms": "wait",
    "sending_ms": "send",
    "messages_ms": "p2p",
    "input_ms": "input",
}
_WHY: dict[Cause, Callable[[Straggler], str]] = {
    "cpu": lambda one: (
        f"Its GPU idles {_ms(one, 'idle')} longer before it arrives: its CPU launches kernels late."
    ),
    "input": lambda one: f"It waits {_ms(one, 'input')} longer for its next batch.",
    "slow_gpu": lambda one: f"GEMMs of the same shape take {one.pace:.2f} times as long on its GPU.",
    "more_work": lambda one: (
        f"It computes {_ms(one, 'computing')} longer, at the same speed: it has more work."
    ),
    "experts": lambda one: (
        f"It computes {_ms(one, 'computing')} longer, most of it in its experts: "
        "it gets more tokens than the others."
    ),
    "copies": lambda one: f"Copies take {_ms(one, 'copies')} longer on it.",
    "communication": lambda one: (
        f"It communicates with ranks of another group first ({_ms(one, 'communication')} longer)."
    ),
    "begins_late": lambda one: f"Its step begins {_ms(one, 'begin')} later.",
    "unclear": lambda one: "No single part of its time explains it.",
}
_NEXT: dict[Cause, str] = {
    "cpu": "Look at the CPU of that rank: other processes on its cores, data-loader workers, NUMA placement, "
    "work in Python that the other ranks do not do.",
    "input": "Look at its data loader: its shard, its storage, its number of workers.",
    "slow_gpu": "Look at that GPU: clock, power cap, temperature, another process (nvidia-smi -q).",
    "more_work": "Compare its batch and its layers with those of the other ranks.",
    "experts": "Balance the tokens over the experts (load-balancing loss, capacity, expert placement).",
    "copies": "Look at what it copies that the others do not (pageable memory, checkpoints, logging).",
    "communication": "Look at the other group first: its own page names it.",
    "begins_late": "Look at what it does before the step that the others do not: logging, checkpoints, "
    "evaluation; recording a step more shows it.",
    "unclear": "Record the same steps again; compare this rank's page with another's.",
}


#: What a rank does longer besides its cause, from this share of its lateness on.
_BESIDE = 0.2
_MORE: dict[str, str] = {
    "computing": "it computes {} longer",
    "communication": "it communicates {} longer",
    "copies": "its copies take {} longer",
    "input": "it waits {} longer for its next batch",
    "idle": "its GPU idles {} longer",
    "begin": "its step begins {} later",
}
#: The part that each cause is about; of the others it is computing.
_OF_CAUSE: dict[Cause, str] = {
    "cpu": "idle", "input": "input", "copies": "copies", "communication": "communication",
    "begins_late": "begin",
}  # fmt: skip


def _beside(one: Straggler) -> list[str]:
    """What it also does longer, a sentence."""
    own = _OF_CAUSE.get(one.cause, "computing" if one.cause != "unclear" else "")
    more = [
        _MORE[part].format(f.ms(ms))
        for part, ms in one.more_ms.items()
        if part != own and ms > _BESIDE * one.late_ms
    ]
    return [f"Also {' and '.join(more)}."] if more else []


def _ms(one: Straggler, part: str) -> str:
    return f"{f.ms(max(0.0, one.more_ms.get(part, 0.0)))}"


def verdict(job: Job) -> str:
    """The sentence that answers for the whole job."""
    step = f.ms(job.step_ms)
    if job.limit == "straggler":
        names = ranks_said([one.name for one in job.stragglers])
        late = max(one.late_ms for one in job.stragglers)
        verb = "is" if len(job.stragglers) == 1 else "are"
        share = f.pct(late / job.step_ms)
        others = _others(job)
        return f"{names} {verb} late: {others} {f.ms(late)} of the {step} step ({share})."
    if job.limit == "slow_link":
        one = job.slow_links[0]
        return (
            f"The group of {_numbered(one.ranks)} sends "
            f"{one.send_us / one.others_us:.1f} times as long as the other groups: "
            f"{f.ms(one.more_ms)} of the {step} step."
        )
    middle = _middle(job)
    if job.limit == "pipeline":
        slow = max(row.parts.computing_ms for row in job.ranks)
        return (
            f"The pipeline stage of {ranks_said(job.stages, capital=False)} computes longest: "
            f"{f.ms(slow)} of the {step} step, the median rank {f.ms(middle.computing_ms)}."
        )
    nobody = "no rank or group is late" if job.matched_calls else "no matching calls show who is late"
    if job.limit == "bubbles":
        share = f.pct(middle.messages_ms / job.step_ms)
        return (
            f"Exposed sends and receives take {f.ms(middle.messages_ms)} of the {step} step ({share}): "
            "in a pipeline its bubbles. No stage computes longer than the others."
        )
    if job.limit == "communication":
        lost = middle.waiting_ms + middle.sending_ms
        share = f.pct(lost / job.step_ms)
        return f"Exposed communication takes {f.ms(lost)} of the {step} step ({share}); {nobody}."
    if job.limit == "idle":
        lost = middle.idle_ms + middle.input_ms
        return f"The GPUs idle {f.ms(lost)} of the {step} step ({f.pct(lost / job.step_ms)}); {nobody}."
    if job.limit == "unknown":
        return (
            f"One rank of the job is here: its step takes {step}; who waits for whom needs two ranks or more."
        )
    return f"Computing takes {f.pct(middle.computing_ms / job.step_ms)} of the {step} step; {nobody}."


def _others(job: Job) -> str:
    """Who waits for the late ranks: those that calls tie to the latest."""
    name = job.stragglers[0].name
    beside = next((len(ranks) for ranks in job.clock.shared if name in ranks), len(job.ranks)) - 1
    if beside == 1:
        return "the other rank waits" if len(job.ranks) == 2 else "the rank beside it waits"
    return "the other ranks wait" if beside + 1 == len(job.ranks) else f"{beside} ranks beside it wait"


def details(job: Job) -> list[str]:
    """Why, and where to look next."""
    said = []
    by_cause: dict[Cause, list[Straggler]] = {}
    for one in job.stragglers:
        by_cause.setdefault(one.cause, []).append(one)
    for cause, (one, *others) in by_cause.items():
        of = f"late at {one.calls} of {one.of_calls} calls, most at {one.collective}"
        too = [f"The same holds for {ranks_said([other.name for other in others], capital=False)}."]
        of_many = [f"{one.name.capitalize()} ({f.ms(one.late_ms)}):"] * (len(job.stragglers) > 1)
        said.append(
            " ".join([*of_many, _WHY[cause](one), *_beside(one), f"It is {of}.", *too * bool(others)])
        )
        said.append(f"Next: {_NEXT[cause]}")
    if job.limit == "slow_link":
        said.append("Next: look at the links and switches between those ranks (nccl-tests on them alone).")
    if job.limit == "pipeline":
        said.append(
            "Next: move layers from that stage to the others, or count the embedding and the head as layers."
        )
    if job.limit == "bubbles":
        said.append(
            "Next: in a pipeline, more micro-batches per step, or a schedule that interleaves stages."
        )
    if path := _path(job):
        said.append(path)
    if experts := _experts(job):
        said.append(experts)
    return said


def _path(job: Job) -> str:
    """What the latest rank's critical path has more of than the others'; empty where nobody asked."""
    name = job.stragglers[0].name if job.stragglers else None
    late = next((row.path for row in job.ranks if row.name == name), {})
    others = [row.path for row in job.ranks if row.path and row.name != name]
    if not late or not others:
        return ""
    usual = {bound: median(one.get(bound, 0.0) for one in others) for bound in late}
    said = [
        f"{BOUNDS.get(bound, bound)} {f.pct(late[bound])} ({f.pct(usual[bound])})"
        for bound in sorted(late, key=lambda bound: usual[bound] - late[bound])[:3]
    ]
    return (
        f"Critical path of {name} (of the median other rank), by holistic-trace-analysis: {', '.join(said)}."
    )


def _experts(job: Job) -> str:
    """How unevenly the ranks' experts are loaded; empty where they are not, or are none."""
    usual, least, most = job.components.get("moe.experts", (0.0, 0.0, 0.0))
    if most - least <= _UNEVEN * usual:
        return ""
    return f"The experts take {f.ms(least)} to {f.ms(most)} over the ranks, {f.ms(usual)} on the median one."


#: How to see whether a change helped.
CHECK = "tracelens compare BEFORE AFTER"


def check(job: Job) -> str:
    """What to do before ``CHECK``, and what it takes."""
    ranks = "both ranks" if len(job.ranks) == 2 else "all ranks"
    return f"To see whether a change helped, record {ranks} again with it, and give both folders of traces:"


def caveats(job: Job) -> list[str]:
    """What is missing, and what it leaves open."""
    said = []
    if job.missing:
        said.append(f"No trace of {_numbered(job.missing)}: a late rank among them would not be named.")
    said += [f"Left out: {one.file}: {one.why}" for one in job.left[:8]]
    said += [f"Left out: {len(job.left) - 8} more files"] if len(job.left) > 8 else []
    partial = [row.name for row in job.ranks if row.partial]
    if partial:
        said.append(f"Part of the file could not be read: {ranks_said(partial, capital=False)}.")
    if job.clock.residual_us is None:
        said.append("No collective matches between ranks: arrival and waiting are not known.")
    else:
        said.append(
            f"Clocks are aligned to {f.ms(job.clock.residual_us / 1e3)}; smaller skews are not counted."
        )
    if len(job.clock.shared) > 1:
        said.append(
            f"{len(job.clock.shared)} groups of ranks share no call: arrivals are compared within each."
        )
    if job.unmatched_calls:
        said.append(f"{job.unmatched_calls} calls have no match on the other ranks and are not judged.")
    if not job.steps_marked:
        said.append("No step is marked: the whole trace counts as one step.")
    elif len(job.steps) == 1:
        said.append("One step only: whether other steps are like it is not known.")
    return said


def ranks_said(names: Sequence[str], *, capital: bool = True) -> str:
    """Names of ranks in few words.

    >>> ranks_said(["rank 4", "rank 5", "rank 6", "rank 9"]), ranks_said(["rank 1"], capital=False)
    ('Ranks 4-6, 9', 'rank 1')
    >>> ranks_said([f"rank {rank}" for rank in range(0, 1000, 8)])
    '125 ranks (0, 8, 16, 24, 32, 40, 48, 56, ...)'
    """
    numbers = [int(name[5:]) for name in names if name.startswith("rank ") and name[5:].isdecimal()]
    if len(numbers) < len(names) or not numbers:
        return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    word = "rank" if len(numbers) == 1 else "ranks"
    runs = f.integers(numbers, "-").split(", ")
    if len(runs) > _RUNS:
        return f"{len(numbers)} ranks ({', '.join(runs[:_RUNS])}, ...)"
    return f"{word.capitalize() if capital else word} {', '.join(runs)}"


def _numbered(ranks: Sequence[int]) -> str:
    return ranks_said([f"rank {rank}" for rank in ranks], capital=False)


def identity(job: Job) -> str:
    """Ranks, GPUs, steps."""
    gpus = sorted({row.gpu for row in job.ranks})
    of = f"{len(job.ranks)} of {job.world_size} ranks" if job.world_size else f"{len(job.ranks)} ranks"
    many = len(job.steps)
    steps = f"{many} step{'' if many == 1 else 's'} in common"
    shared = [f"{name} {degree}" for name, degree in job.degrees.items()]
    return " · ".join([of, ", ".join(gpus)[:80], *shared, steps])


def model_line(job: Job) -> str:
    """The dimensions of the whole model that are known; empty where none is."""
    known = [] if job.model is None else known_dims(job.model)
    return " · ".join(one for one in known if one.partition(" ")[0] not in ("tensor", "expert"))


def worst_first(job: Job, most: int) -> list[JobRank]:
    """All ranks of a small job in order; of a large one those that are late, then the slowest."""
    if len(job.ranks) <= most:
        return job.ranks
    return sorted(job.ranks, key=lambda row: (-row.late_ms, -row.parts.step_ms))[:most]


def part_names(job: Job) -> list[tuple[str, str]]:
    """Fields of ``Parts`` and what they are called; sends and receives where the job has any."""
    sends = any(row.parts.messages_ms > 0 for row in job.ranks)
    return [part for part in _PARTS if sends or part[0] != "messages_ms"]


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


def rank_cells(row: JobRank, parts: Sequence[tuple[str, str]]) -> list[str]:
    """Step, each part and the wait that it causes, in ms."""
    return [
        f.sig(row.parts.step_ms),
        *(f.sig(getattr(row.parts, name)) for name, _ in parts),
        f.sig(row.late_ms),
    ]


def collective_cells(row: JobCollective) -> list[str]:
    """The cells under ``COLLECTIVE_HEADS``."""
    skew = f.DASH if row.skew_us is None else f"{f.ms(row.skew_us[0] / 1e3)}, {f.ms(row.skew_us[1] / 1e3)}"
    last = f.DASH if row.last is None or row.last_frac is None else f"{row.last} ({f.pct(row.last_frac)})"
    group = f"group {row.group}" if row.group.isdecimal() else row.group
    return [
        f"{row.collective} {group}".strip(),
        f.nbytes(row.bytes) if row.bytes else f.DASH,
        f.sig(row.calls_per_step),
        skew,
        last,
        f.ms(row.waiting_ms),
        f.ms(row.send_us / 1e3) if row.send_us is not None else f.DASH,
        f.ms(row.one_node_us / 1e3) if row.one_node_us is not None else f.DASH,
        f"{f.sig(row.bus_gbps)} GB/s" if row.bus_gbps and (row.bytes or 0) >= BANDWIDTH_FROM else f.DASH,
    ]


COLLECTIVE_HEADS = [
    "Collective",
    "Size",
    "Calls",
    "Skew: median, p95",
    "Last",
    "Waiting",
    "Sending",
    "In one node",
    "Bus",
]
COLLECTIVE_NOTE = (
    "In one node: what sending takes among so many of these GPUs within one node, by published times of NCCL "
    "for 1 MB to 1 GB. Bus: bandwidth as nccl-tests counts it, of messages of 1 MB and more."
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


def finding_lines(job: Job) -> list[str]:
    """Findings of the ranks, and what the job gains by them."""
    lines = []
    for one in job.findings:
        of = "on all ranks" if one.ranks == len(job.ranks) else f"on {one.ranks} of {len(job.ranks)} ranks"
        finding = one.finding
        claim, why = f.saving(
            finding.saving_ms,
            finding.saving_frac,
            finding.basis,
            of=finding.saving_of,
            marked=job.steps_marked,
        )
        gain = "those ranks wait for late ones, so the step gains nothing yet" * (one.saves_step is False)
        said = gain or f"{claim}; {why}"
        lines.append(f"{finding.rule} {finding.title}, {of}. {said[0].upper()}{said[1:]}.")
    return lines


def _middle(job: Job) -> Parts:
    return Parts(*(median(getattr(row.parts, name) for row in job.ranks) for name, _ in _PARTS))


def render_job(job: Job, *, console: Console, outputs: Sequence[tuple[str, int]] = ()) -> None:
    """Print the answer; about 30 lines, 80 columns."""
    out = Out(console)
    out.line(identity(job), "dim")
    if model := model_line(job):
        out.line(model, "dim")
    out.line(verdict(job), "bold")
    for line in details(job):
        out.line(f"  {line}")
    out.line()
    parts = part_names(job)
    heads = ["step", *(_SHORT.get(name, said) for name, said in parts), "late"]
    rows = out.table([("", "l"), *((head, "r") for head in heads)])
    for row in worst_first(job, RANKS):
        late = any(row.name == one.name for one in job.stragglers)
        name, *cells = row.name, *rank_cells(row, parts)
        rows.add_row(
            out.text(f"  {name}", "bold" if late else "", limit=24), *(out.text(cell) for cell in cells)
        )
    out.print(rows)
    more = len(job.ranks) - len(worst_first(job, RANKS))
    out.line(
        f"  {f'and {more} more ranks; ' if more else ''}ms per step; late: what the others wait for it", "dim"
    )
    out.line()
    waited = [row for row in job.collectives if row.waiting_ms > 0][:COLLECTIVES]
    if waited:
        lines = out.table(
            [("  collective", "l"), *((head, "r") for head in ("size", "skew", "last", "waiting"))]
        )
        for call in waited:
            _, size, _, skew, last, waiting, *_ = collective_cells(call)
            shown = (size, skew.partition(",")[0], last, waiting)
            lines.add_row(out.text(f"  {call.collective}"), *(out.text(cell) for cell in shown))
        out.print(lines)
        out.line()
    for line in finding_lines(job)[:COLLECTIVES]:
        out.line(f"  {line}")
    out.line(f"  {check(job)} {CHECK}")
    for line in caveats(job):
        out.line(f"  {line}", "dim")
    for path, written in outputs:
        size = f" ({f.nbytes(written)})"
        out.line(out.text("wrote ", "dim") + out.text(path, "bold") + out.text(size, "dim"))


def job_markdown(job: Job, *, gates: Sequence[Judged] = ()) -> str:
    """The answer as Markdown, in the terminal's order."""
    lines = [f"**{escape(verdict(job))}**", "", *(f"- {escape(line)}" for line in details(job)), ""]
    lines += [escape(identity(job)), "", *[escape(model_line(job)), ""] * bool(model_line(job))]
    lines += gates_markdown(gates)
    rows = worst_first(job, 64)
    parts = part_names(job)
    lines += table(["", "step, ms", *(name for _, name in parts), "others wait"],
                   [[row.name, *rank_cells(row, parts)] for row in rows])  # fmt: skip
    lines += ["", f"and {len(job.ranks) - len(rows)} more ranks"] if len(rows) < len(job.ranks) else []
    if job.collectives:
        lines += ["", *table(COLLECTIVE_HEADS, [collective_cells(row) for row in job.collectives[:20]])]
        lines += ["", COLLECTIVE_NOTE]
    said = finding_lines(job)
    lines += ["", "### Findings", "", *(f"- {escape(line)}" for line in said)] if said else []
    lines += ["", f"{escape(check(job))} `{CHECK}`"]
    lines += ["", *(f"- {escape(line)}" for line in caveats(job))]
    return "\n".join(lines) + "\n"
