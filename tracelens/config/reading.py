"""From a file of any known kind, or from flags, to a ``Configuration``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from tracelens.config import words
from tracelens.config.configuration import (
    PADDED_TO,
    Configuration,
    Draft,
    Given,
    Layout,
    finish,
    padded_vocab,
)
from tracelens.config.huggingface import is_huggingface, read_huggingface
from tracelens.config.megatron import arguments_of, flat_yaml, flattened, is_megatron, read_megatron
from tracelens.config.nanogpt import assignments, is_nanogpt, read_nanogpt
from tracelens.errors import InputError, UsageError
from tracelens.files import cannot_read

#: A configuration is a few kB; with tokenizer tables in it, a few MB.
_LARGEST_FILE = 8_000_000
#: Traces say what they are within so many bytes.
_HEAD = 65_536


def read_config(
    path: str | Path,
    *,
    overrides: Mapping[str, int] | None = None,
    gated: bool | None = None,
    tied: bool | None = None,
) -> Configuration:
    """Read the model's sizes from ``path``, a file or a folder with a config.json.

    ``overrides`` are sizes by our names that replace the file's. Raises ``InputError`` for a file that
    cannot be used and names what is missing; nothing in the file is executed.
    """
    where = Path(path)
    if os.path.isdir(where):
        where = where / "config.json"
    text = _text(where)
    name, given = where.name, Given(overrides or {}, gated, tied)
    if where.suffix.lower() == ".py":
        table = assignments(text, name=name)
        if not is_nanogpt(table):
            raise InputError(f"{name} sets none of n_layer, n_head and n_embd: no nanoGPT config")
        return read_nanogpt(table, given, name=name)
    if text.lstrip()[:1] in ("{", "["):
        return _from_json(text, given, name)
    arguments = arguments_of(text)
    if where.suffix.lower() in (".yaml", ".yml"):
        scalars = flat_yaml(text)
        if is_megatron(scalars):
            return read_megatron(scalars, given, name=name, format="megatron-yaml")
    if is_megatron(arguments):
        return read_megatron(arguments, given, name=name, format="megatron")
    raise InputError(f"{name} is not {words.KNOWN_FILES}" if text.strip() else f"{name} is empty")


def config_from_flags(
    sizes: Mapping[str, int], *, gated: bool | None = None, tied: bool | None = None
) -> Configuration:
    """A GPT with the sizes given: one QKV product, ffn 4h (8h/3 on a multiple of 64 with a gate)."""
    draft = Draft("flags")
    for name, value in sizes.items():
        draft.put(name, value, words.COMMAND_LINE, key="--" + name.replace("_", "-"), origin="written")
    for name, what in words.NEEDED_FLAGS.items():
        if name not in draft.values:
            raise UsageError(
                f"give a config file, or at least --hidden, --heads and --layers ({what} is missing)"
            )
    t = draft.values.get("tensor_parallel", 1)
    vocab, which = 50257, "assumed: GPT-2's"
    if vocab % t:
        vocab, which = padded_vocab(vocab, t), f"{which} {words.padded(vocab, PADDED_TO, t)}"
    for name, value, why in (("vocab", vocab, which), ("sequence", 2048, "assumed")):
        if name not in draft.values:
            draft.put(name, value, why, key="--" + name, origin="assumed")
    hidden = draft.values["hidden"]
    if "ffn" not in draft.values:
        size = int(8 * hidden / 3) // 64 * 64 or 64 if gated else 4 * hidden
        why = "assumed: 8h/3 on a multiple of 64" if gated else "assumed: 4h"
        draft.put("ffn", size, why, key="--ffn", origin="assumed")
    if gated is None:
        draft.notes.append(words.TAKEN_FOR_GPT)
    elif gated:
        draft.notes.append(words.TAKEN_FOR_LLAMA)
    for name in ("kv_heads", "head_dim"):
        draft.keys.setdefault(name, "--" + name.replace("_", "-"))
    return finish(
        draft,
        Given({}, bool(gated), True if tied is None else tied),
        layout=Layout(fused_qkv=True, fused_gate=bool(gated), rope=bool(gated)),
        gated=None,
        tied=None,
        format="flags",
        family="A model of these sizes",
    )


def _text(where: Path) -> str:
    try:
        if where.exists() and not where.is_file():
            raise InputError(f"{where.name} is not a regular file")
        with where.open("rb") as file:
            data = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise InputError(cannot_read(where, error)) from None
    except ValueError:
        raise InputError("the name of the file holds a character that no file name can have") from None
    if data[:2] == b"\x1f\x8b" or b'"traceEvents"' in data[:_HEAD] or b'"deviceProperties"' in data[:_HEAD]:
        raise InputError(f"{where.name} is a trace, not a configuration: {words.TRACE_INSTEAD}")
    if len(data) > _LARGEST_FILE:
        raise InputError(
            f"{where.name} is larger than {_LARGEST_FILE // 1_000_000} MB: too large for a configuration"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{where.name} is not text, and so not {words.KNOWN_FILES}") from None


def _from_json(text: str, given: Given, name: str) -> Configuration:
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is not JSON: {str(error)[:80]}") from None
    if not isinstance(table, dict):
        raise InputError(f"{name} is JSON, but not an object with a model's sizes")
    if is_huggingface(table):
        return read_huggingface(table, given, name=name)
    flat = flattened(table)
    if is_megatron(flat):
        return read_megatron(flat, given, name=name, format="megatron-json")
    for key, what in words.OTHER_LIBRARIES.items():
        if key in table:
            raise InputError(f"{name} {what}")
    if "traceEvents" in table:
        raise InputError(f"{name} is a trace, not a configuration: {words.TRACE_INSTEAD}")
    raise InputError(
        f"{name} is not {words.KNOWN_FILES}: it has neither model_type nor hidden_size and num_layers; give"
        " such a file or the sizes: --hidden, --heads and --layers of tracelens suggest"
    )
