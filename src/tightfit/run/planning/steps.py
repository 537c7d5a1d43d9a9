"""Which sizes a network takes: sides and frames come in steps, by its class. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tightfit.errors import UsageError
from tightfit.plan.size import Size


@dataclass(frozen=True)
class Steps:
    """What sizes a network takes.

    Attributes:
        side: width and height are multiples of this; of a VAE, its pixels per latent pixel.
        frames: a clip has 1 + a multiple of this; None for a network of pictures.
        largest: pixels that a side can have where a position table ends; None is no end.
        cuts_time: a clip can be taken in shorter pieces, so that less is needed at once.
    """

    side: int = 1
    frames: int | None = 1
    largest: int | None = None
    cuts_time: bool = False

    @property
    def makes_clips(self) -> bool | None:
        """Whether frames are more than so many pictures to it; None for what sees no picture."""
        return None if self == ANY else self.frames is not None

    def cast(self, size: Size) -> Size:
        """The nearest size that is taken: sides and frames are padded up, never cut."""
        lead = size.frames - 1
        return replace(
            size,
            width=-(-size.width // self.side) * self.side,
            height=-(-size.height // self.side) * self.side,
            frames=1 + -(-lead // (self.frames or 1)) * (self.frames or 1),
        )

    def check(self, size: Size, name: str) -> None:
        """Refuse sides beyond the position table of `name`. Raises `UsageError`."""
        longer = max(size.width, size.height)
        if self.largest is not None and longer > self.largest:
            raise UsageError(
                f"{name} takes sides of up to {self.largest} pixels, and {size.width}x"
                f"{size.height} was asked for."
            )


ANY = Steps()
"""Takes every size, as text encoders and unknown networks do as far as we know."""
_PICTURES = Steps(16, None)
_BY_NAME = {
    "wan2.2-ti2v-5b/transformer": Steps(32, 4, 32768),
    "wan2.2-vae": Steps(16, 4),
}
_BY_CLASS = {
    "FluxTransformer2DModel": _PICTURES,
    "Flux2Transformer2DModel": _PICTURES,
    "QwenImageTransformer2DModel": _PICTURES,
    "UNet2DConditionModel": Steps(8, None),
    "ZImageTransformer2DModel": Steps(16, None, 8192),
    "SD3Transformer2DModel": Steps(16, None, 3072),
    "WanTransformer3DModel": Steps(16, 4, 16384),
    "HunyuanVideoTransformer3DModel": Steps(16, 4),
    "LTXVideoTransformer3DModel": Steps(32, 8),
    "AutoencoderKL": Steps(8, None),
    "AutoencoderKLFlux2": Steps(8, None),
    "AutoencoderKLWan": Steps(8, 4),
    "AutoencoderKLQwenImage": Steps(8, 4),
    "AutoencoderKLHunyuanVideo": Steps(8, 4, cuts_time=True),
    "AutoencoderKLLTXVideo": Steps(32, 8, cuts_time=True),
}


def steps_of(name: str, class_name: str) -> Steps:
    """Of an architecture that `weigh.recognise` knows."""
    return _BY_NAME.get(name) or _BY_CLASS.get(class_name, ANY)
