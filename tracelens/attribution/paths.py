"""The modules and ranges around an operator, as a path, and what the path says it is part of."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

import numpy as np

from tracelens.attribution.names import element_role, layer_of_fqn, layer_of_text, op_rule, split_counter
from tracelens.attribution.patterns import AROUND_THE_MODEL, MODULE_IN_RANGE, RANGES
from tracelens.gemm.inductor import parse_fused
from tracelens.trace import BoolArray, CodeArray, Links, Trace
from tracelens.trace.tables import Symbols

_MODULE = "nn.Module: "
_FQN = re.compile(r"^[A-Za-z_]\w*(\.\w+)+$")
#: Ranges that the profiler, the compiler or the data loader put there: no part of the model.
_NOT_MODEL = re.compile(
    r"^(ProfilerStep#|Torch-Compiled Region|## Call Compiled|enumerate\(DataLoader\)|DataLoader"
    r"|PyTorch Profiler|Iteration|TorchDynamo|pytorch\.|AOTDispatcher|Inductor|CompiledFxGraph|timed region|"
    + "|".join(pattern for pattern, _ in AROUND_THE_MODEL)
    + ")"
)
_MODULE_IN_RANGE = [re.compile(pattern) for pattern, _ in MODULE_IN_RANGE]
#: A module of one product, and what a module that holds some is, whatever it is called after (in timm
#: ``SwiGLU`` is an MLP, ``AttentionRope`` attention).
_PRODUCT = re.compile(r"\w*Linear(4bit|8bitLt)?|Conv1D")
_BLOCK = re.compile(
    r"(?<!linear)(?<!linear_)(?<!dense)(?<!dense_)block|(transformer|decoder|encoder|residual)_?layer",
    re.IGNORECASE,
)
_BLOCK_OF_ATTENTION = re.compile(r"attention_?(block|layer)$", re.IGNORECASE)
_HOLDS = {"activation": "mlp", "rope": "attention"}
_BLOCKS = ("moe", "experts", "mlp")
_RANGES = [(role, re.compile(pattern)) for role, pattern, _ in RANGES]


@dataclass(frozen=True, slots=True)
class Element:
    """One module or range on a path."""

    text: str  # class or attribute name, or the range's text
    role: str | None
    layer: int | None
    named: bool  # a named range of the user's (annotation) and not an nn.Module frame


def is_block(element: Element) -> bool:
    """Is it a layer that holds more than a product?"""
    return element.role == "layer" and bool(_BLOCK.search(element.text))


@dataclass(frozen=True, slots=True)
class Path:
    """Outermost first."""

    elements: tuple[Element, ...]
    module: str  # how it is shown: dotted

    @property
    def layer(self) -> int | None:
        return next((element.layer for element in reversed(self.elements) if element.layer is not None), None)

    def roles(self) -> tuple[str | None, ...]:
        return tuple(element.role for element in self.elements)


@dataclass(frozen=True)
class Paths:
    """Every distinct path of a trace and the path of every host span."""

    paths: list[Path]
    outer: list[int]  # per path, and behind all for -1: the path around it; -1
    of_node: CodeArray  # per node: the path around it; -1 outside every module and range
    of_label: CodeArray  # per kernel: the path that marks it in its CUDA graph; -1 for none
    context: CodeArray  # per node: the nearest module or range node; -1
    attention: CodeArray  # per node: the outermost attention block around it; -1
    mlp: CodeArray  # per node: the outermost MLP around it; -1
    closure: BoolArray  # per node: an optimizer's step that runs the model inside; on no path
    with_experts: frozenset[int]  # paths that end in a module with experts or a router inside it
    beside_experts: frozenset[int]  # paths that end in a mixture whose experts are a module of their own


def find_paths(trace: Trace, links: Links) -> Paths:
    """Collect the modules and ranges around every host span."""
    texts = trace.symbols
    is_telling = links.mask(links.frames_at)  # the trace room keeps only frames that name a part of the work
    is_range = links.mask(links.ranges_at) & ~texts.where(lambda t: bool(_NOT_MODEL.match(t)))[links.name]
    is_block = links.is_op & texts.where(lambda t: op_rule(t) == "attention_block")[links.name]
    wanted = is_telling | is_range | is_block
    closure = wanted & _closures(trace, links)
    wanted &= ~closure
    nearest = links.forest.nearest(wanted)

    above = links.forest.above(nearest)
    codes = links.name * 4 + np.where(is_block, 2, is_range)
    paths, outers, of_context = _collected(links, texts, wanted, above, codes)
    marked = _marked(trace, paths, outers)

    def running(*rules: str) -> Counter[int]:
        runs = links.is_op & texts.where(lambda t: op_rule(t) in rules)[links.name]
        whole = np.flatnonzero(runs & (links.forest.outermost(runs) == np.arange(len(runs))))
        nodes, counts = np.unique(nearest[whole], return_counts=True)
        found: Counter[int] = Counter()
        for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
            found[of_context[node]] += count
        return found

    choosing = {*running("softmax", "topk")}
    routing = {*running("topk")} & {*running("softmax")}
    choosing |= {outers[at] for at in choosing if at >= 0}
    weighs, products, bending = running("softmax"), running("bmm"), {*running("activation")}
    attending = {*running("core")} | {at for at in weighs if products[at] >= 2 * weighs[at]}
    bends = links.is_op & texts.where(_fuses_activation)[links.name]
    compiled = {of_context[node] for node in np.unique(nearest[bends]).tolist()}
    attending -= bending | compiled | {*running("embedding", "loss")}  # what runs these, too, is more
    paths = _by_what_they_hold(paths, outers, choosing, bending, attending, routing)
    lookup = np.full(len(wanted) + 1, -1, np.int32)
    for node, path in of_context.items():
        lookup[node] = path  # -1 writes the last place, which stays -1
    return Paths(
        paths=paths,
        outer=[*outers, -1],
        of_node=lookup[nearest],
        of_label=marked,
        context=nearest,
        attention=links.forest.outermost(_blocks(paths, of_context, above, "attention", len(wanted))),
        mlp=links.forest.outermost(_blocks(paths, of_context, above, "mlp", len(wanted))),
        closure=closure,
        with_experts=_with_experts(paths, outers),
        beside_experts=frozenset(
            outer for path, outer in zip(paths, outers, strict=True) if _last_role(path) == "experts"
        ),
    )


def _fuses_activation(text: str) -> bool:
    fused = parse_fused(text)
    return fused is not None and "activation" in fused.tags


def _collected(
    links: Links, texts: Symbols, wanted: BoolArray, above: CodeArray, codes: CodeArray
) -> tuple[list[Path], list[int], dict[int, int]]:
    """The paths of the ``wanted`` nodes, the one around each, and which path a node has.

    ``codes``: per node four times its name, and 2 for a block that an operator is, 1 for a range.
    """
    paths: list[Path] = []
    outers: list[int] = []
    known: dict[tuple[int, int], int] = {}
    of_context: dict[int, int] = {-1: -1}
    for level in links.forest.levels:
        for node in level[wanted[level]].tolist():
            outer, code = of_context[int(above[node])], int(codes[node])
            if (outer, code) not in known:
                known[outer, code] = len(paths)
                outers.append(outer)
                name, kind = divmod(code, 4)
                text = "attention" if kind == 2 else texts[name]
                paths.append(_extend(paths[outer] if outer >= 0 else None, text, named=kind == 1))
            of_context[node] = known[outer, code]
    return paths, outers, of_context


def _marked(trace: Trace, paths: list[Path], outers: list[int]) -> CodeArray:
    """Per kernel the path that its own mark says, -1 for none; they are put behind ``paths``."""
    marks = trace.kernels.label
    marked = np.full(len(marks), -1, np.int32)
    for code in np.unique(marks).tolist():
        if trace.symbols[code] and not _NOT_MODEL.match(trace.symbols[code]):
            marked[marks == code] = len(paths)
            outers.append(-1)
            paths.append(_extend(None, trace.symbols[code], named=True))
    return marked


def _by_what_they_hold(
    paths: list[Path],
    outers: list[int],
    choosing: set[int],
    bending: set[int],
    attending: Container[int] = (),
    routing: Container[int] = (),
) -> list[Path]:
    """A module called after its activation or its rotation that has linear layers is an MLP, or attention;
    one called attention that holds attention and an MLP is a layer, and so is one called a mixture that holds
    a mixture and an MLP; one called an MLP in attention that holds one product alone is that product (of
    LeViT, with its normalization); one called a norm that holds one, and a block, is none (``PreNorm``); one
    called an MLP that holds some and is ``choosing``, or is ``routing`` by itself, is a mixture, and one that
    holds blocks or a table a network. ``bending``: what runs an activation by itself; ``attending``:
    attention, and is that where its name says nothing else and it holds neither attention nor an MLP."""
    products = Counter(
        outers[at] for at, path in enumerate(paths) if _PRODUCT.fullmatch(path.elements[-1].text)
    )
    paths = [_of_products(path) if products[at] else path for at, path in enumerate(paths)]
    bends = bending | {
        outer for outer, path in zip(outers, paths, strict=True) if _last_role(path) == "activation"
    }
    layers = _layers_of_attention(paths, outers, products, bends)
    blocks = dict.fromkeys(layers, "layer") | _around_mlps(paths, outers, choosing)
    blocks |= {at: "moe" for at, path in enumerate(paths) if at in routing and _last_role(path) == "mlp"}
    blocks |= dict.fromkeys(_nameless_mlps(paths, outers), "mlp")
    normed = {outer for path, outer in zip(paths, outers, strict=True) if _last_role(path) == "norm"}
    around = {outer for outer, inside in _holders(paths, outers) if inside in ("attention", "mlp")}
    around |= {outers[at] for at, role in blocks.items() if role == "mlp"}
    networks = _holding_blocks(paths, outers)
    tables = {outer for outer, inside in _holders(paths, outers) if inside == "embedding"}
    found: list[Path] = []
    for at, path in enumerate(paths):
        before = found[outers[at]].elements if outers[at] >= 0 else ()
        *words, last = path.elements[len(before) :]
        if at in blocks:
            last = replace(last, role=blocks[at])
        network = at in networks or (at in tables and last.role == "mlp")
        if (at in normed & around and last.role == "norm") or (
            network and last.role in ("mlp", "logits", "loss")
        ):
            last = replace(last, role=None)
        known = last.named or is_block(last) or last.role not in (None, "mixer")
        if at in attending and at not in around and not known:
            last = replace(last, role="attention")
        attends = any(element.role == "attention" for element in before)
        if attends and last.role == "mlp" and products[at] == 1 and at not in bends:
            last = replace(last, role=None)
        found.append(Path((*before, *words, last), path.module))
    return found


def _of_products(path: Path) -> Path:
    """What a module with products is, whatever it is called after."""
    *before, last = path.elements
    return Path((*before, replace(last, role=_HOLDS.get(last.role or "", last.role))), path.module)


def _holders(paths: list[Path], outers: list[int]) -> Iterator[tuple[int, str]]:
    """Every path around another, with the role of that."""
    for at, path in enumerate(paths):
        outer = outers[at]
        while outer >= 0:
            yield outer, _last_role(path)
            outer = outers[outer]


def _holding_blocks(paths: list[Path], outers: list[int]) -> set[int]:
    """What is around a block that holds modules."""
    blocks = (at for at in {*outers} if at >= 0 and is_block(paths[at].elements[-1]))
    found: set[int] = set()
    for at in blocks:
        while (at := outers[at]) >= 0:
            found.add(at)
    return found


def _layers_of_attention(
    paths: list[Path], outers: list[int], products: Counter[int], bends: set[int]
) -> set[int]:
    """Modules called attention that hold one with products and, beside it, a further one or an MLP: one by
    its name, a nameless one with two products and an activation, or these themselves."""
    roles = [_last_role(path) for path in paths]
    around: list[int] = []  # per path the nearest module of attention outside it
    for outer in outers:
        around.append(outer if outer < 0 or roles[outer] == "attention" else around[outer])
    attends = {around[at] for at, role in enumerate(roles) if role == "attention"}
    mlps = {
        around[at]
        for at, role in enumerate(roles)
        if role == "mlp" or (not role and products[at] > 1 and at in bends)
    }
    mlps |= {at for at in attends & bends if products[at] > 1}
    makes = Counter[int]()
    for at, count in products.items():
        while at >= 0:
            makes[at] += count if roles[at] == "attention" else 0
            at = around[at]
    norms = Counter(outer for outer, role in zip(outers, roles, strict=True) if role == "norm")
    layers = {  # whose attention is no call of a module (dinov3/layers/block.py, SelfAttentionBlock)
        at
        for at in bends
        if at >= 0 and _BLOCK_OF_ATTENTION.search(paths[at].elements[-1].text)
        if norms[at] > 1 and products[at] > 2
    }
    several = Counter(around[at] for at, count in makes.items() if at >= 0 and count > 1)
    mlps |= {at for at, count in several.items() if count > 1}
    return (attends & mlps) - {-1} | layers


def _nameless_mlps(paths: list[Path], outers: list[int]) -> Iterator[int]:
    """Modules of no telling name, outside all blocks, that hold two products with an activation between them
    and nothing else that works, and of whose kind there is one or more for each block of attention:
    ``Sequential(Linear, GELU, Dropout, Linear)`` in every layer."""
    kinds = [tuple(element.text for element in path.elements) for path in paths]
    alike = Counter(kinds)
    held: dict[int, list[str]] = {}
    for path, outer in zip(paths, outers, strict=True):
        product = _PRODUCT.fullmatch(path.elements[-1].text)
        held.setdefault(outer, []).append("product" if product else _last_role(path))
    attention = {kind for kind, path in zip(kinds, paths, strict=True) if _last_role(path) == "attention"}
    blocks = {alike[kind] for kind in attention} - {1}
    for at, inside in held.items():
        parts = [part for part in inside if part not in ("dropout", "norm")]
        if at >= 0 and parts == ["product", "activation", "product"]:
            said = {*paths[at].roles()} - {None, "layer", "norm", "residual"}
            if (
                not said
                and _last_role(paths[at]) == ""
                and any(alike[kinds[at]] % count == 0 for count in blocks)
            ):
                yield at


def _around_mlps(paths: list[Path], outers: list[int], choosing: set[int]) -> dict[int, str]:
    """What modules are by the mixtures of experts and MLPs that they hold, up to the next of them.

    One called a mixture that holds a mixture and, beside it, an expert or an MLP is a layer, and that is an
    MLP; one called an MLP that holds several, and is ``choosing``, is a mixture.
    """
    roles = [_last_role(path) for path in paths]
    held: dict[int, list[int]] = {}
    around: list[int] = []
    for at, outer in enumerate(outers):
        around.append(outer if outer < 0 or roles[outer] in _BLOCKS else around[outer])
        if roles[at] in _BLOCKS:
            held.setdefault(around[at], []).append(at)
    found: dict[int, str] = {}
    for at, inside in held.items():
        beside = [one for one in inside if roles[one] != "moe"]
        if at >= 0 and roles[at] == "moe" and beside and len(beside) < len(inside):
            depth = len(paths[at].elements)  # experts can make queries, too (JetMoE, arXiv 2404.07413)
            outside = (one for one in beside if "attention" not in paths[one].roles()[depth:])
            found |= {at: "layer"} | dict.fromkeys(outside, "mlp")
        elif at in choosing and roles[at] == "mlp" and [roles[one] for one in inside].count("mlp") > 1:
            found[at] = "moe"
    return found


def _closures(trace: Trace, links: Links) -> BoolArray:
    """Optimizer steps that run the model: ``optimizer.step(closure)``, as PyTorch Lightning does every step.

    An optimizer's own operators run without gradients and have no sequence number; a forward has.
    """
    stepping = trace.symbols.where(
        lambda text: element_role(text) == "optimizer" and "zero_grad" not in text  # calls nothing back
    )[links.name]
    holds = np.zeros(len(links.name), np.bool_)
    if stepping.any():
        holds[links.ops_at] = (trace.ops.sequence >= 0) & (trace.ops.forward_thread <= 0)
        for nodes in reversed(links.forest.levels):
            above = links.forest.parent[nodes[holds[nodes]]]
            holds[above[above >= 0]] = True
    out: BoolArray = stepping & holds & ~links.is_op
    return out


def _with_experts(paths: list[Path], outer: list[int]) -> frozenset[int]:
    """Paths of MLPs that hold a mixture of experts (some call the whole thing ``mlp``), and of modules that
    stand in them and say nothing."""
    inside = [set(path.roles()[len(paths[at].elements) :]) for path, at in zip(paths, outer, strict=True)]
    holders = frozenset(
        at
        for at, roles in zip(outer, inside, strict=True)
        if at >= 0 and roles & {"experts", "shared", "router", "moe"}
    )
    plain = {at for at, path in enumerate(paths) if outer[at] in holders and path.roles()[-1] is None}
    return holders | plain


def _blocks(
    paths: list[Path], of_context: dict[int, int], above: CodeArray, role: str, size: int
) -> BoolArray:
    """Per node: is it a block of that role? Not where layers lie inside: that is a model."""
    mask = np.zeros(size, np.bool_)
    holds_layer: set[int] = set()
    for node, path in of_context.items():
        if path >= 0 and _last_role(paths[path]) == "layer":
            outer = int(above[node])
            while outer >= 0 and outer not in holds_layer:
                holds_layer.add(outer)
                outer = int(above[outer])
    for node, path in of_context.items():
        if path >= 0 and node not in holds_layer and role in _own_roles(paths[path]):
            mask[node] = True
    return mask


def _own_roles(path: Path) -> tuple[str | None, ...]:
    """The roles a context adds: its last element, or all of them where a range names a whole chain."""
    last = path.elements[-1]
    return path.roles() if last.named and "." in path.module else (last.role,)


def _last_role(path: Path) -> str:
    return path.elements[-1].role or ""


def _extend(outer: Path | None, text: str, *, named: bool) -> Path:
    before = outer.elements if outer else ()
    shown = outer.module if outer else ""
    if text.startswith(_MODULE):
        name = text[len(_MODULE) :]
        kind, counter = split_counter(name)
        role = element_role(kind)
        element = Element(kind, role, counter if role == "layer" else None, False)
        return Path((*before, element), f"{shown}.{name}" if shown else name)
    text = next((match[1] for pattern in _MODULE_IN_RANGE if named and (match := pattern.match(text))), text)
    said = next((role for role, pattern in _RANGES if named and pattern.match(text)), None)
    if said is not None:
        return Path((*before, Element(text, said, None, True)), text)
    if named and _FQN.match(text):
        parts = text.split(".")
        layer = layer_of_fqn(parts)
        words = [part for part in parts if not part.isdigit()]
        elements = tuple(Element(word, element_role(word), layer, True) for word in words)
        return Path((*before, *elements), text)
    layer = layer_of_text(text) if named else None
    role = "layer" if layer is not None else element_role(text)
    return Path(
        (*before, Element(text, role, layer, named)), f"{shown}.{text}" if shown and named else shown or text
    )
