"""Small JSON files of learnt figures: whole or absent, and unreadable is as good as none."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_turns: dict[Path, threading.Lock] = {}
_guard = threading.Lock()


def read(path: Path) -> Any:
    """What `path` holds; None where that cannot be read or is no JSON."""
    with suppress(OSError, ValueError, RecursionError):
        return json.loads(path.read_text(encoding="utf-8"))
    return None


def write(path: Path, value: Any) -> None:
    """Make `path` hold `value`, in a folder that is made if need be; where it cannot, nothing.

    Whoever reads meanwhile finds the old file or the new one; so do other writers.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(value), encoding="utf-8")
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)


@contextmanager
def turn(path: Path) -> Iterator[None]:
    """While inside, other threads that want to change `path` wait; other processes do not."""
    with _guard:
        lock = _turns.setdefault(path, threading.Lock())
    with lock:
        yield
