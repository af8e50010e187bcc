"""What ``tracelens gemm`` says of one GEMM: the structs of its ``--json``."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tracelens.results.described import says
from tracelens.results.estimates import Estimate
from tracelens.results.gemm import Axis, Bound

SCHEMA_VERSION = "1.0"

NeighbourKind = Literal["faster", "larger", "smaller", "known"]


class GpuJson(msgspec.Struct, frozen=True):
    """The GPU that is predicted for, with the datasheet figures used. null = unknown."""

    name: Annotated[str, says("key of --gpu")]
    title: str
    why: Annotated[str, says('"named", or why this one where none was named')]
    sms: int | None
    peak_tflops: Annotated[float | None, says("dense, of the GEMM's element type")]
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
    tile: Annotated[str | None, says('"128x256"')]
    waves: int | None


class NeighbourJson(msgspec.Struct, frozen=True):
    """A size worth having. Negative savings are costs; ratios are its time over the present time."""

    size: int
    kind: NeighbourKind
    time_us: Estimate
    saving_us: Estimate | None
    time_ratio: Estimate | None
    work_ratio: float | None
    time_per_flop_ratio: Estimate | None


class AroundJson(msgspec.Struct, frozen=True):
    """The sizes along one dimension, and those worth having."""

    dimension: Axis
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
    layout: Annotated[str, says("cuBLAS's opA, opB")]
    time_us: Estimate
    tflops: float | None
    peak_frac: float | None
    bound: Bound | None
    unknown: str | None
    source: Annotated[str | None, says("what the rates of the prediction come from")]
    alignment_bytes: Annotated[dict[str, int | None], says("of a, b and c (= out)")]
    leading_dimension: Annotated[dict[str, Axis], says("of a, b and c")]
    alignment_frac: float | None
    tile: TileJson | None
    tiles: int | None
    waves: int | None
    tile_eff_frac: float | None
    wave_eff_frac: float | None
    terms: list[TermJson]
    around: list[AroundJson]
