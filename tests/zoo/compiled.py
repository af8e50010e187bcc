"""Synthetic training steps of a torch.compiled model with known truth.

The graphs, their fusion, the kernels' names and order are torch.compile's own (see compiled_graphs and
compiled_inductor); the clocks, launches and kernel times are those of tests/synthetic.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.fx import Graph

from tests.kept import kept
from tests.synthetic import gpu
from tests.synthetic.layout import header, in_file_order
from tests.synthetic.spec import ModelSpec, Options, Synthetic
from tests.synthetic.values import BF16, F32, Argument, Value, tensor
from tests.zoo import parts
from tests.zoo.compiled_graphs import annotated_part, capture
from tests.zoo.compiled_inductor import DTYPES, Call, generate
from tests.zoo.compiled_schedule import defer_weight_gradients, with_templates
from tests.zoo.compiled_trace import CompiledRecorder, play
from tests.zoo.compiled_truth import CompiledTruth
from tests.zoo.dims import Attention, Build, Checkpoint, Dims
from tests.zoo.families import FAMILIES
from tests.zoo.layouts import LAYOUTS, Layout
from tests.zoo.recording import InFile, recipe
from tests.zoo.shipped import shipped

_NS = "at::native::(anonymous namespace)::"
_FUSED = f"{_NS}FusedAdamMathFunctor<{BF16}, 4, ({_NS}ADAM_MODE)1, false>"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledOptions:
    """What is compiled, how, and how much of it is recorded."""

    dims: Dims | None = None  # None: the family's own
    attention: Attention | None = None  # None: flash, or math where a family allows nothing else
    checkpoint: Checkpoint = "none"
    steps: int = 2
    first_step: int = 3  # the N of the first ProfilerStep#N
    pad_mm: bool = False  # pad every GEMM that is not aligned to 16 bytes, as Inductor does where it pays
    defer_wgrad: int = 0  # keep back up to so many weight-gradient GEMMs; 0: Inductor's plain order
    template: int = 0  # every so-manieth mm is a Triton template; 0: none is
    shapes: bool = True  # record_shapes=True
    layout: Layout = "eager"  # of the file, not of the program: see layouts
    keep_eager: bool = True  # "graph": the first step is recorded as it is launched
    prelaunched: float = 0.3  # "prelaunched": part of the first step's kernels without a launch
    seed: int = 0  # of the small variation in host times


@dataclass(frozen=True, slots=True)
class CompiledZoo(InFile):
    """A recording of compiled training steps. ``truth`` is by start time."""

    family: str
    options: CompiledOptions
    dims: Dims
    synthetic: Synthetic

    @property
    def truth(self) -> list[CompiledTruth]:
        return [row for row in self.synthetic.truth if isinstance(row, CompiledTruth)]


@dataclass(frozen=True, slots=True)
class Programs:
    """What Inductor made of a model: the calls of both graphs, and the arguments of the compiled function."""

    forward: tuple[Call, ...]
    backward: tuple[Call, ...]
    arguments: tuple[Value, ...]
    parameters: tuple[Value, ...]  # those that get a gradient


def record_compiled(family: str, options: CompiledOptions | None = None) -> CompiledZoo:
    """Record training steps of a compiled model of ``family`` (a key of families.FAMILIES).

    Raises torch._dynamo.exc.Unsupported where torch.compile breaks the model into several graphs, and
    ValueError for tensor parallelism, whose collectives Inductor would write in another way.
    """
    options = options or CompiledOptions()
    dims = options.dims or FAMILIES[family].dims
    if dims.tensor_parallel > 1:
        raise ValueError("compiled recordings know no tensor parallelism")

    def make() -> Synthetic:
        return kept("compiled", (family, options), recipe(), lambda: recorded(family, options))

    return CompiledZoo(family, options, dims, shipped(family, options, make))


def recorded(family: str, options: CompiledOptions) -> Synthetic:
    """The same, compiled now."""
    dims = options.dims or FAMILIES[family].dims
    programs = compile_family(family, dims, options.attention, options.checkpoint, options.pad_mm)
    return play_programs(options, programs)


@functools.cache
def compile_family(
    family: str, dims: Dims, attention: Attention | None, checkpoint: Checkpoint, pad_mm: bool
) -> Programs:
    """Compile a model for a GPU that is not there: takes seconds, so the result is kept."""
    kind = FAMILIES[family]
    found = attention or ("flash" if kind.fused_attention else "math")
    model = kind.build(Build(dims=dims, attention=found, checkpoint=checkpoint))
    batch = {name: given.to("meta") for name, given in kind.batch(dims).items()}
    with annotating():
        return programs_of(model, batch, pad=pad_mm)


def programs_of(
    model: nn.Module,
    batch: dict[str, Tensor],
    *,
    pad: bool = False,
    mark: Callable[[Graph, list[Any]], None] | None = None,
) -> Programs:
    """What Inductor makes of ``model(**batch)``, a loss; ``mark`` as ``capture`` takes it."""
    graphs = capture(model, batch, pad=pad, mark=mark)
    arguments = tuple(
        _value(node.meta["val"]) for node in graphs.forward.graph.nodes if node.op == "placeholder"
    )
    forward = tuple(generate(graphs.forward, graphs.mode, backward=False))
    backward = tuple(generate(graphs.backward, graphs.mode, backward=True))
    return Programs(forward, backward, arguments, _trained(model))


@contextmanager
def annotating() -> Iterator[None]:
    """Parts of a model become annotations of the graph; its other hooks do nothing."""

    def hook(component: str, layer: int | None, role: str | None, strict: bool) -> Any:
        return annotated_part(component, layer, role, strict)

    with parts.listening(part=hook, call=lambda *_: nullcontext(), collective=lambda *_: nullcontext()):
        yield


def play_programs(options: CompiledOptions, programs: Programs) -> Synthetic:
    """A recording of training steps that run the programs."""
    return _Job(options, programs).run()


def _value(given: Any) -> Value:
    return Value(tuple(given.shape), tuple(given.stride()), DTYPES[given.dtype])


def _trained(model: nn.Module) -> tuple[Value, ...]:
    return tuple(_value(parameter) for parameter in model.parameters() if parameter.requires_grad)


def _graph_hash(calls: tuple[Call, ...]) -> str:
    """52 characters such as Inductor names a compiled graph by."""
    digest = hashlib.sha256("".join(call.name for call in calls).encode()).hexdigest()
    return ("f" + digest)[:52]


class _Job:
    """A training loop over a compiled model."""

    def __init__(self, options: CompiledOptions, programs: Programs) -> None:
        self.options, self.programs = options, programs
        plain = Options(steps=options.steps, first_step=options.first_step, module_frames=False,
                        shapes=options.shapes, seed=options.seed)  # fmt: skip
        self.rec = CompiledRecorder(plain)
        self.forward, self.backward = list(programs.forward), list(programs.backward)
        if options.defer_wgrad:
            self.backward = defer_weight_gradients(self.backward, held=options.defer_wgrad)
        if options.template:
            self.forward = with_templates(self.forward, every=options.template)
            self.backward = with_templates(self.backward, every=options.template)

    def run(self) -> Synthetic:
        rec, options = self.rec, self.options
        for index in range(options.steps):
            rec.step = options.first_step + index
            with rec.annotation(f"ProfilerStep#{rec.step}"):
                self._step()
            rec.spend(60_000)
        rec.synchronize()
        truth = sorted(rec.truth, key=lambda row: (row.start_ns, row.correlation))
        synthetic = Synthetic(ModelSpec(), rec.options, header(rec.options), in_file_order(rec), truth)
        if options.layout != "eager":
            keep = {"keep_eager": options.keep_eager, "prelaunched": options.prelaunched}
            synthetic = LAYOUTS[options.layout](synthetic, **keep)
        return synthetic

    def _step(self) -> None:
        rec = self.rec
        with (
            rec.at(phase="optimizer", component="optimizer"),
            rec.annotation("Optimizer.zero_grad#AdamW.zero_grad"),
        ):
            rec.spend(30_000)
        sequence = rec.sequence
        rec.sequence += 1
        self._forward(sequence)
        with (
            rec.at(phase="backward", component="loss"),
            rec.op("aten::ones_like", (tensor((), F32), 6, 0, None, False, 1)),
            rec.op("aten::fill_", (tensor((), F32), 1.0)),
        ):
            rec.launch(gpu.pointwise("fill", 1, 4), strict=False)
        with rec.on_autograd_thread():
            self._backward(sequence)
        with rec.at(phase="optimizer", component="optimizer"):
            self._optimizer()

    def _forward(self, sequence: int) -> None:
        rec = self.rec
        with rec.op("TorchDynamo Cache Lookup", None):
            rec.spend(40_000)
        with rec.op("Torch-Compiled Region: 0/0", None):
            for name in ("Pregraph bytecode", "AOTDispatcher Runtime Wrapper Prologue"):
                with rec.op(name, None):
                    rec.spend(12_000)
            with rec.op("CompiledFunction", self.programs.arguments, sequence=sequence) as event:
                event.flow = ("s", sequence, "fwdbwd")
                self._graph(self.programs.forward, self.forward, backward=False)

    def _backward(self, sequence: int) -> None:
        rec = self.rec
        name = "CompiledFunctionBackward"
        with (
            rec.op(f"autograd::engine::evaluate_function: {name}", sequence=sequence, forward_thread=1),
            rec.op(name, (tensor((), F32),), sequence=sequence, forward_thread=1) as event,
        ):
            event.flow = ("f", sequence, "fwdbwd")
            self._graph(self.programs.backward, self.backward, backward=True)
        for parameter in self.programs.parameters:
            name = "torch::autograd::AccumulateGrad"
            with (
                rec.op(f"autograd::engine::evaluate_function: {name}"),
                rec.op(name, (parameter,)),
                rec.op("aten::detach", (parameter,)),
            ):
                rec.leaf("detach", parameter)

    def _graph(self, original: tuple[Call, ...], calls: list[Call], *, backward: bool) -> None:
        rec = self.rec
        with rec.annotation(f"## Call CompiledFxGraph {_graph_hash(original)} ##"):
            rec.spend(30_000)
            play(rec, calls, backward=backward)

    def _optimizer(self) -> None:
        rec, gradients = self.rec, list(self.programs.parameters)
        steps = [tensor((), F32) for _ in gradients]
        with rec.annotation("Optimizer.step#AdamW.step"):
            with rec.op("aten::_foreach_add_", (steps, 1)):
                functor = f"{_NS}BinaryOpScalarFunctor<float, 1, 1, 0>, std::plus<float>, float"
                rec.launch(gpu.multi_tensor(functor, len(steps), 8 * len(steps), 1))
            settings: tuple[Argument, ...] = (0.001, 0.9, 0.999, 0.01, 1e-08, False, False, None, None)
            with rec.op("aten::_fused_adamw_", (*[gradients] * 4, [], steps, *settings)):
                left = sum(gradient.elements for gradient in gradients)
                while left > 0:  # chunk metadata is limited
                    rec.launch(gpu.multi_tensor(_FUSED, min(left, 1 << 25), 14.0 * min(left, 1 << 25), 4))
                    left -= 1 << 25
