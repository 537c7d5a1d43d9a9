"""The smallest card, the largest picture, the longest clip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.plan.size import Size
from tightfit.plan.solve import (
    MOST_BYTES,
    Solved,
    SolvedSize,
    largest_size,
    most_frames,
    smallest_bytes,
)
from tightfit.units import GIB, MIB


@given(st.integers(1, 2**22))
def test_the_smallest_card_is_found_to_the_mib(need: int) -> None:
    """It fits, and one MiB less does not."""
    looks = []

    def fits(size: int) -> bool:
        looks.append(size)
        return size >= need * MIB - 5

    assert smallest_bytes(fits) == Solved(need * MIB, at_limit=need == 1)
    assert len(looks) < 60


def test_a_job_that_fits_nothing_and_one_that_fits_anything_are_said() -> None:
    """None is never; the least there is may not be the true limit."""
    assert smallest_bytes(lambda size: False) == Solved(None)
    assert smallest_bytes(lambda size: True) == Solved(MIB, at_limit=True)
    assert smallest_bytes(lambda size: size == MOST_BYTES) == Solved(MOST_BYTES)
    assert smallest_bytes(lambda size: size >= 5 * GIB, step=GIB, most=4 * GIB) == Solved(None)


@given(st.integers(16, 4000), st.integers(16, 4000), st.integers(256, 2**24))
def test_the_largest_picture_fits_and_the_next_one_does_not(
    width: int, height: int, most_pixels: int
) -> None:
    """The ratio is kept to a step, and sides are multiples of 16."""
    looked: dict[int, bool] = {}

    def fits(size: Size) -> bool:
        looked[max(size.width, size.height)] = size.area <= most_pixels
        return size.area <= most_pixels

    found = largest_size(fits, Size(width, height), most=2**14)
    if found.value is None:
        assert looked == {16: False}
        return
    size = found.value
    side = max(size.width, size.height)
    assert size.area <= most_pixels
    assert size.width % 16 == size.height % 16 == 0
    exact = side * min(width, height) / max(width, height)
    assert abs(min(size.width, size.height) - exact) <= 16
    assert found.at_limit == (side == 2**14)
    assert found.at_limit or looked[side + 16] is False


def test_a_picture_that_never_fits_and_one_that_always_does_are_said() -> None:
    """The limit of what was looked at is not the limit of the card."""
    assert largest_size(lambda size: False, Size(512, 512)) == SolvedSize(None)
    found = largest_size(lambda size: True, Size(512, 512), most=4096)
    assert found == SolvedSize(Size(4096, 4096), at_limit=True)


@pytest.mark.parametrize(
    ("fits_frames", "step", "lead", "frames"),
    [(81, 4, 1, 81), (80, 4, 1, 77), (4, 4, 1, 1), (33, 8, 1, 33), (40, 8, 0, 40), (12, 8, 0, 8)],
)
def test_the_longest_clip_has_as_many_frames_as_a_causal_vae_takes(
    fits_frames: int, step: int, lead: int, frames: int
) -> None:
    """``4k + 1`` for most; others as told."""
    size = Size(832, 480, frames=5, batch=2)
    found = most_frames(lambda size: size.frames <= fits_frames, size, step=step, lead=lead)
    assert found.value == Size(832, 480, frames=frames, batch=2)
    assert not found.at_limit


def test_large_jobs_are_looked_at_only_where_small_ones_fit() -> None:
    """A look may cost a dry run, and those of huge sizes cost most."""
    looked = []

    def fits(size: Size) -> bool:
        looked.append(size.width)
        return size.width <= 1024

    assert largest_size(fits, Size(512, 512)).value == Size(1024, 1024)
    assert max(looked) <= 2048 + 16
