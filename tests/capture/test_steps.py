"""Where a training step ends."""

from __future__ import annotations

from tracelens.capture.steps import BLIND, STALE, StepFinder


def ends(script: str) -> tuple[str, list[int], StepFinder]:
    """Play a script: b is a backward pass, any other letter an optimizer that steps.

    Returns the script with | where a step ended, and the backward passes of each step.
    """
    out: list[str] = []
    passes: list[int] = []

    def ended(count: int, skipped: bool) -> None:
        out.append("|")
        passes.append(count)

    finder = StepFinder(ended)
    for event in script:
        if event == "b":
            finder.backward_begins()
        out.append(event)
        if event == "b":
            finder.backward_ends()
        else:
            finder.optimizer_stepped(event)
    return "".join(out), passes, finder


def test_one_optimizer() -> None:
    assert ends("bAbAbA")[0] == "bA|bA|bA|"


def test_gradient_accumulation_is_several_passes_in_one_step() -> None:
    text, passes, _ = ends("bbbAbbbA")
    assert text == "bbbA|bbbA|"
    assert passes == [3, 3]


def test_optimizers_in_a_row_are_one_step_from_the_second_on() -> None:
    assert ends("bABCbABCbABC")[0] == "bA|BCbABC|bABC|"


def test_the_same_optimizer_several_times_in_a_row_is_one_step() -> None:
    assert ends("bAAbAAbAA")[0] == "bA|AbAA|bAA|"


def test_the_two_halves_of_a_gan_are_one_step() -> None:
    assert ends("bDbGbDbGbDbG")[0] == "bD|bG|bDbG|bDbG|"


def test_five_steps_of_one_half_for_each_of_the_other() -> None:
    assert ends("bDbDbDbG" * 3)[0].endswith("bDbDbDbG|" * 2)


def test_a_step_that_the_scaler_skips_is_a_step() -> None:
    skipped = []
    finder = StepFinder(lambda passes, skip: skipped.append(skip))
    for skip in (False, True, False):
        finder.backward_begins()
        finder.backward_ends()
        finder.optimizer_stepped("A", skipped=skip)
    assert skipped == [False, True, False]


def test_a_shorter_burst_is_learned() -> None:
    assert ends("bAABBbAABB"[0:1] + "AABB" + "bAABB" + "bA" * 4)[0].endswith("bA|bA|bA|")


def test_optimizers_within_the_backward_end_the_step_with_it() -> None:
    ended: list[int] = []
    finder = StepFinder(lambda passes, skip: ended.append(passes))
    for _ in range(3):
        finder.backward_begins()
        for parameter in range(5):
            finder.optimizer_stepped(parameter)
        assert len(ended) < 3  # not from inside autograd
        finder.backward_ends()
    assert ended == [1, 1, 1]


def test_backward_within_backward_and_autograd_grad_are_no_passes() -> None:
    ended: list[int] = []
    finder = StepFinder(lambda passes, skip: ended.append(passes))
    for _ in range(2):
        finder.backward_begins()
        finder.backward_begins()
        finder.backward_ends()
        finder.backward_ends()
        finder.backward_begins()
        finder.backward_ends(counts=False)
        finder.optimizer_stepped("A")
    assert ended == [1, 1]


def test_without_any_optimizer_each_pass_becomes_a_step() -> None:
    text, _, finder = ends("b" * (BLIND + 2))
    assert text == "b" * BLIND + "|b|b|"
    assert finder.source == "backward"


def test_an_optimizer_that_is_over_does_not_stop_the_steps() -> None:
    text, _, _ = ends("bDbG" * 2 + "bD" * (STALE + 8))
    assert text.endswith("bD|bD|bD|")
