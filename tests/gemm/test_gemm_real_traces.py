"""Kernel names against the operators that launched them, in real traces recorded by others.

The two readings are independent: the operator's strides say which layout cuBLAS was asked for, the
kernel's name says which one it ran.
"""

from __future__ import annotations

import bisect
import gzip
import json
from collections import Counter, defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from tracelens.gemm import (
    ATTENTION_OPS,
    AttentionShape,
    GemmShape,
    KernelName,
    bound_attention,
    bound_shape,
    flops,
    is_gemm_op,
    parse_kernel_name,
    shape_of,
    split_k_factor,
    tiles,
)

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
FILES = [
    "d1_h100_nanogpt_compile_8gpu_rank0_2025-10.json.gz",
    "d2_rtx3060_tinylm_compile_fp32.json.gz",
    "d3_h100_bert_small_modules_infer.json.gz",
    "d4_h100_encoder_eager_modules_tf32_extid_quirk.json.gz",
    "d6_h100_vgg13_train_modules_fwdbwd.json.gz",
    "d8_mi300_bert_small_modules_infer.json.gz",
]

Row = tuple[dict[str, Any], dict[str, Any] | None]


@lru_cache(maxsize=2)
def kernels_with_ops(file: str) -> list[Row]:
    """Every kernel of a trace with the innermost operator around its launch."""
    path = TRACES / file
    if not path.exists():
        pytest.skip("the shared traces are not here")
    events = json.loads(gzip.decompress(path.read_bytes()), strict=False)["traceEvents"]
    ops: dict[str, list[tuple[float, float, dict[str, Any]]]] = defaultdict(list)
    launches: dict[int, dict[str, Any]] = {}
    for event in events:
        if event.get("cat") == "cpu_op":
            ops[str(event["tid"])].append((event["ts"], event["ts"] + event.get("dur", 0), event))
        elif event.get("cat") in ("cuda_runtime", "cuda_driver"):
            launches[event["args"].get("correlation")] = event
    for spans in ops.values():
        spans.sort(key=lambda span: (span[0], -span[1]))
    starts = {tid: [span[0] for span in spans] for tid, spans in ops.items()}
    rows: list[Row] = []
    for event in events:
        if event.get("cat") != "kernel":
            continue
        launch = launches.get(event["args"].get("correlation"))
        op = None
        if launch is not None:
            tid = str(launch["tid"])
            for index in range(bisect.bisect_right(starts.get(tid, []), launch["ts"]) - 1, -1, -1):
                if ops[tid][index][1] >= launch["ts"]:
                    op = ops[tid][index][2]
                    break
        rows.append((event, op))
    return rows


def shape_at(op: dict[str, Any]) -> GemmShape | AttentionShape | None:
    args = op["args"]
    return shape_of(
        op["name"],
        args.get("Input Dims", []),
        args.get("Input type"),
        args.get("Input Strides"),
        args.get("Concrete Inputs"),
    )


@pytest.mark.parametrize("file", FILES)
def test_gemm_operators_launch_gemm_kernels_and_nothing_else_does(file: str) -> None:
    seen = 0
    for kernel, op in kernels_with_ops(file):
        if op is None:
            continue
        parsed = parse_kernel_name(kernel["name"])
        if is_gemm_op(op["name"]) or op["name"] in ATTENTION_OPS:
            assert parsed is not None, (op["name"], kernel["name"])
            assert parsed.kind.startswith("attention" if op["name"] in ATTENTION_OPS else "gemm")
            assert shape_at(op) is not None, op
            seen += 1
        else:
            assert parsed is None, (op["name"], kernel["name"])
    assert seen > 0


def gemms(file: str) -> list[tuple[dict[str, Any], KernelName, GemmShape]]:
    found = []
    for kernel, op in kernels_with_ops(file):
        parsed = parse_kernel_name(kernel["name"])
        shape = shape_at(op) if op is not None else None
        if parsed is not None and parsed.kind == "gemm" and isinstance(shape, GemmShape):
            found.append((kernel, parsed, shape))
    return found


@pytest.mark.parametrize("file", [FILES[0], FILES[1], FILES[2], FILES[5]])
def test_layout_of_the_strides_is_the_layout_of_the_kernel(file: str) -> None:
    compared = 0
    for kernel, parsed, shape in gemms(file):
        if parsed.layout is not None and shape.layout is not None:
            assert parsed.layout == shape.layout, kernel["name"]
            compared += 1
    assert compared > 20


@pytest.mark.parametrize("file", [FILES[0], FILES[2], FILES[5]])
def test_types_of_the_operands_are_the_types_of_the_kernel(file: str) -> None:
    for kernel, parsed, shape in gemms(file):
        if parsed.in_dtype is not None:
            assert parsed.in_dtype == shape.dtype, kernel["name"]


def test_legacy_grids_are_the_tiles_times_the_split() -> None:
    """The grid of an ampere_sgemm kernel is (tiles along N, tiles along M, slices of K)."""
    checked = 0
    for kernel, parsed, shape in gemms(FILES[1]):
        if parsed.family != "legacy" or parsed.tile is None:
            continue
        grid = kernel["args"]["grid"]
        tile_m, tile_n = parsed.tile
        assert grid[:2] == [-(-shape.n // tile_n), -(-shape.m // tile_m)]
        factor = split_k_factor(parsed, grid=tuple(grid), batch=shape.batch)
        assert factor is not None
        assert tiles(shape.m, shape.n, tile=parsed.tile) * factor == grid[0] * grid[1] * grid[2]
        checked += 1
    assert checked > 200


@pytest.mark.parametrize(
    ("file", "families"),
    [
        (FILES[0], {"cutlass2": 164}),
        (FILES[1], {"cutlass2": 25, "legacy": 230}),
        (FILES[2], {"cutlass2": 22}),
        (FILES[3], {"cutlass2": 6}),
        (FILES[4], {"cutlass2": 3, "sm80_xmma": 6}),
        (FILES[5], {}),
    ],
)
def test_sizes_lie_in_the_bounds_of_tile_and_grid(file: str, families: dict[str, int]) -> None:
    """The ranges come from the kernel alone, the sizes from the operator alone."""
    bounded: Counter[str] = Counter()
    for kernel, parsed, shape in gemms(file):
        found = bound_shape(parsed, tuple(kernel["args"]["grid"]))
        if found is not None:
            assert found.holds(shape.m, shape.n), (kernel["name"], kernel["args"]["grid"], shape)
            assert found.batch in (None, shape.batch), (kernel["name"], shape)
            bounded[parsed.family] += 1
    assert bounded == families


def test_attention_lies_in_the_bounds_of_its_grid() -> None:
    seen = set()
    for file in (FILES[1], FILES[2]):
        for kernel, op in kernels_with_ops(file):
            parsed = parse_kernel_name(kernel["name"])
            shape = shape_at(op) if op is not None else None
            found = bound_attention(parsed, tuple(kernel["args"]["grid"])) if parsed else None
            if parsed is None or found is None or not isinstance(shape, AttentionShape):
                continue
            assert (found.batch, found.heads) == (shape.batch, shape.heads)
            assert shape.query_len is not None
            assert found.query_len[0] <= shape.query_len <= found.query_len[1]
            seen.add(parsed.family)
    assert seen == {"flash2", "mem_efficient"}


def test_no_gemm_is_faster_than_its_gpu() -> None:
    """A FLOP count that is too high would show as more than the datasheet's peak."""
    from tracelens.gemm import math_dtype
    from tracelens.hardware import find_gpu

    for file, name in ((FILES[0], "NVIDIA H100 80GB HBM3"), (FILES[1], "NVIDIA GeForce RTX 3060")):
        gpu = find_gpu(name)
        best = 0.0
        for kernel, parsed, shape in gemms(file):
            peak = gpu.peak(math_dtype(shape, kernel=parsed))
            assert peak is not None, kernel["name"]
            count = flops(shape)
            assert count is not None
            best = max(best, count / (kernel["dur"] * 1e6) / peak)
        assert 0.5 < best < 1.0, f"{name}: {best:.2f} of the peak"
