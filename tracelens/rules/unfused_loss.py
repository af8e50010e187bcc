"""TL132: a cross entropy in kernels of its own, each of which goes over all logits."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.numbers import count, ms
from tracelens.results import OtherRow
from tracelens.rules.engine.candidate import Candidate, absent
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import need_operators, need_others
from tracelens.rules.engine.rows import calls_of, of_step, time_of
from tracelens.rules.engine.rule import Rule

_SOFTMAX = "aten::_log_softmax"
#: A cross entropy, and no other loss of logarithms (CTC, a teacher's), with the zeros of its gradient.
_PICKS, _OPS = "aten::nll_loss", (_SOFTMAX, "aten::nll_loss", "aten::zero_", "aten::fill_")
#: A fused loss reads 16-bit logits once and writes their gradient over them; the least of 10 bytes measured.
_FORWARD_BYTES, _BACKWARD_BYTES = 2, 4
#: A bound, of which a part falls away: below this share of the step it is not worth a user's time.
_LEAST = 0.02
#: Of words, which a product gives for each token; of classes (or pixels) they are fused as they are.
_OF_WORDS = [
    "- loss = F.cross_entropy(lm_head(hidden).float(), targets)",
    "+ loss = LigerFusedLinearCrossEntropyLoss()(lm_head.weight, hidden, targets)   # or compiled",
]
_OF_CLASSES = [
    "- loss = F.cross_entropy(logits, targets)",
    "+ loss = torch.compile(F.cross_entropy)(logits, targets)",
]
_COMPILED = (
    "torch.compile fuses a loss that is inside of what it compiles; a compiled model whose loss is computed"
    " outside keeps these kernels. What casts the logits is counted by TL113 and goes with the same change."
)


class UnfusedLoss(Rule):
    """Cross entropy in one pass over the logits each way."""

    id = "TL132"
    slug = "unfused-loss"
    title = "The loss in fused kernels"
    of_kernels = False

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Sum the kernels of an unfused cross entropy, but for casts, above one pass each way."""
        need_others(facts)
        loss = [row for row in facts.others or () if row.component == "loss"]
        if not loss:
            raise absent("No kernel of a loss was recognised.")
        need_operators(loss, "loss")
        rows = [row for row in loss if row.kind != "cast" and (row.op or "").startswith(_OPS)]
        softmax = [row for row in rows if row.op == _SOFTMAX]
        if not softmax or not any((row.op or "").startswith(_PICKS) for row in rows):
            return [], f"No cross entropy in kernels of its own; the loss takes {ms(time_of(loss))}."
        now, least = time_of(rows), _least_ms(facts, rows, softmax)
        return [_candidate(facts, rows, now, least)] if least < now else [], ""


def _least_ms(facts: StepFacts, rows: Sequence[OtherRow], softmax: Sequence[OtherRow]) -> float:
    """A pass over the logits each way at the datasheet's bandwidth; 0 where their size is not known."""
    sizes = (facts.model.vocab.value, facts.model.sequence.value, facts.model.micro_batch.value)
    if None in sizes or not facts.gpu.bandwidth_gbps:
        return 0.0
    moved = _FORWARD_BYTES + (_BACKWARD_BYTES if any(row.phase == "backward" for row in rows) else 0)
    vocab, sequence, micro_batch = (size or 0 for size in sizes)
    return moved * vocab * sequence * micro_batch * calls_of(softmax) / (facts.gpu.bandwidth_gbps * 1e6)


def _candidate(facts: StepFacts, rows: Sequence[OtherRow], now: float, least: float) -> Candidate:
    bound_of, above = "all of these kernels, for how many bytes the logits are is not known", ""
    if least:
        bound_of = "what these kernels take above one pass over the logits each way"
        above = f" - {ms(least)} of one pass each way at the datasheet's bandwidth = {ms(now - least)}"
    return Candidate(
        name="a fused loss",
        title=f"Use a fused cross entropy: its kernels take {ms(now)} {facts.per_step}",
        saw=(
            f"{count(calls_of(rows))} kernels {facts.per_step} make the loss and its gradient, in {ms(now)}"
            f" ({of_step(now, facts)}), in passes over all logits."
        ),
        fix=_OF_WORDS if facts.model.vocab.value else _OF_CLASSES,
        caveats=[_COMPILED],
        counts="kernels",
        confidence="medium",
        effort="code",
        components=["loss"],
        kernels={row.id: row.time_ms_per_step * (1 - least / now) for row in rows},
        bound_of=bound_of,
        how=f"{ms(now)}{above}.",
        evidence={"operations": sorted({row.op for row in rows if row.op}), "least_ms": least},
        parameter_delta=0,
        least=_LEAST,
    )
