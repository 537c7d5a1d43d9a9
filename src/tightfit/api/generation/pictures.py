"""Pictures that a pipeline starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tightfit.errors import UsageError
from tightfit.media.picture import read_picture
from tightfit.media.picture_writer import to_pillow
from tightfit.media.samples import to_bytes


def picture_of(source: str | Path | torch.Tensor | None, *, what: str, grey: bool = False) -> Any:
    """A picture of Pillow from a file, or from a tensor [3,H,W] or [1,H,W] in 0..1 or uint8.

    `grey` makes it one channel. Raises `InputError` for a file that is no picture, `UsageError`
    for a tensor that is none; `what` is what they call it.
    """
    if source is None:
        return None
    if isinstance(source, torch.Tensor):
        if source.dim() != 3 or source.shape[0] not in (1, 3) or source.numel() == 0:
            raise UsageError(f"{what} is a tensor [3,H,W] in 0..1, not {list(source.shape)}.")
        pixels = source
    else:
        pixels = read_picture(Path(source)).pixels
    samples = to_bytes(pixels[None], goal=Path(what), channels=(1, 3))[0]
    if samples.shape[0] == 1 and not grey:
        samples = samples.expand(3, -1, -1)
    picture = to_pillow(samples)
    return picture.convert("L") if grey and samples.shape[0] == 3 else picture
