"""Who may read how much at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tightfit.cluster.desk import Desk

STEP = st.tuples(st.sampled_from(["ask", "done"]), st.integers(0, 9), st.integers(0, 60))


@given(steps=st.lists(STEP, max_size=60), limit=st.integers(1, 100))
def test_what_is_granted_stays_within_the_limit(
    steps: list[tuple[str, int, int]], limit: int
) -> None:
    """Whatever is asked and given back: beyond it is one item that is larger by itself."""
    desk = Desk(limit)
    held: dict[int, int] = {}
    ended: set[int] = set()
    for what, item, size in steps:
        if what == "done":
            desk.done(item)
            held.pop(item, None)
            ended.add(item)
        elif item in ended:
            assert desk.ask(item, "here", size)
        elif desk.ask(item, "here", size):
            held[item] = size
        assert sum(held.values()) <= limit or len([each for each in held.values() if each]) == 1


def test_a_free_desk_grants_an_item_of_any_size() -> None:
    """Or it would wait for ever."""
    assert Desk(10).ask(1, "here", 1000)


def test_an_item_that_is_read_again_has_one_grant() -> None:
    """Its worker died, and another asks for it."""
    desk = Desk(10)
    assert desk.ask(1, "here", 6)
    assert desk.ask(1, "here", 6)
    assert desk.ask(2, "here", 4)
    assert not desk.ask(3, "here", 1)
    desk.done(1)
    assert desk.ask(3, "here", 6)
    assert desk.most() == 10


def test_an_item_that_is_done_takes_nothing_of_others() -> None:
    """Who takes over from a worker that died reads it once more, and nobody gives that back."""
    desk = Desk(10)
    desk.done(1)
    assert desk.ask(1, "here", 10)
    assert desk.ask(2, "here", 10)


def test_each_machine_has_its_own_limit() -> None:
    """Each has its own object store."""
    desk = Desk(10)
    assert desk.ask(1, "here", 10)
    assert desk.ask(2, "there", 10)
    assert not desk.ask(3, "here", 1)


def test_only_what_did_not_end_counts_against_an_item() -> None:
    """Waiting for room is no fault of its own, and neither is another stage."""
    desk = Desk(10)
    assert [desk.begin(1, "read") for _ in range(3)] == [0, 1, 2]
    assert desk.begin(1, "encode") == 0
    desk.end(1, "read")
    assert desk.begin(1, "read") == 0
    desk.done(1)
    assert desk.begin(1, "encode") == 0
