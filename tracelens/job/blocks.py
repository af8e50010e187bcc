"""Nodes and process groups of a job, and how long their ranks take without waiting."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from tracelens.job.columns import rank_list
from tracelens.job.summary import RankSummary
from tracelens.results.job import JobBlock, JobRank


def find_nodes(ranks: Sequence[RankSummary]) -> list[list[int]]:
    """Positions of the ranks of each node; empty where that is not known.

    Launchers number ranks node by node (torchrun, srun), and in a node by GPU: a node begins where GPUs do
    not go on counting as ranks do. Nothing is known where all ranks see one GPU only.
    """
    if any(one.rank is None or one.device is None for one in ranks):
        return []
    places = [(one.rank or 0, one.device or 0) for one in ranks]
    if len({device for _, device in places}) < 2:
        return []
    nodes: list[list[int]] = []
    rank, device = places[0][0], -1
    for at, (next_rank, next_device) in enumerate(places):
        if at and next_device - device >= next_rank - rank:
            nodes[-1].append(at)
        else:
            nodes.append([at])
        rank, device = next_rank, next_device
    return nodes


def job_blocks(ranks: Sequence[RankSummary], rows: Sequence[JobRank]) -> list[JobBlock]:
    """Every node, and every group of a name that several groups have; longest first, nodes before groups."""
    own = [fmean(row.steps_ms) - fmean(row.waits_ms) for row in rows]
    at_rank = {one.rank: at for at, one in enumerate(ranks)}
    nodes = find_nodes(ranks)
    kinds = {"node": [(f"node {number}", members) for number, members in enumerate(nodes)]}
    for name, groups in _groups(ranks).items():
        members = [[at_rank[rank] for rank in group if rank in at_rank] for group in groups]
        kinds[name] = [(name, each) for each in members if len(each) > 1]
    found = []
    for kind, blocks in kinds.items():
        if len(blocks) < 2:
            continue
        times = [median(own[at] for at in members) for _, members in blocks]
        usual = median(times)
        some = [
            JobBlock(
                "node" if kind == "node" else "group", name, [rows[at].name for at in members], ms,
                usual, rows[max(members, key=lambda at: own[at])].name,
            )
            for (name, members), ms in zip(blocks, times, strict=True)
        ]  # fmt: skip
        found += sorted(some, key=lambda one: -one.own_ms)
    return found


def _groups(ranks: Sequence[RankSummary]) -> dict[str, list[tuple[int, ...]]]:
    """Ranks of the process groups by their name; the groups that one name has do not share a rank."""
    texts: dict[str, dict[str, None]] = {}
    for one in ranks:
        for kind in one.kinds:
            if kind.ranks is not None:
                texts.setdefault(kind.group, {})[kind.ranks] = None
    found = {name: [rank_list(text) for text in each] for name, each in sorted(texts.items())}
    return {name: groups for name, groups in found.items() if _apart(groups)}


def _apart(groups: Sequence[tuple[int, ...]]) -> bool:
    return len({rank for group in groups for rank in group}) == sum(len(group) for group in groups)
