"""Where pieces lie in the picture."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.cases.common import virtual
from tightfit.plan.tilesize import parse_tile
from tightfit.run.job import Job, Request
from tightfit.run.vae import Direction
from tightfit.testing import toy_vae
from tightfit.units import MIB

ROOM = 64 * MIB


def told(direction: Direction, source: torch.Tensor, **request: Any) -> list[dict[str, Any]]:
    """The tiles of a job of the toy `V3` or `V2`, as its trace has them."""
    vae = toy_vae("V3" if source.dim() == 5 else "V2", width=8)
    job = Job(vae, direction, virtual(ROOM), Request(ROOM, **request))
    job.run(source)
    return [event for event in job.recorder.events() if event["event"] == "tile"]


def covered(boxes: list[tuple[int, int, int, int]], height: int, width: int) -> torch.Tensor:
    """How many boxes lie over each pixel."""
    plane = torch.zeros(height, width, dtype=torch.int)
    for left, top, wide, high in boxes:
        assert left >= 0
        assert top >= 0
        assert left + wide <= width
        assert top + high <= height
        plane[top : top + high, left : left + wide] += 1
    return plane


@pytest.mark.parametrize("direction", ["encode", "decode"])
def test_tiles_cover_the_picture_that_is_read_or_written(direction: Direction) -> None:
    """In its pixels, with their overlaps, whichever way the job goes."""
    source = torch.rand(2, 3, 96, 128) if direction == "encode" else torch.rand(2, 4, 12, 16)
    events = told(direction, source, wish=parse_tile("64", "16"), estimate=False)
    boxes = [event["box"] for event in events]
    half = len(boxes) // 2
    assert boxes[:half] == boxes[half:]  # of the second item
    assert {box[2:] for box in map(tuple, boxes)} == {(64, 64)}
    assert covered(boxes[:half], 96, 128).min() == 1
    assert len(boxes) == events[0]["total"]


def test_pieces_of_a_clip_lie_where_their_tile_does() -> None:
    """Time has no place in the picture."""
    source = torch.rand(1, 3, 9, 96, 64)
    events = told("encode", source, wish=parse_tile("5x64x64", "16"), estimate=False)
    assert covered([event["box"] for event in events], 96, 64).min() >= 1
    assert len({tuple(event["box"]) for event in events}) < len(events)


@pytest.mark.parametrize(("height", "width"), [(192, 64), (64, 192)])
def test_strips_cover_the_picture_once_for_each_stage(height: int, width: int) -> None:
    """Along the longer side, without an overlap."""
    vae = toy_vae("V2N", width=8)
    source = torch.rand(1, 3, height, width)
    whole = Job(vae, "encode", virtual(ROOM), Request(ROOM, wish=parse_tile("off")))
    peak = whole.run(source).peak_bytes
    assert peak is not None
    room = peak * 3 // 4
    job = Job(vae, "encode", virtual(room), Request(room))
    job.run(source)
    boxes = [each["box"] for each in job.recorder.events() if each["event"] == "tile"]
    assert boxes
    plane = covered(boxes, height, width)
    assert plane.min() == plane.max() >= 1
    assert {box[3 if width > height else 2] for box in boxes} == {min(height, width)}


def test_a_whole_run_and_one_of_sound_have_no_boxes() -> None:
    """The first is all there is; the other has no plane."""
    assert [event["box"] for event in told("encode", torch.rand(1, 3, 32, 32))] == [None]
    vae = toy_vae("VA")
    job = Job(vae, "decode", virtual(ROOM), Request(ROOM, wish=parse_tile("19200"), estimate=False))
    job.run(torch.rand(1, vae.traits.latent_channels, 40))
    events = [event for event in job.recorder.events() if event["event"] == "tile"]
    assert len(events) > 1
    assert {event["box"] for event in events} == {None}
