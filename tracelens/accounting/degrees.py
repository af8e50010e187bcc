"""Over how many ranks the model is spread, and what its configuration says, as far as a trace holds it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tracelens.accounting.words import model as words
from tracelens.gemm import bytes_per_element
from tracelens.results import CommunicationRow, Known, ModelDims
from tracelens.step.exchange import vocab_is_split
from tracelens.trace.metadata import process_groups, rank_and_world

#: Words in the name of a process group or of a mesh dimension: DeviceMesh's ``mesh_tp``, Megatron's
#: TENSOR_MODEL_PARALLEL_GROUP (megatron/core/parallel_state.py). With a word of another kind beside it a
#: group spans several (TENSOR_AND_DATA_PARALLEL_GROUP), and its size is none of the degrees.
_KINDS = {
    "tensor_parallel": frozenset({"tp", "tensor"}),
    "pipeline_parallel": frozenset({"pp", "pipeline", "pipe"}),
    "expert_parallel": frozenset({"ep", "expert"}),
    "context_parallel": frozenset({"cp", "context"}),
}
_OTHERS = frozenset({"dp", "data", "sp", "sequence", "fsdp", "shard", "replicate", "embedding"})
_SPLIT = ("heads", "kv_heads", "ffn", "vocab")
_WORD = re.compile(r"[a-z]+")
_PURPOSES = {"pipeline": "pipeline_parallel", "expert all-to-all": "expert_parallel"}
_FROM_CONFIG = re.compile(r"^(config|cfg|model_args|params|args|hparams)\.")


def with_degrees(
    dims: ModelDims,
    metadata: Mapping[str, Any],
    rows: Sequence[CommunicationRow],
    *,
    complete: bool = True,
    tokens: int | None = None,
) -> ModelDims:
    """``dims`` with the degrees of pipeline and experts, and the tensor one where shapes left it open.

    What tensor-parallel ranks share is marked as one rank's part, with the whole where the degree is known.
    ``complete``: what was not seen among the kernels is not there; else no communication is not one rank.
    ``tokens`` of a micro-batch tell whether messages are of a split vocabulary.
    """
    sharded = any(row.purpose == "tensor parallel" for row in rows)
    if not dims.transformer:
        nothing = Known(None, dims.layers.source)
        spread = dims.expert_parallel if dims.expert_parallel.value is not None else nothing
        return replace(dims, pipeline_parallel=nothing, expert_parallel=spread)
    named = _named(metadata, rows)
    tensor, found = dims.tensor_parallel, named.get("tensor_parallel")
    exchanged = _exchanged(rows)
    if found is not None and found.value and found.value != tensor.value:
        # Heads of a size of their own: hidden / (heads x head dimension) is no number of ranks there.
        tensor = found
    elif tensor.value is None and exchanged is not None:
        tensor = exchanged
    pipeline = named.get("pipeline_parallel") or _without_messages(metadata, rows, complete)
    split = (tensor.value or 1) > 1 or (tensor.value is None and sharded)
    if split:
        dims = _of_rank(dims, tensor.value, _vocab_split(dims, tensor, metadata, rows, tokens))
    else:
        vocab = _gathered(dims, rows)
        shared = vocab.per_rank and tensor.value is None  # ranks that share a head can share attention
        dims = replace(_of_rank(dims, None, None) if shared else dims, vocab=vocab)
    return replace(
        dims,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        expert_parallel=named.get("expert_parallel") or _experts_spread(dims, metadata, rows, complete),
    )


def _vocab_split(
    dims: ModelDims,
    tensor: Known,
    metadata: Mapping[str, Any],
    rows: Sequence[CommunicationRow],
    tokens: int | None,
) -> bool | None:
    if tokens is None:
        return None
    spread = replace(dims, tensor_parallel=tensor)
    return vocab_is_split(rows, spread, tokens=tokens, declared=declared(metadata).get("vocab"))


def _gathered(dims: ModelDims, rows: Sequence[CommunicationRow]) -> Known:
    """The vocabulary; of one rank where a gather in the forward is as large as the logits of all ranks.

    As large as the table of all ranks it can be that table.
    """
    known, hidden = dims.vocab, dims.hidden.value
    for row in rows:
        each = bytes_per_element(row.dtype)
        if not known.value or not hidden or not each or not row.bytes_per_call or not row.group_size:
            continue
        elements, whole = round(row.bytes_per_call / each), known.value * row.group_size
        gathers = row.collective == "all_gather" and row.phase == "forward" and row.group_size > 1
        if gathers and elements % whole == 0 and elements % (known.value * hidden):
            return replace(known, per_rank=True, whole=whole)
    return known


def _of_rank(dims: ModelDims, ranks: int | None, vocab_split: bool | None) -> ModelDims:
    """Mark what tensor-parallel ranks share as one rank's part, with the whole where that is known.

    One key/value head on a rank of several heads is its own or a copy of another rank's. A vocabulary that
    nothing says is split may be each rank's: "per rank" is true of both.
    """
    open_ = {"kv_heads": dims.kv_heads.value == 1 != dims.heads.value, "vocab": vocab_split is not True}
    for name in _SPLIT:
        known: Known = getattr(dims, name)
        whole = known.value * ranks if known.value and ranks and not open_.get(name) else None
        shared = replace(known, per_rank=name != "vocab" or vocab_split is not False, whole=whole)
        dims = replace(dims, **{name: shared})  # type: ignore[arg-type]
    return dims


def declared(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Sizes of the whole model as its own configuration has them, which the capture wrote into the trace."""
    for sizes, _ in modules_seen(metadata):
        found = {name: value for name, (value, source) in sizes.items() if _FROM_CONFIG.match(source)}
        if found:
            return found
    return {}


def modules_seen(metadata: Mapping[str, Any]) -> list[tuple[dict[str, tuple[int, str]], str]]:
    """Per model that the capture saw: its sizes, each with what shows it, and its class; trained first."""
    inner = metadata.get("tracelens")
    models = inner.get("models") if isinstance(inner, Mapping) else None
    listed = [one for one in models if isinstance(one, Mapping)] if isinstance(models, list) else []
    found = []
    for one in sorted(listed, key=lambda one: one.get("trained") is not True):
        sizes = one.get("dimensions")
        known = {
            str(name): (entry["value"], str(entry.get("source", "")))
            for name, entry in (sizes.items() if isinstance(sizes, Mapping) else ())
            if isinstance(entry, Mapping) and type(entry.get("value")) is int
        }
        found.append((known, str(one.get("class", ""))))
    return found


def _named(metadata: Mapping[str, Any], rows: Sequence[CommunicationRow]) -> dict[str, Known]:
    """Degrees that a mesh, a process group or the purpose of a message states; unknown where two differ."""
    found: dict[str, dict[int, str]] = {}
    for kind, size, source in (*_meshes(metadata), *_groups(metadata, rows), *_purposes(rows)):
        found.setdefault(kind, {}).setdefault(size, source)
    named: dict[str, Known] = {}
    for kind, sizes in found.items():
        if len(sizes) == 1:
            ((size, source),) = sizes.items()
            named[kind] = Known(size, source)
        else:
            named[kind] = Known(None, words.groups_differ(sorted(sizes)))
    return named


def kind_of_group(text: str) -> str | None:
    """The degree that a process group of that name is the ranks of; None where it names none, or several.

    >>> kind_of_group("mesh_pp"), kind_of_group("CONTEXT_PARALLEL_GROUP"), kind_of_group("dp_cp")
    ('pipeline_parallel', 'context_parallel', None)
    """
    parts = set(_WORD.findall(text.lower()))
    kinds = [kind for kind, own in _KINDS.items() if own & parts]
    return kinds[0] if len(kinds) == 1 and not parts & _OTHERS else None


def _meshes(metadata: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    inner = metadata.get("tracelens")
    parallel = inner.get("parallel") if isinstance(inner, Mapping) else None
    degrees = parallel.get("degrees") if isinstance(parallel, Mapping) else None
    for name, size in degrees.items() if isinstance(degrees, Mapping) else ():
        kind = kind_of_group(str(name))
        if kind is not None and type(size) is int and size > 0:
            yield kind, size, words.MESH_DIMENSION


def _groups(metadata: Mapping[str, Any], rows: Sequence[CommunicationRow]) -> Iterator[tuple[str, int, str]]:
    listed = [(str(one["description"] or ""), one["size"]) for one in process_groups(metadata).values()]
    listed += [(row.group or "", row.group_size) for row in rows]
    for text, size in listed:
        kind = kind_of_group(text)
        if kind is not None and size:
            yield kind, size, words.PROCESS_GROUP


def _purposes(rows: Sequence[CommunicationRow]) -> Iterator[tuple[str, int, str]]:
    """Messages whose purpose is known, where all communication is in one group: it has no other degree."""
    if len({row.group for row in rows if row.group is not None}) != 1:
        return
    for row in rows:
        kind = _PURPOSES.get(row.purpose)
        if kind is not None and row.group_size and kind_of_group(row.group or "") is None:
            yield kind, row.group_size, words.only_group(row.purpose)


def _exchanged(rows: Sequence[CommunicationRow]) -> Known | None:
    """The size of the group that exchanges activations, where that is one size."""
    sizes = {row.group_size for row in rows if row.purpose == "tensor parallel"}
    size = next(iter(sizes)) if len(sizes) == 1 else None
    return Known(size, words.exchanges(size)) if size else None


def _alone(metadata: Mapping[str, Any], rows: Sequence[CommunicationRow], complete: bool) -> Known | None:
    if rank_and_world(metadata)[1] == 1:
        return Known(1, words.ONE_RANK)
    if rows:
        return None
    return Known(1, words.NO_COMMUNICATION) if complete else Known(None, words.COMMUNICATION_UNSEEN)


def _without_messages(metadata: Mapping[str, Any], rows: Sequence[CommunicationRow], complete: bool) -> Known:
    """A stage of a pipeline sends or receives in every step."""
    alone = _alone(metadata, rows, complete)
    if alone is not None:
        return alone
    kinds = {row.collective for row in rows}
    if not kinds & {"send/recv", "other"}:
        if not complete:
            return Known(None, words.COMMUNICATION_UNSEEN)
        return Known(1, words.NOTHING_SENT)
    return Known(None, words.NO_PIPELINE_GROUP)


def _experts_spread(
    dims: ModelDims, metadata: Mapping[str, Any], rows: Sequence[CommunicationRow], complete: bool
) -> Known:
    if dims.expert_parallel.value is not None:
        return dims.expert_parallel
    if dims.experts.value is None:
        return Known(None, dims.experts.source)
    alone = _alone(metadata, rows, complete)
    if alone is not None:
        return alone
    return Known(None, words.NO_EXPERT_GROUP)


def mixture_dims(
    experts: Known, groups: Iterable[int], choices: Collection[tuple[int, int]]
) -> dict[str, Known]:
    """``experts`` as the router's GEMM shows them, with ``top_k`` and ``expert_parallel``.

    ``groups``: experts in each grouped GEMM of this rank; ``choices`` as ``Operands`` has them.

    >>> found = mixture_dims(Known(8, "router"), [4, 4], {(8, 2), (128, 50)})
    >>> [known.value for known in found.values()]
    [8, 2, 2]
    """
    count = experts.value
    if count is None:
        nothing = experts if experts.source == words.NO_SHAPES else Known(None, words.NO_ROUTER)
        return {"experts": nothing, "top_k": nothing, "expert_parallel": nothing}
    chosen = sorted({k for of, k in choices if of == count and 0 < k <= count})
    top_k = Known(None, words.nothing_chooses(count))
    if chosen:
        top_k = Known(chosen[0] if len(chosen) == 1 else None, words.chosen(count, chosen))
    spread = Known(None, words.NO_GROUPED_GEMM)
    local = Counter(groups).most_common(1)
    if local and count % local[0][0] == 0:
        spread = Known(count // local[0][0], words.grouped(local[0][0], count))
    return {"experts": experts, "top_k": top_k, "expert_parallel": spread}
