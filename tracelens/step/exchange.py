"""What ranks say to each other when the model is spread over another number of them.

The step before and after run on the same GPUs and take the same tokens: half as many ranks for one copy of
the model are twice as many copies, each with half of the micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracelens.config.model_config import ModelConfig
from tracelens.numbers import ms, sig
from tracelens.results import CommunicationRow, ModelDims, Rest, Span

#: Purposes whose messages are gradients or weights of this rank.
_ON_WEIGHTS = frozenset(
    {"data-parallel gradients", "FSDP parameter gather", "FSDP gradient scatter", "optimizer shards"}
)
_SERVES = {"tensor_parallel": "tensor parallel", "expert_parallel": "expert all-to-all"}
_WORDS = {"tensor_parallel": "tensor-parallel", "expert_parallel": "expert-parallel"}


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
            return Exchange(
                unknown=f"no communication of this trace is known to serve its {before} {_WORDS[name]} ranks,"
                " so what fewer ranks exchange is not predicted"
            )
        rest += _fewer_ranks(serving, name, now, then)
        fewer = True
    if fewer:
        found = _gradients(rows, now, then)
        if isinstance(found, str):
            return Exchange(unknown=found)
        rest += found
        others = sum(row.exposed_ms_per_step for row in rows if row.purpose == "unknown")
        if others > 0:
            notes.append(f"{ms(others)} of exposed communication of unknown purpose stay as measured")
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
    gpus = "1 GPU" if then.model_ranks == 1 else f"{then.model_ranks} GPUs"
    text = (
        f"compared at the same GPUs and tokens per step: one copy of the model takes {gpus} and not"
        f" {now.model_ranks}, so each rank runs {times:g} times as many micro-batches"
    )
    count = now.micro_batches
    if count and (count * times) % 1:
        text += (
            f"; of the present {count} in a step that is no whole number, so its batch has to grow or the"
            " micro-batch to shrink"
        )
    return text


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
        short = "t" if name == "tensor_parallel" else "ep"
        found.append(Rest("communication", phase, f"exposed messages*({short}-1)/{short}", time, estimate))
    return found


def _by_phase(rows: Sequence[CommunicationRow]) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in rows:
        if row.exposed_ms_per_step > 0:
            found[row.phase] = found.get(row.phase, 0.0) + row.exposed_ms_per_step
    return found


def _message(x: ModelConfig, name: str) -> int | None:
    """Elements of one message: an activation, or what the tokens send to their experts."""
    if x.token_count is None or x.hidden is None:
        return None
    return x.token_count * x.hidden * ((x.top_k or 1) if name == "expert_parallel" else 1)


def _gradients(rows: Sequence[CommunicationRow], now: ModelConfig, then: ModelConfig) -> list[Rest] | str:
    """Gradients and weights that copies of the model exchange: each rank holds more of them than before."""
    mine = now.rank_parameters, then.rank_parameters
    if not mine[0] or not mine[1]:
        return "the weights of a rank are not known, so neither are the gradients that copies exchange"
    grown = mine[1] / mine[0]
    serving = [row for row in rows if row.purpose in _ON_WEIGHTS]
    if serving:
        return [
            Rest("communication", phase, "exposed gradients and weights of a rank", time,
                 Span(time, time * grown, time * 2 * grown, "model"))
            for phase, time in _by_phase(serving).items()
        ]  # fmt: skip
    # No copies now: there will be, and their gradients cross the links that the ranks use today.
    copies = max(2.0, now.model_ranks / then.model_ranks)
    speeds = [row.bus_gbps for row in rows if row.bus_gbps and row.purpose in _SERVES.values()]
    if not speeds:
        return "the copies of the model that fewer ranks allow exchange gradients, and no link was measured"
    time = 2 * (copies - 1) / copies * mine[1] * 2 / (max(speeds) * 1e9) * 1e3
    estimate = Span(0.0, time, 2 * time, "model")  # hidden behind the backward; in 16 bits; in 32
    return [Rest("communication", "backward", "gradients of a rank, new between copies", 0.0, estimate)]


def _more_ranks(rows: Sequence[CommunicationRow], name: str, now: ModelConfig, then: ModelConfig) -> str:
    before, after = now.get(name) or 1, then.get(name) or 1
    text = f"what the ranks exchange changes with {name} and is not predicted: "
    if before == 1:
        return text + "this trace has no such exchange to start from"
    serving = [row for row in rows if row.purpose == _SERVES[name]]
    times = sum(row.exposed_ms_per_step for row in serving)
    if not times:
        return text + f"links between {after} ranks were not measured"
    calls = then.model_ranks / now.model_ranks
    grown = times * calls * ((after - 1) / after) / ((before - 1) / before)
    return (
        f"{text}links between {after} ranks were not measured. Were they as fast as those between {before},"
        f" the exposed {ms(times)} would be {ms(grown)}"
    )


def _volume(name: str, now: ModelConfig, then: ModelConfig) -> tuple[str, ...]:
    """What a rank sends in a step, where the formula is known."""
    t, tokens, hidden, layers = then.tensor_parallel or 1, then.token_count, then.hidden, then.stage_layers
    notes = (same_gpus(now, then),) if now.model_ranks != then.model_ranks else ()
    if name != "tensor_parallel" or not (tokens and hidden and layers and then.micro_batches):
        return notes
    batches = then.micro_batches * then.model_ranks / now.model_ranks
    sent = 4 * layers * batches * 2 * (t - 1) / t * tokens * hidden * 2
    scheme = (
        f"in training, by the scheme of Megatron (arXiv 1909.08053), each rank then sends 4 × {layers}"
        " layers ×"
        f" {sig(batches)} micro-batches × 2·({t}-1)/{t} × {tokens} × {hidden} × 2 bytes ="
        f" {sig(sent / 1e9)} GB per step: two all-reduces of an activation in the forward of a layer and two"
        " in its backward"
    )
    return (*notes, scheme)


def bubble(now: ModelConfig, then: ModelConfig, *, work_ms: float | None) -> str:
    """The idle share of a pipeline as a formula, with what it assumes."""
    stages, before = then.pipeline_parallel or 1, now.pipeline_parallel or 1
    if stages == 1:
        return (
            "one stage has no bubble: the idle time that the pipeline left in this step goes, how much of it"
            " is not known"
        )
    text = (
        "the bubble of a pipeline is (stages - 1) / micro-batches of the work (GPipe and 1F1B, arXiv"
        " 2104.04473)"
    )
    if now.micro_batches is None:
        return f"{text}; how many micro-batches a step has is not known here"
    count = now.micro_batches * then.model_ranks / now.model_ranks
    share = (stages - 1) / count
    figure = f"; ({stages} - 1) / {sig(count)} = {share:.1%}"
    if before > 1:
        figure += f", now ({before} - 1) / {now.micro_batches} = {(before - 1) / now.micro_batches:.1%}"
    if work_ms is not None:
        figure += f", {ms(share * work_ms)} of {ms(work_ms)} work"
    return f"{text}{figure}. It takes stages of equal time, no interleaving and transfers that cost nothing"
