"""Queues of copies beside the compute queue of a card, and the points where one waits for another.

Copies and compute run side by side and in no order but the one that is asked for: a queue `mark`s
a point, another `wait`s for it, and the host goes on at once. *Ready*: compute waits for the mark
after a copy. *Free*: the next copy into the same bytes waits for the mark after compute. Fresh
memory needs a *free* too, since what held it before may still be at work. With a copy back to the
host the parts are exchanged: it waits for a mark after compute has written. Whoever is next to
write over those bytes of the card, to copy from where they went, or to read there, waits for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch


class Mark(ABC):
    """A point in a queue: passed when all that was queued before it is done.

    It may be waited for any number of times, in any order, by several queues and threads, and it
    may be set anew (`again=`): whoever waited before waits for the point as it was then.
    """

    @abstractmethod
    def drain(self) -> None:
        """The host waits until the point is passed. Raises what the device kept back."""


class Stamp(ABC):
    """A point in a queue, and when it was passed by the card's own clock."""

    @abstractmethod
    def seconds_since(self, earlier: Stamp) -> float:
        """From `earlier`, of any queue of the same card; the host waits until both are passed."""


class Queue(ABC):
    """What a card does one after another."""

    @abstractmethod
    def mark(self, *, again: Mark | None = None) -> Mark:
        """The point after all that was queued so far; `again` is a mark to set anew."""

    @abstractmethod
    def wait(self, mark: Mark) -> None:
        """What is queued from now on starts after `mark`; the host does not wait."""

    def stamp(self, *, again: Stamp | None = None) -> Stamp | None:
        """The point after all that was queued so far, with its time; `again` is set anew.

        None where the card has no clock.
        """
        del again
        return None


class Lane(Queue):
    """A queue of copies between the host and a card, beside the card's compute queue."""

    @abstractmethod
    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy of `source`, on the host, to `target`, on the card: same shape and dtype.

        Returns at once where `source` is pinned. Both have to stay as they are until a mark after
        the copy is passed: nobody else holds them. Raises `ValueError` for tensors that do not
        match, or whose target is not on the card.
        """

    @abstractmethod
    def copy_back(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy of `source`, on the card, to `target`, on the host: same shape and dtype.

        Returns at once where `target` is pinned and both lie in one order; else when the copy is
        done, after all that the lane waits for. Until a mark after it is passed, nobody writes to
        `source` or frees it, and nobody touches `target`. Raises `ValueError` as `copy` does.
        """

    def copy_peer(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy of `source`, on another card of the kind, to `target`, on this one.

        Same shape and dtype, both without gaps. Returns at once. Nobody else holds them, as for
        `copy`; what was written to `source` before is waited for by whoever wrote it. Raises
        `ValueError` for tensors that do not match, `TypeError` where there are no such cards.
        """
        raise TypeError(f"there is no way from {source.device} to {target.device} for this lane")

    @abstractmethod
    def drain(self) -> None:
        """The host waits until all copies are done. Raises what the device kept back."""


def check_copy(target: torch.Tensor, source: torch.Tensor, device: torch.device) -> None:
    """Raise `ValueError` for a copy that is none of a lane's, with the two tensors described."""
    if _alike(target, source) and target.device == device and source.device.type == "cpu":
        return
    raise ValueError(
        f"a lane of {device} copies from the host to the card, {_not_so(target, source)}"
    )


def check_copy_back(target: torch.Tensor, source: torch.Tensor, device: torch.device) -> None:
    """Raise `ValueError` for a copy that is none of a lane's, with the two tensors described."""
    if _alike(target, source) and source.device == device and target.device.type == "cpu":
        return
    raise ValueError(
        f"a lane of {device} copies back from the card to the host, {_not_so(target, source)}"
    )


def check_copy_peer(target: torch.Tensor, source: torch.Tensor, device: torch.device) -> None:
    """Raise `ValueError` for a copy that is none of a lane's, with the two tensors described."""
    other = source.device.type == device.type and source.device != device
    dense = target.is_contiguous() and source.is_contiguous()
    if _alike(target, source) and target.device == device and other and dense:
        return
    raise ValueError(
        f"a lane of {device} copies from another card to this one, without gaps, "
        f"{_not_so(target, source)}"
    )


def _alike(target: torch.Tensor, source: torch.Tensor) -> bool:
    return target.shape == source.shape and target.dtype == source.dtype


def _not_so(target: torch.Tensor, source: torch.Tensor) -> str:
    return (
        f"shape and dtype alike: not {tuple(source.shape)} {source.dtype} on {source.device} to "
        f"{tuple(target.shape)} {target.dtype} on {target.device}"
    )
