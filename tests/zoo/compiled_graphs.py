"""The forward and backward graphs torch.compile makes of a model, as if the model lay on a GPU.

The model runs on the meta device, so that autograd works without CUDA; TorchDynamo, AOTAutograd with
Inductor's decompositions, Inductor's joint-graph passes and its min-cut partitioner are the real ones.
Only the labels change: the joint graph is called "cpu" while constants are folded, and "cuda" from
there on. What each node is for comes from ``torch.fx.traceback.annotate``, opened by the model's parts;
AOTAutograd carries it from a forward node to the backward nodes of the same sequence number.
"""

from __future__ import annotations

import logging
import operator
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch._dynamo
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch._functorch import partitioners
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import detect_fake_mode
from torch._inductor import config as inductor_config
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes import fuse_attention, pad_mm
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.traceback import annotate

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
#: Keys of node.meta written here.
ROLE, IS_FORWARD = "zoo_role", "zoo_is_forward"

_aten = torch.ops.aten
PRODUCTS = {_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default}
#: Operators that hand on a weight: what comes out is still that weight.
_PASS_ON = {
    "view", "permute", "t", "transpose", "convert_element_type", "_to_copy", "getitem", "slice", "split",
    "split_with_sizes", "select", "unsqueeze", "squeeze", "expand", "reshape", "clone", "cat", "stack",
    "unbind", "constant_pad_nd",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Graphs:
    """Both halves of a partitioned joint graph, on fake CUDA tensors."""

    forward: GraphModule
    backward: GraphModule
    mode: FakeTensorMode
    arguments: int  # of the compiled function: parameters, buffers, inputs


class _CapturedError(Exception):
    """Ends compilation: the graphs are what was wanted."""


def annotated_part(
    component: str, layer: int | None = None, role: str | None = None, strict: bool = True
) -> AbstractContextManager[None]:
    """A part of the model as an fx annotation: what ``parts.open_part`` becomes while compiling."""
    return annotate({"component": component, "layer": layer, "role": role, "strict": strict})


def capture(
    model: torch.nn.Module,
    inputs: dict[str, torch.Tensor],
    *,
    pad: bool = False,
    mark: Callable[[Graph, list[Any]], None] | None = None,
) -> Graphs:
    """Compile ``model(**inputs)``, all on the meta device, up to the partitioned graphs.

    ``pad`` lets Inductor's pad_mm pad every GEMM whose rows are not 16-byte aligned, without measuring.
    ``mark`` annotates the nodes of TorchDynamo's graph, which is called with so many arguments, where the
    model does not do so itself.
    Raises torch._dynamo.exc.Unsupported where the model breaks into several graphs.
    """
    captured: list[Graphs] = []

    def partition(joint: GraphModule, arguments: Any, **options: Any) -> Any:
        captured.append(_partition(joint, arguments, options, parameters, pad=pad))
        raise _CapturedError

    parameters: list[bool] = []

    def backend(graph: GraphModule, arguments: list[Any]) -> Callable[..., Any]:
        if mark is not None:
            mark(graph.graph, arguments)
        for part in graph.modules():  # the bodies of checkpoints are graphs of their own
            if isinstance(part, GraphModule):
                _as_on_a_gpu(part.graph)
                part.recompile()
        parameters[:] = [isinstance(argument, torch.nn.Parameter) for argument in arguments]
        compiled: Callable[..., Any] = aot_module_simplified(
            graph,
            arguments,
            fw_compiler=lambda module, _: module,
            bw_compiler=lambda module, _: module,
            partition_fn=partition,
            decompositions=select_decomp_table(),
        )
        return compiled

    torch._dynamo.reset()
    try:
        with quiet():
            torch.compile(model, backend=backend, fullgraph=True)(**inputs)
    except torch._dynamo.exc.BackendCompilerFailed:
        if not captured:
            raise
    finally:
        torch._dynamo.reset()
    return captured[0]


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of PyTorch's own modules and without its structured log."""
    log = logging.getLogger("torch.__trace")
    with warnings.catch_warnings(), mock.patch.object(log, "disabled", True):
        warnings.simplefilter("ignore")
        yield


def _partition(
    joint: GraphModule, arguments: Any, options: dict[str, Any], parameters: list[bool], *, pad: bool
) -> Graphs:
    """Inductor's joint passes and partitioner, with the devices they expect."""
    mode = detect_fake_mode()
    assert mode is not None
    relabel(joint, mode, CPU)
    with V.set_fake_mode(mode):
        with _joint_passes(pad=pad):
            joint_graph_passes(joint)
        relabel(joint, mode, CUDA)
        _mark_roles(joint.graph, parameters)
        # Random numbers drawn again in the backward would need the state of a CUDA generator.
        with mock.patch.object(partitioners, "functionalize_rng_ops", lambda _, *halves: halves[:2]):
            forward, backward = partitioners.min_cut_rematerialization_partition(
                joint, arguments, compiler="inductor", **options
            )
    return Graphs(forward, backward, mode, len(parameters))


def relabel(module: GraphModule, mode: FakeTensorMode, device: torch.device) -> None:
    """Say that every tensor of the graph lies on ``device``."""
    moved: dict[int, tuple[Any, FakeTensor]] = {}

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in moved:
            bare = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
            moved[id(value)] = value, FakeTensor(mode, bare, device)
        return moved[id(value)][1]

    def place(value: Any) -> Any:
        return device if isinstance(value, torch.device) else value

    for node in module.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = pytree.tree_map(move, node.meta["val"])
        node.meta.pop("tensor_meta", None)
        node.args, node.kwargs = pytree.tree_map(place, (node.args, node.kwargs))
    module.recompile()


@contextmanager
def _joint_passes(*, pad: bool) -> Iterator[None]:
    """Settings of the joint passes: padding without measuring or none, attention as the model wrote it.

    Inductor would turn a written-out attention into a call for the device's fused kernel; under the label
    "cpu" that would be a CPU kernel, so those patterns stay out.
    """
    with (
        inductor_config.patch(shape_padding=pad, force_shape_pad=pad),
        mock.patch.object(pad_mm, "check_device", lambda *_: True),
        mock.patch.object(pad_mm, "has_triton", lambda: True),
        mock.patch.object(fuse_attention, "_sfdp_init", lambda *_: None),
    ):
        yield


# -- operators that choose their implementation by device ------------------------------------------


def _cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: None = None,
    size_average: None = None,
    ignore_index: int = -100,
    reduce: None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """cross_entropy in operators that are differentiable on the meta device, where nll_loss is not."""
    if weight is not None or label_smoothing:
        raise NotImplementedError("cross_entropy with weights or smoothing")
    kind = {"none": 0, "mean": 1, "sum": 2}[reduction]
    scores = torch.log_softmax(logits, 1)
    loss: torch.Tensor = _aten.nll_loss_forward.default(scores, target, None, kind, ignore_index)[0]
    return loss


def _as_on_a_gpu(graph: Graph) -> None:
    """Replace what the meta device runs in another way than CUDA: attention becomes FlashAttention."""
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is F.cross_entropy:
            node.target = _cross_entropy
        elif node.target is F.scaled_dot_product_attention:
            _use_fused_attention(graph, node)


_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def _use_fused_attention(graph: Graph, node: Node) -> None:
    """FlashAttention, or the memory-efficient kernel where a mask is given."""
    given: dict[str, Any] = dict(zip(_SDPA, node.args, strict=False)) | node.kwargs
    query, key, value = (given[name] for name in _SDPA[:3])
    mask, dropout, causal = given.get("attn_mask"), given.get("dropout_p", 0.0), given.get("is_causal", False)
    scale = {"scale": given["scale"]} if given.get("scale") is not None else {}
    target = _aten._scaled_dot_product_flash_attention.default
    arguments: tuple[Any, ...] = (query, key, value, dropout, causal)
    if mask is not None:
        target = _aten._scaled_dot_product_efficient_attention.default
        arguments = (query, key, value, mask, True, dropout, causal)
    with graph.inserting_before(node):
        fused = graph.call_function(target, arguments, scale)
        out = graph.call_function(operator.getitem, (fused, 0))
    for made in (fused, out):
        made.meta = dict(node.meta)
    node.replace_all_uses_with(out)
    graph.erase_node(node)


# -- roles -----------------------------------------------------------------------------------------


def _mark_roles(graph: Graph, parameters: list[bool]) -> None:
    """Write forward, dgrad or wgrad at every product with a weight, and say which nodes are forward.

    A product that reads a weight is ``forward`` or, after the first tangent, ``dgrad``; a backward
    product that reads none and stems from a forward product that did is ``wgrad``.
    """
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    weights = {node for node, is_one in zip(placeholders, parameters, strict=False) if is_one}
    weighted: set[Any] = set()  # keys of forward products with a weight
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        inputs = set(node.all_input_nodes)
        is_forward = node.meta.get("partitioner_tag", "is_forward") == "is_forward"
        node.meta[IS_FORWARD] = is_forward
        if bare_name(node) in _PASS_ON and len(inputs) >= 1 and inputs <= weights:
            weights.add(node)
        if node.target not in PRODUCTS:
            continue
        reads_weight = bool(set(node.all_input_nodes[-2:]) & weights)
        # Products that pad_mm made have lost their sequence number, never their part.
        keys = {node.meta.get("seq_nr"), str(node.meta.get("custom"))} - {None, "None"}
        said = (node.meta.get("custom") or {}).get("role")
        if said is not None:
            node.meta[ROLE] = said
        elif is_forward:
            node.meta[ROLE] = "forward" if reads_weight else None
            if reads_weight:
                weighted |= keys
        elif reads_weight:
            node.meta[ROLE] = "dgrad"
        else:
            found = node.meta["seq_nr"] in weighted if "seq_nr" in node.meta else bool(keys & weighted)
            node.meta[ROLE] = "wgrad" if found else None


def bare_name(node: Node) -> str:
    name: str = getattr(node.target, "__name__", str(node.target))
    return name.split(".")[0]
