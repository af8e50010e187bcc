"""The experts of a planned step: one layer's time by the model of grouped GEMMs, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.config.configuration import Layout
from tracelens.config.model_config import ModelConfig
from tracelens.gemm.predict.experts import ROW_ALIGNMENT, predict_experts
from tracelens.hardware import Gpu
from tracelens.step.planned_kernels import RankSizes, expert_layer
from tracelens.step.reasons import PlannedPart, in_ms
from tracelens.step.words import planned as words
from tracelens.words import DIRECTIONS


def expert_parts(config: ModelConfig, layout: Layout, *, gpu: Gpu, dtype: str) -> Iterator[PlannedPart]:
    """Choice of experts, their rows' way, their GEMMs and activation, at an even load; none if dense.

    Expert-parallel ranks have as many tokens each, and as many rows of all of them come back as are sent.
    Tensor-parallel ranks that have experts of their own share the tokens too (Megatron-LM's sequence
    parallelism, without which it does not run so).

    Raises InputError for a GPU or type whose grouped GEMMs cannot be predicted.
    """
    layer = expert_layer(config, layout)
    if layer is None:
        return
    sizes = RankSizes.of(config)
    layers = sizes.layers - (config.dense_layers or 0)
    tokens, held = sizes.tokens * layer.ep * layer.tp // config.tp, layer.experts // layer.ep
    tokens = max(1, tokens)
    rows, width = round(tokens * layer.top_k / layer.experts), layer.inter // layer.tp
    for direction in DIRECTIONS:
        found = predict_experts(
            layer, tokens, gpu=gpu, dtype=dtype, direction=direction, row_multiple=ROW_ALIGNMENT[dtype]
        )
        time_ms = in_ms(found.time_us, layers, words.no_experts_time(found.unknown, gpu.title))
        yield PlannedPart(
            "moe.experts",
            direction,
            "experts",
            f"{held} x ({rows} x {width} x {layer.hidden})",
            (sizes.tokens * layer.top_k, layer.inter, layer.hidden, held),
            layers,
            time_ms,
            flops=(found.tflops or 0.0) * (found.time_us.mid or 0.0) * 1e6 * layers,
            note=", ".join(words.expert_tiles(gemm.name, gemm.waves, gemm.tile) for gemm in found.gemms),
        )
