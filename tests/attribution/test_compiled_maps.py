"""Feature maps in compiled steps."""

from __future__ import annotations

import pytest

from tests.attribution.test_compiled_gradients import _fused, _run
from tracelens.attribution.structure.maps_back import label_maps_back
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
    label_maps_back(run, forward, {64})
    found = [run.labels[at].component if at in run.labels else "" for at in range(5)]
    assert found == (
        ["embedding", "embedding", "", "", ""] if of_stream else ["other", "other", "other", "norm", ""]
    )


@pytest.mark.parametrize("beside", [(2, 256, 32), (32, 16)])
def test_a_map_beside_a_stream_is_not_alone(beside: Dims) -> None:
    forward = _run("forward", _convolution(MAP, WEIGHT))
    run = _run("backward", _fused("poi_fused_add", MAP, beside))
    label_maps_back(run, forward, {32})
    assert not run.labels
