"""Times of matrix products as training runs them: its layouts, cold caches, random data, checked results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch

from tracelens.hardware.measurements import GemmMeasurement
from tracelens.measure.calls import Kind, Prepared, measure_each
from tracelens.measure.cases import DTYPES, LAYOUTS, CaseOutcome, GemmCase, MeasureOptions
from tracelens.measure.kernels import CallKernels
from tracelens.measure.operands import TORCH_DTYPES, Pools, refuse_unless, relative_error
from tracelens.measure.timing import Device, Timing

#: Largest relative error of a sampled slice. bf16 and fp16 round each result once (2^-9, 2^-12) and add split
#: sums in the same type; fp8 products are exact but Hopper adds them with 14 bits; tf32 keeps 10 bits of
#: each operand. An fp32 product must not come near that, or it was no fp32 product.
_TOLERANCE = {"bf16": 1e-2, "fp16": 5e-3, "fp8": 2e-2, "tf32": 3e-3, "fp32": 2e-5}
_SAMPLED = 6  # rows and columns compared
_LARGEST_SIDE = 2**31 - 1  # cuBLAS takes 32-bit sizes


def measure_gemms(
    cases: Iterable[GemmCase],
    *,
    device: Device,
    options: MeasureOptions | None = None,
    progress: Callable[[CaseOutcome], None] | None = None,
) -> Iterator[GemmMeasurement]:
    """Time each product and record its kernels, in the order of ``cases``: see ``measure_each``."""
    return measure_each(cases, _KIND, device=device, options=options, progress=progress)


def prepare_gemm(case: GemmCase, *, device: Device, pools: Pools, sets: int) -> Prepared:
    """Lay out at most ``sets`` sets of operands; ``CannotMeasure`` where torch has no such product."""
    _refuse(case, device)
    batch = (case.batch,) if case.batch > 1 else ()
    a_size, b_size = case.batch * case.m * case.k, case.batch * case.k * case.n
    c_size = case.batch * case.m * case.n
    pools.reserve(("in", case.dtype, (a_size, b_size)), ("out", case.result_dtype, (c_size,)))
    in_bytes, out_bytes = TORCH_DTYPES[case.dtype].itemsize, TORCH_DTYPES[case.result_dtype].itemsize
    count = pools.rotation((a_size + b_size) * in_bytes + c_size * out_bytes, most=sets)

    def operand(rows: int, columns: int, *, column_major: bool) -> torch.Tensor:
        if column_major:
            return pools.take("in", case.dtype, (*batch, columns, rows)).transpose(-1, -2)
        return pools.take("in", case.dtype, (*batch, rows, columns))

    triples = [
        (
            # BLAS sees out^T = b^T a^T column by column: its first operand is our b.
            operand(case.m, case.k, column_major=case.layout[1] == "T"),
            operand(case.k, case.n, column_major=case.layout[0] == "T"),
            pools.take("out", case.result_dtype, (*batch, case.m, case.n)),
        )
        for _ in range(count)
    ]
    multiply = _multiplier(case, device)

    def call(index: int) -> None:
        multiply(*triples[index % count])

    def check() -> float:
        triples[0][2].fill_(float("nan"))
        call(0)
        return _sampled_error(*triples[0])

    return Prepared(call, check)


def _refuse(case: GemmCase, device: Device) -> None:
    refuse_unless(case.dtype in DTYPES, f"unknown dtype {case.dtype}")
    refuse_unless(case.layout in LAYOUTS, f"unknown layout {case.layout}")
    refuse_unless(min(case.m, case.n, case.k, case.batch) >= 1, "a size below 1")
    refuse_unless(max(case.m, case.n, case.k, case.batch) <= _LARGEST_SIDE, "a size beyond 32 bits")
    if case.dtype == "fp8":
        refuse_unless(case.batch == 1, "torch has no batched fp8 GEMM")
        refuse_unless(case.layout == "TN", "fp8 GEMMs are TN only: frameworks transpose first")
    natural = GemmCase(case.sweep, case.m, case.n, case.k, dtype=case.dtype).result_dtype
    widened = case.dtype in ("bf16", "fp16") and case.result_dtype == "fp32" and device.kind == "cuda"
    refuse_unless(
        case.result_dtype == natural or widened,
        f"torch has no {case.dtype} GEMM with {case.result_dtype} out",
    )


def _multiplier(
    case: GemmCase, device: Device
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]:
    if case.dtype == "fp8":
        # One scale per tensor, as float8 training scales; fast accumulation is what its forwards use.
        scale = torch.ones((), dtype=torch.float32, device=device.torch_device)

        def scaled(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> object:
            return torch._scaled_mm(
                a, b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=True, out=c
            )

        return scaled
    product = torch.bmm if case.batch > 1 else torch.mm
    if case.result_dtype == "fp32" and case.dtype in ("bf16", "fp16"):
        return lambda a, b, c: product(a, b, torch.float32, out=c)
    return lambda a, b, c: product(a, b, out=c)


def _sampled_error(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> float:
    """The error of some rows and columns, NaN where any element was not written or is NaN."""
    if bool(c.sum(dtype=torch.float32).isnan()):
        return float("nan")
    if c.dim() == 3:
        a, b, c = a[-1], b[-1], c[-1]
    rows, columns = _spread_over(c.shape[0]), _spread_over(c.shape[1])
    # Indexing fp8 is not implemented everywhere; widening the few rows first is exact.
    wanted = torch.stack([a[row].double() for row in rows]) @ torch.stack(
        [b[:, column].double() for column in columns], dim=1
    )
    found = torch.stack([c[row].double() for row in rows])[:, columns]
    return relative_error(found, wanted)


def _spread_over(size: int) -> list[int]:
    """First, last and some between: a tile that was left out or cut short shows."""
    return sorted({round(at * (size - 1) / (_SAMPLED - 1)) for at in range(_SAMPLED)})


def _row(case: GemmCase, timing: Timing, launched: CallKernels) -> GemmMeasurement:
    return GemmMeasurement(
        case.sweep, case.m, case.n, case.k, case.batch, case.dtype, case.result_dtype, case.layout,
        timing.time_us, timing.spread_frac, launched.names, launched.grid,
    )  # fmt: skip


@contextmanager
def tensor_cores(dtype: str) -> Iterator[None]:
    """Let fp32 products run as tf32 for ``tf32``, forbid it for ``fp32``, leave the rest as it is."""
    if dtype not in ("fp32", "tf32"):
        yield
        return
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):  # torch 2.9 and later
        name, value = "fp32_precision", "tf32" if dtype == "tf32" else "ieee"
        before: object = matmul.fp32_precision
    else:
        name, value = "allow_tf32", dtype == "tf32"  # type: ignore[assignment]
        before = matmul.allow_tf32
    setattr(matmul, name, value)
    try:
        yield
    finally:
        setattr(matmul, name, before)


_KIND = Kind("the GEMM", prepare_gemm, lambda case: tensor_cores(case.dtype), _TOLERANCE, _row)
