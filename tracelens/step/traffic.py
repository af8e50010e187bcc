"""The kernels that only move bytes: how their time scales with the hyper-parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tracelens.config.model_config import ModelConfig
from tracelens.results import Rest, Span

#: Of the datasheet's bandwidth that kernels which only move bytes reach (``gemm.predict.rates``).
BANDWIDTH_FRAC = 0.9
#: Of the time in fp32, at most, that they take where autocast runs the products in 16 bits: tensors between
#: them stay in fp32, and casts are added. Our H100, GPT-2 in TF32 and under autocast (``sample_traces``):
#: 14.8 and 18.6 ms.
_AUTOCAST = 1.26
_Size = Callable[[ModelConfig], float | None]
#: Not in layers: their calls do not grow with ``layers``.
_ONCE = frozenset({"embedding", "logits", "loss", "optimizer", "grad_clip", "other", "unattributed"})
#: Once in a step and not in every micro-batch; their state keeps its own type.
_ON_WEIGHTS = frozenset({"optimizer", "grad_clip"})


def _times(*values: int | None) -> int | None:
    product = 1
    for value in values:
        if value is None:
            return None
        product *= value
    return product


def _local(value: int | None, config: ModelConfig) -> int | None:
    return value // config.tp if value is not None else None


def _hidden(x: ModelConfig) -> int | None:
    return _times(x.token_count, x.hidden)


def _heads(x: ModelConfig) -> int | None:
    if x.heads is None or x.head_dim is None:
        return None
    return _times(x.token_count, _local((x.heads + 2 * (x.kv_heads or x.heads)) * x.head_dim, x))


def _copies(x: ModelConfig) -> int | None:
    """Of keys and values as attention gets them."""
    return _heads(replace(x, kv_heads=x.heads)) if x.kv_repeated else _heads(x)


def _scores(x: ModelConfig) -> int | None:
    return _times(x.token_count, x.sequence, _local(x.heads, x))


def _ffn(x: ModelConfig) -> int | None:
    return _times(x.token_count, _local(x.ffn, x))


def _routed(x: ModelConfig) -> int | None:
    return _times(x.token_count, x.hidden, x.top_k or 1)


def _experts(x: ModelConfig) -> int | None:
    return _times(x.local_experts, x.capacity, _local(x.ffn, x))


def _vocab(x: ModelConfig) -> int | None:
    return _times(x.token_count, x.vocab)


def _weights(x: ModelConfig) -> float | None:
    return x.rank_parameters


#: Bytes of an element between products; fp8 is a type of products, what is between them stays in 16 bits.
_ELEMENT = {"bf16": 2, "fp16": 2, "fp8": 2, "fp8-block": 2, "nvfp4": 2, "fp32": 4, "tf32": 4}
#: component -> what its bytes are proportional to. Components not listed stay as measured.
_BYTES: dict[str, tuple[str, _Size]] = {
    "embedding": ("b*s*h", _hidden),
    "norm": ("b*s*h", _hidden),
    "residual": ("b*s*h", _hidden),
    "dropout": ("b*s*h", _hidden),
    "attention.qkv": ("b*s*(a+2*kv)*d", _heads),
    "attention.rope": ("b*s*(a+2*kv)*d", _heads),
    "attention.other": ("b*s*(a+2*kv)*d", _copies),
    "attention.softmax": ("b*s*s*a", _scores),
    "attention.output": ("b*s*h", _hidden),
    "mlp.up": ("b*s*f", _ffn),
    "mlp.gate": ("b*s*f", _ffn),
    "mlp.activation": ("b*s*f", _ffn),
    "mlp.other": ("b*s*f", _ffn),
    "mlp.down": ("b*s*h", _hidden),
    "moe.router": ("b*s*h", _hidden),
    "moe.dispatch": ("b*s*h*top_k", _routed),
    "moe.experts": ("rows of experts*f", _experts),
    "logits": ("b*s*v", _vocab),
    "loss": ("b*s*v", _vocab),
    "optimizer": ("parameters", _weights),
    "grad_clip": ("parameters", _weights),
}  # fmt: skip


def repeats(component: str, now: ModelConfig, then: ModelConfig) -> float:
    """How much more often a kernel of ``component`` runs in a step.

    With the layers of its stage, where it is in them. At the same GPUs and tokens per step, a model on more
    ranks has fewer copies, and each of them takes more micro-batches.
    """
    if component in _ON_WEIGHTS:
        return 1.0
    batches = then.model_ranks / now.model_ranks
    before, after = now.stage_layers, then.stage_layers
    return batches * (after / before if component not in _ONCE and before and after else 1.0)


def _narrower(component: str, now: ModelConfig, then: ModelConfig) -> bool:
    """Do elements between products take fewer bytes ``then``?"""
    before, after = (_ELEMENT.get(one.dtype or "bf16", 2) for one in (now, then))
    return component not in _ON_WEIGHTS and after < before


def rest_of(
    parts: Sequence[tuple[str, str, float, float]], now: ModelConfig, then: ModelConfig
) -> tuple[Rest, ...]:
    """The components whose byte-moving kernels change, by time.

    ``parts``: component, phase, its ms per step, and of those the ms of products. A kernel can also be
    bound by its launch and not change at all, so the range reaches from the measured time to the one scaled
    with the bytes. More layers and micro-batches are more kernels, whatever binds them.
    """
    found: list[Rest] = []
    for component, phase, time_ms, products_ms in parts:
        rest_ms = time_ms - products_ms
        rule = _BYTES.get(component)
        if rule is None or rest_ms <= 0:
            continue
        text, size = rule
        before, after = size(now), size(then)
        ratio = after / before if before and after else 1.0
        if component not in _ON_WEIGHTS and now.dtype != then.dtype:
            ratio *= _ELEMENT[then.dtype or "bf16"] / _ELEMENT.get(now.dtype or "bf16", 2)
            text += "*bytes of an element"
        kernels = repeats(component, now, then)
        if kernels != 1.0:
            what = "layers" if now.model_ranks == then.model_ranks else "calls"
            text = what if ratio == 1.0 else f"{text}*{what}"
        if ratio != 1.0 or kernels != 1.0:
            least, scaled = rest_ms * kernels, rest_ms * kernels * ratio
            most = least * (_AUTOCAST if _narrower(component, now, then) else 1.0)
            estimate = Span(min(least, scaled), scaled, max(most, scaled), "model")
            found.append(Rest(component, phase, text, rest_ms, estimate))
    return tuple(sorted(found, key=lambda one: -one.time_ms))
