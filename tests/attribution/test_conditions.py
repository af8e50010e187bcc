"""Normalizations and what is said of a sample (time, class), row by row."""

from __future__ import annotations

from pathlib import Path

from tests.attribution.rows import mm
from tests.attribution.test_parts import ADD, ATTENTION, BATCH, MLP, NORM, STREAM, WIDTH, _found, _row


def test_weights_cast_for_a_normalization_are_of_it(tmp_path: Path) -> None:
    """diffusers models/normalization.py, FP32LayerNorm: input, weight and bias in float32."""
    cast, weight = _row("norm", "copy_", STREAM, STREAM), _row("norm", "copy_", [WIDTH], [WIDTH])
    norm = _row("norm", "native_layer_norm", STREAM, [], [WIDTH], [WIDTH])
    normed = [cast, weight, weight, norm, cast]
    _found(tmp_path, 3 * [*normed, *ATTENTION[1:], ADD, *normed, *MLP[1:], ADD])


def test_a_shift_for_each_sample_is_of_the_normalization(tmp_path: Path) -> None:
    """diffusers transformers/hunyuan_transformer_2d.py, AdaLayerNormShift: norm(x) + shift[:, None]."""
    shift = _row("norm", "add", STREAM, [BATCH, 1, WIDTH])
    _found(tmp_path, 3 * [NORM, shift, *ATTENTION[1:], ADD, *MLP, ADD])


def test_sines_of_a_time_embed_it(tmp_path: Path) -> None:
    """diffusers models/embeddings.py, get_timestep_embedding."""
    half, rows = [WIDTH // 2], [BATCH, WIDTH // 2]
    waves = [_row("embedding", "arange", half), _row("embedding", "exp", half)]
    waves += [_row("embedding", "mul", [BATCH, 1], [1, *half])]
    waves += [_row("embedding", name, rows) for name in ("sin", "cos")]
    waves += [_row("embedding", "cat", rows, rows), mm("embedding", BATCH, WIDTH, WIDTH)]
    _found(tmp_path, [*waves, *(3 * [*ATTENTION, ADD, *MLP, ADD])])
