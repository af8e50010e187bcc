"""What names say: of operators, of modules and ranges.

Every rule stands in one of two tables, read top to bottom, first match wins. A name that matches
nothing says nothing: it is not guessed at.

A name can be anything, so every pattern takes time in proportion to its length: what stands within a word
is looked for once the whole is known to be one (``_WORD``), and what follows a word within ``_NEAR``.
"""

from __future__ import annotations

import re
from functools import cache

from tracelens.attribution.patterns import OPERATORS, patterns_of

#: The rest is one word: then ``.*part.*`` fails or matches without going back.
_WORD = r"(?=\w*+\Z)"
_NEAR = r"\w{0,60}"

# --- operators -------------------------------------------------------------------------------------

#: rule, then the names it holds for, each matched whole
_OPS: tuple[tuple[str, ...], ...] = (
    ("communication", r"(nccl:|c10d::|_c10d_functional::|gloo:).*", "record_param_comms"),
    (
        "optimizer",
        r"aten::_fused_(adam|adamw|sgd|adagrad)_?",
        r"aten::_amp_(foreach_non_finite|update_scale)\w*",
    ),
    ("grad_clip", "aten::_foreach_norm"),
    (
        "attention_block",
        r"aten::(_native_multi_head_attention|_transformer_encoder_layer_fwd)",
        # an autograd function of one's own around more than the core: its projections, its rotation
        rf"{_WORD}(?!Flash|Fused|.*Linear).*Attn.*Func(tion)?(Backward)?",
    ),
    (
        "core",
        r"aten::(scaled_dot_product_attention|_scaled_dot_product_\w+|_fused_sdp_choice)",
        r"aten::(_flash_attention_\w+|_efficient_attention_\w+|_cudnn_attention_\w+)",
        rf"flash_attn(_\d)?::\w+|flash_attn_gpu::\w+|FlashAttn{_WORD}.*Func.*",
        rf"fmha::\w+|xformers::{_WORD}.*attention.*|xformers_flash\w*+::\w+",
    ),
    ("fused_logits_loss", rf"{_WORD}.*FusedLinearCrossEntropy.*"),
    (
        "loss",
        r"aten::(cross_entropy_loss|nll_loss\w*|_?log_softmax\w*|mse_loss\w*|l1_loss|smooth_l1_loss\w*)",
        r"aten::(kl_div\w*|binary_cross_entropy\w*|ctc_loss|huber_loss\w*)",
        rf"{_WORD}.*CrossEntropy.*",
    ),
    (
        "embedding",
        r"aten::(embedding|embedding_bag|_embedding_bag\w*|embedding_dense_backward|embedding_backward)",
    ),
    (
        "norm",
        r"aten::(native_|_fused_|cudnn_|miopen_)?(layer_norm|rms_norm|group_norm|batch_norm|instance_norm)\w*",
        r"aten::_batch_norm_impl_index|aten::_weight_norm\w*",
        rf"{_WORD}(?>.*?(RMSNorm|LayerNorm)).*(Function|Fn|Func).*",
        r"_(RMSNorm|LayerNorm)(Backward)?",  # module/layernorm.py of TransformerEngine
        r"[\w:]+/norm",  # part of an opened function (functions.py), as below
    ),
    ("dropout", r"aten::(native_dropout|dropout_?|feature_dropout|_fused_dropout)|[\w:]+/dropout"),
    (
        "softmax",
        r"aten::(_?softmax(_backward_data)?|_safe_softmax|_masked_softmax(_backward)?)",
        rf"{_WORD}.*Softmax(Function|Fn).*",
        # fused_softmax.py of Megatron-LM and apex, softmax.py of TransformerEngine
        r"(Generic)?Scaled(UpperTriang|AlignedCausal)?(Masked)?Softmax(Backward)?",
    ),
    (
        "activation",
        r"aten::(gelu_?|silu_?|mish_?|hardswish_?|glu|erf_?)",  # erf: a GELU written out
        rf"{_WORD}.*(SiLUMul|SwiGLU|GEGLU|GELUMul|BiasGelu|BiasGeLU).*",
        r"[\w:]+/activation",
    ),
    (  # an activation in an MLP, and many other things elsewhere: soft caps, gates, stems
        "nonlinearity",
        r"aten::(relu_?|relu6_?|leaky_relu_?|elu_?|sigmoid_?|tanh_?|softplus|prelu|clamp_min_?|threshold_?)",
    ),
    ("bmm", r"aten::(bmm|baddbmm_?|bmm_out)"),
    (
        "linear",
        r"aten::(linear|addmm_?|mm|matmul|einsum|_addmm_activation)",
        r"aten::(_scaled_mm|_int_mm|_grouped_mm|_scaled_grouped_mm)",
        r"[\w:]+/(product|dgrad|wgrad)",
        r"LinearWith(GradAccumulationAndAsyncCommunication|FrozenWeight)",  # layers.py of Megatron-LM
    ),
    (
        "convolution",
        r"aten::(conv[123]d|_?convolution\w*|(cudnn|mkldnn|miopen|thnn)_conv\w*|conv_depthwise\w*)",
    ),
    (  # of pictures and of boxes in them: no part of a transformer (deformable attention takes samples by
        # grid_sampler: arXiv 2010.04159)
        "picture",
        r"aten::(_?upsample_\w+|(adaptive_)?(max|avg)_pool[123]d\w*|pixel_(un)?shuffle)",
        r"torchvision::(nms|roi_\w+|deform_conv2d|ps_roi_\w+)",
    ),
    (  # takes one step after the other, and is no part of a transformer
        "recurrence",
        r"aten::((lstm|gru|rnn_tanh|rnn_relu)(_cell)?|_?(cudnn|thnn|miopen)\w*_(rnn|lstm_cell|gru_cell)\w*)",
    ),
    ("topk", "aten::topk"),
    (
        "dispatch",
        r"aten::(_?index(_put(_impl)?_?|_add_?|_select|_copy_?)?|scatter(_add|_reduce)?_?|gather|nonzero|sort)",
        r"aten::(argsort|one_hot|bincount|histc|cumsum|masked_select|masked_scatter_?|_?unsafe_index\w*)",
    ),
    ("add", r"aten::add_?"),
    ("experts",),  # a whole mixture in one operator
    ("routes",),  # of a mixture: its choice
    ("sends",),  # and the way to and from the experts
    ("scan",),  # of a state space, or its whole mixer
    ("rope",),
    ("cache",),  # keys and values into what later steps read
    ("quantize",),
)
OP_RULES = tuple(rule for rule, *_ in _OPS)
RULE_CODE = {rule: code for code, rule in enumerate(OP_RULES)}
_COMPILED_OPS = tuple(
    (rule, re.compile("|".join([*names, *patterns_of(OPERATORS, rule)]))) for rule, *names in _OPS
)


@cache
def op_rule(name: str) -> str | None:
    """What an operator is, from its own name; None where the name does not say."""
    return next((rule for rule, pattern in _COMPILED_OPS if pattern.fullmatch(name)), None)


# --- modules and named ranges ----------------------------------------------------------------------

#: What holds a normalization, or is called after the kind it has ("RobertaPreLayerNormEncoder"), is none.
_AROUND_NORM = (
    "linear|mlp|conv|layer|coder|model|attention|intermediate|output|embed|head|pool|for(masked|causal|seq)"
)
#: One element of a path: an nn.Module class (``LlamaMLP``), an attribute (``q_proj``) or a range's text.
_ELEMENTS: tuple[tuple[str, ...], ...] = (
    # work around the model first: grad_norm is no normalization layer
    ("grad_clip", "clip_grad", "grad_?norm", "gradient_?clip"),
    (
        "optimizer",
        r"^optimizer\.(step|zero_grad)#",
        "torch/optim/",
        r"^optimizer(\.|_)?step",
        "^optim(izer)?$",
    ),
    ("communication", r"^(fsdp::|nccl|c10d|all_?reduce|all_gather|reduce_scatter)"),
    ("residual", r"hyper_?(connections?|head)$"),  # several streams, and the ways between (arXiv 2409.19606)
    (
        "norm",
        r"(?<!with)norm\d*$|^norm_\d+$",
        r"^ln(_?\d|_f|_\w+|tuninglayer)?$",  # the last around one, of peft
        rf"(layer|rms)_?norm(?!{_NEAR}({_AROUND_NORM}))",
        "batchnorm",
    ),
    (  # Griffin's gated linear recurrence too: a short convolution, and a diagonal state that decays
        "ssm",
        r"mamba_?2?(mixer\d?|layer)?$|(bamba|h1)mixer$|delta(net|attention)$|^linear_attn$|state_?space",
        r"rg_?lru$|recurrentblock$",
    ),
    (  # recurrences, short convolutions: they mix tokens, and are no attention
        "mixer",
        "(?<!mlp)mixer$|rwkv(?!_?(channel_?mix|cmix|feed_?forward))|shortconv(olution)?$|lightconv(1d)?$",
        r"triangle_?multiplic\w*$|^tri_mul(_(in|out))?$|outer_?(product_?)?mean$",  # openfold/model/*.py
    ),
    ("rope", "rotary", "rope(?!n)", "apply_rot"),
    ("dropout", "dropout", r"^(attn_|resid_)?drop(_path)?$", "drop_?path$", "stochastic_?depth"),
    ("router", "router", "topkgate", "gating", "moegate"),
    ("gate", "^gate$"),
    # of all tokens, and an MLP throughout: moe/shared_experts.py of Megatron-LM, modeling_qwen2_moe.py
    ("shared", r"^shared_?experts?(mlp)?$"),
    ("experts", r"experts?(_?layers?)?(_\d+)?$", "expert_?mlp", "groupedmlp"),
    ("moe", "moe(_?(block|layer|ffn|feed_?forward))?$", "^moe_", "mixture", "sparse_?(moe|mlp)"),
    (
        "qkv",
        r"^(q|k|v|qkv|kv|qk|query|key|value|query_key_value|wqkv|wq|wk|wv)(_?(proj|linear|lin))?$",
        r"^(c_attn|in_proj|linear_qkv|attn_in|to_[qkv]|to_qkv|to_kv|qkv_\w+|\w+_qkv)$",
        r"^(w_(q|k|v|qkv|kv)|emb_to_(query|key_value))$",  # Olmo-core; emformer.py of torchaudio
        r"^(q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj|qkv.?proj\w*|w(q|kv|qkv)_[ab]|qkvparallellinear)$",
    ),
    (
        "attention_output",
        r"^(o|o_proj|out_proj|wo|to_out|attn_out|linear_proj|attention_output)$",
        "selfoutput$",
        r"\A(?>.*?attn).*(out|o)_?proj",
    ),
    ("gate_up", r"^(gate_up_proj|w12|linear_fc1_gated|gate_and_up)$"),
    ("mlp_gate", r"^(gate_proj|w1_gate|wi_0|gate_linear)$"),
    ("mlp_up", r"^(up_proj|c_fc|fc1|fc_in|lin1|linear1|wi|wi_1|dense_h_to_4h|linear_fc1|ffn_up|w3)$"),
    ("intermediate", "intermediate$"),  # BERT's: the product and its activation
    ("mlp_down", r"^(down_proj|fc2|fc_out|lin2|linear2|dense_4h_to_h|linear_fc2|ffn_down|w2)$"),
    # gates of channels or of a picture's places: timm/layers/split_attn.py, selective_kernel.py, cbam.py
    ("stem", r"^(split|selective_?kernel|(light)?(channel|spatial))attn$"),
    # retention is attention without a softmax, with a decay (arXiv 2307.08621), and the correlation of series
    # stands where attention does (Autoformer, arXiv 2106.13008)
    (
        "attention",
        "attention",
        "auto_?correlation",
        "retention$",
        "attn(?!(up|down|mid)?block)",
        "mha",
        "mla$",
        "multihead",
        "^(sa|gpsa|xca)$",
    ),
    (
        "activation",
        r"^(act|act_fn|silu\w*|\w*activation(_fn)?)$",
        r"(swi|ge|re)_?glu$",
        rf"^{_WORD}(.*gelu|(?!dense).*relu)",
    ),
    (
        "mlp",
        rf"mlp(?!{_NEAR}head|embedder$)",
        "feed_?forward|^rwkv_?(channel_?mix|cmix)",  # of RWKV (arXiv 2305.13048)
        "^ff$",
        "(?<!layer)ffn?$",
        "dense(relu|act|gatedact)dense$",
    ),
    ("head_transform", "headtransform$", "pooler$", r"box_?(embed|head|predict(or|ion_?head))$"),
    (
        "logits",
        rf"lm_?head(?!{_NEAR}model)",
        r"^(embed_out|output_?layer|unembed\w*|head)$",
        "(prediction|codebooks?_?)head$",
        "classif(ication|ier)_?head$",
        "logits",
        "vocab_?proj",
    ),
    ("loss", "loss", "cross_?entropy", "criterion"),
    (
        "embedding",
        # nor a model of that name (EmbeddingGemma, FlagEmbedding's EncoderOnlyEmbedderModelForTraining), nor
        # what hands an embedding on (guided-diffusion)
        rf"embed(?!ding((?-i:s?[A-Z])\w*(layer|block|lm)|postprocessor)$)(?!sequential)(?!{_NEAR}model(for|$))",
        "^wte$",
        "^wpe$",
        "tok_emb",
        "pos_emb",
        r"pos(ition(al)?)?_?enc(od(er|ing)s?)?$",  # of sines, in torch's own tutorial of the transformer
        "pos(ition)?_?bias$",  # DynamicPositionBias of lucidrains/x-transformers: of scores, in attention
        "patch_?merging",
        "pre_?net$",  # of text or sound, in front of the layers (Tacotron, arXiv 1703.10135)
        "multi_?modal_?projector$|aligner$",
    ),
    ("bert_output", r"^(?!.*self)\w*output$"),
    (
        "stem",
        r"conv(olution)?_?(layer|block|stem|module)(_\d+)?$",
        "feature_?(extractor|encoder)$",
        r"^resnet_?stage$|^bottleneckblock$",
        # what is said of time and text, for all tokens (AdaLN): torchtitan/models/flux/model/layers.py
        r"^(ada_?ln_?)?modulation$|^(img|txt)_mod$|^film(layer)?$",  # arXiv 1709.07871
        # the next token's embedding onto the stream: transformer/multi_token_prediction.py of Megatron-LM
        "^eh_proj$",
    ),
    # of T5's a layer and not its MLP, which lies in it; a FinalLayer (DiT) is the head
    (
        "layer",
        r"(?<!base_)(?<!final)(?<!final_)(?<!last)(?<!last_)(layer|block)(_\d+)?$",
        r"^(h|layers?|blocks?)$",
        "layerff$",
    ),
)
_COMPILED_ELEMENTS = tuple((role, re.compile("|".join(words), re.IGNORECASE)) for role, *words in _ELEMENTS)
# what counts layers has few digits; more of them are another kind of name
_COUNTER = re.compile(r"^(.*?)_(\d{1,9})$")
_INDEX = re.compile(r"^\d{1,9}$")
_LAYER_TEXT = re.compile(r"^(?:transformer[ _.-]?)?(?:layer|block)s?[ _.:#-]*(\d{1,9})$", re.IGNORECASE)


@cache
def element_role(text: str) -> str | None:
    """What one path element is, from its own text; None where it does not say.

    Arguments behind a name are none of it: ``MoE[experts=8, tokens=256]``.
    """
    name, bracket, arguments = text.partition("[")
    text = name if bracket and "=" in arguments else text
    text = text.strip().replace("-", "_").replace(" ", "_") if " " in text or "-" in text else text
    return next((role for role, pattern in _COMPILED_ELEMENTS if pattern.search(text)), None)


def split_counter(text: str) -> tuple[str, int | None]:
    """``Linear_3`` -> (``Linear``, 3): the profiler numbers the instances of each class."""
    match = _COUNTER.match(text)
    return (match[1], int(match[2])) if match else (text, None)


def layer_of_text(text: str) -> int | None:
    """The layer a range names outright: ``layer 3``, ``block_12``."""
    match = _LAYER_TEXT.match(text.strip())
    return int(match[1]) if match else None


def layer_of_fqn(parts: list[str]) -> int | None:
    """The layer in a dotted module name: the first number behind a word for a list of blocks.

    A list of another name is one of blocks where a part of a block is named too (``stages.3.attn.qkv``).
    """
    roles = [element_role(word) for word in parts]
    for at, (role, number) in enumerate(zip(roles, parts[1:], strict=False)):
        listed = role == "layer" or (role is None and parts[at] != "experts" and any(roles))
        if _INDEX.match(number) and listed:
            return int(number)
    return None
