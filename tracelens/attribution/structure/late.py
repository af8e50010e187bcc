"""Gradients of what was named by itself, after the backward of the layers was read."""

from __future__ import annotations

from tracelens.attribution.structure.products import OPEN, NamedProduct, Size, size_of
from tracelens.attribution.structure.runs import Label, Run
from tracelens.words import Role


def label_late(run: Run, forward: Run) -> None:
    """Name the products of a backward run whose sizes are gradients of one part alone, which is named by
    local evidence, and the gradient of an activation between two of them; fills ``run.labels``."""
    made = _gradients(forward)
    found: list[int] = []
    for at in range(len(run)):
        size = size_of(run, at)
        fits = made.get(size, set()) if size is not None else set()
        parts = {label for label, _ in fits}
        named = run.labels.get(at, OPEN)
        if named.component != "unattributed" or named.candidates or len(parts) != 1:
            continue
        part = min(parts, key=str)
        if part.evidence != "local":
            continue
        roles = {role for _, role in fits}
        role = roles.pop() if len(roles) == 1 else None
        run.labels[at] = Label(part.component, None, part.components, role=role, evidence="local")
        found.append(at)
    for at in found:
        behind = next((p for p in range(at + 1, len(run)) if run.kinds[p].what != "copy"), at)
        if behind not in run.labels and run.kinds[behind].tags & {"activation_backward"}:
            ends = {run.labels[p].component.partition(".")[0] for p in (at, behind + 1) if p in run.labels}
            if ends == {"mlp"}:
                run.labels[behind] = Label("mlp.activation", evidence="local")


def _gradients(forward: Run) -> dict[Size, set[tuple[Label, Role]]]:
    """By the size of a gradient, the products that have one of it, as far as they are named."""
    found: dict[Size, set[tuple[Label, Role]]] = {}
    for at in range(len(forward)):
        shape = forward.shape(at)
        if shape is None or forward.kinds[at].what not in ("gemm", "bmm"):
            continue
        label = forward.labels.get(at, OPEN)
        part = Label(label.component, None, label.components, evidence=label.evidence)
        product = NamedProduct(part, shape)
        found.setdefault(product.dgrad, set()).add((part, "dgrad"))
        for size in product.wgrads:
            found.setdefault(size, set()).add((part, "wgrad"))
    return found
