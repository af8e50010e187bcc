"""Where the page's parts are found: in the installed package, or beside it in a source checkout."""

from __future__ import annotations

from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import jinja2
from markupsafe import Markup

from tracelens.render.text import clean


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
    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_load),
        autoescape=True,
        finalize=_finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
    )
