"""Tensors of original checkpoints, by the names that their authors gave them, in true sizes.

That the names are the real ones is checked against diffusers' own converters in
`test_recognise.py`.
"""

from __future__ import annotations

Shapes = dict[str, tuple[int, ...]]


def linear(into: Shapes, name: str, out: int, inner: int, *, bias: bool = True) -> None:
    """A weight, and its bias."""
    into[f"{name}.weight"] = (out, inner)
    if bias:
        into[f"{name}.bias"] = (out,)


def conv(into: Shapes, name: str, out: int, inner: int, *kernel: int) -> None:
    """A kernel, and its bias."""
    into[f"{name}.weight"] = (out, inner, *kernel)
    into[f"{name}.bias"] = (out,)


def norm(into: Shapes, name: str, width: int) -> None:
    """A scale, and its bias."""
    into[f"{name}.weight"] = into[f"{name}.bias"] = (width,)


def flux(*, guidance: bool = True) -> Shapes:
    """FLUX.1 as Black Forest Labs published it."""
    names: Shapes = {}
    wide = 3072
    linear(names, "img_in", wide, 64)
    linear(names, "txt_in", wide, 4096)
    embedders = {"time_in": 256, "vector_in": 768} | ({"guidance_in": 256} if guidance else {})
    for name, inner in embedders.items():
        linear(names, f"{name}.in_layer", wide, inner)
        linear(names, f"{name}.out_layer", wide, wide)
    for block in range(19):
        for stream in ("img", "txt"):
            at = f"double_blocks.{block}.{stream}"
            linear(names, f"{at}_mod.lin", 6 * wide, wide)
            linear(names, f"{at}_attn.qkv", 3 * wide, wide)
            linear(names, f"{at}_attn.proj", wide, wide)
            linear(names, f"{at}_mlp.0", 4 * wide, wide)
            linear(names, f"{at}_mlp.2", wide, 4 * wide)
            for kind in ("query", "key"):
                names[f"{at}_attn.norm.{kind}_norm.scale"] = (128,)
    for block in range(38):
        at = f"single_blocks.{block}"
        linear(names, f"{at}.modulation.lin", 3 * wide, wide)
        linear(names, f"{at}.linear1", 7 * wide, wide)
        linear(names, f"{at}.linear2", wide, 5 * wide)
        for kind in ("query", "key"):
            names[f"{at}.norm.{kind}_norm.scale"] = (128,)
    linear(names, "final_layer.linear", 64, wide)
    linear(names, "final_layer.adaLN_modulation.1", 2 * wide, wide)
    return names


def flux2() -> Shapes:
    """FLUX.2-dev as Black Forest Labs published it."""
    names: Shapes = {}
    wide = 6144

    def plain(name: str, out: int, inner: int) -> None:
        linear(names, name, out, inner, bias=False)

    plain("img_in", wide, 128)
    plain("txt_in", wide, 15360)
    for name in ("time_in", "guidance_in"):
        plain(f"{name}.in_layer", wide, 256)
        plain(f"{name}.out_layer", wide, wide)
    for name in ("double_stream_modulation_img", "double_stream_modulation_txt"):
        plain(f"{name}.lin", 6 * wide, wide)
    plain("single_stream_modulation.lin", 3 * wide, wide)
    for block in range(8):
        for stream in ("img", "txt"):
            at = f"double_blocks.{block}.{stream}"
            plain(f"{at}_attn.qkv", 3 * wide, wide)
            plain(f"{at}_attn.proj", wide, wide)
            plain(f"{at}_mlp.0", 6 * wide, wide)
            plain(f"{at}_mlp.2", wide, 3 * wide)
            for kind in ("query", "key"):
                names[f"{at}_attn.norm.{kind}_norm.scale"] = (128,)
    for block in range(48):
        at = f"single_blocks.{block}"
        plain(f"{at}.linear1", 9 * wide, wide)
        plain(f"{at}.linear2", wide, 4 * wide)
        for kind in ("query", "key"):
            names[f"{at}.norm.{kind}_norm.scale"] = (128,)
    plain("final_layer.linear", 128, wide)
    plain("final_layer.adaLN_modulation.1", 2 * wide, wide)
    return names


def wan(wide: int, inner: int, blocks: int, *, channels: int = 16, image: bool = False) -> Shapes:
    """Wan 2.1's and 2.2's transformers as Alibaba published them."""
    names: Shapes = {}
    out = 48 if channels == 48 else 16
    conv(names, "patch_embedding", wide, channels, 1, 2, 2)
    linear(names, "text_embedding.0", wide, 4096)
    linear(names, "text_embedding.2", wide, wide)
    linear(names, "time_embedding.0", wide, 256)
    linear(names, "time_embedding.2", wide, wide)
    linear(names, "time_projection.1", 6 * wide, wide)
    if image:
        norm(names, "img_emb.proj.0", 1280)
        linear(names, "img_emb.proj.1", 1280, 1280)
        linear(names, "img_emb.proj.3", wide, 1280)
        norm(names, "img_emb.proj.4", wide)
    for block in range(blocks):
        at = f"blocks.{block}"
        names[f"{at}.modulation"] = (1, 6, wide)
        norm(names, f"{at}.norm3", wide)
        linear(names, f"{at}.ffn.0", inner, wide)
        linear(names, f"{at}.ffn.2", wide, inner)
        for attention in ("self_attn", "cross_attn"):
            more = ["k_img", "v_img"] if image and attention == "cross_attn" else []
            for name in (*"qkvo", *more):
                linear(names, f"{at}.{attention}.{name}", wide, wide)
            for name in ("norm_q", "norm_k", *(["norm_k_img"] if more else [])):
                names[f"{at}.{attention}.{name}.weight"] = (wide,)
    names["head.modulation"] = (1, 2, wide)
    linear(names, "head.head", 4 * out, wide)
    return names


def hunyuan_video() -> Shapes:
    """HunyuanVideo's transformer as Tencent published it."""
    names: Shapes = {}
    wide = 3072
    conv(names, "img_in.proj", wide, 16, 1, 2, 2)
    for name in ("time_in", "guidance_in", "txt_in.t_embedder"):
        linear(names, f"{name}.mlp.0", wide, 256)
        linear(names, f"{name}.mlp.2", wide, wide)
    for name, first, last, inner in (
        ("vector_in", "in_layer", "out_layer", 768),
        ("txt_in.c_embedder", "linear_1", "linear_2", 4096),
    ):
        linear(names, f"{name}.{first}", wide, inner)
        linear(names, f"{name}.{last}", wide, wide)
    linear(names, "txt_in.input_embedder", wide, 4096)
    for block in range(2):
        at = f"txt_in.individual_token_refiner.blocks.{block}"
        norm(names, f"{at}.norm1", wide)
        norm(names, f"{at}.norm2", wide)
        linear(names, f"{at}.self_attn_qkv", 3 * wide, wide)
        linear(names, f"{at}.self_attn_proj", wide, wide)
        linear(names, f"{at}.mlp.fc1", 4 * wide, wide)
        linear(names, f"{at}.mlp.fc2", wide, 4 * wide)
        linear(names, f"{at}.adaLN_modulation.1", 2 * wide, wide)
    for block in range(20):
        for stream in ("img", "txt"):
            at = f"double_blocks.{block}.{stream}"
            linear(names, f"{at}_mod.linear", 6 * wide, wide)
            linear(names, f"{at}_attn_qkv", 3 * wide, wide)
            linear(names, f"{at}_attn_proj", wide, wide)
            linear(names, f"{at}_mlp.fc1", 4 * wide, wide)
            linear(names, f"{at}_mlp.fc2", wide, 4 * wide)
            names[f"{at}_attn_q_norm.weight"] = names[f"{at}_attn_k_norm.weight"] = (128,)
    for block in range(40):
        at = f"single_blocks.{block}"
        linear(names, f"{at}.modulation.linear", 3 * wide, wide)
        linear(names, f"{at}.linear1", 7 * wide, wide)
        linear(names, f"{at}.linear2", wide, 5 * wide)
        names[f"{at}.q_norm.weight"] = names[f"{at}.k_norm.weight"] = (128,)
    linear(names, "final_layer.linear", 64, wide)
    linear(names, "final_layer.adaLN_modulation.1", 2 * wide, wide)
    return names


def ltx_video() -> Shapes:
    """LTX-Video 0.9's transformer as Lightricks published it."""
    names: Shapes = {"scale_shift_table": (2, 2048)}
    wide = 2048
    linear(names, "patchify_proj", wide, 128)
    linear(names, "adaln_single.emb.timestep_embedder.linear_1", wide, 256)
    linear(names, "adaln_single.emb.timestep_embedder.linear_2", wide, wide)
    linear(names, "adaln_single.linear", 6 * wide, wide)
    linear(names, "caption_projection.linear_1", wide, 4096)
    linear(names, "caption_projection.linear_2", wide, wide)
    for block in range(28):
        at = f"transformer_blocks.{block}"
        names[f"{at}.scale_shift_table"] = (6, wide)
        for attention in ("attn1", "attn2"):
            for name in ("to_q", "to_k", "to_v", "to_out.0"):
                linear(names, f"{at}.{attention}.{name}", wide, wide)
            names[f"{at}.{attention}.q_norm.weight"] = (wide,)
            names[f"{at}.{attention}.k_norm.weight"] = (wide,)
        linear(names, f"{at}.ff.net.0.proj", 4 * wide, wide)
        linear(names, f"{at}.ff.net.2", wide, 4 * wide)
    linear(names, "proj_out", 128, wide)
    return names


def z_image() -> Shapes:
    """Z-Image as single files have it."""
    names: Shapes = {"x_pad_token": (1, 3840), "cap_pad_token": (1, 3840)}
    wide, inner = 3840, 10240
    linear(names, "x_embedder", wide, 64)
    linear(names, "t_embedder.mlp.0", 1024, 256)
    linear(names, "t_embedder.mlp.2", 256, 1024)
    names["cap_embedder.0.weight"] = (2560,)
    linear(names, "cap_embedder.1", wide, 2560)
    for lists, count in (("noise_refiner", 2), ("context_refiner", 2), ("layers", 30)):
        for block in range(count):
            at = f"{lists}.{block}"
            linear(names, f"{at}.attention.qkv", 3 * wide, wide, bias=False)
            linear(names, f"{at}.attention.out", wide, wide, bias=False)
            names[f"{at}.attention.q_norm.weight"] = (128,)
            names[f"{at}.attention.k_norm.weight"] = (128,)
            names[f"{at}.feed_forward.w1.weight"] = (inner, wide)
            names[f"{at}.feed_forward.w2.weight"] = (wide, inner)
            names[f"{at}.feed_forward.w3.weight"] = (inner, wide)
            for name in ("attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2"):
                names[f"{at}.{name}.weight"] = (wide,)
            if lists != "context_refiner":
                linear(names, f"{at}.adaLN_modulation.0", 4 * wide, 256)
    linear(names, "final_layer.linear", 64, wide)
    linear(names, "final_layer.adaLN_modulation.1", wide, 256)
    return names


def sd35_large() -> Shapes:
    """Stable Diffusion 3.5 large as Stability AI published it."""
    names: Shapes = {"pos_embed": (1, 192 * 192, 2432)}
    wide = 2432
    conv(names, "x_embedder.proj", wide, 16, 2, 2)
    linear(names, "context_embedder", wide, 4096)
    linear(names, "t_embedder.mlp.0", wide, 256)
    linear(names, "t_embedder.mlp.2", wide, wide)
    linear(names, "y_embedder.mlp.0", wide, 2048)
    linear(names, "y_embedder.mlp.2", wide, wide)
    for block in range(38):
        for stream in ("x_block", "context_block"):
            at = f"joint_blocks.{block}.{stream}"
            last = block == 37 and stream == "context_block"
            linear(names, f"{at}.attn.qkv", 3 * wide, wide)
            names[f"{at}.attn.ln_q.weight"] = names[f"{at}.attn.ln_k.weight"] = (64,)
            linear(names, f"{at}.adaLN_modulation.1", (2 if last else 6) * wide, wide)
            if not last:
                linear(names, f"{at}.attn.proj", wide, wide)
                linear(names, f"{at}.mlp.fc1", 4 * wide, wide)
                linear(names, f"{at}.mlp.fc2", wide, 4 * wide)
    linear(names, "final_layer.linear", 64, wide)
    linear(names, "final_layer.adaLN_modulation.1", 2 * wide, wide)
    return names


def unet(widths: tuple[int, ...], depths: tuple[int, ...], context: int, *, xl: bool) -> Shapes:
    """A U-Net of latent diffusion: SD 1.5's or SDXL's; `depths` of attention, 0 for none."""
    names: Shapes = {}
    base, time = widths[0], 4 * widths[0]
    linear(names, "time_embed.0", time, base)
    linear(names, "time_embed.2", time, time)
    if xl:
        linear(names, "label_emb.0.0", time, 2816)
        linear(names, "label_emb.0.2", time, time)
    conv(names, "input_blocks.0.0", base, 4, 3, 3)
    skips, number, width = [base], 1, base
    for level, (wide, depth) in enumerate(zip(widths, depths, strict=True)):
        for _ in range(2):
            _residual(names, f"input_blocks.{number}.0", width, wide, time)
            if depth:
                _attention(names, f"input_blocks.{number}.1", wide, depth, context, flat=xl)
            width = wide
            skips.append(width)
            number += 1
        if level < len(widths) - 1:
            conv(names, f"input_blocks.{number}.0.op", width, width, 3, 3)
            skips.append(width)
            number += 1
    _residual(names, "middle_block.0", width, width, time)
    _attention(names, "middle_block.1", width, depths[-1] or 1, context, flat=xl)
    _residual(names, "middle_block.2", width, width, time)
    number = 0
    for level, (wide, depth) in reversed(list(enumerate(zip(widths, depths, strict=True)))):
        for step in range(3):
            at = f"output_blocks.{number}"
            _residual(names, f"{at}.0", width + skips.pop(), wide, time)
            width = wide
            if depth:
                _attention(names, f"{at}.1", wide, depth, context, flat=xl)
            if level and step == 2:
                conv(names, f"{at}.{2 if depth else 1}.conv", wide, wide, 3, 3)
            number += 1
    norm(names, "out.0", base)
    conv(names, "out.2", 4, base, 3, 3)
    return names


def _residual(names: Shapes, at: str, inner: int, out: int, time: int) -> None:
    norm(names, f"{at}.in_layers.0", inner)
    conv(names, f"{at}.in_layers.2", out, inner, 3, 3)
    linear(names, f"{at}.emb_layers.1", out, time)
    norm(names, f"{at}.out_layers.0", out)
    conv(names, f"{at}.out_layers.3", out, out, 3, 3)
    if inner != out:
        conv(names, f"{at}.skip_connection", out, inner, 1, 1)


def _attention(names: Shapes, at: str, wide: int, depth: int, context: int, *, flat: bool) -> None:
    norm(names, f"{at}.norm", wide)
    for end in ("proj_in", "proj_out"):
        conv(names, f"{at}.{end}", wide, wide, *(() if flat else (1, 1)))
    for block in range(depth):
        inside = f"{at}.transformer_blocks.{block}"
        for attention, inner in (("attn1", wide), ("attn2", context)):
            linear(names, f"{inside}.{attention}.to_q", wide, wide, bias=False)
            linear(names, f"{inside}.{attention}.to_k", wide, inner, bias=False)
            linear(names, f"{inside}.{attention}.to_v", wide, inner, bias=False)
            linear(names, f"{inside}.{attention}.to_out.0", wide, wide)
        linear(names, f"{inside}.ff.net.0.proj", 8 * wide, wide)
        linear(names, f"{inside}.ff.net.2", wide, 4 * wide)
        for number in (1, 2, 3):
            norm(names, f"{inside}.norm{number}", wide)


def autoencoder(latent: int, *, quantised: bool) -> Shapes:
    """The VAE of latent diffusion (SD 1.5, SDXL) or of FLUX.1."""
    names: Shapes = {}
    widths = (128, 256, 512, 512)
    conv(names, "encoder.conv_in", 128, 3, 3, 3)
    width = 128
    for level, wide in enumerate(widths):
        for block in range(2):
            _vae_residual(names, f"encoder.down.{level}.block.{block}", width, wide)
            width = wide
        if level < 3:
            conv(names, f"encoder.down.{level}.downsample.conv", wide, wide, 3, 3)
    conv(names, "decoder.conv_in", 512, latent, 3, 3)
    for half in ("encoder", "decoder"):
        _vae_residual(names, f"{half}.mid.block_1", 512, 512)
        norm(names, f"{half}.mid.attn_1.norm", 512)
        for name in ("q", "k", "v", "proj_out"):
            conv(names, f"{half}.mid.attn_1.{name}", 512, 512, 1, 1)
        _vae_residual(names, f"{half}.mid.block_2", 512, 512)
    for level, wide in reversed(list(enumerate(widths))):
        for block in range(3):
            _vae_residual(names, f"decoder.up.{level}.block.{block}", width, wide)
            width = wide
        if level:
            conv(names, f"decoder.up.{level}.upsample.conv", wide, wide, 3, 3)
    norm(names, "encoder.norm_out", 512)
    conv(names, "encoder.conv_out", 2 * latent, 512, 3, 3)
    norm(names, "decoder.norm_out", 128)
    conv(names, "decoder.conv_out", 3, 128, 3, 3)
    if quantised:
        conv(names, "quant_conv", 2 * latent, 2 * latent, 1, 1)
        conv(names, "post_quant_conv", latent, latent, 1, 1)
    return names


def _vae_residual(names: Shapes, at: str, inner: int, out: int) -> None:
    norm(names, f"{at}.norm1", inner)
    conv(names, f"{at}.conv1", out, inner, 3, 3)
    norm(names, f"{at}.norm2", out)
    conv(names, f"{at}.conv2", out, out, 3, 3)
    if inner != out:
        conv(names, f"{at}.nin_shortcut", out, inner, 1, 1)


def wan_autoencoder() -> Shapes:
    """Wan 2.1's VAE as Alibaba published it."""
    names: Shapes = {}
    conv(names, "encoder.conv1", 96, 3, 3, 3, 3)
    conv(names, "decoder.conv1", 384, 16, 3, 3, 3)
    conv(names, "conv1", 32, 32, 1, 1, 1)
    conv(names, "conv2", 16, 16, 1, 1, 1)
    number, width = 0, 96
    for level, wide in enumerate((96, 192, 384, 384)):
        for _ in range(2):
            _wan_residual(names, f"encoder.downsamples.{number}", width, wide)
            number, width = number + 1, wide
        if level < 3:
            conv(names, f"encoder.downsamples.{number}.resample.1", wide, wide, 3, 3)
            if level:
                conv(names, f"encoder.downsamples.{number}.time_conv", wide, wide, 3, 1, 1)
            number += 1
    number = 0
    for level, (inner, wide) in enumerate(((384, 384), (192, 384), (192, 192), (96, 96))):
        width = inner
        for _ in range(3):
            _wan_residual(names, f"decoder.upsamples.{number}", width, wide)
            number, width = number + 1, wide
        if level < 3:
            conv(names, f"decoder.upsamples.{number}.resample.1", wide // 2, wide, 3, 3)
            if level < 2:
                conv(names, f"decoder.upsamples.{number}.time_conv", 2 * wide, wide, 3, 1, 1)
            number += 1
    for half, width, out in (("encoder", 384, 32), ("decoder", 96, 3)):
        for number in (0, 2):
            _wan_residual(names, f"{half}.middle.{number}", 384, 384)
        names[f"{half}.middle.1.norm.gamma"] = (384, 1, 1)
        conv(names, f"{half}.middle.1.to_qkv", 3 * 384, 384, 1, 1)
        conv(names, f"{half}.middle.1.proj", 384, 384, 1, 1)
        names[f"{half}.head.0.gamma"] = (width, 1, 1, 1)
        conv(names, f"{half}.head.2", out, width, 3, 3, 3)
    return names


def _wan_residual(names: Shapes, at: str, inner: int, out: int) -> None:
    names[f"{at}.residual.0.gamma"] = (inner, 1, 1, 1)
    conv(names, f"{at}.residual.2", out, inner, 3, 3, 3)
    names[f"{at}.residual.3.gamma"] = (out, 1, 1, 1)
    conv(names, f"{at}.residual.6", out, out, 3, 3, 3)
    if inner != out:
        conv(names, f"{at}.shortcut", out, inner, 1, 1, 1)


def clip(wide: int, blocks: int) -> Shapes:
    """CLIP's text model under the names of transformers 4 and of most files."""
    names: Shapes = {}
    names["text_model.embeddings.token_embedding.weight"] = (49408, wide)
    names["text_model.embeddings.position_embedding.weight"] = (77, wide)
    for block in range(blocks):
        at = f"text_model.encoder.layers.{block}"
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            linear(names, f"{at}.self_attn.{name}", wide, wide)
        norm(names, f"{at}.layer_norm1", wide)
        norm(names, f"{at}.layer_norm2", wide)
        linear(names, f"{at}.mlp.fc1", 4 * wide, wide)
        linear(names, f"{at}.mlp.fc2", wide, 4 * wide)
    norm(names, "text_model.final_layer_norm", wide)
    return names


def open_clip() -> Shapes:
    """OpenCLIP bigG's text half, as SDXL's single file has it."""
    names: Shapes = {}
    wide = 1280
    names["token_embedding.weight"] = (49408, wide)
    names["positional_embedding"] = (77, wide)
    for block in range(32):
        at = f"transformer.resblocks.{block}"
        names[f"{at}.attn.in_proj_weight"] = (3 * wide, wide)
        names[f"{at}.attn.in_proj_bias"] = (3 * wide,)
        linear(names, f"{at}.attn.out_proj", wide, wide)
        norm(names, f"{at}.ln_1", wide)
        norm(names, f"{at}.ln_2", wide)
        linear(names, f"{at}.mlp.c_fc", 4 * wide, wide)
        linear(names, f"{at}.mlp.c_proj", wide, 4 * wide)
    norm(names, "ln_final", wide)
    names["text_projection"] = (wide, wide)
    names["logit_scale"] = ()
    return names


def t5(vocabulary: int, *, every_bias: bool) -> Shapes:
    """T5-XXL's encoder (UMT5's has a table of distances in every block), in transformers' names."""
    names: Shapes = {"shared.weight": (vocabulary, 4096)}
    for block in range(24):
        at = f"encoder.block.{block}.layer"
        for name in "qkvo":
            names[f"{at}.0.SelfAttention.{name}.weight"] = (4096, 4096)
        if every_bias or not block:
            names[f"{at}.0.SelfAttention.relative_attention_bias.weight"] = (32, 64)
        names[f"{at}.0.layer_norm.weight"] = names[f"{at}.1.layer_norm.weight"] = (4096,)
        names[f"{at}.1.DenseReluDense.wi_0.weight"] = (10240, 4096)
        names[f"{at}.1.DenseReluDense.wi_1.weight"] = (10240, 4096)
        names[f"{at}.1.DenseReluDense.wo.weight"] = (4096, 10240)
    names["encoder.final_layer_norm.weight"] = (4096,)
    return names


def wan_umt5() -> Shapes:
    """UMT5-XXL's encoder as Alibaba published it beside Wan."""
    names: Shapes = {"token_embedding.weight": (256384, 4096), "norm.weight": (4096,)}
    for block in range(24):
        at = f"blocks.{block}"
        names[f"{at}.norm1.weight"] = names[f"{at}.norm2.weight"] = (4096,)
        for name in "qkvo":
            names[f"{at}.attn.{name}.weight"] = (4096, 4096)
        names[f"{at}.ffn.gate.0.weight"] = names[f"{at}.ffn.fc1.weight"] = (10240, 4096)
        names[f"{at}.ffn.fc2.weight"] = (4096, 10240)
        names[f"{at}.pos_embedding.embedding.weight"] = (32, 64)
    return names


def llama_cpp_t5() -> Shapes:
    """T5-XXL's encoder under the names that llama.cpp gives it in GGUF."""
    names: Shapes = {"token_embd.weight": (32128, 4096), "enc.output_norm.weight": (4096,)}
    for block in range(24):
        at = f"enc.blk.{block}"
        for name in ("attn_q", "attn_k", "attn_v", "attn_o"):
            names[f"{at}.{name}.weight"] = (4096, 4096)
        names[f"{at}.attn_norm.weight"] = names[f"{at}.ffn_norm.weight"] = (4096,)
        names[f"{at}.ffn_gate.weight"] = names[f"{at}.ffn_up.weight"] = (10240, 4096)
        names[f"{at}.ffn_down.weight"] = (4096, 10240)
    names["enc.blk.0.attn_rel_b.weight"] = (32, 64)
    return names


_LTX_VAE = {
    "encoder.down_blocks.0.resnets": "encoder.down_blocks.0.res_blocks",
    "encoder.down_blocks.0.downsamplers.0": "encoder.down_blocks.1",
    "encoder.down_blocks.0.conv_out": "encoder.down_blocks.2",
    "encoder.down_blocks.1.resnets": "encoder.down_blocks.3.res_blocks",
    "encoder.down_blocks.1.downsamplers.0": "encoder.down_blocks.4",
    "encoder.down_blocks.1.conv_out": "encoder.down_blocks.5",
    "encoder.down_blocks.2.resnets": "encoder.down_blocks.6.res_blocks",
    "encoder.down_blocks.2.downsamplers.0": "encoder.down_blocks.7",
    "encoder.down_blocks.3.resnets": "encoder.down_blocks.8.res_blocks",
    "encoder.mid_block.resnets": "encoder.down_blocks.9.res_blocks",
    "decoder.mid_block.resnets": "decoder.up_blocks.0.res_blocks",
    "decoder.up_blocks.0.resnets": "decoder.up_blocks.1.res_blocks",
    "decoder.up_blocks.1.upsamplers.0": "decoder.up_blocks.2",
    "decoder.up_blocks.1.resnets": "decoder.up_blocks.3.res_blocks",
    "decoder.up_blocks.2.conv_in": "decoder.up_blocks.4",
    "decoder.up_blocks.2.upsamplers.0": "decoder.up_blocks.5",
    "decoder.up_blocks.2.resnets": "decoder.up_blocks.6.res_blocks",
    "decoder.up_blocks.3.conv_in": "decoder.up_blocks.7",
    "decoder.up_blocks.3.upsamplers.0": "decoder.up_blocks.8",
    "decoder.up_blocks.3.resnets": "decoder.up_blocks.9.res_blocks",
    "latents_mean": "per_channel_statistics.mean-of-means",
    "latents_std": "per_channel_statistics.std-of-means",
}


def ltx_autoencoder(theirs: Shapes) -> Shapes:
    """LTX-Video 0.9's VAE as Lightricks published it, from diffusers' names of the same tensors."""
    names: Shapes = {}
    for name, shape in theirs.items():
        spelled = next(
            (new + name[len(old) :] for old, new in _LTX_VAE.items() if name.startswith(old)), name
        )
        spelled = spelled.replace("conv_shortcut.conv.", "conv_shortcut.")
        names[spelled.replace("norm3.", "norm3.norm.")] = shape
    return names
