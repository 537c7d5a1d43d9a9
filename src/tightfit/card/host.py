"""The host's own memory as a card: what can run without an accelerator runs here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import psutil
import torch

from tightfit.card.base import Card, Observer, Reading
from tightfit.card.host_memory import read_host_memory
from tightfit.card.polling import polled


class HostCard(Card):
    """``cpu``: its allocator keeps no books, so most figures are unknown (None).

    A budget on it is kept by planning alone; nothing can cap the process.
    """

    name = "cpu"
    kind = "cpu"
    allocator = "none"

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def read(self) -> Reading:
        """Total is the smaller of RAM and the limit of our group of processes.

        What others hold of it is what is neither ours nor available: of a large machine's RAM
        they may hold much, and none of what the group's limit leaves us.
        """
        memory = read_host_memory()
        mine = psutil.Process().memory_info().rss
        return Reading(
            total=memory.total,
            allocated=None,
            reserved=None,
            peak_allocated=None,
            peak_reserved=None,
            context=None,
            held_by_others=max(0, memory.total - memory.available - mine),
            free=memory.available,
        )

    def reset_peaks(self) -> None:
        """Nothing is counted."""

    def trim(self) -> None:
        """The C library decides."""

    def drop_scratch(self) -> None:
        """None is counted."""

    def sync(self) -> None:
        """The host never runs behind itself."""

    def check(self) -> None:
        """There are no books to prove."""

    def cap(self, budget: int) -> AbstractContextManager[None]:
        """Nothing can be enforced."""
        del budget
        return nullcontext()

    def alone(self) -> AbstractContextManager[object]:
        """Nobody waits: there is neither a cap nor a peak to share."""
        return nullcontext()

    @contextmanager
    def observe(self, observer: Observer) -> Iterator[None]:
        """Resident memory of the process, looked at every 20 ms."""
        process = psutil.Process()
        with polled(lambda: observer(*([process.memory_info().rss] * 2)), seconds=0.02):
            yield
