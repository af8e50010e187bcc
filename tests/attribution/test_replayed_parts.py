"""Parts inside CUDA graphs: what the order of kernels says, and what it leaves open."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attribution.rows import Row, assert_right, attributed, written
from tracelens.attribution import attribute
from tracelens.attribution.replayed_parts import _backward, _forward
from tracelens.trace import link, read_trace
from tracelens.words import COMPONENTS

SAMPLES = Path(__file__).parents[2] / "sample_traces"
GRAPHS = sorted(SAMPLES.glob("h100-sxm_*_cudagraph.json.gz"))
NORM = ["copy", "power", "mean", "shift", "root", "product", "copy", "product"]
NORM_BACK = [
    "sum", "product", "product", "reduction", "copy", "product", "product", "reduction", "power", "product",
    "product", "product", "product", "product", "sum", "copy", "sum",
]  # fmt: skip


def code(name: str) -> int:
    return COMPONENTS.index(name)


def forward(what: list[str], before: str, after: str, *, to_gemm: bool = True) -> list[str]:
    said = dict(_forward(what, code(before), code(after), to_gemm=to_gemm))
    return [COMPONENTS[said[at]] if at in said else "" for at in range(len(what))]


def backward(what: list[str], before: str, after: str, *, from_gemm: bool = True) -> list[str]:
    said = dict(_backward(what, code(before), code(after), from_gemm=from_gemm))
    return [COMPONENTS[said[at]] if at in said else "" for at in range(len(what))]


def test_a_root_of_a_mean_is_a_norm() -> None:
    assert forward(NORM, "residual", "mlp.gate") == ["norm"] * 8
    assert forward(["pointwise", *NORM], "embedding", "attention.qkv") == ["", *["norm"] * 8]
    assert forward(NORM[:4] + NORM[5:], "residual", "mlp.gate") == [""] * 7  # a mean alone
    assert forward(NORM, "attention.qkv", "attention.core") == [""] * 8  # of queries: whose part is not told


def test_what_autocast_converts_is_of_the_product_behind_it() -> None:
    assert forward(["copy"] * 3, "norm", "mlp.up") == ["mlp.up"] * 3
    assert forward(["copy"] * 3, "norm", "mlp.up", to_gemm=False) == [""] * 3
    assert forward(["copy", "sum"], "norm", "mlp.up") == ["", ""]
    assert forward(["copy"], "logits", "loss", to_gemm=False) == ["loss"]


def test_the_backward_of_a_norm_ends_with_the_sum_of_the_residual() -> None:
    assert backward(NORM_BACK, "mlp.gate", "attention.output") == [*["norm"] * 16, "residual"]
    assert backward(NORM_BACK[:12], "mlp.gate", "attention.output") == [""] * 12  # nothing ends it
    twice = NORM_BACK[:-1] + NORM_BACK
    found = backward(twice, "mlp.gate", "attention.output")
    assert found == ["norm", *[""] * (len(twice) - 1)]  # two norms: not told apart


def test_gradients_of_activations_turns_and_biases() -> None:
    assert backward(["product", "pointwise"], "mlp.down", "mlp.up") == ["mlp.activation"] * 2
    assert backward(["product", "reduction"], "mlp.down", "mlp.up") == ["", ""]
    turn = ["sum", "product", "negation", "product", "join", "sum", "copy"]
    assert backward(turn, "attention.qkv", "attention.qkv") == ["norm", *["attention.rope"] * 5, ""]
    assert backward(["reduction", "copy", "sum", "copy"], "mlp.up", "norm") == [
        "mlp.up",
        "mlp.up",
        "norm",
        "mlp.up",
    ]
    assert backward(["sum", "copy"], "norm", "mlp.down", from_gemm=False) == ["residual"] * 2


def test_windows_are_shifted_ahead_of_attention_and_put_back_behind_it() -> None:
    windows = ["attention.other"] * 2
    assert forward(["roll", "roll", "copy"], "norm", "attention.qkv") == [*windows, "attention.qkv"]
    assert forward(["roll", "copy"], "norm", "mlp.up") == ["", ""]
    behind = forward(["copy", "roll", "pointwise"], "attention.output", "residual", to_gemm=False)
    assert behind == [*windows, ""]


def test_a_path_is_dropped_by_the_floor_of_a_chance() -> None:
    drop = ["random", "shift", "floor", "product", "product"]
    assert forward(drop, "mlp.down", "residual", to_gemm=False) == ["dropout"] * 5
    assert forward(["random", "shift", "product"], "mlp.down", "residual", to_gemm=False) == [""] * 3


def _rows(path: Path) -> list[tuple[str, str, int]]:
    """Name, component and time of each kernel of a step in the middle, in their order."""
    trace = read_trace(path)
    found = attribute(trace, link(trace))
    step = int(found.step.max()) // 2
    order = trace.kernels.ts_ns.argsort(kind="stable")
    here = [at for at in order.tolist() if found.step[at] == step]
    rows = [(trace.symbols[int(trace.kernels.name[at])], COMPONENTS[found.component[at]]) for at in here]
    times = trace.kernels.dur_ns[here].tolist()
    named = zip(rows, times, strict=True)
    return [(name, part, time) for (name, part), time in named if not name.startswith("Mem")]


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.name.split("_cuda")[0])
def test_a_graph_of_an_h100_has_the_parts_of_its_eager_twin(path: Path) -> None:
    graph, eager = _rows(path), _rows(path.with_name(path.name.replace("cudagraph", "eager")))
    # the capture knows more and fewer tensors: the widths of vectors and of tables in names differ
    assert len(graph) == len(eager)
    total = sum(time for *_, time in graph)
    pairs = [(mine, other, time) for (_, mine, time), (_, other, _) in zip(graph, eager, strict=True)]
    assert sum(time for mine, other, time in pairs if mine == other) > 0.99 * total
    wrong = sum(time for mine, other, time in pairs if mine not in (other, "unattributed"))
    assert wrong < 0.008 * total


def test_a_replay_launched_before_the_recording_is_what_those_in_it_are() -> None:
    trace = read_trace(GRAPHS[0])
    links = link(trace)
    result = attribute(trace, links)
    before = links.kernel_launch < 0
    once = links.kernel_launch == links.kernel_launch.max()
    assert before.sum() == once.sum() > 400
    for known in (result.component, result.phase, result.layer):
        assert (known[before] == known[once]).mean() > 0.99
    assert set(result.step[before].tolist()) == {-1}


def test_a_replayed_model_whose_attention_is_unfused_is_a_whole_one(tmp_path: Path) -> None:
    """pytorch/ao tutorials/quantize_vit: no kernel of a fused attention names it."""
    gemm = "ampere_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8_f2f_stages_64x6_tn"
    batched = "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_{}_align1>"
    scores, values = batched.format("tn"), batched.format("nn")
    norm = "triton_per_fused_add_native_layer_norm_8"
    names = [norm, gemm, gemm, gemm, scores, "softmax_warp_forward<c10::BFloat16>", values, gemm]
    names += [norm, gemm, "triton_poi_fused_gelu_6", gemm]
    grids = {scores: (16, 1, 12), values: (4, 1, 12)}
    rows = [Row("", "", name, grid=grids.get(name, (12, 4, 1))) for name in names * 6]
    _, _, found = attributed(tmp_path, written(rows, graph=True))
    assert found.found == "whole"


def _divided(fills: list[Row]) -> list[Row]:
    """A layer of TimeSformer's divided attention (arXiv 2102.05095; transformers
    models/timesformer/modeling_timesformer.py) in kernels of a V100: attention over time has a linear layer
    behind its output, and attention over space takes the stream with its token put before it."""
    gemm, z = "volta_sgemm_128x64_tn", (2, 2, 96)
    copy = Row("attention.other", "", "elementwise_kernel<direct_copy_kernel_cuda>")
    add = Row("residual", "", "vectorized_elementwise_kernel<4, CUDAFunctor_add<float> >")
    norm = Row("norm", "", "vectorized_layer_norm_kernel<float, float>")
    cat = Row("unattributed", "", "CatArrayBatchedCopy<float, unsigned int, 3, 64, 64>", us=1)
    core = [
        Row("attention.qkv", "", gemm),
        copy,
        Row("attention.scores", "", "volta_sgemm_32x128_nn", grid=z),
        Row("attention.softmax", "", "softmax_warp_forward<float, float, float, 8, false, false>"),
        Row("attention.values", "", "volta_sgemm_64x64_nn", grid=z),
        copy,
        Row("attention.output", "", gemm),
    ]
    mlp = [
        Row("mlp.up", "", gemm),
        Row("mlp.activation", "", "vectorized_elementwise_kernel<4, GeluCUDAKernelImpl>"),
        Row("mlp.down", "", gemm),
    ]
    time = [norm, *core, *fills, Row("attention.output", "", gemm), add]
    return [*time, cat, norm, *core, cat, add, norm, *mlp, add]


@pytest.mark.parametrize("fills", [[], [Row("unattributed", "", "Memset (Device)", us=1)]])
def test_a_token_is_put_before_attention_behind_more_than_one_product(
    tmp_path: Path, fills: list[Row]
) -> None:
    names = ["void cask_cudnn_infer::computeOffsetsKernel<false, false>", "volta_scudnn_128x64_relu_nn_v1"]
    stem = [Row("embedding", "", name) for name in names]
    assert_right(tmp_path, [*stem, *4 * _divided(fills)], 0.98, graph=True)
