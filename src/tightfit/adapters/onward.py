"""VAEs of the Wan kind, walked through time piece by piece: their feature cache goes with them.

Their own `encode` and `decode` take a clip from its first frame on and drop the cache at the end.
Here it stays between two pieces, so that a clip in pieces is the clip, up to rounding.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from tightfit.run.delivery import Leaving
from tightfit.run.vae import Direction

_GROUP = 4
"""Frames of one latent frame, behind the first."""


def can_go_on(module: nn.Module) -> bool:
    """Whether `module` is such a VAE, and folds no pixels into channels on the way."""
    vae: Any = module
    parts = (getattr(vae, name, None) for name in ("encoder", "decoder"))
    config = getattr(vae, "config", {})
    return (
        all(part is not None and "feat_cache" in _arguments(part) for part in parts)
        and callable(getattr(vae, "clear_cache", None))
        and not config.get("patch_size")
    )


def go_on(
    module: nn.Module, direction: Direction, piece: torch.Tensor, first: bool
) -> torch.Tensor:
    """Code a piece [B,C,T,H,W] that follows the last one, or begins a clip.

    Samples are 4n frames, or 1 + 4n that begin a clip; latents are any number of frames. The
    latent is the posterior's mode.
    """
    vae: Any = module
    if first:
        vae.clear_cache()
    if direction == "encode":
        lead = 1 if first else 0
        groups = [piece[:, :, :1]] if first else []
        groups += torch.split(piece[:, :, lead:], _GROUP, dim=2) if piece.shape[2] > lead else []
        steps = [vae.encoder(group, feat_cache=vae._enc_feat_map, feat_idx=[0]) for group in groups]
        mean: torch.Tensor = vae.quant_conv(torch.cat(steps, dim=2)).chunk(2, dim=1)[0]
        return mean.contiguous()
    told = {"first_chunk": True} if "first_chunk" in _arguments(vae.decoder) else {}
    steps = []
    for latent in torch.split(vae.post_quant_conv(piece), 1, dim=2):
        begins = told if first and not steps else {}
        steps.append(vae.decoder(latent, feat_cache=vae._feat_map, feat_idx=[0], **begins))
    samples = torch.cat(steps, dim=2)
    return samples.clamp_(-1.0, 1.0)


@contextmanager
def steps_told(
    module: nn.Module, direction: Direction, tell: Callable[[torch.Tensor], None]
) -> Iterator[None]:
    """While inside, `tell` is given each piece that the encoder will read or the decoder made.

    Whole pieces of the clip, in order: what is read may be filled then; what was made lies on the
    host, as it will be in the result. On a card, one is told when the next was begun, and the last
    one at the end.
    """
    vae: Any = module
    leaving = Leaving(lambda made: tell(made.clamp(-1.0, 1.0)))

    def before(part: nn.Module, given: tuple[torch.Tensor, ...], named: dict[str, Any]) -> None:
        del part
        tell(given[0] if given else named["x"])

    def after(part: nn.Module, given: Any, made: torch.Tensor) -> None:
        del part, given
        leaving.put(made.detach())

    hook = (
        vae.encoder.register_forward_pre_hook(before, with_kwargs=True)
        if direction == "encode"
        else vae.decoder.register_forward_hook(after)
    )
    try:
        yield
    finally:
        hook.remove()
    leaving.end()


def _arguments(part: nn.Module) -> set[str]:
    return set(inspect.signature(part.forward).parameters)
