"""TL103: a head dimension that attention kernels are not compiled for, or one too small to feed them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tracelens.numbers import listed, percent, plural, round_up
from tracelens.results import GemmRow
from tracelens.rules.engine.facts import Outcome, StepFacts, absent
from tracelens.rules.engine.missing import for_shapes
from tracelens.rules.engine.proposals import Proposal, cannot_judge, decide, took
from tracelens.rules.engine.simulated import pays, simulate
from tracelens.rules.engine.stakes import Stake, time_at_stake
from tracelens.words import Level

#: Head sizes FlashAttention 2 has kernels for (HEADDIM_SWITCH in static_switch.h of torch's copy; the
#: library itself dropped 224). FlashAttention 3 has 64, 96, 128, 192, 256 (hopper/tile_size.h). Any other
#: runs on the next larger one, the rest of its columns zero.
COMPILED = (32, 64, 96, 128, 160, 192, 224, 256)
#: Sizes that every attention library takes as they are.
_GOOD = frozenset({64, 128, 256})
#: FlashAttention on an A100, 128 heads, TFLOP/s by head dimension (arXiv 2401.14489).
_A100_TFLOPS = {8: 22, 16: 49, 32: 87, 64: 136, 80: 208, 128: 222}
_UNFUSED = frozenset({"attention.scores", "attention.values"})
#: "b=8 h=12 s=1024 d=64", with dv=... behind it where values have another width.
_NOTE_D = re.compile(r"(?<![a-z])d=(\d{1,6})(?![\w.])")
_NOTE_H = re.compile(r"(?<![a-z])h=(\d{1,6})(?![\w.])")
_NOTE_DV = re.compile(r"(?<![a-z])dv=\d")


@dataclass(frozen=True, slots=True)
class _Attention:
    """The attention work of one head dimension, of as many heads."""

    head_dim: int
    heads: int | None  # that a call has on this rank; None where no row says
    fused: list[GemmRow]
    unfused: list[GemmRow]

    @property
    def rows(self) -> list[GemmRow]:
        return [*self.fused, *self.unfused]

    @property
    def compiled(self) -> int | None:
        """Head size in the fused kernels' names; the largest where they differ, None where none says."""
        sizes = [size for row in self.fused if (size := _template(row)) is not None]
        return max(sizes) if sizes else None

    @property
    def padding_frac(self) -> float | None:
        """Share of the kernel's columns that are zeros; None where the name does not say the size."""
        return None if self.compiled is None else max(0.0, 1 - self.head_dim / self.compiled)


@dataclass(frozen=True, slots=True)
class _Heads:
    """A way out: ``heads`` None where the present number is not known or does not come out even."""

    head_dim: int
    heads: int | None


@dataclass(frozen=True, slots=True)
class HeadDimension:
    """Head dimension 64, 128 or 256, or one that the kernels that ran are compiled for."""

    id: str = "TL103"
    slug: str = "head-dimension"
    title: str = "Head dimension that attention kernels are compiled for"

    def check(self, facts: StepFacts, /) -> Outcome:
        """Judge the fused attention kernels and the score and value products."""
        refusal = cannot_judge(facts)
        if refusal is not None:
            return refusal
        rows = [row for row in facts.gemms if row.kind == "attention" or row.component in _UNFUSED]
        if not rows:
            return absent(
                "No fused attention kernel and no score or value GEMM was recognised.", attention=True
            )
        groups = _by_head_dim(facts, rows)
        if not groups:
            return Outcome(
                "could_not_run",
                f"The head dimension of {plural(len(rows), 'attention row')} is not known:"
                f" {_why_none(rows)}.",
            )
        proposals = [_proposal(facts, group) for group in groups if _is_misfit(group)]
        passed = " ".join(_fits(group) for group in groups)
        return decide(self, facts=facts, proposals=proposals, passed=passed)


def _why_none(rows: list[GemmRow]) -> str:
    if any(_NOTE_DV.search(row.shape_note or "") for row in rows):
        return "values have another width than keys"
    blind = [row for row in rows if row.m is None and not row.shape_note]
    return for_shapes(blind) if blind else "their shapes do not say which side it is"


def _by_head_dim(facts: StepFacts, rows: list[GemmRow]) -> list[_Attention]:
    groups: dict[tuple[int, int | None], _Attention] = {}
    for row in rows:
        head_dim = _head_dim(row, facts)
        if head_dim is not None and head_dim > 0:
            heads = _heads(row, head_dim, facts)
            group = groups.setdefault((head_dim, heads), _Attention(head_dim, heads, [], []))
            (group.fused if row.kind == "attention" else group.unfused).append(row)
    return [groups[key] for key in sorted(groups, key=lambda key: (key[0], key[1] or 0))]


def _head_dim(row: GemmRow, facts: StepFacts) -> int | None:
    """From the row's own shape where it has one, else the model's. Values of another width are left out.

    Scores reduce over the head dimension, and values give it out: so their forward products say it.
    """
    note = row.shape_note or ""
    if _NOTE_DV.search(note):
        return None
    if found := _NOTE_D.search(note):
        return int(found[1])
    if row.role in (None, "forward") and row.component in _UNFUSED:
        own = row.k if row.component == "attention.scores" else row.n
        if own is not None:
            return own
    return facts.model.head_dim.value


def _heads(row: GemmRow, head_dim: int, facts: StepFacts) -> int | None:
    """Heads of the row's call: its own, else the model's where the head dimension is the model's, too."""
    if found := _NOTE_H.search(row.shape_note or ""):
        return int(found[1])
    model = facts.model
    return model.heads.value if model.head_dim.value == head_dim else None


def _is_models(group: _Attention, facts: StepFacts) -> bool:
    """Is it the attention whose heads the model's dimensions state?"""
    return (group.heads, group.head_dim) == (facts.model.heads.value, facts.model.head_dim.value)


def _template(row: GemmRow) -> int | None:
    return row.kernel_head_dim if row.kernel_kind == "attention" else None


def _is_misfit(group: _Attention) -> bool:
    if group.head_dim in _GOOD:
        return False
    if group.head_dim % 8 or group.head_dim < 64:
        return True
    if group.padding_frac is not None:
        return group.padding_frac > 0
    # No name says: sizes that both FlashAttentions have are taken as fitting, larger ones run elsewhere.
    return group.head_dim <= COMPILED[-1] and group.head_dim not in COMPILED


def _fits(group: _Attention) -> str:
    if group.compiled == group.head_dim:
        return (
            f"head_dim {group.head_dim} fills the attention kernel that ran, compiled for {group.compiled}."
        )
    if group.head_dim in _GOOD:
        return f"head_dim {group.head_dim} is a size that attention kernels are compiled for."
    return f"head_dim {group.head_dim}: no padding is known for it."


def _options(facts: StepFacts, group: _Attention) -> list[_Heads]:
    """Other splits of the same heads * head_dim, the one with the most room first.

    Below 64 the next size comes first: it changes the model least. Tensor parallelism has to divide the
    new number of heads.
    """
    head_dim, heads = group.head_dim, group.heads
    wanted = (64, 128) if head_dim < 64 else (128, 64) if head_dim < 128 else (128, 256)
    ranks = facts.model.tensor_parallel.value or 1
    if heads is None or heads <= 0:
        return [_Heads(size, None) for size in wanted]
    width = heads * head_dim
    even = [size for size in wanted if width % size == 0 and width // size % max(ranks, 1) == 0]
    if even:
        return [_Heads(size, width // size) for size in even]
    nearest = next((size for size in (64, 128, 256) if size > head_dim), round_up(head_dim, 64))
    return [_Heads(nearest, None)]


def _work_frac(group: _Attention, option: _Heads) -> float:
    """Share of a fused kernel's work that is left after the change, at equal heads * head_dim.

    Two parts of the work shrink differently: softmax goes with the number of heads (head_dim / new), the
    products with the columns computed (head_dim / compiled). The smaller of the two bounds the rest. The
    paper's FlashAttention sweep stays inside this bound: from 80 to 128 it went from 208 to 222 TFLOP/s,
    94 % of the time where the bound says 63 %; from 64 to 128 61 % where it says 50 %.
    """
    compiled = group.compiled or next((size for size in COMPILED if size >= group.head_dim), group.head_dim)
    return min(1.0, group.head_dim / option.head_dim, group.head_dim / max(compiled, group.head_dim))


def _stakes(facts: StepFacts, group: _Attention, option: _Heads) -> list[Stake]:
    cap = 1 - _work_frac(group, option)
    stakes = []
    for row in group.fused:
        if group.head_dim % 8:
            stakes.append(time_at_stake(row, gpu=facts.gpu, useful_frac=0.5))
            continue
        why = f"(the work that falls away with head_dim {option.head_dim}, see above)"
        stakes.append(time_at_stake(row, gpu=facts.gpu, useful_frac=0.5, cap_frac=cap, cap_why=why))
    return [*stakes, *(time_at_stake(row, gpu=facts.gpu) for row in group.unfused)]


def _proposal(facts: StepFacts, group: _Attention) -> Proposal:
    options = _by_saving(facts, group)
    first = options[0]
    heads, of_model = group.heads, _is_models(group, facts)
    kept = first.heads is not None and heads is not None
    change: dict[str, list[int | float | str]] = {}
    if of_model:
        change["head_dim"] = [group.head_dim, first.head_dim]
    if kept and of_model:
        change["heads"] = [heads or 0, first.heads or 0]
    plain = facts.model.kv_heads.value in (None, heads) and of_model
    return Proposal(
        title=_title(group.head_dim, heads, options),
        stakes=_stakes(facts, group, first),
        confidence=_confidence(group),
        effort="retrain",
        saw=_saw(facts, group),
        why=_why(group),
        how=_how(group, first),
        change=change,
        fix=_fix(group.head_dim, heads, options),
        caveats=_caveats(facts, group, options),
        evidence={
            "head_dim": group.head_dim,
            "compiled_head_dim": group.compiled,
            "padding_frac": group.padding_frac,
            "options": [{"head_dim": one.head_dim, "heads": one.heads} for one in options],
        },
        parameter_delta=0 if kept and plain else None,
        flops_delta=0.0 if kept and plain else None,
        simulate=_simulated(facts, group, first),
    )


def _simulated(facts: StepFacts, group: _Attention, option: _Heads) -> dict[str, int] | None:
    """The change of the whole model: ranks that split the layers hold a part of the heads each."""
    if option.heads is None or not _is_models(group, facts):
        return None  # attention of another kind than the model's: no parameter is known for it
    ranks = facts.model.tensor_parallel.value or 1
    return {"heads": option.heads * ranks, "head_dim": option.head_dim}


def _by_saving(facts: StepFacts, group: _Attention) -> list[_Heads]:
    """The other splits that are predicted to pay, the best first; the best of all where none does.

    Without predictions they stay in their order.
    """
    options = _options(facts, group)
    found = [(option, simulate(facts, _simulated(facts, group, option))) for option in options]
    predicted = [(option, one) for option, one in found if not isinstance(one, str)]
    if len(predicted) < len(options):
        return options
    predicted.sort(key=lambda pair: -(pair[1].saving_ms.mid or 0.0))
    paying = [option for option, one in predicted if pays(one.saving_ms)]
    return paying or [predicted[0][0]]


def _title(head_dim: int, heads: int | None, options: list[_Heads]) -> str:
    if options[0].heads is None or heads is None:
        sizes = " or ".join(str(option.head_dim) for option in options)
        return f"Use head_dim {sizes} instead of {head_dim}"
    ways = " or ".join(f"{plural(option.heads or 1, 'head')} of {option.head_dim}" for option in options)
    return f"Use {ways} instead of {plural(heads, 'head')} of {head_dim}"


def _confidence(group: _Attention) -> Level:
    if group.padding_frac:
        return "high"  # the kernel's own name shows the zeros
    return "medium" if group.head_dim % 8 or group.head_dim < 64 else "low"


def _saw(facts: StepFacts, group: _Attention) -> str:
    kinds = (group.fused, "fused attention row"), (group.unfused, "score or value product")
    text = (
        f"head_dim is {group.head_dim}; {listed([took(rows, noun, facts) for rows, noun in kinds if rows])}."
    )
    if group.padding_frac:
        text += (
            f" The kernel that ran is compiled for {group.compiled}: {group.head_dim} of {group.compiled}"
            f" columns are useful, {percent(group.padding_frac)} are zeros."
        )
    elif group.compiled is None and group.fused:
        text += " The kernels' names do not say which head size they are compiled for."
    return text


def _why(group: _Attention) -> str:
    if group.head_dim % 8:
        return (
            "Flash kernels take head sizes that are multiples of 8 (16 bytes of bf16). Any other is copied"
            " into padded tensors first, or runs as separate unaligned products."
        )
    speeds = listed([f"{speed} at {size}" for size, speed in _A100_TFLOPS.items() if size >= 32])
    paper = f"FlashAttention on an A100 in TFLOP/s (arXiv 2401.14489): {speeds}."
    if group.head_dim < 64:
        return (
            "A small head gives the tensor cores little to multiply for each softmax value, and at equal"
            f" width there are more heads and so more softmax. {paper}"
        )
    return (
        "Flash kernels are compiled for fixed head sizes and compute the missing columns as zeros; at equal"
        f" width, smaller heads also mean more heads and so more softmax. {paper}"
    )


def _how(group: _Attention, option: _Heads) -> str:
    if group.head_dim % 8 or not group.fused:
        return ""
    left = _work_frac(group, option)
    compiled = group.compiled or next((size for size in COMPILED if size >= group.head_dim), group.head_dim)
    return (
        "For fused attention half of the counted operations make the floor, for causal kernels skip the"
        " other half; and no more than the work that falls away counts: at equal heads × head_dim softmax"
        f" shrinks to {group.head_dim}/{option.head_dim}, the products to {group.head_dim}/{compiled}, so at"
        f" most 1 - {left:.3g} = {percent(1 - left)} of the time."
    )


def _fix(head_dim: int, heads: int | None, options: list[_Heads]) -> list[str]:
    first = options[0]
    if first.heads is None or heads is None:
        return [f"- head_dim = {head_dim}", f"+ head_dim = {first.head_dim}"]
    return [
        f"- heads = {heads}   # head_dim {head_dim}",
        f"+ heads = {first.heads}   # head_dim {first.head_dim}",
    ]


def _caveats(facts: StepFacts, group: _Attention, options: list[_Heads]) -> list[str]:
    caveats = [f"{facts.new_model}, and its accuracy has to be checked."]
    heads, kv_heads = facts.model.heads.value, facts.model.kv_heads.value
    if not _is_models(group, facts):
        caveats.append("It is not known to be the attention that the model's dimensions are of.")
    elif heads is not None and kv_heads is not None and kv_heads != heads:
        caveats.append(
            f"The model has {kv_heads} key-value heads for {heads} heads: choose them anew so that they"
            " divide the new number, and the K and V projections change size."
        )
    if options[0].heads is None:
        caveats.append(
            "With the number of heads kept, the projections grow with head_dim; the trace does not show"
            " another split of the same width."
        )
    caveats.append("The softmax kernels of unfused attention are not in the bound.")
    return caveats
