"""A flag that stops a job at the next safe point."""

from __future__ import annotations

import threading

from tightfit.errors import Cancelled


class Cancel:
    """Set it from any thread; the job raises `Cancelled` before its next tile."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Ask the job to stop."""
        self._event.set()

    def check(self) -> None:
        """Raise `Cancelled` if somebody asked."""
        if self._event.is_set():
            raise Cancelled("The job was cancelled; nothing was written.")
