"""The drawings of docs/concepts.md: ``python docs/drawings.py`` writes them, a test compares.

What they show is computed by the same code that judges a trace: tiles, waves, the ladder, the prediction.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from html import escape
from pathlib import Path

from tracelens.gemm.ladder import alignment_ladder
from tracelens.gemm.predict import predict_gemm
from tracelens.hardware import Gpu, find_gpu

FOLDER = Path(__file__).parent / "images"
_WIDTH = 720
_INK, _FAINT, _USED, _WASTED = "#1f2933", "#c9d1d9", "#3d6fb6", "#e7b98a"


def drawings() -> dict[str, str]:
    """File name -> SVG of each drawing."""
    a100 = find_gpu(None, override="a100-sxm-40gb")
    return {"tile.svg": _tiles(), "wave.svg": _waves(a100), "alignment.svg": _alignment(a100),
            "sawtooth.svg": _sawtooth(a100)}  # fmt: skip


def _svg(height: int, said: str, parts: Iterable[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(said)}" font-family="system-ui, sans-serif" font-size="13" fill="{_INK}">\n'
        f'<rect width="{_WIDTH}" height="{height}" rx="8" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _rect(x: float, y: float, width: float, height: float, fill: str, stroke: str = "none") -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}" '
        f'stroke="{stroke}"/>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _tiles() -> str:
    """An output of 320 x 576 under tiles of 128 x 128: what lies outside of it is computed and dropped."""
    m, n, tile, scale = 320, 576, 128, 0.5
    rows, columns = -(-m // tile), -(-n // tile)
    left, top, side = 30, 46, tile * scale
    parts = [_rect(left + column * side, top + row * side, side, side, _WASTED, "#ffffff")
             for row in range(rows) for column in range(columns)]  # fmt: skip
    parts.append(_rect(left, top, n * scale, m * scale, _USED))
    parts += [f'<path d="M{left + column * side:.1f} {top}v{rows * side:.1f}" stroke="#ffffff"/>'
              for column in range(1, columns)]  # fmt: skip
    parts += [f'<path d="M{left} {top + row * side:.1f}h{columns * side:.1f}" stroke="#ffffff"/>'
              for row in range(1, rows)]  # fmt: skip
    used = m * n / (rows * columns * tile * tile)
    parts.append(_text(left, 28, f"out[{m}, {n}] in tiles of {tile} × {tile}"))
    right = left + columns * side + 30
    lines = [
        f"⌈{m} / {tile}⌉ × ⌈{n} / {tile}⌉ = {rows} × {columns} = {rows * columns} tiles",
        f"{m} · {n} / ({rows * columns} · {tile} · {tile}) = {used:.0%}",
        "of their area is output: a tile takes its whole time",
    ]
    for at, line in enumerate(lines):
        parts.append(_text(right, top + 20 + 24 * at, line))
    for at, (colour, word) in enumerate(((_USED, "output"), (_WASTED, "computed, then dropped"))):
        y = top + 110 + 24 * at
        parts += [_rect(right, y - 11, 13, 13, colour), _text(right + 21, y, word)]
    return _svg(260, f"{rows * columns} tiles, {used:.0%} of their area is output", parts)


def _waves(gpu: Gpu) -> str:
    """1.1 waves on an A100: the second is nearly empty, and takes as long as the first."""
    sms = gpu.sms or 0
    tiles = sms + 12
    columns = 36
    parts = [_text(30, 28, f"{tiles} tiles on the {sms} SMs of an A100")]
    cell, top = 18.0, 70.0
    for wave in range(2):
        left = 30 + wave * (_WIDTH - 60) / 2
        side = (_WIDTH - 100) / 2 / columns * 2
        parts.append(_text(left, 56, f"wave {wave + 1}"))
        for sm in range(sms):
            busy = wave * sms + sm < tiles
            x, y = left + sm % (columns // 2) * side, top + sm // (columns // 2) * cell
            parts.append(_rect(x, y, side - 2, cell - 2, _USED if busy else _FAINT))
    bottom = top + -(-sms // (columns // 2)) * cell + 22
    full = tiles / (2 * sms)
    sum_up = f"⌈{tiles} / {sms}⌉ = 2 waves, {tiles} / (2 · {sms}) = {full:.0%} full"
    parts.append(_text(30, bottom, f"{sum_up}: {tiles - sms} tiles more cost as much as {sms}."))
    return _svg(int(bottom) + 20, f"Two waves, {full:.0%} full", parts)


def _alignment(gpu: Gpu) -> str:
    """Throughput by the alignment of the worst operand, fp16 on an A100, as published."""
    ladder = alignment_ladder(gpu=gpu, dtype="fp16")
    steps = [step for step in ladder.steps if step.mid is not None and step.alignment_bytes > 1]
    parts = [
        _text(
            30,
            28,
            "Rate by the least aligned row, of one operand or the output, fp16 on an A100, 128 bytes = 1",
        )
    ]
    for at, step in enumerate(steps):
        y = 46 + 26 * at
        mid = step.mid or 0.0
        parts.append(_text(150, y + 14, f"{step.alignment_bytes} bytes", "end"))
        parts.append(_rect(160, y, 400 * mid, 18, _USED))
        low, high = step.low or mid, step.high or mid
        parts.append(f'<path d="M{160 + 400 * low:.1f} {y + 9}h{400 * (high - low):.1f}" stroke="{_INK}"/>')
        parts.append(_text(575, y + 14, f"{mid:.2f}" + (f" ({low:.2f} to {high:.2f})" if high > low else "")))
    said = ", ".join(f"{step.alignment_bytes} bytes {step.mid:.2f}" for step in steps)
    return _svg(46 + 26 * len(steps) + 14, f"Rate by alignment: {said}", parts)


def _sawtooth(gpu: Gpu) -> str:
    """The predicted rate of 2304 x N x 4096 in fp16 on an A100: each fall is a wave that begins."""
    sizes = range(1024, 4097, 64)
    rates = [(n, predict_gemm(2304, n, 4096, gpu=gpu, dtype="fp16").tflops or 0.0) for n in sizes]
    left, right, top, bottom = 60, _WIDTH - 30, 46, 230
    peak = 250.0

    def place(n: int, rate: float) -> tuple[float, float]:
        x = left + (n - sizes.start) / (sizes.stop - 1 - sizes.start) * (right - left)
        return x, bottom - rate / peak * (bottom - top)

    parts = [
        _text(30, 28, "TFLOP/s of out[2304, N] = a[2304, 4096] @ b[4096, N], fp16 on an A100, predicted")
    ]
    for rate in range(0, 251, 50):
        y = place(0, rate)[1]
        parts.append(f'<path d="M{left} {y:.1f}H{right}" stroke="{_FAINT}" stroke-width="0.6"/>')
        parts.append(_text(left - 8, y + 4, str(rate), "end"))
    for n in range(1024, 4097, 512):
        parts.append(_text(place(n, 0)[0], bottom + 20, str(n), "middle"))
    points = " ".join("{:.1f},{:.1f}".format(*place(n, rate)) for n, rate in rates)
    parts.append(f'<polyline points="{points}" fill="none" stroke="{_USED}" stroke-width="2"/>')
    parts.append(_text((left + right) / 2, bottom + 40, "N", "middle"))
    return _svg(
        bottom + 52, "Predicted rate against N: it rises within a wave and falls where one begins", parts
    )


def main(folder: Path = FOLDER) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in drawings().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
