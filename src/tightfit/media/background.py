"""The colour that shows where a picture is transparent."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import torch

from tightfit.errors import UsageError
from tightfit.media.shots import Pixels

Colour = tuple[float, float, float]
"""Red, green and blue, each in 0..1."""

WHITE: Colour = (1.0, 1.0, 1.0)

_NAMES: dict[str, Colour] = {"white": WHITE, "black": (0.0, 0.0, 0.0)}
_HEX = re.compile(r"#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})")


def parse_background(text: str, *, name: str = "--background") -> Colour:
    """Turn ``white``, ``black`` or ``#rrggbb`` into a colour. Raises `UsageError` on the rest."""
    plain = text.strip().lower()
    if plain in _NAMES:
        return _NAMES[plain]
    match = _HEX.fullmatch(plain)
    if match is None:
        raise UsageError(f"{name} `{text}` is not a colour: write white, black or #rrggbb.")
    red, green, blue = (int(part, 16) / 255 for part in match.groups())
    return (red, green, blue)


def name_background(background: Colour) -> str:
    """The colour as a user would write it: ``white``, ``black`` or ``#rrggbb``."""
    for name, colour in _NAMES.items():
        if colour == background:
            return name
    return "#" + "".join(f"{round(255 * part):02x}" for part in background)


def composite(
    rgb: npt.NDArray[np.float32], alpha: npt.NDArray[np.float32], background: Colour
) -> npt.NDArray[np.float32]:
    """Lay `rgb` [H,W,3] with `alpha` [H,W,1] over `background`; all in 0..1.

    Exact at both ends: alpha 1 gives `rgb` itself, alpha 0 the background whatever colour the
    file hides there.
    """
    under = np.asarray(background, np.float32)
    return rgb * alpha + under * (1 - alpha)


def flatten(samples: Pixels, background: Colour, *, keep_alpha: bool = False) -> Pixels:
    """`composite` for RGB or RGBA [H,W,3|4] in 0..255 or 0..65535, rounded to the nearest step.

    Gives RGB [H,W,3]; with `keep_alpha` RGBA whose colour is laid over `background` nevertheless,
    opaque where there was no alpha.
    """
    top = np.iinfo(samples.dtype).max
    if samples.shape[2] == 3:
        if not keep_alpha:
            return samples
        opaque = np.full((*samples.shape[:2], 1), top, samples.dtype)
        return np.concatenate([samples, opaque], axis=2)
    values = samples.astype(np.float32) / np.float32(top)
    over = np.rint(composite(values[:, :, :3], values[:, :, 3:], background) * top)
    made: Pixels = over.astype(samples.dtype)
    return np.concatenate([made, samples[:, :, 3:]], axis=2) if keep_alpha else made


def lift(pixels: torch.Tensor, alpha: torch.Tensor, *, background: Colour) -> torch.Tensor:
    """Undo `composite`: pixels [3,H,W] seen over `background` become RGBA [4,H,W], in 0..1.

    Laid over `background` again the result shows `pixels`; over another colour, edges carry no
    fringe of the old one. Where alpha is 0 the colour stays as it is.
    """
    pixels, alpha = pixels.float(), alpha.float()
    under = torch.tensor(background, device=pixels.device).view(3, 1, 1)
    straight = (pixels - (1 - alpha) * under) / alpha.clamp_min(1 / 65535)
    return torch.cat([torch.where(alpha > 0, straight, pixels).clamp(0, 1), alpha])
