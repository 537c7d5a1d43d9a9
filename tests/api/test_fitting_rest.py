"""A fitted module that rests between its calls, and makes room for others before them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

import tightfit
from tests.api.test_fitting import bytes_of, inputs, network, opened, wanted
from tests.cases.common import assert_back, virtual
from tests.loras import flux, given, load
from tests.loras import inputs as flux_inputs
from tests.loras import wanted as flux_wanted
from tests.place.converting import nets
from tightfit.allocators import ALIGNMENT
from tightfit.card.virtual.card import VirtualCard
from tightfit.errors import MemoryShortage, UsageError
from tightfit.place.streaming.seat import Seat
from tightfit.testing import oom_after
from tightfit.units import KIB, MIB

pytestmark = pytest.mark.filterwarnings(r"ignore::UserWarning:peft\..*")
ELEMENTS = 5 * ALIGNMENT


def allocated(card: VirtualCard) -> int:
    found = card.read().allocated
    assert found is not None
    return found


def assert_at_rest(module: nn.Module, card: VirtualCard, *, beside: int = 0) -> None:
    """Nothing of its weights is on the card, by all counts."""
    assert tightfit.fitted(module).taken == 0
    assert allocated(card) - beside <= ELEMENTS


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 1.5])
@pytest.mark.parametrize("allocator", ["exact", "native", "async", "expandable"])
def test_after_a_rest_the_next_call_has_the_bits_of_the_resident_run(
    share: float, allocator: str
) -> None:
    """At each budget and allocator, again and again; masters and pins are as they were."""
    module, x = network(), inputs()
    expected = wanted(module, lambda card: module(x.to(card.device)))
    card = opened(f"256MiB,allocator={allocator},grain=4MiB")
    beside = {"exact": 64 * KIB, "async": 40 * MIB}.get(allocator, 8 * MIB)
    budget, mode = int(share * bytes_of(module)) + beside, "auto"
    if allocator != "exact" and share < 0.5:
        mode = "none"
    with torch.no_grad():
        tightfit.fit(module, card=card, vram=budget, mode=mode, example=(x,))
        fitted = tightfit.fitted(module)
        session = fitted.session
        for _ in range(3):
            assert torch.equal(module(x).cpu(), expected)
            assert fitted.taken > 0
            there, arenas = allocated(card), session.host.arena_bytes
            assert fitted.rest() == there - allocated(card) > 0
            assert_at_rest(module, card)
            assert (card.read().reserved or 0) <= card.grain or allocator == "exact"
            assert session.host.arena_bytes == arenas
            assert fitted.rest() == 0
        assert torch.equal(module(x).cpu(), expected)
        assert fitted.session is session
    whys = [change.why for change in fitted.changes]
    assert whys.count("it was at rest") == whys.count("it was to rest") == 3
    tightfit.unfit(module)
    card.trim()
    assert_back(card)
    assert card.hazards == ()


def test_at_rest_it_says_so() -> None:
    """Instead of a plan that is not done."""
    module, x = network(), inputs()
    tightfit.fit(module, card=opened("64MiB"), vram="100KiB", example=(x,))
    fitted = tightfit.fitted(module)
    fitted.rest()
    assert "is at rest" in fitted.explain()
    with torch.no_grad():
        module(x)
    assert "is at rest" not in fitted.explain()
    assert "it was at rest" in fitted.explain()
    tightfit.unfit(module)
    assert fitted.rest() == fitted.taken == 0


def test_it_comes_back_to_the_room_that_there_is_then() -> None:
    """Less than before, and then more."""
    module, x = network(), inputs()
    expected = wanted(module, lambda card: module(x.to(card.device)))
    card = opened("400KiB")
    with torch.no_grad():
        tightfit.fit(module, card=card, example=(x,))
        fitted = tightfit.fitted(module)
        module(x)
        much = fitted.session.resident_bytes
        fitted.rest()
        card.occupy(150 * KIB)
        assert torch.equal(module(x).cpu(), expected)
        assert fitted.session.resident_bytes < much
        fitted.rest()
        card.vacate(150 * KIB)
        assert torch.equal(module(x).cpu(), expected)
        assert fitted.session.resident_bytes == much
    tightfit.unfit(module)


@pytest.mark.parametrize("vram", ["100KiB", "300KiB", "10MiB"])
def test_unfit_from_rest_gives_the_module_back(vram: str) -> None:
    """Objects, values, ties and gradients."""
    module, x = network(), inputs()
    before = {
        name: (p, p.detach().clone(), p.requires_grad) for name, p in module.named_parameters()
    }
    names = {name: set(vars(part)) for name, part in module.named_modules()}
    card = opened("64MiB")
    with torch.no_grad():
        tightfit.fit(module, card=card, vram=vram, example=(x,))
        module(x)
    tightfit.fitted(module).rest()
    state = module.state_dict()
    assert all(torch.equal(state[name], value) for name, (_, value, _) in before.items())
    tightfit.unfit(module)
    for name, parameter in module.named_parameters():
        same, value, wanted_grad = before[name]
        assert parameter is same
        assert torch.equal(parameter, value)
        assert parameter.requires_grad == wanted_grad
    assert module.last.weight is module.first.weight
    assert all(set(vars(part)) == names[name] for name, part in module.named_modules())
    assert_back(card)


@pytest.mark.parametrize("vram", ["9MiB", "20MiB", "64MiB"])
def test_packed_weights_rest_as_they_are(vram: str) -> None:
    """They stay packed on the host, and are unpacked on the card as before."""
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(8)))
    module = module.eval().requires_grad_(False).to(torch.bfloat16)
    x = torch.randn(4, 1024).to(torch.bfloat16)
    expected = wanted(module, lambda card: module(x.to(card.device)))
    card = opened("64MiB")
    tightfit.fit(module, card=card, vram=vram, example=(x,), pack="on")
    fitted = tightfit.fitted(module)
    for _ in range(3):
        assert torch.equal(module(x).cpu(), expected)
        packed = [group.name for group in fitted.session.groups if group.packed]
        assert bool(packed) == (vram == "9MiB")
        fitted.rest()
        assert_at_rest(module, card)
    tightfit.unfit(module)
    assert_back(card)


@pytest.mark.parametrize("mode", ["auto", "none", "high"])
def test_stored_weights_rest_as_they_are(mode: str) -> None:
    """In eight bits, with the room that they are converted in; in another dtype afterwards, too."""
    net, x = nets.network((0, 3, 0), width=256), torch.randn(2, 256)
    calls = [x, x.to(torch.bfloat16), x] if mode == "auto" else [x, x, x]
    card = virtual(64 * MIB)
    tightfit.fit(net, card=card, mode=mode, example=(x,))
    fitted = tightfit.fitted(net)
    with torch.no_grad():
        expected = [net(each).cpu() for each in calls[:1]]
        for each in calls:
            fitted.rest()
            assert_at_rest(net, card)
            value = net(each).cpu()
            if each.dtype == x.dtype:
                assert torch.equal(value, expected[0])
    tightfit.unfit(net)
    assert_back(card)


def test_a_rest_in_a_call_is_refused() -> None:
    """From within, and from the hook that makes room; the call goes on."""
    module, x = network(), inputs()
    expected = wanted(module, lambda card: module(x.to(card.device)))
    tightfit.fit(module, card=opened("64MiB"), vram="120KiB", example=(x,))
    fitted, refused = tightfit.fitted(module), []

    def rest(*_: object) -> None:
        with pytest.raises(UsageError, match="is being called"):
            fitted.rest()
        refused.append(1)

    hook = module.blocks[1].register_forward_hook(rest)
    fitted.makes_room = rest
    with torch.no_grad():
        assert torch.equal(module(x).cpu(), expected)
    hook.remove()
    assert len(refused) == 2
    tightfit.unfit(module)


def test_a_rest_while_another_thread_calls_is_refused_at_once() -> None:
    """It never waits for a call, so that two that make room for one another cannot for ever."""
    module, x, card = network(), inputs(), opened("64MiB")
    tightfit.fit(module, card=card, mode="none", example=(x,))
    fitted, x = tightfit.fitted(module), x.to(card.device)
    begun, go_on = threading.Event(), threading.Event()

    def pause(*_: object) -> None:
        begun.set()
        assert go_on.wait(30)

    part: Any = module.blocks[1]

    def call(what: nn.Module) -> None:
        with torch.no_grad():
            what(x)

    for whole in (True, False):
        hook = part.register_forward_pre_hook(pause)
        thread = threading.Thread(target=call, args=(module if whole else part,))
        begun.clear()
        go_on.clear()
        thread.start()
        assert begun.wait(30)
        with pytest.raises(UsageError, match="another thread"):
            fitted.rest()
        assert fitted.taken > 0
        go_on.set()
        thread.join()
        hook.remove()
    assert fitted.rest() > 0
    tightfit.unfit(module)


def test_two_modules_in_two_threads_make_room_for_one_another() -> None:
    """On a card that has room for one of them: each call has its bits, or a sentence while the
    other is at work and cannot rest; no thread waits for ever."""
    card = opened("500KiB")
    modules, x = [network(), network((0, 2, 0, 1))], inputs()
    expected = [wanted(m, lambda card, m=m: m(x.to(card.device))) for m in modules]  # type: ignore[misc]
    for module in modules:
        tightfit.fit(module, card=card, vram="400KiB", mode="auto")
        tightfit.fitted(module).rest()
    one, two = map(tightfit.fitted, modules)
    rested: list[int] = []

    def let_rest(other: Any) -> Callable[[Callable[[], int]], None]:
        def make_room(size: Callable[[], int]) -> None:
            if size() > (card.read().free or 0):
                try:
                    rested.append(other.rest())
                except UsageError:  # it is busy
                    rested.append(0)

        return make_room

    one.makes_room, two.makes_room = let_rest(two), let_rest(one)
    wrong: list[object] = []

    def work(at: int) -> None:
        try:
            with torch.no_grad():
                for _ in range(12):
                    with suppress(MemoryShortage):
                        assert torch.equal(modules[at](x).cpu(), expected[at])
        except BaseException as error:
            wrong.append(error)

    for at in (0, 1, 0):  # one after the other, each finds room for all of it
        work(at)
        assert not tightfit.fitted(modules[at]).session.residency.streamed
    assert sum(1 for size in rested if size) >= 2
    threads = [threading.Thread(target=work, args=(at,)) for at in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong
    for module in modules:
        tightfit.unfit(module)
    gc.collect()  # of errors, frames hold one another
    assert_back(card)


@pytest.mark.parametrize("rests", [False, True])
@pytest.mark.parametrize("allocator", ["exact", "native"])
def test_what_a_call_would_like_is_enough_to_stream_nothing(rests: bool, allocator: str) -> None:
    """On a card that is full of tensors of this process, which go as far as it asks; and it asks
    for little more than that."""
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(4))).eval()
    card, x = virtual(f"256MiB,allocator={allocator},grain=2MiB"), torch.randn(2, 2048)
    size = 16 * MIB
    held = [torch.empty(size, dtype=torch.uint8, device=card.device) for _ in range(12)]
    tightfit.fit(module, card=card, example=(x,))
    fitted, asked = tightfit.fitted(module), []
    assert fitted.session.residency.streamed
    if rests:
        fitted.rest()

    def give(size: Callable[[], int]) -> None:
        asked.append(size() + fitted.taken)
        while held and card.read().free < size():
            held.pop()
            card.trim()

    fitted.makes_room = give
    with torch.no_grad():
        for _ in range(1 if rests else 5):
            module(x)
        assert not fitted.session.residency.streamed
        module(x)
    assert held
    assert max(asked) <= bytes_of(module) + 16 * MIB
    held.clear()
    tightfit.unfit(module)


def test_loras_come_and_go_while_it_rests() -> None:
    """It stays at rest until it is called, and then has the numbers of a large card."""
    seen, model = flux(torch.float32), flux(torch.float32)
    card = virtual(64 * MIB)
    tightfit.fit(model, card=card, vram=int(0.6 * bytes_of(model)) + 400 * KIB,
                 example=flux_inputs(model.dtype))  # fmt: skip
    fitted = tightfit.fitted(model)
    for step in (
        lambda m: load(m, 5, "a"),
        lambda m: m.fuse_lora(lora_scale=0.9),
        lambda m: m.unload_lora(),
    ):
        fitted.rest()
        step(model)
        assert_at_rest(model, card)
        step(seen)
        assert torch.equal(given(model), flux_wanted(seen))
        assert fitted.taken > 0
    fitted.rest()
    load(model, 5, "a")
    load(model, 6, "b", rank=8)
    assert_at_rest(model, card)
    load(seen, 5, "a")
    load(seen, 6, "b", rank=8)
    assert torch.equal(given(model), flux_wanted(seen))
    tightfit.unfit(model)
    assert_back(card)


@pytest.mark.parametrize("at", [0, 3, 11])
@pytest.mark.parametrize("times", [1, 2])
def test_after_an_interrupt_in_the_middle_of_a_rest_the_next_call_is_right(
    at: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so is the module after `unfit`."""
    module, x = network(), inputs()
    expected = wanted(module, lambda card: module(x.to(card.device)))
    card, bring, left = opened("64MiB"), Seat.bring, [at]

    def bring_or_not(seat: Seat, view: torch.Tensor) -> None:
        left[0] -= 1
        if -1 - times < left[0] <= -1:
            raise KeyboardInterrupt
        bring(seat, view)

    with torch.no_grad():
        tightfit.fit(module, card=card, vram="300KiB", example=(x,))
        fitted = tightfit.fitted(module)
        module(x)
        monkeypatch.setattr(Seat, "bring", bring_or_not)
        with pytest.raises(KeyboardInterrupt):
            fitted.rest()
        if times == 1:
            assert_at_rest(module, card)
        assert torch.equal(module(x).cpu(), expected)
        fitted.rest()
        assert_at_rest(module, card)
    tightfit.unfit(module)
    assert_back(card)


class Tabled(nn.Module):
    """Has a table in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)
        self.table = torch.randn(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.two(torch.relu(self.one(x) + self.table))
        return result


def test_a_card_that_is_full_on_the_way_back_costs_no_bits() -> None:
    """At each allocation in turn, once or twice: the call is made again, its tables are there."""
    torch.manual_seed(0)
    module, x = Tabled().eval(), inputs()
    expected, table = wanted(module, lambda card: _on(module, card, x)), module.table
    card = opened("64MiB")
    with torch.no_grad():
        for at in range(24):
            tightfit.fit(module, card=card, vram="60KiB", example=(x,))
            tightfit.fitted(module).rest()
            assert_at_rest(module, card)
            with oom_after(card, at), oom_after(card, at + 4 if at % 2 else 999):
                assert torch.equal(module(x).cpu(), expected)
            assert torch.equal(module(x).cpu(), expected)
            assert module.table.device == card.device
            tightfit.unfit(module)
            assert module.table is table
            assert_back(card)


def _on(module: Tabled, card: VirtualCard, x: torch.Tensor) -> torch.Tensor:
    before = module.table
    try:
        module.table = before.to(card.device)
        return module(x.to(card.device))
    finally:
        module.table = before
