"""Our FLOPs of a recorded training step against torch's own count of the same step (CPU, torch 2.13)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tracelens.gemm import AttentionShape, GemmShape, flops, shape_of, shows_sizes

torch: Any = pytest.importorskip("torch")
flop_counter: Any = pytest.importorskip("torch.utils.flop_counter")

BATCH, LENGTH, HIDDEN, HEADS, VOCABULARY = 2, 48, 64, 4, 97


def make_model(sdpa: bool) -> Any:
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
            self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN, bias=False)
            self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

        def forward(self, x: Any) -> Any:
            b, s, h = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, HEADS, h // HEADS).permute(2, 0, 3, 1, 4)
            if sdpa:
                y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                y = torch.softmax(q @ k.transpose(-2, -1) / 4.0, -1) @ v
            x = x + self.out(y.transpose(1, 2).reshape(b, s, h))
            return x + self.down(functional.gelu(self.up(self.norm2(x))))

    class Model(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
            self.blocks = nn.ModuleList([Block(), Block()])
            self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

        def forward(self, tokens: Any) -> Any:
            x = self.embedding(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    return Model()


def step(model: Any) -> None:
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()


def recorded_ops(run: Any, path: Path) -> list[tuple[str, GemmShape | AttentionShape | None]]:
    """The operators that say what they multiply and hold no other such one, with their shapes."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        run()
    profile.export_chrome_trace(str(path))
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("cat") == "cpu_op"]
    events.sort(key=lambda e: (e["tid"], e["ts"], -e["dur"]))
    parents: list[int] = []
    stack: list[int] = []
    for index, event in enumerate(events):
        while stack and (
            events[stack[-1]]["tid"] != event["tid"]
            or events[stack[-1]]["ts"] + events[stack[-1]]["dur"] <= event["ts"]
        ):
            stack.pop()
        parents.append(stack[-1] if stack else -1)
        stack.append(index)
    around: set[int] = set()
    for index, event in enumerate(events):
        above = parents[index] if shows_sizes(event["name"]) else -1
        while above >= 0:
            around.add(above)
            above = parents[above]
    found = []
    for index, event in enumerate(events):
        if shows_sizes(event["name"]) and index not in around:
            args = event["args"]
            shape = shape_of(
                event["name"],
                args.get("Input Dims", []),
                args.get("Input type"),
                args.get("Input Strides"),
                args.get("Concrete Inputs"),
            )
            found.append((event["name"], shape))
    return found


def torch_total(run: Any) -> int:
    counter = flop_counter.FlopCounterMode(display=False)
    with counter:
        run()
    return int(counter.get_total_flops())


def total(ops: Sequence[tuple[str, GemmShape | AttentionShape | None]]) -> int:
    counts = [flops(shape) for _, shape in ops if shape is not None]
    assert all(count is not None for count in counts)
    return sum(count for count in counts if count is not None)


def test_a_training_step_with_plain_attention(tmp_path: Path) -> None:
    model = make_model(sdpa=False)
    ops = recorded_ops(lambda: step(model), tmp_path / "trace.json")
    assert all(shape is not None for _, shape in ops), [name for name, shape in ops if shape is None]
    assert {"aten::addmm", "aten::mm", "aten::bmm"} == {name for name, _ in ops}
    assert total(ops) == pytest.approx(torch_total(lambda: step(model)), rel=1e-3)


def test_a_training_step_with_fused_attention(tmp_path: Path) -> None:
    """FlopCounterMode has no formula for the CPU's fused attention and counts it as nothing, so the rest is
    compared with its total and attention with the functions it uses for the GPU's fused attention."""
    model = make_model(sdpa=True)
    ops = recorded_ops(lambda: step(model), tmp_path / "trace.json")
    gemms = [(name, shape) for name, shape in ops if isinstance(shape, GemmShape)]
    fused = [(name, shape) for name, shape in ops if isinstance(shape, AttentionShape)]
    assert len(gemms) + len(fused) == len(ops)
    assert total(gemms) == pytest.approx(torch_total(lambda: step(model)), rel=1e-3)
    q = (BATCH, HEADS, LENGTH, HIDDEN // HEADS)
    assert [(shape.backward, shape.causal) for _, shape in fused] == [(False, True)] * 2 + [(True, True)] * 2
    assert total(fused) == 2 * (
        flop_counter.sdpa_flop_count(q, q, q) + flop_counter.sdpa_backward_flop_count(q, q, q, q)
    )


@pytest.mark.parametrize(
    ("heads", "kv_heads", "query_len", "key_len", "head_dim", "value_dim"),
    [(12, 12, 1024, 1024, 64, 64), (32, 8, 128, 4096, 128, 128), (16, 16, 77, 77, 192, 128)],
)
def test_attention_formulas(
    heads: int, kv_heads: int, query_len: int, key_len: int, head_dim: int, value_dim: int
) -> None:
    q, k = (3, heads, query_len, head_dim), (3, kv_heads, key_len, head_dim)
    v, grad = (3, kv_heads, key_len, value_dim), (3, heads, query_len, value_dim)
    for backward, expected in (
        (False, flop_counter.sdpa_flop_count(q, k, v)),
        (True, flop_counter.sdpa_backward_flop_count(grad, q, k, v)),
    ):
        shape = AttentionShape(
            3, heads, kv_heads, query_len, key_len, head_dim, value_dim, "bf16", None, backward
        )
        assert flops(shape) == expected


def test_out_variants_and_overloads_are_recorded_as_we_read_them(tmp_path: Path) -> None:
    a, b = torch.randn(24, 16).bfloat16(), torch.randn(40, 16).bfloat16().t()
    out = torch.empty(24, 40).bfloat16()

    def run() -> None:
        torch.mm(a, b, out=out)
        torch.baddbmm(torch.zeros(3, 24, 40), torch.randn(3, 24, 16), torch.randn(3, 16, 40))
        torch.addmm(torch.zeros(40).bfloat16(), a, b)
        torch.matmul(torch.randn(2, 3, 8, 16), torch.randn(16, 4))

    ops = [(n, s) for n, s in recorded_ops(run, tmp_path / "t.json") if isinstance(s, GemmShape)]
    shapes = [(n, s.m, s.n, s.k, s.batch, s.dtype) for n, s in ops]
    assert ("aten::mm", 24, 40, 16, 1, "bf16") in shapes
    assert ("aten::baddbmm", 24, 40, 16, 3, "fp32") in shapes
    assert ("aten::addmm", 24, 40, 16, 1, "bf16") in shapes
    assert ("aten::mm", 48, 4, 16, 1, "fp32") in shapes
    assert all(s.layout in {"TN", "NN", None} for _, s in ops)
