"""Lanes and queues as `place` opens them, on cards without a stream."""

from __future__ import annotations

import pytest
import torch

from tightfit.card import open_card
from tightfit.card.lanes import Lane
from tightfit.place.lanes import compute_of, open_lane


@pytest.mark.parametrize("name", ["cpu", "virtual:1MiB"])
def test_one_program_runs_on_every_card(name: str) -> None:
    """Copy, mark, wait, drain, and a mark set anew; the bytes are there in the end."""
    card = open_card(name)
    lane, compute = open_lane(card), compute_of(card)
    slot, blocks = torch.empty(4, device=card.device), torch.arange(12.0).view(3, 4)
    used = compute.mark()
    came = None
    sums = []
    for block in blocks:
        lane.wait(used)
        lane.copy(slot, block)
        came = lane.mark(again=came)
        compute.wait(came)
        compute.wait(came)
        sums.append(float(slot.sum()))
        assert compute.mark(again=used) is used
    assert came is not None
    came.drain()
    lane.drain()
    assert sums == [6.0, 22.0, 38.0]
    assert torch.equal(slot.cpu(), blocks[2])


@pytest.mark.parametrize("name", ["cpu", "virtual:1MiB"])
@pytest.mark.parametrize("rows_first", [False, True])
def test_what_is_copied_back_is_what_the_card_had(name: str, *, rows_first: bool) -> None:
    """Into memory of either order, while compute goes on elsewhere; the marks are a lane's."""
    card = open_card(name)
    lane, compute = open_lane(card), compute_of(card)
    kept = torch.zeros(2, 3, 4, 5)
    kept = kept.contiguous(memory_format=torch.channels_last) if rows_first else kept
    result = torch.arange(120.0).view(2, 3, 4, 5).to(card.device) * 2
    lane.wait(compute.mark())
    lane.copy_back(kept, result)
    came = lane.mark()
    compute.wait(came)
    result.zero_()
    came.drain()
    assert torch.equal(kept, torch.arange(120.0).view(2, 3, 4, 5) * 2)


@pytest.mark.parametrize("name", ["cpu", "virtual:1MiB"])
@pytest.mark.parametrize(
    ("shape", "dtype", "device"),
    [((5,), torch.float32, None), ((4,), torch.float64, None), ((4,), torch.float32, "meta")],
)
def test_a_copy_back_that_is_none_is_refused(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, device: str | None
) -> None:
    """As on the way there: nothing is spread, converted or guessed."""
    card = open_card(name)
    target = torch.zeros(shape, dtype=dtype, device=device)
    with pytest.raises(ValueError, match=r"back from the card.*shape and dtype alike.*\(4,\)"):
        open_lane(card).copy_back(target, torch.ones(4, device=card.device))


def test_a_source_elsewhere_is_refused() -> None:
    """A lane copies back from the memory of its own card."""
    one, other = open_card("virtual:1MiB"), open_card("virtual:1MiB")
    for source in (torch.ones(4), torch.ones(4, device=other.device)):
        with pytest.raises(ValueError, match="lane of vcard"):
            open_lane(one).copy_back(torch.zeros(4), source)


@pytest.mark.parametrize("name", ["cpu", "virtual:1MiB"])
def test_each_lane_is_one_of_its_own(name: str) -> None:
    """Two lanes of one card copy side by side; both are lanes, and neither is the other."""
    card = open_card(name)
    one, two = open_lane(card), open_lane(card)
    assert isinstance(one, Lane)
    assert one is not two
    slots, source = torch.zeros(2, 4, device=card.device), torch.ones(4)
    one.copy(slots[0], source)
    two.copy(slots[1], source)
    one.drain()
    two.drain()
    assert slots.cpu().eq(1).all()


@pytest.mark.parametrize("name", ["cpu", "virtual:1MiB"])
@pytest.mark.parametrize(
    ("shape", "dtype", "device"),
    [((5,), torch.float32, None), ((4,), torch.float64, None), ((4,), torch.float32, "meta")],
)
def test_a_copy_that_is_none_is_refused(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, device: str | None
) -> None:
    """Other shapes are not spread, other dtypes not converted, and devices not guessed."""
    card = open_card(name)
    target = torch.zeros(4, device=card.device)
    with pytest.raises(ValueError, match=r"shape and dtype alike.*\(4,\) torch.float32 on"):
        open_lane(card).copy(target, torch.zeros(shape, dtype=dtype, device=device))
    assert target.cpu().eq(0).all()


def test_a_target_elsewhere_is_refused() -> None:
    """A lane copies to the memory of its own card."""
    lane = open_lane(open_card("virtual:1MiB"))
    with pytest.raises(ValueError, match="lane of vcard"):
        lane.copy(torch.zeros(4), torch.ones(4))


def test_a_mark_of_another_kind_of_card_is_refused() -> None:
    """A virtual queue knows nothing of other queues."""
    virtual, host = open_card("virtual:1MiB"), open_card("cpu")
    with pytest.raises(TypeError, match="cannot wait for"):
        compute_of(virtual).wait(open_lane(host).mark())


def test_stamps_tell_the_time_between_two_points() -> None:
    """Of any two queues of a card that has a clock; a virtual one has none."""
    card = open_card("cpu")
    first, second = compute_of(card).stamp(), open_lane(card).stamp()
    assert first is not None
    assert second is not None
    assert second.seconds_since(first) == -first.seconds_since(second) >= 0
    assert open_lane(open_card("virtual:1MiB")).stamp() is None
    assert compute_of(open_card("virtual:1MiB")).stamp() is None
