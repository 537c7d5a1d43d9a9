"""Workers that make prompts, as actors of Ray's: each has one card, and its pipeline there."""

from __future__ import annotations

import itertools
from typing import Any

import ray

from tightfit.cluster.connection import Connection
from tightfit.cluster.maker import Maker
from tightfit.cluster.prompt_queue import News
from tightfit.cluster.prompt_task import PromptDone, PromptOrder, PromptTask
from tightfit.errors import JobFailed, TightfitError


class _Worker:
    """A `Maker` on the card that this process takes."""

    def __init__(self, order: PromptOrder, connection: Connection) -> None:
        self._order, self._connection = order, connection

    def open(self) -> Exception | None:
        """Load the pipeline; why that cannot be, else None."""
        try:
            self._maker = Maker(self._order, self._connection.take_card())
        except Exception as error:
            return _plain(error)
        return None

    def make(self, task: PromptTask) -> PromptDone:
        return self._maker(task)


class RayCrew:
    """A `Crew` of actors; they end with the connection."""

    def __init__(self, order: PromptOrder, connection: Connection) -> None:
        self._order, self._connection = order, connection
        self._numbers = itertools.count()
        self._actors: dict[int, Any] = {}
        self._pending: dict[Any, int] = {}

    def hire(self) -> int:
        number = next(self._numbers)
        kind = ray.remote(_Worker).options(max_restarts=0, **self._connection.card_args)
        actor = self._actors[number] = kind.remote(self._order, self._connection)
        self._pending[actor.open.remote()] = number
        return number

    def give(self, worker: int, task: PromptTask) -> None:
        self._pending[self._actors[worker].make.remote(task)] = worker

    def news(self) -> News:
        (ready,), _ = ray.wait(list(self._pending))
        worker = self._pending.pop(ready)
        try:
            told = ray.get(ready)
        except ray.exceptions.RayTaskError as error:
            raise _plain(error.cause) from None
        except ray.exceptions.RayError:
            self._dismiss(worker)
            return News(worker, "died")
        if isinstance(told, PromptDone):
            return News(worker, "ended", done=told)
        if told is None:
            return News(worker, "ready")
        self._dismiss(worker)
        return News(worker, "refused", error=told)

    def _dismiss(self, worker: int) -> None:
        """Its card is free, whatever became of it."""
        ray.kill(self._actors.pop(worker), no_restart=True)


def _plain(error: Exception) -> TightfitError:
    """What can go to another process: the sentence, without what it holds of this one."""
    if not isinstance(error, TightfitError):
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        return JobFailed(f"The job failed: {type(error).__name__}: {first}")
    return type(error)(str(error))
