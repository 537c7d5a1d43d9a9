"""From a name to a card."""

from __future__ import annotations

import pytest
import torch

from tightfit.card import open_card, open_cards
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import UsageError


def test_the_host_is_a_card() -> None:
    """``cpu`` opens the host's memory."""
    card = open_card("cpu")
    assert (card.kind, card.name, card.device) == ("cpu", "cpu", torch.device("cpu"))


def test_each_opening_of_a_virtual_card_is_a_new_card() -> None:
    """Two openings share nothing: the Card object is passed to share one."""
    first, second = open_card("virtual:64MiB"), open_card("virtual:64MiB")
    assert isinstance(first, VirtualCard)
    assert first.device != second.device
    kept = torch.zeros(1024, device=first.device)
    assert second.read().allocated == 0
    del kept


def test_spaces_around_a_name_do_not_matter() -> None:
    """Names come from shells and files."""
    assert open_card(" virtual:64MiB ").name == "virtual:64MiB"


def test_without_a_name_the_default_is_the_gpu_or_the_host() -> None:
    """``cuda:0`` where there is one, else ``cpu``."""
    assert open_card().kind == ("cuda" if torch.cuda.is_available() else "cpu")


def test_many_cards_where_one_is_needed_are_refused() -> None:
    """The sentence says how many were named."""
    with pytest.raises(UsageError, match="names 2 cards"):
        open_card("virtual:2x64MiB")
    assert len(open_cards("virtual:2x64MiB")) == 2


def test_several_cards_have_one_name_with_commas() -> None:
    """Those of virtual cards are their own; each is opened in order, and once."""
    cards = open_cards("virtual:2x64MiB,allocator=native,grain=2MiB, cpu,virtual:1GiB,bf16=no")
    assert [card.kind for card in cards] == ["virtual", "virtual", "cpu", "virtual"]
    assert [card.allocator for card in cards] == ["native", "native", "none", "exact"]
    assert not cards[3].supports(torch.bfloat16)
    with pytest.raises(UsageError, match="names one card twice"):
        open_cards("cpu,cpu")
    with pytest.raises(UsageError, match="card `cpu,cude:1` is unknown"):
        open_cards("cpu,cude:1")


@pytest.mark.parametrize("name", ["", "gpu", "cuda:x", "cuda:-1", "virtual", "virtual:", "vcard:0"])
def test_other_names_are_refused_with_the_legal_ones(name: str) -> None:
    """Each sentence names cuda, cpu and virtual."""
    with pytest.raises(UsageError, match=r"cuda:0, cpu, virtual:SIZE"):
        open_card(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA card")
def test_cuda_without_a_gpu_says_what_to_use_instead() -> None:
    """No traceback from a driver: a sentence."""
    with pytest.raises(UsageError, match=r"no CUDA device; use cpu or a virtual card"):
        open_card("cuda:0")


@pytest.mark.gpu
def test_a_cuda_index_that_is_not_there_is_refused() -> None:
    """The sentence says how many devices there are."""
    with pytest.raises(UsageError, match="CUDA devices"):
        open_card("cuda:99")
