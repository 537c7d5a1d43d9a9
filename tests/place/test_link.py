"""The link between host and card: measured where there is one, and said where not."""

from __future__ import annotations

import pytest
import torch

from tightfit.card import open_card
from tightfit.place.link import MOST_BYTES, measure_link
from tightfit.units import GIB


@pytest.mark.parametrize("name", ["cpu", "virtual:64MiB"])
def test_a_card_without_a_link_has_no_rate(name: str) -> None:
    """None and a reason; nothing is allocated on it."""
    card = open_card(name)
    rates = measure_link(card.device, free=GIB)
    assert rates.pinned is rates.pageable is None
    assert "no link" in rates.about
    assert not card.read().peak_allocated


def test_a_full_card_is_not_measured() -> None:
    """There is no room for a copy that would tell anything."""
    rates = measure_link(torch.device("cuda"), free=2**20)
    assert rates.pinned is rates.pageable is None
    assert "the card is full" in rates.about


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA card")
def test_a_device_that_fails_is_a_sentence() -> None:
    """Nothing is raised, whatever the build or the driver says."""
    rates = measure_link(torch.device("cuda"), free=GIB)
    assert rates.pinned is rates.pageable is None
    assert rates.about.startswith("not measured: ")
    assert "\n" not in rates.about


@pytest.mark.gpu
def test_a_real_link_carries_more_from_pinned_memory() -> None:
    """Both rates are known, and the card's cache is all that is left."""
    card = open_card("cuda:0")
    before = card.read().allocated
    rates = measure_link(card.device, free=card.read().free)
    assert rates.pinned is not None
    assert rates.pageable is not None
    assert rates.pinned > 0 < rates.pageable
    card.trim()
    after = card.read()
    assert after.allocated == before
    assert (after.peak_allocated or 0) - (before or 0) <= MOST_BYTES
