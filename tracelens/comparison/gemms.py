"""The GEMMs of two reports side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from tracelens import numbers as f
from tracelens.accounting.loads import TOKENS, class_of, together
from tracelens.comparison import words
from tracelens.comparison.same_work import side_ms
from tracelens.results import GemmRow, Report
from tracelens.results.comparison import GemmAspect, GemmChange, GemmSide, GemmState
from tracelens.results.gemm import GemmKind
from tracelens.step.stalls import untold_alone

Place = tuple[GemmKind, str, str | None, str]  # kind, component, role, phase
Left = tuple[Place, list[GemmRow]]  # rows of one shape without a partner in their place
_T = TypeVar("_T")
_NAMED = 3  # shapes named of several that stand together
_LETTERS = ("m", "n", "k", "batch")
_CALLS = 0.02  # calls per step that differ by less are the same: windows cut steps unevenly


def match_gemms(before: Report, after: Report) -> list[GemmChange]:
    """Pair the GEMMs of two reports: first by the same shape, then what is left by what it computes.

    Rows of one shape and dtype in one place (component, role, phase) are one GEMM here, whatever their
    kernels, and so are those of experts' equal weights, however many tokens each got. What is left in a
    place is paired when its sizes are the same; when they are the same model dimensions ("b*s", "v", "h");
    when it is as much work (a product transposed, or batched); when it is in the same layers with two of M,
    N and K in common; or when it is the only one left. Parts that no module names are never paired by that
    last rule. A trace without shapes says no role either: there the same
    kernels are the same GEMM. What then has no partner in its own place has one elsewhere
    where a single one of the same shape and calls is left: it moved. What is left of one place on both
    sides stands together: one difference, where a row of each would look like a saving and a loss.
    """
    changes: list[GemmChange] = []
    old, new = _places(before.gemms), _places(after.gemms)
    rest: tuple[list[Left], list[Left]] = ([], [])
    for place in {**old, **new}:
        a, b = dict(old.get(place, {})), dict(new.get(place, {}))
        for shape in [shape for shape in a if shape in b]:
            changes.append(_pair(place, a.pop(shape), b.pop(shape)))
        left, right = list(a.values()), list(b.values())
        for rule in (_same_sizes, _same_expressions, _same_work, _same_layers):
            for one in list(left):
                if (other := _partner(one, left, right, rule)) is not None:
                    changes.append(_pair(place, one, other))
        if len(left) == len(right) == 1 and place[1] not in ("unattributed", "other", "optimizer"):
            changes.append(_pair(place, left.pop(), right.pop()))
        rest[0].extend((place, one) for one in left)
        rest[1].extend((place, one) for one in right)
    for old_left in list(rest[0]):
        if (found := _partner(old_left, *rest, _same_kernels)) is not None:
            named = max(old_left[0], found[0], key=lambda place: place[2] is not None)
            changes.append(_pair(named, old_left[1], found[1]))
    changes = _doubted([*changes, *_moved(*rest), *_together(*rest)])
    return sorted(changes, key=lambda one: -abs(one.diff_ms or 0.0))


def _doubted(changes: list[GemmChange]) -> list[GemmChange]:
    """Of a component with GEMMs of another shape, those whose grids are as before can have another K."""
    reshaped = {one.component for one in changes if one.state == "shape_changed"}
    return [
        replace(one, state="shape_unknown")
        if one.state == "same_shape" and one.component in reshaped and _k_unknown(one)
        else one
        for one in changes
    ]


def _k_unknown(one: GemmChange) -> bool:
    return one.kind == "gemm" and any(side is not None and side.k is None for side in (one.before, one.after))


def _partner(one: _T, left: list[_T], right: list[_T], fits: Callable[[_T, _T], bool]) -> _T | None:
    """Take out of both lists ``one`` and what alone fits it and nothing else; None where that is not so."""
    found = [other for other in right if fits(one, other)]
    if len(found) != 1 or sum(fits(other, found[0]) for other in left) != 1:
        return None
    left.remove(one)
    right.remove(found[0])
    return found[0]


def _moved(left: list[Left], right: list[Left]) -> list[GemmChange]:
    """Take out of both lists what is the same work in another component, role or phase."""

    def same(a: Left, b: Left) -> bool:
        return (
            a[0][0] == b[0][0]
            and _shape(a[1][0]) == _shape(b[1][0])
            and not differ(*(sum(row.calls_per_step for row in rows) for rows in (a[1], b[1])))
        )

    found = []
    for one in list(left):
        if (other := _partner(one, left, right, same)) is not None:
            _, component, role, phase = other[0]
            pair = _pair(one[0], one[1], other[1])
            found.append(replace(pair, state="moved", moved_to=[component, role or "", phase]))
    return found


def _together(left: list[Left], right: list[Left]) -> list[GemmChange]:
    """What has no partner: of one place on both sides as one row, else as a row each."""
    found = []
    for place in dict.fromkeys(place for place, _ in [*left, *right]):
        old, new = ([rows for at, rows in side if at == place] for side in (left, right))
        if old and new:
            found.append(_regrouped(place, old, new))
        else:
            found += [_lone(place, rows, "only_before") for rows in old]
            found += [_lone(place, rows, "only_after") for rows in new]
    return found


def _regrouped(place: Place, old: list[list[GemmRow]], new: list[list[GemmRow]]) -> GemmChange:
    a, b = (_many(rows) for rows in (old, new))
    said = [words.turned(a.shape_note, b.shape_note)] if a.shape_note != b.shape_note else []
    return _with_diff(GemmChange("regrouped", *place, a, b, said, None, None, None))


def _many(groups: list[list[GemmRow]]) -> GemmSide:
    """Several shapes as one side; its note names them."""
    one = _side([row for rows in groups for row in rows])
    if len(groups) == 1:
        return replace(one, shape_note=_spelled(_one(groups[0])))
    names = list(
        dict.fromkeys(_spelled(_one(rows)) for rows in sorted(groups, key=lambda rows: -_time(rows)))
    )
    return replace(
        one, m=None, n=None, k=None, batch=None,
        shape_note=words.several_shapes(names[:_NAMED], len(names) - _NAMED),
        dtype=_common(row.math_dtype or row.dtype for rows in groups for row in rows),
        layout=_common(row.layout for rows in groups for row in rows),
    )  # fmt: skip


def _unsized(row: GemmRow) -> bool:
    """Is its shape not known, or only bounded by its tiles?"""
    return row.shape_known == "unknown" or (row.kind == "gemm" and row.shape_known == "bounded")


def _known_of_one(a: GemmRow, b: GemmRow) -> bool:
    """Is the shape known of one side alone, or of attention bounded on the other?"""
    bounded = [row.kind == "attention" and row.shape_known == "bounded" for row in (a, b)]
    return _unsized(a) != _unsized(b) or bounded[0] != bounded[1]


def _spelled(row: GemmRow) -> str:
    if _unsized(row):
        return words.SHAPE_UNKNOWN
    return f.mnk(row.m, row.n, row.k, row.batch) or row.shape_note or row.kernel


def _time(rows: list[GemmRow]) -> float:
    return sum(row.time_ms_per_step for row in rows)


def _common(values: Iterable[str | None]) -> str | None:
    """The one value of them all, else None."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _places(rows: Iterable[GemmRow]) -> dict[Place, dict[object, list[GemmRow]]]:
    found: dict[Place, dict[object, list[GemmRow]]] = {}
    for row in rows:
        place = (row.kind, row.component, row.role, row.phase)
        found.setdefault(place, {}).setdefault(_shape(row), []).append(row)
    return found


def _one(rows: list[GemmRow]) -> GemmRow:
    """The row that stands for all of them: the first; of experts with several loads, the joined one."""
    return together(rows) if len({(row.m, row.n, row.k) for row in rows}) > 1 else rows[0]


def _shape(row: GemmRow) -> tuple[object, ...]:
    if isinstance(weights := class_of(row), tuple):
        return weights
    sizes = (row.m, row.n, row.k, row.batch, row.shape_note, row.m_range, row.n_range)
    if sizes == (None,) * len(sizes) or (row.role is None and _unsized(row)):
        # nothing known of it, or as good as nothing: only the same kernel is the same work
        return (row.kernel,)
    return (*sizes, row.math_dtype or row.dtype)


def _same_sizes(a: list[GemmRow], b: list[GemmRow]) -> bool:
    one, two = _shape(a[0]), _shape(b[0])
    return len(one) > 1 and one[:-1] == two[:-1]


def _same_expressions(a: list[GemmRow], b: list[GemmRow]) -> bool:
    one, two = ((rows[0].m_expr, rows[0].n_expr, rows[0].k_expr) for rows in (a, b))
    return one == two and any(part is not None for part in one)


def _same_work(a: list[GemmRow], b: list[GemmRow]) -> bool:
    """As many multiply-adds per step in the same type: transposed, or a batch in one call."""
    old, new = _work(a), _work(b)
    types = [rows[0].math_dtype or rows[0].dtype for rows in (a, b)]
    return old is not None and new is not None and types[0] == types[1] and not differ(old, new)


def _work(rows: list[GemmRow]) -> float | None:
    if any(size is None for row in rows for size in (row.m, row.n, row.k)):
        return None
    return sum(
        row.calls_per_step * (row.batch or 1) * (row.m or 0) * (row.n or 0) * (row.k or 0) for row in rows
    )


def _same_layers(a: list[GemmRow], b: list[GemmRow]) -> bool:
    if _layers(a) != _layers(b) or not _layers(a):
        return False
    pairs = ((a[0].m, b[0].m), (a[0].n, b[0].n), (a[0].k, b[0].k))
    return sum(one is not None and one == two for one, two in pairs) >= 2


def _same_kernels(a: Left, b: Left) -> bool:
    """The same kernels, which one side has neither shape nor role of."""
    roles = [place[2] is None for place, _ in (a, b)]
    sized = [_unsized(rows[0]) for _, rows in (a, b)]
    here, there = ((kind, component, phase) for (kind, component, _, phase), _ in (a, b))
    kernels, others = ({(row.kernel, row.calls_per_step) for row in rows} for _, rows in (a, b))
    return here == there and kernels == others and roles == sized and roles[0] != roles[1]


def _layers(rows: list[GemmRow]) -> list[str]:
    return sorted({row.layers for row in rows if row.layers is not None})


def _side(rows: list[GemmRow]) -> GemmSide:
    first = _one(rows)
    time = sum(row.time_ms_per_step for row in rows)
    rated = [(row.peak_frac, row.time_ms_per_step) for row in rows if row.peak_frac is not None]
    weight = sum(ms for _, ms in rated)
    return GemmSide(
        ids=[row.id for row in rows],
        layers=_layers(rows),
        m=first.m,
        n=first.n,
        k=first.k,
        batch=first.batch,
        shape_note=words.SHAPE_UNKNOWN if _unsized(first) else first.shape_note,
        dtype=first.math_dtype or first.dtype,
        layout=first.layout,
        kernels=sorted({row.kernel for row in rows}),
        calls_per_step=sum(row.calls_per_step for row in rows),
        time_ms_per_step=time,
        peak_frac=sum(frac * ms for frac, ms in rated) / weight
        if weight and len(rated) == len(rows)
        else None,
        taken_ms_per_step=None
        if any(untold_alone(row) for row in rows)
        else sum(row.overlap_ms_per_step for row in rows),
        peak_is_bound=any(row.work_known == "at_most" for row in rows),
    )


def _resized(a: GemmRow, b: GemmRow) -> list[str]:
    """The sizes that are not the same, by letter; of a shape that is not known those that surely are not."""
    sides = [[_span(row, letter) for letter in _LETTERS] for row in (a, b)]
    known = not _unsized(a) and not _unsized(b)
    return [
        words.turned(_said(one), _said(two), letter)
        for letter, one, two in zip(_LETTERS, *sides, strict=True)
        if (one != two if known else one and two and (one[1] < two[0] or two[1] < one[0]))
    ]


def _tokens(a: list[GemmRow], b: list[GemmRow]) -> list[str]:
    """Of experts, the tokens of all of them, where these are not as many."""
    letter = TOKENS[a[0].role or ""]
    old, new = (round(sum(getattr(row, letter) * row.calls_per_step for row in rows)) for rows in (a, b))
    return [words.turned(old, new, f"{letter} of all calls")] if differ(old, new) else []


def _span(row: GemmRow, letter: str) -> tuple[int, int] | None:
    """Least and most that a size can be; None where nothing is known of it."""
    value: int | None = getattr(row, letter)
    span: tuple[int, int] | None = getattr(row, f"{letter}_range", None)
    return span if value is None else (value, value)


def _said(span: tuple[int, int] | None) -> str:
    return f.UNKNOWN if span is None else "–".join(map(str, dict.fromkeys(span)))


def _pair(place: Place, a: list[GemmRow], b: list[GemmRow]) -> GemmChange:
    one, two = _side(a), _side(b)
    half_known = _known_of_one(a[0], b[0])
    joined = None in (one.m, two.m) and isinstance(class_of(a[0]), tuple) and _shape(a[0]) == _shape(b[0])
    sizes = _tokens(a, b) if joined else _resized(a[0], b[0])
    if not joined and one.shape_note != two.shape_note and not half_known:
        sizes.append(words.sizes(one.shape_note or words.SHAPE_KNOWN, two.shape_note or words.SHAPE_KNOWN))
    said: dict[GemmAspect, str] = {}
    if one.dtype != two.dtype:
        said["dtype"] = words.turned(one.dtype or f.UNKNOWN, two.dtype or f.UNKNOWN, "dtype")
    if one.layout != two.layout:
        said["layout"] = words.turned(one.layout or f.UNKNOWN, two.layout or f.UNKNOWN, "layout")
    if one.kernels != two.kernels:
        said["kernel"] = "kernel"
    if differ(one.calls_per_step, two.calls_per_step):
        said["calls"] = words.turned(f.count(one.calls_per_step), f.count(two.calls_per_step), "calls")
    state: GemmState = "shape_changed" if sizes else "same_shape"
    if a[0].shape_known == b[0].shape_known == "unknown":
        state = "shape_unknown"
    elif half_known:
        state, sizes = "shape_unknown", [words.turned(_spelled(a[0]), _spelled(b[0]))]
        said.pop("dtype", None)  # nor is it known
        said.pop("layout", None)
    differs: list[GemmAspect] = [*(["size"] if sizes else []), *said]  # type: ignore[list-item]
    changed = [*sizes, *said.values()]
    return _with_diff(GemmChange(state, *place, one, two, changed, None, None, None, differs=differs))


def _lone(place: Place, rows: list[GemmRow], state: GemmState) -> GemmChange:
    side = _side(rows)
    before, after = (side, None) if state == "only_before" else (None, side)
    return _with_diff(GemmChange(state, *place, before, after, [], None, None, None))


def _with_diff(one: GemmChange) -> GemmChange:
    old, new = side_ms(one.before), side_ms(one.after)
    both = one.before is not None and one.after is not None
    return replace(one, diff_ms=new - old, diff_frac=new / old - 1 if both and old else None)


def differ(before: float, after: float) -> bool:
    """Are two counts per step not the same, beyond what the cut of the window explains?"""
    return abs(after - before) > _CALLS * max(before, after)


def without_times(changes: list[GemmChange]) -> list[GemmChange]:
    """The rows as they compare across GPUs: shapes and shares of peak."""

    def bare(side: GemmSide | None) -> GemmSide | None:
        return None if side is None else replace(side, time_ms_per_step=None, taken_ms_per_step=None)

    return [
        replace(one, before=bare(one.before), after=bare(one.after), diff_ms=None, diff_frac=None)
        for one in changes
    ]
