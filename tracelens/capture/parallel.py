"""How the job is spread: ranks, process groups, device meshes, data-parallel wrappers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from tracelens.capture.modules import is_fully_sharded


def rank_and_world() -> tuple[int, int]:
    """This process' rank and the world size: the process group's, else the launcher's, else 0 of 1."""
    import os

    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    try:
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1


def parallel(roots: Iterable[nn.Module]) -> dict[str, Any]:
    """Rank, world size, groups with their ranks, meshes with named dimensions, and wrappers."""
    rank, world = rank_and_world()
    found: dict[str, Any] = {"rank": rank, "world_size": world, "groups": [], "meshes": [], "wrappers": []}
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        found["backend"] = distributed.get_backend()
        found["groups"] = _groups()
    roots = list(roots)
    meshes: dict[str, dict[str, Any]] = {}
    wrappers: set[str] = set()
    for root in roots:
        for module in root.modules():
            name = type(module).__name__
            if name in ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel"):
                wrappers.add(name)
            elif is_fully_sharded(module):
                wrappers.add("fully_shard")
        for parameter in root.parameters():
            mesh = getattr(parameter, "device_mesh", None)
            if mesh is not None:
                entry = {"dim_names": list(mesh.mesh_dim_names or []), "shape": list(mesh.shape)}
                meshes.setdefault(str(entry), entry)
    found["meshes"], found["wrappers"] = list(meshes.values()), sorted(wrappers)
    found["degrees"] = _degrees(found)
    return found


def _groups() -> list[dict[str, Any]]:
    from torch.distributed import distributed_c10d

    world = distributed_c10d._world
    return [
        {
            "name": world.pg_names.get(group, ""),
            "backend": str(world.pg_map[group][0]),
            "ranks": sorted(world.pg_group_ranks.get(group, {})),
        }
        for group in world.pg_map
    ]


def _degrees(found: dict[str, Any]) -> dict[str, int]:
    """Per named mesh dimension its size; without meshes a wrapped model is data parallel over the world."""
    degrees = {
        name: size
        for mesh in found["meshes"]
        for name, size in zip(mesh["dim_names"], mesh["shape"], strict=False)
    }
    if not degrees and found["wrappers"]:
        degrees["data"] = found["world_size"]
    return degrees
