"""Files that are whole or absent: written under a temporary name, renamed only on success."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tightfit.errors import InputError
from tightfit.units import format_bytes

FOLDER = ""
"""Among the kinds of `check_writable`: a folder of frames, which has no suffix."""

_FRAME_NAME = re.compile(r"frame_\d+\.png")
_FULL = {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def whole_file(path: Path, *, needs: int | None = None) -> Iterator[Path]:
    """Yield a temporary name beside `path`; the file written there becomes `path` on success.

    On any exception, KeyboardInterrupt included, the temporary file is removed and whatever was
    at `path` is left as it was. `needs` is the size to come in bytes, where it is known.

    Raises `InputError` where the disk is full or the folder cannot be written.
    """
    _check_parent(path)
    _check_file_target(path)
    _check_room(path, needs)
    target = path.resolve()
    temporary = _beside(target)
    try:
        with _refusals_are_said(path, temporary, needs):
            yield temporary
            _sync(temporary)
            os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside `path`; with the files written there it becomes `path` on success.

    An existing folder is replaced only if it is empty or holds nothing but ``frame_*.png``;
    otherwise `InputError`, before anything is written. The rest is as in `whole_file`.
    """
    _check_parent(path)
    _check_folder_target(path)
    target = path.resolve()
    temporary = _beside(target)
    try:
        with _refusals_are_said(path, temporary, None):
            temporary.mkdir()
            yield temporary
            for file in temporary.iterdir():
                _sync(file)
            _sync_folder(temporary)
            replace_folder(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def replace_folder(temporary: Path, target: Path) -> None:
    """Put `temporary` in the place of the folder `target`, which comes back if that fails."""
    if target.exists():
        old = _beside(target)
        os.replace(target, old)
        try:
            os.replace(temporary, target)
        except BaseException:
            os.replace(old, target)
            raise
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.replace(temporary, target)
    _sync_folder(target.parent)


def check_writable(path: Path, kinds: tuple[str, ...]) -> None:
    """Refuse, before any work, an output that could not be written.

    `kinds` are the legal suffixes in lower case (``".png"``); `FOLDER` allows a folder of frames.
    Raises `InputError` on another suffix, a missing or read-only parent, or something at `path`
    that must not be replaced.
    """
    suffix = path.suffix.lower()
    if FOLDER in kinds and (suffix == FOLDER or path.is_dir()):
        _check_parent(path)
        _check_folder_target(path)
        return
    if suffix not in kinds:
        legal = ", ".join(kind or "no suffix, for a folder of frames" for kind in kinds)
        raise InputError(f"Cannot write {path}: its name must end in {legal}.")
    _check_parent(path)
    _check_file_target(path)


def check_readable(path: Path) -> None:
    """Refuse an input that is missing, a folder, empty or unreadable, with `InputError`."""
    try:
        if path.is_dir():
            raise InputError(f"Cannot read {path}: it is a folder; give a file.")
        with path.open("rb") as handle:
            if not handle.read(1):
                raise InputError(f"Cannot read {path}: the file is empty.")
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"Cannot read {path}: {reason}.") from error


def _check_parent(path: Path) -> None:
    parent = path.resolve().parent
    if not parent.is_dir():
        raise InputError(f"Cannot write {path}: the folder {parent} does not exist; make it first.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"Cannot write {path}: no permission to write in the folder {parent}.")


def _check_file_target(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"Cannot write {path}: it is a folder; give a file name.")
    if path.exists() and not path.is_file():
        raise InputError(f"Cannot write {path}: it is not a regular file; give another name.")


def _check_folder_target(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise InputError(f"Cannot write frames to {path}: a file is in the way; give a new name.")
    for entry in path.iterdir():
        if not (_FRAME_NAME.fullmatch(entry.name) and entry.is_file()):
            raise InputError(
                f"Cannot replace the folder {path}: it holds `{entry.name}`, which is not a "
                "frame_*.png; give a new or empty folder."
            )


def _check_room(path: Path, needs: int | None) -> None:
    if needs is None:
        return
    free = shutil.disk_usage(path.resolve().parent).free
    if needs > free:
        raise InputError(_full_disk(path, needs, free))


@contextmanager
def _refusals_are_said(path: Path, temporary: Path, needs: int | None) -> Iterator[None]:
    """Turn what the system says of the disk or of `temporary` into `InputError`, and no more."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            free = shutil.disk_usage(path.resolve().parent).free
            raise InputError(_full_disk(path, needs, free)) from error
        never_made = isinstance(error, FileNotFoundError) and temporary.parent.is_dir()
        if never_made or str(temporary) not in str(error.filename):
            raise
        raise InputError(f"Cannot write {path}: {error.strerror or error}.") from error


def _full_disk(path: Path, needs: int | None, free: int) -> str:
    need = f"the file needs {format_bytes(needs)} and " if needs is not None else ""
    return (
        f"Cannot write {path}: the disk is full; {need}{format_bytes(free)} is free. "
        "Free some space or write elsewhere."
    )


def _beside(target: Path) -> Path:
    """A free hidden name in the folder of `target`, with the same suffix."""
    return target.with_name(f".{target.stem[:40]}-{secrets.token_hex(4)}.part{target.suffix}")


def _sync(file: Path) -> None:
    with file.open("rb") as handle:
        os.fsync(handle.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a rename durable, where the file system can; the file itself is whole either way."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
