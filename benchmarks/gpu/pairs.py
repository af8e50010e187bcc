"""Before and after: transformer layers and small models in pairs, each changed in one thing.

There are changes that the paper or the arithmetic of tiles calls faster, changes that must come out slower,
changes that should make no difference, and layers compared with themselves, which show the noise.
``expected`` says why a pair is in the list; nothing is judged by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from benchmarks.gpu.model_shapes import MODELS
from tracelens.measure.layer_shapes import LayerShape, StepShape

Number = int | bool | str


@dataclass(frozen=True, slots=True)
class LayerPair:
    """One layer in two shapes. ``change`` names each parameter that differs: (before, after)."""

    model: str
    rule: str  # the kind of change: heads, ffn, hidden, vocabulary, tokens, kv_heads, tensor_parallel...
    expected: str  # faster | slower | same | unknown
    before: LayerShape
    after: LayerShape
    change: dict[str, tuple[Number, Number]]

    @property
    def name(self) -> str:
        """Stable and unique: "gpt3-2.7b heads=32>20 attention=math"."""
        steps = [f"{name}={old}>{new}" for name, (old, new) in self.change.items()] or ["itself"]
        plain = MODELS[self.model][1]
        setting = [
            f"{name}={getattr(self.before, name)}"
            for name in ("attention", "dtype", "tensor_parallel", "sequence", "micro_batch")
            if name not in self.change and getattr(self.before, name) != getattr(plain, name)
        ]
        kind = ["logits"] if self.before.vocab and "vocab" not in self.change else []
        return " ".join((self.model, *kind, *steps, *setting))


def layer_pairs() -> tuple[LayerPair, ...]:
    """Every pair, those first that answer most."""
    return tuple(pair for family in _FAMILIES for pair in family())


#: Changes of a model's shape that `tracelens suggest` could advise, attention in one kernel as it plans it.
ADVISED_RULES = ("heads", "ffn", "hidden", "vocabulary", "tokens", "kv_heads", "tensor_parallel_ffn")


def verified_pairs(count: int = 20) -> tuple[LayerPair, ...]:
    """``count`` savings that are predicted and then measured, of every rule in turn, each of a model that the
    rule has not had yet where there is one; and a control."""
    by_rule: dict[str, list[LayerPair]] = {rule: [] for rule in ADVISED_RULES}
    for one in layer_pairs():
        if one.rule in by_rule and (one.before.attention == "flash" or one.before.vocab):
            by_rule[one.rule].append(one)
    for pairs in by_rule.values():
        seen: set[str] = set()
        fresh = [one for one in pairs if not (one.model in seen or seen.add(one.model))]  # type: ignore[func-returns-value]
        pairs[:] = [*fresh, *(one for one in pairs if one not in fresh)]
    turns = [one for turn in zip_longest(*by_rule.values()) for one in turn if one is not None]
    control = next(one for one in layer_pairs() if one.rule == "control")
    return (*turns[:count], control)


#: Pairs whose numbers of parameters differ by less count as equal; the paper's comparisons do too.
ISO_PARAMETER_FRAC = 0.01
#: Changes of the architecture: others compare unlike jobs, or types.
ARCHITECTURE_RULES = ("heads", "ffn", "hidden", "vocabulary", "kv_heads", "tensor_parallel_ffn")


def equal_parameters(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of measured pairs, the changes of shape that leave the number of parameters alone, the best first."""
    equal = [
        row for row in rows
        if row["change"]
        and abs(row["parameters_frac"] - 1) <= ISO_PARAMETER_FRAC
        and row["rule"] in ARCHITECTURE_RULES
    ]  # fmt: skip
    return sorted(equal, key=lambda row: -row["speedup"])


def cost_us_per_token(ms: float, layer: LayerShape) -> float:
    """GPU time of all ranks of the layer for one token: what pairs of unlike jobs are compared by.

    >>> cost_us_per_token(4.0, LayerShape(1024, 8, 4096, micro_batch=2, sequence=1000, tensor_parallel=2))
    4.0
    """
    return ms * 1e3 * layer.tensor_parallel / layer.tokens


def pair(
    model: str, rule: str, expected: str, base: dict[str, Number] | None = None, **after: Number
) -> LayerPair:
    """``model`` with ``base`` laid over it, against the same with ``after`` laid over that."""
    before = MODELS[model][1].changed(**(base or {}))
    changed = before.changed(**after)
    change = {name: (getattr(before, name), value) for name, value in after.items()}
    return LayerPair(model, rule, expected, before, changed, change)


def _heads() -> Iterator[LayerPair]:
    for attention in ("flash", "math"):  # the paper's figure 1 family, with and without a fused kernel
        base: dict[str, Number] = {"attention": attention}
        for heads, expected in ((20, "faster"), (40, "faster"), (64, "slower")):
            yield pair("gpt3-2.7b", "heads", expected, base, heads=heads)
    for model, heads, expected in (
        ("gpt3-2.7b", 16, "unknown"), ("gpt3-2.7b", 80, "slower"), ("gpt2-xl", 20, "faster"),
        ("gpt2-xl", 10, "unknown"), ("gpt2-xl", 16, "unknown"), ("pythia-1.4b", 32, "slower"),
        ("pythia-1.4b", 8, "unknown"), ("gpt-neox-20b", 48, "faster"), ("gpt3-760m", 12, "faster"),
        ("llama-7b", 64, "slower"), ("bert-large", 8, "faster"), ("vit-so400m-14", 18, "unknown"),
        ("vit-so400m-14", 9, "faster"), ("vit-h-14", 20, "unknown"), ("vit-h-14", 10, "faster"),
    ):  # fmt: skip
        yield pair(model, "heads", expected, heads=heads)


def _ffn() -> Iterator[LayerPair]:
    for before, after, expected in (
        (10922, 10944, "faster"), (10922, 11008, "faster"), (10922, 10848, "faster"),
        (10922, 10880, "faster"), (10922, 10912, "faster"), (10922, 10924, "unknown"),
        (10822, 10880, "faster"), (11022, 11008, "faster"),
        (10923, 10922, "unknown"), (11008, 10922, "slower"), (11008, 11072, "same"),
    ):  # fmt: skip
        yield pair("llama-7b", "ffn", expected, {"ffn": before}, ffn=after)
    for model, before, after, expected in (
        ("tinyllama-1.1b", 5461, 5504, "faster"), ("tinyllama-1.1b", 5632, 5504, "unknown"),
        ("llama-13b", 13653, 13696, "faster"), ("vit-so400m-14", 4304, 4352, "unknown"),
        ("vit-so400m-14", 4304, 4096, "faster"), ("qwen2.5-7b", 18944, 18943, "slower"),
        ("qwen2.5-1.5b", 8960, 8976, "unknown"),
    ):  # fmt: skip
        yield pair(model, "ffn", expected, {"ffn": before}, ffn=after)


def _hidden() -> Iterator[LayerPair]:
    small: dict[str, Number] = {"hidden": 2500, "heads": 25, "ffn": 10000}
    yield pair("gpt3-2.7b", "hidden", "faster", small, hidden=2560, heads=20, ffn=10240)
    yield pair("gpt2-xl", "hidden", "unknown", hidden=1664, heads=26, ffn=6656)
    yield pair("gpt2-xl", "hidden", "faster", hidden=1536, heads=24, ffn=6144)
    odd: dict[str, Number] = {"hidden": 4000, "heads": 40, "ffn": 10667}
    yield pair("llama-7b", "hidden", "faster", odd, hidden=4096, heads=32, ffn=11008)


def _vocabulary() -> Iterator[LayerPair]:
    for model, before, after, expected in (
        ("gpt3-2.7b", 50257, 50304, "faster"), ("gpt2", 50257, 50304, "faster"),
        ("gpt2-xl", 50257, 50304, "faster"), ("gpt3-6.7b", 50257, 50304, "faster"),
        ("gpt2", 50257, 50258, "unknown"), ("gpt3-2.7b", 50264, 50304, "unknown"),
        ("gpt3-2.7b", 50304, 50257, "slower"), ("bert-large", 30522, 30528, "faster"),
        ("bert-large", 30522, 30592, "faster"), ("roberta-large", 50265, 50304, "faster"),
        ("llama-7b", 32000, 32001, "slower"), ("llama-7b", 32000, 32064, "same"),
        ("qwen2.5-1.5b", 151936, 152064, "same"),
    ):  # fmt: skip
        yield pair(model, "vocabulary", expected, {"vocab": before, "micro_batch": 4}, vocab=after)
    sharded: dict[str, Number] = {"vocab": 50260, "tensor_parallel": 4}
    yield pair("gpt3-2.7b", "vocabulary", "faster", sharded, vocab=50432)


def _tokens() -> Iterator[LayerPair]:
    for before, after, expected in ((1, 2, "faster"), (2, 4, "faster"), (3, 4, "unknown"), (4, 5, "unknown")):
        yield pair("gpt3-2.7b", "tokens", expected, {"micro_batch": before}, micro_batch=after)
    yield pair("llama-3-8b", "tokens", "unknown", {"micro_batch": 1}, micro_batch=2)
    yield pair("gpt3-2.7b", "tokens", "slower", sequence=2049)
    yield pair("gpt3-2.7b", "tokens", "unknown", sequence=2000)
    yield pair("gpt2", "tokens", "slower", {"sequence": 1024, "micro_batch": 8}, sequence=1023)
    for sequence in (200, 208, 256):
        yield pair("vit-l-16", "tokens", "unknown", sequence=sequence)
    yield pair("vit-l-16", "tokens", "unknown", micro_batch=66)
    yield pair("bert-base", "tokens", "same", micro_batch=66)


def _kv_heads() -> Iterator[LayerPair]:
    for model, kv_heads, expected in (
        ("llama-7b", 8, "faster"), ("llama-3-8b", 4, "faster"), ("llama-3-8b", 32, "slower"),
        ("qwen2.5-7b", 28, "slower"),
    ):  # fmt: skip
        yield pair(model, "kv_heads", expected, kv_heads=kv_heads)


def _tensor_parallel() -> Iterator[LayerPair]:
    for t in (2, 4, 8):
        yield pair("llama-3-8b", "tensor_parallel", "slower", tensor_parallel=t)
    yield pair("gpt3-2.7b", "tensor_parallel", "slower", {"tensor_parallel": 2}, tensor_parallel=8)
    halves: dict[str, Number] = {"tensor_parallel": 2, "ffn": 10922}
    yield pair("llama-7b", "tensor_parallel_ffn", "faster", halves, ffn=11008)
    eighths: dict[str, Number] = {"tensor_parallel": 8, "ffn": 11008}
    yield pair("llama-7b", "tensor_parallel_ffn", "unknown", eighths, ffn=11264)


def _types() -> Iterator[LayerPair]:
    plain: dict[str, Number] = {"dtype": "fp32", "attention": "math"}
    yield pair("bert-large", "dtype", "faster", plain, dtype="tf32")
    yield pair("bert-large", "dtype", "faster", {"dtype": "tf32", "attention": "math"}, dtype="bf16")


def _controls() -> Iterator[LayerPair]:
    """A layer against itself: the difference that is seen where there is none."""
    for model in ("gpt3-2.7b", "llama-3-8b", "bert-base", "vit-l-16"):
        yield pair(model, "control", "same")


_FAMILIES = (
    _heads, _ffn, _vocabulary, _controls, _hidden, _tokens, _kv_heads, _tensor_parallel, _types,
)  # fmt: skip


# --- whole small training steps -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepPair:
    name: str
    before: StepShape
    after: StepShape
    change: dict[str, tuple[Number, Number]]


def step_pairs() -> tuple[StepPair, ...]:
    """The headline fixes, each alone; two of them together, since savings overlap; and a control."""
    gpt, llama = MODELS["gpt3-2.7b"][1], MODELS["llama-7b"][1]
    odd = gpt.changed(hidden=2500, heads=25, ffn=10000)
    plain = MODELS["bert-large"][1].changed(dtype="fp32", attention="math", micro_batch=4)
    tf32 = plain.changed(dtype="tf32")
    copied = StepShape(gpt, 4, 50257)
    swiglu = StepShape(llama.changed(ffn=10922, micro_batch=2), 4, 32000)
    return (
        StepPair("vocabulary", copied, StepShape(gpt, 4, 50304), {"vocabulary": (50257, 50304)}),
        StepPair("heads", copied, StepShape(gpt.changed(heads=20), 4, 50257), {"heads": (32, 20)}),
        StepPair("swiglu", swiglu, StepShape(llama.changed(ffn=11008, micro_batch=2), 4, 32000),
                 {"ffn": (10922, 11008)}),
        StepPair("hidden", StepShape(odd, 4, 50304), StepShape(gpt.changed(heads=20), 4, 50304),
                 {"hidden": (2500, 2560), "heads": (25, 20), "ffn": (10000, 10240)}),
        StepPair("both", copied, StepShape(gpt.changed(heads=20), 4, 50304),
                 {"vocabulary": (50257, 50304), "heads": (32, 20)}),
        StepPair("dtype", StepShape(plain, 4, 30528), StepShape(tf32, 4, 30528),
                 {"dtype": ("fp32", "tf32")}),
        StepPair("control", copied, copied, {}),
    )  # fmt: skip
