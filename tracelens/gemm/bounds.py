"""What a kernel's tile and launch grid say of its sizes where no operator gives them.

A kernel that launches one CTA per output tile has ceil(M / tile_m) * ceil(N / tile_n) of them, so each
count along an axis pins that axis to a range one tile wide. How the counts stand in the grid was checked,
per family, on every GEMM with recorded shapes in public traces (H100, A100, RTX 3060: 4,688 calls, 300
distinct pairs of kernel and shape); families without such a check give no bounds at all:

- legacy: grid (tiles along N, tiles along M, slices of K or batch), where the first number of the tile
  lies along N. sgemm of Volta and Ampere (Volta: no shapes recorded, but a model of batch 512 shows 512 =
  grid y * tile under tiles of 32, 64 and 128 alike), and Ampere's s16816gemm (against known weights).
- cutlass2: CUTLASS's GemmIdentityThreadblockSwizzle<8> (cutlass/gemm/threadblock/threadblock_swizzle.h)
  multiplies grid x, the tiles along M, by 8, 4, 2 or 1 for at least 6, 3, 2 or 1 tiles along N, and divides
  grid y by the same. One grid can then mean several tilings; the ranges hold all of them.
- sm80_xmma on CUDA cores: grid (tiles along M, tiles along N, slices of K), no swizzle seen.

Nothing follows from persistent kernels (nvjet, sm90_xmma: the grid counts SMs), from stream-K, from kernels
without a tile (gemv, Triton) or from AMD's grids, which count threads. The ranges are in torch's row-major
view as ``kernel_fields`` defines it, for an output that is row-major in memory, as torch allocates it.

Fused attention forward launches one CTA per block of queries, head and sequence, too: flash2 as (blocks,
batch, heads) in flash_fwd_launch_template.h, mem_efficient as (blocks, heads, batch) in kernel_forward.h.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tracelens.gemm.kernel_names import KernelName

Range = tuple[int, int]  # inclusive

#: Legacy kernels whose grids were checked, see above. Split-K ones by name were not.
_CHECKED_LEGACY = re.compile(r"^(?:volta|ampere)_sgemm_\d+x\d+_|^ampere_(?:\w+_)?s16816gemm_(?!\w*splitK)")
#: Unsplit FlashAttention-2; flash_fwd_splitkv_kernel has another grid.
_FLASH2_FORWARD = re.compile(r"(?<![a-z_])flash_fwd_kernel")
#: A larger dimension would not fit: kernels then loop, or CUDA refuses the launch.
_LARGEST_GRID_X, _LARGEST_GRID_YZ = 2**31 - 1, 65535
#: (factor, fewest and most tiles along N it is chosen for), GemmIdentityThreadblockSwizzle<8>::get_log_tile.
_SWIZZLES = ((8, 6, None), (4, 3, 5), (2, 2, 2), (1, 1, 1))


@dataclass(frozen=True, slots=True)
class ShapeBounds:
    """Inclusive ranges of M and N; ``boxes`` are the (M, N) ranges that go together, one per tiling.

    ``batch`` is None where grid z can be the batch or the slices of K. ``layout`` is the kernel's.
    """

    m: Range
    n: Range
    batch: int | None
    layout: str | None
    boxes: tuple[tuple[Range, Range], ...]

    def holds(self, m: int | None, n: int | None) -> bool:
        """Can the product have this M and N? None leaves a dimension open.

        >>> bounds = ShapeBounds((129, 256), (641, 768), 1, "TN", (((129, 256), (641, 768)),))
        >>> bounds.holds(197, 768), bounds.holds(None, 2304)
        (True, False)
        """
        return any(_inside(m, box_m) and _inside(n, box_n) for box_m, box_n in self.boxes)


def bound_shape(
    kernel: KernelName, grid: tuple[int, int, int] | None, *, plain: bool = False
) -> ShapeBounds | None:
    """Ranges of M and N from the kernel's tile and launch grid, or None where they bound nothing.

    ``plain`` says that the operator is a single product (``aten::mm``, ``aten::addmm``): grid z is then
    K's slices. See the module's docstring for the families and how they were checked.

    >>> name = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn"
    >>> kernel = KernelName(name, "gemm", "legacy", tile_m=64, tile_n=128)
    >>> bounds = bound_shape(kernel, (18, 4, 1))
    >>> bounds.m, bounds.n, bounds.batch
    ((193, 256), (2177, 2304), 1)
    """
    if kernel.kind != "gemm" or kernel.tile is None or grid is None or kernel.scheduler is not None:
        return None
    x, y, z = grid
    if not _launchable(grid):
        return None
    tilings = _tilings(kernel, x, y)
    if not tilings:
        return None
    tile_m, tile_n = kernel.tile
    boxes = tuple((_range(rows, tile_m), _range(columns, tile_n)) for rows, columns in tilings)
    return ShapeBounds(
        m=_hull([box[0] for box in boxes]),
        n=_hull([box[1] for box in boxes]),
        batch=1 if z == 1 or plain else None,
        layout=kernel.layout,
        boxes=boxes,
    )


@dataclass(frozen=True, slots=True)
class AttentionBounds:
    """Sizes of a fused attention forward; ``head_dim`` is the kernel's own, at least the true one."""

    batch: int
    heads: int
    query_len: Range
    head_dim: int | None

    def describe(self) -> str:
        """One short line for a table.

        >>> AttentionBounds(1, 12, (129, 256), 64).describe()
        'b=1 h=12 s 129–256 d≤64'
        """
        low, high = self.query_len
        text = f"b={self.batch} h={self.heads} s {low}–{high}"
        return text + (f" d≤{self.head_dim}" if self.head_dim else "")


def bound_attention(kernel: KernelName, grid: tuple[int, int, int] | None) -> AttentionBounds | None:
    """Sizes of a fused attention forward from its tile and grid, or None where they bound nothing.

    Only unsplit kernels on a full batch: a split over keys changes the grid's meaning, and so do packed
    sequences (``batch`` then counts them and the range is that of the longest).

    >>> name = "fmha_cutlassF_f32_aligned_64x64_rf_sm80(AttentionKernel::Params)"
    >>> kernel = KernelName(name, "attention", "mem_efficient", tile_m=64, direction="forward")
    >>> bound_attention(kernel, (16, 8, 4))
    AttentionBounds(batch=4, heads=8, query_len=(961, 1024), head_dim=None)
    """
    if kernel.kind != "attention" or kernel.tile_m is None or kernel.direction != "forward" or grid is None:
        return None
    blocks, second, third = grid
    if not _launchable(grid):
        return None
    query_len = _range((blocks, blocks), kernel.tile_m)
    if _FLASH2_FORWARD.search(kernel.name):
        return AttentionBounds(second, third, query_len, kernel.head_dim)
    if kernel.family == "mem_efficient":
        return AttentionBounds(third, second, query_len, None)
    return None


def _launchable(grid: tuple[int, int, int]) -> bool:
    return min(grid) >= 1 and grid[0] <= _LARGEST_GRID_X and max(grid[1:]) < _LARGEST_GRID_YZ


def _tilings(kernel: KernelName, x: int, y: int) -> list[tuple[Range, Range]]:
    """(tiles along M, tiles along N) that grid x and y can mean, as ranges; empty for unchecked families."""
    if kernel.family == "legacy" and _CHECKED_LEGACY.search(kernel.name):
        return [((y, y), (x, x))]
    if kernel.family == "sm80_xmma" and kernel.tensor_core is False:
        return [((x, x), (y, y))]
    if kernel.family == "cutlass2":
        return _unswizzled(x, y)
    return []


def _unswizzled(x: int, y: int) -> list[tuple[Range, Range]]:
    """Undo CUTLASS's swizzle: every factor that divides x and fits the tiles along N that y then means."""
    found = []
    for factor, fewest, most in _SWIZZLES:
        low = max((y - 1) * factor + 1, fewest)
        high = y * factor if most is None else min(y * factor, most)
        if x % factor == 0 and low <= high:
            found.append(((x // factor, x // factor), (low, high)))
    return found


def _range(tiles: Range, size: int) -> Range:
    return (tiles[0] - 1) * size + 1, tiles[1] * size


def _hull(ranges: list[Range]) -> Range:
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _inside(value: int | None, bounds: Range) -> bool:
    return value is None or bounds[0] <= value <= bounds[1]
