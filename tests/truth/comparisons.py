"""Everything a user reads of one comparison, of two files or two folders, and what none may say."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum
from pathlib import Path
from typing import Any

from rich.console import Console

from tests import kept
from tests.truth.invariants import TEXT_CHECKS, said_per_step
from tests.truth.outputs import WIDTH, seen_text
from tracelens.api import compare
from tracelens.comparison.step_change import PRACTICAL
from tracelens.render.compare_html import render_compare_html
from tracelens.render.compare_markdown import render_markdown
from tracelens.render.compare_terminal import render_compare
from tracelens.results.comparison import Comparison
from tracelens.results.folders import FolderComparison
from tracelens.results.json import compare_json

_SUM = 1e-6


@dataclass(frozen=True)
class ComparedOutputs:
    """What is written about one comparison."""

    result: Comparison | FolderComparison

    @cached_property
    def terminal(self) -> str:
        file = io.StringIO()
        console = Console(file=file, width=WIDTH)
        render_compare(self.result, console=console)
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

    @cached_property
    def page(self) -> str:
        return render_compare_html(self.result)

    @cached_property
    def markdown(self) -> str:
        return render_markdown(self.result)

    @cached_property
    def json(self) -> Any:
        return json.loads(compare_json(self.result))

    @property
    def texts(self) -> dict[str, str]:
        return {"terminal": self.terminal, "page": seen_text(self.page), "markdown": self.markdown}

    @property
    def rows(self) -> set[str]:
        """GEMM rows have no ids of their own in a comparison."""
        return set()


def compared(before: Path, after: Path) -> ComparedOutputs:
    if before.is_dir():
        return ComparedOutputs(kept.compared(before, after))
    return ComparedOutputs(compare(before, after))


def causes_add_up(out: ComparedOutputs) -> Iterator[str]:
    """The causes are the step's difference, all of it."""
    step = out.result.step
    if step is not None and step.state != "identical":
        told = fsum(one.diff_ms for one in out.result.causes)
        if abs(told - step.diff_ms) > _SUM * max(1.0, step.before.median):
            yield f"causes add up to {told} of {step.diff_ms} ms"


def verdict_says_what_was_measured(out: ComparedOutputs) -> Iterator[str]:
    """Direction and certainty of the headline are those of the times and their test."""
    step = out.result.step
    if step is None:
        return
    named = {"faster": step.diff_ms < 0, "slower": step.diff_ms > 0}
    if not named.get(step.state, True):
        yield f"{step.state}, and {step.diff_ms} ms"
    most = max(abs(step.shift_low_ms), abs(step.shift_high_ms))
    if step.state == "no_change" and most > PRACTICAL * step.before.median * (1 + _SUM):
        yield f"no change, and {most} ms are not excluded"
    if step.state == "identical" and out.result.before.steps_ms != out.result.after.steps_ms:
        yield "identical, and the times are others"


def bounds_are_bounds(out: ComparedOutputs) -> Iterator[str]:
    """A share of known kernels is written as the lower bound that it is."""
    for side in (out.result.before, out.result.after):
        if side.mfu_is_bound and side.mfu_frac is not None and "≥" not in out.terminal:
            yield "MFU without its bound"
        if not side.steps_marked:
            for name, text in out.texts.items():
                yield from (f"{name}: {found[0]!r} where no step is marked" for found in said_per_step(text))


def shares_are_possible(out: ComparedOutputs) -> Iterator[str]:
    """No share above one, and no rate above the peak."""
    for name in ("gpu_busy_frac", "gemm_frac", "mfu_frac"):
        for side in (out.result.before, out.result.after):
            value = getattr(side, name)
            if value is not None and not 0 <= value <= 1 + _SUM:
                yield f"{name} {value}"


CHECKS: tuple[Callable[[ComparedOutputs], Iterator[str]], ...] = (
    *TEXT_CHECKS, causes_add_up, verdict_says_what_was_measured, bounds_are_bounds, shares_are_possible,
)  # fmt: skip


def faults(out: ComparedOutputs) -> list[str]:
    """Every fault of every output of a comparison, with the check that found it."""
    return [f"{check.__name__}: {fault}" for check in CHECKS for fault in check(out)]


def with_step(out: ComparedOutputs, **fields: Any) -> ComparedOutputs:
    """The same comparison with another step."""
    assert out.result.step is not None
    return ComparedOutputs(replace(out.result, step=replace(out.result.step, **fields)))
