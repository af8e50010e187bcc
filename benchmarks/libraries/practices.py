"""Builds models of what people practise with on GPUs: a twelfth list, none of it was in another.

Language models, what is trained beside them (heads that draft, preferences, teachers), and models of texts
that are looked up; ``further_practices.py`` and ``field_practices.py`` have the rest. The folder of the
clones is that of ``clones.py``, each in a folder OWNER_NAME at the commit here: openai/gpt-oss 7b583341fe16,
vukrosic/blueberry-llm 631a818f75ca, google/gemma_pytorch 014acb7ac456, jzhang38/TinyLlama bf122247c486,
google-deepmind/recurrentgemma 2efa84dac0e6, foundation-model-stack/fms-extras 16339f7c8225,
apple/ml-recurrent-drafter bd8586bb9bbf, huggingface/trl f2cd57710ae3, OpenRLHF/OpenRLHF 3c3be6234e0c and
luyug/Condenser 74880ab8d230.

Imports ask for ibm-fms 1.13.1, FlagEmbedding 1.4.2, colpali-engine 0.3.18, peft 0.21.2, datasets,
sentencepiece, transformers and einops. Widths are the repositories' own, a few layers deep; what is frozen,
what is run again in the backward pass and how many batches are in a step is as in the recipe. Kernels are in
PyTorch.
"""

# What comes of modules is anything.
# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.hub.values import known
from benchmarks.libraries.models import Built, _ids, _some
from benchmarks.libraries.posts import _flash, _plain, _rotated
from benchmarks.libraries.recipes import _again, _frozen, _llama, _qwen, _texts, _together, _trainer
from benchmarks.libraries.recipes_truth import before
from benchmarks.libraries.repos import _of_next
from benchmarks.libraries.senses import _floats
from benchmarks.libraries.studies import SwiGLU, _adapted

LISTED = Path(__file__).parents[1].joinpath("fresh", "libraries_12.txt").read_text().split()
_LAYERS = 3


def _checkpointed(model: Any) -> Any:
    """A model of transformers whose layers run again in the backward pass."""
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for module in model.modules():
        if hasattr(module, "_gradient_checkpointing_func"):
            module._gradient_checkpointing_func = _again
    return model


def _gpt_oss(home: Any) -> Built:
    """gpt-oss 20B as it is in PyTorch, where every token has its own copy of its four experts' weights."""
    config = home.ModelConfig(num_hidden_layers=_LAYERS, num_experts=32)
    model, ids = home.Transformer(config, torch.device("meta")), _ids(128)
    return Built(model, lambda: _of_next(model(ids), ids))


def _minimal(home: Any) -> Built:
    """The plain model of train_llm.py, two batches of 24 added up in a step."""
    model = home.MinimalLLM(home.ModelConfig(vocab_size=49152, n_layers=_LAYERS))
    batches = [_ids(24, 512) for _ in range(2)]
    return Built(model, lambda: torch.stack([_of_next(model(ids), ids) / 2 for ids in batches]).sum())


def _gemma2(home: Any) -> Built:
    """Gemma 2 2B of two sequences, its words' table and its capped logits as GemmaForCausalLM has them."""
    config = import_module("gemma.config").get_config_for_2b_v2()
    config.num_hidden_layers = _LAYERS
    embedder = home.Embedding(config.vocab_size, config.hidden_size, False)
    model: Any = _together(embedder=embedder, model=home.GemmaModel(config)).requires_grad_(True)
    ids, places = _ids(2, 1024), _ids(1024)
    kinds = set(config.attn_types)

    def loss() -> Tensor:
        with before():
            x = embedder(ids) * config.hidden_size**0.5
            turns = dict.fromkeys(kinds, torch.zeros(1024, 128, dtype=torch.complex64))
            caches = [(_some(2, 1024, 4, 256), _some(2, 1024, 4, 256)) for _ in range(_LAYERS)]
            mask = _some(1, 1, 1024, 1024)
        out = model["model"](x, turns, places, caches, mask, mask)
        logits = torch.matmul(out, embedder.weight.t())
        return _of_next(torch.tanh(logits / 30.0) * 30.0, ids)

    return Built(model, loss)


def _tiny(home: Any) -> Built:
    """TinyLlama 1.1B as it was pretrained, 2048 tokens."""
    model = home.GPT(home.Config.from_name("tiny_LLaMA_1b", n_layer=_LAYERS))
    ids = _ids(4, 2048)
    return Built(model, lambda: _of_next(model(ids), ids))


def _griffin(home: Any) -> Built:
    """RecurrentGemma 2B: two recurrent blocks and one of local attention, its scan step by step."""
    common = import_module("recurrentgemma.common")
    block = common.TemporalBlockType
    model = home.Griffin(common.GriffinConfig(
        vocab_size=256000, width=2560, mlp_expanded_width=7680, num_heads=10, lru_width=2560,
        block_types=(block.RECURRENT, block.RECURRENT, block.ATTENTION), logits_soft_cap=30.0,
        embeddings_scale_by_sqrt_dim=True, attention_window_size=2048,
    ), gradient_checkpointing=False, device="meta")  # fmt: skip
    ids, places = _ids(4, 256), _ids(4, 256)
    return Built(model, lambda: _of_next(model(ids, places, return_cache=False)[0], ids))


def _speculator(_: Any) -> Built:
    """The first stage of fms-fsdp's train_speculator: three heads after a frozen Llama 7B."""
    llama: Any = import_module("fms.models.llama")
    with mock.patch.object(import_module("fms.utils.serialization"), "register_adapter"):
        home = import_module("fms_extras.models.speculator")
    base = _frozen(llama.LLaMA(llama.LLaMAConfig(nlayers=_LAYERS)))
    model: Any = _together(base=base, speculator=home.MLPSpeculator(4096, 4096, 32000, 3, scale_input=True))
    ids = _ids(2, 1028)
    turns = {1: torch.zeros(4096, 64, 2, 2)}
    base.base_model.rot_emb.cached_freqs = {None: turns}
    base.base_model.rot_emb.compute_freqs_cis = lambda *_: 1

    def loss() -> Tensor:
        with torch.no_grad():
            state, _ = base.base_model(ids[:, :1024])
        told = model["speculator"](state, ids[:, 1:])
        return torch.stack([_of_next(told[at], ids[:, at + 1 : at + 1025]) for at in range(3)]).sum()

    return Built(model, loss)


def _drafter(home: Any) -> Built:
    """ReDrafter's head for five tokens, a recurrence, of a frozen Vicuna 7B; the loss and what is logged."""
    base = _frozen(_llama(
        hidden_size=4096, intermediate_size=11008, vocab_size=32000, num_key_value_heads=32
    ))  # fmt: skip
    drafts: Any = import_module("recurrent_drafting.modeling_drafter")
    config = import_module("recurrent_drafting.configuration_drafter").DrafterConfig(
        vocab_size=32000, hidden_size=4096, exit_dim=8192, num_draft_layers=1, rnn=True
    )
    model, ids = home.ReDrafter(base, drafts.Drafter(config)), _ids(2, 512)
    judge = import_module("recurrent_drafting.train.loss").drafter_loss
    return Built(model, lambda: judge(model(ids, torch.ones_like(ids), next_n=5), ids, 5, 1)[0])


def _kto(home: Any) -> Built:
    """KTOTrainer with its defaults: good and bad answers, those of another prompt, and a frozen reference."""
    policy, reference = _llama(), _frozen(_llama())
    trainer = _trainer(
        home.KTOTrainer, policy, ref_model=reference, precompute_ref_logps=False, calculate_KL=True,
        args=Namespace(gradient_checkpointing_kwargs=None), loss_type="kto", use_liger_kernel=False, beta=0.1,
        desirable_weight=1.0, undesirable_weight=1.0, _total_train_tokens=0,
    )  # fmt: skip
    ids = _ids(8, 512)
    with torch.device("cpu"):
        good = torch.tensor([True, False] * 4)

    def loss() -> Tensor:
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "completion_mask": ids}
        given |= {f"KL_{key}": value for key, value in given.items()} | {"label": known(good)}
        return trainer._compute_loss(policy, given, False)

    return Built(_together(policy=policy, reference=reference), loss)


def _orpo(home: Any) -> Built:
    """ORPOTrainer with its defaults: the chosen and the rejected in a batch, and no reference."""
    policy, ids = _qwen(), _ids(4, 512)
    trainer = _trainer(home.ORPOTrainer, policy, is_encoder_decoder=False, padding_value=0, beta=0.1)
    parts = ("input_ids", "attention_mask", "labels")
    given = {f"{which}_{part}": ids for which in ("prompt", "chosen", "rejected") for part in parts}
    return Built(policy, lambda: trainer.get_batch_loss_metrics(policy, given)[0])


def _openrlhf(home: Any) -> Built:
    """PPO's update of an actor and of a critic, as wide as Llama 3.2 1B, each with its loss."""
    actor = import_module("openrlhf.models.actor").Actor(_llama(), temperature=1.0)
    actor.packing_samples = False
    critics: Any = import_module("openrlhf.models.model")
    config = _llama().config
    config.normalize_reward = False
    critic = critics._get_critic_model(transformers.LlamaPreTrainedModel, transformers.LlamaModel)(config)
    of_policy, of_values = home.PolicyLoss(), home.ValueLoss(0.2)
    ids, mask = _ids(4, 1024), torch.ones(4, 512, device="meta")
    old, gain, values, back = (_floats(4, 512) for _ in range(4))

    def loss() -> Tensor:
        seen = torch.ones_like(ids)
        told = of_policy(actor(ids, mask, seen), old, gain, mask)[0]
        return told + of_values(critic(ids, mask, seen), values, back, mask)

    return Built(_together(actor=actor, critic=critic), loss)


def _llava(home: Any) -> Built:
    """LLaVA 1.5 7B with LoRA in its words, layers run again, CLIP beside; two batches added up in a step."""
    sees = transformers.CLIPVisionConfig(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=_LAYERS, num_attention_heads=16,
        image_size=336, patch_size=14, projection_dim=768,
    )  # fmt: skip
    text = transformers.LlamaConfig(
        vocab_size=32064, hidden_size=4096, intermediate_size=11008, num_hidden_layers=_LAYERS,
        num_attention_heads=32, use_cache=False,
    )  # fmt: skip
    base = transformers.LlavaForConditionalGeneration(
        transformers.LlavaConfig(vision_config=sees, text_config=text, image_token_index=32000)
    )
    base.model.language_model = _checkpointed(base.model.language_model)
    targets = r".*language_model.*\.(q|k|v|o|gate|up|down)_proj"
    config = home.LoraConfig(r=128, lora_alpha=256, target_modules=targets)
    model = _adapted(base, config)
    ids = torch.zeros(1, 1024, dtype=torch.int64, device="cpu")
    ids[:, :576] = 32000
    pictures = [_some(1, 3, 336, 336) for _ in range(2)]

    def loss() -> Tensor:
        seen = torch.ones_like(ids, device="meta")
        lost = [
            model(input_ids=known(ids), pixel_values=x, attention_mask=seen, labels=_ids(1, 1024)).loss / 2
            for x in pictures
        ]
        return torch.stack(lost).sum()

    return Built(model, loss)


def _olmoe(home: Any) -> Built:
    """OLMoE 1B-7B with LoRA in attention, the loss of its routers beside."""
    base = transformers.OlmoeForCausalLM(transformers.OlmoeConfig(
        num_hidden_layers=_LAYERS, use_cache=False, output_router_logits=True
    ))  # fmt: skip
    config = home.LoraConfig(task_type="CAUSAL_LM", r=16, target_modules=["q_proj", "v_proj", "o_proj"])
    model, ids = _adapted(base, config), _ids(2, 2048)
    return Built(model, _plain(lambda: model(input_ids=ids, labels=ids).loss))


def _distilled(_: Any) -> Built:
    """Qwen3 0.6B after the softened logits of a frozen one as wide as 1.7B, beside the next tokens."""
    student = _qwen()
    teacher = _frozen(_qwen(hidden_size=2048, intermediate_size=6144))
    ids = _ids(4, 1024)

    def loss() -> Tensor:
        with torch.no_grad():
            wanted = teacher(input_ids=ids).logits
        told = student(input_ids=ids).logits
        soft = functional.kl_div(
            functional.log_softmax(told.float() / 2.0, -1), functional.softmax(wanted.float() / 2.0, -1),
            reduction="batchmean",
        )  # fmt: skip
        return 0.5 * 4.0 * soft / 1024 + 0.5 * _of_next(told, ids)

    return Built(_together(student=student, teacher=teacher), loss)


def _chunked(_: Any) -> Built:
    """Llama 3.2 1B, layers run again, its logits and their loss an eighth of the tokens at a time."""
    model, ids = _checkpointed(_llama()), _ids(4, 2048)

    def loss() -> Tensor:
        hidden = model.model(input_ids=ids)[0].flatten(0, 1)
        lost = torch.zeros(())
        for x, wanted in zip(hidden.chunk(8), ids.flatten().chunk(8), strict=True):
            lost = lost + functional.cross_entropy(model.lm_head(x).float(), wanted, reduction="sum")
        return lost / ids.numel()

    return Built(model, loss)


def _condenser(home: Any) -> Built:
    """Condenser as wide as BERT base: two layers more of the last state of [CLS] and of earlier ones."""
    layer = home.BertLayer

    class BertLayer(layer):  # type: ignore[misc, valid-type]
        """That of transformers, which gave a tuple."""

        def forward(self, *given: Any, **rest: Any) -> Any:
            return (super().forward(*given, **rest),)

    home.BertLayer = BertLayer
    bert = transformers.BertForMaskedLM(transformers.BertConfig(num_hidden_layers=4))
    bert.get_extended_attention_mask = lambda mask, *_: (1.0 - mask[:, None, None].to(torch.bfloat16)) * -1e9
    model = home.CondenserForPretraining(
        bert, Namespace(n_head_layers=2, skip_from=2, late_mlm=True), None, None
    )
    ids = _ids(32, 128)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return Built(model, lambda: model(given, ids))


def _reranker(_: Any) -> Built:
    """A reranker of ModernBERT base: pairs of a question and a text, right or not."""
    model = transformers.ModernBertForSequenceClassification(transformers.ModernBertConfig(
        num_hidden_layers=_LAYERS, num_labels=1
    ))  # fmt: skip
    ids, labels = _ids(32, 256), _some(32)

    def loss() -> Tensor:
        told = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        return functional.binary_cross_entropy_with_logits(told.view(-1), labels)

    return Built(model, loss)


def _m3(_: Any) -> Built:
    """BGE-M3 tuned as a whole: vectors, words' weights, every token's vector, of XLM-R as wide as large."""
    parts: Any = import_module("FlagEmbedding.abc.finetune.embedder.AbsModeling")
    vars(sys.modules["FlagEmbedding.abc.finetune.embedder"]).update(vars(parts))
    home = import_module("FlagEmbedding.finetune.embedder.encoder_only.m3.modeling")
    base = transformers.XLMRobertaModel(transformers.XLMRobertaConfig(
        vocab_size=250002, hidden_size=1024, intermediate_size=4096, num_hidden_layers=_LAYERS,
        num_attention_heads=16, max_position_embeddings=8194, type_vocab_size=1,
    ), add_pooling_layer=False)  # fmt: skip
    heads = {"colbert_linear": nn.Linear(1024, 1024), "sparse_linear": nn.Linear(1024, 1)}
    words = Namespace(cls_token_id=0, eos_token_id=2, pad_token_id=1, unk_token_id=3)
    model = home.EncoderOnlyEmbedderM3Model(
        {"model": base, **heads}, tokenizer=words, temperature=0.02, normalize_embeddings=True
    )
    asked, told = _texts((4, 32), (8, 256))
    return Built(model, lambda: model(asked, told).loss)


def _colpali(_: Any) -> Built:
    """ColPali of PaliGemma 3B: questions against pages, every token's vector, with the smooth maximum."""
    home = import_module("colpali_engine.models.paligemma.colpali.modeling_colpali")
    judge = import_module("colpali_engine.loss.late_interaction_losses").ColbertLoss(use_smooth_max=True)
    text = transformers.GemmaConfig(
        hidden_size=2048, intermediate_size=16384, num_hidden_layers=_LAYERS, num_attention_heads=8,
        num_key_value_heads=1, head_dim=256, vocab_size=257216, use_cache=False,
    )  # fmt: skip
    sees = transformers.SiglipVisionConfig(
        hidden_size=1152, intermediate_size=4304, num_hidden_layers=_LAYERS, num_attention_heads=16,
        image_size=448, patch_size=14, vision_use_head=False, projection_dim=2048,
    )  # fmt: skip
    config = transformers.PaliGemmaConfig(vision_config=sees, text_config=text, image_token_index=257152)
    model = home.ColPali(config)
    ids = torch.zeros(4, 1030, dtype=torch.int64, device="cpu")
    ids[:, :1024] = 257152
    words, pages = _ids(4, 32), _some(4, 3, 448, 448)

    def loss() -> Tensor:
        seen = torch.ones_like(ids, device="meta")
        asked = model(input_ids=words, attention_mask=torch.ones_like(words))
        told = model(input_ids=known(ids), pixel_values=pages, attention_mask=seen)
        return judge(asked, told)

    return Built(_together(model=model, judge=judge), loss)


#: The module that is imported, and what builds of it.
_HOMES: dict[str, tuple[str, Callable[[Any], Built]]] = {
    "openai_gpt-oss/moe": ("gpt_oss.torch.model", _gpt_oss),
    "vukrosic_blueberry-llm/minimal": ("train_llm", _minimal),
    "google_gemma_pytorch/gemma2": ("gemma.model", _gemma2),
    "jzhang38_TinyLlama/tiny": ("lit_gpt.model", _tiny),
    "google-deepmind_recurrentgemma/griffin": ("recurrentgemma.torch.griffin", _griffin),
    "foundation-model-stack_fms-extras/speculator": ("math", _speculator),
    "apple_ml-recurrent-drafter/drafter": ("recurrent_drafting.train.model", _drafter),
    "huggingface_trl/kto": ("trl.trainer.kto_trainer", _kto),
    "huggingface_trl/orpo": ("trl.experimental.orpo.orpo_trainer", _orpo),
    "OpenRLHF_OpenRLHF/ppo": ("openrlhf.models.loss", _openrlhf),
    "peft/llava_lora": ("peft", _llava),
    "peft/olmoe_lora": ("peft", _olmoe),
    "transformers/qwen3_distilled": ("transformers", _distilled),
    "transformers/llama_chunked": ("transformers", _chunked),
    "luyug_Condenser/condenser": ("modeling", _condenser),
    "transformers/modernbert_reranker": ("transformers", _reranker),
    "FlagEmbedding/bge_m3": ("math", _m3),
    "colpali_engine/colpali": ("math", _colpali),
}
NAMES = [name for name in LISTED if name in _HOMES]
#: Where in a clone its modules are.
_UNDER: dict[str, str] = {}
#: What is asked for and its model does not use.
_UNUSED: dict[str, tuple[str, ...]] = {
    "OpenRLHF_OpenRLHF": ("deepspeed", "flash_attn", "ray"),
    "FlagEmbedding": ("ir_datasets", "sentencepiece", "faiss"),
    "google_gemma_pytorch": ("immutabledict",),
}
#: Packages that import all they have, beside what is asked of them.
_BARE: dict[str, tuple[str, ...]] = {
    "jzhang38_TinyLlama": ("lit_gpt",),
    "google-deepmind_recurrentgemma": ("recurrentgemma", "recurrentgemma.torch"),
    "foundation-model-stack_fms-extras": ("fms_extras", "fms_extras.models"),
    "apple_ml-recurrent-drafter": ("recurrent_drafting", "recurrent_drafting.train"),
    "OpenRLHF_OpenRLHF": ("openrlhf", "openrlhf.models", "openrlhf.utils"),
    "openai_gpt-oss": ("gpt_oss",),
}


def _bare(package: str, *within: str) -> dict[str, dict[str, Any]]:
    """Stubs of an installed package and of some within it, which would import all they have."""
    found = find_spec(package)
    homes = list(found.submodule_search_locations or ()) if found else []
    parts = ("", *(f"/{name}" for name in within))
    return {package + x.replace("/", "."): {"__path__": [home + x for home in homes]} for x in parts}


#: Kernels in PyTorch; what is not used.
_STUBS: dict[str, dict[str, dict[str, Any]]] = {
    "openai_gpt-oss": {"gpt_oss.torch.weights": {"Checkpoint": None}},
    "google_gemma_pytorch": {"gemma.tokenizer": {}},
    "google-deepmind_recurrentgemma": {
        "recurrentgemma.torch.array_typing": {"__getattr__": lambda _: Any, "typed": lambda of: of},
    },
    "apple_ml-recurrent-drafter": {"recurrent_drafting.train.data": {"IGNORE_TOKEN_ID": -100}},
    "jzhang38_TinyLlama": {
        "flash_attn": {"flash_attn_func": _flash},
        "xformers": {},
        "xformers.ops": {"SwiGLU": SwiGLU},
        "lightning_utilities": {},
        "lightning_utilities.core": {},
        "lightning_utilities.core.imports": {"RequirementCache": lambda *_: False},
        "lit_gpt.utils": {"find_multiple": lambda n, k: -(-n // k) * k},
        "lit_gpt.fused_rotary_embedding": {
            "apply_rotary_emb_func": lambda x, cosines, sines, *_: _rotated(x, cosines, sines)
        },
        "lit_gpt.rmsnorm": {"FusedRMSNorm": nn.RMSNorm},
    },
    "FlagEmbedding": _bare(
        "FlagEmbedding", "abc", "abc/finetune", "abc/finetune/embedder", "finetune", "finetune/embedder",
        "finetune/embedder/encoder_only", "finetune/embedder/encoder_only/m3",
    ),
    "luyug_Condenser": {
        "arguments": dict.fromkeys(
            ("DataTrainingArguments", "ModelArguments", "CoCondenserPreTrainingArguments")
        ),
    },
}  # fmt: skip
#: What reads numbers while it is built.
_OF_NUMBERS: tuple[str, ...] = ("colpali_engine",)
#: What asks for single precision.
_SINGLE: tuple[str, ...] = ()
