"""Advice to a model that only runs is not advice to one that trains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice.advice_facts import step_of
from tests.advice.test_advice_tensor_cores import fp32
from tests.render import sample_report
from tracelens.rules.advise import advise
from tracelens.rules.engine.effects import effects_of


@pytest.mark.parametrize("effort", ["config", "code", "retrain"])
def test_what_a_change_takes_depends_on_whether_the_step_trains(effort: str) -> None:
    runs = step_of([fp32(1)], step_ms=20.0)
    trains = step_of([fp32(1), replace(fp32(2), role="wgrad", phase="backward")], step_ms=20.0)
    assert not runs.trains and trains.trains
    assert effects_of(runs, {}, effort=effort).needs != effects_of(trains, {}, effort=effort).needs
    assert "training run" not in effects_of(runs, {}, effort=effort).needs
    assert runs.new_model != trains.new_model


def test_an_optimizer_alone_is_training_too() -> None:
    row = replace(sample_report.full().components[0], phase="optimizer")
    assert replace(step_of([fp32(1)], step_ms=20.0), components=[row]).trains


def test_nothing_is_told_to_train_where_nothing_trains() -> None:
    for finding in advise(step_of([fp32(1)], step_ms=20.0)).findings:
        said = " ".join([finding.title, *finding.caveats, *finding.fix]).lower()
        assert "train in" not in said and "gradscaler" not in said and "loss curve" not in said
