"""Weights that rest and come back: what is resident has masters, too, where there is room."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.cases.common import virtual
from tests.place.streaming.test_changing import ALL, Wanted
from tests.place.streaming.test_streamed import assert_whole, case_of, network, values
from tests.streaming import resident
from tightfit.place.streaming.pinned import Pins
from tightfit.place.streaming.streamed import streamed
from tightfit.units import GIB

MUCH = 1 << 60
"""Bytes that no host has."""


def pins() -> tuple[Pins, dict[int, int]]:
    """A driver that holds everything, and what it holds: bytes by address."""
    held: dict[int, int] = {}

    def register(at: int, size: int) -> bool:
        held[at] = size
        return True

    return Pins(GIB, register=register, unregister=held.pop), held


@pytest.mark.parametrize("stays", [0, 0b101, ALL])
@pytest.mark.parametrize(
    ("others", "all_are_held"), [(lambda: 0, True), (lambda: MUCH, False), (None, False)]
)
def test_what_is_resident_comes_back_from_memory_that_is_held(
    stays: int, others: Callable[[], int] | None, all_are_held: bool
) -> None:
    """From before its first rest on, and with equal bits; where others want the host's memory, and
    where nothing rests, only what streams is held."""
    module, card = network(kinds=(0, 0, 0, 0), tied=False), virtual("16MiB")
    case = case_of(module)
    inputs = torch.randn(2, module.first.in_features).to(card.device)
    expected, _ = resident(module, card, lambda: module(inputs))
    before = values(module)
    driver, held = pins()
    residency = Wanted("block", 2, stays).of(case)
    with (
        streamed(module, card, residency, case.blocks, pins=driver, others=others) as session,
        torch.no_grad(),
    ):
        for _ in range(2):
            assert torch.equal(module(inputs).to("cpu"), expected)
            passing = [group for group in session.groups if not group.stays]
            assert len(held) == len(session.groups if all_are_held else passing)
            asked = dict(held)
            session.rest()
            session.change(residency)
            assert held == asked
    assert not held
    assert_whole(module, before)
