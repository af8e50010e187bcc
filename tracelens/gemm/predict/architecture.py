"""What is known of an architecture's GEMMs: one file of ``architectures`` per compute capability.

A file holds the tiles that the libraries choose among and, per type and GPU, what part of its datasheet that
GPU reaches. Those figures are fitted constants, each set with its source. A GPU without figures of its own
takes those of the GPU that it is said to be like, else those of the architecture's reference.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from tracelens.gemm.predict.family import LEAST, Family
from tracelens.gemm.predict.tiles import Tile
from tracelens.gemm.predict.words import gemm as words

#: A type without figures of its own takes those of the type whose units it runs on. Block-scaled types have
#: kernels of their own, so they are known only on the GPUs that were measured.
_LIKE = {"fp16": "bf16", "tf32": "bf16", "int8": "fp8", "fp8": "bf16", "fp64": "fp32"}
BLOCK_SCALED = ("fp8-block", "nvfp4")
#: (asked, found): types whose kernels are as fast as one another's.
_SAME = {(one, one) for one in ("bf16", "fp16", "fp8", "fp8-block", "nvfp4", "fp32", "fp64")} | {
    ("fp16", "bf16")
}
#: The narrowest range of a GPU or type that takes the figures of another: large shapes, and small ones.
_BORROWED, _BORROWED_SMALL = (0.87, 1.2), (0.7, 1.5)
#: fp32 on CUDA cores: ampere_sgemm, cutlass_80_simt_sgemm and sm80_xmma of public traces.
_CUDA_CORES = tuple(
    Tile(m, n, 8)
    for m, n in (
        (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (32, 128), (128, 32), (32, 32),
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shares:
    """What part of a GPU's datasheet figures its GEMMs of one type reach, and what no datasheet tells."""

    of_peak: float  # multiply rate inside the K loop of a 128x256 tile
    of_bandwidth: float
    load_elements: float  # see ``cost.tile_slowdown``
    partial_wave_frac: float  # an almost empty last wave costs this share of a full one
    first_wave_frac: float  # the same where the first wave is the last: fewer tiles than SMs
    store_frac: float  # share of a wave's output store that no computation hides
    fixed_us: float  # a kernel's start and end, in a CUDA graph
    split_us: float  # what summing up slices of K costs besides its traffic
    sm_gbps: float  # what one SM loads into its shared memory
    cluster_load_frac: float  # share of those loads left where a cluster loads an operand together
    cached_mb: float  # operands of this size come from the L2 cache
    l2_sm_gbps: float  # what the L2 cache gives one SM while all of them read
    sustained_loss_frac: float  # rate lost to power in a long kernel
    sustained_us: float  # half of that loss is there in a kernel of this length
    low: float  # range: low = mid * low, high = mid * high
    high: float
    low_small: float  # the same where M, N or K is below 1024
    high_small: float
    source: str
    few: tuple[float, ...] = ()  # low and high instead of those where M is at most 64
    short: tuple[float, ...] = ()  # and where the time is under 10 us
    cast_us: tuple[float, ...] = ()  # casting 16-bit activations first, by each known cast: what it starts in
    cast_row_ns: tuple[float, ...] = ()  # what it takes per row at least
    cast_bytes: tuple[float, ...] = ()  # and what it moves per element
    whole_tiles_above_m: float = math.inf  # from M above it the library takes no tile below 128x128
    dispatched: str = ""  # the list of ``Architecture.dispatched`` that the library takes its tile from
    ragged_frac: float = 0.0  # what an empty last row of tiles would add to a kernel of that row alone
    tile_us: float = 0.0  # a tile's start and end beside its K loop and its store
    long_k_frac: float = 0.0  # what a tile takes longer for each thousand of K: see ``cost.long_k``
    whole_m_frac: float = 1.0  # the library ranks a tile that divides M as if it took this share of its time
    whole_n_frac: float = 1.0
    ratio_error_frac: float = (
        1.0  # error of the ratio of two times beside ``tracelens.gemm.gain``'s, 90 % of them
    )
    told_apart_m: float = 0.0953  # ln of the time per FLOP by which sizes next to one another along M must be
    told_apart_n: float = (
        0.0953  # predicted to differ to be called so: see ``benchmarks/fit_gemm.py``; along N
    )
    # Of tiles: rates beside the formula's where the GPU has its own, coefficients of a family's, and of how
    # the library ranks those (see ``family`` and ``Library``). Long, and rates are hashed for every GEMM.
    tile_rates: tuple[float, ...] = field(default=(), hash=False)
    family_rates: tuple[float, ...] = field(default=(), hash=False)
    family_bias: tuple[float, ...] = field(default=(), hash=False)


@dataclass(frozen=True, slots=True)
class Library:
    """The tiles that a library chooses among: it takes the one whose time, times its bias, is least."""

    tiles: tuple[Tile, ...]
    rates: tuple[float, ...]  # of each beside the formula's
    bias: tuple[float, ...]

    @classmethod
    def unbiased(cls, tiles: tuple[Tile, ...], rates: tuple[float, ...] = ()) -> Library:
        return cls(tiles, rates or (1.0,) * len(tiles), (1.0,) * len(tiles))


@dataclass(frozen=True, slots=True)
class Architecture:
    """One compute capability: its tiles, and per type and GPU what it reaches."""

    title: str
    reference: str  # key of the GPU whose figures stand for the others of the architecture
    like: Mapping[str, str] = field(hash=False)  # and of those nearer to another: keys of both
    tiles: tuple[Tile, ...]
    tile_rates: tuple[float, ...]  # of each tile beside the formula's, for GPUs without rates of their own
    dispatched: Mapping[str, tuple[Tile, ...]] = field(hash=False)  # of libraries that go by M alone
    family: Family | None  # of tiles that have no names here; for types with figures of it
    narrow: Library  # tiles of the kernels that run rows off the 16-byte grid; none where the same do
    shares: Mapping[str, Mapping[str, Shares]] = field(
        hash=False
    )  # type, or "narrow" -> key of gpus.toml -> figures
    #: Type -> layout -> share of the multiply rate of TN that it reaches.
    layouts: Mapping[str, Mapping[str, float]] = field(hash=False, default_factory=dict)

    def named(self, dtype: str) -> tuple[Tile, ...]:
        """Tiles that the names of public traces show."""
        return _CUDA_CORES if dtype in ("fp32", "fp64") else self.tiles

    def library(self, dtype: str, *, gpu: str = "", aligned: bool = True) -> Library:
        """What the library chooses among; ``aligned``: every row begins on a multiple of 16 bytes."""
        if dtype not in ("fp32", "fp64") and self.narrow.tiles and not aligned:
            return self.narrow
        return self.library_of(self.shares_of(gpu, dtype), dtype)

    def library_of(self, shares: Shares | None, dtype: str) -> Library:
        """The same by the figures of one GPU and type."""
        if dtype in ("fp32", "fp64"):
            return Library.unbiased(_CUDA_CORES)
        if shares is not None and shares.dispatched:
            return Library.unbiased(self.dispatched[shares.dispatched], shares.tile_rates)
        rates = shares.tile_rates if shares is not None and shares.tile_rates else self.tile_rates
        if self.family is None or shares is None or not shares.family_rates:  # see ``ranks``
            return Library.unbiased(self.tiles, rates)
        few = [one for one in zip(self.tiles, rates, strict=True) if one[0].m * one[0].n < LEAST]
        return Library(
            (*(tile for tile, _ in few), *self.family.tiles),
            (*(rate for _, rate in few), *self.family.rates(shares.family_rates)),
            (*(1.0 for _ in few), *self.family.biases(shares.family_bias)),
        )

    def ranks(self, dtype: str, gpu: str) -> bool:
        """Is it known how the library ranks a family of tiles for this type?"""
        own = self.shares_of(gpu, dtype)
        return dtype not in ("fp32", "fp64") and self.family is not None and bool(own and own.family_rates)

    def rate_of(self, tile: Tile, dtype: str, gpu: str) -> float:
        """The rate of a kernel's tile beside the formula's: its own, else that in any cluster, else 1."""
        known = self.library(dtype, gpu=gpu)
        rates = [
            (one.cluster == tile.cluster, rate)
            for one, rate in zip(known.tiles, known.rates, strict=True)
            if (one.m, one.n) == (tile.m, tile.n)
        ]
        return max(rates, default=(False, 1.0))[1]

    def shares_of(self, gpu: str, dtype: str, *, aligned: bool = True) -> Shares | None:
        """The figures of one GPU, those of a like type where a type has none; else so of the reference.

        Rows off the 16-byte grid have figures of their own where they have tiles of their own.
        """
        for name in (gpu, self.like.get(gpu, self.reference), self.reference):
            if (
                not aligned
                and dtype not in ("fp32", "fp64")
                and (own := self.shares.get("narrow", {}).get(name))
            ):
                return own if name == gpu else _widened(own)
            wanted: str | None = dtype
            while wanted is not None:
                found = self.shares.get(wanted, {}).get(name)
                if found is not None and (name == gpu or dtype not in BLOCK_SCALED):
                    if (dtype, wanted) not in _SAME:
                        found = replace(found, source=words.of_another_type(found.source, dtype))
                        return _widened(found)
                    return found if name == gpu else _widened(found)
                wanted = _LIKE.get(wanted)
        return None


@lru_cache(maxsize=32)
def measured_in(dtype: str) -> tuple[str, ...]:
    """Keys of the GPUs, of any architecture, with figures of a type.

    >>> measured_in("fp8-block")[-2:]
    ('h100-sxm', 'h200')
    """
    known = [architecture(one).shares.get(dtype, {}) for one in sorted(_files())]
    return tuple(sorted({gpu for gpus in known for gpu in gpus}))


@lru_cache(maxsize=32)
def architecture(capability: tuple[int, int] | None) -> Architecture:
    """The record of a compute capability; that of the nearest below where it has none.

    >>> architecture((9, 0)).title, architecture((8, 7)).title
    ('Hopper', 'Ampere, GA10x')
    """
    files = _files()
    at = max((one for one in files if one <= (capability or (8, 0))), default=min(files))
    return _read(tomllib.loads(files[at].read_text(encoding="utf-8")))


@lru_cache(maxsize=1)
def _files() -> Mapping[tuple[int, int], Traversable]:
    folder = resources.files("tracelens.gemm.predict").joinpath("architectures")
    return {
        (int(name[2:-1]), int(name[-1])): one
        for one in folder.iterdir()
        if (name := one.name[:-5]).startswith("sm")
    }


def _read(data: Mapping[str, Any]) -> Architecture:
    tiles, rates = _tiles(data["tiles"])
    dispatched = {dtype: _tiles(rows)[0] for dtype, rows in data.get("dispatched", {}).items()}
    narrow = Library.unbiased(*_tiles(data.get("narrow", [])))
    shares = {
        dtype: {gpu: _shares(figures) for gpu, figures in gpus.items()}
        for dtype, gpus in data["shares"].items()
    }
    longest, pairs = (
        {int(side): most for side, most in data.get(kind, {}).items()} for kind in ("family", "pairs")
    )
    family = Family.of(longest, pairs) if longest else None
    like = data.get("like", {})
    return Architecture(
        data["title"], data["reference"], like, tiles, rates, dispatched, family, narrow, shares,
        data.get("layouts", {}),
    )  # fmt: skip


def _shares(figures: Mapping[str, Any]) -> Shares:
    lists = {name: tuple(value) for name, value in figures.items() if isinstance(value, list)}
    return Shares(**{**figures, **lists})


def _widened(figures: Shares) -> Shares:
    low, high = min(figures.low, _BORROWED[0]), max(figures.high, _BORROWED[1])
    low_small = min(figures.low_small, _BORROWED_SMALL[0])
    high_small = max(figures.high_small, _BORROWED_SMALL[1])
    ends = {"low": low, "high": high, "low_small": low_small, "high_small": high_small}
    return replace(figures, **ends, few=(), short=())  # type: ignore[arg-type]


def _tiles(rows: list[str]) -> tuple[tuple[Tile, ...], tuple[float, ...]]:
    """Tiles and rates from rows "128x256x64 cluster 1x2 rate 1.05 above 64 to 128 slices 1".

    All but the size may be missing. ``above``, ``to``: of M; ``slices 1``: it never slices K.
    """
    tiles, rates = [], []
    for row in rows:
        size, *rest = row.split()
        m, n, k = (int(side) for side in size.split("x"))
        more = dict(zip(rest[::2], rest[1::2], strict=True))
        above, to = float(more.get("above", "0")), float(more.get("to", "inf"))
        tiles.append(Tile(m, n, k, more.get("cluster"), more.get("slices") != "1", above, to))
        rates.append(float(more.get("rate", "1")))
    return tuple(tiles), tuple(rates)
