"""The tiles a library would choose among, by architecture and type.

Order and lists follow NVIDIA's "Matrix Multiplication Background User's Guide" (typical tile dimensions in
cuBLAS, most to least efficient) and the kernel names of public traces: ``volta_fp16_s884gemm`` and
``ampere_fp16_s16816gemm`` (powers of two), nvjet on Hopper (also 192x192, 160x128, 192x128, 96x64 ...), nvjet
on Blackwell. A library holds more; what is missing differs little from a neighbour in the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.gemm.efficiency import usable_sms
from tracelens.gemm.kernel_names import KernelName
from tracelens.hardware import Gpu


@dataclass(frozen=True, slots=True)
class Tile:
    """One kernel a library could run: the output it computes per CTA and what clusters leave of the GPU."""

    m: int  # along M of out[M,N]
    n: int
    k: int  # K is padded to a multiple of it
    cluster: str | None = None  # "2x1"; None where the name does not say, taken as no cluster
    may_split: bool = True  # may it slice K

    @property
    def cluster_size(self) -> int:
        first, _, second = (self.cluster or "1x1").partition("x")
        return int(first) * int(second)

    def slots(self, sms: int) -> int:
        """Tiles in flight: the SMs that clusters can fill, halfway between the known bounds."""
        size = self.cluster_size
        if sms < size:
            return sms
        least, most = usable_sms(sms, cluster_size=size)
        return max((least + most) // 2 // size * size, size)


def _tiles(pairs: str, k: int, cluster: str | None = None) -> tuple[Tile, ...]:
    sides = [pair.split("x") for pair in pairs.split()]
    return tuple(Tile(int(m), int(n), k, cluster) for m, n in sides)


_POWERS = "256x128 128x256 128x128 256x64 64x256 128x64 64x128 64x64"
_VOLTA = _tiles(_POWERS, 32)
_AMPERE = _tiles(f"{_POWERS} 32x128 128x32 32x64 64x32", 64)
_HOPPER = (
    *_tiles("128x256 256x128 192x192 160x128 128x160 192x128 128x192", 64, "2x1"),
    *_tiles("128x128 64x256 256x64 128x64 64x128 96x64 64x96 64x64 64x32 32x64", 64, "1x1"),
)
_BLACKWELL = (
    *_tiles("256x256 128x256 256x128 192x256 256x192", 64, "2x1"),
    *_tiles("128x128 128x192 192x128 64x256 256x64 128x64 64x128 64x64 64x32 32x64", 64, "1x1"),
)
#: Hopper and Blackwell below 16-byte rows, which neither TMA nor wgmma's kernels take: cutlass_80 (align2,
#: align4) and cutlass_75 (align1) kernels of H100 and H200 traces.
_NARROW = _tiles("256x128 128x256 128x128 128x64 64x128 64x64 32x32", 32)
#: fp32 on CUDA cores: ampere_sgemm, cutlass_80_simt_sgemm and sm80_xmma of public traces.
_CUDA_CORES = _tiles("256x128 128x256 128x128 128x64 64x128 64x64 32x128 128x32 32x32", 8)


def candidate_tiles(gpu: Gpu, math_dtype: str, *, aligned: bool = True) -> tuple[Tile, ...]:
    """Tiles the library of ``gpu`` chooses among for operands multiplied in ``math_dtype``.

    ``aligned``: every row begins on a multiple of 16 bytes.
    """
    if math_dtype in ("fp32", "fp64"):
        return _CUDA_CORES
    major = gpu.compute_capability[0] if gpu.compute_capability else 8
    if not aligned and major in (9, 10):
        return _NARROW
    # Blackwell's GeForce (12.x) has no tcgen05 unit and runs sm80 kernels (cutlass_80_* in its traces).
    return {7: _VOLTA, 9: _HOPPER, 10: _BLACKWELL}.get(major, _AMPERE)


def tiles_of_kernel(kernel: KernelName) -> tuple[Tile, ...]:
    """The tile a kernel's name states; both orders where it leaves the order open; () where it has none."""
    if kernel.tile is not None:
        pairs = [kernel.tile]
    elif kernel.tile_pair is not None:
        pairs = [kernel.tile_pair, (kernel.tile_pair[1], kernel.tile_pair[0])]
    else:
        return ()
    may_split = kernel.split_k is not False
    return tuple(
        Tile(m, n, kernel.tile_k or 32, kernel.cluster, may_split) for m, n in pairs if m > 0 and n > 0
    )
