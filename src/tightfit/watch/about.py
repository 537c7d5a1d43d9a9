"""Which versions of what took part."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

_TOLD = ("tightfit", "torch", "diffusers", "transformers", "accelerate", "safetensors")


@cache
def versions() -> dict[str, str]:
    """Of Python, ourselves, and the libraries that are installed; nothing is imported for it."""
    found = {"python": platform.python_version(), "system": platform.system()}
    for name in _TOLD:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
