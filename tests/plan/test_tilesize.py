"""Tiles as people ask for them, and the sizes that are tried."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.errors import UsageError
from tightfit.plan.tiles import Axis, cut
from tightfit.plan.tilesize import (
    FLOOR,
    TIME_FLOOR,
    Need,
    TileWish,
    check_wish,
    overlap_notes,
    overlapped,
    parse_tile,
    smaller_tiles,
    wished_tile,
)

PICTURE = (Axis(128, 8), Axis(96, 8))
CLIP = (Axis(21, 4, lead=True), Axis(60, 8), Axis(104, 8))


@pytest.mark.parametrize(
    ("tile", "overlap", "wish"),
    [
        ("auto", None, TileWish()),
        ("off", None, TileWish("off")),
        (" AUTO ", None, TileWish()),
        ("512", None, TileWish("size", 512, 512)),
        ("256x512", None, TileWish("size", 256, 512)),
        ("17x256x512", None, TileWish("size", 256, 512, 17)),
        ("17X256X512", "5x64", TileWish("size", 256, 512, 17, 64, 5)),
        ("512", "64", TileWish("size", 512, 512, overlap=64)),
        ("512", "0", TileWish("size", 512, 512, overlap=0)),
        ("auto", "64", TileWish(overlap=64)),
    ],
)
def test_a_wish_is_read_height_before_width(tile: str, overlap: str | None, wish: TileWish) -> None:
    """``auto``, ``off``, ``N``, ``HxW`` and ``FRAMESxHxW``; the overlap likewise."""
    assert parse_tile(tile, overlap) == wish


@pytest.mark.parametrize(
    ("tile", "overlap", "says"),
    [
        ("256", "256", "use 0 to 255"),
        ("128", "192", "use 0 to 127"),
        ("256x128", "128", "width, 128: use 0 to 127"),
        ("128x256", "200", "height, 128: use 0 to 127"),
        ("9x256x256", "9x64", "frames, 9: use 0 to 8"),
        ("256", "-1", "0 or more and below the tile"),
        ("256", "half", "0 or more and below the tile"),
        ("256", "", "0 or more and below the tile"),
        ("0", None, "has a zero"),
        ("0x256", None, "has a zero"),
        ("256x0", None, "has a zero"),
        ("0x256x256", None, "has a zero"),
        ("-256", None, "is not a tile"),
        ("big", None, "is not a tile"),
        ("", None, "is not a tile"),
        ("256x", None, "is not a tile"),
        ("1x2x3x4", None, "is not a tile"),
        ("256.5", None, "is not a tile"),
        ("²56", None, "is not a tile"),
    ],
)
def test_t04_nonsense_is_refused_while_parsing(tile: str, overlap: str | None, says: str) -> None:
    """Before anything is loaded, naming the value and the legal range or forms."""
    with pytest.raises(UsageError, match=re.escape(says)):
        parse_tile(tile, overlap)


@pytest.mark.parametrize(
    ("tile", "says"),
    [
        ("32", "height 32 is below the floor of 64 pixels"),
        ("512x63", "width 63 is below the floor of 64 pixels"),
        ("4x512x512", "4 frames are below the floor of 5"),
    ],
)
def test_a_tile_below_the_floor_is_refused(tile: str, says: str) -> None:
    """Eight latent pixels of an 8x VAE are 64 pixels; two latent frames of a 4x one are 5."""
    with pytest.raises(UsageError, match=says):
        check_wish(parse_tile(tile), spatial=8, temporal=4)
    check_wish(parse_tile("5x64x64"), spatial=8, temporal=4)


def test_the_floor_follows_the_ratio_of_the_vae() -> None:
    """128 pixels for a 16x VAE: nothing is assumed to be 8."""
    with pytest.raises(UsageError, match="floor of 128 pixels"):
        check_wish(parse_tile("64"), spatial=16, temporal=1)


def test_a_wished_tile_is_in_latent_units() -> None:
    """256x512 pixels on an 8x VAE are 32x64 units."""
    tile, notes = wished_tile(parse_tile("256x512", "64"), PICTURE)
    assert (tile.sizes, tile.overlaps) == ((32, 64), (8, 8))
    assert notes == ()


def test_a_wished_tile_is_rounded_down_and_said_so() -> None:
    """260 is no multiple of 8."""
    tile, notes = wished_tile(parse_tile("260x256"), PICTURE)
    assert tile.sizes == (32, 32)
    assert notes == ("tile height 260 rounded to 256",)


def test_an_overlap_that_is_rounded_is_said_so() -> None:
    """100 pixels are 12 units, 96 pixels; 7 are none."""
    tile, notes = wished_tile(parse_tile("256", "100"), PICTURE)
    assert tile.overlaps == (12, 12)
    assert notes == ("overlap 100 became 96",)
    assert wished_tile(parse_tile("256", "7"), PICTURE)[1] == ("overlap 7 became 0",)


def test_an_overlap_too_large_for_a_tile_nobody_asked_for_is_cut_and_said_so() -> None:
    """The tile is the planner's, so the overlap gives way."""
    tile = overlapped((16, 16), parse_tile("auto", "512"), PICTURE)
    assert tile.overlaps == (15, 15)
    assert overlap_notes(tile, parse_tile("auto", "512"), PICTURE) == ("overlap 512 became 120",)


def test_an_axis_shorter_than_the_tile_is_one_tile() -> None:
    """No overlap is needed where nothing is cut."""
    tile, notes = wished_tile(parse_tile("512", "64"), (Axis(3, 8), Axis(200, 8)))
    assert (tile.sizes, tile.overlaps) == ((3, 64), (0, 8))
    assert notes == ()


def test_frames_of_a_wish_count_the_leading_one() -> None:
    """17 frames are 5 latent frames; 16 are 4 and are rounded to 13."""
    assert wished_tile(parse_tile("17x256x256"), CLIP)[0].sizes == (5, 32, 32)
    tile, notes = wished_tile(parse_tile("16x256x256"), CLIP)
    assert tile.sizes == (4, 32, 32)
    assert notes == ("tile frames 16 rounded to 13",)


def test_a_wish_without_frames_leaves_time_whole() -> None:
    """``--tile 256`` cuts height and width alone."""
    assert wished_tile(parse_tile("256"), CLIP)[0].sizes == (21, 32, 32)


def test_tiles_of_a_leading_axis_always_share_a_frame() -> None:
    """Without one, the frames between two tiles would be nobody's."""
    tile, notes = wished_tile(parse_tile("17x256x256", "0x0"), CLIP)
    assert tile.overlaps == (1, 0, 0)
    assert notes == ("overlap in frames 0 became 1",)


def test_an_overlap_in_frames_counts_the_leading_one() -> None:
    """5 frames are two latent frames, 4 are one and become 1."""
    tile, notes = wished_tile(parse_tile("17x256x256", "5x64"), CLIP)
    assert (tile.overlaps, notes) == ((2, 8, 8), ())
    tile, notes = wished_tile(parse_tile("17x256x256", "4x64"), CLIP)
    assert (tile.overlaps, notes) == ((1, 8, 8), ("overlap in frames 4 became 1",))


def test_the_default_overlap_is_what_cuts_need_or_a_quarter() -> None:
    """64 units overlap by 16; where six are known to be enough, by six, and by 20 where not."""
    assert overlapped((64, 64), TileWish(), PICTURE).overlaps == (16, 16)
    assert overlapped((64, 64), TileWish(), PICTURE, needs=(None, Need(6))).overlaps == (16, 6)
    assert overlapped((64, 64), TileWish(), PICTURE, needs=(Need(20), Need(0))).overlaps == (20, 0)


def test_where_something_reaches_everywhere_a_quarter_is_blended_at_least() -> None:
    """An overlap that hides the cuts alone would show where the tiles meet."""
    needs = (Need(6, enough=False), Need(20, enough=False))
    assert overlapped((64, 64), TileWish(), PICTURE, needs=needs).overlaps == (16, 20)


def test_no_overlap_that_nobody_asked_for_is_more_than_three_quarters() -> None:
    """A tile must get on; whether it is exact is another question."""
    assert overlapped((8, 8), TileWish(), PICTURE, needs=(Need(20), Need(20))).overlaps == (6, 6)
    assert overlapped((8, 8), parse_tile("64", "56"), PICTURE).overlaps == (7, 7)


def test_a_tile_of_sound_is_a_number_of_samples_in_whole_hops() -> None:
    """10240 samples are five hops of 1920; the floor of pictures is none of sound."""
    sound = (Axis(251, 1920),)
    check_wish(parse_tile("10240"), spatial=1920, temporal=1, axes=1)
    tile, notes = wished_tile(parse_tile("10240"), sound, needs=(Need(0),))
    assert (tile.sizes, tile.overlaps) == ((5,), (0,))
    assert notes == ("tile length 10240 rounded to 9600",)
    with pytest.raises(UsageError, match="1000 samples are below a hop of 1920"):
        check_wish(parse_tile("1000"), spatial=1920, temporal=1, axes=1)
    assert list(smaller_tiles(sound, start=None, time=False, fine=False))[-1] == (1,)


axes_of_pictures = st.tuples(*[st.builds(Axis, length=st.integers(1, 3000), ratio=st.just(8))] * 2)
axes_of_clips = st.tuples(
    st.builds(Axis, length=st.integers(1, 60), ratio=st.just(4), lead=st.just(True)),
    *[st.builds(Axis, length=st.integers(1, 500), ratio=st.just(8))] * 2,
)


some_needs = st.one_of(st.none(), st.builds(Need, st.integers(0, 90), st.booleans()))
some_or_none = st.one_of(st.just(()), st.tuples(*[some_needs] * 3))


@given(st.one_of(axes_of_pictures, axes_of_clips), st.booleans(), st.booleans(), some_or_none)
def test_sizes_shrink_to_the_floor_each_once(
    axes: tuple[Axis, ...], time: bool, fine: bool, needs: tuple[Need | None, ...]
) -> None:
    """Never the whole, never twice the same, never growing, never below the floor, and it ends."""
    time = time and len(axes) == 3
    whole = tuple(axis.length for axis in axes)
    needs = needs[-len(axes) :] if needs else ()
    sizes = list(smaller_tiles(axes, start=None, time=time, fine=fine, needs=needs))
    assert len(set(sizes)) == len(sizes) <= 60
    assert whole not in sizes
    for one, two in zip([whole, *sizes], sizes, strict=False):
        assert all(b <= a for a, b in zip(one, two, strict=True))
    last = sizes[-1] if sizes else whole
    spatial = last[1:] if len(axes) == 3 else last
    assert all(size <= FLOOR for size in spatial)
    assert all(
        size >= min(FLOOR, axis.length) for size, axis in zip(last[-2:], axes[-2:], strict=True)
    )
    if len(axes) == 3:
        assert last[0] == (min(TIME_FLOOR, whole[0]) if time else whole[0])


@given(axes_of_pictures)
def test_coarse_sizes_at_most_double_the_number_of_tiles_per_axis(axes: tuple[Axis, ...]) -> None:
    """Without a planner: bounded tries, and no step that jumps over sizes that would have fit."""
    sizes = list(smaller_tiles(axes, start=None, time=False, fine=False))
    for at, axis in enumerate(axes):
        counts = [1, *(len(cut(axis.length, size[at], size[at] // 4)) for size in sizes)]
        for one, two in pairwise(counts):
            assert one <= two <= 2 * one + 1
    assert len(sizes) <= 10


def test_sizes_follow_the_overlap_that_cuts_need() -> None:
    """Two tiles of 100 units that share six are 53 long, and four 30: nothing is computed twice."""
    axes = (Axis(100, 8), Axis(100, 8))
    sizes = smaller_tiles(axes, start=None, time=False, fine=False, needs=(Need(6), Need(6)))
    assert list(sizes)[:2] == [(53, 53), (30, 30)]
    assert [len(cut(100, size, 6)) for size in (53, 30)] == [2, 4]


@given(axes_of_pictures)
def test_fine_sizes_split_one_axis_at_a_time(axes: tuple[Axis, ...]) -> None:
    """A planner has more to pick from."""
    whole = tuple(axis.length for axis in axes)
    sizes = [whole, *smaller_tiles(axes, start=None, time=False, fine=True)]
    for one, two in pairwise(sizes):
        assert sum(a != b for a, b in zip(one, two, strict=True)) == 1


def test_sizes_begin_below_the_wish() -> None:
    """A tile that was asked for is tried first; only smaller ones follow it."""
    for fine in (False, True):
        sizes = list(smaller_tiles(PICTURE, start=(32, 64), time=False, fine=fine))
        assert all(size != (32, 64) and size[0] <= 32 and size[1] <= 64 for size in sizes)
        assert sizes[-1] == (8, 8)


def test_time_is_cut_last() -> None:
    """Height and width go to the floor first."""
    sizes = list(smaller_tiles(CLIP, start=None, time=True, fine=False))
    cut_in_time = [size for size in sizes if size[0] < 21]
    assert cut_in_time == [(11, 8, 8), (6, 8, 8), (3, 8, 8), (2, 8, 8)]
    assert sizes[-len(cut_in_time) :] == cut_in_time
