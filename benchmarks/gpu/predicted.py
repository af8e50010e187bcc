"""What the tool says of an item before it is measured: the ledger's left side.

A prediction is plain JSON: ``by`` (what it is calibrated by), and ``values``, a name to low, mid and high. A
name is that of the call, or of the pair whose saving (a share of the time per token) is predicted. What is
imported here is imported late: a prediction that cannot be made costs no measurement.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.gpu.stage import Setting
from tracelens.hardware.gpu import Gpu, list_gpus
from tracelens.hardware.measurements import Measurements
from tracelens.measure.cases import AttentionCase, GemmCase
from tracelens.measure.journal import key_of
from tracelens.measure.layer_shapes import LayerShape, StepShape

DATASHEET = "datasheet"
#: On one GPU of a stage: the calibration is read once.
_CALIBRATION = "calibration"


def name_of(one: Any) -> str:
    """The same for a case and for its measurement.

    >>> name_of(GemmCase("x", 4096, 50257, 768))
    '4096 50257 768 1 bf16 bf16 TN'
    """
    return " ".join(map(str, key_of(one)))  # type: ignore[call-overload]


def of_calls(setting: Setting, cases: Iterable[GemmCase | AttentionCase]) -> dict[str, Any] | None:
    """Microseconds of each GEMM or attention call; a GPU outside the table has no prediction."""
    from tracelens.gemm.predict import predict_gemm
    from tracelens.gemm.predict.attention import predict_attention
    from tracelens.gemm.predict.attention_call import AttentionProblem

    gpu = _gpu(setting)
    if gpu is None:
        return None
    measured, by = _calibration(setting)
    values = {}
    for case in cases:
        if isinstance(case, GemmCase):
            found = predict_gemm(
                case.m, case.n, case.k, gpu=gpu, batch=case.batch, dtype=case.dtype, layout=case.layout,
                measured=measured,
            ).time_us  # fmt: skip
        else:
            found = predict_attention(
                AttentionProblem(
                    batch=case.batch,
                    heads=case.heads,
                    kv_heads=case.key_heads,
                    seq_q=case.seq_q,
                    seq_k=case.keys,
                    head_dim=case.head_dim,
                    causal=case.causal,
                    direction=case.direction,
                    dtype=case.dtype,
                ),
                gpu=gpu,
                backend=case.backend,
                measured=measured,
            ).time_us
        values[name_of(case)] = _numbers(found)
    return {"by": by, "values": values}


def of_change(
    setting: Setting, name: str, before: LayerShape | StepShape, after: LayerShape | StepShape
) -> dict[str, Any] | None:
    """The saving of a change, as ``tracelens suggest`` predicts it, per token."""
    from tracelens.hardware.measurements import of_kernels
    from tracelens.step.planned_change import compare

    gpu = _gpu(setting)
    if gpu is None:
        return None
    measured, by = _calibration(setting)
    kernels = None if measured is None else of_kernels(measured)
    now, then = (planned(shape, gpu=gpu, measured=kernels) for shape in (before, after))
    return {"by": by, "values": {name: _numbers(compare(now, then).saving_frac)}}


def planned(shape: LayerShape | StepShape, *, gpu: Gpu, measured: Measurements | None) -> Any:
    """A layer, the logits or a small model as ``tracelens suggest`` plans it (a ``PlannedStep``)."""
    from tracelens.config.configuration import Layout
    from tracelens.config.model_config import ModelConfig
    from tracelens.step.planned_change import PlannedStep
    from tracelens.step.planned_step import Planner

    whole = shape if isinstance(shape, StepShape) else None
    layer = shape.layer if isinstance(shape, StepShape) else shape
    config = ModelConfig(
        hidden=layer.hidden, heads=layer.heads, kv_heads=layer.kv_heads, head_dim=layer.head_dim,
        ffn=layer.ffn, vocab=whole.vocabulary if whole else layer.vocab or 64 * layer.tensor_parallel,
        layers=whole.layers if whole else 1, sequence=layer.sequence, micro_batch=layer.micro_batch,
        tensor_parallel=layer.tensor_parallel, gated=layer.gated,
    )  # fmt: skip
    layout = Layout(
        fused_qkv=layer.fused_qkv, fused_gate=layer.fused_gate, causal=layer.causal, rope=layer.gated
    )
    planner = Planner(layout, gpu=gpu, dtype=layer.dtype, measured=measured, backend=layer.attention)
    if whole:
        return planner.step(config)
    if layer.vocab:
        return PlannedStep(config, planner.vocab(config))
    inside = tuple(one for one in planner.hidden(config) if one.component != "embedding")
    return PlannedStep(config, (*planner.attention(config), *planner.mlp(config), *inside))


def _numbers(estimate: Any) -> list[float] | None:
    known = (estimate.low, estimate.mid, estimate.high)
    return None if None in known else [round(value, 6) for value in known]


def _gpu(setting: Setting) -> Gpu | None:
    """The table's entry; a dry run predicts for an H200, so that the way is walked."""
    key = "h200" if setting.dry_run else setting.gpu
    return next((gpu for gpu in list_gpus() if gpu.name == key), None)


def _calibration(setting: Setting) -> tuple[Measurements | None, str]:
    """By what was measured of this GPU in earlier stages, else by what ships, else by the datasheet."""
    if _CALIBRATION not in setting.store:
        setting.store[_CALIBRATION] = _read(setting)
    found: tuple[Measurements | None, str] = setting.store[_CALIBRATION]
    return found


def _read(setting: Setting) -> tuple[Measurements | None, str]:
    from benchmarks.gpu.record import calibration, read_record
    from tracelens.errors import InputError
    from tracelens.hardware.measurements import find_measurements

    if setting.results is not None and not setting.dry_run:
        try:
            record = read_record(setting.results)
            return calibration(record), f"stages {', '.join(record.calibrating)}"
        except InputError:
            pass  # not yet measured
    shipped = None if setting.dry_run else find_measurements(setting.gpu)
    return (shipped, f"calibration of {shipped.date}") if shipped is not None else (None, DATASHEET)
