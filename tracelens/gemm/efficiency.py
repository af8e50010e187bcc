"""How well a GEMM's shape fits the GPU: tiles, waves, alignment, tensor cores, roofline.

Pure functions of numbers; each returns None where the inputs do not decide the answer. The terms follow
NVIDIA's "Matrix Multiplication Background User's Guide" (tile and wave quantization) and arXiv 2401.14489.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any

from tracelens.gemm.dtypes import bytes_per_element
from tracelens.gemm.flops import bytes_moved, flops
from tracelens.gemm.kernel_names import KernelName
from tracelens.gemm.shapes import GemmShape, Shape
from tracelens.hardware import Gpu
from tracelens.results.gemm import Bound
from tracelens.results.identity import LEAST_US

#: Hopper GPCs hold at most 18 SMs (CUTLASS sm90_tile_scheduler.hpp, max_sm_per_gpc); a cluster lives in one.
_SMS_PER_GPC = 18
#: The best alignment that matters: 128 bytes, one L2 cache line (A100: 64 fp16 elements).
BEST_ALIGNMENT_BYTES = 128
#: First compute capability whose tensor cores take a type (fp64 only on the data-centre parts).
_TENSOR_CORE_SINCE = {
    "fp16": (7, 0),
    "int8": (7, 2),
    "bf16": (8, 0),
    "fp32": (8, 0),
    "tf32": (8, 0),
    "fp8": (8, 9),
}
_FP64_TENSOR_CORES = {(8, 0), (9, 0)}  # Blackwell: not settled
#: Kernels for products with a vector: nothing for a tensor core to do.
_VECTOR_FAMILIES = frozenset({"gemv", "cublas_dot", "gemmk1"})


def tiles(m: int, n: int, *, batch: int = 1, tile: tuple[int, int]) -> int:
    """Output tiles of ``tile`` = (tile_m, tile_n) that cover out[m, n], times ``batch``.

    B200, nvjet 144x128 (torch order: 128 along M, 144 along N) on M=888, N=2880; the launch grid says 140:

    >>> tiles(888, 2880, tile=(128, 144))
    140
    """
    return -(-m // tile[0]) * -(-n // tile[1]) * batch


def tile_eff(m: int, n: int, *, tile: tuple[int, int]) -> float | None:
    """Share of the tiles' area that is output, 0..1; None for an empty output.

    >>> round(tile_eff(141, 30522, tile=(128, 256)), 3)
    0.547
    """
    area = tiles(m, n, tile=tile) * tile[0] * tile[1]
    return m * n / area if area > 0 else None


def usable_sms(sms: int, *, cluster_size: int) -> tuple[int, int]:
    """SMs that clusters of this size can occupy at once, as (at least, at most).

    At most: all SMs in whole clusters. At least: CUTLASS's ``get_max_cta_occupancy``, which assumes GPCs
    of 18 SMs. Which SMs a chip has switched off decides between them, and no trace says: an H100 SXM ran
    120 CTAs of an nvjet kernel in clusters of 8, where CUTLASS's rule allows 112.

    >>> usable_sms(132, cluster_size=2), usable_sms(132, cluster_size=4), usable_sms(132, cluster_size=8)
    ((132, 132), (116, 132), (112, 128))
    """
    most = sms - sms % cluster_size
    gpcs, rest = divmod(sms, _SMS_PER_GPC)
    least = gpcs * (_SMS_PER_GPC - _SMS_PER_GPC % cluster_size) + rest - rest % cluster_size
    return min(least, most), most


def waves(tile_count: int, *, sms: int, cluster_size: int | None) -> int | None:
    """Rounds the GPU needs to run all tiles; None where the cluster size leaves it open.

    A round is one tile per SM, as NVIDIA's guide and arXiv 2401.14489 count: the number of tiles the busiest
    SM computes. How many CTAs fit at once (``resident_ctas``) says which start together, not how long the
    kernel takes, see ``wave_eff``.

    >>> waves(140, sms=148, cluster_size=2), waves(140, sms=132, cluster_size=1)
    (1, 2)
    >>> waves(120, sms=132, cluster_size=8) is None
    True
    """
    if cluster_size is None or cluster_size < 1 or sms < cluster_size or tile_count < 0:
        return None
    least, most = usable_sms(sms, cluster_size=cluster_size)
    slowest, fastest = (-(-tile_count // count) if count else None for count in (least, most))
    return fastest if slowest == fastest else None


def wave_eff(
    tile_count: int,
    *,
    sms: int,
    cluster_size: int | None,
    kernel: KernelName | None = None,
    split_k: int | None = 1,
) -> float | None:
    """Share of SM time in which an SM has a tile to compute, 0..1: tiles / (waves * SMs).

    Tiles are counted per SM, whatever number of CTAs an SM holds at once: together they share one set of
    tensor cores or FMA units, so an SM with two CTAs takes twice as long as one with one. Counting free
    slots instead is refuted by three GEMMs of a public H100 trace: 128 tiles of 128x128
    on 132 SMs that hold two CTAs each would leave 52 % of the GPU idle, but ran at 78 % of its fp32 peak.

    A persistent kernel (nvjet, sm90_xmma) launches fewer CTAs than it has tiles and deals the tiles out to
    them: the count is of tiles, never of the grid. Split-K makes ``split_k`` pieces of each tile. Stream-K
    cuts the work into equal shares per SM, so nothing idles: 1.0.

    None where quantization is not of this kind: vector kernels have no tiles, and with split-K of unknown
    factor (``split_k=None``) the number of pieces is not known.

    >>> round(wave_eff(140, sms=148, cluster_size=2), 3)
    0.946
    """
    if kernel is not None and kernel.family in _VECTOR_FAMILIES:
        return None
    if kernel is not None and kernel.scheduler == "stream_k":
        return 1.0 if tile_count > 0 else None
    if split_k is None:
        return None
    pieces = tile_count * split_k
    rounds = waves(pieces, sms=sms, cluster_size=cluster_size)
    return pieces / (rounds * sms) if rounds else None


def resident_ctas(
    *, threads: int, registers_per_thread: int, shared_memory_bytes: int, properties: Mapping[str, Any]
) -> int | None:
    """CTAs of a kernel that fit on one SM at once, from its launch and Kineto's ``deviceProperties`` entry.

    The smallest of what threads, registers and shared memory allow, as in the CUDA Programming Guide's
    section on hardware multithreading: registers are handed out per warp in units of 256, and each CTA
    costs 1 KiB of shared memory on top from compute capability 8.0 on. The limit on the number of CTAs
    per SM (16 to 32) is not in the properties and left out: it binds only for tiny CTAs. None when a
    property is missing.

    >>> rtx3060 = {"maxThreadsPerMultiprocessor": 1536, "regsPerMultiprocessor": 65536,
    ...     "sharedMemPerMultiprocessor": 102400, "computeMajor": 8}
    >>> resident_ctas(threads=128, registers_per_thread=122, shared_memory_bytes=12544, properties=rtx3060)
    4
    """
    limits = []
    keys = (
        "maxThreadsPerMultiprocessor",
        "regsPerMultiprocessor",
        "sharedMemPerMultiprocessor",
        "computeMajor",
    )
    for key in keys:
        value = properties.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            return None
        limits.append(value)
    max_threads, registers, shared_memory, major = limits
    if threads <= 0 or registers_per_thread < 0 or shared_memory_bytes < 0:
        return None
    warps = -(-threads // 32)
    fits = [max_threads // (warps * 32)]
    if registers_per_thread:
        fits.append(registers // (warps * -(-registers_per_thread * 32 // 256) * 256))
    reserved = 1024 if major >= 8 else 0
    if shared_memory_bytes + reserved:
        fits.append(shared_memory // (shared_memory_bytes + reserved))
    return max(min(fits), 1)  # it ran, so one fits


def leading_dimensions(shape: GemmShape, *, kernel: KernelName | None = None) -> tuple[dict[str, int], str]:
    """Contiguous-run lengths of a, b and out in elements, and how they were found.

    The second value is "strides" (recorded in the trace), "kernel name" (its layout letters, assuming
    no padding between rows) or "assumed contiguous" (row-major as the operator's dims read; a weight
    used as W^T then has the other dimension).

    >>> leading_dimensions(GemmShape(141, 30522, 512, 1, "bf16", "bf16", "TN", lda=512, ldb=512))
    ({'a': 512, 'b': 512, 'c': 30522}, 'strides')
    """
    c = shape.ldc if shape.ldc is not None else shape.n
    if shape.lda is not None and shape.ldb is not None:
        return {"a": shape.lda, "b": shape.ldb, "c": c}, "strides"
    if kernel is not None and kernel.layout is not None and kernel.kind == "gemm":
        # cuBLAS letters: the first is torch's b, the second torch's a; N = row-major in torch's view.
        b_row_major, a_row_major = (letter == "N" for letter in kernel.layout)
        a = shape.k if a_row_major else shape.m
        b = shape.n if b_row_major else shape.k
        return {"a": a, "b": b, "c": c}, "kernel name"
    return {"a": shape.k, "b": shape.n, "c": c}, "assumed contiguous"


def alignment_bytes(shape: GemmShape, *, kernel: KernelName | None = None) -> dict[str, int | None]:
    """Largest power of two in bytes that divides each operand's leading dimension, at most 128.

    Keys a, b, c (= out) as in ``GemmRow.alignment_bytes``; None for an unknown element type. In a batch the
    matrices must begin aligned, too: where its stride is recorded it counts like a leading dimension. The
    start of the first is taken as aligned: torch allocates at 512 bytes, and no trace holds the offset at
    which a slice begins. See ``leading_dimensions`` for where the dimensions come from.

    >>> alignment_bytes(GemmShape(141, 30522, 512, 1, "bf16", "bf16", "TN", lda=512, ldb=512))
    {'a': 128, 'b': 128, 'c': 4}
    """
    dimensions, _ = leading_dimensions(shape, kernel=kernel)
    dtypes = {"a": shape.dtype, "b": shape.dtype, "c": shape.out_dtype}
    steps = {"a": shape.batch_stride_a, "b": shape.batch_stride_b}
    return {
        name: _alignment(gcd(count, steps.get(name) or 0), dtypes[name]) for name, count in dimensions.items()
    }


def _alignment(elements: int, dtype: str | None) -> int | None:
    size = bytes_per_element(dtype)
    if size is None or elements <= 0:
        return None
    in_bytes = int(elements * size)
    return min(in_bytes & -in_bytes, BEST_ALIGNMENT_BYTES) if in_bytes else None


def tensor_core_state(shape: GemmShape, *, kernel: KernelName | None, gpu: Gpu) -> str | None:
    """ "used", "eligible_unused", "ineligible", or None where the kernel's name does not say.

    Eligible: the GPU's tensor cores take the type and neither M nor N nor K is 1. fp32 counts as
    eligible from Ampere on through tf32, which PyTorch uses only when allowed and which rounds the
    inputs to 10 bits. Alignment does not make a product ineligible: cuBLAS 11 and later have
    tensor-core kernels for every alignment, slower ones below 16 bytes.
    """
    if kernel is None or kernel.tensor_core is None:
        return None
    if kernel.tensor_core:
        return "used"
    if min(shape.m, shape.n, shape.k) <= 1 or kernel.family in _VECTOR_FAMILIES:
        return "ineligible"
    capability = gpu.compute_capability
    if shape.dtype is None or capability is None or gpu.vendor != "nvidia":
        return None
    if shape.dtype == "fp64":
        if capability in _FP64_TENSOR_CORES:
            return "eligible_unused"
        return "ineligible" if capability < (10, 0) else None
    since = _TENSOR_CORE_SINCE.get(shape.dtype)
    return "eligible_unused" if since is not None and capability >= since else "ineligible"


def math_dtype(shape: Shape, *, kernel: KernelName | None) -> str | None:
    """The type whose peak the call is judged against: "tf32" for fp32 data on tensor cores.

    fp32 data whose kernel does not say which unit multiplied it gives None, for tf32 peaks are 2.5 to 8
    times fp32's.

    >>> simt = KernelName("ampere_sgemm_128x64_tn", "gemm", "legacy", math_dtype="fp32")
    >>> math_dtype(GemmShape(1024, 1536, 512, 1, "fp32", "fp32", None), kernel=simt)
    'fp32'
    """
    if shape.dtype != "fp32":
        return shape.dtype
    return kernel.math_dtype if kernel is not None and kernel.math_dtype in ("fp32", "tf32") else None


def intensity(shape: Shape) -> float | None:
    """Operations per byte when each operand crosses memory once.

    >>> round(intensity(GemmShape(4096, 4096, 4096, 1, "bf16", "bf16", None)), 1)
    1365.3
    """
    operations, moved = flops(shape), bytes_moved(shape)
    return operations / moved if operations is not None and moved else None


def bound(
    shape: Shape, *, gpu: Gpu, kernel: KernelName | None = None, least_us: float = LEAST_US
) -> Bound | None:
    """What limits the call on this GPU by the roofline: "compute", "memory" or "latency".

    Compares operations / peak with bytes / bandwidth, both from the datasheet; where even the larger
    stays under ``least_us``, what a kernel takes at least, its fixed cost rules. None without peak or
    bandwidth.

    >>> from tracelens.hardware import find_gpu
    >>> h100 = find_gpu("NVIDIA H100 80GB HBM3")
    >>> [bound(GemmShape(m, 4096, 4096, 1, "bf16", "bf16", None), gpu=h100) for m in (1, 64, 8192)]
    ['memory', 'memory', 'compute']
    >>> bound(GemmShape(5, 768, 768, 1, "bf16", "bf16", None), gpu=h100)
    'latency'
    """
    operations, moved = flops(shape), bytes_moved(shape)
    peak, bandwidth = gpu.peak(math_dtype(shape, kernel=kernel)), gpu.bandwidth_gbps
    if operations is None or moved is None or peak is None or bandwidth is None:
        return None
    compute_us = operations / (peak * 1e6)
    memory_us = moved / (bandwidth * 1e3)
    if max(compute_us, memory_us) < least_us:
        return "latency"
    return "compute" if compute_us >= memory_us else "memory"
