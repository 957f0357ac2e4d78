"""Architectures of transformers, tiny, with random weights: nothing is downloaded.

`ARCHITECTURES` maps a model type to what builds it. Each has two layers or so, a vocabulary of 64
and some ten thousand parameters, and runs a forward in milliseconds. What is random is drawn from
a seed: building one twice gives the same bits.
"""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
import transformers

__all__ = ["ARCHITECTURES", "FAMILIES", "Architecture", "Built"]

Config: TypeAlias = Mapping[str, Any]
Draw: TypeAlias = Callable[[], dict[str, Any]]


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
        family: Decoder, encoder, vision, …
        model_class: Name of the model's class in transformers.
        config: Settings of the configuration.
        draw: Draws the keyword arguments of forward.
        generate: Keyword arguments of generate besides those; None where there is no such method.
        options: Keyword arguments of forward that generate does not take.
        dtype: Of the weights.
        fast: Whether it is in the default test run, one of each family.
    """

    model_type: str
    family: str
    model_class: str
    config: Config
    draw: Draw
    generate: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    fast: bool = False

    def build(self) -> Built:
        """The same model and inputs at each call; the global random state is left as it is."""
        settings = copy.deepcopy(dict(self.config))  # transformers fills dicts that it is given
        config = transformers.AutoConfig.for_model(self.model_type, **settings)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = getattr(transformers, self.model_class)(config).to(self.dtype).eval()
            inputs = {name: self._cast(value) for name, value in self.draw().items()}
        return Built(model, inputs, None if self.generate is None else dict(self.generate))

    def _cast(self, value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(self.dtype) if floating else value


ARCHITECTURES: dict[str, Architecture] = {}


def _add(family: str, base: Config, defaults: Mapping[str, Any]) -> Callable[..., None]:
    """What fills the table with one family: `add(model_type, model_class, **settings)`.

    Settings are those of `base`, changed and completed by the ones given (`...` takes one away).
    Those that are fields of `Architecture` go there.
    """
    fields = {"draw", "generate", "options", "dtype", "fast"}

    def add(model_type: str, model_class: str, base: Config = base, **more: Any) -> None:
        if model_type in ARCHITECTURES:
            raise ValueError(f"{model_type} is there twice")
        own = {**defaults, **{name: more.pop(name) for name in fields & more.keys()}}
        config = {k: v for k, v in {**base, **more}.items() if v is not ...}
        ARCHITECTURES[model_type] = Architecture(model_type, family, model_class, config, **own)

    return add


VOCABULARY = 64
IMAGE_TOKEN = VOCABULARY - 1
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
# Inputs


def _ids(*shape: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY - 4, shape)  # the last four stand for images and the like


def _padded() -> dict[str, Any]:
    """Two sequences of six tokens, the second padded on the left."""
    ids, mask = _ids(2, 6), torch.ones(2, 6, dtype=torch.int64)
    ids[1, :2], mask[1, :2] = 0, 0
    return {"input_ids": ids, "attention_mask": mask}


def _text(length: int = 6) -> Draw:
    return lambda: {"input_ids": _ids(2, length)}


def _pair(length: int = 6) -> Draw:
    return lambda: {"input_ids": _ids(2, length), "decoder_input_ids": _ids(2, 3)}


def _random(name: str, *shape: int, **lengths: int) -> Draw:
    """One tensor of floats, and token ids of some lengths."""
    return lambda: {
        name: torch.randn(2, *shape),
        **{key: _ids(2, length) for key, length in lengths.items()},
    }


def _image(size: int = 16) -> Draw:
    return _random("pixel_values", 3, size, size)


def _captioned(**floats: tuple[int, ...]) -> Draw:
    """Padded text beside tensors of numbers from 0 to 1."""
    return lambda: {**_padded(), **{name: torch.rand(2, *shape) for name, shape in floats.items()}}


def _spliced(tokens: int, *shape: int) -> Draw:
    """Text in which placeholders stand for an image, as many as the image gives embeddings."""

    def draw() -> dict[str, Any]:
        ids = torch.cat([torch.full((2, tokens), IMAGE_TOKEN), _ids(2, 4)], dim=1)
        mask = torch.ones_like(ids)
        return {"input_ids": ids, "attention_mask": mask, "pixel_values": torch.randn(2, *shape)}

    return draw


def _patches() -> dict[str, Any]:
    """One sequence with an image of four patches, merged into one embedding."""
    return {
        "input_ids": torch.tensor([[VOCABULARY - 2, IMAGE_TOKEN, VOCABULARY - 3, 7, 8]]),
        "attention_mask": torch.ones(1, 5, dtype=torch.int64),
        "mm_token_type_ids": torch.tensor([[0, 1, 0, 0, 0]]),
        "pixel_values": torch.randn(4, 96),
        "image_grid_thw": torch.tensor([[1, 2, 2]]),
    }


GREEDY = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
STATIC = {**GREEDY, "cache_implementation": "static"}
DETAILED = {**GREEDY, "return_dict_in_generate": True, "output_scores": True}
EVERYTHING = {"output_attentions": True, "output_hidden_states": True}
LAYERS = {"output_hidden_states": True}

_decoder = _add("decoder", TEXT, {"draw": _padded, "generate": GREEDY})

_decoder("llama", "LlamaForCausalLM", fast=True)
_decoder("mistral", "MistralForCausalLM", sliding_window=4, generate=STATIC)
_decoder("gpt2", "GPT2LMHeadModel", attn_implementation="eager", options=EVERYTHING)
_decoder("gpt_neo", "GPTNeoForCausalLM", attention_types=[[["global", "local"], 1]])
_decoder("gpt_neox", "GPTNeoXForCausalLM", dtype=torch.bfloat16)
_decoder("gptj", "GPTJForCausalLM", rotary_dim=4)
_decoder("gpt_bigcode", "GPTBigCodeForCausalLM")
_decoder("opt", "OPTForCausalLM", ffn_dim=32, word_embed_proj_dim=16)
_decoder("bloom", "BloomForCausalLM")
_decoder("mpt", "MptForCausalLM")
_decoder("falcon", "FalconForCausalLM", head_dim=...)
_decoder("stablelm", "StableLmForCausalLM")
_decoder("starcoder2", "Starcoder2ForCausalLM", sliding_window=4)
_decoder("qwen2", "Qwen2ForCausalLM", generate=DETAILED)
_decoder("qwen3", "Qwen3ForCausalLM", dtype=torch.float16)
_decoder("gemma", "GemmaForCausalLM", generate=STATIC)
_decoder("gemma2", "Gemma2ForCausalLM", sliding_window=4)
_decoder("gemma3_text", "Gemma3ForCausalLM", sliding_window=4, dtype=torch.bfloat16)
_decoder("phi", "PhiForCausalLM")
_decoder("phi3", "Phi3ForCausalLM")
_decoder("cohere", "CohereForCausalLM")
_decoder("olmo2", "Olmo2ForCausalLM", options=LAYERS)
_decoder("granite", "GraniteForCausalLM")
_decoder("glm", "GlmForCausalLM")
_decoder("nemotron", "NemotronForCausalLM")
_decoder("persimmon", "PersimmonForCausalLM")
_decoder("smollm3", "SmolLM3ForCausalLM")
_decoder("biogpt", "BioGptForCausalLM")
_decoder("openai-gpt", "OpenAIGPTLMHeadModel", options=LAYERS)
_decoder("codegen", "CodeGenForCausalLM", rotary_dim=4)
_decoder("ctrl", "CTRLLMHeadModel", dff=32)
_decoder("xlnet", "XLNetLMHeadModel", max_position_embeddings=..., d_inner=32, d_head=8)
_decoder("bert-generation", "BertGenerationDecoder", is_decoder=True)

_experts = _add("moe", TEXT, {"draw": _padded, "generate": GREEDY})
MLA = {
    "num_key_value_heads": 2,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "moe_intermediate_size": 16,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
ROUTED = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SHARED = {**ROUTED, "shared_expert_intermediate_size": 16}
ERNIE = {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16, "moe_layer_start_index": 1}

_experts(
    "mixtral",
    "MixtralForCausalLM",
    num_local_experts=4,
    options={"output_router_logits": True},
    fast=True,
)
_experts("qwen2_moe", "Qwen2MoeForCausalLM", **SHARED)
_experts("qwen3_moe", "Qwen3MoeForCausalLM", **ROUTED)
_experts("olmoe", "OlmoeForCausalLM", **ROUTED)
_experts("phimoe", "PhimoeForCausalLM", num_local_experts=4)
_experts("granitemoe", "GraniteMoeForCausalLM", num_local_experts=4)
_experts("jetmoe", "JetMoeForCausalLM", num_local_experts=4)
_experts("gpt_oss", "GptOssForCausalLM", num_local_experts=4, sliding_window=4)
_experts("deepseek_v2", "DeepseekV2ForCausalLM", **MLA)
_experts("deepseek_v3", "DeepseekV3ForCausalLM", **MLA)
_experts("llama4_text", "Llama4ForCausalLM", num_local_experts=4, intermediate_size_mlp=32)
_experts("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", **ERNIE)
_experts("minimax", "MiniMaxForCausalLM", num_local_experts=4, block_size=4)

_states = _add("state-space", TEXT, {"draw": _padded, "generate": GREEDY})
MAMBA2 = {"mamba_n_heads": 4, "mamba_d_state": 4, "mamba_n_groups": 1, "mamba_chunk_size": 4}
JAMBA = {
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "num_experts": 2,
    "mamba_d_state": 4,
}
DELTA = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}

_states("mamba", "MambaForCausalLM", state_size=4, fast=True)
_states("mamba2", "Mamba2ForCausalLM", num_heads=4, n_groups=1, state_size=4, chunk_size=4)
_states("falcon_mamba", "FalconMambaForCausalLM", state_size=4)
_states("rwkv", "RwkvForCausalLM", draw=_text())
_states("jamba", "JambaForCausalLM", **JAMBA)
_states("bamba", "BambaForCausalLM", mamba_d_head=8, attn_layer_indices=[1], **MAMBA2)
_states("recurrent_gemma", "RecurrentGemmaForCausalLM", num_hidden_layers=3, lru_width=16)
_states("falcon_h1", "FalconH1ForCausalLM", mamba_d_ssm=16, mamba_d_head=4, **MAMBA2)
_states("lfm2", "Lfm2ForCausalLM", layer_types=["conv", "full_attention"])
_states("qwen3_next", "Qwen3NextForCausalLM", **SHARED, **DELTA)

_encoder = _add("encoder", TEXT, {"draw": _padded})
DISENTANGLED = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
GROUPS = ("q", "k", "v", "post_attention", "intermediate", "output")
NARROW = {"intra_bottleneck_size": 8, "true_hidden_size": 8, "num_feedforward_networks": 1}
CANINE = {
    "downsampling_rate": 2,
    "num_hash_functions": 2,
    "num_hash_buckets": 16,
    "local_transformer_stride": 4,
    "upsampling_kernel_size": 2,
}
FUNNEL = {"block_sizes": [1, 1], "num_decoder_layers": 1, "d_model": 16, "d_head": 8, "d_inner": 32}

_encoder("bert", "BertModel", attn_implementation="eager", options=EVERYTHING, fast=True)
_encoder("roberta", "RobertaForMaskedLM")
_encoder("distilbert", "DistilBertForSequenceClassification", hidden_dim=32)
_encoder("albert", "AlbertModel", embedding_size=16)
_encoder("electra", "ElectraForPreTraining", embedding_size=16)
_encoder("deberta", "DebertaModel", **DISENTANGLED)
_encoder("deberta-v2", "DebertaV2ForTokenClassification", **DISENTANGLED)
_encoder("mpnet", "MPNetModel")
_encoder("xlm", "XLMModel", draw=_text())
_encoder("funnel", "FunnelModel", num_hidden_layers=..., **FUNNEL)
_encoder("convbert", "ConvBertModel", embedding_size=16, head_ratio=1, conv_kernel_size=3)
_encoder("big_bird", "BigBirdModel", attention_type="original_full")
_encoder("longformer", "LongformerModel", attention_window=4, draw=_text(8))
_encoder(
    "nystromformer",
    "NystromformerModel",
    num_landmarks=6,
    segment_means_seq_len=6,
    conv_kernel_size=3,
)
_encoder("roformer", "RoFormerModel", embedding_size=16)
_encoder(
    "squeezebert", "SqueezeBertModel", embedding_size=16, **{f"{name}_groups": 1 for name in GROUPS}
)
_encoder("mobilebert", "MobileBertModel", embedding_size=16, **NARROW)
_encoder("modernbert", "ModernBertModel", local_attention=4, dtype=torch.bfloat16)
_encoder("fnet", "FNetModel", draw=_text())
_encoder("rembert", "RemBertModel", input_embedding_size=16, output_embedding_size=16)
_encoder("canine", "CanineModel", draw=_text(8), **CANINE)
_encoder("splinter", "SplinterModel", question_token_id=3)
_encoder("luke", "LukeModel", entity_vocab_size=8, entity_emb_size=8)
_encoder("layoutlm", "LayoutLMModel", max_2d_position_embeddings=64)

_translator = _add("encoder-decoder", SEQ2SEQ, {"draw": _pair(), "generate": GREEDY})
SWITCH = {"num_experts": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
SPARSE = {"num_experts": 2, "encoder_sparse_step": 2, "decoder_sparse_step": 2}
LED = {"max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64}
FSMT = {"langs": ["en", "de"], "src_vocab_size": VOCABULARY, "tgt_vocab_size": VOCABULARY}

_translator("t5", "T5ForConditionalGeneration", T5, fast=True)
_translator("mt5", "MT5ForConditionalGeneration", T5)
_translator("umt5", "UMT5ForConditionalGeneration", T5)
_translator("longt5", "LongT5ForConditionalGeneration", T5, local_radius=3)
_translator("switch_transformers", "SwitchTransformersForConditionalGeneration", T5, **SWITCH)
_translator("bart", "BartForConditionalGeneration", attn_implementation="eager", options=EVERYTHING)
_translator("mbart", "MBartForConditionalGeneration")
_translator("pegasus", "PegasusForConditionalGeneration", generate=STATIC)
_translator("marian", "MarianMTModel", decoder_vocab_size=VOCABULARY)
_translator("blenderbot", "BlenderbotForConditionalGeneration")
_translator("m2m_100", "M2M100ForConditionalGeneration")
_translator("led", "LEDForConditionalGeneration", attention_window=4, draw=_pair(8), **LED)
_translator("plbart", "PLBartForConditionalGeneration")
_translator("fsmt", "FSMTForConditionalGeneration", **FSMT)
_translator("nllb-moe", "NllbMoeForConditionalGeneration", **SPARSE)

_sight = _add("vision", VISION, {"draw": _image()})
TWO_STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_channels": 3}
FOUR_STAGES = {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]}
WINDOWS = {"image_size": 16, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2]}
DPT = {
    "num_hidden_layers": 4,
    "backbone_out_indices": [0, 1, 2, 3],
    "neck_hidden_sizes": [4, 4, 8, 8],
    "fusion_hidden_size": 8,
    "reassemble_factors": [1, 1, 1, 0.5],
}
DETR = {
    **SEQ2SEQ,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "num_queries": 4,
    "backbone_config": {
        **TWO_STAGES,
        "model_type": "resnet",
        "embedding_size": 8,
        "out_features": ["stage2"],
    },
}
SCALED = {"image_size": 32, "width_coefficient": 0.1, "depth_coefficient": 0.1, "hidden_dim": 128}
LEVIT = {
    "image_size": 64,
    "hidden_sizes": [16, 16, 16],
    "num_attention_heads": [1, 2, 2],
    "depths": [1, 1, 1],
    "key_dim": [4, 4, 4],
}
HIERA = {"patch_size": [7, 7], "num_query_pool": 1, "masked_unit_size": [2, 2]}

_sight("vit", "ViTForImageClassification", options=LAYERS, fast=True)
_sight("deit", "DeiTModel")
_sight("beit", "BeitModel")
_sight("dinov2", "Dinov2Model", mlp_ratio=2)
_sight("vit_mae", "ViTMAEModel")
_sight("yolos", "YolosForObjectDetection", image_size=[16, 16], num_detection_tokens=4)
_sight("dpt", "DPTForDepthEstimation", **DPT)
_sight("detr", "DetrForObjectDetection", DETR, draw=_image(32))
_sight("swin", "SwinModel", WINDOWS, window_size=2, patch_size=4)
_sight("swinv2", "Swinv2Model", WINDOWS, window_size=2, patch_size=4)
_sight("hiera", "HieraModel", WINDOWS, image_size=[32, 32], draw=_image(32), **HIERA)
_sight("focalnet", "FocalNetModel", WINDOWS, focal_levels=[1, 1], focal_windows=[3, 3])
_sight("convnext", "ConvNextForImageClassification", TWO_STAGES, num_stages=2)
_sight("convnextv2", "ConvNextV2Model", TWO_STAGES, num_stages=2)
_sight("resnet", "ResNetForImageClassification", TWO_STAGES, embedding_size=8)
_sight("regnet", "RegNetModel", TWO_STAGES, embedding_size=8, groups_width=8)
_sight("poolformer", "PoolFormerModel", FOUR_STAGES, draw=_image(32))
_sight(
    "segformer",
    "SegformerForSemanticSegmentation",
    FOUR_STAGES,
    num_attention_heads=[1, 1, 2, 2],
    decoder_hidden_size=8,
    draw=_image(32),
)
_sight(
    "mobilevit",
    "MobileViTModel",
    {"image_size": 32, "patch_size": 2},
    hidden_sizes=[8, 8, 8],
    neck_hidden_sizes=[8] * 7,
    num_attention_heads=2,
    draw=_image(32),
)
_sight("mobilenet_v2", "MobileNetV2Model", {"depth_multiplier": 0.1}, draw=_image(32))
_sight("efficientnet", "EfficientNetModel", SCALED, draw=_image(32))
_sight("levit", "LevitModel", LEVIT, draw=_image(64))

_sound = _add("speech", SPEECH, {"draw": _random("input_values", 400)})
WHISPER = {**SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 32}
FRAMES = {
    **SEQ2SEQ,
    "input_feat_per_channel": 8,
    "conv_channels": 8,
    "conv_kernel_sizes": (3, 3),
    "max_source_positions": 64,
    "max_target_positions": 64,
}
ENCODEC = {
    "hidden_size": 8,
    "num_filters": 4,
    "upsampling_ratios": [4, 2],
    "codebook_size": 16,
    "codebook_dim": 8,
    "num_lstm_layers": 1,
}
MOONSHINE = {
    **SEQ2SEQ,
    "intermediate_size": 32,
    "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 2,
    "encoder_num_attention_heads": 2,
    "decoder_num_attention_heads": 2,
}

_sound("wav2vec2", "Wav2Vec2ForCTC", fast=True)
_sound("hubert", "HubertModel")
_sound("wavlm", "WavLMModel", num_buckets=16, max_bucket_distance=32)
_sound("unispeech", "UniSpeechModel")
_sound("wav2vec2-conformer", "Wav2Vec2ConformerModel", conv_depthwise_kernel_size=3)
_sound("sew", "SEWModel", squeeze_factor=2)
_sound("data2vec-audio", "Data2VecAudioModel", conv_pos_kernel_size=3, num_conv_pos_embeddings=2)
_sound(
    "audio-spectrogram-transformer",
    "ASTModel",
    VISION,
    max_length=16,
    num_mel_bins=16,
    draw=_random("input_values", 16, 16),
)
_sound(
    "whisper",
    "WhisperForConditionalGeneration",
    WHISPER,
    draw=_random("input_features", 8, 20, decoder_input_ids=3),
    generate=GREEDY,
)
_sound(
    "speech_to_text",
    "Speech2TextForConditionalGeneration",
    FRAMES,
    draw=_random("input_features", 16, 8, decoder_input_ids=3),
    generate=GREEDY,
)
_sound("encodec", "EncodecModel", ENCODEC, draw=_random("input_values", 1, 64))
_sound(
    "moonshine",
    "MoonshineForConditionalGeneration",
    MOONSHINE,
    draw=_random("input_values", 2000, decoder_input_ids=3),
    generate=GREEDY,
)

TWO = {"text_config": TEXT, "vision_config": VISION, "projection_dim": 16}
_both = _add("multimodal", TWO, {"draw": _captioned(pixel_values=(3, 16, 16))})
LLAMA_TEXT = {**TEXT, "model_type": "llama"}
LLAVA = {
    "text_config": LLAMA_TEXT,
    "vision_config": {**VISION, "model_type": "clip_vision_model"},
    "image_token_index": IMAGE_TOKEN,
    "vision_feature_layer": -1,
}
PALIGEMMA = {
    "text_config": {**TEXT, "model_type": "gemma"},
    "vision_config": {**VISION, "model_type": "siglip_vision_model"},
    "projection_dim": 16,
    "image_token_index": IMAGE_TOKEN,
}
BLIP2 = {
    "text_config": {**TEXT, "model_type": "opt", "ffn_dim": 32, "word_embed_proj_dim": 16},
    "vision_config": VISION,
    "qformer_config": {**TEXT, "encoder_hidden_size": 16},
    "num_query_tokens": 4,
    "image_token_index": IMAGE_TOKEN,
}
QWEN2_VL = {
    "text_config": {
        **TEXT,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
    },
    "vision_config": {
        "depth": 1,
        "embed_dim": 16,
        "hidden_size": 16,
        "num_heads": 2,
        "patch_size": 4,
        "mlp_ratio": 2,
    },
    "image_token_id": IMAGE_TOKEN,
    "vision_start_token_id": VOCABULARY - 2,
    "vision_end_token_id": VOCABULARY - 3,
    "video_token_id": VOCABULARY - 4,
}
CAPTIONER = {
    "encoder": {**VISION, "model_type": "vit"},
    "decoder": {**TEXT, "model_type": "gpt2", "is_decoder": True, "add_cross_attention": True},
    "decoder_start_token_id": 1,
    "pad_token_id": 0,
}
FLAVA = {
    "text_config": TEXT,
    "image_config": VISION,
    "multimodal_config": VISION,
    "hidden_size": 16,
    "projection_dim": 16,
}
GROUPVIT = {
    **VISION,
    "depths": [1, 1, 0],
    "num_group_tokens": [4, 2, 0],
    "num_output_groups": [4, 2, 0],
}
CLAP = {
    "patch_embeds_hidden_size": 8,
    "hidden_size": 16,
    "depths": [1, 1],
    "num_attention_heads": [1, 2],
    "num_hidden_layers": 2,
    "spec_size": 32,
    "num_mel_bins": 8,
    "window_size": 2,
    "patch_size": 2,
    "patch_stride": 2,
}
CROSS = {"l_layers": 1, "x_layers": 1, "r_layers": 1, "visual_feat_dim": 8}

_both("clip", "CLIPModel", fast=True)
_both("siglip", "SiglipModel")
_both("chinese_clip", "ChineseCLIPModel")
_both("owlvit", "OwlViTModel")
_both("groupvit", "GroupViTModel", vision_config=GROUPVIT, projection_intermediate_dim=16)
_both(
    "blip",
    "BlipForConditionalGeneration",
    text_config={**TEXT, "encoder_hidden_size": 16},
    generate=GREEDY,
)
_both("vilt", "ViltModel", {**TEXT, "image_size": 16, "patch_size": 8})
_both("flava", "FlavaModel", FLAVA)
_both("git", "GitForCausalLM", {**TEXT, "vision_config": VISION}, generate=GREEDY)
_both(
    "clap",
    "ClapModel",
    {"text_config": TEXT, "audio_config": CLAP, "projection_dim": 16},
    draw=_captioned(input_features=(1, 32, 8)),
)
_both(
    "lxmert",
    "LxmertModel",
    {**TEXT, **CROSS},
    num_hidden_layers=...,
    draw=_captioned(visual_feats=(4, 8), visual_pos=(4, 4)),
)
_both(
    "visual_bert",
    "VisualBertModel",
    {**TEXT, "visual_embedding_dim": 8},
    draw=_captioned(visual_embeds=(4, 8)),
)
_both(
    "vision-encoder-decoder",
    "VisionEncoderDecoderModel",
    CAPTIONER,
    draw=_random("pixel_values", 3, 16, 16, decoder_input_ids=3),
    generate=GREEDY,
)
_both(
    "llava",
    "LlavaForConditionalGeneration",
    LLAVA,
    draw=_spliced(4, 3, 16, 16),
    generate=GREEDY,
)
_both(
    "paligemma",
    "PaliGemmaForConditionalGeneration",
    PALIGEMMA,
    draw=_spliced(4, 3, 16, 16),
    generate=GREEDY,
)
_both(
    "blip-2",
    "Blip2ForConditionalGeneration",
    BLIP2,
    draw=_spliced(4, 3, 16, 16),
    generate=GREEDY,
)
_both(
    "idefics3",
    "Idefics3ForConditionalGeneration",
    {"text_config": LLAMA_TEXT, "vision_config": VISION, "image_token_id": IMAGE_TOKEN},
    scale_factor=2,
    draw=_spliced(1, 1, 3, 16, 16),
    generate=GREEDY,
)
_both("qwen2_vl", "Qwen2VLForConditionalGeneration", QWEN2_VL, draw=_patches, generate=GREEDY)

FAMILIES = tuple(dict.fromkeys(each.family for each in ARCHITECTURES.values()))
