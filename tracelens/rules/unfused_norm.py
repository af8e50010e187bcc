"""TL131: RMSNorm in a kernel for each of its operations, where a fused one moves every tensor once."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.numbers import count, ms, plural
from tracelens.results import OtherRow
from tracelens.rules.engine.candidate import Candidate, absent
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import need_operators, need_others
from tracelens.rules.engine.rows import calls_of, of_step, time_of
from tracelens.rules.engine.rule import Rule

#: What LlamaRMSNorm, T5LayerNorm and their kin run in eager mode, whatever squares: the mean reads x once.
_MEAN, _ROOT = "aten::mean", "aten::rsqrt"
#: A fused norm reads x and writes y; its backward reads x and dy and writes dx. Statistics are small.
_FORWARD_TENSORS, _BACKWARD_TENSORS = 2, 3

_OTHERS = (
    "torch.compile(model) fuses them, too, with the residual sums. Liger Kernel, Apex and Transformer Engine"
    " have a fused RMSNorm for older versions; the last bits differ where it rounds later."
)


class UnfusedNorm(Rule):
    """RMSNorm in one kernel for all of its operations."""

    id = "TL131"
    slug = "unfused-norm"
    title = "Norms in fused kernels"
    of_kernels = False

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Compare the kernels of an unfused norm with one that moves each tensor once."""
        need_others(facts)
        rows = [row for row in facts.others or () if row.component == "norm"]
        if not rows:
            raise absent("No kernel of a norm was recognised.")
        need_operators(rows, "norms")
        norm = _unfused(rows)
        means = [row for row in norm if row.op == _MEAN and row.phase != "backward"]
        if not means:
            return [], f"No norm of separate operations; norms take {ms(time_of(rows))}."
        once = [row for row in means if row.phase == "forward"]
        back = _BACKWARD_TENSORS * time_of(once) if any(row.phase == "backward" for row in norm) else 0.0
        now, fused = time_of(norm), _FORWARD_TENSORS * time_of(means) + back
        return [_candidate(facts, norm, now, fused)] if fused < now else [], ""


def _unfused(rows: Sequence[OtherRow]) -> list[OtherRow]:
    """The rows of the modules that take a mean and its root; where no module is known, all without one."""
    modules = {row.module for row in rows if row.op == _MEAN} & {
        row.module for row in rows if row.op == _ROOT
    }
    return [row for row in rows if row.module in modules and "layer_norm" not in (row.op or "")]


def _candidate(facts: StepFacts, norm: Sequence[OtherRow], now: float, fused: float) -> Candidate:
    operations = sorted({(row.op or "").removeprefix("aten::") for row in norm if row.op})
    return Candidate(
        name="a fused norm",
        title=f"Use a fused RMSNorm: its operations take {ms(now)} {facts.per_step}",
        saw=(
            f"{count(calls_of(norm))} kernels {facts.per_step} of {plural(len(operations), 'operation')} make"
            f" the norms, in {ms(now)} ({of_step(now, facts)})."
        ),
        fix=[
            "- x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps) * weight",
            "+ F.rms_norm(x, weight.shape, weight, eps)   # one kernel each way from PyTorch 2.9 on",
        ],
        caveats=[_OTHERS],
        counts="kernels",
        confidence="medium",
        effort="code",
        components=["norm"],
        kernels={row.id: row.time_ms_per_step * (1 - fused / now) for row in norm},
        bound_of="what these kernels take above a fused norm, which moves 5 tensors where the mean reads one",
        how=f"{ms(now)} - {ms(fused)} of a fused norm at the pace of this trace's means = {ms(now - fused)}.",
        evidence={"operations": operations, "fused_ms": fused},
        parameter_delta=0,
    )
