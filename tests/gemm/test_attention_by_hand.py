"""The small kernels around attention, and the figures that stand for another GPU's, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tracelens.gemm.predict.attention import predict_attention
from tracelens.gemm.predict.attention_call import AttentionProblem
from tracelens.gemm.predict.attention_model import _splits
from tracelens.gemm.predict.attention_rates import exp_cost
from tracelens.hardware import find_gpu

A100 = find_gpu(None, override="a100-sxm-80gb")
SIZES: dict[str, Any] = {
    "batch": 4, "heads": 32, "kv_heads": 32, "seq_q": 1024, "seq_k": 2048, "head_dim": 64, "causal": False,
    "direction": "forward",
}  # fmt: skip
ROWS = 4 * 32 * 1024


def terms(gpu: str = "a100-sxm-80gb", **how: Any) -> dict[str, tuple[str, float]]:
    call = AttentionProblem(**(SIZES | how))
    found = predict_attention(call, gpu=find_gpu(None, override=gpu), backend="flash")
    return {name: (formula, value) for name, formula, value, *_ in found.terms}


@pytest.mark.parametrize(
    ("how", "kernels", "moved"),
    [
        ({}, 0, 0),
        # to a head of 64: q, and k and v of 2048, read at 60 and written at 64
        ({"head_dim": 60}, 3, 2 * (ROWS + 2 * 4 * 32 * 2048) * (60 + 64)),
        ({"head_dim": 60, "kv_heads": 8}, 3, 2 * (ROWS + 2 * 4 * 8 * 2048) * (60 + 64)),
        # out and its gradient read, 16 bits of q's gradient written; fp32 cleared and read
        ({"direction": "backward"}, 2, (3 * 2 + 8) * ROWS * 64),
        # and the gradients of k and v of every head read, those of 8 written
        ({"direction": "backward", "kv_heads": 8}, 2,
         (3 * 2 + 8) * ROWS * 64 + 2 * 2 * 4 * 2048 * 64 * (32 + 8)),
    ],
)  # fmt: skip
def test_small_kernels_around_attention(how: dict[str, Any], kernels: int, moved: float) -> None:
    found = terms(**how)
    assert found["helpers"][1] == pytest.approx(kernels * 2 + moved / (0.9 * 2039e3), rel=1e-6)


@pytest.mark.parametrize(("head_dim", "wide"), [(64, 256), (72, 128), (128, 128), (136, 64)])
def test_a_few_queries_split_the_keys(head_dim: int, wide: int) -> None:
    """Two heads of 64 queries are two jobs for 216 slots: the keys are split to fill these."""
    found = terms(batch=1, heads=2, kv_heads=2, seq_q=64, seq_k=8192, head_dim=head_dim)
    splits = _splits(2, 216, 8192 // wide)
    assert splits > 1 and found["tiles"] == (f"1 * 2 * ceil(64 / 64) * {splits}", 2 * splits)
    moved = 8 * splits * 2 * 64 * found["head dim"][1]
    assert found["helpers"][1] == pytest.approx(2 + moved / (0.9 * 2039e3), rel=1e-6)
    assert "* 2" not in terms(batch=64, heads=32, seq_q=64, seq_k=8192)["tiles"][0].partition("ceil")[2]


@pytest.mark.parametrize(
    ("jobs", "slots", "blocks", "splits"),
    [
        (173, 216, 64, 1),  # 80 % of the slots are full
        (108, 216, 64, 2),
        (54, 216, 64, 4),
        (54, 216, 3, 3),
        (2, 216, 1, 1),
        (100, 216, 64, 2),  # 200 of 216 slots are 93 %
    ],
)
def test_as_few_splits_as_fill_the_slots(jobs: int, slots: int, blocks: int, splits: int) -> None:
    assert _splits(jobs, slots, blocks) == splits


@pytest.mark.parametrize(
    ("gpu", "peak", "cost"),
    [
        # 4096 operations a clock and SM, 16 exponentials; Blackwell Ultra does 32
        ("h100-sxm", 989.4, 256), ("a100-sxm-80gb", 312.0, 128), ("b200", 2250.0, 512), ("b300", 2250.0, 256),
    ],
)  # fmt: skip
def test_what_an_exponential_costs(gpu: str, peak: float, cost: float) -> None:
    assert exp_cost(find_gpu(None, override=gpu), peak) == pytest.approx(cost, rel=0.02)


@pytest.mark.parametrize(
    ("gpu", "like", "factor"),
    [
        ("rtx-5090", "a6000", 1.0),
        ("rtx-4090", "a6000", 1.0),
        ("l40s", "a6000", 0.8),
        ("h20", "h100-sxm", 1.8),
    ],
)
def test_backward_figures_of_a_gpu_that_nobody_published(gpu: str, like: str, factor: float) -> None:
    """10 * 64 operations of a score at the rate of the figures, and what the exponential adds."""
    found, known = (
        float(terms(one, direction="backward")["score"][0].split("/ ")[1].split(" ")[0])
        for one in (gpu, like)
    )
    assert found == pytest.approx(factor * known, abs=1e-4)
