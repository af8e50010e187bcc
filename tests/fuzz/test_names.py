"""Every pattern takes linear time on any name."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tests.effort import unit
from tracelens.attribution import kernels, names
from tracelens.gemm import attention_rules, gemm_rules
from tracelens.trace import links, steps

LETTERS = 100_000
#: Units of work for all names of a table. Linear patterns take a tenth; a quadratic one ten for one name.
MOST = 50


def hostile(pattern: re.Pattern[str]) -> Iterator[str]:
    """Names made of the pattern's own words, again and again, and not ending as it wants."""
    parts = re.sub(r"\\.|\?P<\w+>", "~", pattern.pattern)
    for word in {*re.findall(r"[A-Za-z_:<#]{2,}", parts), "_1", "a", "x::"}:
        yield (word * LETTERS)[:LETTERS] + "!"


#: As they are asked: operators by their whole name, all others anywhere in it.
TABLES = {
    "operators": [pattern for _, pattern in names._COMPILED_OPS],
    "elements": [pattern for _, pattern in names._COMPILED_ELEMENTS],
    "kernels": [pattern for _, pattern in kernels._COMPILED_KERNELS],
    "texts": [names._COUNTER, names._LAYER_TEXT, links._TELLING_FRAME],
    "steps": [steps._STEP, steps._SERVED, steps._NAMED, steps._WITHIN],
    "gemm": [rule.pattern for rule in gemm_rules.GEMM_RULES],
    "other": [gemm_rules.NOT_GEMM, gemm_rules.CONVOLUTION],
    "functions": [kernels._FUNCTION, kernels._TRITON_SUFFIX],
    "attention": [rule.pattern for rule in attention_rules.ATTENTION_RULES],
}


@pytest.fixture(scope="module")
def most_s() -> float:
    return MOST * unit()


@pytest.mark.parametrize("table", TABLES)
def test_linear_on_names_of_100_kb(table: str, most_s: float) -> None:
    begun = time.process_time()
    for pattern in TABLES[table]:
        for name in hostile(pattern):
            pattern.fullmatch(name) if table == "operators" else pattern.search(name)
            assert time.process_time() - begun < most_s, f"{pattern.pattern[:60]} on {name[:40]}..."
