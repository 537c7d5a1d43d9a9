"""How far a long job over files has come, in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Watcher = Callable[[str, int, int], None]
"""Called with what is being done, bytes done, and bytes in all."""


class Progress:
    """Adds up what is done, file by file."""

    def __init__(self, watcher: Watcher | None) -> None:
        """`watcher` may be None: then nobody is told."""
        self._watcher = watcher
        self._done = 0
        self._total = 0

    def expect(self, total: int) -> None:
        """All of the work is `total` bytes, and none of it is done."""
        self._done, self._total = 0, total

    @contextmanager
    def on(self, name: str, size: int) -> Iterator[Callable[[int], None]]:
        """While inside, the file `name` is done, which is `size` bytes of work.

        Yields what is to be told of bytes; at the end the file counts as done whatever was told.
        """
        begun = self._done

        def tell(more: int) -> None:
            self._done = min(self._done + more, begun + size)
            self._say(name)

        self._say(name)
        yield tell
        self._done = begun + size
        self._say(name)

    def _say(self, name: str) -> None:
        if self._watcher is not None:
            self._watcher(name, self._done, self._total)
