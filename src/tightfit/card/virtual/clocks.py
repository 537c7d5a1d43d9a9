"""What is known to be done, queue by queue.

Every queue numbers what it is given. A clock says for each queue how much of it is done; marks
carry clocks, waits join them (vector clocks: Fidge 1988, Mattern 1989).
"""

from __future__ import annotations

from itertools import count

Clock = dict[int, int]
"""Of each queue, by number: how many of its entries are done."""

_numbers = count(1)


class Line:
    """One queue: its number, and what is done when its next entry starts."""

    __slots__ = ("__weakref__", "clock", "number")

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.clock: Clock = {self.number: 0}

    def tick(self) -> int:
        """Number the next entry."""
        self.clock[self.number] += 1
        return self.clock[self.number]


def join(clock: Clock, other: Clock) -> None:
    """What is done by either of the two is done by `clock`."""
    for number, done in other.items():
        if done > clock.get(number, 0):
            clock[number] = done
