"""Group L: nothing is left behind."""

from __future__ import annotations

import signal

import pytest
import torch

from tests.cases.common import assert_back, measured, run_checked, virtual
from tightfit.errors import Cancelled
from tightfit.plan.tilesize import parse_tile
from tightfit.run.cancel import Cancel
from tightfit.run.job import Job, Request
from tightfit.testing import faults, toy_vae
from tightfit.units import MIB

ROOM = 64 * MIB
WISH = parse_tile("64", "16")
TILES = Request(ROOM, wish=WISH, estimate=False)


def clip() -> torch.Tensor:
    """Six tiles of 64 with an overlap of 16: two by three."""
    return torch.rand(1, 3, 9, 112, 160) * 2 - 1


@pytest.mark.parametrize("when", ["in the middle of a call", "between two calls"])
def test_l10_ctrl_c_in_tile_2_of_6_leaves_the_baseline_five_times(when: str) -> None:
    """A real SIGINT: the cache that V3 keeps on itself goes too, and the next run is right."""
    vae, source = toy_vae("V3", width=8), clip()
    reference = measured(vae, "encode", source, WISH)
    card = virtual(ROOM)
    calls: list[int] = []

    def told(_: str, done: int, total: int) -> None:
        assert total == 6
        calls.append(done)
        if when == "between two calls" and done == 2:
            signal.raise_signal(signal.SIGINT)

    allocations = 0

    def allocating(operator: str, _: int) -> None:
        nonlocal allocations
        if "convolution" in operator and calls == [1]:
            allocations += 1
            if allocations == 4:
                signal.raise_signal(signal.SIGINT)

    job = Job(vae, "encode", card, TILES, progress=told)
    for _ in range(5):
        calls.clear()
        allocations = 0
        with (
            faults(card, on_allocate=allocating if when == "in the middle of a call" else None),
            pytest.raises(KeyboardInterrupt) as caught,
        ):
            job.run(source)
        assert caught.value.__traceback__ is not None
        assert calls == ([1] if when == "in the middle of a call" else [1, 2])
        assert_back(card)
        assert vae.module._feat == [None] * 5
    calls.clear()
    run_checked(Job(vae, "encode", card, TILES), source, reference.value, tolerance=0)


def test_l10_a_cancel_flag_in_tile_2_of_6_leaves_the_baseline_five_times() -> None:
    """Set in the middle of a call, it stops the job before the next tile."""
    vae, source = toy_vae("V3", width=8), clip()
    reference = measured(vae, "encode", source, WISH)
    card = virtual(ROOM)
    for _ in range(5):
        cancel, calls = Cancel(), []

        def allocating(_: str, __: int, cancel: Cancel = cancel, calls: list[int] = calls) -> None:
            if calls == [1]:
                cancel.set()

        def told(_: str, done: int, __: int, calls: list[int] = calls) -> None:
            calls.append(done)

        job = Job(vae, "encode", card, TILES, cancel=cancel, progress=told)
        with faults(card, on_allocate=allocating), pytest.raises(Cancelled) as caught:
            job.run(source)
        assert caught.value.exit_code == 130
        assert calls == [1, 2]
        assert_back(card)
        assert vae.module._feat == [None] * 5
    run_checked(Job(vae, "encode", card, TILES), source, reference.value, tolerance=0)


def test_l10_a_flag_that_is_set_before_the_start_stops_before_any_call() -> None:
    """Not even the weights are moved."""
    cancel = Cancel()
    cancel.set()
    card = virtual(ROOM)
    with pytest.raises(Cancelled):
        Job(toy_vae("V3"), "encode", card, TILES, cancel=cancel).run(clip())
    assert card.allocations == 0
