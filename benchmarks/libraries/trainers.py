"""Builds models of repositories that people clone and train from, and adapters: a seventh list.

The folder of the clones is that of ``clones.py``, each in a folder OWNER_NAME at the commit here:
Lightning-AI/lit-llama 2a464de2a1d2, NVIDIA/ngpt ed19eb232380, wolfecameron/nanoMoE 661fbcfade3e,
thu-ml/RoboticsDiffusionTransformer deb71d822787, pmixer/SASRec.pytorch fde8a9c08feb,
jaywonchung/BERT4Rec-VAE-Pytorch f66f2534ebfd, thuml/iTransformer c2426e68ca13, Thinklab-SJTU/Crossformer
c10c8eadb153, amazon-science/chronos-forecasting 95185d1336e5, DepthAnything/Depth-Anything-V2 a561b849ebae,
Vchitect/Latte b27c24a17487, Sense-X/UniFormer 52a0415e4e0d, facebookresearch/hiera b12b842542ee,
eloialonso/iris 24326aaaa283, CompVis/taming-transformers 3ba01b241669, Stability-AI/sd3-ref 883b83684167,
cloneofsimo/minRF 4fc10e0cc8ba, baudm/parseq 1902db043c02, tommyip/mamba2-minimal 4f4413731f24,
hyunwoongko/transformer 63286547b9cd, yandex-research/rtdl-revisiting-models e3ed46cac385,
mlfoundations/open_flamingo 655f693fbfa0 and microsoft/unilm 768a3c873f59.

Imports ask for peft 0.21.2, timm, torchvision, torchaudio, transformers, diffusers, einops, einops-exts and
open_clip_torch. Widths are the repositories' own, a few layers deep. Of models whose times are float32 all
is.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.hub.values import known
from benchmarks.libraries.clones import _cloned, _folder
from benchmarks.libraries.models import Built, _ids, _of_classes, _some
from benchmarks.libraries.repos import _of_next
from benchmarks.libraries.senses import _floats, _without

NAMES = Path(__file__).parents[1].joinpath("fresh", "libraries_7.txt").read_text().split()
_LAYERS, _BATCH, _SEQUENCE = 4, 4, 1024


def _without_torchao() -> None:
    """What is installed for other lists is too old for peft."""
    adapts: Any = import_module("peft.tuners.lora.torchao")
    adapts.is_torchao_available = lambda: False


def _llama_lora(home: Any) -> Built:
    """Llama 3.2 1B with LoRA in all of its linear layers."""
    _without_torchao()
    base = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=_LAYERS,
        num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=True, use_cache=False,
    ))  # fmt: skip
    given = {"r": 16, "lora_alpha": 32, "lora_dropout": 0.05, "target_modules": "all-linear"}
    model = home.get_peft_model(base, home.LoraConfig(task_type="CAUSAL_LM", **given))
    ids = _ids(_BATCH, _SEQUENCE)
    return Built(model, lambda: model(input_ids=ids, labels=ids).loss)


def _t5_ia3(home: Any) -> Built:
    """As wide as Flan-T5 large, keys, values and the inner of its MLPs rescaled."""
    base = transformers.T5ForConditionalGeneration(transformers.T5Config(
        d_model=1024, d_kv=64, d_ff=2816, num_layers=_LAYERS, num_heads=16, feed_forward_proj="gated-gelu",
        use_cache=False, decoder_start_token_id=0, tie_word_embeddings=False,
    ))  # fmt: skip
    model = home.get_peft_model(base, home.IA3Config(task_type="SEQ_2_SEQ_LM"))
    ids, told = _ids(8, 512), _ids(8, 128)
    return Built(model, lambda: model(input_ids=ids, labels=told).loss)


def _vit_dora(home: Any) -> Built:
    """ViT-B/16 with DoRA of its queries, values and MLPs; its classifier is trained as it is."""
    _without_torchao()
    base = transformers.ViTForImageClassification(transformers.ViTConfig(
        num_hidden_layers=_LAYERS, num_labels=101
    ))  # fmt: skip
    given = {"r": 16, "lora_alpha": 16, "lora_dropout": 0.1, "use_dora": True}
    targets = _linear_names(base, ("classifier",))
    config = home.LoraConfig(target_modules=targets, modules_to_save=["classifier"], **given)
    model = home.get_peft_model(base, config)
    pictures, labels = _some(32, 3, 224, 224), _ids(32)
    return Built(model, lambda: model(pixel_values=pictures, labels=labels).loss)


def _linear_names(model: nn.Module, but: tuple[str, ...]) -> list[str]:
    """The attributes that hold linear layers."""
    found = {path.rpartition(".")[2] for path, one in model.named_modules() if isinstance(one, nn.Linear)}
    return sorted(found.difference(but))


def _gpt2_prompt(home: Any) -> Built:
    """GPT-2 with twenty learned tokens in front."""
    base = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=_LAYERS, use_cache=False))
    config = home.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=20)
    model, ids = home.get_peft_model(base, config), _ids(8, 512)
    seen = torch.ones_like(ids)
    return Built(model, lambda: model(input_ids=ids, attention_mask=seen, labels=ids).loss)


def _adapter(home: Any) -> Built:
    """LLaMA-Adapter as finetune/adapter.py trains it, as wide as the model with 7B parameters."""
    model = home.LLaMA(home.LLaMAConfig(n_layer=_LAYERS, block_size=256))
    home.mark_only_adapter_as_trainable(model)
    ids = _ids(_BATCH, 256)

    def loss() -> Tensor:
        out = model(ids)[..., :-1, :].contiguous()
        return _of_next(out, ids[..., 1:].contiguous())

    return Built(model, loss)


def _ngpt(home: Any) -> Built:
    """As train.py has it, with PyTorch's attention."""

    def attends(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float, **_: Any) -> Tensor:
        query, key, value = (x.transpose(1, 2) for x in (q, k, v))
        out = functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=softmax_scale)
        return out.transpose(1, 2)

    home.flash_attn_func = attends
    model = home.GPT(home.GPTConfig(n_layer=_LAYERS, n_head=16, use_nGPT=1))
    ids = _ids(_BATCH, _SEQUENCE)
    return Built(model, lambda: model(ids, ids)[1])


def _nanomoe(home: Any) -> Built:
    """As config/train_nano_moe.py has it: every other layer is a mixture of eight experts."""
    model = home.GPT(home.GPTConfig(
        n_layer=_LAYERS, n_head=6, n_embd=384, bias=False, n_exp=8, top_k=2, use_aux_loss=True,
        use_router_z_loss=True, router_use_full_prec=True,
    ))  # fmt: skip
    ids = _ids(_BATCH, _SEQUENCE)
    return Built(model, lambda: model(ids, ids)[1])


def _rdt(home: Any) -> Built:
    """As wide as RDT-1B, and the sizes of configs/base.yaml."""
    model = home.RDTRunner(
        action_dim=128, pred_horizon=64, lang_token_dim=4096, img_token_dim=1152, state_token_dim=128,
        max_lang_cond_len=1024, img_cond_len=6 * 729, dtype=torch.bfloat16, config={
            "rdt": {"hidden_size": 2048, "depth": _LAYERS, "num_heads": 32}, "lang_adaptor": "mlp2x_gelu",
            "img_adaptor": "mlp2x_gelu", "state_adaptor": "mlp3x_gelu", "noise_scheduler": {
                "num_train_timesteps": 1000, "num_inference_timesteps": 5, "clip_sample": False,
                "beta_schedule": "squaredcos_cap_v2", "prediction_type": "sample",
            },
        },
    )  # fmt: skip
    words, seen = _some(8, 128, 4096), torch.ones(8, 128, dtype=torch.bool, device="meta")
    pictures, state, acts = _some(8, 6 * 729, 1152), _some(8, 1, 128), _some(8, 64, 128)
    return Built(model, lambda: model(words, seen, pictures, state, acts, _some(8, 1, 128), _some(8)))


def _sasrec(home: Any) -> Built:
    """As main.py trains it on MovieLens-1M, as wide as hidden_units asks for there."""
    given = Namespace(device="meta", norm_first=False, hidden_units=50, maxlen=200, dropout_rate=0.2)
    model = home.SASRec(6040, 3416, Namespace(**vars(given), num_blocks=2, num_heads=1))
    rows = np.ones((128, 200), dtype=np.int64)

    def loss() -> Tensor:
        """That of main.py, where no place is padded."""
        liked, other = model(None, rows, rows, rows)
        lost = functional.binary_cross_entropy_with_logits(liked, torch.ones_like(liked))
        return lost + functional.binary_cross_entropy_with_logits(other, torch.zeros_like(other))

    return Built(model, loss)


def _bert4rec(home: Any) -> Built:
    """As templates.py has it for MovieLens."""
    model = home.BERTModel(Namespace(
        model_init_seed=0, bert_max_len=100, num_items=3416, bert_num_blocks=2, bert_num_heads=4,
        bert_hidden_units=256, bert_dropout=0.1,
    ))  # fmt: skip
    return _flat(model, 128, 100)


def _flat(model: Any, *size: int) -> Built:
    """The logits and the labels, flat, as trainers do."""
    ids = _ids(*size)

    def loss() -> Tensor:
        out = model(ids)
        return functional.cross_entropy(out.view(-1, out.size(-1)), ids.view(-1))

    return Built(model, loss)


def _itransformer(home: Any) -> Built:
    """As scripts/multivariate_forecasting/Traffic/iTransformer.sh has it."""
    model = home.Model(Namespace(
        seq_len=96, pred_len=96, output_attention=False, use_norm=True, d_model=512, d_ff=512, n_heads=8,
        e_layers=_LAYERS, dropout=0.1, activation="gelu", factor=1, embed="timeF", freq="h",
        class_strategy="projection",
    ))  # fmt: skip
    past, hours = _floats(16, 96, 862), _floats(16, 96, 4)
    return Built(model, lambda: functional.mse_loss(model(past, hours, None, None), past))


def _crossformer(home: Any) -> Built:
    """As main_crossformer.py has it, on the customers of ECL."""
    model = home.Crossformer(
        321, 168, 24, 6, win_size=2, factor=10, d_model=256, d_ff=512, n_heads=4, e_layers=3, dropout=0.2,
        device="meta",
    )  # fmt: skip
    past, later = _floats(8, 168, 321), _floats(8, 24, 321)
    return Built(model, lambda: functional.mse_loss(model(past), later))


def _bolt(home: Any) -> Built:
    """As wide as chronos-bolt-base."""
    config = transformers.T5Config(
        d_model=768, d_kv=64, d_ff=3072, num_layers=_LAYERS, num_heads=12, feed_forward_proj="relu",
        use_cache=False, decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    config.chronos_config = {
        "context_length": 2048, "prediction_length": 64, "input_patch_size": 16, "input_patch_stride": 16,
        "quantiles": [n / 10 for n in range(1, 10)], "use_reg_token": True,
    }  # fmt: skip
    model = home.ChronosBoltModelForForecasting(config)
    past, later = _floats(32, 2048), _floats(32, 64)
    return Built(model, lambda: model(context=past, target=later).loss)


def _depth(home: Any) -> Built:
    """As wide as the large one, and the loss of metric_depth/util/loss.py."""
    model = home.DepthAnythingV2("vitl")
    model.pretrained.blocks = model.pretrained.blocks[:_LAYERS]
    model.pretrained.n_blocks, model.intermediate_layer_idx["vitl"] = _LAYERS, list(range(_LAYERS))
    pictures, told = _some(4, 3, 518, 518), _some(4, 518, 518)

    def loss() -> Tensor:
        off = torch.log(told) - torch.log(model(pictures))
        return torch.sqrt(torch.pow(off, 2).mean() - 0.5 * torch.pow(off.mean(), 2))

    return Built(model, loss)


def _latte(home: Any) -> Built:
    """As wide as Latte-XL/2, on the classes of UCF101."""
    model = home.Latte(depth=_LAYERS, num_classes=101, extras=2)
    noise = import_module("diffusion").create_diffusion(timestep_respacing="")
    clips, labels, times = _floats(4, 16, 4, 32, 32), _ids(4), _ids(4)
    return Built(model, lambda: noise.training_losses(model, clips, times, {"y": labels})["loss"].mean())


def _uniformer(home: Any) -> Built:
    """As wide as the small one."""
    return _of_classes(home.UniFormer(depth=[1, 2, 3, 2], drop_path_rate=0.1), _some(32, 3, 224, 224))


def _hiera(home: Any) -> Built:
    """As wide as the base, two to four layers of each of its stages."""
    return _of_classes(home.Hiera(stages=(1, 2, 4, 2), drop_path_rate=0.1), _some(32, 3, 224, 224))


def _iris(home: Any) -> Built:
    """As config/world_model/default.yaml has it, on the tokens of frames and actions."""
    config = import_module("models.transformer").TransformerConfig(
        tokens_per_block=17, max_blocks=20, attention="causal", num_layers=_LAYERS, num_heads=4,
        embed_dim=256, embed_pdrop=0.1, resid_pdrop=0.1, attn_pdrop=0.1,
    )  # fmt: skip
    model, ids = home.WorldModel(512, 18, config), _ids(64, 340)
    heads = (model.head_observations, model.head_rewards, model.head_ends)
    slices = {one: one.indices for one in (*heads, *model.embedder.slicers)}

    def loss() -> Tensor:
        for one, of in slices.items():
            one.indices = known(of)
        out = model(ids)
        seen = _of_next(out.logits_observations[:, :-1], ids[:, : 20 * 16 - 1])
        ends = _of_next(out.logits_ends, ids[:, :20])
        return seen + _of_next(out.logits_rewards, ids[:, :20]) + ends

    return Built(model, loss)


def _taming(home: Any) -> Built:
    """As configs/faceshq_transformer.yaml has it."""
    model, ids = home.GPT(1024, 512, n_layer=_LAYERS, n_head=16, n_embd=1024), _ids(8, 512)
    return Built(model, lambda: _of_next(model(ids)[0], ids))


def _mmdit(home: Any) -> Built:
    """As wide as SD3 medium, at 512 x 512, of whose layers these are the last."""
    linear = {"target": "torch.nn.Linear", "params": {"in_features": 4096, "out_features": 1536}}
    model = home.MMDiT(
        input_size=None, in_channels=16, depth=24, adm_in_channels=2048, context_embedder_config=linear,
        num_patches=36864, pos_embed_max_size=192, pos_embed_scaling_factor=None,
    )  # fmt: skip
    model.joint_blocks = model.joint_blocks[-_LAYERS:]
    latents, words, vector, times = _some(4, 16, 64, 64), _some(4, 154, 4096), _some(4, 2048), _some(4)
    return Built(model, lambda: functional.mse_loss(model(latents, times, vector, words), latents))


def _minrf(home: Any) -> Built:
    """As wide as DiT_Llama_3B_patch2, and the loss of rf.py."""
    model = home.DiT_Llama(patch_size=2, dim=3072, n_layers=_LAYERS, n_heads=32)
    flow, pictures, labels = import_module("rf").RF(model), _floats(16, 3, 32, 32), _ids(16)
    return Built(model, lambda: flow.forward(pictures, labels)[0])


def _parseq(home: Any) -> Built:
    """As configs/model/parseq.yaml has it, and the loss of system.py: six orders of the letters."""
    model = home.PARSeq(97, 25, (32, 128), (4, 8), 384, 6, 4, _LAYERS, 12, 4, 1, True, 1, 0.1)
    pictures, ids = _some(64, 3, 32, 128), _ids(64, 27)

    def loss() -> Tensor:
        memory, lost = model.encode(pictures), []
        hidden = (ids[:, :-1] == 96) | (ids[:, :-1] == 0)
        for _ in range(6):
            masks = (torch.zeros(26, 26, dtype=torch.bool, device="meta") for _ in range(2))
            mask, query = masks
            out = model.decode(ids[:, :-1], memory, mask, hidden, tgt_query_mask=query)
            lost.append(_of_next(model.head(out), ids[:, 1:]))
        return torch.stack(lost).mean()

    return Built(model, loss)


def _mamba2(home: Any) -> Built:
    """As wide as mamba2-130m."""
    model = home.Mamba2LMHeadModel(home.Mamba2Config(d_model=768, n_layer=_LAYERS), device="meta")
    ids = _ids(_BATCH, _SEQUENCE)
    return Built(model, lambda: _of_next(model(ids)[0], ids))


def _hyunwoong(home: Any) -> Built:
    """As conf.py has it."""
    home.torch = Namespace(**vars(torch) | {"ByteTensor": torch.uint8})  # which is a type of the CPU
    model = home.Transformer(1, 1, 2, 7853, 5893, 512, 8, 256, 2048, _LAYERS, 0.1, "meta")
    source, target = _ids(64, 128), _ids(64, 129)
    return Built(model, lambda: _of_next(model(source, target[:, :-1]), target[:, 1:]))


def _tables(home: Any) -> Built:
    """FT-Transformer as by default, of a table of a hundred columns."""
    kind = home.FTTransformer
    model = kind(n_cont_features=90, cat_cardinalities=[12] * 10, d_out=1, **kind.get_default_kwargs())
    numbers, kinds, told = _some(512, 90), _ids(512, 10), _some(512, 1)
    return Built(model, lambda: functional.mse_loss(model(numbers, kinds), told))


def _flamingo(home: Any) -> Built:
    """OPT as wide as that with 1.3B parameters, which attends to pictures in every other layer."""
    base = transformers.OPTForCausalLM(transformers.OPTConfig(
        hidden_size=2048, ffn_dim=8192, num_hidden_layers=_LAYERS, num_attention_heads=32,
        word_embed_proj_dim=2048, use_cache=False, pad_token_id=1,
    ))  # fmt: skip
    import_module("open_flamingo.src.utils").extend_instance(
        base, import_module("open_flamingo.src.flamingo_lm").FlamingoLMMixin
    )
    base.set_decoder_layers_attr_name("model.decoder.layers")
    sees = import_module("open_clip").model.CLIP(
        768, {"layers": _LAYERS, "width": 1024, "patch_size": 14}, {"layers": 1}, output_dict=True
    )
    sees.visual.output_tokens = True
    model = home.Flamingo(sees, base, 50267, 50266, 1024, cross_attn_every_n_layers=2)
    model.requires_grad_(False)
    for part in (model.perceiver, model.lang_encoder.gated_cross_attn_layers):
        part.requires_grad_(True)
    model.lang_encoder.get_input_embeddings().requires_grad_(True)
    pictures, ids = _some(4, 2, 1, 3, 224, 224), _ids(4, 256)
    seen = torch.ones_like(ids)
    return Built(model, lambda: model(pictures, ids, seen, labels=ids)[0])


def _beats(home: Any) -> Built:
    """BEATs as wide as iter3, fine-tuned on the classes of AudioSet."""
    model = home.BEATs(home.BEATsConfig({
        "encoder_layers": _LAYERS, "embed_dim": 512, "conv_pos": 128, "conv_pos_groups": 16,
        "relative_position_embedding": True, "gru_rel_pos": True, "num_buckets": 320, "max_distance": 800,
        "input_patch_size": 16, "deep_norm": True, "layer_norm_first": False, "finetuned_model": True,
        "predictor_class": 527, "predictor_dropout": 0.1, "encoder_layerdrop": 0.0,
    }))  # fmt: skip
    model.preprocess = lambda sound, **_: sound
    sounds, told = _some(16, 998, 128), _some(16, 527)

    def loss() -> Tensor:
        return functional.binary_cross_entropy(model.extract_features(sounds)[0].float(), told.float())

    return Built(model, loss)


#: The module that is imported, and what builds of it.
_HOMES: dict[str, tuple[str, Callable[[Any], Built]]] = {
    "peft/llama_lora": ("peft", _llama_lora),
    "peft/t5_ia3": ("peft", _t5_ia3),
    "peft/vit_dora": ("peft", _vit_dora),
    "peft/gpt2_prompt": ("peft", _gpt2_prompt),
    "Lightning-AI_lit-llama/adapter": ("lit_llama.adapter", _adapter),
    "NVIDIA_ngpt/ngpt": ("model", _ngpt),
    "wolfecameron_nanoMoE/moe": ("model", _nanomoe),
    "thu-ml_RoboticsDiffusionTransformer/rdt": ("models.rdt_runner", _rdt),
    "pmixer_SASRec.pytorch/sasrec": ("model", _sasrec),
    "jaywonchung_BERT4Rec-VAE-Pytorch/bert4rec": ("models.bert", _bert4rec),
    "thuml_iTransformer/itransformer": ("model.iTransformer", _itransformer),
    "Thinklab-SJTU_Crossformer/crossformer": ("cross_models.cross_former", _crossformer),
    "amazon-science_chronos-forecasting/chronos_bolt": ("chronos.chronos_bolt", _bolt),
    "DepthAnything_Depth-Anything-V2/dpt": ("depth_anything_v2.dpt", _depth),
    "Vchitect_Latte/latte": ("models.latte", _latte),
    "Sense-X_UniFormer/uniformer": ("models.uniformer", _uniformer),
    "facebookresearch_hiera/hiera": ("hiera.hiera", _hiera),
    "eloialonso_iris/world_model": ("models.world_model", _iris),
    "CompVis_taming-transformers/gpt": ("taming.modules.transformer.mingpt", _taming),
    "Stability-AI_sd3-ref/mmdit": ("mmdit", _mmdit),
    "cloneofsimo_minRF/dit": ("dit", _minrf),
    "baudm_parseq/parseq": ("strhub.models.parseq.model", _parseq),
    "tommyip_mamba2-minimal/mamba2": ("mamba2", _mamba2),
    "hyunwoongko_transformer/transformer": ("models.model.transformer", _hyunwoong),
    "yandex-research_rtdl-revisiting-models/ft_transformer": ("rtdl_revisiting_models", _tables),
    "mlfoundations_open_flamingo/flamingo": ("open_flamingo.src.flamingo", _flamingo),
    "microsoft_unilm/beats": ("BEATs", _beats),
}
#: Where in a clone its modules are.
_UNDER = {"pmixer_SASRec.pytorch": "python", "amazon-science_chronos-forecasting": "src"}
_UNDER |= {"Sense-X_UniFormer": "image_classification", "eloialonso_iris": "src", "microsoft_unilm": "beats"}
_UNDER |= {"yandex-research_rtdl-revisiting-models": "package"}
_SOUND = ("torchaudio",)
#: What a clone asks for and its model does not: kernels it does without, training, files, drawing.
_UNUSED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("peft", "amazon-science_chronos-forecasting", "mlfoundations_open_flamingo"), _SOUND),
    "microsoft_unilm": _SOUND,
    "Lightning-AI_lit-llama": ("lightning",),
    "NVIDIA_ngpt": ("flash_attn",),
    "DepthAnything_Depth-Anything-V2": ("cv2",),
    "eloialonso_iris": ("cv2", "gym", "hydra", "psutil"),
    "baudm_parseq": ("pytorch_lightning", "nltk"),
}
#: Packages that import all they have, beside what is asked of them, or have no file that says they are one.
_BARE: dict[str, tuple[str, ...]] = {
    "Lightning-AI_lit-llama": ("lit_llama",),
    "thuml_iTransformer": ("model",),
    "amazon-science_chronos-forecasting": ("chronos",),
    "Vchitect_Latte": ("models",),
    "Sense-X_UniFormer": ("models",),
    "facebookresearch_hiera": ("hiera",),
    "eloialonso_iris": ("models",),
    "mlfoundations_open_flamingo": ("open_flamingo", "open_flamingo.src"),
}
#: What reads numbers while it is built.
_OF_NUMBERS: tuple[str, ...] = ("thu-ml_RoboticsDiffusionTransformer", "Vchitect_Latte", "Sense-X_UniFormer")
_OF_NUMBERS += (
    "microsoft_unilm",
    "facebookresearch_hiera",
    "eloialonso_iris",
    "DepthAnything_Depth-Anything-V2",
)
#: What asks for single precision.
_SINGLE: tuple[str, ...] = ("pmixer_SASRec.pytorch", "thuml_iTransformer", "Thinklab-SJTU_Crossformer")
_SINGLE += ("amazon-science_chronos-forecasting", "Vchitect_Latte", "cloneofsimo_minRF", "eloialonso_iris")


def build(name: str) -> Built:
    """The model ``OWNER_REPOSITORY/name`` or ``peft/name``, in bf16 or float32 and training, on the meta
    device."""
    owner = name.partition("/")[0]
    module, of = _HOMES[name]
    folder = _folder(name) / _UNDER.get(owner, "")
    with (
        nullcontext() if owner == "peft" else _cloned(folder, _BARE.get(owner, ())),
        _without(_UNUSED.get(owner, ())),
        mock.patch.object(torch, "compile", lambda function=None, **_: function),
        mock.patch.object(import_module("transformers"), "top_k_top_p_filtering", None, create=True),
    ):
        home = import_module(module)
        with nullcontext() if owner in _OF_NUMBERS else torch.device("meta"):
            built = of(home)
    nn.Module.to(built.model, "meta", torch.float32 if owner in _SINGLE else torch.bfloat16).train()
    return built
