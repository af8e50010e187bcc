"""The small kernels around attention, and the figures that stand for another GPU's, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tracelens.errors import InputError
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


# --- values narrower than keys (latent attention) -----------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "head_dim", "value_dim", "backend"),
    [
        # sdp_utils.cpp: cuDNN takes 192 with 128, and any two to 128; flash takes one width, efficient any
        ("h100-sxm", 192, 128, "cudnn"),
        ("b200", 192, 128, "cudnn"),
        ("h100-sxm", 96, 64, "cudnn"),
        ("h100-sxm", 192, 64, "efficient"),
        ("h100-sxm", 192, None, "flash"),
        ("a100-sxm-80gb", 192, 128, "efficient"),
        ("a100-sxm-80gb", 192, 192, "flash"),
        ("a100-sxm-80gb", 192, 100, "math"),
    ],
)
def test_the_kernel_that_takes_narrower_values(
    gpu: str, head_dim: int, value_dim: int | None, backend: str
) -> None:
    call = AttentionProblem(**(SIZES | {"head_dim": head_dim, "value_dim": value_dim}))
    assert predict_attention(call, gpu=find_gpu(None, override=gpu)).backend == backend


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("backend", ["cudnn", "flash4", "math"])
def test_narrower_values_are_fewer_operations_and_bytes(direction: str, backend: str) -> None:
    def both(value_dim: int | None) -> Any:
        sizes = SIZES | {"head_dim": 192, "value_dim": value_dim, "direction": direction}
        call = AttentionProblem(**sizes)
        return call, predict_attention(call, gpu=find_gpu(None, override="h100-sxm"), backend=backend)

    (call, found), (wide, whole) = both(128), both(192)
    pairs = 4 * 32 * 1024 * 2048
    width = 2 * 192 + 2 * 128 if direction == "forward" else 2 * (3 * 192 + 2 * 128)
    assert call.useful_flops == pairs * width and wide.value_dim is None
    tensors = 4 * 32 * (1024 + 2048) * (192 + 128) * 2
    assert call.bytes_moved == (tensors if direction == "forward" else 2 * tensors)
    if backend == "math":  # it does not compute the scores again
        assert found.useful_flops == pairs * (2 if direction == "forward" else 4) * (192 + 128)
    else:
        saved = 1 - call.useful_flops / wide.useful_flops
        assert found.time_us.mid == pytest.approx(whole.time_us.mid * (1 - 0.3 * saved), rel=1e-6)
        assert found.terms[-1][2] == found.time_us.mid
        assert found.floor_us < whole.floor_us and found.kernel_us < whole.kernel_us
    assert found.time_us.low < whole.time_us.low


@pytest.mark.parametrize("value_dim", [0, -1, 65, True, 64.0])
def test_a_value_dim_that_cannot_be_is_refused(value_dim: Any) -> None:
    with pytest.raises(InputError):
        AttentionProblem(**(SIZES | {"value_dim": value_dim}))
