"""What is said of a layer of experts: values of Python, and of ``tracelens gemm --experts --json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from tracelens.errors import InputError
from tracelens.results.described import says
from tracelens.results.estimates import Estimate
from tracelens.results.study import GpuJson
from tracelens.words import Direction

SCHEMA_VERSION = "1.0"

#: The largest size of a dimension, and the most experts.
_LARGEST, _MOST_EXPERTS = 2**31, 2**14


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """A mixture of experts: sizes of the whole layer, and how it is cut over GPUs.

    ``hidden`` is the model's dimension, ``inter`` one expert's. ``ep`` GPUs hold experts / ep each, and
    ``tp`` GPUs an inter / tp wide slice of every expert. ``gated``: a gate is multiplied beside the up
    projection (SwiGLU). Raises ``InputError`` where that does not divide.
    """

    hidden: int
    inter: int
    experts: int
    top_k: int
    ep: int = 1
    tp: int = 1
    gated: bool = True
    exchanged: Annotated[bool, says("an all-to-all brings the rows: a GPU sees its own tokens alone")] = False

    def __post_init__(self) -> None:
        for name in ("hidden", "inter", "experts", "top_k", "ep", "tp"):
            value, most = getattr(self, name), _MOST_EXPERTS if name == "experts" else _LARGEST
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise InputError(f"{name} = {value!r}: give a whole number from 1 to {most}")
        if self.top_k > self.experts:
            raise InputError(f"a token cannot choose {self.top_k} of {self.experts} experts")
        if self.experts % self.ep:
            raise InputError(f"{self.experts} experts cannot be spread evenly over {self.ep} GPUs")
        if self.inter % self.tp:
            raise InputError(f"experts {self.inter} wide cannot be cut into {self.tp} equal slices")


@dataclass(frozen=True, slots=True)
class GroupedTile:
    """One grouped GEMM, out[rows, n] = a[rows, k] @ b[k, n] with each expert's own b, and its tiles."""

    name: str  # "up" (with the gate), "down"; backward: "up dgrad", "up wgrad", ...
    n: int
    k: int
    time_us: float
    tile: tuple[int, int]
    tiles: Annotated[float, says("expected, over all experts of the GPU")]
    waves: int
    idle_frac: Annotated[float, says("of the tiles' places in the waves, those that hold none")]
    padded_frac: Annotated[float, says("of the tiles' rows, those that hold no token")]


@dataclass(frozen=True, slots=True)
class ExpertsPrediction:
    """What one layer of experts takes on the busiest GPU of its group. ``unknown`` says why there is no mid.

    ``tokens`` are those of the whole expert-parallel group. Rows are tokens times the experts that each
    chose, here those of the busiest GPU, expected where the load is drawn.
    """

    layer: ExpertLayer
    tokens: int
    gpu: str
    dtype: str
    direction: Direction
    load: str  # "balanced", "power-law:1.2"
    row_multiple: Annotated[int, says("rows of each expert are padded to a multiple of it")]
    capacity: Annotated[float | None, says("rows beyond so many times the mean are dropped")]
    time_us: Estimate
    rows: float
    padded_rows: Annotated[float, says("of them and of the padding to row_multiple")]
    dropped_frac: Annotated[float, says("of the rows, beyond the capacity")]
    active_experts: float
    rows_per_expert: Annotated[tuple[float, ...], says("of the fullest expert of the GPU first")]
    imbalance: Annotated[float, says("rows of the busiest GPU over those of an even load")]
    gemms: tuple[GroupedTile, ...] = ()
    parts_us: Mapping[str, float] = field(default_factory=dict, hash=False)  # they add up to the mid
    unknown: str | None = None
    source: str | None = None

    @property
    def tflops(self) -> float | None:
        """TFLOP/s of this GPU's rows at the mid estimate, padding not counted."""
        mid, one = self.time_us.mid, self.layer
        if not mid:
            return None
        wide = (3 if one.gated else 2) * one.inter // one.tp
        passes = 2 if self.direction == "backward" else 1
        return 2.0 * passes * self.rows * one.hidden * wide / mid / 1e6


@dataclass(frozen=True, slots=True)
class ExpertsChange:
    """One thing changed, all else the same; tokens per GPU stay where the expert-parallel degree changes."""

    name: str
    change: Mapping[str, list[Any]] = field(hash=False)  # parameter -> [from, to]
    prediction: ExpertsPrediction
    time_ratio: Annotated[float | None, says("time over that of the layer asked, for as many tokens per GPU")]


class ExpertsJson(msgspec.Struct, frozen=True):
    """What ``tracelens gemm --experts --json`` prints: the layer, and what would change it."""

    schema_version: str
    tool_version: str
    gpu: GpuJson
    prediction: ExpertsPrediction
    changes: list[ExpertsChange]
