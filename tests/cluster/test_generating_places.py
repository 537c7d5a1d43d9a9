"""Which cards take part in a queue of prompts, by plans and without Ray."""

from __future__ import annotations

import pytest

from tightfit.api.generation.asked import Asked
from tightfit.cluster.prompt_places import cards_that_take
from tightfit.errors import MemoryShortage

LINES = [f"p.txt:{line}" for line in range(1, 6)]
SMALL, LARGE = "virtual:1KiB", "virtual:1GiB"


def asked() -> Asked:
    """Of pictures of 64x64."""
    return Asked.of("random:flux.1-dev-mini", prompts=5, out="p.png", width=64, height=64, seed=1)


def test_a_card_without_room_takes_no_part_and_that_is_said() -> None:
    """The prompts of a job are alike, so a card takes any or none."""
    taking = cards_that_take(asked(), LINES, (SMALL, LARGE, LARGE), {})
    assert taking.cards == (LARGE, LARGE)
    (note,) = taking.notes
    assert note.startswith(f"{SMALL} takes no part: a prompt needs ")
    assert note.endswith("and it has 1.0 KiB.")


def test_a_card_that_is_not_needed_is_left_alone() -> None:
    """One prompt has one worker."""
    assert cards_that_take(asked(), LINES[:1], (LARGE, LARGE), {}).cards == (LARGE,)


def test_a_budget_is_of_each_card() -> None:
    """What fits nowhere is refused with its lines and the figures."""
    with pytest.raises(MemoryShortage) as refused:
        cards_that_take(asked(), LINES, (LARGE, LARGE), {"vram": "1KiB"})
    said = str(refused.value)
    assert "for 5 jobs" in said
    assert "`p.txt:1` needs" in said
    assert "virtual:1GiB (card 0), has 1.0 KiB" in said
