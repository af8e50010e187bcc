"""Gated short convolutions (LFM2) are told by their units alone, with shapes and without."""

from __future__ import annotations

import pytest

from tracelens.attribution.structure.local import without_mixers
from tracelens.attribution.structure.runs import Run
from tracelens.attribution.structure.units import Dims, Kind
from tracelens.gemm import GemmShape


def _gemm(m: int, n: int, k: int) -> Kind:
    return Kind("gemm", "linear", gemm=GemmShape(m, n, k, 1, None, None, None), tensors=((m, k), (n, k)))


def _unit(name: str, *tensors: Dims, what: str = "elementwise") -> Kind:
    return Kind(what, name, tensors=tensors)


MAPS = (2, 256, 64)
NORM = _unit("layer_norm", (2, 64, 256), (256,), what="norm")
GATE = _unit("mul", MAPS, MAPS)
CONVOLUTION = _unit("conv1d", MAPS, (256, 1, 3), what="convolution")
LAYER = [_gemm(128, 768, 256), _unit("split", MAPS), GATE, CONVOLUTION, GATE, _gemm(128, 256, 256)]


def _unshaped(kind: Kind) -> Kind:
    return Kind(kind.what, kind.name)


@pytest.mark.parametrize("shaped", [True, False])
def test_it_runs_from_one_gemm_to_the_other(shaped: bool) -> None:
    kinds = [NORM, *LAYER, _unit("add", (2, 64, 256), (2, 64, 256), what="add")]
    run = Run("forward", [*range(len(kinds))], kinds if shaped else [*map(_unshaped, kinds)])
    assert without_mixers(run).kept == [0, 7]
    assert {label.component for label in run.labels.values()} == {"other"}


@pytest.mark.parametrize("gone", [2, 4])
def test_without_one_of_its_gates_it_is_none(gone: int) -> None:
    kinds = LAYER[:gone] + LAYER[gone + 1 :]
    run = Run("forward", [*range(len(kinds))], kinds)
    assert without_mixers(run).run is run
