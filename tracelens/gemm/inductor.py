"""What kernel names say of kernels that ATen did not launch: torch.compile's and hand-written ones.

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
_SIGNATURE = r"(?:_0[0-9cde]*[cde][0-9cde]*)?"
#: ROCm's names of compiled kernels
_CLONE = r"(?:\.kd| \[clone \.kd\])?"
_FUSED = re.compile(
    # the text before "triton" is AOTInductor's model name; torch 2.0 wrote no category
    r"(?:(?:\w+_)?triton_(?P<kind>poi|per|red|tem|for|spl|unk)|triton|cpp)_fused"
    rf"(?:_(?P<ops>\w+?))?_\d+{_SIGNATURE}{_CLONE}"
)
#: ``unique_kernel_names`` or ``descriptive_names`` off: no list at all
_NAMELESS = re.compile(rf"triton_(?:(?P<kind>poi|per|red|tem|for|spl|unk)_)?(?:_\d+)?{_SIGNATURE}{_CLONE}")


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
    (
        "loss",
        known.LOG_SOFTMAX | known.OTHER_LOSS,
        known.LOG_SOFTMAX_BACKWARD | known.OTHER_LOSS_BACKWARD,
    ),
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
    tags |= _written_out(has, optimizer="optimizer" in tags)
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
    update = has & {"sqrt"} or "copy_" in ops or {"rsqrt", "clamp_min"} <= has
    foreach = has & known.OPTIMIZER and not (has & (known.CLIP | {"linalg_vector_norm"}))
    if foreach or (moments and update) or has & {"_foreach_addcdiv", "_foreach_sqrt", "_foreach_lerp"}:
        tags.add("optimizer")
    return tags


def _written_out(has: frozenset[str], *, optimizer: bool) -> set[str]:
    """Norms, softmax, activations, gates and rotations that the model spells in arithmetic.

    Lists of forward and backward were compared with those that torch 2.13 gives for such models.
    """
    tags = set()
    variance = {"var", "var_mean"} & has and {"rsqrt", "sqrt"} & has and "sub" in has
    if not optimizer and (variance or ({"mean", "rsqrt"} <= has and has & {"pow", "square", "mul"})):
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


# --- hand-written kernels of well-known libraries --------------------------------------------------

#: Component, then the functions that prove it, each matched whole: the name of a Triton kernel, or the
#: C++ function without namespaces and template arguments. Left out on purpose: names that several kinds
#: of kernel bear (_fwd_kernel, unary_kernel, L2NormFunctor, a softmax without a mask).
_CUSTOM = (
    # linkedin/Liger-Kernel src/liger_kernel/ops/: rms_norm.py, fused_add_rms_norm.py, layer_norm.py,
    # group_norm.py, poly_norm.py, dyt.py, rope.py, llama4_rope.py, qwen2vl_mrope.py, swiglu.py, geglu.py,
    # relu_squared.py, cross_entropy.py, vocab_parallel_cross_entropy.py, kl_div.py, jsd.py, tvd.py,
    # grpo_loss.py, utils.py (element_mul_kernel scales the loss's gradient), experimental/embedding.py,
    # mlp.py (projections and SwiGLU in one kernel), fused_moe_kernels.py
    (
        "norm",
        r"_(block_|fused_add_|modulated_)?(rms|layer|group|poly)_norm_(forward|backward)_kernel",
        r"_dyt_(fwd|bwd)_kernel",
    ),
    ("attention.rope", r"_triton_rope|_triton_qwen2vl_mrope|_llama4_rope_kernel|_rope_kernel"),
    (
        "mlp.activation",
        r"_swiglu_(fused_gate_up_)?(forward|backward)_kernel(_tiled)?",
        r"_geglu_(tanh_|exact_)?(forward|backward)_kernel|_relu_squared_(forward|backward)_kernel",
    ),
    (
        "loss",
        r"liger_cross_entropy_kernel|liger_vocab_parallel_ce_(forward|backward)_kernel|element_mul_kernel",
        r"_kldiv_kernel_(forward|backward)|_jsd_kernel|_tv_distance_kernel",
        r"_grpo_loss_(fwd|bwd)_kernel(_seq)?|_selective_log_softmax_kernel",
    ),
    ("embedding", r"embedding_(forward|backward)_kernel"),
    ("mlp.other", r"_swiglu_kernel_(forward|backward)(_inference|_dGU|_dI)?"),
    ("moe.experts", r"_fused_(up_proj_swiglu|down_proj)_kernel|_moe_bwd_(down_proj|dW\d|dX_expanded)_kernel"),
    ("moe.dispatch", r"_moe_router_(histogram|prefix_sum|scatter)_kernel|_token_gather_weighted_sum_kernel"),
    # unslothai/unsloth unsloth/kernels/: rms_layernorm.py, layernorm.py, rope_embedding.py, swiglu.py,
    # geglu.py, cross_entropy_loss.py, moe/grouped_gemm/kernels/
    ("norm", r"_(gemma_)?rms_layernorm_(forward|backward)|layernorm_(forward|backward)"),
    ("attention.rope", r"_rope_embedding(_QK)?"),
    ("mlp.activation", r"_fg_kernel|_DWf_DW_dfg_kernel|_(exact|approx)_(forward|backward)_kernel"),
    ("loss", r"_(chunked_)?cross_entropy_(forward|backward)"),
    ("moe.experts", r"_grouped_gemm_(forward|dX|dW)_kernel"),
    # Dao-AILab/flash-attention flash_attn/ops/triton/: layer_norm.py, rotary.py, cross_entropy.py;
    # csrc/layer_norm/ln_*_kernels.cuh, which apex has too (apex/contrib/csrc/layer_norm)
    (
        "norm",
        r"_layer_norm_(fwd_1pass|bwd)_kernel|layer_norm_(fwd|bwd)_kernel",
        r"ln_(parallel_residual_)?(fwd|bwd|bwd_finalize)_kernel",
    ),
    ("attention.rope", r"rotary_kernel"),
    ("loss", r"cross_entropy_(fwd|bwd)_kernel"),
    # fla-org/flash-linear-attention fla/modules/, fla/ops/: attention by a softmax; recurrences in chunks
    ("norm", r"l2norm_(fwd|bwd)_kernel1?"),
    ("mlp.activation", r"(swi|pow|sigmoid)glu_(fwd|fwdbwd)_kernel"),
    ("loss", r"logsumexp_fwd_kernel|kl_div_kernel|grpo_(fwd|bwd)_kernel"),
    (
        "attention.core",
        r"parallel_(attn|nsa|path|wall_attn|parallax|deltaformer)_(compression_)?(fwd|bwd)_\w+",
    ),
    ("ssm.conv", r"causal_conv1d_states_fwd_kernel"),
    (
        "ssm.scan",
        r"_?(fused_)?(chunk|chunkwise|parallel)_(\w+_)?(fwd|bwd)_\w+|fused_recurrent_\w+_(fwd|bwd|\w*ward)_kernel",
        r"prepare_(precond_)?wy_repr_\w+|recompute_w_u_fwd_\w+|wu_fwd_kernel|solve_tril_\w+",
        r"merge_16x16_to_\w+_inverse_kernel|chunk_(local|global)_cumsum_\w+|(gdn|kda)_gate_\w+",
        r"fused_beta_sigmoid_(fwd|bwd)_kernel|(pre_process|merge)_(fwd|bwd)_\w*kernel\w*",
    ),
    # ROCm/aotriton tritonsrc/: PyTorch's flash attention on AMD
    ("attention.core", r"attn_fwd|bwd_kernel_(dk_dv|dq|fuse)|bwd_preprocess(_varlen)?"),
    # NVIDIA/TransformerEngine transformer_engine/common/: normalization/, fused_rope/fused_rope.cu,
    # fused_softmax/ (apex csrc/megatron/ has the same), util/vectorized_pointwise.h,
    # triton/cross_entropy.py, fused_router/, permutation/permutation.cu, triton/permutation.py
    ("norm", r"(ln|rmsnorm)_(fwd|bwd|bwd_finalize)_(tuned|general)_kernel"),
    ("attention.rope", r"fused_(qkv_)?rope_(thd_linear_grid_)?(forward|backward)_kernel"),
    ("attention.softmax", r"scaled_(\w+_)?masked_softmax_warp_(forward|backward)(_new)?"),
    ("attention.softmax", r"scaled_softmax_warp_forward"),
    ("mlp.activation", r"d?gated_act_kernel"),
    ("mlp.activation", r"scaled_(gated|unary)_(forward|backward)_kernel"),
    ("dropout", r"dropout_kernel_fwd_(f16|fp8)|apply_dropout_mask"),
    ("attention.other", r"thd_\w+_kernel|transpose_to_bhsd_\w+|convert_(thd_to_bshd|bshd_to_thd)_kernel"),
    ("attention.other", r"(reindex|copy_to)_kv_cache_kernel"),
    ("moe.experts", r"grouped_bias_add_kernel|_grouped_dbias_kernel|setup_grouped_gemm_kernel"),
    ("residual", r"_mhc_\w+"),  # manifold-constrained hyper-connections, of Liger-Kernel, too
    ("loss", r"online_softmax_kernel|cross_entropy_kernel"),
    ("moe.router", r"fused_(moe_aux_loss|score_for_moe_aux_loss|topk_with_score_function)_\w+"),
    ("moe.router", r"fused_topk_(forward_simple|backward_selected_indices)_kernel"),
    (
        "moe.dispatch",
        r"moe_(un)?permute_(kernel|row_map)|_(un)?permute_kernel|_unpermute_bwd_with_merging_probs_kernel",
        r"_row_id_map_pass_\d_kernel|_sort_chunks_by_map_kernel|_make_chunk_sort_map_kernel",
    ),
    # NVIDIA/apex csrc/layer_norm_cuda_kernel.cu, csrc/megatron/fused_rotary_positional_embedding.h,
    # apex/contrib/csrc/xentropy/xentropy_kernel.cu, apex/contrib/csrc/optimizers/
    ("norm", r"cuApply(Layer|RMS)Norm|cuComputeGradInput|cuCompute(Part)?GradGammaBeta"),
    ("attention.rope", r"fused_rope_(2d_|cached_|thd_)?(forward|backward)"),
    ("loss", r"cunn_SoftMaxXEntropy(Forward|Backward)"),
    ("optimizer", r"(reversible_)?adam_cuda_kernel"),
    # NVIDIA/Megatron-LM megatron/core/fusions/: fused_mla_yarn_rope_apply.py (rotary_* in older ones),
    # fused_indices_converter.py, fused_pad_routing_map.py; megatron/core/inference/moe/
    ("attention.rope", r"_mla_rope_(fwd|bwd)_(inplace|kv_split)_kernel|rotary_(fwd|bwd)_(q|kv)_kernel"),
    (
        "moe.dispatch",
        r"_indices_to_multihot_kernel|_multihot_to_indices_kernel|_pad_routing_map_kernel",
        r"_(un)?permute_tokens(_in_expert_order)?_kernel|_init_permutation_map_kernel",
    ),
    # vllm-project/vllm csrc/: layernorm_kernels.cu, pos_encoding_kernels.cu, activation_kernels.cu,
    # moe/topk_softmax_kernels.cu, moe/moe_align_sum_kernels.cu; FlashInfer and SGLang share the names
    ("norm", r"(fused_add_)?rms_norm_kernel"),
    ("attention.rope", r"(batched_)?rotary_embedding_kernel"),
    ("mlp.activation", r"act_and_mul_kernel|_?(silu|gelu|gelu_tanh|swiglu)_and_mul(_kernel)?"),
    ("moe.router", r"topkGatingSoftmax|topk_softmax|grouped_topk_fused_kernel"),
    (
        "moe.dispatch",
        r"moe_align_block_size(_\w+)?_kernel|moe_sum_kernel|count_and_sort_expert_tokens_kernel",
    ),
    ("moe.experts", r"fused_moe_kernel"),
    # facebookresearch/xformers xformers/ops/_triton/: rmsnorm_kernels.py, rope_padded_kernels.py
    ("norm", r"_rms_norm(_add)?_kernel"),
    ("attention.rope", r"_rope_padded_kernel"),
    # pytorch/torchtitan torchtitan/models/moe/kernels.py
    ("moe.dispatch", r"_fill_indices_kernel"),
    # KellerJordan/modded-nanogpt triton_kernels.py: Muon's Newton-Schulz products X X^T, X^T X and
    # b A + c A A; one kernel for relu(x W)^2 and for its gradient
    ("optimizer", r"XXT_kernel|XTX_kernel|ba_plus_cAA_kernel"),
    ("mlp.other", r"linear_relu_square_kernel"),
)
_COMPILED_CUSTOM = tuple((component, re.compile("|".join(names))) for component, *names in _CUSTOM)
#: The functor among the template arguments tells: apex csrc/multi_tensor_*.cu, TE common/multi_tensor/
_OPTIMIZER_FUNCTOR = re.compile(
    r"(?s)\A(?>.*?multi_tensor_apply_kernel<).*?\b(Adam|Adagrad|SGD|NovoGrad|LAMBStage)\w*?Functor"
)
#: TE common/util/vectorized_pointwise.h: the function pointer among the template arguments tells
_UNARY_ACTIVATION = re.compile(r"(?s)\A(?>.*?\bunary_(grad_)?kernel<).*?\bd?(q?gelu|s?relu|silu)\b")
_FUNCTION = re.compile(r"(?<!\w)(\w++)(?=[<(]|$)")
_TRITON_SUFFIX = re.compile(rf"{_SIGNATURE}{_CLONE}$")


@cache
def custom_kernel(name: str) -> str | None:
    """The component that a hand-written kernel's own name proves, a word of ``words.COMPONENTS``.

    >>> custom_kernel("_rms_norm_forward_kernel"), custom_kernel("XXT_kernel"), custom_kernel("_fwd_kernel")
    ('norm', 'optimizer', None)
    """
    if _OPTIMIZER_FUNCTOR.search(name):
        return "optimizer"
    if _UNARY_ACTIVATION.search(name):
        return "mlp.activation"
    function = _function(name)
    return next((component for component, names in _COMPILED_CUSTOM if names.fullmatch(function)), None)


def _function(name: str) -> str:
    """``void ns::f<int>(float*)`` and ``f_0d1d2de`` -> ``f``."""
    match = _FUNCTION.search(_TRITON_SUFFIX.sub("", name.replace("(anonymous namespace)::", "")))
    return match[1] if match else ""
