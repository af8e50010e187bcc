"""Made-up curves and layers for the renderers' tests. None was measured."""
# ruff: noqa: E501 - tables of made-up facts read better in wide rows

from __future__ import annotations

from collections.abc import Sequence

from tracelens.results import (
    Basis,
    ComponentRow,
    Curve,
    Explorer,
    LayerPass,
    LayerRow,
    Layers,
    LayerTimeline,
    Suggested,
)

_OUTSIDE = ("embedding", "logits", "loss", "optimizer", "grad_clip", "memory", "unattributed", "other")


def explorer(step_ms: float) -> Explorer:
    """A curve of each kind: on and off the grid, counted, per token, and one that could not be made."""
    vocab = [50176, 50240, 50256, 50257, 50259, 50304, 50368]
    aligned = [128, 128, 32, 2, 2, 128, 128]
    saved = [-4.0, -3.9, -3.6, 0.0, 0.1, -3.5, -3.4]
    ffn = [9984, 10112, 10176, 10240, 10241, 10248, 10304, 10368]
    grown = [-2.0, -1.1, -0.6, 0.0, 80.0, 0.7, 0.4, None]
    return Explorer(
        [
            _curve("ffn", 10240, step_ms, ffn, grown, alignment_bytes=[128] * 4 + [2, 16, 128, 128],
                   notes=["communication stays as measured", "1 value has no prediction (its kernel is not known)"]),
            _curve("vocab", 50257, step_ms, vocab, saved, alignment_bytes=aligned, suggested=[Suggested(50304, "TL101")],
                   notes=["communication stays as measured"]),
            _curve("heads", 32, step_ms, [10, 16, 20, 32, 40], [-9.0, -6.0, -7.5, 0.0, 3.0],
                   suggested=[Suggested(20, "TL301")], follows="head_dim = hidden / heads"),
            _curve("sequence", 2048, step_ms, [1984, 1985, 2048, 2049, 2112], [0.4, 2.2, 0.0, 1.9, -0.2],
                   per_token=True, basis="calibrated", notes=["whether it fits is not predicted"]),
            Curve("hidden", 2560, False, [], [], [], [], why="sizes of 4.1 ms are in no formula"),
        ],
        None,
    )  # fmt: skip


def _curve(
    parameter: str,
    now: int,
    step_ms: float,
    values: list[int],
    grown_ms: Sequence[float | None],
    *,
    per_token: bool = False,
    alignment_bytes: list[int] | None = None,
    suggested: list[Suggested] | None = None,
    follows: str = "",
    basis: Basis = "model",
    notes: list[str] | None = None,
) -> Curve:
    mid = [None if one is None else step_ms + one for one in grown_ms]
    wide = [0.0 if value == now else 1.5 for value in values]
    return Curve(
        parameter, now, per_token, values,
        [None if one is None else one - width for one, width in zip(mid, wide, strict=True)],
        mid,
        [None if one is None else one + width for one, width in zip(mid, wide, strict=True)],
        alignment_bytes or [], suggested or [], follows, basis, notes or [],
    )  # fmt: skip


def layers(components: Sequence[ComponentRow], count: int) -> Layers:
    """The components' time over ``count`` layers, the fourth of them without an MLP, and one layer's kernels."""
    rows = []
    for one in components:
        inside = not one.component.startswith(_OUTSIDE)
        share = [1.0] * count if inside else [0.0] * count
        if one.component.startswith("mlp"):
            share[3] = 0.0
        whole = sum(share) or 1.0
        time = one.time_ms_per_step
        rows.append(
            LayerRow(
                one.component, one.phase, [time * part / whole for part in share], 0.0 if inside else time
            )
        )
    names = [
        "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT",
        "void norm_kernel<float>(float*)",
        "ncclDevKernel_AllGather",
    ]
    forward = LayerPass(
        "forward", 12.5, 400.0, 0.9, [0.0, 20.0, 50.0, 150.0, 260.0], [18.0, 120.0, 90.0, 100.0, 140.0],
        ["norm", "attention.qkv", "communication", "mlp.up", "mlp.down"], [1, 0, 2, 0, 0], [7, 7, 13, 7, 7],
        [16, 16, -1, 16, 16],
    )  # fmt: skip
    backward = LayerPass(
        "backward", 80.0, 900.0, 0.97, [0.0, 300.0, 600.0], [290.0, 280.0, 300.0], ["mlp.down", "mlp.down", "norm"],
        [0, 0, 1], [7, 7, 7], [16, 17, 16], left_out=4,
    )  # fmt: skip
    return Layers(list(range(count)), rows, LayerTimeline(16, 13, names, [forward, backward]), None)
