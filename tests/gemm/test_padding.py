"""Padding made by a compiler is said only where an operator before the product proves it."""

from __future__ import annotations

import pytest

from tracelens.gemm import GemmShape, Neighbour, padded_from

LOGITS = GemmShape(8192, 50264, 768, 1, "bf16", "bf16", "TN")
#: M, N and K were each a little less than a multiple of eight.
FFN = GemmShape(512, 50264, 1368, 1, "bf16", "bf16", None)
DOWN = GemmShape(8192, 512, 1368, 1, "bf16", "bf16", None)
SCORES = GemmShape(200, 64, 200, 96, "bf16", "bf16", None)
FP32 = GemmShape(64, 5004, 256, 1, "fp32", "fp32", None)
PAD = "triton_poi_fused_constant_pad_nd_t_3"


@pytest.mark.parametrize(
    ("shape", "op", "dims", "expected"),
    [
        (LOGITS, PAD, [[50257, 768], [50264, 768], []], {"n": 50257}),
        (LOGITS, PAD, [[50257, 768], [768, 50264], []], {"n": 50257}),  # transposed on the way
        # more fused into the same kernel
        (LOGITS, "triton_poi_fused_constant_pad_nd_t_7", [[768], [50257, 768], [50264, 768]], {"n": 50257}),
        # named after the product that was rewritten
        (LOGITS, "triton_poi_fused_mm_2", [[50257, 768], [50264, 768], []], {"n": 50257}),
        # activations [batch, length, 1366] become [batch * length, 1368]
        (DOWN, PAD, [[8, 1024, 1366], [8192, 1368]], {"k": 1366}),
        # both dimensions of one operand
        (FFN, PAD, [[50257, 1366], [50264, 1368]], {"k": 1366, "n": 50257}),
        # fp32 rounds to 4 elements
        (FP32, PAD, [[5003, 256], [5004, 256]], {"n": 5003}),
        # a batched product keeps its batch
        (SCORES, PAD, [[96, 197, 197], [96, 200, 200]], {"k": 197, "m": 197}),
    ],
)  # fmt: skip
def test_an_operand_in_both_sizes_is_proof(
    shape: GemmShape, op: str, dims: list[list[int]], expected: dict[str, int]
) -> None:
    assert padded_from(shape, [Neighbour(op, dims)]) == expected


@pytest.mark.parametrize(
    ("op", "dims"),
    [
        ("triton_poi_fused_add_3", [[50257, 768], [50264, 768]]),  # does not pad
        (PAD, [[50257, 512], [50264, 512]]),  # no operand of this product
        (PAD, [[50250, 768], [50264, 768]]),  # more than rounding up to 16 bytes
        (PAD, [[50264, 768], [50264, 768]]),
        (PAD, [[50257, 768], []]),
        (PAD, []),
        # cut results prove nothing: logits shifted by a token look the same
        ("triton_poi_fused_slice_4", [[8192, 50264], [8192, 50257]]),
        ("triton_poi_fused_slice_4", [[8191, 50264], [8192, 50264]]),
        # not a kernel that only pads
        ("triton_poi_fused_add_mm_4", [[50257, 768], [50257, 768], [50264, 768]]),
        ("triton_poi_fused_comm_4", [[50257, 768], [50264, 768]]),
    ],
)
def test_no_proof_no_claim(op: str, dims: list[list[int]]) -> None:
    assert padded_from(LOGITS, [Neighbour(op, dims)]) == {}


def test_recorded_padding_of_an_eager_pad_is_proof_of_any_amount() -> None:
    shape = GemmShape(888, 5888, 3072, 1, "bf16", "bf16", None)
    assert padded_from(
        shape, [Neighbour("aten::constant_pad_nd", [[888, 2880], [], []], ["", "[0, 192]", "0."])]
    ) == {"k": 2880}
    for concrete in ([], ["", "[0, 128]", "0."], ["", "[0, 0]", "0."], ["", "nonsense", ""], ["", "[0]", ""]):
        assert padded_from(shape, [Neighbour("aten::constant_pad_nd", [[888, 2880], [], []], concrete)]) == {}


def test_what_fits_two_dimensions_is_not_guessed() -> None:
    square = GemmShape(768, 1368, 1368, 1, "bf16", "bf16", None)
    assert padded_from(square, [Neighbour(PAD, [[1366, 1368], [1368, 1368]])]) == {}


def test_neighbours_that_disagree_cancel_out() -> None:
    pads = [Neighbour(PAD, [[size, 768], [50264, 768]]) for size in (50257, 50258)]
    assert padded_from(LOGITS, pads) == {}


def test_an_unknown_type_has_no_rounding() -> None:
    shape = GemmShape(8192, 50264, 768, 1, None, None, None)
    assert padded_from(shape, [Neighbour(PAD, [[50257, 768], [50264, 768]])]) == {}
