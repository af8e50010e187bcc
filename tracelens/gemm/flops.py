"""Floating-point operations and bytes of a GEMM or attention call, counted as torch counts them.

The formulas are those of torch.utils.flop_counter (torch 2.13): a multiply-add is two operations, bias
and softmax are not counted, and causal attention is counted in full, as if nothing were masked. Use
torch's count to compare with torch's numbers; a causal kernel does about half of it.
"""

from __future__ import annotations

from tracelens.gemm.attention_shapes import ATTENTION_OPS
from tracelens.gemm.dtypes import bytes_per_element
from tracelens.gemm.shapes import WRAPPERS, GemmShape, Shape, is_gemm_op


def flops(shape: Shape) -> int | None:
    """Operations of one call; None where the trace does not hold what decides them.

    GEMM: 2*M*N*K*batch. Attention forward: the two products scores = q k^T and out = scores v. Backward:
    five products, for torch recomputes the scores (``sdpa_backward_flop_count``). A sliding window counts the
    scores inside it (torch counts all). Unknown for packed sequences, whose lengths are in no trace.
    A symmetric product needs one triangle with its diagonal, M*(M+1)*K*batch, as BLAS counts syrk
    (LAPACK Working Note 41, table of operation counts); tiles cut by the diagonal make a kernel do more.

    >>> flops(GemmShape(32768, 2304, 768, 1, "bf16", "bf16", "TN"))
    115964116992
    >>> from tracelens.gemm.attention_shapes import AttentionShape
    >>> flops(AttentionShape(8, 12, 12, 1024, 1024, 64, 64, "bf16", True, False))
    25769803776
    """
    if isinstance(shape, GemmShape):
        if shape.symmetric:
            return shape.m * (shape.m + 1) * shape.k * shape.batch
        return 2 * shape.m * shape.n * shape.k * shape.batch
    pairs = shape.pairs
    if shape.batch is None or pairs is None:
        return None
    scores = 2 * shape.batch * shape.heads * pairs
    if shape.backward:
        return scores * (3 * shape.head_dim + 2 * shape.value_dim)
    return scores * (shape.head_dim + shape.value_dim)


def model_flops(shape: Shape) -> int | None:
    """Operations of one call that the model needs: those of ``flops`` without what a kernel computes again.

    A fused backward computes the scores a second time, which is the kernel's choice and not the model's
    (Chowdhery et al., PaLM, arXiv 2204.02311, appendix B: utilization counts no rematerialization, and
    attention in full).

    >>> from tracelens.gemm.attention_shapes import AttentionShape
    >>> model_flops(AttentionShape(8, 12, 12, 1024, 1024, 64, 64, "bf16", True, backward=True))
    51539607552
    """
    work = flops(shape)
    if work is None or isinstance(shape, GemmShape) or not shape.backward:
        return work
    return work * 2 * (shape.head_dim + shape.value_dim) // (3 * shape.head_dim + 2 * shape.value_dim)


def bytes_moved(shape: Shape) -> float | None:
    """Bytes that must cross memory when each operand is touched once; None for an unknown type.

    GEMM: a and b read, out written; a bias or an accumulated C is left out. Attention forward: q, k, v
    read, out written; backward: those four and grad_out read, three gradients written (the per-row
    statistics are left out). A lower bound: caches make it reachable, re-reads exceed it.

    >>> bytes_moved(GemmShape(1024, 1024, 1024, 1, "bf16", "bf16", None)) == 3 * 1024 * 1024 * 2
    True
    """
    if isinstance(shape, GemmShape):
        return _gemm_bytes(shape)
    size = bytes_per_element(shape.dtype)
    if shape.varlen:
        queries, keys = shape.query_tokens, shape.key_tokens
    elif shape.batch is None or shape.query_len is None or shape.key_len is None:
        return None
    else:
        queries, keys = shape.batch * shape.query_len, shape.batch * shape.key_len
    if size is None or queries is None or keys is None:
        return None
    q, out = queries * shape.heads * shape.head_dim, queries * shape.heads * shape.value_dim
    k, v = keys * shape.kv_heads * shape.head_dim, keys * shape.kv_heads * shape.value_dim
    return size * (2 * (q + k + v) + 2 * out if shape.backward else q + k + v + out)


def _gemm_bytes(shape: GemmShape) -> float | None:
    size, out_size = bytes_per_element(shape.dtype), bytes_per_element(shape.out_dtype)
    if size is None or out_size is None or (shape.grouped is not None and shape.groups is None):
        return None
    # Each group has its own copy of the operand that does not contain the split dimension.
    groups = shape.groups or 1
    a = shape.m * shape.k * (groups if shape.grouped == "n" else 1)
    # a symmetric product has one operand, read twice
    b = 0 if shape.symmetric else shape.k * shape.n * (groups if shape.grouped == "m" else 1)
    out = shape.m * shape.n * (groups if shape.grouped == "k" else 1)
    # an operand expanded over the batch (stride 0) is one matrix
    a_count = 1 if shape.batch_stride_a == 0 else shape.batch
    b_count = 1 if shape.batch_stride_b == 0 else shape.batch
    return size * (a_count * a + b_count * b) + shape.batch * out_size * out


def shows_sizes(op: str) -> bool:
    """Do the inputs of this operator, where they are recorded, say what it multiplies?

    >>> shows_sizes("aten::mm.out"), shows_sizes("aten::linear"), shows_sizes("aten::cudnn_convolution")
    (True, True, False)
    """
    base = op.partition(".")[0]
    return is_gemm_op(base) or base in ATTENTION_OPS or base in WRAPPERS
