"""Good documents that strange ones are made of: small, many, and of real files where there are any."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import tracelens
from tests.synthetic import ModelSpec, Options, build
from tracelens.job.history import record
from tracelens.job.merge import merge
from tracelens.job.summary import RankSummary, encode, summarize
from tracelens.results.job import to_json as job_json
from tracelens.results.json import to_json

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
_LARGEST = 3_000_000  # of a real trace, packed
_WINDOWS = 48  # of a trace
_GPT2 = ModelSpec(hidden=256, heads=4, vocab=1003, layers=1, sequence=128, micro_batch=1)
_LLAMA = replace(_GPT2, family="llama", kv_heads=2, ffn=704)
_HUGGINGFACE = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "num_hidden_layers": 32,
    "max_position_embeddings": 8192, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "architectures": ["LlamaForCausalLM"],
}  # fmt: skip
_MEGATRON = {
    "num-layers": 24, "hidden-size": 2560, "num-attention-heads": 32, "seq-length": 2048,
    "micro-batch-size": 4, "vocab-size": 50257, "make-vocab-size-divisible-by": 128, "swiglu": "",
    "group-query-attention": "", "num-query-groups": 8, "tensor-model-parallel-size": 2,
}  # fmt: skip
#: Configurations by the ending of their file; those that are no JSON as lines.
CONFIGS: tuple[tuple[str, Any], ...] = (
    ("json", _HUGGINGFACE),
    ("json", {name.replace("-", "_"): value or True for name, value in _MEGATRON.items()}),
    ("yaml", [f"{name.replace('-', '_')}: {value or 'true'}" for name, value in _MEGATRON.items()]),
    ("sh", ["torchrun pretrain.py", *(f"--{name} {value}" for name, value in _MEGATRON.items())]),
    ("py", ["n_layer = 12", "n_head = 12", "n_embd = 768", "block_size = 1024", "batch_size = 12"]),
)


@cache
def traces(folders: tuple[Path, ...] = ()) -> tuple[str, ...]:
    """Small traces as JSON text: windows of two generated ones, and of the real ones in ``folders``."""
    found = [*windows(_generated(_GPT2)), *windows(_generated(_LLAMA))]
    for path in (path for folder in folders for path in sorted(folder.rglob("*.json*"))):
        if path.stat().st_size < _LARGEST:
            data = path.read_bytes()
            found += windows(
                (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", "replace")
            )
    return tuple(found)


def _generated(model: ModelSpec, *, rank: int = 0) -> str:
    split = model is _LLAMA
    how = Options(steps=2 if split else 1, attention="math" if split else "flash", all_reduce=split)
    text = build(model, how).text()
    if not split:
        return text
    whole = json.loads(text)
    whole["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
    return json.dumps(whole)


def windows(text: str) -> Iterator[str]:
    """Neighbouring events of a trace with the kernels that they launch and the ranges around them."""
    whole = json.loads(text, strict=False)
    whole = whole if isinstance(whole, dict) else {"traceEvents": whole}
    events = [one for one in whole["traceEvents"] if one.get("ph") != "M" and "ts" in one]
    events.sort(key=lambda one: float(one["ts"]))
    kernels: dict[object, list[Any]] = {}
    for one in events:
        if str(one.get("cat")).lower() == "kernel":
            kernels.setdefault(_correlation(one), []).append(one)
    middles = [at for at, one in enumerate(events) if _correlation(one) in kernels]
    named = [one for one in whole["traceEvents"] if one.get("ph") == "M"][:4]
    rnd = random.Random(len(text))
    for number in range(_WINDOWS if middles else 0):
        # one of all that a page can show, others as few as have a figure
        half = 400 if number == 0 else rnd.choice((10, 20, 40))
        at = rnd.choice(middles)
        first = max(0, at - half)
        within = events[first : at + half]
        begin, end = float(within[0]["ts"]), float(within[-1]["ts"])
        around = [one for one in events[:first] if begin < float(one["ts"]) + float(one.get("dur", 0)) > end]
        launched = [row for one in within for row in kernels.get(_correlation(one), ())]
        kept = {id(one): one for one in [*named, *around[-40:], *within, *launched]}
        yield json.dumps(whole | {"traceEvents": list(kept.values())})


def _correlation(event: Mapping[str, Any]) -> object:
    args = event.get("args")
    return args.get("correlation") if isinstance(args, dict) else None


@cache
def reports(folders: tuple[Path, ...] = ()) -> tuple[str, ...]:
    """Saved reports of a generated trace, and of each real one's widest window and a narrow one."""
    texts = traces(folders)
    chosen = [_generated(_GPT2), *texts[::_WINDOWS], *texts[3::_WINDOWS]]
    return tuple(to_json(one.report, indent=None).decode() for one in _analyzed(chosen))


def _analyzed(texts: Iterable[str]) -> Iterator[tracelens.Analysis]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        for text in texts:
            path.write_text(text, encoding="utf-8")
            with suppress(tracelens.InputError):
                yield tracelens.analyze(path)


@cache
def ranks() -> tuple[RankSummary, ...]:
    """Summaries of two ranks of a job."""
    return tuple(summarize(one) for one in _analyzed([_generated(_LLAMA), _generated(_LLAMA, rank=1)]))


@cache
def answer() -> str:
    """The saved answer for that job."""
    return job_json(merge(ranks())).decode()


@cache
def mixed() -> dict[str, bytes]:
    """A folder of a job with what else lies about."""
    trace = _generated(_GPT2).encode()
    return {
        "rank0.summary": encode(ranks()[:1]), "rank1.summary": encode(ranks()[1:]), "rank2.json": trace,
        "rank3.json.gz": gzip.compress(trace, 1), "report.json": reports()[0].encode(),
        "answer.json": answer().encode(), "notes.txt": b"of today", "empty.json": b"",
    }  # fmt: skip


@cache
def runs() -> dict[str, bytes]:
    """A store of five runs."""
    job = merge(ranks())
    with tempfile.TemporaryDirectory() as folder:
        for day in range(1, 6):
            record(job, Path(folder), run=f"run{day}", when=datetime(2026, 1, day, tzinfo=UTC))
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def packed(files: Mapping[str, bytes]) -> bytes:
    """A folder as one file."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return written.getvalue()


def unpacked(data: bytes, folder: Path) -> Path:
    """The folder again, in an empty one."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        tar.extractall(folder, filter="data")
    return folder
