"""From a good document to a strange one, the same for the same seed."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable
from typing import Any

NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 7, 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64, 10**30,
    0.5, -0.0, 1e-320, 1e18, 1.7e308, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
TEXTS: tuple[str, ...] = (
    "", " ", "0", "-1", "12", "1e999", "[1, 2]", "[1, 2, ..., 7]", "{", '{"a": 1}', '"', "\\",
    "\ud800", "\udfff x", "\0", "\x1b[31mred", "\u202eabc", "\ufeff", "<script>alert(1)</script>",
    "{{ 7 * 7 }}", "%s %d {0}", "a\nb\r\tc",
    "ä" * 300, "x" * 5000, "(" * 400, "<" * 400, "_1" * 300, "../../etc", "ProfilerStep#",
    "ProfilerStep#" + "9" * 40,
    "ProfilerStep#-1", "ProfilerStep#٣", "nn.Module: ", "nn.Module: X_" + "9" * 30, "void ", "nccl",
    "aten::mm", "ampere_sgemm_0x0_tn", "cutlass_80_tensorop_bf16_s16816gemm_bf16_0x0_0x0_tn_align0",
    "nvjet_tst_0x0_0x0_0x0_v_bz_TNN", "triton_poi_fused_" + "add_" * 200,
    "sm90_xmma_gemm_tilesize0x0x0_stage0",
)  # fmt: skip
CATEGORIES = (
    "cpu_op", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "user_annotation",
    "fwdbwd", "gpu_user_annotation", "python_function", "Kernel", "Operator", "Trace", "", "odd",
)  # fmt: skip
ARGUMENTS = (
    "External id", "external id", "Sequence number", "Fwd thread id", "Input Dims", "Input dims",
    "Input type", "Input Strides", "Concrete Inputs", "correlation", "device", "stream", "grid", "block",
    "shared memory", "registers per thread", "graph node id", "module_fqn", "autograd_phase",
    "Python id", "Python parent id",
    "Python module id", "Collective name", "dtype", "In msg nelems", "Out msg nelems",
    "Process Group Name", "Group size", "Process Group Description", "Process Group Ranks",
)  # fmt: skip
METADATA = (
    "schemaVersion", "deviceProperties", "computeProperties", "cuda_runtime_version", "cuda_driver_version",
    "distributedInfo", "record_shapes", "with_stack", "with_modules", "trace_id", "displayTimeUnit",
    "baseTimeNanoseconds", "traceName", "torch_version", "tracelens",
)  # fmt: skip


def value(rnd: random.Random, depth: int = 0) -> Any:
    """Anything that JSON can say, and some that it cannot."""
    kind = rnd.random()
    if kind < 0.45:
        return rnd.choice(NUMBERS)
    if kind < 0.75:
        return rnd.choice(TEXTS)
    if kind < 0.85 or depth > 3:
        return rnd.choice((None, True, False, [], {}))
    if kind < 0.95:
        return [value(rnd, depth + 1) for _ in range(rnd.randint(1, 4))]
    return {rnd.choice(TEXTS): value(rnd, depth + 1) for _ in range(2)}


def number(rnd: random.Random, near: Any) -> Any:
    """Another number, often one near the old."""
    if isinstance(near, bool) or not isinstance(near, int | float) or rnd.random() < 0.4:
        return rnd.choice(NUMBERS)
    return rnd.choice(
        (near + 1, near - 1, -near, near * 2, near * 1000, near / 3, near * 1e9, near // 1 + 2**32)
    )


def text(rnd: random.Random, old: str) -> str:
    """Another text: from the list, or the old one with numbers and pieces changed."""
    kind = rnd.random()
    if kind < 0.4:
        return rnd.choice(TEXTS)
    if kind < 0.7:
        numbers = ("0", "1", "-1", "00", "9" * 25, "3.5", "")
        return re.sub(r"\d+", lambda found: rnd.choice(numbers) if rnd.random() < 0.5 else found[0], old)
    at, to = sorted(rnd.randint(0, len(old)) for _ in range(2))
    return rnd.choice(
        (old[:at] + old[to:], old[:to] + old[at:], old * 3, old[:at] + rnd.choice(TEXTS) + old[at:])
    )


def anywhere(rnd: random.Random, whole: Any, times: int, *, typed: bool = False) -> Any:
    """Change some places of a JSON value, wherever they lie; ``typed``: only to others of the same type."""
    for _ in range(times):
        holder: Any = None
        key: Any = None
        found = whole
        while isinstance(found, dict | list) and found and (holder is None or rnd.random() < 0.93):
            holder = found
            key = rnd.choice(list(found)) if isinstance(found, dict) else rnd.randrange(len(found))
            found = found[key]
        if holder is not None:
            old = holder[key]
            if typed and old is None and rnd.random() < 0.8:
                continue
            _change(rnd, holder, key, rnd.uniform(0.3, 1) if typed else rnd.random())
            if typed and type(old) is int and type(holder[key]) is float:
                holder[key] = rnd.choice((0, 1, -old, old * 1000, 2**40))
    return whole


def _change(rnd: random.Random, holder: Any, key: Any, kind: float) -> None:
    old = holder[key]
    if kind < 0.12:
        del holder[key]
    elif kind < 0.3:
        holder[key] = value(rnd)
    elif isinstance(old, str):
        holder[key] = text(rnd, old)
    elif isinstance(old, bool):
        holder[key] = not old if rnd.random() < 0.7 else rnd.choice((None, 0, 1, "x"))
    elif old is None:
        holder[key] = rnd.choice((True, False, 0, 1, 64, 0.5, "x", []))
    elif isinstance(old, int | float):
        holder[key] = number(rnd, old)
    elif isinstance(old, list) and old:
        holder[key] = rnd.choice((old[::-1], old * 2, old[:1], old[1:], []))
    elif isinstance(old, dict):
        holder[key] = rnd.choice(({}, dict(reversed(old.items())), dict(list(old.items())[1:])))


# -- traces ---------------------------------------------------------------------------------------------


def _events_changed(rnd: random.Random, events: list[Any]) -> None:
    for _ in range(rnd.choice((1, 3, 30, 200))):
        if not events:
            return
        event = rnd.choice(events)
        if not isinstance(event, dict):
            continue
        kind = rnd.random()
        args = event.get("args")
        if kind < 0.4 and isinstance(args, dict):
            name = rnd.choice(ARGUMENTS) if rnd.random() < 0.5 or not args else rnd.choice(list(args))
            args[name] = value(rnd) if rnd.random() < 0.5 else anywhere(rnd, [args.get(name)], 2)
        elif kind < 0.55:
            name = event.get("name")  # another value's text holds Python's None
            event["name"] = text(rnd, name if isinstance(name, str) else "")
        elif kind < 0.6:
            event["cat"] = rnd.choice(CATEGORIES)
        elif kind < 0.7:
            other = rnd.choice(events)
            event["name"] = other.get("name", "") if isinstance(other, dict) else ""
        elif kind < 0.8:
            key = rnd.choice(("ts", "dur", "pid", "tid", "ph", "id"))
            event[key] = number(rnd, event.get(key)) if rnd.random() < 0.7 else value(rnd)
        else:
            anywhere(rnd, event, 1)


def _events_moved(rnd: random.Random, events: list[Any]) -> None:
    at = rnd.randrange(len(events))
    piece = events[at : at + rnd.choice((1, 10, 200))]
    how = rnd.randrange(5)
    if how == 0:
        del events[at : at + len(piece)]
    elif how == 1:
        events += piece
    elif how == 2:
        rnd.shuffle(events)
    elif how == 3:
        kept = rnd.choice(("kernel", "cpu_op", "python_function", "user_annotation", "cuda_runtime"))
        events[:] = [
            one
            for one in events
            if (isinstance(one, dict) and one.get("cat") == kept) == (kept == "kernel") or rnd.random() < 0.5
        ]
    else:
        events[at] = value(rnd)


def trace(rnd: random.Random, whole: dict[str, Any]) -> bytes:
    """A mutated Kineto document as a file; ``whole`` is used up."""
    how: list[Callable[[], Any]] = [
        lambda: _events_changed(rnd, whole["traceEvents"]),
        lambda: _events_changed(rnd, whole["traceEvents"]),
        lambda: _events_moved(rnd, whole["traceEvents"]),
        lambda: whole.update({rnd.choice(METADATA): value(rnd)}),
        lambda: anywhere(rnd, {key: item for key, item in whole.items() if key != "traceEvents"}, 3),
    ]
    for change in rnd.choices(how, k=rnd.choice((1, 1, 2, 4))):
        if whole["traceEvents"]:
            change()
    return as_bytes(rnd, whole)


def as_bytes(rnd: random.Random, whole: Any) -> bytes:
    """JSON text with what json.dumps would escape too well put back; sometimes cut, flipped or packed."""
    data = json.dumps(whole, ensure_ascii=rnd.random() < 0.8).encode("utf-8", "surrogatepass")
    kind = rnd.random()
    if kind < 0.1:
        letters = bytearray(data)
        for _ in range(rnd.choice((1, 5, 50))):
            letters[rnd.randrange(len(data))] = rnd.choice(b'"\\{}[],:0\xff\x00n')
        data = bytes(letters)
    elif kind < 0.15:
        data = data[: rnd.randrange(len(data))]
    return gzip.compress(data, 1) if rnd.random() < 0.1 else data
