"""Floors: flat is no leak, and what rises round after round is one by the fifth."""

from __future__ import annotations

import tracemalloc
from typing import Any

import torch

from tests.watch.leaks.planted import big
from tightfit.card.virtual.card import VirtualCard
from tightfit.units import KIB, MIB
from tightfit.watch.leaks import Hold, Rounds

HERE = __file__


def test_flat_floors_are_no_leak(card: VirtualCard) -> None:
    """Whatever a round took meanwhile, and whatever the first one left."""
    kept = []
    with Rounds(card, sites=True) as rounds:
        for at in range(8):
            scratch = [torch.zeros(1000 + at, device=card.device), bytearray(at * KIB)]
            del scratch
            if not kept:
                kept.append(big(card))
            assert rounds.look() == ()
    assert {each.allocated for each in rounds.rounds} == {MIB}
    assert len(rounds.lines()) == 8


def test_growth_that_ends_is_no_leak(card: VirtualCard) -> None:
    """A table that is filled in three rounds."""
    kept = []
    with Rounds(card, sites=True) as rounds:
        for at in range(8):
            if at < 3:
                kept.append((big(card), bytearray(64 * KIB)))
            assert rounds.look() == ()


def test_a_leak_on_the_card_is_told_by_the_fifth_round_and_not_before(
    card: VirtualCard, state: Any
) -> None:
    """With its chain."""
    state.kept = []
    rounds = Rounds(card)
    for at in range(1, 6):
        state.kept.append(torch.zeros(16 * KIB, device=card.device))
        leaks = rounds.look()
        assert bool(leaks) is (at == 5)
    assert [leak.bytes for leak in leaks] == [64 * KIB] * 4
    assert {leak.kind for leak in leaks} == {Hold.GLOBAL}
    assert {leak.chain[1] for leak in leaks} == {f"kept[{at}]" for at in range(1, 5)}


def test_a_leak_of_the_host_is_told_with_its_site(card: VirtualCard) -> None:
    """Objects of Python by the line that made them, tensors by their chain."""
    kept: list[Any] = []
    with Rounds(card, sites=True) as rounds:
        for at in range(1, 6):
            kept.append(bytearray(64 * KIB))
            leaks = rounds.look()
            assert bool(leaks) is (at == 5)
    start = test_a_leak_of_the_host_is_told_with_its_site.__code__.co_firstlineno
    (leak,) = leaks
    assert (leak.kind, leak.site) == (Hold.HOST, f"{HERE}:{start + 5}")
    assert 256 * KIB <= leak.bytes < 257 * KIB


def test_a_leak_of_tensors_on_the_host_needs_no_tracing(card: VirtualCard, state: Any) -> None:
    """They are listed as those of the card are."""
    state.kept = []
    rounds = Rounds(card)
    for _ in range(5):
        state.kept.append(torch.zeros(16 * KIB))
        leaks = rounds.look()
    assert {(leak.device, leak.bytes, leak.kind) for leak in leaks} == {
        ("cpu", 64 * KIB, Hold.GLOBAL)
    }


def test_tracing_that_a_user_started_goes_on(card: VirtualCard) -> None:
    """And what we started ends with us."""
    with Rounds(card, sites=True):
        assert tracemalloc.is_tracing()
    assert not tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        with Rounds(card, sites=True):
            pass
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
