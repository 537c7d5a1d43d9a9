"""One call on a part, as its pipeline makes it: true shapes, on whatever device the module is."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tightfit.adapters.diffusers_vae import adapt
from tightfit.adapters.known.asks import Ask, Fill
from tightfit.adapters.known.denoiser_calls import DENOISE_CALLS
from tightfit.adapters.known.encoder_calls import ENCODE_CALLS
from tightfit.adapters.known.sizes import cast_sizes, grid_of, not_predicted, seq_lengths
from tightfit.adapters.parts import DECODE, DENOISE, Part, stages_of
from tightfit.errors import UsageError
from tightfit.plan.size import Size
from tightfit.run.planning.weighed import passes
from tightfit.run.vae import Vae
from tightfit.weigh import weights

_DOUBLED = (
    "UNet2DConditionModel",
    "LTXVideoTransformer3DModel",
    "ZImageTransformer2DModel",
    "SD3Transformer2DModel",
)


def call_of(
    part: Part, module: nn.Module, stage: str, size: Size, *, dtype: torch.dtype
) -> Callable[[], object]:
    """A call without arguments that makes inputs on the device of `module` and runs `stage`.

    `size` is cast first (`cast_sizes`). Inputs are made inside the call, so what it holds at its
    peak counts them; they are the same each time, and the caller's random state stays. Guidance is
    what the pipeline does by default: SD, SDXL, SD3, LTX and Z-Image run prompt and negative prompt
    as one batch of twice the size; Wan and Qwen-Image one after the other, of which this is one
    (`passes_of`); FLUX and HunyuanVideo are told the strength. A text encoder is given `size.batch`
    prompts at once.

    Raises `UsageError` for a stage the part does not have, and `InputError` for a class whose way
    of being called is not known here.
    """
    if stage not in stages_of(part):
        raise UsageError(f"`{part.spec}` does not {stage}: {' or '.join(stages_of(part))}.")
    cast = cast_sizes(part, size)
    fill = Fill(next(weights(module)).tensor.device, dtype)
    if part.stage == DECODE:
        return _repeatable(_vae_call(adapt(module), stage, cast, fill), fill)
    table = DENOISE_CALLS if part.stage == DENOISE else ENCODE_CALLS
    run = table.get(part.class_name)
    if run is None:
        raise not_predicted(part.class_name, table)
    batch = cast.batch * (2 if part.class_name in _DOUBLED else 1)
    grid = grid_of(part) if part.stage == DENOISE else None
    ask = Ask(module, fill, batch, seq_lengths(part, cast).text, cast, grid)
    return _repeatable(lambda: run(ask), fill)


def passes_of(part: Part) -> int:
    """Forwards of a denoiser in one step: 2 where a negative prompt has one of its own."""
    return passes(part.class_name)


def _repeatable(call: Callable[[], object], fill: Fill) -> Callable[[], object]:
    def run() -> object:
        fill.restart()
        with torch.no_grad():
            return call()

    return run


def _vae_call(vae: Vae, stage: str, size: Size, fill: Fill) -> Callable[[], object]:
    """A VAE of pictures takes each frame as an item."""
    traits = vae.traits
    samples = (size.frames, size.height, size.width)[-traits.axes :]
    batch = size.batch * (size.frames if traits.axes == 2 else 1)
    decodes = stage == DECODE
    channels = traits.latent_channels if decodes else traits.channels
    shape = (batch, channels, *(traits.latent_sizes(samples) if decodes else samples))
    run = vae.decode if decodes else vae.encode

    def call() -> object:
        try:
            return run(fill.noise(*shape))
        finally:
            vae.reset()

    return call
