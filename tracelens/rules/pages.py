"""``tracelens explain``: the documentation page of a rule."""

from __future__ import annotations

from tracelens.errors import UsageError
from tracelens.rules.catalog import RULES
from tracelens.rules.engine.pages import page


def explain(rule: str) -> str:
    """The page of a rule as Markdown; ``rule`` is an id or a slug, in any case.

    Raises ``UsageError`` naming the rules there are when none has that id.

    >>> explain("tl101").splitlines()[0]
    '# TL101 pad-vocabulary'
    """
    wanted = rule.strip().lower()
    for known in RULES:
        if wanted in (known.id.lower(), known.slug):
            return page(known.id)
    near = [known for known in RULES if len(wanted) > 2 and wanted in known.slug]
    names = ", ".join(f"{known.id} ({known.slug})" for known in near or RULES)
    raise UsageError(
        f"unknown rule {rule[:40]!r}; {'did you mean' if near else 'known:'} {names}{'?' * bool(near)}"
    )
