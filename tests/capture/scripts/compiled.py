"""Trains a small stack compiled as asked for, with changing batch sizes; prints what Dynamo did."""

import contextlib
import json
import sys

import torch
from torch import nn
from torch._dynamo.utils import counters

import tracelens

how, capture = sys.argv[1], "--capture" in sys.argv
# what Dynamo does is the same before every backend; one runs through Inductor
BACKEND = "inductor" if how == "module" else "aot_eager"


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.a, self.b = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x):
        x = x + self.b(torch.relu(self.a(x)))
        if how == "break":
            torch._dynamo.graph_break()
        return x


class M(nn.Module):
    def __init__(self, size=16):
        super().__init__()
        self.h = nn.ModuleList(Block(size) for _ in range(3))
        self.o = nn.Linear(size, 4)

    def forward(self, x):
        for block in self.h:
            x = block(x)
        return self.o(x)


torch.manual_seed(0)
model = M()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
call, update = model, optimizer.step
if how in ("module", "break"):
    call = torch.compile(model, backend=BACKEND)
elif how == "inplace":
    model.compile(backend=BACKEND)
elif how == "method":
    model.forward = torch.compile(model.forward, backend=BACKEND)
elif how.startswith("function"):

    @torch.compile(backend=BACKEND)
    def f(x):
        if how == "function-break":
            x = x * 2
            torch._dynamo.graph_break()
        return model(x)

    call = f
elif how == "blocks":
    for block in model.h:
        block.compile(backend=BACKEND)
elif how == "wrapped-blocks":
    for at in range(3):
        model.h[at] = torch.compile(model.h[at], backend=BACKEND)
elif how == "optimizer":
    update = torch.compile(optimizer.step, backend=BACKEND)

losses = []
window = tracelens.capture(wait=3, warmup=1, active=3) if capture else contextlib.nullcontext()
with window as steps:
    # 4 to 5 recompiles within the window, 7 after it
    for size in [4, 4, 4, 4, 4, 5, 5, 5, 5, 7, 7, 7, 7, 7]:
        loss = call(torch.randn(size, 16)).square().mean()
        loss.backward()
        update()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
        if steps:
            steps.step()
print(
    json.dumps(
        {
            "graphs": counters["stats"]["unique_graphs"],
            "breaks": sum(counters["graph_break"].values()),
            "frames": counters["frames"]["total"] if how != "optimizer" else None,
            "losses": losses,
        }
    )
)
