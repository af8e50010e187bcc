"""Builds models of repositories that people clone and train from: a sixth list, none of it was in another.

The folder of the clones is that of ``clones.py``, each in a folder OWNER_NAME at the commit here:
mlfoundations/open_lm 9bb92ef16893, allenai/OLMo 59a53e3f68e5, karpathy/minGPT 37baab71b9ab, karpathy/llama2.c
350e04fe3543, karpathy/llm.c f1e2ace65149, jingyaogong/minimind d65ef2c00ebc, rasbt/LLMs-from-scratch
28c65cdfbc33, huggingface/picotron 59714b1bf255, SamsungSAILMontreal/TinyRecursiveModels e7b68717f0a6,
codertimo/BERT-pytorch d10dc4f9d5a6, apple/corenet 1aa3acd17b7b, NX-AI/xlstm 032a6fb8ee19,
facebookresearch/dinov2 b8931f7bf915, facebookresearch/dinov3 6876159a11b4, MCG-NJU/VideoMAE 14ef8d856287,
microsoft/unilm 768a3c873f59, PixArt-alpha/PixArt-alpha cac2fd3b4544, FoundationVision/LlamaGen ce98ec41803a,
hustvl/LightningDiT 2725fed42a14, Wan-Video/Wan2.1 9737cba9c1c3, sooftware/conformer b4e7d4494421,
fishaudio/fish-speech 3dd1f85c402e, google-research/timesfm 3dae50b20d7a, SalesforceAIResearch/uni2ts
8d2a08df4512, evolutionaryscale/esm 6e89bf7d127b and real-stanford/diffusion_policy 5ba07ac6661d.

Imports ask for timm, torchvision, transformers, diffusers, einops, omegaconf, pydantic, loguru, tiktoken and
attrs. Widths are the repositories' own, a few layers deep. Of models whose times are float32 all is.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.hub.values import known
from benchmarks.libraries.clones import _cloned, _folder
from benchmarks.libraries.models import EXPERTS, Built, _ids, _some
from benchmarks.libraries.senses import _floats, _without

NAMES = Path(__file__).parents[1].joinpath("fresh", "libraries_6.txt").read_text().split()
_LAYERS, _BATCH, _SEQUENCE = 4, 4, 1024
_NORM = partial(nn.LayerNorm, eps=1e-6)


def _of_next(out: Tensor, ids: Tensor) -> Tensor:
    return functional.cross_entropy(out.reshape(-1, out.shape[-1]), ids.reshape(-1))


def _told(model: Any) -> Built:
    """A model that takes tokens and gives logits of the next."""
    ids = _ids(_BATCH, _SEQUENCE)
    return Built(model, lambda: _of_next(model(ids), ids))


def _none(*size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.bool, device="meta")


def _masked(hidden: int, of: int, many: int) -> Tensor:
    """So many of each sample are masked."""
    return known(torch.arange(of, device="cpu").lt(hidden).repeat(many, 1))


def _uncast(home: Any) -> None:
    """The module has no autocast, which asks for a device."""
    home.torch = Namespace(**vars(torch) | {"autocast": lambda *_, **__: nullcontext()})


def _efficient(q: Tensor, k: Tensor, v: Tensor, p: float = 0.0, attn_bias: int | None = None) -> Tensor:
    """xformers' attention; of so many samples in a row, where that is said."""
    query, key, value = (x.view(attn_bias or len(x), -1, *x.shape[2:]).transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(q.shape)


def _open_lm(home: Any) -> Built:
    """The model of open_lm_1b.json, with normalized queries and keys."""
    norms = import_module("open_lm.norms")
    _uncast(norms)
    rest = {"norm_type": norms.get_norm_class("gain_only_lp_layer_norm"), "ffn_type": "swiglu_torch"}
    model = home.Transformer(home.Params(2048, _LAYERS, 16, 50432, apply_qk_norm=True, **rest))
    ids = _ids(_BATCH, _SEQUENCE)
    return Built(model, lambda: _of_next(model(ids)[0], ids))


def _olmo(home: Any) -> Built:
    """The model of configs/official-0425/OLMo2-1B-stage1.yaml, and the loss of olmo/train.py."""
    _uncast(home)
    kinds, wide = import_module("olmo.config"), 100352
    model = home.OLMo(kinds.ModelConfig(
        d_model=2048, n_heads=16, n_layers=_LAYERS, mlp_ratio=8, vocab_size=100278, embedding_size=wide,
        max_sequence_length=4096, rope=True, rope_theta=500000, layer_norm_type=kinds.LayerNormType.rms,
        activation_type=kinds.ActivationType.swiglu, attention_layer_norm=True, norm_after=True,
        layer_norm_with_affine=True, attention_layer_norm_with_affine=True, include_bias=False,
        bias_for_layer_norm=False, attention_dropout=0.0, residual_dropout=0.0, embedding_dropout=0.0,
        init_device="meta",
    ), init_params=False)  # fmt: skip
    ids = _ids(_BATCH, _SEQUENCE)

    def loss() -> Any:
        out = model(ids).logits[..., :-1, :].reshape(-1, wide).float()
        lost = functional.cross_entropy(out, ids[..., 1:].reshape(-1))
        return lost + (1e-5 * out.logsumexp(-1).pow(2)).mean()

    return Built(model, loss)


def _mingpt(home: Any) -> Built:
    config, sizes = home.GPT.get_default_config(), {"n_layer": _LAYERS, "n_head": 12, "n_embd": 768}
    config.merge_from_dict({"model_type": None, "vocab_size": 50257, "block_size": _SEQUENCE} | sizes)
    model, ids = home.GPT(config), _ids(_BATCH, _SEQUENCE)
    return Built(model, lambda: model(ids, ids)[1])


def _llama2(home: Any) -> Built:
    """As wide as the one with 110M parameters, held as DistributedDataParallel holds it."""
    model = home.Transformer(home.ModelArgs(768, _LAYERS, 12, vocab_size=32000, max_seq_len=_SEQUENCE))
    ids = _ids(_BATCH, _SEQUENCE)
    return Built(nn.ModuleDict({"module": model}), lambda: (model(ids, ids), model.last_loss)[1])


def _llama3(home: Any) -> Built:
    """As wide as the model with 8B parameters."""
    home.apply_scaling = lambda frequencies: frequencies  # one after the other, by their values
    model, ids = home.LLaMA(home.LlamaConfig(n_layer=_LAYERS - 1, use_kv=False)), _ids(2, _SEQUENCE)
    return Built(model, lambda: model(ids, ids, return_logits=False)[1])


def _minimind(home: Any) -> Built:
    config = home.MiniMindConfig(num_hidden_layers=_LAYERS, max_position_embeddings=340)
    model, ids = home.MiniMindForCausalLM(config), _ids(32, 340)

    def loss() -> Any:
        model.model.freqs_cos = known(torch.ones(340, 96, device="cpu"))  # made anew where it is zero
        out = model(ids, labels=ids)
        return out.loss + out.aux_loss

    return Built(model, loss)


def _scratch_gpt(home: Any) -> Built:
    """The small one of chapter 4."""
    sizes = {"vocab_size": 50257, "context_length": _SEQUENCE, "emb_dim": 768, "n_heads": 12}
    return _told(home.GPTModel(sizes | {"n_layers": _LAYERS, "drop_rate": 0.1, "qkv_bias": False}))


def _scratch_qwen(home: Any) -> Built:
    return _told(home.Qwen3Model(home.QWEN_CONFIG_06_B | {"n_layers": _LAYERS, "context_length": _SEQUENCE}))


def _picotron(home: Any) -> Built:
    """As wide as SmolLM-360M, without flash attention."""
    one = Namespace(tp_world_size=1, cp_world_size=1, cp_rank=0)
    vars(import_module("picotron.process_group_manager"))["process_group_manager"] = one
    home.os = Namespace(environ={"LOCAL_RANK": "0"}, getenv={"FLASH_ATTEN": "0", "DEVICE": "cpu"}.get)
    model = home.Llama(Namespace(
        hidden_size=960, num_attention_heads=15, num_key_value_heads=5, max_position_embeddings=_SEQUENCE,
        num_hidden_layers=_LAYERS, intermediate_size=2560, rms_norm_eps=1e-5, vocab_size=49152,
        rope_theta=10000.0,
    ))  # fmt: skip
    for layer in model.decoder_layers:
        layer.cos, layer.sin = layer.cos.to("meta"), layer.sin.to("meta")
    return _told(model)


def _trm(home: Any) -> Built:
    """The model of config/arch/trm.yaml on Sudoku, whose two layers run again and again."""
    model = home.TinyRecursiveReasoningModel_ACTV1({
        "batch_size": 64, "seq_len": 81, "puzzle_emb_ndim": 512, "num_puzzle_identifiers": 1000,
        "vocab_size": 11, "H_cycles": 3, "L_cycles": 6, "H_layers": 0, "L_layers": 2, "hidden_size": 512,
        "expansion": 4, "num_heads": 8, "pos_encodings": "rope", "halt_max_steps": 16,
        "halt_exploration_prob": 0.1,
    })  # fmt: skip
    judge = import_module("models.losses").ACTLossHead(model, "stablemax_cross_entropy")
    ids, puzzles = _ids(64, 81).int(), _ids(64).int()
    batch = {"inputs": ids, "labels": ids, "puzzle_identifiers": puzzles}
    carry = judge.initial_carry(batch)
    return Built(judge, lambda: judge(return_keys=[], carry=carry, batch=batch)[1])


def _bert(home: Any) -> Built:
    model = home.BERTLM(home.BERT(30000, n_layers=_LAYERS), 30000)
    ids, segments, after = _ids(16, 512), _ids(16, 512), _ids(16)

    def loss() -> Tensor:
        """That of trainer/pretrain.py."""
        follows, told = model(ids, segments)
        words = functional.nll_loss(told.transpose(1, 2), ids, ignore_index=0)
        return functional.nll_loss(follows, after, ignore_index=0) + words

    return Built(model, loss)


class _Options(Namespace):
    """corenet's options, where what is not given is none."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _openelm(home: Any) -> Built:
    """As OpenELM-1_1B has it with four layers, each wider than the one before."""
    home.gpt_configs["OpenELM-1_1B"]["num_transformer_layers"] = _LAYERS
    at = "model.language_modeling.general_gpt."
    given = {at + "model_name": "OpenELM-1_1B", at + "vocab_size": 32001, at + "max_context_length": 2048}
    return _told(home.GeneralGPTModel(_Options(**given)))


def _xlstm(home: Any) -> Built:
    """xLSTM[1:0] as wide as the one with 125M parameters."""
    layers = import_module("xlstm.blocks.mlstm.layer").mLSTMLayerConfig(num_heads=4)
    block = import_module("xlstm.blocks.mlstm.block").mLSTMBlockConfig(mlstm=layers)
    sizes = {"context_length": _SEQUENCE, "num_blocks": _LAYERS, "embedding_dim": 768, "vocab_size": 50304}
    return _told(home.xLSTMLMModel(home.xLSTMLMModelConfig(mlstm_block=block, **sizes)))


def _dino(home: Any) -> Built:
    """DINOv2 as wide as ViT-L, on wide crops: of narrow ones beside them xformers makes one list."""
    sizes = {"patch_size": 14, "embed_dim": 1024, "depth": _LAYERS, "num_heads": 16, "init_values": 1e-5}
    rest = {"block_chunks": 0, "drop_path_rate": 0.3, "drop_path_uniform": True}
    block = partial(home.Block, attn_class=home.MemEffAttention)
    student, teacher = (home.DinoVisionTransformer(**sizes, **rest, block_fn=block) for _ in range(2))
    head = import_module("dinov2.layers.dino_head").DINOHead
    heads = nn.ModuleDict({"student": head(1024, 65536), "teacher": head(1024, 65536)})
    judge = import_module("dinov2.loss.dino_clstoken_loss").DINOLoss(65536)
    teacher.train = lambda _=True: nn.Module.train(teacher, False)
    pictures, masks = _some(16, 3, 224, 224), _none(16, 256)

    def loss() -> Any:
        with torch.no_grad():
            seen = heads["teacher"](teacher(pictures, is_training=True)["x_norm_clstoken"])
            seen = judge.softmax_center_teacher(seen, 0.07)
        told = student(pictures, masks=masks, is_training=True)["x_norm_clstoken"]
        return judge([heads["student"](told)], [seen])

    return Built(nn.ModuleDict({"student": student, "teacher": teacher, "heads": heads}), loss)


def _dino3(home: Any) -> Built:
    """DINOv3's student as wide as ViT-L, on wide and narrow crops together."""
    model = home.DinoVisionTransformer(
        embed_dim=1024, depth=_LAYERS, num_heads=16, drop_path_rate=0.3, layerscale_init=1e-5,
        n_storage_tokens=4, mask_k_bias=True, norm_layer="layernormbf16",
    )  # fmt: skip
    head = import_module("dinov3.layers.dino_head").DINOHead(1024, 65536)
    judge = import_module("dinov3.loss.dino_clstoken_loss").DINOLoss(65536)
    crops, masks, taught = [_some(8, 3, 256, 256), _some(32, 3, 112, 112)], _none(8, 256), _floats(8, 65536)

    def loss() -> Any:
        seen = model(crops, masks=[masks, None], is_training=True)
        told = head(torch.cat([one["x_norm_clstoken"] for one in seen])).view(10, 4, -1)
        return judge(told, judge.sinkhorn_knopp_teacher(taught, 0.07).view(2, 4, -1))

    return Built(nn.ModuleDict({"backbone": model, "dino_head": head}), loss)


def _videomae(home: Any) -> Built:
    """As pretrain_videomae_base_patch16_224 has it, nine of ten patches masked."""
    decoder = {"decoder_embed_dim": 384, "decoder_depth": _LAYERS, "decoder_num_heads": 6}
    model = home.PretrainVisionTransformer(encoder_depth=_LAYERS, qkv_bias=True, norm_layer=_NORM, **decoder)
    clips, masks, told = _some(8, 3, 16, 224, 224), _masked(1408, 1568, 8), _some(8, 1408, 1536)
    return Built(model, lambda: functional.mse_loss(model(clips, masks), told))


def _beit(home: Any) -> Built:
    """BEiT v2 as wide as the base, 75 of 196 patches masked."""
    bias = {"use_abs_pos_emb": False, "use_shared_rel_pos_bias": True}
    model = home.VisionTransformerForMaskedImageModeling(
        depth=_LAYERS, init_values=0.1, drop_path_rate=0.1, norm_layer=_NORM, **bias
    )
    pictures, masks, ids = _some(32, 3, 224, 224), _masked(75, 196, 32), _ids(32 * 75)
    return Built(model, lambda: functional.cross_entropy(model(pictures, bool_masked_pos=masks), ids))


def _pixart(_: Any) -> Built:
    """As wide as PixArt-XL/2 at 256 x 256."""
    vars(import_module("mmcv"))["Registry"] = lambda _: Namespace(register_module=lambda: lambda kind: kind)
    blocks = Namespace(BlockDiagonalMask=Namespace(from_seqlens=lambda of, _: len(of)))
    vars(import_module("xformers.ops")).update(memory_efficient_attention=_efficient, fmha=blocks)
    vars(import_module("xformers"))["ops"] = import_module("xformers.ops")
    model = import_module("diffusion.model.nets.PixArt").PixArt(depth=_LAYERS)
    model.y_embedder.y_embedding = nn.Parameter(model.y_embedder.y_embedding.to("meta"))  # a buffer as well
    noise = import_module("diffusion.iddpm").IDDPM("1000")
    latents, times, words = _floats(16, 4, 32, 32), _ids(16), _floats(16, 1, 120, 4096)
    return Built(model, lambda: noise.training_losses(model, latents, times, {"y": words})["loss"].mean())


def _llamagen(home: Any) -> Built:
    """As wide as GPT-L, of classes."""
    model = home.Transformer(home.ModelArgs(dim=1024, n_layer=_LAYERS, n_head=16, drop_path_rate=0.1))
    ids, labels = _ids(16, 256), _ids(16)
    return Built(model, lambda: model(cond_idx=labels, idx=ids[:, :-1], targets=ids)[1])


def _lightning(home: Any) -> Built:
    """As wide as LightningDiT-XL/1, on the latents of configs/lightningdit_xl_vavae_f16d32.yaml."""
    kinds = {"use_swiglu": True, "use_rope": True, "use_rmsnorm": True}
    model = home.LightningDiT(16, 1, hidden_size=1152, depth=_LAYERS, num_heads=16, **kinds)
    flow = import_module("transport").create_transport("Linear", "velocity", None, None, None, True, True)
    latents, labels = _floats(16, 32, 16, 16), _ids(16)

    def loss() -> Any:
        lost = flow.training_losses(model, latents, {"y": labels})
        return lost["loss"].mean() + lost["cos_loss"].mean()

    return Built(model, loss)


def _wan(home: Any) -> Built:
    """As wide as the model with 1.3B parameters, on five latent frames, with PyTorch's attention."""
    attends = import_module("wan.modules.attention").attention
    home.flash_attention = lambda q, k, v, **_: attends(q, k, v, dtype=q.dtype)
    home.amp = Namespace(autocast=lambda **_: nullcontext())
    model = home.WanModel(dim=1536, ffn_dim=8960, num_heads=12, num_layers=_LAYERS - 1)
    latents, words, times = known(torch.zeros(16, 5, 60, 104, device="cpu")), _floats(512, 4096), _floats(1)
    return Built(model, lambda: functional.mse_loss(model([latents], times, [words], 7800)[0], latents))


def _conformer(home: Any) -> Built:
    model = home.Conformer(num_classes=5000, num_encoder_layers=_LAYERS)
    sounds, lengths, words = _some(8, 1000, 80), _ids(8), _ids(8 * 249)
    return Built(model, lambda: functional.nll_loss(model(sounds, lengths)[0].flatten(0, 1), words))


def _fish(home: Any) -> Built:
    """As wide as Fish Speech 1.5, and the losses of text2semantic/lit_module.py."""
    sizes = {"dim": 1024, "n_head": 16, "n_layer": _LAYERS, "intermediate_size": 4096, "vocab_size": 102048}
    rest = {"num_codebooks": 8, "codebook_size": 1024, "n_fast_layer": 4, "n_local_heads": 2}
    model = home.DualARTransformer(home.DualARModelArgs(**sizes, **rest, use_gradient_checkpointing=False))
    ids, told = _ids(4, 9, 1024), _ids(4, 9, 1024)

    def loss() -> Tensor:
        out = model(ids, labels=told)
        return _of_next(out.token_logits, told[:, 0]) + _of_next(out.codebook_logits, told[:, 1:])

    return Built(model, loss)


def _timesfm(home: Any) -> Built:
    """TimesFM 2.5, whose two heads tell the values to come and their spread."""
    model = home.TimesFM_2p5_200M_torch_module()
    model.x, model.stacked_xf = _LAYERS, model.stacked_xf[:_LAYERS]
    past, unseen = _floats(16, 64, 32), _none(16, 64, 32)
    told = [_floats(16, 64, many) for many in (1280, 10240)]

    def loss() -> Tensor:
        outs = model(past, unseen)[0][2:]
        return torch.stack([functional.mse_loss(*both) for both in zip(outs, told, strict=True)]).sum()

    return Built(model, loss)


def _moirai(home: Any) -> Built:
    """Moirai-MoE as wide as the base, with eight experts of which each token takes one."""
    attends = import_module("uni2ts.module.attention")
    native = attends.native_scaled_dot_product_attention  # as PyTorch does it in five dimensions
    vars(attends)["F"] = Namespace(**vars(functional) | {"scaled_dot_product_attention": native})
    model = home.MoiraiMoEModule(
        import_module("uni2ts.distribution").NormalOutput(), d_model=768, d_ff=1024, num_layers=_LAYERS,
        patch_sizes=(16,), max_seq_len=512, attn_dropout_p=0.0, dropout_p=0.0,
    )  # fmt: skip
    for layer in model.encoder.layers:
        layer.ffn.num_experts_per_token, layer.ffn.experts = 1, layer.ffn.experts[:EXPERTS]
    model.encoder.centroid = model.encoder.centroid[:, :EXPERTS]
    ids = dict.fromkeys(("sample_id", "time_id", "variate_id", "patch_size"), _ids(8, 512))
    series = _floats(8, 512, 16)
    masks = {"observed_mask": _none(8, 512, 16), "prediction_mask": _none(8, 512)}
    return Built(model, lambda: -model(series, **masks, **ids).log_prob(series).mean())


def _esmc(home: Any) -> Built:
    """ESM C as wide as the one with 300M parameters."""
    model = home.ESMC(960, 15, _LAYERS, tokenizer=Namespace(pad_token_id=1), use_flash_attn=False)
    ids = _ids(8, 512)
    return Built(model, lambda: _of_next(model(ids).sequence_logits, ids))


def _policy(home: Any) -> Built:
    """As train_diffusion_transformer_lowdim_kitchen_workspace.yaml has it."""
    model = home.TransformerForDiffusion(
        input_dim=9, output_dim=9, horizon=16, n_obs_steps=4, cond_dim=60, n_layer=_LAYERS, n_head=4,
        n_emb=768, p_drop_emb=0.0, p_drop_attn=0.1, causal_attn=True, obs_as_cond=True,
    )  # fmt: skip
    actions, times, seen = _floats(256, 16, 9), _ids(256), _floats(256, 4, 60)
    return Built(model, lambda: functional.mse_loss(model(actions, times, seen), actions))


_POLICY = "diffusion_policy.model.diffusion.transformer_for_diffusion"
#: The module that is imported, and what builds of it.
_HOMES: dict[str, tuple[str, Callable[[Any], Built]]] = {
    "mlfoundations_open_lm/open_lm": ("open_lm.model", _open_lm),
    "allenai_OLMo/olmo2": ("olmo.model", _olmo),
    "karpathy_minGPT/gpt": ("mingpt.model", _mingpt),
    "karpathy_llama2.c/llama": ("model", _llama2),
    "karpathy_llm.c/llama3": ("train_llama3", _llama3),
    "jingyaogong_minimind/minimind": ("model.model_minimind", _minimind),
    "rasbt_LLMs-from-scratch/gpt": ("llms_from_scratch.ch04", _scratch_gpt),
    "rasbt_LLMs-from-scratch/qwen3": ("llms_from_scratch.qwen3", _scratch_qwen),
    "huggingface_picotron/llama": ("picotron.model", _picotron),
    "SamsungSAILMontreal_TinyRecursiveModels/trm": ("models.recursive_reasoning.trm", _trm),
    "codertimo_BERT-pytorch/bert": ("bert_pytorch.model.language_model", _bert),
    "apple_corenet/openelm": ("corenet.modeling.models.language_modeling.general_gpt", _openelm),
    "NX-AI_xlstm/mlstm": ("xlstm.xlstm_lm_model", _xlstm),
    "facebookresearch_dinov2/vit": ("dinov2.models.vision_transformer", _dino),
    "facebookresearch_dinov3/vit": ("dinov3.models.vision_transformer", _dino3),
    "MCG-NJU_VideoMAE/vit": ("modeling_pretrain", _videomae),
    "microsoft_unilm/beit2": ("modeling_pretrain", _beit),
    "PixArt-alpha_PixArt-alpha/pixart": ("diffusion.model.utils", _pixart),
    "FoundationVision_LlamaGen/gpt": ("autoregressive.models.gpt", _llamagen),
    "hustvl_LightningDiT/dit": ("models.lightningdit", _lightning),
    "Wan-Video_Wan2.1/wan": ("wan.modules.model", _wan),
    "sooftware_conformer/conformer": ("conformer.model", _conformer),
    "fishaudio_fish-speech/dual_ar": ("fish_speech.models.text2semantic.llama", _fish),
    "google-research_timesfm/timesfm": ("timesfm.timesfm_2p5.timesfm_2p5_torch", _timesfm),
    "SalesforceAIResearch_uni2ts/moirai_moe": ("uni2ts.model.moirai_moe.module", _moirai),
    "evolutionaryscale_esm/esmc": ("esm.models.esmc", _esmc),
    "real-stanford_diffusion_policy/transformer": (_POLICY, _policy),
}
#: Where in a clone its modules are.
_UNDER = {"rasbt_LLMs-from-scratch": "pkg", "microsoft_unilm": "beit2"}
_UNDER |= {"google-research_timesfm": "src", "SalesforceAIResearch_uni2ts": "src"}
#: What a clone asks for and its model does not: kernels it does without, training, files, drawing.
_UNUSED: dict[str, tuple[str, ...]] = {
    "mlfoundations_open_lm": ("xformers",),
    "allenai_OLMo": ("importlib_resources", "boto3", "botocore", "cached_path", "google", "rich"),
    "huggingface_picotron": ("flash_attn", "triton"),
    "NX-AI_xlstm": ("mlstm_kernels",),
    "PixArt-alpha_PixArt-alpha": ("mmcv", "xformers"),
    "hustvl_LightningDiT": ("torchdiffeq", "fairscale"),
    "fishaudio_fish-speech": ("loralib",),
    "SalesforceAIResearch_uni2ts": ("hydra", "jaxtyping"),
    "evolutionaryscale_esm": ("zstd", "biotite", "brotli", "cloudpathlib", "msgpack_numpy", "Bio"),
}
#: Packages that import all they have, beside what is asked of them, or have no file that says they are one.
_BARE: dict[str, tuple[str, ...]] = {
    "allenai_OLMo": ("olmo",),
    "rasbt_LLMs-from-scratch": ("llms_from_scratch",),
    "codertimo_BERT-pytorch": ("bert_pytorch",),
    "NX-AI_xlstm": ("xlstm",),
    "PixArt-alpha_PixArt-alpha": ("diffusion", "diffusion.model", "diffusion.model.nets"),
    "FoundationVision_LlamaGen": ("utils",),
    "Wan-Video_Wan2.1": ("wan", "wan.modules"),
    "google-research_timesfm": ("timesfm", "timesfm.timesfm_2p5"),
    "SalesforceAIResearch_uni2ts": ("uni2ts.model.moirai_moe",),
    "evolutionaryscale_esm": ("esm", "esm.models", "esm.sdk"),
}
#: What reads numbers while it is built.
_OF_NUMBERS: tuple[str, ...] = ("huggingface_picotron", "MCG-NJU_VideoMAE", "microsoft_unilm")
_OF_NUMBERS += ("FoundationVision_LlamaGen", "apple_corenet", "PixArt-alpha_PixArt-alpha")
#: What asks for single precision.
_SINGLE: tuple[str, ...] = ("PixArt-alpha_PixArt-alpha", "hustvl_LightningDiT", "Wan-Video_Wan2.1")
_SINGLE += ("SalesforceAIResearch_uni2ts", "google-research_timesfm", "real-stanford_diffusion_policy")


def build(name: str) -> Built:
    """The model ``OWNER_REPOSITORY/name``, in bf16 or float32 and training, on the meta device."""
    owner = name.partition("/")[0]
    module, of = _HOMES[name]
    with (
        _cloned(_folder(name) / _UNDER.get(owner, ""), _BARE.get(owner, ())),
        _without(_UNUSED.get(owner, ())),
        mock.patch.object(torch, "compile", lambda function=None, **_: function),
    ):
        home = import_module(module)
        with nullcontext() if owner in _OF_NUMBERS else torch.device("meta"):
            built = of(home)
    nn.Module.to(built.model, "meta", torch.float32 if owner in _SINGLE else torch.bfloat16).train()
    return built
