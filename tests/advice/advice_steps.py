"""Steps of made-up transformers: rows as an analysis gives them, timed by the predictor times a factor.

The factor stands for how a real GPU runs against its prediction; ``slowed`` gives single rows another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.advice.advice_rows import attention, gemm, model
from tracelens.gemm.predict import predict_gemm
from tracelens.gemm.predict.attention import predict_attention
from tracelens.gemm.predict.attention_call import AttentionProblem
from tracelens.hardware import Gpu, find_gpu
from tracelens.results import CommunicationRow, ComponentRow, GemmRow, Known, ModelDims
from tracelens.results.row_sizes import AttentionDims
from tracelens.rules import StepFacts
from tracelens.step.traced_step import StepModel, step_model

H100 = find_gpu(None, override="h100-sxm")
A100 = find_gpu(None, override="a100-sxm-40gb")
_LAYOUT = {"forward": "TN", "dgrad": "NN", "wgrad": "NT"}
_ALIGNED = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT"
_FALLBACK = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2>(P)"


@dataclass(frozen=True, slots=True)
class Shape:
    """A model and its job."""

    h: int
    a: int
    f: int
    v: int = 50304
    kv: int | None = None
    d: int | None = None
    layers: int = 32
    b: int = 4
    s: int = 2048
    t: int = 1
    gated: bool = False

    @property
    def head(self) -> int:
        return self.d or self.h // self.a

    @property
    def kv_heads(self) -> int:
        return self.kv or self.a


def linears(x: Shape) -> list[tuple[str, int, int, int]]:
    """(component, in, out, calls per step) of the linear layers on one rank."""
    qkv = (x.a + 2 * x.kv_heads) * x.head // x.t
    up = [("mlp.up", x.h, x.f // x.t, x.layers)]
    up += [("mlp.gate", x.h, x.f // x.t, x.layers)] if x.gated else []
    return [
        ("attention.qkv", x.h, qkv, x.layers),
        ("attention.output", x.a * x.head // x.t, x.h, x.layers),
        *up,
        ("mlp.down", x.f // x.t, x.h, x.layers),
        ("logits", x.h, x.v, 1),
    ]


def _name(x: Shape, size: int) -> str | None:
    names = {x.b * x.s: "b*s", x.f // x.t: "f", x.v: "v", 3 * x.h: "3*h", x.h: "h"}
    return names.get(size)


def rows_of(x: Shape, *, gpu: Gpu = H100, factor: float = 1.05, slowed: Mapping[str, float] | None = None,
            train: bool = True) -> list[GemmRow]:  # fmt: skip
    """Rows of a step; ``slowed``: component -> factor on its time."""
    rows: list[GemmRow] = []
    tokens = x.b * x.s
    for component, into, out, calls in linears(x):
        shapes = {"forward": (tokens, out, into), "dgrad": (tokens, into, out), "wgrad": (out, into, tokens)}
        for role, (m, n, k) in shapes.items():
            if role != "forward" and not train:
                continue
            found = predict_gemm(m, n, k, gpu=gpu, layout=_LAYOUT[role])
            time = (found.time_us.mid or 100.0) * factor * (slowed or {}).get(component, 1.0)
            aligned = all(value is None or value >= 16 for value in found.alignment.values())
            rows.append(
                gemm(len(rows) + 1, m, n, k, component=component, role=role, layout=_LAYOUT[role],
                     names=(_name(x, m), _name(x, n), _name(x, k)),
                     time_us=time, calls=calls, kernel=_ALIGNED if aligned else _FALLBACK)
            )  # fmt: skip
    for direction in ("forward", "backward") if train else ("forward",):
        heads, kv_heads = x.a // x.t, max(1, x.kv_heads // x.t)
        call = predict_attention(
            AttentionProblem(
                batch=x.b,
                heads=heads,
                kv_heads=kv_heads,
                seq_q=x.s,
                seq_k=x.s,
                head_dim=x.head,
                causal=True,
                direction=direction,
            ),
            gpu=gpu,
            backend="flash",
        )
        compiled = next(size for size in (32, 64, 96, 128, 192, 256) if size >= x.head)
        name = f"flash_{'fwd' if direction == 'forward' else 'bwd_dq_dk_dv_loop_seqk_parallel'}_kernel"
        traits = f"Flash_fwd_kernel_traits<{compiled}, 128, 64, 4, false, false, cutlass::bfloat16_t>"
        rows.append(
            attention(
                len(rows) + 1, x.head, heads=heads, calls=x.layers, phase=direction,
                kernel=f"void pytorch_flash::{name}<pytorch_flash::{traits} >(Flash_fwd_params)",
                time_us=(call.time_us.mid or 100.0) * factor,
                attention=AttentionDims(x.b, heads, kv_heads, x.s, x.s, x.head),
                flops=4.0 * x.b * heads * x.s * x.s * x.head * (1.0 if direction == "forward" else 2.5),
            )
        )  # fmt: skip
    return rows


def dims_of(x: Shape) -> ModelDims:
    """What the accounting reads off such rows, on one rank."""
    heads, kv_heads = x.a // x.t, max(1, x.kv_heads // x.t)
    return model(hidden=x.h, heads=heads, kv_heads=kv_heads, head_dim=x.head, ffn=x.f // x.t, vocab=x.v,
                 layers=x.layers, sequence=x.s, micro_batch=x.b, tensor_parallel=x.t)  # fmt: skip


def spread(dims: ModelDims, **degrees: int | None) -> ModelDims:
    """``dims`` with pipeline_parallel and expert_parallel, None = not known; and any other dimension."""
    known: dict[str, Any] = {name: Known(value, "made up") for name, value in degrees.items()}
    return replace(dims, **known)


def model_of(x: Shape, *, gpu: Gpu = H100, rest_ms: float = 0.0, rows: list[GemmRow] | None = None,
             busy_frac: float | None = 0.99, dims: ModelDims | None = None,
             communication: Sequence[CommunicationRow] = (), declared: Mapping[str, int] | None = None,
             others: Mapping[str, float] | None = None, **more: Any) -> StepModel:  # fmt: skip
    """The step to simulate; ``rest_ms`` of norms that move bytes beside the products, and ``others``."""
    found = rows if rows is not None else rows_of(x, gpu=gpu, **more)
    total = sum(row.time_ms_per_step for row in found)
    norm = ComponentRow("norm", "forward", rest_ms, int(rest_ms * 1e6), 0.0, 1, None, None, rest_ms, 1)
    times: dict[tuple[str, str], float] = {}
    for row in found:
        times[row.component, row.phase] = times.get((row.component, row.phase), 0.0) + row.time_ms_per_step
    for name, time in (others or {}).items():
        times[name, "forward"] = times.get((name, "forward"), 0.0) + time
    beside = rest_ms + sum((others or {}).values())
    components = [ComponentRow(name, phase, time, int(time * 1e6), 0.0, 1, None, None, time, 1)
                  for (name, phase), time in times.items()]  # fmt: skip
    step = step_model(
        found, dims or dims_of(x), [norm, *components], gpu=gpu, step_ms=total + beside,
        communication=communication, declared=declared,
    )  # fmt: skip
    return replace(step, busy_frac=busy_frac)


def facts_of(x: Shape, *, gpu: Gpu = H100, rows: list[GemmRow] | None = None, dims: ModelDims | None = None,
             communication: Sequence[CommunicationRow] = (), declared: Mapping[str, int] | None = None,
             others: Mapping[str, float] | None = None, **more: Any) -> StepFacts:  # fmt: skip
    """What the rules see of that step."""
    found = rows if rows is not None else rows_of(x, gpu=gpu, **more)
    step = model_of(x, gpu=gpu, rows=found, dims=dims, communication=communication, declared=declared,
                    others=others)  # fmt: skip
    return StepFacts(gemms=found, model=dims or dims_of(x), gpu=gpu.info(), step_ms=step.step_ms, step=step,
                     gpu_busy_frac=0.99, communication=communication, declared=declared or {})  # fmt: skip
