"""VAEs we know, by their tensors.

Origin: diffusers 0.42 (classes, and the names its converters of original checkpoints take) and the
public model configurations; parameters as counted on the meta device.
"""

from __future__ import annotations

from tightfit.weigh.files.naming import Family, Known, Naming


def _vae(name: str, class_name: str, parameters: int) -> Known:
    return Known(name, class_name, "vae", parameters)


def _diffusers(out: str) -> tuple[str, ...]:
    """Encoder, then decoder, as diffusers' autoencoders run; `out` is the norm at the end."""
    middle = ("mid_block.resnets.0", "mid_block.attentions.0", "mid_block")
    encoder = ("conv_in", "down_blocks", *middle, out, "conv_out")
    decoder = ("conv_in", *middle, "up_blocks", out, "conv_out")
    return (
        *(f"encoder.{name}" for name in encoder),
        "quant_conv",
        "bn",
        "post_quant_conv",
        *(f"decoder.{name}" for name in decoder),
    )


_LDM = (
    "encoder.conv_in",
    "encoder.down",
    "encoder.mid",
    "encoder.norm_out",
    "encoder.conv_out",
    "encoder.quant_conv",
    "quant_conv",
    "bn",
    "post_quant_conv",
    "decoder.post_quant_conv",
    "decoder.conv_in",
    "decoder.mid",
    "decoder.up#",
    "decoder.norm_out",
    "decoder.conv_out",
)

KL = Family(
    (
        Naming(
            marks=(
                "encoder.conv_in.weight",
                "decoder.conv_in.weight",
                "decoder.conv_norm_out.weight",
                "decoder.mid_block.attentions.0.group_norm.weight",
            ),
            layers=("decoder.up_blocks.",),
            sizes=("decoder.conv_in.weight", "bn.running_mean"),
            order=_diffusers("conv_norm_out"),
        ),
        Naming(
            marks=(
                "encoder.conv_in.weight",
                "decoder.conv_in.weight",
                "decoder.mid.block_1.conv1.weight",
            ),
            layers=("decoder.up.",),
            sizes=("decoder.conv_in.weight", "bn.running_mean"),
            order=_LDM,
        ),
    ),
    {
        (4, 512 * 16 * 9, 0): _vae("flux-vae", "AutoencoderKL", 83_819_683),
        (4, 512 * 4 * 9, 0): _vae("sdxl-vae", "AutoencoderKL", 83_653_863),
        (4, 512 * 32 * 9, 128): _vae("flux.2-vae", "AutoencoderKLFlux2", 84_046_115),
    },
)

WAN = Family(
    (
        Naming(
            marks=(
                "decoder.conv_in.weight",
                "post_quant_conv.weight",
                "decoder.mid_block.attentions.0.to_qkv.weight",
            ),
            sizes=("encoder.conv_in.weight", "decoder.conv_in.weight"),
            order=_diffusers("norm_out"),
        ),
        Naming(
            marks=("conv2.weight", "decoder.conv1.weight", "decoder.middle.0.residual.0.gamma"),
            sizes=("encoder.conv1.weight", "decoder.conv1.weight"),
            order=(
                "encoder.conv1",
                "encoder.downsamples",
                "encoder.middle",
                "encoder.head",
                "conv1",
                "conv2",
                "decoder.conv1",
                "decoder.middle",
                "decoder.upsamples",
                "decoder.head",
            ),
        ),
    ),
    {
        (96 * 3 * 27, 384 * 16 * 27): _vae("wan2.1-vae", "AutoencoderKLWan", 126_892_531),
        (160 * 12 * 27, 1024 * 48 * 27): _vae("wan2.2-vae", "AutoencoderKLWan", 704_688_668),
    },
)

HUNYUAN_VIDEO = Family(
    (
        Naming(
            marks=(
                "decoder.conv_in.conv.weight",
                "post_quant_conv.weight",
                "decoder.mid_block.attentions.0.to_q.weight",
            ),
            sizes=("decoder.conv_in.conv.weight",),
            order=_diffusers("conv_norm_out"),
        ),
    ),
    {
        (512 * 16 * 27,): _vae("hunyuan-video-vae", "AutoencoderKLHunyuanVideo", 246_478_803),
    },
)

LTX_VIDEO = Family(
    (
        Naming(
            marks=(
                "decoder.conv_in.conv.weight",
                "decoder.mid_block.resnets.0.conv1.conv.weight",
                "encoder.down_blocks.0.resnets.0.conv1.conv.weight",
            ),
            sizes=("encoder.conv_in.conv.weight", "decoder.conv_in.conv.weight"),
            order=_diffusers("norm_out"),
        ),
        Naming(
            marks=(
                "decoder.conv_in.conv.weight",
                "encoder.down_blocks.0.res_blocks.0.conv1.conv.weight",
            ),
            sizes=("encoder.conv_in.conv.weight", "decoder.conv_in.conv.weight"),
            order=(
                "encoder.conv_in",
                "encoder.down_blocks",
                "encoder.conv_out",
                "per_channel_statistics",
                "decoder.conv_in",
                "decoder.up_blocks",
                "decoder.conv_out",
            ),
        ),
    ),
    {
        (128 * 48 * 27, 512 * 128 * 27): _vae(
            "ltx-video-vae", "AutoencoderKLLTXVideo", 419_193_649
        ),
    },
)

QWEN_IMAGE = _vae("qwen-image-vae", "AutoencoderKLQwenImage", 126_892_531)
"""Its tensors are those of `wan2.1-vae`, one by one; only a configuration tells them apart."""

AUTOENCODERS = (KL, WAN, HUNYUAN_VIDEO, LTX_VIDEO)
