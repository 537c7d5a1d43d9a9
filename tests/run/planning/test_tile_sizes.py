"""Which tiles a plan looks at."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.run.planning.models import CLIPS, PICTURES
from tightfit.plan.size import Size
from tightfit.plan.tilesize import FLOOR, TileWish, parse_tile
from tightfit.run.planning.steps import Steps
from tightfit.run.planning.tile_sizes import tile_name, tiles_of, wished

AUTO = TileWish()
STEPS = st.sampled_from((PICTURES, CLIPS, Steps(32, 8, cuts_time=True), Steps(16, 4)))
SIZES = st.builds(Size, st.integers(8, 4096), st.integers(8, 4096), st.integers(1, 161))
WISHES = st.one_of(
    st.just(AUTO),
    st.builds(
        lambda h, w, f: TileWish("size", h, w, f),
        st.integers(256, 2048),
        st.integers(256, 2048),
        st.one_of(st.none(), st.integers(9, 60)),
    ),
)


@given(STEPS, SIZES, WISHES)
def test_tiles_shrink_within_the_whole_down_to_the_floor(
    steps: Steps, size: Size, wish: TileWish
) -> None:
    """Each is once, smaller than the last, and as large as eight latent pixels or the whole."""
    one = steps.cast(size)
    tiles = list(tiles_of(steps, one, wish))
    assert len(set(tiles)) == len(tiles)
    before = one
    for tile in tiles:
        assert tile.width <= before.width
        assert tile.height <= before.height
        assert tile.frames <= before.frames
        assert tile != before
        assert tile.width >= min(FLOOR * steps.side, one.width)
        assert tile.height >= min(FLOOR * steps.side, one.height)
        assert tile.frames >= min(one.frames, 1 + (steps.frames or 1), wish.frames or 999)
        before = tile


@given(STEPS, SIZES, WISHES)
def test_tiles_go_down_to_the_floor_whatever_the_whole(
    steps: Steps, size: Size, wish: TileWish
) -> None:
    """So there is a size of tile that the largest picture and the smallest have in common."""
    one = steps.cast(size)
    *_, last = (one, *tiles_of(steps, one, wish))
    assert max(last.width, last.height) <= max(64, FLOOR * steps.side)
    if steps.cuts_time:
        assert last.frames <= 1 + (steps.frames or 1)


@given(STEPS, SIZES)
def test_a_tile_that_was_asked_for_comes_first(steps: Steps, size: Size) -> None:
    """Cut to what there is; where it covers everything there is nothing to cut."""
    one = steps.cast(size)
    wish = parse_tile("512x768", None)
    first = next(tiles_of(steps, one, wish), None)
    if one.width <= 768 and one.height <= 512:
        assert wished(steps, one, wish) == one
    else:
        assert first == wished(steps, one, wish)
        assert first is not None
        assert (first.height, first.width) == (min(512, one.height), min(768, one.width))


def test_time_is_cut_where_that_helps_and_where_it_is_asked_for() -> None:
    """A network that walks through time needs no less for a shorter clip."""
    clip = Size(256, 256, 81)
    assert {tile.frames for tile in tiles_of(CLIPS, clip, AUTO)} == {81}
    assert min(tile.frames for tile in tiles_of(Steps(8, 4, cuts_time=True), clip, AUTO)) == 5
    asked = parse_tile("9x128x128", None)
    assert {tile.frames for tile in tiles_of(CLIPS, clip, asked)} == {9}
    still = Size(256, 256)
    assert {tile.frames for tile in tiles_of(PICTURES, still, asked)} == {1}


def test_a_name_says_height_before_width_and_frames_where_time_is_cut() -> None:
    """As `encode` and `decode` call their tiles."""
    whole = Size(1024, 512, 81)
    assert tile_name(Size(256, 128, 81), whole) == "tiles 128x256"
    assert tile_name(Size(256, 128, 9), whole) == "tiles 9x128x256"
