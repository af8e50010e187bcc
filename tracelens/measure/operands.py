"""Random operands without a fresh allocation per shape: views into a few large pools."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from tracelens.measure.cases import CannotMeasure
from tracelens.measure.devices import L2_FACTOR, guarded
from tracelens.measure.timing import Device
from tracelens.numbers import round_up

TORCH_DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp8": torch.float8_e4m3fn,
}
#: What the caching allocator aligns every tensor to (kMinBlockSize of c10/cuda/CUDACachingAllocator).
ALIGNMENT_BYTES = 512
_SEED = 2401_14489
_CHUNK = 1 << 24  # elements drawn at once for types without a generator of their own
_ROUND_BYTES = 1 << 26


class Pools:
    """Standard normal numbers and room for results, one pool per dtype, grown when a case needs more.

    Real values matter: on zeros, or on few distinct values, a GPU draws less power and clocks higher than
    in training. Tensors are taken one after the other, from the start again at the end of the pool; a
    pool is larger than three L2s and than the operands of one call together.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._pools: dict[tuple[str, str], torch.Tensor] = {}
        self._next: dict[tuple[str, str], int] = {}

    def reserve(self, *wanted: tuple[str, str, Sequence[int]]) -> None:
        """Make room for tensors of (purpose, dtype, sizes in elements) that do not overlap.

        Purpose is "in" (random numbers) or "out" (written before it is read). Where memory runs short the
        pools of other dtypes are given up first; ``CannotMeasure`` when that is not enough.
        """
        try:
            for one in wanted:
                self._grow(*one)
        except CannotMeasure:
            self._pools.clear()
            if self._device.kind == "cuda":
                torch.cuda.empty_cache()
            for one in wanted:
                self._grow(*one)

    def _grow(self, purpose: str, dtype: str, sizes: Sequence[int]) -> None:
        item = TORCH_DTYPES[dtype].itemsize
        step = ALIGNMENT_BYTES // item
        needed = max(L2_FACTOR * self._device.l2_bytes // item, sum(round_up(one, step) for one in sizes))
        needed = round_up(needed, _ROUND_BYTES // item if self._device.kind == "cuda" else step)
        key = (purpose, dtype)
        if key in self._pools and self._pools[key].numel() >= needed:
            return
        self._pools.pop(key, None)  # before the larger one is made
        self._next[key] = 0
        self._pools[key] = guarded(
            lambda: self._made(needed, TORCH_DTYPES[dtype], drawn=purpose == "in"),
            what=f"{needed * item / 1e9:.3g} GB of operands",
        )

    def take(self, purpose: str, dtype: str, shape: Sequence[int]) -> torch.Tensor:
        """A contiguous view of the given shape; views taken later wrap around and share memory."""
        pool = self._pools[(purpose, dtype)]
        size = prod(shape)
        start = self._next[(purpose, dtype)]
        if start + size > pool.numel():
            start = 0
        step = ALIGNMENT_BYTES // pool.element_size()
        self._next[(purpose, dtype)] = start + round_up(size, step)
        return pool[start : start + size].view(tuple(shape))

    def rotation(self, footprint_bytes: int, *, most: int) -> int:
        """How many sets of operands to rotate among, so that each is cold when its turn comes again."""
        return max(1, min(most, -(-L2_FACTOR * self._device.l2_bytes // max(footprint_bytes, 1))))

    def _made(self, elements: int, dtype: torch.dtype, *, drawn: bool) -> torch.Tensor:
        where = self._device.torch_device
        pool = torch.empty(elements, dtype=dtype, device=where)
        if not drawn:
            return pool
        generator = torch.Generator(device=where).manual_seed(_SEED)
        if dtype.itemsize > 1:
            return pool.normal_(generator=generator)
        for start in range(0, elements, _CHUNK):
            part = pool[start : start + _CHUNK]
            part.copy_(torch.randn(part.numel(), dtype=torch.float32, device=where, generator=generator))
        return pool


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """‖found - wanted‖ / ‖wanted‖ in float64; NaN stays NaN."""
    difference = found.double() - wanted.double()
    return float(difference.norm() / wanted.double().norm().clamp_min(1e-30))


def refuse_unless(condition: bool, why: str) -> None:
    """Raise ``CannotMeasure`` with the reason."""
    if not condition:
        raise CannotMeasure(why)
