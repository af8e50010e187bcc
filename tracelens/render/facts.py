"""What page and terminal both say, in the same words: identity, dimensions, the state of checks."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens import numbers as f
from tracelens import words
from tracelens.accounting.limits import updates_only
from tracelens.hardware import find_gpu
from tracelens.render.verdict import main_unattributed
from tracelens.results import (
    Check,
    CommunicationRow,
    Finding,
    GemmRow,
    Known,
    Lack,
    ModelDims,
    NotWhole,
    Report,
    main_dtype,
)
from tracelens.results.identity import ValidityRule

GENERATED = "Generated trace, not a measurement"
STATES = {"passed": "passed", "not_applicable": "not applicable", "could_not_run": "could not run"}
MARKS = {"high": "▲", "medium": "■", "low": "●"}
_ROLES = {"forward": "fwd"}
_OUTSIDE = 0.01  # of the file's GPU time
_OTHER = 0.05  # of GPU time that is ``other``: from here on worth a line beside what is unattributed
_ADDS = 0.02  # savings whose sum is off by less add up
_MOST = 0.5  # of GPU time in a part of the step: below it the dimensions can be of the lesser of two models
BANDWIDTH_FROM = 2**20  # bytes: the time of a smaller message is latency and waiting


def dims(model: ModelDims) -> list[tuple[str, Known]]:
    """Return the model dimensions as (name, value with its source), in reading order."""
    return [
        ("hidden", model.hidden),
        ("heads", model.heads),
        ("kv heads", model.kv_heads),
        ("head dim", model.head_dim),
        ("ffn", model.ffn),
        ("vocab", model.vocab),
        ("layers", model.layers),
        ("sequence", model.sequence),
        ("micro-batch", model.micro_batch),
        ("tensor parallel", model.tensor_parallel),
        ("experts", model.experts),
        *(  # only where the model is spread that way
            (name, known)
            for name, known in (
                ("experts per token", model.top_k),
                ("classes", model.classes),
                ("pipeline parallel", model.pipeline_parallel),
                ("expert parallel", model.expert_parallel),
            )
            if (known.value or 1) > 1
        ),
    ]


def model_line(report: Report) -> list[str]:
    """Name the model by the dimensions that are known."""
    if report.model.found == "parts":
        return ["Parts of a transformer only", *known_dims(report.model)]
    if report.model.found == "none" and updates_only(report.components):
        return ["An optimizer alone"]
    if report.model.found == "none":
        return ["No transformer" if report.coverage.complete else "No attention recognised"]
    known = known_dims(report.model)
    if report.model.hidden.value is None:
        return ["Transformer", *known, f"{'other ' if known else ''}dimensions unknown"]
    known_frac = report.coverage.component_frac
    return known if known_frac >= _MOST else [f"A part of at most {f.pct(known_frac)} of GPU time", *known]


def known_dims(model: ModelDims) -> list[str]:
    """The dimensions that are known, each with its name."""
    known = [(name, dim, dim.value) for name, dim in dims(model) if dim.value is not None]
    values = {name: value for name, _, value in known}
    parts = []
    for name, dim, local in known:
        value = local if dim.whole is None else dim.whole
        told = {
            "kv heads": local != values.get("heads"),  # only worth a word when grouped
            "tensor parallel": value > 1,
            "experts": value > 1,
        }
        if told.get(name, True):
            counted = name.endswith(("heads", "layers", "experts", "classes"))
            one = name.removesuffix("s") if value == 1 else name
            said = f"{value} {one}" if counted else f"{name} {value}"
            parts.append(f"{said}{_of_rank(dim)}")
    return parts


def _of_rank(dim: Known) -> str:
    """What of a dimension one rank holds, where ranks share it."""
    if not dim.per_rank:
        return ""
    return " per rank" if dim.whole is None else f" ({dim.value} per rank)"


def steps_text(report: Report) -> str:
    """Say which steps were read."""
    if not report.steps or not (report.summary.steps_marked or cut_words(report)):
        return "whole trace, no step marked"
    runs = f.integers([step.index for step in report.steps])
    return f"step {runs}" if len(report.steps) == 1 else f"steps {runs} ({len(report.steps)})"


_NOT_WHOLE: dict[NotWhole, str] = {
    "no_gpu_work": "no GPU work",
    "not_in_file": "behind the end of the file",
    "cut_at_start": "cut by the start of the trace",
    "cut_at_end": "cut by the end of the trace",
    "events_lost": "GPU events are missing",
}


def cut_words(report: Report) -> str:
    """Say that the steps analysed are not whole, as no whole one is there; "" where they are."""
    reasons = sorted({_NOT_WHOLE[step.lacks] for step in report.steps if step.lacks is not None})
    return " and ".join(reasons)


def left_out(report: Report) -> list[str]:
    """Name the steps that are in no figure, "step 15 left out: no GPU work"."""
    said = []
    for reason, why in _NOT_WHOLE.items():
        found = [one.index for one in report.left_out if one.reason == reason]
        if found:
            said.append(f"step{'s' if len(found) > 1 else ''} {f.integers(found)} left out: {why}")
    return said


def run_line(report: Report) -> list[str]:
    """Say where and how the trace was taken; unknown parts are left out here and named in coverage."""
    trace, gpu = report.trace, report.gpu
    cut = cut_words(report)
    parts = [steps_text(report) + (f", {cut}" if cut else "")]
    if gpu.name == "unknown":
        parts.append(f"{trace.device or 'GPU not named in the trace'} (not in the GPU table)")
    else:
        parts.append(gpu.title + _recorded_on(report))
    if trace.rank is not None:
        parts.append(f"rank {trace.rank}" + (f" of {trace.world_size}" if trace.world_size else ""))
    dtype = main_dtype(report.gemms)
    parts += [dtype] if dtype else []
    parts += [f"torch {trace.torch_version}"] if trace.torch_version else []
    parts += [f"CUDA {trace.cuda_version}"] if trace.cuda_version else []
    return [*parts, *left_out(report)]


def _recorded_on(report: Report) -> str:
    """Where --gpu names another GPU than the trace, the one that its times are of."""
    device = report.trace.device
    if report.gpu.matched_by != "--gpu" or not device or find_gpu(device).name == report.gpu.name:
        return ""
    return f" by --gpu, times of {device}"


def per_step(report: Report) -> str:
    """What times are of, behind them: " per step" or " in the trace"."""
    return f" {words.per_step(report.summary.steps_marked)}"


def claim(finding: Finding, report: Report) -> tuple[str, str]:
    """Write what a finding saves and how that is known."""
    return claimed(finding, marked=report.summary.steps_marked)


def claimed(finding: Finding, *, marked: bool) -> tuple[str, str]:
    """The same without its report."""
    return f.saving(
        finding.saving_ms, finding.saving_frac, finding.basis,
        of=finding.saving_of, counts=finding.counts, marked=marked,
    )  # fmt: skip


def overlap_words(report: Report) -> str:
    """Say what all findings save together where that is less than their sum, "" where nothing overlaps."""
    together = report.summary.shape_waste_ms
    findings = [one for one in report.findings if one.saving_of != "wait"]
    if len(findings) < 2 or together is None:
        return ""
    waits = report.summary.saving_of == "gpu_work"
    bound = waits or together.mid is None
    claims = [one.saving_ms for one in findings if bound or one.saving_ms.mid is not None]
    whole = together.high if bound else together.mid
    if bound and whole is not None:
        whole += report.summary.shape_open_ms
    sizes = [one.high if bound else one.mid for one in claims]
    if None in sizes:  # the sum is not known
        return ""
    total = sum(size for size in sizes if size is not None)
    if whole is None or abs(total - whole) <= _ADDS * total:
        return ""
    what = "together" if len(claims) == len(findings) else "those predicted together"
    return (
        f"{what} {'0 to' if waits else '≤' if bound else '≈'} {f.ms(whole)}, not their sum: savings overlap"
    )


def communication_frac(report: Report) -> float:
    """Return the share of the steps' GPU time that communication takes."""
    total_ms = report.summary.gpu_ms_per_step
    return sum(row.time_ms_per_step for row in report.communication) / total_ms if total_ms else 0.0


def communication_line(report: Report) -> str:
    """Say how much communication there is and how much of it hides behind nothing."""
    rows = report.communication
    time_ms = sum(row.time_ms_per_step for row in rows)
    exposed = sum(row.exposed_ms_per_step for row in rows)
    least = "≥ " if report.summary.communication_is_bound else ""
    share = (
        f"{least}{f.pct(communication_frac(report))} of GPU time, {least}{f.ms(time_ms)}{per_step(report)}"
    )
    return f"{share}; {f.pct(exposed / time_ms if time_ms else 0.0)} of it exposed: no compute kernel runs"


def group(row: CommunicationRow) -> str:
    """Name a process group with its size."""
    if row.group is None:
        return f"{row.group_size} ranks" if row.group_size else f.DASH
    return f"{row.group} ({row.group_size})" if row.group_size else row.group


def message(row: CommunicationRow) -> str:
    """Write the mean message of a row's calls."""
    return f.DASH if row.bytes_per_call is None else f.nbytes(round(row.bytes_per_call))


def bus(row: CommunicationRow) -> str:
    """Write the bus bandwidth where the message is large enough for one to mean something."""
    large = row.bytes_per_call is not None and row.bytes_per_call >= BANDWIDTH_FROM
    return f.sig(row.bus_gbps) if large and row.bus_gbps is not None else f.DASH


def lacks_worth_a_line(report: Report) -> list[Lack]:
    """Return what the recording lacked where it matters: two at most, and not what the verdict advises."""
    worth = [lack for lack in report.recording if lack.severity in ("high", "medium")]
    main = main_unattributed(report.coverage)
    return [lack for lack in worth if main is None or lack.remedy != main.remedy][:2]


def checks_by_state(report: Report) -> dict[str, list[Check]]:
    """Group the checks that found nothing by what became of them."""
    return {state: [c for c in report.checks if c.state == state] for state in STATES}


def checks_line(report: Report) -> str:
    """Count the checks in one line, "9 checks passed, 1 not applicable, 0 could not run"."""
    groups = checks_by_state(report)
    rest = [f"{len(groups[s])} {STATES[s]}" for s in ("not_applicable", "could_not_run") if groups[s]]
    return ", ".join([f"{f.plural(len(groups['passed']), 'check')} passed", *rest])


def coverage_lines(report: Report) -> list[str]:
    """Say what GPU time is in no known part of the step, and why."""
    covered, lines = report.coverage, []
    if covered.other_frac > (_OTHER if covered.unattributed else 0.0):
        lines.append(f"{f.pct(covered.other_frac)} of GPU time has a name but is no known part of the step.")
    if covered.unattributed:
        main = max(covered.unattributed, key=lambda one: one.time_ms).reason
        lines.append(f"Unattributed {f.pct(covered.unattributed_frac)}, mostly: {main}")
    return lines or ["All GPU time has a component."]


def no_dims(report: Report) -> str:
    """Say why the model's dimensions are not listed, "" where they are."""
    if report.model.transformer or report.model.hidden.value is not None:
        return ""
    return f"{f.capital(report.model.hidden.source)}."


def partial_line(report: Report) -> str:
    """Say what is missing from a trace that could not be read whole."""
    why = "; ".join(report.trace.warnings) or "a part of the file could not be read"
    return f"Partial: {why}"


def _outside(report: Report) -> list[str]:
    """Say that a file holds more than its steps, where that is worth a word."""
    total_ms = sum(row.time_ns for row in report.components) / 1e6
    outside_ms = total_ms - sum(row.time_ms_per_step for row in report.components) * len(report.steps)
    if not report.steps or outside_ms <= _OUTSIDE * total_ms:
        return []
    share = f.pct(outside_ms / total_ms)
    return [f"Not counted: {share} of the file's GPU time, outside these steps."]


def rule_lines(rules: Sequence[ValidityRule]) -> list[str]:
    """How many of PyTorch's own rules for traces hold, and each that does not."""
    checked = [rule for rule in rules if rule.checked]
    broken = [rule for rule in checked if rule.broken]
    if not checked:
        return []
    return [
        f"PyTorch's own rules for traces: {len(checked) - len(broken)} of {len(checked)} passed",
        *(f"{one.code}: {one.broken:,} of {one.checked:,} break the rule: {one.says}" for one in broken),
    ]


def lent_lines(report: Report) -> list[str]:
    """Say how much is known only because the same kernels are known elsewhere, and from where."""
    coverage, reference = report.coverage, report.reference
    within = coverage.lent_frac - (reference.lent_frac if reference else 0.0)
    lines = _outside(report)
    if coverage.lent_kernels > (reference.lent_kernels if reference else 0):
        lines.append(
            f"{f.pct(within)} of GPU time is known from matching kernels in other steps of this trace."
        )
    if reference is not None:
        head = (
            f"{f.pct(reference.matched_frac)} of GPU time matches kernels of the reference {reference.path}"
        )
        calls = reference.lent_calls
        lines.append(
            f"{head}: {f.pct(reference.lent_frac)} got its component from there, {f.count(calls)} GEMM and "
            f"attention call{'' if calls == 1 else 's'} the shape."
        )
    return lines


def shape(row: GemmRow) -> str:
    """Write a row's shape, the ranges its kernel leaves open, or the note that stands in its place."""
    exact = f.mnk(row.m, row.n, row.k, row.batch)
    return exact or f.mn_ranges(row.m_range, row.n_range, row.batch) or row.shape_note or f.UNKNOWN


def shape_detail(row: GemmRow) -> str | None:
    """Say what there is to say beside the sizes: how they were bounded, or what they were padded from."""
    if row.work_known == "above_peak":
        return "counted; part of it was not computed"
    if row.m is None:
        return "range by tile and grid, K unknown" if row.m_range or row.n_range else None
    return row.shape_note


def of_peak(row: GemmRow) -> str:
    """Write a row's share of the peak; where its work is a bound, so is that."""
    return f.DASH if row.peak_frac is None else f"{bounded(row)}{f.pct(row.peak_frac)}"


def bounded(row: GemmRow) -> str:
    """What stands before a rate that counts more work than was done."""
    return "≤ " if row.work_known == "at_most" else ""


def role(row: GemmRow) -> str:
    """Write a role in short."""
    return f.DASH if row.role is None else _ROLES.get(row.role, row.role)


def tile(row: GemmRow) -> str:
    """Write a tile as the kernel's name has it, with split-K where it is used."""
    if row.tile_m is None or row.tile_n is None:
        return f.DASH
    text = f"{row.tile_m}×{row.tile_n}" + (f"×{row.tile_k}" if row.tile_k is not None else "")
    return text + (f" k/{row.split_k}" if row.split_k is not None and row.split_k > 1 else "")
