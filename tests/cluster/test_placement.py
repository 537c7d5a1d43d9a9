"""Which job runs on which card, without cards, torch or Ray."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.cluster.placement import Demand, Job, Place, next_for, place
from tightfit.errors import MemoryShortage
from tightfit.units import GIB, MIB

JOBS = st.lists(
    st.builds(
        Job,
        st.text("abc", min_size=1, max_size=3),
        st.builds(Demand, st.integers(0, 40), st.floats(0, 3), st.floats(1, 2)),
        st.integers(0, 60),
        st.none() | st.floats(0, 100),
    ),
    max_size=12,
    unique=True,
)
CARDS = st.lists(
    st.builds(
        Place,
        st.text("xyz", min_size=1, max_size=3),
        st.integers(0, 200),
        st.floats(0.25, 4),
        st.floats(0, 50),
    ),
    max_size=5,
    unique_by=lambda card: card.name,
)
ENCODE = Demand(2 * GIB, 1000.0)


def jobs(*sizes: int, demand: Demand = ENCODE) -> list[Job]:
    """One for each size, named after its place."""
    return [Job(f"clip {at}", demand, size) for at, size in enumerate(sizes)]


def test_a_demand_is_fixed_and_slope() -> None:
    """And slack on both, where the allocator takes more than tensors have."""
    assert Demand(100, 2.0).peak(30) == 160
    assert Demand(100, 2.0, 1.25).peak(30) == 200
    with pytest.raises(ValueError, match="less than nothing"):
        Demand(-1)


@given(JOBS, CARDS)
def test_every_job_is_once_where_it_fits_or_refused(
    given_jobs: list[Job], cards: list[Place]
) -> None:
    """Nothing is lost, nothing is done twice, and no card gets what it has no room for."""
    found = place(given_jobs, cards)
    by_name = {card.name: card for card in cards}
    placed = [job for queue in found.queues.values() for job in queue]
    assert len(placed) + len(found.refused) == len(given_jobs)
    assert {*placed, *(each.job for each in found.refused)} == set(given_jobs)
    for name, queue in found.queues.items():
        assert all(job.peak <= by_name[name].room for job in queue)
        taken = by_name[name].busy + sum(by_name[name].seconds(job) for job in queue)
        assert found.seconds[name] == pytest.approx(taken)
    assert all(not card.takes(each.job) for each in found.refused for card in cards)


@given(JOBS, CARDS)
def test_moving_one_job_never_ends_sooner(given_jobs: list[Job], cards: list[Place]) -> None:
    """The share cannot be bettered by giving one job of the last card to another."""
    found = place(given_jobs, cards)
    by_name = {card.name: card for card in cards}
    if not cards:
        return
    last = max(found.seconds, key=lambda name: found.seconds[name])
    for job in found.queues[last]:
        left = found.ends - by_name[last].seconds(job)
        for name, card in by_name.items():
            if name != last and card.takes(job):
                after = max(left, found.seconds[name] + card.seconds(job))
                assert after >= found.ends * (1 - 1e-6)


def test_large_jobs_leave_small_cards_to_small_ones() -> None:
    """The card of 24 GiB alone can take the two large ones; the small cards share the rest."""
    cards = [Place("small", 4 * GIB), Place("large", 24 * GIB)]
    small, large = [1_000_000] * 8, [10_000_000] * 2
    found = place(jobs(*small, *large), cards)
    assert [job.size for job in found.queues["large"]] == large
    assert [job.size for job in found.queues["small"]] == small
    assert found.refused == ()


def test_equal_cards_share_the_seconds_not_the_count() -> None:
    """One long job weighs as much as six short ones."""
    work = [6.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    given_jobs = [Job(str(at), Demand(MIB), 1, each) for at, each in enumerate(work)]
    found = place(given_jobs, [Place("a", GIB), Place("b", GIB)])
    assert found.seconds == {"a": 6.0, "b": 6.0}


def test_a_faster_card_gets_more() -> None:
    """Twice the speed, twice the work; a card that is busy gets less."""
    given_jobs = [Job(str(at), Demand(MIB), 1, 1.0) for at in range(30)]
    found = place(given_jobs, [Place("old", GIB), Place("new", GIB, speed=2.0)])
    assert {name: len(queue) for name, queue in found.queues.items()} == {"old": 10, "new": 20}
    found = place(given_jobs, [Place("busy", GIB, busy=10.0), Place("free", GIB)])
    assert {name: len(queue) for name, queue in found.queues.items()} == {"busy": 10, "free": 20}


def test_what_fits_nowhere_is_refused_by_name_with_the_figures() -> None:
    """The others are placed all the same; `check` raises with the sentences."""
    cards = [Place("node-1/cuda:0", 8 * GIB), Place("node-2/cuda:0", 12 * GIB)]
    found = place(jobs(1_000_000, 20_000_000), cards)
    assert [each.job.name for each in found.refused] == ["clip 1"]
    assert sum(map(len, found.queues.values())) == 1
    sentence = "`clip 1` needs 20.6 GiB; the card with the most room, node-2/cuda:0, has 12.0 GiB."
    assert found.refused[0].sentence == sentence
    with pytest.raises(MemoryShortage, match="on any card for 1 job") as shortage:
        found.check()
    assert sentence in str(shortage.value)


def test_many_that_fit_nowhere_are_counted() -> None:
    """Four are named, the others are a number; without a card nothing fits."""
    found = place(jobs(*range(10)), [])
    with pytest.raises(MemoryShortage, match="So do 6 more") as shortage:
        found.check()
    assert "there is no card" in str(shortage.value)
    place(jobs(1), [Place("a", 8 * GIB)]).check()


def test_a_free_card_takes_what_only_it_can() -> None:
    """A large card is not busy with a small job when a large one waits."""
    small, large = Place("small", 4 * GIB), Place("large", 24 * GIB)
    waiting = jobs(1_500_000, 10_000_000, 1_000_000)
    assert next_for(large, waiting, [small]) is waiting[1]
    assert next_for(small, waiting, [large]) is waiting[0]
    assert next_for(small, waiting[1:2], [large]) is None
    assert next_for(large, [], [small]) is None


def test_two_cards_of_one_name_are_refused() -> None:
    """And so is one that never ends."""
    with pytest.raises(ValueError, match="two cards have one name"):
        place([], [Place("a", 1), Place("a", 2)])
    with pytest.raises(ValueError, match="never end"):
        Place("a", 1, speed=0)


def test_it_needs_neither_torch_nor_ray() -> None:
    """Arithmetic alone: it can be asked where nothing is installed."""
    code = (
        "import sys, tightfit.cluster.placement\n"
        "sys.exit(bool({'torch', 'ray'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
