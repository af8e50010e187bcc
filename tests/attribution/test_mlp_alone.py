"""An MLP by itself, in a range that says so: a gated one is of a transformer, layers in a row are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.attribution.rows import attributed
from tests.trace.test_links import range_
from tests.trace.tools import kernel, launch, op
from tracelens.words import COMPONENTS

GATED = ("mlp.gate", "mlp.activation", "mlp.up", "mlp.other", "mlp.down")


def _events(works: list[str], *, four_bits: bool) -> list[dict[str, Any]]:
    """One range; each linear layer by itself, or behind the weight that bitsandbytes dequantizes for it."""
    events = [range_("qlora_mlp", ts=0, dur=100 * len(works) + 50)]
    for at, work in enumerate(works):
        ts, first = 10 + 100 * at, 1 + 10 * at
        parts = [(work, "silu_kernel")]
        if work == "linear" and four_bits:
            events.append(op("MatMul4Bit", ts=ts - 1, dur=80))
            parts = [("copy_", "unrolled_elementwise_kernel"), ("linear", "ampere_bf16_s16816gemm_bf16_tn")]
        for n, (name, runs) in enumerate(parts):
            inside = ts + 20 * n
            events += [
                op(f"aten::{name}", ts=inside, dur=15),
                launch(first + n, ts=inside + 5),
                kernel(runs, ts=inside + 8, dur=10, correlation=first + n),
            ]
    return events


def _said(folder: Path, works: list[str], *, four_bits: bool = False) -> list[str]:
    trace, _, found = attributed(folder, _events(works, four_bits=four_bits))
    order = trace.kernels.ts_ns.argsort(kind="stable")
    return [COMPONENTS[found.component[at]] for at in order]


@pytest.mark.parametrize("four_bits", [False, True])
def test_a_gated_mlp_has_its_parts_without_any_attention(tmp_path: Path, four_bits: bool) -> None:
    """drisspg/transformer_nuggets benchmarks/qlora.py: act(gate(x)) * up(x), with frozen NF4 weights."""
    wide = {"mlp.gate", "mlp.up", "mlp.down"} if four_bits else set()
    wanted = [part for one in GATED for part in [one] * (1 + (one in wide))]
    assert _said(tmp_path, ["linear", "silu", "linear", "mul", "linear"], four_bits=four_bits) == wanted


def test_three_layers_in_a_row_are_no_transformers_mlp(tmp_path: Path) -> None:
    assert {*_said(tmp_path, ["linear", "relu", "linear", "relu", "linear"])} == {"other"}
