"""Steps of models that are no plain transformer: what must not be found in them."""

# nn.Module.__call__ and parts of torch.Tensor have no types.
# mypy: disable-error-code="no-any-return, no-untyped-call"
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import record_function

from tests.zoo.blocks import LayerNorm
from tests.zoo.dims import Build, Dims
from tests.zoo.families import FAMILIES, GPT2, Batch, Family
from tests.zoo.models_gpt import GPT, Block, CausalSelfAttention

_SIZE = Dims(hidden=512, heads=1, head_dim=1, ffn=512, layers=1, sequence=16, micro_batch=32, vocab=1000)


class Residual(nn.Module):
    """Two convolutions, each with its batch normalization written out, added to what they took."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2)])
        self.scales = nn.ParameterList([torch.empty(channels, 1, 1) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for convolution, scale in zip(self.convolutions, self.scales, strict=True):
            y = convolution(y)
            spread = (y.pow(2).mean((0, 2, 3), keepdim=True) + 1e-5).rsqrt()
            y = F.relu(y * spread * scale)
        return x + y


class ResNet(nn.Module):
    def __init__(self, build: Build) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, padding=3)
        self.stages = nn.ModuleList([Residual(64) for _ in range(4)])
        self.fc = nn.Linear(64, build.dims.words)

    def forward(self, image: Tensor, target: Tensor) -> Tensor:
        x = F.relu(self.stem(image))
        for stage in self.stages:
            x = stage(x)
        return F.cross_entropy(self.fc(x.mean((2, 3))), target)


class LSTM(nn.Module):
    """A language model of one layer, cell by cell."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        hidden = build.dims.hidden
        self.embed = nn.Embedding(build.dims.words, hidden)
        self.from_input, self.from_state = nn.Linear(hidden, 4 * hidden), nn.Linear(hidden, 4 * hidden)
        self.decoder = nn.Linear(hidden, build.dims.words)

    def forward(self, index: Tensor, target: Tensor) -> Tensor:
        x = self.embed(index)
        state = cell = x[:, 0]
        states = []
        for at in range(4):
            gates = self.from_input(x[:, at]) + self.from_state(state)
            i, f, g, o = gates.chunk(4, dim=-1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            state = torch.sigmoid(o) * torch.tanh(cell)
            states.append(state)
        y = self.decoder(torch.stack(states, 1))
        return F.cross_entropy(y.view(-1, y.shape[-1]), target[:, :4].reshape(-1))


def _layers(*widths: int) -> nn.Sequential:
    return nn.Sequential(*[part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())])


class DLRM(nn.Module):
    """Bags of embeddings, a bottom MLP, the products of all pairs, a top MLP."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(100_000, 128) for _ in range(7)])
        self.bottom, self.top = _layers(16, 512, 256, 128), _layers(64, 512, 256, 1)

    def forward(self, index: Tensor, dense: Tensor, target: Tensor) -> Tensor:
        parts = [self.bottom(dense), *(table(index).sum(1) for table in self.tables)]
        x = torch.stack(parts, 1)
        pairs = torch.bmm(x, x.transpose(1, 2)).view(len(x), -1)
        return (self.top(pairs) - target).pow(2).mean()


class MLP(nn.Module):
    def __init__(self, build: Build) -> None:
        super().__init__()
        self.layers = _layers(784, 2048, 2048, 512)
        self.out = nn.Linear(512, 10)

    def forward(self, image: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.out(self.layers(image)), target)


class Twice(nn.Module):
    """One model, two batches in one forward."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        self.model = GPT(build)

    def forward(self, index: Tensor, target: Tensor) -> Tensor:
        return self.model(index, target) + self.model(index, target)


class Stack(nn.Module):
    """Layers alone, without embedding, head or loss operator, on one batch or more."""

    def __init__(self, build: Build, *, times: int) -> None:
        super().__init__()
        self.times = times
        self.layers = nn.ModuleList([Block(build, i, square=False) for i in range(build.dims.layers)])

    def forward(self, x: Tensor) -> Tensor:
        return sum((self._once(x) for _ in range(self.times)), start=x.new_zeros(()))

    def _once(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.pow(2).mean()


class Axes(nn.Module):
    """A model of films: every layer attends over time, then over the places of a picture, then its MLP."""

    def __init__(self, build: Build, *, frames: int) -> None:
        super().__init__()
        dims, self.frames = build.dims, frames
        self.patches = nn.Conv2d(3, dims.hidden, 16, stride=16)
        self.over_time = nn.ModuleList([CausalSelfAttention(build, i) for i in range(dims.layers)])
        self.blocks = nn.ModuleList([Block(build, i, square=False) for i in range(dims.layers)])
        self.norms = nn.ModuleList([LayerNorm(dims.hidden, i) for i in range(dims.layers)])
        self.head = nn.Linear(dims.hidden, build.dims.words)

    def forward(self, image: Tensor, target: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        films, (places, hidden) = len(x) // self.frames, x.shape[1:]
        for norm, over_time, block in zip(self.norms, self.over_time, self.blocks, strict=True):
            y = norm(x).view(films, self.frames, places, hidden).transpose(1, 2)
            y = over_time(y.reshape(films * places, self.frames, hidden))
            x = x + y.view(films, places, self.frames, hidden).transpose(1, 2).reshape(x.shape)
            x = block(x)
        return F.cross_entropy(self.head(x.mean(1)), target)


class Chosen(nn.Module):
    """Behind the model a narrow product whose results are sorted: that routes nothing."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        self.model = GPT(build)
        self.score = nn.Linear(build.dims.hidden, 4)

    def forward(self, index: Tensor, target: Tensor) -> Tensor:
        loss = self.model(index, target)
        best = torch.topk(self.score(self.model.transformer["wte"](index)), 2, dim=-1)[0]
        return loss + best.sum()


class Hooked(nn.Module):
    """A hook in the backward opens a range: it runs no forward again."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        self.model = MLP(build)

    def forward(self, image: Tensor, target: Tensor) -> Tensor:
        x = self.model.layers(image)
        x.register_hook(_scaled)
        return F.cross_entropy(self.model.out(x), target)


def _scaled(gradient: Tensor) -> Tensor:
    with record_function("scale the gradient"):
        return torch.sigmoid(gradient) * gradient


def _images(dims: Dims) -> Batch:
    image = torch.zeros(dims.micro_batch, 3, 64, 64, dtype=torch.bfloat16)
    return {"image": image, "target": torch.zeros(dims.micro_batch, dtype=torch.int64)}


def _states(dims: Dims) -> Batch:
    return {"x": torch.zeros(dims.micro_batch, dims.sequence, dims.hidden, dtype=torch.bfloat16)}


def _films(dims: Dims) -> Batch:
    image = torch.zeros(2 * 8, 3, 224, 224, dtype=torch.bfloat16)
    return {"image": image, "target": torch.zeros(2 * 8, dtype=torch.int64)}


def _rows(dims: Dims) -> Batch:
    image = torch.zeros(1024, 784, dtype=torch.bfloat16)
    return {"image": image, "target": torch.zeros(1024, dtype=torch.int64)}


def _clicks(dims: Dims) -> Batch:
    return {
        "index": torch.zeros(2048, 20, dtype=torch.int64),
        "dense": torch.zeros(2048, 16, dtype=torch.bfloat16),
        "target": torch.zeros(2048, 1, dtype=torch.bfloat16),
    }


def _control(name: str, make: Callable[[Build], nn.Module], batch: Callable[[Dims], Batch]) -> Family:
    return Family(name=name, dims=_SIZE, make=make, batch=batch)


_DECODER = FAMILIES["gpt2"].batch
_ALL = (
    _control("resnet", ResNet, _images),
    _control("lstm", LSTM, _DECODER),
    _control("dlrm", DLRM, _clicks),
    _control("mlp", MLP, _rows),
    _control("hooked", Hooked, _rows),
    Family(name="gpt2_twice", dims=GPT2, make=Twice, batch=_DECODER),
    Family(name="stack", dims=GPT2, make=partial(Stack, times=1), batch=_states),
    Family(name="stack_twice", dims=GPT2, make=partial(Stack, times=2), batch=_states),
    Family(name="axes", dims=replace(GPT2, vocab=400), make=partial(Axes, frames=8), batch=_films),
    Family(name="gpt2_chosen", dims=GPT2, make=Chosen, batch=_DECODER),
)
CONTROLS: dict[str, Family] = {family.name: family for family in _ALL}
