"""Which module each kernel of a step belongs to, found another way than tracelens finds it.

A second run of the same step, under plain ``torch.profiler``, in which nothing overlaps: before and after
each module's forward, and each autograd node of its backward, the GPU is waited for and a range is opened or
closed. A kernel then belongs to the innermost range its launch falls in, and its execution must lie in the
same one; where the two disagree the module is unknown ("?").

Which autograd nodes are a module's is read from the graph itself: those between its outputs and its inputs
that no inner module has. What the engine adds up between nodes is nobody's ("?"). No sequence number, no
order and no operator's name is used, nor code of tracelens.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.gpu.training import Training

PREFIX = "truth/"
COLUMNS = ("kernel", "grid", "part", "module", "duration_us")
#: The profiler brings the GPU's clock and the host's together to within some microseconds.
_SLACK_US = 20.0


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of the step, in the order of the launches."""

    name: str
    grid: str  # "132x1x1"
    part: str  # forward | loss | backward | recompute | grad_clip | optimizer | zero_grad | "?"
    module: str  # dotted name; "" outside of every module, "?" unknown
    duration_us: float


class Windows:
    """Ranges with the GPU waited for at both ends, around parts of a step, modules and their nodes."""

    def __init__(self, training: Training, *, modules: bool):
        self._training = training
        self._wait: Callable[[], None] = torch.cuda.synchronize if training.device == "cuda" else lambda: None
        self._names = {id(module): name for name, module in training.model.named_modules() if name}
        self._modules = modules
        self._open: list[tuple[str, Any]] = []  # one list: everything runs one after the other
        self._owners: dict[Any, str] = {}  # autograd node -> module; keeps the nodes alive for the step
        self._inputs: list[tuple[int, set[Any]]] = []
        self._in_backward = False
        self._undo: list[Any] = []

    def __enter__(self) -> Windows:
        self._training.part = self.part
        for module in self._training.model.modules() if self._modules else ():
            if id(module) in self._names:
                self._undo.append(module.register_forward_pre_hook(self._before))
                self._undo.append(module.register_forward_hook(self._after, always_call=True))
        return self

    def __exit__(self, *_: object) -> None:
        self._training.part = lambda name: contextlib.nullcontext()
        while self._undo:
            self._undo.pop().remove()
        self._owners.clear()

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        label = f"{name}/"
        if name == "backward":
            self._hook_nodes()
            self._in_backward = True
            label += "?" if self._modules else ""
        self._begin(label)
        try:
            yield
        finally:
            self._end(label)
            if name == "backward":
                self._in_backward = False
                self._owners.clear()

    def _begin(self, name: str) -> None:
        self._wait()
        opened = record_function(PREFIX + name)
        opened.__enter__()
        self._open.append((name, opened))

    def _end(self, name: str) -> None:
        if not any(begun == name for begun, _ in self._open):
            return
        self._wait()
        while self._open:
            last, opened = self._open.pop()
            opened.__exit__(None, None, None)  # above it are only ranges that an exception left open
            if last == name:
                return

    # -- forward ----------------------------------------------------------------------------------

    def _label(self, module: nn.Module) -> str:
        return f"{'recompute' if self._in_backward else 'forward'}/{self._names[id(module)]}"

    def _before(self, module: nn.Module, args: Any) -> None:
        self._inputs.append((id(module), {node for node in map(_node, _tensors(args)) if node is not None}))
        self._begin(self._label(module))

    def _after(self, module: nn.Module, args: Any, result: Any) -> None:
        self._end(self._label(module))
        inputs: set[Any] = set()
        while self._inputs:
            key, inputs = self._inputs.pop()
            if key == id(module):
                break
        if not self._in_backward:
            self._own(map(_node, _tensors(result)), inputs, self._names[id(module)])

    def _own(self, roots: Iterable[Any], inputs: set[Any], name: str) -> None:
        """The nodes from ``roots`` down to ``inputs`` that nobody has yet are ``name``'s."""
        for node in _below(roots, inputs):
            self._owners.setdefault(node, name)

    # -- backward ---------------------------------------------------------------------------------

    def _hook_nodes(self) -> None:
        if self._modules:
            self._own([self._training.root], set(), "")  # the loss, and what else is in no module
        for node, name in self._owners.items():
            label = f"backward/{name}"
            node.register_prehook(lambda _, label=label: self._begin(label))
            node.register_hook(lambda *_, label=label: self._end(label))


def _node(tensor: Tensor) -> Any:
    return tensor.grad_fn


def _below(roots: Iterable[Any], inputs: set[Any]) -> Iterator[Any]:
    """The nodes from ``roots`` down to ``inputs``, each once, without those that store gradients."""
    todo = [node for node in roots if node is not None]
    seen = set(inputs)
    while todo:
        node = todo.pop()
        if node not in seen and not hasattr(node, "variable"):
            seen.add(node)
            yield node
            todo += [inner for inner, _ in node.next_functions if inner is not None]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _tensors(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _tensors(inner)


# -- a step in windows, and what the profiler saw of it ---------------------------------------------------


def observe(training: Training, *, modules: bool, scratch: Path) -> list[Kernel]:
    """One synchronised step. On a CPU operators that compute stand for the kernels.

    ``modules`` False opens ranges around the parts of the step only: hooks would change what is compiled.
    """
    activities = [ProfilerActivity.CPU]
    if training.device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with Windows(training, modules=modules):
        training()  # allocations and first calls, with the ranges open
        with profile(activities=activities):  # starting CUPTI takes its time, and its first kernels
            training()
        with profile(activities=activities) as recording:
            training()
            if training.device == "cuda":
                torch.cuda.synchronize()
    path = scratch / "truth.json"
    recording.export_chrome_trace(str(path))
    # Kineto escapes not every name: bytes that are no UTF-8, control characters
    text = path.read_text(encoding="utf-8", errors="replace")
    events = json.loads(text, strict=False)["traceEvents"]
    path.unlink()
    return place(events, on_gpu=training.device == "cuda")


def place(events: Sequence[Mapping[str, Any]], *, on_gpu: bool) -> list[Kernel]:
    """Each kernel's innermost window, by its launch and by its execution."""
    whole = [event for event in events if event.get("ph") == "X"]
    windows = sorted(
        (
            (float(event["ts"]), float(event["ts"]) + float(event["dur"]), event["name"][len(PREFIX) :])
            for event in whole
            if event.get("cat") == "user_annotation" and str(event["name"]).startswith(PREFIX)
        ),
        key=lambda window: (window[0], -window[1]),
    )
    if not on_gpu:
        return [
            _kernel(event, _innermost(windows, float(event["ts"]), float(event["ts"])))
            for event in _leaf_operators(whole)
        ]
    launches = {
        event["args"]["correlation"]: event
        for event in whole
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    found = []
    for event in whole:
        if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        launch = launches.get(event.get("args", {}).get("correlation"))
        at = float((launch or event)["ts"])
        window = _innermost(windows, at, at) if launch else None
        if window is not None:
            begin, end = float(event["ts"]), float(event["ts"]) + float(event["dur"])
            if begin < window[0] - _SLACK_US or end > window[1] + _SLACK_US:
                window = None
        found.append((at, _kernel(event, window)))
    return [kernel for _, kernel in sorted(found, key=lambda pair: pair[0])]


Window = tuple[float, float, str]


def _innermost(windows: Sequence[Window], begin: float, end: float) -> Window | None:
    """The last to begin of those that hold the time: ranges of one thread of work nest."""
    inner = None
    for window in windows:
        if window[0] > begin:
            break
        if end <= window[1]:
            inner = window
    return inner


def _kernel(event: Mapping[str, Any], window: Window | None) -> Kernel:
    part, _, module = window[2].partition("/") if window else ("?", "", "?")
    grid = event.get("args", {}).get("grid") or []
    shape = "x".join(str(size) for size in grid)
    return Kernel(str(event["name"]), shape, part, module, round(float(event["dur"]), 3))


#: On a CPU: operators that would be kernels on a GPU though others run inside them, and those that compute
#: nothing.
_WHOLE = frozenset(
    f"aten::{name}"
    for name in ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "convolution", "convolution_backward")
)
_VIEWS = ("empty", "as_strided", "view", "_unsafe_view", "resolve_", "resize_", "detach", "alias", "to")


def _leaf_operators(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Operators that compute, none inside another, in order of time."""
    operators = sorted(
        (event for event in events if event.get("cat") == "cpu_op"),
        key=lambda event: (event["tid"], float(event["ts"]), -float(event["dur"])),
    )
    leaves = []
    whole_until = (None, 0.0)  # thread and time
    for event, following in zip(operators, [*operators[1:], None], strict=True):
        name, begin = str(event["name"]), float(event["ts"])
        end = begin + float(event["dur"])
        if whole_until[0] == event["tid"] and begin < whole_until[1]:
            continue
        last = following is None or following["tid"] != event["tid"] or float(following["ts"]) >= end
        if name in _WHOLE:
            whole_until = (event["tid"], end)
            leaves.append(event)
        elif last and name.startswith("aten::") and not name[len("aten::") :].startswith(_VIEWS):
            leaves.append(event)
    return sorted(leaves, key=lambda event: float(event["ts"]))


# -- the file ---------------------------------------------------------------------------------------------


def write(path: Path, kernels: Sequence[Kernel], how: Mapping[str, str]) -> int:
    """A gzipped CSV with ``# name: value`` lines before its header. Returns its bytes."""
    text = io.StringIO()
    for name, value in how.items():
        text.write(f"# {name}: {value}\n")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows((one.name, one.grid, one.part, one.module, one.duration_us) for one in kernels)
    data = gzip.compress(text.getvalue().encode(), mtime=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return len(data)


def read(path: Path) -> tuple[dict[str, str], list[Kernel]]:
    """What ``write`` wrote."""
    lines = gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True)
    notes = [line for line in lines if line.startswith("# ")]
    how = dict(line[2:].rstrip("\n").split(": ", 1) for line in notes)
    rows = csv.DictReader(lines[len(notes) :])
    return how, [
        Kernel(row["kernel"], row["grid"], row["part"], row["module"], float(row["duration_us"]))
        for row in rows
    ]
