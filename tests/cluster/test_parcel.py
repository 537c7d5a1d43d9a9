"""What was read of an item, on its way."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from tightfit.api.batches.batch import ItemDone
from tightfit.api.sources import Footage
from tightfit.cluster.parcel import Parcel, from_table, to_table
from tightfit.cluster.task import Task
from tightfit.media.sound import Sound

TASK = Task(3, "a", Path("/a.mp4"), Path("/a.safetensors"))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.float32])
def test_what_was_read_arrives_as_it_was(dtype: torch.dtype) -> None:
    """Frames of every type, also ones that do not lie in order; alpha, sound and the rest."""
    frames = (torch.rand(3, 4, 5, 3) * 200).to(dtype).permute(0, 3, 1, 2)
    footage = Footage(
        frames,
        Fraction(24000, 1001),
        torch.rand(3, 1, 4, 5),
        (1.0, 0.5, 0.0),
        {"kind": "clip"},
        ("a note",),
        Sound(torch.rand(2, 100), 44100, ("another",)),
    )
    back = from_table(to_table(Parcel(TASK, {"sha256": "x"}, footage)))
    assert (back.task, back.made) == (TASK, {"sha256": "x"})
    assert back.footage is not None
    assert back.footage.frames.dtype == dtype
    assert torch.equal(back.footage.frames, frames)
    assert torch.equal(back.footage.alpha, footage.alpha)
    assert torch.equal(back.footage.sound.samples, footage.sound.samples)
    for each in fields(Footage):
        if each.name not in ("frames", "alpha", "sound"):
            assert getattr(back.footage, each.name) == getattr(footage, each.name)


def test_sound_alone_has_no_frames() -> None:
    """An empty tensor is one."""
    footage = Footage(torch.zeros(0, 3, 0, 0), sound=Sound(torch.rand(1, 8), 8000))
    back = from_table(to_table(Parcel(TASK, {}, footage)))
    assert back.footage is not None
    assert back.footage.frames.shape == (0, 3, 0, 0)
    assert torch.equal(back.footage.sound.samples, footage.sound.samples)


def test_an_item_that_is_done_carries_nothing_else() -> None:
    """Its outcome goes past the card."""
    done = ItemDone(TASK.source, TASK.out, "kept")
    parcel = Parcel(TASK, {}, None, done, ("hash", 5))
    assert from_table(to_table(parcel)) == parcel
