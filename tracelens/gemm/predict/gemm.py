"""The time of one product on one GPU, with its range and its derivation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from tracelens.errors import InputError
from tracelens.gemm.dtypes import bytes_per_element
from tracelens.gemm.efficiency import tile_eff
from tracelens.gemm.efficiency import tiles as count_tiles
from tracelens.gemm.kernel_names import KernelName
from tracelens.gemm.ladder import AlignmentLadder, LadderStep, alignment_ladder, operand_alignment
from tracelens.gemm.ladder_published import OF_SMALL, WHOLE_US
from tracelens.gemm.predict.architecture import architecture
from tracelens.gemm.predict.calibration import Fit, fitted
from tracelens.gemm.predict.cost import (
    SPLITS,
    Products,
    TileTable,
    best,
    cached_us,
    costs,
    memory_us,
    preference,
)
from tracelens.gemm.predict.derivation import Chosen, Term, derive
from tracelens.gemm.predict.neighbours import Nearest
from tracelens.gemm.predict.rates import Rates, layout_frac, model_rates, most_l2_mb, no_units, peak_of
from tracelens.gemm.predict.tiles import tiles_of_kernel
from tracelens.gemm.predict.words import gemm as words
from tracelens.hardware import Gpu
from tracelens.hardware.measurements import Measurements
from tracelens.results import Estimate
from tracelens.results.gemm import Bound

_LAYOUTS = ("TN", "NN", "NT", "TT")
#: The largest size of one dimension: no GPU holds more, and counts stay exact in floating point.
_LARGEST = 2**40
#: Beyond the rate that is known of boards that boost above the printed clock, one of the same name has been
#: seen: RTX 5090 at 242 TFLOP/s in bf16, three of which set 230 (github.com/zzc0721/
#: torch-performance-test-data, database.md).
_BOARDS_DIFFER = 1.06
_DTYPES = frozenset({"bf16", "fp16", "fp8", "fp8-block", "nvfp4", "tf32", "fp32", "fp64", "int8"})
#: Below it no operand is loaded at full width.
_GRID_BYTES = 16
#: What a product of these types writes unless told otherwise.
_OUT = {"fp8": "bf16", "fp8-block": "bf16", "nvfp4": "bf16", "tf32": "fp32", "int8": "int32"}


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one product would take on one GPU, and why. None = not known; ``unknown`` says why.

    Tile and cluster are those of the kernel the library is expected to choose (or of the one given).
    """

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    out_dtype: str
    layout: str
    gpu: str
    time_us: Estimate
    alignment: dict[str, int | None]  # bytes, of a, b and c (= out)
    alignment_frac: float | None  # throughput with operands so aligned, as a share of that at 128 bytes
    tile: tuple[int, int] | None = None  # (tile_m, tile_n) in torch's orientation
    tile_k: int | None = None
    cluster: str | None = None
    split_k: int | None = None
    tiles: int | None = None  # output tiles, over the batch, without the slices of K
    waves: int | None = None  # rounds over the SMs, the last one perhaps partly filled
    tile_eff_frac: float | None = None
    wave_eff_frac: float | None = None
    bound: Bound | None = None  # what the time mostly is
    unknown: str | None = None  # why there is no mid estimate
    floor_us: float | None = None  # without a mid: at mid rates, with the least that its alignment can cost
    chosen: Chosen | None = field(default=None, repr=False)

    @property
    def tflops(self) -> float | None:
        """TFLOP/s at the mid estimate."""
        mid = self.time_us.mid
        return 2.0 * self.m * self.n * self.k * self.batch / mid / 1e6 if mid else None

    @property
    def terms(self) -> tuple[Term, ...]:
        """(name, formula with its numbers, value, unit, why): the last value is the mid estimate.

        Values carry seven digits. Empty where there is no mid estimate.
        """
        return derive(self.chosen) if self.chosen is not None else ()


@dataclass(frozen=True, slots=True)
class _Asked:
    """A checked question: sizes, types and what follows from them alone."""

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    out_dtype: str
    math_dtype: str  # the type whose peak it runs at
    layout: str
    size: float
    out_size: float
    gpu: Gpu
    alignment: dict[str, int | None]

    @property
    def aligned(self) -> int:
        return min(value for value in self.alignment.values() if value is not None)

    def products(self, alignment_frac: float) -> Products:
        m, n, k, batch = float(self.m), float(self.n), float(self.k), float(self.batch)
        return Products(m, n, k, batch, alignment_frac, self.size, self.out_size)

    @property
    def operations(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch

    @property
    def compute_floor_us(self) -> float:
        """Its operations at the datasheet's peak; 0 where that is not known, as of nvfp4."""
        peak = self.gpu.peak("fp8" if self.math_dtype == "fp8-block" else self.math_dtype)
        return self.operations / (peak * 1e6) if peak else 0.0

    @property
    def operand_bytes(self) -> float:
        operands = self.size * (self.m * self.k + self.k * self.n) + self.out_size * self.m * self.n
        return self.batch * operands

    @property
    def memory_floor_us(self) -> float:
        """Its operands once across memory at the datasheet's bandwidth; 0 where that is not known."""
        bandwidth = self.gpu.bandwidth_gbps
        return self.operand_bytes / (bandwidth * 1e3) if bandwidth else 0.0

    def fastest_us(self, rates: Rates) -> float:
        """Its operations at the peak, or at what was measured above it, which another board boosts beyond;
        and its operands across memory, where the L2 cache cannot hold them."""
        fastest, seen = peak_of(self.gpu, self.math_dtype), rates.multiply_tflops
        if fastest is None or seen > fastest:
            fastest = _BOARDS_DIFFER * seen
        compute = self.operations / (fastest * 1e6)
        in_cache = self.operand_bytes <= most_l2_mb(self.gpu) * 1e6
        return max(compute, 0.0 if in_cache else self.memory_floor_us)

    @property
    def floor_us(self) -> float:
        return max(self.compute_floor_us, self.memory_floor_us)

    def answer(self, time_us: Estimate, step: LadderStep, **more: object) -> Prediction:
        return Prediction(
            self.m, self.n, self.k, self.batch, self.dtype, self.out_dtype, self.layout, self.gpu.name,
            time_us, self.alignment, step.mid, **more,  # type: ignore[arg-type]
        )  # fmt: skip


def predict_gemm(
    m: int,
    n: int,
    k: int,
    *,
    gpu: Gpu,
    batch: int = 1,
    dtype: str = "bf16",
    out_dtype: str | None = None,
    layout: str = "TN",
    kernel: KernelName | None = None,
    measured: Measurements | None = None,
    cast: bool = False,
) -> Prediction:
    """Time of out[M,N] = a[M,K] @ b[K,N], ``batch`` times, in microseconds.

    ``layout`` is cuBLAS's opA, opB (TN: y = x W^T, NN: dgrad, NT: wgrad). ``kernel`` fixes the tile to
    that of a kernel seen; without it the fastest of the library's tiles is taken. ``measured`` makes the
    estimate calibrated where it holds enough products of this GPU and type. ``cast`` adds the cast of 16-bit
    activations to fp8 or fp4; a calibrated time never holds it. Where the GPU or the cost of the alignment is
    not known, the estimate has no mid and ``unknown`` says why. Raises ``InputError`` for
    sizes that are not positive whole numbers, and for unknown types and layouts.

    Without measurements the time falls when a dimension grows at the same alignment only where the library is
    known to take a tile that is not its fastest (``architecture.Library``), and in types below 16 bits where
    the last row of tiles fills (``cost.ragged``) or a dispatcher goes over to another tile.

    >>> from tracelens.hardware import find_gpu
    >>> h100 = find_gpu("NVIDIA H100 80GB HBM3")
    >>> one = predict_gemm(32768, 768, 3072, gpu=h100)
    >>> one.tile, one.waves, round(one.time_us.mid), one.time_us.basis  # 200 us in a public trace
    ((152, 256), 5, 200, 'model')
    """
    for name, value in (("M", m), ("N", n), ("K", k), ("batch", batch)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST:
            raise InputError(f"{name} = {value!r}: sizes of a GEMM are whole numbers from 1 to 2^40")
    for word in (dtype, layout, out_dtype or ""):
        if not isinstance(word, str):
            raise InputError(f"{word!r} is neither an element type nor a layout: {words.TYPES_TO_USE}")
    math_dtype = dtype = dtype.replace("_", "-")  # fp8_block, as serving libraries write it
    if dtype == "fp32" and kernel is not None and kernel.math_dtype == "tf32":
        math_dtype = "tf32"
    fit = fitted(measured, gpu=gpu, math_dtype=math_dtype) if measured is not None else None
    return _predict(_Question(m, n, k, batch, dtype, math_dtype, out_dtype, layout, gpu, cast), kernel, fit)


class _Question(NamedTuple):
    """What is asked, not checked yet: the key under which its answer is kept."""

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    math_dtype: str
    out_dtype: str | None
    layout: str
    gpu: Gpu
    cast: bool


@lru_cache(maxsize=2**16)  # a search asks for the same product again and again
def _predict(question: _Question, kernel: KernelName | None, fit: Fit | None) -> Prediction:
    asked = _ask(question)
    gpu = asked.gpu
    step = _step(asked, fit)
    rates = (
        fit.rates
        if fit is not None
        else _model_rates(gpu, asked.math_dtype, asked.layout, question.cast, asked.aligned >= _GRID_BYTES)
    )
    if isinstance(rates, str):
        floor_us = asked.floor_us if no_units(gpu, asked.math_dtype) is None else None
        return asked.answer(Estimate(floor_us or None, None, None, "model"), step, unknown=rates)
    table, tile_why = _table(asked, kernel, rates, fit)
    if step.mid is None:
        why = words.alignment_cost_unknown(asked.aligned, step.source)
        bounds, floor_us = _bounds(asked, table, rates, step)
        return asked.answer(bounds, step, unknown=why, floor_us=floor_us)
    found = _known(asked, step, step.mid, rates, table, tile_why, fit)
    return found if kernel is None or found.tile is None else replace(found, cluster=kernel.cluster)


def _known(
    asked: _Asked,
    step: LadderStep,
    alignment_frac: float,
    rates: Rates,
    table: TileTable,
    tile_why: str,
    fit: Fit | None,
) -> Prediction:
    products = asked.products(alignment_frac)
    times, tile_at, split_at = best(costs(products, table, rates), preference(products, table, rates))
    at = int(tile_at[0])
    tile, split = table.tiles[at], SPLITS[int(split_at[0])]
    sizes = (asked.m, asked.n, asked.k, asked.batch)
    near = fit.neighbours.of(sizes, asked.layout, asked.aligned) if fit is not None else Nearest()
    chosen = Chosen(
        *sizes, asked.size, asked.out_size, alignment_frac,
        asked.aligned, step.source, tile, tile_why, split,
        float(table.rate_frac[0, at, 0]), rates, near.weighted, near.prior_weight,
    )  # fmt: skip
    mid = float(times[0]) * near.factor
    if fit is not None:
        estimate = Estimate(mid * near.low_frac, mid, mid * near.high_frac, "calibrated")
    else:
        estimate = _model_range(asked, mid, chosen, step)
    count = count_tiles(asked.m, asked.n, batch=asked.batch, tile=(tile.m, tile.n))
    cluster = (tile.m * tile.clusters[0], tile.n * tile.clusters[1])
    padded = count_tiles(asked.m, asked.n, batch=asked.batch, tile=cluster) * tile.cluster_size
    slots = int(table.slots[0, at, 0])
    rounds = -(-padded * split // slots)
    return asked.answer(
        estimate, step, tile=(tile.m, tile.n), tile_k=tile.k, cluster=tile.cluster, split_k=split,
        tiles=count, waves=rounds, tile_eff_frac=tile_eff(asked.m, asked.n, tile=(tile.m, tile.n)),
        wave_eff_frac=count * split / (rounds * slots), bound=_bound(asked, rates, mid), chosen=chosen,
    )  # fmt: skip


def _ask(question: _Question) -> _Asked:
    m, n, k, batch, dtype, math_dtype, out_dtype, layout, gpu, _ = question
    if layout not in _LAYOUTS:
        raise InputError(f"unknown layout {layout!r}: use {', '.join(_LAYOUTS)} (cuBLAS's opA, opB)")
    size = bytes_per_element(dtype) if dtype in _DTYPES else None
    if size is None:
        raise InputError(f"unknown element type {dtype!r}: {words.TYPES_TO_USE}")
    out = out_dtype if out_dtype is not None else _OUT.get(dtype, dtype)
    out_size = bytes_per_element(out)
    if out_size is None:
        raise InputError(f"unknown element type {out!r} of the output: {words.TYPES_TO_USE}")
    alignment = operand_alignment(m, n, k, dtype=dtype, out_dtype=out, layout=layout)
    return _Asked(m, n, k, batch, dtype, out, math_dtype, layout, size, out_size, gpu, alignment)


@lru_cache(maxsize=256)
def _model_rates(gpu: Gpu, math_dtype: str, layout: str, cast: bool, aligned: bool) -> Rates | str:
    rates = model_rates(gpu, math_dtype, aligned=aligned)
    if isinstance(rates, str):
        return rates
    frac = layout_frac(gpu, math_dtype, layout)
    if frac < 1:
        source = words.of_layout(rates.source, math_dtype, layout, frac)
        rates = replace(rates, multiply_tflops=rates.multiply_tflops * frac, source=source)
    return rates if cast else replace(rates, casts=())


@lru_cache(maxsize=256)
def _ladder(gpu: Gpu, math_dtype: str) -> AlignmentLadder:
    return alignment_ladder(gpu=gpu, dtype=math_dtype)


@lru_cache(maxsize=256)
def _library(gpu: Gpu, math_dtype: str, sms: int, aligned: bool) -> TileTable:
    known = architecture(gpu.compute_capability).library(math_dtype, gpu=gpu.name, aligned=aligned)
    return TileTable.of(known.tiles, sms=sms, rate_frac=known.rates, bias=known.bias)


@lru_cache(maxsize=1024)
def _tiles_of(kernel: KernelName, gpu: Gpu, math_dtype: str, sms: int) -> TileTable | None:
    tiles = tiles_of_kernel(kernel)
    known = architecture(gpu.compute_capability)
    if known.ranks(math_dtype, gpu.name):  # its figures are those of tiles without clusters, or of pairs
        pairs = {(one.m, one.n, one.cluster) for one in known.library(math_dtype, gpu=gpu.name).tiles}
        tiles = tuple(
            tile if (tile.m, tile.n, tile.cluster) in pairs else replace(tile, cluster=None) for tile in tiles
        )
    rates = [known.rate_of(one, math_dtype, gpu.name) for one in tiles]
    return TileTable.of(tiles, sms=sms, rate_frac=rates) if tiles else None


def _table(asked: _Asked, kernel: KernelName | None, rates: Rates, fit: Fit | None) -> tuple[TileTable, str]:
    """The tiles to choose among, and in words where they come from."""
    own = _tiles_of(kernel, asked.gpu, asked.math_dtype, rates.sms) if kernel is not None else None
    if own is not None:
        if fit is not None:
            own = TileTable.of(
                own.tiles, sms=rates.sms, rate_frac=[fit.table.rate_of(tile) for tile in own.tiles]
            )
        return own, words.TILE_GIVEN
    if fit is not None:
        return fit.table, words.TILE_MEASURED
    aligned = asked.aligned >= _GRID_BYTES
    return _library(asked.gpu, asked.math_dtype, rates.sms, aligned), words.TILE_EXPECTED


def _step(asked: _Asked, fit: Fit | None) -> LadderStep:
    """The step of the ladder that holds for these operands."""
    aligned = asked.aligned
    step = (fit.ladder if fit is not None else _ladder(asked.gpu, asked.math_dtype)).step_of(asked.alignment)
    if step.mid is not None:
        return step
    if asked.math_dtype in ("fp32", "fp64"):
        return LadderStep(aligned, 1.0, 1.0, 1.0, "model", words.CUDA_CORES_LOAD_SINGLY)
    if fit is not None and fit.neighbours.has(asked.layout, aligned):
        mid = fit.assumed(asked.alignment)
        return LadderStep(aligned, step.low, mid, step.high, "calibrated", words.CORRECTED_BY_MEASURED)
    return step


def _model_range(asked: _Asked, mid: float, chosen: Chosen, step: LadderStep) -> Estimate:
    """The model's range around mid, wider by what the alignment's step leaves open.

    Operands that fit in the L2 cache may all be there from the kernel before: that is the low end then.
    """
    rates, frac = chosen.rates, chosen.alignment_frac
    low_frac, high_frac = rates.range_of(asked.m, asked.n, asked.k, mid)
    if asked.aligned < _GRID_BYTES and (asked.batch > 1 or mid < WHOLE_US):
        of_small = OF_SMALL.get(asked.gpu.compute_capability or (0, 0), 1.0)
        low_frac, high_frac = low_frac / of_small, high_frac * of_small
    low = float(cached_us(mid, asked.products(frac), rates, most_l2_mb(asked.gpu)))
    low = max(low * low_frac * frac / (step.high or frac), asked.fastest_us(rates))
    high = mid * high_frac * frac / (step.low or frac)
    return Estimate(min(low, mid), mid, high, "model")


def _bounds(asked: _Asked, table: TileTable, rates: Rates, step: LadderStep) -> tuple[Estimate, float]:
    """Where an alignment's cost is not known: from its best, if any, to its worst, if any; ``floor_us``."""

    def time(alignment_frac: float) -> float:
        products = asked.products(alignment_frac)
        return float(best(costs(products, table, rates), preference(products, table, rates))[0][0])

    best_us = time(step.high or 1.0)
    low_frac, high_frac = rates.range_of(asked.m, asked.n, asked.k, best_us)
    low = max(best_us * low_frac, asked.fastest_us(rates))
    high = time(step.low) * high_frac if step.low else None
    return Estimate(low, None, high, "model"), max(best_us, low)


def _bound(asked: _Asked, rates: Rates, mid: float) -> Bound:
    if 2 * rates.fixed_us >= mid:
        return "latency"
    moved_us = memory_us(asked.operand_bytes, rates)
    return "memory" if moved_us >= 0.8 * (mid - rates.fixed_us) else "compute"
