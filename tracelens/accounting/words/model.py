"""Where a dimension or a degree of the model is read from, or why it is not known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from tracelens.numbers import plural
from tracelens.results import Found

#: Which GEMMs make keys and values: one with the queries, one for both, one for each.
Projections = Literal["with_queries", "together", "apart"]

NOT_ATTRIBUTED = "no GEMM of this trace is attributed to the part that shows it"
NO_SHAPES = "no operator behind these GEMMs has shapes"
VOCABULARY_HEAD = "the head chooses from a vocabulary"

SHARED_VALUES = "all heads attend to the same values, whose width is that of no head (latent attention)"

NO_LAYER_NAMED = "no layer is named, and nothing tells layers from passes of the model"
LAYERS_NAMED = "layers named in the trace"

NO_ROUTER = "no router of experts shows its sizes in this trace"
NO_GROUPED_GEMM = "no grouped GEMM shows how many experts this rank has"

NEEDS_HEADS = "needs hidden size, heads and head dimension"
HIDDEN_ON_RANK = "hidden = heads x head dimension on this rank"
MESH_DIMENSION = "a dimension of the device mesh is named after it"
PROCESS_GROUP = "a process group is named after it"
ONE_RANK = "the job has one rank"
NO_COMMUNICATION = "the trace has no communication"
COMMUNICATION_UNSEEN = "too much of the GPU time could not be told apart to rule communication out"
NOTHING_SENT = "nothing is sent from rank to rank in this trace"
NO_PIPELINE_GROUP = "messages are sent from rank to rank, and no process group is named after a pipeline"
NO_EXPERT_GROUP = "ranks communicate, and no process group is named after experts"
no_clear_value = "{} shows {} values, none of them in most of its time".format
classes = "the head is {} wide: no embedding has as many rows, and it works on {} rows".format
words_or_classes = (
    "the head is {} wide: of words or classes, neither a table nor a loss of the trace tells"
).format
no_classes = "the head gives {} for each row, and no loss that chooses from them is seen".format
head_of_another_width = "the head takes {} values a row, where the layers are {} wide".format
layers_in_none = "layers not told apart: {} of {} calls of {} are in one".format
layers_behind_others = "{} layers are counted, behind GEMMs that are in none".format
heads_do_not_fit = (
    "{} heads of {} make neither the hidden size, {}, nor what the output projection takes, {}"
).format
packed = "sequences are packed, {} tokens in a micro-batch; their lengths are not in the trace".format
hidden_split = (
    "hidden / (heads x head dimension on this rank) = {} / {}, and ranks exchange activations"
).format
hidden_is_not_heads = "hidden {} is not heads x head dimension = {}: sharded, or heads of another size".format
own_heads = "queries, keys and values are made {} wide each, with heads of {}".format
weights_of_graph = "in all {} weights that the graph is called with {} times".format
weights_both_ways = "weights to it and back in each of {} layers".format
outside_replay = "{} attention operators outside the graph's replay".format
messages = "{} messages of {} elements in layers, {} of {} in loss".format
only_tokens = "of {} tokens in a micro-batch nothing tells one from the other".format
nothing_chooses = "no operator is seen that chooses from {}".format
grouped = "grouped GEMMs of {} of the {} experts".format
only_group = "the one process group serves {}".format
exchanges = "groups of {} ranks exchange activations".format


def not_whole(found: Found) -> str:
    """Of a model that is not recognised as a whole."""
    if found == "none":
        return "no part of a transformer was recognised"
    return "parts of a transformer were recognised, but not the whole of one"


def forward_calls(what: str, *, showing: int, calls: int, values: int) -> str:
    """Of ``calls`` that show ``values`` values, those ``showing`` this one."""
    note = "" if showing == calls else f" (of {values} values the one with most time)"
    return f"{showing} of {calls} forward calls of {what}{note}"


def projections_of_several_counts(widths: Iterable[int]) -> str:
    """Of projections that another number of key/value heads fits as well."""
    wide = ", ".join(map(str, sorted(widths)))
    return f"the projections before attention are {wide} wide: more than one number of them fits"


def one_part(part: str, share: float) -> str:
    """Of a file in which a part of the layers mostly has no shapes."""
    least = f"{share:.0%}" if share >= 0.005 else "less than 1%"
    return f"only {least} of {part} has shapes: they can be another model's"


def several_widths(widths: Sequence[int]) -> str:
    """Of layers that are no one model."""
    return f"layers of several widths, {', '.join(map(str, widths))}: no one model"


def layers_counted(stream: int | None, *, models: int = 1) -> str:
    """Of layers that are counted, those with a ``stream`` so wide or all."""
    which = "layers counted in the step" if stream is None else f"layers whose stream is {stream} wide"
    return which if models == 1 else f"{which}, in each of {models} models or passes"


def layers_in_one(calls: int, component: str, steps: int) -> str:
    """Of more calls than one layer can have."""
    return f"layers not told apart: {calls} calls of {component} in {plural(steps, 'step')}"


def layers_of_a_part(layers: int, *, cut: bool) -> str:
    """Of a step that is not whole, or of one of several GPUs."""
    where = "in the part of a step that is in the trace" if cut else "on one of several GPUs"
    return f"{layers} layers are counted, {where}"


def layers_of_several(each: Sequence[int]) -> str:
    """Of models, or parts of one, with so many layers."""
    counts = " and ".join(map(str, each))
    return f"{counts} layers are counted: of several models, or of parts or passes of one"


def layers_of_mixers(mlps: int) -> str:
    """Of state-space mixers that may be layers of their own."""
    return f"{plural(mlps, 'layer')} with an MLP, and state-space mixers that can be layers of their own"


def several_batches(sizes: Sequence[tuple[int, int]]) -> str:
    """Of attention over batches of several sizes."""
    shown = " and ".join(f"{batch} x {length}" for batch, length in sizes[:2])
    return f"attention runs on {len(sizes)} sizes of batch x sequence, {shown} among them"


def heads_of_scores(*, of_hidden: bool) -> str:
    """Of heads and micro-batch, from the hidden size or what the output projection takes."""
    what = "hidden" if of_hidden else "width of the output projection's input"
    return f"{what} / head dimension, with the batch of the score GEMMs"


def repeated_heads(made: Projections, width: int, *, head_dim: int, each: int, heads: int) -> str:
    """Of fewer key/value heads than heads."""
    how = {
        "with_queries": f"one GEMM makes q, k and v, {width} wide",
        "together": f"one GEMM makes k and v, {width} wide",
        "apart": f"k and v are made by GEMMs {width} wide",
    }[made]
    return f"{how}, with heads of {head_dim}; each is repeated for {each} of the {heads} heads"


def in_the_modules(model: str, source: str) -> str:
    """Of a size that the capture read from the model itself."""
    return f"the modules of {model or 'the model'}, as the capture saw them: {source}"


def chosen(experts: int, counts: Sequence[int]) -> str:
    """Of how many experts a token goes to."""
    return f"of {experts} experts {', '.join(map(str, counts))} are chosen"


def groups_differ(sizes: Sequence[int]) -> str:
    """Of groups of one kind that are not of one size."""
    return f"groups of {', '.join(map(str, sizes))} ranks are named so"
