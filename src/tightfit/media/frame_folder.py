"""A folder of numbered pictures, read and written as a clip."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from types import TracebackType

import torch
from PIL import UnidentifiedImageError

from tightfit.errors import InputError, JobFailed
from tightfit.media import still
from tightfit.media.background import WHITE, Colour
from tightfit.media.clip import Clip, Seconds
from tightfit.media.files import FOLDER, check_readable, check_writable, whole_folder
from tightfit.media.picture import read_picture
from tightfit.media.picture_writer import encode_png
from tightfit.media.samples import to_samples
from tightfit.media.shots import Follower

_KINDS = {".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".avif"}


def frame_paths(folder: Path) -> tuple[Path, ...]:
    """The pictures in `folder` in natural order (2 before 10), all of one size.

    Reads headers alone. Raises `InputError` where there is none, or naming those of another size.
    """
    if not folder.is_dir():
        raise InputError(f"Cannot read {folder}: there is no such folder of frames.")
    paths = [path for path in folder.iterdir() if path.suffix.lower() in _KINDS]
    paths = sorted((path for path in paths if not path.name.startswith(".")), key=_natural)
    if not paths:
        raise InputError(f"Cannot read {folder}: it holds no pictures ({still.KINDS}).")
    sizes = {path: _size(path) for path in paths}
    (width, height), _ = Counter(sizes.values()).most_common(1)[0]
    odd = [path for path in paths if sizes[path] != (width, height)]
    if odd:
        named = ", ".join(f"{path.name} is {_spell(sizes[path])}" for path in odd[:3])
        more = f" (and {len(odd) - 3} more)" if len(odd) > 3 else ""
        raise InputError(
            f"Cannot read {folder} as a clip: {named}{more}, the others are {width}x{height}; "
            "make all frames one size."
        )
    return tuple(paths)


def read_frame_folder(
    folder: Path,
    *,
    fps: Fraction = Fraction(24),
    frames: slice | None = None,
    seconds: Seconds | None = None,
    background: Colour = WHITE,
    keep_alpha: bool = False,
    follower: Follower | None = None,
) -> Clip:
    """Read the pictures of `folder` as a clip that plays at `fps`.

    `seconds` leaves those shown within it; then `frames` picks some. Where the first has more than
    8 bits a sample, all are read at 16.

    Raises `InputError` as `frame_paths` and `read_picture` do, before the first is decoded where
    sizes differ.
    """
    paths = frame_paths(folder)
    within = range(len(paths))
    if seconds is not None:
        stop = None if seconds[1] is None else math.ceil(seconds[1] * fps)
        within = within[math.ceil(seconds[0] * fps) : stop]
    chosen = within[frames or slice(None)]
    if not chosen:
        raise InputError(f"{folder} has {len(paths)} frames, none of them among those asked for.")
    notes: dict[str, None] = {}
    pixels = alpha = None
    bits = 8
    for row, index in enumerate(chosen):
        picture = read_picture(paths[index], background=background, keep_alpha=keep_alpha)
        notes.update(dict.fromkeys(picture.notes))
        if pixels is None:
            bits = 16 if picture.bits > 8 else 8
            kind = torch.uint16 if bits == 16 else torch.uint8
            pixels = torch.empty((len(chosen), *picture.pixels.shape), dtype=kind)
        elif bits < picture.bits:
            notes.setdefault("read frames of more bits a sample than the first as 8")
        pixels[row] = to_samples(picture.pixels[None], goal=folder, bits=bits)[0]
        if picture.alpha is not None:
            if alpha is None:
                opaque = torch.iinfo(pixels.dtype).max
                alpha = torch.full_like(pixels[:, :1], opaque)
            kept = to_samples(picture.alpha[None], goal=folder, channels=(1,), bits=bits)
            alpha[row] = kept[0]
        if follower is not None:
            if not row:
                follower.begins(pixels)
            follower.laid(row + 1, (row + 1) * pixels[0].nbytes)
    assert pixels is not None
    times = tuple(float(index / fps) for index in chosen)
    return Clip(pixels, fps / chosen.step, times, tuple(notes), alpha)


class FrameFolderWriter:
    """A context manager: writes ``frame_00001.png`` and so on into a folder.

    The folder appears at `path` when the body ends without an exception. Raises `InputError`
    where it cannot be written, or holds anything but such frames. `bits` of a sample are 8 or 16.
    """

    def __init__(self, path: Path, *, bits: int = 8) -> None:
        check_writable(path, (FOLDER,))
        self.path = path
        self._bits = bits
        self.frames = 0
        self.notes: tuple[str, ...] = ()
        self._scope = self._opened()
        self._folder = path

    def __enter__(self) -> FrameFolderWriter:
        self._scope.__enter__()
        return self

    def write(self, frames: torch.Tensor) -> None:
        """Append frames [n,3,H,W] or, with alpha, [n,4,H,W]: uint8, uint16 or float in 0..1.

        Raises `JobFailed` as the others do.
        """
        for sample in to_samples(frames, goal=self.path, channels=(3, 4), bits=self._bits):
            self.frames += 1
            (self._folder / f"frame_{self.frames:05d}.png").write_bytes(encode_png(sample))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._scope.__exit__(kind, error, trace)

    @contextmanager
    def _opened(self) -> Iterator[None]:
        with whole_folder(self.path) as self._folder:
            yield
            if not self.frames:
                raise JobFailed(f"Nothing was written to {self.path}: no frame came.")


def _natural(path: Path) -> list[tuple[int, str]]:
    parts = re.findall(r"\d+|\D+", path.name.lower())
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _size(path: Path) -> tuple[int, int]:
    check_readable(path)
    try:
        with still.open_still(path) as image:
            return still.turn_of(image, path).size(*image.size)
    except UnidentifiedImageError as error:
        raise InputError(f"Cannot read {path}: it is no picture ({still.KINDS}).") from error


def _spell(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
