"""``tracelens suggest`` at a terminal."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

import tracelens
from tests.advice import configs
from tests.advice.configs import written
from tests.cli.running import run
from tests.kept import analyzed
from tests.said import Listener
from tests.synthetic import ModelSpec, Options, build
from tracelens.analysis import Analysis
from tracelens.cli import cli
from tracelens.errors import UsageError
from tracelens.render.suggestions import render_suggestions
from tracelens.results import Known

_GPT3 = ["--hidden", "2560", "--heads", "32", "--layers", "32", "--vocab", "50257", "--micro-batch", "4",
         "--gpu", "h100-sxm"]  # fmt: skip


_ENV = {"COLUMNS": "80", "NO_COLOR": "1"}
SAMPLE = Path(__file__).parents[2] / "sample_traces" / "generated_gpt2_vocab50257.json.gz"


def _run(*arguments: str, columns: int = 80) -> Result:
    return CliRunner().invoke(cli, ["suggest", *arguments], env=_ENV | {"COLUMNS": str(columns)})


def test_from_sizes_alone() -> None:
    result = _run(*_GPT3)
    assert result.exit_code == 0, result.output
    assert "1. heads 32 → 20, head_dim 80 → 128, vocab 50257 → 50304" in result.output
    assert "+ --heads 20" in result.output
    assert "attention.core" in result.output
    assert "Not included: gaps between kernels" in result.output.replace("\n", " ")
    assert "assumed" in result.output  # the sequence was not given
    assert max(len(line) for line in result.output.splitlines()) <= 80


def test_from_a_config_file(tmp_path: Path) -> None:
    result = _run(str(written(tmp_path, configs.GPT2_XL)), "--gpu", "a100-sxm-80gb")
    assert result.exit_code == 0, result.output
    assert '+   "vocab_size": 50304,' in result.output


def test_an_encoder_decoder_has_two_lengths(tmp_path: Path) -> None:
    """T5-base: the input's tokens and the answer's; a decoder has no second length."""
    t5 = written(tmp_path, {"model_type": "t5", "d_model": 768, "num_heads": 12, "d_kv": 64, "d_ff": 3072}
                 | {"num_layers": 12, "vocab_size": 32128})  # fmt: skip
    lengths = ["--sequence", "512", "--decoder-sequence", "128"]
    result = _run(str(t5), "--gpu", "a100-sxm-80gb", "--step", "--gpus", "1", *lengths)
    assert result.exit_code == 0, result.output
    for shown in ("decoder_layers=12", "sequence=512", "decoder_sequence=128", "heuristic"):
        assert shown in result.output
    assert max(len(line) for line in result.output.splitlines()) <= 80
    assert run("suggest", *_GPT3, "--decoder-sequence", "128").returncode == 2


def test_a_note_that_the_verdict_holds_is_not_repeated() -> None:
    found = tracelens.suggest(SAMPLE)
    file = io.StringIO()
    found = replace(found, verdict="None is picked: it waits.", notes=["it waits", "another note"])
    render_suggestions(found, console=Console(file=file, width=80))
    assert file.getvalue().count("it waits") == 1 and "another note" in file.getvalue()


def test_two_calls_of_one_component_are_told_apart_by_their_shape(tmp_path: Path) -> None:
    """ModernBERT's attention sees all keys in one of three layers, 64 either way in the others."""
    table = {"model_type": "modernbert", "hidden_size": 768, "num_hidden_layers": 22,
             "num_attention_heads": 12, "intermediate_size": 1152, "vocab_size": 50368,
             "max_position_embeddings": 8192, "local_attention": 128,
             "global_attn_every_n_layers": 3}  # fmt: skip
    result = _run(str(written(tmp_path, table)), "--gpu", "a100-sxm-80gb", "--sequence", "4096")
    lines = " ".join(result.output.split()).split("attention.core backward")[1:]
    assert len(lines) == 2 and ["window" in line.split(":")[0] for line in lines] == [False, True]
    assert "d=80:" not in " ".join(_run(*_GPT3).output.split())  # what there is once needs no shape


def test_the_sum_of_kernels_is_called_what_it_is() -> None:
    words = " ".join(_run(*_GPT3).output.split())
    assert "tokens/s" not in words
    found = json.loads(_run(*_GPT3, "--json", "-").output)
    assert (found["time_is"], found["step"]) == ("kernels", None) and "step_ms" not in found


def test_a_whole_step() -> None:
    asked = [*_GPT3, "--step", "--gpus", "8", "--strategy", "tp", "--vocab", "50304", "--checkpoint", "full"]
    result = _run(*asked)
    assert result.exit_code == 0, result.output
    assert "8 GPUs, tensor parallel 8, full recompute" in result.output
    assert "tokens/s per GPU" in result.output and "communication" in result.output
    assert max(len(line) for line in result.output.splitlines()) <= 80
    step = json.loads(_run(*asked, "--json", "-").output)["step"]
    assert (step["gpus"], step["tensor_parallel"], step["strategy"]) == (8, 8, "tp")
    assert step["mfu_frac"]["low"] < step["mfu_frac"]["mid"] < step["mfu_frac"]["high"] < 1


def test_context_parallel_ranks_share_states_and_their_shape_is_whole(said: Listener) -> None:
    asked = ["--kv-heads", "8", "--sequence", "8192", "--step", "--gpus", "8", "--context-parallel", "2"]
    words = _run(*_GPT3, "--hidden", "4096", *asked).output
    said(" ".join(words[words.index("A whole step") :].split("tokens/s")[0].split()))
    assert "s=4096 d=128 keys 4096" in " ".join(words.split())


def test_the_rate_and_shape_of_a_few_kernels_are_not_those_of_their_component() -> None:
    """A GEMM of 3 µs in a norm of milliseconds: its rate is nothing of the norm."""
    report = analyzed(SAMPLE).report
    thin = replace(report.gemms[-1], component="norm", phase="forward", time_ms_per_step=0.003)
    norms = [replace(one, flops=1e6, tflops=0.3) if one.component == "norm" else one
             for one in report.components]  # fmt: skip
    found = tracelens.suggest(replace(report, gemms=[*report.gemms, thin], components=norms))
    rows = {row.component: row for row in found.components}
    assert (rows["norm"].tflops, rows["norm"].shapes) == (None, [])
    assert rows["mlp.up"].tflops and rows["mlp.up"].shapes


def test_a_step_and_what_is_printed_below_it_agree(said: Listener) -> None:
    asked = [*_GPT3, "--step", "--gpus", "8"]
    text, alone = _run(*asked).output, _run(*_GPT3).output
    assert "moves bytes" in alone and "moves bytes" not in text  # the step has its own memory-bound kernels
    assert "Not included" in alone and "Not included" not in text
    assert "GB a GPU without FSDP (estimate)" in alone and "without FSDP" not in text
    assert text.count("GB of a GPU's memory") == 1
    found = json.loads(_run(*asked, "--json", "-").output)
    heads, vocab = (found["picks"][0]["change"][name][1] for name in ("heads", "vocab"))
    then = json.loads(_run(*asked, "--heads", str(heads), "--vocab", str(vocab), "--json", "-").output)
    assert found["picked_tokens_per_s"][0] == then["step"]["tokens_per_s_per_gpu"]
    words = " ".join(text.split())
    said(found["verdict"], words[words.index("whole step 1") : words.index(" weights +")])


def test_sums_that_hold_a_floor_say_so(said: Listener) -> None:
    result = _run("--hidden", "768", "--heads", "12", "--layers", "12", "--vocab", "50257", "--step",
                  "--gpus", "1", "--gpu", "rtx-4090")  # fmt: skip
    said(
        [
            line.rstrip()
            for line in result.output.splitlines()
            if re.search(r"tokens/s per|MFU|ms a step|at least", line)
        ]
    )
    said(next(line.rstrip() for line in result.output.splitlines() if line.startswith("logits ")))


@pytest.mark.parametrize("given", [(), ("--micro-batch", "4")])
def test_another_micro_batch_is_told_for_as_many_tokens_and_is_a_line_to_paste(
    given: tuple[str, ...], said: Listener
) -> None:
    asked = ["--hidden", "1024", "--heads", "16", "--layers", "24", "--vocab", "50304", *given]
    words = _run(*asked, "--gpu", "a100", "--free", "micro_batch", "--memory-gb", "80", columns=120).output
    said(*(line.strip() for line in words.splitlines() if "saves" in line and "%" in line))
    said([line for line in words.splitlines() if line.startswith(("   - --", "   + --"))])


def test_a_good_shape_that_does_not_fit(said: Listener) -> None:
    result = _run("--hidden", "4096", "--heads", "32", "--layers", "32", "--ffn", "11008", "--vocab", "32000",
                  "--gated", "--untied", "--gpu", "h100-sxm")  # fmt: skip
    assert result.exit_code == 0
    words = " ".join(result.output.split())
    said(words[words.index("It does not fit") : words.index(" sequence 2048")])


def test_small_counts_read_as_one_says_them() -> None:
    tiny = [
        "--hidden", "64", "--heads", "2", "--layers", "2", "--vocab", "256", "--gpu", "rtx-4090", "--step",
    ]  # fmt: skip
    words = " ".join(_run(*tiny).output.split())
    assert "0.115 million weights" in words and "one GPU is assumed" in words


def test_the_gpus_are_listed_as_gemm_lists_them() -> None:
    assert _run("--gpu", "list").output == CliRunner().invoke(cli, ["gemm", "--gpu", "list"], env=_ENV).output


def test_json_is_all_there_is_on_standard_output() -> None:
    result = _run(*_GPT3, "--json", "-")
    found = json.loads(result.output)
    assert found["gpu"] == "h100-sxm"
    assert found["picks"][0]["change"]["heads"] == [32, 20]
    low, mid, high = (found["picks"][0]["saving_frac"][end] for end in ("low", "mid", "high"))
    assert 0 < low < mid < high


def test_json_beside_the_words(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    result = _run(*_GPT3, "--json", str(path))
    assert "saves" in result.output
    assert json.loads(path.read_text())["tried"] > 0


def test_constraints_of_the_command_line() -> None:
    result = _run(*_GPT3, "--fix", "vocab,hidden", "--params", "0.5%", "--json", "-")
    found = json.loads(result.output)
    assert found["parameters_limit_frac"] == 0.005
    assert not {"vocab", "hidden"} & set(found["searched"])


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (["--gpu", "h100-sxm"], "at least --hidden, --heads and --layers", 2),
        ([*_GPT3, "--params", "lots"], "give percent", 2),
        ([*_GPT3, "--fix", "colour"], "cannot be searched", 2),
        (["missing.json", "--gpu", "h100-sxm"], "no such file: missing.json", 3),
        ([*_GPT3, "--free", "micro_batch"], "--memory-gb", 2),
        ([*_GPT3[:-1], "h1"], "unknown GPU", 2),
        ([*_GPT3, "--gpus", "8"], "--gpus says how a whole step is run: add --step", 2),
        ([*_GPT3, "--step", "--strategy", "tp"], "how many GPUs share each layer: --gpus N", 2),
        ([str(SAMPLE), "--step"], "a trace holds its own step", 2),
        (_GPT3[:-2], "name the GPU to train on: --gpu NAME", 2),
        ([str(SAMPLE), "--hidden", "4096"], "hidden is read from the trace: only layers can be given", 2),
        ([str(SAMPLE), "--layers", "11"], "the trace shows 12 layers", 2),
        ([str(SAMPLE), "--dtype", "fp16"], "the dtype is read from the trace", 2),
        ([str(SAMPLE), "--gated"], "read from the trace", 2),
        ([str(SAMPLE), "--gpu", "h1"], "unknown GPU", 2),
        ([str(SAMPLE), "--fix", "hidden,heads,ffn,vocab,head_dim"], "every size is fixed", 3),
    ],
)
def test_wrong_use_is_one_line(arguments: list[str], says: str, code: int) -> None:
    done = run("suggest", *arguments)
    assert done.returncode == code
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_a_config_is_the_source_or_an_option(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(configs.LLAMA2_7B))
    result = _run("--config", str(path), "--gpu", "h100-sxm")
    assert result.exit_code == 0
    assert result.output == _run(str(path), "--gpu", "h100-sxm").output
    assert isinstance(_run(str(path), "--config", str(path)).exception, UsageError)


def test_names_from_a_file_cannot_style_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "\x1b[31mred[bold].json"
    path.write_text(json.dumps(configs.LLAMA2_7B))
    result = _run(str(path), "--gpu", "h100-sxm")
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    assert "red[bold].json" in result.output


def test_from_a_trace() -> None:
    result = _run(str(SAMPLE))
    assert result.exit_code == 0, result.output
    assert "1. vocab 50257 → 50304" in result.output
    assert "The step now  39.8 ms (39.8–40.0 ms, generated)" in result.output
    assert "this trace's" in result.output  # the arithmetic of a row
    assert "+ vocab = 50304" in result.output
    assert "Weights against time" in result.output
    assert "Stays as generated: idle time" in result.output
    assert max(len(line) for line in result.output.splitlines()) <= 80


def test_from_a_saved_report_under_any_name(tmp_path: Path) -> None:
    path = tmp_path / "step.yaml"
    analyzed(SAMPLE).save(path)
    saved, traced = (json.loads(_run(str(one), "--json", "-").output) for one in (path, SAMPLE))
    assert (saved.pop("source"), traced.pop("source")) == ("report", "trace")
    assert saved == traced
    assert traced["not_searched"] == {} and traced["time_ms"]["basis"] == "measured"


def test_a_recording_without_a_marked_step_is_not_called_a_step(tmp_path: Path) -> None:
    report = analyzed(SAMPLE).report
    path = tmp_path / "report.json"
    Analysis(replace(report, summary=replace(report.summary, steps_marked=False))).save(path)
    assert json.loads(_run(str(path), "--json", "-").output)["time_is"] == "recording"
    words = _run(str(path)).output
    assert "The step" not in words and "per step" not in words and "recorded" in words


def test_sizes_are_the_whole_models_where_ranks_share_them(tmp_path: Path) -> None:
    report = analyzed(SAMPLE).report
    share = replace(report.model.vocab, per_rank=True, whole=402056)
    path = tmp_path / "report.json"
    Analysis(replace(report, model=replace(report.model, vocab=share))).save(path)
    assert "vocab=402056 " in _run(str(path)).output


def test_a_trace_on_another_gpu() -> None:
    found = json.loads(_run(str(SAMPLE), "--gpu", "a100-sxm-80gb", "--json", "-").output)
    assert found["gpu"] == "a100-sxm-80gb"


def test_layers_that_the_trace_does_not_show(tmp_path: Path, said: Listener) -> None:
    report = analyzed(SAMPLE).report
    unknown = replace(report.model, layers=Known(None, "no layer is named in the trace"))
    path = tmp_path / "report.json"
    Analysis(replace(report, model=unknown)).save(path)
    found = json.loads(_run(str(path), "--json", "-").output)
    assert set(found["searched"]) == {"heads", "head_dim", "vocab"}
    assert all("--layers N" in found["not_searched"][name] for name in ("hidden", "ffn"))
    assert found["parameters"] is None and found["memory_gb"] is None
    words = _run(str(path)).output
    assert "weights not known" in words and "weights not counted" in words
    told = json.loads(_run(str(path), "--layers", "12", "--json", "-").output)
    assert told["not_searched"] == {}
    said(told["sizes"]["layers"]["source"])
    assert told["picks"] == json.loads(_run(str(SAMPLE), "--json", "-").output)["picks"]


def test_a_trace_in_which_nothing_can_be_searched_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    spec = ModelSpec(hidden=256, heads=4, layers=1, vocab=1000, sequence=128)
    path.write_text(build(spec, Options(steps=1, shapes=False)).text())
    done = run("suggest", path)
    assert (done.returncode, done.stdout) == (3, "")
    assert "No shape was searched" in done.stderr and "record_shapes=True" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
