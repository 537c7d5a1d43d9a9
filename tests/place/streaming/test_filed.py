"""Masters that are read anew for each use."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.cases.common import virtual
from tightfit.place.lanes import compute_of, open_lane
from tightfit.place.streaming.arena import Arena
from tightfit.place.streaming.filed import Filed
from tightfit.place.streaming.files import Files
from tightfit.place.streaming.layout import Layout
from tightfit.place.streaming.ring import Ring

Made = tuple[Filed, Arena, Files]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Of a file, of memory, and of neither; the same packed."""
    path = tmp_path_factory.mktemp("files") / "w.safetensors"
    torch.manual_seed(0)
    save_file({"a": torch.randn(30, 7), "b": torch.randn(9), "c": torch.randn(5).half()}, path)
    loaded, files = load_file(path), Files()
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    tensors = [loaded["a"], image, torch.empty(0, 3), loaded["b"], torch.tensor(True), loaded["c"]]
    stretches = [files.find(tensor) for tensor in tensors]
    assert [at for at, found in enumerate(stretches) if found] == [0, 3, 5]
    layout = Layout.of(tensors)
    return Filed(layout, tensors, stretches), Arena(layout, tensors), files


@given(st.data())
def test_any_part_is_read_as_it_would_lie_packed(made: Made, data: st.DataObject) -> None:
    """With zeros between tensors, whatever was there before."""
    filed, arena, _ = made
    start = data.draw(st.integers(0, filed.layout.bytes))
    end = data.draw(st.integers(start, filed.layout.bytes))
    target = torch.full((end - start,), 99, dtype=torch.uint8)
    filed.fill(target, start)
    assert torch.equal(target, arena.buffer[start:end])


def test_what_is_filed_is_counted(made: Made) -> None:
    """What is in memory is not."""
    filed, arena, _ = made
    assert filed.filed_bytes == (210 + 9) * 4 + 5 * 2
    assert torch.equal(filed.buffer, arena.buffer)
    assert filed.whole is None
    assert all(torch.equal(a, b) for a, b in zip(filed.views, arena.views, strict=True))


def test_without_a_worker_it_is_read_here_and_now(made: Made) -> None:
    """Through a plain lane; a ring that compares finds nothing wrong."""
    filed, arena, _ = made
    card = virtual("1MiB")
    card.faults.lanes = "strict"
    ring = Ring(card, open_lane(card), compute_of(card), [filed, arena], slots=1, compares=True)
    for _ in range(2):
        for master in (filed, arena):
            found = ring.take(master, "me")
            assert all(torch.equal(a.cpu(), b) for a, b in zip(found, arena.views, strict=True))
            ring.leave(master, "me")
    ring.close()
