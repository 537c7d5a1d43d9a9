"""Memory that is asked for where it is no loss to be refused."""

from __future__ import annotations

import pytest
import torch

from tests.cases.common import virtual
from tightfit.run.ladder.refused import unless_full
from tightfit.units import MIB


def test_what_there_is_no_room_for_is_none() -> None:
    """The card is as it was, and what fits is given."""
    card = virtual("1MiB")

    def make(size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=card.device)

    assert unless_full(lambda: make(2 * MIB)) is None
    found = unless_full(lambda: make(MIB))
    assert found is not None
    assert found.nbytes == card.read().allocated == MIB


def test_any_other_error_passes() -> None:
    """It is not memory that was lacking."""
    with pytest.raises(ZeroDivisionError):
        unless_full(lambda: 1 // 0)
