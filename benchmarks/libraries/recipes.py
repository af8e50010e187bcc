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
from collections.abc import Callable, Mapping
from contextlib import nullcontext
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

from benchmarks.libraries.clones import _cloned, _folder
from benchmarks.libraries.models import Built, _ids, _some
from benchmarks.libraries.recipes_truth import before
from benchmarks.libraries.senses import _floats, _without
from benchmarks.libraries.trainers import _without_torchao

LISTED = Path(__file__).parents[1].joinpath("fresh", "libraries_8.txt").read_text().split()
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
    "lucidrains_electra-pytorch/electra": ("electra_pytorch.electra_pytorch", _electra),
    "FasterDecoding_Medusa/medusa": ("medusa.model.medusa_model_legacy", _medusa),
    "SafeAILab_EAGLE/eagle": ("eagle.model.cnets1", _eagle),
    "huggingface_transformers-research-projects/distilbert": ("distiller", _distilbert),
    "princeton-nlp_SimCSE/simcse": ("simcse.models", _simcse),
}
NAMES = [name for name in LISTED if name in _HOMES]
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


def made(name: str, homes: Mapping[str, tuple[str, Callable[[Any], Built]]]) -> Built:
    """The recipe ``OWNER_REPOSITORY/name`` or ``package/name``, in bf16 and training, on the meta device."""
    owner = name.partition("/")[0]
    module, of = homes[name]
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


def build(name: str) -> Built:
    """A recipe of text."""
    return made(name, _HOMES)
