"""TL129: Adam in a kernel for each of its operations, where a fused one moves every tensor once."""

from __future__ import annotations

from tracelens.numbers import count, ms, plural
from tracelens.results import OtherRow
from tracelens.rules.engine.candidate import Candidate, absent, not_applicable
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import need_operators, need_others
from tracelens.rules.engine.rows import calls_of, of_step, time_of
from tracelens.rules.engine.rule import Rule

#: What torch.optim.Adam and AdamW run without ``fused``: over all tensors (``_foreach_``) or for each.
_OPERATIONS = ("mul_", "add_", "lerp_", "addcmul_", "sqrt", "div_", "addcdiv_", "maximum_", "neg", "copy_")
#: A fused Adam reads parameter, gradient and both moments and writes all but the gradient: 7 tensors.
#: ``addcdiv_`` reads three and writes one (torch/optim/adam.py, fused_adam_utils.cuh).
_FUSED_OVER_ADDCDIV = 7 / 4
#: What tells Adam from others that end in ``addcdiv_``: it decays a second moment (Adagrad sums it up) and
#: either averages a first one or divides by a bias correction (RMSprop does neither; torch/optim/*.py).
_DECAYS, _AVERAGES = {"mul_", "addcmul_", "sqrt"}, {"lerp_", "div_", "div"}


class UnfusedOptimizer(Rule):
    """Adam in one kernel for all of its operations."""

    id = "TL129"
    slug = "unfused-optimizer"
    title = "The optimizer in fused kernels"
    of_kernels = False

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Compare the kernels of an unfused Adam with one that moves each tensor once."""
        need_others(facts)
        rows = [row for row in facts.others or () if row.component == "optimizer"]
        if not rows and not facts.trains:
            raise not_applicable("The step trains nothing: no backward, no optimizer.")
        if not rows:
            raise absent("No kernel of an optimizer was recognised.")
        need_operators([row for row in rows if "FusedAdam" not in row.kernel], "optimizer")
        adam = [row for row in rows if _operation(row) in _OPERATIONS]
        last = [row for row in adam if _operation(row) == "addcdiv_"]
        seen = {_operation(row) for row in rows}
        if not last or not seen >= _DECAYS or not seen & _AVERAGES:
            return [], f"No Adam of separate operations; optimizer kernels take {ms(time_of(rows))}."
        now, fused = time_of(adam), _FUSED_OVER_ADDCDIV * time_of(last)
        return [_candidate(facts, adam, now, fused)] if fused < now else [], ""


def _operation(row: OtherRow) -> str:
    """ "addcdiv_" of ``aten::_foreach_addcdiv_`` and ``aten::addcdiv_``."""
    return (row.op or "").removeprefix("aten::").removeprefix("_foreach_")


def _candidate(facts: StepFacts, adam: list[OtherRow], now: float, fused: float) -> Candidate:
    return Candidate(
        name="a fused optimizer",
        title=f"Use a fused Adam: its separate operations take {ms(now)} {facts.per_step}",
        saw=(
            f"{count(calls_of(adam))} kernels {facts.per_step} of {plural(len(adam), 'operation')} update the"
            f" parameters, in {ms(now)} ({of_step(now, facts)})."
        ),
        fix=["- optimizer = torch.optim.Adam(...)", "+ optimizer = torch.optim.Adam(..., fused=True)"],
        caveats=[
            "Keep the class (Adam or AdamW) and its other arguments: fused=True alone is new.",
            "torch.compile(optimizer.step) fuses as well, also optimizers that have no fused kernel.",
        ],
        counts="kernels",
        confidence="medium",
        effort="config",
        components=["optimizer"],
        kernels={row.id: row.time_ms_per_step * (1 - fused / now) for row in adam},
        bound_of="what these kernels take above a fused Adam, which moves 7 tensors where addcdiv moves 4",
        how=f"{ms(now)} - 7/4 × {ms(fused / _FUSED_OVER_ADDCDIV)} of addcdiv = {ms(now - fused)}.",
        evidence={"operations": sorted({_operation(row) for row in adam}), "fused_ms": fused},
        parameter_delta=0,
    )
