"""TL130: messages of experts' weights that are larger than the weights: padding of a sharded buffer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from tracelens.gemm.dtypes import bytes_per_element
from tracelens.numbers import ms, percent, plural
from tracelens.results import CommunicationRow, GemmRow
from tracelens.rules.engine.candidate import Candidate, could_not_run, not_applicable, passed
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.rows import of_step
from tracelens.rules.engine.rule import Rule
from tracelens.rules.evidence.mixtures import need_mixture

#: Twice the weights can be those of two layers.
_SMALL, _TWO_LAYERS = 0.01, 2.0
_WORD = re.compile(r"[a-z]+")


class _Padded(NamedTuple):
    row: CommunicationRow
    sent: float  # bytes of a message
    weights: float  # bytes
    frac: float  # of a message that is padding


class PaddedBuckets(Rule):
    """Buffers of experts' weights without padding."""

    id = "TL130"
    slug = "padded-buckets"
    title = "Messages of experts' weights as large as the weights"
    of_nvidia = False

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Compare each message of the experts' own shards with the weights of a layer's grouped GEMMs."""
        messages = [
            row
            for row in facts.communication
            if row.collective in ("all_gather", "reduce_scatter") and _of_experts(row.group)
        ]
        if not messages:
            raise not_applicable("No process group is named after shards of experts' weights.")
        mixture = need_mixture(facts)
        elements = _elements(mixture.rows, mixture.local)
        if mixture.how != "grouped" or elements is None:
            raise could_not_run("Grouped GEMMs do not show the experts' weights of one layer.")
        found = [one for row in messages if (one := _judged(row, elements)) is not None]
        if not found:
            raise could_not_run("No message of the experts' shards has the size of one layer's weights.")
        padded = [one for one in found if one.frac > _SMALL]
        if not padded:
            raise passed("Messages of experts' shards are as large as the weights of a layer.")
        return [_candidate(facts, padded)], ""


def _of_experts(group: str | None) -> bool:
    """Is it a group over which experts' weights are sharded? Megatron's EXPERT_DATA_PARALLEL_GROUP."""
    words = set(_WORD.findall((group or "").lower()))
    return bool(words & {"expert", "ep"} and words & {"data", "dp", "fsdp", "shard"})


def _elements(rows: Sequence[GemmRow], local: int | None) -> int | None:
    """Elements of the weights of one layer's experts on this rank."""
    forward = [row for row in rows if row.role == "forward" and row.groups and row.n and row.k]
    fewest = min((row.calls_per_step for row in forward), default=0.0)
    if not local or not fewest:
        return None
    times = [row.calls_per_step / fewest for row in forward]  # of one layer: a gate beside the way up
    if any(abs(one - round(one)) > 1e-6 for one in times):
        return None
    return sum(
        round(one) * local * (row.n or 0) * (row.k or 0) for one, row in zip(times, forward, strict=True)
    )


def _judged(row: CommunicationRow, elements: int) -> _Padded | None:
    each = bytes_per_element(row.dtype)
    if row.bytes_per_call is None or each is None:
        return None
    ratio = row.bytes_per_call / (elements * each)
    if not 1 <= ratio < _TWO_LAYERS:
        return None
    return _Padded(row, row.bytes_per_call, elements * each, 1 - 1 / ratio)


def _candidate(facts: StepFacts, found: Sequence[_Padded]) -> Candidate:
    most = max(found, key=lambda one: one.frac * one.row.exposed_ms_per_step)
    exposed = sum(one.row.exposed_ms_per_step for one in found)
    return Candidate(
        name="padding of experts' buckets",
        title=f"Shard experts without padding: {most.sent / 1e6:,.1f} MB for {most.weights / 1e6:,.1f} MB",
        saw=(
            f"{plural(len(found), 'kind')} of messages over {most.row.group} are larger than the experts'"
            f" weights of a layer, by {percent(most.sent / most.weights - 1)} in {most.row.collective}; they"
            f" are exposed for {ms(exposed)} {facts.per_step} ({of_step(exposed, facts)})."
        ),
        change={"message_bytes": [round(most.sent), round(most.weights)]},
        fix=["+ shard each expert weight in a buffer of its own, or as one 2-D weight per expert"],
        caveats=["What else is in these buffers is not known, and would be no padding."],
        confidence="low",
        effort="code",
        components=["communication"],
        elsewhere_ms=sum(one.frac * one.row.exposed_ms_per_step for one in found),
        bound_of="the padding's share of these messages in the time that they are exposed",
        evidence={"messages": [_evidence(one) for one in found]},
        parameter_delta=0,
    )


def _evidence(one: _Padded) -> dict[str, str | float | None]:
    sent = {"collective": one.row.collective, "group": one.row.group, "bytes": one.sent}
    return {**sent, "weights_bytes": one.weights, "padding_frac": one.frac}
