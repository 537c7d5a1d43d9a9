"""`verify`: whether checkpoints are still what they were, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tightfit.api.packing.progress import Progress, Watcher
from tightfit.errors import InputError, UsageError
from tightfit.media.files import whole_file
from tightfit.weigh.files.hash_lists import (
    WHOLE,
    Difference,
    Tell,
    as_text,
    blob_hash,
    differences,
    file_hash,
    hashes_of,
    list_beside,
    places,
    read_list,
)
from tightfit.weigh.files.headers import is_gguf, read_header
from tightfit.weigh.files.packed_file import is_packed
from tightfit.weigh.files.safetensors_layout import read_layout

_KINDS = (".safetensors", ".gguf")
_LATENT, _HASH = "latent", "sha256"


@dataclass(frozen=True)
class VerifiedFile:
    """One file.

    Attributes:
        path: of it.
        against: ``list`` (beside it), ``packed`` or ``latent`` (hashes within it), ``cache`` (its
            name in a hub's cache), ``written`` where a list was made; None: nothing says what the
            file should be.
        tensors: how many it has; None where its header cannot be read.
        size_bytes: of the file.
        differences: what is not as it was; a file as a whole is named by ``__file__``.
        error: why it cannot be read, where it cannot.
    """

    path: Path
    against: str | None
    tensors: int | None
    size_bytes: int
    differences: tuple[Difference, ...] = ()
    error: str | None = None

    @property
    def good(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.differences and self.error is None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "path": str(self.path), "good": self.good}


@dataclass(frozen=True)
class Verified:
    """All files, in the order of their names."""

    files: tuple[VerifiedFile, ...]

    @property
    def good(self) -> bool:
        """Whether nothing speaks against any of them."""
        return all(each.good for each in self.files)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: sizes in bytes."""
        return {
            "version": 1,
            "command": "verify",
            "good": self.good,
            "files": [each.as_dict() for each in self.files],
        }


def verify(
    paths: str | Path | Iterable[str | Path],
    *,
    write: bool = False,
    progress: Watcher | None = None,
) -> Verified:
    """Compare checkpoints with their hash lists, or write these.

    A list lies beside its file and is called ``MODEL.safetensors.sha256.json``. Where there is
    none, what the file itself (packed files, latents) or its name in a hub's cache says is used.

    Args:
        paths: files, indices of shards, or folders, in which every ``.safetensors`` and ``.gguf``
            at any depth is meant.
        write: write the lists anew instead, from the files as they are now.
        progress: is called with a file's name, and with the bytes done and in all.

    Returns:
        File by file what differs. A file that is cut off or damaged in its header is one of them.

    Raises:
        InputError: for what is not there or holds no such file, for a list that is damaged or
            cannot be written, and where nothing says what any of the files should be.
    """
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    files = list(dict.fromkeys(file for each in given for file in _files(Path(each).expanduser())))
    if not files:
        raise UsageError("verify takes a file or a folder.")
    told = Progress(progress)
    told.expect(sum(file.stat().st_size for file in files))
    done = []
    for file in files:
        with told.on(file.name, file.stat().st_size) as tell:
            done.append(_write(file, tell) if write else _compared(file, tell))
    if not write and all(each.against is None and each.error is None for each in done):
        raise InputError(
            f"Cannot verify {given[0]}: nothing says what it should be. Write a hash list from a "
            f"copy that is known to be good: `tightfit verify --write {given[0]}`."
        )
    return Verified(tuple(done))


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.suffix in _KINDS and file.is_file())
        if not found:
            raise InputError(f"Cannot verify {path}: it holds no .safetensors and no .gguf file.")
        return found
    if not path.is_file():
        raise InputError(f"Cannot verify {path}: there is no such file or folder.")
    if path.name.endswith(".json"):
        try:
            return list(read_header(path).files)
        except InputError as error:
            raise _said(error) from None
    return [path]


def _write(path: Path, tell: Tell) -> VerifiedFile:
    size = path.stat().st_size
    try:
        hashes = hashes_of(path, tell=tell)
    except InputError as error:
        return VerifiedFile(path, None, None, size, error=str(_said(error)))
    with whole_file(list_beside(path)) as part:
        part.write_text(as_text(hashes), encoding="utf-8")
    return VerifiedFile(path, "written", len(hashes) - 2, size)


def _compared(path: Path, tell: Tell) -> VerifiedFile:
    size = path.stat().st_size
    try:
        listed = read_list(path)
    except InputError as error:
        raise _said(error) from None
    try:
        tensors = len(places(path)) - 1
        if listed is not None:
            wrong = differences(listed, hashes_of(path, tell=tell))
            return VerifiedFile(path, "list", tensors, size, wrong)
        inside = _by_itself(path)
        if inside is not None:
            return VerifiedFile(path, inside[0], tensors, size, inside[1])
        blob = blob_hash(path)
        if blob is not None:
            wrong = differences({WHOLE: blob}, {WHOLE: file_hash(path, tell=tell)})
            return VerifiedFile(path, "cache", tensors, size, wrong)
    except InputError as error:
        return VerifiedFile(path, None, None, size, error=str(_said(error)))
    return VerifiedFile(path, None, tensors, size)


def _by_itself(path: Path) -> tuple[str, tuple[Difference, ...]] | None:
    """What the hashes within a file say, and how it is called; None where it has none."""
    if is_gguf(path):
        return None
    layout = read_layout(path)
    if is_packed(layout.metadata):
        from tightfit.place.packing.packed_file import PackedFile

        file = PackedFile(path)
        wrong = []
        for name in file:
            try:
                file.unpacked(name)
            except InputError:
                wrong.append(Difference(name, "changed"))
        return "packed", tuple(wrong)
    if _HASH in layout.metadata and any(each.name == _LATENT for each in layout.entries):
        from tightfit.media.latents import load_latent

        try:
            load_latent(path)
        except InputError:
            return "latent", (Difference(WHOLE, "changed"),)
        return "latent", ()
    return None


def _said(error: InputError) -> InputError:
    """The words of those who weigh files, for this work."""
    return InputError(str(error).replace("Cannot weigh", "Cannot verify", 1))
