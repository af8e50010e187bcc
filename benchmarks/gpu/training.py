"""One training step of a case, ready to be called: model, data, precision, optimizer, and how it is run.

A step is forward, loss, backward, gradient clipping, AdamW, zeroed gradients. ``part(name)`` is entered
around each of them: nothing by default; whoever wants to know where a step stands gives a context manager.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu.models import GPT, Bert, Dims, Llama, Vit, use_fp8

Part = Callable[[str], contextlib.AbstractContextManager[None]]
#: One optimizer step before a graph is captured, as PyTorch's notes on CUDA graphs say: 3 on a side stream.
_GRAPH_WARMUP = 3


@dataclass(frozen=True, slots=True)
class Case:
    """One training step to capture."""

    name: str  # of the trace, behind the GPU's: "gpt2_vocab50257_head80_eager"
    family: str  # gpt | llama | moe | bert | vit
    dims: Dims
    layers: tuple[int, ...]  # how many; the next smaller one where the trace grows too large
    how: str = "eager"  # eager | compile | checkpoint | graph (whole step) | reduce_overhead
    precision: str = "bf16_autocast"  # bf16_autocast | bf16 | fp16_scaler | fp8 | tf32

    @property
    def dtype(self) -> str:
        """Of the products, as the names of kernels say it."""
        return {"bf16_autocast": "bf16", "fp16_scaler": "fp16"}.get(self.precision, self.precision)

    def toy(self) -> Case:
        """The same step with sizes for a CPU: a dry run proves the program, nothing else."""
        d = self.dims
        heads = 4
        small = replace(
            d,
            hidden=heads * 16,
            heads=heads,
            kv_heads=None if d.kv_heads is None else 2,
            ffn=176,
            vocab=208 + d.vocab % 2,
            sequence=16,
            batch=2,
            experts=4,
            patch=4,
            image=12,
        )
        return replace(self, dims=small, layers=(1,))


class Training:
    """``Training(case, device="cuda")()`` runs a step."""

    def __init__(self, case: Case, *, layers: int, device: str):
        torch.manual_seed(0)
        self.case, self.device = case, device
        self.part: Part = lambda name: contextlib.nullcontext()
        self.root: Any = None  # the autograd node that a backward begins at
        with torch.device(device):  # a CPU would take seconds for the random weights
            self.model = build(case, layers)
        if case.precision == "bf16":
            self.model = self.model.to(torch.bfloat16)
        if case.precision == "fp8":
            use_fp8(self.model)
        self.inputs, self.targets = data(case, device)
        on_gpu = device == "cuda"
        self.graphed = case.how == "graph" and on_gpu
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-4, weight_decay=0.1, fused=on_gpu, capturable=self.graphed
        )
        self.scaler = torch.amp.GradScaler(device, enabled=case.precision == "fp16_scaler")
        self.forward: Callable[[Tensor], Tensor] = self.model
        if case.how in ("compile", "reduce_overhead"):
            how: dict[str, Any] = {"mode": "reduce-overhead"} if case.how == "reduce_overhead" else {}
            # a CPU's compiler takes half a minute for a kernel that nobody looks at
            self.forward = torch.compile(self.model, **(how if on_gpu else {"backend": "aot_eager"}))
        self._graph: Any = self._record() if self.graphed else None

    def __call__(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        else:
            if self.case.how == "reduce_overhead":
                torch.compiler.cudagraph_mark_step_begin()
            self._eager()

    def _eager(self) -> None:
        part = self.part
        with part("forward"), self._autocast():
            out = self.forward(self.inputs)
        with part("loss"):
            loss = F.cross_entropy(out.float().flatten(0, -2), self.targets.flatten())
            scaled = self.scaler.scale(loss) if self.scaler.is_enabled() else loss
        self.root = scaled.grad_fn
        with part("backward"):
            torch.autograd.backward(scaled)
        self.root = None
        with part("grad_clip"):
            if self.scaler.is_enabled():
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        with part("optimizer"):
            if self.scaler.is_enabled():
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
        with part("zero_grad"):
            # in a graph the gradients keep their addresses in its pool either way
            self.optimizer.zero_grad(set_to_none=True)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        kind = {"bf16_autocast": torch.bfloat16, "fp8": torch.bfloat16, "fp16_scaler": torch.float16}
        dtype = kind.get(self.case.precision)
        return torch.autocast(self.device, dtype) if dtype else contextlib.nullcontext()

    def _record(self) -> Any:
        """The whole step as one graph: warmed up on a side stream, gradients made inside the capture."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_GRAPH_WARMUP):
                self._eager()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._eager()
        return graph


def build(case: Case, layers: int) -> nn.Module:
    d, remember = case.dims, case.how != "checkpoint"
    if case.family == "gpt":
        return GPT(d, layers, remember)
    if case.family in ("llama", "moe"):
        return Llama(d, layers, remember, moe=case.family == "moe")
    if case.family == "bert":
        return Bert(d, layers, remember)
    if case.family == "vit":
        return Vit(d, layers, remember)
    raise ValueError(f"no model family {case.family!r}")


def data(case: Case, device: str) -> tuple[Tensor, Tensor]:
    """Random, never zeros: a GPU multiplies zeros faster than data."""
    d = case.dims
    if case.family == "vit":
        images = torch.randn(d.batch, 3, d.image, d.image, device=device)
        if case.precision == "bf16":
            images = images.bfloat16()
        return images, torch.randint(0, d.vocab, (d.batch,), device=device)
    ids = torch.randint(0, d.vocab, (d.batch, d.sequence), device=device)
    return ids, torch.randint(0, d.vocab, (d.batch, d.sequence), device=device)


@contextlib.contextmanager
def precision(case: Case) -> Iterator[None]:
    """PyTorch's flags as the case wants them, and as they were afterwards."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if case.precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
