"""Builds models of pictures, video, sound, time series and science as packages of their authors write them.

Installed without what they need: timesformer-pytorch 0.4.1, denoising-diffusion-pytorch 2.3.4, dalle-pytorch
1.6.6, alphafold2-pytorch 0.4.32, demucs 4.1.0, speechbrain 1.1.2, f5-tts 1.1.22,
stable-audio-tools 0.0.19, moshi 0.2.13, kornia 0.9.0, x-clip 0.14.4, segmentation-models-pytorch 0.6.0, sam2
1.1.0, torch_geometric 2.8.1, neuralforecast 3.3.0, microsoft-aurora 2.0.1, boltz 2.2.1 and flamingo-pytorch
0.1.2; imports ask for timm, torchvision, x-transformers, omegaconf, julius, xxhash, dill, einops-exts,
kornia-rs, axial-positional-embedding and rotary-embedding-torch, too. Of models whose times or positions are
float32 all is: they train under autocast, which asks for a device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.libraries.models import _LAYERS, Built, _ids, _of_classes, _some
from benchmarks.libraries.originals import _squares, _told

NAMES = Path(__file__).parents[1].joinpath("fresh", "libraries_4.txt").read_text().split()


class _Absent(Loader, MetaPathFinder):
    """Finds what a package asks for to read files and to draw, and makes nothing of it."""

    def __init__(self, roots: tuple[str, ...]) -> None:
        self.roots = roots

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self.roots else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        made = ModuleType(spec.name)
        vars(made).update(__getattr__=_nothing, __version__="0")
        return made

    def exec_module(self, module: ModuleType) -> None:
        pass


def _nothing(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return mock.MagicMock()


@contextmanager
def _without(roots: tuple[str, ...]) -> Iterator[None]:
    """Packages of these names are there and hold nothing, in the block."""
    finder = _Absent(roots)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name, module in list(sys.modules.items()):
            if getattr(getattr(module, "__spec__", None), "loader", None) is finder:
                del sys.modules[name]


def _floats(*size: int) -> Tensor:
    return torch.zeros(size, device="meta")


def _timesformer(_: str) -> Built:
    kind = import_module("timesformer_pytorch").TimeSformer
    rates = {"attn_dropout": 0.1, "ff_dropout": 0.1}
    model = kind(dim=768, num_frames=8, num_classes=400, depth=_LAYERS, heads=12, **rates)
    return _of_classes(model, _floats(4, 8, 3, 224, 224))


def _denoising(_: str) -> Built:
    home = import_module("denoising_diffusion_pytorch")
    model = home.GaussianDiffusion(home.Unet(64, dim_mults=(1, 2, 4, 8), flash_attn=True), image_size=128)
    pictures = _floats(16, 3, 128, 128)
    return Built(model, lambda: model(pictures))


def _dalle(_: str) -> Built:
    home = import_module("dalle_pytorch")
    vae = home.DiscreteVAE(image_size=256, num_layers=3, num_tokens=8192)
    model = home.DALLE(
        dim=1024, vae=vae, num_text_tokens=10000, text_seq_len=256, depth=4, heads=16, attn_dropout=0.1,
        ff_dropout=0.1, attn_types=("full", "axial_row", "axial_col", "conv_like"),
    )  # fmt: skip
    words, pictures = _ids(4, 256), _ids(4, 1024)
    return Built(model, lambda: model(words, pictures, return_loss=True))


def _alphafold2(_: str) -> Built:
    model = import_module("alphafold2_pytorch").Alphafold2(dim=256, depth=2, heads=8, dim_head=64)
    sequence, others, labels = _ids(1, 256), _ids(1, 32, 256), _ids(256 * 256)
    seen, seen_others = torch.ones_like(sequence).bool(), torch.ones_like(others).bool()

    def loss() -> Tensor:
        out = model(sequence, others, mask=seen, msa_mask=seen_others).distance
        return functional.cross_entropy(out.flatten(0, 2), labels)

    return Built(model, loss)


def _demucs(_: str) -> Built:
    kind = import_module("demucs.htdemucs").HTDemucs
    model = kind(["drums", "bass", "other", "vocals"], t_layers=_LAYERS, bottom_channels=512)
    sound = _floats(2, 2, int(44100 * 7.8))

    def loss() -> Tensor:
        with torch.library._scoped_library("aten", "IMPL") as library:  # istft asks if its windows cover all
            library.impl("equal", lambda one, other: False, "Meta", allow_override=True)
            out = model(sound)
        return functional.l1_loss(out, torch.zeros_like(out))

    return Built(model, loss)


def _speechbrain(_: str) -> Built:
    kind = import_module("speechbrain.lobes.models.transformer.TransformerASR").TransformerASR
    model = kind(
        tgt_vocab=5000, input_size=640, d_model=512, num_encoder_layers=_LAYERS, num_decoder_layers=2,
        encoder_module="branchformer", attention_type="RelPosMHAXL", csgu_linear_units=3072,
        activation=nn.GELU, normalize_before=True, causal=False,
    )  # fmt: skip
    head = nn.Linear(512, 5000)
    sounds, ids = _floats(4, 512, 640), _ids(4, 64)

    def loss() -> Tensor:
        _, out = model(sounds, ids)
        return functional.cross_entropy(head(out).flatten(0, 1), ids.flatten())

    return Built(nn.ModuleDict({"Transformer": model, "seq_lin": head}), loss)


def _f5(_: str) -> Built:
    kind = import_module("f5_tts.model.backbones.dit").DiT
    sizes = {"text_dim": 512, "conv_layers": 4, "text_num_embeds": 2545}
    model = kind(dim=1024, depth=_LAYERS, heads=16, ff_mult=2, **sizes)
    mel, ids = _floats(4, 1024, 100), _ids(4, 256)
    turns = import_module("x_transformers.x_transformers")  # for its positions, without autocast

    def loss() -> Tensor:
        with mock.patch.object(turns, "autocast", lambda *_, **__: nullcontext()):
            out = model(mel, mel, ids, _floats(4))
        return functional.mse_loss(out, mel)

    return Built(model, loss)


def _stable_audio(_: str) -> Built:
    kind = import_module("stable_audio_tools.models.dit").DiffusionTransformer
    model = kind(
        io_channels=64, embed_dim=1024, depth=_LAYERS, num_heads=16, cond_token_dim=768, global_cond_dim=768,
        global_cond_type="adaLN", conformer=True,
    )  # fmt: skip
    sound, given = _some(4, 64, 1024), {"cross_attn_cond": _some(4, 128, 768), "global_embed": _some(4, 768)}

    def loss() -> Tensor:
        out = model(sound, _some(4), **given, use_checkpointing=False)
        return functional.mse_loss(out.float(), sound.float())

    return Built(model, loss)


def _moshi(_: str) -> Built:
    loaders = import_module("moshi.models.loaders")
    smaller = {"dim": 1024, "num_heads": 16, "num_layers": _LAYERS, "n_q": 8, "delays": [0] * 9}
    smaller |= {"depformer_dim": 512, "depformer_num_heads": 8, "depformer_num_layers": 2}
    model = loaders.LMModel(**loaders._lm_kwargs | smaller | {"depformer_dim_feedforward": 2048})
    ids = _ids(4, 9, 512)

    def loss() -> Tensor:
        with import_module("moshi.utils.compile").no_compile():
            out = model(ids)
        words = functional.cross_entropy(out.text_logits.float().flatten(0, 2), ids[:, :1].flatten())
        return words + functional.cross_entropy(out.logits.float().flatten(0, 2), ids[:, 1:].flatten())

    return Built(model, loss)


def _kornia(name: str) -> Built:
    if name == "tiny_vit":
        model = import_module("kornia.models.tiny_vit").TinyViT.from_config("21m")
        return _of_classes(model, _some(16, 3, 224, 224))
    model = import_module("kornia.feature.loftr.loftr_module").LocalFeatureTransformer(
        {"d_model": 256, "nhead": 8, "layer_names": ["self", "cross"] * 2, "attention": "linear"}
    )
    pictures = _some(4, 4800, 256), _some(4, 4800, 256)

    def loss() -> Tensor:
        """That of LoFTR's coarse matches: softmax both ways."""
        alike = torch.einsum("nld,nsd->nls", *model(*pictures)).float()
        sure = alike.softmax(1) * alike.softmax(2)
        return -sure.diagonal(0, 1, 2).log().mean()

    return Built(model, loss)


def _x_clip(_: str) -> Built:
    model = import_module("x_clip").CLIP(
        num_text_tokens=49408, text_enc_depth=_LAYERS, visual_enc_depth=_LAYERS, visual_patch_size=16,
        use_all_token_embeds=True, decoupled_contrastive_learning=True,
    )  # fmt: skip
    words, pictures = _ids(16, 256), _some(16, 3, 256, 256)
    return Built(model, lambda: model(words, pictures, return_loss=True))


def _smp(_: str) -> Built:
    model = import_module("segmentation_models_pytorch").Segformer("mit_b2", encoder_weights=None, classes=21)
    pictures, labels = _some(4, 3, 512, 512), _ids(4, 512, 512)
    return Built(model, lambda: functional.cross_entropy(model(pictures).float(), labels))


def _sam2(_: str) -> Built:
    """Pictures, and what was seen in four before: as configs/sam2.1/sam2.1_hiera_b+.yaml says."""
    home = import_module("sam2.modeling.backbones.image_encoder")
    hiera = import_module("sam2.modeling.backbones.hieradet").Hiera
    sine = import_module("sam2.modeling.position_encoding").PositionEmbeddingSine
    attends = import_module("sam2.modeling.sam.transformer").RoPEAttention
    memory = import_module("sam2.modeling.memory_attention")
    trunk = hiera(112, 2, drop_path_rate=0.1, stages=(2, 2, 4, 2), global_att_blocks=(5, 7))
    levels = {"fpn_top_down_levels": [2, 3], "fpn_interp_model": "nearest"}
    pyramid = home.FpnNeck(sine(256), 256, [896, 448, 224, 112], **levels)
    sizes = {"num_heads": 1, "dropout": 0.1, "feat_sizes": (64, 64)}
    of_past, own = attends(256, rope_k_repeat=True, kv_in_dim=64, **sizes), attends(256, **sizes)
    layer = memory.MemoryAttentionLayer("relu", of_past, 256, 2048, 0.1, False, True, False, own)
    encoder = home.ImageEncoder(trunk, pyramid, scalp=1)
    remembers = memory.MemoryAttention(256, True, layer, 4)
    pictures, before = _floats(2, 3, 1024, 1024), _floats(4 * 4096, 2, 64)

    def loss() -> Tensor:
        seen = encoder(pictures)["vision_features"].flatten(2).permute(2, 0, 1)
        out = remembers(seen, before, _floats(4096, 2, 256), before)
        return functional.mse_loss(out, torch.zeros_like(out))

    return Built(nn.ModuleDict({"image_encoder": encoder, "memory_attention": remembers}), loss)


def _geometric(_: str) -> Built:
    model = import_module("torch_geometric.nn").Polynormer(128, 512, 40, local_layers=3, global_layers=2)
    model._global = True  # as in the second part of its training
    x, edges, graphs = _floats(16384, 128), _ids(2, 65536), _told(16384, value=0)
    labels = _ids(16384)
    return Built(model, lambda: functional.cross_entropy(model(x, edges, graphs), labels))


def _neuralforecast(_: str) -> Built:
    kind = import_module("neuralforecast.models.patchtst").PatchTST
    sizes = {"hidden_size": 512, "n_heads": 8, "encoder_layers": _LAYERS, "linear_hidden_size": 2048}
    model = kind(h=96, input_size=512, **sizes)
    windows: dict[str, Any] = dict.fromkeys(("insample_y", "insample_mask"), _floats(64, 512, 1))
    return _squares(model, windows | dict.fromkeys(("futr_exog", "hist_exog", "stat_exog")))


def _aurora(_: str) -> Built:
    home = import_module("aurora")
    model = home.AuroraSmallPretrained(encoder_depths=(2, 2, 2), decoder_depths=(2, 2, 2), use_lora=True)
    high, wide, levels = 160, 320, (100, 250, 500, 850)
    places = {"lat": torch.linspace(90, -90, high), "lon": torch.linspace(0, 359, wide)}
    batch = home.Batch(
        surf_vars=dict.fromkeys(("2t", "10u", "10v", "msl"), _floats(1, 2, high, wide)),
        static_vars=dict.fromkeys(("lsm", "z", "slt"), _floats(high, wide)),
        atmos_vars=dict.fromkeys(("z", "u", "v", "t", "q"), _floats(1, 2, len(levels), high, wide)),
        metadata=home.Metadata(**places, time=(datetime(2020, 6, 1, 12),), atmos_levels=levels),
    )

    def loss() -> Tensor:
        out = model(batch)
        return torch.stack([x.abs().mean() for x in (out.surf_vars | out.atmos_vars).values()]).mean()

    return Built(model, loss)


def _boltz(_: str) -> Built:
    model = import_module("boltz.model.layers.pairformer").PairformerModule(384, 128, 2, v2=True)
    single, pairs = _floats(1, 256, 384), _floats(1, 256, 256, 128)
    seen = torch.ones_like(single[..., 0]), torch.ones_like(pairs[..., 0])

    def loss() -> Tensor:
        one, other = model(single, pairs, *seen)
        return functional.mse_loss(one, single) + functional.mse_loss(other, pairs)

    return Built(model, loss)


def _flamingo(_: str) -> Built:
    kind = import_module("flamingo_pytorch").FlamingoPaLM
    sizes = {"dim": 1024, "num_tokens": 20000, "depth": 4, "heads": 16}
    model = kind(**sizes, cross_attn_every=2, perceiver_depth=2, img_encoder=nn.Identity())
    ids, pictures = _ids(4, 512), _some(4, 2, 256, 1024)

    def loss() -> Tensor:
        out = model(ids, images=pictures)
        return functional.cross_entropy(out.float().flatten(0, 1), ids.flatten())

    return Built(model, loss)


_BUILDERS: dict[str, Callable[[str], Built]] = {
    "timesformer_pytorch": _timesformer,
    "denoising_diffusion_pytorch": _denoising,
    "dalle_pytorch": _dalle,
    "alphafold2_pytorch": _alphafold2,
    "demucs": _demucs,
    "speechbrain": _speechbrain,
    "f5_tts": _f5,
    "stable_audio_tools": _stable_audio,
    "moshi": _moshi,
    "kornia": _kornia,
    "x_clip": _x_clip,
    "segmentation_models_pytorch": _smp,
    "sam2": _sam2,
    "torch_geometric": _geometric,
    "neuralforecast": _neuralforecast,
    "aurora": _aurora,
    "boltz": _boltz,
    "flamingo_pytorch": _flamingo,
}
#: What makes tensors of numbers when it is imported, where that is not the package itself.
_HOMES = {
    "demucs": "demucs.htdemucs",
    "speechbrain": "speechbrain.lobes.models.transformer.TransformerASR",
    "f5_tts": "f5_tts.model.backbones.dit",
    "stable_audio_tools": "stable_audio_tools.models.dit",
    "moshi": "moshi.models.loaders",
    "kornia": "kornia.models.tiny_vit",
    "sam2": "sam2.modeling.sam2_base",
    "torch_geometric": "torch_geometric.nn",
    "neuralforecast": "neuralforecast.models",
    "boltz": "boltz.model.layers.pairformer",
}
#: What a package asks for and its models do not: files, sounds, pictures, distributed training.
_UNUSED: dict[str, tuple[str, ...]] = {
    "denoising_diffusion_pytorch": ("accelerate", "ema_pytorch", "pytorch_fid"),
    "dalle_pytorch": ("taming", "torchaudio"),
    "alphafold2_pytorch": (
        "torchaudio", "Bio", "mdtraj", "sidechainnet", "mp_nerf", "invariant_point_attention", "pytorch3d",
        "en_transformer",
    ),
    "demucs": ("torchaudio", "lameenc", "musdb", "museval", "dora"),
    "speechbrain": ("torchaudio", "sentencepiece", "hyperpyyaml"),
    "f5_tts": ("torchaudio", "librosa", "rjieba", "pypinyin", "torchdiffeq", "vocos", "ema_pytorch", "wandb",
               "datasets", "accelerate"),
    "moshi": ("sentencepiece", "torchaudio"),
    "sam2": ("hydra", "iopath"),
    "neuralforecast": ("ray", "coreforecast", "utilsforecast", "optuna", "torchaudio"),
}  # fmt: skip
#: What reads numbers while it is built.
_OF_NUMBERS = ("aurora", "kornia", "sam2", "segmentation_models_pytorch")
#: What is of one type throughout.
_HALF: tuple[str, ...] = (
    "dalle_pytorch",
    "flamingo_pytorch",
    "kornia",
    "moshi",
    "stable_audio_tools",
    "x_clip",
)
_HALF += ("segmentation_models_pytorch",)


def build(name: str) -> Built:
    """The model ``package/name``, in bf16 or float32 and training, on the meta device."""
    package, _, own = name.partition("/")
    with _without(_UNUSED.get(package, ())):
        import_module(_HOMES.get(package, package))
        with nullcontext() if package in _OF_NUMBERS else torch.device("meta"):
            built = _BUILDERS[package](own)
    built.model.to("meta", torch.bfloat16 if package in _HALF else torch.float32).train()
    return built
