"""One name for each card."""

from __future__ import annotations

import pytest

from tightfit.cluster.card_names import card_names
from tightfit.errors import UsageError


@pytest.mark.parametrize(
    ("asked", "count", "names"),
    [
        (None, 0, ("cpu",)),
        (None, 2, ("cuda:0", "cuda:1")),
        ("cuda:1,cuda:0", 2, ("cuda:1", "cuda:0")),
        ("cuda", 1, ("cuda:0",)),
        ("virtual:2x64MiB", 0, ("virtual:64MiB", "virtual:64MiB")),
        ("virtual:1GiB,allocator=native, cpu", 0, ("virtual:1GiB,allocator=native", "cpu")),
        ("virtual:gtx-1660-super", 0, ("virtual:gtx-1660-super",)),
    ],
)
def test_each_card_has_a_name_of_its_own(
    asked: str | None, count: int, names: tuple[str, ...]
) -> None:
    """Several of one kind are as many names; commas within a name are its own."""
    assert card_names(asked, count=count) == names


@pytest.mark.parametrize(
    ("asked", "count", "said"),
    [
        ("cuda:2", 2, r"`cuda:2` does not exist: there is cuda:0 to cuda:1 here"),
        ("cuda:0", 0, "there is none here"),
        ("cuda:0,cuda:0", 1, "names one card twice"),
        ("nonsense", 1, "`nonsense` is unknown"),
        ("virtual:2xnothing", 0, "is unknown"),
    ],
)
def test_a_card_that_is_not_there_is_refused(asked: str, count: int, said: str) -> None:
    """By name, before Ray is started."""
    with pytest.raises(UsageError, match=said):
        card_names(asked, count=count)
