"""Kernels that are no product: what each is, and that no time of them is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kept import analyzed
from tests.synthetic import ModelSpec, Options, build
from tracelens.accounting.others import _distinct, other_rows
from tracelens.analysis import Analysis, analyze
from tracelens.results import OtherRow

BF16, FP32 = "c10::BFloat16", "float"
TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
LOOP = "void at::native::vectorized_elementwise_kernel<4, at::native::"
COPY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
    "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>(int)"
)
FLAT = f"{LOOP}direct_copy_kernel_cuda(at::TensorIteratorBase&)>(int)"
TO_BF16 = f"{LOOP}bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)>(int)"
CAT = (
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<OpaqueType<2u>, unsigned int, 3>(int)"
)
ADD = f"{LOOP}CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)"
FILL = f"{LOOP}FillFunctor<float>, std::array<char*, 1ul> >(int)"
SUM = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, int> >(int)"

Tensor = tuple[list[int], str, list[int] | None]  # size, type, strides


class Host:
    """A trace of one thread: operators inside operators, one kernel in the innermost."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.time = 1000.0

    def run(
        self,
        ops: Sequence[str],
        kernel: str,
        tensors: Sequence[Tensor] = (),
        *,
        category: str = "kernel",
        frame: str | None = None,
        us: float = 8.0,
    ) -> None:
        start, length = self.time, 60.0
        if frame is not None:
            self._add(
                "python_function",
                f"nn.Module: {frame}",
                start - 2,
                length + 4,
                {"Python id": len(self.events)},
            )
        for depth, name in enumerate(ops):
            inner = depth == len(ops) - 1
            args: dict[str, Any] = {}
            if inner and tensors:
                args = {
                    "Input Dims": [*(list(size) for size, _, _ in tensors), []],
                    "Input type": [*(dtype for _, dtype, _ in tensors), "Scalar"],
                }
                if all(strides is not None for _, _, strides in tensors):
                    args["Input Strides"] = [*(strides for _, _, strides in tensors), []]
            self._add("cpu_op", name, start + depth, length - 2 * depth, args)
        number = len(self.events)
        if ops:
            self._add("cuda_runtime", "cudaLaunchKernel", start + 20, 1.0, {"correlation": number})
        event = {"ph": "X", "cat": category, "name": kernel, "pid": 0, "tid": 7, "ts": start + 25, "dur": us}
        args = {"correlation": number if ops else 0, "stream": 7, "device": 0, "grid": [1, 1, 1]}
        self.events.append(event | {"args": args})
        self.time += 100.0

    def _add(self, category: str, name: str, ts: float, dur: float, args: dict[str, Any]) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 7, "ts": ts, "dur": dur}
        self.events.append(event | {"args": args})

    def analysis(self, folder: Path) -> Analysis:
        path = folder / "t.json"
        path.write_text(json.dumps({"traceEvents": self.events}))
        return analyze(path, shape_search=False)


def rows_of(analysis: Analysis) -> list[OtherRow]:
    assert analysis.trace is not None and analysis.links is not None
    assert analysis.attribution is not None and analysis.calls is not None
    return other_rows(
        analysis.trace, analysis.links, analysis.attribution, analysis.calls, steps=len(analysis.report.steps)
    )


def only(folder: Path, *args: Any, **more: Any) -> OtherRow:
    host = Host()
    host.run(*args, **more)
    (row,) = rows_of(host.analysis(folder))
    return row


def test_kernels_by_name_hold_the_same_time(tmp_path: Path) -> None:
    host = Host()
    for _ in range(3):
        host.run(["aten::add"], "add_kernel", us=4.0)
    host.run(["aten::mul"], "mul_kernel", us=8.0)
    found = host.analysis(tmp_path).report.other_kernels
    assert [(row.kernel, row.calls_per_step) for row in found] == [("add_kernel", 3.0), ("mul_kernel", 1.0)]
    assert sum(row.time_ms_per_step for row in found) == pytest.approx(0.020)
    assert found[0].calls_where_it_runs == 3.0


HEADS = ([8, 1024, 20, 64], BF16, [1310720, 1280, 64, 1])
TURNED = ([8, 1024, 20, 64], BF16, [1310720, 64, 65536, 1])
WEIGHT: Tensor = ([3840, 1280], FP32, [1280, 1])
WEIGHT_BF16: Tensor = ([3840, 1280], BF16, [1280, 1])


def test_a_transposing_copy_is_told_by_its_strides(tmp_path: Path) -> None:
    row = only(tmp_path, ["aten::contiguous", "aten::clone", "aten::copy_"], COPY, [HEADS, TURNED])
    assert (row.kind, row.op, row.dims) == ("transpose", "aten::contiguous", (8, 1024, 20, 64))
    assert (row.dtype_from, row.dtype_to) == ("bf16", "bf16")
    assert row.time_ms_per_step == pytest.approx(0.008) and row.calls == 1


def test_a_copy_of_a_slice_is_no_transpose(tmp_path: Path) -> None:
    """Gaps between rows, in the same order."""
    sliced = ([8, 1024, 20, 64], BF16, [3932160, 3840, 64, 1])
    assert (
        only(tmp_path, ["aten::contiguous", "aten::clone", "aten::copy_"], COPY, [HEADS, sliced]).kind
        == "copy"
    )


def test_without_strides_the_kernels_loop_tells(tmp_path: Path) -> None:
    bare: list[Tensor] = [([8, 64], BF16, None), ([8, 64], BF16, None)]
    assert only(tmp_path, ["aten::copy_"], COPY, bare).kind == "transpose"
    assert only(tmp_path, ["aten::copy_"], FLAT, bare).kind == "copy"


def test_strides_go_before_the_kernels_loop(tmp_path: Path) -> None:
    assert only(tmp_path, ["aten::copy_"], FLAT, [HEADS, TURNED]).kind == "transpose"
    assert only(tmp_path, ["aten::copy_"], COPY, [HEADS, HEADS]).kind == "copy"


def test_a_cast_names_both_types_and_the_outermost_mover(tmp_path: Path) -> None:
    row = only(tmp_path, ["aten::to", "aten::_to_copy", "aten::copy_"], TO_BF16, [WEIGHT_BF16, WEIGHT])
    assert (row.kind, row.op, row.dims) == ("cast", "aten::to", (3840, 1280))
    assert (row.dtype_from, row.dtype_to) == ("fp32", "bf16")


def test_what_stands_around_the_movers_is_told_apart(tmp_path: Path) -> None:
    ops = ["aten::_efficient_attention_backward", "aten::contiguous", "aten::clone", "aten::copy_"]
    row = only(tmp_path, ops, COPY, [HEADS, TURNED])
    assert (row.op, row.within) == ("aten::contiguous", "aten::_efficient_attention_backward")


def test_a_concatenation_is_a_copy(tmp_path: Path) -> None:
    row = only(tmp_path, ["SplitBackward0", "aten::cat"], CAT)
    assert (row.kind, row.op, row.within) == ("copy", "aten::cat", "SplitBackward0")


def test_eager_padding_is_padding_and_not_a_copy(tmp_path: Path) -> None:
    ops = ["aten::pad", "aten::constant_pad_nd", "aten::copy_"]
    assert only(tmp_path, ops, FLAT, [HEADS, HEADS]).kind == "pad"


@pytest.mark.parametrize(
    ("kernel", "tensors", "kind"),
    [
        ("triton_poi_fused_clone_permute_7", [([4, 8, 256, 64], FP32, [131072, 64, 512, 1]),
                                              ([256, 4, 8, 64], FP32, [2048, 512, 64, 1])], "transpose"),
        ("triton_poi_fused__to_copy_t_3", [WEIGHT, WEIGHT_BF16], "cast"),
        ("triton_poi_fused_constant_pad_nd_t_3", [([50257, 768], BF16, [768, 1]),
                                                  ([768, 50264], BF16, [1, 768])], "pad"),
        ("triton_poi_fused_mm_t_1", [([8192, 50257], BF16, [50257, 1]),
                                     ([50264, 8192], BF16, [1, 50264])], "pad"),
        ("triton_poi_fused_mm_t_2", [([768, 512], BF16, [512, 1]),
                                     ([512, 768], BF16, [768, 1])], "transpose"),
        # an operand, the other one and the result: nothing says that it grew
        ("triton_poi_fused_mm_t_4", [([768, 512], BF16, [512, 1]), WEIGHT_BF16,
                                     ([512, 768], BF16, [768, 1])], "transpose"),
        # as many elements: no padding
        ("triton_poi_fused_mm_view_5", [([768, 512], BF16, [512, 1])] * 2, "copy"),
        ("triton_poi_fused_addmm_view_2", [WEIGHT_BF16, WEIGHT_BF16], "elementwise"),
        ("triton_poi_fused_gelu_view_9", [WEIGHT_BF16, WEIGHT_BF16], "elementwise"),
        ("triton_poi_fused__to_copy_clone_div_permute_0", [WEIGHT, WEIGHT_BF16], "elementwise"),
        ("triton_red_fused_native_layer_norm_3", [WEIGHT, WEIGHT_BF16], "reduction"),
        ("triton__0d1d2de", [], "other"),
    ],
)  # fmt: skip
def test_kernels_of_torch_compile_by_their_names(
    tmp_path: Path, kernel: str, tensors: list[Tensor], kind: str
) -> None:
    assert only(tmp_path, ["CompiledFunction", kernel], kernel, tensors).kind == kind


@pytest.mark.parametrize(
    ("kernel", "before", "after"),
    [
        ("triton_poi_fused_clone_7", [8, 16], [24, 16]),  # no product's operand
        ("triton_poi_fused_mm_view_8", [8, 16], [2, 8, 16]),  # repeated along a new dimension
    ],
)
def test_what_is_larger_is_not_always_padded(
    tmp_path: Path, kernel: str, before: list[int], after: list[int]
) -> None:
    lies = {2: [16, 1], 3: [128, 16, 1]}
    tensors: list[Tensor] = [(size, BF16, lies[len(size)]) for size in (before, after)]
    assert only(tmp_path, ["CompiledFunction", kernel], kernel, tensors).kind != "pad"


def test_padding_says_from_what_to_what(tmp_path: Path) -> None:
    tensors: list[Tensor] = [([50257, 768], FP32, [768, 1]), ([768, 50264], BF16, [1, 768])]
    kernel = "triton_poi_fused_constant_pad_nd_t_3"
    row = only(tmp_path, ["CompiledFunction", kernel], kernel, tensors)
    assert (row.kind, row.dims, row.dtype_from, row.dtype_to) == ("pad", (768, 50264), "fp32", "bf16")


def test_dimensions_of_one_lie_nowhere(tmp_path: Path) -> None:
    before = ([2, 1, 16, 32], BF16, [512, 1, 32, 1])
    after = ([2, 1, 16, 32], BF16, [512, 512, 32, 1])
    assert only(tmp_path, ["aten::clone", "aten::copy_"], COPY, [after, before]).kind == "copy"
    swapped = ([2, 2, 16, 32], BF16, [512, 1024, 32, 1])
    straight = ([2, 2, 16, 32], BF16, [1024, 512, 32, 1])
    assert only(tmp_path, ["aten::clone", "aten::copy_"], COPY, [straight, swapped]).kind == "transpose"


def test_a_copy_of_repeated_heads_is_no_transpose(tmp_path: Path) -> None:
    """Keys of 4 heads, each repeated 3 times (stride 0), written out one after the other."""
    repeated = ([2, 4, 3, 16, 64], BF16, [4096, 1024, 0, 64, 1])
    written = ([2, 4, 3, 16, 64], BF16, [12288, 3072, 1024, 64, 1])
    assert only(tmp_path, ["aten::clone", "aten::copy_"], COPY, [written, repeated]).kind == "copy"
    turned = ([2, 4, 3, 16, 64], BF16, [4096, 64, 0, 256, 1])  # and heads inside tokens before
    assert only(tmp_path, ["aten::clone", "aten::copy_"], COPY, [written, turned]).kind == "transpose"
    inner = ([8, 64], BF16, [1, 8])
    assert only(tmp_path, ["aten::copy_"], COPY, [([8, 64], BF16, [64, 1]), inner]).kind == "transpose"


def test_rows_are_counted_by_step_and_the_longest_kernel_names_them(tmp_path: Path) -> None:
    host = Host()
    for us in (8.0, 24.0, 4.0):
        host.run(["aten::add"], f"{ADD}{us:.0f}", us=us)
    host.run(["aten::sum"], SUM, us=30.0)
    rows = rows_of(host.analysis(tmp_path))
    said = [(row.id, row.kind, row.calls) for row in rows]
    assert said == [("o1", "elementwise", 3), ("o2", "reduction", 1)]
    assert rows[0].kernel == f"{ADD}24"
    assert [row.time_ms_per_step for row in rows] == pytest.approx([0.036, 0.030], rel=1e-9)


@pytest.mark.parametrize(
    ("op", "kernel", "category", "kind"),
    [
        ("aten::add", ADD, "kernel", "elementwise"),
        ("aten::fill_", FILL, "kernel", "fill"),
        ("aten::sum", SUM, "kernel", "reduction"),
        ("aten::zero_", "Memset (Device)", "gpu_memset", "fill"),
        ("aten::copy_", "Memcpy DtoD (Device -> Device)", "gpu_memcpy", "copy"),
        ("aten::copy_", "Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", "other"),
        ("aten::copy_", "void mine(int*)", "kernel", "copy"),
        ("aten::copy", "void mine(int*)", "kernel", "other"),
        ("aten::sort", "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<int>()", "kernel", "other"),
    ],
)
def test_other_kinds(tmp_path: Path, op: str, kernel: str, category: str, kind: str) -> None:
    assert only(tmp_path, [op], kernel, category=category).kind == kind


def test_without_an_operator_the_name_is_all_there_is(tmp_path: Path) -> None:
    row = only(tmp_path, [], COPY)
    assert (row.kind, row.op, row.within, row.dims) == ("transpose", None, None, None)
    assert only(tmp_path, [], TO_BF16).kind == "cast"


def test_layers_of_one_module_are_one_row(tmp_path: Path) -> None:
    host = Host()
    for layer in range(3):
        ops = ["aten::contiguous", "aten::clone", "aten::copy_"]
        host.run(ops, COPY, [HEADS, TURNED], frame=f"Block_{layer}")
    (row,) = rows_of(host.analysis(tmp_path))
    assert (row.module, row.calls, row.layers) == ("Block", 3, 3)


def test_other_sizes_are_other_rows_for_copies_alone(tmp_path: Path) -> None:
    host = Host()
    for size in (64, 128):
        host.run(["aten::copy_"], FLAT, [([size, 8], BF16, [8, 1])] * 2)
        host.run(["aten::add"], ADD, [([size, 8], BF16, [8, 1])] * 2)
    rows = rows_of(host.analysis(tmp_path))
    assert sorted(row.kind for row in rows) == ["copy", "copy", "elementwise"]


def test_rows_are_told_apart_however_large_their_codes() -> None:
    large = np.array([0, 2**31, 2**31, 0, 2**31], np.int64)
    columns = [large, large, large, np.array([-1, 4, 4, -1, 5], np.int64)]
    rows, which = _distinct(columns)
    assert len(rows) == 3
    assert [rows[at] for at in which.tolist()] == list(zip(*(c.tolist() for c in columns), strict=True))


def test_rows_of_many_columns_are_told_apart_by_the_first_as_well_as_by_the_last() -> None:
    """A hundred columns of two values are more than a number of 64 bits holds."""
    draw = np.random.default_rng(3)
    kinds = np.concatenate([np.eye(100, dtype=np.int64), np.zeros((1, 100), np.int64)])
    table = kinds[draw.integers(0, len(kinds), 1000)] + np.arange(100) - 50
    rows, which = _distinct(list(table.T))
    assert len(rows) == len(np.unique(table, axis=0))
    assert [list(rows[at]) for at in which.tolist()] == table.tolist()


@given(st.lists(st.tuples(*[st.integers(-3, 3)] * 3), min_size=1), st.sampled_from([1, 2**20, 2**40]))
def test_equal_rows_and_only_those_are_one(rows: list[tuple[int, ...]], apart: int) -> None:
    found, which = _distinct([np.array(column, np.int64) * apart for column in zip(*rows, strict=True)])
    assert len(found) == len(set(rows))
    assert [found[at] for at in which.tolist()] == [tuple(one * apart for one in row) for row in rows]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_products_and_others_are_all_of_a_steps_time(tmp_path: Path, family: Any) -> None:
    spec = ModelSpec(family=family, hidden=256, heads=4, vocab=5003, layers=2, sequence=128, micro_batch=2)
    path = tmp_path / "t.json"
    path.write_text(build(spec, Options(steps=2)).text())
    done = analyze(path, shape_search=False)
    assert _counted_ms(done) == pytest.approx(done.report.summary.gpu_ms_per_step)


@pytest.mark.skipif(not TRACES.exists(), reason="the shared traces are not here")
@pytest.mark.parametrize("prefix", ["d1_", "d2_", "d4_"])
def test_nothing_is_lost_in_real_traces(prefix: str) -> None:
    (path,) = TRACES.glob(f"{prefix}*.json.gz")
    done = analyzed(path)
    assert _counted_ms(done) == pytest.approx(done.report.summary.gpu_ms_per_step)


def _counted_ms(analysis: Analysis) -> float:
    """Time per step of products and of everything else."""
    others = sum(row.time_ms_per_step for row in rows_of(analysis))
    return others + sum(row.time_ms_per_step for row in analysis.report.gemms)


@pytest.mark.skipif(not TRACES.exists(), reason="the shared traces are not here")
def test_casts_of_fp32_weights_in_a_compiled_training_step() -> None:
    """modded-nanogpt casts the weights of its 11 MLPs in every forward."""
    (path,) = TRACES.glob("d1_*.json.gz")
    casts = [row for row in rows_of(analyzed(path)) if row.kind == "cast" and row.component == "mlp.up"]
    forward = next(row for row in casts if row.phase == "forward")
    assert (forward.calls_per_step, forward.layers, forward.dims) == (11.0, 11, (768, 3072))
    assert (forward.dtype_from, forward.dtype_to) == ("fp32", "bf16")
