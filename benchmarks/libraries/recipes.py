"""Builds training steps as people run them, around models that are known: an eighth list.

The folder of the clones is that of ``clones.py``, each in a folder OWNER_NAME at the commit here:
huggingface/trl f2cd57710ae3, UKPLab/sentence-transformers 85ec64559f44, stanford-futuredata/ColBERT
501c29d9e0b7, facebookresearch/DPR a31212dc0a54, facebookresearch/dino 7c446df5b9f4, facebookresearch/moco-v3
c349e6e24f40, bytedance/ibot da316d82636a, facebookresearch/ijepa 52c1ae95d05f, facebookresearch/deit
7e160fe43f02, lucidrains/electra-pytorch 5b8bae5c3575, FasterDecoding/Medusa e2a5d20c048a, SafeAILab/EAGLE
cb7e0841fe0c, huggingface/transformers-research-projects fccd0cdab03c, princeton-nlp/SimCSE 49fa580a8537 and
huggingface/nanoVLM 4e0c09618461. Of diffusers the scripts are those at 58eb52c0803e.

Imports ask for peft 0.21.2, diffusers 0.42.1, open_clip_torch, timm, torchvision, datasets, accelerate,
transformers and einops. Widths are those of models that people train, a few layers deep; what is frozen, what
runs without gradients and what is computed after the model is as in the recipe.
"""

# What comes of modules is anything.
# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import sys
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.hub.values import known
from benchmarks.libraries.clones import _cloned, _folder
from benchmarks.libraries.models import Built, _ids, _some
from benchmarks.libraries.recipes_truth import averaging, before
from benchmarks.libraries.senses import _floats, _without
from benchmarks.libraries.trainers import _without_torchao

NAMES = Path(__file__).parents[1].joinpath("fresh", "libraries_8.txt").read_text().split()
_LAYERS = 3


def _frozen(model: Any) -> Any:
    """Without gradients, and never training."""
    model.requires_grad_(False).eval()
    model.train = lambda mode=True: model
    return model


def _together(**parts: Any) -> nn.Module:
    """Models of one recipe, by what they are in it."""
    return nn.ModuleDict(parts)


def _llama(kind: Any = None, **over: Any) -> Any:
    """As wide as Llama 3.2 1B."""
    kind = kind or transformers.LlamaForCausalLM
    given = {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32}
    given |= {"num_key_value_heads": 8, "num_hidden_layers": _LAYERS, "use_cache": False, "pad_token_id": 0}
    return kind(transformers.LlamaConfig(**given | over))


def _qwen(**over: Any) -> Any:
    """As wide as Qwen3 0.6B."""
    given = {"vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "head_dim": 128}
    given |= {"num_attention_heads": 16, "num_key_value_heads": 8, "num_hidden_layers": _LAYERS}
    given |= {"use_cache": False, "tie_word_embeddings": True}
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**given | over))


def _bert(kind: Any, **over: Any) -> Any:
    return kind(transformers.BertConfig(num_hidden_layers=_LAYERS, **over))


def _trainer(kind: Any, model: Any, **given: Any) -> Any:
    """A trainer of trl, of which only the loss is asked."""
    made = object.__new__(kind)
    alone = Namespace(
        device=torch.device("meta"), num_processes=1, gather=lambda x: x, gather_for_metrics=lambda x: x,
        unwrap_model=lambda x, **_: x, is_main_process=False, reduce=lambda x, **_: x,
    )  # fmt: skip
    metrics: Any = defaultdict(lambda: defaultdict(list))
    made.__dict__.update(model=model, accelerator=alone, _metrics=metrics, aux_loss_enabled=False, **given)
    return made


def _dpo(home: Any) -> Built:
    """DPOTrainer with its defaults: the chosen and the rejected in a batch, and a frozen reference."""
    policy, reference = _llama(), _frozen(_llama())
    trainer = _trainer(
        home.DPOTrainer, policy, ref_model=reference, ld_alpha=None, precompute_ref_logps=False,
        args=Namespace(gradient_checkpointing_kwargs=None), f_divergence_type="reverse_kl", beta=0.1,
        loss_types=["sigmoid"], loss_weights=[1.0], label_smoothing=0.0, use_weighting=False,
        _total_train_tokens=0,
    )  # fmt: skip
    ids = _ids(8, 512)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "completion_mask": ids}
    model = _together(policy=policy, reference=reference)
    return Built(model, lambda: trainer._compute_loss(policy, given, False))


def _grpo(home: Any) -> Built:
    """GRPOTrainer, with a LoRA of Qwen3 and the log-probabilities of a reference."""
    _without_torchao()
    peft = import_module("peft")
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=16, target_modules="all-linear", lora_dropout=0.05)
    model = peft.get_peft_model(_qwen(), config)
    trainer = _trainer(
        home.GRPOTrainer, model, top_entropy_quantile=1.0, off_policy_mask_threshold=None, beta=0.04,
        importance_sampling_level="token", use_vllm=False, loss_type="dapo",
        epsilon_low=0.2, epsilon_high=0.28, temperature=1.0, current_gradient_accumulation_steps=1,
        model_kwarg_keys={"logits_to_keep"}, num_generations=8,
        args=Namespace(delta=None, use_bias_correction_kl=False),
        vllm_importance_sampling_correction=False, use_liger_kernel=False, _entropy_bonus_enabled=False,
        entropy_coef=0.0,
    )  # fmt: skip
    ids, told = _ids(8, 256), _ids(8, 512)
    given = {
        "prompt_ids": ids, "prompt_mask": torch.ones_like(ids), "completion_ids": told,
        "completion_mask": torch.ones_like(told), "advantages": _floats(8), "num_items_in_batch": _floats(),
        "ref_per_token_logps": _floats(8, 512), "old_per_token_logps": _floats(8, 512),
    }  # fmt: skip
    return Built(model, lambda: trainer._compute_loss(model, given))


def _reward(home: Any) -> Built:
    """RewardTrainer with its defaults: rewards are to be zero in the mean."""
    model = _llama(transformers.LlamaForSequenceClassification, num_labels=1)
    trainer = _trainer(
        home.RewardTrainer, model, args=Namespace(center_rewards_coefficient=0.01), _total_train_tokens=0
    )
    ids = _ids(8, 1024)

    def loss() -> Tensor:
        return trainer.compute_loss(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    return Built(model, loss)


def _gkd(home: Any) -> Built:
    """GKDTrainer: a student, and a teacher as wide as Qwen3 4B."""
    student = _qwen()
    teacher = _frozen(_qwen(
        hidden_size=2560, intermediate_size=9728, num_attention_heads=32
    ))  # fmt: skip
    trainer = _trainer(home.GKDTrainer, student, teacher_model=teacher, use_liger_gkd_loss=False, beta=0.5)
    ids = _ids(4, 512)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    model = _together(student=student, teacher=teacher)
    return Built(model, lambda: trainer.compute_loss(student, given))


def _ppo(home: Any) -> Built:
    """The update of PPOTrainer.train, of a policy and a value model as wide as Pythia 1B."""
    config = transformers.GPTNeoXConfig(
        vocab_size=50304, hidden_size=2048, intermediate_size=8192, num_hidden_layers=_LAYERS,
        num_attention_heads=8, use_cache=False, num_labels=1, pad_token_id=0,
    )  # fmt: skip
    policy = transformers.GPTNeoXForCausalLM(config)
    value = transformers.GPTNeoXForSequenceClassification(config)
    both = home.PolicyAndValueWrapper(policy, value)
    ids, start = _ids(8, 512), 256
    told, mask = ids[:, start:], torch.zeros(8, 512 - start, dtype=torch.bool, device="meta")
    old, gain, worth, back = (_floats(8, 512 - start) for _ in range(4))

    def loss() -> Tensor:
        output, guessed = home.forward(both, ids, 0)
        logits = output.logits[:, start - 1 : -1]
        logits /= 0.7 + 1e-7
        logprobs = home.selective_log_softmax(logits, told)
        logprobs = torch.masked_fill(logprobs, mask, 1.0)
        guess = torch.masked_fill(guessed[:, start - 1 : -1].squeeze(-1), mask, 0)
        clipped = torch.clamp(guess, worth - 0.2, worth + 0.2)
        off = torch.max(torch.square(guess - back), torch.square(clipped - back))
        of_values = 0.5 * home.masked_mean(off, ~mask)
        ratio = torch.exp(logprobs - old)
        lost = torch.max(-gain * ratio, -gain * torch.clamp(ratio, 0.8, 1.2))
        return home.masked_mean(lost, ~mask) + 0.1 * of_values

    return Built(both, loss)


def _dft(home: Any) -> Built:
    """SFTTrainer with loss_type="dft", of Qwen2 as wide as 1.5B."""
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=_LAYERS,
        num_attention_heads=12, num_key_value_heads=2, use_cache=False, tie_word_embeddings=True,
    ))  # fmt: skip
    ids = _ids(4, 1024)
    return Built(model, lambda: home.dft_loss(model(input_ids=ids, attention_mask=torch.ones_like(ids)), ids))


def _sentence(home: Any, kind: str, model: Any, pool: Any) -> Any:
    """A SentenceTransformer of a model that is not loaded."""
    holds = getattr(import_module(home), kind)
    first = holds.__new__(holds)
    nn.Module.__init__(first)
    first.auto_model, first.config, first.backend = model, model.config, "torch"
    first.model_forward_params = {"input_ids", "attention_mask"}
    return nn.Sequential(first, pool)


def _texts(*sizes: tuple[int, int]) -> list[dict[str, Tensor]]:
    made = (_ids(*size) for size in sizes)
    return [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in made]


def _ranks(home: Any) -> Built:
    """MultipleNegativesRankingLoss of questions, answers and hard negatives, with MPNet."""
    base = transformers.MPNetModel(transformers.MPNetConfig(num_hidden_layers=_LAYERS))
    pool = import_module("sentence_transformers.models").Pooling(768)
    model = _sentence("sentence_transformers.models", "Transformer", base, pool)
    lost = home.MultipleNegativesRankingLoss(model)
    return Built(lost, lambda: lost(_texts((64, 32), (64, 256), (64, 256)), None))


def _splade(home: Any) -> Built:
    """SpladeLoss with DistilBERT: ranking, and FLOPs of queries and documents."""
    base = transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(n_layers=_LAYERS))
    models = "sentence_transformers.sparse_encoder.models"
    pool = import_module(models).SpladePooling("max")
    model = _sentence(models, "MLMTransformer", base, pool)
    ranks = home.SparseMultipleNegativesRankingLoss(model)
    lost = home.SpladeLoss(model, ranks, document_regularizer_weight=3e-5, query_regularizer_weight=5e-5)

    def loss() -> Tensor:
        parts = lost(_texts((32, 32), (32, 128), (32, 128)))
        return torch.stack(list(parts.values())).sum()

    return Built(lost, loss)


def _colbert(home: Any) -> Built:
    """ColBERT as training.py has it: two passages of a query, and negatives in the batch."""
    config = import_module("colbert.infra.config").ColBERTConfig(
        nway=2, use_ib_negatives=True, interaction="colbert"
    )
    model: Any = home.ColBERT.__new__(home.ColBERT)
    nn.Module.__init__(model)
    model.colbert_config, model.use_gpu, model.skiplist, model.pad_token = config, False, {}, 0
    model.model = transformers.BertPreTrainedModel(transformers.BertConfig())
    model.model.LM = _bert(transformers.BertModel)
    model.model.linear = nn.Linear(768, 128, bias=False)
    queries, passages, labels = _ids(32, 32), _ids(64, 180), _ids(32)

    def loss() -> Tensor:
        asked, told = ((ids, torch.ones_like(ids)) for ids in (queries, passages))
        scores, more = model(asked, told)
        return functional.cross_entropy(scores.view(-1, 2), labels) + more

    return Built(model, loss)


def _dpr(home: Any) -> Built:
    """As conf/train/biencoder_nq.yaml has it: two encoders, a hard negative for each question."""

    class HFBertEncoder(transformers.BertModel):  # type: ignore[misc]
        """That of dpr/models/hf_models.py: the first token stands for all."""

        def forward(self, ids: Any, segments: Any, mask: Any, representation_token_pos: int = 0) -> Any:
            given = {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask}
            out = super().forward(**given).last_hidden_state
            return out, out[:, representation_token_pos, :], None

    model = home.BiEncoder(*(_bert(HFBertEncoder) for _ in range(2)))
    asked, told = _ids(64, 256), _ids(128, 256)
    right = list(range(0, 128, 2))

    def loss() -> Tensor:
        given = (x for ids in (asked, told) for x in (ids, torch.zeros_like(ids), torch.ones_like(ids)))
        return home.BiEncoderNllLoss().calc(*model(*given), right)[0]

    return Built(model, loss)


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


class _Logits(nn.Module):
    """What electra_pytorch's README does with a model of transformers."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Tensor) -> Any:
        return self.inner(input_ids=ids).logits


def _electra(home: Any) -> Built:
    """ELECTRA as wide as base: a generator a third as wide, whose embeddings are the discriminator's."""
    sizes = {"num_hidden_layers": _LAYERS, "embedding_size": 768}
    maker = transformers.ElectraForMaskedLM(transformers.ElectraConfig(
        hidden_size=256, intermediate_size=1024, num_attention_heads=4, **sizes
    ))  # fmt: skip
    judge = transformers.ElectraForPreTraining(transformers.ElectraConfig(
        hidden_size=768, intermediate_size=3072, num_attention_heads=12, **sizes
    ))  # fmt: skip
    maker.electra.embeddings.word_embeddings = judge.electra.embeddings.word_embeddings
    maker.tie_weights()
    model = home.Electra(_Logits(maker), _Logits(judge), num_tokens=30522, mask_token_id=103, pad_token_id=0)
    ids = _ids(32, 128)

    def of_few(mask: Tensor, prob: float) -> Tensor:
        """What get_mask_subset_with_prob gives, of tokens whose number is known."""
        places = torch.rand(mask.shape, device="meta").masked_fill(~mask, -1e9).topk(19, dim=-1)[1]
        return torch.zeros(mask.shape, device="meta").scatter_(-1, places, 1).bool()

    home.get_mask_subset_with_prob = of_few
    return Built(model, lambda: model(ids)[0])


def _medusa(home: Any) -> Built:
    """The first stage of Medusa: heads of a frozen model, and the loss of train_legacy.py."""
    base = _frozen(_llama(num_key_value_heads=32, vocab_size=32000))
    model = home.MedusaModel.__new__(home.MedusaModel)
    nn.Module.__init__(model)
    model.base_model, model.medusa, model.medusa_num_layers = base, 4, 1
    model.medusa_head = nn.ModuleList(
        nn.Sequential(home.ResBlock(2048), nn.Linear(2048, 32000, bias=False)) for _ in range(4)
    )
    ids = _ids(4, 1024)

    def loss() -> Tensor:
        with torch.no_grad():
            hidden = base.model(input_ids=ids, attention_mask=torch.ones_like(ids))[0].clone()
        lost = torch.zeros((), device="meta")
        logits = torch.stack([head(hidden) for head in model.medusa_head])
        for at in range(4):
            own = logits[at, :, : -(2 + at)].contiguous().view(-1, logits.shape[-1])
            lost = lost + functional.cross_entropy(own, ids[..., 2 + at :].contiguous().view(-1))
            own.topk(1, dim=-1)
        return lost

    return Built(model, loss)


def _again(function: Callable[..., Any], *given: Any, **_: Any) -> Any:
    """torch.utils.checkpoint.checkpoint, told in the backward pass where it stands."""
    modes = torch.overrides._get_current_function_mode_stack()
    marks = next(mode for mode in modes if hasattr(mode, "stack"))
    inside, times = list(marks.stack), count()

    def run(*inputs: Any) -> Any:
        if not next(times):
            return function(*inputs)
        around, marks.stack = marks.stack, list(inside)
        try:
            with marks, torch.device("meta"):
                return function(*inputs)
        finally:
            marks.stack = around

    return checkpoint(run, *given, use_reentrant=False, preserve_rng_state=False)


def _eagle(home: Any) -> Built:
    """EAGLE as train/main.py has it: a layer that drafts features and is checkpointed, and a frozen head."""
    config = import_module("eagle.model.configs").EConfig(
        vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=1,
        num_attention_heads=32, pad_token_id=0,
    )  # fmt: skip
    config.rope_scaling = None
    model, head = home.Model(config), _frozen(nn.Linear(4096, 32000, bias=False))
    ids, hidden, target = _ids(4, 1024), _some(4, 1024, 4096), _some(4, 1024, 4096)
    mask = torch.ones(4, 1024, 1, device="meta", dtype=torch.bfloat16)

    def loss() -> Tensor:
        with before():  # AddUniformNoise of the loader
            noised = hidden + (torch.rand_like(hidden) - 0.5) * 0.2 * 512 / hidden.shape[1]
        with mock.patch.object(torch.utils.checkpoint, "checkpoint", _again):
            guess = model(noised, input_ids=ids, attention_mask=torch.ones_like(ids))
        with torch.no_grad():
            chance = nn.Softmax(dim=2)(head(target)).detach()
        told = nn.LogSoftmax(dim=2)(head(guess))
        of_words = -torch.sum(torch.sum(mask * (chance * told), 2)) / (mask.sum() + 1e-5)
        off = functional.smooth_l1_loss(guess, target, reduction="none")
        return torch.sum(torch.mean(mask * off, 2)) / (mask.sum() + 1e-5) + 0.1 * of_words

    return Built(_together(draft=model, lm_head=head), loss)


def _distilbert(home: Any) -> Built:
    """Distiller.step with the weights of README.md: KL, masked tokens, cosines of the last layers."""
    student = transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(
        n_layers=_LAYERS, output_hidden_states=True, use_cache=False
    ))  # fmt: skip
    teacher = _frozen(_bert(transformers.BertForMaskedLM, output_hidden_states=True))
    given = object.__new__(home.Distiller)
    kept: list[Tensor] = []
    given.__dict__.update(
        mlm=True, student=student, teacher=teacher, temperature=2.0, alpha_ce=5.0, alpha_mlm=2.0,
        alpha_clm=0.0, alpha_mse=0.0, alpha_cos=1.0, params=Namespace(restrict_ce_to_mask=False),
        ce_loss_fct=nn.KLDivLoss(reduction="batchmean"), lm_loss_fct=nn.CrossEntropyLoss(ignore_index=-100),
        cosine_loss_fct=nn.CosineEmbeddingLoss(reduction="mean"), total_loss_epoch=0, n_sequences_epoch=0,
        optimize=kept.append,
    )  # fmt: skip
    ids = _ids(16, 256)

    def loss() -> Tensor:
        given.step(ids, torch.ones_like(ids, dtype=torch.bool), ids)
        return kept.pop()

    return Built(_together(student=student, teacher=teacher), loss)


def _simcse(home: Any) -> Built:
    """Supervised SimCSE with RoBERTa: pairs, hard negatives, and masked tokens beside."""
    roberta = import_module("transformers.models.roberta.modeling_roberta")
    config = transformers.RobertaConfig(num_hidden_layers=_LAYERS, type_vocab_size=1, pad_token_id=1)
    model: Any = nn.Module()
    model.roberta = transformers.RobertaModel(config, add_pooling_layer=False)
    model.lm_head = roberta.RobertaLMHead(config)
    model.mlp, model.pooler, model.sim = home.MLPLayer(config), home.Pooler("cls"), home.Similarity(0.05)
    model.pooler_type, model.config, model.device = "cls", config, "meta"
    model.model_args = Namespace(pooler_type="cls", hard_negative_weight=0, mlm_weight=0.1)
    ids = _ids(64, 3, 32)

    def loss() -> Tensor:
        return home.cl_forward(
            model, model.roberta, ids, torch.ones_like(ids), return_dict=True, mlm_input_ids=ids,
            mlm_labels=ids,
        ).loss  # fmt: skip

    return Built(model, loss)


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
    "huggingface_trl/dpo": ("trl.trainer.dpo_trainer", _dpo),
    "huggingface_trl/grpo_lora": ("trl.trainer.grpo_trainer", _grpo),
    "huggingface_trl/reward": ("trl.trainer.reward_trainer", _reward),
    "huggingface_trl/gkd": ("trl.experimental.gkd.gkd_trainer", _gkd),
    "huggingface_trl/ppo": ("trl.experimental.ppo.ppo_trainer", _ppo),
    "huggingface_trl/dft": ("trl.trainer.sft_trainer", _dft),
    "UKPLab_sentence-transformers/ranks": ("sentence_transformers.losses", _ranks),
    "UKPLab_sentence-transformers/splade": ("sentence_transformers.sparse_encoder.losses", _splade),
    "stanford-futuredata_ColBERT/colbert": ("colbert.modeling.colbert", _colbert),
    "facebookresearch_DPR/dpr": ("dpr.models.biencoder", _dpr),
    "facebookresearch_dino/dino": ("main_dino", _dino),
    "facebookresearch_moco-v3/moco": ("moco.builder", _moco),
    "bytedance_ibot/ibot": ("main_ibot", _ibot),
    "facebookresearch_ijepa/ijepa": ("src.models.vision_transformer", _ijepa),
    "facebookresearch_deit/distill": ("models", _deit),
    "lucidrains_electra-pytorch/electra": ("electra_pytorch.electra_pytorch", _electra),
    "FasterDecoding_Medusa/medusa": ("medusa.model.medusa_model_legacy", _medusa),
    "SafeAILab_EAGLE/eagle": ("eagle.model.cnets1", _eagle),
    "huggingface_transformers-research-projects/distilbert": ("distiller", _distilbert),
    "princeton-nlp_SimCSE/simcse": ("simcse.models", _simcse),
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
#: What a clone generates with, and does not train with: copies of transformers of that time.
_OLD = {"FasterDecoding_Medusa": ("medusa.model.modeling_llama_kv", "medusa.model.utils")}
#: Where in a clone its modules are.
_UNDER = {"huggingface_transformers-research-projects": "distillation"}
_SOUND = ("torchaudio",)
#: What a clone asks for and its model does not: kernels it does without, files, scores, drawing.
_UNUSED: dict[str, tuple[str, ...]] = {
    "UKPLab_sentence-transformers": ("torchaudio", "sklearn"),
    "stanford-futuredata_ColBERT": ("torchaudio", "ujson", "git"),
    "facebookresearch_DPR": ("torchaudio", "jsonlines", "hydra", "omegaconf", "spacy", "wget"),
    "bytedance_ibot": ("tensorboardX", "sklearn", "munkres"),
    "huggingface_transformers-research-projects": ("torchaudio", "git", "tensorboardX"),
}
#: Packages that import all they have, beside what is asked of them, or have no file that says they are one.
_BARE: dict[str, tuple[str, ...]] = {"princeton-nlp_SimCSE": ("simcse",)}
#: What reads numbers while it is built.
_OF_NUMBERS = ("facebookresearch_dino", "bytedance_ibot", "facebookresearch_ijepa")


def build(name: str) -> Built:
    """The recipe ``OWNER_REPOSITORY/name`` or ``package/name``, in bf16 and training, on the meta device."""
    owner = name.partition("/")[0]
    module, of = _HOMES[name]
    folder = _folder(name) / _UNDER.get(owner, "")
    with (
        _cloned(folder, _BARE.get(owner, ())) if "_" in owner and owner != "open_clip" else nullcontext(),
        _without(_UNUSED.get(owner, _SOUND)),
        mock.patch.object(torch, "compile", lambda function=None, **_: function),
    ):
        sys.modules.update({part: mock.MagicMock() for part in _OLD.get(owner, ())})
        home = import_module(module)
        with nullcontext() if owner in _OF_NUMBERS else torch.device("meta"):
            built = of(home)
    nn.Module.to(built.model, "meta", torch.bfloat16).train()
    return built
