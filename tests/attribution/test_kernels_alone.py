"""Recorded without operators: products, a softmax and the depth of their grids are all there is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.attribution.rows import Row, attributed, verdict, written
from tracelens.words import COMPONENTS, PHASES

BATCH = 960  # windows x heads
SPLIT = Row("mlp.down", "", "void splitKreduce_kernel<float, float, float>", us=4)


def _gemm(right: str, layout: str, tile: str, depth: int = 1) -> Row:
    return Row(right, "", f"ampere_sgemm_{tile}_{layout}", us=100, grid=(5, 245, depth))


def _work(right: str, name: str) -> Row:
    return Row(right, "", f"void at::native::{name}", us=5)


def _layer(scores: int, values: int) -> list[Row]:
    """A layer as torchvision's Swin runs it in fp32 without fused attention."""
    copy = _work("attention.other unattributed", "elementwise_kernel<128, 2, direct_copy_kernel_cuda>")
    norm = _work("norm", "vectorized_layer_norm_kernel<float, float>")
    add = _work("residual", "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>")
    attention = [
        *[norm, _gemm("attention.qkv", "tn", "64x64"), copy],
        *[_gemm("attention.scores", "nn", "128x128", scores)],
        *[_work("attention.softmax", "softmax_warp_forward<float, float, float, 6, false, false>")],
        *[_gemm("attention.values", "nn", "128x128", values), copy],
        *[_gemm("attention.output", "tn", "32x128"), add],
    ]
    act = _work("mlp.activation", "vectorized_elementwise_kernel<4, GeluCUDAKernelImpl>")
    return [
        *attention,
        norm,
        _gemm("mlp.up", "tn", "128x64"),
        act,
        _gemm("mlp.down", "tn", "32x128", 3),
        SPLIT,
        add,
    ]


@pytest.mark.parametrize("graph", [True, False])
def test_products_of_as_many_batches_around_a_softmax_are_attention(tmp_path: Path, graph: bool) -> None:
    rows = _layer(BATCH, BATCH) * 4
    trace, _, found = attributed(tmp_path, written(rows, graph=graph, kernels_alone=True))
    right, wrong = verdict(rows, trace, found)
    assert wrong == {} and right > 0.98


@pytest.mark.parametrize("depths", [(1, 1), (4, 1), (960, 480)])
def test_other_products_around_a_softmax_are_not(tmp_path: Path, depths: tuple[int, int]) -> None:
    """A router's softmax stands between two linear layers, which can be split over the depth."""
    rows = _layer(*depths) * 4
    found = attributed(tmp_path, written(rows, kernels_alone=True))[2]
    parts = {COMPONENTS[code] for code in found.component.tolist()}
    assert not any(part.startswith(("attention.", "mlp.")) for part in parts)


def _trained(layers: int) -> list[Row]:
    """A step of vit-pytorch's layers as a repository of 2024 has them, without a norm ahead of attention, in
    fp32 without fused attention; AdamW on lists of weights."""
    add = _work("residual", "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>")
    joins = replace(add, right="residual norm")  # gradients of what the queries take, mostly normalized
    scale = _work("attention.softmax", "vectorized_elementwise_kernel<4, AUnaryFunctor<MulFunctor<float>>>")
    forward, back = (
        _work("attention.softmax", f"softmax_warp_{way}<float, float, float, 6>")
        for way in ("forward", "backward")
    )
    bends, unbends = (
        _work("mlp.activation", f"vectorized_elementwise_kernel<4, Gelu{way}CUDAKernelImpl>")
        for way in ("", "Backward")
    )
    norm = [_work("norm", f"{name}CUDAKernel<float>") for name in ("RowwiseMoments", "LayerNormForward")]
    norm_back = [_work("norm", name) for name in ("layer_norm_grad_input_kernel<float>", "GammaBetaBackward")]
    layer = [
        *3 * [_gemm("attention.qkv", "tn", "128x64")],
        *[_gemm("attention.scores", "tn", "128x128", 256), scale, forward],
        *[_gemm("attention.values", "nn", "128x128", 256), _gemm("attention.output", "tn", "128x64"), add],
        *[*norm, _gemm("mlp.up", "tn", "64x64"), bends, _gemm("mlp.down", "tn", "32x128"), add],
    ]
    gradients = [
        *[_gemm("mlp.down", "nn", "64x32"), _gemm("mlp.down", "nt", "64x16"), unbends],
        *[_gemm("mlp.up", "nn", "64x128"), _gemm("mlp.up", "nt", "16x64"), *norm_back, add],
        *[_gemm("attention.output", "nn", "128x64"), _gemm("attention.output", "nt", "128x32")],
        *[_gemm("attention.values", "nt", "128x128", 256), _gemm("attention.values", "tn", "128x128", 256)],
        *[scale, back, scale],
        *[_gemm("attention.scores", "nt", "128x128", 256), _gemm("attention.scores", "nn", "128x128", 256)],
        *3 * [_gemm("attention.qkv", "nt", "64x64"), _gemm("attention.qkv", "nn", "128x64"), joins],
    ]
    head = [_gemm("logits", "tn", "32x32"), _work("loss", "nll_loss_forward_reduce_cuda_kernel_2d<float>")]
    head += [_work("loss", "nll_loss_backward_reduce_cuda_kernel_2d<float>")]
    head += [_gemm("logits", "nn", "32x32"), _gemm("logits", "nt", "32x32")]
    steps = _work("optimizer unattributed", "multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMath>")
    return [*layers * layer, *norm, *head, *norm_back, *layers * gradients, *3 * [steps]]


@pytest.mark.parametrize("steps", [1, 2])
def test_names_of_kernels_cut_a_recording_into_steps_that_are_trained(tmp_path: Path, steps: int) -> None:
    rows = steps * _trained(4)
    trace, _, found = attributed(tmp_path, written(rows, kernels_alone=True))
    right, wrong = verdict(rows, trace, found)
    assert wrong == {} and right > 0.95
    order = trace.kernels.ts_ns.argsort(kind="stable")
    said = [PHASES[found.phase[at]] for at in order]
    back = [at for at, row in enumerate(rows) if "_nt" in row.kernel]
    assert {said[at] for at in back} == {"backward"}
    assert {said[at] for at, row in enumerate(rows) if "softmax_warp_forward" in row.kernel} == {"forward"}


def test_of_a_backward_that_the_recording_cuts_what_is_ahead_is_read(tmp_path: Path) -> None:
    step = _trained(12)
    rows = [*step, *step[: len(step) * 4 // 5]]
    trace, _, found = attributed(tmp_path, written(rows, kernels_alone=True))
    right, wrong = verdict(rows, trace, found)
    assert wrong == {} and right > 0.95


def test_kernels_before_the_first_launch_are_what_layers_of_a_backward_that_is_cut_are(
    tmp_path: Path,
) -> None:
    """The end of the recording leaves a piece of a layer unknown: that speaks against no twin."""
    step = _trained(12)
    # ``_foreach_addcdiv_``, the last of Adam's on lists
    last = _work("optimizer", "multi_tensor_apply_kernel<PointwiseOpScalarListFunctor<divides<float>>>")
    early = [*step[-len(step) // 4 : -3], step[-1], last]
    rows = [*early, *step[: len(step) * 3 // 4]]
    events = written(rows, kernels_alone=True)
    launched = [e for e in events if not 0 < e["args"]["correlation"] <= len(early) or e["cat"] == "kernel"]
    trace, _, found = attributed(tmp_path, launched)
    right, wrong = verdict(rows, trace, found)
    assert wrong == {} and right > 0.9
    order = trace.kernels.ts_ns.argsort(kind="stable")[: len(early)]
    assert {COMPONENTS[found.component[at]] for at in order[-2:]} == {"optimizer"}
    assert (found.component[order] != COMPONENTS.index("unattributed")).mean() > 0.95


def test_windows_and_dropped_paths_of_a_forward_alone_have_their_place(tmp_path: Path) -> None:
    """Swin's, in the fp32 of 2023: each bias is copied ahead of its product."""
    layer = _layer(BATCH, BATCH)
    at = {row.right: place for place, row in enumerate(layer) if row.kernel.startswith("ampere")}
    roll = _work("attention.other", "roll_cuda_kernel<float>")
    copies = {name: _work(name, "elementwise_kernel<128, 2, direct_copy_kernel_cuda>") for name in at}
    window = _work("attention.other", "elementwise_kernel<128, 2, direct_copy_kernel_cuda>")
    drop = [
        _work("dropout", "distribution_elementwise_grid_stride_kernel<float, 4, uniform_and_transform>"),
        _work("dropout", "vectorized_elementwise_kernel<4, CUDAFunctorOnSelf_add<float>>"),
        _work("dropout", "vectorized_elementwise_kernel<4, floor_kernel_cuda>"),
        *2 * [_work("dropout", "vectorized_elementwise_kernel<4, BinaryFunctor<MulFunctor<float>>>")],
    ]
    qkv, out, up, down = (
        at[f"{name}"] for name in ("attention.qkv", "attention.output", "mlp.up", "mlp.down")
    )
    shifted = [*layer[:qkv], roll, roll, copies["attention.qkv"], *layer[qkv : out + 1], window, roll, roll]
    shifted += [*drop, *layer[out + 1 : up], copies["mlp.up"], *layer[up:down], copies["mlp.down"]]
    shifted += [*layer[down : down + 2], *drop, *layer[down + 2 :]]
    rows = 4 * [*layer, *shifted]
    trace, _, found = attributed(tmp_path, written(rows, kernels_alone=True))
    right, wrong = verdict(rows, trace, found)
    assert wrong == {} and right > 0.99


def test_where_no_weights_are_worked_on_between_nothing_cuts(tmp_path: Path) -> None:
    """Another part of a batch, or what is computed again: neither is said, and no phase."""
    step = _trained(4)[:-3]
    found = attributed(tmp_path, written(2 * step, kernels_alone=True))[2]
    assert {PHASES[code] for code in found.phase.tolist()} == {"other"}


def test_products_that_are_split_alike_are_not(tmp_path: Path) -> None:
    """A kernel behind each adds up what blocks in z have summed."""
    rows = [
        row for one in _layer(4, 4) * 4 for row in ([one, SPLIT] if one.grid and one.grid[2] == 4 else [one])
    ]
    found = attributed(tmp_path, written(rows, kernels_alone=True))[2]
    assert not any(COMPONENTS[code].startswith("attention.") for code in found.component.tolist())


def test_an_activation_that_is_written_out_is_read_and_norms_of_heads_leave_their_gradients_open(
    tmp_path: Path,
) -> None:
    """GPT-2's gelu_new has a tanh; between Qwen3's queries and cores pointwise kernels can be of either."""
    pointwise = "vectorized_elementwise_kernel<8, BinaryFunctor<MulFunctor<c10::BFloat16>>>"
    bends = [
        _work("mlp.activation", pointwise),
        _work("mlp.activation", "tanh_kernel_cuda(TensorIteratorBase&)"),
    ]
    norm = _work("norm", "vectorized_layer_norm_kernel<c10::BFloat16>")
    back = _work("norm", "layer_norm_grad_input_kernel<c10::BFloat16>")
    add = _work("residual", "vectorized_elementwise_kernel<8, CUDAFunctor_add<c10::BFloat16>>")
    core, core_back = (
        Row("attention.core", "", f"pytorch_flash::flash_{way}_kernel<64>") for way in ("fwd", "bwd")
    )
    layer = [norm, *3 * [_gemm("attention.qkv", "tn", "128x64")], norm, core]
    layer += [_gemm("attention.output", "tn", "128x64"), add, norm, _gemm("mlp.up", "tn", "64x64"), *bends]
    layer += [_gemm("mlp.down", "tn", "32x128"), add]
    gradients = [_gemm("mlp.down", "nn", "64x32"), _gemm("mlp.down", "nt", "64x16")]
    gradients += [_gemm("mlp.up", "nn", "64x128"), _gemm("mlp.up", "nt", "16x64"), back, add]
    gradients += [_gemm("attention.output", "nn", "128x64"), _gemm("attention.output", "nt", "128x32")]
    vague = _work("norm attention.rope unattributed", pointwise)
    gradients += [core_back, vague, *3 * [_gemm("attention.qkv", "nt", "64x64")]]
    gradients += [*3 * [_gemm("attention.qkv", "nn", "128x64")], back, add]
    head = [norm, _gemm("logits", "tn", "32x32"), _work("loss", "nll_loss_forward_reduce_cuda_kernel_2d")]
    head += [_work("loss", "nll_loss_backward_reduce_cuda_kernel_2d"), _gemm("logits", "nn", "32x32")]
    steps = _work("optimizer unattributed", "multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMath>")
    rows = 2 * [*4 * layer, *head, _gemm("logits", "nt", "32x32"), back, *4 * gradients, steps]
    trace, _, found = attributed(tmp_path, written(rows, kernels_alone=True))
    right, wrong = verdict(rows, trace, found)
    assert wrong == {} and right > 0.95
