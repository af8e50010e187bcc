"""Tokens of padding: what PyTorch's own operators record of it, and batches planted in generated runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.synthetic import ModelSpec, Options, build
from tests.trace.tools import document, op, read
from tracelens.accounting.limits import picture_of
from tracelens.accounting.padding import padded_batches
from tracelens.analysis import analyze_trace
from tracelens.numbers import ms
from tracelens.render.verdict import verdict
from tracelens.results import PaddedBatch, Report

BATCH, LONGEST = 4, 1024
LINEAR = {"attention.qkv", "attention.output", "mlp.up", "mlp.down", "logits"}


def pads(name: str, dims: list[Any], types: list[str], concrete: list[str]) -> dict[str, Any]:
    return op(name, **{"Input Dims": dims, "Input type": types, "Concrete Inputs": concrete})


def pad_sequence(*lengths: int, first: str = "True", width: tuple[int, ...] = ()) -> dict[str, Any]:
    dims = [[[length, *width] for length in lengths], [], [], []]
    types = ["TensorList", "Scalar", "Scalar", ""]
    return pads("aten::pad_sequence", dims, types, ["", first, "0.", ""])


def longer(size: list[int], pad: str, kind: str = "long int") -> dict[str, Any]:
    return pads("aten::constant_pad_nd", [size, [], []], [kind, "ScalarList", "Scalar"], ["", pad, "0."])


def jagged(total: int, batch: int, longest: str) -> dict[str, Any]:
    dims = [[total, 64], [[batch + 1]], [], []]
    types = ["float", "TensorList", "ScalarList", "Scalar"]
    return pads("fbgemm::jagged_to_padded_dense", dims, types, ["", "", longest, "0."])


@pytest.mark.parametrize(
    ("ops", "found"),
    [
        ([pad_sequence(5, 9, 3)], {27: 17}),
        ([pad_sequence(5, 9, 3, first="False", width=(64,))], {27: 17}),
        ([pad_sequence(5, 9, 3), pad_sequence(9, 9, 9)], {27: 22}),  # the mean of two batches
        ([pad_sequence(5, 9, 3), longer([3, 9], "[0, 7]")], {27: 17, 48: 17}),  # then to a multiple
        ([longer([3, 9], "[0, 7]")], {48: 27}),
        ([longer([30], "[0, 2]", "int")], {32: 30}),
        ([longer([3, 9, 64], "[0, 0, 0, 7]", "c10::BFloat16")], {48: 27}),
        ([jagged(17, 3, "[9]")], {27: 17}),
        # none of these is a batch of tokens, or none is padded
        ([longer([9, 64], "[0, 0, 0, 7]", "c10::BFloat16")], {}),
        ([longer([3, 9, 64], "[0, 8]", "float")], {}),
        ([longer([1, 3, 684, 1024], "[0, 0, 0, 340]", "float")], {}),
        ([longer([3, 9], "nonsense")], {}),
        ([pad_sequence(9)], {}),
        ([jagged(40, 3, "[9]")], {}),  # cut, not padded: what is left is not known
        ([jagged(17, 3, "")], {}),
        ([op("aten::pad_sequence")], {}),
    ],
)
def test_sizes_before_and_after_tell_padding(
    tmp_path: Path, ops: list[dict[str, Any]], found: dict[int, float]
) -> None:
    events = [one | {"ts": 10 * at} for at, one in enumerate(ops)]
    assert padded_batches(read(tmp_path, document(events))) == [
        PaddedBatch(rows, tokens) for rows, tokens in found.items()
    ]


def test_what_pytorch_records_is_read(tmp_path: Path) -> None:
    """The same sequences through each of its operators, on the CPU."""
    torch: Any = pytest.importorskip("torch")
    functional = torch.nn.functional
    sequences = [torch.ones(length, 8) for length in (5, 9, 3)]

    def padded() -> None:
        ids = torch.nn.utils.rnn.pad_sequence([one[:, 0].long() for one in sequences], batch_first=True)
        functional.pad(ids, (0, 7))
        nested = torch.nested.nested_tensor(sequences, layout=torch.jagged)
        torch.nested.to_padded_tensor(nested, 0.0)

    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        padded()
    profile.export_chrome_trace(str(tmp_path / "made.json"))
    trace = read(tmp_path, (tmp_path / "made.json").read_bytes())
    assert padded_batches(trace) == [PaddedBatch(27, 17.0), PaddedBatch(48, 17.0)]


@cache
def _text(vocab: int) -> str:
    model = ModelSpec(hidden=768, heads=12, layers=2, vocab=vocab, sequence=LONGEST, micro_batch=BATCH)
    return build(model, Options(steps=3, ranges=True)).text()


def planted(folder: Path, ops: Callable[[int], list[dict[str, Any]]], *, vocab: int = 4096) -> Report:
    """A generated run; each step begins with what ``ops`` gives for it."""
    trace = json.loads(_text(vocab))
    events = trace["traceEvents"]
    steps = [
        one for one in events if re.match("ProfilerStep#", one["name"]) and one["cat"] == "user_annotation"
    ]
    for number, step in enumerate(steps):
        where = {"pid": step["pid"], "tid": step["tid"], "dur": 0.1}
        events += [one | where | {"ts": step["ts"] + 0.1 + 0.2 * at} for at, one in enumerate(ops(number))]
    return analyze_trace(read(folder, json.dumps(trace)), shape_search=False).report


def linear_ms(report: Report) -> float:
    return sum(row.time_ms_per_step for row in report.gemms if row.component in LINEAR)


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_planted_padding_is_found_again(tmp_path: Path, share: float) -> None:
    short = round(LONGEST * (1 - share * BATCH / (BATCH - 1)))
    report = planted(tmp_path, lambda _: [pad_sequence(LONGEST, *[short] * (BATCH - 1))] * 2)  # ids, labels
    (found,) = [one for one in report.findings if one.rule == "TL127"]
    assert found.evidence["empty_frac"] == pytest.approx(share, rel=0.01)
    assert found.saving_ms.mid is None
    assert found.saving_ms.high == pytest.approx(share * linear_ms(report), rel=0.01)


@pytest.mark.parametrize(
    "ops",
    [
        [],
        [pad_sequence(*[LONGEST] * BATCH)],  # all as long
        [pad_sequence(512, 300, 200, 100)],  # of a batch that no linear layer runs over
        [longer([BATCH, LONGEST], "[0, 1]")],  # labels, moved by one
        [longer([BATCH, 12, 600, 64], "[0, 0, 0, 424]", "c10::BFloat16")],  # within attention
        [longer([BATCH * LONGEST, 760], "[0, 8]", "c10::BFloat16")],  # columns, as Inductor pads a GEMM
    ],
)
def test_none_is_invented(tmp_path: Path, ops: list[dict[str, Any]]) -> None:
    report = planted(tmp_path, lambda _: ops)
    assert not any(one.rule == "TL127" for one in report.findings)


@pytest.mark.parametrize("vocab", [4096, 50257])  # no other finding, and one that is predicted
@pytest.mark.parametrize("percent", [0.9, 1.1])
def test_the_verdict_names_padding_from_one_percent_of_the_step_on(
    tmp_path: Path, vocab: int, percent: float
) -> None:
    plain = planted(tmp_path, lambda _: [], vocab=vocab)
    held = BATCH * LONGEST * (1 - percent / 100 * plain.summary.step_ms.median / linear_ms(plain))
    batch = pad_sequence(LONGEST, LONGEST, LONGEST, round(held - 3 * LONGEST))
    report = planted(tmp_path, lambda _: [batch], vocab=vocab)
    found = [one.saving_ms.high for one in report.findings if one.rule == "TL127"]
    assert len(report.findings) == len(plain.findings) + len(found)
    assert len(found) == (percent > 1)
    for most_ms in found:
        assert most_ms == pytest.approx(percent / 100 * report.summary.step_ms.median, rel=0.02)
        assert ms(most_ms) in " ".join(verdict(picture_of(report)))
