"""Family C: what a dimension that is no multiple of a power of two costs."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.paper.drawn import (
    LAYOUTS,
    by_layout,
    classes,
    cliff,
    kernel_families,
    means,
    means_panel,
    means_table,
    misaligned,
    point,
    published,
    sentences,
)
from benchmarks.paper.figure import Figure, Panel, Point
from benchmarks.paper.source import Fits, Published, Source
from tracelens.numbers import sig

_M, _K = 27648, 4096
#: Below it the size of n hides its alignment; larger powers of two than _MOST are counted with it.
_LARGE, _MOST = 256, 128
#: The curve with every size: 8192 rows, one of N and K at 2560, the other from 2496 to 2625.
_DENSE_M, _DENSE, _DENSE_FROM, _DENSE_TO = 8192, 2560, 2496, 2625
#: Tensor cores want 16 bytes: 8 elements of two.
_TENSOR_CORE_ELEMENTS = 8


def alignment(here: Source, paper: Published) -> Figure:
    """C: (27648, 4096) x (4096, n), n from 64 to 510 in steps of 2."""

    def curves(source: Source) -> dict[str, tuple[Point, ...]]:
        found = source.products(
            "paper_c_alignment", lambda g: (g.m, g.k, g.batch) == (_M, _K, 1) and 64 <= g.n <= 510
        )
        return by_layout(source, ((one.layout, point(one, one.n)) for one in found))

    ours, theirs = curves(here), published(paper, curves)
    quoted = means(_large(theirs), _MOST) or paper.by_size("alignment")
    groups = {f"here, {layout}": means(_large(points), _MOST) for layout, points in ours.items()}
    says, differs = [], []
    for layout, points in ours.items():
        differs += [f"{layout}: {one}" for one in misaligned(groups[f"here, {layout}"], quoted, "n")]
        differs.append(cliff(points, "n", layout))
        says.append(_kernels(points, layout))
    panels = [
        Panel(f"{here.title}, {LAYOUTS[layout]}", "n", classes(here, points, _MOST, "n"))
        for layout, points in ours.items()
    ]
    if theirs and ours and paper.raw is not None:
        differs.append(cliff(theirs, "n", "The paper's A100"))
        panels.append(Panel(f"{paper.raw.title}, NN", "n", classes(paper.raw, theirs, _MOST, "n")))
    if ours:
        panels.append(means_panel(here, groups, quoted, "n", title=f"Means over n from {_LARGE}"))
    return Figure(
        "c_alignment", "C", "Alignment of n", f"out[{_M}, n] = a[{_M}, {_K}] · b[{_K}, n]", tuple(panels),
        sentences(differs), sentences(says),
        means_table(groups, quoted, f"largest power of two in n, n from {_LARGE}"),
    )  # fmt: skip


def _large(points: Sequence[Point]) -> list[Point]:
    return [one for one in points if one.x >= _LARGE]


def _kernels(points: Sequence[Point], where: str, name: str = "n") -> str:
    """Which kernels ran where tensor cores can load the dimension, and which elsewhere."""
    aligned = kernel_families(one for one in points if round(one.x) % _TENSOR_CORE_ELEMENTS == 0)
    other = kernel_families(one for one in points if round(one.x) % _TENSOR_CORE_ELEMENTS)
    if not aligned or not other:
        return ""
    by = f"{name} is divisible by {_TENSOR_CORE_ELEMENTS}"
    return f"{where}: kernels where {by}: {aligned}; elsewhere: {other}."


def dense_alignment(here: Source, paper: Published) -> Figure:
    """C again, every N and every K of one large product: which of the two is it that must be aligned."""
    panels, says = [], []
    for name in ("n", "k"):
        found = here.products(f"alignment_{name}", _dense(name))
        points = by_layout(here, ((one.layout, point(one, getattr(one, name))) for one in found)).get(
            "TN", ()
        )
        if not points:
            continue
        panels.append(Panel(f"every {name}, TN", name, classes(here, points, 64, name)))
        groups = means(points, 64)
        if len(groups) > 1:
            each = ", ".join(f"{power}: {sig(value)}" for power, value in groups.items())
            says.append(f"Mean TFLOP/s by the largest power of two in {name}: {each}.")
            says.append(cliff(points, name, f"Over {name}"))
            says.append(_kernels(points, f"Over {name}", name))
    return Figure(
        "c_alignment_dense", "C", "Alignment of N and of K",
        f"out[{_DENSE_M}, N] = a[{_DENSE_M}, K] · b[K, N], the other of N and K is {_DENSE}",
        tuple(panels), says=sentences(says),
    )  # fmt: skip


def _dense(name: str) -> Fits:
    other = "k" if name == "n" else "n"
    return lambda one: (
        (one.m, getattr(one, other), one.batch) == (_DENSE_M, _DENSE, 1)
        and _DENSE_FROM <= getattr(one, name) <= _DENSE_TO
    )
