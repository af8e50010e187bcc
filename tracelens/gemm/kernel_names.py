"""What a kernel's name says: is it a GEMM or attention kernel, of which library, with which tile."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from tracelens.gemm.attention_rules import ATTENTION_RULES
from tracelens.gemm.gemm_rules import CONVOLUTION, GEMM_RULES, NOT_GEMM
from tracelens.gemm.kernel_fields import NameRule, Sizes
from tracelens.gemm.mangled import demangled
from tracelens.results import KernelKind

if TYPE_CHECKING:
    from tracelens.trace import Trace


@dataclass(frozen=True, slots=True)
class KernelName:
    """A GEMM or attention kernel as its name describes it; None = the name does not say.

    Tiles are in torch's row-major orientation: ``tile_m`` lies along M of out[M,N]. For attention,
    ``tile_m`` counts query rows and ``tile_n`` keys. A tile is what one CTA computes, also where two SMs
    share an instruction. ``tile_pair`` keeps the two numbers in the kernel's own order, also where that is
    unknown (then ``tile_m``/``tile_n`` are set only if they are equal).
    """

    name: str
    kind: KernelKind
    family: str  # nvjet, sm80_xmma, sm90_xmma, cutlass2, cutlass3, legacy, gemv, flash2, ...
    tile_m: int | None = None
    tile_n: int | None = None
    tile_k: int | None = None
    tile_pair: tuple[int, int] | None = None
    stages: int | None = None
    cluster: str | None = None  # CTAs per cluster as written, "2x1"
    split_k: bool | None = None  # the factor is not in any name: see ``split_k_factor``
    scheduler: Literal["persistent", "stream_k"] | None = None
    alignment_elements: int | None = None  # of the contiguous operand dimensions, in elements
    layout: str | None = None  # cuBLAS opA, opB: TN (y = x W^T), NN (dgrad), NT (wgrad)
    tensor_core: bool | None = None
    in_dtype: str | None = None
    out_dtype: str | None = None
    math_dtype: str | None = None  # what the multiplier runs in: "tf32" for fp32 data on tensor cores
    direction: str | None = None  # attention: forward | backward
    head_dim: int | None = None  # attention
    sizes: Sizes | None = None  # M, N and K that were compiled in; None of one that a launch sets

    @property
    def tile(self) -> tuple[int, int] | None:
        """(tile_m, tile_n) in torch's orientation, or None."""
        if self.tile_m is None or self.tile_n is None:
            return None
        return self.tile_m, self.tile_n

    @property
    def cluster_size(self) -> int | None:
        """CTAs per cluster; 1 for families that predate clusters, None where the name does not say."""
        if self.cluster is not None:
            first, second = self.cluster.split("x")
            return int(first) * int(second)
        return 1 if self.family in _WITHOUT_CLUSTERS else None


#: By the code of a name in ``Trace.symbols``; None for one that is no GEMM or attention kernel.
KernelNames = list[KernelName | None]

#: Thread-block clusters came with sm90; these families are built for sm80 and earlier.
_WITHOUT_CLUSTERS = frozenset({
    "sm80_xmma", "sm86_xmma", "sm89_xmma", "cutlass2", "cutlass2_template", "legacy", "gemmsn", "gemv",
    "flash2",
})  # fmt: skip
#: Families that split K through grid z (seen: ampere_sgemm (4, 16, 3), sm80_xmma (2, 32, 6), cutlass2
#: (8, 2, 5) followed by a splitKreduce_kernel, all on plain two-dimensional products).
_SPLIT_THROUGH_GRID_Z = frozenset({"sm80_xmma", "sm86_xmma", "cutlass2", "legacy"})


_CLUSTER = re.compile(r"(\d+)x(\d+)")
_ENDLESS = re.compile(r"\d{20}")  # no size
_LARGEST = 1 << 16  # of a tile's sides, stages, elements of alignment


@lru_cache(maxsize=8192)
def parse_kernel_name(name: str) -> KernelName | None:
    """What ``name`` states, or None when it is not a GEMM or attention kernel.

    Convolutions, fused pointwise kernels that carry a GEMM's name and kernels of unknown origin all
    give None. Nothing is half-parsed: a name that was cut off, or that says more than its family's grammar
    knows, or sizes that cannot be, gives its family and no tile. Works on demangled and mangled names.

    >>> kernel = parse_kernel_name("nvjet_tst_144x128_64x6_2x1_v_bz_bias_TNN")
    >>> kernel.family, kernel.tile, kernel.tile_k, kernel.cluster_size, kernel.layout
    ('nvjet', (128, 144), 64, 2, 'TN')
    >>> parse_kernel_name("triton_poi_fused_addmm_gelu_view_17") is None
    True
    """
    text = demangled(name) or name
    if NOT_GEMM.search(text):
        return None
    for rule in ATTENTION_RULES:
        if (match := rule.pattern.search(text)) is not None:
            return _build(name, rule, match)
    if CONVOLUTION.search(text):
        return None
    for rule in GEMM_RULES:
        if (match := rule.pattern.search(text)) is not None:
            return _build(name, rule, match)
    return None


def kernel_names(trace: Trace) -> KernelNames:
    """What the kernels of a trace are by their names: the one place where those are parsed."""
    names: KernelNames = [None] * len(trace.symbols)
    for code in sorted(set(trace.kernels.name.tolist())):
        names[code] = parse_kernel_name(trace.symbols[code])
    return names


def row_fields(kernel: KernelName | None) -> dict[str, Any]:
    """The fields of a ``GemmRow`` that its kernel's name says.

    >>> row_fields(parse_kernel_name("void gemmk1_kernel<int>()"))["kernel_tensor_core"]
    False
    """
    if kernel is None:
        return {"kernel_family": "unknown", **dict.fromkeys(_UNSAID)}
    return {
        "kernel_family": kernel.family,
        "kernel_kind": kernel.kind,
        "kernel_dtype": kernel.in_dtype,
        "kernel_layout": kernel.layout,
        "kernel_tensor_core": kernel.tensor_core,
        "kernel_alignment": kernel.alignment_elements,
        "kernel_head_dim": kernel.head_dim or None,
        **{name: getattr(kernel, name) for name in _UNSAID},
    }


def gemm_among(names: Iterable[str]) -> KernelName | None:
    """The first GEMM kernel of a call."""
    kernels = (parse_kernel_name(name) for name in names)
    return next((kernel for kernel in kernels if kernel is not None and kernel.kind == "gemm"), None)


#: Fields of a row without a default.
_UNSAID = ("cluster", "scheduler", "tile_m", "tile_n", "tile_k")


def split_k_factor(kernel: KernelName, *, grid: tuple[int, int, int] | None, batch: int) -> int | None:
    """Into how many slices K is split, from the name and the launch grid; None where neither tells.

    sm80-era kernels put the slices in grid z, which a batched product uses for its batch: a z equal to
    the batch leaves nothing to slice. A name that rules split-K out (nvjet without ``splitK``) gives 1.

    >>> split_k_factor(parse_kernel_name("ampere_sgemm_128x64_nn"), grid=(4, 16, 3), batch=1)
    3
    """
    if kernel.kind != "gemm":
        return None
    if kernel.split_k is False:
        return 1
    if kernel.family not in _SPLIT_THROUGH_GRID_Z or grid is None or grid[2] < 1:
        return None
    if batch == 1:
        return grid[2]
    return 1 if grid[2] == batch else None


def _build(name: str, rule: NameRule, match: re.Match[str]) -> KernelName:
    family = rule.family.format(**match.groupdict()) if "{" in rule.family else rule.family
    fields = {} if _ENDLESS.search(match.string) else rule.read(match)
    if not all(map(_possible, fields.values())):
        fields = {}
    return KernelName(name=name, kind=rule.kind, family=family, **fields)


def _possible(value: object) -> bool:
    """Whether a size, a pair of sizes or a cluster can be one: a name can say 0x0."""
    if isinstance(value, tuple):
        return all(map(_possible, value))
    if isinstance(value, str) and (pair := _CLUSTER.fullmatch(value)) is not None:
        return _possible(int(pair[1])) and _possible(int(pair[2]))
    return not isinstance(value, int) or isinstance(value, bool) or 0 < value <= _LARGEST
