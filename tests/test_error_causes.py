"""An error's one line is its cause and what to do; who needs the cause alone is given it."""

from __future__ import annotations

import pickle

import pytest

from tracelens.config.model_config import ModelConfig, changed
from tracelens.errors import InputError, UsageError


def test_a_cause_stands_without_its_remedy() -> None:
    with pytest.raises(UsageError) as raised:
        changed(ModelConfig(hidden=64), {"ffn": 256})
    assert raised.value.cause and str(raised.value).startswith(f"{raised.value.cause}; ")


def test_an_error_of_one_part_is_its_cause() -> None:
    error = InputError("the file is empty")
    assert error.cause == str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
