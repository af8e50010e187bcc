"""Trains a small stack of blocks spread over processes in the way asked for: knows nothing of tracelens."""

import argparse
import contextlib
import gc
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("how", choices=["fsdp2", "ddp", "ddp-unused"])
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--checkpoint", choices=["no", "reentrant", "wrapper"], default="no")
parser.add_argument("--mixed", action="store_true")
parser.add_argument("--local_rank", type=int, default=0)  # a launcher's
args = parser.parse_args()


class Block(nn.Module):
    def __init__(self, size, unused):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.other = nn.Linear(size, size) if unused else None
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        y = self.norm(x)
        if self.other is not None and self.calls % 3 == 0:
            y = self.other(y)
        return x + self.down(torch.relu(self.up(y)))


class Stack(nn.Module):
    """The second block is used twice."""

    def __init__(self, size=16, unused=False):
        super().__init__()
        self.blocks = nn.ModuleList(Block(size, unused) for _ in range(2))
        self.head = nn.Linear(size, 4)

    def forward(self, x):
        for block in [*self.blocks, self.blocks[1]]:
            x = checkpoint(block, x, use_reentrant=True) if args.checkpoint == "reentrant" else block(x)
        return self.head(x)


def spread(model):
    if args.checkpoint == "wrapper":
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

        apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))
    if args.how == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if args.mixed else MixedPrecisionPolicy()
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        return fully_shard(model, mesh=mesh, mp_policy=policy)
    unused = args.how == "ddp-unused"
    return nn.parallel.DistributedDataParallel(model, find_unused_parameters=unused)


def no_sync(model, last):
    if args.how == "fsdp2":
        model.set_requires_gradient_sync(last)
    elif not last:
        return model.no_sync()
    return contextlib.nullcontext()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = spread(Stack(unused=args.how == "ddp-unused"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + rank)
    losses = []
    for _ in range(args.steps):
        for at in range(args.accumulate):
            with no_sync(model, at == args.accumulate - 1):
                loss = model(torch.randn(4, 16, requires_grad=True)).float().square().mean()
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    sys.stdout.write(f"losses {rank} {losses}\n")  # in one piece: the ranks share it
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # groups in cycles end their threads while Python is there (pytorch/pytorch#179291)
