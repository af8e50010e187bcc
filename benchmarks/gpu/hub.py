"""Training steps of models of `transformers` on a real GPU, each kernel with what it is for.

``python -m benchmarks.gpu.hub --out DIR --minutes 3 [NAME ...]`` records the architectures of benchmarks/hub
and benchmarks/fresh, several at once: times are of a shared GPU and say nothing; names, shapes and order are
those of the libraries. What a kernel is for is said as on the meta device: by the range of the function or of
its autograd node that the launch falls in (``benchmarks.hub.recording``). The ranges are taken out of what is
written: ``NAME.json.xz`` is what a profiler with shapes writes of an unmarked step, but for the sequence
numbers of the engine's ranges, which a hook before a node takes away; the truth is beside it, as ``truth``.

One process for each model: a failed assertion on the device ends it alone.
"""

# PyTorch's functions that take anything return anything.
# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import argparse
import json
import lzma
import os
import re
import signal
import sys
import tempfile
import time
import warnings
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule

from benchmarks.hub import models
from benchmarks.hub.models import first_loss
from benchmarks.hub.recording import _LOOKS, HubCapture, Marks, loss_of
from benchmarks.hub.truth import truth_of
from benchmarks.hub.values import held
from tests.zoo.capture import PRIVATE, Note, State

#: Seconds of one model; what hangs is ended.
_MOST_S = 60
#: Of the GPU's memory, for one process.
_MEMORY_FRAC = 0.3
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")


class RealMarks(Marks):
    """Marks functions that compute."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _LOOKS:
            return func(*args, **kwargs)
        state = self.capture.state
        truth = self._truth(name, args, kwargs)
        with self.capture.inside(Note("part", State(truth, phase=state.phase, module=state.module))):
            return func(*args, **kwargs)


def record(name: str, device: str, *, compiled: bool = False) -> dict[str, Any]:
    """The first way of ``name`` that takes a step: its events and their truth. Raises what the first raised.

    ``compiled``: under torch.compile, without a truth: marks would change what is compiled.
    """
    failed: Exception | None = None
    models._made = _made_on(device)
    for model, batch in models.ways(name):
        try:
            run = _compiled if compiled else _recorded
            return run(model, _filled(model, batch, device), device)
        except Exception as error:
            failed = failed or error
            del model
            if device == "cuda":
                torch.cuda.empty_cache()
    raise failed or LookupError(name)


def _made_on(device: str) -> Any:
    def made(make: Any, config: Any, dtype: torch.dtype, attentions: tuple[str, ...]) -> nn.Module:
        before = torch.get_default_dtype()
        for attention in attentions:
            try:
                with torch.device(device):
                    return make(config, dtype=dtype, attn_implementation=attention).to(device)
            except (ValueError, ImportError):
                if attention == attentions[-1]:
                    raise
            finally:
                torch.set_default_dtype(before)
        raise AssertionError

    return made


def _filled(model: nn.Module, batch: Mapping[str, Any], device: str) -> dict[str, Any]:
    """The batch with values: those that it carries, else random ones."""
    config = getattr(model, "config", None)
    text = getattr(config, "text_config", None) or config
    vocabulary = getattr(text, "vocab_size", None)
    most = min(vocabulary if isinstance(vocabulary, int) else 100, 1000)

    def value(key: str, given: Any) -> Any:
        if not isinstance(given, Tensor):
            return given
        if (known := held(given)) is not None:
            return known.to(device)
        if given.dtype.is_floating_point:
            return torch.randn(given.shape, dtype=given.dtype, device=device)
        if "mask" in key:
            return torch.ones(given.shape, dtype=given.dtype, device=device)
        high = 2 if given.dim() == 1 or "type" in key else most
        return torch.randint(min(10, high - 1), high, given.shape, dtype=given.dtype, device=device)

    return {key: value(key, given) for key, given in batch.items()}


def _recorded(model: nn.Module, batch: dict[str, Any], device: str) -> dict[str, Any]:
    capture = HubCapture(names={module: path for path, module in model.named_modules()})
    capture.modules = capture.names
    capture.marks = RealMarks(capture, truth_of)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device == "cuda")

    def step() -> None:
        assert capture.marks is not None
        with capture.phase("forward", ""), capture.marks:
            lost = loss_of(model, batch)
        with capture.phase("backward", ""):
            lost.backward()
        with capture.phase("optimizer", "optimizer"):
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    with ExitStack() as stack:
        stack.enter_context(capture.listening())
        trace = _profiled(step, device)
    return trace | {"truth": taken_out(trace, capture.notes) | _facts(model)}


def _compiled(model: nn.Module, batch: dict[str, Any], device: str) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device == "cuda")
    forward = torch.compile(model)

    def step() -> None:
        first_loss(forward(**batch)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    step()
    return _profiled(step, device) | {"truth": _facts(model)}


def _facts(model: nn.Module) -> dict[str, Any]:
    return {"model": type(model).__name__, "dtype": str(next(model.parameters()).dtype)}


def _profiled(step: Callable[[], None], device: str) -> dict[str, Any]:
    """Two steps, after one without a profiler and one that starts it."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
    step()
    plan = schedule(wait=0, warmup=1, active=2, repeat=1)
    with profile(activities=activities, record_shapes=True, schedule=plan, acc_events=True) as profiler:
        for _ in range(3):
            step()
            if device == "cuda":
                torch.cuda.synchronize()
            profiler.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_text(encoding="utf-8", errors="replace"), strict=False)


def taken_out(trace: dict[str, Any], notes: Sequence[Note]) -> dict[str, Any]:
    """Takes the private ranges out of ``trace``: what each correlation is for, and when each module ran."""
    events: list[dict[str, Any]] = trace["traceEvents"]
    private = [e for e in events if e.get("ph") == "X" and str(e.get("name", "")).startswith(PRIVATE)]
    trace["traceEvents"] = [e for e in events if not str(e.get("name", "")).startswith(PRIVATE)]
    on_host = [e for e in private if e.get("cat") == "user_annotation"]
    launches = [e for e in events if e.get("cat") in _LAUNCHES and "correlation" in e.get("args", {})]
    states: dict[tuple[Any, ...], int] = {}
    kernels: dict[str, int] = {}
    for launch, inner in innermost(on_host, launches):
        state = notes[int(inner["name"].removeprefix(PRIVATE))].state if inner else State("")
        key = (state.component, state.phase, state.module, state.strict)
        kernels[str(launch["args"]["correlation"])] = states.setdefault(key, len(states))
    modules = []
    for event in on_host:
        note = notes[int(event["name"].removeprefix(PRIVATE))]
        if note.kind == "module":
            modules.append([event["ts"], event["dur"], event["tid"], note.text, note.state.module])
    return {"states": list(states), "kernels": kernels, "modules": modules}


def innermost(
    ranges: Iterable[dict[str, Any]], points: Iterable[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Each point with the innermost range of its thread that it begins in: ranges of a thread nest."""
    by_thread: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in ranges:
        by_thread[event["tid"]].append(event)
    ups: dict[Any, list[int]] = {}
    for thread, events in by_thread.items():
        events.sort(key=lambda e: (e["ts"], -e["dur"]))
        up: list[int] = []
        stack: list[int] = []
        for at, event in enumerate(events):
            while stack and events[stack[-1]]["ts"] + events[stack[-1]]["dur"] <= event["ts"]:
                stack.pop()
            up.append(stack[-1] if stack else -1)
            stack.append(at)
        ups[thread] = up
    starts = {thread: [e["ts"] for e in events] for thread, events in by_thread.items()}
    for point in points:
        thread, ts = point["tid"], point["ts"]
        at = bisect_right(starts.get(thread, []), ts) - 1
        while at >= 0 and by_thread[thread][at]["ts"] + by_thread[thread][at]["dur"] < ts:
            at = ups[thread][at]
        yield point, by_thread[thread][at] if at >= 0 else None


def file_of(folder: Path, name: str) -> Path:
    """Where a recording lies."""
    return folder / f"{re.sub(r'[^a-zA-Z0-9_.-]', '_', name)}.json.xz"


# -- many at once ---------------------------------------------------------------------------------------


def child(name: str, given: argparse.Namespace) -> None:
    """One model, in a process of its own."""
    signal.alarm(_MOST_S * (2 if given.compiled else 1))
    torch.set_num_threads(2)
    warnings.simplefilter("ignore")
    try:
        if given.device == "cuda":
            torch.cuda.set_per_process_memory_fraction(_MEMORY_FRAC)
        torch.manual_seed(0)
        trace = record(name, given.device, compiled=given.compiled)
        packed = lzma.compress(json.dumps(trace, separators=(",", ":")).encode(), preset=3)
        file_of(given.out, name).write_bytes(packed)
        said = f"{len(trace['traceEvents'])} events, {len(packed) / 1e3:.0f} kB"
    except Exception as error:
        said = f"not recorded: {type(error).__name__}: {error}".splitlines()[0][:160]
    print(f"{name}: {said}", flush=True)


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--at-once", type=int, default=10)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compiled", action="store_true", help="under torch.compile, without a truth")
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    given.out.mkdir(parents=True, exist_ok=True)
    __import__("transformers").logging.set_verbosity_error()
    names = [n for n in given.names if not file_of(given.out, n).exists()]
    running: dict[int, str] = {}
    while names or running:
        late = time.monotonic() > until
        if late:
            names = []
            for pid in running:
                os.kill(pid, signal.SIGKILL)
        while names and len(running) < given.at_once:
            name = names.pop(0)
            pid = os.fork()
            if not pid:
                child(name, given)
                os._exit(0)
            running[pid] = name
        if running:
            pid, status = os.wait()
            name = running.pop(pid)
            if status:
                print(f"{name}: ended by {status}", flush=True)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
