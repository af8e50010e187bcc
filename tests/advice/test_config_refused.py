"""Files of models that are no stack of layers: refused for what they are, with a remedy that helps."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.advice import configs
from tests.advice.configs import written
from tests.said import Listener
from tracelens.config import read_config
from tracelens.config.projections import projections
from tracelens.errors import InputError

#: By kind: each as transformers writes it, with its defaults.
REFUSED = {
    "stages": ("segformer", "swin", "pvt", "mobilevit", "focalnet", "superpoint", "clap_audio_model"),
    "objects": ("detr", "deformable_detr", "rt_detr", "mask2former", "grounding-dino", "sam"),
    "pictures": ("vit_mae", "blip_vision_model", "qwen2_vl_vision", "pixtral", "vivit", "flava_image_model"),
    "sound": ("wav2vec2", "wav2vec2-bert", "wavlm", "audio-spectrogram-transformer", "qwen2_audio_encoder"),
    "codes": ("encodec", "dac", "mimi", "csm"),
    "series": ("patchtst", "timesfm", "time_series_transformer"),
    "towers": ("clip", "siglip", "clap", "owlvit", "vision-text-dual-encoder", "pe_audio"),
    "latents": ("perceiver", "blip_2_qformer"),
    "own pairs": ("pix2struct", "speech_to_text", "moonshine", "vision-encoder-decoder", "t5gemma2_decoder"),
    "own layers": ("mobilebert", "funnel", "nystromformer", "lilt", "dbrx", "layoutlmv3", "hrm_text"),
    "scans": ("mamba", "mamba2", "jamba", "falcon_h1", "granitemoehybrid", "zamba2", "nemotron_h"),
    "delta": ("qwen3_next", "qwen3_5", "olmo_hybrid"),
    "convolutions": ("convnext", "lfm2", "efficientnet", "timm_backbone"),
    "no vocabulary": ("bark", "upernet", "colpali"),
}  # fmt: skip
#: What a user can tell of them, and what reading them then takes.
TOLD: dict[str, dict[str, int]] = {
    "helium": {},
    "roberta-prelayernorm": {},
    "ctrl": {"ffn": 8192},
    "xlm": {"hidden": 2048, "ffn": 8192},
}
#: in_proj and out_proj of these, or what stands for them.
_MIXERS = ("mamba", "mamba2", "jamba", "bamba", "falcon_h1", "granitemoehybrid", "nemotron_h", "zamba2",
           "qwen3_next", "qwen3_5_text", "olmo_hybrid")  # fmt: skip
_INTO = ("in_proj", "in_proj_qkvz", "in_proj_qkv", "q_proj")


@cache
def _table(kind: str) -> dict[str, Any]:
    transformers = pytest.importorskip("transformers")
    found: dict[str, Any] = json.loads(
        json.dumps(transformers.AutoConfig.for_model(kind).to_dict(), default=str)
    )
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("group", REFUSED)
def test_what_is_no_stack_of_layers_is_refused_for_what_it_is(
    tmp_path: Path, group: str, said: Listener
) -> None:
    for kind in REFUSED[group]:
        for gated in (None, True):  # no flag helps
            with pytest.raises(InputError) as caught:
                read_config(written(tmp_path, _table(kind)), gated=gated)
            text = str(caught.value)
            assert "--" not in text.replace(" -- train.py", "") and "\n" not in text and len(text) < 400
        said(text)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", TOLD)
def test_flags_that_are_named_are_all_that_is_missing(tmp_path: Path, kind: str, said: Listener) -> None:
    path = written(tmp_path, _table(kind))
    with pytest.raises(InputError) as caught:
        read_config(path)
    said(caught.value)
    for size in ("hidden", "heads", "layers", "ffn", "vocab", "gated"):
        assert (f"--{size}" in str(caught.value)) == (size in TOLD[kind] or size == "gated")
    assert read_config(path, overrides=TOLD[kind], gated=False).model.parameters


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", _MIXERS)
def test_gemms_around_a_scan_are_those_of_the_model(kind: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(kind)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    linears = [
        (name.rpartition(".")[2], one) for name, one in model.named_modules() if hasattr(one, "in_features")
    ]
    into, out = (tuple(map(int, gemm.split("x")[1:])) for gemm in projections(config.to_dict()))
    assert into in {(one.out_features, one.in_features) for name, one in linears if name in _INTO}
    assert out in {
        (one.out_features, one.in_features) for name, one in linears if name in ("out_proj", "o_proj")
    }


def test_sizes_of_a_scan_that_are_no_numbers_name_no_gemm() -> None:
    wrong: tuple[dict[str, object], ...] = (
        {"hidden_size": "wide"},
        {"hidden_size": True},
        {"hidden_size": 768, "expand": 2**40},
        {},
    )
    for odd in wrong:
        assert projections({"expand": 2} | odd) == ()
    assert projections({"linear_num_value_heads": 4, "hidden_size": 64}) == ()


def test_experts_of_a_family_that_is_not_known_can_be_judged_alone(tmp_path: Path, said: Listener) -> None:
    with pytest.raises(InputError) as caught:
        read_config(written(tmp_path, configs.MIXTRAL_8X7B | {"model_type": "zebra"}), gated=True)
    said(caught.value)


@pytest.mark.parametrize(
    "table",
    [
        {
            "_class_name": "UNet2DConditionModel",
            "_diffusers_version": "0.30.0",
            "block_out_channels": [320, 640],
        },
        {"peft_type": "LORA", "base_model_name_or_path": "some/model", "r": 8},
    ],
)
def test_other_libraries_files_are_named(tmp_path: Path, table: dict[str, Any], said: Listener) -> None:
    with pytest.raises(InputError) as caught:
        read_config(written(tmp_path, table))
    said(caught.value)
