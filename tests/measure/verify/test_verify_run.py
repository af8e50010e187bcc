"""A run on a GPU whose times follow a law: what it saves is known, and so is what must be said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.measure.fakes import FakeDevice
from tests.measure.verify import rig
from tests.measure.verify.conftest import Verify
from tests.measure.verify.rig import code, codes, read
from tests.said import Listener
from tracelens import Analysis
from tracelens.errors import InputError, UsageError
from tracelens.measure.cases import GemmCase
from tracelens.measure.layer_shapes import LayerShape
from tracelens.measure.pairs import PairTimes
from tracelens.measure.verify import Done, Source, read_source
from tracelens.measure.verify.meter import CallTime
from tracelens.measure.verify.plan import make_trial
from tracelens.measure.verify.standin import StandIn, stand_in
from tracelens.render.findings import caveats
from tracelens.render.verified_words import how, measured
from tracelens.render.verified_words import said as in_words
from tracelens.results import Verified
from tracelens.results.json import from_json

LAYER = LayerShape(1280, 20, 5120, sequence=1024, micro_batch=8)


def logits_saving_ms(before: int = 50257, after: int = 50304) -> float:
    return rig.layer_ms(LAYER.changed(vocab=before)) - rig.layer_ms(LAYER.changed(vocab=after))


def told(done: Done) -> list[str]:
    """What the first finding says before a change."""
    return caveats(from_json(json.dumps(done.document()).encode()).findings[0])


def found(done: Done, at: int = 0) -> Verified:
    one = done.verified[at]
    assert one is not None
    return one


def test_a_vocabulary_saves_what_its_logits_save(source: Source, verify_on: Verify) -> None:
    one = found(verify_on(source))
    assert (one.state, one.rests_on, one.replaces) == ("measured", "layers", True)
    assert one.saving_ms.mid == pytest.approx(logits_saving_ms())
    assert one.saving_ms.basis == "measured"
    assert one.products_ms.mid == pytest.approx(logits_saving_ms())
    assert one.saving_frac.mid == pytest.approx(logits_saving_ms() / 39.84, rel=1e-3)
    predicted = source.asked[0].predicted_ms
    assert predicted.mid is not None and predicted.low is not None and predicted.high is not None
    assert one.ratio == pytest.approx(logits_saving_ms() / predicted.mid)
    assert one.in_range is (predicted.low <= logits_saving_ms() <= predicted.high)
    assert "1 × (logits: " in how(one)


def test_heads_save_in_every_layer(source: Source, verify_on: Verify) -> None:
    one = found(verify_on(source), 1)
    saved = rig.layer_ms(LAYER) - rig.layer_ms(LAYER.changed(heads=10))
    assert saved > 0
    assert one.saving_ms.mid == pytest.approx(12 * saved)
    assert "12 × (layer: " in how(one)
    assert {"plain_layers", "outside"} <= set(codes(one.not_covered))


def test_layers_that_are_no_longer_there_are_saved_whole(source: Source, verify_on: Verify) -> None:
    one = found(verify_on(source), 2)
    assert one.saving_ms.mid == pytest.approx(2 * rig.layer_ms(LAYER))


def test_a_change_that_costs_time_is_said_to(source: Source, verify_on: Verify) -> None:
    """Per step, as it was predicted: twice the tokens take longer."""
    done = verify_on(source)
    one = found(done, 4)
    assert one.saving_ms.mid is not None
    assert one.saving_ms.mid < 0
    assert one.ratio is not None and one.ratio > 0  # the prediction says so too
    assert found(done, 3).saving_ms.mid is not None


def test_the_range_is_that_of_the_turns_and_of_a_layer_against_itself(
    source: Source, verify_on: Verify
) -> None:
    sure, unsure = (found(verify_on(source, meter=rig.Meter(wobble))) for wobble in (0.0, 0.05))
    assert sure.saving_ms.low == pytest.approx(sure.saving_ms.high)
    assert unsure.saving_ms.low is not None and unsure.saving_ms.high is not None
    turns = 0.05 * rig.layer_ms(LAYER.changed(vocab=50257))
    assert unsure.saving_ms.high - unsure.saving_ms.low == pytest.approx(2 * turns)

    class Drifting(rig.Meter):
        def pair(self, now: Any, then: Any) -> Any:
            if now == then == LAYER:
                return PairTimes((1.03,) * 4, (1.0,) * 4, queued=True)
            return super().pair(now, then)

    done = verify_on(source, meter=Drifting())
    noisy = found(done).saving_ms
    assert noisy.high is not None and noisy.mid is not None
    assert noisy.high - noisy.mid == pytest.approx(0.03 * rig.layer_ms(LAYER.changed(vocab=50257)), rel=1e-6)
    assert codes(done.verification.notes) == ["noisy"]


def test_calls_of_too_few_repeats_have_a_time_and_no_range(source: Source, verify_on: Verify) -> None:
    one = found(verify_on(source, meter=rig.Meter(None)))
    assert one.products_ms.mid == pytest.approx(logits_saving_ms())
    assert (one.products_ms.low, one.products_ms.high) == (None, None)
    assert {(call.now_us.low, call.now_us.high) for call in one.calls if call.now_us.mid} == {(None, None)}


def test_without_a_layer_against_itself_no_range_is_known(
    source: Source, verify_on: Verify, said: Listener
) -> None:
    """How steady the GPU is was not seen: that is no certainty."""
    done = verify_on(source, meter=rig.Meter(fails={"layer": "not enough memory"}))
    one = found(done)
    assert (one.rests_on, one.replaces, done.verification.noise_frac) == ("layers", True, None)
    assert one.saving_ms.mid == pytest.approx(logits_saving_ms())
    assert (one.saving_ms.low, one.saving_ms.high) == (None, None)
    finding = done.document()["findings"][0]
    assert finding["confidence"] == "low"
    said(told(done)[0].partition(": ")[2])


def test_a_small_step_is_beside_what_its_parts_save(source: Source, verify_on: Verify) -> None:
    one = found(verify_on(source, model=True))
    step = next(whole for whole in one.wholes if whole.what == "step")
    assert step.saving_ms.mid == pytest.approx(logits_saving_ms())
    assert step.calls_now is None  # no part of the sum
    assert code(step.note) == "parts_alone"
    assert one.saving_ms.mid == pytest.approx(logits_saving_ms())


def test_calls_that_are_not_the_traces_are_said_to_differ(
    source: Source, verify_on: Verify, said: Listener
) -> None:
    class Slower(rig.Meter):
        factor = 1.0

        def calls(self, cases: Any) -> Any:
            traced = {pair.now: pair.trace_us for trial in trials for pair in trial.calls}
            return {
                case: CallTime((traced.get(case) or 1000.0) * self.factor, 0.0)
                for case in super().calls(cases)
            }

    trials = [make_trial(one, source, stand_in(source)) for one in source.asked]
    meter = Slower()
    assert "unlike_trace" not in codes(found(verify_on(source, meter=meter)).not_covered)
    meter.factor = 1.5
    told = [one for one in found(verify_on(source, meter=meter)).not_covered if code(one) == "unlike_trace"]
    assert len(told) == 1
    said(in_words(told[0]))


def test_without_layers_the_saving_rests_on_the_products(
    source: Source, verify_on: Verify, said: Listener
) -> None:
    one = found(verify_on(source, meter=rig.Meter(fails={"logits": "not enough memory for the logits"})))
    assert (one.state, one.rests_on) == ("measured", "products")
    assert one.saving_ms.mid == pytest.approx(logits_saving_ms())
    said(one.wholes[0].why)


def test_what_cannot_be_measured_says_why_and_stays_as_it_was(source: Source, verify_on: Verify) -> None:
    fails = dict.fromkeys(("layer", "logits", "gemm", "attention"), "the GPU is full")
    done = verify_on(source, meter=rig.Meter(fails=fails))
    one = found(done)
    assert (one.state, one.why, one.replaces) == ("not_measured", "the GPU is full", False)
    assert done.verification.measured == 0
    before, after = source.raw["findings"][0], done.document()["findings"][0]
    assert {key: after[key] for key in before} == before | {"verified": after["verified"]}


def test_half_of_the_products_is_no_saving(source: Source, verify_on: Verify) -> None:
    """Where more than a tenth of what the change touches has no time, the rest says nothing of it."""

    class Forgets(rig.Meter):
        def calls(self, cases: Any) -> Any:
            answers = super().calls(cases)
            odd = [case for case in answers if isinstance(case, GemmCase) and case.layout == "NT"]
            return answers | dict.fromkeys(odd, "no kernel")

    one = found(verify_on(source, meter=Forgets(fails={"logits": "no room"})))
    assert (one.state, one.products_ms.mid) == ("not_measured", None)
    assert sum(call.saving_ms.mid is not None for call in one.calls) == 2


# --- which GPU ----------------------------------------------------------------------------------------


def test_another_gpu_is_refused(source: Source, verify_on: Verify, said: Listener) -> None:
    a100 = rig.gpu("a100-sxm-80gb", "NVIDIA A100-SXM4-80GB", 108)
    with pytest.raises(UsageError) as error:
        verify_on(source, on=a100)
    said(error.value)
    with pytest.raises(UsageError) as error:
        verify_on(source, on=rig.gpu(sms=60))
    said(error.value)


def test_a_board_of_the_name_with_another_memory_is_another_gpu(
    source: Source, verify_on: Verify, said: Listener
) -> None:
    """The trace's H100 reports 79.2 GiB; GH200's is an "H100" of 96 with another bandwidth."""
    assert source.memory_gib == pytest.approx(79.2, abs=0.05)
    with pytest.raises(UsageError) as error:
        verify_on(source, on=rig.gpu(memory_bytes=100 * 10**9))
    said(error.value)
    assert found(verify_on(source, on=rig.gpu(memory_bytes=80 * 2**30))).state == "measured"


def test_another_gpu_told_to_is_said_and_replaces_nothing(source: Source, verify_on: Verify) -> None:
    done = verify_on(source, on=rig.gpu("a100-sxm-80gb", "NVIDIA A100-SXM4-80GB", 108), anyway=True)
    one = found(done)
    assert one.state == "measured"
    assert (one.replaces, one.ratio, one.in_range) == (False, None, None)
    assert not done.verification.same_gpu
    assert codes(done.verification.notes) == ["other_gpu"]
    finding = done.document()["findings"][0]
    assert (finding["basis"], finding["saving_ms"]) == ("model", source.raw["findings"][0]["saving_ms"])


def test_a_cpu_is_no_gpu(source: Source, verify_on: Verify, said: Listener) -> None:
    with pytest.raises(UsageError) as error:
        verify_on(source, device=FakeDevice([1.0]))
    said(error.value)


def test_a_gpu_the_table_lacks_is_told_by_its_name(
    raw: dict[str, Any], tmp_path: Path, verify_on: Verify, said: Listener
) -> None:
    raw["gpu"]["name"], raw["trace"]["device"] = "unknown", "NVIDIA Thing"
    source = read(raw, tmp_path)
    with pytest.raises(UsageError) as error:
        verify_on(source)
    said(error.value)
    assert verify_on(source, on=rig.gpu(device="NVIDIA Thing")).verification.same_gpu


# --- the file -----------------------------------------------------------------------------------------


def test_the_finding_carries_the_measured_saving_and_the_prediction_beside(
    source: Source, verify_on: Verify, tmp_path: Path
) -> None:
    verify_on(source).write(tmp_path / "out.json")
    finding = Analysis.load(tmp_path / "out.json").report.findings[0]
    assert (finding.basis, finding.saving_ms.basis) == ("measured", "measured")
    assert finding.saving_ms.mid == pytest.approx(logits_saving_ms())
    assert finding.verified is not None
    assert finding.verified.predicted_ms == source.asked[0].predicted_ms
    assert finding.verified.device == "NVIDIA H100 80GB HBM3"
    assert caveats(finding)[0] == measured(finding.verified)
    assert not any(caveat.startswith("A prediction") for caveat in caveats(finding))


def test_a_finding_that_is_slower_says_not_to(
    raw: dict[str, Any], tmp_path: Path, verify_on: Verify, said: Listener
) -> None:
    raw["findings"][0]["evidence"]["simulated"] = {"vocab": 50261}
    done = verify_on(read(raw, tmp_path))
    finding = done.document()["findings"][0]
    assert finding["saving_ms"]["mid"] < 0
    assert (finding["severity"], finding["confidence"]) == ("low", "high")
    said(told(done)[0].partition(": ")[2])


def test_findings_are_in_the_order_of_what_they_save(
    raw: dict[str, Any], tmp_path: Path, verify_on: Verify, said: Listener
) -> None:
    small = json.loads(json.dumps(raw["findings"][0]))
    small["title"] = "Pad to the next even"
    small["evidence"]["simulated"] = {"vocab": 50258}
    raw["findings"].insert(0, small)
    done = verify_on(read(raw, tmp_path))
    titles = [finding["title"] for finding in done.document()["findings"]]
    said(titles)


def test_measured_again_the_prediction_is_still_the_prediction(
    source: Source, verify_on: Verify, tmp_path: Path
) -> None:
    verify_on(source).write(tmp_path / "once.json")
    again = verify_on(read_source(tmp_path / "once.json"))
    assert found(again).predicted_ms == source.asked[0].predicted_ms
    assert sum(caveat.startswith("Measured on") for caveat in told(again)) == 1


def test_what_an_earlier_run_measured_is_kept(source: Source, verify_on: Verify, tmp_path: Path) -> None:
    verify_on(source).write(tmp_path / "once.json")
    again = read_source(tmp_path / "once.json")
    fails = dict.fromkeys(("layer", "logits", "gemm", "attention"), "the GPU is full")
    document = verify_on(again, meter=rig.Meter(fails=fails)).document()
    assert document["findings"] == again.raw["findings"]


def test_the_file_that_was_read_is_never_lost(source: Source, report: Path, verify_on: Verify) -> None:
    original = report.read_bytes()
    done = verify_on(source)
    assert done.write(report) == report.with_name("report.previous.json")
    assert report.with_name("report.previous.json").read_bytes() == original
    assert done.write(report) is None  # it holds no original any more
    second = verify_on(read_source(report))
    assert second.write(report) == report.with_name("report.previous-2.json")
    assert report.with_name("report.previous.json").read_bytes() == original


def test_only_one_rule(source: Source, verify_on: Verify, said: Listener) -> None:
    done = verify_on(source, only=["TL101"])
    assert [one is not None for one in done.verified] == [True, False, False, False, False]
    assert done.document()["what_if"][0]["verified"] is None
    with pytest.raises(UsageError) as error:
        verify_on(source, only=["TL107"])
    said(error.value)


def test_nothing_to_verify_is_an_input_that_cannot_be_used(
    raw: dict[str, Any], tmp_path: Path, verify_on: Verify, said: Listener
) -> None:
    raw["findings"], raw["what_if"] = [], []
    with pytest.raises(InputError) as error:
        verify_on(read(raw, tmp_path))
    said(error.value)


def test_savings_in_other_units_go_with_the_milliseconds(
    raw: dict[str, Any], tmp_path: Path, verify_on: Verify
) -> None:
    finding = raw["findings"][0]
    hours = {end: 0.01 * finding["saving_ms"][end] for end in ("low", "mid", "high")}
    finding["saving"] = {"gpu_hours": hours | {"basis": "model"}, "money": None}
    after = verify_on(read(raw, tmp_path)).document()["findings"][0]
    assert after["saving"]["gpu_hours"]["mid"] == pytest.approx(0.01 * logits_saving_ms())
    assert after["saving"]["gpu_hours"]["basis"] == "measured"
    assert after["saving"]["money"] is None


def test_what_ranks_exchange_is_not_measured_and_no_saving_is_claimed(
    raw: dict[str, Any], tmp_path: Path, verify_on: Verify
) -> None:
    raw["model"]["vocab"]["value"] = None
    raw["findings"][0]["evidence"]["simulated"] = {"tensor_parallel": 2}
    done = verify_on(read(raw, tmp_path))
    one = found(done)
    assert not one.replaces
    assert "layers_apart" in codes(one.not_covered)
    assert done.document()["findings"][0]["basis"] == "model"


# --- an end before the end ----------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(1, 13))
def test_an_interrupt_keeps_what_was_measured(source: Source, verify_on: Verify, at: int) -> None:
    whole = verify_on(source)
    kept: list[Done] = []
    done = verify_on(source, meter=rig.Meter(interrupt_at=at), kept=kept.append)
    assert done.stopped == "interrupted"
    measured = [one for one in done.verified if one is not None and one.state == "measured"]
    assert len(measured) == done.verification.measured <= 5
    assert json.dumps(done.document(), allow_nan=False)
    for one, full in zip(done.verified, whole.verified, strict=True):
        assert one is not None and full is not None
        if one.state == "measured" and one.rests_on == "layers":
            assert one.saving_ms == full.saving_ms
        elif one.state == "not_measured":
            assert one.why == "interrupted"
    assert len(kept) <= len(measured)
    assert at < 12 or len(measured) == 5


def test_the_largest_saving_is_measured_first(source: Source, verify_on: Verify) -> None:
    heard: list[str] = []
    verify_on(source, progress=lambda done, total, title: heard.append(title))
    predicted = {one.title: one.predicted_ms.mid or 0.0 for one in source.asked}
    assert [predicted[title] for title in heard] == sorted(predicted.values(), reverse=True)


def test_a_gpu_that_fails_for_good_ends_the_run_with_what_there_is(
    source: Source, verify_on: Verify, said: Listener
) -> None:
    class Dies(rig.Meter):
        def pair(self, now: Any, then: Any) -> Any:
            if self.asked.count("calls") == 2:
                raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
            return super().pair(now, then)

    done = verify_on(source, meter=Dies())
    assert done.verification.measured >= 1
    said(done.stopped)


# --- suggestions --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def suggestions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from dataclasses import asdict

    from tracelens.config import config_from_flags
    from tracelens.suggestions import suggest

    sizes = {"hidden": 2560, "heads": 32, "layers": 8, "vocab": 50257, "sequence": 2048, "micro_batch": 4}
    found = suggest(config_from_flags(sizes, gated=None, tied=None), gpu="h100-sxm")
    path = tmp_path_factory.mktemp("suggestions") / "suggestions.json"
    path.write_text(json.dumps({"tool_version": "0", **asdict(found)}))
    return path


def test_picks_are_measured_and_are_shares_of_the_measured_step(suggestions: Path, verify_on: Verify) -> None:
    source = read_source(suggestions)
    done = verify_on(source)
    layer = LayerShape(2560, 32, 10240)
    step = 8 * rig.layer_ms(layer) + rig.layer_ms(layer.changed(vocab=50257))
    at = next(at for at, one in enumerate(source.asked) if one.changes == {"vocab": 50304})
    one = found(done, at)
    saved = rig.layer_ms(layer.changed(vocab=50257)) - rig.layer_ms(layer.changed(vocab=50304))
    assert one.saving_ms.mid == pytest.approx(saved)
    assert one.saving_frac.mid == pytest.approx(saved / step)
    pick = done.document()["picks"][at]
    assert pick["saving_frac"]["basis"] == "measured"
    assert pick["verified"]["predicted_frac"]["basis"] == "model"


def test_a_layer_of_a_configuration_is_built_as_it_states(suggestions: Path, tmp_path: Path) -> None:
    raw = json.loads(suggestions.read_text())
    assert (raw["causal"], raw["fused_qkv"], raw["fused_gate"]) == (True, True, None)
    told = stand_in(read({**raw, "causal": False, "fused_qkv": False}, tmp_path))
    assert isinstance(told, StandIn) and (told.causal, told.fused_qkv) == (False, False)
    assert [in_words(one) for one in told.assumed] == ["FlashAttention: assumed"]
    untold = stand_in(read({**raw, "causal": None}, tmp_path))
    assert isinstance(untold, StandIn) and untold.causal and "a causal mask" in in_words(untold.assumed[0])


def test_an_encoder_with_a_decoder_is_not_built_as_a_decoder(
    suggestions: Path, tmp_path: Path, said: Listener
) -> None:
    raw = json.loads(suggestions.read_text())
    size = {"value": 12, "source": "", "assumed": False}
    biased = [*raw["components"], {"component": "attention.other", "shapes": []}]
    for more in ({"sizes": raw["sizes"] | {"decoder_layers": size}}, {"components": biased}):
        why = stand_in(read({**raw, **more}, tmp_path))
        assert not isinstance(why, StandIn) and code(why) in ("two_stacks", "attention_bias")
        said(in_words(why))


def test_a_pick_of_a_report_keeps_what_was_measured(
    raw: dict[str, Any], tmp_path: Path, verify_on: Verify
) -> None:
    """The file that is written is a report again, whose picks say what the GPU said."""
    pick = {"title": "vocab 50257 → 50304", "change": {"vocab": [50257, 50304]},
            "saving_frac": {"low": 0.01, "mid": 0.02, "high": 0.03, "basis": "model"},
            "saving_ms": {"low": 1.0, "mid": 2.0, "high": 3.0, "basis": "model"}, "shape_gain_frac": 0.02,
            "parameters": None, "parameters_frac": 0.0, "flops_frac": 0.0, "memory_frac": None,
            "effort": "config", "effort_why": "", "reasons": [], "diff": []}  # fmt: skip
    raw["shape_search"] = {"state": "found", "verdict": "faster", "picks": [pick]}
    done = verify_on(read(raw, tmp_path))
    written = from_json(json.dumps(done.document()).encode())
    assert written.shape_search is not None
    (one,) = written.shape_search.picks
    assert one.verified is not None and one.verified.state == "measured"
    assert one.saving_ms == one.verified.saving_ms and one.verified.predicted_ms.mid == 2.0
