"""Code that asks whether something is true, without values: both answers, bounded questions."""

from __future__ import annotations

import pytest
import torch

from tightfit.weigh.answers import MOST, either

META = torch.device("meta")


def test_what_asks_nothing_is_run_once() -> None:
    """And gives one result."""
    runs: list[int] = []
    assert either(lambda: runs.append(1) or "told") == ["told"]
    assert len(runs) == 1


def test_both_answers_are_given_to_what_asks() -> None:
    """A mask that hides something, and one that hides nothing."""

    def padded() -> int:
        mask = torch.ones(4, 8, dtype=torch.bool, device=META)
        return 1 if mask.all() else 2

    assert either(padded) == [2, 1]


@pytest.mark.parametrize("fails", [False, True])
def test_an_answer_that_leads_to_an_error_does_not_count(fails: bool) -> None:
    """The other does."""

    def checked() -> str:
        flag = torch.ones((), dtype=torch.bool, device=META)
        if bool(flag) == fails:
            raise ValueError("not such a one")
        return "fine"

    assert either(checked) == ["fine"]


def test_where_both_lead_to_errors_the_first_is_raised() -> None:
    """That of the answer no."""

    def checked() -> None:
        raise ValueError("yes" if torch.ones((), dtype=torch.bool, device=META) else "no")

    with pytest.raises(ValueError, match="no"):
        either(checked)


def test_an_error_of_what_asks_nothing_is_its_own() -> None:
    """It is run once."""
    runs: list[int] = []

    def broken() -> None:
        runs.append(1)
        raise KeyError("weight")

    with pytest.raises(KeyError):
        either(broken)
    assert len(runs) == 1


def test_a_loop_that_waits_for_something_ends() -> None:
    """Under the answer that never lets it go on; the other answer is the result."""
    turns: list[int] = []

    def waiting() -> int:
        turns.clear()
        while not torch.ones((), dtype=torch.bool, device=META):
            turns.append(1)
            assert len(turns) <= MOST
        return len(turns)

    assert either(waiting) == [0]


def test_numbers_are_not_guessed() -> None:
    """They may be sizes."""
    with pytest.raises(RuntimeError, match="meta"):
        either(lambda: int(torch.ones((), dtype=torch.int64, device=META)))


def test_truths_with_a_value_are_looked_at() -> None:
    """Those on the host have one."""
    assert either(lambda: bool(torch.ones((), dtype=torch.bool))) == [True]
