"""What a picture or a clip is asked for, and how a pipeline of diffusers is told."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from tightfit.errors import UsageError

_NEEDS_IMAGE = ("Img2Img", "Inpaint", "ImageToVideo", "Image2Video")
_TRUE_GUIDANCE = "true_cfg_scale"
_RATES = {"WanPipeline": 16, "WanImageToVideoPipeline": 16, "WanVideoToVideoPipeline": 16}
_USUAL_RATE = 24
_MOST_STEPS = 10_000


@dataclass(frozen=True)
class Order:
    """One picture or clip; what is None is left to the pipeline.

    Attributes:
        prompt, negative: texts.
        width, height, frames: in pixels, and of a clip.
        fps: of a clip.
        steps: of denoising.
        guidance: how strongly the prompt counts.
        image, mask: pictures of Pillow, to start from and where to paint (white).
        strength: how much of `image` is made anew, above 0 and up to 1.
    """

    prompt: str
    negative: str | None = None
    width: int | None = None
    height: int | None = None
    frames: int | None = None
    fps: Fraction | None = None
    steps: int | None = None
    guidance: float | None = None
    image: Any = None
    mask: Any = None
    strength: float | None = None

    def __post_init__(self) -> None:
        """Refuse what no pipeline could mean."""
        if self.steps is not None and not 1 <= self.steps <= _MOST_STEPS:
            raise UsageError(f"--steps `{self.steps}` is out of range: use 1 to {_MOST_STEPS}.")
        if self.guidance is not None and not 0 <= self.guidance <= 1000:
            raise UsageError(f"--guidance `{self.guidance:g}` is out of range: use 0 to 1000.")
        if self.mask is not None and self.image is None:
            raise UsageError("--mask says where --image is painted anew: give both.")
        if self.strength is not None:
            if self.image is None:
                raise UsageError("--strength is of --image: give both, or neither.")
            if not 0 < self.strength <= 1:
                raise UsageError(
                    f"--strength `{self.strength:g}` is out of range: use above 0 (nothing "
                    "changes) up to 1 (all is new)."
                )
        if self.mask is not None and self.mask.size != self.image.size:
            raise UsageError(
                f"--mask is {_sized(self.mask)}, and --image is {_sized(self.image)}: make them "
                "the same size."
            )


@dataclass(frozen=True)
class Speech:
    """How one class of pipeline is spoken to.

    Attributes:
        name: of the class.
        takes: its call's arguments, with their defaults.
    """

    name: str
    takes: Mapping[str, Any]

    @classmethod
    def of(cls, pipeline: type) -> Speech:
        """From the signature of its call."""
        call = inspect.signature(pipeline.__call__)
        return cls(
            pipeline.__name__, {name: each.default for name, each in call.parameters.items()}
        )

    @property
    def makes_clips(self) -> bool:
        """Whether it makes clips rather than pictures."""
        return "num_frames" in self.takes

    @property
    def at_once(self) -> str | None:
        """The argument for how many are made in one call; None where it makes one."""
        names = ("num_images_per_prompt", "num_videos_per_prompt")
        return next((name for name in names if name in self.takes), None)

    def rate(self, order: Order) -> Fraction | None:
        """Frames per second of what it makes; None for pictures."""
        if not self.makes_clips:
            return None
        return order.fps or Fraction(
            self.takes.get("frame_rate") or _RATES.get(self.name, _USUAL_RATE)
        )

    def check(self, order: Order) -> None:
        """Refuse what this class cannot do. Raises `UsageError`."""
        if not self.makes_clips and order.frames not in (None, 1):
            raise UsageError(f"{self.name} makes pictures: leave out --frames {order.frames}.")
        if not self.makes_clips and order.fps is not None:
            raise UsageError(f"{self.name} makes pictures: leave out --fps.")
        if order.negative is not None and "negative_prompt" not in self.takes:
            raise UsageError(f"{self.name} takes no negative prompt: leave out --negative.")
        if order.negative is not None and self._negative_sleeps(order):
            raise UsageError(
                f"{self.name} looks at --negative with a guidance above 1 alone: give "
                "--guidance, such as 4."
            )
        if order.guidance is not None and self._guided(order) is None:
            raise UsageError(f"{self.name} takes no guidance: leave out --guidance.")
        if order.image is None and any(mark in self.name for mark in _NEEDS_IMAGE):
            raise UsageError(f"{self.name} starts from a picture: give --image.")
        for argument, option, value in (
            ("image", "--image", order.image),
            ("mask_image", "--mask", order.mask),
            ("strength", "--strength", order.strength),
        ):
            if value is not None and argument not in self.takes:
                raise UsageError(f"{self.name} takes no {option}: leave it out.")
        if order.image is not None and "strength" in self.takes:
            strength = self.takes["strength"] if order.strength is None else order.strength
            steps = order.steps or self._default("num_inference_steps") or 1
            if int(steps * strength) < 1:
                raise UsageError(
                    f"--strength {strength:g} of {steps} steps leaves none: use "
                    f"{1 / steps:.2g} or more, or more steps."
                )

    def arguments(self, order: Order, generators: Sequence[torch.Generator]) -> dict[str, Any]:
        """What its call is given for one picture or clip of each generator."""
        given: dict[str, Any] = {
            "prompt": order.prompt,
            "negative_prompt": order.negative,
            "width": order.width,
            "height": order.height,
            "num_frames": order.frames,
            "frame_rate": None if order.fps is None else float(order.fps),
            "num_inference_steps": order.steps,
            "image": order.image,
            "mask_image": order.mask,
            "strength": order.strength,
        }
        guided = self._guided(order)
        if order.guidance is not None and guided is not None:
            given[guided] = order.guidance
        if len(generators) > 1 and self.at_once is not None:
            given[self.at_once] = len(generators)
        known = {k: v for k, v in given.items() if v is not None and k in self.takes}
        return {
            **known,
            "generator": list(generators) if len(generators) > 1 else generators[0],
            "output_type": "pt",
        }

    def settings(self, order: Order) -> dict[str, str]:
        """What `order` comes to with this class's own defaults, in words."""
        guided = self._guided(order)
        guidance = order.guidance
        if guidance is None and guided is not None:
            guidance = self._default(guided)
        steps = order.steps or self._default("num_inference_steps")
        strength = order.strength
        if order.image is not None and strength is None:
            strength = self._default("strength")
        rate = self.rate(order)
        told: dict[str, Any] = {
            "prompt": order.prompt,
            "negative prompt": order.negative,
            "steps": steps,
            "guidance": None if guidance is None else f"{guidance:g}",
            "strength": None if strength is None else f"{strength:g}",
            "fps": None if rate is None else f"{float(rate):g}",
        }
        return {name: str(value) for name, value in told.items() if value is not None}

    def _guided(self, order: Order) -> str | None:
        """The argument that guidance is: with a negative prompt, or where the other is unused,
        the true one."""
        plain = "guidance_scale" in self.takes
        if _TRUE_GUIDANCE not in self.takes:
            return "guidance_scale" if plain else None
        asleep = plain and self.takes["guidance_scale"] is None
        true = order.negative is not None or asleep or not plain
        return _TRUE_GUIDANCE if true else "guidance_scale"

    def _negative_sleeps(self, order: Order) -> bool:
        """Whether a negative prompt would not be looked at."""
        guided = self._guided(order)
        if guided is None:
            return False
        value = order.guidance if order.guidance is not None else self._default(guided)
        return value is not None and value <= 1

    def _default(self, name: str) -> Any:
        value = self.takes.get(name)
        return None if value is inspect.Parameter.empty else value


def _sized(picture: Any) -> str:
    width, height = picture.size
    return f"{width}x{height}"
