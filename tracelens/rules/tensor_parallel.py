"""TL107: what splitting the layers over tensor-parallel ranks costs: thin slices, copies, messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracelens.config.hyper import Hyper, changed
from tracelens.errors import UsageError
from tracelens.numbers import listed, ms, plural, round_up
from tracelens.results import GemmRow, WhatIf
from tracelens.rules.engine.dimensions import TARGET
from tracelens.rules.engine.facts import Outcome, StepFacts, absent
from tracelens.rules.engine.missing import for_shapes, no_model
from tracelens.rules.engine.products import predicted
from tracelens.rules.engine.proposals import Proposal, cannot_judge, decide, took
from tracelens.rules.engine.simulated import pays, simulate
from tracelens.rules.engine.stakes import Stake, time_at_stake
from tracelens.step.alignment import grid_elements

#: Bytes a weight takes in training: weights and gradients in 16 bits, master weights and Adam's two moments
#: in fp32 (ZeRO, arXiv 1910.02054).
_BYTES_A_WEIGHT = 16
_SHARDED = ("attention.", "mlp.")
_WORDS = {"heads": "heads", "kv_heads": "key-value heads", "ffn": "ffn", "vocab": "vocabulary"}


@dataclass(frozen=True, slots=True)
class _Slices:
    """What one rank's part of the layers looks like."""

    ranks: int
    rows: list[GemmRow]  # products and attention of the layers
    thin: list[GemmRow]  # of them those with fewer tiles than the GPU has SMs
    off_grid: list[str]  # "ffn 1365": a rank's part whose rows do not begin on 16 bytes
    copies: str  # about key-value heads that several ranks hold; "" where nothing says so


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """Slices that fill the GPU, on the 16-byte grid, and no more ranks than pay."""

    id: str = "TL107"
    slug: str = "tensor-parallel"
    title: str = "Tensor-parallel slices that fill the GPU"

    def check(self, facts: StepFacts, /) -> Outcome:
        """Judge the slices of a rank, and simulate fewer ranks at the same GPUs and tokens."""
        refusal = cannot_judge(facts) or _not_split(facts)
        if refusal is not None:
            return refusal
        slices = _slices(facts)
        if not slices.rows:
            return Outcome(
                "could_not_run",
                f"None of the products that {slices.ranks} ranks share has a shape:"
                f" {for_shapes(facts.gemms)}.",
            )
        if facts.step is None:
            return Outcome("could_not_run", f"{_saw(facts, slices)} The step cannot be simulated.")
        whole = _whole_vocabulary(facts, slices)
        tried = {ranks: simulate(facts, {"tensor_parallel": ranks}) for ranks in _fewer(slices.ranks)}
        found = {ranks: one for ranks, one in tried.items() if not isinstance(one, str)}
        if whole is not None:
            proposals = [_split_vocabulary(facts, slices, whole, found)]
            return decide(self, facts=facts, proposals=proposals, passed="")
        if not found:
            why = next(str(one) for one in tried.values())
            return Outcome(
                "could_not_run", f"{_saw(facts, slices)} What fewer ranks would do cannot be judged: {why}."
            )
        paying = [ranks for ranks, one in found.items() if pays(one.saving_ms)]
        first = paying[0] if paying else max(found)
        proposal = _proposal(facts, slices, first, found)
        return decide(self, facts=facts, proposals=[proposal], passed="")


def _not_split(facts: StepFacts) -> Outcome | None:
    """Why there is no tensor-parallel slice to judge, or None."""
    without = no_model(facts)
    if without is not None:
        return without
    known = facts.model.tensor_parallel
    if known.value == 1:
        return Outcome("not_applicable", f"No ranks share a layer: {known.source}.")
    if known.value is None:
        if not facts.communication:
            return absent("No communication was recognised in the trace.")
        return Outcome(
            "could_not_run",
            f"Over how many ranks layers are split is not known ({known.source}): record with"
            " record_shapes=True, and name the process groups (DeviceMesh with mesh_dim_names).",
        )
    return None


def _fewer(ranks: int) -> list[int]:
    """Smaller numbers of ranks that divide the present one, the nearest first."""
    return [count for count in range(ranks - 1, 0, -1) if ranks % count == 0]


def _slices(facts: StepFacts) -> _Slices:
    ranks = facts.model.tensor_parallel.value or 1
    rows = [
        row for row in facts.gemms
        if row.component.startswith(_SHARDED) and (row.kind == "attention" or row.n is not None)
    ]  # fmt: skip
    sms = facts.gpu.sms
    thin = [
        row for row in rows
        if row.kind == "gemm" and sms is not None and row.tiles is not None and row.tiles < sms
    ]  # fmt: skip
    return _Slices(ranks, rows, thin, _off_grid(facts, rows), _copies(facts, ranks))


def _off_grid(facts: StepFacts, rows: Sequence[GemmRow]) -> list[str]:
    """Parts of a rank that are no multiple of 16 bytes, as sides of products."""
    dtypes = [row.dtype for row in rows if row.kind == "gemm" and row.dtype is not None]
    grid = grid_elements(max(set(dtypes), key=dtypes.count)) if dtypes else None
    if grid is None:
        return []
    model, now = facts.model, _now(facts)
    parts = {"ffn": model.ffn.value}
    if now is not None and now.vocab_split:
        parts["vocab"] = now.vocab
    return [f"{_WORDS[name]} {size}" for name, size in parts.items() if size and size % grid]


def _copies(facts: StepFacts, ranks: int) -> str:
    local, declared = facts.model.kv_heads.value, facts.declared.get("kv_heads")
    if local != 1:
        return ""
    if declared is None:
        return (
            f"Each rank holds one key-value head: the model has {ranks}, or fewer of which ranks hold copies;"
            " the trace does not tell"
        )
    if declared < ranks:
        return (
            f"The model has {plural(declared, 'key-value head')} for {ranks} ranks: each is projected"
            f" {ranks // declared} times"
        )
    return ""


def _now(facts: StepFacts) -> Hyper | None:
    return facts.step.now if facts.step is not None else None


def _exposed_ms(facts: StepFacts) -> float:
    return sum(row.exposed_ms_per_step for row in facts.communication if row.purpose == "tensor parallel")


def _saw(facts: StepFacts, slices: _Slices) -> str:
    text = (
        f"Layers are split over {slices.ranks} ranks. A rank's {took(slices.rows, 'product shape', facts)}."
    )
    sms = facts.gpu.sms
    if sms is not None and any(row.tiles is not None for row in slices.rows):
        thin = (
            f"{len(slices.thin)} of them, {ms(_time(slices.thin))} {facts.per_step}, have"
            if slices.thin
            else "None has"
        )
        text += f" {thin} fewer tiles than the GPU's {sms} SMs."
    text += _with_twice(facts, slices.ranks)
    if slices.off_grid:
        text += f" No multiple of 16 bytes: {listed(slices.off_grid)}."
    if slices.copies:
        text += f" {slices.copies}."
    exposed = _exposed_ms(facts)
    if facts.communication:
        text += f" The ranks' messages stand exposed for {ms(exposed)} {facts.per_step}."
    return text


def _with_twice(facts: StepFacts, ranks: int) -> str:
    """How many products of layers twice the ranks would leave below one wave, by their predicted tiles."""
    step, sms = facts.step, facts.gpu.sms
    if step is None or sms is None:
        return ""
    try:
        then = changed(step.now, {"tensor_parallel": 2 * ranks})
    except UsageError as error:
        return f" {2 * ranks} ranks would not do: {str(error).split(';')[0]}."
    tiles = [
        found.tiles
        for product in step.work.products
        if product.row.component.startswith(_SHARDED) and (sizes := product.sizes(then)) is not None
        if not isinstance(found := predicted(product.row, facts=facts, sizes=sizes), str)
        and found.tiles is not None
    ]
    if not tiles:
        return ""
    thin = sum(1 for count in tiles if count < sms)
    return (
        f" With {2 * ranks} ranks {thin} of {plural(len(tiles), 'GEMM shape')} are predicted to have"
        " fewer tiles"
        " than SMs."
    )


def _time(rows: Sequence[GemmRow]) -> float:
    return sum(row.time_ms_per_step for row in rows)


def _proposal(facts: StepFacts, slices: _Slices, ranks: int, found: dict[int, WhatIf]) -> Proposal:
    others = [count for count in found if count != ranks]
    return Proposal(
        title=f"Split layers over {plural(ranks, 'rank')} instead of {slices.ranks}",
        stakes=[time_at_stake(row, gpu=facts.gpu) for row in slices.rows],
        more_bound_ms=_exposed_ms(facts) + _copied_ms(facts, ranks, slices.ranks),
        confidence="medium" if slices.thin or slices.off_grid else "low",
        effort="config",
        saw=_saw(facts, slices),
        why=(
            f"Each rank's part of a product is 1/{slices.ranks} as wide: fewer tiles for the same SMs,"
            " and the whole activation is read for less work. Norms, residuals and all else that is not"
            " split run on every rank, and the ranks exchange activations twice in the forward of a layer"
            " and twice in its backward (arXiv 1909.08053). At the same GPUs, fewer ranks to a copy of the"
            " model are more copies."
        ),
        change={"tensor_parallel": [slices.ranks, ranks]},
        fix=[f"- tensor_parallel = {slices.ranks}", f"+ tensor_parallel = {ranks}"],
        caveats=_caveats(facts, slices.ranks, ranks, {count: found[count] for count in others}),
        evidence={
            "tensor_parallel": slices.ranks,
            "thin_rows": [row.id for row in slices.thin],
            "off_grid": slices.off_grid,
            "exposed_ms": _exposed_ms(facts),
            "others": {str(count): one.saving_ms.mid for count, one in found.items()},
        },
        parameter_delta=0,
        simulate={"tensor_parallel": ranks},
    )


def _copied_ms(facts: StepFacts, ranks: int, present: int, *, of: tuple[str, ...] = ()) -> float:
    """Kernels besides products that every rank runs alike, and of which fewer ranks run fewer copies."""
    if facts.step is None:
        return 0.0
    rest = sum(
        max(0.0, time - products)
        for name, _, time, products in facts.step.components
        if name not in ("communication", "optimizer", "grad_clip") and (not of or name in of)
    )
    return rest * (1 - ranks / present)


def _caveats(facts: StepFacts, present: int, ranks: int, others: dict[int, WhatIf]) -> list[str]:
    now = _now(facts)
    weights = now.parameters if now is not None else None
    part = "all" if ranks == 1 else f"1/{ranks}"
    memory = (
        f"Each GPU then holds {part} of the layers and not 1/{present}; whether that fits is not in the"
        " trace."
    )
    if weights:
        stages = (now.pipeline_parallel if now is not None else None) or 1
        was, then = (weights * _BYTES_A_WEIGHT / count / stages / 1e9 for count in (present, ranks))
        memory += (
            f" At {_BYTES_A_WEIGHT} bytes a weight (Adam, not sharded over copies; arXiv 1910.02054) they"
            f" take {then:.3g} GB and not {was:.3g} GB, and activations grow as well."
        )
    words = _in_words(others)
    return [memory, *([f"Other numbers of ranks, at the same GPUs and tokens: {words}."] if words else [])]


def _in_words(found: dict[int, WhatIf]) -> str:
    return listed(
        [
            f"{count} {'saves' if one.saving_ms.mid >= 0 else 'adds'} {ms(abs(one.saving_ms.mid))}"
            for count, one in found.items()
            if one.saving_ms.mid is not None
        ]
    )


# --- the vocabulary -----------------------------------------------------------------------------------


def _whole_vocabulary(facts: StepFacts, slices: _Slices) -> int | None:
    """The vocabulary, where every rank computes logits of all of it."""
    now = _now(facts)
    if now is None or now.vocab_split is not False or not now.vocab or now.vocab < slices.ranks:
        return None
    return now.vocab if any(row.component == "logits" for row in facts.gemms) else None


def _split_vocabulary(facts: StepFacts, slices: _Slices, vocab: int, found: dict[int, WhatIf]) -> Proposal:
    ranks = slices.ranks
    part = round_up(-(-vocab // ranks), TARGET)
    rows = [row for row in facts.gemms if row.component == "logits"]
    saw = (
        f"{_saw(facts, slices)} Every rank computes logits for all {vocab} entries of the vocabulary:"
        f" {took(rows, 'GEMM shape', facts)}."
    )
    words = _in_words(found)
    how = (
        "The output layer has to give split logits and the loss to take them: in PyTorch ColwiseParallel with"
        " use_local_output=False and loss_parallel(), in Megatron parallel_output."
    )
    return Proposal(
        title=f"Split the vocabulary of {vocab} over the {ranks} tensor-parallel ranks",
        stakes=[_copies_of(row, ranks) for row in rows],
        more_bound_ms=_copied_ms(facts, 1, ranks, of=("loss", "logits")),
        confidence="medium",
        effort="code",
        saw=saw,
        why=(
            f"The ranks share the layers, but the largest product of the model runs {ranks} times, once on"
            f" each. Split by columns, each computes {part} logits of a token, and the loss needs a maximum"
            " and two sums of every token from all ranks (Megatron's vocab_parallel_cross_entropy, PyTorch's"
            " loss_parallel)."
        ),
        change={"vocab_parallel": [1, ranks]},
        fix=[f"- {vocab} logits on each of {ranks} ranks", f"+ {part} logits on each of {ranks} ranks"],
        caveats=[
            how,
            "The loss's own messages, a few values of every token, are not in the prediction.",
            *([f"Fewer tensor-parallel ranks, at the same GPUs and tokens: {words}."] if words else []),
        ],
        evidence={"vocab": vocab, "tensor_parallel": ranks, "part": part},
        parameter_delta=0,
        simulate={"vocab": part},
    )


def _copies_of(row: GemmRow, ranks: int) -> Stake:
    bound = row.time_ms_per_step * (1 - 1 / ranks)
    how = (
        f"logits ({row.id}): every rank computes all of it, {ms(row.time_ms_per_step)} × (1 - 1/{ranks})"
        f" = {ms(bound)}."
    )
    return Stake(row, bound, how)
