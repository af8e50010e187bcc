"""What the stages that time one call per shape share: the device, chunks of shapes, tables, checks.

Shapes are measured in chunks, for kernel names come from one profiler run per chunk: a kill costs one chunk.
"""

from __future__ import annotations

import hashlib
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.gpu import expected
from benchmarks.gpu.predicted import of_calls
from benchmarks.gpu.stage import Item, Row, Setting
from tracelens.gemm.kernel_names import KernelName, parse_kernel_name
from tracelens.hardware.gpu import Gpu, list_gpus
from tracelens.hardware.measurements import AttentionMeasurement, GemmMeasurement, rows_of, table_of
from tracelens.measure.cases import TRY, AttentionCase, GemmCase, MeasureOptions

CHUNK = 96
#: Three hundredths of a second settle a median within 0.3 % on an idle GPU; drawn curves and the ceilings
#: may take longer.
QUICK = MeasureOptions(seconds_per_case=0.03, profile_every=CHUNK)
CAREFUL = MeasureOptions(seconds_per_case=0.08, min_batches=9, profile_every=CHUNK)


# --- the device ---------------------------------------------------------------------------------------


def gpu_of(setting: Setting) -> Gpu:
    """The table's entry of the GPU that is measured or planned for; an H200 where it is not in the table."""
    key = re.sub(r"-\d+sms$", "", setting.gpu)
    known = {gpu.name: gpu for gpu in list_gpus()}
    return known.get(key, known["h200"])


def sms_of(setting: Setting) -> int:
    """Multiprocessors: of the device itself, else as its key says ("h200-60sms"), else of the table."""
    if setting.kind == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count)
    sliced = re.search(r"-(\d+)sms$", setting.gpu)
    return int(sliced[1]) if sliced else gpu_of(setting).sms or 132


def open_bench(setting: Setting) -> Any:
    """The device of tracelens.measure, one for all items of a stage."""
    from tracelens.measure import open_device

    if "device" not in setting.store:
        setting.store["device"] = open_device("cuda" if setting.kind == "cuda" else "cpu")
    return setting.store["device"]


# --- items --------------------------------------------------------------------------------------------


def gemm_items(
    cases_of: Callable[[int], Sequence[GemmCase]], options: MeasureOptions, setting: Setting
) -> list[Item]:
    """Chunks of the products that ``cases_of`` names for this number of multiprocessors.

    In a dry run one small product of each kind.
    """
    cases = cases_of(sms_of(setting))
    return gemm_chunks(toy_gemms(cases) if setting.dry_run else cases, options, setting)


def gemm_chunks(cases: Sequence[GemmCase], options: MeasureOptions, setting: Setting) -> list[Item]:
    gpu = gpu_of(setting)

    def seconds(case: GemmCase) -> float:
        return expected.case_s(expected.gemm_us(case, gpu), seconds_per_case=options.seconds_per_case)

    return chunks(cases, seconds)


def chunks(cases: Sequence[Any], seconds: Callable[[Any], float], size: int = CHUNK) -> list[Item]:
    """Items of ``size`` cases. The key holds a digest of them, so that it never stands for other cases."""
    found = []
    for at in range(0, len(cases), size):
        part = tuple(cases[at : at + size])
        digest = hashlib.sha256(repr(part).encode()).hexdigest()[:8]
        found.append(Item(f"{at // size:03d}-{digest}", sum(map(seconds, part)), part))
    return found


def toy_gemms(cases: Sequence[GemmCase]) -> list[GemmCase]:
    """One small product of every sweep, type and layout."""
    kinds = {(case.sweep, case.dtype, case.layout): case for case in cases}
    return [
        replace(case, m=16 + case.m % 16, n=16 + case.n % 16, k=32, batch=min(case.batch, 2))
        for case in kinds.values()
    ]


# --- measuring ----------------------------------------------------------------------------------------


def measure(options: MeasureOptions, setting: Setting, item: Item) -> Row:
    """One chunk: a table of measurements, and why the rest could not be measured."""
    from tracelens.measure import measure_attention, measure_gemms

    unmeasured: dict[str, str] = {}

    def heard(outcome: Any) -> None:
        if outcome.note is not None:
            unmeasured[str(outcome.case)] = outcome.note

    run: Any = measure_attention if isinstance(item.spec[0], AttentionCase) else measure_gemms
    device = open_bench(setting)
    chosen = replace(TRY, profile_every=CHUNK) if setting.dry_run else options
    found = [
        replace(one, time_us=round(one.time_us, 4), spread_frac=_rounded(one.spread_frac))
        for one in run(item.spec, device=device, options=chosen, progress=heard)
    ]
    spreads = [one.spread_frac for one in found if one.spread_frac is not None]
    return {
        "brief": f"{len(found)} shapes, {len(unmeasured)} not possible",
        "spread_frac": statistics.median(spreads) if spreads else None,
        "table": table_of(found),
        "unmeasured": unmeasured,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def predict(setting: Setting, item: Item) -> dict[str, Any] | None:
    """Every call of the chunk, before it is timed."""
    return of_calls(setting, item.spec)


def measured_of(data: Mapping[str, Any], kind: type[Any]) -> tuple[Any, ...]:
    """The measurements in a row, or in a stage's data."""
    return rows_of(data["table"], kind)


def joined(kind: type[Any], setting: Setting, rows: Sequence[Row]) -> dict[str, Any]:
    """All chunks as one table."""
    found = [one for row in rows for one in measured_of(row, kind)]
    unmeasured = {case: why for row in rows for case, why in row["unmeasured"].items()}
    return {
        "kind": setting.kind,
        "shapes": len(found),
        "by_sweep": dict(Counter(one.sweep for one in found)),
        "table": table_of(found),
        "unmeasured": unmeasured,
    }


# --- checks -------------------------------------------------------------------------------------------


#: What the profiler lost (a chunk of shapes at a time) is noted by its empty name: the times hold without it.
#: A profiler that does not work is another matter.
_MOST_NAMELESS = 0.5
#: Of the GEMMs of one type; a name that is read wrong must not cost a sweep, a wrong setting hits all.
_MOST_WRONG_TYPE = 0.2


def check_products(data: Mapping[str, Any]) -> list[str]:
    """Kernel names, and that each product ran in the type it was asked for."""
    return _check(data, GemmMeasurement, most_unmeasured=0.02)


def check_attention(data: Mapping[str, Any]) -> list[str]:
    # cuDNN does not take every head dimension, and not every grouping: those have their reason
    return _check(data, AttentionMeasurement, most_unmeasured=0.6)


def _check(data: Mapping[str, Any], kind: type[Any], *, most_unmeasured: float) -> list[str]:
    wrong = []
    found = measured_of(data, kind)
    total = len(found) + len(data["unmeasured"])
    if not found:
        return ["nothing could be measured"]
    if data["kind"] != "cuda":
        return []  # no kernels on a CPU, and fewer products
    if len(data["unmeasured"]) > most_unmeasured * total:
        case, why = next(iter(data["unmeasured"].items()))
        wrong.append(f"{len(data['unmeasured'])} of {total} shapes could not be measured: {case}: {why}")
    nameless = sum(not one.kernels for one in found)
    if nameless > _MOST_NAMELESS * total:
        wrong.append(f"{nameless} of {total} shapes are without kernel names")
    strange = [one for one in found if isinstance(one, GemmMeasurement) and wrong_type(one)]
    for dtype, count in Counter(one.dtype for one in strange).items():
        if count > _MOST_WRONG_TYPE * sum(one.dtype == dtype for one in found):
            ran = next(one.kernels[0] for one in strange if one.dtype == dtype)
            wrong.append(f"{count} products ran in another type: {dtype} was asked for, {ran} ran")
    return wrong


def wrong_type(one: GemmMeasurement) -> bool:
    """Whether a kernel's name contradicts the type that was asked for; a name that is silent does not.

    >>> bf16 = GemmMeasurement("x", 8, 8, 8, 1, "bf16", "bf16", "TN", 1.0, None, ("ampere_sgemm_128x64_tn",))
    >>> wrong_type(bf16)
    True
    """
    return any(_contradicts(one.dtype, parsed) for name in one.kernels if (parsed := parse_kernel_name(name)))


def _contradicts(dtype: str, kernel: KernelName) -> bool:
    if kernel.kind != "gemm":
        return False
    if dtype == "tf32":  # a library without a tf32 kernel for a shape takes a plain one: a finding, no fault
        return kernel.in_dtype in ("bf16", "fp16", "fp8")
    if dtype == "fp32":
        return kernel.tensor_core is True
    if kernel.math_dtype == "tf32":
        return True
    return kernel.in_dtype is not None and kernel.in_dtype != dtype
