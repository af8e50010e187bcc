"""Two folders: files are paired, each pair is compared, and the whole is more than its pairs."""

from __future__ import annotations

import io
import json
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median

import jsonschema
import pytest
from rich.console import Console

import tracelens
from tests import kept
from tests.cli import running
from tests.compare.parsed import only_ours
from tests.kept import analyzed
from tests.render import sample_report
from tests.said import Listener
from tracelens.analysis import Analysis
from tracelens.api import compare_folders
from tracelens.errors import InputError, UsageError
from tracelens.gates import judge_comparison
from tracelens.render.compare_html import render_compare_html
from tracelens.render.compare_markdown import render_markdown
from tracelens.render.compare_terminal import render_compare
from tracelens.render.gates import value, why
from tracelens.results import GemmRow, Known, Report, Step, StepTime
from tracelens.results.folders import FolderComparison
from tracelens.results.json import compare_json
from tracelens.results.schema import json_schema

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT.parent / "shared" / "traces" / "job_h100_nanogpt_8ranks"
SAMPLES = [ROOT / "sample_traces" / f"generated_gpt2_vocab{v}.json.gz" for v in (50257, 50304)]
STEADY = [100.0, 101.0, 99.0, 100.5, 100.2, 99.7]


def made(
    rank: int | None, *, steps: Sequence[float] = STEADY, factor: float = 1.0, world: int | None = 4
) -> Report:
    """A report of one rank, whose steps take so long."""
    one = sample_report.full()
    times = [ms * factor for ms in steps]
    ordered = sorted(times)
    return replace(
        one,
        trace=replace(one.trace, rank=rank, world_size=world, sha256=f"{hash((rank, *times)):064x}"),
        steps=[Step(at, at * 10**9, ms, 0.98) for at, ms in enumerate(times)],
        summary=replace(
            one.summary, step_ms=StepTime(median(times), ordered[0], ordered[-1], len(times)), idle_ms=4.0
        ),
    )


def save(folder: Path, reports: dict[str, Report]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, one in reports.items():
        Analysis(one).save(folder / name)
    return folder


def ranks(folder: Path, *, factor: float = 1.0, change: Callable[[Report], Report] = lambda one: one) -> Path:
    """Four ranks; every step takes longest on rank 2."""
    return save(
        folder,
        {
            f"host_{7919 * rank % 13}.json": change(made(rank, factor=factor * (1.02 if rank == 2 else 1.0)))
            for rank in range(4)
        },
    )


def vocab(one: Report) -> Report:
    return replace(one, model=replace(one.model, vocab=Known(50304, "made up")))


def regression(result: FolderComparison, gate: str = "regression>3%") -> str:
    (found,) = judge_comparison(result, [gate])
    return found.state


# ranks of one job


@cache
def job_against_itself() -> FolderComparison:
    return kept.compared(JOB, JOB)


def test_a_real_job_against_itself_shows_no_measurable_change() -> None:
    if not JOB.is_dir():
        pytest.skip("no job beside this checkout")
    result = job_against_itself()
    assert (result.kind, result.matched_by) == ("ranks", "rank")
    assert result.step is not None and result.step.state == "identical"
    # rank 1 computes as long as the others, and waits for its CPU
    assert {(one.pair, one.side, one.part) for one in result.stands_out} == {
        ("rank 1", side, "idle") for side in ("before", "after")
    }
    assert [pair.name for pair in result.pairs] == [f"rank {rank}" for rank in range(8)]
    assert all(pair.before == pair.after and pair.state == "identical" for pair in result.pairs)
    assert not result.left and not result.changes
    assert not [row for row in result.components if row.beyond_noise]
    assert regression(result, "regression>0%") == "passed"
    job = [
        max(times) for times in zip(*(steps(JOB / f"rank{n}_trace.json.gz") for n in range(8)), strict=True)
    ]
    assert result.step is not None
    assert result.step.before.median == pytest.approx(median(job))
    assert (result.step.before.low, result.step.before.n) == (min(job), len(job))


@cache
def steps(path: Path) -> tuple[float, ...]:
    return tuple(step.duration_ms for step in kept.analyzed(path).report.steps)


def test_a_real_job_against_a_slower_copy_of_it_fails_and_names_what_grew(tmp_path: Path) -> None:
    """Traces on one side, saved reports with other times on the other."""
    if not JOB.is_dir():
        pytest.skip("no job beside this checkout")
    for path in sorted(JOB.glob("*.json.gz")):
        one = kept.analyzed(path).report
        wide = {row.component for row in one.gemms if row.component.startswith("mlp")}

        def slower(row: GemmRow, wide: set[str] = wide) -> GemmRow:
            factor = 1.4 if row.component in wide else 1.0
            return replace(row, time_ms_per_step=row.time_ms_per_step * factor, time_ms=row.time_ms * factor)

        components = [
            replace(row, time_ms_per_step=row.time_ms_per_step * (1.4 if row.component in wide else 1.0))
            for row in one.components
        ]
        longer = [replace(step, duration_ms=step.duration_ms * 2 + 1) for step in one.steps]
        times = sorted(step.duration_ms for step in longer)
        altered = replace(
            one,
            trace=replace(one.trace, sha256="0" * 64),
            steps=longer,
            gemms=[slower(row) for row in one.gemms],
            components=components,
            summary=replace(one.summary, step_ms=StepTime(median(times), times[0], times[-1], len(times))),
        )
        save(tmp_path / "after", {path.name.replace(".json.gz", ".report.json"): altered})
    result = compare_folders(JOB, tmp_path / "after")
    assert result.step is not None and result.step.state == "slower"
    assert result.step.diff_frac == pytest.approx(1.0, abs=0.1)
    assert result.step.p == pytest.approx(0.029, abs=5e-4) and result.verdict.startswith("Slower: ")
    assert regression(result) == "failed"
    grown = [row for row in result.components if row.beyond_noise]
    assert grown and all(row.component.startswith("mlp") and row.diff_ms > 0 for row in grown)
    assert all(row.diff_frac == pytest.approx(0.4) for row in grown)
    assert all("8 of 8 pairs" in row.why for row in grown)


def test_ranks_are_paired_by_their_metadata_whatever_the_files_are_called(tmp_path: Path) -> None:
    before = ranks(tmp_path / "before")
    after = save(
        tmp_path / "after", {f"x{rank}.json": vocab(made(3 - rank, factor=1.1)) for rank in range(4)}
    )
    result = compare_folders(before, after)
    assert result.matched_by == "rank" and [pair.rank for pair in result.pairs] == [0, 1, 2, 3]
    assert result.pairs[3].after.file == "x0.json"
    assert result.step is not None and result.step.state == "slower" and regression(result) == "failed"
    assert result.changes[0].change.said == "vocab 50257 -> 50304" and result.changes[0].pairs == 4


def test_a_step_of_the_job_takes_as_long_as_on_its_slowest_rank(tmp_path: Path) -> None:
    one = [100.0, 120.0, 100.0, 100.0, 100.0]
    other = [110.0, 100.0, 100.0, 101.0, 100.0]
    before = save(tmp_path / "a", {"r0.json": made(0, steps=one), "r1.json": made(1, steps=other)})
    after = save(
        tmp_path / "b", {"r0.json": vocab(made(0, steps=one)), "r1.json": made(1, steps=other[::-1])}
    )
    result = compare_folders(before, after)
    assert result.step is not None
    assert result.step.before == StepTime(101.0, 100.0, 120.0, 5)  # 110, 120, 100, 101, 100
    assert result.step.after == StepTime(100.0, 100.0, 120.0, 5)  # 100, 120, 100, 100, 110


def test_the_rank_that_computes_longest_is_named_where_it_stands_out(tmp_path: Path) -> None:
    result = compare_folders(ranks(tmp_path / "a"), ranks(tmp_path / "b", factor=1.1, change=vocab))
    assert not result.stands_out  # 2 % longer, of less than the step
    slow = [made(rank, factor=1.1 if rank == 2 else 1.0 + 0.002 * rank) for rank in range(4)]
    slower = compare_folders(
        tmp_path / "a", save(tmp_path / "c", {f"r{rank}.json": one for rank, one in enumerate(slow)})
    )
    assert [(one.pair, one.side, one.part) for one in slower.stands_out] == [("rank 2", "after", "computing")]
    two = next(pair for pair in result.pairs if pair.name == "rank 2")
    exposed = sample_report.full().summary.exposed_communication_ms
    mean = sum(STEADY) / len(STEADY) * 1.02
    assert two.before.computing_ms == pytest.approx(mean - 4.0 - exposed)


def test_noise_on_every_rank_is_no_regression(tmp_path: Path) -> None:
    noisy = [90.0, 118.0, 95.0, 112.0, 99.0, 107.0]
    before = save(tmp_path / "a", {f"r{n}.json": made(n, steps=noisy) for n in range(2)})
    after = save(tmp_path / "b", {f"r{n}.json": made(n, steps=[ms + 4 for ms in noisy]) for n in range(2)})
    result = compare_folders(before, after)
    assert result.step is not None and result.step.state == "inconclusive"
    assert regression(result) == "open" and regression(result, "regression>90%") == "passed"


def test_a_rank_without_partner_is_listed_and_the_others_are_compared(tmp_path: Path, said: Listener) -> None:
    before, after = ranks(tmp_path / "a"), ranks(tmp_path / "b")
    next(path for path in after.iterdir() if json.loads(path.read_bytes())["trace"]["rank"] == 1).unlink()
    (after / "broken.json.gz").write_bytes(b"\x1f\x8b nonsense")
    (after / "config.json").write_text('{"hidden": 4}')
    (after / "notes.txt").write_text("not looked at")
    result = compare_folders(before, after)
    assert [pair.rank for pair in result.pairs] == [0, 2, 3]
    left = {(one.side, one.why.partition(":")[0]) for one in result.left}
    assert {one.file for one in result.left if one.side == "after"} == {"broken.json.gz", "config.json"}
    assert any("3 of 4 ranks" in line for line in result.caveats)
    said(sorted(left))


def test_a_trace_that_turns_out_to_be_useless_takes_its_partner_along(tmp_path: Path, said: Listener) -> None:
    before = save(tmp_path / "a", {f"r{rank}.json": made(rank) for rank in range(2)})
    after = save(tmp_path / "b", {"r0.json": made(0)})
    cpu = {"distributedInfo": {"rank": 1, "world_size": 4}, "traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, "pid": 1, "tid": 1}
    ]}  # fmt: skip
    (after / "r1.json").write_text(json.dumps(cpu))
    result = compare_folders(before, after)
    assert [pair.rank for pair in result.pairs] == [0]
    assert {(one.side, one.file) for one in result.left} == {("after", "r1.json"), ("before", "r1.json")}
    assert "no GPU event" in next(one.why for one in result.left if one.side == "after")
    (after / "r0.json").unlink()
    with pytest.raises(InputError) as error:
        compare_folders(before, after)
    said(error.value)


def test_a_rank_in_the_name_counts_where_the_metadata_has_none(tmp_path: Path) -> None:
    before = save(tmp_path / "a", {f"trace_rank{n}.json": made(None) for n in range(12)})
    after = save(tmp_path / "b", {f"rank-{n}.new.json": made(None) for n in range(12)})
    result = compare_folders(before, after)
    assert (result.kind, [pair.rank for pair in result.pairs]) == ("ranks", list(range(12)))


# runs, and files of different models


def runs(
    folder: Path, factors: Sequence[float], change: Callable[[Report], Report] = lambda one: one
) -> Path:
    return save(folder, {f"run{at}.json": change(made(0, factor=x)) for at, x in enumerate(factors)})


def test_runs_count_once_each(tmp_path: Path, said: Listener) -> None:
    """Every run differs from every other by more than its own steps do: only the runs can tell."""
    quiet = [1.00, 1.03, 0.98, 1.01, 1.05]
    before = runs(tmp_path / "a", quiet)
    same = compare_folders(before, runs(tmp_path / "b", [1.02, 1.04, 0.99, 1.0, 1.03]))
    assert (same.kind, same.matched_by) == ("runs", "name")
    assert same.step is not None and same.step.state == "inconclusive" and same.step.before.n == 5
    assert {pair.state for pair in same.pairs} & {"slower", "faster"}  # as the steps of one run say
    slow = compare_folders(before, runs(tmp_path / "c", [x * 1.2 for x in quiet], vocab))
    assert slow.step is not None and slow.step.state == "slower"
    # all five of one side shorter: 2 of the ways to choose 5 of 10
    assert slow.step.p == pytest.approx(2 / 252)
    assert regression(slow) == "failed"
    said(slow.verdict)


def test_three_runs_are_too_few_and_the_gate_says_so(tmp_path: Path, said: Listener) -> None:
    before = runs(tmp_path / "a", [1.0, 1.0, 1.01])
    result = compare_folders(before, runs(tmp_path / "b", [1.3, 1.31, 1.32], vocab))
    assert result.step is not None and result.step.state == "too_few_steps"
    (found,) = judge_comparison(result, ["regression>3%"])
    assert found.state == "unknown"
    said(why(found))


def test_files_of_different_models_are_judged_pair_by_pair(tmp_path: Path, said: Listener) -> None:
    def model(hidden: int, factor: float, words: int) -> Report:
        one = made(0, factor=factor)
        dims = replace(one.model, hidden=Known(hidden, "made up"), vocab=Known(words, "made up"))
        return replace(one, model=dims)

    def folder(name: str, factors: dict[str, float], words: int) -> Path:
        sizes = {"small.json": 512, "large.json": 4096, "new.json": 1024, "old.json": 256}
        return save(
            tmp_path / name, {one: model(sizes[one], factor, words) for one, factor in factors.items()}
        )

    before = folder("a", {"small.json": 1.0, "large.json": 1.0, "old.json": 1.0}, 50257)
    after = folder("b", {"small.json": 0.9, "large.json": 1.08, "new.json": 1.0}, 50304)
    result = compare_folders(before, after)
    assert result.kind == "files" and result.step is None
    assert {(one.side, one.file) for one in result.left} == {("before", "old.json"), ("after", "new.json")}
    said(result.verdict)
    (found,) = judge_comparison(result, ["regression>3%"])
    assert found.state == "failed" and "large" in why(found) and value(found) == "+8.0%"
    assert regression(result, "regression>9%") == "passed"
    assert judge_comparison(result, ["step_change>1%"])[0].state == "unknown"


def test_one_file_on_each_side_needs_no_name_in_common(tmp_path: Path) -> None:
    before = save(tmp_path / "a", {"monday.json": made(None)})
    result = compare_folders(before, save(tmp_path / "b", {"friday.json": vocab(made(None, factor=1.2))}))
    assert len(result.pairs) == 1 and result.step is not None and result.step.state == "slower"


def test_reports_and_traces_mix_and_a_saved_report_is_the_partner_of_its_trace(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "gpt2.json.gz").write_bytes(SAMPLES[0].read_bytes())
    after = save(tmp_path / "b", {"gpt2.report.json": analyzed(SAMPLES[1]).report})
    result = compare_folders(tmp_path / "a", after)
    assert result.pairs[0].name == "gpt2" and result.before.generated
    assert "vocab 50257 -> 50304" in {one.change.said for one in result.changes}
    assert any("logits dgrad" in one.change.said for one in result.changes)


# what is refused


def test_what_cannot_be_compared_is_refused_as_of_one_pair(tmp_path: Path, said: Listener) -> None:
    before = ranks(tmp_path / "a")
    other = ranks(tmp_path / "b", change=lambda one: replace(one, gpu=replace(one.gpu, sms=114)))
    with pytest.raises(UsageError) as error:
        compare_folders(before, other)
    said(error.value)


@pytest.mark.parametrize(
    "after",
    [
        {},
        {"readme.json": "{}"},
        {"sub/rank0.json": "{}"},
    ],
)
def test_a_folder_with_nothing_to_compare_says_what_it_holds(
    tmp_path: Path, after: dict[str, str], said: Listener
) -> None:
    (tmp_path / "b").mkdir()
    for name, text in after.items():
        (tmp_path / "b" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "b" / name).write_text(text)
    with pytest.raises(InputError) as refused:
        compare_folders(ranks(tmp_path / "a"), tmp_path / "b")
    said(str(refused.value).replace(str(tmp_path), ""))


def test_strangers_are_no_partners(tmp_path: Path, said: Listener) -> None:
    before = save(tmp_path / "a", {"x.json": made(None), "y.json": made(None)})
    after = save(tmp_path / "b", {"z.json": made(None), "w.json": made(None)})
    with pytest.raises(InputError) as error:
        compare_folders(before, after)
    said(str(error.value).replace(str(tmp_path), ""))
    with pytest.raises(UsageError) as wrong:
        tracelens.compare(before, after)
    said(str(wrong.value).replace(str(tmp_path), ""))


def test_one_file_after_the_other_is_told(tmp_path: Path) -> None:
    heard: list[tuple[int, int, str]] = []
    compare_folders(
        ranks(tmp_path / "a"),
        ranks(tmp_path / "b"),
        progress=lambda done, total, name: heard.append((done, total, name)),
    )
    assert [done for done, _, _ in heard] == list(range(9)) and {total for _, total, _ in heard} == {8}


# how it is given out


def hostile(tmp_path: Path) -> FolderComparison:
    bad = "::stop-commands::x ##[group]y <img src=x onerror=alert(1)> | "
    bad += "\x1b[31mred\u202e [a](http://x.test) @me"
    result = compare_folders(ranks(tmp_path / "a"), ranks(tmp_path / "b", factor=1.1, change=vocab))
    pairs = [replace(pair, name=bad, before=replace(pair.before, file=bad)) for pair in result.pairs]
    changes = [replace(one, change=replace(one.change, said=bad)) for one in result.changes]
    left = [replace(one, file=bad) for one in result.left]
    return replace(
        result, pairs=pairs, changes=changes, left=left, before=replace(result.before, path=bad), verdict=bad
    )


def terminal(result: FolderComparison) -> str:
    stream = io.StringIO()
    render_compare(result, console=Console(file=stream, width=80, force_terminal=False))
    return stream.getvalue()


def test_hostile_names_stay_text_everywhere(tmp_path: Path) -> None:
    result = hostile(tmp_path)
    text = render_markdown(result)
    assert "\x1b" not in text and "\u202e" not in text
    assert not re.search(r"(?<!\\)<|(?<!\\)\[|(?<!\\)@", text)
    assert not re.search(r"(?m)^\s*::|##\[", text)
    shown = terminal(result)
    assert "\x1b" not in shown and "alert" in shown
    assert max(map(len, shown.splitlines())) <= 80
    page = render_compare_html(result)
    assert "<img" in only_ours(page).text  # shown, as text


def test_every_format_says_the_same_and_json_follows_its_schema(tmp_path: Path) -> None:
    result = compare_folders(ranks(tmp_path / "a"), ranks(tmp_path / "b", factor=1.1, change=vocab))
    data = json.loads(compare_json(result))
    jsonschema.Draft202012Validator(json_schema("folders")).validate(data)
    assert [pair["name"] for pair in data["pairs"]] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    for text in (render_markdown(result), render_compare_html(result)):
        assert "rank 3" in text and "10.0%" in text and "vocab 50257 → 50304" in text
    assert len(render_compare_html(result)) < 100_000


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return running.run("compare", *arguments, cwd=cwd)


def test_the_command_takes_folders(tmp_path: Path) -> None:
    ranks(tmp_path / "a")
    ranks(tmp_path / "b", factor=1.1, change=vocab)
    outputs = ["--json", "c.json", "--markdown", "c.md", "-o", "c.html"]
    done = run("a", "b", *outputs, "--fail-on", "regression>3%", cwd=tmp_path)
    assert done.returncode == 1
    assert "rank 2" in done.stdout and "FAILED" in done.stdout and "wrote c.html" in done.stdout
    assert done.stderr.startswith("tracelens: the gate failed: regression>3% (+10.0%")
    assert all((tmp_path / name).stat().st_size > 500 for name in ("c.json", "c.md", "c.html"))
    assert "FAILED" in (tmp_path / "c.md").read_text()


def on_another_gpu(one: Report) -> Report:
    gemms = [
        replace(row, peak_frac=None if row.peak_frac is None else row.peak_frac / 2) for row in one.gemms
    ]
    gpu = replace(one.gpu, name="a100-sxm-80gb", title="A100 SXM 80GB", sms=108)
    return replace(one, gpu=gpu, gemms=gemms)


def test_across_gpus_shares_of_peak_are_compared_and_no_time_is(tmp_path: Path) -> None:
    a, b = ranks(tmp_path / "a"), ranks(tmp_path / "b", factor=0.5, change=on_another_gpu)
    with pytest.raises(UsageError, match=r"rank 0: times cannot be compared: different GPUs .*--across"):
        compare_folders(a, b)
    result = compare_folders(a, b, across=True)
    assert result.verdict.startswith("Times are not compared: different GPUs (H100")
    assert result.step is None and not result.parts and not result.components and result.noise is None
    assert {pair.state for pair in result.pairs} == {"not_compared"}
    assert "MFU 23.6% → 23.6%" in result.detail and "medians over 4 pairs" in result.detail
    known = [row for row in result.peaks if row.before_frac is not None]
    assert known and all(row.after_frac == pytest.approx((row.before_frac or 0) / 2) for row in known)
    assert {row.pairs for row in result.peaks} == {4}
    assert regression(result) == "unknown"
    for text in (render_markdown(result), terminal(result)):
        body = text.partition("Times are not compared")[2]
        assert "times not compared" in body and " ms" not in body and "MFU" in body
        assert "mlp.down" in body


def test_across_means_nothing_where_times_compare(tmp_path: Path) -> None:
    a, b = ranks(tmp_path / "a"), ranks(tmp_path / "b", factor=0.5)
    assert compare_folders(a, b, across=True) == compare_folders(a, b)


def test_one_pair_on_another_gpu_keeps_the_times_of_all_out(tmp_path: Path) -> None:
    a, b = ranks(tmp_path / "a"), ranks(tmp_path / "b")
    path = next(iter(b.glob("*.json")))
    Analysis(on_another_gpu(Analysis.load(path).report)).save(path)
    result = compare_folders(a, b, across=True)
    assert result.step is None and {pair.diff_frac for pair in result.pairs} == {None}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["a", "a/host_0.json"], 2),
        (["-", "a"], 2),
        (["a", "nowhere"], 2),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, arguments: list[str], code: int, said: Listener
) -> None:
    ranks(tmp_path / "a")
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == code and done.stderr.count("\n") == 1
    said(done.stderr)
