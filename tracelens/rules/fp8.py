"""TL115: sizes that keep GEMMs of an fp8 model out of fp8."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.numbers import listed, ms, plural, round_up, sig
from tracelens.results import GemmRow
from tracelens.rules.engine.bounds import Bound, name
from tracelens.rules.engine.candidate import Candidate, absent, could_not_run, not_applicable
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import for_shapes
from tracelens.rules.engine.predictions import moving_ms
from tracelens.rules.engine.rows import gemms_of, sizes_of, took
from tracelens.rules.engine.rule import Rule
from tracelens.rules.evidence.dimensions import parameter_of
from tracelens.step.predicted import CONVERTED, SIXTEEN_BITS

#: torch._scaled_mm takes K and N as multiples of 16 only (16 bytes of fp8); torchao's converters leave
#: layers of other sizes in bf16 (torchao.float8, the module_filter_fn of its documentation).
MULTIPLE = 16
#: Bytes moved per element of an operand with a scale of its own: read for the largest value, read, written.
_CAST_BYTES = 2 + 2 + 1


class Fp8(Rule):
    """Sizes of an fp8 model in multiples of 16."""

    id = "TL115"
    slug = "fp8"
    title = "GEMMs that fit fp8"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Judge the linear layers' GEMMs on GPUs whose tensor cores take fp8."""
        if facts.gpu.name == "unknown":
            raise could_not_run(
                "The GPU is not known, and with it whether it computes in fp8: name it with --gpu."
            )
        if "fp8" not in facts.gpu.peak_tflops:
            raise not_applicable(
                f"No fp8 rate of the {facts.gpu.title} is known: fp8 needs Ada, Hopper or Blackwell."
            )
        linear = [row for row in gemms_of(facts) if row.component in CONVERTED]
        in_fp8 = [row for row in gemms_of(facts) if row.dtype == "fp8"]
        wide = [row for row in linear if row.dtype in SIXTEEN_BITS and row.n is not None]
        if not linear and not in_fp8:
            raise absent("No GEMM of a transformer's linear layers was recognised.")
        if not wide and not in_fp8:
            if all(row.dtype is None for row in linear):
                raise could_not_run(f"No linear layer's GEMM has a shape and a type: {for_shapes(linear)}.")
            raise not_applicable(
                "The linear layers compute in neither 16 nor 8 bits, and fp8 starts from 16."
            )
        converted = any(row.component in CONVERTED for row in in_fp8)
        left_out = [row for row in wide if _misfits(row)] if converted else []
        return [_candidate(facts, left_out)] if left_out else [], _passed(facts, in_fp8)


def _misfits(row: GemmRow) -> dict[str, int]:
    """Of K and N, and for a weight's gradient M, those that are no multiple of 16, by letter."""
    sizes = {"n": row.n, "k": row.k} | ({"m": row.m} if row.role == "wgrad" else {})
    return {letter: size for letter, size in sizes.items() if size is not None and size % MULTIPLE}


def _gain(facts: StepFacts, row: GemmRow) -> Bound:
    """The row's time above the least in fp8: operations at the dense peak, and casts of both operands."""
    peak, sizes = facts.gpu.peak_tflops.get("fp8"), sizes_of(row)
    if not peak or row.flops is None or sizes is None:
        return Bound(row, 0.0)
    m, n, k, batch = sizes
    casts = moving_ms(_CAST_BYTES * batch * (m * k + n * k), facts=facts)
    floor = row.calls_per_step * (row.flops / peak / 1e9 + casts)
    gain = max(0.0, row.time_ms_per_step - floor)
    return Bound(row, gain, f"{name(row)}: {ms(row.time_ms_per_step)} - {ms(floor)} = {ms(gain)}.")


def _passed(facts: StepFacts, in_fp8: Sequence[GemmRow]) -> str:
    if not in_fp8:
        return "No GEMM runs in fp8; TL124 says what would gain by it."
    return f"{took(in_fp8, facts)} in fp8; every K and N of them is a multiple of {MULTIPLE}."


def _candidate(facts: StepFacts, rows: Sequence[GemmRow]) -> Candidate:
    sizes = sorted({size for row in rows for size in _misfits(row).values()})
    names = sorted({one for row in rows for letter in _misfits(row) if (one := parameter_of(row, letter))})
    written = listed([str(size) for size in sizes])
    what = f"{listed(names)} ({written})" if names else written
    shapes = plural(len(rows), "GEMM shape")
    alone = len(names) == len(sizes) == 1
    return Candidate(
        name=f"multiples of {MULTIPLE} for fp8",
        title=f"Make {what} a multiple of {MULTIPLE}: fp8 leaves {shapes} in 16 bits",
        components=sorted({row.component for row in rows}),
        saw=(
            f"Other linear layers of this step run in fp8; {took(rows, facts)} in 16 bits, with"
            f" {written} among K and N."
        ),
        change={names[0]: [sizes[0], round_up(sizes[0], MULTIPLE)]} if alone else {},
        fix=[
            line
            for size in sizes
            for line in (f"- {size}", f"+ {round_up(size, MULTIPLE)}   # a multiple of 128 is better still")
        ],
        caveats=[
            "GEMMs reach a part of the fp8 peak, and casts are fused or not: the bound is generous.",
            "Whether these layers were left in 16 bits for their size or on purpose is not in the trace.",
        ],
        confidence="low",
        effort="retrain" if names else "code",
        bounds=[_gain(facts, row) for row in rows],
        bound_of=(
            f"the time in the trace minus the operations at the fp8 peak, {sig(facts.gpu.peak_tflops['fp8'])}"
            f" TFLOP/s, and {_CAST_BYTES} bytes per element for the casts of both operands"
        ),
        evidence={"sizes": sizes},
    )
