"""Vision transformers in a planned step: tokens from patches, and no vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.said import Listener
from tracelens.config import Configuration, read_config
from tracelens.config.training import Training
from tracelens.errors import InputError, UsageError
from tracelens.suggestions import suggest

VIT: dict[str, Any] = {
    "model_type": "vit", "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 24,
    "intermediate_size": 4096, "image_size": 224, "patch_size": 16,
}  # fmt: skip
DINO: dict[str, Any] = {
    "model_type": "dinov2", "hidden_size": 1536, "num_attention_heads": 24, "num_hidden_layers": 40,
    "mlp_ratio": 4, "image_size": 518, "patch_size": 14, "use_swiglu_ffn": True,
}  # fmt: skip


def _read(folder: Path, table: dict[str, Any], **sizes: int) -> Configuration:
    path = folder / "config.json"
    path.write_text(json.dumps(table))
    return read_config(path, overrides=sizes)


@pytest.mark.parametrize(
    ("table", "tokens"),
    [
        (VIT, 14 * 14 + 1),
        (VIT | {"model_type": "deit"}, 14 * 14 + 2),
        (VIT | {"model_type": "siglip_vision_model"}, 14 * 14),
        (VIT | {"model_type": "siglip2_vision_model", "num_patches": 256}, 256),
        (VIT | {"model_type": "dinov3_vit", "num_register_tokens": 4}, 14 * 14 + 5),
        (VIT | {"image_size": [224, 448], "patch_size": [16, 16]}, 14 * 28 + 1),
        (VIT | {"image_size": 230}, 14 * 14 + 1),
        (DINO, 37 * 37 + 1),
    ],
)
def test_tokens_are_patches_and_what_stands_beside_them(
    tmp_path: Path, table: dict[str, Any], tokens: int
) -> None:
    found = _read(tmp_path, table)
    assert (found.model.sequence, found.model.vocab) == (tokens, 0)
    assert not found.layout.causal and "vocab" not in found.sources


def test_the_gate_of_dinov2_giant_and_its_weights(tmp_path: Path) -> None:
    found = _read(tmp_path, DINO)
    assert (found.model.ffn, found.model.gated, found.layout.fused_gate) == (4096, True, True)
    assert (found.model.parameters or 0) == 40 * (4 * 1536**2 + 3 * 1536 * 4096)
    assert _read(tmp_path, VIT).model.parameters == 24 * 12 * 1024**2
    assert _read(tmp_path, VIT | {"model_type": "dinov3_vit", "use_gated_mlp": True}).model.gated


def test_a_step_has_no_logits_and_no_loss(tmp_path: Path, said: Listener) -> None:
    found = suggest(_read(tmp_path, VIT), gpu="h100", training=Training(gpus=8))
    assert not {"logits", "loss"} & {one.component for one in found.components}
    assert "vocab" not in found.searched and "vocab" not in found.sizes
    assert found.step is not None and 0.1 < (found.step.mfu_frac.mid or 0) < 0.6
    said(found.notes)


@pytest.mark.parametrize(
    ("table", "sizes", "error"),
    [
        (VIT, {"vocab": 1000}, UsageError),
        (VIT | {"patch_size": None}, {}, InputError),
        (VIT | {"patch_size": 0}, {}, InputError),
        (VIT | {"image_size": 8}, {}, InputError),
        (VIT | {"image_size": [224, "wide"]}, {}, InputError),
        (VIT | {"hidden_size": None}, {}, InputError),
    ],
)
def test_what_cannot_be_read_is_said(
    tmp_path: Path, table: dict[str, Any], sizes: dict[str, int], error: type[Exception], said: Listener
) -> None:
    with pytest.raises(error) as caught:
        _read(tmp_path, table, **sizes)
    said(str(caught.value))


def test_a_given_length_needs_no_image(tmp_path: Path) -> None:
    assert _read(tmp_path, VIT | {"image_size": None}, sequence=1024).model.sequence == 1024
