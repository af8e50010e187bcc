"""The example in the docstring of the diff holds."""

import doctest

from tracelens.config import diff


def test_docstring_examples() -> None:
    result = doctest.testmod(diff)
    assert result.attempted and not result.failed
