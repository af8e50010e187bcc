"""Two folders side by side: the ranks of two jobs, or several runs before and after a change.

One pair of files is analyzed and compared after the other, and only what the summary needs is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from tracelens import numbers as f
from tracelens.comparison import words
from tracelens.comparison.changes import caveats
from tracelens.comparison.compare import compare_reports
from tracelens.comparison.gemms import Place
from tracelens.comparison.matching import File, MatchedFolders
from tracelens.comparison.same_work import other_work
from tracelens.comparison.spelling import place_name
from tracelens.comparison.together import Compared, together
from tracelens.errors import InputError, UsageError
from tracelens.results import Report
from tracelens.results.comparison import GemmChange, GemmSide, SetupChange
from tracelens.results.folders import (
    NOT_COMPARED,
    SIDES,
    FilePair,
    FolderComparison,
    PairTime,
    Side,
    Unpaired,
)

#: Told of every file before it is read: files done, files in all, its name.
Progress = Callable[[int, int, str], None]


def compare_pairs(
    matched: MatchedFolders,
    folders: tuple[Path, Path],
    read: Callable[[Side, Path], Report],
    *,
    across: bool = False,
    progress: Progress | None = None,
) -> FolderComparison:
    """Compare the traces and saved reports of two folders, pair by pair; ``read`` gives a file's report.

    Raises:
        InputError: no pair can be read.
        UsageError: the times of a pair cannot be compared (another GPU, dtype or world size) and ``across``
            is not given.
    """
    left, found = list(matched.left), []
    total = 2 * len(matched.pairs)
    for at, (name, old, new) in enumerate(matched.pairs):
        reports: list[Report] = []
        for number, (side, file) in enumerate(zip(SIDES, (old, new), strict=True)):
            if progress is not None:
                progress(2 * at + number, total, file.name)
            try:
                reports.append(read(side, file.path))
            except InputError as error:
                left.append(Unpaired(side, file.name, str(error)))
        if len(reports) == 2:
            found.append(_compared(name, (old, new), (reports[0], reports[1]), across=across))
        else:
            left += [Unpaired(side, file.name, words.PARTNER_UNUSABLE)
                     for side, file in zip(SIDES, (old, new), strict=True)
                     if not any(one.file == file.name and one.side == side for one in left)]  # fmt: skip
    if progress is not None:
        progress(total, total, "")
    if not found:
        raise InputError(
            f"no pair of files can be compared: {left[-1].file}: {left[-1].why}" if left else "no pair"
        )
    return together(found, by=matched.by, folders=folders, left=left)


def _compared(
    name: str, files: tuple[File, File], reports: tuple[Report, Report], *, across: bool
) -> Compared:
    before, after = reports
    try:
        result = compare_reports(before, after, across=across)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    times = [_time(file, report) for file, report in zip(files, reports, strict=True)]
    step = result.step
    rank = files[0].rank if files[0].rank == files[1].rank else None
    return Compared(
        FilePair(
            name,
            rank,
            times[0],
            times[1],
            step.state if step else NOT_COMPARED,
            step.diff_frac if step else None,
            step.p if step else None,
            "",
            result.causes,
            step,
        ),
        (result.before, result.after),
        (before.model, after.model),
        (_steps(before), _steps(after)),
        step,
        result.parts,
        result.noise,
        [
            *result.changes,
            *(_reshaped(one) for one in result.gemms if other_work(one) or one.state == "moved"),
        ],
        result.components,
        {(one.rule, one.title, one.state) for one in result.findings},
        caveats(before, after, times=False),
        result.not_compared,
        _peaks(result.gemms),
    )


def _time(file: File, report: Report) -> PairTime:
    summary = report.summary
    mean = fmean(step.duration_ms for step in report.steps) if report.steps else summary.step_ms.median
    computing = max(0.0, mean - summary.idle_ms - summary.exposed_communication_ms)
    return PairTime(
        file.name,
        summary.step_ms.median,
        summary.step_ms.n,
        computing,
        summary.gpu_busy_frac,
        summary.gemm_frac,
        summary.mfu_frac,
        summary.gemm_frac_is_bound,
        summary.mfu_is_bound,
        summary.idle_ms,
        summary.exposed_communication_ms,
    )


def _peaks(gemms: list[GemmChange]) -> dict[Place, tuple[float | None, float | None]]:
    """Share of peak before and after, of the GEMM of a place that does most."""
    found: dict[Place, tuple[float | None, float | None]] = {}
    for one in sorted(gemms, key=lambda one: -_work(one.before)):
        if one.before is not None and one.after is not None:
            place = (one.kind, one.component, one.role, one.phase)
            found.setdefault(place, (one.before.peak_frac, one.after.peak_frac))
    return found


def _work(side: GemmSide | None) -> float:
    """Multiply-adds per step, 0 where the shape is not known; attention has no M, N, K."""
    if side is None or side.m is None or side.n is None or side.k is None:
        return 0.0
    return side.calls_per_step * (side.batch or 1) * side.m * side.n * side.k


def _steps(report: Report) -> dict[int, float]:
    return {step.index: step.duration_ms for step in report.steps}


def _reshaped(one: GemmChange) -> SetupChange:
    name = place_name(one.component, one.role, one.phase)
    side = one.before or one.after
    size = f.mnk(side.m, side.n, side.k, side.batch) if side is not None else ""
    changed = one.changed
    if one.state in ("only_before", "only_after"):
        changed = [words.ONLY_BEFORE if one.state == "only_before" else words.ONLY_AFTER]
    elif one.state == "moved":
        changed = [words.counted_as(place_name(*one.moved_to))]
    return SetupChange("kernels", name, "", "", words.gemm(name, size, changed))
