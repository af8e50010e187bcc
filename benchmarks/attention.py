"""How well fused attention is predicted: python -m benchmarks.attention [--fit] [--own | --latent]

Per GPU, backend, mask and head dimension: number of rows, median error ln(predicted / measured), median and
90th percentile of its size, share in range. Rows are NVIDIA aiconfigurator's (``benchmarks.silicon``):
prompts as long as their keys, bf16, no window, from 0.1 ms on; shorter ones are mostly what a serving
framework does around its kernel. Causal rows also write K and V into a paged cache: that is added to the
prediction, read once and written once at 0.9 of the bandwidth. vLLM's FlashAttention-2 is left out there, for
with pages it runs the kernel of split keys, which no training runs. Measured is the fastest source of a
backend. Judged are head geometries (heads, kv heads, head dimension) that no constant was fitted to; --fit
judges the others. --own is of our H100's sweep instead (benchmarks/gpu/results), forward and backward, where
one geometry in two judges. --latent is of the latent attention of DeepSeek (heads of 192, values of 128; its
own table), as TensorRT-LLM's kernels run it.
"""

from __future__ import annotations

import argparse
import json
import zlib
from functools import lru_cache

import numpy as np
import pandas as pd

from benchmarks.gpu.summarize import RESULTS
from benchmarks.silicon import FOLDER, GPUS, left_out
from tracelens.gemm.predict.attention import predict_attention
from tracelens.gemm.predict.attention_call import AttentionProblem
from tracelens.gemm.predict.attention_model import BANDWIDTH_FRAC
from tracelens.hardware import find_gpu

#: ``kernel_source`` -> backend, where the name says so; cuDNN's is in no table.
BACKENDS = {
    "flash_attention": "flash", "flashinfer": "flash", "vllm_flashinfer_fiprefill": "flash",
    "vllm_vit_flash_attn_fa2": "flash", "fa3": "flash3", "vllm_flash_attn_fa3": "flash3",
    "vllm_vit_flash_attn_fa3": "flash3", "flash_attention_v3": "flash3",
    "vllm_vit_flash_attn_fa4": "flash4", "flash_attention_v4": "flash4",
}  # fmt: skip
_KEY = ["batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "causal", "backend"]
_LEAST_US = 100.0
_SHORTEST = 512
_OWN = RESULTS / "h100-sxm" / "attention_sweep.json"
_LATENT_SOURCES = ("default", "trtllm_mla")  # TensorRT-LLM's own, and the same in SGLang
_MOST_ROWS = 150  # of one GPU, backend, mask and head dimension


@lru_cache(maxsize=1)
def _rows() -> pd.DataFrame:
    causal = pd.read_parquet(FOLDER / "attention.parquet")
    causal = causal[(causal["kv_cache_dtype"] == "bfloat16") & (causal["window_size"].fillna(0) == 0)]
    whole = pd.read_parquet(FOLDER / "encoder_attention.parquet")
    rows = pd.concat(
        [causal.assign(causal=True), whole.assign(causal=False, num_key_value_heads=whole["num_heads"])],
        ignore_index=True,
    )
    rows = rows[rows["attn_dtype"].isna() | (rows["attn_dtype"] == "bfloat16")]
    rows = rows.assign(backend=rows["kernel_source"].map(BACKENDS), time_us=rows["latency"] * 1e3)
    return rows[rows["backend"].notna() & (rows["isl"] >= _SHORTEST) & (rows["time_us"] >= _LEAST_US)]


def calls(gpu: str, *, judging: bool) -> pd.DataFrame:
    """Calls of one folder: their sizes and ``time_us``."""
    rows = _rows()
    rows = rows[(rows["gpu"] == gpu) & (rows["device"] == GPUS[gpu][0])]
    if (find_gpu(None, override=GPUS[gpu][1]).compute_capability or (0, 0))[0] == 10:
        rows = rows[rows["backend"] != "flash"]  # FlashInfer has kernels of its own there
    table = rows.groupby(_KEY, as_index=False)["time_us"].min()
    geometry = zip(table["num_heads"], table["num_key_value_heads"], table["head_dim"], strict=True)
    out = [left_out(*map(int, one)) for one in geometry]
    table = table.loc[[one == judging for one in out]].sample(frac=1.0, random_state=0)
    return pd.DataFrame(table.groupby(["backend", "causal", "head_dim"]).head(_MOST_ROWS))


def predicted(table: pd.DataFrame, gpu: str) -> pd.DataFrame:
    """The table with ``low``, ``mid`` and ``high`` in us, the paged cache written where there is one."""
    device = find_gpu(None, override=GPUS[gpu][1])
    copied = (device.bandwidth_gbps or 0.0) * BANDWIDTH_FRAC * 1e3
    found = []
    for batch, isl, heads, kv_heads, head_dim, causal, backend in table[_KEY].to_numpy().tolist():
        call = AttentionProblem(
            batch=batch, heads=heads, kv_heads=int(kv_heads), seq_q=isl, seq_k=isl, head_dim=head_dim,
            causal=causal, direction="forward",
        )  # fmt: skip
        time = predict_attention(call, gpu=device, backend=backend).time_us
        cache = 8.0 * call.batch * call.seq_k * call.kv_heads * call.head_dim / copied if causal else 0.0
        found.append([np.nan if end is None else end + cache for end in (time.low, time.mid, time.high)])
    low, mid, high = np.asarray(found).T
    return table.assign(low=low, mid=mid, high=high)


def own(*, judging: bool) -> pd.DataFrame:
    """Calls of our own H100's sweep with their ``time_us``, and ``low``, ``mid`` and ``high`` predicted."""
    table = json.loads(_OWN.read_text())["data"]["table"]
    rows = pd.DataFrame(table["rows"], columns=table["columns"])
    geometry = rows[["batch", "heads", "kv_heads", "seq_q", "head_dim"]].astype(str).agg(" ".join, axis=1)
    rows = rows[(geometry.map(lambda one: zlib.crc32(one.encode())) % 2 == 0) == judging]
    device, found = find_gpu(None, override="h100-sxm"), []
    sizes = ["batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim", "causal", "direction", "dtype"]
    for backend, *values in rows[["backend", *sizes]].to_numpy().tolist():
        call = AttentionProblem(**dict(zip(sizes, values, strict=True)))
        time = predict_attention(call, gpu=device, backend=backend).time_us
        found.append([time.low, time.mid, time.high])
    return rows.assign(**dict(zip(("low", "mid", "high"), np.asarray(found).T, strict=True)))


def latent(gpu: str) -> pd.DataFrame:
    """Calls of latent attention of one folder, with the kernel that torch picks there predicted."""
    rows = pd.read_parquet(FOLDER / "mla.parquet")
    rows = rows[
        (rows["gpu"] == gpu) & (rows["device"] == GPUS[gpu][0]) & (rows["kv_cache_dtype"] == "bfloat16")
    ]
    rows = rows[rows["kernel_source"].isin(_LATENT_SOURCES)].assign(time_us=rows["latency"] * 1e3)
    rows = rows[(rows["isl"] >= _SHORTEST) & (rows["time_us"] >= _LEAST_US)]
    sizes = ["num_heads", "batch_size", "isl"]
    table = rows.groupby(sizes, as_index=False)["time_us"].min()
    device, found = find_gpu(None, override=GPUS[gpu][1]), []
    for heads, batch, isl in table[sizes].to_numpy().tolist():
        call = AttentionProblem(
            batch=batch, heads=heads, kv_heads=heads, seq_q=isl, seq_k=isl, head_dim=192, value_dim=128,
            causal=True, direction="forward",
        )  # fmt: skip
        picked = predict_attention(call, gpu=device)
        found.append([picked.backend, picked.time_us.low, picked.time_us.mid, picked.time_us.high])
    columns = pd.DataFrame(found, columns=["backend", "low", "mid", "high"])
    return pd.concat([table, columns], axis=1)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--fit", action="store_true", help="judge the geometries that constants are fitted to"
    )
    parser.add_argument(
        "--gpu", action="append", choices=list(GPUS), help="folders of the table; all of them"
    )
    parser.add_argument("--own", action="store_true", help="our own H100's sweep")
    parser.add_argument("--latent", action="store_true", help="latent attention")
    given = parser.parse_args(arguments)
    if given.latent:
        for name in given.gpu or list(GPUS):
            _tell(name, latent(name), ["backend"])
        return
    if given.own:
        _tell("own h100_sxm", own(judging=not given.fit), ["backend", "direction", "causal"])
        return
    for name in given.gpu or list(GPUS):
        table = predicted(calls(name, judging=not given.fit), name)
        _tell(name, table, ["backend", "causal", "head_dim"])


def _tell(name: str, table: pd.DataFrame, by: list[str]) -> None:
    for key, part in table.groupby(by):
        error = (part["mid"] / part["time_us"]).transform("log")
        what = " ".join(("causal" if one else "whole") if isinstance(one, bool) else str(one) for one in key)
        print(
            f"{name} {what}: n {len(part)},"
            f" bias {error.median():+.3f}, median {error.abs().median():.3f},"
            f" p90 {error.abs().quantile(0.9):.3f},"
            f" in range {part['time_us'].between(part['low'], part['high']).mean():.2f}"
        )


if __name__ == "__main__":
    main()
