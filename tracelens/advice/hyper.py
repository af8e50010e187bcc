"""The hyper-parameters that set a step's shapes, and what changing them does to one another."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from tracelens.errors import UsageError
from tracelens.results import ModelDims

#: How users write a parameter -> our name for it.
_ALIASES = {
    "vocab_size": "vocab", "v": "vocab",
    "h": "hidden", "hidden_size": "hidden", "n_embd": "hidden", "d_model": "hidden",
    "a": "heads", "n_head": "heads", "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads", "num_query_groups": "kv_heads", "kv": "kv_heads",
    "d": "head_dim", "kv_channels": "head_dim",
    "d_ff": "ffn", "f": "ffn", "intermediate_size": "ffn", "ffn_hidden_size": "ffn", "n_inner": "ffn",
    "n_layer": "layers", "num_layers": "layers", "num_hidden_layers": "layers",
    "seq": "sequence", "s": "sequence", "seq_length": "sequence", "block_size": "sequence",
    "b": "micro_batch", "batch": "micro_batch", "batch_size": "micro_batch",
    "micro_batch_size": "micro_batch",
    "tp": "tensor_parallel", "t": "tensor_parallel", "tensor_model_parallel_size": "tensor_parallel",
    "num_experts": "experts",
}  # fmt: skip

_WHOLE = re.compile(r"[+-]?[0-9](?:_?[0-9]){0,17}")
#: No parameter of a model is larger, and products of a few stay exact.
_LARGEST = 2**31


@dataclass(frozen=True, slots=True)
class Hyper:
    """Hyper-parameters of the whole model (not of one rank's slice). None = not known."""

    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn: int | None = None
    vocab: int | None = None
    layers: int | None = None
    sequence: int | None = None
    micro_batch: int | None = None
    tensor_parallel: int | None = None
    experts: int | None = None
    tokens: int | None = None  # of one micro-batch, where sequence or micro-batch are not known
    gated: bool | None = None  # the MLP has a gate (SwiGLU): three matrices and not two
    tied: bool | None = None  # logits share the embedding's weight

    def get(self, name: str) -> int | None:
        """The value of the integer parameter ``name``."""
        value: int | None = getattr(self, name)
        return value

    @property
    def token_count(self) -> int | None:
        """Tokens of a micro-batch: micro_batch * sequence, or ``tokens`` where those are not known."""
        if self.micro_batch and self.sequence:
            return self.micro_batch * self.sequence
        return self.tokens

    @property
    def parameters(self) -> int | None:
        """Weights in the matrices of the model, without biases and norms; None where a size is not known.

        Per layer h*(a + 2*kv)*d + a*d*h for attention and h*f times two (three with a gate) times the
        experts for the MLP; v*h for the embedding, twice unless tied. An unknown ``tied`` counts once.
        """
        h, a, d, f, v, count = self.hidden, self.heads, self.head_dim, self.ffn, self.vocab, self.layers
        if not (h and a and d and f and count):
            return None
        kv = self.kv_heads or a
        experts = self.experts or 1
        mlp = h * f * (3 if self.gated else 2) * experts + (h * experts if experts > 1 else 0)
        layer = h * (a + 2 * kv) * d + a * d * h + mlp
        return count * layer + (v or 0) * h * (2 if self.tied is False else 1)


#: The parameters that can be changed.
NAMES = tuple(one.name for one in fields(Hyper) if one.name not in ("gated", "tied"))


def hyper_of(
    dims: ModelDims, *, gated: bool | None = None, tokens: int | None = None, vocab: int | None = None
) -> Hyper:
    """What the trace shows, scaled from this rank's slice to the whole model where ranks share it.

    ``vocab`` overrides the size of the logits product, for one that a library padded.
    """
    ranks = dims.tensor_parallel.value
    t = ranks or 1

    def whole(value: int | None) -> int | None:
        return value * t if value is not None else None

    return Hyper(
        hidden=dims.hidden.value,
        heads=whole(dims.heads.value),
        kv_heads=whole(dims.kv_heads.value),
        head_dim=dims.head_dim.value,
        ffn=whole(dims.ffn.value),
        vocab=vocab or dims.vocab.value,
        layers=dims.layers.value,
        sequence=dims.sequence.value,
        micro_batch=dims.micro_batch.value,
        tensor_parallel=ranks,
        experts=dims.experts.value,
        tokens=tokens,
        gated=gated,
    )


def parse_changes(texts: Sequence[str], *, now: Hyper | None = None) -> dict[str, int]:
    """``("vocab=50304,heads=20",)`` -> ``{"vocab": 50304, "heads": 20}``.

    Raises UsageError that says what is wrong and which parameters there are, with their values ``now``.
    """
    changes: dict[str, int] = {}
    for part in (piece.strip() for text in texts for piece in text.split(",") if piece.strip()):
        name, sign, number = (piece.strip() for piece in part.partition("="))
        if not sign or not name:
            raise UsageError(f"{part[:60]!r} is no change: write NAME=NUMBER; {_known(now)}")
        found = canonical(name, now=now)
        if not _WHOLE.fullmatch(number):
            raise UsageError(f"{part[:60]!r}: {number[:40]!r} is no whole number; {_known(now)}")
        value = int(number.replace("_", ""))
        if changes.get(found, value) != value:
            raise UsageError(f"{found} is given twice: {changes[found]} and {value}")
        changes[found] = value
    if not changes:
        raise UsageError(f"no change given: write NAME=NUMBER; {_known(now)}")
    return changes


def canonical(name: str, *, now: Hyper | None = None) -> str:
    """Our name of a parameter; UsageError lists them."""
    low = name.lower()
    found = _ALIASES.get(low, low)
    if found not in NAMES:
        close = difflib.get_close_matches(low, (*NAMES, *_ALIASES), n=1)
        hint = f", did you mean {close[0]}?" if close else ""
        raise UsageError(f"unknown hyper-parameter {name[:40]!r}{hint}; {_known(now)}")
    return found


def _known(now: Hyper | None) -> str:
    """The parameters there are, with their present values where a step is known."""
    if now is None:
        return f"known: {', '.join(NAMES)}"
    values = [f"{name}={now.get(name)}" for name in NAMES if now.get(name) is not None]
    if now.micro_batch and now.sequence:
        values = [value for value in values if not value.startswith("tokens=")]
    return f"now {', '.join(values)}" if values else "no parameter of this step is known"


def changed(now: Hyper, changes: Mapping[str, int]) -> Hyper:
    """``now`` with ``changes``, and what follows from them.

    Where heads * head_dim = hidden now, it stays so: more heads at one hidden size are smaller heads.
    kv_heads stay equal to heads where they are, else they stay as they are. ffn, vocab and layers stay.
    Where ranks split the layers, heads, kv_heads and ffn have to divide among them; each rank holds a
    copy of a key/value head where there are fewer heads than ranks.
    Raises UsageError where a size does not come out whole or a parameter to change is not known now.
    """
    for name, value in changes.items():
        if not 0 < value < _LARGEST:
            raise UsageError(f"{name} = {value} is no size a model can have")
        if now.get(name) is None:
            raise UsageError(f"{name} cannot be changed: its present value is not known; {_known(now)}")
    if "tokens" in changes and now.micro_batch and now.sequence:
        raise UsageError("change micro_batch or sequence: tokens are their product")
    then = replace(now, **changes)  # type: ignore[arg-type]
    if {"heads", "head_dim", "hidden"} & changes.keys():
        then = replace(then, **_heads(now, then, changes))  # type: ignore[arg-type]
    if "kv_heads" not in changes and now.kv_heads is not None and now.kv_heads == now.heads:
        then = replace(then, kv_heads=then.heads)
    if then.heads and then.kv_heads and then.heads % then.kv_heads:
        raise UsageError(
            f"{then.kv_heads} key/value heads do not divide {then.heads} heads: give kv_heads as well"
        )
    t = then.tensor_parallel or 1
    for name in ("heads", "kv_heads", "ffn"):
        size = then.get(name) or t
        if size % t and not (name == "kv_heads" and t % size == 0):
            raise UsageError(f"{name} = {size} does not divide over {t} tensor-parallel ranks")
    return then


def _heads(now: Hyper, then: Hyper, changes: Mapping[str, int]) -> dict[str, int]:
    """heads and head_dim after a change of them or of hidden."""
    if now.heads is None or now.head_dim is None or now.heads * now.head_dim != now.hidden:
        return {}  # heads of their own size: nothing ties the three together
    hidden = then.hidden or 0
    if "heads" in changes and "head_dim" in changes:
        return {}
    by = "head_dim" if "head_dim" in changes else "heads"
    size = then.get(by) or 1
    if hidden % size:
        other = "head_dim" if by == "heads" else "heads"
        raise UsageError(
            f"{by} = {size} does not divide hidden = {hidden}: {_near(hidden, size, by)}, or give {other} too"
        )
    return {"heads" if by == "head_dim" else "head_dim": hidden // size}


def _near(hidden: int, size: int, name: str) -> str:
    """The divisors of ``hidden`` on both sides of ``size``, as a hint."""
    below = next((n for n in range(min(size, hidden), 0, -1) if hidden % n == 0), 1)
    above = next((n for n in range(size, min(hidden, 8 * size) + 1) if hidden % n == 0), None)
    return f"{name} = {below} does" + (f", so does {above}" if above is not None else "")
