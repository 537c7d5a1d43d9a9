"""The virtual card as a card: figures, peaks, budgets, second clients, several cards."""

from __future__ import annotations

import gc

import pytest
import torch

from tightfit import allocators as models
from tightfit.card import Card, open_card, open_cards
from tightfit.card.virtual.card import VirtualCard
from tightfit.card.virtual.keeper import keepers
from tightfit.errors import BooksError, UsageError
from tightfit.testing import faults
from tightfit.units import MIB


def virtual(text: str = "64MiB") -> VirtualCard:
    card = open_card(f"virtual:{text}")
    assert isinstance(card, VirtualCard)
    return card


def floats(card: Card, size: int) -> torch.Tensor:
    """A tensor of `size` bytes."""
    return torch.zeros(size // 4, device=card.device)


def test_a_tensor_is_charged_while_it_lives() -> None:
    """Allocated follows the tensor; on an exact card reserved does too."""
    card = virtual()
    tensor = floats(card, 3 * MIB)
    assert (card.read().allocated, card.read().reserved) == (3 * MIB, 3 * MIB)
    del tensor
    assert (card.read().allocated, card.read().reserved) == (0, 0)
    card.check()


def test_everything_is_known_of_a_virtual_card() -> None:
    """Total, context, and what others hold are as the card was described."""
    reading = virtual("64MiB,context=2MiB,others=3MiB").read()
    assert (reading.total, reading.context, reading.held_by_others) == (64 * MIB, 2 * MIB, 3 * MIB)
    assert reading.slack == 0


def test_sizes_are_charged_in_steps_of_512_bytes() -> None:
    """One byte costs 512; no bytes cost nothing."""
    card = virtual()
    one, none = torch.zeros(1, device=card.device), torch.zeros(0, device=card.device)
    assert card.read().allocated == 512
    assert card.allocations == 1
    del one, none
    assert card.read().allocated == 0


def test_a_card_larger_than_this_machine_can_be_opened() -> None:
    """The size is a number; only what is used exists."""
    card = virtual("900TiB")
    assert floats(card, MIB).device == card.device


def test_peaks_stay_until_they_are_reset() -> None:
    """Both peaks are the highest figures since the last reset, to the byte."""
    card = virtual("64MiB,allocator=native")
    kept = floats(card, 4 * MIB)
    floats(card, 30 * MIB)
    assert card.read().peak_allocated == 34 * MIB
    assert card.read().peak_reserved == 50 * MIB
    card.trim()
    card.reset_peaks()
    assert card.read().peak_allocated == 4 * MIB
    assert card.read().peak_reserved == 20 * MIB
    del kept


def test_a_peak_inside_one_operator_is_seen() -> None:
    """The result counts beside its operands, also when nobody keeps it."""
    card = virtual()
    tensor = floats(card, 4 * MIB)
    card.reset_peaks()
    tensor + 1
    assert card.read().peak_allocated == 8 * MIB


def test_the_context_and_others_come_off_the_card() -> None:
    """64 MiB less 8 and 16 leave 40, to the byte."""
    card = virtual("64MiB,context=8MiB,others=16MiB")
    with pytest.raises(torch.OutOfMemoryError):
        floats(card, 40 * MIB + 4)
    assert floats(card, 40 * MIB).nbytes == 40 * MIB


def test_a_refusal_says_how_much_was_asked_free_and_held() -> None:
    """The message has the figures that a driver's has, and the refusal is counted."""
    card = virtual()
    kept = floats(card, 10 * MIB)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        floats(card, 60 * MIB)
    for words in ("allocate 60.0 MiB", "54.0 MiB is free", "10.0 MiB in tensors", "vcard:"):
        assert words in str(caught.value)
    assert card.read().refusals == 1
    del kept


def test_a_cap_holds_inside_and_is_gone_outside() -> None:
    """The budget is on what is reserved; the card's size is back after it, also after an error."""
    card = virtual()
    with card.cap(8 * MIB):
        with pytest.raises(torch.OutOfMemoryError, match=r"limit is 8\.0 MiB"):
            floats(card, 9 * MIB)
        floats(card, 8 * MIB)
    with pytest.raises(KeyError), card.cap(8 * MIB):
        raise KeyError
    assert floats(card, 60 * MIB).nbytes == 60 * MIB


def test_a_cap_inside_a_tighter_one_does_not_widen_it() -> None:
    """Nested caps: the tightest counts, each is restored."""
    card = virtual()
    with card.cap(8 * MIB):
        with card.cap(32 * MIB), pytest.raises(torch.OutOfMemoryError):
            floats(card, 9 * MIB)
        with card.cap(4 * MIB), pytest.raises(torch.OutOfMemoryError):
            floats(card, 5 * MIB)
        floats(card, 8 * MIB)


def test_a_cap_takes_back_what_was_only_cached() -> None:
    """A cache above the new cap is given back on the way in."""
    card = virtual("64MiB,allocator=native")
    floats(card, 40 * MIB)
    assert card.read().reserved == 40 * MIB
    with card.cap(20 * MIB):
        assert card.read().reserved == 0


def test_another_program_takes_memory_and_gives_it_back() -> None:
    """What others hold is not ours, and is in the reading."""
    card = virtual()
    card.occupy(24 * MIB)
    assert card.read().held_by_others == 24 * MIB
    with pytest.raises(torch.OutOfMemoryError):
        floats(card, 41 * MIB)
    card.vacate(24 * MIB)
    assert floats(card, 64 * MIB).nbytes == 64 * MIB


def test_another_program_cannot_take_what_is_ours() -> None:
    """The second client is refused, and nothing changes."""
    card = virtual()
    kept = floats(card, 50 * MIB)
    with pytest.raises(torch.OutOfMemoryError, match=r"14\.0 MiB is free"):
        card.occupy(15 * MIB)
    assert card.read().held_by_others == 0
    card.check()
    del kept


def test_an_observer_is_told_of_every_change() -> None:
    """Allocated and reserved, at the start and after each change, until it leaves."""
    card = virtual()
    seen: list[tuple[int, int]] = []
    with card.observe(lambda allocated, reserved: seen.append((allocated, reserved))):
        floats(card, MIB)
    floats(card, 2 * MIB)
    assert seen == [(0, 0), (MIB, MIB), (0, 0)]


def test_an_observer_leaves_also_after_an_error() -> None:
    """The error path puts back what was changed."""
    card = virtual()
    seen: list[int] = []
    with pytest.raises(KeyError), card.observe(lambda allocated, _: seen.append(allocated)):
        raise KeyError
    count = len(seen)
    floats(card, MIB)
    assert len(seen) == count


def test_check_finds_a_planted_error() -> None:
    """Books that do not add up are an error that says which figure is wrong."""
    card = virtual()
    card.check()
    card._model.reserved += 512
    with pytest.raises(BooksError, match="512"):
        card.check()
    card._model.allocated += 512
    with pytest.raises(BooksError, match="driver says 0"):
        card.check()


def test_check_finds_more_than_the_card_has() -> None:
    """Ours, the context and the others together fit the card."""
    card = virtual()
    kept = floats(card, 40 * MIB)
    card._driver.others = 30 * MIB
    with pytest.raises(BooksError, match="in use"):
        card.check()
    del kept


def test_a_card_that_nobody_holds_is_gone_at_once() -> None:
    """No collection is needed, and its index is the next to be used."""
    gc.disable()
    try:
        card = virtual()
        index = card.index
        del card
        assert index not in keepers
        assert virtual().index == index
    finally:
        gc.enable()


def test_the_lowest_free_index_is_used_again() -> None:
    """Opening fills the gap that a closed card left."""
    first, second, third = virtual(), virtual(), virtual()
    gap = second.index
    del second
    assert virtual().index == gap
    assert gap not in (first.index, third.index)


def test_a_card_lives_as_long_as_a_tensor_on_it() -> None:
    """A tensor that outlives the variable `card` is still on books that add up."""
    card = virtual()
    index = card.index
    tensor = floats(card, MIB)
    del card
    assert tensor.sum().item() == 0
    assert index in keepers
    del tensor
    assert index not in keepers


@pytest.mark.usefixtures("no_cards")
def test_more_cards_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says how many can be open; one that is closed makes room."""
    monkeypatch.setattr("tightfit.card.virtual.card._MOST_CARDS", 2)
    first, second = virtual(), virtual()
    with pytest.raises(UsageError, match="2 virtual cards are open, and there can be no more"):
        virtual()
    del first
    assert virtual().index == 0
    assert second.index == 1


def test_d01_work_on_one_card_leaves_the_other_untouched() -> None:
    """Two cards, all the work on the second: the first has a peak of 0 bytes throughout."""
    first, second = open_cards("virtual:2x64MiB")
    layer = torch.nn.Conv2d(3, 8, 3).to(second.device)
    result = layer(torch.randn(1, 3, 32, 32, device=second.device)).softmax(1).cpu()
    assert result.shape == (1, 8, 30, 30)
    assert second.read().peak_allocated
    assert (first.read().peak_allocated, first.read().peak_reserved) == (0, 0)


@pytest.mark.usefixtures("no_cards")
def test_two_cards_are_vcard_0_and_vcard_1() -> None:
    """``virtual:2x64MiB`` opens devices that are numbered from 0."""
    assert [str(card.device) for card in open_cards("virtual:2x64MiB")] == ["vcard:0", "vcard:1"]


@pytest.mark.usefixtures("no_cards")
def test_plain_vcard_with_no_open_card_is_a_clear_error() -> None:
    """Where no card is open, ``vcard`` says so."""
    virtual()
    with pytest.raises(RuntimeError, match="no virtual card is open"):
        torch.zeros(1, device="vcard")


def test_a_device_without_a_card_is_a_clear_error() -> None:
    """An index that nobody opened is named."""
    card = virtual()
    with pytest.raises(RuntimeError, match="no virtual card is open as vcard:99"):
        torch.zeros(1, device="vcard:99")
    del card


def test_plain_vcard_is_the_lowest_open_card() -> None:
    """Without an index, tensors go where PyTorch's current device is."""
    card = virtual()
    assert torch.zeros(1, device="vcard").device.index == min(keepers.keys())
    del card


@pytest.mark.parametrize("text", ["64MiB", "64MiB,allocator=native", "64MiB,allocator=async"])
def test_delayed_frees_count_only_after_a_wait(text: str) -> None:
    """Freed bytes cannot be used again until somebody waits for the device."""
    card = virtual(text)
    with faults(card, delayed_frees=True):
        floats(card, 40 * MIB)
        assert card.read().allocated == 0
        with pytest.raises(torch.OutOfMemoryError):
            floats(card, 40 * MIB)
        card.check()
        card.sync()
        kept = floats(card, 40 * MIB)
        assert card.read().allocated == 40 * MIB
        card.check()
    assert card.syncs == 1
    del kept


def test_delayed_frees_count_where_the_host_waits_anyway() -> None:
    """Bringing a result to the host waits for the device, and so does trimming."""
    card = virtual()
    with faults(card, delayed_frees=True):
        small = floats(card, 4)
        floats(card, 40 * MIB)
        small.cpu()
        floats(card, 40 * MIB)
        card.trim()
        assert floats(card, 40 * MIB).nbytes == 40 * MIB


def test_a_collection_in_the_middle_of_the_books_waits_its_turn() -> None:
    """A free that a collection causes while the books are open comes right after."""
    card = virtual()
    tensor = floats(card, MIB)
    with card._books():
        del tensor
        assert card._model.allocated == MIB
    assert card.read().allocated == 0
    card.check()


def test_a_free_inside_a_free_waits_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection may strike while a block is being given back; the books stay whole."""
    card = virtual("64MiB,allocator=native")
    held = [floats(card, MIB), floats(card, MIB), floats(card, MIB)]
    give = card._model.give
    depth = deepest = 0

    def collecting(block: models.Block) -> None:
        nonlocal depth, deepest
        depth += 1
        deepest = max(deepest, depth)
        if held:
            held.pop()
        give(block)
        depth -= 1

    monkeypatch.setattr(card._model, "give", collecting)
    held.pop()
    assert deepest == 1
    assert card.read().allocated == 0
    card.check()
