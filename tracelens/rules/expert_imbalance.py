"""TL126: experts of which some ranks get more tokens than others, which then wait for them."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.numbers import ms, percent
from tracelens.results import CommunicationRow
from tracelens.rules.engine.bounds import Bound
from tracelens.rules.engine.candidate import Candidate, absent, could_not_run
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.rows import time_of
from tracelens.rules.engine.rule import Rule
from tracelens.step.uneven import sent_to_experts, uneven_frac

#: A fullest rank this much above the mean is what a balancing loss leaves, too.
_WORTH_FRAC = 0.1


class ExpertImbalance(Rule):
    """As many tokens for the experts of every rank."""

    id = "TL126"
    slug = "expert-imbalance"
    title = "Experts' tokens spread evenly over ranks"
    of_nvidia = False

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Judge by the sizes that all-to-alls of experts have for each rank."""
        sent = sent_to_experts(facts.communication)
        if not sent:
            raise absent("No all-to-all of experts was recognised.")
        uneven = uneven_frac(sent)
        if uneven is None:
            raise could_not_run(
                "The all-to-alls of the experts do not say how much goes to each rank: PyTorch records split"
                " sizes of all_to_all_single, of 30 ranks at most; fused dispatches (DeepEP) have none."
            )
        ranks = next((row.group_size for row in sent if row.uneven_frac is not None), None)
        seen = (
            f"The all-to-alls of the experts send the fullest of {ranks or 'their'} ranks"
            f" {percent(uneven)} more than the mean, by the sizes that this rank's calls have for each."
        )
        if uneven < _WORTH_FRAC:
            return [], seen
        return [_candidate(facts, sent, uneven, seen)], ""


def _candidate(facts: StepFacts, sent: Sequence[CommunicationRow], uneven: float, seen: str) -> Candidate:
    rows = [row for row in facts.gemms if row.component == "moe.experts"]
    waits, share = sum(row.exposed_ms_per_step for row in sent), uneven / (1 + uneven)
    return Candidate(
        name="even loads of the ranks",
        title=f"Even out the experts' tokens: the fullest rank has {percent(uneven)} more than the mean",
        saw=(
            f"{seen} Experts' GEMMs take {ms(time_of(rows))} {facts.per_step} here, and exposed all-to-alls,"
            f" which hold the wait for that rank, {ms(waits)}."
        ),
        fix=[
            "+ --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2   # Megatron-LM",
            "+ --moe-expert-capacity-factor 1.25   # drops what is beyond",
        ],
        caveats=[
            "Other ranks' tokens can favour other experts: analyze the folder of all ranks' traces.",
            "Another balance trains another router: compare the loss.",
        ],
        confidence="low",
        effort="config",
        components=["moe.experts", "communication"],
        bounds=[Bound(row, share * row.time_ms_per_step) for row in rows],
        elsewhere_ms=share * waits,
        bound_of=(
            "of the experts' GEMMs and their exposed all-to-alls the part above an even load,"
            f" {percent(uneven)} / {percent(1 + uneven)}"
        ),
        evidence={"uneven_frac": uneven, "exposed_all_to_all_ms": waits},
        parameter_delta=0,
    )  # fmt: skip
