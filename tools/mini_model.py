"""The model that `train_mini_vae.py` trains: its start, its passes, and what it is to minimise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from mini_pictures import TEMPORAL_RATIO
from torch import Tensor

if TYPE_CHECKING:
    from diffusers import AutoencoderKLWan

BASE_DIM = 8
KL_WEIGHT = 1e-4
COLOUR_WEIGHT = 0.5
COLOUR_BLOCK = 32  # pixels to a side


def count_cached_convolutions(module: torch.nn.Module) -> int:
    """Return the number of slots that a module's feature cache needs."""
    from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d

    return sum(isinstance(part, WanCausalConv3d) for part in module.modules())


def encode_moments(
    vae: AutoencoderKLWan, clips: Tensor, frames_per_call: int = TEMPORAL_RATIO
) -> tuple[Tensor, Tensor]:
    """Return mean and log-variance of the latents, chunk by chunk as ``vae.encode`` works.

    The result does not depend on ``frames_per_call``, a multiple of 4: the convolutions are causal
    and their cache joins the chunks. But few large chunks take fewer kernels.
    """
    cache: list[Tensor | None] = [None] * count_cached_convolutions(vae.encoder)
    chunks = [clips[:, :, :1], *torch.split(clips[:, :, 1:], frames_per_call, dim=2)]
    parts = [
        vae.encoder(chunk, feat_cache=cache, feat_idx=[0]) for chunk in chunks if chunk.numel()
    ]
    mean, log_variance = vae.quant_conv(torch.cat(parts, dim=2)).chunk(2, dim=1)
    return mean, log_variance.clamp(-30.0, 20.0)


def decode_unclamped(
    vae: AutoencoderKLWan, latents: Tensor, frames_per_call: int = TEMPORAL_RATIO
) -> Tensor:
    """Decode as ``vae.decode`` does, without the final clamp, which would stop gradients."""
    cache: list[Tensor | None] = [None] * count_cached_convolutions(vae.decoder)
    hidden = vae.post_quant_conv(latents)
    rest = torch.split(hidden[:, :, 1:], frames_per_call // TEMPORAL_RATIO, dim=2)
    parts = [vae.decoder(hidden[:, :, :1], feat_cache=cache, feat_idx=[0], first_chunk=True)]
    parts += [vae.decoder(chunk, feat_cache=cache, feat_idx=[0]) for chunk in rest if chunk.numel()]
    return torch.cat(parts, dim=2)


def lean_norm(self: Any, hidden: Tensor) -> Tensor:
    """Compute what ``WanRMS_norm.forward`` does in fewer passes over memory."""
    scale: Tensor = self.gamma * self.scale
    return F.normalize(hidden, dim=1) * scale


def lean_convolution(self: Any, hidden: Tensor, cache: Tensor | None = None) -> Tensor:
    """Compute what ``WanCausalConv3d.forward`` does, but let cuDNN pad the pictures."""
    side, _, top, _, before, _ = self._padding
    if before:
        known = [] if cache is None else [cache]
        missing = before - sum(part.shape[2] for part in known)
        blank = torch.zeros_like(hidden[:, :, :1])
        hidden = torch.cat([*[blank] * missing, *known, hidden], dim=2)
    return F.conv3d(hidden, self.weight, self.bias, self.stride, (0, top, side))


def make_lean() -> None:
    """Put the two lean functions in the place of diffusers' own, for this process."""
    from diffusers.models.autoencoders import autoencoder_kl_wan

    autoencoder_kl_wan.WanRMS_norm.forward = lean_norm
    autoencoder_kl_wan.WanCausalConv3d.forward = lean_convolution


def objective(
    vae: AutoencoderKLWan, clips: Tensor, frames_per_call: int = TEMPORAL_RATIO
) -> tuple[Tensor, Tensor]:
    """Return the loss, and [loss, mean squared error, KL, colour error] for the log.

    L1 keeps edges, L2 is what PSNR measures, the differences between neighbouring pixels keep
    texture. The colour error is that of the mean of each block of each frame; it is what a slow
    drift adds up to. The KL term is too small to cost quality; it only fixes the scale of the
    latents, which the reconstruction leaves free, near one.
    """
    mean, log_variance = encode_moments(vae, clips, frames_per_call)
    latents = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
    error = decode_unclamped(vae, latents, frames_per_call) - clips
    squared = error.square().mean()
    across = (error[..., 1:] - error[..., :-1]).abs().mean()
    down = (error[..., 1:, :] - error[..., :-1, :]).abs().mean()
    rows, columns = (side // COLOUR_BLOCK for side in error.shape[-2:])
    blocks = error.reshape(*error.shape[:3], rows, COLOUR_BLOCK, columns, COLOUR_BLOCK)
    colour = blocks.mean(dim=(4, 6)).abs().mean()
    kl = 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).mean()
    loss = (
        error.abs().mean()
        + 4.0 * squared
        + 0.2 * (across + down)
        + COLOUR_WEIGHT * colour
        + KL_WEIGHT * kl
    )
    return loss, torch.stack([loss, squared, kl, colour]).detach()


def new_model(device: torch.device) -> AutoencoderKLWan:
    """Return an untrained model.

    The convolutions start out preserving variance, without biases. PyTorch's own start damps the
    picture in each of the many layers that it must cross and wastes the first hundreds of steps.
    The latents start with little noise.
    """
    from diffusers import AutoencoderKLWan

    vae = AutoencoderKLWan(base_dim=BASE_DIM)
    for name, module in vae.named_modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.Conv3d) and module.bias is not None:
            gain = 0.5 if name.endswith("conv2") else 1.0  # the end of a residual branch
            torch.nn.init.normal_(module.weight, std=gain / math.sqrt(module.weight[0].numel()))
            torch.nn.init.zeros_(module.bias)
    with torch.no_grad():
        vae.quant_conv.weight[vae.z_dim :] *= 0.1
        vae.quant_conv.bias[vae.z_dim :] = -6.0
    return vae.to(device)
