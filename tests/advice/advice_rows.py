"""Hand-built GEMM rows for the tests of advice; sizes from public traces, other figures made up."""

# ruff: noqa: C408 - dict(...) reads better for rows of made-up facts
from __future__ import annotations

from typing import Any

from tracelens.gemm import GemmShape, alignment_bytes, bytes_moved, flops, parse_kernel_name, row_fields
from tracelens.results import GemmRow, GpuInfo, Known, Lost, ModelDims
from tracelens.results.row_sizes import AttentionDims
from tracelens.rules import StepFacts

H100 = GpuInfo(
    "h100-sxm", "H100 SXM", "nvidia", 132, "table",
    {"bf16": 989.0, "fp16": 989.0, "tf32": 494.5, "fp32": 66.9, "fp8": 1979.0}, {"bf16": 794.5},
    3350.0, "device name",
)  # fmt: skip
UNKNOWN_GPU = GpuInfo("unknown", "unknown GPU", "unknown", None, "unknown", {}, {}, None, "none")

NVJET = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT"
XMMA = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off"
    "_kernel__5x_cublas"
)
SIMT = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(P)"


def cutlass(align: int, *, layout: str = "tn", types: str = "bf16") -> str:
    """A cuBLAS fallback kernel as H100 traces name it."""
    kernel = f"cutlass_80_tensorop_{types}_s16816gemm_{types}_256x128_64x3_{layout}_align{align}"
    return f"void cutlass::Kernel2<{kernel}>({kernel}::Params)"


def flash2(head_dim: int) -> str:
    """A FlashAttention 2 kernel compiled for ``head_dim``."""
    return (
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<"
        f"{head_dim}, 128, 64, 4, false, false, cutlass::bfloat16_t> >(Flash_fwd_params)"
    )


def model(transformer: bool = True, /, **values: int | None) -> ModelDims:
    """Model dimensions; those not given are not known."""
    names = ("hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "layers", "sequence", "micro_batch",
             "tensor_parallel", "experts")  # fmt: skip
    return ModelDims(
        "whole" if transformer else "none",
        *(Known(values.get(n), "made up" if values.get(n) else "not seen") for n in names),
    )


def gemm(
    number: int,
    m: int | None,
    n: int | None,
    k: int | None,
    *,
    component: str = "mlp.up",
    role: str | None = "forward",
    kernel: str = NVJET,
    time_us: float = 2000.0,
    calls: float = 1.0,
    dtype: str | None = "bf16",
    layout: str | None = "TN",
    batch: int = 1,
    names: tuple[str | None, str | None, str | None] = (None, None, None),
    **more: Any,
) -> GemmRow:
    """A row as the accounting makes it: alignment, operations and bytes follow from the shape."""
    shape: GemmShape | None = None
    if m is not None and n is not None and k is not None:
        a, b = {"TN": (k, k), "NN": (k, n), "NT": (m, n), None: (None, None)}[layout]
        shape = GemmShape(m, n, k, batch, dtype, dtype, layout, lda=a, ldb=b)
    parsed = parse_kernel_name(kernel)
    fields: dict[str, Any] = dict(
        id=f"g{number}", kind="gemm", component=component, components=[component], role=role,
        phase="forward" if role in (None, "forward") else "backward", layers=None, calls=int(calls),
        calls_per_step=calls, time_ms=time_us * calls / 1e3, time_ms_per_step=time_us * calls / 1e3, frac=0.0,
        m=m, n=n, k=k, batch=batch, shape_note=None, dtype=dtype, math_dtype=dtype,
        out_dtype=dtype, layout=layout,
        m_expr=names[0], n_expr=names[1], k_expr=names[2], op="aten::mm", kernel=kernel,
        **row_fields(parsed), split_k=None, tiles=None, waves=None, tile_eff_frac=None,
        wave_eff_frac=None,
        alignment_bytes=alignment_bytes(shape, kernel=parsed) if shape else {},
        tensor_core="used" if parsed and parsed.tensor_core else None,
        flops=flops(shape) if shape else None, tflops=None, peak_frac=None, ceiling_frac=None,
        bytes=bytes_moved(shape) if shape else None, intensity=None, bound=None, lost_ms=Lost(), findings=[],
    )  # fmt: skip
    return GemmRow(**(fields | more))


def attention(
    number: int,
    head_dim: int | None,
    *,
    heads: int = 32,
    kernel: str | None = None,
    time_us: float = 200.0,
    calls: float = 32.0,
    **more: Any,
) -> GemmRow:
    """A fused attention row, batch 1, sequence 2048."""
    d = head_dim or 64
    sizes = None if head_dim is None else AttentionDims(1, heads, heads, 2048, 2048, head_dim)
    given: dict[str, Any] = dict(
        kind="attention", component="attention.core", components=["attention.core"], alignment_bytes={},
        attention=sizes, op="aten::_flash_attention_forward", flops=4.0 * heads * 2048 * 2048 * d,
        bytes=8.0 * heads * 2048 * d, tensor_core=None,
    )  # fmt: skip
    return gemm(
        number, None, None, None, kernel=kernel or flash2(d), time_us=time_us, calls=calls, **(given | more)
    )


def facts(*rows: GemmRow, step_ms: float | None = 10.0, gpu: GpuInfo = H100, **more: Any) -> StepFacts:
    """A step of these rows; ``dims`` are the model's dimensions."""
    dims = more.pop("dims", None) or model()
    return StepFacts(gemms=list(rows), model=dims, gpu=gpu, step_ms=step_ms, **more)


def bert_small_logits(**more: Any) -> GemmRow:
    """The logits GEMM of the public H100 trace: 41.3 us of 308 us of GPU time, a 4-byte fallback."""
    given: dict[str, Any] = dict(component="logits", kernel=cutlass(2), time_us=41.3, frac=41.3 / 308.0)
    return gemm(1, 141, 30522, 512, **(given | more))
