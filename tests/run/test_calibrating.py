"""Calibrating on a virtual card whose convolutions need scratch that no dry run sees."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tightfit.adapters import find_vae, load_vae, outline_vae
from tightfit.card import open_card
from tightfit.card.virtual.card import VirtualCard
from tightfit.place import placed
from tightfit.run.calibrating import Watched, calibrated, watch
from tightfit.run.vae import Vae
from tightfit.weigh.calibration import Calibration
from tightfit.weigh.dry import DryRun, dry_run
from tightfit.weigh.observed import Learnt
from tightfit.weigh.workspace import NONE, Workspaces, peak_of, sequence

VAES = {"wan2.1-vae-mini": (16, 3), "flux-vae-mini": (16,)}


def _shape(name: str, side: int) -> tuple[int, ...]:
    channels, *frames = VAES[name]
    return (1, channels, *frames, side, side)


@pytest.fixture
def card() -> VirtualCard:
    """A large card whose convolutions take their input and half their input once more."""
    opened = open_card("virtual:8GiB")
    assert isinstance(opened, VirtualCard)
    opened.faults.workspace = lambda operator, size: (
        size + size // 2 if "convolution" in operator else 0
    )
    return opened


def _dry(name: str, side: int) -> DryRun:
    outline = outline_vae(find_vae(f"random:{name}"))
    assert outline is not None
    source = torch.empty(_shape(name, side), device="meta")
    run = dry_run(lambda: outline.decode(source))
    outline.reset()
    return run


def _watched(card: VirtualCard, vae: Vae, name: str, side: int) -> Watched:
    with placed(vae.module, card.device), torch.no_grad():
        source = torch.rand(_shape(name, side)).to(card.device)
        call: Callable[[], object] = lambda: vae.decode(source)  # noqa: E731
        watched = watch(card, _dry(name, side), call)
        vae.reset()
    return watched


@pytest.mark.parametrize("name", VAES)
def test_one_watched_run_predicts_four_times_the_pixels_within_three_per_cent(
    name: str, card: VirtualCard
) -> None:
    """The scratch is learnt operator by operator; the dry run alone is far off."""
    vae = load_vae(find_vae(f"random:{name}"))
    small = _watched(card, vae, name, 8)
    known = calibrated(Calibration(), _dry(name, 8), small, samples=64, table=NONE)
    large = _watched(card, vae, name, 16)
    assert large.measured is not None
    plain = peak_of(sequence(_dry(name, 16)))
    informed = peak_of(sequence(_dry(name, 16), Workspaces(learnt=known.shares)))
    assert abs(known.corrected(informed) / large.measured - 1) < 0.03
    assert plain < large.measured * 0.9
    assert not known.calibrated
    again = calibrated(known, _dry(name, 16), large, samples=256, table=NONE)
    assert again.calibrated


def test_a_run_that_was_short_of_workspace_teaches_nothing(card: VirtualCard) -> None:
    """It took another algorithm, with another need."""
    known = Calibration()
    short = Watched(measured=100, reserved=100, refusals=3, learnt=None)
    assert calibrated(known, _dry("flux-vae-mini", 8), short, samples=1, table=NONE) == known


def test_a_card_without_history_still_gives_a_factor() -> None:
    """The peak alone, against the prediction."""
    dry = _dry("flux-vae-mini", 8)
    watched = Watched(measured=dry.peak * 3 // 2, reserved=None, refusals=None, learnt=None)
    known = calibrated(Calibration(), dry, watched, samples=1, table=NONE)
    assert not known.shares
    assert known.corrected(1000) == pytest.approx(1500, rel=0.001)


def test_what_the_first_run_leaves_behind_is_not_the_runs(card: VirtualCard) -> None:
    """A library makes its workspace once: the run is made again, and that one counts."""
    dry = dry_run(lambda: torch.empty(1024, device="meta") + 1)
    kept: list[torch.Tensor] = []

    def call() -> None:
        if not kept:
            kept.append(torch.empty(50_000, device=card.device))
        torch.empty(1024, device=card.device) + 1

    watched = watch(card, dry, call)
    assert watched.measured == 2 * 4096
    assert watched.kept == 0
    assert watched.moves == (4096, 4096, -4096, -4096)


def test_what_every_run_leaves_behind_is_told(card: VirtualCard) -> None:
    """It is watched twice, and no more."""
    kept: list[torch.Tensor] = []
    dry = dry_run(lambda: torch.empty(1024, device="meta"))
    watched = watch(card, dry, lambda: kept.append(torch.empty(1024, device=card.device)))
    assert watched.kept == 4096
    assert len(kept) == 2


def test_a_run_too_small_to_tell_teaches_scratch_and_no_factor(card: VirtualCard) -> None:
    """What its scratch does not explain is fixed, and would be multiplied by the size."""
    dry = _dry("flux-vae-mini", 8)
    learnt = Learnt({"convolution 8x8x3x3": 1.0}, matched=1.0)
    small = Watched(measured=dry.peak * 4, reserved=None, refusals=0, learnt=learnt)
    known = calibrated(Calibration(), dry, small, samples=1, table=NONE)
    assert known.shares == learnt.shares
    assert known.corrected(1000) == 1000
