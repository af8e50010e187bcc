"""A simulated change in words, the same on the page and in the terminal."""

from __future__ import annotations

from tracelens import numbers as f
from tracelens.render.section import Content, Page, Section
from tracelens.results import RowChange, WhatIf

#: Changed rows that are shown; the JSON has all of them.
ROWS = 8


def title(one: WhatIf) -> str:
    """The change, with what follows from it: "vocab 50257 → 50304"."""
    if not one.change:
        return "no change: these are the present values"
    return ", ".join(f"{name} {now} → {then}" for name, (now, then) in one.change.items())


def claim(one: WhatIf) -> str:
    """What it saves or costs; "saving not known" where too little is predicted."""
    saving, frac = one.saving_ms, one.saving_frac
    if saving.mid is None:
        return "saving not known"
    if not one.change:
        return "no change"
    if one.saving_of == "gpu_work":
        word = "less" if saving.mid >= 0 else "more"
        return f"GPU work ≈ {f.ms(abs(saving.mid))} {word}"
    share = f" ({f.pct(abs(frac.mid))} of the step)" if frac.mid is not None else ""
    if one.tokens_frac:  # a step of other tokens is no faster or slower one: the time per token says that
        word = "step shorter by" if saving.mid >= 0 else "step longer by"
    else:
        word = "saves" if saving.mid >= 0 else "slower by"
    return f"{word} ≈ {f.ms(abs(saving.mid))}{share}"


def spread(one: WhatIf) -> str:
    """The range of the claim, and its basis."""
    saving = one.saving_ms
    if saving.low is None or saving.high is None or not one.change:
        return ""
    if saving.low >= 0:
        return f"range {f.ms_range(saving.low, saving.high)}; {saving.basis}"
    slower, faster = ("longer", "shorter") if one.tokens_frac else ("slower", "faster")
    if saving.high <= 0:
        return f"range {f.ms_range(-saving.high, -saving.low)} {slower}; {saving.basis}"
    return f"range {f.ms(-saving.low)} {slower} to {f.ms(saving.high)} {faster}; {saving.basis}"


def step(one: WhatIf) -> str:
    """The step before and after."""
    if one.step_ms is None:
        return "step time not known"
    if one.then_ms.mid is None:
        return f"step {f.ms(one.step_ms)}"
    if one.saving_of == "gpu_work":
        return f"step {f.ms(one.step_ms)} → {f.ms_range(one.then_ms.low, one.then_ms.high)}"
    return f"step {f.ms(one.step_ms)} → {f.ms(one.then_ms.mid)}"


def costs(one: WhatIf) -> list[str]:
    """What else the change does: parameters, operations, time per token."""
    parts = []
    now, then = (*one.parameters, None, None)[:2]
    if now is not None and then is not None:
        parts.append(
            f"parameters {then - now:+,} ({_signed((then - now) / now)})"
            if then != now
            else "parameters unchanged"
        )
    if one.flops_frac is not None:
        parts.append(f"FLOPs {_signed(one.flops_frac)}")
    if one.tokens_frac and one.step_ms and one.then_ms.mid is not None:
        per_token = one.then_ms.mid / one.step_ms / (1 + one.tokens_frac) - 1
        said = "not known" if one.saving_of == "gpu_work" else _signed(per_token)
        parts.append(f"tokens {_signed(one.tokens_frac)}, time per token {said}")
        if one.tokens_frac > 0:
            parts.append("memory for them not checked")
    return parts


def _signed(frac: float) -> str:
    """A growth, with its sign.

    >>> _signed(0.785), _signed(-0.0461), _signed(0.00018), _signed(0.0)
    ('+78.5%', '-4.6%', '+0.018%', 'unchanged')
    """
    if frac == 0:
        return "unchanged"
    return f"{100 * frac:+.1f}%" if abs(frac) >= 0.001 else f"{100 * frac:+.2g}%"


def row_name(row: RowChange) -> str:
    """Component and role."""
    return " ".join(word for word in (row.component, row.role) if word)


def rest_lines(one: WhatIf) -> list[str]:
    """What rows beyond those shown, and the kernels that move bytes, add to the saving."""
    lines = []
    more = one.rows[ROWS:]
    if more:
        name = "1 more row" if len(more) == 1 else f"{len(more)} more rows"
        lines.append(f"{name}: {_moved([(row.time_ms, row.then_ms.mid) for row in more])}")
    if one.rest:
        lines.append(f"kernels that move bytes: {_moved([(r.time_ms, r.then_ms.mid) for r in one.rest])}")
    return lines


def _moved(pairs: list[tuple[float, float]]) -> str:
    now, after = (sum(times) for times in zip(*pairs, strict=True))
    if f.ms(now) == f.ms(after):
        return f"{f.ms(now)} before and after"
    return f"{f.ms(now)} → {f.ms(after)}"


def _content(page: Page) -> Content | None:
    if not page.report.what_if:
        return None
    run = "measured beside it" if page.report.verification else "not measured"
    return {
        "note": f"the step with these changes, predicted; {run}",
        "title_of": title,
        "claim": claim,
        "spread": spread,
        "step": step,
        "costs": costs,
        "row_name": row_name,
        "rest_lines": rest_lines,
        "most": ROWS,
    }


SECTION = Section("what_if", "What if", _content, folds=False)
