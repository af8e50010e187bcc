"""What module classes, attributes, operators and kernels of well-known libraries are taken for."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tracelens.attribution import kernel_patterns, patterns
from tracelens.attribution.components import Situation, decide
from tracelens.attribution.names import element_role, layer_of_fqn, layer_of_text, op_rule, split_counter
from tracelens.attribution.paths import _NOT_MODEL, Element, Path, _by_what_they_hold

ROLES = {
    "norm": "ln_1 ln_f norm norm1 norm_2 input_layernorm post_attention_layernorm LlamaRMSNorm LayerNorm "
    "q_norm k_norm kv_a_layernorm self_attn_layer_norm BatchNorm2d FusedRMSNorm ln_pre "
    "pre_mlp_layernorm T5LayerNorm",
    "rope": "rotary_emb LlamaRotaryEmbedding RotaryEmbedding rope Rotary apply_rotary_emb",
    "attention": "self_attn attn attention LlamaAttention LlamaSdpaAttention CausalSelfAttention "
    "BertSelfAttention MultiheadAttention Qwen3MoeAttention Qwen2MoeSdpaAttention "
    "OlmoeAttention DotProductAttention mha encoder_attn MLA ChannelAttention SpatialReductionAttention "
    "LocalMHA RelPosMHAXL MultiScaleRetention AutoCorrelationLayer",
    "mlp": "mlp feed_forward LlamaMLP GPT2MLP FeedForward ffn LayerNormMLP MLP DenseReluDense "
    "T5DenseGatedActDense",
    "qkv": "q_proj k_proj v_proj c_attn wq wk wv in_proj query key value query_key_value linear_qkv "
    "qkv_proj Wqkv to_q q_a_proj kv_b_proj qkv wq_a wkv_b QKVParallelLinear w_q w_qkv "
    "emb_to_key_value",
    "attention_output": "o_proj out_proj wo linear_proj BertSelfOutput to_out",
    "mlp_gate": "gate_proj wi_0",
    "mlp_up": "up_proj c_fc fc1 fc_in w3 dense_h_to_4h linear_fc1 wi_1 lin1",
    "intermediate": "BertIntermediate intermediate",
    "ssm": "JambaMambaMixer BambaMixer FalconH1Mixer Mamba2 Mamba2Mixer GraniteMoeHybridMambaLayer "
    "Qwen3NextGatedDeltaNet GatedDeltaNet linear_attn RecurrentGemmaRglru RecurrentGemmaRecurrentBlock "
    "KimiLinearDeltaAttention",
    "mixer": "ShortConv RwkvSelfAttention",
    "stem": "Wav2Vec2NoLayerNormConvLayer feature_extractor ResNetStage BottleneckBlock SplitAttn "
    "ChannelAttn LightSpatialAttn SelectiveKernelAttn Modulation txt_mod eh_proj "
    "ConformerConvModule _ConvolutionModule FiLM",
    "residual": "HyperConnections ManifoldConstrainedHyperConnections HYV4VLHyperHead",
    "mlp_down": "down_proj fc2 fc_out w2 dense_4h_to_h linear_fc2 lin2",
    "gate_up": "gate_up_proj",
    "router": "router MixtralTopKRouter TopKGate",
    "gate": "gate",
    "grad_clip": "clip_grad_norm_ grad_norm torch/nn/utils/clip_grad.py(38):_get_total_norm",
    "optimizer": "Optimizer.step#AdamW.step torch/optim/adamw.py(243):step optimizer_step",
    "communication": "FSDP::all_gather nccl:all_reduce",
    "experts": "experts GroupedMLP Qwen3MoeExperts",
    "shared": "shared_expert shared_experts SharedExpertMLP",
    "moe": "block_sparse_moe MixtralSparseMoeBlock Qwen2MoeSparseMoeBlock DeepseekV2MoE moe MoELayer",
    "layer": "h layers blocks Block LlamaDecoderLayer BertLayer GPT2Block Qwen2MoeDecoderLayer "
    "TransformerBlock SelfAttnBlock JinaEmbeddingsV3Layer",
    "embedding": "wte wpe embed_tokens Embedding tok_embeddings word_embeddings BertEmbeddings patch_embed "
    "DeepseekVLAligner JinaEmbeddingsV3Embeddings PositionalEncoding pos_encoder Prenet",
    "head_transform": "BertPooler Owlv2BoxPredictionHead bbox_embed bbox_head",
    "logits": "lm_head embed_out output_layer BertLMPredictionHead CsmCodebooksHead ClassifierHead "
    "NormMlpClassifierHead OutputLayer",
    "loss": "CrossEntropyLoss loss criterion",
    "dropout": "Dropout attn_dropout resid_dropout drop",
    "activation": "act act_fn activation_fn GELU SiLU NewGELUActivation ReLU",
    "": "GPT LlamaForCausalLM LlamaModel GPT2LMHeadModel Linear Conv1D Qwen2MoeForCausalLM "
    "Qwen3MoeModel Sequential LayerNormLinear TELayerNormColumnParallelLinear ModuleList "
    "transformer model Conv2d base_layer lora_A lora_B JinaEmbeddingsV3ForMaskedLM",
}


@pytest.mark.parametrize(
    ("role", "text"), [(role, text) for role, texts in ROLES.items() for text in texts.split()]
)
def test_role_of_a_module(role: str, text: str) -> None:
    assert (element_role(text) or "") == role


@pytest.mark.parametrize(
    ("text", "role"), [("MoE[experts=8, tokens=256]", "moe"), ("mlp[0]", "mlp"), ("x[mlp=1]", None)]
)
def test_arguments_behind_a_name_are_none_of_it(text: str, role: str | None) -> None:
    assert element_role(text) == role


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("aten::mm", "linear"),
        ("aten::addmm", "linear"),
        ("aten::bmm", "bmm"),
        ("aten::_softmax", "softmax"),
        ("aten::scaled_dot_product_attention", "core"),
        ("aten::_flash_attention_forward", "core"),
        ("aten::native_layer_norm", "norm"),
        ("aten::embedding", "embedding"),
        ("aten::nll_loss_forward", "loss"),
        ("aten::_fused_adamw_", "optimizer"),
        ("aten::_foreach_norm", "grad_clip"),
        ("nccl:all_reduce", "communication"),
        ("c10d::allreduce_", "communication"),
        ("aten::gru_cell", "recurrence"),
        ("aten::_cudnn_rnn_backward", "recurrence"),
        ("aten::_thnn_fused_lstm_cell", "recurrence"),
        ("aten::_cudnn_attention_forward", "core"),
        ("aten::mul", None),
        ("aten::mm_something", None),
        ("my_aten::mm", None),
        ("", None),
    ],
)
def test_rule_of_an_operator(name: str, rule: str | None) -> None:
    assert op_rule(name) == rule


def test_counters_and_layers_in_names() -> None:
    assert split_counter("Linear_13") == ("Linear", 13)
    assert split_counter("Linear") == ("Linear", None)
    assert split_counter("Conv_2d_7") == ("Conv_2d", 7)
    assert [layer_of_text(text) for text in ("layer 3", "block_12", "Layer.4", "layer", "mlp 3")] == [
        3,
        12,
        4,
        None,
        None,
    ]
    names = (
        "transformer.h.7.attn.c_attn",
        "model.layers.31.mlp.experts.5.w1",
        "lm_head.weight",
        "encoder.layer.0.output",
    )
    assert [layer_of_fqn(name.split(".")) for name in names] == [7, 31, None, 0]


def decided(where: Situation) -> str | None:
    """The component that names say of a call, None where they say none."""
    decision = decide(where)
    return None if decision is None else decision.component


def situation(fqn: str, *, inner: str | None = "linear", after_core: bool | None = None) -> Situation:
    """A product inside modules of these names, in a transformer."""
    elements = tuple(
        Element(word, element_role(word), None, True) for word in fqn.split(".") if not word.isdigit()
    )
    return Situation(
        path=Path(elements, fqn),
        outer=inner,
        inner=inner,
        after_core=after_core,
        linears_after=1,
        holds_experts=False,
        order_in_mlp=None,
        after_activation=None,
        before_activation=False,
        residual=False,
        vocabulary="none",
        experts=False,
        transformer=True,
    )


@pytest.mark.parametrize(
    ("fqn", "component"),
    [
        ("model.layers.0.self_attn.q_proj", "attention.qkv"),
        ("model.layers.0.self_attn.o_proj", "attention.output"),
        ("model.layers.0.mlp.gate_proj", "mlp.gate"),
        ("model.layers.0.mlp.up_proj", "mlp.up"),
        ("model.layers.0.mlp.down_proj", "mlp.down"),
        ("model.layers.0.mlp.gate", "mlp.gate"),
        ("model.layers.0.mlp.experts.3.gate_proj", "moe.experts"),
        ("model.layers.0.mlp.experts.3.down_proj", "moe.experts"),
        ("model.layers.0.mlp.shared_expert.up_proj", "moe.experts"),
        ("model.layers.0.block_sparse_moe.experts.0.w1", "moe.experts"),
        ("model.layers.0.block_sparse_moe.experts.0.w2", "moe.experts"),
        ("model.layers.0.block_sparse_moe.gate", "moe.router"),
        ("encoder.block.0.layer.0.SelfAttention.o", "attention.output"),
        ("encoder.block.0.layer.1.DenseReluDense.wi", "mlp.up"),
        ("encoder.block.0.layer.1.DenseReluDense.wo", "mlp.down"),
        ("layers.4.attention.wo", "attention.output"),
        ("layers.4.feed_forward.w2", "mlp.down"),
        ("bert.encoder.layer.2.attention.self.query", "attention.qkv"),
        ("bert.encoder.layer.2.attention.output.dense", "attention.output"),
        ("bert.encoder.layer.2.intermediate.dense", "mlp.up"),
        ("bert.encoder.layer.2.output.dense", "mlp.down"),
        ("decoder.layers.1.self_attention.linear_qkv", "attention.qkv"),
        ("decoder.layers.1.mlp.linear_fc2", "mlp.down"),
        ("lm_head", "logits"),
        ("output", "logits"),
    ],
)
def test_component_of_a_product_in_named_modules(fqn: str, component: str) -> None:
    decision = decide(replace(situation(fqn), experts=component.startswith("moe.")))
    assert decision is not None
    assert decision.component == component
    assert decision.evidence == "annotation"


@pytest.mark.parametrize("fqn", ["model.router", "layers.0.gating_unit.router", "layers.1.experts.proj"])
def test_one_word_alone_proves_no_mixture_of_experts(fqn: str) -> None:
    decision = decide(situation(fqn))
    assert decision is None or not decision.component.startswith("moe.")


def test_without_attention_there_is_no_transformer_to_name_parts_of() -> None:
    assert decided(replace(situation("features.mlp.fc1"), transformer=False)) == "other"


def test_an_activation_in_a_router_routes() -> None:
    """transformers models/zaya/modeling_zaya.py, ZayaRouterMLP."""
    elements = [Element(name, element_role(name), None, False) for name in ("MoeBlock", "RouterMLP", "GELU")]
    where = replace(situation(""), path=Path(tuple(elements), ""), experts=True, holds_experts=True)
    assert decided(replace(where, inner="activation", outer="activation")) == "moe.router"


def test_a_gate_routes_where_the_trace_has_experts() -> None:
    """Some libraries name both the router and half of a gated MLP ``mlp.gate``."""
    assert decided(replace(situation("model.layers.0.mlp.gate"), experts=True)) == "moe.router"


def _in_mlp(position: int, *, before: bool, after: bool) -> tuple[str, str]:
    decision = decide(
        replace(
            situation("model.layers.0.mlp.proj"),
            order_in_mlp=(position, 3),
            before_activation=before,
            after_activation=after,
        )
    )
    assert decision is not None
    return decision.component, decision.evidence


def test_gate_and_up_are_told_apart_by_the_activation_between_them_or_by_custom() -> None:
    assert _in_mlp(0, before=True, after=False) == ("mlp.gate", "annotation")
    assert _in_mlp(1, before=False, after=True) == ("mlp.up", "annotation")
    # both products first, then the activation: which of them it takes is not to be seen
    assert _in_mlp(0, before=False, after=False) == ("mlp.gate", "local")
    assert _in_mlp(1, before=True, after=False) == ("mlp.up", "local")
    assert _in_mlp(2, before=False, after=True) == ("mlp.down", "annotation")


def test_an_activation_called_in_a_projections_module_is_an_activation() -> None:
    assert decided(situation("encoder.layer.0.intermediate", inner="activation")) == "mlp.activation"


@pytest.mark.parametrize("name", ["aten::tanh", "aten::sigmoid", "aten::clamp_min", "aten::relu"])
def test_a_nonlinearity_without_any_name_around_it_is_no_mlp(name: str) -> None:
    assert decide(replace(situation(""), path=None, outer=op_rule(name), inner=op_rule(name))) is None


OF_FRAMEWORKS = {
    "communication": "FusedDispatch FusedCombineBackward "
    "vllm::all_reduce _C_custom_ar::all_reduce symm_mem::multimem_all_reduce_ "
    "symm_mem::one_shot_all_reduce vllm::flashinfer_trtllm_fused_allreduce_norm trtllm::allreduce",
    "core": "vllm::unified_attention_with_output _vllm_fa3_C::fwd _vllm_fa2_C::varlen_fwd FusedAttnFunc "
    "FusedAttnFunc_qkvpacked flex_attention customflash::custom_flash_aligned _C::paged_attention_v2 "
    "_C::merge_attn_states _C::sm100_cutlass_mla_decode vllm::torch_sdpa_wrapper "
    "aiter::mha_batch_prefill",
    "norm": "Fast_RMS_Layernorm LigerRMSNormFunctionBackward _C::rms_norm "
    "_C::fused_add_rms_norm sgl_kernel::fused_add_rmsnorm vllm::rocm_aiter_rms_norm",
    "activation": "_C::silu_and_mul _C::gelu_tanh_and_mul _C::silu_and_mul_nvfp4_quant",
    "routes": "_moe_C::topk_softmax sgl_kernel::moe_fused_gate vllm::rocm_aiter_grouped_topk",
    "sends": "_moe_permute_mask_map _moe_chunk_sort "
    "_moe_C::moe_align_block_size _moe_C::moe_sum _C::get_cutlass_moe_mm_data",
    "experts": "_GroupedLinear vllm::moe_forward vllm::moe_forward_shared vllm::inplace_fused_experts "
    "_C::cutlass_fp4_group_mm vllm::flashinfer_fused_moe_bf16 vllm::fi_trtllm_fp8_per_tensor_moe "
    "_moe_C::moe_wna16_marlin_gemm",
    "scan": "vllm::mamba_mixer2 vllm::gdn_attention_core MambaSplitConv1dScanCombinedFnBackward "
    "vllm::linear_attention",
    "rope": "LigerRopeFunction Fast_RoPE_Embedding ApplyRotaryEmb "
    "FusedRoPEFuncBackward _C::rotary_embedding _C::fused_qk_norm_rope vllm::flashinfer_rotary_embedding",
    "cache": "_C_cache_ops::reshape_and_cache_flash _C_cache_ops::concat_and_cache_mla",
    "linear": "_C::cutlass_scaled_fp4_mm _C::cutlass_scaled_mm _C::marlin_gemm vllm::fp8_gemm_nt_op "
    "sgl_kernel::fp8_scaled_mm vllm::w8a8_triton_block_scaled_mm_func vllm::rocm_unquantized_gemm",
    "quantize": "MatMul4Bit MatMul4BitBackward bitsandbytes::dequantize_4bit "
    "_C::scaled_fp4_quant _C::dynamic_per_token_scaled_fp8_quant _C::per_token_group_fp8_quant",
    "": "symm_mem::fused_all_gather_matmul vllm::short_conv vllm::sparse_attn_indexer",
}


@pytest.mark.parametrize(
    ("rule", "name"), [(rule, name) for rule, names in OF_FRAMEWORKS.items() for name in names.split()]
)
def test_operators_of_frameworks(rule: str, name: str) -> None:
    assert op_rule(name) == (rule or None)


def test_every_pattern_says_where_it_comes_from() -> None:
    for _, pattern, source in (*patterns.OPERATORS, *kernel_patterns.KERNELS):
        assert re.compile(pattern)
        assert re.search(r"^[\w-]+/[\w.-]+ [\w./-]+", source), pattern


@pytest.mark.parametrize("text", ["DistributedDataParallel.forward", "FullyShardedDataParallel.forward"])
def test_a_range_around_the_model_says_nothing_of_its_parts(text: str) -> None:
    assert element_role(text) is None
    assert _NOT_MODEL.match(text)


@pytest.mark.parametrize(
    ("modules", "component"),
    [
        ("Block", "residual"),
        ("Block MLP", "residual"),
        ("FFN", "residual"),  # soobinseo/Transformer-TTS, without a module for the layer
        ("Block MLP NewGELUActivation", "mlp.activation"),
        ("Block MLP Linear", "mlp.other"),  # of an adapter: huggingface/peft tuners/lora/layer.py
        ("Block MLP LoRALinear", "mlp.other"),  # torchtune modules/peft/lora.py
    ],
)
def test_a_sum_inside_an_activation_or_a_product_is_no_residual(modules: str, component: str) -> None:
    elements = tuple(Element(text, element_role(text), None, False) for text in modules.split())
    situation = Situation(
        path=Path(elements, modules), outer="add", inner="add", after_core=None, linears_after=0,
        order_in_mlp=None, after_activation=None, before_activation=False, residual=True, vocabulary="none",
        holds_experts=False, experts=False, transformer=True, plain=True,
    )  # fmt: skip
    assert decided(situation) == component


@pytest.mark.parametrize(
    ("modules", "inner", "component"),
    [
        ("PartitionAttentionCl.Mlp.GELU", "activation", "mlp.activation"),  # of the innermost block
        ("Block.Attention.GELU", "activation", "attention.other"),
        ("MetaFormerBlock.SepConv.StarReLU", "activation", None),  # of a module that says nothing
        ("Block.BatchNormAct2d.GELU", "activation", "other"),
        ("Qwen3NextGatedDeltaNet.Qwen3NextRMSNormGated.SiLU", "activation", "ssm.scan"),
        ("Block.LinearNorm.Linear", "linear", None),  # what is called after a norm is none
        ("Block.GatedRMSNorm", "nonlinearity", "norm"),  # its gate: models/axk2/modeling_axk2.py
        ("Attention.Flux2SwiGLU.SiLU", "activation", "mlp.activation"),  # of an MLP beside the attention
        ("DFineMLPPredictionHead", "nonlinearity", "logits"),
        ("Swin2SRIntermediate.Linear", None, "mlp.up"),  # its bias
        ("Block.Mlp.LinearNorm.Linear", "linear", "mlp.other"),
        ("BertIntermediate.LinearActivation", "linear", "mlp.up"),  # NVIDIA/DeepLearningExamples, BERT
        ("Block.FeedForwardBlock.LinearGEGLU", "linear", "mlp.other"),  # crowsonkb/k-diffusion; by its place
        ("BertPooler.LinearActivation", "linear", "other"),
        ("Block.RWKV_ChannelMix.key.Linear", "linear", "mlp.other"),
        ("Transformer.HyperConnections", "bmm", "residual"),  # the ways from stream to stream
        ("Transformer.HyperConnections.Sequential.Linear", "linear", None),  # the layer whose result it adds
        ("Transformer.HyperConnections.Sequential.GEGLU", "activation", None),
    ],
)
def test_a_module_says_no_more_than_its_operator_can_be(
    modules: str, inner: str | None, component: str | None
) -> None:
    elements = tuple(Element(name, element_role(name), None, False) for name in modules.split("."))
    where = replace(situation(""), path=Path(elements, modules), inner=inner, outer=inner)
    assert decided(where) == component


@pytest.mark.parametrize(
    ("modules", "component"),
    [
        ("LlamaAttention.Linear", "attention.qkv"),  # of an adapter, or a cast
        ("LlamaAttention.LinearAttention", "attention.other"),
        ("LlamaAttention", "attention.other"),
        ("Attention.DynamicPositionBias.Linear", "attention.other"),  # lucidrains/x-transformers
        ("BertIntermediate.Linear", "mlp.up"),
        ("BertIntermediate", "mlp.activation"),
    ],
)
def test_what_a_layer_does_beside_its_product_is_of_the_product(modules: str, component: str) -> None:
    elements = tuple(Element(name, element_role(name), None, False) for name in modules.split("."))
    where = replace(
        situation(""), path=Path(elements, modules), inner="add", outer="add", residual=True, after_core=False
    )
    assert decided(where) == component


@pytest.mark.parametrize(("beside", "component"), [(True, "other"), (False, "mlp.activation")])
def test_an_activation_beside_a_convolution_is_of_no_mlp(beside: bool, component: str) -> None:
    where = replace(situation("layer.act"), inner="activation", outer="activation", beside_convolution=beside)
    assert decided(where) == component


def test_an_activation_in_an_embeddings_mlp_is_the_embeddings() -> None:
    where = replace(situation("embedder.mlp.act"), inner="activation", outer="activation")
    assert decided(where) == "embedding"


def test_samples_of_a_grid_are_of_pictures_or_of_deformable_attention() -> None:
    assert op_rule("aten::upsample_bilinear2d") == "picture"
    assert op_rule("aten::grid_sampler_2d") is None


def _roles(
    *modules: str, choosing: str = "", bending: str = "", attending: str = "", routing: str = ""
) -> list[str | None]:
    """What the last element of each of these dotted modules is, of which the first holds all others."""
    elements = [tuple(Element(p, element_role(p), None, False) for p in name.split(".")) for name in modules]
    outers = [modules.index(name.rpartition(".")[0]) if "." in name else -1 for name in modules]
    runs = ({modules.index(name)} if name else set() for name in (choosing, bending, attending, routing))
    return [path.roles()[-1] for path in _by_what_they_hold([Path(e, "") for e in elements], outers, *runs)]


@pytest.mark.parametrize(
    ("modules", "role"),
    [
        ("A_SHSA A_SHSA.Sequential", "attention"),  # timm models/shvit.py
        ("A_SHSA A_SHSA.Attention", None),  # what it holds attends
        ("A_SHSA A_SHSA.Mlp", None),
        ("A_Block A_Block.Sequential", "layer"),
    ],
)
def test_a_module_that_attends_by_itself_is_attention(modules: str, role: str | None) -> None:
    assert _roles(*modules.split(), attending=modules.split()[0])[0] == role


@pytest.mark.parametrize(
    "text", ["TriangleMultiplicationOutgoing", "tri_mul_in", "OuterProductMean", "OuterMean"]
)
def test_what_works_on_pairs_of_residues_is_no_attention(text: str) -> None:
    assert element_role(text) == "mixer"
    assert element_role("TriangleAttentionStartingNode") == "attention"


def test_a_module_called_attention_with_an_mlp_of_its_own_is_a_layer() -> None:
    """transformers models/bridgetower/modeling_bridgetower.py, BridgeTowerResidualAttention."""
    held = ["A_Attention.MultiheadAttention", "A_Attention.Linear", "A_Attention.QuickGELU"]
    assert _roles("A_Attention", *held)[0] == "attention"
    assert _roles("A_Attention", *held, "A_Attention.Linear")[0] == "layer"


def test_what_is_called_an_mlp_may_be_a_mixture_or_a_network() -> None:
    """openai/gpt-oss, gpt_oss/torch/model.py: MLPBlock chooses experts by itself; fms-extras,
    models/speculator.py: MLPSpeculator has tables of words."""
    assert _roles("MLPBlock", "MLPBlock.RMSNorm", "MLPBlock.Linear")[0] == "mlp"
    assert _roles("MLPBlock", "MLPBlock.RMSNorm", "MLPBlock.Linear", routing="MLPBlock")[0] == "moe"
    assert _roles("MLPSpeculator", "MLPSpeculator.Embedding", "MLPSpeculator.Linear")[0] is None
    assert element_role("EncoderOnlyEmbedderM3ModelForTraining") != "embedding"
    assert element_role("BertEmbeddings") == "embedding"


def test_one_product_in_attention_is_no_mlp_whatever_it_is_called() -> None:
    """transformers models/levit/modeling_levit.py, MLPLayerWithBN."""
    assert _roles("LevitAttention", "LevitAttention.MLPLayer", "LevitAttention.MLPLayer.Linear")[1] is None
    assert _roles("LevitLayer", "LevitLayer.MLPLayer", "LevitLayer.MLPLayer.Linear")[1] == "mlp"


def _attention(name: str) -> tuple[str, str, str]:
    return name, f"{name}.Linear", f"{name}.LoraLinear"


def test_a_module_called_attention_that_holds_several_is_a_layer() -> None:
    """sam2/modeling/memory_attention.py, MemoryAttentionLayer: of itself and of a memory, and an MLP. Modules
    of one product make queries, keys and values (labml_nn: PrepareForMultiHeadAttention)."""
    held = _attention("A_Attention.RoPEAttention"), _attention("A_Attention.CrossAttention")
    assert _roles("A_Attention", *held[0])[0] == "attention"
    assert _roles("A_Attention", *held[0], *held[1])[:2] == ["layer", "attention"]
    axes = [f"A_Attention.{name}" for name in ("AxialAttention", "OtherAttention")]  # alphafold2_pytorch.py
    inner = [part for axis in axes for part in (axis, *_attention(f"{axis}.Attention"))]
    assert _roles("A_Attention", *inner)[0] == "layer"
    makes = ("A_Attention.PrepareForAttention", "A_Attention.PrepareForAttention.Linear")
    more = ("A_Attention.PrepareAttention", "A_Attention.PrepareAttention.Linear")
    assert _roles("A_Attention", *makes, *more)[0] == "attention"


def test_a_layer_called_attention_bends_by_a_function() -> None:
    """torch.nn.functional.relu between its own two products, no module."""
    held = (*_attention("A_Attention.Attention"), "A_Attention.Linear", "A_Attention.LoraLinear")
    assert _roles("A_Attention", *held)[0] == "attention"
    assert _roles("A_Attention", *held, bending="A_Attention")[0] == "layer"


@pytest.mark.parametrize("net", ["Net", "HyperConnections"])  # what adds a block to the stream
@pytest.mark.parametrize(
    ("inside", "layers", "role"),
    [
        ("Linear GELU Dropout Linear", 2, "mlp"),
        ("Linear GEGLU Linear", 2, "mlp"),
        ("Linear GELU Dropout Linear", 1, None),  # of a head, as likely
        ("SiLU Linear Linear", 2, None),  # of a modulation in two steps (whlzy/FiT)
        ("Linear ReLU Linear Sigmoid", 2, None),  # of channels that are gated
    ],
)
def test_a_row_of_modules_beside_every_attention_can_be_an_mlp(
    net: str, inside: str, layers: int, role: str | None
) -> None:
    """lucidrains/gateloop-transformer, FeedForward: a function that returns a Sequential."""
    held = [(), ("Attention",), ("Sequential",), *(("Sequential", name) for name in inside.split())]
    around = [-1, 0, 0, *[2] * (len(held) - 3)]
    names = [(net, *name) for name in (held[0], *held[1:] * layers)]
    outers = [-1]
    for at in range(layers):
        outers += [2 + at * (len(held) - 1) if outer else 0 for outer in around[1:]]
    paths = [Path(tuple(Element(x, element_role(x), None, False) for x in name), "") for name in names]
    assert _by_what_they_hold(paths, outers, set(), set())[2].roles()[-1] == role


def test_a_mixture_with_an_mlp_beside_it_is_a_layer() -> None:
    """st_moe_pytorch.py, SparseMoEBlock: an Expert before and behind, and the mixture itself."""
    mixture = ("MoEBlock", "MoEBlock.MoE", "MoEBlock.MoE.Experts")
    assert _roles(*mixture) == ["moe", "moe", "experts"]
    assert _roles(*mixture, "MoEBlock.Expert") == ["layer", "moe", "experts", "mlp"]


@pytest.mark.parametrize(("choosing", "role"), [("SwitchFeedForward", "moe"), ("", "mlp")])
def test_an_mlp_that_chooses_among_mlps_is_a_mixture(choosing: str, role: str) -> None:
    """labml_nn/transformers/switch/__init__.py, SwitchFeedForward."""
    held = [f"SwitchFeedForward.{name}" for name in ("FeedForward", "OtherFeedForward")]
    assert _roles("SwitchFeedForward", *held, choosing=choosing)[0] == role


def test_a_module_called_a_norm_that_holds_one_and_a_block_is_none() -> None:
    """dalle_pytorch/transformer.py, PreNorm around PreShiftToken around the attention; an adaptive norm holds
    a norm and a product of its own."""
    held = ("PreNorm", "PreNorm.LayerNorm", "PreNorm.PreShiftToken")
    assert _roles(*held)[0] == "norm"
    assert _roles(*held, "PreNorm.PreShiftToken.Attention")[0] is None
    assert _roles("AdaLayerNorm", "AdaLayerNorm.LayerNorm", "AdaLayerNorm.Linear")[0] == "norm"


@pytest.mark.parametrize(("apart", "component"), [(True, "moe.dispatch"), (False, "moe.experts")])
def test_a_batched_product_beside_experts_sends_tokens(apart: bool, component: str) -> None:
    """arXiv 2006.16668: tokens times who goes where. Experts that are no module are such products, too."""
    where = replace(situation("layer.moe", inner="bmm"), experts=True, beside_experts=apart)
    assert decided(where) == component


@pytest.mark.parametrize("batched", [True, False])
def test_a_head_of_no_transformer_is_open_where_attention_could_be(batched: bool) -> None:
    """torchscale/component/multiscale_retention.py has products of activations, and no softmax."""
    where = replace(situation("lm_head"), vocabulary="weight", transformer=False, batched=batched)
    assert decided(where) == (None if batched else "other")
