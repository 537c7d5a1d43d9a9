"""Looking at figures at intervals, for devices that do not tell of changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def polled(look: Callable[[], None], *, seconds: float) -> Iterator[None]:
    """Call `look` every so many seconds in a thread, and once at the start and the end."""
    done = threading.Event()

    def loop() -> None:
        with suppress(RuntimeError):
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
        with suppress(RuntimeError):  # a broken device must not hide what broke it
            look()
