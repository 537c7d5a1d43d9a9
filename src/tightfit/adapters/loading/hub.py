"""Pipelines of a hub: what they are, and then their weights, by diffusers' own machinery."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tightfit.adapters.libraries import class_named, quiet
from tightfit.errors import InputError

_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SMALL = ("*.json", "*.txt", "*.model", "*.jinja")


def is_hub_id(spec: str) -> bool:
    """Whether `spec` looks like the name of a repository."""
    return _ID.fullmatch(spec) is not None


def fetch_configurations(spec: str) -> Path:
    """The folder of the repository `spec` without its weights: fetched, or found in the cache.

    Raises `InputError` where it cannot be had.
    """
    from huggingface_hub import snapshot_download

    try:
        with quiet():
            folder = Path(snapshot_download(spec, allow_patterns=list(_SMALL)))
    except Exception as error:
        raise _unreachable(spec, error) from None
    if not (folder / "model_index.json").is_file():
        raise InputError(f"`{spec}` was found on the hub, and is no pipeline: no model_index.json.")
    return folder


def fetch_pipeline(spec: str, *, without: Iterable[str] = ()) -> Path:
    """Its folder with all that is needed; weights of the parts `without` are left there."""
    pipeline = class_named("diffusers", "DiffusionPipeline")
    try:
        with quiet():
            return Path(pipeline.download(spec, **dict.fromkeys(without)))
    except Exception as error:
        raise _unreachable(spec, error) from None


def _unreachable(spec: str, error: Exception) -> InputError:
    lines = str(error).strip().splitlines() or [""]
    return InputError(
        f"`{spec}` is no folder or file here, and could not be fetched from the hub "
        f"({type(error).__name__}: {lines[0][:160].rstrip('.')})."
    )
