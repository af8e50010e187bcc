"""The time of a layer of experts on one GPU: grouped GEMMs, their padding, their waves, their rows' way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from tracelens.errors import InputError
from tracelens.gemm.dtypes import bytes_per_element
from tracelens.gemm.predict.experts_cost import TILE_M, TILE_N, ExpertWork, GroupedGemm, backward, forward
from tracelens.gemm.predict.experts_load import Load, expert_load
from tracelens.gemm.predict.experts_rates import ExpertRates, expert_rates
from tracelens.gemm.predict.words import experts as words
from tracelens.hardware import Gpu
from tracelens.hardware.default import named_gpu
from tracelens.results import Estimate
from tracelens.results.experts import ExpertLayer, ExpertsChange, ExpertsPrediction, GroupedTile
from tracelens.words import Direction

__all__ = ["ExpertLayer", "ExpertsPrediction", "experts_time", "predict_experts"]

_LARGEST = 2**31  # tokens
#: Of an operand's rows in grouped GEMMs: torch.nn.functional.grouped_mm refuses other strides.
_GRID_BYTES = 16
#: What an expert's rows are padded to by the libraries of training, by element type: Megatron-LM
#: ``get_align_size_for_quantization`` (fp8 16, NVFP4 128); blockwise fp8: DeepGEMM's contiguous layout.
ROW_ALIGNMENT: Mapping[str, int] = {"bf16": 1, "fp16": 1, "fp8": 16, "fp8-block": 128, "nvfp4": 128}


class _Layer(NamedTuple):
    layer: ExpertLayer
    tokens: int
    gpu: Gpu
    dtype: str
    direction: Direction
    load: str
    row_multiple: int
    capacity: float | None

    @property
    def own_tokens(self) -> float:
        """Tokens that the GPU chooses experts for and sums up."""
        return self.tokens / self.layer.ep if self.layer.exchanged else float(self.tokens)


def predict_experts(
    layer: ExpertLayer,
    tokens: int,
    *,
    gpu: Gpu,
    dtype: str = "bf16",
    direction: Direction = "forward",
    load: str = "balanced",
    row_multiple: int = 1,
    capacity: float | None = None,
) -> ExpertsPrediction:
    """Time in microseconds of a layer of experts on the busiest GPU of its expert-parallel group.

    It holds the choice of experts from given logits, gathering rows, the grouped GEMMs with the activation
    between them, and summing up per token; neither the router's GEMM nor all-to-all. ``tokens`` are those
    of all ``layer.ep`` GPUs together. ``dtype`` is bf16, fp16, fp8, fp8-block (128 x 128 blocks) or nvfp4.
    ``load`` is "balanced" or "power-law:1.2". ``row_multiple`` pads each expert's rows, as libraries
    of training do for some types (``ROW_ALIGNMENT``). ``capacity`` drops the rows that an expert gets beyond
    so many times the mean. ``layer.exchanged``: an all-to-all brings the rows, so that each GPU chooses
    experts and sums up for its own tokens; else each sees all, as in the published times. Raises
    ``InputError`` for sizes, types and loads that do not exist. Where nothing is known of the GPU,
    ``time_us`` has no mid. Source and error: docs/experts.md.

    >>> from tracelens.hardware import find_gpu
    >>> mixtral = ExpertLayer(hidden=4096, inter=14336, experts=8, top_k=2)
    >>> one = predict_experts(mixtral, 8192, gpu=find_gpu(None, override="h100-sxm"))
    >>> one.rows, one.active_experts, 6000 < one.time_us.mid < 8500  # 7147 us measured
    (16384.0, 8.0, True)
    """
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= _LARGEST:
        raise InputError(f"tokens = {tokens!r}: give a whole number from 1 to {_LARGEST}")
    dtype = dtype.replace("_", "-")  # fp8_block, as serving libraries write it
    if dtype not in ROW_ALIGNMENT:
        raise InputError(f"unknown element type {dtype!r} of experts: use {', '.join(ROW_ALIGNMENT)}")
    if isinstance(row_multiple, bool) or not isinstance(row_multiple, int) or not 1 <= row_multiple <= 2**16:
        raise InputError(f"rows are padded to a multiple of 1 to 65536, not {row_multiple!r}")
    if capacity is not None and not 0 < capacity <= 1e6:
        raise InputError(f"capacity = {capacity}: give a factor of the mean load above 0")
    return _predict(_Layer(layer, tokens, gpu, dtype, direction, load, row_multiple, capacity))


def experts_time(
    tokens: int,
    hidden: int,
    inter: int,
    *,
    experts: int,
    top_k: int,
    gpu: str | None = None,
    ep: int = 1,
    tp: int = 1,
    dtype: str = "bf16",
    load: str = "balanced",
) -> ExpertsPrediction:
    """Time of one layer of experts with a gate (SwiGLU), forward: ``tracelens.experts`` from Python.

    ``gpu`` as in ``tracelens.gemm``, the rest as in ``predict_experts``, whose value this is. Raises
    ``UsageError`` for a GPU that is not in the table.

    >>> import tracelens
    >>> one = tracelens.experts(8192, 4096, 14336, experts=8, top_k=2, gpu="h100", load="power-law:1.2")
    >>> one.gpu, one.time_us.low < one.time_us.mid < one.time_us.high
    ('h100-sxm', True)
    """
    layer = ExpertLayer(hidden, inter, experts, top_k, ep=ep, tp=tp)
    return predict_experts(layer, tokens, gpu=named_gpu(gpu), dtype=dtype, load=load)


def exponent_of(load: str) -> float | None:
    """The exponent of a load written "power-law:1.2"; None where it is "balanced".

    >>> exponent_of("power-law:1.2"), exponent_of("balanced")
    (1.2, None)
    """
    if load == "balanced":
        return None
    word, _, number = load.partition(":")
    try:
        exponent = float(number)
    except ValueError:
        exponent = -1.0
    if word not in ("power-law", "power_law") or not 0 < exponent <= 10:
        raise InputError(f"unknown load {load!r}: use balanced or power-law:1.2 (an exponent up to 10)")
    return exponent


@lru_cache(maxsize=2**14)  # a search asks for the same layer again and again
def _predict(question: _Layer) -> ExpertsPrediction:
    one = question.layer
    got, kept, padded = _loads(question)
    rates = expert_rates(question.gpu, question.dtype)
    if isinstance(rates, ExpertRates):
        rates = _off_grid(question) or rates
    known = not isinstance(rates, str)
    low = high = mid = None
    gemms: tuple[GroupedTile, ...] = ()
    parts: dict[str, float] = {}
    if isinstance(rates, ExpertRates):
        work = ExpertWork.of(
            [padded], tokens=[question.own_tokens], top_k=[one.top_k], hidden=[one.hidden],
            inter=[one.inter // one.tp], ups=[2 if one.gated else 1],
        )  # fmt: skip
        back = question.direction == "backward"
        products, others = (backward if back else forward)(work, rates)
        gemms = tuple(_tile(name, each, kept, padded, rates) for name, each in products.items())
        parts = {name: float(each.us[0]) for name, each in products.items()}
        parts |= {name: float(each[0]) for name, each in others.items()}
        mid = sum(parts.values())
        low, high = (mid * end for end in rates.range_of(question.direction))
        low = min(max(low, _least_us(question, kept.total, rates)), mid)
    even = question.tokens * one.top_k / one.ep
    return ExpertsPrediction(
        one, question.tokens, question.gpu.name, question.dtype, question.direction, question.load,
        question.row_multiple, question.capacity, Estimate(low, mid, high, "model"), kept.total, padded.total,
        1 - kept.total / got.total, kept.active, kept.per_expert, got.total / max(even, 1.0),
        gemms, parts, None if known else str(rates), rates.source if isinstance(rates, ExpertRates) else None,
    )  # fmt: skip


def _off_grid(question: _Layer) -> str | None:
    """Why grouped kernels do not take the layer: rows that begin off 16 bytes, and nobody timed others."""
    whole = round(_GRID_BYTES / (bytes_per_element(question.dtype) or 1))
    one = question.layer
    off = next((size for size in (one.hidden, one.inter // one.tp) if size % whole), None)
    return None if off is None else words.off_the_grid(off, question.dtype, whole)


def _least_us(question: _Layer, rows: float, rates: ExpertRates) -> float:
    """The operations of rows that hold tokens, at the datasheet's peak."""
    one, passes = question.layer, 2 if question.direction == "backward" else 1
    wide = (3 if one.gated else 2) * one.inter // one.tp
    return 2.0 * passes * rows * one.hidden * wide / (rates.peak_tflops * 1e6)


def _loads(question: _Layer) -> tuple[Load, Load, Load]:
    """Rows as they come, as capacity keeps them, as they are padded."""
    one = question.layer
    got = expert_load(
        question.tokens, top_k=one.top_k, experts=one.experts, ep=one.ep, exponent=exponent_of(question.load)
    )
    kept = got
    if question.capacity is not None:
        kept = got.dropped_above(question.capacity * question.tokens * one.top_k / one.experts)
    return got, kept, kept.rounded(question.row_multiple)


def _tile(name: str, gemm: GroupedGemm, kept: Load, padded: Load, rates: ExpertRates) -> GroupedTile:
    at = int(gemm.tile[0])
    tile = (TILE_M[at // len(TILE_N)], TILE_N[at % len(TILE_N)])
    tiles = float(gemm.tiles[0])
    waves = int(np.ceil(tiles / rates.sms))
    held = kept.total / (padded.blocks(tile[0]) * tile[0]) if kept.total else 1.0
    return GroupedTile(
        name, int(gemm.n[0]), int(gemm.k[0]), float(gemm.us[0]), tile, tiles, waves,
        1 - tiles / (waves * rates.sms) if waves else 0.0, 0.0 if "wgrad" in name else 1 - held,
    )  # fmt: skip


#: A router without a balancing loss, as published loads are often modelled, and what it costs.
_UNEVEN = 1.2
#: Of the mean load: GShard's and Switch Transformer's usual factor (arXiv 2101.03961, section 2.2).
_CAPACITY = 1.25
_ROW_MULTIPLES = (16, 128)


def experts_changes(one: ExpertsPrediction, *, gpu: Gpu) -> tuple[ExpertsChange, ...]:
    """What changes near this layer would do to it, forward or backward as it is."""
    return tuple(_judged(one, name, gpu, **asked) for name, asked in _changes(one))


def _changes(one: ExpertsPrediction) -> Iterator[tuple[str, dict[str, Any]]]:
    layer, load = one.layer, one.load
    for multiple in sorted({*_ROW_MULTIPLES, ROW_ALIGNMENT[one.dtype]}):
        if multiple > one.row_multiple:
            yield words.rows_padded_to(multiple), {"row_multiple": multiple}
    if exponent_of(load) is None:
        yield words.power_law(_UNEVEN), {"load": f"power-law:{_UNEVEN}"}
    else:
        yield words.BALANCED, {"load": "balanced"}
        yield words.capacity_factor(_CAPACITY), {"capacity": _CAPACITY}
    for ep in (2 * layer.ep, layer.ep // 2):
        if ep >= 1 and layer.experts % ep == 0 and one.tokens * ep % layer.ep == 0:
            yield words.ep_degree(ep), {"ep": ep}
    for top_k in (layer.top_k - 1, layer.top_k + 1):
        if 1 <= top_k <= layer.experts:
            yield words.top_k(top_k), {"top_k": top_k}


def _judged(one: ExpertsPrediction, name: str, gpu: Gpu, **asked: Any) -> ExpertsChange:
    layer, tokens = one.layer, one.tokens
    now = {"row_multiple": one.row_multiple, "load": one.load, "ep": layer.ep, "top_k": layer.top_k}
    other = replace(layer, **{key: asked[key] for key in ("ep", "top_k") if key in asked})
    then = predict_experts(
        other,
        tokens * other.ep // layer.ep,
        gpu=gpu,
        dtype=one.dtype,
        direction=one.direction,
        load=asked.get("load", one.load),
        row_multiple=asked.get("row_multiple", one.row_multiple),
        capacity=asked.get("capacity", one.capacity),
    )
    known = one.time_us.mid and then.time_us.mid
    ratio = then.time_us.mid / one.time_us.mid if known else None  # type: ignore[operator]
    change = {key: [now.get(key, one.capacity), value] for key, value in asked.items()}
    return ExpertsChange(name, change, then, ratio)
