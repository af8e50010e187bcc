"""What a change of hyper-parameters touches in a step: rows with a prediction, and rows without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracelens.config.model_config import ModelConfig
from tracelens.results import GemmRow, Span
from tracelens.step.predicted import Scaled, scaled_product
from tracelens.step.predicted_attention import scaled_attention
from tracelens.step.traced_step import StepModel
from tracelens.step.traffic import repeats
from tracelens.step.words import simulation as words

#: Components whose products a parameter enters; every one where a parameter is not listed. A row of them
#: without a formula is a gap in the answer.
_ENTERS: Mapping[str, tuple[str, ...]] = {
    "vocab": ("logits",),
    "heads": ("attention.",),
    "kv_heads": ("attention.",),
    "head_dim": ("attention.",),
    "ffn": ("mlp.", "moe.experts"),
    "experts": ("moe.",),
    "top_k": ("moe.experts",),
    "capacity": ("moe.experts",),
    "expert_parallel": ("moe.experts",),
    "row_multiple": ("moe.experts",),
    "imbalance": (),  # of other ranks
}
#: Components that say nothing of what a product is.
_NAMELESS = frozenset({"other", "unattributed"})
_SAME = Scaled(1.0, 1.0, 1.0, "model", "", "", words.SAME_SHAPE, "same")
#: In which parameters are told.
_ORDER = ("hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "layers", "experts", "sequence",
          "micro_batch", "tokens", "tensor_parallel", "pipeline_parallel", "expert_parallel", "top_k",
          "capacity", "row_multiple", "imbalance", "dtype")  # fmt: skip
#: Their kernels have the vocabulary as a side.
OF_VOCAB = frozenset({"logits", "loss"})
#: They repeat the kernels of a layer and change none.
_COUNTS = frozenset({"layers", "pipeline_parallel"})
#: They change fused attention.
_OF_ATTENTION = frozenset(
    {"heads", "kv_heads", "head_dim", "sequence", "micro_batch", "tokens", "tensor_parallel", "dtype"}
)


@dataclass(frozen=True, slots=True)
class AffectedPart:
    """A row, or a share of its calls, before and after."""

    row: GemmRow
    time_ms: float
    calls: float  # how much more often it runs
    scaled: Scaled

    @property
    def then_ms(self) -> Span:
        """Per step, after the change."""
        one = self.scaled
        return Span(one.low, one.mid, one.high, one.basis) * (self.time_ms * self.calls)


@dataclass(frozen=True, slots=True)
class Affected:
    """What a change touches: predicted parts, and rows without a prediction with the reason."""

    parts: tuple[AffectedPart, ...]
    lost: tuple[tuple[float, str], ...]  # ms per step, why

    @property
    def gap_ms(self) -> float:
        """Per step, of rows without a prediction."""
        return sum(time for time, _ in self.lost)

    @property
    def time_ms(self) -> float:
        """Per step, of everything that is touched."""
        return self.gap_ms + sum(part.time_ms for part in self.parts)


def changed_names(now: ModelConfig, then: ModelConfig) -> list[str]:
    """Parameters that differ, in the order in which they are told."""
    return [name for name in _ORDER if now.value(name) != then.value(name)]


def affected_by(step: StepModel, then: ModelConfig) -> Affected:
    """Every row of ``step`` that is another with ``then``, or runs more or less often."""
    now = step.now
    names = changed_names(now, then)
    parts: list[AffectedPart] = []
    lost: list[tuple[float, str]] = []

    def take(row: GemmRow, weight: float, scaled: Scaled | str, *, each_expert: bool = False) -> None:
        time, calls = row.time_ms_per_step * weight, grown_calls(row, now, then, each_expert)
        if isinstance(scaled, str):
            lost.append((time, scaled))
        elif scaled.kind != "same" or calls != 1.0:
            parts.append(AffectedPart(row, time, calls, scaled))

    for product in step.work.products if names else ():
        scaled = scaled_product(
            product, now, then, anchors=step.anchors, gpu=step.gpu, measured=step.measured
        )
        if product.row.component == "logits" and vocab_untold(now, then):
            scaled = words.VOCAB_UNTOLD
        take(product.row, product.weight, scaled, each_expert=product.each_expert)
    for call in step.work.attention if names else ():
        if _OF_ATTENTION & set(names):
            found = scaled_attention(
                call, now, then, gpu=step.gpu, measured=step.measured, anchors=step.anchors
            )
        else:
            found = _SAME
        take(call.row, 1.0, found)
    if vocab_untold(now, then):
        for name, _, time, products in step.components:
            if name in OF_VOCAB and time > products:
                lost.append((time - products, words.VOCAB_UNTOLD))
    for row, why in step.work.fixed if names else ():
        if set(names) <= _COUNTS:  # its shape stays, whatever it is
            take(row, 1.0, _SAME)
        elif concerns(row, names, now):
            lost.append((row.time_ms_per_step, why))
    return Affected(tuple(parts), tuple(lost))


def concerns(row: GemmRow, names: Sequence[str], now: ModelConfig) -> bool:
    """Whether a change of ``names`` would change ``row``, by what such rows are made of.

    A product that is no known part of the model counts where one of its sizes is that of the parameter,
    or where it has no sizes and the parameter enters the whole model.
    """
    for name in names:
        prefixes = _ENTERS.get(name)
        if row.component in _NAMELESS:
            sizes = {row.m, row.n, row.k} - {None}
            size = now.token_count if name in ("micro_batch", "sequence", "tokens") else now.value(name)
            if size in sizes or (not sizes and prefixes is None):
                return True
        elif row.component not in ("optimizer", "grad_clip") and (
            prefixes is None or row.component.startswith(prefixes)
        ):
            return True
    return False


def vocab_untold(now: ModelConfig, then: ModelConfig) -> bool:
    """Do ranks change that perhaps share the vocabulary?"""
    return now.tensor_parallel != then.tensor_parallel and now.vocab_split is None


def grown_calls(row: GemmRow, now: ModelConfig, then: ModelConfig, each_expert: bool = False) -> float:
    """How much more often a row runs, in layers and experts."""
    calls = repeats(row.component, now, then)
    if each_expert and now.local_experts and then.local_experts:
        calls *= then.local_experts / now.local_experts
    return calls
