"""Opens what FFmpeg reads, within limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def open_container(path: Path, limits: Mapping[str, str]) -> Any:
    """A container of PyAV, by the options of FFmpeg in `limits`. Raises what PyAV raises.

    From version 19 on, PyAV itself replaces what is no text in titles and comments.
    """
    import av

    old = int(av.__version__.partition(".")[0]) < 19
    lenient: dict[str, Any] = {"metadata_errors": "replace"} if old else {}
    return av.open(f"file:{path}", options=dict(limits), **lenient)
