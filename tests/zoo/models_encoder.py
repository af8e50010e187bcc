"""Encoders: BERT and ViT."""

# nn.Module.__call__ and parts of torch.Tensor have no types.
# mypy: disable-error-code="no-any-return, no-untyped-call"
from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.zoo.blocks import Dropout, LayerNorm, add, attend, cross_entropy, heads_of, run_block
from tests.zoo.dims import Build
from tests.zoo.parts import part


class SelfAttention(nn.Module):
    """query, key and value of BERT and ViT."""

    def __init__(self, build: Build, layer: int) -> None:
        super().__init__()
        self.build, self.layer, hidden = build, layer, build.dims.hidden
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        size, layer = self.build.dims.head_dim, self.layer
        with part("attention.qkv", layer):
            q, k, v = self.query(x), self.key(x), self.value(x)
        with part("attention.other", layer):
            q, k, v = heads_of(q, size), heads_of(k, size), heads_of(v, size)
        return attend(q, k, v, layer, causal=False, kind=self.build.attention)


class BertOutput(nn.Module):
    """Dense, dropout, sum, norm: the end of both halves of a BERT layer."""

    def __init__(self, width: int, out: int, layer: int, component: str) -> None:
        super().__init__()
        self.dense = nn.Linear(width, out)
        self.dropout = Dropout()
        self.LayerNorm = LayerNorm(out, layer)
        self.layer, self.component = layer, component

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        with part(self.component, self.layer):
            x = self.dense(x)
        with part("dropout", self.layer):
            x = self.dropout(x)
        normed: Tensor = self.LayerNorm(add(x, before, self.layer))
        return normed


class BertAttention(nn.Module):
    def __init__(self, build: Build, layer: int) -> None:
        super().__init__()
        self.self = SelfAttention(build, layer)
        self.output = BertOutput(build.dims.hidden, build.dims.hidden, layer, "attention.output")

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.output(self.self(x), x)
        return y


class BertIntermediate(nn.Module):
    def __init__(self, build: Build, layer: int) -> None:
        super().__init__()
        self.dense = nn.Linear(build.dims.hidden, build.dims.ffn)
        self.intermediate_act_fn = nn.GELU()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        with part("mlp.up", self.layer):
            x = self.dense(x)
        with part("mlp.activation", self.layer):
            return self.intermediate_act_fn(x)


class BertLayer(nn.Module):
    """Post-norm layer."""

    def __init__(self, build: Build, layer: int) -> None:
        super().__init__()
        self.attention = BertAttention(build, layer)
        self.intermediate = BertIntermediate(build, layer)
        self.output = BertOutput(build.dims.ffn, build.dims.hidden, layer, "mlp.down")
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        with part("other", self.layer):
            x = self.attention(x)
            y: Tensor = self.output(self.intermediate(x), x)
            return y


class BertEmbeddings(nn.Module):
    def __init__(self, build: Build) -> None:
        super().__init__()
        dims = build.dims
        self.word_embeddings = nn.Embedding(dims.words, dims.hidden, padding_idx=0)
        self.position_embeddings = nn.Embedding(dims.sequence, dims.hidden)
        self.token_type_embeddings = nn.Embedding(2, dims.hidden)
        self.LayerNorm = LayerNorm(dims.hidden)
        self.dropout = Dropout()

    def forward(self, index: Tensor, types: Tensor) -> Tensor:
        with part("embedding"):
            places = torch.arange(index.shape[1], device=index.device)[None]
            x = self.word_embeddings(index) + self.token_type_embeddings(types)
            x = x + self.position_embeddings(places)
        x = self.LayerNorm(x)
        with part("dropout"):
            return self.dropout(x)


class BertEncoder(nn.Module):
    def __init__(self, build: Build) -> None:
        super().__init__()
        self.layer = nn.ModuleList([BertLayer(build, i) for i in range(build.dims.layers)])
        self.build = build

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layer:
            x = run_block(layer, self.build, x)
        return x


class BertModel(nn.Module):
    def __init__(self, build: Build) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(build)
        self.encoder = BertEncoder(build)

    def forward(self, index: Tensor, types: Tensor) -> Tensor:
        x: Tensor = self.encoder(self.embeddings(index, types))
        return x


class BertTransform(nn.Module):
    """Dense, GELU and norm before the vocabulary; the first two have no word of their own."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        self.dense = nn.Linear(build.dims.hidden, build.dims.hidden)
        self.transform_act_fn = nn.GELU()
        self.LayerNorm = LayerNorm(build.dims.hidden)

    def forward(self, x: Tensor) -> Tensor:
        with part("other", strict=False):
            x = self.transform_act_fn(self.dense(x))
        normed: Tensor = self.LayerNorm(x)
        return normed


class BertPredictions(nn.Module):
    def __init__(self, build: Build) -> None:
        super().__init__()
        self.transform = BertTransform(build)
        self.decoder = nn.Linear(build.dims.hidden, build.dims.words)

    def forward(self, x: Tensor) -> Tensor:
        x = self.transform(x)
        with part("logits"):
            return self.decoder(x)


class BertForMaskedLM(nn.Module):
    def __init__(self, build: Build) -> None:
        super().__init__()
        self.bert = BertModel(build)
        predictions = BertPredictions(build)
        self.cls = nn.ModuleDict({"predictions": predictions})
        predictions.decoder.weight = self.bert.embeddings.word_embeddings.weight

    def forward(self, index: Tensor, types: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(self.cls["predictions"](self.bert(index, types)), target, wide=False)


class ViTLayer(nn.Module):
    """Pre-norm layer of torchvision's spelling."""

    def __init__(self, build: Build, layer: int) -> None:
        super().__init__()
        dims, self.layer = build.dims, layer
        self.norm1 = LayerNorm(dims.hidden, layer)
        self.attn = SelfAttention(build, layer)
        self.proj = nn.Linear(dims.hidden, dims.hidden)
        self.norm2 = LayerNorm(dims.hidden, layer)
        self.fc1 = nn.Linear(dims.hidden, dims.ffn)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(dims.ffn, dims.hidden)

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        with part("other", layer):
            y = self.attn(self.norm1(x))
            with part("attention.output", layer):
                y = self.proj(y)
            x = add(x, y, layer)
            y = self.norm2(x)
            with part("mlp.up", layer):
                y = self.fc1(y)
            with part("mlp.activation", layer):
                y = self.act(y)
            with part("mlp.down", layer):
                y = self.fc2(y)
            return add(x, y, layer)


class PatchEmbed(nn.Module):
    """A convolution whose stride is its size: one vector per patch."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, hidden, kernel_size=16, stride=16)

    def forward(self, image: Tensor) -> Tensor:
        return self.proj(image).flatten(2).transpose(1, 2)


class VisionTransformer(nn.Module):
    """224 x 224 images in patches of 16, a class token, and a head on it alone."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        dims, self.build = build.dims, build
        self.patch_embed = PatchEmbed(dims.hidden)
        self.cls_token = nn.Parameter(torch.empty(1, 1, dims.hidden))
        self.pos_embed = nn.Parameter(torch.empty(1, dims.sequence, dims.hidden))
        self.blocks = nn.ModuleList([ViTLayer(build, i) for i in range(dims.layers)])
        self.norm = LayerNorm(dims.hidden)
        self.head = nn.Linear(dims.hidden, 1000)

    def forward(self, image: Tensor, target: Tensor) -> Tensor:
        with part("embedding"):
            x = self.patch_embed(image)
            x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), dim=1) + self.pos_embed
        for block in self.blocks:
            x = run_block(block, self.build, x)
        x = self.norm(x)
        with part("logits", strict=False):
            x = x[:, 0]
        with part("logits"):
            logits = self.head(x)
        return cross_entropy(logits, target, wide=False)
