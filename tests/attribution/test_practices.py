"""What people train and adapt (benchmarks/libraries/practices.py, ``--setup adapters``), row by row."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attribution import test_grammars
from tests.attribution.rows import Row, mm, said_of
from tests.attribution.test_parts import (
    ADD,
    ATTENTION,
    BATCH,
    CORE,
    LENGTH,
    MLP,
    NORM,
    TOKENS,
    WIDTH,
    _batched,
    _found,
    _row,
)
from tests.attribution.test_recipes import HEAD, LOGITS, LOOKUP
from tracelens.attribution.structure.adapters import label_adapters
from tracelens.attribution.structure.attention_grammars import LINEAR, SIGMOID
from tracelens.attribution.structure.grammar import Grammar, matches
from tracelens.attribution.structure.infer import numbered
from tracelens.attribution.structure.local import without_mixers
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import Dims, Kind
from tracelens.gemm import GemmShape

RANK, INNER = 16, 4 * WIDTH


def _adapted(right: str, rows: int, n: int, k: int) -> list[Row]:
    """A linear layer with a low-rank adapter: huggingface/peft src/peft/tuners/lora/layer.py."""
    whole = [rows, n]
    beside = [mm(right, rows, RANK, k), mm(right, rows, n, RANK)]
    return [mm(right, rows, n, k), *beside, _row(right, "mul", whole, []), _row(right, "add", whole, whole)]


def test_adapted_mlps_behind_windows_are_of_other_rows_than_attention(tmp_path: Path) -> None:
    """transformers models/slanext/modeling_slanext.py: windows are padded for attention, and cut back."""
    windows = 9 * BATCH * 14 * 14
    put = [_row("attention.other", name, [BATCH, 42, 42, WIDTH]) for name in ("fill_", "copy_")]
    core = Row("attention.core", CORE.op, CORE.kernel, ([9 * BATCH, 14 * 14, 4, 64],) * 3)
    attention = [*_adapted("attention.qkv", windows, 3 * WIDTH, WIDTH), core]
    attention += _adapted("attention.output", windows, WIDTH, WIDTH)
    bent = _row("mlp.activation", "gelu", [BATCH, LENGTH, INNER])
    mlp = [*_adapted("mlp.up", TOKENS, INNER, WIDTH), bent, *_adapted("mlp.down", TOKENS, WIDTH, INNER)]
    _found(tmp_path, 3 * [NORM, *put, *attention, ADD, NORM, *mlp, ADD])


def test_a_gelu_written_out_behind_an_adapter(tmp_path: Path) -> None:
    """transformers activations.py, GELUActivation with use_gelu_python: x / 2 * (1 + erf(x / sqrt(2)))."""
    wide = [BATCH, LENGTH, INNER]
    bent = [_row("mlp.activation", name, wide, []) for name in ("mul", "div", "erf", "add")]
    bent.append(_row("mlp.activation", "mul", wide, wide))
    mlp = [*_adapted("mlp.up", TOKENS, INNER, WIDTH), *bent, *_adapted("mlp.down", TOKENS, WIDTH, INNER)]
    _found(tmp_path, 3 * [*ATTENTION, ADD, NORM, *mlp, ADD])


def test_a_batched_product_alone_ahead_of_the_first_layer(tmp_path: Path) -> None:
    """Nothing is known to make the stream: no product of a picture or table, and none to compare it with."""
    _found(tmp_path, [_batched("", 4, TOKENS, WIDTH, WIDTH), *3 * [*ATTENTION, ADD, *MLP, ADD]])


def _per_head(samples: Dims, of_heads: Dims) -> Kind:
    return Kind(
        "bmm", "einsum", gemm=GemmShape(128, 128, 128, 8, None, None, None), tensors=(samples, of_heads)
    )


@pytest.mark.parametrize(("grammar", "between"), [(LINEAR, "mul"), (SIGMOID, "sigmoid")])
def test_linear_layers_of_heads_are_no_scores_and_values(grammar: Grammar, between: str) -> None:
    """google-deepmind/recurrentgemma recurrentgemma/torch/layers.py, BlockDiagonalLinear; as wide as a
    sequence is long here."""
    weights, keys = (8, 128, 128), (1, 8, 128, 128)
    scores = Kind("elementwise", between, tensors=((1, 8, 128, 128),))
    for operand, found in ((weights, 0), (keys, 1)):
        product = _per_head((1, 8, 128, 128), operand)
        kinds = [product, scores, product]
        assert len([*matches(Run("forward", [0, 1, 2], kinds), grammar)]) == found


def test_attention_to_the_layers_results_is_no_layer() -> None:
    """transformers models/inkling2: behind the last layer attention without projections sums all up."""
    parts = {0: "attention.qkv", 1: "attention.scores", 2: "mlp.up", 3: "norm"}
    together = {4: "attention.scores", 5: "attention.softmax", 6: "attention.values", 7: "norm"}
    labels = {at: Label(part, 0) for at, part in parts.items()}
    labels |= {at: Label(part, 1) for at, part in together.items()}
    assert numbered([Run("forward", [], [], labels=labels)]) == {0}


def test_a_mixer_whose_projections_have_adapters_is_one() -> None:
    """peft, LoraConfig(target_modules="all-linear") on what takes the place of attention."""
    kinds: list[Kind] = [test_grammars.NORM]
    for kind in test_grammars.MAMBA:
        kinds.append(kind)
        if kind.gemm is None:
            continue
        whole = (kind.gemm.m, kind.gemm.n)
        kinds += [test_grammars._gemm(4, kind.gemm.k), test_grammars._gemm(kind.gemm.n, 4)]
        kinds += [test_grammars._unit("mul", whole), test_grammars._unit("add", whole, whole, what="add")]
    run = Run("forward", [*range(len(kinds))], [*kinds, test_grammars.SUM])
    rest = without_mixers(run)
    label_adapters(rest.whole)
    parts = [run.labels[at].component if at in run.labels else None for at in range(len(kinds))]
    adapted = [
        part
        for kind, part in zip(test_grammars.MAMBA, test_grammars.OF_MAMBA, strict=True)
        for _ in range(5 if kind.gemm else 1)
    ]
    assert parts == [None, *adapted]


def test_a_head_of_several_layers_behind_another_is_no_loss(tmp_path: Path) -> None:
    """jayLEE0301/vq_bet_official: codes of actions by one MLP, and how far off they are by another."""
    wide = 1024
    bent, deep = _row("", "relu", [TOKENS, wide]), mm("", TOKENS, wide, wide)
    offsets = [mm("", TOKENS, wide, WIDTH), bent, deep, bent, deep]
    loss = _row("loss", "cross_entropy_loss", LOGITS)
    rows = [LOOKUP, *2 * [*ATTENTION, ADD, *MLP, ADD], NORM, HEAD, *offsets, loss]
    said = said_of(tmp_path, rows)
    assert [at for at, part in enumerate(said) if part == "loss"] == [len(rows) - 1]
