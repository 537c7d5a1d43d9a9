"""Group T: tiles of every size and shape give the untiled answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.cases.common import measured, run_checked, virtual, weights_and_input
from tightfit.card import open_card
from tightfit.errors import UsageError
from tightfit.plan.tilesize import check_wish, parse_tile
from tightfit.run.job import Job, Request
from tightfit.run.vae import Direction, Traits, Vae
from tightfit.testing import toy_vae, wrap_toy
from tightfit.units import GIB

ROOM = 8 * GIB


def watched(vae: Vae) -> tuple[Vae, list[tuple[int, ...]]]:
    """The VAE, and the sizes behind batch and channels of all that it is given on a card."""
    seen: list[tuple[int, ...]] = []

    def see(x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "vcard":
            seen.append(tuple(x.shape[2:]))
        return x

    def encode(x: torch.Tensor) -> torch.Tensor:
        return vae.encode(see(x))

    def decode(z: torch.Tensor) -> torch.Tensor:
        return vae.decode(see(z))

    return replace(vae, encode=encode, decode=decode), seen


# T02


@pytest.mark.parametrize("direction", ["encode", "decode"])
@pytest.mark.parametrize("width", [49, 65, 66, 97, 113, 129])
def test_t02_no_tile_is_a_sliver_at_any_size(width: int, direction: Direction) -> None:
    """Tile 64, overlap 16: every tile is 64 wide, or the whole axis; the answer is the untiled."""
    vae = toy_vae("V2", width=8)
    source = torch.rand((1, 4, 10, width) if direction == "decode" else (1, 3, 80, 8 * width))
    reference = measured(vae, direction, source)
    watching, seen = watched(vae)
    request = Request(ROOM, wish=parse_tile("512", "128"), estimate=False)
    outcome = run_checked(Job(watching, direction, virtual(ROOM), request), source, reference.value)
    unit = 1 if direction == "decode" else 8
    assert {sizes[1] for sizes in seen} == {min(64, width) * unit}
    assert {sizes[0] for sizes in seen} == {10 * unit}
    assert outcome.exact


# T03


@pytest.mark.parametrize("estimate", [True, False], ids=["planned", "tried"])
@pytest.mark.parametrize("sizes", [(1, 1), (3, 200), (200, 3), (64, 64)])
def test_t03_an_axis_shorter_than_the_tile_is_one_tile(
    sizes: tuple[int, int], estimate: bool
) -> None:
    """Never an error, never a puzzling message."""
    vae, source = toy_vae("V2", width=4), torch.rand(1, 4, *sizes)
    reference = measured(vae, "decode", source)
    watching, seen = watched(vae)
    request = Request(ROOM, wish=parse_tile("512", "128"), estimate=estimate)
    run_checked(Job(watching, "decode", virtual(ROOM), request), source, reference.value)
    assert set(seen) == {tuple(min(64, size) for size in sizes)}


@pytest.mark.parametrize("estimate", [True, False], ids=["planned", "tried"])
def test_t03_a_tile_larger_than_the_picture_is_made_smaller_when_memory_is_short(
    estimate: bool,
) -> None:
    """144x144 with tile 192 under half the untiled peak: a smaller tile fits, and is reported."""
    vae, source = toy_vae("V2", width=4), torch.rand(1, 4, 144, 144)
    reference = measured(vae, "decode", source)
    budget = (reference.base + reference.peak) // 2
    request = Request(budget, wish=parse_tile(str(192 * 8)), estimate=estimate)
    outcome = run_checked(Job(vae, "decode", virtual(budget), request), source, reference.value)
    tile = outcome.attempt.tile
    assert tile is not None
    assert max(tile) < 144 * 8
    assert any("covers everything" in note for note in outcome.adjusted)
    assert f"tiles made smaller than asked: {tile[0]}x{tile[1]}" in outcome.adjusted


def test_t03_tiles_forced_on_a_card_with_room_are_tiles() -> None:
    """A size that is asked for is used although everything would fit."""
    vae, source = toy_vae("V2", width=4), torch.rand(1, 4, 40, 40)
    request = Request(ROOM, wish=parse_tile("128", "48"))
    outcome = run_checked(
        Job(vae, "decode", virtual(ROOM), request), source, measured(vae, "decode", source).value
    )
    assert outcome.attempt.tile == (128, 128)
    assert [a.outcome for a in outcome.attempts] == ["ok"]


# T04


@pytest.mark.parametrize(
    ("tile", "overlap"), [("256", "256"), ("128", "192"), ("256", "-1"), ("0", None)]
)
def test_t04_a_tile_that_cannot_be_is_refused_before_anything_is_loaded(
    tile: str, overlap: str | None
) -> None:
    """While parsing, with the legal range or forms; no card is touched."""
    card = virtual("64MiB")
    with pytest.raises(UsageError, match=r"use (0 to \d+|N or FRAMESxN|auto, off, N)") as caught:
        parse_tile(tile, overlap)
    assert caught.value.exit_code == 2
    assert card.allocations == 0


def test_t04_a_tile_below_the_floor_is_refused_with_the_floor() -> None:
    """Known as soon as the ratio of the VAE is."""
    traits = toy_vae("V2").traits
    with pytest.raises(UsageError, match="floor of 64 pixels"):
        check_wish(parse_tile("56"), spatial=traits.spatial, temporal=traits.temporal)


class Copy(nn.Module):
    """Every sample stands alone: a latent is the mean of its patch, a patch is its latent."""

    def __init__(self, ratio: int) -> None:
        super().__init__()
        self.ratio = ratio

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return x[..., :: self.ratio, :: self.ratio]

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return z.repeat_interleave(self.ratio, -1).repeat_interleave(self.ratio, -2)


@settings(max_examples=60)
@given(
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(8, 40),
    st.integers(8, 40),
    st.data(),
)
def test_t04_no_run_leaves_an_unwritten_pixel(
    height: int, width: int, tile_height: int, tile_width: int, data: st.DataObject
) -> None:
    """Whatever sizes and overlaps: each sample of the result is the one it should be."""
    ratio = 2
    overlap = data.draw(st.integers(0, min(tile_height, tile_width) * ratio - 1))
    direction: Direction = data.draw(st.sampled_from(["encode", "decode"]))
    vae = wrap_toy(Copy(ratio), Traits("Copy", ratio, channels=1, latent_channels=1))
    wish = parse_tile(f"{tile_height * ratio}x{tile_width * ratio}", str(overlap))
    latent = torch.rand(1, 1, height, width) + 1
    source = latent if direction == "decode" else vae.decode(latent)
    request = Request(ROOM, wish=wish, estimate=False)
    outcome = Job(vae, direction, open_card("cpu"), request).run(source)
    torch.testing.assert_close(outcome.value, vae.call(direction)(source), rtol=1e-6, atol=0)


# T05


def test_t05_a_constant_latent_gives_a_constant_picture_at_every_width() -> None:
    """Widths 33 to 160, tile 32, overlap 8: no band is brighter, to 1e-4."""
    vae = toy_vae("V2", width=4)
    card = virtual(ROOM)
    job = Job(vae, "decode", card, Request(ROOM, wish=parse_tile("256", "64"), estimate=False))
    expected = vae.decode(torch.full((1, 4, 1, 1), 0.5))[..., 0, 0]
    for width in range(33, 161):
        value = job.run(torch.full((1, 4, 2, width), 0.5)).value
        assert value.shape == (1, 3, 16, 8 * width)
        off = (value - expected.view(1, 3, 1, 1)).abs().max().item()
        assert off <= 1e-4, f"off by {off} at width {width}"
    assert card.read().allocated == 0


# T09


def test_t09_each_item_of_a_tiled_batch_equals_its_own_run() -> None:
    """V3, a batch of 3: the peak beyond what is held does not grow with the batch."""
    vae, source = toy_vae("V3", width=8), torch.rand(3, 16, 3, 18, 14)
    wish = parse_tile("80", "48")
    single = [measured(vae, "decode", item, wish) for item in source.split(1)]
    request = Request(ROOM, wish=wish, estimate=False)
    outcome = run_checked(
        Job(vae, "decode", virtual(ROOM), request),
        source,
        torch.cat([one.value for one in single]),
        tolerance=0,
    )
    assert outcome.peak_bytes is not None
    assert outcome.peak_bytes - weights_and_input(vae, source) == single[0].peak
    whole = measured(vae, "decode", source)
    torch.testing.assert_close(outcome.value, whole.value, rtol=0, atol=1e-5)


def test_t09_a_batch_that_does_not_fit_at_once_is_split_before_it_is_tiled() -> None:
    """One item at a time is exact, so it comes before tiles."""
    vae, source = toy_vae("V2", width=8), torch.rand(4, 4, 16, 16)
    one, four = (measured(vae, "decode", x) for x in (source[:1], source))
    budget = four.base + (one.peak + four.peak) // 2
    for estimate in (True, False):
        request = Request(budget, estimate=estimate)
        outcome = run_checked(Job(vae, "decode", virtual(budget), request), source, four.value)
        assert (outcome.attempt.rung, outcome.attempt.tile) == ("batch of 1", None)


# T13


@pytest.mark.parametrize("direction", ["encode", "decode"])
def test_t13_a_clip_shorter_than_the_temporal_tile_is_one_tile_in_time(
    direction: Direction,
) -> None:
    """5 frames with a temporal tile of 16 and an overlap of 4."""
    vae = toy_vae("V3", width=8)
    source = torch.rand((1, 3, 5, 96, 96) if direction == "encode" else (1, 16, 2, 12, 12))
    reference = measured(vae, direction, source)
    watching, seen = watched(replace(vae, onward=None))
    request = Request(ROOM, wish=parse_tile("16x64x64", "4x16"), estimate=False)
    run_checked(Job(watching, direction, virtual(ROOM), request), source, reference.value)
    assert {sizes[0] for sizes in seen} == {source.shape[2]}


@pytest.mark.parametrize("estimate", [True, False], ids=["planned", "tried"])
def test_t13_a_temporal_tile_that_bounds_nothing_is_replaced_by_one_that_fits(
    estimate: bool,
) -> None:
    """97 frames, a tile of 4096 of them, under half the untiled peak."""
    vae, source = toy_vae("V3", width=4), torch.rand(1, 16, 25, 16, 16)
    reference = measured(vae, "decode", source)
    budget = (reference.base + reference.peak) // 2
    request = Request(budget, wish=parse_tile("4096x128x128", "16x32"), estimate=estimate)
    outcome = run_checked(Job(vae, "decode", virtual(budget), request), source, reference.value)
    assert outcome.attempt.tile is not None
    assert any("covers everything" in note for note in outcome.adjusted)
    assert any("smaller than asked" in note for note in outcome.adjusted)


def test_temporal_tiles_that_are_asked_for_meet_without_a_gap() -> None:
    """Each tile treats its first latent frame as a beginning; the overlap hides it.

    So it is with a VAE that cannot go on where it ended.
    """
    vae, source = replace(toy_vae("V3", width=8), onward=None), torch.rand(1, 16, 9, 8, 8)
    reference = measured(vae, "decode", source)
    watching, seen = watched(vae)
    request = Request(ROOM, wish=parse_tile("17x64x64", "9x0"), estimate=False)
    outcome = run_checked(Job(watching, "decode", virtual(ROOM), request), source, reference.value)
    assert outcome.attempt.tile == (17, 64, 64)
    assert {sizes[0] for sizes in seen} == {5}


# T18


def test_t18_progress_counts_the_tiles_that_run_and_reaches_the_end() -> None:
    """5x3 tiles: 15 calls, told as 1 to 15 of 15, and every pixel is that of the whole run.

    The sums start at 0, so a pixel that no tile wrote would differ from the reference.
    """
    vae, source = toy_vae("V2", width=4), torch.rand(1, 4, 40, 24)
    reference = measured(vae, "decode", source)
    watching, seen = watched(vae)
    told: list[tuple[str, int, int]] = []
    request = Request(ROOM, wish=parse_tile("96", "32"), estimate=False)
    job = Job(
        watching,
        "decode",
        virtual(ROOM),
        request,
        progress=lambda rung, done, total: told.append((rung, done, total)),
    )
    outcome = run_checked(job, source, reference.value)
    assert outcome.value.shape == reference.value.shape
    assert (reference.value != 0).all()
    assert told == [("tiles 96x96", done, 15) for done in range(1, 16)]
    assert len(seen) == 15


def test_t18_progress_starts_anew_with_each_rung() -> None:
    """After a fallback the total is that of the tiles; it is reached."""
    vae, source = toy_vae("V2", width=8), torch.rand(2, 4, 24, 24)
    reference = measured(vae, "decode", source)
    budget = reference.base + reference.peak // 3
    told: list[tuple[str, int, int]] = []
    job = Job(
        vae,
        "decode",
        virtual(budget),
        Request(budget, estimate=False),
        progress=lambda rung, done, total: told.append((rung, done, total)),
    )
    outcome = run_checked(job, source, reference.value)
    mine = [(done, total) for rung, done, total in told if rung == outcome.attempt.rung]
    assert mine == [(done, len(mine)) for done in range(1, len(mine) + 1)]


# What a report may say of tiles


@pytest.mark.parametrize(
    ("name", "overlap", "exact"),
    [("V2", "32", True), ("V2", "24", False), ("V2P", "64", True), ("V2N", "48", False)],
)
def test_t07_tiles_are_called_exact_only_where_the_overlap_covers_the_halo(
    name: str, overlap: str, exact: bool
) -> None:
    """And where it does, they are: to rounding. A norm over the picture is never exact."""
    vae, source = toy_vae(name, width=8), torch.rand(1, 4, 20, 28)
    reference = measured(vae, "decode", source)
    request = Request(ROOM, wish=parse_tile("160", overlap), estimate=False)
    outcome = run_checked(Job(vae, "decode", virtual(ROOM), request), source)
    assert outcome.exact == exact
    off = (outcome.value - reference.value).abs().max().item()
    if exact:
        assert off <= 1e-5
    if name == "V2N":
        assert off > 1e-4
