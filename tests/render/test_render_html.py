"""The page is one safe offline file that says what the report says."""

from __future__ import annotations

import base64
import hashlib
import html
import html.parser
import itertools
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracelens
from tests.kept import analyzed
from tests.render import large_report, sample_report, sample_shapes
from tests.render.golden import check
from tests.said import Listener
from tracelens import numbers as f
from tracelens.accounting.cost import with_cost
from tracelens.accounting.loads import by_load
from tracelens.render import explorer, groups, layers, losses
from tracelens.render.findings import row_names
from tracelens.render.gemm_table import DERIVED
from tracelens.render.html import render_html
from tracelens.render.limit import cards
from tracelens.render.limits import BUDGET, FEWEST_LINES, FEWEST_WHOLE, LINES, WHOLE, PageLimits
from tracelens.render.sections import SECTIONS
from tracelens.render.templates import part
from tracelens.render.verdict import PROFILED
from tracelens.results import Curve, Estimate, Explorer, Known, Price, Report, Suggested
from tracelens.results.schema import json_schema
from tracelens.results.step import UnprofiledSteps
from tracelens.rules.engine.needs import judged_part

ROOT = Path(__file__).resolve().parents[2]
VALIDATOR = jsonschema.Draft202012Validator(json_schema())
BANNED = re.compile(r"\b(up to|may|consider|sub-optimal)\b", re.IGNORECASE)
#: Bytes of a page whose names take 500 and 10,000 characters: where nothing more can be left out.
HOSTILE = 400_000
VOID = {"meta", "link", "br", "input", "img", "hr"}


class _Page(html.parser.HTMLParser):
    """Collects tags, ids and visible text, and fails on a tag that is closed out of order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == [], "unclosed tags"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID and not (self.get_starttag_text() or "").endswith("/>"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"{tag} closes at {self.getpos()}"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def _data(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="report">(.*?)</script>', page, re.DOTALL)
    assert found
    loaded: dict[str, object] = json.loads(found[1])
    return loaded


@cache
def _page_of(name: str) -> str:
    """The page of a made-up report."""
    return render_html(sample_report.VARIANTS[name]())


@pytest.fixture(params=sorted(sample_report.VARIANTS))
def variant(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_every_variant_is_well_formed_with_unique_ids_and_live_links(variant: str) -> None:
    page = _Page(_page_of(variant))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = {(attrs.get("href") or "")[1:] for tag, attrs in page.tags if tag == "a"}
    assert links <= set(ids)


def test_no_banned_word_and_nothing_python_about_the_text(variant: str) -> None:
    text = _Page(_page_of(variant)).text
    assert not BANNED.search(text)
    assert not re.search(r"\bNone\b|\bnan\b|\bTrue\b(?<!=True)|Estimate\(", text)


def test_the_page_reaches_for_nothing(variant: str) -> None:
    page = _Page(_page_of(variant))
    for tag, attrs in page.tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "form", "base"}
        assert not {"src", "srcset", "style", "action"} & attrs.keys()
        assert not any(name.startswith("on") for name in attrs)
        assert (attrs.get("href") or "#").startswith("#")
    assert "url(http" not in part("report.css") and "@import" not in part("report.css")


def test_the_policy_allows_exactly_our_style_and_script() -> None:
    page = _page_of("full")
    content = next(a["content"] for t, a in _Page(page).tags if t == "meta" and a.get("http-equiv"))
    assert content is not None
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    assert style and script
    for kind, text in (("style", style[1]), ("script", script[1])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in content
    assert content.startswith("default-src 'none';") and "unsafe" not in content


def test_the_embedded_data_is_the_report_and_cannot_end_its_element(variant: str) -> None:
    report, page = sample_report.VARIANTS[variant](), _page_of(variant)
    data = _data(page)
    VALIDATOR.validate(data)
    assert data["schema_version"] == report.schema_version
    assert data["trace"]["path"] == report.trace.path  # type: ignore[index]
    raw = page.split('id="report">')[1].split("</script>")[0]
    assert not re.search(r"[<>&\u2028\u2029]", raw)


def test_hostile_names_come_out_as_text_without_invisible_characters() -> None:
    page = _page_of("hostile")
    tags = {tag for tag, _ in _Page(page).tags}
    assert "img" not in tags
    assert html.escape(sample_report.HOSTILE) in page
    assert "{{7*7}}" in page and "{{49}}" not in page
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", page)
    assert "x" * 2001 not in page.split('id="report">')[0]
    page.encode("utf-8")


def test_a_lone_surrogate_does_not_stop_the_page() -> None:
    report = sample_report.full()
    gemms = [replace(report.gemms[0], kernel="bad\ud800name"), *report.gemms[1:]]
    assert "bad\ufffdname" in render_html(replace(report, gemms=gemms)).encode("utf-8").decode("utf-8")


def test_usual_and_large_reports_stay_under_the_budget() -> None:
    report = sample_report.full()
    assert len(_page_of("full").encode()) < BUDGET
    many = [replace(report.gemms[i % 18], id=f"g{i}", kernel="k" * 500) for i in range(2000)]
    page = render_html(replace(report, gemms=many))
    assert len(page.encode()) < BUDGET
    assert re.search(r"\d+ of 2000 rows are", page)


def test_rows_of_a_finding_are_shown_however_short_they_are() -> None:
    report = sample_report.full()
    many = [replace(report.gemms[1], id=f"x{i}", findings=[]) for i in range(150)]
    page = render_html(replace(report, gemms=[*many, *report.gemms]))
    assert 'id="g12"' in page and 'href="#g12"' in page


def test_shares_of_the_bar_add_up_and_unattributed_is_drawn() -> None:
    report = sample_report.full()
    shares = groups.group_shares(report)
    assert sum(share.frac for share in shares) == pytest.approx(1.0)
    per_step = sum(row.time_ms_per_step for row in report.components)
    assert sum(share.ms_per_step for share in shares) == pytest.approx(per_step)
    page = _page_of("full")
    assert "seg g-unattributed" in page and "Unattributed: 2.0%" in page


def test_the_tree_adds_up_exactly() -> None:
    report = sample_report.full()
    rows = groups.tree(report)
    total = rows[-1]
    assert total.time_ns == sum(row.time_ns for row in report.components)
    assert total.time_ns == sum(row.time_ns for row in rows[:-1] if not row.child)
    for phase, time_ns in total.by_phase.items():
        assert time_ns == sum(row.by_phase.get(phase, 0) for row in rows[:-1] if not row.child)


def test_a_row_has_a_rate_where_most_of_its_time_is_of_calls_with_known_flops() -> None:
    report = sample_report.full()
    row = replace(report.components[0], component="attention.core", time_ns=10_000_000, flops=1e12)
    for took_ms, rate in ((6.0, pytest.approx(1e12 / 6e9)), (4.0, None)):
        only = replace(row, tflops=1e12 / took_ms / 1e9)
        assert groups.tree(replace(report, components=[only]))[0].tflops == rate


def test_generated_and_partial_traces_are_called_so() -> None:
    assert "Generated trace, not a measurement" in _page_of("generated")
    assert "Generated trace" not in _page_of("full")
    partial = sample_report.partial()
    page = _Page(_page_of("partial")).text
    assert (
        "Partial:" in page and partial.trace.warnings and all(one in page for one in partial.trace.warnings)
    )


def test_without_a_known_gpu_mfu_says_why_and_there_is_no_roofline() -> None:
    report = sample_report.unknown_gpu()
    page = _page_of("unknown_gpu")
    text = _Page(page).text
    assert report.summary.mfu_why and report.summary.mfu_why in text
    assert "Frobnicator 9000 (not in the GPU table)" in text
    assert 'id="h-roofline"' not in page


def test_silence_means_something() -> None:
    report = sample_report.no_findings()
    page = _page_of("no_findings")
    assert 'id="h-findings"' not in page
    text = _Page(_section(page, "h-checks")).text
    for one in report.checks:
        assert one.slug in text and one.why in text


def test_a_reason_that_checks_share_is_said_once() -> None:
    report = sample_report.no_findings()
    first, second, *others = (one for one in report.checks if one.state == "passed")
    report = replace(report, checks=[first, replace(second, why=first.why), *others])
    text = _Page(_section(render_html(report), "h-checks")).text
    assert first.slug in text and second.slug in text
    assert text.count(first.why) == 1


def test_what_passed_checks_did_not_see_is_said_once() -> None:
    report = sample_report.no_findings()
    coverage = replace(report.coverage, opaque_frac=0.2)
    part = judged_part(coverage)
    checks = [
        replace(one, why=f"{one.why} {part}" if one.state == "passed" else one.why) for one in report.checks
    ]
    assert sum(part in one.why for one in checks) > 1
    text = _Page(_section(render_html(replace(report, checks=checks, coverage=coverage)), "h-checks")).text
    assert text.count(part) == 1
    assert part not in _Page(_section(_page_of("no_findings"), "h-checks")).text


def test_dimensions_that_one_reason_leaves_unknown_are_one_row() -> None:
    report = sample_report.full()
    why = "the trace shows two models"
    model = replace(report.model, heads=Known(None, why), head_dim=Known(None, why), ffn=Known(4096, why))
    section = _section(render_html(replace(report, model=model)), "h-method")
    assert section.count(why) == 2, "of what is not known, and of the size that is"
    assert "heads, head dim" in section


def test_a_saving_per_1000_steps_is_said_where_it_is_not_the_same_figure_per_step() -> None:
    """On one GPU ms per step are GPU-seconds per 1000 steps."""
    report = sample_report.full()
    for price, gpus, said in ((None, 1, False), (None, 8, True), (Price(2.5, "EUR"), 1, True)):
        one = with_cost(replace(report, trace=replace(report.trace, world_size=gpus)), price)
        assert one.cost is not None and one.cost.gpus == gpus
        assert ("per 1000 steps" in _section(render_html(one), "h-findings")) is said


def test_a_card_does_not_repeat_the_verdict() -> None:
    report = sample_report.no_findings()
    step_ms = report.summary.step_ms.median
    waits = replace(report.summary, idle_ms=0.9 * step_ms, gpu_busy_frac=0.1, limited_by="idle", verdict="")
    waits = replace(waits, verdict_detail="", unprofiled=UnprofiledSteps())
    page = _Page(render_html(replace(report, summary=waits))).text
    assert page.count(PROFILED) == 1
    other = replace(waits, idle_ms=0.1 * step_ms, gpu_busy_frac=0.9)
    (card,) = cards(replace(report, summary=other))
    assert PROFILED in card.how, "no verdict says it of a step that is not bound by its CPU"


def test_rows_of_one_name_are_told_apart() -> None:
    report = sample_report.full()
    finding = replace(report.findings[0], gemms=["g12", "g13", "gone"])
    rows = {one.id: one for one in report.gemms}
    told = row_names(finding, rows)
    assert set(told) == {"g12", "g13"} and not told["g12"].endswith("g12")
    rows["g13"] = replace(rows["g12"], id="g13")
    told = row_names(finding, rows)
    assert told["g12"].endswith(" g12") and told["g13"].endswith(" g13")


def test_a_bound_reads_as_a_bound() -> None:
    text = _Page(_page_of("full")).text
    assert "at most 3.20 ms/step (2.4%; " in text
    assert "≈ 7.80 ms/step (5.9%; 6.90–8.40 ms; " in text


def test_a_bounded_shape_reads_as_ranges_and_a_padded_one_says_so() -> None:
    report = sample_report.full()
    rows = [
        replace(row, padded_from={"n": 50257}, shape_note="padded from N 50257") if row.n == 50257 else row
        for row in report.gemms
    ]
    text = _Page(render_html(replace(report, gemms=rows))).text
    assert "M 1985–2048 N 2433–2560" in text and "N 50257" in text
    assert " 99.1%" in text and " 0.3%" in text


def test_an_empty_report_still_renders() -> None:
    report = sample_report.no_findings()
    bare = replace(report, gemms=[], components=[], checks=[], steps=[], notes=[])
    bare = replace(bare, summary=replace(report.summary, shape_waste_ms=Estimate(None, None, None, "model")))
    page = render_html(bare)
    assert not re.search(r'id="h-(?:gemms|step|components|findings|checks|roofline)"', page)
    assert 'id="h-method"' in page


def test_the_moment_is_shown_only_when_given() -> None:
    report = sample_report.full()
    assert render_html(report) == render_html(report)
    assert "2031-02-03 04:05 UTC" in render_html(report, generated_at="2031-02-03 04:05 UTC")


@pytest.mark.parametrize("name", ["full", "no_findings"])
def test_golden_page(name: str) -> None:
    page = re.sub(r"(<style>).*?(</style>)", r"\1\2", _page_of(name), flags=re.DOTALL)
    page = re.sub(r"(<script[^>]*>).*?(</script>)", r"\1\2", page, flags=re.DOTALL)
    check(f"{name}.html", re.sub(r"sha256-[^']+", "sha256-", page))


def test_parts_are_found_in_an_installed_package_and_in_a_checkout(tmp_path: Path) -> None:
    package = Path(tracelens.__file__).parent
    source = package / "templates" if (package / "templates").is_dir() else package.parent / "templates"
    code = "from tracelens.render.templates import part; print(len(part('report.css')))"
    rooms = ("render", "results")
    alone = ("__init__.py", "words.py", "errors.py", "numbers.py", "sums.py", "version.py")
    for place in ("installed/tracelens/templates", "checkout/templates"):
        root = tmp_path / place.split("/")[0]
        for item in (*rooms, *alone):
            target = root / "tracelens" / item
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (package / item).is_dir() else shutil.copy
            copy(package / item, target)
        shutil.copytree(source, tmp_path / place)
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=root,
            env={"PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert int(done.stdout) > 1000


def test_a_row_leads_to_its_derivation_and_back() -> None:
    """The id stands inside the closed details, so that a browser opens them for the link without a script."""
    page = _page_of("full")
    for row in re.findall(r'href="#d-(g\d+)"', page):
        found = re.search(rf'<details class="derived"><summary>{row} .*?</details>', page, re.DOTALL)
        assert found and f'<div id="d-{row}">' in found[0] and f'href="#{row}"' in found[0]
        assert "useful" in found[0] and " µs</dd>" in found[0]


def test_the_waterfall_steps_down_from_all_gemm_time_to_the_useful() -> None:
    report = sample_report.full()
    falls = losses.waterfall(report)
    assert falls[0].frac == 1.0 and falls[-1].key == "useful"
    steps = [fall for fall in falls if fall.key in losses.CAUSES]
    left = 1.0
    for fall in steps:
        assert fall.start + fall.frac == pytest.approx(left)
        left = fall.start
    assert left == pytest.approx(falls[-1].frac)
    text = _Page(_page_of("full")).text
    for fall in falls:
        assert fall.text in text and fall.title in text  # every bar has its numbers beside it


def test_gemm_time_that_cannot_be_split_says_why(said: Listener) -> None:
    gemms = _Page(_section(_page_of("unknown_gpu"), "h-gemms")).text
    said(re.findall(r"The [\d.]+ ms of GEMM time .*", gemms))


def test_a_mixture_s_page_has_all_its_rows_and_data_that_its_script_needs() -> None:
    """What no page shows takes no row's place: kernels besides GEMMs, and 501 rows behind a finding."""
    report = analyzed(
        Path(__file__).parents[2] / "sample_traces" / "h100-sxm_moe_8experts_eager.json.gz"
    ).report
    page = render_html(report)
    assert len(page.encode()) < BUDGET
    assert len(re.findall(r'<tr id="g\d+"', page)) == len(by_load(report.gemms)) < len(report.gemms)
    VALIDATOR.validate(_data(page))


@pytest.mark.parametrize(("count", "whole"), [(20, True), (100, False)])
def test_a_large_report_derives_as_many_rows_and_shows_fewer(count: int, whole: bool) -> None:
    report = sample_report.full()
    gemms = [replace(row, id=f"g{at}") for at, row in enumerate((report.gemms * 6)[:count], 1)]
    page = render_html(replace(report, gemms=gemms))
    assert len(page.encode()) < BUDGET
    assert page.count('<details class="derived">') == DERIVED
    assert (page.count('<tr id="g') == count) == whole


def test_scenarios_say_what_they_save_what_they_cost_and_what_is_not_known(said: Listener) -> None:
    said(_Page(_section(_page_of("what_if"), "h-what_if")).text)
    assert 'id="h-what_if"' not in _page_of("full")


def _section(page: str, name: str) -> str:
    found = re.search(rf'<section[^>]*aria-labelledby="{name}">.*?</section>', page, re.DOTALL)
    assert found, name
    return found[0]


def test_sections_stand_in_the_order_of_the_work() -> None:
    """Verdict, numbers, bar, what the verdict names, the GEMMs, every component, and how it is known."""
    page = render_html(replace(sample_report.what_if(), waits=sample_report.waits().waits))
    order = re.findall(r'aria-labelledby="(h-[\w-]+)"', page)
    expected = "step findings what_if gemms lost roofline components layer communication waits explorer"
    assert order == [f"h-{name}" for name in f"{expected} lacks method checks".split()]
    assert page.index("<h1>") < page.index('class="numbers"') < page.index('id="h-step"')
    contents = re.findall(r'<li><a href="#(h-[\w-]+)">', page)
    assert contents == order


@pytest.mark.parametrize(
    ("limited_by", "front"),
    [
        ("shapes", ["step", "findings"]),
        ("exposed", ["step", "limit", "communication", "findings"]),
        ("idle", ["step", "limit", "waits", "findings"]),
        ("memory", ["step", "limit", "components", "findings"]),
        ("", ["step", "findings"]),
    ],
)
def test_what_the_verdict_names_comes_first_and_is_unfolded(limited_by: Any, front: list[str]) -> None:
    report = sample_report.waits()
    page = render_html(replace(report, summary=replace(report.summary, limited_by=limited_by)))
    order = re.findall(r'aria-labelledby="h-([\w-]+)"', page)
    assert order[: len(front)] == front
    for name in front:
        assert '<details class="part"><summary>' not in _section(page, f"h-{name}"), f"{name} is folded"
    assert ('class="finding card"' in page) == (limited_by in ("exposed", "idle", "memory"))


def test_every_section_is_in_the_list_once_with_its_template() -> None:
    names = [section.name for section in SECTIONS]
    assert len(names) == len(set(names))
    for name in names:
        assert part(f"{name}.html.j2")


def test_findings_below_one_percent_of_the_step_are_folded() -> None:
    report = sample_report.full()
    small = replace(report.findings[-1], saving_frac=Estimate(0.001, 0.004, 0.006, "model"))
    some = _section(render_html(replace(report, findings=[*report.findings[:-1], small])), "h-findings")
    fold = some.partition('<details class="checks fold">')[2]
    assert f'id="f{len(report.findings)}"' in fold and 'id="f1"' not in fold
    none = _section(render_html(replace(report, findings=[small])), "h-findings")
    assert '<details class="part"><summary>' in none


def test_waits_that_were_not_asked_for_are_a_line_of_the_method() -> None:
    page = _page_of("full")
    assert "h-waits" not in page
    assert "tracelens analyze TRACE --waits" in _Page(_section(page, "h-method")).text


def test_a_curve_marks_now_and_what_is_suggested_and_says_where_the_cliffs_are() -> None:
    section = _section(_page_of("full"), "h-explorer")
    text = _Page(section).text
    figures = re.findall(r'<figure class="curve" data-at="(\d)">(.*?</figure>)', section, re.DOTALL)
    assert len(figures) == 4 and figures[0][0] == "1", "what a finding suggests comes first"
    ffn, vocab, heads, sequence = (drawn for _, drawn in sorted(figures))
    assert vocab.count('class="now"') == vocab.count('class="then"') == 1 and "TL101: 50304" in vocab
    assert '<a href="#f' in vocab and "Suggested by" in text
    assert ffn.count('class="now"') == 1 and 'class="then"' not in ffn
    # 80 ms more is off the axis, and said
    assert 'class="above"' in ffn and "above\u00a0axis\u00a0(▲)" in ffn
    assert 'class="unknown"' in ffn and "now" in heads and sequence
    assert "Communication stays as measured." in text  # said once for the most, not under each curve
    assert text.count("ommunication stays as measured") == 1


def test_points_stand_where_their_numbers_say() -> None:
    """The line's points, read back with the axis, are the curve's times."""
    curve = sample_report.full().explorer.curves[0]
    figure = next(one for one in explorer.figures(sample_report.full()) if one.title == "ffn")
    full = next(one for one in figure.series if one.kind == "full")
    (y1, t1), (y2, t2) = ((tick.at, float(tick.text)) for tick in (figure.y_ticks[0], figure.y_ticks[-1]))
    (x1, v1), (x2, v2) = ((tick.at, float(tick.text)) for tick in (figure.x_ticks[0], figure.x_ticks[-1]))
    times = dict(zip(curve.values, curve.mid_ms, strict=True))
    points = [tuple(map(float, pair.split(","))) for pair in full.line.split()]
    assert len(points) == 5
    for x, y in points:
        value = round((v1 + (x - x1) / (x2 - x1) * (v2 - v1)) / 64) * 64
        assert t1 + (y - y1) / (y2 - y1) * (t2 - t1) == pytest.approx(times[value], abs=0.05)


def test_what_is_suggested_close_to_now_has_one_line_and_two_names() -> None:
    curve = next(one for one in sample_report.full().explorer.curves if one.parameter == "vocab")
    (wanted,) = curve.suggested
    shift = curve.now + 2 - wanted.value
    moved = [value + shift if value == wanted.value else value for value in curve.values]
    order = sorted(range(len(moved)), key=moved.__getitem__)
    near = replace(
        curve,
        values=[moved[at] for at in order],
        mid_ms=[curve.mid_ms[at] for at in order],
        low_ms=[curve.low_ms[at] for at in order],
        high_ms=[curve.high_ms[at] for at in order],
        alignment_bytes=[curve.alignment_bytes[at] for at in order],
        suggested=[replace(wanted, value=wanted.value + shift)],
    )
    report = replace(sample_report.full(), explorer=replace(sample_report.full().explorer, curves=[near]))
    (figure,) = explorer.figures(report)
    (mark,) = figure.suggested
    assert not mark.apart and figure.now.text == f"now: {near.now}"
    assert {mark.anchor, figure.now.anchor} == {"start", "end"}, "the names stand on two sides of the line"
    page = _section(render_html(report), "h-explorer")
    assert page.count('class="at-now"') == 1 and "at-then" not in page and page.count('class="then"') == 1
    (usual,) = (one for one in explorer.figures(sample_report.full()) if one.title == "vocab")
    assert usual.now.text == "now" and all(one.apart for one in usual.suggested)


def test_marks_of_no_prediction_stand_off_the_numbers_below_the_axis() -> None:
    page = _section(_page_of("full"), "h-explorer")
    path = re.search(r'class="unknown" d="M[\d.]+ ([\d.]+)l6 6', page)
    assert path is not None
    bottom = explorer.HEIGHT - explorer.BOTTOM
    assert float(path[1]) + 6 <= bottom - 4
    assert f'class="grid" d="M{explorer.LEFT} {bottom}H{explorer.WIDTH - explorer.RIGHT}"' in page, "between"


def test_a_curve_reads_without_its_picture(variant: str) -> None:
    for figure in explorer.figures(sample_report.VARIANTS[variant]()):
        assert str(figure.curve.now) in figure.spoken and figure.curve.parameter in figure.spoken
        assert any("now, measured" in row.note for row in figure.rows)
        for one in figure.curve.suggested:
            assert one.rule in figure.spoken
            assert any(str(one.value) == row.value for row in figure.rows)


@given(
    st.lists(st.integers(1, 10**9), min_size=1, max_size=30, unique=True).map(sorted),
    st.lists(st.one_of(st.none(), st.floats(1e-6, 1e6)), min_size=30, max_size=30),
    st.lists(st.sampled_from([2, 8, 16, 64, 128]), min_size=30, max_size=30),
    st.sampled_from(["ffn", "heads", "sequence", "micro_batch"]),
)
def test_whatever_the_curve_everything_is_drawn_inside_its_frame(
    values: list[int], times: list[float | None], sizes: list[int], name: str
) -> None:
    count = len(values)
    times = [1.0, *times][:count]  # the present value is always known
    low, high = [t and 0.9 * t for t in times], [t and 2 * t for t in times]
    suggested = [Suggested(values[-1], "TL1")] if times[-1] else []
    aligned = sizes[:count] if name == "ffn" else []
    curve = Curve(name, values[0], False, values, low, times, high, aligned, suggested)
    report = replace(sample_report.full(), explorer=Explorer([curve], None))
    (figure,) = explorer.figures(report)
    points = [*figure.suggested, figure.now]
    xs = [
        figure.now.x,
        *figure.unknown,
        *(t.at for t in figure.x_ticks),
        *(x for s in figure.series for x in s.above),
    ]
    xs += [one.x for one in points] + [x for one in figure.series for x, _ in one.dots]
    assert all(explorer.LEFT <= x <= explorer.WIDTH for x in xs)
    ys = [one.y for one in points] + [y for one in figure.series for _, y in one.dots]
    assert all(0 <= y <= explorer.HEIGHT - explorer.BOTTOM for y in ys)
    drawn = sum(len(one.above) for one in figure.series) + len(figure.unknown)
    assert drawn <= count and figure.rows


def test_no_curve_says_why() -> None:
    report = sample_report.unknown_gpu()
    assert report.explorer.why and report.explorer.why in _Page(_page_of("unknown_gpu")).text


def _widths(svg: str) -> list[tuple[float, float]]:
    found = re.findall(r'<rect x="([\d.]+)%" width="([\d.]+)%"', svg)
    return [(float(x), float(width)) for x, width in found]


def test_the_icicle_adds_up_row_by_row() -> None:
    section = _section(_page_of("full"), "h-components")
    strips = re.findall(r'<svg class="strip".*?\n</svg>', section, re.DOTALL)
    assert len(strips) == 6  # phases, groups, components; layers, groups in them; the forward pass
    for strip in strips:
        cells = _widths(strip)
        assert sum(width for _, width in cells) == pytest.approx(100.0, abs=0.6)
        for (left, width), (right, _) in itertools.pairwise(cells):
            assert left + width == pytest.approx(right, abs=0.3)  # none covers another


def test_layers_are_compared_and_the_odd_one_is_named() -> None:
    text = _Page(_section(_page_of("full"), "h-components")).text
    assert "in 32 layers" in text
    assert re.search(r"Layer 3 is \d+\.\d% shorter", text)
    assert "Time of each layer" in text
    bare = _Page(_page_of("no_transformer")).text
    assert "No layers: " in bare and "kernel by kernel" not in bare


def test_every_layer_is_in_the_picture_and_in_the_table() -> None:
    report = sample_report.full()
    picture = layers.icicle(report)
    assert picture is not None and len(picture.layers) == 16  # 32 in twos: at most 24 side by side
    assert picture.layers[0].title.startswith("layers 0–1: ")
    lines = layers.layer_lines(report)
    assert [line.layer for line in lines] == report.layers.layers
    inside = sum(sum(row.time_ms) for row in report.layers.rows)
    assert sum(line.total for line in lines) == pytest.approx(inside)


def test_the_share_of_a_layer_by_component_is_of_all_its_kernels() -> None:
    report = sample_report.full()
    forward = layers.forward_shares(report)
    assert forward and sum(frac for _, _, frac, _ in forward.rows) == pytest.approx(1.0)
    names = [name for _, name, _, _ in forward.rows]
    assert {"norm", "attention.qkv", "attention.core", "mlp.up", "mlp.down"} <= set(names)
    assert not {"logits", "embedding", "optimizer"} & set(names)
    assert "as in Figure 2 of arXiv 2401.14489" in _page_of("full")


def _in_layers(report: Report, phase: str) -> float:
    return sum(sum(row.time_ms) for row in report.layers.rows if row.phase == phase)


@pytest.mark.parametrize("name", ["d3_h100_bert", "generated_gpt2_vocab50257"])
def test_the_forward_pass_of_the_layers_is_what_the_figures_by_layer_say(name: str) -> None:
    """The last norm and the activation of a head are in no layer, and not in the layers' forward pass."""
    paths = [*(ROOT / "sample_traces").glob("*.gz"), *(ROOT.parent / "shared" / "traces").glob("*.gz")]
    path = next((one for one in paths if one.name.startswith(name)), None)
    if path is None:
        pytest.skip("no shared/traces beside this checkout")
    report = analyzed(path).report
    forward = layers.forward_shares(report)
    assert forward is not None
    inside = _in_layers(report, "forward")
    assert sum(time for *_, time in forward.rows) == pytest.approx(inside)
    assert f"every kernel in them, {f.ms(inside)}" in forward.note
    column = layers.layer_phases(report).index("forward")
    assert sum(line.by_phase[column] for line in layers.layer_lines(report)) == pytest.approx(inside)
    times = {name: time for _, name, _, time in forward.rows}
    norm = next(row for row in report.layers.rows if (row.component, row.phase) == ("norm", "forward"))
    assert norm.rest_ms > 0 and times["norm"] == pytest.approx(sum(norm.time_ms))
    if layers.layer_phases(report) == ["forward"]:
        whole = sum(sum(row.time_ms) + row.rest_ms for row in report.layers.rows)
        assert layers.layer_words(report)[0].startswith(f"{f.pct(inside / whole)} ")


def test_without_layers_the_forward_bar_says_what_it_counts() -> None:
    report = sample_report.full()
    rows = [replace(row, time_ms=[], rest_ms=sum(row.time_ms) + row.rest_ms) for row in report.layers.rows]
    bare = replace(report, layers=replace(report.layers, layers=[], rows=rows, timeline=None, why="no names"))
    forward = layers.forward_shares(bare)
    assert forward and forward.title == "Forward pass" and "layers are not known" in forward.note
    assert "logits" not in [name for _, name, _, _ in forward.rows]


def test_kernels_of_another_layer_in_a_backward_pass_are_explained(said: Listener) -> None:
    _, backward = layers.passes(sample_report.full())
    assert "torch.compile" not in backward.late, "no kernel of this timeline is Triton's"
    report = sample_report.full()
    timeline = report.layers.timeline
    assert timeline is not None
    compiled = replace(timeline, names=["triton_poi_fused_add_0", *timeline.names[1:]])
    _, again = layers.passes(replace(report, layers=replace(report.layers, timeline=compiled)))
    said(backward.late, again.late)


def test_one_layers_kernels_are_drawn_by_stream_and_listed() -> None:
    section = _section(_page_of("full"), "h-layer")
    text = _Page(section).text
    assert "Layer 16, kernel by kernel" in text and "step 13" in text
    forward, backward = layers.passes(sample_report.full())
    assert [name for name, _ in forward.lanes] == ["stream 7", "stream 13"]  # the busiest first
    assert [len(cells) for _, cells in forward.lanes] == [4, 1]
    assert forward.lanes[0][1][1].title.startswith("attention.qkv 120 µs: nvjet_tst_128x256")
    assert "faint" in backward.lanes[0][1][1].key and "layer 17" in backward.lanes[0][1][1].title
    assert "5 kernels of the forward" in text and "4 more are not listed" in text
    for one in (forward, backward):
        for _, cells in one.lanes:
            assert all(cell.start >= 0 and cell.start + cell.width <= 1.0001 for cell in cells)


def test_the_largest_report_stays_small() -> None:
    """5,000 rows, 128 layers, the most kernels and curves that an analysis gives, names of 500 characters."""
    report = sample_report.full()
    many = [replace(report.gemms[i % 18], id=f"g{i}", kernel="k" * 500) for i in range(5000)]
    timeline = report.layers.timeline
    assert timeline is not None
    passed = replace(timeline.passes[0], start_us=[2.0 * n for n in range(150)], duration_us=[1.5] * 150,
                   component=["attention.core"] * 150, name=[n % 40 for n in range(150)], stream=[7] * 150,
                   layer=[16] * 150)  # fmt: skip
    both = [passed, replace(passed, phase="backward")]
    longest = replace(timeline, names=["k" * 500] * 40, passes=both)
    deep = replace(sample_shapes.layers(report.components, 128), timeline=longest)
    wide = report.explorer.curves[0]
    values = [9000 + n for n in range(50)]
    time: list[float | None] = [101.0] * 50
    curve = replace(
        wide, values=values, now=9010, alignment_bytes=[128] * 50, low_ms=time, mid_ms=time, high_ms=time
    )
    curves = replace(report.explorer, curves=[curve] * 8)
    page = render_html(replace(report, gemms=many, layers=deep, explorer=curves))
    assert len(page.encode()) < HOSTILE
    assert re.search(r"\d+ of 5000 rows are", page)


@pytest.mark.parametrize(("gemms", "findings"), [(18, 500), (5000, 3), (5000, 500)])
def test_many_findings_and_shapes_stay_below_the_budget_and_nothing_is_silent(
    gemms: int, findings: int
) -> None:
    report = large_report.large(gemms, findings)
    page = render_html(report)
    assert len(page.encode()) < BUDGET
    parsed = _Page(page)
    ids = [attrs["id"] for _, attrs in parsed.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {(attrs.get("href") or "")[1:] for tag, attrs in parsed.tags if tag == "a"} <= set(ids)
    told = sum(bool(re.fullmatch(r"f\d+", one or "")) for one in ids)
    assert {f"f{n}" for n in range(1, told + 1)} <= set(ids) and told >= min(findings, FEWEST_LINES)
    shown = sum(bool(re.fullmatch(r"g\d+", one or "")) for one in ids)
    if gemms > shown:
        assert f"{shown} of {gemms} rows are" in parsed.text
        assert f"the other {gemms - shown} take" in parsed.text
    if findings > WHOLE:
        whole = page.count('<details class="finding ')
        assert FEWEST_WHOLE <= whole <= WHOLE
        assert f"The {whole} largest of {findings} findings" in parsed.text
        assert f"The next {told - whole:,} have" in parsed.text
        assert told == findings or f"and {findings - told} more" in parsed.text
        assert f"(number {told})" in parsed.text
        assert len(_data(page)["findings"]) == whole  # type: ignore[arg-type]
    VALIDATOR.validate(_data(page))


def test_a_finding_of_one_line_says_what_it_saves_as_one_in_full_does() -> None:
    report = large_report.large(18, WHOLE + 1)
    table = re.search(r'<tr id="f25".*?</tr>', render_html(report), re.DOTALL)
    alone = re.search(r'<span class="sv">(.*?)</span>', render_html(
        replace(report, findings=report.findings[-1:])), re.DOTALL)  # fmt: skip
    assert table and alone
    said = _Page(f"<table>{table[0]}</table>").text
    assert report.findings[-1].title in said and report.findings[-1].rule in said
    assert _Page(f"<p>{alone[1]}</p>").text.replace(" ", "") in said.replace(" ", "")


def test_a_usual_report_tells_every_finding_in_full() -> None:
    page = render_html(large_report.large(18, WHOLE))
    assert page.count('<details class="finding ') == WHOLE and "told in full" not in page


def test_findings_beyond_the_table_are_counted() -> None:
    count = WHOLE + LINES + 77
    page = render_html(large_report.large(18, count))
    assert len(page.encode()) < BUDGET
    told = len(re.findall(r'id="f\d+"', page))
    assert WHOLE < told < count and f"and {count - told} more" in _Page(page).text


def test_names_of_ten_thousand_characters_in_every_finding_stay_small() -> None:
    report = large_report.large(5000, 500)
    long = "w" * 10_000
    dressed = [
        replace(one, title=long, saw=long, why=long, how=long, caveats=[long] * 9) for one in report.findings
    ]
    page = render_html(replace(report, findings=dressed))
    assert page.count('<details class="finding ') >= FEWEST_WHOLE
    assert len(page.split('id="report">')[0].encode()) < HOSTILE


def test_inference_has_no_loss_and_other_work_is_said_in_words() -> None:
    report = sample_report.full()
    rows = [row for row in report.components if row.component != "loss"]
    named = {share.key: share.title for share in groups.group_shares(replace(report, components=rows))}
    assert named["logits"] == "Logits"
    odd = replace(report.components[0], component="attention.other")
    titles = [row.title for row in groups.tree(replace(report, components=[odd]))]
    assert titles[1] == "other attention work"


def test_limits_end_and_only_fall() -> None:
    seen = PageLimits().all()
    assert len(seen) < 20 and len(set(seen)) == len(seen)
    for before, after in itertools.pairwise(seen):
        assert all(getattr(after, name) <= getattr(before, name) for name in PageLimits.__slots__)


def test_the_arithmetic_of_a_finding_stands_line_by_line() -> None:
    one = sample_report.full()
    how = "Predicted, not measured.\n<b>logits</b> forward: 3 - 1 = 2 ms.\x1b[31m\nTogether 2 ms."
    page = render_html(replace(one, findings=[replace(one.findings[0], how=how)]))
    told = page.partition("<dt>How we know</dt><dd>")[2].partition("</dd>")[0]
    assert told.startswith("Predicted, not measured.<details ")
    assert ">&lt;b&gt;logits&lt;/b&gt; forward: 3 - 1 = 2 ms.<br>Together 2 ms.</details>" in told
    many = render_html(replace(one, findings=[replace(one.findings[0], how="\n".join("abcdefghij" * 9))]))
    assert "<br>f…" in many
