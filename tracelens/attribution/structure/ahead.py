"""Keys and values that are made ahead of their layer: all layers that attend to one sequence of another model
can have theirs as soon as it is there, and a compiler, or a cache of them, makes them at once."""

from __future__ import annotations

from tracelens.attribution.structure.runs import Core, Label, Run


def label_ahead(run: Run) -> None:
    """Name the open products before a core that attends to another sequence and has no keys and values yet,
    which are together exactly as wide as its keys and values; fills ``run.labels``."""
    before = 0
    for core in run.cores:
        rows = key_rows(run, core)
        if rows is not None and rows != core.tokens and core.key_dim and core.value_dim:
            layer = run.labels[core.first].layer if core.first in run.labels else None
            heads = core.kv_heads or core.heads or 0
            widths = {heads * core.key_dim, heads * core.value_dim, heads * (core.key_dim + core.value_dim)}
            fits = [
                at
                for at in run.products(0, core.first)
                if (shape := run.shape(at)) is not None and (shape.m, shape.batch) == (rows, 1)
                if shape.n in widths
            ]
            has = any(at > before and run.labels.get(at) is not None for at in fits)
            made = [] if has else _together([at for at in fits if at not in run.labels], run, max(widths))
            run.labels |= {at: Label("attention.qkv", layer) for at in made}
        before = core.last


def _together(places: list[int], run: Run, wanted: int) -> list[int]:
    """The first of these that are as wide together."""
    wide, out = 0, []
    for at in places:
        shape = run.shape(at)
        wide += shape.n if shape is not None else 0
        out.append(at)
        if wide >= wanted:
            return out if wide == wanted else []
    return []


def key_rows(run: Run, core: Core) -> int | None:
    """Rows of the keys that a core takes: batch times length."""
    fused, scores = run.kinds[core.first].core, run.shape(core.first)
    if fused is not None:
        return fused.key_tokens or (fused.batch * fused.key_len if fused.batch and fused.key_len else None)
    if scores is None or not core.heads or scores.batch % core.heads:
        return None
    return scores.batch // core.heads * scores.n
