"""The examples in the docstrings of both rooms hold."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = [
    "tracelens.gemm.attention_shapes",
    "tracelens.gemm.bounds",
    "tracelens.gemm.dtypes",
    "tracelens.gemm.efficiency",
    "tracelens.gemm.flops",
    "tracelens.gemm.gain",
    "tracelens.gemm.kernel_names",
    "tracelens.gemm.ladder",
    "tracelens.gemm.padding",
    "tracelens.gemm.predict.attention",
    "tracelens.gemm.predict.attention_backend",
    "tracelens.gemm.predict.attention_kernels",
    "tracelens.gemm.predict.attention_rates",
    "tracelens.gemm.predict.attention_terms",
    "tracelens.gemm.predict.attention_work",
    "tracelens.gemm.predict.cost",
    "tracelens.gemm.predict.derivation",
    "tracelens.gemm.predict.gemm",
    "tracelens.gemm.shapes",
    "tracelens.gemm.spelling",
    "tracelens.gemm.study",
    "tracelens.gemm.user_kernels",
    "tracelens.hardware.gpu",
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0 and result.failed == 0
