"""TL103: a head dimension that attention kernels are not compiled for, or one too small to feed them."""

from __future__ import annotations

from tracelens.numbers import listed, percent, plural
from tracelens.rules.engine.bounds import Bound, bound_of_row
from tracelens.rules.engine.candidate import Candidate
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.rows import took
from tracelens.rules.engine.rule import Rule
from tracelens.rules.evidence.heads import GOOD, HeadsRun, Split, by_saving, need_heads, ranks_of, simulated
from tracelens.step.shape_search import losing


class HeadDimension(Rule):
    """Head dimension 64, 128 or 256, or one that the kernels that ran are compiled for."""

    id = "TL103"
    slug = "head-dimension"
    title = "Head dimension that attention kernels are compiled for"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Judge the fused attention kernels and the score and value GEMMs."""
        groups = need_heads(facts)
        candidates = [_candidate(facts, group) for group in groups if group.is_misfit]
        return candidates, "" if candidates else " ".join(dict.fromkeys(map(_fits, groups)))


def _fits(group: HeadsRun) -> str:
    size = group.head_dim
    if group.compiled == size:
        return f"head_dim {size} fills the attention kernel that ran, compiled for {group.compiled}."
    if size in GOOD:
        return f"head_dim {size} is a size that attention kernels are compiled for."
    return f"head_dim {size}: no padding is known for it."


def _candidate(facts: StepFacts, group: HeadsRun) -> Candidate:
    options = by_saving(facts, group)
    first = options[0]
    change: dict[str, list[int | float | str]] = {}
    if group.is_models(facts):
        change["head_dim"] = [group.head_dim, first.head_dim]
        if group.heads is not None and first.heads is not None:
            change["heads"] = [one * ranks_of(facts) for one in (group.heads, first.heads)]
    kept = "heads" in change and facts.model.kv_heads.value in (None, group.heads)
    title, fix = _told(group, first, ranks_of(facts))
    return Candidate(
        title=title,
        saw=_saw(facts, group),
        why="no multiple of 8" if group.head_dim % 8 else "below 64" if group.head_dim < 64 else "",
        change=change,
        fix=fix,
        caveats=_caveats(facts, group, first),
        # high: the kernel's own name shows the zeros
        confidence="high"
        if group.padding_frac
        else "medium"
        if group.head_dim % 8 or group.head_dim < 64
        else "low",
        effort="retrain",
        bounds=_bounds(facts, group, first),
        simulate=simulated(facts, group, first),
        how=_how(group, first),
        evidence={
            "head_dim": group.head_dim,
            "compiled_head_dim": group.compiled,
            "padding_frac": group.padding_frac,
            "options": [
                {"head_dim": one.head_dim, "heads": one.heads and one.heads * ranks_of(facts)}
                for one in options
            ],
        },
        parameter_delta=0 if kept else None,
        flops_delta=0.0 if kept else None,
    )


def _told(group: HeadsRun, first: Split, ranks: int) -> tuple[str, list[str]]:
    """Title and fix of the split that the saving is of, in heads of the whole model where those are even.

    No other: in place of 32 heads of 80, 20 of 128 saved 1.05 ms on the samples' H100, 40 of 64 0.09 ms."""
    now = group.head_dim
    if group.heads is not None and first.heads is not None:
        then = f"{plural(first.heads * ranks, 'head')} of {first.head_dim}"
        fix = [
            f"- heads = {group.heads * ranks}   # head_dim {now}",
            f"+ heads = {first.heads * ranks}   # head_dim {first.head_dim}",
        ]
        return f"Use {then} instead of {plural(group.heads * ranks, 'head')} of {now}", fix
    fix = [f"- head_dim = {now}", f"+ head_dim = {first.head_dim}"]
    return f"Use head_dim {first.head_dim} instead of {now}", fix


def _bounds(facts: StepFacts, group: HeadsRun, option: Split) -> list[Bound]:
    cap = None if group.head_dim % 8 else 1 - group.work_frac(option.head_dim)
    why = f"(the work that falls away with head_dim {option.head_dim}, see above)"
    fused = [
        bound_of_row(row, gpu=facts.gpu, useful_frac=0.5, cap_frac=cap, cap_why=why) for row in group.fused
    ]
    return [*fused, *(bound_of_row(row, gpu=facts.gpu) for row in group.unfused)]


def _saw(facts: StepFacts, group: HeadsRun) -> str:
    kinds = (group.fused, "fused attention row"), (group.unfused, "score or value GEMM")
    text = (
        f"head_dim is {group.head_dim}; {listed([took(rows, facts, noun) for rows, noun in kinds if rows])}."
    )
    if group.padding_frac:
        return (
            f"{text} The kernel that ran is compiled for {group.compiled}: {group.head_dim} of"
            f" {group.compiled} columns are useful, {percent(group.padding_frac)} are zeros."
        )
    silent = group.compiled is None and group.fused
    return text + (" The kernels' names do not say which head size they are compiled for." if silent else "")


def _how(group: HeadsRun, option: Split) -> str:
    if group.head_dim % 8 or not group.fused:
        return ""
    left = group.work_frac(option.head_dim)
    return (
        "For fused attention the floor takes half of the counted operations: causal kernels skip the other"
        " half. No more counts than the work that falls away: at equal heads × head_dim softmax shrinks to"
        f" {group.head_dim}/{option.head_dim} and the GEMMs to {group.head_dim}/{group.computed}, so at most"
        f" 1 - {left:.3g} = {percent(1 - left)} of the time."
    )


def _caveats(facts: StepFacts, group: HeadsRun, option: Split) -> list[str]:
    caveats = [f"{facts.new_model}, and its accuracy has to be checked."]
    heads, kv_heads = facts.model.heads.value, facts.model.kv_heads.value
    who = "Each rank" if ranks_of(facts) > 1 else "The model"
    if not group.is_models(facts):
        caveats.append("It is not known to be the attention that the model's dimensions are of.")
    elif heads is not None and kv_heads is not None and kv_heads != heads:
        caveats.append(
            f"{who} has {plural(kv_heads, 'key-value head')} for {heads} heads: choose them anew so that they"
            " divide the new number, and the K and V projections change size."
        )
    if option.heads is None:
        caveats.append(
            "With the number of heads kept, the projections grow with head_dim; the trace does not show"
            " another split of the same width."
        )
    elif group.heads is not None and group.is_models(facts):
        now, then = (one * ranks_of(facts) for one in (group.heads, option.heads))
        caveats += [f"{lost}." for lost in losing(now, then)]
    softmax = ["The softmax kernels of unfused attention are not in the bound."] if group.unfused else []
    return [*caveats, *softmax]
