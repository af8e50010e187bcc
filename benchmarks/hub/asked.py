"""Batches of models that ask for what no rule of ``batches.py`` gives: by architecture."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.hub.inputs import Inputs
from benchmarks.hub.values import known

Batch = dict[str, Any]


def asked_of(name: str, given: Inputs) -> Batch | None:
    """Keywords for the forward of the architecture ``name``; None where ``batches.py`` knows them."""
    if name not in ASKED:
        return None
    _tell(given.model)
    return ASKED[name](given) | ({"use_cache": False} if "use_cache" in given.names else {})


def _tell(model: nn.Module) -> None:
    """What parts of a model work out of tensors, in numbers.

    Convolutions of codecs are padded by tensors that say their sizes. Experts that take as many tokens as
    were routed to each take as many each.
    """
    for module in model.modules():
        if type(module).__name__ == "JetMoeParallelExperts":
            module.register_forward_pre_hook(_even)
        conv = getattr(module, "conv", None)
        if isinstance(conv, nn.Conv1d) and "padding_total" in module._buffers:
            size = (conv.kernel_size[0] - 1) * conv.dilation[0] + 1
            said = {"stride": conv.stride[0], "kernel_size": size, "padding_total": size - conv.stride[0]}
            module._buffers.update({name: known(torch.tensor(value)) for name, value in said.items()})


def _even(module: nn.Module, given: Any) -> Any:
    rows, many = given[0].shape[0], len(given[1])
    return given[0], [rows // many + (i < rows % many) for i in range(many)]


def _ones(*shape: int) -> Tensor:
    return known(torch.ones(shape, dtype=torch.int64))


def _signs(sign: int, many: int, length: int = 512) -> Tensor:
    """Tokens, in each row ``many`` of them the sign for a part of a picture."""
    ids = torch.zeros(4, length, dtype=torch.int64)
    ids[:, 8 : 8 + many] = sign
    return known(ids)


def _grids(side: int) -> Tensor:
    """How many patches four pictures are of."""
    return known(torch.tensor([[1, side, side]] * 4))


def _places(side: int) -> Tensor:
    """Column and row of every patch of four pictures."""
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side)).flip(-1)
    return known(places[None].expand(4, -1, -1).contiguous())


def _wide(g: Inputs, *shape: int) -> Tensor:
    """Hidden states, as wide as the model."""
    return g.floats(*shape, int(g.config.hidden_size))


def _text(g: Inputs, **beside: Any) -> Batch:
    return {"input_ids": g.ids(4, 512), "labels": g.ids(4, 512)} | beside


def _decoded(g: Inputs, **beside: Any) -> Batch:
    return {"decoder_input_ids": g.ids(), "labels": g.ids()} | beside


def _stacked(ids: Tensor, many: int) -> Tensor:
    """Tokens of ``many`` codebooks at once."""
    return ids[..., None].expand(-1, -1, many)


def _blip_2(g: Inputs) -> Batch:
    ids = _signs(g.config.image_token_index, g.config.num_query_tokens, 128)
    out = {"pixel_values": g.floats(4, 3, 224, 224), "input_ids": ids, "labels": ids}
    return out | ({"qformer_input_ids": g.ids()} if "qformer_input_ids" in g.names else {})


def _clips(g: Inputs) -> Batch:
    ids = _signs(g.config.video_token_index, 4 * g.config.num_query_tokens)
    clips = g.floats(4, 4, 3, 224, 224)
    return {"pixel_values": clips, "input_ids": ids, "labels": ids, "qformer_input_ids": g.ids()}


def _frames(g: Inputs) -> Batch:
    """Frames of four sounds after one another, and cut into two chunks each."""
    bins, chunk = int(g.config.num_mel_bins), 2 * int(g.config.n_window)
    return {
        "input_features": g.floats(bins, 8 * chunk), "feature_lens": known(torch.tensor([2 * chunk] * 4)),
        "padded_feature": g.floats(8, bins, chunk), "chunk_lengths": known(torch.tensor([chunk] * 8)),
    }  # fmt: skip


def _packed(g: Inputs) -> Batch:
    """Patches of four pictures side by side, as one picture one patch high."""
    sizes = known(torch.tensor([[16, 16]] * 4))
    side = int(g.config.patch_size)
    return {"pixel_values": g.floats(1, 3, side, 1024 * side), "target_sizes": sizes}


def _masks(g: Inputs, side: int = 64) -> Batch:
    """What a decoder of masks is given: a map, maps of finer resolutions, and three points."""
    width = int(g.config.hidden_size)
    names = ("image_embeddings", "image_positional_embeddings", "dense_prompt_embeddings")
    out = dict.fromkeys(names, g.floats(2, width, side, side)) | {"multimask_output": True}
    out |= {"sparse_prompt_embeddings": g.floats(2, 1, 3, width)}
    if "hq_token_only" in g.names:
        early = [g.floats(2, side, side, int(g.config.vit_dim))]
        return out | {"hq_token_only": False, "intermediate_embeddings": early}
    finer = [g.floats(2, width // 8, 4 * side, 4 * side), g.floats(2, width // 4, 2 * side, 2 * side)]
    return out | ({"high_resolution_features": finer} if "high_resolution_features" in g.names else {})


def _found(g: Inputs) -> Batch:
    """What parts of SAM 3 are given: maps, text and queries."""
    width, flat, text = int(g.config.hidden_size), _wide(g, 2, 72 * 72), _wide(g, 2, 32)
    maps = [g.floats(2, width, side, side) for side in (288, 144, 72)]
    one = maps[-1:] if "vision_pos_embeds" in g.names else flat
    out: Batch = {
        "vision_features": one, "text_features": text, "vision_pos_embeds": one, "vision_pos_encoding": flat,
        "spatial_shapes": known(torch.tensor([[72, 72]])), "decoder_queries": _wide(g, 2, 200),
        "backbone_features": maps, "encoder_hidden_states": flat, "prompt_features": text,
    }  # fmt: skip
    return {name: value for name, value in out.items() if name in g.names}


def _av(g: Inputs) -> Batch:
    out = {"pixel_values_videos": g.floats(2, 8, 3, 336, 336), "input_values": g.floats(2, 1, 76800)}
    return {name: value for name, value in (out | {"input_ids": g.ids(2)}).items() if name in g.names}


def _pi0(g: Inputs) -> Batch:
    vlm, many = g.config.vlm_config, (1, 3)
    side = int(vlm.vision_config.image_size)
    action = g.floats(4, int(g.config.chunk_size), int(g.config.max_action_dim))
    return {
        "input_ids": _signs(vlm.image_token_id, (side // vlm.vision_config.patch_size) ** 2),
        "pixel_values": g.floats(4, *many, side, side), "attention_mask": _ones(4, 512), "actions": action,
        "pixel_attention_mask": known(torch.ones(4, 1, dtype=torch.bool)), "timestep": g.floats(4),
        "state": g.floats(4, int(g.config.max_state_dim)), "noise": action,
    }  # fmt: skip


def _protein(g: Inputs) -> Batch:
    """A chain of 128 residues of eight atoms each."""
    atoms, ids = g.ids(1, 1024), g.ids(1, 128)
    inputs = import_module("transformers.models.esmfold2.modeling_esmfold2").EsmFold2AtomInputs(
        ref_pos=g.floats(1, 1024, 3), ref_charge=g.floats(1, 1024), ref_element=atoms, ref_space_uid=atoms,
        ref_atom_name_chars=g.ids(1, 4096).view(1, 1024, 4), atom_to_token=atoms,
        atom_attention_mask=known(torch.ones(1, 1024, dtype=torch.bool)),
    )  # fmt: skip
    names = ("token_index", "residue_index", "asym_id", "sym_id", "entity_id", "mol_type", "res_type")
    bonds = {"token_bonds": g.floats(1, 128, 128, 1), "attention_mask": _ones(1, 128)}
    return dict.fromkeys(names, ids) | bonds | {"atom_inputs": inputs, "num_loops": 1}


ASKED: dict[str, Callable[[Inputs], Batch]] = {
    "audio-spectrogram-transformer": lambda g: {
        "input_values": g.floats(4, int(g.config.max_length), int(g.config.num_mel_bins))
    },
    **dict.fromkeys(("blip-2", "instructblip"), _blip_2),
    "blip_2_qformer": lambda g: {
        "query_embeds": _wide(g, 4, 32),
        "encoder_hidden_states": g.floats(4, 257, int(g.config.encoder_hidden_size)),
    },
    "blip_text_model": lambda g: {
        "input_ids": g.ids(4, 512),
        "encoder_hidden_states": g.floats(4, 197, int(g.config.encoder_hidden_size)),
    },
    # where a patch ends is for the entropy of the patcher's values to say: four bytes each
    "blt": lambda g: _text(g, patch_lengths=known(torch.full((4, 128), 4))),
    "blt_local_encoder": lambda g: {
        "input_ids": g.ids(4, 512), "num_patches": 128, "patch_ids": g.ids(4, 512)
    },
    "blt_local_decoder": lambda g: {
        "inputs_embeds": _wide(g, 4, 512),
        "patch_embeds": g.floats(4, 512, int(g.config.hidden_size_global)),
    },
    "bros": lambda g: _text(g, bbox=g.floats(4, 512, 8)),
    "chameleon": _text,
    "clap": lambda g: {"input_ids": g.ids(), "input_features": g.floats(4, 1, 1001, 64), "return_loss": True},
    "clap_audio_model": lambda g: {"input_features": g.floats(4, 1, 1001, 64)},
    "clvp": lambda g: {"input_ids": g.ids(), "input_features": g.floats(4, 80, 517), "return_loss": True},
    "dac": lambda g: {"input_values": g.floats(1, 1, 48000)},  # a loss for each sound: one
    **dict.fromkeys(
        ("mimi", "mimi_encoder", "pocket_tts_audio_tokenizer", "pocket_tts_audio_tokenizer_encoder"),
        lambda g: {"input_values": g.floats(4, 1, 48000)},
    ),
    **dict.fromkeys(
        ("mimi_decoder", "pocket_tts_audio_tokenizer_decoder"), lambda g: {"latents": _wide(g, 4, 128)}
    ),
    "deepseek_ocr2_encoder": lambda g: {"inputs_embeds": _wide(g, 4, 512), "num_patches": 256},
    "depth_pro": lambda g: {"pixel_values": g.floats(1, 3, 1536, 1536)},
    "dia": lambda g: {"input_ids": g.ids(4, 256), "decoder_input_ids": _stacked(g.ids(4, 256), 9)},
    "dia_decoder": lambda g: {
        "input_ids": _stacked(g.ids(4, 256), 9),
        "encoder_hidden_states": g.floats(4, 256, int(g.config.cross_hidden_size)),
    },
    "esmfold2": _protein,
    "fun_asr_nano_encoder": lambda g: {
        "input_features": g.floats(4, 600, 560), "input_features_mask": _ones(4, 600)
    },
    "gemma4_audio": lambda g: {"input_features": g.floats(4, 600, 128), "attention_mask": _ones(4, 600)},
    "gemma4_vision": lambda g: {
        "pixel_values": g.floats(4, 576, g.patch_width()), "pixel_position_ids": _places(24)
    },
    **dict.fromkeys(
        ("granite_speech5_encoder", "granite_speech5_ctc"),
        lambda g: {"input_features": g.floats(4, 600, 4 * int(g.says("num_mel_bins")))},
    ),
    "idefics": lambda g: _text(
        g, pixel_values=g.floats(4, 1, 3, 224, 224), image_attention_mask=_ones(4, 512, 1)
    ),
    "idefics2_perceiver": lambda g: {"context": _wide(g, 4, 256), "attention_mask": _ones(4, 256)},
    "inkling_vision": lambda g: {
        "pixel_values": g.floats(256, int(g.config.temporal_patch_size), *[int(g.config.patch_size)] * 2, 3)
    },
    "inkling2_vision": lambda g: {
        "pixel_values": g.floats(256, *[int(g.config.patch_size) * int(g.config.spatial_merge_size)] * 2, 3),
        "image_grid_thw": _grids(8),
    },
    "instructblipvideo": _clips,
    "jetmoe": _text,
    "jev": lambda g: {
        "input_ids": g.ids(1, 512), "marks": known(torch.arange(100, 500, 100)[None]),
        "num_options": known(torch.tensor([[2] * 4])), "question_type_ids": known(torch.tensor([[0] * 4])),
    },
    "kosmos-2": lambda g: _text(
        g, pixel_values=g.floats(4, 3, 224, 224),
        image_embeds_position_mask=_signs(1, int(g.config.latent_query_num)),
    ),
    "kyutai_speech_to_text": lambda g: {
        "input_ids": _stacked(g.ids(4, 256), int(g.config.num_codebooks) + 1), "labels": g.ids(4, 256)
    },
    **dict.fromkeys(("minicpm_ocr_vision", "minicpmv4_6_vision", "minicpmv4_7_vision"), _packed),
    "mllama_vision_model": lambda g: {
        "pixel_values": g.floats(2, 1, 4, 3, *[g.config.image_size] * 2), "aspect_ratio_ids": _ones(2, 1),
        "aspect_ratio_mask": _ones(2, 1, 4),
    },
    "molmo2_vision": lambda g: {"pixel_values": g.floats(4, 729, g.patch_width())},
    "molmo2_adapter": lambda g: {
        "image_features": _wide(g, 4, 729).repeat(1, 1, 2), "pooled_patches_idx": _ones(784, 4)
    },
    "moshi_depth": lambda g: {
        "input_ids": known(torch.zeros(4, int(g.config.num_codebooks), dtype=torch.int64)),
        "last_hidden_state": g.floats(4, 1, int(g.config.input_size)),
    },
    "muse_glimmer_assistant": lambda g: {
        "noise_embeds": _wide(g, 4, int(g.config.block_size)),
        "context_hidden_states": _wide(g, 4, 256).repeat(1, 1, len(g.config.target_layer_ids)),
    },
    "musicgen": lambda g: {
        "input_ids": g.ids(), "decoder_input_ids": g.ids(16, 256), "labels": _stacked(g.ids(4, 256), 4)
    },
    **dict.fromkeys(
        ("patchtst", "patchtsmixer"),
        lambda g: {"past_values": g.floats(8, int(g.config.context_length), g.config.num_input_channels)},
    ),
    **dict.fromkeys(("pe_video", "pe_video_encoder", "pe_audio_video", "pe_audio_video_encoder"), _av),
    "pi0": _pi0,
    "pix2struct": lambda g: _decoded(g, flattened_patches=g.floats(4, 512, 770)),
    **dict.fromkeys(("qwen2_5_omni_audio_encoder", "qwen3_omni_moe_audio_encoder"), _frames),
    "qwen2_5_omni_dit": lambda g: {
        "hidden_states": g.floats(2, 256, g.config.mel_dim), "time_step": g.floats(2),
        "condition_vector": g.floats(2, 256, g.config.mel_dim),
        "speaker_embedding": g.floats(2, 256, g.config.enc_emb_dim),
        "quantized_code": g.ids(2, 256 // g.config.repeats),
    },
    "qwen3_omni_moe_talker_code_predictor": lambda g: {"inputs_embeds": _wide(g, 4, 16)},
    "qwen3_omni_moe_talker_text": lambda g: {"inputs_embeds": _wide(g, 4, 512)},
    "rag": lambda g: _decoded(
        g, input_ids=g.ids(), context_input_ids=g.ids(20, 128), context_attention_mask=g.ids(20, 128),
        doc_scores=g.floats(4, 5),
    ),
    "rf_detr": lambda g: {"pixel_values": g.floats(2, 3, 560, 560)},
    **{f"{name}_mask_decoder": _masks for name in ("sam", "sam_hq", "sam2", "sam2_video")},
    **{f"{name}_mask_decoder": _masks for name in ("edgetam", "edgetam_video")},
    **{f"sam3_{name}_mask_decoder": lambda g: _masks(g, 72) for name in ("tracker", "tracker_video")},
    **{
        f"{name}_{part}": _found
        for name in ("sam3", "sam3_lite_text")
        for part in ("detr_encoder", "detr_decoder", "mask_decoder")
    },
    "t5gemma2_decoder": lambda g: {"input_ids": g.ids(4, 256), "encoder_hidden_states": _wide(g, 4, 512)},
    "tvp": lambda g: {
        "input_ids": g.ids(1), "pixel_values": g.floats(1, 48, 3, 448, 448), "attention_mask": _ones(1, 64)
    },
    "udop": lambda g: _decoded(
        g, input_ids=g.ids(4, 512), bbox=g.floats(4, 512, 4), pixel_values=g.floats(4, 3, 224, 224)
    ),
    "unlimited_ocr_vision_encoder": lambda g: {
        "patch_embeds": g.floats(4, int(g.config.hidden_size), 16, 16)
    },
    # which patches it keeps of pictures is for their values to say: patches as they come
    "vilt": lambda g: {
        "input_ids": g.ids(4, 40), "image_embeds": _wide(g, 4, 145), "pixel_mask": _ones(4, 145)
    },
    "vitmatte": lambda g: {"pixel_values": g.floats(2, 4, 512, 512)},
    "video_llama_3_vision": lambda g: {
        "pixel_values": g.floats(1024, g.patch_width()), "grid_thw": _grids(16),
        "merge_sizes": known(torch.tensor([2] * 4)),
    },
    "voxtral_realtime": lambda g: {
        "input_ids": g.ids(), "input_features": g.floats(4, 128, 512), "num_delay_tokens": 6
    },
    "voxtral_realtime_text": lambda g: {"input_ids": g.ids(4, 512), "t_cond": _wide(g, 1, 1)},
    **dict.fromkeys(
        ("xcodec2", "neucodec"),
        lambda g: {"input_values": g.floats(2, 1, 48000), "input_features": g.floats(2, 150, 160)},
    ),
    "xclip_vision_model": lambda g: {"pixel_values": g.floats(8, 3, 224, 224)},
}  # fmt: skip
