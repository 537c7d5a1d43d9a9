"""Streamed pieces among resident ones."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.plan.streaming.pieces import Piece
from tightfit.plan.streaming.spread import spread


def pieces_of(sizes: list[int], times: list[int] | None = None) -> list[Piece]:
    """Of these sizes, and of these shares of compute time; None is by size."""
    times = times or sizes
    whole = sum(times) or 1
    return [
        Piece(str(at), size, size, size, 0, time / whole, False)
        for at, (size, time) in enumerate(zip(sizes, times, strict=True))
    ]


def bytes_of(pieces: list[Piece], flags: list[bool]) -> int:
    """Of those that are flagged."""
    return sum(piece.bytes for piece, flag in zip(pieces, flags, strict=True) if flag)


@given(st.integers(1, 80), st.data())
def test_pieces_that_are_alike_are_streamed_at_even_distances(count: int, data) -> None:
    """Between two streamed pieces lie n or n + 1 resident ones, over the end of the step too."""
    room = data.draw(st.integers(0, count))
    resident = spread(pieces_of([1] * count), [False] * count, room)
    gone = [at for at, stay in enumerate(resident) if not stay]
    assert len(gone) == count - room
    if len(gone) > 1:
        steps = [two - one for one, two in pairwise([*gone, gone[0] + count])]
        assert max(steps) - min(steps) <= 1


def test_streaming_follows_compute_time_and_not_the_number_of_pieces() -> None:
    """Where ten pieces take nine tenths of the time, they share in what is streamed likewise."""
    slow_then_fast = pieces_of([4] * 20, [9] * 10 + [1] * 10)
    resident = spread(slow_then_fast, [False] * 20, 40)
    assert sum(not stay for stay in resident[:10]) >= 8


@given(st.lists(st.integers(0, 60), max_size=40), st.data())
def test_what_is_resident_is_within_the_room_and_uses_it(sizes: list[int], data) -> None:
    """Whatever the sizes; no streamed piece would still have fitted."""
    pieces = pieces_of(sizes)
    stays = [data.draw(st.integers(0, 5)) == 0 for _ in sizes]
    must = bytes_of(pieces, stays)
    room = data.draw(st.integers(must, must + sum(sizes)))
    resident = spread(pieces, stays, room)
    used = bytes_of(pieces, resident)
    assert used <= room
    assert all(now for now, before in zip(resident, stays, strict=True) if before)
    left = [p.bytes for p, stay in zip(pieces, resident, strict=True) if not stay]
    assert all(size > room - used for size in left)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.data())
def test_as_much_is_streamed_as_was_asked(sizes: list[int], data) -> None:
    """Even where there is room for more, and no more than a piece beyond it."""
    pieces = pieces_of(sizes)
    asked = data.draw(st.integers(0, sum(sizes)))
    resident = spread(pieces, [False] * len(sizes), sum(sizes), at_least=asked)
    gone = sum(sizes) - bytes_of(pieces, resident)
    assert asked <= gone
    assert gone < asked + max(sizes)


@pytest.mark.parametrize("room", [0, 5, 1000])
def test_no_pieces_and_nothing_to_stream_are_no_special_cases(room: int) -> None:
    """Empty in, empty out; pieces of 0 bytes stay."""
    assert spread([], [], room) == []
    assert spread(pieces_of([0, 0]), [False, False], room) == [True, True]


def test_small_pieces_stay_where_what_is_left_out_can_be_without_them() -> None:
    """A copy costs the host the same whatever its size."""
    pieces = pieces_of([64, 2, 64, 2, 64, 2, 64, 2])
    stays = spread(pieces, [False] * len(pieces), 140)
    assert [piece.bytes for piece, stay in zip(pieces, stays, strict=True) if not stay] == [64, 64]
    everything = spread(pieces, [False] * len(pieces), 4)
    assert bytes_of(pieces, [not stay for stay in everything]) >= 264 - 4


def test_no_more_is_made_good_than_the_ring_has_room_for() -> None:
    """Where compute passes with nothing to stream, a burst afterwards would wait for the link."""
    pieces = pieces_of([0] * 4 + [8] * 20, [10] * 4 + [2] * 20)
    assert _longest_run(spread(pieces, [False] * 24, 80)) == 7
    assert _longest_run(spread(pieces, [False] * 24, 80, ahead=16)) <= 4


def _longest_run(stays: list[bool]) -> int:
    runs = "".join("." if stay else "x" for stay in stays).split(".")
    return max(map(len, runs))
