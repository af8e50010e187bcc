"""Attribution of real recordings: what must hold without knowing the truth about them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.trace.tools import need_shared, shared_traces
from tracelens.attribution import Attribution, attribute
from tracelens.trace import Trace, link, read_trace
from tracelens.words import COMPONENTS, EVIDENCE

SAMPLES = Path(__file__).parents[2] / "sample_traces"
TRANSFORMER_PARTS = {
    c for c in COMPONENTS if c.startswith(("attention.", "mlp.", "moe.", "logits", "residual"))
}


def attributed(path: Path) -> tuple[Trace, Attribution]:
    trace = read_trace(path)
    return trace, attribute(trace, link(trace))


def time_of(trace: Trace, result: Attribution) -> dict[str, int]:
    times = np.zeros(len(COMPONENTS), np.int64)
    np.add.at(times, result.component, trace.kernels.dur_ns)
    return {component: int(ns) for component, ns in zip(COMPONENTS, times, strict=True) if ns}


@pytest.mark.parametrize("path", shared_traces() or [None], ids=lambda path: path.name if path else "absent")
def test_all_gpu_time_is_accounted_for(path: Path | None) -> None:
    if path is None:
        pytest.skip("the real traces are not beside the repository")
    trace, result = attributed(path)
    assert sum(time_of(trace, result).values()) == int(trace.kernels.dur_ns.sum())
    open_ = result.component == COMPONENTS.index("unattributed")
    assert ((result.reason >= 0) == open_).all()
    assert ((result.evidence == EVIDENCE.index("none")) == open_).all()


@pytest.mark.parametrize("name", ["d6_", "d7_", "d9_"])
def test_a_model_without_attention_has_no_transformer_parts(name: str) -> None:
    """VGG, a 2021 recording of ResNet, and a recommendation model."""
    trace, result = attributed(need_shared(name))
    assert not result.transformer
    assert time_of(trace, result).keys() & TRANSFORMER_PARTS == set()


@pytest.mark.parametrize("name", ["d1_", "d2_", "d3_", "d4_", "d5_", "d8_"])
def test_transformers_are_recognized(name: str) -> None:
    assert attributed(need_shared(name))[1].transformer


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*_compile.json.gz")), ids=lambda path: path.name)
def test_a_compiled_step_of_an_h100_has_little_open(path: Path) -> None:
    """Also where PyTorch pads some products of a vocabulary (30522, 50257) and not the others."""
    trace, result = attributed(path)
    inside = result.step >= 0
    open_ = inside & (result.component == COMPONENTS.index("unattributed"))
    assert trace.kernels.dur_ns[open_].sum() < 0.025 * trace.kernels.dur_ns[inside].sum()


@pytest.mark.parametrize(("name", "share"), [("d3_", 0.95), ("d4_", 0.95), ("d8_", 0.95)])
def test_eager_models_with_module_names_are_attributed(name: str, share: float) -> None:
    trace, result = attributed(need_shared(name))
    times = time_of(trace, result)
    assert 1 - times.get("unattributed", 0) / sum(times.values()) > share


def test_a_recording_of_a_cuda_graph_says_that_it_is_one() -> None:
    trace, result = attributed(need_shared("d5_"))
    reasons = {why: int(trace.kernels.dur_ns[mask].sum()) for why, mask in result.reasons()}
    assert max(reasons, key=lambda why: reasons[why]) == "graph"


@pytest.mark.parametrize(
    ("name", "kernel", "component"),
    [
        ("gpt2_vocab50257_head80", "triton_poi_fused__to_copy_18", "logits"),  # casts the head's weight
        ("gpt2_vocab50257_head80", "triton_poi_fused__to_copy_add_mm_19", "embedding"),  # tied with the head
        ("bert_vocab30522", "triton_poi_fused__to_copy_add_19", "embedding"),
    ],
)
def test_work_on_the_table_of_words_alone(name: str, kernel: str, component: str) -> None:
    trace, result = attributed(SAMPLES / f"h100-sxm_{name}_compile.json.gz")
    named = trace.symbols.where(kernel.__eq__)[trace.kernels.name] & (result.step >= 0)
    assert {COMPONENTS[code] for code in result.component[named].tolist()} == {component}
