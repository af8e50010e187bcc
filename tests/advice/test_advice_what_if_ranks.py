"""Other numbers of ranks: the same GPUs and tokens, messages that shrink, and what stays unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice.advice_answers import saved
from tests.advice.advice_messages import message
from tests.advice.advice_steps import Shape, dims_of, model_of, rows_of, spread
from tests.said import Listener
from tracelens.config.changes import parse_changes
from tracelens.config.model_config import ModelConfig, changed
from tracelens.errors import UsageError
from tracelens.results import Estimate, WhatIf
from tracelens.step.exchange import bubble, exchange_of, vocab_is_split
from tracelens.step.explorer import explore
from tracelens.step.traced_step import StepModel
from tracelens.step.whatif import scenario, what_if

LLAMA = Shape(4096, 32, 14336, v=32064, kv=8, gated=True, b=2, t=4)
TOKENS = LLAMA.b * LLAMA.s
#: 16-bit activations, as every message of the layers is.
ACTIVATION = 2.0 * TOKENS * LLAMA.h
#: What a loss over a split vocabulary sums: one fp32 value of each token.
SUMS = 4.0 * TOKENS


def step_of(*rows: float | None, x: Shape = LLAMA, **more: object) -> StepModel:
    """Messages of these sizes among the tensor-parallel ranks."""
    sent = [message(bytes_per_call=size, group_size=x.t) for size in rows]
    return model_of(x, communication=sent, dims=spread(dims_of(x), pipeline_parallel=1), **more)  # type: ignore[arg-type]


# --- tensor parallel --------------------------------------------------------------------------------------


def test_fewer_ranks_are_judged_at_the_same_gpus_and_tokens(said: Listener) -> None:
    """A rank of two does twice the work of one of four, for half as many micro-batches."""
    one = what_if(step_of(ACTIVATION, SUMS), {"tensor_parallel": 2})
    up = next(row for row in one.rows if row.component == "mlp.up" and row.role == "forward")
    assert (up.shape_now, up.shape_then) == ("4096×3584×4096", "4096×7168×4096")
    assert up.then_ms.mid is not None and up.then_ms.mid == pytest.approx(up.time_ms, rel=0.2)
    assert one.flops_frac == pytest.approx(0.0, abs=1e-9)  # of a GPU: the same tokens, the same work
    said(up.how, one.notes)


def test_a_split_vocabulary_follows_the_ranks_and_a_whole_one_is_computed_by_each(said: Listener) -> None:
    split = what_if(step_of(ACTIVATION, SUMS), {"tensor_parallel": 2})
    whole = what_if(step_of(ACTIVATION), {"tensor_parallel": 2})

    def logits(one: WhatIf) -> str:
        return next(row.shape_then for row in one.rows if row.component == "logits" and row.role == "forward")

    assert "vocab" not in split.change and logits(split) == "4096×64128×4096"  # the model's is the same
    assert "vocab" not in whole.change and logits(whole) == "4096×32064×4096"
    assert saved(whole)[1] > saved(split)[1]  # half as many copies of the largest product
    said(whole.notes)


def test_a_padded_part_of_the_vocabulary_is_dealt_out_anew_with_the_ranks() -> None:
    """Two findings at once: pad the part of each of four ranks, and use two ranks."""
    one = what_if(step_of(ACTIVATION, SUMS), {"tensor_parallel": 2, "vocab": 32128})
    assert one.change["vocab"] == [32064, 2 * 32128]


@pytest.mark.parametrize(
    ("text", "change", "columns"),
    [
        ("vocab=128512", {"vocab": [128256, 128512]}, 32128),  # of four ranks, as the model's other sizes are
        ("vocab=128256", {}, 32064),
        ("vocab=128512,tp=2", {"vocab": [128256, 128512], "tensor_parallel": [4, 2]}, 64256),
    ],
)
def test_a_vocabulary_that_ranks_split_is_given_and_told_as_the_whole(
    text: str, change: dict[str, list[int]], columns: int
) -> None:
    one = scenario(step_of(ACTIVATION, SUMS), text)
    assert one.change == change
    logits = [row.shape_then for row in one.rows if row.component == "logits" and row.role == "forward"]
    assert logits == [f"4096×{columns}×4096"] * bool(change)
    whole = scenario(step_of(ACTIVATION), text)  # each rank computes all of its logits
    assert change == {} or whole.change["vocab"] == [32064, int(text[6:12])]


def test_a_vocabulary_that_the_ranks_do_not_divide_is_refused(said: Listener) -> None:
    step = step_of(ACTIVATION, SUMS)
    for text in ("vocab=50257", "vocab=3", "vocab=0"):
        with pytest.raises(UsageError) as error:
            scenario(step, text)
        said(error.value)


def test_the_curve_of_a_split_vocabulary_is_of_the_whole() -> None:
    found = {one.parameter: one for one in explore(step_of(ACTIVATION, SUMS), []).curves}["vocab"]
    assert found.now == 4 * 32064 and found.now in found.values
    assert all(value % 4 == 0 for value in found.values)


def test_without_a_word_about_the_vocabulary_its_time_is_a_gap(said: Listener) -> None:
    one = what_if(step_of(None, others={"loss": 5.0}), {"tensor_parallel": 2})
    logits = [row for row in rows_of(LLAMA) if row.component == "logits"]
    assert one.unpredicted_ms == pytest.approx(5.0 + sum(row.time_ms_per_step for row in logits))
    assert one.saving_ms.mid is None
    assert all(part.component != "loss" for part in one.rest)
    said(one.notes[0])


def test_messages_shrink_as_their_share_that_leaves_a_rank() -> None:
    """(n-1)/n of each message leaves the rank, in half as many micro-batches; one rank sends nothing."""
    step = step_of(ACTIVATION, SUMS)
    sent = sum(row.exposed_ms_per_step for row in step.communication)
    for ranks, share in ((2, (1 / 2) / (3 / 4) / 2), (1, 0.0)):
        one = what_if(step, {"tensor_parallel": ranks})
        (part,) = [part for part in one.rest if part.scales_with.startswith("exposed messages")]
        assert part.time_ms == pytest.approx(sent)
        assert part.then_ms.mid == pytest.approx(share * sent)
        assert part.then_ms.high == pytest.approx(sent * ranks / 4 if ranks > 1 else 0.0)
        low, mid, high = saved(one)
        assert low <= mid <= high


def test_new_copies_of_the_model_exchange_gradients_over_the_links_that_were_measured() -> None:
    one = what_if(step_of(ACTIVATION, SUMS), {"tensor_parallel": 2})
    (part,) = [part for part in one.rest if part.scales_with.startswith("gradients of a rank")]
    then = replace(step_of(ACTIVATION, SUMS).now, tensor_parallel=2, vocab=64128)
    weights = then.rank_parameters
    assert weights is not None
    # Two copies: 2 * (2-1)/2 of 2 bytes a weight, at the 200 GB/s of the ranks' own messages.
    assert part.then_ms.mid == pytest.approx(weights * 2 / 200e9 * 1e3)
    assert (part.then_ms.low, part.time_ms) == (0.0, 0.0)


def test_gradients_that_are_exchanged_now_grow_with_the_weights_of_a_rank() -> None:
    gradients = message("reduce_scatter", purpose="data-parallel gradients", group="dp", group_size=8,
                        phase="backward", exposed=3.0)  # fmt: skip
    now = ModelConfig(hidden=4096, heads=32, head_dim=128, ffn=14336, layers=32, tensor_parallel=4,
                sequence=2048, micro_batch=2)  # fmt: skip
    found = exchange_of([message(), gradients], now, replace(now, tensor_parallel=2))
    part = next(one for one in found.rest if one.phase == "backward")
    assert part.time_ms == 3.0
    assert part.then_ms.low == 3.0 and part.then_ms.mid == pytest.approx(6.0)


def test_more_ranks_have_links_that_nobody_measured(said: Listener) -> None:
    one = what_if(step_of(ACTIVATION, SUMS), {"tensor_parallel": 8})
    assert one.saving_ms == Estimate(None, None, None, "model")
    # Exposed 8 ms, twice as many micro-batches, 7/8 of a message where it was 3/4.
    assert any("× 2·(8-1)/8 ×" in note for note in one.notes)
    said(one.notes[0])
    first = what_if(model_of(replace(LLAMA, t=1)), {"tensor_parallel": 2})
    said(first.notes[0])


def test_messages_that_serve_something_unknown_are_not_taken_for_the_ranks(said: Listener) -> None:
    step = replace(
        step_of(ACTIVATION, SUMS), communication=(message(purpose="unknown", bytes_per_call=ACTIVATION),)
    )
    one = what_if(step, {"tensor_parallel": 2})
    assert one.saving_ms.mid is None
    said(one.notes[0])


@pytest.mark.parametrize(
    ("sizes", "declared", "split"),
    [
        ([ACTIVATION], None, False),
        ([ACTIVATION, SUMS], None, True),
        ([ACTIVATION, 2.0 * TOKENS * 4 * LLAMA.v], None, True),  # the logits gathered
        ([ACTIVATION, None], None, None),
        ([ACTIVATION, 12345.0], None, None),
        ([], None, None),
        ([], 128256, True),  # the configuration's vocabulary is the ranks' parts together
        ([], 32000, False),
        ([ACTIVATION], 777777, None),
    ],
)
def test_who_holds_the_vocabulary(
    sizes: list[float | None], declared: int | None, split: bool | None
) -> None:
    rows = [message(bytes_per_call=size) for size in sizes]
    assert vocab_is_split(rows, dims_of(LLAMA), tokens=TOKENS, declared=declared) is split


# --- pipeline ---------------------------------------------------------------------------------------------


def pipelined(stages: int | None, layers: int = 8) -> StepModel:
    """Rows of 32 layers are four micro-batches of the 8 that this stage has."""
    x = replace(LLAMA, t=1, layers=32)
    dims = spread(dims_of(x), pipeline_parallel=stages, layers=layers)
    return model_of(x, dims=dims, communication=[message("send/recv", purpose="pipeline")])


def test_the_layers_of_a_stage_are_a_part_of_the_model() -> None:
    now = pipelined(4).now
    assert (now.layers, now.stage_layers, now.micro_batches) == (32, 8, 4)
    assert now.parameters is not None and now.rank_parameters is not None
    logits = 32064 * 4096
    assert now.rank_parameters - logits == pytest.approx((now.parameters - logits) / 4)


def test_the_configuration_s_layers_go_before_a_guess_from_one_stage() -> None:
    x = replace(LLAMA, t=1, layers=32)
    dims = spread(dims_of(x), pipeline_parallel=4, layers=8)
    assert model_of(x, dims=dims, declared={"layers": 30}).now.layers == 30
    assert model_of(x, dims=dims, declared={"layers": 2}).now.layers == 32  # less than this stage has


def test_another_pipeline_has_no_saving_and_says_its_bubble(said: Listener) -> None:
    one = what_if(pipelined(4), {"pipeline_parallel": 8})
    assert one.saving_ms.mid is None and one.then_ms.mid is None
    assert one.refused is not None and one.refused.code == "stages_wait"
    (bubble,) = [note for note in one.notes if "bubble" in note]
    assert "(8 - 1) / 8 = 87.5%, now (4 - 1) / 4 = 75.0%" in bubble
    # At the same tokens a rank runs half the layers of each micro-batch, for twice as many.
    assert {row.component for row in one.rows} == {"logits"}
    said(one.notes)


def test_layers_that_stages_do_not_divide_wait_for_the_longest(said: Listener) -> None:
    one = what_if(pipelined(4), {"layers": 34})
    said(one.notes)
    up = next(row for row in one.rows if row.component == "mlp.up")
    said(up.how)  # 9 layers and not 8
    with pytest.raises(UsageError) as error:
        what_if(pipelined(4), {"pipeline_parallel": 64})
    said(error.value)


def test_a_pipeline_that_is_not_known_says_what_would_show_it(said: Listener) -> None:
    with pytest.raises(UsageError) as error:
        changed(pipelined(None).now, {"pipeline_parallel": 2})
    said(error.value)


def test_ranks_are_read_in_the_words_of_every_framework() -> None:
    text = "pp=2,tensor_model_parallel_size=4,ep=8"
    assert parse_changes([text]) == {"pipeline_parallel": 2, "tensor_parallel": 4, "expert_parallel": 8}


# --- what is not known of an exchange ---------------------------------------------------------------------


NOW = ModelConfig(hidden=4096, heads=32, head_dim=128, ffn=14336, layers=32, tensor_parallel=4,
                  sequence=2048, micro_batch=2)  # fmt: skip
FEWER = replace(NOW, tensor_parallel=2)


def test_exposed_messages_of_unknown_purpose_stay_and_are_said(said: Listener) -> None:
    found = exchange_of([message(), message(purpose="unknown", exposed=2.0)], NOW, FEWER)
    assert not any("unknown purpose" in note for note in exchange_of([message()], NOW, FEWER).notes)
    said(found.notes)


def test_messages_that_are_hidden_cost_nothing_then_as_now(said: Listener) -> None:
    hidden = exchange_of([message(exposed=0.0)], NOW, FEWER)
    assert len(hidden.rest) == 1
    said(hidden.rest[0].scales_with)


def test_without_the_weights_of_a_rank_gradients_are_not_known(said: Listener) -> None:
    blank = replace(NOW, layers=None)
    found = exchange_of([message()], blank, replace(blank, tensor_parallel=2))
    assert found.unknown is not None
    said(found.unknown)


def test_without_a_measured_link_the_gradients_of_new_copies_are_not_known(said: Listener) -> None:
    found = exchange_of([message(bus_gbps=None)], NOW, FEWER)
    assert found.unknown is not None
    said(found.unknown)


def test_messages_of_unknown_size_shrink_as_what_leaves_a_rank_alone() -> None:
    """8 ms of half as many micro-batches, of which half of a message leaves and not three quarters."""
    blank = replace(NOW, hidden=None)
    found = exchange_of([message(exposed=8.0)], blank, replace(blank, tensor_parallel=2))
    assert found.unknown is not None  # what a rank weighs is not known, either
    sized = exchange_of([message(exposed=9.0)], NOW, FEWER).rest[0]
    assert sized.then_ms.mid == pytest.approx(9.0 / 2 * (1 / 2) / (3 / 4))


def test_ranks_whose_messages_are_hidden_tell_nothing_of_more_of_them(said: Listener) -> None:
    found = exchange_of([message(exposed=0.0)], NOW, replace(NOW, tensor_parallel=8))
    assert found.unknown is not None
    said(found.unknown)


def test_one_stage_has_no_bubble_and_unknown_micro_batches_none_that_is_known(said: Listener) -> None:
    staged = replace(NOW, tensor_parallel=1, pipeline_parallel=4, micro_batches=8)
    said(bubble(staged, replace(staged, pipeline_parallel=1), work_ms=10.0))
    unknown = replace(staged, micro_batches=None)
    text = bubble(unknown, replace(unknown, pipeline_parallel=2), work_ms=10.0)
    said(text)
    # twice the micro-batches for half the stages: 1 of 4
    told = bubble(staged, replace(staged, pipeline_parallel=2), work_ms=10.0)
    assert "work" not in bubble(staged, replace(staged, pipeline_parallel=2), work_ms=None).partition("=")[2]
    said(told)
