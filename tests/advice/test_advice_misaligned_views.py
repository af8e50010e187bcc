"""TL114: views off 16 bytes where the shape is on the grid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_answers import says_why
from tests.advice.advice_facts import H100, step_of
from tests.advice.advice_rows import NVJET, cutlass, facts, gemm
from tests.said import Listener
from tracelens.gemm import GemmShape, alignment_bytes, leading_dimensions, parse_kernel_name
from tracelens.gemm.predict import predict_gemm
from tracelens.results import GemmRow
from tracelens.rules.align_dimensions import AlignDimensions
from tracelens.rules.engine.facts import Outcome
from tracelens.rules.misaligned_views import MisalignedViews

RULE = MisalignedViews()


def strided(number: int, *, lda: int = 4096, kernel: str = cutlass(2), batch_stride: int | None = None,
            **more: Any) -> GemmRow:  # fmt: skip
    """4096 x 4096 x 4096 in bf16 whose operand a has rows ``lda`` apart."""
    shape = GemmShape(
        4096, 4096, 4096, 1, "bf16", "bf16", "TN", lda=lda, ldb=4096, batch_stride_a=batch_stride
    )
    parsed = parse_kernel_name(kernel)
    leading, source = leading_dimensions(shape, kernel=parsed)
    given: dict[str, Any] = {
        "component": "attention.output", "kernel": kernel, "time_us": 700.0, "leading": leading,
        "leading_source": source, "alignment_bytes": alignment_bytes(shape, kernel=parsed),
    }  # fmt: skip
    return gemm(number, 4096, 4096, 4096, **(given | more))


def check(*rows: GemmRow, **more: Any) -> Outcome:
    return RULE.check(step_of(rows, **more))


def test_rows_of_a_view_off_the_grid(said: Listener) -> None:
    (finding,) = check(strided(1, lda=4618)).findings
    said(finding.title, finding.saw)
    assert finding.fix[1].startswith("+ buffer = torch.empty(rows, 4624)")
    assert (finding.confidence, finding.effort) == ("high", "code")


def test_the_saving_is_measured_minus_the_aligned_prediction() -> None:
    (finding,) = check(strided(1, lda=4618)).findings
    aligned = predict_gemm(4096, 4096, 4096, gpu=H100).time_us.mid or 0.0
    assert finding.saving_ms.mid == pytest.approx((700.0 - aligned) / 1e3)
    assert (finding.saving_ms.low or 0.0) < (finding.saving_ms.mid or 0.0)


def test_aligned_products_of_the_trace_set_the_measure(said: Listener) -> None:
    others = [gemm(n, 4096, 4096, 4096, time_us=300.0, component="attention.output") for n in (2, 3, 4)]
    step = step_of([strided(1, lda=4618), *others])
    assert step.step is not None and "bf16" in step.step.anchors.by_dtype
    (finding,) = RULE.check(step).findings
    said(finding.how)


def test_a_silent_kernel_gives_medium_confidence() -> None:
    (finding,) = check(strided(1, lda=4618, kernel="unnamed")).findings
    assert finding.confidence == "medium"


def test_matrices_of_a_batch_that_begin_off_the_grid(said: Listener) -> None:
    (finding,) = check(strided(1, batch_stride=4096 * 4096 + 4)).findings
    said(finding.saw)


def test_a_start_off_the_grid_shows_in_the_kernels_name(said: Listener) -> None:
    (finding,) = check(strided(1, kernel=cutlass(4))).findings
    assert finding.confidence == "medium" and finding.change == {}
    said(finding.title, finding.caveats)


def test_it_is_one_finding_and_not_another_rules_as_well() -> None:
    for row in (strided(1, lda=4618), strided(1, kernel=cutlass(4))):
        assert check(row).state == "found"
        assert AlignDimensions().check(facts(row)).state == "passed"


@pytest.mark.parametrize(
    "row",
    [
        strided(1, lda=4618, kernel=NVJET),  # loads 16 bytes all the same
        strided(1, lda=4624, kernel=NVJET),
        gemm(1, 4096, 4095, 4096, kernel=cutlass(1)),  # a size off the grid: another rule's
        strided(1, lda=4618, component="optimizer"),
    ],
    ids=["full loads", "on the grid", "a size", "optimizer"],
)
def test_what_is_no_misaligned_view(row: GemmRow, said: Listener) -> None:
    says_why(check(row, gemm(2, 4096, 4096, 4096)), "passed", said)


def test_without_a_prediction_it_is_a_bound() -> None:
    (finding,) = check(strided(1, lda=4618), predict=False).findings
    assert finding.saving_ms.mid is None and finding.basis == "heuristic"


def test_little_that_is_good_does_not_make_the_step_good(said: Listener) -> None:
    dumb = gemm(2, 4096, 4096, 4096, kernel="unnamed", time_us=300.0)
    good = gemm(1, 4096, 4096, 4096, kernel=NVJET, time_us=100.0)
    says_why(check(good, dumb), "could_not_run", said)
    assert check(good, replace(dumb, time_ms_per_step=0.05)).state == "passed"
    assert check(strided(1, lda=4618), dumb).state == "found"


def test_what_cannot_be_judged(said: Listener) -> None:
    bare = gemm(1, None, None, None, kernel="unnamed", dtype=None)
    says_why(check(bare), "could_not_run", said)
    assert check(strided(1, component="optimizer")).state == "not_applicable"
    assert check().state == "not_applicable"
