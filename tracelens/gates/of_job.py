"""The figures of a whole job that a gate can ask for."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from tracelens.gates.metrics import Metric, Reading, exact, recognised, unknown
from tracelens.results.job import Job, Parts


def _of(
    read: Callable[[Parts], float], least: Callable[[Job], bool] = lambda _: False
) -> Callable[[Job, str], Reading]:
    """A part of the mean step, the median over the ranks; ``least``: it is a lower bound."""

    def reading(job: Job, _: str) -> Reading:
        mean_ms = median(row.parts.step_ms for row in job.ranks)
        return _both(job, median(read(row.parts) for row in job.ranks), mean_ms, least=least(job))

    return reading


def _both(job: Job, value_ms: float, step_ms: float, *, least: bool = False) -> Reading:
    if not job.steps_marked:
        return unknown("no_marked_step")
    forms = {"time": value_ms, "share": value_ms / step_ms}
    return Reading({form: recognised(value, least=least) for form, value in forms.items()})


def _straggler(job: Job, _: str) -> Reading:
    if not job.matched_calls:
        return unknown("no_collective")
    if not job.waits_told:
        return unknown("clocks_apart")
    return _both(job, max(row.late_ms for row in job.ranks), job.step_ms)


def _step(job: Job, _: str) -> Reading:
    return Reading({"time": exact(job.step_ms)}) if job.steps_marked else unknown("no_marked_step")


JOB_METRICS: dict[str, Metric[Job]] = {
    one.name: one
    for one in (
        Metric("job_step", ("time",), "the slowest rank's step, median over the steps", _step),
        Metric("straggler", ("share", "time"), "what the other ranks wait for the latest one", _straggler),
        Metric(
            "job_communication",
            ("share", "time"),
            "exposed communication, median over the ranks",
            _of(lambda parts: parts.exposed_ms, lambda job: job.communication_is_bound),
        ),
        Metric(
            "job_idle",
            ("share", "time"),
            "no GPU event runs, median over the ranks",
            _of(lambda parts: parts.idle_ms + parts.input_ms),
        ),
    )
}
