"""Hash lists: what each tensor of a checkpoint was, in a file beside it.

``MODEL.sha256.json`` is a JSON object from the names of tensors to the SHA-256 of their bytes as
they lie in the file, in hex, with two more: `HEADER`, of everything in front of the tensors (names,
types, shapes), and `WHOLE`, of the file, which is the hash that hubs and ``sha256sum`` tell. No
torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tightfit.weigh.files.gguf_header import gguf_places
from tightfit.weigh.files.headers import is_gguf
from tightfit.weigh.files.safetensors_layout import read_layout
from tightfit.weigh.files.tensor_header import unreadable

HEADER = "__header__"
WHOLE = "__file__"
ENDING = ".sha256.json"
_HEX = re.compile(r"[0-9a-f]{64}")
_CHUNK = 2**24
_LONGEST = 2**28
_READERS = 4

Tell = Callable[[int], None]
"""Told of bytes that were hashed."""


@dataclass(frozen=True)
class Difference:
    """What is not as it was.

    Attributes:
        name: of a tensor, `HEADER` or `WHOLE`.
        kind: ``changed``, ``missing`` (listed, and not in the file) or ``unlisted``.
    """

    name: str
    kind: str


def list_beside(path: Path) -> Path:
    """Where the hash list of the file at `path` lies, whether it is there or not."""
    return path.with_name(path.name + ENDING)


def places(path: Path) -> dict[str, tuple[int, int]]:
    """Bytes [begin, end) in the file at `path` of its header and of each tensor, ties by each name.

    Raises `InputError` for a file that is missing, damaged or of another kind.
    """
    if is_gguf(path):
        start, found = gguf_places(path)
    else:
        layout = read_layout(path)
        start = layout.start
        found = {each.name: (start + each.begin, start + each.end) for each in layout.entries}
    return {HEADER: (0, start), **found}


def hashes_of(path: Path, *, tell: Tell | None = None) -> dict[str, str]:
    """The hash list of the file at `path` as it is now. Raises `InputError` as `places` does."""
    found = places(path)
    size = path.stat().st_size
    with ThreadPoolExecutor(_READERS) as readers:
        try:
            whole = readers.submit(_hash, path, 0, size, tell)
            parts = {name: readers.submit(_hash, path, *place) for name, place in found.items()}
            return {WHOLE: whole.result()} | {name: each.result() for name, each in parts.items()}
        except OSError as error:
            raise unreadable(path, error.strerror or str(error)) from None


def file_hash(path: Path, *, tell: Tell | None = None) -> str:
    """SHA-256 of the whole file. Raises `InputError` where it cannot be read."""
    try:
        return _hash(path, 0, path.stat().st_size, tell)
    except OSError as error:
        raise unreadable(path, error.strerror or str(error)) from None


def read_list(path: Path) -> dict[str, str] | None:
    """The hash list beside the file at `path`; None where there is none.

    Raises `InputError` for one that is damaged.
    """
    beside = list_beside(path)
    try:
        if beside.stat().st_size > _LONGEST:
            raise unreadable(beside, f"a hash list has {_LONGEST:,} bytes at most")
        listed = json.loads(beside.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(beside, error.strerror or str(error)) from None
    except (ValueError, RecursionError):
        raise unreadable(beside, "it is no JSON, so no hash list") from None
    hashes = listed.values() if isinstance(listed, dict) else [None]
    if not all(isinstance(each, str) and _HEX.fullmatch(each) for each in hashes):
        raise unreadable(beside, "it is no object from names to SHA-256 in hex, so no hash list")
    return dict(listed)


def known_hash(path: Path) -> str | None:
    """Of the whole file at `path`, as its list or the name of its blob in a hub's cache says.

    It is not hashed for that; None where nobody says it. Raises `InputError` for a damaged list.
    """
    listed = read_list(path)
    if listed is not None and WHOLE in listed:
        return listed[WHOLE]
    return blob_hash(path)


def blob_hash(path: Path) -> str | None:
    """What the name says of a file in a hub's cache, where links lead to files named by hash."""
    real = path.resolve()
    named = real.parent.name == "blobs" and _HEX.fullmatch(real.name)
    return real.name if named else None


def differences(listed: Mapping[str, str], found: Mapping[str, str]) -> tuple[Difference, ...]:
    """What is not as `listed`, tensors first; a list may leave out `HEADER` and `WHOLE`."""
    general = (HEADER, WHOLE)
    kinds = {name: "missing" for name in listed if name not in found}
    kinds |= {name: "unlisted" for name in found if name not in listed and name not in general}
    kinds |= {name: "changed" for name in found if listed.get(name, found[name]) != found[name]}
    ordered = sorted(kinds, key=lambda name: (name in general, name))
    return tuple(Difference(name, kinds[name]) for name in ordered)


def as_text(hashes: Mapping[str, str]) -> str:
    """The text of a hash list."""
    return json.dumps(dict(hashes), indent=0, sort_keys=True) + "\n"


def _hash(path: Path, begin: int, end: int, tell: Tell | None = None) -> str:
    digest = sha256()
    with path.open("rb", buffering=0) as file:
        file.seek(begin)
        while begin < end:
            chunk = file.read(min(_CHUNK, end - begin))
            if not chunk:
                raise OSError(f"it became shorter while it was read: byte {begin:,} is gone")
            digest.update(chunk)
            begin += len(chunk)
            if tell is not None:
                tell(len(chunk))
    return digest.hexdigest()
