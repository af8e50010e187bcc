"""The families of the zoo: how each is built, at what size, and what a batch of it holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from tests.zoo.dims import Build, Dims
from tests.zoo.models_encoder import BertForMaskedLM, VisionTransformer
from tests.zoo.models_gpt import GPT, ParallelDecoder
from tests.zoo.models_llama import LlamaForCausalLM, Variant
from tests.zoo.models_t5 import T5ForConditionalGeneration

Batch = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A kind of transformer. ``make`` builds it on the default device in the default dtype."""

    name: str
    dims: Dims
    make: Callable[[Build], nn.Module]
    batch: Callable[[Dims], Batch]  # on the CPU; keywords of the model's forward, which returns the loss
    fused_attention: bool = True  # False: a bias on the scores leaves only unfused attention
    parallel: bool = False  # can be split over tensor-parallel ranks

    def build(self, size: Dims | Build | None = None) -> nn.Module:
        """The model on the meta device in bf16: as wide as the real one, with few layers."""
        build = size if isinstance(size, Build) else Build(dims=size or self.dims)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device("meta"):
                return self.make(build)
        finally:
            torch.set_default_dtype(before)


def _tokens(dims: Dims, *names: str) -> Batch:
    return {name: torch.zeros(dims.micro_batch, dims.sequence, dtype=torch.int64) for name in names}


def _decoder(dims: Dims) -> Batch:
    return _tokens(dims, "index", "target")


def _bert(dims: Dims) -> Batch:
    return _tokens(dims, "index", "types", "target")


def _t5(dims: Dims) -> Batch:
    return _tokens(dims, "index", "decoder_index", "target")


def _images(dims: Dims) -> Batch:
    image = torch.zeros(dims.micro_batch, 3, 224, 224, dtype=torch.bfloat16)
    return {"image": image, "target": torch.zeros(dims.micro_batch, dtype=torch.int64)}


GPT2 = Dims(hidden=768, heads=12, head_dim=64, ffn=3072, vocab=50257, layers=3, sequence=1024, micro_batch=8)
LLAMA = Dims(
    hidden=2048, heads=32, kv_heads=8, head_dim=64, ffn=5632, vocab=32000, layers=2, sequence=2048,
    micro_batch=2,
)  # fmt: skip
BERT = replace(GPT2, hidden=1024, heads=16, ffn=4096, vocab=30522, layers=3, sequence=512, micro_batch=16)
VIT = Dims(hidden=768, heads=12, head_dim=64, ffn=3072, layers=3, sequence=197, micro_batch=64)
T5 = Dims(hidden=768, heads=12, head_dim=64, ffn=2048, vocab=32128, layers=2, sequence=512, micro_batch=8)
NEOX = replace(GPT2, hidden=1024, heads=16, ffn=4096, vocab=50304, layers=3)
FALCON = replace(NEOX, hidden=1536, heads=24, kv_heads=1, ffn=6144, vocab=65024, layers=2)
MLA = replace(LLAMA, hidden=1536, heads=12, kv_heads=None, head_dim=192, ffn=4096)
MOE = replace(LLAMA, hidden=1024, heads=16, kv_heads=8, ffn=3584, experts=8, sequence=1024, micro_batch=4)


def _llama(name: str, dims: Dims = LLAMA, *, parallel: bool = False, **variant: str | bool | int) -> Family:
    make = partial(LlamaForCausalLM, variant=Variant(**variant))  # type: ignore[arg-type]
    return Family(name=name, dims=dims, make=make, batch=_decoder, parallel=parallel)


_ALL = (
    Family(name="gpt2", dims=GPT2, make=GPT, batch=_decoder, parallel=True),
    Family(name="gpt2_square", dims=GPT2, make=partial(GPT, square=True), batch=_decoder),
    Family(name="neox", dims=NEOX, make=ParallelDecoder, batch=_decoder),
    Family(name="falcon", dims=FALCON, make=ParallelDecoder, batch=_decoder),
    _llama("llama", parallel=True),
    _llama("llama_fused", attention="fused", mlp="fused", repeat=True),
    _llama("llama_chunked_loss", loss="chunked"),
    _llama("llama_recomputed_loss", loss="recomputed"),
    _llama("llama_liger", loss="liger"),
    _llama("qk_norm", qk_norm=True, repeat=True),
    _llama("gated_attention", gated=True, qk_norm=True),
    _llama("lora", lora=16),
    _llama("mla", MLA, attention="latent"),
    _llama("moe", MOE, mlp="loop"),
    _llama("moe_grouped", MOE, mlp="grouped"),
    Family(name="bert", dims=BERT, make=BertForMaskedLM, batch=_bert),
    Family(name="t5", dims=T5, make=T5ForConditionalGeneration, batch=_t5, fused_attention=False),
    Family(name="vit", dims=VIT, make=VisionTransformer, batch=_images),
)
FAMILIES: dict[str, Family] = {family.name: family for family in _ALL}
