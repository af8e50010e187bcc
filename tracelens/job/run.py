"""From a folder of traces to the answer for the job: every rank in a process of its own, and none lost."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.errors import InputError, TracelensError
from tracelens.files import write_bytes
from tracelens.job import words
from tracelens.job.find import find_files, is_remote, name_of, on_this_machine, remote_key
from tracelens.job.merge import merge
from tracelens.job.summary import SUMMARY_VERSION, RankSummary, decode, encode
from tracelens.results.job import Job, Left

if TYPE_CHECKING:
    from tracelens.analysis import Analysis

#: Told of every rank that is done: files done, files in all, its name.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Summarized:
    """What a worker brings back, a summary or why there is none; it is pickled."""

    summary: bytes | None
    why: str | None


@dataclass(frozen=True, slots=True)
class Pages:
    """Where each rank's own page goes, and what writes it: a function that can be pickled."""

    folder: str
    write: Callable[[Analysis, Path], None]

    def of(self, file: str, sha256: str) -> Path:
        """The page of a trace; two files of one name have two pages."""
        return Path(self.folder) / f"{Path(file).name.partition('.')[0][:60]}.{sha256[:8]}.html"


@dataclass(frozen=True, slots=True)
class RankWork:
    """What is done with each trace; it is pickled."""

    gpu: str | None = None
    keep: str | None = None  # folder of finished summaries: they are not made again
    pages: Pages | None = None  # each rank's own page is written too
    waits: bool = False  # its critical path is found
    told: Callable[[Analysis], Analysis] | None = None  # writes its verdict


def summarize_file(path: str, work: RankWork) -> Summarized:
    """One rank's summary, taken from ``work.keep`` where it was made before. What one worker does."""
    from tracelens.analysis import analyze
    from tracelens.job.summary import summarize

    try:
        kept = None if work.keep is None else Path(work.keep) / _kept_name(path, work)
        if kept is not None and kept.is_file():
            data = kept.read_bytes()
            (before,) = decode(data, kept.name)
            if work.pages is None or work.pages.of(before.file, before.sha256).is_file():
                return Summarized(data, None)
        with on_this_machine(path) as file:
            searched = work.pages is not None
            analysis = analyze(file, gpu=work.gpu, shape_search=searched, waits=work.waits)
            analysis = analysis if work.told is None else work.told(analysis)
            data = encode([summary := summarize(analysis)])
        if work.pages is not None:
            work.pages.write(analysis, work.pages.of(summary.file, summary.sha256))
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(kept, data)
        return Summarized(data, None)
    except TracelensError as error:
        return Summarized(None, str(error))
    except MemoryError:
        return Summarized(None, words.NO_MEMORY)
    except Exception as error:  # one strange file is no reason to lose the other ranks
        return Summarized(None, words.failed(error))


def _kept_name(path: str, work: RankWork) -> str:
    """A summary is found again by the trace's content, of a remote file by what its system says of it."""
    import hashlib

    if is_remote(path):
        digest = hashlib.sha256(remote_key(path).encode())
    else:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256")
    digest.update(f"{SUMMARY_VERSION} {work.gpu or ''}{' waits' * work.waits}".encode())
    return f"{name_of(path).partition('.')[0][:60]}.{digest.hexdigest()[:16]}.summary"


def summarize_files(
    paths: str | Path | Sequence[str | Path],
    work: RankWork | None = None,
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> tuple[list[RankSummary], list[Left]]:
    """A summary of every trace (and those already made), and the files that have none with why.

    ``executor`` is anything that has ``submit`` (``cluster.dask_executor``); without one, processes on this
    machine.

    Raises InputError where nothing can be read.
    """
    files = find_files(paths)
    left = list(files.left)
    found: list[RankSummary] = []
    for path in files.summaries:
        try:
            with on_this_machine(path) as file:
                found += decode(file.read_bytes(), name_of(path))
        except (InputError, OSError) as error:
            left.append(Left(name_of(path), str(error)))
    results = summarize_each(files.traces, work or RankWork(), workers, executor)
    for at, (path, done) in enumerate(results):
        if progress is not None:
            progress(at + 1, len(files.traces), name_of(path))
        if done.summary is None:
            name = name_of(path)
            left.append(Left(name, (done.why or words.NOT_ANALYZED).removeprefix(f"{name} ")))
        else:
            found += decode(done.summary, name_of(path))
    if not found:
        one = next((one for one in left if one.why != words.OTHER_ENDING), left[0] if left else None)
        raise InputError(f"no rank can be used: {one.file}: {one.why}" if one else "no rank")
    return found, left


def analyze_job(
    paths: str | Path | Sequence[str | Path],
    *,
    gpu: str | None = None,
    keep: str | Path | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Job:
    """The answer for the job whose ranks' traces lie there. See ``summarize_files``.

    Raises InputError where nothing can be read, or the ranks have no step in common.
    """
    work = RankWork(gpu, None if keep is None else str(keep))
    found, left = summarize_files(paths, work, workers=workers, executor=executor, progress=progress)
    return merge(found, left)


def summarize_each(
    paths: Sequence[str], work: RankWork, workers: int | None, executor: Executor | None
) -> Iterator[tuple[str, Summarized]]:
    """Every file's result as it comes. A worker that dies takes no other file with it.

    ``workers``: processes, None: as many as cores; ``executor`` in place of them.
    """
    if executor is not None:
        # workers elsewhere have another working directory
        places = [path if is_remote(path) else os.path.abspath(path) for path in paths]
        asked = {
            executor.submit(summarize_file, at, work): path for at, path in zip(places, paths, strict=True)
        }
        for one in as_completed(asked):
            try:
                yield asked[one], one.result()
            except Exception as error:  # its worker is gone: that is the engine's own way to say so
                yield asked[one], Summarized(None, words.worker_failed(error))
        return
    most = max(1, min(workers or os.cpu_count() or 1, len(paths)))
    if most == 1:
        for path in paths:
            yield path, summarize_file(path, work)
        return
    waiting, lost = deque(paths), []
    while waiting:
        lost += yield from _until_broken(waiting, work, most)
    waiting = deque(lost)  # each alone: the one that kills its worker is told from those beside it
    while waiting:
        for path in (yield from _until_broken(waiting, work, 1)):
            yield path, Summarized(None, words.KILLED_TWICE)


def _until_broken(
    waiting: deque[str], work: RankWork, workers: int
) -> Generator[tuple[str, Summarized], None, list[str]]:
    """Results of what is waiting, until a worker dies; returns what ran beside it and is lost."""
    running: dict[Future[Summarized], str] = {}
    lost: list[str] = []
    with _pool(min(workers, len(waiting))) as pool:
        while running or (waiting and not lost):
            while waiting and not lost and len(running) < workers:
                path = waiting.popleft()
                try:
                    running[pool.submit(summarize_file, path, work)] = path
                except BrokenProcessPool:
                    lost.append(path)
            for one in wait(running, return_when=FIRST_COMPLETED).done:
                path = running.pop(one)
                try:
                    yield path, one.result()
                except BrokenProcessPool:
                    lost.append(path)
    return lost


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        yield pool
    except BaseException:  # Ctrl-C: what runs is not waited for
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """An executor over the cluster whose scheduler is there: ``tcp://host:8786``, or its scheduler file.

    Its workers need this package and see the traces under the same paths. A task that kills its workers is
    given up by Dask after a few; the other ranks go on.

    Raises:
        InputError: Dask is not installed, or no scheduler answers there.
    """
    try:
        from distributed import Client
    except ImportError:
        raise InputError('--dask needs pip install "tracelens-gpu[dask]"') from None
    place = {"scheduler_file": address} if os.path.isfile(address) else {"address": address}
    try:
        client = Client(**place, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"no Dask scheduler at {address}: {why}; its log names its address") from None
    with client, client.get_executor() as executor:
        yield executor
