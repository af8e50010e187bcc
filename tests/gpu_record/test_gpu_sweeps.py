"""The lists of shapes: enough, each once, of every family, and measurable in the minutes there are."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from benchmarks.gpu import expected, sweeps
from benchmarks.gpu.attention_sweeps import attention_sweep
from benchmarks.gpu.findings import power_of_two
from benchmarks.gpu.model_shapes import MODELS
from benchmarks.gpu.pairs import cost_us_per_token, layer_pairs, step_pairs
from tests.said import Listener
from tracelens.hardware.gpu import Gpu, find_gpu
from tracelens.measure.cases import AttentionCase, GemmCase
from tracelens.measure.layer_shapes import LayerShape

SMS = 132


@cache
def gemms() -> list[GemmCase]:
    return sweeps.gemm_sweep(SMS)


@cache
def curves() -> list[GemmCase]:
    return sweeps.curves(SMS)


@cache
def attention() -> list[AttentionCase]:
    return attention_sweep()


def h200() -> Gpu:
    return find_gpu("NVIDIA H200")


def test_at_least_six_thousand_different_products() -> None:
    assert len(gemms()) >= 6000
    assert len({sweeps.product(case) for case in [*gemms(), *curves()]}) == len(gemms()) + len(curves())


@pytest.mark.parametrize("sms", [60, 78, 108, 132, 148])
def test_other_gpus_have_their_own_waves_and_as_many_shapes(sms: int) -> None:
    found = sweeps.gemm_sweep(sms)
    assert len(found) >= 6000
    assert found == sweeps.gemm_sweep(sms)
    assert (found == gemms()) == (sms == SMS)


def test_every_family_of_models_has_its_three_roles() -> None:
    families = {family for family, _, _ in MODELS.values()}
    assert families == {"gpt", "llama", "qwen", "mistral", "gemma", "bert", "vit"}
    for family in families:
        layouts = Counter(case.layout for case in gemms() if case.sweep == f"model_{family}")
        assert layouts.keys() == {"TN", "NN", "NT"}
        assert min(layouts.values()) >= 20, (family, layouts)


def test_the_sweeps_of_the_paper_are_there() -> None:
    of = Counter(case.sweep for case in [*gemms(), *curves()])
    letters = (
        "a_square", "b_wave", "c_alignment", "d_batch", "e_batch_m", "f_scores", "f_values", "g_linear",
    )  # fmt: skip
    for sweep in (*(f"paper_{letter}" for letter in letters), "paper_h_vocabulary", "swiglu"):
        assert of[sweep] >= 50, (sweep, of[sweep])
    wave = {case.n for case in curves() if (case.m, case.k) == (2304, 4096)}
    assert wave >= set(range(1536, 6145, 64))
    low = {case.n for case in curves() if (case.m, case.k) == (27648, 4096)}
    assert low >= set(range(64, 511, 2))


@pytest.mark.parametrize("dimension", ["m", "n", "k"])
@pytest.mark.parametrize("layout", ["TN", "NN", "NT"])
def test_each_dimension_passes_through_every_class_of_alignment(dimension: str, layout: str) -> None:
    classes = {
        power_of_two(getattr(case, dimension))
        for case in gemms()
        if case.sweep == "alignment" and case.layout == layout and case.dtype == "bf16"
    }
    assert classes >= {1, 2, 4, 8, 16, 32, 64}


def test_sawtooths_cross_multiples_of_the_sm_count_densely() -> None:
    for rows in (11, 12, 33):
        waves = sorted(
            rows * math.ceil(case.n / 256) / SMS
            for case in curves()
            if case.sweep.startswith(f"wave_m{rows * 128}_")
        )
        assert waves[0] < 1 and waves[-1] >= 3.9
        assert max(second - first for first, second in pairwise(waves)) <= 0.26


def test_types_batches_and_small_shapes() -> None:
    dtypes = Counter(case.dtype for case in gemms())
    assert dtypes["bf16"] > 0.8 * len(gemms())
    assert all(dtypes[dtype] >= minimum for dtype, minimum in (("fp16", 100), ("fp8", 100), ("tf32", 100)))
    assert sum(case.batch > 1 for case in gemms()) >= 500
    assert sum(case.m <= 16 or case.n <= 16 for case in gemms()) >= 50
    for case in gemms():
        if case.dtype == "fp8":  # what _scaled_mm takes
            assert case.layout == "TN" and case.batch == 1 and not case.n % 16 and not case.k % 16


def test_a_sweep_cut_short_is_a_sample_of_all_of_it() -> None:
    whole, part = (Counter(case.sweep for case in cases) for cases in (gemms(), gemms()[: len(gemms()) // 4]))
    for sweep, count in whole.items():
        if count >= 100:
            assert part[sweep] == pytest.approx(count / 4, rel=0.4), sweep


def test_two_hundred_products_of_all_large_families_are_measured_again() -> None:
    sample = sweeps.repeat_sample(gemms(), 200)
    assert len({sweeps.product(case) for case in sample}) == 200
    assert {sweeps.product(case) for case in sample} <= {sweeps.product(case) for case in gemms()}
    large = {sweep for sweep, count in Counter(case.sweep for case in gemms()).items() if count >= 60}
    assert {case.sweep for case in sample} >= large
    assert len(sweeps.repeat_sample(gemms()[:7], 200)) == 7


def test_the_products_fit_the_minutes_and_the_memory() -> None:
    gpu = h200()
    seconds = sum(expected.case_s(expected.gemm_us(case, gpu), seconds_per_case=0.03) for case in gemms())
    assert seconds <= 9 * 60 / 1.5
    assert max(expected.gemm_bytes(case) for case in gemms()) <= sweeps.MAX_BYTES
    assert max(expected.gemm_us(case, gpu) for case in gemms()) <= 25e3


def test_a_case_is_expected_to_cost_more_where_it_is_larger_or_misaligned() -> None:
    gpu = h200()
    aligned, odd = GemmCase("x", 4096, 50304, 2560), GemmCase("x", 4096, 50257, 2560)
    assert expected.aligned(aligned) and not expected.aligned(odd)
    assert expected.gemm_us(odd, gpu) > 2 * expected.gemm_us(aligned, gpu)
    assert expected.gemm_us(aligned, gpu) > aligned.flops / 989e12 * 1e6
    causal = AttentionCase("x", 1, 16, 4096, 128)
    whole = AttentionCase("x", 1, 16, 4096, 128, causal=False, direction="backward")
    assert expected.attention_flops(whole) == 5 * expected.attention_flops(causal)


def test_attention_covers_head_dimensions_sequences_groups_and_backends() -> None:
    dims = {(case.head_dim, case.causal, case.direction, case.backend) for case in attention()}
    for head_dim in range(32, 257, 8):
        for causal in (True, False):
            for direction in ("forward", "backward"):
                for backend in ("flash", "cudnn", "efficient"):
                    assert (head_dim, causal, direction, backend) in dims
    assert any(case.seq_q % 2 for case in attention())
    assert {case.heads // case.key_heads for case in attention()} >= {1, 2, 4, 8, 16, 32}
    assert len({replace(case, sweep="") for case in attention()}) == len(attention())


# --- layers -------------------------------------------------------------------------------------------


def test_layers_do_the_products_of_the_paper() -> None:
    layer = LayerShape(hidden=2560, heads=32, ffn=10240, micro_batch=4, sequence=2048, attention="math")
    forward = {g.component: (g.m, g.n, g.k, g.batch) for g in layer.gemms() if g.role == "forward"}
    assert forward == {
        "attention.qkv": (8192, 3 * 2560, 2560, 1),
        "attention.output": (8192, 2560, 2560, 1),
        "mlp.up": (8192, 4 * 2560, 2560, 1),
        "mlp.down": (8192, 2560, 4 * 2560, 1),
        "attention.scores": (2048, 2048, 80, 4 * 32),
        "attention.values": (2048, 80, 2048, 4 * 32),
    }
    # 24bsh^2 + 4bs^2h forward, twice that backward
    flops = 3 * (24 * 4 * 2048 * 2560**2 + 4 * 4 * 2048**2 * 2560)
    assert sum(2 * g.m * g.n * g.k * g.batch for g in layer.gemms()) == flops
    assert layer.parameters == 12 * 2560**2


def test_a_rank_holds_its_share(said: Listener) -> None:
    whole = MODELS["llama-3-8b"][1]
    part = whole.changed(tensor_parallel=8)
    assert part.parameters * 8 == whole.parameters
    assert [linear.out for linear in part.linears()] == [768, 4096, 3584, 4096]
    with pytest.raises(ValueError) as error:
        whole.changed(tensor_parallel=3)
    said(error.value)
    with pytest.raises(ValueError) as error:
        whole.changed(heads=30)
    said(error.value)


def test_changing_heads_keeps_the_hidden_size_and_the_parameters() -> None:
    layer = MODELS["gpt3-2.7b"][1]
    for heads in (20, 40, 64):
        other = layer.changed(heads=heads)
        assert other.head_dim * heads == 2560
        assert other.parameters == layer.parameters


def test_sixty_pairs_over_twelve_shapes_of_models() -> None:
    pairs = layer_pairs()
    changed = [pair for pair in pairs if pair.change]
    assert len(changed) >= 60
    assert len({pair.model for pair in changed}) >= 12
    assert len({pair.name for pair in pairs}) == len(pairs)
    for pair in pairs:
        assert (pair.before == pair.after) == (not pair.change)
    kinds = Counter(pair.expected for pair in pairs)
    assert min(kinds[kind] for kind in ("faster", "slower", "same")) >= 6
    swiglu = {pair.after.ffn for pair in pairs if pair.model == "llama-7b" and pair.rule == "ffn"}
    assert swiglu >= {10848, 10880, 10912, 10944, 11008}
    assert any(pair.after.heads == 64 and pair.model == "gpt3-2.7b" for pair in pairs)


def test_pairs_of_unlike_jobs_are_compared_by_token_of_all_ranks() -> None:
    layer = LayerShape(hidden=1024, heads=8, ffn=4096, micro_batch=2, sequence=500)
    assert cost_us_per_token(3.0, layer) == pytest.approx(3.0)
    assert cost_us_per_token(3.0, layer.changed(micro_batch=4)) == pytest.approx(1.5)
    assert cost_us_per_token(3.0, layer.changed(tensor_parallel=4)) == pytest.approx(12.0)


def test_the_headline_fixes_are_whole_steps() -> None:
    pairs = {pair.name: pair for pair in step_pairs()}
    assert pairs.keys() >= {"vocabulary", "heads", "swiglu", "hidden", "dtype", "both", "control"}
    assert pairs["heads"].before.parameters == pairs["heads"].after.parameters
    assert pairs["vocabulary"].after.vocabulary - pairs["vocabulary"].before.vocabulary == 47
    assert pairs["control"].before == pairs["control"].after
