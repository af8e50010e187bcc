"""The attention work of a step by its head dimension, and what its kernels are compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.gemm.predict.attention_kernels import padded_head_dim
from tracelens.numbers import round_up
from tracelens.results import GemmRow
from tracelens.rules.engine.candidate import absent, could_not_run
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import for_shapes
from tracelens.rules.engine.simulated import pays, simulate

#: Head sizes FlashAttention 2 has kernels for (HEADDIM_SWITCH in static_switch.h of torch's copy; the
#: library itself dropped 224). FlashAttention 3 has 64, 96, 128, 192, 256 (hopper/tile_size.h). Any other
#: runs on the next larger one, the rest of its columns zero. FlashAttention 4 pads to multiples of 16.
COMPILED = (32, 64, 96, 128, 160, 192, 224, 256)
#: Sizes that every attention library takes as they are.
GOOD = frozenset({64, 128, 256})
_UNFUSED = frozenset({"attention.scores", "attention.values"})


@dataclass(frozen=True, slots=True)
class HeadsRun:
    """The attention work of one head dimension, of as many heads."""

    head_dim: int
    heads: int | None  # that a call has on this rank; None where no row says
    fused: list[GemmRow]
    unfused: list[GemmRow]

    @property
    def compiled(self) -> int | None:
        """Head size in the fused kernels' names; the largest where they differ, None where none says."""
        named = (row.kernel_head_dim for row in self.fused if row.kernel_kind == "attention")
        sizes = [size for size in named if size is not None]
        return max(sizes) if sizes else None

    @property
    def computed(self) -> int:
        """Columns that a fused kernel computes, by its name or else by what FlashAttention has."""
        if self.compiled:
            return self.compiled
        if self.fused and all(row.kernel_family == "flash4" for row in self.fused):
            return padded_head_dim("flash4", self.head_dim) or self.head_dim
        return next((size for size in COMPILED if size >= self.head_dim), self.head_dim)

    @property
    def padding_frac(self) -> float | None:
        """Share of the kernel's columns that are zeros; None where the name does not say the size."""
        return None if self.compiled is None else max(0.0, 1 - self.head_dim / self.compiled)

    @property
    def is_misfit(self) -> bool:
        """Does another head dimension fit the kernels better?"""
        if self.head_dim in GOOD:
            return False
        if self.head_dim % 8 or self.head_dim < 64:
            return True
        if self.padding_frac is not None:
            return self.padding_frac > 0
        # No name says: sizes that all FlashAttentions have are taken as fitting, larger ones run elsewhere.
        return self.head_dim <= COMPILED[-1] and self.computed > self.head_dim

    def is_models(self, facts: StepFacts) -> bool:
        """Is it the attention whose heads the model's dimensions state?"""
        return (self.heads, self.head_dim) == (facts.model.heads.value, facts.model.head_dim.value)

    def work_frac(self, head_dim: int) -> float:
        """Share of a fused kernel's work that is left with ``head_dim``, at equal heads * head_dim.

        Two parts of the work shrink differently: softmax goes with the number of heads (head_dim / new), the
        matmuls with the columns computed (head_dim / compiled). The smaller of the two bounds the rest. The
        paper's FlashAttention sweep stays inside this bound: from 80 to 128 it went from 208 to 222 TFLOP/s,
        94 % of the time where the bound says 63 %; from 64 to 128 61 % where it says 50 %.
        """
        return min(1.0, self.head_dim / head_dim, self.head_dim / max(self.computed, self.head_dim))


def need_heads(facts: StepFacts) -> list[HeadsRun]:
    """By head dimension and number of heads; raises ``Answer`` where none is known."""
    rows = [row for row in facts.gemms if row.kind == "attention" or row.component in _UNFUSED]
    if not rows:
        raise absent("No fused attention kernel and no score or value GEMM was recognised.", attention=True)
    groups: dict[tuple[int, int | None], HeadsRun] = {}
    for row in rows:
        head_dim = _head_dim(row, facts)
        if head_dim is not None and head_dim > 0:
            heads = _heads(row, head_dim, facts)
            group = groups.setdefault((head_dim, heads), HeadsRun(head_dim, heads, [], []))
            (group.fused if row.kind == "attention" else group.unfused).append(row)
    if not groups:
        many = "1 attention row" if len(rows) == 1 else f"{len(rows)} attention rows"
        raise could_not_run(f"The head dimension of {many} is not known: {_why_none(rows)}.")
    return [groups[key] for key in sorted(groups, key=lambda key: (key[0], key[1] or 0))]


def _why_none(rows: list[GemmRow]) -> str:
    if any(row.attention is not None and row.attention.value_dim is not None for row in rows):
        return "values have another width than keys"
    blind = [row for row in rows if row.m is None and row.attention is None]
    return for_shapes(blind) if blind else "their shapes do not say which side it is"


def _head_dim(row: GemmRow, facts: StepFacts) -> int | None:
    """From the row's own shape where it has one, else the model's. Values of another width are left out.

    Scores reduce over the head dimension, and values give it out: so their forward GEMMs say it.
    """
    call = row.attention
    if call is not None and call.value_dim is not None:
        return None
    if call is not None and call.head_dim is not None:
        return call.head_dim
    if row.role in (None, "forward") and row.component in _UNFUSED:
        own = row.k if row.component == "attention.scores" else row.n
        if own is not None:
            return own
    model = facts.model
    if call is not None and call.heads not in (None, model.heads.value):
        return None  # attention of another part of the model
    return model.head_dim.value


def _heads(row: GemmRow, head_dim: int, facts: StepFacts) -> int | None:
    """Heads of the row's call: its own, else of the model or of all calls that have this head dimension."""
    if row.attention is not None and row.attention.heads is not None:
        return row.attention.heads
    model = facts.model
    if model.head_dim.value == head_dim:
        return model.heads.value
    calls = [one.attention for one in facts.gemms if one.attention is not None]
    said = {call.heads for call in calls if call.head_dim == head_dim}
    return said.pop() if len(said) == 1 else None


@dataclass(frozen=True, slots=True)
class Split:
    """Another split: ``heads`` None where the present number is not known or does not come out even."""

    head_dim: int
    heads: int | None


def _options(facts: StepFacts, group: HeadsRun) -> list[Split]:
    """Other splits of the same heads * head_dim, the one with the most room first.

    Below 64 the next size comes first: it changes the model least. Tensor-parallel ranks have as many heads
    each. One head is no multi-head attention: it comes only where nothing else does.
    """
    head_dim, heads = group.head_dim, group.heads
    wanted = (64, 128) if head_dim < 64 else (128, 64) if head_dim < 128 else (128, 256)
    if heads is None or heads <= 0:
        return [Split(size, None) for size in wanted]
    width = heads * head_dim
    even = [size for size in wanted if width % size == 0]
    if even:
        splits = [Split(size, width // size) for size in even]
        return [one for one in splits if one.heads != 1 or ranks_of(facts) > 1] or splits
    return [Split(next((size for size in (64, 128, 256) if size > head_dim), round_up(head_dim, 64)), None)]


def ranks_of(facts: StepFacts) -> int:
    """Ranks that share the heads of a layer: the whole model has so many times those of this one."""
    return facts.model.tensor_parallel.value or 1


def simulated(facts: StepFacts, group: HeadsRun, option: Split) -> dict[str, int] | None:
    """The change of the whole model: ranks that split the layers hold a part of the heads each."""
    if option.heads is None or not group.is_models(facts):
        return None  # attention of another kind than the model's: no parameter is known for it
    return {"heads": option.heads * ranks_of(facts), "head_dim": option.head_dim}


def by_saving(facts: StepFacts, group: HeadsRun) -> list[Split]:
    """The other splits that are predicted to pay, the best first; the best of all where none does.

    Without predictions they stay in their order.
    """
    options = _options(facts, group)
    found = [(option, simulate(facts, simulated(facts, group, option))) for option in options]
    predicted = [
        (option, saving)
        for option, one in found
        if not isinstance(one, str) and (saving := one.saving_ms.known) is not None
    ]
    if len(predicted) < len(options):
        return options
    predicted.sort(key=lambda pair: -pair[1].mid)
    return [option for option, saving in predicted if pays(saving)] or [predicted[0][0]]
