"""Heads without shapes, wherever they stand: of chunks of tokens, of a second token ahead, behind the layers.

A loss by its name takes what the product before it gives, with a cast and a bias between at most.
"""

from __future__ import annotations

from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.walk import loses

_NEAR = 4  # units from the product to the loss, at most


def label_heads(run: Run) -> None:
    """Name the products whose results losses take; fills ``run.labels``."""
    for at in range(1, len(run)):
        if loses(run, at) and not loses(run, at - 1):
            taken = next((p for p in range(at - 1, max(at - _NEAR, 0) - 1, -1) if not _hands_on(run, p)), at)
            if run.kinds[taken].what == "gemm":
                run.labels.setdefault(taken, Label("logits"))


def _hands_on(run: Run, at: int) -> bool:
    return run.kinds[at].what in ("copy", "add", "helper")
