"""Architectures of transformers, tiny, with random weights: nothing is downloaded.

`ARCHITECTURES` maps a model type to what builds it. Each has two layers or so, a vocabulary of 64
and a few ten thousand parameters, and runs a forward in some milliseconds. What is random is drawn
from seeds: building one twice gives the same bits.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import transformers

__all__ = ["ARCHITECTURES", "FAMILIES", "Architecture", "Built"]

VOCABULARY = 64
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SEQ2SEQ = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
    "forced_bos_token_id": None,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 2,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
    "num_channels": 3,
}
SPEECH = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "conv_dim": (8, 8),
    "conv_stride": (4, 4),
    "conv_kernel": (8, 4),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "pad_token_id": 0,
}
GREEDY = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}


class Built(NamedTuple):
    """A model, ready to run: `model(**inputs)`, `model.generate(**inputs, **generate)`."""

    model: torch.nn.Module
    inputs: dict[str, Any]
    generate: dict[str, Any] | None


@dataclasses.dataclass(frozen=True)
class Architecture:
    """How to build one.

    Attributes:
        model_type: What transformers calls it, unique in the table.
        family: One of `FAMILIES`.
        model_class: Name of the model's class in transformers.
        config: Makes the configuration.
        inputs: Draws keyword arguments of forward.
        generate: Keyword arguments of generate besides the inputs; None where there is none.
        dtype: Of the weights.
        fast: Whether it is in the default test run, one or two of each family.
    """

    model_type: str
    family: str
    model_class: str
    config: Callable[[], Any]
    inputs: Callable[[], dict[str, Any]]
    generate: Mapping[str, Any] | None
    dtype: torch.dtype
    fast: bool

    def build(self) -> Built:
        """The same model and inputs at each call; the global random state is left as it is."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = getattr(transformers, self.model_class)(self.config())
            inputs = self.inputs()
        if model.config.model_type != self.model_type:
            raise ValueError(f"{self.model_type} built a {model.config.model_type}")
        model = model.to(self.dtype).eval()
        inputs = {
            name: value.to(self.dtype)
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value
            for name, value in inputs.items()
        }
        return Built(model, inputs, None if self.generate is None else dict(self.generate))


ARCHITECTURES: dict[str, Architecture] = {}


def _add(
    family: str,
    model_type: str,
    model_class: str,
    config: Mapping[str, Any] | Callable[[], Any],
    inputs: Callable[[], dict[str, Any]],
    generate: Mapping[str, Any] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    fast: bool = False,
) -> None:
    if model_type in ARCHITECTURES:
        raise ValueError(f"{model_type} is there twice")
    if callable(config):
        make = config
    else:
        settings = dict(config)

        def make() -> Any:
            return transformers.AutoConfig.for_model(model_type, **settings)

    ARCHITECTURES[model_type] = Architecture(
        model_type, family, model_class, make, inputs, generate, dtype, fast
    )


# Inputs


def _ids(*shape: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, shape)


def _text(**more: Any) -> Callable[[], dict[str, Any]]:
    """Two sequences of six tokens, the second padded on the left."""

    def draw() -> dict[str, Any]:
        ids, mask = _ids(2, 6), torch.ones(2, 6, dtype=torch.int64)
        ids[1, :2], mask[1, :2] = 0, 0
        return {"input_ids": ids, "attention_mask": mask, **more}

    return draw


def _plain_text(length: int = 6, **more: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"input_ids": _ids(2, length), **more}


def _seq2seq(length: int = 6, **more: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"input_ids": _ids(2, length), "decoder_input_ids": _ids(2, 3), **more}


def _image(size: int = 16, channels: int = 3, **more: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"pixel_values": torch.randn(2, channels, size, size), **more}


def _wave(length: int = 400, **more: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"input_values": torch.randn(2, length), **more}


# Tables: model type, class, what differs from the tiny configuration of its kind


def _decoder(
    model_type: str,
    model_class: str,
    *,
    family: str = "decoder",
    base: Mapping[str, Any] = TEXT,
    inputs: Callable[[], dict[str, Any]] | None = None,
    generate: Mapping[str, Any] | None = GREEDY,
    dtype: torch.dtype = torch.float32,
    fast: bool = False,
    drop: tuple[str, ...] = (),
    **config: Any,
) -> None:
    settings = {name: value for name, value in base.items() if name not in drop}
    _add(
        family,
        model_type,
        model_class,
        {**settings, **config},
        inputs or _text(),
        generate,
        dtype=dtype,
        fast=fast,
    )


STATIC = {**GREEDY, "cache_implementation": "static"}
DETAILED = {**GREEDY, "return_dict_in_generate": True, "output_scores": True}
EVERYTHING = {"output_attentions": True, "output_hidden_states": True}

_decoder("llama", "LlamaForCausalLM", fast=True)
_decoder("mistral", "MistralForCausalLM", generate=STATIC, sliding_window=4)
_decoder("gpt2", "GPT2LMHeadModel", attn_implementation="eager", inputs=_text(**EVERYTHING))
_decoder("gpt_neo", "GPTNeoForCausalLM", attention_types=[[["global", "local"], 1]])
_decoder("gpt_neox", "GPTNeoXForCausalLM", dtype=torch.bfloat16)
_decoder("gptj", "GPTJForCausalLM", rotary_dim=4, head_dim=8)
_decoder("gpt_bigcode", "GPTBigCodeForCausalLM")
_decoder("opt", "OPTForCausalLM", ffn_dim=32, word_embed_proj_dim=16)
_decoder("bloom", "BloomForCausalLM")
_decoder("mpt", "MptForCausalLM")
_decoder("falcon", "FalconForCausalLM", drop=("head_dim",))
_decoder("stablelm", "StableLmForCausalLM")
_decoder("starcoder2", "Starcoder2ForCausalLM", sliding_window=4)
_decoder("qwen2", "Qwen2ForCausalLM", generate=DETAILED)
_decoder("qwen3", "Qwen3ForCausalLM", dtype=torch.float16)
_decoder("gemma", "GemmaForCausalLM")
_decoder("gemma2", "Gemma2ForCausalLM", sliding_window=4)
_decoder("gemma3_text", "Gemma3ForCausalLM", sliding_window=4, dtype=torch.bfloat16)
_decoder("phi", "PhiForCausalLM")
_decoder("phi3", "Phi3ForCausalLM")
_decoder("cohere", "CohereForCausalLM")
_decoder("olmo2", "Olmo2ForCausalLM")
_decoder("granite", "GraniteForCausalLM")
_decoder("glm", "GlmForCausalLM")
_decoder("nemotron", "NemotronForCausalLM")
_decoder("persimmon", "PersimmonForCausalLM")
_decoder("smollm3", "SmolLM3ForCausalLM")
_decoder("biogpt", "BioGptForCausalLM")
_decoder("openai-gpt", "OpenAIGPTLMHeadModel", inputs=_text(**EVERYTHING))
_decoder("codegen", "CodeGenForCausalLM", rotary_dim=4)
_decoder("ctrl", "CTRLLMHeadModel", dff=32)
_decoder("xlnet", "XLNetLMHeadModel", drop=("max_position_embeddings",), d_inner=32, d_model=16, n_head=2, d_head=8)
_decoder("bert-generation", "BertGenerationDecoder", is_decoder=True)


def _experts(model_type: str, model_class: str, **more: Any) -> None:
    _decoder(model_type, model_class, family="moe", **more)


_experts("mixtral", "MixtralForCausalLM", num_local_experts=4, fast=True, inputs=_text(output_router_logits=True))
_experts("qwen2_moe", "Qwen2MoeForCausalLM", num_experts=4, moe_intermediate_size=16,
         shared_expert_intermediate_size=16, decoder_sparse_step=1)
_experts("qwen3_moe", "Qwen3MoeForCausalLM", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
_experts("olmoe", "OlmoeForCausalLM", num_experts=4, num_experts_per_tok=2)
_experts("phimoe", "PhimoeForCausalLM", num_local_experts=4)
_experts("granitemoe", "GraniteMoeForCausalLM", num_local_experts=4)
_experts("jetmoe", "JetMoeForCausalLM", num_local_experts=4)
_experts("gpt_oss", "GptOssForCausalLM", num_local_experts=4, sliding_window=4)
_experts("deepseek_v2", "DeepseekV2ForCausalLM", num_key_value_heads=2, n_routed_experts=4,
         moe_intermediate_size=16, q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=8,
         qk_rope_head_dim=8, v_head_dim=8, n_group=1, topk_group=1, num_experts_per_tok=2,
         first_k_dense_replace=1)
_experts("deepseek_v3", "DeepseekV3ForCausalLM", num_key_value_heads=2, n_routed_experts=4,
         moe_intermediate_size=16, q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=8,
         qk_rope_head_dim=8, v_head_dim=8, n_group=1, topk_group=1, num_experts_per_tok=2,
         first_k_dense_replace=1)
_experts("llama4_text", "Llama4ForCausalLM", num_local_experts=4, intermediate_size_mlp=32)
_experts("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", moe_num_experts=4, moe_intermediate_size=16,
         moe_k=2, moe_layer_start_index=1)
_experts("minimax", "MiniMaxForCausalLM", num_local_experts=4, block_size=4)


def _states(model_type: str, model_class: str, **more: Any) -> None:
    _decoder(model_type, model_class, family="state-space", **more)


_states("mamba", "MambaForCausalLM", state_size=4, fast=True)
_states("mamba2", "Mamba2ForCausalLM", num_heads=4, head_dim=8, n_groups=1, state_size=4, chunk_size=4)
_states("falcon_mamba", "FalconMambaForCausalLM", state_size=4)
_states("rwkv", "RwkvForCausalLM", inputs=_plain_text())
_states("jamba", "JambaForCausalLM", attn_layer_period=2, attn_layer_offset=1,
        expert_layer_period=2, expert_layer_offset=1, num_experts=2, use_mamba_kernels=False,
        mamba_d_state=4)
_states("bamba", "BambaForCausalLM", mamba_n_heads=4, mamba_d_head=8, mamba_d_state=4,
        mamba_n_groups=1, mamba_chunk_size=4, attn_layer_indices=[1])
_states("recurrent_gemma", "RecurrentGemmaForCausalLM", num_hidden_layers=3, lru_width=16,
        attention_window_size=8)
_states("falcon_h1", "FalconH1ForCausalLM", mamba_d_ssm=16, mamba_n_heads=4, mamba_d_head=4,
        mamba_d_state=4, mamba_n_groups=1, mamba_chunk_size=4)
_states("lfm2", "Lfm2ForCausalLM", layer_types=["conv", "full_attention"])
_states("xlstm", "xLSTMForCausalLM", num_heads=2, embedding_dim=16, qk_dim_factor=0.5, v_dim_factor=1.0, chunk_size=4, inputs=_plain_text())
_states("qwen3_next", "Qwen3NextForCausalLM", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
        shared_expert_intermediate_size=16, linear_num_value_heads=2, linear_num_key_heads=2,
        linear_key_head_dim=8, linear_value_head_dim=8,
        layer_types=["linear_attention", "full_attention"])
_states("zamba2", "Zamba2ForCausalLM", layer_types=["linear_attention", "hybrid"], mamba_d_state=4,
        n_mamba_heads=2, mamba_headdim=16, mamba_ngroups=1, chunk_size=4, num_mem_blocks=1,
        use_shared_attention_adapter=False, use_mem_rope=False)


def _encoder(model_type: str, model_class: str, **more: Any) -> None:
    _decoder(model_type, model_class, family="encoder", **{"generate": None, **more})


_encoder("bert", "BertModel", fast=True, attn_implementation="eager", inputs=_text(**EVERYTHING))
_encoder("roberta", "RobertaForMaskedLM")
_encoder("distilbert", "DistilBertForSequenceClassification", dim=16, hidden_dim=32, n_layers=2, n_heads=2)
_encoder("albert", "AlbertModel", embedding_size=16)
_encoder("electra", "ElectraForPreTraining", embedding_size=16)
_encoder("deberta", "DebertaModel", relative_attention=True, pos_att_type=["c2p", "p2c"])
_encoder("deberta-v2", "DebertaV2ForTokenClassification", relative_attention=True, pos_att_type=["c2p", "p2c"])
_encoder("mpnet", "MPNetModel")
_encoder("xlm", "XLMModel", emb_dim=16, n_layers=2, n_heads=2, inputs=_plain_text())
_encoder("funnel", "FunnelModel", drop=("num_hidden_layers",), block_sizes=[1, 1], num_decoder_layers=1, d_model=16, n_head=2, d_head=8, d_inner=32)
_encoder("convbert", "ConvBertModel", embedding_size=16, head_ratio=1, conv_kernel_size=3)
_encoder("big_bird", "BigBirdModel", attention_type="original_full")
_encoder("longformer", "LongformerModel", attention_window=4, inputs=_plain_text(8))
_encoder("nystromformer", "NystromformerModel", num_landmarks=6, segment_means_seq_len=6, conv_kernel_size=3)
_encoder("roformer", "RoFormerModel", embedding_size=16)
_encoder("squeezebert", "SqueezeBertModel", embedding_size=16, q_groups=1, k_groups=1, v_groups=1,
         post_attention_groups=1, intermediate_groups=1, output_groups=1)
_encoder("mobilebert", "MobileBertModel", embedding_size=16, intra_bottleneck_size=8,
         true_hidden_size=8, num_feedforward_networks=1)
_encoder("modernbert", "ModernBertModel", local_attention=4, dtype=torch.bfloat16)
_encoder("fnet", "FNetModel", inputs=_plain_text())
_encoder("rembert", "RemBertModel", input_embedding_size=16, output_embedding_size=16)
_encoder("canine", "CanineModel", downsampling_rate=2, num_hash_functions=2, num_hash_buckets=16,
         local_transformer_stride=4, upsampling_kernel_size=2, inputs=_plain_text(8))
_encoder("splinter", "SplinterModel")
_encoder("luke", "LukeModel", entity_vocab_size=8, entity_emb_size=8)
_encoder("layoutlm", "LayoutLMModel", max_2d_position_embeddings=64)
_encoder("tapas", "TapasModel", type_vocab_sizes=[3, 8, 8, 2, 8, 8, 4])


def _translator(model_type: str, model_class: str, **more: Any) -> None:
    settings = {"base": SEQ2SEQ, "inputs": _seq2seq(), "generate": GREEDY, **more}
    _decoder(model_type, model_class, family="encoder-decoder", **settings)


_translator("t5", "T5ForConditionalGeneration", base=T5, fast=True)
_translator("mt5", "MT5ForConditionalGeneration", base=T5)
_translator("umt5", "UMT5ForConditionalGeneration", base=T5)
_translator("longt5", "LongT5ForConditionalGeneration", base=T5, local_radius=3)
_translator("switch_transformers", "SwitchTransformersForConditionalGeneration", base=T5,
            num_experts=2, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1)
_translator("bart", "BartForConditionalGeneration", inputs=_seq2seq(**EVERYTHING), attn_implementation="eager")
_translator("mbart", "MBartForConditionalGeneration")
_translator("pegasus", "PegasusForConditionalGeneration")
_translator("marian", "MarianMTModel", decoder_vocab_size=VOCABULARY)
_translator("blenderbot", "BlenderbotForConditionalGeneration")
_translator("m2m_100", "M2M100ForConditionalGeneration")
_translator("led", "LEDForConditionalGeneration", attention_window=4, inputs=_seq2seq(8),
            max_encoder_position_embeddings=64, max_decoder_position_embeddings=64)
_translator("prophetnet", "ProphetNetForConditionalGeneration", drop=("num_hidden_layers", "num_layers"),
            num_encoder_layers=2, num_encoder_attention_heads=2, num_decoder_attention_heads=2)
_translator("plbart", "PLBartForConditionalGeneration")
_translator("fsmt", "FSMTForConditionalGeneration", langs=["en", "de"], src_vocab_size=VOCABULARY,
            tgt_vocab_size=VOCABULARY)
_translator("nllb-moe", "NllbMoeForConditionalGeneration", num_experts=2, encoder_sparse_step=2,
            decoder_sparse_step=2)


def _sight(model_type: str, model_class: str, **more: Any) -> None:
    settings = {"base": VISION, "inputs": _image(), "generate": None, **more}
    _decoder(model_type, model_class, family="vision", **settings)


STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_channels": 3}

_sight("vit", "ViTForImageClassification", fast=True, inputs=_image(output_hidden_states=True))
_sight("deit", "DeiTModel")
_sight("beit", "BeitModel")
_sight("dinov2", "Dinov2Model", mlp_ratio=2)
_sight("vit_mae", "ViTMAEModel")
_sight("yolos", "YolosForObjectDetection", image_size=[16, 16], num_detection_tokens=4)
_sight("dpt", "DPTForDepthEstimation", num_hidden_layers=4, backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[4, 4, 8, 8],
       fusion_hidden_size=8, reassemble_factors=[1, 1, 1, 0.5])
_sight("swin", "SwinModel", base={}, image_size=16, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=2, patch_size=4)
_sight("swinv2", "Swinv2Model", base={}, image_size=16, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=2, patch_size=4)
_sight("convnext", "ConvNextForImageClassification", base={}, **STAGES, num_stages=2)
_sight("convnextv2", "ConvNextV2Model", base={}, **STAGES, num_stages=2)
_sight("resnet", "ResNetForImageClassification", base={}, **STAGES, embedding_size=8)
_sight("regnet", "RegNetModel", base={}, **STAGES, embedding_size=8, groups_width=8)
_sight("mobilevit", "MobileViTModel", base={}, image_size=32, patch_size=2, hidden_sizes=[8, 8, 8],
       neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 8], num_attention_heads=2, inputs=_image(32))
_sight("mobilenet_v2", "MobileNetV2Model", base={}, depth_multiplier=0.1, inputs=_image(32))
_sight("efficientnet", "EfficientNetModel", base={}, image_size=32, width_coefficient=0.1,
       depth_coefficient=0.1, hidden_dim=128, inputs=_image(32))
_sight("poolformer", "PoolFormerModel", base={}, hidden_sizes=[8, 8, 8, 8], depths=[1, 1, 1, 1], inputs=_image(32))
_sight("segformer", "SegformerForSemanticSegmentation", base={}, hidden_sizes=[8, 8, 8, 8],
       depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2], decoder_hidden_size=8, inputs=_image(32))
_sight("levit", "LevitModel", base={}, image_size=64, hidden_sizes=[16, 16, 16], num_attention_heads=[1, 2, 2],
       depths=[1, 1, 1], key_dim=[4, 4, 4], inputs=_image(64))
_sight("focalnet", "FocalNetModel", base={}, image_size=16, embed_dim=8, depths=[1, 1], focal_levels=[1, 1], focal_windows=[3, 3])
_sight("hiera", "HieraModel", base={}, image_size=[32, 32], embed_dim=8, depths=[1, 1], num_heads=[1, 2], num_query_pool=1, masked_unit_size=[2, 2],
       patch_size=[7, 7], inputs=_image(32))
_sight("detr", "DetrForObjectDetection", base={}, d_model=16, encoder_layers=1, decoder_layers=1,
       encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, num_queries=4,
       backbone_config=transformers.ResNetConfig(hidden_sizes=[8, 16], depths=[1, 1], embedding_size=8, out_features=["stage2"]), inputs=_image(32))


def _sound(model_type: str, model_class: str, **more: Any) -> None:
    settings = {"base": SPEECH, "inputs": _wave(), "generate": None, **more}
    _decoder(model_type, model_class, family="speech", **settings)


_sound("wav2vec2", "Wav2Vec2ForCTC", fast=True)
_sound("hubert", "HubertModel")
_sound("wavlm", "WavLMModel", num_buckets=16, max_bucket_distance=32)
_sound("unispeech", "UniSpeechModel")
_sound("wav2vec2-conformer", "Wav2Vec2ConformerModel", conv_depthwise_kernel_size=3)
_sound("sew", "SEWModel", squeeze_factor=2)
_sound("data2vec-audio", "Data2VecAudioModel", conv_pos_kernel_size=3, num_conv_pos_embeddings=2)
_sound("audio-spectrogram-transformer", "ASTModel", base=VISION, max_length=16, num_mel_bins=16,
       inputs=lambda: {"input_values": torch.randn(2, 16, 16)})
_sound("whisper", "WhisperForConditionalGeneration", base=SEQ2SEQ, num_mel_bins=8,
       max_source_positions=10, max_target_positions=32, generate=GREEDY,
       inputs=lambda: {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": _ids(2, 3)})
_sound("speech_to_text", "Speech2TextForConditionalGeneration", base=SEQ2SEQ, input_feat_per_channel=8,
       conv_channels=8, num_conv_layers=2, conv_kernel_sizes=(3, 3), generate=GREEDY,
       max_source_positions=64, max_target_positions=64,
       inputs=lambda: {"input_features": torch.randn(2, 16, 8), "decoder_input_ids": _ids(2, 3)})
_sound("encodec", "EncodecModel", base={}, hidden_size=8, num_filters=4, upsampling_ratios=[4, 2],
       codebook_size=16, codebook_dim=8, num_lstm_layers=1, inputs=lambda: {"input_values": torch.randn(2, 1, 64)})
_sound("moonshine", "MoonshineForConditionalGeneration", base=SEQ2SEQ, intermediate_size=32, encoder_num_hidden_layers=2,
       decoder_num_hidden_layers=2, encoder_num_attention_heads=2, decoder_num_attention_heads=2, generate=GREEDY,
       inputs=lambda: {"input_values": torch.randn(2, 2000), "decoder_input_ids": _ids(2, 3)})


def _both(model_type: str, model_class: str, config: Callable[[], Any], inputs, **more: Any) -> None:
    _add("multimodal", model_type, model_class, config, inputs, **more)


def _config(model_type: str, **settings: Any) -> Any:
    return transformers.AutoConfig.for_model(model_type, **settings)


IMAGE_TOKEN = 63


def _captions(tokens: int = 4, **more: Any) -> Callable[[], dict[str, Any]]:
    """Texts that begin with the placeholders of an image."""

    def draw() -> dict[str, Any]:
        ids = torch.cat([torch.full((2, tokens), IMAGE_TOKEN), torch.randint(3, IMAGE_TOKEN, (2, 4))], 1)
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "pixel_values": torch.randn(2, 3, 16, 16),
            **more,
        }

    return draw


def _text_and_image(**more: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {**_text()(), "pixel_values": torch.randn(2, 3, 16, 16), **more}


_both("clip", "CLIPModel", lambda: _config("clip", text_config=TEXT, vision_config=VISION, projection_dim=16),
      _text_and_image(), fast=True)
_both("siglip", "SiglipModel", lambda: _config("siglip", text_config=TEXT, vision_config=VISION), _text_and_image())
_both("chinese_clip", "ChineseCLIPModel", lambda: _config("chinese_clip", text_config=TEXT, vision_config=VISION, projection_dim=16),
      _text_and_image())
_both("groupvit", "GroupViTModel", lambda: _config("groupvit", text_config=TEXT, vision_config={**VISION, "depths": [1, 1, 0], "num_group_tokens": [4, 2, 0], "num_output_groups": [4, 2, 0], "hidden_size": 16}, projection_dim=16, projection_intermediate_dim=16),
      _text_and_image())
_both("owlvit", "OwlViTModel", lambda: _config("owlvit", text_config=TEXT, vision_config=VISION, projection_dim=16), _text_and_image())
_both("blip", "BlipForConditionalGeneration", lambda: _config("blip", text_config={**TEXT, "encoder_hidden_size": 16}, vision_config=VISION, projection_dim=16),
      _text_and_image(), generate=GREEDY)
_both("vilt", "ViltModel", lambda: _config("vilt", **TEXT, image_size=16, patch_size=8), _text_and_image())
_both("flava", "FlavaModel", lambda: _config("flava", text_config=TEXT, image_config=VISION, multimodal_config=VISION, hidden_size=16, projection_dim=16), _text_and_image())
_both("git", "GitForCausalLM", lambda: _config("git", **TEXT, vision_config=VISION), _text_and_image(), generate=GREEDY)
_both("llava", "LlavaForConditionalGeneration", lambda: _config("llava",
      text_config={**TEXT, "model_type": "llama"}, vision_config={**VISION, "model_type": "clip_vision_model"}, image_token_index=IMAGE_TOKEN, vision_feature_layer=-1), _captions(), generate=GREEDY)
_both("paligemma", "PaliGemmaForConditionalGeneration", lambda: _config("paligemma",
      text_config={**TEXT, "model_type": "gemma"}, vision_config={**VISION, "model_type": "siglip_vision_model"}, projection_dim=16, image_token_index=IMAGE_TOKEN), _captions(), generate=GREEDY)
_both("vision-encoder-decoder", "VisionEncoderDecoderModel", lambda: transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
      _config("vit", **VISION), _config("gpt2", **TEXT, is_decoder=True, add_cross_attention=True), decoder_start_token_id=1, pad_token_id=0),
      lambda: {**_image()(), "decoder_input_ids": _ids(2, 3)}, generate=GREEDY)
_both("lxmert", "LxmertModel", lambda: _config("lxmert", **{k:v for k,v in TEXT.items() if k!="num_hidden_layers"}, l_layers=1, x_layers=1, r_layers=1, visual_feat_dim=8),
      lambda: {**_text()(), "visual_feats": torch.randn(2, 4, 8), "visual_pos": torch.rand(2, 4, 4)})
_both("visual_bert", "VisualBertModel", lambda: _config("visual_bert", **TEXT, visual_embedding_dim=8),
      lambda: {**_text()(), "visual_embeds": torch.randn(2, 4, 8)})
_both("clap", "ClapModel", lambda: _config("clap", text_config=TEXT, audio_config={"patch_embeds_hidden_size": 8, "hidden_size": 16, "depths": [1, 1], "num_attention_heads": [1, 2], "spec_size": 32, "num_mel_bins": 8, "window_size": 2, "patch_size": 2, "patch_stride": 2, "num_hidden_layers": 2}, projection_dim=16),
      lambda: {**_text()(), "input_features": torch.randn(2, 1, 32, 8)})
_both("qwen2_vl", "Qwen2VLForConditionalGeneration", lambda: _config("qwen2_vl", text_config={**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}, vision_config={"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "patch_size": 4, "mlp_ratio": 2}, image_token_id=IMAGE_TOKEN, vision_start_token_id=62, vision_end_token_id=61, video_token_id=60),
      lambda: {"input_ids": torch.tensor([[62, 63, 61, 7, 8]]), "attention_mask": torch.ones(1, 5, dtype=torch.int64), "mm_token_type_ids": torch.tensor([[0, 1, 0, 0, 0]]), "pixel_values": torch.randn(4, 96), "image_grid_thw": torch.tensor([[1, 2, 2]])}, generate=GREEDY)
_both("blip-2", "Blip2ForConditionalGeneration", lambda: _config("blip-2", text_config={**TEXT, "model_type": "opt", "ffn_dim": 32, "word_embed_proj_dim": 16}, vision_config=VISION, qformer_config={**TEXT, "encoder_hidden_size": 16}, num_query_tokens=4, image_token_index=IMAGE_TOKEN), _captions(), generate=GREEDY)
_both("idefics3", "Idefics3ForConditionalGeneration", lambda: _config("idefics3", text_config={**TEXT, "model_type": "llama"}, vision_config=VISION, scale_factor=2, image_token_id=IMAGE_TOKEN),
      lambda: {**_captions(1)(), "pixel_values": torch.randn(2, 1, 3, 16, 16)}, generate=GREEDY)


FAMILIES = tuple(dict.fromkeys(each.family for each in ARCHITECTURES.values()))
