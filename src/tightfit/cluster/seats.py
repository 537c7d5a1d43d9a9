"""Which of a machine's cards a process takes: a seat, which is free again when it dies."""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path

from tightfit.errors import JobFailed

_PAUSE = 0.1


@dataclass(frozen=True)
class Seats:
    """A file for each card; who holds its lock has the card. A killed process holds none.

    Attributes:
        folder: of the files.
        count: of the cards.
    """

    folder: Path
    count: int

    def take(self, *, patience: float = 60.0) -> int:
        """The number of a free card, which is this process's own until it ends.

        Waits for one that is just being freed. Raises `JobFailed` after `patience` seconds.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        end = time.monotonic() + patience
        while True:
            for number in range(self.count):
                if self._locked(number):
                    return number
            if time.monotonic() > end:
                raise JobFailed(f"All {self.count} cards are taken by other workers of this job.")
            time.sleep(_PAUSE)

    def _locked(self, number: int) -> bool:
        """The descriptor stays open: the lock ends with the process."""
        descriptor = os.open(self.folder / f"{number}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        return True
