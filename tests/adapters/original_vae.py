"""The names that picture VAEs were published under, before diffusers gave them its own."""

from __future__ import annotations

from torch import nn


def original_names(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """The names and shapes in the original file of a diffusers VAE of four stages."""
    names = {}
    for key, value in module.state_dict().items():
        new = key
        for at in range(4):
            up = 3 - at
            new = new.replace(f"up_blocks.{at}.resnets.", f"up.{up}.block.")
            new = new.replace(f"up_blocks.{at}.upsamplers.0.", f"up.{up}.upsample.")
            new = new.replace(f"down_blocks.{at}.resnets.", f"down.{at}.block.")
            new = new.replace(f"down_blocks.{at}.downsamplers.0.", f"down.{at}.downsample.")
        for at in range(2):
            new = new.replace(f"mid_block.resnets.{at}.", f"mid.block_{at + 1}.")
        new = new.replace("mid_block.attentions.0.", "mid.attn_1.")
        new = new.replace("conv_norm_out", "norm_out").replace("conv_shortcut", "nin_shortcut")
        shape = tuple(value.shape)
        for ours, theirs in (
            ("group_norm", "norm"),
            ("to_q", "q"),
            ("to_k", "k"),
            ("to_v", "v"),
            ("to_out.0", "proj_out"),
        ):
            if f"attn_1.{ours}." in new:
                new = new.replace(f"attn_1.{ours}.", f"attn_1.{theirs}.")
                if new.endswith("weight") and ours != "group_norm":
                    shape = (*shape, 1, 1)
        names[new] = shape
    return names
