"""What a change takes and saves, in the words of page and terminal: effects, GPU-hours, money."""

from __future__ import annotations

from tracelens import numbers as f
from tracelens.results import Amount, Effects, Estimate, Finding, Price, Report, Saving

_CHECKPOINT = {
    "loads": "checkpoint loads",
    "reshards": "checkpoint reshards",
    "pads": "pad the checkpoint",
    "converts": "convert the checkpoint",
    "scratch": "train from scratch",
    "unknown": "checkpoint: unknown",
}
_EFFORTS = {"config": "a setting", "code": "a code change", "retrain": "a new model to train"}
_ROUND = 0.00005  # shares below half of the last digit shown
_SMALL_HOURS = 0.1  # less is written in seconds
_PER = "per 1000 steps"


def money(value: float | None, price: Price) -> str:
    """Write an amount of money in the currency it was given in.

    >>> money(0.04683, Price(2.5, "EUR")), money(12.0, Price(3.0, "$")), money(12.0, Price(3.0))
    ('0.0468 EUR', '$12.0', '12.0')
    """
    sign = price.currency if len(price.currency) == 1 and not price.currency.isalpha() else ""
    return f"{sign}{f.sig(value)}" + (f" {price.currency}" if price.currency and not sign else "")


def _range(one: Estimate) -> str:
    """Write low and high with the decimals of the larger; "" where one is not known."""
    if one.low is None or one.high is None:
        return ""
    high = f.sig(one.high)
    return f"{one.low + 0.0:,.{len(high.partition('.')[2])}f}–{high}"


def _small(hours: float | None, price: Price | None) -> bool:
    """A price is of a GPU-hour, so beside one hours stay hours."""
    return hours is not None and price is None and 0 < abs(hours) < _SMALL_HOURS


def _time(hours: float | None, price: Price | None = None) -> str:
    """Write GPU-hours; a small part of one in GPU-seconds.

    >>> _time(2.5), _time(0.00229), _time(0.00229, Price(2.5, "$"))
    ('2.50 GPU-hours', '8.24 GPU-seconds', '0.00229 GPU-hours')
    """
    if hours is None or not _small(hours, price):
        return f"{f.sig(hours)} GPU-hours"
    return f"{f.sig(3600 * hours)} GPU-seconds"


def saving_line(saving: Saving | None, price: Price | None) -> str:
    """Say what is saved per 1000 steps of the job; a bound says that it is one. "" where it is not known."""
    if saving is None:
        return ""
    hours, coins = saving.gpu_hours, saving.money
    if hours.mid is None:
        text = f"at most {_time(hours.high, price)}"
        if coins is not None and price is not None:
            text += f", at most {money(coins.high, price)}"
        return f"{text} {_PER}"
    spread = _range(hours * 3600 if _small(hours.mid, price) else hours)
    text = f"{_time(hours.mid, price)}{f' ({spread})' if spread else ''}"
    if coins is not None and price is not None:
        spread = _range(coins)
        text += f" = {money(coins.mid, price)}{f' ({spread})' if spread else ''}"
    return f"{text} {_PER}"


def new_model(finding: Finding) -> bool:
    """Do trained weights not survive the change, not even padded?"""
    pads = finding.effects is not None and finding.effects.checkpoint == "pads"
    return finding.effort == "retrain" and not pads


def finding_line(finding: Finding, price: Price | None) -> str:
    """Say in one line what a finding takes and what it saves of the job."""
    effects = finding.effects
    padded = finding.effort == "retrain" and not new_model(finding)
    parts = [] if padded else [_EFFORTS.get(finding.effort, finding.effort)]
    if effects is not None:
        parts.append(_CHECKPOINT.get(effects.checkpoint, effects.checkpoint))
        if effects.parameters.delta:
            parts.append(f"{f.delta(effects.parameters.delta)} parameters")
    saved = saving_line(finding.saving, price) if price is not None else ""
    return " · ".join([*parts, *([f"saves {saved}"] if saved else [])])


def job_lines(report: Report) -> list[str]:
    """Say what 1000 steps cost, and what all findings together save of it."""
    cost = report.cost
    if cost is None:
        return []
    if cost.gpu_hours is None:
        return [f"Cost: {cost.why}."] if cost.price is not None and cost.why else []
    text = f"1000 steps cost {_time(cost.gpu_hours, cost.price)}"
    if cost.price is not None:
        text += (
            f" = {money(cost.money, cost.price)} (at {money(cost.price.per_gpu_hour, cost.price)} a GPU-hour)"
        )
    if cost.unprofiled_gpu_hours is not None:
        without = _time(cost.unprofiled_gpu_hours, cost.price)
        if cost.price is not None:
            without += f" = {money(cost.unprofiled_money, cost.price)}"
        text += f" as profiled, {without} without the profiler"
    gpus = f"{cost.gpus} GPU{'' if cost.gpus == 1 else 's'}"
    lines = [f"{text}, on {gpus} ({cost.gpus_source})."]
    saved = saving_line(cost.saving, cost.price)
    if saved and len(report.findings) > 1:
        lines.append(f"All findings together save {saved}, if every rank saves as much.")
    return lines


def effects_rows(effects: Effects) -> list[tuple[str, str]]:
    """Return what a change takes and does, as (name, sentence)."""
    return [
        ("Needs", effects.needs),
        ("Parameters", _amount(effects.parameters)),
        ("FLOPs", _amount(effects.flops, per=" FLOP a step")),
        ("Memory", _memory(effects)),
        ("Checkpoint", effects.checkpoint_how),
        ("Tokenizer", effects.tokenizer),
        ("Undo", effects.undo),
    ]


def _amount(amount: Amount, per: str = "") -> str:
    if amount.delta is None and amount.frac is None:
        return amount.how
    if not amount.delta and not amount.frac:
        return f"±0: {amount.how}"
    share = ""
    if amount.frac is not None and abs(amount.frac) >= _ROUND:
        share = f"{amount.frac:+.2%}"
    size = f"{_signed(amount.delta)}{per}" if amount.delta is not None and per else ""
    head = ", ".join(part for part in (share, size) if part)
    return f"{head}: {amount.how}" if head else amount.how


def _signed(value: float) -> str:
    """Write operations with their sign."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if abs(value) >= size:
            return f"{'+' if value > 0 else '-'}{f.sig(abs(value) / size)} {unit}"
    return f"{value:+,.0f}"


def _memory(effects: Effects) -> str:
    one = effects.memory
    if one.delta is None:
        return one.how
    return f"{f.signed_bytes(one.delta)} on this GPU, an estimate: {one.how}"


def framework_lines(finding: Finding) -> list[str]:
    """Return the fix in the configuration of each framework, under its name."""
    lines: list[str] = []
    for diff in finding.diffs:
        note = [f"# {diff.note}"] if diff.note else []
        blank = [""] if lines else []
        named = [*blank, f"# {diff.framework}", *diff.lines, *note]
        lines += named if diff.lines else [f"# {diff.framework}: {diff.note}"]
    return lines
