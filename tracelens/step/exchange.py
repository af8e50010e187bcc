"""What ranks say to each other when the model is spread over another number of them.

The step before and after run on the same GPUs and take the same tokens: half as many ranks for one copy of
the model are twice as many copies, each with half of the micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracelens.config.model_config import ModelConfig
from tracelens.gemm.dtypes import bytes_per_element
from tracelens.results import CommunicationRow, ModelDims, Rest, Span
from tracelens.step.words import ranks as words
from tracelens.sums import summed

#: Purposes whose messages are gradients or weights of this rank.
_ON_WEIGHTS = frozenset(
    {"data-parallel gradients", "FSDP parameter gather", "FSDP gradient scatter", "optimizer shards"}
)
_SERVES = {"tensor_parallel": "tensor parallel", "expert_parallel": "expert all-to-all"}


@dataclass(frozen=True, slots=True)
class Exchange:
    """Exposed communication before and after; ``unknown`` says why it cannot be told, None where it can."""

    rest: tuple[Rest, ...] = ()
    unknown: str | None = None
    notes: tuple[str, ...] = ()


def exchange_of(rows: Sequence[CommunicationRow], now: ModelConfig, then: ModelConfig) -> Exchange:
    """What a change of the ranks does to the exposed communication; nothing where ranks stay.

    Fewer ranks: each message keeps its size and its share (n-1)/n that leaves the rank falls, as nccl-tests
    define the bus bandwidth (doc/PERFORMANCE.md); one rank sends nothing. What waits for the slowest rank
    does not shrink, so the range reaches to the measured time. More ranks: the links between them were not
    measured.
    """
    rest: list[Rest] = []
    notes: list[str] = []
    fewer = False
    for name in _SERVES:
        before, after = now.get(name) or 1, then.get(name) or 1
        if before == after:
            continue
        if after > before:
            return Exchange(unknown=_more_ranks(rows, name, now, then), notes=_volume(name, now, then))
        serving = [row for row in rows if row.purpose == _SERVES[name]]
        if not serving:
            return Exchange(unknown=words.serves_none(name, before))
        rest += _fewer_ranks(serving, name, now, then)
        fewer = True
    if fewer:
        found = _gradients(rows, now, then)
        if isinstance(found, str):
            return Exchange(unknown=found)
        rest += found
        others = sum(row.exposed_ms_per_step for row in rows if row.purpose == "unknown")
        if others > 0:
            notes.append(words.unknown_purpose(others))
    if now.model_ranks != then.model_ranks:
        notes.append(same_gpus(now, then))
    return Exchange(tuple(rest), None, tuple(notes))


def vocab_is_split(
    rows: Sequence[CommunicationRow], dims: ModelDims, *, tokens: int, declared: int | None
) -> bool | None:
    """Does each tensor-parallel rank hold a part of the vocabulary? None where nothing tells.

    The configuration tells, or the messages: the loss over a split vocabulary needs a maximum and sums of
    every token from all ranks (Megatron's vocab_parallel_cross_entropy, PyTorch's loss_parallel), or the
    gathered logits. Where every message of the group is an activation of the layers, each rank has the whole.
    """
    t, columns, hidden = dims.tensor_parallel.value, dims.vocab.value, dims.hidden.value
    if t is None or t == 1 or not columns or not hidden:
        return None
    if declared is not None:
        if declared <= columns < declared + 1024:
            return False
        return True if declared <= columns * t < declared + 1024 * t else None
    found = [
        row for row in rows if row.group_size in (None, t) and row.purpose in ("tensor parallel", "unknown")
    ]
    sizes = {
        row.bytes_per_call
        for row in found
        if row.collective in ("all_reduce", "all_gather", "reduce_scatter")
    }
    if not sizes or None in sizes:
        return None
    elements = {round(size / width) for size in sizes if size for width in (2, 4)}
    if elements & {tokens, tokens * columns, tokens * columns * t}:
        return True
    activation = tokens * hidden
    return False if all(size in (2 * activation, 4 * activation) for size in sizes) else None


def same_gpus(now: ModelConfig, then: ModelConfig) -> str:
    """What the comparison keeps."""
    times = then.model_ranks / now.model_ranks
    count = now.micro_batches
    uneven = count if count and (count * times) % 1 else None
    return words.same_gpus(now.model_ranks, then.model_ranks, times, uneven)


def _fewer_ranks(
    rows: Sequence[CommunicationRow], name: str, now: ModelConfig, then: ModelConfig
) -> list[Rest]:
    before, after = now.get(name) or 1, then.get(name) or 1
    factor = ((after - 1) / after) / ((before - 1) / before)
    sizes = _message(now, name), _message(then, name)
    size = sizes[1] / sizes[0] if sizes[0] and sizes[1] else 1.0
    calls = then.model_ranks / now.model_ranks
    found = []
    for phase, time in _by_phase(rows).items():
        mid = time * calls * factor * size
        high = time * calls * max(1.0, size) if after > 1 else 0.0
        estimate = Span(min(mid, high), mid, max(mid, high), "model")
        found.append(Rest("communication", phase, words.messages(name), time, estimate))
    return found


def _by_phase(rows: Sequence[CommunicationRow]) -> dict[str, float]:
    return summed((row.phase, row.exposed_ms_per_step) for row in rows if row.exposed_ms_per_step > 0)


def _message(x: ModelConfig, name: str) -> int | None:
    """Elements of one message: an activation, or what the tokens send to their experts."""
    if x.token_count is None or x.hidden is None:
        return None
    return x.token_count * x.hidden * ((x.top_k or 1) if name == "expert_parallel" else 1)


def _gradients(rows: Sequence[CommunicationRow], now: ModelConfig, then: ModelConfig) -> list[Rest] | str:
    """Gradients and weights that copies of the model exchange: each rank holds more of them than before."""
    mine = now.rank_parameters, then.rank_parameters
    if not mine[0] or not mine[1]:
        return words.WEIGHTS_UNKNOWN
    grown = mine[1] / mine[0]
    serving = [row for row in rows if row.purpose in _ON_WEIGHTS]
    if serving:
        return [
            Rest("communication", phase, words.OF_A_RANK, time,
                 Span(time, time * grown, time * 2 * grown, "model"))
            for phase, time in _by_phase(serving).items()
        ]  # fmt: skip
    # No copies now: there will be, and their gradients cross the links that the ranks use today.
    copies = max(2.0, now.model_ranks / then.model_ranks)
    speeds = [row.bus_gbps for row in rows if row.bus_gbps and row.purpose in _SERVES.values()]
    if not speeds:
        return words.NO_LINK
    time = 2 * (copies - 1) / copies * mine[1] * 2 / (max(speeds) * 1e9) * 1e3
    estimate = Span(0.0, time, 2 * time, "model")  # hidden behind the backward; in 16 bits; in 32
    return [Rest("communication", "backward", words.BETWEEN_COPIES, 0.0, estimate)]


def _more_ranks(rows: Sequence[CommunicationRow], name: str, now: ModelConfig, then: ModelConfig) -> str:
    before, after = now.get(name) or 1, then.get(name) or 1
    if before == 1:
        return words.more_ranks(name, words.NO_EXCHANGE)
    serving = [row for row in rows if row.purpose == _SERVES[name]]
    times = sum(row.exposed_ms_per_step for row in serving)
    if not times:
        return words.more_ranks(name, words.links_not_measured(after))
    calls = then.model_ranks / now.model_ranks
    grown = times * calls * ((after - 1) / after) / ((before - 1) / before)
    return words.more_ranks(name, words.were_links_as_fast(before, after, times, grown))


def _volume(name: str, now: ModelConfig, then: ModelConfig) -> tuple[str, ...]:
    """What a rank sends in a step, where the formula is known."""
    t, tokens, hidden, layers = then.tp, then.token_count, then.hidden, then.stage_layers
    notes = (same_gpus(now, then),) if now.model_ranks != then.model_ranks else ()
    if name != "tensor_parallel" or not (tokens and hidden and layers and then.micro_batches):
        return notes
    batches = then.micro_batches * then.model_ranks / now.model_ranks
    each = max(2, round(bytes_per_element(then.dtype) or 2))  # activations are in 16 bits at least
    sent = 4 * layers * batches * 2 * (t - 1) / t * tokens * hidden * each
    return (*notes, words.sent_by_megatron(layers, batches, t, (tokens, hidden, each), sent))


def bubble(now: ModelConfig, then: ModelConfig, *, work_ms: float | None) -> str:
    """The idle share of a pipeline as a formula, with what it assumes."""
    stages, before = then.pp, now.pp
    if stages == 1:
        return words.ONE_STAGE
    if now.micro_batches is None:
        return words.BATCHES_UNKNOWN
    count = now.micro_batches * then.model_ranks / now.model_ranks
    share = (stages - 1) / count
    present = (before, now.micro_batches, (before - 1) / now.micro_batches) if before > 1 else None
    idle = (share * work_ms, work_ms) if work_ms is not None else None
    return words.bubble(stages, count, share, present=present, idle=idle)
