"""The answer for a job in sentences: who is late, why, what is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from shlex import quote
from statistics import median

from tracelens import numbers as f
from tracelens.comparison.step_change import PRACTICAL
from tracelens.job.waits import RESIDUALS
from tracelens.render.communication import slow_sends
from tracelens.render.facts import GENERATED, known_dims
from tracelens.render.waits import BOUNDS
from tracelens.results.job import Cause, Job, JobRank, Parts, SeenAt, Straggler

#: Of the median: experts' times over the ranks that differ by more are worth a line.
_UNEVEN = 0.1
_RUNS = 8  # of ranks in a sentence
_SHELL = set('"$`\\!')  # what a shell reads between double quotes
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
    "cpu": "look at its CPU: other processes on its cores, NUMA placement, Python work that others lack.",
    "input": "look at its data loader: its shard, its storage, its number of workers.",
    "slow_gpu": "look at that GPU: clock, power cap, temperature, another process (nvidia-smi -q).",
    "more_work": "compare its batch and its layers with those of the other ranks.",
    "experts": "balance the tokens over the experts (load-balancing loss, capacity, expert placement).",
    "copies": "look at what it copies that the others do not (pageable memory, checkpoints, logging).",
    "communication": "look at the other group first: its own page names it.",
    "begins_late": "look at what it does before the step that the others do not: logging, checkpoints, "
    "evaluation; recording a step more shows it.",
    "unclear": "record the same steps again; compare this rank's page with another's.",
}


#: What a rank does longer besides its cause, from this share of its lateness on.
_BESIDE = 0.2
_SHORT = 0.5  # of the median rank's collectives: whose take less did not wait in them
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
        if job.missing:  # one of them can be later still
            names = ranks_said([one.name for one in job.stragglers], capital=False)
            others = "the other comes" if len(job.ranks) == 2 else "the others come"
            late_by = f"{f.ms(late)} earlier in the {step} step ({share})"
            return f"Of the ranks with a trace, {names} {verb} late: {others} {late_by}."
        whom = f" for {job.stragglers[0].name}" * (len(job.stragglers) > 1)
        return f"{names} {verb} late: {_others(job)} {f.ms(late)} of the {step} step ({share}){whom}."
    if job.limit == "slow_link":
        one = job.slow_links[0]
        return (
            f"The group of {_numbered(one.ranks)} sends {one.send_us / one.others_us:.1f} times as long as"
            f" the other groups: {f.ms(one.more_ms)} of the {step} step."
        )
    middle = _middle(job)
    if job.limit == "pipeline":
        slow = max(row.parts.computing_ms for row in job.ranks)
        whole = _mean_step(job)[0]
        return (
            f"The pipeline stage of {ranks_said(job.stages, capital=False)} computes longest: "
            f"{f.ms(slow)} of the {whole}, the median rank {f.ms(middle.computing_ms)}."
        )
    nobody = _nobody(job) if job.waits_told else "the clocks do not show who is late"
    nobody = nobody if job.matched_calls else "no matching calls show who is late"
    least = "at least " * job.communication_is_bound
    if job.limit == "bubbles":
        return (
            f"Exposed sends and receives take {least}{_of_step(job, middle.messages_ms)}: "
            "in a pipeline its bubbles. No stage computes longer than the others."
        )
    if job.limit == "communication":
        lost = _in_collectives(middle)
        takes = f"exposed communication takes {least}{_of_step(job, lost)}; {nobody}."
        of_median = _waited_for(job) is not None and "median" not in takes
        return f"On the median rank {takes}" if of_median else f.capital(takes)
    if job.limit == "idle":
        lost = middle.idle_ms + middle.input_ms
        return f"The GPUs idle {_of_step(job, lost)}; {nobody}."
    if job.limit == "unknown":
        whole, mean_ms = _mean_step(job)
        mean = f" ({f.ms(mean_ms)} on average)" * (whole != f"{step} step")
        return f"One rank of the job is here: its step takes {step}{mean}; two ranks show who waits."
    whole, mean_ms = _mean_step(job)
    most = "at most " * job.communication_is_bound
    return f"Computing takes {most}{f.pct(middle.computing_ms / mean_ms)} of the {whole}; {nobody}."


def _nobody(job: Job) -> str:
    """No rank stands out: for whom the others wait all the same, where that is long."""
    late = [row for row in job.ranks if row.late_ms > PRACTICAL * job.step_ms]
    late = sorted(late, key=lambda row: -row.late_ms)[:2]
    waits = f.listed([f"{f.ms(row.late_ms)} for {row.name}" for row in late])
    return f"no one rank is late: others wait {waits}" if late else "no rank or group is late"


def _mean_step(job: Job) -> tuple[str, float]:
    """The step that a rank's parts add up to, a mean; where it is not the job's median, it says whose."""
    mean_ms = median(row.parts.step_ms for row in job.ranks)
    step = f"{f.ms(mean_ms)} step"
    if step == f"{f.ms(job.step_ms)} step":
        return step, mean_ms
    return f"median rank's {step}", mean_ms


def _of_step(job: Job, part_ms: float) -> str:
    whole, mean_ms = _mean_step(job)
    return f"{f.ms(part_ms)} of the {whole} ({f.pct(part_ms / mean_ms)})"


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
        rest = f" ({one.close_calls} too close)" * (one.close_calls > 0)
        of = f"late at {one.calls} of {one.of_calls} clear collectives{rest}"
        if one.least_ms is not None and one.most_ms is not None:
            of += f"; others wait {f.ms_range(one.least_ms, one.most_ms)}"
        too = [f"The same holds for {ranks_said([other.name for other in others], capital=False)}."]
        of_many = [f"{one.name.capitalize()} ({f.ms(one.late_ms)}):"] * (len(job.stragglers) > 1)
        said.append(
            " ".join([*of_many, _WHY[cause](one), *_beside(one), f"{f.capital(of)}.", *too * bool(others)])
        )
        said.append(f"Next: {_NEXT[cause]} Saves at most {f.ms(_saves(job, [one, *others]))} per step.")
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
    if job.limit == "communication" and (first := _waited_for(job)) is not None:
        takes, usual = (f.ms(_in_collectives(parts)) for parts in (first.parts, _middle(job)))
        said.append(
            f"Next: look at {first.name}: its collectives take {takes}, those of the median rank {usual}. "
            "A collective ends on all ranks together, so it is short on the one that comes last."
        )
    said += slow_sends(job)
    if path := _path(job):
        said.append(path)
    if experts := _experts(job):
        said.append(experts)
    return said


def _waited_for(job: Job) -> JobRank | None:
    """Without matching calls: the rank whose collectives take least, where that is far below the median's."""
    one = min(job.ranks, key=lambda row: _in_collectives(row.parts))
    short = _in_collectives(one.parts) < _SHORT * _in_collectives(_middle(job))
    return one if short and not job.matched_calls else None


def _in_collectives(parts: Parts) -> float:
    return parts.waiting_ms + parts.sending_ms


def _saves(job: Job, late: Sequence[Straggler]) -> float:
    """What these ranks cost at most: waits for one go on as waits for another, as long as a rank waits."""
    each = sum(one.most_ms or one.late_ms for one in late)
    return each if len(late) == 1 else min(each, max(row.parts.waiting_ms for row in job.ranks))


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


def evidence(job: Job) -> tuple[list[str], list[str]]:
    """How to check what is said: sentences, and commands that run in the folder of the traces."""
    rows = {row.name: row for row in job.ranks}
    at = job.stragglers[0].seen_at if job.stragglers else None
    shown = [job.ranks[0].name] if at is None else [at.late.name, at.waiting.name]
    said, commands = [], []
    if at is not None:
        said.append(_seen(at))
        commands += [_kernel(rows[one.name].file, one.start_ns) for one in (at.late, at.waiting)]
        commands.append(f"tracelens open {quote(rows[at.late.name].file)}")
    idle = [f"{f.ms(rows[name].parts.idle_ms + rows[name].parts.input_ms)} on {name}" for name in shown]
    exposed = [f"{f.ms(rows[name].parts.exposed_ms)} on {name}" for name in shown]
    said.append(
        f"Each rank's own report says the same of its step: idle {f.listed(idle)}; exposed communication "
        f"(waiting and sending) {f.listed(exposed)}."
    )
    commands += [f"tracelens analyze {quote(rows[name].file)}" for name in shown]
    return said, commands


def _seen(at: SeenAt) -> str:
    """Why the wait can be read in two files without a common clock."""
    size = f" of {f.nbytes(at.bytes)}" if at.bytes else ""
    return (
        f"{at.collective}{size} in step {at.step} shows it best. It ends on all ranks together, so its "
        f"kernel is short on the rank that comes last: {f.ms(at.late.us / 1e3)} on {at.late.name}, "
        f"{f.ms(at.waiting.us / 1e3)} on {at.waiting.name}."
    )


def _kernel(file: str, start_ns: int) -> str:
    """Prints the ms of the kernel that begins then."""
    code = (
        f"import tracelens; k = tracelens.analyze({file!r}).kernels; "
        f"print(k[k.ts_ns == {start_ns}].dur_ns / 1e6)"
    )
    return f"python -c {quote(code)}" if set(code) & _SHELL else f'python -c "{code}"'


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
        said.append(
            f"No trace of {_numbered(job.missing)}: a late rank among them would not be named, and waiting"
            " for it counts as sending."
        )
    said += [f"Left out: {one.file}: {one.why.rstrip('.')}." for one in job.left[:8]]
    said += [f"Left out: {len(job.left) - 8} more files."] if len(job.left) > 8 else []
    partial = [row.name for row in job.ranks if row.partial]
    if partial:
        said.append(f"Part of the file could not be read: {ranks_said(partial, capital=False)}.")
    if job.clock.residual_us is None:
        said.append("No collective could be matched between ranks: arrival and waiting are not known.")
    else:
        said.append(
            f"Clocks are aligned to {f.ms(job.clock.residual_us / 1e3)}: no skew below"
            f" {f.ms(RESIDUALS * job.clock.residual_us / 1e3)} is counted."
        )
    if len(job.clock.shared) > 1:
        said.append(
            f"{len(job.clock.shared)} groups of ranks share no call: arrivals are compared within each."
        )
    if job.calls_of_no_group:
        said.append(
            f"{job.calls_of_no_group} calls are recorded without their group of ranks and are not judged. "
            "A current PyTorch names it, except in CUDA graphs and of kernels of other libraries than NCCL."
        )
    if alone := job.unmatched_calls - job.calls_of_no_group:
        said.append(f"{alone} calls have no match on the other ranks and are not judged.")
    if job.communication_is_bound and job.coverage is not None:
        unknown = f.pct(1 - job.coverage.component_frac)
        said.append(f"Unknown GPU time ({unknown} of a rank's) counts as computing.")
    if not job.steps_marked:
        said.append("No step is marked: the whole trace counts as one step.")
    elif len(job.steps) == 1:
        said.append("One step only: others can differ.")
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
    whole = f" of {job.world_size}" if job.world_size else ""
    of = f"{len(job.ranks)}{whole} rank{'' if (job.world_size or len(job.ranks)) == 1 else 's'}"
    many = len(job.steps)
    steps = f"{many} step{'' if many == 1 else 's'} in common"
    shared = [f"{name} {degree}" for name, degree in job.degrees.items()]
    made = [GENERATED] if job.generated else []
    return " · ".join([*made, of, ", ".join(gpus)[:80], *shared, steps])


def model_line(job: Job) -> str:
    """The dimensions of the whole model that are known; empty where none is."""
    known = [] if job.model is None else known_dims(job.model)
    return " · ".join(one for one in known if one.partition(" ")[0] not in ("tensor", "expert"))


def _middle(job: Job) -> Parts:
    return Parts(*(median(getattr(row.parts, name) for row in job.ranks) for name in Parts.__struct_fields__))
