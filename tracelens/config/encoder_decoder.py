"""Encoder-decoders: two stacks of one width, and a second attention in each layer of the decoder."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tracelens.config import words
from tracelens.config.configuration import Draft, Given, whole
from tracelens.config.families import POSITIONS, ModelFamily
from tracelens.errors import InputError, UsageError

#: Size -> keys of the encoder and of the decoder: one of T5 for both, or one each.
_BOTH = {
    "heads": (("num_heads",), ("encoder_attention_heads", "decoder_attention_heads")),
    "ffn": (("d_ff",), ("encoder_ffn_dim", "decoder_ffn_dim")),
}
_LAYERS = (("num_layers", "num_decoder_layers"), ("encoder_layers", "decoder_layers"))
#: The same of a file with a part for each stack.
_ALIKE = {
    "hidden": "hidden_size", "heads": "num_attention_heads", "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim", "ffn": "intermediate_size", "vocab": "vocab_size",
}  # fmt: skip
_DEPTH = "num_hidden_layers"
_POSITIONS = ("max_source_positions", "max_target_positions")
#: Classes with the encoder or the decoder alone.
_ALONE = re.compile("EncoderModel|ForCausalLM|AudioClassification|TokenClassification")
#: What the T5s were trained with (arXiv 1910.10683): relative positions set no length.
_USUAL_SEQUENCE = 512
#: Stays, for one of the two stacks alone would change.
_TOGETHER = ("layers", "sequence")


def of_parts(draft: Draft, table: Mapping[str, object]) -> dict[str, object] | None:
    """T5Gemma's ``encoder`` with what its decoder has besides; None of another model's file.

    Raises InputError where the two stacks differ in more than their number of layers.
    """
    encoder, decoder = table.get("encoder"), table.get("decoder")
    if table.get("model_type") != "t5gemma" or not (isinstance(encoder, dict) and isinstance(decoder, dict)):
        return None
    for name, key in _ALIKE.items():
        if encoder.get(key) != decoder.get(key):
            why = f"{draft.name}: {key} of the decoder other than the encoder's: {words.NOT_YET}"
            raise InputError(why, words.A_TRACE_TELLS)
        draft.decoder_keys[name] = f"decoder.{key}"
    layers = {"encoder_layers": encoder.get(_DEPTH), "decoder_layers": decoder.get(_DEPTH)}
    return {**table, **encoder, **layers, "model_type": table["model_type"]}


def take_both(draft: Draft, table: Mapping[str, object], family: ModelFamily, given: Given) -> bool | None:
    """Set the sizes of both stacks; whether their MLPs have a gate, None where the family says it.

    ``layers`` and ``sequence`` are the encoder's. Raises InputError where one is missing or the two differ.
    """
    classes = table.get("architectures")
    alone = (
        next((one for one in classes if _ALONE.search(str(one))), None) if isinstance(classes, list) else None
    )
    if alone is not None:
        why = f"{draft.name}: {str(alone)[:40]} has one of {family.title}'s two stacks"
        raise InputError(f"{why}: {words.NOT_YET}", words.A_TRACE_TELLS)
    if parts := "decoder" in table:
        draft.take("ffn", table, (_ALIKE["ffn"],))
    for name, (one, two) in () if parts else _BOTH.items():
        keys = one if family.bias else two
        said = {whole(table[key], key, draft.name) for key in keys if table.get(key) is not None}
        if len(said) > 1:
            raise InputError(f"{draft.name}: {' other than '.join(keys)} is {words.NOT_YET}")
        draft.take(name, table, keys)
        draft.decoder_keys.update((name, key) for key in keys[1:])
    keys = _LAYERS[0] if family.bias else _LAYERS[1]
    draft.values.pop("layers", None)  # BART's num_hidden_layers can be another number
    draft.take("layers", table, keys[:1])
    as_many = given.sizes.get("layers", draft.values.get("layers"))
    if not draft.take("decoder_layers", table, keys[1:]) and as_many is not None:
        draft.put("decoder_layers", as_many, words.AS_ENCODER)
    draft.take("head_dim", table, ("d_kv",))
    sound = all(table.get(key) is not None for key in _POSITIONS)
    draft.beside = (_of_sound if sound else _of_text)(draft, table, given) or None
    if parts:  # each stack has an embedding of its own
        draft.beside = draft.values.get("vocab", 0) * draft.values.get("hidden", 0) or None
    draft.fixed |= dict.fromkeys(_TOGETHER, words.TWO_STACKS)
    if "kv_heads" not in draft.values:
        draft.fixed["kv_heads"] = words.KV_HEADS_FOLLOW
    gate = table.get("feed_forward_proj")
    return gate.startswith("gated") if isinstance(gate, str) else None


def _of_sound(draft: Draft, table: Mapping[str, object], given: Given) -> int:
    """Whisper's lengths, of 30 s of sound whatever is said; weights of its positions and convolutions."""
    frames, text = (whole(table[key], key, draft.name) for key in _POSITIONS)
    if given.sizes.get("sequence", frames) != frames:
        why = f"the encoder always reads {frames} frames ({_POSITIONS[0]})"
        raise UsageError(f"{why}: --decoder-sequence N is the text's")
    draft.put("sequence", frames, f"{draft.name}: {_POSITIONS[0]}", origin="written")
    draft.put("decoder_sequence", text, words.decoder_assumed(_POSITIONS[1], text), origin="assumed")
    if (asked := given.sizes.get("decoder_sequence", 0)) > text:
        draft.notes.append(words.beyond_positions(asked, _POSITIONS[1], text))
    mels = whole(table.get("num_mel_bins", 80), "num_mel_bins", draft.name)
    hidden, ffn, layers = (draft.values.get(name, 1) for name in ("hidden", "ffn", "layers"))
    # three taps each: one over the spectrogram at twice the frames, one over its result at every second
    stem, layer = 6 * mels + 3 * hidden, 4 * hidden + 2 * ffn
    draft.notes.append(words.stem_not_counted(stem / (layers * layer)))
    return (frames + text + 3 * (mels + hidden)) * hidden


def _of_text(draft: Draft, table: Mapping[str, object], given: Given) -> int:
    """Lengths that positions allow, or T5 was trained with; weights of learned positions."""
    key = next((one for one in ("n_positions", "max_position_embeddings") if table.get(one) is not None), "")
    length = whole(table[key], key, draft.name) if key else _USUAL_SEQUENCE
    why = f"{draft.name}: {key}" if key else words.SEQUENCE_ASSUMED
    draft.put("sequence", length, why, origin="written" if key else "assumed")
    as_long = given.sizes.get("sequence", length)
    draft.put("decoder_sequence", as_long, words.DECODER_AS_LONG, origin="assumed")
    if str(table.get("model_type")) not in POSITIONS:
        return 0
    if (asked := max(as_long, given.sizes.get("decoder_sequence", 0))) > length:
        draft.notes.append(words.beyond_positions(asked, key, length))
    return 2 * (length + 2) * draft.values.get("hidden", 0)
