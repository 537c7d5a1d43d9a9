"""A queue of prompts with workers that are told of, none of which exists."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.api.batches.batch import ItemDone
from tightfit.cluster.desk import TRIES
from tightfit.cluster.prompt_queue import News, run
from tightfit.cluster.prompt_task import PromptDone, PromptTask
from tightfit.errors import JobFailed, MemoryShortage


def tasks(count: int) -> list[PromptTask]:
    """With a name for each."""
    names = [(at, Path(f"p.txt:{at}"), Path(f"o-{at}.png")) for at in range(1, count + 1)]
    return [PromptTask(at, f"prompt {at}", source, out) for at, source, out in names]


class Told:
    """A crew whose fate is told: whether whoever has something to say dies instead."""

    def __init__(
        self,
        dies: Callable[[PromptTask | None], bool],
        refused: dict[int, Exception] | None = None,
    ) -> None:
        self.dies, self.refused = dies, refused or {}
        self.hired = 0
        self.alive: set[int] = set()
        self.most = 0
        self.about: deque[tuple[int, PromptTask | None]] = deque()
        self.given: list[tuple[int, int]] = []

    def hire(self) -> int:
        number = self.hired
        self.hired += 1
        self.alive.add(number)
        self.most = max(self.most, len(self.alive))
        self.about.append((number, None))
        return number

    def give(self, worker: int, task: PromptTask) -> None:
        assert worker in self.alive
        self.given.append((task.number, task.fallen))
        self.about.append((worker, task))

    def news(self) -> News:
        worker, task = self.about.popleft()
        if self.dies(task):
            self.alive.remove(worker)
            return News(worker, "died")
        if task is None and worker in self.refused:
            self.alive.remove(worker)
            return News(worker, "refused", error=self.refused[worker])
        if task is None:
            return News(worker, "ready")
        done = ItemDone(task.source, task.out, "written")
        return News(worker, "ended", done=PromptDone(task.number, done))


def one_after_the_other(fates: list[bool]) -> Callable[[PromptTask | None], bool]:
    """Who dies, in the order in which they have something to say; nobody after these."""
    left = iter(fates)
    return lambda _: next(left, False)


def nobody(_: PromptTask | None) -> bool:
    """Lives for ever."""
    return False


@given(st.integers(0, 8), st.integers(1, 3), st.lists(st.booleans(), max_size=20))
def test_every_prompt_ends_once_whoever_dies(count: int, seats: int, fates: list[bool]) -> None:
    """Written or set aside, and never by more workers than there are cards."""
    crew = Told(one_after_the_other(fates))
    done = []
    with suppress(JobFailed):  # those that die on their way are given up, until none is left
        done += run(tasks(count), crew, seats=seats)
    if len(done) < count and sum(fates) >= TRIES * min(seats, count):
        return
    assert sorted(each.number for each in done) == list(range(1, count + 1))
    assert crew.most <= seats
    aside = [each for each in done if each.done.outcome == "failed"]
    assert len(aside) * TRIES <= sum(fates)


def test_a_prompt_whose_worker_died_is_the_next_one_and_says_how_often() -> None:
    """It may go on from what was left, so a worker has to know."""
    crew = Told(one_after_the_other([False, True]))
    assert [each.number for each in run(tasks(3), crew, seats=1)] == [1, 2, 3]
    assert crew.given == [(1, 0), (1, 1), (2, 0), (3, 0)]
    assert crew.hired == 2


def test_a_prompt_that_kills_its_worker_is_set_aside() -> None:
    """After three, with a sentence; the others are made."""
    crew = Told(lambda task: task is not None and task.number == 2)
    done = {each.number: each.done for each in run(tasks(4), crew, seats=2)}
    assert [done[number].outcome for number in (1, 2, 3, 4)] == [
        "written",
        "failed",
        "written",
        "written",
    ]
    error = done[2].error
    assert error is not None
    assert "`prompt 2`" in error
    assert f"died {TRIES} times" in error
    assert done[2].exit_code == 1
    assert [number for number, _ in crew.given].count(2) == TRIES


def test_a_card_that_refuses_leaves_its_prompts_to_the_others() -> None:
    """Until there is no other: then the job ends with what it said."""
    shortage = MemoryShortage("Not enough memory.")
    crew = Told(nobody, {1: shortage})
    said: list[str] = []
    assert len(list(run(tasks(3), crew, seats=2, note=said.append))) == 3
    assert said == ["a card takes no part: Not enough memory."]
    with pytest.raises(MemoryShortage, match="Not enough memory"):
        list(run(tasks(3), Told(nobody, {0: shortage, 1: shortage}), seats=2))
