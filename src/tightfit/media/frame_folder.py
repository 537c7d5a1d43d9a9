"""A folder of numbered pictures, read and written as a clip."""

from __future__ import annotations

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
from tightfit.media.clip import Clip
from tightfit.media.files import FOLDER, check_readable, check_writable, whole_folder
from tightfit.media.picture import encode_png, read_picture
from tightfit.media.samples import to_bytes

_KINDS = {".png", ".jpg", ".jpeg", ".webp"}


def frame_paths(folder: Path) -> tuple[Path, ...]:
    """The pictures in `folder` in natural order (2 before 10), all of one size.

    Reads headers alone. Raises `InputError` where there is none, or naming those of another size.
    """
    if not folder.is_dir():
        raise InputError(f"Cannot read {folder}: there is no such folder of frames.")
    paths = [path for path in folder.iterdir() if path.suffix.lower() in _KINDS]
    paths = sorted((path for path in paths if not path.name.startswith(".")), key=_natural)
    if not paths:
        raise InputError(f"Cannot read {folder}: it holds no PNG, JPEG or WebP pictures.")
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
    background: Colour = WHITE,
) -> Clip:
    """Read the pictures of `folder` as a clip that plays at `fps`, before `frames` picks some.

    Raises `InputError` as `frame_paths` and `read_picture` do, before the first is decoded where
    sizes differ.
    """
    paths = frame_paths(folder)
    chosen = range(len(paths))[frames or slice(None)]
    if not chosen:
        raise InputError(f"{folder} has {len(paths)} frames, none of them among those asked for.")
    notes: dict[str, None] = {}
    pixels = None
    for row, index in enumerate(chosen):
        picture = read_picture(paths[index], background=background)
        notes.update(dict.fromkeys(picture.notes))
        if pixels is None:
            pixels = torch.empty((len(chosen), *picture.pixels.shape), dtype=torch.uint8)
        pixels[row] = to_bytes(picture.pixels[None], goal=folder)[0]
    assert pixels is not None
    times = tuple(float(index / fps) for index in chosen)
    return Clip(pixels, fps / chosen.step, times, tuple(notes))


class FrameFolderWriter:
    """A context manager: writes ``frame_00001.png`` and so on into a folder.

    The folder appears at `path` when the body ends without an exception. Raises `InputError`
    where it cannot be written, or holds anything but such frames.
    """

    def __init__(self, path: Path) -> None:
        check_writable(path, (FOLDER,))
        self.path = path
        self.frames = 0
        self.notes: tuple[str, ...] = ()
        self._scope = self._opened()
        self._folder = path

    def __enter__(self) -> FrameFolderWriter:
        self._scope.__enter__()
        return self

    def write(self, frames: torch.Tensor) -> None:
        """Append frames [n,3,H,W] or, with alpha, [n,4,H,W], uint8 or float in 0..1.

        Raises `JobFailed` as the others do.
        """
        for sample in to_bytes(frames, goal=self.path, channels=(3, 4)):
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
        raise InputError(f"Cannot read {path}: it is no PNG, JPEG or WebP picture.") from error


def _spell(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
