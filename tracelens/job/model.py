"""The model of a whole job: over how many ranks it is spread, and its own dimensions, not one rank's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracelens.accounting.degrees import kind_of_group
from tracelens.job import words
from tracelens.job.columns import rank_list
from tracelens.job.summary import RankSummary
from tracelens.results import Known, ModelDims

#: Degrees that the name of a process group states, in words.
_NAMED = {
    "tensor_parallel": "tensor parallel",
    "pipeline_parallel": "pipeline parallel",
    "expert_parallel": "expert parallel",
    "context_parallel": "context parallel",
}


def job_degrees(ranks: Sequence[RankSummary]) -> dict[str, int]:
    """Ways of sharing the work and the number of ranks that do, where all ranks that show one agree.

    By what messages serve, by the names of process groups, and by what each rank's model says of itself.
    """
    every: dict[str, set[int]] = {}
    for rank in ranks:
        for name, degree in rank.degrees.items():
            every.setdefault(name, set()).add(degree)
        for group in rank.kinds:
            kind = kind_of_group(group.group)
            if kind is not None and group.group_size is not None:
                every.setdefault(_NAMED[kind], set()).add(group.group_size)
        for field in ("pipeline_parallel", "expert_parallel"):
            known: Known = getattr(rank.model, field)
            if known.value is not None and known.value > 1:
                every.setdefault(_NAMED[field], set()).add(known.value)
    return {name: min(degrees) for name, degrees in sorted(every.items()) if len(degrees) == 1}


def job_model(ranks: Sequence[RankSummary]) -> ModelDims | None:
    """The whole model's dimensions: what the ranks agree on, per-rank parts times the degree.

    Layers are summed over the stages of a pipeline.
    """
    dims = [rank.model for rank in ranks if rank.model.found != "none"]
    if not dims:
        return None
    whole = {name: _agreed([getattr(one, name) for one in dims]) for name in _DIMENSIONS}
    for name, one in whole.items():
        if one.whole is not None:
            whole[name] = Known(one.whole, words.per_rank(one.value, whole["tensor_parallel"].value))
    stages = _pipelines(ranks)
    if stages:
        whole["layers"] = _layers(ranks, stages)
    return replace(dims[0], **whole)  # type: ignore[arg-type]


def _pipelines(ranks: Sequence[RankSummary]) -> list[tuple[int, ...]]:
    """The ranks of each pipeline, by groups that are named after it."""
    found = {
        kind.ranks: None
        for rank in ranks
        for kind in rank.kinds
        if kind.ranks is not None and kind_of_group(kind.group) == "pipeline_parallel"
    }
    groups = [rank_list(text) for text in found]
    return [group for group in groups if len(group) > 1]


def _layers(ranks: Sequence[RankSummary], pipelines: Sequence[tuple[int, ...]]) -> Known:
    """Layers of all stages of a pipeline of which every rank is here; unknown where pipelines differ."""
    at_rank = {rank.rank: rank.model.layers.value for rank in ranks}
    sums: dict[int, str] = {}
    for group in pipelines:
        each = [at_rank.get(rank) for rank in group]
        known = [value for value in each if value is not None]
        if len(known) == len(group):
            sums.setdefault(sum(known), words.on_stages(known))
    if len(sums) == 1:
        ((value, source),) = sums.items()
        return Known(value, source)
    return Known(None, words.PIPELINES_DIFFER if sums else words.STAGE_LAYERS_UNKNOWN)


_DIMENSIONS = (
    "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "layers", "sequence", "micro_batch",
    "tensor_parallel", "experts", "pipeline_parallel", "expert_parallel", "classes",
    "top_k",
)  # fmt: skip


def _agreed(every: list[Known]) -> Known:
    known = [one for one in every if one.value is not None]
    values = {one.value for one in known}
    if len(values) > 1:
        return Known(None, words.ranks_differ(sorted(values, key=str)))
    return known[0] if known else every[0]
