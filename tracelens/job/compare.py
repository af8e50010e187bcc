"""Two jobs side by side: their ranks pair by pair, and who is late before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median

from tracelens.comparison.folder import Progress, compare_pairs
from tracelens.comparison.load import is_report, load_analysis
from tracelens.comparison.matching import match_folders
from tracelens.errors import InputError
from tracelens.job import words
from tracelens.job.merge import merge
from tracelens.job.run import RankWork, Summarized, summarize_each
from tracelens.job.saved import as_folder, unpack_report
from tracelens.job.summary import RankSummary, decode, summarize
from tracelens.results import Report
from tracelens.results.folders import SIDES, FolderComparison, Lateness, LatenessUnknown, LateRank, Side
from tracelens.results.job import Cause, Job

#: Fewer traces are read faster here than processes begin.
_POOL = 8


def compare_folders(
    before: str | Path,
    after: str | Path,
    *,
    across: bool = False,
    workers: int | None = 1,
    progress: Progress | None = None,
) -> FolderComparison:
    """Compare the traces and saved reports of two folders, or the ranks in two summaries, pair by pair.

    Files are paired by rank where every one has a rank of its own, else by name. ``across`` allows other
    GPUs, dtypes or world sizes: where one pair differs in them, shares of peak are compared and no times.
    ``progress(done, in_all, next)`` is called before each file. Of the ranks of two jobs it says who is late.
    ``workers``: processes that read traces, None: as many as cores (a script then needs
    ``if __name__ == "__main__"``).

    Raises:
        InputError: a folder holds nothing to compare, or nothing has a partner.
        UsageError: the times of a pair cannot be compared (another GPU, dtype or world size) and ``across``
            is not given.
    """
    with as_folder(before) as first, as_folder(after) as second:
        folders = first.path, second.path
        matched = match_folders(*folders)
        read = _BothJobs({"before": first.summaries, "after": second.summaries})
        if workers != 1:
            read.ahead({file.path for _, *pair in matched.pairs for file in pair}, workers, progress)
        found = compare_pairs(matched, folders, read, across=across, progress=progress)
    if found.kind != "ranks" or len(found.pairs) < 2 or found.not_compared:
        return found
    said = _lateness(found, read)
    if isinstance(said, Lateness):
        return replace(found, lateness=said)
    return replace(found, lateness_unknown=said)


class _BothJobs:
    """Reads files of both sides, and keeps the summary of each that has collectives to compare."""

    def __init__(self, made: Mapping[Side, Mapping[Path, RankSummary]]):
        self._made = made
        self._done: dict[Path, Summarized] = {}
        self.kept: dict[Side, dict[str, RankSummary]] = {side: {} for side in SIDES}

    def ahead(self, files: Iterable[Path], workers: int | None, progress: Progress | None) -> None:
        """Summarize the traces among them in several processes, where there are enough to be worth it."""
        traces = sorted(str(path) for path in files if not is_report(path))
        if len(traces) < _POOL:
            return
        for at, (path, done) in enumerate(summarize_each(traces, RankWork(), workers, None)):
            self._done[Path(path)] = done
            if progress is not None:
                progress(at + 1, len(traces), Path(path).name)

    def __call__(self, side: Side, path: Path) -> Report:
        if path in self._done:
            done = self._done[path]
            if done.summary is None:
                why = done.why or words.NOT_ANALYZED
                raise InputError(why if path.name in why else f"{path.name}: {why}")
            (summary,) = decode(done.summary, path.name)
            self.kept[side][path.name] = summary
            return unpack_report(summary)
        analysis = load_analysis(path)
        if path in self._made[side]:
            self.kept[side][path.name] = self._made[side][path]
        elif analysis.trace is not None:
            self.kept[side][path.name] = summarize(analysis)
        return analysis.report


def _lateness(found: FolderComparison, read: _BothJobs) -> Lateness | LatenessUnknown:
    jobs: list[Job] = []
    names: list[dict[str, str]] = []  # of each side: a rank's file -> the name of its pair
    for side in SIDES:
        files = {getattr(pair, side).file: pair.name for pair in found.pairs}
        kept = {file: one for file, one in read.kept[side].items() if file in files}
        if len(kept) < len(files):
            return "saved_reports"
        try:
            jobs.append(merge(kept.values()))
        except InputError:
            return "no_common_step"
        names.append({one.file: files[file] for file, one in kept.items()})
    clocks = [
        job.clock.residual_us for job in jobs if job.matched_calls and job.clock.residual_us is not None
    ]
    if len(clocks) < len(jobs):
        return "no_matching_calls"
    if not all(job.waits_told for job in jobs):
        return "clocks_apart"
    late: list[dict[str, float]] = []
    causes: list[dict[str, Cause]] = []
    for job, name in zip(jobs, names, strict=True):
        cause = {one.name: one.cause for one in job.stragglers}
        late.append({name[row.file]: row.late_ms for row in job.ranks})
        causes.append({name[row.file]: cause[row.name] for row in job.ranks if row.name in cause})
    said = [
        LateRank(
            pair, late[0].get(pair, 0.0), late[1].get(pair, 0.0), causes[0].get(pair), causes[1].get(pair)
        )
        for pair in {**causes[0], **causes[1]}
    ]
    waits = [median(row.parts.waiting_ms for row in job.ranks) for job in jobs]
    return Lateness(
        waits[0], waits[1], clocks[0], clocks[1],
        sorted(said, key=lambda one: -abs(one.after_ms - one.before_ms)),
        sorted({rank for job in jobs for rank in job.missing}),
    )  # fmt: skip
