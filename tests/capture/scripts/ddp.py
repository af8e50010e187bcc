"""Data parallel training of a small stack on the CPU: knows nothing of tracelens."""

import os

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
stack = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
model = nn.parallel.DistributedDataParallel(stack)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(14):
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
# without any profiler, one end in six of this script aborts in a thread of torch 2.13's own
os._exit(0)
