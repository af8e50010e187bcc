"""Training whose collective ends in a thread of gloo a little after it says so: unaware of tracelens."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
model = nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(14):
    model(torch.randn(8, 16)).square().mean().backward()
    time.sleep(0.05 * dist.get_rank())  # so that rank 0 has to wait, and the thread calls what follows
    done = dist.all_reduce(model.weight.grad, async_op=True).get_future()
    done.add_done_callback(lambda _: time.sleep(0.01))
    done.wait()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
os._exit(0)  # as in ddp.py
