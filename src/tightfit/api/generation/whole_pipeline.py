"""`load_pipeline`: a pipeline from a SPEC, ready to be fitted or called."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tightfit.adapters.loading import whole
from tightfit.adapters.specs import parse_dtype
from tightfit.api.generation.choice import check_weights


def load_pipeline(
    spec: str | Path,
    *,
    parts: Mapping[str, str | Path] | None = None,
    base: str | None = None,
    weights: str | None = None,
    dtype: str = "auto",
    scheduler: str | None = None,
) -> Any:
    """A pipeline of diffusers with its weights on the host.

    Args:
        spec: ``random:NAME``, a diffusers folder, a file of a denoiser, or a hub id.
        parts: networks from files of their own, by their names in the pipeline.
        base: where the rest comes from, if `spec` is one file.
        weights: ``bf16`` or ``fp8``, what weights become while they are loaded.
        dtype: to compute in; ``auto`` is as stored.
        scheduler: such as ``unipc``, or a class of diffusers.

    Raises `UsageError` for what cannot be meant, and `InputError` for what cannot be read.
    """
    check_weights(weights)
    files = {name: Path(path) for name, path in (parts or {}).items()}
    source = whole.find_pipeline(str(spec), parts=files, base=base)
    return whole.load_pipeline(
        source, dtype=parse_dtype(dtype), weights=weights, scheduler=scheduler
    )
