"""The default set: what training runs, each shape once, useful wherever it is cut off."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from tracelens.measure.journal import key_of
from tracelens.measure.sweeps import coarse_to_fine, default_attention, default_gemms, interleave


def test_every_shape_once_and_within_minutes() -> None:
    gemms, attention = default_gemms(sms=132), default_attention()
    assert len({key_of(case) for case in gemms}) == len(gemms)
    assert len({key_of(case) for case in attention}) == len(attention)
    assert 1000 < len(gemms) < 2000 and 150 < len(attention) < 400
    # 60 ms a shape at most, and long calls three times: five minutes hold all of it at 500 TFLOP/s
    seconds = [max(0.06, 5 * case.flops / 500e12) for case in gemms]
    assert sum(seconds) < 200


def test_ceilings_come_first() -> None:
    first = default_gemms(sms=132, dtypes=("bf16", "fp8"))[:2]
    assert [(case.m, case.n, case.k, case.dtype) for case in first] == [
        (8192, 8192, 8192, "bf16"),
        (8192, 8192, 8192, "fp8"),
    ]


def test_a_quarter_of_the_list_has_a_quarter_of_each_sweep() -> None:
    gemms = default_gemms(sms=132)
    whole = Counter((case.sweep, case.dtype) for case in gemms)
    part = Counter((case.sweep, case.dtype) for case in gemms[: len(gemms) // 4])
    for sweep, number in whole.items():
        if sweep[0] != "square":
            assert abs(part[sweep] / number - 0.25) < 0.1, sweep


def test_a_cut_off_wave_sweep_still_spans_it() -> None:
    waves = [case.n for case in default_gemms(sms=132) if case.sweep == "wave" and case.m == 2304]
    early = sorted(waves[: len(waves) // 4])
    assert early[0] <= 1600 and early[-1] >= 5800
    assert max(b - a for a, b in pairwise(early)) <= 512


def test_the_wave_sweep_follows_the_number_of_multiprocessors() -> None:
    def longest(sms: int) -> int:
        return max(case.n for case in default_gemms(sms=sms) if case.sweep == "wave" and case.m == 1536)

    # tiles of 128 × 256: twelve rows, so three waves end near n = 3 * 256 * sms / 12
    assert longest(132) >= 3 * 256 * 132 // 12 > longest(66)


def test_roles_agree_about_the_weight() -> None:
    """For each forward product the gradients of the same layer are there."""
    cases = {key_of(case) for case in default_gemms(sms=132, dtypes=("bf16",))}
    tokens, outputs, inputs = 8192, 6144, 4096  # Llama 3 8B: query, key and value together
    assert (tokens, outputs, inputs, 1, "bf16", "bf16", "TN") in cases
    assert (tokens, inputs, outputs, 1, "bf16", "bf16", "NN") in cases
    assert (outputs, inputs, tokens, 1, "bf16", "bf16", "NT") in cases


def test_staircases_have_their_steps() -> None:
    for layout in ("TN", "NN", "NT"):
        sizes = {
            case.n
            for case in default_gemms(sms=132)
            if (case.m, case.k, case.dtype, case.layout) == (2048, 2048, "bf16", layout)
        }
        assert {2048, 2049, 2050, 2052, 2056, 2064} <= sizes


def test_fp8_asks_only_for_what_torch_has_and_one_case_that_says_so() -> None:
    fp8 = [case for case in default_gemms(sms=132) if case.dtype == "fp8"]
    assert {case.layout for case in fp8} == {"TN"}
    assert sum(case.n % 16 != 0 or case.k % 16 != 0 for case in fp8) <= 3


def test_attention_covers_head_dimensions_and_kinds() -> None:
    cases = default_attention()
    assert {case.head_dim for case in cases} >= set(range(32, 257, 8))
    assert {case.direction for case in cases} == {"forward", "backward"}
    assert {case.backend for case in cases} == {"flash", "cudnn", "efficient"}
    assert any(case.key_heads < case.heads for case in cases)
    assert any(case.seq_q % 2 for case in cases)
    assert default_attention(dtypes=("fp8", "tf32")) == []


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 100])
def test_reordering_loses_nothing(length: int) -> None:
    values = list(range(length))
    assert sorted(coarse_to_fine(values)) == values
    assert sorted(interleave(values, values[: length // 3])) == sorted(values + values[: length // 3])
