"""Sizes read from every format that models are described in."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.advice import configs
from tests.advice.configs import read, written
from tests.said import Listener
from tracelens.config import config_from_flags, read_config
from tracelens.config.configuration import PaddedVocab
from tracelens.config.diff import config_diff
from tracelens.config.model_config import changed
from tracelens.config.training import Training
from tracelens.errors import InputError, TracelensError, UsageError

#: content -> hidden, heads, kv_heads, head_dim, ffn, vocab, layers, gated, tied, matrix weights in billions
FACTS: dict[str, tuple[dict[str, Any], tuple[object, ...], float]] = {
    "gpt2-xl": (configs.GPT2_XL, (1600, 25, 25, 64, 6400, 50257, 48, False, True), 1.555),
    "pythia-2.8b": (configs.PYTHIA_2_8B, (2560, 32, 32, 80, 10240, 50304, 32, False, False), 2.774),
    "llama-2-7b": (configs.LLAMA2_7B, (4096, 32, 32, 128, 11008, 32000, 32, True, False), 6.738),
    "llama-3-8b": (configs.LLAMA3_8B, (4096, 32, 8, 128, 14336, 128256, 32, True, False), 8.030),
    "mistral-7b": (configs.MISTRAL_7B, (4096, 32, 8, 128, 14336, 32000, 32, True, False), 7.241),
    "qwen3-4b": (configs.QWEN3_4B, (2560, 32, 8, 128, 9728, 151936, 36, True, True), 4.022),
    "gemma-2b": (configs.GEMMA_2B, (2048, 8, 1, 256, 16384, 256000, 18, True, True), 2.506),
    "bert-base": (configs.BERT_BASE, (768, 12, 12, 64, 3072, 30522, 12, False, True), 0.1084),
    "mixtral-8x7b": (configs.MIXTRAL_8X7B, (4096, 32, 8, 128, 14336, 32000, 32, True, False), 46.70),
    "falcon-7b": (configs.FALCON_7B, (4544, 71, 1, 64, 18176, 65024, 32, False, True), 6.921),
    "gemma-3": (configs.GEMMA3_MULTIMODAL, (2560, 8, 4, 256, 10240, 262208, 34, True, True), 3.880),
}


@pytest.mark.parametrize("name", FACTS)
def test_sizes_of_public_models(tmp_path: Path, name: str) -> None:
    content, facts, billions = FACTS[name]
    x = read(tmp_path, content).model
    assert (
        x.hidden, x.heads, x.kv_heads, x.head_dim, x.ffn, x.vocab, x.layers, x.gated, x.tied
    ) == facts  # fmt: skip
    assert (x.parameters or 0) / 1e9 == pytest.approx(billions, rel=0.001)


def test_every_size_says_where_it_is_from(tmp_path: Path, said: Listener) -> None:
    found = read(tmp_path, configs.GPT2_XL)
    said([f"{name}: {source}" for name, source in sorted(found.sources.items())])
    sizes = {name for name in found.sources if found.model.get(name) is not None}
    assert sizes == set(found.sources)


def test_more_positions_than_anyone_trains_with_are_an_assumption(tmp_path: Path, said: Listener) -> None:
    found = read(tmp_path, configs.LLAMA3_8B)
    assert found.model.sequence == 4096
    said(found.sources["sequence"])
    given = read(tmp_path, configs.LLAMA3_8B, sequence=8192, micro_batch=3)
    assert (given.model.sequence, given.model.micro_batch) == (8192, 3)


def test_a_folder_with_a_config_will_do(tmp_path: Path) -> None:
    written(tmp_path, configs.LLAMA2_7B)
    assert read_config(tmp_path).model.ffn == 11008


def test_what_is_not_counted_is_said(tmp_path: Path, said: Listener) -> None:
    said(read(tmp_path, configs.GEMMA3_MULTIMODAL).notes)
    assert not read(tmp_path, configs.MISTRAL_7B, sequence=8192).notes


def test_experts(tmp_path: Path) -> None:
    found = read(tmp_path, configs.MIXTRAL_8X7B)
    assert (found.model.experts, found.layout.experts_per_token) == (8, 2)


@pytest.mark.parametrize(
    ("content", "shared", "dense", "billions", "active"),
    [  # weights and active weights as published: arXiv 2401.06066, Qwen's and OpenAI's model cards
        (configs.DEEPSEEK_MOE_16B, 2816, 1, 16.4, 2.8),
        (configs.QWEN_MOE_A2_7B, 5632, None, 14.3, 2.7),
        (configs.GPT_OSS_20B | {"tie_word_embeddings": True}, None, None, 20.9 - 0.58, 3.6),  # one embedding
    ],
)
def test_what_lies_beside_experts(
    tmp_path: Path,
    content: dict[str, Any],
    shared: int | None,
    dense: int | None,
    billions: float,
    active: float,
) -> None:
    found = read(tmp_path, content)
    x = found.model
    assert (x.shared_ffn, x.dense_layers) == (shared, dense)
    assert (x.parameters or 0) / 1e9 == pytest.approx(billions, rel=0.01)
    used = replace(x, experts=found.layout.experts_per_token)
    assert (used.parameters or 0) / 1e9 == pytest.approx(active, rel=0.02)


def test_a_width_outside_of_the_language_model_does_not_hide_it(tmp_path: Path) -> None:
    """PaliGemma's config.json; a text model beside a tower has all of its sizes outside."""
    inside = {"model_type": "paligemma", "hidden_size": 2048, "text_config": configs.GEMMA_2B}
    found, alone = read(tmp_path, inside), read(tmp_path, configs.GEMMA_2B)
    assert found.model == alone.model and found.layout == alone.layout
    outside = read(tmp_path, configs.GEMMA_2B | {"text_config": configs.LLAMA3_8B})
    assert outside.model == alone.model


def test_layers_with_a_sliding_window(tmp_path: Path) -> None:
    layout = read(tmp_path, configs.GPT_OSS_20B).layout
    assert (layout.window, layout.windowed_frac) == (128, 0.5)
    assert read(tmp_path, configs.MISTRAL_7B, sequence=8192).layout.windowed_frac == 1.0
    assert read(tmp_path, configs.MISTRAL_7B, sequence=4096).layout.window is None
    assert read(tmp_path, configs.QWEN_MOE_A2_7B, sequence=65536).layout.window is None


def test_soft_caps_are_said_to_be_left_out(tmp_path: Path, said: Listener) -> None:
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    capped = read(tmp_path, configs.LLAMA2_7B | caps)
    assert len(capped.notes) == 2
    said(capped.notes)
    assert read(tmp_path, configs.LLAMA2_7B | dict.fromkeys(caps)).notes == ()


def test_layers_with_a_sliding_window_in_turn_with_others(tmp_path: Path) -> None:
    parts: dict[str, Any] = configs.GEMMA3_MULTIMODAL
    gemma = parts["text_config"] | {"num_hidden_layers": 62}
    assert read(tmp_path, gemma, sequence=32768).layout.windowed_frac == pytest.approx(52 / 62)
    by_file = read(tmp_path, gemma | {"sliding_window_pattern": 2}, sequence=32768).layout
    assert (by_file.window, by_file.windowed_frac) == (1024, 0.5)
    qwen = configs.QWEN3_4B | {"sliding_window": 4096, "max_window_layers": 27}
    assert read(tmp_path, qwen, sequence=8192).layout.window is None  # not asked for
    asked = read(tmp_path, qwen | {"use_sliding_window": True}, sequence=8192)
    assert (asked.layout.windowed_frac, asked.notes) == (0.25, ())
    untold = read(tmp_path, configs.LLAMA2_7B | {"sliding_window": 1024})
    assert (untold.layout.window, len(untold.notes)) == (None, 1)


@pytest.mark.parametrize(
    ("layers", "given", "frac"),
    [
        (22, {"global_attn_every_n_layers": 3}, 14 / 22),  # layers 0, 3, ... 21 see all
        (28, {"global_attn_every_n_layers": 3}, 18 / 28),
        (4, {"layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"]}, 0.5),
        (22, {"global_attn_every_n_layers": 1}, 0.0),
    ],
)
def test_modernbert_sees_half_its_window_to_each_side(
    layers: int, given: dict[str, Any], frac: float, tmp_path: Path
) -> None:
    base = configs.BERT_BASE | {
        "model_type": "modernbert",
        "local_attention": 128,
        "num_hidden_layers": layers,
    }
    found = read(tmp_path, base | {"max_position_embeddings": 8192} | given, sequence=4096).layout
    assert (found.window, found.causal) == (64, False)
    assert found.windowed_frac == pytest.approx(frac)


def test_megatron_script(tmp_path: Path) -> None:
    found = read(tmp_path, configs.MEGATRON_SCRIPT, "train.sh")
    x = found.model
    assert (x.hidden, x.heads, x.layers, x.sequence, x.micro_batch) == (2560, 32, 32, 2048, 4)
    assert (x.tensor_parallel, x.ffn, x.gated, x.tied) == (2, 10240, False, True)
    assert (x.vocab, found.padded) == (50258, PaddedVocab(50257, 1))


def test_megatron_pads_the_vocabulary_by_128_for_each_rank(tmp_path: Path) -> None:
    script = configs.MEGATRON_SCRIPT.replace("--make-vocab-size-divisible-by 1\n", "")
    assert read(tmp_path, script, "train.sh").model.vocab == 50432
    assert read(tmp_path, script, "train.sh", tensor_parallel=1).model.vocab == 50304


def test_megatron_swiglu_width(tmp_path: Path) -> None:
    """int(4 * 2560 * 2 / 3 / 64) * 64, megatron/training/arguments.py."""
    script = configs.MEGATRON_SCRIPT.replace("--bf16", "--bf16 --swiglu")
    x = read(tmp_path, script, "train.sh").model
    assert (x.ffn, x.gated) == (6784, True)


def test_megatron_yaml_and_json_agree(tmp_path: Path) -> None:
    yaml = read(tmp_path, configs.MEGATRON_YAML, "args.yaml")
    table = {"num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "group_query_attention": True,
             "num_query_groups": 8, "ffn_hidden_size": 14336, "swiglu": True, "vocab_size": 128256,
             "untie_embeddings_and_output_weights": True, "seq_length": 8192,
             "micro_batch_size": 1}  # fmt: skip
    other = read(tmp_path, {"args": table}, "args.json")
    assert yaml.model == other.model
    assert (yaml.model.kv_heads, yaml.model.tied, yaml.model.sequence) == (8, False, 8192)


def test_megatron_ignores_query_groups_without_their_switch(tmp_path: Path, said: Listener) -> None:
    found = read(tmp_path, configs.MEGATRON_YAML.replace("group_query_attention: true", "x: 1"), "args.yaml")
    assert found.model.kv_heads == 32
    said(found.notes)


def test_nanogpt_fills_in_what_train_py_sets(tmp_path: Path, said: Listener) -> None:
    found = read(tmp_path, configs.NANOGPT, "train_gpt2.py")
    x = found.model
    assert (x.hidden, x.heads, x.layers, x.ffn, x.vocab) == (1536, 12, 12, 6144, 50304)
    assert (x.micro_batch, x.sequence) == (12, 1024)
    said(found.sources["vocab"])
    assert set(found.fixed) == {"ffn", "hidden"}


def test_megatron_s_other_arguments(tmp_path: Path, said: Listener) -> None:
    grouped = read(tmp_path, MEGATRON_TABLE | {"group_query_attention": True}, "a.json").model
    assert (grouped.kv_heads, grouped.vocab) == (1, 512)  # its default; 500 padded to a multiple of 128
    padded = read(tmp_path, MEGATRON_TABLE | {"padded_vocab_size": 640}, "a.json")
    assert (padded.model.vocab, padded.padded) == (640, None)
    shared = read(tmp_path, MEGATRON_TABLE | {"context_parallel_size": 4}, "a.json")
    assert (shared.model.context_parallel, shared.notes) == (4, ())
    said(read(tmp_path, MEGATRON_TABLE | {"mtp_num_layers": 1}, "a.json").notes)
    again = MEGATRON_TABLE | {"recompute_granularity": "selective"}
    assert read(tmp_path, again, "a.json").run.checkpoint == "selective"
    assert (
        read(tmp_path, MEGATRON_TABLE | {"recompute_activations": True}, "a.json").run.checkpoint
        == "selective"
    )
    others = read(tmp_path, again | {"recompute_modules": "mlp"}, "a.json")
    assert others.run.checkpoint == "none"
    said(others.notes)
    wider = read(tmp_path, MEGATRON_TABLE, "a.json", vocab=1000)
    assert (wider.model.vocab, wider.padded) == (1024, PaddedVocab(1000, 128))


def test_constants_of_a_config_class_are_read_and_nothing_is_worked_out_too_far(tmp_path: Path) -> None:
    text = (
        "n_layer = 10 // 0\nn_head = 1" + " + 1" * 9 + "\nx[0] = 3\n"
        "class GPTConfig:\n    n_embd: int = 64 * 12\n    bias: bool\nclass Other:\n    n_embd = 5\n"
    )
    x = read(tmp_path, text, "train.py").model
    assert (x.hidden, x.layers, x.heads) == (768, 12, 12)  # nanoGPT's own layers and heads


def test_defaults_of_families(tmp_path: Path, said: Listener) -> None:
    qwen = read(tmp_path, without(configs.QWEN3_4B, "head_dim"))
    assert qwen.model.head_dim == 128
    whole = configs.LLAMA2_7B | {"hidden_size": 4096.0, "num_hidden_layers": "32"}
    assert (read(tmp_path, whole).model.hidden, read(tmp_path, whole).model.layers) == (4096, 32)
    shown = read(tmp_path, configs.LLAMA2_7B | {"vision_config": {"hidden_size": 8}})
    said(qwen.sources["head_dim"], shown.notes)
    parts: dict[str, Any] = configs.GEMMA3_MULTIMODAL
    inner = parts["text_config"] | {"tie_word_embeddings": True}
    both = parts | {"text_config": inner, "tie_word_embeddings": False}
    assert read(tmp_path, both).model.tied is False
    untied = read(tmp_path, configs.GEMMA3_MULTIMODAL | {"tie_word_embeddings": False})
    assert untied.model.tied is False
    deep = {"thinker_config": {"text_config": configs.QWEN3_4B | {"model_type": "qwen3_text"}}}
    omni = read(
        tmp_path, {"model_type": "qwen3_omni", "talker_config": {}, "tie_word_embeddings": False} | deep
    )
    assert omni.keys["hidden"] == "thinker_config.text_config.hidden_size"
    assert (omni.model.hidden, omni.model.tied, len(omni.notes)) == (2560, False, 1)
    dense = read(tmp_path, configs.MIXTRAL_8X7B | {"mlp_only_layers": [0, 1]}).model
    assert (dense.dense_layers, dense.dense_ffn) == (2, 14336)


def test_key_value_heads_of_falcons(tmp_path: Path) -> None:
    """transformers' configuration_falcon.py: num_kv_heads counts in the new architecture alone."""
    one = configs.FALCON_7B | {"hidden_size": 4096, "num_attention_heads": 64, "num_kv_heads": 8}
    assert read(tmp_path, one).model.kv_heads == 1
    assert read(tmp_path, one | {"multi_query": False}).model.kv_heads == 64
    assert read(tmp_path, one | {"new_decoder_architecture": True}).model.kv_heads == 8


def test_learned_positions_end(tmp_path: Path, said: Listener) -> None:
    roberta = configs.BERT_BASE | {"model_type": "roberta", "max_position_embeddings": 514}
    assert read(tmp_path, roberta).model.sequence == 512  # two are its padding's
    assert read(tmp_path, configs.BERT_BASE).model.sequence == 512
    longer = read(tmp_path, configs.GPT2_XL, sequence=4096)
    said(longer.notes, read(tmp_path, roberta, sequence=513).notes)
    assert longer.model.sequence == 4096
    for fits in (
        read(tmp_path, configs.GPT2_XL, sequence=1024),
        read(tmp_path, configs.PYTHIA_2_8B, sequence=4096),
    ):
        assert fits.notes == ()


def test_a_vocabulary_that_ranks_cannot_share(tmp_path: Path, said: Listener) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, configs.GPT2_XL | {"n_head": 20}, tensor_parallel=2)
    said(caught.value)
    sizes = {"hidden": 768, "heads": 12, "layers": 12, "tensor_parallel": 2}
    assumed = config_from_flags(sizes)
    assert assumed.model.vocab == 50432 and "vocab" in assumed.assumed
    said(assumed.sources["vocab"])
    assert config_from_flags(sizes | {"tensor_parallel": 1}).model.vocab == 50257


def test_nanogpt_deals_its_micro_batches_out_to_ddp(tmp_path: Path) -> None:
    found = read(tmp_path, configs.NANOGPT + "\ngradient_accumulation_steps = 2 * 8\n", "train_gpt2.py")
    per_gpu = Training(gpus=8).as_run(found.run, found.model)
    assert (per_gpu.micro_batches, per_gpu.strategy) == (2, "ddp")
    left_out = read(tmp_path, "n_layer = 12\n", "train_gpt2.py", micro_batch=24)
    assert Training(gpus=8).as_run(left_out.run, left_out.model).micro_batches == 5  # train.py: 5 * 8
    assert Training(gpus=1).as_run(left_out.run, left_out.model).micro_batches == 40
    with pytest.raises(UsageError, match="--micro-batches N"):
        Training(gpus=3).as_run(found.run, found.model)


def test_nanogpt_checkpoint(tmp_path: Path) -> None:
    x = read(tmp_path, "init_from = 'gpt2-xl'\nbatch_size = 1\n", "finetune.py").model
    assert (x.layers, x.heads, x.hidden, x.vocab, x.micro_batch) == (48, 25, 1600, 50257, 1)


def test_python_is_never_executed(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    text = f"open({str(trap)!r}, 'w').close()\nn_layer = 6\nn_head = len('abc')\nn_embd = 9**9**9\n"
    x = read(tmp_path, text, "evil.py").model
    assert not trap.exists()
    assert (x.layers, x.heads, x.hidden) == (6, 12, 768)  # what is no constant is not read


def test_flags_alone(said: Listener) -> None:
    x = config_from_flags({"hidden": 4096, "heads": 32, "layers": 32}, gated=True).model
    assert (x.ffn, x.head_dim, x.kv_heads) == (10880, 128, 32)
    with pytest.raises(UsageError) as caught:
        config_from_flags({"hidden": 4096, "heads": 32})
    said(caught.value)


MEGATRON = "--num-layers 2 --hidden-size 64 --num-attention-heads 2 --vocab-size 512"
MEGATRON_TABLE = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "vocab_size": 500}


def without(table: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name != key}


BAD: dict[str, tuple[str, str | dict[str, Any] | list[int]]] = {
    "empty": ("config.json", ""),
    "not json": ("config.json", "{'hidden_size': 1}"),
    "a list": ("config.json", "[1, 2]"),
    "deep": ("config.json", "[" * 200_000),
    "long number": ("config.json", '{"model_type": "gpt2", "n_embd": ' + "9" * 5000 + "}"),
    "a trace": ("trace.json", {"traceEvents": []}),
    "no keys": ("config.json", {"hello": 1}),
    "unknown family": ("config.json", configs.LLAMA2_7B | {"model_type": "zebra"}),
    "no family": ("config.json", {"architectures": ["X"], "hidden_size": 4}),
    "mla without sizes": ("config.json", configs.DEEPSEEK_V2_LITE | {"v_head_dim": None}),
    "mla of no width": ("config.json", configs.DEEPSEEK_V2_LITE | {"kv_lora_rank": 0}),
    "mla by an indexer": ("config.json", configs.DEEPSEEK_V2_LITE | {"index_topk": 2048}),
    "mla by key": ("config.json", configs.LLAMA2_7B | {"kv_lora_rank": 512}),
    "encoder-decoder": ("config.json", {"model_type": "t5gemma2"}),
    "zero": ("config.json", configs.LLAMA2_7B | {"hidden_size": 0}),
    "negative": ("config.json", configs.LLAMA2_7B | {"intermediate_size": -8}),
    "huge": ("config.json", configs.LLAMA2_7B | {"vocab_size": 2**40}),
    "a word": ("config.json", configs.LLAMA2_7B | {"num_hidden_layers": "many"}),
    "true": ("config.json", configs.LLAMA2_7B | {"num_hidden_layers": True}),
    "a fraction": ("config.json", configs.LLAMA2_7B | {"hidden_size": 4096.5}),
    "nan": ("config.json", '{"model_type": "llama", "hidden_size": NaN}'),
    "heads": ("config.json", configs.LLAMA2_7B | {"num_attention_heads": 30}),
    "kv heads": ("config.json", configs.LLAMA2_7B | {"num_key_value_heads": 5}),
    "no layers": ("config.json", {"model_type": "gpt2", "n_embd": 64, "n_head": 2}),
    "experts": ("config.json", configs.MIXTRAL_8X7B | {"num_experts_per_tok": 9}),
    "variable": ("a.sh", "--num-layers 2 --hidden-size $H --num-attention-heads 2"),
    "no value": ("a.sh", "--num-layers --hidden-size 64"),
    "no vocabulary": ("a.sh", "--num-layers 2 --hidden-size 64 --num-attention-heads 2"),
    "megatron experts": ("a.sh", MEGATRON + " --num-experts 8 --moe-router-topk 9"),
    "megatron experts in turn": ("a.sh", MEGATRON + " --num-experts 8 --moe-layer-freq 0"),
    "megatron experts in a list": ("a.sh", MEGATRON + " --num-experts 8 --moe-layer-freq [1]*3"),
    "megatron experts by code": ("a.sh", MEGATRON + " --num-experts 8 --moe-layer-freq [exit()]"),
    "megatron experts without end": ("a.sh", MEGATRON + " --num-experts 8 --moe-layer-freq [1]*9999999999"),
    "mla in megatron": ("a.sh", MEGATRON + " --multi-latent-attention --v-head-dim 0"),
    "no multiple": ("a.json", MEGATRON_TABLE | {"make_vocab_size_divisible_by": -4}),
    "a strange mixture": ("config.json", configs.LLAMA2_7B | {"model_type": "zebra", "num_experts": 8}),
    "how many experts": ("config.json", without(configs.MIXTRAL_8X7B, "num_local_experts")),
    "experts in turn": ("config.json", configs.MIXTRAL_8X7B | {"moe_layer_freq": 2}),
    "how many a token": ("config.json", without(configs.MIXTRAL_8X7B, "num_experts_per_tok")),
    "how wide beside": (
        "config.json",
        without(configs.QWEN_MOE_A2_7B, "intermediate_size") | {"mlp_only_layers": [0]},
    ),
    "no python": ("a.py", "n_layer = = 3"),
    "other python": ("a.py", "import os\n"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_one_clear_line(tmp_path: Path, name: str, said: Listener) -> None:
    file, content = BAD[name]
    with pytest.raises(TracelensError) as caught:
        read(tmp_path, content if isinstance(content, str) else json.dumps(content), file)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400
    said(re.sub("(?<= is not JSON): .*", "", text))  # what follows are Python's words


def test_files_that_are_none(tmp_path: Path, said: Listener) -> None:
    (tmp_path / "x.json").write_bytes(b"\xff\xfe\x00\x80" * 40)
    (tmp_path / "y.json").write_bytes(b" " * 9_000_000)
    (tmp_path / "t.json.gz").write_bytes(b"\x1f\x8b" + b"\0" * 9_000_000)
    for name in ("missing.json", "x.json", "y.json", "t.json.gz", "/dev/zero", "a\0b"):
        with pytest.raises(InputError) as caught:
            read_config(tmp_path / name)
        said(str(caught.value).replace(f"{tmp_path}/", ""))


def test_a_family_that_is_not_known_can_be_described(tmp_path: Path) -> None:
    path = written(tmp_path, configs.LLAMA2_7B | {"model_type": "zebra"})
    assert read_config(path, gated=True).model == read(tmp_path, configs.LLAMA2_7B).model


@pytest.mark.parametrize(
    ("more", "causal", "rope"),
    [
        ({"architectures": ["ZebraForMaskedLM"]}, False, False),
        ({"architectures": ["ZebraForCausalLM"], "rope_theta": 1e4}, True, True),
        ({"is_decoder": False, "rotary_dim": 64}, False, True),
        ({}, True, False),
    ],
)
def test_an_unknown_family_gets_no_mask_and_no_rotary_embeddings_by_assumption(
    tmp_path: Path, more: dict[str, object], causal: bool, rope: bool, said: Listener
) -> None:
    path = written(tmp_path, configs.BERT_BASE | {"model_type": "zebra"} | more)
    found = read_config(path, gated=False)
    assert (found.layout.causal, found.layout.rope) == (causal, rope)
    said(found.notes)


def test_encoders_see_both_ways_and_two_towers_are_refused(tmp_path: Path, said: Listener) -> None:
    for name in ("bert", "roberta", "modernbert"):
        assert not read(tmp_path, configs.BERT_BASE | {"model_type": name}).layout.causal
    with pytest.raises(InputError) as caught:
        read_config(written(tmp_path, configs.BERT_BASE | {"model_type": "clip"}), gated=False)
    said(caught.value)


def test_ranks_have_to_divide_the_model(tmp_path: Path, said: Listener) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, configs.GPT2_XL, tensor_parallel=2)
    said(caught.value)


DIFFS: list[tuple[dict[str, Any] | str, str, dict[str, int], list[str]]] = [
    (configs.GPT2_XL, "config.json", {"vocab": 50304},
     ['-   "vocab_size": 50257,', '+   "vocab_size": 50304,']),
    # The default of n_inner would follow n_embd: it has to be written out.
    (configs.GPT2_XL, "config.json", {"hidden": 1536, "heads": 12},
     ['-   "n_embd": 1600,', '+   "n_embd": 1536,', '-   "n_head": 25,', '+   "n_head": 12,',
      '+   "n_inner": 6400,']),
    (configs.LLAMA2_7B, "config.json", {"heads": 64},
     ['-   "num_attention_heads": 32,', '+   "num_attention_heads": 64,',
      '-   "num_key_value_heads": 32,', '+   "num_key_value_heads": 64,']),
    (configs.GEMMA3_MULTIMODAL, "config.json", {"ffn": 10496},
     ['-   "intermediate_size": 10240,', '+   "intermediate_size": 10496,']),
    (configs.MEGATRON_SCRIPT, "train.sh", {"heads": 20, "vocab": 50304},
     ["- --num-attention-heads 32", "+ --num-attention-heads 20",
      "- --make-vocab-size-divisible-by 1", "+ --make-vocab-size-divisible-by 64"]),
    (configs.MEGATRON_YAML, "args.yaml", {"ffn": 14400},
     ["- ffn_hidden_size: 14336", "+ ffn_hidden_size: 14400"]),
    (configs.NANOGPT, "train_gpt2.py", {"heads": 24}, ["- n_head = 12", "+ n_head = 24"]),
]  # fmt: skip


@pytest.mark.parametrize(("content", "name", "change", "lines"), DIFFS)
def test_a_change_in_the_format_of_the_input(
    tmp_path: Path, content: dict[str, Any] | str, name: str, change: dict[str, int], lines: list[str]
) -> None:
    found = read(tmp_path, content, name)
    assert list(config_diff(found, changed(found.model, change))) == lines


def test_a_pasted_diff_gives_the_shape_it_was_made_for(tmp_path: Path) -> None:
    """The lines put into the file and read again are the changed model."""
    found = read(tmp_path, configs.GPT2_XL)
    then = changed(found.model, {"hidden": 1536, "heads": 12, "vocab": 50304})
    table = dict(configs.GPT2_XL)
    for line in config_diff(found, then):
        if line.startswith("+"):
            table |= json.loads("{" + line[1:].rstrip(",") + "}")
    assert read(tmp_path, table).model == then


@pytest.mark.parametrize(
    "found",
    [
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        {"quant_method": "gptq", "bits": 4},
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
    ],
    ids=lambda found: str(found["quant_method"]),
)
def test_a_quantized_checkpoint_is_said(tmp_path: Path, found: dict[str, object], said: Listener) -> None:
    """DeepSeek-V3's, and GPTQ's and bitsandbytes' of the Hub: read as bf16 in silence before."""
    (note,) = read(tmp_path, configs.LLAMA2_7B | {"quantization_config": found}).notes
    inner = configs.GEMMA3_MULTIMODAL | {"quantization_config": found}
    assert note in read(tmp_path, inner).notes
    said(note)
    assert not read(tmp_path, configs.LLAMA2_7B).notes
