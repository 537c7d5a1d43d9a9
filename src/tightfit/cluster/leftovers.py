"""One job at a time in a folder, and what killed ones left there is removed."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tightfit.errors import InputError, UsageError

LOCK = ".tightfit-job.lock"
_PART = re.compile(r"\.(?P<stem>.+)-[0-9a-f]{8}\.part(?P<suffix>(?:\.[a-z0-9]+)?)")
_STEM = 40
"""Characters of a name that its temporary name keeps."""


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder while inside: the system lets go of it when the process dies.

    Raises `UsageError` where another job holds it, `InputError` where nothing can be written.
    """
    path = folder / LOCK
    descriptor = _locked(path)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _locked(path: Path) -> int:
    """Its descriptor. Who held it before may have removed the file meanwhile: then once more."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise InputError(f"Cannot write {path.parent}: {error.strerror or error}.") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise UsageError(
                f"Another job writes into {path.parent}: wait until it is done, or give another "
                "folder."
            ) from None
        with suppress(OSError):
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)


def sweep(folder: Path, outs: Iterable[Path]) -> int:
    """Remove temporary files (or folders) of `outs`, which nobody writes any more; how many."""
    ours = {(out.stem[:_STEM], out.suffix) for out in outs}
    removed = 0
    if not folder.is_dir():
        return 0
    with os.scandir(folder) as found:
        for entry in found:
            match = _PART.fullmatch(entry.name)
            if match is None or (match["stem"], match["suffix"]) not in ours:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
                removed += 1
            elif entry.is_file(follow_symlinks=False):
                with suppress(OSError):
                    os.unlink(entry.path)
                    removed += 1
    return removed
