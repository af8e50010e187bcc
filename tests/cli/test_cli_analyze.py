"""The command line as a user meets it: files, streams, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.running import run_bytes as run
from tests.kept import analyzed
from tests.said import Listener
from tests.synthetic import ModelSpec, Options, build
from tracelens.results.json import to_json

SAMPLE = Path(__file__).resolve().parents[2] / "sample_traces" / "generated_gpt2_vocab50257.json.gz"


def test_analyze_writes_the_page_and_prints_a_summary(tmp_path: Path) -> None:
    done = run("analyze", SAMPLE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "generated_gpt2_vocab50257.report.html").stat().st_size > 10_000
    text = done.stdout.decode()
    assert "50257" in text
    assert "\x1b" not in text  # a pipe gets no escape sequences
    assert done.stderr == b""


def test_all_outputs_at_once(tmp_path: Path) -> None:
    done = run(
        "analyze", SAMPLE, "-o", "page.html", "--json", "r.json", "--kernels", "k.parquet", "-q", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == b""
    report = json.loads((tmp_path / "r.json").read_bytes())
    frame = pd.read_parquet(tmp_path / "k.parquet")
    assert len(frame) == report["trace"]["kernels"]
    assert report["trace"]["generated"] is True
    assert "Generated" in (tmp_path / "page.html").read_text()


def test_a_price_turns_steps_into_money(tmp_path: Path) -> None:
    done = run("analyze", SAMPLE, "--no-html", "--json", "r.json", "--price", "2.50 EUR", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "r.json").read_bytes())
    cost, step_ms = report["cost"], report["summary"]["step_ms"]["median"]
    assert cost["price"] == {"per_gpu_hour": 2.5, "currency": "EUR"}
    assert cost["gpus"] == 1 and cost["gpu_hours"] == pytest.approx(step_ms * 1000 / 3.6e6)
    assert cost["money"] == pytest.approx(2.5 * cost["gpu_hours"])
    saved = report["findings"][0]["saving"]["money"]
    assert saved["low"] < saved["mid"] < saved["high"]
    text = " ".join(done.stdout.decode().split())
    assert "GPU-hours" in text and "EUR" in text and "so one is counted" in text


def test_a_price_that_is_none_is_refused_before_the_trace_is_read(tmp_path: Path) -> None:
    done = run("analyze", "no_such_trace.json", "--price", "cheap", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.decode().count("\n") == 1 and b"2.50 EUR" in done.stderr


def test_csv_and_parquet_hold_the_same_rows(tmp_path: Path) -> None:
    for suffix in ("csv", "parquet"):
        assert (
            run("analyze", SAMPLE, "--no-html", "-q", "--kernels", f"k.{suffix}", cwd=tmp_path).returncode
            == 0
        )
    csv, parquet = pd.read_csv(tmp_path / "k.csv"), pd.read_parquet(tmp_path / "k.parquet")
    assert csv["dur_ns"].tolist() == parquet["dur_ns"].tolist()
    assert csv["component"].tolist() == parquet["component"].tolist()
    assert not list(tmp_path.glob("*.html"))


def test_json_on_standard_output_is_the_only_thing_there(tmp_path: Path) -> None:
    done = run("analyze", SAMPLE, "--no-html", "--json", "-", cwd=tmp_path)
    assert json.loads(done.stdout)["schema_version"]


def test_standard_input(tmp_path: Path) -> None:
    done = run("analyze", "-", cwd=tmp_path, stdin=SAMPLE.read_bytes())
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "trace.report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["analyze", "."], 3, "no rank can be used: empty.json"),
        (["analyze", "job"], 3, "no rank can be used: rank0.json: holds no GPU event"),
        (["analyze", "empty.json"], 3, "is empty"),
        (["analyze", "text.json"], 3, "no JSON"),
        (["analyze", "other.json"], 3, "'tracelens suggest'"),
        (["analyze", *(f"{name}.csv" for name in "abcd")], 3, "no trace or summary in these 4 files: a.csv"),
        (["analyze", "jax.json"], 3, "jax.json holds no event of torch.profiler"),
        (["doctor", "jax.json"], 3, "jax.json holds no event of torch.profiler"),
        (["analyze", SAMPLE, "--steps", "7:3"], 2, "--steps 7:3"),
        (["analyze", SAMPLE, "--reference", "text.json"], 3, "--reference: text.json holds no JSON"),
        (["analyze", SAMPLE, "--reference", "cpu.json"], 3, "--reference: cpu.json holds no GPU event"),
        (["analyze", "-", "--reference", "-"], 2, "cannot both come from standard input"),
        (["analyze"], 2, "TRACE"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, arguments: list[str | Path], code: int, said: str
) -> None:
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "text.json").write_text("hello")
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "jax.json").write_text('{"traceEvents": [{"ph": "X", "name": "fusion", "ts": 1, "dur": 2}]}')
    (tmp_path / "job").mkdir()
    for name in "abcd":
        (tmp_path / f"{name}.csv").write_text("rank,ms\n")
    for name in ("cpu.json", "job/rank0.json"):
        (tmp_path / name).write_text('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1}]}')
    done = run(*arguments, cwd=tmp_path)
    error = done.stderr.decode()
    assert done.returncode == code, error
    assert said in error
    assert "Traceback" not in error
    assert done.stdout == b""


def test_a_cut_off_trace_gives_a_partial_result_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "cut.json.gz").write_bytes(SAMPLE.read_bytes()[:520_000])
    done = run("analyze", "cut.json.gz", "--json", "r.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "r.json").read_bytes())["trace"]["partial"] is True
    assert "cut off" in done.stdout.decode()
    assert "cut off" in (tmp_path / "cut.report.html").read_text()


MODEL = ModelSpec(hidden=256, heads=4, layers=3, vocab=5003, sequence=128, micro_batch=2)


def test_a_reference_lends_what_the_trace_lacks_and_the_report_says_so(tmp_path: Path) -> None:
    bare = build(MODEL, Options(steps=2, module_frames=False, shapes=False))
    (tmp_path / "bare.json").write_text(bare.text())
    (tmp_path / "eager.json").write_text(build(MODEL, Options(steps=2)).text())
    assert run("analyze", "bare.json", "-q", "--json", "alone.json", cwd=tmp_path).returncode == 0
    done = run("analyze", "bare.json", "-v", "--reference", "eager.json", "--json", "r.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    alone, lent = (json.loads((tmp_path / name).read_bytes()) for name in ("alone.json", "r.json"))
    assert alone["reference"] is None
    assert alone["coverage"]["lent_frac"] == 0
    assert alone["coverage"]["shape_frac"] == 0
    assert lent["reference"]["path"] == "eager.json"
    assert lent["reference"]["matched_frac"] > 0.98
    assert lent["coverage"]["shape_frac"] == 1
    assert lent["coverage"]["component_frac"] >= max(0.97, alone["coverage"]["component_frac"])
    assert lent["coverage"]["lent_frac"] == pytest.approx(lent["reference"]["lent_frac"])
    assert sum(row["lent_calls"] for row in lent["gemms"]) == lent["reference"]["lent_calls"]
    assert lent["model"]["hidden"]["value"] == 256
    text = " ".join(done.stdout.decode().split())
    page = (tmp_path / "bare.report.html").read_text()
    for shown in (text, page):
        assert "reference eager.json" in shown


def test_a_reference_that_matches_nothing_is_a_warning(tmp_path: Path) -> None:
    other = build(ModelSpec(hidden=512, heads=8, layers=2, vocab=997, sequence=64), Options(steps=1))
    (tmp_path / "bare.json").write_text(build(MODEL, Options(steps=1)).text())
    (tmp_path / "other.json").write_text(other.text())
    done = run("analyze", "bare.json", "--reference", "other.json", "--json", "r.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "r.json").read_bytes())
    assert report["reference"]["lent_kernels"] == 0
    assert any("other.json matches nothing here" in warning for warning in report["trace"]["warnings"])
    assert "other.json matches nothing here" in " ".join(done.stdout.decode().split())
    assert "other.json matches nothing here" in (tmp_path / "bare.report.html").read_text()


def test_kernels_launched_before_the_recording_are_known_from_other_steps(tmp_path: Path) -> None:
    made = build(MODEL, Options(steps=3))
    marks = [e for e in made.events if e["name"] == "ProfilerStep#4" and e["cat"] == "user_annotation"]
    host = {"cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver"}
    events = [e for e in made.events if not (e.get("cat") in host and e["ts"] < marks[0]["ts"])]
    (tmp_path / "late.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    done = run("analyze", "late.json", "-v", "--json", "r.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "r.json").read_bytes())
    coverage, rows = report["coverage"], report["components"]
    assert coverage["no_launch_frac"] > 0.3
    # they are in no analysed step: the file's ledger knows them, shares do not count them
    unknown_ns = sum(row["time_ns"] for row in rows if row["component"] == "unattributed")
    assert unknown_ns < 0.03 * sum(row["time_ns"] for row in rows)
    assert coverage["lent_frac"] == 0
    assert coverage["component_frac"] > 0.97
    assert coverage["shape_frac"] == 1
    text = " ".join(done.stdout.decode().split())
    assert "outside these steps" in text


def test_what_if_predicts_each_scenario_everywhere(tmp_path: Path) -> None:
    scenarios = ("--what-if", "vocab_size=50304", "--what-if", "n_head=10,ffn=4096")
    done = run("analyze", SAMPLE, *scenarios, "--json", "r.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = json.loads((tmp_path / "r.json").read_bytes())["what_if"]
    assert first["change"] == {"vocab": [50257, 50304]} and first["saving_ms"]["mid"] > 0
    assert second["change"]["heads"] == [20, 10] and second["change"]["head_dim"] == [64, 128]
    text = done.stdout.decode()
    assert "What if  vocab 50257 → 50304" in text and "saves ≈" in text
    assert "What if" in (tmp_path / "generated_gpt2_vocab50257.report.html").read_text()


def test_a_wrong_scenario_is_one_line_with_the_present_values(tmp_path: Path) -> None:
    (tmp_path / "saved.json").write_bytes(to_json(analyzed(SAMPLE).report))
    wrongs = ("hiden=3", "vocab", "vocab=many", "experts=8", "heads=7", "vocab=0", "")
    cases: list[tuple[str | Path, str]] = [(SAMPLE, "hiden=3"), *(("saved.json", one) for one in wrongs)]
    for trace, wrong in cases:
        done = run("analyze", trace, "--what-if", wrong, "--no-html", cwd=tmp_path)
        assert done.returncode == 2 and done.stdout == b"", wrong
        message = done.stderr.decode()
        assert message.count("\n") == 1 and "Traceback" not in message
        assert "hidden" in message or "size a model" in message


def test_explain_prints_the_rules_page(tmp_path: Path) -> None:
    done = run("explain", "TL101", cwd=tmp_path)
    assert done.returncode == 0
    assert "What it does" in done.stdout.decode()


def test_analysis_never_imports_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        f"import tracelens; a = tracelens.analyze({str(SAMPLE)!r}); a.kernels; a._repr_html_()\n"
        "print(len(a.gemms) > 0, 'pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False)
    assert done.stdout.split()[0] == b"True", done.stderr


def test_gemm_shows_the_derivation_instead_of_the_summary(tmp_path: Path) -> None:
    done = run("analyze", SAMPLE, "--no-html", "--gemm", "g1,g5", "--gemm", "g2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    assert [text.index(f"\n{row} ") for row in ("g1", "g5", "g2")] == sorted(
        text.index(f"\n{row} ") for row in ("g1", "g5", "g2")
    )
    assert "⌈8192 / 128⌉ · ⌈1280 / 128⌉ · 1 · 1 = 640" in text
    assert "1053965680640 / (989 · 10^6) = 1065.69 µs" in text
    assert "Where the GPU time goes" not in text
    assert not list(tmp_path.iterdir())


def test_an_unknown_gemm_names_the_largest_and_writes_nothing(tmp_path: Path, said: Listener) -> None:
    done = run("analyze", SAMPLE, "--gemm", "g999", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == b""
    (line,) = done.stderr.decode().splitlines()
    said(line)
    assert not list(tmp_path.iterdir())


def test_a_derivation_and_json_cannot_share_standard_output(tmp_path: Path) -> None:
    done = run("analyze", SAMPLE, "--gemm", "g1", "--json", "-", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == b""
    assert b"--gemm and --json - both write to standard output" in done.stderr


def test_a_summary_is_named_as_merge_reads_it(tmp_path: Path) -> None:
    done = run("analyze", SAMPLE, "--summary", "rank0.json", cwd=tmp_path)
    assert done.returncode == 2 and b"rank0.json.summary" in done.stderr
    assert not list(tmp_path.iterdir())
