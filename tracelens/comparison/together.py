"""Many pairs of files seen as one: the job's step, medians over the pairs, and what most of them agree on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from tracelens.comparison import words
from tracelens.comparison.causes import added_up
from tracelens.comparison.changes import LONG_STEP
from tracelens.comparison.gemms import Place
from tracelens.comparison.moves import find_moves
from tracelens.comparison.same_work import stand_out
from tracelens.comparison.step_change import PRACTICAL, spread, step_change
from tracelens.results import ModelDims
from tracelens.results.comparison import (
    Cause,
    ComponentChange,
    Noise,
    OutcomeState,
    SetupChange,
    Side,
    StepChange,
    StepPart,
)
from tracelens.results.folders import (
    NOT_COMPARED,
    SCHEMA_VERSION,
    FilePair,
    FolderComparison,
    FolderKind,
    FolderSide,
    MatchedBy,
    SharedChange,
    SharedOutcome,
    SharedPeak,
    Unpaired,
)
from tracelens.sums import summed
from tracelens.version import __version__


@dataclass(frozen=True, slots=True)
class Compared:
    """What is kept of one pair of files."""

    pair: FilePair
    sides: tuple[Side, Side]
    models: tuple[ModelDims, ModelDims]
    steps: tuple[dict[int, float], dict[int, float]]  # step's number -> ms
    step: StepChange | None  # None where times are not compared
    parts: list[StepPart]
    noise: Noise | None
    changes: list[SetupChange]
    components: list[ComponentChange]
    findings: set[tuple[str, str, OutcomeState]]  # rule, title, state
    caveats: list[str]
    not_compared: list[str]  # why times are not
    peaks: dict[Place, tuple[float | None, float | None]]


def together(
    found: list[Compared], *, by: MatchedBy, folders: tuple[Path, Path], left: list[Unpaired]
) -> FolderComparison:
    kind = _kind(found, by)
    refused = list(dict.fromkeys(why for one in found for why in one.not_compared))
    if refused:  # of the whole: a median over some of the pairs would be another job's
        found = [_without_times(one) for one in found]
    noise = _noise([one.noise for one in found])
    times = _times(found, kind)
    step, why = _step(found, kind, times)
    components = _components(found)
    told = _telling(found, step) if kind == "ranks" else None
    return FolderComparison(
        SCHEMA_VERSION, __version__, kind, by,
        _side(folders[0], [one.sides[0] for one in found], times[0]),
        _side(folders[1], [one.sides[1] for one in found], times[1]),
        verdict="",
        detail="",
        step=step,
        why=why,
        pairs=[one.pair for one in found],
        stands_out=stand_out([one.pair for one in found]) if kind == "ranks" and not refused else [],
        parts=_parts(found),
        noise=noise,
        changes=_changes(found),
        components=components,
        findings=_findings(found),
        left=left,
        caveats=[*_caveats(found), *(_long_steps(found) if not refused else [])],
        not_compared=refused,
        peaks=_peaks(found) if refused else [],
        moves=find_moves(components, [], noise=noise, gpu_ms=sum(row.before_ms for row in components)),
        causes=_causes(found if told is None else [told], step, noise),
        causes_of=None if told is None else told.pair.name,
    )  # fmt: skip


def _without_times(one: Compared) -> Compared:
    pair = replace(one.pair, state=NOT_COMPARED, diff_frac=None, p=None, causes=[], step=None)
    return replace(one, pair=pair, step=None, parts=[], noise=None, components=[])


def _peaks(found: list[Compared]) -> list[SharedPeak]:
    places = list(dict.fromkeys(place for one in found for place in one.peaks))
    rows = []
    for place in places:
        every = [one.peaks[place] for one in found if place in one.peaks]
        sides = [[known for known in side if known is not None] for side in zip(*every, strict=True)]
        old, new = (median(side) if side else None for side in sides)
        rows.append(SharedPeak(*place, old, new, len(every)))
    return rows


def _kind(found: list[Compared], by: MatchedBy) -> FolderKind:
    """Ranks of one job; runs of one model; or files of different ones."""
    if by == "rank":
        return "ranks"
    first = found[0]
    same = all(
        one.models[side] == first.models[side]
        and (one.sides[side].rank, one.sides[side].gpu, one.sides[side].dtype)
        == (first.sides[side].rank, first.sides[side].gpu, first.sides[side].dtype)
        for one in found
        for side in (0, 1)
    )
    return "runs" if same else "files"


Times = tuple[list[float], list[float]]


def _times(found: list[Compared], kind: str) -> Times:
    """What the step of the whole is judged by, on both sides; nothing where no such step is."""
    steps = [one.step for one in found if one.step is not None]
    if len(steps) < len(found):
        return [], []
    if len(found) == 1:
        one = found[0]
        return list(one.steps[0].values()), list(one.steps[1].values())
    if kind == "ranks":
        return _job_steps([one.steps[0] for one in found]), _job_steps([one.steps[1] for one in found])
    if kind == "runs":
        return [step.before.median for step in steps], [step.after.median for step in steps]
    return [], []


def _step(found: list[Compared], kind: str, sides: Times) -> tuple[StepChange | None, str]:
    """The step of the whole: of the job's steps, or of the runs' medians."""
    steps = [one.step for one in found if one.step is not None]
    if len(steps) < len(found):
        return None, words.NO_TIMES
    if len(steps) == 1:
        return steps[0], words.ONE_PAIR
    if kind == "files":
        return None, words.OTHER_MODELS
    identical = all(step.state == "identical" for step in steps)
    if kind == "ranks":
        why, what = words.SLOWEST_RANK, "steps"
        if not sides[0] or not sides[1]:
            return None, words.OTHER_STEPS
    else:
        why, what = words.RUNS_ONCE, "runs"
    change = step_change(
        sides[0], sides[1], medians=(spread(sides[0]), spread(sides[1])), identical=identical, what=what
    )
    return change, why


def _job_steps(ranks: Sequence[dict[int, float]]) -> list[float]:
    """The job's steps: of each that all ranks recorded, the longest."""
    common = set.intersection(*(set(steps) for steps in ranks))
    if not common and len({len(steps) for steps in ranks}) == 1:
        rows = [list(steps.values()) for steps in ranks]  # numbered otherwise, but as many
        return [max(times) for times in zip(*rows, strict=True)]
    return [max(steps[number] for steps in ranks) for number in sorted(common)]


def _telling(found: list[Compared], step: StepChange | None) -> Compared | None:
    """The rank that made the job's step change: of those that changed as it did, the one that waits least.

    Ranks wait for each other, so what one of them takes more is exposed communication on all others.
    """
    if step is None or step.state == "identical" or len(found) < 2:
        return None

    def off(one: Compared) -> float:
        return abs(one.pair.after.step_ms - one.pair.before.step_ms - step.diff_ms)

    def waits(one: Compared) -> float:
        more = sum(cause.diff_ms for cause in one.pair.causes if cause.code == "exposed_communication")
        return more if step.diff_ms > 0 else -more

    near = max(PRACTICAL * step.before.median, min(map(off, found)))
    return min((one for one in found if off(one) <= near), key=waits)


def _causes(found: list[Compared], step: StepChange | None, noise: Noise | None) -> list[Cause]:
    """Means of the pairs' causes, and what the whole changed by beside them."""
    if step is None or step.state == "identical":
        return []
    causes = [cause for one in found for cause in one.pair.causes]
    sums = summed((cause.code, cause.diff_ms / len(found)) for cause in causes)
    return added_up(sums, "across_pairs", step.diff_ms, noise)


def _side(folder: Path, sides: list[Side], times: list[float]) -> FolderSide:
    mfu = [one.mfu_frac for one in sides if one.mfu_frac is not None]
    why = [one.mfu_why or words.NOT_JUDGED for one in sides if one.mfu_frac is None]
    worlds = {one.world_size for one in sides}
    dtypes = {one.dtype for one in sides}
    return FolderSide(
        path=folder.resolve().name or str(folder),
        files=len(sides),
        gpu_title=", ".join(sorted({one.gpu_title for one in sides})),
        dtype=next(iter(dtypes)) if len(dtypes) == 1 else None,
        world_size=next(iter(worlds)) if len(worlds) == 1 else None,
        generated=any(one.generated for one in sides),
        partial=any(one.partial for one in sides),
        steps_ms=times,
        gpu_busy_frac=median(one.gpu_busy_frac for one in sides),
        gemm_frac=median(one.gemm_frac for one in sides),
        mfu_frac=None if why else median(mfu),
        mfu_why=why[0] if why else next((one.mfu_why for one in sides if one.mfu_why), None),
        gemm_frac_is_bound=any(one.gemm_frac_is_bound for one in sides),
        communication_is_bound=any(one.communication_is_bound for one in sides),
        mfu_is_bound=any(one.mfu_is_bound for one in sides),
        steps_marked=all(one.steps_marked for one in sides),
    )


def _parts(found: list[Compared]) -> list[StepPart]:
    return [
        StepPart(
            part.name,
            median(one.parts[at].before_ms for one in found),
            median(one.parts[at].after_ms for one in found),
        )
        for at, part in enumerate(found[0].parts)
    ]


def _noise(every: Sequence[Noise | None]) -> Noise | None:
    """The pace of the GPUs in the middle of the pairs; None where most pairs do not show theirs."""
    known = [one for one in every if one is not None]
    if 2 * len(known) <= len(every):
        return None
    return Noise(
        round(median(one.rows for one in known)),
        median(one.share_frac for one in known),
        median(one.mid_frac for one in known),
        median(one.low_frac for one in known),
        median(one.high_frac for one in known),
    )


def _changes(found: list[Compared]) -> list[SharedChange]:
    """Every change once, with the number of pairs; those of the model first, as in one pair."""
    seen: dict[str, list[SetupChange]] = {}
    for one in found:
        for said, change in {change.said: change for change in one.changes}.items():
            seen.setdefault(said, []).append(change)
    order = ("model", "communication", "software", "kernels")
    shared = [SharedChange(changes[0], len(changes)) for changes in seen.values()]
    return sorted(shared, key=lambda one: (order.index(one.change.kind), -one.pairs))


def _findings(found: list[Compared]) -> list[SharedOutcome]:
    counts = Counter(key for one in found for key in sorted(one.findings))
    return [SharedOutcome(*key, many) for key, many in counts.items()]


def _components(found: list[Compared]) -> list[ComponentChange]:
    rows: dict[tuple[str, str], list[ComponentChange]] = {}
    for one in found:
        for row in one.components:
            rows.setdefault((row.component, row.phase), []).append(row)
    merged = [_component(key, every, len(found)) for key, every in rows.items()]
    return sorted(merged, key=lambda row: -abs(row.diff_ms))


def _component(key: tuple[str, str], rows: list[ComponentChange], pairs: int) -> ComponentChange:
    """Medians; judged where more than half of the pairs judge it, and as more than half of those say."""

    def middle(values: Iterable[float]) -> float:
        known = list(values)
        return median([*known, *[0.0] * (pairs - len(known))])  # a pair without such kernels

    before, after = middle(row.before_ms for row in rows), middle(row.after_ms for row in rows)
    diff = middle(row.diff_ms for row in rows)
    known = [row for row in rows if row.beyond_noise is not None]
    moved = [row for row in known if row.beyond_noise and row.diff_ms * diff > 0]
    told = None if 2 * len(known) <= pairs else 2 * len(moved) > pairs
    counted = moved if told else [row for row in rows if row.beyond_noise is None] if told is None else rows
    why = Counter(row.why for row in counted).most_common(1)[0][0] if counted else ""
    if told and pairs > 1:
        why = words.in_pairs(len(moved), pairs, why)
    return ComponentChange(
        *key, before, after, diff, after / before - 1 if before and after else None,
        middle(row.before_kernels for row in rows), middle(row.after_kernels for row in rows), told, why,
        bool(told) and 2 * sum(row.alike for row in moved) > len(moved),
    )  # fmt: skip


def _caveats(found: list[Compared]) -> list[str]:
    counts = Counter(said for one in found for said in dict.fromkeys(one.caveats))
    return [words.of_pairs(said, many, len(found)) for said, many in counts.items()]


def _long_steps(found: list[Compared]) -> list[str]:
    """Steps that are no normal ones, and on how many files they are that."""
    said = []
    for at, side in enumerate(("before", "after")):
        long: Counter[int] = Counter()
        for one in found:
            times = one.steps[at]
            middle = median(times.values()) if len(times) > 2 else 0.0
            long.update(number for number, ms in times.items() if middle and ms > LONG_STEP * middle)
        said += [
            words.long_on_many(side, number, LONG_STEP, (many, len(found)))
            for number, many in sorted(long.items())
        ]
    return said
