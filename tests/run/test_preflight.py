"""Refusing a job that cannot fit before its weights are read."""

from __future__ import annotations

import pytest
import torch

from tests.cases.common import measured, untold, virtual
from tightfit.errors import MemoryShortage
from tightfit.plan.tilesize import parse_tile
from tightfit.run.job import Job, Request
from tightfit.run.preflight import preflight
from tightfit.run.vae import Vae
from tightfit.testing import faults, toy_vae
from tightfit.units import MIB
from tightfit.weigh.calibration import Calibrations

SHAPE = (1, 4, 24, 24)


def outline() -> Vae:
    """A VAE without weights."""
    vae = toy_vae("V2")
    vae.module.to_empty(device="meta")
    return vae


def test_what_may_fit_is_let_through_and_touches_nothing() -> None:
    """No byte of the card is taken, not for a moment."""
    card = virtual(64 * MIB)
    preflight(outline(), "decode", card, Request(64 * MIB), SHAPE)
    assert card.read().peak_allocated == 0
    assert card.allocations == 0


def test_what_cannot_fit_is_refused_with_the_figures() -> None:
    """What it needs, what there is; nothing was tried."""
    with pytest.raises(MemoryShortage) as caught:
        preflight(outline(), "decode", virtual(64 * 1024), Request(64 * 1024), SHAPE)
    what, figures, *_ = str(caught.value).splitlines()
    assert what == "Not enough memory to decode 24x24 with V2."
    assert figures.startswith("Needs ")
    assert "can be used on virtual:65536B" in figures
    assert caught.value.attempts == ()


@pytest.mark.parametrize(
    "request_",
    [
        Request(64 * 1024, estimate=False),
        Request(64 * 1024, allow_cpu=True),
        Request(64 * 1024, evict=lambda _: 0),
    ],
    ids=["nobody planned", "the host may", "something may be freed"],
)
def test_where_trying_may_help_nothing_is_refused(request_: Request) -> None:
    """The ladder finds out."""
    preflight(outline(), "decode", virtual(64 * 1024), request_, SHAPE)


def test_what_others_hold_is_not_room() -> None:
    """The same budget, and a card that is all but full."""
    card = virtual("64MiB")
    card.occupy(64 * MIB - 100_000)
    with pytest.raises(MemoryShortage, match="held by other programs"):
        preflight(outline(), "decode", card, Request(64 * MIB), SHAPE)


def test_it_believes_what_the_job_will_believe() -> None:
    """More than predicted was learnt on this card: then what the job would skip is refused."""
    vae, source = untold(toy_vae("V2")), torch.rand(SHAPE)
    tile = measured(vae, "decode", source, parse_tile("64"))
    tight, known, card = Request(tile.base + 2 * tile.peak), Calibrations(), virtual(64 * MIB)
    preflight(vae, "decode", card, tight, SHAPE, calibrations=known)
    with faults(card, workspace=lambda op, size: 12 * size if "convolution" in op else 0):
        Job(vae, "decode", card, Request(64 * MIB), calibrations=known).run(source)
    with pytest.raises(MemoryShortage):
        preflight(vae, "decode", card, tight, SHAPE, calibrations=known)
    with pytest.raises(MemoryShortage):
        Job(vae, "decode", card, tight, calibrations=known).run(source)
