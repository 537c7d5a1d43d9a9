"""Masters that stay where they came from: in files, and in memory that is not ours."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import torch

from tightfit.card.lanes import Lane
from tightfit.place.streaming.files import Stretch, bytes_of
from tightfit.place.streaming.layout import Layout
from tightfit.place.streaming.master import Master
from tightfit.place.streaming.stage import Stage


class Filed(Master):
    """A master that is read anew for each copy, tensor by tensor to its place.

    Attributes:
        layout: where each tensor lies in a slot.
        views: the tensors as they were loaded. What is written to them later is not seen.
        filed_bytes: of those that are read from files.
    """

    def __init__(
        self, layout: Layout, tensors: Sequence[torch.Tensor], stretches: Sequence[Stretch | None]
    ) -> None:
        """`stretches` tell where in a file each of `tensors` is; None is in memory, without gaps.

        All have to lie in memory as they do in `layout`.
        """
        self.layout = layout
        self.views = tuple(tensors)
        self._stretches = tuple(stretches)
        self._memory = tuple(
            None if stretch else bytes_of(tensor)
            for tensor, stretch in zip(tensors, stretches, strict=True)
        )
        self._starts = [place.start for place in layout.places]
        self.filed_bytes = sum(
            place.bytes
            for place, stretch in zip(layout.places, stretches, strict=True)
            if stretch is not None
        )

    @property
    def buffer(self) -> torch.Tensor:
        """Read anew, all of it: for comparing."""
        buffer = torch.empty(self.layout.bytes, dtype=torch.uint8)
        self.fill(buffer, 0)
        return buffer

    def send_from_host(self, lane: Lane, target: torch.Tensor) -> None:
        """Through the buffers of a stage; without one, through all that it takes, here and now."""
        if isinstance(lane, Stage):
            lane.pour(target, self)
        else:
            buffer = self.buffer
            lane.copy(target, buffer)
            lane.drain()

    def fill(self, target: torch.Tensor, start: int) -> None:
        """Read what lies in [start, start + bytes of `target`); zeros between tensors."""
        end = start + target.nbytes
        at = max(0, bisect_right(self._starts, start) - 1)
        done = start
        while done < end and at < len(self._starts):
            place = self.layout.places[at]
            first, last = max(done, place.start), min(end, place.start + place.bytes)
            if first < last:
                target[done - start : first - start].zero_()
                self._read(at, target[first - start : last - start], first - place.start)
                done = last
            at += 1
            if at < len(self._starts) and self._starts[at] >= end:
                break
        target[done - start :].zero_()

    def _read(self, at: int, target: torch.Tensor, start: int) -> None:
        stretch, memory = self._stretches[at], self._memory[at]
        if stretch is not None:
            stretch.file.read(target, stretch.offset + start)
        elif memory is not None:
            target.copy_(memory[start : start + target.nbytes])
