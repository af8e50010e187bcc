"""What each piece of the models of ``texts.py`` is for, by their own names of classes and attributes.

Rows as in ``more_truth.py``: the end of a place, the function (``add=`` adds two tensors of one shape), the
truth and the source. They were written from the sources before any recording was attributed. Retention
(torchscale) and gated loops (gateloop_transformer) are attention by their names, and states that decay.
"""

from __future__ import annotations

import re

from benchmarks.hub.truth import Place
from benchmarks.libraries.more_truth import Row, row_of, spelled
from benchmarks.libraries.truth import _CONVOLUTIONS, _FUSED, _GATED, _NORMS, _in_attention

_IN = r"(/.*)?"
_ANY = ".*"
_SUM = r"\w*add_{0,2}=?"
_PRODUCT = "linear|addmm|matmul"
_ACT = "mlp.activation mlp.other"
_ROUTES = "moe.router moe.dispatch"
_SENDS = "moe.dispatch moe.experts moe.router"
_BIAS = "attention.other embedding attention.softmax"
_DECAYS = "attention.* ssm.scan"
_MASK = "attention.other other"
#: A feed-forward network that is a row of modules: where it stands, its way up, its way down, its source.
_ROWS_OF_LAYERS = (
    (r"BlockRecurrentTransformer\[\]/Sequential\[1\]", "1", "3", _GATED, "FeedForward: GEGLU"),
    (r"HyperConnections\[\d\]/Sequential\[branch\]", "1", "4", _GATED, "recurrent_memory: FeedForward"),
    (r"(FeedForward\[fn\]/Sequential\[(ff|net)\])", "0", "3", "mlp.up", "retro; memorizing: FeedForward"),
    (r"HierarchicalBlock\[\d\]/FeedForward\[ff\]/Sequential\[net\]", "1", "3", "mlp.up", "hierarchical"),
    (r"Transformer\[\]/Sequential\[1\]", "1", "3", "mlp.up", "native_sparse: FeedForward"),
    (r"PreNorm\[1\]/Sequential\[fn\]", "0", "2", "mlp.up", "gateloop: FeedForward"),
    (r"Sequential\[transformer\]/Sequential\[\d\]/Residual\[1\]/Sequential\[fn\]", "1", "4", "mlp.up",
     "modeling_enformer.py"),
    (r"SparseMoEBlock\[\d\]/Expert\[ff_\w+\]/Sequential\[net\]", "1", "3", _GATED, "st_moe: for all"),
    (r"TabPFNBlock\[\d\]/Sequential\[mlp\]", "0", "2", "mlp.up", "tabpfn_v2.py"),
)  # fmt: skip
#: A feed-forward network with named layers: its class, its way up and its way down.
_FEED_FORWARDS = (
    ("PointwiseFeedForward", "intermediate", "output", "curated_transformers/layers/feedforward.py"),
    ("FeedForwardNetwork", "fc1", "fc2", "torchscale/component/feedforward_network.py"),
    ("PositionwiseFeedForward", "w_1", "w_2", "onmt/modules/position_ffn.py"),
    ("TransformerFeedForward", "ff1", "ff2", "sockeye/transformer.py"),
    (r"CompressiveTransformerLayer\[\d\]/FeedForward", "layer1", "layer2", "labml_nn: feed_forward.py"),
    (r"Chunk\[fn\]/FeedForward", "w1", "w2", "reformer_pytorch.py, routing_transformer.py"),
)
_ROWS = (
    # mixtures of experts
    Row(r"SwitchFeedForward\[\w+\]/FeedForward\[\d\](/\w+\[\w+\])?", _ANY, "moe.experts",
        "labml_nn: switch"),
    Row(r"SwitchFeedForward\[\w+\]/(Linear\[switch\]|Softmax\[softmax\])", _ANY, "moe.router", "switch"),
    Row(r"SwitchFeedForward\[\w+\]", "max|sum|view", _ROUTES, "labml_nn: switch"),
    Row(r"SwitchFeedForward\[\w+\]", _ANY, _SENDS, "labml_nn: switch: indexes_list, final_output"),
    Row(r"SwitchTransformer\[\w+\]", "stack", "moe.router other", "labml_nn: switch: counts"),
    Row(r"Experts\[experts\]/.+", _ANY, "moe.experts", "st_moe, soft_moe, mixture_of_experts"),
    Row(r"Experts\[experts\]", "einsum", "moe.experts", "mixture_of_experts.py: w1, w2"),
    Row(r"Experts\[experts\]", _ANY, "moe.dispatch moe.experts", "st_moe, soft_moe: stack"),
    Row(r"(TopN|Top2)Gating\[gate\]/Linear\[to_gates\]|Top2Gating\[gate\]", "linear|einsum", "moe.router",
        "st_moe, mixture_of_experts"),
    Row(r"(TopN|Top2)Gating\[gate\]", _ANY, _ROUTES, "st_moe, mixture_of_experts"),
    Row(r"MoE\[\w+\]", "einsum", "moe.dispatch", "to experts and from them"),
    Row(r"MoE\[\w+\]", "mul|add=?", "moe.router loss", "of the balance"),
    Row(r"MoE\[\w+\]", _ANY, _SENDS, "mixture_of_experts.py: reshape"),
    Row(r"SoftMoE\[\d\]/RMSNorm\[slot_norm\]", _ANY, "norm moe.router", "soft_moe.py: of slots"),
    Row(r"SoftMoE\[\d\]", "softmax", _ROUTES, "soft_moe.py: dispatch and combine weights"),
    Row(r"SoftMoE\[\d\]", _ANY, "moe.dispatch moe.router", "soft_moe.py: logits, slots, out"),
    # several residual streams
    Row(r"HyperConnections\[\d\]/RMSNorm\[norm\]", _ANY, "norm residual other", "hyper_connections.py"),
    Row(r"HyperConnections\[\d\](/Tanh\[act\])?", _ANY, "residual other", "hyper_connections.py"),
    Row(r"Reduce\[(expand|reduce)_streams\]", _ANY, "residual other", "hyper_connections.py"),
    Row(r"(IrreversibleBlock\[\d\]|Reformer\[reformer\])", _ANY, "residual other", "reversible.py: halves"),
    # products of attention
    Row(r"MultiScaleRetention\[\w+\]/Linear\[[qkv]_proj\]", _PRODUCT, "attention.qkv ssm.projection",
        "multiscale_retention.py"),
    Row(r"MultiScaleRetention\[\w+\]/Linear\[g_proj\]", _PRODUCT, "attention.* ssm.projection", "its gate"),
    Row(r"MultiScaleRetention\[\w+\]/Linear\[out_proj\]", _PRODUCT, "attention.output ssm.projection",
        "multiscale_retention.py"),
    Row(r"MultiScaleRetention\[\w+\]", _ANY, _DECAYS, "multiscale_retention.py"),
    Row(r"RetNetRelPos\[\w+\]", _ANY, "attention.rope embedding attention.other ssm.scan", "retnet.py"),
    Row(r"GateLoopedAttention\[fn\]/Linear\[to_qkv\]", _PRODUCT, "attention.qkv ssm.projection", "gateloop"),
    Row(r"GateLoopedAttention\[fn\]/Linear\[to_out\]", _PRODUCT, "attention.output ssm.projection",
        "gateloop"),
    Row(r"GateLoopedAttention\[fn\]/Sequential\[to_(a|gates)\]/Linear\[0\]", _PRODUCT,
        "attention.* ssm.projection", "gateloop: of transitions, of the result"),
    Row(r"GateLoopedAttention\[fn\]" + _IN, _ANY, _DECAYS, "gateloop_transformer.py"),
    Row(r"(SelfAttention\[mha\]/Linear\[(input|query|key|value)\]"
        r"|PrepareForMultiHeadAttention\[\w+\]/Linear\[linear\]"
        r"|(\w*Attention|AttentionBlock|LocalMHA)\[\w+\]/Linear\[(linear_(keys|values|query)|local_to_qkv"
        r"|[qkv]_proj(ection)?|to_?(q|k|v|kv|qk|qkv)|(q_(to|from)|state_to)_\w+|state_to_(q|kv))\])",
        _PRODUCT, "attention.qkv", "their names"),
    Row(r"(\w*Attention|AttentionBlock|LocalMHA)\[\w+\]/Linear\[(output|final_linear|out_proj(ection)?|to_out"
        r"|to_state_out|combine_heads)\]", _PRODUCT, "attention.output", "their names"),
    Row(r"(AttentionBlock\[0\]/Linear\[state_out_to_gate\]|Attention\[\d\]/Linear\[to_rel_k\]"
        r"|SparseAttention\[0\]/Sequential\[\w+\]/\w+\[\d\]|Sequential\[learned_value_residual_mix\]/\w+\[\d\])",
        _ANY, "attention.*",
        "a gate of states; of positions; keys and values made fewer; a gate of values"),
    Row(r"AttentionBlock\[0\]", _SUM, "attention.* residual", "block_recurrent: states"),
    Row(r"Sequential\[transformer\]/.*Attention\[1\]", "arange|linspace|xlogy|exp|log|lgamma|amax|sign|abs"
        "|pow|__rpow__|__rdiv__|gt|to|stack|cat", "attention.* embedding", "enformer: of positions"),
    Row(r"(T5)?RelativePositionBias\[\w+\](/Embedding\[\w+\])?", _ANY, _BIAS, "torchscale; memorizing"),
    Row(r"(QueryKey)?RotaryEmbeddings?\[\w+\]", _ANY, "attention.rope", "their names"),
    Row(r"FixedPositionalEmbedding\[\w+\]", _ANY, "attention.rope embedding", "reformer, routing"),
    Row(r"MemoryManager\[\w+\]", _ANY, "attention.* other", "block_recurrent: keys and values kept"),
    Row(r"AutoRegressiveMask\[\w+\]", _ANY, _MASK, "sockeye/transformer.py"),
    Row(r"(TransformerDecoderLayer|CompressiveTransformerLayer)\[\d\]", _SUM, "residual", "around each"),
    Row(r"(TransformerDecoderLayer|CompressiveTransformerLayer)\[\d\]", _ANY, "attention.*",
        "onmt: a mask; labml_nn: a memory"),
    Row(r"Transformer(En|De)coder\[\w+\]", _ANY, "other attention.*", "onmt, sockeye: masks, the order"),
    Row(r"LSHAttention\[\w+\]", "logsumexp|exp", "attention.softmax attention.*", "reformer_pytorch.py"),
    Row(r"(LSHAttention|SparseAttention)\[\w+\]", "einsum", "attention.*", "hashes, scores, values, gates"),
    # products of gated and ungated MLPs
    Row(r"GatedMLP\[mlp\]", "matmul", "mlp.gate mlp.up", "transformer_lens: W_gate, W_in"),
    Row(r"GatedMLP\[mlp\]", "addmm", "mlp.down", "transformer_lens: W_out"),
    Row(r"MLP\[mlp\]", "addmm", "mlp.up mlp.down", "transformer_lens: W_in and W_out, in one module"),
    Row(r"(Gated)?MLP\[mlp\]", _ANY, _ACT, "transformer_lens"),
    Row(r"GLU\[ffn\]/Linear\[gate\]", _PRODUCT, "mlp.gate mlp.up", "f(fc1(x)) * gate(x)"),
    Row(r"GLU\[ffn\]/Linear\[fc1\]", _PRODUCT, "mlp.up mlp.gate", "gate_linear_unit.py"),
    Row(r"GLU\[ffn\]/Linear\[fc2\]", _PRODUCT, "mlp.down", "gate_linear_unit.py"),
    Row(r"GLU\[ffn\]", _ANY, _ACT, "gate_linear_unit.py"),
    *(Row(rf"{where}/Linear\[{up}\]", _PRODUCT, truth, source)
      for where, up, _, truth, source in _ROWS_OF_LAYERS),
    *(Row(rf"{where}/Linear\[{down}\]", _PRODUCT, "mlp.down", source)
      for where, _, down, _, source in _ROWS_OF_LAYERS),
    *(Row(rf"{where}/\w+\[\d\]", _ANY, _ACT, source) for where, _, _, _, source in _ROWS_OF_LAYERS),
    *(Row(rf"{kind}\[\w+\]/Linear\[{up}\]", _PRODUCT, "mlp.up", source)
      for kind, up, _, source in _FEED_FORWARDS),
    *(Row(rf"{kind}\[\w+\]/Linear\[{down}\]", _PRODUCT, "mlp.down", source)
      for kind, _, down, source in _FEED_FORWARDS),
    Row(r"PositionwiseFeedForward\[\w+\]", _SUM, "residual", "position_ffn.py: inter + x"),
    *(Row(rf"{kind}\[\w+\](/\w+\[act(ivation)?\])?", _ANY, _ACT, source)
      for kind, _, _, source in _FEED_FORWARDS),
    # simple_hierarchical_transformer.py
    Row(r"HierarchicalMerge\[\d\]/Sequential\[net\]/Linear\[1\]", _PRODUCT, "mlp.up other", "between them"),
    Row(r"HierarchicalMerge\[\d\]/Sequential\[net\]/Linear\[3\]", _PRODUCT, "mlp.down other", "between them"),
    Row(r"HierarchicalMerge\[\d\]" + _IN, _ANY, "mlp.activation mlp.other other", "between them"),
    Row(r"Compress\[\d\]" + _IN, _ANY, "embedding other", "fewer tokens"),
    Row(r"Linear\[to_recon\]", _PRODUCT, "logits other loss", "the tokens again"),
    Row(r"NextLatDynamics\[\d\]" + _IN, _ANY, "mlp.* other loss residual", "predicts latents"),
    Row(r"CausalChunkSummarizer\[\d\]" + _IN, _ANY, "other embedding loss", "of what is predicted"),
    Row(r"MSECosineSimLoss\[\w+\]", _ANY, "loss", "next_latent_loss_fn"),
    Row(r"HierarchicalBlock\[\d\]", "chunk|pad|cat|reshape|__getitem__", "other attention.other mlp.other",
        "token_shift"),
    Row(r"HierarchicalTransformer\[\]", "add=", "residual other loss", "predict_tokens + pooled"),
    Row(r"HierarchicalTransformer\[\]", _ANY, "loss logits other", "logits, losses and their masks"),
    # modeling_enformer.py
    Row(r"AttentionPool\[\d\](/.*)?", _ANY, "other embedding attention.*", "pools over pairs of positions"),
    Row(r"Residual\[\d\]", _SUM, "residual other", "also around convolutions"),
    Row(r"Sequential\[(stem|conv_tower)\]/.*GELU\[\d\]", _ANY, "other embedding", "of convolutions"),
    Row(r"Sequential\[final_pointwise\]/.*(GELU|Conv1d)\[\d\]", _ANY, "other logits", "of a convolution"),
    Row(r"Sequential\[human\]/Linear\[0\]", _PRODUCT, "logits", "a head"),
    Row(r"Sequential\[human\]/Softplus\[1\]", _ANY, "logits other loss", "a head"),
    Row(r"Enformer\[\]", _ANY, "loss", "poisson_loss"),
    # tabpfn_v2.py
    Row(r"TabPFNBlock\[\d\]", "flatten|contiguous|view|transpose|unflatten|reshape",
        "attention.other other mlp.other", "rows and columns in turns"),
    Row(r"TabPFNV2\[\]/Sequential\[output_projection\]/Linear\[0\]", _PRODUCT, "logits other mlp.up", "head"),
    Row(r"TabPFNV2\[\]/Sequential\[output_projection\]/Linear\[2\]", _PRODUCT, "logits other", "a head"),
    Row(r"TabPFNV2\[\]/Sequential\[output_projection\]/GELU\[1\]", _ANY, "logits other mlp.activation",
        "a head"),
    Row(r"TabPFNV2\[\](/Linear\[\w+\])?", _ANY, "embedding other", "of cells, of targets, of columns"),
    # heads, embeddings, masks and losses
    Row(r"((Linear|OutputLayer)\[(output_embeddings|output_projection|generator|lm_head|to_logits|out"
        r"|output_layer)\]|Unembed\[\w+\]|Sequential\[(to_logits|out)\]/Linear\[1\])", _PRODUCT, "logits",
        "their names"),
    Row(r"Linear\[to_decoder_model_dim\]", _PRODUCT, "embedding other", "retro_pytorch.py"),
    Row(r"Linear\[project_out\]", _PRODUCT, "other embedding", "retro_pytorch.py: of what was retrieved"),
    Row(r"(RoBERTa|Transformer|Positional)?(Pos)?Embed(ding)?s?\[\w*\]" + _IN, _ANY, "embedding other",
        "their names"),
    Row(r"PosEmbed\[\w+\]", _ANY, "embedding", "transformer_lens"),
    Row(r"HookedTransformer\[\]", _SUM, "embedding other", "transformer_lens: of positions"),
    Row(r"HookedTransformer\[\]", _ANY, "loss", "lm_cross_entropy_loss"),
    Row(r"(Blocks|BlockRecurrentTransformer|Transformer)\[\]", _SUM, "residual", "around each"),
    Row(r"(RETRO|ReformerLM|RecurrentMemoryTransformer|Encoder|RetNetDecoder)\[\]", "mul|__\\w*mul__|" + _SUM,
        "embedding other", "of positions, and a factor"),
    Row(r"(RecurrentMemoryTransformer|BlockRecurrentTransformer|AutoregressiveModel|RETRO|SockeyeModel|Encoder"
        r"|NMTModel)\[\]", "tril|triu|ones|pad|__invert__|new_ones|ne|__ne__|to", _MASK, "masks"),
    Row(r"(RecurrentMemoryTransformer|BlockRecurrentTransformer)\[\]", _ANY, "embedding other logits",
        "parts put together and taken apart"),
    Row(r"(SockeyeModel|NMTModel|Decoder|AutoregressiveModel|Encoder|RETRO)\[\w*\]", _ANY,
        "other attention.* embedding", "what goes between"),
    Row(r"(RoutingTransformer\[\w+\]/)?SequentialSequence\[\w+\]", "add_?|sum|stack", "loss residual other",
        "routing_transformer: losses"),
)  # fmt: skip
_ATTENTION = re.compile(r"(Attention|AttentionBlock|LocalMHA|Attend)$")
_PLAIN = re.compile(r"LayerNorm|RMSNorm|LowerPrecisionLayerNorm|BatchNorm1d")
_STREAMS = re.compile(r"HyperConnections\[\d\]/RMSNorm\[norm\]$|RMSNorm\[slot_norm\]$")
_LAYER = re.compile(r"(Block|Layer|PreNorm|PreNormResidual|SequentialSequence)$")


def truth_of(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    """The truth of a call, as ``benchmarks.libraries.truth.truth_of`` says it of the other lists."""
    if not place.classes:
        return "loss"
    own = place.classes[-1]
    if function in ("cross_entropy", "mse_loss"):
        return "loss attention.*" if own == "Kmeans" else "loss"
    if function == "scaled_dot_product_attention":
        return _FUSED
    if function == "dropout":
        return "dropout"
    if (function in _NORMS or _PLAIN.fullmatch(own)) and not _STREAMS.search(spelled(place)):
        return "norm other" if own.startswith("Batch") else "norm"
    if found := row_of(_ROWS, place, function, equal=equal):
        return found
    if place.within(_ATTENTION) >= 0 or own == "Kmeans":
        return _in_attention(function, seen=place.seen, weighted=weighted)
    if function in _CONVOLUTIONS:
        return "other embedding"
    if re.fullmatch(_SUM + "|mul", function) and _LAYER.search(own):
        return "residual attention.other mlp.other" if own == "OldFalconDecoderLayer" else "residual"
    return "embedding" if own == "Embedding" else ""
