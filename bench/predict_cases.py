"""What `predict.py` predicts: networks, their stages, a small size to learn on, and other sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tightfit.plan.size import Size

EVERY = ("native", "async", "expandable")
NATIVE = ("native",)
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True)
class Target:
    """A size that is predicted, and under which allocators."""

    size: Size
    allocators: tuple[str, ...] = NATIVE


@dataclass(frozen=True)
class Case:
    """One stage of one network.

    Attributes:
        network: behind ``random:``, such as ``flux-vae`` or ``sdxl/unet``.
        stage: ``encode``, ``decode`` or ``denoise``.
        small: what is run to calibrate; a quarter of the pixels of any target, or fewer.
        targets: what is predicted from it.
        dtype: one of `DTYPES`.
    """

    network: str
    stage: str
    small: Size
    targets: tuple[Target, ...]
    dtype: str = "bf16"

    def job(self, size: Size, allocator: str) -> str:
        """The name of its rows; no name begins with another."""
        return f"predict {self.network} {self.stage} {_text(size)} {self.dtype} {allocator}"

    def under(self, allocator: str) -> Iterator[tuple[str, Size]]:
        """Name and size of each job under `allocator`."""
        for target in self.targets:
            if allocator in target.allocators:
                yield self.job(target.size, allocator), target.size


def _text(size: Size) -> str:
    """Width x height of a picture, frames x height x width of a clip."""
    if size.frames == 1:
        return f"{size.width}x{size.height}"
    return f"{size.frames}x{size.height}x{size.width}"


def _square(*sides: int, allocators: tuple[str, ...] = NATIVE) -> tuple[Target, ...]:
    return tuple(Target(Size(side, side), allocators) for side in sides)


def _clip(frames: int, height: int, width: int, allocators: tuple[str, ...] = NATIVE) -> Target:
    return Target(Size(width, height, frames), allocators)


def _size(frames: int, height: int, width: int) -> Size:
    return Size(width, height, frames)


def _of_pictures(network: str, *more: int) -> tuple[Case, ...]:
    small = Size(512, 512)
    return (
        Case(network, "decode", small, _square(*more)),
        Case(network, "encode", small, _square(more[-1])),
    )


_512 = Size(512, 512)
_CHUNKS = _size(9, 256, 256)  # three latent frames: the steady state of what walks through time
_MOTION = _size(17, 240, 416)

FULL = (
    Case("flux-vae", "decode", _512, (*_square(1024, 4096), *_square(2048, allocators=EVERY))),
    Case("flux-vae", "encode", _512, (*_square(2048, allocators=EVERY), *_square(4096))),
    *_of_pictures("flux.2-vae", 1024, 2048),
    *_of_pictures("sdxl-vae", 1024, 2048),
    Case("wan2.1-vae", "decode", _CHUNKS, (_clip(81, 480, 832, EVERY), _clip(81, 720, 1280))),
    Case("wan2.1-vae", "encode", _CHUNKS, (_clip(81, 480, 832, EVERY), _clip(81, 720, 1280))),
    Case("wan2.1-vae", "decode", _CHUNKS, (_clip(13, 768, 768, EVERY),), "fp16"),
    Case("wan2.1-vae", "encode", _CHUNKS, (_clip(13, 768, 768, EVERY),), "fp16"),
    Case("qwen-image-vae", "decode", _512, (*_square(1328, allocators=EVERY), *_square(2048))),
    Case("qwen-image-vae", "encode", _512, _square(1328, 2048)),
    Case("ltx-video-vae", "decode", _size(25, 256, 384), (_clip(161, 512, 768, EVERY),)),
    Case("ltx-video-vae", "encode", _size(25, 256, 384), (_clip(161, 512, 768),)),
    Case("wan2.2-vae", "decode", _CHUNKS, (_clip(33, 704, 1280),)),
    Case("wan2.2-vae", "encode", _CHUNKS, (_clip(33, 704, 1280),)),
    Case("sdxl/unet", "denoise", _512, (*_square(1024, allocators=EVERY), *_square(2048))),
    Case(
        "flux.1-dev/transformer",
        "denoise",
        _512,
        (*_square(1024, allocators=EVERY), *_square(2048)),
    ),
    Case("wan2.1-t2v-1.3b/transformer", "denoise", _MOTION, (_clip(81, 480, 832, EVERY),)),
    Case("qwen-image/transformer", "denoise", _512, _square(1328, 2048)),
    Case("flux.2-dev/transformer", "denoise", _512, _square(1024, 2048)),
    Case(
        "wan2.1-t2v-14b/transformer",
        "denoise",
        _MOTION,
        (_clip(81, 480, 832), _clip(81, 720, 1280)),
    ),
    Case(
        "hunyuan-video-vae",
        "decode",
        _size(17, 256, 256),
        (_clip(33, 480, 832, EVERY), _clip(65, 480, 832)),
    ),
    Case(
        "hunyuan-video-vae",
        "encode",
        _size(17, 256, 256),
        (_clip(33, 480, 832), _clip(65, 480, 832)),
    ),
)
"""In the order in which they run: what takes most of the card comes last."""

MINI = (
    Case("flux-vae-mini", "decode", Size(64, 64), _square(128, allocators=EVERY), "fp32"),
    Case("flux-vae-mini", "encode", Size(64, 64), _square(128, 192), "fp32"),
    Case("wan2.1-vae-mini", "decode", _size(5, 32, 32), (_clip(9, 64, 64),), "fp32"),
    Case("sdxl-mini/unet", "denoise", Size(128, 128), _square(256), "bf16"),
    Case(
        "wan2.1-t2v-1.3b-mini/transformer",
        "denoise",
        _size(5, 64, 64),
        (_clip(9, 128, 128, EVERY),),
        "fp32",
    ),
    Case("qwen-image-mini/transformer", "denoise", Size(128, 128), _square(256), "fp32"),
)
"""The same steps where there is no GPU."""
