"""Linear layers in slices of rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tightfit.errors import UsageError
from tightfit.place.slices import sliced
from tightfit.units import KIB


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 100), nn.Linear(100, 8, bias=False)).eval()


@torch.no_grad()
def test_a_slice_is_a_view_of_its_rows() -> None:
    """Nothing is copied; results, names and values are those of the whole; it comes back."""
    module, x = network(), torch.randn(2, 3, 64)
    expected, layers, state = module(x), list(module), module.state_dict()
    with sliced(module, 16 * KIB) as told:
        parts = list(module[0].parts)
        assert [part.out_features for part in parts] == [16] * 6 + [4]
        assert all(part.weight.nbytes <= 4 * KIB for part in parts)
        whole = layers[0].weight.untyped_storage().data_ptr()
        assert {part.weight.untyped_storage().data_ptr() for part in parts} == {whole}
        assert len(told) == 1
        assert module[1] is layers[1]
        torch.testing.assert_close(module(x), expected)
        now = module.state_dict()
        assert list(now) == list(state)
        assert all(torch.equal(now[name], state[name]) for name in state)
    assert list(module) == layers
    assert torch.equal(module(x), expected)


def test_where_there_is_no_limit_nothing_is_cut() -> None:
    """Nor where everything is below it."""
    module = network()
    layers = list(module)
    for most in (None, 32 * KIB):
        with sliced(module, most) as told:
            assert told == []
            assert list(module) == layers


def test_what_cannot_be_cut_is_named_and_the_rest_is_as_it_was() -> None:
    """A row that is too large by itself, and layers of other kinds."""
    module = network()
    layers = list(module)
    with pytest.raises(UsageError, match="a row of 256 B is above"), sliced(module, 512):
        raise AssertionError("not reached")
    assert list(module) == layers
    module.append(nn.Conv2d(8, 64, 3))
    with (
        pytest.raises(UsageError, match=r"`2` has a weight of 18\.0 KiB"),
        sliced(module, 16 * KIB),
    ):
        raise AssertionError("not reached")
    assert list(module)[:2] == layers
