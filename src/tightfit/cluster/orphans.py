"""What a job that was killed leaves on this machine: a folder of Ray's, and who waits in it."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

PREFIX = "tightfit-ray-"
"""Of the folders, behind which stands the number of the process that made one."""
_MADE_BY = re.compile(rf"/{PREFIX}(\d+)-[^/]*(?:/|$)")


def end_orphans(base: Path) -> int:
    """End processes of this user that have files of a dead job's folder open; how many.

    Ray's agents outlive the kill of a job: they try to tell it that it died. Folders of dead jobs
    in `base` go too; those of jobs that run are not touched.
    """
    ended = 0
    for pid in psutil.pids():
        if any(_is_dead(path) for path in _open_files(pid)):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                ended += 1
    for folder in base.glob(f"{PREFIX}*-*"):
        if _is_dead(str(folder)):
            shutil.rmtree(folder, ignore_errors=True)
    return ended


def _is_dead(path: str) -> bool:
    """Whether it lies in the folder of a job that is no more."""
    made_by = _MADE_BY.search(path)
    return made_by is not None and not psutil.pid_exists(int(made_by[1]))


def _open_files(pid: int) -> Iterator[str]:
    """Also those that were removed meanwhile; none of processes that others own."""
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{number}")
