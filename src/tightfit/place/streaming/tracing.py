"""The tracer: points in the queues of a card, kept until somebody asks what the steps did."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

from tightfit.card.lanes import Lane, Mark, Queue, Stamp
from tightfit.place.streaming.trace import BlockTrace, StepTrace

KEPT = 8
"""Steps that are kept, the latest."""


@dataclass(eq=False, slots=True)
class _Copy:
    bytes: int = 0
    start: Stamp | None = None
    end: Stamp | None = None


@dataclass(eq=False, slots=True)
class _Use:
    name: str
    reached: Stamp | None
    copy: _Copy | None = None
    start: Stamp | None = None
    end: Stamp | None = None


@dataclass(eq=False, slots=True)
class _Step:
    start: Stamp | None
    uses: list[_Use] = field(default_factory=list)
    end: Stamp | None = None


class Tracer:
    """Sets stamps as copies, waits and uses are queued; the host waits only in `steps`.

    Copies and waits have to go through the queues of `over`. A copy belongs to the use that waits
    for the mark right after it.
    """

    def __init__(self) -> None:
        self._compute: Queue | None = None
        self._spare: deque[Stamp] = deque()
        self._copies: dict[Mark, _Copy] = {}
        self._met: _Copy | None = None
        self._step: _Step | None = None
        self._under_way: dict[object, list[_Use]] = {}
        self._ended: deque[_Step | StepTrace] = deque()

    def over(self, lane: Lane, compute: Queue) -> tuple[Lane, Queue]:
        """What to use instead of the queues of a card; stamps are of its clock, if it has one."""
        self._compute = compute
        return _TracedLane(lane, self), _TracedQueue(compute, self)

    @property
    def steps(self) -> tuple[StepTrace, ...]:
        """The latest steps that ended, the latest last. The host waits for the end of these."""
        for at, step in enumerate(self._ended):
            if isinstance(step, _Step):
                self._ended[at] = _told(step)
                self._reuse(step)
        return tuple(step for step in self._ended if isinstance(step, StepTrace))

    # What calls say

    def begin(self) -> None:
        """A step begins."""
        if self._step is not None:
            self._reuse(self._step)
        self._under_way.clear()
        self._step = _Step(self.stamp(self._compute))

    def reach(self, name: str, user: object) -> None:
        """`user` is going to wait for the weights of this name."""
        self._met = None
        use = _Use(name, self.stamp(self._compute))
        self._under_way.setdefault(user, []).append(use)
        if self._step is not None:
            self._step.uses.append(use)

    def start(self, user: object) -> None:
        """What `user` waited for last is there when what is queued from now on runs."""
        use = self._under_way[user][-1]
        use.start = self.stamp(self._compute)
        use.copy, self._met = self._met, None

    def leave(self, user: object) -> None:
        """`user` needs nothing any more."""
        for use in self._under_way.pop(user, ()):
            use.end = self.stamp(self._compute)

    def end(self, *, seen: bool) -> None:
        """The step is over; one that was not seen to end is forgotten."""
        step, self._step = self._step, None
        if step is None:
            return
        if not seen:
            self._reuse(step)
            return
        step.end = self.stamp(self._compute)
        self._ended.append(step)
        if len(self._ended) > KEPT:
            oldest = self._ended.popleft()
            if isinstance(oldest, _Step):
                self._reuse(oldest)

    # What queues say

    def stamp(self, queue: Queue | None) -> Stamp | None:
        """A point in `queue`, one that nobody needs any more set anew; in any thread."""
        if queue is None:
            return None
        try:
            again = self._spare.pop()
        except IndexError:
            again = None
        return queue.stamp(again=again)

    def copied(self, mark: Mark, copy: _Copy) -> None:
        """`mark` is right after `copy`."""
        before = self._copies.get(mark)
        if before is not None:  # nobody waited for it: it was a wrong guess
            self._spare += _points((before.start, before.end))
        self._copies[mark] = copy

    def waited(self, mark: Mark) -> None:
        """Compute waits for `mark`."""
        copy = self._copies.pop(mark, None)
        if copy is not None:
            self._met = copy

    def _reuse(self, step: _Step) -> None:
        self._spare += _points((step.start, step.end))
        for use in step.uses:
            self._spare += _points((use.reached, use.start, use.end))
            if use.copy is not None:
                self._spare += _points((use.copy.start, use.copy.end))


class _TracedQueue(Queue):
    """A compute queue that tells what it waits for."""

    def __init__(self, queue: Queue, tracer: Tracer) -> None:
        self._queue = queue
        self._tracer = tracer

    def mark(self, *, again: Mark | None = None) -> Mark:
        return self._queue.mark(again=again)

    def wait(self, mark: Mark) -> None:
        self._queue.wait(mark)
        self._tracer.waited(mark)

    def stamp(self, *, again: Stamp | None = None) -> Stamp | None:
        return self._queue.stamp(again=again)


class _TracedLane(Lane):
    """A lane that tells when its copies begin and end."""

    def __init__(self, lane: Lane, tracer: Tracer) -> None:
        self._lane = lane
        self._tracer = tracer
        self._copy: _Copy | None = None

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._begin(target)
        self._lane.copy(target, source)

    def copy_peer(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._begin(target)
        self._lane.copy_peer(target, source)

    def _begin(self, target: torch.Tensor) -> None:
        if self._copy is None:
            self._copy = _Copy(start=self._tracer.stamp(self._lane))
        self._copy.bytes += target.nbytes

    def copy_back(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._lane.copy_back(target, source)  # it brings no weights: no use waits for it

    def mark(self, *, again: Mark | None = None) -> Mark:
        copy, self._copy = self._copy, None
        if copy is not None:
            copy.end = self._tracer.stamp(self._lane)
        mark = self._lane.mark(again=again)
        if copy is not None:
            self._tracer.copied(mark, copy)
        return mark

    def wait(self, mark: Mark) -> None:
        self._lane.wait(mark)

    def drain(self) -> None:
        self._lane.drain()

    def stamp(self, *, again: Stamp | None = None) -> Stamp | None:
        return self._lane.stamp(again=again)


def _points(each: Iterable[Stamp | None]) -> Iterator[Stamp]:
    return (stamp for stamp in each if stamp is not None)


def _told(step: _Step) -> StepTrace:
    began = step.start

    def at(stamp: Stamp | None) -> float | None:
        return None if began is None or stamp is None else stamp.seconds_since(began)

    blocks = []
    for use in step.uses:
        copy = use.copy or _Copy()
        times = map(at, (copy.start, copy.end, use.reached, use.start, use.end))
        blocks.append(BlockTrace(use.name, copy.bytes, *times))
    return StepTrace(at(step.end), tuple(blocks))
