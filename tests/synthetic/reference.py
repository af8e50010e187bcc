"""The GPT-2 of tests/synthetic/model.py as a real torch module, recorded on the CPU for comparison."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.synthetic.spec import ModelSpec


def record(torch: Any, model: ModelSpec) -> list[dict[str, Any]]:
    """Trace events of one step of ``model``: forward, backward, clipping and optimizer."""
    nn, functional = torch.nn, torch.nn.functional
    hidden, heads = model.hidden, model.heads

    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.c_attn = nn.Linear(hidden, 3 * hidden)
            self.c_proj = nn.Linear(hidden, hidden)

        def forward(self, x: Any) -> Any:
            b, s, _ = x.shape
            q, k, v = (
                part.view(b, s, heads, hidden // heads).transpose(1, 2)
                for part in self.c_attn(x).split(hidden, dim=2)
            )
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.c_proj(y.transpose(1, 2).contiguous().view(b, s, hidden))

    class Mlp(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.c_fc = nn.Linear(hidden, model.ffn_size)
            self.gelu = nn.GELU()
            self.c_proj = nn.Linear(model.ffn_size, hidden)

        def forward(self, x: Any) -> Any:
            return self.c_proj(self.gelu(self.c_fc(x)))

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.attn = nn.LayerNorm(hidden), Attention()
            self.ln_2, self.mlp = nn.LayerNorm(hidden), Mlp()

        def forward(self, x: Any) -> Any:
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class Gpt(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.wpe = nn.Embedding(model.vocab, hidden), nn.Embedding(model.sequence, hidden)
            self.h = nn.ModuleList([Block() for _ in range(model.layers)])
            self.ln_f, self.lm_head = nn.LayerNorm(hidden), nn.Linear(hidden, model.vocab, bias=False)
            self.wte.weight = self.lm_head.weight

        def forward(self, index: Any, target: Any) -> Any:
            x = self.wte(index) + self.wpe(torch.arange(0, index.size(1)))
            for block in self.h:
                x = block(x)
            logits = self.lm_head(self.ln_f(x))
            return functional.cross_entropy(logits.view(-1, logits.size(-1)), target.view(-1))

    network = Gpt().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    index = torch.randint(0, model.vocab, (model.micro_batch, model.sequence))
    for recorded in (False, True):
        if not recorded:
            network(index, index).backward()  # warm up: the gradient buffers exist from here on
            continue
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, acc_events=True
        ) as profiler:
            optimizer.zero_grad()
            network(index, index).backward()
            optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events
