"""Products: operands as training has them, results checked, what torch lacks refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch

from tests.measure.fakes import HASTY
from tests.said import Listener
from tracelens.errors import UsageError
from tracelens.gemm.shapes import GemmShape, shape_of
from tracelens.measure import CaseOutcome, GemmCase, measure_gemms, open_device
from tracelens.measure.devices import CpuDevice, context_lost
from tracelens.measure.gemms import prepare_gemm, tensor_cores
from tracelens.measure.operands import ALIGNMENT_BYTES, Pools

Calls = list[tuple[torch.Tensor, torch.Tensor]]
KINETO = {torch.bfloat16: "c10::BFloat16", torch.float32: "float", torch.float8_e4m3fn: "c10::Float8_e4m3fn"}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def outcomes(*cases: GemmCase) -> list[CaseOutcome]:
    heard: list[CaseOutcome] = []
    list(measure_gemms(cases, device=CpuDevice(), options=HASTY, progress=heard.append))
    return heard


def watched(monkeypatch: pytest.MonkeyPatch, name: str) -> Calls:
    """The operands of every call of ``torch.<name>``."""
    seen: Calls = []
    real: Callable[..., torch.Tensor] = getattr(torch, name)

    def watch(a: torch.Tensor, b: torch.Tensor, **options: object) -> torch.Tensor:
        seen.append((a, b))
        return real(a, b, **options)

    monkeypatch.setattr(torch, name, watch)
    return seen


@pytest.mark.parametrize(
    ("dtype", "layout", "batch"),
    [*product(("bf16", "fp16", "fp32", "tf32"), ("TN", "NN", "NT", "TT"), (1, 3)), ("fp8", "TN", 1)],
)
def test_every_kind_of_product_is_measured(dtype: str, layout: str, batch: int) -> None:
    case = GemmCase("x", 33, 48, 64, batch, dtype, layout)
    (row,) = measure_gemms([case], device=CpuDevice(), options=HASTY)
    assert (row.m, row.n, row.k, row.batch, row.layout) == (33, 48, 64, batch, layout)
    assert row.time_us > 0
    assert row.out_dtype == {"fp8": "bf16", "tf32": "fp32"}.get(dtype, dtype)
    assert row.kernels == () and row.grid is None  # a CPU has none


@pytest.mark.parametrize(("layout", "batch"), list(product(("TN", "NN", "NT", "TT"), (1, 3))))
def test_the_analyzer_reads_the_measured_call_as_the_same_shape(
    monkeypatch: pytest.MonkeyPatch, layout: str, batch: int
) -> None:
    name = "bmm" if batch > 1 else "mm"
    calls = watched(monkeypatch, name)
    case = GemmCase("x", 33, 48, 64, batch, "bf16", layout)
    outcomes(case)
    for a, b in calls:
        assert a.data_ptr() % ALIGNMENT_BYTES == b.data_ptr() % ALIGNMENT_BYTES
        read = shape_of(
            f"aten::{name}",
            [list(a.shape), list(b.shape)],
            [KINETO[a.dtype], KINETO[b.dtype]],
            [list(a.stride()), list(b.stride())],
            None,
        )
        assert isinstance(read, GemmShape)
        assert (read.m, read.n, read.k, read.batch, read.layout) == (33, 48, 64, batch, layout)
        natural = {"TN": (64, 64), "NN": (64, 48), "NT": (33, 48), "TT": (33, 64)}[layout]
        assert (read.lda, read.ldb) == natural


def test_operands_are_random_and_rotate_beyond_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    device = CpuDevice(l2_bytes=100_000)
    calls = watched(monkeypatch, "mm")
    prepared = prepare_gemm(GemmCase("x", 64, 64, 64), device=device, pools=Pools(device), sets=128)
    for index in range(26):
        prepared.call(index)
    places = {a.data_ptr() for a, _ in calls} | {b.data_ptr() for _, b in calls}
    # 24.6 kB a set: thirteen of them are three times the cache, two tensors each
    assert len(places) == 26
    assert calls[0][0].data_ptr() == calls[13][0].data_ptr()
    values = torch.cat([a.flatten() for a, _ in calls[:13]]).float()
    assert abs(float(values.mean())) < 0.05 and abs(float(values.std()) - 1) < 0.05


def test_operands_of_one_product_never_overlap() -> None:
    device = CpuDevice(l2_bytes=1)  # the pool is as small as can be
    pools = Pools(device)
    pools.reserve(("in", "fp8", (1000, 3000)))
    a, b = pools.take("in", "fp8", (10, 100)), pools.take("in", "fp8", (30, 100))
    assert a.data_ptr() + a.numel() <= b.data_ptr()
    assert len(set(a.float().flatten().tolist())) > 50


@pytest.mark.parametrize(
    "broken",
    [
        lambda a, b, out: out.copy_((a.float() @ b.float()) * 1.1),  # wrong
        lambda a, b, out: out[:-1].copy_((a @ b)[:-1]),  # the last row is not written
        lambda a, b, out: out.fill_(float("nan")),
        lambda a, b, out: out.zero_(),
    ],
)
def test_a_wrong_result_has_no_time(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]
) -> None:
    monkeypatch.setattr(torch, "mm", lambda a, b, out: broken(a, b, out))
    (outcome,) = outcomes(GemmCase("x", 33, 48, 64))
    assert outcome.time_us is None
    assert outcome.note is not None and "wrong" in outcome.note


def test_fp32_that_ran_as_tf32_is_no_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        # ten explicit bits, as tensor cores keep of fp32
        a, b = ((one.view(torch.int32) & ~0x1FFF).view(torch.float32) for one in (a, b))
        return out.copy_(a @ b)

    monkeypatch.setattr(torch, "mm", rounded)
    fp32, tf32 = outcomes(GemmCase("x", 33, 48, 64, dtype="fp32"), GemmCase("x", 33, 48, 64, dtype="tf32"))
    assert fp32.time_us is None and tf32.time_us is not None


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (GemmCase("x", 32, 32, 32, batch=2, dtype="fp8"), "no batched fp8"),
        (GemmCase("x", 32, 32, 32, dtype="fp8", layout="NT"), "TN only"),
        (GemmCase("x", 32, 32, 0), "below 1"),
        (GemmCase("x", 32, 32, 2**31), "32 bits"),
        (GemmCase("x", 32, 32, 32, dtype="int4"), "unknown dtype"),
        (GemmCase("x", 32, 32, 32, layout="XY"), "unknown layout"),
        (GemmCase("x", 32, 32, 32, dtype="fp8", out_dtype="fp16"), "fp16 out"),
    ],
)
def test_what_torch_lacks_is_refused_and_the_next_case_measured(case: GemmCase, why: str) -> None:
    refused, measured = outcomes(case, GemmCase("x", 32, 32, 32))
    assert refused.time_us is None and refused.note is not None and why in refused.note
    assert measured.time_us is not None


def test_too_little_memory_skips_the_shape_only(monkeypatch: pytest.MonkeyPatch, said: Listener) -> None:
    real: Callable[..., torch.Tensor] = torch.empty

    def small(size: int, **options: object) -> torch.Tensor:
        if size > 10**6:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 94 GiB.\nGPU 0 has ...")
        return real(size, **options)

    monkeypatch.setattr(torch, "empty", small)
    large, next_one = outcomes(GemmCase("x", 4096, 4096, 64), GemmCase("x", 32, 32, 32))
    assert large.note is not None
    assert next_one.time_us is not None
    said(large.note)


def test_a_lost_context_ends_the_run_and_a_missing_kernel_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul`")
    lost = RuntimeError("CUDA error: an illegal memory access was encountered")
    assert context_lost(lost) and not context_lost(missing)

    def refusing(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        raise missing if a.shape[0] == 33 else lost

    monkeypatch.setattr(torch, "mm", refusing)
    (outcome,) = outcomes(GemmCase("x", 33, 48, 64))
    assert outcome.note is not None and "NOT_SUPPORTED" in outcome.note
    with pytest.raises(RuntimeError, match="illegal memory access"):
        outcomes(GemmCase("x", 32, 48, 64))


def test_precision_flags_are_put_back() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    for dtype, during in (("tf32", "tf32"), ("fp32", "ieee"), ("bf16", before)):
        with tensor_cores(dtype):
            assert matmul.fp32_precision == during
        assert matmul.fp32_precision == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_one_line_says_so() -> None:
    with pytest.raises(UsageError, match="no NVIDIA GPU"):
        open_device()
