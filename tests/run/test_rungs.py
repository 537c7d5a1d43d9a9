"""The ways to run a VAE on one input, in the order they are tried."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

import pytest
import torch

from tightfit.card import open_card
from tightfit.plan.tilesize import TileWish, parse_tile
from tightfit.run.job import Job, Request
from tightfit.run.ladder import Rung
from tightfit.run.rungs import EVICT, MOST_AT_ONCE, VaeRungs
from tightfit.testing import toy_vae
from tightfit.units import MIB

AUTO = TileWish()
OFF = parse_tile("off")


def rungs(
    *shape: int, wish: TileWish = AUTO, estimate: bool = True, host: bool = False, on: str = ""
) -> VaeRungs:
    """Of a decode of `shape`, which lies on the card, or on the host."""
    card = open_card(on or "virtual:256MiB")
    source = torch.rand(shape)
    job = Job(toy_vae("V2", width=8), "decode", card, Request(256 * MIB, 0, wish, estimate))
    return job.rungs(source if host else source.to(card.device), source)


def names(ways: VaeRungs, **more: Any) -> list[str]:
    return [rung.name for rung in ways.in_order(**more)]


def fail(ways: VaeRungs, rung: Rung[torch.Tensor]) -> None:
    """It was predicted to fit, and did not."""
    rung.tell(None, False)


def climbed(ways: VaeRungs, holds: str | None = None, **more: Any) -> list[str]:
    """The rungs that are offered when each fails, up to the one called `holds`; probes hold."""
    seen = []
    for rung in ways.in_order(**more):
        seen.append(rung.name)
        if rung.probe:
            rung.tell(200_000, True)
            continue
        if rung.name == holds:
            break
        fail(ways, rung)
    return seen


# The order


def test_whole_comes_first_and_tiles_only_shrink() -> None:
    """Down to 8 latent pixels, and no two are the same."""
    ways = list(rungs(1, 4, 48, 40, host=True).in_order())
    first, *tiles = ways
    assert (first.name, first.tile) == ("whole", None)
    sizes = [rung.tile for rung in tiles]
    assert all(size is not None for size in sizes)
    assert len(set(sizes)) == len(sizes)
    areas = [prod(size or ()) for size in sizes]
    assert areas == sorted(areas, reverse=True)
    assert sizes[-1] == (64, 64)


def test_a_batch_is_run_at_once_then_freed_for_then_one_by_one() -> None:
    """Four at most; an eviction makes the first try again."""
    ways = rungs(6, 4, 16, 16)
    assert ways.batch == MOST_AT_ONCE
    assert names(ways, evict=lambda _: 1)[:3] == ["whole", EVICT, "batch of 1"]
    assert "batch of 1" not in names(rungs(1, 4, 16, 16))


def test_the_eviction_is_asked_for_what_the_whole_needs() -> None:
    """And what it makes room for teaches as the whole would."""
    ways, asked = rungs(1, 4, 16, 16), []

    def free(need: int | None) -> int:
        asked.append(need)
        return 1

    whole, evict, *_ = ways.in_order(evict=free)
    assert evict.prepare is not None
    assert evict.prepare() == 1
    assert asked == [whole.need()]
    assert evict.identity == whole.identity
    evict.tell(None, False)
    assert ways.estimator.missed


@pytest.mark.parametrize("estimate", [True, False])
def test_without_tiles_there_is_the_whole_alone(estimate: bool) -> None:
    """``--tile off``, also when it failed."""
    ways = rungs(2, 4, 48, 40, wish=OFF, estimate=estimate)
    assert climbed(ways) == ["whole", "batch of 1"]


def test_a_tile_that_was_asked_for_comes_first() -> None:
    """Then smaller ones, each of which says so once it is tried."""
    ways = rungs(1, 4, 48, 40, wish=parse_tile("160"), host=True, on="cpu")
    first, *smaller = list(ways.in_order())
    assert first.name == "tiles 160x160"
    assert all(prod(rung.tile or ()) < 160 * 160 for rung in smaller)
    first.run()
    assert ways.adjusted == []
    smaller[-1].run()
    assert ways.adjusted == ["tiles made smaller than asked: 64x64"]


def test_tiles_are_offered_again_with_the_input_on_the_host() -> None:
    """The first of them moves it there; an input that is there already does not move."""
    ways = rungs(1, 4, 32, 32)
    offered = list(ways.in_order())
    moved = [rung for rung in offered if rung.name.endswith(", input on the host")]
    assert [rung.prepare is not None for rung in moved] == [True] + [False] * (len(moved) - 1)
    assert moved[0].prepare is not None
    assert moved[0].prepare() == 4 * 32 * 32 * 4
    assert (ways.source.device.type, ways.host) == ("cpu", None)
    assert not any("host" in name for name in names(rungs(1, 4, 32, 32, host=True)))


@pytest.mark.parametrize("wish", ["auto", "off", "160", "4096"])
def test_exact_ways_come_after_the_batch_is_split_and_before_tiles(wish: str) -> None:
    """Also where tiles are forbidden; a size of tiles that is asked for leaves them out."""
    ways = rungs(2, 4, 48, 40, wish=parse_tile(wish), host=True)
    without = names(ways)
    ways.exact_ways = lambda: iter([Rung("strips", lambda: torch.zeros(1))])
    wholes = [name for name in without if not name.startswith("tiles")]
    asked = [] if wish.isdigit() else ["strips"]
    assert names(ways) == [*wholes, *asked, *without[len(wholes) :]]


# What is predicted


def test_an_input_on_the_host_needs_room_for_its_copy() -> None:
    """Whole and tiles alike."""
    there, here = rungs(1, 4, 32, 32), rungs(1, 4, 32, 32, host=True)
    (whole, *_, tile), (whole_here, *_, tile_here) = there.in_order(), here.in_order()
    assert whole_here.need() == (whole.need() or 0) + 4 * 32 * 32 * 4
    assert (
        tile_here.need()
        == tile.need()
        == ((there.estimator.need((1, 4, 8, 8)) or 0) + 4 * 8 * 8 * 4)
    )


def test_tiles_far_above_the_room_are_left_out_but_never_the_smallest() -> None:
    """Without a dry run of each; without a planner all are offered."""
    ways = rungs(1, 4, 96, 96)
    offered = names(ways, room=lambda: 0)
    assert [name for name in offered if "host" not in name] == ["whole", "tiles 64x64"]
    assert len(ways.estimator._known) == 2
    everything = names(rungs(1, 4, 96, 96), room=lambda: 2**40)
    assert len(everything) > 10
    assert names(rungs(1, 4, 96, 96, estimate=False), room=lambda: 0)[1] != "tiles 64x64"


# Learning


@pytest.mark.parametrize("host", [True, False])
def test_a_run_teaches_what_the_call_itself_took(host: bool) -> None:
    """Not the copy of its input, where one was made for it."""
    ways = rungs(1, 4, 16, 16, host=host)
    whole, *_ = ways.in_order()
    whole.tell(10 * MIB, True)
    copy = 4 * 16 * 16 * 4 if host else 0
    assert ways.estimator.calibration.seen[-1].measured == 10 * MIB - copy
    tile = list(ways.in_order())[-1]
    tile.tell(MIB, True)
    assert ways.estimator.calibration.seen[-1].measured == MIB - 4 * 8 * 8 * 4


def test_where_nobody_plans_nothing_is_learnt() -> None:
    """A dry run takes a moment, which was not asked for."""
    ways = rungs(1, 4, 16, 16, estimate=False)
    for rung in ways.in_order():
        rung.tell(10 * MIB, True)
        rung.tell(None, False)
    assert ways.estimator._known == {}
    assert ways.estimator.calibration.seen == ()


# The probe


def test_a_wrong_prediction_is_followed_by_one_probe() -> None:
    """Of the smallest tile, before the next size is chosen; then never again."""
    seen = climbed(rungs(1, 4, 48, 40))
    assert seen[:2] == ["whole", "probe 64x64"]
    assert sum(name.startswith("probe") for name in seen) == 1


def test_a_probe_comes_before_a_batch_is_taken_apart() -> None:
    """What one of four pictures needs was as wrongly predicted."""
    seen = climbed(rungs(4, 4, 48, 40), evict=lambda _: 1)
    assert seen[:4] == ["whole", EVICT, "probe 64x64", "batch of 1"]


def test_a_probe_follows_a_tile_that_was_asked_for() -> None:
    """The wished one was wrongly predicted."""
    assert climbed(rungs(1, 4, 48, 40, wish=parse_tile("160")))[:2] == [
        "tiles 160x160",
        "probe 64x64",
    ]


@pytest.mark.parametrize("wish", ["64", "72x64"])
def test_no_probe_repeats_what_just_failed(wish: str) -> None:
    """The smallest tile failed: running it once more would tell nothing."""
    ways = rungs(1, 4, 48, 40, wish=parse_tile(wish))
    seen = climbed(ways)
    assert ("probe 64x64" in seen) == (wish != "64")
    ways = rungs(1, 4, 48, 40)
    offered = []
    for rung in ways.in_order():
        offered.append(rung.name)
        if rung.tile == (64, 64):
            fail(ways, rung)  # all the others were skipped
    assert not any(name.startswith("probe") for name in offered)


def test_no_probe_without_a_wrong_prediction() -> None:
    """Skipped rungs are told nothing; a planner that is off predicts nothing."""
    assert not any("probe" in name for name in names(rungs(1, 4, 48, 40)))
    assert not any("probe" in name for name in climbed(rungs(1, 4, 48, 40, estimate=False)))


def test_a_probe_is_one_call_of_one_item_and_is_kept_for_the_report() -> None:
    """Its value is the VAE's own, of the first corner."""
    ways = rungs(2, 4, 48, 40, on="cpu")
    probe = None
    for rung in ways.in_order():
        if rung.probe:
            probe = rung
            break
        fail(ways, rung)
    assert probe is not None
    assert probe.tile == (64, 64)
    result = probe.run()
    expected = ways.vae.decode(ways.source[:1, :, :8, :8])
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)
    assert ways.probed is None
    probe.tell(500_000, True)
    assert ways.probed is not None
    assert ways.probed.measured == 500_000 - 4 * 8 * 8 * 4
    assert ways.probed == ways.estimator.calibration.seen[-1]


def test_a_probe_that_failed_leaves_the_smallest_tiles() -> None:
    """Nothing was measured, and every larger one needs more."""
    ways, seen = rungs(4, 4, 96, 80), []
    for rung in ways.in_order(room=lambda: 2**40):
        seen.append(rung.name)
        fail(ways, rung)
    assert seen == ["whole", "probe 64x64", "tiles 64x64", "tiles 64x64, input on the host"]
    assert ways.probed is None


def test_tiles_that_fail_though_a_probe_corrected_the_plan_halve() -> None:
    """Two dozen sizes lie between a large picture and the floor; each failed try costs time."""
    ways, areas = rungs(1, 4, 96, 80), []
    for rung in ways.in_order(room=lambda: 2**40):
        if rung.probe:
            rung.tell(200_000, True)
            continue
        if rung.tile is not None and "host" not in rung.name:
            areas.append(prod(rung.tile))
        fail(ways, rung)
    assert areas[-1] == 64 * 64
    assert all(2 * small <= large for large, small in pairwise(areas[:-1]))
    assert 3 <= len(areas) <= 9


def test_tiles_that_are_skipped_do_not_halve() -> None:
    """Nothing failed: every size is offered, also after a probe that held."""
    every = [name for name in names(rungs(1, 4, 96, 80)) if "host" not in name]
    ways, offered = rungs(1, 4, 96, 80), []
    for rung in ways.in_order(room=lambda: 2**40):
        if rung.probe:
            rung.tell(200_000, True)
        elif rung.tile is None:
            fail(ways, rung)
        if not rung.probe and "host" not in rung.name:
            offered.append(rung.name)
    assert offered == every
