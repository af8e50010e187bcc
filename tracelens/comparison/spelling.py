"""How differences are written."""

from __future__ import annotations

from tracelens import numbers as f

_TIMES = 10  # as much as before: from here on percent say less than the factor


def arrow_ms(before: float | None, after: float | None) -> str:
    """Write two times, the unit once where it is the same.

    >>> arrow_ms(62.47, 58.1), arrow_ms(0.4, 1.5)
    ('62.5 → 58.1 ms', '400 µs → 1.50 ms')
    """
    old, new = f.ms(before), f.ms(after)
    if old.rpartition(" ")[2] == new.rpartition(" ")[2] and " " in old:
        old = old.rpartition(" ")[0]
    return f"{old} → {new}"


def arrow_pct(before: float | None, after: float | None, *, least: tuple[bool, bool] = (False, False)) -> str:
    """Write two shares; ``least`` says which are lower bounds. One that rounds to nothing bounds nothing.

    >>> arrow_pct(0.31, 0.4, least=(True, False)), arrow_pct(0.0001, 0.0001, least=(True, False))
    ('≥ 31.0% → 40.0%', 'unknown → <0.1%')
    """

    def said(one: float | None, bound: bool) -> str:
        text = f.pct(one)
        if not bound or one is None:
            return text
        return f.UNKNOWN if text.startswith("<") or not one else f"≥ {text}"

    return " → ".join(said(one, bound) for one, bound in zip((before, after), least, strict=True))


def signed_pct(frac: float | None) -> str:
    """Write a signed share; from ten times as much on, how many times.

    >>> signed_pct(-0.07), signed_pct(0.0312), signed_pct(0.0), signed_pct(155.687), signed_pct(None)
    ('−7.0%', '+3.1%', '±0%', '×157', 'unknown')
    """
    if frac is None:
        return f.UNKNOWN
    if frac >= _TIMES - 1:
        return f"×{f.sig(1 + frac)}"
    if abs(frac) < 0.0005:
        return "±0%"
    return f"{'+' if frac > 0 else '−'}{abs(frac):.1%}"


def signed_ms(value: float | None) -> str:
    """Write a signed time.

    >>> signed_ms(-8.15), signed_ms(0.0312), signed_ms(0.0)
    ('−8.15 ms', '+31.2 µs', '0 ms')
    """
    if value is None or value == 0:
        return f.ms(value)
    return ("+" if value > 0 else "−") + f.ms(abs(value))


#: What moves the times of work that did not change.
VARIATION = "run-to-run variation"


def span_ms(low: float, high: float) -> str:
    """Write two signed times, the unit once where it is the same.

    >>> span_ms(-8.39, -8.01), span_ms(-0.4, 1.5)
    ('−8.39 to −8.01 ms', '−400 µs to +1.50 ms')
    """
    old, new = signed_ms(low), signed_ms(high)
    if old.rpartition(" ")[2] == new.rpartition(" ")[2]:
        old = old.rpartition(" ")[0]
    return f"{old} to {new}"


def place_name(component: str, role: str | None, phase: str) -> str:
    """Write where a GEMM is: its component and role, or phase where no role is known or it is run again.

    >>> place_name("mlp.up", "forward", "forward"), place_name("optimizer", None, "optimizer")
    ('mlp.up fwd', 'optimizer')
    >>> place_name("mlp.up", "forward", "recompute")
    'mlp.up recompute'
    """
    short = {"forward": "fwd", "backward": "bwd"}
    word = phase if phase == "recompute" else role or phase
    return component if word == component else f"{component} {short.get(word, word)}"


def p_said(p: float | None) -> str:
    """Write a probability with its sign.

    >>> p_said(0.0286), p_said(0.00001)
    ('p = 0.029', 'p < 0.001')
    """
    return "p < 0.001" if p is not None and p < 0.001 else f"p = {p_value(p)}"


def p_value(p: float | None) -> str:
    """Write a probability with two digits.

    >>> p_value(0.4857), p_value(0.0286), p_value(0.00001)
    ('0.49', '0.029', '<0.001')
    """
    if p is None:
        return f.UNKNOWN
    return "<0.001" if p < 0.001 else f.sig(p, 2)
