"""The per-kernel table as Parquet or CSV."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas as pd

from tracelens.errors import UsageError
from tracelens.files import atomic

#: A spreadsheet runs a cell that begins with one of these as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_kernels(frame: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write one row per GPU event to ``path``, whole or not at all; the suffix chooses the format.

    Parquet keeps every type. CSV keeps integer nanoseconds exactly, joins lists with ";", and puts a
    "'" before any text cell that begins with = + - @ tab or return, since a kernel's name comes from
    the trace and a spreadsheet would run it as a formula; numeric columns are never touched.
    Raises UsageError for another suffix or a place that cannot be written.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".parquet", ".csv"):
        raise UsageError(f"cannot tell the format of {path}: end it in .parquet or .csv")
    with atomic(path) as temporary:
        if suffix == ".parquet":
            frame.to_parquet(temporary, index=False, compression="zstd")
        else:
            safe = frame.assign(
                **{str(name): _safe(column) for name, column in frame.items() if _is_text(column)}
            )
            safe.to_csv(temporary, index=False, lineterminator="\n", errors="replace")


def _is_text(column: pd.Series[Any]) -> bool:
    return not (pd.api.types.is_numeric_dtype(column) or pd.api.types.is_datetime64_any_dtype(column))


def _safe(column: pd.Series[Any]) -> pd.Series[Any]:
    """Disarm a text column; names repeat, so each distinct one is looked at once."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column.cat.rename_categories(_cell)
    column = column.map(lambda cell: ";".join(map(str, cell)) if isinstance(cell, (list, tuple)) else cell)
    changed = {cell: _cell(cell) for cell in column.unique() if _cell(cell) is not cell}
    return column.map(lambda cell: changed.get(cell, cell)) if changed else column


def _cell(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
