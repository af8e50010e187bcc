"""TL115: where fp8 fits, and the sizes that keep products of an fp8 model out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracelens.numbers import listed, ms, percent, plural, round_up, sig
from tracelens.results import GemmRow
from tracelens.rules.engine.claims import Claim, settle
from tracelens.rules.engine.dimensions import parameter_of
from tracelens.rules.engine.facts import Outcome, StepFacts, absent
from tracelens.rules.engine.missing import for_shapes
from tracelens.rules.engine.products import moving_ms, sizes_of, sum_ms
from tracelens.rules.engine.proposals import cannot_judge, heuristic, took
from tracelens.rules.engine.stakes import name

#: torch._scaled_mm takes K and N as multiples of 16 only (16 bytes of fp8); torchao's converters leave
#: layers of other sizes in bf16 (torchao.float8, the module_filter_fn of its documentation).
MULTIPLE = 16
_HALF = frozenset({"bf16", "fp16"})
#: Layers that recipes convert; the output layer and the embedding usually stay in 16 bits.
_LINEAR = frozenset({"attention.qkv", "attention.output", "mlp.up", "mlp.gate", "mlp.down"})
#: Bytes moved per element of an operand with a scale of its own: read for the largest value, read, written.
_CAST_BYTES = 2 + 2 + 1
_ROWS_IN_FULL = 3


@dataclass(frozen=True, slots=True)
class Fp8:
    """Sizes of an fp8 model in multiples of 16; elsewhere, what fp8 has room for."""

    id: str = "TL115"
    slug: str = "fp8"
    title: str = "Products that fit fp8"

    def check(self, facts: StepFacts, /) -> Outcome:
        """Judge the linear layers' products on GPUs whose tensor cores take fp8."""
        refusal = cannot_judge(facts)
        if refusal is not None:
            return refusal
        if facts.gpu.name == "unknown":
            return Outcome(
                "could_not_run",
                "The GPU is not known, and with it whether it computes in fp8: name it with --gpu.",
            )
        if "fp8" not in facts.gpu.peak_tflops:
            return Outcome(
                "not_applicable",
                f"No fp8 rate of the {facts.gpu.title} is known: fp8 needs Ada, Hopper or Blackwell.",
            )
        gemms = [row for row in facts.gemms if row.kind == "gemm"]
        linear = [row for row in gemms if row.component in _LINEAR]
        in_fp8 = [row for row in gemms if row.dtype == "fp8"]
        wide = [row for row in linear if row.dtype in _HALF and sizes_of(row) is not None]
        if not linear and not in_fp8:
            return absent("No GEMM of a transformer's linear layers was recognised.")
        if not wide and not in_fp8:
            if all(row.dtype is None for row in linear):
                return Outcome("could_not_run", f"No product has a shape and a type: {for_shapes(linear)}.")
            return Outcome(
                "not_applicable",
                "The linear layers compute in neither 16 nor 8 bits, and fp8 starts from 16.",
            )
        left_out = (
            [row for row in wide if not _fits(row)] if any(r.component in _LINEAR for r in in_fp8) else []
        )
        claims = [_claim(facts, left_out)] if left_out else []
        return settle(self, facts=facts, claims=claims, passed=_passed(facts, in_fp8, wide))


def _fits(row: GemmRow) -> bool:
    """Are K and N, and for a weight's gradient M, multiples of 16?"""
    return not _misfits(row)


def _misfits(row: GemmRow) -> dict[str, int]:
    """The dimensions that are none, by letter."""
    sizes = {"n": row.n, "k": row.k} | ({"m": row.m} if row.role == "wgrad" else {})
    return {letter: size for letter, size in sizes.items() if size is not None and size % MULTIPLE}


def _floor_ms(facts: StepFacts, row: GemmRow) -> float | None:
    """Least time per step in fp8: the operations at the dense peak, and the casts of both operands."""
    peak, sizes = facts.gpu.peak_tflops.get("fp8"), sizes_of(row)
    if not peak or row.flops is None or sizes is None:
        return None
    m, n, k, batch = sizes
    product = row.flops / peak / 1e9
    casts = moving_ms(_CAST_BYTES * batch * (m * k + n * k), facts=facts)
    return row.calls_per_step * (product + casts)


def _gain_ms(facts: StepFacts, row: GemmRow) -> float:
    floor = _floor_ms(facts, row)
    return max(0.0, row.time_ms_per_step - floor) if floor is not None else 0.0


def _passed(facts: StepFacts, in_fp8: Sequence[GemmRow], wide: Sequence[GemmRow]) -> str:
    """What runs in fp8, and what has room for it: an opportunity is no finding."""
    said = []
    if in_fp8:
        said.append(
            f"{took(in_fp8, 'GEMM shape', facts)} in fp8; every K and N of them is a multiple of {MULTIPLE}."
        )
    room = [row for row in wide if _fits(row) and row.bound == "compute" and _gain_ms(facts, row) > 0]
    gain = sum(_gain_ms(facts, row) for row in room)
    step_ms = facts.measured_step_ms or 1.0
    if gain <= 0:
        why = (
            "too small, limited by memory, or of sizes that are no multiple of 16"
            if wide
            else "none in 16 bits"
        )
        said.append(f"No linear layer's product has room for fp8 ({why}).")
        return " ".join(said)
    said.append(
        f"An opportunity, not a finding, and of low confidence: {plural(len(room), 'GEMM shape')} of linear"
        f" layers ({sum_ms(room)} {facts.per_step}) are large and fit fp8. At its dense peak,"
        f" {sig(facts.gpu.peak_tflops['fp8'])} TFLOP/s, with the casts of both operands, {ms(gain)} less is"
        f" the bound ({percent(gain / step_ms)} of the {facts.whole}); real fp8 reaches a part of it, and"
        f" accuracy has to be proven{' in training' if facts.trains else ''}."
    )
    return " ".join(said)


def _claim(facts: StepFacts, rows: Sequence[GemmRow]) -> Claim:
    sizes = sorted({size for row in rows for size in _misfits(row).values()})
    gains = {row.id: _gain_ms(facts, row) for row in rows}
    names = sorted(
        {one for row in rows for letter in _misfits(row) if (one := parameter_of(row, letter)) is not None}
    )
    shapes = plural(len(rows), "GEMM shape")
    what = f"{listed(names)} ({listed([str(size) for size in sizes])})" if names else listed(
        [str(size) for size in sizes]
    )  # fmt: skip
    change: dict[str, list[int | float | str]] = (
        {names[0]: [sizes[0], round_up(sizes[0], MULTIPLE)]} if len(names) == len(sizes) == 1 else {}
    )
    return Claim(
        name=f"multiples of {MULTIPLE} for fp8",
        title=f"Make {what} a multiple of {MULTIPLE}: fp8 leaves {shapes} in 16 bits",
        components=sorted({row.component for row in rows}),
        bounds=gains,
        gemms=[row.id for row in rows],
        saving=heuristic(sum(gains.values())),
        confidence="low",
        effort="retrain" if names else "code",
        saw=(
            f"Other linear layers of this step run in fp8; {took(rows, 'GEMM shape', facts)} in 16 bits, with"
            f" {listed([str(size) for size in sizes])} among K and N."
        ),
        why=(
            f"torch._scaled_mm takes K and N as multiples of {MULTIPLE} alone, and fp8 recipes leave layers"
            " of other sizes in 16 bits without a word."
        ),
        how=" ".join(_arithmetic(facts, rows)),
        fix=[
            line
            for size in sizes
            for line in (f"- {size}", f"+ {round_up(size, MULTIPLE)}   # a multiple of 128 is better still")
        ],
        caveats=[
            (
                "Products in fp8 reach a part of the peak, and their casts can be fused into other kernels"
                " or not: the bound is generous."
            ),
            "Whether these layers were left in 16 bits for their size or on purpose is not in the trace.",
        ],
        change=change,
        evidence={"sizes": sizes},
        parameter_delta=None,
    )


def _arithmetic(facts: StepFacts, rows: Sequence[GemmRow]) -> list[str]:
    peak = facts.gpu.peak_tflops["fp8"]
    said = []
    for row in sorted(rows, key=lambda row: -_gain_ms(facts, row))[:_ROWS_IN_FULL]:
        said.append(
            f"{name(row)}: {ms(row.time_ms_per_step)}, less {ms(_floor_ms(facts, row))}"
            f" (operations at {sig(peak)} TFLOP/s and {_CAST_BYTES} bytes per element for the casts of both"
            f" operands) = {ms(_gain_ms(facts, row))}."
        )
    rest = len(rows) - len(said)
    return [*said, *([f"{plural(rest, 'more row')} by the same formula."] if rest else [])]
