"""`fit(pack=…)`: fewer bytes where that is faster or asked for, and the same bits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

import tightfit
from tests.place.streaming.test_streamed import assert_whole, values
from tests.streaming import Net, resident
from tightfit.api import fitting
from tightfit.card import open_card
from tightfit.card.host_memory import HostMemory, read_host_memory
from tightfit.card.virtual.card import VirtualCard
from tightfit.place.streaming import masters
from tightfit.place.streaming.streamed import Streaming
from tightfit.units import KIB, MIB

WIDTH = 512
KINDS = (0, 1, 0, 2, 3, 0)
BF16 = torch.bfloat16


def opened(size: str) -> VirtualCard:
    card = open_card(f"virtual:{size}")
    assert isinstance(card, VirtualCard)
    card.faults.lanes = "strict"
    return card


def network(kinds: tuple[int, ...] = KINDS, dtype: torch.dtype = BF16) -> Net:
    torch.manual_seed(5)
    return Net(WIDTH, kinds).eval().to(dtype)


def inputs(rows: int = 2, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)


def wanted(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The result with everything on a large card."""
    card = open_card("virtual:1GiB")
    assert isinstance(card, VirtualCard)
    value, _ = resident(module, card, lambda: module(x.to(card.device)))
    return value


def packed(session: Streaming) -> list[str]:
    return [group.name for group in session.groups if group.packed]


@pytest.mark.parametrize("budget", ["7MiB", "9MiB", "20MiB"])
def test_packed_weights_give_the_bits_of_the_resident_run_within_the_budget(budget: str) -> None:
    """Where something streams, all that shrink are packed; state dicts are true, all comes back."""
    module, x = network(), inputs()
    expected, before = wanted(module, x), values(module)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    card = opened("64MiB")
    with torch.no_grad():
        tightfit.fit(module, card=card, vram=budget, example=(x,), pack="on")
        session = tightfit.fitted(module).session
        assert bool(packed(session)) == (budget != "20MiB")
        for _ in range(8):
            assert torch.equal(module(x).cpu(), expected)
            now = module.state_dict()
            assert all(torch.equal(now[name], value) for name, value in state.items())
        assert len(tightfit.fitted(module).changes) == 1
    tightfit.unfit(module)
    assert_whole(module, before)
    reading = card.read()
    assert reading.allocated == 0
    assert (reading.peak_allocated or 0) <= int(budget.removesuffix("MiB")) * MIB
    assert card.hazards == ()


@pytest.mark.slow
@pytest.mark.parametrize("allocator", ["native", "expandable"])
def test_room_that_the_allocator_does_not_give_is_not_asked_for_again(allocator: str) -> None:
    """Fewer weights stay than were planned, so more seems free; a loop of calls settles all the
    same, and each time that weights are placed anew for it less is copied from then on."""
    torch.manual_seed(0)
    module, x = Net(1024, 3 * KINDS).eval().requires_grad_(False).to(BF16), torch.ones(64, 1024)
    size = int(0.9 * sum(each.nbytes for each in set(module.parameters()))) + 8 * MIB
    card, copied = open_card(f"virtual:{size}B,allocator={allocator}"), []
    with torch.no_grad():
        tightfit.fit(module, card=card, example=(x.to(BF16),), pack="on")
        fitted = tightfit.fitted(module)
        for _ in range(14):
            module(x.to(BF16))
            if len(copied) < len(fitted.changes):
                copied.append(fitted.session.residency.moved_bytes)
    tightfit.unfit(module)
    assert copied == sorted(set(copied), reverse=True)
    assert len(copied) <= 3


@pytest.mark.slow
def test_weights_placed_anew_again_and_again_take_what_the_session_tells() -> None:
    """Another program comes and goes: nothing of what was let go is kept, nothing changes bits."""
    module, x = network(), inputs()
    expected, before = wanted(module, x), values(module)
    card = opened("10MiB")
    with torch.no_grad():
        tightfit.fit(module, card=card, example=(x,), pack="on")
        fitted = tightfit.fitted(module)
        for _ in range(2):
            for taken in (2 * MIB, 0):
                card.occupy(taken)
                for _ in range(8):
                    assert torch.equal(module(x).cpu(), expected)
                assert (card.read().allocated or 0) - fitted.session.bytes < 4 * KIB
                assert packed(fitted.session)
                card.vacate(taken)
        assert len(fitted.changes) > 3
    tightfit.unfit(module)
    assert_whole(module, before)
    assert card.read().allocated == 0


@pytest.mark.parametrize("kind", ["fp32", "noise"])
def test_where_nothing_shrinks_nothing_is_packed(kind: str) -> None:
    """Other dtypes, and values of all exponents; asked for or not."""
    dtype = torch.float32 if kind == "fp32" else BF16
    module, x = network((0, 2), dtype), inputs(dtype=dtype)
    budget = sum(parameter.nbytes for parameter in module.parameters()) * 3 // 4 + 128 * KIB
    if kind == "noise":
        with torch.no_grad():
            for parameter in module.parameters():
                signs = parameter.sign() + (parameter == 0)
                parameter.copy_(signs * torch.empty(parameter.shape).uniform_(-99, 99).exp2())
    expected = wanted(module, x)
    with torch.no_grad():
        tightfit.fit(module, card=opened("64MiB"), vram=budget, example=(x,), pack="on")
        session = tightfit.fitted(module).session
        assert packed(session) == []
        assert session.rings
        result = module(x).cpu()
    tightfit.unfit(module)
    assert torch.equal(result.view(torch.uint8), expected.view(torch.uint8))


def test_a_card_of_which_no_rates_are_known_packs_only_when_it_is_asked_to() -> None:
    """Nothing says that it would be faster."""
    module, x = network(), inputs()
    found = {}
    for pack in ("off", "auto", "on"):
        tightfit.fit(module, card=opened("64MiB"), vram="9MiB", example=(x,), pack=pack)
        found[pack] = bool(packed(tightfit.fitted(module).session))
        tightfit.unfit(module)
    assert found == {"off": False, "auto": False, "on": True}


@pytest.mark.parametrize("pack", ["auto", "on"])
def test_a_host_without_room_for_weights_twice_keeps_them_packed_alone(
    pack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come back bit for bit."""
    now = read_host_memory()

    def short() -> HostMemory:
        return replace(now, ram_available=MIB, group=None)

    monkeypatch.setattr(fitting, "read_host_memory", short)
    monkeypatch.setattr(masters, "read_host_memory", short)
    module, x = network(), inputs()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    expected = wanted(module, x)
    with torch.no_grad():
        tightfit.fit(module, card=opened("64MiB"), vram="9MiB", example=(x,), pack=pack)
        assert bool(packed(tightfit.fitted(module).session)) == (pack == "on")
        assert torch.equal(module(x).cpu(), expected)
    tightfit.unfit(module)
    assert all(torch.equal(module.state_dict()[name], value) for name, value in before.items())


@cache
def large() -> Net:
    """114 MiB: a named card takes memory 2 and 20 MiB at a time."""
    torch.manual_seed(5)
    return Net(2048, (0, 0, 0), tied=False).eval().to(BF16)


@pytest.mark.parametrize(
    ("rows", "vram", "packs"),
    [(2, "90MiB", True), (256, "70MiB", True), (4096, "260MiB", False), (2, "400MiB", False)],
)
def test_auto_packs_where_the_link_binds(rows: int, vram: str, packs: bool) -> None:
    """By the figures of a named card; not where copies hide behind computing, or all fits."""
    module, x = large(), torch.zeros(rows, 2048, dtype=BF16)
    seconds = {}
    for pack in ("off", "auto"):
        card = open_card("virtual:rtx-3060")
        tightfit.fit(module, card=card, vram=vram, example=(x,), pack=pack)
        fitted = tightfit.fitted(module)
        pace = fitted.plan.stages[0].pace
        assert pace is not None
        assert pace.seconds is not None
        seconds[pack] = pace.seconds
        assert bool(packed(fitted.session)) == (pack == "auto" and packs)
        assert bool(fitted.session.rings) == (vram != "400MiB")
        tightfit.unfit(module)
        assert card.read().allocated == 0
    assert seconds["auto"] <= seconds["off"] / (1.02 if packs else 1)
