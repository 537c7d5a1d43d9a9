"""Scratch learnt from a real run on a virtual card whose convolutions need some."""

from __future__ import annotations

import torch
from torch import nn

from tightfit.card import open_card
from tightfit.units import MIB
from tightfit.weigh.dry import DryRun, dry_run
from tightfit.weigh.observed import learn
from tightfit.weigh.workspace import Workspaces, peak_of, sequence


def _net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 16, 3, padding=1)]
    return nn.Sequential(*layers, nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 3, 3)).eval()


def _dry(size: int) -> DryRun:
    net = _net().to("meta")
    source = torch.empty(1, 3, size, size, device="meta")
    return dry_run(lambda: net(source))


def _real(size: int, share: float) -> tuple[list[int], int]:
    """The moves of a real run, and the peak over weights and input."""
    card = open_card("virtual:256MiB")
    card.faults.workspace = lambda operator, given: (
        int(given * share) if "convolution" in operator else 0
    )
    with torch.no_grad():
        net = _net().to(card.device)
        source = torch.rand(1, 3, size, size).to(card.device)
        card.reset_peaks()
        before = card.read().allocated
        with card.moves() as moves:
            net(source)
    return list(moves), card.read().peak_allocated - before


def test_scratch_seen_at_one_size_predicts_the_peak_at_another() -> None:
    """Within two per cent at four times the pixels, where nothing learnt is far off."""
    moves, _ = _real(64, share=1.5)
    learnt = learn(_dry(64), moves)
    _, measured = _real(128, share=1.5)
    predicted = peak_of(sequence(_dry(128), Workspaces(learnt=learnt.shares)))
    assert learnt.matched == 1.0
    assert abs(predicted / measured - 1) < 0.02
    assert _dry(128).peak < measured * 0.8


def test_a_run_without_scratch_teaches_that_there_is_none() -> None:
    """Every share is 0, which comes before any table."""
    moves, _ = _real(64, share=0.0)
    learnt = learn(_dry(64), moves)
    assert set(learnt.shares.values()) == {0.0}
    assert Workspaces(table=True, learnt=learnt.shares).of(_dry(64).calls[0]) == 0


def test_another_run_altogether_does_not_match() -> None:
    """The caller can see that nothing was learnt from it."""
    assert learn(_dry(64), [3 * MIB + 7, -(3 * MIB + 7)]).matched == 0.0


def test_a_cards_moves_add_up_to_what_it_holds() -> None:
    """Each change in order, from the start to the end."""
    card = open_card("virtual:16MiB")
    with card.moves() as moves:
        kept = torch.zeros(1024, device=card.device)
        gone = torch.zeros(2048, device=card.device)
        del gone
    assert list(moves) == [4096, 8192, -8192]
    assert sum(moves) == card.read().allocated
    del kept
