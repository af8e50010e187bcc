"""Two folders side by side: the ranks of two jobs, or several runs before and after a change.

One pair of files is analyzed and compared after the other, and only what the summary needs is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from tracelens.compare.changes import caveats, not_comparable
from tracelens.compare.compare import compare_reports, only_same_work
from tracelens.compare.folder_result import FolderComparison, Left, Pair, PairTime
from tracelens.compare.load import load_report
from tracelens.compare.matching import File, match_folders
from tracelens.compare.result import Change, GemmChange
from tracelens.compare.together import Compared, together
from tracelens.errors import InputError, UsageError
from tracelens.results import Report

#: Told of every file before it is read: files done, files in all, its name.
Heard = Callable[[int, int, str], None]


def compare_folders(before: str | Path, after: str | Path, *, heard: Heard | None = None) -> FolderComparison:
    """Compare the traces and saved reports of two folders, pair by pair.

    Files are paired by rank where every one has a rank of its own, else by name. ``heard`` is told of the
    progress.

    Raises:
        InputError: a folder holds nothing to compare, or nothing has a partner.
        UsageError: the times of a pair cannot be compared (another GPU, dtype or world size).
    """
    matched = match_folders(Path(before), Path(after))
    left, found = list(matched.left), []
    total = 2 * len(matched.pairs)
    for at, (name, old, new) in enumerate(matched.pairs):
        reports: list[Report] = []
        for number, (side, file) in enumerate((("before", old), ("after", new))):
            if heard is not None:
                heard(2 * at + number, total, file.name)
            try:
                reports.append(load_report(file.path))
            except InputError as error:
                left.append(Left(side, file.name, str(error)))
        if len(reports) == 2:
            found.append(_compared(name, (old, new), (reports[0], reports[1])))
        else:
            left += [Left(side, file.name, "its partner cannot be used")
                     for side, file in (("before", old), ("after", new))
                     if not any(one.file == file.name and one.side == side for one in left)]  # fmt: skip
    if heard is not None:
        heard(total, total, "")
    if not found:
        raise InputError(
            f"no pair of files can be compared: {left[-1].file}: {left[-1].why}" if left else "no pair"
        )
    return together(found, by=matched.by, folders=(Path(before), Path(after)), left=left)


def _compared(name: str, files: tuple[File, File], reports: tuple[Report, Report]) -> Compared:
    before, after = reports
    why = not_comparable(before, after)
    if why:
        raise UsageError(
            f"{name}: times cannot be compared: {' and '.join(why)}; "
            "--across compares two files by shares of peak"
        )
    result = compare_reports(before, after)
    assert result.step is not None  # times are compared
    times = [_time(file, report) for file, report in zip(files, reports, strict=True)]
    step = result.step
    rank = files[0].rank if files[0].rank == files[1].rank else None
    return Compared(
        Pair(name, rank, times[0], times[1], step.state, step.diff_frac, step.p, result.verdict),
        (result.before, result.after),
        (before.model, after.model),
        (_steps(before), _steps(after)),
        step,
        result.parts,
        result.noise,
        only_same_work(result.gemms) and not result.changes,
        [*result.changes, *(_reshaped(one) for one in result.gemms if _is_reshaped(one))],
        result.components,
        {(one.rule, one.title, one.state) for one in result.findings},
        caveats(before, after, times=False),
    )


def _time(file: File, report: Report) -> PairTime:
    summary = report.summary
    mean = fmean(step.duration_ms for step in report.steps) if report.steps else summary.step_ms.median
    computing = max(0.0, mean - summary.idle_ms - summary.exposed_communication_ms)
    return PairTime(file.name, summary.step_ms.median, summary.step_ms.n, computing)


def _steps(report: Report) -> dict[int, float]:
    return {step.index: step.duration_ms for step in report.steps}


def _is_reshaped(one: GemmChange) -> bool:
    return one.state != "same_shape" or any(said != "kernel" for said in one.changed)


def _reshaped(one: GemmChange) -> Change:
    name = f"{one.component} {one.role or one.phase}"
    word = {"only_before": "only before", "only_after": "only after"}.get(one.state)
    said = word or ", ".join(one.changed)
    return Change("kernels", name, "", "", f"GEMM {name}: {said}")


__all__ = ["compare_folders"]
