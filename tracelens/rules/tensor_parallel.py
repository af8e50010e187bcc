"""TL107: what splitting the layers over tensor-parallel ranks costs: thin slices, copies, messages."""

from __future__ import annotations

from collections.abc import Mapping

from tracelens.numbers import listed, ms, plural, round_up
from tracelens.results import GemmRow, WhatIf
from tracelens.rules.engine.amounts import TRAINING_BYTES
from tracelens.rules.engine.bounds import Bound, bound_of_row
from tracelens.rules.engine.candidate import Candidate, could_not_run
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.rows import took
from tracelens.rules.engine.rule import Rule
from tracelens.rules.engine.simulated import pays, simulate
from tracelens.rules.evidence.dimensions import TARGET
from tracelens.rules.evidence.slices import Slices, copied_ms, need_slices


class TensorParallel(Rule):
    """Slices that fill the GPU, on the 16-byte grid, and no more ranks than pay."""

    id = "TL107"
    slug = "tensor-parallel"
    title = "Tensor-parallel slices that fill the GPU"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Judge the slices of a rank, and simulate fewer ranks at the same GPUs and tokens."""
        slices = need_slices(facts)
        if facts.step is None:
            raise could_not_run(f"{slices.saw(facts)} The step cannot be simulated.")
        fewer = [count for count in range(slices.ranks - 1, 0, -1) if slices.ranks % count == 0]
        tried = {ranks: simulate(facts, {"tensor_parallel": ranks}) for ranks in fewer}
        found = {ranks: one for ranks, one in tried.items() if not isinstance(one, str)}
        if slices.vocab is not None:
            return [_split_vocabulary(facts, slices, slices.vocab, found)], ""
        if not found:
            why = next(str(one) for one in tried.values())
            raise could_not_run(f"{slices.saw(facts)} What fewer ranks would do cannot be judged: {why}.")
        # The nearest that pays.
        ranks = next((ranks for ranks, one in found.items() if pays(one.saving_ms)), max(found))
        return [_fewer_ranks(facts, slices, ranks, found)], ""


def _fewer_ranks(facts: StepFacts, slices: Slices, ranks: int, found: Mapping[int, WhatIf]) -> Candidate:
    words = _in_words({count: one for count, one in found.items() if count != ranks})
    return Candidate(
        title=f"Split layers over {plural(ranks, 'rank')} instead of {slices.ranks}",
        saw=slices.saw(facts),
        change={"tensor_parallel": [slices.ranks, ranks]},
        fix=[f"- tensor_parallel = {slices.ranks}", f"+ tensor_parallel = {ranks}"],
        caveats=[
            _memory(facts, slices.ranks, ranks),
            *([f"Other numbers of ranks, at the same GPUs and tokens: {words}."] if words else []),
        ],
        confidence="medium" if slices.thin or slices.off_grid else "low",
        effort="config",
        bounds=[bound_of_row(row, gpu=facts.gpu) for row in slices.rows],
        elsewhere_ms=slices.exposed_ms + copied_ms(facts, ranks, slices.ranks),
        simulate={"tensor_parallel": ranks},
        evidence={
            "tensor_parallel": slices.ranks,
            "thin_rows": [row.id for row in slices.thin],
            "off_grid": slices.off_grid,
            "exposed_ms": slices.exposed_ms,
            "others": {str(count): one.saving_ms.mid for count, one in found.items()},
        },
        parameter_delta=0,
    )


def _memory(facts: StepFacts, present: int, ranks: int) -> str:
    now = facts.step.now if facts.step is not None else None
    text = (
        f"Each GPU then holds {'all' if ranks == 1 else f'1/{ranks}'} of the layers and not 1/{present};"
        " whether that fits is not in the trace."
    )
    if now is None or not now.parameters:
        return text
    stages = now.pp
    was, then = (now.parameters * TRAINING_BYTES / count / stages / 1e9 for count in (present, ranks))
    return (
        f"{text} At {TRAINING_BYTES} bytes a weight (Adam, not sharded over copies; arXiv 1910.02054) they"
        f" take {then:.3g} GB and not {was:.3g} GB, and activations grow as well."
    )


def _in_words(found: Mapping[int, WhatIf]) -> str:
    known = [(count, one.saving_ms.mid) for count, one in found.items() if one.saving_ms.mid is not None]
    return listed([f"{count} {'saves' if mid >= 0 else 'adds'} {ms(abs(mid))}" for count, mid in known])


def _split_vocabulary(facts: StepFacts, slices: Slices, vocab: int, found: Mapping[int, WhatIf]) -> Candidate:
    ranks = slices.ranks
    part = round_up(-(-vocab // ranks), TARGET)
    rows = [row for row in facts.gemms if row.component == "logits"]
    words = _in_words(found)
    return Candidate(
        title=f"Split the vocabulary of {vocab} over the {ranks} tensor-parallel ranks",
        saw=(
            f"{slices.saw(facts)} Every rank computes logits for all {vocab} entries of the vocabulary:"
            f" {took(rows, facts)}. Split by columns, each computes {part} logits of a token."
        ),
        why="the vocabulary",
        change={"vocab_parallel": [1, ranks]},
        fix=[f"- {vocab} logits on each of {ranks} ranks", f"+ {part} logits on each of {ranks} ranks"],
        caveats=[
            (
                "The output layer has to give split logits and the loss to take them: in PyTorch"
                " ColwiseParallel with use_local_output=False and loss_parallel(), in Megatron"
                " parallel_output."
            ),
            "The loss's own messages, a few values of every token, are not in the prediction.",
            *([f"Fewer tensor-parallel ranks, at the same GPUs and tokens: {words}."] if words else []),
        ],
        confidence="medium",
        effort="code",
        bounds=[_copies(row, ranks) for row in rows],
        elsewhere_ms=copied_ms(facts, 1, ranks, of=("loss", "logits")),
        simulate={"vocab": part},
        evidence={"vocab": vocab, "tensor_parallel": ranks, "part": part},
        parameter_delta=0,
    )


def _copies(row: GemmRow, ranks: int) -> Bound:
    time = row.time_ms_per_step
    bound = time * (1 - 1 / ranks)
    how = f"logits ({row.id}): every rank computes all of it, {ms(time)} × (1 - 1/{ranks}) = {ms(bound)}."
    return Bound(row, bound, how)
