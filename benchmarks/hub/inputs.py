"""Single inputs of models of `transformers`: pictures, clips, sounds, series, and how they are laid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.hub.configs import inside
from benchmarks.hub.values import known

#: How pictures and sounds are laid: as most models take them, as others do, as the first and beside text even
#: where no part of the configuration is for them, as rows of patches; text alone, and text with its kinds.
LAYOUTS = ("usual", "further", "all", "rows", "text", "marked")
_SIDES = ("image_size", "input_size", "crop_size")
_LISTED = ("spatial_shapes", "pixel_position_ids", "image_position_ids")
#: Rows and columns of patches where pictures come as lists of patches.
GRID = 16


@dataclass
class Inputs:
    """What an input is made from."""

    model: nn.Module
    config: Any
    main: str
    names: tuple[str, ...]
    dtype: torch.dtype
    layout: str

    @property
    def text(self) -> Any:
        return getattr(self.config, "text_config", None) or self.config

    @property
    def vision(self) -> Any:
        return getattr(self.config, "vision_config", None) or self.config

    def floats(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.dtype, device="meta")

    def ids(self, rows: int = 4, length: int = 64) -> Tensor:
        return torch.zeros(rows, length, dtype=torch.int64, device="meta")

    def says(self, *keys: str) -> Any:
        """The first of ``keys`` that the configuration, or one inside it, says; vision first."""
        for config in (self.vision, *inside(self.config)):
            for key in keys:
                value = _said(config, key)
                if value is not None:
                    return value
        return None

    @property
    def pictured(self) -> bool:
        """Are pictures taken beside text?"""
        return "vision_config" in self.config.__dict__ or self.layout == "all"

    @property
    def rows(self) -> range:
        """Pictures of a batch."""
        few = self.flat or self.listed or self.clips or self.layout in ("all", "rows")
        return range(4 if few else 8)

    @property
    def listed(self) -> bool:
        """Does each picture come as a list of patches?"""
        return any(
            name in self.names for name in ("spatial_shapes", "pixel_position_ids", "image_position_ids")
        )

    @property
    def clips(self) -> bool:
        """Is a picture a clip?"""
        return isinstance(_said(self.vision, "num_frames"), int)

    def pixel_values(self) -> Tensor:
        channels = channels_of(self)
        further = self.layout == "further"
        if self.flat and self.layout == "rows":
            return self.floats(1, 4 * GRID * GRID, channels, *[self.patch_side()] * 2)
        if self.flat and not further:
            return self.floats(4 * GRID * GRID, self.patch_width())
        if self.flat:  # patches as small pictures
            return self.floats(4 * GRID * GRID, channels, *[self.patch_side()] * 2)
        if (self.listed and not further) or self.layout == "rows":
            return self.floats(4, GRID * GRID, self.patch_width())
        sides = side_of(_said(self.vision, "image_size") or self.says(*_SIDES) or 224)
        if "prompt_pixel_values" in self.names:  # which the model puts above
            sides = (sides[1], sides[1])
        frames = [int(self.vision.num_frames)] if self.clips else []
        if further and not frames:  # two pictures for each row of text, or frames of a clip
            frames = [2]
        return self.floats(len(self.rows), *frames, channels, *sides)

    @property
    def flat(self) -> bool:
        """Do pictures come as one list of patches of all?"""
        return any(name in self.names for name in ("image_grid_thw", "grid_thw", "image_grid_hw"))

    def patch_width(self) -> int:
        times = self.says("temporal_patch_size") or (2 if self.layout == "all" else 1)
        return channels_of(self) * int(times) * self.patch_side() ** 2

    def patch_side(self) -> int:
        side = self.says("patch_size") or 14
        return int(side[-1] if isinstance(side, (list, tuple)) else side)

    def input_features(self) -> Tensor:
        config = self.config
        width: Any = getattr(config, "num_mel_bins", None)
        width = width or getattr(config, "feature_projection_input_dim", None)
        width = (
            width or self.says("num_mel_bins", "input_feat_size", "input_dim", "feature_size", "n_mels") or 80
        )
        turned = "whisper" in config.model_type or self.layout == "further"
        shape = (4, width, 3000) if turned else (4, 600, width)
        return self.floats(*shape)


def _said(config: Any, key: str) -> Any:
    try:
        return getattr(config, key, None)
    except (AttributeError, RuntimeError):  # one that differs from layer to layer
        return None


def side_of(size: Any) -> tuple[int, ...]:
    """Height and width."""
    if isinstance(size, int):
        return size, size
    return tuple(size.values()) if isinstance(size, dict) else tuple(size)


def channels_of(given: Inputs) -> int:
    vision = given.vision
    for key in ("num_channels", "in_channels", "in_chans", "num_input_channels"):
        value = _said(vision, key)
        if isinstance(value, int):
            return value
    return 3


def _grid(given: Inputs) -> Tensor:
    return known(torch.tensor([[1, GRID, GRID]] * 4))


def _patches(given: Inputs) -> Tensor:
    """Patches of pictures, or frames of sound, for a part that is given no more than ``hidden_states``."""
    if given.flat:
        return given.floats(4 * GRID * GRID, given.patch_width())
    width = int(given.says("input_dim", "input_size", "hidden_size", "d_model") or 768)
    return given.floats(4, *((width, 512) if given.layout == "further" else (512, width)))


def _waves(given: Inputs) -> Tensor:
    channels = [1] if given.layout == "further" else []
    return given.floats(4, *channels, 61440 if given.layout == "all" else 64000)


def _clip(given: Inputs) -> Tensor:
    frames = int(given.says("num_frames", "frames_per_clip") or 8)
    sides = side_of(given.says("image_size", "crop_size") or 224)
    return given.floats(2, frames, channels_of(given), *sides)


def _ones(*shape: int) -> Callable[[Inputs], Tensor]:
    return lambda given: known(torch.ones(shape, dtype=torch.int64))


def _sizes(given: Inputs) -> Tensor | None:
    """Sides of each picture, for models that ask for them: others would cut by them."""
    if given.layout == "usual":
        return None
    height, width = side_of(given.says("image_size") or 224)[:2]
    return known(torch.tensor([[height, width]] * len(given.rows)))


def _past(given: Inputs) -> int:
    lags = given.says("lags_sequence") or (0,)
    return int(given.says("context_length") or 64) + int(max(lags))


def _series(given: Inputs) -> Tensor:
    many = given.says("input_size", "num_input_channels") or 1
    return given.floats(4, _past(given), *([many] if many > 1 else []))


def _marked(given: Inputs) -> Tensor:
    return known(_marks(given))


def _marks(given: Inputs) -> Tensor:
    """Which tokens stand for a picture: one run of them in each row of text."""
    length = 512
    merged = int(given.says("spatial_merge_size", "merge_size") or 2) ** 2
    marks = torch.zeros(4, length, dtype=torch.int64)
    marks[:, 16 : 16 + GRID * GRID // merged] = 1
    return marks


def marked_ids(given: Inputs, ids: Tensor) -> Tensor:
    """Tokens that hold the model's sign for a picture as often as there are parts of pictures."""
    sign = given.says("image_token_id", "image_token_index")
    if not given.flat or not isinstance(sign, int) or ids.shape[1] < 512:
        return ids
    return known(_marks(given) * sign)


def _future(given: Inputs) -> int:
    return int(given.says("prediction_length") or 24)


def _times(given: Inputs, length: int) -> Tensor:
    return given.floats(4, length, int(given.says("num_time_features") or 0))


GIVEN: dict[str, Callable[[Inputs], Any]] = {
    "input_ids": lambda given: given.ids(),
    "pixel_values": Inputs.pixel_values,
    "input_features": Inputs.input_features,
    "input_values": _waves,
    "audio_values": _waves,
    "visual_feats": lambda given: given.floats(4, 36, int(given.says("visual_feat_dim") or 2048)),
    "visual_pos": lambda given: given.floats(4, 36, int(given.says("visual_pos_dim") or 4)),
    "grid_thw": _grid,
    "image_grid_thw": _grid,
    "image_grid_hw": lambda given: known(torch.tensor([[GRID, GRID]] * 4)),
    "spatial_shapes": lambda given: known(torch.tensor([[GRID, GRID]] * 4)),
    "pixel_attention_mask": lambda given: (
        _ones(4, GRID * GRID)(given) if "spatial_shapes" in given.names else None
    ),
    "hidden_states": _patches,
    "pixel_values_videos": _clip,
    "image_sizes": _sizes,
    "input_features_mask": lambda given: _heard(given),
    "feature_attention_mask": lambda given: _heard(given),
    "feature_lens": lambda given: known(torch.tensor([600] * 4)),
    "chunk_sample_lengths": lambda given: known(torch.tensor([600] * 4)),
    "past_values": _series,
    "past_time_features": lambda given: _times(given, _past(given)),
    "past_observed_mask": lambda given: torch.ones_like(_series(given)),
    "future_values": lambda given: (
        given.floats(4, _future(given)) if "past_time_features" in given.names else None
    ),
    "future_time_features": lambda given: _times(given, _future(given)),
    "mm_token_type_ids": lambda given: _kinds(given),
    "token_type_ids": lambda given: given.ids(4, 512),
    "qformer_input_ids": lambda given: given.ids(len(given.rows)),
    "prompt_pixel_values": Inputs.pixel_values,
    "prompt_masks": Inputs.pixel_values,
    "flattened_patches": lambda given: given.floats(
        4, 512, int(given.says("patch_embed_hidden_size") or 768) + 2
    ),
    "query_embeds": lambda given: given.floats(4, 32, int(given.says("hidden_size") or 768)),
    "audio_mel": lambda given: given.floats(4, 600, int(given.says("input_feat_size") or 128)),
    "audio_mel_mask": lambda given: known(torch.zeros(4, 600, dtype=torch.bool)),
    "mask": _ones(4, 512),
    "mel_spectrogram": lambda given: given.floats(4, int(given.says("mel_dim") or 80), 64),
    "image": Inputs.pixel_values,
    "pixel_position_ids": lambda given: _places(),
    "image_position_ids": lambda given: _places(),
    "inputs_embeds": lambda given: given.floats(4, 512, int(given.says("hidden_size") or 768)),
}


def _places() -> Tensor:
    """Column and row of every patch."""
    places = torch.cartesian_prod(torch.arange(GRID), torch.arange(GRID)).flip(-1)
    return known(places[None].expand(4, -1, -1).contiguous())


def _heard(given: Inputs) -> Tensor:
    """All of a sound is to be heard."""
    return known(torch.ones(4, max(given.input_features().shape[-2:]), dtype=torch.int64))


def _kinds(given: Inputs) -> Tensor | None:
    """Of which kind each token is: none of a picture's in text alone."""
    if given.layout == "marked":
        return known(torch.zeros(4, 512, dtype=torch.int64))
    return _marked(given) if given.flat else None
