"""Pipelines whose parts lie on several cards: the bits of one card, nothing on the wrong one."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import tightfit
from tests.api.sharing.test_pipelines import KINDS, MAIN, call, roomy
from tests.cases.common import assert_back, virtual
from tests.pipelines import tiny
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import MemoryShortage, UsageError
from tightfit.run.fitting.handing import handed
from tightfit.testing import oom_after
from tightfit.units import GIB, KIB
from tightfit.weigh import weight_bytes

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"  # a scheduler of diffusers, numpy 2
)
Pair = tuple[VirtualCard, VirtualCard]


@pytest.fixture(name="cards")
def two_cards() -> Iterator[Pair]:
    """Both are empty afterwards."""
    pair = virtual(GIB), virtual(GIB)
    yield pair
    gc.collect()  # schedulers keep times on their card
    for card in pair:
        assert_back(card)


def test_parts_on_two_cards_give_the_bits_of_one(cards: Pair) -> None:
    """The pipeline works on the card of the denoiser."""
    kind = "sdxl"
    pipe = tightfit.fit(KINDS[kind][0](), cards=cards)
    kept = tightfit.fitted(pipe)
    main = kept.cards[MAIN[kind]]
    assert len(set(kept.cards.values())) == 2
    assert pipe._execution_device == main.device == kept.card.device
    assert torch.equal(call(pipe, kind), roomy(kind))
    tightfit.unfit(pipe)
    assert all((each.read().peak_allocated or 0) > 0 for each in cards)


def test_each_part_is_where_it_was_told_to_be(cards: Pair) -> None:
    """What nobody said goes where most is left; weights are on no other card than told."""
    pipe = tiny.flux()
    tightfit.fit(pipe, cards=cards, card={"transformer": 1, "text_encoder": 0, "vae": 0})
    kept = tightfit.fitted(pipe)
    assert kept.card is cards[1]
    where = {name: cards.index(card) for name, card in kept.cards.items()}
    assert where == {"vae": 0, "text_encoder": 0, "text_encoder_2": 0, "transformer": 1}
    cards[1].reset_peaks()
    value = pipe.text_encoder(torch.ones(1, 16, dtype=torch.long).to(cards[1].device))
    assert value.pooler_output.device == cards[1].device
    assert (cards[1].read().peak_allocated or 0) < weight_bytes(pipe.text_encoder)
    assert kept.networks["text_encoder"].taken >= weight_bytes(pipe.text_encoder)
    assert torch.equal(call(pipe, "flux"), roomy("flux"))
    text = kept.explain()
    assert "(card 0)" in next(line for line in text.splitlines() if line.startswith("vae"))
    assert "(card 1)" in next(line for line in text.splitlines() if line.startswith("transf"))
    del value
    tightfit.unfit(pipe)


def test_every_part_may_be_elsewhere(cards: Pair) -> None:
    """Where a control network, or the denoiser itself, is called in each step from another card."""
    pipe = tiny.wan()
    where = {"text_encoder": 1, "transformer": 0, "vae": 1}
    session = tightfit.Session(cards=cards)
    with session:
        session.fit(pipe, card=where)
        one = call(pipe, "wan", output="pt")
        assert pipe.vae.decode(torch.zeros(1, 16, 1, 4, 4).to(cards[0].device)).sample.device == (
            cards[0].device
        )
    with tightfit.Session(card=virtual(GIB)) as alone:
        alone.fit(pipe)
        assert torch.equal(call(pipe, "wan", output="pt"), one)


def test_what_a_vae_does_its_own_way_is_handed_over_too(cards: Pair) -> None:
    """A picture of a size that is no whole latent is encoded as written; so is its posterior."""
    pipe = tiny.flux()
    x = torch.rand(1, 3, 31, 33, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = pipe.vae.encode(x).latent_dist.mode()
        tightfit.fit(pipe, cards=cards, card={"transformer": 0, "vae": 1})
        made = pipe.vae.encode(x.to(cards[0].device)).latent_dist.mode()
        assert made.device == cards[0].device
        assert (made.cpu() - wanted).abs().max() <= 1e-5
        del made
    tightfit.unfit(pipe)


def test_a_full_card_takes_nothing_from_the_other(cards: Pair) -> None:
    """Out of memory on card 1: what lies on card 0 stays there, by the byte."""
    pipe = tiny.flux()
    where = {"transformer": 0, "text_encoder": 1, "text_encoder_2": 1, "vae": 1}
    with tightfit.Session(cards=cards) as session:
        session.fit(pipe, card=where)
        picture = call(pipe, "flux", output="pt")
        kept = session.fitted(pipe)
        before, changes = kept.networks["transformer"].taken, kept.networks["transformer"].changes
        gc.collect()  # what the pipeline's call left in cycles
        held, moved = cards[0].read(), len(changes)
        assert before > weight_bytes(pipe.transformer)
        ids = torch.ones(1, 16, dtype=torch.long)
        with oom_after(cards[1], 5):
            pipe.text_encoder(ids)
        assert kept.networks["text_encoder"].attempts
        assert cards[0].read().allocated == held.allocated
        assert cards[0].read().reserved == held.reserved
        assert kept.networks["transformer"].taken == before
        assert len(changes) == moved
        assert torch.equal(call(pipe, "flux", output="pt"), picture)


def test_what_is_handed_over_finds_room_where_idle_networks_rest(cards: Pair) -> None:
    """The card of the pipeline is full: its own denoiser makes way for what an encoder gives."""
    pipe = tiny.flux()
    with tightfit.Session(cards=cards) as session:
        session.fit(pipe, card={"transformer": 0, "text_encoder": 1, "text_encoder_2": 1})
        picture = call(pipe, "flux")
        kept = session.fitted(pipe)
        assert kept.networks["transformer"].taken
        cards[0].occupy((cards[0].read().free or 0) - 2 * KIB)
        ids = torch.ones(64, 16, dtype=torch.long)
        with pytest.raises(MemoryShortage, match="for what a network on"):
            handed(torch.zeros(GIB // 2, device="meta"), torch.device("meta"), cards[0].device)
        value = pipe.text_encoder_2(ids, output_hidden_states=False)
        there = handed(
            value.last_hidden_state,
            cards[1].device,
            cards[0].device,
            makes_room=kept.networks["text_encoder_2"].home_gives,
        )
        assert there.device == cards[0].device
        assert kept.networks["transformer"].rests
        del there, value
        cards[0].vacate(GIB)
        assert torch.equal(call(pipe, "flux"), picture)


def test_a_card_that_is_too_small_says_which_it_is(cards: Pair) -> None:
    """The sentence has its name, and the pipeline goes on with a larger budget."""
    with tightfit.Session(cards=cards, vram=300 * KIB) as session:
        pipe = session.fit(tiny.flux(), card={"transformer": 1})
        with pytest.raises(MemoryShortage, match="Not enough memory to run"):
            call(pipe, "flux")
        session.budget = 1400 * KIB
        assert torch.equal(call(pipe, "flux"), roomy("flux"))
    for card in cards:
        assert (card.read().peak_allocated or 0) <= 1400 * KIB


def test_the_ledger_has_each_card_with_its_parts(cards: Pair) -> None:
    """Also where both have one name, as two that were opened together."""
    with tightfit.Session(cards="virtual:2x1GiB") as session:
        session.fit(tiny.flux(), card={"transformer": 0, "text_encoder_2": 1})
        text = session.explain()
        first, second = text.split("virtual:2x1GiB (card 1)")
        assert "FluxPipeline.transformer:" in first
        assert "FluxPipeline.text_encoder_2:" in second
    del cards


def test_what_two_pipelines_share_works_for_one_home(cards: Pair) -> None:
    """An encoder cannot answer for two cards at once: a sentence, and nothing was changed."""
    one = tiny.flux()
    two: Any = type(one)(**{**one.components, "transformer": tiny.flux().transformer})
    with tightfit.Session(cards=cards) as session:
        session.fit(one, card={"transformer": 0, "text_encoder": 1, "text_encoder_2": 1, "vae": 1})
        parts = {"text_encoder": 1, "text_encoder_2": 1, "vae": 1}
        with pytest.raises(UsageError, match="for a pipeline that works on vcard"):
            session.fit(two, card={"transformer": 1, **parts})
        session.fit(two, card={"transformer": 0, **parts})
        assert torch.equal(call(two, "flux"), call(one, "flux"))


def test_several_cards_that_cannot_be_meant_are_refused(cards: Pair) -> None:
    """Each with a sentence, before anything is placed."""
    pipe = tiny.wan()
    for options, why in (
        ({"cards": cards, "card": {"unet": 1}}, "`unet` is no part of the pipeline: it has"),
        ({"cards": cards, "card": {"vae": 2}}, "to be on card 2, and there are 2"),
        ({"cards": (cards[0], cards[0])}, "one card twice"),
        ({"cards": cards, "card": cards[0]}, "both given"),
        ({"cards": ()}, "names none"),
        ({"cards": "virtual:1GiB,cude:1"}, "unknown"),
    ):
        with pytest.raises(UsageError, match=why):
            tightfit.fit(pipe, **options)
    with pytest.raises(UsageError, match="a module computes on one card"):
        tightfit.fit(nn.Linear(2, 2), cards=cards)
    with tightfit.Session(cards=cards) as session, pytest.raises(UsageError, match="each part"):
        session.fit(nn.Linear(2, 2), card={"weight": 1})
    assert all(card.allocations == 0 for card in cards)
    tightfit.unfit(tightfit.fit(pipe, cards="virtual:64MiB,virtual:1GiB,allocator=native"))
