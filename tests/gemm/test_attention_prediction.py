"""Predicted attention: order among shapes, bounds, the derivation redone, and what is refused."""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.said import Listener
from tracelens.errors import InputError
from tracelens.gemm.predict.attention import predict_attention
from tracelens.gemm.predict.attention_backend import likely_backend
from tracelens.gemm.predict.attention_call import AttentionProblem
from tracelens.gemm.predict.attention_kernels import padded_head_dim
from tracelens.gemm.predict.attention_model import _splits
from tracelens.gemm.predict.attention_terms import AttentionPrediction, number, rounded_value
from tracelens.hardware import Gpu, find_gpu, list_gpus

SHAPE: dict[str, Any] = {
    "batch": 4, "heads": 32, "kv_heads": 32, "seq_q": 2048, "seq_k": 2048, "head_dim": 64, "causal": True,
    "direction": "forward",
}  # fmt: skip


def gpu(name: str) -> Gpu:
    return find_gpu(None, override=name)


def predict(name: str = "a100-sxm-80gb", **changes: Any) -> AttentionPrediction:
    how = {key: changes.pop(key) for key in ("backend", "measured", "torch_version") if key in changes}
    return predict_attention(AttentionProblem(**SHAPE | changes), gpu=gpu(name), **how)


def mid(name: str = "a100-sxm-80gb", **changes: Any) -> float:
    time = predict(name, **changes).time_us.mid
    assert time is not None
    return time


def training_us(name: str, hidden: int, heads: int, **changes: Any) -> float:
    sizes = {"heads": heads, "kv_heads": heads, "head_dim": hidden // heads, **changes}
    return mid(name, **sizes) + mid(name, **sizes, direction="backward")


def value_of(formula: str) -> float:
    """A formula of a term, by the four operations and ceil, max and min alone."""
    names: dict[str, Any] = {"ceil": math.ceil, "floor": math.floor, "max": max, "min": min, "exp": math.exp}

    def work(node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return node.value
        if isinstance(node, ast.BinOp):
            left, right = work(node.left), work(node.right)
            match node.op:
                case ast.Add():
                    return left + right
                case ast.Sub():
                    return left - right
                case ast.Mult():
                    return left * right
                case ast.Div():
                    return left / right
                case ast.Pow():
                    return left**right
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return names[node.func.id](*(work(argument) for argument in node.args))
        raise AssertionError(f"not arithmetic: {formula}")

    return float(work(ast.parse(formula, mode="eval").body))


def redone(found: AttentionPrediction) -> None:
    """Every line is the value of its formula, every formula goes on with values of lines before it."""
    for line in found.terms:
        _, formula, value, _, _ = line
        assert rounded_value(value_of(formula)) == pytest.approx(value, rel=2e-7), line
    assert found.terms[-1][2] == found.time_us.mid


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "h100-sxm", "h200"])
@pytest.mark.parametrize("backend", ["flash", None])
def test_the_2_7b_shape_prefers_20_or_40_heads_over_32_and_shuns_64(name: str, backend: str | None) -> None:
    """h = 2560 (GPT-3 2.7B): head dimension 80 is padded to 96, 128 and 64 are not."""
    times = {heads: training_us(name, 2560, heads, backend=backend) for heads in (20, 32, 40, 64)}
    assert times[20] < times[32] and times[40] < times[32] < times[64]


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "h100-sxm", "b200", "l40s"])
def test_at_fixed_hidden_a_larger_head_dimension_is_faster(name: str) -> None:
    """arXiv 2401.14489: with FlashAttention, prefer a large h/a."""
    times = [training_us(name, 2048, heads) for heads in (16, 32, 64)]
    assert times == sorted(times)


@given(
    name=st.sampled_from(["a100-sxm-80gb", "h100-sxm", "h200", "b200", "rtx-4090", "t4", "a6000"]),
    batch=st.integers(1, 16),
    heads=st.sampled_from([1, 8, 12, 32]),
    seq=st.integers(1, 5000),
    head_dim=st.integers(1, 32).map(lambda eighth: 8 * eighth),
    causal=st.booleans(),
    backward=st.booleans(),
)
@settings(max_examples=150)
def test_never_above_the_peak_nor_below_the_memory_floor(
    name: str, batch: int, heads: int, seq: int, head_dim: int, causal: bool, backward: bool
) -> None:
    chip = gpu(name)
    found = predict(
        name, batch=batch, heads=heads, kv_heads=heads, seq_q=seq, seq_k=seq, head_dim=head_dim,
        causal=causal, direction="backward" if backward else "forward", dtype="fp16",
    )  # fmt: skip
    low, middle, high = found.time_us.low, found.time_us.mid, found.time_us.high
    assert low is not None and middle is not None and high is not None and low <= middle <= high
    moved = (8 if backward else 4) * 2 * batch * heads * seq * head_dim
    peak, bandwidth = chip.peak("fp16"), chip.bandwidth_gbps
    assert peak is not None and bandwidth is not None
    assert low >= 0.999999 * max(found.useful_flops / (peak * 1e6), moved / (bandwidth * 1e3))


@given(
    st.sampled_from(["a100-sxm-80gb", "h100-sxm"]),
    st.integers(4, 40),
    st.sampled_from([64, 80, 128]),
    st.booleans(),
    st.sampled_from(["forward", "backward"]),
)
@settings(max_examples=60)
def test_more_work_is_never_faster(
    name: str, batch: int, head_dim: int, causal: bool, direction: str
) -> None:
    shape = {"batch": batch, "head_dim": head_dim, "causal": causal, "direction": direction}
    now = mid(name, **shape)
    assert mid(name, **shape | {"batch": batch + 1}) >= now
    assert mid(name, **shape, seq_q=4096, seq_k=4096) > now
    assert mid(name, **shape | {"head_dim": 2 * head_dim}) > now
    assert mid(name, **shape | {"causal": True}) <= mid(name, **shape | {"causal": False})
    assert mid(name, **shape, kv_heads=8) <= now * 1.1


def test_a_long_sequence_in_odd_blocks_pays_for_whole_ones() -> None:
    even, odd = predict(seq_q=1024, seq_k=1024, causal=False), predict(seq_q=1025, seq_k=1025, causal=False)
    assert odd.time_us.mid is not None and even.time_us.mid is not None
    assert odd.time_us.mid > 1.1 * even.time_us.mid
    assert even.computed_flops == even.useful_flops
    assert odd.computed_flops is not None and odd.useful_flops < 0.83 * odd.computed_flops


def test_a_window_saves_time_and_widens_the_range() -> None:
    full, window = predict(seq_q=8192, seq_k=8192), predict(seq_q=8192, seq_k=8192, window=512)
    assert full.time_us.mid is not None and window.time_us.mid is not None and window.time_us.high is not None
    assert window.time_us.mid < full.time_us.mid / 3
    assert full.time_us.high is not None
    assert window.time_us.high / window.time_us.mid > full.time_us.high / full.time_us.mid
    assert predict(window=10_000).time_us == predict().time_us


def test_one_query_splits_the_keys_over_the_sms() -> None:
    found = predict(batch=1, seq_q=1, seq_k=32768, head_dim=128, causal=False)
    assert any("split" in why for *_, why in found.terms)
    assert found.time_us.mid is not None and found.floor_us is not None
    assert found.time_us.mid < 4 * found.floor_us


@pytest.mark.parametrize("head_dim", [16, 64, 80, 128, 160, 256])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("a100-sxm-80gb", {}),
        ("a100-sxm-80gb", {"backend": "flash", "batch": 1, "heads": 4, "kv_heads": 4, "seq_q": 100}),
        ("h100-sxm", {"kv_heads": 8}),
        ("h100-sxm", {"backend": "flash3", "window": 300}),
        ("b200", {"seq_q": 1000, "seq_k": 3001, "backend": "flash"}),
        ("l4", {"causal": False, "batch": 1, "heads": 2, "kv_heads": 1}),
        ("rtx-3060", {"dtype": "fp32"}),
    ],
)
def test_the_derivation_redone_by_hand_is_the_estimate(
    name: str, changes: dict[str, Any], direction: str, head_dim: int
) -> None:
    found = predict(name, head_dim=head_dim, direction=direction, **changes)
    redone(found)
    written = {name: number(value) for name, _, value, _, _ in found.terms}
    formulas = {name: formula for name, formula, *_ in found.terms}
    for line, parts in (
        ("predicted", ("time", "floor")),
        ("time", ("launch", "compute", "memory", "helpers")),
        ("compute", ("block",)),
        ("block", ("score",)),
        ("score", ("head dim", "exponential")),
    ):
        assert all(written[part] in formulas[line] for part in parts), line


@pytest.mark.parametrize("chip", list_gpus(), ids=lambda chip: str(chip.name))
def test_every_gpu_of_the_table(chip: Gpu) -> None:
    for direction in ("forward", "backward"):
        found = predict_attention(
            AttentionProblem(**SHAPE | {"direction": direction}, dtype="fp16"), gpu=chip
        )
        known = chip.peak("fp16") is not None and chip.bandwidth_gbps is not None
        assert (found.time_us.mid is not None) == known
        assert found.time_us.basis == "model"
        assert (found.unknown is None) == known


@pytest.mark.parametrize(("name", "library"), [("h100-sxm", "flash3"), ("b200", "flash4")])
def test_heads_of_256_may_run_on_a_kernel_that_torch_does_not_pick(name: str, library: str) -> None:
    gpu = find_gpu(None, override=name)
    call = AttentionProblem(
        batch=2, heads=16, kv_heads=16, seq_q=8192, seq_k=8192, head_dim=256, causal=True, direction="forward"
    )
    found, asked, fast = (predict_attention(call, gpu=gpu, backend=one) for one in (None, "flash", library))
    assert found.backend == "flash" and found.time_us.mid == asked.time_us.mid
    assert found.time_us.low == fast.time_us.low and (fast.time_us.low or 0.0) < (asked.time_us.low or 0.0)
    assert any(library in note for note in found.notes)


def test_a_head_dimension_without_figures_widens_the_range() -> None:
    def width(found: AttentionPrediction) -> float:
        assert found.time_us.high is not None and found.time_us.mid is not None
        return found.time_us.high / found.time_us.mid

    assert width(predict(head_dim=64)) < width(predict(head_dim=96)) < width(predict("rtx-4090", head_dim=96))


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": 0}, {"heads": -1}, {"seq_q": 0}, {"seq_k": 1 << 30}, {"head_dim": 0}, {"batch": True},
        {"head_dim": 64.0}, {"heads": 32, "kv_heads": 5}, {"direction": "sideways"}, {"dtype": "int3"},
        {"backend": "magic"}, {"window": -1}, {"backend": "flash", "head_dim": 264}, {"backend": "flash3"},
        {"backend": "flash", "dtype": "fp32"}, {"batch": 1 << 40},
        {"torch_version": "nightly", "_gpu": "h200"},
    ],
    ids=str,
)  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_line(changes: dict[str, Any]) -> None:
    name = changes.get("_gpu", "a100-sxm-80gb")
    with pytest.raises(InputError) as refused:
        predict(name, **{key: value for key, value in changes.items() if key != "_gpu"})
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 150


def test_backends_that_a_gpu_has_not(said: Listener) -> None:
    with pytest.raises(InputError) as error:
        predict("v100-sxm", backend="flash", dtype="fp16")
    said(error.value)
    with pytest.raises(InputError) as error:
        predict("b200", backend="flash3")
    said(error.value)
    for device in ("AMD Instinct MI300X", "NVIDIA Something New"):
        for backend in (None, "flash"):
            with pytest.raises(InputError) as error:
                predict_attention(AttentionProblem(**SHAPE), gpu=find_gpu(device), backend=backend)
            said(error.value)


@pytest.mark.parametrize(
    ("name", "head_dim", "dtype", "torch_version", "expected"),
    [
        ("h200", 128, "bf16", None, "cudnn"),
        ("h200", 128, "bf16", "2.11.0+cu130", "cudnn"),
        ("h200", 128, "bf16", "2.10.0", "flash"),
        ("h200", 128, "bf16", "2.9.1", "cudnn"),
        ("h200", 128, "bf16", "2.5.1", "flash"),
        ("h200", 192, "bf16", None, "flash"),
        ("h200", 100, "bf16", None, "flash"),  # padded to 104; cuDNN wants multiples of 8
        ("b300", 64, "fp16", None, "cudnn"),
        ("a100-sxm-80gb", 80, "bf16", None, "flash"),
        ("a100-sxm-80gb", 512, "bf16", None, "efficient"),
        ("a100-sxm-80gb", 64, "fp32", None, "efficient"),
        ("a100-sxm-80gb", 65, "fp32", None, "math"),
        ("rtx-4090", 200, "bf16", None, "efficient"),
        ("v100-sxm", 64, "fp16", None, "efficient"),
        ("v100-sxm", 64, "bf16", None, "math"),
    ],
)
def test_the_backend_torch_picks(
    name: str, head_dim: int, dtype: str, torch_version: str | None, expected: str
) -> None:
    found = likely_backend(head_dim=head_dim, dtype=dtype, gpu=gpu(name), torch_version=torch_version)
    assert found.name == expected and found.why


@pytest.mark.parametrize("capability", [(8, 7), (11, 0), (12, 1)])
@pytest.mark.parametrize("backend", ["flash", "flash4", "cudnn", "efficient"])
def test_a_generation_nobody_published_figures_of_is_predicted_widely(
    capability: tuple[int, int], backend: str
) -> None:
    chip = replace(gpu("rtx-5090"), name="unknown", compute_capability=capability)
    for direction in ("forward", "backward"):
        if backend == "flash4" and capability < (9, 0):
            continue
        time = predict_attention(
            AttentionProblem(**SHAPE | {"direction": direction}), gpu=chip, backend=backend
        ).time_us
        assert time.high is not None and time.mid is not None and time.high > 1.5 * time.mid


def test_a_head_dimension_that_torch_pads_pays_for_the_copies() -> None:
    assert mid(head_dim=100) > 1.02 * mid(head_dim=104)
    assert any("multiples of 8" in why for *_, why in predict(head_dim=100).terms)


def test_head_dimensions_are_padded_to_what_kernels_are_built_for() -> None:
    assert [padded_head_dim("flash", d) for d in (1, 32, 33, 80, 96, 100, 129, 193)] == [
        32, 32, 64, 96, 96, 128, 192, 256,
    ]  # fmt: skip
    assert padded_head_dim("flash3", 257) is None and padded_head_dim("efficient", 300) == 384


@pytest.mark.parametrize(
    ("jobs", "slots", "key_blocks", "splits"),
    [
        # num_splits_heuristic: enough work, or the fewest splits that reach 85 % of the best wave efficiency
        (173, 216, 64, 1),
        (172, 216, 64, 5),  # 860 of 864 slots; 1 to 4 splits fill 0.80, 0.80, 0.80 and 0.80 of theirs
        (1, 216, 64, 64),
        (108, 216, 64, 2),
        (1, 216, 1, 1),
        (16, 216, 9, 9),
    ],
)
def test_flash_splits_the_keys_to_fill_the_sms(jobs: int, slots: int, key_blocks: int, splits: int) -> None:
    """By the definition, over every number of splits that leaves another number of blocks to each."""
    different = [
        n for n in range(1, min(128, slots, key_blocks) + 1)
        if n == 1 or math.ceil(key_blocks / n) != math.ceil(key_blocks / (n - 1))
    ]  # fmt: skip
    filled = {n: jobs * n / slots / math.ceil(jobs * n / slots) for n in different}
    wanted = next(n for n in different if filled[n] >= 0.85 * max(filled.values()))
    assert _splits(jobs, slots, key_blocks) == splits == (1 if jobs >= 0.8 * slots else wanted)


def test_flash_copies_heads_that_are_no_multiple_of_eight() -> None:
    """q, k and v of 70 elements are read and written 72 wide, by three kernels."""
    odd, even = (predict(head_dim=size, backend="flash", causal=False) for size in (70, 72))
    redone(odd)
    assert odd.time_us.mid is not None and even.time_us.mid is not None
    moved = 2 * 3 * (4 * 32 * 2048) * (70 + 72) / (0.9 * 2039e3)
    assert odd.time_us.mid - even.time_us.mid == pytest.approx(3 * 2.0 + moved, rel=1e-3)
