"""A folder that takes its name when all of it is there; until then it can be gone on with."""

from __future__ import annotations

import fcntl
import filecmp
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from tightfit.errors import InputError
from tightfit.media.files import replace_folder, whole_file

T = TypeVar("T")


class Stage:
    """While inside, files are made in a hidden folder beside `out`; `finish` gives it its name.

    Whatever ends it before that leaves the files that are done, each of them whole, and nothing
    else; with none of them the hidden folder goes too. The next `Stage` of the same names finds
    them. One process at a time.

    Attributes:
        out: the name to come.
        folder: where files are made.
        done: how many there are.
    """

    def __init__(self, out: Path, word: str, names: Iterable[Path]) -> None:
        """Nothing is made yet.

        Args:
            out: an absolute path; what is there is replaced by `finish`.
            word: of what is being done, for the hidden folder's name.
            names: all that `out` will hold, relative to it.
        """
        self.out = out
        self.folder = out.with_name(f".{out.name}.{word}")
        self.done = 0
        self._names = frozenset(names)
        self._lock = -1

    def __enter__(self) -> Self:
        """Raises `InputError` where the folder cannot be made, or another process works in it."""
        try:
            self.folder.mkdir(exist_ok=True)
            self._lock = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InputError(f"Cannot write {self.out}: {error.strerror or error}.") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._unlock()
            raise InputError(
                f"Cannot write {self.out}: another process is at it, in {self.folder}."
            ) from None
        except OSError:  # a disk that knows no locks
            self._unlock()
        self._prune()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave nothing behind where nothing was done, now or before."""
        if not any(path.is_file() for path in self.folder.rglob("*")):
            shutil.rmtree(self.folder, ignore_errors=True)
        self._unlock()

    def make(
        self, name: Path, finished: Callable[[Path], T | None], write: Callable[[Path], T]
    ) -> tuple[T, bool]:
        """The file `name`, as it was found or written; and whether it was found.

        Args:
            name: relative to the folder.
            finished: tells of a file found here or in `out` whether it is what is to be made, by
                a value; None where it is not.
            write: writes it to the path it is given.

        Raises `InputError` where the disk is full.
        """
        goal = self.folder / name
        if goal.is_symlink():
            goal.unlink()
        for held in (goal, self.out / name):
            if not held.is_file() or held.is_symlink():
                continue
            found = finished(held)
            if found is not None:
                if held != goal:
                    _take(held, goal)
                self.done += 1
                return found, True
        with whole_file(goal) as part:
            made = write(part)
        self.done += 1
        return made, False

    def link(self, name: Path, text: str) -> None:
        """Make `name` a symbolic link to `text`."""
        goal = self.folder / name
        goal.unlink(missing_ok=True)
        goal.symlink_to(text)

    def finish(self) -> None:
        """The folder becomes `out`; what was there goes."""
        self._prune()
        replace_folder(self.folder, self.out)

    def _prune(self) -> None:
        """Take away what does not belong: halves that a killed process left, other models."""
        for path in sorted(self.folder.rglob("*"), reverse=True):
            if path.relative_to(self.folder) in self._names:
                continue
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def copied(source: Path) -> tuple[Callable[[Path], int | None], Callable[[Path], int]]:
    """How `Stage.make` copies the file `source`; each gives its size in bytes."""

    def finished(held: Path) -> int | None:
        return source.stat().st_size if filecmp.cmp(source, held, shallow=False) else None

    def write(part: Path) -> int:
        shutil.copyfile(source, part)
        return part.stat().st_size

    return finished, write


def _take(held: Path, goal: Path) -> None:
    """The same file under another name; a copy of it where the disk knows no such thing."""
    goal.unlink(missing_ok=True)
    with suppress(OSError):
        os.link(held, goal)
        return
    with whole_file(goal) as part:
        shutil.copyfile(held, part)
