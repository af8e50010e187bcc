"""GEMMs in a precision that keeps them off the tensor cores, and what another one is predicted to save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tracelens.gemm import bytes_per_element
from tracelens.numbers import count, listed, ms, part_of, plural, times
from tracelens.results import Estimate, GemmRow, Span, total
from tracelens.rules.engine.bounds import Bound, bound_of_row, name
from tracelens.rules.engine.candidate import WORTH_A_FINDING, could_not_run
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import for_shapes
from tracelens.rules.engine.predictions import minus, moving_ms, saved
from tracelens.rules.engine.rows import sizes_of, time_of, took
from tracelens.rules.engine.simulated import pays
from tracelens.step.predicted import Scaled
from tracelens.step.retyped import retyped
from tracelens.step.stalls import call_us_of

HALF = ("bf16", "fp16")
#: GEMMs with a vector, and kernels for one tiny side: nothing for a tensor core to do.
_VECTOR = frozenset({"gemv", "cublas_dot", "gemmk1", "gemmsn", "magma"})
#: Routers are kept in fp32 on purpose: Switch Transformers (arXiv 2101.03961, 2.4) trains unstably without.
_KEPT = frozenset({"moe.router"})
_NO_GPU = "the GPU is not known, and with it the types that its tensor cores take: name it with --gpu"
#: A flag is proposed before a change of type where it saves at least this share of what the other saves.
_MOST = 2 / 3
#: Bytes that a cast from fp32 to 16 bits moves per element.
_CAST_BYTES = 6
_ROWS_IN_FULL = 3
#: CUDA cores reach 0.39 to 0.96 of their peak in fp32 GEMMs of 40 us and more with a tile for each SM (45 of
#: A100, H100, RTX 3060 and 4090 in public traces), but for thin ones. Those wait for memory: half the bytes
#: save half of their time, which is less than such a bound.
_SLOWEST, _LONG_US = 0.35, 40.0
#: Of the time: rows without a prediction beside those with one.
_OPEN = 0.1


@dataclass(frozen=True, slots=True)
class Precision:
    """GEMMs that one change of precision would move to the tensor cores, or to their faster side."""

    rows: list[GemmRow]
    now: Literal["fp32", "tf32", "fp64"]
    targets: tuple[str, ...]  # in the order of preference
    mixed: bool  # the rest of the step runs in the target

    @property
    def who(self) -> str:
        """Which GEMMs, in a sentence."""
        return f"the {self.rows[0].component if self.mixed else self.now} GEMMs"

    def why(self, target: str) -> str:
        """The part of the rule's page that says why it costs time."""
        if self.mixed or self.now != "fp32":
            return "beside 16 bits" if self.mixed else self.now
        return "fp32" if target == "tf32" else ""

    def beside(self, facts: StepFacts) -> list[str]:
        """That GEMMs of no shape run on CUDA cores as well, as a sentence or none."""
        more = [row for row in facts.gemms if _named_fp32(row) and row not in self.rows]
        if not more or self.mixed or self.now != "fp32":
            return []
        return [f"{took(more, facts)} on CUDA cores, too, by name: without shapes no saving is predicted."]

    def savings(self, facts: StepFacts) -> dict[str, Estimate | None]:
        """What each target saves; None where too many rows have no prediction."""
        return {target: self._saving(facts, target) for target in self.targets}

    def _saving(self, facts: StepFacts, target: str) -> Estimate | None:
        """Sixteen bits need casts: of a forward GEMM's weight for certain, at worst of every operand.

        Rows without a prediction count as unchanged while they are few.
        """
        parts, open_ = [], []
        for row in self.rows:
            found, sizes = _retyped(facts, row, target), sizes_of(row)
            if isinstance(found, str) or sizes is None:
                open_.append(row)
                continue
            m, n, k, batch = sizes
            weight = n * k * batch if row.role in (None, "forward") else 0
            rest = batch * (m * k + n * k) - weight
            cast = row.calls_per_step * _CAST_BYTES if target in HALF else 0.0
            sure, worst = (moving_ms(cast * elements, facts=facts) for elements in (weight, rest))
            then = Span(found.low, found.mid, found.high, found.basis)
            parts.append(minus(saved(row, call_us_of(row) * then), mid_ms=sure, low_ms=worst))
        return total(parts) if time_of(open_) <= _OPEN * time_of(self.rows) else None

    def bounds(self, facts: StepFacts, target: str) -> list[Bound]:
        """Each row's time above the least that the datasheet allows in ``target``."""
        found = []
        peaks = facts.gpu.peak_tflops
        for row in self.rows:
            now, then = bytes_per_element(row.dtype), bytes_per_element(target)
            moved = row.bytes * then / now if row.bytes is not None and now and then else None
            cap, why = None, ""
            least = _least_flops(row, facts) if row.flops is None else None
            if row.flops is None and peaks.get(self.now, 0.0) >= peaks[target]:
                cap, why = 0.0, f"(this GPU is no faster in {target} than in {self.now})"
            bound = bound_of_row(
                replace(row, math_dtype=target, bytes=moved, flops=least or row.flops),
                gpu=facts.gpu, cap_frac=cap, cap_why=why,
            )  # fmt: skip
            how = bound.how.removesuffix(".")
            how += f"; work as CUDA cores do it at {_SLOWEST:.0%} of their peak." if least else "."
            found.append(Bound(row, bound.ms, how))
        return found

    def arithmetic(self, facts: StepFacts, target: str) -> str:
        """How ``savings`` comes about, for the largest rows."""
        rows, said = sorted(self.rows, key=lambda row: -row.time_ms_per_step), []
        for row in rows[:_ROWS_IN_FULL]:
            found = _retyped(facts, row, target)
            if not isinstance(found, str):
                said.append(
                    f"{name(row)} in {target}: {found.how}, {times(count(row.calls_per_step))}"
                    f" {facts.per_step}."
                )
        left = [row for row in rows if isinstance(_retyped(facts, row, target), str)]
        if len(rows) > len(said) + len(left):
            said.append(f"{plural(len(rows) - len(said) - len(left), 'more row')} in the same way.")
        if left:
            said.append(f"{plural(len(left), 'row')} ({ms(time_of(left))}) without a prediction as they are.")
        if target in HALF:
            said.append(
                f"Casting each forward weight costs {_CAST_BYTES} bytes an element and is taken off; at worst"
                " every operand is cast, which the low end of the range takes off as well."
            )
        return " ".join(said)


def _retyped(facts: StepFacts, row: GemmRow, target: str) -> Scaled | str:
    sizes = sizes_of(row)
    if facts.step is None or sizes is None:
        return "the step cannot be simulated" if facts.step is None else "its sizes are not known"
    return retyped(row, sizes, target, step=facts.step)


def _least_flops(row: GemmRow, facts: StepFacts) -> float | None:
    """What a call on CUDA cores computed at least, by its time; None where its grid leaves SMs idle."""
    peak, sms, tiles = facts.gpu.peak_tflops.get("fp32"), facts.gpu.sms, row.batch or 1
    for span, tile in ((row.m_range, row.tile_m), (row.n_range, row.tile_n)):
        tiles *= -(-span[1] // tile) if span and tile else 0
    long = _named_fp32(row) and call_us_of(row) >= _LONG_US and sms and tiles >= sms
    return _SLOWEST * peak * call_us_of(row) * 1e6 if long and peak else None


def preferred(savings: Mapping[str, Estimate | None], bounds_ms: Mapping[str, float]) -> str:
    """The first that pays and saves most of what the best does: a flag before 16 bits, if it gains enough.

    Where none is predicted to, the first that has something to gain by its bound.
    """
    paying = {
        one: saving.mid
        for one, saving in savings.items()
        if saving is not None and saving.mid is not None and pays(saving)
    }
    best = max(paying.values(), default=0.0)
    gains = (one for one in savings if bounds_ms[one] > 0)
    return next((one for one, mid in paying.items() if mid >= _MOST * best), next(gains, next(iter(savings))))


def need_precisions(facts: StepFacts, rows: Sequence[GemmRow]) -> list[Precision]:
    """What could move; raises ``Answer`` where names, types or the GPU do not say it of most of the time."""
    _need_types(facts, rows)
    cases = _precisions(facts, rows)
    known = [case for case in cases if case.targets]
    open_ = [row for case in cases if not case.targets for row in case.rows]
    if not known and not facts.gpu.peak_tflops and time_of(open_) >= WORTH_A_FINDING * time_of(rows):
        types = listed(sorted({row.dtype or row.math_dtype or "" for row in open_}))
        why = _NO_GPU if facts.gpu.name == "unknown" else f"no peaks of {facts.gpu.title} are known"
        raise could_not_run(f"{took(open_, facts, 'GEMM row')} in {types} on CUDA cores, and {why}.")
    return known


def on_tensor_cores(facts: StepFacts, rows: Sequence[GemmRow]) -> str:
    """How many rows run on tensor cores, as a sentence."""
    used = [row for row in rows if row.tensor_core == "used" or _by_name(row)]
    silent = [row for row in rows if row.tensor_core is None and row.kernel_tensor_core is None]
    time = f"{ms(time_of(used))} {facts.per_step}"
    text = f"{part_of(len(used), len(rows), 'GEMM row', 'runs', 'run')} on tensor cores ({time})"
    if silent:
        whose = "the kernel's name does" if len(silent) == 1 else "the kernels' names do"
        text += f"; of {len(silent)} ({ms(time_of(silent))}) {whose} not say"
    left = [row for row in rows if row.dtype == "fp32" and row.tensor_core == "eligible_unused"]
    if left and _allows_tf32(rows):
        text += (
            f". TF32 is allowed, as others of them show: cuBLAS chose CUDA cores for {len(left)}"
            f" ({ms(time_of(left))})"
        )
    return f"{text}."


def _need_types(facts: StepFacts, rows: Sequence[GemmRow]) -> None:
    """Raises ``Answer`` where neither names nor types say what multiplied most of the time."""
    # 16-bit and narrower types run on tensor cores wherever a library has a choice.
    narrow = (*HALF, "fp8", "fp4", "int8")
    silent = [
        row
        for row in rows
        if row.tensor_core is None and row.dtype not in narrow and not _by_name(row) and not _named_fp32(row)
    ]
    if time_of(silent) <= 0.5 * time_of(rows):
        return
    alone = len(silent) == 1
    why = (
        f"{'its kernel does' if alone else 'their kernels do'} not say by name what multiplied fp32 operands"
    )
    if facts.gpu.name == "unknown":
        why = _NO_GPU
    elif all(row.m is None for row in silent):
        what = "its shape and type" if alone else "their shapes and types"
        why = f"{what} are not recorded: {for_shapes(silent)}"
    raise could_not_run(f"{took(silent, facts, 'GEMM row')}, and {why}.")


def _by_name(row: GemmRow) -> bool:
    """Does the kernel's name alone say that it uses tensor cores?"""
    return row.kernel_tensor_core is True


def _named_fp32(row: GemmRow) -> bool:
    """Does the name alone say fp32 on CUDA cores (``sgemm``), of a row without a shape?"""
    return row.kernel_tensor_core is False and row.dtype is None and row.math_dtype == "fp32"


def _allows_tf32(rows: Sequence[GemmRow]) -> bool:
    """Did a matmul run as TF32?"""
    return any(map(_runs_as_tf32, rows))


def _runs_as_tf32(row: GemmRow) -> bool:
    """Convolutions are none: they have a flag of their own."""
    return row.math_dtype == "tf32" and "conv" not in (row.op or "conv")


def _precisions(facts: StepFacts, rows: Sequence[GemmRow]) -> list[Precision]:
    """What could move; ``targets`` is empty where this GPU's types are not known."""
    judged = [row for row in rows if row.component not in _KEPT and _is_matrix(row)]
    doubles = [row for row in judged if row.dtype == "fp64"]
    single = [row for row in judged if row.dtype == "fp32"]
    on_cuda_cores = [
        row for row in single if row.tensor_core == "eligible_unused" or _before_tf32(row, facts)
    ]
    matrices = [row for row in rows if row.kernel_family not in _VECTOR]
    named = [row for row in matrices if _named_fp32(row)]
    cases: list[Precision] = []
    if time_of(named) > 0.5 * time_of(matrices):
        cases.append(Precision(named, "fp32", _known(facts, "tf32", "bf16", "fp16"), False))
    elif _is_mixed(rows):
        times = {dtype: time_of([row for row in rows if row.dtype == dtype]) for dtype in HALF}
        most = max(HALF, key=lambda dtype: times[dtype])
        # An optimizer's own GEMMs are fp32 for a reason: a flag for those on CUDA cores is all.
        steps = [row for row in on_cuda_cores if row.component == "optimizer"]
        cases += [Precision(steps, "fp32", _known(facts, "tf32"), False)] if steps else []
        wide = [row for row in single if row in on_cuda_cores or row.math_dtype == "tf32"]
        for component in dict.fromkeys(row.component for row in wide if row.component != "optimizer"):
            own = [row for row in wide if row.component == component]
            cases.append(Precision(own, "fp32", _known(facts, most), True))
    elif on_cuda_cores and not _allows_tf32(rows):
        cases.append(Precision(on_cuda_cores, "fp32", _known(facts, "tf32", "bf16", "fp16"), False))
    elif time_of(tf32 := [row for row in single if _runs_as_tf32(row)]) > 0.5 * time_of(rows):
        own = [row for row in tf32 if row.component != "optimizer"]
        cases += [Precision(own, "tf32", _known(facts, "bf16", "fp16"), False)] if own else []
    if doubles:
        cases.append(Precision(doubles, "fp64", _known(facts, "fp32"), False))
    return cases


def _is_mixed(rows: Sequence[GemmRow]) -> bool:
    """Do the blocks run in 16 or 8 bits? Theirs alone count: one fp32 GEMM beside them can outlast all."""
    blocks = [row for row in rows if row.component.startswith(("attention.", "mlp.", "moe.experts"))] or rows
    half = [row for row in blocks if row.dtype in (*HALF, "fp8")]
    return time_of(half) > 0.5 * time_of(blocks)


def _known(facts: StepFacts, *dtypes: str) -> tuple[str, ...]:
    """Those that this GPU has a peak for; fp16 only where there is no bf16."""
    has = [dtype for dtype in dtypes if dtype in facts.gpu.peak_tflops]
    return tuple(dtype for dtype in has if dtype != "fp16" or "bf16" not in has)


def _is_matrix(row: GemmRow) -> bool:
    sides = [side for side in (row.m, row.n, row.k) if side is not None]
    return len(sides) == 3 and min(sides) > 1 and row.kernel_family not in _VECTOR


def _before_tf32(row: GemmRow, facts: StepFacts) -> bool:
    """fp32 on a GPU whose tensor cores take fp16 only (Volta, Turing)."""
    peaks = facts.gpu.peak_tflops
    return row.tensor_core == "ineligible" and "tf32" not in peaks and "fp16" in peaks
