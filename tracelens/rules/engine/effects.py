"""What a change takes and does besides saving time: one table of words for every hyper-parameter.

A finding names its change as ``{parameter: [from, to]}``. From that, and from the model in the trace, follow
the weights, operations and memory it adds (``amounts``), and what becomes of a trained checkpoint, of the
tokenizer, and of the old state. A rule that knows better overrides single fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tracelens.config.model_config import ModelConfig
from tracelens.results import Effects, Finding, GemmRow
from tracelens.results.advice import Checkpoint
from tracelens.rules.engine.amounts import Change, memory, operations, parameters, size_name, sizes_of
from tracelens.rules.engine.diffs import config_diffs
from tracelens.rules.engine.facts import StepFacts

_NEEDS = {
    "config": "a setting; no code, no new training",
    "code": "a change of the code; no new training",
    "retrain": "another model: for a new training run",
    "pads": "a padded checkpoint, or a new training run",
}
#: The same of a trace that only runs a model.
_NEEDS_OF_INFERENCE = {
    "config": "a setting; no code",
    "code": "a change of the code; the weights stay",
    "retrain": "another model: one that is trained that way",
    "pads": "the weights padded with zeros",
}
#: What becomes of a checkpoint, from the least to the most trouble.
STATES: tuple[Checkpoint, ...] = ("loads", "reshards", "pads", "converts", "unknown", "scratch")
_TOKENIZER = "Unchanged: it does not depend on {name}."
_BACK = "{name} back to {now}"
_SET_BACK = f"Set {_BACK}."


@dataclass(frozen=True, slots=True)
class _Way:
    """A change in one direction. Texts take name, now, then, more and less (of then - now)."""

    state: Checkpoint
    how: str
    undo: str = _SET_BACK
    tokenizer: str = _TOKENIZER


@dataclass(frozen=True, slots=True)
class _Kind:
    """A parameter: what more of it does, and less of it where that differs."""

    up: _Way
    down: _Way | None = None


_NEW_MODEL = "Set {name} back to {now}; what was trained in between belongs to the new model alone."
_SHARDED = _Kind(
    _Way(
        "reshards",
        "The same weights in other slices: a distributed checkpoint (Megatron Core's dist_checkpointing,"
        " torch.distributed.checkpoint) reshards while it loads; one file per rank has to be converted.",
        "Start again with {name} = {now}; the checkpoint reshards back, and nothing is lost.",
    )
)
_PRECISION = _Kind(
    _Way(
        "loads",
        "Keeps loading: the same weights. GEMMs round differently, so results differ from the first step"
        " on: compare them over a short run.",
        "Set {name} back to {now}; the weights trained in between stay good.",
    )
)
_FP8 = _Way(
    "loads",
    "Keeps loading where master weights stay in 16 or 32 bits. Transformer Engine adds scaling factors under"
    " ._extra_state keys, which an older file does not hold; losses have to be compared over a run.",
    "Set {name} back to {now} and drop the ._extra_state keys; the weights stay good.",
)
_HEADS = _Kind(
    _Way(
        "scratch",
        "Starts from scratch. Where heads × head_dim stays, every matrix keeps its shape and an old file"
        " loads without an error, but its heads are cut at other places: it is another model.",
        _NEW_MODEL,
    )
)
_FUSED = _Kind(
    _Way(
        "converts",
        "Converts exactly: stack the separate projections along their outputs, weights, biases and moments"
        " alike; the numbers stay the same but for rounding.",
        "Revert the code and split the stacked weights at the same rows.",
    )
)
_TOP_K = _Way(
    "converts",
    "Loads as it is, but its router was trained for {now} experts a token: train on.",
    "Set {name} back to {now} and load the old checkpoint.",
)
_CAPACITY = _Way(
    "loads",
    "Keeps loading: the same weights. Other tokens are dropped or padded, so losses differ: compare them.",
)

#: Our name of a parameter -> what changing it does.
_TABLE: Mapping[str, _Kind] = {
    "vocab": _Kind(
        _Way(
            "pads",
            "Pad it once: append {more} rows to the embedding and to the output matrix (Hugging Face:"
            " model.resize_token_embeddings({then})), and zeros to their optimizer moments to resume a run.",
            "Set {name} back to {now} and cut the last {more} rows of both matrices; no token ever used them,"
            " so with their logits masked nothing is lost.",
            "Unchanged: it keeps giving ids below {now}. The {more} added ids are never given.",
        ),
        _Way(
            "pads",
            "Cut it once: the last {less} rows of the embedding and of the output matrix go.",
            "Set {name} back to {now}; the rows that were cut are in the old checkpoint alone.",
            "Has to give ids below {then} alone.",
        ),
    ),
    "hidden": _Kind(_Way("scratch", "Starts from scratch: every matrix changes its shape.", _NEW_MODEL)),
    "layers": _Kind(_Way("scratch", "Starts from scratch: the depth is the model.", _NEW_MODEL)),
    "heads": _HEADS,
    "head_dim": _HEADS,
    "ffn": _Kind(
        _Way(
            "pads",
            "An old one can be padded: with the new columns of the down projection zero its output stays as"
            " it is; the new rows of up (and gate) begin as in a new model, so that they learn.",
            "Set {name} back to {now} and load the old checkpoint: the added units cannot be cut once they"
            " are trained.",
        ),
        _Way(
            "scratch", "Starts from scratch: {less} trained units of every MLP would have to go.", _NEW_MODEL
        ),
    ),
    "kv_heads": _Kind(
        _Way(
            "converts",
            "Converts exactly: repeat each key and value head for the heads that shared it.",
            "Set {name} back to {now} and load the old checkpoint: the copies go their own ways once"
            " trained.",
        ),
        _Way(
            "converts",
            "Converts with a loss: take the mean of the key and value heads of each group and train on (GQA,"
            " arXiv 2305.13245: 5% of the original training).",
            "Set {name} back to {now} and load the old checkpoint.",
        ),
    ),
    "experts": _Kind(
        _Way("scratch", "Starts from scratch: the router and the set of experts are others.", _NEW_MODEL)
    ),
    "sequence": _Kind(
        _Way(
            "loads",
            "Keeps loading with rotary or relative positions; a learned table of positions with {now} rows"
            " needs {more} more, which then have to be trained.",
        ),
        _Way("loads", "Keeps loading; of a learned table of positions the first {then} rows are used."),
    ),
    "micro_batch": _Kind(
        _Way(
            "loads",
            "Keeps loading, optimizer and all. Change gradient accumulation the other way round and the"
            " global batch, and with it the training, stays the same.",
            "Set {name} back to {now}, and gradient accumulation with it.",
        )
    ),
    "tensor_parallel": _SHARDED,
}
#: Words in a parameter's or value's name -> what changing it does, where it is no size of the model.
_BY_WORD: Sequence[tuple[tuple[str, ...], _Kind]] = (
    (("fp8", "mxfp", "nvfp4", "float8"), _Kind(_FP8)),
    (("tf32", "precision", "dtype", "bf16", "fp16"), _PRECISION),
    (("parallel", "pipeline", "stage"), _SHARDED),
    (("fused", "unfused", "projection", "qkv"), _FUSED),
    (("accumulation",), _TABLE["micro_batch"]),
    (("top_k", "experts_per"), _Kind(_TOP_K)),
    (("capacity",), _Kind(_CAPACITY)),
)
#: Of a vocabulary that tensor-parallel ranks perhaps share: the trace shows one rank's columns.
_VOCAB_UNTOLD = _Way(
    "pads",
    "Pad it once, the embedding and the output matrix alike, with zeros in their optimizer moments to resume"
    " a run: {more} rows where each of the {ranks} ranks has the whole vocabulary, {ranks} times {more} where"
    " each has a part. The trace does not tell which.",
    "Set {name} back to what it was and cut the rows that were added; no token ever used them, so with their"
    " logits masked nothing is lost.",
    "Unchanged: it keeps giving the ids that it gives. The added ids are never given.",
)
_DIMENSION = _Way(
    "unknown",
    "Not known: the trace does not say which weight has this dimension. Where it is one, zero rows or columns"
    " appended to it leave the GEMM as it is.",
    "Take the padding out again.",
    "Unchanged: no text becomes other tokens by it.",
)
_CODE = _Way(
    "loads",
    "Keeps loading: not a change of the model, the weights stay as they are.",
    "Revert the change of the code.",
    "Unchanged: not a change of the model.",
)
#: A new model in a part that the known dimensions are not of: no size has a name.
_NEW_PART = _Way(
    "scratch",
    "Starts from scratch: it is another model, also where an old file loads without an error.",
    "Go back to the model as it was, and to its checkpoint.",
    "Unchanged: it does not depend on the model's sizes.",
)
_SETTING = replace(_CODE, how="Keeps loading: {name} is not a size of the model.", undo=_SET_BACK)
_OTHER_MODEL = replace(
    _CODE,
    state="unknown",
    how="Not known: whether trained weights fit another {name}; plan a new training run.",
    undo=_SET_BACK,
)


def completed(
    finding: Finding,
    facts: StepFacts,
    *,
    simulate: Mapping[str, int] | None = None,
    override: Mapping[str, Any] | None = None,
) -> Finding:
    """The finding with its effects, and its change in each framework's names; what it has stays.

    ``simulate`` is the change of the whole model where it can be simulated.
    """
    by_id = {row.id: row for row in facts.gemms}
    effects = finding.effects or effects_of(
        facts,
        finding.change,
        effort=finding.effort,
        simulate=simulate,
        parameter_delta=finding.parameter_delta,
        flops_delta=finding.flops_delta,
        rows=[by_id[name] for name in finding.gemms if name in by_id],
        override=override,
    )
    diffs = finding.diffs or config_diffs(sizes_of(facts, finding.change, simulate))
    return replace(finding, effects=effects, diffs=diffs)


def effects_of(
    facts: StepFacts,
    change: Change,
    *,
    effort: str,
    simulate: Mapping[str, int] | None = None,
    parameter_delta: int | None = None,
    flops_delta: float | None = None,
    rows: Sequence[GemmRow] = (),
    override: Mapping[str, Any] | None = None,
) -> Effects:
    """The effects of ``change`` on the step in ``facts``.

    ``simulate`` is the change of the whole model; ``parameter_delta`` and ``flops_delta`` (of ``rows``) are
    the rule's own counts. ``override`` replaces fields by name.
    """
    sizes = sizes_of(facts, change, simulate)
    weights = parameters(sizes, counted=parameter_delta)
    ways = [
        (_way(name, pair, effort, sizes.now), _words(name, pair, sizes.now)) for name, pair in change.items()
    ]
    if any(way.state == "unknown" for way, _ in ways) and parameter_delta is None:
        weights = replace(weights, delta=None, frac=None, how="not known for this change")
    work = operations(facts, change, sizes, weights, of_rows=flops_delta, rows=rows)
    ways = ways or [(_NEW_PART if effort == "retrain" else _CODE, {})]
    worst = max(ways, key=lambda one: STATES.index(one[0].state))
    takes = "pads" if effort == "retrain" and worst[0].state == "pads" else effort
    found = Effects(
        needs=(_NEEDS if facts.trains else _NEEDS_OF_INFERENCE).get(takes, takes),
        parameters=weights,
        flops=work,
        memory=memory(facts, change, sizes, weights),
        checkpoint=worst[0].state,
        checkpoint_how=_said([(way.how, words) for way, words in ways if way.state == worst[0].state]),
        tokenizer=_tokenizer(ways),
        undo=_undo(ways),
    )
    return replace(found, **dict(override)) if override else found


def _way(name: str, pair: Sequence[int | float | str], effort: str, now: ModelConfig) -> _Way:
    """What changing one parameter does."""
    untold = now.tp > 1 and now.vocab_split is None
    if untold and size_name(name) == "vocab" and not _falls(pair):
        return _VOCAB_UNTOLD
    kind = _TABLE.get(size_name(name) or "")
    if kind is None:
        text = f"{name} {pair[-1]}".lower()
        kind = next((kind for words, kind in _BY_WORD if any(word in text for word in words)), None)
    if kind is not None:
        return kind.down if kind.down is not None and _falls(pair) else kind.up
    if name.partition("_")[0] == "dimension":  # dimension, or dimension_12
        return _DIMENSION
    return _OTHER_MODEL if effort == "retrain" else _SETTING


def _falls(pair: Sequence[int | float | str]) -> bool:
    before, after = pair[0], pair[-1]
    return not isinstance(before, str) and not isinstance(after, str) and after < before


def _words(name: str, pair: Sequence[int | float | str], model: ModelConfig) -> dict[str, str]:
    """Of a vocabulary that ranks share, the whole: a checkpoint knows nothing of ranks."""
    before, after = pair[0], pair[-1]
    ranks = model.tp
    if size_name(name) == "vocab" and model.vocab_split and before == model.vocab:
        before, after = (one if isinstance(one, str) else one * ranks for one in (before, after))
    more = after - before if not isinstance(before, str) and not isinstance(after, str) else 0
    return {"name": name, "now": str(before), "then": str(after), "more": f"{more:,}", "less": f"{-more:,}",
            "ranks": str(ranks)}  # fmt: skip


def _said(texts: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    """Each sentence once, in order."""
    return " ".join(dict.fromkeys(text.format(**words) for text, words in texts))


def _undo(ways: Sequence[tuple[_Way, Mapping[str, str]]]) -> str:
    """Parameters that go back in the same way share a sentence."""
    alike: dict[str, list[Mapping[str, str]]] = {}
    for way, words in ways:
        alike.setdefault(way.undo, []).append(words)
    texts = []
    for undo, given in alike.items():
        back = " and ".join(_BACK.format(**words) for words in given) if _BACK in undo else ""
        texts.append((undo.replace(_BACK, "{back}"), {**given[0], "back": back}))
    return _said(texts)


def _tokenizer(ways: Sequence[tuple[_Way, Mapping[str, str]]]) -> str:
    """Only the vocabulary concerns it; elsewhere one sentence names every parameter."""
    own = [
        (way.tokenizer, words) for way, words in ways if way.tokenizer not in (_TOKENIZER, _CODE.tokenizer)
    ]
    if own:
        return _said(own)
    names = [words["name"] for way, words in ways if way.tokenizer == _TOKENIZER]
    return _TOKENIZER.format(name=" or ".join(names)) if names else _CODE.tokenizer
