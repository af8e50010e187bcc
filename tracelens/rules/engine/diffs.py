"""A change of sizes as lines to paste, in the names of the usual frameworks.

Keys: transformers' PretrainedConfig and TrainingArguments; megatron/training/arguments.py of Megatron-LM;
train.py and model.py of karpathy/nanoGPT. ``config.diff`` does the same for a file that was read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tracelens.config.model_config import ModelConfig
from tracelens.numbers import round_up
from tracelens.results import ConfigDiff
from tracelens.rules.engine.amounts import ChangedSizes

_HF = {
    "vocab": "vocab_size", "hidden": "hidden_size", "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads", "head_dim": "head_dim", "ffn": "intermediate_size",
    "layers": "num_hidden_layers",
}  # fmt: skip
#: As GPT2Config names them.
_GPT2 = {"hidden": "n_embd", "heads": "n_head", "ffn": "n_inner", "layers": "n_layer"}
_TRAINER = {"micro_batch": "per_device_train_batch_size"}
_MEGATRON = {
    "hidden": "--hidden-size", "heads": "--num-attention-heads", "kv_heads": "--num-query-groups",
    "head_dim": "--kv-channels", "ffn": "--ffn-hidden-size", "layers": "--num-layers",
    "sequence": "--seq-length", "micro_batch": "--micro-batch-size",
    "tensor_parallel": "--tensor-model-parallel-size", "experts": "--num-experts",
}  # fmt: skip
_NANOGPT = {
    "vocab": "vocab_size", "hidden": "n_embd", "heads": "n_head", "layers": "n_layer",
    "sequence": "block_size", "micro_batch": "batch_size",
}  # fmt: skip
#: Why nanoGPT has no setting for a size.
_NOT_IN_NANOGPT = {
    "ffn": "model.py fixes the MLP at 4 * n_embd",
    "kv_heads": "its attention has as many key/value heads as heads",
    "head_dim": "model.py takes n_embd // n_head",
    "tensor_parallel": "it has no tensor parallelism",
    "experts": "it has no experts",
}  # fmt: skip
_ORDER = ("vocab", "hidden", "heads", "kv_heads", "head_dim", "ffn", "layers", "experts", "sequence",
          "micro_batch", "tensor_parallel")  # fmt: skip
_PART = (
    "no lines for the vocabulary: the trace shows the logits of one of {ranks} tensor-parallel ranks, which"
    " can be a part of it; pad the whole to a multiple of 64 × {ranks}"
)
#: Megatron's --make-vocab-size-divisible-by where none is given.
_MEGATRON_MULTIPLE = 128


def config_diffs(sizes: ChangedSizes) -> list[ConfigDiff]:
    """The change in each framework's names; nothing where the change is none of known sizes."""
    then = sizes.then
    if then is None:
        return []
    now, then = _whole_vocab(sizes.now), _whole_vocab(then)
    names = [name for name in _ORDER if now.get(name) != then.get(name)]
    part: list[ConfigDiff] = []
    if "vocab" in names and now.tp > 1 and now.vocab_split is None:
        # whether the ranks share the vocabulary is not known, so neither is its whole size
        names.remove("vocab")
        part = [ConfigDiff("Every framework", [], _PART.format(ranks=now.tensor_parallel))]
    if not names:
        return part
    found = [*_huggingface(now, then, names), _megatron(now, then, names), _nanogpt(now, then, names)]
    return [*part, *(_of_parts(one, now) if "vocab" in names else one for one in found)]


def _whole_vocab(config: ModelConfig) -> ModelConfig:
    """With the vocabulary of all ranks together where each is known to hold a part."""
    if not config.vocab_split or config.vocab is None:
        return config
    return replace(config, vocab=config.vocab * config.tp)


def _of_parts(diff: ConfigDiff, now: ModelConfig) -> ConfigDiff:
    """Where the whole vocabulary is the sum of the ranks' parts, the lines say so."""
    ranks = now.tp
    if not now.vocab_split or ranks == 1 or not diff.lines:
        return diff
    note = f"{now.vocab} is {ranks} ranks' parts together: a file can have less, which the framework pads"
    return replace(diff, note="; ".join(part for part in (diff.note, note) if part))


def _derived(config: ModelConfig) -> bool:
    """Do heads and head_dim make up the hidden size, so that the latter is no setting of its own?"""
    return config.heads is not None and config.hidden == config.heads * (config.head_dim or 0)


def _settings(now: ModelConfig, then: ModelConfig, names: Sequence[str]) -> list[str]:
    """The sizes that are set; head_dim and kv_heads are left out where they follow."""
    left = {"head_dim"} if _derived(now) and _derived(then) else set()
    if now.kv_heads == now.heads and then.kv_heads == then.heads:
        left.add("kv_heads")
    return [name for name in names if name not in left]


def _lines(
    now: ModelConfig, then: ModelConfig, names: Sequence[str], keys: Mapping[str, str], line: str
) -> list[str]:
    return [
        sign + line.format(key=keys[name], value=config.get(name))
        for name in names
        if name in keys
        for sign, config in (("-", now), ("+", then))
    ]


def _huggingface(now: ModelConfig, then: ModelConfig, names: Sequence[str]) -> list[ConfigDiff]:
    found = []
    settings = _settings(now, then, names)
    lines = _lines(now, then, settings, _HF, '   "{key}": {value},')
    if lines:
        gpt2 = {} if now.gated else _GPT2  # which has no gate
        notes = [f"{_HF[name]} is {key}" for name, key in gpt2.items() if name in settings]
        said = [f"in GPT-2 {', '.join(notes)}"] if notes else []
        if "heads" in settings:
            extra = [key for name, key in _HF.items() if name in names and name not in settings]
            said += [f"where the file has {' or '.join(extra)}, change it too"] if extra else []
        found.append(ConfigDiff("Hugging Face config.json", lines, "; ".join(said)))
    lines = _lines(now, then, names, _TRAINER, "    {key}={value},")
    if lines:
        note = "divide gradient_accumulation_steps by the same factor to keep the global batch"
        found.append(ConfigDiff("Hugging Face TrainingArguments", lines, note))
    if "sequence" in names:
        note = (
            "the length to which the data set is cut (block_size, max_length) is set in the training script"
        )
        found.append(ConfigDiff("Hugging Face", [], note))
    if "experts" in names:
        note = "num_local_experts (Mixtral) or num_experts (Qwen, OLMoE) in config.json"
        found.append(ConfigDiff("Hugging Face", [], note))
    return found


def _megatron(now: ModelConfig, then: ModelConfig, names: Sequence[str]) -> ConfigDiff:
    lines = _lines(now, then, _settings(now, then, names), _MEGATRON, " {key} {value}")
    notes = []
    if "kv_heads" in names and "kv_heads" in _settings(now, then, names):
        notes.append("with --group-query-attention")
    if "vocab" in names:
        by = _multiple(now, then)
        if by is None:
            notes.append("no --make-vocab-size-divisible-by gives this vocabulary")
        else:
            lines.append(f"+ --make-vocab-size-divisible-by {by}")
            if by == _MEGATRON_MULTIPLE:
                notes.append(f"{by} is the default: delete the option where it sets less")
    return ConfigDiff("Megatron-LM arguments", lines, "; ".join(notes))


def _multiple(now: ModelConfig, then: ModelConfig) -> int | None:
    """What Megatron has to pad the present vocabulary to, for the wanted one; it counts per rank."""
    ranks = then.tp
    tries = (_MEGATRON_MULTIPLE, 64, 256, 32, 16, 8)
    return next((by for by in tries if round_up(now.vocab or 1, by * ranks) == then.vocab), None)


def _nanogpt(now: ModelConfig, then: ModelConfig, names: Sequence[str]) -> ConfigDiff:
    settings = _settings(now, then, names)
    lines = _lines(now, then, settings, _NANOGPT, " {key} = {value}")
    notes = [f"no setting for {name}: {why}" for name, why in _NOT_IN_NANOGPT.items() if name in settings]
    if "vocab" in settings:
        notes.append("in GPTConfig; train.py passes it as model_args['vocab_size']")
    return ConfigDiff("nanoGPT", lines, "; ".join(notes))
