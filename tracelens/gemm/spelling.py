"""How people write a product on a command line: sizes, layouts, element types."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tracelens.errors import UsageError

#: cuBLAS's opA, opB of a linear layer's three products (see ``shapes``), and themselves.
LAYOUTS = {
    "forward": "TN", "dgrad": "NN", "wgrad": "NT", "TN": "TN", "NN": "NN", "NT": "NT", "TT": "TT",
}  # fmt: skip
ROLES = {"TN": "forward", "NN": "dgrad", "NT": "wgrad"}
DTYPES = ("bf16", "fp16", "fp8", "fp8-block", "nvfp4", "tf32", "fp32", "fp64", "int8")
_ALIASES = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32",
    "float64": "fp64", "double": "fp64", "float8": "fp8", "e4m3": "fp8", "e5m2": "fp8",
    "fp8_block": "fp8-block",
}  # fmt: skip
#: Types that no prediction is fitted to -> the nearest with one.
_NEAREST = {"mxfp8": "fp8-block", "mxfp4": "nvfp4", "fp4": "nvfp4"}
_LARGEST = 2**40  # as in ``predict``
_NUMBER = "[0-9]{1,20}"
_BETWEEN = r"(?:\s*[x×*,]\s*|\s+)"
_SIZES = re.compile(
    rf"\s*(?:({_NUMBER})\s*@\s*)?({_NUMBER}){_BETWEEN}({_NUMBER}){_BETWEEN}({_NUMBER})\s*", re.IGNORECASE
)
_SHOWN = 60  # characters of a wrong word that an error repeats


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of out[M,N] = a[M,K] @ b[K,N], ``batch`` times."""

    m: int
    n: int
    k: int
    batch: int = 1


def parse_sizes(text: str, *, batch: int | None = None) -> Sizes:
    """Read ``MxNxK``, ``M,N,K`` or ``M N K``, with the batch in front (``B@MxNxK``) or as ``batch``.

    Raises ``UsageError`` for anything else, for sizes below 1 or above 2^40, and for two batches that differ.

    >>> parse_sizes("8192x50257x2560"), parse_sizes("96@1024, 1024, 64")
    (Sizes(m=8192, n=50257, k=2560, batch=1), Sizes(m=1024, n=1024, k=64, batch=96))
    """
    match = _SIZES.fullmatch(text)
    if match is None:
        start = f"cannot read {shown(text)} as a GEMM: " if text.strip() else ""
        raise UsageError(
            f"{start}give M, N and K of out[M,N] = a[M,K] @ b[K,N],"
            " e.g. 8192x50257x2560, or 96@1024x1024x64 for a batch of 96"
        )
    before = None if match[1] is None else int(match[1])
    m, n, k = (int(match[at]) for at in (2, 3, 4))
    if before is not None and batch is not None and before != batch:
        raise UsageError(f"the batch is {before} before the @ and {batch} in --batch: give one of them")
    sizes = {"M": m, "N": n, "K": k, "batch": before if before is not None else batch}
    for name, value in sizes.items():
        if value is not None and not 1 <= value <= _LARGEST:
            raise UsageError(f"{name} = {value}: sizes of a GEMM are whole numbers from 1 to 2^40")
    return Sizes(m, n, k, sizes["batch"] or 1)


def parse_layout(text: str) -> str:
    """Read a layout or the role that has it.

    >>> parse_layout("wgrad"), parse_layout("tn")
    ('NT', 'TN')
    """
    found = LAYOUTS.get(text) or LAYOUTS.get(text.lower()) or LAYOUTS.get(text.upper())
    if found is None:
        raise UsageError(f"unknown layout {shown(text)}: use {', '.join(LAYOUTS)}")
    return found


def parse_dtype(text: str) -> str:
    """Read an element type in the project's words or in torch's.

    >>> parse_dtype("BF16"), parse_dtype("torch.float16")
    ('bf16', 'fp16')
    """
    word = text.lower().removeprefix("torch.")
    word = _ALIASES.get(word, word)
    if (near := _NEAREST.get(word)) is not None:
        raise UsageError(f"{word} is not predicted, as there were no times to fit: use {near} as the nearest")
    if word not in DTYPES:
        raise UsageError(
            f"unknown element type {shown(text)}: use {', '.join(DTYPES)} (tf32: fp32 data on tensor cores)"
        )
    return word


def shown(text: str) -> str:
    """Quote what a user wrote, cut to a length that fits a line.

    >>> shown("x" * 70) == repr("x" * 59 + "…")
    True
    """
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")
