"""One GEMM as JSON, and the published schema of it: ``tracelens gemm --json``."""

from __future__ import annotations

import msgspec

from tracelens import __version__
from tracelens.gemm.predict import Prediction
from tracelens.gemm.study import Around, Neighbour, Study
from tracelens.results import Estimate

SCHEMA_VERSION = "1.0"


class GpuJson(msgspec.Struct, frozen=True):
    """The GPU that is predicted for, with the datasheet figures used. null = unknown."""

    name: str  # key of --gpu
    title: str
    why: str  # "named", or why this one where none was named
    sms: int | None
    peak_tflops: float | None  # dense, of the product's element type
    bandwidth_gbps: float | None


class TermJson(msgspec.Struct, frozen=True):
    """One line of the derivation: ``formula`` is plain arithmetic, and its value is ``value``."""

    name: str
    formula: str
    value: float
    unit: str
    why: str


class TileJson(msgspec.Struct, frozen=True):
    """The tile that the library is expected to choose, in torch's orientation."""

    m: int
    n: int
    k: int | None
    cluster: str | None
    split_k: int | None
    why: str


class PointJson(msgspec.Struct, frozen=True):
    """The product with another size along the dimension. null = not known."""

    size: int
    time_us: Estimate
    tflops: float | None
    tile: str | None  # "128x256"
    waves: int | None


class NeighbourJson(msgspec.Struct, frozen=True):
    """A size worth having. Negative savings are costs; ratios are its time over the present time."""

    size: int
    kind: str  # faster | larger | smaller | known
    time_us: Estimate
    saving_us: Estimate | None
    time_ratio: Estimate | None
    work_ratio: float | None
    time_per_flop_ratio: Estimate | None


class AroundJson(msgspec.Struct, frozen=True):
    """The sizes along one dimension, and those worth having."""

    dimension: str  # m | n | k
    low: int
    high: int
    step: int
    tried_step: int
    neighbours: list[NeighbourJson]
    none_why: str | None
    curve: list[PointJson]


class GemmJson(msgspec.Struct, frozen=True):
    """out[M,N] = a[M,K] @ b[K,N], ``batch`` times, on one GPU. null = not known, ``unknown`` says why."""

    schema_version: str
    tool_version: str
    gpu: GpuJson
    m: int
    n: int
    k: int
    batch: int
    dtype: str
    out_dtype: str
    layout: str  # cuBLAS's opA, opB
    time_us: Estimate  # basis: calibrated | model
    tflops: float | None
    peak_frac: float | None
    bound: str | None  # compute | memory | latency
    unknown: str | None
    source: str | None  # what the rates of the prediction come from
    alignment_bytes: dict[str, int | None]  # of a, b and c (= out)
    leading_dimension: dict[str, str]  # of a, b and c: m | n | k
    alignment_frac: float | None
    tile: TileJson | None
    tiles: int | None
    waves: int | None
    tile_eff_frac: float | None
    wave_eff_frac: float | None
    terms: list[TermJson]
    around: list[AroundJson]


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


def _neighbour(one: Neighbour) -> NeighbourJson:
    gain, time_us = one.gain, one.prediction.time_us
    if gain is None:
        return NeighbourJson(one.size, one.kind, time_us, None, None, None, None)
    return NeighbourJson(
        one.size, one.kind, time_us, gain.saving_us, gain.time_ratio, gain.work_ratio, gain.per_flop_ratio
    )
