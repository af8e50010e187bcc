"""What each linear layer's GEMMs would take in fp8 or less, or in 16 bits, and what sizes keep them out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from tracelens.gemm.predict.rates import peak_of
from tracelens.numbers import listed, ms, ms_range, plural, round_up
from tracelens.results import GemmRow, OtherRow, Span
from tracelens.rules.engine.bounds import Bound
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.rows import time_of
from tracelens.rules.evidence.dimensions import parameter_of
from tracelens.step.casts import cast_ms
from tracelens.step.predicted import CONVERTED, LOW_PRECISION, SIXTEEN_BITS, scaled_product
from tracelens.step.traced_step import StepModel
from tracelens.step.work import Product

_IN_BF16 = "in bf16, which keeps the loss stable (arXiv 2509.25149)"


@dataclass(frozen=True, slots=True)
class TypeGain:
    """One component's GEMMs in another type: milliseconds per step, casts taken off."""

    component: str
    dtype: str
    bounds: tuple[Bound, ...]  # each row's time above the low end of what it would take
    saving: Span

    @property
    def sure(self) -> bool:
        """Is even the low end a gain?"""
        return self.saving.low > 0


def linear_rows(facts: StepFacts, dtypes: frozenset[str]) -> list[GemmRow]:
    """GEMMs of linear layers that run in one of these types."""
    return [row for row in facts.gemms if row.component in CONVERTED and row.dtype in dtypes]


def types_of(step: StepModel) -> list[str]:
    """Types of low precision that this GPU has a peak for."""
    blackwell = (step.gpu.compute_capability or (0, 0)) >= (10, 0)
    return [one for one in LOW_PRECISION if peak_of(step.gpu, one) and (one != "nvfp4" or blackwell)]


def gains(facts: StepFacts, step: StepModel, dtype: str) -> list[TypeGain]:
    """What each component's GEMMs in 16 bits would save in ``dtype``, where all of them have a prediction."""
    found: list[TypeGain] = []
    for component, products in _components(step, SIXTEEN_BITS).items():
        judged = [_saved(facts, step, product, dtype) for product in products]
        known = [one for one in judged if one is not None]
        if known and len(known) == len(judged):
            found.append(_gain(component, dtype, known))
    return found


def losses(facts: StepFacts, step: StepModel) -> list[TypeGain]:
    """What each component's GEMMs in fp8 would save back in bf16, with the casts that the trace shows."""
    found = []
    for component, products in _components(step, frozenset({"fp8"})).items():
        judged = [_saved(facts, step, product, "bf16") for product in products]
        known = [one for one in judged if one is not None]
        if known and len(known) == len(judged):
            cast = time_of(casts_to_fp8(facts, {component}))
            gain = _gain(component, "bf16", known)
            found.append(replace(gain, saving=gain.saving.joined(Span.exactly(cast, gain.saving.basis))))
    return found


def casts_to_fp8(facts: StepFacts, components: Collection[str]) -> list[OtherRow]:
    """Kernels of these components that cast to fp8."""
    rows = [row for row in facts.others or () if row.kind == "cast" and row.dtype_to == "fp8"]
    return [row for row in rows if row.component in components]


def less_of_nvfp4(facts: StepFacts, mid_ms: float) -> str:
    """What is left of a gain in NVFP4 with the last layers in bf16, as recipes of training have them.

    torchtitan's ``nvfp4.md`` after arXiv 2509.25149: the leading 85 % of the layers are converted.
    """
    if not facts.trains:
        return ""
    layers, stages = facts.model.layers.value or 0, facts.model.pipeline_parallel.value or 1
    converted = layers * 85 // 100
    if not converted or stages > 1:  # another rank can have the last ones
        return f"; less with the last 15% of the layers {_IN_BF16}"
    last = "the last" if layers - converted == 1 else f"the last {layers - converted}"
    left = ms(converted / layers * mid_ms)
    return f"; {left} with {last} of the {layers} layers {_IN_BF16}"


def sure_saving(found: Sequence[TypeGain]) -> Span | None:
    """Of the components that gain for sure; None without any."""
    sure = [gain.saving for gain in found if gain.sure]
    return reduce(Span.joined, sure) if sure else None


def gain_of(facts: StepFacts, name: str, found: Sequence[TypeGain]) -> str:
    """What one type gains in which components, as a sentence; ``name``: the type's."""
    rest = listed([gain.component for gain in found if not gain.sure])
    saving = sure_saving(found)
    if saving is None:
        return f"In {name} {f'no gain is sure in {rest}' if found else 'they are not predicted'}."
    kept = less_of_nvfp4(facts, saving.mid) if name == "NVFP4" else ""
    unsure = f"; no gain is sure in {rest}" if rest else ""
    where = names([gain for gain in found if gain.sure])
    spread = ms_range(saving.low, saving.high)
    return f"In {name} they gain {ms(saving.mid)} ({spread}) in {where}{unsure}{kept}."


def names(found: Sequence[TypeGain]) -> str:
    """Their components, in a sentence."""
    return listed([gain.component for gain in found])


def table(found: Sequence[TypeGain]) -> dict[str, list[float | None]]:
    """component -> [low, mid, high] ms per step."""
    return {gain.component: [gain.saving.low, gain.saving.mid, gain.saving.high] for gain in found}


def _components(step: StepModel, dtypes: frozenset[str]) -> dict[str, list[Product]]:
    found: dict[str, list[Product]] = {}
    for product in step.work.products:
        row = product.row
        if row.component in CONVERTED and (row.math_dtype or row.dtype) in dtypes and row.calls_per_step > 0:
            found.setdefault(row.component, []).append(product)
    return found


def _saved(facts: StepFacts, step: StepModel, product: Product, dtype: str) -> tuple[Bound, Span] | None:
    """One product's saving, ms per step, and its bound; None where it has no prediction."""
    row = product.row
    now = replace(step.now, dtype=row.math_dtype or row.dtype)
    then = replace(now, dtype=dtype)
    scaled = scaled_product(product, now, then, anchors=step.anchors, gpu=step.gpu, measured=step.measured)
    sizes = product.sizes(now)
    if isinstance(scaled, str) or sizes is None:
        return None
    time = row.time_ms_per_step * product.weight
    low, mid, high = (time - frac * time for frac in (scaled.high, scaled.mid, scaled.low))
    saving = Span(low, mid, high, scaled.basis)
    bound = Bound(row, max(high, 0.0))
    if dtype in LOW_PRECISION:
        m, n, k, batch = sizes
        weights = k * n if facts.trains else 0  # which do not change in inference: they are cast once
        saving = saving.joined(
            -cast_ms(row.calls_per_step * product.weight * batch * (m * k + weights), step.gpu)
        )
    return bound, saving


def _gain(component: str, dtype: str, judged: Sequence[tuple[Bound, Span]]) -> TypeGain:
    return TypeGain(
        component, dtype, tuple(_merged(judged)), reduce(Span.joined, [saving for _, saving in judged])
    )


def _merged(judged: Sequence[tuple[Bound, Span]]) -> Iterator[Bound]:
    """Parts of one row as one bound."""
    rows: dict[str, list[Bound]] = {}
    for bound, _ in judged:
        rows.setdefault(bound.row.id, []).append(bound)
    for parts in rows.values():
        yield Bound(parts[0].row, sum(part.ms for part in parts))


# Sizes that keep a GEMM out of precisions whose elements share a scale by blocks, as a rank computes it.
# A tensor is scaled along its rows for one product and along its columns for the next, so both of its sizes
# have to be whole blocks: MXFP8 in 32s (TransformerEngine, ``mxfp8.rst``); fp8 in blocks, and NVFP4 after
# tensor parallelism, in 128s (``fp8_blockwise_scaling.rst``; pytorch/torchtitan ``nvfp4.md``). The rows of a
# trace have the sizes of one rank. Of the tokens a rank of sequence parallelism casts its part alone, before
# they are gathered (modelscope/ms-swift#9723).

_IN_FULL = 3


def block_fit(rows: Sequence[GemmRow], facts: StepFacts) -> str:
    """Which precisions with block scales take these GEMMs, and what the sizes that keep others out become."""
    said = []
    capability = facts.step.gpu.compute_capability if facts.step is not None else None
    blackwell = (capability or (0, 0)) >= (10, 0)
    blocks = ((32, "MXFP8"), (128, "NVFP4")) if blackwell else ((128, "fp8 in blocks"),)
    for block, whose in blocks:
        off = {row.id: sizes for row in rows if (sizes := misfits(row, block, facts))}
        if not off:
            said.append(f"{whose} takes all of them")
            continue
        sizes = dict(sorted({size: name for one in off.values() for size, name in one.items()}.items()))
        changes = [
            f"{name or 'a size'} {size} to {round_up(size, block)}"
            for size, name in list(sizes.items())[:_IN_FULL]
        ]
        more = f" and {len(sizes) - _IN_FULL} more" if len(sizes) > _IN_FULL else ""
        have = "has" if len(off) == 1 else "have"
        said.append(
            f"{whose} needs multiples of {block}, and {len(off)} {have} others: {listed(changes)}{more}"
        )
    return f"By size, as each rank has it, of {plural(len(rows), 'shape')}: {'; '.join(said)}."


def misfits(row: GemmRow, block: int, facts: StepFacts) -> dict[int, str | None]:
    """Sizes of a row that are no whole blocks, with the parameter behind each."""
    tokens = "k" if row.role == "wgrad" else "m"
    ranks = _sequence_ranks(facts)
    found: dict[int, str | None] = {}
    for letter in "mnk":
        size = getattr(row, letter)
        if size is None or (letter == tokens and not facts.trains):
            continue
        part = size // ranks if letter == tokens and size % ranks == 0 else size
        if part % block:
            found[part] = "tokens" if letter == tokens else parameter_of(row, letter)
    return found


def _sequence_ranks(facts: StepFacts) -> int:
    """Ranks that split the tokens of a layer, by the all-gathers of tensor parallelism; 1 where none do."""
    sizes = {
        row.group_size
        for row in facts.communication
        if row.purpose == "tensor parallel" and row.collective == "all_gather"
    }
    return next(iter(sizes)) or 1 if len(sizes) == 1 else 1
