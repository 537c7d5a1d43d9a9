"""Looking at figures at intervals, for devices that do not tell of changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def polled(look: Callable[[], None], *, seconds: float) -> Iterator[None]:
    """Call `look` every so many seconds in a thread, and once at the start and the end."""
    done = threading.Event()

    def loop() -> None:
        while not done.wait(seconds):
            look()

    thread = threading.Thread(target=loop, name="tightfit-observer", daemon=True)
    look()
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        look()
