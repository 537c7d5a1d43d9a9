"""Who may read how much at once, and which item was on the table when a worker died."""

from __future__ import annotations

from collections import Counter, defaultdict

TRIES = 3
"""Workers that one item may take with it."""


class Desk:
    """Counts, for all workers of a job: it is one actor, and arithmetic alone.

    Bytes are granted for each machine by itself, since each has its own object store. An item has
    one grant, however often it is asked for; a restarted desk has forgotten all of them, which
    costs some bytes for a moment and nothing else.
    """

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of decoded items that may wait on one machine."""
        self._limit = limit
        self._granted: dict[str, dict[int, int]] = defaultdict(dict)
        self._begun: Counter[tuple[int, str]] = Counter()
        self._ended: set[int] = set()
        self._most = 0

    def begin(self, item: int, stage: str) -> int:
        """A worker begins with it; how many began before and told of no end, so died."""
        before = self._begun[item, stage]
        self._begun[item, stage] += 1
        return before

    def end(self, item: int, stage: str) -> None:
        """It came through: what began counts no more."""
        self._begun.pop((item, stage), None)

    def ask(self, item: int, machine: str, size: int) -> bool:
        """Whether `size` bytes may be read on `machine` now.

        One item alone always may, and so may one that is done: it is read once more by who takes
        over from a worker that died, and nobody waits for it.
        """
        if item in self._ended:
            return True
        granted = self._granted[machine]
        others = sum(each for key, each in granted.items() if key != item)
        if others and others + size > self._limit:
            return False
        granted[item] = size
        self._most = max(self._most, others + size)
        return True

    def done(self, item: int) -> None:
        """It waits nowhere any more."""
        self._ended.add(item)
        for granted in self._granted.values():
            granted.pop(item, None)
        for key in [key for key in self._begun if key[0] == item]:
            del self._begun[key]

    def most(self) -> int:
        """The most bytes that were granted on one machine at once."""
        return self._most
