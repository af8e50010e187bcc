"""Strange inputs by number: the same number is the same kind and the same bytes."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tests.fuzz import mutate, seeds
from tracelens.assistant import TOOLS
from tracelens.gates import COMPARISON_METRICS, JOB_METRICS, REPORT_METRICS
from tracelens.job.summary import encode

Folders = tuple[Path, ...]

_WORDS = (
    "vocab=50304", "heads=20,hidden=2560", "dtype=fp8", "tokens=8192", "tensor_parallel=2", "layers=4",
    "shape_waste>5%", "regression>3%", "2.50 EUR", "3.10", "step_ms<12", "straggler>5%", "0..3",
    *(f"{name}>1" for table in (REPORT_METRICS, COMPARISON_METRICS, JOB_METRICS) for name in table),
)  # fmt: skip
_NAMES = [tool.__name__ for tool in TOOLS]
_OPTIONS = ("trace", "gpu", "component", "rule", "change", "before", "after", "m", "n", "k", "dtype")
_ASKED: tuple[Any, ...] = (
    "saved", "saved", "trace", "nowhere.json", "-", "h100-sxm", "TL101", "vocab=50304", "logits", "bf16",
    4096, 1,
)  # fmt: skip


def _trace(rnd: random.Random, folders: Folders) -> bytes:
    return mutate.trace(rnd, json.loads(rnd.choice(seeds.traces(folders))))


def _report(rnd: random.Random, folders: Folders) -> bytes:
    return mutate.as_bytes(rnd, _edited(rnd, json.loads(rnd.choice(seeds.reports(folders)))))


def _edited(rnd: random.Random, whole: Any) -> Any:
    edited = mutate.anywhere(rnd, whole, rnd.choice((1, 2, 8)), typed=rnd.random() < 0.9)
    return json.loads(json.dumps(edited), parse_constant=lambda _: 1e300)  # else it is no JSON, and refused


def _pair(rnd: random.Random, folders: Folders) -> bytes:
    """Two reports to compare, a line each."""
    before = rnd.choice(seeds.reports(folders))
    after = before if rnd.random() < 0.7 else rnd.choice(seeds.reports(folders))
    pair = [json.loads(before), json.loads(after)]
    if rnd.random() < 0.7:
        _edited(rnd, pair[1])
    return b"\n".join(json.dumps(one).encode() for one in pair)


def _config(rnd: random.Random, folders: Folders) -> bytes:
    """The ending of its file, and the file."""
    ending, whole = rnd.choice(seeds.CONFIGS)
    times = rnd.choice((1, 2, 4))
    if ending == "json":
        data = mutate.as_bytes(rnd, mutate.anywhere(rnd, dict(whole), times, typed=rnd.random() < 0.7))
    else:
        lines = mutate.anywhere(rnd, list(whole), times, typed=True)
        data = "\n".join(map(str, lines)).encode("utf-8", "surrogatepass")
    return f"{ending}\n".encode() + data


def _words(rnd: random.Random, folders: Folders) -> bytes:
    """What is typed: changes, gates, prices."""
    text = rnd.choice(_WORDS)
    for _ in range(rnd.choice((1, 1, 2, 3))):
        text = mutate.text(rnd, text) if rnd.random() < 0.8 else f"{text},{rnd.choice(_WORDS)}"
    return text.encode("utf-8", "surrogatepass")


def _ask(rnd: random.Random, folders: Folders) -> bytes:
    """A question of an assistant."""
    options = {name: rnd.choice(_ASKED) for name in rnd.sample(_OPTIONS, rnd.randint(0, 5))}
    asked = {"trace": "saved", "rule": "TL101", "change": "heads=20", "before": "saved", "after": "saved"}
    named = {"tool": rnd.choice(_NAMES), "arguments": asked | options if rnd.random() < 0.7 else options}
    return mutate.as_bytes(rnd, mutate.anywhere(rnd, named, rnd.choice((0, 1, 2))))


def _job(rnd: random.Random, folders: Folders) -> bytes:
    """Summaries of ranks, a line each, or the saved answer for them."""
    if rnd.random() < 0.2:
        return mutate.as_bytes(rnd, _edited(rnd, json.loads(seeds.answer())))
    lines = [msgspec.to_builtins(one) for one in seeds.ranks()]
    for one in lines:  # the report within is the longest of them, and has cases of its own
        one["report"] = one["report"] if rnd.random() < 0.1 else ""
    rows = [_edited(rnd, one) if rnd.random() < 0.8 else one for one in lines]
    data = b"\n".join(json.dumps(one).encode() for one in rows)
    return gzip.compress(data, 1) if rnd.random() < 0.1 else data


def _folder(rnd: random.Random, folders: Folders) -> bytes:
    """A folder of ranks with junk between them."""
    files = dict(rnd.sample(sorted(seeds.mixed().items()), rnd.randint(1, 5)))
    for name in rnd.sample(sorted(files), rnd.randint(0, len(files))):
        files[name] = rnd.choice(
            (_bytes(rnd, files[name]), files[name][: rnd.randrange(9000)], b"{}", b"\0" * 99)
        )
    if rnd.random() < 0.3:
        files["renamed" + rnd.choice((".json", ".summary", ".json.gz"))] = rnd.choice(list(files.values()))
    if rnd.random() < 0.2:
        files["edited.summary"] = _job(rnd, folders)
    return seeds.packed(files)


def _runs(rnd: random.Random, folders: Folders) -> bytes:
    """A store of runs with damaged and foreign files."""
    files = dict(seeds.runs())
    for name in rnd.sample(sorted(files), rnd.randint(1, 3)):
        files[name] = rnd.choice((_bytes(rnd, files[name]), b"", b"PAR1", files[name][: rnd.randrange(3000)]))
    return seeds.packed(files)


def _bytes(rnd: random.Random, data: bytes) -> bytes:
    """Some bytes changed, cut out or repeated."""
    letters = bytearray(data)
    for _ in range(rnd.choice((1, 4, 40))):
        at = rnd.randrange(len(letters) + 1)
        kind = rnd.random()
        if kind < 0.6 and at < len(letters):
            letters[at] = rnd.randrange(256)
        elif kind < 0.8:
            del letters[at : at + rnd.choice((1, 8, 300))]
        else:
            letters[at:at] = letters[max(0, at - 8) : at]
    return bytes(letters)


def _summaries(rnd: random.Random, folders: Folders) -> bytes:
    """Bytes of a packed summary file changed."""
    return _bytes(rnd, encode(seeds.ranks()))


#: Kind -> what makes one, and how many of a hundred cases it is.
KINDS: dict[str, tuple[Callable[[random.Random, Folders], bytes], int]] = {
    "trace": (_trace, 40), "report": (_report, 22), "pair": (_pair, 4), "config": (_config, 8),
    "words": (_words, 12), "ask": (_ask, 4), "job": (_job, 6), "summaries": (_summaries, 1),
    "folder": (_folder, 2), "runs": (_runs, 1),
}  # fmt: skip


def make(number: int, folders: Folders = (), kind: str | None = None) -> tuple[str, bytes]:
    """Kind and bytes of a case; ``folders`` hold further traces to start from, ``kind`` is the only one."""
    rnd = random.Random(number)
    drawn = rnd.choices(list(KINDS), [many for _, many in KINDS.values()])[0]
    return (made := kind or drawn), KINDS[made][0](rnd, folders)
