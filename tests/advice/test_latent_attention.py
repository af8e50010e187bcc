"""Latent attention (DeepSeek, Kimi, MiniCPM3) in a planned step, counted by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.known_models import configuration
from tests.advice import configs
from tests.advice.configs import read
from tests.said import Listener
from tracelens.config import read_config
from tracelens.config.training import Training
from tracelens.errors import UsageError
from tracelens.hardware import find_gpu
from tracelens.step.activations import activation_bytes
from tracelens.step.planned_kernels import attention_calls, attention_linears, attention_traffic
from tracelens.step.planned_step import Planner
from tracelens.step.whole_step import whole_step
from tracelens.suggestions import suggest

H, HEADS, LAYERS, TOKENS = 2048, 16, 27, 8192


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        # as their authors state them, within what biases and norms weigh
        ("deepseek-v2-lite", 15.7e9),
        ("deepseek-v2", 236e9),
        ("deepseek-v3", 671e9),
        ("kimi-k2", 1.026e12),
        ("glm-4.7-flash", 30e9),
        ("minicpm3-4b", 4.07e9),
    ],
)
def test_weights_are_those_that_were_published(name: str, weights: float) -> None:
    assert configuration(name).model.parameters == pytest.approx(weights, rel=0.01)


def test_products_go_down_to_short_vectors_and_up_to_the_heads(tmp_path: Path) -> None:
    config = read(tmp_path, configs.DEEPSEEK_V2_LITE)
    found = [(one.into, one.out) for one in attention_linears(config.model, config.layout)]
    assert found == [
        (H, 16 * 192),
        (H, 512 + 64),
        (512, 16 * 256),
        (16 * 128, H),
    ]  # queries have no short one
    shared = replace(config.model, tensor_parallel=4)
    split = [(one.into, one.out) for one in attention_linears(shared, config.layout)]
    assert split == [(H, 4 * 192), (H, 512 + 64), (512, 4 * 256), (4 * 128, H)]


def test_attention_has_narrower_values_and_mfu_counts_them(tmp_path: Path) -> None:
    config = read(tmp_path, configs.DEEPSEEK_V2_LITE)
    (call,) = attention_calls(config.model, config.layout)
    assert (call.heads, call.kv_heads, call.head_dim, call.value_dim) == (16, 16, 192, 128)
    planner = Planner(config.layout, gpu=find_gpu(None, override="h100-sxm"))
    step = whole_step(planner, config.model, Training(gpus=8))
    assert step.step_ms.basis == "heuristic" and any("latent attention" in note for note in step.notes)
    used = replace(config.model, tied=True, experts=6).parameters or 0
    per_token = 6 * used + 6 * HEADS * (192 + 128) * 4096 * LAYERS
    assert step.mfu_frac.mid == pytest.approx(step.tokens_per_s_per_gpu.mid * per_token / 989e12, rel=1e-6)


def test_moved_bytes_of_rotary_parts_and_short_norms(tmp_path: Path) -> None:
    config = read(tmp_path, configs.DEEPSEEK_V2_LITE)
    moved = {(one.component, one.phase): one for one in attention_traffic(config.model, config.layout)}
    turned, joined = 2 * TOKENS * 17 * 64 * LAYERS, 2 * TOKENS * 2 * 16 * 192 * LAYERS
    assert moved["attention.rope", "forward"].fused_bytes == 2 * turned + joined
    assert moved["attention.rope", "backward"].plain_bytes == 9 * turned + 2 * joined
    assert moved["norm", "forward"].fused_bytes == 2 * 2 * TOKENS * 512 * LAYERS
    assert moved["norm", "backward"].fused_bytes == 3 * 2 * TOKENS * 512 * LAYERS


def test_kept_for_the_backward_are_short_vectors_and_heads_of_both_widths(tmp_path: Path) -> None:
    config = read(tmp_path, configs.DEEPSEEK_V2_LITE)
    width = 4 * H + 2 * 512 + 64 + 2 * 16 * (192 + 128)
    plain = replace(config.model, latent=None, heads=1, kv_heads=1, head_dim=1)
    kept = activation_bytes(config.model, config.layout) - activation_bytes(plain, config.layout)
    assert kept == 2 * TOKENS * LAYERS * (width - 4 * H - 4)


def test_heads_are_not_searched_and_given_sizes_that_follow_are_refused(
    tmp_path: Path, said: Listener
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(configs.DEEPSEEK_V2_LITE))
    found = suggest(path, gpu="h100")
    assert found.heads == [] and not {"heads", "head_dim"} & set(found.searched)
    assert all(not {"heads", "head_dim"} & pick.change.keys() for pick in found.picks)
    said(found.notes)
    for sizes in ({"head_dim": 128}, {"kv_heads": 8}):
        with pytest.raises(UsageError) as error:
            read_config(path, overrides=sizes)
        said(str(error.value))
    wider = read_config(path, overrides={"heads": 32}).model
    assert (wider.heads, wider.kv_heads, wider.head_dim) == (32, 32, 192)
