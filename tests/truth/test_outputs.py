"""Nothing false in any output of any trace at hand, the zoo and the controls: invariants, not sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.kept import analyzed
from tests.truth import invariants
from tests.truth.invariants import faults
from tests.truth.outputs import FILES, SAMPLES, Outputs, name_of
from tests.zoo import FAMILIES, ZooOptions, record
from tests.zoo.controls import CONTROLS
from tracelens.api import analyze
from tracelens.results import Estimate, Known, LeftOut, Report

#: With module names too; every family and control without.
NAMED = ("gpt2", "llama", "bert", "t5", "moe", "resnet", "dlrm")


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_output_of_a_trace_says_anything_false(path: Path) -> None:
    assert faults(Outputs(analyzed(path))) == []


@pytest.mark.parametrize(
    ("family", "names"),
    [*((name, "none") for name in [*FAMILIES, *CONTROLS]), *((name, "frames") for name in NAMED)],
)
def test_no_output_of_the_zoo_says_anything_false(family: str, names: Any, tmp_path: Path) -> None:
    path = tmp_path / f"{family}.json"
    path.write_text(record(family, ZooOptions(names=names)).text())
    assert faults(Outputs(analyze(path))) == []


# -- each check finds what it is there for -----------------------------------------------------------------


@cache
def sample() -> Outputs:
    return Outputs(analyzed(SAMPLES[0]))


def changed(**fields: Any) -> Outputs:
    return Outputs(
        dataclasses.replace(sample().analysis, report=dataclasses.replace(sample().report, **fields))
    )


def with_summary(**fields: Any) -> Outputs:
    return changed(summary=dataclasses.replace(sample().report.summary, **fields))


def with_model(**fields: Any) -> Outputs:
    return changed(model=dataclasses.replace(sample().report.model, **fields))


def with_page(page: str) -> Outputs:
    out = Outputs(sample().analysis)
    out.__dict__["page"] = page  # where a cached property keeps its value
    return out


def with_coverage(**fields: Any) -> Outputs:
    return changed(coverage=dataclasses.replace(sample().report.coverage, **fields))


def with_finding(**fields: Any) -> Outputs:
    return changed(findings=[dataclasses.replace(sample().report.findings[0], **fields)])


def with_gemm(**fields: Any) -> Outputs:
    rows = sample().report.gemms
    return changed(gemms=[dataclasses.replace(rows[0], **fields), *rows[1:]])


def report() -> Report:
    return sample().report


FALSE: dict[str, tuple[Callable[[Outputs], Iterator[str]], Callable[[], Outputs]]] = {
    "a command that is none": (
        invariants.commands_exist,
        lambda: with_summary(verdict_detail='Run "tracelens mend TRACE" then.'),
    ),
    "an option that is none": (
        invariants.commands_exist,
        lambda: with_summary(verdict_detail="Run tracelens analyze TRACE --fix then."),
    ),
    "a value of Python's": (invariants.nothing_is_broken, lambda: with_summary(verdict="It takes None.")),
    "no transformer beside attention": (invariants.parts_agree, lambda: with_model(found="none")),
    "experts without time": (invariants.parts_agree, lambda: with_model(experts=Known(4, "made up"))),
    "a step left out that counts": (
        invariants.steps_are_whole,
        lambda: changed(left_out=[LeftOut(report().steps[0].index, "no_gpu_work", 0, 1.0)]),
    ),
    "a step too many": (invariants.steps_are_whole, lambda: changed(steps=report().steps[1:])),
    "an empty step": (
        invariants.steps_are_whole,
        lambda: changed(
            steps=[dataclasses.replace(report().steps[0], gpu_busy_frac=0.0), *report().steps[1:]]
        ),
    ),
    "per step without steps": (invariants.steps_are_whole, lambda: with_summary(steps_marked=False)),
    "a share of known kernels": (invariants.bounds_are_marked, lambda: with_coverage(component_frac=0.5)),
    "an impossible rate": (invariants.rates_are_possible, lambda: with_gemm(tflops=5028.0)),
    "more than the peak": (invariants.rates_are_possible, lambda: with_gemm(peak_frac=1.117)),
    "a saving above the step": (
        invariants.savings_are_possible,
        lambda: with_finding(saving_ms=Estimate(1.0, 50.0, 90.0, "model")),
    ),
    "a saving that is none": (invariants.savings_are_possible, lambda: with_summary(step_bound="cpu")),
    "absence beside the unseen": (
        invariants.absence_is_seen,
        lambda: changed(
            coverage=dataclasses.replace(report().coverage, component_frac=0.5),
            summary=dataclasses.replace(report().summary, verdict="The trace has no communication."),
        ),
    ),
    "a passed check of a part": (
        invariants.checks_say_their_part,
        lambda: changed(coverage=dataclasses.replace(report().coverage, component_frac=0.5)),
    ),
    "a link to nowhere": (
        invariants.links_lead_somewhere,
        lambda: with_page(sample().page + '<a href="#nowhere">there</a>'),
    ),
    "heads that cannot be": (invariants.dimensions_agree, lambda: with_model(kv_heads=Known(7, "made up"))),
    "a vocabulary of two": (invariants.dimensions_agree, lambda: with_model(vocab=Known(2, "made up"))),
}


@pytest.mark.parametrize("name", FALSE)
def test_what_is_false_is_found(name: str) -> None:
    check, made = FALSE[name]
    assert list(check(sample())) == []
    assert list(check(made())) != []
