"""What every card answers, whatever stands behind it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from tightfit.allocators import ASYNC_GRAIN

Observer = Callable[[int, int], None]
"""Called with (allocated bytes, reserved bytes) whenever they are seen to change."""


@dataclass(frozen=True)
class Reading:
    """One look at a card. Every figure is in bytes; None means that it cannot be known here.

    Attributes:
        total: what the card has.
        allocated: bytes in live tensors of this process.
        reserved: bytes the allocator of this process took from the driver.
        peak_allocated: the highest `allocated` since the last `Card.reset_peaks`.
        peak_reserved: likewise for `reserved`.
        context: what the device context of this process costs outside the allocator.
        held_by_others: what other programs hold.
        refusals: requests that the allocator turned down, raised or not (`num_ooms`).
        retries: times the allocator emptied its cache to go on (`num_alloc_retries`).
        free: what nobody has taken of the card.
        limit: the most that this process may reserve, by a limit that is set now; None is none.
    """

    total: int
    allocated: int | None
    reserved: int | None
    peak_allocated: int | None
    peak_reserved: int | None
    context: int | None
    held_by_others: int | None
    refusals: int | None = None
    retries: int = 0
    free: int | None = None
    limit: int | None = None

    def refused_since(self, before: Reading) -> int | None:
        """Requests turned down since another look; None where the allocator does not count."""
        if self.refusals is None or before.refusals is None:
            return None
        return self.refusals - before.refusals

    @property
    def slack(self) -> int | None:
        """Reserved less allocated."""
        if self.reserved is None or self.allocated is None:
            return None
        return self.reserved - self.allocated

    @property
    def takeable(self) -> int | None:
        """What this process can still reserve: free on the card, and within its limit."""
        if self.free is None or self.limit is None or self.reserved is None:
            return self.free
        return max(0, min(self.free, self.limit - self.reserved))

    @property
    def usable(self) -> int | None:
        """What tensors of this process can still take: slack counts as room, once."""
        return None if self.takeable is None else self.takeable + (self.slack or 0)

    @property
    def used(self) -> int | None:
        """What is really in use on the card, by anybody: all but what is free or slack."""
        return None if self.free is None else self.total - self.free - (self.slack or 0)


_turns: dict[torch.device, threading.RLock] = {}
_guard = threading.Lock()


class Card(ABC):
    """A device with memory.

    Attributes:
        name: how the user wrote it (``cuda:0``, ``virtual:6GiB``).
        kind: ``cuda``, ``cpu`` or ``virtual``.
        allocator: ``native``, ``async``, ``expandable``, ``exact`` or ``none``.
        device: where tensors go.
    """

    name: str
    kind: str
    allocator: str
    device: torch.device

    @property
    def hardware(self) -> str:
        """What learnt figures hold for: the make of the device, with its allocator."""
        return f"{self.name} {self.allocator}"

    @property
    def grain(self) -> int:
        """The step in which ``async`` takes memory, as far as it is known beforehand."""
        return ASYNC_GRAIN

    @property
    def most_at_once(self) -> int | None:
        """Bytes of the largest single allocation, where the back end has such a limit."""
        return None

    @property
    def libraries(self) -> str:
        """Version of the convolution library, which decides on scratch; empty for none."""
        return ""

    @abstractmethod
    def read(self) -> Reading:
        """Look at the card now; never synchronises."""

    @abstractmethod
    def reset_peaks(self) -> None:
        """Start new peaks from the present figures."""

    @abstractmethod
    def trim(self) -> None:
        """Give cached memory back to the driver."""

    @abstractmethod
    def drop_scratch(self) -> None:
        """Give back what libraries keep as scratch, where it holds more than itself in the cache.

        They make it anew when they need it. Nobody may be computing on the card.
        """

    @abstractmethod
    def sync(self) -> None:
        """Wait for the device; errors that it kept back are raised here."""

    @abstractmethod
    def check(self) -> None:
        """Prove the books. Raises `BooksError` naming the figure that does not add up."""

    @abstractmethod
    def cap(self, budget: int) -> AbstractContextManager[None]:
        """While inside, this process cannot reserve more than `budget` bytes."""

    @abstractmethod
    def observe(self, observer: Observer) -> AbstractContextManager[None]:
        """While inside, `observer` is told how memory moves (each change, or often)."""

    def moves(self) -> AbstractContextManager[list[int] | None]:
        """While inside, the list grows by every change of `allocated`, in bytes, in order.

        None where the allocator keeps no history of single allocations.
        """
        return nullcontext()

    def alone(self) -> AbstractContextManager[object]:
        """While inside, other threads that want this device alone wait.

        Caps, peaks and counts of refusals belong to the device and the process, not to a job. The
        same thread may enter again.
        """
        with _guard:
            return _turns.setdefault(self.device, threading.RLock())

    @property
    def spills(self) -> bool:
        """Whether the driver, when the card is full, goes on in the host's memory.

        That is ten times slower, and nothing is raised: somebody else has to keep to what there is.
        """
        return False

    def supports(self, dtype: torch.dtype) -> bool:
        """Whether the card computes in `dtype`."""
        del dtype
        return True

    def generator(self, seed: int) -> torch.Generator:
        """A seeded generator that random operators on this card accept."""
        kind = self.device.type if self.device.type in ("cpu", "cuda") else "cpu"
        device = self.device if kind == "cuda" else torch.device("cpu")
        return torch.Generator(device).manual_seed(seed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"
