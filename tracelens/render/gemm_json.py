"""One GEMM as JSON: ``tracelens gemm --json``."""

from __future__ import annotations

import msgspec

from tracelens.gemm.predict import Prediction
from tracelens.gemm.study import Around, BetterSize, Study
from tracelens.results.study import (
    SCHEMA_VERSION,
    AroundJson,
    GemmJson,
    GpuJson,
    NeighbourJson,
    PointJson,
    TermJson,
    TileJson,
)
from tracelens.version import __version__


def gemm_json(study: Study, *, gpu_why: str | None = None) -> bytes:
    """Encode a study; ``gpu_why`` says why this GPU where the user named none."""
    one, gpu = study.prediction, study.gpu
    data = GemmJson(
        schema_version=SCHEMA_VERSION,
        tool_version=__version__,
        gpu=GpuJson(
            gpu.name, gpu.title, gpu_why or "named", gpu.sms, gpu.peak(one.dtype), gpu.bandwidth_gbps
        ),
        m=one.m,
        n=one.n,
        k=one.k,
        batch=one.batch,
        dtype=one.dtype,
        out_dtype=one.out_dtype,
        layout=one.layout,
        time_us=one.time_us,
        tflops=one.tflops,
        peak_frac=study.peak_frac,
        bound=one.bound,
        unknown=one.unknown,
        source=one.chosen.rates.source if one.chosen is not None else None,
        alignment_bytes=dict(one.alignment),
        leading_dimension=dict(study.leading),
        alignment_frac=one.alignment_frac,
        tile=_tile(one),
        tiles=one.tiles,
        waves=one.waves,
        tile_eff_frac=one.tile_eff_frac,
        wave_eff_frac=one.wave_eff_frac,
        terms=[TermJson(*term) for term in one.terms],
        around=[_around(each) for each in study.around],
    )
    return msgspec.json.format(msgspec.json.encode(data), indent=2) + b"\n"


def _tile(one: Prediction) -> TileJson | None:
    if one.tile is None or one.chosen is None:
        return None
    return TileJson(*one.tile, one.tile_k, one.cluster, one.split_k, one.chosen.tile_why)


def _around(one: Around) -> AroundJson:
    curve = [
        PointJson(
            point.size,
            point.prediction.time_us,
            point.prediction.tflops,
            None if point.prediction.tile is None else "{}x{}".format(*point.prediction.tile),
            point.prediction.waves,
        )
        for point in one.curve
    ]
    neighbours = [_neighbour(each) for each in one.neighbours]
    return AroundJson(
        one.dimension, one.low, one.high, one.step, one.tried_step, neighbours, one.none_why, curve
    )


def _neighbour(one: BetterSize) -> NeighbourJson:
    gain, time_us = one.gain, one.prediction.time_us
    if gain is None:
        return NeighbourJson(one.size, one.kind, time_us, None, None, None, None)
    return NeighbourJson(
        one.size, one.kind, time_us, gain.saving_us, gain.time_ratio, gain.work_ratio, gain.per_flop_ratio
    )
