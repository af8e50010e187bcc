"""Where the step waits, in words: what the page and the terminal say of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracelens import numbers as f
from tracelens.render.section import Content, Page, Section
from tracelens.results import Report, Waits

STREAMS = 8  # rows of each table on the page
HOW = 'tracelens analyze TRACE --waits finds it; it needs pip install "tracelens-gpu[hta]"'
CAUSES = {
    "host_wait": "was not launched yet by the CPU",
    "kernel_wait": "was queued: a gap below 30 µs",
    "other": "was queued and waited longer, or its launch is not in the file",
}
BOUNDS = {
    "cpu_bound": "CPU code",
    "data_loading": "data loading",
    "gpu_compute_bound": "GPU kernels and copies",
    "gpu_communication_bound": "communication",
    "gpu_kernel_launch_overhead": "from launch to kernel",
    "gpu_kernel_kernel_overhead": "gaps between kernels",
    "dependency": "dependencies",
}
_PARTS = {
    "temporal": "idle and computing",
    "idle": "idle by cause",
    "queue": "queue",
    "path": "critical path",
}
_NAMED = 3  # parts of the path that a line names


@dataclass(frozen=True, slots=True)
class WaitShare:
    title: str
    note: str
    ms: float
    frac: float


def shares(report: Report) -> list[WaitShare]:
    """What the GPU does from its first to its last event of a step; the three add up. Empty when unknown."""
    found = report.waits
    if found.compute_ms is None or found.non_compute_ms is None or found.idle_ms is None:
        return []
    total = found.compute_ms + found.non_compute_ms + found.idle_ms or 1.0
    told = [
        ("computes", "a compute kernel runs", found.compute_ms),
        ("only moves data", "copies or communication only", found.non_compute_ms),
        ("is idle", "no GPU event runs", found.idle_ms),
    ]
    return [WaitShare(title, note, ms, ms / total) for title, note, ms in told]


def lines(report: Report) -> list[str]:
    """Say it in two sentences, or why it is not known; nothing where nobody asked."""
    found = report.waits
    if found.why is not None:
        return [] if not found.asked else [found.why]
    told, said = shares(report), []
    if told:
        *first, last = (f"{share.title} {f.ms(share.ms)} ({f.pct(share.frac)})" for share in told)
        whole, part = f.ms(sum(share.ms for share in told)), found.overlap_frac
        hidden = "" if part is None else f"; {f.pct(part)} of communication is hidden"
        mean = ", a step's mean," if report.summary.steps_marked else ""
        of = f"the {whole} from the first GPU event to the last{mean}"
        said = [f"Of {of} the GPU {', '.join(first)} and {last}{hidden}."]
    if found.path:
        named = ", ".join(
            f"{BOUNDS.get(part.bound_by, part.bound_by)} {f.pct(part.frac)}" for part in found.path[:_NAMED]
        )
        said.append(f"{path_title(report)}: {named}.")
    return said or [f"{_PARTS.get(part, part)}: {why}" for part, why in list(found.missing.items())[:1]]


def path_title(report: Report) -> str:
    """Name the step whose critical path it is, and the lengths of both."""
    found = report.waits
    length = f.ms(sum(part.time_ms for part in found.path))
    step = "the step" if len(report.steps) == 1 else f"step {found.path_step}"
    of = f" in {f.ms(found.path_of_ms)}" if found.path_of_ms is not None else ""
    return f"Critical path of {step}, {length}{of}"


def gaps(found: Waits) -> list[str]:
    """Say what could not be found, and what the rest rests on."""
    said = [f"Not known, {_PARTS.get(part, part)}: {why}." for part, why in found.missing.items()]
    if found.queue and found.queued_frac is not None and found.queued_frac < 1:
        said.append(
            f"The queue counts {f.pct(found.queued_frac)} of the GPU events: those with a plain launch in "
            "the file (no CUDA graph)."
        )
    if found.path and found.blocked_ms:
        said.append(
            f"The CPU spends {f.ms(found.blocked_ms)} of that step in calls that wait for the GPU or copy; "
            "the path counts them as 0 and cannot follow the GPU through them."
        )
    return said


def shortened(found: Waits) -> Waits:
    """The rows that the page shows."""
    return replace(found, idle=found.idle[:STREAMS], queue=found.queue[:STREAMS])


def _content(page: Page) -> Content | None:
    found = page.report.waits
    if not found.asked:
        return None
    return {
        "note": found.why or (f"by {found.tool}" if found.tool else ""),
        "open": found.why is None,
        "w": found,
        "shares": shares(page.report),
        "bounds": BOUNDS,
        "causes": CAUSES,
        "gaps": gaps(found),
        "most": STREAMS,
        "path_title": path_title(page.report),
    }


SECTION = Section("waits", "Where the step waits", _content, leads=("idle",))
