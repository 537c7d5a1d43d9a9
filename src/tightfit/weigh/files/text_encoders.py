"""Text encoders we know, by their tensors.

Origin: transformers 5 and 4 (their names differ in what stands before them), the original
checkpoints of Wan and OpenCLIP, llama.cpp's names in GGUF, and the public model configurations.

A language model is known by its body: the vision tower and the head may be there or not.
"""

from __future__ import annotations

from tightfit.weigh.files.naming import Family, Known, Naming


def _encoder(name: str, class_name: str, parameters: int) -> Known:
    return Known(name, class_name, "text_encoder", parameters)


T5 = Family(
    (
        Naming(
            marks=(
                "encoder.block.0.layer.0.SelfAttention.q.weight",
                "encoder.final_layer_norm.weight",
            ),
            layers=("encoder.block.",),
            sizes=(
                "encoder.final_layer_norm.weight",
                "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight",
            ),
            order=("shared", "encoder.embed_tokens", "encoder.block", "encoder.final_layer_norm"),
        ),
        Naming(
            marks=("token_embd.weight", "enc.blk.0.attn_q.weight", "enc.output_norm.weight"),
            layers=("enc.blk.",),
            sizes=("enc.output_norm.weight", "enc.blk.1.attn_rel_b.weight"),
            order=("token_embd", "enc.blk", "enc.output_norm"),
        ),
        Naming(
            marks=(
                "token_embedding.weight",
                "blocks.0.attn.q.weight",
                "blocks.0.pos_embedding.embedding.weight",
            ),
            layers=("blocks.",),
            sizes=("norm.weight", "blocks.1.pos_embedding.embedding.weight"),
            order=("token_embedding", "blocks", "norm"),
        ),
    ),
    {
        (24, 4096, 0): _encoder("t5-xxl", "T5EncoderModel", 4_762_310_656),
        (24, 4096, 32 * 64): _encoder("umt5-xxl", "UMT5EncoderModel", 5_680_910_336),
    },
)

CLIP = Family(
    (
        Naming(
            marks=(
                "embeddings.token_embedding.weight",
                "encoder.layers.0.self_attn.q_proj.weight",
                "final_layer_norm.weight",
            ),
            layers=("encoder.layers.",),
            sizes=("final_layer_norm.weight",),
            order=("embeddings", "encoder.layers", "final_layer_norm", "text_projection"),
        ),
        Naming(
            marks=(
                "token_embedding.weight",
                "transformer.resblocks.0.attn.in_proj_weight",
                "ln_final.weight",
            ),
            layers=("transformer.resblocks.",),
            sizes=("ln_final.weight",),
            order=("token_embedding", "positional_embedding", "transformer.resblocks", "ln_final"),
        ),
    ),
    {
        (12, 768): _encoder("clip-l", "CLIPTextModel", 123_060_480),
        (32, 1280): _encoder("openclip-bigg", "CLIPTextModelWithProjection", 694_659_840),
    },
)

LANGUAGE = Family(
    (
        Naming(
            marks=("embed_tokens.weight", "layers.0.self_attn.q_proj.weight", "norm.weight"),
            layers=("layers.",),
            sizes=("norm.weight", "layers.0.mlp.up_proj.weight", "embed_tokens.weight"),
            order=("embed_tokens", "layers", "norm", "lm_head"),
        ),
        Naming(
            marks=("token_embd.weight", "blk.0.attn_q.weight", "output_norm.weight"),
            layers=("blk.",),
            sizes=("output_norm.weight", "blk.0.ffn_up.weight", "token_embd.weight"),
            order=("token_embd", "blk", "output_norm", "output"),
        ),
    ),
    {
        (28, 3584, 3584 * 18944, 3584 * 152064): _encoder(
            "qwen2.5-vl-7b", "Qwen2_5_VLForConditionalGeneration", 8_292_166_656
        ),
        (40, 5120, 5120 * 32768, 5120 * 131072): _encoder(
            "mistral-small-3.2-24b", "Mistral3ForConditionalGeneration", 24_011_361_280
        ),
        (32, 4096, 4096 * 14336, 4096 * 128320): _encoder(
            "llama-3-8b", "LlamaModel", 7_505_186_816
        ),
        (36, 2560, 2560 * 9728, 2560 * 151936): _encoder(
            "qwen3-4b", "Qwen3ForCausalLM", 4_022_468_096
        ),
        (36, 4096, 4096 * 12288, 4096 * 151936): _encoder(
            "qwen3-8b", "Qwen3ForCausalLM", 8_190_735_360
        ),
    },
    whole=False,
)

TEXT_ENCODERS = (T5, CLIP, LANGUAGE)
