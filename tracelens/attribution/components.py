"""From where an operator stands to the transformer component it is part of.

One decision for each distinct situation: the path of modules and ranges around the operator, what
the operator's own name says, and its place relative to the attention core or the activation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tracelens.attribution.names import element_role
from tracelens.attribution.paths import Path, is_block


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a decision may rest on."""

    path: Path | None
    outer: str | None  # rule of the outermost operator around it that has one (names.op_rule)
    inner: str | None  # rule of the innermost
    after_core: bool | None  # launched after the attention core of its block began; None: no core seen
    linears_after: int  # how many products of its attention block come behind the core
    holds_experts: bool  # the module around it has experts or a router among its own modules
    transformer: bool  # attention was seen somewhere in the trace
    order_in_mlp: tuple[int, int] | None = None  # (position, count) among the GEMMs of its MLP
    after_activation: bool | None = None  # in its MLP
    before_activation: bool = False  # an activation follows it directly, before the next GEMM
    #: an addition of two activations of the same shape; None: one without shapes
    residual: bool | None = False
    vocabulary: str = "none"  # "weight": a GEMM with the token table's shape; "logits": works on logits
    batched: bool = False  # somewhere in the trace activations are multiplied with activations
    beside_experts: bool = False  # the mixture around it keeps its experts in a module of their own
    experts: bool = False  # experts are named somewhere in the trace, and a choice of them too
    beside_convolution: bool = False  # the module around it, or around its own, holds convolutions
    on_maps: bool = False  # the layer around it convolves and holds neither attention nor an MLP
    end: str = ""  # what its place in front of the layers or behind them makes it (``ends.ENDS``)
    behind: bool = False  # outside the modules, between the last of them and the backward
    gated: bool = False  # in an MLP of three products with one activation
    plain: bool = False  # in an MLP of no more products, and without a choice of experts
    #: "weights": takes those of experts; "choice": as wide as what is chosen from; "rows": of each choice
    mixture: str = "none"


@dataclass(frozen=True, slots=True)
class Decision:
    """A component with its evidence; ``components`` lists all that a fused operator covers."""

    component: str
    evidence: str
    components: tuple[str, ...] = ()


CORE = ("attention.scores", "attention.softmax", "attention.values")
#: Roles of the elements of a path, outermost first.
_Roles = tuple[str | None, ...]
_FROM_OP = {
    "core": "attention.core",
    "loss": "loss",
    "embedding": "embedding",
    "norm": "norm",
    "dropout": "dropout",
    "communication": "communication",
    "optimizer": "optimizer",
    "grad_clip": "grad_clip",
    "experts": "moe.experts",
    "routes": "moe.router",
    "sends": "moe.dispatch",
    "scan": "ssm.scan",
    "rope": "attention.rope",
    "cache": "attention.other",
    "recurrence": "other",
}
_PLAIN_ROLE = {
    "norm": "norm",
    "rope": "attention.rope",
    "dropout": "dropout",
    "residual": "residual",
    "mixer": "other",
    "stem": "other",
    "router": "moe.router",
    "loss": "loss",
    "grad_clip": "grad_clip",
    "head_transform": "other",  # BERT's dense layer before the vocabulary
    "optimizer": "optimizer",
    "communication": "communication",
}
_LINEAR_ROLE = {
    "qkv": "attention.qkv",
    "attention_output": "attention.output",
    "gate_up": "mlp.up",
    "mlp_gate": "mlp.gate",
    "mlp_up": "mlp.up",
    "mlp_down": "mlp.down",
    "logits": "logits",
}
_OF_EXPERT = {"gate_up", "mlp_gate", "mlp_up", "mlp_down", "mlp", "activation"}  # inside a mixture of experts
_AROUND_ACTIVATION = {
    "mlp": "mlp.activation",
    "attention": "attention.other",
    "norm": "other",  # between convolutions
    "stem": "other",
    "ssm": "ssm.conv",
    "mixer": "other",
}
_MIXTURES = frozenset({"experts", "shared", "moe", "router"})
_ACTIVATIONS = ("activation", "nonlinearity")
#: Modules that add to the residual stream behind their own product: BertSelfOutput, BertOutput, a layer.
_ADD_THE_STREAM = ("attention_output", "bert_output", "layer")
#: A module of one product: what it adds is a bias or its adapter's (tuners/lora/layer.py of huggingface/peft,
#: modules/peft/lora.py of torchtune).
_PRODUCT = re.compile(r"(\w*(?=Linear(4bit|8bitLt)?$))?((?i:lora))?(Linear|Conv1D)(?!\w*Att)")
#: In attention, too, of an MLP beside it (transformer_flux2.py of huggingface/diffusers).
_GATED_MLP = re.compile(r"(swi|ge|re)_?glu", re.IGNORECASE)
_TRANSFORMER_ONLY = ("attention.", "mlp.", "moe.", "logits", "residual")


def is_part(component: str) -> bool:
    """Is the component a part that transformers alone have?"""
    return component.startswith(_TRANSFORMER_ONLY)


def decide(situation: Situation) -> Decision | None:
    """The component of an operator in its forward position; None where nothing says."""
    decision = _decide(situation)
    if decision is None or situation.transformer or decision.component.startswith("moe."):
        return decision  # what says that it is of a mixture of experts is, whatever else there is
    if decision.component == "logits" and situation.vocabulary == "weight" and situation.batched:
        return None  # what multiplies activations can be attention that has no softmax
    if is_part(decision.component) and not (situation.gated and decision.component.startswith("mlp.")):
        return Decision("other", decision.evidence)  # no attention anywhere: this is no transformer's MLP
    return decision


def _decide(s: Situation) -> Decision | None:
    if s.inner == "communication" or s.outer == "communication":
        return Decision("communication", "op")
    in_path = _in_path(s, s.path) if s.path is not None else None
    found = in_path or _from_op(s) or _from_vocabulary(s)
    if found is None and s.behind and s.outer != "picture":
        return Decision("loss", "structure")
    stream = s.outer == "add" and s.residual is not False and s.end == "other"
    if found is None and s.transformer and s.end and s.outer not in ("picture", "convolution") and not stream:
        return Decision(s.end, "local")  # whatever shapes and order say is surer
    return found or (_elsewhere(s, s.path) if s.path else None)


def _from_vocabulary(s: Situation) -> Decision | None:
    """The head: outside the layers, a product with a (vocabulary, hidden) weight, and what follows it."""
    roles = s.path.roles() if s.path else ()
    if "layer" in roles or s.vocabulary == "none":
        return None
    if s.inner == "linear":
        return Decision("logits", "structure") if s.vocabulary == "weight" else None
    if s.outer == "linear":
        return Decision("logits", "structure")  # its bias, where one function adds it to the product
    return Decision("loss", "structure") if s.vocabulary == "logits" else None


def _from_op(s: Situation) -> Decision | None:
    rule = s.outer
    if rule == "fused_logits_loss":
        return _fused_head(s)
    if rule == "core":
        return _core(s, "op")
    if rule in _FROM_OP:
        return Decision(_FROM_OP[rule], "op")
    return None


def _fused_head(s: Situation) -> Decision:
    """Head and loss in one function, chunk by chunk: its products are the head, the rest is the loss."""
    if s.inner == "linear" or (s.vocabulary == "weight" and s.inner != "fused_logits_loss"):
        return Decision("logits", "op")
    if s.inner == "loss" or s.vocabulary == "logits":
        return Decision("loss", "op")
    return Decision("logits", "structure", ("logits", "loss"))  # a kernel of its own, or a step of the sum


def _core(s: Situation, evidence: str) -> Decision:
    """Inside an attention operator: its fused kernel, or the steps of the unfused (math) path."""
    if s.inner == "bmm":
        return Decision("attention.values" if s.after_core else "attention.scores", evidence)
    if s.inner == "softmax":
        return Decision("attention.softmax", evidence)
    if s.inner == "dropout":
        return Decision("dropout", evidence)
    if s.inner == "cache":
        return Decision("attention.other", evidence)
    return Decision("attention.core", evidence, CORE)


def _in_path(s: Situation, path: Path) -> Decision | None:
    """Decide from the modules and ranges; the innermost element that says something wins."""
    roles = path.roles()
    special = _special_op(s, roles)
    if special is not None:
        if special.evidence in ("op", "structure"):
            return special
        named = any(element.named and element.role for element in path.elements)
        return replace(special, evidence="annotation" if named else "module_stack")
    for at in range(len(roles) - 1, -1, -1):
        role = roles[at]
        if role is None:
            continue
        evidence = "annotation" if path.elements[at].named else "module_stack"
        component = _of_role(s, role, roles[:at], roles[at + 1 :])
        if component is not None:
            rows = [element.text for element in path.elements[at + 1 :]]
            beside = role == "attention" and component == "attention.qkv" and "Sequential" in rows
            if beside:
                evidence = "structure"  # queries, or a network for what is added to the scores (Swin V2)
            if role == "mlp" and (element_role(path.elements[at].text) is None or _is_custom(s, component)):
                evidence = "local"  # by what it holds, or by custom: whatever shapes and order say is surer
            both = ("mlp.up", "mlp.gate") if role == "gate_up" else ()
            return Decision(component, evidence, both)
    return None


def _elsewhere(s: Situation, path: Path) -> Decision | None:
    """In a model without attention every module is some other part; in a transformer it could be any."""
    if s.transformer or all(element.named for element in path.elements):
        return None
    return Decision("other", "annotation" if path.elements[-1].named else "module_stack")


def _special_op(s: Situation, roles: _Roles) -> Decision | None:
    """Operators that say what they are wherever they stand."""
    if s.outer == "fused_logits_loss":
        return _fused_head(s)
    if s.outer == "scan" and s.inner == "linear":
        return Decision("ssm.projection", "op")  # Mamba's own fused function ends in the output projection
    if s.outer == "embedding" and "rope" in roles:
        return Decision("attention.rope", "path")  # a table of cosines and sines, read at positions
    if s.outer in ("loss", "norm", "dropout", "embedding", "optimizer", "experts", "scan"):
        return Decision(_FROM_OP[s.outer], "op")
    if s.outer == "core":
        return _core(s, "op")
    if "attention" in roles or s.outer == "attention_block":
        if s.inner == "softmax":
            return Decision("attention.softmax", "path")
        # a frozen layer is one product for each sample, and an adapter can be one for each block (OFT)
        if s.inner == "bmm" and s.outer != "linear" and not _in_product(s.path):
            if s.after_core is None:
                return None
            return Decision("attention.values" if s.after_core else "attention.scores", "path")
    mixture = s.experts and not _MIXTURES.isdisjoint(roles)  # experts add biases, and their results up
    apart = mixture or not {"embedding", "ssm", "mixer", "rope"}.isdisjoint(roles)
    adds = s.residual if s.residual is not None else roles[-1:] and roles[-1] in _ADD_THE_STREAM
    around = s.residual is True and s.plain and roles[-1:] == ("mlp",)  # the sum behind its products
    if adds and (around or {"layer", "attention"} & {*roles}) and not apart and not _in_product(s.path):
        if ("attention" in roles and (not s.after_core or roles[-1] == "qkv")) or roles[-1] == "activation":
            return None  # rotary embeddings, biases, adapters and a GELU that is written out add too
        return Decision("residual", "path")
    return None


def is_of_product(path: Path | None) -> bool:
    """Is it the path of a module of one product?"""
    return path is not None and bool(_PRODUCT.match(path.elements[-1].text))


def _in_product(path: Path | None) -> bool:
    """Is a module of one product around it, as around the parts of an adapter?"""
    return path is not None and any(_PRODUCT.match(element.text) for element in path.elements)


def _of_role(s: Situation, role: str, outer: _Roles, inner: _Roles) -> str | None:
    is_linear = s.inner == "linear" or s.inner == "bmm"
    product = is_linear or is_of_product(s.path)
    if not s.experts and role in ("router", "experts", "shared", "moe"):
        return None  # one word proves no mixture
    if role == "shared":
        return "moe.experts"
    if s.experts and role in _OF_EXPERT and not {"experts", "shared", "moe"}.isdisjoint(outer):
        nearest = next(part for part in reversed(outer) if part in _MIXTURES)
        return "moe.router" if nearest == "router" else "moe.experts"
    if role == "ssm":
        return _of_state_space(s)
    if role == "norm" and s.residual and s.transformer:
        return "residual"  # of a normalization that adds to the stream itself
    if role == "norm" and (is_linear or s.outer == "convolution" or s.outer in _ACTIVATIONS):
        # of a layer that is called after the normalization in it; in that itself, a bound or a gate
        return "norm" if s.outer == "nonlinearity" and not inner and not s.beside_convolution else None
    if role == "gate":
        return _of_gate(s, outer)
    if role in _LINEAR_ROLE:
        return _of_linear_role(s, role, outer, inner)
    if role == "intermediate":
        return "mlp.up" if product and s.outer not in _ACTIVATIONS else "mlp.activation"
    if role == "bert_output":
        return _of_output(is_linear, outer)
    if role == "attention":
        return _in_attention(s, product)
    if (
        role in ("mlp", "loss")
        and s.path is not None
        and any(map(is_block, s.path.elements[len(outer) + 1 :]))
    ):
        return None  # a network of layers that is called one
    if role == "mlp":
        return _of_mlp(s, outer, inner, product)
    if role == "activation" and not is_linear:  # BERT's LinearActivation, LinearGEGLU: what is around says it
        own = s.path.elements[: len(outer) + 1] if s.path else ()
        gates = any(x.role == "activation" and _GATED_MLP.search(x.text) for x in own)
        return "mlp.activation" if gates and "attention" in outer else _of_activation(s, outer)
    if role in ("experts", "moe"):
        return _among_experts(s, role)
    if role == "layer" and s.on_maps:
        return "other"  # what is said to it of time, too
    if role == "layer" and s.outer is None and not inner and s.path is not None:
        # of a layer called after its attention: masks, windows, what is pooled by
        return "attention.other" if element_role(s.path.elements[-1].text) == "attention" else None
    if role in ("residual", "loss") and inner:
        return None  # the layer whose result it adds; a model that a loss runs
    if role == "embedding":
        return _of_embedding(s, outer, inner, is_linear)
    return _PLAIN_ROLE.get(role)


def _of_linear_role(s: Situation, role: str, outer: _Roles, inner: _Roles) -> str | None:
    if s.outer in _ACTIVATIONS:
        if role == "logits":
            return None if inner else "logits"
        return "mlp.activation" if _LINEAR_ROLE[role].startswith("mlp.") else None
    if role == "logits" and "attention" in outer:
        return None  # the output head of an attention block is no vocabulary
    if role in ("qkv", "attention_output") and "mlp" in outer and "attention" not in outer:
        return "mlp.down" if role != "qkv" else None  # T5 calls it wo there too, RWKV its way up key
    if _LINEAR_ROLE[role].startswith("mlp.") and "attention" in outer and "mlp" not in outer:
        return "attention.other"  # a gate on the output of the core
    return _LINEAR_ROLE[role]


def _of_mlp(s: Situation, outer: _Roles, inner: _Roles, product: bool) -> str | None:
    if outer[-1:] == ("embedding",):
        return "embedding"
    in_row = s.inner in ("linear", "bmm") and s.order_in_mlp is not None and not s.order_in_mlp[1]
    if in_row and s.transformer and "layer" not in outer:
        return None  # three layers in a row outside all layers: a head's, as likely
    if "attention" in outer and s.after_core is False:
        return "attention.other"  # makes what queries are scaled with, or a bias of places
    mixture = s.holds_experts or (s.experts and not _MIXTURES.isdisjoint(inner))
    return _among_experts(s, "moe") if mixture else _in_mlp(s, product)


def _of_embedding(s: Situation, outer: _Roles, inner: _Roles, is_linear: bool) -> str | None:
    if "attention" in outer:
        return "attention.other"  # of positions, to one another
    tied = is_linear and s.vocabulary == "weight" and not is_of_product(s.path)
    if s.vocabulary == "logits" or tied:
        return "logits"  # the table, read the other way (MPT)
    if "layer" in inner:
        # the blocks of a backbone that makes patches, or layers that embed columns of a table; where a whole
        # encoder embeds, a sum can be of its stream (transformers models/pe_audio_video)
        beside = s.beside_convolution and s.residual is False
        return "other" if beside or s.outer == "convolution" else None
    return "embedding"


def _of_activation(s: Situation, outer: _Roles) -> str | None:
    """By the block around it that says something; directly in a module of no known kind it can be any."""
    around = [role for role in outer if role != "activation"]
    if around[-2:] == ["embedding", "mlp"]:
        around.pop()  # the MLP is the embedding's (CaptionEmbedder of PixArt)
    if not {"head_transform", "logits"}.isdisjoint(around) and "layer" not in around:
        return "other"
    block = next((role for role in reversed(around) if role in _AROUND_ACTIVATION), None)
    if block == "norm" and "ssm" in around:
        return "ssm.scan"  # the gate of what the scan gives (Qwen3NextRMSNormGated)
    if block is not None:
        return _AROUND_ACTIVATION[block]
    if s.beside_convolution:
        return "other"
    if "embedding" in around:
        return "other" if "layer" in around else "embedding"
    return "mlp.activation" if around[-1:] != [None] else None


def _among_experts(s: Situation, role: str) -> str | None:
    """In a mixture of experts: its products, its choices and its moves; the rest by its place."""
    if s.mixture == "weights":
        return "moe.experts"  # one copy of an expert for each token (index of a stack of weights, then bmm)
    if s.mixture == "rows" and role == "moe":
        return "moe.dispatch"
    if s.inner == "dispatch" or (s.inner == "bmm" and role == "moe" and s.beside_experts):
        return "moe.dispatch"  # by an index, or by a product with who goes where (arXiv 2006.16668)
    if s.inner in ("topk", "softmax") or (role == "moe" and s.mixture == "choice"):
        return "moe.router"
    if s.inner == "bmm" or (role == "experts" and (s.inner == "linear" or s.outer in _ACTIVATIONS)):
        return "moe.experts"
    return None


def _of_state_space(s: Situation) -> str:
    """Of a state-space mixer: its linear layers, its short convolution, and the scan with all around it."""
    if s.inner == "linear":
        return "ssm.projection"
    return "ssm.conv" if s.outer == "convolution" else "ssm.scan"


def _of_gate(s: Situation, outer: _Roles) -> str | None:
    """``gate`` routes tokens in a model with experts, and is half of a gated MLP in one without."""
    if s.experts:
        return "moe.router"
    return "mlp.gate" if "mlp" in outer else None


def _of_output(is_linear: bool, outer: _Roles) -> str | None:
    """``BertOutput`` in a layer closes the MLP, ``output`` in attention that; at the top it is the head."""
    if "attention" in outer:
        return "attention.output"
    if "layer" in outer:
        return "mlp.down"
    return "logits" if is_linear else None


def _in_attention(s: Situation, is_linear: bool) -> str:
    if is_linear and s.after_core is not None:
        if s.after_core and s.linears_after > 1:
            return "attention.other"  # a gate or an adapter beside the output projection
        return "attention.output" if s.after_core else "attention.qkv"
    return "attention.other"


def _in_mlp(s: Situation, is_linear: bool) -> str:
    if s.outer in _ACTIVATIONS:
        return "mlp.activation"
    convolves = s.outer == "convolution"
    if not (is_linear or convolves) or s.order_in_mlp is None:
        return "mlp.other"
    position, count = s.order_in_mlp
    if count == 2:
        return "mlp.down" if position == 1 else "mlp.up"
    if count == 3 and not convolves:
        return ("mlp.gate", "mlp.up", "mlp.down")[position]
    return "mlp.other"


def _is_custom(s: Situation, component: str) -> bool:
    """act(gate(x)) * up(x) runs gate, activation, up, down. Where both products come before the activation,
    which of them it takes is not to be seen, and the first is the gate by custom (structure/walk.py)."""
    if s.order_in_mlp is None or s.order_in_mlp[1] != 3:
        return False
    return not {"mlp.gate": s.before_activation, "mlp.up": s.after_activation}.get(component, True)
