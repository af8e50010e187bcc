"""Where the page's parts are found, what every template of ours can use, and the policy of every page."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

from tracelens import numbers as f
from tracelens.render.text import clean, unbroken

#: An option of a command; browsers break after each of its hyphens.
_FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
_CODE = re.compile(r"`([^`<>]+)`")


def _folder() -> Traversable:
    installed = resources.files("tracelens") / "templates"
    if installed.is_dir():
        return installed
    return Path(str(resources.files("tracelens"))).parent / "templates"


@cache
def part(name: str) -> str:
    """Return the text of one file of ``templates/``."""
    return (_folder() / name).read_text(encoding="utf-8")


def _load(name: str) -> str | None:
    try:
        return part(name)
    except FileNotFoundError:
        return None


def _finalize(value: object) -> object:
    """Strip control and direction characters from every string that any expression puts on the page."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def environment() -> jinja2.Environment:
    """Return an environment that escapes everything, knows no file system and fails on a wrong name."""
    env = jinja2.Environment(
        loader=jinja2.FunctionLoader(_load),
        autoescape=True,
        finalize=_finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
    )
    env.filters.update(
        ms=f.ms,
        sig=f.sig,
        pct=f.pct,
        count=f.count,
        cut=lambda text, limit: clean(str(text), limit=limit),
        prose=prose,
        num6=lambda value: f"{value:.6g}",
        percent=lambda frac: percent(frac, 3),
        percent2=percent,
        round_pct=lambda frac: f"{100 * frac:.0f}%",
        runs=lambda cells: [list(run) for _, run in groupby(cells, key=attrgetter("key"))],
    )
    env.globals.update(meter=meter, dash=f.DASH)
    return env


def prose(text: str | Markup, limit: int = 4000) -> Markup:
    """A sentence whose times and flags do not break over two lines, and whose `names` are code.

    >>> prose("`main` needs --tp-comm-overlap")
    Markup('<code>main</code> needs <span class="nb">--tp-comm-overlap</span>')
    """
    safe = text if isinstance(text, Markup) else escape(clean(unbroken(text), limit=limit))
    return Markup(_FLAG.sub(r'<span class="nb">\g<0></span>', _CODE.sub(r"<code>\1</code>", str(safe))))


def drawing(name: str, *given: object) -> str:
    """One of the page's drawings: a macro of ``figures.html.j2`` filled."""
    macro = getattr(_drawings(), name)
    return str(macro(*given))


@cache
def _drawings() -> object:
    return environment().get_template("figures.html.j2").module


def percent(frac: float, decimals: int = 2) -> str:
    """A place or a width in a picture.

    >>> percent(0.25), percent(1 / 3)
    ('25%', '33.33%')
    """
    return f"{100 * frac:.{decimals}f}".rstrip("0").rstrip(".") + "%"


def meter(frac: float) -> Markup:
    """Draw a share of 0..1 as a thin bar; the number stands beside it, so it is silent to readers."""
    width = 100 * min(max(frac, 0.0), 1.0)
    return Markup(f'<svg class="meter" aria-hidden="true"><rect width="{percent(width / 100, 1)}"/></svg>')


def policy(css: str, js: str = "") -> str:
    """Allow exactly our own style and script, and nothing else: no network, no frames, no inline code."""
    script = f"script-src {_digest(js)}; " if js else ""
    return f"default-src 'none'; style-src {_digest(css)}; {script}base-uri 'none'; form-action 'none'"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
