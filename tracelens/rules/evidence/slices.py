"""What a tensor-parallel rank's slice of the layers looks like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracelens.config.model_config import changed
from tracelens.errors import UsageError
from tracelens.numbers import listed, ms, part_of, plural
from tracelens.results import GemmRow
from tracelens.rules.engine.candidate import absent, could_not_run, not_applicable
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import for_shapes, need_model
from tracelens.rules.engine.predictions import predicted
from tracelens.rules.engine.rows import less, time_of, took
from tracelens.step.alignment import grid_elements

_SHARDED = ("attention.", "mlp.")


@dataclass(frozen=True, slots=True)
class Slices:
    """One rank's part of the layers."""

    ranks: int
    rows: list[GemmRow]  # GEMMs and attention of the layers
    thin: list[GemmRow]  # of them those with fewer tiles than the GPU has SMs
    off_grid: list[str]  # "ffn 1365": a rank's part whose rows do not begin on 16 bytes
    copies: str  # about key-value heads that several ranks hold; "" where nothing says so
    vocab: int | None  # where every rank computes logits of all of it
    exposed_ms: float  # messages of the ranks that no compute hides, per step

    def saw(self, facts: StepFacts) -> str:
        """What a trace shows of it."""
        text = f"Layers are split over {self.ranks} ranks. On this one, {took(self.rows, facts)}."
        sms = facts.gpu.sms
        if sms is not None and any(row.tiles is not None for row in self.rows):
            have = "has" if len(self.thin) == 1 else "have"
            many = f"{len(self.thin)} of them, {ms(time_of(self.thin))} {facts.per_step}, {have}"
            text += f" {many if self.thin else 'None has'} fewer tiles than the GPU's {sms} SMs."
        text += _with_twice(facts, self.ranks)
        if self.off_grid:
            text += f" On each rank no multiple of 16 bytes: {listed(self.off_grid)}."
        if self.copies:
            text += f" {self.copies}."
        if facts.communication:
            text += f" The ranks' messages stand exposed for {ms(self.exposed_ms)} {facts.per_step}."
        return text


def need_slices(facts: StepFacts) -> Slices:
    """Raises ``Answer`` where there is no tensor-parallel slice to judge."""
    need_model(facts)
    known = facts.model.tensor_parallel
    if known.value == 1:
        raise not_applicable(f"No ranks share a layer: {known.source}.")
    if known.value is None:
        if not facts.communication:
            raise absent("No communication was recognised in the trace.")
        raise could_not_run(
            f"Over how many ranks layers are split is not known ({known.source}): record with"
            " record_shapes=True, and name the process groups (DeviceMesh with mesh_dim_names)."
        )
    rows = [
        row for row in facts.gemms
        if row.component.startswith(_SHARDED) and (row.kind == "attention" or row.n is not None)
    ]  # fmt: skip
    if not rows:
        raise could_not_run(
            f"None of the GEMMs that {known.value} ranks share has a shape: {for_shapes(facts.gemms)}."
        )
    sms = facts.gpu.sms
    thin = [
        row for row in rows
        if row.kind == "gemm" and sms is not None and row.slices is not None and row.slices < sms
    ]  # fmt: skip
    exposed = sum(row.exposed_ms_per_step for row in facts.communication if row.purpose == "tensor parallel")
    ranks = known.value
    off_grid, copies = _off_grid(facts, rows), _copies(facts, ranks)
    return Slices(ranks, rows, thin, off_grid, copies, _whole_vocabulary(facts, ranks), exposed)


def _off_grid(facts: StepFacts, rows: Sequence[GemmRow]) -> list[str]:
    """Parts of a rank that are no multiple of 16 bytes, as sides of GEMMs."""
    dtypes = [row.dtype for row in rows if row.kind == "gemm" and row.dtype is not None]
    grid = grid_elements(max(set(dtypes), key=dtypes.count)) if dtypes else None
    if grid is None:
        return []
    parts = {"ffn": facts.model.ffn.value}
    now = facts.step.now if facts.step is not None else None
    if now is not None and now.vocab_split:
        parts["vocabulary"] = now.vocab
    return [f"{name} {size}" for name, size in parts.items() if size and size % grid]


def _copies(facts: StepFacts, ranks: int) -> str:
    declared = facts.declared.get("kv_heads")
    if facts.model.kv_heads.value != 1 or (declared is not None and declared >= ranks):
        return ""
    if declared is None:
        return (
            f"Each rank holds one key-value head: the model has {ranks}, or fewer of which ranks hold copies;"
            " the trace does not tell"
        )
    return (
        f"The model has {plural(declared, 'key-value head')} for {ranks} ranks: each is projected"
        f" {ranks // declared} times"
    )


def _whole_vocabulary(facts: StepFacts, ranks: int) -> int | None:
    now = facts.step.now if facts.step is not None else None
    if now is None or now.vocab_split is not False or not now.vocab or now.vocab < ranks:
        return None
    return now.vocab if any(row.component == "logits" for row in facts.gemms) else None


def _with_twice(facts: StepFacts, ranks: int) -> str:
    """How many GEMMs of layers twice the ranks would leave below one wave, by their predicted tiles."""
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
    thin = sum(1 for count in tiles if count < sms)
    return (
        f" With {2 * ranks} ranks {part_of(thin, len(tiles), 'GEMM shape', 'is', 'are')} predicted to have"
        " fewer tiles than SMs."
        if tiles
        else ""
    )


def copied_ms(facts: StepFacts, ranks: int, present: int, *, of: tuple[str, ...] = ()) -> float:
    """Kernels besides GEMMs that every rank runs alike, and of which fewer ranks run fewer copies."""
    if facts.step is None:
        return 0.0
    rest = sum(
        less(time, products)
        for name, _, time, products in facts.step.components
        if name not in ("communication", "optimizer", "grad_clip") and (not of or name in of)
    )
    return rest * (1 - ranks / present)
