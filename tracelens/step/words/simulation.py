"""What a simulated change says: how a time was predicted, why it was not, and what is taken for granted."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.numbers import ms, percent, plural, sig

SIZES_NOT_IN_TRACE = "their sizes are not in the trace"
NO_DIMENSION = "no model dimension gives their sizes"
OTHER_HEADS = "their heads are not the model's"
OTHER_VALUES = "their values have another width than their keys"
CHANGE_UNKNOWN = "what the change does to their sizes is not known"
PADDING = "copies that pad"
NO_TIME = "they took no time"
THEN_UNPREDICTED = "the new shape has no prediction"
NOW_UNPREDICTED = "the present shape has no prediction"
UNPREDICTED = "no prediction"
VOCAB_UNTOLD = "whether ranks split the vocabulary is not known: `tracelens capture` writes down its size"

SAME_SHAPE = "same shape"
TRACE_MISALIGNED = "this trace's misaligned GEMMs over their predictions"
THIS_GEMM = "this GEMM over its prediction, as far as aligned ones vary"

COUNTED_ONCE = "parameters: the embedding is counted once, as if tied to the output matrix"
IDLE_STAYS = (
    "idle time is taken as it is now: whether the CPU takes longer with other tokens is not known, so the"
    " time per token is no prediction"
)
RANKS_UNKNOWN = "tensor parallelism is not known: sizes are taken as one rank holds them"
MESSAGES_STAY = "communication stays as measured, though its messages change size"
EVEN_EXPERTS = "experts are taken as evenly loaded: the fullest expert is slower than that"
OWN_LOADS = "each expert keeps its share of the rows"
FILLED = "every expert is taken as filled to its capacity, with padding where it has fewer tokens"
OTHER_TOKENS_TAKEN = "which tokens are dropped, and the model's quality with it, change with the capacity"
PADDING_ROWS = (
    "rows of padding hold no token; a kernel whose tile is as tall computes as many rows either way"
)
FULLEST_RANK = (
    "GEMMs of the fullest rank are taken to take time with its rows; one trace does not tell which rank"
    " that is, so the range reaches from this one to one that it waits for in every exposed all-to-all"
)
MOVING_TOKENS = "moving tokens to their experts stays as measured for each token"
STATE_KEEPS_TYPE = (
    "the optimizer's state keeps its type, and kernels that compute in fp32 throughout do not change"
)


needs_blocks = "GEMMs in {} need rows of a multiple of {} elements".format


nothing_known = "nothing is known of {} on this GPU".format


no_model = "attention kernels of the family {} have no model".format


def as_predictions_move(call_us: float, new_us: float, old_us: float, then_us: float) -> str:
    """A measured time moved by the ratio of two predictions."""
    return f"{sig(call_us)} µs measured × {sig(new_us)} / {sig(old_us)} µs predicted = {sig(then_us)} µs"


def as_predicted(then_us: float, call_us: float) -> str:
    """The prediction as it stands."""
    return f"{sig(then_us)} µs predicted, was {sig(call_us)} µs"


def as_aligned_run(new_us: float, factor: float, then_us: float, call_us: float) -> str:
    """A prediction corrected by how this trace's aligned GEMMs run."""
    return (
        f"{sig(new_us)} µs predicted × {factor:.4g} (this trace's aligned GEMMs over their predictions)"
        f" = {sig(then_us)} µs, was {sig(call_us)} µs"
    )


def as_others_run(new_us: float, factor: float, whose: str, then_us: float, call_us: float) -> str:
    """A prediction corrected by the pace of others, or of the GEMM itself."""
    return f"{sig(new_us)} µs predicted × {sig(factor)} ({whose}) = {sig(then_us)} µs, was {sig(call_us)} µs"


def as_attention_moves(call_us: float, ratio: float, then_us: float, *, packed: bool) -> str:
    """A measured call of attention moved by the ratio of predictions."""
    how = f"{sig(call_us)} µs measured × {sig(ratio)} (predicted after over before) = {sig(then_us)} µs"
    return f"{how}, between sequences of 512 tokens and a single one" if packed else how


def held_to_best(how: str, tflops: float, least_us: float) -> str:
    """A prediction that is faster than any measured matmul."""
    return f"{how}, held to the {sig(tflops)} TFLOP/s of the best matmul: {sig(least_us)} µs"


def no_faster_than_on_grid(how: str, aligned_us: float) -> str:
    """A misaligned shape that would be faster than an aligned one."""
    return f"{how}, taken as {sig(aligned_us)} µs: no faster than on the grid"


def held_to_datasheet(how: str, floor_us: float) -> str:
    """A prediction that is faster than the datasheet allows."""
    return f"{how}, taken as {sig(floor_us)} µs, the least that the datasheet allows"


def as_often(how: str, times: float) -> str:
    """The same for a row that also runs more or less often."""
    return how if times == 1.0 else f"{how}, {times:.4g} times as often"


with_bytes = "bytes grow with {}".format


casts = "casts to {}, 3 bytes of each element of the operands".format


no_saving = "no saving is given: {}".format


def reasons(most: Sequence[str], more: int) -> str:
    """Reasons, the weightiest first, and how many are left out."""
    return "; ".join([*most, *([plural(more, "more reason")] if more > 0 else [])])


def too_much_unpredicted(gap_ms: float, whole_ms: float, why: str) -> str:
    """Too much of what a change touches is not predicted for a saving."""
    return f"{ms(gap_ms)} of the {ms(whole_ms)} that the change touches are not predicted ({why})"


def some_unpredicted(gap_ms: float, why: str) -> str:
    """Some of what a change touches is not predicted."""
    return (
        f"{ms(gap_ms)} of affected GEMMs are not predicted ({why}): taken as unchanged, and the range lets"
        " them move as the others do"
    )


def gpu_work_note(busy: float) -> str:
    """What to know about a saving of GPU work, as a sentence without capital and full stop."""
    return (
        f"the GPU is idle {percent(1 - busy)} of the time: where it waits for the CPU, shorter kernels"
        " make no shorter step"
    )


ffn_stays = "the MLP stays {} wide: --what-if hidden=...,ffn=... changes both".format


def vocab_of_rank(vocab: int | None, parts: int) -> str:
    """The vocabulary is what one rank has, or ``parts`` of it are the whole."""
    if parts > 1:
        return f"{parts} ranks split the vocabulary: this one's logits have {vocab} columns"
    return f"the vocabulary is what this rank's logits have: {vocab} columns"


whole_vocab = "every rank computes logits of the whole vocabulary, {} columns, then as now".format


def layers_of_stages(layers: int, stages: int, longest: int, *, mean: float, more: float) -> str:
    """How layers fall on stages; ``more``: the longest above the mean, a share."""
    text = f"{layers} layers over {stages} stages: the longest has {longest}"
    return (
        f"{text}, {more:.1%} more than the mean of {mean:.4g}, and the others wait for it" if more else text
    )


def to_low_precision(dtype: str | None) -> str:
    """Which layers a type of low precision is taken for, and what of its casts is known."""
    return (
        f"{dtype} is taken for the linear layers of attention, MLP and experts; the casts of their operands"
        " that it adds are in the range, from all fused into other kernels to 5 bytes of each element"
    )


from_low_precision = "casts, scales and transposes of {} stay as measured, though they would go".format


def stalled(stalls: int, calls: int) -> str:
    """Calls of a row stalled, as a sentence without its full stop."""
    return f"{stalls} of {plural(calls, 'call')} stalled"


def stalled_for(stalls: int, calls: int, took_ms: float, others_us: float) -> str:
    """The same with how long they took, on average where they are several."""
    took = f"took {ms(took_ms)}" + (" on average" if stalls > 1 else "")
    return (
        f"{stalls} of {plural(calls, 'call')} {took}, the others {sig(others_us)} µs: a stall, not the shape"
    )
