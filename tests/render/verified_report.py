"""A report whose findings were measured: times made up, one of them refused."""

from __future__ import annotations

from dataclasses import replace

from tests.render import sample_report
from tracelens.results import Estimate, MeasuredCall, MeasuredWhole, Report, Verification, Verified
from tracelens.results.verified import Reason


def measured(low: float, mid: float, high: float) -> Estimate:
    return Estimate(low, mid, high, "measured")


def verified(mid: float = 8.2, *, name: str = "logits") -> Verified:
    call = MeasuredCall(
        name, "forward", "g1", "8192 × 50257 × 1280", "8192 × 50304 × 1280", 1, 1, 4054.0,
        measured(4000, 4010, 4020), measured(1400, 1410, 1420), measured(2.5, 2.6, 2.7), ["k"], ["k"],
    )  # fmt: skip
    refused = replace(call, role="dgrad", saving_ms=measured(0, 0, 0), why=f"no kernel {name}")
    whole = MeasuredWhole(
        "logits", "v=50257", "v=50304", measured(14, 14.2, 14.3), measured(5, 6, 6.1), measured(8, 8.2, 8.3),
        1, 1, 14.0, "a note",
    )  # fmt: skip
    none = Estimate(None, None, None, "measured")
    lost = MeasuredWhole("step", "", "", none, none, none, None, None, why=name)
    return Verified(
        "measured", "", "layers", measured(mid - 0.1, mid, mid + 0.1), measured(0.2, 0.21, 0.22),
        Estimate(7.8, 8.4, 8.9, "model"), Estimate(0.19, 0.21, 0.22, "model"), mid / 8.4, True, True,
        measured(8.0, 8.1, 8.2), [call, refused], [whole, lost],
        [f"not covered: {name}"], "NVIDIA H200", "2026-11-21",
    )  # fmt: skip


def report(one: Verified, *, notes: tuple[str, ...] = ()) -> Report:
    full = sample_report.full()
    first, *rest = full.findings
    first = replace(
        first, verified=one, saving_ms=one.saving_ms, saving_frac=one.saving_frac, basis="measured"
    )
    refused = replace(one, state="not_measured", why=Reason("experts"))
    run = Verification("h200", "NVIDIA H200", True, "2026-11-21", "tracelens verify", {"torch": "2.11.0"}, {},
                       0.004, 1, 2, list(notes))  # fmt: skip
    return replace(full, findings=[first, replace(rest[0], verified=refused), *rest[1:]], verification=run)
