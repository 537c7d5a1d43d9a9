"""`tightfit.leakcheck`: silent where nothing stayed, and plain where something did."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
import torch

import tightfit
from tests.watch.leaks.planted import NAME, big, program, uncollected
from tightfit.card import open_card
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import JobFailed, UsageError
from tightfit.plan.tilesize import parse_tile
from tightfit.run.job import Job, Request
from tightfit.testing import toy_vae
from tightfit.units import MIB
from tightfit.watch.leaks import Hold


@pytest.fixture
def card() -> VirtualCard:
    """64 MiB."""
    opened = open_card("virtual:64MiB")
    assert isinstance(opened, VirtualCard)
    return opened


def test_what_stayed_is_an_error_with_bytes_chain_and_advice(card: VirtualCard) -> None:
    """Everything that a person needs to find it."""
    with program() as state, pytest.raises(JobFailed) as caught, tightfit.leakcheck(card):
        state.cache = [big(card)]
    text = str(caught.value)
    assert text.splitlines() == [
        "1 storage of 1.0 MiB in all stayed that should be gone.",
        f"- 1.0 MiB on {card.device}, global: module {NAME} → cache[0] → "
        "Tensor [512, 512] float32, 1.0 MiB",
        "global: drop the name.",
    ]


def test_a_hundred_clean_runs_raise_no_alarm(card: VirtualCard) -> None:
    """Encodes of networks of all kinds, whole and in tiles, on one card: nothing is ever left."""
    vaes = [toy_vae(name, width=4) for name in ("V2", "V2N", "V3")]
    sources = [torch.rand(1, 3, 32, 32), torch.rand(1, 3, 24, 32), torch.rand(1, 3, 5, 16, 16)]
    wishes = [parse_tile("off"), parse_tile("16", "8")]
    for at in range(100):
        vae, source = vaes[at % 3], sources[at % 3]
        with tightfit.leakcheck(card) as check:
            outcome = Job(
                vae, "encode", card, Request(64 * MIB, wish=wishes[at % 2], estimate=False)
            ).run(source)
        assert outcome.value.device.type == "cpu"
        assert check.leaks == ()
        assert check.found is not None
        assert check.found.workspaces == {}


def test_what_is_allowed_may_stay(card: VirtualCard) -> None:
    """By kind or by pattern; it is still in what was found."""
    for allowed in ("global", f"module {NAME} → cache*", ("closure", "*cache[[]0]*")):
        with program() as state, tightfit.leakcheck(card, allow=allowed) as check:
            state.cache = [big(card)]
        assert check.leaks == ()
        assert check.found is not None
        assert [leak.kind for leak in check.found.leaks] == [Hold.GLOBAL]


def test_a_check_that_reports_raises_nothing(card: VirtualCard) -> None:
    """The leaks are there to be read, with the figures of the card."""
    with program() as state, tightfit.leakcheck(card, report_only=True) as check:
        state.cache = [big(card)]
    assert check.leaks is not None
    assert [leak.bytes for leak in check.leaks] == [MIB]
    assert len(check.lines()) == 4
    assert "allocated: 1.0 MiB" in check.lines()[1]


def test_an_error_inside_is_the_error_that_is_seen(card: VirtualCard) -> None:
    """Its frames hold what they hold; nothing is looked for, and nothing is claimed."""
    check = tightfit.leakcheck(card)

    def fail() -> None:
        x = big(card)
        raise ZeroDivisionError(x.shape)

    with pytest.raises(ZeroDivisionError), check:
        fail()
    assert check.leaks is None
    assert check.lines() == []


def test_a_caught_error_that_is_kept_is_found(card: VirtualCard) -> None:
    """As a test that keeps what `pytest.raises` gave it."""

    def fail() -> None:
        x = big(card)
        raise ZeroDivisionError(x.shape)

    with tightfit.leakcheck(card, report_only=True) as check, pytest.raises(ZeroDivisionError) as e:
        fail()
    assert check.leaks is not None
    (leak,) = check.leaks
    assert leak.kind is Hold.EXCEPTION
    assert leak.chain[1].startswith("local e")
    assert leak.chain[-2] == "local x"
    del e


def test_a_cycle_is_found_unless_it_may_stay(card: VirtualCard) -> None:
    """It costs until the collector comes by."""

    def plant() -> None:
        loop: list[Any] = [big(card)]
        loop.append(loop)

    with uncollected(), pytest.raises(JobFailed, match="cycle"), tightfit.leakcheck(card):
        plant()
    with uncollected(), tightfit.leakcheck(card, allow="cycle"):
        plant()


def test_sites_are_told_where_they_are_asked_for(card: VirtualCard) -> None:
    """The line that made it; tracing ends with the check."""
    with program() as state:
        with tightfit.leakcheck(card, sites=True, report_only=True) as check:
            state.cache = torch.zeros(512, 512, device=card.device)
        assert not tracemalloc.is_tracing()
    start = test_sites_are_told_where_they_are_asked_for.__code__.co_firstlineno
    assert check.leaks is not None
    assert [leak.site for leak in check.leaks] == [f"{__file__}:{start + 4}"]


def test_every_card_in_use_is_looked_at_where_none_is_named(card: VirtualCard) -> None:
    """Nothing has to be handed over."""
    with program() as state, pytest.raises(JobFailed, match=str(card.device)):  # noqa: SIM117
        with tightfit.leakcheck():
            state.cache = big(card)


def test_a_name_that_is_no_card_is_refused() -> None:
    """Before anything is run."""
    with pytest.raises(UsageError, match="unknown"):
        tightfit.leakcheck("gpu0")
    with pytest.raises(UsageError, match="no time"):
        tightfit.leakcheck(seconds=0)
