"""``config.json`` of Hugging Face transformers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tracelens.config import words
from tracelens.config.configuration import USUAL_SEQUENCE, Configuration, Draft, Given, Layout, finish, whole
from tracelens.config.encoder_decoder import of_parts, take_both
from tracelens.config.families import DEFAULTS, FAMILIES, POSITIONS, ModelFamily
from tracelens.config.images import patched
from tracelens.config.latent import take_latent
from tracelens.config.projections import projections
from tracelens.config.unlike import unlike, whole_unlike
from tracelens.errors import InputError

#: Where a model of several parts keeps its language model.
_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
_KEYS = {
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "vocab": ("vocab_size",),
    "head_dim": ("head_dim",),
}
_FFN = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim")
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "seq_length")
#: These have their window only where the file asks for it (transformers, configuration_*.py).
_WINDOW_ASKED = ("qwen", "smollm")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_SHARED = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
_SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk")
_DENSE = ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
#: Sizes that a user can be asked for; more are those of another kind of model.
_FEW = 2
_OTHER_PARTS = ("vision_config", "visual", "audio_config")


def is_huggingface(table: Mapping[str, Any]) -> bool:
    """True for what looks like a config.json."""
    return "model_type" in table or "architectures" in table or any(part in table for part in _PARTS)


def read_huggingface(table: Mapping[str, Any], given: Given, *, name: str) -> Configuration:
    """Sizes and layers of a config.json already decoded."""
    draft, whole_table = Draft(name), table
    part, table = _language_part(table, draft)
    if part not in (None, "encoder"):
        draft.notes.append(words.other_parts(str(whole_table.get("model_type", "this model"))[:40]))
    if (reason := whole_unlike(whole_table)) is not None:
        raise _refused(name, {**table, "model_type": whole_table.get("model_type")}, reason, whole_table)
    family = _family(table, draft, given)
    for size, keys in _KEYS.items():
        draft.take(size, table, keys)
    if "head_dim" not in draft.values and family.head_dim is not None:
        draft.put("head_dim", family.head_dim, words.family_default(family.title), key="head_dim")
    if family.latent:
        take_latent(draft, table, given)
    else:
        _kv_heads(draft, table, family)
    for size, default in DEFAULTS.get(str(table.get("model_type")).removesuffix("_text"), {}).items():
        if size not in draft.values:
            key = "num_key_value_heads" if size == "kv_heads" else _KEYS[size][0]
            draft.put(size, default, words.family_default(family.title), key=key)
    layout_experts = _experts(draft, table, family)
    if family.both:
        gate = take_both(draft, table, family, given)
        family = family if gate is None else replace(family, gated=gate)
    elif family.patches is not None:
        family = patched(draft, table, family, given.sizes)
    elif not layout_experts:
        _ffn(draft, table, family)
    if not family.both:
        _sequence(draft, table, given.sizes)
    window, windowed = _window(draft, table, family, given.sizes)
    draft.notes += [words.BIASED] if family.bias else []
    _quantization(draft, whole_table)
    if table.get("num_nextn_predict_layers"):
        ahead = str(table["num_nextn_predict_layers"])[:12]
        draft.notes.append(words.not_counted("num_nextn_predict_layers", ahead))
    for key, said in words.SOFT_CAPS.items():
        if table.get(key):
            draft.notes.append(said)
    if part is not None:
        draft.keys = {ours: f"{part}.{key}" for ours, key in draft.keys.items()}
    layout = Layout(
        fused_qkv=family.fused_qkv,
        fused_gate=family.fused_gate,
        causal=family.causal,
        rope=family.rope,
        experts_per_token=layout_experts,
        window=window,
        windowed_frac=windowed,
        patches=family.patches is not None,
        rms=family.both and family.bias,
        bias=family.bias,
    )
    share = table.get("tie_word_embeddings")
    return finish(
        draft,
        given,
        layout=layout,
        gated=family.gated,
        tied=share if isinstance(share, bool) else family.tied,
        format="huggingface",
        family=f"{family.title} (Hugging Face {name})",
    )


def _language_part(table: Mapping[str, Any], draft: Draft) -> tuple[str | None, Mapping[str, Any]]:
    # PaliGemma says the width of its language model outside of it, too
    if (both := of_parts(draft, table)) is not None:
        return "encoder", both
    path: list[str] = []
    while part := _inner_part(table):  # Qwen's Omni keeps it two deep
        path.append(part)
        table = {"model_type": table.get("model_type"), **table[part]} | {
            key: table[key] for key in ("tie_word_embeddings",) if key in table
        }  # whether weights are tied is the whole model's, which transformers 5 goes by
    return ".".join(path) or None, table


def _inner_part(table: Mapping[str, Any]) -> str | None:
    itself = all(any(key in table for key in _KEYS[size]) for size in ("hidden", "heads", "layers"))
    parts = () if itself else _PARTS
    return next((part for part in parts if isinstance(table.get(part), Mapping)), None)


def _family(table: Mapping[str, Any], draft: Draft, given: Given) -> ModelFamily:
    kind, name = table.get("model_type"), draft.name
    if not isinstance(kind, str):
        raise InputError(f"{name} has no model_type, so how its layers are built is not known")
    base = kind.removesuffix("_text")
    known = FAMILIES.get(base)
    if (reason := whole_unlike(table) or unlike(table, known)) is not None:
        raise _refused(name, table, reason)
    if known is not None:
        if any(isinstance(table.get(part), Mapping) for part in _OTHER_PARTS):
            draft.notes.append(words.other_parts(kind))
        return known
    return _unknown(table, draft, kind, given)


def _unknown(table: Mapping[str, Any], draft: Draft, kind: str, given: Given) -> ModelFamily:
    """A family that is not known, as a plain transformer where the file and the user say all that takes."""
    named = f"{draft.name}: model_type {kind[:40]!r}"
    if any(table.get(key) for key in (*_EXPERTS, "moe_intermediate_size")):
        raise InputError(
            f"{named} has experts, and how they are built is not known here", words.OTHER_EXPERTS
        )
    lacking = [
        size
        for size, keys in (_KEYS | {"ffn": _FFN}).items()
        if size in words.NEEDED and size not in given.sizes and all(table.get(key) is None for key in keys)
    ]
    if "vocab" in lacking:
        raise _refused(draft.name, table, words.NO_VOCABULARY)
    if len(lacking) > _FEW:
        raise InputError(f"{named} has {words.under_no_key(lacking)}", words.A_TRACE_TELLS)
    if given.gated is None:
        raise InputError(f"{named} is not known here: {words.untold(lacking)}", words.as_plain(lacking))
    return _plain(table, draft, kind[:40], given.gated)


def _refused(
    name: str, table: Mapping[str, Any], reason: str, whole_table: Mapping[str, Any] | None = None
) -> InputError:
    """With what helps: GEMMs that can be judged by themselves, a part that can be read, a trace."""
    kind = str(table.get("model_type", "this model"))[:40]
    if reason in (words.STATE_SPACE, words.DELTA) and (gemms := projections(table)):
        return InputError(
            f"{name}: {kind} has {reason}, {words.NO_TIME_OF_THE_CORE}", words.one_by_one(gemms)
        )
    remedies = [words.A_TRACE_TELLS]
    part = (whole_table or {}).get("vision_config")
    if reason == words.TOWERS and isinstance(part, Mapping) and part.get("model_type") in FAMILIES:
        remedies.insert(0, words.part_alone("vision_config"))
    return InputError(f"{name}: {kind} has {reason}: {words.NOT_YET}", "; ".join(remedies))


def _plain(table: Mapping[str, Any], draft: Draft, kind: str, gated: bool) -> ModelFamily:
    """A family that is not known, as far as the file says how it is built; what it does not say is noted."""
    classes = " ".join(str(one) for one in table.get("architectures") or ())
    causal = True if re.search("CausalLM|LMHead", classes) else table.get("is_decoder")
    if re.search("MaskedLM|Encoder|PreTraining", classes):
        causal = False
    rope = any(key.startswith(("rope_", "rotary_")) and table[key] is not None for key in table)
    if not isinstance(causal, bool):
        draft.notes.append(words.mask_assumed(draft.name, kind))
    title = words.plain(kind, causal=causal is not False, rope=rope)
    return ModelFamily(title, gated=gated, rope=rope, causal=causal is not False)


def _kv_heads(draft: Draft, table: Mapping[str, Any], family: ModelFamily) -> None:
    if family.title in ("Falcon", "StarCoder"):
        if table.get("multi_query", True) and not table.get("new_decoder_architecture", False):
            draft.put("kv_heads", 1, f"{draft.name}: multi_query")
            return
        if family.title == "Falcon" and not table.get("new_decoder_architecture", False):
            return  # num_kv_heads means nothing there
    draft.take("kv_heads", table, ("num_key_value_heads", "num_kv_heads", "n_head_kv"))


def _ffn(draft: Draft, table: Mapping[str, Any], family: ModelFamily) -> None:
    if family.title in ("BLOOM", "MPT"):
        factor = whole(table.get("expansion_ratio", 4), "expansion_ratio", draft.name)
        if "hidden" in draft.values:
            draft.put("ffn", factor * draft.values["hidden"], f"{factor} * hidden")
        draft.fixed["ffn"] = draft.fixed["hidden"] = words.no_width_key(family.title)
        return
    # a family of experts without any has the MLP that would stand beside them
    if draft.take("ffn", table, ("shared_intermediate_size", *_FFN) if family.experts else _FFN):
        return
    if family.ffn_factor is not None and "hidden" in draft.values:
        key = "n_inner" if "n_embd" in table else "intermediate_size"
        key = "ffn_hidden_size" if family.title == "Falcon" else key
        draft.put("ffn", family.ffn_factor * draft.values["hidden"], f"{family.ffn_factor} * hidden", key=key)


def _experts(draft: Draft, table: Mapping[str, Any], family: ModelFamily) -> int | None:
    """Experts per token; None for a dense model. Sets experts and ffn (of one expert)."""
    if not family.experts or any(table.get(key) == 0 for key in _EXPERTS):
        return None
    if not draft.take("experts", table, _EXPERTS):
        raise InputError(f"{draft.name} does not say how many experts there are (num_local_experts)")
    turns = ("decoder_sparse_step", "moe_layer_freq", "moe_layer_interval")
    if any(table.get(key, 1) != 1 for key in turns):
        raise InputError(
            f"{draft.name}: layers with experts in turn with layers without are not modelled yet"
        )
    draft.take("ffn", table, ("moe_intermediate_size", "intermediate_size"))
    if family.title == "Llama 4":
        _beside_llama4(draft, table)
    else:
        _beside_experts(draft, table, family.shared)
    chosen = next((table[key] for key in _CHOSEN if table.get(key) is not None), None)
    if chosen is None:
        raise InputError(f"{draft.name} does not say how many experts a token goes to (num_experts_per_tok)")
    chosen = whole(chosen, "num_experts_per_tok", draft.name)
    if not 0 < chosen <= draft.values["experts"]:
        raise InputError(f"{draft.name}: num_experts_per_tok = {chosen} of {draft.values['experts']} experts")
    return chosen


def _beside_experts(draft: Draft, table: Mapping[str, Any], usual: int) -> None:
    """The MLP that every token goes through, of ``usual`` experts, and layers without experts."""
    shared = next((key for key in _SHARED if table.get(key)), None)
    count = whole(table[shared], shared, draft.name) if shared is not None else usual
    widths = tuple(key for key in _SHARED_WIDTH if table.get(key))
    if not draft.take("shared_ffn", table, widths) and count:
        draft.put("shared_ffn", count * draft.values.get("ffn", 0), words.shared_experts(count, draft.name))
    listed = table.get("mlp_only_layers")
    dense = len(listed) if isinstance(listed, list) else 0
    kinds = table.get("mlp_layer_types")
    dense = dense or (kinds.count("dense") if isinstance(kinds, list) else 0)
    for key in _DENSE:
        dense = dense or whole(table.get(key) or 0, key, draft.name)
    _without_experts(draft, table, min(dense, draft.values.get("layers", dense)), "intermediate_size")


def _beside_llama4(draft: Draft, table: Mapping[str, Any]) -> None:
    """An MLP as wide as an expert beside them; layers in turn without experts (modeling_llama4.py)."""
    draft.take("shared_ffn", table, ("intermediate_size",))
    layers = draft.values.get("layers", 0)
    every = whole(table.get("interleave_moe_layer_step") or 1, "interleave_moe_layer_step", draft.name)
    listed = table.get("moe_layers")
    routed = len(listed) if isinstance(listed, list) and listed else layers // max(every, 1)
    _without_experts(draft, table, layers - routed, "intermediate_size_mlp")


def _without_experts(draft: Draft, table: Mapping[str, Any], layers: int, width: str) -> None:
    if layers:
        draft.put("dense_layers", layers, words.dense_layers(draft.name))
        if not draft.take("dense_ffn", table, (width,)):
            raise InputError(f"{draft.name} does not say how wide the MLP of layers without experts is")


def _quantization(draft: Draft, table: Mapping[str, Any]) -> None:
    """Says that the stored weights are quantized: a step trains others."""
    found = table.get("quantization_config") or table.get("compression_config")
    if not isinstance(found, Mapping):
        return
    bits = next((f"{found[key]} bits" for key in ("bits", "w_bit") if isinstance(found.get(key), int)), "")
    bits = next((f"{key[8]} bits" for key in ("load_in_4bit", "load_in_8bit") if found.get(key)), bits)
    how = [str(found.get("quant_method") or found.get("quantization_status") or "unknown")[:40], bits]
    draft.notes.append(words.quantized([word for word in how if word]))


def _sequence(draft: Draft, table: Mapping[str, Any], overrides: Mapping[str, int]) -> None:
    key = next((key for key in _POSITIONS if table.get(key) is not None), None)
    if key is None:
        return
    first = POSITIONS.get(str(table.get("model_type")))
    positions = whole(table[key], key, draft.name) - (first or 0)
    if (asked := overrides.get("sequence")) is not None:
        if first is not None and asked > positions:
            draft.notes.append(words.beyond_positions(asked, key, positions))
        return
    length = min(positions, USUAL_SEQUENCE)
    short = words.sequence_assumed(key, positions) if positions > length else f"{draft.name}: {key}"
    draft.put("sequence", length, short, origin="assumed" if positions > length else "written")


def _window(
    draft: Draft, table: Mapping[str, Any], family: ModelFamily, overrides: Mapping[str, int]
) -> tuple[int | None, float]:
    """The keys that a query sees in layers with a sliding window, and the share of such layers."""
    window, kinds = table.get("sliding_window"), table.get("layer_types")
    if isinstance(both := table.get("local_attention"), int):  # ModernBERT's is the width of both sides
        window = both // 2
    length = overrides.get("sequence") or draft.values.get("sequence") or USUAL_SEQUENCE
    chunk = table.get("attention_chunk_size")
    if isinstance(chunk, int) and chunk < length:
        raise InputError(
            f"{draft.name}: attention in chunks of {chunk} is not modelled yet for {length} tokens: give"
            f" --sequence {chunk} or less"
        )
    asked = table.get("use_sliding_window", not str(table.get("model_type")).startswith(_WINDOW_ASKED))
    if isinstance(window, bool) or not isinstance(window, int) or not asked:
        return None, 0.0
    if not 0 < window < length:
        return None, 0.0
    if isinstance(kinds, list) and kinds:
        return window, sum(kind == "sliding_attention" for kind in kinds) / len(kinds)
    layers, late = draft.values.get("layers", 1), table.get("max_window_layers")
    if isinstance(first := table.get("global_attn_every_n_layers"), int) and first > 0:
        return window, 1.0 - math.ceil(layers / first) / layers  # beginning with the first layer
    told = table.get("sliding_window_pattern")
    every = told if isinstance(told, int) else family.full_every
    if every is not None:
        return window, 1.0 - (layers // every if every > 0 else 0) / layers
    if isinstance(late, int):
        return window, max(0, layers - late) / layers
    draft.notes.append(words.window_untold(window))
    return None, 0.0
