"""TL112: q, k, v and gate, up as products of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_answers import says_why
from tests.advice.advice_facts import H100, other, step_of
from tests.advice.advice_rows import gemm, model
from tests.said import Listener
from tracelens.gemm.predict import predict_gemm
from tracelens.results import GemmRow
from tracelens.rules.engine.facts import Outcome
from tracelens.rules.unfused_projections import UnfusedProjections

RULE = UnfusedProjections()
LAYOUT = {"forward": "TN", "dgrad": "NN", "wgrad": "NT"}
LAYERS = 16


def sizes(role: str, tokens: int, out: int, into: int) -> tuple[int, int, int]:
    return {"forward": (tokens, out, into), "dgrad": (tokens, into, out), "wgrad": (out, into, tokens)}[role]


def linear(
    number: int,
    component: str,
    out: int,
    into: int,
    *,
    tokens: int,
    each: int = 1,
    roles: str = "forward",
    **more: Any,
) -> list[GemmRow]:
    """Rows of a linear layer, ``each`` times per layer, timed at the prediction."""
    rows: list[GemmRow] = []
    for role in roles.split():
        m, n, k = sizes(role, tokens, out, into)
        time = predict_gemm(m, n, k, gpu=H100, layout=LAYOUT[role]).time_us.mid or 0.0
        rows.append(
            gemm(number + len(rows), m, n, k, component=component, role=role, layout=LAYOUT[role],
                 calls=LAYERS * each, **({"time_us": time} | more))
        )  # fmt: skip
    return rows


def attention(tokens: int, hidden: int, kv: int, roles: str = "forward dgrad wgrad") -> list[GemmRow]:
    """q of ``hidden`` and two of ``kv`` columns."""
    same = hidden == kv
    q = linear(1, "attention.qkv", hidden, hidden, tokens=tokens, each=3 if same else 1, roles=roles)
    both = [] if same else linear(11, "attention.qkv", kv, hidden, tokens=tokens, each=2, roles=roles)
    return [*q, *both, *linear(21, "attention.output", hidden, hidden, tokens=tokens, roles=roles)]


def check(rows: list[GemmRow], hidden: int, **more: Any) -> Outcome:
    dims = model(hidden=hidden, heads=8, head_dim=hidden // 8, layers=LAYERS)
    given: dict[str, Any] = {"dims": dims, "step_ms": 20.0, "others": ()}
    return RULE.check(step_of(rows, **(given | more)))


def test_narrow_keys_and_values_beside_q_are_one_product(said: Listener) -> None:
    (finding,) = check(attention(2048, 1024, 128), 1024).findings
    assert finding.gemms == ["g1", "g11", "g2", "g12", "g3", "g13"] or len(finding.gemms) == 6
    assert (finding.effort, finding.flops_delta, finding.parameter_delta) == ("code", 0.0, 0)
    assert (finding.saving_ms.low or 0.0) > 0
    assert not any("checkpoint" in caveat for caveat in finding.caveats)  # the effects say it
    said(finding.title)


def test_the_saving_is_measured_times_the_ratio_of_predictions() -> None:
    rows = attention(141, 512, 512, roles="forward")
    slow = [replace(row, time_ms_per_step=2 * row.time_ms_per_step) for row in rows]
    (finding,) = check(slow, 512).findings
    one = predict_gemm(141, 1536, 512, gpu=H100).time_us.mid or 0.0
    part = predict_gemm(141, 512, 512, gpu=H100).time_us.mid or 0.0
    measured = 3 * 2 * part * LAYERS / 1e3
    assert finding.saving_ms.mid == pytest.approx(measured * (1 - one / (3 * part)), rel=1e-6)


def test_large_products_are_not_advised_and_the_check_says_so(said: Listener) -> None:
    gate = linear(1, "mlp.gate", 14336, 4096, tokens=16384, roles="forward dgrad wgrad")
    up = linear(11, "mlp.up", 14336, 4096, tokens=16384, roles="forward dgrad wgrad")
    down = linear(21, "mlp.down", 4096, 14336, tokens=16384)
    outcome = check([*gate, *up, *down], 4096, step_ms=500.0)
    assert outcome.state == "passed" and outcome.findings == ()
    said(outcome.why)


def test_small_gate_and_up_are_one_product(said: Listener) -> None:
    rows = [
        *linear(1, "mlp.gate", 1408, 512, tokens=512),
        *linear(2, "mlp.up", 1408, 512, tokens=512),
        *linear(3, "mlp.down", 512, 1408, tokens=512),
    ]
    (finding,) = check(rows, 512).findings
    assert sorted(finding.components) == ["mlp.gate", "mlp.up"]
    said(finding.title)


def test_in_eager_mode_the_gradients_have_to_be_put_side_by_side(said: Listener) -> None:
    rows = attention(2048, 1024, 128)
    eager = check(rows, 1024).findings[0]
    compiled = check(rows, 1024, others=(other(1, "elementwise", op="triton_poi_fused_add_0"),)).findings[0]
    assert (compiled.saving_ms.mid or 0.0) > (eager.saving_ms.mid or 0.0)
    assert "concatenation" not in compiled.how
    said(eager.how)


def test_one_product_for_all_passes(said: Listener) -> None:
    rows = [
        *linear(1, "attention.qkv", 1536, 512, tokens=512),
        *linear(2, "attention.output", 512, 512, tokens=512),
        *linear(3, "mlp.up", 2048, 512, tokens=512),
        *linear(4, "mlp.down", 512, 2048, tokens=512),
    ]
    says_why(check(rows, 512), "passed", said)


def test_products_that_do_not_read_one_tensor_are_not_judged(said: Listener) -> None:
    """Low-rank projections: the second of each reads what the first made, so K is not the hidden size."""
    rows = [
        *linear(1, "attention.qkv", 512, 256, tokens=512, each=3),
        *linear(2, "attention.output", 512, 512, tokens=512),
    ]
    said(check(rows, 512).why)
    odd = [
        *linear(1, "attention.qkv", 512, 512, tokens=512, each=5),
        *linear(2, "attention.output", 512, 512, tokens=512),
    ]
    said(check(odd, 512).why)


def test_cross_attention_is_not_judged(said: Listener) -> None:
    """An encoder and a decoder of equal lengths: three attentions for two MLPs."""
    rows = [
        *linear(1, "attention.qkv", 512, 512, tokens=512, each=9),
        *linear(2, "attention.output", 512, 512, tokens=512, each=3),
        *linear(3, "mlp.up", 2048, 512, tokens=512, each=2),
        *linear(4, "mlp.down", 512, 2048, tokens=512, each=2),
    ]
    says_why(check(rows, 512), "could_not_run", said)


def test_a_fused_gate_is_told_by_its_width_and_not_by_the_tokens(said: Listener) -> None:
    plain = [
        *linear(1, "mlp.up", 2048, 512, tokens=4096),
        *linear(2, "mlp.down", 512, 2048, tokens=4096),
    ]
    dims = model(hidden=512, heads=8, ffn=2048, layers=LAYERS)
    said(check(plain, 512, dims=dims).why)
    gated = [*linear(1, "mlp.up", 4096, 512, tokens=512), *linear(2, "mlp.down", 512, 2048, tokens=512)]
    said(check(gated, 512, dims=dims).why)


def test_widths_off_the_grid_are_left_to_their_own_rule() -> None:
    rows = [
        *linear(1, "mlp.gate", 1366, 512, tokens=512),
        *linear(2, "mlp.up", 1366, 512, tokens=512),
        *linear(3, "mlp.down", 512, 1366, tokens=512),
    ]
    outcome = check(rows, 512)
    assert outcome.state == "passed" and "TL102" in outcome.why


def test_where_the_host_sets_the_pace_the_low_end_is_nothing() -> None:
    (finding,) = check(attention(141, 512, 512, roles="forward"), 512, gpu_busy_frac=0.1).findings
    assert finding.saving_ms.low == 0.0
    assert finding.saving_of == "gpu_work" and finding.severity == "low"


def test_what_cannot_be_judged() -> None:
    bare = [replace(row, m=None, n=None, k=None) for row in attention(512, 512, 512)]
    assert check(bare, 512).state == "could_not_run"
    assert check(linear(1, "logits", 50304, 512, tokens=512), 512).state == "not_applicable"
    no_transformer = check(attention(512, 512, 512), 512, dims=model(False))
    assert no_transformer.state == "not_applicable"
    unknown = check(attention(141, 512, 512, roles="forward"), 512, predict=False)
    assert unknown.state == "found" and unknown.findings[0].saving_ms.mid is None
