"""The virtual card: a fixed amount of memory, an allocator model, books, and faults on demand."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tightfit import allocators as models
from tightfit.card.base import Card, Observer, Reading
from tightfit.card.virtual.backend import register
from tightfit.card.virtual.clocks import Clock
from tightfit.card.virtual.driver import Driver
from tightfit.card.virtual.faults import Faults, Form, exception_of
from tightfit.card.virtual.keeper import DEVICE_TYPE, keepers
from tightfit.card.virtual.spec import VirtualSpec
from tightfit.card.virtual.traffic import Traffic
from tightfit.errors import BooksError, UsageError
from tightfit.units import format_bytes

_MOST_CARDS = 128  # PyTorch counts devices in a signed byte
_opening = threading.Lock()


class VirtualCard(Card):
    """A card that exists on any machine; values are real and computed on the host.

    Attributes:
        spec: what it was opened as.
        index: N of its device ``vcard:N``.
        faults: switches; see `Faults`.
        syncs: how often somebody waited for it.
        allocations: how many requests were served.
        frees: how many frees were delayed.
        traffic: who touches which bytes, where `Faults.lanes` is on.
    """

    kind = "virtual"

    def __init__(self, spec: VirtualSpec) -> None:
        register()
        self.spec = spec
        self.name = spec.name
        self.allocator = spec.allocator
        self.faults = Faults()
        self.syncs = 0
        self.allocations = 0
        self.frees = 0
        self.traffic = Traffic(self.faults)
        self._refusals = 0
        self._peak_allocated = 0
        self._peak_reserved = 0
        self._late: list[Exception] = []
        self._waiting: list[models.Block] = []
        self._waiting_bytes = 0
        self._observers: list[Observer] = []
        self._lock = threading.RLock()
        self._busy = False
        self._deferred: list[models.Block] = []
        # The allocator knows the driver and not the card: a card that nobody holds is gone at once.
        self._driver = Driver(spec.total, spec.context, spec.others, self.faults)
        self._model = models.open_allocator(
            spec.allocator, self._driver.grow, self._driver.shrink, grain=spec.grain
        )
        with _opening:
            free = (index for index in range(_MOST_CARDS) if index not in keepers)
            self.index = next(free, _MOST_CARDS)
            if self.index == _MOST_CARDS:
                raise UsageError(
                    f"card `{self.name}`: {_MOST_CARDS} virtual cards are open, and there can be "
                    "no more."
                )
            keepers[self.index] = self
        self.device = torch.device(DEVICE_TYPE, self.index)

    # What a card answers

    @property
    def grain(self) -> int:
        """As it was described."""
        return self.spec.grain

    @property
    def most_at_once(self) -> int | None:
        """See `Faults.max_allocation`."""
        return self.faults.max_allocation

    def read(self) -> Reading:
        """The books; on a virtual card everything is known."""
        with self._books():
            return Reading(
                total=self.spec.total,
                allocated=self._allocated(),
                reserved=self._model.reserved,
                peak_allocated=self._peak_allocated,
                peak_reserved=self._peak_reserved,
                context=self.spec.context,
                held_by_others=self._driver.others,
                refusals=self._refusals,
                retries=self._model.retries,
                free=max(0, self._driver.free),
                limit=self._driver.cap,
            )

    def reset_peaks(self) -> None:
        """Start new peaks from the present figures."""
        with self._books():
            self._peak_allocated = self._allocated()
            self._peak_reserved = self._model.reserved

    @property
    def spilled(self) -> int:
        """The most bytes that were granted over the card's size, in spill mode."""
        return self._driver.spilled

    def trim(self) -> None:
        """Count delayed frees, then give cached memory back."""
        with self._books():
            self._count_frees(self.frees)
            self._model.trim()
        self._tell()

    def drop_scratch(self) -> None:
        """There is none that outlives an operator."""

    def sync(self) -> None:
        """Count delayed frees, and raise an error that was kept back."""
        self.syncs += 1
        self.traffic.host_waits_for_all()
        self.settle()

    @property
    def hazards(self) -> tuple[str, ...]:
        """What lacked a wait, a sentence for each; see `Faults.lanes`."""
        return self.traffic.hazards

    def await_point(self, clock: Clock, frees: int) -> None:
        """Wait until a mark is passed: `sync`, as far as that and the first `frees` frees."""
        self.syncs += 1
        self.traffic.host_waits(clock)
        self._catch_up(frees)

    def check(self) -> None:
        """The allocator's books add up, and stay inside the card."""
        with self._books():
            self._model.check()
            driver = self._driver
            if driver.reserved != self._model.reserved:
                raise BooksError(
                    f"{self.name}: the allocator says it reserved {self._model.reserved}, the "
                    f"driver says {driver.reserved}"
                )
            if driver.free + driver.spilled < 0:
                raise BooksError(
                    f"{self.name}: {driver.total - driver.free} of {driver.total} bytes are in use"
                )

    @contextmanager
    def cap(self, budget: int) -> Iterator[None]:
        """While inside, reserved stays at or below `budget`; a tighter cap outside stays."""
        before = self._driver.cap
        self._driver.cap = budget if before is None else min(before, budget)
        if self._driver.reserved > self._driver.cap:
            self.trim()
        try:
            yield
        finally:
            self._driver.cap = before

    @contextmanager
    def observe(self, observer: Observer) -> Iterator[None]:
        """Every single change is told."""
        self._observers.append(observer)
        self._tell()
        try:
            yield
        finally:
            self._observers.remove(observer)

    @contextmanager
    def moves(self) -> Iterator[list[int] | None]:
        """Every single change."""
        changes: list[int] = []
        last = self.read().allocated or 0

        def look(allocated: int, reserved: int) -> None:
            nonlocal last
            del reserved
            if allocated != last:
                changes.append(allocated - last)
            last = allocated

        with self.observe(look):
            yield changes

    @property
    def spills(self) -> bool:
        """In spill mode; see `Faults.spill`."""
        return self.faults.spill

    def supports(self, dtype: torch.dtype) -> bool:
        """Everything, but bfloat16 where the card has none."""
        return self.spec.bf16 or dtype != torch.bfloat16

    # A second client

    def occupy(self, size: int) -> None:
        """Another program takes `size` bytes. Raises `torch.OutOfMemoryError` if they are gone."""
        with self._books():
            free = self._driver.free
            if size > free:
                raise torch.OutOfMemoryError(
                    f"the other program wants {format_bytes(size)}; "
                    f"{format_bytes(max(free, 0))} is free"
                )
            self._driver.others += size

    def vacate(self, size: int) -> None:
        """Another program gives `size` bytes back."""
        with self._books():
            self._driver.others = max(0, self._driver.others - size)

    # What the tensors of this card call

    def charge(self, size: int, operator: str) -> models.Block:
        """Allocate; raises what a driver would raise. Nothing is asked of it for 0 bytes."""
        if size == 0:
            return models.Block(0, 0)
        if self.faults.on_allocate is not None:
            self.faults.on_allocate(operator, size)
        with self._books():
            self.allocations += 1
            fault = self.faults.due()
            if fault is not None:
                self._refusals += fault.form is not Form.ILLEGAL_ACCESS
                if not fault.late:
                    raise exception_of(fault.form, want=size, text=self._sentence(size))
                self._late.append(exception_of(fault.form, want=size, text=self._sentence(size)))
            limit = self.faults.max_allocation
            if limit is not None and size > limit:
                self._refusals += 1
                raise torch.OutOfMemoryError(
                    f"{self.device}: {format_bytes(size)} is above the largest single "
                    f"allocation, {format_bytes(limit)}"
                )
            try:
                block = self._model.take(size)
            except models.Full:
                self._refusals += 1
                raise torch.OutOfMemoryError(self._sentence(size)) from None
            self._peak_allocated = max(self._peak_allocated, self._allocated())
            self._peak_reserved = max(self._peak_reserved, self._model.reserved)
        self._tell()
        return block

    def discharge(self, block: models.Block) -> None:
        """Free; in the middle of another entry (a collector's doing) it is put off."""
        if block.size == 0:
            return
        with self._lock:
            if self._busy:
                self._deferred.append(block)
                return
            with self._books():
                self._free(block)
        self._tell()

    def workspace(self, operator: str, size: int) -> tuple[Any, bool]:
        """Hidden room of an operator with `size` input bytes; see `Faults.workspace`."""
        if self.faults.workspace is None:
            return None, False
        want = self.faults.workspace(operator, size)
        if want <= 0:
            return None, False
        if not self.faults.silent_workspace:
            return self.charge(want, operator), False
        try:
            return self.charge(want, operator), False
        except torch.OutOfMemoryError:
            return None, True

    def computes(self, dtype: torch.dtype) -> None:
        """Raise `RuntimeError` for a dtype that the card lacks."""
        if not self.supports(dtype):
            raise RuntimeError(f"{self.device} ({self.name}) does not compute in {dtype}")

    def ceiling(self) -> int | None:
        """See `Faults.element_ceiling`."""
        return self.faults.element_ceiling

    def settle(self) -> None:
        """Count delayed frees, and raise the oldest error that was kept back."""
        self.traffic.host_waits_for_compute()
        self._catch_up(self.frees)

    def _catch_up(self, frees: int) -> None:
        with self._books():
            self._count_frees(frees)
        self._tell()
        if self._late:
            raise self._late.pop(0)

    # The books

    def _allocated(self) -> int:
        return self._model.allocated - self._waiting_bytes

    def _free(self, block: models.Block) -> None:
        if self.faults.delayed_frees:
            self.frees += 1
            self._waiting.append(block)
            self._waiting_bytes += block.size
        else:
            self._model.give(block)

    def _count_frees(self, first: int) -> None:
        """Of all frees that were ever delayed, the `first` ones count."""
        due = max(0, first - (self.frees - len(self._waiting)))
        waiting, self._waiting = self._waiting[:due], self._waiting[due:]
        for block in waiting:
            self._waiting_bytes -= block.size
            self._model.give(block)

    @contextmanager
    def _books(self) -> Iterator[None]:
        """One writer at a time; frees that a collector causes in between come after."""
        with self._lock:
            outer, self._busy = self._busy, True
            try:
                if not outer:
                    self._free_deferred()
                yield
                if not outer:
                    self._free_deferred()
            finally:
                self._busy = outer

    def _free_deferred(self) -> None:
        while self._deferred:
            self._free(self._deferred.pop())

    def _tell(self) -> None:
        if self._observers:
            allocated, reserved = self._allocated(), self._model.reserved
            for observer in tuple(self._observers):
                observer(allocated, reserved)

    def _sentence(self, size: int) -> str:
        cap = self._driver.cap
        limit = "" if cap is None else f", the limit is {format_bytes(cap)}"
        return (
            f"{self.device} out of memory. Tried to allocate {format_bytes(size)}. "
            f"{self.name} has {format_bytes(self.spec.total)}{limit}; "
            f"{format_bytes(self._driver.left)} is free; this process holds "
            f"{format_bytes(self._allocated())} in tensors and "
            f"{format_bytes(self._model.reserved)} reserved."
        )
