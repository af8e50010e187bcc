"""Are losses that shape alone does not explain found again? python -m benchmarks.planted [--seeds 24]

Each seed is a generated run with overlap, a clock and expert loss planted at once (tests/planted.py), and
its clean twin. Per part: the error of what the report says against the truth; in the twin, what it invents
as a share of the GEMM time. Three kinds of expert loss take turns: rows of padding, the rest of tiles, uneven
ranks.
"""

from __future__ import annotations

import argparse
import statistics

from tests.planted import KINDS, Truth, found, planted

_NEAR = 0.05


def errors(seed: int) -> tuple[dict[str, float], dict[str, float]]:
    """Part -> found / planted - 1; and what the clean twin has, over its GEMM time."""
    report, truth = planted(seed)
    got = found(report).parts()
    twin, _ = planted(seed, clean=True)
    total = twin.gemm_time.total if twin.gemm_time is not None else 1.0
    off = {name: got[name] / value - 1 for name, value in truth.parts().items()}
    return off, {name: value / total for name, value in found(twin).parts().items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=24)
    given = parser.parse_args()
    parts = tuple(Truth().parts())
    print(f"| seed | experts | {' | '.join(parts)} | invented in the twin |\n|---|---|---|---|---|---|")
    every: dict[str, list[float]] = {}
    invented: list[float] = []
    for seed in range(given.seeds):
        off, twin = errors(seed)
        kind = KINDS[seed % len(KINDS)]
        cells = " | ".join(f"{100 * off[name]:+.1f} %" for name in parts)
        invented.append(max(twin.values()))
        print(f"| {seed} | {kind} | {cells} | {100 * invented[-1]:.2f} % |", flush=True)
        for name in parts:
            every.setdefault(f"experts, {kind}" if name == "experts" else name, []).append(abs(off[name]))
    for name, far in every.items():
        near = sum(one <= _NEAR for one in far)
        print(f"{name}: {near} of {len(far)} within 5 %, median {100 * statistics.median(far):.2f} %,"
              f" worst {100 * max(far):.1f} %")  # fmt: skip
    print(f"invented in clean twins: {100 * max(invented):.2f} % of the GEMM time at most")


if __name__ == "__main__":
    main()
