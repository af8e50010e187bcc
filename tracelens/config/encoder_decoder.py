"""Encoder-decoders: two stacks of one width, and a second attention in each layer of the decoder."""

from __future__ import annotations

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
#: What the T5s were trained with (arXiv 1910.10683): relative positions set no length.
_USUAL_SEQUENCE = 512
#: Stays, for one of the two stacks alone would change.
_TOGETHER = ("layers", "sequence")


def take_both(draft: Draft, table: Mapping[str, object], family: ModelFamily, given: Given) -> bool | None:
    """Set the sizes of both stacks; whether their MLPs have a gate, None where the family says it.

    ``layers`` and ``sequence`` are the encoder's. Raises InputError where one is missing or the two differ.
    """
    if "EncoderModel" in " ".join(str(one) for one in _listed(table.get("architectures"))):
        raise InputError(f"{draft.name}: an encoder of {family.title} alone {words.NOT_YET}")
    for name, (one, two) in _BOTH.items():
        keys = one if family.bias else two
        said = {whole(table[key], key, draft.name) for key in keys if table.get(key) is not None}
        if len(said) > 1:
            raise InputError(f"{draft.name}: {' other than '.join(keys)} {words.NOT_YET}")
        draft.take(name, table, keys)
        draft.decoder_keys.update((name, key) for key in keys[1:])
    keys = _LAYERS[0] if family.bias else _LAYERS[1]
    draft.values.pop("layers", None)  # BART's num_hidden_layers can be another number
    draft.take("layers", table, keys[:1])
    as_many = given.sizes.get("layers", draft.values.get("layers"))
    if not draft.take("decoder_layers", table, keys[1:]) and as_many is not None:
        draft.put("decoder_layers", as_many, words.AS_ENCODER)
    draft.take("head_dim", table, ("d_kv",))
    _lengths(draft, table, given)
    for name in _TOGETHER:
        draft.fixed[name] = words.TWO_STACKS
    draft.notes += [words.BIASED] if family.bias else []
    draft.beside = _beside(draft, table)
    gate = table.get("feed_forward_proj")
    return gate.startswith("gated") if isinstance(gate, str) else None


def _listed(found: object) -> list[object]:
    return found if isinstance(found, list) else []


def _lengths(draft: Draft, table: Mapping[str, object], given: Given) -> None:
    """Of the encoder and of the decoder; what a user gives wins in ``finish``."""
    frames, key = table.get("max_source_positions"), "max_source_positions"
    if frames is not None:  # Whisper: a spectrogram of 30 s whatever is said in it
        length = whole(frames, key, draft.name)
        if given.sizes.get("sequence", length) != length:
            raise UsageError(
                f"the encoder always reads {length} frames ({key}): --decoder-sequence N is the text's"
            )
        draft.put("sequence", length, f"{draft.name}: {key}", origin="written")
        draft.notes.append(words.STEM_NOT_COUNTED)
        allowed, key = table.get("max_target_positions"), "max_target_positions"
        text = whole(allowed, key, draft.name) if allowed is not None else length
        draft.put("decoder_sequence", text, words.decoder_assumed(key, text), origin="assumed")
        return
    key = next((one for one in ("n_positions", "max_position_embeddings") if table.get(one) is not None), "")
    length = whole(table[key], key, draft.name) if key else _USUAL_SEQUENCE
    why = f"{draft.name}: {key}" if key else words.SEQUENCE_ASSUMED
    draft.put("sequence", length, why, origin="written" if key else "assumed")
    as_long = given.sizes.get("sequence", length)
    draft.put("decoder_sequence", as_long, words.DECODER_AS_LONG, origin="assumed")
    for asked in (as_long, given.sizes.get("decoder_sequence", 0)):
        if POSITIONS.get(str(table.get("model_type"))) is not None and asked > length:
            draft.notes.append(words.beyond_positions(asked, key, length))
            break


def _beside(draft: Draft, table: Mapping[str, object]) -> int | None:
    """Weights that no GEMM here has: learned positions, and Whisper's convolutions."""
    hidden, positions = draft.values.get("hidden", 0), 0
    if table.get("max_source_positions") is not None:
        mels = whole(table.get("num_mel_bins", 80), "num_mel_bins", draft.name)
        positions = draft.values["sequence"] + draft.values["decoder_sequence"] + 3 * (mels + hidden)
    elif str(table.get("model_type")) in POSITIONS:
        positions = 2 * (
            whole(table.get("max_position_embeddings") or 0, "max_position_embeddings", draft.name) + 2
        )
    return positions * hidden or None
