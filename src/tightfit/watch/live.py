"""Events as they happen, for whoever looks on from another process."""

from __future__ import annotations

import json
import os
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

from tightfit.settings import Settings

_OFTEN = 0.05
"""Seconds between two looks at memory that are passed on; single moves never are."""
_FINE = frozenset(("allocate", "free", "reserve", "release"))


class Live:
    """A file that events are appended to, a line each. What cannot be written is let go."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._lock = threading.Lock()
        self._looked = 0.0

    def tell(self, kind: str, line: dict[str, Any]) -> None:
        """Pass `line` on, unless there are too many of its kind."""
        now = time.monotonic()
        if kind in _FINE or (kind == "memory" and now - self._looked < _OFTEN):
            return
        if kind == "memory":
            self._looked = now
        text = json.dumps(line, separators=(",", ":"), default=str) + "\n"
        try:
            with self._lock:
                if self._file is None:
                    self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
                os.write(self._file, text.encode())
        except OSError:  # nobody looks on any more
            self._file = None


@cache
def live() -> Live | None:
    """Where this process passes events on, as the environment says; None for nowhere."""
    path = Settings.from_environ().events
    return None if path is None else Live(path)
