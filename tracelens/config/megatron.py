"""Arguments of Megatron-LM: a launch script, a list of arguments, or YAML/JSON of them.

Names and defaults follow megatron/training/arguments.py and core/utils: ffn 4h, or int(4h*2/3 / 64) * 64 with
--swiglu; the vocabulary is padded to --make-vocab-size-divisible-by (128) times tensor-parallel ranks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tracelens.config import words
from tracelens.config.configuration import (
    ConfigFormat,
    Configuration,
    Draft,
    Given,
    Layout,
    PaddedVocab,
    finish,
    whole,
)
from tracelens.errors import InputError
from tracelens.numbers import round_up

_SIZES = {
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "layers": "num_layers",
    "head_dim": "kv_channels",
    "ffn": "ffn_hidden_size",
    "sequence": "seq_length",
    "micro_batch": "micro_batch_size",
    "tensor_parallel": "tensor_model_parallel_size",
}
_ARGUMENT = re.compile(
    r"(?<![\w-])--([a-z][a-z0-9_-]*)(?:[ \t]*=[ \t]*|[ \t]+)?(?=(\"[^\"\n]*\"|'[^'\n]*'|[^\s\\)]+)?)"
)
_SET = re.compile(
    r"^\s*(?:export\s+)?([A-Za-z_]\w*)=[\"']?([A-Za-z0-9_./:-]*)[\"']?\s*(?:;|#.*|$)", re.MULTILINE
)
_SET_DEFAULT = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=[\"']?\$\{\w+:-(\w+)\}[\"']?\s*$", re.MULTILINE)
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?::-(\w+))?\}?$")
_YAML_LINE = re.compile(r"^\s*(?:-\s+)?[\"']?(?:--)?([A-Za-z][\w-]*)[\"']?\s*:\s*(.*?)\s*$")


def is_megatron(table: Mapping[str, Any]) -> bool:
    """True for arguments of Megatron: its names of layers, hidden size and heads."""
    return "hidden_size" in table and "num_layers" in table


def arguments_of(text: str) -> dict[str, Any]:
    """``--name value`` pairs of a script; shell variables that it sets itself are filled in."""
    text = re.sub(r"(?m)(^|\s)#.*$", r"\1", text)
    variables = dict(_SET.findall(text)) | dict(_SET_DEFAULT.findall(text))
    found: dict[str, Any] = {}
    for match in _ARGUMENT.finditer(text):
        value: Any = match[2]
        if value is None or value.startswith("--"):
            value = True
        else:
            value = value.strip("\"'")
            if variable := _VARIABLE.match(value):
                value = variables.get(variable[1], variable[2] or value)
        found[match[1].replace("-", "_")] = value
    return found


def flat_yaml(text: str) -> dict[str, Any]:
    """Scalars of a YAML file by key, whatever they are nested in; nothing else of YAML is read."""
    found: dict[str, Any] = {}
    for line in text.splitlines():
        match = _YAML_LINE.match(line)
        if match is None:
            continue
        value = re.sub(r"(^|\s)#.*$", "", match[2]).strip().strip("\"'")
        if value:
            known: dict[str, Any] = {"true": True, "false": False, "null": None, "~": None, "none": None}
            found.setdefault(match[1].replace("-", "_"), known.get(value.lower(), value))
    return found


def flattened(table: Mapping[str, Any]) -> dict[str, Any]:
    """Scalars of nested JSON by key, with ``--`` and ``-`` of arguments taken out."""
    found: dict[str, Any] = {}
    todo: list[Mapping[str, Any]] = [table]
    while todo:
        for key, value in todo.pop(0).items():
            if isinstance(value, Mapping):
                todo.append(value)
            else:
                found.setdefault(str(key).lstrip("-").replace("-", "_"), value)
    return found


def read_megatron(
    table: Mapping[str, Any], given: Given, *, name: str, format: ConfigFormat
) -> Configuration:
    """Sizes and layers of Megatron's arguments."""
    draft, overrides = Draft(name), given.sizes
    for size, key in _SIZES.items():
        _check_variable(table, key, name)
        draft.take(size, table, (key,))
    if _on(table, "multi_latent_attention"):
        raise InputError(f"{name}: --multi-latent-attention is not modelled yet")
    if table.get("num_experts"):
        raise InputError(f"{name}: --num-experts is not modelled from Megatron's arguments yet")
    _kv_heads(draft, table)
    swiglu = _on(table, "swiglu") or _on(table, "gated_linear_unit")
    hidden = overrides.get("hidden") or draft.values.get("hidden")
    if "ffn" not in draft.values and hidden is not None:
        width = int((4 * hidden * 2 / 3) / 64) * 64 if swiglu else 4 * hidden
        how = words.GATED_BY_MEGATRON if swiglu else words.UNGATED_BY_MEGATRON
        draft.put("ffn", width, how, key=_SIZES["ffn"])
    padded = _vocab(draft, table, overrides)
    for degree in ("pipeline_model_parallel_size", "context_parallel_size"):
        if table.get(degree) not in (None, 1, "1"):
            draft.notes.append(words.not_counted(degree, str(table[degree])[:12]))
    untied = _on(table, "untie_embeddings_and_output_weights")
    layout = Layout(
        fused_qkv=True,
        fused_gate=swiglu,
        rope=_on(table, "use_rotary_position_embeddings")
        or str(table.get("position_embedding_type")) == "rope",
    )
    if format == "megatron":
        draft.keys = {ours: "--" + key.replace("_", "-") for ours, key in draft.keys.items()}
    return finish(
        draft,
        replace(given, sizes={size: value for size, value in overrides.items() if size != "vocab"}),
        layout=layout,
        gated=swiglu,
        tied=not untied,
        format=format,
        family=f"Megatron-LM ({name})",
        padded=padded,
    )


def _kv_heads(draft: Draft, table: Mapping[str, Any]) -> None:
    _check_variable(table, "num_query_groups", draft.name)
    if _on(table, "group_query_attention"):
        if not draft.take("kv_heads", table, ("num_query_groups",)):
            draft.put("kv_heads", 1, words.GROUPS_BY_MEGATRON, key="num_query_groups")
    elif table.get("num_query_groups") not in (None, 1, "1"):
        draft.notes.append(words.GROUPS_WITHOUT_EFFECT)


def _vocab(draft: Draft, table: Mapping[str, Any], overrides: Mapping[str, int]) -> PaddedVocab | None:
    """Pad the vocabulary as Megatron does; gives what it does."""
    for key in ("vocab_size", "padded_vocab_size", "make_vocab_size_divisible_by"):
        _check_variable(table, key, draft.name)
    ranks = overrides.get("tensor_parallel") or draft.values.get("tensor_parallel", 1)
    by = whole(table.get("make_vocab_size_divisible_by") or 128, "make_vocab_size_divisible_by", draft.name)
    if not 0 < by < 2**20:
        raise InputError(f"{draft.name}: make_vocab_size_divisible_by = {by} is not a size to pad to")
    if table.get("padded_vocab_size") is not None and "vocab" not in overrides:
        draft.take("vocab", table, ("padded_vocab_size",))
        return None
    asked = overrides.get("vocab")
    if asked is None:
        if table.get("vocab_size") is None:
            raise InputError(
                f"{draft.name} names no vocabulary size (its tokenizer does): give --vocab N, e.g. 50257"
            )
        asked = whole(table["vocab_size"], "vocab_size", draft.name)
    draft.put("vocab", round_up(asked, by * ranks), words.padded(asked, by, ranks),
              key="make_vocab_size_divisible_by", origin="written")  # fmt: skip
    return PaddedVocab(asked, by)


def _on(table: Mapping[str, Any], key: str) -> bool:
    value = table.get(key, False)
    return value is not None and str(value).lower() not in ("false", "0", "no", "none", "")


def _check_variable(table: Mapping[str, Any], key: str, name: str) -> None:
    value = table.get(key)
    if isinstance(value, str) and "$" in value:
        raise InputError(
            f"{name}: --{key.replace('_', '-')} is {value[:40]}, which the file does not set: give the number"
        )
    if value is True:
        raise InputError(f"{name}: --{key.replace('_', '-')} has no value")
