"""Hand-built reports for the renderers' tests. The numbers are made up but add up; none was measured."""
# ruff: noqa: E501 - tables of made-up facts read better in wide rows

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.render import sample_shapes
from tracelens.accounting.cost import with_cost
from tracelens.accounting.lost import Ladders, gemm_time, with_lost
from tracelens.gemm import GemmShape, LadderStep, parse_kernel_name
from tracelens.hardware import find_gpu
from tracelens.results import (
    Amount,
    Check,
    CommunicationRow,
    ComponentRow,
    ConfigDiff,
    Coverage,
    Effects,
    Estimate,
    Explorer,
    Finding,
    GemmRow,
    GpuInfo,
    IdleCause,
    Known,
    Lack,
    LayerRow,
    Layers,
    Lost,
    MemoryEffect,
    ModelDims,
    PathPart,
    Price,
    QueueLength,
    ReferenceInfo,
    Report,
    Rest,
    RowChange,
    Span,
    Step,
    StepTime,
    Summary,
    TraceInfo,
    Unattributed,
    UnprofiledSteps,
    Waits,
    WhatIf,
)
from tracelens.words import Evidence, Purpose

STEPS = 5
LAYERS = 32
TOKENS = 2048
PEAK = 989.4

HOSTILE = "</script><img src=x onerror=alert(1)>"
HOSTILE_NAMES = [
    HOSTILE,
    "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "[red]x[/red][link=http://x.test]y[/link]",
    "{{7*7}}{% for x in y %}",
    "safe\u202egnp.exe\u2066",
    "kernel_" + "x" * 10_000,
    '"><svg onload=alert(2)>\u2028line',
    "=HYPERLINK(1)",
]

_LINEAR = {  # component -> (N, K) of the forward GEMM, calls per step, TFLOP/s of forward, dgrad, wgrad
    "attention.qkv": ("3*h", 7680, "h", 2560, LAYERS, (540.0, 512.0, 498.0)),
    "attention.output": ("h", 2560, "h", 2560, LAYERS, (382.0, 377.0, 401.0)),
    "mlp.up": ("f", 10240, "h", 2560, LAYERS, (561.0, 549.0, 537.0)),
    "mlp.down": ("h", 2560, "f", 10240, LAYERS, (400.0, 545.0, 531.0)),
    "logits": ("v", 50257, "h", 2560, 1, (161.0, 144.0, 152.0)),
}


def _row(number: int, **given: Any) -> GemmRow:
    base: dict[str, Any] = dict(
        id=f"g{number}", kind="gemm", component="other", components=[], role=None, phase="forward", layers=None,
        calls=0, calls_per_step=0.0, time_ms=0.0, time_ms_per_step=0.0, frac=0.0, m=None, n=None, k=None,
        batch=None, shape_note=None, dtype="bf16", math_dtype="bf16", out_dtype="bf16", layout=None, m_expr=None, n_expr=None,
        k_expr=None, op="aten::mm", kernel="", kernel_family="cublas", tile_m=None, tile_n=None, tile_k=None,
        cluster=None, split_k=None, scheduler=None, tiles=None, waves=None, tile_eff_frac=None,
        wave_eff_frac=None, alignment_bytes={}, tensor_core="used", flops=None, tflops=None, peak_frac=None,
        ceiling_frac=None, bytes=None, intensity=None, bound=None, lost_ms=Lost(), findings=[],
    )  # fmt: skip
    base.update(given)
    base["components"] = base["components"] or [base["component"]]
    base.setdefault("shape_known", "exact" if base["m"] or base["kind"] == "attention" else "unknown")
    return GemmRow(**base)


def _gemm(component: str, role: str, calls: int, shape: tuple[int, int, int], names: tuple[str, str, str],
          tflops: float) -> dict[str, Any]:  # fmt: skip
    m, n, k = shape
    flops = 2.0 * m * n * k
    size = 2.0 * (m * k + k * n + m * n)
    per_step = calls * flops / tflops / 1e9
    aligned = 2 if 50257 in shape else 16
    tiles = -(-m // 128) * -(-n // 256)
    waves = -(-tiles // 132)
    layout = {"forward": "TN", "dgrad": "NN", "wgrad": "NT"}[role]
    kernel = (
        f"void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x256_32x3_{layout.lower()}_align1>"
        "(cutlass_80_tensorop_bf16_s16816gemm_bf16_128x256_32x3_align1::Params)"
        if aligned == 2
        else f"nvjet_tst_128x256_64x4_2x1_v_bz_coopA_{layout}T"
    )
    return dict(
        component=component, role=role, phase="forward" if role == "forward" else "backward",
        layers="0-31" if calls > 1 else None, calls=calls * STEPS, calls_per_step=float(calls),
        time_ms=per_step * STEPS, time_ms_per_step=per_step, m=m, n=n, k=k, m_expr=names[0], n_expr=names[1],
        k_expr=names[2], layout=layout, kernel=kernel, kernel_family="cutlass" if aligned == 2 else "nvjet",
        tile_m=128, tile_n=256, tile_k=32 if aligned == 2 else 64, cluster=None if aligned == 2 else "2x1",
        tiles=tiles, waves=waves, tile_eff_frac=m * n / (tiles * 128 * 256), wave_eff_frac=tiles / (waves * 132),
        alignment_bytes={"a": 16, "b": 16, "c": aligned} if role == "forward" else {"a": aligned, "b": 16, "c": 16},
        flops=flops, tflops=tflops, peak_frac=tflops / PEAK, ceiling_frac=tflops / 794.0, bytes=size,
        intensity=flops / size, bound="compute",
        findings=["TL101"] if aligned == 2 else ["TL201"] if tiles == 160 else [],
    )  # fmt: skip


def _gemms() -> list[GemmRow]:
    rows: list[dict[str, Any]] = []
    for component, (n_name, n, k_name, k, calls, speeds) in _LINEAR.items():
        rows.append(_gemm(component, "forward", calls, (TOKENS, n, k), ("b*s", n_name, k_name), speeds[0]))
        rows.append(_gemm(component, "dgrad", calls, (TOKENS, k, n), ("b*s", k_name, n_name), speeds[1]))
        rows.append(_gemm(component, "wgrad", calls, (n, k, TOKENS), (n_name, k_name, "b*s"), speeds[2]))
    for phase, ms, work in (("forward", 5.6, 1.0), ("backward", 15.1, 2.5)):
        flops = work * 4.0 * 32 * TOKENS * TOKENS * 80 / 2
        kernel = "flash_fwd_kernel" if phase == "forward" else "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel"
        rows.append(dict(
            kind="attention", component="attention.core", phase=phase, layers="0-31", calls=LAYERS * STEPS,
            calls_per_step=float(LAYERS), time_ms=ms * STEPS, time_ms_per_step=ms, batch=32,
            shape_note="b=1 h=32 s=2048 d=80, causal", op="aten::_flash_attention_" + phase,
            kernel=f"void pytorch_flash::{kernel}<Flash_traits<96, 128, 64, 4, cutlass::bfloat16_t> >(Params)",
            kernel_family="flash", flops=flops, tflops=LAYERS * flops / ms / 1e9, bytes=42e6, intensity=flops / 42e6,
            peak_frac=LAYERS * flops / ms / 1e9 / PEAK, bound="compute", findings=["TL301"],
        ))  # fmt: skip
    rows.append(dict(
        component="unattributed", calls=40, calls_per_step=8.0, time_ms=6.1, time_ms_per_step=1.22, dtype=None,
        out_dtype=None, tensor_core=None, shape_note="inputs not recorded", op=None,
        kernel="ampere_sgemm_128x64_nn", tile_m=64, tile_n=128, shape_known="bounded",
        m_range=(1985, 2048), n_range=(2433, 2560),
    ))  # fmt: skip
    rows.sort(key=lambda row: -row["time_ms"])
    return [_row(number, **row) for number, row in enumerate(rows, 1)]


class MadeUpLadders(Ladders):
    """Steps that no measurement moves: at 2 bytes a bound alone is known."""

    def __init__(self) -> None:
        super().__init__(find_gpu("NVIDIA H100 80GB HBM3"))

    def step(self, dtype: str, operands: Mapping[str, int | None]) -> LadderStep:
        least = min(size for size in operands.values() if size is not None)
        mid = {128: 1.0, 16: 0.95, 8: 0.6, 4: 0.6}.get(least)
        return LadderStep(least, mid, mid, mid or 0.72, "model", "a made-up ladder")


def _split(row: GemmRow, gpu: GpuInfo) -> GemmRow:
    shape = None
    if row.m is not None and row.n is not None and row.k is not None:
        shape = GemmShape(row.m, row.n, row.k, row.batch or 1, row.dtype, row.out_dtype, row.layout)
    return with_lost(row, shape=shape, kernel=parse_kernel_name(row.kernel), gpu=gpu, ladders=MadeUpLadders())


def _components(gemms: list[GemmRow]) -> list[ComponentRow]:
    parts: dict[tuple[str, str], list[float]] = {}
    for row in gemms:
        part = parts.setdefault((row.component, row.phase), [0.0, 0.0, 0.0])
        part[0] += row.time_ms
        part[1] += row.calls
        part[2] += row.calls * (row.flops or 0.0)
    other = {
        ("embedding", "forward"): (0.9, 10), ("embedding", "backward"): (3.3, 10),
        ("norm", "forward"): (12.1, 325), ("norm", "backward"): (24.9, 650),
        ("residual", "forward"): (9.4, 320), ("residual", "backward"): (8.8, 320),
        ("attention.rope", "forward"): (7.2, 320), ("attention.rope", "backward"): (7.9, 320),
        ("mlp.activation", "forward"): (13.0, 160), ("mlp.activation", "backward"): (19.6, 160),
        ("loss", "forward"): (11.8, 15), ("loss", "backward"): (9.1, 10),
        ("optimizer", "optimizer"): (96.4, 85), ("grad_clip", "optimizer"): (14.2, 60),
        ("communication", "backward"): (38.0, 45), ("memory", "other"): (2.1, 12), ("other", "forward"): (0.4, 30),
        ("unattributed", "backward"): (9.3, 210),
    }  # fmt: skip
    for key, (time_ms, kernels) in other.items():
        part = parts.setdefault(key, [0.0, 0.0, 0.0])
        part[0] += time_ms
        part[1] += kernels
    exact = {key: round(part[0] * 1e6) for key, part in parts.items()}
    total = sum(exact.values())
    return [
        ComponentRow(
            component, phase, time_ns / 1e6, time_ns, time_ns / total, int(parts[component, phase][1]),
            parts[component, phase][2] or None, parts[component, phase][2] / time_ns / 1e3 or None,
            time_ns / 1e6 / STEPS, parts[component, phase][1] / STEPS,
        )
        for (component, phase), time_ns in exact.items()
    ]  # fmt: skip


def _communication() -> list[CommunicationRow]:
    """The 38 ms of communication of `_components`: gradient buckets behind the backward, and a loss."""

    def row(purpose: Purpose, evidence: Evidence, why: str, phase: str, calls: int, size: float, time: float, exposed: float,
            bus: float) -> CommunicationRow:  # fmt: skip
        return CommunicationRow(
            collective="all_reduce", group="default_pg", group_size=8, purpose=purpose, evidence=evidence, why=why,
            phase=phase, dtype="bf16", calls=calls, calls_per_step=calls / STEPS, bytes_per_call=size, time_ms=time,
            exposed_ms=exposed, hidden_ms=time - exposed, time_ms_per_step=time / STEPS,
            exposed_ms_per_step=exposed / STEPS, hidden_ms_per_step=(time - exposed) / STEPS,
            algorithm_gbps=bus / 1.75, bus_gbps=bus,
        )  # fmt: skip

    return [
        row(
            "data-parallel gradients",
            "op",
            "launched by the hook of AccumulateGrad",
            "backward",
            40,
            1.9e8,
            37.0,
            11.0,
            359.5,
        ),
        row(
            "loss or metric",
            "structure",
            "one value outside the model",
            "backward",
            5,
            2.0,
            1.0,
            1.0,
            1.75e-5,
        ),
    ]


def _findings(gemms: list[GemmRow]) -> list[Finding]:
    rows = {rule: [g.id for g in gemms if rule in g.findings] for rule in ("TL101", "TL201", "TL301")}
    return [
        Finding(
            "TL101", "pad-vocabulary", "Pad vocab_size from 50257 to 50304", ["logits"], "high",
            Estimate(6.9, 7.8, 8.4, "model"), Estimate(0.052, 0.059, 0.063, "model"), "model", "high", "config",
            "50257 is odd, so a row of the logits begins on a 2-byte border. cuBLAS ran an align1 kernel for 3 GEMMs.",
            "Tensor Core kernels load 16 bytes at a time; a bf16 leading dimension that is no multiple of 8 "
            "shuts them out.",
            "3 GEMMs take 10.4 ms/step at 152 TFLOP/s. The same work at 610 TFLOP/s, the speed of the other "
            "GEMMs of K = 2560, takes 2.6 ms/step.",
            {"n": 50257}, {"vocab_size": [50257, 50304]}, ["- vocab_size = 50257", "+ vocab_size = 50304"],
            120320, 4.9e8,
            ["Changes the checkpoint's shape: pad the embedding on load and mask the 47 added logits."],
            rows["TL101"], "docs/rules/TL101.md",
            Effects(
                "a setting; no code, no new training",
                Amount(120320, 0.0000455, "+120,320 weights in matrices, of 2,645,240,320 now"),
                Amount(4.9e8, 0.0009, "0.09% of all"),
                MemoryEffect(2_502_656.0, 1_925_120.0, 577_536.0, "16 B × 120,320 = +1.93 MB; activations +578 kB"),
                "pads", "Pad it once: append 47 rows to the embedding and to the output matrix.",
                "Unchanged: it keeps giving ids below 50257.", "Set vocab_size back to 50257 and cut the 47 rows.",
            ),
            [
                ConfigDiff("Hugging Face config.json", ['-   "vocab_size": 50257,', '+   "vocab_size": 50304,']),
                ConfigDiff("nanoGPT", [], "no setting for it"),
            ],
        ),
        Finding(
            "TL201", "fill-last-wave", "Raise micro-batch from 1 to 4: M from 2048 to 8192",
            ["attention.output", "mlp.down"], "medium",
            Estimate(None, None, 3.2, "heuristic"), Estimate(None, None, 0.024, "heuristic"), "heuristic",
            "medium", "config",
            "attention.output and mlp.down make 160 tiles of 128×256 on 132 SMs: one full wave and one that is 21% full.",
            "A GEMM runs in whole waves; a nearly empty last one takes as long as a full one.",
            "tiles = ⌈2048/128⌉·⌈2560/256⌉ = 160; waves = ⌈160/132⌉ = 2; used = 160/(2·132) = 61%. "
            "At M = 8192: 640 tiles, 5 waves, 97%.",
            {"tiles": 160, "waves": 2}, {"micro_batch_size": [1, 4], "gradient_accumulation": [4, 1]},
            ["- micro_batch_size = 1", "- gradient_accumulation = 4", "+ micro_batch_size = 4",
             "+ gradient_accumulation = 1"],
            None, None,
            ["Needs more activation memory; not checked here.", "Counts tiles of equal cost and no stream-K."],
            rows["TL201"], "docs/rules/TL201.md",
        ),
        Finding(
            "TL301", "head-dim", "Use head_dim 64 or 128 instead of 80", ["attention.core"], "low",
            Estimate(0.4, None, 4.1, "heuristic"), Estimate(0.003, None, 0.031, "heuristic"), "heuristic",
            "low", "retrain", "head_dim is 80; the flash kernel that ran is compiled for 96.",
            "Flash attention is compiled for fixed head sizes and pads the rest with zeros.",
            "80 of 96 columns are useful: 1 - 80/96 = 17% of 20.7 ms/step.",
            {"head_dim": 80}, {"heads": [32, 20]}, ["- heads = 32   # head_dim 80", "+ heads = 20   # head_dim 128"],
            0, 0.0, ["Changes the model: for a new training run only."], rows["TL301"], "docs/rules/TL301.md",
        ),
    ]  # fmt: skip


_CHECKS = [
    Check("TL101", "pad-vocabulary", "found", ""),
    Check("TL102", "align-hidden", "passed", "hidden 2560 is a multiple of 64"),
    Check("TL103", "align-ffn", "passed", "ffn 10240 is a multiple of 64"),
    Check("TL104", "tensor-cores-used", "passed", "every bf16 GEMM ran on Tensor Cores"),
    Check("TL201", "fill-last-wave", "found", ""),
    Check("TL202", "tokens-multiple", "passed", "b*s = 2048 is a multiple of every tile seen"),
    Check("TL301", "head-dim", "found", ""),
    Check("TL401", "expert-balance", "not_applicable", "no MoE layer in the trace"),
    Check("TL402", "fp8-alignment", "not_applicable", "no fp8 GEMM in the trace"),
    Check("TL501", "split-k", "could_not_run", "the kernel names of nvjet do not carry split-K"),
]


def full() -> Report:
    """Build the usual case: an H100, a transformer, three findings, a little unattributed time."""
    gemms = _gemms()
    components = _components(gemms)
    gpu_ms = sum(c.time_ns for c in components) / 1e6
    gpu = GpuInfo("h100-sxm", "H100 SXM", "nvidia", 132, "trace", {"bf16": PEAK, "fp16": PEAK, "fp32": 66.9},
                  {"bf16": 794.0}, 3350.0, "device name", {"peak.bf16": "a datasheet, 2026-01"}, 50.0)  # fmt: skip
    gemms = [_split(replace(row, frac=row.time_ms / gpu_ms), gpu) for row in gemms]
    share = {
        name: sum(c.frac for c in components if c.component == name) for name in ("unattributed", "memory")
    }
    step = gpu_ms / STEPS * 0.985
    known = "shape of aten::mm in 32 layers"
    flops = sum(row.calls_per_step * (row.flops or 0.0) for row in gemms)
    report = Report(
        "1.0",
        "0.1.0",
        TraceInfo("rank0.pt.trace.json.gz", "9f2c" * 16, 41_203_112, 1_204_511, sum(c.kernels for c in components),
                  0, 8, "2.9.0", "12.8", "NVIDIA H100 80GB HBM3", step * STEPS * 1.05, False, False, []),
        gpu,
        ModelDims("whole", Known(2560, known), Known(32, "flash attention input"), Known(32, "flash attention input"),
                  Known(80, "flash attention input"), Known(10240, known), Known(50257, "shape of aten::mm, logits"),
                  Known(32, "repeats in a step"), Known(2048, "flash attention input"),
                  Known(1, "flash attention input"), Known(1, "q, k, v widths"), Known(None, "no router seen")),
        [Step(12 + i, 1_000_000_000 + i * int(step * 1e6), step * (1 + (i - 2) * 0.002), 0.984) for i in range(STEPS)],
        Summary(StepTime(step, step * 0.996, step * 1.004, STEPS), gpu_ms / STEPS, 0.984, step * 0.016, 2.4,
                sum(r.frac for r in gemms), flops / step / 1e9 / PEAK, "bf16", None, flops / step / 1e9,
                Estimate(7.3, None, 15.1, "model"),
                f"Three shape choices put 15.1 ms of every {step:.0f} ms step at stake. Two are config changes.",
                "The GPU is busy 98.4% of the step, so GEMM shape is where the time is.", "ProfilerStep ranges",
                UnprofiledSteps(StepTime(step * 0.988, step * 0.986, step * 0.99, 8), StepTime(step * 0.99, step * 0.989, step * 0.991, 5),
                                step * 0.989, "cuda_events", 0.011, 0.99 / 0.988 - 1, flops / step / 0.989 / 1e9 / PEAK, None)),
        Coverage(1 - share["unattributed"], 0.0, 0.991, 0.943,
                 {"sequence": 0.61, "op": 0.21, "structure": 0.143, "kernel_name": 1 - 0.963 - share["unattributed"],
                  "none": share["unattributed"]},
                 [Unattributed("the operator that launched the kernel has no input shapes",
                               "record with record_shapes=True", 9.3, 210),
                  Unattributed("a GEMM that matches no layer of the model", "name modules with with_modules=True",
                               6.1, 40)],
                 0.0012, 31, 0.006, 0.003, 0.094, 3_120),
        components,
        gemms,
        _findings(gemms),
        list(_CHECKS),
        ["A kernel that runs beside another counts in full for both; shares are of the sum."],
        _communication(),
        [Lack("no-shapes", "No shapes of operator inputs", "1.3% of GPU time is in GEMMs of unknown size",
              "record with record_shapes=True", "medium", 0.013),
         Lack("one-step", "Only one step", "how much step times differ is not known",
              "record several: schedule(wait=1, warmup=1, active=3)", "low", None)],
        ReferenceInfo("rank0.eager.pt.trace.json.gz", "41aa" * 16, 0.912, 30_417, 0.081, 2_950, 416),
        gemm_time(gemms),
        explorer=sample_shapes.explorer(step),
        layers=sample_shapes.layers(components, LAYERS),
    )  # fmt: skip
    return with_cost(report, Price(2.5, "EUR"))


def no_findings() -> Report:
    """Every check passed or did not apply."""
    report = full()
    checks = [
        replace(c, state="passed", why="nothing to gain") if c.state == "found" else c for c in report.checks
    ]
    summary = replace(
        report.summary,
        shape_waste_ms=None,
        verdict="No shape choice costs time in this step.",
        verdict_detail="",
    )
    gemms = [replace(row, findings=[]) for row in report.gemms]
    report = replace(report, findings=[], checks=checks, summary=summary, gemms=gemms)
    return with_cost(report, Price(2.5, "EUR"))


def partial() -> Report:
    """The file ended in the middle of an event."""
    report = full()
    warnings = [
        "the file ends in the middle of an event; 1,204,511 events before it were read",
        "no metadata",
    ]
    return replace(
        report, trace=replace(report.trace, partial=True, warnings=warnings, rank=None, world_size=None)
    )


def generated() -> Report:
    """A simulated trace."""
    report = full()
    return replace(report, trace=replace(report.trace, generated=True))


def unknown_gpu() -> Report:
    """No peaks: no MFU, no share of peak, no roofline."""
    report = full()
    gpu = GpuInfo("unknown", "unknown GPU", "unknown", None, "unknown", {}, {}, None, "none")
    gemms = [
        _split(replace(r, peak_frac=None, ceiling_frac=None, waves=None, wave_eff_frac=None), gpu)
        for r in report.gemms
    ]
    summary = replace(
        report.summary, mfu_frac=None, mfu_dtype=None, mfu_why="no peak for this GPU: name it with --gpu"
    )
    trace = replace(report.trace, device="Frobnicator 9000")
    explorer = Explorer(why="predictions know NVIDIA's libraries only")
    return replace(report, gpu=gpu, gemms=gemms, summary=summary, trace=trace, gemm_time=gemm_time(gemms),
                   explorer=explorer)  # fmt: skip


def no_transformer() -> Report:
    """Components known only where an operator's own name says so; one step; nothing judged."""
    report = full()
    nothing = Known(None, "no transformer seen")
    model = ModelDims("none", *([nothing] * 11))
    kept = [c for c in report.components if c.component in ("norm", "optimizer", "memory")]
    rest = sum(c.time_ns for c in report.components) - sum(c.time_ns for c in kept)
    total = sum(c.time_ns for c in report.components)
    rows = [
        *kept,
        ComponentRow(
            "unattributed",
            "other",
            rest / 1e6,
            rest,
            rest / total,
            4000,
            None,
            None,
            rest / 1e6 / STEPS,
            4000 / STEPS,
        ),
    ]
    gemms = [replace(r, component="unattributed", role=None, phase="other", layers=None, findings=[], m_expr=None,
                     n_expr=None, k_expr=None) for r in report.gemms]  # fmt: skip
    summary = replace(
        report.summary, step_ms=StepTime(1620.0, 1620.0, 1620.0, 1), step_source="whole trace", steps_marked=False, mfu_frac=None, mfu_dtype=None,
        mfu_why="no transformer: only GEMM and attention FLOPs are counted",
        achieved_tflops=None, shape_waste_ms=None, verdict="No transformer was seen in this trace.",
        unprofiled=UnprofiledSteps(why="the trace holds none; 'tracelens capture' times steps before and after the profiler"),
        verdict_detail="GEMM shapes are listed; no rule could judge them.",
    )  # fmt: skip
    checks = [replace(c, state="could_not_run", why="no transformer seen") for c in report.checks]
    coverage = replace(
        report.coverage, component_frac=1 - rest / total,
        unattributed=[Unattributed("no transformer seen", "name modules with with_modules=True", rest / 1e6, 4000)],
    )  # fmt: skip
    report = replace(report, model=model, components=rows, gemms=gemms, summary=summary, checks=checks, findings=[],
                     coverage=coverage, steps=[], explorer=Explorer(why="no hyper-parameter of this step is known"),
                     layers=Layers([], [LayerRow(c.component, c.phase, [], c.time_ms_per_step) for c in rows], None,
                                   "no kernel is tied to one"))  # fmt: skip
    return with_cost(report)


def hostile() -> Report:
    """Names that try to leave their place in every format."""
    report = full()
    names = HOSTILE_NAMES
    gemms = [
        replace(row, kernel=names[i % len(names)], op=names[(i + 1) % len(names)],
                component=names[i] if i < len(names) else row.component,
                shape_note=names[i % len(names)], layers=names[i % len(names)][:40],
                alignment_basis=names[i % len(names)], kernel_family=names[(i + 2) % len(names)],
                lost_ms=replace(row.lost_ms, why=dict.fromkeys(row.lost_ms.why, names[i % len(names)])))
        for i, row in enumerate(report.gemms)
    ]  # fmt: skip
    findings = [
        replace(f, title=names[i], saw=names[i + 1], why=names[i + 2], how=names[0], fix=[*names], caveats=[*names],
                evidence={n: n for n in names}, slug=names[0], rule=f"TL{names[i]}", components=[*names],
                diffs=[ConfigDiff(names[i], [*names], names[i + 1])],
                effects=Effects(names[0], Amount(1.0, 0.1, names[1]), Amount(None, None, names[2]),
                                MemoryEffect(None, None, None, names[3]), "unknown", names[5], names[6], names[7]))
        for i, f in enumerate(report.findings)
    ]  # fmt: skip
    trace = replace(report.trace, path=names[0], device=names[1], torch_version=names[2], cuda_version=names[3],
                    warnings=[*names], partial=True)  # fmt: skip
    summary = replace(report.summary, verdict=names[0] + names[3], verdict_detail=names[1] + names[4])
    checks = [
        replace(c, slug=names[i % len(names)], why=names[i % len(names)]) for i, c in enumerate(report.checks)
    ]
    components = [
        *report.components,
        ComponentRow(HOSTILE, "forward", 0.001, 1000, 0.0, 1, None, None, 0.001 / STEPS, 1 / STEPS),
    ]
    notes = [*names]
    communication = [
        replace(row, group=names[i + 1], why=names[i + 2], dtype=names[0])
        for i, row in enumerate(report.communication)
    ]
    scenario = what_if().what_if[0]
    dressed = [
        replace(row, gemm=names[i], component=names[i], role=names[i], shape_now=names[i], shape_then=names[i],
                how=names[i])
        for i, row in enumerate(scenario.rows[: len(names)])
    ]  # fmt: skip
    scenarios = [replace(scenario, rows=dressed, notes=[*names], change={name: [1, 2] for name in names})]
    assert report.gemm_time is not None
    assert report.cost is not None
    cost = replace(report.cost, gpus_source=names[0], price=Price(2.5, names[1]))
    curves = [
        replace(curve, parameter=names[i], follows=names[i], notes=[*names], why=None if curve.values else HOSTILE,
                suggested=[replace(one, rule=names[i]) for one in curve.suggested])
        for i, curve in enumerate(report.explorer.curves)
    ]  # fmt: skip
    shown = report.layers.timeline
    assert shown is not None
    passes = [replace(one, component=[*one.component[:-1], HOSTILE]) for one in shown.passes]
    layered = replace(
        report.layers,
        rows=[*report.layers.rows, replace(report.layers.rows[0], component=HOSTILE, phase=HOSTILE)],
        timeline=replace(shown, names=names[: len(shown.names)], passes=passes),
    )
    told = waits().waits
    queer = replace(told, tool=names[0],
                    path=[replace(told.path[0], bound_by=HOSTILE)], missing={"queue": names[6]})  # fmt: skip
    return replace(report, waits=queer, explorer=replace(report.explorer, curves=curves), layers=layered, cost=cost,
                   gemms=gemms, findings=findings, trace=trace, summary=summary, checks=checks,
                   gpu=replace(report.gpu, sources=dict.fromkeys(report.gpu.sources, HOSTILE)),
                   gemm_time=replace(report.gemm_time, not_judged_why=names),
                   components=components, notes=notes, communication=communication, what_if=scenarios,
                   recording=[Lack(names[0], names[1], names[2], names[3], "low", None)])  # fmt: skip


def with_steps(one: Report, durations: list[float]) -> Report:
    """The report with other step times, as another recording of the job would have."""
    ordered = sorted(durations)
    middle = ordered[len(ordered) // 2]
    return replace(
        one,
        trace=replace(one.trace, sha256=f"{hash(tuple(durations)):064x}"),
        steps=[Step(at, at * 10**9, ms, 0.98) for at, ms in enumerate(durations)],
        summary=replace(one.summary, step_ms=StepTime(middle, ordered[0], ordered[-1], len(ordered))),
    )


def _estimate(low: float, mid: float, high: float) -> Estimate:
    return Estimate(low, mid, high, "model")


def what_if() -> Report:
    """Four scenarios: one that saves, one slower with a wide range, one without an answer, one that is none."""
    report = full()
    step = report.summary.step_ms.median
    rows = [
        RowChange("g1", "logits", "dgrad", "2048×2560×50257", "2048×2560×50304", 3.66, Span(1.0, 1.2, 1.4, "model"),
                  "3,660 µs misaligned, 1,150 µs predicted × 1.04 = 1,196 µs"),
        RowChange("g20", "attention.core", "backward", "b=1 h=32 kv=8 s=16384 d=80", "b=1 h=20 kv=4 s=16384 d=128",
                  15.1, Span(12.0, 14.0, 16.0, "model"), "472 µs measured × 0.93 = 438 µs"),
        *(RowChange(f"x{n}", "mlp.up", "forward", "2048×10240×2560", "2048×10240×2560", 1.0, Span(1, 1, 1, "model"), "same")
          for n in range(8)),
    ]  # fmt: skip
    rest = [Rest("optimizer", "optimizer", "parameters", 12.0, Span(12.0, 12.1, 12.1, "model"))]
    both = WhatIf(
        {"heads": [32, 20], "head_dim": [80, 128], "vocab": [50257, 50304]}, _estimate(2.1, 3.5, 4.9),
        _estimate(2.1 / step, 3.5 / step, 4.9 / step), step, _estimate(step - 4.9, step - 3.5, step - 2.1),
        [2_650_000_000, 2_650_120_320], 0.0001, 0.0, rows, rest, 0.0, ["ffn stays 10240"],
    )  # fmt: skip
    slower = WhatIf(
        {"micro_batch": [1, 2]}, _estimate(-30.0, -20.0, 1.0), _estimate(-30 / step, -20 / step, 1 / step), step,
        _estimate(step - 1, step + 20, step + 30), [2_650_000_000, 2_650_000_000], 1.0, 1.0, rows[:1], [], 0.0, [],
    )  # fmt: skip
    nothing = Estimate(None, None, None, "model")
    unknown = WhatIf(
        {"tensor_parallel": [1, 2]}, nothing, nothing, step, nothing, [None, None], None, 0.0, [], [], 4.2,
        ["no saving is given: what the ranks exchange is not predicted"],
    )  # fmt: skip
    same = WhatIf({}, _estimate(0, 0, 0), _estimate(0, 0, 0), step, _estimate(step, step, step), [1, 1], 0.0, 0.0,
                  [], [], 0.0, [])  # fmt: skip
    return replace(report, what_if=[both, slower, unknown, same])


def waits() -> Report:
    """Where the step waits, as a library found it."""
    found = Waits(
        "holistic-trace-analysis 0.5.0", 3.1, 118.0, 9.2, 0.61,
        [IdleCause(0, 7, "host_wait", 2.0, 0.6), IdleCause(0, 13, "kernel_wait", 1.0, 0.3)],
        [QueueLength(0, 7, 1200, 33.4, 31.0, 210)], 0.93,
        [PathPart("gpu_compute_bound", 110.0, 0.8), PathPart("cpu_bound", 20.0, 0.2)], 13, 131.0, 1.5,
        {"idle": "a stream without a launch"}, None,
    )  # fmt: skip
    return replace(full(), waits=found)


VARIANTS = {
    "waits": waits,
    "full": full,
    "what_if": what_if,
    "no_findings": no_findings,
    "partial": partial,
    "generated": generated,
    "unknown_gpu": unknown_gpu,
    "no_transformer": no_transformer,
    "hostile": hostile,
}
