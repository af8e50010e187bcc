"""TL103: a head dimension that attention kernels are not compiled for, or one too small to feed them."""

from __future__ import annotations

from tracelens.numbers import listed, percent, plural
from tracelens.rules.engine.bounds import Bound, bound_of_row
from tracelens.rules.engine.candidate import Candidate
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.rows import took
from tracelens.rules.engine.rule import Rule
from tracelens.rules.evidence.heads import HeadsRun, Split, by_saving, need_heads, simulated


class HeadDimension(Rule):
    """Head dimension 64, 128 or 256, or one that the kernels that ran are compiled for."""

    id = "TL103"
    slug = "head-dimension"
    title = "Head dimension that attention kernels are compiled for"
    of_slices = True

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Judge the fused attention kernels and the score and value GEMMs."""
        groups = need_heads(facts)
        candidates = [_candidate(facts, group) for group in groups if group.is_misfit]
        return candidates, "" if candidates else " ".join(_fits(group) for group in groups)


def _fits(group: HeadsRun) -> str:
    if group.compiled == group.head_dim:
        return (
            f"head_dim {group.head_dim} fills the attention kernel that ran, compiled for {group.compiled}."
        )
    if group.head_dim in (64, 128, 256):
        return f"head_dim {group.head_dim} is a size that attention kernels are compiled for."
    return f"head_dim {group.head_dim}: no padding is known for it."


def _candidate(facts: StepFacts, group: HeadsRun) -> Candidate:
    options = by_saving(facts, group)
    first, heads, of_model = options[0], group.heads, group.is_models(facts)
    known = first.heads is not None and heads is not None
    change: dict[str, list[int | float | str]] = {}
    if of_model:
        change = {"head_dim": [group.head_dim, first.head_dim]}
        change |= {"heads": [heads or 0, first.heads or 0]} if known else {}
    kept = known and of_model and facts.model.kv_heads.value in (None, heads)
    sizes = " or ".join(str(option.head_dim) for option in options)
    ways = " or ".join(f"{plural(option.heads or 1, 'head')} of {option.head_dim}" for option in options)
    now, then = (f"   # head_dim {one}" for one in (group.head_dim, first.head_dim))
    return Candidate(
        title=f"Use {ways} instead of {plural(heads or 0, 'head')} of {group.head_dim}"
        if known
        else f"Use head_dim {sizes} instead of {group.head_dim}",
        saw=_saw(facts, group),
        why="no multiple of 8" if group.head_dim % 8 else "below 64" if group.head_dim < 64 else "",
        change=change,
        fix=[f"- heads = {heads}{now}", f"+ heads = {first.heads}{then}"]
        if known
        else [f"- head_dim = {group.head_dim}", f"+ head_dim = {first.head_dim}"],
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
            "options": [{"head_dim": one.head_dim, "heads": one.heads} for one in options],
        },
        parameter_delta=0 if kept else None,
        flops_delta=0.0 if kept else None,
    )


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
        f"head_dim is {group.head_dim}; {listed([took(rows, noun, facts) for rows, noun in kinds if rows])}."
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
        "For fused attention half of the counted operations make the floor, for causal kernels skip the"
        " other half; and no more than the work that falls away counts: at equal heads × head_dim softmax"
        f" shrinks to {group.head_dim}/{option.head_dim}, the GEMMs to {group.head_dim}/{group.computed},"
        f" so at most 1 - {left:.3g} = {percent(1 - left)} of the time."
    )


def _caveats(facts: StepFacts, group: HeadsRun, option: Split) -> list[str]:
    caveats = [f"{facts.new_model}, and its accuracy has to be checked."]
    heads, kv_heads = facts.model.heads.value, facts.model.kv_heads.value
    if not group.is_models(facts):
        caveats.append("It is not known to be the attention that the model's dimensions are of.")
    elif heads is not None and kv_heads is not None and kv_heads != heads:
        caveats.append(
            f"The model has {kv_heads} key-value heads for {heads} heads: choose them anew so that they"
            " divide the new number, and the K and V projections change size."
        )
    if option.heads is None:
        caveats.append(
            "With the number of heads kept, the projections grow with head_dim; the trace does not show"
            " another split of the same width."
        )
    return [*caveats, "The softmax kernels of unfused attention are not in the bound."]
