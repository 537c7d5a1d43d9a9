"""The text and image encoders we know: class of transformers, configuration, true size.

Origin: the public model configurations, confirmed by their parameter counts.
"""

from __future__ import annotations

from typing import Any

from tightfit.adapters.known.architectures import Architecture


def _clip(class_name: str, width: int, layers: int, heads: int, **more: Any) -> Architecture:
    arguments = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        **more,
    }
    return Architecture(class_name, arguments, "transformers")


def _t5(class_name: str, vocabulary: int, **more: Any) -> Architecture:
    arguments = {
        "vocab_size": vocabulary,
        "d_model": 4096,
        "d_kv": 64,
        "d_ff": 10240,
        "num_layers": 24,
        "num_heads": 64,
        "feed_forward_proj": "gated-gelu",
        **more,
    }
    return Architecture(class_name, arguments, "transformers")


def _decoder(width: int, inner: int, layers: int, heads: tuple[int, int], **more: Any) -> Any:
    """Arguments that the language models share; `heads` of queries, of keys and values."""
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        **more,
    }


def _qwen3(class_name: str, width: int, inner: int, *, tied: bool) -> Architecture:
    arguments = _decoder(
        width, inner, 36, (32, 8), head_dim=128, vocab_size=151936, tie_word_embeddings=tied
    )
    return Architecture(class_name, arguments, "transformers")


def _qwen_vl(text: dict[str, Any], vision: dict[str, Any]) -> Architecture:
    return Architecture(
        "Qwen2_5_VLForConditionalGeneration",
        {"text_config": text, "vision_config": vision, "tie_word_embeddings": False},
        "transformers",
    )


def _mistral3(text: dict[str, Any], vision: dict[str, Any]) -> Architecture:
    return Architecture(
        "Mistral3ForConditionalGeneration",
        {
            "text_config": {"model_type": "mistral", "tie_word_embeddings": False, **text},
            "vision_config": {"model_type": "pixtral", "patch_size": 14, **vision},
            "tie_word_embeddings": False,
        },
        "transformers",
    )


_MINI_T5: dict[str, Any] = {"d_model": 64, "d_kv": 16, "d_ff": 256, "num_layers": 4, "num_heads": 4}
_MINI_CLIP: dict[str, Any] = {"vocab_size": 1024, "eos_token_id": 1023, "bos_token_id": 1022}
_MINI_TEXT = _decoder(64, 256, 32, (4, 2), head_dim=16, vocab_size=1024)

ENCODERS = {
    "clip-l": _clip("CLIPTextModel", 768, 12, 12, projection_dim=768),
    "clip-l-projection": _clip("CLIPTextModelWithProjection", 768, 12, 12, projection_dim=768),
    "openclip-bigg": _clip(
        "CLIPTextModelWithProjection", 1280, 32, 20, projection_dim=1280, hidden_act="gelu"
    ),
    "clip-vision-h": _clip(
        "CLIPVisionModel",
        1280,
        32,
        16,
        projection_dim=1024,
        hidden_act="gelu",
        image_size=224,
        patch_size=14,
    ),
    "t5-xxl": _t5("T5EncoderModel", 32128),
    "umt5-xxl": _t5("UMT5EncoderModel", 256384),
    "qwen2.5-vl-7b": _qwen_vl(
        _decoder(
            3584,
            18944,
            28,
            (28, 4),
            vocab_size=152064,
            tie_word_embeddings=False,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [16, 24, 24],
            },
        ),
        {
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "out_hidden_size": 3584,
        },
    ),
    "mistral-small-3.2-24b": _mistral3(
        _decoder(5120, 32768, 40, (32, 8), head_dim=128, vocab_size=131072),
        {
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "head_dim": 64,
            "image_size": 1540,
        },
    ),
    "llama-3-8b": Architecture(
        "LlamaModel", _decoder(4096, 14336, 32, (32, 8), vocab_size=128320), "transformers"
    ),
    "qwen3-4b": _qwen3("Qwen3ForCausalLM", 2560, 9728, tied=True),
    "qwen3-4b-body": _qwen3("Qwen3Model", 2560, 9728, tied=True),
    "qwen3-8b": _qwen3("Qwen3ForCausalLM", 4096, 12288, tied=False),
    "clip-mini": _clip("CLIPTextModel", 64, 4, 4, projection_dim=64, **_MINI_CLIP),
    "clip-projection-mini": _clip(
        "CLIPTextModelWithProjection", 64, 4, 4, projection_dim=64, **_MINI_CLIP
    ),
    "t5-mini": _t5("T5EncoderModel", 1024, **_MINI_T5),
    "umt5-mini": _t5("UMT5EncoderModel", 1024, **_MINI_T5),
    "qwen2.5-vl-mini": _qwen_vl(
        {
            **_MINI_TEXT,
            "num_hidden_layers": 4,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [2, 3, 3],
            },
        },
        {
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 64,
        },
    ),
    "mistral-small-mini": _mistral3(
        _MINI_TEXT,
        {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "head_dim": 16,
            "image_size": 56,
        },
    ),
}
