"""The products of a forward that have a weight, and the sizes of their gradients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tracelens.attribution.structure.runs import Label, Run
from tracelens.gemm import GemmShape
from tracelens.words import Role

OPEN = Label("unattributed")
Size = tuple[int, int, int, int]  # batch, M, N, K


@dataclass(frozen=True, slots=True)
class NamedProduct:
    """A product of the forward; one without a name has gradients as well, which are of none either."""

    label: Label
    shape: GemmShape

    @property
    def dgrad(self) -> Size:
        return (self.shape.batch, self.shape.m, self.shape.k, self.shape.n)

    @property
    def size(self) -> Size:
        return (self.shape.batch, self.shape.m, self.shape.n, self.shape.k)

    @property
    def wgrads(self) -> tuple[Size, Size]:
        """Stored as [out, in] or [in, out]: both are in use."""
        batch, m, n, k = self.shape.batch, self.shape.m, self.shape.n, self.shape.k
        return (batch, n, k, m), (batch, k, n, m)

    def named(self, role: Role) -> Label:
        label = self.label
        return Label(label.component, label.layer, label.components, label.candidates, role)


def products_of(run: Run, places: Iterable[int] | None = None) -> list[NamedProduct]:
    """The products of a forward run that have a weight, in order, or of these ``places``."""
    return [
        NamedProduct(run.labels.get(at, OPEN), shape)
        for at in (range(len(run)) if places is None else places)
        if is_product(run, at, run.labels.get(at, OPEN)) and (shape := run.shape(at)) is not None
    ]


def is_product(run: Run, at: int, label: Label) -> bool:
    """With a weight: the products inside attention have none."""
    kind = run.kinds[at]
    if label.role in ("dgrad", "wgrad"):
        return False
    return kind.what == "gemm" or (kind.what == "bmm" and label.component.startswith("moe."))


def size_of(run: Run, at: int) -> Size | None:
    shape = run.shape(at)
    if shape is None or run.kinds[at].what not in ("gemm", "bmm"):
        return None
    return (shape.batch, shape.m, shape.n, shape.k)
