"""TL125: a mask tensor, or nothing, keeps attention in the memory-efficient kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_answers import says_why
from tests.advice.advice_facts import A100, H100, V100, step_of
from tests.advice.advice_rows import attention, model
from tests.said import Listener
from tracelens.gemm.predict.attention import predict_attention
from tracelens.gemm.predict.attention_call import AttentionProblem
from tracelens.hardware import Gpu, find_gpu
from tracelens.results import GemmRow
from tracelens.results.row_sizes import AttentionDims, AttentionMask
from tracelens.rules.attention_backend import AttentionBackend
from tracelens.rules.engine.facts import Outcome

RULE = AttentionBackend()
KERNEL = "fmha_cutlass{}_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)"
LAYERS = 12.0


def predicted_us(backend: str, causal: bool, direction: str, gpu: Gpu = A100, d: int = 64) -> float:
    call = AttentionProblem(batch=8, heads=16, kv_heads=16, seq_q=2048, seq_k=2048, head_dim=d, causal=causal,
                            direction=direction)  # fmt: skip
    return predict_attention(call, gpu=gpu, backend=backend).time_us.mid or 0.0


def rows(mask: AttentionMask | None = "mask", gpu: Gpu = A100, d: int = 64, **more: Any) -> list[GemmRow]:
    """Forward and backward of each layer, as long as the model of the kernel says."""
    found = []
    for number, direction in enumerate(("forward", "backward")):
        given: dict[str, Any] = {
            "attention": AttentionDims(8, 16, 16, 2048, 2048, d, mask=mask),
            "time_us": predicted_us("efficient", False, direction, gpu, min(d, 128)),
            "flops": 4.0 * 8 * 16 * 2048 * 2048 * d * (1.0 if direction == "forward" else 2.5),
        }
        found.append(
            attention(
                number, d, heads=16, kernel=KERNEL.format(direction[0].upper()), calls=LAYERS,
                phase=direction, op=f"aten::_efficient_attention_{direction}", **(given | more),
            )
        )  # fmt: skip
    return found


def check(found: list[GemmRow], gpu: Gpu = A100) -> Outcome:
    dims = model(hidden=1024, heads=16, head_dim=64, sequence=2048, micro_batch=8)
    return RULE.check(step_of(found, gpu=gpu, dims=dims, step_ms=400.0))


def test_a_mask_of_all_heads_is_a_finding_without_a_promise(said: Listener) -> None:
    (finding,) = check(rows()).findings
    ways = "forward", "backward"
    now, then = (sum(predicted_us(kernel, False, way) for way in ways) for kernel in ("efficient", "flash"))
    saved = LAYERS / 1e3 * (now - then)
    assert finding.saving_ms.low == 0.0 and finding.saving_ms.mid == pytest.approx(saved)
    assert (finding.saving_ms.high or 0) > saved and finding.confidence == "low"
    assert "is_causal=True" in "".join(finding.fix)
    said(finding.title)


def test_no_mask_and_sizes_that_flash_takes(said: Listener) -> None:
    (finding,) = check(rows(None)).findings
    assert (finding.saving_ms.low or 0) > 0
    assert "is_causal" not in "".join(finding.fix)  # nothing shows a causal mask
    said(finding.title)


@pytest.mark.parametrize(
    ("found", "gpu"),
    [
        (rows("bias"), A100),
        (rows("mask?"), A100),
        (rows(None, d=288), A100),
        (rows(None, dtype="fp16"), V100),
        (rows(dtype="fp32"), H100),
        ([attention(1, 64)], H100),
    ],
    ids=["bias", "mask?", "288", "fp16", "fp32", "flash"],
)
def test_what_has_to_stay_passes_with_its_reason(found: list[GemmRow], gpu: Gpu, said: Listener) -> None:
    says_why(check(found, gpu), "passed", said)


def test_without_sizes_it_could_not_run() -> None:
    assert check(rows(attention=None)).state == "could_not_run"


def test_without_fused_attention_there_is_nothing_to_say() -> None:
    assert check([]).state == "not_applicable"


@pytest.mark.parametrize(("tokens", "times"), [(2048, 5.63), (4096, 7.66), (8192, 8.82)])
def test_a_mask_at_head_dimension_256_costs_what_a_user_measured(tokens: int, times: float) -> None:
    """unslothai/unsloth#11102 on a B200: masked over causal without a mask, forward and backward."""
    b200 = find_gpu(None, override="b200")
    free = [
        predict_attention(
            AttentionProblem(batch=1, heads=16, kv_heads=16, seq_q=tokens, seq_k=tokens, head_dim=256,
                             causal=True, direction=direction), gpu=b200, backend="flash",
        ).time_us.mid or 0.0 for direction in ("forward", "backward")
    ]  # fmt: skip
    sizes = AttentionDims(1, 16, 16, tokens, tokens, 256, mask="mask")
    masked = rows(gpu=b200, d=256, attention=sizes)
    masked = [
        replace(row, time_ms_per_step=LAYERS * times * us / 1e3) for row, us in zip(masked, free, strict=True)
    ]
    dims = model(hidden=4096, heads=16, head_dim=256, sequence=tokens, micro_batch=1)
    (finding,) = RULE.check(step_of(masked, gpu=b200, dims=dims, step_ms=4000.0)).findings
    truth = LAYERS * (times - 1) * sum(free) / 1e3
    assert (finding.saving_ms.mid or 0) < truth < (finding.saving_ms.high or 0) < 1.1 * truth


def flex(forward_us: float, backward_us: float, calls: float = LAYERS) -> list[GemmRow]:
    name = "triton_tem_fused_flex_attention{}_0"
    return [
        attention(1, None, kernel=name.format(""), time_us=forward_us, calls=LAYERS),
        attention(
            2, None, kernel=name.format("_backward"), time_us=backward_us, calls=calls, phase="backward"
        ),
    ]


def test_blocks_of_flex_attention_bound_what_tuning_them_measured(said: Listener) -> None:
    """allenai/OLMo-core#877: forward and backward 11.93 -> 8.98 ms, from 3.82 to 2.62 times the forward."""
    forward = 11.93 / 4.82
    before = flex(1e3 * forward, 1e3 * 3.82 * forward)
    (finding,) = check(before).findings
    measured = LAYERS * (11.93 - 8.98)
    assert finding.saving_ms.mid is None and measured < (finding.saving_ms.high or 0) < 1.15 * measured
    assert finding.gemms == ["g2"]
    said(finding.title)
    assert check(flex(2480.0, 2.62 * 2480.0)).state == "passed"  # tuned
    assert check(flex(2480.0, 9455.0, calls=LAYERS / 2)).state == "passed"  # backwards of other calls
    assert check(before[:1]).state == "passed"
    both = check([*before, *rows()])
    assert len(both.findings) == 2
