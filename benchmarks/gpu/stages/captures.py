"""Sample traces: real training steps, recorded by ``tracelens.capture``, each with its independent truth.

Pairs differ in one dimension (vocabulary and head dimension, feed-forward width), so that a report of the one
can be held against a measurement of the other. The first stage has what a reader sees first; the second the
rest of the ways in which people run such steps.
"""

from __future__ import annotations

import contextlib
import gc
import gzip
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu import predicted
from benchmarks.gpu.stage import Item, Row, Setting, Skip, Stage
from benchmarks.gpu.store import write_bytes
from tracelens.capture.options import AFTER
from tracelens.gemm.kernel_names import parse_kernel_name
from tracelens.measure.devices import context_lost
from tracelens.measure.timing import spread_frac

_METHOD = 2  # the truth has the nodes around inner modules', and knows what it does not know
MOST_BYTES = 4_000_000  # of one trace
FIRST_NAMES = ("gpt2_vocab50257_eager", "gpt2_vocab50304_eager")
PAIR = "gpt2 vocabulary=50257>50304"


def measure(setting: Setting, item: Item) -> Row:
    """Capture the case, with fewer layers where the file is too large, then find its truth."""
    from benchmarks.gpu.training import precision

    case = item.spec.toy() if setting.dry_run else item.spec
    _possible(setting, case)
    name = f"{setting.gpu}_{case.name}"
    size = layers = 0
    for layers in case.layers:
        try:
            with precision(case):
                row = _capture(setting, case, layers, name)
        except BaseException:
            _discard(setting, name)
            raise
        finally:
            _release(setting)
        size = row["bytes"]
        if size <= MOST_BYTES:
            return row
        setting.say(f"  {name}: {size / 1e6:.1f} MB with {layers} layers, fewer then")
        _discard(setting, name)
    raise RuntimeError(f"{size / 1e6:.1f} MB with {layers} layers, over {MOST_BYTES / 1e6:g} MB")


def _possible(setting: Setting, case: Any) -> None:
    if setting.kind == "cuda" and case.precision == "fp8":
        import torch

        if torch.cuda.get_device_capability() < (8, 9):
            raise Skip("fp8 tensor cores came with compute capability 8.9")


def _capture(setting: Setting, case: Any, layers: int, name: str) -> Row:
    import tracelens
    from benchmarks.gpu.training import Training

    wait, active = (2, 2) if setting.dry_run else (12, 3)
    training = Training(case, layers=layers, device=setting.device)
    for _ in range(1 if setting.dry_run else 5):  # compilation, cuBLAS' choice of kernels, allocations
        training()
    model = training.forward if case.how in ("compile", "reduce_overhead") else training.model
    out = setting.scratch / name
    with tracelens.capture(model, out=out, wait=wait, warmup=1, active=active) as steps:
        for _ in range(wait + 1 + active + AFTER + 2):
            training()
            steps.step()
    written = steps.path
    if written is None:
        raise RuntimeError("the capture wrote no trace")
    facts = look_into(Path(written))
    if setting.kind == "cuda":
        facts["doubts"] += wrong_kernels(case.dtype, facts["gemm_kernels"])
    trace = f"{name}.json.gz"
    size = _move(Path(written), setting.traces / trace)
    row: Row = {
        "trace": trace,
        "files": [trace],
        "bytes": size,
        "layers": layers,
        "family": case.family,
        "how": case.how,
        "graphed": training.graphed,
        "precision": case.precision,
        "dims": {key: getattr(case.dims, key) for key in case.dims.__dataclass_fields__},
        **facts,
        "spread_frac": spread_frac(facts["step_ms"]["before"]),
        "brief": f"{size / 1e3:.0f} kB, {facts['kernels']} kernels, "
        f"step {statistics.median(facts['step_ms']['before'] or [0.0]):.2f} ms",
    }
    if size <= MOST_BYTES:
        try:  # the trace stands without it
            truth, row["truth"] = _truth(setting, case, layers, training, name)
            row["files"].append(truth)
        except (RuntimeError, ValueError) as error:
            if context_lost(error):
                raise
            row["doubts"].append(f"no truth: {error}"[:300])
    return row


def _truth(setting: Setting, case: Any, layers: int, training: Any, name: str) -> tuple[str, dict[str, Any]]:
    from benchmarks.gpu import truth
    from benchmarks.gpu.training import Training

    how = {"trace": f"{name}.json.gz", "granularity": "module", "of": "the same step, synchronised"}
    modules = True
    if case.how == "graph":
        # the launches of a replay are one: the kernels are named by the same step outside of a graph
        training = Training(replace(case, how="eager"), layers=layers, device=setting.device)
        training()
        how["of"] = "the same step without its graph, synchronised"
    elif case.how in ("compile", "reduce_overhead"):
        # a hook in a module would change what is compiled
        modules, how["granularity"] = False, "part of the step"
        if case.how == "reduce_overhead":
            plain = replace(case, how="compile")
            training = Training(plain, layers=layers, device=setting.device)
            for _ in range(3):
                training()
            how["of"] = "the same step compiled without graphs, synchronised"
    kernels = truth.observe(training, modules=modules, scratch=setting.scratch)
    if not kernels:
        raise RuntimeError("the synchronised step shows no kernel")
    file = f"{name}.truth.csv.gz"
    size = truth.write(setting.traces / file, kernels, how)
    total = sum(one.duration_us for one in kernels)
    known = sum(one.duration_us for one in kernels if one.module != "?")
    inside = sum(one.duration_us for one in kernels if one.module not in ("?", ""))
    return file, {
        **how,
        "bytes": size,
        "kernels": len(kernels),
        "known_frac": round(known / total, 5),
        "in_modules_frac": round(inside / total, 5),
    }


def look_into(path: Path) -> dict[str, Any]:
    """What a row says of a trace, read from the file alone. A trace with ``doubts`` is kept, for a person to
    look at: the minutes it took do not come back."""
    trace = json.loads(gzip.decompress(path.read_bytes()))
    metadata = trace.get("tracelens")
    if metadata is None:
        raise RuntimeError("the trace lacks tracelens' metadata: it is not a capture of ours")
    window, time = metadata["window"], metadata["time"]
    gemms: Counter[str] = Counter()
    kernels = ranges = 0
    gpu_us: dict[str, float] = defaultdict(float)  # by kind of kernel
    for event in trace["traceEvents"]:
        if event.get("cat") == "kernel":
            kernels += 1
            parsed = parse_kernel_name(event["name"])
            kind = parsed.kind if parsed is not None else "other"
            gpu_us[kind] += float(event["dur"])
            if kind == "gemm":
                gemms[event["name"]] += 1
        ranges += event.get("cat") == "user_annotation"
    doubts = [] if window["complete"] else [f"the window is not complete: {window}"]
    doubts += [] if ranges else ["the trace holds no named range"]
    return {
        "kernels": kernels,
        "gemm_kernels": dict(gemms.most_common()),
        "gpu_ms_per_step": {
            kind: round(us / 1e3 / max(1, window["steps"]), 4) for kind, us in gpu_us.items()
        },
        "ranges": ranges,
        "steps": window["steps"],
        "step_ms": {"clock": time["clock"], "before": time["before_ms"], "after": time["after_ms"]},
        "doubts": doubts,
    }


def wrong_kernels(dtype: str, gemms: Mapping[str, int]) -> list[str]:
    """Why these GEMM kernels are not those of a step in ``dtype``; empty when most of them are.

    >>> wrong_kernels("bf16", {"ampere_sgemm_128x64_tn": 9})
    ['bf16 was asked for, but 9 of 9 GEMM kernels are fp32: ampere_sgemm_128x64_tn']
    """
    if not gemms:
        return ["no GEMM kernel was recorded: the kernels' names are missing, or unknown"]
    told: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for name, calls in gemms.items():
        found = _math_dtype(name)
        if found is not None:
            told[found] += calls
            examples.setdefault(found, name)
    # in a step of fp8 layers the head is bf16; nothing else may be common
    if told and told[dtype] < 0.5 * told.total():
        (most, count), *_ = told.most_common(1)
        example = examples[most][:80]
        return [f"{dtype} was asked for, but {count} of {told.total()} GEMM kernels are {most}: {example}"]
    return []


def _math_dtype(name: str) -> str | None:
    kernel = parse_kernel_name(name)
    if kernel is None:
        return None
    found = kernel.math_dtype or kernel.in_dtype
    # an NVIDIA tensor core has no fp32: fp32 operands on it are tf32, whatever the name leaves out
    return "tf32" if found == "fp32" and kernel.tensor_core else found


def summarize(setting: Setting, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "captures": list(rows),
        "bytes": sum(row["bytes"] for row in rows),
        "doubts": {row["trace"]: row["doubts"] for row in rows if row["doubts"]},
    }


def compare_first(setting: Setting, rows: Sequence[Row]) -> dict[str, Any]:
    """Both steps and what the change saved, from the steps outside the window: no profiler is in them."""
    data = summarize(setting, rows)
    times = [row["step_ms"]["before"] + row["step_ms"]["after"] for row in rows]
    if len(times) == 2 and all(times):
        before, after = map(statistics.median, times)
        kinds = [row["gpu_ms_per_step"] for row in rows]
        data["compared"] = {
            "name": PAIR,
            "before_ms": round(before, 4),
            "after_ms": round(after, 4),
            "saving_frac": round(1 - after / before, 5),
            "gpu_saving_ms": {
                kind: round(kinds[0].get(kind, 0.0) - kinds[1].get(kind, 0.0), 4)
                for kind in sorted(kinds[0].keys() | kinds[1].keys())
            },
        }
    return data


def predict_first(setting: Setting, item: Item) -> dict[str, Any] | None:
    """The saving of the pair, written down before its first step is run."""
    from benchmarks.gpu.model_shapes import MODELS
    from tracelens.measure.layer_shapes import StepShape

    if item.key != FIRST_NAMES[0]:
        return None
    dims = item.spec.dims
    layer = MODELS["gpt2"][1].changed(sequence=dims.sequence, micro_batch=dims.batch)
    sides = [StepShape(layer, item.spec.layers[0], vocabulary) for vocabulary in (50257, 50304)]
    return predicted.of_change(setting, PAIR, *sides)


def _move(path: Path, to: Path) -> int:
    """Move a trace, which says its own name inside, to another name, maybe of another file system; bytes."""
    data = gzip.decompress(path.read_bytes())
    head, tail = data[:-4096], data[-4096:]
    old = json.dumps(path.name).encode()
    packed = gzip.compress(head + tail.replace(old, json.dumps(to.name).encode()), 9, mtime=0)
    write_bytes(to, packed)
    path.unlink()
    return len(packed)


def _release(setting: Setting) -> None:
    """Models, graphs and compiled code of one capture must not weigh on the next."""
    import torch

    torch.compiler.reset()
    gc.collect()
    if setting.kind == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _discard(setting: Setting, name: str) -> None:
    for suffix in (".json.gz", ".truth.csv.gz"):
        with contextlib.suppress(OSError):
            (setting.traces / f"{name}{suffix}").unlink()


# -- the cases ------------------------------------------------------------------------------------------


def _cases() -> tuple[list[Item], list[Item]]:
    from benchmarks.gpu.models import Dims
    from benchmarks.gpu.training import Case

    # GPT-3 2.7B's width (Brown et al. 2020, table 2.1: 32 heads of 80), with GPT-2's vocabulary
    gpt = Dims(hidden=2560, heads=32, ffn=10240, vocab=50257, sequence=2048, batch=4)
    fixed = replace(gpt, heads=20, vocab=50304)
    many_heads = replace(gpt, heads=40, vocab=50304)
    # 10922 = 8/3 * 4096, the width of a SwiGLU before anybody rounds it; Llama 7B has 11008
    llama = Dims(hidden=4096, heads=32, kv_heads=8, ffn=10922, vocab=32000, sequence=4096, batch=2)
    llama_fixed = replace(llama, ffn=11008)
    bert = Dims(hidden=1024, heads=16, ffn=4096, vocab=30522, sequence=512, batch=32)
    vit = Dims(hidden=1280, heads=16, ffn=5120, vocab=1000, sequence=257, batch=64)
    moe = Dims(hidden=2048, heads=16, kv_heads=8, ffn=5632, vocab=32000, sequence=2048, batch=4)
    depth = (4, 2, 1)

    def item(
        name: str, family: str, dims: Dims, how: str = "eager", precision: str = "bf16_autocast"
    ) -> Item:
        compiled = how in ("compile", "reduce_overhead")
        run = {"graph": "cudagraph", "reduce_overhead": "reduceoverhead"}.get(how, how)
        case = Case(f"{name}_{run}", family, dims, depth, how, precision)
        return Item(case.name, 45.0 if compiled else 15.0, case)

    def gpts(how: str) -> list[Item]:
        return [
            item("gpt2_vocab50257_head80", "gpt", gpt, how),
            item("gpt2_vocab50304_head128", "gpt", fixed, how),
        ]

    def llamas(how: str) -> list[Item]:
        return [
            item("llama_gqa_ffn10922", "llama", llama, how, "bf16"),
            item("llama_gqa_ffn11008", "llama", llama_fixed, how, "bf16"),
        ]

    def encoders(how: str) -> list[Item]:
        return [item("bert_vocab30522", "bert", bert, how), item("vit_h14", "vit", vit, how)]

    first = [
        *gpts("eager"),
        *llamas("eager"),
        *gpts("compile"),
        *llamas("compile"),
        *encoders("eager"),
        item("moe_8experts", "moe", moe, "eager", "bf16"),
        gpts("checkpoint")[0],
        gpts("graph")[0],
    ]
    more = [
        item("gpt2_vocab50304_head64", "gpt", many_heads),
        *llamas("checkpoint"),
        *llamas("graph"),
        gpts("checkpoint")[1],
        gpts("graph")[1],
        item("gpt2_vocab50304_head128_fp16", "gpt", fixed, "eager", "fp16_scaler"),
        item("gpt2_vocab50304_head128_fp8", "gpt", fixed, "eager", "fp8"),
        item("gpt2_vocab50304_head128_tf32", "gpt", fixed, "eager", "tf32"),
        *encoders("compile"),
        *encoders("checkpoint"),
        *encoders("graph"),
        item("moe_8experts", "moe", moe, "checkpoint", "bf16"),
        item("moe_8experts", "moe", moe, "compile", "bf16"),
        item("gpt2_vocab50304_head128", "gpt", fixed, "reduce_overhead"),
    ]
    return first, more


def pair_items(setting: Setting) -> Sequence[Item]:
    """GPT-2 (Radford et al. 2019: 12 layers of 768) as published, and with its vocabulary padded."""
    from benchmarks.gpu.models import Dims
    from benchmarks.gpu.training import Case

    gpt2 = Dims(hidden=768, heads=12, ffn=3072, vocab=50257, sequence=1024, batch=16)
    sides = (gpt2, replace(gpt2, vocab=50304))
    return [
        Item(name, 25.0, Case(name, "gpt", dims, (12, 6, 3)))
        for name, dims in zip(FIRST_NAMES, sides, strict=True)
    ]


def first_items(setting: Setting) -> Sequence[Item]:
    return _different(_cases()[0]) if setting.dry_run else _cases()[0]


def more_items(setting: Setting) -> Sequence[Item]:
    return _different(_cases()[1]) if setting.dry_run else _cases()[1]


def _different(items: Sequence[Item]) -> list[Item]:
    """For a dry run, where pairs have the same toy sizes: each family and each way to run it once."""
    seen: set[Any] = set()
    chosen = []
    for item in items:
        new = {item.spec.family, (item.spec.how, item.spec.precision)} - seen
        if new:
            chosen.append(item)
            seen |= new
    return chosen


FIRST_STEP = Stage(
    name="first_step",
    writes="one GPT-2 step captured before and after 50257 -> 50304, compared",
    items=pair_items,
    measure=measure,
    predict=predict_first,
    summarize=compare_first,
    method=_METHOD,
    setup_s=10.0,
    cap_mb=10.0,
    max_spread_frac=None,  # each trace stands, and says how its steps vary
)
CAPTURES = Stage(
    name="captures",
    writes="sample traces with their truth: GPT-2 and Llama pairs, BERT, ViT, MoE",
    items=first_items,
    measure=measure,
    summarize=summarize,
    method=_METHOD,
    setup_s=10.0,
    cap_mb=20.0,
    max_failed_frac=0.5,  # each trace stands alone
    max_spread_frac=None,
)
MORE_CAPTURES = Stage(
    name="captures-more",
    writes="sample traces of further ways to run them: graphs, checkpointing, fp16, fp8, TF32",
    items=more_items,
    measure=measure,
    summarize=summarize,
    method=_METHOD,
    setup_s=10.0,
    cap_mb=25.0,
    max_failed_frac=0.5,
    max_spread_frac=None,
)
