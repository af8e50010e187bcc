"""Experts dealt out to GPUs in a planned step: their GEMMs, their all-to-all, weights and memory."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.silicon import FOLDER
from tests.advice.configs import DEEPSEEK_MOE_16B, LLAMA3_8B
from tests.advice.test_planned_by_hand import part
from tests.said import Listener
from tracelens.config import Configuration, read_config
from tracelens.config.training import Training
from tracelens.errors import InputError, UsageError
from tracelens.gemm.predict.experts import ExpertLayer, predict_experts
from tracelens.hardware import find_gpu
from tracelens.hardware.collectives import exchange_us
from tracelens.results.suggestions import Strategy, WholeStep
from tracelens.step.memory import memory_of
from tracelens.step.paces import pace_of
from tracelens.step.planned_exchange import _DEEPEP_FRAC
from tracelens.step.planned_step import Planner
from tracelens.step.whole_step import _UNEVEN, whole_step

H100 = find_gpu(None, override="h100-sxm")
LAYERS, EXPERTS, TOP_K, HIDDEN, TOKENS = 27, 64, 6, 2048, 8192  # with experts; of DeepSeek-MoE 16B
MATRICES = LAYERS * EXPERTS * 3 * HIDDEN * 1408


def planned(folder: Path, ep: int = 1, **sizes: int) -> Configuration:
    path = folder / "config.json"
    path.write_text(json.dumps(DEEPSEEK_MOE_16B))
    return read_config(path, overrides={"expert_parallel": ep, "sequence": 4096, "micro_batch": 2} | sizes)


def step(folder: Path, ep: int = 1, *, gpus: int = 8, gpu: str = "h100-sxm", **how: object) -> WholeStep:
    config = planned(folder, ep)
    planner = Planner(config.layout, gpu=find_gpu(None, override=gpu))
    return whole_step(planner, config.model, Training(gpus=gpus, **how))  # type: ignore[arg-type]


@pytest.mark.parametrize("ep", [1, 8])
def test_a_rank_computes_its_experts_rows_of_all_ranks(tmp_path: Path, ep: int) -> None:
    layer = ExpertLayer(HIDDEN, 1408, EXPERTS, TOP_K, ep=ep, exchanged=ep > 1)
    alone = sum(
        predict_experts(layer, TOKENS * ep, gpu=H100, direction=way).time_us.mid or 0.0
        for way in ("forward", "backward")
    )
    assert part(step(tmp_path, ep), "experts") == pytest.approx(LAYERS * alone / 1e3)


def test_each_rank_chooses_for_its_own_tokens() -> None:
    """With as many tokens on each GPU, more GPUs change what is chosen and summed up by nothing."""
    parts = [
        predict_experts(
            ExpertLayer(HIDDEN, 1408, EXPERTS, TOP_K, ep=ep, exchanged=True), TOKENS * ep, gpu=H100
        ).parts_us
        for ep in (2, 32)
    ]
    assert parts[0]["rows moved"] == pytest.approx(parts[1]["rows moved"])
    assert parts[0]["routing"] == pytest.approx(parts[1]["routing"], rel=0.05)  # fewer experts of its own


@pytest.mark.parametrize(("checkpoint", "calls"), [("none", 4), ("full", 6)])
def test_rows_go_to_their_experts_and_back(tmp_path: Path, checkpoint: str, calls: int) -> None:
    found = step(tmp_path, 8, micro_batches=2, checkpoint=checkpoint)
    one = exchange_us("h100-sxm", "all_to_all", 8, 2.0 * TOKENS * HIDDEN * TOP_K, in_node=8) or 0.0
    assert part(found, "experts' all-to-all") == pytest.approx(2 * calls * LAYERS * one / 1e3)
    assert sum(each.time_ms.mid for each in found.parts) == pytest.approx(found.step_ms.mid)
    assert found.expert_parallel == 8 and found.step_ms.basis == "heuristic"
    assert not part(step(tmp_path), "experts' all-to-all")


def test_the_low_end_sends_a_token_once_to_each_gpu(tmp_path: Path) -> None:
    rng = random.Random(1)
    draws = [{one // (EXPERTS // 8) for one in rng.sample(range(EXPERTS), TOP_K)} for _ in range(20_000)]
    copies = sum(map(len, draws)) / len(draws)
    (sent,) = [one for one in step(tmp_path, 8).parts if one.name == "experts' all-to-all"]
    least = exchange_us("h100-sxm", "all_to_all", 8, 2.0 * TOKENS * HIDDEN * copies, in_node=8) or 0.0
    assert sent.time_ms.high == pytest.approx(_DEEPEP_FRAC * _UNEVEN * (sent.time_ms.mid or 0.0))
    assert sent.time_ms.low == pytest.approx(4 * LAYERS * least / 1e3, rel=0.01)


def test_among_nodes_each_gpu_sends_over_its_own_card() -> None:
    """7 of 8 parts of 1 GB leave the node, over 50 GB/s; one node's links are faster."""
    far = exchange_us("h100-sxm", "all_to_all", 64, 1e9, in_node=8)
    near = exchange_us("h100-sxm", "all_to_all", 8, 1e9, in_node=8)
    assert far is not None and near is not None and near < far == pytest.approx(1e9 * 7 / 8 / 50e3)


@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
def test_a_rank_exchanges_and_keeps_the_weights_of_its_own_experts(
    tmp_path: Path, strategy: Strategy
) -> None:
    how = Training(gpus=8, strategy=strategy)
    whole, shared = (planned(tmp_path, ep) for ep in (1, 8))
    rest = (whole.model.parameters or 0) - MATRICES
    assert whole.model.expert_parameters == MATRICES and shared.model.held_parameters == rest + MATRICES / 8
    saved = (
        memory_of(whole.model, whole.layout, how).states - memory_of(shared.model, shared.layout, how).states
    )
    # FSDP shares all of it anyway, but for two layers gathered
    bytes_each = 16 if strategy == "ddp" else 4 / 28
    assert saved == pytest.approx(bytes_each * MATRICES * 7 / 8)
    before, after = (part(step(tmp_path, ep, strategy=strategy), "communication") for ep in (1, 8))
    assert after < 0.25 * before
    # two groups of four have each expert twice: their weights are exchanged between two GPUs
    assert after < part(step(tmp_path, 4, strategy=strategy), "communication") < before


@pytest.mark.parametrize(
    ("sizes", "gpus", "words"),
    [
        ({"expert_parallel": 7}, 8, "does not divide"),
        ({"expert_parallel": 8}, 4, "do not divide"),
        ({"expert_parallel": 8, "tensor_parallel": 2}, 4, "do not divide"),
        ({"expert_parallel": 8, "tensor_parallel": 4, "expert_tensor": 2}, 8, "are not predicted"),
        ({"tensor_parallel": 4, "expert_tensor": 2}, 8, "are not predicted"),
    ],
)
def test_what_cannot_be_shared_so_is_refused(
    tmp_path: Path, sizes: dict[str, int], gpus: int, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        config = planned(
            tmp_path, **{"ep" if key == "expert_parallel" else key: n for key, n in sizes.items()}
        )
        whole_step(Planner(config.layout, gpu=H100), config.model, Training(gpus=gpus))


@pytest.mark.parametrize("cut", [1, 2])
def test_tensor_parallel_ranks_share_tokens_and_cut_experts_or_hold_them_whole(
    tmp_path: Path, cut: int
) -> None:
    """Eight times four GPUs' tokens where each has half of every expert, else eight times a half of them."""
    config = planned(tmp_path, 4, tensor_parallel=2, expert_tensor=cut)
    layer = ExpertLayer(HIDDEN, 1408, EXPERTS, TOP_K, ep=4, tp=cut, exchanged=True)
    alone = sum(
        predict_experts(layer, TOKENS * 4 * cut // 2, gpu=H100, direction=way).time_us.mid or 0.0
        for way in ("forward", "backward")
    )
    found = whole_step(Planner(config.layout, gpu=H100), config.model, Training(gpus=8, strategy="ddp"))
    assert part(found, "experts") == pytest.approx(LAYERS * alone / 1e3)
    rows = 2 * TOKENS * HIDDEN * TOP_K / 2  # those of half of its tokens
    took = exchange_us("h100-sxm", "all_to_all", 4, rows, in_node=4) or 0.0
    assert part(found, "experts' all-to-all") == pytest.approx(4 * LAYERS * took / 1e3)


def test_a_dense_model_and_unpublished_links_are_refused(tmp_path: Path, said: Listener) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA3_8B))
    with pytest.raises(UsageError) as error:
        read_config(path, overrides={"expert_parallel": 8})
    said(error.value)
    with pytest.raises(InputError) as unpublished:
        step(tmp_path, 8, gpu="rtx-4090")
    said(unpublished.value)


def test_one_expert_parallel_rank_is_the_step_without(tmp_path: Path) -> None:
    config = planned(tmp_path)
    plain = replace(config.model, expert_parallel=None)
    planner = Planner(config.layout, gpu=H100)
    how = Training(gpus=8)
    assert whole_step(planner, plain, how) == whole_step(planner, config.model, how)


@pytest.mark.skipif(not (FOLDER / "deepep.parquet").exists(), reason="the measured tables are not here")
def test_what_deepep_took_is_not_below_the_range() -> None:
    """Combining in bf16 among 8 GPUs of a node, from 1024 tokens and top-6 on.

    No shorter than the low end, and no longer than the high one.
    """
    rows = pd.read_parquet(FOLDER / "deepep.parquet")
    rows = rows[(rows["num_token"] >= 1024) & (rows["num_topk"] >= 6)]
    sizes = ["hidden_size", "num_token", "num_topk", "num_experts"]
    for name, gpu in (("h100_sxm", "h100-sxm"), ("h200_sxm", "h200"), ("b200_sxm", "b200")):
        best = rows[rows["gpu"] == name].groupby(sizes)["combine_transmit_us"].min().reset_index()
        assert len(best) > 50
        for hidden, tokens, top_k, experts, took in best.itertuples(index=False):
            none_there = math.comb(experts - experts // 8, top_k) / math.comb(experts, top_k)
            low, high = (
                exchange_us(gpu, "all_to_all", 8, 2.0 * tokens * hidden * copies, in_node=8) or 0.0
                for copies in (8 * (1 - none_there), top_k)
            )
            error = math.exp(pace_of(find_gpu(None, override=gpu)).error)
            assert low / error < took < _DEEPEP_FRAC * high * error
