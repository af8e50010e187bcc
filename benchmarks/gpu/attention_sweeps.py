"""The list of fused attention calls that are measured: pure, as the list of products."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from benchmarks.gpu.model_shapes import MODELS
from tracelens.hardware.measurements import MeasuredBackend
from tracelens.measure.cases import AttentionCase

_SEED = 20240125  # of the order


def attention_sweep() -> list[AttentionCase]:
    """Every call of the calibration, each once; those of cuDNN last, for it plans each new shape."""
    cases = [case for sweep in _SWEEPS for case in sweep()]
    result = list({replace(case, sweep=""): case for case in reversed(cases)}.values())
    random.Random(_SEED).shuffle(result)
    result.sort(key=lambda case: case.backend == "cudnn")
    return result


def _both(case: AttentionCase, backends: tuple[MeasuredBackend, ...] = ("flash",)) -> Iterator[AttentionCase]:
    """Forward and backward, by each of the backends."""
    for backend in backends:
        for direction in ("forward", "backward"):
            yield replace(case, direction=direction, backend=backend)


def _head_dims() -> Iterator[AttentionCase]:
    """I: every head dimension that is a multiple of 8."""
    for head_dim in range(32, 257, 8):
        for causal in (True, False):
            case = AttentionCase("head_dim", 4, 16, 2048, head_dim, causal=causal)
            yield from _both(case, ("flash", "cudnn", "efficient"))
    for head_dim in (8, 16, 24):  # the paper's smallest, which no model has
        yield from _both(AttentionCase("head_dim", 4, 16, 2048, head_dim, causal=False))
    for head_dim in (64, 80, 96, 128):
        case = AttentionCase("head_dim", 4, 16, 2048, head_dim, dtype="fp16")
        yield from _both(case, ("flash", "cudnn"))


def _sequences() -> Iterator[AttentionCase]:
    for sequence in (128, 197, 256, 257, 512, 577, 729, 1000, 1023, 1024, 1025, 1536, 2000, 2047, 2049, 3072,
                     4096, 4097, 8192):  # fmt: skip
        for head_dim in (64, 80, 128):
            for causal in (True, False):
                batch = max(1, 8192 // sequence)
                case = AttentionCase("sequence", batch, 16, sequence, head_dim, causal=causal)
                yield from _both(case, ("flash", "cudnn") if causal and head_dim == 128 else ("flash",))


def _heads() -> Iterator[AttentionCase]:
    """Batch times heads against the SM count, and hidden size shared among fewer, wider heads."""
    for heads in (1, 2, 4, 8, 12, 16, 20, 24, 25, 32, 33, 40, 48, 64, 66, 96, 128, 132):
        yield from _both(AttentionCase("heads", 1, heads, 2048, 128))
    for heads in (10, 16, 20, 32, 40, 64, 80):
        yield from _both(AttentionCase("heads_2560", 4, heads, 2048, 2560 // heads))
    for heads in (16, 32, 64, 128):
        yield from _both(AttentionCase("heads_4096", 4, heads, 2048, 4096 // heads))


def _grouped() -> Iterator[AttentionCase]:
    groups = (*((32, kv) for kv in (32, 16, 8, 4, 2, 1)), (28, 4), (24, 8), (64, 8))
    for heads, kv_heads in groups:
        for head_dim in (64, 128):
            for sequence in (1024, 4096):
                case = AttentionCase("grouped", 4096 // sequence, heads, sequence, head_dim, kv_heads)
                yield from _both(case, ("flash", "cudnn") if head_dim == 128 else ("flash",))


def _model_attention() -> Iterator[AttentionCase]:
    for family, layer, _ in MODELS.values():
        sequences = (layer.sequence,) if family == "vit" else (layer.sequence, 1024)
        for sequence in sequences:
            batch = max(1, min(layer.micro_batch, 8192 // sequence))
            case = AttentionCase(
                f"model_{family}", batch, layer.heads, sequence, layer.head_dim, kv_heads=layer.kv_heads,
                causal=layer.causal,
            )  # fmt: skip
            yield from _both(case, ("flash", "cudnn"))


_SWEEPS: tuple[Callable[[], Iterable[AttentionCase]], ...] = (
    _head_dims, _sequences, _heads, _grouped, _model_attention,
)  # fmt: skip
