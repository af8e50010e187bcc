"""TL118: GEMMs that take longer beside a collective, which holds SMs and moves bytes."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.gemm import waves
from tracelens.numbers import listed, ms, plural, sig
from tracelens.results import Beside, Estimate, GemmRow
from tracelens.rules.engine.bounds import name
from tracelens.rules.engine.candidate import Candidate, could_not_run, not_applicable, passed
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import need_step_ms
from tracelens.rules.engine.rows import of_step
from tracelens.rules.engine.rule import Rule
from tracelens.rules.engine.simulated import pays
from tracelens.rules.engine.trials import GAIN_FRAC

_Slowed = tuple[GemmRow, Beside, float]  # a row, what ran beside it, and ms per step that its calls took more


class GemmsBesideCollectives(Rule):
    """GEMMs that share the GPU with a collective."""

    id = "TL118"
    slug = "gemms-beside-collectives"
    title = "GEMMs that share the GPU with a collective"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Sum what calls take beside a collective beyond what calls like them take alone."""
        beside = [
            (row, row.beside) for row in facts.gemms if row.beside is not None and row.beside.collectives
        ]
        if not facts.communication:
            raise not_applicable("No collective was recognised in the step.")
        if not beside:
            raise passed("No GEMM ran beside a collective.")
        slowed = [(row, found, more) for row, found in beside if (more := found.excess_ms_per_step)]
        slowed = sorted((one for one in slowed if one[2] > 0), key=lambda one: -one[2])
        open_ms = sum(row.time_ms_per_step for row, found in beside if found.excess_ms is None)
        excess = sum(one[2] for one in slowed)
        worth = GAIN_FRAC * need_step_ms(facts)
        if excess < worth and open_ms >= worth:
            raise could_not_run(_untold(open_ms, facts))
        if excess < worth:
            raise passed(_little(slowed, facts))
        held = [one for one in slowed if _second_wave(one[0], one[1], facts)]
        net = _carved(held, facts)[0] if held else None
        if net is not None and not pays(net):
            held = []  # fewer SMs for all calls cost more: it is left to the collective to take fewer
        rest = [one for one in slowed if one not in held]
        return [_make(part, facts, carve=part is held) for part in (held, rest) if part], ""


def _untold(open_ms: float, facts: StepFacts) -> str:
    return (
        f"GEMMs of {ms(open_ms)} ({of_step(open_ms, facts)}) run beside collectives, and too few calls like"
        " them beside nothing to tell what that costs: record one step without overlap."
    )


def _little(slowed: Sequence[_Slowed], facts: StepFacts) -> str:
    if not slowed:
        return "GEMMs ran beside collectives, and took no longer there than alone."
    excess = sum(one[2] for one in slowed)
    return f"Beside collectives GEMMs take {ms(excess)} longer than alone, {of_step(excess, facts)}."


def _second_wave(row: GemmRow, found: Beside, facts: StepFacts) -> bool:
    """Does a persistent kernel launch more CTAs than the collective leaves SMs?"""
    sms = facts.gpu.sms
    if row.scheduler != "persistent" or row.slices is None or row.split_k is None or not sms:
        return False
    return found.ctas is not None and min(row.slices, sms) > sms - found.ctas


def _make(slowed: Sequence[_Slowed], facts: StepFacts, *, carve: bool) -> Candidate:
    row, found, _ = slowed[0]
    excess = sum(one[2] for one in slowed)
    ctas = max((one[1].ctas or 0 for one in slowed), default=0)
    names = listed(list(dict.fromkeys(next(iter(one[1].collectives)) for one in slowed)))
    times = f"{sig(found.disturbed_us / found.alone_us, 2)} times as long" if found.alone_us else "longer"
    which = f", which has {plural(found.ctas, 'CTA')}" if found.ctas else ""
    saving, how, open_ = _carved(slowed, facts) if carve else (None, "", "")
    title = f"Leave {ctas} SMs to NCCL: persistent GEMMs beside {names} take {times}"
    fix = [f"+ torch._C._set_sm_carveout_experimental({ctas})"]
    if not carve:
        title = f"Give collectives fewer SMs: GEMMs beside {names} take {times}"
        fix = [f"+ export NCCL_MAX_CTAS={max(1, ctas // 2)}" + (f"  # now {ctas}" if ctas else "")]
    return Candidate(
        name="SMs left to the collectives" if carve else "fewer SMs for the collectives",
        title=title,
        saw=(
            f"{plural(len(slowed), 'GEMM row')}: calls beside {names} take {ms(excess)} longer"
            f" {facts.per_step} ({of_step(excess, facts)}) than as many beside nothing. Most: {name(row)},"
            f" {sig(found.alone_us)} µs alone and {sig(found.disturbed_us)} µs beside the collective{which}."
        ),
        change={"sm_carveout": [0, ctas]} if carve else {},
        fix=fix,
        caveats=[
            "Overlap hides communication: taken apart, both run faster, and the step need not be shorter.",
            open_ or "Part of it is bandwidth, which no number of SMs gives back.",
        ],
        confidence="medium" if carve else "low",
        effort="config",
        gemms=[one[0] for one in slowed],
        elsewhere_ms=excess,
        bound_of="what these calls take beyond calls of the same shape and kernel that run beside nothing",
        saving=saving,
        how=how,
        why="second wave" if carve else "",
        evidence={
            "beside": [
                {
                    "gemm": one.id, "alone_us": at.alone_us, "beside_us": at.disturbed_us, "excess_ms": more,
                    "ctas": at.ctas, "collectives": at.collectives,
                }
                for one, at, more in slowed
            ]
        },
        parameter_delta=0,
        least=GAIN_FRAC,
    )  # fmt: skip


def _carved(slowed: Sequence[_Slowed], facts: StepFacts) -> tuple[Estimate | None, str, str]:
    """What a carve-out saves net, its arithmetic, and why it is not known."""
    net = 0.0
    lines = []
    for row, found, more in slowed:
        now, then = row.waves, _waves_left(row, found, facts)
        if now is None or then is None or found.alone_us is None or not row.calls:
            return None, "", f"What a carve-out costs is not known: nor are the waves of {name(row)} then."
        per_step = row.calls_per_step / row.calls / 1e3
        # all calls of the row get fewer SMs, those beside nothing for nothing
        cost = row.calls * per_step * found.alone_us * (then / now - 1)
        net += more - cost
        lines.append(
            f"{name(row)}: {ms(more)} - {sig(row.calls_per_step)} calls × {sig(found.alone_us)} µs ×"
            f" ({then} / {now} waves - 1) = {ms(more - cost)}."
        )
    excess = sum(one[2] for one in slowed)
    return Estimate(min(0.0, net), net, excess, "model"), " ".join(lines), ""


def _waves_left(row: GemmRow, found: Beside, facts: StepFacts) -> int | None:
    left = (facts.gpu.sms or 0) - (found.ctas or 0)
    return waves(row.slices or 0, sms=left, cluster_size=row.cluster_size) if left > 0 else None
