"""Exchanges of gradients and parameters, which the computation of other layers does not wait for."""

from __future__ import annotations

from tracelens.numbers import listed, ms
from tracelens.results import CommunicationRow
from tracelens.rules.engine.candidate import could_not_run, not_applicable
from tracelens.rules.engine.facts import StepFacts

#: Tensor parallelism's sums and the tokens of experts are what the next kernel reads.
_APART = ("data-parallel gradients", "FSDP parameter gather", "FSDP gradient scatter", "optimizer shards")


def need_exchanges(facts: StepFacts) -> list[CommunicationRow]:
    """Raises ``Answer`` where there are none, or communication can be one and does not say."""
    in_steps = [row for row in facts.communication if row.calls_per_step > 0]
    rows = [row for row in in_steps if row.purpose in _APART]
    untold = [row for row in in_steps if row.purpose == "unknown"]
    if untold and not rows:
        names = listed(sorted({row.collective for row in untold}))
        time = sum(row.time_ms_per_step for row in untold)
        raise could_not_run(
            f"What {ms(time)} {facts.per_step} of {names} serve is not known: name the process groups"
            " (DeviceMesh with mesh_dim_names)."
        )
    if not rows:
        raise not_applicable("No exchange of gradients or parameters was recognised.")
    return rows
