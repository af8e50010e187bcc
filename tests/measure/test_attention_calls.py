"""Attention: forward and backward of each backend, checked against float64, refused with the reason."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
import torch.nn.functional as F

from tests.measure.fakes import HASTY
from tracelens.measure import AttentionCase, CaseOutcome, measure_attention
from tracelens.measure.attention import backend
from tracelens.measure.cases import CannotMeasure
from tracelens.measure.devices import CpuDevice
from tracelens.words import Direction

CASE = AttentionCase("x", 2, 4, 33, 16)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def outcomes(*cases: AttentionCase) -> list[CaseOutcome]:
    heard: list[CaseOutcome] = []
    list(measure_attention(cases, device=CpuDevice(), options=HASTY, progress=heard.append))
    return heard


@pytest.mark.parametrize(
    ("direction", "causal", "kv_heads", "dtype"),
    list(product(("forward", "backward"), (True, False), (None, 2), ("bf16", "fp16", "fp32"))),
)
def test_every_kind_of_attention_is_measured(
    direction: Direction, causal: bool, kv_heads: int | None, dtype: str
) -> None:
    case = replace(CASE, direction=direction, causal=causal, kv_heads=kv_heads, dtype=dtype)
    (row,) = measure_attention([case], device=CpuDevice(), options=HASTY)
    assert row.time_us > 0
    assert (row.heads, row.kv_heads, row.seq_q, row.seq_k) == (4, kv_heads or 4, 33, 33)
    assert (row.direction, row.causal, row.backend, row.dtype) == (direction, causal, "flash", dtype)


def test_unequal_lengths_need_no_mask() -> None:
    free, masked = outcomes(replace(CASE, seq_k=17, causal=False), replace(CASE, seq_k=17, causal=True))
    assert free.time_us is not None
    assert masked.note is not None and "causal" in masked.note


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"backend": "cudnn"}, "cudnn: "),  # the CPU has none
        ({"backend": "magic"}, "magic"),
        ({"dtype": "fp8"}, "fp8"),
        ({"kv_heads": 3}, "no multiple"),
        ({"direction": "sideways"}, "direction"),
        ({"head_dim": 0}, "below 1"),
    ],
)
def test_what_a_backend_lacks_is_refused_and_the_next_case_measured(
    change: dict[str, object], why: str
) -> None:
    refused, measured = outcomes(replace(CASE, **change), CASE)  # type: ignore[arg-type]
    assert refused.time_us is None and refused.note is not None and why in refused.note
    assert measured.time_us is not None


def test_a_mask_that_is_not_applied_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    real = F.scaled_dot_product_attention

    def unmasked(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool, enable_gqa: bool
    ) -> torch.Tensor:
        return real(q, k, v, is_causal=False, enable_gqa=enable_gqa)

    monkeypatch.setattr(F, "scaled_dot_product_attention", unmasked)
    for outcome in outcomes(CASE, replace(CASE, direction="backward")):
        assert outcome.note is not None and "wrong" in outcome.note


def test_what_torch_warns_of_is_the_reason() -> None:
    import warnings

    with pytest.raises(CannotMeasure, match="flash: head_dim should be no more than 256"), backend("flash"):
        warnings.warn("Memory efficient kernel not used because:", stacklevel=1)
        warnings.warn("Memory Efficient attention has been runtime disabled.", stacklevel=1)
        warnings.warn("Flash attention kernel not used because:", stacklevel=1)
        warnings.warn("head_dim should be no more than 256 (Triggered internally at x.cpp:1)", stacklevel=1)
        raise RuntimeError("No available kernel. Aborting execution.")
