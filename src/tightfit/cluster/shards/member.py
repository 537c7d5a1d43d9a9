"""What is in a shard, whatever its format, and who reads and writes one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

CHUNK = 2**22


@dataclass(frozen=True)
class Piece:
    """Bytes [begin, end) of a file."""

    file: Path
    begin: int
    end: int

    @property
    def size(self) -> int:
        """In bytes."""
        return self.end - self.begin

    def copy_to(self, out: BinaryIO) -> None:
        """Append them. Raises `EOFError` where the file has become shorter."""
        left = self.size
        with self.file.open("rb") as opened:
            opened.seek(self.begin)
            while left:
                chunk = opened.read(min(CHUNK, left))
                if not chunk:
                    raise EOFError(f"{self.file} is cut off")
                out.write(chunk)
                left -= len(chunk)


@dataclass(frozen=True)
class Member:
    """One latent: in a file of its own, or in a shard.

    Attributes:
        name: of the item.
        sha256, size: of the latent's own file.
        about: the metadata of that file.
        tensors: name, dtype, shape and bytes of each, in a format that keeps them apart.
        whole: the file itself, in a format that keeps it as it is.
    """

    name: str
    sha256: str
    size: int
    about: Mapping[str, str]
    tensors: tuple[tuple[str, str, tuple[int, ...], Piece], ...] = ()
    whole: Piece | None = None

    @property
    def told(self) -> dict[str, Any]:
        """For JSON, without the bytes."""
        return {
            "name": self.name,
            "sha256": self.sha256,
            "bytes": self.size,
            "about": dict(self.about),
        }


class Format(ABC):
    """How latents lie in one file; the same members in the same order give the same bytes."""

    suffix: str

    @abstractmethod
    def read(self, shard: Path) -> tuple[Member, ...]:
        """Its members, in order. Raises `InputError` where it is none of this format."""

    @abstractmethod
    def write(self, path: Path, members: Sequence[Member]) -> None:
        """Write them to a new file, a piece at a time."""

    @abstractmethod
    def is_whole(self, member: Member) -> bool:
        """Whether its bytes are what they were when it was written."""
