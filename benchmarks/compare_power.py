"""Power and error rate of the answer of ``tracelens compare`` about the step's time.

Samples of step times with a known change, judged as a comparison judges them: the share of each answer over
200 seeds. Noise of a step is normal; ``autocorrelated`` steps follow AR(1) with 0.5, ``runs differ`` gives
each run an own speed with a standard deviation of 1 %: what a test over the steps of one run each cannot see.

    python -m benchmarks.compare_power
"""

from __future__ import annotations

import random
from collections import Counter
from statistics import median
from typing import get_args

from tracelens.comparison.step_change import step_change
from tracelens.results import StepTime
from tracelens.results.comparison import StepState

SEEDS = 200
MANY = 2000  # for the rate of false answers
STEP_MS = 100.0
CHANGES = (0.0, 0.01, 0.02, 0.05, 0.10, 0.90)
#: Name, steps on each side, standard deviation of a step, correlation of neighbours, deviation of runs.
KINDS = (
    ("4 steps, noise 0.5 %", 4, 0.005, 0.0, 0.0),
    ("6 steps, noise 1 %", 6, 0.01, 0.0, 0.0),
    ("10 steps, noise 3 %", 10, 0.03, 0.0, 0.0),
    ("20 steps, noise 1 %", 20, 0.01, 0.0, 0.0),
    ("10 steps, noise 1 %, autocorrelated", 10, 0.01, 0.5, 0.0),
    ("10 steps, noise 1 %, runs differ", 10, 0.01, 0.0, 0.01),
)
ANSWERS = [state for state in get_args(StepState) if state not in ("identical", "too_few_steps")]


def run(
    rng: random.Random, *, count: int, noise: float, neighbour: float, runs: float, change: float = 0.0
) -> list[float]:
    """The step times of one run, in ms."""
    speed, last, times = rng.gauss(0.0, runs), rng.gauss(0.0, noise), []
    for _ in range(count):
        last = neighbour * last + (1 - neighbour**2) ** 0.5 * rng.gauss(0.0, noise)
        times.append(STEP_MS * (1 + change) * (1 + speed + last))
    return times


def answers(
    change: float, seeds: int, *, count: int, noise: float, neighbour: float, runs: float
) -> Counter[StepState]:
    """How often each answer is given."""
    found: Counter[StepState] = Counter()
    for seed in range(seeds):
        rng = random.Random(f"{seed} {change}")
        sides = [
            run(rng, count=count, noise=noise, neighbour=neighbour, runs=runs, change=by)
            for by in (0.0, change)
        ]
        spread = [StepTime(median(side), min(side), max(side), len(side)) for side in sides]
        found[step_change(sides[0], sides[1], medians=(spread[0], spread[1]), identical=False).state] += 1
    return found


def main() -> None:
    print(f"{'':37}{'change':>7}" + "".join(f"{one:>14}" for one in ANSWERS))
    for name, count, noise, neighbour, runs in KINDS:
        for change in CHANGES:
            found = answers(change, SEEDS, count=count, noise=noise, neighbour=neighbour, runs=runs)
            shares = "".join(f"{found[one] / SEEDS:>14.1%}" for one in ANSWERS)
            print(f"{name:37}{change:>7.0%}{shares}")
    print(f"\nNothing changed, {MANY} seeds: faster or slower")
    for name, count, noise, neighbour, runs in KINDS:
        found = answers(0.0, MANY, count=count, noise=noise, neighbour=neighbour, runs=runs)
        print(f"{name:37}{(found['faster'] + found['slower']) / MANY:>7.1%}")


if __name__ == "__main__":
    main()
