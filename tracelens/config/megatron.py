"""Arguments of Megatron-LM: a launch script, a list of arguments, or YAML/JSON of them.

Names and defaults follow megatron/training/arguments.py and core/utils: ffn 4h, or int(4h*2/3 / 64) * 64 with
--swiglu; the vocabulary is padded to --make-vocab-size-divisible-by (128) times tensor-parallel ranks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tracelens.config import words
from tracelens.config.configuration import (
    PADDED_TO,
    ConfigFormat,
    Configuration,
    Draft,
    Given,
    Layout,
    PaddedVocab,
    Run,
    finish,
    whole,
)
from tracelens.config.latent import MEGATRON, take_latent
from tracelens.errors import InputError
from tracelens.numbers import round_up
from tracelens.results.suggestions import Checkpoint, Strategy

_SIZES = {
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "layers": "num_layers",
    "head_dim": "kv_channels",
    "ffn": "ffn_hidden_size",
    "sequence": "seq_length",
    "micro_batch": "micro_batch_size",
    "tensor_parallel": "tensor_model_parallel_size",
    "context_parallel": "context_parallel_size",
}
#: Of a T5, which has the encoder's in place of ``num_layers`` and ``seq_length``.
_ENCODER = {"layers": "encoder_num_layers", "sequence": "encoder_seq_length"}
_DECODER = {"decoder_layers": "decoder_num_layers", "decoder_sequence": "decoder_seq_length"}
#: Defaults of arguments.py and transformer_config.py.
_LATENT = {"kv_lora_rank": 32, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128}
_TOP_K = 2
_SHARDED = ("use_megatron_fsdp", "use_custom_fsdp", "use_torch_fsdp2")
_MOST_LAYERS = 2**14
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
    return "hidden_size" in table and ("num_layers" in table or "encoder_num_layers" in table)


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
    _decoder(draft, table, overrides)
    if _on(table, "multi_latent_attention"):
        for key in (*MEGATRON, "q_lora_rank"):
            _check_variable(table, key, name)
        take_latent(draft, _LATENT | dict(table), given, names=MEGATRON)
    else:
        _kv_heads(draft, table)
    swiglu = _on(table, "swiglu") or _on(table, "gated_linear_unit")
    hidden = overrides.get("hidden") or draft.values.get("hidden")
    if "ffn" not in draft.values and hidden is not None:
        width = int((4 * hidden * 2 / 3) / 64) * 64 if swiglu else 4 * hidden
        how = words.GATED_BY_MEGATRON if swiglu else words.UNGATED_BY_MEGATRON
        draft.put("ffn", width, how, key=_SIZES["ffn"])
    chosen = _experts(draft, table, overrides) if table.get("num_experts") else None
    padded = _vocab(draft, table, overrides)
    _stages(draft, table, overrides)
    if _on(table, "mtp_num_layers"):
        draft.notes.append(words.not_counted("mtp_num_layers", str(table["mtp_num_layers"])[:12]))
    modules = table.get("recompute_modules")
    if modules is not None and "core_attn" not in str(modules) and _recompute(table) != "full":
        draft.notes.append(words.not_counted("recompute_modules", str(modules)[:40]))
    untied = _on(table, "untie_embeddings_and_output_weights")
    layout = Layout(
        fused_qkv=True,
        fused_gate=swiglu,
        rope=_on(table, "use_rotary_position_embeddings")
        or str(table.get("position_embedding_type")) == "rope",
        experts_per_token=chosen,
        bias="decoder_layers" in draft.values and table.get("position_embedding_type") == "relative",
    )
    draft.notes += [words.BIASED] if layout.bias else []
    if format == "megatron":
        draft.keys = {ours: "--" + key.replace("_", "-") for ours, key in draft.keys.items()}
    found = finish(
        draft,
        replace(given, sizes={size: value for size, value in overrides.items() if size != "vocab"}),
        layout=layout,
        gated=swiglu,
        tied=not untied,
        format=format,
        family=f"Megatron-LM ({name})",
        padded=padded,
    )
    return replace(found, run=_run(table, name))


def _decoder(draft: Draft, table: Mapping[str, Any], overrides: Mapping[str, int]) -> None:
    """A T5's second stack: GPT's arguments name the encoder's alone, for themselves."""
    for key in (*_ENCODER.values(), *_DECODER.values()):
        _check_variable(table, key, draft.name)
    if all(table.get(key) is None for key in _DECODER.values()):
        return
    for (size, key), (own, its) in zip(_ENCODER.items(), _DECODER.items(), strict=True):
        draft.take(size, table, (key,))
        as_many = overrides.get(size, draft.values.get(size))
        if not draft.take(own, table, (its,)) and as_many is not None:
            draft.put(own, as_many, words.AS_ENCODER, key=its)
        draft.fixed[size] = words.TWO_STACKS


def _experts(draft: Draft, table: Mapping[str, Any], overrides: Mapping[str, int]) -> int:
    """Experts, layers without them, and what stands beside them; gives how many a token goes to.

    ``ffn`` is the width of one expert from here on.
    """
    keys = ("num_experts", "moe_ffn_hidden_size", "moe_router_topk", "moe_shared_expert_intermediate_size",
            "expert_model_parallel_size", "expert_tensor_parallel_size")  # fmt: skip
    for key in keys:
        _check_variable(table, key, draft.name)
    draft.take("experts", table, ("num_experts",))
    layers, width = overrides.get("layers") or draft.values.get("layers", 0), draft.values.get("ffn")
    dense = _dense_layers(table.get("moe_layer_freq", 1), layers, draft.name) if layers else 0
    if dense and width is not None:
        draft.put("dense_layers", dense, words.dense_layers(draft.name))
        draft.put("dense_ffn", width, f"{draft.name}: {_SIZES['ffn']}")
    if not draft.take("ffn", table, ("moe_ffn_hidden_size",)) and width is not None:
        draft.put("ffn", width, words.EXPERTS_BY_MEGATRON, key="moe_ffn_hidden_size")
    draft.take("shared_ffn", table, ("moe_shared_expert_intermediate_size",))
    draft.take("expert_parallel", table, ("expert_model_parallel_size",))
    split = overrides.get("tensor_parallel") or draft.values.get("tensor_parallel", 1)
    if not draft.take("expert_tensor", table, ("expert_tensor_parallel_size",)) and split > 1:
        draft.put("expert_tensor", split, words.EXPERTS_CUT_BY_MEGATRON, key="expert_tensor_parallel_size")
    chosen = whole(table.get("moe_router_topk", _TOP_K), "moe_router_topk", draft.name)
    if not 0 < chosen <= draft.values["experts"]:
        raise InputError(f"{draft.name}: moe_router_topk = {chosen} of {draft.values['experts']} experts")
    return chosen


def _dense_layers(frequency: object, layers: int, name: str) -> int:
    """Layers without experts: one of N layers has them, or a list says which, ``[0]*3+[1]*58``."""
    text = str(frequency).strip()
    if "[" not in text:
        every = whole(frequency, "moe_layer_freq", name)
        if every < 1:
            raise InputError(f"{name}: moe_layer_freq = {every} is not how often experts come")
        return layers - -(-layers // every)
    found = _pattern(text)
    if found is None or len(found) != layers or not set(found) <= {0, 1}:
        raise InputError(
            f"{name}: moe_layer_freq = {text[:40]} does not say of {layers} layers which have experts"
        )
    return found.count(0)


def _pattern(text: str) -> list[int] | None:
    """A list that is written with + and * alone; None for anything else."""
    text += ")" * (text.count("(") - text.count(")"))  # arguments end at a bracket

    def value(node: ast.AST) -> list[int] | int | None:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.List):
            items = [found for item in node.elts if isinstance(found := value(item), int)]
            return items if len(items) == len(node.elts) else None
        if isinstance(node, ast.BinOp):
            left, right = value(node.left), value(node.right)
            if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
                return left + right
            if isinstance(node.op, ast.Mult) and isinstance(left, list) and isinstance(right, int):
                return left * right if len(left) * right <= _MOST_LAYERS else None
        return None

    try:
        found = value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return found if isinstance(found, list) else None


def _stages(draft: Draft, table: Mapping[str, Any], overrides: Mapping[str, int]) -> None:
    """Pipeline stages, and the parts of its layers that each takes turns with."""
    turns = ("num_virtual_stages_per_pipeline_rank", "num_layers_per_virtual_pipeline_stage")
    for key in ("pipeline_model_parallel_size", *turns):
        _check_variable(table, key, draft.name)
    draft.take("pipeline_parallel", table, ("pipeline_model_parallel_size",))
    stages = overrides.get("pipeline_parallel") or draft.values.get("pipeline_parallel", 1)
    if stages == 1 or draft.take("virtual_stages", table, turns[:1]) or table.get(turns[1]) is None:
        return
    layers = overrides.get("layers") or draft.values.get("layers", 0)
    each = whole(table[turns[1]], turns[1], draft.name)
    if each < 1 or layers % (stages * each):
        raise InputError(
            f"{draft.name}: {turns[1]} = {each} does not divide {layers} layers over {stages} stages"
        )
    draft.put("virtual_stages", layers // stages // each, f"{draft.name}: {turns[1]}", origin="written")


def _run(table: Mapping[str, Any], name: str) -> Run:
    """How a step is run; a batch that is a variable of somewhere else is not known."""
    batch = table.get("global_batch_size")
    known = batch is not None and not (isinstance(batch, str) and "$" in batch)
    strategy: Strategy = "zero1" if _on(table, "use_distributed_optimizer") else "ddp"
    return Run(
        whole(batch, "global_batch_size", name) if known else None,
        _recompute(table),
        "fsdp" if any(_on(table, key) for key in _SHARDED) else strategy,
        _on(table, "sequence_parallel"),
        "plain" if table.get("transformer_impl") == "local" else "megatron",
        overlap=_on(table, "tp_comm_overlap"),
    )


def _recompute(table: Mapping[str, Any]) -> Checkpoint:
    """What is computed again; its name before 2022 stands in examples/academic_paper_scripts."""
    granularity = table.get("recompute_granularity")
    if granularity == "full" or _on(table, "activations_checkpoint_method"):
        return "full"
    again = granularity == "selective" or _on(table, "recompute_activations")
    return (
        "selective" if again and "core_attn" in str(table.get("recompute_modules", "core_attn")) else "none"
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
    by = whole(
        table.get("make_vocab_size_divisible_by") or PADDED_TO, "make_vocab_size_divisible_by", draft.name
    )
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
