"""A whole optimizer step from a configuration: its kernels as they run in steps, and what is between them.

The kernels are those of ``planned_step``. A step has more: small kernels, recomputed activations, exchanges
between GPUs, the optimizer, gaps where the CPU is late, and nodes that wait for the slowest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tracelens.config.configuration import Run
from tracelens.config.model_config import ModelConfig
from tracelens.config.training import Training
from tracelens.errors import InputError
from tracelens.hardware.collectives import node_size, pcie_frac
from tracelens.results import Span
from tracelens.results.suggestions import Checkpoint, WholeStep, WholeStepPart
from tracelens.step import paces, planned_exchange
from tracelens.step.memory import memory_of
from tracelens.step.paces import Pace
from tracelens.step.planned_change import PlannedStep, total
from tracelens.step.planned_kernels import attention_calls, busiest_stage, cross_linears
from tracelens.step.planned_step import Planner
from tracelens.step.predicted import LOW_PRECISION
from tracelens.step.reasons import PlannedPart
from tracelens.step.traffic import BANDWIDTH_FRAC
from tracelens.step.words import planned as words

#: Outside the layers: checkpointing does not compute them again.
_OUTSIDE = frozenset({"embedding", "logits", "loss"})
#: How much of each kind of kernel of the layers is computed again.
_AGAIN: dict[Checkpoint, dict[str, float]] = {
    "none": {},
    "selective": {"attention": 1.0},
    "selective-op": {"product": 0.5, "experts": 0.5, "bytes": 1.0},
    "full": dict.fromkeys(("product", "attention", "experts", "bytes"), 1.0),
}
#: As wide as the stream: sequence-parallel ranks share them (arXiv 2205.05198).
_STREAM = frozenset({"norm", "residual", "embedding"})
#: AdamW reads gradient, master weight and two moments and writes all but the gradient, in fp32.
_OPTIMIZER_BYTES = 28.0
#: A micro-batch's gradient in 16 bits is read and added to what is kept in fp32.
_SUMMED_BYTES = 10.0
#: us of CPU time of a kernel; where the GPU needs longer, none shows. 36 to 60 in traces of DeepSeek-V3 and
#: nanoGPT, the profiler in them; 52 to 57 and 67 in steps that take as long whatever the GPU has to do
#: (QwenLM/Qwen's README, transformers; Megatron-Core on four and eight tensor-parallel GPUs).
_LAUNCH_US = (7.0, 50.0, 70.0)
#: Kernels for each of ``planned_kernels.Traffic``, casts among them: with LayerNorm or Megatron's own; with
#: RMSNorm or rotary embeddings in plain PyTorch (58 and 158 a layer on an H100: benchmarks/gpu/results).
_SMALL_KERNELS, _SMALL_IN_PYTHON = 5, {"forward": 11, "backward": 22}
_GEMMS_OF_EXPERT = {"forward": 2, "backward": 4}  # Transformer Engine's grouped GEMMs: up and down
#: Experts of eight GPUs at a power law of 1.2 over even loads, in vLLM and TensorRT-LLM (aiconfigurator).
_UNEVEN = 1.5
#: Kernels of a layer of experts with grouped GEMMs: choosing, sorting, gathering, GEMMs, summing up. A guess.
_EXPERT_KERNELS = 12


def whole_step(
    planner: Planner,
    config: ModelConfig,
    training: Training,
    *,
    pace: Pace | None = None,
    run: Run | None = None,
) -> WholeStep:
    """The step of ``config`` as ``training`` says, in ms, tokens per second and GPU, and MFU.

    ``pace`` stands in for that of the GPU: ``benchmarks/steps.py`` fits it so. ``run`` is what the
    configuration says of a step where ``training`` does not.
    Raises InputError where what these GPUs take to exchange data was not published, or the peak is not known.
    """
    asked, run = training, run or Run()
    training = replace(asked, gpus=asked.gpus or _usual_gpus(planner.gpu.name, config)).checked()
    training = training.as_run(run, config)
    unlike, stage = _unlike(planner, config, training), busiest_stage(config)
    pace = pace or paces.pace_of(planner.gpu, unlike=bool(unlike), stack=training.stack or "plain")
    if not training.overlap:  # Megatron-Core's default; its recipes say otherwise
        pace = replace(pace, tensor=1.0 if training.overlap is False else (pace.tensor + 1.0) / 2)
    if config.cp > 2:
        pace = replace(pace, attention=paces.RING * pace.attention)
    if config.decoder_layers and not (pace.fused or _megatron(planner, training)):
        pace = replace(pace, moved=paces.BOTH_MOVED * pace.moved, least_moved=pace.least_moved or pace.moved)
    if config.model_ranks > 1:  # who shares layers has fused kernels, as Megatron-LM does, or plain ones
        pace = replace(pace, least_moved=1.0)
    present, data = planner.step(stage), training.data_ranks(config)
    parts = _busy(planner, stage, training, pace) | dict(_exchanged(planner, config, training, pace))
    if (pcie := pcie_frac(planner.gpu.name, training.gpus or 1)) < 1:
        for name in parts.keys() & {"communication", "experts' all-to-all"}:
            parts[name] = replace(parts[name], low=parts[name].low * pcie)
    parts["optimizer"] = _optimizer(planner, stage, training, data)
    parts = {name: _within(name, time, pace) for name, time in parts.items()}
    parts |= _as_fast_as_kernels(parts, present, training)
    nodes = math.ceil((training.gpus or 1) / node_size(planner.gpu.name))
    python = planner.layout.rope or planner.layout.rms
    parts |= _waits(parts, _launches(present, training, python=python, fused=pace.fused), nodes=nodes)
    fitted = _has_fit(planner, config, training) and not unlike
    step_ms, share = total(parts.values()), training.batches / config.batch_ranks
    peak_ms = share * _operations(planner, config) / (_peak(planner) * 1e9)  # the fast ends of parts add up
    low = min(max(step_ms.low, peak_ms), step_ms.mid)
    step_ms = replace(step_ms, low=low, basis="model" if fitted else "heuristic")
    tokens = share * sum(one.token_count or 0 for one, _ in planner.stacks(config))
    memory = memory_of(config, planner.layout, training)
    return WholeStep(
        gpus=training.gpus or 1, data_parallel=data, tensor_parallel=config.tp,
        strategy=training.strategy or "fsdp", checkpoint=training.checkpoint or "none",
        micro_batches=training.batches, step_ms=step_ms,
        tokens_per_s_per_gpu=_rate(tokens * 1e3, step_ms), mfu_frac=_rate(peak_ms, step_ms),
        parts=[WholeStepPart(name, time, time.mid / step_ms.mid) for name, time in parts.items()],
        memory_gb=memory.whole / 1e9,
        notes=[*_assumed(asked, run, planner, config, training), *_notes(planner, config, training)],
        expert_parallel=config.ep, pipeline_parallel=config.pp, virtual_stages=config.virtual_stages or 1,
        context_parallel=config.cp, stack=training.stack or "plain",
    )  # fmt: skip


def _usual_gpus(gpu: str, config: ModelConfig) -> int:
    """One node, or as much as ranks that share a model divide, where its collectives were published."""
    shared = config.batch_ranks * config.ep
    return max(1, node_size(gpu) // shared) * shared


def _kernels(present: PlannedStep, pace: Pace, training: Training) -> Iterator[tuple[str, Span]]:
    """Products, attention and memory-bound kernels of all micro-batches, and what is computed again."""
    count, split = training.batches, present.model.tp if training.sequence_parallel else 1
    for name, kind in (
        ("GEMMs", "product"),
        ("attention", "attention"),
        ("experts", "experts"),
        ("memory-bound kernels", "bytes"),
    ):
        found = [part for part in present.parts if part.kind == kind]
        if found:
            yield name, _as_run(found, pace, split) * count
    if training.checkpoint != "none":
        yield (
            "recompute",
            total(
                _as_run([part], pace, split) * (share * count)
                for part in present.parts
                if (share := _again(part, training))
            ),
        )


def _again(part: PlannedPart, training: Training) -> float:
    """How much of it is computed once more in the backward."""
    if part.role != "forward" or part.component in _OUTSIDE:
        return 0.0
    return _AGAIN[training.checkpoint or "none"].get(part.kind, 0.0)


def _busy(planner: Planner, stage: ModelConfig, training: Training, pace: Pace) -> dict[str, Span]:
    """What every micro-batch takes on a stage."""
    found = dict(_kernels(planner.step(stage), pace, training))
    if stage.ep > 1:
        found["experts' all-to-all"] = planned_exchange.to_experts(planner, stage, training)
        for name in found.keys() & {"experts", "experts' all-to-all"}:
            found[name] = replace(found[name], high=_UNEVEN * found[name].high)
    return found


def _exchanged(
    planner: Planner, config: ModelConfig, training: Training, pace: Pace
) -> Iterator[tuple[str, Span]]:
    """What GPUs send to one another in a step, and what pipeline stages wait for one another."""
    stage = busiest_stage(config)
    if (training.gpus or 1) == 1:
        return
    parts = planner.step(stage).parts
    backward = sum(part.time_ms.mid for part in parts if part.role != "forward")
    scores = sum(part.time_ms.mid for part in parts if part.kind == "attention") * training.batches
    found = planned_exchange.tensor_parallel(planner, stage, training, pace.tensor)
    found = found.joined(planned_exchange.context_parallel(planner, stage, training, scores))
    found = found.joined(planned_exchange.data_parallel(planner, config, training, backward, pace))
    if config.pp == 1:
        yield "communication", found
        return
    yield "communication", found.joined(planned_exchange.to_stages(planner, config, training))
    yield "pipeline bubble", _bubble(planner, config, training, pace)


def _bubble(planner: Planner, config: ModelConfig, training: Training, pace: Pace) -> Span:
    """What a stage waits for: the first micro-batch's way through the others, and the last one's way back.

    (stages - 1) / micro-batches of the work in 1F1B, over the turns where stages are interleaved (arXiv
    2104.04473, 2.2). The last stage has the vocabulary besides, which the others wait for each time.
    """
    one, stage = replace(training, micro_batches=1), busiest_stage(config)
    whole, here = (
        total(
            (
                *_busy(planner, x, one, pace).values(),
                planned_exchange.tensor_parallel(planner, x, one, pace.tensor),
            )
        )
        for x in (replace(config, pipeline_parallel=None), stage)
    )
    turns = config.virtual_stages or 1
    low, mid, high = ((getattr(whole, end) - getattr(here, end)) / turns for end in ("low", "mid", "high"))
    return Span(low, mid, high, whole.basis)


def _as_fast_as_kernels(parts: dict[str, Span], present: PlannedStep, training: Training) -> dict[str, Span]:
    """The products at no less than the low end of their own prediction, however little of a step is known."""
    least = sum(min(part.time_ms.low, part.compiled_ms) for part in present.parts if part.kind == "product")
    found = parts["GEMMs"]
    return {"GEMMs": replace(found, low=max(found.low, least * training.batches))}


def _as_run(parts: Iterable[PlannedPart], pace: Pace, split: int) -> Span:
    """Their time in a step. Attention at its low end is the kernel that a recent PyTorch picks.

    That of experts is of their layer alone, that of attention with a bias a guess of what runs. ``split``
    sequence-parallel ranks share what is as wide as the stream.
    """
    low = mid = high = 0.0
    for part in parts:
        if part.kind == "experts" or (part.kind == "attention" and part.time_ms.basis == "heuristic"):
            own = part.time_ms
            low, mid, high = low + own.low, mid + own.mid, high + own.high
            continue
        alone, casts = part.time_ms.mid - part.cast_ms, pace.casts * part.cast_ms
        least = min(alone, part.compiled_ms)  # torch.compile pads what is misaligned
        alone = least if pace.fused else alone
        if part.kind == "bytes":
            least = alone = part.time_ms.low / (split if part.component in _STREAM else 1)
        factor = {"product": pace.products, "attention": pace.attention, "bytes": pace.moved}[part.kind]
        mid, high = mid + factor * alone + casts, high + factor * alone + casts
        if part.kind == "bytes" and pace.least_moved is not None:
            factor = pace.least_moved
        low += (1.0 if part.kind == "attention" else factor) * least + casts
    return Span(low, mid, high, "model")


def _optimizer(planner: Planner, config: ModelConfig, training: Training, data: int) -> Span:
    """Each weight's states once a step, by the GPU that holds them, and its gradients of each micro-batch."""
    held, moved = config.held_parameters, 0.0
    if training.strategy != "fsdp" and training.stack == "plain":  # else as shards, or within GEMMs
        moved = _SUMMED_BYTES * held * (training.batches - 1)
    if training.strategy in ("fsdp", "zero1"):
        held = (config.parameters or 0) / config.tp / data / config.cp
    moved += _OPTIMIZER_BYTES * held
    bandwidth = (planner.gpu.bandwidth_gbps or math.inf) * BANDWIDTH_FRAC
    return Span.exactly(moved / bandwidth / 1e6, "model")


def _launches(present: PlannedStep, training: Training, *, python: bool, fused: bool) -> float:
    """Kernels of a step; a layer that GPUs share has four collectives, with sequence parallelism ten."""
    model, own = present.model, training.stack == "megatron"
    layers = model.all_layers / (2 if model.decoder_layers else 1)  # of a stack
    found = (10.0 if training.sequence_parallel else 4.0) * layers if model.tp > 1 else 0.0
    for part in present.parts:
        many: float = part.calls
        if part.kind == "bytes":
            small = _SMALL_IN_PYTHON[part.role] if python and not own else _SMALL_KERNELS
            many = (1 if fused else small) * (1 if part.component in _OUTSIDE else layers)
        elif part.kind == "experts":
            held = part.sizes[3] if own else 0
            many = (_EXPERT_KERNELS + _GEMMS_OF_EXPERT[part.role] * held) * part.calls
        found += many * (1.0 + _again(part, training))
    return found * training.batches


def _waits(parts: dict[str, Span], launches: float, *, nodes: int) -> dict[str, Span]:
    """What the GPU waits for: the CPU, where it takes longer than all kernels, and the slowest node."""
    busy = total(parts.values()).mid
    gaps = [max(0.0, launches * each / 1e3 - busy) for each in _LAUNCH_US]
    found = {"waiting for the CPU": Span(gaps[0], gaps[1], gaps[2], "heuristic")} if gaps[2] else {}
    if nodes > 1:
        found["waiting for other nodes"] = Span.exactly(paces.NODES_FRAC * math.log2(nodes) * busy, "model")
    return found


def _within(name: str, time: Span, pace: Pace) -> Span:
    """With the errors of ``pace``; experts run no faster than alone, their all-to-all has its own range."""
    if name == "experts' all-to-all":
        return time
    fast = 0.0 if name == "experts" else pace.error if pace.fast_error is None else pace.fast_error
    return Span(time.low * math.exp(-fast), time.mid, time.high * math.exp(pace.error), time.basis)


def _rate(amount_ms: float, time: Span) -> Span:
    """``amount_ms`` over a time: its ends change places."""
    low, mid, high = (amount_ms / (end or math.inf) for end in (time.high, time.mid, time.low))
    return Span(low, mid, high, time.basis)


def _operations(planner: Planner, config: ModelConfig) -> float:
    """Of a micro-batch, forward and backward, as MFU counts: experts and keys of a token, no recompute.

    Heads count with the mean width of keys and values, which differ in latent attention.
    """
    values, found = config.latent.value if config.latent else config.head_dim, 0.0
    width = (config.heads or 0) * ((config.head_dim or 0) + (values or 0)) / 2
    for one, layout in planner.stacks(replace(config, context_parallel=None)):
        used = replace(one, tied=True, experts=layout.experts_per_token, beside=None)
        keys = sum(
            call.calls * min(call.keys or call.sequence, call.window or call.keys or call.sequence)
            for call in attention_calls(one, layout)
        )
        found += (one.token_count or 0) * (6.0 * (used.parameters or 0) + 12.0 * width * keys)
        crossed = cross_linears(replace(one, tensor_parallel=None), layout)
        found += 6.0 * sum(linear.rows * linear.into * linear.out * linear.calls for linear in crossed)
    return found


def _peak(planner: Planner) -> float:
    """TFLOP/s."""
    peak = planner.gpu.peak(planner.dtype)
    if not peak:
        raise InputError(f"the {planner.dtype} peak of {planner.gpu.title} is not known: no MFU can be given")
    return peak


def _unlike(planner: Planner, config: ModelConfig, training: Training) -> list[str]:
    """What sets a step apart from those that were fitted: decoders in bf16, of Megatron-Core in fp8 too."""
    also = ("fp8",) if _megatron(planner, training) or training.stack == "compiled" else ()
    low = planner.dtype in LOW_PRECISION and planner.dtype not in also
    found = [words.low_precision_unfitted(planner.dtype)] if low else []
    found += [words.PATCHES_UNFITTED] if planner.layout.patches else []
    found += [words.BOTH_UNFITTED] if config.decoder_layers else []
    found += [words.LATENT_UNFITTED] if config.latent else []
    found += [words.CONTEXT_UNFITTED] if config.cp > 1 and not _megatron(planner, training) else []
    found += [words.TENSOR_UNFITTED] if config.tp > 1 and not _megatron(planner, training) else []
    return found + ([words.EXPERTS_UNFITTED] if planner.layout.experts_per_token else [])


def _has_fit(planner: Planner, config: ModelConfig, training: Training) -> bool:
    """Were there steps of such decoders on this GPU to fit?"""
    if _megatron(planner, training):
        return planner.gpu.name in paces.FITTED_MEGATRON
    return planner.gpu.name in paces.FITTED and config.pp == 1


def _megatron(planner: Planner, training: Training) -> bool:
    """Is the pace that of published steps of Megatron-Core?"""
    return training.stack == "megatron" and paces.has_megatron(planner.gpu)


def _assumed(
    asked: Training, run: Run, planner: Planner, config: ModelConfig, training: Training
) -> Iterator[str]:
    """What nobody said, and changes the step."""
    if asked.gpus is None:
        yield words.gpus_assumed(training.gpus)
    if config.pp > 1 and asked.micro_batches is None and run.global_batch is None:
        yield words.ONE_MICRO_BATCH
    if (asked.stack or run.stack) is None and training.stack == "plain":
        yield words.STACK_ASSUMED + (words.MEGATRON_TOO if paces.has_megatron(planner.gpu) else "")


def _notes(planner: Planner, config: ModelConfig, training: Training) -> Iterator[str]:
    if _megatron(planner, training):
        yield words.AS_MEGATRON
        if planner.gpu.name not in paces.FITTED_MEGATRON:
            yield words.gpu_unfitted(planner.gpu.title)
    elif training.stack == "compiled":
        yield words.AS_COMPILED
    elif paces.is_blackwell(planner.gpu):
        yield words.blackwell_unfitted(planner.gpu.title)
        if (training.gpus or 1) > 1:
            yield words.FAST_END_HIDES
    else:
        fitted, fast = planner.gpu.name in paces.FITTED, words.fast_end(training.gpus or 1)
        yield words.AS_PUBLISHED if fitted else words.gpu_unfitted(planner.gpu.title)
        yield f"{words.MEGATRON_AS_PLAIN}; {fast}" if training.stack == "megatron" else fast
    yield from _unlike(planner, config, training)
    fitted = training.strategy == "fsdp" or _megatron(planner, training)
    if not fitted and training.strategy is not None and (training.gpus or 1) > 1:
        yield words.strategy_unfitted(training.strategy)
    if planner.layout.experts_per_token:
        if config.ep == 1:
            yield words.NO_EXPERT_PARALLELISM
        else:
            yield words.EVEN_CHOICE
            yield words.ALL_TO_ALL
    if config.pp > 1:
        yield words.PIPELINE if _megatron(planner, training) else words.PIPELINE_UNFITTED
    if pcie_frac(planner.gpu.name, training.gpus or 1) < 1:
        yield words.PCIE
    yield words.NOT_IN_STEP
