"""Fits ``tracelens/step/paces.py`` to published whole steps and judges it: python -m benchmarks.steps

Reads ``shared/silicon/mpt_steps.csv`` (mosaicml/llm-foundry, Apache-2.0) beside the checkout. A model goes
as a whole to the fit or to judging, by the hash of its name; then each model in turn is left out. Prints
the constants and the tables of docs/shape-search.md.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

import numpy as np
import numpy.typing as npt

from benchmarks.silicon import FOLDER
from tracelens.config import Configuration, config_from_flags
from tracelens.config.configuration import Layout
from tracelens.config.training import Training
from tracelens.hardware import find_gpu
from tracelens.results.suggestions import WholeStep
from tracelens.step.paces import Pace, pace_of
from tracelens.step.planned_step import Planner
from tracelens.step.whole_step import whole_step

GPUS = {"a100_40gb": "a100-sxm-40gb", "a100_80gb": "a100-sxm-80gb", "h100_80gb": "h100-sxm"}
KINDS = {"A100": ("a100_40gb", "a100_80gb"), "H100": ("h100_80gb",)}
_SIZES = ("hidden", "heads", "layers", "ffn", "vocab", "sequence", "micro_batch")
#: What is fitted; ``products`` stays one: a predicted GEMM takes in a step what is predicted for it.
_FITTED = ("attention", "moved", "exchange")
_BASE = Pace(1.0, 0.0, 0.0, 0.0, 0.0)


def left_out(model: str) -> bool:
    """Is this model only to judge? One in three is.

    >>> [left_out(name) for name in ("mpt-125m", "mpt-13b", "mpt-70b")]
    [False, False, True]
    """
    return int(hashlib.sha256(model.encode()).hexdigest(), 16) % 3 == 0


@dataclass(frozen=True)
class Row:
    """One published throughput."""

    model: str
    gpu: str
    config: Configuration
    training: Training
    tokens_per_s: float
    mfu: float
    dtype: str = "bf16"

    @property
    def step_ms(self) -> float:
        model = self.config.model
        tokens = self.training.batches * (model.token_count or 0) / model.batch_ranks
        return 1e3 * tokens / self.tokens_per_s

    @property
    def pace(self) -> Pace:
        """The project's."""
        gpu, stack = find_gpu(None, override=GPUS.get(self.gpu, self.gpu)), self.training.stack or "plain"
        return pace_of(gpu, unlike=self.dtype == "fp8", stack=stack)

    def step(self, pace: Pace | None = None) -> WholeStep:
        planner = _planner(self.gpu, self.config.layout, self.dtype)
        return whole_step(planner, self.config.model, self.training, pace=pace)

    def terms(self, names: Sequence[str], base: Pace) -> npt.NDArray[np.float64]:
        """Shares of the measured step: of all else in ``base``, then by each constant of one."""
        zero = replace(base, **dict.fromkeys(names, 0.0))  # type: ignore[arg-type]
        rest = _without_waits(self.step(zero))
        each = [_without_waits(self.step(replace(zero, **{name: 1.0}))) - rest for name in names]  # type: ignore[arg-type]
        return np.array([rest, *each]) / self.step_ms


def _without_waits(step: WholeStep) -> float:
    """Its ms without those for the CPU, which are not linear in what the kernels take."""
    return sum(part.time_ms.mid or 0.0 for part in step.parts if part.name != "waiting for the CPU")


@cache
def _planner(gpu: str, layout: Layout, dtype: str) -> Planner:
    return Planner(layout, gpu=find_gpu(None, override=GPUS.get(gpu, gpu)), dtype=dtype)


def rows(dtype: str = "bf16") -> list[Row]:
    """All rows in bf16, or in fp8, to which nothing is fitted."""
    found = []
    with (FOLDER / "mpt_steps.csv").open(encoding="utf-8") as file:
        for one in csv.DictReader(file):
            if ("fp8" in one["precision"]) != (dtype == "fp8"):
                continue
            training = Training(
                gpus=int(one["gpus"]),
                checkpoint="full" if one["full_recompute"] == "True" else "none",
                micro_batches=int(one["grad_accum"]),
            )
            config = config_from_flags({name: int(one[name]) for name in _SIZES})
            speed, mfu = float(one["tokens_per_s_per_gpu"]), float(one["mfu"]) / 100
            found.append(Row(one["model"], one["gpu"], config, training, speed, mfu, dtype))
    return found


def fit(some: Sequence[Row], names: Sequence[str] = _FITTED, base: Pace = _BASE) -> Pace:
    """Least absolute relative errors, by reweighting; no constant is below its physical least."""
    table = np.array([row.terms(names, base) for row in some])
    fixed, terms = table[:, 0], table[:, 1:]
    weights = np.ones(len(some))
    best = np.ones(len(names))
    for _ in range(40):
        scaled, aim = terms * weights[:, None], (1 - fixed) * weights
        for _ in range(200):  # coordinate descent with a floor: each constant alone has a closed solution
            for at in range(len(best)):
                other = aim - scaled @ best + scaled[:, at] * best[at]
                best[at] = max(0.0, scaled[:, at] @ other / (scaled[:, at] @ scaled[:, at]))
        weights = 1 / np.sqrt(np.maximum(np.abs(fixed + terms @ best - 1), 0.02))
    return replace(base, **{name: float(value) for name, value in zip(names, best, strict=True)})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Judged:
    """How predictions did: errors of time as logs, range and order of MFU."""

    errors: list[float]
    inside: list[bool]
    ordered: list[bool]

    def __add__(self, other: Judged) -> Judged:
        return Judged(self.errors + other.errors, self.inside + other.inside, self.ordered + other.ordered)

    def line(self) -> str:
        away = sorted(abs(error) for error in self.errors)
        ninth = away[math.ceil(0.9 * len(away)) - 1]
        inside, ordered = sum(self.inside) / len(away), sum(self.ordered) / max(1, len(self.ordered))
        return (
            f"{len(away)} | {math.expm1(statistics.median(away)):.1%} | {math.expm1(ninth):.1%} |"
            f" {inside:.0%} | {ordered:.0%} of {len(self.ordered)}"
        )


def judge(some: Sequence[Row], pace: Pace | None = None) -> Judged:
    """``pace`` None: the constants of the project."""
    steps = [row.step(replace(pace, error=row.pace.error) if pace else None) for row in some]
    errors = [
        math.log((step.step_ms.mid or 1.0) / row.step_ms) for row, step in zip(some, steps, strict=True)
    ]
    inside = [
        (step.step_ms.low or 0.0) <= row.step_ms <= (step.step_ms.high or 0.0)
        for row, step in zip(some, steps, strict=True)
    ]
    return Judged(errors, inside, _ordered(some, steps))


def _ordered(some: Sequence[Row], steps: Sequence[WholeStep]) -> list[bool]:
    """Of pairs on one GPU whose published MFU differs by 5 %: is the higher predicted higher?"""
    found = []
    for (one, left), (other, right) in combinations(zip(some, steps, strict=True), 2):
        if one.gpu == other.gpu and abs(math.log(one.mfu / other.mfu)) >= math.log(1.05):
            found.append(((left.mfu_frac.mid or 0.0) > (right.mfu_frac.mid or 0.0)) == (one.mfu > other.mfu))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-v", "--verbose", action="store_true", help="every row, as the project has it")
    given = parser.parse_args(arguments)
    everything = rows()
    print("judged | n | median | 90 % | in range | order of MFU")
    for kind, gpus in KINDS.items():
        some = [row for row in everything if row.gpu in gpus]
        pace = fit([row for row in some if not left_out(row.model)])
        print(f"{kind}: fitted {', '.join(f'{name} {getattr(pace, name):.2f}' for name in _FITTED)}")
        judging = [row for row in some if left_out(row.model)]
        names = ", ".join(sorted({row.model for row in judging}))
        print(f"{kind} {names}, that fit | {judge(judging, pace).line()}")
        print(f"{kind} {names}, project | {judge(judging).line()}")
        print(f"{kind} all, project | {judge(some).line()}")
        left = Judged([], [], [])
        for model in sorted({row.model for row in some}):
            pace = fit([row for row in some if row.model != model])
            found = judge([row for row in some if row.model == model], pace)
            values = ", ".join(f"{name} {getattr(pace, name):.2f}" for name in _FITTED)
            print(f"{kind} without {model} ({values}) | {found.line()}")
            left += found
        print(f"{kind} each left out in turn | {left.line()}")
        if low := [row for row in rows("fp8") if row.gpu in gpus]:
            print(f"{kind} in fp8, nothing fitted | {judge(low).line()}")
        for row in some if given.verbose else ():
            step = row.step()
            shares = " ".join(f"{part.name.split()[0][:6]} {part.frac:.2f}" for part in step.parts)
            error, sizes = (step.step_ms.mid or 0) / row.step_ms - 1, row.config.model
            print(
                f"  {row.gpu} {row.model} s={sizes.sequence} b={sizes.micro_batch} gpus={row.training.gpus}"
                f" {row.training.checkpoint} {error:+.1%} mfu {step.mfu_frac.mid or 0:.1%} ({row.mfu:.1%})"
                f" memory {step.memory_gb:.0f} | {shares}"
            )


if __name__ == "__main__":
    main()
