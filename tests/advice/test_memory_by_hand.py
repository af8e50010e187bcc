"""What a GPU holds while it trains, and what would make it fit, counted by hand from the paper's bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tracelens.config import Configuration, config_from_flags
from tracelens.config.configuration import Layout
from tracelens.config.model_config import ModelConfig
from tracelens.config.training import Training
from tracelens.step.memory import memory_of, would_fit

B, S, H, F, V, L = 4, 1024, 1024, 4096, 51200, 24
TOKENS = B * S
#: 12 h^2 of each layer's four products, and the embedding that the logits share.
WEIGHTS = 12 * H * H * L + V * H


def gpt(**sizes: int) -> Configuration:
    given = {"hidden": H, "heads": 16, "layers": L, "vocab": V, "sequence": S, "micro_batch": B}
    return config_from_flags(given | sizes, gated=False, tied=True)


def mixture(**more: Any) -> ModelConfig:
    """8 experts of which a token takes two, in 20 of 24 layers; 4 are dense and 8192 wide."""
    return replace(gpt().model, experts=8, dense_layers=4, dense_ffn=8192, **more)


TWO = Layout(experts_per_token=2)


# --- states -----------------------------------------------------------------------------------------------

#: A layer's attention is 4 h^2; an expert 2 h f; the router 8 h; a dense MLP 2 h of its own width.
_REST = L * 4 * H * H + 20 * 8 * H + 4 * 2 * H * 8192 + V * H
_EXPERTS = 20 * 8 * 2 * H * F


@pytest.mark.parametrize(
    ("training", "ep", "held", "shared"),
    [
        (Training(8, "ddp"), None, _REST + _EXPERTS, 1),
        (Training(8, "ddp"), 4, _REST + _EXPERTS / 4, 1),
        (Training(8, "fsdp"), 4, _REST + _EXPERTS / 4, 8),
        (Training(8, "fsdp"), 8, _REST + _EXPERTS / 8, 8),
        (Training(1, "fsdp"), None, _REST + _EXPERTS, 1),
        (Training(None, "fsdp"), None, _REST + _EXPERTS, 1),  # how many is not known: it has all
        (Training(None, "ddp"), 2, _REST + _EXPERTS / 2, 1),
        (Training(2, "fsdp"), 2, _REST + _EXPERTS / 2, 2),
    ],
)
def test_states_of_a_mixture(training: Training, ep: int | None, held: float, shared: int) -> None:
    """16 bytes a weight (ZeRO, arXiv 1910.02054); FSDP shares all, and has two layers whole in 16 bits."""
    found = memory_of(mixture(expert_parallel=ep), TWO, training)
    wanted = 16 * held if shared == 1 else 16 * (_REST + _EXPERTS) / shared + 2 * 2 * held / L
    assert found.states == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("checkpoint", ["none", "full"])
@pytest.mark.parametrize("ep", [None, 4])
def test_activations_of_a_mixture(checkpoint: Any, ep: int | None) -> None:
    """Two bytes each of 8 h in a layer, twice the widths that a token goes through, and three logits.

    With full checkpointing one layer with experts, which is the wider, and the input of each other one.
    """
    found = memory_of(mixture(expert_parallel=ep), TWO, Training(8, checkpoint=checkpoint))
    none = 2 * TOKENS * (L * 8 * H + 2 * (20 * 2 * F + 4 * 8192) + 3 * V)
    full = 2 * TOKENS * (8 * H + 2 * 2 * F + 3 * V) + 2 * TOKENS * H * (L - 1)
    assert found.activations == pytest.approx(none if checkpoint == "none" else full, rel=1e-12)
    assert found.whole == found.states + found.activations


@pytest.mark.parametrize(
    ("sizes", "tokens"), [({"micro_batch": 1}, S), ({"sequence": 100}, 4 * 100), ({"micro_batch": 7}, 7 * S)]
)
def test_the_input_of_each_layer_is_kept(sizes: dict[str, int], tokens: int) -> None:
    config = gpt(**sizes)
    found = memory_of(config.model, config.layout, Training(1, "ddp", "full"))
    assert found.activations == pytest.approx(2 * tokens * (8 * H + 2 * F + 3 * V + H * (L - 1)))


# --- what would fit ---------------------------------------------------------------------------------------


def ways(
    room_gb: float, training: Training, config: Configuration | None = None, **changed: Any
) -> list[str]:
    found = config or gpt()
    return would_fit(replace(found.model, **changed), found.layout, training, room_gb)


def numbers(found: list[str]) -> list[str]:
    """Each way as a letter of its kind and its numbers: s, bN, r, tN, pN, fN; with full recompute P and F.

    p41: tensor and sequence parallelism over four GPUs, and one stage more.
    """
    short = []
    for way in found:
        digits = "".join(one for one in way if one.isdigit())
        letters = {
            "micro-batch": "b",
            "stages": "p",
            "tensor": "t",
            "FSDP": "f",
            "sequence": "s",
            "recompute": "r",
        }
        letter = next((letter for word, letter in letters.items() if word in way), "r")
        short.append((letter.upper() if letter in "fp" and "recompute" in way else letter) + digits)
    return short


#: GB of one GPU. States 16 * 354 million = 5.67; FSDP's two layers 0.0591 beside its share of those.
#: Activations of a sequence 2 * 1024 * (24 * 16 * 1024 + 3 * 51200) = 1.120, of four 4.480; with full
#: recompute 2 * 4096 * (16 * 1024 + 23 * 1024 + 3 * 51200) = 1.585.
@pytest.mark.parametrize(
    ("room_gb", "training", "found"),
    [
        (10.14, Training(1, "ddp"), ["b3", "r", "t2", "f2"]),
        (7.26, Training(1, "ddp"), ["b1", "r", "t2", "f4"]),  # f2: 2.835 + 0.059 + 4.480 = 7.37
        (7.25, Training(1, "ddp"), ["b1", "t2", "F2", "f4"]),  # with recompute 5.671 + 1.585 = 7.256
        (6.80, Training(1, "ddp"), ["b1", "t2", "F2", "f4"]),
        (6.79, Training(1, "ddp"), ["t2", "F2", "f4"]),
        (6.00, Training(1, "ddp"), ["t2", "F2", "f4"]),  # 1.418 + 0.059 + 4.480 = 5.957
        (5.95, Training(1, "ddp"), ["t2", "F2", "f8"]),
        (4.54, Training(1, "ddp"), ["t4", "F2"]),  # f1024: 0.0055 + 0.059 + 4.480 = 4.545; F2: 4.479
        (4.47, Training(1, "ddp"), ["t4", "F4"]),
        # over four GPUs with two stages: 16 * (302 / 2 + 52.4) / 4 million, and of two micro-batches twelve
        # layers of 4 * 4096 / 4 each: 0.814 + 0.805 = 1.619
        (1.651, Training(1, "ddp"), ["p42", "F1024"]),  # 0.0055 + 0.0591 + 1.5854 = 1.65005
        (1.648, Training(1, "ddp"), ["p42"]),
        (0.1, Training(1, "ddp"), []),
        # to the byte: 16 * 354,418,688 + 2 * 4096 * 193,536 = 7,256,145,920
        (7.25614592, Training(1, "ddp"), ["b1", "r", "t2", "f4"]),
        (7.256145919, Training(1, "ddp"), ["b1", "t2", "F2", "f4"]),
        # more GPUs than now: 8 share already
        (5.95, Training(8, "fsdp"), ["b3", "r", "t2", "f16"]),
        (5.95, Training(16, "fsdp"), ["b3", "r", "t2", "f32"]),
        (5.95, Training(8, "ddp"), ["t2", "F2", "f8"]),
        (10.14, Training(None, "fsdp"), ["b3", "r", "t2", "f2"]),  # how many is not known: it has all
    ],
)
def test_the_least_of_each_kind_that_fits(room_gb: float, training: Training, found: list[str]) -> None:
    assert numbers(ways(room_gb, training)) == found


#: On two tensor-parallel ranks: states 2.835; layers gathered 0.0295; activations
#: 2 * 4096 * (24 * 10 * 1024 + 3 * 25600) = 2.642; with full recompute
#: 2 * 4096 * (33 * 1024 + 76800) = 0.906; with sequence parallelism
#: 2 * 4096 * (24 * 8 * 1024 + 76800) = 2.240.
@pytest.mark.parametrize(
    ("room_gb", "training", "found"),
    [
        (3.10, Training(2, "tp"), ["t8", "F2", "f8"]),  # 2.835 / 8 + 0.030 + 2.642 = 3.026
        (3.02, Training(2, "tp"), ["t8", "F2", "f16"]),
        (3.02, Training(32, "fsdp"), ["s", "b3", "r", "t8", "f32"]),  # 16 groups share already
        (2.45, Training(32, "fsdp"), ["s", "b3", "r", "t8"]),  # 2.835 / 16 + 0.0295 + 2.240 = 2.447
        (2.44, Training(32, "fsdp"), ["b3", "r", "t8"]),
        (2.64, Training(2, "tp"), ["t8", "F2"]),
        (3.80, Training(2, "tp"), ["b1", "r", "t4", "f4"]),  # 2.835 + 0.906 = 3.741
        (3.70, Training(2, "tp"), ["b1", "t4", "F2", "f4"]),  # one sequence of four: 2.835 + 0.661 = 3.496
        (3.40, Training(2, "tp"), ["t4", "F2", "f4"]),
        (3.37, Training(2, "tp"), ["t4", "F2", "f8"]),
    ],
)
def test_on_two_ranks_that_share_each_layer(room_gb: float, training: Training, found: list[str]) -> None:
    assert numbers(ways(room_gb, training, gpt(tensor_parallel=2))) == found


@pytest.mark.parametrize(
    ("changed", "degrees"),
    [
        ({}, ["t2"]),
        ({"shared_ffn": 513}, []),
        ({"dense_ffn": 513}, []),
        ({"shared_ffn": 512, "dense_ffn": 514}, ["t2"]),
        ({"heads": 12, "kv_heads": 3}, []),
        ({"heads": 12, "kv_heads": 6}, ["t2"]),
        ({"heads": 12, "kv_heads": 1}, ["t2"]),  # each rank has a copy of it
        ({"heads": 12, "kv_heads": None}, ["t2"]),
        ({"heads": 15, "kv_heads": None}, []),
        ({"expert_parallel": 2}, []),
        ({"expert_parallel": 1}, ["t2"]),
        ({"tensor_parallel": 4}, ["t8"]),
        ({"tensor_parallel": 8}, []),
        ({"tensor_parallel": 4, "vocab": 51204}, []),
    ],
)
def test_ranks_that_could_share_a_layer(changed: dict[str, Any], degrees: list[str]) -> None:
    assert [way for way in numbers(ways(80.0, Training(8, "tp"), **changed)) if way[0] == "t"] == degrees


@pytest.mark.parametrize(("ep", "first"), [(1, "f2"), (2, "f2"), (8, "f8"), (16, "f16")])
def test_gpus_that_share_experts_divide_those_of_fsdp(ep: int, first: str) -> None:
    found = would_fit(mixture(expert_parallel=ep), TWO, Training(ep, "ddp"), 80.0)
    assert [way for way in numbers(found) if way[0] == "f"] == [first]


@pytest.mark.parametrize("cp", [2, 4])
def test_gpus_that_share_a_sequence_divide_those_of_fsdp(cp: int) -> None:
    (found,) = [
        way for way in numbers(ways(4.6, Training(cp, "ddp"), gpt(context_parallel=cp))) if way[0] == "f"
    ]
    assert int(found[1:]) % cp == 0


def test_more_gpus_that_are_not_fewer_than_without_recompute_are_no_way() -> None:
    """Mixtral 8x7B on 8 H100: 16 GPUs with full recompute before 64 without; what full recompute alone does
    needs no more GPUs; a model whose two gathered layers are too large needs its experts shared."""
    mixtral = ModelConfig(hidden=4096, heads=32, kv_heads=8, head_dim=128, layers=32, ffn=14336, vocab=32000,
                          experts=8, gated=True, tied=False, sequence=4096, micro_batch=2)  # fmt: skip
    assert numbers(would_fit(mixtral, TWO, Training(8, "fsdp"), 80.0)) == ["p82", "F16", "f64"]
    assert numbers(would_fit(mixtral, TWO, Training(16, "fsdp"), 80.0))[0] == "r"
    wide = replace(mixtral, layers=8, experts=512)
    found = would_fit(wide, TWO, Training(8, "fsdp"), 80.0)
    assert numbers(found) == ["f25632"]  # over 256 GPUs, experts over 32
    assert would_fit(wide, TWO, Training(256, "fsdp"), 80.0) == found  # the same GPUs share their experts
