"""Builds models as the packages of their authors, and PyTorch itself, write them: none was in another list.

Installed without what they need: openai-whisper 20250625, fair-esm 2.0.0, segment-anything 1.0, clip-anytorch
2.6.0, monai 1.6.1, torchaudio 2.11.0, ai2-olmo-core 3.0.0, PaLM-pytorch 0.2.2, perceiver-pytorch 0.11.0,
performer-pytorch 1.1.4, tab-transformer-pytorch 0.6.1, CoCa-pytorch 0.1.0, MEGABYTE-pytorch 0.3.6, conformer
0.3.2, linformer 0.2.3 and local-attention 1.11.2.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.hub.values import known
from benchmarks.libraries.models import (
    _BATCH,
    _LAYERS,
    _SEQUENCE,
    _VOCABULARY,
    Built,
    _ids,
    _of_classes,
    _of_tokens,
    _some,
)

NAMES = Path(__file__).parents[1].joinpath("fresh", "libraries_2.txt").read_text().split()
#: What olmo_core asks for to fetch files.
_CLOUDS: tuple[str, ...] = (
    "google",
    "google.api_core",
    "google.api_core.exceptions",
    "google.api_core.retry",
    "google.auth",
)
_CLOUDS += ("google.auth.exceptions", "google.cloud", "google.cloud.storage", "google.cloud.exceptions")
_CLOUDS += (
    "boto3",
    "botocore",
    "botocore.config",
    "botocore.exceptions",
    "cached_path",
    "cached_path.schemes",
)


def _squares(model: nn.Module, *given: Any, result: Callable[[Any], Tensor] = lambda out: out) -> Built:
    def loss() -> Tensor:
        out = result(model(*given)).float()
        return functional.mse_loss(out, torch.zeros_like(out))

    return Built(model, loss)


def _first(out: Any) -> Tensor:
    found: Tensor = out[0] if isinstance(out, tuple) else out
    return found


def _told(*size: int, value: int = 1) -> Tensor:
    """Numbers that a model asks for."""
    return known(torch.full(size, value, dtype=torch.int64, device="cpu"))


def _whisper(_: str) -> Built:
    home = import_module("whisper.model")
    sizes = {"state": 512, "head": 8, "layer": _LAYERS}
    audio = {f"n_audio_{key}": size for key, size in sizes.items()} | {"n_audio_ctx": 1500}
    text = {f"n_text_{key}": size for key, size in sizes.items()} | {"n_text_ctx": 448}
    with mock.patch.object(Tensor, "to_sparse", lambda mask: mask):  # of heads that align, when it is used
        model = home.Whisper(home.ModelDimensions(n_mels=80, n_vocab=51865, **audio, **text))
    ids, mel = _ids(_BATCH, 448), _some(_BATCH, 80, 3000)
    return Built(
        model, lambda: functional.cross_entropy(model(mel, ids).float().flatten(0, 1), ids.flatten())
    )


def _esm(name: str) -> Built:
    alphabet = import_module("esm.data").Alphabet.from_architecture(
        "msa_transformer" if name == "msa" else "ESM-1b"
    )
    if name == "esm2":
        model = import_module("esm.model.esm2").ESM2(_LAYERS, 1280, 20, alphabet, token_dropout=False)
        ids = _told(_BATCH, _SEQUENCE)
    else:
        sizes = {"embed_dim": 768, "ffn_embed_dim": 3072, "attention_heads": 12, "layers": _LAYERS}
        rates = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.1)
        rest = {"max_tokens": 1 << 16, "max_positions": 1024, "embed_positions_msa": True, "logit_bias": True}
        model = import_module("esm.model.msa_transformer").MSATransformer(
            Namespace(**sizes, **rates, **rest), alphabet
        )
        ids = _told(1, 16, 256)

    def loss() -> Tensor:
        logits = model(ids)["logits"].float()
        return functional.cross_entropy(logits.flatten(0, -2), ids.flatten())

    return Built(model, loss)


def _segment_anything(_: str) -> Built:
    home = import_module("segment_anything.modeling")
    model = home.ImageEncoderViT(depth=_LAYERS, use_rel_pos=True, window_size=14, global_attn_indexes=(1, 3))
    return _squares(model, _some(1, 3, 1024, 1024))


def _clip(_: str) -> Built:
    model = import_module("clip.model").CLIP(512, 224, _LAYERS, 768, 16, 77, 49408, 512, 8, _LAYERS)
    pictures, ids, labels = _some(32, 3, 224, 224), _ids(32, 77), _ids(32)

    def loss() -> Tensor:
        of_pictures, of_texts = model(pictures, ids)
        losses = (functional.cross_entropy(out.float(), labels) for out in (of_pictures, of_texts))
        return torch.stack([*losses]).mean()

    return Built(model, loss)


def _monai(name: str) -> Built:
    nets = import_module("monai.networks.nets")
    if name == "vit":
        model = nets.ViT(1, 96, 16, num_layers=_LAYERS, classification=True, num_classes=1000)
        return _of_classes_of(model, _some(_BATCH, 1, 96, 96, 96))
    if name == "unetr":
        return _squares(nets.UNETR(1, 14, 96), _some(1, 1, 96, 96, 96))
    return _squares(nets.SwinUNETR(1, 14, feature_size=48), _some(1, 1, 96, 96, 96))


def _of_classes_of(model: nn.Module, given: Tensor) -> Built:
    labels = _ids(len(given))
    return Built(model, lambda: functional.cross_entropy(_first(model(given)).float(), labels))


def _torchaudio(name: str) -> Built:
    if name == "conformer":
        model = import_module("torchaudio.models.conformer").Conformer(512, 8, 2048, _LAYERS, 31)
        return _squares(model, _some(_BATCH, 512, 512), _told(_BATCH, value=512), result=_first)
    model = import_module("torchaudio.models.emformer").Emformer(
        512, 8, 2048, _LAYERS, 16, 0.1, "gelu", 30, 4
    )
    return _squares(model, _some(_BATCH, 516, 512), _told(_BATCH, value=512), result=_first)


def _olmo_core(name: str) -> Built:
    config = import_module("olmo_core.nn.transformer").TransformerConfig
    made = getattr(config, f"{name}_190M")(vocab_size=_VOCABULARY)
    made.n_layers = _LAYERS
    return _of_tokens(made.build(init_device="meta"))


def _lucidrains(name: str) -> Callable[[str], Built]:
    def made(_: str) -> Built:
        kind, keywords = _LUCIDRAINS[name]
        return _of_tokens(getattr(import_module(name), kind)(num_tokens=_VOCABULARY, dim=768, **keywords))

    return made


_LUCIDRAINS: dict[str, tuple[str, dict[str, Any]]] = {
    "palm_pytorch": ("PaLM", {"depth": _LAYERS, "heads": 12}),
    "perceiver_pytorch": (
        "PerceiverLM",
        {"max_seq_len": _SEQUENCE, "depth": _LAYERS, "num_latents": 256, "latent_dim": 768},
    ),
    "performer_pytorch": (
        "PerformerLM",
        {"max_seq_len": _SEQUENCE, "depth": _LAYERS, "heads": 12, "auto_check_redraw": False},
    ),
    "linformer": ("LinformerLM", {"seq_len": _SEQUENCE, "depth": _LAYERS, "heads": 12}),
    "local_attention": (
        "LocalTransformer",
        {"max_seq_len": _SEQUENCE, "depth": _LAYERS, "heads": 12, "local_attn_window_size": 128},
    ),
}


def _tab_transformer(_: str) -> Built:
    kind = import_module("tab_transformer_pytorch").FTTransformer
    model = kind(
        categories=(10,) * 32, num_continuous=32, dim=256, dim_head=32, depth=_LAYERS, heads=8, dim_out=10
    )
    return _of_classes(model, _ids(512, 32), _some(512, 32))


def _coca(_: str) -> Built:
    kind = import_module("coca_pytorch.coca_pytorch").CoCa
    model = kind(
        dim=768,
        num_tokens=20000,
        unimodal_depth=2,
        multimodal_depth=2,
        dim_latents=512,
        image_dim=1024,
        heads=12,
    )
    ids, pictures = _ids(8, 257), _some(8, 256, 1024)
    return Built(model, lambda: model(text=ids, image_tokens=pictures, return_loss=True))


def _megabyte(_: str) -> Built:
    kind = import_module("MEGABYTE_pytorch").MEGABYTE
    model = kind(num_tokens=256, dim=(768, 512), depth=(4, 2), max_seq_len=(256, 4), heads=8)
    ids = _ids(_BATCH, 1024)
    return Built(model, lambda: model(ids, return_loss=True))


def _conformer(_: str) -> Built:
    model = import_module("conformer").Conformer(512, depth=_LAYERS)
    return _squares(model, _some(_BATCH, 512, 512))


def _torch(name: str) -> Built:
    if name == "transformer":
        model: nn.Module = nn.Transformer(768, 12, _LAYERS, _LAYERS, 3072, batch_first=True)
        return _squares(model, _some(_BATCH, 512, 768), _some(_BATCH, 256, 768))
    layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True, norm_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, _LAYERS, nn.LayerNorm(768)), nn.Linear(768, 1000))
    return _squares(model, _some(_BATCH, 512, 768))


_BUILDERS: dict[str, Callable[[str], Built]] = {
    "whisper": _whisper,
    "esm": _esm,
    "segment_anything": _segment_anything,
    "clip": _clip,
    "monai": _monai,
    "torchaudio": _torchaudio,
    "olmo_core": _olmo_core,
    **{name: _lucidrains(name) for name in _LUCIDRAINS},
    "tab_transformer_pytorch": _tab_transformer,
    "coca_pytorch": _coca,
    "MEGABYTE_pytorch": _megabyte,
    "conformer": _conformer,
    "torch": _torch,
}


#: What makes tensors of numbers when it is imported.
_HOMES = {
    "whisper": ("whisper.model",),
    "esm": ("esm.model.esm2", "esm.model.msa_transformer"),
    "segment_anything": ("segment_anything.modeling",),
    "clip": ("clip.model",),
    "monai": ("monai.networks.nets",),
    "torchaudio": ("torchaudio.models.conformer", "torchaudio.models.emformer"),
    "olmo_core": ("olmo_core.nn.transformer",),
}


#: What reads numbers while it is built.
_OF_NUMBERS = ("monai/swin_unetr", "performer_pytorch/lm", "tab_transformer_pytorch/ft")


def build(name: str) -> Built:
    """The model ``package/name``, in bf16 and training, on the meta device."""
    package, _, own = name.partition("/")
    for cloud in _CLOUDS if package == "olmo_core" else ():
        sys.modules.setdefault(cloud, mock.MagicMock())
    # its library is built for another version of torch, its models ask for none
    if package == "torchaudio" and package not in sys.modules:
        found = find_spec("torchaudio")
        stub = ModuleType("torchaudio")
        stub.__path__ = list(found.submodule_search_locations or ()) if found else []
        sys.modules["torchaudio"] = stub
    for home in _HOMES.get(package, (package,)):
        import_module(home)
    with nullcontext() if name in _OF_NUMBERS else torch.device("meta"):
        built = _BUILDERS[package](own)
    built.model.to("meta", torch.float32 if package == "local_attention" else torch.bfloat16).train()
    return built
