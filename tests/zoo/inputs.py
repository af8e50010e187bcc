"""What the profiler wrote down of an operator's inputs."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tests.synthetic.kernel_names import BF16

SIZES = {BF16: 2, "float": 4, "double": 8, "long int": 8, "long": 8, "int": 4, "bool": 1, "unsigned char": 1}


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the profiler wrote down of an operator's inputs."""

    sizes: list[list[int]]
    strides: list[list[int]]
    types: list[str]
    concrete: list[str]

    def elements(self, i: int) -> int:
        return prod(self.sizes[i])

    def bytes(self, i: int) -> int:
        return self.elements(i) * SIZES.get(self.types[i], 0)

    @property
    def tensors(self) -> list[int]:
        """Positions of the inputs that are tensors with dimensions."""
        return [i for i, kind in enumerate(self.types) if kind in SIZES and self.sizes[i]]

    def broadcast(self) -> list[int]:
        """The shape of an elementwise result."""
        shape: list[int] = []
        for i in self.tensors:
            padded = [1] * (len(shape) - len(self.sizes[i])) + self.sizes[i]
            shape = [1] * (len(padded) - len(shape)) + shape
            shape = [max(p, q) for p, q in zip(shape, padded, strict=True)]
        return shape

    def total(self) -> int:
        """Elements of all tensors of the first list among the inputs; 0 of a list of more than 30."""
        sizes: Any = self.sizes[self.types.index("TensorList")]
        return sum(prod(size) for size in sizes)
