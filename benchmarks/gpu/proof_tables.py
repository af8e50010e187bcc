"""How good the record is, and the tool by it: conditions, repeatability, predictions, overhead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.cells import MISSING, Table, number, share
from benchmarks.gpu.record import Record
from benchmarks.gpu.stage import Setting
from benchmarks.gpu.stages.captures import CAPTURES, FIRST_STEP, MORE_CAPTURES
from benchmarks.gpu.stages.overhead import OVERHEAD
from benchmarks.gpu.stages.repeatability import agreement
from benchmarks.gpu.stages.shapes import measured_of
from benchmarks.gpu.suggested import (
    ADVISED_FRAC,
    INSIDE_FRAC,
    LEAST_CHANGES,
    LEAST_MODELS,
    OF_SAVING_FRAC,
    OF_STEP_FRAC,
)
from tracelens.hardware.measurements import GemmMeasurement
from tracelens.numbers import DASH, pct

_NOWHERE = Setting("none", "h200", False, Path("nowhere"), Path("nowhere"))  # items as they are planned


def proof_tables(record: Record) -> list[Table]:
    return [
        first_step(record),
        predictions(record),
        ledger(record),
        suggestions(record),
        attribution(record),
        overhead(record),
        repeatability(record),
    ]


def first_step(record: Record) -> Table:
    """The step that three minutes on a GPU give."""
    compared = (record.data("first_step") or {}).get("compared")
    told = (record.verified or {}).get("first_step") or {}
    cells = (MISSING,) * 3
    if compared:
        cells = (
            number(compared["before_ms"], " ms"),
            number(compared["after_ms"], " ms"),
            pct(compared["saving_frac"]),
        )
    return Table(
        "One GPT-2 step, vocabulary 50257 and 50304",
        "Medians of the steps outside the capture's window, and what `tracelens compare` says of the traces.",
        ("before", "after", "saved", "compare"),
        ((*cells, told.get("verdict") or told.get("why") or MISSING),),
    )


def predictions(record: Record) -> Table:
    errors = (record.verified or {}).get("errors") or {}
    return Table(
        "Predictions of GEMMs left out",
        "Times of GEMMs that no one chose, predicted from the datasheet and from a calibration without them, "
        "as shares of the measured time.",
        ("prediction", "GEMMs", "median error", "90th percentile", "within the stated range"),
        (
            ("from the datasheet", *_cells(errors.get("gemm_model"))),
            ("calibrated", *_cells(errors.get("gemm_calibrated"))),
        ),
    )


def ledger(record: Record) -> Table:
    """Hit, miss and bias of what was predicted before it was measured."""
    lines = (record.verified or {}).get("ledger") or []
    rows = [
        (
            f"{line['kind']}, `{line['stage']}`",
            line["by"],
            str(line["predictions"]),
            str(line["hits"]),
            str(line["misses"]),
            f"{100 * line['bias_frac']:+.1f}%",
            share(line["median_error_frac"]),
        )
        for line in lines
    ]
    return Table(
        "Ledger",
        "Every prediction that was written down before its measurement (`results/<gpu>.ledger.csv`). A hit "
        "lies within the stated range; bias is the median of measured less predicted: of a time as a share "
        "of the prediction, of a saving in shares of the time per token.",
        ("what", "calibrated by", "predictions", "hits", "misses", "bias", "median error"),
        tuple(rows) or ((MISSING,) * 7,),
    )


def suggestions(record: Record) -> Table:
    """What is asked of predicted savings, and what measured layers say of it."""
    found = (record.verified or {}).get("suggestions")
    rows = (
        (
            "changes of shape",
            f"at least {LEAST_CHANGES}",
            MISSING if found is None else str(found["changes"]),
        ),
        ("models", f"at least {LEAST_MODELS}", MISSING if found is None else str(found["models"])),
        (
            "median error, of the layer's time",
            DASH,
            share(None if found is None else found["median_error_frac"]),
        ),
        (
            f"median of error less {pct(OF_SAVING_FRAC)} of the saving and {pct(OF_STEP_FRAC)} of the time",
            "not above 0",
            MISSING if found is None else f"{100 * found['over_frac']:+.2f}%",
        ),
        (
            "inside the stated range",
            f"at least {pct(INSIDE_FRAC)}",
            share(None if found is None else found["in_range_frac"]),
        ),
        (
            f"slower, though more than {pct(ADVISED_FRAC)} was predicted",
            "none",
            MISSING if found is None else ", ".join(found["misled"]) or "none",
        ),
    )
    return Table(
        "Suggestions",
        "The savings that `tracelens suggest` predicts, per token, beside those of whole layers, forward and "
        "backward, before and after the change.",
        ("", "asked", "measured"),
        rows,
    )


def _cells(found: Mapping[str, Any] | None) -> tuple[str, ...]:
    if found is None:
        return (MISSING,) * 4
    shares = (found["median_frac"], found["p90_frac"], found["in_range_frac"])
    return str(found["count"]), *map(share, shares)


def attribution(record: Record) -> Table:
    """Every captured trace beside its truth."""
    compared = (record.verified or {}).get("attribution") or {}
    rows: list[tuple[str, ...]] = []
    for item in (*FIRST_STEP.items(_NOWHERE), *CAPTURES.items(_NOWHERE), *MORE_CAPTURES.items(_NOWHERE)):
        captured, found = record.captures.get(item.key), compared.get(item.key)
        kernels = MISSING if captured is None else str(captured["kernels"])
        if found is None:
            rows.append((item.key, kernels, *(MISSING,) * 4))
            continue
        shares = (found[name] for name in ("matched_frac", "phase_frac", "module_frac"))
        told = ("unknown" if one is None else pct(one) for one in shares)
        rows.append((item.key, kernels, str(found["kernels"]), *told))
    return Table(
        "Attribution",
        "Sample traces against the truth recorded beside each: the same step with the GPU waited for around "
        "every module. Shares of GPU time; `unknown` where the truth does not know either.",
        ("trace", "kernels", "compared", "of the time compared", "right phase", "right module"),
        tuple(rows),
    )


def overhead(record: Record) -> Table:
    data = record.data("overhead")
    models = [] if data is None else data["models"]
    rows = []
    for at, item in enumerate(OVERHEAD.items(_NOWHERE)):
        row = models[at] if at < len(models) else None
        ratios = (None if row is None else row[name]["median"] for name in ("outside", "inside", "profiler"))
        step = None if row is None else row["bare_step_ms"]
        rows.append((item.key, number(step, " ms"), *(number(one) for one in ratios)))
    return Table(
        "Capture overhead",
        "Medians of neighbouring blocks of steps: outside the window against nothing installed, in the "
        "window against plain torch.profiler, and torch.profiler against nothing.",
        ("model", "bare step", "outside the window", "in the window", "torch.profiler"),
        tuple(rows),
    )


def repeatability(record: Record) -> Table:
    """Two runs of a sample, and each against the sweep itself."""
    data = record.data("repeatability")
    rows = [_agreement("two runs of the sample", None if data is None else data["agreement"])]
    both = None
    if data is not None and record.gemms:
        both = agreement(record.gemms, measured_of(data["first"], GemmMeasurement))
    rows.append(_agreement("first run against the sweep", both))
    return Table(
        "Repeatability",
        "How far the times of the same product are apart in two runs.",
        ("", "shapes", "median", "90th percentile", "worst"),
        tuple(rows),
    )


def _agreement(name: str, found: Mapping[str, Any] | None) -> tuple[str, ...]:
    if not found or not found["shapes"]:
        return (name, *(MISSING,) * 4)
    return (name, str(found["shapes"]), *(share(found[f"{key}_frac"]) for key in ("median", "p90", "worst")))


def stages_table(record: Record, stages: Sequence[Any]) -> Table:
    """What there is of each stage: when, with what, at which clock, how steady."""
    rows = []
    for stage in stages:
        result = record.results.get(stage.name)
        if result is None:
            rows.append((f"`{stage.name}`", *(MISSING,) * 5))
            continue
        software, clocks = result["software"], result["clocks"]
        reading = (clocks.get("after") or {}).get("sm_mhz")
        spread = result["spread"].get("median_frac")
        rows.append(
            (
                f"`{stage.name}`",
                str(result["date"])[:10],
                f"{software.get('torch')}, driver {software.get('driver')}",
                "unknown" if reading is None else f"{reading:.0f} MHz",
                "unknown" if spread is None else pct(spread),
                f"{result['seconds']:.0f} s",
            )
        )
    return Table(
        "What was measured",
        "One result file per stage; the clock is that under load after the stage, the spread that of the "
        "median item.",
        ("stage", "date", "torch", "SM clock", "spread", "took"),
        tuple(rows),
    )
