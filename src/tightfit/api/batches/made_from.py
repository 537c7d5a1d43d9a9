"""Of what and how an output was made: what tells whether it has to be made again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.errors import InputError
from tightfit.media.files import whole_file
from tightfit.media.latents import load_latent, probe_latent

if TYPE_CHECKING:
    from tightfit.api.work import Chosen

RECORD = ".tightfit-batch.json"
"""In the folder of the outputs: of those that have no place for it themselves."""
_CHUNK = 2**22


def made_from(source: Path, chosen: Chosen, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The source's hash, the VAE, and the settings that change what comes out; plain JSON.

    Raises `InputError` where the source cannot be read.
    """
    return made_of(content_of(source), told_of(chosen), settings)


def made_of(content: str, vae: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same, of a source whose hash is known, with what `told_of` said."""
    told = {"sha256": content, "vae": dict(vae), "settings": dict(settings)}
    plain: dict[str, Any] = json.loads(json.dumps(told))
    return plain


def latent_is_made(out: Path, wanted: Mapping[str, Any]) -> bool:
    """Whether the latent at `out` is whole, and made of this in this way."""
    try:
        return probe_latent(out).source == wanted and load_latent(out).source == wanted
    except InputError:
        return False


class Record:
    """What the outputs in a folder were made of, in a file beside them."""

    def __init__(self, folder: Path) -> None:
        """An absent or damaged file knows nothing."""
        self._path = folder / RECORD
        try:
            known = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            known = {}
        self._known: dict[str, Any] = known if isinstance(known, dict) else {}

    def is_made(self, out: Path, wanted: Mapping[str, Any]) -> bool:
        """Whether `out` is as it was written, and made of this in this way."""
        told = self._known.get(out.name)
        try:
            return told == {"from": wanted, "sha256": content_of(out)}
        except InputError:
            return False

    def add(self, out: Path, wanted: Mapping[str, Any]) -> None:
        """`out` was written. Raises `InputError` where the disk is full."""
        self._known[out.name] = {"from": dict(wanted), "sha256": content_of(out)}
        with whole_file(self._path) as part:
            part.write_text(json.dumps(self._known, indent=1), encoding="utf-8")


def content_of(path: Path) -> str:
    """SHA-256 of a file, or of the names and bytes of the files in a folder.

    Raises `InputError` where it cannot be read.
    """
    digest = sha256()
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        for file in files:
            if len(files) > 1 or path.is_dir():
                digest.update(file.name.encode() + b"\0")
            with file.open("rb") as opened:
                while chunk := opened.read(_CHUNK):
                    digest.update(chunk)
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}.") from None
    return digest.hexdigest()


def told_of(chosen: Chosen) -> dict[str, Any]:
    """What tells it from others without reading its weights: its files' sizes and times."""
    if chosen.ready is not None:
        return {"name": chosen.traits.name, "hash": chosen.ready.identity}
    source = chosen.source
    assert source is not None
    told: dict[str, Any] = {"name": chosen.traits.name, "spec": source.spec}
    if source.path is not None and not source.spec.startswith("mini:"):
        files = [source.path] if source.path.is_file() else sorted(source.path.glob("*"))
        told["files"] = {
            file.name: [file.stat().st_size, file.stat().st_mtime_ns]
            for file in files
            if file.is_file()
        }
    return told
