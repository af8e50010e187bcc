"""Experts and latent attention in Megatron-LM's arguments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.advice.configs import DEEPSEEK_V3
from tests.said import Listener
from tracelens.config import Configuration, read_config
from tracelens.config.megatron import _pattern
from tracelens.errors import UsageError
from tracelens.suggestions import suggest

#: Sizes of examples/mixtral/train_mixtral_8x7b_distributed.sh (NVIDIA/Megatron-LM, d98e8a64).
MIXTRAL = """
MODEL_ARGS=(
    --seq-length 4096 --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --normalization RMSNorm --position-embedding-type rope --swiglu --untie-embeddings-and-output-weights
    --group-query-attention --num-query-groups 8 --vocab-size 32000
)
MOE_ARGS=( --num-experts 8 --moe-router-topk 2 --moe-grouped-gemm )
MODEL_PARALLEL_ARGS=( --micro-batch-size 1 --expert-model-parallel-size 8 )
"""
#: Of examples/megatron_fsdp/sbatch_mfsdp_deepseek_v3.sh, there.
DEEPSEEK = """
TP=${TP:-1}
PRETRAIN_ARGS=(
    --tensor-model-parallel-size ${TP} --expert-model-parallel-size 8 --micro-batch-size 4
    --seq-length 4096 --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128
    --kv-channels 128 --position-embedding-type rope --make-vocab-size-divisible-by 3232 --swiglu
    --untie-embeddings-and-output-weights --multi-latent-attention --vocab-size 129280
    --num-experts 256 --moe-layer-freq [0]*3+[1]*58 --moe-ffn-hidden-size 2048
    --moe-shared-expert-intermediate-size 2048 --moe-router-topk 8
    --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128
    --mtp-num-layers 1
)
"""


def _read(folder: Path, text: str, **sizes: int) -> Configuration:
    path = folder / "pretrain.sh"
    path.write_text(text)
    return read_config(path, overrides=sizes)


def test_a_mixture_is_read_from_its_script(tmp_path: Path) -> None:
    found = _read(tmp_path, MIXTRAL)
    x = found.model
    assert (x.experts, found.layout.experts_per_token, x.ffn, x.dense_layers, x.shared_ffn) == (
        8,
        2,
        14336,
        None,
        None,
    )
    assert (x.parameters or 0) / 1e9 == pytest.approx(46.7, rel=0.001)
    assert x.expert_parallel == 8 and found.keys["ffn"] == "--moe-ffn-hidden-size"


def test_latent_attention_and_layers_without_experts_are_read_from_a_script(
    tmp_path: Path, said: Listener
) -> None:
    found = _read(tmp_path, DEEPSEEK)
    x = found.model
    assert (x.ffn, x.dense_layers, x.dense_ffn, x.shared_ffn, x.head_dim) == (2048, 3, 18432, 2048, 192)
    assert (x.parameters or 0) / 1e9 == pytest.approx(671, rel=0.001)
    said(found.notes)
    with pytest.raises(UsageError) as error:
        _read(tmp_path, DEEPSEEK, head_dim=64)
    said(str(error.value))


def test_the_same_model_is_the_same_step_from_either_format(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(DEEPSEEK_V3))
    here = suggest(path, gpu="h200", sizes={"micro_batch": 4, "expert_parallel": 8})
    there = suggest(_read(tmp_path, DEEPSEEK), gpu="h200")
    times = [{one.component: one.time_ms.mid for one in found.components} for found in (here, there)]
    gates = [found.pop("mlp.gate", 0.0) + found.pop("mlp.up") for found in times]  # one GEMM in Megatron
    assert times[0] == pytest.approx(times[1]) and gates[0] == pytest.approx(gates[1], rel=0.05)


def test_with_tensor_parallel_ranks_experts_are_dealt_out_and_cut_as_megatron_does(tmp_path: Path) -> None:
    script = DEEPSEEK.replace("TP:-1", "TP:-2")
    assert _degrees(_read(tmp_path, script)) == (2, 8, 2)
    whole = script.rstrip() + " --expert-tensor-parallel-size 1\n"
    assert _degrees(_read(tmp_path, whole)) == (2, 8, 1)


def _degrees(found: Configuration) -> tuple[int, int, int]:
    return found.model.tp, found.model.ep, found.model.etp


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("[0]*3+[1]*2", [0, 0, 0, 1, 1]),
        ("([0]+[1]*3)", [0, 1, 1, 1]),
        ("([1]*2+[0]*1)*2", [1, 1, 0, 1, 1, 0]),
        ("([0]+[1]*3", [0, 1, 1, 1]),  # as the argument of a script ends
        ("[0]*-1", None),
        ("[0]*99999999", None),
        ("[[0]]*2", None),
        ("3*[0]", None),
        ("[0]+1", None),
        ("[x]", None),
        ("[True]", None),
        ("__import__('os')", None),
        ("[0", None),
    ],
)
def test_a_pattern_is_a_list_with_plus_and_times_alone(text: str, layers: list[int] | None) -> None:
    assert _pattern(text) == layers


@pytest.mark.parametrize(("every", "dense"), [("1", None), ("2", 16), ("3", 21)])
def test_experts_in_every_so_many_layers(tmp_path: Path, every: str, dense: int | None) -> None:
    found = _read(tmp_path, MIXTRAL + f"--moe-layer-freq {every} --moe-ffn-hidden-size 7168\n").model
    assert (found.dense_layers, found.ffn) == (dense, 7168)
    assert found.dense_ffn == (14336 if dense else None)
