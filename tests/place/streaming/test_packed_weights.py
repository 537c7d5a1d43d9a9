"""Packed weights under a plan: the same bits, in fewer bytes, on the card and on their way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.cases.common import assert_back, virtual
from tests.streaming import Case, Net, resident
from tightfit.place.streaming.packed_arena import packed_arena
from tightfit.place.streaming.streamed import streamed
from tightfit.plan.streaming.pieces import Level, Piece
from tightfit.plan.streaming.residency import Residency
from tightfit.plan.streaming.ring import NO_RING, Ring

WIDTH = 512


def network(kinds: tuple[int, ...] = (0, 1, 0, 2, 3, 0)) -> tuple[Net, torch.Tensor]:
    """Trained weights have few exponents, as these have."""
    torch.manual_seed(5)
    net = Net(WIDTH, kinds, tied=False).eval().to(torch.bfloat16)
    return net, torch.randn(2, WIDTH).to(torch.bfloat16)


def case_of(net: Net, x: torch.Tensor) -> Case:
    return Case.of(net, lambda: net(x))


def packed_residency(
    case: Case,
    level: Level,
    *,
    stays: Callable[[int], bool],
    packs: Callable[[Piece], bool],
    slots: int = 2,
) -> Residency:
    """Pieces of a plan with those that are packed as large as they come out."""
    plain = case.everything(level, slots, stays)
    card = virtual(1 << 40)
    pieces = []
    for piece, group in zip(plain.pieces, case.groups(plain), strict=True):
        beside = any(held.leaf in case.weighed.apart for held in group.held)
        packs_it = packs(piece) and not beside
        arena = packed_arena(card, group.layout, tensors_of(group)) if packs_it else None
        if arena is not None:
            size = arena.bytes
            piece = replace(
                piece, bytes=size, moved=size, slot=size, converted=piece.bytes, packed=True
            )
        pieces.append(piece)
    streams = [p.slot for p, stay in zip(pieces, plain.stays, strict=True) if not stay]
    ring = Ring(level, max(streams), slots) if streams else NO_RING
    conversion = max((p.converted for p in pieces if p.packed), default=0)
    return Residency(tuple(pieces), plain.stays, ring, conversion)


def tensors_of(group: object) -> list[torch.Tensor]:
    held = {at: each.tensor for each, at in zip(group.held, group.places, strict=True)}  # type: ignore[attr-defined]
    return [held[at].detach() for at in range(len(held))]


def big(piece: Piece) -> bool:
    return piece.bytes > 1 << 18


@pytest.mark.parametrize("level", ["block", "leaf"])
@pytest.mark.parametrize("share", ["streamed", "resident", "all"])
def test_packed_weights_give_the_same_bits(level: Level, share: str) -> None:
    """Whichever of them are packed, in three steps, with every wait checked."""
    net, x = network()
    case = case_of(net, x)
    card = virtual(1 << 30)
    x_there = x.to(card.device)
    wanted, _ = resident(net, card, lambda: net(x_there))
    stays: Callable[[int], bool] = lambda at: at % 2 == 0  # noqa: E731
    plain = case.everything(level, 2, stays)
    chosen = {
        piece.name
        for piece, stay in zip(plain.pieces, plain.stays, strict=True)
        if share == "all" or stay == (share == "resident")
    }
    residency = packed_residency(
        case, level, stays=stays, packs=lambda piece: big(piece) and piece.name in chosen
    )
    assert any(piece.packed for piece in residency.pieces)
    with (
        torch.no_grad(),
        streamed(net, card, residency, case.blocks, order=case.order, compares=True) as session,
    ):
        for _ in range(3):
            assert torch.equal(net(x_there).cpu(), wanted)
        assert session.bytes <= residency.bytes + case.beside() + 4096
    assert_back(card, x_there.nbytes)
