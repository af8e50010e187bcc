"""Tensors of the simulated program: sizes, strides, and how the profiler writes them down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.synthetic.autograd import Leaf, Node

Shape = tuple[int, ...]

BF16, F32, I64, BOOL = "c10::BFloat16", "float", "long int", "bool"
DTYPE_CODE = {BF16: 15, F32: 6, I64: 4, BOOL: 11}  # at::ScalarType
ITEM_SIZE = {BF16: 2, F32: 4, I64: 8, BOOL: 1}


def contiguous(shape: Shape) -> Shape:
    """Row-major strides."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor without its numbers; ``node`` and ``slot`` say which output of which autograd node it is."""

    shape: Shape
    strides: Shape
    dtype: str = BF16
    node: Node | Leaf | None = None
    slot: int = 0

    @property
    def elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def dense(self) -> bool:
        """Rows lie one after the other, so a reshape needs no copy."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


def tensor(shape: Shape, dtype: str = BF16) -> Value:
    return Value(tuple(shape), contiguous(tuple(shape)), dtype)


def like(shape: Shape, source: Value, dtype: str | None = None) -> Value:
    """A dense tensor with the dimension order of ``source``, as elementwise ops make their result."""
    order = sorted(range(len(shape)), key=lambda i: (source.strides[i], -i))
    strides, step = [0] * len(shape), 1
    for i in order:
        strides[i] = step
        step *= shape[i]
    return Value(shape, tuple(strides), dtype or source.dtype)


@dataclass(frozen=True, slots=True)
class Literal:
    """An argument whose text or type is not that of a Python value."""

    text: str
    kind: str = "Scalar"


NUMBER = Literal("", "double")  # a Python number wrapped into a tensor, as in x * 0.5


Argument = Value | list[Value] | tuple[int, ...] | Literal | bool | int | float | None


def _number(value: float) -> str:
    """As ATen prints doubles: "0.001", "2.", "1.0000000000000001e-05"."""
    text = f"{value:.17g}"
    return text if "." in text or "e" in text else text + "."


def _describe(argument: Argument) -> tuple[Any, Any, str, str]:
    if isinstance(argument, Value):
        return list(argument.shape), list(argument.strides), argument.dtype, ""
    if isinstance(argument, list):
        return [list(v.shape) for v in argument], [list(v.strides) for v in argument], "TensorList", ""
    if argument is None:
        return [], [], "", ""
    if isinstance(argument, tuple):
        return [], [], "ScalarList", "[" + ", ".join(map(str, argument)) + "]"
    if isinstance(argument, Literal):
        return [], [], argument.kind, argument.text
    if isinstance(argument, float):
        return [], [], "Scalar", _number(argument)
    return [], [], "Scalar", str(argument)


def arguments(inputs: tuple[Argument, ...]) -> dict[str, Any]:
    """The four lists of record_shapes, in the order the profiler writes them."""
    described = [_describe(argument) for argument in inputs]
    return {
        "Concrete Inputs": [d[3] for d in described],
        "Input type": [d[2] for d in described],
        "Input Strides": [d[1] for d in described],
        "Input Dims": [d[0] for d in described],
    }
