"""What no output may say, whatever the trace: each check gives the faults it finds, as codes with figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Protocol, get_args

from tests.truth.commands import PARSED_ONLY, arguments, named
from tests.truth.outputs import Outputs
from tracelens.cli import cli
from tracelens.numbers import pct
from tracelens.results import Report
from tracelens.results.step import NotWhole
from tracelens.rules.catalog import RULES

#: Clocks above the datasheet's boost, and rounding.
_RATE = 1.05
_SUM = 1e-6
_PART = r"(?:transformer|attention|communication|mixture of experts|experts?|GEMM)"
_ABSENT = re.compile(
    rf"\b[Nn]o {_PART}\b[^.;]*\b(?:trace|here|at all)|(?:has|holds|contains) no {_PART}\b|This is no {_PART}"
    r"|All GPU time has a component"
)
#: What was not recognised can be there.
_HEDGED = re.compile(r"recognised|attributed|known|judged")
_PER_STEP = re.compile(r"\b(?:per|a|each|of the) (?:training )?step\b|ms/step")
# "None of 93 shapes", "None has fewer" are English
# "None of 93 shapes", "None has fewer" are English
_BROKEN = re.compile(r"(?<![\w.-])(?:None(?! (?:of|has|is|was)\b|: [a-z]+ )|nan|NaN|-?inf|Infinity)(?![\w-])")
#: A line that ends in an option or in front of one: the terminal wrapped it.
_WRAPPED = re.compile(r"(?<=\s--gpu)\n(?=\S)| ?\n(?=--\w)")
_HREF = re.compile(r'href="#([^"]+)"')
_ID = re.compile(r'\bid="([^"]+)"')


class Written(Protocol):
    """What is written about a trace, or about a comparison of two."""

    @property
    def page(self) -> str: ...
    @property
    def texts(self) -> dict[str, str]: ...
    @property
    def rows(self) -> set[str]: ...  # ids of GEMM rows


def commands_exist(out: Written) -> Iterator[str]:
    """Commands parse on the real command line, and the rules and rows that they name exist."""
    rules = {rule.id for rule in RULES}
    texts = (_WRAPPED.sub(" ", text) for text in out.texts.values())
    for one in set().union(*(named(text) for text in texts)):
        command = cli.commands.get(one.command)
        if command is None:
            yield f"no such command: {one}"
            continue
        try:
            command.make_context(one.command, arguments(one))
        except Exception as error:
            if one.command not in PARSED_ONLY:
                yield f"does not parse: {one}: {error}"
        for word in one.words:
            if (re.fullmatch(r"g\d+", word) and word not in out.rows) or (
                word[:2] == "TL" and word not in rules
            ):
                yield f"nothing is called {word}: {one}"


def links_lead_somewhere(out: Written) -> Iterator[str]:
    """Every link inside of the page has its target."""
    yield from (f"no target: #{one}" for one in set(_HREF.findall(out.page)) - set(_ID.findall(out.page)))


def nothing_is_broken(out: Written) -> Iterator[str]:
    """No value of Python's stands where a figure or a word should."""
    for name, text in out.texts.items():
        yield from (f"{name}: {found[0]}" for found in _BROKEN.finditer(text))


def parts_agree(out: Outputs) -> Iterator[str]:
    """What is said of the model, and what has time, are of one mind."""
    report = out.report
    parts = {row.component.partition(".")[0] for row in report.components if row.time_ms_per_step > 0}
    found = report.model.found
    if found == "none" and parts & {"attention", "moe"}:
        yield f"found none beside {sorted(parts)}"
    # A mixture of experts alone has a hidden size; heads and layers are of what has attention.
    sizes = {"whole": (), "parts": ("heads", "layers"), "none": ("hidden", "heads", "layers")}[found]
    if any(getattr(report.model, size).value for size in sizes):
        yield f"found {found}, and dimensions"
    moe = {row.component for row in report.components if row.component.startswith("moe.")}
    if moe == {"moe.router"}:
        yield "a router without experts"
    if report.model.experts.value and not moe - {"moe.router"}:
        yield "experts counted, and none has time"
    phases = {row.phase for row in report.components}
    if "recompute" in phases and "forward" not in phases:
        yield "recompute without a forward"


def steps_are_whole(out: Outputs) -> Iterator[str]:
    """Figures per step are those of whole steps, and add up."""
    report, summary = out.report, out.report.summary
    whole = [step for step in report.steps if step.lacks is None]
    if whole and len(whole) < len(report.steps):
        yield "cut steps beside whole ones"
    if {one.index for one in report.left_out} & {step.index for step in report.steps}:
        yield "a step is left out, and counts"
    for left in report.left_out:
        if left.reason not in get_args(NotWhole):
            yield f"unknown reason {left.reason}"
    if any(step.gpu_busy_frac == 0 for step in report.steps) and len(report.steps) > 1:
        yield "a step without GPU work counts"
    sums = sum(row.time_ms_per_step for row in report.components)
    if abs(sums - summary.gpu_ms_per_step) > _SUM * max(1.0, sums):
        yield f"components {sums} ms of {summary.gpu_ms_per_step}"
    indices = {step.index for step in report.steps}
    if summary.steps_marked:
        kernels = out.analysis.kernels
        measured = kernels.loc[kernels["step"].isin(indices), "dur_ns"].sum() / 1e6 / len(indices)
        if abs(measured - summary.gpu_ms_per_step) > _SUM * max(1.0, measured):
            yield f"kernels of the steps take {measured} ms, the report says {summary.gpu_ms_per_step}"
    else:
        for name, text in out.texts.items():
            yield from (f"{name}: {found[0]!r} where no step is marked" for found in said_per_step(text))


def said_per_step(text: str) -> Iterator[re.Match[str]]:
    """A figure that is said to be of a step; advice on how to mark one is none."""
    for found in re.finditer(r"[\d.]+ (?:[mµn]?s|kernels|copies|calls)[^.]{0,20}", text):
        if said := _PER_STEP.search(found[0]):
            yield said


def bounds_are_marked(out: Outputs) -> Iterator[str]:
    """Shares of known kernels are lower bounds where much is unknown."""
    report, summary = out.report, out.report.summary
    alone = report.trace.world_size == 1  # one rank has no communication to miss
    bound = summary.gemm_frac_is_bound and (summary.communication_is_bound or alone)
    if report.coverage.unseen_frac > 0.05 and not bound:
        yield f"no bound beside {report.coverage.unseen_frac:.0%} unseen"
    buffers = any(row.groups and row.work_known == "at_most" for row in report.gemms)  # counted in full
    if summary.mfu_frac is not None and summary.mfu_why and not summary.mfu_is_bound and not buffers:
        yield f"MFU leaves out: {summary.mfu_why}"
    if report.coverage.component_frac + report.coverage.other_frac > 1 + _SUM:
        yield "coverage above one"


def checks_say_their_part(out: Outputs) -> Iterator[str]:
    """A check that passed beside much unseen time says of how much that is not true."""
    covered = out.report.coverage
    if not covered.complete:
        part = f"{pct(covered.unseen_frac)} of the GPU time"
        checks = (check for check in out.report.checks if check.state == "passed")
        yield from (
            f"{check.rule} passed the whole: {check.why}" for check in checks if part not in check.why
        )


def rates_are_possible(out: Outputs) -> Iterator[str]:
    """No rate above the peak."""
    report = out.report
    peak = max(report.gpu.peak_tflops.values(), default=None)
    for row in report.gemms:
        if row.peak_frac is not None and row.peak_frac > _RATE:
            yield f"{row.id}: {row.peak_frac:.0%} of peak"
        if peak and row.tflops is not None and row.tflops > _RATE * peak:
            yield f"{row.id}: {row.tflops} TFLOP/s"
    for part in report.components:
        if peak and part.tflops is not None and part.tflops > _RATE * peak:
            yield f"{part.component}: {part.tflops} TFLOP/s"
    if report.summary.mfu_frac is not None and report.summary.mfu_frac > 1:
        yield f"MFU {report.summary.mfu_frac:.0%}"


def savings_are_possible(out: Outputs) -> Iterator[str]:
    """No saving above the step or the GPU's work, and what the CPU holds up is no step's saving."""
    report, summary = out.report, out.report.summary
    waits = summary.step_bound != "gpu"
    most = summary.gpu_ms_per_step
    for finding in report.findings:
        high, of_waits = finding.saving_ms.high, finding.saving_of == "wait"
        if high is not None and high > (summary.step_ms.median if of_waits else most) * (1 + _SUM):
            yield f"{finding.rule}: {high} ms of {most}"
        if waits and not of_waits and (finding.saving_of != "gpu_work" or finding.saving is not None):
            yield f"{finding.rule}: a saving of the step, which waits"
    stake = summary.shape_waste_ms
    if stake is not None and stake.high is not None:
        if stake.high > most * (1 + _SUM):
            yield f"together {stake.high} ms of {most}"
        if waits and summary.saving_of != "gpu_work":
            yield "together a saving of the step, which waits"
    if waits and re.search(r"\bsaves? (?:about |≈ )?[\d.]+ [mµ]?s", out.terminal):
        yield "terminal: saves, in a step that waits"


def absence_is_seen(out: Outputs) -> Iterator[str]:
    """What was not found is said to be absent only where everything was seen."""
    if out.report.coverage.complete:
        return
    for name, text in out.texts.items():
        for found in _ABSENT.finditer(text):
            if not _HEDGED.search(text[found.start() : found.end() + 60].partition(".")[0]):
                yield f"{name}: {found[0]!r}"


def dimensions_agree(out: Outputs) -> Iterator[str]:
    """The model's sizes do not contradict one another."""
    yield from _sizes(out.report)


def _sizes(report: Report) -> Iterator[str]:
    model = report.model
    heads, dim, hidden = model.heads.value, model.head_dim.value, model.hidden.value
    shares = model.tensor_parallel.value or 1
    if heads and dim and hidden and heads * dim > 4 * hidden:
        yield f"{heads} heads of {dim} in hidden {hidden}"
    if model.kv_heads.value and heads and heads % model.kv_heads.value:
        yield f"{heads} heads, {model.kv_heads.value} of keys and values"
    if model.vocab.value is not None and model.vocab.value < 64:
        yield f"a vocabulary of {model.vocab.value}"
    if shares > 1 and heads and hidden and dim and heads * dim < hidden and not model.heads.per_rank:
        yield f"{heads} heads of a rank said to be the model's"


#: Of any page and its texts.
TEXT_CHECKS: tuple[Callable[[Written], Iterator[str]], ...] = (
    commands_exist, links_lead_somewhere, nothing_is_broken,
)  # fmt: skip
CHECKS: tuple[Callable[[Outputs], Iterator[str]], ...] = (
    *TEXT_CHECKS, parts_agree, steps_are_whole, bounds_are_marked,
    rates_are_possible, savings_are_possible, absence_is_seen, dimensions_agree, checks_say_their_part,
)  # fmt: skip


def faults(out: Outputs) -> list[str]:
    """Every fault of every output, with the check that found it."""
    return [f"{check.__name__}: {fault}" for check in CHECKS for fault in check(out)]
