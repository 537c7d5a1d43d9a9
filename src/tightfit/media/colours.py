"""From a decoded frame of a film to RGB: by its own matrix, range and depth."""

from __future__ import annotations

from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter

from tightfit.media.shots import Pixels

# Without these flags swscale is off by up to two steps, and differs between processors.
EXACT = int(
    Interpolation.BICUBIC
    | Interpolation.ACCURATE_RND
    | Interpolation.FULL_CHR_H_INT
    | Interpolation.BITEXACT
)

_UNSTATED = 2  # AVCOL_SPC_UNSPECIFIED
_BT2020 = (0.2627, 0.0593)
_WEIGHTS = {
    int(Colorspace.ITU709): (0.2126, 0.0722),
    int(Colorspace.FCC): (0.30, 0.11),
    int(Colorspace.ITU601): (0.299, 0.114),
    6: (0.299, 0.114),  # SMPTE 170M
    int(Colorspace.SMPTE240M): (0.212, 0.087),
    int(Colorspace.BT2020): _BT2020,
    10: _BT2020,
}
"""Of red and blue in luma, by FFmpeg's number of the matrix; ITU-T H.273, table 4."""
_TOP = 65535


class Painter:
    """Converts frames one after the other; each thread needs its own."""

    def __init__(self) -> None:
        self._scaler = VideoReformatter()

    def paint(self, frame: Any) -> Pixels:
        """RGB or, with alpha, RGBA [H,W,3|4]: uint8, or uint16 in 0..65535 from more than 8 bits.

        A view of planes that lie one behind the other. Raises `av.error.FFmpegError` on a matrix
        that nobody converts.
        """
        with_alpha = has_alpha(frame)
        planes = self._deep(frame) if is_deep(frame) else self._plain(frame)
        return np.moveaxis(planes[: 4 if with_alpha else 3], 0, 2)

    def _plain(self, frame: Any) -> Pixels:
        made = self._to(frame, "gbrap" if has_alpha(frame) else "gbrp", matrix=matrix_of(frame))
        return _in_order(_planes(made, np.uint8))

    def _deep(self, frame: Any) -> Pixels:
        bits, alpha = depth(frame), has_alpha(frame)
        if frame.format.is_rgb:
            kept = bits if frame.format.name.startswith("gbr") and bits <= 16 else 16
            made = self._to(frame, f"gbr{'ap' if alpha else 'p'}{kept}le")
            return _in_order([_widen(plane, kept) for plane in _planes(made, np.uint16)])
        if len(frame.format.components) - alpha == 1:
            # Samples of grey have the full range, as FFmpeg has it.
            made = self._to(frame, f"gray{bits}le" if not alpha else "ya16le")
            if alpha:
                both = np.frombuffer(made.planes[0], np.uint16).reshape(made.height, -1, 2)
                both = both[:, : made.width]
                return np.stack([both[..., 0]] * 3 + [both[..., 1]])
            return np.stack([_widen(_planes(made, np.uint16)[0], bits)] * 3)
        made = self._to(frame, f"yuv{'a' if alpha else ''}444p{bits}le")
        y, u, v, *rest = _planes(made, np.uint16)
        rgb = _by_matrix(y, u, v, _WEIGHTS[matrix_of(frame)], bits, full=_is_full(frame))
        return np.stack([*rgb, *(_widen(plane, bits) for plane in rest)])

    def _to(self, frame: Any, form: str, *, matrix: int | None = None) -> Any:
        if frame.format.name == form:
            return frame
        return self._scaler.reformat(frame, format=form, src_colorspace=matrix, interpolation=EXACT)


def has_alpha(frame: Any) -> bool:
    """Whether its samples have a channel for it."""
    return any(part.is_alpha for part in frame.format.components)


def depth(frame: Any) -> int:
    """Bits a sample."""
    return max(int(part.bits) for part in frame.format.components)


def is_deep(frame: Any) -> bool:
    """Whether 8 bits would lose some of it."""
    return depth(frame) > 8


def matrix_of(frame: Any) -> int:
    """FFmpeg's number of the matrix: what the film says, else what players take for its size."""
    said = int(frame.colorspace)
    if said in _WEIGHTS:
        return said
    if said != _UNSTATED and not frame.format.is_rgb:
        raise av.error.PatchWelcomeError(0, f"colour matrix {said}")
    high = frame.width >= 1280 or frame.height > 576
    return int(Colorspace.ITU709 if high else Colorspace.ITU601)


def _is_full(frame: Any) -> bool:
    return bool(frame.format.name.startswith("yuvj") or frame.color_range == ColorRange.JPEG)


def _planes(frame: Any, dtype: npt.DTypeLike) -> list[npt.NDArray[Any]]:
    """Its planes without what pads the rows; valid as long as the frame is."""
    width = np.dtype(dtype).itemsize
    return [
        np.frombuffer(plane, dtype).reshape(-1, plane.line_size // width)[
            : plane.height, : plane.width
        ]
        for plane in frame.planes
    ]


def _in_order(planes: list[npt.NDArray[Any]]) -> Pixels:
    """Green, blue, red (and alpha), as FFmpeg keeps them, as RGB(A) [C,H,W]."""
    green, blue, red, *rest = planes
    return np.stack([red, green, blue, *rest])


def _widen(plane: npt.NDArray[np.uint16], bits: int) -> npt.NDArray[np.uint16]:
    """Samples of so many bits in 0..65535, rounded."""
    if bits == 16:
        return plane
    top = (1 << bits) - 1
    return ((plane.astype(np.uint32) * _TOP + top // 2) // top).astype(np.uint16)


def _by_matrix(
    y: npt.NDArray[np.uint16],
    u: npt.NDArray[np.uint16],
    v: npt.NDArray[np.uint16],
    weights: tuple[float, float],
    bits: int,
    *,
    full: bool,
) -> tuple[npt.NDArray[np.uint16], ...]:
    """ITU-T H.273, equations 20 to 31 and 38 to 40, turned round; 0..65535."""
    unit = 1 << (bits - 8)
    floor, span, swing = (0, (1 << bits) - 1, (1 << bits) - 1) if full else (16, 219, 224)
    if not full:
        floor, span, swing = floor * unit, span * unit, swing * unit
    red_share, blue_share = weights
    luma = (y.astype(np.float32) - floor) * np.float32(_TOP / span)
    by, ry = (
        (chroma.astype(np.float32) - 128 * unit) * np.float32(_TOP / swing) for chroma in (u, v)
    )
    red = luma + np.float32(2 * (1 - red_share)) * ry
    blue = luma + np.float32(2 * (1 - blue_share)) * by
    green = (luma - np.float32(red_share) * red - np.float32(blue_share) * blue) / np.float32(
        1 - red_share - blue_share
    )
    return tuple(np.rint(plane).clip(0, _TOP).astype(np.uint16) for plane in (red, green, blue))
