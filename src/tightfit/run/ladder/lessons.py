"""What earlier jobs taught: rungs that ran, but short of workspace."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tightfit import kept

_LIMIT = 500


class Lessons:
    """Remembers, per job, the rungs on which the device silently refused workspaces.

    Such a try succeeds and may be ten times slower (DESIGN §10), so next time the ladder starts
    one rung lower. Kept in `path` between processes when one is given; a file that cannot be read
    or written is as good as none.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._short: dict[str, int] = {}
        if path is not None:
            stored = kept.read(path)
            with suppress(ValueError, TypeError, AttributeError, OverflowError):
                self._short = {str(key): int(value) for key, value in stored.items()}

    def refusals(self, key: str) -> int:
        """How many refusals the rung `key` met last time; 0 if none or never tried."""
        return self._short.get(key, 0)

    def learn(self, key: str, refusals: int) -> None:
        """Remember the outcome of a try."""
        if self._short.get(key, 0) == refusals:
            return
        self._short.pop(key, None)
        if refusals:
            self._short[key] = refusals
        while len(self._short) > _LIMIT:
            self._short.pop(next(iter(self._short)))
        if self._path is not None:
            kept.write(self._path, self._short)
