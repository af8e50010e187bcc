"""The model's dimensions as its forward calls show them, and why one of them is not known."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.said import Listener
from tracelens.accounting.messages import with_messages
from tracelens.accounting.model import express, model_dims
from tracelens.accounting.operands import Operands
from tracelens.accounting.words.model import NO_SHAPES, NOT_ATTRIBUTED
from tracelens.attribution import Attribution, Calls
from tracelens.gemm import AttentionShape, GemmShape, Shape
from tracelens.results import Known, ModelDims
from tracelens.words import COMPONENTS, PHASES


@dataclass(frozen=True)
class Call:
    component: str
    shape: Shape | None
    ns: int = 100
    layer: int = 0
    phase: str = "forward"
    step: int = 0


def gemm(m: int, n: int, k: int, batch: int = 1, groups: int | None = None) -> GemmShape:
    return GemmShape(m, n, k, batch, "bf16", "bf16", "TN", groups=groups)


def attends(
    batch: int | None = 2, length: int | None = 32, *, heads: int = 4, dim: int = 16, **more: Any
) -> AttentionShape:
    given: dict[str, Any] = {"kv_heads": heads, "key_len": length, "value_dim": dim, "causal": True, **more}
    return AttentionShape(batch, heads, query_len=length, head_dim=dim, dtype="bf16", backward=False, **given)


def layer(at: int = 0, width: int = 64, core: Shape | None = None) -> list[Call]:
    """2 sequences of 32 tokens; 4 heads of 16; 256 wide between."""
    wide = 4 * width
    return [
        Call("attention.qkv", gemm(64, 3 * width, width), layer=at),
        Call("attention.core", core or attends(dim=width // 4), layer=at),
        Call("attention.output", gemm(64, width, width), layer=at),
        Call("mlp.up", gemm(64, wide, width), layer=at),
        Call("mlp.down", gemm(64, width, wide), layer=at),
    ]


LOGITS = Call("logits", gemm(64, 1000, 64), layer=-1)
BACKWARD = Call("mlp.down", gemm(64, 7, 7), ns=10**6, phase="backward")
MODEL = [*layer(0), *layer(1), LOGITS, BACKWARD]


def changed(component: str, shape: Shape | None, rows: Sequence[Call] = MODEL) -> list[Call]:
    return [
        replace(one, shape=shape) if one.component == component and one.phase == "forward" else one
        for one in rows
    ]


def found(
    rows: Sequence[Call],
    *,
    transformer: bool = True,
    named: bool | Collection[int] = False,  # layers with a number of their own
    further: dict[int, bool] | None = None,
    sharded: bool = False,
    **operands: Any,
) -> ModelDims:
    size = len(rows)
    nothing: Any = np.full(size, -1)
    codes: Any = np.arange(size)
    calls = Calls(
        codes, [None] * size, nothing, [None] * size, np.zeros(size, np.bool_),
        np.array([one.ns for one in rows]), [one.shape for one in rows], [None] * size, [None] * size, codes,
    )  # fmt: skip
    attribution = Attribution(
        step=np.array([one.step for one in rows]),
        phase=np.array([PHASES.index(one.phase) for one in rows]),
        component=np.array([COMPONENTS.index(one.component) for one in rows]),
        evidence=nothing, components=[()], fused=codes, candidates=codes,
        layer=np.array([one.layer for one in rows]), module=nothing, modules=[], forward_op=nothing,
        reason=nothing, transformer=transformer, role=nothing, names=[],
        like=nothing, further=further or {},
        named=np.array([named if isinstance(named, bool) else one.layer in named for one in rows]),
    )  # fmt: skip
    return model_dims(attribution, calls, sharded=sharded, operands=Operands(**operands))


def values(dims: ModelDims, *names: str) -> tuple[int | None, ...]:
    return tuple(getattr(dims, name).value for name in names)


def test_a_small_model_is_read_off_its_calls(said: Listener) -> None:
    dims = found(MODEL)
    assert values(dims, "hidden", "heads", "kv_heads", "head_dim", "ffn", "layers") == (64, 4, 4, 16, 256, 2)
    assert values(dims, "sequence", "micro_batch", "vocab", "classes") == (32, 2, 1000, None)
    assert values(dims, "tensor_parallel", "experts") == (1, None) and dims.found == "whole"
    said(dims.ffn.source, dims.layers.source, found(MODEL, named=True).layers.source)


@pytest.mark.parametrize(("times", "value"), [((200, 100), 256), ((199, 101), None), ((100, 200), 128)])
def test_a_value_counts_from_two_thirds_of_the_time_on(
    times: tuple[int, int], value: int | None, said: Listener
) -> None:
    rows = [one for one in MODEL if one.component != "mlp.down"]
    rows += [Call("mlp.down", gemm(64, 64, k), ns=ns) for k, ns in zip((256, 128), times, strict=True)]
    assert found(rows).ffn.value == value
    said(found(rows).ffn.source)


@pytest.mark.parametrize(
    ("size", "rows", "tables", "words"),
    [
        (1000, 64, (), True),
        (256, 3, (), True),
        (255, 64, (), False),  # fewer than bytes
        (1000, 2, (), False),  # one row a sequence
        (1000, 2, [(1000, 64)], True),
        (1000, 2, [(1000, 32)], False),  # a table of another width
        (1000, 2, [(1015, 64)], True),  # some are read and never written
        (1000, 2, [(1016, 64)], False),
        (1125, 2, [(1000, 64)], True),  # padded by an eighth
        (1126, 2, [(1000, 64)], False),
        (65, 64, [(65, 64), (1024, 64)], True),  # letters, beside positions
        (2, 64, [(2, 64)], False),  # kinds of tokens
        (128, 2, [(2, 64)], False),
        (768, 2, [(514, 64)], False),  # positions, and a projection of one token
        (6400, 64, [(2048, 64)], True),  # positions alone: the words' table is looked up some other way
        (512, 64, [(50000, 64)], False),  # words are read, and none is written
    ],
)
def test_a_head_chooses_words_where_a_table_has_as_many_or_each_token_chooses(
    size: int, rows: int, tables: Collection[tuple[int, int]], words: bool, said: Listener
) -> None:
    dims = found(changed("logits", gemm(rows, size, 64)), tables=tables, losses={size})
    assert values(dims, "vocab", "classes") == ((size, None) if words else (None, size))
    said(dims.vocab.source, dims.classes.source)


LOSS = Call("loss", None, layer=-1)


@pytest.mark.parametrize(
    ("size", "losses", "rest", "classes"),
    [
        (128, {128, 7}, (), True),
        (128, {7}, (), False),  # another head's
        (128, (), (LOSS,), False),  # numbers are measured
        (128, None, (), False),  # what is trained takes a loss
        (128, None, (LOSS,), True),  # in a kernel of its own, by its name
        (64, {64}, (), False),  # as many rows: each is compared with each
        (1, {1}, (), False),  # one number
    ],
)
def test_a_head_has_classes_where_a_loss_chooses_from_them(
    size: int, losses: Collection[int] | None, rest: Sequence[Call], classes: bool, said: Listener
) -> None:
    dims = found([*changed("logits", gemm(64, size, 64)), *rest], losses=losses)
    assert values(dims, "vocab", "classes") == (None, size if classes else None)
    said(dims.classes.source)


@pytest.mark.parametrize(
    ("weights", "classes"),
    [
        ((), True),
        ({(128, 64)}, True),
        ({(64, 128)}, True),
        ({(32, 64)}, True),
        ({(256, 64), (128, 32)}, False),
    ],
)
def test_what_a_batch_is_compared_with_is_no_class(
    weights: Collection[tuple[int, int]], classes: bool
) -> None:
    """Sentences against those of the batch: no weight, whole or sharded, has as many rows."""
    dims = found(changed("logits", gemm(64, 128, 64)), losses={128}, weights=weights)
    assert values(dims, "classes") == (128 if classes else None,)


def test_what_no_loss_chooses_from_is_no_vocabulary() -> None:
    """wav2vec 2.0: a projection of every step, and a loss of another product."""
    head = changed("logits", gemm(64, 256, 64))
    assert values(found(head, losses={101}), "vocab") == (None,)
    assert values(found(head, losses={256}), "vocab") == (256,)


def test_labels_of_which_several_are_right_are_no_words() -> None:
    """BEATs: 527 sounds, of every moment."""
    head = changed("logits", gemm(64, 527, 64))
    assert values(found(head, losses={527}, labels={527}), "vocab", "classes") == (None, 527)


def test_a_head_of_another_width_has_neither_words_nor_classes(said: Listener) -> None:
    """A classifier of what two towers give, behind layers of its own."""
    dims = found(changed("logits", gemm(64, 2, 16)), losses={2})
    assert values(dims, "vocab", "classes") == (None, None)
    said(dims.classes.source)


@pytest.mark.parametrize(("rows", "words"), [(64, True), (4, True), (3, False)])
def test_without_a_micro_batch_words_are_chosen_by_many_of_the_tokens(rows: int, words: bool) -> None:
    head = changed("logits", gemm(rows, 1000, 64), changed("attention.core", attends(None, None)))
    assert values(found(head, losses={1000}), "vocab", "classes") == ((1000, None) if words else (None, 1000))


def _written_out(rows: int, keys: int, width: int, batch: int = 8) -> list[Call]:
    scores = Call("attention.scores", gemm(rows, keys, width, batch=batch))
    values_ = Call("attention.values", gemm(rows, width, keys, batch=batch))
    return [*(one for one in MODEL if one.component != "attention.core"), scores, values_]


def test_scores_of_channels_have_no_head_dimension() -> None:
    """Restormer: channels with one another, over 128 x 128 places."""
    assert values(found(_written_out(48, 48, 128 * 128)), "head_dim", "heads") == (None, None)


def test_heads_are_counted_by_the_width_of_their_values() -> None:
    """hlb-gpt, main.py: one head, whose queries and keys are narrower than its values."""
    rows = [one for one in MODEL if one.component != "attention.core"]
    rows += [
        Call("attention.scores", gemm(32, 32, 16, batch=2)),
        Call("attention.values", gemm(32, 64, 32, batch=2)),
    ]
    assert values(found(rows), "heads", "micro_batch") == (1, 2)


def test_rows_of_all_heads_are_no_sequence() -> None:
    """DeepSeek-V3 inference/model.py: einsum("bshc,btc->bsht"), 16 heads of 32 tokens."""
    assert values(found(_written_out(32 * 16, 32, 48, batch=2)), "sequence", "heads") == (None, None)
    assert values(found(_written_out(32, 32, 16)), "sequence", "heads") == (32, 4)


def test_a_head_that_is_never_trained_here_may_take_its_loss_elsewhere() -> None:
    rows = [one for one in changed("logits", gemm(64, 128, 64)) if one is not BACKWARD]
    assert values(found(rows), "classes") == (128,)


def test_the_hidden_size_is_what_the_output_projection_comes_back_to() -> None:
    """Most time goes to queries made of what is narrower, and the projection is two (DeepSeek-V4)."""
    rows = [one for one in MODEL if not one.component.startswith("attention")]
    for at in (0, 1):
        rows += [
            Call("attention.qkv", gemm(64, 16, 64), layer=at),
            Call("attention.qkv", gemm(64, 512, 16), ns=900, layer=at),
            Call("attention.core", attends(heads=32), layer=at),
            Call("attention.output", gemm(64, 16, 128, batch=4), layer=at),
            Call("attention.output", gemm(64, 64, 64), layer=at),
        ]
    assert values(found(rows), "hidden") == (64,)


def test_a_hidden_size_that_layers_contradict_is_not_the_heads() -> None:
    rows = [*layer(0), *layer(1, 128), Call("logits", gemm(2, 10, 512), layer=-1), BACKWARD]
    assert values(found(rows), "hidden") == (None,)


def test_layers_without_attention_count_among_those_of_their_width() -> None:
    """A tower of 2, then a model that attends in one layer of two and mixes by convolutions in the other."""
    deep = [replace(one, ns=10**4) for at in (2, 3) for one in layer(at, 128)[3 if at == 2 else 0 :]]
    assert values(found([*layer(0), *layer(1), *deep, LOGITS, BACKWARD], named=True), "layers") == (2,)


def test_a_head_of_another_width_is_none() -> None:
    assert values(found(changed("logits", gemm(64, 1000, 32))), "vocab", "classes") == (None, None)


def test_layers_are_as_many_as_are_numbered_where_attention_agrees(said: Listener) -> None:
    def layers(*numbers: int, steps: int = 1) -> Known:
        rows = [replace(one, layer=number, step=at % steps)
                for at, number in enumerate(numbers) for one in layer()]  # fmt: skip
        return found(rows).layers

    assert layers(0, 1, 2, 3).value == 4
    assert layers(0, 1, 2, -1).value == 3  # three of four are told
    assert layers(0, 1, -1, -1).value is None
    assert layers(0, 0).value == 1  # to itself, and to another sequence
    assert layers(0, 0, 0).value is None
    assert layers(0, 0, 0, 0, steps=2).value == 1
    said(layers(0, 1, -1, -1).source, layers(-1, -1).source, layers(0, 0, 0).source)


def test_of_two_models_the_layers_are_those_of_the_wider_use(said: Listener) -> None:
    both = [*layer(0), *layer(1), *layer(2, width=128), LOGITS]
    dims = found([replace(one, ns=900) if one.layer < 2 else one for one in both])
    assert values(dims, "hidden", "layers", "ffn", "head_dim") == (64, 2, 256, 16)
    said(dims.layers.source)
    longer = [
        replace(one, ns=9000) if one.component == "mlp.down" and one.layer == 2 else one for one in both
    ]
    assert values(found([replace(one, ns=900) if one.component == "mlp.up" and one.layer < 2 else one
                         for one in longer]), "hidden", "ffn") == (64, 256)  # fmt: skip
    deep = [replace(one, ns=9000) if one.component == "mlp.up" and one.layer == 2 else one for one in both]
    slow = [
        replace(one, ns=900) if one.component == "attention.qkv" and one.layer < 2 else one for one in deep
    ]
    assert found(slow).hidden.value is None
    said(found(slow).hidden.source)
    none = found([*layer(0), *layer(1, width=128)])
    assert none.layers.value is None
    said(none.layers.source)


@pytest.mark.parametrize(
    ("takes", "known"), [(96, True), (80, True), (82, False), (100, False), (104, False)]
)
def test_heads_that_neither_hidden_size_nor_projection_agrees_with_are_not_known(
    takes: int, known: bool, said: Listener
) -> None:
    """4 heads of 24 make 96; a projection that takes less holds narrower values, 80 = 4 x 20."""
    rows = changed("attention.output", gemm(64, 64, takes), changed("attention.core", attends(dim=24)))
    dims = found(rows)
    assert values(dims, "heads", "head_dim") == ((4, 24) if known else (None, None))
    if not known:
        said(dims.heads.source)
    values_of = changed("attention.core", attends(dim=24, value_dim=25), rows)
    assert found(values_of).heads.value == (4 if known or takes == 100 else None)  # 4 x 25


@pytest.mark.parametrize(("many", "known"), [(20, True), (19, False)])
def test_attention_on_batches_of_several_sizes_is_of_no_one_sequence(
    many: int, known: bool, said: Listener
) -> None:
    """One call in 21 is a last batch that is smaller; one in 20 is another size."""
    rows = [one for at in range(many) for one in layer(at)]
    dims = found([*rows, *layer(many, core=attends(4, 16))])
    assert values(dims, "sequence", "micro_batch") == ((32, 2) if known else (None, None))
    if not known:
        said(dims.sequence.source)
    cross = [*rows, *layer(many, core=attends(4, 16, key_len=32))]
    assert values(found(cross), "sequence", "micro_batch") == (32, 2)  # to another sequence
    shorter = [*rows, *layer(many, core=attends(2, 16))]
    assert values(found(shorter), "sequence", "micro_batch") == (32, 2)  # windows, in the same batch


def test_packed_sequences_have_no_length(said: Listener) -> None:
    packed = attends(None, None, varlen=True, query_tokens=640)
    dims = found([*layer(0, core=packed), *layer(1, core=packed), *layer(2)])
    assert dims.sequence == dims.micro_batch and dims.sequence.value is None
    assert values(found([*layer(0, core=packed), *layer(1)]), "sequence", "micro_batch") == (32, 2)
    said(dims.sequence.source)


def test_calls_with_shapes_are_no_measure_where_most_attention_has_none(said: Listener) -> None:
    def half(without: int, ns: int = 100) -> ModelDims:
        rows = [one for at in range(without) for one in layer(at)]
        hidden = [
            replace(one, shape=None, ns=ns) if one.component == "attention.core" else one for one in rows
        ]
        return found([*hidden, *layer(9)])

    assert half(2).hidden.value is None
    assert half(2).vocab.source != half(2).hidden.source
    assert half(1).hidden.value == 64
    # by time
    said(half(2).hidden.source, half(1, ns=300).hidden.source)


def test_heads_and_batch_of_unfused_attention_are_the_batch_of_its_products(said: Listener) -> None:
    def unfused(batch: int, *, output: int | None = 64, hidden: int = 64) -> tuple[int | None, ...]:
        rows = [Call("mlp.up", gemm(64, 256, hidden)), Call("attention.scores", gemm(32, 32, 16, batch))]
        rows += [Call("attention.output", gemm(64, hidden, output))] if output else []
        return values(found(rows), "heads", "micro_batch", "head_dim", "sequence")

    assert unfused(8) == (4, 2, 16, 32)
    assert unfused(8, output=None) == (4, 2, 16, 32)  # by the hidden size
    assert unfused(8, output=32, hidden=64) == (2, 4, 16, 32)  # of this rank
    assert unfused(6) == (None, None, 16, 32)  # 6 is no multiple of 4 heads
    assert unfused(8, output=40, hidden=128) == (8, 1, 16, 32)  # 40 is no multiple of 16
    rows = [Call("mlp.up", gemm(64, 256, 64)), Call("attention.output", gemm(64, 64, 64))]
    rows += [Call("attention.scores", gemm(size, size, 16, batch)) for size, batch in ((32, 8), (16, 16))]
    said(found(rows).micro_batch.source)


def test_heads_of_a_part_of_the_hidden_size_are_one_ranks_where_ranks_exchange(said: Listener) -> None:
    rows = changed("attention.core", attends(heads=2))
    rows = changed("attention.output", gemm(64, 64, 32), rows)
    assert found(rows, sharded=True).tensor_parallel.value == 2
    said(found(rows, sharded=True).tensor_parallel.source)
    alone = found(rows).tensor_parallel
    assert alone.value is None
    said(alone.source)
    odd = changed("attention.output", gemm(64, 64, 48), changed("attention.core", attends(heads=3)))
    assert found(odd, sharded=True).tensor_parallel.value is None
    said(found([LOGITS]).tensor_parallel.source)


def test_where_no_call_has_a_shape_that_is_the_reason() -> None:
    dims = found([replace(one, shape=None) for one in MODEL])
    assert {dims.hidden.source, dims.heads.source, dims.ffn.source, dims.vocab.source} == {NO_SHAPES}
    assert dims.layers.value == 2


def test_parts_that_a_graph_replays_lack_shapes_and_no_attribution() -> None:
    """The head stands outside the graph, and alone has a shape."""
    parts = [replace(one, shape=None) for one in MODEL if one.component != "logits"]
    dims = found([*parts, replace(parts[0], component="moe.router"), LOGITS])
    assert {dims.heads.source, dims.ffn.source, dims.experts.source, dims.top_k.source} == {NO_SHAPES}
    assert found([LOGITS]).ffn.source == NOT_ATTRIBUTED


def test_a_mixture_of_experts_shows_itself_where_no_model_is_recognised(said: Listener) -> None:
    rows = [
        Call("moe.router", gemm(64, 8, 96)),
        Call("moe.experts", gemm(64, 192, 96, groups=4)),
        Call("moe.experts", gemm(64, 96, 192, groups=4)),
    ]
    dims = found(rows, transformer=False, choices={(8, 2)})
    assert dims.found == "parts"
    assert values(dims, "hidden", "ffn", "experts", "top_k", "expert_parallel") == (96, 192, 8, 2, 2)
    bare = found(rows[1:], transformer=False)
    assert values(bare, "hidden", "ffn", "experts") == (None, None, None)
    assert found([Call("other", gemm(1, 1, 1))], transformer=False).found == "none"
    assert values(found([*MODEL[:-2], *rows], choices={(8, 2)}), "experts", "top_k") == (8, 2)
    said(bare.hidden.source)
    square = [rows[0], Call("moe.experts", gemm(64, 96, 96, groups=4))]  # which of the two it is nobody knows
    assert found(square, transformer=False).ffn.value is None


@pytest.mark.parametrize(
    ("value", "rows", "name"),
    [
        (64, False, "h"), (64, True, "b*s"), (32, False, "s"), (32, True, "s"), (256, False, "f"),
        (1000, False, "v"), (192, False, "3*h"), (512, False, "2*f"), (16, False, "d"), (17, False, None),
        (None, True, None), (96, False, "(a+2*kv)*d"),
    ],
)  # fmt: skip
def test_a_size_is_expressed_in_the_models_dimensions(
    value: int | None, rows: bool, name: str | None
) -> None:
    dims = found(MODEL)
    if name and "kv" in name:
        dims = replace(dims, kv_heads=Known(1, ""))
    assert express(value, dims, rows=rows) == name


def test_sizes_of_keys_and_values_are_expressed_where_they_are_fewer_than_heads() -> None:
    base = replace(found(MODEL), hidden=Known(100, ""), heads=Known(5, ""), kv_heads=Known(3, ""))
    assert [express(size, base, rows=False) for size in (80, 176, 48, 96)] == [
        "a*d", "(a+2*kv)*d", "kv*d", "2*kv*d",
    ]  # fmt: skip
    assert express(48, replace(base, kv_heads=Known(None, "")), rows=False) is None


# the hidden size by messages


def exchanged(
    *messages: tuple[str, str, int],
    dims: ModelDims | None = None,
    serves: str = "tensor parallel",
    how: str = "all_reduce",
) -> ModelDims:
    """(phase, component before it, elements) of every message, in order."""
    component, phase, kernel, sizes = [], [], [], []
    for at_phase, before, size in messages:
        component += [
            COMPONENTS.index(before),
            COMPONENTS.index("unattributed"),
            COMPONENTS.index("communication"),
        ]
        phase += [PHASES.index(at_phase)] * 3
        kernel.append(len(component) - 1)
        sizes.append(size)
    communication: Any = SimpleNamespace(
        purposes=[SimpleNamespace(purpose=serves)],
        calls=[SimpleNamespace(elements=size, collective=how) for size in sizes],
        kernel=np.array(kernel, np.int64), purpose=np.zeros(len(kernel), np.int64),
        call=np.arange(len(kernel)),
    )  # fmt: skip
    trace: Any = SimpleNamespace(kernels=SimpleNamespace(ts_ns=np.arange(len(component)) * 10))
    attribution: Any = SimpleNamespace(component=np.array(component), phase=np.array(phase))
    unknown = dims or replace(found(MODEL), hidden=Known(None, NO_SHAPES))
    return with_messages(unknown, trace, attribution, communication)


def test_the_hidden_size_is_an_activation_over_the_tokens_of_the_loss(said: Listener) -> None:
    """Two sums in layers of 4096 x 64 elements, two in the loss of 4096."""
    layers = [("forward", "mlp.down", 262144), ("forward", "attention.output", 262144)]
    loss = [("forward", "logits", 4096), ("forward", "loss", 4096)]
    other = ("backward", "mlp.up", 999)
    dims = exchanged(*layers, *loss, other)
    assert dims.hidden.value == 64
    assert dims.micro_batch == dims.sequence
    assert dims.sequence.value is None
    said(dims.hidden.source, dims.sequence.source)
    for messages in (
        [*layers, loss[0]],  # one sum is no loss over a split vocabulary
        [*layers, *loss, ("forward", "mlp.down", 4)],
        [*layers, *loss, ("forward", "logits", 8)],
        [("forward", "mlp.down", 4096), *loss],
        [("forward", "mlp.down", 4097), *loss],
        layers,
        loss,
        [*layers, ("forward", "logits", 0), ("forward", "loss", 0)],
    ):
        assert exchanged(*messages).hidden.value is None, messages
    assert exchanged(*layers, *loss, serves="unknown").hidden.value is None
    assert exchanged(*layers, *loss, how="all_gather").hidden.value is None
    known = found(MODEL)
    assert exchanged(*layers, *loss, dims=known) == known


def test_counted_layers_of_one_model_are_not_those_that_another_names() -> None:
    """A text encoder that numbers its layers, and a wider model whose second pass begins at layer 1."""
    rows = [*MODEL, *layer(7, 32), *layer(8, 32)]
    twice = found(rows, named={7, 8}, further={1: True})
    assert twice.hidden.value == 64 and twice.layers.value == 1
    assert found(rows, named={0, 1, 7, 8}, further={1: True}).layers.value == 2
    uneven = [*MODEL, *layer(2), *layer(7, 32)]
    assert found(uneven, named={7}, further={1: True}).layers.value is None


MIXES, ATTENDS = Call("ssm.projection", gemm(64, 128, 64), layer=-1), layer()[:3]


@pytest.mark.parametrize(
    ("blocks", "count"),
    [
        ([[MIXES], [MIXES], ATTENDS, [MIXES]], 4),  # in turn
        ([[MIXES, *ATTENDS], [MIXES, *ATTENDS]], 2),  # side by side
        ([[MIXES], [MIXES, *ATTENDS], [MIXES]], None),  # behind one another, somewhere
        ([[MIXES, MIXES], [MIXES], ATTENDS], None),  # two to an MLP, somewhere
        ([[MIXES], ATTENDS], None),  # too few to tell
    ],
)
def test_layers_of_state_space_mixers_count_where_each_has_one_mlp(
    blocks: list[list[Call]], count: int | None, said: Listener
) -> None:
    rows = [
        replace(one, layer=-1 if one is MIXES else at)
        for at, block in enumerate(blocks)
        for one in (*block, *layer()[3:])
    ]
    assert found([*rows, LOGITS, BACKWARD]).layers.value == count
    assert found([*rows, MIXES, LOGITS, BACKWARD]).layers.value is None  # the last has none
    said(found([*rows, LOGITS, BACKWARD]).layers.source)


def test_heads_that_share_their_values_are_not_counted_by_their_width(said: Listener) -> None:
    """Latent attention, absorbed (DeepSeek-V2): the values of all heads are those of one, of the rank."""
    rows = [one for one in MODEL if one.component != "attention.core"]
    rows += [
        Call("attention.scores", gemm(32, 32, 16, batch=8)),
        Call("attention.scores", gemm(32, 32, 32, batch=8), ns=300),
        Call("attention.values", gemm(8 * 32, 32, 32, batch=1), ns=300),
    ]
    dims = found(rows)
    assert values(dims, "hidden", "heads", "head_dim", "micro_batch") == (64, None, None, None)
    said(dims.heads.source)


def test_the_sequence_is_that_of_most_of_the_mlps(said: Listener) -> None:
    """An encoder, and a decoder of one token whose attention takes longer (Chronos-Bolt)."""
    rows = [
        replace(one, ns=10**4) if one.component == "mlp.down" else one for one in MODEL if one is not BACKWARD
    ]
    sizes: tuple[Shape, ...] = (
        *(gemm(2, 192, 64), attends(2, 1), gemm(2, 64, 64)),
        *(gemm(2, 256, 64), gemm(2, 64, 256)),
    )
    short = [
        replace(one, ns=10**3 if one.component == "attention.core" else 1, shape=shape)
        for one, shape in zip(layer(2, core=attends(2, 1)), sizes, strict=True)
    ]
    dims = found([*rows, *short, BACKWARD])
    assert values(dims, "sequence", "micro_batch") == (32, 2)
    said(dims.sequence.source)
