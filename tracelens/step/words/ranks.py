"""What ranks that share a model send to each other, and what more or fewer of them change."""

from __future__ import annotations

from tracelens.numbers import count, ms, sig

NO_EXCHANGE = "this trace has no such exchange to start from"
WEIGHTS_UNKNOWN = "the weights of a rank are not known, so neither are the gradients that copies exchange"
NO_LINK = "the copies of the model that fewer ranks allow exchange gradients, and no link was measured"
OF_A_RANK = "exposed gradients and weights of a rank"
BETWEEN_COPIES = "gradients of a rank, new between copies"
FULLEST_ROWS = "rows of the fullest rank"
STAGES_WAIT = "what stages send and how long they wait for each other is not predicted"
ONE_STAGE = (
    "one stage has no bubble: the idle time that the pipeline left in this step goes, how much of it is not"
    " known"
)
_BUBBLE = (
    "the bubble of a pipeline is (stages - 1) / micro-batches of the work (GPipe and 1F1B, arXiv 2104.04473)"
)
_ADJECTIVES = {"tensor_parallel": "tensor-parallel", "expert_parallel": "expert-parallel"}
_LETTERS = {"tensor_parallel": "t", "expert_parallel": "ep"}


def serves_none(name: str, ranks: int) -> str:
    """Nothing that is sent is known to serve these ranks."""
    return (
        f"no communication of this trace is known to serve its {ranks} {_ADJECTIVES[name]} ranks,"
        " so what fewer ranks exchange is not predicted"
    )


def unknown_purpose(exposed_ms: float) -> str:
    """What becomes of messages of which nobody knows what they are for."""
    return f"{ms(exposed_ms)} of exposed communication of unknown purpose stay as measured"


def messages(name: str) -> str:
    """What the exposed time of messages goes with."""
    return f"exposed messages*({_LETTERS[name]}-1)/{_LETTERS[name]}"


more_ranks = "what the ranks exchange changes with {} and is not predicted: {}".format


links_not_measured = "links between {} ranks were not measured".format


def were_links_as_fast(before: int, after: int, now_ms: float, then_ms: float) -> str:
    """The same, and what would be if they were as fast as those that were measured."""
    return (
        f"{links_not_measured(after)}. Were they as fast as those between {before}, the exposed {ms(now_ms)}"
        f" would be {ms(then_ms)}"
    )


def same_gpus(now: int, then: int, times: float, batches: int | None) -> str:
    """What a comparison of other ranks keeps. ``batches``: of a step, where a rank gets no whole number."""
    gpus = "1 GPU" if then == 1 else f"{then} GPUs"
    return (
        f"compared at the same GPUs and tokens per step: one copy of the model takes {gpus} and not {now},"
        f" so each rank runs {times:g} times as many micro-batches"
    ) + (
        f"; of the present {batches} in a step that is no whole number, so its batch has to grow or"
        " the micro-batch to shrink"
        if batches
        else ""
    )


def sent_by_megatron(
    layers: int, batches: float, ranks: int, activation: tuple[int, int, int], sent: float
) -> str:
    """Bytes that a rank sends in a step, as a formula; ``activation``: tokens, hidden and bytes."""
    tokens, hidden, each = activation
    return (
        f"in training, by the scheme of Megatron (arXiv 1909.08053), each rank then sends 4 × {layers} layers"
        f" × {count(batches)} micro-batches × 2·({ranks}-1)/{ranks} × {tokens} × {hidden} × {each} bytes ="
        f" {sig(sent / 1e9)} GB per step: two all-reduces of an activation in the forward of a layer and two"
        " in its backward"
    )


BATCHES_UNKNOWN = f"{_BUBBLE}; how many micro-batches a step has is not known here"


def bubble(
    stages: int,
    batches: float,
    share: float,
    *,
    present: tuple[int, int, float] | None,
    idle: tuple[float, float] | None,
) -> str:
    """The idle share of a pipeline. ``present``: stages, micro-batches, share; ``idle``: ms, of ms."""
    figure = f"({stages} - 1) / {count(batches)} = {share:.1%}"
    if present is not None:
        figure += f", now ({present[0]} - 1) / {present[1]} = {present[2]:.1%}"
    if idle is not None:
        figure += f", {ms(idle[0])} of {ms(idle[1])} work"
    return (
        f"{_BUBBLE}; {figure}. It takes stages of equal time, no interleaving and transfers that cost nothing"
    )
