"""The words of what could not be measured, and of what a measurement leaves out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tracelens import numbers as f
from tracelens.results import MeasuredWhole, Verified
from tracelens.results.verified import ReasonCode, Why

_ASSUMED = {
    "causal": "a causal mask",
    "fused_qkv": "one GEMM for query, key and value",
    "flash": "FlashAttention",
}
Values = Mapping[str, Any]
#: ``{name}`` is a value, ``{cause}`` the words of the cause; a function where a value is not said as it is.
WORDS: Mapping[ReasonCode, str | Callable[[Values], str]] = {
    "nothing_changes": "nothing changes in it",
    "names_no_size": "it names no size to change",
    "no_size": "{name} is no size that the layers of a model are built from",
    "not_whole_model": "{name} {before} → {after} is not a size of the whole model as the trace shows it",
    "no_call_changes": "no GEMM, attention call or layer of the step changes with it",
    "no_layer": "no layer can be built",
    "no_transformer": "no whole transformer was recognised in the trace",
    "experts": "layers with experts are not built: how tokens spread over experts decides their time",
    "two_stacks": "an encoder with a decoder is not built: compare a trace before the change with one after",
    "attention_bias": "layers with a bias for every score of attention are not built",
    "sizes_unknown": lambda has: (
        f"a layer cannot be built: {has['names']} of the model"
        f" {'are' if ', ' in has['names'] else 'is'} not known"
    ),
    "no_mlp": "a layer cannot be built: no GEMM of an MLP was found",
    "layer_dtype": "layers whose GEMMs run in {dtype} are not built",
    "no_backward": "the step has no backward, and layers are measured forward and backward",
    "no_wgrad": "the step computes no gradient of the layers' weights, and a plain layer does",
    "micro_batches_unknown": (
        "how many micro-batches a step has does not follow from the calls of the layers' GEMMs"
    ),
    "no_attention": "no attention kernel was found that a layer could be built with",
    "other_attention": (
        "its attention runs kernels ({family}) that scaled_dot_product_attention does not have"
    ),
    "kv_heads_over_ranks": (
        "{kv_heads} key-value heads and a vocabulary of {vocab} do not divide over {ranks} ranks"
    ),
    "kv_heads_over_heads": "{kv_heads} key-value heads do not divide {heads} heads",
    "no_logits": "no logits were found, so that no small model can be built",
    "sharded_model": "a small model is not built for tensor-parallel ranks",
    "rows_without_sizes": "the sizes of the GEMMs it names are not in the report",
    "dtype": "GEMMs in {dtype} are not measured",
    "sizes_unknown_then": "what the change does to its sizes is not known",
    "unequal_groups": "GEMMs of groups of unequal size are not measured",
    "packed_lengths": "the lengths of packed sequences are in no trace",
    "no_backend": "scaled_dot_product_attention has no {family} kernel",
    "single_products": "the change is one of single GEMMs, so that no layer shows it",
    "ranks_exchange": "what ranks exchange changes with {name} and is not measured",
    "present_type": "layers are measured in the present type alone",
    "other_products": lambda has: (
        f"{f.ms(has['ms'])} per step of the GEMMs that change have other sizes than those of a plain layer"
        " (padded, split or sampled)"
    ),
    "plain_layers": (
        "the layers are plain PyTorch with the model's sizes, not the model's own code: no dropout, no casts"
        " of autocast, no compiler"
    ),
    "gemms_alone": (
        "kernels beside GEMMs and fused attention (norms, activations, softmax) are not in this saving"
    ),
    "outside": (
        "embedding, optimizer, gradient clipping, communication between GPUs and idle time: taken as"
        " unchanged"
    ),
    "casts": "casts to the other type, and its scaling, are not in this saving",
    "sizes_without_formula": lambda has: (
        f"{f.ms(has['ms'])} per step of GEMMs whose sizes follow from no dimension of the model"
    ),
    "memory_grows": (
        "whether the whole step fits: its memory is estimated to grow from {before_gib:.1f} to "
        "{after_gib:.1f} GiB, and the GPU has {gpu_gib:.1f}"
    ),
    "per_token": "layers after the change are counted per token: × {factor:.4g}",
    "kv_heads_once": (
        "attention of the layers is given each key-value head once; the trace's is given a copy for every"
        " head"
    ),
    "causal_assumed": "a causal mask is assumed: the trace does not show which mask attention has",
    "configured_assumed": lambda has: (
        f"{', '.join(_ASSUMED.get(name, name) for name in has['names'].split(', '))}: assumed"
    ),
    "layers_apart": "the layers measured here do not stand for the trace's: {cause}",
    "no_whole_layer": "no whole layer was measured: {cause}",
    "no_step": "no small training step was measured: {cause}",
    "unlike_trace": lambda has: (
        f"the calls that change take {f.ms(has['here_ms'])} per step here as they are, and"
        f" {f.ms(has['trace_ms'])} in the trace: it ran other kernels, other clocks, or not alone"
    ),
    "cpu_gaps": "the step waits for the GPU in its middle, so its times hold the CPU's gaps",
    "parts_alone": lambda has: (
        f"{has['cause'] + '; ' if has['cause'] else ''}its layers and logits, measured alone, save"
        f" {signed(has['saving_ms'])} of it"
    ),
    "left_out": "it was not measured",
    "later": "its turn has not come yet",
    "nothing_measured": "nothing could be measured",
    "toy_cpu": "a CPU with toy sizes: a test of the program that says nothing of a GPU",
    "other_gpu": "{cause}: savings stay as predicted, and what was measured stands beside",
    "noisy": "one layer against itself differs by {frac:.1%}: does something else use this GPU?",
}


def said(why: Why) -> str:
    """A reason in words; what was text already stays as it is."""
    if isinstance(why, str):
        return why
    words = WORDS[why.code]
    try:
        values = {**why.values, "cause": said(why.cause)}
        return words.format(**values) if isinstance(words, str) else words(values)
    except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return why.code  # a report that somebody edited


def how(one: Verified) -> str:
    """The sum with its numbers."""
    if one.state != "measured":
        return ""
    parts = [_part(whole) for whole in one.wholes if whole.calls_now is not None]
    if one.rests_on == "layers":
        return f"{' + '.join(parts)} = {signed(one.saving_ms.mid)} per step, forward and backward"
    known = sum(call.saving_ms.mid is not None for call in one.calls)
    what = f"{known} GEMMs and attention calls, each as often as in a step × (before − after)"
    return f"{what} = {signed(one.saving_ms.mid)} per step"


def _part(one: MeasuredWhole) -> str:
    now, then = f.ms(one.now_ms.mid), f.ms(one.then_ms.mid)
    if one.calls_now == one.calls_then:
        return f"{one.calls_now:g} × ({one.what}: {now} − {then})"
    return f"{one.calls_now:g} × {now} − {f.sig(one.calls_then)} × {then} ({one.what})"


def signed(value: float | None) -> str:
    """A saving; slower is a minus.

    >>> signed(-1.5)
    '−1.50 ms'
    """
    if value is None:
        return "unknown"
    return f.ms(value) if value >= 0 else f"−{f.ms(-value)}"


def measured(found: Verified) -> str:
    """What a measurement says of a change, as sentences."""
    saving = found.saving_ms
    where = f"Measured on {found.device}, {found.date}"
    what = "whole layers" if found.rests_on == "layers" else "its GEMMs and attention alone"
    if saving.high is not None and saving.high < 0:
        return f"{where}: {what} take {f.ms((-saving).mid)} more per step. Do not make this change for speed."
    if saving.low is not None and saving.low <= 0:
        return f"{where}: {what} differ by no more than their repeats do. No saving shows."
    return f"{where}: {what}, not your own code. The changed step itself was not run."
