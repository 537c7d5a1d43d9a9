"""The books of a plan."""

from __future__ import annotations

import pytest

from tightfit.errors import BooksError
from tightfit.plan.figure import UNKNOWN, Figure
from tightfit.plan.ledger import CARD, OURS, Ledger
from tightfit.units import MIB


def ledger(budget: int = 10, total: int = 16, **lines: int) -> Ledger:
    """Of so many MiB each."""
    figures = {name: Figure(size * MIB) for name, size in lines.items()}
    return Ledger(figures, budget * MIB, total * MIB)


def test_lines_stand_in_the_order_of_the_design() -> None:
    """However they were put in."""
    names = list(reversed((*OURS, *CARD)))
    assert list(ledger(**dict.fromkeys(names, 0)).lines) == [*OURS, *CARD]


def test_a_line_that_is_not_in_the_books_is_refused() -> None:
    """A typing error would otherwise be in no sum."""
    with pytest.raises(ValueError, match="no such line: wieghts"):
        ledger(wieghts=1)


def test_the_budget_bounds_our_lines_and_the_card_bounds_all() -> None:
    """Context, others and reserve come off the card, never off the budget."""
    ledger(weights_resident=6, ring=2, slack=2, context=3, held_by_others=2, reserve=1).check()
    with pytest.raises(BooksError, match=r"budget of 10\.0 MiB"):
        ledger(weights_resident=6, ring=2, slack=3).check()
    with pytest.raises(BooksError, match=r"card of 16\.0 MiB"):
        ledger(weights_resident=10, context=7).check()


def test_an_unknown_line_is_named_and_makes_its_sums_unknown() -> None:
    """It is never silently 0."""
    books = Ledger({"activations": UNKNOWN, "ring": Figure(2)}, 10, 10)
    assert books.unknown == ("activations",)
    assert books.of("activations", "ring") is None
    assert books.of("ring") == 2
    assert books.as_dict()["activations"] == {"bytes": None, "source": "predicted"}


def test_nobody_edits_the_books() -> None:
    """A plan is a value."""
    with pytest.raises(TypeError):
        ledger(ring=1).lines["ring"] = Figure(0)  # type: ignore[index]
