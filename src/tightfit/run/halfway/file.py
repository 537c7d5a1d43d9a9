"""The file of a job that is half way: safetensors, whole or absent, and who may go on with it."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from tightfit.errors import InputError
from tightfit.run.halfway.trees import Json, on_host

KIND = "tightfit resume"
VERSION = 1
_LONGEST = 60


@dataclass(frozen=True, eq=False)
class Halfway:
    """What a file holds.

    Attributes:
        identity: what the job is; it is gone on with by none that differs.
        state: of the job, packed.
        tensors: those of `state`, by their numbers.
    """

    identity: Mapping[str, str]
    state: Json
    tensors: Sequence[torch.Tensor]


def check_place(path: Path) -> None:
    """Refuse, with `InputError`, a place where no file could be written."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InputError(f"Cannot keep {path}: the folder {folder} does not exist; make it first.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"Cannot keep {path}: no permission to write in the folder {folder}.")
    if path.exists() and not path.is_file():
        raise InputError(f"Cannot keep {path}: it is not a regular file; give another name.")


def write(path: Path, halfway: Halfway) -> None:
    """Make `path` hold `halfway`; whoever reads meanwhile finds the old file or the new one.

    It is on the disk when this returns. Raises `OSError`, and leaves the old one as it was.
    """
    metadata = {
        "kind": KIND,
        "version": str(VERSION),
        "identity": json.dumps(dict(halfway.identity)),
        "state": json.dumps(halfway.state),
    }
    tensors = {
        str(number): on_host(each).contiguous() for number, each in enumerate(halfway.tensors)
    }
    data = save(tensors, metadata=metadata)
    part = path.with_name(f".{path.stem[:40]}-{secrets.token_hex(4)}.part{path.suffix}")
    try:
        with part.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    _sync_folder(path.absolute().parent)


def read(path: Path, identity: Mapping[str, str]) -> Halfway:
    """What `path` holds, if that is a job of this `identity`.

    Raises `InputError` for files that are damaged, of another kind or of another job: it names
    what differs.
    """
    try:
        with safe_open(str(path), framework="pt") as handle:
            metadata = dict(handle.metadata() or {})
            if metadata.get("kind") != KIND:
                raise InputError(
                    f"Cannot resume from {path}: it is no file that was kept for that."
                )
            _check_version(path, metadata)
            kept = dict(json.loads(metadata["identity"]))
            _check_identity(path, kept, identity)
            count = len(handle.keys())
            tensors = [handle.get_tensor(str(number)).clone() for number in range(count)]
            return Halfway(kept, json.loads(metadata["state"]), tensors)
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"Cannot resume from {path}: it is no whole safetensors file ({error}); start from the "
            "beginning."
        ) from error
    except (KeyError, ValueError, TypeError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: object) -> InputError:
    """What is said of a file that makes no sense."""
    return InputError(
        f"Cannot resume from {path}: what it holds makes no sense ({error!r}); start from the "
        "beginning."
    )


def _check_version(path: Path, metadata: Mapping[str, str]) -> None:
    if metadata.get("version") != str(VERSION):
        raise InputError(
            f"Cannot resume from {path}: it is of version {metadata.get('version')}, and this "
            f"program reads version {VERSION}."
        )


def _check_identity(path: Path, kept: Mapping[str, Any], asked: Mapping[str, str]) -> None:
    names = [*kept, *(name for name in asked if name not in kept)]
    differ = [
        f"{name} was {_short(kept.get(name))}, and is {_short(asked.get(name))}"
        for name in names
        if kept.get(name) != asked.get(name)
    ]
    if differ:
        raise InputError(
            f"Cannot resume from {path}: it was kept for another job. {'; '.join(differ)}. "
            "Ask for the same, or start from the beginning."
        )


def _short(value: object) -> str:
    if value is None:
        return "not given"
    text = str(value)
    return f"`{text if len(text) <= _LONGEST else text[:_LONGEST] + '…'}`"


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
