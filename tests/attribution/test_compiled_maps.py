"""Feature maps in compiled steps."""

from __future__ import annotations

import pytest

from tests.attribution.test_compiled_gradients import (
    DGRADS,
    HIDDEN,
    OUTPUT,
    QUERIES,
    TOKENS,
    _core,
    _forward,
    _fused,
    _gemm,
    _run,
)
from tracelens.attribution.structure.attention_on_maps import label_laid_out
from tracelens.attribution.structure.between import label_between
from tracelens.attribution.structure.cores import find_cores
from tracelens.attribution.structure.gradients import label_gradients
from tracelens.attribution.structure.late import label_maps_back
from tracelens.attribution.structure.maps import label_maps
from tracelens.attribution.structure.runs import Label
from tracelens.attribution.structure.units import Dims, Kind

MAP, FINE, WEIGHT = (2, 32, 16, 16), (2, 32, 32, 32), (32, 32, 3, 3)


def _convolution(*tensors: Dims) -> Kind:
    return Kind("convolution", "convolution", tensors=tensors)


@pytest.mark.parametrize("of_stream", [False, True])
def test_the_gradients_of_maps_are_of_them_as_the_maps_are(of_stream: bool) -> None:
    """A head of convolutions (DPT) between whose gradients pictures are made smaller again; that of patches,
    which make the stream, is of these."""
    forward = _run("forward", _convolution(MAP, WEIGHT))
    forward.labels = {0: Label("embedding")} if of_stream else {}
    smaller = _fused("poi_fused_add_convolution_backward_threshold_backward", MAP, MAP, MAP)
    norm = _fused("red_fused_native_batch_norm_backward", MAP, (32, 4))
    run = _run("backward", _convolution(MAP, MAP, WEIGHT), _fused("poi_fused_convolution_backward", WEIGHT))
    run.kinds += [smaller, norm, _fused("poi_fused_add", FINE, FINE)]
    run.units = [*range(len(run.kinds))]
    run.labels = {0: Label("embedding"), 1: Label("embedding")}
    label_maps_back(run, forward, {HIDDEN})
    found = [run.labels[at].component if at in run.labels else "" for at in range(5)]
    assert found == (
        ["embedding", "embedding", "", "", ""] if of_stream else ["other", "other", "other", "norm", ""]
    )


@pytest.mark.parametrize(("rows", "found"), [((32, 1), "other"), ((24, 1), "")])
def test_rows_worked_out_for_a_map_are_work_on_it(rows: Dims, found: str) -> None:
    """Where a picture is made larger, each of its rows lies between two of those before."""
    between = _fused("poi_fused__to_copy_arange_clamp_mul_view", rows)
    larger = _fused("poi_fused__unsafe_index_add_mul_sub", (32, 1), (32,), MAP, FINE)
    run = _run("forward", _convolution(MAP, WEIGHT), between, larger, _convolution(FINE, WEIGHT))
    label_maps(run, HIDDEN)
    assert (run.labels[1].component if 1 in run.labels else "") == found


@pytest.mark.parametrize(("table", "found"), [((1, HIDDEN, 8, 8), "embedding"), ((1, 3, 8, 8), "")])
def test_the_gradient_of_a_table_of_places_that_was_made_larger_is_an_embeddings(
    table: Dims, found: str
) -> None:
    run = _run("backward", DGRADS[QUERIES], _fused("poi_fused__unsafe_index_put_new_zeros", table))
    run.labels = {0: Label(QUERIES, 0, role="dgrad")}
    label_gradients(run, _forward(), {HIDDEN}, None)
    assert (run.labels[1].component if 1 in run.labels else "") == found


@pytest.mark.parametrize("beside", [(2, 256, 32), (32, 16)])
def test_a_map_beside_a_stream_is_not_alone(beside: Dims) -> None:
    forward = _run("forward", _convolution(MAP, WEIGHT))
    run = _run("backward", _fused("poi_fused_add", MAP, beside))
    label_maps_back(run, forward, {32})
    assert not run.labels


@pytest.mark.parametrize("tensors", [(), ((0, 3, 16, 16), (8, 3, 3, 3))], ids=["no shapes", "no samples"])
def test_convolutions_of_no_known_map_name_nothing(tensors: tuple[Dims, ...]) -> None:
    run = _run("backward", _convolution(*tensors), _fused("poi_fused_add", (8, 256)))
    run.labels = {0: Label("embedding")}
    label_maps_back(run, _run("forward", _convolution(*tensors)), {HIDDEN})
    assert run.labels == {0: Label("embedding")}


@pytest.mark.parametrize(("rows", "of_attention"), [(64, False), (2, True)])
def test_a_map_larger_than_what_a_core_gives_is_of_no_attention(rows: int, of_attention: bool) -> None:
    """A compiler runs it there (the mask decoders of Segment Anything)."""
    bent, output = _fused("poi_fused_gelu_view", (4, 8, rows, 64)), _gemm(TOKENS, HIDDEN, HIDDEN)
    run = _run("forward", _gemm(TOKENS, 192, HIDDEN), _core(TOKENS, 64), bent, output)
    run.cores = find_cores(run)
    run.labels = {0: Label(QUERIES), 1: Label("attention.core"), 3: Label(OUTPUT)}
    label_between(run, HIDDEN, None)
    assert (2 in run.labels) is of_attention


@pytest.mark.parametrize(("name", "of_attention"), [("convolution_gelu", False), ("clone_permute", True)])
def test_the_bias_and_the_activation_of_a_convolution_lay_nothing_out(name: str, of_attention: bool) -> None:
    of_map, taken = _fused(f"poi_fused_{name}", (4, 16, 4, 4)), _convolution((4, 16, 4, 4), (16, 16, 3, 3))
    run = _run("forward", _core(TOKENS, 64), of_map, taken)
    run.cores = find_cores(run)
    label_laid_out(run)
    assert (1 in run.labels) is of_attention
