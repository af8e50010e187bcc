"""Builds models as people write them to learn and to share: a fourteenth list, none of it was in another.

The folder of the clones is that of ``clones.py``, each in a folder OWNER_NAME at the commit here:
nikhilbarhate99/min-decision-transformer d6694248b48c,
s-chh/PyTorch-Scratch-Vision-Transformer-ViT 5d66670b8ac7,
Andrei-Aksionov/nanoGPTplus c2eedfe406bf, ShaneLiu04/nanoGPT-Modern ed7fde2fb536,
theeluwin/session-aware-bert4rec 340b9df291e9, gordicaleksa/pytorch-original-transformer d5b29a41c5c3,
SamLynnEvans/Transformer 49e01800aab0, dhlee347/pytorchic-bert fefcbd988bc3, jeonsworld/ViT-pytorch
182bca8e6449, Jamie-Stirling/RetNet a5841a3ebffd, kaituoxu/Speech-Transformer 43d83eab2e4e,
soobinseo/Transformer-TTS 87bd9c9afdf9, gwinndr/MusicTransformer-Pytorch 7161590fe306, maxjcohen/transformer
41adca15333d, FGiuliari/Trajectory-Transformer 85925d68a05a, IcarusWizard/MAE 11c21fcbdb4d,
explainingai-code/DiT-PyTorch ed9c0bd29f2c, AviSoori1x/seemore d1eb880cfe23, affjljoo3581/GPT2 7b159669f622,
berniwal/swin-transformer-pytorch c921ebf914c6, saahiluppal/catr fac82f9b4004,
hkproj/pytorch-stable-diffusion 6e6900078372, VachanVY/diffusion-transformer c6fca8c910fa,
seanswyi/sasrec-pytorch 6bce6130d426, lucidrains/protein-bert-pytorch e5a073ca83d5,
wise233/qwen2.5-MoE-from-scratch 15c1a76f5618 and Strawberry-Eat-Mango/PCT_Pytorch f6ff893d64ca.

Imports ask for timm, torchvision, einops, scipy and loguru. Widths are the repositories' own, or a small
model's where those are a toy's; a few layers deep.
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
from benchmarks.libraries.owns import _true
from benchmarks.libraries.repos import _of_next
from benchmarks.libraries.senses import _floats

NAMES = Path(__file__).parents[1].joinpath("fresh", "libraries_14.txt").read_text().split()
_LAYERS = 3


def _decisions(home: Any) -> Built:
    """States, actions and returns of a walker; as wide as GPT-2's smallest relatives."""
    model = home.DecisionTransformer(17, 6, _LAYERS, 512, 256, 8, 0.1)
    times, states, actions, returns = _ids(64, 256), _some(64, 256, 17), _some(64, 256, 6), _some(64, 256, 1)
    return Built(model, lambda: functional.mse_loss(model(times, states, actions, returns)[1], actions))


def _vit(home: Any) -> Built:
    model = home.VisionTransformer(3, 384, _LAYERS, 6, 4, 224, 16, 1000)
    return _of_classes(model, _some(64, 3, 224, 224))


def _gpt_plus(home: Any) -> Built:
    model = home.GPTLanguageModel(50304, 768, 1024, None, 12, 4, _LAYERS, False, 0.1)
    ids = _ids(8, 1024)
    return Built(model, lambda: _of_next(model(ids), ids))


def _modern(home: Any) -> Built:
    """Queries in groups and normalized, as its readme has them."""
    config = home.ModernGPTConfig(
        n_layer=_LAYERS, n_head=12, n_embd=768, n_kv_head=4, qk_norm=True, dropout=0.1, gqa_broadcast="repeat"
    )
    model, ids = home.ModernGPT(config), _ids(8, 1024)
    return Built(model, lambda: model(ids, ids)[1])


def _sessions(home: Any) -> Built:
    """Items, sessions and times of day: queries and keys get the times beside."""
    model = home.BERT4Rec(20000, 200, 32, num_layers=_LAYERS, temporal_dim=64)
    items, stamps = _ids(128, 200), _some(128, 200)
    return Built(model, lambda: _of_next(model(items, items, stamps), items))


def _original(home: Any) -> Built:
    """Log-probabilities against smoothed words, as in training_script.py."""
    model = home.Transformer(512, 16000, 16000, 8, _LAYERS, 0.1)
    source, target, smooth = _ids(32, 128), _ids(32, 128), _some(32 * 128, 16000)
    masks = (_true(32, 1, 1, 128), _true(32, 1, 128, 128))
    judge = nn.KLDivLoss(reduction="batchmean")
    return Built(model, lambda: judge(model(source, target, *masks), smooth))


def _evans(home: Any) -> Built:
    model = home.Transformer(16000, 16000, 512, _LAYERS, 8, 0.1)
    source, target = _ids(32, 128), _ids(32, 128)
    masks = (_true(32, 1, 128), _true(32, 128, 128))
    return Built(model, lambda: _of_next(model(source, target, *masks), target))


def _bert(home: Any) -> Built:
    """As many words masked as in config/pretrain.json, and the sentence pair."""
    config = import_module("models").Config(vocab_size=30522, n_layers=_LAYERS)
    model, ids, masked, pairs = home.BertModel4Pretrain(config), _ids(16, 512), _ids(16, 20), _ids(16)

    def loss() -> Tensor:
        words, pair = model(ids, ids, ids, masked)
        told = functional.cross_entropy(words.transpose(1, 2), masked, reduction="none")
        return (told * _floats(16, 20)).mean() + functional.cross_entropy(pair, pairs)

    return Built(model, loss)


def _b16(home: Any) -> Built:
    sizes = {"mlp_dim": 3072, "num_heads": 12, "num_layers": _LAYERS}
    rates = {"attention_dropout_rate": 0.0, "dropout_rate": 0.1}
    config = Namespace(
        patches={"size": (16, 16)}, hidden_size=768, transformer=sizes | rates, classifier="token"
    )
    model, pictures, labels = home.VisionTransformer(config, 224, 1000), _some(64, 3, 224, 224), _ids(64)
    return Built(model, lambda: model(pictures, labels))


def _retnet(home: Any) -> Built:
    """On what stands for words, as in example.py."""
    model, given = home.RetNet(_LAYERS, 512, 2048, 8), _floats(8, 512, 512)
    return Built(model, lambda: functional.mse_loss(model(given), given))


def _speech(home: Any) -> Built:
    """egs/aishell: four frames of sound in one; nothing is padded."""
    sizes = (8, 64, 64, 512, 2048)
    parts = [import_module(name) for name in ("encoder", "decoder")]
    encoder = parts[0].Encoder(320, _LAYERS, *sizes)
    decoder = parts[1].Decoder(1, 2, 4233, 512, _LAYERS, *sizes)
    decoder.preprocess = lambda words: (words, words)
    for part in parts:
        vars(part).update(
            get_non_pad_mask=_kept, get_attn_pad_mask=lambda x, _, more: _true(len(x), more, x.size(1))
        )
    model = home.Transformer(encoder, decoder)
    sounds, lengths, words = _floats(16, 256, 320), _ids(16), _ids(16, 32)

    def loss() -> Tensor:
        out, truth = model(sounds, lengths, words)
        return functional.cross_entropy(out.view(-1, out.size(2)), truth.contiguous().view(-1))

    return Built(model, loss)


def _kept(x: Tensor, **_: Any) -> Tensor:
    return x.new_ones((*x.shape[:2], 1), dtype=torch.float32)


def _tts(home: Any) -> Built:
    """Its networks are called by ``forward`` in the model: no module shows around them."""
    model, words, sounds = home.Model(), _ids(16, 128), _floats(16, 512, 80)
    places = _ids(16, 512)

    def loss() -> Tensor:
        first, last, *_ = model(words, sounds, words, places)
        return functional.l1_loss(first, sounds) + functional.l1_loss(last, sounds)

    return Built(model, loss)


def _music(home: Any) -> Built:
    """With relative attention, as train.py's ``-rpr``."""
    vars(home)["get_device"] = lambda: torch.device("meta")
    runs = home.TransformerEncoderRPR.forward
    home.TransformerEncoderRPR.forward = lambda self, *given, is_causal, **rest: runs(self, *given, **rest)
    home.DummyDecoder.forward = lambda self, target, memory, **_: memory  # newer arguments of torch.nn's
    model, ids = home.MusicTransformer(_LAYERS, 8, 512, 1024, 0.1, 1024, rpr=True), _ids(4, 1024)
    return Built(
        model, lambda: functional.cross_entropy(model(ids).reshape(-1, home.VOCAB_SIZE), ids.flatten())
    )


def _series(home: Any) -> Built:
    """The buildings of its first challenge: 672 hours in four chunks."""
    model = home.Transformer(38, 256, 8, 32, 32, 8, 2, attention_size=64, pe="original")
    given, wanted = _floats(32, 672, 38), _floats(32, 672, 8)
    return Built(model, lambda: functional.mse_loss(model(given), wanted))


def _trajectories(home: Any) -> Built:
    """Steps of pedestrians, in a large batch."""
    model = home.IndividualTF(2, 3, 3, N=_LAYERS)
    seen, told = _some(512, 8, 2), _some(512, 12, 3)
    masks = (_true(512, 1, 8), _true(512, 12, 12))

    def loss() -> Tensor:
        out = model(seen, told, *masks)
        apart = out[:, :, :2].contiguous().view(-1, 2) - told[:, :, :2].contiguous().view(-1, 2)
        return apart.norm(dim=1).mean() + out[:, :, 2].abs().mean()

    return Built(model, loss)


def _mae(home: Any) -> Built:
    model = home.MAE_ViT(96, 4, 384, _LAYERS, 6, 2, 6)
    pictures = _some(64, 3, 96, 96)

    def loss() -> Tensor:
        drawn, mask = model(pictures)
        return torch.mean((drawn - pictures) ** 2 * mask) / 0.75

    return Built(model, loss)


def _dit(home: Any) -> Built:
    """config/celebhq.yaml."""
    config = {"patch_size": 2, "num_layers": _LAYERS, "hidden_size": 768, "num_heads": 12, "head_dim": 64}
    model = home.DIT(32, 4, config | {"timestep_emb_dim": 768})
    latents, times = _floats(16, 4, 32, 32), _ids(16)
    return Built(model, lambda: functional.mse_loss(model(latents, times), latents))


def _seemore(_: Any) -> Built:
    """A picture as one token before the words."""
    with mock.patch("builtins.open", mock.mock_open(read_data="words")):
        home = import_module("seeMoE")
    vars(home).update(device="meta", dropout=0.1)
    model = home.VisionMoELanguageModel(512, 512, 8192, _LAYERS, 96, 16, 8, 2, 0.1, 0.1, 8, 2)
    pictures, words = _some(16, 3, 96, 96), _ids(16, 255)
    return Built(model, lambda: model(pictures, words, words)[1])


def _gpt2(home: Any) -> Built:
    """Words of its own reading of a corpus, causal."""
    model = home.Transformer(_LAYERS, 0, 32000, 512, 12, 768, bidirectional=False)
    ids = _ids(8, 512)
    return Built(model, lambda: functional.cross_entropy(model(ids).transpose(1, 2), ids, ignore_index=0))


def _swin(home: Any) -> Built:
    with torch.device("cpu"):  # numbers of places
        model = home.swin_t(layers=(2, 2, 2, 2))
    return _of_classes(model, _some(16, 3, 224, 224))


def _caption(home: Any) -> Built:
    """configuration.py, but for a ResNet of 50 layers."""
    backbone, decoder = import_module("models.backbone"), import_module("models.transformer")
    vars(decoder)["generate_square_subsequent_mask"] = lambda size: _some(size, size)
    vars(backbone)["is_main_process"] = lambda: False
    config = import_module("configuration").Config()
    config.backbone, config.enc_layers, config.dec_layers = "resnet50", _LAYERS, _LAYERS
    model, _ = home.build_model(config)
    nested = import_module("models.utils").NestedTensor
    pictures, words = _some(8, 3, 288, 288), _ids(8, 128)
    given = nested(pictures, _true(8, 288, 288))
    masks = _true(8, 128)
    return Built(model, lambda: functional.cross_entropy(model(given, words, masks).permute(0, 2, 1), words))


def _unet(home: Any) -> Built:
    model, latents, words, times = home.Diffusion(), _some(4, 4, 64, 64), _some(4, 77, 768), _some(1, 320)
    return Built(model, lambda: functional.mse_loss(model(latents, words, times), latents))


def _labels(home: Any) -> Built:
    """CelebA's sizes of config.py."""
    config = Namespace(
        d_model=512, num_heads=8, num_layers=_LAYERS, dropout_rate=0.1, patch_size=2, H=32, W=32,
        in_channels=4, out_channels=4, cfg_dropout_rate=0.1, num_classes=10, maxlen=256,
    )  # fmt: skip
    model, latents, ids = home.DiT(config), _floats(16, 4, 32, 32), _ids(16)
    model.float()(latents.float(), ids, ids)  # tells its layers how wide they are
    return Built(model, lambda: functional.mse_loss(model(latents, ids, ids), latents))


def _items(home: Any) -> Built:
    """Positive and negative items, as in trainer.py."""
    model = home.SASRec(20000, _LAYERS, 256, 200, 0.2, False, "meta")
    model.get_padding_mask = lambda seqs: seqs == 0
    own = import_module("model.embedding_layer")
    vars(own)["torch"] = Namespace(**vars(torch) | {"tensor": lambda x: torch.arange(len(x), device="meta")})
    seen, liked, other = _ids(128, 200), _ids(128, 200), _ids(128, 200)

    def loss() -> Tensor:
        good, bad = model(seen, positive_seqs=liked, negative_seqs=other)
        judge = functional.binary_cross_entropy_with_logits
        return judge(good, torch.ones_like(good)) + judge(bad, torch.zeros_like(bad))

    return Built(model, loss)


def _proteins(home: Any) -> Built:
    model = home.ProteinBERT(depth=_LAYERS)
    residues, notes, mask = _ids(8, 1024), _some(8, 8943), _true(8, 1024)

    def loss() -> Tensor:
        words, told = model(residues, notes, mask=mask)
        return _of_next(words, residues) + functional.binary_cross_entropy_with_logits(told, notes)

    return Built(model, loss)


def _experts(home: Any) -> Built:
    """As wide as it is; two layers without experts, two with."""
    config = home.Qwen2Config(layers=4)
    model, ids = home.Qwen2ForCausalLM(config), _ids(4, 1024)
    return Built(model, lambda: model(ids, labels=ids)[0])


def _points(home: Any) -> Built:
    """Clouds of 1024 points."""
    model, points, labels = home.NPct(Namespace(dropout=0.5)), _some(32, 3, 1024), _ids(32)
    return Built(model, lambda: functional.cross_entropy(model(points), labels))


_HOMES: dict[str, tuple[str, Callable[[Any], Built]]] = dict(
    zip(
        NAMES,
        (
            ("decision_transformer.model", _decisions),
            ("model", _vit),
            ("src.model.gpt_language_model.gpt", _gpt_plus),
            ("model.modern_gpt", _modern),
            ("models.bert4rec", _sessions),
            ("models.definitions.transformer_model", _original),
            ("Models", _evans),
            ("pretrain", _bert),
            ("models.modeling", _b16),
            ("retnet", _retnet),
            ("transformer", _speech),
            ("network", _tts),
            ("model.music_transformer", _music),
            ("tst.transformer", _series),
            ("individual_TF", _trajectories),
            ("model", _mae),
            ("model.transformer", _dit),
            ("modules", _seemore),
            ("gpt2.modeling", _gpt2),
            ("swin_transformer_pytorch.swin_transformer", _swin),
            ("models.caption", _caption),
            ("diffusion", _unet),
            ("torch_src.diffusion_transformer", _labels),
            ("model", _items),
            ("protein_bert_pytorch.protein_bert_pytorch", _proteins),
            ("model", _experts),
            ("model.pct_cls", _points),
        ),
        strict=True,
    )
)
#: Where in a clone its modules are.
_UNDER = {
    "Jamie-Stirling_RetNet": "src",
    "kaituoxu_Speech-Transformer": "src/transformer",
    "affjljoo3581_GPT2": "src",
    "hkproj_pytorch-stable-diffusion": "sd",
    "seanswyi_sasrec-pytorch": "src",
}
#: What a clone asks for and its model does not: training, files, drawing.
_UNUSED: dict[str, tuple[str, ...]] = {
    "AviSoori1x_seemore": ("pandas", "mlflow"),
    "Andrei-Aksionov_nanoGPTplus": ("tqdm",),
    "dhlee347_pytorchic-bert": ("fire", "tqdm", "tensorboardX"),
}
#: Packages that import all they have, beside what is asked of them.
_BARE: dict[str, tuple[str, ...]] = {
    "Andrei-Aksionov_nanoGPTplus": ("src", "src.model", "src.model.gpt_language_model"),
    "ShaneLiu04_nanoGPT-Modern": ("model",),
    "theeluwin_session-aware-bert4rec": ("models",),
    "FGiuliari_Trajectory-Transformer": ("transformer",),
}
_STUBS: dict[str, dict[str, dict[str, Any]]] = {
    "Andrei-Aksionov_nanoGPTplus": {"src.utils": {"log_error": None}},
    "gordicaleksa_pytorch-original-transformer": {"utils": {}, "utils.constants": {}},
    "theeluwin_session-aware-bert4rec": {"tools": {}, "tools.utils": {"fix_random_seed": None}},
    "jeonsworld_ViT-pytorch": {"models.configs": {f"get_{x}_config": lambda: None for x in (
        "b16", "b32", "l16", "l32", "h14", "r50_b16")} | {"get_testing": lambda: None}},
    "kaituoxu_Speech-Transformer": {"utils": {
        "IGNORE_ID": -1, "pad_list": None, "get_non_pad_mask": None, "get_attn_pad_mask": None,
        "get_attn_key_pad_mask": lambda seq_k, seq_q, pad_idx: (seq_k == pad_idx)[:, None].expand(
            -1, seq_q.size(1), -1),
        "get_subsequent_mask": lambda seq: torch.triu(
            seq.new_ones((seq.size(1),) * 2, dtype=torch.uint8), 1)[None].expand(len(seq), -1, -1)}},
    "soobinseo_Transformer-TTS": {
        "text": {}, "text.symbols": {"symbols": [*"abcdefghijklmnopqrstuvwxyz .,!?"]},
        "utils": {"get_positional_table": None, "get_sinusoid_encoding_table":
                  lambda rows, width, padding_idx: torch.zeros(rows, width, device="meta")}},
    "gwinndr_MusicTransformer-Pytorch": {
        "utilities": {}, "utilities.constants": {"VOCAB_SIZE": 390},
        "utilities.device": {"get_device": None}},
    "Strawberry-Eat-Mango_PCT_Pytorch": {"util": {"sample_and_group": None}},
    "FGiuliari_Trajectory-Transformer": {"transformer.batch": {"subsequent_mask": None}},
    "dhlee347_pytorchic-bert": {"train": {}, "tokenization": {}, "optim": {}},
}  # fmt: skip
#: What reads numbers while it is built.
_OF_NUMBERS: tuple[str, ...] = (
    "Jamie-Stirling_RetNet", "SamLynnEvans_Transformer", "IcarusWizard_MAE",
    "theeluwin_session-aware-bert4rec", "lucidrains_protein-bert-pytorch", "maxjcohen_transformer",
)  # fmt: skip
#: What asks for single precision.
_SINGLE: tuple[str, ...] = (
    "explainingai-code_DiT-PyTorch", "VachanVY_diffusion-transformer", "wise233_qwen2.5-MoE-from-scratch",
    "kaituoxu_Speech-Transformer", "soobinseo_Transformer-TTS", "Jamie-Stirling_RetNet",
    "maxjcohen_transformer",
    "dhlee347_pytorchic-bert", "seanswyi_sasrec-pytorch",
)  # fmt: skip
