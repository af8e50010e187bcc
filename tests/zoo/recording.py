"""record(): training steps of a family of the zoo, as a trace file with known truth."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from tests.kept import kept, of_package, sources
from tests.synthetic.layout import as_dicts, document
from tests.synthetic.spec import Event, Synthetic, Truth
from tests.zoo.capture import Capture, State, profiled
from tests.zoo.controls import CONTROLS
from tests.zoo.cuda import Rewriter
from tests.zoo.dims import Attention, Build, Checkpoint, Dims
from tests.zoo.families import FAMILIES
from tests.zoo.layouts import LAYOUTS, Layout
from tests.zoo.products import products_of
from tests.zoo.program import Op, parse
from tests.zoo.training import Optimizer, Training
from tests.zoo.writing import write


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooOptions:
    """What is trained and what the recording holds."""

    dims: Dims | None = None  # None: those of the family
    names: Literal["frames", "ranges", "none"] = "frames"
    shapes: bool = True
    attention: Attention = "flash"
    checkpoint: Checkpoint = "none"
    accumulate: int = 1
    optimizer: Optimizer = "fused"
    clip: bool = True
    tensor_parallel: int = 1
    steps: int = 2
    first_step: int = 3
    layout: Layout = "eager"
    keep_eager: bool = True  # "graph": the first step is recorded eagerly
    prelaunched: float = 0.3  # "prelaunched": part of the first step's kernels without a launch
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Program:
    """What a step is before it becomes a file: operators with their launches, truth attached.

    ``sequences`` is the range of autograd's numbers that the step took, ``backward_sequences`` what
    of it each backward took.
    """

    ops: list[Op]
    sequences: tuple[int, int]
    backward_sequences: list[tuple[int, int]]
    dims: Dims


class InFile:
    """What the file of a recording holds."""

    __slots__ = ()
    synthetic: Synthetic

    @property
    def records(self) -> list[Event]:
        return self.synthetic.records

    @property
    def events(self) -> list[dict[str, Any]]:
        return as_dicts(self.records)

    def text(self) -> str:
        """The whole file."""
        return document(self.synthetic)


@dataclass(frozen=True, slots=True)
class Zoo(InFile):
    """A recording. ``truth`` is by start time; of a CUDA graph all kernels share one correlation."""

    family: str
    options: ZooOptions
    dims: Dims
    program: Program
    synthetic: Synthetic

    @property
    def truth(self) -> list[Truth]:
        return self.synthetic.truth


def program_of(family: str, options: ZooOptions) -> Program:
    """Run a step on the meta device and make the CUDA program of it."""
    kind = FAMILIES.get(family) or CONTROLS[family]
    if options.tensor_parallel > 1 and not kind.parallel:
        raise ValueError(f"{family} cannot be split over ranks")
    dims = replace(options.dims or kind.dims, tensor_parallel=options.tensor_parallel)
    attention = options.attention if kind.fused_attention else "math"
    model = kind.build(Build(dims=dims, attention=attention, checkpoint=options.checkpoint))
    capture, rehearsal = Capture(), Capture()
    training = [
        Training(
            model, kind.batch(dims), listener, optimizer=options.optimizer, clip=options.clip,
            accumulate=options.accumulate,
        )
        for listener in (rehearsal, capture)
    ]  # fmt: skip
    with rehearsal.listening():
        products = products_of(model, rehearsal, training[0].step)
    model.zero_grad(set_to_none=True)
    capture.modules = {module: name for name, module in model.named_modules()}

    first = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
    with capture.listening():
        text = profiled(training[1].step)
    last = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
    rewriter = Rewriter(products)
    ops = rewriter.rewrite(parse(text, capture.notes, capture.stopped), State())
    rewriter.finish()
    return Program(ops, (first, last), capture.backward_sequences, dims)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Hundreds of thousands of small objects and no garbage: collecting takes a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def trace_of(family: str, options: ZooOptions, made: Program) -> Zoo:
    """The recording of a program; names, shapes, steps and layout may be chosen again for the same one."""
    synthetic = write(
        made.ops, steps=options.steps, first_step=options.first_step, names=options.names,
        shapes=options.shapes, ranks=made.dims.tensor_parallel, seed=options.seed, sequences=made.sequences,
        backward=made.backward_sequences,
    )  # fmt: skip
    if options.layout != "eager":
        layout = LAYOUTS[options.layout]
        synthetic = layout(synthetic, keep_eager=options.keep_eager, prelaunched=options.prelaunched)
    return Zoo(family, options, made.dims, made, synthetic)


def record(family: str, options: ZooOptions | None = None) -> Zoo:
    """A recording of ``family`` (a key of FAMILIES or CONTROLS), made once and kept."""
    options = options or ZooOptions()
    return kept("zoo", (family, options), recipe(), lambda: recorded(family, options))


def recorded(family: str, options: ZooOptions) -> Zoo:
    """The same, made anew."""
    with _no_collection():
        return trace_of(family, options, program_of(family, options))


def recipe() -> str:
    """What every recording follows from, beside its options."""
    return f"torch {of_package('torch')} {sources('tests/zoo', 'tests/synthetic')}"
