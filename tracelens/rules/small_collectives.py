"""TL128: many small exchanges of one kind, each of which pays for its start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from tracelens.hardware.collectives import exchange_us, node_size
from tracelens.numbers import ms, percent
from tracelens.results import CommunicationRow
from tracelens.rules.engine.candidate import Candidate, could_not_run, passed
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.rows import of_step
from tracelens.rules.engine.rule import Rule
from tracelens.rules.evidence.exchanges import need_exchanges

#: Fewer calls, and larger ones, are what buckets look like; DistributedDataParallel's hold 25 MB.
_FEWEST, _SMALL, _BUCKET = 8, 4 << 20, 25 << 20


@dataclass(frozen=True, slots=True)
class _Many:
    """Calls of one kind per step."""

    row: CommunicationRow
    calls: float
    size: float  # bytes of one
    saved_ms: float  # of what is exposed


class SmallCollectives(Rule):
    """Exchanges in buckets."""

    id = "TL128"
    slug = "small-collectives"
    title = "Collectives in few large calls"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Compare many small calls with as many bytes in buckets, by published times of NCCL."""
        sized = [
            (row, row.bytes_per_call, row.group_size)
            for row in need_exchanges(facts)
            if row.bytes_per_call and row.group_size
        ]
        if not sized:
            raise could_not_run("The exchanges of gradients and parameters have no recorded size.")
        small = [one for one in sized if one[0].calls_per_step >= _FEWEST and one[1] < _SMALL]
        if not small:
            raise passed("No eight or more small exchanges of one kind are in a step.")
        found = list(_judged(facts, small))
        if not found:
            raise could_not_run(
                f"What collectives take among these ranks of {facts.gpu.title} is not published."
            )
        return [_candidate(facts, found)], ""


def _judged(facts: StepFacts, rows: Sequence[tuple[CommunicationRow, float, int]]) -> Iterator[_Many]:
    for row, size, ranks in rows:
        calls = row.calls_per_step
        buckets = ceil(calls * size / _BUCKET)
        in_node = min(ranks, node_size(facts.gpu.name))
        now, then = (
            exchange_us(facts.gpu.name, row.collective, ranks, each, in_node=in_node)
            for each in (size, calls * size / buckets)
        )
        if now is None or then is None or ranks > in_node:
            continue
        saved = max(0.0, calls * now - buckets * then) / 1e3
        yield _Many(row, calls, size, min(saved, row.exposed_ms_per_step))


def _candidate(facts: StepFacts, found: Sequence[_Many]) -> Candidate:
    calls, most = sum(one.calls for one in found), max(found, key=lambda one: one.saved_ms)
    exposed, saved = (sum(one.row.exposed_ms_per_step for one in found), sum(one.saved_ms for one in found))
    return Candidate(
        name="buckets",
        title=f"Exchange {most.row.purpose} in buckets: {calls:.0f} small calls {facts.per_step}",
        saw=(
            f"{calls:.0f} exchanges of {most.row.purpose}, most of {most.size / 1e3:,.0f} kB, are exposed"
            f" for {ms(exposed)} {facts.per_step} ({of_step(exposed, facts)})."
        ),
        change={"bucket_mb": [round(most.size / (1 << 20), 3), _BUCKET >> 20]},
        fix=[
            "+ DistributedDataParallel(model, bucket_cap_mb=25)",
            "+ fully_shard(block)   # each block, not each layer: one message for all its weights",
        ],
        caveats=["A bucket waits for its last gradient: where calls are hidden, small ones begin earlier."],
        confidence="low",
        effort="config",
        components=["communication"],
        elsewhere_ms=saved,
        bound_of=(
            "what NCCL takes for these calls within a node above as many bytes in calls of"
            f" {_BUCKET >> 20} MB, and no more than is exposed"
        ),
        how=f"{percent(saved / exposed if exposed else 0.0)} of the exposed time.",
        evidence={
            "messages": [
                {
                    "collective": one.row.collective,
                    "calls": one.calls,
                    "bytes": one.size,
                    "saved_ms": one.saved_ms,
                }
                for one in found
            ]
        },
        parameter_delta=0,
    )
