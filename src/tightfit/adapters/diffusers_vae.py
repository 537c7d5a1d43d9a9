"""A diffusers VAE as a `Vae`: the calls, the cache it keeps, and its own tiling turned off."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from tightfit.adapters.onward import can_go_on, go_on, steps_told
from tightfit.adapters.traits import traits_of
from tightfit.run.vae import Vae
from tightfit.weigh import identity, weights

_OWN_TILING = ("use_tiling", "use_slicing", "use_framewise_encoding", "use_framewise_decoding")
_CACHES = ("_feat_map", "_enc_feat_map")


def adapt(module: nn.Module, *, random: bool = False, hashed: bool = True) -> Vae:
    """Wrap a VAE module of diffusers; the module itself is not changed.

    With `hashed`, its weights are read once, to tell it from others.

    Raises `InputError` for a class that is not supported. The latent is the posterior's mode in
    the VAE's raw space.
    """
    vae: Any = module
    config = getattr(module, "config", {})
    traits = traits_of(type(module).__name__, config)
    conditioned = config.get("timestep_conditioning", False)

    def encode(samples: torch.Tensor) -> torch.Tensor:
        with _whole(module):
            mode: torch.Tensor = vae.encode(samples, return_dict=False)[0].mode()
        return mode

    def moments(samples: torch.Tensor) -> torch.Tensor:
        with _whole(module):
            posterior = vae.encode(samples, return_dict=False)[0]
        return torch.cat([posterior.mean, posterior.logvar], dim=1)

    def decode(latent: torch.Tensor) -> torch.Tensor:
        told = (latent.new_zeros(len(latent)),) if conditioned else ()  # as LTX's pipeline does
        with _whole(module):
            samples: torch.Tensor = vae.decode(latent, *told, return_dict=False)[0]
        return samples

    return Vae(
        module,
        traits,
        encode,
        decode,
        moments=moments,
        reset=lambda: _reset(module),
        onward=partial(go_on, module) if can_go_on(module) else None,
        steps=partial(steps_told, module) if can_go_on(module) else None,
        dtype=next(weights(module)).tensor.dtype,
        identity=weights_hash(module) if hashed else None,
        random=random,
    )


def weights_hash(module: nn.Module) -> str | None:
    """SHA-256 over names, shapes, dtypes and bytes of all weights, ties once; hexadecimal.

    The same wherever the weights lie; None on the meta device, where they have no bytes.
    """
    digest = hashlib.sha256()
    seen = set()
    for held in sorted(weights(module), key=lambda held: held.path):
        if held.tensor.device.type == "meta":
            return None
        key = identity(held.tensor)
        digest.update(f"{held.path} {tuple(held.tensor.shape)} {held.tensor.dtype}".encode())
        if key not in seen:
            seen.add(key)
            flat = held.tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def _whole(module: nn.Module) -> Iterator[None]:
    """While inside, the VAE runs what it is given in one piece: the tiling is ours."""
    before = {name: vars(module)[name] for name in _OWN_TILING if name in vars(module)}
    for name in before:
        setattr(module, name, False)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def _reset(module: nn.Module) -> None:
    """Drop the feature cache that causal VAEs keep; a failed call leaves it filled."""
    for name in _CACHES:
        kept = vars(module).get(name)
        if isinstance(kept, list):
            setattr(module, name, [None] * len(kept))
