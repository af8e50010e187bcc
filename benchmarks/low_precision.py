"""How well the ratio of a linear's time in fp8 or less to that in bf16 is predicted, on published times.

``python -m benchmarks.low_precision`` judges linears of weight shapes that no constant was fitted to,
forward and with the cast of their activations; the 90th percentiles are ``TYPE_ERROR`` of
tracelens/step/predicted.py.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from benchmarks.silicon import GPUS, linears
from tracelens.gemm.predict import predict_gemm
from tracelens.hardware import find_gpu
from tracelens.step.predicted import LOW_PRECISION

_MOST = 600


def errors(folder: str, dtype: str, *, most: int = _MOST) -> list[float]:
    """ln(predicted / measured) of the ratio, for sizes from 768 on; empty where one of them is not known."""
    gpu = find_gpu(None, override=GPUS[folder][1])
    sizes = ["m", "n", "k"]
    tables = [linears(folder, one, judging=True) for one in ("bf16", dtype)]
    if any(table.empty for table in tables):
        return []
    both = tables[0][[*sizes, "time_us"]].merge(tables[1][[*sizes, "time_us"]], on=sizes)
    both = both[(both["m"] >= 1024) & (both["n"] >= 768) & (both["k"] >= 768)]
    found = []
    for m, n, k, wide_us, low_us in both.sample(min(most, len(both)), random_state=0).to_numpy():
        size = int(m), int(n), int(k)
        wide = predict_gemm(*size, gpu=gpu).time_us.mid
        low = predict_gemm(*size, gpu=gpu, dtype=dtype, cast=True).time_us.mid
        if not wide or not low:
            return []
        found.append(math.log(low / wide) - math.log(low_us / wide_us))
    return found


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print("| GPU | type | n | median | 90th percentile |\n|---|---|---|---|---|")
    for folder in GPUS:
        for dtype in LOW_PRECISION:
            found = np.abs(errors(folder, dtype))
            if len(found):
                print(
                    f"| {folder} | {dtype} | {len(found)} | {np.median(found):.3f} |"
                    f" {np.quantile(found, 0.9):.3f} |"
                )


if __name__ == "__main__":
    main()
