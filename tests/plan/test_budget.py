"""What may be used of a card, from what a user wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.errors import UsageError
from tightfit.plan.budget import Budget, BudgetWish
from tightfit.units import GIB, MIB, parse_share

CARD = 8 * GIB


@pytest.mark.parametrize(
    ("vram", "reserve", "budget"),
    [
        (None, None, Budget(CARD)),
        ("6GiB", None, Budget(6 * GIB)),
        ("50%", None, Budget(4 * GIB)),
        ("-1GiB", "512m", Budget(7 * GIB, 512 * MIB)),
        (6 * GIB, MIB, Budget(6 * GIB, MIB)),
        ("8GiB", "0", Budget(CARD)),
        ("8GiB", 0, Budget(CARD)),
    ],
)
def test_a_budget_is_what_was_written(
    vram: str | int | None, reserve: str | int | None, budget: Budget
) -> None:
    """Sizes, shares of the card, what to leave; without any, all of it."""
    assert BudgetWish.of(vram, reserve).on("card", CARD) == budget


@pytest.mark.parametrize(
    ("vram", "reserve", "words"),
    [
        ("six", None, "--vram `six` is not a size"),
        ("6", None, "write a number with B"),
        ("0GiB", None, "is zero"),
        (0, None, "not above zero"),
        (-GIB, None, "not above zero"),
        ("120%", None, "not a share between 0 and 100%"),
        ("-0GiB", None, "leaves zero bytes"),
        (None, "-1GiB", "is not a size"),
        (None, -1, "is below zero"),
        (None, "much", "is not a size"),
    ],
)
def test_what_is_no_size_is_refused_before_a_card_is_known(
    vram: str | int | None, reserve: str | int | None, words: str
) -> None:
    """With the option's name and the legal forms."""
    with pytest.raises(UsageError) as refused:
        BudgetWish.of(vram, reserve)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("vram", "reserve", "words"),
    [
        ("9GiB", None, "--vram 9.0 GiB is above what card has, 8.0 GiB"),
        ("-9GiB", None, "leaves nothing"),
        (None, "8GiB", "--reserve-vram 8.0 GiB leaves nothing of card"),
    ],
)
def test_what_a_card_does_not_have_is_refused(
    vram: str | None, reserve: str | None, words: str
) -> None:
    """With both figures."""
    with pytest.raises(UsageError) as refused:
        BudgetWish.of(vram, reserve).on("card", CARD)
    assert words in str(refused.value)


@given(st.integers(1, 2**44))
def test_bytes_are_written_as_a_user_would_and_mean_the_same(size: int) -> None:
    """So that a card named by them has a name."""
    share = BudgetWish.of(size, None).share
    assert share is not None
    assert parse_share(share.text).size == size
    assert BudgetWish.of(6 * GIB, None).share == parse_share("6GiB")


@given(st.integers(1, 2**44), st.integers(0, 2**44), st.integers(1, 2**44))
def test_a_budget_is_never_more_than_the_card(vram: int, reserve: int, total: int) -> None:
    """Refused, or within it with something left."""
    try:
        amount = BudgetWish.of(vram, reserve).on("card", total)
    except UsageError:
        assert vram > total or reserve >= total
        return
    assert amount == Budget(vram, reserve)
    assert amount.budget <= total
    assert amount.reserve < total
