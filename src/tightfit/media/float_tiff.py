"""TIFF files of floats that Pillow does not know: of 16, 32 or 64 bits, grey or RGB, with alpha.

Their samples are bytes to every compression, so Pillow unpacks them as a grey picture that is as
wide as a row has bytes: the file is given a directory that says so. What the floats mean is done
here: TIFF 6.0, with its technical note 3 on floating point.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from io import SEEK_END, BytesIO
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image, TiffImagePlugin

from tightfit.media.turn import Turn, from_exif

_WIDTH, _LENGTH, _BITS, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_STRIPS, _ORIENTATION, _SAMPLES, _ROWS, _STRIP_SIZES = 273, 274, 277, 278, 279
_PLANES, _PREDICTOR, _TILE_WIDTH, _TILE_LENGTH = 284, 317, 322, 323
_TILES, _TILE_SIZES, _EXTRA, _FORMAT, _PROFILE = 324, 325, 338, 339, 34675
_FLOAT, _APART = 3, 2
_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB = 0, 1, 2
_PREMULTIPLIED, _STRAIGHT = 1, 2
_COMPRESSIONS = (1, 5, 8, 32773, 32946, 34925, 50000)
"""None, LZW, Deflate (twice), PackBits, LZMA, Zstandard: those of bytes."""
_NO_PREDICTOR, _DIFFERENCES, _FLOAT_DIFFERENCES = 1, 2, 3
_MOST_TAGS = 4096
_MOST_TIMES = 1500
"""No compression of a TIFF makes a byte of more bytes than that."""
_LONG = 4


class Unknown(ValueError):
    """The file is none of these; what it is, or what is wrong with it."""


@dataclass(frozen=True, eq=False)
class FloatTiff:
    """The first page of such a file, open.

    Attributes:
        tags: numbers by their tags.
        file: itself, and its `length` in bytes.
        order: ``<`` or ``>``.
        profile: of its colours.
    """

    tags: dict[int, tuple[int, ...]]
    file: BinaryIO
    length: int
    order: str
    profile: bytes | None

    @classmethod
    def of(cls, file: BinaryIO) -> FloatTiff | None:
        """None where `file` is another kind of file. Raises `Unknown`, and what Pillow raises."""
        head = file.read(8)
        if head[:4] not in (b"II*\0", b"MM\0*"):
            return None
        directory = TiffImagePlugin.ImageFileDirectory_v2(head)
        file.seek(directory.next)
        directory.load(file)
        tags: dict[int, tuple[int, ...]] = {}
        for tag in list(directory)[:_MOST_TAGS]:
            value = directory.get(tag)
            values = value if isinstance(value, tuple) else (value,)
            if all(isinstance(each, int) for each in values):
                tags[tag] = values
        if set(tags.get(_FORMAT, ())) != {_FLOAT}:
            return None
        profile = directory.get(_PROFILE)
        profile = profile if isinstance(profile, bytes) else None
        length = file.seek(0, SEEK_END)
        made = cls(tags, file, length, "<" if head[:2] == b"II" else ">", profile)
        made._check()
        return made

    @property
    def turn(self) -> Turn:
        """What sets it upright."""
        return from_exif(self._one(_ORIENTATION, 1))

    @property
    def size(self) -> tuple[int, int]:
        """Upright."""
        return self.turn.size(self._one(_WIDTH), self._one(_LENGTH))

    @property
    def has_alpha(self) -> bool:
        """Whether the first channel behind the colours is."""
        return self.tags.get(_EXTRA, (0,))[0] in (_PREMULTIPLIED, _STRAIGHT)

    @property
    def bits(self) -> int:
        """Of a sample."""
        return self._one(_BITS)

    def samples(self) -> npt.NDArray[np.float32]:
        """Upright, [H,W,C]; C is 1 (grey), 2 (grey + alpha), 3 (RGB) or 4 (RGBA).

        Raises `Unknown` and what Pillow raises on damage.
        """
        apart = self._one(_PLANES, 1) == _APART
        count = self._one(_SAMPLES, 1)
        if apart:
            planes = [self._unpacked(1, at) for at in range(count)]
            values = np.concatenate(planes, axis=2)
        else:
            values = self._unpacked(count, None)
        colours = 3 if self._one(_PHOTOMETRIC) == _RGB else 1
        values = values[:, :, : colours + self.has_alpha].astype(np.float32)
        if self._one(_PHOTOMETRIC) == _WHITE_IS_ZERO:
            values[:, :, :1] = 1 - values[:, :, :1]
        if self.tags.get(_EXTRA, (0,))[0] == _PREMULTIPLIED:
            alpha = values[:, :, -1:]
            with np.errstate(all="ignore"):
                values[:, :, :-1] = np.where(alpha > 0, values[:, :, :-1] / alpha, 0)
        return self.turn.apply(values)

    def _check(self) -> None:
        bits = self.tags.get(_BITS, ())
        if set(bits) not in ({16}, {32}, {64}):
            raise Unknown(f"floats of {bits[0] if bits else 1} bits are not read")
        if self._one(_PHOTOMETRIC) not in (_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB):
            raise Unknown("its floats are neither grey nor RGB")
        count = self._one(_SAMPLES, 1)
        colours = 3 if self._one(_PHOTOMETRIC) == _RGB else 1
        extra = len(self.tags.get(_EXTRA, ()))
        if not colours + self.has_alpha <= count <= colours + max(extra, 8):
            raise Unknown(f"{count} floats a pixel are not read")
        if self._one(_PREDICTOR, 1) not in (_NO_PREDICTOR, _DIFFERENCES, _FLOAT_DIFFERENCES):
            raise Unknown("its floats are predicted in a way that is not known")
        if self._one(_COMPRESSION, 1) not in _COMPRESSIONS:
            raise Unknown("its floats are compressed in a way that is not known")
        if min(self._one(_WIDTH), self._one(_LENGTH)) < 1:
            raise Unknown("it has no pixels")
        self._check_size(self._one(_WIDTH) * self._one(_LENGTH) * count * bits[0] // 8)

    def _check_size(self, size: int) -> None:
        if size > _MOST_TIMES * self.length:
            raise Unknown(f"{size} bytes of pixels do not lie in {self.length} bytes")

    def _one(self, tag: int, usual: int | None = None) -> int:
        values = self.tags.get(tag)
        if values:
            return values[0]
        if usual is None:
            raise Unknown(f"its tag {tag} is missing")
        return usual

    def _unpacked(self, count: int, plane: int | None) -> npt.NDArray[np.floating]:
        """[H,W,`count`] of all planes, or of the one that lies apart."""
        width, height = self._one(_WIDTH), self._one(_LENGTH)
        tiled = _TILES in self.tags
        wide = self._one(_TILE_WIDTH) if tiled else width
        high = self._one(_TILE_LENGTH) if tiled else self._one(_ROWS, height)
        if min(wide, high) < 1:
            raise Unknown("its strips or tiles have no size")
        size = self.bits // 8
        row = wide * count * size
        across, down = -(-width // wide), -(-height // high)
        rows = down * high if tiled else height
        self._check_size(rows * across * row)
        places, sizes = (_TILES, _TILE_SIZES) if tiled else (_STRIPS, _STRIP_SIZES)
        parts = slice(None)
        if plane is not None:
            parts = slice(plane * across * down, (plane + 1) * across * down)
        told = {
            _WIDTH: (across * row,),
            _LENGTH: (rows,),
            _BITS: (8,),
            _COMPRESSION: (self._one(_COMPRESSION, 1),),
            _PHOTOMETRIC: (_BLACK_IS_ZERO,),
            places: self.tags.get(places, ())[parts],
            _SAMPLES: (1,),
            sizes: self.tags.get(sizes, ())[parts],
            **({_TILE_WIDTH: (row,), _TILE_LENGTH: (high,)} if tiled else {_ROWS: (high,)}),
        }
        if len(told[places]) != across * down or len(told[sizes]) != across * down:
            raise Unknown("its strips or tiles are not as many as its size needs")
        with TiffImagePlugin.TiffImageFile(BytesIO(self._disguised(told))) as image:
            image.load()
            raw = np.asarray(image)
        if raw.shape != (rows, across * row):
            raise Unknown("its strips or tiles are cut off")
        values = self._floats(raw.reshape(rows, across, row), count)
        return values.reshape(rows, across * wide, count)[:height, :width]

    def _floats(self, raw: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.floating]:
        """Rows of bytes, within strips or tiles, as values."""
        size, predictor = self.bits // 8, self._one(_PREDICTOR, 1)
        if predictor == _FLOAT_DIFFERENCES:
            *lead, length = raw.shape
            summed = np.cumsum(raw.reshape(*lead, length // count, count), axis=-2, dtype=np.uint8)
            # The first bytes of all values, from the highest, then the second ones.
            planes = summed.reshape(*lead, size, length // size)
            return np.ascontiguousarray(np.moveaxis(planes, -2, -1)).view(f">f{size}")
        if predictor == _DIFFERENCES:
            whole = np.ascontiguousarray(raw).view(f"{self.order}u{size}")
            *lead, length = whole.shape
            native = whole.astype(f"u{size}").reshape(*lead, length // count, count)
            summed = np.cumsum(native, axis=-2, dtype=native.dtype)
            return summed.reshape(*lead, length).view(f"f{size}")
        return np.ascontiguousarray(raw).view(f"{self.order}f{size}")

    def _disguised(self, told: dict[int, tuple[int, ...]]) -> bytes:
        """The file with another first directory, behind all that it holds."""
        self.file.seek(0)
        data = bytearray(self.file.read())
        data += b"\0" * (len(data) % 2)
        entries = []
        for tag, values in sorted(told.items()):
            packed = struct.pack(f"{self.order}{len(values)}I", *values)
            if len(values) > 1:
                place = len(data)
                data += packed
                packed = struct.pack(f"{self.order}I", place)
            entries.append(struct.pack(f"{self.order}HHI", tag, _LONG, len(values)) + packed)
        directory = struct.pack(f"{self.order}H", len(entries)) + b"".join(entries) + b"\0" * 4
        data[4:8] = struct.pack(f"{self.order}I", len(data))
        return bytes(data + directory)


class FloatPicture(Image.Image):
    """What the rest takes for an image that Pillow opened: its size and kind, and no pixels."""

    format = "TIFF"

    def __init__(self, tiff: FloatTiff) -> None:
        super().__init__()
        self.tiff = tiff
        self._size = tiff.size
        self._mode = "RGBA" if tiff.has_alpha else "RGB"
        if tiff.profile:
            self.info["icc_profile"] = tiff.profile

    def load(self) -> None:
        """The samples are decoded when they are asked for."""
