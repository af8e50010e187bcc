"""The table of docs/attribution.md: ``python -m benchmarks.attribution_lists``.

Sums ``results/attribution_lists.tsv``: a row for every time that a list was judged
(``benchmarks.attribution_zoo``), with its models (``n``) and how many are right or wrong. ``when`` is
``first`` (the first run of the list under that setting), ``fixed`` (again, what was wrong fixed) or
``developed`` (the models worked with). ``decomposed`` marks rows whose fused operators were recorded as
their parts.
"""

from __future__ import annotations

import csv
from pathlib import Path

ROWS = Path(__file__).with_name("results") / "attribution_lists.tsv"
#: What a line of the table sums: models, setting, and what it is called.
LINES = (
    ("transformers", "shapes", "`transformers`"),
    ("timm", "shapes", "`timm`, `torchvision`"),
    ("frameworks", "shapes", "megatron-core, torchtitan"),
    ("libraries", "shapes", "libraries and authors' packages"),
    ("repositories", "shapes", "repositories and training code"),
    ("transformers", "trained", "`transformers`, as people train"),
    ("transformers", "no shapes", "`transformers`, without shapes"),
    ("libraries and repositories", "no shapes", "libraries and repositories, without shapes"),
    ("transformers", "compiled", "torch.compile"),
    ("transformers", "compiled no shapes", "torch.compile, without shapes"),
    ("transformers", "h100", "recorded on an H100"),
    ("transformers", "h100 no shapes", "the same, without shapes"),
)
WHEN = {"first": "first run", "fixed": "after fixes"}
COUNTS = ("right_99", "right_95", "wrong", "named_right", "named_wrong")


def table() -> str:
    """The lines as markdown, a newline behind each."""
    with ROWS.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    lines = [
        _line(f"{called}, {said}" if when == "first" else said, found)
        for models, setting, called in LINES
        for when, said in WHEN.items()
        if (found := [r for r in rows if (r["models"], r["setting"], r["when"]) == (models, setting, when)])
    ]
    developed = [r for r in rows if r["when"] == "developed" and r["setting"] == "shapes"]
    return "".join([*lines, _line("developed with (three kinds)", developed)])


def _line(called: str, rows: list[dict[str, str]]) -> str:
    models = sum(int(row["n"]) for row in rows)
    parts = sum(int(row["n"]) for row in rows if row["decomposed"])
    cells = [called, f"{models}" + (" †" if parts == models else f" ({parts} †)" if parts else "")]
    cells += [_share(rows, name) for name in COUNTS]
    return f"| {' | '.join(cells)} |\n"


def _share(rows: list[dict[str, str]], name: str) -> str:
    """Of the models that were judged so."""
    told = [row for row in rows if row[name]]
    if not told:
        return "-"
    percent = 100 * sum(int(row[name]) for row in told) / sum(int(row["n"]) for row in told)
    return f"{percent:.1f} %" if 0 < percent < 10 or 99 < percent < 100 else f"{percent:.0f} %"


if __name__ == "__main__":
    print(table(), end="")
