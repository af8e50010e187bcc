"""Encoder-decoders (T5, BART, Whisper and others): two stacks, each with its own tokens, counted by hand."""

from __future__ import annotations

import csv
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.known_models import contradictions
from tests.advice import configs
from tests.advice.configs import read, written
from tests.said import Listener
from tracelens.config import Configuration, read_config
from tracelens.config.configuration import Given
from tracelens.config.diff import config_diff
from tracelens.config.huggingface import read_huggingface
from tracelens.config.model_config import changed
from tracelens.config.training import Training
from tracelens.errors import InputError, TracelensError, UsageError
from tracelens.gemm.predict.attention_call import AttentionProblem
from tracelens.hardware import find_gpu
from tracelens.results.suggestions import WholeStep
from tracelens.step.activations import activation_bytes
from tracelens.step.memory import memory_of, would_fit
from tracelens.step.planned_kernels import (
    attention_calls,
    attention_linears,
    attention_traffic,
    cross_linears,
    hidden_traffic,
    stacks,
)
from tracelens.step.planned_step import Planner
from tracelens.step.whole_step import whole_step
from tracelens.suggestions import suggest

STEPS = Path(__file__).parent / "encoder_decoder_steps.csv"
H100, A100 = (find_gpu(None, override=name) for name in ("h100-sxm", "a100-sxm-80gb"))


def t5(hidden: int, heads: int, ffn: int, layers: int, **more: Any) -> dict[str, Any]:
    table = {"model_type": "t5", "d_model": hidden, "num_heads": heads, "d_kv": 64, "d_ff": ffn}
    return table | {"num_layers": layers, "vocab_size": 32128, "n_positions": 512} | more


def bart(kind: str, hidden: int, heads: int, layers: int, vocab: int, **more: Any) -> dict[str, Any]:
    table = {"model_type": kind, "d_model": hidden, "vocab_size": vocab, "max_position_embeddings": 1024}
    for stack in ("encoder", "decoder"):
        table |= {f"{stack}_layers": layers, f"{stack}_attention_heads": heads}
        table |= {f"{stack}_ffn_dim": 4 * hidden}
    return table | more


def whisper(hidden: int, layers: int, vocab: int = 51865, **more: Any) -> dict[str, Any]:
    positions = {"max_source_positions": 1500, "max_target_positions": 448, "num_mel_bins": 80}
    return bart("whisper", hidden, hidden // 64, layers, vocab) | positions | more


def t5gemma(hidden: int, heads: int, ffn: int, layers: int, **more: Any) -> dict[str, Any]:
    part = {"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": heads // 2}
    part |= {"head_dim": 256, "intermediate_size": ffn, "num_hidden_layers": layers, "vocab_size": 256000}
    part |= {"sliding_window": 4096, "max_position_embeddings": 8192}
    return {"model_type": "t5gemma", "encoder": part, "decoder": part | more, "vocab_size": 256000}


_V1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
MPNET = configs.BERT_BASE | {"model_type": "mpnet"}
BEIT = configs.BERT_BASE | {"model_type": "beit", "image_size": 224, "patch_size": 16}
T5_BASE, BART_LARGE = t5(768, 12, 3072, 12), bart("bart", 1024, 16, 12, 50265)
T5GEMMA_2B = t5gemma(2304, 8, 9216, 26)
WHISPER_LARGE = whisper(1280, 32, 51866, num_mel_bins=128)


@pytest.mark.parametrize(
    ("table", "weights"),
    [
        # num_parameters of the published checkpoints (Hugging Face Hub), biases and norms among them
        (t5(512, 8, 2048, 6), 60.5e6),
        (T5_BASE, 222.9e6),
        (t5(1024, 16, 4096, 24), 737.7e6),
        (t5(1024, 32, 16384, 24, d_kv=128), 2.85e9),
        (t5(1024, 128, 65536, 24, d_kv=128), 11.3e9),
        (t5(512, 6, 1024, 8, **_V1_1), 77.0e6),
        (t5(768, 12, 2048, 12, **_V1_1), 247.6e6),
        (t5(2048, 32, 5120, 24, **_V1_1), 2.85e9),
        (bart("bart", 768, 12, 6, 50265), 139.4e6),
        (BART_LARGE, 406.3e6),
        (bart("mbart", 1024, 16, 12, 250054), 610.9e6),
        (bart("pegasus", 1024, 16, 16, 96103), 568.7e6),
        (bart("marian", 512, 8, 6, 58101, max_position_embeddings=512), 74.4e6),
        (bart("m2m_100", 1024, 16, 12, 256206), 615.1e6),
        (whisper(384, 4), 37.8e6),
        (whisper(512, 6), 72.6e6),
        (whisper(768, 12), 241.7e6),
        (whisper(1024, 24), 763.9e6),
        (WHISPER_LARGE, 1.5435e9),
        (WHISPER_LARGE | {"decoder_layers": 2}, 756.4e6),
        # its paper (arXiv 2504.06225) and its configuration in transformers, with an embedding for each stack
        (T5GEMMA_2B, 5.60e9),
    ],
)
def test_weights_are_those_that_were_published(tmp_path: Path, table: dict[str, Any], weights: float) -> None:
    assert read(tmp_path, table).model.parameters == pytest.approx(weights, rel=0.01)


def test_each_stack_has_its_own_tokens_and_the_decoder_reads_the_encoder(tmp_path: Path) -> None:
    config = read(tmp_path, WHISPER_LARGE, micro_batch=4, decoder_sequence=200)
    (encoder, seen), (decoder, reads) = stacks(config.model, config.layout)
    assert (encoder.token_count, decoder.token_count) == (4 * 1500, 4 * 200)
    assert (encoder.vocab, decoder.vocab) == (0, 51866) and (seen.causal, reads.causal) == (False, True)
    rows = [(one.rows, one.into, one.out, one.calls) for one in attention_linears(decoder, reads)]
    own, crossed = rows[:3], rows[3:]
    assert own == [(800, 1280, 1280, 32), (800, 1280, 1280, 64), (800, 1280, 1280, 32)]
    assert crossed == [(800, 1280, 1280, 32), (6000, 1280, 1280, 64), (800, 1280, 1280, 32)]
    assert cross_linears(encoder, seen) == ()
    calls = [(one.sequence, one.keys, one.causal, one.bias) for one in attention_calls(decoder, reads)]
    assert calls == [(200, None, True, False), (200, 1500, False, False)]


def test_the_step_is_the_sum_of_its_stacks(tmp_path: Path) -> None:
    config = read(tmp_path, BART_LARGE, sequence=512, decoder_sequence=128)
    planner = Planner(config.layout, gpu=A100)
    whole, ms = planner.step(config.model), 0.0
    for stack, layout in stacks(config.model, config.layout):
        one = Planner(layout, gpu=A100)
        ms += sum(part.time_ms.mid for part in one.step(stack).parts)
    assert whole.time_ms.mid == pytest.approx(ms)
    assert planner.time_ms(config.model) == pytest.approx(ms)
    longer = replace(config.model, decoder_sequence=256)
    assert planner.step(longer).time_ms.mid > whole.time_ms.mid


def test_cross_attention_has_a_norm_and_a_residual_of_its_own(tmp_path: Path) -> None:
    config = read(tmp_path, BART_LARGE, micro_batch=2, decoder_sequence=128)
    decoder, layout = stacks(config.model, config.layout)[1]
    norm, *_ = hidden_traffic(decoder, layout)
    assert norm.fused_bytes == 2 * 3 * 2 * (2 * 128) * 1024 * 12
    assert norm.plain_bytes == norm.fused_bytes  # LayerNorm is one kernel; T5's RMSNorm six, in fp32
    t5s = read(tmp_path, T5_BASE)
    (first, *_), mpnet = hidden_traffic(t5s.model, t5s.layout), read(tmp_path, MPNET)
    assert first.plain_bytes == 6 * first.fused_bytes and mpnet.layout.bias and not mpnet.layout.rms


def test_a_bias_of_patches_is_there_where_the_file_asks_for_it(tmp_path: Path) -> None:
    for key in ("use_relative_position_bias", "use_shared_relative_position_bias"):
        assert read(tmp_path, BEIT | {key: True}).layout.bias
    assert not read(tmp_path, BEIT).layout.bias


def test_a_bias_is_read_for_every_score_and_learned_but_in_cross_attention(tmp_path: Path) -> None:
    config = read(tmp_path, T5_BASE, micro_batch=2, sequence=512, decoder_sequence=128)
    read_bytes, learned = 0.0, 0.0
    for stack, layout in stacks(config.model, config.layout):
        forward, backward = attention_traffic(stack, layout)
        read_bytes += forward.fused_bytes
        learned += backward.fused_bytes - forward.fused_bytes
    scores = 2 * 2 * 12 * 12  # bytes, batch, heads, layers
    assert learned == scores * (512 * 512 + 128 * 128)
    assert read_bytes == learned + scores * 128 * 512


def test_attention_with_a_bias_is_a_guess_from_a_plain_kernel_to_scores_in_memory(tmp_path: Path) -> None:
    """The gradient of a bias rules out flash and cuDNN; nothing in a kernel is skipped for the mask."""
    config = read(tmp_path, T5_BASE, decoder_sequence=512)
    on_h100 = Planner(config.layout, gpu=H100).attention(config.model)
    biased = [one for one in on_h100 if one.kind == "attention"]
    assert [one.backend for one in biased] == ["efficient"] * 4 + ["cudnn"] * 2  # cross-attention learns none
    assert {one.time_ms.basis for one in biased} == {"heuristic"}
    on_a100 = Planner(config.layout, gpu=A100).attention(config.model)
    assert {one.backend for one in on_a100 if one.kind == "attention"} == {"efficient"}
    plain = Planner(replace(config.layout, bias=False), gpu=H100).attention(config.model)
    for guess, one in zip(biased, [one for one in plain if one.kind == "attention"], strict=True):
        assert guess.time_ms.low <= one.time_ms.low * 2.01 and guess.time_ms.high > one.time_ms.high
    planner = Planner(config.layout, gpu=H100)
    assert planner.step(config.model).time_ms.basis == "heuristic"
    decoder, layout = stacks(config.model, config.layout)[1]
    causal = attention_calls(decoder, layout)[0]
    problem = AttentionProblem(
        batch=16, heads=12, kv_heads=12, seq_q=512, seq_k=512, head_dim=64, causal=False, direction="forward"
    )
    assert causal.causal and biased[2].flops == problem.useful_flops * 12


def test_memory_holds_both_stacks_and_the_bias_of_every_layer(tmp_path: Path) -> None:
    config = read(tmp_path, T5_BASE, micro_batch=2, decoder_sequence=128)
    x, layout = config.model, config.layout
    each = [activation_bytes(*one) for one in stacks(x, layout)]
    assert activation_bytes(x, layout) == pytest.approx(sum(each))
    bare = activation_bytes(x, replace(layout, bias=False))
    scores = 2 * 2 * 12 * 12 * (512 * 512 + 128 * 128 + 128 * 512)
    assert activation_bytes(x, layout) - bare == pytest.approx(scores)
    full = memory_of(x, layout, Training(checkpoint="full", strategy="ddp"))
    inputs = 2 * 2 * (512 + 128) * 768 * 12
    assert full.activations == pytest.approx(
        inputs * 11 / 12 + activation_bytes(replace(x, layers=1, decoder_layers=1), layout), rel=0.02
    )
    ways = would_fit(replace(x, micro_batch=64), layout, Training(strategy="ddp"), 8.0)
    assert ways and not any("stages" in way for way in ways)


def _step(config: Configuration, **training: Any) -> WholeStep:
    planner = Planner(config.layout, gpu=A100)
    return whole_step(planner, config.model, Training(**training))


def test_a_whole_step_is_less_sure_than_a_decoder_s(tmp_path: Path, said: Listener) -> None:
    """Nobody published one to fit: the basis says so, and no range is narrower than a decoder's."""
    decoder = _step(read(tmp_path, {"model_type": "gpt2", "n_embd": 3072, "n_head": 24, "n_layer": 24}
                         | {"vocab_size": 32128, "n_positions": 512}), gpus=8)  # fmt: skip
    for table in (T5_BASE, BART_LARGE, WHISPER_LARGE):
        found = _step(read(tmp_path, table), gpus=8)
        assert found.step_ms.basis == "heuristic" and decoder.step_ms.basis == "model"
        widths = [one.step_ms.high / one.step_ms.low for one in (found, decoder)]
        assert widths[0] > widths[1]
        said(found.notes)


def _published() -> list[tuple[str, float, WholeStep]]:
    """Source, published and predicted ms of steps on A100 80 GB in bf16. NeMo's T5 has learned positions."""
    nemo = {"max_position_embeddings": 512}
    models = {
        "bart-large": (BART_LARGE, None),
        "t5-v1_1-base": (t5(768, 12, 2048, 12, **_V1_1), None),
        "nemo-t5-220m": (bart("bart", 768, 12, 12, 29184, **nemo, **_ffn(2048)), True),
        "nemo-t5-3b": (bart("bart", 2048, 32, 24, 29184, **nemo, **_ffn(5120)), True),
    }
    found = []
    with STEPS.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            table, gated = models[row["model"]]
            sizes = {
                name: int(row[name])
                for name in ("sequence", "decoder_sequence", "micro_batch", "tensor_parallel")
            }
            config = read_huggingface(table, Given(sizes, gated), name="config.json")
            gpus, batches = int(row["gpus"]), int(row["micro_batches"])
            step = _step(config, gpus=gpus, micro_batches=batches, strategy=row["strategy"])
            sequences = gpus // sizes["tensor_parallel"] * batches * sizes["micro_batch"]
            found.append((row["source"], 1e3 * sequences / float(row["sequences_per_s"]), step))
    return found


def _ffn(width: int) -> dict[str, int]:
    return {"encoder_ffn_dim": width, "decoder_ffn_dim": width}


def test_published_steps_are_met_within_their_ranges() -> None:
    """NVIDIA's BART-large and NeMo T5, and nanoT5, whose scores in memory the slow end is made for."""
    found = _published()
    errors = [abs(math.log(step.step_ms.mid / ms)) for _, ms, step in found]
    outside = [source for source, ms, step in found if not step.step_ms.low <= ms <= step.step_ms.high]
    assert len(found) == 17 and statistics.median(errors) < 0.10
    assert outside == []


def test_mfu_and_tokens_count_both_stacks(tmp_path: Path) -> None:
    config = read(tmp_path, BART_LARGE, micro_batch=4, sequence=512, decoder_sequence=128)
    found = _step(config, gpus=1)
    seconds = found.step_ms.mid / 1e3
    assert found.tokens_per_s_per_gpu.mid == pytest.approx(4 * (512 + 128) / seconds)
    layer, width = 4 * 1024**2 + 2 * 1024 * 4096, 16 * 64
    encoder = 512 * 12 * (6 * layer + 12 * width * 512)
    own = 128 * (12 * (6 * layer + 12 * width * (128 + 512)) + 6 * 50265 * 1024)
    crossed = 12 * 6 * 2 * 1024**2 * (128 + 512)
    assert found.mfu_frac.mid == pytest.approx(4 * (encoder + own + crossed) / seconds / 312e12)


def test_tensor_parallel_ranks_exchange_three_times_in_a_decoder_s_layer(tmp_path: Path) -> None:
    from tracelens.step.planned_exchange import tensor_parallel

    config = read(tmp_path, BART_LARGE, sequence=512, decoder_sequence=512, tensor_parallel=2, vocab=50304)
    planner = Planner(config.layout, gpu=A100)
    one = replace(config.model, decoder_layers=None, decoder_sequence=None)
    encoder = tensor_parallel(planner, one, Training(), 1.0)
    both = tensor_parallel(planner, config.model, Training(), 1.0)
    assert both.high == pytest.approx(encoder.high * (2 + 3) / 2)


@pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "h100-sxm", "b200", "l40s"])
@pytest.mark.parametrize(
    ("table", "padded"),
    [(T5_BASE, None), (BART_LARGE, 50304), (whisper(1280, 32), 51904), (WHISPER_LARGE, 51904)],
)
def test_a_vocabulary_that_is_padded_already_stays(
    tmp_path: Path, table: dict[str, Any], padded: int | None, gpu: str
) -> None:
    found = suggest(written(tmp_path, table), gpu=gpu)
    picked = {(pick.change.get("vocab") or [0, None])[1] for pick in found.picks} - {None}
    assert not found.picks or list(contradictions(found)) == []
    assert picked <= {padded, -(-(padded or 0) // 128) * 128}
    assert "layers" not in found.searched and found.sizes["decoder_layers"].value


def test_a_pasted_diff_changes_the_keys_of_both_stacks(tmp_path: Path) -> None:
    config = read(tmp_path, BART_LARGE)
    lines = config_diff(config, changed(config.model, {"heads": 8, "ffn": 4160}))
    assert lines == (
        '-   "encoder_attention_heads": 16,', '+   "encoder_attention_heads": 8,',
        '-   "decoder_attention_heads": 16,', '+   "decoder_attention_heads": 8,',
        '-   "encoder_ffn_dim": 4096,', '+   "encoder_ffn_dim": 4160,',
        '-   "decoder_ffn_dim": 4096,', '+   "decoder_ffn_dim": 4160,',
    )  # fmt: skip
    parts = read(tmp_path, T5GEMMA_2B)
    assert (parts.model.sequence, parts.model.decoder_sequence, parts.layout.windowed_frac) == (
        8192,
        8192,
        0.5,
    )
    assert config_diff(parts, changed(parts.model, {"ffn": 9344})) == (
        '-   "intermediate_size": 9216,', '+   "intermediate_size": 9344,',
    ) * 2  # fmt: skip
    one_key = read(tmp_path, T5_BASE)
    assert config_diff(one_key, changed(one_key.model, {"ffn": 3136})) == (
        '-   "d_ff": 3072,', '+   "d_ff": 3136,',
    )  # fmt: skip


MEGATRON_T5 = """torchrun pretrain_t5.py --encoder-num-layers 12 --decoder-num-layers 6 --hidden-size 768
 --num-attention-heads 12 --kv-channels 64 --ffn-hidden-size 3072 --encoder-seq-length 512
 --decoder-seq-length 128 --micro-batch-size 16 --vocab-size 30522 --position-embedding-type relative"""


def test_megatron_s_t5_has_its_own_arguments(tmp_path: Path) -> None:
    found = read(tmp_path, MEGATRON_T5, "t5.sh")
    x = found.model
    assert (x.layers, x.decoder_layers, x.sequence, x.decoder_sequence) == (12, 6, 512, 128)
    assert found.layout.fused_qkv and found.layout.bias and found.run.stack == "megatron"
    decoder, layout = stacks(x, found.layout)[1]
    widths = [(one.rows, one.out, one.calls) for one in attention_linears(decoder, layout)]
    own, crossed = [(2048, 2304, 6), (2048, 768, 6)], [(2048, 768, 6), (8192, 1536, 6), (2048, 768, 6)]
    assert widths == own + crossed
    older = MEGATRON_T5.replace("--encoder-num-layers 12 --decoder-num-layers 6", "--num-layers 12")
    assert read(tmp_path, older, "t5.sh").model.decoder_layers == 12
    gpt = "--num-layers 12 --encoder-num-layers 12 --seq-length 1024 --encoder-seq-length 1024"
    saved = read(tmp_path, f"{gpt} --hidden-size 768 --num-attention-heads 12 --vocab-size 50257", "gpt.sh")
    assert saved.model.decoder_layers is None and saved.layout.causal  # as it saves its own arguments


def test_sizes_that_no_key_or_not_one_stack_sets_are_not_searched(tmp_path: Path) -> None:
    free = ("layers", "sequence", "kv_heads")
    found = suggest(written(tmp_path, BART_LARGE), gpu="a100-sxm-80gb", free=free, memory_gb=80)
    assert not set(free) & set(found.searched)
    assert not any(set(free[:2]) & pick.change.keys() for pick in found.picks)
    for pick in found.picks:  # as many as heads
        assert pick.change.get("kv_heads") == pick.change.get("heads")


def test_lengths_are_the_file_s_or_assumed(tmp_path: Path, said: Listener) -> None:
    for table, lengths, assumed in (
        (T5_BASE, (512, 512), {"decoder_sequence", "micro_batch"}),
        ({key: value for key, value in T5_BASE.items() if key != "n_positions"}, (512, 512),
         {"sequence", "decoder_sequence", "micro_batch"}),
        (BART_LARGE, (1024, 1024), {"decoder_sequence", "micro_batch"}),
        (WHISPER_LARGE, (1500, 448), {"decoder_sequence", "micro_batch"}),
    ):  # fmt: skip
        config = read(tmp_path, table)
        assert (config.model.sequence, config.model.decoder_sequence) == lengths
        assert config.assumed == assumed
        said(config.sources["decoder_sequence"], config.notes)
    fewer = read(tmp_path, T5_BASE, layers=6).model
    assert (fewer.layers, fewer.decoder_layers) == (6, 6)
    told = read(tmp_path, BART_LARGE, sequence=512)
    assert (told.model.sequence, told.model.decoder_sequence) == (512, 512)
    said(read(tmp_path, BART_LARGE, decoder_sequence=2048).notes)
    assert not read(tmp_path, T5_BASE, decoder_sequence=2048).notes[1:]  # relative positions end nowhere


WRONG: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "another length of sound": (WHISPER_LARGE, {"sequence": 3000}),
    "a decoder's length without one": (
        {"model_type": "gpt2", "n_embd": 64, "n_head": 2, "n_layer": 2, "vocab_size": 64},
        {"decoder_sequence": 64},
    ),
    "pipeline stages": (T5_BASE, {"pipeline_parallel": 2}),
    "context-parallel ranks": (BART_LARGE, {"context_parallel": 2}),
    "heads that differ": (BART_LARGE | {"decoder_attention_heads": 8}, {}),
    "widths that differ": (t5gemma(3584, 16, 14336, 42, hidden_size=2304), {}),
    "an encoder alone": (T5_BASE | {"architectures": ["T5EncoderModel"]}, {}),
    "a decoder alone": (BART_LARGE | {"architectures": ["BartForCausalLM"]}, {}),
    "a size that is not there": ({"model_type": "bart", "d_model": 64, "encoder_attention_heads": 2}, {}),
    "layers that are not there": (
        {"model_type": "t5", "d_model": 64, "num_heads": 2, "d_ff": 64, "vocab_size": 64},
        {},
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_told_of_them_is_one_clear_line(tmp_path: Path, name: str, said: Listener) -> None:
    table, sizes = WRONG[name]
    with pytest.raises(TracelensError) as caught:
        read_config(written(tmp_path, table), overrides=sizes)
    assert isinstance(caught.value, UsageError if sizes else InputError)
    said(caught.value)
