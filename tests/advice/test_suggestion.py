"""What ``tracelens suggest`` says, as a value."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import msgspec
import pytest

import tracelens
from tests.advice import configs
from tests.advice.configs import gpt3_2_7b, read, written
from tests.said import Listener
from tracelens.config import config_from_flags
from tracelens.config.training import Training
from tracelens.errors import InputError, UsageError
from tracelens.gemm.predict import predict_gemm
from tracelens.hardware import find_gpu
from tracelens.hardware.measurements import GemmMeasurement, Measurements
from tracelens.render.search import why_unsure, words
from tracelens.results.suggestions import Suggestions
from tracelens.step import suggestion
from tracelens.suggestions import suggest


def test_the_paper_s_case(said: Listener) -> None:
    found = suggest(gpt3_2_7b(), gpu="h100-sxm")
    best = found.picks[0]
    assert best.change == {
        "heads": [32, 20], "kv_heads": [32, 20], "head_dim": [80, 128], "vocab": [50257, 50304],
    }  # fmt: skip
    assert best.effort == "retrain"
    assert best.parameters_frac == pytest.approx(0, abs=1e-3)
    assert {reason.component for reason in best.reasons} == {"logits", "attention.core"}
    assert sum(reason.saving_ms for reason in best.reasons) <= (best.saving_ms.mid or 0) * 1.01
    assert found.verdict.startswith(best.title)
    assert sum(row.frac for row in found.components) == pytest.approx(1)
    said(best.title)
    heads = {row.heads: row.saving_frac.mid or 0 for row in found.heads}
    assert heads[20] > heads[40] > 0 > heads[64]


def test_what_torch_compile_does_by_itself_is_said(said: Listener) -> None:
    found = suggest(gpt3_2_7b(), gpu="a100-sxm-80gb")
    said(found.verdict, found.notes)
    even = suggest(gpt3_2_7b(vocab=50304), gpu="a100-sxm-80gb")
    assert not any("torch.compile" in text for text in (even.verdict, *even.notes))


def test_a_compiled_step_is_not_told_to_pad_what_is_padded() -> None:
    """Padded rows begin on 16 bytes: what is left to save is little."""
    config = config_from_flags({"hidden": 4096, "heads": 32, "layers": 8, "ffn": 12800, "vocab": 49159})
    plain, padded = (
        suggest(config, gpu="h100-sxm", training=Training(1, stack=stack)) for stack in ("plain", "compiled")
    )
    saved = [found.picks[0].saving_frac.mid or 0 for found in (plain, padded)]
    assert plain.picks[0].change == {"vocab": [49159, 49216]} and saved[1] < 0.1 * saved[0]
    logits = [next(row for row in found.components if row.component == "logits") for found in (plain, padded)]
    assert (logits[1].time_ms.mid or 0) < 0.3 * (logits[0].time_ms.mid or 0)


@pytest.mark.parametrize(
    ("name", "part"), [("h100", "h100-sxm"), ("a100", "a100-sxm-80gb"), ("h200", "h200")]
)
def test_a_chip_s_name_means_its_usual_part_and_says_so(name: str, part: str, said: Listener) -> None:
    found = suggest(gpt3_2_7b(vocab=50304), gpu=name)
    assert found.gpu == part
    said(found.notes)


def test_why_a_shape_is_not_recommended(said: Listener) -> None:
    sizes = {"hidden": 1600, "heads": 25, "layers": 48, "vocab": 50257}
    one = suggest(config_from_flags(sizes), gpu="a100-sxm-80gb").unsure
    assert one is not None and (one.saving_frac.low or 0) > 0
    assert one.unsure_over == {"vocab": [50257, 50304]}
    alone = replace(one, unsure_over={})
    low = replace(one.saving_frac, low=-0.01)
    said(why_unsure(one), why_unsure(alone), why_unsure(replace(alone, saving_frac=low)))


def test_every_size_that_changes_is_named(said: Listener) -> None:
    """Heads of their own size are no hidden / heads, and few kv_heads of another size are another model."""
    gemma2 = {"hidden": 3584, "heads": 16, "head_dim": 256, "kv_heads": 8, "ffn": 14336, "layers": 42}
    asked = config_from_flags(gemma2 | {"vocab": 256_000}, gated=True)
    one = suggest(asked, gpu="h100-sxm", free=["kv_heads"]).unsure
    assert one is not None and {"head_dim", "kv_heads"} < set(one.change)
    said(one.title, words(one.change))


def test_other_heads_say_what_they_do_to_the_weights(tmp_path: Path) -> None:
    """8 KV heads of 64 instead of 128 halve K and V: 32 layers of 2 x 4096 x 512 weights less."""
    config = read(tmp_path, configs.LLAMA3_8B)
    rows = {row.heads: row for row in suggest(config, gpu="h100-sxm").heads}
    less = 32 * 2 * 4096 * 512 / (config.model.parameters or 1)
    assert [rows[heads].parameters_frac for heads in (64, 16)] == pytest.approx([-less, 2 * less])
    assert {row.parameters_frac for row in suggest(gpt3_2_7b(), gpu="h100-sxm").heads} == {0.0}


def test_effort_by_what_changes() -> None:
    found = suggest(gpt3_2_7b(), gpu="h100-sxm")
    assert {tuple(pick.change): pick.effort for pick in found.picks}[("vocab",)] == "config"


def test_a_good_shape_is_told_so(tmp_path: Path, said: Listener) -> None:
    found = suggest(read(tmp_path, configs.LLAMA2_7B, tensor_parallel=2), gpu="h100-sxm")
    assert found.picks == []
    assert (found.room_gb, found.would_fit) == (80, None)
    said(found.verdict)


def test_what_does_not_fit_is_not_called_good(tmp_path: Path, said: Listener) -> None:
    """16 bytes a weight of a 7B model are 108 GB, before any activation."""
    config = read(tmp_path, configs.LLAMA2_7B)
    found = suggest(config, gpu="h100-sxm")
    assert (found.memory_gb or 0) > 80
    shared = suggest(config, gpu="h100-sxm", training=Training(4))
    assert shared.would_fit is None
    small = suggest(gpt3_2_7b(micro_batch=16), gpu="h100-sxm")
    said(found.verdict, found.would_fit, shared.verdict, small.would_fit)
    assert suggest(gpt3_2_7b(), gpu="h100-sxm").would_fit is None


def test_heads_that_no_ranks_can_share_are_not_called_good(tmp_path: Path, said: Listener) -> None:
    found = suggest(read(tmp_path, configs.FALCON_7B), gpu="h200", fix=["vocab"])
    said(found.verdict)


def test_a_lost_tensor_parallel_degree_is_said(said: Listener) -> None:
    found = suggest(gpt3_2_7b(), gpu="h100-sxm")
    said(found.picks[0].effort_why)
    asked = suggest(gpt3_2_7b(), gpu="h100-sxm", free=["heads"])
    assert "heads" in asked.searched


def test_what_cannot_be_judged_is_not_called_good(said: Listener) -> None:
    found = suggest(gpt3_2_7b(), gpu="rtx-5090", fix=["heads", "hidden", "ffn"])
    assert any("50257 → 50304" in note for note in found.notes)
    said(found.verdict)


def test_a_shape_with_nothing_to_compare_or_odd_gemms_is_not_called_good(said: Listener) -> None:
    tiny = config_from_flags({"hidden": 64, "heads": 4, "ffn": 172, "vocab": 100, "layers": 2})
    alone = suggest(tiny, gpu="h100-sxm")
    assert alone.tried == 0
    odd = suggest(gpt3_2_7b(heads=20), gpu="h100-sxm", fix=["vocab"])
    assert odd.picks == [] and odd.tried > 1
    said(alone.verdict, odd.verdict)


@pytest.mark.parametrize("gpu", ["b200", "rtx-4090"])
def test_a_gemm_of_unknown_alignment_cost_is_a_floor_and_no_faster_than_an_aligned_one(gpu: str) -> None:
    sizes = {"hidden": 768, "heads": 12, "layers": 12}
    odd, even = (suggest(config_from_flags(sizes | {"vocab": n}), gpu=gpu) for n in (50257, 50304))
    now, then = (next(x for x in one.components if x.component == "logits") for one in (odd, even))
    assert (now.at_least, now.tflops, odd.tflops) == (True, None, None)
    assert not then.at_least and then.tflops and even.tflops
    assert now.time_ms.mid >= then.time_ms.mid * 50257 / 50304
    assert [row.component for row in odd.components if row.at_least] == ["logits"]


def test_the_same_from_python_and_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, configs.GPT2_XL)
    found = tracelens.suggest(path, gpu="h100-sxm")
    assert asdict(found) == asdict(suggestion.suggest(str(path), gpu="h100-sxm"))
    other = tracelens.suggest(path, gpu="h100-sxm", sizes={"micro_batch": 3})
    assert other.sizes["micro_batch"].value == 3


def test_values_become_json_and_come_back() -> None:
    found = suggest(gpt3_2_7b(), gpu="a100-sxm-80gb", free=["layers"])
    assert msgspec.json.decode(msgspec.json.encode(found), type=Suggestions) == found


def test_what_is_fixed_is_not_searched(tmp_path: Path) -> None:
    found = suggest(gpt3_2_7b(), gpu="h100-sxm", fix=["vocab", "heads"])
    assert not {"vocab", "heads", "head_dim"} & set(found.searched)
    assert not any("50257 → 50304" in note for note in found.notes)
    nano = suggest(read(tmp_path, configs.NANOGPT, "a.py"), gpu="h100-sxm")
    assert "hidden" not in nano.searched
    assert any("4 * n_embd" in note for note in nano.notes)


def test_what_the_sum_leaves_out_is_said() -> None:
    found = suggest(gpt3_2_7b(), gpu="h100-sxm")
    assert any("communication" in line for line in found.not_included)
    assert any("optimizer" in line for line in found.not_included)
    assert found.basis == "model"
    assert (found.time_ms.high or 0) > 1.1 * (found.time_ms.mid or 0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"gpu": "h1000"}, "unknown GPU"),
        ({"gpu": "h100-sxm", "fix": ["colour"]}, "'colour' cannot be searched"),
        ({"gpu": "h100-sxm", "fix": ["layers"], "free": ["layers"]}, "fixed or free, not both"),
        ({"gpu": "h100-sxm", "parameters_frac": 0.5}, "0 to 20 %"),
    ],
)
def test_wrong_use(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        suggest(gpt3_2_7b(), **arguments)  # type: ignore[arg-type]


def _measured_h200() -> Measurements:
    """Products a tenth slower than the model has them, over the sizes of a 2.7B model."""
    h200 = find_gpu(None, override="h200")
    rows = []
    for m in (4096, 8192, 16384):
        for n in (2560, 5120, 7680, 10240, 20480, 50304):
            for k in (1280, 2560, 5120, 10240):
                for layout in ("TN", "NN", "NT"):
                    mid = predict_gemm(m, n, k, gpu=h200, layout=layout).time_us.mid or 0.0
                    rows.append(
                        GemmMeasurement("made up", m, n, k, 1, "bf16", "bf16", layout, 1.1 * mid, 0.01, ())
                    )
    return Measurements("h200", {"sms": 132}, {}, {}, "2026-11-21", "made up", "made up", tuple(rows))


def test_measurements_make_the_products_calibrated(monkeypatch: pytest.MonkeyPatch, said: Listener) -> None:
    config = gpt3_2_7b(vocab=50304)
    plain = suggest(config, gpu="h200")
    monkeypatch.setattr(suggestion, "find_measurements", lambda *_, **__: _measured_h200())
    found = suggest(config, gpu="h200")
    ups = [next(row for row in one.components if row.component == "mlp.up") for one in (plain, found)]
    assert [row.time_ms.basis for row in ups] == ["model", "calibrated"]
    assert (ups[1].time_ms.mid or 0) == pytest.approx(1.1 * (ups[0].time_ms.mid or 0), rel=0.03)
    assert found.basis == "model"  # attention and bytes, a fifth of the step, were not measured
    said(found.notes)


def test_a_gpu_without_figures_is_refused(said: Listener) -> None:
    """A V100 has no bf16: floors are no prediction."""
    with pytest.raises(InputError) as error:
        suggest(gpt3_2_7b(), gpu="v100-sxm")
    said(error.value)
