"""The bytes of a GGUF header in order: numbers, texts and values, within the file's size."""

from __future__ import annotations

import struct
from typing import BinaryIO

_CHUNK = 2**16
_LONGEST_TEXT = 2**24
_LONGEST_KEPT = 16
"""Lists with more entries (a tokenizer's words) are skipped."""
_DEEPEST = 4

_TEXT, _LIST = 8, 9
_FORMS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
"""Numbers by the code of their type."""


class Damaged(Exception):
    """What is wrong with the file, without its name."""


class Reader:
    """Reads forward through the head of `file`, which has `size` bytes.

    Everything raises `Damaged` instead of reading past the end.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.size = size
        self._file = file
        self._chunk = b""
        self._at = 0
        self._before = 0

    @property
    def position(self) -> int:
        """Bytes taken so far."""
        return self._before + self._at

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        self._fill(count)
        self._at += count
        return self._chunk[self._at - count : self._at]

    def number(self, width: int) -> int:
        """The next `width` bytes as a whole number from 0 up."""
        return int.from_bytes(self.take(width), "little")

    def text(self) -> str:
        """A length of 8 bytes, and as many bytes of UTF-8."""
        length = self.number(8)
        if length > _LONGEST_TEXT:
            raise Damaged(f"a text in its header should be {length:,} bytes long")
        return self.take(length).decode("utf-8", errors="replace")

    def value(self) -> str | None:
        """A type and a value of it, as text; None for lists that are long or of texts."""
        return self._value(self.number(4), depth=0)

    def _value(self, kind: int, *, depth: int) -> str | None:
        if kind == _TEXT:
            return self.text()
        if kind == _LIST:
            return self._list(depth)
        form = _FORMS.get(kind)
        if form is None:
            raise Damaged(f"a value in its metadata is of the unknown type {kind}")
        return str(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def _list(self, depth: int) -> str | None:
        if depth >= _DEEPEST:
            raise Damaged(f"its metadata hold lists within lists, more than {_DEEPEST} deep")
        kind, count = self.number(4), self.number(8)
        form = _FORMS.get(kind)
        if form is not None:
            if count <= _LONGEST_KEPT:
                return ",".join(str(self._value(kind, depth=depth)) for _ in range(count))
            self._skip(count * struct.calcsize(form))
        elif kind == _TEXT:
            self._skip_texts(count)
        else:
            for _ in range(count):
                self._value(kind, depth=depth + 1)
        return None

    def _skip_texts(self, count: int) -> None:
        """Past `count` texts; a tokenizer has some hundred thousand of them."""
        length_at = struct.Struct("<Q").unpack_from
        while count:
            self._fill(8)
            chunk, at = self._chunk, self._at
            last = len(chunk) - 8
            while count and at <= last:
                at += 8 + length_at(chunk, at)[0]
                count -= 1
            self._at = min(at, len(chunk))
            self._skip(at - self._at)

    def _skip(self, count: int) -> None:
        """Past `count` bytes, without reading those beyond what is at hand."""
        self._check(count)
        at_hand = len(self._chunk) - self._at
        if count <= at_hand:
            self._at += count
            return
        self._before += self._at + count
        self._file.seek(count - at_hand, 1)
        self._chunk, self._at = b"", 0

    def _fill(self, count: int) -> None:
        """Have the next `count` bytes at hand."""
        at_hand = len(self._chunk) - self._at
        if count <= at_hand:
            return
        self._check(count)
        more = self._file.read(max(count - at_hand, _CHUNK))
        self._before += self._at
        self._chunk, self._at = self._chunk[self._at :] + more, 0
        if len(self._chunk) < count:
            raise Damaged(f"it ended at byte {self.position + len(self._chunk):,} while being read")

    def _check(self, count: int) -> None:
        if self.position + count > self.size:
            raise Damaged(
                f"it is cut off in its header: byte {self.position + count:,} is needed, but the "
                f"file has {self.size:,} bytes"
            )
