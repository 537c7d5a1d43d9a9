"""What is advised when memory is the reason."""

from __future__ import annotations

from tightfit.card import open_card
from tightfit.plan.tilesize import parse_tile
from tightfit.run.advice import advice
from tightfit.units import MIB

CARD = "virtual:64MiB"


def advised(
    card: str = CARD,
    *,
    budget: int = 64 * MIB,
    reserve: int = 0,
    tile: str = "auto",
    may_try_cpu: bool = True,
) -> str:
    """Advice on a card of 64 MiB."""
    return advice(
        open_card(card).read(),
        budget=budget,
        reserve=reserve,
        wish=parse_tile(tile),
        may_try_cpu=may_try_cpu,
    )


def test_a_budget_can_grow_only_up_to_the_card() -> None:
    """--vram is advised while the card has more, another card after that."""
    assert "a larger --vram" in advised(budget=32 * MIB)
    assert "a larger card" in advised()


def test_what_was_asked_for_is_what_can_be_taken_back() -> None:
    """A reserve, forbidden or forced tiles, and the host where it was not allowed."""
    assert advised() == (
        "a larger card (--vram is all of it), a smaller or shorter input, or --allow-cpu"
    )
    assert "a smaller --reserve-vram" in advised(reserve=MIB)
    assert "tiles instead of --tile off" in advised(tile="off")
    assert "--tile auto" in advised(tile="64")
    assert "--allow-cpu" not in advised(may_try_cpu=False)


def test_other_programs_are_blamed_only_where_they_hold_something() -> None:
    """A virtual card without any has nobody to close."""
    assert "other programs" not in advised()
    assert "close other programs" in advised(f"{CARD},others=8MiB")
