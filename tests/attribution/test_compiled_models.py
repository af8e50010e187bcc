"""Architectures of transformers under torch.compile, from recordings that are kept: they need no torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.attribution_zoo import judge
from tests.zoo import shipped
from tracelens.attribution.structure.cores import find_cores
from tracelens.attribution.structure.norms import written_norms
from tracelens.attribution.structure.runs import Run
from tracelens.attribution.structure.streams import streams
from tracelens.attribution.structure.units import Kind
from tracelens.gemm import AttentionShape, GemmShape

FOLDER = Path(__file__).parent / "recorded"
#: model, what was wrong of it before, and why it is here
MODELS = (
    ("clip", 0.255, "a compiler mixes the kernels of two towers"),
    ("dinov2", 0.166, "biases' gradients, summed before or behind the products that they belong to"),
    ("gpt_neox", 0.287, "without shapes, an MLP beside the attention"),
)


@pytest.mark.parametrize(("name", "before", "why"), MODELS)
def test_compiled_models(tmp_path: Path, name: str, before: float, why: str) -> None:
    score = judge(tmp_path, shipped.read(FOLDER / f"compiled_{name}.json.xz").synthetic)
    assert score.wrong <= 0.005 < before, (why, score.what)
    assert score.right >= 0.97, (why, score.what)


def _run(*kinds: Kind) -> Run:
    return Run("forward", [*range(len(kinds))], [*kinds])


def _core(tokens: int, length: int, heads: int) -> Kind:
    shape = AttentionShape(tokens // length, heads, heads, length, length, 64, 64, "bf16", False, False)
    return Kind("core", "_flash_attention_forward", core=shape)


def _linear(m: int, n: int, k: int) -> Kind:
    return Kind("gemm", "addmm", gemm=GemmShape(m, n, k, 1, None, None, None))


def test_attention_in_a_loop_over_windows_is_one_core() -> None:
    run = _run(_linear(256, 768, 256), *[_core(64, 64, 4)] * 4, Kind("copy", "cat"), _linear(256, 256, 256))
    (core,) = find_cores(run)
    assert (core.first, core.last, core.tokens) == (1, 4, 256)
    assert {*core.parts.values()} == {"attention.core"}


def test_attentions_with_products_between_stay_apart() -> None:
    run = _run(_core(64, 64, 4), _linear(64, 256, 256), _core(64, 64, 4))
    assert [core.first for core in find_cores(run)] == [0, 2]


def test_two_readings_of_the_same_queries_do_not_add_up() -> None:
    run = _run(_linear(64, 768, 256), _core(64, 64, 4), _core(64, 64, 4), _linear(64, 256, 256))
    (core,) = find_cores(run)
    assert core.tokens == 64


@pytest.mark.parametrize("power", ["rsqrt", "pow"])
def test_a_root_written_as_a_power_ends_a_mean_square(power: str) -> None:
    stream, rows = (4, 512, 512), (4, 512, 1)
    steps = (("pow", stream), ("mean", stream), ("add", rows), (power, rows), ("mul", stream))
    kinds = [Kind("add" if name == "add" else "elementwise", name, tensors=(size,)) for name, size in steps]
    assert written_norms(_run(*kinds)) >= {0, 1, 2, 3}


def test_a_cube_is_no_root() -> None:
    wide = (4, 512, 512)
    kinds = [Kind("elementwise", name, tensors=(wide,)) for name in ("mul", "pow", "add", "tanh")]
    assert written_norms(_run(*kinds)) == set()


def test_streams_are_parted_where_their_cores_take_turns() -> None:
    fused = Kind("fused", "triton_poi_fused_add_0", tensors=((616, 512),))
    layers = [kind for _ in range(2) for kind in (_core(400, 50, 12), _core(616, 77, 8), fused)]
    run = _run(*layers)
    run.cores = find_cores(run)
    kept = {len(stream.run): stream.kept for stream in streams(run)}
    assert kept == {2: [0, 3], 4: [1, 2, 4, 5]}
    one = _run(*[_core(400, 50, 12)] * 2, fused, _core(616, 77, 8))
    one.cores = find_cores(one)
    assert [stream.run for stream in streams(one)] == [one]
