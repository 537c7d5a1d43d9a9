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
