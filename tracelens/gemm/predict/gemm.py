"""The time of one product on one GPU, with its range and its derivation."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from tracelens.errors import InputError
from tracelens.gemm.dtypes import bytes_per_element
from tracelens.gemm.efficiency import tile_eff
from tracelens.gemm.efficiency import tiles as count_tiles
from tracelens.gemm.kernel_names import KernelName
from tracelens.gemm.ladder import AlignmentLadder, LadderStep, alignment_ladder, operand_alignment
from tracelens.gemm.predict.calibration import Fit, Nearest, fitted
from tracelens.gemm.predict.cost import SPLITS, Products, TileTable, best, costs, memory_bytes
from tracelens.gemm.predict.derivation import Chosen, Term, correction, derive
from tracelens.gemm.predict.rates import Rates, model_rates
from tracelens.gemm.predict.tiles import candidate_tiles, tiles_of_kernel
from tracelens.hardware import Gpu
from tracelens.hardware.measurements import Measurements
from tracelens.results import Estimate

_LAYOUTS = ("TN", "NN", "NT", "TT")
#: The largest size of one dimension: beyond it no GPU holds the operands, and int64 byte counts end.
_LARGEST = 2**40
_TO_SUPPORT = "use bf16, fp16, fp8, tf32 (fp32 data on tensor cores), fp32, fp64 or int8"
_DTYPES = frozenset({"bf16", "fp16", "fp8", "tf32", "fp32", "fp64", "int8"})
#: What a product of these types writes unless told otherwise.
_OUT = {"fp8": "bf16", "tf32": "fp32", "int8": "int32"}


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
    time_us: Estimate  # basis: calibrated | model
    alignment: dict[str, int | None]  # bytes, of a, b and c (= out)
    alignment_frac: float | None  # throughput at the least of them, as a share of that at 128 bytes
    tile: tuple[int, int] | None = None  # (tile_m, tile_n) in torch's orientation
    tile_k: int | None = None
    cluster: str | None = None
    split_k: int | None = None
    tiles: int | None = None  # output tiles, over the batch, without the slices of K
    waves: int | None = None  # rounds over the SMs, the last one perhaps partly filled
    tile_eff_frac: float | None = None
    wave_eff_frac: float | None = None
    bound: str | None = None  # compute | memory | latency: what the time mostly is
    unknown: str | None = None  # why there is no mid estimate
    chosen: Chosen | None = field(default=None, repr=False)

    @property
    def tflops(self) -> float | None:
        """Achieved TFLOP/s of the mid estimate."""
        mid = self.time_us.mid
        return 2.0 * self.m * self.n * self.k * self.batch / mid / 1e6 if mid else None

    @property
    def terms(self) -> tuple[Term, ...]:
        """(name, formula with its numbers, value, unit, why): the last value is the mid estimate.

        Values carry seven digits. Empty where nothing could be computed.
        """
        return derive(self.chosen) if self.chosen is not None and self.time_us.mid is not None else ()


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
) -> Prediction:
    """Time of out[M,N] = a[M,K] @ b[K,N], ``batch`` times, in microseconds.

    ``layout`` is cuBLAS's opA, opB (TN: y = x W^T, NN: dgrad, NT: wgrad). ``kernel`` fixes the tile to
    that of a kernel seen; without it the fastest of the library's tiles is taken. ``measured`` makes the
    estimate calibrated where it holds enough products of that GPU and type. Where the GPU or the cost of
    the alignment is not known, the estimate has no mid and ``unknown`` says why. Raises ``InputError`` for
    sizes that are not positive integers, unknown types and layouts.

    Within one tile the time never falls when a dimension grows at the same alignment, so the time of the
    fastest tile does not either.

    >>> from tracelens.hardware import find_gpu
    >>> h100 = find_gpu("NVIDIA H100 80GB HBM3")
    >>> one = predict_gemm(32768, 768, 3072, gpu=h100)
    >>> one.tile, one.waves, round(one.time_us.mid), one.time_us.basis  # 200 us in a public trace
    ((128, 256), 6, 200, 'model')
    """
    _check(m, n, k, batch, dtype, layout)
    out_dtype = out_dtype or _OUT.get(dtype, dtype)
    size, out_size = bytes_per_element(dtype), bytes_per_element(out_dtype)
    if size is None or out_size is None:
        raise InputError(f"unknown element type {out_dtype!r}: {_TO_SUPPORT}")
    math_dtype = dtype
    if dtype == "fp32" and kernel is not None and kernel.math_dtype == "tf32":
        math_dtype = "tf32"
    alignment = operand_alignment(m, n, k, dtype=dtype, out_dtype=out_dtype, layout=layout)
    aligned = min(value for value in alignment.values() if value is not None)
    fit = fitted(measured, gpu=gpu, math_dtype=math_dtype) if measured is not None else None
    rates = fit.rates if fit is not None else _rates(gpu, math_dtype)
    step = _step(gpu, math_dtype, aligned, fit)

    def prediction(time_us: Estimate, **more: object) -> Prediction:
        return Prediction(
            m, n, k, batch, dtype, out_dtype, layout, gpu.name, time_us, alignment, step.mid, **more  # type: ignore[arg-type]
        )  # fmt: skip

    if isinstance(rates, str):
        return prediction(Estimate(_floor_us(m, n, k, batch, size, out_size, gpu, math_dtype), None, None, "model"),
                          unknown=rates)  # fmt: skip
    sizes = (m, n, k, batch, size, out_size)
    table, tile_why = _table(gpu, math_dtype, kernel, rates, fit)
    if step.mid is None:
        return prediction(_bounds(sizes, table, rates, step, gpu, math_dtype), unknown=f"alignment of {aligned} bytes: {step.source}")  # fmt: skip
    products = Products.of([(m, n, k, batch, step.mid, size, out_size)])
    times, tile_at, split_at = best(costs(products, table, rates))
    tile, split = table.tiles[int(tile_at[0])], SPLITS[int(split_at[0])]
    near = fit.nearest(sizes, layout, aligned) if fit is not None else Nearest()
    chosen = Chosen(
        m, n, k, batch, size, out_size, step.mid, f"alignment of {aligned} bytes: {step.source}", tile,
        tile_why, split, float(table.rate_frac[0, int(tile_at[0]), 0]), rates, near.weighted, near.prior_weight,
    )  # fmt: skip
    mid = float(times[0])
    if near.weighted:
        mid *= 2.718281828459045 ** correction(near.weighted, near.prior_weight)
    if fit is not None:
        low, high = mid * near.low_frac, mid * near.high_frac
    else:
        floor = _floor_us(m, n, k, batch, size, out_size, gpu, math_dtype)
        low, high = _range(mid, rates, step, floor)
    count = count_tiles(m, n, batch=batch, tile=(tile.m, tile.n))
    slots = tile.slots(rates.sms)
    rounds = -(-count * split // slots)
    return prediction(
        Estimate(low, mid, high, "calibrated" if fit is not None else "model"),
        tile=(tile.m, tile.n), tile_k=tile.k, cluster=tile.cluster, split_k=split, tiles=count, waves=rounds,
        tile_eff_frac=tile_eff(m, n, tile=(tile.m, tile.n)), wave_eff_frac=count * split / (rounds * slots),
        bound=_bound(products, rates, mid), chosen=chosen,
    )  # fmt: skip


def _check(m: int, n: int, k: int, batch: int, dtype: str, layout: str) -> None:
    for name, value in (("M", m), ("N", n), ("K", k), ("batch", batch)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST:
            raise InputError(f"{name} = {value!r}: sizes of a product are whole numbers from 1 to 2^40")
    if dtype not in _DTYPES:
        raise InputError(f"unknown element type {dtype!r}: {_TO_SUPPORT}")
    if layout not in _LAYOUTS:
        raise InputError(f"unknown layout {layout!r}: use {', '.join(_LAYOUTS)} (cuBLAS's opA, opB)")


@lru_cache(maxsize=256)
def _rates(gpu: Gpu, math_dtype: str) -> Rates | str:
    return model_rates(gpu, math_dtype)


@lru_cache(maxsize=256)
def _ladder(gpu: Gpu, math_dtype: str) -> AlignmentLadder:
    return alignment_ladder(gpu=gpu, dtype=math_dtype)


@lru_cache(maxsize=256)
def _library(gpu: Gpu, math_dtype: str, sms: int) -> TileTable:
    return TileTable.of(candidate_tiles(gpu, math_dtype), sms=sms)


@lru_cache(maxsize=1024)
def _own_tiles(kernel: KernelName, sms: int) -> TileTable | None:
    tiles = tiles_of_kernel(kernel)
    return TileTable.of(tiles, sms=sms) if tiles else None


def _table(
    gpu: Gpu, math_dtype: str, kernel: KernelName | None, rates: Rates, fit: Fit | None
) -> tuple[TileTable, str]:
    """The tiles to choose among, and in words where they come from."""
    if kernel is not None and (own := _own_tiles(kernel, rates.sms)) is not None:
        if fit is not None and len(own.tiles) == 1 and own.tiles[0] in fit.table.tiles:
            frac = float(fit.table.rate_frac[0, fit.table.tiles.index(own.tiles[0]), 0])
            own = TileTable.of(own.tiles, sms=rates.sms, rate_frac=[frac])
        return own, "the tile of the kernel given"
    if fit is not None:
        return fit.table, "the fastest of the tiles measured on this GPU"
    return _library(gpu, math_dtype, rates.sms), "the fastest of the library's tiles"


def _step(gpu: Gpu, math_dtype: str, aligned: int, fit: Fit | None) -> LadderStep:
    ladder = fit.ladder if fit is not None else _ladder(gpu, math_dtype)
    step = ladder.step(aligned)
    if step.mid is None and fit is not None and fit.has("", aligned):
        known = step.high or 1.0
        return LadderStep(
            aligned,
            step.low,
            known,
            known,
            "calibrated",
            "measured shapes of this alignment correct the time",
        )
    if math_dtype in ("fp32", "fp64"):
        # CUDA cores load element by element: no step of the ladder applies.
        return LadderStep(aligned, 1.0, 1.0, 1.0, "model", "CUDA cores load element by element")
    return step


def _range(mid: float, rates: Rates, step: LadderStep, floor: float) -> tuple[float, float]:
    """The model's range around mid, wider by what the alignment step leaves open."""
    assert step.mid is not None
    faster = step.mid / step.high if step.high else 1.0
    slower = step.mid / step.low if step.low else 1.0
    return max(mid * rates.low_frac * faster, min(floor, mid)), mid * rates.high_frac * slower


def _bounds(
    sizes: tuple[int, int, int, int, float, float],
    table: TileTable,
    rates: Rates,
    step: LadderStep,
    gpu: Gpu,
    math_dtype: str,
) -> Estimate:
    """Where the alignment's cost is not known: no faster than its best, no slower than its worst, if any."""
    m, n, k, batch, size, out_size = sizes

    def time(frac: float) -> float:
        products = Products.of([(m, n, k, batch, frac, size, out_size)])
        return float(best(costs(products, table, rates))[0][0])

    floor = _floor_us(m, n, k, batch, size, out_size, gpu, math_dtype) or 0.0
    low = max(time(step.high or 1.0) * rates.low_frac, floor)
    return Estimate(low, None, time(step.low) * rates.high_frac if step.low else None, "model")


def _floor_us(
    m: int, n: int, k: int, batch: int, size: float, out_size: float, gpu: Gpu, math_dtype: str
) -> float:
    """No product is faster than its operations at the datasheet's peak and its bytes at its bandwidth."""
    floors = [0.0]
    if (peak := gpu.peak(math_dtype)) is not None:
        floors.append(2.0 * m * n * k * batch / (peak * 1e6))
    if gpu.bandwidth_gbps is not None:
        floors.append(batch * (size * (m * k + k * n) + out_size * m * n) / (gpu.bandwidth_gbps * 1e3))
    return max(floors)


def _bound(products: Products, rates: Rates, mid: float) -> str:
    memory_us = float(memory_bytes(products)[0, 0, 0]) / (rates.bandwidth_gbps * 1e3)
    if rates.fixed_us * 2 >= mid:
        return "latency"
    return "memory" if memory_us >= 0.9 * (mid - rates.fixed_us) else "compute"
