"""Memory over time from single moves."""

from __future__ import annotations

from tests.report.page.records import MIB, event, memory, of
from tightfit.report.page.story import tell
from tightfit.report.trace_file import Trace

FINE = {"level": "fine"}


def _moves() -> list[dict[str, object]]:
    """A tensor of 700 MiB that lives for 2 ms, between two looks that do not see it."""
    return [
        memory(0.0, 0),
        event(0.1, "reserve", bytes=720 * MIB),
        event(0.1, "allocate", bytes=100 * MIB, address=1),
        event(0.2, "allocate", bytes=600 * MIB, address=2),
        event(0.202, "free", bytes=600 * MIB, address=2),
        memory(0.203, 300 * MIB, 720 * MIB),
        memory(0.4, 100 * MIB, 720 * MIB),
        event(0.5, "free", bytes=100 * MIB, address=1),
        memory(0.9, 5 * MIB, 720 * MIB),
    ]


def test_what_lives_between_two_looks_is_drawn() -> None:
    """The peak is in the moves alone."""
    story = tell(of(_moves(), header=FINE))
    assert story.allocated is not None
    assert story.allocated.peak == 700 * MIB
    assert story.allocated.peak_time == 0.2


def test_a_look_beside_a_move_is_left_out_and_one_far_from_all_is_kept() -> None:
    """The clocks of both may differ a little; what comes when nobody tells of moves is seen."""
    story = tell(of(_moves(), header=FINE))
    assert story.allocated is not None
    assert 300 * MIB not in story.allocated.high
    assert story.allocated.high[-1] == 5 * MIB
    assert story.reserved is not None
    assert set(story.reserved.high) == {0, 720 * MIB}


def test_moves_that_are_not_all_there_are_not_added_up() -> None:
    """Looks alone count in a coarse trace, one that dropped some, and one that cannot see all."""
    looks = (0, 300 * MIB, 100 * MIB, 5 * MIB)
    unseen = [*_moves(), event(0.0, "unseen", text="scratch")]
    traces: tuple[Trace, ...] = (
        of(_moves()),
        of(_moves(), header=FINE, dropped=3),
        of(unseen, header=FINE),
        of([*_moves(), event(0.6, "free", bytes=MIB)], header=FINE),
    )
    for trace in traces:
        story = tell(trace)
        assert story.allocated is not None
        assert story.allocated.high == looks
