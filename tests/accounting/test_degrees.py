"""Over how many ranks a model is spread: what names it, and where nothing does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_messages import message
from tests.advice.advice_rows import model
from tests.said import Listener
from tracelens.accounting.degrees import declared, with_degrees
from tracelens.results import CommunicationRow, Known

DIMS = model(hidden=4096, heads=32, layers=8, tensor_parallel=1, experts=64)


def groups(**sizes: int) -> dict[str, Any]:
    listed = [
        {"pg_name": str(at), "pg_desc": name, "pg_size": size, "ranks": list(range(size))}
        for at, (name, size) in enumerate(sizes.items())
    ]
    return {"distributedInfo": {"rank": 0, "world_size": 16, "pg_config": listed}}


def degrees(metadata: dict[str, Any], *rows: CommunicationRow) -> tuple[int | None, int | None, int | None]:
    found = with_degrees(DIMS, metadata, rows)
    return found.tensor_parallel.value, found.pipeline_parallel.value, found.expert_parallel.value


@pytest.mark.parametrize(
    "metadata",
    [
        groups(mesh_tp=2, mesh_pp=4, mesh_ep=8, mesh_dp=2),
        groups(
            TENSOR_MODEL_PARALLEL_GROUP=2, PIPELINE_MODEL_PARALLEL_GROUP=4, EXPERT_MODEL_PARALLEL_GROUP=8,
            TENSOR_AND_DATA_PARALLEL_GROUP=16, DATA_PARALLEL_GROUP=2, EXPERT_DATA_PARALLEL_GROUP=3,
            POSITION_EMBEDDING_GROUP=2,
        ),
        {"tracelens": {"parallel": {"degrees": {"tp": 2, "pp": 4, "ep": 8, "dp_shard": 2}}}},
    ],
    ids=["DeviceMesh", "Megatron", "capture"],
)  # fmt: skip
def test_groups_and_meshes_are_named_after_what_they_are_for(metadata: dict[str, Any]) -> None:
    assert degrees(metadata, message("send/recv", group=None, group_size=None, purpose="unknown")) == (
        2,
        4,
        8,
    )


def test_without_shapes_the_group_that_exchanges_activations_is_the_degree() -> None:
    """As in a Megatron step recorded without shapes, whose groups have no names."""
    unknown = replace(DIMS, tensor_parallel=Known(None, "needs hidden size, heads and head dimension"))
    sums = message("all_reduce", group="undefined", group_size=2, purpose="tensor parallel")
    assert with_degrees(unknown, {}, [sums]).tensor_parallel.value == 2
    assert with_degrees(DIMS, {}, [sums]).tensor_parallel.value == 1  # the shapes say so
    other = message("all_reduce", group="undefined", group_size=4, purpose="tensor parallel")
    assert with_degrees(unknown, {}, [sums, other]).tensor_parallel.value is None


def test_two_groups_of_one_name_and_other_sizes_tell_nothing(said: Listener) -> None:
    found = with_degrees(DIMS, groups(pp=4, mesh_pp=2), [message("send/recv", group="x")])
    assert found.pipeline_parallel.value is None
    said(found.pipeline_parallel.source)


def test_the_one_group_there_is_has_the_degree_of_what_it_serves() -> None:
    sends = message("send/recv", group="default_pg", group_size=4, purpose="pipeline")
    assert degrees({}, sends)[1] == 4
    gradients = message("all_reduce", group="1", group_size=2, purpose="data-parallel gradients")
    assert degrees({}, sends, gradients)[1] is None  # the world is more than the pipeline


def test_a_rank_that_sends_nothing_is_no_stage(said: Listener) -> None:
    gradients = message(purpose="data-parallel gradients", group="default_pg", group_size=8)
    found = with_degrees(DIMS, {}, [gradients])
    assert found.pipeline_parallel.value == 1
    assert found.expert_parallel.value is None
    assert degrees({}) == (1, 1, 1)
    said(found.pipeline_parallel.source)
    unclear = message("other", purpose="unknown", group=None, group_size=None)
    assert degrees({}, gradients, unclear)[1] is None


def test_no_message_is_no_proof_of_one_rank_where_much_is_unattributed() -> None:
    found = with_degrees(DIMS, {}, [], complete=False)
    assert (found.pipeline_parallel.value, found.expert_parallel.value) == (None, None)
    alone = with_degrees(DIMS, {"distributedInfo": {"rank": 0, "world_size": 1}}, [], complete=False)
    assert (alone.pipeline_parallel.value, alone.expert_parallel.value) == (1, 1)


def test_a_model_without_a_router_has_no_expert_parallel_ranks() -> None:
    found = with_degrees(model(hidden=512), {}, [])
    assert found.expert_parallel.value is None and found.pipeline_parallel.value == 1
    nothing = with_degrees(model(False), {}, [])
    assert nothing.pipeline_parallel.value is None


def test_the_configuration_s_sizes_are_those_of_the_whole_model() -> None:
    """What modules show is this rank's part: only what a configuration states is taken."""
    sizes = {
        "layers": {"value": 32, "source": "config.num_hidden_layers"},
        "vocab": {"value": 128256, "source": "config.vocab_size"},
        "heads": {"value": 4, "source": "Attention.n_heads"},
    }
    other = {"trained": False, "dimensions": {"layers": {"value": 2, "source": "config.n_layer"}}}
    metadata = {"tracelens": {"models": [other, {"trained": True, "dimensions": sizes}]}}
    assert declared(metadata) == {"layers": 32, "vocab": 128256}
    for odd in ({}, {"tracelens": None}, {"tracelens": {"models": [1, {"dimensions": []}]}}):
        assert declared(odd) == {}


@pytest.mark.parametrize(
    ("heads", "kv_heads", "sizes", "wholes"),
    [
        (8, 8, [2.0 * 8192 * 4096, 4.0 * 8192], [64, 64, 16384, 51200]),  # sums of the loss: vocabulary split
        (8, 1, [2.0 * 8192 * 4096], [64, None, 16384, None]),  # one key head is the rank's or everyone's
    ],
)
def test_what_ranks_share_makes_the_whole(
    heads: int, kv_heads: int, sizes: list[float], wholes: list[int | None]
) -> None:
    dims = replace(
        model(hidden=4096, heads=heads, layers=8, tensor_parallel=8),
        kv_heads=Known(kv_heads, ""), ffn=Known(2048, ""), vocab=Known(6400, ""),
    )  # fmt: skip
    rows = [message("all_reduce", group_size=8, bytes_per_call=size) for size in sizes]
    found = with_degrees(dims, {}, rows, tokens=8192)
    assert [getattr(found, name).whole for name in ("heads", "kv_heads", "ffn", "vocab")] == wholes
    assert found.heads.per_rank and found.hidden.whole is None
    alone = with_degrees(replace(dims, tensor_parallel=Known(1, "")), {}, [])
    assert (alone.heads.whole, alone.heads.per_rank) == (None, False)


@pytest.mark.parametrize(
    ("elements", "group_size", "whole"),
    [
        (25136 * 8, 8, 25136 * 8),  # gpt-oss served by vLLM on 8 GPUs: one row of logits from each rank
        (25136 * 8 * 32, 8, 25136 * 8),
        (25136 * 4096, 8, None),  # FSDP's shards of the table, gathered
        (25136 * 8 + 8, 8, None),
    ],
)
def test_a_vocabulary_whose_logits_are_gathered_is_a_part_of_one(
    elements: int, group_size: int, whole: int | None
) -> None:
    dims = replace(DIMS, vocab=Known(25136, "logits"), tensor_parallel=Known(None, "needs heads"))
    gather = message(
        "all_gather", group="3", group_size=group_size, purpose="unknown", bytes_per_call=2.0 * elements
    )
    found = with_degrees(dims, {}, [gather])
    assert (found.vocab.value, found.vocab.per_rank) == (25136, whole is not None)
    assert (found.vocab.whole, found.heads.per_rank) == (whole, whole is not None)


@pytest.mark.parametrize(
    ("size", "found"), [(2, 2), (1, 1), (0, None), (-2, None), (True, None), ("2", None)]
)
def test_a_mesh_whose_size_is_none_tells_nothing(size: Any, found: int | None) -> None:
    open_ = replace(DIMS, tensor_parallel=Known(None, "open"))
    degrees = {"tracelens": {"parallel": {"degrees": {"tp": size}}}}
    assert with_degrees(open_, degrees, []).tensor_parallel.value == found
