"""Evidence about heads, copies, unfused attention and precisions, on rows made up for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_answers import answer
from tests.advice.advice_facts import other
from tests.advice.advice_messages import message
from tests.advice.advice_rows import H100, UNKNOWN_GPU, attention, facts, flash2, gemm, model
from tests.said import Listener
from tracelens.results import Estimate, GemmRow, OtherRow
from tracelens.results.row_sizes import AttentionDims
from tracelens.rules.engine.amounts import memory, parameters, sizes_of
from tracelens.rules.evidence import copies
from tracelens.rules.evidence.attention_chain import (
    TRAINED_BIAS,
    chain_of,
    cores_of,
    masked_of,
    masks_of,
    unusual_of,
)
from tracelens.rules.evidence.fused_attention import CAUSAL, NO_MASK, TENSOR, CoreCalls
from tracelens.rules.evidence.fusing import memory as memory_of_fusing
from tracelens.rules.evidence.fusing import operations as operations_of_fusing
from tracelens.rules.evidence.heads import HeadsRun, by_saving, need_heads, simulated
from tracelens.rules.evidence.kv_heads import need_kv_rows, other_kv_heads
from tracelens.rules.evidence.low_precisions import block_fit, misfits
from tracelens.rules.evidence.precision import Precision, need_precisions, on_tensor_cores, preferred

ROW = gemm(1, 2048, 10240, 2560)


# heads


def run(head_dim: int, *kernels: int | None, family: str | None = None, heads: int | None = 32) -> HeadsRun:
    rows = [attention(at, head_dim, kernel=flash2(one) if one else "attn") for at, one in enumerate(kernels)]
    rows = [replace(row, kernel_family=family) if family else row for row in rows]
    return HeadsRun(head_dim, heads, rows, [])


@pytest.mark.parametrize(
    ("group", "compiled", "computed", "misfit", "padding"),
    [
        (run(80, 96), 96, 96, True, 1 - 80 / 96),
        (run(80, 96, 128), 128, 128, True, 1 - 80 / 128),
        (run(96, 96), 96, 96, False, 0.0),
        (run(64, 96), 96, 96, False, 1 - 64 / 96),  # every library takes it as it is
        (run(80, None), None, 96, True, None),
        (run(96, None), None, 96, False, None),
        (run(256, None), None, 256, False, None),
        (run(264, None), None, 264, False, None),  # larger ones run elsewhere
        (run(255, None), None, 256, True, None),
        (run(100, None), None, 128, True, None),
        (run(136, None), None, 160, True, None),
        (run(168, None), None, 192, True, None),
        (run(200, None), None, 224, True, None),
        (run(56, None), None, 64, True, None),
        (run(72, None, family="flash4"), None, 80, True, None),
        (run(80, None, family="flash4"), None, 80, False, None),
        (run(80), None, 96, True, None),
    ],
)
def test_what_attention_kernels_compute_of_a_head(
    group: HeadsRun, compiled: int | None, computed: int, misfit: bool, padding: float | None
) -> None:
    assert (group.compiled, group.computed, group.is_misfit) == (compiled, computed, misfit)
    assert group.padding_frac == (padding if padding is None else pytest.approx(padding))


def test_what_is_left_of_the_work_with_another_head() -> None:
    """Softmax goes with the heads, products with the columns: of 80 in 96 and in 128 the smaller counts."""
    assert run(80, 96).work_frac(128) == 80 / 128 and run(80, 96).work_frac(80) == pytest.approx(80 / 96)
    assert run(64, 64).work_frac(32) == 1.0 and run(64, 64).work_frac(64) == 1.0


def test_the_change_is_of_the_models_own_heads_on_all_ranks() -> None:
    group = run(80, 96)
    (first, *_) = by_saving(facts(ROW), group)
    step = facts(ROW, dims=model(heads=32, head_dim=80, tensor_parallel=2))
    assert simulated(step, group, first) == {"heads": 40, "head_dim": 128}
    assert simulated(facts(ROW, dims=model(heads=16, head_dim=80)), group, first) is None
    assert simulated(step, group, replace(first, heads=None)) is None


def test_attention_is_grouped_by_its_head_dimension(said: Listener) -> None:
    scores = gemm(3, 1024, 1024, 80, component="attention.scores", batch=32)
    values = gemm(4, 1024, 80, 1024, component="attention.values", batch=32)
    back = replace(scores, id="g5", role="dgrad", k=1024)
    uneven = replace(attention(6, 64), attention=AttentionDims(1, 32, 32, 8, 8, 64, value_dim=32))
    step = facts(attention(1, 64), attention(2, 80), scores, values, back, uneven,
                 dims=model(heads=32, head_dim=80))  # fmt: skip
    found = need_heads(step)
    assert [(one.head_dim, one.heads) for one in found] == [(64, 32), (80, 32)]
    assert [row.id for row in found[1].unfused] == ["g3", "g4", "g5"] and found[1].is_models(step)
    assert [row.id for row in found[0].fused] == ["g1"] and not found[0].is_models(step)
    assert answer(need_heads, facts(ROW))[:2] == ("not_applicable", True)
    said(answer(need_heads, facts(uneven))[2])
    blind = replace(scores, m=None, n=None, k=None, op="aten::bmm")
    said(answer(need_heads, facts(blind, blind))[2], answer(need_heads, facts(back))[2])


@pytest.mark.parametrize(
    ("heads", "now", "ranks", "found"),
    [
        (32, 8, 1, [2, 4, 16, 32]), (32, 32, 1, [8, 16]), (32, 1, 1, [2, 4]), (12, 4, 1, [1, 2, 3, 6, 12]),
        (16, 4, 2, [2, 4, 16, 32]), (8, 2, 4, [4, 16, 32]), (30, 5, 1, [2, 3, 6, 10, 15]),
    ],
)  # fmt: skip
def test_other_numbers_of_key_value_heads_divide_and_are_divided(
    heads: int, now: int, ranks: int, found: list[int]
) -> None:
    """From a quarter to four times as many, of the whole model; ``heads`` and ``now`` are a rank's."""
    assert other_kv_heads(facts(ROW, dims=model(heads=heads, kv_heads=now, tensor_parallel=ranks))) == found


def test_gemms_that_make_keys_and_values_are_told_by_their_width(said: Listener) -> None:
    qkv = [gemm(1, 2048, 4096, 4096, component="attention.qkv"),
           gemm(2, 2048, 1024, 4096, component="attention.qkv"),
           gemm(3, 2048, 4096, 4096, component="attention.qkv", role="dgrad"),
           gemm(4, 4096, 4096, 2048, component="attention.qkv", role="wgrad"),
           gemm(5, 1024, 4096, 2048, component="attention.qkv", role="wgrad"), attention(6, 128)]  # fmt: skip

    def rows(**dims: int) -> list[str]:
        return [row.id for row in need_kv_rows(facts(*qkv, dims=model(**dims)))]

    assert rows(heads=32, kv_heads=8, head_dim=128) == ["g2", "g5"]
    assert rows(heads=32, kv_heads=32, head_dim=128) == ["g1", "g2", "g3", "g4", "g5"]
    assert rows(heads=32, kv_heads=16, head_dim=128) == ["g1", "g2", "g3", "g4", "g5"]  # k and v are as wide
    assert rows(heads=32, kv_heads=8) == ["g1", "g2", "g3", "g4", "g5"]
    alone = facts(qkv[0], dims=model(heads=32, kv_heads=8, head_dim=128))
    for step in (alone, facts(ROW), facts(*qkv), facts(qkv[0])):
        said(answer(need_kv_rows, step)[2])


# copies

QKV = gemm(1, 8192, 3840, 1280, component="attention.qkv")


def copy(kind: Any = "copy", **given: Any) -> OtherRow:
    return replace(other(1, kind, component="attention.other"), **given)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (
            copy("cast", component="attention.qkv", dims=(3840, 1280), dtype_from="fp32", dtype_to="bf16"),
            "weight_cast",
        ),
        (
            copy(
                "cast",
                component="attention.qkv",
                dims=(1280, 3840),
                dtype_from="fp16",
                dtype_to="fp32",
                phase="backward",
            ),
            "weight_cast",
        ),
        (  # a weight of 16 bits, cast up: keeping it in 16 bits changes nothing
            copy("cast", component="attention.qkv", dims=(1280, 3840), dtype_from="fp16", dtype_to="fp32"),
            None,
        ),
        (  # its bias
            copy("cast", component="attention.qkv", dims=(3840,), dtype_from="fp32", dtype_to="bf16"),
            "weight_cast",
        ),
        (
            copy("cast", component="attention.qkv", dims=(8192, 1280), dtype_from="fp32", dtype_to="bf16"),
            None,
        ),
        (copy("cast", component="mlp.up", dims=(3840, 1280), dtype_from="fp32", dtype_to="bf16"), None),
        (
            copy("cast", component="attention.qkv", dims=(3840, 1280), dtype_from="fp16", dtype_to="bf16"),
            None,
        ),
        (
            copy("cast", component="attention.qkv", dims=(3840, 1280), dtype_from="fp32", dtype_to="fp64"),
            None,
        ),
        (
            copy("cast", component="attention.qkv", dims=(1, 3840, 1280), dtype_from="fp32", dtype_to="bf16"),
            None,
        ),
        (copy("cast", component="loss", dims=(8192, 50304)), "logits_cast"),
        (copy("cast", component="logits", dims=(8, 8, 50304)), "logits_cast"),
        (copy("cast", component="loss", dims=(50304,)), None),
        (copy("cast", component="loss", dims=(50304, 8)), None),
        (copy("copy", component="loss", dims=(8, 50304)), None),
        (copy("cast", component="mlp.up", dims=(8, 50304)), None),
        (copy(op="aten::cat", within="SplitBackward0"), "split_gradient"),
        (copy(op="aten::cat", within="AddBackward0"), None),
        (copy(op="aten::clone", within="SplitBackward0", component="norm"), None),
        (copy(op="aten::repeat_interleave"), "repeated_heads"),
        (copy(op="aten::reshape", dims=(1, 2, 3, 4, 5)), "repeated_heads"),
        (copy(op="aten::reshape", dims=(1, 2, 3, 4)), "layout_copy"),
        (copy(op="aten::repeat", phase="backward"), None),
        (copy(op="aten::repeat", component="mlp.up"), None),
        (copy(op="aten::contiguous", component="moe.experts"), "layout_copy"),
        (copy("transpose", op="aten::contiguous", component="mlp.up"), "layout_copy"),
        (copy(op="aten::addmm", component="mlp.up"), None),
        (copy(op=None, component="mlp.up"), None),  # of no operator, it can be the bias
        (copy(op=None, component="attention.other"), "layout_copy"),
        (copy(op="aten::contiguous", component="norm"), None),
    ],
)
def test_what_a_copy_is_for(row: OtherRow, what: str | None) -> None:
    step = facts(QKV, dims=model(vocab=50304, heads=32, kv_heads=8))
    causes = ("weight_cast", "logits_cast", "split_gradient", "repeated_heads", "layout_copy")
    found = [name for name in causes if getattr(copies, name)(row, step)]
    assert found[:1] == ([what] if what else [])
    assert copies.activation_cast(row, step) is (row.kind == "cast" and not copies.is_weight(row, step))


def test_a_weight_is_told_from_an_activation_by_its_sizes() -> None:
    square = replace(QKV, n=8192)  # as many columns as rows of tokens: nothing tells them apart
    row = copy("cast", component="attention.qkv", dims=(8192, 1280), dtype_from="fp32", dtype_to="bf16")
    assert not copies.is_weight(row, facts(square)) and not copies.is_weight(
        row, facts(replace(QKV, role="dgrad"))
    )
    assert not copies.is_weight(replace(row, dims=None), facts(QKV))
    assert not copies.is_weight(row, facts(replace(QKV, k=None)))
    assert not copies.repeated_heads(copy(op="aten::repeat"), facts(QKV, dims=model(heads=8, kv_heads=8)))
    assert not copies.repeated_heads(copy(op="aten::repeat"), facts(QKV))


def test_copies_in_words(said: Listener) -> None:
    one = copy(calls_per_step=1.0, time_ms_per_step=1.0, op="aten::contiguous", dims=(2, 3), phase="forward")
    step = facts(QKV, step_ms=10.0)
    said(copies.saw(step, [one]))
    cast = replace(one, kind="cast", dtype_from="fp32", dtype_to="bf16", calls_per_step=2.0, dims=None,
                   op="mine::x", within="CopyBackwards", module="gpt.h")  # fmt: skip
    many = copies.saw(step, [cast, replace(one, kind="transpose", op="triton_poi_fused"), one, one, one])
    two = copies.saw(step, [one, one, replace(one, within="AddBackward0")])
    said(many, two, copies.text(step, [], []), copies.text(step, [one], [one]))
    shown = copies.evidence(replace(one, module="</script>", within="aten::" + "x" * 54))
    assert (shown["op"], shown["within"], shown["module"], shown["dims"]) == (
        "aten::contiguous",
        "",
        "",
        [2, 3],
    )


def test_copies_are_judged_where_names_say_enough(said: Listener) -> None:
    def judged(*rows: OtherRow) -> tuple[list[str], list[str]]:
        mine, inside = copies.need_copies(facts(QKV, others=rows))
        return [row.id for row in mine], [row.id for row in inside]

    silent = replace(copy("other"), id="o2", time_ms_per_step=1.0)
    plain = replace(copy(), time_ms_per_step=1.0)
    assert judged(plain, silent) == (["o1"], [])
    assert judged(plain, replace(silent, component="embedding", time_ms_per_step=9.0))[0] == ["o1"]
    hidden = answer(copies.need_copies, facts(QKV, others=[plain, replace(silent, time_ms_per_step=1.01)]))
    assert hidden[0] == "could_not_run"
    said(hidden[2])
    library = replace(plain, within="aten::convolution_backward")
    assert judged(library, replace(plain, id="o3", component="embedding")) == ([], ["o1"])
    nameless = answer(copies.need_copies, facts(QKV, others=[replace(silent, op=None)]))
    assert judged(replace(plain, op=None)) == (["o1"], [])
    assert answer(copies.need_copies, facts(others=[plain]))[1]
    said(nameless[2], answer(copies.need_copies, facts(QKV, others=[plain], step_ms=None))[2])


# unfused attention

SCORES = gemm(1, 128, 256, 64, component="attention.scores", batch=32, calls=4.0, time_us=100.0)
VALUES = gemm(2, 128, 64, 256, component="attention.values", batch=32, calls=4.0, time_us=100.0)


def between(
    kernel: str = "softmax_warp_forward", op: str | None = "aten::_softmax", **given: Any
) -> OtherRow:
    row = replace(copy("other"), component="attention.softmax", kernel=kernel, op=op, phase="forward")
    return replace(row, **given)


def test_the_chain_is_what_a_fused_kernel_replaces() -> None:
    softmax = between(id="o1", module="block.attn", time_ms_per_step=1.0, calls_per_step=4.0)
    rows = [
        softmax,
        replace(copy(component="attention.scores"), id="o2", time_ms_per_step=2.0, calls_per_step=4.0),
        replace(copy(op="aten::clone"), id="o3", time_ms_per_step=0.5),
        replace(copy(op="aten::cat"), id="o4"), replace(copy(dims=(1, 2, 3, 4, 5)), id="o5"),
        replace(copy("other"), id="o6", component="dropout", module="block.attn.Dropout",
                time_ms_per_step=0.25),
        replace(copy("other"), id="o7", component="dropout", module="block.mlp"),
        replace(copy("other"), id="o8", component="norm"), replace(copy("cast"), id="o9"),
    ]  # fmt: skip
    chain = chain_of([SCORES, VALUES], rows)
    assert [row.id for row in chain.between] == ["o1"] and [row.id for row in chain.beside] == ["o2"]
    assert [row.id for row in chain.maybe] == ["o3", "o6"]
    assert chain.sure_ms == pytest.approx(0.8 + 3.0) and chain.kernels == 16.0
    assert chain.times == pytest.approx({"g1": 0.4, "g2": 0.4, "o1": 1.0, "o2": 2.0, "o3": 0.5, "o6": 0.25})
    assert (chain.softmax, chain.call) == (True, "code")
    math = between(within="aten::_scaled_dot_product_attention_math")
    assert chain_of([SCORES], [math]).call == "math"
    assert not chain_of([SCORES], [between(kernel="x", op="aten::mul")]).softmax
    native = "aten::_native_multi_head_attention"
    mine = [between(id="o1"), replace(copy("other"), id="o2", within=native, module="mha"),
            replace(copy("other"), id="o3", op="aten::div_", module="mha"),
            replace(copy("other"), id="o4", op="aten::div_", module="other"),
            replace(copy("other"), id="o5", op="aten::mul", module="mha")]  # fmt: skip
    own = chain_of([SCORES], mine)
    assert [row.id for row in own.beside] == ["o2", "o3"] and own.call == "native"


@pytest.mark.parametrize(
    ("row", "masks"),
    [
        (between(), (NO_MASK,)),
        (between(kernel="scaled_upper_triang_masked_softmax_warp_forward"), (CAUSAL,)),
        (between(kernel="scaled_masked_softmax_warp_forward"), (CAUSAL, TENSOR)),
        (between(kernel="x", op="aten::masked_fill_"), (CAUSAL, TENSOR)),
        (between(kernel="x", op="aten::masked_fill_", phase="backward"), (NO_MASK,)),
        (between(kernel="x", op="aten::add.Tensor"), (CAUSAL, TENSOR)),
        (between(kernel="x", op=None), (NO_MASK,)),
    ],
)
def test_what_the_mask_can_become(row: OtherRow, masks: tuple[Any, ...]) -> None:
    assert masks_of(chain_of([SCORES], [row])) == masks
    added = replace(SCORES, op="aten::baddbmm")
    assert masks_of(chain_of([added], [row])) == (masks if masks == (CAUSAL,) else (CAUSAL, TENSOR))


def test_calls_of_another_module_than_the_masks_have_none() -> None:
    """A vision tower beside a text tower, whose two masks are two kernels a call."""
    sees, reads = CoreCalls(16, 5185, 5185, 64, 64, "bf16", 4.0), CoreCalls(12, 5, 5, 64, 64, "bf16", 2.0)
    softmax = [between(calls_per_step=4.0, module="sees"), between(calls_per_step=2.0, module="reads")]
    mask = between(kernel="x", op="aten::add", calls_per_step=4.0, module="reads")
    assert masked_of(chain_of([SCORES], [*softmax, mask]), [sees, reads]) == [reads]
    nameless = [replace(row, module=None) for row in (*softmax, mask)]
    assert masked_of(chain_of([SCORES], nameless), [sees, reads]) == [sees, reads]
    added = replace(SCORES, op="aten::baddbmm")
    assert masked_of(chain_of([added], softmax), [sees, reads]) == [sees, reads]


def test_what_is_done_to_scores_that_no_fused_kernel_does(said: Listener) -> None:
    def unusual(*rows: OtherRow) -> list[str]:
        return unusual_of(chain_of([SCORES], rows))

    assert unusual(between(), between(kernel="x", op="aten::mul")) == []
    assert unusual(between(kernel="x", op="aten::tanh"), between(kernel="y", op="aten::tanh")) == ["tanh"]
    assert unusual(between(kernel="x", op="mine::a b")) == ["another"]
    assert unusual(between(kernel="x", op="aten::" + "y" * 40)) == ["another"]
    assert unusual(between(kernel="x", op="aten::" + "y" * 39)) == ["y" * 39]
    assert (
        unusual(between(kernel="my_softmax", op=None))
        == unusual(between(kernel="my_softmax", op="aten::tanh"))
        == []
    )
    assert unusual(between(kernel="x", op="aten::sum", phase="backward")) == [TRAINED_BIAS]
    assert unusual(between(kernel="x", op="aten::tanh_backward", phase="backward")) == []
    assert unusual(between(kernel="triton_per_fused__softmax_add_tanh_0", op=None)) == ["tanh"]
    (nameless,) = unusual(between(kernel="x", op=None))
    said(nameless)


def test_scores_find_their_values_and_calls_of_a_size_are_added_up(said: Listener) -> None:
    def cores(*rows: GemmRow) -> Any:
        return cores_of(rows, chain_of(rows, []))

    (one,) = cores(SCORES, VALUES)
    assert one == CoreCalls(32, 128, 256, 64, 64, "bf16", 4.0, 0.0)
    assert (
        one.scores_bytes == 2 * 32 * 128 * 256
        and replace(one, dtype="fp32").scores_bytes == 4 * 32 * 128 * 256
    )
    assert replace(one, dtype="packed").scores_bytes == one.scores_bytes  # as of bf16
    said(one.text, replace(one, calls=1.0, seq_k=128).text)
    back = replace(VALUES, id="g3", role="dgrad", phase="backward")
    again = replace(SCORES, id="g4", phase="recompute")
    (trained,) = cores(SCORES, VALUES, again, back)
    assert (trained.calls, trained.backward_calls) == (8.0, 4.0)
    for lone in (replace(VALUES, m=64), replace(VALUES, k=128), replace(VALUES, batch=16)):
        said(cores(SCORES, lone))
    said(cores(replace(SCORES, dtype=None), VALUES), cores(back))


def test_memory_and_operations_of_fusing(said: Listener) -> None:
    """Four micro-batches of 2 layers keep 2 x 32 x 128 x 256 B of weights less 4 B per query and head."""
    core = CoreCalls(32, 128, 256, 64, 64, "bf16", 8.0, 8.0)
    layers = [gemm(at, 64, 64, 64, component="mlp.up", calls=8.0, layers="0-1") for at in (1, 2)]
    step = facts(*layers, dims=model(layers=8))
    found = memory_of_fusing(step, [core])
    kept = 8 * (2 * 32 * 128 * 256 - 4 * 32 * 128)
    assert found.delta == found.activations == -kept
    said(found.how)
    single = memory_of_fusing(step, [replace(core, backward_calls=1.0)])
    assert single.delta == -kept / 8
    said(single.how)
    none = memory_of_fusing(step, [replace(core, backward_calls=0.0)])
    assert none.delta is None
    assert none.states == found.states == 0.0
    said(none.how)
    again = memory_of_fusing(facts(replace(SCORES, phase="recompute")), [core])
    assert again.delta is None
    said(again.how)
    back = replace(SCORES, phase="backward", flops=4e9)
    rows = [back, replace(ROW, flops=32e9, calls_per_step=1.0), replace(ROW, flops=None)]
    more = operations_of_fusing(facts(*rows), chain_of([back], []))
    assert more.delta == 4e9 and more.frac == pytest.approx(4 / 48)
    same = operations_of_fusing(facts(*rows), chain_of([SCORES], []))
    assert (same.delta, same.frac) == (0.0, 0.0)


# precisions


def test_sizes_of_a_rank_that_are_no_whole_blocks(said: Listener) -> None:
    row = gemm(1, 4128, 1056, 1000, names=("b*s", "f", "h"))
    trains = facts(row, gemm(2, 8, 8, 8, role="wgrad"))
    assert misfits(row, 32, trains) == {1000: "hidden"}
    assert misfits(row, 128, trains) == {4128: "tokens", 1056: "ffn", 1000: "hidden"}
    assert misfits(row, 128, facts(row)) == {1056: "ffn", 1000: "hidden"}  # tokens are cast once
    gathers = message("all_gather", group_size=4)
    split = facts(row, gemm(2, 8, 8, 8, role="wgrad"), communication=[gathers])
    assert misfits(row, 32, split) == {1032: "tokens", 1000: "hidden"}
    two = replace(split, communication=[gathers, message("all_gather", group_size=2)])
    assert 4128 % 32 == 0 and misfits(row, 32, two) == {1000: "hidden"}
    wgrad = gemm(1, 1056, 1024, 4100, role="wgrad", names=("f", "h", "b*s"))
    assert misfits(wgrad, 128, facts(wgrad)) == {1056: "ffn", 4100: "tokens"}
    for rows in ([row, gemm(3, 128, 128, 128)], [gemm(3, 128, 128, 128)], [row, gemm(3, 130, 131, 132)]):
        said(block_fit(rows, trains))


def fp32(number: int, **given: Any) -> GemmRow:
    told: dict[str, Any] = {
        "dtype": "fp32",
        "kernel": "ampere_sgemm_128x64_tn",
        "tensor_core": "eligible_unused",
    }
    return gemm(number, 2048, 2048, 2048, **(told | given))


def targets(*rows: GemmRow, **given: Any) -> list[tuple[list[str], str, tuple[str, ...], bool]]:
    found = need_precisions(facts(*rows, **given), list(rows))
    return [([row.id for row in one.rows], one.now, one.targets, one.mixed) for one in found]


def test_which_gemms_another_precision_would_move(said: Listener) -> None:
    assert targets(fp32(1), fp32(2)) == [(["g1", "g2"], "fp32", ("tf32", "bf16"), False)]
    assert targets(ROW) == [] and targets(fp32(1, component="moe.router"), ROW) == []
    mixed = targets(
        fp32(1, component="logits"), fp32(2, component="optimizer"), gemm(3, 64, 64, 64, time_us=9e4)
    )
    assert mixed == [(["g2"], "fp32", ("tf32",), False), (["g1"], "fp32", ("bf16",), True)]
    allowed = fp32(2, math_dtype="tf32", tensor_core="used")
    assert targets(fp32(1), allowed) == []  # cuBLAS chose CUDA cores
    assert targets(fp32(1), replace(allowed, op="aten::cudnn_convolution"))[0][0] == ["g1"]
    doubles = targets(fp32(1, dtype="fp64", kernel="dgemm", tensor_core="ineligible"), ROW)
    assert [one[:3] for one in doubles] == [(["g1"], "fp64", ("fp32",))]
    volta = replace(H100, peak_tflops={"fp16": 125.0, "fp32": 15.7})
    old = fp32(1, tensor_core="ineligible")
    assert targets(old, gpu=volta) == [(["g1"], "fp32", ("fp16",), False)] and targets(old) == []
    gone = answer(need_precisions, facts(fp32(1), gpu=UNKNOWN_GPU), [fp32(1)])
    assert gone[0] == "could_not_run"
    said(gone[2])


def test_how_many_rows_run_on_tensor_cores(said: Listener) -> None:
    rows = [replace(ROW, time_ms_per_step=1.0, tensor_core="used"),
            replace(fp32(2), time_ms_per_step=2.0),
            fp32(3, math_dtype="tf32", tensor_core="used", time_us=500.0),
            replace(ROW, time_ms_per_step=4.0, tensor_core=None, kernel_tensor_core=None)]  # fmt: skip
    said(on_tensor_cores(facts(*rows), rows), on_tensor_cores(facts(*rows[:2]), rows[:2]))


def test_the_first_target_that_pays_and_saves_most_of_the_best_is_preferred() -> None:
    def chosen(*mids: float | None, bounds: tuple[float, ...] = (1.0, 1.0)) -> str:
        savings = {name: None if mid is None else Estimate(mid / 2, mid, 2 * mid, "model")
                   for name, mid in zip(("tf32", "bf16"), mids, strict=True)}  # fmt: skip
        return preferred(savings, dict(zip(("tf32", "bf16"), bounds, strict=True)))

    assert chosen(2.0, 3.0) == "tf32" and chosen(1.99, 3.0) == "bf16" and chosen(None, 1.0) == "bf16"
    assert chosen(None, None) == "tf32" and chosen(None, None, bounds=(0.0, 1.0)) == "bf16"
    assert chosen(-1.0, -2.0, bounds=(0.0, 0.0)) == "tf32"


def test_a_precision_in_words_and_bounds(said: Listener) -> None:
    one = Precision([fp32(1, time_us=1000.0)], "fp32", ("tf32",), False)
    assert one.who == "the fp32 GEMMs" and (one.why("tf32"), one.why("bf16")) == ("fp32", "")
    mixed = replace(one, mixed=True)
    assert mixed.why("bf16") == "beside 16 bits"
    assert replace(one, now="fp64").why("fp32") == "fp64"
    said(mixed.who)
    (bound,) = one.bounds(facts(), "tf32")
    assert bound.ms == pytest.approx(1.0 - 2 * 2048**3 / 494.5e9)  # 17.2 GFLOP at 494.5 T/s
    (half,) = one.bounds(facts(gpu=replace(H100, peak_tflops={})), "bf16")
    assert half.ms == pytest.approx(1.0 - 3 * 2048**2 * 2 / 3350e6)  # half the bytes
    nameless = replace(one, rows=[fp32(1, time_us=1000.0, flops=None, bytes=None)])
    (capped,) = nameless.bounds(facts(), "tf32")
    assert capped.ms == pytest.approx(1 - H100.gemm_floor_us / 1e3)  # all but what a kernel takes at least


# how much a change adds


def test_a_weight_is_as_wide_as_what_most_time_computes_with() -> None:
    """Two rows in fp32 take 2 ms together, one in bf16 takes 1.5: inference holds 4 B a weight."""
    rows = [replace(ROW, dtype=dtype, time_ms_per_step=ms)
            for dtype, ms in (("fp32", 1.0), ("bf16", 1.5), ("fp32", 1.0))]  # fmt: skip
    sizes = {"hidden": 1024, "heads": 16, "kv_heads": 16, "head_dim": 64, "ffn": 4096, "layers": 2}
    for given, width in ((rows, 4), (rows[:2], 2), ([replace(ROW, dtype="fp8")], 2)):
        step = facts(*given, dims=model(vocab=50257, **sizes))
        known = sizes_of(step, {"ffn": [4096, 4160]})
        found = memory(step, {"ffn": [4096, 4160]}, known, parameters(known, counted=None))
        assert found.states == width * 2 * 2 * 1024 * 64
