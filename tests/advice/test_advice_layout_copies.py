"""TL113: copies, transposes and casts around the products."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_answers import says_why
from tests.advice.advice_facts import other, step_of
from tests.advice.advice_rows import gemm, model
from tests.said import Listener
from tracelens.results import ComponentRow, OtherRow
from tracelens.rules.engine.facts import Outcome
from tracelens.rules.evidence.copies import times
from tracelens.rules.layout_copies import LayoutCopies
from tracelens.step.present import micro_batches_of

RULE = LayoutCopies()
DIMS = model(hidden=1280, heads=20, kv_heads=4, head_dim=64, vocab=50304, layers=12)


def check(*rows: OtherRow, **more: Any) -> Outcome:
    products = more.pop("products", None) or [
        gemm(1, 8192, 3840, 1280, component="attention.qkv", calls=12),
        gemm(2, 8192, 1280, 5120, component="mlp.down", calls=12),
    ]
    given: dict[str, Any] = {"dims": DIMS, "step_ms": 20.0, "others": rows}
    return RULE.check(step_of(products, **(given | more)))


def weight_cast(number: int = 1, **more: Any) -> OtherRow:
    given: dict[str, Any] = {
        "component": "attention.qkv", "op": "aten::to", "dims": (3840, 1280), "dtype_from": "fp32",
        "dtype_to": "bf16",
    }  # fmt: skip
    return other(number, "cast", **(given | more))


def test_layout_copies_name_operator_module_and_time(said: Listener) -> None:
    row = other(1, "transpose", op="aten::contiguous", module="GPT.Block.Attention", dims=(8, 1024, 20, 64))
    (finding,) = check(row).findings
    said(finding.title, finding.saw)
    assert (finding.saving_ms.low, finding.saving_ms.mid, finding.basis) == (0.0, None, "heuristic")
    assert finding.saving_ms.high == pytest.approx(0.6)
    assert finding.components == ["attention.other"] and finding.gemms == []
    assert finding.confidence == "low" and finding.parameter_delta == 0


def test_casts_of_weights_are_told_by_their_size(said: Listener) -> None:
    gradient = weight_cast(
        2, phase="backward", dtype_from="bf16", dtype_to="fp32", dims=(1280, 3840), op=None
    )
    (finding,) = check(weight_cast(), gradient).findings
    assert finding.change == {"weights": ["fp32", "bf16"]}
    said(finding.title, finding.saw)


def test_casts_of_weights_where_nothing_trains_name_the_type_and_no_optimizer(
    said: Listener,
) -> None:
    types: dict[str, Any] = {"dtype_from": "fp32", "dtype_to": "fp16"}
    norm = weight_cast(2, component="norm", dims=(1280,), **types)  # an activation has rows besides
    forward = [ComponentRow("norm", "forward", 5.0, 5_000_000, 1.0, 1, None, None, 5.0, 1.0)]
    (finding,) = check(weight_cast(**types), norm, components=forward).findings
    assert finding.change == {"weights": ["fp32", "fp16"]} and finding.components == ["attention.qkv", "norm"]
    assert finding.saving_ms.high == pytest.approx(1.2)
    assert "float16" in finding.fix[1] and "bfloat16" not in "".join(finding.fix)
    assert finding.effects is not None and finding.effects.memory.states is None
    said(finding.title, finding.fix, finding.caveats, finding.effects.memory.how)


@pytest.mark.parametrize(
    ("tokens", "kernels", "casts"),
    [
        (16384, 2.0, 1.0),  # 3.3 GB of fp32: PyTorch runs it in two halves
        (8192, 2.0, 2.0),  # 1.6 GB each
        (32768, 4.0, 1.0),
        (16384, 3.0, 3.0),  # no whole number of halves: not known
    ],
)
def test_a_tensor_of_more_than_2_gib_is_one_cast_in_several_kernels(
    tokens: int, kernels: float, casts: float, said: Listener
) -> None:
    cast = {"component": "loss", "op": "aten::to", "dims": (tokens, 50257), "dtype_from": "bf16"}
    row = other(1, "cast", calls=kernels, time_us=1000.0, dtype_to="fp32", **cast)  # type: ignore[arg-type]
    assert times([row]) == casts
    assert times([replace(row, kernel="triton_poi_fused__to_copy_0")]) == kernels
    (finding,) = check(row).findings
    said(finding.title, finding.saw)


def test_casts_repeated_for_each_micro_batch_say_so(said: Listener) -> None:
    products = [
        gemm(1, 8192, 3840, 1280, component="attention.qkv", calls=48),
        gemm(2, 8192, 1280, 5120, component="mlp.down", calls=48),
    ]
    assert micro_batches_of(products, DIMS.layers.value) == 4
    (finding,) = check(weight_cast(calls=48.0), products=products).findings
    said(finding.saw)


def test_an_activation_as_large_as_a_weight_is_not_taken_for_one(said: Listener) -> None:
    products = [gemm(1, 1280, 3840, 1280, component="attention.qkv", calls=12)]
    (finding,) = check(weight_cast(dims=(1280, 1280)), products=products).findings
    assert "weights" not in finding.change
    said(finding.title)


def test_casts_of_no_known_size_are_not_said_to_be_of_activations(said: Listener) -> None:
    rows = [weight_cast(number, dims=None, op=None) for number in (1, 2)]
    (finding,) = check(*rows).findings
    assert finding.change == {}
    said(finding.title, finding.caveats)


def test_casts_of_the_logits(said: Listener) -> None:
    row = other(1, "cast", component="loss", calls=1, time_us=900.0, op="aten::to", dims=(8192, 50304),
                dtype_from="bf16", dtype_to="fp32")  # fmt: skip
    (finding,) = check(row).findings
    assert finding.components == ["loss"]
    said(finding.title, finding.saw)


def test_gradients_of_a_split_put_together(said: Listener) -> None:
    row = other(1, "copy", phase="backward", op="aten::cat", within="SplitBackward0")
    (finding,) = check(row).findings
    said(finding.title, finding.saw)


def test_repeated_key_and_value_heads(said: Listener) -> None:
    row = other(1, "copy", op="aten::repeat_interleave", dims=(8, 20, 1024, 64))
    (finding,) = check(row).findings
    said(finding.title)
    assert check(row, dims=model(hidden=1280, heads=20, kv_heads=20, head_dim=64)).findings == ()


def test_several_causes_are_several_findings() -> None:
    rows = [weight_cast(1), other(2, "copy", op="aten::cat", within="SplitBackward0", phase="backward")]
    outcome = check(*rows)
    assert len(outcome.findings) == 2
    assert outcome.bounds_ms == pytest.approx({"o1": 0.6, "o2": 0.6})


def test_copies_inside_a_library_are_not_counted(said: Listener) -> None:
    says_why(
        check(other(1, "transpose", within="aten::_efficient_attention_backward", phase="backward")),
        "passed",
        said,
    )


@pytest.mark.parametrize("component", ["optimizer", "communication", "memory", "moe.dispatch", "residual"])
def test_copies_elsewhere_are_not_around_products(component: str, said: Listener) -> None:
    outcome = check(other(1, "copy", component=component))
    assert outcome.findings == ()
    said(outcome.state, outcome.why)


def test_work_that_also_computes_is_no_copy() -> None:
    assert check(other(1, "elementwise"), other(2, "reduction"), other(3, "fill")).state == "passed"


def test_little_is_said_and_no_finding(said: Listener) -> None:
    says_why(check(other(1, "transpose", time_us=5.0)), "passed", said)


def test_names_from_the_trace_stay_out_of_sentences() -> None:
    row = other(1, "copy", op="evil</script>", within="<b>", module="x\x1b[31m", kernel="<i>")
    (finding,) = check(row).findings
    assert "<" not in finding.saw and "\x1b" not in finding.saw
    assert "<" not in str(finding.evidence)


def test_what_cannot_be_judged(said: Listener) -> None:
    assert check(others=None).state == "could_not_run"
    assert check(other(1, "copy"), step_ms=None).state == "could_not_run"
    assert check(other(1, "copy"), dims=model(False)).state == "not_applicable"
    assert RULE.check(step_of([], others=())).state == "not_applicable"
    says_why(
        check(other(1, "other", kernel="triton__0d1d2de", time_us=500.0), other(2, "copy")),
        "could_not_run",
        said,
    )
    bare = check(other(1, "elementwise", op=None))
    assert bare.state == "could_not_run"


@pytest.mark.parametrize("op", ["aten::addmm", "aten::cat", "aten::repeat_interleave"])
def test_an_operator_that_makes_its_output_of_others_is_no_layout_copy(op: str) -> None:
    """A bias spread over the rows of a product, masks put behind one another: no view replaces them."""
    dims = model(hidden=1280, heads=20, kv_heads=20, head_dim=64)
    assert check(other(1, "transpose", op=op, dims=(128,)), dims=dims).findings == ()
    assert check(other(1, "transpose", op="aten::clone", dims=(128,)), dims=dims).findings != ()
