"""Builds models of texts, sequences and tables as the packages of their authors write them: a third list.

Installed without what they need: transformer-lens 2.16.1, curated-transformers 2.0.1, torchscale 0.3.0,
OpenNMT-py 3.5.1, sockeye 3.1.34, labml-nn 0.5.1, st-moe-pytorch 0.1.8, soft-moe-pytorch 0.1.9,
block-recurrent-transformer-pytorch 0.4.4, retro-pytorch 0.3.9, memorizing-transformers-pytorch 0.4.1,
reformer-pytorch 1.4.4, routing-transformer 1.6.1, mixture-of-experts 0.2.3,
recurrent-memory-transformer-pytorch 0.7.0, simple-hierarchical-transformer 0.4.0,
native-sparse-attention-pytorch 0.2.3, enformer-pytorch 0.8.12, gateloop-transformer 0.2.5 and
tabpfn 9.2.0.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.libraries.models import (
    _BATCH,
    _LAYERS,
    _SEQUENCE,
    _VOCABULARY,
    EXPERTS,
    Built,
    _ids,
    _of_tokens,
    _some,
)
from benchmarks.libraries.originals import _first, _squares

NAMES = Path(__file__).parents[1].joinpath("fresh", "libraries_3.txt").read_text().split()


def _of_loss(model: nn.Module, *given: Any, **keywords: Any) -> Built:
    """A model that makes its loss itself."""
    return Built(model, lambda: _first(model(*given, **keywords)))


def _of_logits(model: nn.Module, *given: Any, ids: Tensor, result: Callable[[Any], Tensor] = _first) -> Built:
    def loss() -> Tensor:
        out = result(model(*given))
        return functional.cross_entropy(out.flatten(0, -2).float(), ids.flatten())

    return Built(model, loss)


def _transformer_lens(name: str) -> Built:
    home = import_module("transformer_lens")
    sizes = {"n_layers": _LAYERS, "d_model": 1024, "n_ctx": _SEQUENCE, "d_head": 64, "n_heads": 16}
    own: dict[str, Any] = {"act_fn": "gelu_new", "normalization_type": "LN"}
    if name == "llama":
        own = {
            "act_fn": "silu", "normalization_type": "RMS", "final_rms": True, "gated_mlp": True,
            "d_mlp": 2816, "n_key_value_heads": 4, "positional_embedding_type": "rotary", "rotary_dim": 64,
        }  # fmt: skip
    rest = {"d_vocab": _VOCABULARY, "dtype": torch.bfloat16, "device": "meta", "init_weights": False}
    config = home.HookedTransformerConfig(**sizes, **own, **rest)
    model = home.HookedTransformer(config, move_to_device=False)
    return _of_loss(model, _ids(), return_type="loss", prepend_bos=False)


def _curated(name: str) -> Built:
    home, layers = import_module("curated_transformers.models"), import_module("curated_transformers.layers")
    ids, mask = _ids(), layers.AttentionMask(torch.ones(_BATCH, _SEQUENCE, dtype=torch.bool))
    sizes = {"hidden_width": 1024, "n_hidden_layers": _LAYERS, "n_pieces": _VOCABULARY}
    if name == "falcon":
        config = home.FalconConfig(**sizes, n_query_heads=16, rotary_embedding_fraction=1.0)
        model = home.FalconCausalLM(config)
        return _of_logits(model, ids, mask, ids=ids, result=lambda out: out.logits)
    ids, mask = _ids(16, 512), layers.AttentionMask(torch.ones(16, 512, dtype=torch.bool))
    heads = {"n_attention_heads": 16, "intermediate_width": 4096, "n_positions": 514}
    model = home.RoBERTaEncoder(home.RoBERTaConfig(**sizes, **heads))
    return _squares(model, ids, mask, result=lambda out: out.last_hidden_layer_state)


def _torchscale(name: str) -> Built:
    config = import_module("torchscale.architecture.config")
    words, ids = nn.Embedding(_VOCABULARY, 768), _ids()
    if name == "retnet":
        sizes = {"decoder_embed_dim": 768, "decoder_value_embed_dim": 1536, "decoder_ffn_embed_dim": 1536}
        rest = {"decoder_layers": _LAYERS, "decoder_retention_heads": 3, "vocab_size": _VOCABULARY}
        kind = import_module("torchscale.architecture.retnet").RetNetDecoder
        model = kind(config.RetNetConfig(**sizes, **rest), embed_tokens=words)
        return _of_logits(model, ids, ids=ids)
    made = config.EncoderConfig(
        vocab_size=_VOCABULARY, encoder_layers=_LAYERS, rel_pos_buckets=32, max_rel_pos=128, dropout=0.1
    )
    model = import_module("torchscale.architecture.encoder").Encoder(made, embed_tokens=words)
    return _of_logits(model, ids, ids=ids, result=lambda out: out["encoder_out"])


def _onmt(_: str) -> Built:
    embeddings = import_module("onmt.modules.embeddings").Embeddings
    words = [embeddings(768, _VOCABULARY, 1, position_encoding=True, dropout=0.1) for _ in range(2)]
    encoders = import_module("onmt.encoders.transformer")
    encoder = encoders.TransformerEncoder(_LAYERS, 768, 12, 3072, 0.1, 0.1, words[0], 0, 0)
    decoder = import_module("onmt.decoders.transformer").TransformerDecoder(
        _LAYERS, 768, 12, 3072, False, "scaled-dot", 0.1, 0.1, words[1], 0, 0, False, False, -1, 0
    )
    model = import_module("onmt.models").NMTModel(encoder, decoder)
    model.generator = nn.Linear(768, _VOCABULARY)
    source, target, lengths = _ids(16, 256, 1), _ids(16, 257, 1), _ids(16)

    def loss() -> Tensor:
        out, _ = model(source, target, lengths)
        labels = target[:, 1:, 0].reshape(-1)
        logits = model.generator(out.reshape(-1, out.shape[-1]))
        return functional.cross_entropy(logits.float(), labels, label_smoothing=0.1)

    return Built(model, loss)


def _sockeye(_: str) -> Built:
    home, encoder = import_module("sockeye.model"), import_module("sockeye.encoder")
    rates = dict.fromkeys(("dropout_attention", "dropout_act", "dropout_prepost"), 0.1)
    sizes = {"model_size": 1024, "attention_heads": 16, "feed_forward_num_hidden": 4096}
    lengths = {"max_seq_len_source": 256, "max_seq_len_target": 256, "depth_key_value": 1024}
    rest = {"num_layers": _LAYERS, "act_type": "relu", "positional_embedding_type": "fixed"}
    order = {"preprocess_sequence": "n", "postprocess_sequence": "dr"}
    kind = import_module("sockeye.transformer").TransformerConfig
    config = kind(**rates, **sizes, **lengths, **rest, **order)
    words = encoder.EmbeddingConfig(_VOCABULARY, 1024, 0.0)
    model = home.SockeyeModel(home.ModelConfig(None, _VOCABULARY, _VOCABULARY, words, words, config, config))
    given = _ids(16, 256, 1), _ids(16, 2), _ids(16, 256, 1), _ids(16, 2)
    return _of_logits(model, *given, ids=given[2], result=lambda out: out["logits"])


def _labml(name: str) -> Built:
    home: Any = import_module(f"labml_nn.transformers.{name}")
    model = import_module(f"labml_nn.transformers.{name}.experiment").AutoregressiveModel
    feed = import_module("labml_nn.transformers.feed_forward").FeedForward(768, 3072)
    ids = _ids(512, 8)  # the sequence first
    if name == "compressive":
        attention = import_module("labml_nn.transformers.xl.relative_mha").RelativeMultiHeadAttention(12, 768)
        layer = home.CompressiveTransformerLayer(
            d_model=768, self_attn=attention, feed_forward=feed, dropout_prob=0.1,
            compress=home.Conv1dCompression(4, 768),
        )  # fmt: skip
        made = model(_VOCABULARY, 768, home.CompressiveTransformer(layer, _LAYERS))
        memories = Namespace(mem=[_some(256, 8, 768)] * _LAYERS, c_mem=[_some(64, 8, 768)] * _LAYERS)
        return _of_logits(made, ids, memories, ids=ids)
    attention = import_module("labml_nn.transformers.mha").MultiHeadAttention(12, 768)
    feed = home.SwitchFeedForward(
        capacity_factor=1.2, drop_tokens=False, is_scale_prob=True, n_experts=EXPERTS, d_model=768,
        expert=feed,
    )  # fmt: skip
    layer = home.SwitchTransformerLayer(d_model=768, attn=attention, feed_forward=feed, dropout_prob=0.1)
    made = model(_VOCABULARY, 768, home.SwitchTransformer(layer, _LAYERS))

    def places(one: Tensor, other: int) -> Namespace:
        return Namespace(nonzero=lambda as_tuple: torch.where(torch.eq(one, other)))

    # which tokens go to an expert, asked in the way that has an answer without values
    home.torch = Namespace(**vars(torch) | {"eq": places})
    return _of_logits(made, ids, ids=ids)


class Blocks(nn.Module):
    """PyTorch's attention and the mixture of experts that a package offers, in turns."""

    def __init__(self, mixtures: list[nn.Module], width: int, *, adds: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(_VOCABULARY, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in mixtures)
        self.attentions = nn.ModuleList(
            nn.MultiheadAttention(width, width // 64, batch_first=True) for _ in mixtures
        )
        self.mixtures = nn.ModuleList(mixtures)
        self.lm_head = nn.Linear(width, _VOCABULARY, bias=False)
        self.adds = adds

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for norm, attention, mixture in zip(self.norms, self.attentions, self.mixtures, strict=True):
            y = norm(x)
            x = x + attention(y, y, y, need_weights=False)[0]
            x = x + mixture(x) if self.adds else _first(mixture(x))
        logits: Tensor = self.lm_head(x)
        return logits


def _st_moe(_: str) -> Built:
    home: Any = import_module("st_moe_pytorch.st_moe_pytorch")
    home.safe_one_hot = functional.one_hot  # the same, for a capacity that no index exceeds
    mixtures = [
        home.SparseMoEBlock(home.MoE(512, num_experts=EXPERTS), add_ff_before=True) for _ in range(_LAYERS)
    ]
    return _of_tokens(Blocks(mixtures, 512, adds=False))


def _soft_moe(_: str) -> Built:
    kind = import_module("soft_moe_pytorch").SoftMoE
    mixtures = [
        kind(768, seq_len=_SEQUENCE, num_experts=EXPERTS, geglu=True, offload_unused_experts_to_cpu=False)
        for _ in range(_LAYERS)
    ]
    return _of_tokens(Blocks(mixtures, 768, adds=True))


def _of_next(name: str) -> Callable[[str], Built]:
    """A model that predicts the next token and makes its own loss."""

    def made(_: str) -> Built:
        home, kind, length, keywords = _NEXT[name]
        model = getattr(import_module(home), kind)(**{"num_tokens": _VOCABULARY} | keywords)
        return _of_loss(model, _ids(_BATCH, length + 1), return_loss=True)

    return made


#: Module, class, tokens and keywords; fewer words where the model's own training is on bytes.
_NEXT: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "block_recurrent_transformer_pytorch": (
        "block_recurrent_transformer_pytorch", "BlockRecurrentTransformer", _SEQUENCE,
        {"dim": 768, "depth": 4, "heads": 12, "max_seq_len": _SEQUENCE, "recurrent_layers": (3,)},
    ),
    "simple_hierarchical_transformer": (
        "simple_hierarchical_transformer", "HierarchicalTransformer", _SEQUENCE,
        {"num_tokens": 256, "dim": (512, 768), "depth": _LAYERS, "seq_len": _SEQUENCE, "hierarchies": (1, 4),
         "window_sizes": (128, None)},
    ),
    "native_sparse_attention_pytorch": (
        "native_sparse_attention_pytorch.transformer", "Transformer", 512,
        {"dim": 768, "depth": _LAYERS, "heads": 12, "kv_heads": 4, "use_sparse_attn": True,
         "sparse_attn_kwargs": {
             "sliding_window_size": 64, "compress_block_size": 16, "compress_block_sliding_stride": 8,
             "selection_block_size": 16, "num_selected_blocks": 4}},
    ),
    "gateloop_transformer": (
        "gateloop_transformer", "Transformer", _SEQUENCE,
        {"num_tokens": 256, "dim": 768, "depth": _LAYERS, "heads": 12, "checkpoint_gate_looped_attn": False},
    ),
}  # fmt: skip


def _retro(_: str) -> Built:
    kind = import_module("retro_pytorch.retro_pytorch").RETRO
    model = kind(
        num_tokens=_VOCABULARY, max_seq_len=_SEQUENCE, enc_depth=2, dec_depth=4, dec_cross_attn_layers=(2, 4)
    )
    return _of_loss(model, _ids(_BATCH, _SEQUENCE + 1), _ids(_BATCH, 16, 2, 128), return_loss=True)


def _memorizing(_: str) -> Built:
    kind = import_module("memorizing_transformers_pytorch").MemorizingTransformer
    model = kind(
        num_tokens=_VOCABULARY, dim=768, depth=4, heads=12, memorizing_layers=(3,), xl_max_memories=512,
        xl_memory_layers=(2, 3),
    )  # fmt: skip
    found = _some(_BATCH, 12, 512, 32, 2, 64), torch.ones(_BATCH, 12, 512, 32, dtype=torch.bool)
    memory = Namespace(num_indices=_BATCH, search=lambda q, many: found, add=lambda new: None)
    before = [_some(_BATCH, 512, 2, 64)] * 2
    ids = _ids(_BATCH, 512)
    return _of_loss(model, ids, [memory], xl_memories=before, labels=ids)


def _reformer(_: str) -> Built:
    kind = import_module("reformer_pytorch").ReformerLM
    model = kind(
        num_tokens=_VOCABULARY, dim=768, depth=_LAYERS, heads=12, max_seq_len=2048, ff_chunks=1, causal=True,
        reverse_thres=2048, n_local_attn_heads=4,
    )  # fmt: skip
    ids = _ids(2, 2048)
    return _of_logits(model, ids, ids=ids)


def _routing(_: str) -> Built:
    kind = import_module("routing_transformer").RoutingTransformerLM
    model = kind(
        num_tokens=_VOCABULARY, dim=768, depth=_LAYERS, heads=12, max_seq_len=_SEQUENCE, causal=True,
        window_size=128, n_local_attn_heads=4, moe_layers=(2,), moe_num_experts=EXPERTS, rel_pos_emb=False,
        _register_kmeans_update=False,
    )  # fmt: skip
    ids = _ids()

    def loss() -> Tensor:
        logits, balance = model(ids)
        total: Tensor = balance.sum()
        return total + functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())

    return Built(model, loss)


def _recurrent_memory(_: str) -> Built:
    kind = import_module("recurrent_memory_transformer_pytorch").RecurrentMemoryTransformer
    model = kind(
        num_tokens=_VOCABULARY, dim=768, depth=_LAYERS, heads=12, num_memory_tokens=128, seq_len=_SEQUENCE
    )
    return _of_loss(model, _ids(), labels=_ids())


def _enformer(_: str) -> Built:
    kind = import_module("enformer_pytorch.modeling_enformer").Enformer
    model = kind.from_hparams(
        dim=768, depth=_LAYERS, heads=8, output_heads={"human": 5313}, target_length=-1, num_downsamples=5
    )
    return _of_loss(model, _some(4, 16384, 4), target=_some(4, 512, 5313), head="human")


def _tabpfn(_: str) -> Built:
    home = import_module("tabpfn.architectures.tabpfn_v2")
    config = home.TabPFNV2Config(max_num_classes=0, num_buckets=1000, nlayers=_LAYERS, emsize=512, nhead=8)
    made = _squares(home.TabPFNV2(config=config, n_out=1000), _some(512, 2, 32), _some(384, 2))

    def loss() -> Tensor:
        with mock.patch.object(torch.jit, "is_tracing", lambda: True):  # no seed of the device's own
            return made.loss()

    return Built(made.model, loss)


_BUILDERS: dict[str, Callable[[str], Built]] = {
    "transformer_lens": _transformer_lens,
    "curated_transformers": _curated,
    "torchscale": _torchscale,
    "onmt": _onmt,
    "sockeye": _sockeye,
    "labml_nn": _labml,
    "st_moe_pytorch": _st_moe,
    "soft_moe_pytorch": _soft_moe,
    **{name: _of_next(name) for name in _NEXT},
    "retro_pytorch": _retro,
    "memorizing_transformers_pytorch": _memorizing,
    "reformer_pytorch": _reformer,
    "routing_transformer": _routing,
    "recurrent_memory_transformer_pytorch": _recurrent_memory,
    "enformer_pytorch": _enformer,
    "tabpfn": _tabpfn,
}

#: What makes tensors of numbers when it is imported.
_HOMES = {
    "curated_transformers": ("curated_transformers.models",),
    "torchscale": ("torchscale.architecture.retnet", "torchscale.architecture.encoder"),
    "onmt": ("onmt.models",),
    "sockeye": ("sockeye.model",),
    "labml_nn": ("labml_nn.transformers.switch.experiment", "labml_nn.transformers.compressive.experiment"),
    "retro_pytorch": ("retro_pytorch.retro_pytorch",),
    "native_sparse_attention_pytorch": ("native_sparse_attention_pytorch.transformer",),
    "enformer_pytorch": ("enformer_pytorch.modeling_enformer",),
    "tabpfn": ("tabpfn.architectures.tabpfn_v2",),
}
#: What they ask for to read files, to count and to show.
_NOT_NEEDED: dict[str, tuple[str, ...]] = {
    "transformer_lens": ("datasets", "datasets.arrow_dataset", "datasets.load", "wandb", "torchaudio"),
    "onmt": ("pyonmttok", "sacrebleu", "ctranslate2", "spacy", "fasttext", "ahocorasick", "rapidfuzz"),
    "retro_pytorch": ("faiss", "autofaiss", "autofaiss.external", "jsonlines"),
    "memorizing_transformers_pytorch": ("faiss", "joblib"),
    "enformer_pytorch": ("polars", "pyfaidx", "pandas", "discrete_key_value_bottleneck_pytorch"),
}
#: Packages that import all they have, beside what is asked of them.
_BARE = {"tabpfn": ("tabpfn", "tabpfn.architectures", "tabpfn.preprocessing", "tabpfn.preprocessing.torch")}
#: What asks for single precision: complex numbers, masks and rotations that are made so.
_SINGLE: tuple[str, ...] = ("gateloop_transformer", "st_moe_pytorch", "routing_transformer")
_SINGLE += ("simple_hierarchical_transformer",)


@contextmanager
def _without(package: str) -> Iterator[None]:
    """Mocks in place of what is not installed, while a package is imported."""
    mocked = [name for name in _NOT_NEEDED.get(package, ()) if name not in sys.modules and not _there(name)]
    for name in mocked:
        sys.modules[name] = mock.MagicMock(__spec__=ModuleSpec(name, None), __path__=[])
    for name in _BARE.get(package, ()):
        found = find_spec(name)
        if name not in sys.modules and found:
            sys.modules[name] = stub = ModuleType(name)
            stub.__path__ = list(found.submodule_search_locations or ())
    try:
        yield
    finally:
        for name in mocked:
            del sys.modules[name]


def _there(name: str) -> bool:
    try:
        import_module(name)
    except (ImportError, OSError):
        return False
    return True


def build(name: str) -> Built:
    """The model ``package/name``, in bf16 and training, on the meta device."""
    package, _, own = name.partition("/")
    with _without(package):
        if package == "labml_nn":  # its release asks for what it and labml 0.5.3 have left out
            vars(import_module("labml_nn.helpers.metrics"))["SimpleStateModule"] = object
            vars(import_module("labml.tracker"))["debug"] = lambda *_: None
        for home in _HOMES.get(package, (package,)):
            import_module(home)
    with torch.device("meta"):
        built = _BUILDERS[package](own)
    built.model.to("meta", torch.float32 if package in _SINGLE else torch.bfloat16).train()
    return built
