"""Which calls and layers a change moves, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.measure.verify.rig import code, codes, read
from tracelens.config.model_config import ModelConfig
from tracelens.measure.cases import AttentionCase, GemmCase
from tracelens.measure.layer_shapes import LayerShape, StepShape
from tracelens.measure.verify import Source
from tracelens.measure.verify.plan import PlannedTrial, WholePair, make_trial
from tracelens.measure.verify.source import Asked
from tracelens.measure.verify.standin import StandIn, causal_of, stand_in, trace_layer_ms
from tracelens.results import Estimate
from tracelens.results.verified import Reason

NOTHING = Estimate(None, None, None, "model")


def asked(**changes: int) -> Asked:
    return Asked(("findings", 0), "TL000 a change", changes, "", NOTHING, NOTHING)


def planned(source: Source, *, model: bool = False, **changes: int) -> PlannedTrial:
    return make_trial(asked(**changes), source, stand_in(source), model=model)


def test_the_layer_is_the_models(source: Source) -> None:
    built = stand_in(source)
    assert built == StandIn("bf16", "flash", True, False, True, True, False, 1, ())
    assert built.layer(source.now) == LayerShape(1280, 20, 5120, sequence=1024, micro_batch=8)
    logits = built.layer(source.now, vocab=50257)
    assert isinstance(logits, LayerShape)
    assert next((one.m, one.n, one.k) for one in logits.gemms()) == (8192, 50257, 1280)


def test_the_traces_own_layer_is_near_what_its_products_take(source: Source) -> None:
    per_layer = trace_layer_ms(source, 1)
    rows = [row for row in source.rows if row.component.startswith(("attention.", "mlp."))]
    products = sum(row.time_ms_per_step for row in rows) / 12
    assert per_layer is not None
    assert products < per_layer < 1.5 * products


def test_a_vocabulary_moves_three_products_and_the_logits(source: Source) -> None:
    trial = planned(source, vocab=50304)
    assert [(one.role, one.gemm) for one in trial.calls] == [
        ("dgrad", "g1"),
        ("forward", "g2"),
        ("wgrad", "g3"),
    ]
    assert trial.calls[1].now == GemmCase("verify", 8192, 50257, 1280)
    assert trial.calls[1].then == GemmCase("verify", 8192, 50304, 1280)
    assert trial.calls[1].trace_us == pytest.approx(4049.9, rel=1e-3)
    (logits,) = trial.wholes
    assert (logits.what, logits.calls_now, logits.calls_then) == ("logits", 1, 1)
    assert trial.apart == ""


def test_heads_move_attention_and_no_product(source: Source) -> None:
    trial = planned(source, heads=10)
    assert all(isinstance(one.now, AttentionCase) for one in trial.calls)
    forward = next(one for one in trial.calls if one.role == "forward")
    assert forward.then == AttentionCase("verify", 8, 10, 1024, 128, 10, 1024)
    assert forward.calls_now == 12
    (layer,) = trial.wholes
    assert (layer.what, layer.calls_now) == ("layer", 12)


def test_fewer_layers_are_the_same_calls_less_often(source: Source) -> None:
    trial = planned(source, layers=10)
    assert all(one.now == one.then and (one.calls_now, one.calls_then) == (12, 10) for one in trial.calls)
    assert len(trial.calls) >= 14
    (layer,) = trial.wholes
    assert (layer.now == layer.then, layer.calls_now, layer.calls_then) == (True, 12, 10)


def test_tokens_move_everything(source: Source) -> None:
    trial = planned(source, micro_batch=16)
    assert [one.what for one in trial.wholes] == ["layer", "logits"]
    assert trial.scale == 0.5  # a finding's saving is per token


@pytest.mark.parametrize(
    ("place", "per_token", "changes", "scale"),
    [
        (("what_if", 0), False, {"micro_batch": 16}, 1.0),  # a scenario is of the step
        (("findings", 0), False, {"sequence": 2048}, 1.0),  # padding is worth nothing
        (("findings", 0), False, {"sequence": 512}, 2.0),
        (("picks", 0), True, {"sequence": 2048}, 0.5),
        (("findings", 0), False, {"heads": 10}, 1.0),
    ],
)
def test_what_is_measured_counts_for_the_tokens_that_the_prediction_counts(
    source: Source, place: tuple[str, int], per_token: bool, changes: dict[str, int], scale: float
) -> None:
    one = replace(asked(**changes), place=place, per_token=per_token)
    assert make_trial(one, source, stand_in(source)).scale == scale


def test_a_step_that_does_not_fit_is_said_although_its_layer_does(source: Source) -> None:
    assert "memory_grows" not in codes(planned(source, micro_batch=16).notes)
    (told,) = [one for one in planned(source, micro_batch=128).notes if one.code == "memory_grows"]
    assert told.values["gpu_gib"] == pytest.approx(79.2, abs=0.05)
    small = replace(source, memory_gib=1.0)  # the present estimate is too large: ranks share the weights
    assert "memory_grows" not in codes(planned(small, micro_batch=128).notes)


def test_a_small_step_is_four_layers_deep(source: Source) -> None:
    step = planned(source, model=True, vocab=50304).step
    assert isinstance(step, WholePair)
    assert isinstance(step.now, StepShape) and isinstance(step.then, StepShape)
    assert (step.now.layers, step.now.vocabulary, step.then.vocabulary) == (4, 50257, 50304)
    assert planned(source, vocab=50304).step == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"experts": 8}, "experts cannot be changed: its present value is not known"),
        ({"heads": 19}, "heads = 19 does not divide hidden = 1280"),
        ({"vocab": 50257}, "no_call_changes"),
    ],
)
def test_a_change_that_makes_no_sense_says_why(source: Source, changes: dict[str, int], why: str) -> None:
    assert why in code(make_trial(asked(**changes), source, stand_in(source)).why)


def test_a_finding_about_a_side_of_some_products_is_measured_by_those(source: Source) -> None:
    one = replace(asked(), gemms=("g2", "g3", "g5", "g14"), resize=(50257, 50264), why="not reached")
    trial = make_trial(one, source, stand_in(source))
    assert [pair.gemm for pair in trial.calls] == ["g2", "g3"]  # g5 has no such side, g14 is attention
    assert [pair.then for pair in trial.calls if pair.gemm == "g3"] == [
        GemmCase("verify", 50264, 1280, 8192, layout="NT")
    ]
    assert not trial.partial


def test_another_precision_is_measured_without_its_casts(source: Source) -> None:
    one = replace(asked(), gemms=("g2", "g1"), precision=("bf16", "fp8"))
    trial = make_trial(one, source, stand_in(source))
    then = [pair.then for pair in trial.calls]
    assert all(isinstance(case, GemmCase) and (case.dtype, case.layout) == ("fp8", "TN") for case in then)
    assert trial.partial
    assert codes(trial.notes) == ["casts"]


# --- layers that cannot be built, or that are not the trace's -----------------------------------------


def test_what_a_library_padded_is_not_measured_as_if_it_were_not(raw: dict[str, Any], tmp_path: Path) -> None:
    """Inductor pads the vocabulary: a plain layer with the odd one would show a saving that is not there."""
    for row in raw["gemms"]:
        if row["component"] == "logits":
            for side in "mnk":
                if row[side] == 50257:
                    row[side], row["padded_from"] = 50264, {side: 50257}
    raw["model"]["vocab"]["value"] = 50264
    source = read(raw, tmp_path)
    assert source.now.vocab == 50257
    trial = planned(source, vocab=50304)
    assert code(trial.apart) == "other_products"
    assert {case.n for one in trial.calls if isinstance(case := one.now, GemmCase)} & {50264}
    assert trial.wholes  # measured all the same, and said not to stand for the trace


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ({"experts": {"value": 8, "source": "x"}}, "experts"),
        ({"sequence": {"value": None, "source": "x"}}, "sizes_unknown"),
        ({"transformer": False, "found": "none"}, "no_transformer"),
        ({"layers": {"value": 5, "source": "x"}}, "micro_batches_unknown"),
    ],
)
def test_a_model_without_a_plain_layer_says_why(
    raw: dict[str, Any], tmp_path: Path, part: dict[str, Any], why: str
) -> None:
    raw["model"] |= part
    built = stand_in(read(raw, tmp_path))
    assert isinstance(built, Reason) and built.code == why


@pytest.mark.parametrize(
    ("kept", "why"),
    [
        (lambda row: row["phase"] == "forward", "no_backward"),
        (lambda row: row["role"] != "wgrad", "no_wgrad"),
    ],
)
def test_a_step_that_does_less_than_training_is_no_whole_layer(
    raw: dict[str, Any], tmp_path: Path, kept: Callable[[dict[str, Any]], bool], why: str
) -> None:
    raw["gemms"] = [row for row in raw["gemms"] if kept(row)]
    source = read(raw, tmp_path)
    assert code(stand_in(source)) == why  # type: ignore[arg-type]
    trial = planned(source, vocab=50304)
    assert (len(trial.wholes), code(trial.apart)) == (0, why)
    assert 1 <= len(trial.calls) <= 2


def test_without_a_layer_the_products_are_measured_all_the_same(raw: dict[str, Any], tmp_path: Path) -> None:
    raw["model"]["micro_batch"]["value"] = None
    trial = planned(read(raw, tmp_path), vocab=50304)
    assert len(trial.calls) == 3
    assert trial.wholes == ()
    assert trial.apart == Reason("sizes_unknown", {"names": "micro_batch"})


@pytest.mark.parametrize(
    ("family", "backend"), [("flash2", "flash"), ("cudnn_sdpa", "cudnn"), ("mem_efficient", "efficient")]
)
def test_attention_runs_the_traces_backend(
    raw: dict[str, Any], tmp_path: Path, family: str, backend: str
) -> None:
    built = stand_in(with_attention(raw, tmp_path, kernel_family=family))
    assert isinstance(built, StandIn)
    assert built.attention == backend


def test_attention_of_a_library_of_its_own_is_not_torchs(raw: dict[str, Any], tmp_path: Path) -> None:
    source = with_attention(raw, tmp_path, kernel_family="flash3")
    assert stand_in(source) == Reason("other_attention", {"family": "flash3"})
    trial = planned(source, heads=10)
    assert all(one.why == Reason("no_backend", {"family": "flash3"}) for one in trial.calls)


def test_a_mask_that_nothing_tells_is_assumed_and_said(raw: dict[str, Any], tmp_path: Path) -> None:
    built = stand_in(with_attention(raw, tmp_path, kernel_family="cudnn_sdpa"))
    assert isinstance(built, StandIn)
    assert built.causal
    assert codes(built.assumed) == ["causal_assumed"]


def test_the_mask_is_the_second_truth_value_of_flash_attention(source: Source) -> None:
    row = next(one.row for one in source.work.attention)
    traits = "Flash_fwd_kernel_traits<64, 128, 64, 4, false, true, cutlass::bfloat16_t, K<64, 4> >"
    for flags, causal in (
        ("false, true, false", True),
        ("false, false, true", False),
        ("(bool)1, (bool)0, (bool)1", False),
    ):
        name = f"void pytorch_flash::flash_fwd_kernel<{traits}, {flags}>(pytorch_flash::Flash_fwd_params)"
        assert causal_of([replace(row, kernel=name, kernel_family="flash2")]) is causal
    assert causal_of([replace(row, kernel="flash_fwd_kernel", kernel_family="flash2")]) is None


def test_activation_checkpointing_is_built_in(raw: dict[str, Any], tmp_path: Path) -> None:
    raw["gemms"].append(raw["gemms"][6] | {"id": "g99", "phase": "recompute"})
    built = stand_in(read(raw, tmp_path))
    assert isinstance(built, StandIn)
    assert built.recompute
    layer = built.layer(
        ModelConfig(hidden=64, heads=4, head_dim=16, ffn=128, layers=1, sequence=8, micro_batch=1)
    )
    assert isinstance(layer, LayerShape)
    assert layer.recompute


def test_several_micro_batches_in_a_step_are_counted(raw: dict[str, Any], tmp_path: Path) -> None:
    for row in raw["gemms"]:
        row["calls_per_step"] *= 4
    (layer,) = planned(read(raw, tmp_path), heads=10).wholes
    assert layer.calls_now == 48


def test_a_slice_of_the_ranks_is_measured_as_one_rank_has_it(raw: dict[str, Any], tmp_path: Path) -> None:
    raw["model"]["tensor_parallel"]["value"] = 2
    built = stand_in(source := read(raw, tmp_path))
    assert isinstance(built, StandIn)
    layer = built.layer(source.now)
    assert isinstance(layer, LayerShape)
    assert (layer.heads, layer.ffn, layer.tensor_parallel) == (40, 10240, 2)
    assert layer.linears()[-1].inner == 5120
    assert planned(source, model=True, ffn=10368).step == Reason("sharded_model")


def with_attention(raw: dict[str, Any], folder: Path, **changes: Any) -> Source:
    for row in raw["gemms"]:
        if row["kind"] == "attention":
            row |= changes
    return read(raw, folder)
