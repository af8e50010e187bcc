"""A tile: what one CTA of a kernel computes of the output, and what its clusters leave of the GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tracelens.gemm.efficiency import usable_sms
from tracelens.gemm.kernel_names import KernelName


@dataclass(frozen=True, slots=True)
class Tile:
    """One kernel a library could run: the output it computes per CTA and what clusters leave of the GPU."""

    m: int  # along M of out[M,N]
    n: int
    k: int  # K is padded to a multiple of it
    cluster: str | None = None  # as kernel names write it, N first: "2x1"; None is taken as no cluster
    may_split: bool = True  # may it slice K
    above_m: float = 0.0  # it is taken where M is above this
    to_m: float = math.inf  # and at most that

    @property
    def clusters(self) -> tuple[int, int]:
        """CTAs of a cluster along M and along N (nvjet writes N first, see ``kernel_fields``)."""
        first, _, second = (self.cluster or "1x1").partition("x")
        return int(second), int(first)

    @property
    def cluster_size(self) -> int:
        return self.clusters[0] * self.clusters[1]

    def slots(self, sms: int) -> int:
        """Tiles in flight: the SMs that clusters can fill, halfway between the known bounds."""
        size = self.cluster_size
        if sms < size:
            return sms
        least, most = usable_sms(sms, cluster_size=size)
        return max((least + most) // 2 // size * size, size)


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
