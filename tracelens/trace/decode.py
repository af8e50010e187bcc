"""From the JSON of one event to a typed struct: fast where the event is as expected, patient where not.

Field names come from Kineto (``libkineto/src/output_json.cpp``, ``CuptiActivity.h``) and PyTorch
(``torch/csrc/profiler/collection.cpp``); the 2021 format wrote some of them in lower case.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec import field as renamed

from tracelens.trace import collectives
from tracelens.trace.times import LIMIT_NS

NO_TEXT = collectives.NO_TEXT
Number = int | str


class Args(Struct, gc=False):
    """The arguments any event can carry; -1 and empty mean absent."""

    external_id: Number = renamed(default=-1, name="External id")
    external_id_2021: Number = renamed(default=-1, name="external id")
    sequence: Number = renamed(default=-1, name="Sequence number")
    forward_thread: Number = renamed(default=0, name="Fwd thread id")
    dims: Raw = renamed(default=NO_TEXT, name="Input Dims")
    dims_2021: Raw = renamed(default=NO_TEXT, name="Input dims")
    types: Raw = renamed(default=NO_TEXT, name="Input type")
    strides: Raw = renamed(default=NO_TEXT, name="Input Strides")
    concrete: Raw = renamed(default=NO_TEXT, name="Concrete Inputs")
    correlation: Number = -1
    device: Number = -1
    stream: Number = -1
    grid: Raw = NO_TEXT
    block: Raw = NO_TEXT
    shared_memory: Raw = renamed(default=NO_TEXT, name="shared memory")
    registers: Raw = renamed(default=NO_TEXT, name="registers per thread")
    graph_node: Number = renamed(default=-1, name="graph node id")
    collective: Raw = renamed(default=collectives.NO_TEXT, name=collectives.NAME)
    record: Number = renamed(default=-1, name="wait_on_cuda_event_record_corr_id")
    name: Raw = NO_TEXT  # of a metadata event: the thread's or process's name; a label of a graph's kernel
    module: Raw = renamed(default=NO_TEXT, name="module_fqn")
    label: Raw = renamed(default=NO_TEXT, name="str")
    autograd_phase: Raw = NO_TEXT
    value: Raw = renamed(default=NO_TEXT, name="")  # of a counter


NO_ARGS = Args()

#: Fields kept together as raw text, because they repeat together: parsed when asked for.
INPUT_FIELDS = ("dims", "dims_2021", "types", "strides", "concrete")
LAUNCH_FIELDS = ("grid", "block", "shared_memory", "registers")

#: What ``torch.cuda.graph_annotations.mark_kernels`` says of a kernel in a CUDA graph, the most telling
#: first: the module (torchtitan graph_trainer), the text as torch 2.14 and 2.13 call it.
LABEL_FIELDS = ("module", "name", "label")


class Event(Struct, gc=False):
    """One trace event with its times as floats (exact below 2**53 ns; see ``ExactEvent``)."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Number | float = 0
    tid: Number | float = 0
    ts: float = math.nan
    dur: float = 0.0
    id: Number = -1
    args: Args | None = None


class ExactEvent(Struct, gc=False):
    """The same with times as raw text: microseconds since the epoch with a fraction need 19 digits."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Number | float = 0
    tid: Number | float = 0
    ts: Raw = NO_TEXT
    dur: Raw = Raw(b"0")
    id: Number = -1
    args: Args | None = None


#: What msgspec raises for text that is no JSON; bytes that are no UTF-8 have an error of their own.
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

decode_values = msgspec.json.Decoder(list[Any], float_hook=Decimal).decode
decode_events = msgspec.json.Decoder(list[Event]).decode
decode_exact = msgspec.json.Decoder(list[ExactEvent]).decode

_ARGUMENTS = {field.encode_name: field for field in msgspec.structs.fields(Args)}


def coerce_event(value: Any) -> ExactEvent | None:
    """Build an event from any decoded JSON value, dropping the fields that make no sense.

    None when it is no object. The start is left empty where start or duration cannot be read.
    """
    if not isinstance(value, dict):
        return None
    dur = _time(value["dur"]) if value.get("dur") is not None else Raw(b"0")
    event = ExactEvent(
        ph=_text(value.get("ph")),
        cat=_text(value.get("cat")),
        name=_text(value.get("name")),
        pid=_label(value.get("pid")),
        tid=_label(value.get("tid")),
        ts=_time(value.get("ts")) if dur else Raw(b""),
        dur=dur or Raw(b"0"),
        id=_label(value.get("id", -1)),
    )
    arguments = value.get("args")
    if isinstance(arguments, dict):
        event.args = _coerce_args(arguments)
    return event


def _coerce_args(arguments: dict[Any, Any]) -> Args:
    args = Args()
    for name, value in arguments.items():
        known = _ARGUMENTS.get(name)
        if known is None or value is None:
            continue
        if known.type is Raw:
            setattr(args, known.name, _raw_json(value))
        elif isinstance(value, (int, float, Decimal, str)) and not isinstance(value, bool):
            setattr(args, known.name, as_int(value))
    args.collective = collectives.fields_of(arguments)
    return args


def _raw_json(value: Any) -> Raw:
    try:
        return Raw(json.dumps(value, allow_nan=False, default=float).encode("ascii", "replace"))
    except (ValueError, RecursionError):  # NaN inside a list of shapes
        return NO_TEXT


def _text(value: Any) -> str:
    return clean_text(value) if isinstance(value, str) else ""


def clean_text(text: str) -> str:
    """Text that can be encoded: lone surrogates, left by invalid UTF-8, become U+FFFD."""
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text


def _label(value: Any) -> int | str:
    if isinstance(value, str):
        return clean_text(value)
    return as_int(value) if isinstance(value, (int, float, Decimal)) else -1


def _time(value: Any) -> Raw:
    if isinstance(value, str):
        value = value.strip()
        try:
            float(value)
        except ValueError:
            return NO_TEXT
    elif isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return NO_TEXT
    text = str(value)
    return Raw(text.encode()) if abs(float(text)) < LIMIT_NS / 1000 else NO_TEXT


def as_int(value: Any) -> int:
    """An integer that fits 64 bits from whatever an exporter wrote; -1 where there is none."""
    if isinstance(value, Decimal):
        value = float(value)  # int(Decimal("1e999999999")) would fill the memory
    try:
        number = int(value)
    except (ValueError, OverflowError, TypeError):
        try:
            number = int(float(value))
        except (ValueError, OverflowError, TypeError):
            return -1
    if -(2**63) <= number < 2**63:
        return number
    return (number + 2**63) % 2**64 - 2**63
