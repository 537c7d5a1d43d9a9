"""Each byte once, however many tensors look at it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from tightfit.weigh.tally import Tally, stored_bytes


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12))
def test_windows_of_one_storage_count_their_union(windows: list[tuple[int, int]]) -> None:
    """In any order, touching, nested, equal, overlapping or empty."""
    base = torch.zeros(100, dtype=torch.int16)
    tally, covered = Tally(), set[int]()
    for start, length in windows:
        new = set(range(start, start + length)) - covered
        assert tally.add(base[start : start + length]) == 2 * len(new)
        covered |= new


@pytest.mark.parametrize("where", ["cpu", "meta"])
def test_two_parameters_of_one_storage_count_once(where: str) -> None:
    """A tie need not be the same object; transposed or flat, it is the same bytes."""
    base = torch.zeros(8, 4, device=where)
    tally = Tally()
    assert tally.add(nn.Parameter(base)) == 128
    for other in (nn.Parameter(base), base.T, base.view(32), base[2:5]):
        assert tally.add(other) == 0


def test_different_meta_tensors_are_not_merged() -> None:
    """All their pointers are 0."""
    tally = Tally()
    tensors = [torch.empty(8, device="meta") for _ in range(3)]
    assert [tally.add(tensor) for tensor in tensors] == [32, 32, 32]


def test_a_tensor_that_is_gone_leaves_no_address_behind() -> None:
    """What was counted stays alive in the tally, so that no later tensor is taken for it."""
    tally = Tally()
    assert [tally.add(torch.zeros(8)) for _ in range(50)] == [32] * 50


def test_an_expanded_tensor_takes_its_storage() -> None:
    """One value shown a million times is four bytes."""
    assert stored_bytes(torch.zeros(1).expand(1000, 1000)) == 4
    assert stored_bytes(torch.zeros(7, 1).expand(7, 1000)) == 28


def test_a_window_with_holes_takes_its_own_elements() -> None:
    """Two halves of every row are the whole, though their ends lie far apart."""
    base = torch.zeros(10, 8)
    tally = Tally()
    assert stored_bytes(base[:, :4]) == 160
    assert [tally.add(base[:, half]) for half in (slice(0, 4), slice(4, 8), slice(0, 4))] == [
        160,
        160,
        0,
    ]


def test_overlapping_windows_of_a_signal_take_the_signal() -> None:
    """`unfold` shows each value several times."""
    assert stored_bytes(torch.zeros(100).unfold(0, 10, 1)) == 400


def test_weights_that_are_windows_of_a_mapped_file_weigh_themselves(tmp_path: Path) -> None:
    """All of them may share the file's one storage."""
    path = tmp_path / "weights.safetensors"
    save_file({"a": torch.ones(100), "b": torch.ones(30, dtype=torch.float16)}, path)
    loaded = load_file(path)
    assert stored_bytes(loaded["a"]) == 400
    assert stored_bytes(loaded["b"]) == 60
    tally = Tally()
    assert tally.add(loaded["a"]) + tally.add(loaded["b"]) == 460
