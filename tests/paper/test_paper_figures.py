"""The paper's figures from measurements: what is drawn, what is said of it, and what is called missing."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.gpu.record import calibration, read_record
from benchmarks.paper import __main__ as command
from benchmarks.paper import source as sources
from benchmarks.paper.families import FAMILIES, figures
from benchmarks.paper.figure import MISSING, Figure, Panel
from benchmarks.paper.page import page, table
from benchmarks.paper.source import PAPER_DATA, Published, Source, find_sources, read_published
from benchmarks.paper.svg import WIDTH, svg
from tests.gpu_record.made_record import made_stages, write_record
from tests.gpu_record.test_gpu_summarize import dry_run
from tests.said import Listener
from tracelens.hardware.measurements import write_measurements

HEAD_DIMS = {8, 16, 24, *range(32, 257, 8)}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up record that holds every shape of the collection."""
    return write_record(tmp_path_factory.mktemp("made") / "results", stages=made_stages(every=1))


@pytest.fixture(scope="module")
def here(results: Path) -> Source:
    (found,) = find_sources(None, results)
    return found


@cache
def quoted() -> Published:
    return read_published(None)


@pytest.fixture(scope="module")
def drawn(here: Source) -> dict[str, Figure]:
    return {one.key: one for one in figures(here, quoted())}


def test_equal_parameters_are_beside_the_papers_best(
    drawn: dict[str, Figure], here: Source, said: Listener
) -> None:
    figure = drawn["m_equal_parameters"]
    (panel,) = figure.panels
    before, after = panel.series
    assert len(before.points) == len(after.points) >= 15
    gains = [then.tflops / now.tflops for now, then in zip(before.points, after.points, strict=True)]
    assert gains[0] > 1
    assert len(figure.says) == 2  # layers, and logits
    said(figure.says)


def xs(panel: Panel) -> set[int]:
    return {
        round(point.x)
        for one in panel.series
        if one.basis == "measured"
        for point in one.points
    }  # fmt: skip


def classes(panel: Panel) -> set[str]:
    return {one.name for one in panel.series if one.basis == "measured" and one.points}


# --- the collection measures what the figures need ----------------------------------------------------


def test_every_family_is_drawn_from_what_the_collection_measures(drawn: dict[str, Figure]) -> None:
    assert len(drawn) == len(FAMILIES)
    assert {one.letter for one in drawn.values()} == {*"ABCDEFGHI", *"KLM"}
    assert all(one.measured for one in drawn.values())


def test_sizes_waves_and_staircases_have_the_papers_own_points(drawn: dict[str, Figure]) -> None:
    (size,) = drawn["a_size"].panels
    assert xs(size) >= {2**e for e in range(5, 14)}
    (wave,) = drawn["b_wave"].panels
    for layout in ("NN", "TN"):
        (curve,) = (one for one in wave.series if f", {layout} " in one.name)
        assert {round(point.x) for point in curve.points} >= set(range(1536, 6145, 64))
    stairs = drawn["c_alignment"].panels
    assert [xs(panel) == set(range(64, 511, 2)) for panel in stairs[:2]] == [True, True]
    assert classes(stairs[0]) == {
        "n by 2", "n by 4", "n by 8", "n by 16", "n by 32", "n by 64", "n by 128 or more",
    }  # fmt: skip
    for panel, name in zip(drawn["c_alignment_dense"].panels, "nk", strict=True):
        assert xs(panel) == set(range(2496, 2626))
        assert len(classes(panel)) == 7 and f"{name} odd" in classes(panel)


def test_waves_are_drawn_where_they_cross_this_gpus_sm_count(drawn: dict[str, Figure]) -> None:
    panels = drawn["b_wave_own"].panels
    assert len(panels) == 3
    assert min(len(xs(panel)) for panel in panels) >= 30


def test_batches_are_curves_of_every_size(drawn: dict[str, Figure]) -> None:
    (panel,) = drawn["d_batch"].panels
    names = [one.name for one in panel.series]
    assert names == [f"{size} × {size} × {size}" for size in (1024, 1536, 2048, 4096, 8192)]
    assert {point.x for point in panel.series[0].points} >= {*range(1, 16), *range(16, 65, 4)}
    (sizes,) = drawn["e_batch_size"].panels
    assert [one.name for one in sizes.series] == [f"batch {2**e}" for e in range(7)]
    assert xs(sizes) >= {2**e for e in range(5, 14)}


def test_attention_by_products_has_every_degree_and_class(drawn: dict[str, Figure]) -> None:
    panels = drawn["f_attention_products"].panels
    assert len(panels) == 6
    for panel in (panels[0], panels[2]):
        kinds = {name.removeprefix("h/a ") for name in classes(panel)}
        assert kinds == {"odd", "by 2", "by 4", "by 8", "by 16", "by 32 or more"}
        assert {32 * 80, 32 * 128} <= xs(panel)
    for panel in (panels[1], panels[3]):
        assert [one.name for one in panel.series] == ["t = 1", "t = 2", "t = 4", "t = 8"]
        assert all({round(point.x) for point in one.points} >= {32 * d for d in range(8, 161, 8)}
                   for one in panel.series)  # fmt: skip


def test_linear_layers_are_there_for_every_hidden_size_and_degree(drawn: dict[str, Figure]) -> None:
    panels = drawn["g_linears"].panels
    assert [panel.title for panel in panels] == ["QKV", "projection", "MLP up", "MLP down"]
    for panel in panels:
        assert [one.name for one in panel.series] == ["t = 1", "t = 2", "t = 4", "t = 8"]
        for one in panel.series:
            assert {round(point.x) for point in one.points} >= set(range(1024, 8193, 128)), one.name


def test_a_linear_layer_is_the_product_that_its_rank_does(here: Source, drawn: dict[str, Figure]) -> None:
    of = {(one.m, one.n, one.k): one for one in here.gemms if one.layout == "TN" and one.dtype == "bf16"}
    shapes = {
        "QKV": (1920, 2560),
        "projection": (2560, 640),
        "MLP up": (2560, 2560),
        "MLP down": (2560, 2560),
    }
    for panel in drawn["g_linears"].panels:
        quarter = next(one for one in panel.series if one.name == "t = 4")
        (point,) = (point for point in quarter.points if point.x == 2560)
        assert point.time_us == of[4096, *shapes[panel.title]].time_us


def test_vocabularies_head_dimensions_heads_and_widths(drawn: dict[str, Figure]) -> None:
    roles = drawn["h_vocabulary"].panels
    assert [panel.title for panel in roles[:3]] == ["forward (TN)", "dgrad (NN)", "wgrad (NT)"]
    assert xs(roles[0]) == set(range(50240, 50313))
    assert all({50257, 50304} <= xs(panel) for panel in roles[:3])
    forward, backward = drawn["i_fused_attention"].panels
    assert xs(forward) == xs(backward) == HEAD_DIMS
    names = ["flash", "cuDNN", "memory-efficient", "flash, predicted by the model"]
    assert [one.name for one in backward.series] == names
    (heads,) = drawn["k_heads"].panels
    assert xs(heads) >= {16, 20, 32, 40, 64, 80}
    products, layers = drawn["l_swiglu"].panels
    assert {10922, 10923, 10848, 10944, 11008} <= xs(products)
    assert {"d_ff odd", "d_ff by 2", "d_ff by 4", "d_ff by 8"} <= classes(products)
    assert {10922, 10944, 11008} <= xs(layers)


# --- the picture --------------------------------------------------------------------------------------


def numbers(text: str) -> Iterator[tuple[float, float]]:
    for x, y in re.findall(r"[ML ]?(-?\d+(?:\.\d+)?)[ ,](-?\d+(?:\.\d+)?)", text):
        yield float(x), float(y)


def test_every_figure_is_well_formed_and_says_whose_it_is(drawn: dict[str, Figure]) -> None:
    for key, one in drawn.items():
        text = svg(one)
        root = ElementTree.fromstring(text)
        words = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
        assert "NVIDIA H200 SXM 141GB, bf16, measured 2026-11-21" in words, key
        assert words.count("TFLOP/s") == len(one.panels), key
        for panel in one.panels:
            assert panel.x_label in words and panel.title in words, key
            assert all(series.name in words for series in panel.series if series.points), key
        assert "DRY RUN" not in text and "nan" not in text and "inf'" not in text, key
        height = float(root.attrib["height"])
        lines = root.findall("{http://www.w3.org/2000/svg}polyline")
        for x, y in (place for line in lines for place in numbers(line.attrib["points"])):
            assert 0 <= x <= WIDTH and 0 <= y <= height, key


def test_a_higher_throughput_is_drawn_higher(drawn: dict[str, Figure]) -> None:
    one = next(one for one in drawn["g_linears"].panels[0].series if one.name == "t = 8")
    figure = Figure("x", "X", "x", "", (Panel("p", "h", (one,)),))
    line = ElementTree.fromstring(svg(figure)).find("{http://www.w3.org/2000/svg}polyline")
    assert line is not None
    places = [tuple(map(float, place.split(","))) for place in line.attrib["points"].split()]
    assert len(places) == len(one.points)
    for (x, y), point, (next_x, next_y), after in zip(
        places, one.points, places[1:], one.points[1:], strict=False
    ):
        assert next_x > x and (next_y <= y or after.tflops < point.tflops)


def test_names_are_escaped(drawn: dict[str, Figure]) -> None:
    strange = replace(drawn["a_size"], gpu="<GPU> & co")
    assert "<GPU>" not in svg(strange)
    ElementTree.fromstring(svg(strange))


# --- the table and the text ---------------------------------------------------------------------------


def rows(figure: Figure) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table(figure))))


def test_tables_hold_each_measured_point_with_its_kernel(here: Source, drawn: dict[str, Figure]) -> None:
    times = {(one.n, one.layout): one for one in here.gemms if (one.m, one.k) == (2304, 4096)}
    found = [row for row in rows(drawn["b_wave"]) if row["basis"] == "measured"]
    assert len(found) == drawn["b_wave"].measured
    for row in found:
        one = times[int(row["x"]), "NN" if ", NN " in row["series"] else "TN"]
        assert float(row["time_us"]) == pytest.approx(one.time_us, abs=1e-4)
        assert float(row["tflops"]) == pytest.approx(one.tflops, abs=1e-3)
        assert row["kernel"] == one.kernels[0] and row["gpu"] == "NVIDIA H200 SXM 141GB"


def test_a_prediction_is_dashed_named_and_no_measurement(
    here: Source, drawn: dict[str, Figure], said: Listener
) -> None:
    (panel,) = drawn["b_wave"].panels
    (guess,) = (one for one in panel.series if one.basis == "predicted")
    assert guess.line == "dashed"
    assert drawn["b_wave"].measured == sum(len(one.points) for one in panel.series if one.basis == "measured")
    said(guess.name)
    unknown = {one.key: one for one in figures(replace(here, key="unknown"), quoted())}
    assert all(one.basis != "predicted" for panel in unknown["b_wave"].panels for one in panel.series)


def test_what_is_said_follows_the_measurements(here: Source, said: Listener) -> None:
    slower = replace(
        here,
        gemms=tuple(replace(one, time_us=2 * one.time_us) for one in here.gemms),
        attention=tuple(replace(one, time_us=2 * one.time_us) for one in here.attention),
    )
    before, after = ({one.key: one for one in figures(source, quoted())} for source in (here, slower))
    assert "with 712 TFLOP/s" in " ".join(before["a_size"].says)
    assert "with 356 TFLOP/s" in " ".join(after["a_size"].says)
    assert "with 400 TFLOP/s" in " ".join(before["i_fused_attention"].differs)
    assert "with 200 TFLOP/s" in " ".join(after["i_fused_attention"].differs)
    # the made-up rule: 208 of 712 TFLOP/s where a dimension is odd, against 74 of 256 in the paper
    (odd,) = (
        line for line in before["h_vocabulary"].differs if line.startswith("forward (TN): where v is odd")
    )
    assert before["h_vocabulary"].differs == after["h_vocabulary"].differs  # shares stay
    said(odd)


def test_what_is_not_measured_is_called_so_and_nothing_is_said_of_it(here: Source) -> None:
    nothing = replace(here, gemms=(), attention=(), pairs=())
    found = figures(nothing, quoted())
    assert [one.measured for one in found] == [0] * len(FAMILIES)
    assert not any(one.says or one.differs for one in found)
    text = page(nothing, quoted(), found)
    assert text.lower().count(MISSING) == 2 * len(FAMILIES)
    assert "![" not in text
    some = page(replace(here, attention=()), quoted(), figures(replace(here, attention=()), quoted()))
    assert some.lower().count(MISSING) == 2


def test_the_text_names_no_machine_and_links_what_is_written(here: Source, tmp_path: Path) -> None:
    command.draw(here, quoted(), tmp_path / "h200")
    text = (tmp_path / "h200" / "README.md").read_text(encoding="utf-8")
    assert "/work" not in text and "/tmp" not in text and "/home" not in text
    linked = set(re.findall(r"\]\(([\w.]+)\)", text))
    assert len(linked) == 2 * len(FAMILIES)
    assert linked | {"README.md"} == {path.name for path in (tmp_path / "h200").iterdir()}


def test_the_same_measurements_are_the_same_bytes(here: Source, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        command.draw(here, quoted(), tmp_path / folder)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_a_figure_that_is_no_longer_measured_goes_away(here: Source, tmp_path: Path) -> None:
    command.draw(here, quoted(), tmp_path)
    assert (tmp_path / "i_fused_attention.svg").exists()
    said = command.draw(replace(here, attention=()), quoted(), tmp_path)
    assert not (tmp_path / "i_fused_attention.svg").exists()
    assert not (tmp_path / "i_fused_attention.csv").exists()
    assert "not yet measured: i_fused_attention" in said


# --- the command --------------------------------------------------------------------------------------


def test_the_users_own_measurements_are_found(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = calibration(read_record(results / "h200"))
    write_measurements(replace(measured, gemms=measured.gemms[:2000]), tmp_path / "own" / "h200.json.gz")
    monkeypatch.setenv("TRACELENS_CALIBRATION", str(tmp_path / "own"))
    monkeypatch.setattr(sources, "RESULTS", tmp_path / "no results")
    assert command.main(["--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "h200" / "a_size.svg").exists()
    assert "k_heads" in capsys.readouterr().out  # layers are in the collection's results alone


def test_without_measurements_one_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], said: Listener
) -> None:
    monkeypatch.setattr(sources, "find_measurements", lambda gpu: None)
    assert command.main(["--out", str(tmp_path / "out")]) == 3
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert not (tmp_path / "out").exists()
    said(text)


HEADER = "sweep,gpu,batch,m,reduction,n_out,tflops\n"


@pytest.mark.parametrize(
    "text", ["", "sweep,m\nmm,1\n", HEADER + "a,b,1,x,2,3,4\n", HEADER + "a,b,1,2,2,3,0\n"]
)
def test_a_wrong_file_of_raw_sweeps_is_named(
    text: str, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "raw.csv").write_text(text)
    words = [
        "--results",
        str(results),
        "--out",
        str(tmp_path / "out"),
        "--paper-data",
        str(tmp_path / "raw.csv"),
    ]
    assert command.main(words) == 3
    assert capsys.readouterr().err.startswith("raw.csv ")


def test_a_dry_run_is_marked_in_every_figure_and_kept_out_of_the_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = dry_run(tmp_path, "gemm_sweep", "curves", "attention_sweep", "layer_pairs")
    assert command.main(where) == 2
    assert "give --out" in capsys.readouterr().err
    assert not (command.OUT / "cpu").exists()

    assert command.main([*where, "--out", str(tmp_path / "out")]) == 0
    assert f"(dry run): {len(FAMILIES)} of {len(FAMILIES)} figures" in capsys.readouterr().out
    for path in (tmp_path / "out" / "cpu").glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        assert "DRY RUN, no GPU" in text
        assert "A100 (paper, fp16), NN" not in text and "predicted" not in text
    for path in (tmp_path / "out" / "cpu").glob("*.csv"):
        lines = path.read_text(encoding="utf-8").splitlines()
        bases = {row["basis"] for row in csv.DictReader(lines)}
        assert all(basis == "published" or basis.endswith("dry run on a CPU") for basis in bases)
    text = (tmp_path / "out" / "cpu" / "README.md").read_text(encoding="utf-8")
    assert "was measured on a GPU" in text and "Beside the paper" not in text


# --- the paper's own raw data -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_raw() -> Published:
    if not PAPER_DATA.is_file():
        pytest.skip("the paper's raw sweeps are not beside the checkout")
    return read_published(PAPER_DATA)


def test_raw_sweeps_are_drawn_and_copied_into_no_table(
    here: Source, drawn: dict[str, Figure], with_raw: Published
) -> None:
    found = {one.key: one for one in figures(here, with_raw)}
    for key in ("a_size", "b_wave", "c_alignment", "e_batch_size"):
        assert "A100 (paper, fp16)" in svg(found[key])
        assert [row for row in rows(found[key]) if row["basis"] != "published"] == [
            row for row in rows(drawn[key]) if row["basis"] != "published"
        ]
    assert with_raw.raw is not None
    raw = {f"{one.tflops:.3f}" for one in with_raw.raw.gemms if one.sweep == "mm/ksweep_high"}
    assert not raw & {row["tflops"] for row in rows(found["b_wave"])}


def test_the_papers_a100_as_the_gpu_at_hand_agrees_with_the_paper(
    with_raw: Published, said: Listener
) -> None:
    """The raw sweeps as if measured here: the known falls, the known fit, and no difference."""
    assert with_raw.raw is not None
    a100 = replace(with_raw.raw, key="a100-sxm-40gb", title="A100", basis="measured", date="2023-01-01")
    found = {one.key: one for one in figures(a100, with_raw)}
    assert {one.letter for one in found.values() if one.measured} == {*"ABCDE"}
    (size,) = found["a_size"].differs
    said(size)
    waves = [
        line.removeprefix("Here, NN").removeprefix("The paper's A100") for line in found["b_wave"].differs
    ]
    assert waves[:2] == waves[2:]
    assert "behind n = 1536, 1728, 2304, 3072, 3840, 4608 (6 times)" in waves[0]
    said(waves[0])
    assert "128 × 128 on 108 SMs" in waves[1] and "it foresees 5 of 6 falls" in waves[1]
    said(found["c_alignment"].differs[0])


def test_quoted_figures_are_those_of_the_raw_sweeps(with_raw: Published) -> None:
    assert with_raw.raw is not None
    stairs: dict[int, list[float]] = {}
    for one in with_raw.raw.gemms:
        if one.sweep == "mm/ksweep_low" and one.n >= 256:
            stairs.setdefault(min(one.n & -one.n, 128), []).append(one.tflops)
    means = {power: sum(found) / len(found) for power, found in stairs.items()}
    assert with_raw.by_size("alignment") == pytest.approx(means, abs=1.0)
    wave = {one.n: one.tflops for one in with_raw.raw.gemms if one.sweep == "mm/ksweep_high"}
    for n, tflops in with_raw.by_size("wave").items():
        assert wave[n] == pytest.approx(tflops, abs=0.06)
