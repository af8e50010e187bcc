"""What a GPU reaches in layers of experts, by element type: ``experts.toml``, each set with its source."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from tracelens.gemm.predict.rates import no_units
from tracelens.gemm.predict.words import experts as words
from tracelens.hardware import Gpu, find_gpu

#: Bytes of an element with its scale: NVFP4 has one byte for 16 elements. Types run at the peak named.
_TYPES = {
    "bf16": (2.0, "bf16"), "fp16": (2.0, "bf16"), "fp8": (1.0, "fp8"), "fp8-block": (1.0, "fp8"),
    "nvfp4": (0.5625, "fp4"),
}  # fmt: skip
#: A GPU without rows of its own takes those of its architecture's, and its range is so much wider; so is
#: the backward's, of which nothing is measured.
_DERIVED, _BACKWARD = 1.25, 1.25


@dataclass(frozen=True, slots=True)
class ExpertShares:
    """Part of the datasheet that a GPU reaches, and what no datasheet tells: a table of ``experts.toml``."""

    of_peak: float  # multiply rate of a 128x256 tile
    of_bandwidth: float  # reading weights
    load_elements: float  # see ``cost.tile_slowdown``
    partial_wave_frac: float  # an almost empty last wave costs this share of a full one
    ends_k: float  # a tile's start and end take as long as so many elements of K
    cached_mb: float  # operands of this size come from the L2 cache
    overlap: float  # p of (compute^p + memory^p)^(1/p): 1 where neither hides the other
    fixed_us: float  # choosing experts, and start and end of the kernels
    choice_us: float  # the same per 1000 tokens and choice
    expert_us: float  # scheduling per expert of the GPU
    moved_frac: float  # share of the bandwidth that gathering, activating and summing rows reach
    activated_frac: float  # share of the activation's bytes that no GEMM's end hides
    low: float  # range: low = mid * low, high = mid * high
    high: float
    source: str
    foreign_frac: float = (
        0.0  # a row of another GPU's expert is moved as well, and takes so much of one's own
    )


@dataclass(frozen=True, slots=True)
class ExpertRates:
    """Shares of one GPU for one type, with the datasheet that they are shares of."""

    sms: int
    peak_tflops: float
    bandwidth_gbps: float
    element_bytes: float
    shares: ExpertShares
    derived: bool

    def range_of(self, direction: str) -> tuple[float, float]:
        """Low and high end of a time's range, as factors of its middle."""
        wider = (_DERIVED if self.derived else 1.0) * (_BACKWARD if direction == "backward" else 1.0)
        return self.shares.low / wider, self.shares.high * wider

    @property
    def source(self) -> str:
        """Where the shares are from, in one line."""
        return words.taken_over(self.shares.source) if self.derived else self.shares.source


@lru_cache(maxsize=256)
def expert_rates(gpu: Gpu, dtype: str) -> ExpertRates | str:
    """The rates of a GPU, or a sentence that says what is missing."""
    if (why := no_units(gpu, dtype)) is not None:
        return why
    of_type = _shares().get("bf16" if dtype == "fp16" else dtype, {})
    own = of_type.get(gpu.name)
    shares = own or _like(of_type, gpu.compute_capability)
    if shares is None:
        return words.unmeasured(gpu.title, dtype)
    return rates_of(gpu, dtype, shares, derived=own is None)


def rates_of(gpu: Gpu, dtype: str, shares: ExpertShares, *, derived: bool = False) -> ExpertRates | str:
    """These shares of a GPU's datasheet, or a sentence that says what the datasheet lacks."""
    size, math = _TYPES[dtype]
    peak = gpu.peak(math)
    if peak is None and dtype == "nvfp4" and (fp8 := gpu.peak("fp8")) is not None:
        peak = 2 * fp8  # the shares are of twice the fp8 peak
    if peak is None or gpu.sms is None or gpu.bandwidth_gbps is None:
        return words.datasheet_lacks(gpu.title, math)
    return ExpertRates(gpu.sms, peak, gpu.bandwidth_gbps, size, shares, derived)


def _like(known: dict[str, ExpertShares], capability: tuple[int, int] | None) -> ExpertShares | None:
    """The shares of a GPU of the same architecture: compute capability to the first digit, nearest below."""
    if capability is None:
        return None
    of = {name: find_gpu(None, override=name).compute_capability or (0, 0) for name in known}
    near = [name for name, at in of.items() if at[0] == capability[0] and at <= capability]
    return known[max(near, key=of.__getitem__)] if near else None


@lru_cache(maxsize=1)
def _shares() -> dict[str, dict[str, ExpertShares]]:
    text = resources.files("tracelens.gemm.predict").joinpath("experts.toml").read_text(encoding="utf-8")
    return {
        dtype: {gpu: ExpertShares(**figures) for gpu, figures in gpus.items()}
        for dtype, gpus in tomllib.loads(text).items()
    }
