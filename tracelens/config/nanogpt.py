"""Config files of nanoGPT: Python files of plain assignments. They are parsed and never executed."""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tracelens.config import words
from tracelens.config.configuration import Configuration, Draft, Given, Layout, Run, finish, whole
from tracelens.errors import InputError

_SIZES = {
    "hidden": "n_embd",
    "heads": "n_head",
    "layers": "n_layer",
    "sequence": "block_size",
    "micro_batch": "batch_size",
    "vocab": "vocab_size",
}
#: What train.py of karpathy/nanoGPT sets where a config does not.
_DEFAULTS = {"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024, "batch_size": 12}
_PADDED_VOCAB = 50304
#: Micro-batches of a step, which train.py divides among the ranks of DDP.
_MICRO_BATCHES = 5 * 8
#: ``init_from``: sizes of the checkpoints, model.py of nanoGPT.
_CHECKPOINTS = {
    "gpt2": (12, 12, 768),
    "gpt2-medium": (24, 16, 1024),
    "gpt2-large": (36, 20, 1280),
    "gpt2-xl": (48, 25, 1600),
}
_SUMS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_DEEPEST = 8


def assignments(text: str, *, name: str) -> dict[str, Any]:
    """Constants assigned at the top of the file and in classes named *Config, without running anything."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(f"{name} is not a Python file of plain assignments") from None
    found: dict[str, Any] = {}
    _collect(tree.body, found)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
            _collect(node.body, found)
    return found


def is_nanogpt(table: Mapping[str, Any]) -> bool:
    """True where the file sets one of nanoGPT's own names."""
    return any(key in table for key in ("n_layer", "n_head", "n_embd", "init_from"))


def read_nanogpt(table: Mapping[str, Any], given: Given, *, name: str) -> Configuration:
    """Sizes of a nanoGPT config; what it leaves out is what train.py sets."""
    draft = Draft(name)
    start = table.get("init_from")
    loaded = isinstance(start, str) and start in _CHECKPOINTS
    if loaded:
        layers, heads, hidden = _CHECKPOINTS[str(start)]
        for size, value in (("layers", layers), ("heads", heads), ("hidden", hidden), ("vocab", 50257)):
            draft.put(size, value, f"{name}: init_from = {start}")
            draft.fixed[size] = words.of_checkpoint(str(start))
        draft.fixed["ffn"] = words.of_checkpoint(str(start))
    for size, key in _SIZES.items():
        if size in draft.values:
            continue
        if not draft.take(size, table, (key,)) and key in _DEFAULTS:
            draft.put(size, _DEFAULTS[key], words.nanogpt_default(key), key=key)
    if "vocab" not in draft.values:
        draft.put("vocab", _PADDED_VOCAB, words.nanogpt_default(), key="vocab_size")
    hidden = given.sizes.get("hidden") or draft.values["hidden"]
    draft.put("ffn", 4 * hidden, "4 * n_embd (model.py)")
    for size in ("ffn", "hidden"):
        draft.fixed.setdefault(size, words.MLP_OF_NANOGPT)
    found = finish(
        draft,
        given,
        layout=Layout(fused_qkv=True),
        gated=False,
        tied=True,
        format="nanogpt",
        family=f"nanoGPT ({name})",
    )
    key = "gradient_accumulation_steps"
    batches = whole(table.get(key, _MICRO_BATCHES), key, name)
    return replace(found, run=Run(batches * (found.model.micro_batch or 1), strategy="ddp"))


def _collect(body: list[ast.stmt], found: dict[str, Any]) -> None:
    for node in body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            continue
        if isinstance(target, ast.Name):
            constant = _constant(value, 0)
            if constant is not None:
                found[target.id] = constant


def _constant(node: ast.expr, depth: int) -> Any:
    """A literal, or a sum or product of small whole numbers; None for everything else."""
    if depth > _DEEPEST:
        return None
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, (int, float, str, bool)) else None
    if isinstance(node, ast.BinOp) and type(node.op) in _SUMS:
        left, right = _constant(node.left, depth + 1), _constant(node.right, depth + 1)
        small = [type(one) is int and abs(one) < 2**40 for one in (left, right)]
        if all(small) and not (isinstance(node.op, ast.FloorDiv) and right == 0):
            return _SUMS[type(node.op)](left, right)
    return None
