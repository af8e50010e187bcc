"""A faster shape from whatever a user has: a configuration, a trace, a saved report or an analysis."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from tracelens.analysis import Analysis, analyze
from tracelens.config import Configuration
from tracelens.config.training import Training
from tracelens.config.words import COMMAND_LINE
from tracelens.errors import InputError, UsageError
from tracelens.kinds import kind_of
from tracelens.results import ModelDims, Report, Span
from tracelens.results.suggestions import FORMAT_VERSION, ComponentTime, Size, SuggestedFrom, Suggestions
from tracelens.step import suggestion
from tracelens.step.measured_step import MeasuredStep
from tracelens.step.saved_step import step_of
from tracelens.step.search_space import SearchLimits
from tracelens.step.step_search import search_step
from tracelens.step.suggestion import limits_of
from tracelens.step.traced_step import StepModel
from tracelens.step.words import search as words
from tracelens.sums import summed
from tracelens.words import per_step

#: What can be told of a trace, because it does not show it.
_TOLD = frozenset({"layers"})
_SIZES = ("hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "layers", "experts", "sequence",
          "micro_batch", "tensor_parallel")  # fmt: skip


def suggest(
    source: str | Path | Configuration | Analysis | Report,
    *,
    gpu: str | None = None,
    parameters_frac: float = 0.01,
    fix: Collection[str] = (),
    free: Collection[str] = (),
    memory_gb: float | None = None,
    dtype: str | None = None,
    sizes: Mapping[str, int] | None = None,
    tied: bool | None = None,
    training: Training | None = None,
) -> Suggestions:
    """Suggest a faster shape for a model, from its configuration or from an analysed step of it.

    ``source`` is a configuration (file, folder, or read already), a trace, a saved report or an analysis; a
    file's content tells which. A configuration needs ``gpu``, a key of the GPU table ("h100-sxm"), and is
    predicted in ``dtype`` (bf16); ``sizes`` replace those of the file. From a trace every candidate is
    judged on the measured step; of ``sizes`` it takes ``layers``, where it shows none, and ``tied``.
    ``fix`` names sizes that stay, ``free`` further ones that can change (layers, kv_heads, micro_batch,
    sequence); the weights stay within ``parameters_frac``. ``training`` says how a configuration is trained:
    then ``step`` has a whole step, tokens per second and MFU.

    Raises:
        InputError: the source cannot be used, or holds nothing that can be searched.
        UsageError: the GPU is not known, or the limits make no sense.
    """
    limits = limits_of(parameters_frac, fix=fix, free=free, memory_gb=memory_gb)
    # A trace can tell the memory that the user does not.
    (replace(limits, memory_gb=1.0) if limits.lacks_memory else limits).checked()
    if isinstance(source, Configuration) or (isinstance(source, str | Path) and kind_of(source) == "other"):
        if gpu is None:
            raise UsageError("name the GPU to train on: --gpu NAME, e.g. --gpu h100-sxm")
        return suggestion.suggest(
            source, gpu=gpu, limits=limits, dtype=dtype or "bf16", sizes=sizes, training=training
        )  # fmt: skip
    if training is not None:
        raise UsageError("a trace holds its own step: whole steps are predicted from a configuration")
    report, kind = _analysed(source, gpu)
    _only_known_sizes(report.model, sizes or {}, dtype)
    analysed_on = gpu if kind == "report" or not isinstance(source, str | Path) else None  # else it is on it
    step = step_of(report, gpu=analysed_on, layers=(sizes or {}).get("layers"), tied=tied)
    return _of_step(step, report, kind, limits, sizes or {})


def _of_step(
    step: StepModel, report: Report, kind: SuggestedFrom, limits: SearchLimits, given: Mapping[str, int]
) -> Suggestions:
    """What the search finds around a measured step. Raises InputError where nothing can be searched."""
    limits, told = _with_memory(limits, step)
    searched = search_step(step, report.model, limits=limits, lacks=report.recording)
    if searched.state == "could_not_run" or step.step_ms is None:
        raise InputError(f"{report.trace.path}: {searched.verdict}")
    memory = MeasuredStep(step).memory(step.now)
    low, high = report.summary.step_ms.low, report.summary.step_ms.high
    return Suggestions(
        format_version=FORMAT_VERSION,
        model=_name(report),
        sizes=_sizes(step, report.model, given),
        gpu=step.gpu.name,
        gpu_title=step.gpu.title,
        dtype=_dtype(report),
        basis="measured",
        parameters=step.now.parameters,
        time_ms=Span(low, step.step_ms, high, "measured"),
        time_is="step" if report.summary.steps_marked else "recording",
        tflops=report.summary.achieved_tflops,
        memory_gb=memory / 1e9 if memory is not None else None,
        components=_components(report),
        verdict=searched.verdict,
        picks=searched.picks,
        unsure=searched.unsure,
        heads=searched.heads,
        front=searched.front,
        tried=searched.tried,
        searched=searched.searched,
        parameters_limit_frac=searched.parameters_limit_frac,
        not_included=_as_measured(step, report),
        notes=[*told, *searched.notes],
        source=kind,
        not_searched=searched.not_searched,
        generated=report.trace.generated,
    )


def _analysed(source: str | Path | Analysis | Report, gpu: str | None) -> tuple[Report, SuggestedFrom]:
    """The report, and what it came from."""
    if isinstance(source, Report):
        return source, "report"
    if isinstance(source, Analysis):
        return source.report, "trace" if source.trace is not None else "report"
    if kind_of(source) == "report":
        return Analysis.load(source).report, "report"
    return analyze(source, gpu=gpu, shape_search=False).report, "trace"


def _with_memory(limits: SearchLimits, step: StepModel) -> tuple[SearchLimits, list[str]]:
    """The memory that the trace reports, where a search needs it and nothing else was given."""
    traced = step.gpu.traced_memory_gib if step.gpu.matched_by != "--gpu" else None
    if not limits.lacks_memory or traced is None:
        return limits.checked(), []
    return replace(limits, memory_gb=traced * 2**30 / 1e9).checked(), [words.fit_traced_memory(traced)]


def _name(report: Report) -> str:
    """What is searched around, with what keeps the step from being a measured one."""
    trace = report.trace
    return words.searched_around(
        trace.path, marked=report.summary.steps_marked, generated=trace.generated, partial=trace.partial
    )


def _only_known_sizes(model: ModelDims, sizes: Mapping[str, int], dtype: str | None) -> None:
    """UsageError for a size that the trace itself shows."""
    for name in sizes:
        if name not in _TOLD:
            raise UsageError(f"{name} is read from the trace: only {', '.join(sorted(_TOLD))} can be given")
    shown = model.layers.value
    if shown is not None and sizes.get("layers", shown) != shown:
        raise UsageError(f"the trace shows {shown} layers ({model.layers.source}), not {sizes['layers']}")
    if dtype is not None:
        raise UsageError("the dtype is read from the trace")


def _sizes(step: StepModel, model: ModelDims, given: Mapping[str, int]) -> dict[str, Size]:
    """Sizes of the whole model, with where the trace shows them."""
    sizes: dict[str, Size] = {}
    for name in _SIZES:
        source = COMMAND_LINE if name in given else getattr(model, name).source
        whole = None if name in given else getattr(model, name).whole
        sizes[name] = Size(step.now.get(name) if whole is None else whole, source)
    return sizes


def _dtype(report: Report) -> str:
    """The type in which most of the products' time is spent."""
    times = summed((row.math_dtype or row.dtype or "unknown", row.time_ms) for row in report.gemms)
    return max(times, key=lambda one: times[one], default="unknown")


def _components(report: Report) -> list[ComponentTime]:
    """The components of the measured step, all phases together."""
    whole = sum(one.time_ms_per_step for one in report.components) or 1.0
    products = summed((row.component, row.time_ms_per_step) for row in report.gemms)
    rows: list[ComponentTime] = []
    for component in dict.fromkeys(one.component for one in report.components):
        parts = [one for one in report.components if one.component == component]
        time = sum(one.time_ms_per_step for one in parts)
        judged = [(one.flops, one.tflops) for one in parts if one.flops and one.tflops]
        took = sum(flops / tflops for flops, tflops in judged)
        tflops = sum(flops for flops, _ in judged) / took if took else None
        shapes = _shapes(report, component)
        if products.get(component, 0.0) < time / 2:  # a few of its kernels, and no figure of it
            tflops, shapes = None, []
        rows.append(ComponentTime(component, Span.exactly(time, "measured"), time / whole, tflops, shapes))
    return sorted(rows, key=lambda row: -row.frac)


def _shapes(report: Report, component: str) -> list[str]:
    """Shapes of the component's forward products, longest first."""
    rows = [row for row in report.gemms if row.component == component and row.phase in ("forward", "other")]
    shapes = [
        f"{row.m} x {row.n} x {row.k}" if row.m and row.n and row.k else row.shape_note or "" for row in rows
    ]
    return [shape for shape in dict.fromkeys(shapes) if shape]


def _as_measured(step: StepModel, report: Report) -> list[str]:
    """What no candidate changes, though the real step could."""
    lines, per = [], per_step(report.summary.steps_marked)
    sent = sum(time for name, _, time, _ in step.components if name == "communication")
    if sent > 0:
        lines.append(words.communication_stays(sent, per))
    if report.summary.idle_ms > 0:
        lines.append(words.idle_stays(report.summary.idle_ms, per))
    fixed = sum(row.time_ms_per_step for row, _ in step.work.fixed)
    if fixed > 0:
        lines.append(words.gemms_stay(fixed, per))
    return lines
