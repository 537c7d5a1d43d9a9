"""The folder of learnt figures: how large it is, and emptying it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tightfit.errors import InputError


@dataclass(frozen=True)
class CacheCheck:
    """What lies in our cache folder.

    Attributes:
        folder: where it is, or would be.
        files: how many; 0 where there is no folder.
        total_bytes: of all of them.
    """

    folder: str
    files: int
    total_bytes: int


def look_at_cache(folder: Path) -> CacheCheck:
    """Count; links are counted as such and not followed. What cannot be read counts as nothing."""
    sizes = [size for path in _files(folder) if (size := _size(path)) is not None]
    return CacheCheck(str(folder), len(sizes), sum(sizes))


def clear_cache(folder: Path) -> CacheCheck:
    """Remove everything in our folder, and nothing that a link in it points to; what went.

    The folder itself stays. Raises `InputError` for a folder that is a link, or for what cannot be
    removed.
    """
    if folder.is_symlink():
        raise InputError(
            f"{folder} is a link to {folder.resolve()}: empty that yourself, or remove the link."
        )
    before = look_at_cache(folder)
    if not folder.is_dir():
        return before
    try:
        for path in list(folder.iterdir()):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    except OSError as error:
        raise InputError(
            f"Cannot remove {error.filename or folder}: {error.strerror or error}."
        ) from None
    return before


def _files(folder: Path) -> Iterator[Path]:
    """Every file and link below, without following links; none where there is no folder."""
    try:
        inside = list(folder.iterdir())
    except OSError:
        return
    for path in inside:
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        else:
            yield path


def _size(path: Path) -> int | None:
    try:
        return path.lstat().st_size
    except OSError:  # gone meanwhile
        return None
