"""Twenty jobs with a planted cause and twenty clean ones, what is to be found in each, and whether it is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.job.simulated import Job, Rank, data_parallel, planted
from tracelens.results.job import Job as Answer


def small(**options: Any) -> Job:
    return data_parallel(4, steps=3, **options)


def usual(**options: Any) -> Job:
    return data_parallel(8, steps=3, **options)


def pipeline(**options: Any) -> Job:
    return Job([Rank() for _ in range(4)], [[0, 1, 2, 3]], pipeline=True, steps=3, **options)


def experts(**options: Any) -> Job:
    return small(experts=True, **options)


@dataclass(frozen=True)
class Plant:
    """A job with one particular rank or group; ``cause`` is that of a rank."""

    name: str
    make: Callable[..., Job]
    limit: str  # straggler | slow_link | pipeline
    particular: dict[str, Any] = field(default_factory=dict)
    cause: str | None = None
    slow_group: float | None = None  # how many times as long the second of two groups sends
    strange_clock: bool = False  # of some rank: 5 ms off, and drifting by 0.2 ms a second

    def job(self, seed: int) -> tuple[Job, int]:
        """The job and the number of its particular rank (of the slow group's first)."""
        chance = random.Random(seed)
        if self.slow_group is not None:
            job = self.make(groups=2, link={1: self.slow_group}, seed=seed)
            at = job.groups[1][0]
        else:
            at = chance.randrange(len(self.make().ranks))
            job = planted(lambda: self.make(seed=seed), at, **self.particular)
        if self.strange_clock:
            other = job.ranks[chance.randrange(len(job.ranks))]
            other.shift_us, other.drift = 5000.0, 2e-4
        return job, at

    def named(self, answer: Answer, job: Job, at: int) -> bool:
        """Does the answer name what was planted, and nothing else?"""
        said = [(one.name, one.cause) for one in answer.stragglers]
        rank = f"rank {at}"
        return (
            answer.limit == self.limit
            and said == ([(rank, self.cause)] if self.limit == "straggler" else [])
            and answer.stages == ([rank] if self.limit == "pipeline" else [])
            and [one.ranks for one in answer.slow_links]
            == ([tuple(job.groups[1])] if self.limit == "slow_link" else [])
        )


PLANTS = [
    Plant("GPU slower by 6 %", usual, "straggler", {"gpu": 1.06}, "slow_gpu"),
    Plant("GPU slower by 12 %", small, "straggler", {"gpu": 1.12}, "slow_gpu"),
    Plant("GPU slower by 40 %", usual, "straggler", {"gpu": 1.4}, "slow_gpu"),
    Plant("GPU slower by 12 %, strange clock", small, "straggler", {"gpu": 1.12}, "slow_gpu", None, True),
    Plant("CPU 10 times slower", usual, "straggler", {"cpu": 10.0}, "cpu"),
    Plant("CPU 14 times slower", small, "straggler", {"cpu": 14.0}, "cpu"),
    Plant("CPU 25 times slower", small, "straggler", {"cpu": 25.0}, "cpu"),
    Plant("CPU 14 times slower, strange clock", small, "straggler", {"cpu": 14.0}, "cpu", None, True),
    Plant("batch 0.8 ms late", usual, "straggler", {"input_us": 800.0}, "input"),
    Plant("batch 2.5 ms late", small, "straggler", {"input_us": 2500.0}, "input"),
    Plant("batch 20 ms late", small, "straggler", {"input_us": 20000.0}, "input"),
    Plant("batch 2.5 ms late, strange clock", small, "straggler", {"input_us": 2500.0}, "input", None, True),
    Plant("link 1.5 times slower", usual, "slow_link", slow_group=1.5),
    Plant("link 2 times slower", small, "slow_link", slow_group=2.0),
    Plant("link 2 times slower, strange clock", usual, "slow_link", slow_group=2.0, strange_clock=True),
    Plant("pipeline stage of 8 layers, others 6", pipeline, "pipeline", {"layers": 8}),
    Plant("pipeline stage of 9 layers, others 6", pipeline, "pipeline", {"layers": 9}),
    Plant("experts with 1.2 times the tokens", experts, "straggler", {"tokens": 1.2}, "experts"),
    Plant("experts with 1.4 times the tokens", experts, "straggler", {"tokens": 1.4}, "experts"),
    Plant("experts with twice the tokens, strange clock", experts, "straggler", {"tokens": 2.0}, "experts",
          None, True),
]  # fmt: skip


def clean_jobs() -> Iterator[tuple[str, Job]]:
    """Twenty jobs of which no rank is particular, but for one rank's clock."""
    kinds: list[tuple[str, Callable[..., Job]]] = [
        ("data parallel", small), ("experts", experts), ("pipeline", pipeline),
        ("two groups", lambda **options: usual(groups=2, **options)),
    ]  # fmt: skip
    for seed in range(5):
        for name, make in kinds:
            made = make(seed=100 + seed)
            at = seed % len(made.ranks)
            made.ranks[at].shift_us, made.ranks[at].drift = -5000.0, 1e-4
            yield f"{name}, {seed}", made


def accuses_nobody(answer: Answer) -> bool:
    return (answer.stragglers, answer.slow_links, answer.stages) == ([], [], [])
