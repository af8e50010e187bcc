"""Which ranges mark the steps where PyTorch's profiler was not told of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trace.test_links import range_, read_and_link
from tests.trace.tools import kernel, launch

PREFILL, DECODE = "execute_context_1(512)_generation_0(0)", "execute_context_0(0)_generation_2(2)"


def _loop(folder: Path, *names: str, held: int = 3, behind: int = 0) -> tuple[list[int] | None, list[int]]:
    """Ranges of 100 us, 100 us apart; launches in each, and ``behind`` it.

    Returns the numbers of the steps, if any, and which of them each kernel belongs to.
    """
    events, at = [], 0
    for place, name in enumerate(names):
        begin = 1000 + 200 * place
        events.append(range_(name, ts=begin, dur=100))
        for ts in [*(begin + 1 + n for n in range(held)), *(begin + 150 + n for n in range(behind))]:
            at += 1
            events += [launch(at, ts=ts), kernel(ts=ts + 5, dur=2, correlation=at)]
    _, links = read_and_link(folder, events)
    return links.steps.index if links.steps.marked else None, links.kernel_step.tolist()


@pytest.mark.parametrize(
    "names",
    [
        ("training_step",),
        ("train_step 7", "train_step 8"),
        ("iteration_0", "iteration_1", "iteration_2"),
        ("step[EXTEND bs=1 toks=107]", "step[DECODE bs=1]"),
        (PREFILL, DECODE, DECODE),
        ("model_inference", "model_inference"),
    ],
)
def test_ranges_that_hold_the_work_of_a_loop_are_its_steps(tmp_path: Path, names: tuple[str, ...]) -> None:
    index = [*range(len(names))]
    assert _loop(tmp_path, *names) == (index, sorted(3 * index))


@pytest.mark.parametrize(
    "names",
    [
        ("optimizer_step", "optimizer_step"),  # as Lightning and transformers name it
        ("CustomAdam.step",),
        ("attention", "attention"),
        ("decoder_layer", "decoder_layer"),
        ("## Call CompiledFxGraph fabc ##", "## Call CompiledFxGraph fabc ##"),  # one for all layers
        ("run 0", "run 1"),
        ("nccl:all_reduce", "nccl:all_reduce"),
        ("model_inference",),
        ("timestep_embedding", "timestep_embedding"),
    ],
)
def test_a_range_of_another_name_is_no_step(tmp_path: Path, names: tuple[str, ...]) -> None:
    assert _loop(tmp_path, *names)[0] is None


def test_a_range_that_holds_a_part_of_the_work_is_no_step(tmp_path: Path) -> None:
    """Lightning's training_step is the forward alone."""
    assert _loop(tmp_path, "training_step", "training_step", behind=1)[0] is None


def test_what_is_repeated_with_other_work_is_no_step(tmp_path: Path) -> None:
    """A graph that is captured again in every other repetition: 4 launches, then 3."""
    events = [range_("timed region", ts=1000 + 200 * at, dur=100) for at in range(2)]
    for number, ts in enumerate((1001, 1002, 1003, 1004, 1201, 1202, 1203)):
        events += [launch(number, ts=ts), kernel(ts=ts + 5, dur=2, correlation=number)]
    assert not read_and_link(tmp_path, events)[1].steps.marked
    assert read_and_link(tmp_path, [*events[:4], *events[6:]])[1].steps.by == "timed region"


def _micro_batches(*around: dict[str, Any]) -> list[dict[str, Any]]:
    """Two steps of two micro-batches, which launch 49 of every 50 kernels; the optimizer launches one."""
    events = [*around]
    for step in range(2):
        first, last = 1000 + 1000 * step, 1800 + 1000 * step
        events += [range_(f"micro_step {at}", ts=first + 200 * at, dur=150) for at in range(2)]
        events.append(range_("Optimizer.step#AdamW.step", ts=last, dur=50))
        for ts in (*(first + 200 * at + 1 + n for at in range(2) for n in range(49)), last + 1, last + 2):
            number = len(events)
            events += [launch(number, ts=ts), kernel(ts=ts + 5, dur=2, correlation=number)]
    return events


def test_a_micro_batch_is_no_step(tmp_path: Path) -> None:
    steps = read_and_link(tmp_path, _micro_batches())[1].steps
    assert (steps.index, steps.by) == ([0, 1], "Optimizer.step#AdamW.step")
    assert steps.start_ns.tolist() == [
        1_001_000,
        1_850_000,
    ]  # from the first launch, and from update to update
    assert steps.end_ns.tolist() == [1_850_000, 2_850_000]


def test_of_a_range_around_all_and_those_in_it_the_several_are_steps(tmp_path: Path) -> None:
    around = range_("train_step", ts=990, dur=900)
    events = [around, *(range_(f"iteration_{at}", ts=1000 + 200 * at, dur=100) for at in range(2))]
    for number, ts in enumerate((1001, 1002, 1201)):
        events += [launch(number, ts=ts), kernel(ts=ts + 5, dur=2, correlation=number)]
    steps = read_and_link(tmp_path, events)[1].steps
    assert (steps.index, steps.by) == ([0, 1], "iteration_0")


def test_a_step_of_micro_batches_is_the_step(tmp_path: Path) -> None:
    around = [range_("train_step", ts=990 + 1000 * at, dur=950) for at in range(2)]
    steps = read_and_link(tmp_path, _micro_batches(*around))[1].steps
    assert (steps.index, steps.by) == ([0, 1], "train_step")


def test_a_part_of_each_step_with_nearly_all_its_work_is_no_step(tmp_path: Path) -> None:
    """Without an optimizer of PyTorch's own the range that holds more tells."""
    around = [range_("train_step", ts=990 + 1000 * at, dur=950) for at in range(2)]
    events = [one for one in _micro_batches(*around) if not one["name"].startswith("Optimizer")]
    assert read_and_link(tmp_path, events)[1].steps.by == "train_step"


def test_what_a_server_samples_behind_a_batch_is_of_it(tmp_path: Path) -> None:
    """vllm v1/worker/gpu_worker.py: sample_tokens runs outside the range of execute_model."""
    assert _loop(tmp_path, PREFILL, DECODE, behind=1)[1] == [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    "name",
    [
        "vllm/v1/worker/gpu_worker.py(258): execute_model",
        "/opt/python/vllm/worker/worker_base.py(378): execute_model",
        "sglang/srt/managers/tp_worker.py(202): forward_batch_generation",
    ],
)
def test_frames_of_an_engine_that_marks_no_batch_are_its_steps(tmp_path: Path, name: str) -> None:
    """A public recording of vLLM 0.8: a prompt's batch of 160 ms and nine of 45 ms were one of 617 ms."""
    events = []
    for at in range(2):
        frame = range_(name, ts=1000 * at, dur=500) | {"cat": "python_function"}
        events += [frame, launch(at + 1, ts=1000 * at + 9), kernel(ts=1000 * at + 99, correlation=at + 1)]
    _, links = read_and_link(tmp_path, events)
    assert (links.steps.index, links.steps.by, links.kernel_step.tolist()) == ([0, 1], name, [0, 1])


def test_a_batch_of_no_request_is_no_step(tmp_path: Path) -> None:
    """vllm calls execute_model with nothing scheduled, too."""
    idle = range_("execute_context_0(0)_generation_0(0)", ts=1500, dur=50)
    events = [range_(DECODE, ts=1000, dur=400), launch(1, ts=1100), kernel(ts=1200, correlation=1), idle]
    _, links = read_and_link(tmp_path, events)
    assert links.steps.marked and links.steps.index == [0]


def _updates(folder: Path, held: list[int], names: tuple[str, ...] = ("SGD",)) -> tuple[list[int], list[int]]:
    """Steps of 1 ms that launch as many kernels as ``held`` says, each with an update at its end."""
    events, count = [], 0
    for at, many in enumerate(held):
        for ts in range(1000 * at + 100, 1000 * at + 100 + many):
            count += 1
            events += [launch(count, ts=ts), kernel(ts=ts + 5, dur=1, correlation=count)]
        for place, name in enumerate(names):
            update = f"Optimizer.step#{name}.step"
            events.append(range_(update, ts=1000 * at + 800 + 50 * place, dur=50))
    _, links = read_and_link(folder, events)
    steps = links.steps
    return steps.index if steps.marked else [], (steps.end_ns // 1000 % 1000).tolist()


@pytest.mark.parametrize(
    ("held", "steps"),
    [
        ([20, 20, 20], 3),
        ([27, 20, 20, 20], 3),  # the first warms up
        ([20, 20], 2),
        ([27, 20], 0),  # a part of a step and another: nothing says what is whole
        ([20, 40, 20, 40], 0),  # a generator and its critic
        ([20], 0),
    ],
)
def test_updates_end_steps_where_nothing_marks_any(tmp_path: Path, held: list[int], steps: int) -> None:
    """torch.optim names each of its updates, whoever records."""
    assert _updates(tmp_path, held)[0] == [*range(steps)]


def test_an_update_in_which_the_recording_ends_ends_no_step(tmp_path: Path) -> None:
    """A public recording has four updates of 0.16 ms, and a fifth that lasts 0."""
    events = [range_("Optimizer.step#SGD.step", ts=1000 * at + 800, dur=50 * (at < 3)) for at in range(4)]
    for at in range(1, 4):
        events += [launch(at, ts=1000 * at - 500), kernel(ts=1000 * at - 400, correlation=at)]
    assert read_and_link(tmp_path, events)[1].steps.index == [0, 1, 2]


def test_the_last_of_several_optimizers_ends_a_step(tmp_path: Path) -> None:
    assert _updates(tmp_path, [9, 9, 9], ("Muon", "AdamW")) == ([0, 1, 2], [900, 900, 900])


def test_the_profilers_own_steps_come_first(tmp_path: Path) -> None:
    steps = [range_(f"ProfilerStep#{n}", ts=1000 * n, dur=900) for n in (4, 5)]
    inside = [range_("train_step", ts=1000 * n + 10, dur=800) for n in (4, 5)]
    work = [launch(1, ts=4100), kernel(ts=4200, correlation=1)]
    _, links = read_and_link(tmp_path, [*steps, *inside, *work])
    assert links.steps.index == [4, 5] and links.steps.by == ""
