"""Vision transformers in a planned step: tokens from patches, and no vocabulary."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.said import Listener
from tracelens.config import Configuration, read_config
from tracelens.config.training import Training
from tracelens.errors import InputError, UsageError
from tracelens.hardware import find_gpu
from tracelens.step.planned_change import total
from tracelens.step.planned_step import Planner
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
    assert found.step.step_ms.basis == "heuristic"  # every published step is of a decoder
    said([*found.notes, *found.step.notes])


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


#: huggingface/pytorch-image-models aa4b5850, results/benchmark-infer-amp-nchw-pt240-cu124-rtx3090.csv,
#: -pt291-cu128-4090 and -pt291-cu130-5090: ms of a forward in fp16, PyTorch 2.4 and 2.9, by batch; hidden,
#: heads, layers, MLP, pixels and patch. Nothing is fitted to it.
_TIMM: list[tuple[tuple[int, ...], dict[str, tuple[int, float]]]] = [
    ((384, 6, 12, 1536, 224, 16), {"rtx-3090": (1024, 223.3), "rtx-4090": (1024, 124.6),
     "rtx-5090": (1024, 93.3)}),
    ((768, 12, 12, 3072, 224, 16), {"rtx-3090": (1024, 651.9), "rtx-4090": (1024, 342.1),
     "rtx-5090": (1024, 261.5)}),
    ((768, 12, 12, 3072, 384, 16), {"rtx-3090": (1024, 2008), "rtx-4090": (1024, 1059),
     "rtx-5090": (1024, 869.5)}),
    ((1024, 16, 24, 4096, 224, 16), {"rtx-3090": (1024, 2104), "rtx-4090": (1024, 1073),
     "rtx-5090": (1024, 924.1)}),
    ((1024, 16, 24, 4096, 384, 16), {"rtx-3090": (768, 4820), "rtx-4090": (1024, 3277),
     "rtx-5090": (1024, 2841)}),
    ((1280, 16, 32, 5120, 224, 14), {"rtx-3090": (1024, 5567), "rtx-4090": (1024, 2762),
     "rtx-5090": (1024, 2430)}),
    ((1024, 16, 24, 4096, 518, 14), {"rtx-3090": (384, 6526), "rtx-4090": (384, 3352),
     "rtx-5090": (512, 3756)}),
]  # fmt: skip


@pytest.mark.parametrize(("gpu", "most"), [("rtx-3090", 0.06), ("rtx-4090", 0.06), ("rtx-5090", 0.25)])
def test_forwards_as_timm_measured_them(tmp_path: Path, gpu: str, most: float) -> None:
    errors = []
    for (hidden, heads, layers, ffn, pixels, patch), measured in _TIMM:
        batch, took = measured[gpu]
        sizes = {"hidden_size": hidden, "num_attention_heads": heads, "num_hidden_layers": layers}
        table = VIT | sizes | {"intermediate_size": ffn, "image_size": pixels, "patch_size": patch}
        config = _read(tmp_path, table, micro_batch=batch)
        planner = Planner(config.layout, gpu=find_gpu(None, override=gpu), dtype="fp16")
        time = total(part.time_ms for part in planner.step(config.model).parts if part.role == "forward")
        assert time.low < took < time.high, (gpu, table)
        errors.append(abs(math.log(time.mid / took)))
    assert statistics.median(errors) < most


def test_a_given_length_needs_no_image(tmp_path: Path) -> None:
    assert _read(tmp_path, VIT | {"image_size": None}, sequence=1024).model.sequence == 1024
