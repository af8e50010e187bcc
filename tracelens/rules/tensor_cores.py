"""TL111: GEMMs that the tensor cores could compute, in a precision that keeps them off."""

from __future__ import annotations

from collections.abc import Mapping

from tracelens.numbers import listed, ms, sig
from tracelens.results import Estimate
from tracelens.rules.engine.candidate import Candidate, absent
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.rows import counted, gemms_of, of_step, time_of, took
from tracelens.rules.engine.rule import Rule
from tracelens.rules.engine.simulated import pays
from tracelens.rules.evidence.precision import HALF, Precision, need_precisions, on_tensor_cores, preferred

#: What a precision does to numbers.
_MEANING = {
    "tf32": "TF32 rounds the operands of each GEMM to 10 bits of mantissa and adds in fp32; tensors, range"
    " and checkpoints stay fp32. GEMMs are then right to about 1 in 1000: leave it off for solvers and"
    " where fp32 results are compared bit by bit.",
    "bf16": "bf16 keeps 7 bits of mantissa and fp32's range: {bf16}",
    "fp16": "fp16 keeps 10 bits of mantissa and a narrow range: {fp16}",
    "fp32": "fp32 keeps 7 decimal digits of fp64's 16: see that nothing here needs more.",
}
_TRAINED = {
    "bf16": "no loss scaling, but weights and optimizer states have to stay in fp32 (autocast does that)."
    " Compare the loss curve before you keep it.",
    "fp16": "train with torch.amp.GradScaler. Compare the loss curve before you keep it.",
}
#: The same of a model that is only run: there is no optimizer and no loss.
_RUN = {
    "bf16": "cast the weights once when they are loaded. Compare the outputs before you keep it.",
    "fp16": "cast the weights once when they are loaded, and look for infinities. Compare the outputs before"
    " you keep it.",
}


class TensorCores(Rule):
    """Every GEMM that tensor cores take runs on them."""

    id = "TL111"
    slug = "tensor-cores-unused"
    title = "GEMMs on tensor cores"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Judge the type and the unit of every GEMM."""
        rows = gemms_of(facts)
        if not rows:
            raise absent("Attention kernels were recognised, but no GEMM.")
        candidates = [_candidate(facts, case) for case in need_precisions(facts, rows)]
        return candidates, on_tensor_cores(facts, rows)


def _candidate(facts: StepFacts, case: Precision) -> Candidate:
    savings = case.savings(facts)
    target = preferred(savings, {one: sum(bound.ms for bound in case.bounds(facts, one)) for one in savings})
    saving = savings[target]
    components = sorted({row.component for row in case.rows})
    return Candidate(
        name="TF32 for the fp32 GEMMs" if target == "tf32" else f"{target} for {case.who}",
        title=_title(case, target, trains=facts.trains),
        components=components,
        saw=_saw(facts, case, target, components),
        why=case.why(target),
        change={"precision": [case.now, target]},
        fix=_fix(case, target, trains=facts.trains),
        caveats=_caveats(facts, case, target, savings),
        confidence="high" if case.mixed or target == "tf32" else "medium",
        effort="config" if target == "tf32" else "code",
        bounds=case.bounds(facts, target),
        counts="gemms" if target in HALF and not case.mixed else "all",
        saving=saving,
        how=case.arithmetic(facts, target) if saving is not None else "",
        evidence={
            "kernel_families": sorted({row.kernel_family for row in case.rows}),
            "predicted_ms": {one: found.mid for one, found in savings.items() if found is not None},
        },
        parameter_delta=0,
    )


def _title(case: Precision, target: str, *, trains: bool) -> str:
    shapes = counted(case.rows)
    if case.mixed:
        return f"Run {case.who} in {target} like the rest of the step: they run in fp32"
    if target == "tf32":
        return f"Allow TF32 for matmuls: {shapes} in fp32 on CUDA cores"
    if case.now == "fp64":
        return f"Make fp32 of the fp64 tensors behind {shapes}"
    how = "as TF32, at half the rate" if case.now == "tf32" else "in fp32 on CUDA cores"
    return f"{'Train' if trains else 'Run'} in {target}: {shapes} {how}"


def _saw(facts: StepFacts, case: Precision, target: str, components: list[str]) -> str:
    known = [one for one in components if one not in ("other", "unattributed")]
    text = f"{took(case.rows, facts)} in {case.now}{f', in {listed(known)}' if known else ''}."
    cuda = [row for row in case.rows if row.tensor_core != "used"]
    tf32 = [row for row in case.rows if row.math_dtype == "tf32"]
    many = {id(rows): f"{len(rows)} of them" if cuda and tf32 else "They" for rows in (cuda, tf32)}
    if case.now == "fp32" and cuda:
        text += f" {many[id(cuda)]} ran on CUDA cores by the kernels' names."
    if tf32:
        text += f" {many[id(tf32)]} ran on tensor cores as TF32, at half the rate of 16 bits."
    peaks = facts.gpu.peak_tflops
    now = f", {sig(peaks[case.now])} in {case.now}" if peaks.get(case.now) else ""
    return f"{text} {facts.gpu.title}: {sig(peaks[target])} TFLOP/s dense in {target}{now}."


def _fix(case: Precision, target: str, *, trains: bool) -> list[str]:
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


def _caveats(
    facts: StepFacts, case: Precision, target: str, savings: Mapping[str, Estimate | None]
) -> list[str]:
    meaning = {one: text.format(**(_TRAINED if facts.trains else _RUN)) for one, text in _MEANING.items()}
    said = [meaning[target], *case.beside(facts)]
    if case.mixed and any(row.component == "logits" for row in case.rows):
        said.append("Keep the loss itself in fp32: cast the logits after the GEMM, not its operands before.")
    for other, saving in savings.items():  # the choice is the user's
        if case.mixed or case.now != "fp32" or other == target or saving is None or saving.mid is None:
            continue
        text = f"{other} instead of {target} is predicted to save {ms(saving.mid)} {facts.per_step}"
        if pays(saving):
            said.append(f"{text} ({of_step(saving.mid, facts)}): {meaning[other]}")
        else:
            said.append(f"{text}, but not for certain: low end {ms(saving.low)}.")
    on_weights = [row for row in case.rows if row.component == "optimizer"]
    if on_weights:
        said.append(
            f"{ms(time_of(on_weights))} of it are the optimizer's own GEMMs: see that they converge in the"
            " lower precision (Muon's do in bf16; inverses and roots of Shampoo and K-FAC need more)."
        )
    if target in HALF:
        said.append(
            "Kernels between the GEMMs move half the bytes in 16 bits, and attention can take the flash"
            " kernels; neither is counted."
        )
    return said
