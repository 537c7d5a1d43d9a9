"""What was recorded of one card, on the model of another."""

from __future__ import annotations

from typing import Any

import pytest

from tests.report.made import MIB, trace
from tightfit.errors import InputError
from tightfit.report.replaying import play


def move(kind: str, size: int, **more: Any) -> dict[str, Any]:
    return {"event": kind, "bytes": size * MIB, **more}


def memory(size: int) -> dict[str, Any]:
    return {"event": "memory", "allocated_bytes": size * MIB, "reserved_bytes": size * MIB}


FULL = {"event": "oom", "stage": "decode", "rung": "whole"}
FULL["text"] = "OutOfMemoryError: Tried to allocate 3.0 MiB. 1 MiB is free"
RUN = trace(
    move("allocate", 4),
    move("allocate", 5),
    FULL,
    move("free", 5),
    move("allocate", 2),
)


def test_it_needs_its_peak_and_the_request_that_was_refused() -> None:
    """To the byte, on a card that rounds nothing."""
    assert not play(RUN, allocator="exact", room=12 * MIB - 1).fits
    played = play(RUN, allocator="exact", room=12 * MIB)
    assert played.fits
    assert (played.allocated, played.reserved, played.refused) == (12 * MIB, 12 * MIB, 3 * MIB)
    assert (played.exact, played.held) == (True, 0)


def test_the_allocator_of_the_card_decides() -> None:
    """Fragments and steps of one need what another does not."""
    needs = {kind: play(RUN, allocator=kind, room=1 << 40).needed for kind in ("exact", "async")}
    assert needs["exact"] < needs["async"] == 32 * MIB
    assert not play(RUN, allocator="async", room=31 * MIB).fits


def test_what_was_there_before_the_log_begins_counts() -> None:
    """A log has the newest events alone; looks at memory tell what else there was."""
    late = trace(move("allocate", 2), memory(10), move("allocate", 1), memory(11))
    played = play(late, allocator="exact", room=64 * MIB)
    assert (played.held, played.allocated) == (8 * MIB, 11 * MIB)


def test_addresses_tell_which_allocation_ends() -> None:
    """Of two of one size, the one at that address; one that is not known is passed over."""
    told = trace(
        move("allocate", 2, address=1),
        move("allocate", 2, address=2),
        move("free", 2, address=1),
        move("free", 2, address=9),
        move("allocate", 3, address=1),
    )
    assert play(told, allocator="exact", room=64 * MIB).allocated == 5 * MIB


def test_without_single_moves_looks_at_the_sum_are_replayed() -> None:
    """And it is said that they were no single allocations."""
    looks = trace(memory(3), memory(8), memory(5), memory(9), FULL, memory(1), memory(2))
    played = play(looks, allocator="exact", room=64 * MIB)
    assert (played.allocated, played.exact) == (12 * MIB, False)
    assert not play(looks, allocator="exact", room=11 * MIB).fits


def test_a_job_that_was_refused_before_it_tried_needs_what_its_error_says() -> None:
    """Little was recorded of it, and that would fit anywhere."""
    error = "Not enough memory to run Net.\nNeeds 30.0 MiB; 8.0 MiB can be used."
    told = trace(memory(1), memory(2), error=error)
    played = play(told, allocator="exact", room=29 * MIB)
    assert not played.fits
    assert played.needed == 30 * MIB
    assert play(told, allocator="exact", room=30 * MIB).fits


def test_a_trace_that_tells_nothing_of_memory_is_refused() -> None:
    """There is nothing to replay."""
    with pytest.raises(InputError, match="Nothing is recorded"):
        play(trace(), allocator="exact", room=1)
