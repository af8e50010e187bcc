"""Steps of pipeline stages, as others published them; nothing was fitted to any of these.

A100: Narayanan et al. (arXiv 2104.04473), table 1, with the micro-batches and turns of NVIDIA/Megatron-LM,
examples/academic_paper_scripts/sc21/run_table_1.sh (d98e8a64), and Korthikanti et al. (arXiv 2205.05198),
table 5. Later: docs/performance-summary of NVIDIA-NeMo/Megatron-Bridge (067f987d, version 0.4.2) and the
Llama 3 paper (arXiv 2407.21783), table 4.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from tests.advice.test_planned_by_hand import gpt
from tests.advice.test_whole_step import _part
from tests.said import Listener
from tracelens.config import config_from_flags, read_config
from tracelens.config.configuration import Run
from tracelens.config.training import Training
from tracelens.errors import InputError, UsageError
from tracelens.hardware import find_gpu
from tracelens.results.suggestions import WholeStep
from tracelens.step.activations import activation_bytes
from tracelens.step.memory import memory_of
from tracelens.step.paces import pace_of
from tracelens.step.planned_kernels import busiest_stage
from tracelens.step.planned_step import Planner
from tracelens.step.whole_step import whole_step
from tracelens.step.words import planned as words
from tracelens.suggestions import suggest

#: name, t, p, micro-batch, global batch, layers, hidden, heads, GPUs, layers of a turn, TFLOP/s of a GPU
_SC21 = [
    ("1.7B", 1, 1, 16, 512, 24, 2304, 24, 32, None, 137),
    ("3.6B", 2, 1, 16, 512, 30, 3072, 32, 64, None, 138),
    ("7.5B", 4, 1, 16, 512, 36, 4096, 32, 128, None, 142),
    ("18B", 8, 1, 8, 1024, 40, 6144, 48, 256, None, 135),
    ("39B", 8, 2, 4, 1536, 48, 8192, 64, 512, None, 138),
    ("76B", 8, 4, 2, 1792, 60, 10240, 80, 1024, 5, 140),
    ("145B", 8, 8, 2, 2304, 80, 12288, 96, 1536, 5, 148),
    ("310B", 8, 16, 1, 2160, 96, 16384, 128, 1920, 3, 155),
    ("530B", 8, 35, 1, 2520, 105, 20480, 128, 2520, 1, 163),
    ("1T", 8, 64, 1, 3072, 128, 25600, 160, 3072, None, 163),
]
#: layers, hidden, heads, p, GPUs, batch, micro-batch, turns, seconds with full recompute, and with selective
#: recompute and sequence parallelism
_MLSYS23 = [
    (48, 6144, 64, 1, 8, 4, 4, 1, 1.42, 1.10),
    (96, 12288, 96, 8, 64, 64, 1, 3, 18.13, 13.75),
    (105, 20480, 128, 35, 280, 280, 1, 3, 49.05, 37.83),
    (128, 25600, 160, 64, 512, 512, 1, 1, 94.42, 71.49),
]
_SCRIPT = """
TP={t}
PP={p}
torchrun pretrain_gpt.py --tensor-model-parallel-size ${{TP}} --pipeline-model-parallel-size ${{PP}} \\
    --micro-batch-size {micro} --global-batch-size {batch} --num-layers {layers} --hidden-size {hidden} \\
    --num-attention-heads {heads} --seq-length 2048 --vocab-size 51200 --make-vocab-size-divisible-by 128 \\
    --activations-checkpoint-method uniform {turns}
"""
_405B = {"hidden": 16384, "heads": 128, "kv_heads": 8, "layers": 126, "ffn": 53248, "vocab": 128256,
         "sequence": 8192, "micro_batch": 1}  # fmt: skip
_70B = {"hidden": 8192, "heads": 64, "kv_heads": 8, "layers": 80, "ffn": 28672, "vocab": 128256,
        "sequence": 8192, "micro_batch": 1}  # fmt: skip


def _published_s(row: tuple[object, ...]) -> float:
    """The paper's operations (its section 5.1, recompute counted) at the TFLOP/s it states."""
    _, _, _, _, batch, layers, hidden, _, gpus, _, tflops = row
    b, n, h = float(str(batch)), float(str(layers)), float(str(hidden))
    operations = 96 * b * 2048 * n * h * h * (1 + 2048 / 6 / h + 51200 / 16 / n / h)
    return operations / (float(str(tflops)) * 1e12 * float(str(gpus)))


def _of_script(folder: Path, row: tuple[object, ...]) -> WholeStep:
    _, t, p, micro, batch, layers, hidden, heads, gpus, each, _ = row
    path = folder / "run_table_1.sh"
    turns = f"--num-layers-per-virtual-pipeline-stage {each}" if each else ""
    path.write_text(_SCRIPT.format(t=t, p=p, micro=micro, batch=batch, layers=layers, hidden=hidden,
                                   heads=heads, turns=turns))  # fmt: skip
    found = suggest(path, gpu="a100-sxm-80gb", training=Training(gpus=int(str(gpus)))).step
    assert found is not None and found.checkpoint == "full" and found.strategy == "ddp"
    return found


def _mid(step: WholeStep) -> float:
    assert step.step_ms.mid is not None
    return step.step_ms.mid / 1e3


def test_steps_up_to_a_trillion_weights_take_as_long_as_published(tmp_path: Path) -> None:
    """The two smallest ran 16 sequences of 2021's attention, which writes every score: they took longer."""
    errors, inside = [], []
    for row in _SC21:
        step, published = _of_script(tmp_path, row), _published_s(row)
        errors.append(math.log(_mid(step) / published))
        inside.append((step.step_ms.low or 0) <= 1e3 * published <= (step.step_ms.high or 0))
    assert statistics.median(map(abs, errors)) < 0.04
    assert max(map(abs, errors[2:])) < 0.07 and all(inside[2:])
    assert min(errors[:2]) > -0.32 and max(errors[:2]) < 0


@pytest.mark.parametrize("row", _MLSYS23, ids=lambda row: f"{row[1]}")
def test_interleaved_steps_take_as_long_as_published(row: tuple[float, ...]) -> None:
    layers, hidden, heads, p, gpus, batch, micro, turns = map(int, row[:8])
    sizes = {"hidden": hidden, "heads": heads, "layers": layers, "vocab": 51200, "sequence": 2048,
             "micro_batch": micro, "tensor_parallel": 8, "pipeline_parallel": p}  # fmt: skip
    config = config_from_flags(sizes | ({"virtual_stages": turns} if turns > 1 else {}), gated=False)
    planner = Planner(config.layout, gpu=find_gpu(None, override="a100"))
    full = Training(gpus, "ddp", "full", batch // micro, stack="megatron")
    step = whole_step(planner, config.model, full, run=Run(sequence_parallel=False))
    assert _mid(step) == pytest.approx(row[8], rel=0.08)
    some = replace(full, checkpoint="selective")
    # attention was not fused: in micro-batches of four it took longer, as it does in the table above
    step = whole_step(planner, config.model, some)
    assert _mid(step) == pytest.approx(row[9], rel=0.08 if micro == 1 else 0.19)


@pytest.mark.parametrize(
    ("sizes", "micro", "published"),
    [
        # Llama 3 8B, Llama 2 13B and 70B on 64 A100, "selective op": pytorch/torchtitan 04133643,
        # docs/performance.md; two sequences of the last need too much memory
        ({"hidden": 4096, "heads": 32, "kv_heads": 8, "layers": 32, "ffn": 14336, "vocab": 128256,
          "sequence": 8192}, 1, 2973),
        ({"hidden": 5120, "heads": 40, "layers": 40, "ffn": 13824, "vocab": 32000,
          "sequence": 4096}, 2, 1904),
        ({"hidden": 8192, "heads": 64, "kv_heads": 8, "layers": 80, "ffn": 28672, "vocab": 32000,
          "sequence": 4096}, 1, 355),
    ],
)  # fmt: skip
def test_steps_with_every_second_gemm_again(sizes: dict[str, int], micro: int, published: float) -> None:
    config = config_from_flags(sizes | {"micro_batch": micro}, gated=True, tied=False)
    planner, training = Planner(config.layout, gpu=find_gpu(None, override="a100")), Training(64, "fsdp")
    none, some, full = (
        whole_step(planner, config.model, replace(training, checkpoint=kind))
        for kind in ("none", "selective-op", "full")
    )
    assert some.tokens_per_s_per_gpu.mid == pytest.approx(published, rel=0.09)
    assert (full.tokens_per_s_per_gpu.mid or 0) < (some.tokens_per_s_per_gpu.mid or 0)
    assert full.memory_gb < some.memory_gb < 80 and some.memory_gb < none.memory_gb
    if micro == 1 and published < 400:
        wider = replace(config.model, micro_batch=2)
        assert memory_of(wider, config.layout, replace(training, checkpoint="selective-op")).whole > 80e9


def test_what_is_computed_again() -> None:
    """All of the layers, attention alone, or every second GEMM and all that lies between but attention."""
    config = gpt()
    step = Planner(config.layout, gpu=find_gpu(None, override="a100")).step(config.model)
    outside = ("logits", "loss", "embedding")
    again = [part for part in step.parts if part.role == "forward" and part.component not in outside]
    times = {kind: sum(part.time_ms.low if kind == "bytes" else part.time_ms.mid for part in again
                       if part.kind == kind) for kind in ("product", "attention", "bytes")}  # fmt: skip
    pace = pace_of(find_gpu(None, override="a100"))
    gemms, attention = pace.products * times["product"], pace.attention * times["attention"]
    moved = pace.moved * times["bytes"]
    for kind, expected in (("none", 0.0), ("full", gemms + attention + moved), ("selective", attention),
                           ("selective-op", gemms / 2 + moved)):  # fmt: skip
        assert _part(_step(Training(1, "ddp", kind)), "recompute") == pytest.approx(expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gpu", "sizes", "dtype", "training", "published"),
    [
        ("h100-sxm", _70B | {"tensor_parallel": 4, "pipeline_parallel": 8, "virtual_stages": 5}, "fp8",
         Training(64, "zero1", "none", 128), 1664),
        ("gb200", _405B | {"tensor_parallel": 4, "pipeline_parallel": 16, "virtual_stages": 4}, "fp8",
         Training(256, "zero1", "none", 384), 864),
        ("gb300", _405B | {"tensor_parallel": 4, "pipeline_parallel": 8, "virtual_stages": 4}, "fp8",
         Training(256, "zero1", "none", 192), 1024),
        # 430 and 400 TFLOP/s, over 6 x 405.85e9 weights and half of the scores
        ("h100-sxm", _405B | {"tensor_parallel": 8, "pipeline_parallel": 16, "virtual_stages": 7}, "bf16",
         Training(8192, "fsdp", "none", 32), 170),
        ("h100-sxm", _405B | {"tensor_parallel": 8, "pipeline_parallel": 16, "virtual_stages": 7}, "bf16",
         Training(16384, "fsdp", "none", 16), 158),
    ],
)  # fmt: skip
def test_later_steps_lie_within_the_range(
    gpu: str, sizes: dict[str, int], dtype: str, training: Training, published: float
) -> None:
    config = config_from_flags(sizes, gated=True, tied=False)
    planner = Planner(config.layout, gpu=find_gpu(None, override=gpu), dtype=dtype)
    training = replace(training, overlap=True)  # as NVIDIA's recipes say
    rate = whole_step(planner, config.model, training).tokens_per_s_per_gpu
    assert rate.low is not None and rate.mid is not None and rate.high is not None
    assert rate.low <= published <= rate.high
    assert abs(math.log(published / rate.mid)) < 0.25


def _step(training: Training, **sizes: int) -> WholeStep:
    config = gpt(**sizes)
    return whole_step(Planner(config.layout, gpu=find_gpu(None, override="a100")), config.model, training)


def test_the_bubble_is_the_way_through_the_other_stages() -> None:
    """(p - 1) times a stage, over the turns; with the work of the stages that have no vocabulary."""
    kinds = ("GEMMs", "attention", "memory-bound kernels")
    one = _step(Training(1, "ddp"))
    whole = sum(_part(one, name) for name in kinds)
    for p, turns in ((2, 1), (4, 1), (4, 3)):
        more = {"virtual_stages": turns} if turns > 1 else {}
        found = _step(Training(p, "ddp", micro_batches=7), pipeline_parallel=p, **more)
        stage = sum(_part(found, name) for name in kinds) / 7
        assert _part(found, "pipeline bubble") == pytest.approx((whole - stage) / turns)
        assert (found.pipeline_parallel, found.virtual_stages, found.data_parallel) == (p, turns, 1)
    assert _part(one, "pipeline bubble") == 0.0


def test_more_micro_batches_make_the_bubble_a_smaller_share_and_turns_divide_it() -> None:
    few, many, turned = (
        _step(Training(4, "ddp", micro_batches=count), pipeline_parallel=4, **more)
        for count, more in ((4, {}), (32, {}), (4, {"virtual_stages": 6}))
    )
    share = [_part(step, "pipeline bubble") / _mid(step) for step in (few, many, turned)]
    assert share[0] > 3 * share[1] and share[0] > 3 * share[2]
    assert few.mfu_frac.mid is not None and many.mfu_frac.mid is not None
    assert few.mfu_frac.mid < many.mfu_frac.mid


def test_the_first_stage_keeps_as_many_micro_batches_as_there_are_stages() -> None:
    config = gpt(pipeline_parallel=4)
    stage = busiest_stage(config.model)
    assert stage.layers == (config.model.layers or 0) // 4
    inner = activation_bytes(stage, config.layout) - 2 * 3 * (stage.token_count or 0) * (stage.vocab or 0)
    kept = memory_of(config.model, config.layout, Training(4, "ddp", micro_batches=9)).activations
    assert kept == pytest.approx(max(4 * inner, activation_bytes(stage, config.layout)))
    fewer = memory_of(config.model, config.layout, Training(4, "ddp", micro_batches=2)).activations
    assert fewer == pytest.approx(max(2 * inner, activation_bytes(stage, config.layout)))


def test_a_distributed_optimizer_shares_its_states_alone() -> None:
    config = gpt()
    held = config.model.held_parameters
    assert memory_of(config.model, config.layout, Training(8, "zero1")).states == pytest.approx(
        4 * held + 12 * held / 8
    )
    plain, shared = _step(Training(8, "ddp")), _step(Training(8, "zero1"))
    assert _part(shared, "optimizer") == pytest.approx(_part(plain, "optimizer") / 8)


def test_a_script_says_how_its_step_is_run(tmp_path: Path, said: Listener) -> None:
    path = tmp_path / "pretrain.sh"
    path.write_text(
        _SCRIPT.format(
            t=2,
            p=4,
            micro=1,
            batch=64,
            layers=32,
            hidden=4096,
            heads=32,
            turns="--num-virtual-stages-per-pipeline-rank 2 --use-distributed-optimizer --sequence-parallel",
        )
    )
    found = read_config(path)
    assert (found.model.pp, found.model.virtual_stages) == (4, 2)
    assert found.run == Run(64, "full", "zero1", True, "megatron", overlap=False)
    step = suggest(path, gpu="h100", training=Training(gpus=16)).step
    assert step is not None and (step.micro_batches, step.data_parallel) == (32, 2)
    assert (step.strategy, step.checkpoint) == ("zero1", "full")
    asked = suggest(path, gpu="h100", training=Training(16, "ddp", "none", 5)).step
    assert asked is not None and (asked.micro_batches, asked.strategy, asked.checkpoint) == (5, "ddp", "none")
    with pytest.raises(UsageError) as error:
        suggest(path, gpu="h100", training=Training(gpus=24))
    said(str(error.value))
    said(step.notes)


@pytest.mark.parametrize(
    ("turns", "layers"),
    [("--num-layers-per-virtual-pipeline-stage 3", 32), ("--num-layers-per-virtual-pipeline-stage 0", 32)],
)
def test_turns_that_do_not_divide_the_layers_are_refused(
    turns: str, layers: int, tmp_path: Path, said: Listener
) -> None:
    path = tmp_path / "pretrain.sh"
    path.write_text(
        _SCRIPT.format(t=1, p=4, micro=1, batch=64, layers=layers, hidden=4096, heads=32, turns=turns)
    )
    with pytest.raises(InputError) as error:
        read_config(path)
    said(str(error.value))


def test_stages_that_make_no_sense_are_refused(said: Listener) -> None:
    for sizes in (
        {"pipeline_parallel": 64},
        {"virtual_stages": 2},
        {"pipeline_parallel": 8, "virtual_stages": 9},
    ):
        with pytest.raises(UsageError) as error:
            gpt(**sizes)
        said(str(error.value))
    with pytest.raises(UsageError) as error:
        _step(Training(6, "ddp"), pipeline_parallel=4, tensor_parallel=2)
    said(str(error.value))


def test_stages_say_that_one_micro_batch_is_assumed() -> None:
    told, untold = (_step(Training(16, micro_batches=n), pipeline_parallel=4).notes for n in (1, None))
    assert [note for note in untold if note not in told] == [words.ONE_MICRO_BATCH]
    assert words.ONE_MICRO_BATCH not in _step(Training(16)).notes
