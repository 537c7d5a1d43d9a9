"""A moment: every storage once, its bytes as the books have them, and nothing kept alive."""

from __future__ import annotations

import gc

import torch

from tests.watch.leaks.planted import before, big
from tightfit.card import open_card
from tightfit.card.virtual.card import VirtualCard
from tightfit.units import MIB
from tightfit.watch.leaks import Scope, look, what_stayed
from tightfit.watch.leaks.moment import alive, read_cards


def test_a_moment_keeps_nothing_alive(card: VirtualCard) -> None:
    """What it saw goes as if nobody had looked."""
    kept = big(card)
    moment = before(card)
    assert len(moment.storages) == 1
    del kept
    assert card.read().allocated == 0


def test_a_storage_at_an_address_that_was_used_before_is_new(card: VirtualCard) -> None:
    """Addresses come again; here a moment sees to it that they do not."""
    for _ in range(3):
        kept = big(card)
        first = before(card)
        del kept
        again = big(card)
        assert [leak.bytes for leak in what_stayed(first).leaks] == [MIB]
        del again


def test_views_and_layouts_are_storages_once(card: VirtualCard) -> None:
    """Sparse tensors are what they are made of; a payload is not on the host as well."""
    plain = torch.zeros(64)
    sparse = torch.eye(8).to_sparse()
    views = [plain[:3], plain.view(8, 8), torch.nn.Parameter(plain)]
    virtual = big(card)
    scope = Scope((card, open_card("cpu")))
    found = alive(scope, [plain, sparse, *views, virtual, virtual[:1], virtual.payload])  # type: ignore[attr-defined]
    sizes = sorted(each.size for each in found.values())
    assert sizes == [8 * 4, 2 * 8 * 8, 64 * 4, MIB]


def test_bytes_are_as_the_books_round_them(card: VirtualCard) -> None:
    """So that what no tensor explains is zero, to the byte."""
    kept = [torch.zeros(size, device=card.device) for size in (1, 100, 129)]
    scope = Scope((card,))
    readings, unexplained = read_cards(scope, alive(scope, gc.get_objects()).values())
    assert unexplained == {str(card.device): 0}
    assert readings[str(card.device)].allocated == 512 + 512 + 1024
    assert kept


def test_frees_that_are_delayed_explain_themselves(card: VirtualCard) -> None:
    """A card that counts frees later is neither short nor over."""
    card.faults.delayed_frees = True
    first = before(card)
    for _ in range(3):
        big(card)
    found = what_stayed(first)
    assert (found.leaks, found.workspaces) == ((), {})


def test_every_open_card_is_looked_at_where_none_is_named(card: VirtualCard) -> None:
    """Also one that was opened after the first moment."""
    first = look(Scope())
    other = open_card("virtual:8MiB")
    kept = torch.zeros(4, device=other.device)
    assert [leak.device for leak in what_stayed(first).leaks] == [str(other.device)]
    assert kept is not None
