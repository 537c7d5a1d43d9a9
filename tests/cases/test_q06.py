"""Q06: the shell of a quantised weight moves, and its scales or its code book stay behind.

A wrapper with ``_data``, ``_scale``, and an object that holds a third tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.cases.common import assert_back, virtual
from tests.packed_layers import Coded, Layers, coded_layers
from tests.streaming import Case
from tightfit.allocators import round_up
from tightfit.card.virtual.card import VirtualCard
from tightfit.place.streaming.layout import ALIGNMENT
from tightfit.place.streaming.pinned import Pins
from tightfit.place.streaming.streamed import Streaming, streamed
from tightfit.units import MIB

WIDTH, COUNT = 32, 6


@contextmanager
def streaming(
    module: Layers, card: VirtualCard, *, pins: Pins | None = None
) -> Iterator[Streaming]:
    """The third and the last layer stay."""
    case = Case.of(module, lambda: module(torch.zeros(2, WIDTH)))
    residency = case.everything("leaf", 2, lambda at: at % 3 == 2)
    with streamed(module, card, residency, case.blocks, order=case.order, pins=pins) as session:
        yield session


def shells(module: Layers) -> list[Any]:
    return [layer.weight for layer in module.layers]


@pytest.fixture
def module() -> Layers:
    return coded_layers(WIDTH, COUNT)


@torch.no_grad()
def test_q06_all_inner_tensors_are_on_the_card_during_compute(module: Layers) -> None:
    """In each of three runs of three placings, streamed and resident, with the same bits."""
    given = torch.randn(3, WIDTH)
    wanted = module(given)
    for _ in range(3):
        card = virtual(MIB)
        with streaming(module, card):
            for shell in shells(module):
                shell.seen.clear()
            for _ in range(3):
                assert torch.equal(module(given).cpu(), wanted)
            for shell in shells(module):
                assert shell.seen == [{card.device}] * 3
        assert_back(card)


@torch.no_grad()
def test_q06_none_is_on_the_card_after(module: Layers) -> None:
    """The very weights are there again with the very tensors in them, on the host."""
    before = [
        (shell, shell.inner, [each.clone() for each in shell.inner]) for shell in shells(module)
    ]
    card = virtual(MIB)
    with streaming(module, card):
        module(torch.randn(1, WIDTH))
    for (shell, inner, values), now in zip(before, shells(module), strict=True):
        assert now is shell
        assert type(now) is Coded
        assert now.device.type == "cpu"
        for one, other, value in zip(now.inner, inner, values, strict=True):
            assert one is other
            assert one.device.type == "cpu"
            assert torch.equal(one, value)
    assert_back(card)


@torch.no_grad()
def test_q06_between_calls_only_what_stays_is_on_the_card(module: Layers) -> None:
    """Of what streams, each inner tensor is one element that stands for it."""
    card = virtual(MIB)
    with streaming(module, card) as session:
        module(torch.randn(1, WIDTH))
        for at, shell in enumerate(shells(module)):
            assert all(each.device == card.device for each in shell.inner)
            assert all((not any(each.stride())) != (at % 3 == 2) for each in shell.inner)
        scales = round_up(4 * WIDTH, ALIGNMENT)
        assert session.resident_bytes == 2 * (WIDTH * WIDTH + scales + 4 * 256 + 4 * WIDTH)


@torch.no_grad()
def test_q06_a_weight_that_cannot_be_pinned_is_streamed_all_the_same(module: Layers) -> None:
    """It knows no pinning itself, its bytes can be held, and where the driver refuses they flow."""
    shell = shells(module)[0]
    with pytest.raises((NotImplementedError, RuntimeError)):
        shell.pin_memory()
    given = torch.randn(3, WIDTH)
    wanted = module(given)
    for allowed in (True, False):
        held: list[int] = []

        def register(address: int, _size: int, held: list[int] = held, ok: bool = allowed) -> bool:
            held.append(address)
            return ok

        pins = Pins(MIB, register=register, unregister=lambda _at: None)
        card = virtual(MIB)
        with streaming(module, card, pins=pins):
            assert torch.equal(module(given).cpu(), wanted)
            assert (pins.asked > 0) is allowed
        assert held
        assert_back(card)
