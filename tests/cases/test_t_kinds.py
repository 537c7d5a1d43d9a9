"""Group T, the kinds beside sizes: dtypes, time, ratios, overflow, ceilings, sound."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases.common import measured, run_checked, untold, virtual
from tests.cases.test_t import watched
from tightfit import api
from tightfit.card import open_card
from tightfit.errors import JobFailed
from tightfit.media.samples import to_bytes
from tightfit.plan.tilesize import parse_tile
from tightfit.run.framing import sound_to_source, to_sound
from tightfit.run.job import Job, Request
from tightfit.run.vae import Direction, Vae
from tightfit.testing import faults, toy_vae
from tightfit.units import GIB

ROOM = 8 * GIB


def in_dtype(vae: Vae, dtype: torch.dtype) -> Vae:
    """The toy, with weights in `dtype`."""
    vae.module.to(dtype)
    return replace(vae, dtype=dtype)


# T06


@pytest.mark.parametrize("overlap", ["0", "8", "64", "128"])
def test_t06_corners_are_right_in_half_precision(overlap: str) -> None:
    """V2 in bf16, 96x96, tile 32: sums in float32, weights that add up to 1, nothing is divided
    by almost 0."""
    vae = in_dtype(toy_vae("V2", width=8), torch.bfloat16)
    source = torch.randn(1, 4, 96, 96).bfloat16()
    reference = measured(vae, "decode", source).value.float()
    request = Request(ROOM, wish=parse_tile("256", overlap), estimate=False)
    outcome = run_checked(Job(vae, "decode", virtual(ROOM), request), source)
    value = outcome.value.float()
    assert outcome.value.dtype == torch.bfloat16
    assert torch.isfinite(value).all()
    corners = [
        (..., slice(a, a + 8 or None), slice(b, b + 8 or None)) for a in (0, -8) for b in (0, -8)
    ]
    for corner in corners:
        torch.testing.assert_close(value[corner], reference[corner], rtol=2**-8, atol=1e-6)
    if outcome.exact:
        torch.testing.assert_close(value, reference, rtol=2**-7, atol=1e-6)
    assert outcome.exact == (overlap in ("64", "128"))


# T07


def test_t07_tiles_of_a_norm_over_everything_state_a_bound_and_keep_to_it() -> None:
    """V2N on a ramp of 512x512 in four tiles: approximate, within what the report says, and no
    step where tiles meet is larger than that."""
    vae = toy_vae("V2N", width=8)
    ramp = torch.linspace(0, 1, 512).expand(1, 3, 512, 512).contiguous()
    whole, tiled = (
        api.encode(ramp, vae=vae, card="virtual:1GiB", tile=tile) for tile in ("off", "296")
    )
    assert (whole.report.exact, whole.report.error_bound) == (True, 0.0)
    assert tiled.report.exact is False
    bound = tiled.report.error_bound
    assert bound is not None
    assert any(f"within {bound:.2g} of it" in warning for warning in tiled.report.warnings)
    one, other = whole.value.latent, tiled.value.latent
    level = float(one.square().mean().sqrt())
    assert float((other - one).square().mean().sqrt()) <= bound * level
    usual = one.diff(dim=-1).abs().max().item()
    assert other.diff(dim=-1).abs().max().item() <= usual + bound * level
    exact = api.encode(ramp, vae=toy_vae("V2", width=8), card="virtual:1GiB", tile="296").report
    assert (exact.exact, exact.error_bound) == (True, None)


# T15


def still_with_a_flash(at: int, frames: int = 29) -> torch.Tensor:
    """Grey frames, one of them white."""
    clip = torch.zeros(1, 3, frames, 64, 64)
    clip[:, :, at] = 1
    return clip


@pytest.mark.parametrize("direction", ["encode", "decode"])
@pytest.mark.parametrize("frames", [5, 9, 13, 17, 21])
def test_t15_the_cache_is_carried_from_tile_to_tile_in_time(
    frames: int, direction: Direction
) -> None:
    """Wherever the tiles meet, the clip is that of the whole run, bit for bit."""
    vae = toy_vae("V3", width=8)
    clip = still_with_a_flash(16)
    source = clip if direction == "encode" else vae.encode(clip)
    reference = measured(vae, direction, source)
    request = Request(ROOM, wish=parse_tile(f"{frames}x64x64"), estimate=False)
    outcome = run_checked(
        Job(vae, direction, virtual(ROOM), request), source, reference.value, tolerance=0
    )
    assert outcome.attempt.tile == (frames, 64, 64)
    assert outcome.exact
    assert vae.module._feat == [None] * 5


def test_t15_a_flash_is_seen_where_it_was_and_nowhere_else() -> None:
    """White at frame 14 to 18, tiles that meet all around it: the latents that differ from those
    of a still clip are those that differ in a whole run."""
    vae, still = toy_vae("V3", width=8), torch.zeros(1, 3, 29, 64, 64)

    def changed(coded: torch.Tensor) -> list[int]:
        other = (coded != vae.encode(still)).transpose(1, 2).flatten(3).flatten(2).any(dim=2)
        return other[0].nonzero().flatten().tolist()

    for at in range(14, 19):
        flash = still_with_a_flash(at)
        expected = changed(vae.encode(flash))
        assert 1 <= len(expected) <= 2
        for frames in (5, 9, 17):
            request = Request(ROOM, wish=parse_tile(f"{frames}x64x64"), estimate=False)
            tiled = Job(vae, "encode", open_card("cpu"), request).run(flash).value
            assert changed(tiled) == expected


def test_t15_tiles_in_time_and_space_carry_a_cache_for_each_place() -> None:
    """One place after the other, so that there is one cache on the card at a time."""
    vae, source = toy_vae("V3", width=8), torch.rand(1, 16, 7, 20, 20)
    reference = measured(vae, "decode", source)
    told: list[tuple[int, int]] = []
    request = Request(ROOM, wish=parse_tile("9x80x80"), estimate=False)
    job = Job(
        vae,
        "decode",
        virtual(ROOM),
        request,
        progress=lambda _, done, total: told.append((done, total)),
    )
    outcome = run_checked(job, source, reference.value)
    assert outcome.exact
    places = len(told) // 3
    assert told == [(done, 3 * places) for done in range(1, 3 * places + 1)]
    assert places > 1
    spatial = measured(vae, "decode", source, parse_tile("80"))
    assert outcome.peak_bytes is not None
    assert outcome.baseline_bytes is not None
    assert outcome.peak_bytes - outcome.baseline_bytes < spatial.peak


def test_t15_a_vae_that_cannot_go_on_gets_frames_to_warm_up() -> None:
    """As many as were measured, and they are left out: frames of two tiles blended show ghosts."""
    vae = replace(toy_vae("V3", width=8), onward=None)
    source = vae.encode(still_with_a_flash(16))
    reference = measured(vae, "decode", source)
    request = Request(ROOM, wish=parse_tile("13x64x64"), estimate=False)
    watching, seen = watched(vae)
    outcome = run_checked(
        Job(watching, "decode", virtual(ROOM), request), source, reference.value, tolerance=0
    )
    assert outcome.exact
    assert {sizes[0] for sizes in seen} == {4}
    assert len(seen) == 3, "8 latent frames, tiles of 4 that share one"


# T16


@pytest.mark.parametrize("tile", ["128", "160x128", "250"])
def test_t16_the_ratio_is_the_models_own(tile: str) -> None:
    """V2P folds pixels into channels before its 8x network: 16x in all. 88x160, five pictures."""
    vae = toy_vae("V2P", width=8)
    frames = torch.rand(5, 3, 88, 160)
    whole, tiled = (
        api.encode(frames, vae=vae, card="virtual:1GiB", tile=each) for each in ("off", tile)
    )
    latent = tiled.value.latent
    assert latent.shape == (5, 4, 6, 10)
    assert tiled.value.ratio == (1, 16)
    torch.testing.assert_close(latent, whole.value.latent, rtol=0, atol=1e-5)
    back, reference = (
        api.decode(whole.value, vae=vae, card="virtual:1GiB", tile=each) for each in (tile, "off")
    )
    assert back.value.pixels.shape == (5, 3, 88, 160)
    torch.testing.assert_close(back.value.pixels, reference.value.pixels, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "ratio"), [("V2", 8), ("V2P", 16)])
@pytest.mark.parametrize("direction", ["encode", "decode"])
def test_t16_a_tile_in_pixels_is_that_many_latents_of_this_model(
    name: str, ratio: int, direction: Direction
) -> None:
    """Eight latents are 64 pixels here and 128 there; every tile that is run has just these."""
    vae, source = toy_vae(name, width=8), torch.rand(1, 4, 11, 20)
    source = source if direction == "decode" else vae.decode(source)
    reference = measured(vae, direction, source)
    watching, seen = watched(vae)
    request = Request(ROOM, wish=parse_tile(str(8 * ratio)), estimate=False)
    outcome = run_checked(Job(watching, direction, virtual(ROOM), request), source, reference.value)
    unit = 1 if direction == "decode" else ratio
    assert set(seen) == {(8 * unit, 8 * unit)}
    assert outcome.attempt.tile == (8 * ratio, 8 * ratio)


# T20


def overflowing(dtype: torch.dtype = torch.float16) -> tuple[Vae, torch.Tensor]:
    """V2 in `dtype`, large within, and a latent with one region that is too hot for float16."""
    vae = toy_vae("V2", width=8)
    with torch.no_grad():
        vae.module.up[2].weight *= 500
        vae.module.to_colour.weight /= 500
    source = torch.randn(1, 4, 28, 28)
    source[..., 13:15, 13:15] = 400
    return in_dtype(vae, dtype), source.to(dtype)


def test_t20_only_the_tile_that_overflows_is_run_again_in_a_wider_dtype() -> None:
    """Nine tiles, the one in the middle is hot: the others keep their bits, and it is named."""
    vae, source = overflowing()
    calm = source.clone()
    calm[..., 13:15, 13:15] = 0
    watching, seen = watched(vae)
    request = Request(ROOM, wish=parse_tile("96"), estimate=False)
    job = Job(watching, "decode", virtual(ROOM), request)
    outcome = run_checked(job, source)
    assert torch.isfinite(outcome.value).all()
    assert outcome.value.dtype == torch.float16
    assert len(seen) == 10
    said = [note for note in outcome.adjusted if "not finite" in note]
    assert said == [
        "rows 64 to 159, columns 64 to 159 of the result came out not finite in float16: redone "
        "in float32"
    ]
    other = job.run(calm).value
    assert torch.equal(outcome.value[..., :64, :], other[..., :64, :])
    vae.module.float()
    wide = vae.decode(source.float())
    off = (outcome.value.float() - wide).square().mean().sqrt() / wide.square().mean().sqrt()
    assert off <= 1e-2


def test_t20_a_whole_run_that_overflows_is_run_again_too() -> None:
    """It is the one tile."""
    vae, source = overflowing()
    outcome = run_checked(Job(vae, "decode", virtual(ROOM), Request(ROOM)), source)
    assert torch.isfinite(outcome.value).all()
    assert any("redone in float32" in note for note in outcome.adjusted)


def test_t20_strips_that_overflow_are_run_again_in_float32_too() -> None:
    """Neither the whole nor its float32 fits; strips of both do."""
    vae, source = overflowing()
    whole = measured(vae, "decode", source * 0)
    budget = whole.base + int(whole.peak * 0.7)
    request = Request(budget, wish=parse_tile("off"))
    outcome = run_checked(Job(vae, "decode", virtual(budget), request), source)
    assert "strips" in outcome.attempt.rung
    assert torch.isfinite(outcome.value).all()
    assert outcome.value.dtype == torch.float16
    said = [note for note in outcome.adjusted if "not finite" in note]
    assert len(said) == 1
    assert said[0].endswith("came out not finite in float16: redone in float32")
    vae.module.float()
    wide = vae.decode(source.float())
    off = (outcome.value.float() - wide).square().mean().sqrt() / wide.square().mean().sqrt()
    assert off <= 1e-2


def test_t20_without_room_for_a_wider_dtype_smaller_tiles_are_tried() -> None:
    """What is run again needs twice the bytes; a tile of which that fits comes later."""
    vae, source = overflowing()
    one = measured(vae, "decode", source * 0)
    budget = one.base + int(one.peak * 1.15)
    request = Request(budget, wish=parse_tile("224"))  # all of it
    outcome = run_checked(Job(vae, "decode", virtual(budget), request), source)
    assert torch.isfinite(outcome.value).all()
    assert outcome.attempts[-1].tile is not None
    assert [each.outcome for each in outcome.attempts if each.rung == "whole"] == ["oom"]


def test_t20_what_no_dtype_can_mend_is_said_and_not_saved(tmp_path: Path) -> None:
    """A NaN in the input is nobody's overflow: nothing is run twice, and the saver refuses."""
    vae, source = overflowing()
    source[..., 3, 3] = torch.nan
    watching, seen = watched(vae)
    outcome = run_checked(Job(watching, "decode", virtual(ROOM), Request(ROOM)), source)
    assert len(seen) == 1
    with pytest.raises(JobFailed, match="NaN or infinite"):
        to_bytes(outcome.value, goal=tmp_path)


# T21

CEILING = 2**20


@pytest.mark.parametrize("estimate", [True, False], ids=["planned", "tried"])
@pytest.mark.parametrize("direction", ["encode", "decode"])
@pytest.mark.parametrize("told", [True, False], ids=["in strips", "in tiles"])
def test_t21_what_is_above_a_devices_ceiling_is_cut_in_advance(
    direction: Direction, estimate: bool, told: bool
) -> None:
    """It would come back as zeros, with no error that a ladder could catch: strips stay below the
    ceiling as tiles do, the input included."""
    vae = toy_vae("V2", width=4)
    vae = vae if told else untold(vae)
    latent = torch.rand(1, 4, 128, 128)
    source = latent if direction == "decode" else vae.decode(latent)
    reference = measured(vae, direction, source)
    card = virtual(ROOM)
    with faults(card, element_ceiling=CEILING):
        job = Job(vae, direction, card, Request(ROOM, estimate=estimate))
        outcome = run_checked(job, source, reference.value)
    whole, *_, last = outcome.attempts
    assert (whole.rung, whole.outcome) == ("whole", "skipped")
    assert whole.reason is not None
    assert whole.reason.startswith("size ceiling: an operator would give ")
    assert not any(each.outcome == "oom" for each in outcome.attempts)
    assert (last.tile is None) == told
    assert ("strips" in last.rung) == told
    assert last.exact


def test_t21_without_a_ceiling_or_below_it_nothing_is_tiled() -> None:
    """The same job, on a card that can."""
    vae, source = toy_vae("V2", width=4), torch.rand(1, 4, 32, 32)
    card = virtual(ROOM)
    reference = measured(vae, "decode", source)
    with faults(card, element_ceiling=CEILING):
        outcome = run_checked(Job(vae, "decode", card, Request(ROOM)), source, reference.value)
    assert [each.rung for each in outcome.attempts] == ["whole"]


# T23


def tone() -> torch.Tensor:
    """440 Hz at 48 kHz, both channels, ten seconds and 777 samples."""
    t = torch.arange(480_777) / 48_000
    wave = torch.sin(2 * torch.pi * 440 * t)
    return torch.stack([wave, 0.5 * wave])


@pytest.mark.parametrize(("tile", "hops"), [(str(2048 * 1920), 251), ("10240", 5)])
def test_t23_sound_is_tiled_along_its_own_axis(tile: str, hops: int) -> None:
    """In whole hops, which is said; its length and level come back, and nothing clicks."""
    vae, sound = toy_vae("VA", width=8), tone()
    source, added = sound_to_source(sound, vae.traits)
    assert (added, source.shape[-1]) == (1143, 251 * 1920)
    latent = source
    for direction in ("encode", "decode"):
        reference = measured(vae, direction, latent)
        watching, seen = watched(vae)
        request = Request(ROOM, wish=parse_tile(tile), estimate=False)
        outcome = run_checked(
            Job(watching, direction, virtual(ROOM), request), latent, reference.value
        )
        assert set(seen) == {(hops * (1920 if direction == "encode" else 1),)}
        rounded = [note for note in outcome.adjusted if "rounded" in note]
        assert rounded == (["tile length 10240 rounded to 9600"] if hops == 5 else [])
        assert outcome.exact
        latent = outcome.value
    back, whole = to_sound(latent, added=added), to_sound(reference.value, added=added)
    assert back.shape == sound.shape
    level, untiled = back.square().mean().sqrt(), whole.square().mean().sqrt()
    assert abs(level - untiled) <= 0.01 * untiled
    steps, usual = back.diff(dim=-1).abs(), whole.diff(dim=-1).abs()
    assert (steps <= usual + 1e-3).all()


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 30_000), st.integers(1920, 20_000))
def test_t23_sound_of_any_length_comes_back(length: int, tile: int) -> None:
    """In tiles of any size that is a hop or more."""
    vae = toy_vae("VA", width=4)
    source, added = sound_to_source(torch.randn(2, length), vae.traits)
    request = Request(ROOM, wish=parse_tile(str(tile)), estimate=False)
    latent = Job(vae, "encode", virtual(ROOM), request).run(source).value
    back = Job(vae, "decode", virtual(ROOM), request).run(latent).value
    torch.testing.assert_close(back, vae.decode(vae.encode(source)), rtol=0, atol=1e-4)
    assert to_sound(back, added=added).shape == (2, length)
