"""Whole steps: what is in them, and steps that others published and that shaped no constant."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import steps
from benchmarks.silicon import FOLDER
from tests.advice.configs import MIXTRAL_8X7B, gpt3_2_7b, read
from tests.said import Listener
from tracelens.config import config_from_flags
from tracelens.config.configuration import Layout
from tracelens.config.training import STACKS, Training
from tracelens.errors import InputError, UsageError
from tracelens.gemm.predict.attention import predict_attention
from tracelens.gemm.predict.attention_call import AttentionProblem
from tracelens.hardware import find_gpu
from tracelens.results import Estimate
from tracelens.results.suggestions import Checkpoint, WholeStep
from tracelens.step.paces import pace_of
from tracelens.step.planned_step import Planner
from tracelens.step.whole_step import whole_step

_LLAMA_8B = {"hidden": 4096, "heads": 32, "kv_heads": 8, "layers": 32, "ffn": 14336, "vocab": 128256}
_LLAMA_70B = {"hidden": 8192, "heads": 64, "kv_heads": 8, "layers": 80, "ffn": 28672, "vocab": 128256}


def _step(training: Training, gpu: str = "a100-sxm-80gb", sizes: dict[str, int] | None = None) -> WholeStep:
    gated = "kv_heads" in (sizes or {})
    config = config_from_flags(sizes, gated=gated, tied=not gated) if sizes else gpt3_2_7b(vocab=50304)
    return whole_step(Planner(config.layout, gpu=find_gpu(None, override=gpu)), config.model, training)


def _part(step: WholeStep, name: str) -> float:
    return next((part.time_ms.mid or 0.0 for part in step.parts if part.name == name), 0.0)


def _mid(value: Estimate) -> float:
    assert value.low is not None and value.mid is not None and value.high is not None
    assert 0 < value.low <= value.mid <= value.high
    return value.mid


def test_parts_add_up_and_rates_follow_from_the_time() -> None:
    step = _step(Training(gpus=16, micro_batches=3))
    assert sum(part.time_ms.mid or 0 for part in step.parts) == pytest.approx(_mid(step.step_ms))
    assert sum(part.frac for part in step.parts) == pytest.approx(1)
    assert _mid(step.tokens_per_s_per_gpu) == pytest.approx(3 * 8192 / _mid(step.step_ms) * 1e3)
    config = gpt3_2_7b(vocab=50304).model
    per_token = 6 * (config.parameters or 0) + 12 * 32 * 2560 * 2048
    assert _mid(step.mfu_frac) == pytest.approx(_mid(step.tokens_per_s_per_gpu) * per_token / 312e12)


def test_full_recompute_is_the_layers_forward_once_more_and_saves_memory() -> None:
    none, full = _step(Training(gpus=8)), _step(Training(gpus=8, checkpoint="full"))
    kernels = sum(_part(none, name) for name in ("GEMMs", "attention", "memory-bound kernels"))
    assert 0.25 * kernels < _part(full, "recompute") < 0.34 * kernels
    assert _mid(full.mfu_frac) < _mid(none.mfu_frac)
    assert full.memory_gb < 0.6 * none.memory_gb


def test_fsdp_gathers_for_every_micro_batch_and_ddp_once_a_step() -> None:
    def communication(strategy: str, count: int) -> float:
        return _part(_step(Training(8, strategy, micro_batches=count)), "communication")  # type: ignore[arg-type]

    assert communication("fsdp", 4) == pytest.approx(4 * communication("fsdp", 1))
    assert communication("ddp", 4) == communication("ddp", 1) > 0
    assert _step(Training(8, "ddp")).memory_gb > 2 * _step(Training(8, "fsdp")).memory_gb


def test_a_small_micro_batch_pays_for_the_exchange() -> None:
    """As measured: MPT-13B on 8 A100 40 GB reaches 44 % with 4 sequences and 52 % with 16 on more GPUs."""
    sizes = {"hidden": 5120, "heads": 40, "layers": 40, "vocab": 50368}
    steps_of = [_step(Training(8), sizes={**sizes, "micro_batch": count}) for count in (2, 8)]
    shares = [_part(step, "communication") / _mid(step.step_ms) for step in steps_of]
    assert shares[0] > 2.5 * shares[1]


def test_tensor_parallel_ranks_exchange_activations() -> None:
    sizes = {"hidden": 4096, "heads": 32, "layers": 32, "vocab": 50304, "micro_batch": 4}
    shared = _step(Training(8, "tp"), sizes={**sizes, "tensor_parallel": 8})
    assert (shared.tensor_parallel, shared.data_parallel) == (8, 1)
    assert _part(shared, "communication") > 0.1 * _mid(shared.step_ms)
    assert _mid(shared.mfu_frac) < _mid(_step(Training(8), sizes=sizes).mfu_frac)


def test_of_tensor_parallel_ranks_only_megatron_s_steps_were_fitted() -> None:
    """Qwen3 32B in torchtitan, TP 8, 64 H100 (pull request 1690), is 36 % slower than the middle."""
    sizes = {"hidden": 5120, "heads": 64, "kv_heads": 8, "head_dim": 128, "layers": 64, "ffn": 25600,
             "vocab": 151936, "sequence": 4096, "micro_batch": 32, "tensor_parallel": 8}  # fmt: skip
    plain, megatron = (
        _step(Training(64, checkpoint="full", stack=stack), "h100-sxm", sizes)
        for stack in ("plain", "megatron")
    )
    assert [one.step_ms.basis for one in (plain, megatron)] == ["heuristic", "model"]
    low, high = plain.tokens_per_s_per_gpu.low or 0.0, plain.tokens_per_s_per_gpu.high or 0.0
    assert low < 1.02 * 873 < high
    assert any("tensor-parallel" in note for note in plain.notes)


def test_small_kernels_wait_for_the_cpu() -> None:
    small = _step(
        Training(1),
        sizes={"hidden": 768, "heads": 12, "layers": 12, "vocab": 50304, "sequence": 128, "micro_batch": 1},
    )
    assert _part(small, "waiting for the CPU") > 0.3 * _mid(small.step_ms)
    assert _part(_step(Training(1)), "waiting for the CPU") == 0


def test_a_compiled_step_pads_its_gemms_and_hardly_waits_for_the_cpu() -> None:
    small = {"hidden": 768, "heads": 12, "layers": 12, "micro_batch": 2, "sequence": 1024}
    odd, even = (
        _step(Training(gpus=1, stack="compiled"), sizes=small | {"vocab": vocab}) for vocab in (50257, 50304)
    )
    assert _part(odd, "GEMMs") == pytest.approx(_part(even, "GEMMs"), rel=0.1)  # its copies
    plain = [_step(Training(gpus=1), sizes=small | {"vocab": vocab}) for vocab in (50257, 50304)]
    assert _part(plain[0], "GEMMs") > 1.2 * _part(plain[1], "GEMMs")
    few = small | {"vocab": 50304, "micro_batch": 1, "sequence": 512}
    waits = [_part(_step(Training(1, stack=stack), sizes=few), "waiting for the CPU") for stack in STACKS]
    assert waits[1] < 0.5 * waits[0]
    assert _part(even, "memory-bound kernels") < 0.5 * _part(plain[1], "memory-bound kernels")


def test_more_nodes_are_slower_but_not_much() -> None:
    one, many = (_mid(_step(Training(gpus)).step_ms) for gpus in (8, 512))
    assert 1.03 < many / one < 1.2


def test_any_count_of_gpus_of_a_node_uses_its_links() -> None:
    found = [_part(_step(Training(gpus), "h100-sxm", _LLAMA_8B), "communication") for gpus in range(2, 9)]
    assert found == sorted(found)
    assert found[-1] < 1.5 * found[0]
    even, ragged = (_part(_step(Training(gpus), "h100-sxm", _LLAMA_8B), "communication") for gpus in (16, 11))
    assert even < ragged < 2 * even  # nodes of five and six have fewer cards than two of eight


def test_over_pcie_the_machine_decides(said: Listener) -> None:
    """One L40S machine gathers 1.2 GB/s among eight, 20.9 between two."""
    eight, two = (_step(Training(gpus), "l40s", _LLAMA_8B) for gpus in (8, 2))
    parts = {part.name: part.time_ms for part in eight.parts}
    assert (parts["communication"].low or 0) < 0.1 * _part(eight, "communication")
    assert (eight.tokens_per_s_per_gpu.high or 0) > 3 * _mid(eight.tokens_per_s_per_gpu)
    said([note for note in eight.notes if note not in two.notes])


def test_gpus_that_are_assumed_divide_into_those_that_share_a_layer() -> None:
    sizes = {**_LLAMA_8B, "heads": 24, "kv_heads": 6, "head_dim": 128, "ffn": 14400, "tensor_parallel": 3}
    assert _step(Training(), "h100-sxm", sizes).gpus == 6


def test_what_was_not_published_is_refused(said: Listener) -> None:
    with pytest.raises(InputError) as error:
        _step(Training(8), gpu="rtx-4090")
    said(error.value)
    assert _step(Training(), gpu="rtx-4090").gpus == 1
    assert _step(Training(), gpu="h200").gpus == 8
    with pytest.raises(UsageError) as wrong:
        _step(
            Training(6),
            sizes={"hidden": 4096, "heads": 32, "layers": 32, "vocab": 50304, "tensor_parallel": 4},
        )
    said(wrong.value)
    with pytest.raises(UsageError, match="zero9"):
        Training(8, "zero9").checked()  # type: ignore[arg-type]


def test_a_generation_without_published_steps_has_a_wider_range() -> None:
    def width(gpu: str) -> float:
        step = _step(Training(8), gpu=gpu).step_ms
        return (step.high or 0) / _mid(step)

    assert width("h200") > width("h100-sxm") * 1.1
    assert _step(Training(8), gpu="h200").step_ms.basis == "heuristic"


@pytest.mark.parametrize("gpu", ["rtx-4090", "rtx-3060", "rtx-5070-ti", "l40s", "b200", "a100-sxm-80gb"])
def test_no_step_is_faster_than_its_gemms_alone(gpu: str) -> None:
    step = _step(Training(gpus=1), gpu, _LLAMA_8B)
    planner = Planner(Layout(fused_gate=True, rope=True), gpu=find_gpu(None, override=gpu))
    present = planner.step(config_from_flags(_LLAMA_8B, gated=True, tied=False).model)
    least = sum(part.time_ms.low or 0.0 for part in present.parts if part.kind == "product")
    products = next(part for part in step.parts if part.name == "GEMMs")
    assert (products.time_ms.low or 0.0) >= 0.999 * least > 0
    # GeForce boards boost above the clock of the printed peak: a 3060 was reported to reach all of it
    assert (step.mfu_frac.high or 0.0) < (1.1 if gpu.startswith("rtx") else 1)


def test_the_fast_end_of_one_gpu_hides_no_exchanges(said: Listener) -> None:
    alone, eight = (_step(Training(gpus)).notes for gpus in (1, 8))
    said([note for note in alone if note not in eight])


def test_the_fast_ends_of_parts_add_up_to_no_more_than_the_peak(tmp_path: Path) -> None:
    """Experts at their peak beside attention and GEMMs at their best came to 105 % of it."""
    config = read(tmp_path, MIXTRAL_8X7B)
    planner = Planner(config.layout, gpu=find_gpu(None, override="h100-sxm"))
    mfu = whole_step(planner, config.model, Training(8)).mfu_frac
    assert 0.2 < (mfu.mid or 0.0) < (mfu.high or 2.0) <= 1.0


def test_what_was_not_there_to_fit_is_said(tmp_path: Path, said: Listener) -> None:
    config = read(tmp_path, MIXTRAL_8X7B)
    planner = Planner(config.layout, gpu=find_gpu(None, override="h100-sxm"))
    step = whole_step(planner, config.model, Training(64))
    assert not any("mixture" in note for note in _step(Training(8)).notes)
    said(step.notes)
    per_token = _mid(step.mfu_frac) * 989e12 / _mid(step.tokens_per_s_per_gpu)
    assert 6 * 12e9 < per_token < 6 * 14.5e9  # of the two experts that a token goes to: 13B of 47B weights


#: pytorch/torchtitan, docs/performance.md: FSDP2 without torch.compile at 8192 tokens, tokens/s and GPU.
#: Selective checkpointing lies between none and full.
_PUBLISHED = [
    ("a100-sxm-80gb", _LLAMA_8B, 1, 64, ("full", "none"), 2904.0),
    ("a100-sxm-80gb", _LLAMA_70B, 1, 64, ("full", "full"), 331.0),
    ("h100-sxm", _LLAMA_8B, 2, 8, ("full", "none"), 5762.0),
]


@pytest.mark.parametrize(("gpu", "sizes", "batch", "gpus", "ends", "speed"), _PUBLISHED)
def test_steps_of_another_family_and_framework(
    gpu: str, sizes: dict[str, int], batch: int, gpus: int, ends: tuple[str, str], speed: float
) -> None:
    slow, fast = (
        _step(Training(gpus, checkpoint=end), gpu, {**sizes, "sequence": 8192, "micro_batch": batch})  # type: ignore[arg-type]
        for end in ends
    )
    assert (slow.tokens_per_s_per_gpu.low or 0) < speed < (fast.tokens_per_s_per_gpu.high or 0)
    assert 0.9 * _mid(slow.tokens_per_s_per_gpu) < speed < 1.1 * _mid(fast.tokens_per_s_per_gpu)


#: pytorch/torchtitan b5bcd76c, benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md: tensor-parallel 8 in
#: bf16, compiled, 8192 tokens; 8B with checkpoints of some operators, 70B of all.
@pytest.mark.parametrize(
    ("sizes", "batch", "gpus", "checkpoint", "speed"),
    [(_LLAMA_8B, 12, 64, "none", 4378.0), (_LLAMA_70B, 16, 256, "full", 597.3)],
)
def test_steps_of_tensor_parallel_ranks_under_fsdp(
    sizes: dict[str, int], batch: int, gpus: int, checkpoint: Checkpoint, speed: float
) -> None:
    split = {**sizes, "sequence": 8192, "micro_batch": batch, "tensor_parallel": 8}
    found = _step(Training(gpus, checkpoint=checkpoint), "h100-sxm", split).tokens_per_s_per_gpu
    assert (found.low or 0) < speed < (found.high or 0)
    assert _mid(found) == pytest.approx(speed, rel=0.1)


#: arXiv 2104.04473, table 1 (A100 80GB, full recompute): sizes, GPUs, micro-batches of 4 and TFLOP/s of a
#: GPU, which count 96 l h^2 (1 + s / 6h + V / 16lh) operations a token.
_MEGATRON = [
    ({"hidden": 2304, "heads": 24, "layers": 24}, 32, 4, 137.0),
    ({"hidden": 3072, "heads": 32, "layers": 30, "tensor_parallel": 2}, 64, 4, 138.0),
    ({"hidden": 4096, "heads": 32, "layers": 36, "tensor_parallel": 4}, 128, 4, 142.0),
    ({"hidden": 6144, "heads": 48, "layers": 40, "tensor_parallel": 8}, 256, 8, 135.0),
]


def _megatron(sizes: dict[str, int], gpus: int, micro_batches: int) -> tuple[WholeStep, float]:
    """The step, and its tera-operations on a GPU as the paper counts them."""
    strategy = "tp" if "tensor_parallel" in sizes else "ddp"
    training = Training(gpus, strategy=strategy, checkpoint="full", micro_batches=micro_batches)  # type: ignore[arg-type]
    tokens = {"vocab": 51200, "sequence": 2048, "micro_batch": 4}
    hidden, layers = sizes["hidden"], sizes["layers"]
    count = 96 * layers * hidden**2 * (1 + 2048 / (6 * hidden) + 51200 / (16 * layers * hidden))
    done = count * 4 * 2048 * micro_batches / sizes.get("tensor_parallel", 1) / 1e12
    return _step(training, "a100-sxm-80gb", sizes | tokens), done


@pytest.mark.parametrize(("sizes", "gpus", "micro_batches", "tflops"), _MEGATRON[2:])
def test_tensor_parallel_steps_of_megatron(
    sizes: dict[str, int], gpus: int, micro_batches: int, tflops: float
) -> None:
    step, done = _megatron(sizes, gpus, micro_batches)
    assert (step.step_ms.low or 0) / 1e3 < done / tflops < (step.step_ms.high or 0) / 1e3
    assert done / _mid(step.step_ms) * 1e3 == pytest.approx(tflops, rel=0.1)


@pytest.mark.parametrize(("sizes", "gpus", "micro_batches", "tflops"), _MEGATRON)
def test_what_megatron_took_longer_is_its_attention(
    sizes: dict[str, int], gpus: int, micro_batches: int, tflops: float
) -> None:
    """In 2021 the scores went through memory: with such attention small models are as slow as measured."""
    step, done = _megatron(sizes, gpus, micro_batches)
    gpu, heads = find_gpu(None, override="a100-sxm-80gb"), sizes["heads"] // sizes.get("tensor_parallel", 1)

    def layer_us(backend: str | None) -> float:
        forward, backward = (
            predict_attention(
                AttentionProblem(
                    batch=4, heads=heads, kv_heads=heads, seq_q=2048, seq_k=2048, dtype="fp16", causal=True,
                    head_dim=sizes["hidden"] // sizes["heads"], direction=direction,
                ),
                gpu=gpu, backend=backend,
            )
            for direction in ("forward", "backward")
        )  # fmt: skip
        return 2 * _mid(forward.time_us) + _mid(backward.time_us)  # forward once more: full recompute

    longer_us = layer_us("math") - layer_us(None) * pace_of(gpu).attention
    then_ms = _mid(step.step_ms) + longer_us * sizes["layers"] * micro_batches / 1e3
    assert done / then_ms * 1e3 == pytest.approx(tflops, rel=0.1)


@pytest.mark.skipif(
    not (FOLDER / "mpt_steps.csv").exists(), reason="published steps are not beside the checkout"
)
def test_published_steps_of_models_left_out_of_the_fit() -> None:
    for gpus in steps.KINDS.values():
        found = steps.judge([row for row in steps.rows() if row.gpu in gpus and steps.left_out(row.model)])
        assert math.expm1(statistics.median(map(abs, found.errors))) <= 0.12
        assert statistics.mean(found.inside) >= 0.9
        assert statistics.mean(found.ordered) >= 0.9


_RECORDED = Path(steps.__file__).parent / "gpu" / "results" / "h100-sxm"


def test_steps_of_our_own_h100_eager_and_compiled() -> None:
    """GPT-2 124M and layers of larger models, timed by CUDA events; torch.compile is at the fast end.

    A vocabulary of 50257 or an ffn of 10922 is padded by it: the fast end has the padded GEMMs. Nothing of
    the compiled stack is fitted to these.
    """
    errors, compiled = [], []
    for name in ("first_step.json", "captures.json"):
        for one in json.loads((_RECORDED / name).read_text(encoding="utf-8"))["data"]["captures"]:
            if one["family"] not in ("gpt", "llama"):
                continue
            gated, dims = one["family"] == "llama", one["dims"]
            sizes = {key: dims[key] for key in ("hidden", "heads", "ffn", "vocab", "sequence")}
            sizes |= {"kv_heads": dims["kv_heads"] or dims["heads"], "micro_batch": dims["batch"]}
            config = config_from_flags(sizes | {"layers": one["layers"]}, gated=gated, tied=not gated)
            layout = replace(config.layout, fused_qkv=not gated, fused_gate=False)
            again: Checkpoint = "full" if one["how"] == "checkpoint" else "none"
            planner = Planner(layout, gpu=find_gpu(None, override="h100-sxm"))
            step_ms = whole_step(planner, config.model, Training(1, "ddp", again)).step_ms
            took = statistics.median(one["step_ms"]["before"])
            assert step_ms.low is not None and step_ms.mid is not None and step_ms.high is not None
            assert step_ms.low < took < step_ms.high, one["trace"]
            if one["how"] != "compile":
                errors.append(abs(step_ms.mid / took - 1))
                continue
            fused = whole_step(planner, config.model, Training(1, "ddp", again, stack="compiled")).step_ms
            assert (fused.low or 0) < took < (fused.high or 0), one["trace"]
            compiled.append(abs(_mid(fused) / took - 1))
    assert len(errors) == 8 and statistics.median(errors) < 0.05 and max(errors) < 0.09
    assert len(compiled) == 4 and statistics.median(compiled) < 0.1 and max(compiled) < 0.2
