"""`pack` and `unpack`: checkpoints in fewer bytes on the disk, and the same bytes back."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightfit.api.packing.folder import convert_folder
from tightfit.api.packing.progress import Progress, Watcher
from tightfit.api.packing.ways import PACK, UNPACK, Part, Way
from tightfit.errors import InputError, UsageError
from tightfit.media.files import check_writable, whole_file

_KIND = ".safetensors"
_INDEX = ".json"
_BUILT = ("random", "mini")


@dataclass(frozen=True)
class PackSummary:
    """What was written.

    Attributes:
        command: ``pack`` or ``unpack``.
        source, out: files or folders.
        parts: the safetensors files, in the order of their names.
        copied: how many other files went with them as they were.
        before_bytes, after_bytes: of all files read, and of all files written.
        seconds: that it took.
    """

    command: str
    source: Path
    out: Path
    parts: tuple[Part, ...]
    copied: int
    before_bytes: int
    after_bytes: int
    seconds: float

    @property
    def packed(self) -> int:
        """Tensors that are packed in the packed form."""
        return sum(part.packed for part in self.parts)

    @property
    def raw(self) -> int:
        """Tensors that are the same in both."""
        return sum(part.raw for part in self.parts)

    @property
    def ratio(self) -> float | None:
        """Bytes written for each byte read; None of nothing."""
        return self.after_bytes / self.before_bytes if self.before_bytes else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON: sizes in bytes."""
        return {
            "version": 1,
            "command": self.command,
            "source": str(self.source),
            "out": str(self.out),
            "before_bytes": self.before_bytes,
            "after_bytes": self.after_bytes,
            "ratio": None if self.ratio is None else round(self.ratio, 6),
            "tensors": {"packed": self.packed, "raw": self.raw},
            "files": [part.as_dict() for part in self.parts],
            "copied": self.copied,
            "seconds": round(self.seconds, 3),
        }


def pack(source: str | Path, out: str | Path, *, progress: Watcher | None = None) -> PackSummary:
    """Write a checkpoint in fewer bytes, from which `unpack` makes the same files again.

    A packed file is an ordinary safetensors file: bf16 tensors that shrink are stored as bytes
    under their own names, everything else as it was. Each tensor is unpacked and compared after it
    was written. A folder takes its name when all of it is done; what was done before an error or a
    kill is kept beside it, and gone on with when the same is asked for again.

    Args:
        source: a safetensors file, or a folder with any at any depth: of a model, or a pipeline.
        out: a file for a file, a folder for a folder. What is there is replaced on success.
        progress: is called with what is being done, and with the bytes done and in all.

    Returns:
        What was written, with sizes.

    Raises `UsageError` and `InputError` for what cannot be packed or written, `JobFailed` where
    the disk gives back other bytes than it was given.
    """
    return _convert(PACK, source, out, progress)


def unpack(source: str | Path, out: str | Path, *, progress: Watcher | None = None) -> PackSummary:
    """Write the files that `pack` was given, byte for byte; every tensor's hash is checked.

    Args:
        source: a file or a folder that `pack` wrote.
        out: as of `pack`.
        progress: as of `pack`.

    Raises as `pack` does, and `InputError` that names the tensor where packed bytes are damaged.
    """
    return _convert(UNPACK, source, out, progress)


def _convert(way: Way, source: str | Path, out: str | Path, watcher: Watcher | None) -> PackSummary:
    began = time.perf_counter()
    if not str(source) or not str(out):
        raise UsageError(f"{way.verb} takes what to {way.verb}, and where to write it.")
    path, goal = _found(way, source), Path(out).expanduser()
    _check_apart(path, goal)
    progress = Progress(watcher)
    if path.is_dir():
        done = convert_folder(way, path, goal, progress)
        parts, copied, before, after = done.parts, done.copied, done.before_bytes, done.after_bytes
    else:
        part = _convert_file(way, path, goal, progress)
        parts, copied, before, after = (part,), 0, part.before_bytes, part.after_bytes
    seconds = time.perf_counter() - began
    return PackSummary(way.verb, path, goal, parts, copied, before, after, seconds)


def _convert_file(way: Way, path: Path, goal: Path, progress: Progress) -> Part:
    opened = way.open(path)
    if opened is None:
        raise InputError(way.nothing(path))
    check_writable(goal, (_KIND,))
    progress.expect(opened.work_bytes)
    with progress.on(path.name, opened.work_bytes) as tell:
        found = opened.finished(goal, tell) if goal.is_file() else None
    if found is not None:
        return Part(path.name, found, kept=True)
    progress.expect(opened.work_bytes)
    with (
        progress.on(path.name, opened.work_bytes) as tell,
        whole_file(goal, needs=opened.result_bytes) as part,
    ):
        return Part(path.name, opened.write(part, tell), kept=False)


def _found(way: Way, source: str | Path) -> Path:
    """The file or folder that is meant, as far as its name tells."""
    kind, colon, _ = str(source).partition(":")
    path = Path(source).expanduser()
    if colon and kind in _BUILT:
        raise UsageError(
            f"`{source}` is no file: its weights are made when it is opened, so there is nothing "
            f"on the disk to {way.verb}. Give a safetensors file or a folder."
        )
    if not path.exists():
        raise InputError(
            f"Cannot {way.verb} {source}: no such file or folder here. One on a hub has to be "
            "downloaded first."
        )
    if path.is_file() and path.name.endswith(_INDEX):
        raise InputError(f"Cannot {way.verb} {source}: give the folder that the index lies in.")
    return path


def _check_apart(path: Path, goal: Path) -> None:
    """Refuse an output that is, holds, or lies in the input."""
    own, other = path.resolve(), goal.resolve()
    if own == other or (goal.exists() and path.samefile(goal)):
        raise UsageError(f"{goal} is the input and the output: give the output another name.")
    if path.is_dir() and other.is_relative_to(own):
        raise UsageError(f"{goal} lies in {path}, which is the input: write beside it.")
    if path.is_dir() and own.is_relative_to(other):
        raise UsageError(f"{goal} holds {path}, which is the input: write beside it.")
    if path.is_dir() and goal.exists() and not goal.is_dir():
        raise InputError(f"Cannot write {goal}: {path} is a folder, and a file is in the way.")
