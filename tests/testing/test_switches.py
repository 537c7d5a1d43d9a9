"""The switches that users get: on inside, as before outside, on success and on error."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from tightfit.card import open_card
from tightfit.card.virtual.card import VirtualCard
from tightfit.testing import faults, oom_after, other_program
from tightfit.units import MIB

SWITCHES: dict[str, object] = {
    "delayed_frees": True,
    "spill": True,
    "max_allocation": MIB,
    "element_ceiling": 7,
    "workspace": lambda _, size: size,
    "silent_workspace": True,
    "on_allocate": lambda *_: None,
    "lanes": "strict",
    "lane_seed": 7,
}


@pytest.fixture
def card() -> VirtualCard:
    opened = open_card("virtual:64MiB")
    assert isinstance(opened, VirtualCard)
    return opened


def state(card: VirtualCard) -> dict[str, object]:
    fields = dataclasses.fields(card.faults)
    return {field.name: getattr(card.faults, field.name) for field in fields}


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_on_inside_and_off_outside_on_success(name: str, card: VirtualCard) -> None:
    """Each switch of the card can be turned."""
    before = state(card)
    with faults(card, **{name: SWITCHES[name]}):
        assert getattr(card.faults, name) == SWITCHES[name]
    assert state(card) == before


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_off_outside_on_error(name: str, card: VirtualCard) -> None:
    """The error path puts back what was changed."""
    before = state(card)
    with pytest.raises(KeyError), faults(card, **{name: SWITCHES[name]}):
        raise KeyError
    assert state(card) == before


def test_every_switch_of_the_card_can_be_turned_from_here(card: VirtualCard) -> None:
    """A new switch needs a name in `faults`; planned faults have `oom_after`."""
    assert set(state(card)) == {*SWITCHES, "planned"}


def test_switches_nest(card: VirtualCard) -> None:
    """The inner one wins inside and leaves the outer one as it was."""
    with faults(card, max_allocation=4 * MIB, spill=True):
        with faults(card, max_allocation=MIB):
            assert (card.faults.max_allocation, card.faults.spill) == (MIB, True)
        assert card.faults.max_allocation == 4 * MIB


def zeros(card: VirtualCard) -> torch.Tensor:
    return torch.zeros(4, device=card.device)


def test_the_allocation_after_so_many_good_ones_fails_once(card: VirtualCard) -> None:
    """Two are served, the third is refused, the fourth is served."""
    with oom_after(card, 2):
        kept = [zeros(card), zeros(card)]
        with pytest.raises(torch.OutOfMemoryError):
            zeros(card)
        kept.append(zeros(card))
    assert not card.faults.planned


def test_a_form_may_be_given_by_name(card: VirtualCard) -> None:
    """As in a table of parameters."""
    with oom_after(card, 0, form="hip"), pytest.raises(RuntimeError, match="HIP out of memory"):
        zeros(card)
    with pytest.raises(ValueError, match="nonsense"), oom_after(card, 0, form="nonsense"):
        pass


@pytest.mark.parametrize("leave", ["quietly", "with an error"])
def test_a_fault_that_did_not_strike_is_taken_away(leave: str, card: VirtualCard) -> None:
    """Nothing fails later, somewhere else."""

    def use() -> None:
        with oom_after(card, 100):
            if leave == "with an error":
                raise KeyError

    if leave == "with an error":
        with pytest.raises(KeyError):
            use()
    else:
        use()
    assert not card.faults.planned


def test_two_faults_strike_one_after_the_other(card: VirtualCard) -> None:
    """Equal faults are two faults: taking one away leaves the other."""
    with oom_after(card, 1):
        with oom_after(card, 0), pytest.raises(torch.OutOfMemoryError):
            zeros(card)
        with pytest.raises(torch.OutOfMemoryError):
            zeros(card)
    assert zeros(card).numel() == 4


@pytest.mark.parametrize("leave", [lambda: None, lambda: {}["absent"]], ids=["success", "error"])
def test_another_program_is_gone_outside(leave: Callable[[], object], card: VirtualCard) -> None:
    """It holds its bytes inside only."""
    try:
        with other_program(card, 24 * MIB):
            assert card.read().held_by_others == 24 * MIB
            leave()
    except KeyError:
        pass
    assert card.read().held_by_others == 0
