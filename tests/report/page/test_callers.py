"""Which code held what, from hand-made moves of an allocator."""

from __future__ import annotations

from tests.report.page.records import event
from tightfit.report.page.callers import callers


def test_what_was_live_at_the_height_is_named_the_most_first() -> None:
    """What had been freed by then is not."""
    moves = [
        event(0.0, "allocate", bytes=10, address=1, by="a.py:1 f"),
        event(1.0, "allocate", bytes=50, address=2, by="b.py:2 g"),
        event(2.0, "free", bytes=50, address=2),
        event(3.0, "allocate", bytes=70, address=2, by="c.py:3 h"),
        event(4.0, "free", bytes=70, address=2),
    ]
    (look,) = callers(moves, most=1)
    assert look.time == 3.0
    assert look.total == 80
    assert look.held == (("c.py:3 h", 70), ("a.py:1 f", 10))


def test_frees_without_addresses_are_matched_by_size() -> None:
    """The newest of that size goes; one that was never seen changes nothing."""
    moves = [
        event(0.0, "free", bytes=99),
        event(1.0, "allocate", bytes=10, by="old"),
        event(2.0, "allocate", bytes=10, by="new"),
        event(3.0, "free", bytes=10),
    ]
    assert callers(moves)[-1].held == (("old", 10),)


def test_looks_are_bounded_and_keep_the_highest() -> None:
    """One for each stretch."""
    moves = [event(n, "allocate", bytes=n, address=n, by=f"line {n % 3}") for n in range(1_000)]
    looks = callers(moves, most=50)
    assert len(looks) <= 50
    assert looks[-1].total == sum(range(1_000))
    assert sum(size for _, size in looks[-1].held) == sum(range(1_000))


def test_a_coarse_trace_has_no_looks() -> None:
    """Only the fine level tells single moves."""
    assert callers([event(0.0, "memory", allocated_bytes=1)]) == []
