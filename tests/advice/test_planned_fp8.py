"""Planned steps in fp8: which GEMMs are, what their casts add, and the steps that were published."""

from __future__ import annotations

import math
import statistics

import pytest

from benchmarks import steps
from benchmarks.silicon import FOLDER
from tests.said import Listener
from tracelens.config import Configuration, config_from_flags
from tracelens.config.training import Training
from tracelens.errors import InputError
from tracelens.gemm.predict import predict_gemm
from tracelens.hardware import find_gpu
from tracelens.step.casts import cast_ms
from tracelens.step.planned_step import Planner
from tracelens.step.whole_step import whole_step
from tracelens.suggestions import suggest

H100 = find_gpu(None, override="h100-sxm")
LLAMA_8B = {"hidden": 4096, "heads": 32, "kv_heads": 8, "layers": 32, "ffn": 14336, "vocab": 128256}
LLAMA_70B = {"hidden": 8192, "heads": 64, "kv_heads": 8, "layers": 80, "ffn": 28672, "vocab": 128256}


def _config(sizes: dict[str, int], **more: int) -> Configuration:
    return config_from_flags(sizes | {"sequence": 8192} | more, gated=True, tied=False)


def test_linear_layers_are_in_fp8_with_the_casts_of_both_operands() -> None:
    config = _config(LLAMA_8B, micro_batch=1)
    low, wide = (
        Planner(config.layout, gpu=H100, dtype=dtype).step(config.model) for dtype in ("fp8", "bf16")
    )
    for fast, slow in zip(low.parts, wide.parts, strict=True):
        if fast.component in ("logits", "attention.core") or fast.kind == "bytes":
            assert fast == slow
        elif fast.sizes[0] * fast.sizes[1] * fast.sizes[2] > 2**37:
            assert fast.time_ms.mid < slow.time_ms.mid
    down = next(one for one in low.parts if (one.component, one.role) == ("mlp.down", "dgrad"))
    m, n, k = 8192, 14336, 4096
    alone = predict_gemm(m, n, k, gpu=H100, dtype="fp8", layout="TN").time_us.mid or 0.0
    cast = cast_ms(32.0 * (m * k + k * n), H100).mid
    assert down.time_ms.mid == pytest.approx(32 * alone / 1e3 + cast) and cast > 0


def test_widths_off_the_grid_of_16_stay_in_bf16_and_it_is_said(said: Listener) -> None:
    config = _config(LLAMA_8B | {"ffn": 14340}, micro_batch=1)
    planner = Planner(config.layout, gpu=H100, dtype="fp8")
    assert planner.left_wide(config.model) == ["mlp.up", "mlp.down"]
    assert planner.left_wide(_config(LLAMA_8B).model) == []
    assert Planner(config.layout, gpu=H100).left_wide(config.model) == []
    said(suggest(config, gpu="h100-sxm", dtype="fp8").notes)


def test_a_step_in_nvfp4_is_of_its_own_peak_and_unlike_those_that_were_fitted() -> None:
    config, b200 = _config(LLAMA_8B, micro_batch=2), find_gpu(None, override="b200")
    training = Training(8, stack="megatron")
    low, wide = (
        whole_step(Planner(config.layout, gpu=b200, dtype=dtype), config.model, training)
        for dtype in ("nvfp4", "fp8")
    )
    assert (low.step_ms.basis, wide.step_ms.basis) == ("heuristic", "model")
    assert (low.step_ms.mid or 0) < (wide.step_ms.mid or 0)
    assert (low.mfu_frac.mid or 0) < (wide.mfu_frac.mid or 0)


@pytest.mark.parametrize("gpu", ["a100", "v100"])
def test_a_gpu_without_fp8_is_refused(gpu: str, said: Listener) -> None:
    with pytest.raises(InputError) as error:
        suggest(_config(LLAMA_8B), gpu=gpu, dtype="fp8")
    said(str(error.value))


#: pytorch/torchtitan b5bcd76c, benchmarks/: fp8 with a scale per tensor, compiled; tokens/s and GPU.
@pytest.mark.parametrize(
    ("sizes", "gpu", "training", "more", "speed"),
    [
        (LLAMA_8B, "h100-sxm", Training(8), {"micro_batch": 2}, 8532.0),
        (LLAMA_8B, "h200", Training(32), {"micro_batch": 2}, 10938.0),
        (LLAMA_8B, "h100-sxm", Training(64), {"micro_batch": 12, "tensor_parallel": 8}, 5078.1),
        (LLAMA_70B, "h100-sxm", Training(256, checkpoint="full"),
         {"micro_batch": 16, "tensor_parallel": 8}, 809.8),
    ],
)  # fmt: skip
def test_steps_of_torchtitan_are_in_range(
    sizes: dict[str, int], gpu: str, training: Training, more: dict[str, int], speed: float
) -> None:
    config = _config(sizes, **more)
    planner = Planner(config.layout, gpu=find_gpu(None, override=gpu), dtype="fp8")
    found = whole_step(planner, config.model, training)
    rate = found.tokens_per_s_per_gpu
    assert (rate.low or 0) < speed < (rate.high or 0)
    assert abs(math.log((rate.mid or 1.0) / speed)) < 0.3
    assert found.step_ms.basis == "heuristic"


def test_a_step_with_today_s_attention_lies_towards_the_fast_end() -> None:
    """Megatron-Bridge 00b7660b, docs/performance-summary.md, 25.11: Llama 3 8B on 8 H100, FSDP."""
    config = _config(LLAMA_8B, micro_batch=1)
    planner = Planner(config.layout, gpu=H100, dtype="fp8")
    rate = whole_step(planner, config.model, Training(8, micro_batches=16)).tokens_per_s_per_gpu
    assert (rate.mid or 0) < 14451 < (rate.high or 0)


@pytest.mark.skipif(
    not (FOLDER / "mpt_steps.csv").exists(), reason="published steps are not beside the checkout"
)
def test_published_steps_in_fp8_that_nothing_was_fitted_to() -> None:
    found = steps.judge(steps.rows("fp8"))
    assert len(found.errors) == 4 and all(found.inside) and all(found.ordered)
    assert math.expm1(statistics.median(map(abs, found.errors))) < 0.08
