"""Time of a fused attention kernel from first principles and published rates, line by line.

Every tile (a block of queries forward, of keys backward) is one thread block that loops over blocks of the
other side. One block costs its products and its exponentials; a tile costs its blocks plus a prologue and
an epilogue; the SM with most tiles finishes last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tracelens.gemm.predict.attention_call import AttentionProblem, HeadBlocks, blocks
from tracelens.gemm.predict.attention_kernels import Kernel
from tracelens.gemm.predict.attention_rates import Rate, exp_cost
from tracelens.gemm.predict.attention_terms import Derivation, number
from tracelens.gemm.predict.words import attention as words
from tracelens.hardware import Gpu

#: Share of the datasheet bandwidth that a copy reaches: 3016 of 3350 GB/s on an H100.
BANDWIDTH_FRAC = 0.9
#: Small pointwise kernels of public H100 traces.
_HELPER_LAUNCH_US = 2.0
#: With fewer tiles than fit on the SMs, each runs at this share of the speed that two on one SM reach
#: together. Fitted to 197 and 559 queries in one public H100 trace (AMD-AGI/TraceLens tests).
_ALONE_FRAC = 0.7
#: Tiles of a causal mask that are handed out in order leave SMs idle for half a long tile at the end.
_TAIL_FRAC = 0.5
#: FlashAttention-2 splits the keys where the tiles fill less than this share of twice the SMs
#: (num_splits_heuristic in csrc/flash_attn/flash_api.cpp).
_SPLIT_BELOW = 0.8
_MOST_SPLITS = 128


@dataclass(frozen=True, slots=True)
class Modelled:
    """The parts of a modelled time."""

    time_us: float  # the call
    kernel_us: float  # its main kernel alone
    tiles: int
    waves: float | None  # tiles over SMs; None where the SMs are not known
    computed_flops: float


def model(
    call: AttentionProblem,
    *,
    kernel: Kernel,
    rate: Rate,
    gpu: Gpu,
    peak_tflops: float,
    bandwidth_gbps: float,
    launch_us: float,
    lines: Derivation,
) -> Modelled:
    """The modelled time, with its derivation written into ``lines``."""
    cut, block_q, block_k, splits = _cut(call, kernel, gpu)
    heads = call.batch * call.heads
    padded = lines.add(
        "head dim",
        number(kernel.head_dim),
        kernel.head_dim,
        "elements",
        words.padded_head_dim(call.head_dim, kernel.source),
    )
    own, block = (call.seq_k, block_k) if call.backward else (call.seq_q, block_q)
    tiles = lines.add(
        "tiles",
        f"{call.batch} * {call.heads} * ceil({own} / {block})" + (f" * {splits}" if splits > 1 else ""),
        heads * cut.tiles,
        "thread blocks",
        words.tile_takes(block, backward=call.backward, splits=splits),
    )
    block_us = _block_us(call, rate, gpu, peak_tflops, block_q, block_k, padded, lines)
    busiest = _busiest(call, kernel, rate, gpu, cut, tiles, lines)
    main = lines.add(
        "compute", f"{number(block_us)} * {number(busiest)}", block_us * busiest, "us", words.BUSIEST_SM
    )
    moved = lines.add(
        "memory",
        f"{number(call.bytes_moved)} / ({number(bandwidth_gbps)} * 1e3)",
        call.bytes_moved / (bandwidth_gbps * 1e3),
        "us",
        words.TENSORS_ONCE,
    )
    launch = lines.add("launch", number(launch_us), launch_us, "us", words.NO_KERNEL_SHORTER)
    helpers = _helpers(call, kernel, splits, bandwidth_gbps, lines)
    kernel_us = launch + max(main, moved)
    time = lines.add(
        "time",
        f"{number(launch)} + max({number(main)}, {number(moved)}) + {number(helpers)}",
        kernel_us + helpers,
        "us",
        words.LAUNCH_WORK_HELPERS,
    )
    computed = heads * cut.total * block_q * block_k * kernel.head_dim * (10 if call.backward else 4)
    return Modelled(time, kernel_us, int(tiles), tiles / gpu.sms if gpu.sms else None, float(computed))


def _cut(call: AttentionProblem, kernel: Kernel, gpu: Gpu) -> tuple[HeadBlocks, int, int, int]:
    """Blocks of one head, their size, and into how many parts FlashAttention-2 splits the keys."""
    splits, block_q, block_k = 1, kernel.block_q, kernel.block_k
    if kernel.backend == "flash" and not call.backward and gpu.sms is not None:
        wide = 256 if call.head_dim <= 64 else 128 if call.head_dim <= 128 else 64
        jobs = call.batch * call.heads * -(-call.seq_q // 64)
        splits = _splits(jobs, gpu.sms * 2, -(-call.seq_k // wide))
        if splits > 1:
            block_q, block_k = 64, wide
    cut = blocks(
        call.seq_q,
        call.seq_k,
        causal=call.causal,
        window=call.window,
        block_q=block_q,
        block_k=block_k,
        backward=call.backward,
    )
    if splits > 1:
        cut = HeadBlocks(cut.tiles * splits, cut.total, -(-cut.longest // splits))
    return cut, block_q, block_k, splits


def _splits(jobs: int, slots: int, key_blocks: int) -> int:
    """``num_splits_heuristic``: the fewest splits that reach 85 % of the best wave efficiency."""
    if jobs >= _SPLIT_BELOW * slots:
        return 1
    efficiency = {}
    for count in range(1, min(_MOST_SPLITS, slots, key_blocks) + 1):
        if count == 1 or -(-key_blocks // count) != -(-key_blocks // (count - 1)):
            waves = jobs * count / slots
            efficiency[count] = waves / math.ceil(waves)
    best = max(efficiency.values())
    return next(count for count, value in efficiency.items() if value >= 0.85 * best)


def _block_us(
    call: AttentionProblem,
    rate: Rate,
    gpu: Gpu,
    peak_tflops: float,
    block_q: int,
    block_k: int,
    padded: float,
    lines: Derivation,
) -> float:
    """Time of one block on one SM (on all together where their number is not known)."""
    exp = lines.add(
        "exponential",
        number(exp_cost(gpu, peak_tflops)),
        exp_cost(gpu, peak_tflops),
        "operations",
        words.EXPONENTIAL,
    )
    per_score = 10 if call.backward else 4
    score = lines.add(
        "score",
        f"({per_score} * {number(padded)} / {number(rate.mma_frac)}"
        f" + {number(rate.exposed_exp_frac)} * {number(exp)}) * {number(rate.slowdown)}",
        (per_score * padded / rate.mma_frac + rate.exposed_exp_frac * exp) * rate.slowdown,
        "operations",
        words.score(rate.mma_frac, rate.source),
    )
    sms = gpu.sms or 1
    return lines.add(
        "block",
        f"{block_q} * {block_k} * {number(score)} / ({number(peak_tflops)} * 1e6 / {sms})",
        block_q * block_k * score / (peak_tflops * 1e6 / sms),
        "us",
        words.BLOCK_ON_ONE_SM if gpu.sms else words.BLOCK_ON_ALL_SMS,
    )


def _busiest(
    call: AttentionProblem,
    kernel: Kernel,
    rate: Rate,
    gpu: Gpu,
    cut: HeadBlocks,
    tiles: float,
    lines: Derivation,
) -> float:
    """Blocks, with prologues and epilogues, that the SM which finishes last goes through."""
    tile = lines.add(
        "tile",
        f"{cut.longest} + {number(rate.overhead_blocks)}",
        cut.longest + rate.overhead_blocks,
        "blocks",
        words.LONGEST_TILE,
    )
    total = call.batch * call.heads * cut.total
    everything = f"({total} + {number(tiles)} * {number(rate.overhead_blocks)})"
    work = total + tiles * rate.overhead_blocks
    if gpu.sms is None:
        return lines.add("work", everything, work, "blocks", words.NO_WAVES)
    rounds = math.ceil(tiles / gpu.sms)
    alone = _ALONE_FRAC if kernel.ctas_per_sm > 1 else 1.0
    one = f"{number(tile)} / {number(alone)}" if alone < 1.0 else number(tile)
    if rounds < kernel.ctas_per_sm:
        formula, value = one, tile / alone
        why = words.alone(alone, kernel.ctas_per_sm)
    elif cut.equal or rounds == 1:
        formula, value = f"ceil({number(tiles)} / {gpu.sms}) * {number(tile)}", rounds * tile
        why = words.waves(tiles / gpu.sms, gpu.sms)
    else:
        tail = 0.0 if kernel.longest_first else _TAIL_FRAC
        tail = tail if rate.tail_frac is None else rate.tail_frac
        formula = f"max({one}, {everything} / {gpu.sms} + {number(tail)} * {number(tile)})"
        value = max(tile / alone, work / gpu.sms + tail * tile)
        why = words.WITH_A_TAIL if tail else words.LONGEST_FIRST
    return lines.add("busiest SM", formula, value, "blocks", why)


def _helpers(
    call: AttentionProblem, kernel: Kernel, splits: int, bandwidth_gbps: float, lines: Derivation
) -> float:
    """Small kernels around the main one, all bound by memory."""
    size = number(call.element_bytes)
    rate = f"({number(bandwidth_gbps)} * 1e3)"
    if splits > 1:
        moved = 8.0 * splits * call.rows * kernel.head_dim
        return lines.add(
            "helpers",
            f"{number(_HELPER_LAUNCH_US)} + 8 * {splits} * {call.rows} * {kernel.head_dim} / {rate}",
            _HELPER_LAUNCH_US + moved / (bandwidth_gbps * 1e3),
            "us",
            words.SPLITS_COMBINED,
        )
    if not call.backward:
        rest = call.head_dim % 8
        if kernel.backend != "flash" or not rest:
            return lines.add("helpers", "0", 0, "us", words.ONE_KERNEL)
        # pad_last_dim<8> in aten/src/ATen/native/transformers/attention.cpp; flash_attn pads the same.
        elements = call.rows + 2 * call.batch * call.kv_heads * call.seq_k
        wider = call.head_dim + 8 - rest
        return lines.add(
            "helpers",
            f"3 * {number(_HELPER_LAUNCH_US)} + {size} * {elements} * ({call.head_dim} + {wider}) / {rate}",
            3 * _HELPER_LAUNCH_US
            + call.element_bytes * elements * (call.head_dim + wider) / (bandwidth_gbps * 1e3),
            "us",
            words.heads_padded(wider),
        )
    formula = f"3 * {size} * {call.rows} * {call.head_dim} + 8 * {call.rows} * {kernel.head_dim}"
    moved = 3 * call.element_bytes * call.rows * call.head_dim + 8 * call.rows * kernel.head_dim
    shared = call.kv_heads != call.heads
    if shared:
        keys = call.batch * call.seq_k * call.head_dim
        both = call.heads + call.kv_heads
        formula += f" + 2 * {size} * {keys} * ({call.heads} + {call.kv_heads})"
        moved += 2 * call.element_bytes * keys * both
    return lines.add(
        "helpers",
        f"2 * {number(_HELPER_LAUNCH_US)} + ({formula}) / {rate}",
        2 * _HELPER_LAUNCH_US + moved / (bandwidth_gbps * 1e3),
        "us",
        words.backward_helpers(shared_heads=shared),
    )
