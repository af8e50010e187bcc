"""The fullest expert-parallel rank: how far above the mean messages show it, and a step with another load."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.config.model_config import ModelConfig
from tracelens.results import CommunicationRow, Rest, Span
from tracelens.step.words import ranks as words
from tracelens.step.work import Work

_PURPOSE = "expert all-to-all"


def sent_to_experts(rows: Sequence[CommunicationRow]) -> list[CommunicationRow]:
    """The all-to-alls that take tokens to their experts and back."""
    return [row for row in rows if row.purpose == _PURPOSE]


def uneven_frac(rows: Sequence[CommunicationRow]) -> float | None:
    """What the fullest rank gets above the mean, over the calls by what they move; None where none tells."""
    told = [
        (row.uneven_frac, row.bytes_per_call * max(row.calls_per_step, 1e-9))
        for row in sent_to_experts(rows)
        if row.uneven_frac is not None and row.bytes_per_call
    ]
    return sum(weight * share for share, weight in told) / sum(weight for _, weight in told) if told else None


def rest_of_load(
    rows: Sequence[CommunicationRow], work: Work, now: ModelConfig, then: ModelConfig
) -> list[Rest]:
    """The experts' GEMMs and the wait for the fullest rank, where its rows (``imbalance``) change.

    All ranks take as long as the fullest one, whose GEMMs are taken to take time with its rows. At least it
    is this rank; at most this one waits for it in all its exposed all-to-alls; in the middle this rank has
    the mean load.
    """
    if now.imbalance is None or then.imbalance is None or now.imbalance == then.imbalance:
        return []
    experts = sum(
        one.row.time_ms_per_step * one.weight for one in work.products if one.row.component == "moe.experts"
    ) + sum(row.time_ms_per_step for row, _ in work.fixed if row.component == "moe.experts")
    waits = sum(row.exposed_ms_per_step for row in sent_to_experts(rows))
    before, after = 1 + now.imbalance / 100, 1 + then.imbalance / 100
    whole, least = experts + waits, experts
    mean = min(whole, before * experts)
    saved = [(1 - after / before) * fullest for fullest in (least, mean, whole)]
    low, mid, high = sorted(saved)
    then_ms = Span(whole - high, whole - mid, whole - low, "model")
    return [Rest("moe.experts", "other", words.FULLEST_ROWS, whole, then_ms)]
