"""A GPU whose times follow a law, so that what a change saves is known beforehand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.measure.fakes import FakeDevice
from tracelens.hardware import find_gpu
from tracelens.measure.cases import AttentionCase, GemmCase
from tracelens.measure.facts import DeviceFacts
from tracelens.measure.journal import Case, Shape
from tracelens.measure.layer_shapes import LayerShape, StepShape
from tracelens.measure.pairs import PairTimes
from tracelens.measure.verify import Source, read_source
from tracelens.measure.verify.meter import CallTime
from tracelens.results.verified import Why

#: Of one microsecond: what an aligned product and one that is not compute.
ALIGNED, ODD = 600e6, 150e6
REST_MS = 0.5  # of a layer: what is no product
OPTIMIZER_MS = 2.0


def call_us(case: Case) -> float:
    """A quarter of the speed where a side is odd; attention at half of it."""
    if isinstance(case, AttentionCase):
        products = 2 if case.direction == "forward" else 5
        flops = 2.0 * products * case.batch * case.heads * case.seq_q * case.keys * case.head_dim
        return flops / (ALIGNED / 2) / (1.0 if case.head_dim % 128 == 0 else 0.8)
    odd = any(side % 8 for side in (case.m, case.n, case.k))
    return case.flops / (ODD if odd else ALIGNED)


def layer_ms(layer: LayerShape) -> float:
    """Its products, its attention, and the rest."""
    cases: list[Case] = [
        GemmCase("x", one.m, one.n, one.k, one.batch, layer.dtype, one.layout) for one in layer.gemms()
    ]
    if not layer.vocab and layer.attention != "math":
        cases += [
            AttentionCase("x", layer.micro_batch, layer.heads, layer.sequence, layer.head_dim, layer.kv_heads,
                          causal=layer.causal, direction=way)
            for way in ("forward", "backward")
        ]  # fmt: skip
    return sum(call_us(case) for case in cases) / 1e3 + REST_MS


def step_ms(step: StepShape) -> float:
    logits = layer_ms(step.layer.changed(vocab=step.vocabulary))
    return step.layers * layer_ms(step.layer) + logits + OPTIMIZER_MS


@dataclass
class Meter:
    """Measures by the law. ``wobble`` moves the second of four turns; ``fails`` names what cannot be done."""

    wobble: float | None = 0.0  # None: too few repeats to tell
    fails: dict[str, str] = field(default_factory=dict)
    interrupt_at: int | None = None  # the how-manieth measurement is interrupted
    asked: list[Any] = field(default_factory=list)

    def calls(self, cases: Sequence[Case]) -> dict[Case, CallTime | str]:
        self._count("calls")
        answers: dict[Case, CallTime | str] = {}
        for case in cases:
            kind = "attention" if isinstance(case, AttentionCase) else "gemm"
            time = CallTime(call_us(case), self.wobble, ("kernel",))
            answers[case] = self.fails.get(kind, time)
        return answers

    def pair(self, now: Shape, then: Shape) -> PairTimes | str:
        kind = "step" if isinstance(now, StepShape) else "logits" if now.vocab else "layer"
        self._count(kind)
        if kind in self.fails:
            return self.fails[kind]
        before, after = (step_ms(one) if isinstance(one, StepShape) else layer_ms(one) for one in (now, then))
        wobble = self.wobble or 0.0
        turns = (1.0, 1.0 + wobble, 1.0, 1.0 - wobble)
        return PairTimes(tuple(before * one for one in turns), (after,) * 4, queued=True)

    def _count(self, what: str) -> None:
        self.asked.append(what)
        if self.interrupt_at is not None and len(self.asked) >= self.interrupt_at:
            raise KeyboardInterrupt


def gpu(
    name: str = "h100-sxm",
    device: str = "NVIDIA H100 80GB HBM3",
    sms: int = 132,
    memory_bytes: int | None = None,
) -> DeviceFacts:
    """What a machine with this GPU says of itself."""
    about = {"name": device, "kind": "cuda", "sms": sms, "memory_bytes": memory_bytes}
    return DeviceFacts(find_gpu(None, override=name), about, {"torch": "2.11.0"})


def code(why: Why) -> str:
    """What programs go by; a text of PyTorch's as it is."""
    return why if isinstance(why, str) else why.code


def codes(whys: Iterable[Why]) -> list[str]:
    return [code(one) for one in whys]


def cuda() -> FakeDevice:
    """A device that claims to be a GPU; nothing is ever run on it."""
    return FakeDevice([1.0], kind="cuda")


def read(raw: dict[str, Any], folder: Path) -> Source:
    """A report that was changed by hand."""
    path = folder / "changed.json"
    path.write_text(json.dumps(raw))
    return read_source(path)
