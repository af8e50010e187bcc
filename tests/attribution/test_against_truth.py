"""Attribution of simulated recordings, compared kernel by kernel with what the builder knows to be true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.synthetic import ModelSpec, Options, Synthetic, Truth, build
from tests.trace.tools import read
from tracelens.attribution import Attribution, attribute
from tracelens.attribution.words import REASONS
from tracelens.trace import Links, Trace, link
from tracelens.words import COMPONENTS, EVIDENCE, PHASES

#: Large enough that its GEMMs, and not its launches, take the time; simulated, so it costs nothing.
GPT2 = ModelSpec(hidden=768, heads=12, layers=2, vocab=50257, sequence=512, micro_batch=4)
LLAMA = replace(GPT2, family="llama", kv_heads=4, ffn=2048, tied=False)
MODELS = {"gpt2": GPT2, "llama": LLAMA}

#: (truth, found): coarser than the truth, and true.
COARSER = {
    ("attention.rope", "attention.other"),  # elementwise code in an attention module, no name of its own
    ("attention.softmax", "attention.other"),  # the scale, mask and casts around the softmax
    ("mlp.activation", "mlp.other"),  # the product of gate and up
}


@dataclass(frozen=True)
class Case:
    synthetic: Synthetic
    trace: Trace
    links: Links
    result: Attribution

    def rows(self) -> Iterator[tuple[int, Truth, str, str]]:
        """(row, truth, component, evidence) of every kernel."""
        truth = {row.correlation: row for row in self.synthetic.truth}
        for row, correlation in enumerate(self.trace.kernels.correlation.tolist()):
            component = COMPONENTS[self.result.component[row]]
            yield row, truth[correlation], component, EVIDENCE[self.result.evidence[row]]

    def share(self, *, coarser: bool) -> float:
        """Of all GPU time, how much has its true component (or one that is coarser and true)."""
        right = total = 0
        for _, truth, component, _ in self.rows():
            total += truth.duration_ns
            fits = component == truth.component or (coarser and (truth.component, component) in COARSER)
            right += truth.duration_ns * fits
        return right / total


def attribute_case(folder: Path, model: ModelSpec, options: Options) -> Case:
    synthetic = build(model, options)
    trace = read(folder, synthetic.text())
    links = link(trace)
    return Case(synthetic, trace, links, attribute(trace, links))


NAMES = {"frames": (True, False), "ranges": (False, True), "both": (True, True), "nothing": (False, False)}
MATRIX = [*product(MODELS, NAMES, ("flash", "math"), ("fused", "foreach"))]


@pytest.fixture(scope="module", params=MATRIX, ids="-".join)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    family, names, attention, optimizer = request.param
    frames, ranges = NAMES[names]
    options = Options(
        module_frames=frames,
        ranges=ranges,
        attention=attention,
        optimizer=optimizer,
        prelaunched=2,
        accumulate=2,
        zero_to_none=False,
        all_reduce=True,
    )
    return attribute_case(tmp_path_factory.mktemp("case"), MODELS[family], options)


def has_names(case: Case) -> bool:
    return case.synthetic.options.module_frames or case.synthetic.options.ranges


def test_what_is_stated_is_true_or_coarser(case: Case) -> None:
    """No evidence is better than a wrong component: every claim must hold."""
    wrong = Counter(
        (truth.component, component, evidence, truth.phase)
        for _, truth, component, evidence in case.rows()
        if truth.strict
        and evidence != "none"
        and component not in (truth.component, "other")
        and (truth.component, component) not in COARSER
    )
    assert wrong == {}


def test_other_is_said_of_named_work_nowhere(case: Case) -> None:
    """With module names every part of this model has a word of its own."""
    if has_names(case):
        assert "other" not in {component for _, _, component, _ in case.rows()}


def test_almost_all_time_has_its_component(case: Case) -> None:
    coarse = case.share(coarser=True)
    exact = case.share(coarser=False)
    if has_names(case):
        assert coarse > 0.98
        assert exact > (0.90 if case.synthetic.options.attention == "math" else 0.95)
    elif case.synthetic.options.attention == "flash":
        assert exact > 0.80  # the operators' own names, and the vocabulary
    else:
        assert exact > 0.25


def test_component_times_add_up_to_all_gpu_time(case: Case) -> None:
    times = np.zeros(len(COMPONENTS), np.int64)
    np.add.at(times, case.result.component, case.trace.kernels.dur_ns)
    assert int(times.sum()) == sum(row.duration_ns for row in case.synthetic.truth)
    assert len(case.result.component) == len(case.synthetic.truth)


def test_unattributed_has_a_reason_and_nothing_else_has(case: Case) -> None:
    result = case.result
    open_ = result.component == COMPONENTS.index("unattributed")
    assert ((result.evidence == EVIDENCE.index("none")) == open_).all()
    assert ((result.reason >= 0) == open_).all()
    assert (result.reason < len(REASONS)).all()
    masks = [mask for _, mask in result.reasons()]
    assert sum(int(mask.sum()) for mask in masks) == int(open_.sum())
    if masks:
        assert (np.logical_or.reduce(masks) == open_).all()


def test_phases_are_those_of_the_step(case: Case) -> None:
    """``other`` is said of work outside every module and operator that a phase could be read from."""
    wrong = Counter(
        (truth.component, truth.phase, PHASES[case.result.phase[row]])
        for row, truth, _, _ in case.rows()
        if truth.strict and truth.launched and PHASES[case.result.phase[row]] not in (truth.phase, "other")
    )
    assert wrong == {}
    vague = [
        row for row, truth, _, _ in case.rows() if PHASES[case.result.phase[row]] == "other" != truth.phase
    ]
    time = case.trace.kernels.dur_ns
    assert time[vague].sum() < 0.02 * time.sum()


def test_layers_are_those_of_the_modules(case: Case) -> None:
    for row, truth, component, evidence in case.rows():
        layer = int(case.result.layer[row])
        if not has_names(case):
            assert layer == -1 or not truth.strict or layer == truth.layer, (truth.component, evidence)
        elif truth.strict and evidence != "none" and component != "communication":
            assert layer == (-1 if truth.layer is None else truth.layer), (truth.component, evidence)


def test_modules_are_named_as_in_the_trace(case: Case) -> None:
    if not case.synthetic.options.ranges:
        return
    for row, truth, component, evidence in case.rows():
        if truth.strict and truth.module and evidence != "none" and component == truth.component:
            module = int(case.result.module[row])
            name = case.result.modules[module] if module >= 0 else ""
            # the loss runs outside every range; what the structure says needs no range around it
            if component != "loss" and evidence != "structure":
                assert name == truth.module or name.endswith(f".{truth.module}")


def test_fused_kernels_list_what_they_cover(case: Case) -> None:
    core = {"attention.scores", "attention.softmax", "attention.values"}
    for row, _, component, _ in case.rows():
        listed = set(case.result.components[case.result.fused[row]])
        if component == "attention.core":
            assert listed == core
        else:
            assert listed == set()


def test_steps_are_those_of_the_links(case: Case) -> None:
    assert (case.result.step == case.links.kernel_step).all()
    one = case.result.within_steps([1])
    assert set(one.step.tolist()) <= {-1, 1}
    assert ((one.step == 1) == (case.result.step == 1)).all()


def test_kernels_launched_before_the_recording_are_kept(case: Case) -> None:
    early = [row for row, truth, _, _ in case.rows() if not truth.launched]
    assert len(early) == 2
    assert set(case.result.step[early].tolist()) == {-1}
    for row in early:
        component = COMPONENTS[case.result.component[row]]
        assert component == "optimizer"  # fused Adam says so in its kernel's name
        assert EVIDENCE[case.result.evidence[row]] == "kernel_name"


def test_the_origin_of_a_backward_kernel_is_a_forward_operator(case: Case) -> None:
    ops = case.trace.ops
    backward = case.result.phase == PHASES.index("backward")
    tied = backward & (case.result.forward_op >= 0)
    assert tied.sum() > 0.8 * backward.sum()
    assert (ops.forward_thread[case.result.forward_op[tied]] <= 0).all()


def test_evidence_names_the_kind_of_names_there_are(case: Case) -> None:
    found = Counter(evidence for _, truth, _, evidence in case.rows() if truth.phase == "forward")
    ranges, frames = case.synthetic.options.ranges, case.synthetic.options.module_frames
    assert bool(found["annotation"]) == ranges
    assert bool(found["module_stack"]) == (frames and not ranges)


def test_each_kind_of_naming_says_the_same(tmp_path: Path) -> None:
    """Module frames and ranges are two ways to know one thing: the components must agree.

    A model as a whole has a frame and no range: what it runs itself, frames alone can say, and say right.
    """
    for model in MODELS.values():
        found = []
        for frames, ranges in (NAMES["frames"], NAMES["ranges"], NAMES["both"]):
            case = attribute_case(tmp_path, model, Options(module_frames=frames, ranges=ranges, clip=False))
            found.append([(truth.component, component) for _, truth, component, _ in case.rows()])
        by_frames, by_ranges, by_both = found
        assert by_frames == by_both
        for (truth, said), (_, ranged) in zip(by_frames, by_ranges, strict=True):
            assert said == ranged or (said == truth and ranged == "unattributed")


@pytest.mark.parametrize(
    ("model", "classes"),
    [
        ("llama", {"LlamaForCausalLM": "Qwen3MoeForCausalLM", "LlamaModel": "Qwen3MoeModel",
                   "LlamaDecoderLayer": "Qwen3MoeDecoderLayer", "LlamaAttention": "Qwen3MoeAttention"}),
        ("llama", {"LlamaAttention": "LlamaSdpaAttention", "LlamaRMSNorm": "FusedRMSNorm"}),
        # huggingface/pytorch-image-models, timm/layers: an MLP, and attention
        ("llama", {"LlamaMLP": "SwiGLU", "LlamaAttention": "AttentionRope"}),
        ("gpt2", {"GPT": "GPT2LMHeadModel", "Block": "GPT2Block", "CausalSelfAttention": "GPT2Attention",
                  "MLP": "GPT2MLP", "Linear": "Conv1D"}),
        ("gpt2", {"Linear": "LayerNormLinear", "MLP": "LayerNormMLP", "Block": "TransformerLayer",
                  "CausalSelfAttention": "MultiheadAttention"}),
    ],
)  # fmt: skip
def test_the_class_names_of_other_libraries_mislead_nobody(
    tmp_path: Path, model: str, classes: dict[str, str]
) -> None:
    synthetic = build(MODELS[model], Options(steps=1))
    text = synthetic.text()
    for own, other in classes.items():
        assert f"nn.Module: {own}_" in text
        text = text.replace(f"nn.Module: {own}_", f"nn.Module: {other}_")
    trace = read(tmp_path, text)
    links = link(trace)
    case = Case(synthetic, trace, links, attribute(trace, links))
    test_what_is_stated_is_true_or_coarser(case)
    assert case.share(coarser=True) > 0.97


def test_unfused_attention_is_seen_without_any_name(tmp_path: Path) -> None:
    """Scores, softmax, values: a transformer, though no module says so; a DLRM's products alone are none."""
    model = ModelSpec(family="gpt2", hidden=256, heads=4, layers=1, vocab=1003, sequence=128, micro_batch=1)
    trace = read(tmp_path, build(model, Options(steps=1, module_frames=False, attention="math")).text())
    attribution = attribute(trace, link(trace))
    assert attribution.transformer
    assert "logits" in {COMPONENTS[code] for code in attribution.component}


def test_a_head_with_the_token_tables_shape_is_no_head_of_classes(tmp_path: Path) -> None:
    """sshleifer/tiny-gpt2: of width 2, so that the logits' place looks like a choice of classes."""
    tiny = ModelSpec(hidden=2, heads=2, layers=2, vocab=50257, sequence=6, micro_batch=2)
    case = attribute_case(tmp_path, tiny, Options(attention="math"))
    assert {found for _, truth, found, _ in case.rows() if truth.component == "logits"} == {"logits"}


def test_a_tied_backward_kernel_is_not_said_to_lack_its_forward(tmp_path: Path) -> None:
    model = ModelSpec(family="gpt2", hidden=256, heads=4, layers=1, vocab=1003, sequence=128, micro_batch=1)
    trace = read(tmp_path, build(model, Options(steps=1)).text())
    attribution = attribute(trace, link(trace))
    tied = attribution.forward_op >= 0
    for reason, mask in attribution.reasons():
        assert reason != "backward" or not (mask & tied).any()


@pytest.mark.parametrize("frames", [False, True])
def test_a_step_that_runs_inside_the_optimizer_is_not_the_optimizers(tmp_path: Path, frames: bool) -> None:
    """``optimizer.step(closure)``, as PyTorch Lightning calls it: forward and backward lie in its range."""
    made = build(GPT2, Options(module_frames=frames, clip=False))
    steps = [e for e in made.records if e.cat == "user_annotation" and e.name.startswith("ProfilerStep#")]
    for event in made.records:
        if event.cat == "user_annotation" and event.name.startswith("Optimizer.step#"):
            outer = next(step for step in steps if step.ts <= event.ts < step.ts + step.dur)
            event.ts, event.dur = outer.ts + 1, event.ts + event.dur - outer.ts - 1
    trace = read(tmp_path, made.text())
    links = link(trace)
    case = Case(made, trace, links, attribute(trace, links))
    assert case.share(coarser=False) > 0.99
    optimizer = PHASES.index("optimizer")
    for row, truth, component, _ in case.rows():
        assert (component == "optimizer") == (truth.component == "optimizer")
        if truth.strict and truth.phase != "other":
            assert (case.result.phase[row] == optimizer) == (truth.phase == "optimizer")
