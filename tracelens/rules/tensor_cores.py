"""TL111: products that the tensor cores could compute, in a precision that keeps them off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracelens.numbers import count, listed, ms, percent, plural, sig, times
from tracelens.results import Estimate, GemmRow
from tracelens.rules.engine.claims import Claim, settle, total
from tracelens.rules.engine.facts import Outcome, StepFacts, absent
from tracelens.rules.engine.missing import for_shapes, sum_of
from tracelens.rules.engine.products import (
    at_stake_in,
    minus,
    moving_ms,
    predicted,
    saved,
    sizes_of,
    sum_ms,
)
from tracelens.rules.engine.proposals import WORTH_A_FINDING, cannot_judge, heuristic, took
from tracelens.rules.engine.simulated import pays
from tracelens.rules.engine.stakes import name
from tracelens.step.stalls import call_us_of

_HALF = ("bf16", "fp16")
#: Products with a vector, and kernels for one tiny side: nothing for a tensor core to do.
_VECTOR = frozenset({"gemv", "cublas_dot", "gemmk1", "gemmsn", "magma"})
#: Routers are kept in fp32 on purpose: Switch Transformers (arXiv 2101.03961, 2.4) trains unstably without.
_KEPT = frozenset({"moe.router"})
_ROWS_IN_FULL = 3
_NO_GPU = "the GPU is not known, and with it the types that its tensor cores take: name it with --gpu"
#: A flag is proposed before a change of type where it saves at least this share of what the other saves.
_MOST = 2 / 3
#: What a precision does to numbers.
_MEANING = {
    "tf32": (
        "TF32 rounds the operands of each product to 10 bits of mantissa and adds in fp32; tensors, range and"
        " checkpoints stay fp32. Products are then right to about 1 in 1000: leave it off for solvers and"
        " where fp32 results are compared bit by bit."
    ),
    "bf16": (
        "bf16 keeps 7 bits of mantissa and fp32's range: no loss scaling, but weights and optimizer states"
        " have to stay in fp32 (autocast does that). Compare the loss curve before you keep it."
    ),
    "fp16": (
        "fp16 keeps 10 bits of mantissa and a narrow range: train with torch.amp.GradScaler. Compare the loss"
        " curve before you keep it."
    ),
    "fp32": "fp32 keeps 7 decimal digits of fp64's 16: see that nothing here needs more.",
}
#: The same of a model that is only run: there is no optimizer and no loss.
_MEANING_OF_INFERENCE = _MEANING | {
    "bf16": (
        "bf16 keeps 7 bits of mantissa and fp32's range: cast the weights once when they are loaded. Compare"
        " the outputs before you keep it."
    ),
    "fp16": (
        "fp16 keeps 10 bits of mantissa and a narrow range: cast the weights once when they are loaded, and"
        " look for infinities. Compare the outputs before you keep it."
    ),
}
#: Bytes that a cast from fp32 to 16 bits moves per element.
_CAST_BYTES = 6


@dataclass(frozen=True, slots=True)
class _Case:
    """Products that one change of precision would move to the tensor cores, or to their faster side."""

    rows: list[GemmRow]
    now: str  # "fp32" | "fp64"
    targets: tuple[str, ...]  # in the order of preference
    mixed: bool  # the rest of the step runs in 16 bits already


@dataclass(frozen=True, slots=True)
class TensorCores:
    """Every product that tensor cores take runs on them."""

    id: str = "TL111"
    slug: str = "tensor-cores-unused"
    title: str = "Products on tensor cores"

    def check(self, facts: StepFacts, /) -> Outcome:
        """Judge the type and the unit of every product."""
        refusal = cannot_judge(facts)
        if refusal is not None:
            return refusal
        rows = [row for row in facts.gemms if row.kind == "gemm"]
        if not rows:
            return absent("Attention kernels were recognised, but no GEMM.")
        blind = _cannot_tell(facts, rows)
        if blind is not None:
            return blind
        cases = _cases(facts, rows)
        claims = [_claim(facts, case) for case in cases if case.targets]
        open_ = [row for case in cases if not case.targets for row in case.rows]
        if not claims and not facts.gpu.peak_tflops and sum_of(open_) >= WORTH_A_FINDING * sum_of(rows):
            return Outcome(
                "could_not_run",
                f"{took(open_, 'GEMM row', facts)} in {listed(sorted({row.dtype or '' for row in open_}))} on"
                f" CUDA cores, and {_NO_GPU}.",
            )
        return settle(self, facts=facts, claims=claims, passed=_passed(facts, rows))


def _cannot_tell(facts: StepFacts, rows: Sequence[GemmRow]) -> Outcome | None:
    """Where neither names nor types say what multiplied most of the time."""
    silent = [row for row in rows if _silent(row)]
    if sum(row.time_ms_per_step for row in silent) <= 0.5 * sum(row.time_ms_per_step for row in rows):
        return None
    if facts.gpu.name == "unknown":
        why = _NO_GPU
    elif all(row.m is None for row in silent):
        why = f"their shapes and types are not recorded: {for_shapes(silent)}"
    else:
        why = "their kernels' names do not say what multiplied their fp32 operands"
    return Outcome("could_not_run", f"{took(silent, 'GEMM row', facts)}, and {why}.")


def _silent(row: GemmRow) -> bool:
    """16-bit and narrower types run on tensor cores wherever a library has a choice."""
    narrow = row.dtype in (*_HALF, "fp8", "fp4", "int8")
    return row.tensor_core is None and not narrow and not _by_name(row)


def _by_name(row: GemmRow) -> bool:
    """Does the kernel's name alone say that it uses tensor cores?"""
    return row.kernel_tensor_core is True


def _passed(facts: StepFacts, rows: Sequence[GemmRow]) -> str:
    used = [row for row in rows if row.tensor_core == "used" or _by_name(row)]
    silent = [row for row in rows if row.tensor_core is None and not _by_name(row)]
    time = f"{sum_ms(used)} {facts.per_step}"
    text = f"{len(used)} of {plural(len(rows), 'GEMM row')} run on tensor cores ({time})"
    if silent:
        text += f"; the kernels of {len(silent)} ({sum_ms(silent)}) do not say, and nothing speaks against it"
    return text + "."


# --- what could move ---------------------------------------------------------------------------------


def _cases(facts: StepFacts, rows: Sequence[GemmRow]) -> list[_Case]:
    judged = [row for row in rows if row.component not in _KEPT]
    doubles = [row for row in judged if row.dtype == "fp64" and _is_matrix(row)]
    single = [row for row in judged if row.dtype == "fp32" and _is_matrix(row)]
    on_cuda_cores = [
        row for row in single if row.tensor_core == "eligible_unused" or _before_tf32(row, facts)
    ]
    half = [row for row in rows if row.dtype in (*_HALF, "fp8")]
    cases: list[_Case] = []
    if _is_mixed(rows):
        most = max(_HALF, key=lambda dtype: sum(row.time_ms_per_step for row in half if row.dtype == dtype))
        # An optimizer's own products are fp32 for a reason: a flag for those on CUDA cores is all.
        steps = [row for row in on_cuda_cores if row.component == "optimizer"]
        cases += [_Case(steps, "fp32", _known(facts, "tf32"), False)] if steps else []
        wide = [row for row in single if row in on_cuda_cores or row.math_dtype == "tf32"]
        wide = [row for row in wide if row.component != "optimizer"]
        for component in dict.fromkeys(row.component for row in wide):
            own = [row for row in wide if row.component == component]
            cases.append(_Case(own, "fp32", _known(facts, most), True))
    elif on_cuda_cores:
        cases.append(_Case(on_cuda_cores, "fp32", _known(facts, "tf32", "bf16", "fp16"), False))
    if doubles:
        cases.append(_Case(doubles, "fp64", _known(facts, "fp32"), False))
    return cases


def _is_mixed(rows: Sequence[GemmRow]) -> bool:
    """Do the blocks run in 16 or 8 bits? Theirs alone count: one fp32 product beside them can outlast all."""
    blocks = [row for row in rows if row.component.startswith(("attention.", "mlp.", "moe.experts"))] or rows
    half = [row for row in blocks if row.dtype in (*_HALF, "fp8")]
    return sum(row.time_ms_per_step for row in half) > 0.5 * sum(row.time_ms_per_step for row in blocks)


def _known(facts: StepFacts, *dtypes: str) -> tuple[str, ...]:
    """Those that this GPU has a peak for; fp16 only where there is no bf16."""
    has = [dtype for dtype in dtypes if dtype in facts.gpu.peak_tflops]
    return tuple(dtype for dtype in has if dtype != "fp16" or "bf16" not in has)


def _is_matrix(row: GemmRow) -> bool:
    return None not in (row.m, row.n, row.k) and min(row.m or 0, row.n or 0, row.k or 0) > 1 and (
        row.kernel_family not in _VECTOR
    )  # fmt: skip


def _before_tf32(row: GemmRow, facts: StepFacts) -> bool:
    """fp32 on a GPU whose tensor cores take fp16 only (Volta, Turing)."""
    peaks = facts.gpu.peak_tflops
    return row.tensor_core == "ineligible" and "tf32" not in peaks and "fp16" in peaks


# --- what it would save ------------------------------------------------------------------------------


def _claim(facts: StepFacts, case: _Case) -> Claim:
    savings = {target: _saving(facts, case, target) for target in case.targets}
    target = _preferred(savings)
    stakes = [at_stake_in(row, target, facts=facts) for row in case.rows]
    saving = savings[target]
    bound = sum(stake.bound_ms for stake in stakes)
    components = sorted({row.component for row in case.rows})
    return Claim(
        name=_name(case, target),
        title=_title(case, target, trains=facts.trains),
        components=components,
        bounds={stake.row.id: stake.bound_ms for stake in stakes},
        gemms=[row.id for row in case.rows],
        saving=saving if saving is not None else heuristic(bound),
        confidence="high" if case.mixed or target == "tf32" else "medium",
        effort="config" if target == "tf32" else "code",
        saw=_saw(facts, case, components),
        why=_why(facts, case, target),
        how=" ".join(
            _arithmetic(facts, case, target) if saving is not None else [stake.how for stake in stakes]
        ),
        fix=_fix(case, target, trains=facts.trains),
        caveats=_caveats(facts, case, target, savings),
        change={"precision": [case.now, target]},
        evidence={
            "kernel_families": sorted({row.kernel_family for row in case.rows}),
            "predicted_ms": {one: found.mid for one, found in savings.items() if found is not None},
        },
    )


def _preferred(savings: Mapping[str, Estimate | None]) -> str:
    """The first that pays and saves most of what the best does: a flag before 16 bits, if it gains enough."""
    paying = {
        one: saving.mid or 0.0 for one, saving in savings.items() if saving is not None and pays(saving)
    }
    best = max(paying.values(), default=0.0)
    return next((one for one, mid in paying.items() if mid >= _MOST * best), next(iter(savings)))


def _saving(facts: StepFacts, case: _Case, target: str) -> Estimate | None:
    """Measured minus predicted time in ``target``; None where a row has no prediction.

    Sixteen bits need casts: of a forward product's weight for certain, at worst of every operand.
    """
    parts = []
    for row in case.rows:
        found = predicted(row, facts=facts, dtype=target, out_dtype=_out(row, target))
        sizes = sizes_of(row)
        if isinstance(found, str) or sizes is None:
            return None
        m, n, k, batch = sizes
        weight = n * k * batch if row.role in (None, "forward") else 0
        rest = batch * (m * k + n * k) - weight
        casts = [
            row.calls_per_step * moving_ms(_CAST_BYTES * elements, facts=facts) if target in _HALF else 0.0
            for elements in (weight, rest)
        ]
        parts.append(minus(saved(row, found), mid_ms=casts[0], low_ms=casts[1]))
    return total(parts)


def _out(row: GemmRow, target: str) -> str | None:
    return row.out_dtype if target == "tf32" else None


def _arithmetic(facts: StepFacts, case: _Case, target: str) -> list[str]:
    rows = sorted(case.rows, key=lambda row: -row.time_ms_per_step)
    said = []
    for row in rows[:_ROWS_IN_FULL]:
        found = predicted(row, facts=facts, dtype=target, out_dtype=_out(row, target))
        if not isinstance(found, str):
            said.append(
                f"{name(row)}: {sig(call_us_of(row))} µs measured, {sig(found.time_us.mid)} µs predicted in"
                f" {target}, {times(count(row.calls_per_step))} {facts.per_step}."
            )
    rest = len(rows) - len(said)
    said += [f"{plural(rest, 'more row')} in the same way."] if rest else []
    if target in _HALF:
        said.append(
            f"Casting each forward weight costs {_CAST_BYTES} bytes an element and is taken off; at worst"
            " every operand is cast, which the low end of the range takes off as well."
        )
    return said


# --- words -------------------------------------------------------------------------------------------


def _name(case: _Case, target: str) -> str:
    if target == "tf32":
        return "TF32 for the fp32 products"
    return f"{target} for {_who(case)}"


def _who(case: _Case) -> str:
    if case.mixed:
        return f"the {case.rows[0].component} products"
    return f"the {case.now} products"


def _title(case: _Case, target: str, *, trains: bool) -> str:
    shapes = plural(len(case.rows), "GEMM shape")
    if case.mixed:
        return f"Run {_who(case)} in {target} like the rest of the step: they run in fp32"
    if target == "tf32":
        return f"Allow TF32 for matmuls: {shapes} in fp32 on CUDA cores"
    if case.now == "fp64":
        return f"Make fp32 of the fp64 tensors behind {shapes}"
    return f"{'Train' if trains else 'Run'} in {target}: {shapes} in fp32 on CUDA cores"


def _saw(facts: StepFacts, case: _Case, components: list[str]) -> str:
    known = [one for one in components if one not in ("other", "unattributed")]
    text = f"{took(case.rows, 'GEMM shape', facts)} in {case.now}"
    text += f", in {listed(known)}." if known else "."
    cuda = [row for row in case.rows if row.tensor_core != "used"]
    tf32 = [row for row in case.rows if row.math_dtype == "tf32"]
    both = bool(cuda) and bool(tf32)
    if case.now == "fp32" and cuda:
        text += f" {f'{len(cuda)} of them ran' if both else 'They ran'} on CUDA cores by the kernels' names."
    if tf32:
        text += f" {f'{len(tf32)} of them ran' if both else 'They ran'} on tensor cores as TF32, at half the"
        text += " rate of 16 bits."
    return text


def _why(facts: StepFacts, case: _Case, target: str) -> str:
    peaks = facts.gpu.peak_tflops
    now = peaks.get(case.now)
    rate = f"{facts.gpu.title}: {sig(peaks[target])} TFLOP/s dense in {target}"
    if now:
        rate += f", {sig(now)} in {case.now}"
    if case.mixed:
        return (
            "A product runs in fp32 in a step of 16-bit ones where it stands outside of autocast or one of"
            f" its operands is fp32 (.float(), an fp32 parameter). {rate}."
        )
    if case.now == "fp64":
        return (
            "fp64 is seldom meant: a NumPy array is float64, and a tensor made of it stays so and makes"
            f" fp64 of what it meets. {rate}."
        )
    if target == "tf32":
        return (
            "PyTorch computes fp32 matrix products on CUDA cores unless TF32 is allowed; it is off by"
            f" default since 1.12, while convolutions have it on. {rate}."
        )
    return f"Tensor cores take 16-bit operands; fp32 products leave them idle. {rate}."


def _fix(case: _Case, target: str, *, trains: bool) -> list[str]:
    if case.now == "fp64":
        return ["- torch.from_numpy(array)", "+ torch.from_numpy(array).float()"]
    if target == "tf32":
        return [
            '- torch.set_float32_matmul_precision("highest")  # the default',
            '+ torch.set_float32_matmul_precision("high")',
        ]
    dtype = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}[target]
    where = "forward and loss" if trains else "the model's call"
    return [f'+ with torch.autocast("cuda", dtype={dtype}):  # around {where}']


def _caveats(facts: StepFacts, case: _Case, target: str, savings: dict[str, Estimate | None]) -> list[str]:
    said = [_meaning(facts)[target]]
    if case.mixed and any(row.component == "logits" for row in case.rows):
        said.append(
            "Keep the loss itself in fp32: cast the logits after the product, not its operands before."
        )
    if not case.mixed and case.now == "fp32":
        said += _other_ways(facts, case, target, savings)
    on_weights = [row for row in case.rows if row.component == "optimizer"]
    if on_weights:
        said.append(
            f"{sum_ms(on_weights)} of it are the optimizer's own products: see that they converge in the"
            " lower precision (Muon's do in bf16; inverses and roots of Shampoo and K-FAC need more)."
        )
    if target in _HALF:
        said.append(
            "Kernels between the products move half the bytes in 16 bits, and attention can take the flash"
            " kernels; neither is counted."
        )
    return said


def _meaning(facts: StepFacts) -> Mapping[str, str]:
    return _MEANING if facts.trains else _MEANING_OF_INFERENCE


def _other_ways(facts: StepFacts, case: _Case, target: str, savings: dict[str, Estimate | None]) -> list[str]:
    """What the other precision would give: the choice is the user's."""
    said = []
    step_ms = facts.measured_step_ms or 1.0
    for other, saving in savings.items():
        if other == target or saving is None or saving.mid is None:
            continue
        if pays(saving):
            said.append(
                f"{other} instead of {target} is predicted to save {ms(saving.mid)} {facts.per_step}"
                f" ({percent(saving.mid / step_ms)}): {_meaning(facts)[other]}"
            )
        else:
            peaks = facts.gpu.peak_tflops
            said.append(
                f"{other} alone ({sig(peaks[other])} TFLOP/s dense on this GPU, fp32"
                f" {sig(peaks.get(case.now))}) is not predicted to save for certain: {ms(saving.mid)}"
                f" {facts.per_step}, low end {ms(saving.low)}."
            )
    return said
