"""The joint search: known answers, kept constraints, and nothing recommended that could be slower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.advice import configs
from tests.advice.configs import gpt3_2_7b, read
from tracelens.config import Configuration, config_from_flags
from tracelens.config.model_config import changed
from tracelens.errors import UsageError
from tracelens.hardware import find_gpu
from tracelens.step.planned_change import compare
from tracelens.step.planned_step import Planner
from tracelens.step.search import Found, search
from tracelens.step.search_space import BY_DEFAULT, SEARCHED, SearchLimits, Space, kept_degree
from tracelens.step.shape_search import other_heads
from tracelens.step.step import Change

GPUS = ("h100-sxm", "a100-sxm-80gb")


def _search(config: Configuration, gpu: str = "h100-sxm", **limits: Any) -> tuple[Planner, Found]:
    planner = Planner(config.layout, gpu=find_gpu(None, override=gpu))
    return planner, search(planner, config.model, SearchLimits(**limits), fixed=config.fixed)


def _names(change: Change) -> set[str]:
    return {name for name in SEARCHED if change.now.get(name) != change.then.get(name)}


@pytest.mark.parametrize("gpu", GPUS)
def test_a_faster_shape_than_the_papers_own_for_2_7b(gpu: str) -> None:
    """C2 of Figure 1 is h 2560 with 40 heads; the search keeps the vocabulary as the paper does."""
    config = gpt3_2_7b()
    planner, found = _search(config, gpu, free=BY_DEFAULT - {"vocab"})
    best = found.picks[0]
    c2 = planner.step(changed(config.model, {"heads": 40}))
    against = compare(c2, planner.step(best.then))
    assert (against.saving_frac.mid or 0) > 0
    assert abs((best.then.parameters or 0) / (best.now.parameters or 1) - 1) <= 0.01
    assert best.then.heads == 20


@pytest.mark.parametrize("gpu", GPUS)
def test_2_7b_with_everything_free(gpu: str) -> None:
    _, found = _search(gpt3_2_7b(), gpu)
    best = found.picks[0].then
    assert (best.heads, best.head_dim, best.vocab) == (20, 128, 50304)
    assert {frozenset(_names(pick)) for pick in found.picks} >= {frozenset({"vocab"})}


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", ["LLAMA2_7B", "LLAMA3_8B", "MISTRAL_7B", "QWEN3_4B", "MIXTRAL_8X7B"])
def test_good_shapes_are_left_alone(tmp_path: Path, gpu: str, name: str) -> None:
    config = read(tmp_path, getattr(configs, name), sequence=4096, micro_batch=2)
    _, found = _search(config, gpu)
    assert found.picks == ()
    assert found.tried > 5  # not for want of looking


@pytest.mark.parametrize("gpu", GPUS)
def test_an_odd_swiglu_width_is_moved_to_the_grid(gpu: str) -> None:
    sizes = {"hidden": 4096, "heads": 32, "layers": 32, "ffn": 10922, "vocab": 32000}
    _, found = _search(config_from_flags(sizes, gated=True, tied=False), gpu)
    best = found.picks[0]
    assert _names(best) == {"ffn"}
    assert (best.then.ffn or 1) % 64 == 0
    assert (best.saving_frac.mid or 0) > 0.1


def test_wide_heads_that_another_fused_kernel_runs_as_fast(tmp_path: Path) -> None:
    """Beyond 128 torch runs FlashAttention 2 on Hopper; FlashAttention 3 is faster at 256 than at 128."""
    _, found = _search(read(tmp_path, configs.GEMMA_2B, sequence=4096, micro_batch=2))
    assert all(pick.then.head_dim == 256 for pick in found.picks)


def test_bert_and_its_vocabulary(tmp_path: Path) -> None:
    """H100, bert: 30522 runs on kernels with 4-byte loads in a public trace."""
    _, found = _search(read(tmp_path, configs.BERT_BASE))
    assert any(pick.then.vocab in (30528, 30592) and _names(pick) == {"vocab"} for pick in found.picks)


AWKWARD: list[dict[str, int]] = [
    {"hidden": 2560, "heads": 32, "layers": 32, "vocab": 50257},
    {"hidden": 1600, "heads": 25, "layers": 48, "vocab": 50257, "sequence": 1024},
    {"hidden": 2500, "heads": 25, "layers": 24, "vocab": 50001},
    {"hidden": 768, "heads": 12, "layers": 12, "vocab": 30522, "sequence": 512},
    {"hidden": 5000, "heads": 50, "layers": 40, "vocab": 100_277, "tensor_parallel": 1},
    {"hidden": 4096, "heads": 32, "kv_heads": 8, "layers": 32, "vocab": 128_256, "ffn": 14_333},
]


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("sizes", AWKWARD, ids=lambda sizes: str(sizes["hidden"]))
def test_picks_keep_every_constraint_and_are_surely_faster(sizes: dict[str, int], gpu: str) -> None:
    config = config_from_flags(sizes, gated=None)
    planner, found = _search(config, gpu)
    now, present = config.model, planner.step(config.model)
    assert len(found.picks) <= 5
    for pick in found.picks:
        then = pick.then
        assert then.heads and then.head_dim and then.kv_heads and then.ffn and then.vocab
        assert then.heads * then.head_dim == then.hidden
        assert then.heads % then.kv_heads == 0
        assert then.head_dim % 8 == 0 or then.head_dim == now.head_dim
        assert abs((then.parameters or 0) / (now.parameters or 1) - 1) <= 0.01
        assert then.vocab >= (now.vocab or 0)
        assert (then.layers, then.sequence, then.micro_batch) == (now.layers, now.sequence, now.micro_batch)
        assert planner.memory(then) <= 1.01 * planner.memory(now)
        assert (pick.saving_frac.low or 0) > 0
        assert pick.shape_gain_frac >= 0.01
        again = compare(present, planner.step(then))  # each pick is simulated as a whole
        assert again.saving_frac == pick.saving_frac


@pytest.mark.parametrize("sizes", AWKWARD, ids=lambda sizes: str(sizes["hidden"]))
def test_nothing_unsure_hides_in_a_pick(sizes: dict[str, int]) -> None:
    """What a pick changes beyond a smaller pick is surely faster by itself."""
    planner, found = _search(config_from_flags(sizes))
    for pick in found.picks:
        for other in found.picks:
            if _names(other) < _names(pick):
                more = compare(planner.step(other.then), planner.step(pick.then))
                assert (more.saving_frac.low or 0) > 0


def test_tensor_parallel_ranks_divide_every_pick() -> None:
    config = gpt3_2_7b(tensor_parallel=4, vocab=50260)
    _, found = _search(config)
    assert found.picks
    for pick in found.picks:
        for name in ("heads", "kv_heads", "ffn", "vocab"):
            assert (pick.then.get(name) or 1) % 4 == 0
        if pick.then.vocab != 50260:
            assert (pick.then.vocab or 1) % 256 == 0  # each rank's share is aligned, not only the whole


@pytest.mark.parametrize(("now", "kept"), [(32, 4), (71, 1), (25, 1), (12, 4), (6, 2)])
def test_a_pick_keeps_the_tensor_parallel_degrees_of_its_heads(now: int, kept: int) -> None:
    config = config_from_flags({"hidden": now * 100, "heads": now, "layers": 12, "vocab": 50304})
    assert kept_degree(config.model) == kept
    planner = Planner(config.layout, gpu=find_gpu(None, override="h100-sxm"))
    counts = {one.heads for one in Space(config.model, SearchLimits()).bases()}
    assert counts and all((count or 0) % kept == 0 for count in counts)
    assert all(row.heads % kept == 0 for row in other_heads(planner, config.model, SearchLimits()))


def test_large_models_keep_eight_ranks_and_a_user_can_give_them_up() -> None:
    """3200 wide with 32 heads of 100: 25 heads are fastest and divide by no usual degree."""
    small = config_from_flags({"hidden": 3200, "heads": 32, "layers": 26, "vocab": 32000})
    large = config_from_flags({"hidden": 3200, "heads": 32, "layers": 80, "vocab": 32000})
    assert (kept_degree(small.model), kept_degree(large.model)) == (4, 8)
    assert _search(small)[1].picks[0].then.heads == 40
    assert _search(small, any_heads=True)[1].picks[0].then.heads == 25


def test_key_value_heads_stay_unless_they_are_free() -> None:
    grouped = config_from_flags({"hidden": 3200, "heads": 32, "kv_heads": 8, "layers": 26, "vocab": 32000})
    assert {one.kv_heads for one in Space(grouped.model, SearchLimits()).bases()} == {8}
    free = SearchLimits(free=BY_DEFAULT | {"kv_heads"})
    assert {one.kv_heads for one in Space(grouped.model, free).bases()} > {8}


def test_heads_of_their_own_size_keep_their_width(tmp_path: Path) -> None:
    config = read(tmp_path, configs.QWEN3_4B | {"num_attention_heads": 51, "num_key_value_heads": 51,
                                                "head_dim": 80}, micro_batch=4, sequence=2048)  # fmt: skip
    _, found = _search(config, parameters_frac=0.02)
    width = (config.model.heads or 0) * (config.model.head_dim or 0)
    for pick in found.picks:
        assert (pick.then.heads or 0) * (pick.then.head_dim or 0) == width


def test_fixed_sizes_stay(tmp_path: Path) -> None:
    _, found = _search(gpt3_2_7b(), free=frozenset({"vocab"}))
    assert [_names(pick) for pick in found.picks] == [{"vocab"}]
    nano = read(
        tmp_path, configs.NANOGPT.replace("768 * 2", "1600").replace("n_head = 12", "n_head = 40"), "a.py"
    )
    _, found = _search(nano)
    for pick in found.picks:
        assert (pick.then.hidden, pick.then.ffn) == (1600, 6400)


def test_layers_are_searched_when_they_are_free() -> None:
    config = gpt3_2_7b(vocab=50304)
    _, found = _search(config, free=BY_DEFAULT | {"layers"})
    assert {candidate.model.layers for candidate in found.front} - {32}


def test_a_micro_batch_needs_to_know_the_memory() -> None:
    with pytest.raises(UsageError, match="--memory-gb"):
        SearchLimits(free=BY_DEFAULT | {"micro_batch"}).checked()
    config = gpt3_2_7b(micro_batch=1)
    planner, found = _search(config, free=BY_DEFAULT | {"micro_batch"}, memory_gb=60)
    for candidate in found.front:
        assert planner.memory(candidate.model) <= 60e9


@pytest.mark.parametrize(
    "limits",
    [
        SearchLimits(parameters_frac=-0.1),
        SearchLimits(parameters_frac=3),
        SearchLimits(memory_gb=0),
        SearchLimits(free=frozenset({"x"})),
    ],
)
def test_limits_that_make_no_sense(limits: SearchLimits) -> None:
    with pytest.raises(UsageError):
        limits.checked()


def test_the_front_trades_weights_against_time() -> None:
    _, found = _search(gpt3_2_7b())
    weights = [point.parameters_frac for point in found.front]
    times = [point.time_frac for point in found.front]
    assert weights == sorted(weights, reverse=True)
    assert times == sorted(times, reverse=True)
    assert 1 < len(found.front) <= 12


def test_a_front_point_is_the_time_of_the_whole_step() -> None:
    """The search's sums of parts are the step predicted as one."""
    config = gpt3_2_7b()
    planner, found = _search(config, free=BY_DEFAULT | {"layers"})
    now = planner.step(config.model).time_ms.mid or 0.0
    for point in found.front:
        assert (planner.step(point.model).time_ms.mid or 0) / now == pytest.approx(point.time_frac)


_LLAMA_405B = {"hidden": 16384, "heads": 128, "kv_heads": 8, "layers": 126, "vocab": 128_256, "ffn": 53248,
               "micro_batch": 4}  # fmt: skip
#: The largest that is read at all.
_ABSURD = {
    "hidden": 2**20,
    "heads": 2**13,
    "layers": 2**14,
    "vocab": 2**25,
    "ffn": 2**23,
    "micro_batch": 2**10,
}


@pytest.mark.parametrize(
    ("sizes", "free"),
    [(_LLAMA_405B, BY_DEFAULT), (_ABSURD, frozenset(SEARCHED))],
    ids=["405B-default", "absurd-everything"],
)
def test_the_search_is_bounded_whatever_is_asked(free: frozenset[str], sizes: dict[str, int]) -> None:
    """Predictions, not seconds, are counted here: benchmarks/suggest.py times it."""
    config = config_from_flags(sizes, gated=True)
    planner, found = _search(config, free=free, memory_gb=10_000 - 1, parameters_frac=0.2)
    assert found.tried <= 50_000
    assert planner.predictions <= 15_000


def test_more_room_never_finds_less() -> None:
    config = gpt3_2_7b()
    gains = [
        _search(config, parameters_frac=share)[1].picks[0].shape_gain_frac for share in (0.0, 0.01, 0.05)
    ]
    assert gains[0] <= gains[1] + 0.01 and gains[1] <= gains[2] + 0.01
