"""What a GPU kernel's own name states: ATen's, those of libraries, and the lists of torch.compile's."""

from __future__ import annotations

import re
from functools import cache

from tracelens.attribution.kernel_patterns import FUNCTIONS, KERNELS
from tracelens.attribution.patterns import patterns_of
from tracelens.gemm import parse_kernel_name
from tracelens.gemm.inductor import CLONE, SIGNATURE, parse_fused
from tracelens.gemm.inductor_ops import CAST, CONVOLUTION, LAYOUT

_NORMS = frozenset({"norm", "norm_backward"})
#: Of torch/_decomp/decompositions.py, upsample: rows and columns are taken, and weighed by how near they are.
_BETWEEN_PIXELS = frozenset({"_unsafe_index", "_unsafe_index_put"})
_TURNS = frozenset({"permute", "transpose"})
_WEIGHED = frozenset({"add", "arange", "clamp", "div", "floor", "mul", "neg", "new_zeros", "rsub", "sub"})
#: Only names that can mean one thing. Generic kernels (elementwise, reduce, GEMM) are not here.
_KERNELS: tuple[tuple[str, ...], ...] = (
    ("communication", "^nccl", "ncclDevKernel", "ncclKernel", "^void nvshmem", "deep_ep::"),
    ("attention.core", "flash_(fwd|bwd)|flash::|flash_attention|flashattn|fmha(Fwd|Bwd)?_"),
    (
        "norm",
        "layer_norm|LayerNorm|[Ll]ayernorm|RMSNorm|rms_norm|[Rr]msnorm",
        "cuComputeGradGammaBeta|GammaBetaBackward|RowwiseMoments",
    ),
    (
        "embedding",
        "embedding_(backward|bag)|EmbeddingBag|compute_grad_weight|embedding_dense",
        "sum_and_scatter|krn_partial|compute_num_of_partial",  # EmbeddingBackwardKernel.cu of PyTorch
    ),
    ("loss", "nll_loss|entropy|CrossEntropy|LogSoftMax(Forward|Backward)"),
    ("optimizer", "FusedAdam|fused_adam|FusedOptimizer|adam_kernel|AdamFunctor"),
    ("dropout", "fused_dropout"),
    ("attention.other",),
    ("attention.rope",),
    ("mlp.activation",),
    ("moe.dispatch",),
    ("moe.router",),
    ("moe.experts",),
    ("ssm.conv",),
    ("ssm.scan",),
)
_COMPILED_KERNELS = tuple(
    (component, re.compile("|".join([*words, *patterns_of(KERNELS, component)])))
    for component, *words in _KERNELS
)
_COMPILED_FUNCTIONS = tuple((component, re.compile("|".join(names))) for component, *names in FUNCTIONS)
#: The functor among the template arguments tells: apex csrc/multi_tensor_*.cu, TE common/multi_tensor/
_OPTIMIZER_FUNCTOR = re.compile(
    r"(?s)\A(?>.*?multi_tensor_apply_kernel<).*?\b(Adam|Adagrad|SGD|NovoGrad|LAMBStage)\w*?Functor"
)
#: TE common/util/vectorized_pointwise.h: the function pointer among the template arguments tells
_UNARY_ACTIVATION = re.compile(r"(?s)\A(?>.*?\bunary_(grad_)?kernel<).*?\bd?(q?gelu|s?relu|silu)\b")
_ATTENTION = ("attention", "attention_helper")
_FUNCTION = re.compile(r"(?<!\w)(\w++)(?=[<(]|$)")
_LENGTH = re.compile(r"\d+")
_TRITON_SUFFIX = re.compile(rf"{SIGNATURE}{CLONE}$")


@cache
def kernel_component(name: str) -> str | None:
    """The component (``words.COMPONENTS``) that a GPU kernel's own name states; None where it states none.

    >>> kernel_component("_rms_norm_forward_kernel"), kernel_component("_fwd_kernel")
    ('norm', None)

    Triton kernels of torch.compile are left out: their names list what was fused, in no order.
    """
    if not name.startswith("triton_"):
        if (parsed := parse_kernel_name(name)) is not None and parsed.kind in _ATTENTION:
            return "attention.core"
        for component, pattern in _COMPILED_KERNELS:
            if pattern.search(name):
                return component
    if _OPTIMIZER_FUNCTOR.search(name):
        return "optimizer"
    if _UNARY_ACTIVATION.search(name):
        return "mlp.activation"
    function = _function(name)
    return next((component for component, names in _COMPILED_FUNCTIONS if names.fullmatch(function)), None)


def _function(name: str) -> str:
    """``void ns::f<int>(float*)``, ``f_0d1d2de`` and ``_ZN2ns1fIiEEvPf`` -> ``f``."""
    own, rest = "", name.removeprefix("_ZN")
    while rest != name and (size := _LENGTH.match(rest)):  # each part behind its length
        own, rest = rest[size.end() :][: int(size[0])], rest[size.end() + int(size[0]) :]
    match = _FUNCTION.search(_TRITON_SUFFIX.sub("", name.replace("(anonymous namespace)::", "")))
    return own or (match[1] if match else "")


def listed(name: str) -> str | None:
    """The component of a kernel of Inductor whose list holds one thing: a normalization, with a sum before it
    or not; one over a map, whatever it is fused with; casts, layouts and pools of convolutions; what makes a
    map larger or smaller. None for others."""
    fused = parse_fused(name) if name.startswith("triton_") else None
    if fused is None or fused.kind == "template":
        return None
    # pointwise, a sum is named after the gradient that it reads
    sums = set() if fused.kind == "pointwise" else {"add"}
    normal = bool(fused.tags & _NORMS) and fused.tags <= _NORMS | {"bias"} | sums and not fused.unknown
    over_map = any("batch_norm" in op or "group_norm" in op for op in fused.ops)
    if normal or (over_map and "embedding_backward" not in fused.tags):  # that takes longer, into its table
        return "norm"
    pools = {op for op in fused.ops if "pool2d" in op}
    moves = LAYOUT | CAST
    bare = {*fused.ops} <= CONVOLUTION | moves | pools and not CONVOLUTION.isdisjoint(fused.ops)
    between = not _BETWEEN_PIXELS.isdisjoint(fused.ops) or {*fused.ops} >= {"arange", "clamp", "mul"}
    # in one dimension a table of distances, which is turned over for its heads, is made longer
    between &= "floor" in fused.ops or _TURNS.isdisjoint(fused.ops)
    bare |= between and {*fused.ops} <= _BETWEEN_PIXELS | _WEIGHED | moves
    return "other" if bare and not fused.unknown else None
