"""Where fused attention's operators have their arguments: torch's own schemas and flash-attn's signatures."""

from __future__ import annotations

from typing import Any

import pytest

from tracelens.gemm import ATTENTION_OPS, AttentionShape, bytes_moved, shape_of

_SEQLENS = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
_SCALARS = "dropout_p softmax_scale is_causal window_size_left window_size_right softcap alibi_slopes"
_NEW = "k_new v_new qv out cu_seqlens_q cu_seqlens_k cu_seqlens_k_new seqused_q seqused_k max_q max_k"
_CACHE = (
    "page_table kv_batch_idx leftpad_k rotary_cos rotary_sin seqlens_rotary q_descale k_descale v_descale"
)
_PACKED = "cu_seqlens_q cu_seqlens_k seqused_q seqused_k max_seqlen_q max_seqlen_k"
_GRADS = "grad_out query key value out softmax_lse"
_SIDES = "softmax_scale is_causal window_size_left window_size_right"
_CACHED = "seqused_k leftpad_k block_table alibi_slopes max_seqlen_q max_seqlen_k p_dropout softmax_scale"
#: flash_attn 2.7.4, flash_attn_interface.py; of flash_attn_3 hopper/flash_api.cpp, and for its wrappers the
#: version of October 2025, whose calls public traces of modded-nanogpt hold; vllm-project/flash-attention,
#: csrc/flash_attn/flash_api.cpp and hopper/flash_api.cpp.
SIGNATURES = {
    "flash_attn::_flash_attn_forward": f"query key value {_SCALARS} return_softmax",
    "flash_attn::_flash_attn_backward": f"{_GRADS} dq dk dv {_SCALARS} deterministic rng_state",
    "flash_attn::_flash_attn_varlen_forward": f"query key value {_SEQLENS} {_SCALARS} return_softmax",
    "flash_attn::_flash_attn_varlen_backward": f"{_GRADS} dq dk dv {_SEQLENS} {_SCALARS} deterministic",
    "flash_attn_3::_flash_attn_forward": f"query key value {_NEW} {_CACHE} {_SIDES} attention_chunk",
    "flash_attn_3::fwd": f"query key value {_NEW} {_CACHE} {_SIDES} attention_chunk softcap",
    "flash_attn_3::_flash_attn_backward": f"{_GRADS} {_PACKED} {_SIDES} softcap deterministic",
    "flash_attn_3::bwd": f"{_GRADS} dq dk dv {_PACKED} {_SIDES} softcap deterministic",
    "_vllm_fa2_C::varlen_fwd": f"query key value out cu_seqlens_q cu_seqlens_k {_CACHED} zero_tensors"
    " is_causal window_size_left window_size_right softcap return_softmax num_splits gen",
    "_vllm_fa3_C::fwd": f"query key value {_NEW} {_CACHE} {_SIDES} softcap",
}
HEADS_FIRST = ("_scaled_dot_product_", "scaled_dot_product_attention", "_cudnn_")
#: A Python function, which has no schema: below.
FUNCTION = "FusedAttnFunc"
#: vllm-project/vllm vllm/model_executor/layers/attention/attention.py: no argument says what it masks.
SERVED = "vllm::unified_attention_with_output"
OPS = sorted(
    ATTENTION_OPS - {FUNCTION, f"{FUNCTION}Backward", SERVED} | {"aten::scaled_dot_product_attention"}
)


def arguments_of(op: str) -> list[str]:
    if op in SIGNATURES:
        return SIGNATURES[op].split()
    torch: Any = pytest.importorskip("torch")
    schema = next(one for one in torch._C._jit_get_schemas_for_operator(op) if not one.overload_name)
    return [argument.name for argument in schema.arguments]


def called(op: str, tensors: dict[str, list[int]], scalars: dict[str, str]) -> AttentionShape:
    names = arguments_of(op)
    assert {*tensors, *scalars} <= {*names}
    found = shape_of(
        op,
        [tensors.get(name, []) for name in names],
        ["c10::BFloat16" if name in tensors else "" for name in names],
        [[0] * (len(tensors.get(name, [])) - 1) + [1] if name in tensors else [] for name in names],
        [scalars.get(name, "") for name in names],
    )
    assert isinstance(found, AttentionShape)
    return found


@pytest.mark.parametrize("op", OPS)
def test_every_argument_is_read_where_its_schema_has_it(op: str) -> None:
    names = arguments_of(op)
    first = op.removeprefix("aten::").startswith(HEADS_FIRST)
    queries, keys = ([3, 8, 96, 64], [3, 2, 80, 64]) if first else ([3, 96, 8, 64], [3, 80, 2, 64])
    tensors = {"query": queries, "key": keys, "value": [*keys[:3], 48]}
    kind = "custom_mask_type" in names
    causal = {"custom_mask_type": ("0", "1", "2")} if kind else {"is_causal": ("False", "True")}
    (name, values), *_ = causal.items()
    for at, value in enumerate(values):
        found = called(op, tensors, {name: value})
        sizes = found.batch, found.heads, found.kv_heads, found.query_len, found.key_len
        assert (*sizes, found.head_dim, found.value_dim) == (3, 8, 2, 96, 80, 64, 48)
        assert (found.dtype, found.causal, found.window, found.mask) == ("bf16", at > 0, None, None)
        assert found.backward == ("backward" in op or "bwd" in op)
    if "window_size_left" in names:
        sides = {"window_size_left": "20", "window_size_right": "10"}
        assert called(op, tensors, sides | {name: values[0]}).window == (20, 10)
        assert called(op, tensors, sides | {name: values[1]}).window == (20, 0)
    for mask in {"attn_mask", "attn_bias", "bias"} & {*names}:
        assert called(op, tensors | {mask: [3, 8, 96, 80]}, {}).mask == "mask"


@pytest.mark.parametrize("op", [op for op in OPS if "_efficient_attention" in op and "_dot_" not in op])
def test_sequences_are_packed_where_their_lengths_are_given(op: str) -> None:
    """Torch lays sequences of several lengths behind one another for these (a nested tensor's)."""
    sizes = [1, 96, 8, 64]
    tensors = {"query": sizes, "key": sizes, "value": sizes, "cu_seqlens_q": [5]}
    found = called(op, tensors, {})
    assert found.varlen and (found.batch, found.query_len, found.query_tokens) == (None, None, 96)


def test_attention_over_a_cache_shows_its_heads_and_no_length() -> None:
    query, key = [888, 8, 64], [888, 1, 64]
    types = ["c10::Float8_e4m3fn", *3 * ["c10::BFloat16"]]
    found = shape_of(SERVED, [query, key, key, query], types, None, [])
    assert isinstance(found, AttentionShape)
    assert (found.heads, found.kv_heads, found.head_dim, found.query_tokens) == (8, 1, 64, 888)
    assert (found.query_len, found.pairs, found.dtype) == (None, None, None)


Q, K = [512, 4, 16, 64], [1024, 4, 2, 64]


@pytest.mark.parametrize(
    ("query", "key", "lengths", "found"),
    [
        (Q, K, ("512", "1024"), (4, 16, 2, 512, 1024)),  # [S, B, H, D]
        ([4, 512, 16, 64], [4, 1024, 2, 64], ("512", "1024"), (4, 16, 2, 512, 1024)),  # [B, S, H, D]
        (Q, K, ("512", "2048"), None),  # of another length
        (Q, K, ("", ""), None),  # not recorded
        (Q, [1024, 8, 2, 64], ("512", "1024"), None),  # another batch
        (Q, [1024, 4, 3, 64], ("512", "1024"), None),  # heads that do not divide
        ([2048, 16, 64], [2048, 2, 64], ("512", "512"), None),  # packed
    ],
)
def test_the_function_of_transformer_engine(
    query: list[int], key: list[int], lengths: tuple[str, str], found: tuple[int, ...] | None
) -> None:
    """pytorch/attention/dot_product_attention/backends.py, FusedAttnFunc.forward; texts are not recorded."""
    dims: list[Any] = [[], [], [], [5], [5], query, key, key, []]
    concrete = ["True", *lengths, "", "", "", "", "", "0.125"]
    types = ["Scalar", "Scalar", "Scalar", "int", "int", *3 * ["c10::BFloat16"], "Scalar"]
    shape = shape_of(FUNCTION, dims, types, None, concrete)
    if found is None:
        assert shape is None
    else:
        assert isinstance(shape, AttentionShape)
        sizes = (shape.batch, shape.heads, shape.kv_heads, shape.query_len, shape.key_len)
        assert (*sizes, shape.head_dim, shape.dtype) == (*found, 64, "bf16")


@pytest.mark.parametrize("op", ["_vllm_fa2_C::varlen_fwd", "_vllm_fa3_C::fwd"])
def test_keys_in_the_pages_of_a_cache_tell_heads_and_no_length(op: str) -> None:
    pool = [37165, 16, 4, 128]
    found = called(op, {"query": [1024, 16, 128], "key": pool, "value": pool}, {"is_causal": "True"})
    assert (found.heads, found.kv_heads, found.head_dim, found.causal) == (16, 4, 128, True)
    assert found.varlen and (found.query_tokens, found.key_tokens, found.key_len) == (1024, None, None)
    assert bytes_moved(found) is None, "how much of the pool is read is in no trace"
    assert "None" not in found.describe()
