"""TL120: exchanges of gradients and parameters that wait in the stream of the computation."""

from __future__ import annotations

from tracelens.numbers import listed, ms
from tracelens.rules.engine.candidate import Candidate, passed
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.rows import of_step
from tracelens.rules.engine.rule import Rule
from tracelens.rules.evidence.exchanges import need_exchanges

_ASYNC = ["- dist.{name}(...)", "+ work = dist.{name}(..., async_op=True)  # work.wait() before it is read"]
_PREFETCH = [
    "+ block.set_modules_to_forward_prefetch([next_block])",
    "+ block.set_modules_to_backward_prefetch([previous_block])",
]


class CollectivesInLine(Rule):
    """Collectives on a stream of their own."""

    id = "TL120"
    slug = "collectives-in-line"
    title = "Collectives on a stream of their own"
    of_nvidia = False

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Sum the exposed time of exchanges that could overlap, on the stream that computes."""
        held = [row for row in need_exchanges(facts) if row.in_line_ms_per_step > 0]
        held.sort(key=lambda row: -row.in_line_ms_per_step)
        if not held:
            raise passed("Gradients and parameters are exchanged on streams that compute nothing else.")
        time = sum(row.in_line_ms_per_step for row in held)
        names = listed(list(dict.fromkeys(row.collective for row in held)))
        sharded = held[0].purpose.startswith("FSDP")
        found = Candidate(
            name="a stream for the collectives",
            title=f"Run {names} of {held[0].purpose} beside the computation: {ms(time)} {facts.per_step}",
            saw=(
                f"{names} of {listed(list(dict.fromkeys(row.purpose for row in held)))} run on the stream"
                f" that computes most, exposed for {ms(time)} {facts.per_step} ({of_step(time, facts)})."
                " Kernels of one stream run one after the other."
            ),
            fix=_PREFETCH if sharded else [line.format(name=held[0].collective) for line in _ASYNC],
            caveats=[
                "How much the computation hides is not known: GEMMs beside a collective run slower (TL118)."
            ],
            confidence="medium",
            effort="code",
            components=["communication"],
            elsewhere_ms=time,
            bound_of="the time in which these collectives run in line and nothing computes",
            evidence={
                "collectives": [
                    {
                        "collective": row.collective,
                        "purpose": row.purpose,
                        "in_line_ms": row.in_line_ms_per_step,
                    }
                    for row in held
                ]
            },
            parameter_delta=0,
        )
        return [found], ""
