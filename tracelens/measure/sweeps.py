"""The shapes that ``tracelens bench`` measures: what transformers train, and where quantization shows.

Each sweep is ordered from coarse to fine and sweeps are interleaved evenly, so that a run that is cut off
has a part of everything. Pure lists; needs neither torch nor a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TypeVar

from tracelens.measure.cases import BACKENDS, AttentionCase, GemmCase
from tracelens.words import DIRECTIONS

_T = TypeVar("_T")

#: (hidden, width of q+k+v together, width of the MLP's inner layer, vocabulary) as published.
_MODELS = (
    (768, 2304, 3072, 50257),  # GPT-2, BERT-like
    (1024, 3072, 4096, 30522),  # BERT large
    (2048, 3072, 8192, 128256),  # Llama 3.2 1B
    (2560, 7680, 10240, 50304),  # GPT-3 2.7B, the paper's example; Pythia 2.8B
    (3584, 4608, 18944, 152064),  # Qwen2.5 7B
    (4096, 6144, 14336, 128256),  # Llama 3 8B
    (5120, 15360, 13824, 32000),  # Llama 2 13B
    (8192, 10240, 28672, 128256),  # Llama 3 70B
)
_TOKENS = (2048, 8192, 16384)
#: Steps off a round size: odd, 4, 8, 16, ... bytes of two-byte elements, and back to round.
_OFFSETS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_SQUARES = (512, 1024, 2048, 4096, 6144, 8192, 12288, 16384)
#: Above this many elements in one operand a case says little more and costs memory and time.
_LARGEST_OPERAND = 2**31


def default_gemms(*, sms: int, dtypes: Sequence[str] = ("bf16", "fp16", "fp8", "tf32")) -> list[GemmCase]:
    """The default set for a GPU with ``sms`` multiprocessors, most useful first, each shape once.

    The first dtype is measured in full, the others where they differ: at the ceiling, a sixth of the
    transformers' products, and the alignment staircases.
    """
    sweeps: list[list[GemmCase]] = []
    for index, dtype in enumerate(dtypes):
        layouts = ("TN",) if dtype == "fp8" else ("TN", "NN", "NT")
        models = _transformer(dtype, layouts)
        sweeps.append(models if index == 0 else models[: len(models) // 6])
        sweeps.append(_alignment(dtype, layouts, bases=(2048, 8192) if index == 0 else (2048,)))
        if index == 0:
            sweeps += [_wave(dtype, sms), _depth(dtype), _small(dtype), _batched(dtype)]
    squares = [
        GemmCase("square", size, size, size, dtype=dtype)
        for size in (8192, *(size for size in _SQUARES if size != 8192))
        for dtype in dtypes
        if dtype != "fp32" or size <= 8192
    ]
    return _each_once([*squares, *interleave(*sweeps)])


def default_attention(*, dtypes: Sequence[str] = ("bf16",)) -> list[AttentionCase]:
    """Fused attention by head dimension, length, heads and backend, forward and backward."""
    dtype = next((one for one in dtypes if one in ("bf16", "fp16")), None)
    if dtype is None:
        return []
    ways = list(product(BACKENDS[:2], DIRECTIONS))
    head_dims = [
        AttentionCase("head_dim", 4, 16, 2048, dim, dtype=dtype, direction=way, backend=backend)
        for dim in range(32, 257, 8)
        for backend, way in ways
    ]
    lengths = [
        AttentionCase(
            "sequence", max(1, 16384 // length), 16, length, dim, dtype=dtype, direction=way, backend=backend
        )
        for length in (256, 512, 1000, 1024, 1537, 2047, 4096, 8192, 16384)
        for dim in (64, 128)
        for backend, way in ways
    ]
    kinds = [
        AttentionCase(
            "kind", 4, 32, 2048, 128, kv, dtype=dtype, causal=causal, direction=way, backend=backend
        )
        for kv in (32, 8, 1)
        for causal in (True, False)
        for backend, way in product(BACKENDS, DIRECTIONS)
    ]
    heads = [
        AttentionCase("heads", 1, count, 2048, 128, dtype=dtype, direction=way)
        for count in (1, 2, 4, 8, 12, 20, 25, 40, 64, 96)
        for way in DIRECTIONS
    ]
    return _each_once(interleave(*(coarse_to_fine(one) for one in (head_dims, lengths, kinds, heads))))


def dry_run() -> tuple[list[GemmCase], list[AttentionCase]]:
    """A handful of tiny cases that the CPU runs in a second, one refused among them."""
    gemms = [
        GemmCase("dry", m, 48, 32, dtype=dtype, layout=layout)
        for m, dtype, layout in product((33, 40), ("bf16", "tf32"), ("TN", "NN", "NT"))
    ]
    attention = [
        AttentionCase("dry", 1, 4, 17, 16, kv_heads=2, direction=way, backend=backend)
        for way, backend in product(DIRECTIONS, BACKENDS[:2])
    ]
    return [*gemms, GemmCase("dry", 32, 32, 32, batch=2, dtype="fp8")], attention


def coarse_to_fine(cases: Sequence[_T]) -> list[_T]:
    """Reorder so that any beginning is spread over the whole (the van der Corput sequence).

    >>> coarse_to_fine([0, 1, 2, 3, 4, 5, 6, 7])
    [0, 4, 2, 6, 1, 5, 3, 7]
    """
    width = max(len(cases) - 1, 1).bit_length()
    order = sorted(range(len(cases)), key=lambda index: int(f"{index:0{width}b}"[::-1], 2))
    return [cases[index] for index in order]


def interleave(*sweeps: Sequence[_T]) -> list[_T]:
    """Merge so that any beginning holds about the same share of each sweep.

    >>> interleave("abcd", "xy")
    ['a', 'x', 'b', 'c', 'y', 'd']
    """
    placed = [((index + 0.5) / len(sweep), one) for sweep in sweeps for index, one in enumerate(sweep)]
    return [one for _, one in sorted(placed, key=lambda pair: pair[0])]


def _transformer(dtype: str, layouts: Sequence[str]) -> list[GemmCase]:
    cases = []
    for (hidden, qkv, inner, vocab), tokens in product(_MODELS, _TOKENS):
        for outputs, inputs in (
            (qkv, hidden),
            (hidden, hidden),
            (inner, hidden),
            (hidden, inner),
            (vocab, hidden),
        ):
            roles = {
                "TN": (tokens, outputs, inputs),  # forward: y = x w^T
                "NN": (tokens, inputs, outputs),  # gradient of the input
                "NT": (outputs, inputs, tokens),  # gradient of the weight
            }
            cases += [
                GemmCase("transformer", *roles[layout], dtype=dtype, layout=layout) for layout in layouts
            ]
    return coarse_to_fine([case for case in cases if case.m * case.n <= _LARGEST_OPERAND])


def _alignment(dtype: str, layouts: Sequence[str], *, bases: Sequence[int]) -> list[GemmCase]:
    """One dimension leaves a round size while the others stay; and vocabularies around GPT-2's."""
    cases = []
    for base, side, layout, offset in product(bases, range(3), layouts, _OFFSETS):
        # torch refuses fp8 products whose N or K is no multiple of 16: one such case says so.
        if dtype == "fp8" and side != 0 and offset % 16 and (side, offset) != (1, 8):
            continue
        m, n, k = (base + (offset if at == side else 0) for at in range(3))
        cases.append(GemmCase("alignment", m, n, k, dtype=dtype, layout=layout))
    if dtype != "fp8":
        cases += [
            GemmCase("alignment", 8192, vocab, 768, dtype=dtype)
            for vocab in (50256, 50257, 50258, 50260, 50264, 50272, 50288, 50304, 50432)
        ]
    return coarse_to_fine(cases)


def _wave(dtype: str, sms: int) -> list[GemmCase]:
    """N, then M, grows by small steps through several waves of the GPU's multiprocessors.

    2304 × N × 4096 is the sweep of the paper (arXiv:2401.14489). In the second, twelve rows of
    128-row tiles: a column of tiles more every 128 or 256 of N, a wave every ``sms`` / 12 columns.
    """
    columns = -(-sms // 12)
    return coarse_to_fine(
        [
            *(GemmCase("wave", 2304, n, 4096, dtype=dtype) for n in range(1536, 6145, 64)),
            *(GemmCase("wave", 1536, n, 4096, dtype=dtype) for n in range(512, 3 * 256 * columns + 1, 128)),
            *(GemmCase("wave", m, 4096, 4096, dtype=dtype) for m in range(512, 8193, 128)),
        ]
    )


def _depth(dtype: str) -> list[GemmCase]:
    return coarse_to_fine(
        [
            GemmCase("depth", 4096, 4096, k, dtype=dtype, layout=layout)
            for layout, k in product(
                ("TN", "NT"), (64, 128, 256, 512, 1024, 1536, 2048, 3072, 6144, 8192, 16384, 32768)
            )
        ]
    )


def _small(dtype: str) -> list[GemmCase]:
    """Products that do not fill the GPU: small models, experts with few tokens each."""
    cubes = [GemmCase("small", size, size, size, dtype=dtype) for size in (64, 128, 192, 256, 384, 768)]
    experts = [
        GemmCase("small", m, n, k, dtype=dtype)
        for m, (n, k) in product(
            (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024), ((4096, 1024), (2048, 7168), (7168, 2048))
        )
    ]
    return coarse_to_fine([*cubes, *experts])


def _batched(dtype: str) -> list[GemmCase]:
    """Unfused attention: scores q k^T (TN) and values p v (NN), by heads, length and head dimension."""
    cases = []
    for batch, length, dim in product((32, 96, 256), (512, 1024, 2048), (40, 64, 72, 80, 96, 128)):
        if batch * length * length <= _LARGEST_OPERAND // 2:
            cases.append(GemmCase("batched", length, length, dim, batch, dtype, "TN"))
            cases.append(GemmCase("batched", length, dim, length, batch, dtype, "NN"))
    return coarse_to_fine(cases)


def _each_once(cases: Sequence[_T]) -> list[_T]:
    """Without cases that differ in the name of their sweep alone."""
    seen: dict[str, _T] = {}
    for case in cases:
        seen.setdefault(str(case), case)
    return list(seen.values())
