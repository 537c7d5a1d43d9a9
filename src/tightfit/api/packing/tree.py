"""What lies in a folder, to be written anew elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tightfit.errors import InputError


@dataclass(frozen=True)
class Tree:
    """A folder's content; all paths are relative to `root`.

    Attributes:
        root: the folder itself.
        folders: those in it, outer before inner.
        files: sorted.
        links: symbolic links that lead to something else in the folder, to their text.
    """

    root: Path
    folders: tuple[Path, ...]
    files: tuple[Path, ...]
    links: Mapping[Path, str]

    @property
    def names(self) -> frozenset[Path]:
        """All of it."""
        return frozenset((*self.folders, *self.files, *self.links))


def read_tree(root: Path) -> Tree:
    """All that is in `root`, at any depth.

    A link that leads out of the folder is not followed; in a snapshot of a hub's cache the files
    are links into the cache's ``blobs``, and taken as the files they lead to.

    Raises `InputError` for a link that leads elsewhere, and for what is neither file nor folder.
    """
    own = root.resolve()
    allowed = (own, *_blobs(own))
    folders: list[Path] = []
    files: list[Path] = []
    links: dict[Path, str] = {}
    for path in _walk(own):
        name = path.relative_to(own)
        if path.is_symlink():
            text = os.readlink(path)
            goal = path.resolve()
            if not os.path.isabs(text) and goal.is_relative_to(own) and goal.exists():
                links[name] = text
            elif path.is_file() and any(goal.is_relative_to(each) for each in allowed):
                files.append(name)
            else:
                raise InputError(
                    f"{root / name} is a link to {text}, which is not in the folder: it is not "
                    "followed. Put the file itself there, or take the link away."
                )
        elif path.is_dir():
            folders.append(name)
        elif path.is_file():
            files.append(name)
        else:
            raise InputError(f"{root / name} is neither a file nor a folder: take it away.")
    return Tree(own, tuple(folders), tuple(sorted(files)), links)


def _walk(folder: Path) -> Iterator[Path]:
    """Everything in it, a folder before what it holds; links are not entered."""
    try:
        found = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"Cannot read {folder}: {error.strerror or error}.") from None
    for path in found:
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path)


def _blobs(folder: Path) -> tuple[Path, ...]:
    """Where the files of a snapshot (``…/snapshots/REVISION``) of a hub's cache lie."""
    if folder.parent.name != "snapshots":
        return ()
    blobs = folder.parent.parent / "blobs"
    return (blobs,) if blobs.is_dir() else ()
