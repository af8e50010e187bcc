"""What 1000 steps of the whole job cost and what the findings save of it: GPU-hours, money with a price."""

from __future__ import annotations

import re
from dataclasses import replace

from tracelens.accounting.words import figures as words
from tracelens.errors import UsageError
from tracelens.results import Estimate, JobCost, Price, Report, Saving, SavingOf, TraceInfo

STEPS = 1000
_MS_PER_HOUR = 3.6e6
_PRICE = re.compile(r"(?P<before>[^\d.,\s+-]{1,8})?\s*(?P<number>\d{1,9}(?:\.\d{1,9})?|\.\d{1,9})"
                    r"\s*(?P<after>[^\d.,+-]{1,12})?")  # fmt: skip


def parse_price(text: str) -> Price:
    """What a GPU costs for an hour.

    >>> parse_price("2.50"), parse_price("2.50 EUR")
    (Price(per_gpu_hour=2.5, currency=''), Price(per_gpu_hour=2.5, currency='EUR'))
    >>> parse_price("$3").currency
    '$'

    Raises UsageError for anything else, and for a price of nothing.
    """
    found = _PRICE.fullmatch(text.strip())
    named = [part.strip() for part in (found["before"], found["after"]) if part] if found else []
    if found is None or len(named) > 1 or not all(one.isprintable() for one in named):
        raise UsageError(f'--price {text[:40]!r}: give the price of one GPU-hour, e.g. 2.50 or "2.50 EUR"')
    if not float(found["number"]) > 0:
        raise UsageError(f"--price {text[:40]!r}: a GPU-hour has to cost something")
    return Price(float(found["number"]), named[0] if named else "")


def gpu_hours(step_ms: float, gpus: int) -> float:
    """GPU-hours of 1000 steps: ms x GPUs x 1000 / 3.6e6.

    >>> gpu_hours(450.0, 8)
    1.0
    """
    return step_ms * gpus * STEPS / _MS_PER_HOUR


def with_cost(report: Report, price: Price | None = None) -> Report:
    """The report with the cost of the job and of every finding's saving.

    A saving of GPU work in a step that waits for the CPU saves no GPU-hour that anyone knows of. Where no
    step is marked in the trace, 1000 of them have no meaning, and nothing is claimed.
    """
    gpus, source = _gpus(report.trace)
    report = replace(report, findings=[replace(one, saving=None) for one in report.findings])
    job = JobCost(gpus, source, None, price=price)
    step_ms = report.summary.step_ms.median
    if not report.summary.steps_marked:
        return replace(report, cost=replace(job, why=words.NO_STEP_MARKED))
    if step_ms <= 0:
        return replace(report, cost=replace(job, why=words.NO_STEP_TIME))
    each = price.per_gpu_hour if price is not None else None
    hours = gpu_hours(step_ms, gpus)
    unprofiled_ms = report.summary.unprofiled.median_ms
    without = gpu_hours(unprofiled_ms, gpus) if unprofiled_ms is not None else None
    together = report.summary.shape_waste_ms
    job = replace(
        job,
        gpu_hours=hours,
        unprofiled_gpu_hours=without,
        saving=_saving(together, report.summary.saving_of, gpus, price) if together is not None else None,
        money=hours * each if each is not None else None,
        unprofiled_money=without * each if each is not None and without is not None else None,
    )
    findings = [
        replace(one, saving=_saving(one.saving_ms, one.saving_of, gpus, price)) for one in report.findings
    ]
    return replace(report, findings=findings, cost=job)


def _gpus(trace: TraceInfo) -> tuple[int, str]:
    if trace.world_size is not None:
        return trace.world_size, words.WORLD_SIZE
    return 1, words.ONE_GPU


def _saving(saving_ms: Estimate, of: SavingOf, gpus: int, price: Price | None) -> Saving | None:
    if of == "gpu_work":
        return None
    hours = saving_ms * gpu_hours(1.0, gpus)
    return Saving(hours, hours * price.per_gpu_hour if price is not None else None)
