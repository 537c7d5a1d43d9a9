"""Integers that are widened on a real card."""

from __future__ import annotations

import pytest
import torch

from tests.run.test_intake import CLIP, DTYPES, UNIT, every_value, same

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card"),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [torch.uint8, torch.uint16], ids=str)
def test_a_card_widens_integers_as_the_host_does(kind: torch.dtype, dtype: torch.dtype) -> None:
    """Every value, to the bit: a card that divides by a number would not."""
    for traits in (CLIP, UNIT):
        same(every_value(kind), traits, dtype, torch.device("cuda:0"))
