"""How fast this machine reads files and copies memory: measured, briefly, with no device."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from tightfit.units import MIB, format_bytes

MOST_BYTES = 256 * MIB
MOST_SECONDS = 1.0
"""Of writing the file, and again of reading it."""
_CHUNK = 8 * MIB
_COPY = 64 * MIB
_COPIES = 6
_LEAST = 4 * _CHUNK
_SHORTEST = MIB
_IN_MEMORY = ("tmpfs", "ramfs")


@dataclass(frozen=True)
class MeasuredRate:
    """A rate that was measured, or why there is none.

    Attributes:
        bytes_per_s: None where it could not be measured.
        about: what was read or copied, or why nothing was, for people.
    """

    bytes_per_s: int | None
    about: str


def disk_rate(path: Path, *, most: int | None = None, seconds: float | None = None) -> MeasuredRate:
    """How fast `path` is read: a file, or a fresh file of ours on the same disk as a folder.

    The system is told to forget the file's pages before; whether it does so is its own affair, so
    the rate is that of the disk only where it did. At most `most` bytes and about twice `seconds`.
    A folder that is not there yet stands for the nearest one above it that is. Never raises for
    what a disk can do.
    """
    most = MOST_BYTES if most is None else most
    limit = MOST_SECONDS if seconds is None else seconds
    try:
        if path.is_file():
            with path.open("rb") as file:
                return _read(file.fileno(), most, limit, f"of {path}")
        folder = next(each for each in (path, *path.absolute().parents) if each.is_dir())
        if shutil.disk_usage(folder).free < 4 * most:
            return MeasuredRate(None, f"too little is free in {folder} to write a file and read it")
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            size = _fill(file.fileno(), most, limit)
            rate = _read(file.fileno(), size, limit, f"of a fresh file in {folder}")
    except OSError as error:
        return MeasuredRate(None, f"{path} cannot be used: {error.strerror or error}")
    if _kind_of_disk(folder) in _IN_MEMORY:
        return MeasuredRate(rate.bytes_per_s, f"{rate.about}, which lies in memory and on no disk")
    return rate


def host_copy_rate(*, size: int = _COPY, copies: int = _COPIES) -> MeasuredRate:
    """How fast one thread copies `size` bytes of memory: the best of several copies."""
    try:
        source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    except MemoryError:
        return MeasuredRate(None, f"no {format_bytes(2 * size)} of memory to copy")
    best = min(_timed_copy(target, source) for _ in range(copies))
    return MeasuredRate(int(size / best), f"{format_bytes(size)} by one thread")


def _timed_copy(target: np.ndarray, source: np.ndarray) -> float:
    started = time.perf_counter()
    np.copyto(target, source)
    return max(time.perf_counter() - started, 1e-9)


def _fill(file: int, most: int, seconds: float) -> int:
    """Write noise (which no file system makes smaller) until `most` or the time is up."""
    noise = np.random.default_rng().bytes(_CHUNK)
    started, size = time.perf_counter(), 0
    while size < most and (size < _LEAST or time.perf_counter() - started < seconds):
        size += os.write(file, noise[: most - size])
        os.fsync(file)  # only pages that are on the disk can be forgotten
    return size


def _read(file: int, most: int, seconds: float, where: str) -> MeasuredRate:
    """Read from the start, until `most`, the end, or the time is up."""
    forgotten = _forget(file)
    buffer = bytearray(_CHUNK)
    started, size = time.perf_counter(), 0
    os.lseek(file, 0, os.SEEK_SET)
    while size < most:
        view = memoryview(buffer)[: most - size]
        count = os.readv(file, [view])
        if count == 0:
            break
        size += count
        if time.perf_counter() - started > seconds:
            break
    elapsed = max(time.perf_counter() - started, 1e-9)
    if size < _SHORTEST:
        return MeasuredRate(None, f"{format_bytes(size)} {where} is too little to tell")
    kept = "" if forgotten else ", maybe from the page cache"
    return MeasuredRate(int(size / elapsed), f"{format_bytes(size)} {where}{kept}")


def _forget(file: int) -> bool:
    """Ask that the file's pages leave the page cache; whether that could be asked."""
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    except (AttributeError, OSError):  # not every system has it; a file may be open to read alone
        return False
    return True


def _kind_of_disk(folder: Path) -> str | None:
    """The file system that `folder` is on; None if it cannot be told."""
    try:
        mounts = {Path(each.mountpoint): each.fstype for each in psutil.disk_partitions(all=True)}
    except (OSError, psutil.Error):
        return None
    resolved = folder.resolve()
    return next((mounts[each] for each in (resolved, *resolved.parents) if each in mounts), None)
