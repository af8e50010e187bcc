"""The figures of a whole job that a gate can ask for."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from tracelens.gates.metrics import Metric, Reading, exact, unknown
from tracelens.results.job import Job, Parts


def _of(read: Callable[[Parts], float]) -> Callable[[Job, str], Reading]:
    """A part of the step, the median over the ranks; also as a share of the job's step."""

    def reading(job: Job, _: str) -> Reading:
        return _both(job, median(read(row.parts) for row in job.ranks))

    return reading


def _both(job: Job, value_ms: float) -> Reading:
    if not job.steps_marked:
        return unknown("no_marked_step")
    return Reading({"time": exact(value_ms), "share": exact(value_ms / job.step_ms)})


def _straggler(job: Job, _: str) -> Reading:
    if not job.matched_calls:
        return unknown("no_collective")
    return _both(job, max(row.late_ms for row in job.ranks))


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
            _of(lambda parts: parts.exposed_ms),
        ),
        Metric(
            "job_idle",
            ("share", "time"),
            "no GPU event runs, median over the ranks",
            _of(lambda parts: parts.idle_ms + parts.input_ms),
        ),
    )
}
