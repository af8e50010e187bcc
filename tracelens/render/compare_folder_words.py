"""The sentences of a comparison of two folders."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import median

from tracelens import numbers as f
from tracelens.comparison.spelling import arrow_ms, arrow_pct
from tracelens.render.compare_words import (
    ONE_RUN,
    OWN_PEAK,
    computing_ms,
    control,
    kinds_in_words,
    left_open,
    not_compared,
    p_in_words,
    step_verdict,
)
from tracelens.results.folders import (
    NOT_COMPARED,
    FolderComparison,
    Lateness,
    LatenessUnknown,
    LateRank,
    StandsOut,
)
from tracelens.results.job import Cause

_LATE = 4  # late ranks in sentences; the JSON has them all
STATE_WORDS = {
    "faster": "faster",
    "slower": "slower",
    "no_change": "no measurable change",
    "inconclusive": "inconclusive",
    "too_few_steps": "too few steps for a test",
    "identical": "the same trace",
    NOT_COMPARED: "times not compared",
}


_LATE_BY: dict[Cause, str] = {
    "cpu": "its CPU launches kernels late",
    "input": "it waits longer for its next batch",
    "slow_gpu": "GEMMs of the same shape take longer on its GPU",
    "more_work": "it has more work",
    "experts": "its experts get more tokens",
    "copies": "its copies take longer",
    "communication": "it communicates with ranks of another group first",
    "begins_late": "its step begins later",
    "unclear": "no single part of its time explains it",
}
_NOT_KNOWN: dict[LatenessUnknown, str] = {
    "saved_reports": "saved reports do not hold the calls of collectives: compare traces or summaries",
    "no_common_step": "the traces of one side are of different runs, or have no step in common",
    "no_matching_calls": "no collective of one side matches between its ranks",
    "clocks_apart": "the clocks of one side's ranks are not aligned well enough to tell who waits",
}


def told_folders(result: FolderComparison) -> FolderComparison:
    """The comparison of two folders in words."""
    said = _reasons(result)
    name = "step" if result.steps_marked else "recording"
    refused = not_compared(result.not_compared)
    return replace(
        result,
        verdict=_verdict(result),
        pairs=[
            replace(one, verdict=step_verdict(one.step, name=name) if one.step else refused)
            for one in result.pairs
        ],
        detail=" ".join(said),
        caveats=[*result.caveats, *_open_ends(result)],
        reasons=said,
    )


def _verdict(result: FolderComparison) -> str:
    """One sentence: of the job, of the runs, or how many pairs did what."""
    if result.not_compared:
        return not_compared(result.not_compared)
    if result.step is None:
        return f"{f.plural(len(result.pairs), 'pair')} of files: {_states(result)}."
    if result.kind == "ranks" and len(result.pairs) > 1:
        if result.step.state == "identical":
            middle = f.ms(result.step.before.median)
            return f"Identical: the same traces twice (step of the job {middle})."
        return step_verdict(result.step, name="step of the job")
    if result.kind == "runs" and len(result.pairs) > 1:
        return step_verdict(result.step, name="step, median of the runs", what="runs")
    return step_verdict(result.step, name="step" if result.steps_marked else "recording")


def _states(result: FolderComparison) -> str:
    """How many pairs did what, "slower in 3, no measurable change in 1"."""
    counts: Counter[str] = Counter(pair.state for pair in result.pairs)
    if len(counts) == 1 and len(result.pairs) > 1:
        (state,) = counts
        return f"{STATE_WORDS[state]} in all {len(result.pairs)}"
    return ", ".join(f"{words} in {counts[state]}" for state, words in STATE_WORDS.items() if counts[state])


def _reasons(result: FolderComparison) -> list[str]:
    """The sentences below the verdict: why to believe it."""
    if result.not_compared:
        return [_shares(result)]
    parts = []
    if result.lateness is not None and result.step is not None and result.step.state != "identical":
        parts += _who_is_late(result.lateness, result.per_step)
    if len(result.pairs) > 1 and result.step is not None:
        what = "rank by rank" if result.kind == "ranks" else "run by run"
        parts.append(f"{what.capitalize()}: {_states(result)}.")
    if result.step is not None:
        parts.append(p_in_words(result.step, "runs" if result.kind == "runs" else "steps"))
        parts.append(kinds_in_words(result.step))
    if result.noise is not None and (result.step is None or result.step.state != "identical"):
        parts.append(control(result.noise, result.step, computing_ms(result.step, result.parts)))
    parts += _outliers(result)
    return [said for said in parts if said]


def _who_is_late(found: Lateness, per: str) -> list[str]:
    """A sentence for each late rank, and what the median rank waits."""
    said = [_late(one, per) for one in found.ranks[:_LATE]]
    if len(found.ranks) > _LATE:
        said.append(f"{len(found.ranks) - _LATE} more ranks are late on one side.")
    nobody = "" if said else "No rank is late before or after. "
    waits = arrow_ms(found.before_ms, found.after_ms)
    if not found.missing:
        return [*said, f"{nobody}The median rank waits {waits} {per} for other ranks."]
    ranks = f"{'rank' if len(found.missing) == 1 else 'ranks'} {f.integers(found.missing)}"
    nobody = nobody and "None of the ranks with traces on both sides is late. "
    return [
        *said,
        f"{nobody}The median one waits {waits} {per} for the others; what it waits for {ranks} is not known.",
    ]


def _late(one: LateRank, per: str) -> str:
    times = arrow_ms(one.before_ms, one.after_ms)
    wait = f"the other ranks wait {times} {per} for it"
    if one.before_cause is None or one.after_cause is None:
        cause = one.before_cause or one.after_cause
        when = "was late and no longer is" if one.after_cause is None else "is late now and was not"
        return f"{f.capital(one.pair)} {when}: {wait} ({_LATE_BY[cause or 'unclear']})."
    why = _LATE_BY[one.before_cause]
    if one.after_cause != one.before_cause:
        why = f"before: {why}; after: {_LATE_BY[one.after_cause]}"
    return f"{f.capital(one.pair)} is late before and after: {wait} ({why})."


def _shares(result: FolderComparison) -> str:
    names = (
        ("MFU", "mfu_frac", "mfu_is_bound"),
        ("GPU busy", "gpu_busy_frac", ""),
        ("in GEMMs and attention", "gemm_frac", "gemm_frac_is_bound"),
    )
    parts = []
    for title, name, bound in names:
        old, new = (
            None if None in side else median(side)
            for side in (
                [getattr(pair.before, name) for pair in result.pairs],
                [getattr(pair.after, name) for pair in result.pairs],
            )
        )
        least = (
            any(bound and getattr(pair.before, bound) for pair in result.pairs),
            any(bound and getattr(pair.after, bound) for pair in result.pairs),
        )
        parts.append(f"{title} {arrow_pct(old, new, least=least)}")
    many = len(result.pairs)
    return "; ".join(parts) + (f" (medians over {many} pairs)." if many > 1 else ".")


_PART_WORDS = {"idle": "idle", "computing": "computing", "exposed_communication": "in exposed communication"}


def _outliers(result: FolderComparison) -> list[str]:
    """A sentence for each rank that stands out and is not told as late, with both sides where it does so."""
    late = {one.pair for one in result.lateness.ranks} if result.lateness else set()
    found: dict[tuple[str, str], list[StandsOut]] = {}
    for one in result.stands_out:
        if one.pair in late:
            continue
        found.setdefault((one.pair, one.part), []).append(one)
    told = [(name, "; ".join(map(_stands, sides))) for (name, _), sides in found.items()]
    return [f"{f.capital(name)} stands out: {said} {result.per_step}." for name, said in told]


def _stands(one: StandsOut) -> str:
    others = f.ms_range(one.others_low_ms, one.others_high_ms)
    return f"{one.side} {f.ms(one.ms)} {_PART_WORDS[one.part]}, the others {others}"


def _open_ends(result: FolderComparison) -> list[str]:
    """What the recordings leave open."""
    step, said = result.step, []
    if result.not_compared:
        said.append(OWN_PEAK)
    elif step is None:
        said.append(result.why)
    elif step.state not in ("identical", "inconclusive") and step.p is not None:
        said.append(left_open(step, "runs" if result.kind == "runs" else "steps"))
    if result.lateness_unknown is not None:
        said.append(f"which rank is late is not known: {_NOT_KNOWN[result.lateness_unknown]}")
    world = result.before.world_size
    if result.kind == "ranks" and world is not None and len(result.pairs) < world:
        said.append(f"{len(result.pairs)} of {world} ranks are compared")
    if result.kind == "ranks" and not result.not_compared and (step is None or step.state != "identical"):
        said.append(ONE_RUN)
    if len(result.pairs) > 1 and not result.not_compared:
        said.append("times of components and of parts of the step are medians over the pairs")
    return said
