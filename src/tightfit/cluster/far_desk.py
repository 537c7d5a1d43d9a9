"""The desk of a job, in a process of Ray's, and how workers ask it."""

from __future__ import annotations

from typing import Any

import ray

from tightfit.cluster.desk import Desk


class FarDesk:
    """The desk, asked from another process; it comes back when it is killed.

    What needs no answer is not waited for; questions of one worker arrive in order.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    @classmethod
    def opened(cls, limit: int) -> FarDesk:
        """One for this job, that grants so many bytes on each machine."""
        actor = ray.remote(Desk).options(num_cpus=0, max_restarts=-1, max_task_retries=-1)
        return cls(actor.remote(limit))

    def begin(self, item: int, stage: str) -> int:
        return int(ray.get(self._actor.begin.remote(item, stage)))

    def end(self, item: int, stage: str) -> None:
        self._actor.end.remote(item, stage)

    def ask(self, item: int, machine: str, size: int) -> bool:
        return bool(ray.get(self._actor.ask.remote(item, machine, size)))

    def done(self, item: int) -> None:
        self._actor.done.remote(item)
