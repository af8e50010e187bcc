"""The lists of models beside those of six libraries: what builds each, and the truth of it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_NAMES = (
    "more", "originals", "texts", "senses", "clones", "repos", "trainers", "recipes", "further_recipes",
    "workloads", "further_workloads", "posts", "further_posts", "studies", "further_studies", "practices",
    "further_practices", "field_practices", "owns", "makers",
)  # fmt: skip


def _module(name: str) -> Any:
    return import_module(f"benchmarks.libraries.{name}")


#: A list that goes on with another one (``further_posts``) has its truth where that has.
LISTS = tuple((_module(name), _module(f"{name.split('_')[-1]}_truth")) for name in _NAMES)
