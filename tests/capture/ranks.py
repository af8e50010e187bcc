"""The truth about trainings on several ranks: one import of torch, then a fork for each rank of each.

``python ranks.py OUT WORLD SCRIPT [ARGUMENTS ...]``, the arguments of each training in one word. Per training
and rank ``OUT-<training>-<rank>.json`` holds what ``truth.py`` writes; standard output is the scripts'.
"""

from __future__ import annotations

import os
import socket
import sys

# once, for all of them
import torch._dynamo
import torch.distributed.fsdp  # noqa: F401

from tests.capture import truth


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def fork(rank: int, out: str, script: str, words: list[str]) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
        sys.argv = ["truth.py", out, script, *words]
        truth.main()
        code = 0
    finally:
        sys.stdout.flush()
        os._exit(code)


def main() -> int:
    out, world, script, *trainings = sys.argv[1:]
    for at, words in enumerate(trainings):
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": world}
        children = [
            fork(rank, f"{out}-{at}-{rank}.json", script, words.split()) for rank in range(int(world))
        ]
        ends = [os.waitpid(child, 0)[1] for child in children]  # all of them, before the next training
        if any(ends):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
