"""The lists of models beside those of six libraries: what builds each, and the truth of it."""

from __future__ import annotations

from typing import Any

from benchmarks.libraries import (
    clones,
    clones_truth,
    field_practices,
    further_posts,
    further_practices,
    further_recipes,
    further_studies,
    further_workloads,
    more,
    more_truth,
    originals,
    originals_truth,
    posts,
    posts_truth,
    practices,
    practices_truth,
    recipes,
    recipes_truth,
    repos,
    repos_truth,
    senses,
    senses_truth,
    studies,
    studies_truth,
    texts,
    texts_truth,
    trainers,
    trainers_truth,
    workloads,
    workloads_truth,
)

LISTS: tuple[tuple[Any, Any], ...] = (
    (more, more_truth),
    (originals, originals_truth),
    (texts, texts_truth),
    (senses, senses_truth),
    (clones, clones_truth),
    (repos, repos_truth),
    (trainers, trainers_truth),
    (recipes, recipes_truth),
    (further_recipes, recipes_truth),
    (workloads, workloads_truth),
    (further_workloads, workloads_truth),
    (posts, posts_truth),
    (further_posts, posts_truth),
    (studies, studies_truth),
    (further_studies, studies_truth),
    (practices, practices_truth),
    (further_practices, practices_truth),
    (field_practices, practices_truth),
)
