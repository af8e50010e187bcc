"""What is not the same, known without comparing a time: the model, the communication, the software."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tracelens.comparison import words
from tracelens.comparison.gemms import differ
from tracelens.numbers import percent
from tracelens.results import CommunicationRow, Known, Report, main_dtype
from tracelens.results.comparison import SetupChange
from tracelens.words import per_step

#: Parameters in the order they are named, by their word.
_PARAMETERS = {
    "vocab": "vocab",
    "hidden": "hidden",
    "ffn": "ffn",
    "heads": "heads",
    "kv_heads": "kv heads",
    "head_dim": "head dim",
    "layers": "layers",
    "experts": "experts",
    "sequence": "sequence",
    "micro_batch": "micro-batch",
    "tensor_parallel": "tensor parallel",
}
_MORE_IN_GRAPHS = 0.1  # of the GPU time: a model that began to run in graphs, or ended
LONG_STEP = 1.5  # medians: a longer step is no normal one


def find_changes(before: Report, after: Report) -> list[SetupChange]:
    """Name what changed: model dimensions, then communication, then software."""
    return [*model_changes(before, after), *communication_changes(before, after), *_software(before, after)]


def model_changes(before: Report, after: Report) -> list[SetupChange]:
    """Model dimensions known on both sides that differ."""
    found = []
    for name, title in _PARAMETERS.items():
        old, new = _known(before, name), _known(after, name)
        if old is not None and new is not None and old != new:
            found.append(SetupChange("model", name, str(old), str(new), words.turned(old, new, title)))
    sure = all(one.model.transformer or one.coverage.complete for one in (before, after))
    if sure and {before.model.found, after.model.found} == {"whole", "none"}:
        seen = ["a transformer" if one.model.transformer else "none" for one in (before, after)]
        said = words.turned(seen[0], seen[1], "transformer seen:")
        found.append(SetupChange("model", "transformer", seen[0], seen[1], said))
    return found


def not_shown(before: Report, after: Report) -> list[str]:
    """Dimensions that one side at least does not show, and which: whether they changed cannot be told."""
    lacking: dict[str, list[str]] = {}
    for name, title in _PARAMETERS.items():
        sides = [_known(one, name) is None for one in (before, after)]
        if name != "experts" and any(sides):  # experts: unknown in every dense model
            side = "" if all(sides) else "before" if sides[0] else "after"
            lacking.setdefault(side, []).append(title)
    return [words.not_read(names, side) for side, names in lacking.items()]


def _known(report: Report, name: str) -> int | None:
    known: Known = getattr(report.model, name)
    return known.value


def communication_changes(before: Report, after: Report) -> list[SetupChange]:
    """Collectives that are called more or less often, or in another phase, per step.

    Counts only: how long a collective takes depends on the slowest rank, which one trace does not show.
    """
    old, new = _calls(before.communication), _calls(after.communication)
    per = per_step(before.summary.steps_marked and after.summary.steps_marked)
    found: list[SetupChange] = []
    for collective in sorted({*old, *new}):
        a, b = old.get(collective, {}), new.get(collective, {})
        phases = sorted({*a, *b})
        moved = {phase: b.get(phase, 0.0) - a.get(phase, 0.0) for phase in phases}
        if not any(differ(a.get(phase, 0.0), b.get(phase, 0.0)) for phase in phases):
            continue
        said = _moved(collective, a, b, moved, after.communication, per)
        found.append(SetupChange("communication", collective, _spelled(a), _spelled(b), said))
    return found


def _calls(rows: Iterable[CommunicationRow]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        phases = found.setdefault(row.collective, {})
        phases[row.phase] = phases.get(row.phase, 0.0) + row.calls_per_step
    return found


def _moved(
    collective: str,
    old: dict[str, float],
    new: dict[str, float],
    moved: dict[str, float],
    rows: list[CommunicationRow],
    per: str,
) -> str:
    before, after = sum(old.values()), sum(new.values())
    gained = [phase for phase, more in moved.items() if more > 0]
    lost = [phase for phase, more in moved.items() if more < 0]
    if differ(before, after) or len(gained) != 1 or len(lost) != 1:
        return words.calls(collective, per, _spelled(old), _spelled(new))
    purposes = sorted(
        {row.purpose for row in rows if row.collective == collective and row.phase == gained[0]} - {"unknown"}
    )
    many = moved[gained[0]], before
    return words.calls_moved(collective, per, many, (lost[0], gained[0]), purposes)


def _spelled(phases: dict[str, float]) -> str:
    return words.in_phases([(phase, calls) for phase, calls in sorted(phases.items()) if calls])


def _software(before: Report, after: Report) -> list[SetupChange]:
    found = []
    for name, title in (("torch_version", "PyTorch"), ("cuda_version", "CUDA")):
        old, new = getattr(before.trace, name), getattr(after.trace, name)
        if old is not None and new is not None and old != new:
            found.append(SetupChange("software", name, old, new, words.turned(old, new, title)))
    graphs = [_in_graphs(one) for one in (before, after)]
    if abs(graphs[1] - graphs[0]) >= _MORE_IN_GRAPHS:
        old, new = (percent(one) for one in graphs)
        found.append(
            SetupChange("software", "cuda_graphs", old, new, words.turned(old, new, words.IN_GRAPHS))
        )
    return found


def _in_graphs(report: Report) -> float:
    """Share of the GPU time that CUDA graphs launched."""
    return sum(one.share or 0.0 for one in report.recording if one.code == "cuda-graph")


def not_comparable(before: Report, after: Report) -> list[str]:
    """Why the times of the two cannot be compared; empty where they can."""
    reasons = []
    if _gpu(before) != _gpu(after):
        reasons.append(words.different_gpus(_gpu_said(before), _gpu_said(after)))
    dtypes = [main_dtype(one.gemms) for one in (before, after)]
    if None not in dtypes and dtypes[0] != dtypes[1]:
        reasons.append(words.different_dtypes(*dtypes))
    worlds = [one.trace.world_size for one in (before, after)]
    if None not in worlds and worlds[0] != worlds[1]:
        reasons.append(words.different_worlds(*worlds))
    return reasons


def _gpu(report: Report) -> tuple[str, int | None]:
    named = report.gpu.name != "unknown"
    return (report.gpu.name if named else report.trace.device or "unknown", report.gpu.sms)


def _gpu_said(report: Report) -> str:
    name = report.gpu.title if report.gpu.name != "unknown" else report.trace.device or "unknown"
    return words.gpu(name, report.gpu.sms)


def caveats(before: Report, after: Report, *, times: bool = True) -> list[str]:
    """What a reader must know before he believes a difference. ``times``: they are compared."""
    said: list[str] = []
    both = (("before", before), ("after", after))
    for name, report in both:
        if report.trace.generated:
            said.append(words.generated(name))
        if report.trace.partial:
            said.append(words.partial(name))
        if not report.summary.steps_marked:
            said.append(words.unmarked(name))
        cut = [step.index for step in report.steps if step.lacks is not None]
        if cut:
            said.append(words.cut(name, cut))
        said += _long_steps(name, report) if times else []
    ranks = [one.trace.rank for _, one in both]
    if ranks[0] != ranks[1]:
        said.append(words.different_ranks(*ranks))
    said += _unknown(both, "GPU", lambda one: None if one.gpu.name == "unknown" else one.gpu.name)
    said += _unknown(both, "dtype of most GEMM time", lambda one: main_dtype(one.gemms))
    if before.trace.world_size != after.trace.world_size:
        said += _unknown(both, "world size", lambda one: one.trace.world_size)
    if before.tool_version != after.tool_version:
        said.append(words.different_versions(before.tool_version, after.tool_version))
    return said + not_shown(before, after)


def _unknown(both: Iterable[tuple[str, Report]], what: str, read: Callable[[Report], object]) -> list[str]:
    return [words.taken_for_same(name, what) for name, report in both if read(report) is None]


def _long_steps(name: str, report: Report) -> list[str]:
    """Steps that are no normal ones; the test by ranks counts each as one long step."""
    middle = report.summary.step_ms.median
    return [
        words.long_step(name, step.index, step.duration_ms, step.duration_ms / middle)
        for step in report.steps
        if len(report.steps) > 2 and middle > 0 and step.duration_ms > LONG_STEP * middle
    ]
