"""A lane whose slow copies are made by a worker: from memory that is not pinned, and from files."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from queue import SimpleQueue

import torch

from tightfit.card.lanes import Lane, Mark, Queue, Stamp
from tightfit.errors import JobFailed
from tightfit.place.streaming.bounce import Bounce
from tightfit.place.streaming.master import Source

Job = Callable[[], None]
_NAME = "tightfit copies"
_ENDED = "weights were asked for when the session that copies them had ended."


class StagedMark(Mark):
    """A point in a stage, that the worker may not have come to yet.

    Attributes:
        number: of the job that sets `real`.
        real: the point in the lane beneath.
        failed: what was raised by the copies before it, until somebody was told.
        repeats: those copies have to be made again.
    """

    __slots__ = ("_stage", "failed", "number", "real", "repeats")

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.number = 0
        self.real: Mark | None = None
        self.failed: BaseException | None = None
        self.repeats = False

    def reached(self) -> Mark:
        """The point in the lane; the host waits until the worker has come to it, not longer.

        Raises what went wrong with the copies before it. Whoever comes next has them made again.
        """
        self._stage.come_to(self)
        if self.failed is not None:
            raise self._told()
        assert self.real is not None
        return self.real

    def drain(self) -> None:
        """The host waits for the worker, then for the copies."""
        self.reached().drain()

    def _told(self) -> BaseException:
        """No frame holds the error that it raises: what others in there hold would live with it."""
        error, self.failed = self.failed, None
        assert error is not None
        return error


class StagedQueue(Queue):
    """A compute queue that understands the marks of a stage."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def mark(self, *, again: Mark | None = None) -> Mark:
        """As beneath."""
        return self._queue.mark(again=again)

    def wait(self, mark: Mark) -> None:
        """The host waits only for what its worker has not queued yet."""
        self._queue.wait(mark.reached() if isinstance(mark, StagedMark) else mark)

    def stamp(self, *, again: Stamp | None = None) -> Stamp | None:
        """As beneath."""
        return self._queue.stamp(again=again)


class Stage(Lane):
    """A lane over another one, with a thread that carries out what would keep its caller waiting.

    All is done in the order it was queued. While the worker has nothing to do, what takes no time
    goes straight to the lane beneath; the thread starts with the first `pour`. One thread at a
    time queues; any may wait for marks, and another lane or queue through `StagedQueue` only.

    What fails is told by the mark that follows it, to who waits for that mark, and made again for
    who waits for it next.

    An interrupt may come between any two steps of a caller, so nothing here takes two steps that
    belong together: a job is queued with its number in one, and the worker alone counts.
    """

    def __init__(self, lane: Lane, bounce: Bounce) -> None:
        """What is poured passes through `bounce`, except what lies in memory if that is no help."""
        self._bounce = bounce
        self._lane = lane
        self._numbers = count(1)
        self._jobs: deque[tuple[int, Job]] = deque()  # until they are done
        self._done = 0
        self._failed: list[tuple[BaseException, Job]] = []
        self._to_repeat: weakref.WeakKeyDictionary[StagedMark, list[Job]]
        self._to_repeat = weakref.WeakKeyDictionary()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._waiting: deque[threading.Lock] = deque()
        self._closing = False
        self._worker: threading.Thread | None = None

    def pour(self, target: torch.Tensor, source: Source) -> None:
        """Queue a copy of all of `source` to `target`, bytes on the card, part by part."""
        self._put(lambda: self._pour(target, source))

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """From memory that is pinned."""
        if self._jobs:
            self._put(lambda: self._lane.copy(target, source))
        else:
            self._lane.copy(target, source)

    def copy_back(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """To memory that is pinned."""
        if self._jobs:
            self._put(lambda: self._lane.copy_back(target, source))
        else:
            self._lane.copy_back(target, source)

    def copy_peer(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """From another card, which keeps nobody waiting."""
        if self._jobs:
            self._put(lambda: self._lane.copy_peer(target, source))
        else:
            self._lane.copy_peer(target, source)

    def wait(self, mark: Mark) -> None:
        """What is queued from now on starts after `mark`, one of another queue."""
        if self._jobs:
            self._put(lambda: self._lane.wait(mark))
        else:
            self._lane.wait(mark)

    def mark(self, *, again: Mark | None = None) -> Mark:
        """The point after all that was queued so far."""
        mark = again if isinstance(again, StagedMark) else StagedMark(self)
        if self._jobs or self._closing:
            self._put(lambda: self._set(mark), mark)
        else:
            self._set(mark)
        return mark

    def stamp(self, *, again: Stamp | None = None) -> Stamp | None:
        """The point after what the worker has queued so far."""
        return self._lane.stamp(again=again)

    def drain(self) -> None:
        """The host waits until all copies are done, those that failed apart."""
        last = tuple(self._jobs)[-1:]
        if last:
            self._await(last[0][0])
        self._lane.drain()

    def close(self) -> None:
        """Drop what was not begun, and end the thread; what was queued beneath goes on."""
        self._closing = True
        self._bell.put(None)
        self._wake()
        interrupt: BaseException | None = None
        while self._worker is not None and self._worker.is_alive():
            try:
                self._worker.join()
            except BaseException as error:  # memory it works on is freed next: it has to be gone
                interrupt = error
        self._worker = None
        self._to_repeat.clear()
        if interrupt is not None:
            raise interrupt

    def come_to(self, mark: StagedMark) -> None:
        """Wait until the worker has set `mark`. Raises `JobFailed` if the stage closes before.

        What failed before it is queued again if somebody has been told.
        """
        if self._done < mark.number:
            self._await(mark.number)
        if mark.repeats and mark.failed is None:
            for job in self._to_repeat.get(mark, ()):
                self._put(job)
            self._put(lambda: self._set(mark), mark)
            self._await(mark.number)

    # Queueing

    def _put(self, job: Job, mark: StagedMark | None = None) -> None:
        if self._closing:
            raise JobFailed(_ENDED)
        if self._worker is None or not self._worker.is_alive():
            self._worker = threading.Thread(target=self._work, name=_NAME, daemon=True)
            _working.add(self)
            self._worker.start()
        number = next(self._numbers)
        self._jobs.append((number, job))
        if mark is not None:
            mark.number = number
        self._bell.put(None)

    def _await(self, number: int) -> None:
        while self._done < number:
            if self._closing:
                raise JobFailed(_ENDED)
            self._bell.put(None)  # what was queued when an interrupt came may be unknown
            lock = threading.Lock()
            lock.acquire()
            self._waiting.append(lock)
            if self._done < number and not self._closing:
                lock.acquire()  # until the worker releases it

    # In the worker

    def _work(self) -> None:
        with torch.no_grad():
            while threading.current_thread() is self._worker:  # unless its start was interrupted
                self._bell.get()
                while self._jobs and not self._closing:
                    self._do(*self._jobs[0])
                if self._closing:
                    self._jobs.clear()
                    self._failed.clear()
                    self._wake()
                    return

    def _do(self, number: int, job: Job) -> None:
        try:
            job()
        except BaseException as error:
            self._failed.append((error.with_traceback(None), job))
        self._jobs.popleft()
        self._done = number
        self._wake()

    def _wake(self) -> None:
        with suppress(IndexError):
            while True:
                self._waiting.popleft().release()

    def _pour(self, target: torch.Tensor, source: Source) -> None:
        whole = None if self._bounce.held else source.whole
        if whole is not None:
            self._lane.copy(target, whole)
            return
        start = 0
        while start < target.nbytes and not self._closing:
            start = self._bounce.pour(self._lane, target, source, start)

    def _set(self, mark: StagedMark) -> None:
        failed, self._failed = self._failed, []
        try:
            mark.real = self._lane.mark(again=mark.real)
        except BaseException as error:
            failed.append((error.with_traceback(None), lambda: None))
        mark.failed = failed[0][0] if failed else None
        if failed:
            self._to_repeat[mark] = [job for _, job in failed]
        elif mark.repeats:
            self._to_repeat.pop(mark, None)
        mark.repeats = bool(failed)


_working: weakref.WeakSet[Stage] = weakref.WeakSet()


@atexit.register
def close_all() -> None:
    """End all workers: one that is in the middle of a copy while the interpreter is taken down
    would take the process with it (`std::terminate`). Weights may still be given back afterwards.
    """
    for stage in list(_working):
        stage.close()
