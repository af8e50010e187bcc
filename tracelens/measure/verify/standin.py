"""The plain layer that stands for the model's own, built from its sizes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tracelens.config.model_config import ModelConfig
from tracelens.hardware.measurements import MeasuredBackend
from tracelens.measure.layer_shapes import LayerShape
from tracelens.measure.verify.source import Source
from tracelens.results import GemmRow, main_dtype
from tracelens.results.verified import Reason, Why
from tracelens.step.present import micro_batches_of

#: Kernel family in the trace -> backend of ``scaled_dot_product_attention``. FlashAttention 3 and 4 are none.
BACKENDS: dict[str, MeasuredBackend] = {
    "flash2": "flash",
    "cudnn_sdpa": "cudnn",
    "mem_efficient": "efficient",
}
_DTYPES = ("bf16", "fp16", "fp32", "tf32")
_IN_LAYERS = ("attention.", "mlp.", "moe.", "norm", "residual", "dropout")
_NEEDED = ("hidden", "heads", "head_dim", "ffn", "layers", "sequence", "micro_batch")
#: flash_fwd_kernel and flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel: the second truth value behind the traits
#: is Is_causal (Dao-AILab/flash-attention, csrc/flash_attn/src/flash_fwd_ and flash_bwd_launch_template.h).
_FLASH_FLAGS = re.compile(r"flash_(?:fwd|bwd)_\w*kernel<.*>\s*,\s*(?:\(bool\))?(\w+),\s*(?:\(bool\))?(\w+),")
_TRUE = ("true", "1")


@dataclass(frozen=True, slots=True)
class StandIn:
    """How layers are built, whatever their sizes."""

    dtype: str
    attention: MeasuredBackend | Literal["math"]
    causal: bool
    gated: bool
    fused_qkv: bool
    fused_gate: bool
    recompute: bool
    passes: int  # micro-batches of a step
    assumed: tuple[Reason, ...]  # what nothing told
    whole_vocab: bool = False  # a configuration has the whole vocabulary, a trace the columns of its rank

    def layer(self, config: ModelConfig, *, vocab: int = 0) -> LayerShape | Why:
        """The layer of these sizes, or its logits; why not where they do not fit together."""
        sizes = {name: config.get(name) or 0 for name in _NEEDED if name != "layers"}
        t = config.tp
        if vocab and not self.whole_vocab:
            t = 1
        kv_heads = config.kv_heads or sizes["heads"]
        if kv_heads % t or vocab % t:
            return Reason("kv_heads_over_ranks", {"kv_heads": kv_heads, "vocab": vocab, "ranks": t})
        if sizes["heads"] % kv_heads:
            return Reason("kv_heads_over_heads", {"kv_heads": kv_heads, "heads": sizes["heads"]})
        if vocab:  # nothing else of the layer is in it: suggestions that share it measure it once
            sizes |= {"heads": t, "head_dim": 8, "ffn": t}
            kv_heads = t
        try:
            return LayerShape(
                **sizes,
                kv_heads=kv_heads,
                gated=self.gated,
                causal=self.causal,
                tensor_parallel=t,
                vocab=vocab,
                dtype=self.dtype,
                attention=self.attention,
                fused_qkv=self.fused_qkv,
                fused_gate=self.fused_gate,
                recompute=self.recompute and not vocab,
            )
        except ValueError as error:
            return str(error)


def stand_in(source: Source) -> StandIn | Reason:
    """How to build this model's layers, or why they cannot be built."""
    now, rows = source.now, source.rows
    if not source.transformer:
        return Reason("no_transformer")
    if now.experts:
        return Reason("experts")
    lacking = [name for name in _NEEDED if not now.get(name)]
    if lacking:
        return Reason("sizes_unknown", {"names": ", ".join(lacking)})
    gated = now.gated
    if gated is None:
        return Reason("no_mlp")
    if source.kind == "suggestions":
        return _as_configured(source, gated)
    inside = [row for row in rows if row.kind == "gemm" and row.component.startswith(_IN_LAYERS)]
    dtype = main_dtype(inside) or "unknown"
    if dtype not in _DTYPES:
        return Reason("layer_dtype", {"dtype": dtype})
    if lack := _lacks_gradients(rows):
        return lack
    passes = micro_batches_of(rows, source.layers)
    if passes is None:
        return Reason("micro_batches_unknown")
    fused = [row for row in rows if row.kind == "attention"]
    unfused = [row for row in rows if row.component == "attention.scores" and row.kind == "gemm"]
    if not fused and not unfused:
        return Reason("no_attention")
    family = _most_family(fused) if fused else ""
    if fused and family not in BACKENDS:
        return Reason("other_attention", {"family": family})
    causal = causal_of(fused)
    assumed = [Reason("kv_heads_once")] if now.kv_repeated else []
    if causal is None:
        assumed.append(Reason("causal_assumed"))
    return StandIn(
        dtype=dtype,
        attention=BACKENDS[family] if fused else "math",
        causal=True if causal is None else causal,
        gated=gated,
        fused_qkv=_qkv_fused(rows, now),
        fused_gate=not any(row.kind == "gemm" and row.component == "mlp.gate" for row in rows),
        recompute=any(row.phase == "recompute" and row.component.startswith(_IN_LAYERS) for row in rows),
        passes=passes,
        assumed=tuple(assumed),
    )


def causal_of(rows: Sequence[GemmRow]) -> bool | None:
    """Whether attention has a causal mask, as the names of its kernels say; None where they do not."""
    for row in rows:
        found = _FLASH_FLAGS.search(row.kernel) if row.kernel_family == "flash2" else None
        if found is not None:
            return found[2] in _TRUE
    return None


def trace_layer_ms(source: Source, passes: int) -> float | None:
    """GPU time of one layer in the trace, forward and backward of one micro-batch."""
    whole = sum(
        row.time_ms_per_step
        for row in source.components
        if row.component.startswith(_IN_LAYERS) and row.phase in ("forward", "backward", "recompute")
    )
    return whole / passes / source.layers if whole > 0 and source.layers else None


def trace_logits_ms(source: Source, passes: int) -> float | None:
    """GPU time of logits and loss in the trace, forward and backward of one micro-batch."""
    whole = sum(row.time_ms_per_step for row in source.components if row.component in ("logits", "loss"))
    return whole / passes if whole > 0 else None


def _as_configured(source: Source, gated: bool) -> StandIn | Reason:
    """A configuration has no kernels: what it states, and beside that what a usual framework would run."""
    if source.raw["sizes"].get("decoder_layers"):
        return Reason("two_stacks")
    if any(one["component"] == "attention.other" for one in source.raw["components"]):
        return Reason("attention_bias")
    told = {name: source.raw.get(name) for name in ("causal", "fused_qkv", "fused_gate")}
    assumed = [*(name for name in ("causal", "fused_qkv") if told[name] is None), "flash"]
    return StandIn(
        dtype=source.dtype or "bf16",
        attention="flash",
        causal=told["causal"] is not False,
        gated=gated,
        fused_qkv=told["fused_qkv"] is not False,
        fused_gate=told["fused_gate"] is not False,
        recompute=False,
        passes=1,
        assumed=(Reason("configured_assumed", {"names": ", ".join(assumed)}),),
        whole_vocab=True,
    )


def row_dtype(row: GemmRow) -> str:
    """As ``tracelens.measure`` names it: fp32 data on tensor cores is tf32."""
    return "tf32" if row.math_dtype == "tf32" else row.dtype or "unknown"


def _lacks_gradients(rows: Sequence[GemmRow]) -> Reason | None:
    """Why a layer's forward and backward is not what the step does; None where it is."""
    inside = [row for row in rows if row.kind == "gemm" and row.component.startswith(("mlp.", "attention."))]
    if not any(row.phase == "backward" for row in inside):
        return Reason("no_backward")
    roles = {row.role for row in inside if row.component.startswith("mlp.")}
    if None not in roles and "wgrad" not in roles:
        return Reason("no_wgrad")
    return None


def _qkv_fused(rows: Sequence[GemmRow], now: ModelConfig) -> bool:
    """Is there one product as wide as query, key and value together?"""
    t, heads = now.tp, now.heads or 0
    width = (heads + 2 * (now.kv_heads or heads)) // t * (now.head_dim or 0)
    found = [row for row in rows if row.component == "attention.qkv" and row.role == "forward"]
    return not found or any(width in (row.m, row.n) for row in found)


def _most_family(rows: Sequence[GemmRow]) -> str:
    times: Counter[str] = Counter()
    for row in rows:
        times[row.kernel_family] += round(1e6 * row.time_ms)
    return times.most_common(1)[0][0]
