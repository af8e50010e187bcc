"""Kernel times that others measured, read beside the checkout, and which of them a fit may see.

The rows (NVIDIA's aiconfigurator, Apache-2.0, commit 095f58a51: ``shared/silicon/README.md``) are no part
of this repository. A weight shape (n, k) belongs as a whole either to the two thirds that constants are
fitted to or to the third that only judges them.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

FOLDER = Path(__file__).parents[2] / "shared" / "silicon"
#: Folder of the table -> the device that it names, and that device's key in gpus.toml. Rows of a folder that
#: were taken on another device (GB300 under b300_sxm) are left out.
GPUS = {
    "a100_sxm": ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
    "h100_sxm": ("NVIDIA H100 80GB HBM3", "h100-sxm"),
    "h200_sxm": ("NVIDIA H200", "h200"),
    "b200_sxm": ("NVIDIA B200", "b200"),
    "b300_sxm": ("NVIDIA B300 SXM6 AC", "b300"),
    "gb200": ("NVIDIA GB200", "gb200"),
    "gb300": ("NVIDIA GB300", "gb300"),
    "l40s": ("NVIDIA L40S", "l40s"),
    "rtx_pro_6000_server": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
}
#: The project's name of a type -> the table's.
DTYPES = {"bf16": "bfloat16", "fp8": "fp8", "fp8-block": "fp8_block", "nvfp4": "nvfp4"}
#: Rows whose two nearest sources differ by more than this (ln) say only that kernels differ.
_AGREE = 0.1


def left_out(*shape: int) -> bool:
    """Is this weight shape, head geometry or expert geometry kept from every fit? One in three is.

    >>> left_out(4096, 4096), left_out(5120, 10240)
    (True, False)
    """
    return int(hashlib.sha256("x".join(map(str, shape)).encode()).hexdigest(), 16) % 3 == 0


@lru_cache(maxsize=1)
def _gemms() -> pd.DataFrame:
    return pd.read_parquet(FOLDER / "gemm.parquet")


def linears(gpu: str, dtype: str, *, judging: bool) -> pd.DataFrame:
    """Linears of one folder: m, n, k, one column per source in us, and ``time_us``, their median.

    ``judging`` gives the shapes left out of fits, otherwise those to fit. Rows of several sources of which no
    two agree are left out; those of a single one stay in bf16 only, where sources agree.
    """
    rows = _gemms()
    rows = rows[
        (rows["gpu"] == gpu) & (rows["device"] == GPUS[gpu][0]) & (rows["gemm_dtype"] == DTYPES[dtype])
    ]
    out = {(n, k): left_out(n, k) for n, k in set(zip(rows["n"].tolist(), rows["k"].tolist(), strict=True))}
    wanted = [out[n, k] == judging for n, k in zip(rows["n"].tolist(), rows["k"].tolist(), strict=True)]
    rows = rows.loc[wanted]
    rows = rows.assign(source=[one.split()[0] for one in rows["source"]], latency=rows["latency"] * 1e3)
    table = rows.pivot_table(index=["m", "n", "k"], columns="source", values="latency", aggfunc="median")
    logs = np.sort(np.log(table.to_numpy()), axis=1)  # NaN, a source that did not measure, comes last
    apart = np.fmin.reduce(np.diff(logs, axis=1), axis=1, initial=np.inf)
    agreed = (apart <= _AGREE) | ((table.notna().sum(axis=1) == 1) & (dtype == "bf16"))
    found: pd.DataFrame = table.assign(time_us=table.median(axis=1))[agreed]
    return found.reset_index()


def sources(table: pd.DataFrame) -> list[str]:
    """The sources among the columns of ``linears``."""
    return [name for name in table.columns if name not in ("m", "n", "k", "time_us")]
