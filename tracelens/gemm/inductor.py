"""What the names of torch.compile's kernels say.

Inductor names a kernel ``triton_{category}_fused_{operators}_{n}``: the sorted, unique names of the ATen
operators whose nodes it fused, joined by ``_`` (``define_kernel`` in torch/_inductor/codegen/triton.py,
``get_fused_kernel_name`` in torch/_inductor/utils.py). The names hold underscores themselves, so
``parse_fused`` splits with a vocabulary and with the order; its ``tags`` say what the list proves.

The list names the operators the *source* called, before decomposition, and it names neighbours: a view
of a GEMM's result puts ``mm`` into the list, and a scalar constant that two kernels share carries the name
of the operator that made it into the other kernel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from tracelens.gemm import inductor_ops as known

#: ``kernel_category[:3]`` of ``define_kernel``; a combo of several kernels has no single category (unk)
_KINDS = {
    "poi": "pointwise",
    "per": "persistent_reduction",
    "red": "reduction",
    "tem": "template",
    "for": "foreach",
    "spl": "split_scan",
    "unk": "unknown",
}
#: Triton 2's signature suffix: argument numbers, d divisible by 16, e by 8, c equal to 1
SIGNATURE = r"(?:_0[0-9cde]*[cde][0-9cde]*)?"
#: ROCm's names of compiled kernels
CLONE = r"(?:\.kd| \[clone \.kd\])?"
_FUSED = re.compile(
    # the text before "triton" is AOTInductor's model name; torch 2.0 wrote no category
    r"(?:(?:\w+_)?triton_(?P<kind>poi|per|red|tem|for|spl|unk)|triton|cpp)_fused"
    rf"(?:_(?P<ops>\w+?))?_\d+{SIGNATURE}{CLONE}"
)
#: ``unique_kernel_names`` or ``descriptive_names`` off: no list at all
_NAMELESS = re.compile(rf"triton_(?:(?P<kind>poi|per|red|tem|for|spl|unk)_)?(?:_\d+)?{SIGNATURE}{CLONE}")


@dataclass(frozen=True, slots=True)
class Fused:
    """One kernel of Inductor, as its name tells it.

    ``kind`` is pointwise, persistent_reduction, reduction, template, foreach, split_scan or unknown.
    ``ops`` are the names of ATen operators in the order of the name; ``unknown`` are the stretches between
    them that are no known operator (custom operators, a name cut off). ``tags`` say what work the list
    proves, wherever it stands in the model; a tag of a forward operator and that of its backward stand
    side by side only for norms, whose backward's name also marks statistics saved by the forward.
    """

    kind: str
    ops: tuple[str, ...]
    unknown: tuple[str, ...]
    tags: frozenset[str]


@cache
def parse_fused(name: str) -> Fused | None:
    """Split a kernel name of Inductor; None for a name that is not Inductor's.

    >>> parse_fused("triton_poi_fused__unsafe_view_pow_relu_9").ops
    ('_unsafe_view', 'pow', 'relu')
    """
    if name.startswith("triton_") and name[7:] in known.TEMPLATES:
        return Fused("template", (name[7:],), (), _tags("template", (name[7:],), ()))
    match = _FUSED.fullmatch(name)
    if match is None:
        nameless = _NAMELESS.fullmatch(name)
        return nameless and Fused(_KINDS.get(nameless["kind"], "unknown"), (), (), frozenset())
    kind = _KINDS.get(match["kind"], "unknown")
    pieces = split_ops(match["ops"] or "")
    ops = tuple(piece for piece, is_op in pieces if is_op and not piece.isdigit())
    unknown = tuple(piece for piece, is_op in pieces if not is_op)
    return Fused(kind, ops, unknown, _tags(kind, ops, unknown))


# --- the list of operators -------------------------------------------------------------------------


class _Path(NamedTuple):
    """One way to read the text so far, ending in ``piece``; the first three fields are its cost."""

    unknown: int  # characters
    stretches: int
    pieces: int
    piece: str
    is_op: bool
    before: _Path | None

    def walk(self) -> list[tuple[str, bool]]:
        pieces: list[tuple[str, bool]] = []
        path: _Path | None = self
        while path is not None and path.before is not None:
            pieces.append((path.piece, path.is_op))
            path = path.before
        return pieces[::-1]


_LONGEST = 64  # characters; no operator's name is longer


@cache
def split_ops(text: str) -> tuple[tuple[str, bool], ...]:
    """Split ``add_native_layer_norm_view`` into (piece, is a known operator), losing no character.

    Joined by ``_`` the pieces give the text again. Fewest unknown characters win among the splits that
    are in order, as the list is sorted and unique; only a text that the vocabulary covers whole may be out
    of order (``descriptive_names = "inductor_node"``: graph order, with numbers behind the names).
    """
    if not text:
        return ()
    best = _cheapest(text, ordered=True)
    if best.unknown:
        unordered = _cheapest(text, ordered=False)
        best = best if unordered.unknown else unordered
    return tuple(_merged(best.walk()))


def _cheapest(text: str, *, ordered: bool) -> _Path:
    ends = [at for at, character in enumerate(text) if character == "_" and at] + [len(text)]
    reached: dict[int, dict[tuple[str, bool], _Path]] = {0: {("", True): _Path(0, 0, 0, "", True, None)}}
    for start in [0, *(end + 1 for end in ends[:-1])]:
        paths = reached.get(start)
        if not paths:
            continue
        pieces = [(end, text[start:end]) for end in ends if start < end <= start + _LONGEST]
        for end, piece in pieces or [(ends[-1], text[start:])]:
            is_op = _is_op(piece) or (not ordered and piece.isdigit())
            cost = (0, 0, 1) if is_op else (len(piece), 1, 1)
            for path in paths.values():
                if (ordered and piece <= path.piece) or (piece.isdigit() and not path.piece):
                    continue
                new = _Path(
                    path.unknown + cost[0], path.stretches + cost[1], path.pieces + 1, piece, is_op, path
                )
                there = reached.setdefault(end + 1, {})
                key = (piece if ordered else "", is_op)
                if key not in there or new[:3] < there[key][:3]:
                    there[key] = new
    whole = reached.get(len(text) + 1)
    if not whole:  # in no order at all: one stretch
        return _Path(len(text), 1, 1, text, False, _Path(0, 0, 0, "", True, None))
    return min(whole.values(), key=lambda path: path[:3])


def _is_op(piece: str) -> bool:
    """A known operator, or its in-place form (``copy_``), or torch's backward form (``gelubackward``)."""
    if piece in known.VOCABULARY:
        return True
    if piece.endswith("backward"):
        return piece.removesuffix("backward") in known.VOCABULARY
    return piece.endswith("_") and piece[:-1] in known.VOCABULARY and piece[0] != "_"


def _merged(pieces: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Neighbouring unknown stretches as one: where one custom operator ends is not known."""
    out: list[tuple[str, bool]] = []
    for piece, is_op in pieces:
        if out and not is_op and not out[-1][1]:
            out[-1] = (f"{out[-1][0]}_{piece}", False)
        else:
            out.append((piece, is_op))
    return out


# --- what a list proves ----------------------------------------------------------------------------

#: tag of the forward operators, those operators, and the operators of their backward
_PAIRS = (
    ("norm", known.NORM, known.NORM_BACKWARD),
    ("softmax", known.SOFTMAX, known.SOFTMAX_BACKWARD),
    ("embedding", known.EMBEDDING, known.EMBEDDING_BACKWARD),
    ("dropout", known.DROPOUT, known.DROPOUT_BACKWARD),
    ("activation", known.ACTIVATION, known.ACTIVATION_BACKWARD - {"threshold_backward"}),
    ("loss", known.LOG_SOFTMAX | known.OTHER_LOSS, known.LOG_SOFTMAX_BACKWARD | known.OTHER_LOSS_BACKWARD),
)
_SINGLE = (
    ("add", frozenset({"add", "iadd"})),
    ("sum", known.SUM),
    ("random", known.RANDOM),
    ("pad", known.PAD),
    ("attention", known.ATTENTION),
    ("clip", known.CLIP),
    ("rope", frozenset({"polar", "view_as_complex"})),
)
#: Custom operators around attention kernels: aiter_sage_attn, fmha_v3_fwd.
_ATTENTION_TEXT = re.compile("attn|attention|fmha")
#: Tags that name a place in a transformer; beside one of them a leaked name proves nothing.
_PLACES = frozenset(word + way for word, *_ in _PAIRS for way in ("", "_backward"))
_ROTATE = known.LAYOUT | known.CAST | {"add", "mul", "neg", "sub", "sum", "cos", "sin"}

#: With no difference in it, as a loss has.
_MEAN_SQUARE = known.LAYOUT | known.CAST | {"add", "mean", "mul", "pow", "rsqrt", "sigmoid", "square"}


def averages_squares(name: str) -> bool:
    """Whether a kernel's name says that it takes the mean of squares and does little else.

    A normalization without a weight, or the first pass of one.
    """
    fused = parse_fused(name)
    return fused is not None and not fused.unknown and _averages_squares(fused.kind, frozenset(fused.ops))


def _averages_squares(kind: str, has: frozenset[str]) -> bool:
    squares = "reduction" in kind and "mean" in has and bool(has & {"pow", "square"})
    return squares and has - known.MATMUL <= _MEAN_SQUARE  # with the bias of the product before


def _tags(kind: str, ops: tuple[str, ...], unknown: tuple[str, ...]) -> frozenset[str]:
    """What the list proves; see the module's head for why presence alone can be too little."""
    has = frozenset(map(_canonical, ops))
    tags = {tag for tag, names in _SINGLE if has & names}
    for tag, forward, backward in _PAIRS:
        if has & forward:
            tags.add(tag)
        if has & backward:
            tags.add(tag + "_backward")
    if any(_ATTENTION_TEXT.search(text) for text in unknown):
        tags.add("attention")
    if kind == "template":
        # Fusing a scale into an integer product leaves the scale's name alone (triton_tem_fused_mul_9);
        # attention and convolutions always leave their own.
        tags |= set() if has & (known.ATTENTION | known.CONVOLUTION) else {"gemm"}
    elif has & (known.MATMUL | known.CONVOLUTION):
        tags.add("bias")
    tags |= _updates(has, ops)
    tags |= _written_out(kind, has, optimizer="optimizer" in tags)
    tags |= _routing(has, tags)
    tags |= _leaky(has, tags)
    if kind != "template" and not unknown and has <= known.CAST | known.LAYOUT:
        tags |= {tag for tag, names in (("cast", known.CAST), ("layout", known.LAYOUT)) if has & names}
    # The backward computes a forward operator again and never the reverse, but for norms: the statistics
    # a forward saves carry the backward's name.
    return frozenset(tag for tag in tags if tag in ("norm", "embedding") or f"{tag}_backward" not in tags)


def _canonical(op: str) -> str:
    """An operator without its in-place underscore, and torch's ``gelubackward`` as ``gelu_backward``."""
    op = op[:-1] if op.endswith("_") and op not in known.VOCABULARY else op
    if op.endswith("backward") and op not in known.VOCABULARY:
        return op.removesuffix("backward") + "_backward"
    return op


def _updates(has: frozenset[str], ops: tuple[str, ...]) -> set[str]:
    """Optimizer steps and the clipping of gradients.

    ``linalg_vector_norm`` alone is as well a weight's norm in Muon or ``F.normalize``: clipping stacks the
    norms of many gradients and clamps the quotient (torch/nn/utils/clip_grad.py).
    """
    tags = set()
    if has & known.VECTOR_NORM:
        tags.add("clip" if has & {"stack", "clamp", "clamp_max"} else "vector_norm")
    moments = has & {"lerp", "addcmul", "addcdiv"}
    moments |= {"copy_"} & {*ops} if {"add", "div", "mul", "sqrt"} <= has else set()
    update = has & {"sqrt"} or "copy_" in ops or {"rsqrt", "clamp_min"} <= has
    foreach = has & known.OPTIMIZER and not (has & (known.CLIP | {"linalg_vector_norm"}))
    if foreach or (moments and update) or has & {"_foreach_addcdiv", "_foreach_sqrt", "_foreach_lerp"}:
        tags.add("optimizer")
    return tags


def _written_out(kind: str, has: frozenset[str], *, optimizer: bool) -> set[str]:
    """Norms, softmax, activations, gates and rotations that the model spells in arithmetic.

    Lists of forward and backward were compared with those that torch 2.13 gives for such models.
    """
    tags = set()
    variance = {"var", "var_mean"} & has and {"rsqrt", "sqrt"} & has and "sub" in has
    if not optimizer and (variance or ({"mean", "rsqrt"} <= has and has & {"pow", "square", "mul"})):
        tags.add("norm")
    if not optimizer and _averages_squares(kind, has):  # the root is taken where it is used
        tags.add("norm")
    if not optimizer and {"add", "div", "expand", "mul", "pow"} <= has:  # of x * rsqrt(mean(x ** 2))
        tags.add("norm_backward")
    if {"rand", "floor"} <= has or "bernoulli" in has:  # of stochastic depth: floor(keep + rand)
        tags.add("dropout")
    if {"exp", "sub", "sum", "div"} <= has and has & {"amax", "max"}:
        tags.add("softmax")
    if {"erf", "mul"} <= has:  # the derivative of erf is an exponential of a square
        tags.add("activation_backward" if {"exp", "pow"} <= has else "activation")
    if {"tanh_backward", "pow", "mul"} <= has:
        tags.add("activation_backward")
    elif {"tanh", "add", "mul", "pow"} <= has and not has & {"mean", "rsqrt"}:  # GPT-2's GELU
        tags.add("activation")
    if "sigmoid_backward" in has:
        tags.add("gate_backward")
    elif {"sigmoid", "mul"} <= has:  # SiLU by hand, or a gate of attention: the list is the same
        tags.add("gate")
    if _rotates(has):
        tags.add("rope")
    return tags


def _rotates(has: frozenset[str]) -> bool:
    """Whether pairs are rotated: a table of cosines times, or halves negated, swapped and scaled."""
    if "mul" not in has:
        return False
    if has & {"cos", "sin"} and ("exp" not in has or "neg" in has):  # exp alone: timestep embeddings
        return True
    if "neg" in has and has & {"cat", "stack"} and has & known.HALVES:
        return True
    # Halves as x1*c - x2*s and x2*c + x1*s, or rotate_half's backward, with nothing else in the kernel.
    halves = {"add", "sub"} <= has and has & {"cat", "stack"}
    back = {"add", "neg", "slice", "slice_backward"} <= has
    return bool(has <= _ROTATE and (halves or back))


def _routing(has: frozenset[str], tags: set[str]) -> set[str]:
    """Routers of experts. Scatter and gather alone also pick the loss's targets."""
    if has & known.ROUTER or len(has & known.ROUTER_HELPERS) > 1:
        return {"router"}
    scores = tags & {"softmax", "softmax_backward"} or "sigmoid" in has
    loss = tags & {"loss", "loss_backward"}
    picks = has & (known.ROUTER_HELPERS | {"gather"})
    return {"router"} if scores and picks and not loss else set()


def _leaky(has: frozenset[str], tags: set[str]) -> set[str]:
    """Tags from operators whose scalar constants other kernels take over, their name with them.

    Equal constants are one node for Inductor: nll_loss_forward stands in the squared ReLU's backward
    and threshold_backward in a masked softmax's. So these need company, or nothing else to be.
    """
    alone = not tags & _PLACES
    if "threshold_backward" in has and (alone or has & {"relu", "pow", "square"}):
        return {"activation_backward"}
    if has & known.NLL and (alone or has & {"gather", "logsumexp", "prepare_softmax_online"}):
        return {"loss"}
    if has & known.NLL_BACKWARD and (alone or has & {"exp", "logsumexp"}):
        return {"loss_backward"}
    return {"loss"} if {"gather", "logsumexp"} <= has else set()
