"""A change of hyper-parameters as lines of the configuration it was read from."""

from __future__ import annotations

from tracelens.config.configuration import Configuration, PaddedVocab
from tracelens.config.model_config import ModelConfig
from tracelens.numbers import round_up

_ORDER = ("hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "layers", "sequence", "micro_batch")

#: Settings of a run that a model's file need not have, as options of `tracelens suggest`.
_OF_RUN = {"sequence": "--sequence", "micro_batch": "--micro-batch"}


def config_diff(config: Configuration, then: ModelConfig) -> tuple[str, ...]:
    """Lines to take out ("- ") and to put in ("+ "), in the format of the input.

    A size that the file leaves to a default is written out where the default would follow another change.
    Sequence and micro-batch that the file does not set are options of ``tracelens suggest``.

    >>> from tracelens.config import config_from_flags
    >>> from tracelens.config.model_config import changed
    >>> gpt = config_from_flags({"hidden": 2560, "heads": 32, "layers": 32})
    >>> config_diff(gpt, changed(gpt.model, {"heads": 20}))
    ('- --heads 32', '+ --heads 20')
    """
    now = config.model
    lines: list[str] = []
    for name in _ORDER:
        key = config.keys.get(name)
        before, after = now.get(name), then.get(name)
        if key is None and name in _OF_RUN and before != after:
            lines += [f"{sign} {_OF_RUN[name]} {value}" for sign, value in (("-", before), ("+", after))]
        if after is None or key is None:
            continue
        written = name in config.written
        if before == after and (written or not _follows(config, name, then)):
            continue
        if not written and _derived(name, then) == after:
            continue  # the default gives it
        if name == "vocab" and config.padded is not None:
            new = _multiple(config.padded, then)
            lines += [_line("-", key, config.padded.by, config), _line("+", key, new, config)]
            continue
        for one in (key, config.decoder_keys.get(name)):
            if one is None:
                continue
            if written:
                lines.append(_line("-", one, before, config))
            lines.append(_line("+", one, after, config))
    return tuple(lines)


def _derived(name: str, then: ModelConfig) -> int | None:
    if name == "kv_heads":
        return then.heads
    if name == "head_dim" and then.hidden and then.heads and then.hidden % then.heads == 0:
        return then.hidden // then.heads
    return None


def _follows(config: Configuration, name: str, then: ModelConfig) -> bool:
    """True for an MLP width that the framework would derive from the changed hidden size."""
    return name == "ffn" and then.hidden != config.model.hidden


def _multiple(padded: PaddedVocab, then: ModelConfig) -> int:
    """Megatron's --make-vocab-size-divisible-by after the change."""
    ranks, vocab = then.tp, then.vocab or 1
    return next((by for by in (64, 128) if round_up(padded.asked, by * ranks) == vocab), 128)


def _line(sign: str, key: str, value: int | None, config: Configuration) -> str:
    key = key.rpartition(".")[2]
    if config.format in ("huggingface", "megatron-json"):
        return f'{sign}   "{key}": {value},'
    if config.format == "megatron-yaml":
        return f"{sign} {key}: {value}"
    if config.format == "nanogpt":
        return f"{sign} {key} = {value}"
    return f"{sign} {key} {value}"
