"""TL119: all-gathers and reduce-scatters whose share of a rank is no multiple of 16 bytes."""

from __future__ import annotations

from tracelens.numbers import ms, plural
from tracelens.rules.engine.candidate import Candidate, could_not_run, not_applicable, passed
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.rows import of_step
from tracelens.rules.engine.rule import Rule

_STEP = 16  # bytes that NCCL moves at a time


class UnalignedPayload(Rule):
    """Shares of a collective that begin on 16 bytes."""

    id = "TL119"
    slug = "unaligned-payload"
    title = "Collectives whose shares begin on 16 bytes"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Sum the exposed time of large messages whose shares do not."""
        exchanged = [row for row in facts.communication if row.collective in ("all_gather", "reduce_scatter")]
        if not exchanged:
            raise not_applicable("No all-gather or reduce-scatter was recognised.")
        sized = [row for row in exchanged if row.bytes_per_call and row.group_size]
        if not sized:
            raise could_not_run("No all-gather or reduce-scatter says how large it is and of how many ranks.")
        rows = [row for row in sized if row.unaligned_bytes is not None]
        if not rows:
            raise passed("Every rank's share of a large message is a multiple of 16 bytes.")
        rows.sort(key=lambda row: -row.unaligned_ms_per_step)
        time, share = sum(row.unaligned_ms_per_step for row in rows), rows[0].unaligned_bytes or 0
        then = -(-share // _STEP) * _STEP
        found = Candidate(
            name="shares of 16 bytes",
            title=f"Pad each rank's share of the {rows[0].collective} from {share:,} to {then:,} bytes",
            saw=(
                f"{plural(len(rows), 'kind')} of messages whose share of a rank is no multiple of 16 bytes"
                f" are exposed for {ms(time)} {facts.per_step} ({of_step(time, facts)}). Most:"
                f" {rows[0].collective} of {rows[0].group_size} ranks, {share:,} bytes each."
            ),
            change={"share_bytes": [share, then]},
            fix=[f"- share = {share}  # bytes of one rank", f"+ share = {then}"],
            caveats=[
                "How much of the time that costs is not known: time the same exchange with aligned shares.",
                "It is known of NCCL's usual path, not of symmetric memory.",
            ],
            confidence="medium",
            effort="code",
            components=["communication"],
            elsewhere_ms=time,
            bound_of="the exposed time of these messages",
            evidence={
                "messages": [
                    {
                        "collective": row.collective,
                        "purpose": row.purpose,
                        "ranks": row.group_size,
                        "share_bytes": row.unaligned_bytes,
                        "exposed_ms": row.unaligned_ms_per_step,
                    }
                    for row in rows
                ]
            },
            parameter_delta=0,
        )
        return [found], ""
