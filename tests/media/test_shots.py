"""Choosing frames by time, and naming a rate."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.media.shots import Shot, at_rate, average_rate, steady_rate

VARIED = [0, 33, 66, 400, 433, 900]


def shots(times_ms: list[int], length_ms: int | None = None) -> list[Shot]:
    length = None if length_ms is None else Fraction(length_ms, 1000)
    return [
        Shot(Fraction(time, 1000), length, lambda: np.zeros((1, 1, 3), np.uint8))
        for time in times_ms
    ]


def picked(times_ms: list[int], fps: int, length_ms: int | None = None) -> list[int]:
    return [int(shot.time * 1000) for shot in at_rate(shots(times_ms, length_ms), Fraction(fps))]


def test_m11_varied_times_are_picked_by_time() -> None:
    """At each tenth of a second: the nearest frame within half a step, else the one on show."""
    assert picked(VARIED, 10) == [0, 66, 66, 66, 400, 433, 433, 433, 433, 900]


def test_a_third_of_the_rate_takes_every_third_frame() -> None:
    """30 frames a second at 10: frames 0, 3, 6 …, as many as a second has tenths."""
    times = [round(1000 * k / 30) for k in range(30)]
    assert picked(times, 10, length_ms=33) == times[::3]


def test_twice_the_rate_shows_each_frame_twice() -> None:
    """The last frame too, for as long as it lasts."""
    assert picked([0, 100, 200], 20, length_ms=100) == [0, 0, 100, 100, 200, 200]


def test_its_own_rate_changes_nothing() -> None:
    """Times rounded to milliseconds do not make frames repeat or drop."""
    times = [round(1000 * k / 24) for k in range(200)]
    assert picked(times, 24, length_ms=42) == times


@given(
    st.lists(st.integers(1, 500), min_size=0, max_size=30),
    st.integers(1, 60),
)
def test_what_is_shown_is_never_staler_than_the_source(gaps: list[int], fps: int) -> None:
    """Each pick is within half a step of its time, or on show then; order is kept."""
    times = [0]
    for gap in gaps:
        times.append(times[-1] + gap)
    got = picked(times, fps)
    assert got == sorted(got)
    assert len(got) == times[-1] * fps // 1000 + 1
    for tick, time in enumerate(got):
        at = Fraction(1000 * tick, fps)
        on_show = max(t for t in times if t <= at)
        assert abs(time - at) <= Fraction(500, fps) or time == on_show


def test_no_frames_stay_none() -> None:
    """An empty source has nothing to repeat."""
    assert picked([], 10) == []


def test_a_header_rate_that_explains_the_times_is_kept() -> None:
    """Matroska rounds times to milliseconds; 24000/1001 is still 24000/1001."""
    rate = Fraction(24000, 1001)
    times = [Fraction(round(1000 * k / rate), 1000) for k in range(100)]
    assert steady_rate(times, [Fraction(30), rate], grain=Fraction(1, 1000)) == rate


def test_a_wrong_header_rate_gives_way_to_the_times() -> None:
    """Even times make a rate of their own."""
    times = [Fraction(k, 16) for k in range(10)]
    assert steady_rate(times, [Fraction(30)], grain=Fraction(0)) == 16


def test_varied_times_have_no_steady_rate() -> None:
    """They have an average."""
    times = [Fraction(time, 1000) for time in VARIED]
    assert steady_rate(times, [Fraction(30)], grain=Fraction(1, 1000)) is None
    assert average_rate(times) == pytest.approx(5 / 0.9, rel=1e-3)
