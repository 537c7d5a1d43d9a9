"""One thread at a time for each module."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

_locks: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()
_guard = threading.Lock()


@contextmanager
def alone(module: nn.Module) -> Iterator[None]:
    """While inside, other threads that want `module` alone wait.

    A module has one place for its weights and one for its feature cache: two jobs at once would
    take each other's. Different modules do not wait for one another; the same thread may enter
    again.
    """
    with _guard:
        lock = _locks.setdefault(module, threading.RLock())
    with lock:
        yield
