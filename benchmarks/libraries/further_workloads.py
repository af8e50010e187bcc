"""The rest of the ninth list: several senses at once, adapters, and heads and losses of other fields.

As ``workloads.py`` has it. The clones: microsoft/unilm 768a3c873f59, facebookresearch/ImageBind 53680b02d7e3,
tonyzhaozh/act 742c753c0d4a, allenzren/open-pi-zero c3df7fb06217, OpenGVLab/LLaMA-Adapter 521a09da84f7,
ShoufaChen/AdaptFormer 6967d676c1a5, lyuwenyu/RT-DETR 068dfde65f26, rstrudel/segmenter 20d1bfad3541,
haofeixu/gmflow b5123431164d, facebookresearch/audiocraft
896ec7c47f5e and pinterest/transformer_user_action 2c8b6c93b679.

Imports ask for peft 0.21.2, omegaconf, torchscale, clip-anytorch, timm, torchvision,
transformers, einops, iopath, ftfy, regex and scipy.
"""

# What comes of modules is anything.
# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.hub.values import known
from benchmarks.libraries.models import Built, _ids, _of_classes, _some
from benchmarks.libraries.recipes import _again, _llama, _together
from benchmarks.libraries.senses import _floats
from benchmarks.libraries.trainers import _without_torchao
from benchmarks.libraries.workloads import _LAYERS, LISTED


def _beit3(home: Any) -> Built:
    """BEiT-3 base, fine-tuned to find pictures by words."""
    args = import_module("modeling_utils")._get_base_config(drop_path_rate=0.1)
    args.encoder_layers, args.normalize_output = _LAYERS, False
    model = home.BEiT3ForRetrieval(args)
    pictures, words = _some(32, 3, 224, 224), _ids(32, 64)
    padded = torch.zeros(32, 64, dtype=torch.bool, device="meta")
    return Built(model, lambda: model(pictures, words, padded)[0])


def _imagebind(home: Any) -> Built:
    """Pictures against sounds, as wide as imagebind_huge; the pictures' tower is frozen, as in the paper."""
    few = {f"{sense}_num_blocks": 1 for sense in ("text", "depth", "thermal", "imu")}
    vars(import_module("imagebind.models.multimodal_preprocessors"))["SimpleTokenizer"] = mock.MagicMock()
    model = home.ImageBindModel(
        vision_embed_dim=1280, vision_num_blocks=_LAYERS, vision_num_heads=16, audio_num_blocks=_LAYERS,
        text_embed_dim=1024, text_num_heads=16, out_embed_dim=1024, audio_drop_path=0.1, imu_drop_path=0.7,
        **few,
    )  # fmt: skip
    for parts in (model.modality_preprocessors, model.modality_trunks, model.modality_heads):
        parts["vision"].requires_grad_(False)
        for other in set(parts) - {"vision", "audio"}:
            del parts[other]
    pictures, sounds, labels = _some(32, 3, 224, 224), _some(32, 3, 1, 128, 204), _ids(32)

    def loss() -> Tensor:
        seen = model({"vision": pictures})["vision"]
        scores = seen @ model({"audio": sounds})["audio"].T
        both = functional.cross_entropy(scores, labels) + functional.cross_entropy(scores.T, labels)
        return both / 2

    return Built(model, loss)


def _act(home: Any) -> Built:
    """ACT as README.md trains it, with four cameras, and the loss of policy.py."""
    vars(import_module("models.backbone"))["is_main_process"] = lambda: False  # nothing to be loaded
    model = home.build(Namespace(
        hidden_dim=512, dropout=0.1, nheads=8, dim_feedforward=3200, enc_layers=4, dec_layers=3,
        pre_norm=False, backbone="resnet18", lr_backbone=1e-5, masks=False, dilation=False,
        position_embedding="sine", num_queries=100, camera_names=["top", "left", "right", "front"],
    ))  # fmt: skip
    place, pictures, acts = _floats(8, 14), _floats(8, 4, 3, 480, 640), _floats(8, 100, 14)
    padded = torch.zeros(8, 100, dtype=torch.bool, device="meta")

    def loss() -> Tensor:
        guess, _, (mean, spread) = model(place, pictures, None, acts, padded)
        off = (functional.l1_loss(acts, guess, reduction="none") * ~padded.unsqueeze(-1)).mean()
        away = -0.5 * (1 + spread - mean.pow(2) - spread.exp())
        return off + away.sum(1).mean(0, True)[0] * 10

    return Built(model, loss)


def _of_target(config: Any) -> Any:
    """hydra.utils.instantiate: what a configuration names, made of the rest of it."""
    given = {key: config[key] for key in config if key != "_target_"}
    module, _, kind = config["_target_"].rpartition(".")
    return getattr(import_module(module), kind)(**given)


def _pi_zero(home: Any) -> Built:
    """As config/train/bridge.yaml has it, a few layers of each."""
    home.hydra = Namespace(utils=Namespace(instantiate=_of_target))
    conf = import_module("omegaconf").OmegaConf
    lora, quiet = {"r": 32, "dropout": 0.0}, {"use_quantize": False, "use_lora": False}
    act = {"hidden_size": 1024, "intermediate_size": 4096, "use_final_norm": True, "rope_theta": 100.0}
    mixture = {
        "vlm": {
            "hidden_size": 2048, "intermediate_size": 16384, "use_final_norm": False, "cache": True, **quiet,
            "adaptive_mode": None, "rope_theta": 10000.0,
        },
        "proprio": {**act, **quiet, "adaptive_mode": None, "cache": True},
        "action": {**act, **quiet, "adaptive_mode": None, "cache": False},
    }  # fmt: skip
    vision = {
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": _LAYERS, "patch_size": 14,
        "num_attention_heads": 16, "num_channels": 3, "image_size": 224, "layer_norm_eps": 1e-6,
        "attention_dropout": 0.0, "num_image_tokens": 256, "lora": lora,
    }  # fmt: skip
    joint = {
        "action_expert_adaptive_mode": None, "time_hidden_size": 256, "mixture": mixture, "lora": lora,
        "num_hidden_layers": _LAYERS, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256,
        "rms_norm_eps": 1e-6, "attention_bias": False, "attention_dropout": 0.0, "pad_token_id": 0,
    }  # fmt: skip
    siglip = "src.model.paligemma.siglip"
    model = home.PiZero(conf.create({
        "vocab_size": 257216, "pad_token_id": 0, "image_token_index": 257152, "max_image_text_tokens": 276,
        "cond_steps": 1, "horizon_steps": 4, "mixture": mixture, "num_inference_steps": 10, "action_dim": 7,
        "proprio_dim": 7, "final_action_clip_value": 1.0, "action_expert_adaptive_mode": None,
        "time_hidden_size": 256, "time_max_period": 100.0,
        "vision": {"_target_": f"{siglip}.SiglipVisionModel", "config": vision, **quiet},
        "vision_projector": {
            "_target_": f"{siglip}.PaliGemmaMultiModalProjector", **quiet,
            "config": {"vision_config": {"hidden_size": 1152, "projection_dim": 2048}, "lora": lora},
        },
        "joint": {"_target_": "src.model.vla.joint_model.JointModel", "config": joint},
    }))  # fmt: skip
    model.tie_action_proprio_weights()
    with torch.device("cpu"):
        ids = torch.cat((torch.full((16, 256), 257152), torch.ones(16, 20, dtype=torch.int64)), 1)
    words, mask = known(ids), _some(16, 1, 281, 281)
    places = [_ids(16, many) for many in (276, 1, 4)]
    rest = (_some(16, 3, 224, 224), mask, *places, _some(16, 1, 7), _some(16, 4, 7), _some(16))
    return Built(model, lambda: model(words, *rest))


def _llama_adapter(home: Any) -> Built:
    """LLaMA-Adapter V2 of 7B, tuned by biases and norms, with the picture as CLIP ViT-L/14 sees it."""
    block = import_module("timm.models.vision_transformer").Block
    model: Any = home.LLaMA_adapter.__new__(home.LLaMA_adapter)
    nn.Module.__init__(model)
    sees = import_module("clip.model").VisionTransformer(224, 14, 1024, _LAYERS, 16, 768)
    model.clip = _together(visual=sees)
    model.clip_proj, model.clip_proj_norm = nn.Linear(768, 768), nn.LayerNorm(768)
    model.query_len, model.query_layer = 10, _LAYERS
    model.visual_query = nn.Embedding(10, 768)
    model.visual_blocks = nn.ModuleList(block(768, 16, 4.0, qkv_bias=True) for _ in range(2))
    model.visual_proj, model.visual_proj_norm = nn.Linear(768, 4096), nn.LayerNorm(4096)
    model.adapter_query = nn.Embedding(10 * _LAYERS, 4096)
    model.llama = home.Transformer(home.ModelArgs(
        dim=4096, n_layers=_LAYERS + 1, n_heads=32, vocab_size=32000, max_seq_len=512, w_bias=True
    ))  # fmt: skip
    model.criterion = nn.CrossEntropyLoss(ignore_index=0)
    model.get_trainable_params("finetune")
    model.clip.visual = sees.to("meta", torch.bfloat16)
    words, pictures = _ids(4, 512), _some(4, 3, 224, 224)
    clip_proj = model.clip_proj.forward
    model.clip_proj.forward = lambda x: clip_proj(x.to(torch.bfloat16))
    with torch.device("cpu"):
        told = known(torch.ones(4, 512, dtype=torch.int64))
    return Built(model, lambda: model(words, told, pictures)[0])


def _adaptformer(home: Any) -> Built:
    """AdaptFormer-64 of ViT-B/16, as README.md trains it."""
    tuned = {"ffn_adapt": True, "ffn_option": "parallel", "ffn_adapter_layernorm_option": "none"}
    tuned |= {"ffn_adapter_init_option": "lora", "ffn_adapter_scalar": "0.1", "ffn_num": 64, "d_model": 768}
    model = home.vit_base_patch16(
        num_classes=100, global_pool=False, drop_path_rate=0.0,
        tuning_config=Namespace(**tuned, vpt_on=False, vpt_num=1),
    )  # fmt: skip
    model.blocks = model.blocks[:4]
    for name, weight in model.named_parameters():
        weight.requires_grad_("adaptmlp" in name or "head" in name)
    return _of_classes(model, _some(32, 3, 224, 224))


def _whisper(home: Any) -> Built:
    """DoRA of Whisper small, its queries and values."""
    _without_torchao()
    base = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(
        d_model=768, encoder_layers=_LAYERS, decoder_layers=_LAYERS, encoder_attention_heads=12,
        decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072, use_cache=False,
    ))  # fmt: skip
    config = home.LoraConfig(r=32, lora_alpha=64, target_modules=["q_proj", "v_proj"], lora_dropout=0.05,
                             use_dora=True)  # fmt: skip
    model = home.get_peft_model(base, config)
    sounds, words = _some(8, 80, 3000), _ids(8, 128)
    return Built(model, lambda: model(input_features=sounds, labels=words).loss)


def _qwen2(**over: Any) -> Any:
    """As wide as Qwen2.5 1.5B."""
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=_LAYERS,
        num_attention_heads=12, num_key_value_heads=2, use_cache=False, tie_word_embeddings=True, **over,
    ))  # fmt: skip


def _causal_lm(model: Any, *size: int) -> Built:
    ids = _ids(*size)
    seen = torch.ones_like(ids)
    return Built(model, lambda: model(input_ids=ids, attention_mask=seen, labels=ids).loss)


def _oft(home: Any) -> Built:
    """OFT of all linear layers of Qwen2.5."""
    vars(import_module("peft.utils.quantization_utils"))["is_torchao_available"] = lambda: False
    config = home.OFTConfig(oft_block_size=32, target_modules="all-linear", task_type="CAUSAL_LM")
    return _causal_lm(home.get_peft_model(_qwen2(), config), 4, 1024)


def _lokr(home: Any) -> Built:
    """LoKr of all of DINOv2 base but its classifier."""
    base = transformers.Dinov2ForImageClassification(transformers.Dinov2Config(
        num_hidden_layers=_LAYERS, num_labels=101, patch_size=14, image_size=224
    ))  # fmt: skip
    config = home.LoKrConfig(
        r=8, alpha=16, target_modules=["q_proj", "v_proj", "fc1", "fc2"], modules_to_save=["classifier"]
    )
    model = home.get_peft_model(base, config)
    pictures, labels = _some(32, 3, 224, 224), _ids(32)
    return Built(model, lambda: model(pixel_values=pictures, labels=labels).loss)


def _recomputed(home: Any) -> Built:
    """LoRA of Mistral 7B, every layer checkpointed, as trainers do on one GPU."""
    _without_torchao()
    base = transformers.MistralForCausalLM(transformers.MistralConfig(
        num_hidden_layers=_LAYERS, use_cache=False, sliding_window=None
    ))  # fmt: skip
    config = home.LoraConfig(task_type="CAUSAL_LM", r=16, target_modules=["q_proj", "v_proj"])
    model = home.get_peft_model(base, config)
    base.gradient_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()
    for module in model.modules():
        if hasattr(module, "_gradient_checkpointing_func"):
            module._gradient_checkpointing_func = _again
    return _causal_lm(model, 2, 2048)


def _bitfit(_: Any) -> Built:
    """BitFit: of RoBERTa base only biases and the classifier are trained."""
    model = transformers.RobertaForSequenceClassification(transformers.RobertaConfig(
        num_hidden_layers=4, num_labels=2, pad_token_id=1, type_vocab_size=1
    ))  # fmt: skip
    for name, weight in model.named_parameters():
        weight.requires_grad_("bias" in name or "classifier" in name)
    ids, labels = _ids(32, 256), _ids(32)
    seen = torch.ones_like(ids)
    return Built(model, lambda: model(input_ids=ids, attention_mask=seen, labels=labels).loss)


def _lisa(_: Any) -> Built:
    """LISA: of Llama 3.2 1B the embeddings, the head and one layer are trained in a step."""
    model = _llama(num_hidden_layers=4)
    for at, layer in enumerate(model.model.layers):
        layer.requires_grad_(at == 2)
    return _causal_lm(model, 4, 1024)


def _rt_detr(home: Any) -> Built:
    """RT-DETR-R50 without what it denoises, and the loss of its criterion."""
    zoo = import_module("src.zoo.rtdetr.hybrid_encoder"), import_module("src.zoo.rtdetr.rtdetr_decoder")
    sees = import_module("src.nn.backbone.presnet").PResNet(50, return_idx=[1, 2, 3])
    tells = zoo[1].RTDETRTransformer(
        feat_channels=[256] * 3, num_denoising=0, num_decoder_layers=_LAYERS
    )  # fmt: skip
    model = home.RTDETR(sees, zoo[0].HybridEncoder(), tells)
    matched = import_module("src.zoo.rtdetr.matcher")
    vars(matched)["linear_sum_assignment"] = lambda costs: (np.arange(costs.shape[1]),) * 2
    finds = matched.HungarianMatcher({"cost_class": 2, "cost_bbox": 5, "cost_giou": 2}, use_focal_loss=True)
    judge = import_module("src.zoo.rtdetr.rtdetr_criterion").SetCriterion(
        finds, {"loss_vfl": 1, "loss_bbox": 5, "loss_giou": 2}, ["vfl", "boxes"], 0.75, num_classes=80
    )
    pictures = _floats(8, 3, 640, 640)
    truth = [{"labels": _ids(8), "boxes": _floats(8, 4)} for _ in range(8)]
    return Built(
        _together(model=model, criterion=judge),
        lambda: torch.stack(list(judge(model(pictures), truth).values())).sum(),
    )


def _segmenter(home: Any) -> Built:
    """Seg-B-Mask/16 on ADE20K."""
    sees = import_module("segm.model.vit").VisionTransformer(
        (512, 512), 16, 4, 768, 3072, 12, 1000, dropout=0.0, drop_path_rate=0.1
    )
    tells = import_module("segm.model.decoder").MaskTransformer(
        150, 16, 768, 2, 12, 768, 3072, 0.0, 0.1
    )  # fmt: skip
    model = home.Segmenter(sees, tells, 150)
    pictures, labels = _some(4, 3, 512, 512), _ids(4, 512, 512)
    return Built(model, lambda: functional.cross_entropy(model(pictures), labels, ignore_index=255))


def _gmflow(home: Any) -> Built:
    """GMFlow as scripts/train_gmflow.sh has it on FlyingChairs, in windows."""
    model = home.GMFlow(num_transformer_layers=4)
    first, then, flow = _floats(4, 3, 384, 512), _floats(4, 3, 384, 512), _floats(4, 2, 384, 512)

    def loss() -> Tensor:
        told = model(first, then, attn_splits_list=[2], corr_radius_list=[-1], prop_radius_list=[-1])
        told, lost = told["flow_preds"], torch.zeros((), device="meta")
        for at, one in enumerate(told):
            lost = lost + 0.9 ** (len(told) - at - 1) * (one - flow).abs().mean()
        return lost

    return Built(model, loss)


def _musicgen(home: Any) -> Built:
    """The language model of MusicGen small, four codebooks, and its words as T5 tells them."""
    fuser = import_module("audiocraft.modules.conditioners").ConditionFuser(
        {"cross": ["description"], "prepend": [], "sum": [], "input_interpolate": []}
    )
    parts: Any = import_module("audiocraft.modules.transformer")
    parts.ops.unbind = torch.unbind
    parts.StreamingMultiheadAttention._get_mask = lambda *_: ()
    model = home.LMModel(
        None, nn.Identity(), fuser, n_q=4, card=2048, dim=1024, num_heads=16, hidden_scale=4, norm_first=True,
        bias_proj=False, bias_ff=False, bias_attn=False, causal=True, custom=True, memory_efficient=True,
        cross_attention=True, num_layers=_LAYERS, activation="gelu", dropout=0.0,
    )  # fmt: skip
    codes, words = _ids(8, 4, 1500), _some(8, 64, 1024)
    told = {"description": (words, torch.ones(8, 64, device="meta"))}

    def loss() -> Tensor:
        logits = model(codes, [], told)
        lost = [
            functional.cross_entropy(logits[:, at].reshape(-1, 2048), codes[:, at].reshape(-1))
            for at in range(4)
        ]
        return torch.stack(lost).mean()

    return Built(model, loss)


def _transact(home: Any) -> Built:
    """TransAct with its own configuration, in a click model of one layer, as the paper's wide one."""
    model = home.TransAct(import_module("transact_config").TransActConfig())
    head = nn.Sequential(nn.Linear(96 * 11, 1024), nn.ReLU(), nn.Linear(1024, 8))
    done, seen, when = _ids(2048, 100), _floats(2048, 100, 32), _floats(2048, 100)
    now, item, labels = _floats(2048), _floats(2048, 32), _floats(2048, 8)

    def loss() -> Tensor:
        out = head(model(done, seen, when, now, item))
        return functional.binary_cross_entropy_with_logits(out, labels)

    return Built(_together(transact=model, head=head), loss)


#: The module that is imported, and what builds of it.
_HOMES: dict[str, tuple[str, Callable[[Any], Built]]] = {
    "microsoft_unilm/beit3": ("modeling_finetune", _beit3),
    "facebookresearch_ImageBind/imagebind": ("imagebind.models.imagebind_model", _imagebind),
    "tonyzhaozh_act/act": ("models.detr_vae", _act),
    "allenzren_open-pi-zero/pi0": ("src.model.vla.pizero", _pi_zero),
    "OpenGVLab_LLaMA-Adapter/v2": ("llama.llama_adapter", _llama_adapter),
    "ShoufaChen_AdaptFormer/vit": ("models.vit_image", _adaptformer),
    "peft/whisper_dora": ("peft", _whisper),
    "peft/qwen2_oft": ("peft", _oft),
    "peft/dinov2_lokr": ("peft", _lokr),
    "peft/mistral_lora_recomputed": ("peft", _recomputed),
    "transformers/roberta_bitfit": ("transformers", _bitfit),
    "transformers/llama_lisa": ("transformers", _lisa),
    "lyuwenyu_RT-DETR/r50": ("src.zoo.rtdetr.rtdetr", _rt_detr),
    "rstrudel_segmenter/mask": ("segm.model.segmenter", _segmenter),
    "haofeixu_gmflow/gmflow": ("gmflow.gmflow", _gmflow),
    "facebookresearch_audiocraft/musicgen": ("audiocraft.models.lm", _musicgen),
    "pinterest_transformer_user_action/transact": ("transact", _transact),
}
NAMES = [name for name in LISTED if name in _HOMES]
#: Where in a clone its modules are.
_UNDER = {
    "microsoft_unilm": "beit3",
    "tonyzhaozh_act": "detr",
    "OpenGVLab_LLaMA-Adapter": "llama_adapter_v2_multimodal7b",
    "lyuwenyu_RT-DETR": "rtdetr_pytorch",
    "pinterest_transformer_user_action": "transact_code",
}
#: What a clone asks for and its model does not: kernels it does without, files, scores, drawing.
_UNUSED: dict[str, tuple[str, ...]] = {
    "microsoft_unilm": ("tensorboardX",),
    "tonyzhaozh_act": ("IPython",),
    "allenzren_open-pi-zero": ("hydra",),
    "facebookresearch_audiocraft": (
        "xformers", "flashy", "num2words", "spacy", "librosa", "dora", "av", "soundfile", "encodec", "demucs",
        "torchmetrics", "laion_clap", "hydra", "pesq", "pystoi", "torchdiffeq", "gradio",
    ),
}  # fmt: skip
#: Packages that import all they have, beside what is asked of them.
_BARE: dict[str, tuple[str, ...]] = {
    "facebookresearch_ImageBind": ("imagebind", "imagebind.models"),
    "tonyzhaozh_act": ("models",),
    "OpenGVLab_LLaMA-Adapter": ("llama",),
    "ShoufaChen_AdaptFormer": ("models",),
    "lyuwenyu_RT-DETR": ("src", "src.nn", "src.nn.backbone", "src.zoo", "src.zoo.rtdetr"),
    "facebookresearch_audiocraft": (
        "audiocraft",
        *(f"audiocraft.{x}" for x in ("models", "modules", "data")),
    ),
}
_STUBS: dict[str, dict[str, dict[str, Any]]] = {
    "microsoft_unilm": {"torch._six": {"inf": float("inf")}},
    "allenzren_open-pi-zero": {
        "bitsandbytes": {"nn": Namespace(Linear4bit=nn.Linear, Params4bit=nn.Parameter)},
        "bitsandbytes.nn": {"Linear4bit": nn.Linear, "Params4bit": nn.Parameter},
    },
}
#: What reads numbers while it is built.
_OF_NUMBERS: tuple[str, ...] = ("microsoft_unilm", "facebookresearch_ImageBind", "tonyzhaozh_act")
_OF_NUMBERS += ("ShoufaChen_AdaptFormer", "rstrudel_segmenter", "pinterest_transformer_user_action")
#: What asks for single precision.
_SINGLE: tuple[str, ...] = ("tonyzhaozh_act", "lyuwenyu_RT-DETR")
_SINGLE += ("haofeixu_gmflow", "pinterest_transformer_user_action")
