"""Weights that are kept packed alone, since the host has no room for them twice."""

from __future__ import annotations

import weakref

import pytest
import torch

from tests.cases.common import assert_back, virtual
from tests.place.streaming.test_packed_weights import (
    big,
    case_of,
    network,
    packed_residency,
)
from tests.place.streaming.test_streamed import assert_whole, values
from tests.streaming import resident
from tightfit.place.streaming.streamed import streamed
from tightfit.plan.streaming.pieces import Level
from tightfit.units import MIB

SHORT, ROOMY = 8 * MIB, 64 * MIB
"""Host memory for masters: less than the 9.5 MiB of the network, and several times that."""


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("level", ["block", "leaf"])
@pytest.mark.parametrize("kept", [0, 2, 3])
def test_weights_go_when_they_are_packed_and_come_back_bit_for_bit(
    level: Level, kept: int, tied: bool
) -> None:
    """Resident or streamed; meanwhile state dicts have the values, and calls the same bits."""
    net, x = network(tied=tied)
    before, state = values(net), {k: v.clone() for k, v in net.state_dict().items()}
    case, card = case_of(net, x), virtual(1 << 30)
    x_there = x.to(card.device)
    wanted, _ = resident(net, card, lambda: net(x_there))
    residency = packed_residency(case, level, stays=lambda at: kept and at % kept == 0, packs=big)
    gone = weakref.ref(net.blocks[0].up.weight.untyped_storage())
    with (
        torch.no_grad(),
        streamed(net, card, residency, case.blocks, order=case.order, host=SHORT, compares=True),
    ):
        assert gone() is None
        for _ in range(2):
            assert torch.equal(net(x_there).cpu(), wanted)
        now = net.state_dict()
        assert all(torch.equal(now[name], value) for name, value in state.items())
        assert torch.equal(net(x_there).cpu(), wanted)
        del now
    assert_whole(net, before)
    assert torch.equal(net(x), net(x))
    assert_back(card, x_there.nbytes)


def test_where_there_is_room_weights_stay_what_they_are() -> None:
    """Giving them back is then no work."""
    net, x = network()
    case, card = case_of(net, x), virtual(1 << 30)
    residency = packed_residency(case, "block", stays=lambda at: False, packs=big)
    weight = net.blocks[0].up.weight.data_ptr()
    with torch.no_grad(), streamed(net, card, residency, case.blocks, order=case.order, host=ROOMY):
        net(x)
    assert net.blocks[0].up.weight.data_ptr() == weight


@pytest.mark.parametrize("levels", [("block", "leaf"), ("leaf", "block"), ("leaf", "leaf")])
def test_what_is_packed_alone_can_be_moved_otherwise(levels: tuple[Level, Level]) -> None:
    """Into other pieces, and to where it lies as it is; each time from what is packed."""
    net, x = network()
    before = values(net)
    case, card = case_of(net, x), virtual(1 << 30)
    x_there = x.to(card.device)
    wanted, _ = resident(net, card, lambda: net(x_there))
    first, second = (
        packed_residency(case, level, stays=lambda at: at % 3 == 0, packs=big) for level in levels
    )
    plain = case.everything(levels[1], 2, lambda at: True)
    with (
        torch.no_grad(),
        streamed(net, card, first, case.blocks, order=case.order, host=SHORT) as session,
    ):
        for residency in (second, plain, first):
            session.change(residency)
            assert torch.equal(net(x_there).cpu(), wanted)
    assert_whole(net, before)
    assert_back(card, x_there.nbytes)
