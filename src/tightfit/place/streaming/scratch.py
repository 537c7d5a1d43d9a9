"""Memory on the card that packed weights are unpacked into, just before they are used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from tightfit.card.base import Card
from tightfit.card.lanes import Mark, Queue
from tightfit.place.streaming.master import Master

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, eq=False)
class _Way:
    """How packed bytes are unpacked into a buffer."""

    master: Master
    stored: torch.Tensor
    unpack: Callable[[], None]
    tensors: Tensors


@dataclass(eq=False)
class _Sheet:
    """One buffer, and what is in it.

    Attributes:
        buffer: bytes on the card.
        holds: whose tensors lie there.
        users: who uses them now.
        free: passed when nothing reads it any more; None until it was used.
        ways: by stored bytes on the card (their object's id), whose they are, how they are unpacked
            here, and the tensors then.
    """

    buffer: torch.Tensor
    holds: Master | None = None
    users: set[object] = field(default_factory=set)
    free: Mark | None = None
    ways: dict[int, _Way] = field(default_factory=dict)


class Scratch:
    """One buffer as large as the largest unpacked master, and more only where several are in use.

    One thread at a time. Unpacking is queued where compute is, so that it needs no wait but for
    compute that was queued in another stream.

    Attributes:
        unpacked: how often.
        grown: buffers made in mid-run, since those there were in use.
    """

    def __init__(self, card: Card, compute: Queue, size: int) -> None:
        self._card = card
        self._compute = compute
        self.size = size
        self._sheets = [_Sheet(self._buffer())]
        self.unpacked = 0
        self.grown = 0

    @property
    def bytes(self) -> int:
        """Of all buffers."""
        return sum(sheet.buffer.nbytes for sheet in self._sheets)

    def is_full_for(self, master: Master) -> bool:
        """Whether so much is in use that taking `master` would need another buffer."""
        return all(sheet.users and sheet.holds is not master for sheet in self._sheets)

    def holds(self, master: Master) -> bool:
        """Whether the tensors of `master` are in use here."""
        return any(sheet.holds is master and sheet.users for sheet in self._sheets)

    def take(self, master: Master, stored: torch.Tensor | None, user: object) -> Tensors:
        """The tensors of `master`, which is packed, for `user`, there when compute runs on.

        `stored` are its bytes on the card; None is that `holds` says it is there. Has to be
        followed by `leave`. What the card raises where several are in use and it is full.
        """
        for sheet in self._sheets:
            if sheet.holds is master and sheet.users:
                sheet.users.add(user)
                return next(way.tensors for way in sheet.ways.values() if way.master is master)
        assert stored is not None
        sheet = next((each for each in self._sheets if not each.users), None) or self._grow()
        way = sheet.ways.get(id(stored))
        if way is None:
            way = sheet.ways[id(stored)] = self._way(master, stored, sheet.buffer)
        if sheet.free is not None:
            self._compute.wait(sheet.free)
        sheet.holds = None
        way.unpack()
        sheet.holds = master
        sheet.users.add(user)
        self.unpacked += 1
        return way.tensors

    def leave(self, master: Master, user: object) -> bool:
        """The use of `master` by `user` ends, if there was one; whether none is left."""
        for sheet in self._sheets:
            if sheet.holds is master and user in sheet.users:
                if len(sheet.users) == 1:
                    sheet.free = self._compute.mark(again=sheet.free)
                sheet.users.discard(user)
                return not sheet.users
        return not self.holds(master)

    def forget(self, master: Master) -> None:
        """`master` goes, or its bytes on the card do."""
        for sheet in self._sheets:
            for key in [key for key, way in sheet.ways.items() if way.master is master]:
                del sheet.ways[key]
            if sheet.holds is master:
                sheet.holds = None

    def forget_stored(self) -> None:
        """What packed bytes lay in goes, and is not to be kept here; between calls."""
        for sheet in self._sheets:
            sheet.ways.clear()
            sheet.holds = None

    def close(self) -> None:
        """Let the memory go; the card has to be done with it."""
        self._sheets.clear()

    def _way(self, master: Master, stored: torch.Tensor, buffer: torch.Tensor) -> _Way:
        assert master.packed is not None
        with torch.inference_mode(False), torch.no_grad():
            part = buffer[: master.layout.bytes]
            unpack = master.packed.unpacking(stored, part)
            return _Way(master, stored, unpack, master.layout.views(part))

    def _grow(self) -> _Sheet:
        self._sheets.append(_Sheet(self._buffer()))
        self.grown += 1
        return self._sheets[-1]

    def _buffer(self) -> torch.Tensor:
        with torch.inference_mode(False), torch.no_grad():
            return torch.empty(self.size, dtype=torch.uint8, device=self._card.device)


@dataclass(eq=False)
class Kept:
    """A packed master on the card for good: nothing is copied, and each use unpacks it.

    Attributes:
        buffer: what is stored; None is that it has left the card.
        scratch: that it is unpacked into.
    """

    buffer: torch.Tensor | None
    scratch: Scratch

    def is_full_for(self, master: Master) -> bool:
        """Whether taking `master` would need memory that is not there yet."""
        return self.scratch.is_full_for(master)

    def take(self, master: Master, user: object) -> Tensors:
        """As a ring does."""
        return self.scratch.take(master, self.buffer, user)

    def leave(self, master: Master, user: object, *, lingers: bool = False) -> bool:
        """As a ring does; nothing lingers."""
        del lingers
        return self.scratch.leave(master, user)
