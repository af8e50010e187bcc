"""The training steps of the eighth list on pictures and sound: as ``recipes.py`` has it."""

# What comes of modules is anything.
# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest import mock

import torch
import transformers
from torch import Tensor
from torch.nn import functional

from benchmarks.hub.values import known
from benchmarks.libraries.models import Built, _ids, _some
from benchmarks.libraries.recipes import _LAYERS, LISTED, _frozen, _llama, _together, made
from benchmarks.libraries.recipes_truth import averaging, before
from benchmarks.libraries.trainers import _without_torchao


@contextmanager
def _alone() -> Iterator[None]:
    """In a group of one process."""
    home = torch.distributed
    with ExitStack() as stack:
        for name, what in (
            ("get_world_size", lambda *_: 1), ("get_rank", lambda *_: 0),
            ("all_reduce", lambda *_, **__: None), ("all_gather", lambda *_, **__: None),
        ):  # fmt: skip
            stack.enter_context(mock.patch.object(home, name, what))
        yield


def _averaged(student: Any, teacher: Any, keep: float = 0.996) -> None:
    """The moving average of weights, as the training loops have it."""
    with torch.no_grad(), averaging():
        for new, old in zip(student.parameters(), teacher.parameters(), strict=True):
            old.data.mul_(keep).add_((1 - keep) * new.detach().data)


def _crops(globals_: int, locals_: int, batch: int) -> list[Tensor]:
    sizes = [224] * globals_ + [96] * locals_
    return [_some(batch, 3, size, size) for size in sizes]


class _Vision:
    """A vision transformer of a clone, and its wrapper for crops of several sizes."""

    def __init__(self, home: Any, wrapper: Any, head: Callable[[], Any], **given: Any) -> None:
        self.home, self.wrapper, self.head, self.given = home, wrapper, head, given

    def __call__(self, **over: Any) -> Any:
        sizes = {"patch_size": 16, "embed_dim": 384, "depth": _LAYERS, "num_heads": 6, "qkv_bias": True}
        return self.wrapper(self.home.VisionTransformer(**sizes | self.given | over), self.head())


def _dino(home: Any) -> Built:
    """As main_dino.py has it for ViT-S/16: two large and eight small crops; the teacher is their average."""
    make = _Vision(
        home.vits, home.utils.MultiCropWrapper, lambda: home.DINOHead(384, 65536, norm_last_layer=True)
    )
    student, teacher = make(drop_path_rate=0.1), make()
    teacher.requires_grad_(False)
    lost = home.DINOLoss(65536, 10, 0.04, 0.04, 0, 100)
    crops = _crops(2, 8, 8)

    def loss() -> Tensor:
        known(torch.ones((), device="cpu")).item()  # the sizes of crops are to be known, too
        with _alone():
            taught = teacher(crops[:2])
            out: Tensor = lost(student(crops), taught, 0)
        _averaged(student, teacher)
        return out

    return Built(_together(student=student, teacher=teacher, criterion=lost), loss)


def _ibot(home: Any) -> Built:
    """As main_ibot.py has it for ViT-S/16: patches that are hidden in large crops, and ten small ones."""
    vision = import_module("models.vision_transformer")
    head = import_module("models.head").iBOTHead

    def heads() -> Any:
        return head(384, 8192, patch_out_dim=8192, norm=None, act="gelu", shared_head=True)

    make = _Vision(vision, home.utils.MultiCropWrapper, heads, return_all_tokens=True)
    student, teacher = make(drop_path_rate=0.1, masked_im_modeling=True), make()
    teacher.requires_grad_(False)
    lost = home.iBOTLoss(8192, 8192, 2, 10, 0.04, 0.04, 0.04, 0.04, 0, 100)
    crops = _crops(2, 10, 8)
    hidden = torch.zeros(8, 14, 14, dtype=torch.bool, device="cpu")
    hidden[:, :4] = True

    def loss() -> Tensor:
        known(torch.ones((), device="cpu")).item()
        masks = [known(hidden.clone()) for _ in range(2)]
        with _alone():
            taught = teacher(crops[:2])
            seen = student(crops[:2], mask=masks)
            student.backbone.masked_im_modeling = False
            small = student(crops[2:])[0]
            student.backbone.masked_im_modeling = True
            out: Tensor = lost(seen, taught, small, masks, 0)["loss"]
        return out

    return Built(_together(student=student, teacher=teacher, criterion=lost), loss)


def _moco(home: Any) -> Built:
    """As main_moco.py has it for ViT-B/16, whose patches are embedded by frozen weights."""
    sys.modules.setdefault("timm.models.layers.helpers", import_module("timm.layers.helpers"))  # moved since
    vits = import_module("vits")
    vits.VisionTransformerMoCo.num_tokens = 1  # as timm had it
    model = home.MoCo_ViT(
        lambda num_classes: vits.VisionTransformerMoCo(
            stop_grad_conv1=True, num_classes=num_classes, patch_size=16, embed_dim=768, depth=_LAYERS,
            num_heads=12, qkv_bias=True,
        ), 256, 4096, 0.2,
    )  # fmt: skip
    first, second = _crops(2, 0, 32)

    def loss() -> Tensor:
        with _alone():
            out: Tensor = model(first, second, 0.99)
        return out

    return Built(model, loss)


def _ijepa(home: Any) -> Built:
    """As configs/in1k_vith14_ep300.yaml has it, as wide as ViT-B/16: four targets of each picture."""
    sizes = {"patch_size": 16, "embed_dim": 768, "num_heads": 12, "mlp_ratio": 4, "qkv_bias": True}
    encoder, target = (home.VisionTransformer(img_size=[224], depth=_LAYERS, **sizes) for _ in range(2))
    predictor = home.vit_predictor(
        num_patches=196, embed_dim=768, predictor_embed_dim=384, depth=_LAYERS, num_heads=12
    )
    target.requires_grad_(False)
    pictures, seen, hidden = _some(32, 3, 224, 224), [_ids(32, 100)], [_ids(32, 30) for _ in range(4)]
    repeat = import_module("src.utils.tensors").repeat_interleave_batch

    def loss() -> Tensor:
        with torch.no_grad():
            told = target(pictures)
            told = functional.layer_norm(told, (told.size(-1),))
            told = repeat(home.apply_masks(told, hidden), len(pictures), repeat=1)
        out = predictor(encoder(pictures, seen), seen, hidden)
        lost = functional.smooth_l1_loss(out, told)
        _averaged(encoder, target)
        return lost

    return Built(_together(encoder=encoder, predictor=predictor, target=target), loss)


def _deit(home: Any) -> Built:
    """Hard distillation of DeiT-S as main.py has it, of a RegNetY of timm, and pictures that are mixed."""
    timm = import_module("timm")
    student = home.DistilledVisionTransformer(
        patch_size=16, embed_dim=384, depth=_LAYERS, num_heads=6, qkv_bias=True, drop_path_rate=0.1
    )
    teacher = _frozen(timm.create_model("regnety_040"))
    base = import_module("timm.loss").SoftTargetCrossEntropy()
    lost = import_module("losses").DistillationLoss(base, teacher, "hard", 0.5, 1.0)
    pictures, labels = _some(32, 3, 224, 224), _some(32, 1000)

    def loss() -> Tensor:
        with before():
            mixed = pictures * 0.8 + pictures.flip(0) * 0.2
        out: Tensor = lost(mixed, student(mixed), labels)
        return out

    return Built(_together(student=student, criterion=lost), loss)


def _nanovlm(home: Any) -> Built:
    """As config.py has it, of the sizes of SigLIP 2 B/16 and SmolLM2 360M."""
    config = import_module("models.config").VLMConfig(
        vit_n_blocks=_LAYERS, lm_n_blocks=_LAYERS, lm_vocab_size=49218
    )
    home.get_tokenizer = lambda *_: Namespace(image_token_id=1)
    model = home.VisionLanguageModel(config, load_backbone=False)
    places = torch.zeros(4, 1024, dtype=torch.bool, device="cpu")
    places[:, : config.mp_image_token_length] = True
    ids, pictures = _ids(4, 1024), _some(4, 3, config.vit_img_size, config.vit_img_size)

    def loss() -> Tensor:
        told = known(places.long())
        return model(told, pictures, attention_mask=torch.ones_like(ids), targets=ids)[1]

    return Built(model, loss)


def _unet(home: Any, **over: Any) -> Any:
    """As wide as that of Stable Diffusion 1.5, without its last stage."""
    return home.UNet2DConditionModel(
        sample_size=64, block_out_channels=(320, 640, 1280), layers_per_block=1, cross_attention_dim=768,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"), attention_head_dim=8,
        **over,
    )  # fmt: skip


def _latent(home: Any) -> tuple[Any, Any, Callable[[], tuple[Tensor, Tensor]]]:
    """A frozen VAE and a frozen CLIP, and what they make of pictures and captions of 512 x 512."""
    kinds = ("DownEncoderBlock2D",) * 4, ("UpDecoderBlock2D",) * 4
    vae = _frozen(home.AutoencoderKL(
        latent_channels=4, block_out_channels=(128, 256, 512, 512), layers_per_block=1,
        down_block_types=kinds[0], up_block_types=kinds[1], sample_size=512,
    ))  # fmt: skip
    text = _frozen(transformers.CLIPTextModel(transformers.CLIPTextConfig(
        vocab_size=49408, hidden_size=768, intermediate_size=3072, num_hidden_layers=_LAYERS,
        num_attention_heads=12, max_position_embeddings=77,
    )))  # fmt: skip
    pictures, ids = _some(4, 3, 512, 512), _ids(4, 77)

    def seen() -> tuple[Tensor, Tensor]:
        with before():
            latents = vae.encode(pictures).latent_dist.sample() * vae.config.scaling_factor
            return latents, text(ids, return_dict=False)[0]

    return vae, text, seen


def _noised(home: Any, latents: Tensor) -> tuple[Any, Tensor, Tensor, Tensor]:
    """A scheduler, noise, times, and latents with noise."""
    with before():
        times, noise = torch.randint(0, 1000, (len(latents),), device="meta"), torch.randn_like(latents)
        schedule = home.DDPMScheduler(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012)
        return schedule, noise, times, schedule.add_noise(latents, noise, times)


def _text_to_image(home: Any) -> Built:
    """examples/text_to_image/train_text_to_image_lora.py with snr_gamma."""
    _without_torchao()
    peft = import_module("peft")
    vae, text, seen = _latent(home)
    unet = _unet(home).requires_grad_(False)
    unet.add_adapter(peft.LoraConfig(
        r=4, lora_alpha=4, init_lora_weights="gaussian", target_modules=["to_k", "to_q", "to_v", "to_out.0"]
    ))  # fmt: skip
    snr = import_module("diffusers.training_utils").compute_snr

    def loss() -> Tensor:
        latents, words = seen()
        schedule, noise, times, noised = _noised(home, latents)
        out = unet(noised, times, words, return_dict=False)[0]
        ratio = snr(schedule, times)
        weights = torch.stack([ratio, 5.0 * torch.ones_like(times)], dim=1).min(dim=1)[0] / ratio
        lost = functional.mse_loss(out.float(), noise.float(), reduction="none")
        return (lost.mean(dim=list(range(1, len(lost.shape)))) * weights).mean()

    return Built(_together(vae=vae, text_encoder=text, unet=unet), loss)


def _controlnet(home: Any) -> Built:
    """examples/controlnet/train_controlnet.py: the UNet is frozen, and gradients run through it."""
    vae, text, seen = _latent(home)
    unet = _unet(home)
    control = home.ControlNetModel.from_unet(unet, load_weights_from_unet=False)
    _frozen(unet)
    edges = _some(4, 3, 512, 512)

    def loss() -> Tensor:
        latents, words = seen()
        _, noise, times, noised = _noised(home, latents)
        down, mid = control(
            noised, times, encoder_hidden_states=words, controlnet_cond=edges, return_dict=False
        )
        out = unet(
            noised, times, encoder_hidden_states=words, down_block_additional_residuals=down,
            mid_block_additional_residual=mid, return_dict=False,
        )[0]  # fmt: skip
        return functional.mse_loss(out.float(), noise.float(), reduction="mean")

    return Built(_together(vae=vae, text_encoder=text, unet=unet, controlnet=control), loss)


def _lcm(home: Any) -> Built:
    """examples/consistency_distillation/train_lcm_distill_sd_wds.py: a student, its average, a teacher."""
    vae, text, seen = _latent(home)
    student, target = (_unet(home, time_cond_proj_dim=256) for _ in range(2))
    teacher = _frozen(_unet(home))
    target.requires_grad_(False)
    nothing = _some(4, 77, 768)

    def scaled(times: Tensor) -> tuple[Tensor, Tensor]:
        far = 10.0 * times
        skip, out = 0.25 / (far**2 + 0.25), far / (far**2 + 0.25) ** 0.5
        return skip[:, None, None, None], out[:, None, None, None]

    def rate(schedule: Any, times: Tensor) -> tuple[Tensor, Tensor]:
        alphas = schedule.alphas_cumprod
        return tuple(x.gather(-1, times).reshape(-1, 1, 1, 1) for x in (alphas.sqrt(), (1 - alphas).sqrt()))

    def loss() -> Tensor:
        latents, words = seen()
        schedule, noise, start, noised = _noised(home, latents)
        with before():
            times = torch.where(start < 20, torch.zeros_like(start), start - 20)
            skips, skip = scaled(start), scaled(times)
            guidance = 10.0 * torch.rand((4,)) + 5.0
            told = home.training_guidance(guidance).to(latents.dtype)
            guidance = guidance.reshape(4, 1, 1, 1).to(latents.dtype)
        out = student(noised, start, timestep_cond=told, encoder_hidden_states=words).sample
        alpha, sigma = rate(schedule, start)
        guess = skips[0] * noised + skips[1] * ((noised - sigma * out) / alpha)
        with torch.no_grad():
            with_words = teacher(noised, start, encoder_hidden_states=words).sample
            without = teacher(noised, start, encoder_hidden_states=nothing).sample
            clean, bare = ((noised - sigma * x) / alpha for x in (with_words, without))
            clean = clean + guidance * (clean - bare)
            noise = with_words + guidance * (with_words - without)
            alpha, sigma = rate(schedule, times)
            earlier = (alpha * clean + sigma * noise).to(latents.dtype)
            out = target(earlier, times, timestep_cond=told, encoder_hidden_states=words).sample
            aim = skip[0] * earlier + skip[1] * ((earlier - sigma * out) / alpha)
        off = (guess.float() - aim.float()) ** 2
        lost = torch.mean(torch.sqrt(off + 0.001**2) - 0.001)
        _averaged(student, target, 0.95)
        return lost

    def guided(weight: Tensor) -> Tensor:
        """guidance_scale_embedding of the script."""
        steps = torch.exp(torch.arange(128) * -0.07)
        far = (weight * 1000.0)[:, None] * steps[None]
        return torch.cat([torch.sin(far), torch.cos(far)], dim=1)

    home.training_guidance = guided
    parts = {"student": student, "target": target, "teacher": teacher}
    return Built(_together(vae=vae, text_encoder=text, **parts), loss)


def _llava(_: Any) -> Built:
    """The first stage of LLaVA 1.5: only its projector is trained, of a frozen CLIP and a frozen Llama."""
    sees = transformers.CLIPVisionConfig(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=_LAYERS, num_attention_heads=16,
        image_size=336, patch_size=14, projection_dim=768,
    )  # fmt: skip
    text = transformers.LlamaConfig(
        vocab_size=32064, hidden_size=4096, intermediate_size=11008, num_hidden_layers=_LAYERS,
        num_attention_heads=32, use_cache=False,
    )  # fmt: skip
    model = transformers.LlavaForConditionalGeneration(
        transformers.LlavaConfig(vision_config=sees, text_config=text, image_token_index=32000)
    )
    _frozen(model).model.multi_modal_projector.requires_grad_(True)
    pictures, ids = _some(2, 3, 336, 336), torch.zeros(2, 1024, dtype=torch.int64, device="cpu")
    ids[:, :576] = 32000

    def loss() -> Tensor:
        told = known(ids)
        return model(
            input_ids=told, pixel_values=pictures, attention_mask=torch.ones_like(ids, device="meta"),
            labels=_ids(2, 1024),
        ).loss  # fmt: skip

    return Built(model, loss)


def _wav2vec2(_: Any) -> Built:
    """examples/pytorch/speech-pretraining: masked frames, a hundred negatives, codes that are all used."""
    config = transformers.Wav2Vec2Config(
        num_hidden_layers=_LAYERS, do_stable_layer_norm=False, layerdrop=0.0, final_dropout=0.0
    )
    model, sounds = transformers.Wav2Vec2ForPreTraining(config), _some(4, 160000)
    hidden = torch.zeros(4, 499, dtype=torch.bool, device="cpu")
    hidden[:, ::2] = True

    def loss() -> Tensor:
        mask, others = known(hidden), _ids(4, 499, 100)
        return model(sounds, mask_time_indices=mask, sampled_negative_indices=others).loss

    return Built(model, loss)


def _bart(_: Any) -> Built:
    """Seq2SeqTrainer with label_smoothing_factor=0.1, as wide as BART large."""
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(
        encoder_layers=_LAYERS, decoder_layers=_LAYERS, use_cache=False
    ))  # fmt: skip
    smooths = import_module("transformers.trainer_pt_utils").LabelSmoother(epsilon=0.1)
    ids, told = _ids(8, 512), _ids(8, 128)

    def loss() -> Tensor:
        out = model(input_ids=ids, attention_mask=torch.ones_like(ids), decoder_input_ids=told)
        return smooths(out, told)

    return Built(model, loss)


def _prefix(home: Any) -> Built:
    """Prefix tuning of Llama: thirty keys and values in front, that an MLP makes."""
    given = {"num_virtual_tokens": 30, "prefix_projection": True, "encoder_hidden_size": 512}
    model = home.get_peft_model(_llama(use_cache=True), home.PrefixTuningConfig(
        task_type="CAUSAL_LM", **given
    ))  # fmt: skip
    ids = _ids(4, 512)
    return Built(model, lambda: model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss)


def _vera(home: Any) -> Built:
    """VeRA of Mistral: two matrices for all layers, and vectors of their own."""
    reads: Any = import_module("peft.utils.quantization_utils")
    reads.is_torchao_available = lambda: False
    base = transformers.MistralForCausalLM(transformers.MistralConfig(
        vocab_size=32000, hidden_size=4096, intermediate_size=14336, num_hidden_layers=_LAYERS,
        num_attention_heads=32, num_key_value_heads=8, use_cache=False, sliding_window=None,
    ))  # fmt: skip
    config = home.VeraConfig(task_type="CAUSAL_LM", r=256, target_modules=["q_proj", "v_proj", "down_proj"])
    model, ids = home.get_peft_model(base, config), _ids(4, 1024)
    return Built(model, lambda: model(input_ids=ids, labels=ids).loss)


def _adalora(home: Any) -> Built:
    """AdaLoRA of RoBERTa, and its loss that keeps vectors orthogonal."""
    _without_torchao()
    base = transformers.RobertaForSequenceClassification(transformers.RobertaConfig(
        hidden_size=1024, intermediate_size=4096, num_attention_heads=16, num_hidden_layers=_LAYERS,
        num_labels=3, pad_token_id=1,
    ))  # fmt: skip
    config = home.AdaLoraConfig(
        task_type="SEQ_CLS", init_r=12, target_r=8, total_step=1000, lora_dropout=0.1,
        target_modules=["query", "value", "intermediate.dense", "output.dense"],
    )  # fmt: skip
    model, ids, labels = home.get_peft_model(base, config), _ids(64, 384), _ids(64)
    return Built(model, lambda: model(input_ids=ids, labels=labels).loss)


def _siglip(home: Any) -> Built:
    """SigLIP as open_clip trains ViT-B-16-SigLIP, of which these are a few layers."""
    vision = {"image_size": 224, "timm_model_name": "vit_base_patch16_siglip_224"}
    vision |= {"timm_model_pretrained": False, "timm_pool": "map", "timm_proj": "none"}
    text: dict[str, Any] = {
        "context_length": 64,
        "vocab_size": 32000,
        "width": 768,
        "heads": 12,
        "layers": _LAYERS,
    }
    text |= {"no_causal_mask": True, "proj_bias": True, "pool_type": "last", "norm_kwargs": {"eps": 1e-6}}
    model = home.CustomTextCLIP(768, vision, text, init_logit_bias=-10, output_dict=True)
    model.visual.trunk.blocks = model.visual.trunk.blocks[:_LAYERS]
    lost = import_module("open_clip.loss").SigLipLoss(rank=0, world_size=1)
    pictures, ids = _some(64, 3, 224, 224), _ids(64, 64)

    def loss() -> Tensor:
        out: Tensor = lost(**model(pictures, ids), output_dict=True)["contrastive_loss"]
        return out

    return Built(_together(model=model, criterion=lost), loss)


#: The module that is imported, and what builds of it.
_HOMES: dict[str, tuple[str, Callable[[Any], Built]]] = {
    "facebookresearch_dino/dino": ("main_dino", _dino),
    "facebookresearch_moco-v3/moco": ("moco.builder", _moco),
    "bytedance_ibot/ibot": ("main_ibot", _ibot),
    "facebookresearch_ijepa/ijepa": ("src.models.vision_transformer", _ijepa),
    "facebookresearch_deit/distill": ("models", _deit),
    "huggingface_nanoVLM/vlm": ("models.vision_language_model", _nanovlm),
    "diffusers/text_to_image_lora": ("diffusers", _text_to_image),
    "diffusers/controlnet": ("diffusers", _controlnet),
    "diffusers/consistency": ("diffusers", _lcm),
    "transformers/llava_projector": ("transformers", _llava),
    "transformers/wav2vec2_pretraining": ("transformers", _wav2vec2),
    "transformers/bart_smoothed": ("transformers", _bart),
    "peft/llama_prefix": ("peft", _prefix),
    "peft/mistral_vera": ("peft", _vera),
    "peft/roberta_adalora": ("peft", _adalora),
    "open_clip/siglip": ("open_clip", _siglip),
}
NAMES = [name for name in LISTED if name in _HOMES]


def build(name: str) -> Built:
    """One of these."""
    return made(name, _HOMES)
