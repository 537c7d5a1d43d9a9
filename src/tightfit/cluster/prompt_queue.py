"""A queue of prompts, and what becomes of it when workers come, end their work, or die."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from tightfit.api.batches.batch import failure
from tightfit.cluster.desk import TRIES
from tightfit.cluster.prompt_task import PromptDone, PromptTask
from tightfit.errors import JobFailed

Note = Callable[[str], None]
"""Told what a user should know of the job as a whole."""


@dataclass(frozen=True)
class News:
    """What a worker tells, or what is told of it.

    Attributes:
        worker: its number.
        what: ``ready`` for a task; ``refused``, it cannot do any; ``ended`` its task; ``died``.
        done: what became of its task.
        error: why it cannot do any.
    """

    worker: int
    what: Literal["ready", "refused", "ended", "died"]
    done: PromptDone | None = None
    error: Exception | None = None


class Crew(Protocol):
    """Workers, one on each card; who is dead has left its card."""

    def hire(self) -> int:
        """The number of a new one, which tells when it is ready."""

    def give(self, worker: int, task: PromptTask) -> None:
        """To one that is ready, or has ended its task."""

    def news(self) -> News:
        """Waits for the next."""


def run(
    tasks: Sequence[PromptTask], crew: Crew, *, seats: int, note: Note | None = None
) -> Iterator[PromptDone]:
    """Every task's end, in the order in which they end, by at most so many workers at once.

    A worker that dies is replaced, and its task is the next one; one that took `TRIES` workers with
    it is set aside. `note` is told of workers that can do none. Raises what they say, if none is
    left.
    """
    queue = _Queue(tasks, crew, note)
    for _ in range(min(seats, len(tasks))):
        queue.hire(0)
    for _ in range(len(tasks)):
        done = None
        while done is None:
            done = queue.hear(crew.news())
        yield done


class _Queue:
    """Who does what, who comes, and what waits."""

    def __init__(self, tasks: Sequence[PromptTask], crew: Crew, note: Note | None) -> None:
        self._crew, self._note = crew, note
        self._waiting = deque(tasks)
        self._idle: list[int] = []
        self._working: dict[int, PromptTask] = {}
        self._coming: dict[int, int] = {}
        """How many before each died on the way."""
        self._reason: Exception | None = None

    def hire(self, fallen: int) -> None:
        """One more."""
        self._coming[self._crew.hire()] = fallen

    def hear(self, news: News) -> PromptDone | None:
        """What follows from it; the end of a task, if it is one."""
        if news.what == "ready":
            del self._coming[news.worker]
            self._next(news.worker)
        elif news.what == "ended":
            del self._working[news.worker]
            self._next(news.worker)
            return news.done
        elif news.what == "refused":
            del self._coming[news.worker]
            self._lose(news.error)
        elif news.worker in self._working:
            return self._fell(self._working.pop(news.worker))
        elif news.worker in self._coming:
            self._came_not(self._coming.pop(news.worker) + 1)
        else:
            self._idle.remove(news.worker)
        return None

    def _next(self, worker: int) -> None:
        if self._waiting:
            task = self._waiting.popleft()
            self._working[worker] = task
            self._crew.give(worker, task)
        else:
            self._idle.append(worker)

    def _fell(self, task: PromptTask) -> PromptDone | None:
        """Its worker died."""
        task = replace(task, fallen=task.fallen + 1)
        aside = task.fallen >= TRIES
        if not aside:
            self._waiting.appendleft(task)
        if self._waiting:
            if self._idle:
                self._next(self._idle.pop())
            else:
                self.hire(0)
        if not aside:
            return None
        error = JobFailed(
            f"`{task.text}`: The job failed: its worker died {TRIES} times over it; it is set "
            "aside. Try it alone, where its memory can be watched."
        )
        return PromptDone(task.number, failure(task.item, error))

    def _came_not(self, fallen: int) -> None:
        """One died before it was ready."""
        if fallen < TRIES:
            self.hire(fallen)
            return
        self._lose(
            JobFailed(
                f"The job failed: its worker died {TRIES} times while the pipeline was loaded. "
                "What is written stays; is there host memory for one pipeline a card?"
            )
        )

    def _lose(self, error: Exception | None) -> None:
        """One card less; without any the job has ended, unless nothing waits."""
        error = error or JobFailed("The job failed: a worker gave up.")
        self._reason = self._reason or error
        if self._waiting and not (self._coming or self._working or self._idle):
            raise self._reason
        if self._note is not None:
            self._note(f"a card takes no part: {error}")
