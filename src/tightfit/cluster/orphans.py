"""What a job that was killed leaves on this machine: a folder of Ray's, and who waits in it."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

PREFIX = "tightfit-ray-"
"""Of the folders, behind which stands the number of the process that made one."""
LOCK = "job.lock"
"""In each of them: held by its job, and let go by the system when that dies."""
_YOUNG = 60.0
"""Seconds in which a folder may be without a lock: its job is about to take it."""
_INSIDE = re.compile(rf"(?P<folder>.*/{PREFIX}[^/]+)/")
_RAY = "/ray/"
"""In the command of each process of Ray's: its programs lie in its package."""


@contextmanager
def job_folder(base: Path) -> Iterator[Path]:
    """A new folder in `base` for the files of one job, which goes with it."""
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=base))
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def end_orphans(base: Path) -> int:
    """End processes of Ray's that have files of a dead job's folder in `base` open; how many.

    Ray's agents outlive the kill of a job: they try to tell it that it died. Folders of dead jobs
    go too; those of jobs that run are not touched, nor is any other program that looks at a file.
    """
    ended = 0
    known: dict[Path, bool] = {}
    for pid in psutil.pids():
        folders = {found for path in _open_files(pid) if (found := _folder_of(path, base))}
        for folder in folders:
            if folder not in known:
                known[folder] = not folder.exists() or _is_dead(folder)
        if any(known[folder] for folder in folders) and _is_of_ray(pid):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                ended += 1
    for folder in base.glob(f"{PREFIX}*"):
        if _is_dead(folder):
            shutil.rmtree(folder, ignore_errors=True)
    return ended


def _is_dead(folder: Path) -> bool:
    """Whether nobody holds its lock, here or in another container that sees the folder."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR)
    except FileNotFoundError:
        with suppress(OSError):
            return time.time() - folder.stat().st_mtime > _YOUNG
        return False
    except OSError:  # somebody else's
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def _folder_of(path: str, base: Path) -> Path | None:
    found = _INSIDE.match(path)
    folder = None if found is None else Path(found["folder"])
    return folder if folder is not None and folder.parent == base else None


def _is_of_ray(pid: int) -> bool:
    with suppress(psutil.Error):
        return any(_RAY in part for part in psutil.Process(pid).cmdline())
    return False


def _open_files(pid: int) -> Iterator[str]:
    """Also those that were removed meanwhile; none of processes that others own."""
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{number}")
