"""Jobs of several ranks that wait for each other, simulated event by event, with one planted cause.

A step of each rank: its CPU fetches a batch, then launches kernels layer by layer, forward and backward, with
collectives of its group behind the layers. A collective begins on each rank when its own work before it is
done, and ends on all when the last has begun and the message is through.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.trace.tools import event

#: us
_LAUNCH, _STEP_GAP, _GEMM, _SMALL, _SEND = 6.0, 40.0, 180.0, 25.0, 300.0
_LAYERS = 6
_NODE = 8  # GPUs
_INPUT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
_KERNEL = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT"
_H100 = {
    "id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0, "numSms": 132,
    "totalGlobalMem": 85028634624,
}  # fmt: skip
_MESSAGE = 32 << 20  # bf16 elements
BASE = 1_790_000_000_000_000_000
Events = list[dict[str, Any]]


@dataclass
class Rank:
    """What is particular about one rank. Factors of time; ``shift`` and ``drift`` are of its clock."""

    gpu: float = 1.0
    cpu: float = 1.0
    input_us: float = 20.0
    layers: int = _LAYERS
    tokens: float = 1.0  # of the experts, against an even share
    shift_us: float = 0.0
    drift: float = 0.0


@dataclass
class Job:
    """A job: ``groups`` partition the ranks; a group's messages take ``link`` times as long."""

    ranks: list[Rank]
    groups: list[list[int]]
    link: dict[int, float] = field(default_factory=dict)  # by group
    experts: bool = False
    pipeline: bool = False
    steps: int = 5
    seed: int = 0


@dataclass
class _State:
    device: int
    cpu: float = 0.0
    gpu: float = 0.0
    nccl: float = 0.0
    events: Events = field(default_factory=list)
    correlation: int = 100


class Simulation:
    """Runs a job; ``write`` puts one Kineto file per rank into a folder."""

    def __init__(self, job: Job):
        self.job = job
        self.random = random.Random(job.seed)
        self.states = [_State(at % _NODE, cpu=self.random.uniform(0, 50)) for at in range(len(job.ranks))]

    def write(self, folder: Path) -> list[Path]:
        for step in range(self.job.steps):
            self._step(step)
        return [self._file(folder, at) for at in range(len(self.job.ranks))]

    # -- one step ----------------------------------------------------------------------------------

    def _step(self, step: int) -> None:
        began = []
        for rank, state in zip(self.job.ranks, self.states, strict=True):
            # the loss is read (.item()) at the end of each step: the CPU waits for the GPU
            state.cpu = max(state.cpu, state.gpu, state.nccl) + self._noisy(_STEP_GAP) * rank.cpu
            began.append(state.cpu)
            self._span(state, "user_annotation", _INPUT, state.cpu, self._noisy(rank.input_us))
            state.cpu += self._noisy(rank.input_us)
        if self.job.pipeline:
            self._pipeline()
        else:
            self._data_parallel()
        for at, state in enumerate(self.states):
            self._launch(at, "optimizer", _SMALL * 4, "multi_tensor_apply_kernel", "aten::_fused_adamw_")
            end = max(state.cpu, state.gpu)
            self._span(state, "user_annotation", f"ProfilerStep#{step}", began[at], end - began[at])
            state.cpu = end

    def _data_parallel(self) -> None:
        for backward in (False, True):
            for layer in range(_LAYERS):
                for at in range(len(self.states)):
                    self._layer(at, layer, backward)
                if backward or self.job.experts:
                    self._collective("all_to_all" if self.job.experts and not backward else "allreduce")

    def _layer(self, at: int, layer: int, backward: bool) -> None:
        for part in range(2 if backward else 1):
            self._launch(at, f"model.layers.{layer}.self_attn.qkv_proj", _GEMM, _KERNEL, "aten::mm",
                         dims=[[4096, 1024], [1024, 3072 + 1024 * part]])  # fmt: skip
            self._launch(
                at,
                f"model.layers.{layer}.norm",
                _SMALL,
                "vectorized_layer_norm_kernel",
                "aten::native_layer_norm",
            )
        op = "aten::_scaled_dot_product_flash_attention" + ("_backward" if backward else "")
        kernel = f"flash_{'bwd' if backward else 'fwd'}_kernel"
        self._launch(at, f"model.layers.{layer}.self_attn", _SMALL, kernel, op, dims=[[4, 16, 1024, 64]] * 3)
        if self.job.experts:
            tokens = self.job.ranks[at].tokens
            module = f"model.layers.{layer}.mlp.router"
            self._launch(at, module, 5.0, "topk_kernel", "aten::topk", dims=[[4096, 8]])
            self._launch(at, f"model.layers.{layer}.mlp.experts", 2 * _GEMM * tokens, "cutlass_grouped_gemm",
                         "aten::_grouped_mm", dims=[[int(4096 * tokens), 1024], [8, 1024, 4096]])  # fmt: skip

    def _pipeline(self) -> None:
        """All forwards of four micro-batches, then all backwards; a stage waits for its neighbour."""
        stages = len(self.states)
        for backward in (False, True):
            order = range(stages - 1, -1, -1) if backward else range(stages)
            for _ in range(4):
                sent: float | None = None
                for at in order:
                    if sent is not None:
                        self._receive(at, sent)
                    for layer in range(self.job.ranks[at].layers):
                        self._layer(at, layer, backward)
                    sent = self.states[at].gpu + 10
                    self._message(at, sent - 10, 10.0, self.states[at].cpu)

    def _receive(self, at: int, sent: float) -> None:
        state = self.states[at]
        begin = max(state.cpu + _LAUNCH, state.gpu)
        self._message(at, begin, max(5.0, sent - begin), state.cpu)
        state.gpu = max(state.gpu, begin + max(5.0, sent - begin))

    # -- events ------------------------------------------------------------------------------------

    def _noisy(self, us: float, frac: float = 0.02) -> float:
        return us * self.random.uniform(1 - frac, 1 + frac)

    def _span(self, state: _State, category: str, name: str, begin: float, dur: float, **args: Any) -> None:
        state.events.append(event(category, name, ts=begin, dur=dur, pid=7, tid=7, args=args))

    def _launch(
        self, at: int, module: str, us: float, kernel: str, op: str, dims: list[Any] | None = None
    ) -> None:
        state, rank = self.states[at], self.job.ranks[at]
        host = self._noisy(_LAUNCH * 3) * rank.cpu
        begin, state.cpu = state.cpu, state.cpu + host
        parts = module.split(".")
        # a range per module, as attribution finds them in real recordings
        for depth in range(1, len(parts) + 1):
            inset = 0.001 * depth * host
            name = ".".join(parts[:depth])
            self._span(state, "user_annotation", name, begin + inset, host * 0.98 - 2 * inset)
        self._span(state, "cpu_op", op, begin + host * 0.1, host * 0.8, **({"Input Dims": dims,
                   "Input type": ["c10::BFloat16"] * len(dims)} if dims else {}))  # fmt: skip
        launched = begin + host * 0.3
        start = max(launched + 2, state.gpu)
        state.gpu = start + self._noisy(us) * rank.gpu
        self._kernel(state, kernel, launched, start, state.gpu - start, 7, {})

    def _kernel(
        self,
        state: _State,
        name: str,
        launched: float,
        start: float,
        dur: float,
        stream: int,
        args: dict[str, Any],
    ) -> None:
        state.correlation += 1
        link = {"correlation": state.correlation}
        self._span(state, "cuda_runtime", "cudaLaunchKernel", launched, 1.5, **link)
        where = {"device": state.device, "stream": stream, "grid": [132, 1, 1], "block": [384, 1, 1]}
        args = where | link | args
        state.events.append(event("kernel", name, ts=start, dur=dur, pid=0, tid=stream, args=args))

    def _collective(self, name: str) -> None:
        for number, members in enumerate(self.job.groups):
            arrived = {}
            for at in members:
                state = self.states[at]
                state.cpu += self._noisy(_LAUNCH) * self.job.ranks[at].cpu
                arrived[at] = max(state.cpu + 2, state.gpu + 2, state.nccl + 2)
            end = max(arrived.values()) + self._noisy(_SEND) * self.job.link.get(number, 1.0)
            for at in members:
                state = self.states[at]
                done = end + self.random.uniform(-1.5, 1.5)
                kind = "AllReduce_Sum_bf16_RING_LL" if name == "allreduce" else "SendRecv"
                kernel, group = f"ncclDevKernel_{kind}", self._group(name, number, members)
                self._kernel(state, kernel, state.cpu - 3, arrived[at], done - arrived[at], 20, group)
                state.nccl = state.gpu = done  # the layers behind need it

    def _group(self, name: str, number: int, members: list[int]) -> dict[str, Any]:
        return {
            "Collective name": name,
            "In msg nelems": _MESSAGE,
            "Out msg nelems": _MESSAGE,
            "dtype": "BFloat16",
            "Group size": len(members),
            "Process Group Name": str(number),
            "Process Group Description": f"mesh_{number}",
            "Process Group Ranks": str(members),
        }

    def _message(self, at: int, begin: float, us: float, launched: float) -> None:
        group = self._group("send", 0, self.job.groups[0])
        self._kernel(self.states[at], "ncclDevKernel_SendRecv", launched, begin, us, 20, group)

    # -- files -------------------------------------------------------------------------------------

    def _file(self, folder: Path, at: int) -> Path:
        rank, world = self.job.ranks[at], len(self.job.ranks)
        for one in self.states[at].events:
            one["ts"] = round(1e6 + one["ts"] * (1 + rank.drift) + rank.shift_us, 3)
            one["dur"] = round(one["dur"] * (1 + rank.drift), 3)
        document = {
            "schemaVersion": 1,
            "generated": True,
            "deviceProperties": [_H100 | {"id": at} for at in range(_NODE)],
            "distributedInfo": {"backend": "nccl", "rank": at, "world_size": world},
            "baseTimeNanoseconds": BASE,
            "traceEvents": sorted(self.states[at].events, key=lambda one: float(one["ts"])),
        }  # fmt: skip
        path = folder / f"rank{at}.json"
        path.write_text(json.dumps(document))
        return path


def data_parallel(ranks: int = 8, groups: int = 1, **options: Any) -> Job:
    size = ranks // groups
    return Job(
        [Rank() for _ in range(ranks)],
        [list(range(at, at + size)) for at in range(0, ranks, size)],
        **options,
    )


def planted(make: Callable[[], Job], at: int | None, **particular: Any) -> Job:
    """A job in which one rank is particular."""
    job = make()
    if at is not None:
        for name, value in particular.items():
            setattr(job.ranks[at], name, value)
    return job
