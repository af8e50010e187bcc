"""Products as people write them."""

from __future__ import annotations

import pytest

from tests.said import Listener
from tracelens.errors import UsageError
from tracelens.gemm.spelling import Sizes, parse_dtype, parse_layout, parse_sizes


@pytest.mark.parametrize(
    "text",
    [
        "8192x50257x2560", "8192X50257X2560", "8192,50257,2560", "8192 50257 2560", "8192×50257×2560",
        "8192*50257*2560", " 8192 x 50257 x 2560 ", "8192, 50257, 2560", "1@8192x50257x2560",
    ],
)  # fmt: skip
def test_every_spelling_of_one_product(text: str) -> None:
    assert parse_sizes(text) == Sizes(8192, 50257, 2560)


def test_a_batch_stands_in_front_or_apart() -> None:
    wanted = Sizes(1024, 512, 64, batch=96)
    assert parse_sizes("96@1024x512x64") == parse_sizes("96 @ 1024 512 64") == wanted
    assert parse_sizes("1024x512x64", batch=96) == parse_sizes("96@1024x512x64", batch=96) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "1x2", "1x2x3x4", "1 2 3 4", "axbxc", "1.5x2x3", "-1x2x3", "1x2x", "@1x2x3", "2@@1x2x3",
        "0x1x1", "1x0x1", "1x1x0", "0@1x1x1", f"{2**40 + 1}x1x1", "9" * 25 + "x1x1", "٣x٣x٣", "1x1x1\n;rm",
        "1e3x2x3", "8,192x50,257x2,560", "x" * 10_000,
    ],
)  # fmt: skip
def test_what_is_no_product_is_refused_in_one_short_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_sizes(text)
    assert len(str(caught.value)) < 250 and "\n" not in str(caught.value)


def test_two_batches_that_differ_are_refused(said: Listener) -> None:
    with pytest.raises(UsageError) as error:
        parse_sizes("2@1x1x1", batch=3)
    said(error.value)


@pytest.mark.parametrize(
    ("text", "layout"),
    [("forward", "TN"), ("dgrad", "NN"), ("WGRAD", "NT"), ("tn", "TN"), ("NT", "NT"), ("tt", "TT")],
)
def test_layouts_and_the_roles_that_have_them(text: str, layout: str) -> None:
    assert parse_layout(text) == layout


@pytest.mark.parametrize(
    ("text", "dtype"),
    [("bf16", "bf16"), ("torch.bfloat16", "bf16"), ("Half", "fp16"), ("float8", "fp8"), ("tf32", "tf32")],
)
def test_element_types_in_our_words_and_in_torchs(text: str, dtype: str) -> None:
    assert parse_dtype(text) == dtype


@pytest.mark.parametrize("text", ["", "bf17", "TNN", "backward", "\x1b[31m"])
def test_unknown_words_are_refused(text: str) -> None:
    for parse in (parse_layout, parse_dtype):
        with pytest.raises(UsageError, match="unknown"):
            parse(text)
