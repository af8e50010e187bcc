"""Builds models as people write them for themselves: a thirteenth list, none of it was in another.

The folder of the clones is that of ``clones.py``, each in a folder OWNER_NAME at the commit here:
gabrielfrancois/Vit-Pytorch 0a9af68e1a6b, teplov-andrew/miniDiT e2940f8ee966,
MjdMahasneh/Simple-DETR-From-Scratch f7da5d7f31ad, AleksanderMisztal/gec-with-copying c5fc5578c779,
Temka300/Whisper-From-Scratch 4e46460f6997, VTongTV/bert-from-scratch 4558325ad03c,
Rick-McCoy/music-transformer c77da03d103e, mutiann/few-shot-transformer-tts 9cf6fc737782,
mariomorvan/Denoising-Time-Series-Transformer fd4476d916e7, jonathanking/protein-transformer 988bb0fcbb94,
wilson400hong/stanford-cs336 d3f664e1d3a9, ug2146/NesT_HPML c1514f0979b9, Aphelack/efficient-dl-systems
c66b16722319, sgrvinod/chess-transformers efe16dbf163c, JINO-ROHIT/llm-profiling-guide 3c1863ba9c71,
anenbergb/BERT-from-scratch b2aee058cb24, Chiang0111/transformer-from-scratch-pytorch 7d942f1f59be,
thinhrick0101/bachelor_thesis 5ef570d790ac, weiruihhh/cs336_note_and_hw 871645a1b191 and
tongjinle123/speech-transformer-pytorch_lightning aa111e21e067.

Imports ask for timm, torchvision, einops, jaxtyping, pytorch-lightning and torchmetrics. Widths are the
repositories' own, or a small model's where those are a toy's; a few layers deep.
"""

# What comes of modules is anything.
# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.libraries.models import Built, _ids, _of_classes, _some
from benchmarks.libraries.recipes import _again
from benchmarks.libraries.repos import _of_next

NAMES = Path(__file__).parents[1].joinpath("fresh", "libraries_13.txt").read_text().split()
_LAYERS = 3


def _vit(home: Any) -> Built:
    """At 224 x 224, as wide as DeiT's tiny model; each head is a module of its own."""
    model = home.VisionTransformer(192, 1000, (224, 224), (16, 16), 3, n_heads=3, n_layers=_LAYERS)
    return _of_classes(model, _some(32, 3, 224, 224))


def _dit(home: Any) -> Built:
    """On latents of 32 x 32, as eval.py makes it but for its width."""
    model = home.DiT(32, 4, 2, hidden_size=384, num_features=256, num_layers=_LAYERS, num_heads=6)
    latents, times = _some(16, 4, 32, 32), _some(16)
    return Built(model, lambda: functional.mse_loss(model(latents, times), latents))


def _detr(home: Any) -> Built:
    """With the classes and boxes of what is matched already."""
    with mock.patch.object(home, "resnet18", lambda pretrained: _resnet()):
        model = home.DETR()
    pictures, classes, boxes = _some(8, 3, 512, 512), _ids(8, 100), _some(8, 100, 4)

    def loss() -> Tensor:
        out = model(pictures)
        named = functional.cross_entropy(out["pred_logits"].flatten(0, 1), classes.flatten())
        return named + 5 * functional.l1_loss(out["pred_boxes"], boxes)

    return Built(model, loss)


def _resnet() -> nn.Module:
    return import_module("torchvision").models.resnet18(weights=None)


def _copying(home: Any) -> Built:
    """Sequences first; what is copied is added to what is told."""
    model = home.make_model(16000, 0, copy=True, num_layers=_LAYERS, d_ff=2048, device=torch.device("meta"))
    source, target = _ids(128, 32), _ids(128, 32)
    return Built(model, lambda: functional.nll_loss(model(source, target).flatten(0, 1), target.flatten()))


def _whisper(home: Any) -> Built:
    sizes = home.Whisper.get_default_dims("small") | {"n_audio_layer": _LAYERS, "n_text_layer": _LAYERS}
    model = home.Whisper(sizes)
    sound, words = _some(4, 80, 3000), _ids(4, 448)
    return Built(model, lambda: _of_next(model(sound, words), words))


def _bert(home: Any) -> Built:
    config = import_module("config.bert_config").BertConfig(L=_LAYERS)
    model, ids, pairs = home.BertForPreTraining(config), _ids(8, 512), _ids(8)
    return Built(model, lambda: model(ids, ids, ids, ids, pairs))


def _music(home: Any) -> Built:
    """As wide as a small model; its layers run again in the backward pass, in two segments."""
    home.checkpoint_sequential = _in_segments
    model = home.Transformer(512, 1024, 0.1, 2048, 8, 4, 2052, 2)
    ids = _ids(4, 1024)
    return Built(model, lambda: functional.cross_entropy(model(ids), ids, ignore_index=0))


def _in_segments(layers: Any, segments: int, given: Any) -> Any:
    """torch.utils.checkpoint.checkpoint_sequential, where the last segment is kept."""
    size = len(layers) // segments
    parts = [layers[at : at + size] for at in range(0, len(layers), size)]
    for part in parts[:-1]:
        given = _again(lambda *x, part=part: part(x), *given)
    return parts[-1](given)


def _tacotron(home: Any) -> Built:
    """Several speakers and languages, as in hyperparams.py."""
    params = import_module("hyperparams").hparams
    params.n_encoder_layer = params.n_decoder_layer = _LAYERS
    model = home.Tacotron(params)
    words, sounds, lengths = _ids(8, 128), _some(8, 512, 80), _ids(8)
    voices, tongues = _ids(8), _some(8, params.max_num_language)

    def loss() -> Tensor:
        out = model(words, lengths, sounds, lengths, voices, tongues)
        return home.compute_loss(model, sounds, lengths, out, params)["loss"]

    return Built(model, loss)


class _Unmasked(nn.Module):
    """In place of what masks the nearest points: its source is not in the repository."""

    def __init__(self, _: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> None:
        return None


def _imputer(home: Any) -> Built:
    """Light curves; batch norms around attention, as by default."""
    home.EyeAttention = _Unmasked
    model = home.LitImputer(d_model=256, nhead=8, dim_feedforward=1024, num_layers=_LAYERS)
    curves, mask = _some(16, 800, 1), torch.zeros(16, 800, 1, dtype=torch.bool, device="meta")
    return Built(model, lambda: functional.l1_loss(model(curves, mask), curves))


def _angles(home: Any) -> Built:
    """Angles of residues, the true ones given to the decoder."""
    model = home.Transformer(
        512, 2048, 22, 24, 8, _LAYERS, _LAYERS, 512, 20, -10.0, "meta", 0.1, 1, 1, [0.0] * 24
    )  # fmt: skip
    residues, angles = _ids(8, 512), _some(8, 512, 24)
    return Built(model, lambda: functional.mse_loss(model.forward_tf(residues, angles), angles))


def _cs336(home: Any) -> Built:
    """The course's model as TinyStories and OpenWebText are trained with, and its own loss."""
    model, ids = home.TransformerLM(32000, 1024, 512, _LAYERS, 16, 1344, 10000.0), _ids(8, 1024)
    own = import_module("cs336_basics.nn_utils").cross_entropy
    return Built(model, lambda: own(model(ids), ids))


def _nest(home: Any) -> Built:
    """nest_tiny at the size of pictures of ImageNet."""
    model = home.Nest(224, embed_dims=(96, 192, 384), num_heads=(3, 6, 12), depths=(2, 2, 2))
    return _of_classes(model, _some(16, 3, 224, 224))


def _baseline(home: Any) -> Built:
    config = import_module("config").TransformerConfig(num_layers=_LAYERS, max_seq_len=1024)
    model, ids = home.BaselineTransformer(config), _ids(4, 1024)
    return Built(model, lambda: model.compute_loss(model(ids), ids))


def _chess(home: Any) -> Built:
    """CT-ED-45: boards are read, moves are told."""
    sides = ("white_kingside", "white_queenside", "black_kingside", "black_queenside")
    rights = [f"{side}_castling_rights" for side in sides]
    sizes = {"moves": 1971, "turn": 2, "board_position": 13} | dict.fromkeys(rights, 2)
    rest = {"D_MODEL": 512, "N_HEADS": 8, "D_QUERIES": 64, "D_VALUES": 64, "D_INNER": 2048, "DROPOUT": 0.1}
    config = Namespace(VOCAB_SIZES=sizes, N_MOVES=10, N_LAYERS=_LAYERS, **rest)
    modules = vars(import_module("chess_transformers.transformers.modules"))
    same = Namespace(**vars(torch) | {"equal": lambda one, other: one is other})  # to look at no value
    modules.update(DEVICE=torch.device("meta"), torch=same)
    model, batch = home.ChessTransformer(config), {name: _ids(128, 1) for name in rights}
    moves = _ids(128, 11)
    batch |= {
        "turns": _ids(128, 1),
        "board_positions": _ids(128, 64),
        "moves": moves,
        "lengths": _ids(128, 1),
    }
    return Built(model, lambda: _of_next(model(batch), moves[:, 1:]))


def _qwen3(home: Any) -> Built:
    """Qwen3 14B written by hand, of a sequence of 2048."""
    config = home.QWEN3_CONFIG_14B | {"n_layers": 2, "context_length": 2048}
    model, ids = home.Qwen3Model(config), _ids(1, 2048)
    return Built(model, lambda: _of_next(model(ids), ids))


def _mlm(home: Any) -> Built:
    config = home.BertConfig(num_hidden_layers=_LAYERS)
    with mock.patch.object(nn.Module, "apply", lambda self, function: self):  # which reads rows of weights
        model = home.BertMLM(config)
    ids = _ids(16, 512)
    return Built(model, lambda: _of_next(model(ids, ids, ids), ids))


def _translation(home: Any) -> Built:
    model = home.Transformer(16000, 16000, num_encoder_layers=_LAYERS, num_decoder_layers=_LAYERS)
    source, target, mask = _ids(32, 128), _ids(32, 128), _some(1, 1, 128, 128)
    return Built(model, lambda: _of_next(model(source, target, None, mask), target))


def _char(home: Any) -> Built:
    """Of bytes' pairs; attention and MLP run again in the backward pass, each by itself."""
    home.checkpoint = lambda function, *given, use_reentrant: _again(function, *given)
    home.random = Namespace(random=lambda: 1.0)  # every layer is there
    model, ids = home.EnhancedCharTransformer(8192, 768, 12, _LAYERS, 3072, dropout=0.2), _ids(8, 1024)
    return Built(model, lambda: _of_next(model(ids), ids))


def _course(home: Any) -> Built:
    model, ids = home.TransformerModule(512, 16, 1344, 1024, 10000.0, _LAYERS, 32000), _ids(8, 1024)
    return Built(model, lambda: _of_next(model(ids), ids))


def _rezero(home: Any) -> Built:
    """Sounds to words: an encoder, a decoder beside, and a second guess of the words by the encoder."""
    inputs = import_module("src.model.transformer_rezero.customized_modules.input_layer").Input_layer
    encodes = import_module("src.model.transformer_rezero.customized_modules.rezero_transformer_encoder")
    sizes = (512, 2048, 64, 0.1, 8, _LAYERS)

    class Speech(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.input_layer, self.spec_encoder = inputs(480, 512), encodes.TransformerEncoder(*sizes)
            self.token_decoder = home.TokenDecoder(*sizes, 5000, 0, max_length=64)
            self.encoder_linear = nn.Linear(512, 5000)

        def forward(self, sounds: Tensor, heard: Tensor, words: Tensor, told: Tensor, masks: Any) -> Any:
            net, _ = self.input_layer(sounds, heard)
            net = self.spec_encoder(net, heard, masks[0])
            return self.encoder_linear(net), *self.token_decoder(words, net, told, *masks[1:])

    model: Any = Speech()
    words, kinds = _ids(16, 64), _ids(16, 64)
    masks = [_true(16, 256, 256), _true(16, 64, 64), _true(16, 64, 256)]
    given = (_some(16, 256, 480), _true(16, 256), words, _true(16, 64), masks)

    def loss() -> Tensor:
        heard, out, kind = model(*given)  # in place of CTC, which no meta device knows: a word for each sound
        return _of_next(out, words) + _of_next(kind, kinds) + 0.2 * _of_next(heard, _ids(16, 256))

    return Built(model, loss)


def _true(*size: int) -> Tensor:
    return torch.ones(size, dtype=torch.bool, device="meta")


_HOMES: dict[str, tuple[str, Callable[[Any], Built]]] = dict(
    zip(
        NAMES,
        (
            ("models.vision_transformer", _vit),
            ("model.dit", _dit),
            ("detr", _detr),
            ("copygec.models.transformer_custom", _copying),
            ("whisper_from_scratch.model", _whisper),
            ("model.pretrain_model", _bert),
            ("model.transformer", _music),
            ("transformer.tacotron", _tacotron),
            ("models.models", _imputer),
            ("protein_transformer.models.transformer.Transformer", _angles),
            ("cs336_basics.model", _cs336),
            ("models.nest", _nest),
            ("model.transformer", _baseline),
            ("chess_transformers.transformers.models", _chess),
            ("qwen3", _qwen3),
            ("bert.model", _mlm),
            ("transformer.transformer", _translation),
            ("stable_char_transformer", _char),
            ("transformermodule", _course),
            ("src.model.transformer_rezero.customized_modules.rezero_token_decoder_switch", _rezero),
        ),
        strict=True,
    )
)
#: Where in a clone its modules are.
_UNDER = {
    "AleksanderMisztal_gec-with-copying": "src",
    "Temka300_Whisper-From-Scratch": "src",
    "wilson400hong_stanford-cs336": "assignment1-basics",
    "Aphelack_efficient-dl-systems": "week06_dl_arithmetic/homework",
    "weiruihhh_cs336_note_and_hw": "chapter1/hw7",
}
#: What a clone asks for and its model does not: training, files, drawing.
_UNUSED: dict[str, tuple[str, ...]] = {
    "teplov-andrew_miniDiT": ("matplotlib",),
    "mariomorvan_Denoising-Time-Series-Transformer": ("pytorch_lightning", "lightkurve", "pandas"),
    "thinhrick0101_bachelor_thesis": ("matplotlib", "tokenizers", "tqdm", "requests"),
    "Temka300_Whisper-From-Scratch": ("librosa", "datasets", "tokenizers"),
    "jonathanking_protein-transformer": ("prody", "wandb", "tqdm"),
}
#: Packages that import all they have, beside what is asked of them.
_BARE: dict[str, tuple[str, ...]] = {
    "AleksanderMisztal_gec-with-copying": ("copygec", "copygec.models"),
    "Temka300_Whisper-From-Scratch": ("whisper_from_scratch",),
    "mariomorvan_Denoising-Time-Series-Transformer": ("models", "utils"),
    "Aphelack_efficient-dl-systems": ("model",),
    "ug2146_NesT_HPML": ("models",),
    "jonathanking_protein-transformer": ("protein_transformer.protein", "protein_transformer.models"),
    "sgrvinod_chess-transformers": ("chess_transformers", "chess_transformers.transformers"),
    "tongjinle123_speech-transformer-pytorch_lightning": ("src", "src.model", "src.model.transformer_rezero"),
}
_STUBS: dict[str, dict[str, dict[str, Any]]] = {
    "gabrielfrancois_Vit-Pytorch": {"helper_function": {}, "helper_function.print": {}},
    "mariomorvan_Denoising-Time-Series-Transformer": {
        "pytorch_lightning": {"LightningModule": type("LightningModule", (nn.Module,), {
            "save_hyperparameters": lambda self: None})},
        "utils.stats": dict.fromkeys(("estimate_noise", "iqr", "naniqr")),
    },
    "jonathanking_protein-transformer": {
        "protein_transformer.protein.Structure": {"NUM_PREDICTED_ANGLES": 12},
    },
    "sgrvinod_chess-transformers": {"chess_transformers.configs": {"import_config": None}},
    "Temka300_Whisper-From-Scratch": {
        "whisper_from_scratch.feature_extraction": {"log_mel_spectrogram": None},
    },
    "tongjinle123_speech-transformer-pytorch_lightning": {
        "src.model.modules.beam_searcher": {"BeamSteper": None},
    },
}  # fmt: skip
#: What reads numbers while it is built.
_OF_NUMBERS: tuple[str, ...] = ("ug2146_NesT_HPML",)
#: What asks for single precision.
_SINGLE: tuple[str, ...] = ("mutiann_few-shot-transformer-tts", "wilson400hong_stanford-cs336")
