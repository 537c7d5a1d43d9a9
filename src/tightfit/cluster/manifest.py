"""A list of inputs in a file: JSON lines or CSV, refused before any work where a line is wrong."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from tightfit.errors import InputError

KINDS = (".jsonl", ".ndjson", ".csv")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_LONGEST = 200
"""Bytes of a name, so that a temporary one fits beside it."""


@dataclass(frozen=True)
class Entry:
    """One line.

    Attributes:
        line: its number, from 1.
        path: of the input.
        sha256: that the input must have, in lower case; None is any.
        name: of the output, without its ending.
    """

    line: int
    path: Path
    sha256: str | None
    name: str


def is_manifest(sources: Sequence[str | Path]) -> bool:
    """Whether one file is given that lists others, by its ending."""
    return len(sources) == 1 and Path(sources[0]).suffix.lower() in KINDS


def read_manifest(path: Path) -> tuple[Entry, ...]:
    """Its entries, in order.

    A line has ``path``, which is relative to the manifest, and may have ``sha256`` and ``name``;
    what else it has is not looked at. Without a name an output is called as its input without the
    ending, or with it where several inputs share the rest.

    Raises `InputError` with the number of the first line that is wrong: no JSON object, no path, a
    file that is not there, one that was named before, a hash or a name that is none.
    """
    rows = [(line, _checked(path, line, row)) for line, row in _rows(path)]
    if not rows:
        raise InputError(f"Cannot use {path}: it lists nothing.")
    stems = Counter(source.stem for _, (source, _, name) in rows if name is None)
    entries, names, sources = [], dict[str, int](), dict[Path, int]()
    for line, (source, sha256, asked) in rows:
        name = asked or (source.stem if stems[source.stem] == 1 else source.name)
        _once(path, line, sources, source.resolve(), f"the file {source}")
        _once(path, line, names, name, f"an output called `{name}`")
        entries.append(Entry(line, source, sha256, name))
    return tuple(entries)


def _once(path: Path, line: int, known: dict[Any, int], key: object, what: str) -> None:
    first = known.setdefault(key, line)
    if first != line:
        raise _wrong(path, line, f"it names {what}, as line {first} does")


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if path.suffix.lower() == ".csv":
                reader = csv.DictReader(file, strict=True)
                if "path" not in (reader.fieldnames or ()):
                    raise _wrong(path, 1, "the first line of a CSV names its columns, `path` too")
                for row in reader:
                    yield reader.line_num, row
                return
            for number, text in enumerate(file, 1):
                if text.strip():
                    yield number, _object(path, number, text)
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"Cannot read {path}: {error}.") from None


def _object(path: Path, number: int, text: str) -> Mapping[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        raise _wrong(path, number, "it is no JSON") from None
    if not isinstance(row, dict):
        raise _wrong(path, number, "it is no JSON object")
    return row


def _checked(path: Path, line: int, row: Mapping[str, Any]) -> tuple[Path, str | None, str | None]:
    """Of one line: the input, its hash, and the name that is asked for."""
    given, sha256, name = (row.get(key) or None for key in ("path", "sha256", "name"))
    if not isinstance(given, str) or "\0" in given:
        raise _wrong(path, line, "it has no `path`")
    if ".." in PurePosixPath(given).parts:
        raise _wrong(path, line, f"`{given}` leads out of the folder")
    if sha256 is not None and not (isinstance(sha256, str) and _SHA256.fullmatch(sha256)):
        raise _wrong(path, line, f"`{sha256}` is no SHA-256: write 64 hexadecimal digits")
    if name is not None:
        _check_name(path, line, name)
    source = path.parent / given
    if not source.exists():
        raise _wrong(path, line, f"there is no file {source}")
    stem = source.name if name is None else ""
    if len(stem.encode()) > _LONGEST:
        raise _wrong(path, line, f"`{stem}` is too long to name an output: give it a `name`")
    return source, None if sha256 is None else sha256.lower(), name


def _check_name(path: Path, line: int, name: object) -> None:
    plain = (
        isinstance(name, str)
        and name.isprintable()
        and not name.startswith(".")
        and not set(name) & set("/\\")
        and len(name.encode()) <= _LONGEST
    )
    if not plain:
        raise _wrong(
            path, line, f"`{name}` cannot name an output: use letters and digits, without folders"
        )


def _wrong(path: Path, line: int, what: str) -> InputError:
    """In one line, whatever the file holds."""
    plain = "".join(each if each.isprintable() else "?" for each in what)
    return InputError(f"Cannot use {path}: in line {line} {plain}.")
